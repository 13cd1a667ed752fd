"""From a frame's batches to batches that fit a table's stored schema exactly; no Spark needed.

`check_columns` runs on the driver before anything is written, `to_table_batch` on executors once
per batch. Columns are matched by name, values are stored as Spark's SQL stores them, or without any
loss (`storeAssignment`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types as pt

from omnigraph_spark.arrow.cast import (
    Leaf,
    NullFoundError,
    ansi_leaf,
    can_cast,
    can_store,
    convert,
    exact_leaf,
    fresh,
    refuse_broken_text,
)
from omnigraph_spark.errors import IntegrityError, SchemaMismatchError, did_you_mean
from omnigraph_spark.schema.property_types import blob_type, is_blob, of_field
from omnigraph_spark.storage import layout

_LANCE_NAMES = frozenset(
    {
        "_rowid",
        "_rowaddr",
        "_rowoffset",
        "_row_created_at_version",
        "_row_last_updated_at_version",
        "_distance",
        "_score",
        "_table",
    }
)
_MAX_SAMPLE = 80


def check_columns(
    frame: pa.Schema,
    table: pa.Schema,
    table_key: str,
    may_lack: Collection[str] = (),
    exact: bool = False,
) -> None:
    """Refuse a frame that can't be written into a table, whatever its rows are.

    Runs on the driver, once per table of a write. `may_lack` names not-null columns that the writer
    fills itself (`id` of a keyed node; an edge's `id` is allowed anyway).

    Raises:
        SchemaMismatchError: an extra, missing or doubled column, or a type that is never cast.
        IntegrityError: a node frame without `id`.
    """
    _check_doubles(frame.names, table_key)
    _check_extra(frame.names, table.names, table_key)
    lacks = set(may_lack) | ({"id"} if layout.is_edge(table_key) else set())
    for field in table:
        if field.name in frame.names:
            check_type(frame.field(field.name), field, table_key, exact)
        elif not field.nullable and field.name not in lacks:
            raise _missing(field.name, table_key, frame.names)


def _check_doubles(names: list[str], table_key: str) -> None:
    doubled = sorted({name for name in names if names.count(name) > 1})
    if doubled:
        raise SchemaMismatchError(
            f"The frame for {table_key} has column {doubled[0]} more than once",
            expected="different names",
            table_key=table_key,
            column=doubled[0],
        )


def _check_extra(names: Iterable[str], known: Collection[str], table_key: str) -> None:
    for name in names:
        if name in known:
            continue
        near = [other for other in known if other.lower() == name.lower()]
        raise SchemaMismatchError(
            f"{table_key} has no column {_shown_name(name)}",
            expected=", ".join(known),
            found=_shown_name(name),
            hint=f"Names are matched by case: rename it to {near[0]}"
            if near
            else did_you_mean(
                name, known, "Drop the column before writing, or add the property with mergeSchema"
            ),
            table_key=table_key,
            column=name,
        )


def _missing(
    column: str, table_key: str, names: Collection[str]
) -> SchemaMismatchError | IntegrityError:
    kind = IntegrityError if column == "id" else SchemaMismatchError
    return kind(
        f"The frame for {table_key} lacks column {column}, which may not be null",
        expected=column,
        found=", ".join(names),
        hint=f"Add the column {column}",
        table_key=table_key,
        rule="not null",
        samples=[],
        column=column,
    )


def check_type(source: pa.Field, target: pa.Field, table_key: str, exact: bool = False) -> None:
    """Refuse a column whose type is never cast to the stored one, or (`exact`) not without loss.

    Raises:
        SchemaMismatchError: names the column and both types.
    """
    if not (can_cast if exact else can_store)(source.type, _target_type(target)):
        raise SchemaMismatchError(
            f"Column {target.name} of {table_key} has another type",
            expected=shown(target),
            found=str(source.type),
            hint="Cast the column with Spark before writing",
            table_key=table_key,
            column=target.name,
        )


def check_new_names(names: Iterable[str], table_key: str, existing: Collection[str] = ()) -> None:
    """Refuse names that no new column may have; runs on the driver before anything is written.

    Raises:
        SchemaMismatchError: a dot, a backtick, an empty name, a name of Lance's own such as
            `_rowid`, or two names that differ only in case; the message has the name or both.
    """
    taken = {name.lower(): name for name in existing}
    for name in names:
        if name in existing:
            continue
        if not name or "." in name or "`" in name or name in _LANCE_NAMES:
            raise SchemaMismatchError(
                f"{_shown_name(name)} can't be a column of {table_key}",
                expected="a name without dots and backticks that is none of Lance's own",
                found=_shown_name(name),
                hint="Rename the column",
                table_key=table_key,
                column=name,
            )
        other = taken.setdefault(name.lower(), name)
        if other != name:
            raise SchemaMismatchError(
                f"Columns {_shown_name(other)} and {_shown_name(name)} differ only in case",
                expected="names that differ in more than case",
                hint="Rename one of them",
                table_key=table_key,
                column=name,
            )


def to_table_batch(
    batch: pa.RecordBatch, schema: pa.Schema, table_key: str, exact: bool = True
) -> pa.RecordBatch:
    """Return `batch` as exactly `schema`: by name, missing nullable columns null.

    With `exact` nothing is lost; else values are stored as Spark's SQL stores them (`ansi_leaf`).

    Runs on executors, once per batch, after ids were filled in. Decimals are copied into fresh
    buffers (fact 16); fixed-size lists keep the slots of null rows. Nothing is written.

    Raises:
        IntegrityError: a null, or no column at all, where the table allows none; `table_key`,
            `rule`, `samples` (ids) say where.
        SchemaMismatchError: a column that the table doesn't have, or a value that doesn't fit;
            names the column, both types and a sample value.
    """
    names = batch.schema.names
    _check_doubles(names, table_key)
    _check_extra(names, schema.names, table_key)
    arrays = []
    leaf = exact_leaf if exact else ansi_leaf
    for field in schema:
        if field.name in names:
            arrays.append(_table_column(batch, field, table_key, leaf))
        elif field.nullable:
            arrays.append(convert(pa.nulls(batch.num_rows), _target_type(field), exact_leaf))
        else:
            raise _missing(field.name, table_key, names)
    return pa.RecordBatch.from_arrays(arrays, schema=table_schema(schema))


def refuse_broken_columns(batch: pa.RecordBatch, table_key: str | None) -> None:
    """Refuse a frame's columns of text that hold no UTF-8; on executors, once per batch.

    Before anything else looks at the values: Python can't even show them.

    Raises:
        SchemaMismatchError: names the column.
    """
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        if not (pt.is_string(column.type) or pt.is_large_string(column.type)):
            continue
        try:
            refuse_broken_text(column)
        except pa.ArrowInvalid as error:
            raise SchemaMismatchError(
                f"Column {name} of {table_key or 'the frame'} holds text that is not UTF-8",
                expected="UTF-8, as every reader wants it",
                found=_short(error),
                hint="Write such bytes to a BINARY property, or repair them with Spark's decode",
                table_key=table_key,
                column=name,
            ) from error


def table_schema(schema: pa.Schema) -> pa.Schema:
    """Return a table's schema as Lance takes it: blob columns of their full type."""
    return pa.schema([field.with_type(_target_type(field)) for field in schema], schema.metadata)


def _target_type(field: pa.Field) -> pa.DataType:
    """Return a stored column's type; a blob's that was read without Lance is made whole."""
    if not is_blob(field) or isinstance(field.type, pa.BaseExtensionType):
        return field.type
    return blob_type(field.type) if pt.is_struct(field.type) else field.type


def _table_column(batch: pa.RecordBatch, field: pa.Field, table_key: str, leaf: Leaf) -> pa.Array:
    column = fresh(batch.column(field.name))
    if column.null_count and not field.nullable:
        raise _null(batch, column, f"{field.name}", table_key)
    target = _target_type(field)
    try:
        return _converted(column, target, leaf)
    except NullFoundError as error:
        row = _first_bad(column, target, leaf)
        raise _null(batch, column, f"{field.name} ({error})", table_key, row) from error
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError) as error:
        sample = _sample(column, _first_bad(column, target, leaf))
        raise SchemaMismatchError(
            f"A value doesn't fit column {field.name} of {table_key}"
            + (" exactly" if leaf is exact_leaf else ""),
            expected=shown(field),
            found=f"{column.type}, for example {sample} ({_short(error)})",
            hint="Cast the column with Spark: with storeAssignment=exact nothing may be lost"
            if leaf is exact_leaf
            else "Cast the column with Spark, or drop those rows",
            table_key=table_key,
            column=field.name,
        ) from error


