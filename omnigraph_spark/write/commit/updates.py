"""Commit an upsert of one table: its Lance operation, and what a lost round does again.

Runs on the driver, in the rounds of a write. Offsets of replaced rows hold only for the version
that was matched; where another write published the table meanwhile, the staged rows are matched
again, against the newly pinned version, and staged again.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from omnigraph_spark.errors import ExpectedVersionMismatch, IntegrityError
from omnigraph_spark.manifest.manifest_rows import ManifestRows
from omnigraph_spark.manifest.snapshot import Snapshot, TableEntry
from omnigraph_spark.schema.model import EngineSchema
from omnigraph_spark.schema.property_types import is_blob
from omnigraph_spark.storage import column_numbers
from omnigraph_spark.storage.column_numbers import FieldMap
from omnigraph_spark.storage.lance_errors import translated
from omnigraph_spark.storage.store import Storage
from omnigraph_spark.write.commit import deletes, staged_files
from omnigraph_spark.write.plan import DELETE, MERGE, REPLACE, TableTarget, WritePlan
from omnigraph_spark.write.reads import spans_of_others
from omnigraph_spark.write.tasks import matches, replaced, row_conflicts, stage
from omnigraph_spark.write.tasks.stage import StagedTable

if TYPE_CHECKING:
    from lance import LanceDataset

MOST_UPDATED_ROWS = 262_144
"""So many updated rows are committed at once: while it does, Lance holds 130 bytes of each."""

ByTable = Mapping[str, list[StagedTable]]
"""What was staged, by table key."""

_log = logging.getLogger(__name__)


def replaced_rows(staged: Sequence[StagedTable], entry: TableEntry | None, kept: int) -> int:
    """Return how many stored rows the staged ones replace, `kept` being those that stayed."""
    if entry is None or not any(part.matches for part in staged):
        return 0
    return entry.row_count - kept


def operations(
    storage: Storage, head: LanceDataset, staged: Sequence[StagedTable], new: list[Any]
) -> list[Any]:
    """Return the Lance operations that add fragments and take out the rows they replace.

    `head` has the content of the version that was matched. Without replaced rows it is one append.
    Many updated rows are committed in steps, one version each, of which the last takes out the rows
    that all of them replace: until then Lance finds there when a row was created.

    Raises:
        StorageError: a deletion file couldn't be written, or a task's file not be read.
    """
    from lance import LanceOperation

    grouped = matches.by_fragment(match for part in staged for match in part.matches if match.rows)
    if not grouped:
        return [LanceOperation.Append(new)]
    updated, gone = [], []
    with translated("Taking replaced rows out of their fragments"):
        for number, group in sorted(grouped.items()):
            stored = head.get_fragment(number)
            assert stored is not None
            left = stored.delete_rows(matches.united(storage, group))
            if left is None:
                gone.append(number)
            else:
                updated.append(left)
    if not new:
        return [LanceOperation.Delete(updated, gone, "rows that a write names by id")]
    fields = _changed_fields(head)
    *first, last = _steps(new)
    return [
        *(_update([], [], part, fields) for part in first),
        _update(gone, updated, last, fields),
    ]


def _update(gone: list[int], updated: list[Any], new: list[Any], fields: list[int]) -> Any:
    from lance import LanceOperation

    return LanceOperation.Update(
        removed_fragment_ids=gone,
        updated_fragments=updated,
        new_fragments=new,
        fields_modified=[],
        fields_for_preserving_frag_bitmap=fields,
        update_mode="rewrite_rows",
    )


def _steps(new: Sequence[Any]) -> list[list[Any]]:
    """Cut fragments into steps of at most so many updated rows; a larger one is a step itself."""
    steps: list[list[Any]] = [[]]
    rows = 0
    for fragment in new:
        updated = 0 if fragment.row_id_meta is None else int(fragment.physical_rows)
        if updated and rows and rows + updated > MOST_UPDATED_ROWS:
            steps.append([])
            rows = 0
        steps[-1].append(fragment)
        rows += updated
    return steps


def _changed_fields(head: LanceDataset) -> list[int]:
    """Return the fields whose indices don't cover updated rows: all of them.

    For any other field Lance lets the indices of the old rows cover the new fragments, since row
    ids stay: those that map values to row ids would go on answering with the values of before.
    """
    return [number for _, number, _, _ in column_numbers.of_dataset(head)]


def refuse_doubles(plan: WritePlan, by_table: ByTable) -> None:
    """Refuse an upsert in which two rows of different tasks matched one stored row.

    Keys that the table doesn't have yet are compared by the check inside the round.

    Raises:
        IntegrityError: there are such rows; nothing was committed, the staged files are deleted.
        StorageError: the store failed.
    """
    for key, staged in by_table.items() if plan.mode == MERGE else ():
        grouped = matches.by_fragment(match for part in staged for match in part.matches)
        if not any(len(group) > 1 for group in grouped.values()):
            continue
        target = plan.targets[key]
        dataset = plan.storage.dataset(target.location, target.table_branch, target.version)
        try:
            matches.refuse_doubles(plan.storage, dataset, key, grouped)
        except IntegrityError:
            staged_files.delete(plan, [part for every in by_table.values() for part in every])
            raise


def matched(
    plan: WritePlan, by_table: ByTable, snapshot: Snapshot, rows: ManifestRows
) -> tuple[WritePlan, ByTable] | None:
    """Return the plan and the staged tables matched to the snapshot; None where they are.

    `rows` are those of the `__manifest` that the snapshot is of.

    Raises:
        ExpectedVersionMismatch: the staged rows of a table hold for the planned version alone.
        OmnigraphError: as `rematched`.
    """
    stale = [key for key in sorted(by_table) if by_table[key] and is_stale(plan, snapshot, key)]
    if not stale:
        return None
    for key in stale:
        if not can_be_matched_again(plan, plan.targets[key]):
            raise ExpectedVersionMismatch(key, plan.targets[key].version, snapshot.version(key))
    targets, staged = dict(plan.targets), dict(by_table)
    for key in stale:
        targets[key], staged[key] = rematched(plan, snapshot, rows, key, by_table[key])
    again = replace(plan, targets=targets)
    refuse_doubles(again, staged)  # two new rows of one key are two updates by now
    return again, staged


def can_be_matched_again(plan: WritePlan, target: TableTarget) -> bool:
    """Return whether what is staged for a table can be matched to another version than the planned.

    Not what a merge of branches staged: it decided by the versions that it compared, and names rows
    to delete. Nor rows with blobs, which can't be read again from the staged files.
    """
    if plan.merged_parent is not None:
        return False
    return plan.mode != MERGE or not any(is_blob(field) for field in target.schema)


def for_round(
    plan: WritePlan,
    by_table: ByTable,
    snapshot: Snapshot,
    schema: EngineSchema,
    rows: ManifestRows,
) -> tuple[WritePlan, ByTable]:
    """Return what a round commits: deletes with the edges that go with them, and what is replaced.

    Raises:
        RowConflictError: (`replaceWhere`) others changed rows since the frame was read.
        IntegrityError, StorageError: as `deletes.with_edges`.
    """
    if plan.mode == REPLACE:
        plan, by_table = _with_replaced(plan, by_table, snapshot, rows)
    gone = {key: [part for part in staged if part.deletes] for key, staged in by_table.items()}
    if not any(gone.values()):
        return plan, by_table
    return deletes.with_edges(plan, by_table, gone, snapshot, schema)


def _with_replaced(
    plan: WritePlan, by_table: ByTable, snapshot: Snapshot, rows: ManifestRows
) -> tuple[WritePlan, ByTable]:
    """Add the stored rows that the predicate of a write chooses in the snapshot, as deletes."""
    targets, staged = dict(plan.targets), dict(by_table)
    for key, target in plan.targets.items():
        entry = snapshot.tables.get(key)
        if entry is None:
            continue
        targets[key] = now = replace(target, mode=REPLACE, version=entry.table_version)
        dataset = plan.storage.dataset(now.location, now.table_branch, now.version)
        _refuse_moved(plan, now, dataset, entry, rows)
        chosen = replaced.matching(dataset, now)
        if chosen:
            fields = column_numbers.of_dataset(dataset)
            gone = StagedTable(key, (), 0, 0, fields, chosen, ("id",), deletes=True)
            staged[key] = [*staged.get(key, ()), gone]
    return replace(plan, targets=targets), staged


def _refuse_moved(
    plan: WritePlan,
    target: TableTarget,
    dataset: LanceDataset,
    entry: TableEntry,
    rows: ManifestRows,
) -> None:
    """Refuse to replace rows that others changed since the frame was read from the table."""
    read = plan.reads.get(target.table_key)
    others = () if read is None else spans_of_others(rows.table, read, entry)
    if read is None or not others:
        return
    versions = [dataset]
    if read.version:
        versions.append(plan.storage.dataset(target.location, read.table_branch, read.version))
    target = replace(target, others=others)
    for version in versions:
        known = set(version.schema.names)
        if all(name in known or name not in target.replaces for name in target.schema.names):
            row_conflicts.refuse(plan.storage, target, [*replaced.ids(version, target)])


def without(plan: WritePlan, by_table: ByTable, bad: Mapping[str, pa.Table]) -> ByTable:
    """Return what was staged without some rows, which then leave the stored rows they name alone.

    `bad` has `f` and `r` by table: which staged file, in order, and which row in it.

    Raises:
        StorageError: the store failed; nothing was published.
    """
    left = dict(by_table)
    for key, rows in bad.items():
        first, again = 0, []
        for part in by_table[key]:
            places = {
                number: rows.filter(pc.equal(rows["f"], first + number))["r"].combine_chunks()
                for number in range(len(part.fragments))
            }
            first += len(part.fragments)
            if any(map(len, places.values())):
                remaining = staged_files.read(plan, plan.targets[key], part, places)
                part = stage.restage(plan, plan.targets[key], remaining)
            again.append(part)
        left[key] = [part for part in again if part.fragments or part.matches]
    return left


def is_stale(plan: WritePlan, snapshot: Snapshot, key: str) -> bool:
    """Return whether an upsert's rows of a table were matched against another version."""
    entry = snapshot.tables.get(key)
    if plan.mode not in (MERGE, DELETE) or entry is None:
        return False
    target = plan.targets[key]
    return target.mode != plan.mode or target.version != entry.table_version


