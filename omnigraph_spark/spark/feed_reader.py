"""Spark's side of a change feed (option `readChangeFeed`): its columns, pieces and rows.

A feed has one row per row that a publish inserted or deleted, and two per row that it changed; the
columns are `_table`, `_change_type`, `_commit_version`, `_commit_timestamp`, `_commit_id`, then
those of a whole-graph frame over the feed's tables.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timezone
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import (
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from omnigraph_spark import schema as engine_schema
from omnigraph_spark.arrow.frame_batches import TABLE, Ownership, assemble
from omnigraph_spark.arrow.to_spark import scan_options, to_spark_batch
from omnigraph_spark.errors import SchemaMismatchError, StorageError, at_spark
from omnigraph_spark.read import changed_rows, metadata_frames
from omnigraph_spark.read.batch_size import AHEAD_BYTES, BATCH_BYTES, batch_rows
from omnigraph_spark.read.changed_rows import DELETE, INSERT
from omnigraph_spark.read.feed_plan import Partition, Piece, Planner
from omnigraph_spark.read.plan import Scan, fragments_of, opened
from omnigraph_spark.refs.changes import Change, Feed
from omnigraph_spark.spark import frames, spark_types
from omnigraph_spark.spark.frame_schema import ends_and_keys, table_struct
from omnigraph_spark.storage.lance_errors import translated
from omnigraph_spark.storage.store import Storage

if TYPE_CHECKING:
    from omnigraph_spark.manifest.snapshot import Snapshot
    from omnigraph_spark.schema import EngineSchema
    from omnigraph_spark.storage.store import Storage


LEADING = StructType(
    [
        StructField(TABLE, StringType(), False),
        StructField("_change_type", StringType(), False),
        StructField("_commit_version", LongType(), False),
        StructField("_commit_timestamp", TimestampType(), False),
        StructField("_commit_id", StringType(), False),
    ]
)


def feed_tables(storage: Storage, feed: Feed, max_bytes: int) -> dict[str, StructType]:
    """Return the columns of each table of a feed, as its newest version has them; on the driver.

    Raises:
        SchemaMismatchError: a column has another type in a version that the feed reads.
        StorageError: a table version isn't there, or the store failed.
    """
    planner = Planner(storage, max_bytes)
    engine = engine_schema.read_if_sound(storage)
    tables = {key: table_struct(key, planner.schema(e), engine) for key, e in feed.tables.items()}
    for change in feed.changes:
        for entry in (change.before, change.after):
            if entry is not None:
                older = table_struct(change.table_key, planner.schema(entry), engine)
                tables[change.table_key] = spark_types.with_columns_of(
                    tables[change.table_key],
                    older,
                    entry.table_key,
                    "Read the feed from after the change on",
                )
    return tables


def feed_schema(
    tables: Mapping[str, StructType], alone: bool = False, engine: EngineSchema | None = None
) -> StructType:
    """Return the columns of a feed over tables; `alone`: of one table, asked for by its name.

    `_table` carries the tables' definitions, those of `engine` included.

    Raises:
        SchemaMismatchError: names that a whole-graph frame can't have.
    """
    wide = frames.whole_graph_schema(tables, *ends_and_keys(engine), alone=alone)
    rest = [StructField(f.name, f.dataType, True) for f in wide.fields if f.name != TABLE]
    return StructType([wide[TABLE], *LEADING.fields[1:], *rest])


class FeedPartition(InputPartition):
    """Some pieces of a feed, plain data."""

    def __init__(self, pieces: Partition) -> None:
        super().__init__(pieces)


class FeedReader(DataSourceReader):
    """Read the rows that a span of publishes changed."""

    def __init__(
        self,
        storage: Storage,
        feed: Feed,
        tables: Mapping[str, StructType],
        max_bytes: int,
        schema: StructType,
        alone: bool = False,
    ) -> None:
        """Take what `feed_schema` gave, or a user's choice and order of its columns.

        Raises:
            SchemaMismatchError: a column isn't the feed's, or has another type there.
        """
        self._storage, self._feed, self._max_bytes = storage, feed, max_bytes
        whole = feed_schema(tables, alone)
        own = {field.name: field for field in whole.fields}
        for chosen in schema.fields:
            known = own.get(chosen.name)
            if known is None or not spark_types.same_type(known.dataType, chosen.dataType):
                raise SchemaMismatchError(
                    "The schema asks for a column that the change feed doesn't have",
                    expected=", ".join(f"{f.name} {f.dataType.simpleString()}" for f in whole),
                    found=f"{chosen.name} {chosen.dataType.simpleString()}",
                    column=chosen.name,
                )
        rows = StructType([f for f in whole.fields if f.name not in LEADING.names])
        owned = frames.ownership(rows, tables, alone=alone)
        self._pieces = PieceReader(storage, schema, rows, owned)

    @at_spark
    def partitions(self) -> Sequence[InputPartition]:
        """Plan the read; on the driver, once per action.

        Raises:
            StorageError: a table version isn't there, or the store failed.
        """
        planned = Planner(self._storage, self._max_bytes).partitions(self._feed.changes)
        return [FeedPartition(pieces) for pieces in planned]

    @at_spark
    def read(self, partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
        """Give the rows of some pieces; on an executor. A compared piece is in memory as a whole.

        Raises:
            StorageError: a file is missing or damaged, or fewer rows came than the table has.
            SchemaMismatchError, CorruptManifestError: a stored value that the frame can't hold.
        """
        # Spark makes InputPartition(None) of an empty list (fact 5); 4.0 makes None of it.
        pieces: Partition = () if partition is None else partition.value or ()
        yield from self._pieces.read(pieces)


@dataclass(frozen=True)
class PieceReader:
    """Reads pieces of a feed, in tasks; plain data, picklable.

    `schema` are the columns of the batches, `rows` those of a table's rows, and `owned` says for
    each table which of its columns they are. `where` filters the rows that a table has at a
    graph version, in Lance's SQL.
    """

    storage: Storage
    schema: StructType
    rows: StructType
    owned: Ownership
    where: Mapping[tuple[str, int], str] = field(default_factory=dict)

    def read(self, pieces: Partition) -> Iterator[pa.RecordBatch]:
        """Give the rows that publishes changed, with what is said of each row's change.

        Raises:
            StorageError: a file is missing or damaged, or fewer rows came than the table has.
            SchemaMismatchError, CorruptManifestError: a stored value that the frame can't hold.
        """
        target = spark_types.arrow_schema(self.schema)
        for piece in pieces:
            for kind, rows in self._changed(piece):
                for batch in _batches(rows):
                    yield _told(batch, kind, piece.change, target)

    def read_rows(self, pieces: Partition) -> Iterator[pa.RecordBatch]:
        """Give the rows of pieces that have one side, and nothing else.

        Raises:
            StorageError, SchemaMismatchError, CorruptManifestError: as `read`.
        """
        for piece in pieces:
            yield from self._scanned(piece.after, piece)

    def _changed(self, piece: Piece) -> Iterator[tuple[str, pa.Table]]:
        if piece.before is None or piece.after is None:
            kind = DELETE if piece.after is None else INSERT
            for batch in self._scanned(piece.before or piece.after, piece):
                yield kind, pa.Table.from_batches([batch])
            return
        schema = spark_types.arrow_schema(self.rows)
        before, after = (
            pa.Table.from_batches(self._scanned(scan, piece), schema)
            for scan in (piece.before, piece.after)
        )
        columns = [name for name in self.owned[piece.change.table_key] if name != "id"]
        yield from changed_rows.changed_rows(before, after, columns)

    def _scanned(self, scan: Scan | None, piece: Piece) -> Iterator[pa.RecordBatch]:
        """Give the rows of one side of a piece, with all columns of the feed's rows."""
        assert scan is not None
        target = spark_types.arrow_schema(self.rows)
        owned = self.owned[scan.table_key]
        predicate = self.where.get((scan.table_key, piece.change.version))
        where = _range(piece) if predicate is None else predicate
        start, end = scan.rows or (None, None)
        count = 0
        with translated(f"Reading {scan.table_key} of {self.storage.root}"):
            dataset = opened(self.storage, scan)
            stored = dataset.schema
            names = [name for name in owned.values() if name in stored.names]
            fragments = fragments_of(dataset, scan)
            scanner = dataset.scanner(
                columns=names or ["_rowid"],
                filter=where,
                fragments=fragments,
                offset=start,
                limit=None if start is None or end is None else end - start,
                batch_size=batch_rows(fragments, stored, names),
                batch_size_bytes=BATCH_BYTES,
                io_buffer_size=AHEAD_BYTES,
                **scan_options(stored),
            )
            for batch in scanner.to_batches():
                count += batch.num_rows
                if batch.num_rows:
                    yield assemble(scan.table_key, batch, target, owned, stored)
        if where is None and count != scan.expected_rows:
            raise StorageError(
                f"Reading {scan.table_key} of {self.storage.root} gave another number of rows",
                expected=f"{scan.expected_rows} rows in fragments {list(scan.fragments)[:20]}",
                found=f"{count} rows",
                hint="The table's files are damaged; compare them with a copy",
            )


