"""Branches, tags, restore and diff through `OmniGraph` and the data source."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from omnigraph_spark import OmniGraph
from omnigraph_spark.errors import OptionError, TableNotFoundError, UnsupportedError
from omnigraph_spark.manifest.snapshot import load
from omnigraph_spark.storage.store import Storage
from tests.format_checker import check_graph
from tests.support import graphs
from tests.support.stores import Store

PERSON, KNOWS = "node:Person", "edge:Knows"
PEOPLE = "id STRING, name STRING, age INT, tags ARRAY<STRING>"
EDGES = "id STRING, src STRING, dst STRING, since DATE"


def people(spark: SparkSession, *rows: tuple[str, int | None]) -> DataFrame:
    return spark.createDataFrame([(i, i.upper(), age, [i]) for i, age in rows], PEOPLE)


def knows(spark: SparkSession, *rows: tuple[str, str, str]) -> DataFrame:
    return spark.createDataFrame([(*row, None) for row in rows], EDGES)


@pytest.fixture
def graph(spark: SparkSession, local_store: Store) -> OmniGraph:
    """Three people and two edges."""
    made = OmniGraph.for_path(spark, local_store.uri("graph"))
    made.write(
        {
            PERSON: people(spark, ("a", 1), ("b", 2), ("c", 3)),
            KNOWS: knows(spark, ("ab", "a", "b"), ("bc", "b", "c")),
        },
        endpoints="Knows: Person -> Person",
    )
    return made


def ids(frame: DataFrame) -> list[str]:
    return sorted(row.id for row in frame.select("id").collect())


def head(graph: OmniGraph, branch: str = "main") -> str:
    """Return a branch's newest graph version."""
    return str(load(Storage.at(graph.uri), branch).graph_version)


def changes(frame: DataFrame, *columns: str) -> list[tuple[Any, ...]]:
    found = frame.select("_table", "_change_type", "id", *columns).collect()
    return sorted((tuple(row) for row in found), key=str)


# --- branches, tags, restore -------------------------------------------------------------------


@pytest.mark.long
def test_frames_are_written_to_a_branch_that_the_write_makes(
    spark: SparkSession, graph: OmniGraph
) -> None:
    to_dev = {"branch": "dev", "branchFrom": "main", "table": PERSON}
    people(spark, ("d", 4)).write.format("omnigraph").mode("append").options(**to_dev).save(
        graph.uri
    )
    graph.write({KNOWS: knows(spark, ("cd", "c", "d"))}, branch="dev", branchFrom="main")
    assert ids(graph.table(PERSON, branch="dev")) == ["a", "b", "c", "d"]
    assert ids(graph.table(KNOWS, branch="dev")) == ["ab", "bc", "cd"]
    assert ids(graph.table(PERSON)) == ["a", "b", "c"]
    assert [one.name for one in graph.branches()] == ["main", "dev"]
    assert check_graph(graph.uri) == []


def test_branches_and_tags_are_made_listed_read_and_deleted(
    spark: SparkSession, graph: OmniGraph
) -> None:
    graph.create_branch("feature/x")
    graph.write({PERSON: people(spark, ("d", 4))}, branch="feature/x")
    tag = graph.tag("v1", "feature/x")
    assert (tag.name, tag.branch) == ("v1", "feature/x")
    assert [one.name for one in graph.tags()] == ["v1"]
    graph.write({PERSON: people(spark, ("e", 5))}, branch="feature/x")
    assert ids(graph.table(PERSON, version="v1")) == ["a", "b", "c", "d"]
    with pytest.raises(UnsupportedError, match="Tag v1 names a version"):
        graph.delete_branch("feature/x")
    graph.delete_tag("v1")
    graph.delete_branch("feature/x")
    assert ([one.name for one in graph.branches()], graph.tags()) == (["main"], [])
    with pytest.raises(OptionError, match="reserved by the engine"):
        graph.create_branch("__run__x")


