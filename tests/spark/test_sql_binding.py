"""What a catalog table is bound to: odd paths, odd statements, and what must bind to nothing."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession

from omnigraph_spark.errors import (
    IntegrityError,
    OmnigraphError,
    OptionError,
    SchemaMismatchError,
    UnsupportedError,
)
from tests.support.frames import counts, knows, load, nothing_written, people, refused, rows, save

NODE = "node:Person"
BOTH = [("a", 30, "Ann"), ("b", 25, "Ben")]


def create(spark: SparkSession, name: str, path: object, more: str = "", after: str = "") -> None:
    """Create a catalog table of a graph's people."""
    spark.sql(
        f"CREATE TABLE {name} USING omnigraph OPTIONS (path '{path}', table '{NODE}'{more}) {after}"
    )


@pytest.fixture
def uri(spark: SparkSession, tmp_path: Path) -> str:
    """A graph of two people."""
    root = str(tmp_path / "graph")
    save(people(spark), root, table=NODE)
    return root


@pytest.mark.parametrize("folder", ["a b", "a%20b", "é#x", "q?y"])
def test_a_path_in_create_table_is_taken_as_it_is_written(
    spark: SparkSession, tmp_path: Path, folder: str
) -> None:
    root = tmp_path / folder
    save(people(spark), str(root), table=NODE)
    create(spark, "people", root)
    spark.sql("INSERT INTO people VALUES ('c', 1, 'Cy')")
    assert rows(spark.table("people")) == [*BOTH, ("c", 1, "Cy")]
    assert folder in [entry.name for entry in tmp_path.iterdir()]


def test_location_says_the_path_too(spark: SparkSession, uri: str) -> None:
    spark.sql(f"CREATE TABLE people USING omnigraph OPTIONS (table '{NODE}') LOCATION '{uri}'")
    assert rows(spark.table("people")) == BOTH


def test_create_table_without_a_path_is_refused(spark: SparkSession) -> None:
    with refused(OptionError, r"names no path.*OPTIONS \(path"):
        spark.sql(f"CREATE TABLE people USING omnigraph OPTIONS (table '{NODE}')")
    assert not spark.catalog.tableExists("people")


def test_a_comment_and_table_properties_are_no_options(spark: SparkSession, uri: str) -> None:
    create(spark, "people", uri, after="COMMENT 'friends' TBLPROPERTIES ('owner_team' = 'x')")
    assert rows(spark.table("people")) == BOTH


@pytest.mark.parametrize("name", ["storage.aws_secret_access_key", "password"])
def test_a_secret_among_the_table_properties_is_refused(
    spark: SparkSession, uri: str, name: str
) -> None:
    with refused(OptionError, "secret"):
        create(spark, "people", uri, after=f"TBLPROPERTIES ('{name}' = 'canary')")
    assert not spark.catalog.tableExists("people")


def test_an_endpoint_with_a_password_in_it_is_refused(spark: SparkSession, uri: str) -> None:
    with refused(OptionError, "secret"):
        create(spark, "people", uri, more=", storage.aws_endpoint 'http://me:canary@host:9000'")
    assert not spark.catalog.tableExists("people")


@pytest.mark.parametrize(
    "more", [", txnAppId 'x', txnVersion '1'", ", expectedTableVersions '{\"node:Person\": 1}'"]
)
def test_an_option_of_one_write_is_refused_in_create_table(
    spark: SparkSession, uri: str, more: str
) -> None:
    with refused(OptionError, "belongs to one write"):
        create(spark, "people", uri, more=more)


@pytest.mark.parametrize(
    ("more", "shown", "values", "kind", "why"),
    [
        (", filter 'age > 26'", 1, "('z', 27, 'Zoe')", UnsupportedError, "nothing is written"),
        (", columns 'age, name'", 2, "(27, 'Zoe')", IntegrityError, "lacks column id"),
    ],
)
def test_a_table_that_shows_a_part_is_read_and_not_written_through(
    spark: SparkSession, uri: str, more: str, shown: int, values: str,
    kind: type[OmnigraphError], why: str,
) -> None:  # fmt: skip
    create(spark, "part", uri, more=more)
    assert spark.table("part").count() == shown
    with nothing_written(uri), refused(kind, why):
        spark.sql(f"INSERT INTO part VALUES {values}")


def test_a_table_of_some_columns_with_id_takes_inserts_and_leaves_the_rest_null(
    spark: SparkSession, uri: str
) -> None:
    create(spark, "names", uri, more=", columns 'id, name'")
    spark.sql("INSERT INTO names VALUES ('c', 'Cy')")
    assert rows(load(spark, uri, table=NODE)) == [*BOTH, ("c", None, "Cy")]


