"""Add and drop tables; add, drop and rename properties: one publish each, and no row is written.

Runs on the driver. Old graph versions keep their own columns. The schema files follow as
`refs/property_files.py` says: a property leaves them before its column goes, and enters them after
its column is published.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TypeGuard

import pyarrow as pa
from pyspark.sql.types import DataType, StringType, StructField, StructType

from omnigraph_spark import schema as engine_schema
from omnigraph_spark.arrow.to_spark import SPARK_TYPE_NOTE
from omnigraph_spark.errors import (
    OmnigraphError,
    OptionError,
    PublishOutcomeUnknown,
    SchemaMismatchError,
    StorageError,
    UnsupportedError,
    did_you_mean,
)
from omnigraph_spark.history import commits, schema_apply
from omnigraph_spark.manifest import formats, known_types
from omnigraph_spark.manifest.snapshot import load
from omnigraph_spark.options import WriteOptions
from omnigraph_spark.refs import property_files
from omnigraph_spark.refs.property_files import Forgotten
from omnigraph_spark.schema import edits, property_types
from omnigraph_spark.schema.ir2 import Renamed
from omnigraph_spark.schema.model import (
    SYSTEM_COLUMNS,
    Constraint,
    EdgeType,
    EngineSchema,
    LeftOut,
    NodeType,
    Property,
    engine_type_of,
)
from omnigraph_spark.spark import ddl, edge_keys, field_metadata, merge_schema, spark_types
from omnigraph_spark.spark.frame_plan import plan_frames
from omnigraph_spark.spark.spark_types import NewColumn
from omnigraph_spark.storage import layout
from omnigraph_spark.storage.store import Storage
from omnigraph_spark.write.commit import commit_check, property_changes
from omnigraph_spark.write.commit.commit import Committed, commit, remember_types
from omnigraph_spark.write.plan import ALTER, CREATE, TableTarget, WritePlan, head, plan_write

_log = logging.getLogger(__name__)
_WIDER = {
    pa.int32(): (pa.int64(),),
    pa.uint32(): (pa.uint64(), pa.int64()),
    pa.float32(): (pa.float64(),),
}


def add_property(
    storage: Storage, options: WriteOptions, table: str, name: str, kind: str | DataType
) -> Committed:
    """Add a nullable property; rows that are there have null.

    `kind` is an engine type such as `String?` or `Vector(4)?`, or a Spark type or its name. Where
    the table has that column already, nothing is published, and the schema files learn of it if
    they may.

    Raises:
        OptionError: a type that allows no nulls, or none at all.
        SchemaMismatchError: a name that no column can have, or a column of another type is there.
        TableNotFoundError: no such table.
        CommitTimeoutError, PublishOutcomeUnknown, StorageError: as a write.
    """
    _refuse_other(table, name)
    column = _column(name, kind)
    plan = _plan(storage, options, table)
    (target,) = plan.targets.values()
    key = target.table_key
    if name in SYSTEM_COLUMNS[layout.split_table_key(key)[0]]:
        raise SchemaMismatchError(
            f"{name} of {key} is not a property",
            expected="another name",
            found=name,
            table_key=key,
            column=name,
        )
    merge_schema.refuse_unseen(storage, key, [column])
    properties = {key: merge_schema.named(key, [column])}
    together = formats.of_graph(storage).has_identities
    if name in target.schema.names:
        existing = target.schema.field(name)
        if str(existing.type) != str(column.field.type):
            raise SchemaMismatchError(
                f"{key} has a column {name} of another type",
                expected=str(column.field.type),
                found=str(existing.type),
                hint="Drop or rename that property first",
                table_key=key,
                column=name,
            )
        lost = _part(_known(storage, plan, key), frozenset([name]))
        if together and not lost.properties:
            return property_changes.add(replace(plan, new_properties=properties)).committed
        properties = {key: lost.properties or properties[key]}
        property_files.name_added(storage, properties, {key: lost.rules})
        return Committed(plan.publish_id, load(storage, plan.branch).graph_version, skipped=True)
    wide = merge_schema.with_columns(target, [column.field])
    asked = replace(plan, targets={key: wide}, new_properties=properties)
    return property_changes.add(asked).committed if together else commit(asked, [])


def drop_property(storage: Storage, options: WriteOptions, table: str, name: str) -> Committed:
    """Drop a property; its values stay in older graph versions.

    Raises:
        SchemaMismatchError: the table has no such property, or it is its key, `id`, `src` or `dst`.
        UnsupportedError: an interface declares it, or another branch's table must have a value.
        TableNotFoundError: no such table.
        CommitTimeoutError, PublishOutcomeUnknown, StorageError: as a write.
    """
    _refuse_other(table, name)
    plan = _plan(storage, options, table)
    (target,) = plan.targets.values()
    _check_free(storage, plan, target, name)
    _refuse_source(storage, target.table_key, name)
    return _reshaped(storage, options, plan, {name: None})


def rename_property(
    storage: Storage, options: WriteOptions, table: str, old: str, new: str
) -> Committed:
    """Give a property another name; values and indices stay, and older versions have the old name.

    Raises:
        SchemaMismatchError: the table has no such property, it is its key, `id`, `src` or `dst`, or
            no column can have the new name.
        UnsupportedError: an interface declares it, or another branch's table must have a value.
        TableNotFoundError: no such table.
        CommitTimeoutError, PublishOutcomeUnknown, StorageError: as a write.
    """
    _refuse_other(table, old, new)
    plan = _plan(storage, options, table)
    (target,) = plan.targets.values()
    _check_free(storage, plan, target, old)
    _refuse_source(storage, target.table_key, old)
    names = target.schema.names
    if new in names:
        raise SchemaMismatchError(
            f"{target.table_key} has a column {new} already",
            expected="another name",
            table_key=target.table_key,
            column=new,
        )
    rest = [name for name in names if name != old]
    spark_types.check_new_names([*rest, new], target.table_key, rest)
    field = target.schema.field(old)
    merge_schema.refuse_unseen(
        storage, target.table_key, [NewColumn(field.with_name(new), None, False)]
    )
    if not field.nullable and isinstance(engine_type_of(field.with_name(new), {}), LeftOut):
        raise SchemaMismatchError(
            f"{target.table_key}.{old} allows no nulls, and the engine can't see the name {new}",
            expected="a name that begins with a small letter or _, of ASCII letters, digits and _",
            found=new,
            table_key=target.table_key,
            column=old,
        )
    return _reshaped(storage, options, plan, {old: new})


def widen_property(
    storage: Storage, options: WriteOptions, table: str, name: str, kind: str | DataType
) -> Committed:
    """Give a property a type that holds all values of the one it has; an index on it goes.

    Its values are read and written again, by the process that calls. Whether it may be null stays.

    Raises:
        OptionError: a text that names no type.
        SchemaMismatchError: the type doesn't hold all values, or no property can have it; the table
            has no such property, or it is its key, `id`, `src` or `dst`.
        UnsupportedError: an interface declares it, or another branch's table must have a value.
        TableNotFoundError: no such table.
        CommitTimeoutError, PublishOutcomeUnknown, StorageError: as a write.
    """
    plan = _plan(storage, options, table)
    (target,) = plan.targets.values()
    _check_free(storage, plan, target, name)
    existing = target.schema.field(name)
    column = _column(name, f"{kind.strip().removesuffix('?')}?" if _is_engines(kind) else kind)
    if _is_engines(kind):
        _refuse_other_values(storage, target, name, column)
    if str(column.field.type) == str(existing.type) and spark_types.same_type(
        spark_types.spark_type(column.field), spark_types.spark_type(existing)
    ):
        version = load(storage, plan.branch).graph_version
        return Committed(plan.publish_id, version, skipped=True)
    if not _holds(existing.type, column.field.type):
        raise SchemaMismatchError(
            f"{target.table_key}.{name} can't become {column.field.type}",
            expected="from "
            + "; ".join(f"{a} to {', '.join(map(str, b))}" for a, b in _WIDER.items())
            + "; a decimal to one with no fewer digits on either side of the point",
            found=f"{existing.type} to {column.field.type}",
            hint="Add another property, fill it with an upsert, then drop this one",
            table_key=target.table_key,
            column=name,
        )
    metadata = {k: v for k, v in (existing.metadata or {}).items() if k != SPARK_TYPE_NOTE}
    field = pa.field(name, column.field.type, existing.nullable, metadata or None)
    return _reshaped(storage, options, plan, {name: name}, field)


def _refuse_other_values(
    storage: Storage, target: TableTarget, name: str, column: NewColumn
) -> None:
    """Refuse an enum's values: they are a rule, which the table's columns don't show."""
    known = (engine_schema.read(storage) or EngineSchema()).of_table(target.table_key)
    types = {} if known is None else {p.name: p.type for p in known.properties}
    old, new = (
        None
        if engine_type is None or engine_type.enum_values is None
        else sorted(engine_type.enum_values)
        for engine_type in (types.get(name), column.engine)
    )
    if old != new:
        raise SchemaMismatchError(
            f"The values of an enum can't be changed: {target.table_key}.{name}",
            expected="String" if old is None else f"enum({', '.join(old)})",
            found="String" if new is None else f"enum({', '.join(new)})",
            hint="Change the values with the engine, then write on",
            table_key=target.table_key,
            column=name,
        )


