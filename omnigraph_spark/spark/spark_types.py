"""Spark types for stored columns, and stored columns for new Spark columns.

Runs on the driver, and in Spark's planning processes; executors use `arrow_read` and `arrow_write`,
whose functions are exported here too. `arrow_schema` is our own derivation of the Arrow schema that
pyspark expects of a reader: pyspark's is private and differs between versions (fact 13); a
contract test holds the two together.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

import pyarrow as pa
from pyarrow import types as pt
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    CharType,
    DataType,
    DateType,
    DayTimeIntervalType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    NullType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
    VarcharType,
)

from omnigraph_spark.arrow import to_table
from omnigraph_spark.arrow.cast import can_store
from omnigraph_spark.arrow.to_spark import (
    SPARK_TYPE_NOTE,
    read_field,
    read_type,
    scan_options,
    to_spark_batch,
)
from omnigraph_spark.arrow.to_table import check_new_names, to_table_batch
from omnigraph_spark.errors import OptionError, SchemaMismatchError
from omnigraph_spark.schema import property_types
from omnigraph_spark.schema.property_types import EngineType
from omnigraph_spark.spark import ddl, field_metadata

__all__ = [
    "NewColumn",
    "arrow_schema",
    "arrow_type",
    "check_frame",
    "check_new_names",
    "new_column",
    "new_property",
    "read_field",
    "read_type",
    "same_type",
    "scan_options",
    "spark_field",
    "spark_type",
    "to_spark_batch",
    "to_table_batch",
]

_SPARK_OF: dict[pa.DataType, Callable[[], DataType]] = {
    pa.bool_(): BooleanType,
    pa.int8(): ByteType,
    pa.int16(): ShortType,
    pa.int32(): IntegerType,
    pa.int64(): LongType,
    pa.float32(): FloatType,
    pa.float64(): DoubleType,
    pa.utf8(): StringType,
    pa.binary(): BinaryType,
    pa.date32(): DateType,
    pa.timestamp("us", "UTC"): TimestampType,
    pa.timestamp("us"): TimestampNTZType,
    pa.duration("us"): DayTimeIntervalType,
}
_ARROW_OF: dict[type[DataType], pa.DataType] = {
    make: arrow for arrow, make in _SPARK_OF.items() if isinstance(make, type)
} | {CharType: pa.utf8(), VarcharType: pa.utf8()}
_NOTES: dict[type[DataType], bytes] = {ByteType: b"tinyint", ShortType: b"smallint"}


# --- reading -------------------------------------------------------------------------------------


def spark_type(field: pa.Field) -> DataType:
    """Return the Spark type of a stored column.

    Raises:
        SchemaMismatchError: Spark has no type for it; the message names the column.
    """
    return _spark_of(read_type(field))


def spark_field(
    field: pa.Field,
    nullable: bool | None = None,
    engine: EngineType | None = None,
    key: bool = False,
) -> StructField:
    """Return the Spark field of a stored column, with its stored type in the metadata.

    `engine` is what the schema files say of the property (the dataset alone doesn't know an enum's
    values), `key` whether the table's ids are its values.

    Raises:
        SchemaMismatchError: Spark has no type for the column.
    """
    text = field_metadata.carried(field, engine, key).to_text()
    may_be_null = field.nullable if nullable is None else nullable
    return StructField(field.name, spark_type(field), may_be_null, {field_metadata.TYPE: text})


def _spark_of(arrow: pa.DataType) -> DataType:
    """Return the Spark type of what `read_type` returned."""
    if pt.is_decimal(arrow):
        return DecimalType(arrow.precision, arrow.scale)
    if pt.is_map(arrow):
        key, item = arrow.key_type, arrow.item_field
        return MapType(_spark_of(key), _spark_of(item.type), item.nullable)
    if pt.is_list(arrow):
        return ArrayType(_spark_of(arrow.value_type), arrow.value_field.nullable)
    if pt.is_struct(arrow):
        return StructType([StructField(f.name, _spark_of(f.type), f.nullable) for f in arrow])
    return _SPARK_OF[arrow]()


def arrow_schema(schema: StructType) -> pa.Schema:
    """Return the Arrow schema that pyspark expects of batches for `schema` (no metadata).

    Raises:
        SchemaMismatchError: a type that this package refuses; the message names the column.
    """
    return pa.schema([_arrow_field(field, field.name) for field in schema.fields])


def _arrow_field(field: StructField, path: str) -> pa.Field:
    return pa.field(field.name, arrow_type(field.dataType, path), field.nullable)


def arrow_type(spark: DataType, column: str) -> pa.DataType:
    """Return the Arrow type of a Spark type; `column` is named where it is refused.

    Raises:
        SchemaMismatchError: variant, year-month interval, and whatever else no table can hold.
    """
    plain = _ARROW_OF.get(type(spark))
    if plain is not None:
        return plain
    if isinstance(spark, DecimalType):
        return pa.decimal128(spark.precision, spark.scale)
    if isinstance(spark, ArrayType):
        item = arrow_type(spark.elementType, f"{column}[]")
        return pa.list_(pa.field("element", item, spark.containsNull))
    if isinstance(spark, MapType):
        key = arrow_type(spark.keyType, f"{column}.key")
        value = arrow_type(spark.valueType, f"{column}.value")
        return pa.map_(
            pa.field("key", key, nullable=False), pa.field("value", value, spark.valueContainsNull)
        )
    if isinstance(spark, StructType):
        return pa.struct([_arrow_field(f, f"{column}.{f.name}") for f in spark.fields])
    if isinstance(spark, NullType):
        return pa.null()
    raise SchemaMismatchError(
        f"Column {column} has a Spark type that a graph can't hold",
        expected="one of the types in the documentation's table",
        found=spark.simpleString().upper(),
        hint="Cast it first, for example to STRING, or drop the column",
        column=column,
    )


def same_type(one: DataType, other: DataType) -> bool:
    """Return whether two Spark types differ at most in inner nullability and CHAR or VARCHAR."""
    return one == other or relaxed(one) == relaxed(other)


def relaxed(spark: DataType) -> DataType:
    """Return a type with every inner part nullable, and CHAR and VARCHAR as STRING."""
    if isinstance(spark, ArrayType):
        return ArrayType(relaxed(spark.elementType), True)
    if isinstance(spark, MapType):
        return MapType(relaxed(spark.keyType), relaxed(spark.valueType), True)
    if isinstance(spark, StructType):
        return StructType([StructField(f.name, relaxed(f.dataType), True) for f in spark.fields])
    return StringType() if isinstance(spark, (CharType, VarcharType)) else spark


# --- writing -------------------------------------------------------------------------------------


def check_frame(
    schema: StructType,
    table: pa.Schema,
    table_key: str,
    may_lack: Collection[str] = (),
    exact: bool = False,
) -> None:
    """Refuse a frame that can't be written into an existing table, before anything is written.

    With `exact` the types too must go together without loss.

    Raises:
        SchemaMismatchError: an extra or missing column, a type that is never cast or never held.
        IntegrityError: a node frame without `id`.
    """
    to_table.check_columns(arrow_schema(schema), table, table_key, may_lack, exact)


@dataclass(frozen=True)
class NewColumn:
    """A column that a table doesn't have yet: its stored field, and what the schema files say.

    `engine` is None where the engine can't type or name it: it is kept, nullable, and the engine
    never sees it. `key` is True where the column was some table's key when it was read.
    """

    field: pa.Field
    engine: EngineType | None
    key: bool


def new_column(field: StructField, engine_type_text: str | None = None) -> pa.Field:
    """Return the stored field of a new column; see `new_property`."""
    return new_property(field, engine_type_text).field


def new_property(field: StructField, engine_type_text: str | None = None) -> NewColumn:
    """Return how a column that the table doesn't have yet is stored.

    `engine_type_text` is what option `types` says of it, such as `Vector(4)` or `decimal(10, 2)`;
    else the type that the column carries counts, if it still fits; else the one of the table in
    docs/types.md.
    It may be null unless the text, the carried type or a column list says otherwise: that Spark
    calls a column not null says no more than how its values were computed.

    Raises:
        SchemaMismatchError: void or another type that can't be stored (an empty struct, or one with
            two fields of one name, at any depth), or one that doesn't go with `engine_type_text`;
            the message names the column.
        OptionError: `engine_type_text` is not a type.
    """
    if _has_void(field.dataType):
        raise SchemaMismatchError(
            f"Column {field.name} has no type (VOID) and the table doesn't have it yet",
            expected="a column with a type",
            found=field.dataType.simpleString().upper(),
            hint=f"Give it one, for example CAST(NULL AS STRING) AS {field.name}",
            column=field.name,
        )
    _refuse_structs(field, field.dataType)
    source = arrow_type(field.dataType, field.name)
    carried = field_metadata.carried_type(field)
    if engine_type_text is not None:
        engine = _asked(field, source, engine_type_text)
        if isinstance(engine, DataType):
            return new_property(StructField(field.name, engine, True))
        return _typed(field, engine, carried is not None and carried.key)
    if carried is not None and carried.engine is not None and _still_fits(field, carried.engine):
        return _typed(field, carried.engine, carried.key)
    required = field_metadata.REQUIRED in field.metadata
    spark = field.dataType if carried is not None or required else relaxed(field.dataType)
    stored = _default_type(spark)
    if carried is not None and carried.width is not None and isinstance(field.dataType, ArrayType):
        stored = pa.list_(stored.value_field, carried.width)
    note = _NOTES.get(type(field.dataType))
    metadata = None if note is None else {SPARK_TYPE_NOTE: note}
    not_null = required or (carried is not None and not carried.nullable)
    untyped = pa.field(field.name, stored, field.nullable or not not_null, metadata)
    engine_type = property_types.of_field(untyped) if property_types.can_name(field.name) else None
    if engine_type is None:
        untyped = untyped.with_nullable(True)
    return NewColumn(untyped, engine_type, False)


def _refuse_structs(field: StructField, spark: DataType) -> None:
    """Refuse structs that Lance can't write (no fields), or can't read again (doubled ones)."""
    if isinstance(spark, ArrayType):
        _refuse_structs(field, spark.elementType)
    elif isinstance(spark, MapType):
        _refuse_structs(field, spark.keyType)
        _refuse_structs(field, spark.valueType)
    elif isinstance(spark, StructType):
        doubled = next((name for name in spark.names if spark.names.count(name) > 1), None)
        if doubled is not None or not spark.names:
            raise SchemaMismatchError(
                f"Column {field.name} holds a struct "
                + ("without fields" if doubled is None else f"with two fields {doubled}"),
                expected="structs with fields of different names",
                found=field.dataType.simpleString().upper(),
                hint="Drop the column, or give the struct a field"
                if doubled is None
                else "Rename one of the fields",
                column=field.name,
            )
        for inner in spark.fields:
            _refuse_structs(field, inner.dataType)


def _has_void(spark: DataType) -> bool:
    if isinstance(spark, ArrayType):
        return _has_void(spark.elementType)
    if isinstance(spark, MapType):
        return _has_void(spark.keyType) or _has_void(spark.valueType)
    if isinstance(spark, StructType):
        return any(_has_void(field.dataType) for field in spark.fields)
    return isinstance(spark, NullType)


def asked_type(text: str) -> EngineType | DataType:
    """Return the type that a text names: one of the engine's, or else one of Spark's.

    Raises:
        OptionError: it names neither.
    """
    try:
        return property_types.parse(text)
    except OptionError as error:
        try:
            return ddl.parse_type(text)
        except OptionError:
            raise OptionError(
                error.what,
                expected=f"{error.expected}, or a type of Spark such as bigint or decimal(10, 2)",
                hint=error.hint,
            ) from error


def _asked(field: StructField, source: pa.DataType, text: str) -> EngineType | DataType:
    engine = asked_type(text)
    stored = (
        _default_type(engine) if isinstance(engine, DataType) else property_types.to_arrow(engine)
    )
    if not can_store(source, stored):
        raise SchemaMismatchError(
            f"Option types says {text} for column {field.name}, which its type can't become",
            expected=f"a column that can be {text}",
            found=field.dataType.simpleString().upper(),
            hint="Cast the column with Spark, or correct the option",
            column=field.name,
        )
    if isinstance(engine, DataType):
        return engine
    # In an option people write Vector(4) with no thought of nulls: the frame says if it has any.
    return EngineType(
        engine.scalar, engine.list, engine.nullable or field.nullable, engine.enum_values
    )


def _still_fits(field: StructField, engine: EngineType) -> bool:
    stored = property_types.arrow_field(field.name, engine)
    return same_type(field.dataType, spark_type(stored))


def _typed(field: StructField, engine: EngineType, key: bool) -> NewColumn:
    if not property_types.can_name(field.name):
        stored = pa.field(field.name, property_types.to_arrow(engine), nullable=True)
        return NewColumn(stored, None, False)
    return NewColumn(property_types.arrow_field(field.name, engine), engine, key)


def _default_type(spark: DataType, inside: bool = False) -> pa.DataType:
    """Return what docs/types.md has under "new column written as"; `inside` a list or struct."""
    if isinstance(spark, BinaryType):
        return pa.binary() if inside else property_types.blob_type()
    if type(spark) in _NOTES:
        return pa.int32()
    if isinstance(spark, ArrayType):
        return pa.list_(_inner("item", spark.elementType, spark.containsNull))
    if isinstance(spark, MapType):
        return pa.map_(
            _inner("key", spark.keyType, False),
            _inner("value", spark.valueType, spark.valueContainsNull),
        )
    if isinstance(spark, StructType):
        return pa.struct([_inner(f.name, f.dataType, f.nullable) for f in spark.fields])
    return arrow_type(spark, "")


def _inner(name: str, spark: DataType, nullable: bool) -> pa.Field:
    note = _NOTES.get(type(spark))
    metadata = None if note is None else {SPARK_TYPE_NOTE: note}
    return pa.field(name, _default_type(spark, inside=True), nullable, metadata)


def with_columns_of(first: StructType, second: StructType, table_key: str, hint: str) -> StructType:
    """Return the columns that a table has in two versions, the first one's in front.

    Raises:
        SchemaMismatchError: a column has another type in the two; `hint` says what to do.
    """
    known = {field.name: field for field in first.fields}
    for field in second.fields:
        own = known.get(field.name)
        if own is not None and not same_type(own.dataType, field.dataType):
            raise SchemaMismatchError(
                f"Column {field.name} of {table_key} has another type in another version",
                expected=own.dataType.simpleString(),
                found=field.dataType.simpleString(),
                hint=hint,
                table_key=table_key,
                column=field.name,
            )
    return StructType(
        [*first.fields, *(field for field in second.fields if field.name not in known)]
    )
