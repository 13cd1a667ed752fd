"""A frame's batches go into a table by name and exactly, or are refused with column and value."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from omnigraph_spark.arrow import cast, to_spark, to_table
from omnigraph_spark.errors import IntegrityError, SchemaMismatchError
from omnigraph_spark.schema import property_types

KEY = "node:Person"
PERSON = pa.schema([pa.field("id", pa.utf8(), nullable=False), ("a", pa.int32()), ("b", pa.utf8())])
MISMATCH = r"\[OMNIGRAPH_SCHEMA_MISMATCH\]"
INTEGRITY = r"\[OMNIGRAPH_INTEGRITY\]"


def write(column: pa.Array, stored: pa.DataType | pa.Field) -> pa.Array:
    field = stored if isinstance(stored, pa.Field) else pa.field("c", stored)
    schema = pa.schema([pa.field("id", pa.utf8(), nullable=False), field])
    ids = pa.array([f"r{n}" for n in range(len(column))])
    batch = pa.record_batch([ids, column], names=["id", field.name])
    done = to_table.to_table_batch(batch, schema, KEY)
    done.validate(full=not pa.types.is_date64(field.type))  # Arrow wants whole days there
    assert done.schema.equals(schema)
    return done.column(field.name)


def person(**columns: pa.Array) -> pa.RecordBatch:
    return pa.record_batch(columns)


# --- which columns ------------------------------------------------------------------------------


def test_a_missing_nullable_column_is_null() -> None:
    batch = person(b=pa.array(["x"]), id=pa.array(["1"]))
    to_table.check_columns(batch.schema, PERSON, KEY)
    done = to_table.to_table_batch(batch, PERSON, KEY)
    assert done.schema.equals(PERSON)
    assert done.to_pylist() == [{"id": "1", "a": None, "b": "x"}]


def test_columns_are_matched_by_name_and_not_by_place() -> None:
    batch = person(b=pa.array(["x"]), a=pa.array([7], pa.int32()), id=pa.array(["1"]))
    assert to_table.to_table_batch(batch, PERSON, KEY).to_pylist() == [
        {"id": "1", "a": 7, "b": "x"}
    ]


def test_an_extra_column_is_refused_by_name_on_the_driver_and_in_the_task() -> None:
    batch = person(id=pa.array(["1"]), c=pa.array([1]))
    with pytest.raises(SchemaMismatchError, match=MISMATCH + r" node:Person has no column 'c'"):
        to_table.check_columns(batch.schema, PERSON, KEY)
    with pytest.raises(SchemaMismatchError, match=MISMATCH + r" node:Person has no column 'c'"):
        to_table.to_table_batch(batch, PERSON, KEY)


def test_a_name_in_another_case_is_another_name_and_the_error_says_which() -> None:
    with pytest.raises(SchemaMismatchError, match=r"'B'.*rename it to b"):
        to_table.check_columns(pa.schema([("id", pa.utf8()), ("B", pa.utf8())]), PERSON, KEY)


def test_a_node_frame_without_id_is_refused_unless_the_writer_fills_it() -> None:
    frame = pa.schema([("a", pa.int32()), ("b", pa.utf8())])
    with pytest.raises(IntegrityError, match=INTEGRITY + r".*lacks column id"):
        to_table.check_columns(frame, PERSON, KEY)
    to_table.check_columns(frame, PERSON, KEY, may_lack=["id"])
    edge = pa.schema([pa.field(name, pa.utf8(), nullable=False) for name in ("id", "src", "dst")])
    to_table.check_columns(edge.remove(0), edge, "edge:Knows")
    with pytest.raises(SchemaMismatchError, match=MISMATCH + r".*edge:Knows lacks column dst"):
        to_table.check_columns(edge.remove(2), edge, "edge:Knows")


def test_a_doubled_column_is_refused() -> None:
    frame = pa.schema([("id", pa.utf8()), ("a", pa.int32()), ("a", pa.int32())])
    with pytest.raises(SchemaMismatchError, match=MISMATCH + r".*column a more than once"):
        to_table.check_columns(frame, PERSON, KEY)


def test_a_null_id_is_refused_and_an_empty_one_is_a_value() -> None:
    fits = person(id=pa.array(["", "2"]), a=pa.nulls(2), b=pa.array(["x", None]))
    assert to_table.to_table_batch(fits, PERSON, KEY).column("id").to_pylist() == ["", "2"]
    with pytest.raises(IntegrityError, match=INTEGRITY + r".*column id of node:Person") as caught:
        to_table.to_table_batch(person(id=pa.array(["1", None])), PERSON, KEY)
    assert caught.value.rule == "not null"  # type: ignore[attr-defined]
    assert caught.value.table_key == KEY  # type: ignore[attr-defined]


def test_a_null_in_a_not_null_property_names_the_row() -> None:
    status = pa.field("status", pa.utf8(), nullable=False)
    with pytest.raises(IntegrityError, match=r"column status of node:Person.*id 'r1'") as caught:
        write(pa.array(["open", None, None]), status)
    assert caught.value.samples == ["r1"]  # type: ignore[attr-defined]


# --- values -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("column", "stored", "values"),
    [
        (pa.array([-128, None], pa.int8()), pa.int32(), [-128, None]),
        (pa.array([-32_768], pa.int16()), pa.int32(), [-32_768]),
        (pa.array([2**31 - 1], pa.int32()), pa.int64(), [2**31 - 1]),
        (pa.array([2**31 - 1], pa.int64()), pa.int32(), [2**31 - 1]),
        (pa.array([4_294_967_295], pa.int64()), pa.uint32(), [4_294_967_295]),
        (pa.array([Decimal(2**64 - 1)], pa.decimal128(20, 0)), pa.uint64(), [2**64 - 1]),
        (pa.array([5], pa.int64()), pa.decimal128(10, 2), [Decimal("5.00")]),
        (pa.array([2**53], pa.int64()), pa.float64(), [2.0**53]),
        (pa.array([1.5, None], pa.float32()), pa.float64(), [1.5, None]),
        (pa.array([0.5, float("inf"), -0.0]), pa.float32(), [0.5, float("inf"), -0.0]),
        (pa.array([Decimal("1.50")], pa.decimal128(10, 2)), pa.decimal128(4, 1), [Decimal("1.5")]),
        (pa.array(["x", None], pa.large_utf8()), pa.utf8(), ["x", None]),
        (pa.array(["x", None]), pa.large_utf8(), ["x", None]),
        (pa.array(["x", None]), pa.dictionary(pa.int16(), pa.utf8()), ["x", None]),
        (pa.array([b"x"]), pa.large_binary(), [b"x"]),
        (pa.nulls(2), pa.utf8(), [None, None]),
        (pa.nulls(2), pa.list_(pa.float32(), 4), [None, None]),
        (pa.nulls(2), pa.date64(), [None, None]),
        (pa.array([[None]]), pa.list_(pa.utf8()), [[None]]),
        (pa.array([[1], None, []], pa.list_(pa.int32())), pa.list_(pa.int64()), [[1], None, []]),
        (pa.array([[1]], pa.list_(pa.int32())), pa.large_list(pa.int64()), [[1]]),
        (pa.array([[("k", 1)], None], pa.map_(pa.utf8(), pa.int16())),
         pa.map_(pa.utf8(), pa.int64()), [[("k", 1)], None]),
    ],
    ids=lambda part: str(part.type) if isinstance(part, pa.Array) else str(part),
)  # fmt: skip
def test_a_value_that_fits_is_kept(column: pa.Array, stored: pa.DataType, values: list) -> None:
    assert cast.can_cast(column.type, stored)
    assert write(column, stored).to_pylist() == values


@pytest.mark.parametrize(
    ("column", "stored", "sample"),
    [
        (pa.array([1, 3_000_000_000, 2, 3, 4], pa.int64()), pa.int32(), "3000000000"),
        (pa.array([5, 6, -1], pa.int64()), pa.uint32(), "-1"),
        (pa.array([Decimal(2**64)], pa.decimal128(20, 0)), pa.uint64(), str(2**64)),
        (pa.array([Decimal(-1)], pa.decimal128(20, 0)), pa.uint64(), "-1"),
        (pa.array([Decimal("1.5")], pa.decimal128(10, 1)), pa.int32(), "1.5"),
        (pa.array([2**53, 2**53 + 1], pa.int64()), pa.float64(), str(2**53 + 1)),
        (pa.array([0.5, 0.1]), pa.float32(), "0.1"),
        (pa.array([1e300]), pa.float32(), "1e\\+300"),
        (pa.array([Decimal("1.25")], pa.decimal128(10, 2)), pa.decimal128(4, 1), "1.25"),
        (pa.array([100], pa.int32()), pa.decimal128(4, 2), "100"),
        (pa.array([[0.5], [0.1]]), pa.list_(pa.float32()), "0.1"),
        (pa.array([b"ab"]), pa.binary(3), "6162"),
        (pa.array([[("k", 70_000)]], pa.map_(pa.utf8(), pa.int64())),
         pa.map_(pa.utf8(), pa.int16()), "70000"),
    ],
    ids=lambda part: str(part.type) if isinstance(part, pa.Array) else str(part),
)  # fmt: skip
def test_a_value_that_would_change_is_refused_with_column_types_and_value(
    column: pa.Array, stored: pa.DataType, sample: str
) -> None:
    assert cast.can_cast(column.type, stored)
    pattern = rf"{MISMATCH} .*column c of node:Person.*expected .*found .*for example [^(]*{sample}"
    with pytest.raises(SchemaMismatchError, match=pattern) as caught:
        write(column, stored)
    assert caught.value.column == "c"  # type: ignore[attr-defined]
    assert str(stored) in str(caught.value)


@pytest.mark.parametrize(
    ("source", "stored"),
    [
        (pa.utf8(), pa.int32()),
        (pa.int32(), pa.utf8()),
        (pa.bool_(), pa.int32()),
        (pa.float64(), pa.int32()),
        (pa.float64(), pa.decimal128(10, 2)),
        (pa.decimal128(10, 2), pa.float64()),
        (pa.date32(), pa.date64()),
        (pa.timestamp("us", "UTC"), pa.date32()),
        (pa.timestamp("us"), pa.timestamp("us", "UTC")),
        (pa.timestamp("us"), pa.date64()),
        (pa.list_(pa.utf8()), pa.list_(pa.int32())),
        (pa.utf8(), pa.list_(pa.utf8())),
        (pa.struct([("x", pa.int32())]), pa.struct([("y", pa.int32())])),
    ],
)
def test_types_that_never_fit_exactly_are_refused_on_the_driver(
    source: pa.DataType, stored: pa.DataType
) -> None:
    table = pa.schema([pa.field("id", pa.utf8(), nullable=False), ("c", stored)])
    frame = pa.schema([("id", pa.utf8()), ("c", source)])
    with pytest.raises(SchemaMismatchError, match=MISMATCH + r" Column c of node:Person") as caught:
        to_table.check_columns(frame, table, KEY, exact=True)
    assert str(source) in str(caught.value)
    assert str(stored) in str(caught.value)


def test_nan_goes_into_a_narrower_float() -> None:
    assert str(write(pa.array([float("nan"), None]), pa.float32()).to_pylist()) == "[nan, None]"


# --- times --------------------------------------------------------------------------------------


def instants(micros: list[int | None], zone: str = "UTC") -> pa.Array:
    return pa.array(micros, pa.int64()).view(pa.timestamp("us", zone))


@pytest.mark.parametrize("zone", ["UTC", "America/Los_Angeles", "+05:30"])
@pytest.mark.parametrize("millis", [0, 1, -1, -62_135_596_800_000, 253_402_300_799_999])
def test_a_datetime_keeps_its_milliseconds(millis: int, zone: str) -> None:
    stored = write(instants([millis * 1000, None], zone), pa.date64())
    assert stored.view(pa.int64()).to_pylist() == [millis, None]
    assert to_spark.spark_column(stored, to_spark.read_field(pa.field("c", pa.date64()))).equals(
        instants([millis * 1000, None])
    )


def test_a_datetime_refuses_microseconds_with_the_value() -> None:
    with pytest.raises(
        SchemaMismatchError, match=r"DateTime\? \(date64\[ms\]\).*1970-01-01 00:00:00\.000001"
    ):
        write(instants([1000, 1]), pa.date64())


@pytest.mark.parametrize("unit", ["us", "ns"])
def test_a_timestamp_column_of_a_finer_unit_takes_microseconds(unit: str) -> None:
    stored = write(instants([1, -1, None]), pa.timestamp(unit, "+05:30"))
    factor = 1 if unit == "us" else 1000
    assert stored.cast(pa.int64()).to_pylist() == [factor, -factor, None]


def test_a_timestamp_of_whole_seconds_refuses_parts() -> None:
    write(instants([2_000_000]), pa.timestamp("s", "UTC"))
    with pytest.raises(SchemaMismatchError, match=MISMATCH):
        write(instants([2_000_001]), pa.timestamp("s", "UTC"))


# --- vectors, structs, blobs --------------------------------------------------------------------

VECTOR = pa.list_(pa.float32(), 4)


def test_vectors_keep_the_slots_of_null_rows_and_null_elements() -> None:
    rows = [None, [1, 2, 3, 4], None, [5, 6, 7, 8], [1, None, 3, 4], None]
    column = pa.array(rows, pa.list_(pa.float32()))
    assert write(column, VECTOR).to_pylist() == rows
    assert write(column.slice(1, 3), VECTOR).to_pylist() == rows[1:4]
    assert write(column.slice(0, 1), VECTOR).to_pylist() == [None]


def test_a_vector_of_another_width_names_both_widths_and_the_value() -> None:
    column = pa.array([None, [1, 2, 3, 4], [1, 2, 3]], pa.list_(pa.float32()))
    pattern = (
        r"column c of node:Person.*Vector\(4\).*\[ 1, 2, 3 \].*width 4 expected, width 3 found"
    )
    with pytest.raises(SchemaMismatchError, match=pattern):
        write(column, VECTOR)


def test_struct_fields_are_matched_by_name_and_null_structs_stay_null() -> None:
    given_type = pa.struct([("b", pa.utf8()), ("a", pa.int16())])
    stored = pa.struct([("a", pa.int32()), ("later", pa.utf8()), ("b", pa.utf8())])
    column = pa.array([{"a": 1, "b": "y"}, None, {"a": None, "b": None}], given_type)
    assert write(column, stored).to_pylist() == [
        {"a": 1, "later": None, "b": "y"},
        None,
        {"a": None, "later": None, "b": None},
    ]


def test_a_null_inside_a_not_null_part_is_refused_but_not_under_a_null_struct() -> None:
    part = pa.struct([pa.field("a", pa.int32(), nullable=False)])
    loose = pa.struct([("a", pa.int32())])
    assert write(pa.array([None, {"a": 1}], loose), part).to_pylist() == [None, {"a": 1}]
    with pytest.raises(IntegrityError, match=INTEGRITY + r".*column c .*a null in a.*'r2'"):
        write(pa.array([None, {"a": 1}, {"a": None}], loose), part)
    items = pa.list_(pa.field("item", pa.int32(), nullable=False))
    with pytest.raises(IntegrityError, match=INTEGRITY + r".*a null in item"):
        write(pa.array([[1], [None]], pa.list_(pa.int32())), items)


@pytest.mark.parametrize("turned", [False, True])
def test_blobs_come_back_on_their_rows_from_a_real_dataset(tmp_path: Path, turned: bool) -> None:
    values = {"1": b"A", "2": b"", "3": None, "4": bytes(range(256)) * 8192}
    ids = list(reversed(values)) if turned else list(values)
    schema = pa.schema(
        [
            pa.field("id", pa.utf8(), nullable=False),
            pa.field("pic", property_types.blob_type()),
            pa.field("must", property_types.blob_type(), nullable=False),
        ]
    )
    batch = pa.record_batch(
        {
            "id": ids,
            "pic": pa.array([values[one] or None for one in ids], pa.binary()),
            "must": pa.array([values[one] or b"" for one in ids], pa.binary()),
        }
    )
    fitted = to_table.to_table_batch(batch, schema, KEY)
    dataset = lance.write_dataset(
        pa.Table.from_batches([fitted]), str(tmp_path / "t"), data_storage_version="2.2"
    )
    declared = pa.schema([to_spark.read_field(field) for field in dataset.schema])
    expected = {one: (value or None, value or b"") for one, value in values.items()}
    for extra in ({}, {"filter": "id = '2'"}, {"limit": 2, "offset": 1}, {"with_row_id": True}):
        scanned = dataset.scanner(**to_spark.scan_options(dataset.schema), **extra).to_batches()
        rows = [
            row
            for part in scanned
            for row in to_spark.to_spark_batch(part, declared, dataset.schema).to_pylist()
        ]
        assert rows
        assert {r["id"]: (r["pic"], r["must"]) for r in rows}.items() <= expected.items()


@pytest.mark.parametrize("kind", [pa.binary(), pa.large_binary()])
def test_an_empty_blob_is_refused_where_it_would_be_read_as_null(kind: pa.DataType) -> None:
    batch = pa.record_batch({"pic": pa.array([b"A", None, b""], kind)})
    field = pa.field("pic", property_types.blob_type())
    with pytest.raises(SchemaMismatchError, match=r"Column pic of .* an empty BINARY.*nullif"):
        to_table.refuse_empty_blobs(batch, pa.schema([field]), KEY)
    full = pa.record_batch({"pic": pa.array([b"A", b""], kind)})
    to_table.refuse_empty_blobs(full, pa.schema([field.with_nullable(False)]), KEY)
    kept = to_table.to_table_batch(full, pa.schema([field.with_nullable(False)]), KEY)
    assert kept.column("pic").storage.field("data").to_pylist() == [b"A", b""]


def test_a_blob_column_of_a_schema_that_was_read_without_lance_is_written_too() -> None:
    blob = property_types.blob_type()
    plain = pa.field("c", blob.storage_type, metadata={"ARROW:extension:name": "lance.blob.v2"})
    batch = pa.record_batch({"c": pa.array([b"A", None])})
    done = to_table.to_table_batch(batch, pa.schema([plain]), KEY)
    assert done.schema.field("c").type == blob


# --- buffers ------------------------------------------------------------------------------------


def misaligned(array: pa.Array) -> pa.Array:
    """Return decimals in a buffer that starts 8 bytes past a multiple of 16, as Spark's may."""
    values = array.buffers()[1]
    room = bytearray(values.size + 32)
    buffer = pa.py_buffer(room)
    start = (8 - buffer.address) % 16
    room[start : start + values.size] = values.to_pybytes()
    moved = buffer.slice(start, values.size)
    assert moved.address % 16 == 8
    return pa.Array.from_buffers(array.type, len(array), [None, moved])


