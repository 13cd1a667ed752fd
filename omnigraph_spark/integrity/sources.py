"""The columns that a check looks at: of staged files, and of published table versions.

Runs on the driver. Both come as Arrow streams, a few batches in memory at a time.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types as pt

from omnigraph_spark.errors import UnsupportedError
from omnigraph_spark.integrity import staged_columns
from omnigraph_spark.integrity.staged_columns import StagedFile
from omnigraph_spark.storage.lance_errors import translated
from omnigraph_spark.storage.store import Storage

if TYPE_CHECKING:
    from lance import LanceDataset

MOST_LOOKED_UP = 1_000
_LONGEST_LOOKED_UP = 200
_BATCH_BYTES = 8 << 20
_FEWEST_ROWS, _MOST_ROWS = 16, 65_536
# What changes on a fragment although its rows stay as they are.
_NOT_ROWS = ("row_id_meta", "created_at_version_meta", "last_updated_at_version_meta")


def staged_rows(
    storage: Storage, files: Sequence[StagedFile], table: pa.Schema, columns: dict[str, str]
) -> Callable[[], pa.RecordBatchReader]:
    """Return what opens a stream of staged rows: number of the file `f`, row in it `r`, columns.

    `columns` maps names in the stream to columns of the files, which must be of one table; `table`
    is its schema.

    Raises:
        StorageError: a file can't be opened.
        UnsupportedError: a column of a type that can't be compared.
    """
    stored = list(dict.fromkeys(columns.values()))
    first = staged_columns.schema_of(storage, files[0], table, stored)
    schema = pa.schema(
        [("f", pa.int32()), ("r", pa.int64())]
        + [(name, _comparable_type(first.field(column))) for name, column in columns.items()]
    )

    def batches() -> Iterator[pa.RecordBatch]:
        for number, file in enumerate(files):
            row = 0
            rows = _rows_per_batch(file.bytes, file.rows)
            counted = pa.array(range(rows), pa.int64())
            for batch in staged_columns.batches(storage, file, table, stored, rows):
                positions = pc.add(counted.slice(0, batch.num_rows), row)
                row += batch.num_rows
                values = [_comparable(batch.column(column)) for column in columns.values()]
                yield pa.RecordBatch.from_arrays(
                    [pa.repeat(pa.scalar(number, pa.int32()), batch.num_rows), positions, *values],
                    schema=schema,
                )

    return lambda: pa.RecordBatchReader.from_batches(schema, batches())


def published_rows(
    dataset: LanceDataset,
    columns: dict[str, str],
    fragments: Sequence[Any] | None = None,
    among: tuple[str, Sequence[str]] | None = None,
) -> pa.RecordBatchReader:
    """Return a stream of a table version's rows: all, those of some fragments, or few by value.

    `among` = (column, texts) leaves away rows with other values where the texts are few and plain:
    then an index answers, if there is one.

    Raises:
        StorageError: the store failed.
        UnsupportedError: a column of a type that can't be compared.
    """
    stored = list(dict.fromkeys(columns.values()))
    schema = pa.schema(
        [(name, _comparable_type(dataset.schema.field(column))) for name, column in columns.items()]
    )
    options: dict[str, Any] = {"columns": stored, "batch_size": _batch_size(dataset)}
    if fragments is not None:
        options["fragments"] = list(fragments)
    elif among is not None and (condition := _condition(*among)) is not None:
        options["filter"] = condition
    if fragments is not None and not fragments:
        return pa.RecordBatchReader.from_batches(schema, [])
    with translated("Reading a table's keys"):
        reader = dataset.scanner(**options).to_reader()

    def batches() -> Iterator[pa.RecordBatch]:
        for batch in reader:
            values = [_comparable(batch.column(column)) for column in columns.values()]
            yield pa.RecordBatch.from_arrays(values, schema=schema)

    return pa.RecordBatchReader.from_batches(schema, batches())


def fragments_of(dataset: LanceDataset) -> dict[str, Any]:
    """Return the fragments of a version by what tells that one is unchanged: files and deletions.

    Raises:
        StorageError: the store failed.
    """
    with translated("Listing the fragments of a table"):
        by_content = {}
        for fragment in dataset.get_fragments():
            content = dict(fragment.metadata.to_json())
            for name in _NOT_ROWS:
                content.pop(name, None)
            by_content[json.dumps(content, sort_keys=True)] = fragment
        return by_content


def _condition(column: str, texts: Sequence[str]) -> str | None:
    if len(texts) > MOST_LOOKED_UP:
        return None
    if not all(t.isprintable() and "\\" not in t and len(t) <= _LONGEST_LOOKED_UP for t in texts):
        return None
    listed = ", ".join("'" + text.replace("'", "''") + "'" for text in texts)
    return f"{column} IN ({listed})"


def _rows_per_batch(size: int, rows: int) -> int:
    per_row = max(1, size // max(1, rows))
    return max(_FEWEST_ROWS, min(_MOST_ROWS, _BATCH_BYTES // per_row))


def _batch_size(dataset: LanceDataset) -> int:
    sizes = [_MOST_ROWS]
    for fragment in dataset.get_fragments():
        metadata = fragment.metadata.to_json()
        size = sum(file.get("file_size_bytes") or 0 for file in metadata["files"])
        sizes.append(_rows_per_batch(size, metadata["physical_rows"] or 1))
    return min(sizes)


def _comparable_type(column: pa.Field) -> pa.DataType:
    kind = column.type
    if isinstance(kind, pa.BaseExtensionType) or pt.is_nested(kind):
        raise UnsupportedError(
            f"Rows can't be compared by column {column.name}",
            expected="a rule @unique over columns of single values",
            found=str(kind),
            hint="Write with integrity=off",
        )
    # DuckDB would cut the milliseconds of a date64.
    return pa.int64() if pt.is_date64(kind) else kind


def _comparable(column: pa.Array) -> pa.Array:
    return column.view(pa.int64()) if pt.is_date64(column.type) else column
