"""Stage an upsert: split a task's rows into updates and new rows of the version it was planned on.

Runs on executors, once per task and table, and again on the driver for a round that was lost to
another publish of the table. Rows are taken in chunks of bounded size. Updated rows are written
whole, under the stable row ids of the rows they replace; a row whose update changes nothing is not
written. The stored rows that they replace are named by fragment and offset (`matches`).
"""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from omnigraph_spark.arrow_read import nullable_blobs, scan_options
from omnigraph_spark.arrow_write import table_schema, to_table_batch
from omnigraph_spark.engine_types import is_blob
from omnigraph_spark.errors import IntegrityError
from omnigraph_spark.lance_errors import translated
from omnigraph_spark.write import matches, row_ids
from omnigraph_spark.write.matches import Match
from omnigraph_spark.write.plan import TableTarget
from omnigraph_spark.write.row_compare import differing

if TYPE_CHECKING:
    from lance import LanceDataset

ROW_IDS = "row_ids"
"""Key of a staged fragment's JSON: the row ids that its rows keep (packed), absent for new rows."""
_CHUNK_ROWS = 262_144
_CHUNK_BYTES = 128 << 20
_GATHERED_ROWS = 2_097_152
_SLICE_ROWS = 8_192
_BLOB_SLICE_ROWS = 256
_FEW_IDS = 4_096
_IDS_PER_FILTER = 1_024
_SAMPLES = 5

Addresses = NDArray[np.uint64]
Written = tuple[list[dict[str, Any]], int, int]
"""Fragments as JSON, rows, bytes."""
Write = Callable[[Iterator[pa.RecordBatch]], Written]


@dataclass(frozen=True)
class Upserted:
    """What a task staged; `columns` are those that its rows brought."""

    fragments: tuple[dict[str, Any], ...]
    rows: int
    bytes: int
    matches: tuple[Match, ...]
    columns: tuple[str, ...]


@dataclass(frozen=True)
class Found:
    """Stored rows that rows of a chunk matched, by ascending row id.

    `positions` are the places of the chunk's rows, `addresses` and `row_ids` the stored ones'.
    """

    positions: NDArray[np.int64]
    addresses: Addresses
    row_ids: Addresses


def stage_upsert(
    target: TableTarget, dataset: LanceDataset, batches: Iterable[pa.RecordBatch], write: Write
) -> Upserted:
    """Write the changed and the new rows of a task as fragments; commits nothing.

    `dataset` is the version that `target` names, `batches` have columns of the table alone, `id`
    among them; `write` turns batches in the table's schema into fragments.

    Raises:
        IntegrityError: a key comes twice in a chunk, or a new row lacks what may not be null.
        StorageError: the store failed; files written so far stay unreferenced.
    """
    task = _Task(target, dataset, write)
    for chunk in _chunks(batches):
        task.add(chunk)
    return task.done()


def stage_delete(dataset: LanceDataset, batches: Iterable[pa.RecordBatch]) -> Upserted:
    """Find the stored rows of ids that are deleted; writes nothing. Unknown ids are no error.

    Raises:
        StorageError: the store failed.
    """
    found = [
        lookup(dataset, pc.unique(chunk["id"].combine_chunks())).addresses
        for chunk in _chunks(batches)
    ]
    none = np.empty(0, dtype=np.uint64)
    return Upserted((), 0, 0, matches.of_addresses(np.concatenate([none, *found]), none), ("id",))


def lance_fragment(staged: Mapping[str, Any]) -> Any:
    """Return a staged fragment as Lance's, updated rows under the row ids that they keep."""
    from lance.fragment import FragmentMetadata

    plain = {key: value for key, value in staged.items() if key != ROW_IDS}
    if ROW_IDS in staged:
        sequence = zlib.decompress(base64.b64decode(staged[ROW_IDS]))
        plain["row_id_meta"] = {"Inline": list(sequence)}
    return FragmentMetadata.from_json(json.dumps(plain))


