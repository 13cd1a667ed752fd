"""What makes the Python processes that Spark uses again cheaper for the next plan or task."""

from __future__ import annotations

import gc
import os
import re
import sys
import zipimport
from functools import lru_cache

_OF_SPARK = re.compile(r"[/\\](pyspark\.zip|py4j-[^/\\]*\.zip|spark-core_[^/\\]*\.jar)([/\\]|$)")


def spare_loaded_modules() -> None:
    """Spare the next plan or task of this process what it would do again for modules that stay.

    Spark's workers collect garbage after every plan and every task: with the modules of PySpark,
    Arrow and Lance loaded that takes 30 ms of CPU each time, and frees nothing. So what is loaded
    by now is taken out of garbage collection, once per process.

    Spark 4.0 also has Python list the archives that modules came from again before each task: the
    one of PySpark once for each of its packages, and a jar without any Python. That takes 0.3 s of
    CPU each time. So the importers of Spark's own archives are forgotten; Python makes one again
    where it has a module to load. Archives of users aren't touched.

    Called when Lance has been loaded and when rows are read, on driver and executors; in a process
    that isn't such a worker (its environment doesn't have the mark) it does nothing.
    """
    if "SPARK_REUSE_WORKER" not in os.environ:
        return
    for path, importer in [*sys.path_importer_cache.items()]:
        if isinstance(importer, zipimport.zipimporter) and _OF_SPARK.search(path):
            sys.path_importer_cache.pop(path, None)
    _freeze()


@lru_cache(maxsize=1)
def _freeze() -> None:
    gc.freeze()
