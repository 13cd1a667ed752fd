"""The rows of `__manifest` as values, and their Arrow form (format.md, "`__manifest` rows")."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from omnigraph_spark.storage import layout
from omnigraph_spark.storage.layout import Identity

TABLE = "table"
VERSION = "table_version"
TOMBSTONE = "table_tombstone"
COMMIT = "graph_commit"
HEAD = "graph_head"
OURS = "omnigraph_spark"
"""Key in a version row's `metadata` JSON that holds what this connector adds."""
EDGE_KEY = "edge_key"
"""Key in our part of that: the columns that the ids of an edge table's edges are made from."""
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

STABLE_ID, INCARNATION = "stable_table_id", "table_incarnation_id"
IDENTITY_SCHEMA = pa.schema(
    [
        *list(MANIFEST_SCHEMA)[:6],
        pa.field(STABLE_ID, pa.uint64()),
        pa.field(INCARNATION, pa.uint64()),
        *list(MANIFEST_SCHEMA)[6:],
    ]
)
"""The columns of a `__manifest` whose tables have ids (format.md, "Newer stamps")."""


@dataclass(frozen=True)
class TableRow:
    """The table exists, at this location; written again it is the guard of a publish.

    `identity` is given for a new table of a format that has them.
    """

    table_key: str
    location: str
    identity: Identity | None = None

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

    @property
    def stands_for_skipped(self) -> bool:
        """Return whether this is the row of a version that was skipped."""
        return self.object_version not in (None, self.table_version)

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


@dataclass(frozen=True)
class CommitRow:
    """A commit of the lineage, published with the tables; its id is the publish id.

    `created_at` is in microseconds since the epoch.
    """

    commit_id: str
    graph_version: int
    branch: str | None
    parent: str | None
    created_at: int
    merged_parent: str | None = None
    actor: str | None = None

    def columns(self) -> dict[str, Any]:
        """Return the row by column name."""
        metadata = {
            "parent_commit_id": self.parent,
            "merged_parent_commit_id": self.merged_parent,
            "actor_id": self.actor,
            "created_at": self.created_at,
        }
        return {
            "object_id": self.commit_id,
            "object_type": COMMIT,
            "metadata": _json({key: value for key, value in metadata.items() if value is not None}),
            "table_key": "",
            "table_version": self.graph_version,
            "table_branch": self.branch,
        }


@dataclass(frozen=True)
class HeadRow:
    """The newest commit of a branch: the row on which any two publishes of the branch collide."""

    branch: str | None
    commit_id: str
    parent: str | None

    def columns(self) -> dict[str, Any]:
        """Return the row by column name."""
        metadata = {"head_commit_id": self.commit_id, "parent_commit_id": self.parent}
        return {
            "object_id": f"{HEAD}:{self.branch or layout.MAIN}",
            "object_type": HEAD,
            "metadata": _json({key: value for key, value in metadata.items() if value is not None}),
            "table_key": "",
        }


def _json(metadata: Mapping[str, Any]) -> str:
    return json.dumps(dict(metadata), separators=(",", ":"), ensure_ascii=False)


ManifestRow = TableRow | VersionRow | TombstoneRow
AnyRow = ManifestRow | CommitRow | HeadRow


def to_arrow(rows: Iterable[AnyRow], identities: Mapping[str, Identity] | None = None) -> pa.Table:
    """Return rows as a table of `MANIFEST_SCHEMA`; absent columns are null.

    With `identities`, of the tables that the rows are of, it is one of `IDENTITY_SCHEMA`.
    """
    if identities is None:
        return pa.Table.from_pylist([row.columns() for row in rows], schema=MANIFEST_SCHEMA)
    identified = [_identified(row, identities) for row in rows]
    return pa.Table.from_pylist(identified, schema=IDENTITY_SCHEMA)


def _identified(row: AnyRow, identities: Mapping[str, Identity]) -> dict[str, Any]:
    columns = row.columns()
    if isinstance(row, CommitRow | HeadRow):
        return columns
    given = row.identity if isinstance(row, TableRow) else None
    pair = given or identities[row.table_key]
    number = columns.get("table_version")
    ids = {STABLE_ID: pair.stable, INCARNATION: pair.incarnation}
    if isinstance(row, TombstoneRow):  # the engine leaves it empty
        columns["metadata"] = None
    return {**columns, **ids, "object_id": pair.object_id(columns["object_type"], number)}


def fit(rows: pa.Table) -> pa.Table:
    """Return the columns that are known here out of a (possibly newer) manifest's rows."""
    schema = IDENTITY_SCHEMA if INCARNATION in rows.column_names else MANIFEST_SCHEMA
    return rows.select(schema.names).cast(pa.schema([f.remove_metadata() for f in schema]))
