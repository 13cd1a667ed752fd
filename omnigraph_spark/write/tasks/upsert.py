"""Stage an upsert: split a task's rows into updates and new rows of the version it was planned on.

Runs on executors, once per task and table, and again on the driver for a round that was lost to
another publish of the table. Rows are taken in chunks of bounded size. Updated rows are written
whole, under the stable row ids of the rows they replace; a row whose update changes nothing is not
written. The stored rows that they replace are named by fragment and offset (`matches`).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from omnigraph_spark.arrow.compare import differing
from omnigraph_spark.arrow.to_spark import nullable_blobs, scan_options
from omnigraph_spark.arrow.to_table import table_schema, to_table_batch
from omnigraph_spark.errors import IntegrityError
from omnigraph_spark.schema.property_types import is_blob
from omnigraph_spark.storage import lance_messages
from omnigraph_spark.storage.lance_errors import translated
from omnigraph_spark.storage.store import Storage
from omnigraph_spark.write.plan import TableTarget
from omnigraph_spark.write.tasks import matches, row_ids
from omnigraph_spark.write.tasks.lookup import Found, Known, Numbers, looked_up, lookup
from omnigraph_spark.write.tasks.matches import Match

if TYPE_CHECKING:
    from lance import LanceDataset

ROW_IDS = "row_ids"
"""Key of a staged fragment's JSON: the row ids that its rows keep (packed), absent for new rows.

