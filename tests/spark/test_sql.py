"""Spark SQL on a graph: CREATE TABLE, SELECT, INSERT, and what can't be done."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from omnigraph_spark import OmniGraph, pack
from omnigraph_spark.errors import IntegrityError, OptionError, TableNotFoundError, UnsupportedError
from tests.support import graphs
from tests.support.frames import (
    counts,
    knows,
    load,
    nothing_written,
    options_of,
    people,
    placed,
    refused,
    rows,
    save,
    versions,
)
from tests.support.sparks import ScriptRunner
from tests.support.stores import Store

NODE = "node:Person"
EDGE = "edge:Knows"
BOTH = [("a", 30, "Ann"), ("b", 25, "Ben")]


@pytest.fixture
def uri(spark: SparkSession, store: Store) -> str:
    """A graph of two people and one edge, in a folder and on S3."""
    root = placed(store)
    frames = {NODE: people(spark), EDGE: knows(spark, ("a", "b"))}
    save(pack(frames, endpoints={"Knows": "Person -> Person"}), root)
    return root


def clause(uri: str, table: str = NODE, more: str = "") -> str:
    """Return the OPTIONS clause of a graph's table; keys come from the environment."""
    given = "".join(f", `{key}` '{value}'" for key, value in options_of(uri).items())
    return f"OPTIONS (path '{uri}', table '{table}'{more}{given})"


def create(spark: SparkSession, name: str, uri: str, table: str = NODE, more: str = "") -> None:
    """Create a catalog table of a graph's table."""
    spark.sql(f"CREATE TABLE {name} USING omnigraph {clause(uri, table, more)}")


def handle(spark: SparkSession, uri: str) -> OmniGraph:
    """Return the graph's handle."""
    return OmniGraph.for_path(spark, uri, **options_of(uri))


@pytest.fixture
def bound(spark: SparkSession, uri: str) -> str:
    """The graph, with catalog tables `people` and `knows`."""
    create(spark, "people", uri)
    create(spark, "knows", uri, EDGE)
    return uri


# --- reading -------------------------------------------------------------------------------------


def test_a_catalog_table_is_selected_from(spark: SparkSession, bound: str) -> None:
    assert rows(spark.sql("SELECT * FROM people")) == BOTH
    assert rows(spark.sql("SELECT name FROM people WHERE age > 26")) == [("Ann",)]


def test_describe_shows_the_columns_with_their_own_types(spark: SparkSession, bound: str) -> None:
    shown = [(r.col_name, r.data_type) for r in spark.sql("DESCRIBE people").collect()]
    assert shown[:3] == [("id", "string"), ("age", "int"), ("name", "string")]


def test_tables_of_one_graph_are_joined(spark: SparkSession, bound: str) -> None:
    joined = spark.sql(
        "SELECT s.name, d.name FROM knows k "
        "JOIN people s ON k.src = s.id JOIN people d ON k.dst = d.id"
    )
    assert [tuple(r) for r in joined.collect()] == [("Ann", "Ben")]


def test_each_query_sees_the_newest_snapshot(spark: SparkSession, bound: str) -> None:
    save(people(spark, [("c", "Cy", 40)]), bound, table=NODE)
    assert rows(spark.table("people"), "id") == [("a",), ("b",), ("c",)]


def test_a_pinned_table_keeps_its_version_and_is_not_written_through(
    spark: SparkSession, bound: str
) -> None:
    (version,) = spark.sql(f"SELECT max(version) FROM {history(spark, bound)}").first() or (0,)
    create(spark, "then", bound, more=f", versionAsOf '{version}'")
    save(people(spark, [("c", "Cy", 40)]), bound, table=NODE)
    assert rows(spark.table("then")) == BOTH
    with nothing_written(bound), refused(UnsupportedError, "versionasof"):
        spark.sql("INSERT INTO then VALUES ('d', 1, 'Di')")


def history(spark: SparkSession, uri: str) -> str:
    handle(spark, uri).history().createOrReplaceTempView("history_view")
    return "history_view"


def test_the_option_columns_projects(spark: SparkSession, bound: str) -> None:
    create(spark, "names", bound, more=", columns 'id, name'")
    assert spark.table("names").columns == ["id", "name"]
    assert rows(spark.table("names")) == [("a", "Ann"), ("b", "Ben")]


