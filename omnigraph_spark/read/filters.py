"""Which of Spark's filters Lance can answer, and how they are said to it.

A filter is pushed only if Lance gives exactly the rows that Spark gives; it is then returned to
Spark as handled. Everything else is left to Spark, which costs time and never rows. So:

- literals are cast to the column's Arrow type, and only those pushed that it holds exactly;
- a negated filter says by itself that nulls are out;
- a table of a whole-graph read that lacks the column has null there: such a filter keeps all of its
  rows or none;
- nested fields, names with a backtick, types such as binary, list, struct, float16 and nanoseconds,
  and very large predicates are left to Spark.

Spark's filter classes exist from 4.1 on; they are distinguished by name, so this module imports
nothing of Spark. It runs on the driver, once per planned scan.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timezone
from decimal import Decimal
from typing import Any

import pyarrow as pa

MAX_LITERALS = 20_000
"""Literals that are pushed at most, over all filters of a scan."""
MAX_FILTERS = 1_000
"""Filters that are pushed at most; each costs every task of the scan some planning."""
MAX_TEXT = 1 << 20
"""Characters of SQL that are pushed at most per table."""

_COMPARISONS = {
    "EqualTo": "=",
    "GreaterThan": ">",
    "GreaterThanOrEqual": ">=",
    "LessThan": "<",
    "LessThanOrEqual": "<=",
}
_OPPOSITE = {"=": "<>", ">": "<=", ">=": "<", "<": ">=", "<=": ">"}
_TEXT_SEARCH = {
    "StringStartsWith": "starts_with",
    "StringEndsWith": "ends_with",
    "StringContains": "contains",
}
_UNITS = {"s": ("Second", 1_000_000), "ms": ("Millisecond", 1_000), "us": ("Microsecond", 1)}
_SIGNED = {8: "tinyint", 16: "smallint", 32: "int", 64: "bigint"}

Predicate = str | bool
"""SQL for Lance, or True for all rows, or False for none."""


@dataclass(frozen=True)
class Pushed:
    """What is pushed: per table its predicate, and for each of Spark's filters if it is handled."""

    predicates: Mapping[str, Predicate]
    handled: tuple[bool, ...]


def push(
    filters: Sequence[Any], tables: Mapping[str, Mapping[str, pa.Field]], table_column: str | None
) -> Pushed:
    """Translate Spark's filters for the tables of a scan.

    Args:
        filters: Spark's filters; all of them hold for a row that Spark wants.
        tables: Per table key, the Lance field that each frame column is read from; a column that
        the
            table lacks has no entry.
        table_column: The frame column that holds the table key, None for a table frame.

    Returns:
        A predicate per table; a handled filter holds exactly for the rows that these keep.
    """
    predicates: dict[str, list[Predicate]] = {key: [] for key in tables}
    handled: list[bool] = []
    literals = 0
    for spark_filter in filters:
        literals += _count_literals(spark_filter)
        few = literals <= MAX_LITERALS and sum(handled) < MAX_FILTERS
        translated = _translate_all(spark_filter, tables, table_column) if few else None
        text = sum(len(p) for p in (translated or {}).values() if isinstance(p, str))
        if translated is None or text > MAX_TEXT * max(1, len(tables)):
            handled.append(False)
            continue
        handled.append(True)
        for key, predicate in translated.items():
            predicates[key].append(predicate)
    return Pushed({key: conjunction(parts) for key, parts in predicates.items()}, tuple(handled))


def names_one_of(one: Any, columns: Sequence[str]) -> bool:
    """Return whether a filter is on one of the columns, or on a field of one."""
    path = getattr(_leaf(one)[0], "attribute", None)
    return isinstance(path, tuple) and bool(path) and path[0] in columns


def conjunction(parts: Iterable[Predicate]) -> Predicate:
    """Return the AND of predicates."""
    return _joined(parts, "AND", True)


def either(parts: Iterable[Predicate]) -> Predicate:
    """Return the OR of predicates."""
    return _joined(parts, "OR", False)


def _joined(parts: Iterable[Predicate], word: str, nothing: bool) -> Predicate:
    """Join predicates as a balanced tree: a long chain overflows Lance's stack."""
    texts: list[str] = []
    for part in parts:
        if isinstance(part, str):
            texts.append(f"({part})")
        elif part is not nothing:
            return not nothing
    while len(texts) > 1:
        paired = [
            f"({left} {word} {right})" for left, right in zip(texts[::2], texts[1::2], strict=False)
        ]
        texts = paired + texts[len(paired) * 2 :]
    return texts[0] if texts else nothing


def quoted(name: str) -> str | None:
    """Return a column's name for Lance's SQL, None where it can't be said (a backtick, a dot)."""
    return None if "`" in name or "." in name or not name else f"`{name}`"


