"""Optimize among writers: real processes; the writers never notice, and rows are exact."""

from __future__ import annotations

import os
from pathlib import Path

import pyarrow as pa

from omnigraph_spark.maintenance.optimize import create_index, optimize, run_here
from omnigraph_spark.manifest.snapshot import load
from omnigraph_spark.storage.store import Storage
from omnigraph_spark.write.plan import Settings
from tests.support import lance_graphs, writes
from tests.support.processes import Outcome, at_once
from tests.support.writes import NODE_SCHEMA, PERSON, ids

FRAGMENTS = int(os.environ.get("OMNIGRAPH_TEST_FRAGMENTS", "200"))
WRITES = 6


def appender(storage: Storage, number: int, outcome: Outcome) -> None:
    for count in range(WRITES):
        name = f"w{number}-{count}"
        writes.write(storage, {PERSON: [name]}, orphanGraceSeconds="10", commitTimeoutSeconds="100")
        outcome.acknowledged.append(name)


def optimizer(storage: Storage, number: int, outcome: Outcome) -> None:
    """Optimize again and again while the others write."""
    versions = []
    for _ in range(3):
        done = optimize(storage, "main", None, run_here, settings=Settings())
        versions.append(done.graph_version)
    outcome.result = versions


def many_fragments(folder: Path) -> tuple[Storage, list[str]]:
    """Make a graph of one table in small fragments with an index; return its ids, too."""
    storage = lance_graphs.new_graph(str(folder / "g"))
    names = [f"n{number:04}" for number in range(FRAGMENTS * 5)]
    column = pa.array(names)
    ages = pa.array(range(len(names)), pa.int32())
    table = pa.table([column, column, ages], schema=NODE_SCHEMA)
    lance_graphs.write_table(storage, PERSON, table, max_rows_per_file=5)
    lance_graphs.publish_head(storage, PERSON)
    create_index(storage, "main", PERSON, "id", "BTREE", None)
    return storage, names


def test_two_that_optimize_at_once_leave_every_row_once(tmp_path: Path) -> None:
    storage, names = many_fragments(tmp_path)
    outcomes = at_once(storage.root, [optimizer] * 2)
    assert [one.errors for one in outcomes] == [[]] * 2
    assert any(outcomes[0].result) or any(outcomes[1].result)
    assert ids(storage, PERSON) == names
    entry = load(storage).entry(PERSON)
    assert len(storage.dataset(entry.location, None, entry.table_version).get_fragments()) == 1
    assert writes.records(storage) == []


def test_optimize_among_four_appenders_fails_none_of_them_and_rows_are_exact(
    tmp_path: Path,
) -> None:
    storage, names = many_fragments(tmp_path)
    outcomes = at_once(storage.root, [appender] * 4 + [optimizer])
    assert [one.errors for one in outcomes] == [[]] * 5
    assert outcomes[4].result[0] is not None
    added = [name for one in outcomes for name in one.acknowledged]
    assert len(added) == 4 * WRITES
    assert ids(storage, PERSON) == sorted([*names, *added])
    optimize(storage, "main", None, run_here)
    entry = load(storage).entry(PERSON)
    dataset = storage.dataset(entry.location, None, entry.table_version)
    assert len(dataset.get_fragments()) < 20
    for name in ("n0003", "w0-0", f"w3-{WRITES - 1}"):
        found = dataset.scanner(filter=f"id = '{name}'", columns=["id"])
        assert "ScalarIndexQuery" in found.explain_plan()
        assert found.to_table()["id"].to_pylist() == [name]
    assert ids(storage, PERSON) == sorted([*names, *added])
    assert writes.records(storage) == []
