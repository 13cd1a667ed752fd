"""After the merge into `__manifest` returned, no error says that nothing was published."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import product
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from omnigraph_spark import _faults
from omnigraph_spark.errors import BranchNotFoundError, PublishOutcomeUnknown, StorageError
from omnigraph_spark.history import commits
from omnigraph_spark.maintenance import check as checks
from omnigraph_spark.maintenance.optimize import create_index, optimize, run_here
from omnigraph_spark.maintenance.repair import repair
from omnigraph_spark.manifest import formats
from omnigraph_spark.manifest.snapshot import load
from omnigraph_spark.merge import merging, restore
from omnigraph_spark.refs import branches, refs, tags
from omnigraph_spark.schema_changes import properties
from omnigraph_spark.storage import layout
from omnigraph_spark.storage.store import Storage
from omnigraph_spark.write.commit.commit import commit
from omnigraph_spark.write.plan import Settings
from tests.support import merges
from tests.support.branches import GRACE, ids_at, make, names
from tests.support.merges import KNOWS, PERSON, write_rows
from tests.support.writes import both_stamps, once, plan, stage_rows, write_options

CALLS = ("_open", "get", "get_range", "head", "put", "delete", "delete_many", "list")
QUICK = Settings(orphan_grace_seconds=GRACE)


@pytest.fixture(scope="module")
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A graph of people and who knows whom, written in a few commits, without branches."""
    storage = merges.empty_graph(
        Storage.at(str(tmp_path_factory.mktemp("made") / "g")), getattr(request, "param", 2)
    )
    write_rows(storage, {PERSON: [("a", 1), ("b", 2)], KNOWS: [("ab", "a", "b")]})
    for number in range(3):
        write_rows(storage, {PERSON: [(f"p{number}", number)]})
    return Path(storage.root)


@pytest.fixture
def graph(made: Path, tmp_path: Path) -> Iterator[Storage]:
    """A copy of the graph with a branch `b`; no fault outlives the test."""
    shutil.copytree(made, tmp_path / "g")
    storage = Storage.at(str(tmp_path / "g"))
    make(storage, "b")
    yield storage
    _faults.disarm()


def save(storage: Storage, mode: str = "append", **more: str) -> Any:
    return write_rows(storage, {PERSON: [("a" if mode == "delete" else "x", 9)]}, mode, **more)


def merge(storage: Storage) -> Any:
    write_rows(storage, {PERSON: [("x", 9)]}, branch="b")
    found = merges.prepare(storage, "b", "main")
    return lambda: merging.publish(found, write_options(storage, "overwrite"))


def options(storage: Storage) -> Any:
    return write_options(storage, branch="b" if "b" in names(storage) else "main")


# What each does is prepared on a graph and then done: its publish is the last one.
OPERATIONS: dict[str, tuple[str, Callable[[Storage], Callable[[], object]]]] = {
    "append": ("main", lambda s: lambda: save(s)),
    "append to a branch": ("b", lambda s: lambda: save(s, branch="b")),
    "upsert": ("main", lambda s: lambda: save(s, "merge")),
    "delete": ("main", lambda s: lambda: save(s, "delete", onDelete="cascade")),
    "overwrite": ("b", lambda s: lambda: save(s, "overwrite", branch="b")),
    "restore": ("main", lambda s: lambda: restore.restore(s, write_options(s), "3")),
    "optimize": ("main", lambda s: lambda: optimize(s, "main", None, run_here, settings=QUICK)),
    "index": ("main", lambda s: lambda: create_index(s, "main", PERSON, "age", "BTREE", None)),
    "merge": ("main", merge),
    "add a property": (
        "b",
        lambda s: lambda: properties.add_property(s, options(s), PERSON, "note", "String?"),
    ),
    "drop a property": (
        "b",
        lambda s: lambda: properties.drop_property(s, options(s), PERSON, "age"),
    ),
    "rename a property": (
        "main",
        lambda s: lambda: properties.rename_property(s, write_options(s), PERSON, "age", "years"),
    ),
    "drop a table": ("b", lambda s: lambda: properties.drop_table(s, options(s), [KNOWS])),
    "add a table": (
        "b",
        lambda s: lambda: properties.add_table(s, options(s), "node:New", "n INT"),
    ),
}