def _is_engines(kind: str | DataType) -> TypeGuard[str]:
    return isinstance(kind, str) and not isinstance(spark_types.asked_type(kind), DataType)


def _holds(narrow: pa.DataType, wide: pa.DataType) -> bool:
    """Return whether a type holds every value of another one, exactly."""
    if pa.types.is_decimal(narrow) and pa.types.is_decimal128(wide):
        whole = narrow.precision - narrow.scale <= wide.precision - wide.scale
        return bool(whole and narrow.scale <= wide.scale)
    return wide in _WIDER.get(narrow, ())


def alter_property(
    storage: Storage, options: WriteOptions, table: str, name: str, nullable: bool
) -> Committed:
    """Let a property be null that might not be; values and indices stay.

    Raises:
        OptionError: `nullable` is false: rows that are there may have null.
        SchemaMismatchError: the table has no such property, or it is its key, `id`, `src` or `dst`.
        UnsupportedError: an interface declares it, or another branch's table must have a value.
        TableNotFoundError: no such table.
        CommitTimeoutError, PublishOutcomeUnknown, StorageError: as a write.
    """
    _refuse_other(table, name)
    if not nullable:
        raise OptionError(
            f"{name} can't be made NOT NULL: rows of older versions may have null",
            expected="nullable=True",
            found="nullable=False",
            hint="Write the table to another graph with the option types to have it so",
        )
    plan = _plan(storage, options, table)
    (target,) = plan.targets.values()
    _check_free(storage, plan, target, name)
    if target.schema.field(name).nullable:
        version = load(storage, plan.branch).graph_version
        return Committed(plan.publish_id, version, skipped=True)
    return _reshaped(storage, options, plan, {name: name})


