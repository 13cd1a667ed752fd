"""Field ids for columns that come and go; Lance itself numbers them, on an empty table in memory.

A new column gets an id above every id that the table's columns and its data files have, so that a
dropped column's old values never show under a new column of its name. Runs on executors when they
stage and on the driver when it commits; opens no file and writes none.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from omnigraph_spark.errors import SchemaMismatchError
from omnigraph_spark.storage.lance_errors import translated

if TYPE_CHECKING:
    import pyarrow as pa
    from lance import LanceDataset
    from lance.schema import LanceSchema

_PAD = "__pad{}"


Change = tuple[str, str | None, bool]
"""(column, its new name, whether it may be null from there on); without a name it is dropped."""


def with_columns(
    dataset: LanceDataset, fields: Iterable[pa.Field], changes: Iterable[Change] = ()
) -> LanceSchema:
    """Return a dataset's schema with more columns behind it, all of them with new ids.

    `changes` are made to those that are there, before.

    Raises:
        StorageError: Lance doesn't take a column.
    """
    fields, changes = list(fields), list(changes)
    if not fields:
        return changed(dataset, changes) if changes else dataset.lance_schema
    with translated("Numbering new columns"):
        empty = _empty(dataset)
        _change(empty, changes)
        pads = _padded(empty, dataset)
        empty.add_columns(pa.schema(fields))
        if pads:
            empty.drop_columns(pads)
        return empty.lance_schema


def with_type(dataset: LanceDataset, field: pa.Field) -> LanceSchema:
    """Return a dataset's schema with another type (and metadata) for a column, and a new id.

    Raises:
        StorageError: Lance doesn't take the type.
    """
    metadata = {key.decode(): value.decode() for key, value in (field.metadata or {}).items()}
    with translated("Changing columns"):
        empty = _empty(dataset)
        pads = _padded(empty, dataset)
        empty.alter_columns({"path": field.name, "data_type": field.type})  # type: ignore[dict-item]
        empty.update_field_metadata({field.name: metadata}, replace=True)
        if pads:
            empty.drop_columns(pads)
        return empty.lance_schema


def changed(dataset: LanceDataset, changes: Iterable[Change]) -> LanceSchema:
    """Return a dataset's schema without some of its columns, others renamed; ids stay.

    Raises:
        StorageError: Lance doesn't take a change.
    """
    with translated("Changing columns"):
        empty = _empty(dataset)
        _change(empty, changes)
        return empty.lance_schema


def in_order(schema: LanceSchema, names: Sequence[str]) -> LanceSchema:
    """Return a schema with its columns in another order, each with the ids that it has.

    Data files name their columns by id, so none is written again. Lance gives a new order's columns
    new ids wherever it makes a schema itself; so this takes what a pickled schema holds: a part for
    each field, depth first.
    """
    pickled: Any = schema.__reduce__()
    made, (metadata, *parts) = pickled
    of_column: dict[str, list[Any]] = {}
    for top in schema.fields():
        count = _fields_below(top)
        of_column[top.name()], parts = parts[:count], parts[count:]
    ordered: LanceSchema = made(metadata, *(part for name in names for part in of_column[name]))
    return ordered


def _fields_below(field: Any) -> int:
    return 1 + sum(map(_fields_below, field.children()))


def _change(empty: LanceDataset, changes: Iterable[Change]) -> None:
    changes = list(changes)
    gone = [old for old, new, _ in changes if new is None]
    if gone:
        empty.drop_columns(gone)
    for old, new, may_be_null in changes:
        if new is None:
            continue
        change: dict[str, Any] = {"path": old}
        if new != old:
            change["name"] = new
        if may_be_null:
            change["nullable"] = True
        empty.alter_columns(change)  # type: ignore[arg-type]


def renumbered(
    fragments: Iterable[dict[str, Any]], before: FieldMap, after: FieldMap
) -> list[dict[str, Any]]:
    """Return fragments whose files' columns have the ids of `after`, found by their paths.

    Every path of `before` must be in `after`.
    """
    ids = {path: number for path, number, _, _ in after}
    new = {number: ids[path] for path, number, _, _ in before}
    return [
        {
            **fragment,
            "files": [
                {**file, "fields": [new.get(number, number) for number in file["fields"]]}
                for file in fragment["files"]
            ],
        }
        for fragment in fragments
    ]


def _padded(empty: LanceDataset, dataset: LanceDataset) -> list[str]:
    """Add columns for all ids that only the data files of `dataset` have, and return these."""
    used = max(entry[1] for entry in of_dataset(empty))
    numbers = [entry[1] for entry in of_dataset(dataset)]
    for fragment in dataset.get_fragments():
        numbers += [number for file in fragment.data_files() for number in file.fields]
    pads = [_PAD.format(number) for number in range(used + 1, max(numbers) + 1)]
    if pads:
        empty.add_columns(pa.schema([pa.field(name, pa.bool_()) for name in pads]))
    return pads


def _empty(dataset: LanceDataset) -> LanceDataset:
    """Return an empty dataset in memory with the columns of another one, ids included."""
    import lance

    schema = dataset.lance_schema
    # A new dataset's columns are numbered from 0 without gaps, whatever ids the schema has.
    made = lance.LanceDataset.commit("memory://", lance.LanceOperation.Overwrite(schema, []))
    projection = lance.LanceOperation.Project(schema)
    return lance.LanceDataset.commit(made, projection, read_version=made.version)


FieldMap = tuple[tuple[str, int, str, bool], ...]
"""(path of the column, field id, Arrow type, nullable), depth first."""


def of_dataset(dataset: Any) -> FieldMap:
    """Return the field map of an opened Lance dataset."""
    return of_schema(dataset.lance_schema)


def of_new(schema: pa.Schema) -> FieldMap:
    """Return the field map that Lance gives a dataset that is created with `schema`."""
    from lance.schema import LanceSchema

    return of_schema(LanceSchema.from_pyarrow(schema))


def of_schema(lance_schema: Any) -> FieldMap:
    """Return the field map of a schema of Lance's own kind."""
    fields: list[tuple[str, int, str, bool]] = []

    def visit(field: Any, prefix: str) -> None:
        arrow = field.to_arrow()
        path = prefix + field.name()
        fields.append((path, field.id(), str(arrow.type), arrow.nullable))
        for child in field.children():
            visit(child, f"{path}.")

    for top in lance_schema.fields():
        visit(top, "")
    return tuple(fields)


