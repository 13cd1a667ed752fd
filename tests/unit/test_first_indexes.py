"""Tables get the engine's BTREE indices from the write that makes them worth it, once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from omnigraph_spark import _faults
from omnigraph_spark.manifest.snapshot import load
from omnigraph_spark.storage.store import Storage
from omnigraph_spark.write.commit import table_commit
from tests.format_checker import check_graph
from tests.support import writes
from tests.support.writes import KNOWS, PERSON, Died, die, ids, once


@pytest.fixture
def graph(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Storage]:
    monkeypatch.setattr(table_commit, "WORTH_ROWS", 10)
    yield Storage.at(str(tmp_path / "g"))
    _faults.disarm()


def some(name: str, count: int) -> list[str]:
    return [f"{name}{number}" for number in range(count)]


def indexes(graph: Storage, key: str) -> dict[str, int]:
    """Return the published indices of a table with the rows that each covers."""
    entry = load(graph).entry(key)
    dataset = graph.dataset(entry.location, None, entry.table_version)
    for index in dataset.describe_indices():
        assert index.index_type == "BTree"
        assert index.name == f"{index.field_names[0]}_idx"
    return {str(i.field_names[0]): int(i.num_rows_indexed) for i in dataset.describe_indices()}


def test_the_first_large_write_builds_them_in_its_own_publish(graph: Storage) -> None:
    writes.write(graph, {PERSON: some("p", 10), KNOWS: some("k", 12)})
    assert indexes(graph, PERSON) == {"id": 10}
    assert indexes(graph, KNOWS) == {"id": 12, "src": 12, "dst": 12}
    entry = load(graph).entry(KNOWS)
    dataset = graph.dataset(entry.location)
    assert int(dataset.version) == entry.table_version == 4
    assert "ScalarIndexQuery" in dataset.scanner(filter="src = 'k1'").explain_plan()
    assert check_graph(graph.root) == []


def test_small_and_empty_tables_get_none(graph: Storage) -> None:
    writes.write(graph, {PERSON: some("p", 9), KNOWS: []})
    assert indexes(graph, PERSON) == {}
    assert load(graph).version(PERSON) == 1


def test_a_table_that_begins_large_is_left_to_create_index(
    graph: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table_commit, "MOST_ROWS", 11)
    writes.write(graph, {PERSON: some("p", 12), KNOWS: some("k", 11)})
    assert indexes(graph, PERSON) == {}
    assert set(indexes(graph, KNOWS)) == {"id", "src", "dst"}


def test_the_append_that_makes_a_table_large_builds_them_and_no_later_one(graph: Storage) -> None:
    writes.write(graph, {PERSON: some("p", 9)})
    writes.write(graph, {PERSON: ["q"]})
    assert indexes(graph, PERSON) == {"id": 10}
    version = load(graph).version(PERSON)
    writes.write(graph, {PERSON: ["r"]})
    assert load(graph).version(PERSON) == version + 1
    assert indexes(graph, PERSON) == {"id": 10}
    assert check_graph(graph.root) == []


def test_an_index_that_is_there_is_not_built_again(graph: Storage) -> None:
    writes.write(graph, {PERSON: some("p", 12)})
    writes.write(graph, {PERSON: some("q", 3)}, "overwrite")
    version = load(graph).version(PERSON)
    writes.write(graph, {PERSON: some("r", 20)})
    assert load(graph).version(PERSON) == version + 1


def test_a_rival_that_lands_among_the_builds_is_never_adopted(
    graph: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    writes.write(graph, {PERSON: some("p", 9)})
    planned = writes.plan(graph, [PERSON])
    staged = writes.stage_rows(planned, {PERSON: ["q"]})
    from omnigraph_spark.write.commit.commit import commit

    _faults.arm("table.after_commit", once(lambda: writes.orphan(graph, PERSON, ["rival"])))
    commit(planned, staged)
    assert ids(graph, PERSON) == sorted([*some("p", 9), "q"])
    assert indexes(graph, PERSON) == {"id": 10}
    assert check_graph(graph.root) == []


@pytest.mark.parametrize("there", [0, 9])
def test_a_writer_that_dies_with_its_indices_leaves_the_table_as_it_was(
    graph: Storage, there: int
) -> None:
    if there:
        writes.write(graph, {PERSON: some("p", there)})
    else:
        writes.write(graph, {"node:Company": ["c"]})
    planned = writes.plan(graph, [PERSON])
    staged = writes.stage_rows(planned, {PERSON: some("dead", 10)})
    from omnigraph_spark.write.commit.commit import commit

    _faults.arm("commit.before_publish", die)
    with pytest.raises(Died):
        commit(planned, staged)
    _faults.disarm()
    writes.write(graph, {PERSON: ["next"]})
    assert ids(graph, PERSON) == sorted([*some("p", there), "next"])
    assert check_graph(graph.root, crashed=True) == []
