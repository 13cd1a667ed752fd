"""Lies and doubts: commits that land and fail, fail and don't land, land late."""

from __future__ import annotations

import itertools
import json
import os
import pickle
import time
from pathlib import Path
from typing import Any

from omnigraph_spark import _faults
from omnigraph_spark.errors import OmnigraphError, RowLevelCasContention
from omnigraph_spark.history import commits
from omnigraph_spark.manifest import publisher
from omnigraph_spark.manifest.publisher import Publish, publish
from omnigraph_spark.manifest.rows import TombstoneRow
from omnigraph_spark.manifest.snapshot import load
from omnigraph_spark.storage import append_log, layout
from omnigraph_spark.storage.ids import new_ulid
from omnigraph_spark.storage.store import Storage
from omnigraph_spark.write.plan import WritePlan
from tests.chaos import jobs, oracle, rivals, rows
from tests.chaos.lab import Case, Lab
from tests.chaos.launcher import Setup
from tests.chaos.ledger import ACKNOWLEDGED, AMBIGUOUS, DROP, FAILED, Pen


def cells(lab: Lab) -> None:
    """16 cells: {table commit, publish} x {landed} x {rival on top} x {status check works}."""
    asked = [
        (number, mode, at, landed, rival, works)
        for number in range(lab.size(1, 50))
        for mode in ("append", "overwrite")
        for at, landed, rival, works in itertools.product(
            ("table", "publish"), (True, False), (True, False), (True, False)
        )
    ]
    lab.each(asked, lambda one: _cell(lab, *one))


def _cell(
    lab: Lab, number: int, mode: str, at: str, landed: bool, rival: bool, works: bool
) -> None:
    name = (
        f"{number}-{mode}-{at}-{'landed' if landed else 'lost'}"
        f"{'-rival' if rival else ''}-{'works' if works else 'dark'}"
    )
    case = lab.case(name).make()
    place = layout.MANIFEST if at == "publish" else layout.table_location(rows.PERSON)
    tables = {rows.PERSON: 4, rows.COMPANY: 3}
    unanswered = rivals.Unanswered(dataset=f"{case.graph}/{place}", landed=landed)
    above: rivals.Step = (
        rivals.Rival(setup=case.setup("rival"), graph=case.graph, tables={rows.PERSON: 2})
        if at == "publish"
        else rivals.Orphan(setup=case.setup("rival"), graph=case.graph)
    )
    # Which version the doubt is about is settled before the rival comes.
    doubt = _Doubt(unanswered, above if rival else None, None if works else rivals.StoreGone())
    point = f"{at}.{'landed' if landed else 'sending'}"
    if at == "table":
        doubt.skip = 1  # Company comes first, Person is the table in doubt
    outcome, missing = case.run(
        write_and_look,
        case.graph,
        tables,
        mode,
        case.options,
        faults={point: doubt},
        writer="victim",
    )
    lab.expect(outcome == _wanted(mode, at, landed, rival, works), "24", f"{name}: {outcome}")
    lab.expect(
        missing == 0 or (outcome == FAILED and at != "publish"),
        "24",
        f"{name}: {missing} staged files were deleted",
    )
    if outcome == AMBIGUOUS:
        told = dict(case.ledger().errors())["victim.1"]
        lab.expect(bool(told.get("publish_id")), "O9", f"{name}: no publish id: {told}")
    case.finish(heads=not (at == "table" and rival))


def _wanted(mode: str, at: str, landed: bool, rival: bool, works: bool) -> str:
    if not works:
        return AMBIGUOUS if at == "publish" else FAILED
    if mode == "overwrite" and at == "publish" and rival and not landed:
        return FAILED
    return ACKNOWLEDGED


class _Doubt(rivals.Step):
    """Tells the writer that nobody knows, after a rival had its turn."""

    def __init__(
        self, unanswered: rivals.Unanswered, rival: rivals.Step | None, gone: rivals.Step | None
    ) -> None:
        super().__init__()
        self.unanswered, self.rival, self.gone, self.skip = unanswered, rival, gone, 0

    def act(self) -> None:
        if self.skip:
            self.skip -= 1
            self.hits -= 1
            return
        try:
            self.unanswered()
        except OSError:
            if self.rival is not None:
                self.rival()
            if self.gone is not None:
                self.gone()
            raise


