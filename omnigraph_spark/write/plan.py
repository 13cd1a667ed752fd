"""Plan a write on the driver: which tables, on which versions, with which schemas.

Spark-free and without side effects: everything that can be refused is refused here, before a task
has written a byte. The plan is plain data and is pickled to the tasks and to the commit.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa

from omnigraph_spark import schema as engine_schema
from omnigraph_spark.errors import (
    ExpectedVersionMismatch,
    GraphNotFoundError,
    OptionError,
    SchemaMismatchError,
    TableNotFoundError,
    UnsupportedError,
)
from omnigraph_spark.integrity import rules
from omnigraph_spark.integrity.rules import Integrity
from omnigraph_spark.manifest import (
    crash_records,
    known_types,
    manifest_rows,
    migrations,
    schema_lock,
)
from omnigraph_spark.manifest.snapshot import (
    Snapshot,
    TableEntry,
    fold,
    open_identified,
    open_manifest,
    read_rows,
)
from omnigraph_spark.manifest.writable import refuse_moved
from omnigraph_spark.options import WriteOptions
from omnigraph_spark.refs import branches, forks, refs
from omnigraph_spark.schema.model import (
    EdgeType,
    EngineSchema,
    NodeType,
    Property,
    of_arrow,
    table_schema,
)
from omnigraph_spark.schema.property_types import EngineType, is_blob
from omnigraph_spark.storage import layout
from omnigraph_spark.storage.ids import new_ulid
from omnigraph_spark.storage.opened import one_call, version_of
from omnigraph_spark.storage.store import Storage, normalize_root
from omnigraph_spark.write import shared
from omnigraph_spark.write.reads import FRAMES, ReadFrom, Span, has_same_rows, spans_of_others

APPEND = "append"
OVERWRITE = "overwrite"
CREATE = "create"
RESTORE = "restore"
ALTER = "alter"
MERGE = "merge"
DELETE = "delete"
REPLACE = "replace"
"""An overwrite of the rows that a predicate chooses (`replaceWhere`)."""
ALL_ROWS, NO_ROWS = "true", "false"
CASCADE = "cascade"
_NO_BRANCH = -1
"""Graph version of a branch that isn't made yet."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class NewTable:
    """What a frame says of a table that may have to be created.

    `carried` are engine types by column that Arrow can't tell (an enum).
    """

    schema: pa.Schema
    key: str | None = None
    endpoints: tuple[str, str] | None = None
    carried: Mapping[str, EngineType] = field(default_factory=dict)


@dataclass(frozen=True)
class TableTarget:
    """One table of a write; `version` is the one it was planned on (0: none), `schema` as stored.

    `table_branch` is the Lance branch that is written to: the graph branch's name, None for `main`.
    `restore_to` is the version of that line whose content the table gets again, without new files.
    `added` are the columns of `schema` that the table lacked at the plan; they come last.
    `renamed` maps columns to their new names, those that are dropped to None, and those that may be
    null from there on to their own names. `retyped` is a column with the wider type that it gets.
    `others` is what other writes changed since the frame was read: an upsert or delete of those
    rows is refused.
    `replaces` is Lance's predicate of the rows that new ones take the place of. `edge_key` are the
    columns that an edge's id is made from; a table that wasn't made with them (not `keeps_key`) is
    looked through for edges with their values. `id_of` are the columns that a node's id is made
    from, where it isn't the plain text of its key.
    """

    table_key: str
    location: str
    mode: str
    version: int
    table_branch: str | None
    schema: pa.Schema
    key: str | None = None
    restore_to: int | None = None
    added: tuple[str, ...] = ()
    renamed: tuple[tuple[str, str | None], ...] = ()
    retyped: pa.Field | None = None
    others: tuple[Span, ...] = ()
    replaces: str = ""
    edge_key: tuple[str, ...] = ()
    keeps_key: bool = False
    id_of: tuple[str, ...] = ()

    @property
    def has_new_columns(self) -> bool:
        """Whether the write gives the table other columns than it has."""
        return bool(self.added or self.renamed or self.retyped)

    def reshaping(self) -> tuple[tuple[str, str | None, bool], ...]:
        """Return (column, its new name, whether it may be null from there on) by `renamed`."""
        return tuple(
            (old, new, new == old or (new in self.schema.names and self.schema.field(new).nullable))
            for old, new in self.renamed
        )

    def before(self) -> dict[str, str | None]:
        """Return what columns of `schema` are called before the write: None for added ones."""
        names: dict[str, str | None] = {new: old for old, new in self.renamed if new is not None}
        return {**names, **dict.fromkeys(self.added)}

    @property
    def data(self) -> str:
        """The folder of the data files, below the graph's root."""
        line = f"/tree/{self.table_branch}" if self.table_branch else ""
        return f"{self.location}{line}/data"


