"""A branch that is made again under an old name is another branch; a half-made one hinders nobody."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

from omnigraph_spark import _faults
from omnigraph_spark.errors import (
    BranchNotFoundError,
    OmnigraphError,
    OptionError,
    PublishOutcomeUnknown,
)
from omnigraph_spark.history import commits
from omnigraph_spark.maintenance import cleanup as cleaning
from omnigraph_spark.maintenance.check import check
from omnigraph_spark.maintenance.repair import repair
from omnigraph_spark.manifest import crash_records
from omnigraph_spark.refs import branches as manage
from omnigraph_spark.refs import forks, tags
from omnigraph_spark.refs.refs import Resolved
from omnigraph_spark.storage import layout
from omnigraph_spark.storage.store import Storage
from omnigraph_spark.write.commit.commit import commit
from tests.support.branches import GRACE, at, forks_of, ids_at, make, names, remove, write_ids
from tests.support.writes import (
    COMPANY,
    KNOWS,
    PERSON,
    Died,
    both_stamps,
    empty_graph,
    new_graph,
    once,
    plan,
    stage_rows,
)

REF = "__manifest/_refs/branches/b.json"


@pytest.fixture(scope="module")
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    storage = Storage.at(str(tmp_path_factory.mktemp("made") / "g"))
    empty_graph(storage, getattr(request, "param", 2))
    return Path(new_graph(storage, (PERSON, KNOWS)).root)


@pytest.fixture
def graph(made: Path, tmp_path: Path) -> Iterator[Storage]:
    """A graph of two tables; no fault outlives the test."""
    yield Storage.at(str(shutil.copytree(made, tmp_path / "g")))
    _faults.disarm()


def save_acknowledged(storage: Storage) -> None:
    make(storage, "b")
    write_ids(storage, "b", PERSON, ["acknowledged"])


def old_cleanup(storage: Storage) -> cleaning.Cleaned:
    """Clean up as another writer would in a month: all that is there is old by then."""
    moment = datetime.now(timezone.utc) + timedelta(days=30)
    return cleaning.cleanup(
        storage, timedelta(0), 1, dry_run=False, force=True, grace_seconds=GRACE, now=moment
    )


def rows_of(storage: Storage) -> dict[str, list[str]]:
    """Return the ids in each table of branch `b`."""
    return {key: ids_at(storage, key, "b") for key in at(storage, "b").tables}


def before_the_next(
    monkeypatch: pytest.MonkeyPatch, where: Any, name: str, act: Callable[[], object]
) -> None:
    """Let a rival act just before a function is called the next time."""
    real = getattr(where, name)

    def overtaken(*given: Any, **more: Any) -> Any:
        monkeypatch.setattr(where, name, real)
        act()
        return real(*given, **more)

    monkeypatch.setattr(where, name, overtaken)


def leftover(storage: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave a table's fork of a branch `b` whose deletion died once its ref was gone."""
    make(storage, "b")
    write_ids(storage, "b", PERSON, ["old"])
    real, calls = forks.remove_fork, []

    def dies(*given: Any, **more: Any) -> Any:
        calls.append(1)
        if len(calls) > 2:
            raise Died
        return real(*given, **more)

    monkeypatch.setattr(forks, "remove_fork", dies)
    with pytest.raises(Died):
        remove(storage, "b")
    monkeypatch.setattr(forks, "remove_fork", real)
    assert names(storage) == ["main"]
    assert forks_of(storage, PERSON) == ["b"]


# --- leftovers -----------------------------------------------------------------------------------


@pytest.mark.long
@both_stamps
@pytest.mark.parametrize("who", ["cleanup", "repair", "create_branch"])
def test_a_leftover_fork_is_not_removed_under_a_branch_that_is_made_again(
    graph: Storage, monkeypatch: pytest.MonkeyPatch, who: str
) -> None:
    leftover(graph, monkeypatch)
    before_the_next(monkeypatch, forks, "remove_fork", lambda: save_acknowledged(graph))
    if who == "cleanup":
        old_cleanup(graph)
    elif who == "repair":
        repair(graph, False, GRACE)
    else:
        with pytest.raises(OptionError, match="b is there already"):
            make(graph, "b")
    assert ids_at(graph, PERSON, "b") == ["acknowledged", "first"]
    write_ids(graph, "b", PERSON, ["next"])
    assert check(graph) == []


