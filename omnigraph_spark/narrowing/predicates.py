"""Spark's conditions over a scan as predicates for Lance; pure, no JVM.

What a predicate keeps is never less than what the condition keeps: Spark looks at the rows again,
but for those of a look-up. Single comparisons go by the rules of `read/filters.py`; here is what is
around them: AND, OR, and how Spark's expressions and literals are read.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any
from zoneinfo import ZoneInfo

import pyarrow as pa

from omnigraph_spark.narrowing.needs import Key, conjuncts
from omnigraph_spark.narrowing.trees import Tree, attribute
from omnigraph_spark.read import filters
from omnigraph_spark.read.filters import Predicate
from omnigraph_spark.read.order import SortKey

_SWAPPED = {
    "EqualTo": "EqualTo",
    "EqualNullSafe": "EqualNullSafe",
    "GreaterThan": "LessThan",
    "GreaterThanOrEqual": "LessThanOrEqual",
    "LessThan": "GreaterThan",
    "LessThanOrEqual": "GreaterThanOrEqual",
}
_SEARCHES = {
    "StartsWith": "StringStartsWith",
    "EndsWith": "StringEndsWith",
    "Contains": "StringContains",
}
_NESTING = 60
_MOMENT = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(\.\d{1,6})?")
_DAY = re.compile(r"\d{4}-\d\d-\d\d")


@dataclass(frozen=True)
class Pushed:
    """Per table key the predicate of a scan, and whether it is all that the conditions say."""

    predicates: Mapping[str, Predicate]
    exact: bool


class Unreadable(Exception):
    """A literal that can't be read back from its text without a doubt."""


@dataclass(frozen=True)
class Reader:
    """What conditions are read against.

    Attributes:
        tables: Per table key, the stored field that each frame column is read from.
        table_column: The frame's column of table keys, None where the frame is of one table.
        names: The frame's columns by place, None for those that no table stores (`_rowid`).
        zone: Gives the session's time zone, in which Spark shows timestamps.
    """

    tables: Mapping[str, Mapping[str, pa.Field]]
    table_column: str | None
    names: Sequence[str | None]
    zone: Callable[[], str]

    def pushed(self, conditions: Sequence[tuple[Tree, Mapping[int, int]]]) -> Pushed:
        """Return what Lance can answer of conditions that all hold."""
        parts: list[dict[str, Predicate]] = []
        exact = True
        for condition, places in conditions:
            for conjunct in conjuncts(condition):
                try:
                    by_table, whole = self._read(conjunct, places, 0)
                except Unreadable:
                    by_table, whole = None, False
                exact = exact and whole
                if by_table is not None:
                    parts.append(by_table)
        return Pushed(self._all(parts), exact)

    def is_look_up(self, conditions: Sequence[tuple[Tree, Mapping[int, int]]]) -> bool:
        """Return whether Lance answers all conditions, equalities of text or integers of one table.

        Of those no value is between kinds of equality, and no index of Lance gives a row too many.
        """
        if self.table_column is not None or not self.pushed(conditions).exact:
            return False
        (columns,) = self.tables.values()
        for condition, places in conditions:
            for conjunct in conjuncts(condition):
                leaf = self._filter(conjunct, places) if conjunct.kind == "EqualTo" else None
                if leaf is None or leaf.value is None:
                    return False
                if not _is_key(columns[leaf.attribute[0]].type):
                    return False
        return True

    def is_in(self, place: int, values: Sequence[Any]) -> Mapping[str, Predicate] | None:
        """Return the predicate of a column that is equal to one of the values, text or integers."""
        name = self.names[place]
        if name is None:
            return None
        kinds = [columns[name].type for columns in self.tables.values() if name in columns]
        if not all(map(_is_key, kinds)):
            return None
        return self._leaf(_Filter.named("In", name, tuple(values)))

    def sorts(self, order: Sequence[Key]) -> tuple[SortKey, ...] | None:
        """Return an order as Lance sorts by, None where its order of values isn't Spark's.

        Spark takes both zeros, and all NaN, for equal, and the next key decides: not so Lance.
        """
        if self.table_column is not None:
            return None
        (columns,) = self.tables.values()
        keys = []
        for key in order:
            name = self.names[key.place]
            if name is None or filters.quoted(name) is None or not _sorts(columns[name].type):
                return None
            keys.append(SortKey(columns[name].name, key.ascending, key.nulls_first))
        return tuple(keys)

    def _all(self, parts: Sequence[Mapping[str, Predicate]]) -> dict[str, Predicate]:
        return {key: filters.conjunction(part[key] for part in parts) for key in self.tables}

    def _read(
        self, condition: Tree, places: Mapping[int, int], depth: int
    ) -> tuple[dict[str, Predicate] | None, bool]:
        """Return a superset of what a condition keeps, None for all rows, and if it is exact."""
        if depth > _NESTING:
            return None, False
        if condition.kind in ("And", "Or"):
            (left, left_exact), (right, right_exact) = (
                self._read(side, places, depth + 1) for side in condition.children
            )
            exact = left_exact and right_exact
            if condition.kind == "Or":
                if left is None or right is None:
                    return None, False
                return {key: _either(left[key], right[key]) for key in self.tables}, exact
            readable = [side for side in (left, right) if side is not None]
            return (self._all(readable) if readable else None), exact
        if condition.kind == "Literal" and condition.fields["dataType"] == "boolean":
            return dict.fromkeys(self.tables, condition.fields["value"] == "true"), True
        leaf = self._filter(condition, places)
        by_table = None if leaf is None else self._leaf(leaf)
        return by_table, by_table is not None

    def _leaf(self, leaf: Any) -> dict[str, Predicate] | None:
        pushed = filters.push([leaf], self.tables, self.table_column)
        return dict(pushed.predicates) if all(pushed.handled) else None

    def _filter(self, condition: Tree, places: Mapping[int, int]) -> Any:
        """Return a comparison of a column as one of Spark's filters, None for anything else."""
        if condition.kind == "Not":
            child = self._filter(condition.children[0], places)
            return None if child is None else _Filter.around(child)
        if condition.kind == "AttributeReference" and condition.fields["dataType"] == "boolean":
            name = self._column(condition, places)
            return None if name is None else _Filter.named("EqualTo", name, True)
        if condition.kind in ("IsNull", "IsNotNull"):
            name = self._column(condition.children[0], places)
            return None if name is None else _Filter.named(condition.kind, name, None)
        if condition.kind == "In":
            name = self._column(condition.children[0], places)
            if name is None or any(value.kind != "Literal" for value in condition.children[1:]):
                return None
            return _Filter.named(
                "In", name, tuple(self._literal(v) for v in condition.children[1:])
            )
        if condition.kind in _SEARCHES or condition.kind in _SWAPPED:
            left, right = condition.children[:2]
            kind = _SEARCHES.get(condition.kind, condition.kind)
            if left.kind == "Literal" and kind in _SWAPPED:
                left, right, kind = right, left, _SWAPPED[kind]
            name = self._column(left, places)
            if name is None or right.kind != "Literal":
                return None
            return _Filter.named(kind, name, self._literal(right))
        return None

    def _column(self, expression: Tree, places: Mapping[int, int]) -> str | None:
        id_ = attribute(expression)
        position = None if id_ is None else places.get(id_)
        # Other collations than the plain one show in the type's text.
        if position is None or str(expression.fields["dataType"]).startswith(
            ("string ", "char", "varchar")
        ):
            return None
        return self.names[position]

    def _literal(self, literal: Tree) -> Any:
        """Return a literal's value.

        Raises:
            Unreadable: the text doesn't say for sure.
        """
        text, kind = literal.fields["value"], literal.fields["dataType"]
        if text is None:
            return None
        if not isinstance(kind, str) or not isinstance(text, str):
            raise Unreadable
        if kind == "string" and "\ufffd" not in text:  # else bytes that are no text
            return text
        if kind in ("byte", "short", "integer", "long"):
            return int(text)
        if kind in ("float", "double"):
            return float(text)
        if kind == "boolean":
            return text == "true"
        if kind.startswith("decimal"):
            return Decimal(text)
        if kind == "date" and _DAY.fullmatch(text):
            return date.fromisoformat(text)
        if kind == "timestamp" and _MOMENT.fullmatch(text):
            return _moment(text, self.zone())
        if kind == "timestamp_ntz":
            return datetime(1970, 1, 1) + _micros(int(text))
        raise Unreadable


