"""Who sleeps over a cleanup, or over a branch that is made again: refs, publishes and staged files."""

from __future__ import annotations

import contextlib
import os
import time
from dataclasses import replace
from datetime import datetime, timedelta, timezone

from omnigraph_spark import _faults
from omnigraph_spark.errors import OmnigraphError
from omnigraph_spark.history import commits
from omnigraph_spark.maintenance import check as checks
from omnigraph_spark.maintenance.cleanup import cleanup
from omnigraph_spark.maintenance.repair import repair
from omnigraph_spark.manifest import crash_records
from omnigraph_spark.manifest.snapshot import load
from omnigraph_spark.refs import branches, refs, tags
from omnigraph_spark.schema_changes import properties
from omnigraph_spark.storage import layout
from omnigraph_spark.storage.store import Storage
from omnigraph_spark.write import staging
from omnigraph_spark.write.commit.commit import commit
from omnigraph_spark.write.plan import WritePlan
from tests.chaos.lab import Lab
from tests.chaos.launcher import Setup
from tests.support.branches import ids_at, make, write_ids
from tests.support.writes import (
    KNOWS,
    PERSON,
    Died,
    die,
    new_graph,
    once,
    plan,
    stage_rows,
    write,
    write_options,
)

_GRACE = 0.05
_STAGED = "staged"


def sleepers(lab: Lab) -> None:
    """What was acknowledged is there once, and what was refused isn't, whoever slept meanwhile."""
    for trial in _TRIALS:
        case = lab.case(trial.__name__).make()
        wrong = case.run(trial, case.graph + "-own")
        lab.report.trials += 1
        lab.expect(wrong is None, "identity", f"{trial.__name__}: {wrong}")
        case.close()


def _graph(root: str) -> Storage:
    storage = new_graph(Storage.at(root), (PERSON, KNOWS))
    for number in range(3):
        write(storage, {PERSON: [f"p{number}"], KNOWS: [f"k{number}"]})
    return storage


def _clean(storage: Storage, days: float) -> None:
    moment = datetime.now(timezone.utc) + timedelta(days=days)
    cleanup(storage, timedelta(0), 1, dry_run=False, force=True, grace_seconds=_GRACE, now=moment)


def _staged(storage: Storage, branch: str = "main", *, recorded: bool = False) -> WritePlan:
    planned = plan(storage, [PERSON], branch=branch, orphanGraceSeconds=str(_GRACE))
    if recorded:
        planned = replace(planned, planned_at=staging.begin(storage, planned.publish_id))
    return planned


def _wrong(storage: Storage, branch: str, landed: bool) -> str | None:
    """Return what a reader or the next writer of a branch finds wrong."""
    try:
        found = ids_at(storage, PERSON, branch)
        write_ids(storage, branch, PERSON, ["next"])
    except OmnigraphError as error:
        return str(error)
    if found.count(_STAGED) != landed:
        return f"landed {landed}, and read {found}"
    return None


def _committed(planned: WritePlan, rows: list[str] | None = None) -> bool:
    staged = stage_rows(planned, {PERSON: rows or [_STAGED]})
    return _landed(planned, staged)


def _landed(planned: WritePlan, staged: list) -> bool:  # type: ignore[type-arg]
    try:
        commit(planned, staged)
    except OmnigraphError:
        return False
    return True


def a_publish_over_a_cleanup(setup: Setup, root: str) -> str | None:
    storage = _graph(root)
    planned = _staged(storage)

    def passed_by() -> None:
        for number in range(3):
            write_ids(storage, "main", PERSON, [f"r{number}"])
        _clean(storage, 3)

    _faults.arm("publish.sending", once(passed_by))
    return _wrong(storage, "main", _committed(planned))


def a_publish_over_a_branch_made_again(setup: Setup, root: str) -> str | None:
    storage = _graph(root)
    make(storage, "b")
    planned = _staged(storage, "b")

    def made_again() -> None:
        branches.delete_branch(storage, "b", 0.01)
        make(storage, "b")

    _faults.arm("publish.sending", once(made_again))
    return _wrong(storage, "b", _committed(planned))


def a_tag_beside_a_cleanup(setup: Setup, root: str) -> str | None:
    storage = _graph(root)
    made: list[bool] = []

    def tagged() -> None:
        with contextlib.suppress(OmnigraphError):
            tags.create_tag(storage, "t", refs.named(storage, "main@4"))
            made.append(True)

    _faults.arm("cleanup.begun", once(tagged))
    _clean(storage, 30)
    with contextlib.suppress(OmnigraphError):
        ids_at(storage, KNOWS, "t")
        return None
    return "a tag that was acknowledged can't be read" if made else None


def staged_files_over_a_cleanup(setup: Setup, root: str) -> str | None:
    storage = _graph(root)
    planned = _staged(storage)
    staged = stage_rows(planned, {PERSON: [_STAGED]})
    _clean(storage, 2)
    return _wrong(storage, "main", _landed(planned, staged))


