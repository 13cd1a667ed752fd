"""A node is deleted while an edge to it is inserted: no edge is ever left without an end.

`OMNIGRAPH_SPARK_RACES` says how many rounds (6; 50 is the long run), `OMNIGRAPH_SEED` repeats one.
"""

from __future__ import annotations

import os
import random
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pytest

from omnigraph_spark.errors import IntegrityError
from omnigraph_spark.manifest.snapshot import load
from omnigraph_spark.storage.store import Storage
from omnigraph_spark.write.commit.commit import commit
from omnigraph_spark.write.plan import WritePlan
from omnigraph_spark.write.tasks.stage import StagedTable, stage
from tests.support.writes import EDGE_SCHEMA, KNOWS, PERSON, ids, new_graph, plan, write

pytestmark = pytest.mark.rounds

_ROUNDS = int(os.environ.get("OMNIGRAPH_SPARK_RACES", "6"))
_SEED = int(os.environ.get("OMNIGRAPH_SEED", str(random.randrange(1 << 32))))

Ready = tuple[WritePlan, list[StagedTable]]


def _deletion(storage: Storage, node: str, on_delete: str) -> Ready:
    planned = plan(storage, [PERSON], new={}, writeMode="delete", onDelete=on_delete)
    named = pa.RecordBatch.from_pydict({"id": [node]})
    return planned, stage(planned, [(PERSON, named)])


def _edge(storage: Storage, name: str, ends: tuple[str, str], mode: str) -> Ready:
    columns = [[name], [ends[0]], [ends[1]], [1.0]]
    batch = pa.RecordBatch.from_arrays([pa.array(c) for c in columns], schema=EDGE_SCHEMA)
    planned = plan(storage, [KNOWS], writeMode=mode, integrity="strict")
    return planned, stage(planned, [(KNOWS, batch)])


def _dangling(storage: Storage) -> list[tuple[str, str]]:
    entry = load(storage).entry(KNOWS)
    edges = storage.dataset(entry.location, None, entry.table_version).to_table().to_pylist()
    nodes = set(ids(storage, PERSON))
    return [(e["src"], e["dst"]) for e in edges if not {e["src"], e["dst"]} <= nodes]


def _committed(ready: Ready, barrier: threading.Barrier) -> IntegrityError | None:
    """Commit at the same time as the other; return why it was refused."""
    barrier.wait()
    try:
        commit(*ready)
    except IntegrityError as error:
        return error
    return None


def test_a_node_delete_and_an_edge_insert_at_once_never_leave_a_dangling_edge(
    tmp_path: Path,
) -> None:
    rng = random.Random(_SEED)
    storage = new_graph(Storage.at(str(tmp_path / "g")))
    write(storage, {PERSON: ["stays", *(f"n{number}" for number in range(_ROUNDS))]})
    edge = pa.RecordBatch.from_pydict({"id": ["first"]})
    planned = plan(storage, [KNOWS], new={}, writeMode="delete")
    commit(planned, stage(planned, [(KNOWS, edge)]))  # the edge that every such graph begins with
    assert _dangling(storage) == []
    for number in range(_ROUNDS):
        node, on_delete = f"n{number}", rng.choice(["restrict", "cascade"])
        ends = rng.choice([(node, "stays"), ("stays", node), (node, node)])
        both = [
            _deletion(storage, node, on_delete),
            _edge(storage, f"e{number}", ends, rng.choice(["append", "merge"])),
        ]
        rng.shuffle(both)
        barrier = threading.Barrier(2)
        with ThreadPoolExecutor(2) as pool:
            done = list(pool.map(_committed, both, [barrier] * 2))
        refused = [error for error in done if error is not None]
        told = f"OMNIGRAPH_SEED={_SEED}, round {number}: {on_delete}, {ends}, {refused}"
        there = (node in ids(storage, PERSON), f"e{number}" in ids(storage, KNOWS))
        assert _dangling(storage) == [], told
        # One of the two was first: the edge is refused, or the delete is, or it takes the edge.
        assert there[0] == there[1], told
        assert {error.rule for error in refused} <= {"endpoints exist"}, told
        assert bool(refused) or (on_delete == "cascade" and there == (False, False)), told
