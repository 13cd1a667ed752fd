"""Take whole-graph batches apart into table batches, and put them together; no Spark needed.

Both run on executors, once per batch, without a Python loop over rows. Which column of the frame
feeds which column of a table (`Ownership`) is worked out on the driver: `frames.ownership`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import pyarrow as pa
import pyarrow.compute as pc

from omnigraph_spark.arrow.to_spark import nullable_blobs, spark_column
from omnigraph_spark.errors import IntegrityError, SchemaMismatchError

TABLE = "_table"
Ownership = Mapping[str, Mapping[str, str]]
"""Table key -> {column of the whole-graph frame -> column of the table}."""
_SHOWN_TABLES = 20


def route(batch: pa.RecordBatch, ownership: Ownership) -> Iterator[tuple[str, pa.RecordBatch]]:
    """Yield (table key, batch with the table's own column names) for each table in `_table`.

    Rows keep their order within a table; a column that the frame lacks is simply not there. Types
    are the frame's: `arrow_write.to_table_batch` casts. Checked before anything is yielded.

    Raises:
        IntegrityError: a null in `_table`.
        SchemaMismatchError: a table that the write doesn't know, or a value in a column that the
            row's table doesn't have; names the table, the column and a sample id.
    """
    if not batch.num_rows:
        return
    tables = _tables(batch)
    keys = tables.dictionary.to_pylist()
    _check_known(keys, ownership)
    _check_owned(batch, tables, keys, ownership)
    if len(keys) == 1:
        yield keys[0], _owned(batch, ownership[keys[0]], None)
        return
    order = pc.sort_indices(tables.indices)  # stable: rows of a table stay in order
    counts = {
        pair["values"]: pair["counts"] for pair in pc.value_counts(tables.indices).to_pylist()
    }
    start = 0
    for code, key in enumerate(keys):
        rows = order.slice(start, counts[code])
        start += counts[code]
        yield key, _owned(batch, ownership[key], rows)


def _tables(batch: pa.RecordBatch) -> pa.DictionaryArray:
    column = batch.column(TABLE)
    if column.null_count:
        row = pc.index(column.is_null(), True).as_py()
        samples = _ids(batch, row)
        raise IntegrityError(
            f"A row without {TABLE}: it belongs to no table",
            expected="a table key such as node:Person in every row",
            found=f"null in the row with id {samples[0]!r}" if samples else "null",
            hint=f"Fill {TABLE}; omnigraph_spark.pack({{…}}) does it",
            table_key=None,
            rule="not null",
            samples=samples,
        )
    return column.dictionary_encode()


def _check_known(keys: list[str], ownership: Ownership) -> None:
    for key in keys:
        if key not in ownership:
            known = sorted(ownership)
            listed = ", ".join(known[:_SHOWN_TABLES]) + (" …" if len(known) > _SHOWN_TABLES else "")
            raise SchemaMismatchError(
                f"{TABLE} names {_clipped(key)}, which neither the graph nor the frame defines",
                expected=listed or "a table",
                found=_clipped(key),
                hint="Build the frame with omnigraph_spark.pack({'node:Person': people, …})",
                table_key=key,
            )


def _check_owned(
    batch: pa.RecordBatch, tables: pa.DictionaryArray, keys: list[str], ownership: Ownership
) -> None:
    """Refuse values where the row's table has no column; one pass over columns with values."""
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        if name == TABLE or column.null_count == len(column):
            continue
        strangers = [code for code, key in enumerate(keys) if name not in ownership[key]]
        if not strangers:
            continue
        foreign = pc.is_in(tables.indices, pa.array(strangers, tables.indices.type))
        bad = pc.and_(foreign, column.is_valid())
        row = pc.index(bad, True).as_py()
        if row >= 0:
            raise _foreign_value(batch, name, keys[tables.indices[row].as_py()], row)


def _foreign_value(
    batch: pa.RecordBatch, column: str, table_key: str, row: int
) -> SchemaMismatchError:
    samples = _ids(batch, row)
    where = f"the row with id {samples[0]!r}" if samples else "a row without id"
    return SchemaMismatchError(
        f"A row of {table_key} has a value in column {column}, which isn't that table's",
        expected="null",
        found=f"a value in {where}",
        hint=(
            f"Set it to null. If {table_key} has a property of that name with another type, "
            "cast it or name the column {property}__{type}"
        ),
        table_key=table_key,
        column=column,
        samples=samples,
    )


def _ids(batch: pa.RecordBatch, row: int) -> list[str]:
    if "id" not in batch.schema.names or not batch.column("id")[row].is_valid:
        return []
    return [_clipped(str(batch.column("id")[row].as_py()))]


def _clipped(text: str) -> str:
    return text if len(text) <= 80 else text[:79] + "…"


def _owned(
    batch: pa.RecordBatch, columns: Mapping[str, str], rows: pa.Array | None
) -> pa.RecordBatch:
    arrays, fields = [], []
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        if name in columns:
            arrays.append(column if rows is None else column.take(rows))
            fields.append(pa.field(columns[name], column.type))
    if arrays:
        return pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields))
    # A batch without columns has no rows either; a table whose rows are all null must keep them.
    count = batch.num_rows if rows is None else len(rows)
    return pa.RecordBatch.from_arrays([pa.nulls(count)], names=["id"])


def assemble(
    table_key: str,
    batch: pa.RecordBatch,
    schema: pa.Schema,
    columns: Mapping[str, str],
    stored: pa.Schema | None = None,
) -> pa.RecordBatch:
    """Return a scanned table batch as a whole-graph batch of exactly `schema`.

    `schema` is Spark's side of the whole-graph frame, or of the user's part of it; `columns` the
    table's entry of an `Ownership`; `stored` the dataset's schema (see `to_spark_batch`). Columns
    of other tables are null, `_table` is `table_key`.

    Raises:
        SchemaMismatchError: a column's type or a value of it doesn't fit `schema`.
        CorruptManifestError: a null in a column that is declared not null.
    """
    blobs = nullable_blobs(stored)
    count = batch.num_rows
    nothing: dict[pa.DataType, pa.Array] = {}
    arrays = []
    for field in schema:
        index = batch.schema.get_field_index(columns.get(field.name, ""))
        if field.name == TABLE:
            arrays.append(pa.repeat(pa.scalar(table_key, field.type), count))
        elif index < 0:
            if field.type not in nothing:
                nothing[field.type] = pa.nulls(count, field.type)
            arrays.append(nothing[field.type])
        else:
            empty_is_null = columns[field.name] in blobs
            arrays.append(spark_column(batch.column(index), field, empty_is_null))
    return pa.RecordBatch.from_arrays(arrays, schema=schema)
