"""From a frame's batches to the batches of each table, ids filled in; no Spark needed.

Runs on executors, once per batch.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from omnigraph_spark.arrow import frame_batches
from omnigraph_spark.arrow.frame_batches import Ownership
from omnigraph_spark.arrow.to_table import refuse_broken_columns, refuse_empty_blobs, to_table_batch
from omnigraph_spark.errors import IntegrityError
from omnigraph_spark.integrity.screen import Screen
from omnigraph_spark.storage import layout
from omnigraph_spark.storage.ids import ulids
from omnigraph_spark.write.plan import DELETE, MERGE, TableTarget
from omnigraph_spark.write.tasks import edge_ids, node_ids, replaced

_SAMPLES = 5


@dataclass(frozen=True)
class Routing:
    """Where a frame's rows go: all to the table `single`, or each where its `_table` says.

    `ownership` is used for whole-graph frames only. Plain data, picklable.
    """

    single: str | None = None
    ownership: Ownership | None = None


def route(
    routing: Routing,
    targets: Mapping[str, TableTarget],
    batches: Iterable[pa.RecordBatch],
    screen: Screen | None = None,
    exact: bool = False,
) -> Iterator[tuple[str, pa.RecordBatch]]:
    """Yield (table key, rows in exactly the table's Arrow schema) for the batches of a task.

    `screen` looks at the rows on their way (rules of values); it is closed behind the last one.
    `exact` refuses every value that a column can't hold as it is.

    Raises:
        IntegrityError: a null `_table`, a null where the table allows none, an `id` that isn't its
            row's key, or a value that breaks a rule of the table.
        StorageError: bad records can't be set aside.
        SchemaMismatchError: a table that the write doesn't know, a value in a column that the row's
            table doesn't have, one that doesn't fit its column exactly, or text that is not UTF-8.
    """
    for batch in batches:
        if not batch.num_rows:
            continue
        refuse_broken_columns(batch, routing.single)
        parts: Iterable[tuple[str, pa.RecordBatch]]
        if routing.single is not None:
            parts = [(routing.single, batch)]
        else:
            parts = frame_batches.route(batch, routing.ownership or {})
        for key, rows in parts:
            target = targets[key]
            if target.mode == DELETE:
                known = "id" in rows.schema.names and not target.edge_key
                ids = rows.select(["id"]) if known else _with_ids(rows, target, exact)
                if layout.is_edge(key) and ids.column("id").null_count:
                    raise _edge_without_id(target)
                only = pa.schema([target.schema.field("id")])
                yield key, to_table_batch(ids.select(["id"]), only, key, exact)
                continue
            if screen is not None:
                rows = screen.incoming(rows, target.schema, key, target.key)
            filled = _with_ids(rows, target, exact)
            schema = _written(target, filled.schema.names)
            refuse_empty_blobs(filled, schema, key)
            made = to_table_batch(filled, schema, key, exact)
            replaced.refuse_outside(target, made)
            yield key, made if screen is None else screen.outgoing(made, key)
    if screen is not None:
        screen.close()


def _written(target: TableTarget, names: Sequence[str]) -> pa.Schema:
    """Return the columns that rows are staged in: an upsert's are those that the frame brings."""
    if target.mode != MERGE:
        return target.schema
    return pa.schema([field for field in target.schema if field.name in names])


def _with_ids(rows: pa.RecordBatch, target: TableTarget, exact: bool) -> pa.RecordBatch:
    """Fill null and missing ids: an edge's with a ULID, a keyed node's with its key."""
    known = rows.schema.names
    given = rows.column("id").cast(pa.utf8()) if "id" in known else None
    missing = rows.num_rows if given is None else given.null_count
    if layout.is_edge(target.table_key):
        if target.edge_key and set(target.edge_key) <= set(known):
            given = pa.nulls(rows.num_rows, pa.utf8()) if given is None else given
            return _put_ids(rows, edge_ids.checked(given, rows, target, exact))
        if not missing:
            return rows
        if target.edge_key:
            raise _edge_without_id(target)
        if target.mode in (MERGE, DELETE):
            raise _edge_without_id(target)
        made = ulids(rows.num_rows)
        return _put_ids(rows, made if given is None else pc.if_else(given.is_null(), made, given))
    if target.key is None or target.key not in known:
        return rows
    key = (
        node_ids.made(rows, target, exact)
        if target.id_of
        else rows.column(target.key).cast(pa.utf8())
    )
    if given is None:
        return _put_ids(rows, key)
    _refuse_other_ids(given, key, target)
    return _put_ids(rows, pc.if_else(given.is_null(), key, given)) if missing else rows


def _edge_without_id(target: TableTarget) -> IntegrityError:
    return IntegrityError(
        f"An edge of {target.table_key} without id: which edge is meant is unclear",
        expected="an id in every row",
        found="null",
        hint="Add the column id, or the keys that option edgeKeys names: "
        f"{', '.join(target.edge_key) or 'an append alone makes ids without them'}",
        table_key=target.table_key,
        rule="not null",
        samples=[],
        column="id",
    )


def _refuse_other_ids(given: pa.Array, key: pa.Array, target: TableTarget) -> None:
    differing = pc.fill_null(pc.not_equal(given, key), False)
    if not pc.any(differing).as_py():
        return
    named = ", ".join(target.id_of) or target.key
    samples = given.filter(differing).slice(0, _SAMPLES).to_pylist()
    raise IntegrityError(
        f"A row of {target.table_key} has an id that isn't its key {named}",
        expected=f"id = {named}, or no id",
        found=f"id {samples[0]!r}",
        hint=f"Leave id out: it becomes the value of {named}",
        table_key=target.table_key,
        rule="id is the key",
        samples=samples,
    )


def _put_ids(rows: pa.RecordBatch, ids: pa.Array) -> pa.RecordBatch:
    position = rows.schema.get_field_index("id")
    if position < 0:
        return rows.append_column("id", ids)
    return rows.set_column(position, "id", ids)
