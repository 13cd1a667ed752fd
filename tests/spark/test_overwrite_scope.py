"""An overwrite empties, and an append makes, no table that the user didn't name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

from omnigraph_spark import OmniGraph, pack
from omnigraph_spark.errors import IntegrityError, OptionError
from tests.support.frames import counts, load, nothing_written, refused, rows, save

FULL = {"edge:E": 20, "node:A": 20, "node:B": 20}
Write = Callable[[SparkSession, str, DataFrame], None]


@pytest.fixture
def uri(spark: SparkSession, tmp_path: Path) -> str:
    root = str(tmp_path / "g")
    nodes = spark.range(20).selectExpr("CAST(id AS STRING) AS id", "CAST(id AS INT) AS n")
    edges = nodes.selectExpr("id AS src", "id AS dst")
    graph = OmniGraph.for_path(spark, root)
    graph.write({"node:A": nodes, "node:B": nodes, "edge:E": edges}, endpoints="E: A -> B")
    return root


def by_save(_spark: SparkSession, uri: str, frame: DataFrame) -> None:
    save(frame, uri, "overwrite")


def by_insert_overwrite(spark: SparkSession, uri: str, frame: DataFrame) -> None:
    """Overwrite by SQL, through a catalog table of the whole graph."""
    spark.sql(f"CREATE TABLE whole USING omnigraph OPTIONS (path '{uri}')")
    try:
        frame.createOrReplaceTempView("filtered")
        spark.sql(
            "INSERT OVERWRITE whole SELECT _table, concat(id, '') AS id, src, dst, n FROM filtered"
        )
    finally:
        spark.sql("DROP TABLE whole")


def by_write_to(spark: SparkSession, uri: str, frame: DataFrame) -> None:
    """Overwrite by `insertInto`, through a catalog table of the whole graph."""
    spark.sql(f"CREATE TABLE whole USING omnigraph OPTIONS (path '{uri}')")
    try:
        again = frame.selectExpr("_table", "concat(id, '') AS id", "src", "dst", "n")
        again.write.insertInto("whole", overwrite=True)
    finally:
        spark.sql("DROP TABLE whole")


@pytest.mark.parametrize("write", [by_save, by_insert_overwrite, by_write_to])
def test_an_overwrite_by_a_filtered_graph_replaces_only_the_tables_that_have_rows_in_it(
    spark: SparkSession, uri: str, write: Write
) -> None:
    write(spark, uri, load(spark, uri).where("_table = 'node:B' AND n < 5"))
    assert counts(uri) == {**FULL, "node:B": 5}


def test_a_strict_overwrite_sees_the_edges_that_its_filtered_frame_left_out(
    spark: SparkSession, uri: str
) -> None:
    frame = load(spark, uri).where("_table = 'node:B' AND n < 5")
    with refused(IntegrityError, "edges stay attached"):
        save(frame, uri, "overwrite", integrity="strict")
    assert counts(uri) == FULL


def test_a_filtered_overwrite_of_a_branch_leaves_the_branches_other_tables(
    spark: SparkSession, uri: str
) -> None:
    graph = OmniGraph.for_path(spark, uri)
    graph.create_branch("dev")
    frame = graph.graph(branch="dev").where("n < 5")
    save(frame, uri, "overwrite", branch="dev")
    assert {r.table_key: r.row_count for r in graph.tables(branch="dev").collect()} == {
        "edge:E": 20, "node:A": 5, "node:B": 5,
    }  # fmt: skip
    assert counts(uri) == FULL


def test_an_overwrite_that_says_so_empties_what_its_frame_leaves_out(
    spark: SparkSession, uri: str
) -> None:
    frame = load(spark, uri).where("_table = 'node:B'")
    save(frame, uri, "overwrite", overwriteEmpty="true")
    assert counts(uri) == {"edge:E": 0, "node:A": 0, "node:B": 20}


def test_what_a_write_names_is_emptied_by_no_rows(spark: SparkSession, uri: str) -> None:
    graph = OmniGraph.for_path(spark, uri)
    none = graph.table("edge:E").where("false")
    save(none, uri, "overwrite", table="edge:E")
    assert counts(uri) == {**FULL, "edge:E": 0}
    graph.write({"node:B": graph.table("node:B").where("false")}, mode="overwrite")
    assert counts(uri) == {"edge:E": 0, "node:A": 20, "node:B": 0}
    save(pack({"node:A": graph.table("node:A").where("false")}), uri, "overwrite")
    assert counts(uri) == {"edge:E": 0, "node:A": 0, "node:B": 0}


def test_a_frame_that_lists_no_tables_cannot_empty_those_it_leaves_out(
    spark: SparkSession, uri: str
) -> None:
    frame = spark.createDataFrame([("node:B", "x", 1)], "_table STRING, id STRING, n INT")
    with nothing_written(uri), refused(OptionError, "overwriteEmpty"):
        save(frame, uri, "overwrite", overwriteEmpty="true")
    with nothing_written(uri), refused(OptionError, "overwriteEmpty goes with overwrite"):
        save(load(spark, uri), uri, "append", overwriteEmpty="true")
    save(frame, uri, "overwrite")
    assert counts(uri) == {**FULL, "node:B": 1}


def test_a_filtered_append_makes_no_empty_tables_and_a_copy_makes_them(
    spark: SparkSession, uri: str, tmp_path: Path
) -> None:
    OmniGraph.for_path(spark, uri).add_table("node:Empty", "x INT")
    whole = load(spark, uri)
    save(whole.where("_table = 'node:B'"), str(tmp_path / "part"))
    assert counts(str(tmp_path / "part")) == {"node:B": 20}
    save(whole.where("_table = 'node:B'"), str(tmp_path / "part"), "overwrite")
    assert counts(str(tmp_path / "part")) == {"node:B": 20}
    save(whole, str(tmp_path / "copy"))
    assert counts(str(tmp_path / "copy")) == {**FULL, "node:Empty": 0}
    for one in ("part", "copy"):
        names = (tmp_path / one / "_schema.pg").read_text()
        assert ("node A" in names, "edge E" in names) == (one == "copy",) * 2


def test_edges_that_are_appended_alone_bring_the_types_that_they_end_at(
    spark: SparkSession, uri: str, tmp_path: Path
) -> None:
    edges = load(spark, uri).where("_table = 'edge:E'")
    save(edges, str(tmp_path / "edges"), integrity="off")
    assert counts(str(tmp_path / "edges")) == {"edge:E": 20, "node:A": 0, "node:B": 0}


def test_the_tables_of_a_graph_say_which_types_their_edges_end_at(
    spark: SparkSession, uri: str
) -> None:
    tables = OmniGraph.for_path(spark, uri).tables()
    assert rows(tables, "table_key", "src_type", "dst_type") == [
        ("edge:E", "A", "B"), ("node:A", None, None), ("node:B", None, None),
    ]  # fmt: skip