@dataclass(frozen=True)
class Settings:
    """How hard a commit tries and how files are cut; times in seconds, sizes in bytes."""

    commit_retries: int = 5
    commit_timeout_seconds: float = 300.0
    orphan_grace_seconds: float = 10.0
    max_rows_per_file: int = 1_048_576
    max_bytes_per_file: int = 90 << 30
    exact: bool = False
    """Whether a value that its column can't hold as it is is refused (`storeAssignment`)."""
    record_runs: bool = False

    @classmethod
    def of(cls, options: WriteOptions) -> Settings:
        """Return the settings that the options of a write name."""
        return cls(
            options.commit_retries,
            options.commit_timeout_seconds,
            options.orphan_grace_seconds,
            options.max_rows_per_file,
            options.max_bytes_per_file,
            options.exact,
            options.record_runs,
        )


@dataclass(frozen=True)
class WritePlan:
    """A whole write: its targets and what its commit needs; picklable, secrets only in `storage`.

    `expected` are the versions that must still be the published ones at the commit, in every round:
    the caller's, the ones the frame was read from, and, for an overwrite, the ones it was planned
    on. `dropped` are tables that get a tombstone; `merged_parent` is the commit that a merge brings
    in; `new_properties` are what the schema files learn of added columns; `types` are types that
    tables have after the write, where neither the files nor `__manifest` tell. `unchecked` says
    that an overwrite knew, of a table it replaces, no version to expect but the head's. `reads` is
    what an upsert's or delete's frames were read from, by table; `frames` are the names of the
    frames. With `txn_whole` the write is done if any table of the graph has its `txn` (`Publish`).
    `planned_at` is when its staging record was left, in seconds since the epoch; None without one.
    `deletes` says that an upsert deletes rows beside.
    """

    storage: Storage
    branch: str
    publish_id: str
    mode: str
    targets: Mapping[str, TableTarget]
    expected: Mapping[str, int] = field(default_factory=dict)
    new_types: EngineSchema = field(default_factory=EngineSchema)
    actor: str | None = None
    user_metadata: str | None = None
    txn: tuple[str, int] | None = None
    txn_whole: bool = False
    unchecked: bool = False
    branch_identifier: str | None = None
    dropped: tuple[str, ...] = ()
    merged_parent: str | None = None
    settings: Settings = field(default_factory=Settings)
    on_delete: str = "restrict"
    integrity: Integrity = field(default_factory=Integrity)
    new_properties: Mapping[str, tuple[Property, ...]] = field(default_factory=dict)
    reads: Mapping[str, ReadFrom] = field(default_factory=dict)
    frames: tuple[str, ...] = ()
    planned_at: float | None = None
    types: EngineSchema = field(default_factory=EngineSchema)
    deletes: bool = False

    def changes_schema(self) -> bool:
        """Return whether tables or properties come or go with it."""
        targets = self.targets.values()
        changed = any(target.mode == CREATE or target.has_new_columns for target in targets)
        types = (*self.types.types(), *self.new_types.types())
        return bool(changed or self.dropped or types)

    def marks(self) -> dict[str, Any]:
        """Return this connector's part of the `metadata` of each version row, as plain data."""
        ours: dict[str, Any] = {"publish_id": self.publish_id, "mode": self.mode}
        if self.txn is not None:
            ours["txn"] = list(self.txn)
        if self.user_metadata is not None:
            ours["user_metadata"] = self.user_metadata
        if self.actor is not None:
            ours["actor"] = self.actor
        if self.frames:
            ours[FRAMES] = list(self.frames)
        if self.unchecked:
            ours["unchecked"] = True
        if self.merged_parent is not None:
            ours["merged_parent"] = self.merged_parent
        if self.integrity.checks_rows():
            ours["integrity"] = self.integrity.level
        return ours