def go_dark(patch: pytest.MonkeyPatch) -> None:
    """Let every call to the store fail from now on."""

    def fails(*_: Any, **__: Any) -> Any:
        raise StorageError("503 Slow Down (injected)")

    for name in CALLS:
        patch.setattr(Storage, name, fails)


def outcome(act: Callable[[], object]) -> str:
    """Do it; an error that isn't `PublishOutcomeUnknown` fails the test."""
    try:
        act()
    except PublishOutcomeUnknown:
        return "unknown"
    return "done"


def assert_whole(storage: Storage, branch: str, before: int) -> None:
    """Assert that a publish landed, that nothing was put back, and that the next write works."""
    assert load(storage, branch).graph_version > before
    kinds = {one.kind for one in checks.check(storage)}
    assert checks.UNPUBLISHED_HEAD not in kinds
    wide = ("next", *[None] * 9)  # whatever columns the table has by now
    write_rows(storage, {PERSON: [wide]}, branch=branch)
    assert "next" in ids_at(storage, PERSON, branch)


@both_stamps
@pytest.mark.parametrize("what", OPERATIONS)
def test_a_store_that_goes_dark_after_the_publish_makes_no_definite_error(
    graph: Storage, what: str
) -> None:
    branch, prepare = OPERATIONS[what]
    if what.endswith(("property", "table")) and formats.of_graph(graph).has_identities:
        branches.delete_branch(graph, "b", GRACE)  # where types are one for all branches
        branch = "main"
    act = prepare(graph)
    before = load(graph, branch).graph_version
    with pytest.MonkeyPatch.context() as patch:
        _faults.arm("publish.landed", once(lambda: go_dark(patch)))
        found = outcome(act)
        _faults.disarm()
    # What looks at the graph once more after its publish can't say how that ended.
    looks_again = branch == "b" or what == "add a table"
    assert found == ("unknown" if looks_again else "done")
    assert_whole(graph, branch, before)


AFTER = [
    "publish.landed",
    "publish.after_merge",
    "commit.after_publish",
    "lineage.after_actor",
    "commit.before_record_delete",
    "commit.done",
]


def failing_once(
    patch: pytest.MonkeyPatch, call: str, act: Callable[[int], object], numbers: range
) -> Iterator[tuple[int, str, bool]]:
    """Do it again and again while a call to the store fails: the first, or a later one.

    Yields the number of the call, whether what was done is `done`, `unknown` or `denied`, and
    whether that call was reached at all. Between two attempts the store works.
    """
    real, calls, failing = getattr(Storage, call), [0], [0]

    def fails(self: Storage, *rest: Any, **more: Any) -> Any:
        calls[0] += 1
        if calls[0] == failing[0]:
            raise StorageError("503 Slow Down (injected)")
        return real(self, *rest, **more)

    patch.setattr(Storage, call, fails)
    for number in numbers:
        calls[0], failing[0] = 0, number
        try:
            act(number)
            ended = "done"
        except PublishOutcomeUnknown:
            ended = "unknown"
        except StorageError:
            ended = "denied"
        reached, failing[0] = calls[0] >= number, 0
        yield number, ended, reached


