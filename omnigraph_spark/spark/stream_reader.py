"""Spark's side of a streaming read: the schema, the offsets, and the batches of one partition.

Spark keeps one process with an `OmnigraphStreamReader` per query on the driver, which plans every
batch; the reader is also pickled to the tasks once, and all that changes from batch to batch is in
the partitions. Where batches end says `read.stream_plan`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from omnigraph_spark import _faults
from omnigraph_spark import schema as engine_schema
from omnigraph_spark.errors import SchemaMismatchError, UnsupportedError, at_spark
from omnigraph_spark.manifest.snapshot import Snapshot, load
from omnigraph_spark.options import Parsed, StreamOptions
from omnigraph_spark.read.feed_plan import Partition, Planner, Sized
from omnigraph_spark.read.filters import Predicate
from omnigraph_spark.read.stream_plan import Position, StreamPlan
from omnigraph_spark.refs.changes import Change
from omnigraph_spark.spark import frame_schema, frames, spark_types
from omnigraph_spark.spark.feed_reader import LEADING, PieceReader, feed_schema
from omnigraph_spark.storage.store import Storage

if TYPE_CHECKING:
    from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow
else:
    try:
        from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow
    except ImportError:  # before Spark 4.2
        SupportsTriggerAvailableNow = object

_HAS_LIMITS = hasattr(DataSourceStreamReader, "getDefaultReadLimit")
"""Spark tells a Python source where a batch begins and which limit it has; from 4.2 on."""


@dataclass
class StreamLoad:
    """What one `readStream…load()` reads: options, and the tables when it was made; plain data."""

    storage: Storage
    asked: StreamOptions
    snapshot: Snapshot
    feed_tables: Mapping[str, StructType] | None = field(default=None, repr=False)
    schemas: Mapping[str, pa.Schema] | None = field(default=None, repr=False)

    @classmethod
    def of(cls, parsed: Parsed, feed_tables: Mapping[str, StructType] | None = None) -> StreamLoad:
        """Return the streaming load that options mean now.

        Raises:
            OptionError: an option isn't for streams, or doesn't go with another.
            GraphNotFoundError, BranchNotFoundError, TableNotFoundError: as the names say.
            StorageError: the graph can't be read.
        """
        requested = StreamOptions.of(parsed)
        storage = Storage.at(requested.read.path, requested.read.storage)
        return cls(storage, requested, load(storage, requested.read.branch), feed_tables)

    @property
    def table(self) -> str | None:
        """The key of the stream's table, None for the whole graph."""
        name = self.asked.read.table
        if name is None or ":" in name:
            return name
        return self.snapshot.resolve(name)

    def stored(self) -> Mapping[str, pa.Schema]:
        """Return the stored schemas of the stream's tables as they were at the load."""
        if self.schemas is None:
            self.schemas = frame_schema.stored_schemas(self.storage, self.snapshot, self.table)
        return self.schemas

    def tables(self) -> Mapping[str, StructType]:
        """Return the columns of a change feed's tables as they were at the load."""
        if self.feed_tables is None:
            engine = engine_schema.read_if_sound(self.storage)
            self.feed_tables = {
                key: frame_schema.table_struct(key, schema, engine)
                for key, schema in self.stored().items()
            }
        return self.feed_tables

    def filters_at(self, key: str, schema: pa.Schema) -> Predicate:
        """Return what the option `filter` keeps of a table whose stored schema is `schema` now.

        A column that the table lacked then, or that it has lost since, is null.

        Raises:
            OptionError: the filter isn't one that Lance answers as Spark's `where` does.
        """
        known = {**self.stored(), key: schema}
        if self.table is not None:
            known[f"{key}_"] = self.stored()[key]
        return frame_schema.filters_of(known, self.asked.read)[key]

    def schema(self) -> StructType:
        """Return the frame's columns.

        Raises:
            OmnigraphError: no such table or column, or types that Spark doesn't have.
        """
        if self.asked.change_feed:
            engine = engine_schema.read_if_sound(self.storage)
            return feed_schema(self.tables(), self.table is not None, engine)
        return frame_schema.read_schema(self.storage, self.snapshot, self.asked.read)[0]