def rematched(
    plan: WritePlan, snapshot: Snapshot, rows: ManifestRows, key: str, staged: Sequence[StagedTable]
) -> tuple[TableTarget, list[StagedTable]]:
    """Match staged rows again, against the version that the snapshot pins; stages them again.

    Only the columns that the frame brought are taken from the staged files, so that what others
    wrote to the other ones stays. A row that changed nothing when it was first matched counts as
    written then. The old files are left to cleanup.

    Raises:
        SchemaMismatchError: the table's schema isn't the one the rows were staged under.
        RowConflictError: others changed rows since the frame was read.
        IntegrityError: a row that was an update is new by now and lacks what may not be null.
        StorageError: the store failed.
    """
    old = plan.targets[key]
    entry = snapshot.tables[key]
    others = spans_of_others(rows.table, plan.reads[key], entry) if key in plan.reads else ()
    target = replace(old, mode=plan.mode, version=entry.table_version, others=others)
    dataset = plan.storage.dataset(target.location, target.table_branch, target.version)
    _log.info("write %s: matching %s again at %d", plan.publish_id, key, target.version)
    again = []
    gone = [part for part in staged if part.deletes]
    if gone:
        before = plan.storage.dataset(old.location, old.table_branch, old.version)
        ids = deletes.deleted_ids(plan.storage, before, {key: gone}, key)
        batches = (pa.RecordBatch.from_arrays([piece], names=["id"]) for piece in ids)
        again.append(stage.restage(plan, replace(target, mode=DELETE), batches))
    if plan.mode == MERGE:
        target = _with_columns_of(dataset, target)
    for part in staged:
        if part.fragments:
            _refuse_other_columns(old, part, dataset)
            again.append(stage.restage(plan, target, staged_files.read(plan, target, part)))
    return target, [part for part in again if part.fragments or part.matches]


def _with_columns_of(dataset: LanceDataset, target: TableTarget) -> TableTarget:
    """Return the target with the columns that a table has by now, and those that it still lacks.

    Updated rows are written whole, so they need the columns that others added meanwhile too.
    """
    existing = dataset.schema.names
    added = tuple(name for name in target.added if name not in existing)
    new = [target.schema.field(name) for name in added]
    wide = pa.schema([*dataset.schema, *new], dataset.schema.metadata)
    return replace(target, schema=wide, added=added)


def _refuse_other_columns(planned: TableTarget, staged: StagedTable, dataset: LanceDataset) -> None:
    """Refuse rows whose columns others dropped or changed; those that the plan adds may be new.

    Raises:
        SchemaMismatchError: names the table and the column.
    """
    existing = set(dataset.schema.names)

    def brought(fields: FieldMap) -> FieldMap:
        picked = []
        for path, number, kind, nullable in fields:
            top = path.partition(".")[0]
            if top in staged.columns and (top in existing or top not in planned.added):
                picked.append((path, -1 if top in planned.added else number, kind, nullable))
        return tuple(sorted(picked))

    now = column_numbers.of_dataset(dataset)
    column_numbers.check(planned.table_key, brought(staged.fields), brought(now))
