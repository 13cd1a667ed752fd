"""A part of an aggregate, worked out where the rows are read: fewer rows go to Spark; on executors.

Spark aggregates what comes as it would have the rows themselves: a batch gives one row for each
group, in which a summed column holds the group's sum, and one of which only the least or the
greatest value counts holds that. All other columns are what the groups are made by, so what Spark
does with them (filters, keys, distinct values) comes out as before.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

_LONGEST = 1 << 63
# A batch that keeps more of its rows isn't worth the work, nor are those after it.
_MOST_KEPT = 0.5


@dataclass(frozen=True)
class PartialAggregate:
    """Which columns of a frame are aggregated while they are read; plain data.

    Attributes:
        functions: Per column `sum`, `min` or `max`; rows are grouped by all others.
    """

    functions: tuple[tuple[str, str], ...]

    def __str__(self) -> str:
        return ", ".join(f"{function}({column})" for column, function in self.functions)


class Reducer:
    """Aggregates the batches of one scan, each by itself, as long as that makes them smaller."""

    def __init__(self, partial: PartialAggregate | None) -> None:
        self._partial = partial

    def reduced(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return a batch of the same schema from which Spark aggregates the same.

        A batch that can't be aggregated exactly, by number range or by type, comes back as it was.
        """
        if self._partial is None:
            return batch
        try:
            made = _aggregated(batch, self._partial.functions)
        except pa.ArrowNotImplementedError:  # this pyarrow can't group or aggregate by the type
            self._partial = None
            return batch
        if made is None:
            return batch
        if made.num_rows > _MOST_KEPT * batch.num_rows:
            self._partial = None
            return batch
        return made


def _aggregated(
    batch: pa.RecordBatch, functions: Sequence[tuple[str, str]]
) -> pa.RecordBatch | None:
    """Return one row for each group, None where a sum doesn't fit its column."""
    schema = batch.schema
    by_place = {str(schema.get_field_index(column)): function for column, function in functions}
    if any(f == "sum" and not _fits(batch.column(int(at))) for at, f in by_place.items()):
        return None
    places = [str(place) for place in range(batch.num_columns)]
    keys = [place for place in places if place not in by_place]
    rows = pa.Table.from_arrays(batch.columns, places).group_by(keys, use_threads=False)
    made = rows.aggregate([*by_place.items()])
    names = [f"{at}_{by_place[at]}" if at in by_place else at for at in places]
    try:
        arrays = [
            pa.array(made.column(name).combine_chunks()).cast(field.type)
            for name, field in zip(names, schema, strict=True)
        ]
    except pa.ArrowInvalid:  # a sum of small numbers that is no such number itself
        return None
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _fits(column: pa.Array) -> bool:
    """Return whether no sum of a column's values leaves the range in which it is worked out."""
    if not pa.types.is_integer(column.type):
        return True
    ends = pc.min_max(column).as_py()
    if ends["min"] is None:
        return True
    return bool(max(abs(ends["min"]), abs(ends["max"])) * len(column) < _LONGEST)
