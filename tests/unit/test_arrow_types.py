"""Spark types of stored columns, and stored columns of new Spark columns; no JVM."""

from __future__ import annotations

import pyarrow as pa
import pyspark.sql.types as T
import pytest

from omnigraph_spark.arrow.to_spark import SPARK_TYPE_NOTE
from omnigraph_spark.errors import OptionError, SchemaMismatchError
from omnigraph_spark.schema import property_types
from omnigraph_spark.schema.property_types import EngineType
from omnigraph_spark.spark import ddl, field_metadata, spark_types

MISMATCH = r"\[OMNIGRAPH_SCHEMA_MISMATCH\]"
STORED = [
    (pa.utf8(), "string"),
    (pa.large_utf8(), "string"),
    (pa.dictionary(pa.int8(), pa.utf8()), "string"),
    (pa.bool_(), "boolean"),
    (pa.int8(), "tinyint"),
    (pa.int16(), "smallint"),
    (pa.uint8(), "smallint"),
    (pa.int32(), "int"),
    (pa.uint16(), "int"),
    (pa.int64(), "bigint"),
    (pa.uint32(), "bigint"),
    (pa.uint64(), "decimal(20,0)"),
    (pa.float16(), "float"),
    (pa.float32(), "float"),
    (pa.float64(), "double"),
    (pa.date32(), "date"),
    (pa.date64(), "timestamp"),
    (pa.timestamp("ns", "+05:30"), "timestamp"),
    (pa.timestamp("s"), "timestamp_ntz"),
    (pa.binary(4), "binary"),
    (pa.large_binary(), "binary"),
    (pa.decimal128(10, 2), "decimal(10,2)"),
    (pa.duration("s"), "interval day to second"),
    (pa.list_(pa.float32(), 4), "array<float>"),
    (pa.map_(pa.utf8(), pa.list_(pa.uint8())), "map<string,array<smallint>>"),
    (pa.struct([("a", pa.uint32()), ("b", pa.date64())]), "struct<a:bigint,b:timestamp>"),
]


@pytest.mark.parametrize(("arrow", "spark"), STORED, ids=lambda part: str(part)[:24])
def test_a_stored_column_has_its_spark_type(arrow: pa.DataType, spark: str) -> None:
    field = spark_types.spark_field(pa.field("c", arrow, nullable=False))
    assert field.dataType.simpleString() == spark
    assert not field.nullable
    assert spark_types.arrow_schema(T.StructType([field])).field("c").type == spark_types.read_type(
        pa.field("c", arrow)
    )


def test_a_blob_is_binary() -> None:
    assert spark_types.spark_type(pa.field("c", property_types.blob_type())) == T.BinaryType()


@pytest.mark.parametrize(
    "spark",
    [T.VariantType(), T.YearMonthIntervalType(), T.CalendarIntervalType(),
     T.ArrayType(T.YearMonthIntervalType()), T.StructType().add("v", T.VariantType())],
    ids=str,
)  # fmt: skip
def test_types_that_no_graph_holds_are_refused_with_the_column(spark: T.DataType) -> None:
    field = T.StructField("odd", spark)
    with pytest.raises(SchemaMismatchError, match=MISMATCH + r" Column odd"):
        spark_types.arrow_schema(T.StructType([field]))
    with pytest.raises(SchemaMismatchError, match=MISMATCH + r" Column odd"):
        spark_types.new_column(field)


def test_a_time_of_day_is_refused_with_the_column() -> None:
    if not hasattr(T, "TimeType"):
        pytest.skip("this pyspark has no TIME")
    with pytest.raises(SchemaMismatchError, match=MISMATCH + r" Column odd.*TIME"):
        spark_types.new_column(T.StructField("odd", T.TimeType()))


# --- new columns --------------------------------------------------------------------------------

NEW = [
    (T.StringType(), pa.utf8(), "String?"),
    (T.VarcharType(3), pa.utf8(), "String?"),
    (T.CharType(5), pa.utf8(), "String?"),
    (T.BooleanType(), pa.bool_(), "Bool?"),
    (T.ByteType(), pa.int32(), "I32?"),
    (T.ShortType(), pa.int32(), "I32?"),
    (T.IntegerType(), pa.int32(), "I32?"),
    (T.LongType(), pa.int64(), "I64?"),
    (T.FloatType(), pa.float32(), "F32?"),
    (T.DoubleType(), pa.float64(), "F64?"),
    (T.DateType(), pa.date32(), "Date?"),
    (T.ArrayType(T.StringType()), pa.list_(pa.utf8()), "[String]?"),
    (T.DecimalType(20, 0), pa.decimal128(20, 0), None),
    (T.TimestampType(), pa.timestamp("us", "UTC"), None),
    (T.TimestampNTZType(), pa.timestamp("us"), None),
    (T.DayTimeIntervalType(), pa.duration("us"), None),
    (T.ArrayType(T.BinaryType()), pa.list_(pa.binary()), None),
    (T.MapType(T.StringType(), T.LongType()), pa.map_(pa.utf8(), pa.int64()), None),
    (T.StructType().add("x", T.ShortType()), pa.struct([("x", pa.int32())]), None),
]


