"""The frames that the benchmarks read and write, made by Spark, and small helpers around them."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from omnigraph_spark import OmniGraph
from omnigraph_spark.storage import layout
from omnigraph_spark.storage.store import Storage

EDGES = "edge:Knows"
WIDE = "node:Thing"
TASKS = 4
VECTOR_WIDTH = 256
WIDE_PROPERTIES = 18


class Bench:
    """What the cases share: a session, a folder, and how many rows the edge table has."""

    def __init__(self, spark: SparkSession, folder: Path, rows: int) -> None:
        self.spark = spark
        self.folder = folder
        self.rows = rows

    def numbers(self, rows: int, tasks: int = TASKS) -> DataFrame:
        """Return 0 to `rows` - 1 in a column `number`."""
        return self.spark.range(0, rows, 1, tasks).withColumnRenamed("id", "number")

    def edges(self, rows: int | None = None, tasks: int = TASKS) -> DataFrame:
        """Return the edges: id, src, dst, weight, since."""
        number = F.col("number")
        return self.numbers(self.rows if rows is None else rows, tasks).select(
            F.lpad(number.cast("string"), 13, "e").alias("id"),
            F.lpad((number % 50_021).cast("string"), 9, "n").alias("src"),
            F.lpad((number % 49_999).cast("string"), 9, "n").alias("dst"),
            (number / 3).alias("weight"),
            F.date_add(F.lit("2020-01-01"), (number % 2_000).cast("int")).alias("since"),
        )

    def wide(self, rows: int) -> DataFrame:
        """Return nodes of 20 columns, one of them a vector."""
        number = F.col("number")
        vector = F.transform(
            F.sequence(F.lit(1), F.lit(VECTOR_WIDTH)), lambda i: (i * number % 97).cast("float")
        )
        properties = [
            (number % (7 + i)).cast("double").alias(f"p{i:02}") for i in range(WIDE_PROPERTIES)
        ]
        return self.numbers(rows).select(
            F.lpad(number.cast("string"), 13, "t").alias("id"), *properties, vector.alias("vec")
        )

    def path(self, name: str) -> str:
        """Return a place for a data set."""
        return str(self.folder / name)

    def write(self, frame: DataFrame, table: str | None, uri: str, **options: str) -> None:
        """Append a frame to a graph: to one table, or (None) to those that its rows name."""
        writer = frame.write.format("omnigraph").options(**options)
        if table is not None:
            writer = writer.option("table", table)
        writer.mode("append").save(uri)

    def graph_of_edges(self, uri: str) -> None:
        """Make a graph with the edge table and one row in it."""
        one = self.edges().limit(1)
        OmniGraph.for_path(self.spark, uri).write(
            {"node:Person": one.select(F.col("src").alias("id")), EDGES: one},
            endpoints="Knows: Person -> Person",
            integrity="off",
        )

    def read(self, uri: str, table: str | None = None, **options: str) -> DataFrame:
        """Return the frame of a table, or (None) of the whole graph."""
        reader = self.spark.read.format("omnigraph").options(**options)
        return (reader if table is None else reader.option("table", table)).load(uri)


def table_dataset(uri: str, table: str) -> str:
    """Return the URI of the Lance dataset of a table that was made here."""
    return Storage.at(uri).dataset_uri(layout.table_location(table))


def noop(frame: DataFrame) -> None:
    """Run a frame to the end and keep nothing."""
    frame.write.format("noop").mode("overwrite").save()


def drain(batches: object) -> None:
    """Read batches to the end."""
    for _ in batches:  # type: ignore[attr-defined]
        pass


def open_lance(uri: str) -> Any:
    """Open a dataset in this process; `import lance` waits until Spark has forked its JVM."""
    import lance

    return lance.dataset(uri)


def write_lance(table: pa.Table, uri: str) -> None:
    """Write a table as one Lance dataset."""
    import lance

    lance.write_dataset(table, uri, data_storage_version="2.2")


class Copies:
    """Copies of a template graph, one per round, each thrown away when the next is made."""

    def __init__(self, template: str, place: Path) -> None:
        self._template = template
        self._place = place

    def path(self, number: int) -> str:
        """Return where a round's copy is."""
        return str(self._place / str(number))

    def make(self, number: int) -> None:
        """Make a round's copy."""
        shutil.rmtree(self._place, ignore_errors=True)
        shutil.copytree(self._template, self.path(number))

    def clear(self, number: int) -> None:
        """Make room for what a round writes by itself."""
        shutil.rmtree(self._place, ignore_errors=True)
        self._place.mkdir(parents=True)