def test_decimals_in_misaligned_buffers_are_copied_and_lance_takes_them(tmp_path: Path) -> None:
    values = [Decimal("1.99"), Decimal("-2.00"), Decimal("99999999.99")]
    decimals = misaligned(pa.array(values, pa.decimal128(10, 2)))
    inside = pa.StructArray.from_arrays([decimals], names=["d"])
    schema = pa.schema([("d", decimals.type), ("s", inside.type)])
    fitted = to_table.to_table_batch(
        pa.record_batch([decimals, inside], schema=schema), schema, KEY
    )
    assert fitted.column("d").buffers()[1].address % 16 == 0
    dataset = lance.write_dataset(
        pa.Table.from_batches([fitted]), str(tmp_path / "t"), data_storage_version="2.2"
    )
    assert dataset.to_table().to_pylist() == [{"d": v, "s": {"d": v}} for v in values]


def empty_without_offsets(arrow: pa.DataType, *children: pa.Array) -> pa.Array:
    """Return no values whose offsets are a buffer of no bytes, as Spark 4.0 sends them."""
    nothing = pa.py_buffer(b"\xf5" * 64).slice(8, 0)
    buffers = [None, nothing] if children else [None, nothing, nothing]
    return pa.Array.from_buffers(arrow, 0, buffers, children=list(children) or None)


