"""Stage rows: write Lance fragments in a task and commit nothing.

Runs on executors, once per task. What it returns is plain data that the commit message carries:
fragment metadata, counts and the field map (rule 1); never a handle or a secret. A task that
fails leaves unreferenced data files behind, which `abort` or cleanup removes.
"""

from __future__ import annotations

import itertools
import json
import queue
import threading
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pyarrow as pa

from omnigraph_spark import _faults
from omnigraph_spark.storage import column_numbers
from omnigraph_spark.storage.column_numbers import FieldMap
from omnigraph_spark.storage.ids import new_ulid
from omnigraph_spark.storage.lance_errors import translated
from omnigraph_spark.storage.opened import version_of
from omnigraph_spark.write import staging
from omnigraph_spark.write.plan import CREATE, DELETE, MERGE, TableTarget, WritePlan
from omnigraph_spark.write.tasks import edge_ids, packed, row_conflicts, upsert
from omnigraph_spark.write.tasks.lookup import Known
from omnigraph_spark.write.tasks.matches import Match

if TYPE_CHECKING:
    from lance import LanceDataset

DATA_STORAGE_VERSION: Literal["2.2"] = "2.2"
_CHUNK_BYTES = 8 << 20
_CHUNK_ROWS = 65_536


@dataclass(frozen=True)
class StagedTable:
    """The fragments that one task wrote for one table.

    An upsert's also name the stored rows that they replace (`matches`) and the columns that its
    frame brought; with `deletes` those rows go, and none comes. `beside` is the file that the rest
    of a large message is in, "" for none.
    """

    table_key: str
    fragments: tuple[dict[str, Any], ...]
    rows: int
    bytes: int
    fields: FieldMap
    matches: tuple[Match, ...] = ()
    columns: tuple[str, ...] = ()
    beside: str = ""
    deletes: bool = False


def to_json(staged: Iterable[StagedTable]) -> str:
    """Return staged tables as the JSON text of a commit message."""
    return json.dumps([asdict(part) for part in staged], separators=(",", ":"))


def from_json(text: str) -> list[StagedTable]:
    """Return the staged tables that a commit message holds."""
    return [
        StagedTable(
            table_key=entry["table_key"],
            fragments=tuple(entry["fragments"]),
            rows=entry["rows"],
            bytes=entry["bytes"],
            fields=tuple((f[0], f[1], f[2], f[3]) for f in entry["fields"]),
            matches=tuple(Match(**match) for match in entry["matches"]),
            columns=tuple(entry["columns"]),
            beside=entry["beside"],
            deletes=entry["deletes"],
        )
        for entry in json.loads(text)
    ]


def stage(
    plan: WritePlan,
    batches: Iterable[tuple[str, pa.RecordBatch]],
    known: Known | None = None,
) -> list[StagedTable]:
    """Write the batches of a task as fragments of their tables, in memory bounded by a few batches.

    `batches` are (table key, rows in the Arrow schema of the table). One table streams through this
    thread; several are written side by side, each by a thread of its own. `known` are ids that were
    looked up already, in the version that the one target of an upsert names.

    Raises:
        StorageError: the store failed; files written so far stay unreferenced.
        IntegrityError, SchemaMismatchError: whatever the iterator of batches raises.
    """
    staging.renew(plan.storage, plan.publish_id, plan.planned_at)
    _faults.point("stage.before_first_file")
    if len(plan.targets) == 1:
        (target,) = plan.targets.values()
        staged = [_stage_one(plan, target, (batch for _, batch in batches), known)]
    else:
        staged = _stage_many(plan, batches)
    staging.renew(plan.storage, plan.publish_id, plan.planned_at)
    _faults.point("stage.done")
    return _within_a_message(plan, [part for part in staged if part.fragments or part.matches])


def _within_a_message(plan: WritePlan, staged: list[StagedTable]) -> list[StagedTable]:
    """Move what says which rows are replaced into files if it would make the message large."""
    if sum(len(text) for part in staged for text in _texts(part)) <= packed.MOST_IN_A_MESSAGE:
        return staged
    return [_moved_out(plan, part) if part.matches else part for part in staged]


def _texts(staged: StagedTable) -> list[str]:
    ids = [fragment[upsert.ROW_IDS] for fragment in staged.fragments if upsert.ROW_IDS in fragment]
    return ids + [text for match in staged.matches for text in (match.changed, match.same)]


def _moved_out(plan: WritePlan, staged: StagedTable) -> StagedTable:
    target = plan.targets[staged.table_key]
    path = f"{target.data}/{new_ulid()}{packed.SUFFIX}"
    moved = iter(packed.moved_out(plan.storage, path, _texts(staged)))
    fragments = tuple(
        {**fragment, upsert.ROW_IDS: next(moved)} if upsert.ROW_IDS in fragment else fragment
        for fragment in staged.fragments
    )
    matches = tuple(replace(m, changed=next(moved), same=next(moved)) for m in staged.matches)
    return replace(staged, fragments=fragments, matches=matches, beside=path)


