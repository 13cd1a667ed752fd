"""Properties of a graph of today's engines: added, dropped, renamed and altered in one commit.

There the schema files and the tables change together (`history/schema_apply.py`), under the lock of
schema changes. A table gets its columns in the order that the engines need, and no row of it is
written again, but for a wider type. Runs on the driver.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import pyarrow as pa

from omnigraph_spark.errors import (
    CommitTimeoutError,
    ExpectedVersionMismatch,
    OmnigraphError,
    RowLevelCasContention,
    SchemaMismatchError,
    UnsupportedError,
)
from omnigraph_spark.history import schema_apply
from omnigraph_spark.history.schema_apply import Change
from omnigraph_spark.manifest import manifest_rows, schema_lock
from omnigraph_spark.manifest.publisher import check_txn
from omnigraph_spark.manifest.rows import ManifestRow
from omnigraph_spark.manifest.snapshot import Snapshot, load, open_main
from omnigraph_spark.schema import edits
from omnigraph_spark.schema.ir2 import Renamed
from omnigraph_spark.storage import backoff, layout
from omnigraph_spark.storage.ids import new_ulid
from omnigraph_spark.storage.lance_errors import translated
from omnigraph_spark.storage.store import Storage
from omnigraph_spark.write.commit import added_columns, heal
from omnigraph_spark.write.commit.commit import Committed
from omnigraph_spark.write.commit.table_commit import Moved, manifest_metadata, quietly_put_back
from omnigraph_spark.write.commit.table_head import Round, StartOver, settle, strip
from omnigraph_spark.write.plan import ALTER, TableTarget, WritePlan

_PAUSE_SECONDS = 0.2

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Done:
    """A change that is published: its commit, and the versions that its tables have from there."""

    committed: Committed
    versions: Mapping[str, int] = field(default_factory=dict)


def refuse_elsewhere(storage: Storage, branch: str) -> None:
    """Refuse to change properties on or beside another branch than `main`; changes nothing.

    Raises:
        UnsupportedError: the graph has other branches, or the change is for one.
        StorageError: the store failed.
    """
    schema_lock.refuse_branches(storage)
    if layout.lance_branch(branch) is not None:
        raise UnsupportedError(
            "The tables and properties of this graph are changed on main: all branches share one"
            " schema",
            expected=layout.MAIN,
            found=branch,
            hint="Nothing was changed. Change main, then make the branch",
        )


def add(plan: WritePlan) -> Done:
    """Add the columns that a plan's targets have beyond their tables, named in the schema files.

    Raises:
        OmnigraphError: as `change`.
    """
    named = plan.new_properties

    def text(old: str) -> str:
        for key, properties in named.items():
            old = edits.add_properties(old, key, properties)
        return old

    targets = {key: one for key, one in plan.targets.items() if one.added or key in named}
    return change(replace(plan, targets=targets), text)


def change(plan: WritePlan, text: Callable[[str], str], renamed: Renamed | None = None) -> Done:
    """Commit a plan's tables with other columns, and the text of `_schema.pg` that says so.

    Raises:
        UnsupportedError: the graph has other branches.
        RecoveryPendingError: another process changes the schema, or an engine's record is there.
        ExpectedVersionMismatch: a table isn't where the plan expects it; nothing was published.
        SchemaMismatchError: others changed the same columns meanwhile.
        CommitTimeoutError: others published first until `commitTimeoutSeconds` ran out.
        CorruptManifestError: the schema files contradict each other or the tables.
        PublishOutcomeUnknown, StorageError: as a write.
    """
    if plan.txn is not None:
        manifest = open_main(plan.storage)
        batches = manifest_rows.read(manifest).batches
        if check_txn(batches, plan.txn, frozenset(plan.targets), plan.txn_whole):
            return Done(Committed(plan.publish_id, int(manifest.version), skipped=True))
    end = time.monotonic() + plan.settings.commit_timeout_seconds
    while True:
        try:
            return _Changing(plan, text, renamed).run()
        except RowLevelCasContention as error:
            if time.monotonic() >= end:
                raise CommitTimeoutError(
                    f"A change of properties of {', '.join(plan.targets)} lost to other writers",
                    expected=f"one won round within {plan.settings.commit_timeout_seconds:g} s",
                    hint="Nothing was published. Call again, or raise commitTimeoutSeconds",
                ) from error
            _log.info("a change of properties lost a round: %s", error)
            backoff.poll(_PAUSE_SECONDS)


class _Changing:
    """One round of a change, with a commit id of its own."""

    def __init__(
        self, plan: WritePlan, text: Callable[[str], str], renamed: Renamed | None
    ) -> None:
        self._plan = plan
        self._text = text
        self._renamed = renamed
        self._id = new_ulid()
        self._moved: list[Moved] = []
        self._before: dict[str, int] = {}
        self._round = Round(
            plan.storage,
            self._id,
            plan.settings.orphan_grace_seconds,
            lambda: load(plan.storage),
        )

    def run(self) -> Done:
        """Make the change.

        Raises:
            RowLevelCasContention: another writer was first; nothing was published.
            OmnigraphError: as `change`.
        """
        plan = self._plan
        grace = plan.settings.orphan_grace_seconds
        asked = Change(
            self._id,
            self._text,
            self._rows,
            plan.actor,
            grace,
            self._before,
            renamed=self._renamed,
            undo=self._undo,
            reshapes=True,
            tables=tuple(plan.targets),
        )
        published = schema_apply.apply(plan.storage, asked)
        done = Committed(self._id, published.graph_version, published.skipped)
        return Done(done, {one.table_key: one.version for one in self._moved})

    def _rows(self, snapshot: Snapshot, _: object) -> list[ManifestRow]:
        """Commit the tables, and return the rows by which they are published."""
        targets = {k: one for k, one in self._plan.targets.items() if one.has_new_columns}
        marks = {**self._plan.marks(), "publish_id": self._id, "mode": ALTER}
        found: list[ManifestRow] = []
        try:
            self._refuse_moved_on(snapshot)
            if heal.settle_heads(self._round, snapshot, tuple(targets)):
                raise StartOver("heads that were ahead were taken back")
            for target in targets.values():
                moved = self._committed(target, snapshot)
                self._before[target.table_key] = moved.before
                if moved.version > moved.before:  # else another writer has made it so
                    self._moved.append(moved)
                    found += moved.rows(manifest_metadata(self._round, moved), marks)
        except StartOver as error:
            self._undo(snapshot)
            raise RowLevelCasContention(
                str(error), hint="Nothing was published. Try again", attempts=1
            ) from error
        except OmnigraphError:
            self._undo(snapshot)
            raise
        return found

    def _refuse_moved_on(self, snapshot: Snapshot) -> None:
        for key, target in self._plan.targets.items():
            version = snapshot.version(key)
            if key in self._plan.expected and version != target.version:
                raise ExpectedVersionMismatch(key, target.version, version)

    def _committed(self, target: TableTarget, snapshot: Snapshot) -> Moved:
        key, entry = target.table_key, snapshot.entry(target.table_key)
        pinned = entry.table_version
        if entry.location != target.location:
            raise SchemaMismatchError(
                f"{key} was dropped and made again meanwhile",
                expected=target.location,
                found=entry.location,
                hint="Nothing was changed. Look at the table, then call again",
                table_key=key,
            )
        head = strip(settle(self._round, key, entry.location, None, pinned))
        made = added_columns.reshaped(self._round, target, head)
        schema = added_columns.placed(self._round, target, added_columns.schema_with(target, made))
        made = added_columns.add(self._round, made, schema)
        with translated(f"Counting the rows of {key}"):
            rows = int(made.count_rows())
        return Moved(key, entry.location, None, pinned, int(made.version), rows, 0, 0, made.schema)

    def _undo(self, snapshot: Snapshot) -> None:
        """Take the tables back to where the round found them, and publish that."""
        schemas: dict[str, pa.Schema] = {one.table_key: one.schema for one in self._moved}
        quietly_put_back(self._round, self._moved, schemas)
        heal.publish_put_back(self._round, snapshot, tuple(schemas))
        self._moved = []
