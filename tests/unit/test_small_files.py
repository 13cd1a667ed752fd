"""Many small tasks leave few files: what is gathered, what isn't, and that no row is lost by it."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from omnigraph_spark import _faults
from omnigraph_spark.errors import IntegrityError, StorageError
from omnigraph_spark.manifest.snapshot import load
from omnigraph_spark.refs.branches import create_branch
from omnigraph_spark.refs.refs import resolve
from omnigraph_spark.schema.property_types import blob_type
from omnigraph_spark.storage.store import Storage
from omnigraph_spark.write.commit import small_files, staged_files
from omnigraph_spark.write.commit.commit import commit
from omnigraph_spark.write.plan import NewTable, WritePlan
from omnigraph_spark.write.tasks import lookup
from omnigraph_spark.write.tasks.stage import StagedTable, from_json, stage, to_json
from tests.format_checker import check_graph
from tests.support import columns, writes
from tests.support.lance_graphs import publish_head
from tests.support.writes import data_files, once, plan

T, U = "node:T", "node:U"
SCHEMA = pa.schema(
    [
        pa.field("id", pa.utf8(), nullable=False),
        pa.field("a", pa.int32()),
        pa.field("v", pa.list_(pa.float32(), 2)),
        pa.field("note", pa.utf8()),
    ]
)
NEW = {T: NewTable(SCHEMA), U: NewTable(SCHEMA)}
Values = dict[str, int]


@pytest.fixture
def storage(tmp_path: Path) -> Iterable[Storage]:
    yield Storage.at(str(tmp_path / "g"))
    _faults.disarm()


def rows(values: Values) -> pa.RecordBatch:
    numbers = [*values.values()]
    columns = [
        pa.array(list(values)),
        pa.array(numbers, pa.int32()),
        pa.array([[n, -n] for n in numbers], SCHEMA.field("v").type),
        pa.array([None if n % 3 else "note" for n in numbers]),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)


def staged(planned: WritePlan, tasks: Iterable[Values], key: str = T) -> list[StagedTable]:
    """Stage tasks of a table, over the text of their commit messages."""
    return [
        one for task in tasks for one in from_json(to_json(stage(planned, [(key, rows(task))])))
    ]


def tasks(count: int, each: int = 5, first: int = 0) -> list[Values]:
    ids = [range(first + number * each, first + (number + 1) * each) for number in range(count)]
    return [{f"k{n:05d}": n for n in numbers} for numbers in ids]


def united(every: Iterable[Values]) -> Values:
    return {key: value for task in every for key, value in task.items()}


def dataset(storage: Storage, key: str = T, branch: str = "main") -> Any:
    entry = load(storage, branch).entry(key)
    return storage.dataset(entry.location, entry.table_branch, entry.table_version)


def values(storage: Storage, key: str = T, branch: str = "main") -> Values:
    """Return what a reader sees, in stored order; whole rows are compared with what was written."""
    found = dataset(storage, key, branch).to_table(columns=SCHEMA.names)
    kept = dict(zip(found["id"].to_pylist(), found["a"].to_pylist(), strict=True))
    assert len(kept) == found.num_rows == load(storage, branch).entry(key).row_count
    assert found.to_pylist() == rows(kept).to_pylist()
    return kept


def fragments(storage: Storage, key: str = T, branch: str = "main") -> list[int]:
    return [one.count_rows() for one in dataset(storage, key, branch).get_fragments()]


def write(storage: Storage, every: list[Values], mode: str = "append", **more: Any) -> None:
    planned = plan(storage, [T], mode, new=NEW, **more)
    commit(planned, staged(planned, every))


@pytest.mark.long
@pytest.mark.parametrize("mode", ["append", "overwrite"])
def test_a_thousand_rows_of_two_hundred_tasks_are_one_file(storage: Storage, mode: str) -> None:
    write(storage, [{"first": 1}])
    before = data_files(storage, T)
    write(storage, tasks(200), mode)
    old = {"first": 1} if mode == "append" else {}
    assert list(values(storage)) == [*old, *united(tasks(200))]
    assert values(storage) == {**old, **united(tasks(200))}
    assert fragments(storage) == [1] * len(old) + [1000]
    assert len(data_files(storage, T) - before) == 1
    assert check_graph(str(storage.root)) == []


def test_files_of_a_few_tasks_stay_as_they_are(storage: Storage) -> None:
    few = tasks(small_files.FEWEST_TASKS - 1)
    write(storage, few)
    assert fragments(storage) == [5] * len(few)


def test_rows_of_large_tasks_stay_in_their_files_and_all_keep_their_order(
    storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, large = ({f"{name}{n:03d}": n for n in range(300)} for name in "lm")
    every = [first, *tasks(3), large, *tasks(9, first=15)]
    monkeypatch.setattr(small_files, "SMALL_BYTES", rows(large).nbytes - 1)
    write(storage, every)
    assert fragments(storage) == [300, 60, 300]
    assert list(values(storage)) == [*first, *united(tasks(12)), *large]
    assert values(storage) == united(every)


def test_what_one_write_gathers_is_bounded(
    storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    planned = plan(storage, [T, U], new=NEW)
    every = [*staged(planned, tasks(20)), *staged(planned, tasks(20, first=100), U)]
    monkeypatch.setattr(small_files, "MOST_BYTES", 30 * every[0].bytes)
    commit(planned, every)
    assert fragments(storage, T) == [100]
    assert sorted(fragments(storage, U)) == [5] * 10 + [50]
    assert values(storage, U) == united(tasks(20, first=100))


def test_rows_in_a_file_are_not_more_than_the_write_allows(storage: Storage) -> None:
    write(storage, tasks(20), maxRowsPerFile="30")
    assert fragments(storage) == [30, 30, 30, 10]


def test_an_upsert_of_many_small_tasks_keeps_ids_and_versions_of_its_rows(
    storage: Storage,
) -> None:
    write(storage, [united(tasks(20))])
    versions = ["id", "_rowid", "_row_created_at_version"]
    before = {row["id"]: row for row in dataset(storage).to_table(columns=versions).to_pylist()}
    changed = [{key: value + 1_000 for key, value in task.items()} for task in tasks(20)]
    new = tasks(20, first=500)
    write(storage, [{**a, **b} for a, b in zip(changed, new, strict=True)], writeMode="merge")
    assert values(storage) == {**united(changed), **united(new)}
    assert sorted(fragments(storage)) == [100, 100]
    after = {row["id"]: row for row in dataset(storage).to_table(columns=versions).to_pylist()}
    assert {key: after[key] for key in before} == before
    assert check_graph(str(storage.root)) == []


@pytest.mark.long
def test_an_upsert_into_a_large_table_is_gathered_only_through_an_index(
    storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the driver would scan the table's ids alone, once more than the tasks did."""
    write(storage, [united(tasks(20))])
    monkeypatch.setattr(lookup, "_SOON_SCANNED", 99)
    write(storage, tasks(20, first=500), writeMode="merge")
    assert sorted(fragments(storage)) == [5] * 20 + [100]
    dataset(storage).create_scalar_index("id", "BTREE")
    publish_head(storage, T)
    write(storage, tasks(20, first=1_000), writeMode="merge")
    assert sorted(fragments(storage)) == [5] * 20 + [100, 100]
    assert values(storage) == united([*tasks(20), *tasks(20, 5, 500), *tasks(20, 5, 1_000)])