def a_recorded_job_over_a_cleanup(setup: Setup, root: str) -> str | None:
    storage = _graph(root)
    planned = _staged(storage, recorded=True)
    staged = stage_rows(planned, {PERSON: [_STAGED]})
    _clean(storage, 2)
    return _wrong(storage, "main", True) if _landed(planned, staged) else "its files are gone"


def a_leftover_under_a_branch_made_again(setup: Setup, root: str) -> str | None:
    storage = _graph(root)
    location = layout.table_location(PERSON)
    storage.dataset(location).create_branch("b", ("main", None))

    def made_again() -> None:
        make(storage, "b")
        write_ids(storage, "b", PERSON, [_STAGED])

    _faults.arm("fork.before_removal", once(made_again))
    repair(storage, False, _GRACE)
    return _wrong(storage, "b", True)


def a_half_made_branch(setup: Setup, root: str) -> str | None:
    storage = _graph(root)
    make(storage, "b")
    for info in storage.list(f"{layout.MANIFEST}/tree/b"):
        storage.delete(info.path)
    try:
        make(storage, "other")
        branches.delete_branch(storage, "b", _GRACE)
    except OmnigraphError as error:
        return str(error)
    return _wrong(storage, "other", False)


def a_commit_of_a_branch_made_again(setup: Setup, root: str) -> str | None:
    storage = _graph(root)
    make(storage, "b")

    def made_again() -> None:
        branches.delete_branch(storage, "b", _GRACE)
        make(storage, "b")
        write_ids(storage, "b", PERSON, ["new"], actor="ann")

    _faults.arm("lineage.before_row", once(made_again))
    write_ids(storage, "b", PERSON, ["old"], actor="bob")
    line = commits.read_commits(storage, "b")
    versions = [one.manifest_version for one in line]
    if versions != sorted({*versions}) or line[-1].actor_id != "ann":
        return f"the commits of the branch are {versions}, the last one of {line[-1].actor_id}"
    return _wrong(storage, "b", False)


def a_dead_write_to_a_branch_made_again(setup: Setup, root: str) -> str | None:
    storage = _graph(root)
    make(storage, "b")
    planned = _staged(storage, "b")
    staged = stage_rows(planned, {PERSON: ["dead"]})
    _faults.arm("commit.before_publish", die)
    with contextlib.suppress(Died):
        commit(planned, staged)
    _faults.disarm()
    path = crash_records.path_of(planned.publish_id)
    record = storage.get(path)
    assert record is not None
    branches.delete_branch(storage, "b", 0.01)
    make(storage, "b")
    write_ids(storage, "b", PERSON, ["own"])
    before = load(storage, "b").entry(PERSON).table_version

    def healed() -> None:
        storage.put(path, record)
        then = time.time() - 3600
        os.utime(storage.uri(path), (then, then))
        write_ids(storage, "main", KNOWS, ["healer"])

    _faults.arm("commit.before_publish", once(healed))
    landed = _committed(_staged(storage, "b"))
    after = load(storage, "b").entry(PERSON).table_version
    if after != before + 1:
        return f"a heal of the deleted branch took a live write's version {before + 1} back"
    return _wrong(storage, "b", landed)


def a_widening_over_a_cleanup(setup: Setup, root: str) -> str | None:
    storage = _graph(root)
    before = ids_at(storage, PERSON)
    asked = write_options(storage, orphanGraceSeconds=str(_GRACE))
    _faults.arm("table.before_columns", once(lambda: _clean(storage, 15)))
    with contextlib.suppress(OmnigraphError):
        properties.widen_property(storage, asked, PERSON, "age", "I64")
    try:
        found = ids_at(storage, PERSON)
    except OmnigraphError as error:
        return str(error)
    return None if found == before else f"read {found}"


def a_lost_ref(setup: Setup, root: str) -> str | None:
    storage = _graph(root)
    make(storage, "b")
    write_ids(storage, "b", PERSON, [_STAGED])
    storage.delete(layout.ref_path(layout.table_location(PERSON), "b"))
    repair(storage, False, _GRACE)
    left = checks.check(storage)  # the branch reads and writes without: Lance and the engine don't
    return str(left[0]) if left else _wrong(storage, "b", True)


_TRIALS = (
    a_commit_of_a_branch_made_again,
    a_dead_write_to_a_branch_made_again,
    a_widening_over_a_cleanup,
    a_lost_ref,
    a_publish_over_a_cleanup,
    a_publish_over_a_branch_made_again,
    a_tag_beside_a_cleanup,
    staged_files_over_a_cleanup,
    a_recorded_job_over_a_cleanup,
    a_leftover_under_a_branch_made_again,
    a_half_made_branch,
)