def write_and_look(
    setup: Setup, graph: str, tables: dict[str, int], mode: str, options: Any
) -> tuple[str, int]:
    """Do a write; return its outcome and how many of its staged files are gone."""
    writer = jobs.Writer(setup, graph, **options)
    token = writer.pen.next_token()
    plan = writer.plan(tables, mode)
    writer.pen.begin(token, plan.publish_id, mode, tables)
    staged = jobs.stage_rows(plan, token, tables)
    outcome = writer.attempt(token, lambda: jobs.commit_module.commit(plan, staged).graph_version)
    return outcome, _missing(plan, staged)


def _missing(plan: WritePlan, staged: list[Any]) -> int:
    paths = [
        f"{plan.storage.root}/{plan.targets[one.table_key].location}/data/{file['path']}"
        for one in staged
        for fragment in one.fragments
        for file in fragment["files"]
    ]
    return sum(not os.path.exists(path) for path in paths)


AFTER = ("publish.landed", "publish.after_merge", "commit.after_publish", "lineage.before_row")
"""Steps that come after the merge into `__manifest` has returned."""


def after_publish(lab: Lab) -> None:
    """The store fails once, at each step after the publish: no definite error with rows there."""
    asked = [(n, mode, at) for n in range(lab.size(1, 25)) for mode in MODES for at in AFTER]
    lab.each(asked, lambda one: _after_publish(lab, *one))


MODES = ("append", "overwrite")


def _after_publish(lab: Lab, number: int, mode: str, point: str) -> None:
    case = lab.case(f"after-{number}-{mode}-{point}").make()
    tables = {rows.PERSON: 3, rows.COMPANY: 2}
    outcome = case.write(tables, mode, faults={point: "raise@1"}, writer="victim")
    lab.expect(outcome == ACKNOWLEDGED, "24", f"{mode} at {point}: {outcome}")
    case.finish()


def clocks(lab: Lab) -> None:
    """Writers whose clocks are hours apart: the times of a branch's commits only grow."""
    case = lab.case("clocks").make()
    for hours in [lab.random.uniform(-48, 48) for _ in range(lab.size(4, 40))]:
        step = rivals.Clock(hours=hours)
        case.write({rows.PERSON: 1}, faults={"commit.entered": step})
    storage = Storage.at(case.graph)
    stored = append_log.read(storage, commits.COMMITS)
    assert stored is not None
    by_version = stored.sort_by("manifest_version")["created_at"].to_pylist()
    grows = all(one < next_ for one, next_ in itertools.pairwise(by_version))
    lab.expect(grows, "30", f"times of commits, by version: {by_version}")
    case.finish()


def maintained(lab: Lab) -> None:
    """A table is optimized between an overwrite's plan and its commit: the overwrite lands."""
    for point in ("commit.entered", "commit.record_written"):
        case = lab.case(f"maintained-{point}").make()
        for _ in range(2):
            case.write({rows.PERSON: 2})
        step = rivals.Optimizer(graph=case.graph)
        outcome = case.write({rows.PERSON: 3}, "overwrite", faults={point: step}, writer="victim")
        lab.expect(outcome == ACKNOWLEDGED, "26", f"an overwrite beside optimize: {outcome}")
        case.finish()


def late_arrival(lab: Lab) -> None:
    """A publish that was given up as unknown lands later: before or after others have healed."""
    asked = [(number, after) for number in range(lab.size(5, 50)) for after in (False, True)]
    lab.each(asked, lambda one: _late(lab, *one))


def _late(lab: Lab, number: int, after_others: bool) -> None:
    case = lab.case(f"late-{number}-{after_others}").make()
    tables = {rows.PERSON: 3, rows.KNOWS: 3}
    landed = case.run(write_late, case.graph, tables, case.options, after_others)
    lab.expect(
        landed is (not after_others), "26", f"after others: {after_others}, landed: {landed}"
    )
    case.finish()


def write_late(
    setup: Setup, graph: str, tables: dict[str, int], options: Any, after_others: bool
) -> bool:
    """Write, hold the publish back, be told that nobody knows, then let it through."""
    held: list[tuple[Any, Any]] = []
    real = publisher._merge

    def hold(manifest: Any, new_rows: Any) -> int:
        if not held:
            held.append((manifest, new_rows))
            rivals.StoreGone()()
            raise OSError(f"Commit result for version {manifest.version + 1} is unknown (injected)")
        return real(manifest, new_rows)

    module: Any = publisher
    module._merge = hold
    outcome = jobs.Writer(setup, graph, **options).write(tables)
    _faults.disarm()
    module._merge = real
    assert outcome == AMBIGUOUS, outcome
    if after_others:
        other = Setup(f"{setup.writer}other", setup.folder)
        time.sleep(float(options["orphanGraceSeconds"]) + 0.1)
        jobs.Writer(other, graph, **options).write(dict.fromkeys(rows.THREE, 1))
    try:
        real(*held[0])
    except (OSError, ValueError, RuntimeError):
        return False
    return True