def no_texts() -> pa.Array:
    return empty_without_offsets(pa.utf8())


def in_a_list(values: pa.Array) -> pa.Array:
    return pa.ListArray.from_arrays(pa.array([0, 0], pa.int32()), values)


@pytest.mark.parametrize(
    "make",
    [
        lambda: in_a_list(no_texts()),
        lambda: in_a_list(empty_without_offsets(pa.binary())),
        lambda: in_a_list(empty_without_offsets(pa.list_(pa.int32()), pa.array([], pa.int32()))),
        lambda: in_a_list(empty_without_offsets(pa.list_(pa.utf8()), no_texts())),
        lambda: in_a_list(pa.StructArray.from_arrays([no_texts()], names=["a"])),
        lambda: pa.StructArray.from_arrays([in_a_list(no_texts())], names=["a"]),
        lambda: pa.MapArray.from_arrays(
            pa.array([0, 0], pa.int32()), no_texts(), pa.array([], pa.int64())
        ),
    ],
    ids=["strings", "binaries", "lists", "lists of strings", "structs", "in a struct", "map"],
)
def test_empty_lists_without_offsets_are_copied_and_lance_takes_them(
    tmp_path: Path, make: Callable[[], pa.Array]
) -> None:
    column = make()
    assert cast.has_short_offsets(column)
    fitted = write(column, column.type)
    assert not cast.has_short_offsets(fitted)
    dataset = lance.write_dataset(
        pa.table({"c": fitted}), str(tmp_path / "t"), data_storage_version="2.2"
    )
    assert dataset.to_table().column("c").to_pylist() == column.to_pylist()


