"""Stored columns become exactly what Spark expects, with the same values."""

from __future__ import annotations

import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest

from omnigraph_spark.arrow import to_spark
from omnigraph_spark.errors import CorruptManifestError, SchemaMismatchError
from omnigraph_spark.schema import property_types
from tests.support import graphs

UTC = datetime.timezone.utc
EIGHT = 1_704_096_000  # 2024-01-01T08:00:00Z in seconds


def micros(count: int, zone: str | None = "UTC") -> pa.Scalar:
    return pa.array([count], pa.int64()).view(pa.timestamp("us", zone))[0]


def ints(values: list[int | None], arrow: pa.DataType) -> pa.Array:
    return pa.array(values, pa.int64()).view(arrow)


def read(column: pa.Array, **field: Any) -> pa.Array:
    stored = pa.field("c", column.type, **field)
    batch = pa.record_batch([column], schema=pa.schema([stored]))
    declared = pa.schema([to_spark.read_field(stored)])
    done = to_spark.to_spark_batch(batch, declared, batch.schema)
    done.validate(full=True)
    assert done.schema.equals(declared)
    return done.column(0)


@pytest.mark.parametrize(
    ("stored", "spark", "value"),
    [
        (pa.uint8(), pa.int16(), 200),
        (pa.uint16(), pa.int32(), 65_535),
        (pa.uint32(), pa.int64(), 4_294_967_295),
        (pa.uint64(), pa.decimal128(20, 0), 18_446_744_073_709_551_615),
        (pa.int8(), pa.int8(), -128),
        (pa.int16(), pa.int16(), -32_768),
        (pa.float16(), pa.float32(), 1.5),
        (pa.bool_(), pa.bool_(), True),
    ],
)
def test_numbers_are_widened_and_never_negative(
    stored: pa.DataType, spark: pa.DataType, value: object
) -> None:
    column = read(pa.array([value, None]).cast(stored) if stored != pa.uint64() else
                  pa.array([value, None], stored))  # fmt: skip
    assert column.type == spark
    assert column.to_pylist() == [value, None]


@pytest.mark.parametrize(
    "days", [-719_162, -141_432, -141_427, -25_568, 0, 2_932_896], ids=lambda d: f"day {d}"
)
def test_dates_are_days_since_the_epoch_and_nothing_is_rebased(days: int) -> None:
    column = read(pa.array([days, None], pa.int32()).view(pa.date32()))
    assert column.view(pa.int32()).to_pylist() == [days, None]


@pytest.mark.parametrize(
    ("column", "expected"),
    [
        (ints([EIGHT], pa.timestamp("s")), micros(EIGHT * 10**6, None)),
        (ints([EIGHT * 10**3], pa.timestamp("ms", "+05:30")), micros(EIGHT * 10**6)),
        (
            ints([EIGHT * 10**9 + 123_456_789], pa.timestamp("ns")),
            micros(EIGHT * 10**6 + 123_456, None),
        ),
        (ints([-1], pa.timestamp("ns", "UTC")), micros(-1)),
        (ints([-1000], pa.timestamp("ns", "UTC")), micros(-1)),
        (ints([-1001], pa.timestamp("ns", "UTC")), micros(-2)),
        (ints([-62_135_596_800_000], pa.date64()), micros(-62_135_596_800_000_000)),
        (ints([-14_182_940_001], pa.date64()), micros(-14_182_940_001_000)),
        (ints([253_402_300_799_999], pa.date64()), micros(253_402_300_799_999_000)),
        (ints([7], pa.timestamp("us", "America/Los_Angeles")), micros(7)),
    ],
)  # fmt: skip
def test_times_of_any_unit_and_zone_are_the_same_instant_in_microseconds(
    column: pa.Array, expected: pa.Scalar
) -> None:
    done = read(column)
    assert done.type == expected.type
    assert done.cast(pa.int64())[0] == expected.cast(pa.int64())


@pytest.mark.parametrize(
    "column",
    [
        pa.array(["a", None, "b"], pa.large_utf8()),
        pa.array(["a", None, "b"], pa.string_view()),
        pa.array(["a", None, "b"]).dictionary_encode(),
        pa.array(["a", None, "b"], pa.large_utf8()).dictionary_encode(),
    ],
    ids=lambda c: str(c.type)[:20],
)
def test_every_kind_of_string_is_a_plain_string(column: pa.Array) -> None:
    done = read(column)
    assert done.type == pa.utf8()
    assert done.to_pylist() == ["a", None, "b"]


