"""Which columns a frame has, and which stored column of which table each is read from.

A table frame has the table's columns; a whole-graph frame has `_table` and the union of all tables'
 Everything here runs on the driver: the schema once per load, the check of a schema that
Spark hands back (a user's, or the one given before) once per planned scan.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.types import LongType, StructField, StructType

from omnigraph_spark import schema as engine_schema
from omnigraph_spark.arrow.frame_batches import TABLE
from omnigraph_spark.errors import OptionError, SchemaMismatchError, did_you_mean
from omnigraph_spark.manifest.snapshot import Snapshot
from omnigraph_spark.options import ReadOptions
from omnigraph_spark.read import plan, user_filter
from omnigraph_spark.read.filters import Predicate
from omnigraph_spark.schema import EngineSchema, column_order
from omnigraph_spark.spark import field_metadata, frames, spark_types
from omnigraph_spark.storage import layout
from omnigraph_spark.storage.store import Storage

METADATA_COLUMNS = ("_rowid", "_row_created_at_version", "_row_last_updated_at_version")
_SHOWN = 60


def read_schema(
    storage: Storage, snapshot: Snapshot, options: ReadOptions, frame_name: str = ""
) -> tuple[StructType, dict[str, pa.Schema]]:
    """Return a frame's schema and, for the reader, the stored schemas that it came from.

    Runs on the driver, once per load. The fields carry their stored type (`omnigraph.type`) and the
    version that is read (`omnigraph.read`), beside it the load's own name `frame_name`.

    Raises:
        TableNotFoundError: the snapshot has no such table.
        OptionError: `columns` or `metadataColumns` names one that isn't there; what exists is
        listed. SchemaMismatchError: a column has a type that Spark can't read, or two tables'
        columns clash. StorageError: a table isn't there, or the store failed.
    """
    schemas = stored_schemas(storage, snapshot, options.table)
    empty = [key for key in schemas if snapshot.entry(key).row_count == 0]
    engine = engine_schema.read_if_sound(storage)
    frame = _Frame(schemas, options.table is None, options.columns, engine, empty)
    fields = {field.name: field for field in frame.schema.fields}
    unknown = [name for name in options.columns or () if name not in fields]
    if unknown:
        raise OptionError(
            f"Option columns names {', '.join(map(repr, unknown))}, which the frame doesn't have",
            expected=", ".join([*frame.all_names][:_SHOWN]),
            hint=did_you_mean(unknown[0], frame.all_names, "Names are distinguished by case"),
        )
    chosen = [fields[name] for name in options.columns or fields]
    chosen += [StructField(name, LongType(), False) for name in _metadata_columns(options)]
    key = None if options.table is None else next(iter(schemas))
    mark = field_metadata.ReadMark(
        storage.root,
        snapshot.branch,
        snapshot.graph_version,
        key,
        0 if key is None else snapshot.version(key),
        frame_name,
    )
    return field_metadata.with_read(StructType(chosen), mark), schemas


def stored_schemas(storage: Storage, snapshot: Snapshot, table: str | None) -> dict[str, pa.Schema]:
    """Return the stored schema of one table, or of every table of the snapshot, by table key.

    Raises:
        TableNotFoundError: the snapshot has no such table.
        StorageError: a table isn't there, or the store failed.
    """
    keys = list(snapshot.tables) if table is None else [snapshot.resolve(table)]
    datasets = plan.open_tables(storage, [snapshot.entry(key) for key in keys])
    return {key: dataset.schema for key, dataset in datasets.items()}


@dataclass(frozen=True)
class FrameColumns:
    """For each table the stored fields that the frame's columns are read from; picklable."""

    whole_graph: bool
    fields: Mapping[str, Mapping[str, pa.Field]]
    metadata: tuple[str, ...]
    filters: Mapping[str, Predicate]
    """What the option `filter` keeps of each table."""

    @property
    def tables(self) -> list[str]:
        """Return the keys of the tables that the frame reads, in order."""
        return list(self.fields)

    def owned(self, key: str) -> dict[str, str]:
        """Return {frame column: stored column} of what is scanned from a table."""
        names = {title: field.name for title, field in self.fields[key].items()}
        return names | {name: name for name in self.metadata}

    @classmethod
    def of(
        cls,
        storage: Storage,
        snapshot: Snapshot,
        options: ReadOptions,
        schema: StructType,
        table_schemas: Mapping[str, pa.Schema] | None,
    ) -> FrameColumns:
        """Return the columns behind `schema`, which may drop and reorder the frame's, no more.

        Raises:
            TableNotFoundError: the snapshot has no such table.
            SchemaMismatchError: a column isn't the frame's, or has another type there, or is
            declared
                not null and may be null.
            OptionError: the option `filter` isn't one that Lance answers as Spark's `where` does.
            StorageError: a table isn't there, or the store failed.
        """
        known = table_schemas or stored_schemas(storage, snapshot, options.table)
        names = [field.name for field in schema.fields]
        frame = _Frame(known, options.table is None, names, None)
        frame.check(schema)
        return cls(
            whole_graph=frame.whole_graph,
            fields={
                key: {title: field for title, field in columns.items() if title in names}
                for key, columns in frame.columns.items()
            },
            metadata=tuple(name for name in METADATA_COLUMNS if name in names),
            filters=filters_of(known, options),
        )


