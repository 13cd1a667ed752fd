"""Streams without a JVM: the calls that Spark makes of a reader or a writer, in this process."""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
from pyspark.sql.types import StructType

from omnigraph_spark import options
from omnigraph_spark.spark.spark_types import arrow_schema
from omnigraph_spark.spark.stream_reader import OmnigraphStreamReader, StreamLoad
from omnigraph_spark.storage.store import Storage
from tests.support.writes import GRACE

Offset = dict[str, Any]


class ReadAllAvailable:
    """Spark's limit of that name, which it gives where a trigger allows no other."""


class ReadMaxFiles:
    """Any other limit: the options say how much."""


class Stream:
    """One query and its checkpoint; `restart` is what a killed driver leaves and starts again."""

    def __init__(self, graph: Storage, **asked: str) -> None:
        self.graph, self.asked = graph, asked
        self.offset: Offset | None = None
        self.restart()

    def restart(self, **more: str) -> None:
        """Load and start the query again; the offset in the checkpoint stays."""
        raw = {"path": self.graph.root, **self.asked, **more}
        load = pickle.loads(pickle.dumps(StreamLoad.of(options.parse(raw))))
        self.schema = load.schema()
        self.reader = OmnigraphStreamReader(load, self.schema)

    def plan(self, limit: object | None = None) -> tuple[Offset, Offset]:
        """Return where the next batch begins and ends."""
        if self.offset is None:
            self.offset = _kept(self.reader.initialOffset())
        end = self.reader.latestOffset(self.offset, limit or ReadMaxFiles())
        return self.offset, _kept(end)

    def read(self, start: Offset, end: Offset) -> list[dict[str, Any]]:
        """Return the rows of a batch, as tasks read them."""
        tasks = pickle.loads(pickle.dumps(self.reader))
        return [
            row
            for partition in self.reader.partitions(start, end)
            for batch in tasks.read(pickle.loads(pickle.dumps(partition)))
            for row in batch.to_pylist()
        ]

    def batch(self, limit: object | None = None) -> list[dict[str, Any]]:
        """Do the next batch; [] where nothing is new."""
        start, end = self.plan(limit)
        if start == end:
            return []
        rows = self.read(start, end)
        self.offset = end
        return rows

    def ids(self, limit: object | None = None) -> list[str]:
        """Do the next batch and return its ids, in order."""
        return [row["id"] for row in self.batch(limit)]

    def rest(self) -> list[list[str]]:
        """Do batches until nothing is new; return the ids of each."""
        found: list[list[str]] = []
        while True:
            start, end = self.plan()
            if start == end:
                return found
            self.offset = end
            if rows := self.read(start, end):
                found.append([row["id"] for row in rows])


class Sink:
    """One query that writes: its writers are made, pickled and thrown away as Spark does it."""

    def __init__(self, graph: Storage, schema: StructType, query: str = "q", **asked: str) -> None:
        self.graph, self.schema, self.query = graph, schema, query
        self.asked = {"path": graph.root, "orphanGraceSeconds": GRACE, **asked}

    def batch(
        self, number: int, *tasks: Sequence[Mapping[str, Any]], overwrite: bool = False
    ) -> None:
        """Write the rows of some tasks as a batch, from the plan to the commit."""
        self.commit(number, self.stage(number, *tasks, overwrite=overwrite), overwrite=overwrite)

    def stage(
        self, number: int, *tasks: Sequence[Mapping[str, Any]], overwrite: bool = False
    ) -> list[Any]:
        """Do the tasks of a batch and return their messages."""
        planned = pickle.dumps(self._writer(overwrite, plans=True))
        target = arrow_schema(self.schema)
        messages = []
        for partition, rows in enumerate(tasks):
            batch = pa.RecordBatch.from_pylist([*rows], schema=target)
            with in_task(partition, self.query, number):
                message = pickle.loads(planned).write(iter([batch]))
            messages.append(pickle.loads(pickle.dumps(message)))
        return messages

    def commit(self, number: int, messages: list[Any], *, overwrite: bool = False) -> None:
        """Commit a batch, as Spark does in a process of its own."""
        self._writer(overwrite, plans=False).commit(messages, number)

    def _writer(self, overwrite: bool, *, plans: bool) -> Any:
        # Before Spark 4.1 there is no such writer.
        from omnigraph_spark.spark.stream_writer import OmnigraphStreamWriter

        return OmnigraphStreamWriter(self.schema, self.asked, overwrite, plans=plans)


@contextmanager
def in_task(partition: int, query: str, batch: int) -> Iterator[None]:
    """Stand in a task's place: the context that Spark's workers set up for one."""
    from pyspark import TaskContext

    context = object.__new__(TaskContext)
    context._partitionId = partition
    context._localProperties = {
        "sql.streaming.queryId": query,
        "streaming.sql.batchId": str(batch),
    }
    TaskContext._setTaskContext(context)
    try:
        yield
    finally:
        TaskContext._setTaskContext(None)  # type: ignore[arg-type]


def _kept(offset: Offset) -> Offset:
    """Return an offset as the checkpoint gives it back."""
    kept: Offset = json.loads(json.dumps(offset))
    return kept