@pytest.mark.long
@pytest.mark.parametrize("made", [6], indirect=True)
@pytest.mark.parametrize("call", ["put", "get", "_open"])
def test_an_added_table_is_denied_only_where_it_is_certainly_missing(
    graph: Storage, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    branches.delete_branch(graph, "b", GRACE)

    def act(number: int) -> None:
        properties.add_table(graph, write_options(graph), f"node:New{number}", "n INT")

    ends = Counter[str]()
    for number, ended, reached in failing_once(monkeypatch, call, act, range(1, 80, 3)):
        ends[ended] += 1
        there = f"node:New{number}" in load(graph).tables
        assert there == (ended != "denied"), (number, ended)
        repair(graph, dry_run=False, grace_seconds=GRACE)
        if not reached:
            break
    assert ends["done"] >= 1
    assert ends["denied"] >= 1


@pytest.mark.long
@pytest.mark.parametrize("what", ["append to a branch", "optimize"])
def test_an_error_at_any_step_after_the_publish_leaves_it_done(graph: Storage, what: str) -> None:
    branch, prepare = OPERATIONS[what]
    for point in AFTER:
        act = prepare(graph)
        before = load(graph, branch).graph_version
        _faults.arm(point, "raise@1")
        found = outcome(act)
        _faults.disarm()
        assert found == "done" or point == "publish.after_merge", point
        assert_whole(graph, branch, before)
        write_rows(graph, {PERSON: [("y", 1)]})  # something for the next optimize to gather


@both_stamps
def test_an_error_of_any_kind_after_the_publish_is_only_logged(
    graph: Storage, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def damaged(*_: Any, **__: Any) -> None:
        raise pa.ArrowInvalid("a file of the lineage is cut off")

    monkeypatch.setattr(commits, "record_publish", damaged)
    assert not save(graph).skipped
    assert optimize(graph, "main", None, run_here, settings=QUICK).publish_id is not None
    assert "a file of the lineage is cut off" in caplog.text


@both_stamps
def test_a_commit_that_is_called_again_deletes_no_published_file_when_the_store_fails(
    graph: Storage,
) -> None:
    planned = plan(graph, [PERSON], branch="b")
    staged = stage_rows(planned, {PERSON: ["x"]})
    commit(planned, staged)
    with pytest.MonkeyPatch.context() as patch:

        def fails(*_: Any) -> Any:
            raise StorageError("503 Slow Down (injected)")

        patch.setattr("omnigraph_spark.manifest.publisher._once", fails)
        patch.setattr("omnigraph_spark.manifest.publisher._version_of_publish", fails)
        assert outcome(lambda: commit(planned, staged)) == "done"
    assert "x" in ids_at(graph, PERSON, "b")


# --- branches and tags ---------------------------------------------------------------------------

REFS: dict[str, Callable[[Storage], object]] = {
    "make a branch": lambda s: make(s, "new"),
    "make a tag": lambda s: tags.create_tag(s, "new", refs.named(s, "main")),
    "delete a branch": lambda s: branches.delete_branch(s, "b", GRACE),
    "delete a tag": lambda s: tags.delete_tag(s, "t"),
}


@pytest.mark.long
@pytest.mark.parametrize(
    ("made", "what"), [*product([2], REFS), (6, "make a branch")], indirect=["made"]
)
def test_a_ref_that_is_made_or_deleted_is_never_denied(
    graph: Storage, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    tags.create_tag(graph, "t", refs.named(graph, "main"))
    deletes = what.startswith("delete")
    name = {"branch": "b", "tag": "t"}[what.rsplit(maxsplit=1)[-1]] if deletes else "new"
    attempts = failing_once(monkeypatch, "_open", lambda _: REFS[what](graph), range(1, 60, 2))
    for number, ended, reached in attempts:
        listed = name in [*names(graph), *(tag.name for tag in refs.list_tags(graph))]
        if ended == "denied":
            assert listed == deletes, f"call {number}"
        if ended == "done":
            assert listed != deletes, f"call {number}"
            if not reached:
                return
        _restored(graph, what, listed)
    raise AssertionError("never done")


def _restored(graph: Storage, what: str, listed: bool) -> None:
    """Take back what an attempt has done."""
    if what == "make a branch" and listed:
        branches.delete_branch(graph, "new", GRACE)
    if what == "make a tag" and listed:
        tags.delete_tag(graph, "new")
    if what == "delete a branch" and not listed:
        with suppress(BranchNotFoundError):  # what a deletion that failed half-way has left
            branches.delete_branch(graph, "b", GRACE)
        make(graph, "b")
    if what == "delete a tag" and not listed:
        tags.create_tag(graph, "t", refs.named(graph, "main"))


@both_stamps
def test_whether_a_branch_was_made_is_unknown_where_the_store_stays_dark(
    graph: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = branches._clone

    def lost(storage: Storage, location: str, *rest: Any) -> None:
        real(storage, location, *rest)
        if location == layout.MANIFEST:
            go_dark(monkeypatch)
            storage.get("x")

    monkeypatch.setattr(branches, "_clone", lost)
    with pytest.raises(PublishOutcomeUnknown, match="making branch new is unknown"):
        make(graph, "new")
