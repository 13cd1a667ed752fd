"""Resolve what dead writers of our own kind left: roll their tables back, as a whole.

Runs on the driver, at the start of a write's round, where a crash record of another write has not
been renewed for the grace. Nobody rolls a dead write forward. The restored versions are published,
guards included, so that a late publish of a writer that only slept is refused. Where the engines
of a format refuse a table whose head isn't published, the heads of a write's own tables are
published before it goes on, and those that it took back when it fails.
"""

from __future__ import annotations

import logging
from dataclasses import replace

import pyarrow.compute as pc

from omnigraph_spark import _faults
from omnigraph_spark.errors import (
    BranchNotFoundError,
    ExpectedVersionMismatch,
    OmnigraphError,
    PublishOutcomeUnknown,
    RowLevelCasContention,
    StorageError,
)
from omnigraph_spark.history import commits, runs
from omnigraph_spark.manifest import crash_records, manifest_rows
from omnigraph_spark.manifest.crash_records import CrashRecord
from omnigraph_spark.manifest.publisher import Publish, publish
from omnigraph_spark.manifest.rows import HEAL, OURS, VersionRow
from omnigraph_spark.manifest.snapshot import Snapshot, TableEntry, fold, load
from omnigraph_spark.manifest.writable import open_for_writing
from omnigraph_spark.refs import forks
from omnigraph_spark.storage import layout
from omnigraph_spark.storage.ids import new_ulid
from omnigraph_spark.storage.lance_errors import DatasetNotFoundError
from omnigraph_spark.storage.store import Storage
from omnigraph_spark.write import staging
from omnigraph_spark.write.commit.table_commit import dataset_metadata
from omnigraph_spark.write.commit.table_head import Round, StartOver, is_clean, settle, strip

_log = logging.getLogger(__name__)


def resolve_dead(round_: Round, grace_seconds: float) -> int:
    """Resolve the records of dead writers and return how many there were; runs once per round.

    The caller's own record must just have been written: age is taken against it (rule 24).

    Raises:
        StartOver: a rival was at the same tables; the next round looks again.
        PublishOutcomeUnknown, StorageError: the store failed; the records stay, the next write goes
            on.
    """
    dead = crash_records.dead(round_.storage, round_.publish_id, grace_seconds)
    round_.dead = frozenset(record.publish_id for record in dead)
    for record in dead:
        _resolve(round_, record)
    return len(dead)


def _resolve(round_: Round, record: CrashRecord) -> None:
    end = runs.ABORTED
    try:
        manifest = open_for_writing(round_.storage, record.branch, record.branch_identifier)
    except BranchNotFoundError:
        _log.warning("write %s died on branch %s, which is gone", record.publish_id, record.branch)
    else:
        rows = manifest_rows.read(manifest)
        if rows.has_publish(record.publish_id):
            end = runs.PUBLISHED
        else:
            snapshot = fold(rows.current, record.branch, int(manifest.version))
            _log.warning("write %s died before its publish; rolling it back", record.publish_id)
            # The tables are those of the record's branch, whatever branch the caller writes to.
            branch_round = replace(round_, fresh=lambda: load(round_.storage, record.branch))
            roll_back(
                branch_round, snapshot, record.table_keys, identifier=record.branch_identifier
            )
    _end_run(round_.storage, record.publish_id, end)
    staging.end(round_.storage, record.publish_id)
    _faults.point("heal.before_record_delete")
    crash_records.delete(round_.storage, record.publish_id)


def _end_run(storage: Storage, run_id: str, end: str) -> None:
    """Note the end of a dead write's run, if the registry still says that it is running."""
    try:
        rows = runs.read_runs(storage)
    except StorageError as error:
        _log.warning("the end of run %s is not noted: %s", run_id, error)
        return
    states = rows.filter(pc.equal(rows["run_id"], run_id))["status"].to_pylist()
    if states and states[-1] == runs.RUNNING:
        runs.finish_run(storage, run_id, end, run_id if end == runs.PUBLISHED else None)


