"""With exact assignment every Spark type is kept in every stored type, or refused by name.

The oracle is written again from the design, in plain Python, value by value.
"""

from __future__ import annotations

import datetime as dt
import struct
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from omnigraph_spark.arrow.to_table import check_columns, to_table_batch
from omnigraph_spark.errors import SchemaMismatchError

UTC = dt.timezone.utc
TABLE = "node:T"
REFUSED = object()
NEVER = object()
"""The types never go together: refused on the driver, before a task runs."""

_WHOLE = dt.datetime(2024, 2, 29, 12, 30, 15)
_MILLI = _WHOLE.replace(microsecond=123_000)
_MICRO = _WHOLE.replace(microsecond=123_456)
_BEFORE_1970 = dt.datetime(1969, 12, 31, 23, 59, 59, 999_000)
_TIMES = [_WHOLE, _MILLI, _MICRO, _BEFORE_1970]

SOURCES: dict[str, tuple[pa.DataType, list[Any]]] = {
    "BOOLEAN": (pa.bool_(), [True, False]),
    "TINYINT": (pa.int8(), [0, -128, 127]),
    "SMALLINT": (pa.int16(), [255, 256, -32768, 32767]),
    "INT": (pa.int32(), [7, 65_536, 16_777_217, -(2**31), 2**31 - 1]),
    "BIGINT": (pa.int64(), [7, 2**60, 2**31, 2**32, 2**53 + 1, -(2**63), 2**63 - 1]),
    "FLOAT": (pa.float32(), [1.5, -0.0, 2.0**100, float("inf")]),
    "DOUBLE": (pa.float64(), [1.5, 0.1, 1e300, 2.0**-1074]),
    "DECIMAL(20,0)": (pa.decimal128(20, 0), [Decimal(7), Decimal(2**64 - 1), Decimal(-1)]),
    "DECIMAL(10,2)": (pa.decimal128(10, 2), [Decimal("7.00"), Decimal("7.25"), Decimal("-0.01")]),
    "STRING": (pa.utf8(), ["", "ä", "7"]),
    "BINARY": (pa.binary(), [b"", b"7"]),
    "DATE": (pa.date32(), [dt.date(2024, 2, 29), dt.date(1, 1, 1)]),
    "TIMESTAMP": (pa.timestamp("us", "UTC"), [t.replace(tzinfo=UTC) for t in _TIMES]),
    "TIMESTAMP_NTZ": (pa.timestamp("us"), _TIMES),
    "INTERVAL": (pa.duration("us"), [dt.timedelta(seconds=1), dt.timedelta(microseconds=1)]),
}
TARGETS: dict[str, pa.DataType] = {
    "bool": pa.bool_(),
    "int8": pa.int8(),
    "int16": pa.int16(),
    "int32": pa.int32(),
    "int64": pa.int64(),
    "uint8": pa.uint8(),
    "uint16": pa.uint16(),
    "uint32": pa.uint32(),
    "uint64": pa.uint64(),
    "float16": pa.float16(),
    "float32": pa.float32(),
    "float64": pa.float64(),
    "decimal(4,1)": pa.decimal128(4, 1),
    "decimal(38,6)": pa.decimal128(38, 6),
    "utf8": pa.utf8(),
    "large_utf8": pa.large_utf8(),
    "binary": pa.binary(),
    "large_binary": pa.large_binary(),
    "date32": pa.date32(),
    "date64": pa.date64(),
    "timestamp[s, UTC]": pa.timestamp("s", "UTC"),
    "timestamp[ms, zone]": pa.timestamp("ms", "Europe/Berlin"),
    "timestamp[us, UTC]": pa.timestamp("us", "UTC"),
    "timestamp[ns, UTC]": pa.timestamp("ns", "UTC"),
    "timestamp[ms]": pa.timestamp("ms"),
    "timestamp[us]": pa.timestamp("us"),
    "duration[s]": pa.duration("s"),
    "duration[us]": pa.duration("us"),
}
_GROUPS = {
    "whole": ("TINYINT", "SMALLINT", "INT", "BIGINT"),
    "float": ("FLOAT", "DOUBLE"),
    "decimal": ("DECIMAL(20,0)", "DECIMAL(10,2)"),
}
_FLOATS = {"float16": "e", "float32": "f", "float64": "d"}
_UNITS = {"s": 1_000_000, "ms": 1_000, "us": 1, "ns": 1}


def _group(source: str) -> str:
    return next((group for group, names in _GROUPS.items() if source in names), source)