@pytest.mark.parametrize(
    "column",
    [
        pa.array([[1, 2], None, [], [3, None]], pa.list_(pa.int64())),
        pa.array([[1, 2], None, [], [3, None]], pa.large_list(pa.int64())),
        pa.array([[1, 2], None, [], [3, None]], pa.list_view(pa.int64())),
        pa.array([[0], [1, 2], None, [], [3, None], [9]], pa.list_(pa.int64())).slice(1, 4),
        pa.array([[0], [1, 2], None, [], [3, None], [9]], pa.large_list(pa.int64())).slice(1, 4),
    ],
)
def test_every_kind_of_list_is_a_list_also_when_sliced(column: pa.Array) -> None:
    done = read(column)
    assert done.type == pa.list_(pa.field("element", pa.int64()))
    assert done.to_pylist() == [[1, 2], None, [], [3, None]]


def test_vectors_after_a_null_vector_stay_in_their_rows() -> None:
    column = pa.array([None, [1, 2], [3, None], None, [5, 6]], pa.list_(pa.float32(), 2))
    assert read(column).to_pylist() == [None, [1, 2], [3, None], None, [5, 6]]
    assert read(column.slice(1)).to_pylist() == [[1, 2], [3, None], None, [5, 6]]


def test_values_hidden_under_a_null_list_do_not_come_out() -> None:
    hidden = pa.ListArray.from_arrays(
        pa.array([0, 2, 3]), pa.array([1, 2, 3], pa.int64()), mask=pa.array([True, False])
    )
    assert read(hidden.cast(pa.large_list(pa.int64()))).to_pylist() == [None, [3]]


def test_structs_keep_null_apart_from_a_struct_of_nulls() -> None:
    rows = [{"a": 1, "b": "y"}, None, {"a": None, "b": None}]
    column = pa.array(rows, pa.struct([("a", pa.uint8()), ("b", pa.large_utf8())]))
    assert read(column).to_pylist() == rows
    assert read(column.slice(1)).to_pylist() == rows[1:]


def test_maps_and_what_is_inside_are_converted_also_when_sliced() -> None:
    rows = [[("z", [9])], None, [("a", [1, None]), ("b", None)], []]
    column = pa.array(rows, pa.map_(pa.large_utf8(), pa.list_(pa.uint32())))
    assert read(column).to_pylist() == rows
    assert read(column.slice(1, 2)).to_pylist() == rows[1:3]


def test_inner_nullability_is_declared_as_stored() -> None:
    stored = pa.field("c", pa.list_(pa.field("item", pa.utf8(), nullable=False)), nullable=False)
    declared = to_spark.read_field(stored)
    assert declared.type == pa.list_(pa.field("element", pa.utf8(), nullable=False))
    assert not declared.nullable


def test_a_smallint_that_was_stored_as_int32_comes_back_as_one() -> None:
    note = {to_spark.SPARK_TYPE_NOTE: b"smallint"}
    assert read(pa.array([-32_768, None], pa.int32()), metadata=note).type == pa.int16()
    inner = pa.list_(pa.field("item", pa.int32(), metadata={to_spark.SPARK_TYPE_NOTE: b"tinyint"}))
    assert read(pa.array([[1]], inner)).type == pa.list_(pa.int8())
    with pytest.raises(SchemaMismatchError, match=r"OMNIGRAPH_SCHEMA_MISMATCH.*Column c .*70000"):
        read(pa.array([70_000], pa.int32()), metadata=note)


def test_decimals_and_intervals_keep_their_values() -> None:
    wide = Decimal("99999999999999999999.999999999999999999")
    assert read(pa.array([wide], pa.decimal256(38, 18))).to_pylist() == [wide]
    assert read(pa.array([wide], pa.decimal256(38, 18))).type == pa.decimal128(38, 18)
    day = ints([-86_399_999_995_000], pa.duration("ns"))
    assert read(day).cast(pa.int64()).to_pylist() == [-86_399_999_995]


