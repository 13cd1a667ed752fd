"""Which rows of a batch break rules that one value decides; pure Arrow, on executors."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types as pt

from omnigraph_spark.errors import IntegrityError
from omnigraph_spark.integrity.rules import CHECK, ENUM, RANGE, ValueRule

_INTEGERS = {
    pa.int8(): (-(2**7), 2**7 - 1),
    pa.int16(): (-(2**15), 2**15 - 1),
    pa.int32(): (-(2**31), 2**31 - 1),
    pa.int64(): (-(2**63), 2**63 - 1),
    pa.uint8(): (0, 2**8 - 1),
    pa.uint16(): (0, 2**16 - 1),
    pa.uint32(): (0, 2**32 - 1),
    pa.uint64(): (0, 2**64 - 1),
}


def broken(rule: ValueRule, rows: pa.RecordBatch) -> pa.Array | None:
    """Return a mask of the rows that break a rule, None where none does.

    Nulls break no rule of values. A column that the table no longer has, or one of a type
    that the engine doesn't apply the rule to, breaks none either. NaN is within no range.
    """
    position = rows.schema.get_field_index(rule.column)
    if position < 0:
        return None
    column = rows.column(position)
    if column.null_count == len(column):
        return None
    bad = {ENUM: _bad_enum, RANGE: _bad_range, CHECK: _bad_check}[rule.kind](rule, column)
    if bad is None:
        return None
    bad = pc.fill_null(bad, False)
    return bad if pc.any(bad).as_py() else None


def violation(rule: ValueRule, table_key: str, rows: pa.RecordBatch, bad: pa.Array) -> Violation:
    """Return what is to be said of the rows of a batch that break a rule."""
    bad_values = rows.column(rule.column).filter(bad)
    return Violation(
        table_key,
        rule.kind,
        rule.column,
        len(bad_values),
        tuple(bad_values.slice(0, MOST_SAMPLES).to_pylist()),
        rule.allowed(),
        "Mend or drop those rows before writing (counted within one batch)",
    )


def _bad_enum(rule: ValueRule, column: pa.Array) -> pa.Array | None:
    allowed = pa.array(rule.values, pa.utf8())
    if pt.is_string(column.type) or pt.is_large_string(column.type):
        return pc.and_(
            pc.is_valid(column), pc.invert(pc.is_in(column, value_set=allowed.cast(column.type)))
        )
    if pt.is_list(column.type) and pt.is_string(column.type.value_type):
        rows = pc.list_parent_indices(column)
        values = pc.list_flatten(column)
        wrong = pc.and_(pc.is_valid(values), pc.invert(pc.is_in(values, value_set=allowed)))
        return pc.is_in(
            pa.array(range(len(column)), pa.int64()),
            value_set=rows.filter(wrong).cast(pa.int64()),
        )
    return None


def _bad_range(rule: ValueRule, column: pa.Array) -> pa.Array | None:
    if column.type in _INTEGERS:
        return _bad_integers(rule, column)
    if not pt.is_floating(column.type):
        return None
    numbers = column.cast(pa.float64())
    low = -math.inf if rule.low is None else float(rule.low)
    high = math.inf if rule.high is None else float(rule.high)
    within = pc.and_(
        pc.greater_equal(numbers, pa.scalar(low)), pc.less_equal(numbers, pa.scalar(high))
    )
    return pc.invert(within)


def _bad_integers(rule: ValueRule, column: pa.Array) -> pa.Array | None:
    least, most = _INTEGERS[column.type]
    low = least if rule.low is None else max(least, math.ceil(rule.low))
    high = most if rule.high is None else min(most, math.floor(rule.high))
    if low > high:  # no value of the type is within
        return pc.is_valid(column)
    return pc.or_(
        pc.less(column, pa.scalar(low, column.type)),
        pc.greater(column, pa.scalar(high, column.type)),
    )


def _bad_check(rule: ValueRule, column: pa.Array) -> pa.Array | None:
    if not (pt.is_string(column.type) or pt.is_large_string(column.type)):
        return None
    return pc.invert(pc.match_substring_regex(column, rule.re2()))


MOST_SAMPLES = 10
_LONGEST_SAMPLE = 60


@dataclass(frozen=True)
class Violation:
    """A rule that `count` rows break; `samples` are at most ten of their ids or values."""

    table_key: str
    rule: str
    column: str
    count: int
    samples: tuple[Any, ...]
    expected: str
    hint: str

    def error(self) -> IntegrityError:
        """Return the error that refuses the write."""
        rows = f"{self.count} row{'' if self.count == 1 else 's'}"
        breaks = "breaks" if self.count == 1 else "break"
        return IntegrityError(
            f"{rows} of {self.table_key} {breaks} the rule '{self.rule}' (column {self.column})",
            expected=self.expected,
            found=shown(self.samples),
            hint=f"{self.hint}. Option badRecordsPath sets such rows aside instead"
            if self.rule not in _OTHER_TABLES
            else self.hint,
            table_key=self.table_key,
            rule=self.rule,
            column=self.column,
            count=self.count,
            samples=list(self.samples),
        )


STRANDED = "edges stay attached"
# Rules that rows break which aren't the write's own: there is nothing to set aside.
_OTHER_TABLES = frozenset({STRANDED})


def shown(samples: Sequence[Any]) -> str:
    """Return samples for a message, the long ones cut."""
    return ", ".join(_clipped(repr(sample)) for sample in samples[:MOST_SAMPLES])


def _clipped(text: str) -> str:
    return text if len(text) <= _LONGEST_SAMPLE else f"{text[: _LONGEST_SAMPLE - 1]}…"
