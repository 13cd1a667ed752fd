"""Columns that come and go, through Spark: `mergeSchema`, and reading old versions."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from omnigraph_spark import OmniGraph, pack
from omnigraph_spark.errors import SchemaMismatchError
from tests.format_checker import check_graph
from tests.spark.test_readme import run_python
from tests.support.frames import refused

NODE = "node:Person"


@pytest.fixture
def graph(spark: SparkSession, tmp_path: Path) -> OmniGraph:
    found = OmniGraph.for_path(spark, str(tmp_path / "g"))
    people = spark.createDataFrame([("a", 1), ("b", 2)], "id string, age int")
    knows = spark.createDataFrame([("k", "a", "b")], "id string, src string, dst string")
    found.write({NODE: people, "edge:Knows": knows}, endpoints="Knows: Person -> Person")
    return found


def rows(graph: OmniGraph, version: int | None = None) -> list[tuple[object, ...]]:
    return [tuple(row) for row in graph.table(NODE, version=version).orderBy("id").collect()]


@pytest.mark.long
def test_merge_schema_adds_the_columns_of_a_table_frame(
    spark: SparkSession, graph: OmniGraph
) -> None:
    more = spark.createDataFrame(
        [("c", 3, "see", [1.0, 2.0])], "id string, age int, nick string, vec array<double>"
    )
    before = graph.history().agg({"version": "max"}).first()[0]
    writer = more.write.format("omnigraph").mode("append").option("table", NODE)
    with refused(SchemaMismatchError, "mergeSchema"):
        writer.save(graph.uri)
    writer.options(mergeSchema="true", types="Person.vec: Vector(2)").save(graph.uri)
    assert graph.table(NODE).columns == ["id", "age", "nick", "vec"]
    assert rows(graph) == [("a", 1, None, None), ("b", 2, None, None), ("c", 3, "see", [1.0, 2.0])]
    assert rows(graph, before) == [("a", 1), ("b", 2)]
    assert check_graph(graph.uri) == []


def test_merge_schema_adds_the_columns_of_a_whole_graph_frame_and_of_many_frames(
    spark: SparkSession, graph: OmniGraph
) -> None:
    people = spark.createDataFrame([("c", 3, "see")], "id string, age int, nick string")
    knows = spark.createDataFrame(
        [("l", "a", "c", 0.5)], "id string, src string, dst string, w double"
    )
    frame = pack({NODE: people, "edge:Knows": knows})
    frame.write.format("omnigraph").mode("append").option("mergeSchema", "true").save(graph.uri)
    assert rows(graph) == [("a", 1, None), ("b", 2, None), ("c", 3, "see")]
    graph.write({NODE: people.selectExpr("'d' id", "age", "nick", "true flag")}, mergeSchema="true")
    assert rows(graph)[2:] == [("c", 3, "see", None), ("d", 3, "see", True)]
    edges = graph.table("edge:Knows").orderBy("id").collect()
    assert [tuple(row) for row in edges] == [("k", "a", "b", None), ("l", "a", "c", 0.5)]
    assert check_graph(graph.uri) == []


def test_an_overwrite_with_merge_schema_replaces_rows_and_adds_columns(
    spark: SparkSession, graph: OmniGraph
) -> None:
    more = spark.createDataFrame([("c", "see")], "id string, nick string")
    writer = more.write.format("omnigraph").mode("overwrite").option("table", NODE)
    writer.option("mergeSchema", "true").save(graph.uri)
    assert rows(graph) == [("c", None, "see")]


def test_the_examples_of_the_page_on_schema_changes_run_as_they_stand(
    spark: SparkSession, graph: OmniGraph
) -> None:
    before = {row.table_key for row in graph.tables().collect()}
    old = rows(graph)
    run_python(
        "docs/schema_changes.md",
        "By name",
        {"spark": spark, "uri": graph.uri, "OmniGraph": OmniGraph},
    )
    assert rows(graph) == old
    assert {row.table_key for row in graph.tables().collect()} == before
    changes = graph.history().orderBy("version").collect()
    assert [list(row.tables) for row in changes[-6:]] == [
        [NODE],
        [NODE],
        [NODE],
        ["node:City"],
        ["edge:LivesIn"],
        ["edge:LivesIn", "node:City"],
    ]
    assert graph.table(NODE, version=changes[-5].version).columns == ["id", "age", "nickname"]
    assert check_graph(graph.uri) == []
