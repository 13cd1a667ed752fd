"""The Python data source `omnigraph`: what Spark calls, wired to the modules that do the work."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)

from omnigraph_spark.errors import OmnigraphError, UnsupportedError, at_spark
from omnigraph_spark.spark import catalog, loading

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from omnigraph_spark.spark.loading import Load
    from omnigraph_spark.spark.stream_reader import StreamLoad


class OmnigraphDataSource(DataSource):
    """Read and write OmniGraph graphs: the data source that Spark knows as `omnigraph`.

    Spark makes one per load and pickles it to the process of every scan: what is resolved in
    `__init__` is what all actions on the DataFrame see (fact 2). It also makes one for each write,
    for CREATE TABLE, and, without options, for each scan of a catalog table.
    """

    def __init__(self, options: dict[str, str]) -> None:
        """Pin the snapshot, if a path is given; on the driver, once per load.

        What goes wrong here is raised by `schema` and `reader`: a write may be what comes next, and
        to it an absent graph is not an error.
        """
        super().__init__(options)
        self._load: Load | None = None
        self._stream: StreamLoad | None = None
        self._travelled = False
        self._failure: OmnigraphError | None = None
        if "path" in options and not catalog.is_create_table(options):
            try:
                self._load = loading.resolve(options)
            except OmnigraphError as error:
                self._failure = error

    @classmethod
    def name(cls) -> str:
        """Return the short name that `format` takes."""
        return "omnigraph"

    @at_spark
    def schema(self) -> StructType:
        """Return the frame's columns, for CREATE TABLE with the binding on them.

        Raises:
            OmnigraphError: no such graph, table, branch or version, or options that don't fit.
        """
        if catalog.is_create_table(self.options):
            return loading.catalog_schema(catalog.create_options(self.options))
        if self._failure is not None and loading.is_for_stream(self.options):
            # Spark doesn't say whether it is going to read or to stream: `reader` refuses these.
            return self._streamed().schema()
        return self._loaded().schema()

    @at_spark
    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader of one planned scan; of a catalog table it reads the newest snapshot.

        Raises:
            OmnigraphError: as `schema`, and a user's schema that isn't the frame's.
        """
        if "path" not in self.options and self._load is None:
            return loading.catalog_reader(catalog.read_options(schema), schema)
        return self._loaded().reader(schema)

    @at_spark
    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Return the writer of one write.

        Raises:
            OmnigraphError: as `OmnigraphWriter`.
        """
        from omnigraph_spark.spark.writer import OmnigraphWriter

        return OmnigraphWriter(schema, self.options, overwrite)

    @at_spark
    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """Return what plans and reads the batches of one streaming query.

        Raises:
            OmnigraphError: no such graph, table or branch, or options that don't fit.
        """
        from omnigraph_spark.spark.stream_reader import OmnigraphStreamReader

        return OmnigraphStreamReader(self._streamed(), schema)

    @at_spark
    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        """Return the writer of one batch of a stream.

        Raises:
            UnsupportedError: this Spark's stream writers don't take Arrow batches (before 4.1).
            OmnigraphError: as `OmnigraphStreamWriter`.
        """
        from pyspark.sql import datasource

        if not hasattr(datasource, "DataSourceStreamArrowWriter"):
            raise UnsupportedError(
                "writeStream needs Spark 4.1",
                hint="Write with foreachBatch, txnAppId and txnVersion (the streaming page)",
            )
        from omnigraph_spark.spark.stream_writer import OmnigraphStreamWriter

        return OmnigraphStreamWriter(schema, self.options, overwrite, plans=not self._travelled)

    def __setstate__(self, state: dict[str, Any]) -> None:
        # Spark makes a source to plan a batch's tasks, and sends one to where the batch is
        # committed: there the tasks' messages have the plan.
        self.__dict__.update(state, _travelled=True)

    def _streamed(self) -> StreamLoad:
        if self._stream is None:
            self._stream = loading.resolve_stream(self.options, self._load)
        return self._stream

    def pinned(self) -> Load | None:
        """Return what this source is pinned to, None for a catalog table: that reads the newest.

        Raises:
            OmnigraphError: as `schema`.
        """
        return self._loaded() if "path" in self.options or self._load is not None else None

    def with_load(self, load: Load) -> OmnigraphDataSource:
        """Return a source of the same options that is pinned to another load; opens nothing."""
        made = OmnigraphDataSource({})
        made.options = self.options
        made._load = load
        return made

    def _loaded(self) -> Load:
        if self._failure is not None:
            raise self._failure
        if self._load is None:
            self._load = loading.resolve(self.options)
        return self._load