@pytest.mark.parametrize("arrow", [pa.large_utf8(), pa.large_binary()])
def test_empty_lists_without_offsets_are_cast_as_well(arrow: pa.DataType) -> None:
    column = in_a_list(empty_without_offsets(arrow))
    narrow = pa.utf8() if arrow == pa.large_utf8() else pa.binary()
    assert write(column, pa.list_(narrow)).to_pylist() == [[]]


def test_columns_that_lance_takes_are_not_copied() -> None:
    column = pa.array([["a"], [], None])
    assert write(column, column.type).buffers()[1].address == column.buffers()[1].address


# --- names --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    ["col.dots", "b`t", "", "_rowid", "_rowaddr", "_row_created_at_version", "_table", "_distance"],
)
def test_a_new_column_of_an_impossible_name_is_refused(name: str) -> None:
    with pytest.raises(SchemaMismatchError, match=MISMATCH) as caught:
        to_table.check_new_names(["ok", name], KEY)
    assert repr(name) in str(caught.value)


@pytest.mark.parametrize(
    "name", ["userId", "sp ace", "Имя", "select", "c'q", "é", "e\u0301", "n" * 5000, 'q"q']
)
def test_other_names_are_taken(name: str) -> None:
    to_table.check_new_names([name, "other"], KEY)


