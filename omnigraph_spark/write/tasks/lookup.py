"""Find the stored rows of ids: through the index on `id`, or in one scan of that column.

Runs on executors, once per chunk of a task's rows. An id through the index costs about as much as a
hundred rows of a scan, so which way is taken depends on both numbers. A scan is joined by Arrow
for few ids, and for many by the embedded SQL engine, which needs half of the time.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from omnigraph_spark.integrity.scratch import Scratch
from omnigraph_spark.storage.lance_errors import translated
from omnigraph_spark.write.tasks.matches import gathered

if TYPE_CHECKING:
    from lance import LanceDataset

_FEW_IDS = 4_096
_ROWS_PER_ID = 100
_IDS_PER_FILTER = 16_384
_MANY_IDS = 50_000
_SCANNED_ROWS = 65_536
_SOON_SCANNED = 1_000_000
_GATHERED_ROWS = 2_097_152
_JOIN = "SELECT o.p AS p, s._rowaddr AS a, s._rowid AS r FROM s JOIN o ON s.id = o.id"

_FOUND = pa.schema([("p", pa.int64()), ("a", pa.uint64()), ("r", pa.uint64())])
_NOTHING = _FOUND.empty_table()

Numbers = NDArray[np.uint64]


@dataclass(frozen=True)
class Found:
    """Stored rows of ids, by ascending address.

    `positions` are the places of the ids, `addresses` and `row_ids` the stored rows'.
    """

    positions: NDArray[np.int64]
    addresses: Numbers
    row_ids: Numbers


@dataclass(frozen=True)
class Known:
    """Ids, none of which is null or comes twice, and what a look-up of them found in a version."""

    ids: pa.Array
    found: Found

    def of(self, ids: pa.Array) -> Found | None:
        """Return what a look-up of some of the ids finds in the same version; None: of others."""
        places = pc.index_in(self.ids, value_set=ids.cast(self.ids.type))
        if len(ids) + places.null_count != len(self.ids):
            return None
        positions = pc.take(places, pa.array(self.found.positions))
        wanted = pc.is_valid(positions).to_numpy(zero_copy_only=False)
        return Found(
            pc.drop_null(positions).to_numpy().astype(np.int64),
            self.found.addresses[wanted],
            self.found.row_ids[wanted],
        )


def lookup(dataset: LanceDataset, ids: pa.Array) -> Found:
    """Find the stored rows of ids, none of which is null or comes twice.

    Raises:
        StorageError: the store failed, or there was no room to spill to.
    """
    with translated("Looking ids up"):
        if _has_id_index(dataset) and len(ids) <= _most_through_an_index(dataset):
            filters: list[str | None] = [*_filters(ids)]
        elif len(ids) >= _MANY_IDS:
            return _joined(dataset, ids)
        else:
            filters = [None]
        hits = [
            _looked_up(stored, ids)
            for where in filters
            for stored in gathered(_scan(dataset, where), _GATHERED_ROWS)
        ]
    return _sorted(pa.concat_tables([_NOTHING, *hits]))


def looked_up(dataset: LanceDataset, ids: pa.Array, known: Known | None) -> Found:
    """Return what a look-up in this version finds, from what one in it has found if that tells.

    Raises:
        StorageError: as `lookup`.
    """
    found = None if known is None else known.of(ids)
    return lookup(dataset, ids) if found is None else found


def is_cheap(dataset: LanceDataset, count: int) -> bool:
    """Return whether so many ids are found without a long scan, so that the driver can do it."""
    if dataset.count_rows() <= _SOON_SCANNED:
        return True
    return _has_id_index(dataset) and count <= _most_through_an_index(dataset)


def _most_through_an_index(dataset: LanceDataset) -> int:
    return max(_FEW_IDS, int(dataset.count_rows()) // _ROWS_PER_ID)


def _has_id_index(dataset: LanceDataset) -> bool:
    return any(list(index.field_names) == ["id"] for index in dataset.describe_indices())


def _filters(ids: pa.Array) -> list[str]:
    texts = ["'" + text.replace("'", "''") + "'" for text in ids.to_pylist()]
    pieces = range(0, len(texts), _IDS_PER_FILTER)
    return [f"id IN ({', '.join(texts[at : at + _IDS_PER_FILTER])})" for at in pieces]


def _scan(dataset: LanceDataset, where: str | None) -> pa.RecordBatchReader:
    scanner = dataset.scanner(
        columns=["id"],
        filter=where,
        with_row_id=True,
        with_row_address=True,
        batch_size=_SCANNED_ROWS,
    )
    reader: pa.RecordBatchReader = scanner.to_reader()
    return reader


def _looked_up(stored: pa.Table, ids: pa.Array) -> pa.Table:
    index = pc.index_in(stored["id"], value_set=ids)
    hit = pc.is_valid(index)
    columns = [index.cast(pa.int64()), stored["_rowaddr"], stored["_rowid"]]
    return pa.table(columns, schema=_FOUND).filter(hit)


def _joined(dataset: LanceDataset, ids: pa.Array) -> Found:
    ours = pa.table({"id": ids, "p": pa.array(np.arange(len(ids)))})
    with Scratch("Looking ids up") as scratch:
        return _sorted(scratch.table(_JOIN, s=_scan(dataset, None), o=ours.to_reader()))


def _sorted(hits: pa.Table) -> Found:
    positions, addresses, row_ids = (hits[name].to_numpy() for name in "par")
    addresses = addresses.astype(np.uint64, copy=False)
    order = np.argsort(addresses, kind="stable")
    return Found(
        positions.astype(np.int64, copy=False)[order],
        addresses[order],
        row_ids.astype(np.uint64, copy=False)[order],
    )