def _refuse_other(*names: object) -> None:
    """Refuse names of tables and properties that are no text."""
    for name in names:
        if not isinstance(name, str):
            raise OptionError(
                f"{name!r} can't be the name of a table or property", expected="a text"
            )


def _plan(storage: Storage, options: WriteOptions, table: str) -> WritePlan:
    snapshot = head(storage, options)
    if formats.of_graph(storage).has_identities:
        property_changes.refuse_elsewhere(storage, options.branch)
    if ":" in table:
        layout.split_table_key(table)
        key = snapshot.entry(table).table_key
    else:
        layout.check_type_name(table)
        key = snapshot.entry(snapshot.resolve(table)).table_key
    return plan_write(storage, options, {key: None})


def _column(name: str, kind: str | DataType) -> NewColumn:
    if not isinstance(kind, (str, DataType)):
        raise OptionError(
            f"{kind!r} is not a property type", expected="a text such as String?, or a Spark type"
        )
    engine = spark_types.asked_type(kind) if isinstance(kind, str) else kind
    if isinstance(engine, DataType):
        return spark_types.new_property(StructField(name, engine, True))
    if isinstance(kind, str) and not engine.nullable:
        raise OptionError(
            f"A new property must allow nulls: rows that are there have no value of {name}",
            expected=f"{kind.strip()}?",
            found=kind,
        )
    if not property_types.can_name(name):
        return NewColumn(pa.field(name, property_types.to_arrow(engine)), None, False)
    return NewColumn(property_types.arrow_field(name, engine), engine, False)


def _check_free(storage: Storage, plan: WritePlan, target: TableTarget, name: str) -> None:
    """Refuse columns that must stay as they are, before anything is changed."""
    key = target.table_key
    known = (engine_schema.read(storage) or EngineSchema()).of_table(key)
    kind, _ = layout.split_table_key(key)
    fixed = SYSTEM_COLUMNS[kind]
    rules = known.constraints() if isinstance(known, NodeType) else ()
    is_key = any(one.kind == "Key" and name in one.columns for one in rules)
    if kind == layout.EDGE and name not in fixed:
        is_key = name in edge_keys.recorded(storage, plan.branch, [key])[key]
    if name in fixed or is_key or name not in target.schema.names:
        free = [n for n in target.schema.names if n not in fixed]
        raise SchemaMismatchError(
            f"{key} has no property {name}"
            if name not in target.schema.names
            else f"{name} of {key} {'is its key' if is_key else 'is not a property'} and must stay",
            expected=f"one of {', '.join(free)[:300]}",
            found=name,
            hint=did_you_mean(name, free) if name not in target.schema.names else None,
            table_key=key,
            column=name,
        )
    if target.schema.field(name).nullable:
        return
    for branch, schema in property_files.table_schemas(storage, key):
        if branch != plan.branch and name in schema.names:
            raise UnsupportedError(
                f"{key}.{name} allows no nulls, and branch {branch} has it too",
                expected="a property that allows nulls, or that this branch alone has",
                hint="There is one schema for all branches: the engine would write rows to that"
                " branch without the property. Delete the branch first",
            )


