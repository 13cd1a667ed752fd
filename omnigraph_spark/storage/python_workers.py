"""What makes the Python processes that Spark uses again cheaper for the next plan or task."""

from __future__ import annotations

import gc
import os
import re
import socket
import stat
import sys
import zipimport
from collections.abc import Iterator
from contextlib import contextmanager, suppress
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
    _forget_importers()
    _freeze()


def _forget_importers() -> None:
    for path, importer in [*sys.path_importer_cache.items()]:
        if isinstance(importer, zipimport.zipimporter) and _OF_SPARK.search(path):
            sys.path_importer_cache.pop(path, None)


@lru_cache(maxsize=1)
def _freeze() -> None:
    gc.freeze()


def begin() -> None:
    """Begin a plan or a task: let the JVM send the rest of it, and take its rows, without a delay.

    Spark sends a task in pieces of 8 KB. The system of the sender holds the last piece back until
    the one before is acknowledged, and that of the receiver delays this by 40 ms, more than a small
    task takes (fact 51). It is the same with what this process sends. Called as soon as the first
    piece is unpacked; elsewhere than in a Python worker of Spark's it does nothing.
    """
    if "SPARK_REUSE_WORKER" not in os.environ:
        return
    _forget_importers()  # of a plan or a task that loads nothing, too
    quick = getattr(socket, "TCP_QUICKACK", None)  # Linux has it
    if quick is None:
        return
    for number in _connections():
        with suppress(OSError), _borrowed(number) as connection:
            # The system forgets it after a while.
            connection.setsockopt(socket.IPPROTO_TCP, quick, 1)


@lru_cache(maxsize=1)
def _connections() -> tuple[int, ...]:
    """Return the file descriptors of this process's connections to its JVM, of one each.

    They last as long as the process, and send what they get from now on.
    """
    found: dict[tuple[object, object], int] = {}
    with suppress(OSError):
        for name in os.listdir("/proc/self/fd"):
            with suppress(OSError):
                number = int(name)
                if not stat.S_ISSOCK(os.fstat(number).st_mode):
                    continue
                with _borrowed(number) as connection:
                    if connection.family not in (socket.AF_INET, socket.AF_INET6):
                        continue
                    own, other = connection.getsockname(), connection.getpeername()
                    if own[0] == other[0]:  # on this machine
                        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                        found[own, other] = number
    return tuple(found.values())


@contextmanager
def _borrowed(number: int) -> Iterator[socket.socket]:
    """Give the socket of a file descriptor, which stays open."""
    connection = socket.socket(fileno=number)
    try:
        yield connection
    finally:
        connection.detach()
