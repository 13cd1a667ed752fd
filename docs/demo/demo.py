"""Read a graph of the OmniGraph engine, copy it in one commit, extend it, look back (`make demo`).

Works on a graph of 15 node types and 34 edge types in `tests/data`. Leaves nothing behind but
what it prints.
"""

from __future__ import annotations

import datetime
import os
import sys
import tarfile
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from omnigraph_spark import OmniGraph

PROJECT = Path(__file__).resolve().parents[2]
PHARMA = PROJECT / "tests" / "data" / "v2" / "pharma.tar.gz"
NOW = datetime.datetime(2026, 1, 1, 12, 0)

# What is appended: two nodes and an edge from the first to the second.
ADDITIONS: dict[str, dict[str, Any]] = {
    "node:Compound": {
        "slug": "comp-demo",
        "name": "Demoglutide",
        "phase": "phase-1",
        "createdAt": NOW,
        "updatedAt": NOW,
    },
    "node:Company": {"slug": "co-demo", "name": "Demo Therapeutics"},
    "edge:DevelopedByCompany": {"src": "comp-demo", "dst": "co-demo"},
}


def main() -> None:
    """Run the demo in a temporary folder."""
    with tempfile.TemporaryDirectory(prefix="omnigraph-demo-") as folder:
        spark = start_spark(folder)
        try:
            show(spark, Path(folder))
        finally:
            spark.stop()


def show(spark: SparkSession, folder: Path) -> None:
    """Show the four steps, each with what it found."""
    original = unpack(PHARMA, folder)
    copy = str(folder / "copy")

    headline(f"1. Read {PHARMA.name}, a graph of the OmniGraph engine, as one frame")
    whole = spark.read.format("omnigraph").load(original)
    with timed("read"):
        rows = whole.count()
    print(f"{rows} rows, {len(whole.columns)} columns: {shortened(whole.columns)}")
    some = whole.where("_table like 'edge:%'").select("_table", "id", "src", "dst")
    table(some.columns, some.orderBy("_table", "id").limit(3).collect())

    headline("2. Write it as a new graph: all tables in one commit")
    with timed("write"):
        whole.write.format("omnigraph").mode("append").option("actor", "demo").save(copy)
    graph = OmniGraph.for_path(spark, copy)
    same = compare(whole, spark.read.format("omnigraph").load(copy), graph)

    headline("3. Append two nodes and an edge between them: one more commit")
    before = newest_version(graph)
    additions = ADDITIONS
    with timed("write"):
        graph.write(
            {key: frame_of(graph, key, row) for key, row in additions.items()}, mode="append"
        )
    after = newest_version(graph)

    headline(f"4. Look back: the graph at version {before} and at version {after}")
    counts = {version: count_rows(spark, copy, version) for version in (before, after)}
    table(
        ["table", f"rows at version {before}", f"rows at version {after}"],
        [[key, counts[before].get(key, 0), counts[after][key]] for key in additions],
    )
    print()
    history = graph.history().orderBy("version")
    history = history.select(
        "version", "commit_id", "actor", "created_at", "rows_added", "rows_removed"
    )
    table(history.columns, history.collect())

    grown = all(counts[after][key] == counts[before].get(key, 0) + 1 for key in additions)
    if not (same and grown):
        sys.exit("\nThe copy differs from the original, or the appended rows are not there.")
    print("\nThe copy equals the original in every table, and both versions read as they should.")


def compare(left: DataFrame, right: DataFrame, copy: OmniGraph) -> bool:
    """Compare every table both ways and print the result; the two frames are whole graphs."""
    with timed("compare"):
        columns = left.columns
        only_left = left.exceptAll(right.select(columns)).groupBy("_table").count()
        only_right = right.select(columns).exceptAll(left).groupBy("_table").count()
        missing = {row["_table"]: row["count"] for row in only_left.collect()}
        extra = {row["_table"]: row["count"] for row in only_right.collect()}
        rows = (
            copy.tables().orderBy("table_key").select("table_key", "version", "row_count").collect()
        )
    table(
        ["table", "table version", "rows", "missing in the copy", "extra in the copy"],
        [[*row, missing.get(row[0], 0), extra.get(row[0], 0)] for row in rows],
    )
    return not missing and not extra and right.columns == columns


def frame_of(graph: OmniGraph, table_key: str, row: dict[str, Any]) -> DataFrame:
    """Return one row as a frame with the columns of the table; what isn't given is null."""
    schema = graph.table(table_key).schema
    return graph.spark.createDataFrame([tuple(row.get(name) for name in schema.names)], schema)


def newest_version(graph: OmniGraph) -> int:
    """Return the graph's newest version."""
    return int(graph.history().agg(F.max("version")).first()[0])  # type: ignore[index]


def count_rows(spark: SparkSession, uri: str, version: int) -> dict[str, int]:
    """Return the rows per table of the graph at a version."""
    frame = spark.read.format("omnigraph").option("versionAsOf", version).load(uri)
    return {row["_table"]: row["count"] for row in frame.groupBy("_table").count().collect()}


def unpack(archive: Path, folder: Path) -> str:
    """Unpack a graph below `folder` and return its root."""
    with tarfile.open(archive) as packed:
        if hasattr(tarfile, "data_filter"):
            packed.extractall(folder, filter="data")
        else:
            packed.extractall(folder)
    return str(folder / archive.name.split(".")[0])


def start_spark(folder: str) -> SparkSession:
    """Start Spark on two cores, all of its files below `folder`."""
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("LANCE_LOG", "error")
    spark = (
        SparkSession.builder.master("local[2]")
        .appName("omnigraph-demo")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.warehouse.dir", f"{folder}/warehouse")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    return spark


@contextmanager
def timed(what: str) -> Iterator[None]:
    """Print how long a block took."""
    start = time.monotonic()
    yield
    print(f"({what}: {time.monotonic() - start:.1f} s)")


def headline(text: str) -> None:
    """Print a line that starts a step."""
    print(f"\n{text}\n{'=' * len(text)}", flush=True)


def table(columns: list[str], rows: list[Any]) -> None:
    """Print rows as an aligned table, numbers to the right."""
    cells = [["" if value is None else str(value) for value in row] for row in rows]
    widths = [max(len(line[i]) for line in [columns, *cells]) for i in range(len(columns))]
    numeric = [all(isinstance(row[i], int) for row in rows) for i in range(len(columns))]
    print(
        "  ".join(name.ljust(width) for name, width in zip(columns, widths, strict=True)).rstrip()
    )
    print("  ".join("-" * width for width in widths))
    for line in cells:
        padded = [
            cell.rjust(width) if right else cell.ljust(width)
            for cell, width, right in zip(line, widths, numeric, strict=True)
        ]
        print("  ".join(padded).rstrip())


def shortened(names: list[str]) -> str:
    """Return a list of names that fits a line."""
    return ", ".join(names[:8]) + (", …" if len(names) > 8 else "")


if __name__ == "__main__":
    main()
