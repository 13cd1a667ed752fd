"""What a scan aggregates of its batches adds up to what the rows themselves would."""

from __future__ import annotations

import random
from collections.abc import Sequence
from datetime import datetime, timezone

import pyarrow as pa
import pytest

from omnigraph_spark.read.partial_aggregate import PartialAggregate, Reducer

_ENDS = (0, 1, -1, 7, (1 << 31) - 1, -(1 << 31))


def _batch(columns: dict[str, list[object]], *types: pa.DataType) -> pa.RecordBatch:
    fields = [pa.field(name, kind) for name, kind in zip(columns, types, strict=True)]
    return pa.RecordBatch.from_pydict(columns, pa.schema(fields))


def _reduced(batch: pa.RecordBatch, *functions: tuple[str, str]) -> list[dict[str, object]]:
    made = Reducer(PartialAggregate(functions)).reduced(batch)
    assert made.schema == batch.schema
    return list(made.to_pylist())


def _groups(
    rows: Sequence[dict[str, object]], functions: Sequence[tuple[str, str]]
) -> dict[tuple[object, ...], list[object]]:
    """Aggregate rows by all other columns, in plain Python; nulls don't count."""
    gathered: dict[tuple[object, ...], list[list[object]]] = {}
    aggregated = dict(functions)
    for row in rows:
        key = tuple(value for name, value in row.items() if name not in aggregated)
        values = gathered.setdefault(key, [[] for _ in functions])
        for some, (name, _) in zip(values, functions, strict=True):
            if row[name] is not None:
                some.append(row[name])
    by_name = {"sum": sum, "min": min, "max": max}
    return {
        key: [
            by_name[function](some) if some else None  # type: ignore[operator]
            for some, (_, function) in zip(values, functions, strict=True)
        ]
        for key, values in gathered.items()
    }


@pytest.mark.parametrize("seed", range(40))
def test_batches_aggregated_one_by_one_add_up_to_what_their_rows_do(seed: int) -> None:
    dice = random.Random(seed)
    kinds = (pa.string(), pa.int32(), pa.bool_(), pa.timestamp("us", "UTC"), pa.int64())
    moment = datetime(2024, 1, 1, tzinfo=timezone.utc)
    functions = tuple(
        (name, function)
        for name, function in (("n", "sum"), ("d", "min"), ("t", "max"))
        if dice.random() < 0.7
    )
    reducer = Reducer(PartialAggregate(functions))
    rows, reduced = [], []
    for _ in range(5):
        count = dice.randint(1, 60)
        columns: dict[str, list[object]] = {
            "k": [dice.choice((None, "a", "b")) for _ in range(count)],
            "n": [dice.choice((None, *_ENDS)) for _ in range(count)],
            "f": [dice.choice((None, True)) for _ in range(count)],
            "t": [dice.choice((None, moment)) for _ in range(count)],
            "d": [dice.choice((None, *_ENDS)) for _ in range(count)],
        }
        batch = _batch(columns, *kinds)
        rows += batch.to_pylist()
        reduced += reducer.reduced(batch).to_pylist()
    assert _groups(reduced, functions) == _groups(rows, functions), f"seed {seed}: {functions}"
    assert len(reduced) <= len(rows)


def test_without_a_group_a_batch_becomes_one_row() -> None:
    batch = _batch({"x": [1.5, None, 2.0], "y": [3, 1, 2]}, pa.float64(), pa.int16())
    assert _reduced(batch, ("x", "sum"), ("y", "min")) == [{"x": 3.5, "y": 1}]
    nulls = _batch({"x": [None, None]}, pa.float64())
    assert _reduced(nulls, ("x", "sum")) == [{"x": None}]


def test_equal_rows_become_one_where_only_distinct_ones_count() -> None:
    batch = _batch({"x": [1, None, 1, None, 1], "y": ["a"] * 5}, pa.int32(), pa.string())
    assert sorted(_reduced(batch), key=repr) == [{"x": 1, "y": "a"}, {"x": None, "y": "a"}]


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        ([(1 << 31) - 1, 1, 5], pa.int32()),
        ([127, 1, 0], pa.int8()),
        ([(1 << 63) - 1, 1, -1], pa.int64()),
        ([-(1 << 63), -(1 << 63), 0], pa.int64()),
    ],
)
def test_a_sum_that_its_column_cannot_hold_is_left_to_spark(
    values: list[int], kind: pa.DataType
) -> None:
    assert _reduced(_batch({"x": [*values]}, kind), ("x", "sum")) == [{"x": x} for x in values]


def test_columns_are_told_apart_by_place_whatever_their_names() -> None:
    batch = _batch({"x": [1, 2, 3], "x_sum": [9, 9, 9], "0_sum": [7, 7, 7]}, *[pa.int64()] * 3)
    assert _reduced(batch, ("x", "sum")) == [{"x": 6, "x_sum": 9, "0_sum": 7}]


def test_a_scan_of_rows_that_all_differ_stops_aggregating() -> None:
    reducer = Reducer(PartialAggregate((("x", "sum"),)))
    many = _batch({"k": ["a", "b", "c"], "x": [1, 2, 3]}, pa.string(), pa.int64())
    few = _batch({"k": ["a", "a", "a"], "x": [1, 2, 3]}, pa.string(), pa.int64())
    assert reducer.reduced(few).num_rows == 1
    assert reducer.reduced(many) is many
    assert reducer.reduced(few) is few


def test_a_type_that_arrow_cannot_aggregate_is_left_to_spark_for_the_whole_scan(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tried = []

    def cannot(*_: object) -> None:
        tried.append(1)
        raise pa.ArrowNotImplementedError("no kernel")

    monkeypatch.setattr("omnigraph_spark.read.partial_aggregate._aggregated", cannot)
    reducer = Reducer(PartialAggregate((("x", "max"),)))
    batch = _batch({"x": [1, 2, 3]}, pa.int64())
    assert all(reducer.reduced(batch) is batch for _ in range(3))
    assert len(tried) == 1
