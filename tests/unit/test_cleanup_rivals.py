"""Cleanup beside what pins or stages: what was acknowledged reads, whoever slept meanwhile."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

from omnigraph_spark import _faults
from omnigraph_spark.errors import (
    BranchNotFoundError,
    OmnigraphError,
    StorageError,
    VersionNotFoundError,
)
from omnigraph_spark.maintenance import check as checks
from omnigraph_spark.maintenance import cleanup as cleaning
from omnigraph_spark.maintenance.check import check
from omnigraph_spark.maintenance.optimize import create_index, optimize, run_here
from omnigraph_spark.maintenance.repair import repair
from omnigraph_spark.manifest.snapshot import TableEntry, load
from omnigraph_spark.refs import branches as manage
from omnigraph_spark.refs import refs, tags
from omnigraph_spark.schema_changes import properties
from omnigraph_spark.storage import layout
from omnigraph_spark.storage.store import Storage
from omnigraph_spark.write.commit.commit import commit
from omnigraph_spark.write.plan import Settings
from tests.support.branches import GRACE, ids_at, make, names, remove, write_ids
from tests.support.writes import (
    KNOWS,
    PERSON,
    both_stamps,
    empty_graph,
    new_graph,
    once,
    plan,
    records,
    stage_rows,
    write,
    write_options,
)

QUICK = Settings(orphan_grace_seconds=GRACE)


@pytest.fixture(scope="module")
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    storage = Storage.at(str(tmp_path_factory.mktemp("made") / "g"))
    new_graph(empty_graph(storage, getattr(request, "param", 2)), (PERSON, KNOWS))
    for number in range(3):
        write(storage, {PERSON: [f"p{number}"], KNOWS: [f"k{number}"]})
    return Path(storage.root)


@pytest.fixture
def graph(made: Path, tmp_path: Path) -> Iterator[Storage]:
    """A graph of two tables in four versions; no fault outlives the test."""
    yield Storage.at(str(shutil.copytree(made, tmp_path / "g")))
    _faults.disarm()


def old(storage: Storage) -> str:
    """Name a graph version of `main` that a cleanup takes."""
    return f"main@{load(storage).graph_version - 2}"


def clean(storage: Storage, days: float = 30) -> cleaning.Cleaned:
    """Clean up as another writer would so many days from now."""
    moment = datetime.now(timezone.utc) + timedelta(days=days)
    return cleaning.cleanup(
        storage, timedelta(0), 1, dry_run=False, force=True, grace_seconds=GRACE, now=moment
    )


def is_acknowledged(act: Callable[[], object]) -> bool:
    try:
        act()
    except (VersionNotFoundError, BranchNotFoundError):
        return False
    return True


def tag_old(storage: Storage) -> None:
    tags.create_tag(storage, "t", refs.named(storage, old(storage)))


def branch_old(storage: Storage) -> None:
    make(storage, "t", old(storage))


def written_branch_old(storage: Storage) -> None:
    make(storage, "t", old(storage))
    write_ids(storage, "t", KNOWS, ["of t"])


def assert_reads_or_is_absent(storage: Storage, acknowledged: bool) -> None:
    if acknowledged:
        assert ids_at(storage, PERSON, "t") == ["first", "p0"]
        assert "k0" in ids_at(storage, KNOWS, "t")
    else:
        assert "t" not in names(storage)
        assert "t" not in [tag.name for tag in refs.list_tags(storage)]
    assert check(storage) == []
    write_ids(storage, "main", PERSON, ["next"])
    assert "next" in ids_at(storage, PERSON)


# --- refs ----------------------------------------------------------------------------------------


@both_stamps
@pytest.mark.parametrize("act", [tag_old, branch_old, written_branch_old])
def test_a_ref_that_is_made_while_a_cleanup_begins_to_remove_reads_or_fails(
    graph: Storage, monkeypatch: pytest.MonkeyPatch, act: Callable[[Storage], None]
) -> None:
    real, seen = cleaning._Cleanup._carry_out, []

    def overtaken(self: Any, *given: Any) -> Any:
        monkeypatch.setattr(cleaning._Cleanup, "_carry_out", real)
        seen.append(is_acknowledged(lambda: act(graph)))
        return real(self, *given)

    monkeypatch.setattr(cleaning._Cleanup, "_carry_out", overtaken)
    clean(graph)
    assert_reads_or_is_absent(graph, seen[0])


@pytest.mark.parametrize("act", [tag_old, branch_old])
@pytest.mark.parametrize(
    "point",
    ["cleanup.planned", "cleanup.begun", "cleanup.manifests_removed", "cleanup.versions_removed"],
)
def test_a_ref_that_is_made_at_any_point_of_a_cleanup_reads_or_fails(
    graph: Storage, point: str, act: Callable[[Storage], None]
) -> None:
    seen: list[bool] = []
    _faults.arm(point, once(lambda: seen.append(is_acknowledged(lambda: act(graph)))))
    clean(graph)
    assert_reads_or_is_absent(graph, seen[0])


@both_stamps
@pytest.mark.parametrize(
    ("act", "point"),
    [(tag_old, "tag.tables_tagged"), (tag_old, "tag.made"), (branch_old, "branch.cloned")],
)
def test_a_cleanup_that_runs_while_a_ref_is_made_leaves_it_whole_or_it_fails(
    graph: Storage, point: str, act: Callable[[Storage], None]
) -> None:
    _faults.arm(point, once(lambda: clean(graph)))
    assert_reads_or_is_absent(graph, is_acknowledged(lambda: act(graph)))


@both_stamps
@pytest.mark.parametrize(("act", "point"), [(tag_old, "tag.made"), (branch_old, "branch.cloned")])
def test_a_ref_whose_table_version_is_gone_once_it_is_there_is_undone(
    graph: Storage, point: str, act: Callable[[Storage], None]
) -> None:
    """A cleanup that looked at the refs before this one was there took a table version."""
    entry = load(graph, *refs.named(graph, old(graph))).entry(PERSON)
    folder = Path(graph.root) / entry.location / "_versions"
    gone = folder / layout.v2_manifest_name(entry.table_version)
    _faults.arm(point, once(gone.unlink))
    assert not is_acknowledged(lambda: act(graph))
    assert "t" not in names(graph)
    assert "t" not in [tag.name for tag in refs.list_tags(graph)]


def test_a_ref_to_what_a_cleanup_keeps_is_made_beside_it(graph: Storage) -> None:
    head = load(graph).graph_version

    def both() -> None:
        tags.create_tag(graph, "kept", refs.named(graph, f"main@{head}"))
        make(graph, "t", f"main@{head}")

    _faults.arm("cleanup.manifests_removed", once(both))
    assert clean(graph).files > 0
    assert ids_at(graph, PERSON, "kept") == ids_at(graph, PERSON, "t") == ids_at(graph, PERSON)
    assert check(graph) == []


@both_stamps
def test_a_tag_of_a_branch_that_is_deleted_meanwhile_is_not_acknowledged(graph: Storage) -> None:
    make(graph, "b")

    def made_again() -> None:
        remove(graph, "b")
        make(graph, "b")

    _faults.arm("tag.tables_tagged", once(made_again))
    with pytest.raises(BranchNotFoundError, match="was deleted while the tag t was made"):
        tags.create_tag(graph, "t", refs.named(graph, "b"))
    assert refs.list_tags(graph) == []
    remove(graph, "b")


# --- publishes that sleep ------------------------------------------------------------------------


@pytest.mark.long
@pytest.mark.parametrize("branch", ["main", "b"])
@pytest.mark.parametrize("key", [PERSON, "node:Company"])
def test_a_publish_that_slept_over_a_cleanup_lands_once_or_fails(
    graph: Storage, branch: str, key: str
) -> None:
    if branch != "main":
        make(graph, branch)
    planned = plan(graph, [key], branch=branch, orphanGraceSeconds=str(GRACE))
    staged = stage_rows(planned, {key: ["slept"]})

    def passed_by() -> None:
        for number in range(3):
            write_ids(graph, branch, key, [f"r{number}"])
        clean(graph, 3)

    _faults.arm("publish.sending", once(passed_by))
    landed = is_published(lambda: commit(planned, staged))
    found = ids_at(graph, key, branch)
    assert [one for one in found if one[0] == "r"] == ["r0", "r1", "r2"]
    assert found.count("slept") == landed
    write_ids(graph, branch, key, ["next"])
    assert check(graph) == []


def is_published(act: Callable[[], object]) -> bool:
    try:
        act()
    except OmnigraphError:
        return False
    return True


@pytest.mark.long
@both_stamps
def test_a_publish_that_takes_a_freed_version_number_is_made_again_above_the_others(
    graph: Storage, tmp_path: Path
) -> None:
    """It slept between Lance's look at the versions and its own version file."""
    planned = plan(graph, [PERSON], orphanGraceSeconds=str(GRACE))
    staged = stage_rows(planned, {PERSON: ["slept"]})
    versions = Path(graph.root) / layout.MANIFEST / "_versions"
    aside = tmp_path / "aside"

    def passed_by() -> None:
        there = {file.name for file in versions.iterdir()}
        for number in range(3):
            write_ids(graph, "main", PERSON, [f"r{number}"])
        clean(graph, 3)
        for part in ("data", "_deletions"):  # whoever sleeps there has read its files already
            if (whole / part).exists():
                shutil.copytree(whole / part, versions.parent / part, dirs_exist_ok=True)
        aside.mkdir()
        lasting.update(file.name for file in versions.iterdir())
        for file in [*versions.iterdir()]:
            if file.name not in there:
                shutil.move(file, aside / file.name)
        old = sorted(there)[0]
        if not (versions / old).exists():
            shutil.copy(kept / old, versions / old)
        _faults.arm("publish.landed", once(woke))

    def woke() -> None:
        taken = {file.name for file in kept.iterdir()} - lasting
        for name in taken:
            (versions / name).unlink(missing_ok=True)
        for file in [*aside.iterdir()]:
            shutil.move(file, versions / file.name)

    lasting: set[str] = set()
    whole = tmp_path / "whole"
    shutil.copytree(versions.parent, whole)
    kept = whole / "_versions"
    _faults.arm("publish.sending", once(passed_by))
    landed = is_published(lambda: commit(planned, staged))
    found = ids_at(graph, PERSON)
    assert [one for one in found if one[0] == "r"] == ["r0", "r1", "r2"]
    assert found.count("slept") == landed


