"""Merges of branches without Spark: small graphs of people and who knows whom, written by rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from omnigraph_spark.errors import MergeConflictError
from omnigraph_spark.manifest.snapshot import load
from omnigraph_spark.merge import merging
from omnigraph_spark.merge.merging import Prepared
from omnigraph_spark.merge.tables import Here
from omnigraph_spark.read.plan import read_table
from omnigraph_spark.storage.store import Storage
from omnigraph_spark.write.commit.commit import Committed, commit
from omnigraph_spark.write.plan import NewTable
from omnigraph_spark.write.tasks.stage import stage
from tests.support import writes
from tests.support.writes import plan, write_options

PERSON, KNOWS, COMPANY = "node:Person", "edge:Knows", "node:Company"
_ID = pa.field("id", pa.utf8(), nullable=False)
_PEOPLE = NewTable(pa.schema([_ID, pa.field("age", pa.int32())]))
_ENDS = [pa.field(name, pa.utf8(), nullable=False) for name in ("src", "dst")]
NEW: Mapping[str, NewTable] = {
    PERSON: _PEOPLE,
    COMPANY: _PEOPLE,
    "node:Other": _PEOPLE,
    KNOWS: NewTable(pa.schema([_ID, *_ENDS]), None, ("Person", "Person")),
}
_OF_NEW = "node Person { age: I32? } edge Knows: Person -> Person"
Rows = Sequence[tuple[Any, ...]]


def empty_graph(storage: Storage, form: int) -> Storage:
    """Make the tables of people and who knows whom of a graph of stamp 6; see `writes`."""
    return writes.empty_graph(storage, form, _OF_NEW)


def write_rows(
    storage: Storage,
    rows: Mapping[str, Rows],
    mode: str = "append",
    new: Mapping[str, NewTable] = NEW,
    **options: str,
) -> Committed:
    """Write rows, each a tuple in the order of the table's columns, in one commit."""
    spark_mode = "overwrite" if mode == "overwrite" else "append"
    planned = plan(storage, list(rows), spark_mode, new=new, writeMode=mode, **options)
    batches = [(key, _batch(planned.targets[key].schema, found)) for key, found in rows.items()]
    return commit(planned, stage(planned, batches))


def _batch(schema: pa.Schema, rows: Rows) -> pa.RecordBatch:
    columns = [
        pa.array([row[place] for row in rows], field.type) for place, field in enumerate(schema)
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def rows_of(storage: Storage, key: str, branch: str = "main") -> list[tuple[Any, ...]]:
    """Return the rows of a table at a branch's head, sorted."""
    table = read_table(storage, load(storage, branch), key)
    return sorted(tuple(row.values()) for row in table.to_pylist())


def prepare(
    storage: Storage, source: str, into: str = "main", resolution: Any = "fail", **more: bool
) -> Prepared:
    """Decide a merge in this process."""
    return merging.prepare(storage, source, into, Here, merging.resolver(resolution), **more)


def conflicts(found: Prepared) -> list[tuple[Any, ...]]:
    """Return the conflicts of a merge: (table key, id, kind), sorted."""
    assert isinstance(found.runner, Here)
    rows = [row[:3] for row in (*found.rows, *found.runner.conflicts())]
    return sorted(rows, key=str)


def merge(
    storage: Storage, source: str, into: str = "main", resolution: Any = "fail", **more: Any
) -> Committed:
    """Merge in this process."""
    found = prepare(storage, source, into, resolution)
    if found.counts:
        raise MergeConflictError(source, into, found.counts)
    return merging.publish(found, write_options(storage, branch=into, **more))
