"""Repair what `check` finds, as the next write would, without a write.

Runs on the driver. Each step is safe to run again and among live writers: heads are waited for and
restored by the same code as in a write, and published with guards. A step that fails leaves the
others to the next call.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial

from omnigraph_spark import _faults
from omnigraph_spark.errors import BranchNotFoundError, CommitTimeoutError, UnsupportedError
from omnigraph_spark.history import runs
from omnigraph_spark.maintenance import check as checks
from omnigraph_spark.maintenance import logs, moved
from omnigraph_spark.maintenance.check import Finding, check
from omnigraph_spark.manifest import crash_records, manifest_rows, migrations, schema_lock
from omnigraph_spark.manifest.crash_records import Heartbeat
from omnigraph_spark.manifest.snapshot import load, open_main, open_manifest
from omnigraph_spark.manifest.writable import open_for_writing
from omnigraph_spark.refs import branches, forks, property_files, ref_files, refs, tags
from omnigraph_spark.storage import backoff, layout
from omnigraph_spark.storage.ids import new_ulid
from omnigraph_spark.storage.store import Storage
from omnigraph_spark.write import staging
from omnigraph_spark.write.commit import heal
from omnigraph_spark.write.commit.table_head import Round, StartOver

_ATTEMPTS = 10
_POLL_SECONDS = 0.25

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Action:
    """What `repair` does about a finding; `done` is False in a dry run, and where it stays."""

    kind: str
    place: str
    what: str
    branch: str
    done: bool


def repair(storage: Storage, dry_run: bool = True, grace_seconds: float = 10.0) -> list[Action]:
    """Repair a graph, or say what would be repaired (`dry_run`, which writes nothing).

    `grace_seconds` is how long a silent writer is waited for, as in a write. What another engine
    left half done is not touched.

    Raises:
        GraphNotFoundError: no graph is there.
        UnsupportedManifestVersion, RecoveryPendingError: the graph can't be written.
        CommitTimeoutError: live writers were at the same tables again and again.
        OmnigraphError: as the steps raise; what was repaired before stays repaired.
    """
    findings = [finding for finding in check(storage) if finding.repairable]
    if not dry_run:
        torn = _mend_torn(storage, findings)
        if torn:  # they hid the rest
            findings = [*torn, *(finding for finding in check(storage) if finding.repairable)]
        schema_lock.recover(storage, grace_seconds)
    if not dry_run and findings:
        migrations.refuse_newer(open_main(storage))
        crash_records.refuse_foreign(storage, grace_seconds)
        _repair(storage, findings, grace_seconds)
    left = {
        (finding.kind, finding.place, finding.branch)
        for finding in (findings if dry_run else check(storage))
    }
    return [
        Action(
            finding.kind,
            finding.place,
            _WHAT[finding.kind],
            finding.branch,
            (finding.kind, finding.place, finding.branch) not in left,
        )
        for finding in findings
    ]


_LEFT = (checks.HALF_BRANCH, checks.LEFTOVER_FORK, checks.LEFTOVER_TAG)
_WHAT = {
    checks.SCHEMA_FILES: "make _schema.pg whole from the IR, and the JSON files again from it",
    checks.UNKNOWN_TYPE: "declare the type again, as __manifest or the IR knows it",
    checks.FORGOTTEN_PROPERTY: "name the property and its rules again, as __manifest knows them",
    checks.MOVED_BRANCH: "point its version manifests at where the graph is now",
    checks.TORN_REF: "make the file again from what is left, else move it to __damaged/",
    checks.MISSING_REF: "write the ref file again",
    checks.SCHEMA_LOCK: "if its holder is dead: finish or undo its change of the schema",
    checks.HALF_TAG: "tag the tables again",
    checks.LEFTOVER_TAG: "remove the table's tag",
    checks.LEFTOVER_FORK: "remove the fork",
    checks.HALF_BRANCH: "delete the branch",
    checks.HALF_MIGRATION: "finish the migration",
    checks.AUTO_CLEANUP: "remove the settings; a table without them is published as a new version",
    checks.CRASH_RECORD: "if its writer is dead: roll its tables back, publish that, delete it",
    checks.UNPUBLISHED_HEAD: "restore the published version and publish that",
    checks.MISSING_LINEAGE: "write the missing rows",
    checks.DAMAGED_LOG: "move its damaged files to __damaged/ and write again what is missing",
    checks.RUNNING_RUN: "note the run's end",
    checks.STAGING: "delete the messages if they are older than a week",
}


def _repair(storage: Storage, findings: list[Finding], grace_seconds: float) -> None:
    """Run the steps in an order in which each finds what it needs."""
    by_kind: dict[str, list[Finding]] = {}
    for finding in findings:
        by_kind.setdefault(finding.kind, []).append(finding)

    def those(*kinds: str) -> list[Finding]:
        return [finding for kind in kinds for finding in by_kind.get(kind, [])]

    if those(checks.SCHEMA_FILES, checks.UNKNOWN_TYPE, checks.FORGOTTEN_PROPERTY):
        property_files.put_back(storage)
    for finding in those(checks.MOVED_BRANCH):
        moved.point_here(storage, finding.place, finding.branch)
    _mend_refs(storage, findings, grace_seconds)
    for branch in _branches(those(checks.HALF_MIGRATION, checks.AUTO_CLEANUP)):
        open_for_writing(storage, branch)
    heads = those(checks.CRASH_RECORD, checks.UNPUBLISHED_HEAD, checks.AUTO_CLEANUP, checks.STAGING)
    if heads:
        _heal(storage, heads, grace_seconds)
    again = those(checks.DAMAGED_LOG)
    for finding in again:
        logs.make_again(storage, logs.Damaged(finding.place, finding.branch, finding.what))
    gaps = _branches(those(checks.MISSING_LINEAGE))
    for branch in [ref.name for ref in refs.list_branches(storage)] if again else gaps:
        logs.fill(storage, branch)
    if again:
        logs.fill_actors(storage)
    for finding in checks.running_runs(storage) if again else those(checks.RUNNING_RUN):
        _end_run(storage, finding.place)


def _mend_refs(storage: Storage, found: list[Finding], grace_seconds: float) -> None:
    """Write refs again that are needed, and remove what is left of others and of forks."""
    left = [one for one in found if one.kind in _LEFT]
    for one in found:
        if one.kind == checks.MISSING_REF:
            ref_files.make_again(storage, one.place, one.branch)
    if left:
        _wait_for_makers(storage, left, grace_seconds)
    for one in sorted(left, key=lambda one: _LEFT.index(one.kind)):
        if one.kind == checks.HALF_BRANCH:
            _delete_half(storage, one, grace_seconds)
        elif one.kind == checks.LEFTOVER_FORK:
            _remove_fork(storage, one)
        else:
            tags.remove_leftovers(storage)
    if any(one.kind == checks.HALF_TAG for one in found):
        _protect_tags(storage)


def _branches(findings: Iterable[Finding]) -> list[str]:
    return sorted({finding.branch for finding in findings})


def _mend_torn(storage: Storage, found: list[Finding]) -> list[Finding]:
    """Make ref files again that can't be read, and hide all others of their dataset."""
    torn = [one for one in found if one.kind == checks.TORN_REF]
    for place in {one.place.partition("/_refs/")[0]: None for one in torn}:
        for one in ref_files.torn(storage, place):
            storage.set_aside(one.path)
            if one.kind == ref_files.BRANCH:
                ref_files.make_again(storage, place, one.name)
            elif place == layout.MANIFEST:
                tag = tags.named_by_tables(storage, one.name)
                if tag is not None:
                    tags.make_again(storage, tag)
    return torn


