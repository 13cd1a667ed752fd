"""What pyspark, pyarrow and Lance do with Arrow types, where the product leans on it (docs/internals/facts.md)."""

from __future__ import annotations

import inspect
from decimal import Decimal
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pyspark.sql.types as T
import pytest
from lance.fragment import write_fragments
from pyspark.sql.pandas.types import from_arrow_type, to_arrow_schema

from omnigraph_spark.arrow import cast
from omnigraph_spark.schema import property_types
from omnigraph_spark.spark import spark_types

EVERY_TYPE = (
    T.StructType()
    .add("string", T.StringType(), False)
    .add("char", T.CharType(3))
    .add("boolean", T.BooleanType())
    .add("tinyint", T.ByteType())
    .add("smallint", T.ShortType())
    .add("int", T.IntegerType())
    .add("bigint", T.LongType(), False)
    .add("float", T.FloatType())
    .add("double", T.DoubleType())
    .add("date", T.DateType())
    .add("timestamp", T.TimestampType())
    .add("ntz", T.TimestampNTZType())
    .add("interval", T.DayTimeIntervalType())
    .add("binary", T.BinaryType())
    .add("decimal", T.DecimalType(20, 0))
    .add("void", T.NullType())
    .add("array", T.ArrayType(T.FloatType(), containsNull=False))
    .add("map", T.MapType(T.StringType(), T.ArrayType(T.ShortType()), valueContainsNull=False))
    .add("struct", T.StructType().add("x.y", T.TimestampType(), False).add("b", T.BinaryType()))
)


def pyspark_schema(schema: T.StructType) -> pa.Schema:
    """Return what pyspark compares a reader's batches with (fact 13: another signature in 4.0)."""
    derive: Any = to_arrow_schema
    named = "timezone" in inspect.signature(derive).parameters
    return derive(schema, timezone="UTC") if named else derive(schema)


def described(arrow: pa.DataType) -> Any:
    """Return a type with all that `equals` leaves out: names and nullability of inner fields."""
    inner = [arrow.field(i) for i in range(arrow.num_fields)]
    if not inner:
        return str(arrow)
    return type(arrow).__name__, [(f.name, f.nullable, described(f.type)) for f in inner]


def test_our_arrow_schema_is_the_one_that_pyspark_derives() -> None:
    plain = T.StructType([f for f in EVERY_TYPE if f.name != "char"])
    ours, theirs = spark_types.arrow_schema(plain), pyspark_schema(plain)
    assert ours.equals(theirs)
    assert [(f.name, f.nullable, described(f.type)) for f in ours] == [
        (f.name, f.nullable, described(f.type)) for f in theirs
    ]


@pytest.mark.parametrize("field", [f for f in EVERY_TYPE if f.name != "void"], ids=lambda f: f.name)
def test_a_new_column_that_is_read_back_has_the_schema_that_pyspark_derives(
    field: T.StructField,
) -> None:
    stored = spark_types.new_column(field)
    again = spark_types.spark_field(stored)
    assert spark_types.same_type(again.dataType, field.dataType)
    derived = pyspark_schema(T.StructType([again])).field(0).type
    assert described(spark_types.read_type(stored)) == described(derived)


@pytest.mark.parametrize("arrow", [pa.date64(), pa.uint8(), pa.uint64(), pa.float16()])
def test_pysparks_own_reading_of_arrow_types_refuses_some_of_ours(arrow: pa.DataType) -> None:
    """fact 43: why spark_type is our own."""
    with pytest.raises(Exception, match=r"UNSUPPORTED_DATA_TYPE_FOR_ARROW_CONVERSION"):
        from_arrow_type(arrow)


def test_pyarrow_cuts_a_timestamp_to_midnight_when_it_casts_to_date64() -> None:
    """fact 43: why exact_leaf goes by way of integers."""
    noon = pa.array([43_200_000], pa.int64()).view(pa.timestamp("ms", "UTC"))
    assert noon.cast(pa.date64()).view(pa.int64()).to_pylist() == [0]
    assert cast.exact_leaf(noon, pa.date64()).view(pa.int64()).to_pylist() == [43_200_000]


def test_pyarrow_keeps_milliseconds_when_it_casts_date64_to_a_timestamp() -> None:
    times = pa.array([-1, 1], pa.int64()).view(pa.date64())
    micros = times.cast(pa.timestamp("us", "UTC")).view(pa.int64())
    assert micros.to_pylist() == [-1000, 1000]


def test_pyarrows_safe_cast_rounds_floats() -> None:
    """Why exact_leaf compares floats itself."""
    assert pa.array([0.1, 1e300]).cast(pa.float32()).to_pylist() != [0.1, 1e300]


def test_types_that_differ_in_inner_names_are_equal_for_pyarrow() -> None:
    """Why a list column passes pyspark's comparison without being built again."""
    assert pa.list_(pa.field("item", pa.int32())) == pa.list_(pa.field("element", pa.int32()))
    assert pa.list_(pa.field("a", pa.int32(), nullable=False)) != pa.list_(pa.int32())


def table(tmp_path: Path, rows: pa.Table) -> lance.LanceDataset:
    return lance.write_dataset(rows, str(tmp_path / "t"), data_storage_version="2.2")