def test_a_branch_is_read_through_its_own_table(spark: SparkSession, tmp_path: Path) -> None:
    root = str(graphs.unpack("v2", "rich", tmp_path))
    create(spark, "dev", root, more=", branch 'dev'")
    create(spark, "main_people", root)
    dev, main = rows(spark.table("dev"), "id"), rows(spark.table("main_people"), "id")
    assert dev != main
    assert dev == rows(load(spark, root, table=NODE, branch="dev"), "id")


def test_a_temporary_view_keeps_its_options(spark: SparkSession, uri: str) -> None:
    spark.sql(f"CREATE TEMPORARY VIEW v USING omnigraph {clause(uri)}")
    assert rows(spark.sql("SELECT id FROM v")) == [("a",), ("b",)]


def test_create_views_makes_one_view_per_table_of_one_snapshot(
    spark: SparkSession, uri: str
) -> None:
    made = handle(spark, uri).create_views("g_")
    assert made == {EDGE: "g_Knows", NODE: "g_Person"}
    save(people(spark, [("c", "Cy", 40)]), uri, table=NODE)
    assert rows(spark.sql("SELECT id FROM g_Person")) == [("a",), ("b",)]
    assert rows(spark.sql("SELECT src, dst FROM g_Knows")) == [("a", "b")]


# --- INSERT --------------------------------------------------------------------------------------


def test_insert_into_without_a_column_list_appends(spark: SparkSession, bound: str) -> None:
    spark.sql("INSERT INTO people VALUES ('c', 40, 'Cy')")
    assert rows(spark.table("people")) == [*BOTH, ("c", 40, "Cy")]


def test_insert_into_takes_a_full_column_list_in_any_order(spark: SparkSession, bound: str) -> None:
    spark.sql("INSERT INTO people (name, id, age) VALUES ('Cy', 'c', 40)")
    assert rows(spark.table("people")) == [*BOTH, ("c", 40, "Cy")]


def test_a_partial_column_list_is_filled_with_null_from_spark_41_on(
    spark: SparkSession, bound: str
) -> None:
    statement = "INSERT INTO people (id, name) VALUES ('c', 'Cy')"
    if spark.version.startswith("4.0"):
        with (
            nothing_written(bound),
            pytest.raises(
                Exception,
                match=r"INSERT_COLUMN_ARITY_MISMATCH|NOT_ENOUGH_DATA_COLUMNS|CANNOT_FIND_DATA",
            ),
        ):
            spark.sql(statement)
        return
    spark.sql(statement)
    assert rows(spark.table("people")) == [*BOTH, ("c", None, "Cy")]


def test_insert_overwrite_replaces_the_table_alone(spark: SparkSession, bound: str) -> None:
    before = versions(bound)[EDGE]
    spark.sql("INSERT OVERWRITE people VALUES ('z', 1, 'Zoe')")
    assert rows(spark.table("people")) == [("z", 1, "Zoe")]
    assert versions(bound)[EDGE] == before


def test_inserts_are_checked_unless_their_table_says_otherwise(
    spark: SparkSession, bound: str
) -> None:
    with refused(IntegrityError, "unique id.*'a'"):
        spark.sql("INSERT INTO people VALUES ('a', 1, 'Again')")
    assert counts(bound)[NODE] == 2
    create(spark, "unchecked", bound, more=", integrity 'off'")
    spark.sql("INSERT INTO unchecked VALUES ('a', 1, 'Again')")
    assert counts(bound)[NODE] == 3


def test_an_insert_goes_to_the_target_whatever_the_query_was_bound_to(
    spark: SparkSession, bound: str
) -> None:
    save(people(spark, []), bound, table="node:Copy")
    create(spark, "copy", bound, "node:Copy")
    spark.sql("INSERT INTO copy SELECT * FROM people")
    spark.sql("INSERT INTO copy SELECT concat(id, '2') AS id, age, name FROM people")
    people(spark).select("id", "age", "name").createOrReplaceTempView("plain")
    spark.sql("INSERT OVERWRITE copy SELECT * FROM plain")
    assert counts(bound) == {EDGE: 1, NODE: 2, "node:Copy": 2}


def test_an_insert_of_a_table_into_itself_is_refused_with_the_statement_that_works(
    spark: SparkSession, bound: str
) -> None:
    with nothing_written(bound), refused(UnsupportedError, r"CAST\(id AS STRING\) AS id"):
        spark.sql("INSERT OVERWRITE people SELECT * FROM people WHERE id = 'a'")
    spark.sql(
        "INSERT OVERWRITE people SELECT CAST(id AS STRING) AS id, age, name FROM people WHERE id = 'a'"
    )
    assert rows(spark.table("people")) == [("a", 30, "Ann")]


