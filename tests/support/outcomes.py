"""Random frames for one table of a small graph: types, nulls, columns, order, at most one mistake.

A frame has one mistake at most, so that every way of writing it has the same reason to refuse it.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

NODE, KEYED, EDGE, KEYED_EDGE = "node:P", "node:K", "edge:E", "edge:B"
ENDPOINTS = "E: P -> P, B: P -> P"
_T = datetime(2026, 1, 2, 3, 4, 5, 123456, tzinfo=timezone.utc)
_NAN = float("nan")


@dataclass(frozen=True)
class Property:
    """A property: its type in the graph, and the values of frames by the type that a frame has.

    `fit` may be stored, `bad` values not though their type may, and `wrong` types may not at all.
    """

    stored: str
    engine: str | None
    fit: Mapping[str, Sequence[Any]]
    bad: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    wrong: Mapping[str, Sequence[Any]] = field(default_factory=dict)

    @property
    def nullable(self) -> bool:
        """Whether the graph's property may be null."""
        return self.engine is None or self.engine.endswith("?")


PROPERTIES: dict[str, Property] = {
    "n": Property(
        "INT", None,
        {"INT": [0, -3, 2**31 - 1], "BIGINT": [5, -(2**31)], "TINYINT": [7], "SMALLINT": [-300],
         "DOUBLE": [7.9, -7.9, -0.0], "FLOAT": [2.5], "DECIMAL(10,2)": [Decimal("1.50")]},
        {"BIGINT": [2**31], "DOUBLE": [_NAN, 1e10], "DECIMAL(20,0)": [Decimal(10**15)]},
        {"STRING": ["5"], "BOOLEAN": [True], "DATE": [date(2026, 1, 1)], "ARRAY<INT>": [[1]]},
    ),
    "w": Property(
        "BIGINT", None,
        {"BIGINT": [2**63 - 1, -1], "INT": [5], "DOUBLE": [1e15, 0.5],
         "DECIMAL(20,0)": [Decimal(2**62)]},
        {"DOUBLE": [1e19, _NAN], "DECIMAL(20,0)": [Decimal(2**63)]},
        {"STRING": ["x"], "TIMESTAMP": [_T]},
    ),
    "f": Property(
        "FLOAT", None,
        {"FLOAT": [0.5, _NAN, -0.0], "DOUBLE": [0.1, float("inf")], "INT": [16777217],
         "DECIMAL(10,2)": [Decimal("0.10")]},
        {"DOUBLE": [1e300]},
        {"STRING": ["1.5"], "BOOLEAN": [False]},
    ),
    "d": Property(
        "DOUBLE", None,
        {"DOUBLE": [0.1, _NAN, -0.0, 1e300], "FLOAT": [0.1], "BIGINT": [2**53 + 1],
         "DECIMAL(38,18)": [Decimal("0.1")]},
        {},
        {"STRING": ["1.5"], "DATE": [date(2026, 1, 1)]},
    ),
    "m": Property(
        "DECIMAL(10,2)", None,
        {"DECIMAL(10,2)": [Decimal("99999999.99")], "DECIMAL(12,4)": [Decimal("1.0050")],
         "DOUBLE": [2.675, 0.0], "INT": [-7]},
        {"BIGINT": [10**9], "DECIMAL(12,1)": [Decimal("1e10")], "DOUBLE": [_NAN]},
        {"STRING": ["1"], "BINARY": [b"1"]},
    ),
    "b": Property("BOOLEAN", None, {"BOOLEAN": [True, False]}, {}, {"INT": [1], "STRING": ["true"]}),
    "s": Property(
        "STRING", None,
        {"STRING": ["", "é😀", "a'b\n"], "INT": [5], "BOOLEAN": [True], "DATE": [date(1999, 1, 31)]},
        {}, {"ARRAY<STRING>": [["x"]]},
    ),
    "day": Property(
        "DATE", None, {"DATE": [date(1582, 10, 4), date(2026, 1, 5), date(9999, 12, 31)]}, {},
        {"STRING": ["2026-01-01"], "INT": [1]},
    ),
    "at": Property(
        "TIMESTAMP", "DateTime?", {"TIMESTAMP": [_T, _T - timedelta(days=40000)]}, {},
        {"BIGINT": [1], "STRING": ["2026-01-01"]},
    ),
    "t": Property("TIMESTAMP", None, {"TIMESTAMP": [_T]}, {}, {"DOUBLE": [1.5]}),
    "z": Property("TIMESTAMP_NTZ", None, {"TIMESTAMP_NTZ": [_T.replace(tzinfo=None)]}, {},
                  {"INT": [1]}),
    "v": Property(
        "ARRAY<FLOAT>", "Vector(2)?",
        {"ARRAY<FLOAT>": [[0.5, -0.0]], "ARRAY<DOUBLE>": [[0.1, 0.2]], "ARRAY<INT>": [[1, 2]]},
        {"ARRAY<FLOAT>": [[1.0], [1.0, 2.0, 3.0], [1.0, None]], "ARRAY<DOUBLE>": [[]]},
        {"STRING": ["[1, 2]"], "FLOAT": [1.0]},
    ),
    "l": Property(
        "ARRAY<STRING>", None, {"ARRAY<STRING>": [[], ["a", None], ["é"]], "ARRAY<INT>": [[1]]}, {},
        {"STRING": ["a"], "MAP<STRING,STRING>": [{"a": "b"}]},
    ),
    "x": Property("BINARY", None, {"BINARY": [b"\x00\xff", b"y" * 300]}, {"BINARY": [b""]},
                  {"INT": [1]}),
    "st": Property(
        "STRUCT<p:INT,q:STRING>", None,
        {"STRUCT<p:INT,q:STRING>": [(1, "a"), (None, None)], "STRUCT<p:TINYINT,q:STRING>": [(3, "")]},
        {"STRUCT<p:BIGINT,q:STRING>": [(2**40, "a")]},
        {"INT": [1], "STRUCT<p:INT,q:STRING,r:INT>": [(1, "a", 2)], "STRUCT<p:DATE,q:STRING>":
         [(date(2026, 1, 1), "a")]},
    ),
    "mp": Property("MAP<STRING,INT>", None, {"MAP<STRING,INT>": [{}, {"a": 1, "b": None}]}, {},
                   {"STRING": ["a"]}),
    "e": Property("STRING", "enum(red, green)?", {"STRING": ["red", "green"]},
                  {"STRING": ["blue", ""]}, {"BOOLEAN": [True]}),
    "u": Property("BIGINT", "U32?", {"BIGINT": [0, 2**32 - 1], "INT": [5]},
                  {"BIGINT": [2**32, -1], "INT": [-1]}, {"STRING": ["1"]}),
    "req": Property("INT", "I32", {"INT": [1], "BIGINT": [2], "DOUBLE": [3.5]}, {"INT": [None]},
                    {"STRING": ["1"]}),
}  # fmt: skip
TYPES = ", ".join(f"P.{name}: {one.engine}" for name, one in PROPERTIES.items() if one.engine)
_WEIGHT = Property("DOUBLE", None, {"DOUBLE": [0.5], "INT": [2]}, {}, {"STRING": ["x"]})
TABLES: dict[str, dict[str, Property]] = {
    NODE: PROPERTIES,
    KEYED: {"n": PROPERTIES["n"], "s": PROPERTIES["s"]},
    EDGE: {"wt": _WEIGHT},
    KEYED_EDGE: {"wt": _WEIGHT},
}
PEOPLE = ("p0", "p1", "p2")

