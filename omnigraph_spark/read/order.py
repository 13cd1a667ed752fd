"""An order of rows that Lance sorts by; plain data."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class SortKey:
    """A stored column that rows are sorted by, and which values come first."""

    column: str
    ascending: bool
    nulls_first: bool

    def __str__(self) -> str:
        direction = "ASC" if self.ascending else "DESC"
        return f"{self.column} {direction} NULLS {'FIRST' if self.nulls_first else 'LAST'}"