def _wait_for_makers(storage: Storage, left: list[Finding], grace_seconds: float) -> None:
    """Give who makes a branch, a fork or a tag the grace to write its ref, which comes last."""
    end = time.monotonic() + grace_seconds
    _faults.point("repair.waiting")
    names = {one.branch for one in left if one.kind != checks.LEFTOVER_TAG}
    is_tag = any(one.kind == checks.LEFTOVER_TAG for one in left)
    while time.monotonic() < end:
        if names <= {*_names(storage)} and not (is_tag and tags.leftovers(storage)):
            return
        backoff.poll(_POLL_SECONDS)


def _protect_tags(storage: Storage) -> None:
    for tag in refs.list_tags(storage):
        if tags.unprotected(storage, tag):
            tags.protect(storage, tag)


def _delete_half(storage: Storage, finding: Finding, grace_seconds: float) -> None:
    """Delete a half-made branch, if it still is one: its maker may have removed it."""
    if finding.branch not in _names(storage):
        with contextlib.suppress(UnsupportedError):  # by now another one needs it
            branches.remove_unlisted(storage, finding.branch, 0)
        return
    whole = {branch.name for branch, _ in refs.readable(storage)}
    if finding.branch not in whole:
        with contextlib.suppress(BranchNotFoundError):
            branches.delete_branch(storage, finding.branch, grace_seconds)


