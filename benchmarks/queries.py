"""Measure queries that read a part of what there is, beside Parquet, Delta and Iceberg.

`python benchmarks/queries.py [--rows 20000000] [--rounds 5] [--only sum,count]`. With `--into PATH`
the rows are kept there and used again; `--rounds 0` only makes them. On Spark 4.0 with
`PEER_PACKAGES=io.delta:delta-spark_2.13:4.0.0,org.apache.iceberg:iceberg-spark-runtime-4.0_2.13:1.10.0`
in the environment the peers are there too. Prints medians of one run, the peers taking turns.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from importlib.metadata import version
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F

from benchmarks.bench import PROJECT, start_spark
from benchmarks.frames import EDGES, VECTOR_WIDTH, WIDE, Bench, noop
from benchmarks.harness import Case, Peer, measure, print_result, write_json
from omnigraph_spark import OmniGraph, narrow
from omnigraph_spark.narrowing.narrow import narrowed
from tests.support import tpch

PACKAGES = "PEER_PACKAGES"
Ask = Callable[[DataFrame], DataFrame]


def more_settings(folder: Path) -> dict[str, str]:
    """Return the settings of the peers that are named in the environment."""
    packages = os.environ.get(PACKAGES, "")
    settings = {"spark.jars.packages": packages} if packages else {}
    extensions = []
    if "delta" in packages:
        extensions.append("io.delta.sql.DeltaSparkSessionExtension")
        catalog = "org.apache.spark.sql.delta.catalog.DeltaCatalog"
        settings["spark.sql.catalog.spark_catalog"] = catalog
    if "iceberg" in packages:
        settings["spark.sql.catalog.ice"] = "org.apache.iceberg.spark.SparkCatalog"
        settings["spark.sql.catalog.ice.type"] = "hadoop"
        settings["spark.sql.catalog.ice.warehouse"] = str(folder / "ice")
    return settings | ({"spark.sql.extensions": ",".join(extensions)} if extensions else {})


class Rows:
    """The same rows in a graph and with each peer."""

    def __init__(
        self, bench: Bench, name: str, table: str, rows: DataFrame, *, quick: bool
    ) -> None:
        self.quick = quick
        self.spark = bench.spark
        self.name = name
        self.table = table
        self.parquet = bench.path(f"{name}.parquet")
        self.graph = OmniGraph.for_path(self.spark, bench.path(name))
        self.peers: dict[str, Callable[[], DataFrame]] = {
            "Spark Parquet": lambda: self.spark.read.parquet(self.parquet)
        }
        packages = os.environ.get(PACKAGES, "")
        delta = bench.path(f"{name}.delta")
        if "delta" in packages:
            self.peers["Delta"] = lambda: self.spark.read.format("delta").load(delta)
        if "iceberg" in packages:
            self.peers["Iceberg"] = lambda: self.spark.table(f"ice.db.{name}")
        done = bench.folder / f"{name}.done"
        if done.exists():
            return
        rows.write.parquet(self.parquet)
        stored = self.spark.read.parquet(self.parquet)
        options = {"endpoints": "Knows: Person -> Person"} if table == EDGES else {}
        if table == WIDE:
            options["types"] = f"Thing.vec: Vector({VECTOR_WIDTH})"
        people = self.spark.createDataFrame([("n",)], "id string")
        frames = {table: stored} | ({"node:Person": people} if table == EDGES else {})
        self.graph.write(frames, integrity="off", **options)
        if table == EDGES:
            for column in ("id", "src"):
                self.graph.create_index(EDGES, column)
        if "Delta" in self.peers:
            stored.write.format("delta").save(delta)
        if "Iceberg" in self.peers:
            stored.writeTo(f"ice.db.{name}").using("iceberg").create()
        done.touch()

    def load(self) -> DataFrame:
        """Return the graph's table as a plain frame."""
        reader = self.spark.read.format("omnigraph").option("table", self.table)
        return reader.load(self.graph.uri)

    def case(self, name: str, rows: int, ask: Ask, goals: dict[str, float]) -> Case:
        """Return the same query of all, loads included."""
        expected = ask(self.peers["Spark Parquet"]()).collect()

        def run(load: Callable[[], DataFrame], ours: bool = False) -> None:
            frame = ask(load())
            rows = (narrow(frame) if ours else frame).collect()
            if not _alike(rows, expected):
                raise AssertionError(f"{name}: {rows[:3]} for {expected[:3]}")

        plain = () if self.quick else (Peer("not narrowed", lambda _: run(self.load)),)
        made, reports = narrowed(ask(self.load()))
        shown = "; ".join(str(one) for one in reports)
        print(f"{name}: {shown}; read: {rows_read(self.spark, made)}")
        return Case(
            name,
            rows,
            (
                Peer("omnigraph, narrowed", lambda _: run(self.load, ours=True)),
                *plain,
                *(
                    Peer(peer, lambda _, load=load: run(load), goal=goals.get(peer))
                    for peer, load in self.peers.items()
                ),
            ),
            most_rounds=None,
        )


