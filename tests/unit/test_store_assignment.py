"""Values get into columns of other types as Spark's SQL stores them, or exactly, as it is asked."""

from __future__ import annotations

from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from omnigraph_spark.arrow.cast import ansi_leaf, can_cast, can_store, convert, exact_leaf
from omnigraph_spark.arrow.to_table import check_columns, to_table_batch
from omnigraph_spark.errors import OptionError, SchemaMismatchError
from omnigraph_spark.options import WriteOptions, parse

UTC = pa.timestamp("us", "UTC")
_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
NAN, INF = float("nan"), float("inf")


def _at(micros: int) -> datetime:
    return _EPOCH + timedelta(microseconds=micros)


def _single(value: float) -> float:
    return float(pa.array([value], pa.float64()).cast(pa.float32(), safe=False)[0].as_py())


STORED = [
    # What is given, its type, the column's type, and what Spark's SQL stores.
    ([0.1, 1e-50, NAN, INF, -0.0, None], pa.float64(), pa.float32(),
     [_single(0.1), 0.0, NAN, INF, -0.0, None]),
    ([16_777_217, 2**53 + 1, None], pa.int64(), pa.float32(),
     [16_777_216.0, float(2**53), None]),
    ([2**53 + 1], pa.int64(), pa.float64(), [float(2**53)]),
    ([2.9, -2.9, 2147483647.9, -0.5], pa.float64(), pa.int32(), [2, -2, 2147483647, 0]),
    ([1.9], pa.float32(), pa.int64(), [1]),
    ([Decimal("2.99"), Decimal("-2.99")], pa.decimal128(10, 2), pa.int32(), [2, -2]),
    ([Decimal("1.005"), Decimal("-1.005"), Decimal("0.004")], pa.decimal128(10, 3),
     pa.decimal128(5, 2), [Decimal("1.01"), Decimal("-1.01"), Decimal("0.00")]),
    ([Decimal("0.1"), Decimal("123456789012345678.9")], pa.decimal128(20, 1), pa.float64(),
     [0.1, 123456789012345678.9]),
    ([2.675, 0.125, 1e-300, -2.675, None], pa.float64(), pa.decimal128(10, 2),
     [Decimal("2.68"), Decimal("0.13"), Decimal("0.00"), Decimal("-2.68"), None]),
    ([5, None], pa.int32(), pa.decimal128(10, 2), [Decimal("5.00"), None]),
    ([_at(1_234_567), _at(-1), _at(-1_000), None], UTC, pa.timestamp("ms", "UTC"),
     [_at(1_234_000), _at(-1_000), _at(-1_000), None]),
    ([5, -7, None], pa.int64(), pa.utf8(), ["5", "-7", None]),
    ([True, False], pa.bool_(), pa.utf8(), ["true", "false"]),
    ([date(2026, 1, 5)], pa.date32(), pa.utf8(), ["2026-01-05"]),
    ([[0.1, 0.2], None], pa.list_(pa.float64()), pa.list_(pa.float32(), 2),
     [[_single(0.1), _single(0.2)], None]),
    ([{"a": 0.1}], pa.struct([("a", pa.float64())]), pa.struct([("a", pa.float32())]),
     [{"a": _single(0.1)}]),
    ([[("k", 1.9)]], pa.map_(pa.utf8(), pa.float64()), pa.map_(pa.utf8(), pa.int32()),
     [[("k", 1)]]),
]  # fmt: skip


@pytest.mark.parametrize(("given", "source", "target", "stored"), STORED, ids=repr)
def test_values_are_stored_as_sparks_sql_stores_them(
    given: list[Any], source: pa.DataType, target: pa.DataType, stored: list[Any]
) -> None:
    array = pa.array(given, source)
    assert can_store(source, target)
    for one in (array, pa.concat_arrays([array, array]).slice(len(array))):
        found = convert(one, target, ansi_leaf)
        assert found.type == target
        assert repr(found.to_pylist()) == repr(pa.array(stored, target).to_pylist())


def test_a_time_of_a_datetime_loses_what_is_below_its_milliseconds() -> None:
    found = convert(pa.array([_at(1_234_567), _at(-1)], UTC), pa.date64(), ansi_leaf)
    assert found.type == pa.date64()
    assert found.view(pa.int64()).to_pylist() == [1234, -1]


@pytest.mark.parametrize(
    ("value", "source", "target"),
    [
        (2**31, pa.int64(), pa.int32()),
        (-1, pa.int32(), pa.uint32()),
        (2147483648.0, pa.float64(), pa.int32()),
        (2.0**63, pa.float64(), pa.int64()),
        (NAN, pa.float64(), pa.int32()),
        (INF, pa.float64(), pa.decimal128(10, 2)),
        (NAN, pa.float64(), pa.decimal128(10, 2)),
        (1e300, pa.float64(), pa.float32()),
        (1e20, pa.float64(), pa.decimal128(10, 2)),
        (Decimal("999.995"), pa.decimal128(10, 3), pa.decimal128(5, 2)),
        (Decimal("2147483648.5"), pa.decimal128(20, 1), pa.int32()),
    ],
)
def test_what_overflows_is_an_error(value: Any, source: pa.DataType, target: pa.DataType) -> None:
    with pytest.raises(pa.ArrowInvalid):
        convert(pa.array([None, value], source), target, ansi_leaf)


@pytest.mark.parametrize(
    ("source", "target"),
    [(pa.utf8(), pa.int32()), (pa.bool_(), pa.int32()), (pa.float64(), pa.utf8()),
     (UTC, pa.timestamp("us")), (pa.date32(), UTC), (UTC, pa.utf8()), (pa.binary(), pa.utf8()),
     (pa.list_(pa.utf8()), pa.list_(pa.int32()))],
)  # fmt: skip
def test_what_needs_the_session_or_may_fail_is_left_to_a_cast_of_sparks(
    source: pa.DataType, target: pa.DataType
) -> None:
    assert not can_store(source, target)


@pytest.mark.parametrize(("given", "source", "target", "stored"), STORED[:4], ids=repr)
def test_exact_assignment_refuses_every_loss(
    given: list[Any], source: pa.DataType, target: pa.DataType, stored: list[Any]
) -> None:
    refused = not can_cast(source, target)
    if not refused:
        with pytest.raises(pa.ArrowInvalid):
            convert(pa.array(given, source), target, exact_leaf)


def test_the_refusals_say_which_assignment_was_asked_for() -> None:
    schema = pa.schema([pa.field("id", pa.utf8(), False), pa.field("n", pa.int32())])
    batch = pa.RecordBatch.from_pylist([{"id": "a", "n": 1.5}])
    assert to_table_batch(batch, schema, "node:A", exact=False).column("n").to_pylist() == [1]
    check_columns(batch.schema, schema, "node:A")
    with pytest.raises(SchemaMismatchError, match="another type"):
        check_columns(batch.schema, schema, "node:A", exact=True)
    wide = pa.RecordBatch.from_pylist([{"id": "a", "n": 2.0**40}])
    with pytest.raises(SchemaMismatchError, match=r"doesn't fit column n of node:A · .*1.0995"):
        to_table_batch(wide, schema, "node:A", exact=False)


def test_the_option_takes_ansi_and_exact_in_any_case() -> None:
    for text, exact in (("ansi", False), ("EXACT", True), (None, False)):
        given = {"path": "/g"} if text is None else {"path": "/g", "storeAssignment": text}
        assert WriteOptions.of(parse(given), False).exact is exact
    with pytest.raises(OptionError, match="ansi or exact"):
        WriteOptions.of(parse({"path": "/g", "storeAssignment": "legacy"}), False)
