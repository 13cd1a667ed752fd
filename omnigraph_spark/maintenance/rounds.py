"""Publish the maintenance of any number of tables at once; the one that yields to writers.

Runs on the driver. As a write's commit (`write.commit`), but that what is committed was built
beforehand: a lost round commits the same again, and only a table whose fragments were changed
meanwhile is rebuilt. No append fails for it: it waits for milliseconds, or retries once.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import repeat

import pyarrow as pa

from omnigraph_spark import _faults
from omnigraph_spark.errors import (
    CommitTimeoutError,
    ExpectedVersionMismatch,
    OmnigraphError,
    PublishOutcomeUnknown,
    RowLevelCasContention,
)
from omnigraph_spark.history import commits, init
from omnigraph_spark.maintenance import prepared
from omnigraph_spark.maintenance.prepared import Prepared, Stale
from omnigraph_spark.manifest import crash_records, manifest_rows, migrations
from omnigraph_spark.manifest.crash_records import Heartbeat
from omnigraph_spark.manifest.publisher import Publish, Published, found_in, publish
from omnigraph_spark.manifest.snapshot import (
    Snapshot,
    TableEntry,
    branch_ref,
    fold,
    load,
    open_main,
)
from omnigraph_spark.manifest.writable import open_for_writing
from omnigraph_spark.refs import forks
from omnigraph_spark.storage import backoff, layout
from omnigraph_spark.storage.ids import new_ulid
from omnigraph_spark.storage.store import Storage
from omnigraph_spark.write import staging
from omnigraph_spark.write.commit import heal
from omnigraph_spark.write.commit.table_commit import (
    Moved,
    is_put_back,
    manifest_metadata,
    put_back,
)
from omnigraph_spark.write.commit.table_head import Round, StartOver
from omnigraph_spark.write.plan import APPEND, Settings, TableTarget

_LONGEST_PAUSE_SECONDS = 0.5
_MOST_REBUILDS = 10

_log = logging.getLogger(__name__)

Prepare = Callable[[TableEntry], Prepared | None]
"""Builds what is to be done to a table, on its published version; None: nothing."""


@dataclass(frozen=True)
class Maintained:
    """What a maintenance published; without an id and a version if there was nothing to do.

    `tables` are the keys of the tables that got a new version.
    """

    publish_id: str | None
    graph_version: int | None
    tables: tuple[str, ...] = ()


def maintain(
    storage: Storage,
    branch: str,
    keys: Sequence[str],
    prepare: Prepare,
    *,
    mode: str,
    settings: Settings,
    actor: str | None = None,
) -> Maintained:
    """Prepare tables, commit them and publish all of them in one step.

    Tables that are dropped meanwhile are left out.

    Raises:
        CommitTimeoutError: writers were first until `commitTimeoutSeconds` ran out, or rewrote the
            tables again and again; nothing was published.
        PublishOutcomeUnknown: the store never said; nothing was deleted.
        UnsupportedManifestVersion, RecoveryPendingError, UnsupportedError: the graph can't be
            written.
        OmnigraphError: as `prepare` raises.
        StorageError: the store failed; nothing was published.
    """
    work = _Maintenance(storage, branch, prepare, mode, settings, actor, list(keys))
    publish_id = work.round.publish_id
    with (
        staging.recorded(storage, publish_id),
        Heartbeat(storage, publish_id, settings.orphan_grace_seconds) as heartbeat,
    ):
        return work.run(heartbeat)


@dataclass
class _Maintenance:
    storage: Storage
    branch: str
    prepare: Prepare
    mode: str
    settings: Settings
    actor: str | None
    keys: list[str]
    built: dict[str, Prepared | None] = field(default_factory=dict)
    round: Round = field(init=False)
    tried: bool = False
    began: float = field(default_factory=time.time)

    def __post_init__(self) -> None:
        self.round = Round(
            self.storage,
            new_ulid(),
            self.settings.orphan_grace_seconds,
            lambda: load(self.storage, self.branch),
        )
        own = layout.lance_branch(self.branch)
        self.identifier = None if own is None else branch_ref(self.storage, self.branch).identifier

    def run(self, heartbeat: Heartbeat) -> Maintained:
        """Retry until published, nothing to do, or out of time."""
        migrations.refuse_newer(open_main(self.storage))  # before anything is built
        try:
            return self._rounds(heartbeat)
        except PublishOutcomeUnknown:
            raise
        except BaseException as error:
            if isinstance(error, (OmnigraphError, KeyboardInterrupt)) and self._is_put_back():
                self._tidy(heartbeat.remove)
            raise

    def _rounds(self, heartbeat: Heartbeat) -> Maintained:
        rebuilds = lost = 0
        end: float | None = None
        while True:
            try:
                self._build()
                if end is None:
                    end = time.monotonic() + self.settings.commit_timeout_seconds
                if not any(self.built.values()):  # or another writer did it since this was built
                    return Maintained(None, None)
                return self._once(heartbeat)
            except Stale as error:
                rebuilds += 1
                cause: Exception = error
                _log.info("%s: %s; building it again", self.mode, error)
                end = None  # what it takes to build is nobody's fault
                if self._is_put_back():  # no record while it is built: that may take long
                    self._tidy(heartbeat.remove)
            except (StartOver, ExpectedVersionMismatch, RowLevelCasContention) as error:
                cause = error
                _log.info("%s lost round %d: %s", self.mode, lost + 1, error)
            lost += 1
            if rebuilds > _MOST_REBUILDS or (end is not None and time.monotonic() >= end):
                raise CommitTimeoutError(
                    f"The {self.mode} lost {lost} rounds to other writers",
                    expected=f"one won round within {self.settings.commit_timeout_seconds:g} s",
                    hint="Nothing was published, writers were first. Run it again when less is "
                    "written, or raise commitTimeoutSeconds",
                ) from cause
            backoff.shrinking(lost, _LONGEST_PAUSE_SECONDS)

    def _build(self) -> None:
        """Build what isn't built yet, or was found stale; no crash record is there meanwhile."""
        snapshot = load(self.storage, self.branch)
        for key in self.keys:
            if key not in snapshot.tables:
                self.built[key] = None
            elif key not in self.built:
                staging.renew(self.storage, self.round.publish_id, self.began)
                self.built[key] = self.prepare(self._entry(snapshot, key))

    def _entry(self, snapshot: Snapshot, key: str) -> TableEntry:
        """Return a table as it is written to: on the branch's own line, which is made for it."""
        entry = snapshot.entry(key)
        forks.ensure_fork(self.storage, entry, self.branch, self.settings.orphan_grace_seconds)
        return replace(entry, table_branch=layout.lance_branch(self.branch))

    def _once(self, heartbeat: Heartbeat) -> Maintained:
        """Do one round, from a fresh snapshot to the publish."""
        manifest = open_for_writing(self.storage, self.branch, self.identifier)
        rows = manifest_rows.read(manifest)
        if rows.has_publish(self.round.publish_id):
            return self._published(heartbeat, found_in(manifest, self.round.publish_id))
        snapshot = fold(rows.current, self.branch, int(manifest.version))
        keys = [k for k in sorted(self.built) if self.built[k] and k in snapshot.tables]
        if not keys:
            raise StartOver("the tables are gone")
        crash_records.refuse_foreign(self.storage, self.settings.orphan_grace_seconds)
        entries = {key: self._entry(snapshot, key) for key in keys}
        heartbeat.record(self.branch, entries.values(), self.actor, self.identifier)
        _faults.point("commit.record_written")
        if heal.resolve_dead(self.round, self.settings.orphan_grace_seconds):
            raise StartOver("dead writes were rolled back")
        if heal.settle_heads(self.round, snapshot, tuple(keys)):
            raise StartOver("heads that were ahead were taken back")
        moved: list[Moved] = []
        self.tried = True
        try:
            for key in keys:
                built = self.built[key]
                assert built is not None
                try:
                    moved.append(prepared.apply(self.round, built, entries[key]))
                except Stale:
                    del self.built[key]
                    raise
                _log.info("%s: %s is at version %d", self.mode, key, moved[-1].version)
            _faults.point("commit.tables_done")
            done = publish(self.storage, self._request(snapshot, moved))
        except PublishOutcomeUnknown:
            raise
        except (StartOver, Stale, OmnigraphError):
            self._put_back(moved)
            raise
        self._tidy(lambda: _faults.point("commit.after_publish"))
        return self._published(heartbeat, done, tuple(table.table_key for table in moved))

    def _request(self, snapshot: Snapshot, moved: Sequence[Moved]) -> Publish:
        ours: dict[str, object] = {"publish_id": self.round.publish_id, "mode": self.mode}
        if self.actor is not None:
            ours["actor"] = self.actor
        changes = [
            row for table in moved for row in table.rows(manifest_metadata(self.round, table), ours)
        ]
        return Publish(
            branch=self.branch,
            publish_id=self.round.publish_id,
            changes=tuple(changes),
            expected={table.table_key: table.before for table in moved},
            retries=self.settings.commit_retries,
            branch_identifier=self.identifier,
            actor=self.actor,
            identities=snapshot.identities,
        )

    def _published(
        self, heartbeat: Heartbeat, done: Published, tables: tuple[str, ...] = ()
    ) -> Maintained:
        """Write the lineage row and tidy up; the maintenance is done whatever happens here."""
        publish_id = self.round.publish_id
        self._tidy(
            lambda: commits.record_publish(
                self.storage,
                self.branch,
                publish_id,
                done.graph_version,
                self.actor,
                identifier=self.identifier,
            )
        )
        self._tidy(heartbeat.remove)
        self._tidy(lambda: init.compact_own_datasets(self.storage, self.branch, done.graph_version))
        return Maintained(publish_id, done.graph_version, tables)

    def _put_back(self, moved: Sequence[Moved]) -> None:
        for table in reversed(moved):
            try:
                put_back(self.round, table, pa.schema([]))
            except (StartOver, OmnigraphError) as error:
                _log.warning(
                    "%s could not be put back to %d: %s", table.table_key, table.before, error
                )

    def _is_put_back(self) -> bool:
        """Return whether no table is left with an unpublished head of this maintenance."""
        if not self.tried:
            return True
        try:
            snapshot = load(self.storage, self.branch)
            own = layout.lance_branch(self.branch)
            entries = [
                snapshot.tables[key]
                for key, built in self.built.items()
                if built and key in snapshot.tables
            ]
            targets = [
                TableTarget(e.table_key, e.location, APPEND, e.table_version, own, pa.schema([]))
                for e in entries
            ]
            done = all([*map(is_put_back, repeat(self.round), targets, entries)])
            keys = tuple(entry.table_key for entry in entries)
            heal.publish_put_back(self.round, snapshot, keys)
            return done
        except OmnigraphError as error:
            _log.warning("after %s %s: %s", self.mode, self.round.publish_id, error)
            return False

    def _tidy(self, step: Callable[[], None]) -> None:
        """Do what comes after the outcome is settled; what fails in it doesn't change that."""
        try:
            step()
        except Exception as error:  # noqa: BLE001  (an error now would deny what is published)
            _log.warning("after %s %s: %s", self.mode, self.round.publish_id, error)
