"""Each way to change rows, beside what passes it by: it is done once and as a whole, or refused."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from itertools import cycle, product
from pathlib import Path

import pyarrow as pa
import pytest

from omnigraph_spark import _faults
from omnigraph_spark.errors import OmnigraphError
from omnigraph_spark.maintenance.check import check
from omnigraph_spark.maintenance.cleanup import cleanup
from omnigraph_spark.maintenance.optimize import optimize, run_here
from omnigraph_spark.maintenance.repair import repair
from omnigraph_spark.refs import branches
from omnigraph_spark.storage.store import Storage
from omnigraph_spark.write.commit.commit import commit
from omnigraph_spark.write.plan import WritePlan
from omnigraph_spark.write.tasks.stage import StagedTable, stage
from tests.support import merges
from tests.support.branches import GRACE, make
from tests.support.merges import PERSON, rows_of, write_rows
from tests.support.writes import once, plan

Rows = dict[str, int]
People = list[tuple[str, int]]
Prepared = tuple[WritePlan, list[StagedTable]]
BEFORE: Rows = {"a": 1, "b": 2, "c": 3}


@pytest.fixture(scope="module")
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """People a, b, c in three commits."""
    storage = Storage.at(str(tmp_path_factory.mktemp("made") / "g"))
    merges.empty_graph(storage, request.param)
    for row in BEFORE.items():
        write_rows(storage, {PERSON: [row]})
    return Path(storage.root)


@pytest.fixture
def graph(made: Path, tmp_path: Path) -> Iterator[Storage]:
    """A copy of it with a branch `b`."""
    storage = Storage.at(str(shutil.copytree(made, tmp_path / "g")))
    make(storage, "b")
    yield storage
    _faults.disarm()


# --- ways to change rows -------------------------------------------------------------------------


def staged(planned: WritePlan, people: People) -> list[StagedTable]:
    schema = planned.targets[PERSON].schema
    ids, ages = (pa.array(column) for column in zip(*people, strict=True))
    columns = [ids, ages.cast(pa.int32())][: len(schema)]
    return stage(planned, [(PERSON, pa.RecordBatch.from_arrays(columns, schema=schema))])


def write(storage: Storage, branch: str, mode: str, people: People) -> Prepared:
    spark_mode = "overwrite" if mode == "overwrite" else "append"
    given = {"writeMode": mode, "branch": branch, "orphanGraceSeconds": str(GRACE)}
    planned = plan(storage, [PERSON], spark_mode, new=merges.NEW, **given)
    return planned, staged(planned, people)


def merge_into(storage: Storage, branch: str) -> Prepared:
    """Change, add and delete rows in one commit."""
    planned, changed = write(storage, branch, "merge", [("b", 20), ("new", 9)])
    planned = replace(planned, deletes=True, on_delete="cascade")
    target = replace(planned.targets[PERSON], mode="delete")
    gone = replace(planned, targets={PERSON: target})
    return planned, [*changed, *stage(gone, [(PERSON, pa.RecordBatch.from_pydict({"id": ["a"]}))])]


def delete(storage: Storage, branch: str) -> Prepared:
    given = {"writeMode": "delete", "branch": branch, "orphanGraceSeconds": str(GRACE)}
    planned = plan(storage, [PERSON], **given)
    return planned, stage(planned, [(PERSON, pa.RecordBatch.from_pydict({"id": ["a"]}))])


def without(rows: Rows, row_id: str) -> Rows:
    return {key: age for key, age in rows.items() if key != row_id}


WAYS: dict[str, tuple[Callable[[Storage, str], Prepared], Callable[[Rows], Rows]]] = {
    "append": (lambda s, b: write(s, b, "append", [("new", 9)]), lambda rows: {**rows, "new": 9}),
    "overwrite": (lambda s, b: write(s, b, "overwrite", [("new", 9)]), lambda _: {"new": 9}),
    "update": (lambda s, b: write(s, b, "merge", [("b", 20)]), lambda rows: {**rows, "b": 20}),
    "delete": (delete, lambda rows: without(rows, "a")),
    "merge_into": (merge_into, lambda rows: {**without(rows, "a"), "b": 20, "new": 9}),
}


# --- what passes by ------------------------------------------------------------------------------


def clean(storage: Storage) -> None:
    """Clean up as another writer would in a month."""
    later = datetime.now(timezone.utc) + timedelta(days=30)
    cleanup(storage, timedelta(0), 1, dry_run=False, force=True, grace_seconds=GRACE, now=later)


def make_again(storage: Storage, branch: str) -> None:
    """Give the name to another branch with as many versions."""
    branches.delete_branch(storage, branch, 0.01)
    make(storage, branch)


def write_and_clean(storage: Storage, branch: str) -> None:
    for number in range(3):
        write_rows(storage, {PERSON: [(f"r{number}", number)]}, branch=branch)
    clean(storage)


def tidy(storage: Storage, branch: str) -> None:
    optimize(storage, branch, None, run_here)


def fail(storage: Storage, branch: str) -> None:
    raise OSError("the store doesn't answer (injected)")


RIVALS: Rows = {f"r{number}": number for number in range(3)}
# By the fault point at which it happens: how the write may end, and what there is without it.
PASSING: dict[
    str, tuple[str, Callable[[Storage, str], object], set[str], Callable[[Rows], Rows]]
] = {
    "branch made again": (
        "publish.sending",
        make_again,
        {"refused"},
        lambda rows: rows,
    ),
    "cleanup of its files": (
        "commit.entered",
        lambda s, _: clean(s),
        {"refused"},
        lambda rows: rows,
    ),
    "cleanup under its publish": (
        "publish.sending",
        write_and_clean,
        {"done", "refused"},
        lambda rows: {**rows, **RIVALS},
    ),
    "optimize": ("commit.record_written", tidy, {"done"}, lambda rows: rows),
    "failure after its publish": ("publish.landed", fail, {"done"}, lambda rows: rows),
}
# The ways that other tests have too are tried in `make test-rounds`.
OFTEN = ("delete", "merge_into")
CASES = [
    pytest.param(
        made,
        way,
        what,
        id=f"{made}-{way}-{what}",
        marks=() if way in OFTEN else pytest.mark.long,
    )
    for (what, way), made in zip(product(PASSING, WAYS), cycle((2, 6)))
]


@pytest.mark.long
@pytest.mark.parametrize(("made", "way", "what"), CASES, indirect=["made"])
def test_a_change_of_rows_is_done_once_and_as_a_whole_or_refused(
    graph: Storage, way: str, what: str
) -> None:
    prepare, after = WAYS[way]
    point, act, ends, meanwhile = PASSING[what]
    branch = "b" if what != "optimize" else "main"
    before: Rows = dict(rows_of(graph, PERSON, branch))
    planned, files = prepare(graph, branch)
    _faults.arm(point, once(lambda: act(graph, branch)))
    ended = "done"
    try:
        commit(planned, files)
    except OmnigraphError:
        ended = "refused"
    _faults.disarm()
    has_files = any(one.fragments for one in files)
    assert ended in (ends if has_files or "its files" not in what else {"done"})
    there = meanwhile(before)
    assert rows_of(graph, PERSON, branch) == sorted(
        (after(there) if ended == "done" else there).items()
    )
    write_rows(graph, {PERSON: [("next", 0)]}, branch=branch)
    repair(graph, False, GRACE)
    assert check(graph) == []
    assert "next" in dict(rows_of(graph, PERSON, branch))
