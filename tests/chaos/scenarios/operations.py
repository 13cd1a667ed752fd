"""Upserts, deletes, maintenance and schema changes that die at every step.

Each dies in a process of its own; then the graph must hold what it held before or what the operation
makes of it, the next write must work, and the operation done again must end as if nothing had been.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import Any

import pyarrow as pa

from omnigraph_spark.errors import OmnigraphError
from omnigraph_spark.maintenance.cleanup import cleanup
from omnigraph_spark.maintenance.optimize import optimize, run_here
from omnigraph_spark.manifest.snapshot import load
from omnigraph_spark.merge.restore import restore
from omnigraph_spark.read.plan import read_table
from omnigraph_spark.schema_changes import properties
from omnigraph_spark.storage.store import Storage
from omnigraph_spark.write.commit.commit import commit
from omnigraph_spark.write.plan import Settings
from omnigraph_spark.write.tasks.stage import stage
from tests.chaos import oracle
from tests.chaos.lab import Case, Lab
from tests.chaos.launcher import Setup, note
from tests.format_checker import check_graph
from tests.support import writes
from tests.support.writes import COMPANY, EDGE_SCHEMA, KNOWS, NODE_SCHEMA, PERSON

GRACE = "0.3"
POINTS = (
    "stage.done",
    "commit.record_written",
    "table.sending",
    "table.landed",
    "commit.table_1",
    "commit.table_2",
    "commit.tables_done",
    "commit.before_publish",
    "publish.before_merge",
    "publish.landed",
    "commit.after_publish",
    "lineage.before_row",
    "lineage.after_row",
    "commit.before_record_delete",
)
Rows = dict[str, dict[str, Any]]
Contents = dict[str, Rows]


@dataclass(frozen=True)
class Operation:
    """What is done to the graph in trial `n`, and what its contents are afterwards."""

    act: Callable[[Storage, int], object]
    wanted: Callable[[Contents, int], Contents]


def contents(storage: Storage) -> Contents:
    """Return what a reader sees: rows by id, per table."""
    snapshot = load(storage)
    return {
        key: {row["id"]: row for row in read_table(storage, snapshot, key).to_pylist()}
        for key in snapshot.tables
    }


def _nodes(ids: list[str], number: int) -> pa.RecordBatch:
    columns = [pa.array(ids), pa.array(ids), pa.array([number] * len(ids), pa.int32())]
    return pa.RecordBatch.from_arrays(columns, schema=NODE_SCHEMA)


def _edges(ids: list[str], ends: list[tuple[str, str]], number: int) -> pa.RecordBatch:
    columns = [pa.array(ids), *(pa.array([end[side] for end in ends]) for side in (0, 1))]
    return pa.RecordBatch.from_arrays(
        [*columns, pa.array([float(number)] * len(ids))], schema=EDGE_SCHEMA
    )


def _save(storage: Storage, found: Mapping[str, pa.RecordBatch], **more: str) -> None:
    planned = writes.plan(storage, list(found), orphanGraceSeconds=GRACE, **more)
    commit(planned, stage(planned, list(found.items())))


def _merge(storage: Storage, n: int) -> None:
    found = {
        PERSON: _nodes(["p0", "p1", f"m{n}"], n),
        KNOWS: _edges(["e0", f"me{n}"], [("p0", "p1"), ("p1", "p2")], n),
    }
    _save(storage, found, writeMode="merge")


def _merged(before: Contents, n: int) -> Contents:
    people = {i: {"id": i, "name": i, "age": n} for i in ("p0", "p1", f"m{n}")}
    edges = {
        i: {"id": i, "src": s, "dst": d, "w": float(n)}
        for i, s, d in (("e0", "p0", "p1"), (f"me{n}", "p1", "p2"))
    }
    changed = {PERSON: {**before[PERSON], **people}, KNOWS: {**before[KNOWS], **edges}}
    return {**before, **changed}


def _delete(storage: Storage, n: int) -> None:
    ids = pa.RecordBatch.from_pydict({"id": pa.array([f"d{n}"])})
    _save(storage, {PERSON: ids}, writeMode="delete", onDelete="cascade")


def _deleted(before: Contents, n: int) -> Contents:
    gone = f"d{n}"
    people = {i: row for i, row in before[PERSON].items() if i != gone}
    edges = {i: r for i, r in before[KNOWS].items() if gone not in (r["src"], r["dst"])}
    return {**before, PERSON: people, KNOWS: edges}


def _optimize(storage: Storage, n: int) -> None:
    optimize(storage, "main", None, run_here, settings=Settings(orphan_grace_seconds=float(GRACE)))


def _add(storage: Storage, n: int) -> None:
    asked = writes.write_options(storage, orphanGraceSeconds=GRACE)
    properties.add_property(storage, asked, COMPANY, f"y{n}", "String?")


def _added(before: Contents, n: int) -> Contents:
    return {**before, COMPANY: {i: {**r, f"y{n}": None} for i, r in before[COMPANY].items()}}


def _rename(storage: Storage, n: int) -> None:
    asked = writes.write_options(storage, orphanGraceSeconds=GRACE)
    properties.rename_property(storage, asked, COMPANY, f"y{n}", f"r{n}")


def _renamed(before: Contents, n: int) -> Contents:
    return {
        **before,
        COMPANY: {
            i: {f"r{n}" if name == f"y{n}" else name: value for name, value in row.items()}
            for i, row in before[COMPANY].items()
        },
    }


def _drop(storage: Storage, n: int) -> None:
    asked = writes.write_options(storage, orphanGraceSeconds=GRACE)
    properties.drop_property(storage, asked, COMPANY, f"r{n}")


def _dropped(before: Contents, n: int) -> Contents:
    return {
        **before,
        COMPANY: {
            i: {name: value for name, value in row.items() if name != f"r{n}"}
            for i, row in before[COMPANY].items()
        },
    }


def _add_table(storage: Storage, n: int) -> None:
    properties.add_table(
        storage, writes.write_options(storage, orphanGraceSeconds=GRACE), f"node:T{n}", ""
    )


def _drop_table(storage: Storage, n: int) -> None:
    asked = writes.write_options(storage, orphanGraceSeconds=GRACE)
    properties.drop_table(storage, asked, [f"node:T{n}"])


def _restore(storage: Storage, n: int) -> None:
    asked = writes.write_options(storage, orphanGraceSeconds=GRACE)
    restore(storage, asked, str(_FIRST))


_FIRST = 4
"""The graph version that `restore` goes back to: the one that `_graph` ends with."""

OPERATIONS: dict[str, Operation] = {
    "merge": Operation(_merge, _merged),
    "delete": Operation(_delete, _deleted),
    "optimize": Operation(_optimize, lambda before, _: before),
    "add-property": Operation(_add, _added),
    "rename-property": Operation(_rename, _renamed),
    "drop-property": Operation(_drop, _dropped),
    "add-table": Operation(_add_table, lambda before, n: {**before, f"node:T{n}": {}}),
    "drop-table": Operation(
        _drop_table, lambda before, n: {k: v for k, v in before.items() if k != f"node:T{n}"}
    ),
}


def kill_operations(lab: Lab) -> None:
    """Kill each operation at every step that it has."""
    groups = (
        ("merge", "optimize"),
        ("delete",),
        ("add-property", "rename-property", "drop-property"),
        ("add-table", "drop-table"),
        ("cleanup",),
    )
    lab.each(groups, lambda names: _group(lab, names))


def _group(lab: Lab, names: tuple[str, ...]) -> None:
    case = _graph(lab, names[0])
    storage = Storage.at(case.graph)
    for name in names:
        for n in range(len(POINTS)):
            if name == "cleanup":
                _kill_cleanup(case, storage, n)
            else:
                _kill(case, storage, name, n)
    case.close(0)


def _graph(lab: Lab, name: str) -> Case:
    """Make people p0 to p2 and d0 to d13, edges among them, companies, in several fragments."""
    case = lab.case(f"operations-{name}")
    storage = Storage.at(case.graph)
    doomed = [f"d{n}" for n in range(len(POINTS))]
    _save(storage, {PERSON: _nodes(["p0", "p1", "p2"], 0), COMPANY: _nodes(["c0", "c1"], 0)})
    edges = [("p0", "p1"), *((one, "p0") for one in doomed)]
    ids = ["e0", *(f"e{one}" for one in doomed)]
    _save(storage, {PERSON: _nodes(doomed, 0), KNOWS: _edges(ids, edges, 0)})
    return case


def _kill(case: Case, storage: Storage, name: str, n: int) -> None:
    lab, point = case.lab, POINTS[n]
    label = f"{name} at {point}"
    operation = OPERATIONS[name]
    before = contents(storage)
    done = operation.wanted(before, n)
    child = case.start(act, case.graph, name, n, faults={point: "kill"}, surely=False)
    child.end()
    killed = child.was_killed()
    if killed:
        lab.report.armed[point] += 1
        lab.report.trials += 1
    after = contents(storage)
    lab.expect(after in (before, done), "O3", f"{label}: neither before nor after")
    if killed and n <= POINTS.index("publish.before_merge"):
        lab.expect(after == before, "O2", f"{label}: what was never published is there")
    began = time.monotonic()
    marked = _mark(storage, n, name)
    lab.expect(time.monotonic() - began <= 30, "O10", f"{label}: the next write was slow")
    found = contents(storage)
    lab.expect(found == _with(after, marked), "O1", f"{label}: wrong after the next write")
    if after != done or not killed:
        _again(lab, storage, name, n, label)
        done = operation.wanted(found, n) if after != done else found
        lab.expect(contents(storage) == done, "O1", f"{label}: wrong when it is done again")
    _settled(case, storage, label)


def _again(lab: Lab, storage: Storage, name: str, n: int, label: str) -> None:
    try:
        OPERATIONS[name].act(storage, n)
    except OmnigraphError as error:
        # A change of schema that was done is refused as done.
        if name in ("merge", "delete", "optimize"):
            lab.expect(False, "O10", f"{label}: refused when it is done again: {error}")


def _mark(storage: Storage, n: int, name: str) -> Contents:
    """Write as the next user would, to a table of the operation and one beside it."""
    row = {PERSON: _nodes([f"{name}-{n}"], n), COMPANY: _nodes([f"{name}-{n}"], n)}
    _save(storage, row)
    return {
        key: {i: {"id": i, "name": i, "age": n} for i in (f"{name}-{n}",)}
        for key in (PERSON, COMPANY)
    }


def _with(before: Contents, marked: Contents) -> Contents:
    found = {key: dict(rows) for key, rows in before.items()}
    for key, new in marked.items():
        others = {name for row in found[key].values() for name in row}
        for i, row in new.items():
            found[key][i] = {**dict.fromkeys(others), **row}
    return found


def _settled(case: Case, storage: Storage, label: str) -> None:
    """Demand no leftovers, once a write has come after the grace, and a graph as the format has it."""
    lab = case.lab
    if oracle.records(case.graph):
        time.sleep(float(GRACE) + 0.05)
        _save(storage, {KNOWS: _edges([f"x{time.time_ns()}"], [("p0", "p1")], 0)})
    lab.expect(not oracle.records(case.graph), "O10", f"{label}: crash records are left")
    verdict = oracle.Verdict()
    for text in check_graph(case.graph):
        verdict.add("O6", f"{label}: {text}")
    case._count(verdict)


def _kill_cleanup(case: Case, storage: Storage, n: int) -> None:
    """Kill a cleanup at a random moment: every version that it should have kept reads on."""
    lab = case.lab
    _save(storage, {PERSON: _nodes([f"c{n}"], n)})
    before = contents(storage)
    child = case.start(act, case.graph, "cleanup", n)
    time.sleep(lab.random.uniform(0.0, 0.3))
    if child.kill():
        note(str(case.folder), "kill.cleanup")
        lab.report.armed["kill.cleanup"] += 1
    child.end()
    lab.report.trials += 1
    lab.expect(contents(storage) == before, "O1", f"cleanup {n}: rows are lost")
    marked = _mark(storage, n, "cleanup")
    lab.expect(contents(storage) == _with(before, marked), "O1", f"cleanup {n}: the next write")
    _settled(case, storage, f"cleanup {n}")


def act(setup: Setup, graph: str, name: str, n: int) -> None:
    """Do one operation in this process."""
    storage = Storage.at(graph)
    if name == "cleanup":
        later = datetime.now(timezone.utc) + timedelta(days=30)
        cleanup(storage, dry_run=False, now=later, grace_seconds=float(GRACE))
    else:
        OPERATIONS[name].act(storage, n)
