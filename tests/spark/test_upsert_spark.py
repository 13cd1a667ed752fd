"""Upserts and deletes through Spark: frames of every form, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from omnigraph_spark import OmniGraph, pack
from omnigraph_spark.errors import IntegrityError, OptionError, RowConflictError
from tests.support.frames import counts, knows, load, people, refused, save, versions

ENDS = "Knows: Person -> Person"
MERGE = {"writeMode": "merge"}


@pytest.fixture
def uri(spark: SparkSession, tmp_path: Path) -> str:
    """A graph of ann and ben, and ann knows ben."""
    root = str(tmp_path / "graph")
    graph = pack({"node:Person": people(spark), "edge:Knows": knows(spark, ("a", "b"))})
    save(graph, root, endpoints=ENDS)
    return root


def test_a_frame_with_some_columns_updates_and_adds(spark: SparkSession, uri: str) -> None:
    first = _people(spark, uri)
    new = spark.createDataFrame([("b", 77), ("z", 5)], "id STRING, age INT").repartition(2)
    save(new, uri, table="node:Person", **MERGE)
    found = _people(spark, uri)
    assert sorted(found) == ["a", "b", "z"]
    assert found["a"] == first["a"]
    assert found["b"] == {**first["b"], "age": 77}
    assert found["z"]["age"] == 5


@pytest.mark.parametrize("key", ["Z", "b"])
def test_a_key_in_two_partitions_is_refused_by_name(
    spark: SparkSession, uri: str, key: str
) -> None:
    before = versions(uri)
    twice = spark.createDataFrame([(key, 1)], "id STRING, age INT").union(
        spark.createDataFrame([(key, 2)], "id STRING, age INT")
    )
    with refused(IntegrityError, f"'?{key}'?"):
        save(twice, uri, table="node:Person", **MERGE)
    assert versions(uri) == before


def test_edges_are_upserted_by_id_and_refused_without(spark: SparkSession, uri: str) -> None:
    schema = "id STRING, src STRING, dst STRING"
    edge = spark.createDataFrame([("e1", "a", "b")], schema)
    for _ in range(2):
        save(edge, uri, table="edge:Knows", **MERGE)
    assert counts(uri)["edge:Knows"] == 2
    with refused(IntegrityError, "lacks column id"):
        save(edge.drop("id"), uri, table="edge:Knows", **MERGE)
    with refused(IntegrityError, "without id"):
        nothing = edge.withColumn("id", F.lit(None).cast("string"))
        save(nothing, uri, table="edge:Knows", **MERGE)


def test_an_edge_is_appended_once_with_an_id_and_each_time_without(
    spark: SparkSession, uri: str
) -> None:
    edge = spark.createDataFrame([("e1", "a", "b")], "id STRING, src STRING, dst STRING")
    there = counts(uri)["edge:Knows"]
    save(edge, uri, table="edge:Knows")
    with refused(IntegrityError, "e1"):
        save(edge, uri, table="edge:Knows")
    assert counts(uri)["edge:Knows"] == there + 1
    for _ in range(2):
        save(edge.drop("id"), uri, table="edge:Knows")
    ids = [row.id for row in load(spark, uri, table="edge:Knows").where("src = 'a'").collect()]
    assert len(set(ids)) == len(ids) >= 3
    assert counts(uri)["edge:Knows"] == there + 3


def test_a_whole_graph_frame_is_upserted_in_one_commit(spark: SparkSession, uri: str) -> None:
    frame = load(spark, uri)
    added = spark.createDataFrame(
        [("node:Person", "n", None, None), ("edge:Knows", "e", "n", "a")],
        "_table STRING, id STRING, src STRING, dst STRING",
    )
    before = max(row["version"] for row in _history(spark, uri))
    save(frame.unionByName(added, allowMissingColumns=True), uri, **MERGE)
    assert counts(uri) == {"node:Person": 3, "edge:Knows": 2}
    assert max(row["version"] for row in _history(spark, uri)) == before + 1


def test_many_frames_are_upserted_in_one_commit(spark: SparkSession, uri: str) -> None:
    graph = OmniGraph.for_path(spark, uri)
    new = spark.createDataFrame([("b", 1), ("c", 2)], "id STRING, age INT")
    edge = spark.createDataFrame([("e", "c", "b")], "id STRING, src STRING, dst STRING")
    graph.write({"node:Person": new, "edge:Knows": edge}, mode="merge", integrity="strict")
    assert counts(uri) == {"node:Person": 3, "edge:Knows": 2}
    (last,) = [row for row in _history(spark, uri) if row["rows_removed"]]
    assert (last["rows_added"], last["rows_removed"]) == (3, 1)


def test_a_frame_that_was_read_conflicts_with_rows_that_others_wrote(
    spark: SparkSession, uri: str
) -> None:
    read = load(spark, uri, table="node:Person").withColumn("age", F.lit(1))
    save(people(spark).limit(1).withColumn("age", F.lit(9)), uri, table="node:Person", **MERGE)
    save(read.where("id = 'b'"), uri, table="node:Person", **MERGE)
    with refused(RowConflictError, "1 row of node:Person .* id 'a'"):
        save(read, uri, table="node:Person", **MERGE)
    save(read.where("id = 'b'").drop("name"), uri, table="node:Person", **MERGE)
    save(read, uri, table="node:Person", lastWriterWins="true", **MERGE)
    assert {row["age"] for row in _people(spark, uri).values()} == {1}


def test_merge_goes_with_append_only(spark: SparkSession, uri: str) -> None:
    writer = people(spark).write.format("omnigraph").option("table", "node:Person")
    with refused(OptionError, "merge"):
        writer.option("writeMode", "merge").mode("overwrite").save(uri)


def test_a_delete_needs_ids_alone_and_says_which_edges_are_in_the_way(
    spark: SparkSession, uri: str
) -> None:
    ben = spark.createDataFrame([("b", 1)], "id STRING, whatever INT")
    with refused(IntegrityError, "leave dangling edges: 1 of edge:Knows"):
        save(ben, uri, table="node:Person", writeMode="delete")
    save(ben, uri, table="node:Person", writeMode="delete", onDelete="cascade")
    assert counts(uri) == {"node:Person": 1, "edge:Knows": 0}
    with refused(IntegrityError, "lacks column id"):
        save(ben.drop("id"), uri, table="node:Person", writeMode="delete")


def test_a_whole_graph_frame_and_many_frames_are_deleted_in_one_commit(
    spark: SparkSession, uri: str
) -> None:
    gone = load(spark, uri).where("_table = 'edge:Knows' OR id = 'b'").select("_table", "id")
    save(gone, uri, writeMode="delete")
    assert counts(uri) == {"node:Person": 1, "edge:Knows": 0}
    save(knows(spark, ("a", "a")), uri, table="edge:Knows")
    graph = OmniGraph.for_path(spark, uri)
    edges = load(spark, uri, table="edge:Knows").select("id")
    nodes = spark.createDataFrame([("a",)], "id STRING")
    graph.write({"edge:Knows": edges, "node:Person": nodes}, mode="delete")
    assert counts(uri) == {"node:Person": 0, "edge:Knows": 0}


def _history(spark: SparkSession, uri: str) -> list[dict[str, Any]]:
    return [row.asDict() for row in load(spark, uri, metadata="history").collect()]


def _people(spark: SparkSession, uri: str) -> dict[str, dict[str, Any]]:
    found = load(spark, uri, table="node:Person").collect()
    return {row["id"]: row.asDict() for row in found}
