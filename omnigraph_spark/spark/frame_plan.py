"""What a frame's schema says of the tables that it is written to; on the driver, read-only.

A table frame goes to the table that the option `table` names; a whole-graph frame to those of its
definitions, else to those that the graph has.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa
from pyspark.sql.types import StringType, StructField, StructType

from omnigraph_spark.arrow.frame_batches import TABLE
from omnigraph_spark.errors import (
    IntegrityError,
    OptionError,
    SchemaMismatchError,
    TableNotFoundError,
    did_you_mean,
)
from omnigraph_spark.history import new_graph, schema_apply
from omnigraph_spark.manifest import formats
from omnigraph_spark.manifest.snapshot import Snapshot
from omnigraph_spark.options import WriteOptions
from omnigraph_spark.read import user_filter
from omnigraph_spark.schema import column_order
from omnigraph_spark.schema.model import EngineSchema
from omnigraph_spark.schema.property_types import EngineType
from omnigraph_spark.spark import edge_keys, frames, merge_schema, read_marks, spark_types
from omnigraph_spark.spark.frames import Definitions
from omnigraph_spark.storage import layout
from omnigraph_spark.storage.store import Storage
from omnigraph_spark.write.commit import property_changes
from omnigraph_spark.write.plan import (
    ALL_ROWS,
    CREATE,
    DELETE,
    MERGE,
    NO_ROWS,
    REPLACE,
    NewTable,
    TableTarget,
    WritePlan,
    head,
    plan_write,
)
from omnigraph_spark.write.tasks.routing import Routing

_log = logging.getLogger(__name__)
_ENDPOINTS = ("src", "dst")
_BOTH_FORMS = (
    "Write one table: .option('table', 'node:Person'). Or write a whole graph: a frame with the "
    "column _table, as omnigraph_spark.pack({'node:Person': people, 'edge:Knows': knows}) makes it"
)


@dataclass(frozen=True)
class FramePlan:
    """A write's plan and where its rows go; plain data, picklable.

    `named` are the tables that are written whether they have rows or not: the user named them. Of
    the others those are that the rows name. `copied` had no rows where the frame was read; they are
    made if the frame still has rows of all others. `demanded` are the tables that
    `expectedTableVersions` names.
    """

    plan: WritePlan
    routing: Routing
    named: frozenset[str]
    copied: frozenset[str] = frozenset()
    demanded: frozenset[str] = frozenset()

    def narrowed(self, found: Collection[str]) -> WritePlan:
        """Return the plan of the tables that are written, `found` being those that have rows."""
        plan = self.plan
        needed = {*found, *self.named}
        needed |= {key for key, target in plan.targets.items() if target.mode == REPLACE}
        if self.copied and {*plan.targets} - self.copied <= needed:
            needed |= {key for key in self.copied if plan.targets[key].mode == CREATE}
        for edge in plan.new_types.edges.values():
            if edge.table_key in needed:  # a new edge type brings the types that it ends at
                ends = {layout.table_key(layout.NODE, end) for end in (edge.source, edge.target)}
                needed |= {key for key in ends & {*plan.targets} if self._is_new(key)}
        left = sorted({*plan.targets} - needed)
        if not left:
            return plan
        _log.info(
            "write %s leaves %s as they are: the frame has no rows of them",
            plan.publish_id,
            ", ".join(left),
        )
        return replace(
            plan,
            targets={key: target for key, target in plan.targets.items() if key in needed},
            expected={k: v for k, v in plan.expected.items() if k in needed | self.demanded},
            new_types=EngineSchema.of(t for t in plan.new_types.types() if t.table_key in needed),
            new_properties={k: v for k, v in plan.new_properties.items() if k in needed},
        )

    def _is_new(self, key: str) -> bool:
        return self.plan.targets[key].mode == CREATE


def plan_frame(
    options: WriteOptions, schema: StructType, declared: StructType | None = None
) -> FramePlan:
    """Plan the write of one frame.

    `declared` are the columns that CREATE TABLE declared, for a table that the first INSERT
    creates.

    Raises:
        OptionError: a frame of neither form, or options that name a type that isn't written.
        SchemaMismatchError, IntegrityError, TableNotFoundError: the frame doesn't fit.
        ExpectedVersionMismatch, UnsupportedError, UnsupportedManifestVersion, RecoveryPendingError,
        StorageError: as `plan.plan_write`.
    """
    if options.table is None and TABLE not in schema.names:
        raise OptionError(
            "The frame doesn't say where its rows go",
            expected="the option table, or the column _table",
            found=f"columns {', '.join(schema.names)[:300]}" if schema.names else "no columns",
            hint=_BOTH_FORMS,
        )
    if options.table is None:
        return _plan_whole_graph(options, schema)
    storage = Storage.at(options.path, options.storage)
    snapshot = head(storage, options)
    key = _table_key(snapshot, options.table)
    plan = _plan_tables(storage, snapshot, options, {key: schema}, {key: declared or schema}, None)
    own = {field.name: field for field in plan.targets[key].schema}
    return FramePlan(
        _replacing(plan, options, {key: own}, None), Routing(single=key), frozenset({key})
    )


def plan_frames(options: WriteOptions, schemas: Mapping[str, StructType]) -> WritePlan:
    """Plan one commit of many table frames, by table key.

    Raises:
        OptionError: no frames, or a key that is not a valid table key.
        OmnigraphError: as `plan_frame`.
    """
    if not schemas:
        raise OptionError("No frames to write", expected="{'node:Person': people, …}")
    storage = Storage.at(options.path, options.storage)
    snapshot = head(storage, options)
    by_key = {_table_key(snapshot, name): schema for name, schema in schemas.items()}
    if len(by_key) != len(schemas):
        raise OptionError("Two frames are for one table", found=", ".join(schemas))
    plan = _plan_tables(storage, snapshot, options, by_key, by_key, None)
    columns = {key: {f.name: f for f in target.schema} for key, target in plan.targets.items()}
    return _replacing(plan, options, columns, None if len(columns) == 1 else TABLE)


def key_among(plan: WritePlan, name: str) -> str:
    """Return the table of a plan that a user's name means: its key, or its bare type name."""
    return next(key for key in plan.targets if name in (key, key.partition(":")[2]))


