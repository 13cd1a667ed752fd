"""Spark's side of the metadata frames: one partition, made whole on the executor that reads it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructField, StructType

from omnigraph_spark.arrow.to_spark import to_spark_batch
from omnigraph_spark.errors import SchemaMismatchError
from omnigraph_spark.read import metadata_frames
from omnigraph_spark.spark import spark_types

if TYPE_CHECKING:
    from omnigraph_spark.manifest.snapshot import Snapshot
    from omnigraph_spark.storage.store import Storage


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
        for asked in schema.fields:
            known = own.get(asked.name)
            if known is None or not spark_types.same_type(known.dataType, asked.dataType):
                raise SchemaMismatchError(
                    f"The schema asks for a column that metadata frame {kind} hasn't",
                    expected=", ".join(
                        f"{f.name} {f.dataType.simpleString()}" for f in own.values()
                    ),
                    found=f"{asked.name} {asked.dataType.simpleString()}",
                    column=asked.name,
                )
        self._storage = storage
        self._snapshot = snapshot
        self._kind = kind
        self._schema = schema

    def partitions(self) -> Sequence[InputPartition]:
        """Return the one partition."""
        return [InputPartition(0)]

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
