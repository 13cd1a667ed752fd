"""Measure queries that read a part of what there is, beside Parquet, Delta and Iceberg.

`python benchmarks/queries.py [--rows 20000000] [--rounds 5] [--only sum,count]`. On Spark 4.0 with
`PEER_PACKAGES=io.delta:delta-spark_2.13:4.0.0,org.apache.iceberg:iceberg-spark-runtime-4.0_2.13:1.10.0`
in the environment the peers are there too. Prints medians of one run, the peers taking turns.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from pyspark.sql import DataFrame
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

    def __init__(self, bench: Bench, name: str, table: str, rows: DataFrame) -> None:
        self.spark = bench.spark
        self.name = name
        self.parquet = bench.path(f"{name}.parquet")
        rows.write.parquet(self.parquet)
        stored = self.spark.read.parquet(self.parquet)
        self.graph = OmniGraph.for_path(self.spark, bench.path(name))
        options = {"endpoints": "Knows: Person -> Person"} if table == EDGES else {}
        if table == WIDE:
            options["types"] = f"Thing.vec: Vector({VECTOR_WIDTH})"
        people = self.spark.createDataFrame([("n",)], "id string")
        frames = {table: stored} | ({"node:Person": people} if table == EDGES else {})
        self.graph.write(frames, integrity="off", **options)
        self.table = table
        self.peers: dict[str, Callable[[], DataFrame]] = {
            "Spark Parquet": lambda: self.spark.read.parquet(self.parquet)
        }
        packages = os.environ.get(PACKAGES, "")
        if "delta" in packages:
            place = bench.path(f"{name}.delta")
            stored.write.format("delta").save(place)
            self.peers["Delta"] = lambda: self.spark.read.format("delta").load(place)
        if "iceberg" in packages:
            stored.writeTo(f"ice.db.{name}").using("iceberg").create()
            self.peers["Iceberg"] = lambda: self.spark.table(f"ice.db.{name}")

    def load(self) -> DataFrame:
        """Return the graph's table as a plain frame."""
        reader = self.spark.read.format("omnigraph").option("table", self.table)
        return reader.load(self.graph.uri)

    def case(self, name: str, rows: int, ask: Ask, goals: dict[str, float]) -> Case:
        """Return the same query of all, loads included."""
        expected = ask(self.load()).collect()

        def run(load: Callable[[], DataFrame], ours: bool = False) -> None:
            frame = ask(load())
            if (narrow(frame) if ours else frame).collect() != expected:
                raise AssertionError(f"{name}: other rows")

        _, reports = narrowed(ask(self.load()))
        print(f"{name}: {'; '.join(str(one) for one in reports)}")
        return Case(
            name,
            rows,
            (
                Peer("omnigraph, narrowed", lambda _: run(self.load, ours=True)),
                Peer("not narrowed", lambda _: run(self.load)),
                *(
                    Peer(peer, lambda _, load=load: run(load), goal=goals.get(peer))
                    for peer, load in self.peers.items()
                ),
            ),
            most_rounds=None,
        )


def columns(bench: Bench, wanted: set[str]) -> list[Case]:
    """Return the cases on wide rows: the sum of one of 20 columns, and a count."""
    if not wanted & {"sum", "count"}:
        return []
    count = max(1, bench.rows // 10)
    rows = Rows(bench, "wide", WIDE, bench.wide(count))
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
    rows = Rows(bench, "edges", EDGES, bench.edges())
    for column in ("id", "src"):
        rows.graph.create_index(EDGES, column)
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
        plain = rows.case("one row by id", bench.rows, lambda f: f.where(where).select("src"), {})

        def by_option(_: int) -> None:
            reader = bench.spark.read.format("omnigraph").option("table", EDGES)
            assert len(reader.option("filter", where).load(rows.graph.uri).collect()) == 1

        option = Peer("the option filter", by_option, goal=1.2)
        cases.append(Case(plain.name, plain.rows, (*plain.peers[:1], option, *plain.peers[1:])))
    return cases


def all_of_tpch(bench: Bench, wanted: set[str], scale: float) -> list[Case]:
    """Return the 22 queries of TPC-H, one after the other."""
    if "tpch" not in wanted or tpch.generator() is None:
        return []
    root, files = tpch.make(bench.spark, bench.folder / "tpch", scale)
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
    names = "sum,count,filter,join,lookup,tpch"
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rows", type=int, default=20_000_000, help="edges; a tenth of wide rows")
    parser.add_argument("--rounds", type=int, default=5, help="measured rounds per peer")
    parser.add_argument("--scale", type=float, default=0.1, help="scale of TPC-H")
    parser.add_argument("--only", default=names, help=f"comma list of {names}")
    arguments = parser.parse_args()
    wanted = set(arguments.only.split(","))
    results = []
    with tempfile.TemporaryDirectory(prefix="omnigraph-bench-") as name:
        folder = Path(name)
        spark = start_spark(folder, more_settings(folder))
        try:
            bench = Bench(spark, folder, arguments.rows)
            for case in (
                *columns(bench, wanted),
                *rows_of_edges(bench, wanted),
                *all_of_tpch(bench, wanted, arguments.scale),
            ):
                results.append(measure(case, arguments.rounds))
                print_result(results[-1])
        finally:
            spark.stop()
    write_json(PROJECT / "artifacts" / "queries.json", results, {})


if __name__ == "__main__":
    main()