def _reshaped(
    storage: Storage,
    options: WriteOptions,
    plan: WritePlan,
    names: Mapping[str, str | None],
    retyped: pa.Field | None = None,
) -> Committed:
    """Commit other columns of a table; the schema files name none that a table lacks meanwhile.

    Whoever dies in between loses no rule: `__manifest` knows them.
    """
    (key,) = plan.targets
    old = frozenset(names)
    if formats.of_graph(storage).has_identities:
        return _reshaped_together(plan, names, retyped)
    remembered = remember_types(storage, options, [key])
    if remembered is not None:
        plan = plan_write(storage, remembered, {key: None})
    target = plan.targets[key]
    forgotten = _part(_known(storage, plan, key), old)
    property_files.forget(storage, key, old)
    renamed = tuple(names.items()) if retyped is None else ()
    altered = replace(target, mode=ALTER, renamed=renamed, retyped=retyped)
    try:
        done = commit(replace(plan, mode=ALTER, targets={key: altered}), [])
    except PublishOutcomeUnknown:
        raise
    except OmnigraphError:
        property_files.quietly_name(storage, {key: forgotten})
        raise
    try:
        property_files.forget(storage, key, old)  # a writer that added it may have named it
    except OmnigraphError as error:  # the change is published
        _log.warning("The schema files may name %s of %s still: %s", ", ".join(old), key, error)
    now = _under(forgotten, names, target.schema, retyped)
    property_files.quietly_name(storage, {key: now})
    return done


def _reshaped_together(
    plan: WritePlan, names: Mapping[str, str | None], retyped: pa.Field | None
) -> Committed:
    """Commit other columns of a table together with the schema files that say so."""
    ((key, target),) = plan.targets.items()

    def text(there: str) -> str:
        forgotten = _part(engine_schema.parse_pg(there).of_table(key), frozenset(names))
        now = _under(forgotten, names, target.schema, retyped)
        rest = edits.drop_properties(there, key, frozenset(names))
        return edits.add_properties(rest, key, now.properties, now.rules, now.order)

    old_names = {(key, new): old for old, new in names.items() if new not in (None, old)}
    renamed = () if retyped is not None else tuple(names.items())
    altered = replace(target, mode=ALTER, renamed=renamed, retyped=retyped)
    asked = replace(plan, mode=ALTER, targets={key: altered})
    return property_changes.change(asked, text, Renamed(properties=old_names)).committed


def _refuse_source(storage: Storage, key: str, name: str) -> None:
    """Refuse to take a property away that the values of another one are made from."""
    known = (engine_schema.read(storage) or EngineSchema()).of_table(key)
    for one in known.properties if known is not None else ():
        if name in [mark.value for mark in one.annotations if mark.name == "embed"]:
            raise UnsupportedError(
                f"{key}.{one.name} is made from {name} (@embed)",
                expected="a property that no other is made from",
                found=name,
                hint=f"Nothing was changed. Drop {one.name} first, or change both with the engine",
            )


def _known(storage: Storage, plan: WritePlan, key: str) -> NodeType | EdgeType | None:
    """Return a table's type with all of its rules, also those that the files have lost."""
    snapshot = known_types.load_with_types(storage, plan.branch)
    return known_types.known(storage, snapshot).schema.of_table(key)


def _part(engine_type: NodeType | EdgeType | None, names: frozenset[str]) -> Forgotten:
    """Return some properties of a type, and the rules that name them."""
    if engine_type is None:
        return Forgotten()
    return Forgotten(
        tuple(p for p in engine_type.properties if p.name in names),
        tuple(rule for rule in engine_type.rules if names & set(rule.columns)),
        tuple(p.name for p in engine_type.properties),
    )