def _alike(rows: list[Row], expected: list[Row]) -> bool:
    """Return whether rows are equal, but for the order in which floats were added up."""
    values, wanted = ([value for row in some for value in row] for some in (rows, expected))
    return len(values) == len(wanted) and all(
        math.isclose(one, other) if isinstance(one, float) else one == other
        for one, other in zip(values, wanted, strict=True)
    )


def rows_read(spark: SparkSession, frame: DataFrame) -> int:
    """Return how many rows the scans of a frame give to Spark; runs it."""
    adaptive = "spark.sql.adaptive.enabled"
    before = spark.conf.get(adaptive)
    spark.conf.set(adaptive, "false")
    try:
        run = frame.select("*")
        run.collect()
        leaves = run._jdf.queryExecution().executedPlan().collectLeaves()
        counts = [leaves.apply(at).metrics().get("numOutputRows") for at in range(leaves.size())]
        return sum(int(one.get().value()) for one in counts if one.isDefined())
    finally:
        spark.conf.set(adaptive, str(before))


def costs(bench: Bench, wanted: set[str], scale: float) -> None:
    """Print what narrowing itself takes, beside 0.15 s and 0.1 s for each scan."""
    if "costs" not in wanted or tpch.generator() is None:
        return
    root, _ = _tpch(bench, scale)
    OmniGraph.for_path(bench.spark, root).create_views()
    shares = []
    for again in range(3):
        for number, text in tpch.QUERIES.items():
            frame = bench.spark.sql(text)
            start = time.perf_counter()
            scans = len(narrowed(frame)[1])
            took = time.perf_counter() - start
            if again:
                shares.append((took / (0.15 + 0.1 * scans), took, scans, number))
    shares.sort()
    print("narrowing itself: share of the most allowed, seconds, scans, query of TPC-H")
    for name, at in (("least", 0), ("median", len(shares) // 2), ("most", -1)):
        share, took, scans, number = shares[at]
        print(f"  {name:8}{share:8.2f}x{took:8.3f}s{scans:4}{number:4}")


def columns(bench: Bench, wanted: set[str]) -> list[Case]:
    """Return the cases on wide rows: the sum of one of 20 columns, and a count."""
    if not wanted & {"sum", "count"}:
        return []
    count = max(1, bench.rows // 10)
    rows = Rows(bench, "wide", WIDE, bench.wide(count), quick="quick" in wanted)
    cases = []
    if "sum" in wanted:
        ask: Ask = lambda frame: frame.agg(F.sum("p07"))  # noqa: E731
        cases.append(rows.case("sum of one of 20 columns", count, ask, {"Spark Parquet": 1.5}))
    if "count" in wanted:
        cases.append(rows.case("count(*)", count, lambda f: f.groupBy().count(), {"Delta": 1.0}))
    return cases


def rows_of_edges(bench: Bench, wanted: set[str]) -> list[Case]:
    """Return the cases on many edges: a filter, a join of 100 ids, a point look-up."""
    if not wanted & {"filter", "join", "lookup"}:
        return []
    rows = Rows(bench, "edges", EDGES, bench.edges(), quick="quick" in wanted)
    ids = [str(number).rjust(9, "n") for number in range(100)]
    listed = ", ".join(f"('{one}')" for one in ids)
    small = bench.spark.sql(f"SELECT * FROM VALUES {listed} t(k)")
    cases = []
    if "filter" in wanted:
        asked: Ask = lambda f: f.where(F.col("src") == ids[7]).agg(F.sum("weight"), F.count("*"))  # noqa: E731
        cases.append(
            rows.case("a filter on an indexed column", bench.rows, asked, {"Spark Parquet": 0.5})
        )
    if "join" in wanted:
        joined: Ask = lambda f: f.join(small, f.src == small.k).agg(F.max("dst"), F.count("*"))  # noqa: E731
        cases.append(rows.case("a join of 100 ids", bench.rows, joined, {"Spark Parquet": 0.2}))
    if "lookup" in wanted:
        where = f"id = '{str(bench.rows // 3).rjust(13, 'e')}'"
        plain = rows.case("one row by id", bench.rows, lambda f: f.where(where), {})

        def by_option(_: int) -> None:
            reader = bench.spark.read.format("omnigraph").option("table", EDGES)
            assert len(reader.option("filter", where).load(rows.graph.uri).collect()) == 1

        option = Peer("the option filter", by_option, goal=1.2)
        cases.append(Case(plain.name, plain.rows, (*plain.peers[:1], option, *plain.peers[1:])))
    return cases


def _tpch(bench: Bench, scale: float) -> tuple[str, Mapping[str, str]]:
    folder = bench.folder / f"tpch-{scale}"
    if folder.exists():
        return str(folder / "graph"), {name: str(folder / name) for name in tpch.KEYS}
    return tpch.make(bench.spark, folder, scale)


def all_of_tpch(bench: Bench, wanted: set[str], scale: float) -> list[Case]:
    """Return the 22 queries of TPC-H, one after the other."""
    if "tpch" not in wanted or tpch.generator() is None:
        return []
    root, files = _tpch(bench, scale)
    graph = OmniGraph.for_path(bench.spark, root)

    def run(ours: bool | None) -> None:
        if ours is None:
            for name, path in files.items():
                bench.spark.read.parquet(path).createOrReplaceTempView(name)
        else:
            graph.create_views()
        for text in tpch.QUERIES.values():
            frame = bench.spark.sql(text)
            noop(narrow(frame) if ours else frame)

    return [
        Case(
            f"TPC-H at scale {scale}, 22 queries",
            22,
            (
                Peer("omnigraph, narrowed", lambda _: run(True)),
                Peer("not narrowed", lambda _: run(False)),
                Peer("Spark Parquet", lambda _: run(None)),
            ),
            most_rounds=1,
        )
    ]


def main() -> None:
    """Run the chosen cases."""
    names = "sum,count,filter,join,lookup,tpch,costs"
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rows", type=int, default=20_000_000, help="edges; a tenth of wide rows")
    parser.add_argument("--rounds", type=int, default=5, help="measured rounds per peer")
    parser.add_argument("--into", type=Path, help="keeps the rows, and uses them again")
    parser.add_argument("--scale", type=float, default=0.1, help="scale of TPC-H")
    parser.add_argument("--quick", action="store_true", help="not what isn't narrowed")
    parser.add_argument("--only", default=names, help=f"comma list of {names}")
    arguments = parser.parse_args()
    wanted = set(arguments.only.split(",")) | ({"quick"} if arguments.quick else set())
    results = []
    with tempfile.TemporaryDirectory(prefix="omnigraph-bench-") as name:
        folder = arguments.into or Path(name)
        spark = start_spark(folder, more_settings(folder))
        try:
            bench = Bench(spark, folder, arguments.rows)
            for case in (
                *columns(bench, wanted),
                *rows_of_edges(bench, wanted),
                *all_of_tpch(bench, wanted, arguments.scale),
            ):
                if arguments.rounds == 0:
                    continue
                results.append(measure(case, arguments.rounds))
                print_result(results[-1])
            costs(bench, wanted, arguments.scale)
        finally:
            spark.stop()
    write_json(PROJECT / "artifacts" / "queries.json", results, {"pyspark": version("pyspark")})


if __name__ == "__main__":
    main()
