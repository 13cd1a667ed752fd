"""Read again the rows that tasks staged, before any version names their files; on the driver."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from omnigraph_spark.arrow.to_table import to_table_batch
from omnigraph_spark.storage.lance_errors import translated
from omnigraph_spark.write.plan import TableTarget, WritePlan
from omnigraph_spark.write.tasks.stage import StagedTable

_READ_ROWS = 8_192


def read(plan: WritePlan, target: TableTarget, staged: StagedTable) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a task's files in the columns that its frame brought.

    Raises:
        StorageError: a file isn't there, or the store failed.
    """
    names = list(staged.columns or target.schema.names)
    schema = pa.schema([target.schema.field(name) for name in names])
    for fragment in staged.fragments:
        path = f"{target.data}/{fragment['files'][0]['path']}"
        reader = plan.storage.data_file(path, names)
        with translated(f"Reading {path}"):
            for batch in reader.read_all(batch_size=_READ_ROWS).to_batches():
                yield to_table_batch(batch, schema, target.table_key)
