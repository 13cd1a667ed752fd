"""Streaming reads without a JVM: the calls that Spark makes of a stream reader, in this process."""

from __future__ import annotations

import json
import pickle
from typing import Any

from omnigraph_spark import options
from omnigraph_spark.spark.stream_reader import OmnigraphStreamReader, StreamLoad
from omnigraph_spark.storage.store import Storage

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
        """Load and start the query anew; the offset in the checkpoint stays."""
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


def _kept(offset: Offset) -> Offset:
    """Return an offset as the checkpoint gives it back."""
    kept: Offset = json.loads(json.dumps(offset))
    return kept