def filters_of(schemas: Mapping[str, pa.Schema], options: ReadOptions) -> dict[str, Predicate]:
    """Return what the option `filter` keeps of each table, by the stored schemas.

    Raises:
        OptionError: the filter isn't one that Lance answers as Spark's `where` does.
    """
    if options.filter is None:
        return dict.fromkeys(schemas, True)
    named = {name.lower() for name in user_filter.named_columns(options.filter)}
    stored = {name for schema in schemas.values() for name in schema.names}
    needed = named | {name for name in stored if name.lower() in named}
    # `age__int` is one table's `age`.
    needed |= {
        f"{name}__" for name in stored if any(a.startswith(f"{name}__".lower()) for a in named)
    }
    whole_graph = options.table is None
    lower = {TABLE, *(name.lower() for name in stored)}
    # A name that is nowhere is answered with all that are.
    is_known = all(
        name in lower or any(name.startswith(f"{one}__") for one in lower) for name in named
    )
    by_table = _Frame(schemas, whole_graph, needed if is_known else None, None).columns
    known = {name for columns in by_table.values() for name in columns}
    missing = {name for name in needed & stored if name not in known}
    tables = {
        key: {
            **columns,
            **{name: schemas[key].field(name) for name in missing & {*schemas[key].names}},
        }
        for key, columns in by_table.items()
    }
    return user_filter.predicates(options.filter, tables, TABLE if whole_graph else None)