def restored(plan: WritePlan, schema: StructType) -> FramePlan:
    """Return the plan of one table of `plan_frames`, in the process that stages its frame."""
    (target,) = plan.targets.values()
    _check(schema, target, plan.settings.exact)
    return FramePlan(plan, Routing(single=target.table_key), frozenset({target.table_key}))


def _plan_whole_graph(options: WriteOptions, schema: StructType) -> FramePlan:
    storage = Storage.at(options.path, options.storage)
    snapshot = head(storage, options)
    known = frames.definitions(schema)
    if known is None and options.overwrite_empty:
        raise OptionError(
            "overwriteEmpty needs a frame that lists its tables, and this one lost the list",
            expected=f"the metadata of {TABLE}, as a read and omnigraph_spark.pack leave it there",
            hint="Build the frame with pack, or overwrite the tables one by one: option table",
        )
    keys = list(known.tables) if known is not None else list(snapshot.tables)
    if known is None and not keys:
        raise OptionError(
            "The frame doesn't say which columns are whose, and the graph has no tables",
            expected="a frame with definitions, or a graph that has the tables",
            hint=_BOTH_FORMS,
        )
    given = known.tables if known is not None else {}
    plan = _plan_tables(storage, snapshot, options, dict.fromkeys(keys), given, known, schema)
    tables = {key: _as_spark(target, given.get(key)) for key, target in plan.targets.items()}
    owned = frames.ownership(schema, tables)
    _refuse_strangers(schema, owned)
    # Without definitions nobody knows which tables will have rows: what those lack, their tasks
    # refuse.
    for key, target in plan.targets.items() if known is not None else ():
        _check(_own_frame(schema, owned[key]), target, options.exact)
    stored = {
        key: {title: plan.targets[key].schema.field(own) for title, own in columns.items()}
        for key, columns in owned.items()
    }
    plan = _replacing(plan, options, stored, TABLE)
    demanded = frozenset(options.expected_table_versions)
    if known is None:
        return FramePlan(plan, Routing(ownership=owned), frozenset(), demanded=demanded)
    named = frozenset(plan.targets if known.named or options.overwrite_empty else ())
    copied = known.empty & frozenset(plan.targets)
    return FramePlan(plan, Routing(ownership=owned), named, copied, demanded)