def refuse_empty_blobs(batch: pa.RecordBatch, schema: pa.Schema, table_key: str) -> None:
    """Refuse a frame's empty blobs where NULL is allowed: in the engine's files the two are one.

    On executors, once per batch. Rows that are stored already are not asked.

    Raises:
        SchemaMismatchError: names the column.
    """
    for field in schema:
        if field.nullable and is_blob(field) and field.name in batch.schema.names:
            _refuse_empty(batch.column(field.name), field.name, table_key)


def _refuse_empty(column: pa.Array, name: str, table_key: str) -> None:
    if not (pt.is_binary(column.type) or pt.is_large_binary(column.type)):
        return
    if pc.any(pc.equal(pc.binary_length(column), 0)).as_py():
        raise SchemaMismatchError(
            f"Column {name} of {table_key} holds an empty BINARY, which would be read as NULL",
            expected="bytes or NULL, or a property that is NOT NULL",
            found="X''",
            hint=f"Write nullif({name}, X''), or make the property NOT NULL with add_table",
            table_key=table_key,
            column=name,
        )


def _converted(column: pa.Array, target: pa.DataType, leaf: Leaf) -> pa.Array:
    refuse_broken_text(column)
    return convert(column, target, leaf)


def _null(
    batch: pa.RecordBatch, column: pa.Array, name: str, table_key: str, row: int | None = None
) -> IntegrityError:
    if row is None:
        row = pc.index(column.is_null(), True).as_py()
    ids = batch.column("id") if "id" in batch.schema.names else None
    known = ids is not None and ids[row].is_valid
    samples = [str(ids[row].as_py())] if known and ids is not None else []
    return IntegrityError(
        f"A null in column {name} of {table_key}, which may not be null",
        expected="a value in every row",
        found=f"null in the row with id {samples[0]!r}" if samples else "null in a row without id",
        hint="Fill or drop those rows before writing",
        table_key=table_key,
        rule="not null",
        samples=samples,
        column=name,
    )


