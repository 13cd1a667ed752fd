"""Which rows of a table differ between two versions: the comparison of two Arrow tables, by `id`.

No Spark and no Lance; runs on executors. Values count as equal as Spark groups them: null equals
null, NaN equals NaN, 0.0 equals -0.0, a map whatever the order of its entries.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types as pt

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
    found = pc.index_in(new_ids, value_set=old_ids)
    met = found.is_valid().to_numpy(zero_copy_only=False)
    partner = old[found.drop_null().to_numpy(zero_copy_only=False)]
    mine = new[met]
    same = np.ones(len(mine), dtype=np.bool_)
    for name in columns:
        left = gone.table[name].take(pa.array(partner))
        right = came.table[name].take(pa.array(mine))
        same &= equal_values(left.combine_chunks(), right.combine_chunks())
    gone.kinds[BEFORE].append(partner[~same])
    came.kinds[AFTER].append(mine[~same])
    came.kinds[INSERT].append(new[~met])
    left_out = pc.is_in(old_ids, value_set=new_ids).to_numpy(zero_copy_only=False)
    gone.kinds[DELETE].append(old[~left_out])


def _doubled(*tables: pa.Table) -> pa.Array:
    """Return the ids that any of the tables has more than once."""
    found: list[str] = []
    for table in tables:
        if len(pc.unique(table["id"])) < table.num_rows:
            counts = table["id"].value_counts()
            found += (
                counts.filter(pc.greater(counts.field("counts"), 1)).field("values").to_pylist()
            )
    return pa.array(sorted(set(found)), pa.utf8())


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
    for picked, kept, others, kinds in (
        (gone, kept_left, came_ids, (BEFORE, DELETE)),
        (came, kept_right, gone_ids, (AFTER, INSERT)),
    ):
        for row, position in kept:
            kind = kinds[0] if row[0] in others else kinds[1]
            picked.kinds[kind].append(np.array([position]))


def _surplus(
    rows: list[tuple[Any, ...]], others: Counter[tuple[Any, ...]], positions: Rows
) -> list[tuple[tuple[Any, ...], int]]:
    """Return the rows (and positions) that the other side doesn't have as often."""
    kept = []
    for row, position in zip(rows, positions, strict=True):
        if others[row]:
            others[row] -= 1
        else:
            kept.append((row, int(position)))
    return kept


def _plain_rows(table: pa.Table) -> list[tuple[Any, ...]]:
    columns = [
        [_plain(value, pt.is_map(column.type)) for value in column.to_pylist()]
        for column in table.columns
    ]
    return list(zip(*columns, strict=True))


def _plain(value: Any, is_map: bool = False) -> Any:
    """Return a value that Python compares as Spark does, and can hash."""
    if isinstance(value, float):
        return "NaN" if value != value else value + 0.0
    if isinstance(value, dict):
        return tuple((key, _plain(one)) for key, one in value.items())
    if isinstance(value, list):
        plain = [_plain(one) for one in value]
        return frozenset(plain) if is_map else tuple(plain)
    if isinstance(value, tuple):
        return tuple(_plain(one) for one in value)
    return value


def equal_values(left: pa.Array, right: pa.Array) -> Mask:
    """Tell row by row whether two arrays of one type and length hold equal values."""
    valid, other = _valid(left), _valid(right)
    if pt.is_map(left.type):
        pairs = zip(left.to_pylist(), right.to_pylist(), strict=True)
        return np.array([_plain(a, True) == _plain(b, True) for a, b in pairs], dtype=np.bool_)
    if pt.is_struct(left.type):
        same: Mask = valid == other
        for one, two in zip(left.flatten(), right.flatten(), strict=True):
            same = same & equal_values(one, two)
        return same
    if pt.is_list(left.type):
        return (~valid & ~other) | (valid & other & _equal_lists(left, right))
    same = _filled(pc.equal(left, right))
    if pt.is_floating(left.type):
        same = same | (_filled(pc.is_nan(left)) & _filled(pc.is_nan(right)))
    return same | (~valid & ~other)


def _equal_lists(left: pa.ListArray, right: pa.ListArray) -> Mask:
    """Compare lists of equal lengths value by value, all rows at once; a null list is as empty."""
    lengths = _lengths(left)
    same: Mask = lengths == _lengths(right)
    rows = np.flatnonzero(same & (lengths > 0))
    one, two = (side.take(pa.array(rows)).flatten() for side in (left, right))
    different = np.concatenate([[0], np.cumsum(~equal_values(one, two))])
    ends = np.cumsum(lengths[rows])
    counts = different[ends] - different[ends - lengths[rows]]
    same[rows] = counts == 0
    return same


def _lengths(lists: pa.ListArray) -> Rows:
    found: Rows = pc.fill_null(pc.list_value_length(lists), 0).to_numpy().astype(np.int64)
    return found


def _valid(array: pa.Array) -> Mask:
    return np.asarray(array.is_valid().to_numpy(zero_copy_only=False), dtype=np.bool_)


def _filled(mask: pa.BooleanArray) -> Mask:
    return np.asarray(pc.fill_null(mask, False).to_numpy(zero_copy_only=False), dtype=np.bool_)
