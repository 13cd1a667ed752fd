"""The change feed through Spark: as option, from SQL and from OmniGraph, against comparisons by hand."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, Row, SparkSession

from omnigraph_spark import OmniGraph
from omnigraph_spark.errors import (
    OptionError,
    SchemaMismatchError,
    TableNotFoundError,
    UnsupportedError,
    VersionNotFoundError,
)
from omnigraph_spark.history import commits
from omnigraph_spark.maintenance import optimize
from omnigraph_spark.manifest.snapshot import load as load_snapshot
from omnigraph_spark.merge import restore
from omnigraph_spark.refs import branches, refs, tags
from omnigraph_spark.storage.store import Storage
from tests.support.frames import load, nothing_written, options_of, placed, refused, storage_of
from tests.support.stores import Store
from tests.support.writes import COMPANY, KNOWS, PERSON, new_graph, write, write_options

pytestmark = pytest.mark.long

LEADING = ["_table", "_change_type", "_commit_version", "_commit_timestamp", "_commit_id"]


def head(graph: OmniGraph, branch: str = "main") -> int:
    return load_snapshot(storage_of(graph.uri), branch).graph_version


@pytest.fixture(scope="module")
def graph(spark_session: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> OmniGraph:
    """Every kind of publish: created, appended, overwritten, restored, compacted, merged."""
    storage = new_graph(Storage.at(str(tmp_path_factory.mktemp("feed") / "g")), [PERSON, KNOWS])
    write(storage, {PERSON: ["a", "b"], KNOWS: ["ab"]}, actor="me")
    write(storage, {PERSON: ["c"]})
    write(storage, {PERSON: ["d"]})
    branches.create_branch(storage, "dev", refs.named(storage, "main"))
    write(storage, {PERSON: ["e"], COMPANY: ["x"]}, branch="dev")
    write(storage, {PERSON: ["b", "a", "first"]}, "overwrite")
    restore.restore(storage, write_options(storage), str(load_snapshot(storage).graph_version - 1))
    optimize.optimize(storage, "main", None, optimize.run_here)
    made = OmniGraph.for_path(spark_session, storage.root)
    made.merge("dev")
    tags.create_tag(storage, "now", refs.named(storage, "main"))
    return made


def images(rows: list[Row]) -> dict[str, Any]:
    return {row.id: row.asDict() for row in rows}


def feed(spark: SparkSession, graph: OmniGraph, **options: str) -> DataFrame:
    return load(spark, graph.uri, readChangeFeed="true", **options)


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
    lineage = commits.read_commits(storage_of(graph.uri), branch)
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
    lineage = commits.read_commits(storage_of(graph.uri))
    first, second, third = (one.manifest_version for one in lineage[2:5])
    found = graph.changes(first, second)
    assert found.columns == [*LEADING, "id", "src", "dst", "name", "age", "w"]
    rows = sorted((r._table, r._commit_version, r.id, r.src) for r in found.collect())
    assert rows == [
        (KNOWS, first, "ab", "ab"),
        (PERSON, first, "a", None),
        (PERSON, first, "b", None),
        (PERSON, second, "c", None),
    ]
    assert [r.id for r in graph.changes(second, second).collect()] == ["c"]
    by_commit = graph.changes(lineage[3].graph_commit_id, lineage[4].graph_commit_id)
    assert sorted(r.id for r in by_commit.collect()) == ["c", "d"]
    assert sorted(r.id for r in graph.changes(second, third, table="Person").collect()) == [
        "c",
        "d",
    ]
    time = lineage[3].created_at.isoformat() + "Z"
    assert [r.id for r in graph.changes(time, time).collect()] == ["c"]


def test_the_option_sql_and_omnigraph_tell_the_same(spark: SparkSession, graph: OmniGraph) -> None:
    start = str(commits.read_commits(storage_of(graph.uri))[1].manifest_version)
    expected = sorted(map(str, graph.changes(start, branch="dev").collect()))
    assert len(expected) > 4
    by_option = feed(spark, graph, startingVersion=start, branch="dev")
    assert by_option.schema == graph.changes(start, branch="dev").schema
    assert sorted(map(str, by_option.collect())) == expected
    options = f"path '{graph.uri}', branch 'dev', readChangeFeed 'true', startingVersion '{start}'"
    spark.sql(f"CREATE TEMPORARY VIEW feed_view USING omnigraph OPTIONS ({options})")
    assert sorted(map(str, spark.table("feed_view").collect())) == expected
    spark.sql(f"CREATE TABLE feed_table USING omnigraph OPTIONS ({options})")
    try:
        assert sorted(map(str, spark.table("feed_table").collect())) == expected
        told = spark.sql(
            "SELECT _change_type, count(*) AS n FROM feed_table WHERE _table = 'node:Person'"
            " GROUP BY _change_type"
        ).collect()
        assert {row._change_type: row.n for row in told} == {"insert": 6}
        with refused(UnsupportedError, "isn't a whole table"), nothing_written(graph.uri):
            spark.sql("INSERT INTO feed_table SELECT * FROM feed_view")
    finally:
        spark.sql("DROP TABLE feed_table")
        spark.sql("DROP VIEW feed_view")


def test_a_feed_is_pinned_when_it_is_loaded(spark: SparkSession, tmp_path: Path) -> None:
    storage = new_graph(Storage.at(str(tmp_path / "g")), [PERSON])
    made = OmniGraph.for_path(spark, storage.root)
    frame = made.changes(2)
    write(storage, {PERSON: ["later"]})
    assert [row.id for row in frame.collect()] == ["first"]
    assert frame.count() == 1
    assert made.changes(2).count() == 2


def test_a_schema_may_choose_columns_and_no_others(spark: SparkSession, graph: OmniGraph) -> None:
    reader = spark.read.format("omnigraph").option("readChangeFeed", "true")
    reader = reader.option("startingTimestamp", "2000-01-01T00:00:00Z")
    chosen = reader.schema("id STRING, _change_type STRING").load(graph.uri)
    assert chosen.columns == ["id", "_change_type"]
    assert chosen.where("_change_type = 'insert'").count() >= 7
    with refused(SchemaMismatchError, "the change feed doesn't have"):
        reader.schema("nope STRING").load(graph.uri).collect()


def test_a_feed_on_every_store_has_inserts_and_both_images(
    spark: SparkSession, store: Store
) -> None:
    uri = placed(store)
    storage = new_graph(storage_of(uri), [PERSON])
    write(storage, {PERSON: ["a", "b"]})
    version = write(storage, {PERSON: ["b", "first"]}, "overwrite").graph_version
    found = load(spark, uri, readChangeFeed="true", startingVersion=str(version), table="Person")
    assert sorted((r._change_type, r.id, r.age) for r in found.collect()) == [
        ("delete", "a", 0),
        ("update_postimage", "b", 0),
        ("update_postimage", "first", 1),
        ("update_preimage", "b", 1),
        ("update_preimage", "first", 0),
    ]
    assert options_of(uri) == dict(store.options)


def test_what_isnt_there_is_refused(spark: SparkSession, graph: OmniGraph) -> None:
    with pytest.raises(VersionNotFoundError, match="no graph version 99"):
        graph.changes(99)
    with pytest.raises(OptionError, match="The end is before the start"):
        graph.changes(3, 2)
    with pytest.raises(OptionError, match="which branch main never had"):
        graph.changes(commits.read_commits(storage_of(graph.uri), "dev")[-1].graph_commit_id)
    with pytest.raises(TableNotFoundError, match="Nope"):
        graph.changes(2, table="Nope")
    with refused(OptionError, "has no start"):
        feed(spark, graph).collect()
    with refused(OptionError, "versionAsOf doesn't go with readChangeFeed"):
        feed(spark, graph, startingVersion="1", versionAsOf="2")
    with refused(OptionError, "startingTimestamp has no time zone"):
        feed(spark, graph, startingTimestamp="2024-01-01T00:00:00")
    with refused(OptionError, "readChangeFeed is for reading"), nothing_written(graph.uri):
        graph.table(PERSON).write.format("omnigraph").option("table", PERSON).option(
            "readChangeFeed", "true"
        ).mode("append").save(graph.uri)
