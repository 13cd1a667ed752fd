"""Spark's side of a read: the frame's schema, its partitions, and the batches of one partition.

`OmnigraphReader` is made on the driver in a planning process, once per planned scan, and pickled to
the tasks; all that it holds is plain data. `partitions` runs on the driver, `read` on executors.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from omnigraph_spark.arrow.frame_batches import TABLE, assemble
from omnigraph_spark.arrow.to_spark import scan_options, to_spark_batch
from omnigraph_spark.errors import StorageError, at_spark
from omnigraph_spark.manifest.snapshot import Snapshot
from omnigraph_spark.options import ReadOptions
from omnigraph_spark.read import filters, plan
from omnigraph_spark.read.batch_size import (
    AHEAD_BYTES,
    BATCH_BYTES,
    LEAST_SHARE,
    PARTIAL_SHARE,
    batch_rows,
    column_share,
)
from omnigraph_spark.read.order import SortKey
from omnigraph_spark.read.partial_aggregate import PartialAggregate, Reducer
from omnigraph_spark.read.plan import fragments_of, opened
from omnigraph_spark.spark import spark_types
from omnigraph_spark.spark.frame_schema import FrameColumns
from omnigraph_spark.storage import python_workers
from omnigraph_spark.storage.lance_errors import translated
from omnigraph_spark.storage.store import Storage

if TYPE_CHECKING:
    from lance import LanceDataset
    from pyspark.sql.types import StructType


@dataclass(frozen=True)
class Pushed:
    """What a query lets a scan leave out; plain data, worked out on the driver.

    Attributes:
        predicates: Per table key what its rows must satisfy; a key that is missing: all rows.
        limit: As many rows are enough, the first ones in order; None for all.
        order: Where it is given, each scan gives its own first rows by it; it is of stored columns.
        partial: What Spark aggregates of the rows anyway, None where it is to get them all.
    """

    predicates: Mapping[str, filters.Predicate] = field(default_factory=dict)
    limit: int | None = None
    order: tuple[SortKey, ...] | None = None
    partial: PartialAggregate | None = None


class OmnigraphInputPartition(InputPartition):
    """Some scans of tables, plain data; see `plan.Scan`."""

    def __init__(self, scans: plan.Partition) -> None:
        super().__init__(scans)


class OmnigraphReader(DataSourceReader):
    """Read the rows of one table, or of all tables as a whole-graph frame, at one snapshot."""

    def __init__(
        self,
        storage: Storage,
        snapshot: Snapshot,
        options: ReadOptions,
        schema: StructType,
        table_schemas: Mapping[str, pa.Schema] | None = None,
        pushed: Pushed | None = None,
        planned: list[plan.Partition] | None = None,
    ) -> None:
        """Check the frame's columns against the tables'; on the driver.

        Args:
            storage: The graph.
            snapshot: The tables and their versions, resolved once per load.
            options: What was asked for; `options.table` None reads the whole graph.
            schema: The frame's columns: what `read_schema` gave, or a user's choice and order.
            table_schemas: The stored schemas by table key, where they are known already; that saves
                opening every table.
            pushed: What the query lets the scan leave out, where that is known (`narrow`).
            planned: What `plan_now` gave before, where it did.

        Raises:
            TableNotFoundError: the snapshot has no such table.
            SchemaMismatchError: the schema has a column that the frame doesn't have, or of another
            type.
            OptionError: the option `filter` isn't one that Lance answers as Spark's `where` does.
            StorageError: a table isn't there, or the store failed.
        """
        self._storage = storage
        self._options = options
        self._schema = schema
        self._columns = FrameColumns.of(storage, snapshot, options, schema, table_schemas)
        self._entries = {
            key: replace(snapshot.entry(key), metadata={}) for key in self._columns.tables
        }
        self._predicates: dict[str, filters.Predicate] = dict.fromkeys(self._entries, True)
        self._limit: int | None = None
        self._order: tuple[SortKey, ...] | None = None
        self._partial: PartialAggregate | None = None
        self._planned = planned
        if pushed is not None:
            self._predicates |= pushed.predicates
            self._limit, self._order = pushed.limit, pushed.order
            self._partial = pushed.partial
            return
        if options.push_down_filters and hasattr(DataSourceReader, "pushFilters"):
            self.pushFilters = _PushFilters(self)  # type: ignore[method-assign,assignment]

    def __getstate__(self) -> dict[str, Any]:
        state = self.__dict__.copy()
        state.pop("pushFilters", None)  # of use on the driver only
        state["_planned"] = None  # a task gets its own part
        return state

    @property
    def columns(self) -> FrameColumns:
        """Return which stored columns the frame's are read from, by table."""
        return self._columns

    def push(self, spark_filters: Sequence[Any]) -> Iterable[Any]:
        """Take over the filters that Lance answers exactly; return those left to Spark."""
        # No table stores them, and a column that a table lacks counts as null there.
        computed = [
            filters.names_one_of(spark_filter, self._columns.metadata)
            for spark_filter in spark_filters
        ]
        stored = [
            spark_filter
            for spark_filter, is_not in zip(spark_filters, computed, strict=True)
            if not is_not
        ]
        pushed = filters.push(
            stored, self._columns.fields, TABLE if self._columns.whole_graph else None
        )
        self._predicates = dict(pushed.predicates)
        left = [
            spark_filter
            for spark_filter, handled in zip(stored, pushed.handled, strict=True)
            if not handled
        ]
        return [
            *left,
            *(
                spark_filter
                for spark_filter, is_ in zip(spark_filters, computed, strict=True)
                if is_
            ),
        ]

    @at_spark
    def partitions(self) -> Sequence[InputPartition]:
        """Plan the read; on the driver, once per action, from metadata of the tables that are left.

        Raises:
            StorageError: a table isn't there, or the store failed.
        """
        planned = self.plan_now() if self._planned is None else self._planned
        return [OmnigraphInputPartition(scans) for scans in planned]

    def plan_now(self) -> list[plan.Partition]:
        """Plan the read in this process; raises as `partitions`, whose plain data it returns."""
        left = [entry for key, entry in self._entries.items() if self._kept(key) is not False]
        datasets = plan.open_tables(self._storage, left)
        filtered = {entry.table_key: self._looks_at_all(entry.table_key) for entry in left}
        found = {key: self._found(key, datasets[key]) for key in filtered}
        by_index = {key: share is not None for key, share in found.items()}
        shares = {
            key: self._share(key, datasets[key]) if share is None else share
            for key, share in found.items()
        }
        most = self._options.max_partition_bytes
        planned = plan.plan(left, datasets, most, filtered, shares, by_index)
        if self._limit is None or any(filtered.values()):
            return planned
        return plan.first_rows(planned, self._limit)

    @at_spark
    def read(self, partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
        """Give the rows of one partition; on an executor, restarted from the beginning on a retry.

        Yields:
            Batches of exactly the frame's Arrow schema.

        Raises:
            StorageError: a file is missing or damaged, or fewer rows came than the table has.
            SchemaMismatchError, CorruptManifestError: a stored value that the frame can't hold.
        """
        python_workers.spare_loaded_modules()
        # Spark makes InputPartition(None) of an empty list (fact 5); 4.0 makes None of it.
        scans: plan.Partition = () if partition is None else partition.value or ()
        left = self._limit
        for scan in scans:
            for batch in self._scan(scan, left):
                yield batch
                if left is not None and self._order is None:
                    left -= batch.num_rows
            if left is not None and left <= 0:
                return

    def _scan(self, scan: plan.Scan, most: int | None) -> Iterator[pa.RecordBatch]:
        target = spark_types.arrow_schema(self._schema)
        names = self._names(scan.table_key)
        where = self._filter(scan.table_key)
        reducer = Reducer(self._partial)
        count = 0
        with translated(f"Reading {scan.table_key} of {self._storage.root}"):
            dataset = opened(self._storage, scan)
            stored = dataset.schema
            for batch in self._scanner(dataset, scan, names, where, most).to_batches():
                count += batch.num_rows
                if batch.num_rows:
                    framed = self._framed(batch, target, scan.table_key, stored)
                    yield reducer.reduced(framed)
        expected = scan.expected_rows if most is None else min(most, scan.expected_rows)
        if not self._looks_at_all(scan.table_key) and count != expected:
            raise StorageError(
                f"Reading {scan.table_key} of {self._storage.root} gave another number of rows",
                expected=f"{expected} rows in fragments {list(scan.fragments)[:20]}",
                found=f"{count} rows",
                hint="The table's files are damaged; compare them with a copy",
            )

    def _scanner(
        self,
        dataset: LanceDataset,
        scan: plan.Scan,
        names: list[str],
        where: str | None,
        most: int | None,
    ) -> Any:
        offset, limit = None, most
        if scan.rows is not None:
            start, end = scan.rows
            if self._looks_at_all(scan.table_key):
                first = scan.fragments[0] << 32
                part = f"(_rowaddr >= {first + start} AND _rowaddr < {first + end})"
                where = part if where is None else f"({where}) AND {part}"
            else:
                offset, limit = start, min(end - start, end if most is None else most)
        rows = self._options.batch_size
        fragments = fragments_of(dataset, scan)
        return dataset.scanner(
            columns=names or ["_rowid"],
            filter=where,
            fragments=fragments,
            offset=offset,
            limit=limit,
            batch_size=rows or batch_rows(fragments, dataset.schema, names),
            batch_size_bytes=BATCH_BYTES if rows is None else None,
            use_scalar_index=scan.by_index,
            io_buffer_size=AHEAD_BYTES,
            order_by=self._lance_order(),
            **scan_options(dataset.schema),
        )

    def _looks_at_all(self, key: str) -> bool:
        """Return whether a scan looks at more rows of a table than it gives: to filter, to sort."""
        return self._order is not None or self._filter(key) is not None

    def _lance_order(self) -> list[Any] | None:
        from lance.dataset import ColumnOrdering

        keys = self._order or ()
        return [ColumnOrdering(k.column, k.ascending, k.nulls_first) for k in keys] or None

    def _found(self, key: str, dataset: LanceDataset) -> float | None:
        """Return about what share of a table an index finds, None where none is asked."""
        where = self._filter(key)
        return None if where is None else plan.share_by_index(dataset, where)

    def _share(self, key: str, dataset: LanceDataset) -> float:
        """Return about what part of a table's bytes its scans read that ask no index."""
        if self._filter(key) is None:
            least = LEAST_SHARE if self._partial is None else PARTIAL_SHARE
            return column_share(dataset.schema, self._names(key), least)
        return 1.0  # a filter reads columns of its own

    def _names(self, key: str) -> list[str]:
        """Return the columns that are scanned of a table."""
        return [*self._columns.owned(key).values()]

    def _filter(self, key: str) -> str | None:
        """Return all that a row of the table must satisfy as Lance's SQL, None for nothing."""
        predicate = self._kept(key)
        assert predicate is not False
        return None if predicate is True else str(predicate)

    def _kept(self, key: str) -> filters.Predicate:
        """Return what the option `filter` and Spark's own filters keep of a table."""
        return filters.conjunction((self._columns.filters[key], self._predicates[key]))

    def _framed(
        self, batch: pa.RecordBatch, target: pa.Schema, key: str, stored: pa.Schema
    ) -> pa.RecordBatch:
        """Return a scanned batch as the frame has it."""
        if self._columns.whole_graph:
            return assemble(key, batch, target, self._columns.owned(key), stored)
        return to_spark_batch(batch, target, stored)


class _PushFilters:
    """The reader's `pushFilters`, in a shape that Spark takes whatever its setting is (fact 7).

    Only there with the option `pushDownFilters`: Spark keeps what a push-down planned with the
    frame, and gives the frame's next use the rows of the last one (docs/push_down.md).

    Spark 4.3 refuses every read of a reader that overrides `pushFilters` while push-down is off,
    and compares `pushFilters.__func__` with the base class's function to tell.
    """

    def __init__(self, reader: OmnigraphReader) -> None:
        self._reader = reader

    @property
    def __func__(self) -> Any:
        return DataSourceReader.pushFilters

    def __call__(self, spark_filters: list[Any]) -> Iterable[Any]:
        return self._reader.push(spark_filters)
