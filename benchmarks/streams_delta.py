"""Streams beside Delta's, on Spark 4.0 (`.venv-4.0`; Delta's jars come from Maven Central).

Measures, with the same rows on both sides: the initial snapshot of a table, read by a stream; a
micro-batch that reads one small commit; a micro-batch that writes a small file's rows (ours with
`foreachBatch`, since Spark 4.0 has no Arrow writer for streams). Prints medians and ratios, of the
time and of the processor seconds of the JVM and its Python workers.

    make .venv-4.0/.ready
    PYSPARK_PYTHON=.venv-4.0/bin/python .venv-4.0/bin/python benchmarks/streams_delta.py
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import psutil
from pyspark.sql import DataFrame, SparkSession

from omnigraph_spark import OmniGraph
from tests.support.sparks import new_session

PERSON = "node:Person"
DELTA = "io.delta:delta-spark_2.13:4.0.0"
SETTINGS = {
    "spark.jars.packages": DELTA,
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    "spark.driver.extraJavaOptions": "",
}
SMALL = 100
Took = tuple[float, float]


def processors() -> float:
    """Return the processor seconds of everything that this process has started, and its own."""
    seconds = 0.0
    for one in [psutil.Process(), *psutil.Process().children(recursive=True)]:
        try:
            seconds += sum(one.cpu_times()[:2])
        except psutil.Error:
            continue
    return seconds


def timed(run: Callable[[], object]) -> Took:
    """Return the seconds and the processor seconds that something takes."""
    began, busy = time.perf_counter(), processors()
    run()
    return time.perf_counter() - began, processors() - busy


class Side:
    """Where one format keeps a table, and how it writes and follows it."""

    name = "delta"

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self.spark, self.folder = spark, folder / self.name
        self.root, self.sink = str(self.folder / "source"), str(self.folder / "sink")

    def write(self, rows: DataFrame) -> None:
        """Append rows to the source."""
        rows.write.format("delta").mode("append").save(self.root)

    def stream(self) -> DataFrame:
        """Return a stream of the source."""
        return self.spark.readStream.format("delta").load(self.root)

    def writer(self, frame: DataFrame) -> Any:
        """Return what writes a stream to the sink."""
        return frame.writeStream.format("delta").option("path", self.sink)

    def follow(self, number: int) -> Any:
        """Start a query that reads the source and throws its rows away."""
        checkpoint = str(self.folder / f"read{number}")
        writer = self.stream().writeStream.foreachBatch(discard)
        return writer.option("checkpointLocation", checkpoint).start()


class Ours(Side):
    """A graph of one table."""

    name = "ours"

    def write(self, rows: DataFrame) -> None:
        """Append rows to the source; ids are given, rules are left out as Delta has none."""
        writer = rows.write.format("omnigraph").mode("append").option("table", PERSON)
        writer.option("integrity", "off").save(self.root)

    def stream(self) -> DataFrame:
        """Return a stream of the source."""
        return self.spark.readStream.format("omnigraph").option("table", PERSON).load(self.root)

    def writer(self, frame: DataFrame) -> Any:
        """Return what writes a stream to the sink, a transaction id per batch."""
        graph = OmniGraph.for_path(self.spark, self.sink)

        def save(batch: DataFrame, number: int) -> None:
            given = {"txnAppId": "bench", "txnVersion": number, "integrity": "off"}
            graph.write({PERSON: batch}, **given)

        return frame.writeStream.foreachBatch(save)


def discard(batch: DataFrame, number: int) -> None:
    """Read a batch and throw it away."""
    batch.write.format("noop").mode("overwrite").save()


def people(spark: SparkSession, first: int, count: int) -> DataFrame:
    """Return rows of people, from one number on."""
    return spark.range(first, first + count).selectExpr(
        "concat('p', id) AS id", "concat('name ', id % 1000) AS name", "CAST(id % 90 AS INT) AS age"
    )


def snapshots(sides: list[Side], rows: int, rounds: int) -> dict[str, list[Took]]:
    """Read the source from its beginning, round after round; the first warms up."""
    found: dict[str, list[Took]] = {side.name: [] for side in sides}
    for number in range(rounds + 1):
        for side in sides:

            def read(side: Side = side, number: int = number) -> None:
                query = side.follow(number)
                query.processAllAvailable()
                query.stop()

            took = timed(read)
            if number:
                found[side.name].append(took)
    return found


def reads(sides: list[Side], rows: int, batches: int) -> dict[str, list[Took]]:
    """Append a small commit and wait until a running query has read it."""
    queries = {side.name: side.follow(1000) for side in sides}
    for query in queries.values():
        query.processAllAvailable()
    return _in_turn(
        sides,
        queries,
        batches,
        lambda side, n: side.write(people(side.spark, rows + n * SMALL, SMALL).coalesce(1)),
    )


def writes(spark: SparkSession, sides: list[Side], batches: int, folder: Path) -> Any:
    """Write small files' rows, a file per batch."""
    queries = {}
    for side in sides:
        (folder / "files" / side.name).mkdir(parents=True)
        files = spark.readStream.schema("id STRING, name STRING, age INT").parquet(
            str(folder / "files" / side.name)
        )
        checkpoint = str(side.folder / "written")
        queries[side.name] = side.writer(files).option("checkpointLocation", checkpoint).start()

    def feed(side: Side, number: int) -> None:
        rows = people(spark, number * SMALL, SMALL).coalesce(1)
        rows.write.mode("append").parquet(str(folder / "files" / side.name))

    return _in_turn(sides, queries, batches, feed)


def _in_turn(
    sides: list[Side], queries: dict[str, Any], batches: int, feed: Callable[[Side, int], None]
) -> dict[str, list[Took]]:
    """Feed each side's query batch by batch, then stop it; two batches warm up."""
    found: dict[str, list[Took]] = {side.name: [] for side in sides}
    for number in range(batches + 2):
        for side in sides:
            feed(side, number)
            took = timed(queries[side.name].processAllAvailable)
            if number > 1:
                found[side.name].append(took)
    for query in queries.values():
        query.stop()
    return found


def show(name: str, found: dict[str, list[Took]], rows: int) -> None:
    """Print one case."""
    medians = {
        side: [statistics.median(one[place] for one in took) for place in (0, 1)]
        for side, took in found.items()
    }
    print(f"\n{name}")
    for side, (seconds, busy) in medians.items():
        print(f"  {side:8}{seconds:9.3f} s{busy:9.3f} s cpu{rows / seconds:14,.0f} rows/s")
    ours, theirs = medians["ours"], medians["delta"]
    print(f"  ours/delta: time {ours[0] / theirs[0]:.2f}, cpu {ours[1] / theirs[1]:.2f}")


def main() -> int:
    """Run the benchmark and print its table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--batches", type=int, default=10)
    args = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="streams-delta-"))
    try:
        spark = new_session("local[2]", folder / "spark", SETTINGS)
        sides = [Ours(spark, folder), Side(spark, folder)]
        for side in sides:
            side.write(people(spark, 0, args.rows).coalesce(2))
        print(f"Spark {spark.version}, {DELTA}, {args.rows:,} rows, batches of {SMALL} rows")
        show("initial snapshot", snapshots(sides, args.rows, args.rounds), args.rows)
        show("micro-batch, read", reads(sides, args.rows, args.batches), SMALL)
        show("micro-batch, written", writes(spark, sides, args.batches, folder), SMALL)
        spark.stop()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
