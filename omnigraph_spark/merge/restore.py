"""Restore a graph branch: a new version with the content that all its tables had in an older one.

Runs on the driver. One publish: tables born since get a tombstone, dropped ones are published again
above theirs, and a table that didn't move isn't touched. Where the old version lies on the line
that the branch writes to, Lance's Restore brings it back without new files; what lies on a parent's
line, below the table's fork, is copied into the fork. The tables commit and publish as every write
does (`write.commit`), against exactly the snapshot that the restore was planned on.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from omnigraph_spark.arrow import to_table
from omnigraph_spark.errors import VersionNotFoundError
from omnigraph_spark.manifest import known_types
from omnigraph_spark.manifest.snapshot import Snapshot, TableEntry, branch_ref
from omnigraph_spark.options import WriteOptions
from omnigraph_spark.refs import forks, property_files, refs, same_schema
from omnigraph_spark.schema.model import EngineSchema
from omnigraph_spark.storage import layout
from omnigraph_spark.storage.ids import new_ulid
from omnigraph_spark.storage.lance_errors import DatasetNotFoundError, translated
from omnigraph_spark.storage.relocation import open_for_reading
from omnigraph_spark.storage.store import Storage
from omnigraph_spark.write.commit.commit import Committed, commit, remember_types
from omnigraph_spark.write.plan import (
    CREATE,
    OVERWRITE,
    RESTORE,
    Settings,
    TableTarget,
    WritePlan,
    head,
)
from omnigraph_spark.write.tasks.stage import stage

if TYPE_CHECKING:
    from lance import LanceDataset


@dataclass(frozen=True)
class RestorePlan:
    """A restore: the write, and the old versions whose rows it copies, by table key."""

    write: WritePlan
    copied: Mapping[str, TableEntry]


def restore(storage: Storage, options: WriteOptions, version: str) -> Committed:
    """Make the content of an older version the branch's newest; nothing to do if it is that.

    `version` is a graph version on the branch's lineage, a commit id or tag of one, or a time. The
    rows of tables that are copied pass through this process, a few batches at a time.

    Raises:
        VersionNotFoundError: no such version, or a table version of it was cleaned up.
        OptionError: the commit or tag isn't on the branch's lineage.
        ExpectedVersionMismatch: another writer published to the branch meanwhile; nothing was
        published.
        SchemaMismatchError: rows to be copied no longer fit the table's columns.
        UnsupportedManifestVersion, RecoveryPendingError, UnsupportedError: the graph can't be
            written.
        PublishOutcomeUnknown: the store never said; nothing was deleted.
        StorageError: the store failed; nothing was published.
    """
    ref = refs.on_lineage(storage, options.branch, version)
    old = known_types.load_with_types(storage, *ref)
    planned = plan_restore(storage, options, old)
    losing = property_files.without_columns(storage, _columns(planned.write))
    remembering = remember_types(storage, options, losing) if losing else None
    if remembering is not None:
        planned = plan_restore(storage, remembering, old)
    staged = stage(planned.write, _rows(storage, planned)) if planned.copied else []
    with property_files.in_step(storage, _columns(planned.write), planned.write.types):
        return commit(planned.write, staged)


def _columns(write: WritePlan) -> dict[str, pa.Schema]:
    return {key: target.schema for key, target in write.targets.items()}


def _types(old: Snapshot, keys: Iterable[str]) -> EngineSchema:
    """Return the types that tables had, where `__manifest` knows them."""
    remembered = [known_types.remembered(old, key) for key in keys]
    return EngineSchema.of(table_type for table_type in remembered if table_type is not None)


def plan_restore(storage: Storage, options: WriteOptions, old: Snapshot) -> RestorePlan:
    """Plan the way back to `old`, a snapshot on the branch's lineage; makes forks as writes do.

    Raises:
        VersionNotFoundError: a table version of it was cleaned up.
        UnsupportedManifestVersion, RecoveryPendingError, UnsupportedError, StorageError: as
            `restore`.
    """
    now = head(storage, options)
    same_schema.refuse_other(storage, now, old)
    moved = [key for key, entry in old.tables.items() if _pin(now, key) != _pin(old, key)]
    ways = {key: _way(storage, now, old.tables[key]) for key in moved}
    for key in moved:
        if key in now.tables:
            forks.ensure_fork(
                storage, now.tables[key], options.branch, options.orphan_grace_seconds
            )
    own = layout.lance_branch(options.branch)
    write = WritePlan(
        storage=storage,
        branch=options.branch,
        publish_id=new_ulid(),
        mode=RESTORE,
        targets=ways,
        expected={key: now.version(key) for key in sorted({*now.tables, *moved})},
        actor=options.actor,
        user_metadata=options.user_metadata,
        branch_identifier=None if own is None else branch_ref(storage, options.branch).identifier,
        dropped=tuple(sorted(set(now.tables) - set(old.tables))),
        settings=Settings.of(options),
        types=_types(old, ways),
    )
    copied = {key: old.tables[key] for key, way in ways.items() if way.restore_to is None}
    return RestorePlan(write, copied)


def _pin(snapshot: Snapshot, key: str) -> tuple[str | None, int] | None:
    entry = snapshot.tables.get(key)
    return None if entry is None else (entry.table_branch, entry.table_version)


def _way(storage: Storage, now: Snapshot, old: TableEntry) -> TableTarget:
    """Return how a table comes back: by Lance's Restore, or by a copy of its rows."""
    own = layout.lance_branch(now.branch)
    entry = now.tables.get(old.table_key)
    # The clone that a fork begins with is the parent's version, under the same number.
    in_place = old.table_branch == own or (
        forks.origin(storage, old.location, own)
        == (old.table_branch or layout.MAIN, old.table_version)
    )
    version = entry.table_version if entry else 0
    old_schema = _open(storage, old).schema
    if in_place:
        return TableTarget(
            old.table_key, old.location, RESTORE, version, own, old_schema, None, old.table_version
        )
    if entry is None:
        return TableTarget(old.table_key, old.location, CREATE, 0, own, old_schema)
    schema = _open(storage, entry).schema
    return TableTarget(old.table_key, old.location, OVERWRITE, version, own, schema)


def _rows(storage: Storage, planned: RestorePlan) -> Iterator[tuple[str, pa.RecordBatch]]:
    for key, entry in planned.copied.items():
        schema = planned.write.targets[key].schema
        with translated(f"Reading version {entry.table_version} of {key}"):
            scanner = _open(storage, entry).scanner(
                blob_handling="all_binary", batch_size_bytes=8 << 20
            )
            for batch in scanner.to_batches():
                yield key, to_table.to_table_batch(batch, schema, key)


def _open(storage: Storage, entry: TableEntry) -> LanceDataset:
    try:
        return open_for_reading(storage, entry.location, entry.table_branch, entry.table_version)
    except DatasetNotFoundError as error:
        raise VersionNotFoundError(
            f"Version {entry.table_version} of {entry.table_key} was cleaned up",
            expected="a graph version whose tables are all there",
            hint="A tag keeps the tables of a version",
        ) from error
