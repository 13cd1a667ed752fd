"""The same sequences with Spark: frames are written, merged, compared and read as feeds by it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pyspark.sql import SparkSession

from omnigraph_spark import OmniGraph
from omnigraph_spark.manifest.snapshot import load
from omnigraph_spark.storage import Storage
from tests.property.core import Run, change_of
from tests.property.model import Tables
from tests.support.feeds import of_tables
from tests.support.writes import COMPANY, PERSON


class SparkRun(Run):
    """A sequence through Spark, on node tables."""

    keys = (PERSON, COMPANY, PERSON)

    def through(self, spark: SparkSession) -> SparkRun:
        """Use this session."""
        self.graph = OmniGraph.for_path(spark, self.storage.root)
        return self

    def write(self, branch: str, mode: str, rows: Tables) -> None:
        """Write rows as frames, those of new tables without Spark (they need keys)."""
        if not set(rows) <= set(self.model.tables(branch)):
            super().write(branch, mode, rows)
            return
        frames = {
            key: self.graph.spark.createDataFrame(
                [(one, one, value) for one, value in table.items()],
                "id STRING, name STRING, age INT",
            )
            for key, table in rows.items()
        }
        given = {"writeMode": "merge"} if mode == "merge" else {}
        spark_mode = "append" if given else mode
        done = self.graph.write(frames, mode=spark_mode, branch=branch, **given)
        self.written(branch, mode, rows, done)

    def do_merge(self, where: int, which: int, many: int) -> None:
        """Merge by Spark; where both changed a row, the target's wins."""
        source, target = self.branch(where), self.branch(which)
        if source == target:
            return
        bases = self.check_bases(source, target)
        if bases is None:
            return
        new = self.merged(source, target, bases)
        merged = self.commits.heads[source]
        done = self.graph.merge(source, target, resolution="ours")
        if done.committed is not None and not done.committed.skipped:
            self.published(target, done.committed, new, merged)
        assert self.model.tables(target) == new, self.log
        self.log.append(f"merge {source} into {target}")

    def feed(self, branch: str, first: int, last: int) -> list[Mapping[str, Any]]:
        """Read a change feed by Spark."""
        return [row.asDict() for row in self.graph.changes(first, last, branch=branch).collect()]

    def check_diff(self, one: int, other: int) -> None:
        """Compare the diff of two heads with their tables."""
        names = [self.branch(one), self.branch(other)]
        old, new = (self.model.tables(name) for name in names)
        expected = [
            (key, *change)
            for key in {*old, *new}
            for change in of_tables(old.get(key, {}), new.get(key, {}))
        ]
        rows = self.graph.diff(*names).collect()
        found = [(row["_table"], *change_of(row.asDict())) for row in rows]
        assert sorted(found) == sorted(expected), (names, self.log)


def run(spark: SparkSession, storage: Storage, steps: list[tuple[str, int, int, int]]) -> None:
    """Do one sequence and compare everything at its end."""
    made = SparkRun.begin(storage).through(spark)
    for kind, *numbers in steps:
        getattr(made, f"do_{kind}")(*numbers)
    made.check_refs()
    made.check_versions()
    made.check_diff(*steps[0][1:3])
    made.check_feed(made.branch(steps[-1][1]))
    assert load(storage).tables
