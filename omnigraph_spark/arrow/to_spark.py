"""From stored Arrow columns to the batches that Spark takes; no Spark needed.

`read_type` says which Arrow type Spark declares for a stored column: exactly what pyspark derives
from the column's Spark type, since 4.3 compares the two for the first batch of a task and checks no
later one (fact 6). So `to_spark_batch` casts every batch.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types as pt

from omnigraph_spark.arrow.cast import convert, is_list_like
from omnigraph_spark.errors import CorruptManifestError, SchemaMismatchError
from omnigraph_spark.schema.property_types import is_blob

SPARK_TYPE_NOTE = b"omnigraph_spark:type"
_NOTED = {b"tinyint": pa.int8(), b"smallint": pa.int16()}
_UTC_MICROS = pa.timestamp("us", "UTC")
_PLAIN: dict[pa.DataType, pa.DataType] = {
    pa.bool_(): pa.bool_(),
    pa.int8(): pa.int8(),
    pa.int16(): pa.int16(),
    pa.int32(): pa.int32(),
    pa.int64(): pa.int64(),
    pa.uint8(): pa.int16(),
    pa.uint16(): pa.int32(),
    pa.uint32(): pa.int64(),
    pa.uint64(): pa.decimal128(20, 0),
    pa.float16(): pa.float32(),
    pa.float32(): pa.float32(),
    pa.float64(): pa.float64(),
    pa.utf8(): pa.utf8(),
    pa.large_utf8(): pa.utf8(),
    pa.string_view(): pa.utf8(),
    pa.binary(): pa.binary(),
    pa.large_binary(): pa.binary(),
    pa.binary_view(): pa.binary(),
    pa.date32(): pa.date32(),
    pa.date64(): _UTC_MICROS,
}
_MAX_PRECISION = 38


def read_type(field: pa.Field) -> pa.DataType:
    """Return the Arrow type that batches of a stored column must have for Spark.

    Runs on the driver once per column, and on executors once per task.

    Raises:
        SchemaMismatchError: Spark has no type for the column; the message names it.
    """
    return _read_type(field, field.name)


def _read_type(field: pa.Field, path: str) -> pa.DataType:
    arrow = field.type
    note = (field.metadata or {}).get(SPARK_TYPE_NOTE)
    if note in _NOTED and arrow == pa.int32():
        return _NOTED[note]
    if is_blob(field):
        return pa.binary()
    if isinstance(arrow, pa.BaseExtensionType):
        return _read_type(field.with_type(arrow.storage_type), path)
    if pt.is_dictionary(arrow):
        return _read_type(field.with_type(arrow.value_type), path)
    if is_list_like(arrow):
        item = arrow.value_field
        return pa.list_(pa.field("element", _read_type(item, f"{path}[]"), item.nullable))
    if pt.is_struct(arrow):
        return pa.struct(
            [pa.field(f.name, _read_type(f, f"{path}.{f.name}"), f.nullable) for f in arrow]
        )
    if pt.is_map(arrow):
        key, item = arrow.key_field, arrow.item_field
        return pa.map_(
            pa.field("key", _read_type(key, f"{path}.key"), nullable=False),
            pa.field("value", _read_type(item, f"{path}.value"), item.nullable),
        )
    plain = _plain(arrow)
    if plain is None:
        raise SchemaMismatchError(
            f"Column {path} has a type that Spark can't read here",
            expected="one of the types in the documentation's table",
            found=str(arrow),
            hint="Leave the column out: .option('columns', 'id, …')",
            column=path,
        )
    return plain


def _plain(arrow: pa.DataType) -> pa.DataType | None:
    if pt.is_timestamp(arrow):
        return pa.timestamp("us") if arrow.tz is None else _UTC_MICROS
    if pt.is_duration(arrow):
        return pa.duration("us")
    if pt.is_fixed_size_binary(arrow):
        return pa.binary()
    if pt.is_decimal(arrow):
        fits = arrow.precision <= _MAX_PRECISION and 0 <= arrow.scale <= arrow.precision
        return pa.decimal128(arrow.precision, arrow.scale) if fits else None
    return _PLAIN.get(arrow)


def read_field(field: pa.Field, nullable: bool | None = None) -> pa.Field:
    """Return the field of a stored column as Spark's Arrow schema has it (no metadata).

    Raises:
        SchemaMismatchError: Spark has no type for the column.
    """
    return pa.field(field.name, read_type(field), field.nullable if nullable is None else nullable)


def scan_options(schema: pa.Schema) -> dict[str, Any]:
    """Return the arguments that a Lance scan of these stored columns needs.

    Blob columns come as descriptions unless asked for as bytes; with `all_binary` their values
    arrive on the right rows, also with a filter, a limit or row ids (contract test).
    """
    return {"blob_handling": "all_binary"} if any(is_blob(field) for field in schema) else {}


def to_spark_batch(
    batch: pa.RecordBatch, schema: pa.Schema, stored: pa.Schema | None = None
) -> pa.RecordBatch:
    """Return a scanned batch with exactly the columns, types and order of `schema`.

    Runs on executors, once per batch; columns are found by name, and a nullable one that the batch
    lacks is null. `schema` is Spark's side (`read_field`, `arrow_types.arrow_schema`), `stored` the
    dataset's: it tells which columns are blobs, whose empty values mean NULL where they may be null
    (the engine's files don't keep the two apart).

    Raises:
        SchemaMismatchError: a column is missing or of another type than declared; it is named.
        CorruptManifestError: a null in a column that is declared not null.
    """
    blobs = nullable_blobs(stored)
    arrays = []
    for field in schema:
        index = batch.schema.get_field_index(field.name)
        column = pa.nulls(batch.num_rows) if index < 0 else batch.column(index)
        arrays.append(spark_column(column, field, empty_is_null=field.name in blobs))
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def nullable_blobs(stored: pa.Schema | None) -> frozenset[str]:
    """Return the stored columns whose empty values mean NULL."""
    return frozenset(f.name for f in stored or () if f.nullable and is_blob(f))


def spark_column(column: pa.Array, field: pa.Field, empty_is_null: bool = False) -> pa.Array:
    """Return one scanned column as Spark's field `field` has it; see `to_spark_batch`.

    Raises:
        SchemaMismatchError: the column's type or a value of it doesn't fit `field`.
        CorruptManifestError: a null in a column that is declared not null.
    """
    try:
        array = convert(column, field.type, _read_leaf)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError) as error:
        raise SchemaMismatchError(
            f"Column {field.name} can't be read as declared",
            expected=str(field.type),
            found=f"{column.type} ({_short(error)})",
            hint="Leave the column out: .option('columns', …)",
            column=field.name,
        ) from error
    if empty_is_null:
        empty = pc.equal(pc.binary_length(array), 0)
        array = pc.if_else(pc.fill_null(empty, False), pa.scalar(None, array.type), array)
    if array.null_count and not field.nullable:
        raise CorruptManifestError(
            f"Column {field.name} holds nulls and is declared not null",
            expected="a value in every row",
            found=f"{array.null_count} nulls among {len(array)} rows",
            column=field.name,
        )
    return array


def _read_leaf(array: pa.Array, target: pa.DataType) -> pa.Array:
    source = array.type
    if (pt.is_timestamp(source) or pt.is_duration(source)) and source.unit == "ns":
        return _floor_to_micros(array).view(target)
    return array.cast(target)


def _floor_to_micros(array: pa.Array) -> pa.Array:
    """Return nanoseconds as whole microseconds, rounded down as Spark does, also before 1970."""
    nanos = array.view(pa.int64())
    micros = pc.divide(nanos, 1000)  # rounds toward zero
    too_high = pc.greater(pc.multiply(micros, 1000), nanos)
    return pc.subtract(micros, too_high.cast(pa.int64()))


def _short(error: Exception) -> str:
    text = " ".join(str(error).split())
    return text if len(text) <= 160 else text[:159] + "…"
