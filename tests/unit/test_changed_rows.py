"""Which rows differ: every type, null, NaN, zeros, doubled ids, against a comparison in Python."""

from __future__ import annotations

import random
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from omnigraph_spark.read.changed_rows import changed_rows

NAN = float("nan")
Told = list[tuple[str, str, Any]]


def rows(kind: pa.DataType, *values: tuple[str, Any]) -> pa.Table:
    ids = pa.array([one for one, _ in values], pa.utf8())
    return pa.table({"id": ids, "v": pa.array([value for _, value in values], kind)})


def told(before: pa.Table, after: pa.Table) -> Told:
    found = changed_rows(before, after, ["v"])
    rows = [(kind, row["id"], str(row["v"])) for kind, table in found for row in table.to_pylist()]
    return sorted(rows)


NTZ, UTC = datetime(2024, 1, 2, 3, 4, 5, 6), datetime(2024, 1, 2, tzinfo=timezone.utc)
TYPES: list[tuple[pa.DataType, list[Any]]] = [
    (pa.bool_(), [True, False]),
    (pa.int32(), [1, 2]),
    (pa.float32(), [1.5, 0.0, float("inf"), NAN]),
    (pa.float64(), [1.5, 0.0, float("-inf"), NAN]),
    (pa.decimal128(20, 2), [Decimal("1.10"), Decimal("1.11")]),
    (pa.utf8(), ["", "a", "á"]),
    (pa.binary(), [b"", b"\x00\x01", b"\x00\x02"]),
    (pa.date32(), [date(2024, 1, 1), date(2024, 1, 2)]),
    (pa.timestamp("us"), [NTZ, NTZ + timedelta(microseconds=1)]),
    (pa.timestamp("us", "UTC"), [UTC, UTC + timedelta(microseconds=1)]),
    (pa.duration("us"), [timedelta(1), timedelta(2)]),
    (pa.list_(pa.float32()), [[], [1.0], [NAN], [None], [1.0, 2.0], [2.0, 1.0]]),
    (pa.list_(pa.list_(pa.utf8())), [[], [[]], [["a"], []], [[], ["a"]], [None]]),
    (
        pa.struct([("a", pa.int64()), ("b", pa.list_(pa.float64()))]),
        [{"a": 1, "b": [NAN]}, {"a": 1, "b": []}, {"a": None, "b": None}],
    ),
    (pa.map_(pa.utf8(), pa.int64()), [[("a", 1), ("b", 2)], [("a", 2)], []]),
]


@pytest.mark.parametrize(("kind", "values"), TYPES, ids=[str(kind) for kind, _ in TYPES])
def test_of_every_type_only_other_values_are_changes(kind: pa.DataType, values: list[Any]) -> None:
    every = [*values, None]
    pairs = [(a, b) for a in range(len(every)) for b in range(len(every))]
    before = rows(kind, *((f"{a}-{b}", every[a]) for a, b in pairs))
    after = rows(kind, *((f"{a}-{b}", every[b]) for a, b in reversed(pairs)))
    found = told(before, after)
    changed = {one for kind, one, _ in found}
    assert changed == {f"{a}-{b}" for a, b in pairs if a != b}
    plain = rows(kind, *((str(n), value) for n, value in enumerate(every)))["v"].to_pylist()
    assert [row for row in found if row[1] == "0-1"] == [
        ("update_postimage", "0-1", str(plain[1])),
        ("update_preimage", "0-1", str(plain[0])),
    ]


def test_zeros_of_either_sign_are_changes_and_maps_in_another_order_are_none() -> None:
    assert told(rows(pa.float64(), ("a", 0.0)), rows(pa.float64(), ("a", -0.0))) == [
        ("update_postimage", "a", "-0.0"),
        ("update_preimage", "a", "0.0"),
    ]
    kind = pa.map_(pa.utf8(), pa.int64())
    one, two = [("a", 1), ("b", 2)], [("b", 2), ("a", 1)]
    assert told(rows(kind, ("x", one)), rows(kind, ("x", two))) == []


def test_a_side_without_rows_is_all_inserts_or_all_deletes() -> None:
    nothing, some = rows(pa.int64()), rows(pa.int64(), ("a", 1), ("a", 1), ("b", 2))
    assert told(nothing, some) == [("insert", "a", "1"), ("insert", "a", "1"), ("insert", "b", "2")]
    assert told(some, nothing) == [("delete", "a", "1"), ("delete", "a", "1"), ("delete", "b", "2")]
    assert told(nothing, nothing) == []


def test_doubled_ids_neither_multiply_nor_hide_a_change() -> None:
    before = rows(pa.float64(), ("a", 1.0), ("a", 1.0), ("b", NAN), ("c", 3.0), ("d", 4.0))
    after = rows(pa.float64(), ("a", 1.0), ("b", NAN), ("b", NAN), ("c", 3.0), ("c", 9.0))
    assert told(before, after) == [
        ("delete", "a", "1.0"),
        ("delete", "d", "4.0"),
        ("insert", "b", "nan"),
        ("insert", "c", "9.0"),
    ]
    before = rows(pa.float64(), ("a", 1.0), ("a", 2.0), ("z", 0.0))
    after = rows(pa.float64(), ("a", 2.0), ("a", 3.0), ("z", -0.0))
    assert told(before, after) == [
        ("update_postimage", "a", "3.0"),
        ("update_postimage", "z", "-0.0"),
        ("update_preimage", "a", "1.0"),
        ("update_preimage", "z", "0.0"),
    ]


def test_random_tables_differ_as_python_says() -> None:
    chance = random.Random(7)
    for _ in range(200):
        sides = [
            [(f"i{chance.randrange(12)}", chance.randrange(2)) for _ in range(chance.randrange(14))]
            for _ in range(2)
        ]
        before, after = ([*side] for side in sides)
        for row in sides[0]:
            if row in after:
                after.remove(row)
                before.remove(row)
        gone, came = {i for i, _ in before}, {i for i, _ in after}
        expected = [
            ("update_preimage" if i in came else "delete", i, str(v)) for i, v in before
        ] + [("update_postimage" if i in gone else "insert", i, str(v)) for i, v in after]
        assert told(*(rows(pa.int64(), *side) for side in sides)) == sorted(expected)