def _under(
    forgotten: Forgotten,
    names: Mapping[str, str | None],
    schema: pa.Schema,
    retyped: pa.Field | None,
) -> Forgotten:
    """Return what is to be named under the new names; what was dropped is left out.

    A column that the files didn't name, since another branch had it by the old name, may be named
    now by what its type tells.
    """
    properties, rules = [], []
    known = {p.name: p for p in forgotten.properties}
    for old, new in names.items():
        if new is None:
            continue
        field = retyped or schema.field(old).with_name(new)
        relaxed = new == old and retyped is None
        engine = engine_type_of(field.with_nullable(True) if relaxed else field, {})
        if not isinstance(engine, LeftOut):
            prop = known.get(old, Property(new, engine))
            kind = replace(prop.type, nullable=True) if relaxed else prop.type
            kind = kind if retyped is None else engine
            properties.append(Property(new, kind, prop.annotations))
    for rule in forgotten.rules:
        columns = tuple(names.get(name, name) for name in rule.columns)
        if None not in columns:
            renamed = tuple(name for name in columns if name is not None)
            rules.append(Constraint(rule.kind, renamed, rule.bounds, rule.pattern))
    order = tuple(names.get(name) or name for name in forgotten.order)
    return Forgotten(tuple(properties), tuple(rules), order)


def add_table(
    storage: Storage, options: WriteOptions, table: str, columns: str | StructType
) -> Committed:
    """Make an empty table; `columns` may leave out `id` (`src`, `dst`).

    Raises:
        OptionError: the table is there, or its name, columns or options say nothing that can be.
        SchemaMismatchError: a column that no table can have.
        ExpectedVersionMismatch: another writer made it meanwhile.
        CommitTimeoutError, PublishOutcomeUnknown, StorageError: as a write.
    """
    kind, _ = layout.split_table_key(table)
    before = head(storage, options)
    if table in before.tables:
        raise OptionError(
            f"{table} is there already",
            expected="the key of a table that the graph doesn't have",
            hint="Use add_property to change it, or drop_table first",
        )
    if isinstance(columns, str):
        columns = ddl.parse_columns(columns) if columns.strip() else StructType([])
    columns = field_metadata.required(columns)
    fixed = [
        StructField(name, StringType(), nullable=False)
        for name in SYSTEM_COLUMNS[kind]
        if name not in columns.names
    ]
    try:
        plan = plan_frames(options, {table: StructType([*fixed, *columns.fields])})
        if plan.targets[table].mode != CREATE:  # a new graph, or one of a newer engine: it is made
            done = commits.head(storage, plan.branch)
            commit_id = done.graph_commit_id if done else plan.publish_id
            return Committed(commit_id, _version(storage, plan))
    except StorageError as error:
        # Without identities a plan makes no table.
        if not before.identities or _lacks(storage, options.branch, table):
            raise
        raise PublishOutcomeUnknown(
            "",
            "the store failed",
            cause=type(error).__name__,
            of=f"adding {table}",
            hint="Look whether the graph has the table before adding it again",
        ) from error
    return commit(replace(plan, expected={**plan.expected, table: 0}), [])


def _lacks(storage: Storage, branch: str, table: str) -> bool:
    """Return whether a branch certainly has no such table."""
    try:
        return table not in load(storage, branch).tables
    except StorageError:
        return False


def _version(storage: Storage, plan: WritePlan) -> int:
    return load(storage, plan.branch).graph_version


def drop_table(storage: Storage, options: WriteOptions, tables: Iterable[str]) -> Committed:
    """Drop tables in one publish: a tombstone each. Data and older graph versions stay.

    Raises:
        TableNotFoundError: no such table.
        IntegrityError: an edge table ends at one of them and isn't dropped with it.
        ExpectedVersionMismatch: another writer wrote to one of them meanwhile; nothing was dropped.
        CommitTimeoutError, PublishOutcomeUnknown, StorageError: as a write.
    """
    snapshot = head(storage, options)
    named = list(dict.fromkeys(tables))
    if not named:
        raise OptionError("No table to drop was named", expected="node:Person, edge:Knows, …")
    keys = [
        snapshot.entry(name if ":" in name else snapshot.resolve(name)).table_key for name in named
    ]
    commit_check.refuse_stranded(keys, snapshot, known_types.known(storage, snapshot).schema)
    if formats.of_graph(storage).has_identities:
        versions = {key: snapshot.version(key) for key in keys}
        commit_id, published = schema_apply.drop_tables(
            storage, versions, options.actor, options.orphan_grace_seconds
        )
        return Committed(commit_id, published.graph_version)
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
