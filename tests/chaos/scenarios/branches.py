"""Branches: a writer that dies on one, many writers on many beside some that come and go (4, 15).

The oracle of the other scenarios knows `main` only; what must hold of a branch is checked here.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

from omnigraph_spark.errors import OmnigraphError
from omnigraph_spark.history import commits
from omnigraph_spark.manifest.snapshot import load
from omnigraph_spark.read.plan import read_table
from omnigraph_spark.refs import branches, refs
from omnigraph_spark.storage.store import Storage
from tests.chaos import jobs, launcher, rows
from tests.chaos.lab import Case, Lab
from tests.chaos.launcher import Setup
from tests.chaos.ledger import ACKNOWLEDGED
from tests.chaos.scenarios.crash import KILL_POINTS, TABLES
from tests.format_checker import check_graph

WRITERS = 8


def kill_on_branch(lab: Lab) -> None:
    """Kill a writer of three tables at every step of the first and the second write on a branch."""
    asked: list[Callable[[], None]] = [
        partial(_kill_on_branch, lab, number, step, second)
        for number in range(lab.size(1, 25))
        for step in KILL_POINTS
        for second in (False, True)
    ]
    lab.each(asked, lambda trial: trial())


def _kill_on_branch(lab: Lab, number: int, step: str, second: bool) -> None:
    name = f"branch-{number}-{step}-{'second' if second else 'first'}"
    case = lab.case(name).make()
    storage = Storage.at(case.graph)
    branches.create_branch(storage, "dev", refs.named(storage, "main"))
    case.options["branch"] = "dev"
    if second:
        case.write(TABLES)
    main = load(storage)
    before = writes_of(storage, "dev")
    point = case.random.choice(KILL_POINTS[step])
    child = case.start(
        jobs.write_once, case.graph, TABLES, "append", case.options, faults={point: "kill"}
    )
    child.end()
    lab.expect(child.was_killed(), "fault", f"{name}: {point} did not kill")
    after = writes_of(storage, "dev")
    time.sleep(case.grace + 0.05)
    outcome = case.write(TABLES, writer="next")
    lab.expect(outcome == ACKNOWLEDGED, "O10", f"{name}: the next write was {outcome}")
    healed = writes_of(storage, "dev")
    dead = {token for token in after if token not in before}
    new = {token for token in healed if token not in before}
    lab.expect(len(dead) <= 1 and whole(after), "O3", f"{name}: {dict(after)}")
    lab.expect(new == dead | {"next.1"} and whole(healed), "O2", f"{name}: {dict(healed)}")
    if step in ("K1", "K2", "K3", "K4", "K5", "K6", "K7", "K8"):
        lab.expect(not dead, "O2", f"{name}: what was never published is there")
    lab.expect(load(storage) == main, "O8", f"{name}: main has moved")
    _check_sound(case, name)
    case.close()


def writes_of(storage: Storage, branch: str) -> dict[str, dict[str, int]]:
    """Return, per write, how many rows of each table a branch shows."""
    snapshot = load(storage, branch)
    found: dict[str, dict[str, int]] = {}
    for key in rows.THREE:
        for token, count in Counter(
            read_table(storage, snapshot, key)["write"].to_pylist()
        ).items():
            found.setdefault(token, {})[key] = count
    return found


def whole(writes: dict[str, dict[str, int]]) -> bool:
    """Return whether every write but the first shows all its rows in all its tables, once."""
    return all(found == TABLES for token, found in writes.items() if token != "maker.1")


def _check_sound(case: Case, name: str) -> None:
    """Demand a graph as the format has it, and one line of commits per branch."""
    for text in check_graph(case.graph):
        # The log of actors is one for all branches, and keeps those of a deleted branch's commits.
        if "no such commit" not in text:
            case.lab.report.add("O6", f"{name}: {text}")
    storage = Storage.at(case.graph)
    for branch in refs.list_branches(storage):
        line = commits.read_commits(storage, branch.name)
        parents = [one.parent_commit_id for one in line[1:]]
        case.lab.expect(
            parents == [one.graph_commit_id for one in line[:-1]],
            "O6",
            f"{name}: the lineage of {branch.name} is not a line",
        )


def disjoint_branches(lab: Lab) -> None:
    """8 processes write to 8 branches while another one makes, writes to and deletes branches."""
    case = lab.case("branches").make()
    storage = Storage.at(case.graph)
    names = [f"b/{number}" for number in range(WRITERS)]
    for name in names:
        branches.create_branch(storage, name, refs.named(storage, "main"))
    main = load(storage)
    times = lab.size(3, 10)
    barrier = launcher.barrier(WRITERS + 2)
    writers = [
        case.start(
            jobs.write_many,
            case.graph,
            TABLES,
            times,
            {**case.options, "branch": name},
            barrier=barrier,
            writer=name.replace("/", "x"),
        )
        for name in names
    ]
    comer = case.start(come_and_go, case.graph, times, case.options, barrier=barrier)
    barrier.wait(60)
    began = time.monotonic()
    done = [one for child in writers for one in child.end() or []]
    trouble = comer.end()
    good = sum(outcome == ACKNOWLEDGED for outcome, _ in done)
    errors = case.ledger().errors()
    lab.expect(good == WRITERS * times, "G4", f"{good} of {WRITERS * times} succeeded: {errors}")
    lab.expect(trouble == [], "G4", f"making and deleting branches failed: {trouble}")
    for name in names:
        found = writes_of(storage, name)
        expected = {"maker.1", *(f"{name.replace('/', 'x')}.{n + 1}" for n in range(times))}
        lab.expect(set(found) == expected and whole(found), "O3", f"{name}: {found}")
    lab.expect(load(storage) == main, "O8", "main has moved")
    left = sorted(one.name for one in refs.list_branches(storage))
    lab.expect(left == sorted(["main", *names]), "O8", f"branches left: {left}")
    _check_sound(case, "branches")
    lab.number(f"{WRITERS} processes x {times}: {time.monotonic() - began:.1f} s")
    case.close(trials=WRITERS * times)


def come_and_go(setup: Setup, graph: str, times: int, options: Any) -> list[str]:
    """Make a branch, write to it and delete it, several times; return what went wrong."""
    storage = Storage.at(graph)
    trouble: list[str] = []
    for number in range(times):
        name = f"t/{number}"
        try:
            branches.create_branch(storage, name, refs.named(storage, "main"))
            writer = jobs.Writer(setup, graph, **{**options, "branch": name})
            outcome = writer.write(TABLES)
            if outcome != ACKNOWLEDGED:
                trouble.append(f"the write to {name} was {outcome}")
            branches.delete_branch(storage, name, float(options["orphanGraceSeconds"]))
        except OmnigraphError as error:
            trouble.append(f"{name}: {error}")
    return trouble
