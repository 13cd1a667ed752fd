"""Merging branches: conflicts as a frame and a typed error, in this process and on executors.

What a merge decides is tested without Spark (tests/unit/test_merging.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from omnigraph_spark import OmniGraph, _faults
from omnigraph_spark.errors import (
    ExpectedVersionMismatch,
    MergeConflictError,
    SchemaMismatchError,
)
from omnigraph_spark.history import commits
from omnigraph_spark.manifest.snapshot import Snapshot, load
from omnigraph_spark.merge import merge
from omnigraph_spark.storage.store import Storage
from tests.format_checker import check_graph
from tests.support.stores import Store
from tests.support.writes import once

PERSON, KNOWS, COMPANY = "node:Person", "edge:Knows", "node:Company"
START = (("a", 1), ("b", 2), ("c", 3), ("d", 4))
Rows = Sequence[tuple[str, int | None]]


def people(spark: SparkSession, rows: Rows) -> DataFrame:
    return spark.createDataFrame([(i, age) for i, age in rows], "id STRING, age INT")


def knows(spark: SparkSession, *rows: tuple[str, str, str]) -> DataFrame:
    return spark.createDataFrame([*rows], "id STRING, src STRING, dst STRING")


@pytest.fixture(params=["here", "on executors"], autouse=True)
def where(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Merge as small merges do and as large ones do."""
    monkeypatch.setattr(merge, "BYTES_HERE", -1 if request.param == "on executors" else 16 << 20)


@pytest.fixture
def graph(spark: SparkSession, local_store: Store) -> OmniGraph:
    """Four people, one edge, and a branch `dev`."""
    made = OmniGraph.for_path(spark, local_store.uri("graph"))
    made.write(
        {PERSON: people(spark, START), KNOWS: knows(spark, ("ab", "a", "b"))},
        endpoints="Knows: Person -> Person",
    )
    made.create_branch("dev")
    return made


def put(graph: OmniGraph, branch: str, rows: Rows) -> None:
    """Make a branch's people exactly these, whatever becomes of edges."""
    frame = people(graph.spark, rows)
    graph.write({PERSON: frame}, mode="overwrite", branch=branch, integrity="off")


def found(graph: OmniGraph, branch: str = "main") -> list[tuple[Any, ...]]:
    return sorted(tuple(row) for row in graph.table(PERSON, branch=branch).collect())


def at(graph: OmniGraph, branch: str = "main") -> Snapshot:
    return load(Storage.at(graph.uri), branch)


def conflicts(frame: DataFrame) -> list[tuple[Any, ...]]:
    rows = frame.select("_table", "id", "conflict").collect()
    return sorted((tuple(row) for row in rows), key=str)


@pytest.mark.long
def test_rows_that_only_one_side_changed_are_taken_from_that_side(graph: OmniGraph) -> None:
    put(graph, "dev", [("a", 10), ("b", 2), ("d", 4), ("e", 5)])  # a changed, c gone, e new
    put(graph, "main", [("a", 1), ("b", 20), ("c", 3), ("d", 4), ("f", 6)])  # b changed, f new
    edges = at(graph).entry(KNOWS)
    dev = commits.head(Storage.at(graph.uri), "dev")
    main = commits.head(Storage.at(graph.uri))
    assert dev is not None and main is not None  # noqa: PT018  (for the type checker)
    done = graph.merge("dev", actor="me")
    assert found(graph) == [("a", 10), ("b", 20), ("d", 4), ("e", 5), ("f", 6)]
    assert (done.tables, done.dropped, done.fast_forward) == ((PERSON,), (), False)
    assert at(graph).entry(KNOWS) == edges
    head = commits.head(Storage.at(graph.uri))
    assert head is not None
    assert (head.parent_commit_id, head.merged_parent_commit_id) == (
        main.graph_commit_id,
        dev.graph_commit_id,
    )
    assert (head.graph_commit_id, head.actor_id) == (done.committed.publish_id, "me")  # type: ignore[union-attr]
    assert at(graph).entry(PERSON).ours["merged_parent"] == dev.graph_commit_id
    assert found(graph, "dev") == [("a", 10), ("b", 2), ("d", 4), ("e", 5)]
    assert check_graph(graph.uri) == []


def test_conflicts_are_counted_shown_and_nothing_is_written(graph: OmniGraph) -> None:
    put(graph, "dev", [("a", 10), ("b", 2), ("d", 40), ("n", 1), ("ok", 1)])
    put(graph, "main", [("a", 11), ("b", 2), ("c", 30), ("n", 2)])
    before = at(graph)
    with pytest.raises(MergeConflictError, match="OMNIGRAPH_MERGE_CONFLICT") as caught:
        graph.merge("dev")
    assert caught.value.conflicts == {
        (PERSON, "DeleteVsUpdate"): 2,
        (PERSON, "DivergentInsert"): 1,
        (PERSON, "DivergentUpdate"): 1,
    }
    assert at(graph) == before
    dry = graph.merge("dev", dry_run=True)
    assert dry.committed is None
    assert conflicts(dry.conflict_rows) == [
        (PERSON, "a", "DivergentUpdate"),
        (PERSON, "c", "DeleteVsUpdate"),
        (PERSON, "d", "DeleteVsUpdate"),
        (PERSON, "n", "DivergentInsert"),
    ]
    (images,) = dry.conflict_rows.where("id = 'a'").select("base", "ours", "theirs").collect()
    assert tuple(images) == ('[{"age":1}]', '[{"age":11}]', '[{"age":10}]')
    assert at(graph) == before


