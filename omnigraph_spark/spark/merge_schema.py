"""The option `mergeSchema`: columns of a frame that its table lacks become properties (driver).

Only the plan changes here: what is added is written by the tasks and committed with the rows
(`added_columns`), and the schema files learn of it after the publish (`property_files`).
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import replace

import pyarrow as pa
from pyspark.sql.types import StructType

from omnigraph_spark.errors import UnsupportedError
from omnigraph_spark.integrity import rules
from omnigraph_spark.manifest import formats, known_types
from omnigraph_spark.options import WriteOptions
from omnigraph_spark.schema import column_order
from omnigraph_spark.schema.model import EngineSchema, LeftOut, Property, engine_type_of
from omnigraph_spark.spark import spark_types
from omnigraph_spark.spark.spark_types import NewColumn
from omnigraph_spark.storage.store import Storage
from omnigraph_spark.write.commit import property_changes
from omnigraph_spark.write.plan import CREATE, TableTarget, WritePlan

_log = logging.getLogger(__name__)


def widened(
    plan: WritePlan, options: WriteOptions, definitions: Mapping[str, StructType]
) -> WritePlan:
    """Return a plan whose existing tables get the columns that `definitions` have beyond theirs.

    Every one of them is nullable: the rows that are there have no value for it.

    Raises:
        SchemaMismatchError: a name or type that no table can have; the column is named.
        OptionError: option `types` says something that is not a type.
        UnsupportedError: (graphs of newer engines) there are other branches, or a column that the
            engine can't see.
    """
    targets, properties = dict(plan.targets), {}
    for key, target in plan.targets.items():
        if target.mode == CREATE or key not in definitions:
            continue
        name = key.partition(":")[2]
        missing = [f for f in definitions[key].fields if f.name not in target.schema.names]
        columns = [
            spark_types.new_property(field, options.types.get(f"{name}.{field.name}"))
            for field in missing
        ]
        if columns:
            refuse_unseen(plan.storage, key, columns)
            targets[key] = with_columns(target, [column.field for column in columns])
            properties[key] = named(key, columns)
    if targets == plan.targets:
        return plan
    if formats.of_graph(plan.storage).has_identities:
        property_changes.refuse_elsewhere(plan.storage, plan.branch)
    snapshot = known_types.load_with_types(plan.storage, plan.branch)
    schema = with_properties(known_types.known(plan.storage, snapshot).schema, properties)
    integrity = rules.of_write(
        options.integrity,
        plan.integrity.bad_records_path,
        schema.with_types(plan.new_types),
        targets,
    )
    return replace(plan, targets=targets, new_properties=properties, integrity=integrity)


def refuse_unseen(storage: Storage, table_key: str, columns: Iterable[NewColumn]) -> None:
    """Refuse new columns that the engine can't see, in graphs whose engines know all columns.

    Raises:
        UnsupportedError: names the column.
    """
    if not formats.of_graph(storage).has_identities:
        return
    for one in columns:
        carried = {} if one.engine is None else {one.field.name: one.engine}
        engine = engine_type_of(one.field.with_nullable(True), carried)
        if isinstance(engine, LeftOut):
            raise UnsupportedError(
                f"{table_key}.{engine.column} can't be a property of this graph: {engine.reason}",
                expected="a column that the engine has a type and a name for",
                found=engine.column,
                hint="Nothing was written. Cast or rename the column, or leave it out",
            )


def with_columns(target: TableTarget, fields: list[pa.Field]) -> TableTarget:
    """Return a target whose table gets more columns, all of them nullable.

    Raises:
        SchemaMismatchError: a name that no column can have.
    """
    names = [field.name for field in fields]
    existing = target.schema.names
    spark_types.check_new_names([*existing, *names], target.table_key, existing)
    nullable = [field.with_nullable(True) for field in fields]
    new = column_order.behind(target.schema, nullable)
    wide = pa.schema([*target.schema, *new], target.schema.metadata)
    return replace(target, schema=wide, added=tuple(names))


def named(table_key: str, columns: list[NewColumn]) -> tuple[Property, ...]:
    """Return what the schema files may say of new columns; logs those that the engine can't see."""
    properties = []
    for column in columns:
        carried = {} if column.engine is None else {column.field.name: column.engine}
        engine = engine_type_of(column.field.with_nullable(True), carried)
        if isinstance(engine, LeftOut):
            _log.warning(
                "%s.%s is kept, and the engine doesn't see it: %s",
                table_key,
                engine.column,
                engine.reason,
            )
        else:
            properties.append(Property(column.field.name, engine))
    return tuple(properties)


def with_properties(
    schema: EngineSchema, properties: Mapping[str, tuple[Property, ...]]
) -> EngineSchema:
    """Return a schema whose types have more properties; for rules, not for the files."""
    changed = []
    for key, new in properties.items():
        engine_type = schema.of_table(key)
        if engine_type is not None:
            known = {p.name for p in new}
            others = tuple(p for p in engine_type.properties if p.name not in known)
            changed.append(replace(engine_type, properties=(*others, *new)))
    return EngineSchema.of(changed).with_types(schema)
