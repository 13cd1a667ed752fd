"""The metadata frames as Arrow tables: what a graph knows about itself; without Spark.

Each is made whole, on one executor, when its frame is read. `tables`, `files`, `indexes` and
`history` are those of the pinned snapshot; `refs` and `runs` tell how things are when they are
read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from omnigraph_spark import schema as engine_schema
from omnigraph_spark.history import commits, runs
from omnigraph_spark.manifest.snapshot import Snapshot
from omnigraph_spark.read.publish_notes import read_notes
from omnigraph_spark.refs import refs
from omnigraph_spark.schema.model import EdgeType
from omnigraph_spark.storage import layout
from omnigraph_spark.storage.lance_errors import translated
from omnigraph_spark.storage.relocation import open_for_reading
from omnigraph_spark.storage.store import Storage

if TYPE_CHECKING:
    from lance import LanceDataset

_INSTANT = pa.timestamp("us", "UTC")


def _schema(*columns: tuple[str, pa.DataType, bool]) -> pa.Schema:
    return pa.schema([pa.field(name, kind, nullable) for name, kind, nullable in columns])


_TEXT, _NUMBER = pa.utf8(), pa.int64()
SCHEMAS: dict[str, pa.Schema] = {
    "tables": _schema(
        ("table_key", _TEXT, False),
        ("version", _NUMBER, False),
        ("branch", _TEXT, False),
        ("row_count", _NUMBER, False),
        ("location", _TEXT, False),
        ("dataset_version", _NUMBER, False),
        ("src_type", _TEXT, True),
        ("dst_type", _TEXT, True),
    ),
    "history": _schema(
        ("version", _NUMBER, False),
        ("commit_id", _TEXT, False),
        ("parent_id", _TEXT, True),
        ("merged_parent_id", _TEXT, True),
        ("branch", _TEXT, False),
        ("actor", _TEXT, True),
        ("created_at", _INSTANT, False),
        ("publish_id", _TEXT, True),
        ("user_metadata", _TEXT, True),
        ("tables", pa.list_(pa.field("element", _TEXT, False)), True),
        ("rows_added", _NUMBER, True),
        ("rows_removed", _NUMBER, True),
    ),
    "refs": _schema(
        ("name", _TEXT, False),
        ("kind", _TEXT, False),
        ("version", _NUMBER, False),
        ("parent", _TEXT, True),
        ("created_at", _INSTANT, True),
    ),
    "runs": _schema(
        ("run_id", _TEXT, False),
        ("target_branch", _TEXT, True),
        ("run_branch", _TEXT, True),
        ("base_snapshot_id", _TEXT, True),
        ("base_manifest_version", _NUMBER, True),
        ("operation_hash", _TEXT, True),
        ("status", _TEXT, False),
        ("published_snapshot_id", _TEXT, True),
        ("created_at", _INSTANT, False),
        ("updated_at", _INSTANT, False),
        ("actor", _TEXT, True),
    ),
    "files": _schema(
        ("table_key", _TEXT, False),
        ("fragment_id", _NUMBER, False),
        ("path", _TEXT, False),
        ("size", _NUMBER, True),
        ("row_count", _NUMBER, False),
        ("deleted_rows", _NUMBER, False),
    ),
    "indexes": _schema(
        ("table_key", _TEXT, False),
        ("name", _TEXT, False),
        ("type", _TEXT, False),
        ("columns", pa.list_(pa.field("element", _TEXT, False)), False),
        ("rows_indexed", _NUMBER, True),
        ("rows_not_indexed", _NUMBER, True),
        ("size", _NUMBER, True),
    ),
}
"""The columns of each metadata frame, by the value of option `metadata`."""


def read(kind: str, storage: Storage, snapshot: Snapshot) -> pa.Table:
    """Return a metadata frame, `kind` being a key of `SCHEMAS`; writes nothing.

    Raises:
        StorageError: a dataset isn't there, or the store failed.
        CorruptManifestError, BranchNotFoundError: the graph changed or is damaged.
    """
    rows = _ROWS[kind](storage, snapshot)
    return pa.Table.from_pylist(list(rows), schema=SCHEMAS[kind])


def _tables(storage: Storage, snapshot: Snapshot) -> Iterator[dict[str, Any]]:
    """Yield the tables; of an edge table also the node types that the schema files name as ends."""
    known = engine_schema.read_if_sound(storage)
    for entry in snapshot.tables.values():
        type_of = None if known is None else known.of_table(entry.table_key)
        yield {
            "table_key": entry.table_key,
            "version": snapshot.graph_version,
            "branch": entry.table_branch or layout.MAIN,
            "row_count": entry.row_count,
            "location": entry.location,
            "dataset_version": entry.table_version,
            "src_type": type_of.source if isinstance(type_of, EdgeType) else None,
            "dst_type": type_of.target if isinstance(type_of, EdgeType) else None,
        }


def _history(storage: Storage, snapshot: Snapshot) -> Iterator[dict[str, Any]]:
    """Yield the commits up to the snapshot, newest first, with what their version rows tell.

    Publishes that have no row in the lineage yet are told like the others (rule 30).
    """
    lineage = commits.complete(storage, snapshot.branch, snapshot.graph_version)
    notes = read_notes(storage, snapshot)
    for commit in reversed(lineage):
        version = commit.manifest_version
        note = notes.by_id.get(commit.graph_commit_id)
        yield {
            "version": version,
            "commit_id": commit.graph_commit_id,
            "parent_id": commit.parent_commit_id,
            "merged_parent_id": commit.merged_parent_commit_id,
            "branch": commit.branch,
            "actor": commit.actor_id,
            "created_at": commit.created_at,
            "publish_id": None if note is None else commit.graph_commit_id,
            "user_metadata": None if note is None else note.user_metadata,
            "tables": notes.tables_at(version) if note is None else list(note.tables),
            "rows_added": None if note is None else note.rows_added,
            "rows_removed": None if note is None else note.rows_removed,
        }


def _refs(storage: Storage, _snapshot: Snapshot) -> Iterator[dict[str, Any]]:
    for branch in refs.list_branches(storage):
        yield {
            "name": branch.name,
            "kind": "branch",
            "version": storage.dataset(layout.MANIFEST, branch.name).version,
            "parent": branch.parent,
            "created_at": branch.created_at,
        }
    for tag in refs.list_tags(storage):
        yield {
            "name": tag.name,
            "kind": "tag",
            "version": tag.version,
            "parent": tag.branch,
            "created_at": tag.created_at,
        }


def _runs(storage: Storage, _snapshot: Snapshot) -> Iterator[dict[str, Any]]:
    """Yield one row per run: how it stands now, since when, and when it began."""
    newest: dict[str, dict[str, Any]] = {}
    for row in runs.read_runs(storage).to_pylist():
        newest[row["run_id"]] = row
    for row in newest.values():
        yield {**row, "actor": row.get("actor_id")}


def _files(storage: Storage, snapshot: Snapshot) -> Iterator[dict[str, Any]]:
    """Yield one row per data file; a fragment with later columns has several files."""
    for entry in snapshot.tables.values():
        # The branch's own manifest says which base a file is in; a relocated handle says it too.
        dataset = open_for_reading(storage, entry.location, entry.table_branch, entry.table_version)
        root = storage.dataset_uri(entry.location, entry.table_branch)
        with translated(f"Reading the files of {entry.table_key}"):
            bases = {key: base.path for key, base in dataset.base_paths().items()}
            described = [
                (fragment.fragment_id, fragment.metadata) for fragment in dataset.get_fragments()
            ]
        for number, metadata in described:
            for file in metadata.files:
                base = root if file.base_id is None else bases[file.base_id]
                yield {
                    "table_key": entry.table_key,
                    "fragment_id": number,
                    "path": f"{base}/data/{file.path}",
                    "size": file.file_size_bytes,
                    "row_count": metadata.num_rows,
                    "deleted_rows": metadata.num_deletions,
                }


def _indexes(storage: Storage, snapshot: Snapshot) -> Iterator[dict[str, Any]]:
    for key, dataset in _branch_datasets(storage, snapshot):
        with translated(f"Reading the indexes of {key}"):
            described = dataset.describe_indices()
            live = {
                fragment.fragment_id: fragment.count_rows() for fragment in dataset.get_fragments()
            }
        for index in described:
            covered = {int(n) for segment in index.segments for n in segment.fragment_ids or ()}
            yield {
                "table_key": key,
                "name": index.name,
                "type": index.index_type,
                "columns": list(index.field_names),
                "rows_indexed": sum(rows for n, rows in live.items() if n in covered),
                "rows_not_indexed": sum(rows for n, rows in live.items() if n not in covered),
                "size": index.total_size_bytes,
            }


def _branch_datasets(storage: Storage, snapshot: Snapshot) -> Iterator[tuple[str, LanceDataset]]:
    """Yield each table's dataset by its own manifest: a relocated handle has lost its indices."""
    for key, entry in snapshot.tables.items():
        yield key, storage.dataset(entry.location, entry.table_branch, entry.table_version)


_ROWS: dict[str, Callable[[Storage, Snapshot], Iterable[dict[str, Any]]]] = {
    "tables": _tables,
    "history": _history,
    "refs": _refs,
    "runs": _runs,
    "files": _files,
    "indexes": _indexes,
}
