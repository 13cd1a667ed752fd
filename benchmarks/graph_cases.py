"""Cases on many tables, and on many fragments."""

from __future__ import annotations

import pickle
from collections.abc import Callable

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from benchmarks.frames import Bench, Copies
from benchmarks.harness import Case, Peer
from omnigraph_spark import OmniGraph, pack
from omnigraph_spark.spark import loading

TABLES = 50
SHARED = 6
_MANY, _FEW = 10_000, 1_000


def tables(bench: Bench) -> Case:
    """Load a graph of 50 tables, and one of a single table, and take the first row."""
    one, fifty = bench.path("one"), bench.path("fifty")
    small = bench.wide(100).drop("vec")
    OmniGraph.for_path(bench.spark, one).write({"node:T00": small}, integrity="off")
    # One write per table would be 50 Spark jobs; a whole-graph frame is one.
    frame = pack({f"node:T{number:02}": small for number in range(TABLES)})
    bench.write(frame.coalesce(1), None, fifty, integrity="off")
    return Case(
        f"load and first row of a graph of {TABLES} tables",
        1,
        (
            Peer(f"omnigraph, {TABLES} tables", lambda _: bench.read(fifty).first()),
            Peer("omnigraph, one table", lambda _: bench.read(one).first(), goal=2.0),
        ),
    )


def planning(bench: Bench) -> Case:
    """Plan a read of 10,000 fragments, and one of 1,000; what Spark's planning processes do."""
    places = {rows: bench.path(f"fragments-{rows}") for rows in (_MANY, _FEW)}
    for rows, uri in places.items():
        people = bench.numbers(rows, 1).select(F.col("number").cast("string").alias("id"))
        bench.write(people, "node:Person", uri, maxRowsPerFile="1", integrity="off")

    def plan(rows: int) -> Callable[[int], None]:
        def work(_: int) -> None:
            load = pickle.loads(pickle.dumps(loading.resolve({"path": places[rows]})))
            reader = load.reader(load.schema())
            planned = reader.partitions()
            pickle.dumps(reader)
            found = sum(scan.expected_rows for one in planned for scan in one.value)
            if found != rows or len([pickle.dumps(one) for one in planned]) != len(planned):
                raise AssertionError(f"{found} rows are planned, {rows} are there")

        return work

    return Case(
        f"planning of {_MANY:,} fragments beside {_FEW:,}: under 2x per fragment",
        _MANY,
        (
            Peer(f"{_MANY:,} fragments", plan(_MANY)),
            Peer(f"{_FEW:,} fragments", plan(_FEW), goal=2.0 * _MANY / _FEW),
        ),
    )


def whole_graph(bench: Bench) -> Case:
    """Write a whole-graph frame of 50 tables, and the same wide rows as one table."""
    rows = bench.rows // 8
    number = F.col("number")
    shared = [(number % (7 + i)).cast("double").alias(f"p{i}") for i in range(SHARED)]
    own = [
        F.when(number % TABLES == i, number.cast("string")).alias(f"own{i:02}")
        for i in range(TABLES)
    ]
    ident = F.lpad(number.cast("string"), 13, "t").alias("id")
    which = F.concat(F.lit("node:T"), F.lpad((number % TABLES).cast("string"), 2, "0"))
    nothing = F.lit(None).cast("string")
    wide = bench.numbers(rows).select(
        which.alias("_table"),
        ident,
        nothing.alias("src"),
        nothing.alias("dst"),
        *shared,
        *own,
    )
    wide = wide.cache()
    wide.count()
    definitions = {
        f"node:T{i:02}": wide.select("id", *[f"p{n}" for n in range(SHARED)], f"own{i:02}").limit(0)
        for i in range(TABLES)
    }
    many_template, one_template = bench.path("wg-many"), bench.path("wg-one")
    bench.write(pack(definitions).coalesce(1), None, many_template, integrity="off")
    single = wide.toDF("kind", "id", "source", "target", *wide.columns[4:])
    bench.write(single.limit(0), "node:All", one_template, integrity="off")
    many = Copies(many_template, bench.folder / "wg-many-rounds")
    one = Copies(one_template, bench.folder / "wg-one-rounds")
    return Case(
        f"whole-graph frame of {TABLES} tables, written",
        rows,
        (
            Peer(
                "omnigraph, 50 tables",
                lambda n: bench.write(wide, None, many.path(n), integrity="off"),
                prepare=many.make,
            ),
            Peer(
                "the same rows, one table",
                lambda n: bench.write(single, "node:All", one.path(n), integrity="off"),
                prepare=one.make,
                goal=1.3,
            ),
        ),
    )


def bulk(bench: Bench) -> Case:
    """Write 50 frames in one commit, and each by itself."""
    frames: dict[str, DataFrame] = {
        f"node:T{i:02}": bench.wide(10_000 + i).drop("vec").coalesce(2) for i in range(TABLES)
    }
    template = bench.path("bulk")
    OmniGraph.for_path(bench.spark, template).write({"node:Other": bench.wide(1).drop("vec")})
    together = Copies(template, bench.folder / "bulk-together")
    singly = Copies(template, bench.folder / "bulk-singly")

    def one_by_one(number: int) -> None:
        for key, frame in frames.items():
            bench.write(frame, key, singly.path(number))

    return Case(
        f"OmniGraph.write of {TABLES} frames",
        sum(10_000 + i for i in range(TABLES)),
        (
            Peer(
                "omnigraph, one commit",
                lambda n: OmniGraph.for_path(bench.spark, together.path(n)).write(frames),
                prepare=together.make,
            ),
            Peer("the frames singly", one_by_one, prepare=singly.make, goal=1.5),
        ),
        most_rounds=2,
    )
