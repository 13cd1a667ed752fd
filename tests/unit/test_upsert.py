"""Upserts without Spark: updates, new rows, doubled keys, rounds that are lost to others."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from omnigraph_spark import _faults
from omnigraph_spark.arrow.compare import differing
from omnigraph_spark.errors import (
    ExpectedVersionMismatch,
    IntegrityError,
    StorageError,
)
from omnigraph_spark.manifest.snapshot import load, open_manifest, read_rows
from omnigraph_spark.schema.property_types import blob_type
from omnigraph_spark.storage import lance_messages
from omnigraph_spark.storage.store import Storage
from omnigraph_spark.write.commit.commit import Committed, abort, commit
from omnigraph_spark.write.plan import NewTable
from omnigraph_spark.write.tasks import lookup, matches, packed, row_ids
from omnigraph_spark.write.tasks.stage import StagedTable, from_json, stage, to_json
from tests.support.lance_graphs import publish_head
from tests.support.writes import (
    COMPANY,
    KNOWS,
    PERSON,
    Died,
    data_files,
    die,
    head,
    ids,
    new_graph,
    once,
    orphan,
    plan,
    records,
    write,
)

T = "node:T"
T_SCHEMA = pa.schema(
    [
        pa.field("id", pa.utf8(), nullable=False),
        pa.field("a", pa.int32()),
        pa.field("b", pa.utf8(), nullable=False),
        pa.field("f", pa.float64()),
    ]
)
NEW = {T: NewTable(T_SCHEMA)}


@pytest.fixture
def storage(tmp_path: Path) -> Storage:
    return Storage.at(str(tmp_path / "g"))


def rows(**columns: Any) -> pa.RecordBatch:
    """Return a batch whose columns have T's types."""
    fields = [field for field in T_SCHEMA if field.name in columns]
    return pa.RecordBatch.from_arrays(
        [pa.array(columns[field.name], field.type) for field in fields], schema=pa.schema(fields)
    )


def staged(planned: Any, tasks: list[list[pa.RecordBatch]], key: str = T) -> list[StagedTable]:
    """Stage tasks of batches, over the text of their commit messages."""
    return [
        one
        for task in tasks
        for one in from_json(to_json(stage(planned, [(key, batch) for batch in task])))
    ]


def upsert(
    storage: Storage, *tasks: list[pa.RecordBatch], new: Any = NEW, key: str = T, **more: Any
) -> Committed:
    planned = plan(storage, [key], new=new, writeMode="merge", **more)
    return commit(planned, staged(planned, list(tasks), key))


def append(
    storage: Storage, batch: pa.RecordBatch, new: Any = NEW, key: str = T, **more: Any
) -> Committed:
    planned = plan(storage, [key], new=new, **more)
    return commit(planned, stage(planned, [(key, batch)]))


def ten(storage: Storage) -> Storage:
    """Make T with k0 to k9, in fragments of four rows."""
    names = [f"k{i}" for i in range(10)]
    append(
        storage,
        rows(id=names, a=list(range(10)), b=names, f=[0.5] * 10),
        maxRowsPerFile="4",
    )
    return storage


def dataset(storage: Storage, key: str = T) -> Any:
    entry = load(storage).entry(key)
    return storage.dataset(entry.location, entry.table_branch, entry.table_version)


def table(storage: Storage, key: str = T) -> dict[str, dict[str, Any]]:
    """Return the rows by id, with row ids and versions; asserts that no id comes twice."""
    found = (
        dataset(storage, key)
        .scanner(with_row_id=True, columns=_columns(storage, key), blob_handling="all_binary")
        .to_table()
        .to_pylist()
    )
    assert len({row["id"] for row in found}) == len(found) == load(storage).entry(key).row_count
    return {row.pop("id"): row for row in found}


def _columns(storage: Storage, key: str) -> list[str]:
    versions = ["_row_created_at_version", "_row_last_updated_at_version"]
    return [*dataset(storage, key).schema.names, *versions]


def values(storage: Storage) -> dict[str, tuple[Any, ...]]:
    return {key: (row["a"], row["b"], row["f"]) for key, row in table(storage).items()}


