"""Ids of edges that are made from the values of key columns (`edgeKeys`); runs on executors.

The rule, which never changes: each value becomes a text (text as it is, numbers and dates as
written, booleans `true` or `false`, points in time as whole microseconds since 1970 in UTC), and
that becomes `{bytes of its UTF-8}:{text}`; NULL becomes `N`. These are joined by commas in the
order of the keys, and the id is the first 32 hexadecimal digits of their SHA-256.

Tables that were made without keys hold ids of other kinds: there an edge is found by its values.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types as pt

from omnigraph_spark.arrow.to_table import to_table_batch
from omnigraph_spark.errors import IntegrityError
from omnigraph_spark.storage.lance_errors import translated
from omnigraph_spark.write.plan import DELETE, TableTarget

if TYPE_CHECKING:
    from lance import LanceDataset

_DIGITS = 32
_ROWS_AT_ONCE = 1_048_576
_SAMPLES = 5


def is_fit(kind: pa.DataType) -> bool:
    """Return whether a column's values can be part of a key: their text is one and the same."""
    return bool(
        pt.is_string(kind)
        or pt.is_large_string(kind)
        or pt.is_integer(kind)
        or pt.is_boolean(kind)
        or pt.is_date(kind)
        or pt.is_timestamp(kind)
        or pt.is_decimal(kind)
    )


def of_rows(rows: pa.RecordBatch, target: TableTarget, exact: bool = True) -> pa.Array:
    """Return the ids of rows that have all key columns, by the rule; `exact` as in the write.

    Raises:
        SchemaMismatchError, IntegrityError: a value doesn't fit its column.
    """
    schema = pa.schema([target.schema.field(name) for name in target.edge_key])
    fitted = to_table_batch(rows.select(list(target.edge_key)), schema, target.table_key, exact)
    pieces = [_piece(fitted.column(name)) for name in target.edge_key]
    joined = pieces[0] if len(pieces) == 1 else pc.binary_join_element_wise(*pieces, ",")
    return pa.array(
        [hashlib.sha256(text.encode()).hexdigest()[:_DIGITS] for text in joined.to_pylist()],
        pa.utf8(),
    )


def _piece(values: pa.Array) -> pa.Array:
    kind = values.type
    if pt.is_timestamp(kind) or pt.is_date64(kind):
        zone = "UTC" if pt.is_timestamp(kind) and kind.tz is not None else None
        values = values.cast(pa.timestamp("us", zone)).cast(pa.int64())
    text = values.cast(pa.utf8())
    length = pc.binary_length(text).cast(pa.utf8())
    return pc.fill_null(pc.binary_join_element_wise(length, text, ":"), "N")


def checked(given: pa.Array, rows: pa.RecordBatch, target: TableTarget, exact: bool) -> pa.Array:
    """Return the ids of rows, made where they are null; of a keyed table no other id is taken.

    Raises:
        IntegrityError: an id isn't the one of its row's keys.
        SchemaMismatchError: a value doesn't fit its column.
    """
    made = of_rows(rows, target, exact)
    if target.keeps_key:
        differing = pc.fill_null(pc.not_equal(given, made), False)
        if pc.any(differing).as_py():
            samples = given.filter(differing).slice(0, _SAMPLES).to_pylist()
            raise IntegrityError(
                f"A row of {target.table_key} has an id that isn't made from its keys",
                expected=f"the id that {', '.join(target.edge_key)} make, or no id",
                found=f"id {samples[0]!r}",
                hint="Leave id out. An edge with other keys is another edge: delete the old one",
                table_key=target.table_key,
                rule="id is made from the keys",
                samples=samples,
                column="id",
            )
    return pc.if_else(given.is_null(), made, given)


def found_by_values(
    target: TableTarget, dataset: LanceDataset, batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Give rows whose id was made the id of the stored row with the same keys, if there is one.

    Only for tables that were made without these keys. A row of a delete that several stored rows
    match becomes several.

    Raises:
        IntegrityError: (not a delete) several stored rows have the keys of one row.
        StorageError: the store failed.
    """
    if not target.edge_key or target.keeps_key:
        yield from batches
        return
    for chunk in _chunks(batches):
        yield from _found(target, dataset, chunk)


def _chunks(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    waiting: list[pa.RecordBatch] = []
    rows = 0
    for batch in batches:
        waiting.append(batch)
        rows += batch.num_rows
        if rows >= _ROWS_AT_ONCE:
            yield from _together(waiting)
            waiting, rows = [], 0
    if waiting:
        yield from _together(waiting)


def _together(batches: list[pa.RecordBatch]) -> list[pa.RecordBatch]:
    whole: list[pa.RecordBatch] = pa.Table.from_batches(batches).combine_chunks().to_batches()
    return whole


def _found(
    target: TableTarget, dataset: LanceDataset, rows: pa.RecordBatch
) -> Iterator[pa.RecordBatch]:
    ids = rows.column("id")
    unique = pc.unique(ids)
    places, stored = [], []
    with translated(f"Looking edges of {target.table_key} up by their keys"):
        for batch in dataset.scanner(columns=["id", *target.edge_key]).to_batches():
            index = pc.index_in(of_rows(batch, target), value_set=unique)
            met = index.is_valid()
            places.append(index.filter(met))
            stored.append(batch.column("id").filter(met))
    if not sum(map(len, places)):
        yield rows
        return
    hits = pa.table({"made": unique.take(pa.concat_arrays(places)), "id": pa.concat_arrays(stored)})
    if target.mode == DELETE:
        gone = pc.invert(pc.is_in(ids, value_set=hits["made"]))
        left = ids.filter(gone)
        every = pa.chunked_array([left, *hits["id"].chunks], pa.utf8()).combine_chunks()
        yield pa.RecordBatch.from_arrays([every], schema=pa.schema([rows.schema.field("id")]))
        return
    if len(pc.unique(hits["made"])) < hits.num_rows:
        raise _several(target, hits)
    index = pc.index_in(ids, value_set=hits["made"])
    resolved = pc.if_else(index.is_valid(), hits["id"].combine_chunks().take(index), ids)
    yield rows.set_column(rows.schema.get_field_index("id"), rows.schema.field("id"), resolved)


def _several(target: TableTarget, hits: pa.Table) -> IntegrityError:
    counts = pc.value_counts(hits["made"].combine_chunks())
    doubled = counts.field(0).filter(pc.greater(counts.field(1), 1))
    some = hits["id"].filter(pc.equal(hits["made"], doubled[0])).slice(0, _SAMPLES).to_pylist()
    return IntegrityError(
        f"{target.table_key} holds several edges with the keys of one row",
        expected=f"one edge for each value of {', '.join(target.edge_key)}",
        found=f"{len(doubled)} such keys, for example the ids {', '.join(map(repr, some))}",
        hint="Delete the doubled edges first (writeMode=delete with these edgeKeys deletes all)",
        table_key=target.table_key,
        rule="unique keys",
        samples=some,
    )