# --- staged files --------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["append", "overwrite", "merge"])
def test_a_write_whose_staged_files_a_cleanup_took_is_not_acknowledged(
    graph: Storage, mode: str
) -> None:
    before = ids_at(graph, PERSON)
    more = {"writeMode": mode} if mode == "merge" else {}
    planned = plan(graph, [PERSON], "append" if more else mode, orphanGraceSeconds="0.1", **more)
    staged = stage_rows(planned, {PERSON: ["staged"]})
    clean(graph, 2)
    with pytest.raises(StorageError, match="staged files of node:Person are gone"):
        commit(planned, staged)
    assert ids_at(graph, PERSON) == before
    assert records(graph) == []
    write_ids(graph, "main", PERSON, ["next"])
    assert check(graph) == []


@both_stamps
@pytest.mark.parametrize("mode", ["append", "overwrite", "merge"])
def test_a_write_that_sleeps_before_its_table_commit_while_a_cleanup_takes_its_files_is_refused(
    graph: Storage, mode: str
) -> None:
    before = ids_at(graph, PERSON)
    more = {"writeMode": mode} if mode == "merge" else {}
    planned = plan(graph, [PERSON], "append" if more else mode, orphanGraceSeconds="0.1", **more)
    staged = stage_rows(planned, {PERSON: ["staged"]})
    _faults.arm("table.before_commit", once(lambda: clean(graph, 15)))
    with pytest.raises(StorageError, match="staged files of node:Person are gone"):
        commit(planned, staged)
    assert ids_at(graph, PERSON) == before
    write_ids(graph, "main", PERSON, ["next"])
    assert ids_at(graph, PERSON) == sorted([*before, "next"])
    assert check(graph) == []


