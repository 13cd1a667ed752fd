"""Few files where many small tasks wrote: their rows are gathered before the first table commit.

Runs on the driver, in the rounds of a write, and has something to do in the first at most. Each
task stages a file of its own (rule 1), so a thousand rows of 200 tasks would be 200 fragments,
which every later read opens. What is gathered is bounded, whatever a write has: above that, files
stay as they are until `optimize`. Tables with blobs are left out: their bytes are in files beside.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import chain

import pyarrow as pa

from omnigraph_spark.errors import OmnigraphError
from omnigraph_spark.schema.property_types import is_blob
from omnigraph_spark.write.commit import staged_files
from omnigraph_spark.write.commit.updates import ByTable
from omnigraph_spark.write.plan import MERGE, TableTarget, WritePlan
from omnigraph_spark.write.tasks import lookup
from omnigraph_spark.write.tasks.stage import StagedTable, stage

FEWEST_TASKS = 8
"""So many small tasks of a table are gathered; fewer are few files."""
SMALL_BYTES = 1 << 20
"""A task's rows of a table are small up to so many bytes, as Arrow."""
MOST_BYTES = 32 << 20
"""So many bytes of rows are gathered in one write at most; all of it may be in memory."""
_READ_AT_ONCE = 8

_log = logging.getLogger(__name__)


def gathered(plan: WritePlan, by_table: ByTable) -> ByTable:
    """Return what was staged with the rows of small tasks in few files; the same object if none.

    The old files are deleted; where that fails they are left to cleanup. An upsert's rows are
    matched again, all at once, against the version that the plan names, if that takes no long scan.

    Raises:
        IntegrityError: (upsert) a key comes twice.
        StorageError: the store failed; nothing was published.
    """
    if plan.merged_parent is not None:
        return by_table
    replaced: dict[str, list[StagedTable]] = {}
    gone: list[StagedTable] = []
    room = MOST_BYTES
    for key, staged in by_table.items():
        small = _small(plan.targets[key], staged, room)
        if len(small) < FEWEST_TASKS or not _is_cheap(plan, plan.targets[key], small):
            continue
        room -= sum(part.bytes for part in small)
        replaced[key] = _gathered(plan, plan.targets[key], staged, small)
        gone += small
        _log.info("write %s: %d small tasks of %s gathered", plan.publish_id, len(small), key)
    if not replaced:
        return by_table
    try:
        staged_files.delete(plan, gone)
    except OmnigraphError as error:
        _log.warning("write %s: %s", plan.publish_id, error)
    return {**by_table, **replaced}


def _small(target: TableTarget, staged: Sequence[StagedTable], room: int) -> list[StagedTable]:
    if any(is_blob(field) for field in target.schema):
        return []
    small = []
    for part in staged:
        if part.fragments and part.bytes <= min(SMALL_BYTES, room):
            small.append(part)
            room -= part.bytes
    return small


def _is_cheap(plan: WritePlan, target: TableTarget, small: Sequence[StagedTable]) -> bool:
    """Return whether an upsert's rows are matched again without a long scan on the driver."""
    if target.mode != MERGE:
        return True
    dataset = plan.storage.dataset(target.location, target.table_branch, target.version)
    return lookup.is_cheap(dataset, sum(part.rows for part in small))


def _gathered(
    plan: WritePlan, target: TableTarget, staged: Sequence[StagedTable], small: list[StagedTable]
) -> list[StagedTable]:
    """Stage the rows of small tasks as one task would, in the place of the first of them."""
    rows = _rows(plan, target, small)
    made = stage(plan, ((target.table_key, batch) for batch in rows))
    old = {id(part) for part in small}
    position = next(number for number, part in enumerate(staged) if id(part) in old)
    return [*staged[:position], *made, *(part for part in staged[position:] if id(part) not in old)]


def _rows(
    plan: WritePlan, target: TableTarget, small: Sequence[StagedTable]
) -> Iterator[pa.RecordBatch]:
    with ThreadPoolExecutor(_READ_AT_ONCE) as pool:
        yield from chain.from_iterable(
            pool.map(lambda part: [*staged_files.read(plan, target, part)], small)
        )