class _Frame:
    """A frame's columns as far as they are wanted (None: all), from the stored schemas."""

    def __init__(
        self,
        schemas: Mapping[str, pa.Schema],
        whole_graph: bool,
        chosen: Collection[str] | None,
        engine: EngineSchema | None,
        empty: Iterable[str] = (),
    ) -> None:
        self.whole_graph = whole_graph
        tables = {
            key: table_struct(key, _chosen(schema, whole_graph, chosen), engine)
            for key, schema in schemas.items()
        }
        if whole_graph:
            self.schema = frames.whole_graph_schema(tables, *ends_and_keys(engine), empty=empty)
            owners = frames.ownership(self.schema, tables)
        else:
            self.schema = next(iter(tables.values()))
            owners = {key: {name: name for name in struct.names} for key, struct in tables.items()}
        names = dict.fromkeys(name for stored in schemas.values() for name in stored.names)
        self.all_names = [*self.schema.names, *(n for n in names if n not in self.schema.names)]
        self.columns = {
            key: {title: schemas[key].field(name) for title, name in owned.items()}
            for key, owned in owners.items()
        }

    def check(self, schema: StructType) -> None:
        """Refuse a schema that is more than a choice of the frame's columns, or less than one."""
        if not schema.fields:  # Spark 4.0 takes batches without columns for batches without rows
            raise SchemaMismatchError(
                "The schema has no columns",
                expected=f"one at least of {', '.join(self.all_names[:_SHOWN])}",
                hint="To count rows, read any one column",
            )
        fields = {field.name: field for field in self.schema.fields}
        for chosen in schema.fields:
            own = fields.get(chosen.name)
            if chosen.name in METADATA_COLUMNS:
                own = StructField(chosen.name, LongType(), False)
            if own is None:
                raise SchemaMismatchError(
                    f"The schema asks for column {chosen.name!r}, which isn't there",
                    expected=", ".join(self.all_names[:_SHOWN]),
                    hint=did_you_mean(
                        chosen.name,
                        self.all_names,
                        "A schema may leave columns out and reorder them; rename with Spark",
                    ),
                    column=chosen.name,
                )
            if not spark_types.same_type(own.dataType, chosen.dataType):
                raise SchemaMismatchError(
                    f"The schema asks for column {chosen.name} with another type",
                    expected=own.dataType.simpleString().upper(),
                    found=chosen.dataType.simpleString().upper(),
                    hint="Read it as it is and cast it with Spark",
                    column=chosen.name,
                )
            if not chosen.nullable and own.nullable and self._may_be_null(chosen.name):
                raise SchemaMismatchError(
                    f"The schema declares column {chosen.name} not null, and it may be null",
                    expected=f"{chosen.name} without NOT NULL",
                    column=chosen.name,
                )

    def _may_be_null(self, name: str) -> bool:
        return any(
            name not in columns or columns[name].nullable for columns in self.columns.values()
        )


def _chosen(schema: pa.Schema, whole_graph: bool, names: Collection[str] | None) -> list[pa.Field]:
    """Return the stored fields that are wanted, so that the others' types don't matter."""
    if names is None:
        return list(schema)
    if not whole_graph:
        return [field for field in schema if field.name in names]
    # `age__int` is read from `age`, and which of the two names is right depends on all the tables.
    roots = {name[: at + 1] for name in names for at in range(len(name))}
    return [f for f in schema if f.name in names or f"{f.name}__" in roots]


def table_struct(
    key: str, fields: Iterable[pa.Field], engine: EngineSchema | None = None
) -> StructType:
    """Return a table's frame, its columns as people see them (`column_order`).

    Writes to edges and keyed nodes may leave `id` out.

    Raises:
        SchemaMismatchError: Spark has no type for a column.
    """
    kind, name = layout.split_table_key(key)
    node = None if engine is None or kind != layout.NODE else engine.nodes.get(name)
    edge = None if engine is None or kind != layout.EDGE else engine.edges.get(name)
    definition = node or edge
    types = {p.name: p.type for p in definition.properties} if definition else {}
    shown = column_order.as_shown(fields, kind == layout.EDGE, list(types))
    id_may_be_null = kind == layout.EDGE or (node is not None and node.key is not None)
    return StructType(
        [
            spark_types.spark_field(
                field,
                nullable=True if field.name == "id" and id_may_be_null else None,
                engine=types.get(field.name),
                key=node is not None and field.name == node.key,
            )
            for field in shown
        ]
    )


def ends_and_keys(
    engine: EngineSchema | None,
) -> tuple[dict[str, tuple[str, str]], dict[str, str]]:
    """Return the endpoints of the edge types and the keys of the node types."""
    if engine is None:
        return {}, {}
    ends = {edge.name: (edge.source, edge.target) for edge in engine.edges.values()}
    return ends, {node.name: node.key for node in engine.nodes.values() if node.key is not None}


def _metadata_columns(options: ReadOptions) -> tuple[str, ...]:
    for name in options.metadata_columns:
        if name not in METADATA_COLUMNS:
            raise OptionError(
                f"Option metadataColumns names {name!r}", expected=", ".join(METADATA_COLUMNS)
            )
    return options.metadata_columns