@both_stamps
def test_an_optimize_that_sleeps_before_its_commit_while_a_cleanup_takes_its_files_is_refused(
    graph: Storage,
) -> None:
    before = ids_at(graph, PERSON)
    _faults.arm("table.before_commit", once(lambda: clean(graph, 15)))
    with pytest.raises(StorageError, match="are gone"):
        optimize(graph, "main", [PERSON], run_here)
    assert ids_at(graph, PERSON) == before
    assert check(graph) == []


@pytest.mark.long
@pytest.mark.parametrize("branch", ["main", "dev"])
def test_a_widening_that_sleeps_before_its_commit_while_a_cleanup_takes_its_files_is_refused(
    graph: Storage, branch: str
) -> None:
    if branch == "dev":
        make(graph, branch)
        write_ids(graph, branch, PERSON, ["own"])
    before = ids_at(graph, PERSON, branch)
    asked = write_options(graph, branch=branch, orphanGraceSeconds="0.1")
    _faults.arm("table.before_columns", once(lambda: clean(graph, 15)))
    with pytest.raises(StorageError, match="files of node:Person are gone"):
        properties.widen_property(graph, asked, "Person", "age", "I64")
    _faults.disarm()
    assert ids_at(graph, PERSON, branch) == before
    assert check(graph) == []
    assert not properties.widen_property(graph, asked, "Person", "age", "I64").skipped
    assert ids_at(graph, PERSON, branch) == before


def test_a_write_of_many_files_lists_them_once_and_fails_for_one_that_is_gone(
    graph: Storage,
) -> None:
    planned = plan(graph, [PERSON], orphanGraceSeconds="0.1")
    staged = [one for n in range(6) for one in stage_rows(planned, {PERSON: [f"s{n}"]})]
    graph.delete(f"{planned.targets[PERSON].data}/{staged[3].fragments[0]['files'][0]['path']}")
    with pytest.raises(StorageError, match="1 of 6 staged files"):
        commit(planned, staged)
    assert check(graph) == []