@pytest.mark.parametrize(
    "arrow",
    [
        pa.null(), pa.time32("s"), pa.time64("us"), pa.month_day_nano_interval(),
        pa.decimal256(50, 2), pa.decimal128(10, -2), pa.list_(pa.time64("us")),
        pa.struct([("deep", pa.list_(pa.null()))]), pa.map_(pa.utf8(), pa.time32("ms")),
    ],
)  # fmt: skip
def test_what_spark_cannot_hold_is_refused_with_the_columns_name(arrow: pa.DataType) -> None:
    with pytest.raises(
        SchemaMismatchError, match=r"OMNIGRAPH_SCHEMA_MISMATCH.*Column odd"
    ) as caught:
        to_spark.read_type(pa.field("odd", arrow))
    assert "'columns'" in str(caught.value)


def test_columns_are_found_by_name_and_missing_ones_are_null() -> None:
    batch = pa.record_batch({"b": ["x"], "a": pa.array([1], pa.int32()), "z": [0]})
    declared = pa.schema([("a", pa.int32()), ("later", pa.list_(pa.utf8())), ("b", pa.utf8())])
    done = to_spark.to_spark_batch(batch, declared)
    assert done.to_pylist() == [{"a": 1, "later": None, "b": "x"}]


def test_a_batch_of_another_type_is_refused_by_name() -> None:
    batch = pa.record_batch({"a": ["x"]})
    with pytest.raises(SchemaMismatchError, match=r"OMNIGRAPH_SCHEMA_MISMATCH.*Column a "):
        to_spark.to_spark_batch(batch, pa.schema([("a", pa.int32())]))


def test_a_null_where_none_is_declared_is_damage() -> None:
    batch = pa.record_batch({"a": pa.array([1, None], pa.int32())})
    declared = pa.schema([pa.field("a", pa.int32(), nullable=False)])
    with pytest.raises(CorruptManifestError, match=r"OMNIGRAPH_CORRUPT_MANIFEST.*Column a "):
        to_spark.to_spark_batch(batch, declared)
    with pytest.raises(CorruptManifestError, match=r"OMNIGRAPH_CORRUPT_MANIFEST.*Column gone "):
        to_spark.to_spark_batch(batch, pa.schema([pa.field("gone", pa.utf8(), nullable=False)]))


def test_an_empty_blob_is_null_only_where_it_may_be() -> None:
    stored = pa.schema(
        [
            pa.field("may", property_types.blob_type()),
            pa.field("must", property_types.blob_type(), nullable=False),
            pa.field("plain", pa.binary()),
        ]
    )
    scanned = pa.record_batch(
        {name: pa.array([b"", b"A"], pa.large_binary()) for name in stored.names}
    )
    declared = pa.schema([to_spark.read_field(field) for field in stored])
    assert to_spark.to_spark_batch(scanned, declared, stored).to_pylist() == [
        {"may": None, "must": b"", "plain": b""},
        {"may": b"A", "must": b"A", "plain": b"A"},
    ]


def test_a_table_of_every_engine_type_is_read_as_the_engine_exports_it(tmp_path: Path) -> None:
    root = graphs.unpack("v2", "rich", tmp_path)
    dataset = lance.dataset(str(root / "nodes" / "dc40d61254c70aa7"))
    options = to_spark.scan_options(dataset.schema)
    declared = pa.schema([to_spark.read_field(field) for field in dataset.schema])
    rows = {
        row["id"]: row
        for batch in dataset.scanner(**options).to_batches()
        for row in to_spark.to_spark_batch(batch, declared, dataset.schema).to_pylist()
    }
    assert options == {"blob_handling": "all_binary"}
    assert set(rows) == {"s1", "s2", "ünï-código 🙂"}
    assert rows["s1"] | {"vec": None} == {
        "id": "s1", "slug": "s1", "status": "active", "flag": True, "raw": None, "vec": None,
        "at": datetime.datetime(2024, 2, 29, 23, 59, 59, 123_000, UTC),
        "day": datetime.date(1969, 12, 31), "f32": 1.5, "f64": -0.1,
        "i32": -2_147_483_648, "i64": -9_223_372_036_854_775_808,
        "nums": [1, -2], "tags": ["a", "b c", ""],
        "u32": 4_294_967_295, "u64": Decimal(18_446_744_073_709_551_615),
    }  # fmt: skip
    assert rows["s1"]["vec"] == pa.array([0.1, 0.2, 0.3, 0.4], pa.float32()).to_pylist()