def test_a_table_that_is_not_in_the_graph_yet_is_made_by_the_first_insert(
    spark: SparkSession, bound: str
) -> None:
    create(spark, "cities", bound, "node:City", ", schema 'id STRING, name STRING'")
    assert spark.table("cities").count() == 0
    spark.sql("INSERT INTO cities VALUES ('x', 'Xanten')")
    assert rows(spark.table("cities")) == [("x", "Xanten")]
    assert counts(bound)["node:City"] == 1


def test_a_table_that_is_not_in_the_graph_needs_the_option_schema(
    spark: SparkSession, bound: str
) -> None:
    with nothing_written(bound), refused(TableNotFoundError, "node:City"):
        create(spark, "cities", bound, "node:City")


# --- what can't be done --------------------------------------------------------------------------


def test_drop_table_leaves_the_graph(spark: SparkSession, bound: str) -> None:
    with nothing_written(bound):
        spark.sql("DROP TABLE people")
    assert rows(load(spark, bound, table=NODE)) == BOTH


def test_a_column_list_cannot_carry_the_path_and_the_error_shows_what_works(
    spark: SparkSession, uri: str
) -> None:
    columns = "(id STRING, age INT, name STRING)"
    spark.sql(f"CREATE TABLE listed {columns} USING omnigraph {clause(uri)}")
    with refused(UnsupportedError, r"CREATE TABLE people USING omnigraph OPTIONS \(path"):
        spark.table("listed").collect()
    shown = r"schema 'id STRING, age INT, name STRING'"
    with nothing_written(uri), refused(UnsupportedError, shown):
        spark.sql("INSERT INTO listed VALUES ('c', 1, 'Cy')")


def test_create_table_as_select_is_refused_with_the_statements_that_work(
    spark: SparkSession, bound: str
) -> None:
    query = "SELECT id, age, name FROM VALUES ('q', 1, 'Q') AS t(id, age, name)"
    with nothing_written(bound), refused(UnsupportedError, "CREATE TABLE people USING omnigraph"):
        spark.sql(f"CREATE TABLE made USING omnigraph {clause(bound, 'node:Made')} AS {query}")
    with nothing_written(bound), refused(UnsupportedError, "save|INSERT"):
        spark.table("people").write.format("omnigraph").mode("overwrite").saveAsTable("people2")


@pytest.mark.parametrize(
    "secret", ["storage.aws_secret_access_key 'x'", "storage.session_token 'x'"]
)
def test_a_secret_is_refused_before_spark_stores_it(
    spark: SparkSession, uri: str, secret: str
) -> None:
    with refused(OptionError, "secret"):
        create(spark, "hidden", uri, more=f", {secret}")
    assert not spark.catalog.tableExists("hidden")


def test_an_unknown_option_of_create_table_names_the_nearest(spark: SparkSession, uri: str) -> None:
    with refused(OptionError, "versionAsOf"):
        create(spark, "wrong", uri, more=", versionsAsOf '3'")


_RESTART = """
import sys
step, clause = sys.argv[1], sys.argv[2]
if step == "create":
    spark.sql(f"CREATE TABLE people USING omnigraph {clause}")
    spark.sql("INSERT INTO people VALUES ('c', 40, 'Cy')")
else:
    spark.sql("INSERT INTO people VALUES ('d', 50, 'Di')")
    print("ROWS", sorted(r.id for r in spark.sql("SELECT id FROM people").collect()))
"""


@pytest.mark.long
def test_a_catalog_table_survives_a_restart_with_a_persistent_metastore(
    spark: SparkSession, local_store: Store, run_spark_script: ScriptRunner, tmp_path: Path
) -> None:
    root = placed(local_store)
    save(people(spark), root, table=NODE)
    conf = {
        "spark.sql.catalogImplementation": "hive",
        "spark.sql.warehouse.dir": str(tmp_path / "warehouse"),
        "spark.hadoop.javax.jdo.option.ConnectionURL": (
            f"jdbc:derby:;databaseName={tmp_path / 'metastore'};create=true"
        ),
    }
    run_spark_script(_RESTART, "create", clause(root), conf=conf)
    done = run_spark_script(_RESTART, "use", clause(root), conf=conf)
    assert "ROWS ['a', 'b', 'c', 'd']" in done.stdout
