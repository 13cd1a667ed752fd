"""Add empty tables and drop tables: one publish each. Runs on the driver."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from pyspark.sql.types import StringType, StructField, StructType

from omnigraph_spark import schema
from omnigraph_spark.errors import OptionError
from omnigraph_spark.options import WriteOptions
from omnigraph_spark.schema.model import SYSTEM_COLUMNS, EngineSchema
from omnigraph_spark.spark import ddl
from omnigraph_spark.spark.frame_plan import plan_frames
from omnigraph_spark.storage import layout
from omnigraph_spark.storage.store import Storage
from omnigraph_spark.write.commit import drops
from omnigraph_spark.write.commit.commit import Committed, commit
from omnigraph_spark.write.plan import ALTER, head, plan_write


def add_table(
    storage: Storage, options: WriteOptions, table: str, columns: str | StructType
) -> Committed:
    """Make an empty table; `columns` may leave out `id` (`src`, `dst`).

    Raises:
        OptionError: the table is there, or its name, columns or options say nothing that can be.
        SchemaMismatchError: a column that no table can have.
        ExpectedVersionMismatch: somebody else made it meanwhile.
        CommitTimeoutError, PublishOutcomeUnknown, StorageError: as a write.
    """
    kind, _ = layout.split_table_key(table)
    if table in head(storage, options).tables:
        raise OptionError(
            f"{table} is there already",
            expected="the key of a table that the graph doesn't have",
            hint="Use add_property to change it, or drop_table first",
        )
    if isinstance(columns, str):
        columns = ddl.parse_columns(columns) if columns.strip() else StructType([])
    fixed = [
        StructField(name, StringType(), nullable=False)
        for name in SYSTEM_COLUMNS[kind]
        if name not in columns.names
    ]
    plan = plan_frames(options, {table: StructType([*fixed, *columns.fields])})
    return commit(replace(plan, expected={**plan.expected, table: 0}), [])


def drop_table(storage: Storage, options: WriteOptions, tables: Iterable[str]) -> Committed:
    """Drop tables in one publish: a tombstone each. Data and older graph versions stay.

    Raises:
        TableNotFoundError: no such table.
        IntegrityError: an edge table ends at one of them and isn't dropped with it.
        ExpectedVersionMismatch: somebody wrote to one of them meanwhile; nothing was dropped.
        CommitTimeoutError, PublishOutcomeUnknown, StorageError: as a write.
    """
    snapshot = head(storage, options)
    named = list(dict.fromkeys(tables))
    if not named:
        raise OptionError("No table to drop was named", expected="node:Person, edge:Knows, …")
    keys = [
        snapshot.entry(name if ":" in name else snapshot.resolve(name)).table_key for name in named
    ]
    drops.refuse_stranded(keys, snapshot, schema.read(storage) or EngineSchema())
    plan = plan_write(storage, options, {})
    return commit(
        replace(
            plan,
            mode=ALTER,
            dropped=tuple(sorted(keys)),
            expected={**plan.expected, **{key: snapshot.version(key) for key in keys}},
        ),
        [],
    )