def notes(storage: Storage, key: str = T) -> tuple[int, int]:
    ours = load(storage).entry(key).ours
    return ours["rows_added"], ours["rows_removed"]


# --- one writer ----------------------------------------------------------------------------------


def test_an_upsert_replaces_matched_rows_and_adds_new_ones(storage: Storage) -> None:
    ten(storage)
    upsert(
        storage,
        [rows(id=["k9", "new", "k1"], a=[90, 1, 10], b=["x", "n", "y"], f=[1.0, 2.0, None])],
    )
    found = values(storage)
    assert len(found) == 11
    assert (found["k9"], found["new"], found["k1"]) == (
        (90, "x", 1.0),
        (1, "n", 2.0),
        (10, "y", None),
    )
    assert found["k0"] == (0, "k0", 0.5)
    assert notes(storage) == (3, 2)
    assert load(storage).entry(T).ours["mode"] == "merge"
    assert records(storage) == []


def test_an_updated_row_keeps_its_row_id_and_birth_and_gets_a_new_version(storage: Storage) -> None:
    ten(storage)
    before = table(storage)
    upsert(storage, [rows(id=["k7", "k1", "new"], a=[1, 2, 3], b=["x"] * 3, f=[0.0] * 3)])
    after = table(storage)
    version = load(storage).version(T)
    for key in ("k7", "k1"):
        assert after[key]["_rowid"] == before[key]["_rowid"]
        assert after[key]["_row_created_at_version"] == before[key]["_row_created_at_version"]
        assert after[key]["_row_last_updated_at_version"] == version
    assert after["k0"] == before["k0"]
    assert after["new"]["_rowid"] not in {row["_rowid"] for row in before.values()}
    assert after["new"]["_row_created_at_version"] == version


def test_a_frame_with_some_properties_changes_only_those(storage: Storage) -> None:
    ten(storage)
    upsert(storage, [rows(id=["k3"], a=[None])])
    assert values(storage)["k3"] == (None, "k3", 0.5)
    upsert(storage, [rows(id=["k3", "n"], b=["B", "N"])])
    assert values(storage)["k3"] == (None, "B", 0.5)
    assert values(storage)["n"] == (None, "N", None)


def test_a_new_row_that_lacks_a_not_null_column_is_refused_by_name(storage: Storage) -> None:
    ten(storage)
    version = load(storage).graph_version
    with pytest.raises(IntegrityError, match=r"OMNIGRAPH_INTEGRITY.*lack b.*'nobody'"):
        upsert(storage, [rows(id=["k3", "nobody"], a=[1, 2])])
    assert load(storage).graph_version == version


def test_an_update_that_changes_nothing_writes_and_publishes_nothing(storage: Storage) -> None:
    ten(storage)
    upsert(storage, [rows(id=["nan"], a=[None], b=["b"], f=[float("nan")])])
    files, version = data_files(storage, T), load(storage).graph_version
    done = upsert(
        storage, [rows(id=["nan", "k2"], a=[None, 2], b=["b", "k2"], f=[float("nan"), 0.5])]
    )
    assert done.skipped
    assert (data_files(storage, T), load(storage).graph_version) == (files, version)


def test_only_rows_that_change_are_written(storage: Storage) -> None:
    ten(storage)
    before = table(storage)
    upsert(storage, [rows(id=["k1", "k2"], a=[1, 20])])
    assert notes(storage) == (1, 1)
    assert table(storage)["k1"] == before["k1"]


def test_a_task_that_changes_nothing_stands_beside_one_that_does(storage: Storage) -> None:
    ten(storage)
    upsert(storage, [rows(id=["k1"], a=[1])], [rows(id=["k2"], a=[20])])
    assert (values(storage)["k1"][0], values(storage)["k2"][0]) == (1, 20)


def test_an_upsert_of_every_row_leaves_no_old_fragment(storage: Storage) -> None:
    ten(storage)
    upsert(storage, [rows(id=[f"k{i}" for i in range(10)], a=[70] * 10)])
    assert [row["a"] for row in table(storage).values()] == [70] * 10
    assert len(dataset(storage).get_fragments()) == 1