def test_a_metadata_frame_is_a_catalog_table_too(spark: SparkSession, uri: str) -> None:
    spark.sql(f"CREATE TABLE h USING omnigraph OPTIONS (path '{uri}', metadata 'tables')")
    assert rows(spark.sql("SELECT table_key, row_count FROM h")) == [(NODE, 2)]
    save(people(spark, [("c", "Cy", 1)]), uri, table=NODE)
    assert rows(spark.sql("SELECT table_key, row_count FROM h")) == [(NODE, 3)]


def test_a_whole_graph_is_a_catalog_table_too(spark: SparkSession, uri: str) -> None:
    spark.sql(f"CREATE TABLE g USING omnigraph OPTIONS (path '{uri}')")
    assert rows(spark.sql(f"SELECT id FROM g WHERE _table = '{NODE}'")) == [("a",), ("b",)]
    spark.sql(f"INSERT INTO g SELECT '{NODE}', 'c', NULL, NULL, 1, 'Cy'")
    assert rows(load(spark, uri, table=NODE)) == [*BOTH, ("c", 1, "Cy")]


def test_write_options_of_create_table_make_the_first_insert_create_the_table(
    spark: SparkSession, uri: str
) -> None:
    spark.sql(
        f"CREATE TABLE likes USING omnigraph OPTIONS (path '{uri}', table 'edge:Likes', "
        "endpoints 'Likes: Person -> Person', types 'Likes.weight: U32', "
        "schema 'id STRING, src STRING NOT NULL, dst STRING NOT NULL, weight BIGINT')"
    )
    spark.sql("INSERT INTO likes VALUES (NULL, 'a', 'b', 7)")
    assert rows(spark.table("likes"), "src", "dst", "weight") == [("a", "b", 7)]
    assert "weight: U32?" in (Path(uri) / "_schema.pg").read_text()
    save(knows(spark, ("b", "a")), uri, table="edge:Likes")
    assert counts(uri)["edge:Likes"] == 2


def test_declared_columns_must_be_those_of_a_table_that_is_there(
    spark: SparkSession, uri: str
) -> None:
    create(spark, "people", uri, more=", schema 'id STRING, age INT'")
    assert rows(spark.table("people")) == BOTH
    with refused(SchemaMismatchError, "age"):
        create(spark, "wrong", uri, more=", schema 'id STRING, age STRING'")


def test_a_column_that_alter_table_added_is_refused_by_name(spark: SparkSession, uri: str) -> None:
    create(spark, "people", uri)
    spark.sql("ALTER TABLE people ADD COLUMN shoe INT")
    with refused(SchemaMismatchError, "'shoe'"):
        spark.table("people").collect()
    with nothing_written(uri), refused(UnsupportedError, "not changed since"):
        spark.sql("INSERT INTO people VALUES ('c', 1, 'Cy', 44)")


def test_a_frame_of_a_catalog_table_is_copied_by_save(
    spark: SparkSession, uri: str, tmp_path: Path
) -> None:
    create(spark, "people", uri)
    copy = str(tmp_path / "copy")
    save(spark.table("people"), copy, table=NODE)
    assert rows(load(spark, copy, table=NODE)) == BOTH


def test_save_without_a_path_never_goes_back_to_where_the_frame_came_from(
    spark: SparkSession, uri: str
) -> None:
    create(spark, "people", uri)
    for mode in ("append", "overwrite"):
        writer = spark.table("people").where("id = 'a'").write.format("omnigraph").mode(mode)
        with nothing_written(uri), refused(UnsupportedError, "save"):
            writer.save()


@pytest.mark.parametrize("mode", ["append", "overwrite", "errorifexists"])
def test_save_as_table_is_refused_and_leaves_no_table_behind(
    spark: SparkSession, uri: str, mode: str
) -> None:
    create(spark, "people", uri)
    with nothing_written(uri), refused(UnsupportedError, "save"):
        spark.table("people").write.format("omnigraph").mode(mode).saveAsTable("made")
    assert not spark.catalog.tableExists("made")


@pytest.mark.xfail(
    strict=True,
    reason="Spark hands over for saveAsTable with a path what it does for save(path)",
)
def test_save_as_table_with_a_path_binds_nothing_to_the_source_of_its_frame(
    spark: SparkSession, uri: str, tmp_path: Path
) -> None:
    create(spark, "people", uri)
    writer = spark.table("people").write.format("omnigraph").mode("append").option("table", NODE)
    with refused(UnsupportedError, "save"):
        writer.option("path", str(tmp_path / "copy")).saveAsTable("made")
    assert not spark.catalog.tableExists("made")


@pytest.mark.parametrize(
    "statement", ["DELETE FROM people WHERE id = 'a'", "TRUNCATE TABLE people"]
)
def test_statements_that_spark_does_not_hand_to_a_python_source_change_nothing(
    spark: SparkSession, uri: str, statement: str
) -> None:
    create(spark, "people", uri)
    with nothing_written(uri), pytest.raises(AnalysisException, match="does not support"):
        spark.sql(statement)
