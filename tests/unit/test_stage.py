"""Staging writes data files and commits nothing (rule 1)."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from omnigraph_spark import _faults
from omnigraph_spark.errors import IntegrityError, OmnigraphError, StorageError
from omnigraph_spark.manifest.snapshot import load
from omnigraph_spark.storage.store import Storage
from omnigraph_spark.write.commit.commit import commit
from omnigraph_spark.write.plan import NewTable, TableTarget, WritePlan
from omnigraph_spark.write.tasks import stage as staging
from omnigraph_spark.write.tasks.stage import StagedTable, from_json, stage, to_json
from tests.support import writes
from tests.support.writes import ALL, KNOWS, PERSON, batch, ids


@pytest.fixture
def graph(tmp_path: Path) -> Iterator[Storage]:
    yield writes.new_graph(Storage.at(str(tmp_path / "g")))
    _faults.disarm()


def batches(plan: WritePlan, key: str, *names: str) -> Iterator[tuple[str, pa.RecordBatch]]:
    for name in names:
        yield key, batch(plan.targets[key].schema, [name])


def test_staged_rows_are_visible_to_nobody(graph: Storage) -> None:
    before = load(graph), {key: writes.head(graph, key) for key in ALL}
    writes.stage_rows(writes.plan(graph, list(ALL)), {key: ["b"] for key in ALL})
    assert (load(graph), {key: writes.head(graph, key) for key in ALL}) == before
    assert ids(graph, PERSON) == ["first"]


def test_a_message_is_plain_json_and_holds_no_handle_or_secret(tmp_path: Path) -> None:
    storage = Storage.at(str(tmp_path / "g"), {"aws_secret_access_key": "CANARY"})
    planned = writes.plan(storage, [PERSON])
    staged = writes.stage_rows(planned, {PERSON: ["a", "b"]})
    text = to_json(staged)
    assert "CANARY" not in text
    assert str(tmp_path) not in text
    assert from_json(text) == staged
    (one,) = json.loads(text)
    assert (one["table_key"], one["rows"]) == (PERSON, 2)
    assert [field[:2] for field in one["fields"]] == [["id", 0], ["name", 1], ["age", 2]]


def test_messages_of_several_tasks_are_one_append(graph: Storage) -> None:
    planned = writes.plan(graph, [PERSON])
    staged = [one for name in "bcd" for one in stage(planned, batches(planned, PERSON, name))]
    commit(planned, from_json(to_json(staged)))
    assert ids(graph, PERSON) == ["b", "c", "d", "first"]


def test_the_rows_and_bytes_of_a_message_are_those_that_were_written(graph: Storage) -> None:
    planned = writes.plan(graph, [PERSON])
    (one,) = stage(planned, batches(planned, PERSON, "b", "c", "d"))
    assert one.rows == 3
    assert one.bytes > 0
    assert sum(fragment["physical_rows"] for fragment in one.fragments) == 3


@pytest.mark.parametrize("count", [0, 1])
def test_a_task_without_rows_writes_no_file(graph: Storage, count: int) -> None:
    files = writes.data_files(graph, PERSON)
    planned = writes.plan(graph, [PERSON])
    empty = [(PERSON, batch(planned.targets[PERSON].schema, []))] * count
    assert stage(planned, iter(empty)) == []
    planned = writes.plan(graph, list(ALL))
    assert stage(planned, iter(empty)) == []
    assert writes.data_files(graph, PERSON) == files


def test_files_are_cut_by_rows(graph: Storage) -> None:
    planned = writes.plan(graph, [PERSON], maxRowsPerFile="4")
    rows = batch(planned.targets[PERSON].schema, [f"r{n}" for n in range(10)])
    (one,) = stage(planned, iter([(PERSON, rows)]))
    assert [fragment["physical_rows"] for fragment in one.fragments] == [4, 4, 2]
    commit(planned, [one])
    assert len(ids(graph, PERSON)) == 11


def test_many_tables_in_any_order_are_written_side_by_side(graph: Storage) -> None:
    planned = writes.plan(graph, list(ALL))
    mixed = [
        (key, batch(planned.targets[key].schema, [f"{key}{number}"]))
        for number in range(50)
        for key in ALL
    ]
    staged = stage(planned, iter(mixed))
    assert {one.table_key: one.rows for one in staged} == dict.fromkeys(ALL, 50)
    assert {len(one.fragments) for one in staged} == {1}, "small batches are gathered"
    commit(planned, staged)
    assert len(ids(graph, KNOWS)) == 51


def test_one_task_writes_fifty_tables(tmp_path: Path) -> None:
    keys = [f"node:T{number}" for number in range(50)]
    new = {key: NewTable(writes.NODE_SCHEMA, "name") for key in keys}
    planned = writes.plan(Storage.at(str(tmp_path / "g")), keys, new=new)
    rows = (
        (keys[n % 50], batch(writes.NODE_SCHEMA, [f"{n}-{r}" for r in range(9)]))
        for n in range(200)
    )
    assert [one.rows for one in stage(planned, rows)] == [36] * 50


class Broken(Exception):
    """Whatever a user's own iterator raises."""