# --- expectations, stale plans, budget -----------------------------------------------------------


def expectations(lab: Lab) -> None:
    """`expectedTableVersions` of a table that is only read: touched, untouched, unknown, dropped."""
    asked = [
        (name, expected, change, wanted, point)
        for name, expected, change, wanted in (
            ("touched", {rows.COMPANY: 1}, "write", FAILED),
            ("untouched", {rows.COMPANY: 1}, None, ACKNOWLEDGED),
            ("unknown", {"node:Later": 0}, None, ACKNOWLEDGED),
            ("unknown-made", {"node:Later": 0}, "make", FAILED),
            ("dropped", {rows.COMPANY: 1}, "drop", FAILED),
        )
        for point in ("commit.before_table", "publish.before_merge")
    ]
    lab.each(asked, lambda one: _expectation(lab, *one))


def _expectation(
    lab: Lab, name: str, expected: dict[str, int], change: str | None, wanted: str, point: str
) -> None:
    case = lab.case(f"expected-{name}-{point}").make()
    key = next(iter(expected))
    step: rivals.Step | None = None
    if change == "drop":
        step = _Drop(case.setup("dropper"), case.graph, key)
    elif change is not None:
        step = rivals.Rival(setup=case.setup("rival"), graph=case.graph, tables={key: 2})
    outcome = case.write(
        {rows.PERSON: 2},
        faults={} if step is None else {point: step},
        options={"expectedTableVersions": json.dumps(expected)},
        writer="victim",
    )
    lab.expect(outcome == wanted, "18", f"{name} at {point}: {outcome}")
    if wanted == FAILED:
        _told_versions(lab, case, key, name, point)
    case.finish((rows.KNOWS, rows.PERSON) if name == "dropped" else rows.THREE)


def _told_versions(lab: Lab, case: Case, key: str, name: str, point: str) -> None:
    told = dict(case.ledger().errors()).get("victim.1", {})
    actual = {"touched": 2, "unknown-made": 1, "dropped": 0}[name]
    expected = 0 if name == "unknown-made" else 1
    right = told.get("type") == "ExpectedVersionMismatch" and (
        told.get("table_key"),
        told.get("expected"),
        told.get("actual"),
    ) == (key, expected, actual)
    lab.expect(right, "18", f"{name} at {point}: {told}")


class _Drop(rivals.Step):
    """Publishes a tombstone of a table."""

    def __init__(self, setup: Setup, graph: str, key: str) -> None:
        super().__init__()
        self.setup, self.graph, self.key = setup, graph, key

    def act(self) -> None:
        storage = Storage.at(self.graph)
        version = load(storage).version(self.key)
        pen = Pen(self.setup.ledger, self.setup.writer)
        pen.begin("drop", oracle.drop_id(self.key, version), DROP, {self.key: 0})
        publish_id = new_ulid()
        done = publish(
            storage,
            Publish("main", publish_id, (TombstoneRow(self.key, version),), {self.key: version}),
        )
        commits.record_publish(storage, "main", publish_id, done.graph_version)
        pen.acknowledge("drop", done.graph_version, 0)


def stale_plans(lab: Lab) -> None:
    """A rival publishes between plan and commit: an overwrite is refused, an append lands."""
    asked = [
        (mode, wanted, tables)
        for mode, wanted in (("overwrite", FAILED), ("append", ACKNOWLEDGED))
        for tables in ({rows.PERSON: 3}, dict.fromkeys(rows.THREE, 3))
    ]
    lab.each(asked, lambda one: _stale_plan(lab, *one))


def _stale_plan(lab: Lab, mode: str, wanted: str, tables: dict[str, int]) -> None:
    case = lab.case(f"stale-{mode}-{len(tables)}").make()
    plan, message = str(case.folder / "plan"), str(case.folder / "message")
    token = case.run(
        jobs.plan_to_file, case.graph, tables, mode, plan, case.options, writer="driver"
    )
    case.write({rows.PERSON: 2}, writer="rival")
    case.run(jobs.stage_task, plan, token, tables, 0, message, writer="driver")
    outcome = case.run(jobs.commit_files, plan, token, [message], writer="driver")
    lab.expect(outcome == wanted, "23", f"{mode}: {outcome}")
    if wanted == FAILED:
        told = dict(case.ledger().errors())[token]
        right = (told.get("expected"), told.get("actual")) == (1, 2)
        lab.expect(right, "23", f"{mode}: both versions should be told: {told}")
    case.finish()


