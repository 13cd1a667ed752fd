"""Which rows of a table differ between two versions: the comparison of two Arrow tables, by `id`.

No Spark and no Lance; runs on executors. Which values are equal says `arrow.compare`.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from omnigraph_spark.arrow.compare import differing, stored

INSERT, DELETE = "insert", "delete"
BEFORE, AFTER = "update_preimage", "update_postimage"

Mask = np.ndarray[Any, np.dtype[np.bool_]]
Rows = np.ndarray[Any, np.dtype[np.int64]]


def changed_rows(
    before: pa.Table, after: pa.Table, columns: Sequence[str]
) -> Iterator[tuple[str, pa.Table]]:
    """Yield the rows that differ, by kind of change.

    Both tables have the same schema, with a column `id` without nulls; `columns` are compared.
    Doubled ids (tables written without integrity checks) are compared as sets of rows.
    """
    doubled = _doubled(before, after)
    gone, came = Picked(before), Picked(after)
    if len(doubled):
        old, new = _positions(before, doubled), _positions(after, doubled)
        _compare_doubled(gone, came, old, new, columns)
        _compare_single(gone, came, _without(before, old), _without(after, new), columns)
    else:
        _compare_single(gone, came, np.arange(len(before)), np.arange(len(after)), columns)
    for picked in (gone, came):
        for kind, rows in picked.kinds.items():
            chosen = np.concatenate(rows) if rows else np.empty(0, np.int64)
            if len(chosen):
                yield kind, picked.table.take(pa.array(chosen))


class Picked:
    """Rows of one table that were picked, by kind of change."""

    def __init__(self, table: pa.Table) -> None:
        self.table = table
        self.kinds: dict[str, list[Rows]] = defaultdict(list)


def _compare_single(
    gone: Picked, came: Picked, old: Rows, new: Rows, columns: Sequence[str]
) -> None:
    """Compare rows whose ids are single on both sides; `old` and `new` are their positions."""
    old_ids = gone.table["id"].take(pa.array(old)).combine_chunks()
    new_ids = came.table["id"].take(pa.array(new)).combine_chunks()
    matches = pc.index_in(new_ids, value_set=old_ids)
    met = matches.is_valid().to_numpy(zero_copy_only=False)
    partner = old[matches.drop_null().to_numpy(zero_copy_only=False)]
    mine = new[met]
    same = np.ones(len(mine), dtype=np.bool_)
    for name in columns:
        left = gone.table[name].take(pa.array(partner))
        right = came.table[name].take(pa.array(mine))
        same &= ~differing(left.combine_chunks(), right.combine_chunks())
    gone.kinds[BEFORE].append(partner[~same])
    came.kinds[AFTER].append(mine[~same])
    came.kinds[INSERT].append(new[~met])
    left_out = pc.is_in(old_ids, value_set=new_ids).to_numpy(zero_copy_only=False)
    gone.kinds[DELETE].append(old[~left_out])


def _doubled(*tables: pa.Table) -> pa.Array:
    """Return the ids that any of the tables has more than once."""
    ids: list[str] = []
    for table in tables:
        if len(pc.unique(table["id"])) < table.num_rows:
            counts = table["id"].value_counts()
            ids += counts.filter(pc.greater(counts.field("counts"), 1)).field("values").to_pylist()
    return pa.array(sorted(set(ids)), pa.utf8())


def _positions(table: pa.Table, ids: pa.Array) -> Rows:
    mask = pc.is_in(table["id"], value_set=ids).to_numpy()
    return np.flatnonzero(mask)


def _without(table: pa.Table, positions: Rows) -> Rows:
    return np.setdiff1d(np.arange(table.num_rows), positions)


def _compare_doubled(
    gone: Picked, came: Picked, old: Rows, new: Rows, columns: Sequence[str]
) -> None:
    """Compare the rows of doubled ids as sets, in Python: there are few."""
    names = ["id", *columns]
    left = _plain_rows(gone.table.select(names).take(pa.array(old)))
    right = _plain_rows(came.table.select(names).take(pa.array(new)))
    kept_left = _surplus(left, Counter(right), old)
    kept_right = _surplus(right, Counter(left), new)
    gone_ids, came_ids = {row[0] for row, _ in kept_left}, {row[0] for row, _ in kept_right}
    for picked, surplus, others, kinds in (
        (gone, kept_left, came_ids, (BEFORE, DELETE)),
        (came, kept_right, gone_ids, (AFTER, INSERT)),
    ):
        for row, position in surplus:
            kind = kinds[0] if row[0] in others else kinds[1]
            picked.kinds[kind].append(np.array([position]))


def _surplus(
    rows: list[tuple[Any, ...]], others: Counter[tuple[Any, ...]], positions: Rows
) -> list[tuple[tuple[Any, ...], int]]:
    """Return the rows (and positions) that the other side doesn't have as often."""
    surplus = []
    for row, position in zip(rows, positions, strict=True):
        if others[row]:
            others[row] -= 1
        else:
            surplus.append((row, int(position)))
    return surplus


def _plain_rows(table: pa.Table) -> list[tuple[Any, ...]]:
    columns = [
        [stored(value, column.type) for value in column.to_pylist()] for column in table.columns
    ]
    return list(zip(*columns, strict=True))
