"""Catalog tables that are older than the graph's tables, and those that upsert and delete."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from omnigraph_spark import OmniGraph, register
from omnigraph_spark.errors import BranchNotFoundError, OptionError, SchemaMismatchError
from tests.support.frames import counts, nothing_written, refused, rows

AGAIN = "DROP TABLE t; CREATE TABLE t USING omnigraph OPTIONS"


@pytest.fixture
def graph(spark: SparkSession, tmp_path: Path) -> OmniGraph:
    graph = OmniGraph.for_path(spark, str(tmp_path / "it's a graph"))
    both = [("a", 30, "Ann"), ("b", 25, "Ben")]
    people = spark.createDataFrame(both, "id STRING, age INT, name STRING")
    knows = spark.sql("SELECT 'ab' AS id, 'a' AS src, 'b' AS dst")
    ends = "Knows: Person -> Person"
    graph.write({"node:Person": people, "edge:Knows": knows}, endpoints=ends)
    return graph


@pytest.fixture(autouse=True)
def _database(spark: SparkSession) -> Iterator[None]:
    spark.sql("CREATE DATABASE d")
    yield
    spark.sql("DROP DATABASE d CASCADE")
    spark.sql("USE default")


def create(spark: SparkSession, name: str, graph: OmniGraph, more: str) -> None:
    path = graph.uri.replace("'", "\\'")
    spark.sql(f"CREATE TABLE d.{name} USING omnigraph OPTIONS (path '{path}'{more})")


@pytest.mark.long
def test_an_overwrite_that_would_null_a_property_it_does_not_show_is_refused(
    spark: SparkSession, graph: OmniGraph
) -> None:
    create(spark, "people", graph, ", table 'node:Person'")
    create(spark, "names", graph, ", table 'node:Person', columns 'id,age,name'")
    create(spark, "whole", graph, "")
    graph.create_branch("dev")
    create(spark, "dev", graph, ", table 'node:Person', branch 'dev'")
    graph.add_property("Person", "note", "String?")
    spark.sql("SELECT 'a' AS id, 'keep' AS note").write.format("omnigraph").mode("append").options(
        table="node:Person", writeMode="merge"
    ).save(graph.uri)
    one = "SELECT 'a' AS id, 31 AS age, 'Anna' AS name"
    for table in ("people", "names"):
        with nothing_written(graph.uri), refused(SchemaMismatchError, "note"):
            spark.sql(f"INSERT OVERWRITE d.{table} {one}")
    with nothing_written(graph.uri), refused(SchemaMismatchError, "note"):
        spark.sql("INSERT OVERWRITE d.whole SELECT 'node:Person', 'a', NULL, NULL, 31, 'Anna'")
    spark.sql("INSERT INTO d.people VALUES ('c', 41, 'Cy')")
    assert rows(spark.table("d.people")) == [("a", 30, "Ann"), ("b", 25, "Ben"), ("c", 41, "Cy")]
    assert rows(graph.table("Person"), "id", "note") == [("a", "keep"), ("b", None), ("c", None)]
    with refused(SchemaMismatchError, AGAIN):
        spark.sql(f"INSERT OVERWRITE d.people {one}")
    spark.sql(f"INSERT OVERWRITE d.dev {one}")  # the branch has no such property
    graph.add_property("Person", "more", "String?", branch="dev")
    with nothing_written(graph.uri), refused(SchemaMismatchError, "more"):
        spark.sql(f"INSERT OVERWRITE d.dev {one}")
    spark.sql("INSERT INTO d.dev VALUES ('d', 1, 'Di')")
    found = rows(graph.table("Person", branch="dev"), "id", "age", "more")
    assert found == [("a", 31, None), ("d", 1, None)]


def test_a_catalog_table_with_columns_that_are_gone_names_the_statements_that_mend_it(
    spark: SparkSession, graph: OmniGraph
) -> None:
    create(spark, "people", graph, ", table 'node:Person'")
    create(spark, "altered", graph, ", table 'node:Person'")
    spark.sql("ALTER TABLE d.altered ADD COLUMNS (shoe INT)")
    with refused(SchemaMismatchError, AGAIN):
        spark.table("d.altered").collect()
    graph.rename_property("Person", "age", "years")
    for failing in ("SELECT * FROM d.people", "INSERT INTO d.people VALUES ('c', 1, 'Cy')"):
        with refused(SchemaMismatchError, AGAIN):
            spark.sql(failing).collect()


@pytest.mark.long
def test_the_catalog_follows_the_graph_when_its_tables_are_created_again(
    spark: SparkSession, graph: OmniGraph, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = graph.create_catalog_tables("d", "g_")
    assert made == {"edge:Knows": "`d`.`g_Knows`", "node:Person": "`d`.`g_Person`"}
    graph.add_property("Person", "note", "String?")
    graph.add_table("node:Tag", "label STRING")
    said: list[str] = []
    run = spark.sql
    monkeypatch.setattr(spark, "sql", lambda text: said.append(text) or run(text))  # type: ignore[func-returns-value]
    assert graph.create_catalog_tables("d", "g_") == {**made, "node:Tag": "`d`.`g_Tag`"}
    monkeypatch.undo()
    assert [one.partition(" USING")[0] for one in said] == [
        "DROP TABLE `d`.`g_Person`", "CREATE TABLE `d`.`g_Person`", "CREATE TABLE `d`.`g_Tag`"
    ]  # fmt: skip
    assert spark.table("d.g_Person").columns == graph.table("Person").columns
    graph.drop_property("Person", "age")
    graph.create_catalog_tables("d", "g_")
    columns = ", ".join(spark.table("d.g_Person").columns)
    spark.sql(f"INSERT INTO d.g_Person ({columns}) VALUES ('c', 'Cy', 'new')")
    assert rows(spark.table("d.g_Person"), "id", "note") == [("a", None), ("b", None), ("c", "new")]
    spark.sql("CREATE TABLE d.h_Tag (id STRING) USING parquet")
    with refused(OptionError, "d`.`h_Tag"):
        graph.create_catalog_tables("d", "h_")
    assert not spark.catalog.tableExists("d.h_Person")


def test_sql_upserts_and_deletes_through_tables_that_say_so(
    spark: SparkSession, graph: OmniGraph
) -> None:
    create(spark, "ups", graph, ", table 'node:Person', writeMode 'merge', columns 'id,age'")
    create(spark, "gone", graph, ", table 'edge:Knows', writeMode 'delete', columns 'id'")
    spark.sql("INSERT INTO d.ups SELECT id, age + 1 FROM d.ups WHERE id = 'a'")
    spark.sql("INSERT INTO d.ups VALUES ('n', 9)")
    assert rows(graph.table("Person"), "id", "age", "name") == [
        ("a", 31, "Ann"), ("b", 25, "Ben"), ("n", 9, None)
    ]  # fmt: skip
    spark.sql("INSERT INTO d.gone VALUES ('ab')")
    assert counts(graph.uri) == {"edge:Knows": 0, "node:Person": 3}
    with nothing_written(graph.uri), refused(OptionError, "INSERT INTO"):
        spark.sql("INSERT OVERWRITE d.ups VALUES ('a', 1)")


def test_keyed_nodes_and_edges_are_upserted_and_inserted_without_ids(
    spark: SparkSession, graph: OmniGraph
) -> None:
    tags = spark.sql("SELECT 'red' AS label, 1 AS n")
    graph.write({"node:Tag": tags}, keys={"Tag": "label"})
    create(spark, "tags", graph, ", table 'node:Tag', writeMode 'merge', columns 'label,n'")
    create(spark, "knows", graph, ", table 'edge:Knows', columns 'src,dst'")
    spark.sql("INSERT INTO d.tags VALUES ('red', 2), ('blue', 3)")
    assert rows(graph.table("Tag"), "id", "n") == [("blue", 3), ("red", 2)]
    spark.sql("INSERT INTO d.knows VALUES ('b', 'a')")
    assert rows(graph.table("Knows"), "src", "dst") == [("a", "b"), ("b", "a")]


def test_sql_reads_a_version_and_a_branch_through_views(
    spark: SparkSession, graph: OmniGraph
) -> None:
    graph.create_branch("dev")
    version = graph.tables().head().version
    graph.write({"node:Person": spark.sql("SELECT 'c' AS id, 1 AS age, 'Cy' AS name")})
    path = graph.uri.replace("'", "\\'")
    for name, more in (("then", f"versionAsOf '{version}'"), ("dev", "branch 'dev'"), ("now", "branch 'main'")):  # fmt: skip
        spark.sql(
            f"CREATE OR REPLACE TEMPORARY VIEW {name} USING omnigraph"
            f" OPTIONS (path '{path}', table 'Person', {more})"
        )
    assert [spark.sql(f"SELECT * FROM {n}").count() for n in ("then", "dev", "now")] == [2, 2, 3]


@pytest.mark.long
def test_sql_functions_give_the_history_and_what_differs(
    spark: SparkSession, graph: OmniGraph
) -> None:
    register(spark)
    graph.create_branch("dev")
    tagged = spark.sql("SELECT 'a' AS id, map('k', 1) AS m, struct(1 AS x, array(2) AS y) AS s")
    graph.write({"node:Tag": tagged}, branch="dev", actor="ann")
    graph.write(
        {"node:Person": spark.sql("SELECT 'b' AS id, 26 AS age")}, mode="merge", branch="dev"
    )
    path = graph.uri.replace("'", "\\'")
    told = spark.sql(f"SELECT * FROM omnigraph_history('{path}', 'dev')")
    assert rows(told) == rows(graph.history(branch="dev"))
    assert told.columns == graph.history().columns
    for arguments, known in (
        ("'main', 'dev'", graph.diff("main", "dev")),
        ("'dev'", graph.diff("dev", "main")),
        (
            "before => 'main', after => 'dev', table => 'Person'",
            graph.diff("main", "dev", "Person"),
        ),
    ):
        found = spark.sql(f"SELECT * FROM omnigraph_diff('{path}', {arguments})")
        assert found.columns == known.columns
        assert sorted(map(str, found.collect())) == sorted(map(str, known.collect()))
    with refused(BranchNotFoundError, "nowhere"):
        spark.sql(f"SELECT * FROM omnigraph_history('{path}', 'nowhere')").collect()
