"""Measure reading and writing beside Spark's Parquet, pylance in one process, and the API's cost.

`make bench`, or `make bench ARGS='--rows 4000000 --rounds 7 --only scan'`. Prints medians of
several rounds in which the peers take turns, with ratios, and writes `artifacts/bench.json`.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from benchmarks.ceiling import CeilingDataSource
from benchmarks.harness import Case, Peer, Result, measure, print_result, write_json
from omnigraph_spark import OmniGraph, layout
from omnigraph_spark.storage import Storage

PROJECT = Path(__file__).resolve().parents[1]
EDGES = "edge:Knows"
WIDE = "node:Thing"
TASKS = 4
VECTOR_WIDTH = 256
WIDE_PROPERTIES = 18


class Bench:
    """The cases, over data that Spark makes once below `folder`."""

    def __init__(self, spark: SparkSession, folder: Path, rows: int) -> None:
        self.spark = spark
        self.folder = folder
        self.rows = rows

    # --- data ----------------------------------------------------------------------------------

    def numbers(self, rows: int) -> DataFrame:
        """Return 0 to `rows` - 1 in a column `number`."""
        return self.spark.range(0, rows, 1, TASKS).withColumnRenamed("id", "number")

    def edges(self) -> DataFrame:
        """Return the edges: id, src, dst, weight, since."""
        number = F.col("number")
        return self.numbers(self.rows).select(
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

    def write_graph(self, frame: DataFrame, table: str, uri: str, **options: str) -> None:
        """Append a frame to a table of a graph."""
        writer = frame.write.format("omnigraph").option("table", table).options(**options)
        writer.mode("append").save(uri)

    def graph_of_edges(self, uri: str) -> None:
        """Make a graph with the edge table and one row in it."""
        one = self.edges().limit(1)
        OmniGraph.for_path(self.spark, uri).write(
            {"node:Person": one.select(F.col("src").alias("id")), EDGES: one},
            endpoints="Knows: Person -> Person",
        )

    def table_dataset(self, uri: str, table: str) -> str:
        """Return the URI of the Lance dataset of a table that was made here."""
        return Storage.at(uri).dataset_uri(layout.table_location(table))

    def read(self, uri: str, table: str, **options: str) -> DataFrame:
        """Return the frame of a table."""
        return (
            self.spark.read.format("omnigraph").option("table", table).options(**options).load(uri)
        )

    # --- cases ---------------------------------------------------------------------------------

    def scan(self) -> Case:
        """Read every edge into Spark's noop sink."""
        uri, parquet = self.path("edges"), self.path("edges.parquet")
        edges = self.edges()
        self.graph_of_edges(uri)
        self.write_graph(edges, EDGES, uri)
        edges.write.parquet(parquet)
        dataset = self.table_dataset(uri, EDGES)
        ceiling = self.spark.read.format("ceiling").option("rows", self.rows).option("tasks", TASKS)
        return Case(
            "full scan of the edges",
            self.rows,
            (
                Peer("omnigraph", lambda _: noop(self.read(uri, EDGES))),
                Peer("API ceiling", lambda _: noop(ceiling.load())),
                Peer("Spark Parquet", lambda _: noop(self.spark.read.parquet(parquet))),
                Peer("pylance, one process", lambda _: drain(open_lance(dataset).to_batches())),
            ),
        )

    def append(self) -> Case:
        """Append every edge, commit and publish included; each round to a place of its own."""
        edges = self.edges().cache()
        arrow = edges.toArrow()
        template = self.path("template")
        self.graph_of_edges(template)
        place = Path(tempfile.mkdtemp(dir=self.folder))

        def fresh(number: int, name: str) -> Path:
            shutil.rmtree(place / name, ignore_errors=True)
            return place / name / str(number)

        def ours(number: int) -> str:
            return str(place / "ours" / str(number))

        return Case(
            "append of the edges",
            self.rows,
            (
                Peer(
                    "omnigraph",
                    lambda n: self.write_graph(edges, EDGES, ours(n), integrity="off"),
                    prepare=lambda n: shutil.copytree(template, fresh(n, "ours")),
                ),
                Peer("API ceiling", lambda _: edges.write.format("ceiling").mode("append").save()),
                Peer("Spark Parquet", lambda n: edges.write.parquet(str(fresh(n, "parquet")))),
                Peer("pylance, one process", lambda n: write_lance(arrow, str(fresh(n, "lance")))),
            ),
        )

    def projection(self) -> Case:
        """Read two of 20 columns, the vector left out."""
        rows = max(1, self.rows // 20)
        uri, parquet = self.path("wide"), self.path("wide.parquet")
        wide = self.wide(rows)
        self.write_graph(wide, WIDE, uri, types=f"Thing.vec: Vector({VECTOR_WIDTH})")
        wide.write.parquet(parquet)
        dataset = self.table_dataset(uri, WIDE)
        two = ["id", "p03"]
        return Case(
            "two of 20 columns, vector left out",
            rows,
            (
                Peer("omnigraph", lambda _: noop(self.read(uri, WIDE, columns=",".join(two)))),
                Peer("omnigraph, all columns", lambda _: noop(self.read(uri, WIDE))),
                Peer(
                    "Spark Parquet", lambda _: noop(self.spark.read.parquet(parquet).select(*two))
                ),
                Peer(
                    "pylance, one process",
                    lambda _: drain(open_lance(dataset).to_batches(columns=two)),
                ),
            ),
        )

    def tables(self) -> Case:
        """Load a graph of 50 tables, and one of a single table, and take the first row."""
        one, fifty = self.path("one"), self.path("fifty")
        small = self.wide(100).drop("vec")
        OmniGraph.for_path(self.spark, one).write({"node:T00": small}, mode="append")
        frames = {f"node:T{number:02}": small for number in range(50)}
        OmniGraph.for_path(self.spark, fifty).write(frames, mode="append")
        load = self.spark.read.format("omnigraph").load
        return Case(
            "load and first row of a graph of 50 tables",
            1,
            (
                Peer("omnigraph, 50 tables", lambda _: load(fifty).first()),
                Peer("omnigraph, one table", lambda _: load(one).first()),
            ),
        )


CASES: dict[str, Callable[[Bench], Case]] = {
    "scan": Bench.scan,
    "append": Bench.append,
    "projection": Bench.projection,
    "tables": Bench.tables,
}


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


def start_spark(folder: Path) -> SparkSession:
    """Start Spark with the settings of `conf/spark-defaults.conf`."""
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ["PYTHONPATH"] = str(PROJECT)
    builder = SparkSession.builder.master("local[2]").appName("omnigraph-bench")
    for line in (PROJECT / "conf" / "spark-defaults.conf").read_text("utf-8").splitlines():
        if line.strip() and not line.startswith("#"):
            key, value = line.split()
            builder = builder.config(key, value)
    spark = (
        builder.config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.memory", "4g")
        .config("spark.sql.warehouse.dir", str(folder / "warehouse"))
        .config("spark.local.dir", str(folder / "scratch"))
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    spark.dataSource.register(CeilingDataSource)
    return spark


def main() -> None:
    """Run the chosen cases."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rows", type=int, default=1_000_000, help="rows of the edge table")
    parser.add_argument("--rounds", type=int, default=5, help="measured rounds per peer")
    parser.add_argument("--only", default=",".join(CASES), help="comma list of " + ", ".join(CASES))
    parser.add_argument("--json", type=Path, default=PROJECT / "artifacts" / "bench.json")
    arguments = parser.parse_args()
    results: list[Result] = []
    with tempfile.TemporaryDirectory(prefix="omnigraph-bench-") as folder:
        spark = start_spark(Path(folder))
        try:
            for name in arguments.only.split(","):
                case = CASES[name](Bench(spark, Path(folder), arguments.rows))
                results.append(measure(case, arguments.rounds))
                print_result(results[-1])
        finally:
            spark.stop()
    versions = {
        name: version(name) for name in ("pyspark", "pylance", "pyarrow", "omnigraph-spark")
    }
    write_json(arguments.json, results, versions)
    print(
        f"\n{' '.join(f'{name} {number}' for name, number in versions.items())} -> {arguments.json}"
    )


if __name__ == "__main__":
    main()