def check(table_key: str, staged: FieldMap, now: FieldMap) -> None:
    """Refuse to commit fragments on a version whose schema isn't the one they were staged under.

    Raises:
        SchemaMismatchError: any column, field id, type or nullability differs.
    """
    if staged == now:
        return
    ours = {entry[0]: entry for entry in staged}
    theirs = {entry[0]: entry for entry in now}
    differing = sorted(path for path in {*ours, *theirs} if ours.get(path) != theirs.get(path)) or [
        entry[0] for entry in staged
    ]
    path = differing[0]
    raise SchemaMismatchError(
        f"The schema of {table_key} changed while the write was running (column {path})",
        expected=_shown(ours.get(path)),
        found=_shown(theirs.get(path)),
        hint="Nothing was published and the staged files are not used again. Run the write again",
        table_key=table_key,
    )


def check_grown(table_key: str, staged: FieldMap, now: FieldMap) -> None:
    """As `check`, but columns that the version got since are let pass if they allow nulls.

    Fragments that were staged without them read null there.

    Raises:
        SchemaMismatchError: any other column, field id, type or nullability differs.
    """
    known = {path for path, _, _, _ in staged}
    lacking = {
        path for path, _, _, nullable in now if "." not in path and path not in known and nullable
    }
    rest = [entry for entry in now if entry[0].partition(".")[0] not in lacking]
    check(table_key, tuple(sorted(staged)), tuple(sorted(rest)))


def _shown(entry: tuple[str, int, str, bool] | None) -> str:
    if entry is None:
        return "no such column"
    return f"{entry[2]}{'' if entry[3] else ' not null'} (field {entry[1]})"
