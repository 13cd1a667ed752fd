"""Columns that a write adds to a table: committed as metadata, filled by its fragments (driver).

Tasks run before the column exists, and fragments carry field ids (rule 1). So tasks write
their files as for a new table and enter the ids that the columns are going to have; the commit
numbers the columns again, against the version that it commits on, and enters those ids instead: a
data file itself holds none. The columns that the table had must still have the ids of the plan.

A column is added by Lance's Merge of the fragments that are there, with `max_retries=0`: no data
file is written, old rows read null, indices stay. It is refused over every change of rows or
columns; over an index build or a change of settings it lands later, which its version shows.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from omnigraph_spark import _faults
from omnigraph_spark.errors import OmnigraphError, SchemaMismatchError
from omnigraph_spark.manifest.snapshot import TableEntry
from omnigraph_spark.storage import column_numbers
from omnigraph_spark.storage.column_numbers import FieldMap
from omnigraph_spark.storage.lance_errors import translated
from omnigraph_spark.storage.store import Storage
from omnigraph_spark.write import shared
from omnigraph_spark.write.commit import staged_files
from omnigraph_spark.write.commit.table_head import (
    Round,
    commit,
    contiguous,
    settle,
    strip,
    take_back,
)
from omnigraph_spark.write.plan import TableTarget
from omnigraph_spark.write.tasks.stage import StagedTable
from omnigraph_spark.write.tasks.upsert import lance_fragments

if TYPE_CHECKING:
    from lance import LanceDataset, LanceOperation
    from lance.schema import LanceSchema

_WIDER = "__wider"


def schema_with(target: TableTarget, head: LanceDataset) -> LanceSchema:
    """Return the schema that a table gets: its own, and behind it what it lacks of the target's.

    A column that a rival added meanwhile is taken as it is, if its type is the same.

    Raises:
        SchemaMismatchError: it has another type.
    """
    existing = {field.name: field for field in head.schema}
    missing = []
    for name in target.added:
        added = target.schema.field(name)
        present = existing.get(name)
        if present is None:
            missing.append(added)
        elif str(present.type) != str(added.type):
            raise SchemaMismatchError(
                f"Another writer added {name} to {target.table_key} meanwhile, with another type",
                expected=str(added.type),
                found=str(present.type),
                hint="Nothing was published. Cast the column, then write again",
                table_key=target.table_key,
                column=name,
            )
    return column_numbers.with_columns(head, missing)


def add(round_: Round, head: LanceDataset, schema: LanceSchema) -> LanceDataset:
    """Add the columns of `schema` that a table lacks, in its next version; `head` if none.

    Raises:
        StartOver: another writer was first; nothing of this stays that another could adopt.
        StorageError: the store failed.
    """
    from lance import LanceOperation

    if column_numbers.of_schema(schema) == column_numbers.of_dataset(head):
        return head
    _faults.point("table.before_columns")
    before = int(head.version)
    fragments = [fragment.metadata for fragment in head.get_fragments()]
    merge = LanceOperation.Merge(fragments, schema)
    made = commit(head, before, merge, round_.publish_id, max_retries=0)
    made = contiguous(made, before, round_.publish_id)
    _faults.point("table.columns_added")
    return made


def placed(round_: Round, target: TableTarget, schema: LanceSchema) -> LanceSchema:
    """Return a table's new schema with its columns where the engines of the graph want them."""
    if not round_.format.has_identities:
        return schema
    names = [field.name() for field in schema.fields()]
    return column_numbers.in_order(schema, shared.stored_order(target.table_key, names))


def fitted(
    storage: Storage, target: TableTarget, staged: Sequence[StagedTable], now: FieldMap
) -> list[Any]:
    """Return the staged fragments under the field ids of the version that they are committed on.

    Raises:
        SchemaMismatchError: a column that the table had at the plan isn't the same any more, or one
            that the fragments lack allows no nulls.
        StorageError: as `upsert.lance_fragments`.
    """
    fitted_fragments: list[Any] = []
    for part in staged:
        fragments: Sequence[dict[str, Any]] = part.fragments
        _check(target, part.fields, now)
        if target.has_new_columns:
            fragments = column_numbers.renumbered(fragments, part.fields, now)
        fitted_fragments += lance_fragments(storage, fragments, part.matches)
    return fitted_fragments