@pytest.mark.long
@both_stamps
@pytest.mark.parametrize("point", ["fork.before_removal", "fork.ref_removed"])
def test_a_fork_whose_removal_slept_keeps_what_came_meanwhile(
    graph: Storage, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    leftover(graph, monkeypatch)
    _faults.arm(point, once(lambda: save_acknowledged(graph)))
    repair(graph, False, GRACE)
    assert ids_at(graph, PERSON, "b") == ["acknowledged", "first"]
    write_ids(graph, "b", PERSON, ["next"])
    assert check(graph) == []


@pytest.mark.long
@both_stamps
def test_a_deletion_that_waits_does_not_delete_a_branch_that_is_made_again(
    graph: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    make(graph, "b")
    write_ids(graph, "b", PERSON, ["old"])
    real = manage._close

    def slow(*given: Any, **more: Any) -> None:
        monkeypatch.setattr(manage, "_close", real)
        real(*given, **more)
        remove(graph, "b")
        save_acknowledged(graph)

    monkeypatch.setattr(manage, "_close", slow)
    with pytest.raises(BranchNotFoundError, match="deleted and made again"):
        remove(graph, "b")
    assert ids_at(graph, PERSON, "b") == ["acknowledged", "first"]
    write_ids(graph, "b", PERSON, ["next"])
    assert check(graph) == []


# --- writers that sleep --------------------------------------------------------------------------


@pytest.mark.parametrize("point", ["publish.before_merge", "publish.sending"])
@pytest.mark.parametrize("key", [PERSON, COMPANY])
@pytest.mark.parametrize("written", [False, True])
def test_a_publish_that_slept_does_not_land_in_a_branch_that_was_made_again(
    graph: Storage, point: str, key: str, written: bool
) -> None:
    make(graph, "b")
    before = rows_of(graph)
    planned = plan(graph, [key], branch="b", orphanGraceSeconds=str(GRACE))
    staged = stage_rows(planned, {key: ["zombie"]})

    def made_again() -> None:
        manage.delete_branch(graph, "b", 0.01)
        make(graph, "b")
        if written:
            write_ids(graph, "b", KNOWS, ["k"])

    _faults.arm(point, once(made_again))
    with pytest.raises((BranchNotFoundError, PublishOutcomeUnknown)):
        commit(planned, staged)
    crash_records.delete(graph, planned.publish_id)
    assert rows_of(graph) == (before | {KNOWS: ["first", "k"]} if written else before)
    write_ids(graph, "b", PERSON, ["next"])
    assert ids_at(graph, PERSON, "b") == ["first", "next"]


@both_stamps
def test_a_publish_that_lands_in_another_branch_is_taken_back(graph: Storage) -> None:
    make(graph, "b")
    before = rows_of(graph)
    planned = plan(graph, [COMPANY], branch="b", orphanGraceSeconds=str(GRACE))
    staged = stage_rows(planned, {COMPANY: ["zombie"]})
    text = graph.get(REF)
    assert text is not None
    found = graph.dataset(layout.MANIFEST).branches.list()["b"]["branch_identifier"][-1][1]
    others = text.replace(found.encode(), found[::-1].encode())
    assert others != text
    # The same folder under another identifier: what a rename of a store's folder could make.
    _faults.arm("publish.landed", once(lambda: graph.put(REF, others)))
    with pytest.raises(PublishOutcomeUnknown, match="was deleted while it was published to"):
        commit(planned, staged)
    assert rows_of(graph) == before


@both_stamps
def test_a_writer_puts_no_table_back_in_a_branch_that_was_made_again(graph: Storage) -> None:
    make(graph, "b")
    planned = plan(graph, [PERSON], branch="b", orphanGraceSeconds=str(GRACE))
    staged = stage_rows(planned, {PERSON: ["zombie"]})

    def made_again() -> None:
        manage.delete_branch(graph, "b", 0.01)
        save_acknowledged(graph)

    _faults.arm("commit.before_publish", once(made_again))
    with pytest.raises(BranchNotFoundError, match="made again"):
        commit(planned, staged)
    entry = at(graph, "b").entry(PERSON)
    assert graph.dataset(entry.location, "b").version == entry.table_version
    assert ids_at(graph, PERSON, "b") == ["acknowledged", "first"]
    assert check(graph) == []


@both_stamps
def test_what_a_dead_writer_left_on_a_deleted_branch_is_not_rolled_back_on_the_new_one(
    graph: Storage, caplog: pytest.LogCaptureFixture
) -> None:
    make(graph, "b")
    dead = write_and_die_on(graph, "b")
    manage.delete_branch(graph, "b", 0.01)
    save_acknowledged(graph)
    assert dead not in [one.publish_id for one in crash_records.others(graph, "")]
    assert "is gone" in caplog.text
    assert ids_at(graph, PERSON, "b") == ["acknowledged", "first"]


def write_and_die_on(storage: Storage, branch: str) -> str:
    planned = plan(storage, [PERSON], branch=branch, orphanGraceSeconds=str(GRACE))
    staged = stage_rows(planned, {PERSON: ["dead"]})
    _faults.arm("commit.before_publish", die_once)
    with pytest.raises(Died):
        commit(planned, staged)
    _faults.disarm()
    return planned.publish_id


def die_once() -> None:
    raise Died


# --- half made, half deleted ---------------------------------------------------------------------


def half_made(storage: Storage) -> None:
    """Leave a ref without a folder: its maker slept before the ref, and its folder was deleted."""
    make(storage, "b")
    text = storage.get(REF)
    assert text is not None
    for place in (layout.MANIFEST, layout.GRAPH_COMMITS):
        for info in storage.list(f"{place}/tree/b"):
            storage.delete(info.path)
    storage.delete(f"{layout.GRAPH_COMMITS}/_refs/branches/b.json")
    storage.put(REF, text)
    with pytest.raises(OmnigraphError):
        ids_at(storage, PERSON, "b")


def half_deleted(storage: Storage) -> None:
    """Leave a branch `b` of a branch whose files are gone: it has a folder, and reads nothing."""
    make(storage, "parent")
    write_ids(storage, "parent", PERSON, ["p"])
    make(storage, "b", "parent")
    text = storage.get(REF)
    assert text is not None
    for info in storage.list("__manifest/tree/b/data"):
        storage.delete(info.path)
    storage.delete(REF)
    remove(storage, "parent")
    storage.put(REF, text)
    with pytest.raises(OmnigraphError):
        ids_at(storage, PERSON, "b")


@pytest.mark.long
@both_stamps
@pytest.mark.parametrize("leave", [half_made, half_deleted])
def test_a_branch_that_cant_be_read_hinders_no_other(
    graph: Storage, leave: Callable[[Storage], None]
) -> None:
    leave(graph)
    make(graph, "other")
    write_ids(graph, "other", PERSON, ["o"])
    tags.create_tag(graph, "t", Resolved("main", None))
    tags.delete_tag(graph, "t")
    write_ids(graph, "main", COMPANY, ["c"])
    assert old_cleanup(graph).files > 0
    remove(graph, "other")
    write_ids(graph, "main", PERSON, ["next"])
    assert ids_at(graph, PERSON) == ["first", "next"]


@pytest.mark.long
@both_stamps
@pytest.mark.parametrize("leave", [half_made, half_deleted])
def test_a_branch_that_cant_be_read_is_deleted_like_any_other(
    graph: Storage, leave: Callable[[Storage], None]
) -> None:
    leave(graph)
    remove(graph, "b")
    assert names(graph) == ["main"]
    save_acknowledged(graph)
    assert ids_at(graph, PERSON, "b") == ["acknowledged", "first"]
    assert check(graph) == []


@both_stamps
def test_a_creator_that_slept_before_its_last_step_leaves_no_half_made_branch(
    graph: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    def deleted() -> None:
        text = graph.get(REF)
        assert text is not None
        graph.delete(REF)
        monkeypatch.setattr(manage, "_CREATOR_SECONDS", 0.01)
        remove(graph, "b")
        graph.put(REF, text)  # as if its maker had slept until now

    _faults.arm("branch.cloned", once(deleted))
    with pytest.raises(BranchNotFoundError, match="deleted while it was made"):
        make(graph, "b")
    assert names(graph) == ["main"]
    assert check(graph) == []
    save_acknowledged(graph)


@both_stamps
def test_a_child_of_a_branch_that_is_deleted_meanwhile_is_not_acknowledged(
    graph: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    make(graph, "parent")
    write_ids(graph, "parent", PERSON, ["p"])

    def deleted() -> None:
        text = graph.get(REF)
        assert text is not None
        graph.delete(REF)
        monkeypatch.setattr(manage, "_CREATOR_SECONDS", 0.01)
        remove(graph, "parent")
        graph.put(REF, text)

    _faults.arm("branch.cloned", once(deleted))
    with pytest.raises(BranchNotFoundError):
        make(graph, "b", "parent")
    assert names(graph) == ["main"]
    assert check(graph) == []


@both_stamps
def test_deleting_a_branch_that_is_being_made_waits_for_its_ref(
    graph: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    make(graph, "b")
    text = graph.get(REF)
    assert text is not None
    graph.delete(REF)
    real = forks.is_listed_soon

    def soon(*given: Any) -> bool:
        graph.put(REF, text)
        return real(*given)

    monkeypatch.setattr(forks, "is_listed_soon", soon)
    remove(graph, "b")
    assert names(graph) == ["main"]
    assert check(graph) == []


@both_stamps
def test_a_table_fork_with_a_ref_and_no_folder_is_made_again_by_the_next_write(
    graph: Storage,
) -> None:
    make(graph, "b")
    write_ids(graph, "b", KNOWS, ["k"])
    location = at(graph).locations[PERSON]
    graph.dataset(location).create_branch("b", ("main", at(graph).version(PERSON)))
    for info in graph.list(f"{location}/tree/b"):
        graph.delete(info.path)
    write_ids(graph, "b", PERSON, ["acknowledged"])
    assert ids_at(graph, PERSON, "b") == ["acknowledged", "first"]
    assert check(graph) == []


# --- the lineage ---------------------------------------------------------------------------------


@pytest.mark.long
@pytest.mark.parametrize("point", ["lineage.before_row", "lineage.after_actor"])
def test_the_commit_of_a_deleted_branch_is_none_of_the_branch_that_took_its_name(
    graph: Storage, point: str
) -> None:
    save_acknowledged(graph)

    def made_again() -> None:
        remove(graph, "b")
        make(graph, "b")
        write_ids(graph, "b", PERSON, ["of the new one"], actor="ann")

    _faults.arm(point, once(made_again))
    done = write_ids(graph, "b", PERSON, ["of the old one"], actor="bob")
    line = commits.read_commits(graph, "b")
    assert [one.actor_id for one in line][-1] == "ann"
    versions = [one.manifest_version for one in line]
    assert versions == sorted({*versions})
    assert done
    assert ids_at(graph, PERSON, "b") == ["first", "of the new one"]
    assert check(graph) == []


@both_stamps
def test_a_branch_whose_deletion_stopped_after_its_ref_can_be_made_again_once_repaired(
    graph: Storage,
) -> None:
    save_acknowledged(graph)
    graph.delete(REF)
    assert check(graph) != []
    repair(graph, dry_run=False, grace_seconds=GRACE)
    make(graph, "b")
    assert ids_at(graph, PERSON, "b") == ids_at(graph, PERSON)