def _is_key(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_signed_integer(kind))


def _sorts(kind: pa.DataType) -> bool:
    micros = pa.types.is_timestamp(kind) and kind.unit != "ns"
    tests = (pa.types.is_signed_integer, pa.types.is_string, pa.types.is_large_string)
    more = (pa.types.is_boolean, pa.types.is_date32, pa.types.is_decimal128)
    return micros or any(test(kind) for test in (*tests, *more))


class _Filter:
    """A filter as `read/filters.py` knows them, by the name of their class; 4.0 has no classes."""

    @staticmethod
    def named(kind: str, column: str, value: Any) -> Any:
        return type(kind, (), {"attribute": (column,), "value": value})()

    @staticmethod
    def around(child: Any) -> Any:
        return type("Not", (), {"child": child})()


def _either(left: Predicate, right: Predicate) -> Predicate:
    if left is True or right is True:
        return True
    if left == right:
        return left
    if left is False or right is False:
        return right if left is False else left
    return f"({left}) OR ({right})"


def either(left: Mapping[str, Predicate], right: Mapping[str, Predicate]) -> dict[str, Predicate]:
    """Return per table what one of two uses of a scan keeps."""
    return {key: _either(left[key], right[key]) for key in left}


def both(left: Mapping[str, Predicate], right: Mapping[str, Predicate]) -> dict[str, Predicate]:
    """Return per table what two predicates both keep."""
    return {key: filters.conjunction((left[key], right[key])) for key in left}


def _micros(count: int) -> timedelta:
    try:
        return timedelta(microseconds=count)
    except OverflowError as error:
        raise Unreadable from error


def _moment(text: str, zone: str) -> datetime:
    """Return the moment that a local time means, if it means one."""
    try:
        local = datetime.fromisoformat(_padded(text)).replace(tzinfo=ZoneInfo(zone))
    except (ValueError, KeyError, OSError) as error:
        raise Unreadable from error
    moments = {local.replace(fold=fold).astimezone(timezone.utc) for fold in (0, 1)}
    if len(moments) > 1:
        raise Unreadable  # an hour that clocks show twice, or never
    return moments.pop()


def _padded(text: str) -> str:
    whole, point, part = text.partition(".")
    return whole + point + part.ljust(6, "0") if point else text
