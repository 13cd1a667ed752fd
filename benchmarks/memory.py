"""How much memory Python takes: one large partition, rows of megabytes, many and skewed pieces.

Each case runs in a process with a Spark of its own. Prints a JSON line per case: the largest
resident size of a task's worker and of the driver-side process that commits, in MiB, seconds, and
what came out.

    python benchmarks/memory.py [--only append,big_rows,small_tasks,fragments,skew]
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from benchmarks.bench import start_spark
from benchmarks.frames import EDGES, Bench, noop, open_lance, table_dataset
from benchmarks.harness import MIB, largest_worker

MOST_MIB = 512
ROW_BYTES = 8 << 20
PARTITION_ROWS = (2_500_000, 10_000_000)
Figures = dict[str, Any]


def measured(work: Callable[[], object]) -> Figures:
    """Return seconds and the largest worker and committer of some work."""
    began = time.perf_counter()
    with (
        largest_worker("pyspark.worker", 0.05) as worker,
        largest_worker("commit_data", 0.05) as commit,
    ):
        work()
    return {
        "seconds": round(time.perf_counter() - began, 1),
        "worker MiB": worker[0] // MIB,
        "commit MiB": commit[0] // MIB,
    }


def append(bench: Bench, integrity: str) -> Figures:
    """Append `bench.rows` rows of the edges' shape, as nodes, that come in one partition."""
    uri = bench.path("append")
    frame = bench.edges(bench.rows, tasks=1).toDF("id", "a", "b", "weight", "since")
    bench.write(frame.limit(0), "node:Row", uri)
    found = measured(lambda: bench.write(frame, "node:Row", uri, integrity=integrity))
    return {"rows": bench.rows, "integrity": integrity, **found}


def big_rows(bench: Bench, kind: str) -> Figures:
    """Write and read 64 rows of 8 MB text.

    Once text that nothing makes smaller, once text that is next to nothing in the file. A worker
    may have 512 MiB. That is what it has in memory: `spark.executor.pyspark.memory` limits
    addresses, and with so few pylance's own library can't be loaded.
    """
    uri = bench.path("big")
    number = F.col("number").cast("string")
    pieces = F.transform(
        F.sequence(F.lit(1), F.lit(ROW_BYTES // 128)),
        lambda piece: F.sha2(F.concat_ws(" ", number, piece.cast("string")), 512),
    )
    repeated = F.repeat(F.sha2(number, 512), ROW_BYTES // 128)
    text = repeated if kind == "repeated" else F.concat_ws("", pieces)
    rows = bench.numbers(64, 1).select(number.alias("id"), text.alias("t"))
    wrote = measured(lambda: bench.write(rows, "node:Page", uri))
    read = measured(lambda: noop(bench.read(uri, "node:Page")))
    lengths = bench.read(uri, "node:Page").select(F.length("t").alias("n"))
    right = lengths.where(f"n = {ROW_BYTES // 128 * 128}").count()
    return {"most MiB": MOST_MIB, "write": wrote, "read": read, "right rows": right}


def small_tasks(bench: Bench) -> Figures:
    """Write 1,000 rows from 200 tasks."""
    uri = bench.path("small")
    rows = people(bench, 1_000).repartition(200)
    found = measured(lambda: bench.write(rows, "node:Person", uri))
    fragments = len(open_lance(table_dataset(uri, "node:Person")).get_fragments())
    return {"fragments": fragments, "rows": bench.read(uri, "node:Person").count(), **found}


def fragments(bench: Bench) -> Figures:
    """Read a table of 2,000 fragments."""
    uri = bench.path("fragments")
    bench.write(people(bench, 20_000).coalesce(1), "node:Person", uri, maxRowsPerFile="10")
    count = len(open_lance(table_dataset(uri, "node:Person")).get_fragments())
    frame = bench.read(uri, "node:Person")
    found = measured(lambda: noop(frame))
    return {
        "fragments": count,
        "partitions": frame.rdd.getNumPartitions(),
        "rows": frame.count(),
        **found,
    }


def skew(bench: Bench) -> Figures:
    """Write 200,000 edges from 8 tasks that all end at one node, fully checked."""
    uri = bench.path("skew")
    bench.graph_of_edges(uri)
    edges = bench.edges(200_000, tasks=8).withColumn("dst", F.col("src"))
    one = bench.read(uri, "node:Person").select("id").first()
    assert one is not None
    edges = edges.withColumn("src", F.lit(one.id)).withColumn("dst", F.lit(one.id))
    edges = edges.withColumn("id", F.concat(F.lit("skewed-"), "id"))
    found = measured(lambda: bench.write(edges, EDGES, uri))
    return {"rows": bench.read(uri, EDGES).count(), **found}


def people(bench: Bench, rows: int) -> DataFrame:
    """Return so many nodes that have an id and a number."""
    return bench.numbers(rows).select(F.col("number").cast("string").alias("id"), "number")


CASES: dict[str, Callable[[Bench], Figures]] = {
    **{
        f"append-{rows}-{integrity}": lambda bench, integrity=integrity: append(bench, integrity)
        for rows in PARTITION_ROWS
        for integrity in ("off", "strict")
    },
    "big_rows-any": lambda bench: big_rows(bench, "any"),
    "big_rows-repeated": lambda bench: big_rows(bench, "repeated"),
    "small_tasks": small_tasks,
    "fragments": fragments,
    "skew": skew,
}


def run(name: str) -> None:
    """Run one case in this process."""
    rows = int(name.split("-")[1]) if name.startswith("append-") else 1
    with tempfile.TemporaryDirectory(prefix="omnigraph-memory-") as folder:
        spark = start_spark(Path(folder))
        try:
            print(json.dumps({name: CASES[name](Bench(spark, Path(folder), rows))}), flush=True)
        finally:
            spark.stop()


def main() -> None:
    """Run each case in a process of its own."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default=",".join(CASES), help="comma list; append is all appends")
    parser.add_argument("--here", action="store_true", help="one case, in this process")
    asked = parser.parse_args()
    if asked.here:
        run(asked.only)
        return
    wanted = asked.only.split(",")
    for name in CASES:
        if name in wanted or name.split("-")[0] in wanted:
            subprocess.run([sys.executable, __file__, "--here", "--only", name], check=True)


if __name__ == "__main__":
    main()