@one_call()
def plan_write(
    storage: Storage,
    options: WriteOptions,
    tables: Mapping[str, NewTable | None],
    read_versions: Mapping[str, int] | None = None,
    reads: Mapping[str, ReadFrom] | None = None,
    snapshot: Snapshot | None = None,
) -> WritePlan:
    """Plan a write of `tables`; runs on the driver once per write.

    Writes nothing, but that the branch is made (`branchFrom`) and that a table gets its fork where
    the branch doesn't have it yet: tasks write their files into it. Both come last, when nothing
    else is left to refuse.

    `tables` maps table keys to what is needed to create the table, None where it must exist.
    `read_versions` are the table versions that an overwrite's frame says it was read from, `reads`
    the same of an upsert or delete, which may be older: its rows are what must not have changed.
    `snapshot` is the `head` of the same options, where the caller has just read it.

    Raises:
        TableNotFoundError: a table isn't there and can't be made from the frame.
        ExpectedVersionMismatch: a table isn't where the options or the frame expect it.
        UnsupportedManifestVersion, RecoveryPendingError: the graph can't be written.
        CorruptManifestError: `_schema.pg` is damaged.
        OptionError, SchemaMismatchError, UnsupportedError: what the frame asks for can't be done.
        StorageError: the store failed.
    """
    snapshot = head(storage, options) if snapshot is None else snapshot
    schema = known_types.known(storage, snapshot).schema
    targets = {
        key: _target(storage, snapshot, schema, options.mode, key, new)
        for key, new in sorted(tables.items())
    }
    _refuse_options(options, targets)
    expected = _expected(storage, options, snapshot, targets, read_versions or {})
    new_types = _new_types(snapshot, tables, targets)
    engine_schema.types_to_add(schema, new_types)  # refuses now what the commit would refuse
    integrity = rules.of_write(
        options.integrity,
        options.bad_records_path and normalize_root(options.bad_records_path),
        schema.with_types(new_types),
        targets,
    )
    if options.branch_from is not None and snapshot.graph_version == _NO_BRANCH:
        origin = refs.named(storage, options.branch_from)
        branches.ensure_branch(storage, options.branch, origin, options.orphan_grace_seconds)
        return plan_write(storage, options, tables, read_versions, reads)
    for key in targets:
        if key in snapshot.tables:
            entry = snapshot.tables[key]
            forks.ensure_fork(storage, entry, options.branch, options.orphan_grace_seconds)
    targets = _with_others(storage, snapshot, targets, reads or {})
    return WritePlan(
        storage=storage,
        branch=options.branch,
        publish_id=new_ulid(),
        mode=options.mode,
        targets=targets,
        expected=expected,
        new_types=new_types,
        actor=options.actor,
        user_metadata=options.user_metadata,
        txn=options.txn,
        unchecked=options.mode == OVERWRITE
        and not set(targets) <= {*(read_versions or {}), *options.expected_table_versions},
        branch_identifier=snapshot.identifier,
        settings=Settings.of(options),
        on_delete=options.on_delete,
        integrity=integrity,
        reads=reads or {},
    )


def _refuse_options(options: WriteOptions, targets: Mapping[str, TableTarget]) -> None:
    """Refuse options that don't go with what is done to the tables."""
    given = {"badRecordsPath": options.bad_records_path, "mergeSchema": options.merge_schema}
    for name, value in given.items():
        if value and options.mode == DELETE:
            raise UnsupportedError(
                f"{name} doesn't go with writeMode delete, which needs id alone",
                hint="Leave it out",
            )
    for key, target in targets.items() if options.bad_records_path is not None else ():
        if target.id_of:
            raise UnsupportedError(
                f"badRecordsPath doesn't go with {key}, whose ids are made from its keys",
                expected=f"a table whose id isn't made from {', '.join(target.id_of)}",
                hint="Leave it out, or leave the table out of the write",
            )
        if target.mode == MERGE and any(is_blob(field) for field in target.schema):
            raise UnsupportedError(
                f"badRecordsPath doesn't go with an upsert into {key}, which has blobs",
                hint="Leave it out, or leave the table out of the write",
            )


