"""Read and write OmniGraph property graphs with Apache Spark.

`spark.read.format("omnigraph")` and `df.write.format("omnigraph")` need no import where the package
is installed. What is exported here is loaded when it is first used: Python workers import this
package for every task, and most of them need little of it.
"""

from __future__ import annotations

import os
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from omnigraph_spark.errors import OmnigraphError, from_spark
    from omnigraph_spark.graph import OmniGraph, register
    from omnigraph_spark.narrowing.frames import enable_narrowing
    from omnigraph_spark.narrowing.narrow import narrow
    from omnigraph_spark.spark.frames import pack, unpack

# Lance reads this once, when it is imported, which here is always later. Without it each task that
# writes to a new table warns that there is no table yet. A user's own setting stays.
os.environ.setdefault("LANCE_LOG", "warn,lance::dataset::write::insert=error")

__version__ = "0.1.0"
__all__ = [
    "OmniGraph",
    "OmnigraphError",
    "__version__",
    "enable_narrowing",
    "from_spark",
    "narrow",
    "pack",
    "register",
    "unpack",
]

_HOME = {
    "OmniGraph": "graph",
    "OmnigraphError": "errors",
    "enable_narrowing": "narrowing.frames",
    "from_spark": "errors",
    "narrow": "narrowing.narrow",
    "pack": "spark.frames",
    "register": "graph",
    "unpack": "spark.frames",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
