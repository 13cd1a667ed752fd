"""The option `filter`: what Spark's `where` means by a predicate, said in Lance's SQL.

`predicate.parse` reads the text as Spark does. Here every test is brought to the type of the column
that it looks at, by the rules by which Spark brings both sides to one type, and told to Lance as
the push-down tells it (`filters`). What Lance may answer otherwise is refused. On the driver.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from datetime import date, datetime
from decimal import ROUND_FLOOR, Context, Decimal
from typing import Any

import pyarrow as pa
from pyarrow import types as pt

from omnigraph_spark.errors import OptionError, did_you_mean
from omnigraph_spark.read import filters, predicate
from omnigraph_spark.read.filters import Predicate
from omnigraph_spark.read.predicate import (
    Always,
    Both,
    Join,
    Leaf,
    Literal,
    Node,
    Not,
    refused,
)

_SHOWN = 60
_WIDE = Context(prec=80)
_EXACT_DOUBLE = 1 << 53
_EXACT_FLOAT = 1 << 24

Columns = Mapping[str, pa.Field]


def named_columns(text: str) -> set[str]:
    """Return the names of the columns that a predicate looks at, as it has them.

    Raises:
        OptionError: it is not a predicate, or says something that Lance may answer otherwise.
    """
    return predicate.columns(predicate.parse(text))


def predicates(
    text: str, tables: Mapping[str, Columns], table_column: str | None
) -> dict[str, Predicate]:
    """Return Lance's predicate per table: exactly the rows for which Spark's `where` is true.

    Args:
        text: The predicate.
        tables: Per table key, the stored field that each frame column is read from.
        table_column: The frame column that holds the table key, None for a table frame. In a
            whole-graph frame a table that lacks a column has null there.

    Raises:
        OptionError: it is not a predicate, names a column that no table has, or says something that
            Lance may answer otherwise; the text says why.
    """
    node = predicate.parse(text)
    titles = dict.fromkeys(name for columns in tables.values() for name in columns)
    if table_column is not None:
        titles[table_column] = None
    names = {name: _resolved(name, [*titles]) for name in predicate.columns(node)}
    by_table: dict[str, Predicate] = {}
    for key, columns in tables.items():
        by_table[key] = _Compiler(key, columns, names, table_column).holds(node, True)
    return by_table


def _resolved(name: str, titles: Sequence[str]) -> str:
    """Return the column that a name means: Spark's SQL doesn't tell names apart by case."""
    if name in titles:
        return name
    alike = [title for title in titles if title.lower() == name.lower()]
    if len(alike) != 1:
        raise OptionError(
            f"Option filter names a column that isn't there: {name}",
            expected=f"columns of the frame: {', '.join(titles[:_SHOWN])}",
            found=f"{name}, which may be {' or '.join(alike)}" if alike else name,
            hint=did_you_mean(name, titles, "Columns that Spark computes are filtered with Spark"),
        )
    return alike[0]


class _Compiler:
    """Says a predicate for one table."""

    def __init__(
        self, key: str, columns: Columns, names: Mapping[str, str], table_column: str | None
    ) -> None:
        self._key = key
        self._columns = columns
        self._names = names
        self._table_column = table_column

    def holds(self, node: Node, wanted: bool) -> Predicate:
        """Return what is true of the rows for which `node` is true (or, not wanted, false)."""
        if isinstance(node, Not):
            return self.holds(node.child, not wanted)
        if isinstance(node, Always):
            return node.value is wanted
        if isinstance(node, Join):
            parts = [self.holds(part, wanted) for part in node.parts]
            return filters.conjunction(parts) if node.every == wanted else filters.either(parts)
        return self._both(node, wanted) if isinstance(node, Both) else self._leaf(node, wanted)

    def _leaf(self, leaf: Leaf, wanted: bool) -> Predicate:
        title = self._names[leaf.column.name]
        if title == self._table_column:
            return self._of_table(leaf, wanted)
        field = self._columns.get(title)
        if field is None:
            return self._of_missing(leaf, wanted)
        if leaf.name in ("IsNull", "IsNotNull"):
            nulls = (leaf.name == "IsNull") == wanted
            column = filters.quoted(field.name)
            if column is None or not (filters.comparable(field.type) or pt.is_list(field.type)):
                raise _unfit(field, "its nulls")
            return f"{column} IS NULL" if nulls else f"{column} IS NOT NULL"
        if leaf.name in ("Has", "HasToken"):
            return _searched(leaf, field, wanted)
        if leaf.name == "In":
            return self._in(leaf, field, wanted)
        return _tested(leaf, field, wanted)

    def _in(self, leaf: Leaf, field: pa.Field, wanted: bool) -> Predicate:
        """Return a list as one list where it can be, else as comparisons."""
        values = [_comparable_value("EqualTo", literal, field) for literal in leaf.value]
        plain = [value for value, _ in values]
        if all(where == 0 for _, where in values):
            listed = filters.of_column("In", tuple(plain), not wanted, field)
            if listed is not None:
                return listed
        each = [Leaf("EqualTo", leaf.column, literal) for literal in leaf.value]
        return self.holds(Join(False, tuple(each)), wanted)

    def _of_table(self, leaf: Leaf, wanted: bool) -> Predicate:
        given = leaf.value if isinstance(leaf.value, tuple) else (leaf.value,)
        if leaf.name in ("IsTrue", "Like", "Has", "HasToken") or any(
            literal is not None and literal.kind not in ("text", "null") for literal in given
        ):
            raise refused(f"{self._table_column} is text", f"{leaf.name} of {leaf.column.name}")
        values = [None if literal is None else literal.value for literal in given]
        value = tuple(values) if leaf.name == "In" else values[0]
        answer = filters.of_text(leaf.name, value, not wanted, self._key)
        assert answer is not None
        return answer

    def _of_missing(self, leaf: Leaf, wanted: bool) -> Predicate:
        value = leaf.value.value if isinstance(leaf.value, Literal) else leaf.value
        answer = filters.of_missing(leaf.name, value, not wanted)
        return False if answer is None else answer

    def _both(self, node: Both, wanted: bool) -> Predicate:
        fields = [self._columns.get(self._names[column.name]) for column in (node.left, node.right)]
        left, right = fields
        if self._table_column in (self._names[node.left.name], self._names[node.right.name]):
            raise refused(f"{self._table_column} is compared with a column", node.left.name)
        if left is None or right is None:
            return self._one_missing(node, left or right, wanted)
        names = [filters.quoted(field.name) for field in (left, right)]
        if left.type != right.type or None in names or not _orders(left.type):
            raise refused(
                f"{node.left.name} and {node.right.name} are compared", f"{left} and {right}"
            )
        first, other = names
        known = f"{first} IS NOT NULL AND {other} IS NOT NULL"
        if node.name == "EqualNullSafe":
            same = f"({known} AND {first} = {other}) OR ({first} IS NULL AND {other} IS NULL)"
            differ = (
                f"({known} AND {first} <> {other}) OR ({first} IS NULL AND {other} IS NOT NULL)"
                f" OR ({first} IS NOT NULL AND {other} IS NULL)"
            )
            return same if wanted else differ
        sign = filters.sign(node.name, not wanted)
        return f"{known} AND {first} {sign} {other}"

    def _one_missing(self, node: Both, existing: pa.Field | None, wanted: bool) -> Predicate:
        if node.name != "EqualNullSafe":
            return False
        if existing is None:
            return wanted
        column = filters.quoted(existing.name)
        if column is None:
            raise _unfit(existing, "its nulls")
        return f"{column} IS NULL" if wanted else f"{column} IS NOT NULL"


def _unfit(field: pa.Field, detail: str) -> OptionError:
    return refused(
        f"column {field.name} ({field.type}) isn't one that Lance compares alike", detail
    )


def _orders(kind: pa.DataType) -> bool:
    """Return whether two columns of a type can be compared with each other."""
    return bool(
        pt.is_integer(kind)
        or pt.is_string(kind)
        or pt.is_large_string(kind)
        or pt.is_date(kind)
        or (pt.is_timestamp(kind) and kind.unit != "ns")
    )


def _tested(leaf: Leaf, field: pa.Field, wanted: bool) -> Predicate:
    """Return a comparison of a column with a literal."""
    if leaf.name == "IsTrue":
        if not pt.is_boolean(field.type):
            raise predicate.malformed(field.name, f"column {field.name}, which is not a condition,")
        return _said("EqualTo", True, field, wanted)
    if leaf.name == "Like":
        return _like(leaf.value, field, wanted)
    if leaf.name.startswith("String"):
        if not _is_text(field.type) or leaf.value.kind not in ("text", "null"):
            raise refused("a search in text needs text on both sides", str(field))
        return _said(leaf.name, leaf.value.value, field, wanted)
    value, where = _comparable_value(leaf.name, leaf.value, field)
    if where == 0:
        return _said(leaf.name, value, field, wanted)
    if leaf.name in ("EqualTo", "EqualNullSafe"):
        if leaf.name == "EqualNullSafe":
            return not wanted
        return False if wanted else _known(field)
    # No value of the column equals the literal: it lies above `value`, or beyond the type.
    upward = leaf.name.startswith("Greater") == wanted
    if value is None:
        return _known(field) if upward == (where < 0) else False
    return _said("GreaterThan" if upward else "LessThanOrEqual", value, field, True)


def _known(field: pa.Field) -> str:
    return f"{filters.quoted(field.name)} IS NOT NULL"


def _said(name: str, value: Any, field: pa.Field, wanted: bool) -> Predicate:
    answer = filters.of_column(name, value, not wanted, field)
    if answer is None:
        raise _unfit(field, repr(value))
    return answer


def _comparable_value(name: str, literal: Literal, field: pa.Field) -> tuple[Any, int]:
    """Return a literal as a value of a column's type, and 0 if it is exactly that.

    Else the greatest value of the type below it and 1; or None, and 1 or -1 if it is above or
    below all of them.

    Raises:
        OptionError: Spark would bring the two to another type, where Lance can't follow.
    """
    kind = field.type
    if literal.kind == "null":
        return None, 0
    if pt.is_integer(kind) and literal.kind in ("int", "decimal", "double"):
        return _whole(literal, field)
    if pt.is_decimal128(kind) and literal.kind in ("int", "decimal"):
        return _fixed(literal, field)
    if pt.is_floating(kind) and literal.kind in ("int", "decimal", "double", "float"):
        return _binary(literal, field)
    if _is_text(kind) and literal.kind == "text":
        return literal.value, 0
    if pt.is_boolean(kind) and literal.kind == "bool" and name.startswith("Equal"):
        return literal.value, 0
    if pt.is_date32(kind):
        day = predicate.day(literal.value) if literal.kind == "text" else literal
        if day is not None and day.kind == "day":
            assert isinstance(day.value, date)
            return day.value, 0
    instants = pt.is_date64(kind) or (pt.is_timestamp(kind) and kind.tz is not None)
    if instants and literal.kind == "text":
        literal = predicate.instant(literal.value)
    if (instants and literal.kind == "instant") or (
        pt.is_timestamp(kind) and kind.tz is None and literal.kind == "local"
    ):
        return _moment(literal.value, kind)
    raise refused(_why(literal, kind), f"{field.name} ({kind}) beside {literal.value!r}")


def _why(literal: Literal, kind: pa.DataType) -> str:
    if literal.kind == "text":
        return "Spark casts the text first, and a cast that fails is an error in Spark only"
    if _is_text(kind):
        return "Spark casts the column's text first; put the literal in quotes"
    if pt.is_temporal(kind):
        return (
            "Spark takes the session's zone to compare them; DATE '2024-01-31' goes with a DATE,"
            " TIMESTAMP '2024-01-31 12:00:00+00:00' with a TIMESTAMP"
        )
    return "Spark and Lance bring the two to one type in other ways"


def _whole(literal: Literal, field: pa.Field) -> tuple[Any, int]:
    kind, value = field.type, literal.value
    if literal.kind == "decimal":
        digits = 20 if kind.bit_width > 32 else 10
        _fitting(value, digits, 0, field)
    if literal.kind == "double":
        if kind.bit_width > 32 and not abs(value) < _EXACT_DOUBLE:
            raise refused("Spark rounds the column to DOUBLE first", f"{field.name}, {value!r}")
        if math.isnan(value):
            return None, 1
        value = Decimal(value)
    floor = int(Decimal(value).to_integral_value(ROUND_FLOOR, _WIDE))
    signed = pt.is_signed_integer(kind)
    bits = kind.bit_width
    low, high = (-(1 << bits - 1), (1 << bits - 1) - 1) if signed else (0, (1 << bits) - 1)
    if floor > high:
        return None, 1
    if floor < low:
        return None, -1
    return floor, int(floor != value)


def _fixed(literal: Literal, field: pa.Field) -> tuple[Any, int]:
    kind, value = field.type, Decimal(literal.value)
    _fitting(value, kind.precision - kind.scale, kind.scale, field)
    step = Decimal(1).scaleb(-kind.scale)
    floor = value.quantize(step, ROUND_FLOOR, _WIDE)
    if floor.adjusted() + kind.scale >= kind.precision and floor:
        return None, 1 if value > 0 else -1
    return floor, int(floor != value)


def _fitting(value: Decimal, whole: int, scale: int, field: pa.Field) -> None:
    """Refuse a decimal that has no common type with the column that holds all digits."""
    _, digits, exponent = value.as_tuple()
    other = max(0, -int(exponent))
    if max(whole, len(digits) - other + max(0, int(exponent)), 10) + max(scale, other) > 38:
        raise refused("Spark rounds where there are more than 38 digits", f"{field.name}, {value}")


def _binary(literal: Literal, field: pa.Field) -> tuple[Any, int]:
    """Return a number for a FLOAT or DOUBLE column; Spark compares both as DOUBLE."""
    value = literal.value
    single = pt.is_float32(field.type)
    if literal.kind == "int" and abs(value) >= (_EXACT_FLOAT if single else _EXACT_DOUBLE):
        raise refused("the number may be rounded first", f"{field.name}, {value}")
    number = float(value)
    if not single:
        return number, 0
    import numpy as np

    with np.errstate(over="ignore"):
        near = np.float32(number)
    if float(near) == number or math.isnan(number):
        return number, 0
    floor = near if float(near) < number else np.nextafter(near, np.float32(-np.inf))
    return float(floor), 1


def _moment(value: datetime, kind: pa.DataType) -> tuple[Any, int]:
    """Return a point in time, cut down to the unit that the column counts in."""
    if pt.is_timestamp(kind) and kind.unit == "us":
        return value, 0
    if pt.is_timestamp(kind) and kind.unit == "s":
        floor = value.replace(microsecond=0)
    else:
        floor = value.replace(microsecond=value.microsecond // 1000 * 1000)
    return floor, int(floor != value)


def _like(pattern: Literal, field: pa.Field, wanted: bool) -> Predicate:
    if not _is_text(field.type) or pattern.kind != "text":
        raise refused("LIKE needs text on both sides", str(field))
    text = pattern.value
    plain = text.strip("%")
    if not set(plain) & set("%_"):
        begins, ends = text.startswith("%"), text.endswith("%")
        name = {
            (False, False): "EqualTo",
            (False, True): "StringStartsWith",
            (True, False): "StringEndsWith",
            (True, True): "StringContains",
        }[begins, ends]
        return _said(name, plain, field, wanted)
    column, literal = filters.quoted(field.name), filters.text_literal(text)
    if column is None or literal is None:
        raise _unfit(field, text)
    return f"{column} IS NOT NULL AND {column} {'' if wanted else 'NOT '}LIKE {literal}"


def _searched(leaf: Leaf, field: pa.Field, wanted: bool) -> Predicate:
    """Return what an index of lists or words answers; Spark has no such function for words."""
    if not wanted:
        raise refused("the opposite of a search, beside nulls in it", leaf.column.name)
    column = filters.quoted(field.name)
    inner = field.type
    if leaf.name == "Has":
        inner = inner.value_type if pt.is_list(inner) or pt.is_large_list(inner) else None
    if inner is None or column is None or not (_is_text(inner) or pt.is_integer(inner)):
        raise _unfit(field, leaf.name)
    value, where = _comparable_value("EqualTo", leaf.value, pa.field(field.name, inner))
    if value is None:
        return False
    literal = filters.literal(value, inner)
    if where or literal is None:
        raise _unfit(field, repr(value))
    function = "array_has" if leaf.name == "Has" else "contains_tokens"
    return f"{function}({column}, {literal})"


def _is_text(kind: pa.DataType) -> bool:
    return bool(pt.is_string(kind) or pt.is_large_string(kind))
