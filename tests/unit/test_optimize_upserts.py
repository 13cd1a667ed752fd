"""Optimize and upserts on one table: whoever is second looks again, and every row is right."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from omnigraph_spark import _faults
from omnigraph_spark.maintenance.optimize import create_index, optimize, run_here
from omnigraph_spark.manifest.snapshot import TableEntry, load
from omnigraph_spark.storage.store import Storage
from omnigraph_spark.write.commit.commit import commit
from omnigraph_spark.write.plan import Settings
from omnigraph_spark.write.tasks.stage import stage
from tests.support.writes import NODE_SCHEMA, PERSON, new_graph, once, plan, records, write

QUICK = Settings(orphan_grace_seconds=0.15, commit_timeout_seconds=20.0)
NAMES = [f"p{number}" for number in range(6)]


@pytest.fixture
def graph(tmp_path: Path) -> Iterator[Storage]:
    """A graph whose `node:Person` is in seven fragments, with an index on `id`."""
    storage = new_graph(Storage.at(str(tmp_path / "g")), [PERSON])
    for name in NAMES:
        write(storage, {PERSON: [name]})
    create_index(storage, "main", PERSON, "id", "BTREE", None, QUICK)
    yield storage
    _faults.disarm()


def upsert(storage: Storage, ages: dict[str, int]) -> None:
    names = pa.array(list(ages))
    batch = pa.RecordBatch.from_arrays(
        [names, names, pa.array(list(ages.values()), pa.int32())], schema=NODE_SCHEMA
    )
    planned = plan(storage, [PERSON], writeMode="merge")
    commit(planned, stage(planned, [(PERSON, batch)]))


def table(storage: Storage) -> Any:
    entry = load(storage).entry(PERSON)
    return storage.dataset(entry.location, entry.table_branch, entry.table_version)


def ages(storage: Storage) -> dict[str, int]:
    found = table(storage).to_table(columns=["id", "age"]).to_pylist()
    assert len(found) == len({row["id"] for row in found}) == load(storage).entry(PERSON).row_count
    return {row["id"]: row["age"] for row in found}


def by_index(storage: Storage, name: str) -> list[int]:
    scanner = table(storage).scanner(filter=f"id = '{name}'", columns=["age"])
    assert "ScalarIndexQuery" in scanner.explain_plan()
    found: list[int] = scanner.to_table()["age"].to_pylist()
    return found


def row_ids(storage: Storage) -> pa.Table:
    columns = ["id", "_row_created_at_version", "_row_last_updated_at_version"]
    return table(storage).scanner(columns=columns, with_row_id=True).to_table().sort_by("id")


@pytest.mark.long
def test_rows_that_were_replaced_are_gone_after_optimize_and_ids_stay(graph: Storage) -> None:
    upsert(graph, {"p1": 41, "p3": 43, "new": 50})
    before, expected = row_ids(graph), ages(graph)
    assert (expected["p1"], expected["new"]) == (41, 50)
    optimize(graph, "main", None, run_here, deletions=0.0, settings=QUICK)
    assert sum(one.num_deletions for one in table(graph).get_fragments()) == 0
    assert row_ids(graph) == before
    assert ages(graph) == expected
    assert [by_index(graph, name) for name in ("p1", "p2", "new")] == [[41], [0], [50]]
    upsert(graph, {"p1": 42})
    assert by_index(graph, "p1") == [42]


@pytest.mark.long
def test_an_upsert_while_a_table_is_compacted_is_kept(graph: Storage) -> None:
    runs: list[int] = []

    def run(storage: Storage, entry: TableEntry, tasks: Sequence[str]) -> list[str]:
        done = run_here(storage, entry, tasks)
        if not runs:
            upsert(graph, {"p1": 41, "new": 50})
        runs.append(1)
        return done

    optimize(graph, "main", None, run, settings=QUICK)
    assert len(runs) == 2, "what was rewritten before the upsert was thrown away"
    assert ages(graph) == {**dict.fromkeys(["first", *NAMES], 0), "p1": 41, "new": 50}
    assert by_index(graph, "p1") == [41]
    assert records(graph) == []


@pytest.mark.long
@pytest.mark.parametrize("point", ["commit.record_written", "commit.before_table", "table.sending"])
def test_an_upsert_that_meets_an_optimize_in_its_commit_lands_all_the_same(
    graph: Storage, point: str
) -> None:
    _faults.arm(
        point, once(lambda: optimize(graph, "main", None, run_here, settings=QUICK) and None)
    )
    upsert(graph, {"p1": 41, "new": 50})
    _faults.disarm()
    assert ages(graph) == {**dict.fromkeys(["first", *NAMES], 0), "p1": 41, "new": 50}
    assert [by_index(graph, name) for name in ("p1", "p2", "new")] == [[41], [0], [50]]
    assert records(graph) == []