@pytest.mark.parametrize(("spark", "arrow", "engine"), NEW, ids=lambda part: str(part)[:30])
def test_a_new_column_is_stored_as_the_table_of_the_design_says(
    spark: T.DataType, arrow: pa.DataType, engine: str | None
) -> None:
    made = spark_types.new_property(T.StructField("c", spark))
    assert made.field.type == arrow
    assert (made.engine.text() if made.engine else None) == engine


def test_new_binary_is_a_blob() -> None:
    made = spark_types.new_property(T.StructField("c", T.BinaryType()))
    assert property_types.is_blob(made.field)
    assert made.engine == EngineType("Blob")


@pytest.mark.parametrize(
    "spark",
    [T.ByteType(), T.ShortType(), T.ArrayType(T.ShortType()),
     T.StructType().add("x", T.ByteType()), T.MapType(T.StringType(), T.ShortType())],
    ids=str,
)  # fmt: skip
def test_small_integers_are_read_back_as_they_were_written(spark: T.DataType) -> None:
    stored = spark_types.new_column(T.StructField("c", spark))
    assert spark_types.spark_type(stored) == spark
    again = spark_types.spark_field(stored)
    assert spark_types.new_column(again).equals(stored, check_metadata=True)


@pytest.mark.parametrize(
    "spark",
    [T.IntegerType(), T.BinaryType(), T.DecimalType(4, 1), T.ArrayType(T.IntegerType(), False),
     T.MapType(T.StringType(), T.LongType(), False),
     T.StructType([T.StructField("x", T.LongType(), False)])],
    ids=str,
)  # fmt: skip
def test_a_new_column_may_be_null_however_spark_inferred_the_frame(spark: T.DataType) -> None:
    made = spark_types.new_property(T.StructField("c", spark, nullable=False))
    plain = spark_types.new_property(T.StructField("c", spark_types.relaxed(spark)))
    assert made == plain
    assert made.field.nullable


def test_a_new_column_is_not_null_where_a_person_or_another_graph_says_so() -> None:
    inferred = T.StructField("c", T.IntegerType(), nullable=False)
    declared = ddl.parse_columns("c INT NOT NULL").fields[0]
    read = spark_types.spark_field(pa.field("c", pa.int32(), nullable=False))
    said = EngineType("I32", nullable=False)
    assert spark_types.new_property(declared).engine == said
    assert spark_types.new_property(read).engine == said
    assert spark_types.new_property(inferred, "I32").engine == said
    assert spark_types.new_property(inferred, "I32?").engine == EngineType("I32")
    assert not spark_types.new_property(declared).field.nullable


@pytest.mark.parametrize(
    ("text", "spark"),
    [("bigint", T.LongType()), ("DOUBLE", T.DoubleType()), ("string", T.StringType()),
     ("timestamp", T.TimestampType()), ("decimal(10, 2)", T.DecimalType(10, 2)),
     ("array<float>", T.ArrayType(T.FloatType())), ("Date", T.DateType()),
     ("map<string, int>", T.MapType(T.StringType(), T.IntegerType())),
     ("binary", T.BinaryType()), ("smallint", T.ShortType())],
)  # fmt: skip
def test_sparks_names_of_types_say_what_sparks_types_say(text: str, spark: T.DataType) -> None:
    source = (
        T.IntegerType() if isinstance(spark, (T.LongType, T.DoubleType, T.ShortType)) else spark
    )
    made = spark_types.new_property(T.StructField("c", source), text)
    assert made == spark_types.new_property(T.StructField("c", spark))


def test_a_text_that_names_no_type_is_refused_with_both_vocabularies() -> None:
    with pytest.raises(OptionError, match=r"'flaot'.*F64.*Vector.*bigint"):
        spark_types.new_property(T.StructField("c", T.FloatType()), "flaot")


@pytest.mark.parametrize(
    "field",
    [T.StructField("c", T.TimestampNTZType(), False), T.StructField("Имя", T.StringType(), False)],
)
def test_what_the_engine_cannot_type_or_name_is_kept_and_nullable(field: T.StructField) -> None:
    made = spark_types.new_property(field)
    assert made.engine is None
    assert made.field.nullable


CARRIED = ["Vector(4)?", "U32", "U64?", "DateTime", "enum(draft, active)", "[I64]?", "Blob?",
           "[U32]?", "I32"]  # fmt: skip


@pytest.mark.parametrize("text", CARRIED)
def test_a_type_that_was_read_is_the_type_of_the_new_column(text: str) -> None:
    engine = property_types.parse(text)
    stored = property_types.arrow_field("c", engine)
    read = spark_types.spark_field(stored, engine=engine, key=text == "U32")
    # Unions and outer joins make every column nullable.
    loose = T.StructField("c", read.dataType, True, read.metadata)
    made = spark_types.new_property(loose)
    assert made.field == stored
    assert made.engine == engine
    assert made.key is (text == "U32")


