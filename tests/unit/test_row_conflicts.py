"""Upserts and deletes of frames that were read conflict by rows: others' changes of their rows."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from omnigraph_spark import _faults, from_spark
from omnigraph_spark.errors import ExpectedVersionMismatch, RowConflictError
from omnigraph_spark.options import WriteOptions, parse
from omnigraph_spark.spark import frame_plan
from omnigraph_spark.storage.store import Storage
from omnigraph_spark.write.commit.commit import commit
from omnigraph_spark.write.tasks.stage import from_json, stage, to_json
from tests.support.plain_writes import batch, read, rows, save
from tests.support.writes import once

P, C = "node:Person", "node:Company"
MERGE: dict[str, Any] = {"table": P, "writeMode": "merge"}
DELETE: dict[str, Any] = {"table": P, "writeMode": "delete"}
INT = pa.int32()


def people(*ids: str, n: int = 0) -> dict[str, Any]:
    return {"id": list(ids), "n": pa.array([n] * len(ids), INT)}


@pytest.fixture
def root(tmp_path: Path) -> str:
    where = str(tmp_path / "g")
    save(where, people("a", "b", "c", "d"), table=P)
    save(where, people("x"), table=C)
    return where


def others(root: str, ids: str, n: int) -> None:
    """Upsert rows as another write does that read nothing."""
    save(root, people(*ids, n=n), **MERGE)


@pytest.mark.long
def test_an_upsert_is_not_refused_for_rows_that_it_does_not_name(root: str) -> None:
    frame = read(root, table=P)
    others(root, "b", 5)
    save(root, people("z"), table=P)
    save(root, {"id": ["d"]}, **DELETE)
    save(root, people("a", "new", n=1), schema=frame, **MERGE)
    assert rows(root, P) == [("a", 1), ("b", 5), ("c", 0), ("new", 1), ("z", 0)]


@pytest.mark.long
@pytest.mark.parametrize(
    ("change", "ids"),
    [
        (lambda root: others(root, "bc", 5), "b"),
        (lambda root: save(root, {"id": ["b"]}, **DELETE), "b"),
        (lambda root: others(root, "z", 5), "z"),
        (lambda root: save(root, people("b", "z", n=4), table=P, overwrite=True), "ab"),
    ],
    ids=["changed", "deleted", "added", "overwritten"],
)
def test_an_upsert_of_a_row_that_others_changed_is_refused_and_names_it(
    root: str, change: Any, ids: str
) -> None:
    frame = read(root, table=P)
    change(root)
    before = rows(root, P)
    with pytest.raises(RowConflictError) as raised:
        save(root, people(*ids, n=1), schema=frame, **MERGE)
    error = raised.value
    assert (error.table_key, list(error.samples), error.count) == (P, list(ids), len(ids))
    assert "Read the table again" in str(error)
    assert "lastWriterWins" in str(error)
    back = from_spark(RuntimeError(str(error)))
    assert isinstance(back, RowConflictError)
    assert isinstance(back, ExpectedVersionMismatch)
    assert (back.table_key, back.count) == (P, len(ids))
    assert rows(root, P) == before
    save(root, people(*ids, n=1), schema=frame, lastWriterWins="true", **MERGE)
    assert dict.fromkeys(ids, 1).items() <= dict(rows(root, P)).items()


@pytest.mark.long
def test_a_delete_of_a_row_that_others_changed_is_refused_and_of_another_is_not(root: str) -> None:
    frame = read(root, table=P)
    others(root, "b", 5)
    with pytest.raises(RowConflictError, match="'b'"):
        save(root, {"id": ["a", "b"]}, schema=frame, **DELETE)
    save(root, {"id": ["a", "c"]}, schema=frame, **DELETE)
    assert rows(root, P) == [("b", 5), ("d", 0)]


@pytest.mark.long
def test_the_earlier_writes_of_a_frame_are_its_own(root: str) -> None:
    frame = read(root, table=P)
    save(root, people("a", "new", n=1), schema=frame, **MERGE)
    save(root, {"id": ["b"]}, schema=frame, **DELETE)
    others(root, "d", 7)
    save(root, people("a", "b", "new", n=2), schema=frame, **MERGE)
    assert rows(root, P) == [("a", 2), ("b", 2), ("c", 0), ("d", 7), ("new", 2)]
    others(root, "a", 9)
    with pytest.raises(RowConflictError, match=r"1 row of node:Person .* id 'a' "):
        save(root, people("a", "b", "new", n=3), schema=frame, **MERGE)


def test_another_load_of_the_same_version_is_another_frame(root: str) -> None:
    one, two = read(root, table=P), read(root, table=P)
    save(root, people("a", n=1), schema=one, **MERGE)
    with pytest.raises(RowConflictError, match="'a'"):
        save(root, people("a", n=2), schema=two, **MERGE)
    save(root, people("b", n=2), schema=two, **MERGE)


def test_a_frame_of_one_table_expects_nothing_of_another(root: str) -> None:
    frame = read(root, table=P)
    save(root, people("x", n=4), table=C, writeMode="merge")
    save(root, people("x", n=5), schema=frame, table=C, writeMode="merge")
    assert rows(root, C) == [("x", 5)]


def test_a_whole_graph_frame_conflicts_by_the_rows_of_each_table(root: str) -> None:
    frame = read(root)
    others(root, "b", 5)
    whole = {"_table": [P, C], "id": ["a", "x"], "n": pa.array([1, 1], INT)}
    save(root, whole, schema=frame, writeMode="merge")
    assert (rows(root, P)[0], rows(root, C)) == (("a", 1), [("x", 1)])
    with pytest.raises(RowConflictError, match="node:Person.*'b'"):
        save(root, {**whole, "id": ["b", "x"]}, schema=frame, writeMode="merge")


@pytest.mark.long
def test_changes_that_leave_the_values_are_no_conflict(root: str) -> None:
    frame = read(root, table=P)
    others(root, "a", 8)
    others(root, "a", 0)
    save(root, people("a", "b", "c", "d", "e"), table=P, overwrite=True)
    save(root, people("a", "b", n=1), schema=frame, **MERGE)
    assert rows(root, P)[:2] == [("a", 1), ("b", 1)]


@pytest.mark.long
def test_a_property_that_was_added_is_no_conflict_until_it_is_filled(root: str) -> None:
    frame = read(root, table=P)
    wide = {"id": ["q"], "n": pa.array([0], INT), "note": ["hello"]}
    save(root, wide, table=P, mergeSchema="true")
    save(root, people("a", n=1), schema=frame, **MERGE)
    save(root, {"id": ["b"], "note": ["filled"]}, **MERGE)
    with pytest.raises(RowConflictError, match="'b'"):
        save(root, people("b", n=1), schema=frame, **MERGE)


@pytest.mark.long
@pytest.mark.parametrize("mode", ["merge", "delete"])
@pytest.mark.parametrize("point", ["commit.entered", "commit.before_publish"])
def test_a_write_between_the_tasks_and_the_publish_conflicts_by_rows_too(
    root: str, point: str, mode: str
) -> None:
    def race(theirs: str, ours: str) -> None:
        frame = read(root, table=P)
        _faults.arm(point, once(lambda: others(root, theirs, 5)))
        columns = people(*ours, n=1) if mode == "merge" else {"id": [*ours]}
        save(root, columns, schema=frame, table=P, writeMode=mode)

    with pytest.raises(RowConflictError, match="'b'"):
        race("b", "ab")
    race("c", "a")
    assert dict(rows(root, P)).get("a") == (1 if mode == "merge" else None)
    assert dict(rows(root, P))["c"] == 5


@pytest.mark.long
def test_on_a_branch_rows_count_from_the_branch_that_was_read(root: str) -> None:
    from omnigraph_spark.refs import branches, refs

    storage = Storage.at(root)
    branches.ensure_branch(storage, "dev", refs.named(storage, "main"))
    frame = read(root, table=P, branch="dev")
    others(root, "a", 5)  # on main
    save(root, people("b", n=6), branch="dev", **MERGE)
    save(root, people("a", n=1), schema=frame, branch="dev", **MERGE)
    with pytest.raises(RowConflictError, match="'b'"):
        save(root, people("b", n=1), schema=frame, branch="dev", **MERGE)
    assert rows(root, P, branch="dev")[:2] == [("a", 1), ("b", 6)]


@pytest.mark.long
@pytest.mark.parametrize("point", ["commit.entered", "commit.before_publish"])
def test_an_upsert_that_deletes_beside_is_matched_again_where_a_rival_was_first(
    root: str, point: str
) -> None:
    save(
        root, {"src": ["a"], "dst": ["d"]}, table="edge:Knows", endpoints="Knows: Person -> Person"
    )

    def change(theirs: str) -> None:
        schema = read(root, table=P)
        parsed = WriteOptions.of(parse({"path": root, "writeMode": "merge"}), False)
        plan = replace(
            frame_plan.plan_frames(parsed, {P: schema}), deletes=True, on_delete="cascade"
        )
        gone = replace(plan, targets={P: replace(plan.targets[P], mode="delete")})
        staged = [
            *stage(plan, [(P, batch(people("a", "e", n=1)))]),
            *stage(gone, [(P, batch({"id": ["d"]}))]),
        ]
        _faults.arm(point, once(lambda: others(root, theirs, 5)))
        commit(plan, from_json(to_json(staged)))

    for theirs in "ad":
        with pytest.raises(RowConflictError, match=f"'{theirs}'"):
            change(theirs)
    change("bz")
    assert dict(rows(root, P)) == {"a": 1, "b": 5, "c": 0, "e": 1, "z": 5}
    assert rows(root, "edge:Knows") == []