VALUE, TYPE, STRANGER = "a value that doesn't fit", "a type that doesn't go", "a strange column"
MISSING, NO_ID, NULL_ID = "a missing column", "no id", "a null id"
TWICE, DANGLING, NO_END, NULL_END = "an id twice", "a dangling edge", "no end", "a null end"
NUMBERED, OTHER_ID, EXISTING = (
    "ids that are numbers, which is nothing wrong",
    "an id that the keys don't make",
    "a row that is there",
)
FAULTS: dict[str, tuple[str, ...]] = {
    NODE: (VALUE, VALUE, TYPE, TYPE, STRANGER, MISSING, NO_ID, NULL_ID, TWICE, NUMBERED, EXISTING),
    KEYED: (TYPE, STRANGER, NO_ID, NULL_ID, TWICE, OTHER_ID, EXISTING),
    EDGE: (TYPE, STRANGER, TWICE, DANGLING, NO_END, NULL_END, NUMBERED, EXISTING),
    KEYED_EDGE: (STRANGER, TWICE, DANGLING, NULL_END, NO_END, OTHER_ID, EXISTING),
}


@dataclass(frozen=True)
class Case:
    """A frame for one table, and what is wrong with it (None: nothing)."""

    table: str
    columns: tuple[tuple[str, str], ...]
    rows: tuple[tuple[Any, ...], ...]
    fault: str | None
    partitions: int = 1
    faulty: str | None = None

    @property
    def schema(self) -> str:
        """Return the frame's columns as Spark's DDL."""
        return ", ".join(f"`{name}` {kind}" for name, kind in self.columns)