def test_a_version_is_restored_with_all_its_tables(spark: SparkSession, graph: OmniGraph) -> None:
    start = head(graph)
    graph.write({PERSON: people(spark, ("z", 9))}, mode="overwrite")
    graph.write({KNOWS: knows(spark, ("zz", "z", "z"))}, mode="overwrite")
    done = graph.restore(start, userMetadata="undo")
    assert ids(graph.table(PERSON)) == ["a", "b", "c"]
    assert ids(graph.table(KNOWS)) == ["ab", "bc"]
    (newest,) = graph.history().where(F.col("version") == done.graph_version).collect()
    assert (newest.user_metadata, sorted(newest.tables)) == ("undo", [KNOWS, PERSON])


# --- diff --------------------------------------------------------------------------------------


@pytest.mark.long
def test_a_diff_has_inserts_deletes_and_both_images_of_changes(
    spark: SparkSession, graph: OmniGraph
) -> None:
    graph.create_branch("dev")
    graph.write(
        {PERSON: people(spark, ("a", 1), ("b", 20), ("d", None))}, mode="overwrite", branch="dev"
    )
    graph.write({KNOWS: knows(spark, ("ca", "c", "a"))}, branch="dev", integrity="keys")
    found = graph.diff("main", "dev")
    assert found.columns == [
        "_table", "_change_type", "id", "src", "dst", "name", "age", "tags", "since",
    ]  # fmt: skip
    assert changes(found, "age", "src") == [
        (KNOWS, "insert", "ca", None, "c"),
        (PERSON, "delete", "c", 3, None),
        (PERSON, "insert", "d", None, None),
        (PERSON, "update_postimage", "b", 20, None),
        (PERSON, "update_preimage", "b", 2, None),
    ]
    back = {"insert": "delete", "delete": "insert"}
    back |= {"update_preimage": "update_postimage", "update_postimage": "update_preimage"}
    assert changes(graph.diff("dev", "main"), "age", "src") == sorted(
        ((t, back[kind], *rest) for t, kind, *rest in changes(found, "age", "src")), key=str
    )
    assert changes(graph.diff("main", "dev", table="Knows")) == [(KNOWS, "insert", "ca")]


def test_a_diff_reads_only_tables_that_moved(spark: SparkSession, graph: OmniGraph) -> None:
    graph.create_branch("dev")
    graph.write({PERSON: people(spark, ("d", 4))}, branch="dev")
    edges = Path(graph.uri) / "edges"
    found = graph.diff("main", "dev")
    for file in edges.glob("*/data/*"):
        file.unlink()
    assert changes(found) == [(PERSON, "insert", "d")]


def test_a_diff_of_what_is_the_same_is_empty_and_has_the_columns(
    spark: SparkSession, graph: OmniGraph
) -> None:
    graph.create_branch("dev")
    same = graph.diff("main", "dev")
    assert same.count() == 0
    start = head(graph)
    graph.write({PERSON: people(spark, ("x", 1))}, mode="overwrite")
    graph.restore(start)
    restored = graph.diff(start, "main")
    assert restored.count() == 0
    assert same.schema.names == restored.schema.names


def test_doubled_rows_are_counted_in_a_diff(spark: SparkSession, graph: OmniGraph) -> None:
    start = head(graph)
    doubles = people(spark, ("a", 1), ("a", 1), ("b", 5), ("b", 6), ("n", 7), ("n", 7))
    graph.write({PERSON: doubles}, integrity="off")
    assert changes(graph.diff(start, "main"), "age") == [
        (PERSON, "insert", "a", 1),
        (PERSON, "insert", "a", 1),
        (PERSON, "insert", "b", 5),
        (PERSON, "insert", "b", 6),
        (PERSON, "insert", "n", 7),
        (PERSON, "insert", "n", 7),
    ]
    doubled = f"main@{head(graph)}"
    graph.write({PERSON: people(spark, ("a", 1), ("b", 2))}, mode="overwrite")
    found = changes(graph.diff(doubled, "main"), "age")
    assert found.count((PERSON, "delete", "a", 1)) == 2
    assert (PERSON, "delete", "b", 5) in found
    assert not [row for row in found if row[1].startswith("update")]