def expected(source: str, value: Any, target: str) -> Any:
    """Return the value that is to be stored, REFUSED, or NEVER."""
    group = _group(source)
    arrow = TARGETS[target]
    if target.startswith(("int", "uint")):
        if group not in ("whole", "decimal"):
            return NEVER
        signed = target.startswith("int")
        top = 2 ** (arrow.bit_width - signed)
        fits = (-top if signed else 0) <= value < top and value == int(value)
        return int(value) if fits else REFUSED
    if target in _FLOATS:
        return _float(value, _FLOATS[target]) if group in ("whole", "float") else NEVER
    if target.startswith("decimal"):
        if group not in ("whole", "decimal"):
            return NEVER
        scaled = Decimal(value).scaleb(arrow.scale)
        fits = scaled == scaled.to_integral_value() and abs(scaled) < 10**arrow.precision
        return Decimal(value) if fits else REFUSED
    same = {
        "bool": "BOOLEAN",
        "utf8": "STRING",
        "large_utf8": "STRING",
        "binary": "BINARY",
        "large_binary": "BINARY",
        "date32": "DATE",
        "date64": "TIMESTAMP",
    }
    if target in same and target != "date64":
        return value if source == same[target] else NEVER
    if target.startswith("duration"):
        if source != "INTERVAL":
            return NEVER
        micros = value // dt.timedelta(microseconds=1)
        return value if micros % _UNITS[arrow.unit] == 0 else REFUSED
    zoned = target == "date64" or arrow.tz is not None
    if source != ("TIMESTAMP" if zoned else "TIMESTAMP_NTZ"):
        return NEVER
    unit = "ms" if target == "date64" else arrow.unit
    return value if value.microsecond % _UNITS[unit] == 0 else REFUSED


def _float(value: Any, code: str) -> Any:
    try:
        found = struct.unpack(code, struct.pack(code, float(value)))[0]
    except OverflowError:
        return REFUSED
    return found if found == value else REFUSED


def stored(array: pa.Array) -> Any:
    """Return the one value of a stored column; an instant as it is in UTC."""
    if pa.types.is_date64(array.type):
        array = array.cast(pa.timestamp("us", "UTC"))
    elif pa.types.is_timestamp(array.type):
        array = array.cast(pa.timestamp("us", "UTC" if array.type.tz else None))
    return array[0].as_py()


def pairs() -> list[Any]:
    return [
        pytest.param(source, target, id=f"{source}-{target}")
        for source in SOURCES
        for target in TARGETS
    ]


def _schema(arrow: pa.DataType) -> pa.Schema:
    return pa.schema([pa.field("id", pa.utf8(), nullable=False), pa.field("c", arrow)])


def written(column: pa.Array, target: pa.DataType) -> pa.Array:
    ids = pa.array([str(number) for number in range(len(column))])
    batch = pa.RecordBatch.from_arrays([ids, column], names=["id", "c"])
    made = to_table_batch(batch, _schema(target), TABLE)
    assert made.schema.field("c").type == target
    return made.column("c")


@pytest.mark.parametrize(("source", "target"), pairs())
def test_a_value_is_stored_as_it_is_or_refused_by_name(source: str, target: str) -> None:
    arrow, values = SOURCES[source]
    for value in values:
        wanted = expected(source, value, target)
        column = pa.array([value], arrow)
        if wanted is NEVER:
            with pytest.raises(SchemaMismatchError, match=r"SCHEMA_MISMATCH.*Column c of node:T"):
                check_columns(_schema(arrow), _schema(TARGETS[target]), TABLE, exact=True)
        elif wanted is REFUSED:
            check_columns(_schema(arrow), _schema(TARGETS[target]), TABLE, exact=True)
            with pytest.raises(SchemaMismatchError, match=r"SCHEMA_MISMATCH.*c of node:T") as told:
                written(column, TARGETS[target])
            shown = str(column[0].as_py()).partition("+")[0].rstrip("0")
            if not isinstance(value, (float, dt.timedelta)):
                assert shown[:10] in str(told.value), told.value
        else:
            assert stored(written(column, TARGETS[target])) == wanted
    nothing = pa.nulls(2, arrow)
    if expected(source, values[0], target) is not NEVER:
        assert written(nothing, TARGETS[target]).null_count == 2


@pytest.mark.parametrize("element", [pa.float32(), pa.float64(), pa.int32(), pa.int64()], ids=str)
def test_arrays_of_numbers_become_vectors_of_the_right_width_where_nothing_is_lost(
    element: pa.DataType,
) -> None:
    vector = pa.list_(pa.float32(), 2)
    column = pa.array([[1, 2], None, [3, -4]], pa.list_(element))
    assert written(column, vector).to_pylist() == [[1.0, 2.0], None, [3.0, -4.0]]
    with pytest.raises(SchemaMismatchError, match=r"SCHEMA_MISMATCH.*width 2 expected, width 3"):
        written(pa.array([[1, 2], [1, 2, 3]], pa.list_(element)), vector)
    inexact = {pa.float64(): 0.1, pa.int32(): 16_777_217, pa.int64(): 2**53 + 1}.get(element)
    if inexact is not None:
        with pytest.raises(SchemaMismatchError, match=r"SCHEMA_MISMATCH.*exactly"):
            written(pa.array([[1, 2], [inexact, 0]], pa.list_(element)), vector)


@pytest.mark.parametrize(
    ("source", "target", "values"),
    [
        (pa.int16(), pa.int32(), [[1, None], [], None]),
        (pa.int32(), pa.int64(), [[2**31 - 1], None]),
        (pa.float32(), pa.float64(), [[1.5, None]]),
        (pa.float64(), pa.float32(), [[1.5, -2.25]]),
        (pa.timestamp("us", "UTC"), pa.timestamp("ms", "UTC"), [[_MILLI.replace(tzinfo=UTC)]]),
    ],
    ids=str,
)
def test_elements_of_arrays_are_cast_as_columns_are(
    source: pa.DataType, target: pa.DataType, values: list[Any]
) -> None:
    assert written(pa.array(values, pa.list_(source)), pa.list_(target)).to_pylist() == values
