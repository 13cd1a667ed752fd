"""Change the schema of a graph of today's engines: a commit of its own, with the schema files.

There the files name exactly the tables that are published, on every branch, and each table's folder
is named by ids that the IR hands out. So a change of tables or properties holds the lock
(`manifest/schema_lock.py`), makes new tables without rows and new versions of those that it
changes, lays the new files beside the old, publishes, and puts the files in their place. A process
that dies before its publish has changed nothing, one that dies after it has changed all: the next
write, or the engine's next command, tidies up. Runs on the driver.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from omnigraph_spark import _faults
from omnigraph_spark import schema as engine_schema
from omnigraph_spark.errors import (
    CorruptManifestError,
    OmnigraphError,
    PublishOutcomeUnknown,
)
from omnigraph_spark.history import new_graph
from omnigraph_spark.manifest import schema_lock, schema_record
from omnigraph_spark.manifest.publisher import Publish, Published, publish
from omnigraph_spark.manifest.rows import (
    EDGE_KEY,
    OURS,
    ManifestRow,
    TombstoneRow,
)
from omnigraph_spark.manifest.snapshot import Snapshot, load
from omnigraph_spark.schema import edits, ir2
from omnigraph_spark.schema.model import EngineSchema
from omnigraph_spark.storage import layout
from omnigraph_spark.storage.ids import new_ulid
from omnigraph_spark.storage.layout import Identity
from omnigraph_spark.storage.store import Storage

_log = logging.getLogger(__name__)
Rows = Callable[[Snapshot, Mapping[str, Identity]], Sequence[ManifestRow]]
"""Makes the tables of a change, and returns the rows of its publish."""


@dataclass(frozen=True)
class Change:
    """A change of the schema: how the text of `_schema.pg` changes, and what is published with it.

    `commit_id` is a ULID of its own. `expected` are versions that tables must be at. `undo` takes
    the tables that `rows` has changed back where the publish doesn't land; `reshapes` says that it
    may change some although the text says nothing of it. `tables` are those that get new versions.
    """

    commit_id: str
    text: Callable[[str], str]
    rows: Rows
    actor: str | None
    grace_seconds: float
    expected: Mapping[str, int] = field(default_factory=dict)
    renamed: ir2.Renamed | None = None
    undo: Callable[[Snapshot], None] = lambda _: None
    reshapes: bool = False
    tables: Sequence[str] = ()


def add_tables(
    storage: Storage,
    types: EngineSchema,
    *,
    edge_keys: Mapping[str, Sequence[str]],
    actor: str | None,
    grace_seconds: float,
) -> None:
    """Add tables without rows for types that the graph lacks; those that are there stay.

    Raises:
        UnsupportedError: the graph has other branches, or a column is none that the engine knows.
        RecoveryPendingError: another process changes the schema.
        SchemaMismatchError, OptionError: a type that can't be, or there is another of its name.
        CorruptManifestError: the schema files contradict each other or the tables.
        PublishOutcomeUnknown, RowLevelCasContention, StorageError: as a publish.
    """
    new_graph.refuse_unspellable(types)
    commit_id = new_ulid()
    marks = {"publish_id": commit_id, "mode": "append", "rows_added": 0, "rows_removed": 0}

    def made(_: Snapshot, pairs: Mapping[str, Identity]) -> list[ManifestRow]:
        rows: list[ManifestRow] = []
        for key, pair in pairs.items():
            table_type = types.of_table(key)
            if table_type is None:
                raise CorruptManifestError(f"{layout.SCHEMA_IR} names {key}, which has no table")
            ours: dict[str, Any] = dict(marks)
            if edge_keys.get(key):
                ours[EDGE_KEY] = list(edge_keys[key])
            rows += new_graph.empty_table(storage, table_type, pair, ours)
        return rows

    def changed(text: str) -> str:
        return engine_schema.merged(text, types)

    apply(storage, Change(commit_id, changed, made, actor, grace_seconds))


def drop_tables(
    storage: Storage, expected: Mapping[str, int], actor: str | None, grace_seconds: float
) -> tuple[str, Published]:
    """Drop tables, each at its expected version; their folders stay for older graph versions.

    Returns the id of the commit, and what was published.

    Raises:
        ExpectedVersionMismatch: one of them has another version; nothing was dropped.
        UnsupportedError, RecoveryPendingError, CorruptManifestError, PublishOutcomeUnknown,
        RowLevelCasContention, StorageError: as `add_tables`.
    """
    commit_id = new_ulid()

    def gone(snapshot: Snapshot, _: Mapping[str, Identity]) -> list[ManifestRow]:
        tombstones: list[ManifestRow] = []
        for key in sorted(expected):
            entry = snapshot.entry(key)
            marks = {"publish_id": commit_id, "mode": "alter", "rows_added": 0}
            marks["rows_removed"] = entry.row_count
            # The number that the engine seals a table with, above all that were published.
            tombstones.append(TombstoneRow(key, snapshot.floors[key] + 1, {OURS: marks}))
        return tombstones

    def changed(text: str) -> str:
        return edits.drop_types(text, frozenset(expected))

    change = Change(commit_id, changed, gone, actor, grace_seconds, expected)
    return commit_id, apply(storage, change)


def apply(storage: Storage, change: Change) -> Published:
    """Make a change under the lock: its tables, its files beside the old, its publish; or nothing.

    Raises:
        UnsupportedError, RecoveryPendingError, CorruptManifestError, PublishOutcomeUnknown,
        RowLevelCasContention, StorageError: as `add_tables`.
        OmnigraphError: what the change's own parts raise.
    """
    known = load(storage).tables
    changed = [known[key] for key in change.tables if key in known]
    with schema_lock.held(storage, change.commit_id, change.grace_seconds, changed):
        try:
            published, files = _published(storage, change)
        except PublishOutcomeUnknown:
            raise
        except OmnigraphError:
            _ended(storage, change.commit_id, schema_lock.undo)
            raise
        # From here on the change is done: what fails is finished by the next write.

        def settle(storage: Storage, holder: str) -> None:
            schema_lock.settle(storage, holder, files)

        _ended(storage, change.commit_id, settle)
        return published


def _published(storage: Storage, change: Change) -> tuple[Published, tuple[bytes, ...]]:
    """Publish a change, and return the schema files that come with it, none if it was there."""
    commit_id = change.commit_id
    snapshot = load(storage)
    text, ir_text = _files(storage, snapshot)
    new_text = change.text(text)
    if new_text == text and not change.reshapes:
        return Published(snapshot.graph_version, skipped=True), ()
    new_ir = ir2.changed_ir(engine_schema.parse_pg(new_text), ir_text, change.renamed)
    pairs = ir2.table_ids(ir2.document(new_ir))
    fresh = {key: pair for key, pair in pairs.items() if key not in snapshot.identities}
    schema_lock.check_held(storage, commit_id)
    schema_lock.remove_unpublished(storage, dict(snapshot.identities))
    changes = change.rows(snapshot, fresh)
    if new_text == text and not changes:
        return Published(snapshot.graph_version, skipped=True), ()
    onto = None
    try:
        _faults.point("schema_apply.tables_made")
        schema_lock.check_held(storage, commit_id)
        if pairs == dict(snapshot.identities):  # nobody can see from the tables what has landed
            onto = schema_record.write(storage, commit_id, change.actor, ir_text, new_ir)
            _faults.point("schema_apply.recorded")
        files = tuple(one.encode("utf-8") for one in (new_text, new_ir, ir2.state_json(new_ir)))
        for path, content in zip(schema_lock.STAGED, files, strict=True):
            storage.put(path, content)
            _faults.point("schema_apply.file_staged")
        _faults.point("schema_apply.staged")
        request = Publish(
            layout.MAIN,
            commit_id,
            tuple(changes),
            change.expected,
            actor=change.actor,
            lock_holder=commit_id,
            identities=snapshot.identities,
            onto=onto,
        )
        published = publish(storage, request)
    except PublishOutcomeUnknown:
        raise
    except OmnigraphError:
        change.undo(snapshot)
        raise
    _faults.point("schema_apply.published")
    return published, files


def _ended(storage: Storage, holder: str, tidy: Callable[[Storage, str], None]) -> None:
    """Tidy up and drop the lock, which stays where that fails: it says that something is left."""
    try:
        tidy(storage, holder)
        schema_lock.release(storage, holder)
    except OmnigraphError as error:
        _log.warning("a change of the schema left its lock, for the next write: %s", error)


def _files(storage: Storage, snapshot: Snapshot) -> tuple[str, str]:
    """Return `_schema.pg` and the IR if they agree with each other and with the tables."""
    texts = [storage.get(name) for name in layout.SCHEMA_FILES]
    pg, ir_text, state = (None if data is None else data.decode("utf-8") for data in texts)
    if pg is None or ir_text is None or state is None:
        raise CorruptManifestError(
            "A schema file of the graph is missing",
            expected=", ".join(layout.SCHEMA_FILES),
            hint="Bring it back from a copy of the graph; the engine refuses it without",
        )
    disagreement = ir2.disagreement(engine_schema.parse_pg(pg), ir_text, state)
    pairs = ir2.table_ids(ir2.document(ir_text))
    if disagreement is None and pairs != dict(snapshot.identities):
        disagreement = f"{layout.SCHEMA_IR} names other tables than __manifest"
    if disagreement is not None:
        raise CorruptManifestError(
            f"The schema files can't be changed: {disagreement}",
            expected="three files that agree with each other and with the tables",
            hint="Nothing was changed. Open the graph with the engine, or bring the files back from"
            " a copy of the graph",
        )
    return pg, ir_text