def _stage_one(
    plan: WritePlan,
    target: TableTarget,
    batches: Iterator[pa.RecordBatch],
    known: Known | None = None,
) -> StagedTable:
    """Stream batches into the fragments of one table; a table without rows writes no file."""
    first = next((b for b in batches if b.num_rows), None)
    if first is None:
        return StagedTable(target.table_key, (), 0, 0, ())
    batches = itertools.chain((first,), batches)
    if target.mode in (MERGE, DELETE):
        return restage(plan, target, batches, known)
    destination, written, fields = _destination(plan, target)
    if target.mode != CREATE and target.edge_key and not target.keeps_key:
        dataset = plan.storage.dataset(target.location, target.table_branch, target.version)
        batches = edge_ids.found_by_values(target, dataset, batches)
    fragments, rows, size = _write(plan, target, destination, batches)
    numbered = tuple(column_numbers.renumbered(fragments, written, fields))
    return StagedTable(target.table_key, numbered, rows, size, fields)


def restage(
    plan: WritePlan,
    target: TableTarget,
    batches: Iterable[pa.RecordBatch],
    known: Known | None = None,
) -> StagedTable:
    """Stage an upsert's or a delete's rows of one table against the version that `target` names.

    Raises:
        IntegrityError: a key comes twice, or a new row lacks what may not be null.
        RowConflictError: others changed rows since the frame was read.
        StorageError: the store failed; files written so far stay unreferenced.
    """
    dataset = version_of(plan.storage, target.location, target.table_branch, target.version)
    batches = edge_ids.found_by_values(target, dataset, batches)
    batches = row_conflicts.checked(plan.storage, target, batches)
    if target.mode == DELETE:
        done = upsert.stage_delete(dataset, batches)
        written = fields = column_numbers.of_dataset(dataset)
    else:
        destination, written, fields = _destination(plan, target, dataset)
        done = upsert.stage_upsert(
            target, dataset, batches, lambda rows: _write(plan, target, destination, rows), known
        )
    return StagedTable(
        target.table_key,
        done.fragments
        if written is fields
        else tuple(column_numbers.renumbered(done.fragments, written, fields)),
        done.rows,
        done.bytes,
        fields,
        done.matches,
        done.columns,
        deletes=target.mode == DELETE,
    )


def _write(
    plan: WritePlan,
    target: TableTarget,
    destination: LanceDataset | str,
    batches: Iterator[pa.RecordBatch],
) -> upsert.Written:
    """Write batches as fragments; no rows make no file."""
    from lance.fragment import write_fragments

    batches = bounded(batches)
    first = next((b for b in batches if b.num_rows), None)
    if first is None:
        return [], 0, 0
    counted = _Counted(first, batches)
    reader = pa.RecordBatchReader.from_batches(first.schema, iter(counted))
    try:
        with translated(f"Writing fragments of {target.table_key}"):
            fragments = write_fragments(
                reader,
                destination,
                mode="overwrite" if isinstance(destination, str) else "append",
                max_rows_per_file=plan.settings.max_rows_per_file,
                max_bytes_per_file=plan.settings.max_bytes_per_file,
                data_storage_version=DATA_STORAGE_VERSION,
                storage_options=plan.storage.lance_options(),
                enable_stable_row_ids=True,
            )
    finally:
        if counted.error is not None:
            raise counted.error
    return [_fragment_json(fragment) for fragment in fragments], counted.rows, counted.bytes


