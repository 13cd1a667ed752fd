"""Transactions, and write, audit, publish: many writes on the side become one publish, or nothing."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

from omnigraph_spark import OmniGraph
from omnigraph_spark.api.staging import Staged
from omnigraph_spark.errors import IntegrityError, MergeConflictError, OptionError, UnsupportedError
from omnigraph_spark.history import commits
from omnigraph_spark.manifest.snapshot import load
from omnigraph_spark.merge import restore
from omnigraph_spark.storage.store import Storage
from tests.support.writes import COMPANY, KNOWS, PERSON, ids, new_graph, write, write_options


@pytest.fixture
def store(tmp_path: Path) -> Storage:
    return new_graph(Storage.at(str(tmp_path / "g")), [PERSON, COMPANY, KNOWS])


@pytest.fixture
def graph(spark: SparkSession, store: Storage) -> OmniGraph:
    return OmniGraph.for_path(spark, store.root)


def people(spark: SparkSession, *names: str, age: int = 1) -> DataFrame:
    rows = [(name, name, age) for name in names]
    return spark.createDataFrame(rows, "id STRING, name STRING, age INT").coalesce(1)


def edges(spark: SparkSession, *ends: str) -> DataFrame:
    rows = [(pair, pair[0], pair[1]) for pair in ends]
    return spark.createDataFrame(rows, "id STRING, src STRING, dst STRING").coalesce(1)


def state(store: Storage) -> tuple[list[str], list[str], list[str]]:
    return ids(store, PERSON), ids(store, COMPANY), ids(store, KNOWS)


def versions(store: Storage) -> list[int]:
    return [one.manifest_version for one in commits.read_commits(store)]


def test_writes_of_every_kind_become_one_publish(
    spark: SparkSession, store: Storage, graph: OmniGraph
) -> None:
    before = state(store), versions(store)
    with graph.transaction(actor="ann") as t:
        writer = people(spark, "a", "b").write.format("omnigraph").mode("append")
        writer.options(**t.options).option("table", PERSON).save(graph.uri)
        t.write({PERSON: people(spark, "a", "c", age=9)}, mode="merge")
        t.write({KNOWS: edges(spark, "ab", "ac")})
        t.write({COMPANY: people(spark, "x")}, mode="overwrite")
        deleted = spark.createDataFrame([("ab",)], "id STRING").coalesce(1)
        t.write({KNOWS: deleted}, mode="delete")
        assert sorted(row.id for row in t.table(PERSON).collect()) == ["a", "b", "c", "first"]
        assert (state(store), versions(store)) == before
        write(store, {PERSON: ["rival"]})
    assert state(store) == (["a", "b", "c", "first", "rival"], ["x"], ["ac", "first"])
    assert len(versions(store)) == len(before[1]) + 2
    assert t.committed is not None
    assert [one.name for one in graph.branches()] == ["main"]
    assert commits.read_commits(store)[-1].actor_id == "ann"


def test_a_batch_is_published_once_and_an_exception_or_a_conflict_leaves_nothing(
    spark: SparkSession, store: Storage, graph: OmniGraph
) -> None:
    for attempt in range(2):
        with graph.transaction(txnAppId="loader", txnVersion=3) as t:
            t.write({PERSON: people(spark, "a")})
            writer = people(spark, "b").write.format("omnigraph").mode("append")
            writer.options(**t.options).option("table", PERSON).save(graph.uri)
        assert t.skipped == (attempt == 1)
    assert ids(store, PERSON) == ["a", "b", "first"]
    before = state(store), versions(store)
    with pytest.raises(RuntimeError, match="stop"), graph.transaction() as t:  # noqa: PT012
        t.write({PERSON: people(spark, "c")})
        raise RuntimeError("stop")
    with graph.transaction() as t:
        pass
    assert (state(store), versions(store)) == before
    with pytest.raises(MergeConflictError), graph.transaction() as t:  # noqa: PT012
        t.write({PERSON: people(spark, "a", age=5)}, mode="merge")
        write(store, {PERSON: ["x", "y", "a"]}, writeMode="merge")
    assert ids(store, PERSON) == ["a", "b", "first", "x", "y"]
    assert [one.name for one in graph.branches()] == ["main"]
    with pytest.raises(OptionError, match="go together"):
        graph.transaction(txnAppId="loader")
    for make in (graph.transaction, graph.stage):
        with pytest.raises(OptionError, match="graphFormat doesn't go with"):
            make(graphFormat=6)


def test_a_staged_graph_is_published_when_its_checks_pass_and_dropped_when_not(
    spark: SparkSession, store: Storage, graph: OmniGraph
) -> None:
    def few(staged: Staged) -> bool:
        return staged.table(PERSON).count() < 4

    version = load(store).graph_version
    with graph.stage(checks=[few]) as staged:
        staged.write({PERSON: people(spark, "a", "b")})
    assert staged.published is not None
    assert staged.published.fast_forward
    assert ids(store, PERSON) == ["a", "b", "first"]
    with pytest.raises(IntegrityError, match="check few"), graph.stage(checks=[few]) as staged:
        staged.write({PERSON: people(spark, "c")})
    assert ids(store, PERSON, version) == ["first"]
    by_hand = graph.stage().begin()
    by_hand.write({PERSON: people(spark, "d")})
    write(store, {COMPANY: ["rival"]})
    with pytest.raises(UnsupportedError, match="has moved"):
        by_hand.publish()
    by_hand.publish(fast_forward=False)
    assert state(store)[:2] == (["a", "b", "d", "first"], ["first", "rival"])
    assert [one.name for one in graph.branches()] == ["main"]


@pytest.mark.long
def test_a_change_feed_applied_span_by_span_makes_an_equal_graph(
    spark: SparkSession, store: Storage, graph: OmniGraph, tmp_path: Path
) -> None:
    copy = Storage.at(str(tmp_path / "copy"))
    replica = OmniGraph.for_path(spark, copy.root)
    start = load(store).graph_version
    write(store, {PERSON: ["a", "b", "c"], KNOWS: ["a", "b"], COMPANY: ["x"]})  # an edge a: a -> a
    write(store, {PERSON: ["new", "c", "a"]}, writeMode="merge")
    middle = load(store).graph_version
    write(store, {KNOWS: ["a"], PERSON: ["a"], COMPANY: ["x", "first"]}, writeMode="delete")
    write(store, {COMPANY: ["y", "first"]})
    write(store, {COMPANY: ["first", "z"]}, "overwrite", lastWriterWins="true")
    restore.restore(store, write_options(store, "overwrite"), str(middle))
    write(store, {PERSON: ["last", "first"]}, writeMode="merge")
    spans: list[tuple[int | str, int | None]] = [
        (1, start),
        (start + 1, middle),
        (middle + 1, None),
    ]
    for number, (first, last) in enumerate(spans):
        changes = graph.changes(first, last)
        for _ in range(2 if number == 1 else 1):
            with replica.transaction(txnAppId="replica", txnVersion=number) as t:
                t.apply(changes)
        if number == 1:
            assert t.skipped
    for key in (PERSON, COMPANY, KNOWS):
        assert rows(copy, key) == rows(store, key), key


def test_a_feed_whose_rows_of_a_table_all_went_again_makes_no_table_of_it(
    spark: SparkSession, tmp_path: Path
) -> None:
    store = new_graph(Storage.at(str(tmp_path / "source")), [PERSON])
    write(store, {COMPANY: ["x"]})
    write(store, {COMPANY: ["x"]}, writeMode="delete")
    copy = Storage.at(str(tmp_path / "copy"))
    with OmniGraph.for_path(spark, copy.root).transaction() as t:
        t.apply(OmniGraph.for_path(spark, store.root).changes(1))
    assert list(load(copy).tables) == [PERSON]
    assert rows(copy, PERSON) == rows(store, PERSON)


def rows(store: Storage, key: str) -> list[dict[str, object]]:
    entry = load(store).entry(key)
    table = store.dataset(entry.location, entry.table_branch, entry.table_version).to_table()
    found: list[dict[str, object]] = table.to_pylist()
    return sorted(found, key=lambda row: str(row["id"]))