def test_names_that_differ_only_in_case_are_refused_with_both() -> None:
    with pytest.raises(SchemaMismatchError, match=r"'Name' and 'name'"):
        to_table.check_new_names(["Name", "name"], KEY)
    with pytest.raises(SchemaMismatchError, match=r"'age' and 'AGE'"):
        to_table.check_new_names(["AGE"], KEY, existing=["id", "age"])
    to_table.check_new_names(["Name", "name"], KEY, existing=["Name", "name"])


# --- any value of any type ----------------------------------------------------------------------

LEAVES: dict[str, tuple[pa.DataType, Any]] = {
    "bool": (pa.bool_(), st.booleans()),
    "int32": (pa.int32(), st.integers(-(2**31), 2**31 - 1)),
    "uint64": (pa.uint64(), st.integers(0, 2**64 - 1)),
    "utf8": (pa.utf8(), st.text(max_size=5)),
    "large": (pa.large_utf8(), st.text(max_size=5)),
    "binary": (pa.binary(), st.binary(max_size=5)),
    "float": (pa.float32(), st.floats(width=32, allow_nan=False)),
    "decimal": (pa.decimal128(9, 2), st.decimals(-9999, 9999, places=2)),
}


@st.composite
def columns(draw: st.DrawFn) -> pa.Array:
    """Draw a sliced column of nested lists, vectors, structs and maps over plain values."""
    arrow, value = LEAVES[draw(st.sampled_from(sorted(LEAVES)))]
    for _ in range(draw(st.integers(0, 2))):
        value = st.none() | value
        shape = draw(st.sampled_from(["list", "large_list", "vector", "struct", "map"]))
        if shape == "vector":
            arrow, value = pa.list_(arrow, 2), st.lists(value, min_size=2, max_size=2)
        elif shape == "struct":
            arrow, value = pa.struct([("x", arrow)]), st.fixed_dictionaries({"x": value})
        elif shape == "map":
            arrow = pa.map_(pa.utf8(), arrow)
            value = st.lists(st.tuples(st.text(max_size=2), value), max_size=3)
        else:
            arrow = pa.list_(arrow) if shape == "list" else pa.large_list(arrow)
            value = st.lists(value, max_size=3)
    rows = draw(st.lists(st.none() | value, min_size=1, max_size=8))
    start = draw(st.integers(0, len(rows) - 1))
    return pa.array(rows, arrow).slice(start, draw(st.integers(0, len(rows) - start)))


@pytest.mark.long
@given(columns())
def test_any_column_is_read_and_written_back_as_it_was(column: pa.Array) -> None:
    field = pa.field("c", column.type)
    seen = to_spark.spark_column(column, to_spark.read_field(field))
    seen.validate(full=True)
    assert seen.to_pylist() == column.to_pylist()
    assert cast.can_cast(seen.type, column.type)
    back = write(seen, field)
    assert back.equals(column)