def _first_bad(column: pa.Array, target: pa.DataType, leaf: Leaf) -> int:
    """Return the row of the first value that `convert` refuses, found by halving."""
    low, high = 0, len(column)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (
            (low, middle)
            if _refused(column.slice(low, middle - low), target, leaf)
            else (middle, high)
        )
    return low


def _refused(part: pa.Array, target: pa.DataType, leaf: Leaf) -> bool:
    try:
        _converted(part, target, leaf)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError):
        return True
    return False


def _sample(column: pa.Array, row: int) -> str:
    # Printed by Arrow: Python can't hold every date or time that Arrow can.
    try:
        refuse_broken_text(column.slice(row, 1))
    except pa.ArrowInvalid:
        return "text that is not UTF-8"
    text = " ".join(column.slice(row, 1).to_string().split()).removeprefix("[").removesuffix("]")
    return _clipped(text.strip(), _MAX_SAMPLE)


def shown(field: pa.Field) -> str:
    """Return a stored column's type for a message: the engine's word for it and Arrow's."""
    engine = of_field(field)
    arrow = str(field.type)
    return arrow if engine is None else f"{engine.text()} ({arrow})"


def _shown_name(name: str) -> str:
    return _clipped(repr(name), _MAX_SAMPLE)


def _short(error: Exception) -> str:
    return _clipped(" ".join(str(error).split()), 160)


def _clipped(text: str, most: int) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"
