"""Deletes by id without Spark: rows, edges at deleted nodes, rounds that are lost to others."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pytest

from omnigraph_spark import _faults
from omnigraph_spark.errors import IntegrityError, TableNotFoundError
from omnigraph_spark.manifest.snapshot import load
from omnigraph_spark.storage.store import Storage
from omnigraph_spark.write.commit.commit import Committed, commit
from omnigraph_spark.write.plan import WritePlan
from omnigraph_spark.write.tasks.stage import StagedTable, from_json, stage, to_json
from tests.support.writes import (
    COMPANY,
    EDGE_SCHEMA,
    KNOWS,
    PERSON,
    Died,
    die,
    ids,
    new_graph,
    once,
    plan,
    records,
    write,
)


@pytest.fixture
def storage(tmp_path: Path) -> Storage:
    """A graph of persons a to e and x, and edges e0: a->b, e1: b->c, e2: d->d."""
    found = new_graph(Storage.at(str(tmp_path / "g")))
    write(found, {PERSON: list("abcdex")})
    edges(found, [("e0", "a", "b"), ("e1", "b", "c"), ("e2", "d", "d")])
    return found


def edges(storage: Storage, found: Sequence[tuple[str, str, str]], **more: str) -> Committed:
    columns = [pa.array([row[at] for row in found]) for at in range(3)]
    weights = pa.array([1.0] * len(found))
    batch = pa.RecordBatch.from_arrays([*columns, weights], schema=EDGE_SCHEMA)
    planned = plan(storage, [KNOWS], **more)
    return commit(planned, stage(planned, [(KNOWS, batch)]))


def named(key: str, found: Sequence[str]) -> tuple[str, pa.RecordBatch]:
    return key, pa.RecordBatch.from_pydict({"id": pa.array(found, pa.utf8())})


def staged(planned: WritePlan, *tasks: tuple[str, Sequence[str]]) -> list[StagedTable]:
    return [
        one
        for key, found in tasks
        for one in from_json(to_json(stage(planned, [named(key, found)])))
    ]


def planned_delete(storage: Storage, *keys: str, **more: str) -> WritePlan:
    return plan(storage, keys, new={}, writeMode="delete", **more)


def delete(storage: Storage, *tasks: tuple[str, Sequence[str]], **more: str) -> Committed:
    planned = planned_delete(storage, *{key: 0 for key, _ in tasks}, **more)
    return commit(planned, staged(planned, *tasks))


def test_rows_are_deleted_by_id_and_unknown_ids_are_no_error(storage: Storage) -> None:
    delete(storage, (PERSON, ["e", "nobody", "e"]), (PERSON, ["e", "x"]))
    assert ids(storage, PERSON) == ["a", "b", "c", "d", "first"]
    ours = load(storage).entry(PERSON).ours
    assert (ours["mode"], ours["rows_added"], ours["rows_removed"]) == ("delete", 0, 2)
    assert records(storage) == []


def test_a_delete_that_finds_nothing_publishes_nothing(storage: Storage) -> None:
    before = load(storage).graph_version
    assert delete(storage, (PERSON, ["nobody"])).skipped
    assert load(storage).graph_version == before


def test_a_table_can_be_emptied(storage: Storage) -> None:
    delete(storage, (KNOWS, ["first", "e0", "e1", "e2"]))
    assert ids(storage, KNOWS) == []
    edges(storage, [("again", "a", "b")])
    assert ids(storage, KNOWS) == ["again"]


def test_a_delete_of_a_table_that_is_not_there_is_refused(storage: Storage) -> None:
    with pytest.raises(TableNotFoundError, match="node:Nobody"):
        planned_delete(storage, "node:Nobody")


def test_edges_at_deleted_nodes_are_counted_and_named_and_nothing_goes(storage: Storage) -> None:
    before = load(storage).graph_version
    with pytest.raises(IntegrityError, match=r"leave dangling edges: 3 of edge:Knows") as e:
        delete(storage, (PERSON, ["b", "d"]))
    assert {"table": KNOWS, "id": "e0", "src": "a", "dst": "b"} in e.value.samples
    assert load(storage).graph_version == before
    assert records(storage) == []


def test_cascade_takes_the_edges_along_in_one_publish(storage: Storage) -> None:
    before = load(storage).graph_version
    delete(storage, (PERSON, ["b", "d"]), onDelete="cascade")
    assert load(storage).graph_version == before + 1
    assert ids(storage, PERSON) == ["a", "c", "e", "first", "x"]
    assert ids(storage, KNOWS) == ["first"]
    assert load(storage).entry(KNOWS).ours["rows_removed"] == 3


def test_edges_that_the_same_write_deletes_do_not_count(storage: Storage) -> None:
    delete(storage, (PERSON, ["b"]), (KNOWS, ["e0", "e1"]))
    assert (ids(storage, KNOWS), "b" in ids(storage, PERSON)) == (["e2", "first"], False)
    with pytest.raises(IntegrityError, match="leave dangling edges: 1 of"):
        delete(storage, (PERSON, ["d", "first"]), (KNOWS, ["first"]))


def test_nodes_of_another_type_may_go_though_an_edge_ends_at_their_id(storage: Storage) -> None:
    write(storage, {COMPANY: ["b"]})
    delete(storage, (COMPANY, ["b"]))
    assert ids(storage, COMPANY) == ["first"]


@pytest.mark.parametrize("on_delete", ["restrict", "cascade"])
@pytest.mark.parametrize("point", ["commit.before_table", "commit.before_publish"])
def test_an_edge_that_lands_meanwhile_never_dangles(
    storage: Storage, on_delete: str, point: str
) -> None:
    planned = planned_delete(storage, PERSON, onDelete=on_delete)
    ours = staged(planned, (PERSON, ["e"]))
    _faults.arm(point, once(lambda: edges(storage, [("late", "e", "a")], integrity="strict")))
    if on_delete == "restrict":
        with pytest.raises(IntegrityError, match="'late'"):
            commit(planned, ours)
        assert "e" in ids(storage, PERSON)
    else:
        commit(planned, ours)
        assert ("e" in ids(storage, PERSON), "late" in ids(storage, KNOWS)) == (False, False)
    _faults.disarm()


@pytest.mark.parametrize("point", ["commit.checked", "commit.before_publish"])
def test_an_edge_loses_its_end_to_a_delete_and_is_refused(storage: Storage, point: str) -> None:
    _faults.arm(point, once(lambda: delete(storage, (PERSON, ["e"]))))
    with pytest.raises(IntegrityError, match="'e'"):
        edges(storage, [("late", "e", "a")], integrity="strict")
    _faults.disarm()
    assert ("e" in ids(storage, PERSON), "late" in ids(storage, KNOWS)) == (False, False)


@pytest.mark.long
def test_rows_that_moved_meanwhile_are_found_again(storage: Storage) -> None:
    planned = planned_delete(storage, PERSON)
    ours = staged(planned, (PERSON, ["e", "x"]))
    write(storage, {PERSON: ["e"]}, writeMode="merge")
    write(storage, {PERSON: ["new"]})
    delete(storage, (PERSON, ["x"]))
    commit(planned, ours)
    assert ids(storage, PERSON) == ["a", "b", "c", "d", "first", "new"]


@pytest.mark.long
def test_a_dead_delete_is_rolled_back_by_the_next_write(storage: Storage) -> None:
    planned = planned_delete(storage, PERSON, onDelete="cascade")
    ours = staged(planned, (PERSON, ["b"]))
    _faults.arm("commit.before_publish", die)
    with pytest.raises(Died):
        commit(planned, ours)
    _faults.disarm()
    write(storage, {PERSON: ["next"], KNOWS: ["next"]})
    assert ids(storage, PERSON) == ["a", "b", "c", "d", "e", "first", "next", "x"]
    assert ids(storage, KNOWS) == ["e0", "e1", "e2", "first", "next"]


@pytest.mark.long
def test_a_branch_deletes_and_upserts_what_main_keeps(storage: Storage) -> None:
    write(storage, {PERSON: ["on-dev"]}, branch="dev", branchFrom="main")
    delete(storage, (PERSON, ["b"]), branch="dev", onDelete="cascade")
    write(storage, {PERSON: ["a", "new"]}, writeMode="merge", branch="dev")
    snapshot = load(storage, "dev")
    found = {}
    for key in (PERSON, KNOWS):
        entry = snapshot.entry(key)
        dataset = storage.dataset(entry.location, entry.table_branch, entry.table_version)
        found[key] = sorted(dataset.to_table(columns=["id"])["id"].to_pylist())
    assert found[PERSON] == ["a", "c", "d", "e", "first", "new", "on-dev", "x"]
    assert found[KNOWS] == ["e2", "first"]
    assert "b" in ids(storage, PERSON)
    assert ids(storage, KNOWS) == ["e0", "e1", "e2", "first"]