def test_an_upsert_into_an_absent_table_makes_it(storage: Storage) -> None:
    upsert(storage, [rows(id=["x"], a=[1], b=["b"], f=[1.0])])
    assert values(storage) == {"x": (1, "b", 1.0)}


def test_an_index_on_id_finds_the_new_row_and_not_the_old_one(storage: Storage) -> None:
    ten(storage)
    made = storage.dataset(load(storage).entry(T).location)
    made.create_scalar_index("id", "BTREE", name="id_idx")
    publish_head(storage, T)
    append(storage, rows(id=["later"], a=[1], b=["l"], f=[1.0]))
    upsert(storage, [rows(id=["k5", "later", "z"], a=[50, 51, 52], b=["x"] * 3, f=[0.0] * 3)])
    for key, a in (("k5", 50), ("later", 51), ("z", 52), ("k4", 4)):
        scanner = dataset(storage).scanner(filter=f"id = '{key}'")
        assert "ScalarIndexQuery" in scanner.explain_plan()
        assert scanner.to_table()["a"].to_pylist() == [a]
    assert dataset(storage).count_rows(filter="a = 5") == 0


def test_few_ids_are_looked_up_through_the_index(
    storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [
        "it's",
        "A",
        "a",
        "\u00e9",
        "e\u0301",
        "",
        "k\x00",
    ]  # one key each, whatever they look like
    append(storage, rows(id=names, a=[0] * 7, b=names, f=[0.0] * 7))
    made = dataset(storage)
    made.create_scalar_index("id", "BTREE", name="id_idx")
    wanted = pa.array([*names, "absent", "É"])
    seen: list[str | None] = []
    scan = lookup._scan

    def noted(of: Any, where: str | None) -> pa.RecordBatchReader:
        seen.append(where)
        return scan(of, where)

    monkeypatch.setattr(lookup, "_scan", noted)
    found = lookup.lookup(made, wanted)
    assert sorted(found.positions.tolist()) == list(range(7))
    assert None not in seen
    monkeypatch.setattr(lookup, "_FEW_IDS", 0)
    for many in (50_000, 1):  # in Arrow, and in the SQL engine
        monkeypatch.setattr(lookup, "_MANY_IDS", many)
        scanned = lookup.lookup(made, wanted)
        for name in ("positions", "addresses", "row_ids"):
            assert getattr(scanned, name).tolist() == getattr(found, name).tolist()
    assert seen[1:] == [None, None]


def test_what_was_looked_up_once_answers_for_a_part_of_the_ids_and_for_no_others(
    storage: Storage,
) -> None:
    ten(storage)
    made = dataset(storage)
    every = pa.array(["k3", "absent", "k7", "k1", "gone"])
    known = lookup.Known(every, lookup.lookup(made, every))
    for some in (["k1"], ["gone", "k7", "k3"], ["absent"], every.to_pylist()):
        asked = pa.array(some)
        told, read = known.of(asked), lookup.lookup(made, asked)
        assert told is not None
        for name in ("positions", "addresses", "row_ids"):
            assert getattr(told, name).tolist() == getattr(read, name).tolist()
    assert known.of(pa.array(["k1", "k2"])) is None
    read = lookup.looked_up(made, pa.array(["k1", "k2"]), known)
    assert read.positions.tolist() == [0, 1]


# --- keys that come twice ------------------------------------------------------------------------


@pytest.mark.parametrize("key", ["k4", "fresh"])
@pytest.mark.parametrize("apart", ["one batch", "two batches", "two tasks"])
def test_a_key_that_comes_twice_is_refused_by_name(storage: Storage, key: str, apart: str) -> None:
    ten(storage)
    before, files = load(storage).graph_version, data_files(storage, T)
    first, second = ([rows(id=[key], a=[n], b=["b"], f=[0.0])] for n in (1, 2))
    tasks = {
        "one batch": [[rows(id=[key, key], a=[1, 2], b=["b"] * 2, f=[0.0] * 2)]],
        "two batches": [first + second],
        "two tasks": [first, second],
    }
    with pytest.raises(IntegrityError, match=f"OMNIGRAPH_INTEGRITY.*{key}"):
        upsert(storage, *tasks[apart])
    assert load(storage).graph_version == before
    if apart == "two tasks":
        assert data_files(storage, T) == files


def test_an_id_that_the_table_holds_twice_is_refused_by_name(storage: Storage) -> None:
    for _ in range(2):
        planned = plan(storage, [T], new=NEW, integrity="off")
        commit(planned, staged(planned, [[rows(id=["x", "y"], a=[1, 2], b=["", ""], f=[0, 0])]]))
    with pytest.raises(IntegrityError, match="holds ids of this upsert more than once.*'x'"):
        upsert(storage, [rows(id=["x", "z"], a=[5, 6], b=["", ""], f=[0, 0])])
    assert load(storage).entry(T).table_version == 2


def test_a_key_twice_is_refused_where_one_of_the_rows_changes_nothing(storage: Storage) -> None:
    ten(storage)
    with pytest.raises(IntegrityError, match="k4"):
        upsert(storage, [rows(id=["k4"], a=[4])], [rows(id=["k4"], a=[5])])
    with pytest.raises(IntegrityError, match="k4"):
        upsert(storage, [rows(id=["k4"], a=[4])], [rows(id=["k4"], a=[4])])


def test_a_doubled_key_is_named_right_behind_deleted_rows(storage: Storage) -> None:
    ten(storage)
    upsert(storage, [rows(id=["k1"], a=[100])])
    with pytest.raises(IntegrityError, match="'k2'"):
        upsert(storage, [rows(id=["k2"], a=[1])], [rows(id=["k2"], a=[2])])
    upsert(storage, [rows(id=["k2"], a=[200])])
    assert (values(storage)["k2"][0], values(storage)["k3"][0]) == (200, 3)


def test_keys_of_other_case_or_unicode_form_are_other_keys(storage: Storage) -> None:
    names = ["a", "A", "\u00e9", "e\u0301", " a", ""]
    append(storage, rows(id=names[:1], a=[1], b=["b"], f=[0.0]))
    for a in (2, 3):
        upsert(storage, [rows(id=names, a=[a] * 6, b=["b"] * 6, f=[0.0] * 6)])
        assert {key: row[0] for key, row in values(storage).items()} == dict.fromkeys(names, a)


def test_the_same_upsert_three_times_leaves_one_row(storage: Storage) -> None:
    for _ in range(3):
        upsert(storage, [rows(id=["A"], a=[1], b=["b"], f=[0.0])])
    assert list(values(storage)) == ["A"]


# --- other writers -------------------------------------------------------------------------------


def test_a_row_staged_as_new_becomes_an_update_where_a_rival_was_first(storage: Storage) -> None:
    ten(storage)
    planned = plan(storage, [T], new=NEW, writeMode="merge")
    ours = staged(planned, [[rows(id=["n", "k1"], a=[1, 1], b=["ours"] * 2, f=[1.0] * 2)]])
    upsert(storage, [rows(id=["n", "k1"], a=[2, 2], b=["theirs"] * 2, f=[2.0] * 2)])
    row_id = table(storage)["n"]["_rowid"]
    commit(planned, ours)
    assert values(storage)["n"] == values(storage)["k1"] == (1, "ours", 1.0)
    assert table(storage)["n"]["_rowid"] == row_id
    assert notes(storage) == (2, 2)


def test_a_rival_between_table_commit_and_publish_is_not_doubled(storage: Storage) -> None:
    ten(storage)
    planned = plan(storage, [T], new=NEW, writeMode="merge")
    ours = staged(planned, [[rows(id=["n", "k1"], a=[1, 1], b=["ours"] * 2, f=[1.0] * 2)]])
    _faults.arm(
        "commit.before_table",
        once(lambda: upsert(storage, [rows(id=["n"], a=[2], b=["theirs"], f=[2.0])])),
    )
    commit(planned, ours)
    _faults.disarm()
    assert values(storage)["n"] == (1, "ours", 1.0)
    assert len(values(storage)) == 11


def test_a_new_key_of_two_tasks_is_refused_where_a_rival_brought_it_meanwhile(
    storage: Storage,
) -> None:
    ten(storage)
    planned = plan(storage, [T], new=NEW, writeMode="merge")
    one, two = ([rows(id=["n"], a=[a], b=["b"], f=[0.0])] for a in (1, 2))
    ours = staged(planned, [one, two])
    upsert(storage, [rows(id=["n"], a=[3], b=["theirs"], f=[2.0])])
    with pytest.raises(IntegrityError, match="'n'"):
        commit(planned, ours)
    assert values(storage)["n"] == (3, "theirs", 2.0)


def test_columns_that_a_partial_frame_lacks_keep_what_a_rival_wrote(storage: Storage) -> None:
    ten(storage)
    planned = plan(storage, [T], new=NEW, writeMode="merge")
    ours = staged(planned, [[rows(id=["k1"], a=[100])]])
    upsert(storage, [rows(id=["k1"], b=["theirs"])])
    commit(planned, ours)
    assert values(storage)["k1"] == (100, "theirs", 0.5)


def test_two_makers_of_one_table_upsert_into_one(storage: Storage) -> None:
    planned = plan(storage, [T], new=NEW, writeMode="merge")
    ours = staged(planned, [[rows(id=["n"], a=[1], b=["ours"], f=[1.0])]])
    upsert(storage, [rows(id=["n", "m"], a=[2, 2], b=["theirs"] * 2, f=[2.0] * 2)])
    commit(planned, ours)
    assert values(storage) == {"n": (1, "ours", 1.0), "m": (2, "theirs", 2.0)}


def test_an_upsert_expects_the_version_that_its_options_name(storage: Storage) -> None:
    ten(storage)
    expected = f'{{"{T}": {load(storage).version(T)}}}'
    planned = plan(storage, [T], new=NEW, writeMode="merge", expectedTableVersions=expected)
    ours = staged(planned, [[rows(id=["k1"], a=[100])]])
    upsert(storage, [rows(id=["k2"], a=[200])])
    with pytest.raises(ExpectedVersionMismatch, match="OMNIGRAPH_EXPECTED_VERSION_MISMATCH"):
        commit(planned, ours)
    assert values(storage)["k1"][0] == 1
    assert records(storage) == []


@pytest.mark.parametrize("point", ["commit.table_1", "commit.before_publish"])
def test_a_dead_upsert_is_rolled_back_by_the_next_write(storage: Storage, point: str) -> None:
    ten(storage)
    before = values(storage)
    planned = plan(storage, [T], new=NEW, writeMode="merge")
    ours = staged(planned, [[rows(id=["k1", "n"], a=[9, 9], b=["dead"] * 2, f=[9.0] * 2)]])
    _faults.arm(point, die)
    with pytest.raises(Died):
        commit(planned, ours)
    _faults.disarm()
    upsert(storage, [rows(id=["k2"], a=[22])])
    assert values(storage) == {**before, "k2": (22, "k2", 0.5)}


def test_nothing_of_an_orphan_is_adopted_by_an_upsert(storage: Storage) -> None:
    new_graph(storage)
    orphan(storage, PERSON, ["ghost"])
    write(storage, {PERSON: ["first", "second"]}, writeMode="merge")
    assert ids(storage, PERSON) == ["first", "second"]


def test_writers_of_overlapping_new_keys_at_once_leave_one_row_of_each(
    storage: Storage,
) -> None:
    upsert(storage, [rows(id=["A"], a=[0], b=["b"], f=[0.0])])
    ready = []
    for a, keys in ((1, ["N", "M"]), (2, ["M", "K"])):
        planned = plan(storage, [T], new=NEW, writeMode="merge")
        batch = rows(id=keys, a=[a] * 2, b=["b"] * 2, f=[0.0] * 2)
        ready.append((planned, staged(planned, [[batch]])))
    with ThreadPoolExecutor(2) as pool:
        done = [pool.submit(commit, *one) for one in ready]
    assert [one.exception() for one in done] == [None, None]
    found = {key: row[0] for key, row in values(storage).items()}
    assert found.pop("M") in (1, 2)
    assert found == {"A": 0, "N": 1, "K": 2}


@pytest.mark.long
def test_many_writers_of_one_new_key_end_in_one_row(storage: Storage) -> None:
    ten(storage)
    errors: list[BaseException] = []

    def one(number: int) -> None:
        try:
            upsert(storage, [rows(id=["N"], a=[number], b=["b"], f=[0.0])])
        except BaseException as error:  # noqa: BLE001
            errors.append(error)

    threads = [threading.Thread(target=one, args=(n,)) for n in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert len(values(storage)) == 11
    assert head(storage, T) == load(storage).version(T)


# --- types ---------------------------------------------------------------------------------------


def test_vectors_lists_decimals_and_blobs_are_updated_and_kept(storage: Storage) -> None:
    vector = pa.list_(pa.float32(), 2)
    schema = pa.schema(
        [
            pa.field("id", pa.utf8(), nullable=False),
            pa.field("d", pa.decimal128(20, 2)),
            pa.field("l", pa.list_(pa.utf8())),
            pa.field("n", pa.int32()),
            pa.field("pic", blob_type()),
            pa.field("v", vector),
        ]
    )
    new = {T: NewTable(schema)}
    planned = plan(storage, [T], new=new)
    stored = planned.targets[T].schema
    from omnigraph_spark.arrow.to_table import to_table_batch

    def made(names: list[str], pics: list[bytes | None], **more: Any) -> pa.RecordBatch:
        from decimal import Decimal

        plain = pa.table(
            {
                "id": names,
                "d": pa.array([Decimal("1.50")] * len(names), pa.decimal128(20, 2)),
                "l": pa.array([["x", None]] * len(names), pa.list_(pa.utf8())),
                "pic": pa.array(pics, pa.binary()),
                "v": pa.array([[1.0, 2.0]] * len(names), vector),
                **more,
            }
        ).to_batches()[0]
        return to_table_batch(plain, stored, T)

    commit(planned, stage(planned, [(T, made(["a", "b", "c"], [b"A", None, b"C" * 70_000]))]))
    upsert(
        storage,
        [pa.RecordBatch.from_pydict({"id": ["a", "b", "c"], "n": pa.array([1, 2, 3], pa.int32())})],
        new=new,
    )
    found = table(storage)
    assert [found[key]["pic"] or None for key in "abc"] == [b"A", None, b"C" * 70_000]
    assert [found[key]["n"] for key in "abc"] == [1, 2, 3]
    assert found["a"]["v"] == [1.0, 2.0]
    assert found["a"]["l"] == ["x", None]
    done = upsert(storage, [made(["a"], [b"B"], n=pa.array([1], pa.int32()))], new=new)
    assert not done.skipped
    assert table(storage)["a"]["pic"] == b"B"
    same = upsert(
        storage, [made(["a", "b"], [b"B", None], n=pa.array([1, 2], pa.int32()))], new=new
    )
    assert same.skipped


@pytest.mark.parametrize(
    ("left", "right", "expected"),
    [
        (pa.array([1, None, None, 2]), pa.array([1, None, 3, 4]), [0, 0, 1, 1]),
        (pa.array([np.nan, 0.0, 1.0]), pa.array([np.nan, -0.0, 1.0]), [0, 1, 0]),
        (
            pa.array([[1.0], [], None, [1.0, 2.0]]),
            pa.array([[1.0], [2.0], None, [1.0, 3.0]]),
            [0, 1, 0, 1],
        ),
        (
            pa.array([[1, 2], None, [np.nan, 1]], pa.list_(pa.float32(), 2)),
            pa.array([[1, 3], None, [np.nan, 1]], pa.list_(pa.float32(), 2)),
            [1, 0, 0],
        ),
        (
            pa.array([{"x": 1}, None, {"x": None}]),
            pa.array([{"x": 1}, {"x": None}, {"x": None}]),
            [0, 1, 0],
        ),
        (pa.array(["a", "\u00e9"]), pa.array(["A", "e\u0301"]), [1, 1]),
        (
            pa.array([[("a", 1)], [("a", 1)]], pa.map_(pa.utf8(), pa.int32())),
            pa.array([[("a", 1)], [("a", 2)]], pa.map_(pa.utf8(), pa.int32())),
            [0, 1],
        ),
        (
            pa.array([[("a", 0.0), ("b", 2.0)]] * 2, pa.map_(pa.utf8(), pa.float64())),
            pa.array(
                [[("b", 2.0), ("a", 0.0)], [("a", -0.0), ("b", 2.0)]],
                pa.map_(pa.utf8(), pa.float64()),
            ),
            [0, 1],
        ),
    ],
)
def test_null_equals_null_and_nan_equals_nan(left: Any, right: Any, expected: list[int]) -> None:
    assert differing(left, right).astype(int).tolist() == expected
    padded = pa.concat_arrays([left.slice(0, 1), left]).slice(1)
    assert differing(padded, right).astype(int).tolist() == expected


# --- packing -------------------------------------------------------------------------------------


def test_offsets_survive_packing_and_cost_under_two_bytes_a_row(storage: Storage) -> None:
    offsets = np.sort(np.random.default_rng(1).choice(1_000_000, 100_000, replace=False))
    text = matches.pack(offsets.astype(np.uint32))
    assert matches.unpack(storage, text).tolist() == offsets.tolist()
    assert len(text) < 130_000
    assert matches.unpack(storage, matches.pack(np.empty(0, np.uint32))).tolist() == []


def test_row_ids_of_rows_that_were_never_updated_cost_next_to_nothing(storage: Storage) -> None:
    rng = np.random.default_rng(1)
    offsets = np.sort(rng.choice(2_000_000, 100_000, replace=False)).astype(np.uint64)
    late = offsets >= 1_000_000
    addresses = np.where(late, offsets - 1_000_000 + (9 << 32), offsets).astype(np.uint64)
    for kept in (offsets + np.uint64(77), rng.permutation(offsets)):
        text = row_ids.pack(kept, addresses)
        assert row_ids.unpack(storage, text, addresses).tolist() == kept.tolist()
    assert len(row_ids.pack(offsets + np.uint64(77), addresses)) < 6_000


def test_the_message_of_a_large_task_is_a_file_that_goes_with_the_write(
    storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    ten(storage)
    plain = dataset(storage).scanner(columns=["id"], with_row_id=True).to_table().to_pylist()
    before = {row["id"]: row["_rowid"] for row in plain}
    monkeypatch.setattr(packed, "MOST_IN_A_MESSAGE", 0)
    planned = plan(storage, [T], new=NEW, writeMode="merge")
    changed = [rows(id=["k9", "n", "k1"], a=[90, 1, 10], b=["x"] * 3, f=[1.0] * 3)]
    ours = staged(planned, [changed, [rows(id=["k4"], a=[40])]])
    files = {one.beside for one in ours}
    assert len(files) == 2
    assert all(storage.head(path) is not None for path in files)
    assert all(m.changed.startswith("@") for one in ours for m in one.matches)
    commit(planned, ours)
    assert [storage.head(path) for path in files] == [None, None]
    found = table(storage)
    assert [found[key]["a"] for key in ("k9", "n", "k1", "k4", "k5")] == [90, 1, 10, 40, 5]
    assert [found[key]["_rowid"] == before[key] for key in ("k9", "k1", "k4")] == [True] * 3


def test_the_file_of_a_large_message_goes_with_a_write_that_is_refused_or_aborted(
    storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    ten(storage)
    monkeypatch.setattr(packed, "MOST_IN_A_MESSAGE", 0)
    files = data_files(storage, T)
    with pytest.raises(IntegrityError, match="'k4'"):
        upsert(storage, [rows(id=["k4"], a=[40])], [rows(id=["k4"], a=[41])])
    assert data_files(storage, T) == files
    planned = plan(storage, [T], new=NEW, writeMode="merge")
    ours = staged(planned, [[rows(id=["k4"], a=[40])]])
    assert data_files(storage, T) != files
    abort(planned, ours, complete=False)
    assert data_files(storage, T) == files


def test_what_a_large_message_left_that_is_gone_is_said_by_name(
    storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    ten(storage)
    monkeypatch.setattr(packed, "MOST_IN_A_MESSAGE", 0)
    planned = plan(storage, [T], new=NEW, writeMode="merge")
    ours = staged(planned, [[rows(id=["k4"], a=[40])]])
    storage.delete(ours[0].beside)
    with pytest.raises(StorageError, match=r"OMNIGRAPH_STORAGE.*\.rows is gone"):
        commit(planned, ours)
    assert values(storage)["k4"][0] == 4


@pytest.mark.parametrize(
    "found",
    [
        list(range(5, 40)),
        [0, 3, 4, 9],
        [7],
        [5, 2, 9, 1, 1 << 20],
        [1, 1 << 25, 1 << 30],
        [1, 1 << 40],
        list(range(7, 400_000, 400)),
        [3, 9, *range(7 << 20, (7 << 20) + 300_000, 100), 2, 5],
    ],
)
def test_lance_reads_the_row_ids_that_are_encoded_here(tmp_path: Path, found: list[int]) -> None:
    import json

    import lance
    from lance.fragment import write_fragments

    at = str(tmp_path / "d")
    made = lance.write_dataset(pa.table({"x": [0]}), at, enable_stable_row_ids=True)
    (fragment,) = write_fragments(
        pa.table({"x": range(len(found))}), made, mode="append", enable_stable_row_ids=True
    )
    plain = fragment.to_json()
    sequence = lance_messages.row_id_sequence(np.array(found, dtype=np.uint64) + np.uint64(1))
    plain["row_id_meta"] = {"Inline": list(sequence)}
    update = lance.LanceOperation.Update(
        removed_fragment_ids=[0],
        new_fragments=[lance.FragmentMetadata.from_json(json.dumps(plain))],
        update_mode="rewrite_rows",
    )
    done = lance.LanceDataset.commit(made, update, read_version=made.version)
    read = done.scanner(with_row_id=True).to_table()
    assert read["_rowid"].to_pylist() == [one + 1 for one in found]


def test_a_merge_that_changes_one_byte_of_a_blob_is_seen_and_moves_no_other(
    storage: Storage,
) -> None:
    from omnigraph_spark.arrow.to_table import to_table_batch

    schema = pa.schema([pa.field("id", pa.utf8(), nullable=False), pa.field("pic", blob_type())])
    new = {T: NewTable(schema)}
    stored = plan(storage, [T], new=new).targets[T].schema
    large = b"x" * (2 << 20)

    def pictures(**found: bytes | None) -> pa.RecordBatch:
        columns = {"id": [*found], "pic": pa.array(found.values(), pa.binary())}
        return to_table_batch(pa.RecordBatch.from_pydict(columns), stored, T)

    first = {"p1": b"A", "p2": b"\0", "p3": None, "p4": large}
    append(storage, pictures(**first), new=new)
    upsert(storage, [pictures(**dict(reversed(first.items())))], new=new)
    version = load(storage).version(T)
    other = large[:-1] + b"y"
    upsert(storage, [pictures(p4=other)], new=new)
    found = table(storage)
    assert [found[key]["pic"] or None for key in first] == [b"A", b"\0", None, other]
    assert found["p4"]["_row_last_updated_at_version"] == load(storage).version(T) > version
    assert dataset(storage).count_rows(filter="id = 'p2'") == 1


def test_tables_of_one_upsert_are_published_at_once(storage: Storage) -> None:
    new_graph(storage)
    before = load(storage).graph_version
    write(
        storage, {PERSON: ["first", "p"], COMPANY: ["c"], KNOWS: ["first", "k"]}, writeMode="merge"
    )
    assert load(storage).graph_version == before + 1
    assert [ids(storage, key) for key in (PERSON, COMPANY, KNOWS)] == [
        ["first", "p"],
        ["c", "first"],
        ["first", "k"],
    ]
    assert read_rows(open_manifest(storage)).num_rows > 0