def _with_others(
    storage: Storage,
    snapshot: Snapshot,
    targets: Mapping[str, TableTarget],
    reads: Mapping[str, ReadFrom],
) -> dict[str, TableTarget]:
    """Return targets that say what other writes changed since their frames were read."""
    marked = dict(targets)
    moved = [key for key, read in reads.items() if read.version < snapshot.version(key)]
    if moved:
        rows = read_rows(open_manifest(storage, snapshot.branch))
    for key in moved:
        others = spans_of_others(rows, reads[key], snapshot.tables[key])
        marked[key] = replace(marked[key], others=others)
    return marked


def head(storage: Storage, options: WriteOptions) -> Snapshot:
    """Return the head of a graph that may be written, an empty snapshot where there is no graph.

    A branch that `branchFrom` is going to make has the tables of that ref and no version yet.

    Raises:
        BranchNotFoundError, VersionNotFoundError: no such branch, or no such ref.
        UnsupportedManifestVersion, RecoveryPendingError, UnsupportedError: the graph can't be
            written.
        StorageError: the store failed.
    """
    branch, version = options.branch, None
    try:
        if options.branch_from is not None and not branches.has_branch(storage, branch):
            layout.check_branch_name(branch)
            branch, version = refs.named(storage, options.branch_from)
            origin = known_types.load_with_types(storage, branch, version)
        manifest, _, identifier = open_identified(storage, branch)
    except GraphNotFoundError:
        if layout.lance_branch(options.branch) is not None:
            raise
        return Snapshot(branch, 0, {}, {}, {})
    migrations.refuse_newer(manifest)
    if layout.lance_branch(branch) is not None:
        refuse_moved(storage, branch, manifest)
    schema_lock.recover(storage, options.orphan_grace_seconds)
    if crash_records.refuse_foreign(storage, options.orphan_grace_seconds):
        return head(storage, options)  # what was read before the wait is old now
    if branch != options.branch:
        return replace(origin, branch=options.branch, graph_version=_NO_BRANCH, identifier=None)
    rows = manifest_rows.read(manifest).current
    snapshot = known_types.with_types(fold(rows, branch, manifest.version), rows)
    return replace(snapshot, identifier=identifier)


def _target(
    storage: Storage,
    snapshot: Snapshot,
    schema: EngineSchema,
    mode: str,
    key: str,
    new: NewTable | None,
) -> TableTarget:
    entry = snapshot.tables.get(key)
    if entry is not None:
        return _existing(storage, snapshot, schema, mode, entry)
    if new is None:
        raise TableNotFoundError(
            f"No table {key} on branch {snapshot.branch}, and this write can't create it",
            expected=", ".join(sorted(snapshot.tables)[:60]) or "none: the graph has no tables",
            hint="Write that one table with option table, or a frame made by omnigraph_spark.pack",
            table_key=key,
        )
    engine_type = of_arrow(key, new.schema, new.key, new.endpoints, new.carried)
    if isinstance(engine_type, EdgeType):
        for end in (engine_type.source, engine_type.target):
            layout.check_type_name(end)
    for left in engine_type.left_out:
        _log.warning(
            "%s.%s is kept, and the engine doesn't see it: %s", key, left.column, left.reason
        )
    location = snapshot.locations.get(key) or layout.table_location(key)
    taken = [k for k, other in snapshot.locations.items() if other == location and k != key]
    if taken:
        raise SchemaMismatchError(f"{key} would share its folder with {taken[0]}", found=location)
    return TableTarget(
        table_key=key,
        location=layout.check_location(location, key),
        mode=CREATE,
        version=0,
        table_branch=layout.lance_branch(snapshot.branch),
        schema=table_schema(new.schema, engine_type),
        key=new.key,
    )