class StreamPartition(InputPartition):
    """Some pieces of a batch, which of their tables' columns are the frame's, and the filters.

    Plain data.
    """

    def __init__(
        self,
        pieces: Partition,
        owned: Mapping[str, Mapping[str, str]],
        where: Mapping[tuple[str, int], str],
    ) -> None:
        super().__init__((pieces, owned, where))


class OmnigraphStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Follow a table, or a whole graph, from commit to commit."""

    def __init__(self, load: StreamLoad, schema: StructType) -> None:
        """Check the frame's columns and the limits; on the driver, once per query.

        Raises:
            SchemaMismatchError: the schema has a column that the frame lacks, or of another type.
            UnsupportedError: a limit per batch, and this Spark can't have one.
            OptionError: the option `filter` isn't one that Lance answers as Spark's `where` does.
            TableNotFoundError, StorageError: a table isn't there, or the store failed.
        """
        requested = load.asked
        if requested.limits and not _HAS_LIMITS:
            raise UnsupportedError(
                f"{requested.limits[0]} needs Spark 4.2, which says where a batch begins",
                hint="Leave it out: a batch then has all that is new",
            )
        own = load.schema()
        _check(schema, own)
        if requested.read.filter is not None:
            frame_schema.filters_of(load.stored(), requested.read)
        self._load, self._schema = load, schema
        self._chosen = requested.read.columns is not None or not {*own.names} <= {*schema.names}
        self._rows = schema
        if requested.change_feed:
            self._rows = StructType([f for f in own.fields if f.name not in LEADING.names])
        self._plan: StreamPlan | None = None
        self._target: Position | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_plan": None}  # of use on the driver only

    @at_spark
    def initialOffset(self) -> dict[str, Any]:
        """Return where a new query begins.

        Raises:
            VersionNotFoundError, OptionError: as the start's name says.
        """
        return self._planned().first(self._target).offset()

    @at_spark
    def latestOffset(
        self, start: dict[str, Any] | None = None, limit: object = None
    ) -> dict[str, Any]:
        """Return where the next batch ends; `start` itself if nothing is new.

        Raises:
            VersionNotFoundError: what comes next was cleaned up, or is of another branch.
            StorageError: the store failed.
        """
        _faults.point("stream.offset")
        plan = self._planned()
        if start is None:  # before Spark 4.2
            return plan.head().offset()
        limited = type(limit).__name__ != "ReadAllAvailable"
        at = Position.of(start)
        end = plan.next(at, self._target, limited=limited)
        return start if end == at else end.offset()

    def getDefaultReadLimit(self) -> Any:
        """Return a limit that stands for the options' limits; they are looked up in the options."""
        from pyspark.sql.streaming.datasource import ReadMaxFiles, ReadMaxRows

        requested = self._load.asked
        if requested.max_rows is not None:
            return ReadMaxRows(requested.max_rows)
        return ReadMaxFiles(requested.max_commits)

    def prepareForTriggerAvailableNow(self) -> None:
        """Take down what is there now: a query with `Trigger.AvailableNow` ends there."""
        self._target = self._planned().head()

    def reportLatestOffset(self) -> dict[str, Any]:
        """Return the newest position, for the query's progress."""
        return self._planned().head().offset()

    @at_spark
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Plan a batch, again in the same way after a restart.

        Raises:
            VersionNotFoundError: a version that is needed was cleaned up, or is another one now.
            UnsupportedError: a publish updates or deletes rows, and the stream wants appends alone.
            SchemaMismatchError: a table's columns changed while the query was running.
            StorageError: the store failed.
        """
        plan = self._planned()
        changes = plan.changes(Position.of(start), Position.of(end))
        planner = plan.planner
        owned = self._owned(planner, [change for change, _ in changes])
        pieces: list[Sized] = []
        where: dict[tuple[str, int], str] = {}
        for change, some in changes:
            predicate = self._kept(planner, change)
            if isinstance(predicate, str):
                where[change.table_key, change.version] = predicate
            pieces += some if predicate is not False else ()
        _faults.point("stream.planned")
        return [StreamPartition(partition, owned, where) for partition in planner.shared(pieces)]

    @at_spark
    def read(self, partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
        """Give the rows of one partition; on an executor, from the beginning on a retry.

        Raises:
            StorageError: a file is missing or damaged, or fewer rows came than the table has.
            SchemaMismatchError, CorruptManifestError: a stored value that the frame can't hold.
        """
        if partition is None or partition.value is None:
            return
        pieces, owned, where = partition.value
        load = self._load
        reader = PieceReader(load.storage, self._schema, self._rows, owned, where)
        yield from reader.read(pieces) if load.asked.change_feed else reader.read_rows(pieces)

    @at_spark
    def commit(self, end: dict[str, Any]) -> None:
        """Spark has done with everything up to `end`; nothing is kept for it here."""

    def stop(self) -> None:
        """Spark has stopped the query; there is nothing to close."""

    def _planned(self) -> StreamPlan:
        if self._plan is None:
            load = self._load
            self._plan = StreamPlan(load.storage, load.asked, load.table)
        return self._plan

    def _kept(self, planner: Planner, change: Change) -> Predicate:
        """Return what the option `filter` keeps of a table's rows."""
        if self._load.asked.read.filter is None or change.after is None:
            return True
        return self._load.filters_at(change.table_key, planner.schema(change.after))

    def _owned(self, planner: Planner, touched: Sequence[Change]) -> dict[str, Mapping[str, str]]:
        """Return, per table of a batch, which of its columns the frame's are.

        Raises:
            SchemaMismatchError: a column was added, or has another type than the frame's.
        """
        owned: dict[str, Mapping[str, str]] = {}
        structs: dict[str, StructType] = {}
        for change in touched:
            for entry in (change.before, change.after):
                if entry is None:
                    continue
                key = change.table_key
                struct = frame_schema.table_struct(key, planner.schema(entry))
                if structs.get(key) == struct:
                    continue
                structs[key] = struct
                alone = self._load.table is not None
                mapped = frames.ownership(self._rows, {key: struct}, alone=alone)[key]
                new = entry is change.after and change.version > self._load.snapshot.graph_version
                self._check_drift(change, struct, mapped, is_new=new)
                owned[key] = {**owned.get(key, {}), **mapped}
        return owned

    def _check_drift(
        self, change: Change, struct: StructType, owned: Mapping[str, str], *, is_new: bool
    ) -> None:
        names = set(self._rows.names)
        wide = self._load.table is None or self._load.asked.change_feed
        for column in struct.fields:
            if column.name in owned.values() or column.name == "_table":
                continue
            retyped = column.name in names or (
                wide and any(n.startswith(f"{column.name}__") for n in names)
            )
            if retyped or (is_new and not self._chosen):
                raise SchemaMismatchError(
                    f"Column {column.name} of {change.table_key} "
                    + ("has another type" if retyped else "was added")
                    + f" in version {change.version}",
                    expected="the columns that the table had when the query was started",
                    found=f"{column.name} {column.dataType.simpleString().upper()}",
                    hint="Start the query again from its checkpoint: it then has the new columns",
                    table_key=change.table_key,
                    column=column.name,
                )


def _check(schema: StructType, own: StructType) -> None:
    """Refuse a user's schema that is more than a choice of the frame's columns."""
    known = {column.name: column for column in own.fields}
    for column in schema.fields:
        ours = known.get(column.name)
        if ours is None or not spark_types.same_type(ours.dataType, column.dataType):
            raise SchemaMismatchError(
                f"The schema asks for {column.name!r}, which the stream doesn't have in that type",
                expected=", ".join(f"{f.name} {f.dataType.simpleString()}" for f in own)[:600],
                found=f"{column.name} {column.dataType.simpleString()}",
                column=column.name,
            )
