"""What Spark's Python Data Source API costs by itself: a source and a sink without any I/O."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

EDGE_SCHEMA = "id STRING, src STRING, dst STRING, weight DOUBLE, since DATE"
ROWS_PER_BATCH = 65_536


def edge_batch(rows: int) -> pa.RecordBatch:
    """Return `rows` edges of the shape that the benchmark's table has."""
    numbers = pa.array(range(rows), pa.int64())
    text = numbers.cast(pa.string())
    days = pa.array([number % 20_000 for number in range(rows)], pa.int32())
    return pa.record_batch(
        {
            "id": pa.compute.utf8_lpad(text, 13, "e"),
            "src": pa.compute.utf8_lpad(text, 9, "n"),
            "dst": pa.compute.utf8_lpad(text, 9, "m"),
            "weight": numbers.cast(pa.float64()),
            "since": days.cast(pa.date32()),
        }
    )


class Share(InputPartition):
    """How many rows one task yields."""

    def __init__(self, rows: int) -> None:
        super().__init__(rows)
        self.rows = rows


class CeilingReader(DataSourceReader):
    """Yields one ready batch again and again."""

    def __init__(self, rows: int, tasks: int) -> None:
        self.rows = rows
        self.tasks = tasks

    def partitions(self) -> list[InputPartition]:
        """Share the rows out evenly; driver, once per plan."""
        share, left = divmod(self.rows, self.tasks)
        return [Share(share + (number < left)) for number in range(self.tasks)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield a task's rows; executor."""
        assert isinstance(partition, Share)
        batch = edge_batch(min(ROWS_PER_BATCH, partition.rows))
        for start in range(0, partition.rows, ROWS_PER_BATCH):
            yield batch.slice(0, min(ROWS_PER_BATCH, partition.rows - start))


class CeilingWriter(DataSourceArrowWriter):
    """Takes every batch and keeps none."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Drain a task's rows; executor."""
        for _ in iterator:
            pass
        return WriterCommitMessage()


class CeilingDataSource(DataSource):
    """`format("ceiling")`; options `rows` and `tasks` for reading."""

    @classmethod
    def name(cls) -> str:
        """Return the format's name."""
        return "ceiling"

    def schema(self) -> str:
        """Return the schema of the benchmark's edges."""
        return EDGE_SCHEMA

    def reader(self, schema: StructType) -> CeilingReader:
        """Return the source without I/O."""
        return CeilingReader(int(self.options["rows"]), int(self.options["tasks"]))

    def writer(self, schema: StructType, overwrite: bool) -> CeilingWriter:
        """Return the sink that throws away."""
        return CeilingWriter()
