"""A whole Spark driver that does one write and tells the ledger; started by `scenarios/spark.py`.

The publish id is made inside Spark's own processes, so the ledger knows the write by its
`userMetadata`, which travels in the same version rows.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from tests.chaos import rows
from tests.chaos.ledger import FAILED, Pen
from tests.chaos.oracle import user_id

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SCHEMAS = {
    "node": "id STRING, age INT, name STRING, note STRING, write STRING",
    "edge": "id STRING, src STRING, dst STRING, note STRING, write STRING",
}


def main(asked: dict[str, Any]) -> None:
    """Write what was asked for, once."""
    from tests.support import sparks

    spark = sparks.new_session(asked["master"], asked["folder"])
    pen = Pen(f"{asked['folder']}/ledger", asked["writer"])
    token = pen.next_token()
    frame = _frame(spark, token, asked)
    pen.begin(token, user_id(token), asked["mode"], asked["tables"])
    began = time.monotonic()
    try:
        write = frame.write.format("omnigraph").mode(asked["mode"]).option("userMetadata", token)
        write.options(**asked["options"]).save(asked["graph"])
    except Exception as error:
        from omnigraph_spark.errors import OmnigraphError, from_spark

        typed = from_spark(error)
        told = {"type": type(typed).__name__, "typed": isinstance(typed, OmnigraphError)}
        pen.error(FAILED, token, {**told, "text": str(typed)}, time.monotonic() - began)
    else:
        pen.acknowledge(token, -1, time.monotonic() - began)
    Path(asked["folder"], f"{asked['writer']}.done").touch()
    spark.stop()


def _frame(spark: SparkSession, token: str, asked: dict[str, Any]) -> DataFrame:
    from omnigraph_spark import pack

    frames = {}
    for key, count in asked["tables"].items():
        stored = rows.NODE_SCHEMA if key.startswith("node:") else rows.EDGE_SCHEMA
        numbers = spark.sparkContext.parallelize(range(count), asked["partitions"])
        made = numbers.map(_maker(stored, token))
        frames[key] = spark.createDataFrame(made, SCHEMAS[key.partition(":")[0]])
    return pack(frames)


def _maker(stored: pa.Schema, token: str) -> Callable[[int], tuple[Any, ...]]:
    """Return a function that makes a row out of its number."""

    def make(number: int) -> tuple[Any, ...]:
        row = rows.batch(stored, token, 1, number).to_pylist()[0]
        return tuple(row[name] for name in stored.names)

    return make


def fail_first_attempts() -> None:
    """Fail a task's first two attempts; armed at a fault point by `run:…`."""
    from pyspark import TaskContext

    from omnigraph_spark.errors import StorageError

    context = TaskContext.get()
    if context is not None and context.attemptNumber() < 2:
        raise StorageError("Injected failure of a task", hint="It is tried again")


if __name__ == "__main__":
    _ASKED: dict[str, Any] = json.loads(sys.argv[1])
    main(_ASKED)
