"""Writes of frames as Spark does them, and reads, in this process: no JVM, one batch per task."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql.types import StructType

from omnigraph_spark.manifest.snapshot import load
from omnigraph_spark.spark import loading, spark_types
from omnigraph_spark.spark.writer import OmnigraphCommitMessage, OmnigraphWriter
from omnigraph_spark.storage.store import Storage

Columns = Mapping[str, Any]


def batch(columns: Columns | pa.RecordBatch) -> pa.RecordBatch:
    """Return columns as a batch; a list of nulls alone is text."""
    if isinstance(columns, pa.RecordBatch):
        return columns
    arrays = [
        values
        if isinstance(values, pa.Array)
        else pa.array(values, pa.utf8() if all(v is None for v in values) else None)
        for values in columns.values()
    ]
    return pa.RecordBatch.from_arrays(arrays, names=list(columns))


def read(root: str, **options: str) -> StructType:
    """Return the schema of a frame that is read now: its fields name the version."""
    return loading.resolve({"path": root, **options}).schema()


def save(
    root: str,
    *tasks: Columns | pa.RecordBatch,
    schema: StructType | None = None,
    overwrite: bool = False,
    **options: str,
) -> None:
    """Write tasks of one batch each; a failure is followed by `abort`, as Spark does it.

    `schema` is that of a frame that was read: the tasks' columns take their metadata from it.
    """
    batches = [batch(task) for task in tasks]
    fields = [spark_types.spark_field(field) for field in batches[0].schema]
    if schema is not None:
        known = {field.name: field for field in schema.fields}
        fields = [known.get(field.name, field) for field in fields]
    raw = {"path": root, "orphangraceseconds": "0.1"}
    raw |= {name.lower(): value for name, value in options.items()}
    send(OmnigraphWriter(StructType(fields), raw, overwrite), batches)


def people_of_engine_0_9(root: str) -> Storage:
    """Make a graph of the form of engine 0.9 with the tables of `tests.support.writes`."""
    person = {"id": ["first"], "name": ["first"], "age": pa.array([0], pa.int32())}
    save(root, person, table="node:Person", keys="Person: name", graphFormat="6")
    ends = {"id": ["first"], "src": ["first"], "dst": ["first"], "w": [0.0]}
    save(root, ends, table="edge:Knows", endpoints="Knows: Person -> Person")
    return Storage.at(root)


def send(writer: OmnigraphWriter, batches: Sequence[pa.RecordBatch]) -> None:
    """Run one task per batch and commit, as Spark does; a failure is followed by `abort`."""
    messages: list[Any] = [None] * len(batches)
    try:
        for number, rows in enumerate(batches):
            made = writer.write(iter([rows]))
            assert isinstance(made, OmnigraphCommitMessage)
            text = json.dumps({**json.loads(made.text), "partition": number})
            messages[number] = OmnigraphCommitMessage(text)
        writer.commit(messages)
    except BaseException:
        writer.abort(messages)
        raise


def rows(root: str, table: str, *columns: str, branch: str = "main") -> list[tuple[Any, ...]]:
    """Return the rows of a table, sorted by `id`, as tuples of all or some columns."""
    storage = Storage.at(root)
    entry = load(storage, branch).entry(table)
    dataset = storage.dataset(entry.location, entry.table_branch, entry.table_version)
    found = dataset.to_table().sort_by("id")
    assert found.num_rows == entry.row_count
    chosen: Sequence[str] = columns or found.column_names
    return [tuple(row[name] for name in chosen) for row in found.to_pylist()]
