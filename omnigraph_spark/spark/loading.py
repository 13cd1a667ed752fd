"""From the options of a load to one pinned snapshot, and from it to schemas and readers.

A `Load` is plain data: it is pickled with the data source, so all scans of a DataFrame, and tasks
that run again, see the same version of every table. All of it runs on the driver.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, InputPartition

from omnigraph_spark import options
from omnigraph_spark import schema as engine_schema
from omnigraph_spark.errors import (
    GraphNotFoundError,
    OptionError,
    SchemaMismatchError,
    TableNotFoundError,
)
from omnigraph_spark.manifest import snapshot
from omnigraph_spark.manifest.snapshot import Snapshot
from omnigraph_spark.options import ReadOptions, StreamOptions
from omnigraph_spark.read.stream_plan import LATEST
from omnigraph_spark.refs import changes, refs
from omnigraph_spark.refs.changes import Feed
from omnigraph_spark.spark import catalog, ddl, field_metadata
from omnigraph_spark.storage import layout
from omnigraph_spark.storage.ids import new_ulid
from omnigraph_spark.storage.store import Storage

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa
    from pyspark.sql.types import StructType

    from omnigraph_spark.read.plan import Partition
    from omnigraph_spark.spark.reader import OmnigraphReader, Pushed
    from omnigraph_spark.spark.stream_reader import StreamLoad


@dataclass
class Load:
    """What one load reads: options, and the snapshot that they meant when it was made."""

    storage: Storage
    options: ReadOptions
    snapshot: Snapshot
    span: changes.Span | None = None
    table_schemas: Mapping[str, pa.Schema] | None = field(default=None, repr=False)
    feed: Feed | None = field(default=None, repr=False)
    feed_tables: Mapping[str, StructType] | None = field(default=None, repr=False)
    name: str = field(default_factory=new_ulid, repr=False)
    pushed: Pushed | None = None
    planned: list[Partition] | None = field(default=None, repr=False)

    def schema(self) -> StructType:
        """Return the frame's columns.

        Raises:
            OmnigraphError: no such table or column, or types that Spark doesn't have.
        """
        from omnigraph_spark.spark import feed_reader, frame_schema

        if self.span is not None:
            alone, engine = (
                self.options.table is not None,
                engine_schema.read_if_sound(self.storage),
            )
            return feed_reader.feed_schema(self._feed(self.span)[1], alone, engine)
        if self.options.metadata is not None:
            return feed_reader.metadata_schema(self.options.metadata)
        schema, self.table_schemas = frame_schema.read_schema(
            self.storage, self.snapshot, self.options, self.name
        )
        return schema

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader of one planned scan.

        Raises:
            OmnigraphError: as `schema`, and a user's schema that isn't the frame's.
        """
        from omnigraph_spark.spark.feed_reader import FeedReader, MetadataReader

        if self.span is not None:
            feed, tables = self._feed(self.span)
            most = self.options.max_partition_bytes
            alone = self.options.table is not None
            return FeedReader(self.storage, feed, tables, most, schema, alone)
        if self.options.metadata is not None:
            return MetadataReader(self.storage, self.snapshot, self.options.metadata, schema)
        return self.rows_reader(schema)

    def rows_reader(self, schema: StructType) -> OmnigraphReader:
        """Return the reader of rows, of a load that is neither a feed nor a metadata frame.

        Raises:
            OmnigraphError: as `schema`, and a user's schema that isn't the frame's.
        """
        from omnigraph_spark.spark.reader import OmnigraphReader

        return OmnigraphReader(
            self.storage,
            self.snapshot,
            self.options,
            schema,
            self.table_schemas,
            self.pushed,
            self.planned,
        )

    def _feed(self, span: changes.Span) -> tuple[Feed, Mapping[str, StructType]]:
        """Return what the feed reads; planned once, since a span's past doesn't change."""
        from omnigraph_spark.spark.feed_reader import feed_tables

        if self.feed is None or self.feed_tables is None:
            self.feed = changes.feed(self.storage, span, self.options.table)
            most = self.options.max_partition_bytes
            self.feed_tables = feed_tables(self.storage, self.feed, most)
        return self.feed, self.feed_tables


def resolve(raw: Mapping[str, str]) -> Load:
    """Return the load that options mean now.

    Raises:
        OptionError: an option is unknown, malformed, or for writing.
        GraphNotFoundError, BranchNotFoundError, VersionNotFoundError: what the names say.
        UnsupportedManifestVersion, CorruptManifestError, StorageError: the graph can't be read.
    """
    requested = ReadOptions.of(options.parse(raw))
    storage = Storage.at(requested.path, requested.storage)
    if requested.feed is not None:
        span = changes.span(storage, requested.branch, requested.feed)
        return Load(storage, requested, snapshot.load(storage, requested.branch, None), span)
    branch, version = refs.resolve(
        storage,
        requested.branch,
        requested.branch_given,
        requested.version_as_of,
        requested.timestamp_as_of,
    )
    return Load(storage, requested, snapshot.load(storage, branch, version))