def _chunks(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    waiting: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        if not batch.num_rows:
            continue
        waiting.append(batch)
        rows, size = rows + batch.num_rows, size + batch.nbytes
        if rows >= _CHUNK_ROWS or size >= _CHUNK_BYTES:
            yield pa.Table.from_batches(waiting).combine_chunks()
            waiting, rows, size = [], 0, 0
    if waiting:
        yield pa.Table.from_batches(waiting).combine_chunks()


def lookup(dataset: LanceDataset, ids: pa.Array) -> Found:
    """Find the stored rows of ids: few of them through the index on `id`, else in one scan.

    Raises:
        StorageError: the store failed.
    """
    places, addresses, keys = [], [], []
    with translated("Looking ids up"):
        for where in _filters(dataset, ids):
            scanner = dataset.scanner(
                columns=["id"],
                filter=where,
                with_row_id=True,
                with_row_address=True,
                batch_size=_CHUNK_ROWS,
            )
            for stored in matches.gathered(scanner.to_batches(), _GATHERED_ROWS):
                place = pc.index_in(stored["id"], value_set=ids)
                hit = pc.is_valid(place)
                places.append(place.filter(hit).to_numpy())
                addresses.append(_numbers(stored["_rowaddr"].filter(hit)))
                keys.append(_numbers(stored["_rowid"].filter(hit)))
    if not places:
        none = np.empty(0, dtype=np.uint64)
        return Found(np.empty(0, dtype=np.int64), none, none)
    row_keys = np.concatenate(keys)
    order = np.argsort(row_keys, kind="stable")
    return Found(
        np.concatenate(places).astype(np.int64)[order],
        np.concatenate(addresses)[order],
        row_keys[order],
    )


def _numbers(column: pa.ChunkedArray) -> Addresses:
    found: Addresses = column.to_numpy().astype(np.uint64)
    return found


def _filters(dataset: LanceDataset, ids: pa.Array) -> list[str | None]:
    if len(ids) > _FEW_IDS or not _has_id_index(dataset):
        return [None]
    texts = ["'" + one.replace("'", "''") + "'" for one in ids.to_pylist()]
    pieces = range(0, len(texts), _IDS_PER_FILTER)
    return [f"id IN ({', '.join(texts[at : at + _IDS_PER_FILTER])})" for at in pieces]


def _has_id_index(dataset: LanceDataset) -> bool:
    return any(list(index.field_names) == ["id"] for index in dataset.describe_indices())


class _Task:
    """The upsert of one task."""

    def __init__(self, target: TableTarget, dataset: LanceDataset, write: Write) -> None:
        self._target = target
        self._dataset = dataset
        self._write = write
        self._keeps_ids = bool(dataset.has_stable_row_ids)
        self._schema = table_schema(target.schema)
        self._fragments: list[dict[str, Any]] = []
        self._rows = self._bytes = 0
        self._changed: list[Addresses] = []
        self._same: list[Addresses] = []
        self._columns: tuple[str, ...] = ()

    def add(self, chunk: pa.Table) -> None:
        """Write what a chunk changes and adds."""
        self._columns = tuple(chunk.column_names)
        ids = chunk["id"].combine_chunks()
        self._refuse_doubles(ids)
        found = lookup(self._dataset, ids)
        self._refuse_stored_doubles(ids, found)
        if len(found.positions):
            self._update(chunk.take(pa.array(found.positions)), found)
        new = np.ones(len(ids), dtype=bool)
        new[found.positions] = False
        if new.any():
            self._insert(chunk.filter(pa.array(new)))

    def done(self) -> Upserted:
        """Return what was staged."""
        none = [np.empty(0, dtype=np.uint64)]
        found = matches.of_addresses(
            np.concatenate(self._changed or none), np.concatenate(self._same or none)
        )
        return Upserted(tuple(self._fragments), self._rows, self._bytes, found, self._columns)

    def _refuse_doubles(self, ids: pa.Array) -> None:
        counts = pc.value_counts(ids)
        doubled = counts.field(0).filter(pc.greater(counts.field(1), 1))
        if len(doubled):
            samples = doubled.slice(0, _SAMPLES).to_pylist()
            raise matches.doubled_keys(self._target.table_key, samples, len(doubled))

    def _refuse_stored_doubles(self, ids: pa.Array, found: Found) -> None:
        places, counts = np.unique(found.positions, return_counts=True)
        doubled = places[counts > 1]
        if len(doubled):
            samples = ids.take(pa.array(doubled[:_SAMPLES])).to_pylist()
            raise matches.doubled_in_table(self._target.table_key, samples, len(doubled))

    def _update(self, rows: pa.Table, found: Found) -> None:
        flags: list[NDArray[np.bool_]] = []
        changed = self._changed_rows(rows, found, flags)
        fragments = self._put(changed)
        kept = np.concatenate(flags)
        self._changed.append(found.addresses[kept])
        self._same.append(found.addresses[~kept])
        keys = found.row_ids[kept]
        start = 0
        for fragment in fragments if self._keeps_ids else ():
            end = start + int(fragment["physical_rows"])
            packed = zlib.compress(row_ids.encoded(keys[start:end]), 1)
            fragment[ROW_IDS] = base64.b64encode(packed).decode("ascii")
            start = end

    def _put(self, batches: Iterator[pa.RecordBatch]) -> list[dict[str, Any]]:
        fragments, rows, size = self._write(batches)
        self._fragments += fragments
        self._rows += rows
        self._bytes += size
        return fragments

    def _changed_rows(
        self, rows: pa.Table, found: Found, flags: list[NDArray[np.bool_]]
    ) -> Iterator[pa.RecordBatch]:
        """Yield the rows that differ from the stored ones, whole; notes which those are."""
        blobs = any(is_blob(field) for field in self._target.schema)
        step = _BLOB_SLICE_ROWS if blobs else _SLICE_ROWS
        for start in range(0, rows.num_rows, step):
            ours = rows.slice(start, step).combine_chunks()
            stored = self._stored(found.row_ids[start : start + step], blobs)
            columns = []
            differ = np.zeros(ours.num_rows, dtype=bool)
            for field in self._schema:
                old = stored.column(field.name)
                if field.name not in ours.column_names:
                    columns.append(old)
                    continue
                now = ours[field.name].chunk(0)
                columns.append(now)
                differ |= differing(now, old)
            flags.append(differ)
            whole = pa.RecordBatch.from_arrays(columns, schema=self._schema)
            yield whole.filter(pa.array(differ))

    def _stored(self, keys: Addresses, blobs: bool) -> pa.RecordBatch:
        """Return the stored rows of row ids, in their order and the table's schema."""
        wanted = pa.array(keys, pa.uint64())
        names = self._target.schema.names
        with translated(f"Reading the rows of {self._target.table_key} that are updated"):
            if blobs:
                rows = self._dataset.scanner(
                    columns=names,
                    filter=f"_rowid IN ({', '.join(map(str, keys.tolist()))})",
                    with_row_id=True,
                    **scan_options(self._dataset.schema),
                ).to_table()
                rows = rows.take(pc.index_in(wanted, value_set=rows["_rowid"].combine_chunks()))
                rows = rows.drop_columns("_rowid")
                for name in nullable_blobs(self._dataset.schema):
                    rows = _empty_as_null(rows, name)
            else:
                rows = self._dataset._take_rows(wanted, columns=names)
        (batch,) = rows.combine_chunks().to_batches()
        return to_table_batch(batch, self._target.schema, self._target.table_key)

    def _insert(self, rows: pa.Table) -> None:
        self._refuse_missing(rows)
        schema, key = self._target.schema, self._target.table_key
        self._put(to_table_batch(batch, schema, key) for batch in rows.to_batches())

    def _refuse_missing(self, rows: pa.Table) -> None:
        missing = [
            field.name
            for field in self._target.schema
            if not field.nullable and field.name not in rows.column_names
        ]
        if missing:
            samples = rows["id"].slice(0, _SAMPLES).to_pylist()
            raise IntegrityError(
                f"New rows of {self._target.table_key} lack {', '.join(missing)}, which may not be "
                "null",
                expected="all columns that may not be null, where a row is new",
                found=f"{rows.num_rows} new ids, for example {samples[0]!r}",
                hint="Add the columns, or write only rows that the table has",
                table_key=self._target.table_key,
                rule="not null",
                samples=samples,
                column=missing[0],
            )


def _empty_as_null(rows: pa.Table, name: str) -> pa.Table:
    column = rows[name].combine_chunks()
    empty = pc.equal(pc.binary_length(column), 0)
    cleared = pc.if_else(empty, pa.scalar(None, column.type), column)
    return rows.set_column(rows.column_names.index(name), name, cleared)
