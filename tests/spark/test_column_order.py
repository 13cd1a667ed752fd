"""Frames show the properties in the order in which they were written, wherever they are read."""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

from omnigraph_spark import OmniGraph, register
from omnigraph_spark.manifest import snapshot
from tests.support.frames import load, save
from tests.support.graphs import unpack

PEOPLE = ["id", "zname", "born", "acity"]
KNOWS = ["id", "src", "dst", "weight", "at"]
WIDE = ["_table", "id", "src", "dst", "zname", "born", "acity", "weight", "at"]


@pytest.fixture
def people(spark: SparkSession) -> DataFrame:
    """The timestamp is a column that the engine doesn't know."""
    at = datetime.datetime(2020, 1, 1)
    return spark.createDataFrame(
        [("a", "Ann", at, "Aix")], "id STRING, zname STRING, born TIMESTAMP, acity STRING"
    )


@pytest.fixture
def graph(spark: SparkSession, people: DataFrame, tmp_path: Path) -> OmniGraph:
    made = OmniGraph.for_path(spark, str(tmp_path / "g"))
    knows = spark.sql("SELECT 1.5D AS weight, 'a' AS dst, DATE'2020-01-01' AS at, 'a' AS src")
    made.write(
        {"node:Person": people, "edge:Knows": knows}, endpoints={"Knows": ("Person", "Person")}
    )
    return made


@pytest.fixture(autouse=True)
def _database(spark: SparkSession) -> Iterator[None]:
    spark.sql("CREATE DATABASE d")
    yield
    spark.sql("DROP DATABASE d CASCADE")


def test_every_surface_shows_the_order_of_the_first_write(
    spark: SparkSession, graph: OmniGraph, people: DataFrame, tmp_path: Path
) -> None:
    assert graph.table("Person").columns == load(spark, graph.uri, table="Person").columns == PEOPLE
    assert graph.table("Knows").columns == KNOWS
    assert graph.graph().columns == WIDE
    feed = {"readChangeFeed": "true", "startingVersion": "1"}
    assert load(spark, graph.uri, **feed).columns[5:] == WIDE[1:]
    alone = load(spark, graph.uri, table="Person", **feed)
    assert alone.columns[5:] == ["id", "src", "dst", "zname", "born", "acity"]
    streamed = spark.readStream.format("omnigraph").options(**feed)
    assert streamed.load(graph.uri).columns[5:] == WIDE[1:]
    streamed = spark.readStream.format("omnigraph").option("table", "Person")
    assert streamed.load(graph.uri).columns == PEOPLE
    graph.create_branch("dev")
    save(people, graph.uri, branch="dev", table="node:Person", mode="overwrite")
    assert graph.diff("main", "dev").columns == ["_table", "_change_type", *WIDE[1:]]
    register(spark)
    told = spark.sql(f"SELECT * FROM omnigraph_diff('{graph.uri}', 'main', 'dev')")
    assert told.columns == ["_table", "_change_type", *WIDE[1:]]
    graph.create_catalog_tables("d", "")
    assert spark.table("d.Person").columns == PEOPLE
    spark.sql(f"CREATE TABLE d.w USING omnigraph OPTIONS (path '{graph.uri}')")
    assert spark.table("d.w").columns == WIDE
    text = Path(graph.uri, "_schema.pg").read_text()
    assert text.index("zname") < text.index("acity")
    assert text.index("weight") < text.index("at:")


def test_a_frame_by_position_lands_in_the_columns_that_it_was_written_from(
    spark: SparkSession, graph: OmniGraph, people: DataFrame
) -> None:
    assert graph.table("Person").union(people).distinct().count() == 1
    graph.create_catalog_tables("d", "")
    spark.sql("INSERT INTO d.Person VALUES ('b', 'Ben', TIMESTAMP'2020-01-01', 'Ulm')")
    found = graph.table("Person").where("id = 'b'").select("zname", "acity").first()
    assert found is not None
    assert tuple(found) == ("Ben", "Ulm")


def test_a_column_that_comes_later_is_shown_last_and_a_renamed_one_stays(
    spark: SparkSession, graph: OmniGraph, people: DataFrame
) -> None:
    first = snapshot.load(graph._store()).graph_version
    graph.add_property("Person", "mid", "int")
    save(people.selectExpr("id", "1 AS bee", "2 AS ant"), graph.uri, table="node:Person",
         writeMode="merge", mergeSchema="true")  # fmt: skip
    graph.rename_property("Person", "born", "seen")
    graph.alter_property("Person", "zname", nullable=True)
    now = ["id", "zname", "seen", "acity", "mid", "bee", "ant"]
    assert graph.table("Person").columns == now
    graph.drop_property("Person", "bee")
    graph.optimize()
    save(graph.table("Person"), graph.uri, "overwrite", table="node:Person")
    assert graph.table("Person").columns == [name for name in now if name != "bee"]
    assert graph.table("Person", version=first).columns == PEOPLE


def test_branches_merges_and_copies_keep_the_order(
    spark: SparkSession, graph: OmniGraph, people: DataFrame, tmp_path: Path
) -> None:
    graph.add_property("Person", "aaa", "int")
    graph.create_branch("dev")
    save(people, graph.uri, branch="dev", table="node:Later")
    save(people.selectExpr("'b' AS id", "zname"), graph.uri, branch="dev", table="node:Person")
    save(people.selectExpr("'c' AS id", "zname"), graph.uri, table="node:Person")
    graph.merge("dev")
    assert graph.table("Later").columns == PEOPLE
    assert graph.table("Person").columns == [*PEOPLE, "aaa"]
    copy = str(tmp_path / "copy")
    save(graph.graph(), copy)
    assert load(spark, copy, table="Person").columns == [*PEOPLE, "aaa"]
    assert load(spark, copy).columns == graph.graph().columns


def test_a_graph_of_the_engine_shows_what_its_schema_file_lists(
    spark: SparkSession, tmp_path: Path
) -> None:
    graph = OmniGraph.for_path(spark, str(unpack("v2", "evolved", tmp_path)))
    assert graph.table("Person").columns == ["id", "name", "age", "email"]
    feed = {"readChangeFeed": "true", "startingVersion": "1", "table": "Person"}
    assert load(spark, graph.uri, **feed).columns[8:] == ["name", "age", "email"]
    graph.rename_property("Person", "age", "years")
    graph.add_property("Person", "born", "date")
    graph.add_property("Person", "at", "timestamp")
    assert graph.table("Person").columns == ["id", "name", "years", "email", "born", "at"]


def test_a_table_that_is_declared_first_has_the_declared_order(
    spark: SparkSession, tmp_path: Path
) -> None:
    place = f"path '{tmp_path / 'g'}', table 'node:U'"
    spark.sql(
        f"CREATE TABLE d.u USING omnigraph OPTIONS ({place}, schema 'id STRING, z STRING, a STRING')"
    )
    spark.sql("INSERT INTO d.u VALUES ('1', 'zet', 'alpha')")
    spark.sql(f"CREATE TABLE d.v USING omnigraph OPTIONS ({place})")
    assert spark.table("d.v").columns == spark.table("d.u").columns == ["id", "z", "a"]
    spark.sql("INSERT INTO d.v SELECT '2', 'zet', 'alpha'")
    assert {tuple(row)[1:] for row in spark.table("d.u").collect()} == {("zet", "alpha")}