def roll_back(
    round_: Round,
    snapshot: Snapshot,
    keys: tuple[str, ...],
    *,
    strip_too: bool = False,
    identifier: str | None = None,
) -> bool:
    """Restore each of the tables whose head is ahead to its published version, and publish that.

    Returns whether there was any. `strip_too` also removes auto-cleanup settings from those that
    are not ahead. `identifier` is the branch's, where it was judged.

    Raises:
        StartOver: a rival was at the same tables.
        PublishOutcomeUnknown, StorageError: the store failed.
    """
    entries = [snapshot.tables[key] for key in sorted(set(keys)) if key in snapshot.tables]
    branch = layout.lance_branch(snapshot.branch)
    publish_id = new_ulid()
    changes: list[VersionRow] = []
    restored: list[TableEntry] = []
    for entry in entries:
        rows = _restored(round_, entry, branch, publish_id, strip_too)
        if rows:
            restored.append(entry)
            changes += rows
    if not changes:
        return False
    _faults.point("heal.before_publish")
    request = Publish(
        branch=snapshot.branch,
        publish_id=publish_id,
        changes=tuple(changes),
        expected={entry.table_key: entry.table_version for entry in restored},
        branch_identifier=identifier,
        identities=snapshot.identities,
    )
    try:
        published = publish(round_.storage, request)
    except (ExpectedVersionMismatch, RowLevelCasContention, BranchNotFoundError) as error:
        raise StartOver(f"a rival published while a dead write was rolled back: {error}") from error
    except PublishOutcomeUnknown as error:  # of this roll-back, not of the write that does it
        raise StartOver(f"whether a dead write is rolled back is unknown: {error}") from error
    _faults.point("heal.after_publish")
    try:
        commits.record_publish(
            round_.storage,
            snapshot.branch,
            publish_id,
            published.graph_version,
            identifier=identifier,
        )
    except StorageError as error:  # the next publish of the branch fills the gap
        _log.warning("rolling back a dead write has no row in the lineage yet: %s", error)
    return True


def settle_heads(round_: Round, snapshot: Snapshot, keys: tuple[str, ...]) -> bool:
    """Publish the heads of tables that are ahead, once they are settled; returns whether any was.

    Only in formats whose engines refuse such tables; else a head that was taken back is as good as
    published.

    Raises:
        StartOver, PublishOutcomeUnknown, StorageError: as `roll_back`.
    """
    if not round_.format.publishes_restores:
        return False
    return roll_back(round_, snapshot, keys)


def publish_put_back(round_: Round, snapshot: Snapshot, keys: tuple[str, ...]) -> None:
    """Publish the heads of tables that a write took back before it failed; errors are logged."""
    if not round_.format.publishes_restores:
        return
    branch = layout.lance_branch(snapshot.branch)
    try:
        clean = tuple(
            key
            for key in keys
            if key in snapshot.tables and _is_put_back(round_, snapshot.tables[key], branch)
        )
        roll_back(round_, snapshot, clean)
    except (StartOver, OmnigraphError) as error:
        _log.warning("what write %s took back isn't published: %s", round_.publish_id, error)


def _is_put_back(round_: Round, entry: TableEntry, branch: str | None) -> bool:
    try:
        head = round_.storage.dataset(entry.location, branch)
    except DatasetNotFoundError:
        return False
    return int(head.version) > entry.table_version and is_clean(head, entry.table_version)


def _restored(
    round_: Round, entry: TableEntry, branch: str | None, publish_id: str, strip_too: bool
) -> list[VersionRow]:
    """Return the rows that publish a table's restored head, none where the head wasn't ahead.

    On a graph branch the head is that of the table's fork, which a dead first write may have made
    without publishing anything of it; a fork that began elsewhere is not this write's.
    """
    pinned = entry.table_version
    if branch != entry.table_branch and (
        branch is None or forks.fork_version(round_.storage, entry.location, branch) != pinned
    ):
        return []
    try:
        head = settle(round_, entry.table_key, entry.location, branch, pinned)
    except DatasetNotFoundError:
        return []
    if strip_too:
        head = strip(head)
    version = int(head.version)
    if version == pinned:
        return []
    metadata = {
        **dataset_metadata(round_, entry.location, branch, version),
        OURS: {"publish_id": publish_id, "mode": HEAL, "rows_added": 0, "rows_removed": 0},
    }
    row = VersionRow(entry.table_key, version, branch, entry.row_count, metadata)
    skipped = [replace(row, object_version=number) for number in range(pinned + 1, version)]
    return [row, *skipped]
