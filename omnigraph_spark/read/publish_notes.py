"""What the version rows of `__manifest` tell of the publishes that made them; without Spark.

This connector's publishes leave their id, row counts and user metadata in the rows. The
engine leaves none, but its `__manifest` has stable row ids, and each row knows the version that
wrote it: so its history at least says which tables changed.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow.compute as pc

from omnigraph_spark.manifest.rows import OURS, TOMBSTONE, VERSION
from omnigraph_spark.manifest.snapshot import Snapshot, open_manifest
from omnigraph_spark.storage.lance_errors import translated
from omnigraph_spark.storage.store import Storage

_WRITTEN_AT = "_row_last_updated_at_version"


@dataclass(frozen=True)
class PublishNotes:
    """One publish: the tables that it gave a version, rows added and removed over all of them."""

    tables: tuple[str, ...]
    rows_added: int
    rows_removed: int
    user_metadata: str | None


@dataclass(frozen=True)
class Notes:
    """Publishes by id, and the tables that changed at a graph version (where Lance knows)."""

    by_id: Mapping[str, PublishNotes]
    by_version: Mapping[int, list[str]]

    def tables_at(self, version: int) -> list[str] | None:
        """Return the tables whose rows a graph version wrote, None where that isn't known."""
        tables = self.by_version.get(version)
        return None if tables is None else sorted(set(tables))


def read_notes(storage: Storage, snapshot: Snapshot) -> Notes:
    """Return what the manifest of a snapshot tells of all publishes up to it; one scan.

    Raises:
        GraphNotFoundError, BranchNotFoundError, VersionNotFoundError: the graph changed meanwhile.
        StorageError: the store failed.
    """
    manifest = open_manifest(storage, snapshot.branch, snapshot.graph_version)
    columns = ["object_type", "table_key", "metadata"]
    if manifest.has_stable_row_ids:
        columns.append(_WRITTEN_AT)
    with translated("Reading the version rows of __manifest"):
        rows = manifest.scanner(columns=columns).to_table()
    changes = rows.filter(pc.field("object_type").isin([VERSION, TOMBSTONE])).to_pylist()
    by_id: dict[str, dict[str, Mapping[str, Any]]] = defaultdict(dict)
    by_version: dict[int, list[str]] = defaultdict(list)
    for row in changes:
        ours = _ours(row["metadata"])
        if ours:
            by_id[ours["publish_id"]][row["table_key"]] = ours
        if row.get(_WRITTEN_AT) is not None:
            by_version[row[_WRITTEN_AT]].append(row["table_key"])
    return Notes({key: _summed(tables) for key, tables in by_id.items()}, by_version)


def _ours(text: str | None) -> dict[str, Any] | None:
    """Return what this connector left in a row, None where the row isn't its own."""
    try:
        ours = json.loads(text or "{}").get(OURS)
    except (ValueError, AttributeError):
        return None
    named = isinstance(ours, dict) and isinstance(ours.get("publish_id"), str)
    return ours if named else None


def _summed(tables: Mapping[str, Mapping[str, Any]]) -> PublishNotes:
    texts = [ours.get("user_metadata") for ours in tables.values()]
    return PublishNotes(
        tables=tuple(sorted(tables)),
        rows_added=sum(int(ours.get("rows_added") or 0) for ours in tables.values()),
        rows_removed=sum(int(ours.get("rows_removed") or 0) for ours in tables.values()),
        user_metadata=next((text for text in texts if isinstance(text, str)), None),
    )