def test_a_key_of_two_small_tasks_is_refused_as_ever(storage: Storage) -> None:
    write(storage, [{"old": 1}])
    for key in ("old", "new"):
        doubled = [*tasks(10), {key: 5}, {key: 6}]
        with pytest.raises(IntegrityError, match="more than once") as caught:
            write(storage, doubled, writeMode="merge")
        assert caught.value.samples == [key]
    assert values(storage) == {"old": 1}


@pytest.mark.long
def test_a_round_that_is_lost_after_it_commits_the_same_file_again(storage: Storage) -> None:
    write(storage, [{"first": 1}])
    planned = plan(storage, [T])
    every = staged(planned, tasks(20))
    rival = once(lambda: write(storage, [{"rival": 2}]))
    _faults.arm("commit.before_publish", rival)
    commit(planned, every)
    assert values(storage) == {"first": 1, "rival": 2, **united(tasks(20))}
    assert sorted(fragments(storage)) == [1, 1, 100]


def test_an_upsert_is_matched_again_where_a_rival_brought_a_key_meanwhile(
    storage: Storage,
) -> None:
    write(storage, [{"first": 1}])
    planned = plan(storage, [T], writeMode="merge")
    every = staged(planned, tasks(20))
    write(storage, [{"k00007": -7}])
    commit(planned, every)
    assert values(storage) == {"first": 1, **united(tasks(20))}


