"""Refuse rows of an upsert or delete that another write changed since their frame was read.

Runs on executors, beside the staging of a task's rows, and on the driver where a round that was
lost stages them again. Nothing is looked at where nobody else published the table meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from omnigraph_spark.arrow.compare import differing
from omnigraph_spark.errors import RowConflictError
from omnigraph_spark.schema.property_types import is_blob
from omnigraph_spark.storage.lance_errors import translated
from omnigraph_spark.storage.store import Storage
from omnigraph_spark.write.plan import TableTarget
from omnigraph_spark.write.reads import Span
from omnigraph_spark.write.tasks.lookup import lookup

if TYPE_CHECKING:
    from lance import LanceDataset

_IDS_AT_ONCE = 1_048_576
_ROWS_AT_ONCE = 8_192
_SAMPLES = 10
_NOWHERE = np.uint64(0xFFFF_FFFF_FFFF_FFFF)

Numbers = NDArray[np.uint64]


def checked(
    storage: Storage, target: TableTarget, batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Pass a task's batches on, and refuse ids whose rows others changed since they were read.

    Raises:
        RowConflictError: there are such rows; names them. Files written so far stay unreferenced.
        StorageError: the store failed.
    """
    if not target.others:
        yield from batches
        return
    waiting: list[pa.Array] = []
    for batch in batches:
        waiting.append(batch.column("id"))
        if sum(map(len, waiting)) >= _IDS_AT_ONCE:
            refuse(storage, target, waiting)
            waiting = []
        yield batch
    refuse(storage, target, waiting)


def refuse(storage: Storage, target: TableTarget, waiting: list[pa.Array]) -> None:
    """Refuse ids whose rows others changed since they were read.

    Raises:
        RowConflictError: there are such rows; names them.
        StorageError: the store failed.
    """
    if not waiting:
        return
    ids = pc.unique(pa.chunked_array(waiting, pa.utf8()))
    moved = np.zeros(len(ids), dtype=bool)
    for span in target.others:
        moved |= _changed(storage, target, span, ids)
    if moved.any():
        conflicts = ids.filter(pa.array(moved))
        raise RowConflictError(
            target.table_key, conflicts.slice(0, _SAMPLES).to_pylist(), int(moved.sum())
        )


def _changed(storage: Storage, target: TableTarget, span: Span, ids: pa.Array) -> NDArray[np.bool_]:
    """Tell, for each id, whether its row came, went or got other values within a span."""
    before_branch, before_version, after_branch, after_version = span
    after = storage.dataset(target.location, after_branch, after_version)
    places, rows = _places(after, ids)
    if not before_version:
        return np.asarray(places != _NOWHERE, dtype=bool)
    before = storage.dataset(target.location, before_branch, before_version)
    places_before, rows_before = _places(before, ids)
    changed: NDArray[np.bool_] = (places == _NOWHERE) != (places_before == _NOWHERE)
    both = np.flatnonzero((places != _NOWHERE) & (places_before != _NOWHERE))
    apart = both[~_same_rows(before, places_before[both], after, places[both])]
    for start in range(0, len(apart), _ROWS_AT_ONCE):
        part = apart[start : start + _ROWS_AT_ONCE]
        changed[part] = _values_differ(before, rows_before[part], after, rows[part], target)
    return changed


def _places(dataset: LanceDataset, ids: pa.Array) -> tuple[Numbers, Numbers]:
    """Return the address and the row id of each id's row, `_NOWHERE` where there is none."""
    hits = lookup(dataset, ids)
    places, rows = (np.full(len(ids), _NOWHERE, dtype=np.uint64) for _ in range(2))
    places[hits.positions] = hits.addresses
    rows[hits.positions] = hits.row_ids
    return places, rows


def _same_rows(
    before: LanceDataset, places_before: Numbers, after: LanceDataset, places: Numbers
) -> NDArray[np.bool_]:
    """Tell which rows are the very same: one place in a fragment that has the same first file."""
    same: NDArray[np.bool_] = places_before == places
    fragments = (places >> np.uint64(32)).astype(np.int64)
    for number in np.unique(fragments[same]).tolist():
        if _file(before, number) != _file(after, number):
            same &= fragments != number
    return same


def _file(dataset: LanceDataset, fragment: int) -> str:
    stored = dataset.get_fragment(fragment)
    return "" if stored is None else str(stored.data_files()[0].path)


def _values_differ(
    before: LanceDataset,
    rows_before: Numbers,
    after: LanceDataset,
    rows: Numbers,
    target: TableTarget,
) -> NDArray[np.bool_]:
    """Compare rows by the columns that both versions have; a filled new column is a change too."""
    if any(is_blob(field) for field in after.schema):  # what a blob holds isn't compared
        return np.ones(len(rows), dtype=bool)
    known = set(before.schema.names)
    shared = [name for name in after.schema.names if name in known and name != "id"]
    new = [name for name in after.schema.names if name not in known]
    with translated(f"Comparing rows of {target.table_key} with those that were read"):
        now = after._take_rows(rows.tolist(), columns=[*shared, *new] or ["id"])
        old = before._take_rows(rows_before.tolist(), columns=shared or ["id"])
    changed = np.zeros(len(rows), dtype=bool)
    for name in shared:
        current, other = now[name].combine_chunks(), old[name].combine_chunks()
        if current.type != other.type:
            return np.ones(len(rows), dtype=bool)
        changed |= differing(current, other)
    for name in new:
        changed |= now[name].combine_chunks().is_valid().to_numpy(zero_copy_only=False)
    return changed
