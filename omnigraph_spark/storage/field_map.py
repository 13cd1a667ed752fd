"""Which field ids a schema has: what ties staged fragments to the schema they were written under.

Fragments carry field ids and Lance's append compares none of them, so a fragment staged under one
schema would land under another with its values in the wrong columns (PROTOCOL 1).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from omnigraph_spark.errors import SchemaMismatchError

if TYPE_CHECKING:
    import pyarrow as pa

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
    found: list[tuple[str, int, str, bool]] = []

    def visit(field: Any, prefix: str) -> None:
        arrow = field.to_arrow()
        path = prefix + field.name()
        found.append((path, field.id(), str(arrow.type), arrow.nullable))
        for child in field.children():
            visit(child, f"{path}.")

    for top in lance_schema.fields():
        visit(top, "")
    return tuple(found)


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


def _shown(entry: tuple[str, int, str, bool] | None) -> str:
    if entry is None:
        return "no such column"
    return f"{entry[2]}{'' if entry[3] else ' not null'} (field {entry[1]})"
