"""Run the tasks of a compaction on Spark; the driver side of it, classic and Spark Connect."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pyspark.sql.functions import udf

from omnigraph_spark.maintenance import compacting

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from omnigraph_spark.maintenance.optimize import Run
    from omnigraph_spark.manifest.snapshot import TableEntry
    from omnigraph_spark.storage.store import Storage


def run_on_spark(spark: SparkSession) -> Run:
    """Return what runs each task of a compaction as a task of Spark.

    As a plain user-defined function: `mapInArrow` asks for pandas, and there are no RDDs in Spark
    Connect. A task that Spark runs twice leaves files that no version names.
    """

    def run(storage: Storage, entry: TableEntry, tasks: Sequence[str]) -> list[str]:
        place = (storage, entry.location, entry.table_branch, entry.table_version)

        def compact(task: str) -> str:
            return compacting.execute(*place, [task])[0]

        frame = spark.createDataFrame([(task,) for task in tasks], "task string")
        compacted = udf(compact, "string", useArrow=False).asNondeterministic()
        done = frame.repartition(len(tasks)).select(compacted("task").alias("done"))
        return [str(row.done) for row in done.collect()]

    return run
