"""The change feed: what each publish changed, against a comparison of the snapshots by hand."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from pyspark.sql import DataFrame, Row, SparkSession

from omnigraph_spark import OmniGraph
from omnigraph_spark.errors import OptionError, TableNotFoundError, VersionNotFoundError
from omnigraph_spark.history import commits
from omnigraph_spark.manifest.snapshot import load
from omnigraph_spark.storage import Storage
from tests.support.stores import Store

PERSON, KNOWS = "node:Person", "edge:Knows"


def people(spark: SparkSession, *rows: tuple[str, int]) -> DataFrame:
    return spark.createDataFrame([*rows], "id STRING, age INT")


def head(graph: OmniGraph, branch: str = "main") -> int:
    return load(Storage.at(graph.uri), branch).graph_version


@pytest.fixture
def graph(spark: SparkSession, local_store: Store) -> OmniGraph:
    """Every kind of publish: created, appended twice, overwritten, restored, merged."""
    made = OmniGraph.for_path(spark, local_store.uri("graph"))
    knows = spark.createDataFrame([("ab", "a", "b")], "id STRING, src STRING, dst STRING")
    made.write(
        {PERSON: people(spark, ("a", 1), ("b", 2)), KNOWS: knows},
        endpoints="Knows: Person -> Person",
    )
    made.write({PERSON: people(spark, ("c", 3))}, actor="me")
    made.write({PERSON: people(spark, ("d", 4))})
    made.create_branch("dev")
    made.write({PERSON: people(spark, ("e", 5))}, branch="dev")
    made.write({PERSON: people(spark, ("a", 10), ("c", 3))}, mode="overwrite")
    made.restore(head(made) - 1)
    made.merge("dev")
    return made


def images(rows: list[Row]) -> dict[str, Any]:
    return {row.id: row.asDict() for row in rows}


def by_hand(graph: OmniGraph, before: int, after: int, branch: str) -> list[tuple[str, str, int]]:
    """Compare two versions of Person row by row, without Spark's joins."""
    sides = []
    for version in (before, after):
        tables = {row.table_key for row in graph.tables(branch=branch, version=version).collect()}
        there = PERSON in tables
        sides.append(
            images(graph.table(PERSON, branch=branch, version=version).collect()) if there else {}
        )
    old, new = sides
    found = [("insert", i, new[i]["age"]) for i in new.keys() - old.keys()]
    found += [("delete", i, old[i]["age"]) for i in old.keys() - new.keys()]
    for i in old.keys() & new.keys():
        if old[i] != new[i]:
            found += [("update_preimage", i, old[i]["age"]), ("update_postimage", i, new[i]["age"])]
    return sorted(found)


@pytest.mark.parametrize("branch", ["main", "dev"])
def test_every_publish_has_the_changes_that_a_comparison_by_hand_finds(
    graph: OmniGraph, branch: str
) -> None:
    lineage = commits.read_commits(Storage.at(graph.uri), branch)
    feed = graph.changes(lineage[0].manifest_version, branch=branch, table=PERSON).collect()
    expected = {
        one.manifest_version: by_hand(graph, before.manifest_version, one.manifest_version, branch)
        for before, one in pairwise(lineage)
    }
    found: dict[int, list[tuple[str, str, int]]] = {version: [] for version in expected}
    for row in feed:
        found[row._commit_version].append((row._change_type, row.id, row.age))
    assert {version: sorted(rows) for version, rows in found.items()} == expected
    assert sum(len(rows) for rows in expected.values()) > 4
    told = {row._commit_version: (row._commit_id, row._commit_timestamp) for row in feed}
    known = {one.manifest_version: one for one in lineage}
    assert {v: commit_id for v, (commit_id, _) in told.items()} == {
        version: known[version].graph_commit_id for version in told
    }
    assert all(time.timestamp() > 1e9 for _, time in told.values())


def test_both_ends_count_and_all_tables_are_in_one_feed(graph: OmniGraph) -> None:
    lineage = commits.read_commits(Storage.at(graph.uri))
    first, second, third = (one.manifest_version for one in lineage[1:4])
    found = graph.changes(first, second)
    assert found.columns[:5] == [
        "_table",
        "_change_type",
        "_commit_version",
        "_commit_timestamp",
        "_commit_id",
    ]
    rows = sorted((r._table, r._commit_version, r.id, r.src) for r in found.collect())
    assert rows == [
        (KNOWS, first, "ab", "a"),
        (PERSON, first, "a", None),
        (PERSON, first, "b", None),
        (PERSON, second, "c", None),
    ]
    assert [r.id for r in graph.changes(second, second).collect()] == ["c"]
    by_commit = graph.changes(lineage[2].graph_commit_id, lineage[3].graph_commit_id)
    assert sorted(r.id for r in by_commit.collect()) == ["c", "d"]
    assert sorted(r.id for r in graph.changes(second, third, table="Person").collect()) == [
        "c",
        "d",
    ]


def test_what_isnt_there_is_refused(graph: OmniGraph) -> None:
    with pytest.raises(VersionNotFoundError, match="no graph version 99"):
        graph.changes(99)
    with pytest.raises(OptionError, match="The end is before the start"):
        graph.changes(3, 2)
    with pytest.raises(OptionError, match="which branch main never had"):
        graph.changes(commits.read_commits(Storage.at(graph.uri), "dev")[-1].graph_commit_id)
    with pytest.raises(TableNotFoundError, match="Nope"):
        graph.changes(2, table="Nope")
