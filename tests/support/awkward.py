"""A table of awkward values in every type, and Spark's rules for filters on them, in plain Python.

The rules are those of Spark SQL: three-valued logic, NaN equal to itself and above all numbers,
-0.0 equal to 0.0, text ordered by its bytes. `tests/spark/test_filters_spark.py` holds them against
Spark itself.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import pyarrow as pa

NAN, INF = math.nan, math.inf
_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)


def instant(micros: int) -> datetime:
    return _EPOCH + timedelta(microseconds=micros)


def local(micros: int) -> datetime:
    return instant(micros).replace(tzinfo=None)


_TEXTS = [
    "", "a", "A", "ab", "a\\b", "O'Brien", "x' OR 1=1 --", "a\nb", "a%b", "a_b", "é", "e\u0301",
    "😀", "\uffff", "zz", '"', "`", "NULL", " a", "a ",
]  # fmt: skip
_FLOATS = [0.0, -0.0, 1.0, -1.5, 2.0, NAN, INF, -INF, 0.5, 1.5]
_MICROS = [0, 1, -1, -500_000, 1_704_096_000_000_000, -62_135_596_800_000_000, 999, 1_000]


@dataclass(frozen=True)
class Column:
    """A column: its Arrow type, its values and filter literals as Spark sees them."""

    name: str
    arrow: pa.DataType
    values: list[Any]
    literals: list[Any]
    to_arrow: Callable[[list[Any], pa.DataType], pa.Array] = lambda values, arrow: pa.array(
        values, arrow
    )
    pushed: bool = True


def _numbers(unit: int) -> Callable[[list[Any], pa.DataType], pa.Array]:
    """Return how points in time are stored as numbers of units of so many microseconds."""

    def convert(values: list[Any], arrow: pa.DataType) -> pa.Array:
        zero = _EPOCH if any(v is not None and v.tzinfo for v in values) else local(0)
        numbers = [
            None if v is None else (v - zero) // timedelta(microseconds=unit) for v in values
        ]
        return pa.array(numbers, pa.int64()).view(arrow)

    return convert


def _integers(arrow: pa.DataType, low: int, high: int, wide: bool = False) -> Column:
    own = [low, low + 1, 0, 1, 2, 7, high - 1, high]
    beyond = [low - 1, high + 1]
    as_spark: Callable[[int], Any] = Decimal if wide else int
    return Column(
        str(arrow),
        arrow,
        [as_spark(v) for v in own],
        [as_spark(v) for v in own + beyond],
        lambda values, kind: pa.array([None if v is None else int(v) for v in values], kind),
    )


def _decimals(arrow: pa.DataType, texts: Iterable[str], more: Iterable[str]) -> Column:
    own = [Decimal(text) for text in texts]
    return Column(f"p{arrow.precision}", arrow, own, own + [Decimal(text) for text in more])


_SECONDS = [m * 1_000_000 for m in (0, 1, -1, 1_704_096_000, -62_135_596_800)]
_MILLIS = [m * 1_000 for m in (0, 1, -1, -500, 1_704_096_000_123, -62_135_596_800_000)]
COLUMNS = [
    Column("text", pa.utf8(), _TEXTS, [*_TEXTS, "zzz", "O''Brien"]),
    Column("large", pa.large_utf8(), _TEXTS, _TEXTS),
    Column("flag", pa.bool_(), [True, False], [True, False]),
    _integers(pa.int8(), -(2**7), 2**7 - 1),
    _integers(pa.int16(), -(2**15), 2**15 - 1),
    _integers(pa.int32(), -(2**31), 2**31 - 1),
    _integers(pa.int64(), -(2**63), 2**63 - 1),
    _integers(pa.uint8(), 0, 2**8 - 1),
    _integers(pa.uint16(), 0, 2**16 - 1),
    _integers(pa.uint32(), 0, 2**32 - 1),
    _integers(pa.uint64(), 0, 2**64 - 1, wide=True),
    Column("f32", pa.float32(), _FLOATS, [*_FLOATS, 3.25]),
    Column("f64", pa.float64(), [*_FLOATS, 0.1, 1e308], [*_FLOATS, 0.1, 1e308, 1e-320]),
    _decimals(pa.decimal128(10, 2), ["1.99", "2.00", "2.01", "-1.00", "0"], ["2.5", "99999999.99"]),
    _decimals(
        pa.decimal128(38, 18),
        ["99999999999999999999.999999999999999999", "0", "1", "-1.5", "1E-18"],
        ["2"],
    ),
    Column("day", pa.date32(), [date(1, 1, 1), date(1582, 10, 10), date(1899, 12, 31),
           date(1970, 1, 1), date(9999, 12, 31)],
           [date(1, 1, 1), date(1582, 10, 15), date(1970, 1, 1), date(9999, 12, 31)]),
    Column("ts_us", pa.timestamp("us", "UTC"), [*map(instant, _MICROS)], [*map(instant, _MICROS)],
           _numbers(1)),
    Column("ts_zone", pa.timestamp("us", "+05:30"), [*map(instant, _MICROS)],
           [*map(instant, _MICROS)], _numbers(1)),
    Column("ts_ms", pa.timestamp("ms", "UTC"), [*map(instant, _MILLIS)],
           [*map(instant, _MILLIS + _MICROS)], _numbers(1_000)),
    Column("ts_s", pa.timestamp("s", "UTC"), [*map(instant, _SECONDS)],
           [*map(instant, _SECONDS + _MICROS)], _numbers(1_000_000)),
    Column("ntz", pa.timestamp("us"), [*map(local, _MICROS)], [*map(local, _MICROS)], _numbers(1)),
    Column("date64", pa.date64(), [*map(instant, _MILLIS)], [*map(instant, _MILLIS + _MICROS)],
           _numbers(1_000)),
]  # fmt: skip
BY_NAME = {column.name: column for column in COLUMNS}
ROWS = 42


def spark_values(column: Column) -> list[Any]:
    """Return the column's values in the table's rows, every third of them null or repeated."""
    pool = [*column.values, None]
    return [pool[(row * 7 + row // len(pool)) % len(pool)] for row in range(ROWS)]


def table() -> pa.Table:
    """Return the table: `id` is the row's number as text."""
    arrays = [pa.array([str(row) for row in range(ROWS)], pa.utf8())]
    arrays += [column.to_arrow(spark_values(column), column.arrow) for column in COLUMNS]
    return pa.table(arrays, names=["id", *BY_NAME])


