"""Writes that bring new columns, without a JVM: planned as Spark's are, staged from Arrow."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import pyarrow as pa
from pyspark.sql.types import (
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
)

from omnigraph_spark import schema as engine_schema
from omnigraph_spark.arrow.to_table import to_table_batch
from omnigraph_spark.manifest.snapshot import load
from omnigraph_spark.schema.model import Property
from omnigraph_spark.spark import spark_types
from omnigraph_spark.spark.frame_plan import plan_frames
from omnigraph_spark.storage.relocation import open_for_reading
from omnigraph_spark.storage.store import Storage
from omnigraph_spark.write.commit.commit import Committed, commit
from omnigraph_spark.write.plan import WritePlan
from omnigraph_spark.write.tasks.stage import StagedTable, stage
from tests.support import writes

PERSON_FRAME = (("id", StringType()), ("name", StringType()), ("age", IntegerType()))
NICK = ("nick", StringType())
SCORE = ("score", LongType())

Column = tuple[str, DataType]


def frame(*columns: Column) -> StructType:
    """Return a frame's schema; `id` is not null."""
    return StructType([StructField(name, kind, name != "id") for name, kind in columns])


def plan(
    storage: Storage, schemas: Mapping[str, StructType], mode: str = "append", **options: str
) -> WritePlan:
    """Plan a write with `mergeSchema`."""
    return plan_frames(writes.write_options(storage, mode, mergeSchema="true", **options), schemas)


def staged(
    planned: WritePlan, key: str, schema: StructType, rows: Iterable[Mapping[str, Any]]
) -> list[StagedTable]:
    """Stage rows of one table, given as Spark would give them."""
    arrow = spark_types.arrow_schema(schema)
    batch = pa.RecordBatch.from_pylist([dict(row) for row in rows], schema=arrow)
    return stage(planned, [(key, to_table_batch(batch, planned.targets[key].schema, key))])


def write(
    storage: Storage,
    key: str,
    columns: Iterable[Column],
    rows: Iterable[Mapping[str, Any]],
    mode: str = "append",
    **options: str,
) -> Committed:
    """Write rows with the columns that they have."""
    schema = frame(*columns)
    planned = plan(storage, {key: schema}, mode, **options)
    return commit(planned, staged(planned, key, schema, rows))


def table(storage: Storage, key: str, version: int | None = None, branch: str = "main") -> pa.Table:
    """Return a table of a graph version by `id`."""
    entry = load(storage, branch, version).entry(key)
    place = (entry.location, entry.table_branch, entry.table_version)
    scanner = open_for_reading(storage, *place).scanner(blob_handling="all_binary")
    return scanner.to_table().sort_by("id")


def rows_of(storage: Storage, key: str, version: int | None = None) -> list[dict[str, Any]]:
    """Return a table's rows by `id`."""
    found: list[dict[str, Any]] = table(storage, key, version).to_pylist()
    return found


def properties(storage: Storage, key: str) -> dict[str, str]:
    """Return what `_schema.pg` says of a table's properties, as text by name."""
    schema = engine_schema.read(storage)
    found = None if schema is None else schema.of_table(key)
    assert found is not None
    known: tuple[Property, ...] = found.properties
    return {one.name: one.type.text() for one in known}