def _range(piece: Piece) -> str | None:
    ends = ((">=", piece.low), ("<", piece.high))
    parts = [f"id {sign} '{end.replace(chr(39), chr(39) * 2)}'" for sign, end in ends if end]
    return " AND ".join(parts) or None


def _batches(rows: pa.Table) -> Iterator[pa.RecordBatch]:
    """Cut rows into batches of a size that Spark's workers like."""
    most = max(1, BATCH_BYTES * rows.num_rows // max(1, rows.nbytes))
    yield from rows.to_batches(max_chunksize=most)


def _told(batch: pa.RecordBatch, kind: str, change: Change, target: pa.Schema) -> pa.RecordBatch:
    """Return rows in the frame's columns, with what is said of each."""
    values: dict[str, Any] = {
        TABLE: change.table_key,
        "_change_type": kind,
        "_commit_version": change.version,
        "_commit_timestamp": change.created_at.replace(tzinfo=timezone.utc),
        "_commit_id": change.commit_id,
    }
    columns = [
        pa.repeat(pa.scalar(values[field.name], field.type), batch.num_rows)
        if field.name in values
        else batch.column(field.name)
        for field in target
    ]
    return pa.RecordBatch.from_arrays(columns, schema=target)


def metadata_schema(kind: str) -> StructType:
    """Return the columns of a metadata frame, `kind` being the value of option `metadata`."""
    return StructType(
        [
            StructField(field.name, spark_types.spark_type(field), field.nullable)
            for field in metadata_frames.SCHEMAS[kind]
        ]
    )


class MetadataReader(DataSourceReader):
    """Read one metadata frame of a snapshot."""

    def __init__(self, storage: Storage, snapshot: Snapshot, kind: str, schema: StructType) -> None:
        """Take what `metadata_schema` gave, or a user's choice and order of its columns.

        Raises:
            SchemaMismatchError: a column isn't the frame's, or has another type there.
        """
        own = {field.name: field for field in metadata_schema(kind).fields}
        for chosen in schema.fields:
            known = own.get(chosen.name)
            if known is None or not spark_types.same_type(known.dataType, chosen.dataType):
                raise SchemaMismatchError(
                    f"The schema asks for a column that metadata frame {kind} doesn't have",
                    expected=", ".join(
                        f"{f.name} {f.dataType.simpleString()}" for f in own.values()
                    ),
                    found=f"{chosen.name} {chosen.dataType.simpleString()}",
                    column=chosen.name,
                )
        self._storage = storage
        self._snapshot = snapshot
        self._kind = kind
        self._schema = schema

    @at_spark
    def partitions(self) -> Sequence[InputPartition]:
        """Return the one partition."""
        return [InputPartition(0)]

    @at_spark
    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Give the frame's rows; on an executor.

        Raises:
            StorageError: a dataset isn't there, or the store failed.
            CorruptManifestError, BranchNotFoundError: the graph changed or is damaged.
        """
        target = spark_types.arrow_schema(self._schema)
        table = metadata_frames.read(self._kind, self._storage, self._snapshot)
        for batch in table.to_batches():
            yield to_spark_batch(batch, target)
