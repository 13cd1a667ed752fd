"""Option `integrity` through Spark: frames of every form, the engine's own graphs, bad records."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from omnigraph_spark import OmniGraph, from_spark, pack
from omnigraph_spark.errors import IntegrityError
from tests.support.frames import (
    counts,
    knows,
    load,
    options_of,
    people,
    placed,
    refused,
    rows,
    save,
    versions,
)
from tests.support.stores import Store

ENDS = "Knows: Person -> Person"
STRICT = {"integrity": "strict"}


@pytest.fixture
def uri(spark: SparkSession, store: Store) -> str:
    """A graph of ann and ben, and ann knows ben; on both stores."""
    root = placed(store)
    graph = pack({"node:Person": people(spark), "edge:Knows": knows(spark, ("a", "b"))})
    save(graph, root, endpoints=ENDS, **STRICT)
    return root


def test_edges_that_point_nowhere_are_refused_and_nothing_is_written(
    spark: SparkSession, uri: str
) -> None:
    before = versions(uri)
    lost = knows(spark, ("a", "b"), ("a", "zzz"))
    with refused(IntegrityError, r"1 row of edge:Knows .*'endpoints exist' \(column dst\).*'zzz'"):
        save(lost, uri, table="edge:Knows", **STRICT)
    with refused(IntegrityError, r"null in .*src"):
        frame = spark.createDataFrame([(None, "b")], "src STRING, dst STRING")
        save(frame, uri, table="edge:Knows", **STRICT)
    assert versions(uri) == before
    save(lost.where("dst = 'b'"), uri, table="edge:Knows", **STRICT)
    assert counts(uri)["edge:Knows"] == 2


def test_ids_in_other_partitions_and_in_the_table_are_found(spark: SparkSession, uri: str) -> None:
    new = spark.range(40).selectExpr("concat('p', id % 39) AS id").repartition(7)
    with refused(IntegrityError, r"2 rows of node:Person .*'unique id' \(column id\).*'p0'"):
        save(new, uri, table="node:Person", integrity="keys")
    with refused(IntegrityError, r"2 rows of node:Person .*'a', 'b'"):
        save(people(spark), uri, table="node:Person", integrity="keys")
    save(new.distinct(), uri, table="node:Person", integrity="keys")
    assert counts(uri)["node:Person"] == 41


def test_a_whole_graph_frame_may_bring_nodes_and_the_edges_to_them(
    spark: SparkSession, uri: str
) -> None:
    more = people(spark, [("c", "Cy", 1)])
    good = pack({"node:Person": more, "edge:Knows": knows(spark, ("a", "c"))})
    bad = pack({"node:Person": more, "edge:Knows": knows(spark, ("a", "d"))})
    with refused(IntegrityError, r"edge:Knows .*'d'"):
        save(bad, uri, endpoints=ENDS, **STRICT)
    save(good, uri, endpoints=ENDS, **STRICT)
    assert counts(uri) == {"node:Person": 3, "edge:Knows": 2}


def test_many_frames_in_one_commit_are_checked_together(spark: SparkSession, uri: str) -> None:
    if options_of(uri):
        pytest.skip("the same code as in a folder")
    graph = OmniGraph.for_path(spark, uri)
    more = people(spark, [("c", "Cy", 1)])
    frames = {"node:Person": more, "edge:Knows": knows(spark, ("d", "c"))}
    with pytest.raises(IntegrityError, match=r"INTEGRITY\] 1 row of edge:Knows") as caught:
        graph.write(frames, integrity="strict")
    assert (caught.value.column, caught.value.samples) == ("src", ["d"])
    graph.write({"node:Person": more, "edge:Knows": knows(spark, ("b", "c"))}, integrity="strict")
    assert counts(uri) == {"node:Person": 3, "edge:Knows": 2}


def test_the_typed_error_comes_out_of_sparks_with_what_its_text_tells(
    spark: SparkSession, uri: str
) -> None:
    with pytest.raises(Exception, match="OMNIGRAPH_INTEGRITY") as caught:
        save(people(spark), uri, table="node:Person", **STRICT)
    error = from_spark(caught.value)
    assert isinstance(error, IntegrityError)
    told = (error.table_key, error.rule, error.column, error.count)
    assert told == ("node:Person", "unique id", "id", 2)


def test_bad_records_of_tasks_and_of_the_commit_are_set_aside(
    spark: SparkSession, uri: str, tmp_path: Path
) -> None:
    if options_of(uri):
        pytest.skip("the folder is the same store for the rows as for the graph")
    new = people(spark, [("a", "Al", 1), ("c", "Cy", 2), (None, "No", 3), ("d", "Di", 4)])
    into = tmp_path / "bad"
    save(new.repartition(3), uri, table="node:Person", badRecordsPath=str(into), **STRICT)
    assert rows(load(spark, uri, table="node:Person"), "id") == [("a",), ("b",), ("c",), ("d",)]
    found = [json.loads(line) for p in into.rglob("*.json") for line in p.read_text().splitlines()]
    assert sorted((one["rule"], one["row"]["name"]) for one in found) == [
        ("not null", "No"),
        ("unique id", "Al"),
    ]


def test_bad_records_may_lie_in_the_bucket_of_the_graph(spark: SparkSession, uri: str) -> None:
    if not options_of(uri):
        pytest.skip("for the bucket")
    lost = knows(spark, ("a", "zzz"), ("b", "a"))
    save(lost, uri, table="edge:Knows", badRecordsPath=f"{uri}_bad", **STRICT)
    assert counts(uri)["edge:Knows"] == 2
    from tests.support.frames import PLACES

    bucket = PLACES[uri].bucket
    assert bucket is not None
    (text,) = bucket.objects(f"{uri}_bad".removeprefix(f"{bucket.uri}/")).values()
    assert json.loads(text)["row"]["dst"] == "zzz"


def test_frames_of_no_rows_and_of_no_partitions_are_checked(
    spark: SparkSession, local_store: Store
) -> None:
    root = placed(local_store)
    save(people(spark), root, table="node:Person", **STRICT)
    save(people(spark, ()), root, table="node:Person", **STRICT)
    none = spark.createDataFrame(spark.sparkContext.emptyRDD(), people(spark).schema)
    save(none, root, table="node:Person", **STRICT)
    assert counts(root) == {"node:Person": 2}


# --- the engine's graphs -------------------------------------------------------------------------


@pytest.mark.long
def test_rows_go_into_the_engines_graph_of_every_type_by_its_rules(
    spark: SparkSession, local_store: Store
) -> None:
    root = local_store.fixture("v2", "rich")
    sample = load(spark, root, table="node:Sample").orderBy("id").limit(1)
    with refused(IntegrityError, r"1 row of node:Sample .*'unique id'"):
        save(sample, root, table="node:Sample", **STRICT)
    other = sample.withColumn("slug", F.lit("new")).withColumn("id", F.lit("new"))
    with refused(
        IntegrityError, r"'enum' \(column status\).*one of draft, active, retired.*'gone'"
    ):
        save(other.withColumn("status", F.lit("gone")), root, table="node:Sample")
    save(other, root, table="node:Sample", **STRICT)
    person = load(spark, root, table="node:Person").first()
    assert person is not None
    likes = spark.createDataFrame([(person.id, "new")], "src STRING, dst STRING")
    save(likes, root, table="edge:Likes", **STRICT)
    with refused(IntegrityError, r"edge:Likes .*\(column dst\).*'Sample of no graph'"):
        lost = likes.withColumn("dst", F.lit("Sample of no graph"))
        save(lost, root, table="edge:Likes", **STRICT)


@pytest.mark.long
def test_rows_go_into_a_large_graph_of_the_engine_by_its_rules(
    spark: SparkSession, local_store: Store
) -> None:
    root = local_store.fixture("v2", "pharma")
    artifact = load(spark, root, table="node:InformationArtifact").where("link IS NOT NULL")
    again = artifact.limit(1).withColumn("slug", F.lit("x")).withColumn("id", F.lit("x"))
    with refused(IntegrityError, r"InformationArtifact .*'unique' \(column link\)"):
        save(again, root, table="node:InformationArtifact", **STRICT)
    good = again.withColumn("link", F.lit("https://new"))
    save(good, root, table="node:InformationArtifact", **STRICT)

    source = load(spark, root, table="node:SourceEntity").first()
    assert source is not None
    published = spark.createDataFrame([("x", source.id)], "src STRING, dst STRING")
    with refused(IntegrityError, r"2 rows of edge:PublishedBySource .*'card' \(column src\).*'x'"):
        save(published.union(published), root, table="edge:PublishedBySource", **STRICT)
    save(published, root, table="edge:PublishedBySource", **STRICT)
    with refused(IntegrityError, r"1 row of edge:PublishedBySource .*'card'"):
        save(published, root, table="edge:PublishedBySource", **STRICT)
