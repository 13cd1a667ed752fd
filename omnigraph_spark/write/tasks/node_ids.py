"""Ids of nodes that newer engines make from several key columns, or from times; on executors.

The `id` of a node is the text of its key; of several keys it is a JSON array of their texts, in the
order of the columns' names (format.md, "Newer stamps"). What a plain cast to text gives is not made
here.
"""

from __future__ import annotations

import json

import pyarrow as pa
import pyarrow.compute as pc

from omnigraph_spark.arrow.to_table import to_table_batch
from omnigraph_spark.errors import IntegrityError
from omnigraph_spark.write.plan import TableTarget


def made(rows: pa.RecordBatch, target: TableTarget, exact: bool) -> pa.Array:
    """Return the ids of rows from the columns that `target.id_of` names.

    Raises:
        IntegrityError: a key column is missing or null.
        OmnigraphError: a value that its column can't hold.
    """
    lacking = [name for name in target.id_of if name not in rows.schema.names]
    if lacking:
        raise _null(target, lacking[0], "no such column")
    fields = pa.schema([target.schema.field(name) for name in target.id_of])
    keys = to_table_batch(rows.select(list(target.id_of)), fields, target.table_key, exact)
    columns = [_text(keys.column(name)) for name in target.id_of]
    for name, column in zip(target.id_of, columns, strict=True):
        if column.null_count:
            raise _null(target, name, "null")
    if len(columns) == 1:
        return columns[0]
    rows_of_texts = zip(*(column.to_pylist() for column in columns), strict=True)
    return pa.array(map(_joined, rows_of_texts), pa.utf8())


def _joined(texts: tuple[str, ...]) -> str:
    return json.dumps(texts, ensure_ascii=False, separators=(",", ":"))


def _text(column: pa.Array) -> pa.Array:
    """Return values as the engine's text: dates as days, times as milliseconds since 1970."""
    if pa.types.is_date32(column.type):
        column = column.cast(pa.int32())
    elif pa.types.is_date64(column.type):
        column = column.cast(pa.int64())
    return pc.cast(column, pa.utf8())


def _null(target: TableTarget, name: str, detail: str) -> IntegrityError:
    return IntegrityError(
        f"A row of {target.table_key} has no {name}, and its id is made from it",
        expected=f"values of {', '.join(target.id_of)}",
        found=detail,
        hint="Bring every key column with each row",
        table_key=target.table_key,
        rule="not null",
        samples=[],
        column=name,
    )