def test_a_table_that_is_new_or_gone_is_all_inserts_or_all_deletes(
    spark: SparkSession, graph: OmniGraph
) -> None:
    start = head(graph)
    companies = spark.createDataFrame([("x", 1.5)], "id STRING, age DOUBLE")
    graph.write({"node:Company": companies})
    found = graph.diff(start, "main")
    assert changes(found, "age__double") == [("node:Company", "insert", "x", 1.5)]
    assert changes(graph.diff("main", start), "age__double") == [
        ("node:Company", "delete", "x", 1.5)
    ]
    with pytest.raises(TableNotFoundError, match="OMNIGRAPH_TABLE_NOT_FOUND"):
        graph.diff(start, "main", table="Nope")


def test_maps_structs_and_blobs_are_compared_by_value(
    spark: SparkSession, local_store: Store
) -> None:
    made = OmniGraph.for_path(spark, local_store.uri("types"))
    schema = "id STRING, m MAP<STRING,INT>, s STRUCT<x: INT, y: STRING>, pic BINARY, d DOUBLE"
    one = [("a", {"k": 1, "l": 2}, (1, "y"), b"A", float("nan")), ("b", None, None, b"B", 1.0)]
    two = [("a", {"l": 2, "k": 1}, (1, "y"), b"A", float("nan")), ("b", {"k": 3}, None, b"C", 1.0)]
    made.write({"node:T": spark.createDataFrame(one, schema)})
    start = head(made)
    made.write({"node:T": spark.createDataFrame(two, schema)}, mode="overwrite")
    found = made.diff(start, "main").select("_change_type", "id", "m", "s", "pic").collect()
    assert sorted((tuple(row) for row in found), key=str) == [
        ("update_postimage", "b", {"k": 3}, None, bytearray(b"C")),
        ("update_preimage", "b", None, None, bytearray(b"B")),
    ]


def test_a_zero_of_another_sign_differs_wherever_it_stands(
    spark: SparkSession, local_store: Store
) -> None:
    made = OmniGraph.for_path(spark, local_store.uri("zeros"))
    schema = "id STRING, d DOUBLE, v ARRAY<FLOAT>, s STRUCT<x: DOUBLE>, m MAP<STRING,DOUBLE>"
    zeros: list[Any] = [0.0, [0.0], (0.0,), {"k": 0.0}]
    signed: list[Any] = [-0.0, [-0.0], (-0.0,), {"k": -0.0}]
    names = ["d", "v", "s", "m"]
    rows = [(one, *zeros) for one in (*names, "same")]
    made.write({"node:T": spark.createDataFrame(rows, schema)})
    start = head(made)
    later = [(one, *zeros[:at], signed[at], *zeros[at + 1 :]) for at, one in enumerate(names)]
    made.write({"node:T": spark.createDataFrame([*later, rows[-1]], schema)}, mode="merge")
    found = made.diff(start, "main", "T").collect()
    assert sorted((row.id, row._change_type) for row in found) == [
        (one, f"update_{side}image") for one in sorted(names) for side in ("post", "pre")
    ]
    assert {str(row.d) for row in found if row.id == "d"} == {"0.0", "-0.0"}


def test_a_diff_of_the_engines_own_branches_agrees_with_its_exports(
    spark: SparkSession, local_store: Store
) -> None:
    root = local_store.fixture("v2", "rich")
    exported = {name: graphs.export_of("v2", "rich", name) for name in ("main", "dev")}
    ids_of = {
        name: {
            (key, row["id"])
            for key, rows in export.tables.items()
            if not key.startswith("edge")
            for row in rows
            if "id" in row
        }
        for name, export in exported.items()
    }
    made = OmniGraph.for_path(spark, root)
    found = changes(made.diff("main", "dev"))
    net = dict.fromkeys(exported["main"].tables, 0)
    for key, kind, _ in found:
        net[key] = net.get(key, 0) + {"insert": 1, "delete": -1}.get(kind, 0)
    counts = {name: export.row_counts for name, export in exported.items()}
    assert {k: n for k, n in net.items() if n} == {
        key: counts["dev"].get(key, 0) - counts["main"].get(key, 0)
        for key in {*counts["dev"], *counts["main"]}
        if counts["dev"].get(key, 0) != counts["main"].get(key, 0)
    }
    inserted = {(key, one) for key, kind, one in found if kind == "insert"}
    assert inserted >= ids_of["dev"] - ids_of["main"]
    assert Storage.at(root).root == made.uri
