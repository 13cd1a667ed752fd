"""The three-way rules of a merge, row by row, on Arrow tables; no Spark, no Lance.

Runs in tasks, on all rows of some ids. Rows count as equal where all their values are: null is
null, NaN is NaN. Doubled ids (tables written without integrity checks) are compared as a whole.
"""

from __future__ import annotations

import base64
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from omnigraph_spark.arrow.compare import differing

if TYPE_CHECKING:
    from omnigraph_spark.write.tasks.lookup import Known

INSERTS = "DivergentInsert"
UPDATES = "DivergentUpdate"
DELETE_UPDATE = "DeleteVsUpdate"
ORPHAN = "OrphanEdge"
DOUBLED = "UniqueViolation"
OURS, THEIRS, FAIL = "ours", "theirs", "fail"
SOURCE, TARGET = "s", "t"
"""The names of the two branches' heads among the versions; those of the bases are others."""

Flags = NDArray[np.bool_]
Numbers = NDArray[np.int64]
Conflict = tuple[str, str, str | None, str | None, str | None]
"""(id, kind, rows of the base, ours, theirs): the rows as JSON."""


@dataclass(frozen=True)
class Decision:
    """What a merge makes of some ids.

    `taken` are the source's rows that the target gets, `replaced` how many rows of that id the
    target has, by row. `gone` are ids that the target loses, `gone_rows` how many rows of each.
    `settled` counts conflicts that the resolution decided for the target. `known` is where the
    target has the rows of all these ids, if that was looked up.
    """

    taken: pa.Table
    replaced: Numbers
    gone: pa.Array
    gone_rows: Numbers
    conflicts: tuple[Conflict, ...]
    settled: int = 0
    known: Known | None = None


class _Version:
    """The rows of one version, by number of their id."""

    def __init__(self, table: pa.Table, ids: pa.Array) -> None:
        self.table = table
        codes = pc.index_in(table["id"].combine_chunks(), value_set=ids)
        self.codes = codes.to_numpy(zero_copy_only=False).astype(np.int64)
        self.counts = np.bincount(self.codes, minlength=len(ids)).astype(np.int64)
        self.first = np.full(len(ids), -1, dtype=np.int64)
        self.first[self.codes[::-1]] = np.arange(len(self.codes), dtype=np.int64)[::-1]

    def rows(self, code: int) -> list[dict[str, Any]]:
        """Return the rows of an id, without it, in an order that tells nothing."""
        selected = self.table.take(pa.array(np.flatnonzero(self.codes == code)))
        rows = (
            selected.drop_columns("id").to_pylist()
            if selected.num_columns > 1
            else [{}] * len(selected)
        )
        return sorted(rows, key=json_of)


def decide(
    versions: Mapping[str, pa.Table], bases: Sequence[str], resolution: str = FAIL
) -> Decision:
    """Decide all ids of some versions of a table, which have the same columns.

    `bases` are the names of the newest common versions, mostly one. Where they don't agree on an
    id, it is in conflict. `resolution` says whose rows win where both sides changed one: `OURS`
    (the target's), `THEIRS`, or `FAIL`: neither, it is a conflict. An id that would get several
    rows is one under `FAIL` and `THEIRS`.
    """
    ids = pa.chunked_array([table["id"].combine_chunks() for table in versions.values()]).unique()
    by_name = {name: _Version(table, ids) for name, table in versions.items()}
    source, target, base = by_name[SOURCE], by_name[TARGET], by_name[bases[0]]
    agreed = np.ones(len(ids), dtype=np.bool_)
    for name in bases[1:]:
        agreed &= _same(base, by_name[name])
    left = agreed & _same(source, base)
    changed = ~_same(source, target) & ~left
    clean = agreed & _same(target, base)
    doubled = source.counts > 1
    kinds = np.full(len(ids), UPDATES, dtype=object)
    kinds[base.counts == 0] = INSERTS
    kinds[(source.counts == 0) | (target.counts == 0)] = DELETE_UPDATE
    kinds[clean] = DOUBLED
    conflict = changed & (~clean | doubled)
    if resolution == THEIRS:
        conflict, kinds[:] = changed & doubled, DOUBLED
    taken = changed & ~conflict
    rows = source.first[taken & (source.counts > 0)]
    gone = np.flatnonzero(taken & (source.counts == 0))
    settled = int(conflict.sum()) if resolution == OURS else 0
    codes = [] if resolution == OURS else np.flatnonzero(conflict).tolist()
    return Decision(
        taken=source.table.take(pa.array(rows)),
        replaced=target.counts[source.codes[rows]],
        gone=ids.take(pa.array(gone)),
        gone_rows=target.counts[gone],
        conflicts=tuple(
            (
                str(ids[code].as_py()),
                str(kinds[code]),
                json_of(base.rows(code)),
                json_of(target.rows(code)),
                json_of(source.rows(code)),
            )
            for code in codes
        ),
        settled=settled,
    )


def values_lost(found: Decision, column: str) -> Decision:
    """Return a decision in which all that changes or brings a value of a column is a conflict."""
    is_lost = (found.replaced > 0) | found.taken[column].is_valid().to_numpy()
    rows = found.taken.filter(pa.array(is_lost)).to_pylist()
    lost = [(str(row["id"]), UPDATES, None, None, json_of(row)) for row in rows]
    none = np.zeros(0, dtype=np.int64)
    conflicts = (*found.conflicts, *lost)
    return Decision(found.taken.slice(0, 0), none, found.gone.slice(0, 0), none, conflicts)


def _same(left: _Version, right: _Version) -> Flags:
    """Tell of each id whether two versions have the same rows of it."""
    same: Flags = (left.counts == 0) & (right.counts == 0)
    single = np.flatnonzero((left.counts == 1) & (right.counts == 1))
    if len(single):
        left_rows = left.table.take(pa.array(left.first[single]))
        right_rows = right.table.take(pa.array(right.first[single]))
        differ = np.zeros(len(single), dtype=np.bool_)
        for name in left.table.column_names:
            if name != "id":
                differ |= differing(
                    left_rows[name].combine_chunks(), right_rows[name].combine_chunks()
                )
        same[single] = ~differ
    for code in np.flatnonzero((left.counts > 1) & (left.counts == right.counts)).tolist():
        rows = [Counter(map(json_of, version.rows(code))) for version in (left, right)]
        same[code] = rows[0] == rows[1]
    return same


def json_of(value: Any) -> str:
    """Return a value of Arrow's as JSON; nulls inside a row are left out, as Spark does."""
    if isinstance(value, dict):
        parts = [
            f"{json.dumps(str(name))}:{json_of(item)}"
            for name, item in value.items()
            if item is not None
        ]
        return "{" + ",".join(parts) + "}"
    if isinstance(value, (list, tuple)):
        if value and all(isinstance(item, tuple) and len(item) == 2 for item in value):
            return json_of(dict(value))  # a map
        return "[" + ",".join(map(json_of, value)) + "]"
    if isinstance(value, (bytes, bytearray)):
        return json.dumps(base64.b64encode(value).decode("ascii"))
    if isinstance(value, (datetime, date, time)):
        return json.dumps(value.isoformat())
    if isinstance(value, timedelta):
        return json.dumps(str(value))
    if isinstance(value, float) and not np.isfinite(value):
        return json.dumps({"inf": "Infinity", "-inf": "-Infinity"}.get(str(value), "NaN"))
    if value is None or isinstance(value, (bool, int, float, str)):
        return json.dumps(value, ensure_ascii=False)
    return str(value)  # a decimal