def case(seed: int) -> Case:
    """Return the frame of a seed."""
    chosen = random.Random(seed)
    table = chosen.choice([NODE, NODE, NODE, KEYED, EDGE, KEYED_EDGE])
    fault = chosen.choice(FAULTS[table]) if chosen.random() < 0.55 else None
    columns = _columns(chosen, table, fault)
    faulty = chosen.choice([*columns]) if columns else None
    if fault == MISSING:
        columns.pop("req", None)
    elif table == NODE and fault != TYPE and "req" not in columns:
        columns["req"] = ("INT", [1, 2])
    many = chosen.choice([0, 1, 2, 5]) if fault is None else chosen.choice([1, 2, 5])
    rows = [
        {
            name: None if name != "req" and chosen.random() < 0.25 else chosen.choice(values)
            for name, (_, values) in columns.items()
        }
        for _ in range(many)
    ]
    if fault in (VALUE, TYPE) and faulty is not None:
        faulty = _spoil(chosen, table, fault, columns, rows)
    kinds = {name: kind for name, (kind, _) in columns.items()}
    if fault == STRANGER:
        kinds["stranger"] = "INT"
        for row in rows:
            row["stranger"] = 1
    _identify(chosen, table, fault, kinds, rows)
    names = [*kinds]
    chosen.shuffle(names)
    return Case(
        table,
        tuple((name, kinds[name]) for name in names),
        tuple(tuple(row[name] for name in names) for row in rows),
        None if fault == NUMBERED else fault,
        chosen.choice([1, 2]),
        faulty,
    )


_Columns = dict[str, tuple[str, Sequence[Any]]]


def _columns(chosen: random.Random, table: str, fault: str | None) -> _Columns:
    known = TABLES[table]
    names = [name for name in known if chosen.random() < chosen.choice([0.2, 0.6, 1.0])]
    found: _Columns = {}
    for name in names or [next(iter(known))]:
        fit = known[name].fit
        kind = next(iter(fit)) if chosen.random() < 0.5 else chosen.choice([*fit])
        found[name] = (kind, fit[kind])
    return found


def _spoil(
    chosen: random.Random, table: str, fault: str, columns: _Columns, rows: list[dict[str, Any]]
) -> str:
    """Give one column a type, or one row a value, that doesn't go into the table; returns which."""
    known = TABLES[table]
    able = [name for name, one in known.items() if (one.bad if fault == VALUE else one.wrong)]
    name = chosen.choice(able)
    values = known[name].bad if fault == VALUE else known[name].wrong
    kind = chosen.choice([*values])
    columns[name] = (kind, ())
    good = known[name].fit.get(kind, [None]) if fault == VALUE else values[kind]
    for row in rows:
        row[name] = chosen.choice([*good, *([] if name == "req" else [None])])
    rows[chosen.randrange(len(rows))][name] = chosen.choice(values[kind])
    return name


def _identify(
    chosen: random.Random,
    table: str,
    fault: str | None,
    kinds: dict[str, str],
    rows: list[dict[str, Any]],
) -> None:
    """Give rows their ids and ends."""
    if table == NODE:
        _set(kinds, rows, "id", [f"new{at}" for at in range(len(rows))])
    elif table == KEYED:
        _set(kinds, rows, "name", [f"new{at}" for at in range(len(rows))])
        if fault == OTHER_ID or (fault is None and chosen.random() < 0.4):
            _set(kinds, rows, "id", [row["name"] for row in rows])
    else:
        ends = [(one, other) for one in PEOPLE for other in PEOPLE if (one, other) != ("p0", "p1")]
        some = chosen.sample(ends, len(rows))
        _set(kinds, rows, "src", [one for one, _ in some])
        _set(kinds, rows, "dst", [other for _, other in some])
        if table == EDGE and (fault in (TWICE, EXISTING) or chosen.random() < 0.5):
            _set(kinds, rows, "id", [f"e{at + 1}" for at in range(len(rows))])
    if fault == NUMBERED:
        _set(kinds, rows, "id", range(len(rows)), "INT")
    if fault == TWICE:
        rows.append(dict(rows[0]))
    lost = {NO_ID: "name" if table == KEYED else "id", NO_END: "dst"}.get(fault or "")
    if lost is not None:
        kinds.pop(lost)
        for row in rows:
            row.pop(lost)
    if fault == OTHER_ID:
        _set(kinds, rows, "id", [row.get("name", "other") for row in rows])
    if rows:
        rows[-1] |= _wrong_of(table, fault)


def _set(
    kinds: dict[str, str],
    rows: list[dict[str, Any]],
    name: str,
    values: Sequence[Any],
    kind: str = "STRING",
) -> None:
    kinds[name] = kind
    for row, value in zip(rows, values, strict=True):
        row[name] = value


def _wrong_of(table: str, fault: str | None) -> dict[str, Any]:
    """Return what makes a row the one that is wrong with its id or its ends."""
    there = {
        NODE: {"id": "p0"},
        KEYED: {"name": "k0"},
        EDGE: {"id": "e0"},
        KEYED_EDGE: {"src": "p0", "dst": "p1"},
    }
    wrong: dict[str, dict[str, Any]] = {
        EXISTING: there[table],
        NULL_ID: {"name" if table == KEYED else "id": None},
        DANGLING: {"dst": "nobody"},
        NULL_END: {"src": None},
        OTHER_ID: {"id": "other"},
    }
    return wrong.get(fault or "", {})