def _check(target: TableTarget, staged: FieldMap, now: FieldMap) -> None:
    """Refuse fragments whose columns aren't those of the table, but for ids of added columns."""
    added = set(target.added)
    ids = {path: number for path, number, _, _ in now}
    expected = tuple(
        (path, ids.get(path, number) if path.partition(".")[0] in added else number, arrow, null)
        for path, number, arrow, null in staged
    )
    column_numbers.check_grown(target.table_key, expected, now)


def reshape(round_: Round, target: TableTarget, entry: TableEntry) -> LanceDataset:
    """Commit a table without the columns that `target.renamed` maps to None, others renamed.

    One that is mapped to its own name may be null from there on; `target.retyped` gets its type.

    Raises:
        StartOver: another writer was first; nothing of this stays that another could adopt.
        SchemaMismatchError: a column isn't there any more as it was, or its new name is taken.
        StorageError: the store failed.
    """
    coordinates = (target.table_key, entry.location, target.table_branch, entry.table_version)
    return reshaped(round_, target, strip(settle(round_, *coordinates)))


def reshaped(round_: Round, target: TableTarget, head: LanceDataset) -> LanceDataset:
    """Commit the next version of a table with its columns changed, as `reshape`; `head` if none.

    Raises:
        StartOver, SchemaMismatchError, StorageError: as `reshape`.
    """
    from lance import LanceOperation

    changed = target.renamed
    if target.retyped is not None:
        changed = ((target.retyped.name, target.retyped.name),)
    if not changed:
        return head
    names = head.schema.names
    gone = {old for old, new in changed if new is None}
    for old, new in changed:
        is_taken = new in names and new != old and new not in gone
        if old not in names or is_taken or _is_other(target, head, old):
            raise SchemaMismatchError(
                f"The columns of {target.table_key} were changed by another writer meanwhile",
                expected=f"no column {new}" if is_taken else f"the column {old} as it was",
                found=", ".join(names)[:300],
                hint="Nothing was changed. Look at the table, then call again",
                table_key=target.table_key,
                column=old,
            )
    before = int(head.version)
    if target.retyped is not None:
        operation = _retyped(head, target.retyped)
    else:
        schema = placed(round_, target, column_numbers.changed(head, target.reshaping()))
        operation = LanceOperation.Project(schema)
    made = commit(head, before, operation, round_.publish_id, max_retries=0)
    made = contiguous(made, before, round_.publish_id)
    if target.retyped is not None:
        _check_written(round_, target, made, target.retyped.name)
    return made


def _check_written(round_: Round, target: TableTarget, made: LanceDataset, name: str) -> None:
    """Look that a column's new files are there, after they became part of an unpublished version.

    Raises:
        StorageError: a cleanup removed some; the version was taken back.
    """
    number = next(n for path, n, _, _ in column_numbers.of_dataset(made) if path == name)
    files = (file for fragment in made.get_fragments() for file in fragment.data_files())
    new = {f"{target.data}/{file.path}" for file in files if number in file.fields}
    try:
        staged_files.check_files(round_.storage, target.table_key, new)
    except OmnigraphError:
        take_back(made, round_.publish_id)
        raise


def _is_other(target: TableTarget, head: LanceDataset, name: str) -> bool:
    """Return whether a column that is to get a type has another one by now than at the plan."""
    return target.retyped is not None and bool(
        head.schema.field(name).type != target.schema.field(name).type
    )


def _retyped(head: LanceDataset, field: pa.Field) -> LanceOperation.BaseOperation:
    """Write a column again with a wider type, a file per fragment, and return what commits it.

    Rows keep their row ids, and the other columns their files; an index on the column goes.
    """
    from lance import FragmentMetadata, LanceOperation

    name, kind = field.name, field.type
    schema = column_numbers.with_type(head, field)
    number = next(n for path, n, _, _ in column_numbers.of_schema(schema) if path == name)

    def wider(batch: pa.RecordBatch) -> pa.RecordBatch:
        return pa.RecordBatch.from_arrays([batch.column(name).cast(kind)], names=[_WIDER])

    fragments = []
    with translated(f"Writing {name} again"):
        for fragment in head.get_fragments():
            made, _ = fragment.merge_columns(wider, columns=[name])
            plain = made.to_json()
            plain["files"][-1]["fields"] = [number]
            fragments.append(FragmentMetadata.from_json(json.dumps(plain)))
    _faults.point("table.before_columns")
    return LanceOperation.Merge(fragments, schema)
