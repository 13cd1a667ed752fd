"""A whole Spark driver that does one write and tells the ledger; started by `scenarios/spark.py`.

The publish id is made inside Spark's own processes, so the ledger knows the write by its
`userMetadata`, which travels in the same version rows.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

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

    quick = f"-Dderby.system.home={asked['folder']}/derby -XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
    conf = {"spark.driver.memory": "1g", "spark.driver.extraJavaOptions": quick}
    spark = sparks.new_session(asked["master"], asked["folder"], conf)
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
        made = rows.batch(stored, token, count).to_pylist()
        values = [tuple(row[name] for name in stored.names) for row in made]
        frames[key] = spark.createDataFrame(values, SCHEMAS[key.partition(":")[0]])
    # Made without Python workers, and in few tasks: what is looked at comes after.
    return pack(frames).coalesce(asked["partitions"])


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
