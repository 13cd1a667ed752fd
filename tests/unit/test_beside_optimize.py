"""Maintenance changes no row, so no writer fails for one that was published in between."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from omnigraph_spark import _faults
from omnigraph_spark.errors import ExpectedVersionMismatch
from omnigraph_spark.maintenance.check import check
from omnigraph_spark.maintenance.optimize import create_index, optimize, run_here
from omnigraph_spark.manifest.snapshot import load, open_main, read_rows
from omnigraph_spark.merge import merging, restore
from omnigraph_spark.schema_changes import properties
from omnigraph_spark.storage.store import Storage
from omnigraph_spark.write.commit.commit import commit
from omnigraph_spark.write.plan import Settings
from omnigraph_spark.write.reads import has_same_rows
from tests.support import merges
from tests.support.branches import GRACE, ids_at, make, write_ids
from tests.support.merges import KNOWS, PERSON, write_rows
from tests.support.writes import both_stamps, once, plan, stage_rows, write_and_die, write_options

QUICK = Settings(orphan_grace_seconds=GRACE)


@pytest.fixture(scope="module")
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A graph whose two tables have a few small fragments each."""
    storage = Storage.at(str(tmp_path_factory.mktemp("made") / "g"))
    merges.empty_graph(storage, getattr(request, "param", 2))
    write_rows(storage, {PERSON: [("a", 1), ("b", 2)], KNOWS: [("ab", "a", "b")]})
    for number in range(2):
        write_rows(
            storage,
            {PERSON: [(f"p{number}", number)], KNOWS: [(f"k{number}", "a", "b")]},
        )
    return Path(storage.root)


@pytest.fixture
def graph(made: Path, tmp_path: Path) -> Iterator[Storage]:
    shutil.copytree(made, tmp_path / "g")
    yield Storage.at(str(tmp_path / "g"))
    _faults.disarm()


def tidy(storage: Storage, tables: list[str] | None = None) -> None:
    done = optimize(storage, "main", tables, run_here, settings=QUICK)
    assert done.publish_id is not None, "there was nothing to optimize"


def overwrite(storage: Storage) -> Callable[[], object]:
    planned = plan(storage, [PERSON], "overwrite", new=merges.NEW)
    staged = stage_rows(planned, {PERSON: ["new"]})
    return lambda: commit(planned, staged)


def merge(storage: Storage) -> Callable[[], object]:
    make(storage, "b")
    write_rows(storage, {PERSON: [("new", 9)]}, branch="b")
    write_rows(storage, {PERSON: [("a", 0)]}, "delete", branch="b", onDelete="cascade")
    found = merges.prepare(storage, "b")
    return lambda: merging.publish(found, write_options(storage, "overwrite"))


def upsert(storage: Storage) -> Callable[[], object]:
    now = load(storage)
    expected = json.dumps({key: now.version(key) for key in (PERSON, KNOWS)})
    rows = {PERSON: [("new", 9)]}
    return lambda: write_rows(storage, rows, "merge", expectedTableVersions=expected)


def back(storage: Storage) -> Callable[[], object]:
    first = load(storage, version=load(storage).graph_version - 2)
    planned = restore.plan_restore(storage, write_options(storage), first)
    return lambda: commit(planned.write, [])


def dropped(storage: Storage) -> Callable[[], object]:
    return lambda: properties.drop_table(storage, write_options(storage), [KNOWS])


WRITERS: dict[str, tuple[Callable[[Storage], Callable[[], object]], list[str]]] = {
    "overwrite": (overwrite, ["new"]),
    "merge of branches": (merge, ["b", "new", "p0", "p1"]),
    "upsert with expected versions": (upsert, ["a", "b", "new", "p0", "p1"]),
    "restore": (back, ["a", "b"]),
    "drop of a table": (dropped, ["a", "b", "p0", "p1"]),
}


# At its publish a writer's own tables are its own; what it expects of others may move.
CASES = [
    *((what, "commit.record_written", None) for what in WRITERS),
    ("merge of branches", "commit.entered", None),
    ("merge of branches", "commit.before_publish", [KNOWS]),
    ("upsert with expected versions", "commit.before_publish", [KNOWS]),
]


@both_stamps
@pytest.mark.parametrize(("what", "point", "tables"), CASES)
def test_no_writer_fails_for_an_optimize_in_between(
    graph: Storage, what: str, point: str, tables: list[str] | None
) -> None:
    prepare, expected = WRITERS[what]
    act = prepare(graph)
    _faults.arm(point, once(lambda: tidy(graph, tables)))
    act()
    _faults.disarm()
    assert ids_at(graph, PERSON) == expected
    assert check(graph) == []


@both_stamps
def test_a_write_that_was_planned_before_an_optimize_passes(graph: Storage) -> None:
    read = {PERSON: load(graph).version(PERSON)}
    tidy(graph)
    create_index(graph, "main", PERSON, "id", "BTREE", None, QUICK)
    planned = plan(graph, [PERSON], "overwrite", new=merges.NEW, read_versions=read)
    commit(planned, stage_rows(planned, {PERSON: ["new"]}))
    assert ids_at(graph, PERSON) == ["new"]


@both_stamps
def test_a_dead_write_that_another_one_rolled_back_is_no_change(graph: Storage) -> None:
    act = overwrite(graph)
    write_and_die(graph, "commit.tables_done", {PERSON: ["dead"]})
    write_ids(graph, "main", KNOWS, ["k9"])
    act()
    assert ids_at(graph, PERSON) == ["new"]


@both_stamps
@pytest.mark.parametrize("first", ["append", "optimize"])
def test_rows_of_another_writer_are_still_a_change_beside_an_optimize(
    graph: Storage, first: str
) -> None:
    acts: list[Callable[[], Any]] = [
        lambda: write_rows(graph, {PERSON: [("theirs", 1)]}),
        lambda: tidy(graph),
    ]
    act = overwrite(graph)
    for one in acts if first == "append" else acts[::-1]:
        one()
    with pytest.raises(ExpectedVersionMismatch):
        act()
    assert "theirs" in ids_at(graph, PERSON)


@both_stamps
def test_versions_hold_the_same_rows_only_where_every_publish_in_between_is_maintenance(
    graph: Storage,
) -> None:
    def same(version: int) -> bool:
        now = load(graph).version(PERSON)
        return has_same_rows(read_rows(open_main(graph)), PERSON, version, now)

    before = load(graph).version(PERSON)
    tidy(graph)
    between = load(graph).version(PERSON)
    assert same(before)
    assert same(between)
    assert not same(before - 1)
    assert not same(between + 1)
    assert not same(0)
    write_rows(graph, {PERSON: [("x", 1)]})
    assert not same(before)
    assert not same(between)