@pytest.mark.long
def test_a_target_that_hasnt_moved_becomes_as_the_source(graph: OmniGraph) -> None:
    put(graph, "dev", [("a", 10), ("e", 5)])
    graph.write({COMPANY: people(graph.spark, [("x", 1)])}, branch="dev")
    graph.write({KNOWS: knows(graph.spark, ("ea", "e", "a"))}, branch="dev", mode="overwrite")
    done = graph.fast_forward("dev")
    assert (done.fast_forward, done.tables) == (True, (KNOWS, COMPANY, PERSON))
    assert found(graph) == [("a", 10), ("e", 5)]
    assert graph.table(COMPANY).count() == 1
    assert graph.diff("dev", "main").count() == 0
    assert check_graph(graph.uri) == []


@pytest.mark.long
def test_columns_that_one_side_changed_are_taken_with_the_rows_of_both(graph: OmniGraph) -> None:
    graph.rename_property(PERSON, "age", "years", branch="dev")
    graph.add_property(PERSON, "nick", "String?", branch="dev")
    new = graph.spark.createDataFrame(
        [("a", 10, "al"), ("d2", 7, "dee")], "id STRING, years INT, nick STRING"
    )
    graph.write({PERSON: new}, writeMode="merge", branch="dev")
    graph.write({PERSON: people(graph.spark, [("b", 20), ("m", 6)])}, writeMode="merge")
    assert graph.merge("dev", dry_run=True).tables == (PERSON,)
    assert graph.table(PERSON).columns == ["id", "age"]
    graph.merge("dev")
    rows = graph.table(PERSON).select("id", "years", "nick").collect()
    assert sorted(map(tuple, rows)) == [
        ("a", 10, "al"),
        ("b", 20, None),
        ("c", 3, None),
        ("d", 4, None),
        ("d2", 7, "dee"),
        ("m", 6, None),
    ]
    graph.drop_property(PERSON, "nick")
    graph.write(
        {
            PERSON: graph.spark.createDataFrame(
                [("c", "cee"), ("n", "nee")], "id STRING, nick STRING"
            )
        },
        writeMode="merge",
        branch="dev",
    )
    with pytest.raises(SchemaMismatchError, match="main dropped nick") as refused:
        graph.merge("dev")
    assert refused.value.samples == ["c", "n"]  # type: ignore[attr-defined]


def test_an_edge_whose_end_the_other_side_deleted_is_an_orphan(graph: OmniGraph) -> None:
    edges = knows(graph.spark, ("cd", "c", "d"), ("xx", "x", "x"))
    graph.write({KNOWS: edges}, branch="dev", integrity="off")
    put(graph, "main", [("a", 1), ("b", 2), ("d", 4)])
    with pytest.raises(MergeConflictError, match="2 OrphanEdge in edge:Knows") as caught:
        graph.merge("dev", resolution="theirs")
    assert conflicts(caught.value.rows) == [
        (KNOWS, "cd", "OrphanEdge"),
        (KNOWS, "xx", "OrphanEdge"),
    ]


def test_doubled_ids_that_a_source_brings_are_refused(graph: OmniGraph) -> None:
    doubled = people(graph.spark, [("z", 1), ("z", 2)])
    graph.write({PERSON: doubled}, branch="dev", integrity="off")
    graph.write({PERSON: people(graph.spark, [("f", 6)])})
    for resolution in ("fail", "theirs"):
        dry = graph.merge("dev", dry_run=True, resolution=resolution)
        assert dry.conflicts == {(PERSON, "UniqueViolation"): 1}


def test_a_rival_that_publishes_to_the_target_refuses_the_merge(graph: OmniGraph) -> None:
    put(graph, "dev", [*START, ("e", 5)])
    rival = once(lambda: graph.write({KNOWS: knows(graph.spark, ("bc", "b", "c"))}))
    _faults.arm("commit.entered", rival)
    try:
        with pytest.raises(ExpectedVersionMismatch, match="edge:Knows"):
            graph.merge("dev")
    finally:
        _faults.disarm()
    assert found(graph) == sorted(START)
    assert sorted(r.id for r in graph.table(KNOWS).collect()) == ["ab", "bc"]


def test_the_engines_own_merge_is_seen_as_a_common_commit(
    spark: SparkSession, local_store: Store
) -> None:
    made = OmniGraph.for_path(spark, local_store.fixture("v2", "rich"))
    merged = [c for c in commits.read_commits(Storage.at(made.uri)) if c.merged_parent_commit_id]
    assert len(merged) == 1
    dry = made.merge("feature/merged", dry_run=True)
    assert dry.base_commit == merged[0].merged_parent_commit_id
    assert (dry.tables, dry.conflicts) == ((), {})
