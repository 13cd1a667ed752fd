"""The order in which the columns of a table are shown, beside the order in which its file has them.

Files have the properties by name, added ones behind. People see them as they were written: each
column that is made here keeps its number in the metadata of its field (graph format, Tables), which
follows it through renames, branches and versions. Columns without a number come next, as
`_schema.pg` lists them, then as the file has them. `id`, `src` and `dst` always lead. Pure.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import pyarrow as pa

POSITION = b"omnigraph_spark:position"
_LEADING = ("id", "src", "dst")


def as_shown(
    fields: Iterable[pa.Field], is_edge: bool, listed: Sequence[str] = ()
) -> list[pa.Field]:
    """Return stored columns as people see them; `listed` are the properties of `_schema.pg`."""
    places = {name: at for at, name in enumerate(listed)}
    leading = _LEADING if is_edge else _LEADING[:1]

    def rank(field: pa.Field) -> tuple[float, float]:
        if field.name in leading:
            return (-1, leading.index(field.name))
        return (_position(field) or math.inf, places.get(field.name, math.inf))

    return sorted(fields, key=rank)


def as_stored(leading: Sequence[pa.Field], properties: Sequence[pa.Field]) -> list[pa.Field]:
    """Return the columns of a new table's file: the properties by name, each with its number."""
    numbered = [_numbered(field, at) for at, field in enumerate(properties, start=1)]
    return [*leading, *sorted(numbered, key=lambda field: field.name)]


def behind(schema: pa.Schema, new: Sequence[pa.Field]) -> list[pa.Field]:
    """Return columns that a table gets, numbered after those it has; as they are where none is."""
    last = max((_position(field) for field in schema), default=0)
    if not last:
        return list(new)
    return [_numbered(field, at) for at, field in enumerate(new, start=last + 1)]


def _numbered(field: pa.Field, number: int) -> pa.Field:
    return field.with_metadata({**(field.metadata or {}), POSITION: str(number).encode()})


def _position(field: pa.Field) -> int:
    """Return a column's number, 0 where it has none (that can be read)."""
    text = (field.metadata or {}).get(POSITION, b"")
    return int(text) if text.isdigit() and len(text) < 10 else 0
