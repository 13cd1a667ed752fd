"""The change feed of a graph of 20 tables, read as a stream: what it says makes an equal graph.

The source goes through random steps: inserts, updates, deletes, overwrites, restores, merges of
branches, compactions, added properties. Without Spark; each batch is one commit, after which the
replica, kept in plain Python, must equal the source at that commit. What a real Spark writes of
such a feed: tests/spark/test_replica.py.

`OMNIGRAPH_SPARK_REPLICAS` says how many sources (1), `OMNIGRAPH_SEED` repeats a run; both are
printed.
"""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest
from pyspark.sql.datasource import DataSourceStreamReader

from omnigraph_spark.errors import SchemaMismatchError
from omnigraph_spark.manifest.snapshot import load
from omnigraph_spark.storage.store import Storage
from tests.property.wide import TABLES, Row, Wide, contents, values
from tests.support.streams import Stream

pytestmark = pytest.mark.rounds

REPLICAS = int(os.environ.get("OMNIGRAPH_SPARK_REPLICAS", "1"))
# A chosen seed, so that a plain run takes the same minutes each day.
SEED = int(os.environ.get("OMNIGRAPH_SEED", "3569276910"))
COMMITS = 30
KINDS = {"append", "overwrite", "merge", "delete", "grow", "restore", "compact", "branch"}

needs_limits = pytest.mark.skipif(
    not hasattr(DataSourceStreamReader, "getDefaultReadLimit"),
    reason="Spark 4.2 and later have limits per batch",
)


@pytest.mark.long
@needs_limits
@pytest.mark.timeout(0)
def test_a_stream_s_changes_make_an_equal_graph_at_every_commit(tmp_path: Path) -> None:
    print(f"OMNIGRAPH_SPARK_REPLICAS={REPLICAS} OMNIGRAPH_SEED={SEED}")  # noqa: T201
    done: set[str] = set()
    for number in range(REPLICAS):
        choice = random.Random(SEED + number)
        run = Wide.make(Storage.at(str(tmp_path / f"source{number}")))
        assert len(load(run.storage).tables) == len(TABLES) == 20
        follower = Follower(run)
        while follower.commits < COMMITS:
            for _ in range(choice.randrange(1, 4)):
                run.random_step(choice)
            if choice.randrange(4) == 0:
                follower.restart()
            follower.follow(f"OMNIGRAPH_SEED={SEED + number}: {run.log}")
        done |= {line.split()[0] for line in run.log}
    if REPLICAS >= 4:  # chance leaves none of them out of so many steps
        assert done >= KINDS


class Follower:
    """A stream of all changes, and the graph that they make, table by table and id by id."""

    def __init__(self, run: Wide) -> None:
        self.storage = run.storage
        asked = {"readChangeFeed": "true", "maxCommitsPerTrigger": "1"}
        self.stream = Stream(self.storage, startingVersion="3", **asked)
        self.tables: dict[str, dict[str, Row]] = {}
        self.commits = 0
        self.gone: set[str] = set()

    def restart(self) -> None:
        """Start the query again.

        It shows the properties that the source has then: one that a restore took away is gone from
        the replica, too, though commits that are still to come may have it.
        """
        began = (self.stream.offset or {"version": 3})["version"]
        self.stream.restart()
        newest = load(self.storage).graph_version
        had = {n for version in range(began, newest + 1) for n in self.names_at(version)}
        self.gone = had - {*self.stream.schema.names} - {*self.names_at(newest)}
        self.tables = self.shown(self.tables)

    def names_at(self, version: int) -> set[str]:
        """Return the columns that the tables have at a version of the source."""
        entries = load(self.storage, version=version).tables.values()
        return {
            name
            for one in entries
            for name in self.storage.dataset(
                one.location, one.table_branch, one.table_version
            ).schema.names
        }

    def shown(self, tables: dict[str, dict[str, Row]]) -> dict[str, dict[str, Row]]:
        """Return rows without the columns that were gone when the query began."""
        return {
            key: {
                id_: {name: value for name, value in row.items() if name not in self.gone}
                for id_, row in rows.items()
            }
            for key, rows in tables.items()
        }

    def follow(self, log: str) -> None:
        """Do all batches that there are, and compare after each."""
        while True:
            start, end = self.stream.plan()
            if start == end:
                return
            try:
                rows = self.stream.read(start, end)
            except (
                SchemaMismatchError
            ):  # a property was added: a query that is started again has it
                self.restart()
                rows = self.stream.read(start, end)
            self.stream.offset = end
            self.commits += 1
            self.apply(rows, log)
            expected = self.shown(
                contents(self.storage, load(self.storage, version=end["version"]))
            )
            found = {key: rows for key, rows in self.tables.items() if rows}
            assert found == {k: v for k, v in expected.items() if v}, (end, log)

    def apply(self, rows: list[Row], log: str) -> None:
        """Apply a batch; what it says of the rows before must be so."""
        for row in sorted(
            rows, key=lambda one: one["_change_type"] in ("insert", "update_postimage")
        ):
            table = self.tables.setdefault(row["_table"], {})
            kind, name = row["_change_type"], row["id"]
            if kind in ("delete", "update_preimage"):
                assert table.pop(name) == values(row), (row, log)
            else:
                assert name not in table, (row, log)
                table[name] = values(row)
