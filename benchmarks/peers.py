"""Neighbours that are measured where they are there.

`pyspark-data-sources` (PyPI) has a writer of Lance datasets, and no reader; lance-spark is a jar
for the JVM, named by `LANCE_SPARK_JAR`, which must fit Spark's and Scala's version.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import tempfile
from pathlib import Path

from pyspark.sql import DataFrame
from pyspark.sql.datasource import DataSourceReader

from benchmarks.frames import Bench, noop
from benchmarks.harness import Peer

LANCE_SPARK_JAR = "LANCE_SPARK_JAR"


def jar() -> str | None:
    """Return the path of lance-spark's jar, if one is given."""
    return os.environ.get(LANCE_SPARK_JAR) or None


def pushes_filters() -> bool:
    """Return whether this Spark pushes filters into Python sources (4.1 and later)."""
    return hasattr(DataSourceReader, "pushFilters")


def pyspark_data_sources_append(bench: Bench, frame: DataFrame) -> tuple[Peer, ...]:
    """Return the Lance writer of `pyspark-data-sources`, where it is installed."""
    if importlib.util.find_spec("pyspark_datasources") is None:
        return ()
    # The package's own module imports all its sources, and what those need.
    sink = importlib.import_module("pyspark_datasources.lance").LanceSink

    class NamedSink(sink):  # type: ignore[misc,valid-type]
        """The sink under a name that lance-spark doesn't have."""

        @classmethod
        def name(cls) -> str:
            return "pds_lance"

    bench.spark.dataSource.register(NamedSink)
    place = Path(tempfile.mkdtemp(dir=bench.folder))

    def append(number: int) -> None:
        frame.write.format("pds_lance").mode("append").save(str(place / str(number)))

    return (Peer("pyspark-data-sources", append),)


def lance_spark_scan(bench: Bench, frame: DataFrame) -> tuple[Peer, ...]:
    """Return lance-spark's scan of the same rows, which it writes first."""
    if jar() is None:
        return ()
    place = bench.path("lance-spark.lance")
    frame.write.format("lance").save(place)
    return (
        Peer(
            "lance-spark", lambda _: noop(bench.spark.read.format("lance").load(place)), goal=1.25
        ),
    )


def lance_spark_append(bench: Bench, frame: DataFrame) -> tuple[Peer, ...]:
    """Return lance-spark's write of the same rows."""
    if jar() is None:
        return ()
    place = Path(tempfile.mkdtemp(dir=bench.folder))
    return (
        Peer(
            "lance-spark",
            lambda n: frame.write.format("lance").save(str(place / f"{n}.lance")),
            goal=1.0,
        ),
    )