def _remove_fork(storage: Storage, finding: Finding) -> None:
    place, name = finding.place, finding.branch
    fork = forks.judged(storage, place, name, _names(storage))

    def is_unwanted() -> bool:
        # It may have been made again since the check, and may be while it is removed.
        if name not in _names(storage):
            return True
        bare = fork.identifier is None and place != layout.GRAPH_COMMITS
        return bare and name not in checks.forks_in_use(storage, place)

    forks.remove_fork(storage, fork, is_unwanted)


def _names(storage: Storage) -> list[str]:
    return [branch.name for branch in refs.list_branches(storage)]


def _heal(storage: Storage, findings: list[Finding], grace_seconds: float) -> None:
    """Resolve dead records and heads, under a crash record of this repair's own.

    The record is also the store's clock: ages are taken against it (rule 24).
    """
    publish_id = new_ulid()
    with Heartbeat(storage, publish_id, grace_seconds) as heartbeat:
        heartbeat.record(layout.MAIN, [], None)
        try:
            _forget_staged(storage, publish_id, findings)
            for branch in _branches(findings):
                _until_quiet(
                    partial(_heal_branch, storage, publish_id, branch, findings, grace_seconds)
                )
        finally:
            heartbeat.remove()


def _heal_branch(
    storage: Storage, publish_id: str, branch: str, findings: list[Finding], grace_seconds: float
) -> None:
    round_ = Round(storage, publish_id, grace_seconds, lambda: load(storage, branch))
    heal.resolve_dead(round_, grace_seconds)
    snapshot = load(storage, branch)
    keys = tuple(
        finding.place
        for finding in findings
        if finding.branch == branch and finding.place in snapshot.tables
    )
    heal.roll_back(round_, snapshot, keys, strip_too=True)


def _until_quiet(step: Callable[[], None]) -> None:
    """Run a step until no rival steps in.

    Raises:
        CommitTimeoutError: rivals stepped in every time.
    """
    for attempt in range(_ATTEMPTS):
        try:
            step()
        except StartOver as error:
            _log.info("repair lost attempt %d: %s", attempt + 1, error)
            cause = error
            continue
        return
    raise CommitTimeoutError(
        f"The repair lost {_ATTEMPTS} rounds to other writers",
        hint="What was repaired before stays so. Run it again when less is written",
    ) from cause


def _forget_staged(storage: Storage, publish_id: str, findings: list[Finding]) -> None:
    now = crash_records.renewed_at(storage, publish_id)
    for finding in findings:
        inside = (
            storage.list(f"{layout.STAGING}/{finding.place}")
            if finding.kind == checks.STAGING
            else []
        )
        newest = max((info.last_modified for info in inside), default=None)
        if now is not None and newest is not None and now - newest > staging.LIVE:
            storage.delete_many([info.path for info in inside])


def _end_run(storage: Storage, run_id: str) -> None:
    published = any(
        manifest_rows.read(open_manifest(storage, branch.name)).has_publish(run_id)
        for branch in refs.list_branches(storage)
    )
    if published:
        runs.finish_run(storage, run_id, runs.PUBLISHED, run_id)
    else:
        runs.finish_run(storage, run_id, runs.ABORTED, None)