def _existing(
    storage: Storage, snapshot: Snapshot, schema: EngineSchema, mode: str, entry: TableEntry
) -> TableTarget:
    branch = layout.lance_branch(snapshot.branch)
    if branch is None and entry.table_branch is not None:
        raise UnsupportedError(
            f"{entry.table_key} of main is published from the table branch {entry.table_branch}",
            hint="Such a table can be read, not written",
        )
    dataset = version_of(storage, entry.location, entry.table_branch, entry.table_version)
    known = schema.of_table(entry.table_key)
    if snapshot.identities:
        shared.check_table(entry.table_key, dataset.schema)
    return TableTarget(
        table_key=entry.table_key,
        location=entry.location,
        mode=mode,
        version=entry.table_version,
        table_branch=branch,
        schema=dataset.schema,
        key=known.key if isinstance(known, NodeType) else None,
        id_of=shared.id_columns(known, dataset.schema) if snapshot.identities else (),
    )


def _new_types(
    snapshot: Snapshot,
    tables: Mapping[str, NewTable | None],
    targets: Mapping[str, TableTarget],
) -> EngineSchema:
    """Return the engine's types of the tables that are created, and check that edges end somewhere.

    Raises:
        OptionError: an edge table's end is neither a table of the graph nor of this write.
    """
    made = [
        of_arrow(key, new.schema, new.key, new.endpoints, new.carried)
        for key, new in sorted(tables.items())
        if new is not None and targets[key].mode == CREATE
    ]
    known = {*snapshot.tables, *targets}
    for kind in made:
        for end in (kind.source, kind.target) if isinstance(kind, EdgeType) else ():
            if layout.table_key(layout.NODE, end) not in known:
                raise OptionError(
                    f"The new edge table {kind.table_key} ends at {end}, which is not a node table",
                    expected=", ".join(sorted(k for k in known if not layout.is_edge(k))) or None,
                    hint="Write the node table first, or both in one frame (omnigraph_spark.pack)",
                )
    return EngineSchema.of(made)


def _expected(
    storage: Storage,
    options: WriteOptions,
    snapshot: Snapshot,
    targets: Mapping[str, TableTarget],
    read_versions: Mapping[str, int],
) -> dict[str, int]:
    """Return what must hold at the commit, checked once now against the head.

    Raises:
        ExpectedVersionMismatch: it doesn't hold already.
        OptionError: `expectedTableVersions` names something that is not a valid table key.
    """
    expected: dict[str, int] = {}
    if options.mode == OVERWRITE and not options.last_writer_wins:
        expected = {key: target.version for key, target in targets.items()}
        for key, version in read_versions.items():
            if key in targets:
                expected[key] = min(version, expected[key])
    if options.mode in (MERGE, DELETE):
        for key, target in targets.items():
            # Staged blobs can't be read again, as a round that is lost to another write would.
            if target.mode == MERGE and any(is_blob(field) for field in target.schema):
                expected.setdefault(key, target.version)
    for key, version in options.expected_table_versions.items():
        layout.split_table_key(key)
        expected[key] = version
    refuse_moved_on(storage, snapshot, expected)
    return expected


def refuse_moved_on(storage: Storage, snapshot: Snapshot, expected: Mapping[str, int]) -> None:
    """Refuse where a table was changed since the version that is expected of it.

    Maintenance changes no row; what it published since is not a change. `snapshot` is a branch's
    head.

    Raises:
        ExpectedVersionMismatch: a table was changed.
        StorageError: the store failed.
    """
    moved = [key for key in sorted(expected) if snapshot.version(key) != expected[key]]
    if not moved:
        return
    rows: pa.Table | None = None
    if snapshot.graph_version > 0:
        manifest = open_manifest(storage, snapshot.branch, snapshot.graph_version)
        rows = read_rows(manifest)
    for key in moved:
        current = snapshot.version(key)
        if rows is None or not has_same_rows(rows, key, expected[key], current):
            raise ExpectedVersionMismatch(key, expected[key], current)