def _plan_tables(
    storage: Storage,
    snapshot: Snapshot,
    options: WriteOptions,
    written: Mapping[str, StructType | None],
    definitions: Mapping[str, StructType],
    known: Definitions | None,
    carrier: StructType | None = None,
) -> WritePlan:
    """Plan tables, and check the frames (`written`; None: later) against those that exist.

    Where the graph is to be made with its tables, or its tables and properties are added in commits
    of their own, that is done once all else is checked.
    """

    def planned(asked: WriteOptions, newest: Snapshot, moved: Mapping[str, int]) -> WritePlan:
        return _planned(storage, newest, asked, written, definitions, known, carrier, moved)

    form = options.graph_format
    missing = form is not None and new_graph.is_missing(storage, form)
    plan = planned(options, snapshot, {})
    keys = {key: target.edge_key for key, target in plan.targets.items()}
    if missing and form == new_graph.OF_TODAY:
        new_graph.make(storage, plan.new_types, keys)
        plan = planned(options, head(storage, options), {})
    elif plan.new_types.types() and formats.of_graph(storage).has_identities:
        schema_apply.add_tables(
            storage,
            plan.new_types,
            edge_keys=keys,
            actor=options.actor,
            grace_seconds=options.orphan_grace_seconds,
        )
        plan = planned(options, head(storage, options), {})
    if plan.new_properties and formats.of_graph(storage).has_identities:
        done = property_changes.add(replace(plan, txn=None, user_metadata=None))
        expected = {**options.expected_table_versions}
        expected |= {key: done.versions[key] for key in expected.keys() & done.versions.keys()}
        asked = replace(options, expected_table_versions=expected)
        plan = planned(asked, head(storage, options), done.versions)
    return plan


def _planned(
    storage: Storage,
    snapshot: Snapshot,
    options: WriteOptions,
    written: Mapping[str, StructType | None],
    definitions: Mapping[str, StructType],
    known: Definitions | None,
    carrier: StructType | None,
    moved: Mapping[str, int],
) -> WritePlan:
    """Plan tables; `moved` are versions that this write itself has just given some of them."""
    _refuse_unwritten(options, written)
    new = {
        key: _new_table(key, definitions[key], options, known)
        if key in definitions and key not in snapshot.tables and options.mode != DELETE
        else None
        for key in written
    }
    schemas = [schema for schema in (*written.values(), carrier) if schema is not None]
    marks = read_marks.of_frames(storage, options, schemas)
    if options.mode in (MERGE, DELETE, REPLACE):
        reads = read_marks.of_rows(storage, options, marks, written, snapshot)
        plan = plan_write(storage, options, new, reads=reads)
    else:
        read = read_marks.versions(storage, options, marks, written, snapshot)
        read |= {key: moved[key] for key in read.keys() & moved.keys()}
        plan = plan_write(storage, options, new, read)
    plan = replace(plan, frames=tuple(dict.fromkeys(mark.frame for mark in marks if mark.frame)))
    if options.merge_schema:
        given = {key: schema for key, schema in written.items() if schema is not None}
        plan = merge_schema.widened(plan, options, {**definitions, **given})
    plan = replace(plan, targets=edge_keys.with_keys(storage, options, plan.targets))
    for key, schema in written.items():
        if schema is not None:
            _check(schema, plan.targets[key], options.exact)
    made = frozenset(
        key
        for key, schema in written.items()
        if schema is not None and "id" not in schema.names and not plan.targets[key].edge_key
    )
    edges = frozenset(key for key in made if layout.is_edge(key))
    return replace(plan, integrity=replace(plan.integrity, made_ids=edges))


