"""Damage to a graph on disk: rows of `__manifest` that lie, files that are cut."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import lance
import pyarrow as pa

from omnigraph_spark.manifest.migrations import new_manifest_schema
from omnigraph_spark.manifest.snapshot import open_main, read_rows
from omnigraph_spark.storage import layout
from omnigraph_spark.storage.store import Storage
from tests.support.writes import PERSON

VERSION_ROW = layout.version_object_id(PERSON, 1)
Damage = Callable[[Storage], None]


def change(column: str, value: str, row: str) -> Damage:
    """Return what sets a column of one manifest row to an SQL value."""
    return lambda storage: _update(storage, column, value, row)


def _update(storage: Storage, column: str, value: str, row: str) -> None:
    open_main(storage).update({column: value}, f"object_id = '{row}'")


def rewrite(edit: Callable[[pa.Table], pa.Table]) -> Damage:
    """Return what replaces the whole manifest by an edited one, in a new version."""

    def act(storage: Storage) -> None:
        rows = edit(read_rows(open_main(storage)))
        rows = rows.replace_schema_metadata(new_manifest_schema().metadata)
        lance.write_dataset(rows, storage.dataset_uri("__manifest"), mode="overwrite")

    return act


def _with(column: str, values: pa.Array, rows: pa.Table) -> pa.Table:
    return rows.set_column(rows.schema.get_field_index(column), column, values)


def _twice_with_another_count(rows: pa.Table) -> pa.Table:
    again = _with("row_count", pa.array([77] * rows.num_rows, pa.uint64()), rows)
    return pa.concat_tables([rows, again])


def location(value: str) -> Damage:
    return change("location", f"'{value}'", PERSON)


LIES: dict[str, tuple[Damage, str]] = {
    "climbs": (location("../../outside"), PERSON),
    "climbs-inside": (location("nodes/../../../outside"), PERSON),
    "parent": (location("nodes/.."), PERSON),
    "absolute": (location("/etc/passwd"), PERSON),
    "file-uri": (location("file:///etc/passwd"), PERSON),
    "other-bucket": (location("s3://other-bucket/graph"), PERSON),
    "credentials": (location("https://user:secret@host/x"), PERSON),
    "too-deep": (location("nodes/a/b"), PERSON),
    "too-short": (location("nodes"), PERSON),
    "empty": (location(""), PERSON),
    "percent": (location("nodes/a%2f..%2f.."), PERSON),
    "backslash": (location("nodes\\a"), PERSON),
    "own-dataset": (location("__manifest/data"), PERSON),
    "line-break": (location("nodes/a\nb"), PERSON),
    "null-location": (change("location", "NULL", PERSON), PERSON),
    "bad-json": (change("metadata", "'{ no json'", VERSION_ROW), VERSION_ROW),
    "json-list": (change("metadata", "'[1, 2]'", VERSION_ROW), VERSION_ROW),
    "null-version": (change("table_version", "NULL", VERSION_ROW), "table_version"),
    "no-table-key": (change("table_key", "'Person'", VERSION_ROW), "Person"),
    "hostile-table-key": (change("table_key", "'../x'", PERSON), "../x"),
    "contradiction": (rewrite(_twice_with_another_count), "contradictory rows"),
    "version-as-text": (
        rewrite(lambda rows: _with("table_version", rows["table_version"].cast(pa.utf8()), rows)),
        "table_version",
    ),
    "column": (rewrite(lambda rows: rows.drop(["table_branch"])), "table_branch"),
    "key-column": (rewrite(lambda rows: rows.drop(["object_id"])), "object_id"),
}
"""What is done to `__manifest`, and what the error must name."""


def newest(storage: Storage, place: str) -> Path:
    folder = Path(storage.root) / place / "_versions"
    return min(path for path in folder.iterdir() if path.name.endswith(".manifest"))


def empty(path: Path) -> None:
    path.write_bytes(b"")


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def flip_length(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-16] ^= 0xFF
    path.write_bytes(bytes(data))


def garbage(path: Path) -> None:
    path.write_bytes(b"\xde\xad\xbe\xef" * 64)


BROKEN_FILES = (empty, cut, flip_length, garbage)
