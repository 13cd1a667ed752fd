"""The same sequences with Spark: frames are written, merged, compared and read as feeds by it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pyspark.sql import SparkSession

from omnigraph_spark import OmniGraph
from omnigraph_spark.storage.store import Storage
from omnigraph_spark.write.commit.commit import Committed
from tests.property.core import Run, Step, change_of
from tests.property.model import Tables, Version
from tests.support.feeds import of_tables
from tests.support.writes import COMPANY, PERSON


class SparkRun(Run):
    """A sequence through Spark, on node tables."""

    keys = (PERSON, COMPANY, PERSON)

    def through(self, spark: SparkSession) -> SparkRun:
        """Use this session."""
        self.graph = OmniGraph.for_path(spark, self.storage.root)
        return self

    def write(
        self, branch: str, mode: str, rows: Tables, effect: Tables | None = None, **options: str
    ) -> None:
        """Write rows as frames, those of new tables without Spark (they need keys)."""
        if not set(rows) <= set(self.model.tables(branch)):
            super().write(branch, mode, rows, effect, **options)
            return
        frames = {
            key: self.graph.spark.createDataFrame(
                [(one, one, value) for one, value in table.items()],
                "id STRING, name STRING, age INT",
            )
            for key, table in rows.items()
        }
        given = {"writeMode": mode} if mode in ("merge", "delete") else {}
        spark_mode = "append" if given else mode
        done = self.graph.write(frames, mode=spark_mode, branch=branch, **given, **options)
        self.written(branch, mode, rows if effect is None else effect, done)

    def merge(self, source: str, target: str, stranded: set[str]) -> Committed | None:
        """Merge by what users call."""
        assert not stranded
        return self.graph.merge(source, target, resolution="ours").committed

    def feed(self, branch: str, first: int, last: int) -> list[Mapping[str, Any]]:
        """Read a change feed by Spark."""
        return [row.asDict() for row in self.graph.changes(first, last, branch=branch).collect()]

    def check_diff(self, before: Version, after: Version) -> None:
        """Compare the diff of two versions with their tables."""
        old, new = (self.model.versions[at] for at in (before, after))
        expected = [
            (key, *change)
            for key in {*old, *new}
            for change in of_tables(old.get(key, {}), new.get(key, {}))
        ]
        rows = self.graph.diff(*(f"{name}@{number}" for name, number in (before, after))).collect()
        found = [(row["_table"], *change_of(row.asDict())) for row in rows]
        assert sorted(found) == sorted(expected), (before, after, self.log)


def run(spark: SparkSession, storage: Storage, steps: list[Step]) -> list[str]:
    """Do one sequence and compare everything at its end; returns the steps that published.

    The diff is read of the newest publish of each kind.
    """
    made = SparkRun.begin(storage).through(spark)
    published: dict[str, tuple[Version, Version]] = {}
    for kind, *numbers in steps:
        before = {name: one.head for name, one in made.model.branches.items()}
        getattr(made, f"do_{kind}")(*numbers)
        for name, one in made.model.branches.items():
            if name in before and one.head != before[name]:
                published[kind] = (before[name], one.head)
    made.check_refs()
    made.check_versions()
    for pair in published.values():
        made.check_diff(*pair)
    made.check_feed(made.branch(steps[-1][2]))
    return [*published]
