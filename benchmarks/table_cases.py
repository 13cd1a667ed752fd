"""Cases on one table: scan, append, projection, one row by id."""

from __future__ import annotations

from benchmarks import peers
from benchmarks.frames import (
    EDGES,
    TASKS,
    VECTOR_WIDTH,
    WIDE,
    Bench,
    Copies,
    drain,
    noop,
    open_lance,
    table_dataset,
    write_lance,
)
from benchmarks.harness import Case, Peer
from omnigraph_spark import OmniGraph


def scan(bench: Bench) -> Case:
    """Read every edge into Spark's noop sink."""
    uri, parquet = bench.path("edges"), bench.path("edges.parquet")
    edges = bench.edges()
    bench.graph_of_edges(uri)
    bench.write(edges, EDGES, uri, integrity="off")
    edges.write.parquet(parquet)
    dataset = table_dataset(uri, EDGES)
    ceiling = bench.spark.read.format("ceiling").option("rows", bench.rows).option("tasks", TASKS)
    return Case(
        "full scan of the edges",
        bench.rows,
        (
            Peer("omnigraph", lambda _: noop(bench.read(uri, EDGES))),
            Peer("API ceiling", lambda _: noop(ceiling.load()), goal=1.10),
            Peer("Spark Parquet", lambda _: noop(bench.spark.read.parquet(parquet)), goal=1.9),
            Peer("pylance, one process", lambda _: drain(open_lance(dataset).to_batches())),
            *peers.lance_spark_scan(bench, edges),
        ),
    )


def append(bench: Bench) -> Case:
    """Append every edge, commit and publish included; each round to a place of its own."""
    edges = bench.edges().cache()
    arrow = edges.toArrow()
    template = bench.path("template")
    bench.graph_of_edges(template)
    ours = Copies(template, bench.folder / "append-ours")
    parquet = Copies("", bench.folder / "append-parquet")
    lance = Copies("", bench.folder / "append-lance")
    return Case(
        "append of the edges, integrity=off",
        bench.rows,
        (
            Peer(
                "omnigraph",
                lambda n: bench.write(edges, EDGES, ours.path(n), integrity="off"),
                prepare=ours.make,
            ),
            Peer(
                "API ceiling",
                lambda _: edges.write.format("ceiling").mode("append").save(),
                goal=1.25,
            ),
            Peer(
                "Spark Parquet",
                lambda n: edges.write.parquet(parquet.path(n)),
                prepare=parquet.clear,
                goal=1.2,
            ),
            Peer(
                "pylance, one process",
                lambda n: write_lance(arrow, lance.path(n)),
                prepare=lance.clear,
            ),
            *peers.pyspark_data_sources_append(bench, edges),
            *peers.lance_spark_append(bench, edges),
        ),
    )


def projection(bench: Bench) -> Case:
    """Read two of 20 columns, the vector left out."""
    rows = max(1, bench.rows // 2)
    uri, parquet = bench.path("wide"), bench.path("wide.parquet")
    wide = bench.wide(rows)
    bench.write(wide, WIDE, uri, types=f"Thing.vec: Vector({VECTOR_WIDTH})", integrity="off")
    wide.write.parquet(parquet)
    dataset = table_dataset(uri, WIDE)
    two = ["id", "p03"]
    return Case(
        "two of 20 columns, vector left out",
        rows,
        (
            Peer("omnigraph", lambda _: noop(bench.read(uri, WIDE, columns=",".join(two)))),
            Peer("omnigraph, all columns", lambda _: noop(bench.read(uri, WIDE)), goal=0.1),
            Peer("Spark Parquet", lambda _: noop(bench.spark.read.parquet(parquet).select(*two))),
            Peer(
                "pylance, one process",
                lambda _: drain(open_lance(dataset).to_batches(columns=two)),
            ),
        ),
    )


def lookup(bench: Bench) -> Case:
    """Read one row by id, by way of an index and without one."""
    uri = bench.path("indexed")
    bench.graph_of_edges(uri)
    bench.write(bench.edges(), EDGES, uri, integrity="off")
    graph = OmniGraph.for_path(bench.spark, uri)
    graph.create_index(EDGES, "id")
    wanted = f"{bench.rows // 3}".rjust(13, "e")
    where = f"id = '{wanted}'"
    ceiling = bench.spark.read.format("ceiling").option("rows", 1).option("tasks", 1)

    def pushed(_: int) -> None:
        key = "spark.sql.python.filterPushdown.enabled"
        bench.spark.conf.set(key, "true")
        try:
            expect(bench.read(uri, EDGES, pushDownFilters="true").where(where).collect())
        finally:
            bench.spark.conf.unset(key)

    def expect(rows: list[object]) -> None:
        if len(rows) != 1:
            raise AssertionError(f"{len(rows)} rows of {where}")

    return Case(
        "one row by id, with an index",
        bench.rows,
        (
            Peer("omnigraph", lambda _: expect(bench.read(uri, EDGES, filter=where).collect())),
            Peer(
                "without push-down",
                lambda _: expect(bench.read(uri, EDGES).where(where).collect()),
                goal=0.2,
            ),
            Peer("API ceiling, one row", lambda _: expect(ceiling.load().collect()), goal=1.3),
            *([Peer("pushDownFilters", pushed)] if peers.pushes_filters() else []),
        ),
    )
