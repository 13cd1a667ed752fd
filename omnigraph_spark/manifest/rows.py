"""The rows of `__manifest` as values, and their Arrow form (format.md, "`__manifest` rows")."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from omnigraph_spark.storage import layout

TABLE = "table"
VERSION = "table_version"
TOMBSTONE = "table_tombstone"
OURS = "omnigraph_spark"
"""Key in a version row's `metadata` JSON that holds what this connector adds."""
OPTIMIZE, INDEX, HEAL = "optimize", "index", "heal"
"""Modes of publishes that change no row: the versions that they make hold what those below hold."""

PRIMARY_KEY_ANNOTATION = "lance-schema:unenforced-primary-key"

MANIFEST_SCHEMA = pa.schema(
    [
        pa.field("object_id", pa.utf8(), nullable=False, metadata={PRIMARY_KEY_ANNOTATION: "true"}),
        pa.field("object_type", pa.utf8(), nullable=False),
        pa.field("location", pa.utf8()),
        pa.field("metadata", pa.utf8()),
        pa.field("base_objects", pa.list_(pa.utf8())),
        pa.field("table_key", pa.utf8(), nullable=False),
        pa.field("table_version", pa.uint64()),
        pa.field("table_branch", pa.utf8()),
        pa.field("row_count", pa.uint64()),
    ]
)


@dataclass(frozen=True)
class TableRow:
    """The table exists, at this location; written again it is the guard of a publish."""

    table_key: str
    location: str

    def columns(self) -> dict[str, Any]:
        """Return the row by column name."""
        return {
            "object_id": self.table_key,
            "object_type": TABLE,
            "location": self.location,
            "table_key": self.table_key,
        }


@dataclass(frozen=True)
class VersionRow:
    """A version of a table's dataset is published.

    `object_version` differs from `table_version` only in the rows that stand for skipped versions
    (rule 9).
    """

    table_key: str
    table_version: int
    table_branch: str | None
    row_count: int
    metadata: Mapping[str, Any] = field(default_factory=dict)
    object_version: int | None = None

    def columns(self) -> dict[str, Any]:
        """Return the row by column name."""
        number = self.table_version if self.object_version is None else self.object_version
        return {
            "object_id": layout.version_object_id(self.table_key, number),
            "object_type": VERSION,
            "metadata": _json(self.metadata),
            "table_key": self.table_key,
            "table_version": self.table_version,
            "table_branch": self.table_branch,
            "row_count": self.row_count,
        }


@dataclass(frozen=True)
class TombstoneRow:
    """Versions of the table up to and including this one are gone."""

    table_key: str
    table_version: int
    metadata: Mapping[str, Any] = field(default_factory=dict)

    def columns(self) -> dict[str, Any]:
        """Return the row by column name."""
        return {
            "object_id": layout.tombstone_object_id(self.table_key, self.table_version),
            "object_type": TOMBSTONE,
            "metadata": _json(self.metadata) if self.metadata else None,
            "table_key": self.table_key,
            "table_version": self.table_version,
        }


def _json(metadata: Mapping[str, Any]) -> str:
    return json.dumps(dict(metadata), separators=(",", ":"), ensure_ascii=False)


ManifestRow = TableRow | VersionRow | TombstoneRow


def to_arrow(rows: Iterable[ManifestRow]) -> pa.Table:
    """Return rows as a table of `MANIFEST_SCHEMA`; absent columns are null."""
    return pa.Table.from_pylist([row.columns() for row in rows], schema=MANIFEST_SCHEMA)


def fit(rows: pa.Table) -> pa.Table:
    """Return the columns of `MANIFEST_SCHEMA` out of a (possibly newer) manifest's rows."""
    return rows.select(MANIFEST_SCHEMA.names).cast(
        pa.schema([f.remove_metadata() for f in MANIFEST_SCHEMA])
    )