def _replacing(
    plan: WritePlan,
    options: WriteOptions,
    columns: Mapping[str, Mapping[str, pa.Field]],
    table_column: str | None,
) -> WritePlan:
    """Return a plan whose tables say which of their rows `replaceWhere` chooses.

    `columns` are the stored columns of each table by their names in the frame.

    Raises:
        OptionError: it is not a predicate, or says something that can't be answered as Spark does.
    """
    if options.replace_where is None:
        return plan
    try:
        by_table = user_filter.predicates(options.replace_where, columns, table_column)
    except OptionError as error:
        raise OptionError(
            error.what.replace("Option filter", "Option replaceWhere"),
            expected=error.expected,
            found=error.found,
            hint="Any condition goes with OmniGraph.delete(table, where), and an append after it",
        ) from error
    texts = {True: ALL_ROWS, False: NO_ROWS}
    targets = {
        key: replace(target, replaces=one if isinstance(one := by_table[key], str) else texts[one])
        for key, target in plan.targets.items()
    }
    return replace(plan, targets=targets)


def _table_key(snapshot: Snapshot, name: str) -> str:
    if layout.is_table_key(name) or ":" in name:
        layout.split_table_key(name)
        return name
    layout.check_type_name(name)
    try:
        return snapshot.resolve(name)
    except TableNotFoundError as error:
        if error.hint is not None or name in {key.partition(":")[2] for key in snapshot.tables}:
            raise
        raise TableNotFoundError(
            error.what,
            expected=error.expected,
            hint=f"A table that is to be created is named with its kind: node:{name}, or, with the"
            f" columns src and dst, edge:{name}",
            table_key=name,
        ) from None


def _refuse_unwritten(options: WriteOptions, written: Collection[str]) -> None:
    """Refuse options for the creation of tables that this write doesn't have: mistyped names."""
    types = {layout.split_table_key(key)[1] for key in written}
    named = {
        "endpoints": options.endpoints,
        "keys": options.keys,
        "edgeKeys": options.edge_keys,
        "types": {column.partition(".")[0]: None for column in options.types},
    }
    for option, mapping in named.items():
        for name in mapping:
            if name not in types:
                raise OptionError(
                    f"Option {option} names {name}, which this write doesn't have",
                    expected=", ".join(sorted(types)),
                )


def _check(schema: StructType, target: TableTarget, exact: bool) -> None:
    edge_keys.refuse_some(schema.names, target)
    may_lack = ("id",) if target.key is not None or layout.is_edge(target.table_key) else ()
    if target.mode == DELETE:
        _check_has_id(schema, target)
        schema = StructType([field for field in schema.fields if field.name == "id"])
        may_lack = tuple(target.schema.names)
    if target.mode == MERGE:
        _check_has_id(schema, target)
        may_lack = tuple(target.schema.names)
    spark_types.check_frame(schema, target.schema, target.table_key, may_lack, exact)


def _check_has_id(schema: StructType, target: TableTarget) -> None:
    """Refuse an upsert's frame without `id`, but where a key of the table stands for it."""
    if "id" in schema.names or target.key in schema.names:
        return
    if target.edge_key and set(target.edge_key) <= set(schema.names):
        return
    raise lacks_id(target.table_key, target.key, schema.names)


def lacks_id(table_key: str, key: str | None, names: Sequence[str]) -> IntegrityError:
    """Return the error of a frame by which no row of a table is found."""
    return IntegrityError(
        f"The frame for {table_key} lacks column id, by which rows are found",
        expected="id STRING" if key is None else f"id STRING, or the key {key}",
        found=", ".join(names)[:300],
        hint="Add the column id",
        table_key=table_key,
        rule="not null",
        samples=[],
        column="id",
    )


# --- new tables ----------------------------------------------------------------------------------


