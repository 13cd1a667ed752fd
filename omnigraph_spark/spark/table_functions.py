"""Functions of Spark SQL that give tables: the history of a graph, and what differs in it.

`register` makes them known to a session. `analyze` runs in a process of Spark's on the driver, and
`eval` in one task, which reads what it gives by itself: piece by piece, as a change feed does.
Storage options come from the environment, or as a map: texts in SQL are logged and shown.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.functions import udtf
from pyspark.sql.types import StructType
from pyspark.sql.udtf import AnalyzeArgument, AnalyzeResult

from omnigraph_spark import options
from omnigraph_spark.arrow.frame_batches import TABLE
from omnigraph_spark.errors import TableNotFoundError
from omnigraph_spark.manifest import snapshot
from omnigraph_spark.manifest.snapshot import Snapshot
from omnigraph_spark.read import metadata_frames
from omnigraph_spark.refs import refs
from omnigraph_spark.refs.changes import Change, Feed
from omnigraph_spark.spark import feed_reader
from omnigraph_spark.spark.feed_reader import LEADING, FeedReader
from omnigraph_spark.storage import layout
from omnigraph_spark.storage.store import Storage

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_PIECE_BYTES = 128 << 20
_NO_COMMIT = ("", datetime(1970, 1, 1))
_OF_COMMITS = frozenset(LEADING.names) - {TABLE, "_change_type"}


class History:
    """`omnigraph_history(path, branch, storage)`: the commits of a branch, newest first."""

    def eval(
        self, path: str, branch: str = layout.MAIN, storage: Mapping[str, str] | None = None
    ) -> Iterator[tuple[Any, ...]]:
        """Yield the rows of the metadata frame `history`.

        Raises:
            GraphNotFoundError, BranchNotFoundError, StorageError: as the names say.
        """
        at = Storage.at(path, options.storage_options(storage or {}))
        yield from _rows(metadata_frames.read("history", at, snapshot.load(at, branch)))


class Diff:
    """`omnigraph_diff(path, before, after, table, storage)`: the rows that differ between two refs.

    The columns are those of `OmniGraph.diff`, which spreads the work over Spark; this is one task.
    """

    @staticmethod
    def analyze(
        path: AnalyzeArgument,
        before: AnalyzeArgument,
        after: AnalyzeArgument | None = None,
        table: AnalyzeArgument | None = None,
        storage: AnalyzeArgument | None = None,
    ) -> AnalyzeResult:
        """Return the columns; the arguments must be constants.

        Raises:
            BranchNotFoundError, VersionNotFoundError, TableNotFoundError: as the names say.
            SchemaMismatchError: a column has other types in the two.
        """
        given: list[Any] = [
            None if argument is None else argument.value
            for argument in (path, before, after, table, storage)
        ]
        return AnalyzeResult(_compared(*given)[-1])

    def eval(
        self,
        path: str,
        before: str,
        after: str | None = None,
        table: str | None = None,
        storage: Mapping[str, str] | None = None,
    ) -> Iterator[tuple[Any, ...]]:
        """Yield `_table`, `_change_type`, then the row, as `OmniGraph.diff`.

        Raises:
            OmnigraphError: as `analyze`, and as a change feed.
        """
        at, feed, tables, schema = _compared(path, before, after, table, storage)
        reader = FeedReader(at, feed, tables, _PIECE_BYTES, schema, table is not None)
        for partition in reader.partitions():
            for batch in reader.read(partition):
                yield from _rows(batch)


def _compared(
    path: str,
    before: str,
    after: str | None,
    table: str | None,
    storage: Mapping[str, str] | None,
) -> tuple[Storage, Feed, Mapping[str, StructType], StructType]:
    at = Storage.at(path, options.storage_options(storage or {}))
    old, new = (snapshot.load(at, *refs.named(at, ref)) for ref in (before, after or layout.MAIN))
    entries = {**old.tables, **new.tables}
    keys = sorted(entries)
    if table is not None:
        try:
            keys = [new.resolve(table)]
        except TableNotFoundError:
            keys = [old.resolve(table)]
    changes = tuple(
        Change(key, old.tables.get(key), new.tables.get(key), new.graph_version, *_NO_COMMIT)
        for key in keys
        if _pin(old, key) != _pin(new, key)
    )
    feed = Feed(changes, {key: entries[key] for key in keys})
    tables = feed_reader.feed_tables(at, feed, _PIECE_BYTES)
    wide = feed_reader.feed_schema(tables, table is not None)
    return at, feed, tables, StructType([f for f in wide if f.name not in _OF_COMMITS])


def _pin(of: Snapshot, key: str) -> tuple[str | None, int] | None:
    entry = of.tables.get(key)
    return None if entry is None else (entry.table_branch, entry.table_version)


def _rows(batch: pa.Table | pa.RecordBatch) -> Iterator[tuple[Any, ...]]:
    columns = [
        [_plain(value, field.type) for value in column.to_pylist()]
        for column, field in zip(batch.columns, batch.schema, strict=True)
    ]
    yield from zip(*columns, strict=True)


def _plain(value: Any, kind: pa.DataType) -> Any:
    """Return a value with its maps as Spark has them in Python; Arrow's are lists of pairs."""
    if value is None:
        return None
    if pa.types.is_map(kind):
        return {key: _plain(item, kind.item_type) for key, item in value}
    if pa.types.is_struct(kind):
        return {field.name: _plain(value[field.name], field.type) for field in kind.fields}
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        return [_plain(item, kind.value_type) for item in value]
    return value


def register(spark: SparkSession) -> None:
    """Make the functions known to a session, in place of any of their names; changes nothing else.

    They are temporary functions: each session registers its own.
    """
    columns = feed_reader.metadata_schema("history")
    # With Arrow they would need pandas.
    made: list[tuple[str, Any]] = [
        ("omnigraph_history", udtf(History, returnType=columns, useArrow=False)),
        ("omnigraph_diff", udtf(Diff, useArrow=False)),
    ]
    for name, function in made:
        spark.udtf.register(name, function)