@pytest.mark.parametrize("tables", [[PERSON], list(ALL)])
@pytest.mark.parametrize("after", [0, 1, 3])
@pytest.mark.parametrize("error", [IntegrityError("a null id", rule="null"), Broken("user")])
def test_what_the_batches_raise_comes_out_as_it_is(
    graph: Storage, tables: list[str], after: int, error: Exception
) -> None:
    """Lance would turn it into a text of its own."""
    planned = writes.plan(graph, tables)

    def failing() -> Iterator[tuple[str, pa.RecordBatch]]:
        yield from batches(planned, PERSON, *[f"r{n}" for n in range(after)])
        raise error

    with pytest.raises(type(error)) as raised:
        stage(planned, failing())
    assert raised.value is error
    assert ids(graph, PERSON) == ["first"]


@pytest.mark.parametrize("tables", [[PERSON], list(ALL)])
def test_a_store_that_fails_while_files_are_written_is_a_typed_error(
    graph: Storage, tables: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    import lance.fragment

    def fail(*_: object, **__: object) -> None:
        raise OSError("No space left on device")

    monkeypatch.setattr(lance.fragment, "write_fragments", fail)
    planned = writes.plan(graph, tables)
    with pytest.raises(StorageError, match=r"OMNIGRAPH_STORAGE.*node:Person.*No space left"):
        stage(planned, batches(planned, PERSON, "b"))


def test_a_failing_thread_of_one_table_stops_the_others_and_does_not_hang(
    graph: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = staging._stage_one

    def fail_person(plan: WritePlan, target: object, rows: Iterator[pa.RecordBatch]) -> StagedTable:
        if getattr(target, "table_key", "") == PERSON:
            raise StorageError("Injected for one table")
        return real(plan, target, rows)  # type: ignore[arg-type]

    monkeypatch.setattr(staging, "_stage_one", fail_person)
    monkeypatch.setattr(staging, "_CHUNK_ROWS", 1)
    planned = writes.plan(graph, list(ALL))
    endless = ((key, batch(planned.targets[key].schema, ["r"])) for _ in range(500) for key in ALL)
    with pytest.raises(StorageError, match="Injected for one table"):
        stage(planned, endless)


def test_a_batch_of_another_schema_than_the_tables_is_refused(graph: Storage) -> None:
    planned = writes.plan(graph, [PERSON])
    wrong = pa.RecordBatch.from_pydict({"id": ["b"], "name": ["b"], "age": ["no number"]})
    with pytest.raises(OmnigraphError, match=r"OMNIGRAPH_[A-Z_]+\].*node:Person"):
        stage(planned, iter([(PERSON, wrong)]))
    assert ids(graph, PERSON) == ["first"]


@pytest.mark.parametrize("failing", ALL)
def test_a_task_that_fails_leaves_no_thread_behind(
    graph: Storage, monkeypatch: pytest.MonkeyPatch, failing: str
) -> None:
    """A worker process of Spark's is used again by the next task."""
    real = staging._write

    def write(plan: WritePlan, target: TableTarget, *rest: Any) -> Any:
        if target.table_key == failing:
            raise StorageError("no room (injected)")
        return real(plan, target, *rest)

    monkeypatch.setattr(staging, "_write", write)
    planned = writes.plan(graph, list(ALL))
    many = [str(number) for number in range(70_000)]
    rows = [(key, batch(planned.targets[key].schema, ids)) for ids in (many, ["x"]) for key in ALL]
    before = threading.active_count()
    with pytest.raises(StorageError, match="no room"):
        stage(planned, rows)
    assert threading.active_count() == before


def test_rows_that_cannot_be_read_leave_no_thread_behind(graph: Storage) -> None:
    planned = writes.plan(graph, list(ALL))

    def rows() -> Iterator[tuple[str, pa.RecordBatch]]:
        for key in ALL:
            yield key, batch(planned.targets[key].schema, ["x"])
        raise IntegrityError("a bad row (injected)")

    before = threading.active_count()
    with pytest.raises(IntegrityError, match="a bad row"):
        stage(planned, rows())
    assert threading.active_count() == before