def misaligned(values: list[Decimal]) -> pa.Array:
    raw = pa.array(values, pa.decimal128(10, 2)).buffers()[1].to_pybytes()
    room = bytearray(len(raw) + 32)
    buffer = pa.py_buffer(room)
    start = (8 - buffer.address) % 16
    room[start : start + len(raw)] = raw
    return pa.Array.from_buffers(
        pa.decimal128(10, 2), len(values), [None, buffer.slice(start, len(raw))]
    )


def test_lance_panics_on_decimals_that_are_aligned_to_8_bytes(tmp_path: Path) -> None:
    """fact 16: why `fresh` copies. A panic is not an Exception."""
    column = misaligned([Decimal("1.99")])
    with pytest.raises(BaseException, match="not aligned") as caught:
        table(tmp_path, pa.table({"d": column}))
    assert not isinstance(caught.value, Exception)
    assert cast.fresh(column).buffers()[1].address % 16 == 0


def test_lance_appends_by_name_and_refuses_other_physical_types(tmp_path: Path) -> None:
    """fact 17: why every batch is cast to the stored schema."""
    stored = pa.schema([("a", pa.int64()), ("s", pa.utf8()), ("v", pa.list_(pa.float32(), 2))])
    dataset = table(tmp_path, stored.empty_table())
    moved = pa.table({"s": ["x"], "a": [1]})
    assert lance.write_dataset(moved, dataset.uri, mode="append").to_table().to_pylist() == [
        {"a": 1, "s": "x", "v": None}
    ]
    for column, arrow in [
        ("a", pa.int32()), ("s", pa.large_utf8()), ("v", pa.list_(pa.float32())), ("s", pa.null()),
    ]:  # fmt: skip
        with pytest.raises(OSError, match=r"(?i)mismatch|schema"):
            lance.write_dataset(pa.table({column: pa.nulls(1, arrow)}), dataset.uri, mode="append")


def test_lance_creates_a_column_of_nothing_without_complaint(tmp_path: Path) -> None:
    """fact 17: why void is refused for new columns."""
    assert table(tmp_path, pa.table({"n": pa.nulls(1)})).schema.field("n").type == pa.null()


def test_lance_keeps_field_metadata_also_inside_nested_columns(tmp_path: Path) -> None:
    """Why a SMALLINT can be noted where it is stored as int32."""
    noted = {b"omnigraph_spark:type": b"smallint"}
    inner = pa.field("item", pa.int32(), metadata=noted)
    schema = pa.schema([pa.field("n", pa.int32(), metadata=noted), ("l", pa.list_(inner))])
    found = table(tmp_path, schema.empty_table()).schema
    assert found.field("n").metadata == noted
    assert found.field("l").type.value_field.metadata == noted


def test_lance_keeps_null_vectors_null_elements_and_null_structs_at_2_2(tmp_path: Path) -> None:
    rows = [
        {"v": None, "s": {"a": 1}},
        {"v": [1, None], "s": None},
        {"v": [3, 4], "s": {"a": None}},
    ]
    schema = pa.schema([("v", pa.list_(pa.float32(), 2)), ("s", pa.struct([("a", pa.int32())]))])
    assert table(tmp_path, pa.Table.from_pylist(rows, schema)).to_table().to_pylist() == rows


def test_fragments_of_2_2_in_an_older_dataset_keep_null_structs(tmp_path: Path) -> None:
    """Why an old graph takes structs: files of 2.0 can't tell a null one, and ours are of 2.2."""
    schema = pa.schema([("n", pa.int32()), ("s", pa.struct([("a", pa.int32())]))])
    rows = [{"n": 1, "s": {"a": 1}}, {"n": 2, "s": None}, {"n": 3, "s": {"a": None}}]
    first, rest = (pa.Table.from_pylist(part, schema) for part in (rows[:1], rows[1:]))
    old = lance.write_dataset(first, str(tmp_path / "old"), data_storage_version="2.0")
    with pytest.raises(OSError, match=r"2\.0 does not encode struct validity"):
        write_fragments(rest, old, mode="append")
    staged = write_fragments(rest, old, mode="append", data_storage_version="2.2")
    append = lance.LanceOperation.Append(staged)
    grown = lance.LanceDataset.commit(old.uri, append, read_version=old.version)
    assert grown.to_table().to_pylist() == rows


def blobs(values: list[bytes | None]) -> pa.Array:
    return cast.convert(pa.array(values, pa.binary()), property_types.blob_type(), cast.exact_leaf)


def test_lance_gives_blobs_as_descriptions_unless_asked_for_bytes(tmp_path: Path) -> None:
    values = [b"A", b"", None, b"x" * 2_000_000]
    dataset = table(tmp_path, pa.table({"n": range(4), "pic": blobs(values)}))
    assert pa.types.is_struct(dataset.to_table().schema.field("pic").type)
    scanned = dataset.scanner(blob_handling="all_binary").to_table()
    assert scanned.schema.field("pic").type == pa.large_binary()
    assert scanned.column("pic").to_pylist() == values
    fragment = dataset.get_fragments()[0]
    one = fragment.scanner(columns=["pic"], filter="n = 2", blob_handling="all_binary").to_table()
    assert one.column("pic").to_pylist() == [None]


def test_a_blob_column_has_the_shape_of_the_engines(tmp_path: Path) -> None:
    dataset = table(tmp_path, pa.table({"pic": blobs([b"A"])}))
    assert dataset.schema.field("pic").type == property_types.blob_type()
    assert dataset.schema.field("pic").type.storage_type.names == ["data", "uri"]
