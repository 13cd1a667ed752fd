"""What `__manifest` knows of the types of its tables, beside the engine's schema files.

The schema files are changed by puts, one file at a time: a writer that stops in between, or two at
once, can lose a type or a property with its rules. So the publish that makes a table, or changes
its type, also leaves the type, as the text that `_schema.pg` has of it, in the metadata of the
table's version row; of a table the newest such row counts. Where the files name a type and its
properties they are right, since people and the engine change rules there. What they don't name, and
the published table has, counts as it is here. Runs on the driver.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
import pyarrow as pa

from omnigraph_spark import schema as engine_schema
from omnigraph_spark.errors import CorruptManifestError
from omnigraph_spark.manifest import manifest_rows
from omnigraph_spark.manifest.manifest_rows import TYPE_MARK
from omnigraph_spark.manifest.rows import OURS, TOMBSTONE, VERSION
from omnigraph_spark.manifest.snapshot import (
    Snapshot,
    TableEntry,
    fold,
    highest_of,
    open_identified,
)
from omnigraph_spark.schema.files import Found
from omnigraph_spark.schema.model import EdgeType, EngineSchema, NodeType, with_lost
from omnigraph_spark.storage.relocation import open_for_reading
from omnigraph_spark.storage.store import Storage

TYPE = "type"
"""Key in this connector's part of a version row's metadata that holds the table's type."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Known:
    """The types that hold for the tables of a snapshot.

    `lost` are those that the schema files lack; `text` is that of `_schema.pg`.
    """

    schema: EngineSchema
    lost: EngineSchema
    text: str | None


def with_types(snapshot: Snapshot, rows: pa.Table) -> Snapshot:
    """Return a snapshot with the types that the rows which it was folded from know; pure."""
    if snapshot.identities:  # there the files name exactly the types that are published
        return snapshot
    newest: dict[str, tuple[int, str]] = {}
    for row in _marked(rows).to_pylist():
        key, version = row["table_key"], row["table_version"]
        entry = snapshot.tables.get(key)
        if entry is None or row["object_type"] != VERSION or version > entry.table_version:
            continue
        try:
            text = json.loads(row["metadata"])[OURS][TYPE]
        except (ValueError, KeyError, TypeError):
            continue
        if isinstance(text, str):
            newest[key] = max(newest.get(key, (0, "")), (version, text))
    tombstones = highest_of(rows, TOMBSTONE) if newest else {}
    types = {
        key: text for key, (version, text) in newest.items() if version > tombstones.get(key, 0)
    }
    return replace(snapshot, types=types)


def load_with_types(storage: Storage, branch: str, version: int | None = None) -> Snapshot:
    """Read a snapshot with the types of its tables.

    Raises:
        OmnigraphError: as `snapshot.load`.
    """
    manifest, pinned, identifier = open_identified(storage, branch, version)
    rows = manifest_rows.read(manifest).current
    return replace(with_types(fold(rows, branch, pinned), rows), identifier=identifier)


def text_of(one: NodeType | EdgeType) -> str:
    """Return a type as the metadata of a version row holds it."""
    return engine_schema.render_pg([one])


def remembered(snapshot: Snapshot, key: str) -> NodeType | EdgeType | None:
    """Return what `__manifest` knows of a table's type, None where it knows nothing."""
    text = snapshot.types.get(key)
    return None if text is None else _parsed(text, key)


def are_described(snapshot: Snapshot) -> bool:
    """Return whether the schema files must name types: `__manifest` does, or knows their ids."""
    return bool(snapshot.types or snapshot.identities)


def known(storage: Storage, snapshot: Snapshot) -> Known:
    """Return the types that hold for the tables of a snapshot (`with_types`), for a writer.

    Raises:
        CorruptManifestError: `_schema.pg` is missing, empty or cut off, or can't be read.
        StorageError: the store failed.
    """
    return known_of(storage, [snapshot])[0]


def known_of(storage: Storage, snapshots: Sequence[Snapshot]) -> list[Known]:
    """Return `known` of each of several snapshots, by one look at the files where that tells all.

    Raises:
        CorruptManifestError, StorageError: as `known`.
    """
    read: dict[tuple[bool, bool], Found] = {}
    every = []
    for snapshot in snapshots:
        asked = bool(snapshot.tables), are_described(snapshot)
        if asked not in read:
            read[asked] = engine_schema.read_for_writing(storage, *asked)
        files = read[asked]
        every.append(Known(*filled(storage, files.schema, snapshot), files.text))
    return every


def filled(
    storage: Storage, files: EngineSchema, snapshot: Snapshot
) -> tuple[EngineSchema, EngineSchema]:
    """Return the schema of the files with what they lack of a snapshot's tables, and lost types.

    Raises:
        StorageError: the store failed.
    """
    changed: list[NodeType | EdgeType] = []
    lost: list[NodeType | EdgeType] = []
    ir_schema: EngineSchema | None = None
    for key, entry in snapshot.tables.items():
        in_files, whole = files.of_table(key), remembered(snapshot, key)
        if in_files is None and whole is None and files.types():
            ir_schema = ir_schema or engine_schema.read_ir(storage) or EngineSchema()
            whole = ir_schema.of_table(key)
        if in_files is None and whole is not None:
            lost.append(whole)
        elif in_files is not None and whole is not None and _names_less(in_files, whole):
            changed.append(with_lost(in_files, whole, _columns(storage, entry)))
    types = EngineSchema.of([*changed, *lost]).with_types(files)
    return types, EngineSchema.of(lost)


def _names_less(part: NodeType | EdgeType, whole: NodeType | EdgeType) -> bool:
    return bool({p.name for p in whole.properties} - {p.name for p in part.properties})


def _columns(storage: Storage, entry: TableEntry) -> list[str]:
    pin = (entry.location, entry.table_branch, entry.table_version)
    names: list[str] = open_for_reading(storage, *pin).schema.names
    return names


@lru_cache(maxsize=512)
def _parsed(text: str, key: str) -> NodeType | EdgeType | None:
    try:
        return engine_schema.parse_pg(text).of_table(key)
    except CorruptManifestError as error:
        _log.warning("What __manifest knows of the type of %s can't be read: %s", key, error)
        return None


def _marked(rows: pa.Table) -> pa.Table:
    """Return the rows whose metadata mention a type: one pass over the bytes of all."""
    parts = []
    for batch in rows.to_batches():
        texts = batch.column("metadata")
        positions = sorted(set(_mentioning(texts)))
        if positions:
            parts.append(batch.take(pa.array(positions, pa.int64())))
    return pa.Table.from_batches(parts, rows.schema)


def _mentioning(texts: pa.StringArray) -> Iterator[int]:
    _, offsets, data = texts.buffers()
    if data is None or offsets is None:
        return
    starts = np.frombuffer(offsets, dtype=np.int32)[texts.offset : texts.offset + len(texts) + 1]
    content = data.to_pybytes()
    for match in re.finditer(re.escape(TYPE_MARK.encode()), content):
        number = int(np.searchsorted(starts, match.start(), side="right")) - 1
        if 0 <= number < len(texts):
            yield number