def _translate_all(
    spark_filter: Any, tables: Mapping[str, Mapping[str, pa.Field]], table_column: str | None
) -> dict[str, Predicate] | None:
    """Return a filter's predicate for every table, None if one of them can't answer it exactly."""
    leaf, negated = _leaf(spark_filter)
    path = getattr(leaf, "attribute", None)
    name, value = type(leaf).__name__, getattr(leaf, "value", None)
    if not isinstance(path, tuple) or len(path) != 1:
        return None
    translated: dict[str, Predicate] = {}
    for key, columns in tables.items():
        predicate: Predicate | None
        if path[0] == table_column:
            predicate = of_text(name, value, negated, key)
        elif path[0] in columns:
            predicate = of_column(name, value, negated, columns[path[0]])
        elif table_column is not None:
            predicate = of_missing(name, value, negated)
        else:
            predicate = None
        if predicate is None:
            return None
        translated[key] = predicate
    return translated


def _leaf(spark_filter: Any) -> tuple[Any, bool]:
    negated = False
    while type(spark_filter).__name__ == "Not":
        spark_filter, negated = spark_filter.child, not negated
    return spark_filter, negated


def _count_literals(spark_filter: Any) -> int:
    leaf, _ = _leaf(spark_filter)
    return len(leaf.value) if type(leaf).__name__ == "In" else 1


def of_missing(name: str, value: Any, negated: bool) -> Predicate | None:
    """Return the predicate of a column that is null in every row of the table."""
    if name in ("IsNull", "IsNotNull"):
        return (name == "IsNull") != negated
    if name == "EqualNullSafe":
        return (value is None) != negated
    known = name in _COMPARISONS or name in _TEXT_SEARCH or name == "In"
    return False if known else None


def of_text(name: str, value: Any, negated: bool, text: str) -> Predicate | None:
    """Return whether a filter on `_table` holds for a table's key; text is ordered by bytes."""
    if name in ("IsNull", "IsNotNull"):
        return (name == "IsNotNull") != negated
    if name == "EqualNullSafe":
        return bool((value == text) != negated)
    if name == "In":
        values = tuple(value)
        return False if negated and None in values else bool((text in values) != negated)
    if value is None:
        return False
    if not isinstance(value, str):
        return None
    own, other = text.encode(), value.encode("utf-8", "surrogatepass")
    answers = {
        "EqualTo": own == other,
        "GreaterThan": own > other,
        "GreaterThanOrEqual": own >= other,
        "LessThan": own < other,
        "LessThanOrEqual": own <= other,
        "StringStartsWith": own.startswith(other),
        "StringEndsWith": own.endswith(other),
        "StringContains": other in own,
    }
    return None if name not in answers else bool(answers[name] != negated)


def of_column(name: str, value: Any, negated: bool, field: pa.Field) -> Predicate | None:
    """Return the predicate of a stored column, None where Lance might answer differently.

    `name` is that of Spark's filter class; `negated` asks for the rows for which it is false.
    """
    column = quoted(field.name)
    if column is None or not comparable(field.type):
        return None
    if name in ("IsNull", "IsNotNull"):
        return f"{column} IS NULL" if (name == "IsNull") != negated else f"{column} IS NOT NULL"
    if name == "EqualNullSafe":
        return _null_safe(column, value, negated, field.type)
    if name == "In":
        return _in(column, tuple(value), negated, field.type)
    if value is None:
        return False
    if name in _TEXT_SEARCH:
        return _text_search(_TEXT_SEARCH[name], column, value, negated, field.type)
    if name not in _COMPARISONS:
        return None
    if pa.types.is_boolean(field.type) and name != "EqualTo":
        return None
    text = literal(value, field.type)
    if text is None:
        return None
    if not negated:
        return f"{column} {sign(name, False)} {text}"
    return f"{column} IS NOT NULL AND {column} {sign(name, True)} {text}"


def sign(name: str, negated: bool) -> str:
    """Return the sign of a comparison, or of its opposite."""
    return _OPPOSITE[_COMPARISONS[name]] if negated else _COMPARISONS[name]


def _null_safe(column: str, value: Any, negated: bool, kind: pa.DataType) -> Predicate | None:
    if value is None:
        return f"{column} IS NOT NULL" if negated else f"{column} IS NULL"
    text = literal(value, kind)
    if text is None:
        return None
    if negated:
        return f"{column} IS NULL OR {column} <> {text}"
    return f"{column} IS NOT NULL AND {column} = {text}"


def _in(column: str, values: Sequence[Any], negated: bool, kind: pa.DataType) -> Predicate | None:
    if negated and None in values:
        return False  # x NOT IN (…, NULL) is never true
    literals = [literal(value, kind) for value in values if value is not None]
    if any(text is None for text in literals):
        return None
    if not literals:
        return None if negated else False
    listed = ", ".join(str(text) for text in literals)
    if negated:
        return f"{column} IS NOT NULL AND {column} NOT IN ({listed})"
    return f"{column} IN ({listed})"


