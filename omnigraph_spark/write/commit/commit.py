"""Commit a whole write: table commits, then one publish; rounds, put-back, crash record, lineage.

Runs on the driver, once per write, in the process that Spark calls `commit` in. The rules
are in docs/internals/protocol.md. What is left behind, by outcome:

- failed before the first table commit (conflict, validation): the staged files are deleted;
- failed after one: the tables are put back, the files stay for cleanup (rule 19);
- unknown outcome: nothing is deleted, the crash record stays, `PublishOutcomeUnknown` names the id;
- published and a later step failed: the write is done; lineage and records are mended by the next.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from omnigraph_spark import _faults
from omnigraph_spark import schema as engine_schema
from omnigraph_spark.errors import (
    CommitTimeoutError,
    ExpectedVersionMismatch,
    OmnigraphError,
    PublishOutcomeUnknown,
    RowConflictError,
    RowLevelCasContention,
    StorageError,
    TableNotFoundError,
)
from omnigraph_spark.history import commits, init, runs
from omnigraph_spark.manifest import crash_records, known_types, manifest_rows
from omnigraph_spark.manifest.crash_records import Heartbeat
from omnigraph_spark.manifest.manifest_rows import ManifestRows
from omnigraph_spark.manifest.publisher import (
    Publish,
    Published,
    check_txn,
    found_in,
    publish,
)
from omnigraph_spark.manifest.rows import OURS, ManifestRow, TableRow, TombstoneRow
from omnigraph_spark.manifest.snapshot import (
    Snapshot,
    TableEntry,
    fold,
    load,
    open_manifest,
)
from omnigraph_spark.manifest.writable import open_for_writing
from omnigraph_spark.options import WriteOptions
from omnigraph_spark.refs import property_files
from omnigraph_spark.schema.model import EngineSchema, fitted, reshaped
from omnigraph_spark.storage import backoff, layout
from omnigraph_spark.storage.store import Storage
from omnigraph_spark.write import shared
from omnigraph_spark.write.commit import heal, small_files, staged_files, updates
from omnigraph_spark.write.commit.commit_check import CommitCheck
from omnigraph_spark.write.commit.deletes import keeps_ids, untouched_guards
from omnigraph_spark.write.commit.table_commit import (
    Moved,
    commit_table,
    is_put_back,
    manifest_metadata,
    quietly_put_back,
)
from omnigraph_spark.write.commit.table_head import Round, StartOver
from omnigraph_spark.write.plan import (
    CREATE,
    MERGE,
    OVERWRITE,
    REPLACE,
    RESTORE,
    TableTarget,
    WritePlan,
    head,
    plan_write,
)
from omnigraph_spark.write.reads import EDGE_KEY, has_same_rows
from omnigraph_spark.write.tasks.stage import StagedTable

if TYPE_CHECKING:
    from lance import LanceDataset

# The pause after a lost round: shorter each time, since with growing ones a writer that has lost
# often is passed by all who come new.
_FIRST_PAUSE_SECONDS = 0.5

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Committed:
    """A write that is done; `skipped`: its `txn` was there before, or it had nothing to publish."""

    publish_id: str
    graph_version: int
    skipped: bool = False


def commit(plan: WritePlan, staged: Iterable[StagedTable]) -> Committed:
    """Commit what the tasks staged: all tables in one publish, or nothing.

    Calling it again with the same plan finds the publish id and does nothing.

    Raises:
        ExpectedVersionMismatch: a table isn't where the write expects it; nothing was published.
        RowConflictError: (upsert, delete) others changed rows of it since the frame was read.
        RowLevelCasContention: (overwrite) others won every attempt of the publisher.
        CommitTimeoutError: others published first until `commitTimeoutSeconds` ran out.
        PublishOutcomeUnknown: the store never said; nothing was deleted.
        SchemaMismatchError: a table's schema changed since the fragments were staged.
        IntegrityError: rows break a rule that the write checks; nothing was published.
        TableNotFoundError: a table was dropped meanwhile.
        RecoveryPendingError, UnsupportedManifestVersion: the graph can't be written now.
        OptionError: some tables of the write have its `txnVersion` and some don't.
        StorageError: the store failed; nothing was published.
    """
    _faults.point("commit.entered")
    if plan.changes_schema():
        shared.refuse_schema_change(plan.storage, "A write that changes tables or properties")
    by_table = _by_table(plan, staged)
    updates.refuse_doubles(plan, by_table)
    touched = _touched(plan, by_table)
    # A graph with published tables is a whole one.
    is_there = any(target.version for target in plan.targets.values())
    if layout.lance_branch(plan.branch) is None and not is_there:
        init.init_graph(plan.storage)
    if not touched and not plan.dropped and plan.mode != REPLACE:
        version = load(plan.storage, plan.branch).graph_version
        return Committed(plan.publish_id, version, skipped=True)
    write = _Write(plan, by_table, touched)
    with Heartbeat(plan.storage, plan.publish_id, plan.settings.orphan_grace_seconds) as heartbeat:
        return write.run(heartbeat)


def remember_types(
    storage: Storage, options: WriteOptions, keys: Iterable[str]
) -> WriteOptions | None:
    """Publish the types of tables that `__manifest` doesn't know as they are; None if it does.

    Called before the schema files forget a part of them, so that a writer that dies then loses no
    rule. Returns the options with which the caller's own change is planned on top.

    Raises:
        OmnigraphError: as a write; nothing was published.
    """
    snapshot = head(storage, options)
    schema = known_types.known(storage, snapshot).schema
    engine_types = [schema.of_table(key) for key in keys if key in snapshot.tables]
    types = EngineSchema.of(
        engine_type
        for engine_type in engine_types
        if engine_type is not None
        and known_types.text_of(engine_type) != snapshot.types.get(engine_type.table_key)
    )
    if not types.types():
        return None
    plan = plan_write(
        storage, options, {engine_type.table_key: None for engine_type in types.types()}
    )
    commit(replace(plan, txn=None, user_metadata=None, types=types), [])
    now = head(storage, options)
    expected = {key: now.version(key) for key in options.expected_table_versions}
    return replace(options, expected_table_versions=expected)


def abort(plan: WritePlan, staged: Iterable[StagedTable], *, complete: bool) -> None:
    """Clean up after a failed job; runs on the driver, in another process than `commit`.

    Deletes the files of its messages only if one of the messages was missing (`complete` is False):
    then a task failed and `commit` was never entered. Otherwise `commit` has done what is safe.
    """
    if not complete:
        staged_files.delete(plan, staged)


def _by_table(plan: WritePlan, staged: Iterable[StagedTable]) -> dict[str, list[StagedTable]]:
    grouped: dict[str, list[StagedTable]] = {key: [] for key in plan.targets}
    for part in staged:
        grouped[part.table_key].append(part)
    return grouped


def _touched(plan: WritePlan, by_table: Mapping[str, Sequence[StagedTable]]) -> tuple[str, ...]:
    return tuple(key for key in sorted(plan.targets) if _is_touched(plan, key, by_table))


def _is_touched(plan: WritePlan, key: str, by_table: Mapping[str, Sequence[StagedTable]]) -> bool:
    """Return whether a table gets a new version: it has rows, is listed, or is marked by it."""
    target = plan.targets[key]
    has_rows = any(part.fragments or any(m.rows for m in part.matches) for part in by_table[key])
    listed = target.has_new_columns or target.mode in (OVERWRITE, CREATE, RESTORE)
    listed |= plan.types.of_table(key) is not None
    marked = plan.txn is not None and not plan.txn_whole
    return has_rows or listed or marked or plan.merged_parent is not None


class _Write:
    """The rounds of one write, from its first snapshot to its publish or its failure."""

    def __init__(
        self, plan: WritePlan, by_table: Mapping[str, list[StagedTable]], touched: tuple[str, ...]
    ) -> None:
        self._plan = plan
        self._by_table = by_table
        self._asked: tuple[WritePlan, Mapping[str, list[StagedTable]]] = (plan, by_table)
        self._touched = touched
        self._round = Round(
            plan.storage,
            plan.publish_id,
            plan.settings.orphan_grace_seconds,
            lambda: load(plan.storage, plan.branch),
        )
        self._check = CommitCheck(plan, by_table)
        self._schema = EngineSchema()
        self._has_begun = False
        self._tables_tried = False
        self._followed: dict[str, int] = {}

    def run(self, heartbeat: Heartbeat) -> Committed:
        """Retry until published, refused or out of time."""
        plan = self._plan
        try:
            published = self._rounds(heartbeat)
        except PublishOutcomeUnknown:
            raise
        except OmnigraphError:
            self._failed(heartbeat)
            raise
        # From here on the write is done: what fails is logged, and mended by a later write.
        self._tidy(lambda: _faults.point("commit.after_publish"))
        self._tidy(lambda: _faults.point("commit.published"))
        if published.skipped and not self._round.files_used:
            self._tidy(lambda: staged_files.delete(plan, self._all_staged()))
        self._after_publish(heartbeat, published)
        return Committed(plan.publish_id, published.graph_version, published.skipped)

    def _rounds(self, heartbeat: Heartbeat) -> Published:
        began = time.monotonic()
        end = began + self._plan.settings.commit_timeout_seconds
        lost = 0
        while True:
            try:
                return self._once(heartbeat)
            except (StartOver, ExpectedVersionMismatch, RowLevelCasContention) as error:
                if isinstance(error, OmnigraphError) and not self._may_repeat(error):
                    raise
                lost += 1
                if time.monotonic() >= end:
                    raise CommitTimeoutError(
                        f"Write {self._plan.publish_id} lost {lost} rounds to other writers",
                        expected=f"one won round within {end - began:g} s",
                        hint="Nothing was published. Write again, or raise commitTimeoutSeconds",
                    ) from error
                _log.info("write %s lost round %d: %s", self._plan.publish_id, lost, error)
                backoff.shrinking(lost, _FIRST_PAUSE_SECONDS)

    def _may_repeat(self, error: OmnigraphError) -> bool:
        """Return whether a lost round may be gone again: nothing moved that the caller expects.

        Contention at the publisher ends an overwrite that expects something, not an append.
        """
        if isinstance(error, RowConflictError):
            return False
        if isinstance(error, ExpectedVersionMismatch):
            return error.table_key not in self._plan.expected or self._is_maintained(
                error.table_key
            )
        return keeps_ids(self._plan) or not self._plan.expected

    def _once(self, heartbeat: Heartbeat) -> Published:
        """Do one round, from a fresh snapshot to the publish."""
        plan = self._plan
        manifest = open_for_writing(plan.storage, plan.branch, plan.branch_identifier)
        rows = manifest_rows.read(manifest)
        version = int(manifest.version)
        if rows.has_publish(plan.publish_id):
            self._round.files_used = True
            return found_in(manifest, plan.publish_id)
        if plan.txn is not None and check_txn(
            rows.batches, plan.txn, frozenset(self._touched), plan.txn_whole
        ):
            return Published(version, skipped=True)
        snapshot = known_types.with_types(fold(rows.current, plan.branch, version), rows.current)
        self._refuse_made_again(snapshot)
        if staged_files.are_published(plan, self._by_table, snapshot):
            self._round.files_used = True
            return Published(version, skipped=True)
        self._check_expected(snapshot, rows)
        known = known_types.known(plan.storage, snapshot)
        self._schema = known.schema
        if not self._is_matched(snapshot, rows):
            return Published(version, skipped=True)
        plan = self._plan
        if not self._has_begun:  # in later rounds `resolve_dead` sees them
            crash_records.refuse_foreign(plan.storage, plan.settings.orphan_grace_seconds)
        branch = layout.lance_branch(plan.branch)
        entries = [
            replace(snapshot.tables[key], table_branch=branch)
            for key in self._touched
            if key in snapshot.tables
        ]
        heartbeat.record(plan.branch, entries, plan.actor, plan.branch_identifier)
        _faults.point("commit.record_written")
        self._start_run(version)
        if heal.resolve_dead(self._round, plan.settings.orphan_grace_seconds):
            raise StartOver("dead writes were rolled back")
        if heal.settle_heads(self._round, snapshot, self._touched):
            raise StartOver("heads that were ahead were taken back")
        self._run_check(snapshot)
        if not (self._touched or self._plan.dropped):
            return Published(version, skipped=True)
        if not self._round.format.has_identities:  # there the files change with the tables
            engine_schema.add_types(plan.storage, plan.new_types.with_types(known.lost), known.text)
        return self._commit_tables(snapshot, manifest)

    def _refuse_made_again(self, snapshot: Snapshot) -> None:
        """Refuse rows that were staged into another table's folder than the one that is there."""
        for key, target in self._plan.targets.items():
            entry = snapshot.tables.get(key)
            if entry is not None and entry.location != target.location:
                raise TableNotFoundError(
                    f"{key} was dropped and made again while the write was running",
                    expected=f"the table in {target.location}",
                    found=entry.location,
                    hint="Nothing was published. Write again to write to the new table",
                    table_key=key,
                )

    def _run_check(self, snapshot: Snapshot) -> None:
        """Check the rows; those of an upsert that are set aside leave the rows they name alone.

        What is left is checked again: it may have counted on a row that was set aside.
        """
        self._check.run(snapshot, self._touched, self._schema)
        while self._plan.mode == MERGE and self._check.verdict.bad:
            self._by_table = updates.without(self._plan, self._by_table, self._check.verdict.bad)
            self._check = self._check.without_bad(self._plan, self._by_table)
            self._touched = _touched(self._plan, self._by_table)
            self._check.run(snapshot, self._touched, self._schema, again=True)

    def _is_matched(self, snapshot: Snapshot, rows: ManifestRows) -> bool:
        """Match what is replaced or deleted to what is published now; False: nothing is to do."""
        requested = updates.matched(*self._asked, snapshot, rows) or self._asked
        self._asked = requested[0], small_files.gathered(*requested)
        plan, by_table = updates.for_round(*self._asked, snapshot, self._schema, rows)
        if plan is not self._plan or by_table is not self._by_table:
            self._plan, self._by_table = plan, by_table
            self._check = self._check.without_bad(self._plan, self._by_table)
            self._touched = _touched(self._plan, self._by_table)
        return bool(self._touched or self._plan.dropped)

    def _commit_tables(self, snapshot: Snapshot, manifest: LanceDataset) -> Published:
        plan = self._plan
        moved: list[Moved] = []
        self._tables_tried = True
        _faults.point("commit.before_table")
        try:
            for number, key in enumerate(self._touched, start=1):
                entry = snapshot.tables.get(key)
                moved.append(
                    commit_table(
                        self._round,
                        self._target(key, snapshot),
                        entry,
                        snapshot.floors.get(key, 0),
                        self._by_table[key],
                        self._check.bad(key),
                    )
                )
                # Cleanup keeps what a table's newest version names: what is there now stays.
                staged_files.check_there(
                    plan.storage, self._target(key, snapshot), self._by_table[key]
                )
                _log.info("write %s: %s is at %d", plan.publish_id, key, moved[-1].version)
                _faults.point(f"commit.table_{number if number <= 3 else 'n'}")
            _faults.point("commit.tables_done")
            request = self._request(snapshot, moved)
            _faults.point("commit.before_publish")
            published = publish(plan.storage, request, manifest)
        except PublishOutcomeUnknown:
            raise
        except (StartOver, OmnigraphError):
            quietly_put_back(self._round, moved, {k: t.schema for k, t in plan.targets.items()})
            raise
        _log.info("write %s: graph version %d", plan.publish_id, published.graph_version)
        self._log_replaced(snapshot)
        return published

    def _log_replaced(self, snapshot: Snapshot) -> None:
        """Say what an overwrite replaced; that it emptied a table is worth a warning."""
        had = {
            key: snapshot.tables[key].row_count for key in self._touched if key in snapshot.tables
        }
        for key, rows in had.items() if self._plan.mode == OVERWRITE else ():
            left = sum(part.rows for part in self._by_table[key])
            level = logging.INFO if left or not rows else logging.WARNING
            _log.log(
                level, "write %s: %s had %d rows, now %d", self._plan.publish_id, key, rows, left
            )

    def _target(self, key: str, snapshot: Snapshot) -> TableTarget:
        """Return a table's target for this round; one that was created meanwhile is extended."""
        target = self._plan.targets[key]
        if key not in snapshot.tables and target.version:
            raise TableNotFoundError(
                f"{key} was dropped while the write was running",
                expected=f"version {target.version}, or a later one",
                hint="Nothing was published. Write again to create the table again",
                table_key=key,
            )
        if self._plan.mode == RESTORE:  # each table of it has a way of its own
            return target
        return replace(target, mode=self._plan.mode) if key in snapshot.tables else target

    def _request(self, snapshot: Snapshot, moved: Sequence[Moved]) -> Publish:
        plan = self._plan
        ours = plan.marks()
        changes: list[ManifestRow] = []
        for table in moved:
            if table.table_key not in snapshot.locations:
                changes.append(TableRow(table.table_key, table.location))
            marked = {**ours, **self._told(snapshot, table)}
            target = plan.targets[table.table_key]
            if target.keeps_key:
                marked[EDGE_KEY] = list(target.edge_key)
            changes += table.rows(manifest_metadata(self._round, table), marked)
        for key in plan.dropped:
            gone = {**ours, **_of_dropped(snapshot.tables.get(key))}
            changes.append(TombstoneRow(key, snapshot.floors[key], {OURS: gone}))
        guards = untouched_guards(plan, snapshot, self._touched, self._schema)
        guarded = {key: snapshot.version(key) for key in guards}
        before = {table.table_key: table.before for table in moved}
        edges = frozenset(key for key in (*snapshot.tables, *self._touched) if layout.is_edge(key))
        return Publish(
            branch=plan.branch,
            publish_id=plan.publish_id,
            changes=tuple(changes),
            expected={**self._check.verdict.read, **guarded, **before, **self._expected()},
            guards=guards | frozenset(plan.expected),
            edge_tables=None if keeps_ids(plan) else edges,
            txn=plan.txn,
            txn_whole=plan.txn_whole,
            retries=plan.settings.commit_retries,
            branch_identifier=plan.branch_identifier,
            actor=plan.actor,
            merged_parent=plan.merged_parent,
            identities=snapshot.identities,
        )

    def _told(self, snapshot: Snapshot, moved: Moved) -> dict[str, str]:
        """Return the type that a table's version row tells, if `__manifest` doesn't know it."""
        key, plan = moved.table_key, self._plan
        if self._round.format.has_identities:  # the files there name exactly what is published
            return {}
        engine_type = plan.types.of_table(key)
        if engine_type is None:
            engine_type = self._schema.with_types(plan.new_types).of_table(key)
            if engine_type is None:
                return {}
            known = {p.name for p in engine_type.properties}
            new = [p for p in plan.new_properties.get(key, ()) if p.name not in known]
            engine_type = replace(engine_type, properties=(*engine_type.properties, *new))
            engine_type = reshaped(engine_type, dict(plan.targets[key].renamed))
        text = known_types.text_of(fitted(engine_type, moved.schema))
        return {} if text == snapshot.types.get(key) else {known_types.TYPE: text}

    def _expected(self) -> dict[str, int]:
        """Return the plan's expectations, moved on over maintenance, which changes no row."""
        return {**self._plan.expected, **self._followed}

    def _check_expected(self, snapshot: Snapshot, rows: ManifestRows) -> None:
        """Compare the plan's expectations with a round's snapshot; follow them over maintenance.

        Raises:
            ExpectedVersionMismatch: a table was changed.
        """
        self._followed = {}
        for key, version in sorted(self._plan.expected.items()):
            current = snapshot.version(key)
            if current == version:
                continue
            if not self._holds(key, version, current, rows):
                raise ExpectedVersionMismatch(key, version, current)
            self._followed[key] = current

    def _holds(self, key: str, version: int, current: int, rows: ManifestRows) -> bool:
        """Return whether what the plan expects of a table is true of another published version."""
        target = self._plan.targets.get(key)
        if target is not None and not updates.can_be_matched_again(self._plan, target):
            return False
        return has_same_rows(rows.table, key, version, current)

    def _is_maintained(self, key: str) -> bool:
        """Return whether nothing but maintenance moved a table since its version was expected."""
        rows = manifest_rows.read(open_manifest(self._plan.storage, self._plan.branch))
        current = fold(rows.current, self._plan.branch, 0).version(key)
        return self._holds(key, self._plan.expected[key], current, rows)

    def _start_run(self, version: int) -> None:
        if self._has_begun:
            return
        self._has_begun = True
        plan = self._plan
        if not plan.settings.record_runs:
            return
        head = None
        try:
            head = commits.head(plan.storage, plan.branch)
        except StorageError as error:  # the registry is a diary: a damaged lineage stops no write
            _log.warning("write %s: the lineage can't be read: %s", plan.publish_id, error)
        runs.start_run(
            plan.storage,
            run_id=plan.publish_id,
            branch=plan.branch,
            base_version=version,
            base_commit_id=head.graph_commit_id if head else plan.publish_id,
            operation_hash=f"{plan.txn[0]}:{plan.txn[1]}" if plan.txn else None,
            actor=plan.actor,
        )

    def _after_publish(self, heartbeat: Heartbeat, published: Published) -> None:
        """Write lineage and tidy up; the write is done whatever happens here."""
        plan = self._plan
        self._tidy(lambda: staged_files.delete_beside(plan, self._all_staged()))
        if not published.skipped:
            self._tidy(lambda: property_files.name_added(plan.storage, plan.new_properties))
            self._tidy(
                lambda: commits.record_publish(
                    plan.storage,
                    plan.branch,
                    plan.publish_id,
                    published.graph_version,
                    plan.actor,
                    plan.merged_parent,
                    plan.branch_identifier,
                )
            )
        if self._has_begun and plan.settings.record_runs:
            self._tidy(
                lambda: runs.finish_run(
                    plan.storage, plan.publish_id, runs.PUBLISHED, plan.publish_id
                )
            )
        self._tidy(lambda: _faults.point("commit.before_record_delete"))
        self._tidy(heartbeat.remove)
        self._tidy(
            lambda: init.compact_own_datasets(plan.storage, plan.branch, published.graph_version)
        )
        self._tidy(lambda: _faults.point("commit.done"))

    def _failed(self, heartbeat: Heartbeat) -> None:
        """Clean up after a definite failure; the tables were put back by the round that failed."""
        if self._has_begun and self._plan.settings.record_runs:
            runs.finish_run(self._plan.storage, self._plan.publish_id, "failed", None)
        if self._is_put_back():
            self._tidy(heartbeat.remove)
        if not self._round.files_used:
            self._tidy(lambda: staged_files.delete(self._plan, self._all_staged()))

    def _is_put_back(self) -> bool:
        """Return whether no published table is left with an unpublished head of this write."""
        if not self._tables_tried:
            return True
        try:
            snapshot = load(self._plan.storage, self._plan.branch)
        except OmnigraphError as error:
            _log.warning("after write %s: %s", self._plan.publish_id, error)
            return False
        put_back = [
            is_put_back(self._round, self._plan.targets[key], snapshot.tables[key])
            for key in self._touched
            if key in snapshot.tables
        ]
        heal.publish_put_back(self._round, snapshot, self._touched)
        return all(put_back)

    def _tidy(self, step: Callable[[], None]) -> None:
        """Do what comes after the outcome is settled; what fails in it doesn't change that."""
        try:
            step()
        except Exception as error:  # noqa: BLE001  (an error now would deny rows that are published)
            _log.warning("after write %s: %s", self._plan.publish_id, error)

    def _all_staged(self) -> list[StagedTable]:
        return [part for staged in self._by_table.values() for part in staged]


def _of_dropped(entry: TableEntry | None) -> dict[str, int]:
    """Return what a tombstone tells of rows: all of the table are removed."""
    return {"rows_added": 0, "rows_removed": 0 if entry is None else entry.row_count}
