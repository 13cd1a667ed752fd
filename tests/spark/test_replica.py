"""A change feed applied to another graph: after each span the replica has what the source had.

The source goes through random steps on three tables and several branches (tests/property).
`OMNIGRAPH_SPARK_REPLICAS` says how many sources (1), `OMNIGRAPH_SEED` repeats a run; both are printed.
"""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from omnigraph_spark import OmniGraph
from omnigraph_spark.history import commits
from omnigraph_spark.manifest.snapshot import Snapshot, load
from omnigraph_spark.storage.store import Storage
from tests.format_checker import check_graph
from tests.property.core import KINDS, Run
from tests.support.writes import COMPANY, KNOWS, PERSON, new_graph

pytestmark = pytest.mark.rounds

REPLICAS = int(os.environ.get("OMNIGRAPH_SPARK_REPLICAS", "1"))
SEED = int(os.environ.get("OMNIGRAPH_SEED", str(random.randrange(1 << 32))))
STEPS = 14
SPANS = 5


class Sound(Run):
    """Steps after which every edge has its ends: edges come with their nodes."""

    keys = (PERSON, COMPANY, COMPANY)

    def do_both(self, where: int, which: int, many: int) -> None:
        """Append nodes and the edges between them in one commit."""
        rows = self.new_rows(1 + many % 3)
        self.write(self.branch(where), "append", {PERSON: rows, KNOWS: rows})

    def do_overwrite(self, where: int, which: int, many: int) -> None:
        """Replace the table that no endpoints in."""
        super().do_overwrite(where, 1, many)


@pytest.mark.long
@pytest.mark.timeout(0)
def test_a_replica_equals_its_source_after_each_span_of_random_changes(
    spark: SparkSession, tmp_path: Path
) -> None:
    print(f"OMNIGRAPH_SPARK_REPLICAS={REPLICAS} OMNIGRAPH_SEED={SEED}")  # noqa: T201
    for number in range(REPLICAS):
        choice = random.Random(SEED + number)
        source = Storage.at(str(tmp_path / f"source{number}"))
        run = random_history(source, choice)
        copy = Storage.at(str(tmp_path / f"copy{number}"))
        follow(spark, source, copy, choice, f"OMNIGRAPH_SEED={SEED + number}: {run.log}")


def random_history(source: Storage, choice: random.Random) -> Sound:
    """Make a graph by random steps; half of them on main, where the replica sees them."""
    run = Sound.begin(new_graph(source, [PERSON]))
    while len(commits.read_commits(source)) < STEPS:
        where = choice.choice([0, choice.randrange(12)])
        run.do((choice.choice(KINDS), where, choice.randrange(12), choice.randrange(12)))
    return run


def follow(
    spark: SparkSession, source: Storage, copy: Storage, choice: random.Random, log: str
) -> None:
    """Apply the feed of main in random spans, each twice, and compare after each."""
    graph, replica = (OmniGraph.for_path(spark, one.root) for one in (source, copy))
    head = load(source).graph_version
    ends = [*sorted(choice.sample(range(1, head), min(SPANS, head - 1))), head]
    first = 1
    for number, last in enumerate(ends):
        changes = graph.changes(first, last)
        for attempt in range(1 + choice.randrange(2)):
            given: dict[str, Any] = {"txnAppId": "replica", "txnVersion": number}
            with replica.transaction(**given) as t:
                t.apply(changes)
            assert t.skipped == (attempt > 0) or t.committed is None, log
        expected = contents(source, load(source, version=last))
        found = contents(copy, load(copy))
        assert {k: v for k, v in found.items() if v} == {k: v for k, v in expected.items() if v}, (
            f"{first} to {last}: {log}"
        )
        first = last + 1
    # The branch that a transaction was staged on is gone, with the commits that it merged.
    left = [
        one for one in check_graph(copy.root, moved=True) if "merged_parent_commit_id" not in one
    ]
    assert left == [], log


def contents(storage: Storage, snapshot: Snapshot) -> dict[str, list[dict[str, Any]]]:
    """Return the rows of all tables of a snapshot, by id."""
    found = {}
    for key, entry in snapshot.tables.items():
        table = storage.dataset(entry.location, entry.table_branch, entry.table_version).to_table()
        found[key] = sorted(table.to_pylist(), key=lambda row: str(row["id"]))
    return found
