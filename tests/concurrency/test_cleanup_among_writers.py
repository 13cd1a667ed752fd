"""Cleanup among writers, readers and optimize: real processes, the real clock, an old graph."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from omnigraph_spark.errors import VersionNotFoundError
from omnigraph_spark.maintenance.cleanup import cleanup
from omnigraph_spark.maintenance.optimize import create_index, optimize, run_here
from omnigraph_spark.manifest.snapshot import load
from omnigraph_spark.read.plan import read_table
from omnigraph_spark.storage.store import Storage
from tests.support import branches, writes
from tests.support.processes import Outcome, at_once
from tests.support.writes import COMPANY, PERSON, ids

WRITES = 5
OLD = 30 * 86_400.0


def appender(storage: Storage, number: int, outcome: Outcome) -> None:
    for count in range(WRITES):
        name = f"w{number}-{count}"
        writes.write(storage, {PERSON: [name], COMPANY: [name]}, orphanGraceSeconds="10")
        outcome.acknowledged.append(name)


def reader(storage: Storage, number: int, outcome: Outcome) -> None:
    """Read heads in full, and the branch, until all rows are there."""
    seen = reads = 0
    while seen < 9 + 2 * WRITES:
        snapshot = load(storage)
        rows = {key: read_table(storage, snapshot, key).num_rows for key in (PERSON, COMPANY)}
        if rows != {key: snapshot.entry(key).row_count for key in rows}:
            outcome.errors.append(f"torn: {rows}")
        if branches.ids_at(storage, PERSON, "dev") != ["d", "first", "p0", "p1"]:
            outcome.errors.append("the branch changed")
        seen, reads = rows[PERSON], reads + 1
    outcome.result = reads


def maintainer(storage: Storage, number: int, outcome: Outcome) -> None:
    """Optimize and clean up in turn."""
    removed = []
    for _ in range(4):
        optimize(storage, "main", None, run_here)
        removed.append(cleanup(storage, dry_run=False).versions)
    outcome.result = removed


@pytest.mark.long
def test_a_cleanup_of_an_old_graph_disturbs_neither_writers_nor_readers(tmp_path: Path) -> None:
    storage = writes.new_graph(Storage.at(str(tmp_path / "g")))
    create_index(storage, "main", PERSON, "id", "BTREE", None)
    for number in range(8):
        writes.write(storage, {PERSON: [f"p{number}"], COMPANY: [f"p{number}"]})
        if number == 1:
            branches.make(storage, "dev")
            branches.write_ids(storage, "dev", PERSON, ["d"])
    newest = load(storage).graph_version
    then = time.time() - OLD
    for info in storage.list(""):
        os.utime(storage.uri(info.path), (then, then))
    outcomes = at_once(storage.root, [appender, appender, reader, maintainer])
    assert [one.errors for one in outcomes] == [[]] * 4
    assert sum(outcomes[3].result) > 10
    added = [name for one in outcomes for name in one.acknowledged]
    assert len(added) == 2 * WRITES
    for key in (PERSON, COMPANY):
        assert ids(storage, key) == sorted(["first", *(f"p{n}" for n in range(8)), *added])
    assert read_table(storage, load(storage, version=newest), PERSON).num_rows == 9
    for version in range(1, newest):
        try:
            tables = load(storage, version=version)
        except VersionNotFoundError:
            continue
        for key in tables.tables:  # what stays is whole
            read_table(storage, tables, key)
    assert writes.records(storage) == []
