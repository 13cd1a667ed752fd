"""What the Python processes that Spark starts and uses again need; nothing happens elsewhere."""

from __future__ import annotations

import gc
import os
from functools import lru_cache


@lru_cache(maxsize=1)
def keep_loaded_modules() -> None:
    """Take what is loaded by now out of garbage collection, once per process.

    Spark's workers collect garbage after every plan and every task. With the modules of PySpark,
    Arrow and Lance loaded that takes 30 ms of CPU each time, most of the cost of a small plan, and
    frees nothing: modules stay. Called when Lance has been loaded, on driver and executors; in a
    process that isn't such a worker (its environment hasn't the mark) it does nothing.
    """
    if "SPARK_REUSE_WORKER" in os.environ:
        gc.freeze()