def is_for_stream(raw: Mapping[str, str]) -> bool:
    """Return whether options are those of a streaming read, and of no other.

    Such are a start without `readChangeFeed`, a change feed without a start, limits per batch.
    """
    try:
        parsed = options.parse(raw)
        requested = StreamOptions.of(parsed)
    except OptionError:
        return False
    try:
        ReadOptions.of(parsed)
    except OptionError:
        return True
    return requested.ends.start_version == LATEST


def resolve_stream(raw: Mapping[str, str], loaded: Load | None) -> StreamLoad:
    """Return the streaming load that options mean; `loaded` is what they mean to a read, if any.

    Raises:
        OptionError: an option isn't for streams, or doesn't go with another.
        OmnigraphError: as `resolve`.
    """
    from omnigraph_spark.spark.stream_reader import StreamLoad

    tables = None
    if loaded is not None and loaded.span is not None:  # its columns are those that Spark was given
        tables = loaded._feed(loaded.span)[1]
    return StreamLoad.of(options.parse(raw), tables)


def catalog_schema(raw: Mapping[str, str]) -> StructType:
    """Return the columns of a new catalog table, bound to the options of its CREATE TABLE.

    Raises:
        TableNotFoundError, GraphNotFoundError: no such table yet, and the option `schema` isn't
            there.
        OmnigraphError: as `resolve`.
    """
    options.parse(raw)
    declared = raw.get("schema")
    columns = None if declared is None else ddl.parse_columns(declared)
    reading = options.for_scope(raw, options.READ)
    try:
        stored = resolve(reading).schema()
        schema = stored if columns is None else _declared(stored, columns)
    except (GraphNotFoundError, TableNotFoundError):
        if columns is None or "table" not in raw:
            raise
        layout.split_table_key(raw["table"])
        schema = columns
    root = Storage.at(raw["path"]).root
    return field_metadata.bind(_unpinned(schema), {**raw, "path": root})


def _unpinned(schema: StructType) -> StructType:
    """Return a schema without the version that it was read from: queries read the newest."""
    from pyspark.sql.types import StructField, StructType

    def kept(metadata: Mapping[str, object]) -> dict[str, object]:
        return {key: value for key, value in metadata.items() if key != field_metadata.READ}

    return StructType(
        [StructField(f.name, f.dataType, f.nullable, kept(f.metadata)) for f in schema.fields]
    )


def _declared(stored: StructType, declared: StructType) -> StructType:
    """Return a table's own columns where the table is there already, if they are the declared ones.

    Raises:
        SchemaMismatchError: a declared column isn't there, or has another type.
    """
    from omnigraph_spark.errors import SchemaMismatchError
    from omnigraph_spark.spark import spark_types

    known = {col.name: col for col in stored.fields}
    for col in declared.fields:
        own = known.get(col.name)
        if own is None or not spark_types.same_type(own.dataType, col.dataType):
            raise SchemaMismatchError(
                f"The table is in the graph already, and its column {col.name} is another",
                expected=f"{col.name} {col.dataType.simpleString().upper()}, by the option schema",
                found="no such column" if own is None else own.dataType.simpleString().upper(),
                hint="Leave the option schema out: the graph's own columns are taken",
                column=col.name,
            )
    return stored


def catalog_reader(raw: Mapping[str, str], schema: StructType) -> DataSourceReader:
    """Return the reader of one scan of a catalog table: the newest snapshot, unless it is pinned.

    A table that its CREATE TABLE declared (option `schema`) has no rows until the first INSERT.

    Raises:
        SchemaMismatchError: the graph's table doesn't have a column that the catalog table shows;
        the
            text has the statements that mend it.
        OmnigraphError: as `resolve`.
    """
    try:
        load = resolve(options.for_scope(raw, options.READ))
        if load.options.table is not None and load.options.metadata is None:
            load.snapshot.resolve(load.options.table)
    except (GraphNotFoundError, TableNotFoundError):
        if "schema" not in raw:
            raise
        return _NoRows()
    from omnigraph_spark.spark import frame_schema

    try:
        if load.span is None and load.options.metadata is None and load.options.table is not None:
            known = frame_schema.stored_schemas(load.storage, load.snapshot, load.options.table)
            load.table_schemas = known
            catalog.warn_of_unseen(raw, schema.names, next(iter(known.values())).names)
        return load.reader(schema)
    except SchemaMismatchError as error:
        raise catalog.changed(error, raw) from error


class _NoRows(DataSourceReader):
    """Read nothing."""

    def partitions(self) -> list[InputPartition]:
        return []

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        yield from ()