def test_a_carried_type_that_no_longer_fits_is_forgotten() -> None:
    read = spark_types.spark_field(pa.field("c", pa.uint32()))
    cast = T.StructField("c", T.StringType(), True, read.metadata)
    assert spark_types.new_property(cast).engine == EngineType("String")
    broken = T.StructField("c", T.LongType(), True, {field_metadata.TYPE: '{"type": "Whatever"}'})
    assert spark_types.new_property(broken).engine == EngineType("I64")
    for junk in ("no json", "[1]", ""):
        field = T.StructField("c", T.LongType(), True, {field_metadata.TYPE: junk})
        assert spark_types.new_property(field).engine == EngineType("I64")


def test_the_width_of_a_list_that_is_no_vector_is_carried_too() -> None:
    stored = pa.field("c", pa.list_(pa.float64(), 3))
    assert spark_types.new_column(spark_types.spark_field(stored)) == stored


@pytest.mark.parametrize(
    ("spark", "text", "stored"),
    [
        (T.ArrayType(T.FloatType()), "Vector(4)", pa.list_(pa.float32(), 4)),
        (T.ArrayType(T.DoubleType()), "Vector(4)", pa.list_(pa.float32(), 4)),
        (T.LongType(), "U32", pa.uint32()),
        (T.TimestampType(), "DateTime", pa.date64()),
        (T.ArrayType(T.StringType()), "[String]", pa.list_(pa.utf8())),
        (T.StringType(), "enum(a, b)", pa.utf8()),
        (T.IntegerType(), "I64", pa.int64()),
    ],
)
def test_the_option_types_decides(spark: T.DataType, text: str, stored: pa.DataType) -> None:
    carried = spark_types.spark_field(pa.field("c", pa.utf8())).metadata
    made = spark_types.new_property(T.StructField("c", spark, True, carried), text)
    assert made.field == pa.field("c", stored)
    assert made.engine == property_types.parse(text + "?")
    tight = spark_types.new_property(T.StructField("c", spark, False), text)
    assert tight.engine == property_types.parse(text)


def test_the_option_types_is_refused_where_the_column_cannot_become_that() -> None:
    with pytest.raises(SchemaMismatchError, match=MISMATCH + r".*Vector\(4\) for column c.*STRING"):
        spark_types.new_property(T.StructField("c", T.StringType()), "Vector(4)")
    with pytest.raises(OptionError, match="OMNIGRAPH_OPTION"):
        spark_types.new_property(T.StructField("c", T.StringType()), "Text")


@pytest.mark.parametrize(
    "spark", [T.NullType(), T.ArrayType(T.NullType()), T.StructType().add("x", T.NullType())]
)
def test_a_new_column_without_a_type_is_refused(spark: T.DataType) -> None:
    with pytest.raises(SchemaMismatchError, match=MISMATCH + r" Column nick .*VOID"):
        spark_types.new_column(T.StructField("nick", spark))


_EMPTY = T.StructType()
_TWICE = T.StructType().add("a", T.LongType()).add("a", T.LongType())


@pytest.mark.parametrize(
    "spark",
    [
        _EMPTY,
        T.ArrayType(_EMPTY),
        T.MapType(T.StringType(), _EMPTY),
        T.StructType().add("b", T.ArrayType(_EMPTY)),
        _TWICE,
        T.ArrayType(_TWICE),
    ],
    ids=lambda spark: str(spark.simpleString()),
)
def test_a_struct_that_lance_cannot_write_or_read_again_is_refused(spark: T.DataType) -> None:
    found = MISMATCH + r" Column c holds a struct with(out fields| two fields a)"
    with pytest.raises(SchemaMismatchError, match=found):
        spark_types.new_property(T.StructField("c", spark))


def test_a_void_column_goes_into_any_column_that_is_there() -> None:
    table = pa.schema(
        [pa.field("id", pa.utf8(), nullable=False), ("vec", pa.list_(pa.float32(), 4))]
    )
    frame = T.StructType().add("id", T.StringType()).add("vec", T.NullType())
    spark_types.check_frame(frame, table, "node:Person")


def test_a_schema_of_a_user_may_differ_inside_by_nullability_alone() -> None:
    tight = T.ArrayType(T.StructType().add("a", T.StringType(), False), containsNull=False)
    assert spark_types.same_type(tight, T.ArrayType(T.StructType().add("a", T.StringType())))
    assert spark_types.same_type(T.VarcharType(3), T.StringType())
    assert not spark_types.same_type(T.IntegerType(), T.LongType())


def test_notes_are_in_the_fields_metadata() -> None:
    stored = spark_types.new_column(T.StructField("c", T.ShortType()))
    assert stored.metadata == {SPARK_TYPE_NOTE: b"smallint"}