The updated rows of a task are in the order of its matches.
"""
_CHUNK_ROWS = 1_048_576
_CHUNK_BYTES = 128 << 20
_SLICE_ROWS = 8_192
_BLOB_SLICE_ROWS = 256
_SAMPLES = 5

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


def stage_upsert(
    target: TableTarget,
    dataset: LanceDataset,
    batches: Iterable[pa.RecordBatch],
    write: Write,
    known: Known | None = None,
) -> Upserted:
    """Write the changed and the new rows of a task as fragments; commits nothing.

    `dataset` is the version that `target` names, `batches` have columns of the table alone, `id`
    among them; `write` turns batches in the table's schema into fragments. `known` are ids that
    were looked up in this version already.

    Raises:
        IntegrityError: a key comes twice in a chunk, or a new row lacks what may not be null.
        StorageError: the store failed; files written so far stay unreferenced.
    """
    task = _Task(target, dataset, write, known)
    for chunk in _chunks(batches):
        task.add(chunk)
    return task.done()


def stage_delete(dataset: LanceDataset, batches: Iterable[pa.RecordBatch]) -> Upserted:
    """Find the stored rows of ids that are deleted; writes nothing. Unknown ids are not an error.

    Raises:
        StorageError: the store failed.
    """
    addresses = [
        lookup(dataset, pc.unique(chunk["id"].combine_chunks())).addresses
        for chunk in _chunks(batches)
    ]
    none = np.empty(0, dtype=np.uint64)
    return Upserted(
        (), 0, 0, matches.of_addresses(np.concatenate([none, *addresses]), none), ("id",)
    )


def lance_fragments(
    storage: Storage, staged: Iterable[Mapping[str, Any]], found: Iterable[Match]
) -> Iterator[Any]:
    """Yield a task's fragments as Lance's, updated rows under the row ids that they keep.

    `found` are the task's matches. Runs on the driver, a fragment at a time.

    Raises:
        StorageError: row ids are in a file that can't be read.
    """
    from lance.fragment import FragmentMetadata

    replaced = matches.addresses(storage, found)
    waiting = np.empty(0, dtype=np.uint64)
    for fragment in staged:
        plain = {key: value for key, value in fragment.items() if key != ROW_IDS}
        if ROW_IDS in fragment:
            rows = int(fragment["physical_rows"])
            while len(waiting) < rows:
                waiting = np.concatenate((waiting, next(replaced)))
            kept_ids = row_ids.unpack(storage, fragment[ROW_IDS], waiting[:rows])
            waiting = waiting[rows:]
            plain["row_id_meta"] = {"Inline": list(lance_messages.row_id_sequence(kept_ids))}
        yield FragmentMetadata.from_json(json.dumps(plain))


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


class _Task:
    """The upsert of one task."""

    def __init__(
        self, target: TableTarget, dataset: LanceDataset, write: Write, known: Known | None
    ) -> None:
        self._target = target
        self._dataset = dataset
        self._write = write
        self._known = known
        self._keeps_ids = bool(dataset.has_stable_row_ids)
        self._schema = table_schema(target.schema)
        columns, self._own = _known(target, dataset)
        # The ids are equal: of the stored rows the other columns are read, or if there are none it.
        rest = [field for field in columns if field.name != "id"]
        self._stored_schema = pa.schema(rest or columns)
        self._fragments: list[dict[str, Any]] = []
        self._rows = self._bytes = 0
        self._matches: list[Match] = []
        self._columns: tuple[str, ...] = ()

    def add(self, chunk: pa.Table) -> None:
        """Write what a chunk changes and adds."""
        self._columns = tuple(chunk.column_names)
        ids = chunk["id"].combine_chunks()
        self._refuse_doubles(ids)
        hits = looked_up(self._dataset, ids, self._known)
        self._refuse_stored_doubles(ids, hits)
        if len(hits.positions):
            self._update(chunk.take(pa.array(hits.positions)), hits)
        new = np.ones(len(ids), dtype=bool)
        new[hits.positions] = False
        if new.any():
            self._insert(chunk.filter(pa.array(new)))

    def done(self) -> Upserted:
        """Return what was staged."""
        matched = tuple(self._matches)
        return Upserted(tuple(self._fragments), self._rows, self._bytes, matched, self._columns)

    def _refuse_doubles(self, ids: pa.Array) -> None:
        if len(pc.unique(ids)) == len(ids):  # a seventh of what Arrow's own count takes
            return
        counts = pc.value_counts(ids)
        doubled = counts.field(0).filter(pc.greater(counts.field(1), 1))
        if len(doubled):
            samples = doubled.slice(0, _SAMPLES).to_pylist()
            raise matches.doubled_keys(self._target.table_key, samples, len(doubled))

    def _refuse_stored_doubles(self, ids: pa.Array, hits: Found) -> None:
        doubled = np.flatnonzero(np.bincount(hits.positions, minlength=len(ids)) > 1)
        if len(doubled):
            samples = ids.take(pa.array(doubled[:_SAMPLES])).to_pylist()
            raise matches.doubled_in_table(self._target.table_key, samples, len(doubled))

    def _update(self, rows: pa.Table, hits: Found) -> None:
        flags: list[NDArray[np.bool_]] = []
        changed = self._changed_rows(rows, hits, flags)
        fragments = self._put(changed)
        differ = np.concatenate(flags)
        keys, places = hits.row_ids[differ], hits.addresses[differ]
        self._matches += matches.of_addresses(places, hits.addresses[~differ])
        start = 0
        for fragment in fragments if self._keeps_ids else ():
            end = start + int(fragment["physical_rows"])
            fragment[ROW_IDS] = row_ids.pack(keys[start:end], places[start:end])
            start = end

    def _put(self, batches: Iterator[pa.RecordBatch]) -> list[dict[str, Any]]:
        fragments, rows, size = self._write(batches)
        self._fragments += fragments
        self._rows += rows
        self._bytes += size
        return fragments

    def _changed_rows(
        self, rows: pa.Table, hits: Found, flags: list[NDArray[np.bool_]]
    ) -> Iterator[pa.RecordBatch]:
        """Yield the rows that differ from the stored ones, whole; notes which those are."""
        blobs = any(is_blob(field) for field in self._target.schema)
        step = _BLOB_SLICE_ROWS if blobs else _SLICE_ROWS
        for start in range(0, rows.num_rows, step):
            ours = rows.slice(start, step).combine_chunks()
            stored = self._stored(hits.row_ids[start : start + step], blobs)
            for name in self._target.added:  # columns that the write adds to the table
                if name not in self._own:
                    kind = self._schema.field(name).type
                    stored = stored.append_column(name, pa.nulls(stored.num_rows, kind))
            columns = []
            differ = np.zeros(ours.num_rows, dtype=bool)
            for field in self._schema:
                if field.name not in ours.column_names:
                    columns.append(stored.column(field.name))
                    continue
                columns.append(ours[field.name].chunk(0))
                if field.name != "id":
                    differ |= differing(columns[-1], stored.column(field.name))
            flags.append(differ)
            whole = pa.RecordBatch.from_arrays(columns, schema=self._schema)
            yield whole.filter(pa.array(differ))

    def _stored(self, keys: Numbers, blobs: bool) -> pa.RecordBatch:
        """Return the stored rows of row ids without `id`, in their order and the table's types."""
        ordered = pa.array(keys, pa.uint64())
        names = [self._own[name] for name in self._stored_schema.names]
        with translated(f"Reading the rows of {self._target.table_key} that are updated"):
            if blobs:
                rows = self._dataset.scanner(
                    columns=names,
                    filter=f"_rowid IN ({', '.join(map(str, keys.tolist()))})",
                    with_row_id=True,
                    **scan_options(self._dataset.schema),
                ).to_table()
                rows = rows.take(pc.index_in(ordered, value_set=rows["_rowid"].combine_chunks()))
                rows = rows.drop_columns("_rowid")
                for name in nullable_blobs(self._dataset.schema):
                    rows = _empty_as_null(rows, name)
            else:
                rows = self._dataset._take_rows(keys.tolist(), columns=names)
        rows = rows.select(names).rename_columns(self._stored_schema.names)
        (batch,) = rows.combine_chunks().to_batches()
        return to_table_batch(batch, self._stored_schema, self._target.table_key)

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


def _known(target: TableTarget, dataset: LanceDataset) -> tuple[list[pa.Field], dict[str, str]]:
    """Return the columns of the target that a version has, and what it calls them."""
    before, existing = target.before(), set(dataset.schema.names)
    changed = dict(target.renamed)
    known, own = [], {}
    for field in target.schema:
        name = before.get(field.name) or field.name
        added = field.name in target.added and field.name in changed
        if name in existing and not added:
            known.append(field)
            own[field.name] = name
    return known, own


def _empty_as_null(rows: pa.Table, name: str) -> pa.Table:
    column = rows[name].combine_chunks()
    empty = pc.equal(pc.binary_length(column), 0)
    cleared = pc.if_else(empty, pa.scalar(None, column.type), column)
    return rows.set_column(rows.column_names.index(name), name, cleared)
