"""One operation stopped at a step while another one runs, on `main` and on a branch, for every pair.

The first operation is stopped (SIGSTOP: its heartbeat too) or killed at a fault point; the second one
runs to its end; the first goes on. Then the graph's contents, branches and tags must be what one of the
two orders makes of them, where an operation that was refused, or killed before its publish, may be left
out; one that was acknowledged never is. The next write must work, and `check` finds nothing. So it is
on graphs of both forms, of stamp 2 and of stamp 6, whose engine alone changes properties.
"""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass, replace
from datetime import datetime, timedelta, timezone
from itertools import product
from random import Random
from typing import Any

import pyarrow as pa

from omnigraph_spark.errors import OmnigraphError, PublishOutcomeUnknown
from omnigraph_spark.maintenance.check import check
from omnigraph_spark.maintenance.cleanup import cleanup
from omnigraph_spark.maintenance.optimize import optimize, run_here
from omnigraph_spark.maintenance.repair import repair
from omnigraph_spark.manifest.snapshot import load
from omnigraph_spark.merge.restore import restore
from omnigraph_spark.read.plan import read_table
from omnigraph_spark.refs import branches, refs, tags
from omnigraph_spark.schema_changes import properties
from omnigraph_spark.storage.store import Storage
from omnigraph_spark.write.commit.commit import commit
from omnigraph_spark.write.plan import Settings
from omnigraph_spark.write.tasks.stage import stage
from tests.chaos.lab import Case, Lab
from tests.chaos.launcher import Child, Setup
from tests.format_checker import check_graph
from tests.support import merges, writes
from tests.support.writes import COMPANY, EDGE_SCHEMA, KNOWS, NODE_SCHEMA, PERSON

GRACE = 0.2
FORMS = (2, 6)
MAIN, SIDE, OLD, NEW = "main", "side", "old", "new"
TYPES = "types"
"""Among the tables of a branch: the type of `age`, by table key."""
DONE, REFUSED, UNKNOWN = "done", "refused", "unknown"

Rows = dict[str, dict[str, Any]]
State = dict[str, dict[str, Rows]]
"""Rows by id, by table key, by branch, or by tag as `tag:NAME`."""


@dataclass(frozen=True)
class Operation:
    """What is done to a branch, and what the graph is afterwards; None: it is refused there."""

    act: Callable[[Storage, str], object]
    after: Callable[[State, str], State | None]


def _people(ids: list[str], age: int) -> pa.RecordBatch:
    columns = [pa.array(ids), pa.array(ids), pa.array([age] * len(ids), pa.int32())]
    return pa.RecordBatch.from_arrays(columns, schema=NODE_SCHEMA)


def _knows(row_id: str, src: str, dst: str) -> pa.RecordBatch:
    columns = [pa.array([text]) for text in (row_id, src, dst)]
    return pa.RecordBatch.from_arrays([*columns, pa.array([1.0])], schema=EDGE_SCHEMA)


def _save(
    storage: Storage,
    branch: str,
    rows: dict[str, pa.RecordBatch],
    mode: str = "append",
    **more: str,
) -> None:
    given = {"integrity": "strict", "orphanGraceSeconds": str(GRACE), **more}
    planned = writes.plan(storage, list(rows), mode, branch=branch, **given)
    fitting = [(key, _fitted(batch, planned.targets[key].schema)) for key, batch in rows.items()]
    commit(planned, stage(planned, fitting))