# --- Spark's rules -------------------------------------------------------------------------------


def _key(value: Any) -> Any:
    """Return a value as something that Python orders and equates as Spark does."""
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, float):
        return (1, 0.0) if math.isnan(value) else (0, value + 0.0)
    return value


_ORDER: dict[str, Callable[[Any, Any], bool]] = {
    "EqualTo": lambda a, b: a == b,
    "GreaterThan": lambda a, b: a > b,
    "GreaterThanOrEqual": lambda a, b: a >= b,
    "LessThan": lambda a, b: a < b,
    "LessThanOrEqual": lambda a, b: a <= b,
    "StringStartsWith": lambda a, b: a.startswith(b),
    "StringEndsWith": lambda a, b: a.endswith(b),
    "StringContains": lambda a, b: b in a,
}


def holds(one: Any, row: dict[str, Any]) -> bool | None:
    """Return what Spark makes of a filter on a row: true, false or null."""
    name = type(one).__name__
    if name == "Not":
        child = holds(one.child, row)
        return None if child is None else not child
    value = row.get(one.attribute[0])
    if name in ("IsNull", "IsNotNull"):
        return (value is None) == (name == "IsNull")
    if name == "EqualNullSafe":
        if value is None or one.value is None:
            return value is None and one.value is None
        return bool(_key(value) == _key(one.value))
    if value is None:
        return None
    if name == "In":
        if any(v is not None and _key(v) == _key(value) for v in one.value):
            return True
        return None if None in one.value else False
    return None if one.value is None else _ORDER[name](_key(value), _key(one.value))