def _new_table(
    key: str, schema: StructType, options: WriteOptions, known: Definitions | None
) -> NewTable:
    """Return how a table that the graph doesn't have is created from a frame's schema."""
    kind, name = layout.split_table_key(key)
    sides = _ENDPOINTS if kind == layout.EDGE else ()
    columns = [field for field in schema.fields if field.name not in ("id", *sides)]
    spark_types.check_new_names([field.name for field in columns], key)
    texts = {
        column.partition(".")[2]: text
        for column, text in options.types.items()
        if column.partition(".")[0] == name
    }
    for column in texts:
        if column not in schema.names:
            raise OptionError(
                f"Option types names {name}.{column}, which the frame doesn't have",
                expected=", ".join(schema.names)[:300],
                hint=did_you_mean(column, schema.names),
            )
    made = {f.name: spark_types.new_property(f, texts.get(f.name)) for f in columns}
    engine: dict[str, EngineType] = {n: c.engine for n, c in made.items() if c.engine is not None}
    key_column = _key_of(name, options, known, [n for n, c in made.items() if c.key])
    if kind == layout.EDGE:
        key_column = None
    for field in ("id", *sides):
        _check_system_column(
            schema, field, key, optional=field == "id" and (bool(sides) or key_column is not None)
        )
    system = [pa.field(field, pa.utf8(), nullable=False) for field in ("id", *sides)]
    return NewTable(
        schema=pa.schema(column_order.as_stored(system, [c.field for c in made.values()])),
        key=key_column,
        endpoints=options.endpoints.get(name) or (known.endpoints.get(name) if known else None),
        carried=engine,
    )


def _key_of(
    name: str, options: WriteOptions, known: Definitions | None, carried: list[str]
) -> str | None:
    if name in options.keys:
        return options.keys[name]
    if known is not None:
        return known.keys.get(name)
    return carried[0] if len(carried) == 1 else None


def _check_system_column(schema: StructType, name: str, key: str, *, optional: bool) -> None:
    field = next((f for f in schema.fields if f.name == name), None)
    if field is None and not optional:
        kind = IntegrityError if name == "id" else SchemaMismatchError
        raise kind(
            f"The frame for {key} lacks column {name}",
            expected=f"{name} STRING",
            found=", ".join(schema.names)[:300],
            hint="Add it; a node's id may be left out only where option keys names a key"
            if name == "id"
            else "Add it",
            table_key=key,
            rule="not null",
            samples=[],
        )
    if field is not None:
        arrow = pa.field(name, spark_types.arrow_type(field.dataType, name))
        spark_types.check_frame(
            StructType([field]), pa.schema([arrow.with_type(pa.utf8())]), key, (name,)
        )


# --- whole-graph frames --------------------------------------------------------------------------


def _as_spark(target: TableTarget, defined: StructType | None) -> StructType:
    """Return a table's frame schema: as the frame defines it, else from what is stored."""
    if defined is not None and target.mode == CREATE:
        return defined
    return StructType([spark_types.spark_field(field) for field in target.schema])


def _own_frame(schema: StructType, owned: Mapping[str, str]) -> StructType:
    """Return the part of a whole-graph frame that feeds one table, under the table's names."""
    return StructType(
        [
            StructField(owned[field.name], field.dataType, field.nullable)
            for field in schema.fields
            if field.name in owned
        ]
    )


def _refuse_strangers(schema: StructType, owned: Mapping[str, Mapping[str, str]]) -> None:
    """Refuse columns that belong to no table of the write, and a `_table` that is not text."""
    fed = {name for columns in owned.values() for name in columns}
    for field in schema.fields:
        if field.name == TABLE:
            if not isinstance(field.dataType, StringType):
                raise SchemaMismatchError(
                    f"Column {TABLE} has another type",
                    expected="STRING",
                    found=field.dataType.simpleString().upper(),
                    column=TABLE,
                )
        elif field.name not in fed and field.name not in _ENDPOINTS:
            raise SchemaMismatchError(
                f"Column {field.name} belongs to no table of this write, or has another type there",
                expected="columns of the tables; omnigraph_spark.pack says which are whose",
                found=f"{field.name} {field.dataType.simpleString().upper()}",
                hint="Drop the column, cast it, or add the property to a table first",
                column=field.name,
            )