def _fitted(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Fill the columns that a property change of the other operation brought, or gave a type."""
    columns = [
        batch.column(field.name).cast(field.type)
        if field.name in batch.schema.names
        else pa.nulls(batch.num_rows, field.type)
        for field in schema
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _person(name: str, age: int) -> dict[str, Any]:
    return {"id": name, "name": name, "age": age}


def _on(state: State, branch: str, change: Callable[[dict[str, Rows]], None]) -> State | None:
    """Return the state with one branch changed; None where the branch doesn't exist."""
    if branch not in state:
        return None
    # Two refs may share their tables: the copy is of this one's alone.
    state = {**state, branch: deepcopy(state[branch])}
    change(state[branch])
    return state


def _put(key: str, *rows: dict[str, Any]) -> Callable[[dict[str, Rows]], None]:
    def put(tables: dict[str, Rows]) -> None:
        for row in rows:
            others = {name for stored in tables[key].values() for name in stored}
            tables[key][row["id"]] = {**dict.fromkeys(others), **row}

    return put


def _append(storage: Storage, branch: str) -> None:
    _save(storage, branch, {PERSON: _people(["a0"], 1), KNOWS: _knows("ea", "a0", "p0")})


def _appended(state: State, branch: str) -> State | None:
    if branch in state and "p0" not in state[branch][PERSON]:
        return None
    edge = {"id": "ea", "src": "a0", "dst": "p0", "w": 1.0}
    state_or_none = _on(state, branch, _put(PERSON, _person("a0", 1)))
    return state_or_none and _on(state_or_none, branch, _put(KNOWS, edge))


def _upsert(storage: Storage, branch: str) -> None:
    _save(storage, branch, {PERSON: _people(["p1", "u0"], 7)}, writeMode="merge")


def _overwrite(storage: Storage, branch: str) -> None:
    _save(storage, branch, {COMPANY: _people(["c9"], 3)}, "overwrite")


def _overwritten(state: State, branch: str) -> State | None:
    def change(tables: dict[str, Rows]) -> None:
        others = {name for row in tables[COMPANY].values() for name in row}
        tables[COMPANY] = {"c9": {**dict.fromkeys(others), **_person("c9", 3)}}

    return _on(state, branch, change)


def _delete(storage: Storage, branch: str) -> None:
    ids = pa.RecordBatch.from_pydict({"id": pa.array(["p2"])})
    given = {"writeMode": "delete", "onDelete": "cascade", "orphanGraceSeconds": str(GRACE)}
    planned = writes.plan(storage, [PERSON], branch=branch, integrity="strict", **given)
    commit(planned, stage(planned, [(PERSON, ids)]))


def _deleted(state: State, branch: str) -> State | None:
    def change(tables: dict[str, Rows]) -> None:
        tables[PERSON].pop("p2", None)
        ends = {i: row for i, row in tables[KNOWS].items() if "p2" not in (row["src"], row["dst"])}
        tables[KNOWS] = ends

    return _on(state, branch, change)


def _restore(storage: Storage, branch: str) -> None:
    restore(storage, writes.write_options(storage, branch=branch, **_short()), "first")


def _short() -> dict[str, str]:
    return {"orphanGraceSeconds": str(GRACE)}


def _add_property(storage: Storage, branch: str) -> None:
    asked = writes.write_options(storage, branch=branch, **_short())
    properties.add_property(storage, asked, COMPANY, "y", "String?")


def _property_added(state: State, branch: str) -> State | None:
    def change(tables: dict[str, Rows]) -> None:
        tables[COMPANY] = {i: {**row, "y": None} for i, row in tables[COMPANY].items()}

    return _on(state, branch, change)


def _widen(storage: Storage, branch: str) -> None:
    asked = writes.write_options(storage, branch=branch, **_short())
    properties.widen_property(storage, asked, COMPANY, "age", "I64")


def _widened(state: State, branch: str) -> State | None:
    return _on(state, branch, lambda tables: tables[TYPES].update({COMPANY: _type("int64")}))


def _type(kind: str) -> dict[str, Any]:
    return {"age": kind}


def _same(state: State, branch: str) -> State | None:
    return state if branch in state else None


def _optimize(storage: Storage, branch: str) -> None:
    optimize(storage, branch, None, run_here, settings=Settings(orphan_grace_seconds=GRACE))


def _cleanup(storage: Storage, branch: str) -> None:
    later = datetime.now(timezone.utc) + timedelta(days=30)
    cleanup(storage, dry_run=False, now=later, grace_seconds=GRACE)


def _repair(storage: Storage, branch: str) -> None:
    repair(storage, dry_run=False, grace_seconds=GRACE)


def _create(storage: Storage, branch: str) -> None:
    branches.create_branch(storage, NEW, refs.named(storage, branch))


def _created(state: State, branch: str) -> State | None:
    return {**state, NEW: state[branch]} if branch in state and NEW not in state else None


def _drop(storage: Storage, branch: str) -> None:
    branches.delete_branch(storage, OLD, GRACE)


def _dropped(state: State, branch: str) -> State | None:
    return {k: v for k, v in state.items() if k != OLD} if OLD in state else None


def _recreate(storage: Storage, branch: str) -> None:
    branches.delete_branch(storage, OLD, GRACE)
    branches.create_branch(storage, OLD, refs.named(storage, MAIN))


def _recreated(state: State, branch: str) -> State | None:
    return {**state, OLD: state[MAIN]} if OLD in state else None


def _tag(storage: Storage, branch: str) -> None:
    tags.create_tag(storage, "mark", refs.named(storage, branch))


def _tagged(state: State, branch: str) -> State | None:
    return {**state, "tag:mark": state[branch]} if branch in state else None


def _merge(storage: Storage, branch: str) -> None:
    merges.merge(storage, SIDE, branch, **_short())


def _merged(state: State, branch: str) -> State | None:
    return _on(state, branch, _put(PERSON, *(state[SIDE][PERSON][i] for i in ("s0",))))


def _restored(state: State, branch: str) -> State | None:
    return {**state, branch: state["tag:first"]} if branch in state else None


def _upserted(state: State, branch: str) -> State | None:
    return _on(state, branch, _put(PERSON, _person("p1", 7), _person("u0", 7)))


OPERATIONS: dict[str, Operation] = {
    "append": Operation(_append, _appended),
    "upsert": Operation(_upsert, _upserted),
    "overwrite": Operation(_overwrite, _overwritten),
    "delete": Operation(_delete, _deleted),
    "restore": Operation(_restore, _restored),
    "add-property": Operation(_add_property, _property_added),
    "widen": Operation(_widen, _widened),
    "optimize": Operation(_optimize, _same),
    "cleanup": Operation(_cleanup, lambda state, _: state),
    "repair": Operation(_repair, lambda state, _: state),
    "create-branch": Operation(_create, _created),
    "delete-branch": Operation(_drop, _dropped),
    "recreate-branch": Operation(_recreate, _recreated),
    "tag": Operation(_tag, _tagged),
    "merge": Operation(_merge, _merged),
}
BRANCHED = frozenset(OPERATIONS) - {"cleanup", "repair", "merge"}
"""What is also done on the branch `old`, which others delete and make again."""


def pairs(lab: Lab) -> None:
    """Stop or kill each operation at a step, and let each other one run meanwhile."""
    asked = _trials(lab)
    share = max(1, len(asked) // 3)
    groups = [asked[i : i + share] for i in range(0, len(asked), share)]
    numbered = list(enumerate(groups))
    lab.each(numbered, lambda group: _group(lab, *group))


@dataclass(frozen=True)
class Trial:
    """One pair, where each works, and how the first is held up at a step."""

    first: str
    second: str
    branch: str
    point: str
    killed: bool
    form: int = FORMS[0]

    def __str__(self) -> str:
        how = "killed" if self.killed else "stopped"
        return (
            f"stamp {self.form}: {self.first} {how} at {self.point}, {self.second} meanwhile,"
            f" on {self.branch}"
        )


def _trials(lab: Lab) -> list[Trial]:
    """Return every ordered pair, with each step of the first at least once; `large`: all of them."""
    asked = []
    for form in FORMS:
        steps = {name: _steps(lab, name, form) for name in OPERATIONS}
        some = [replace(t, form=form) for t in chosen(steps, lab.random, large=lab.large)]
        points = {(trial.first, trial.point) for trial in some}
        lab.report.numbers.append(
            f"stamp {form}: {len(some)} trials, {len({(t.first, t.second) for t in some})} ordered "
            f"pairs, {len(points)} of {sum(map(len, steps.values()))} steps, "
            f"{sum(t.killed for t in some)} killed, {sum(t.branch == OLD for t in some)} on a branch"
        )
        asked += some
    return asked


def chosen(steps: Mapping[str, list[str]], random: Random, *, large: bool) -> Iterator[Trial]:
    """Yield the trials of some operations, given the steps of each."""
    for first, points in steps.items():
        offset = random.randrange(len(points))
        count = len(points) if large else max(1, -(-len(points) // len(steps)))
        for place, second in enumerate(steps):
            branches = [OLD, MAIN] if {first, second} <= BRANCHED else [MAIN]
            for number in range(count):
                step = number if large else offset + place + number * len(steps)
                point = points[step % len(points)]
                some = branches if large else [random.choice(branches)]
                ends = (False, True) if large else (random.random() < 0.4,)
                for branch, killed in product(some, ends):
                    yield Trial(first, second, branch, point, killed)


def _steps(lab: Lab, name: str, form: int) -> list[str]:
    """Return the fault points that an operation passes, in order."""
    case, _ = _graph(lab, f"steps-{name}", form)
    hits: list[str] = case.run(passed, case.graph, name, MAIN)
    case.close(0)
    return list(dict.fromkeys(hits)) or ["commit.entered"]


def passed(setup: Setup, graph: str, name: str, branch: str) -> list[str]:
    """Do an operation in this process and return the fault points that it passed."""
    from omnigraph_spark import _faults

    hits: list[str] = []
    for point in _faults.POINTS:
        _faults.arm(point, lambda point=point: hits.append(point))
    with suppress(OmnigraphError):
        OPERATIONS[name].act(Storage.at(graph), branch)
    return hits


def act(setup: Setup, graph: str, name: str, branch: str) -> tuple[str, str]:
    """Do an operation in this process; return how it ended, and its error's text."""
    try:
        OPERATIONS[name].act(Storage.at(graph), branch)
    except PublishOutcomeUnknown as error:
        return UNKNOWN, str(error)
    except OmnigraphError as error:
        return REFUSED, str(error)
    return DONE, ""


class Stop:
    """A fault that stops its process the first time, until another writer sends SIGCONT."""

    def __init__(self) -> None:
        self.fired = False

    def __call__(self) -> None:
        if not self.fired:
            self.fired = True
            os.kill(os.getpid(), signal.SIGSTOP)


def _graph(lab: Lab, name: str, form: int) -> tuple[Case, Storage]:
    """Make three people, an edge, two companies; `old` and `side` with a row more; tag `first`."""
    case = lab.case(name, GRACE)
    storage = writes.empty_graph(Storage.at(case.graph), form)
    _save(storage, MAIN, {PERSON: _people(["p0", "p1"], 0), COMPANY: _people(["c0", "c1"], 0)})
    _save(storage, MAIN, {PERSON: _people(["p2"], 0), KNOWS: _knows("e0", "p2", "p0")})
    tags.create_tag(storage, "first", refs.named(storage, MAIN))
    for branch, row in ((OLD, "o0"), (SIDE, "s0")):
        branches.create_branch(storage, branch, refs.named(storage, MAIN))
        _save(storage, branch, {PERSON: _people([row], 0)})
    _save(storage, MAIN, {COMPANY: _people(["c2"], 0)})
    return case, storage


def state_of(storage: Storage) -> State:
    """Return what readers see: the rows of every branch and tag."""
    found = {branch.name: branch.name for branch in refs.list_branches(storage)}
    found |= {f"tag:{tag.name}": tag.name for tag in refs.list_tags(storage)}
    return {shown: _contents(storage, ref) for shown, ref in found.items()}


def _contents(storage: Storage, ref: str) -> dict[str, Rows]:
    snapshot = load(storage, *refs.named(storage, ref))
    tables = {key: read_table(storage, snapshot, key) for key in snapshot.tables}
    found = {key: {row["id"]: row for row in rows.to_pylist()} for key, rows in tables.items()}
    nodes = {key: _type(str(rows["age"].type)) for key, rows in tables.items() if key != KNOWS}
    return {**found, TYPES: nodes}


def _group(lab: Lab, number: int, trials: list[Trial]) -> None:
    for place, trial in enumerate(trials):
        case, storage = _graph(lab, f"pairs-{number}-{place}", trial.form)
        try:
            _trial(case, storage, trial)
        except OmnigraphError as error:
            lab.expect(False, "O1", f"{trial}: the graph doesn't read: {error}")
        case.close()


def _trial(case: Case, storage: Storage, trial: Trial) -> None:
    before = state_of(storage)
    fault: Any = "kill" if trial.killed else Stop()
    child = case.start(
        act, case.graph, trial.first, trial.branch, faults={trial.point: fault}, surely=False
    )
    reached = _stopped(child)
    second = case.run(act, case.graph, trial.second, trial.branch)
    if reached and not trial.killed:
        os.kill(child.pid, signal.SIGCONT)
    first = child.end() or (UNKNOWN, "killed")
    after = state_of(storage)
    allowed = list(_orders(before, trial, first[0], second[0]))
    case.lab.expect(
        after in allowed,
        "O1",
        f"{trial}: {first[0]} and {second[0]} {first[1][:200]} {second[1][:200]}"
        f" end in {_difference(after, allowed)}",
    )
    _settled(case, storage, trial, after)


def _stopped(child: Child) -> bool:
    """Wait until a process is stopped (True) or has ended."""
    deadline = time.monotonic() + 60
    while child.alive() and time.monotonic() < deadline:
        with suppress(OSError), open(f"/proc/{child.pid}/stat", encoding="ascii") as file:
            if file.read().rpartition(")")[2].split()[0] == "T":
                return True
        if child.answered():
            return False
        time.sleep(0.005)
    return False


def _orders(before: State, trial: Trial, first: str, second: str) -> Iterator[State]:
    """Yield what the two orders end in; what wasn't acknowledged may count as absent."""
    for a, b in ((trial.first, trial.second), (trial.second, trial.first)):
        outcomes = {trial.first: first, trial.second: second}
        if trial.first == trial.second:
            outcomes = {}
        for take_a, take_b in product((True, False), repeat=2):
            state: State | None = before
            for name, take, how in (
                (a, take_a, outcomes.get(a, first)),
                (b, take_b, outcomes.get(b, second)),
            ):
                if state is None or (take and how == REFUSED) or (not take and how == DONE):
                    state = None
                elif take:
                    state = OPERATIONS[name].after(state, trial.branch)
            if state is not None:
                yield from _parts(state, trial, first, second)


def _parts(state: State, trial: Trial, first: str, second: str) -> Iterator[State]:
    """Yield a state, and without `old` where a branch was deleted and not made again in the end."""
    yield state
    if {trial.first, trial.second} == {"recreate-branch", "delete-branch"}:
        # Both may delete the same branch before one of them makes it again.
        yield {**state, OLD: state[MAIN]}
    for name, how in ((trial.first, first), (trial.second, second)):
        if name == "recreate-branch" and how != DONE:
            yield {key: rows for key, rows in state.items() if key != OLD}


def _difference(after: State, allowed: list[State]) -> str:
    if not allowed:
        return "what neither order allows"
    best = min(allowed, key=lambda state: _distance(after, state))
    texts = []
    for ref in sorted(after.keys() | best.keys()):
        if after.get(ref) != best.get(ref):
            tables = {**after.get(ref, {}), **best.get(ref, {})}
            texts += [
                f"{ref} {key}: {after.get(ref, {}).get(key)} not {best.get(ref, {}).get(key)}"
                for key in tables
                if after.get(ref, {}).get(key) != best.get(ref, {}).get(key)
            ] or [f"{ref} is {'there' if ref in after else 'missing'}"]
    return "; ".join(texts)[:600]


def _distance(one: State, other: State) -> int:
    return sum(one.get(ref) != other.get(ref) for ref in one.keys() | other.keys())


def _settled(case: Case, storage: Storage, trial: Trial, after: State) -> None:
    """Demand that the next write works on every branch, and then no finding, also of the format."""
    lab = case.lab
    time.sleep(GRACE + 0.05)
    for branch in [ref for ref in after if not ref.startswith("tag:")]:
        try:
            _save(
                storage,
                branch,
                {PERSON: _people([f"next-{branch}"], 5), COMPANY: _people([f"n{branch}"], 5)},
            )
        except OmnigraphError as error:
            lab.expect(False, "O10", f"{trial}: the next write on {branch}: {error}")
            return
        added = _contents(storage, branch)[PERSON].keys() - after[branch][PERSON].keys()
        lab.expect(added == {f"next-{branch}"}, "O2", f"{trial}: the next write adopted {added}")
    if check(storage):
        repair(storage, dry_run=False, grace_seconds=GRACE)
    left = [str(finding) for finding in check(storage)]
    lab.expect(not left, "O6", f"{trial}: check finds {left}")
    cleaned = "cleanup" in (trial.first, trial.second)
    for text in check_graph(case.graph):
        # Rows of old versions stay after their files were cleaned up; the staging record of a
        # writer that died before its crash record stays until cleanup takes it for old; a file
        # that a local store had half written (`…#1`) is in no listing.
        gone = cleaned and text.endswith(".manifest isn't there")
        litter = trial.killed and re.search(r"(/planned|#\d+): left over$", text) is not None
        lab.expect(gone or litter, "O6", f"{trial}: {text}")