def test_a_write_that_fails_while_gathering_publishes_nothing_and_deletes_what_tasks_staged(
    storage: Storage,
) -> None:
    write(storage, [{"first": 1}])
    planned = plan(storage, [T])
    every = staged(planned, tasks(20))
    before = load(storage)

    def fail() -> None:
        raise StorageError("as if the disk were full")

    _faults.arm("stage.file_half_written", fail)
    with pytest.raises(StorageError, match="as if the disk were full"):
        commit(planned, every)
    _faults.disarm()
    assert load(storage) == before
    small = {f["path"] for one in every for part in one.fragments for f in part["files"]}
    assert not small & data_files(storage, T)
    write(storage, tasks(20))
    assert values(storage) == {"first": 1, **united(tasks(20))}


def test_a_commit_that_is_called_again_publishes_nothing_more(storage: Storage) -> None:
    planned = plan(storage, [T], new=NEW)
    every = staged(planned, tasks(20))
    done = commit(planned, every)
    again = commit(planned, every)
    assert again.graph_version == done.graph_version == load(storage).graph_version
    assert values(storage) == united(tasks(20))


def test_a_file_that_is_gone_is_named_before_anything_is_published(storage: Storage) -> None:
    planned = plan(storage, [T], new=NEW)
    every = staged(planned, tasks(20))
    (path,) = (file["path"] for file in every[3].fragments[0]["files"])
    storage.delete(f"{planned.targets[T].location}/data/{path}")
    with pytest.raises(StorageError, match=path):
        commit(planned, every)
    assert T not in load(storage).tables


def test_small_tasks_of_a_branch_are_gathered_on_it(storage: Storage) -> None:
    write(storage, [{"first": 1}])
    create_branch(storage, "b", resolve(storage, "main"))
    write(storage, tasks(20), branch="b")
    assert values(storage, branch="b") == {"first": 1, **united(tasks(20))}
    assert fragments(storage, branch="b") == [1, 100]
    assert values(storage) == {"first": 1}
    write(storage, tasks(20, first=100), branch="b")
    assert fragments(storage, branch="b") == [1, 100, 100]


def test_columns_that_the_write_adds_keep_their_numbers(storage: Storage) -> None:
    writes.new_graph(storage)
    before = fragments(storage, writes.PERSON)
    schema = columns.frame(*columns.PERSON_FRAME, columns.NICK, columns.SCORE)
    planned = columns.plan(storage, {writes.PERSON: schema})
    wanted = [
        {"id": f"p{n}", "name": f"p{n}", "age": n, "nick": f"nick {n}", "score": -n}
        for n in range(20)
    ]
    commit(
        planned,
        [one for row in wanted for one in columns.staged(planned, writes.PERSON, schema, [row])],
    )
    found = {row["id"]: row for row in columns.rows_of(storage, writes.PERSON)}
    first = found.pop("first")
    assert (first["nick"], first["score"]) == (None, None)
    assert found == {row["id"]: row for row in wanted}
    assert fragments(storage, writes.PERSON) == [*before, 20]
    assert check_graph(str(storage.root)) == []


def test_blobs_are_left_in_their_files(storage: Storage) -> None:
    schema = pa.schema([pa.field("id", pa.utf8(), nullable=False), pa.field("pic", blob_type())])
    planned = plan(storage, [T], new={T: NewTable(schema)})
    every = []
    for n in range(10):
        ids = pa.array([f"k{n}"])
        pic = pa.array(
            [{"data": bytes([n]) * 5, "uri": None}], schema.field("pic").type.storage_type
        )
        made = pa.ExtensionArray.from_storage(schema.field("pic").type, pic)
        batch = pa.RecordBatch.from_arrays([ids, made], schema=schema)
        every += stage(planned, [(T, batch)])
    commit(planned, every)
    assert fragments(storage) == [1] * 10


def test_bad_records_of_small_tasks_are_set_aside_and_the_good_ones_land(
    storage: Storage, tmp_path: Path
) -> None:
    write(storage, [{"k00003": 1}])
    aside = str(tmp_path / "bad")
    write(storage, tasks(20), integrity="strict", badRecordsPath=aside)
    kept = {**united(tasks(20)), "k00003": 1}
    assert values(storage) == kept
    assert any(Path(aside).rglob("*"))


def test_staged_rows_are_those_that_were_staged(storage: Storage) -> None:
    planned = plan(storage, [T], new=NEW)
    (one,) = staged(planned, tasks(1))
    (batch,) = staged_files.read(planned, planned.targets[T], one)
    assert batch.equals(rows(united(tasks(1))))