def _text_search(
    function: str, column: str, value: Any, negated: bool, kind: pa.DataType
) -> Predicate | None:
    text = literal(value, kind) if _is_text(kind) else None
    if text is None:
        return None
    if negated:
        return f"{column} IS NOT NULL AND NOT {function}({column}, {text})"
    return f"{function}({column}, {text})"


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def comparable(kind: pa.DataType) -> bool:
    """Return whether Lance and Spark order and equate all values of a type alike."""
    return bool(
        _is_text(kind)
        or pa.types.is_boolean(kind)
        or pa.types.is_integer(kind)
        or pa.types.is_float32(kind)
        or pa.types.is_float64(kind)
        or (pa.types.is_decimal128(kind) and kind.scale >= 0)
        or pa.types.is_date(kind)
        or (pa.types.is_timestamp(kind) and kind.unit in _UNITS)
    )


def literal(value: Any, kind: pa.DataType) -> str | None:
    """Return a value as SQL of exactly the column's type, None where that type can't hold it."""
    if _is_text(kind):
        return text_literal(value)
    if pa.types.is_boolean(kind):
        return str(value).lower() if isinstance(value, bool) else None
    if pa.types.is_integer(kind):
        return _integer(value, kind)
    if pa.types.is_floating(kind):
        return _floating(value, kind)
    if pa.types.is_decimal(kind):
        return _decimal(value, kind)
    if pa.types.is_date32(kind):
        return _day(value)
    if pa.types.is_date64(kind):
        return _moment(value, "Date64", _UNITS["ms"][1], zoned=True)
    if pa.types.is_timestamp(kind):
        unit, micros = _UNITS[kind.unit]
        zone = "None" if kind.tz is None else f'Some("{kind.tz}")'
        if '"' in zone[6:-2] or "'" in zone:
            return None
        return _moment(value, f"Timestamp({unit}, {zone})", micros, zoned=kind.tz is not None)
    return None


def text_literal(value: Any) -> str | None:
    """Return text as SQL, None where Lance can't be given it."""
    if not isinstance(value, str) or "\x00" in value:
        return None
    try:
        value.encode()
    except UnicodeEncodeError:
        return None
    return "'" + value.replace("'", "''") + "'"


def _integer(value: Any, kind: pa.DataType) -> str | None:
    if isinstance(value, Decimal) and value == value.to_integral_value():
        value = int(value)
    if not isinstance(value, int) or isinstance(value, bool):
        return None
    bits = kind.bit_width
    signed = pa.types.is_signed_integer(kind)
    low, high = (-(1 << bits - 1), (1 << bits - 1) - 1) if signed else (0, (1 << bits) - 1)
    if not low <= value <= high:
        return None
    return f"cast('{value}' as {_SIGNED[bits]}{'' if signed else ' unsigned'})"


def _floating(value: Any, kind: pa.DataType) -> str | None:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    number = float(value)
    text = "NaN" if math.isnan(number) else repr(number)
    return f"cast('{text}' as {'float' if pa.types.is_float32(kind) else 'double'})"


def _decimal(value: Any, kind: pa.DataType) -> str | None:
    if isinstance(value, bool) or not isinstance(value, (int, Decimal)):
        return None
    number = Decimal(value)
    if not number.is_finite():
        return None
    sign, digits, exponent = number.as_tuple()
    assert isinstance(exponent, int)
    shift = exponent + kind.scale
    unscaled = int("".join(map(str, digits)))
    if shift < 0 and unscaled % 10**-shift:
        return None
    unscaled = unscaled * 10**shift if shift >= 0 else unscaled // 10**-shift
    if len(str(unscaled)) > kind.precision:
        return None
    padded = str(unscaled).rjust(kind.scale + 1, "0")
    whole, fraction = padded[: len(padded) - kind.scale], padded[len(padded) - kind.scale :]
    text = ("-" if sign else "") + whole + (f".{fraction}" if fraction else "")
    return f"cast('{text}' as decimal({kind.precision},{kind.scale}))"


def _day(value: Any) -> str | None:
    if not isinstance(value, date) or isinstance(value, datetime):
        return None
    return f"cast(cast('{value.toordinal() - date(1970, 1, 1).toordinal()}' as int) as date)"


def _moment(value: Any, arrow_type: str, micros: int, zoned: bool) -> str | None:
    """Return a point in time, counted in units of `micros`, None where it isn't a whole number."""
    if not isinstance(value, datetime) or (value.tzinfo is not None) != zoned:
        return None
    epoch = datetime(1970, 1, 1, tzinfo=timezone.utc if zoned else None)
    delta = value - epoch
    total = (delta.days * 86_400 + delta.seconds) * 1_000_000 + delta.microseconds
    if total % micros:
        return None
    return f"arrow_cast(cast('{total // micros}' as bigint), '{arrow_type}')"
