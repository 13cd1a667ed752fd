"""Many updated rows are committed in steps: one publish, whatever happens between two of them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from omnigraph_spark import _faults
from omnigraph_spark.manifest.snapshot import load
from omnigraph_spark.storage.store import Storage
from omnigraph_spark.write.commit import table_commit, table_head, updates
from omnigraph_spark.write.commit.commit import commit
from omnigraph_spark.write.commit.table_head import StartOver, is_clean
from omnigraph_spark.write.plan import NewTable
from omnigraph_spark.write.tasks.stage import StagedTable, from_json, stage, to_json
from tests.format_checker import check_graph
from tests.support.writes import Died, plan

T = "node:T"
SCHEMA = pa.schema([pa.field("id", pa.utf8(), nullable=False), pa.field("a", pa.int32())])
NEW = {T: NewTable(SCHEMA)}
VERSIONS = ["_row_created_at_version", "_row_last_updated_at_version"]


@pytest.fixture
def storage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Storage]:
    """A graph with k0 to k19 in fragments of five, whose upserts take steps of two rows."""
    found = Storage.at(str(tmp_path / "g"))
    planned = plan(found, [T], new=NEW, maxRowsPerFile="5")
    commit(planned, stage(planned, [(T, rows({f"k{n}": n for n in range(20)}))]))
    monkeypatch.setattr(updates, "MOST_UPDATED_ROWS", 2)
    yield found
    _faults.disarm()


def rows(values: dict[str, int]) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays(
        [pa.array(list(values)), pa.array(list(values.values()), pa.int32())], schema=SCHEMA
    )


def staged(planned: Any, *tasks: dict[str, int]) -> list[StagedTable]:
    """Stage tasks, over the text of their commit messages."""
    return [one for task in tasks for one in from_json(to_json(stage(planned, [(T, rows(task))])))]


def table(storage: Storage) -> dict[str, dict[str, Any]]:
    entry = load(storage).entry(T)
    dataset = storage.dataset(entry.location, entry.table_branch, entry.table_version)
    found = dataset.to_table(columns=["id", "a", *VERSIONS, "_rowid"]).to_pylist()
    assert len({row["id"] for row in found}) == len(found) == entry.row_count
    return {row.pop("id"): row for row in found}


def head(storage: Storage) -> Any:
    return storage.dataset(load(storage).entry(T).location)


TASKS = (
    {"k1": 101, "k6": 106, "k11": 111, "n1": 1},
    {"k2": 102, "k7": 107, "k12": 112, "n2": 2},
    {"k3": 103, "k8": 108, "k13": 113, "n3": 3},
)
WRITTEN = {key: value for task in TASKS for key, value in task.items()}


def test_many_updated_rows_take_versions_of_their_own_and_one_publish(storage: Storage) -> None:
    before, old = load(storage), table(storage)
    planned = plan(storage, [T], writeMode="merge")
    done = commit(planned, staged(planned, *TASKS))
    pinned = before.entry(T).table_version
    assert load(storage).entry(T).table_version == pinned + len(TASKS)
    assert done.graph_version == before.graph_version + 1
    new = table(storage)
    assert {key: row["a"] for key, row in new.items()} == {
        **{key: row["a"] for key, row in old.items()},
        **WRITTEN,
    }
    for key, row in old.items():
        kept = ("_rowid", "_row_created_at_version")
        assert [new[key][name] for name in kept] == [row[name] for name in kept]
        moved = new[key]["_row_last_updated_at_version"] > pinned
        assert moved == (key in WRITTEN)
    assert {new[key]["_row_created_at_version"] > pinned for key in ("n1", "n2", "n3")} == {True}
    assert len({row["_rowid"] for row in new.values()}) == len(new)
    assert check_graph(str(storage.root)) == []


def test_a_step_that_is_lost_takes_the_table_back_and_the_next_round_writes_all(
    storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    planned = plan(storage, [T], writeMode="merge")
    pinned = load(storage).entry(T).table_version
    sent = table_head.commit
    sending: list[bool] = []
    rounds: list[bool] = []

    def second_is_lost(*args: Any, **options: Any) -> Any:
        sending.append(is_clean(head(storage), pinned))
        if len(sending) == 2:
            raise StartOver("as if another writer was first")
        return sent(*args, **options)

    monkeypatch.setattr(table_commit, "commit", second_is_lost)
    _faults.arm("table.before_commit", lambda: rounds.append(is_clean(head(storage), pinned)))
    commit(planned, staged(planned, *TASKS))
    assert sending == [True, False, True, False, False]
    assert rounds == [True, True]
    assert {key: table(storage)[key]["a"] for key in WRITTEN} == WRITTEN
    assert len(table(storage)) == 23


def test_a_write_that_dies_between_two_steps_leaves_nothing(
    storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = {key: row["a"] for key, row in table(storage).items()}
    planned = plan(storage, [T], writeMode="merge")
    ours = staged(planned, *TASKS)
    sent = table_head.commit
    count = iter(range(10))

    def dies(*args: Any, **options: Any) -> Any:
        if next(count) == 2:
            raise Died
        return sent(*args, **options)

    with monkeypatch.context() as patched:
        patched.setattr(table_commit, "commit", dies)
        with pytest.raises(Died):
            commit(planned, ours)
    assert head(storage).version == load(storage).entry(T).table_version + 2
    again = plan(storage, [T], writeMode="merge")
    commit(again, staged(again, {"k4": 104}))
    assert {key: row["a"] for key, row in table(storage).items()} == {**old, "k4": 104}
