"""How broken rules are told: one typed error with rule, table, column, samples and count."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from omnigraph_spark.errors import IntegrityError

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
    return ", ".join(_clipped(repr(one)) for one in samples[:MOST_SAMPLES])


def _clipped(text: str) -> str:
    return text if len(text) <= _LONGEST_SAMPLE else f"{text[: _LONGEST_SAMPLE - 1]}…"
