"""Crashes: a writer or a healer dies at a known step, or at any moment."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial

from tests.chaos import jobs, rows
from tests.chaos.lab import Case, Lab
from tests.chaos.launcher import note
from tests.chaos.ledger import ACKNOWLEDGED

KILL_POINTS: dict[str, tuple[str, ...]] = {
    "K1": ("stage.before_first_file",),
    "K2": ("stage.file_half_written",),
    "K3": ("stage.done", "commit.entered"),
    "K4": ("commit.record_written",),
    "K5": ("table.landed", "commit.table_1"),
    "K6": ("commit.table_2",),
    "K7": ("commit.table_3", "commit.tables_done"),
    "K8": ("commit.before_publish", "publish.before_merge"),
    "K9": ("publish.sending", "publish.landed"),
    "K10": ("commit.after_publish", "lineage.before_row"),
    "K11": ("lineage.after_actor", "lineage.after_row"),
    "K12": ("commit.before_record_delete",),
}
"""The steps K1 to K12 and the fault points that stand for them.

The actor row goes before the commit row here, so K11 is "actor row written, commit row not" and
"both written".
"""
TABLES = dict.fromkeys(rows.THREE, 4)


def kill_matrix(lab: Lab) -> None:
    """Kill a writer of three tables at every step: append, overwrite, and the tables' creation."""
    asked: list[Callable[[], None]] = []
    for number in range(lab.size(1, 34)):
        for mode in ("append", "overwrite"):
            asked.append(partial(_kill_at_all, lab, number, mode))
        for step in KILL_POINTS:
            asked.append(partial(_kill_creation, lab, number, step))
    lab.each(asked, lambda trial: trial())


def _kill_at_all(lab: Lab, number: int, mode: str) -> None:
    case = lab.case(f"matrix-{number}-{mode}").make()
    for step, points in KILL_POINTS.items():
        _kill_at(case, step, case.random.choice(points), mode)
    case.finish(trials=0)


def _kill_creation(lab: Lab, number: int, step: str) -> None:
    case = lab.case(f"matrix-{number}-create-{step}").make((rows.QUIET,))
    _kill_at(case, step, case.random.choice(KILL_POINTS[step]), "append")
    case.finish(trials=0)


def kill_steps(lab: Lab, steps: Sequence[str]) -> None:
    """Kill a writer of three tables at each point of some of the steps."""
    case = lab.case("steps").make()
    for step in steps:
        for point in KILL_POINTS[step]:
            _kill_at(case, step, point, "append")
    case.finish()


def _kill_at(case: Case, step: str, point: str, mode: str) -> None:
    lab = case.lab
    case.label = f"{step} {point} {mode}"
    action = "kill"
    if point == "publish.sending":
        action = f"kill_after:{case.random.uniform(0, 0.004):.5f}"
    child = case.start(
        jobs.write_once, case.graph, TABLES, mode, case.options, faults={point: action}
    )
    child.end()
    lab.expect(child.was_killed(), "fault", f"{step}: {point} did not kill")
    lab.report.trials += 1
    case.check_heads()
    case.look_at_next_write(rows.THREE)
    case.write(TABLES, mode)
    case.check()


def kill_random(lab: Lab) -> None:
    """Kill a writer of three tables at a random moment of its write."""
    case = lab.case("random").make()
    trials = lab.size(50, 1000)
    for number in range(trials):
        mode = lab.random.choice(("append", "append", "overwrite"))
        child = (
            case.start(jobs.write_many, case.graph, TABLES, 3, case.options)
            if (mode == "append")
            else case.start(jobs.write_once, case.graph, TABLES, mode, case.options)
        )
        time.sleep(lab.random.uniform(0.02, 0.45))
        if child.kill():
            note(str(case.folder), "kill.random")
            lab.report.armed["kill.random"] += 1
        child.end()
        if number % 10 == 9:
            # A lineage row that a dead writer left out is the next writer's to fill in.
            case.look_at_next_write(rows.THREE)
            case.check()
    case.finish(trials=trials)


HEALER_STEPS = (
    "heal.before_restore",
    "table.before_restore",
    "table.after_restore",
    "heal.before_publish",
    "heal.after_publish",
    "heal.before_record_delete",
)


def kill_healer(lab: Lab) -> None:
    """Kill the healer of a dead writer after each of its steps, up to 5 times in a row."""
    asked = [
        (step, deaths)
        for step in HEALER_STEPS
        for deaths in lab.random.sample(range(1, 6), lab.size(2, 5))
    ] * lab.size(1, 10)
    numbered = [(number, *one) for number, one in enumerate(asked)]
    lab.each(numbered, lambda one: _kill_healers(lab, *one))


def _kill_healers(lab: Lab, number: int, step: str, deaths: int) -> None:
    case = lab.case(f"healer-{number}-{step}-{deaths}").make()
    write = (jobs.write_once, case.graph, TABLES, "append", case.options)
    case.start(*write, faults={"commit.table_3": "kill"}).end()
    time.sleep(case.grace + 0.05)
    heads = {key: _head(case, key) for key in rows.THREE}
    dead = 0
    for _ in range(deaths):
        child = case.start(*write, faults={step: "kill"}, surely=False)
        child.end()
        dead += child.was_killed()
        time.sleep(case.grace + 0.05)
    # A step that is done isn't repeated, so fewer may die than were meant to.
    lab.expect(dead >= 1, "fault", f"{step}: no healer died")
    case.look_at_next_write(rows.THREE)
    acknowledged = len(case.ledger().of(ACKNOWLEDGED)) - 1
    for key, head in heads.items():
        # One per write and one for the healing itself are no extra versions.
        extra = _head(case, key) - head - acknowledged - 1
        lab.expect(extra <= dead, "O10", f"{step}: {extra} versions for {dead} deaths")
    case.finish()


def _head(case: Case, key: str) -> int:
    import lance

    return int(lance.dataset(f"{case.graph}/{case.pin(key).location}").version)