@both_stamps
def test_a_cleanup_keeps_the_staged_files_of_a_job_that_takes_longer_than_its_age(
    graph: Storage,
) -> None:
    from omnigraph_spark.write import staging

    planned = plan(graph, [PERSON], orphanGraceSeconds="0.1")
    planned = replace(planned, planned_at=staging.begin(graph, planned.publish_id))
    staged = stage_rows(planned, {PERSON: ["staged"]})
    assert clean(graph, 6).versions > 0
    assert check(graph) == []  # a write that is going on is not a damage
    commit(planned, staged)
    staging.end(graph, planned.publish_id)
    assert "staged" in ids_at(graph, PERSON)
    assert graph.list(layout.STAGING) == []


def test_tasks_of_a_long_job_renew_its_record_and_those_of_a_short_one_dont(
    graph: Storage,
) -> None:
    from omnigraph_spark.write import staging

    planned = plan(graph, [PERSON], orphanGraceSeconds="0.1")
    now = staging.begin(graph, planned.publish_id)
    for planned_at, files in ((now, 1), (now - 7200, 2)):
        stage_rows(replace(planned, planned_at=planned_at), {PERSON: ["staged"]})
        assert len(graph.list(layout.STAGING)) == files
    staging.end(graph, planned.publish_id)


def test_the_record_of_a_dead_job_keeps_nothing_after_a_week(graph: Storage) -> None:
    from omnigraph_spark.write import staging

    planned = plan(graph, [PERSON])
    staging.begin(graph, planned.publish_id)
    staged = stage_rows(planned, {PERSON: ["staged"]})
    clean(graph, 15)
    assert graph.list(layout.STAGING) == []
    with pytest.raises(StorageError, match="are gone"):
        commit(planned, staged)


@both_stamps
@pytest.mark.parametrize("days", [2, 30])
@pytest.mark.parametrize("what", ["optimize", "index"])
def test_a_maintenance_whose_files_a_cleanup_took_is_not_acknowledged(
    graph: Storage, monkeypatch: pytest.MonkeyPatch, what: str, days: int
) -> None:
    from omnigraph_spark.maintenance import rounds

    before = ids_at(graph, PERSON)
    real = rounds._Maintenance._once

    def late(self: Any, heartbeat: Any) -> Any:
        monkeypatch.setattr(rounds._Maintenance, "_once", real)
        clean(graph, days)
        return real(self, heartbeat)

    monkeypatch.setattr(rounds._Maintenance, "_once", late)

    def run(storage: Storage, entry: TableEntry, tasks: Sequence[str]) -> list[str]:
        return run_here(storage, entry, tasks)

    def act() -> None:
        if what == "optimize":
            optimize(graph, "main", None, run, settings=QUICK)
        else:
            create_index(graph, "main", PERSON, "name", "BTREE", None, settings=QUICK)

    assert is_published(act) == (days == 2)
    assert ids_at(graph, PERSON) == before
    write_ids(graph, "main", PERSON, ["next"])
    assert check(graph) == []


# --- check ---------------------------------------------------------------------------------------


def kinds(storage: Storage) -> list[tuple[str, str, bool]]:
    return [(one.kind, one.place, one.repairable) for one in check(storage)]


@pytest.mark.long
@both_stamps
def test_check_names_what_a_branch_or_a_tag_reads_and_is_gone(graph: Storage) -> None:
    version = load(graph).graph_version - 2
    make(graph, "b", old(graph))
    tags.create_tag(graph, "t", refs.named(graph, old(graph)))
    entry = load(graph, "main", version).entry(KNOWS)
    gone = layout.v2_manifest_name(entry.table_version)
    graph.delete(f"{entry.location}/_versions/{gone}")
    assert kinds(graph) == [(checks.MISSING_VERSION, KNOWS, False)] * 2
    graph.delete(f"{layout.MANIFEST}/_versions/{layout.v2_manifest_name(version)}")
    assert (checks.MISSING_VERSION, layout.MANIFEST, False) in kinds(graph)


@pytest.mark.long
@both_stamps
def test_repair_deletes_a_half_made_branch_and_no_branch_with_writes_of_its_own(
    graph: Storage,
) -> None:
    make(graph, "half")
    make(graph, "whole")
    write_ids(graph, "whole", PERSON, ["w"])
    for name in ("half", "whole"):
        for info in graph.list(f"{layout.MANIFEST}/tree/{name}/data"):
            graph.delete(info.path)
    found = [one for one in kinds(graph) if one[0] == checks.HALF_BRANCH]
    assert found == [(checks.HALF_BRANCH, "half", True), (checks.HALF_BRANCH, "whole", False)]
    done = repair(graph, False, GRACE)
    assert [(one.place, one.done) for one in done if one.kind == checks.HALF_BRANCH] == [
        ("half", True)
    ]
    assert names(graph) == ["main", "whole"]
    manage.delete_branch(graph, "whole", GRACE)
    assert check(graph) == []