class _Counted:
    """Batches of one table, counted; keeps the typed error that Lance would turn into text."""

    def __init__(self, first: pa.RecordBatch, rest: Iterator[pa.RecordBatch]) -> None:
        self._first = first
        self._rest = rest
        self.rows = 0
        self.bytes = 0
        self.error: BaseException | None = None

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        yield self._count(self._first)
        _faults.point("stage.file_half_written")
        try:
            for batch in self._rest:
                if batch.num_rows:
                    yield self._count(batch)
        except GeneratorExit:
            raise
        except BaseException as error:
            self.error = error
            raise

    def _count(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        self.rows += batch.num_rows
        self.bytes += batch.nbytes
        return batch


def _destination(
    plan: WritePlan, target: TableTarget, opened: LanceDataset | None = None
) -> tuple[LanceDataset | str, FieldMap, FieldMap]:
    """Return where Lance writes, the field ids that it gives, and those that fragments are to have.

    They differ where the write changes columns: Lance then numbers them as a new table's.
    `opened` is the table's version, if the caller has it already.
    """
    # On a graph branch a table's first version is one of its fork, and so are its files.
    uri = plan.storage.dataset_uri(target.location, target.table_branch)
    if target.mode == CREATE:
        fields = column_numbers.of_new(target.schema)
        return uri, fields, fields
    dataset = opened
    if dataset is None:
        dataset = plan.storage.dataset(target.location, target.table_branch, target.version)
    if not target.has_new_columns:
        fields = column_numbers.of_dataset(dataset)
        return dataset, fields, fields
    return uri, column_numbers.of_new(target.schema), planned_fields(target, dataset)


def planned_fields(target: TableTarget, dataset: LanceDataset) -> FieldMap:
    """Return the field ids of a table once its write has changed its columns.

    Raises:
        StorageError: Lance doesn't take a column.
    """
    if not target.has_new_columns:
        return column_numbers.of_dataset(dataset)
    new = [target.schema.field(name) for name in target.added]
    return column_numbers.of_schema(column_numbers.with_columns(dataset, new, target.reshaping()))


def _fragment_json(fragment: Any) -> dict[str, Any]:
    document: dict[str, Any] = fragment.to_json()
    return document


_END = None
_Queue = queue.Queue[pa.RecordBatch | None]


class _TableThread:
    """Writes one table of a whole-graph frame from a bounded queue."""

    def __init__(self, plan: WritePlan, target: TableTarget) -> None:
        self._queue: _Queue = queue.Queue(maxsize=2)
        self._waiting: list[pa.RecordBatch] = []
        self._waiting_bytes = 0
        self._waiting_rows = 0
        self.staged: StagedTable | None = None
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, args=(plan, target), daemon=True)
        self._thread.start()

    def _run(self, plan: WritePlan, target: TableTarget) -> None:
        try:
            self.staged = _stage_one(plan, target, iter(self._queue.get, _END))
        except BaseException as error:  # noqa: BLE001  (raised again in the task's thread)
            self.error = error

    def add(self, batch: pa.RecordBatch) -> None:
        """Hand over rows; small batches are gathered first: 50 tables would write slivers."""
        self._waiting.append(batch)
        self._waiting_bytes += batch.nbytes
        self._waiting_rows += batch.num_rows
        if self._waiting_bytes >= _CHUNK_BYTES or self._waiting_rows >= _CHUNK_ROWS:
            self._flush()

    def _flush(self) -> None:
        if self._waiting:
            merged = pa.Table.from_batches(self._waiting).combine_chunks().to_batches()
            self._waiting, self._waiting_bytes, self._waiting_rows = [], 0, 0
            for batch in merged:
                self._put(batch)

    def _put(self, item: pa.RecordBatch | None) -> None:
        while self._thread.is_alive():
            try:
                self._queue.put(item, timeout=0.2)
            except queue.Full:
                continue
            return
        if self.error is not None:
            raise self.error

    def finish(self, *, flush: bool) -> None:
        """End the table: write what is left (`flush`), or stop where it is."""
        try:
            if flush:
                self._flush()
        finally:
            if self._thread.is_alive():
                self._put(_END)
            self._thread.join()


def _finish(threads: Iterable[_TableThread], *, flush: bool) -> None:
    """End all threads, whatever one of them raises: a worker process outlives its task.

    Raises:
        OmnigraphError: the first error of a thread; the other tables are then stopped where they
            are.
    """
    first: BaseException | None = None
    for thread in threads:
        try:
            thread.finish(flush=flush and first is None)
        except BaseException as error:  # noqa: BLE001  (raised again when all have ended)
            first = first or error
    if first is not None:
        raise first


def _stage_many(
    plan: WritePlan, batches: Iterable[tuple[str, pa.RecordBatch]]
) -> list[StagedTable]:
    threads: dict[str, _TableThread] = {}
    complete = False
    try:
        for key, batch in batches:
            if not batch.num_rows:
                continue
            if key not in threads:
                threads[key] = _TableThread(plan, plan.targets[key])
            threads[key].add(batch)
        complete = True
    finally:
        _finish(threads.values(), flush=complete)
    for thread in threads.values():
        if thread.error is not None:
            raise thread.error
    return [thread.staged for thread in threads.values() if thread.staged is not None]


_LARGE_ROW_BYTES = 4 << 20
_MOST_JOINED_BYTES = 1 << 30  # of text in one array there can be 2 GiB
_LARGE_BATCH_BYTES = 96 << 20
"""Spark 4.1 and later send batches of up to 64 MiB and a row, which stay as they are."""
_CUT_BYTES = 16 << 20


def bounded(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the rows of batches in order, a large row together with the next, large batches cut.

    Holds one row, or one cut, more than the batches themselves. The last row may stay alone.
    """
    held: pa.RecordBatch | None = None
    for batch in (part for whole in batches for part in _parts(whole)):
        if held is not None and held.nbytes + batch.nbytes > _MOST_JOINED_BYTES:
            yield held
            held = None
        if held is not None:
            (batch,) = pa.Table.from_batches([held, batch]).combine_chunks().to_batches()
            held = None
        if batch.num_rows == 1 and batch.nbytes >= _LARGE_ROW_BYTES:
            held = batch
        else:
            yield batch
    if held is not None:
        yield held


def _parts(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    if batch.nbytes <= _LARGE_BATCH_BYTES:
        yield batch
        return
    step = max(2, batch.num_rows * _CUT_BYTES // batch.nbytes)
    for start in range(0, batch.num_rows, step):
        end = min(start + step, batch.num_rows)
        # A copy: Lance counts a slice as large as what it is a slice of.
        yield batch.take(pa.array(np.arange(start, end)))