def budget(lab: Lab) -> None:
    """A rival wins every publish: 6 attempts, then a typed error; after 5 it may still win."""
    case = lab.case("budget-publisher").make()
    for wins, retries, wanted in ((99, 5, (6, "RowLevelCasContention")), (5, 5, (6, "published"))):
        rival = rivals.GuardRival(times=wins, graph=case.graph)
        seen = case.run(publish_alone, case.graph, retries, faults={"publish.before_merge": rival})
        lab.expect(seen[:2] == list(wanted), "22", f"{wins} rivals: {seen}")
        lab.expect(seen[2] <= 30, "22", f"{wins} rivals took {seen[2]:.0f} s")
    case.close(2)
    for name, mode, wins, timeout, wanted in (
        ("append-again", "append", 8, 60, ACKNOWLEDGED),
        ("append-timeout", "append", 10_000, 2, FAILED),
        ("overwrite", "overwrite", 10_000, 60, FAILED),
    ):
        case = lab.case(f"budget-{name}").make()
        rival = rivals.GuardRival(times=wins, graph=case.graph)
        outcome = case.write(
            {rows.PERSON: 3},
            mode,
            faults={"publish.before_merge": rival},
            writer="victim",
            options={"commitTimeoutSeconds": timeout},
        )
        lab.expect(outcome == wanted, "22", f"{name}: {outcome}")
        case.finish()


def publish_alone(setup: Setup, graph: str, retries: int) -> list[Any]:
    """Publish a table's own version again, at the publisher; return attempts, outcome, seconds."""
    storage = Storage.at(graph)
    entry = load(storage).entry(rows.PERSON)
    attempts = [0]
    real = publisher._merge

    def counted(manifest: Any, new_rows: Any) -> int:
        attempts[0] += 1
        return real(manifest, new_rows)

    module: Any = publisher
    module._merge = counted
    hook = _faults._hooks["publish.before_merge"]

    def uncounted() -> None:
        module._merge = real
        try:
            hook()
        finally:
            module._merge = counted

    _faults.arm("publish.before_merge", uncounted)
    from omnigraph_spark.manifest.rows import VersionRow

    row = VersionRow(rows.PERSON, entry.table_version, None, entry.row_count, entry.metadata)
    began = time.monotonic()
    try:
        publish(
            storage,
            Publish(
                "main", new_ulid(), (row,), {rows.PERSON: entry.table_version}, retries=retries
            ),
        )
        outcome = "published"
    except RowLevelCasContention as error:
        outcome = type(error).__name__
    except OmnigraphError as error:
        outcome = str(error)
    return [attempts[0], outcome, time.monotonic() - began]


# --- commit twice, abort -------------------------------------------------------------------------


def twice_and_abort(lab: Lab) -> None:
    """`commit` again after it worked, `abort` after every kind of outcome: nothing is lost."""
    asked = ("commit-commit", "commit-abort", "unknown-abort", "failed-abort", "task-abort")
    lab.each(asked, lambda name: _twice(lab, name))


def _twice(lab: Lab, name: str) -> None:
    tables = dict.fromkeys(rows.THREE, 3)
    case = lab.case(f"twice-{name}").make()
    plan, message = str(case.folder / "plan"), str(case.folder / "message")
    token = case.run(
        jobs.plan_to_file, case.graph, tables, "append", plan, case.options, writer="driver"
    )
    case.run(jobs.stage_task, plan, token, tables, 0, message, writer="driver")
    armed: dict[str, Any] = {}
    if name == "unknown-abort":
        armed = {
            "publish.landed": _Doubt(
                rivals.Unanswered(dataset=f"{case.graph}/__manifest"), None, rivals.StoreGone()
            )
        }
    if name == "failed-abort":
        armed = {"commit.before_publish": "raise"}
    if name != "task-abort":
        first = case.run(jobs.commit_files, plan, token, [message], writer="driver", faults=armed)
        wanted = {"unknown-abort": AMBIGUOUS, "failed-abort": FAILED}.get(name, ACKNOWLEDGED)
        lab.expect(first == wanted, "29", f"{name}: {first}")
    if name == "commit-commit":
        again = case.run(jobs.commit_files, plan, token, [message], writer="driver")
        lab.expect(again == ACKNOWLEDGED, "29", f"the second commit {again}")
    else:
        case.run(jobs.abort_files, plan, [message], name != "task-abort", writer="driver")
    loaded: WritePlan = pickle.loads(Path(plan).read_bytes())
    missing = _missing(loaded, jobs.staged_of([message]))
    lab.expect((missing > 0) == (name == "task-abort"), "29", f"{name}: {missing} files gone")
    case.finish()
