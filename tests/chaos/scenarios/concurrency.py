"""Many writers at once: one table, many tables, crossing pairs, counters, readers."""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping, Sequence

from tests.chaos import jobs, launcher, rows
from tests.chaos.lab import Case, Lab
from tests.chaos.launcher import Fault
from tests.chaos.ledger import ACKNOWLEDGED

_EIGHT = tuple(f"node:T{i}" for i in range(8))
_LATENCY_SECONDS = 0.1
_DEFAULT_GRACE_SECONDS = 10.0
_PAIRS = (
    (rows.PERSON, rows.COMPANY),
    (rows.COMPANY, rows.KNOWS),
    (rows.KNOWS, rows.PERSON),
)


def _together(
    case: Case,
    tables: Sequence[Mapping[str, int]],
    times: int,
    faults: Mapping[str, Fault] | None = None,
) -> tuple[float, list[tuple[str, float]]]:
    """Let one process per entry of `tables` write `times` times; return seconds and outcomes."""
    barrier = launcher.barrier(len(tables) + 1)
    children = [
        case.start(
            jobs.write_many, case.graph, mine, times, case.options, barrier=barrier, faults=faults
        )
        for mine in tables
    ]
    barrier.wait(60)
    began = time.monotonic()
    done = [one for child in children for one in child.end() or []]
    return time.monotonic() - began, done


def _succeeded(
    lab: Lab, what: str, outcomes: list[tuple[str, float]], asked: int, share: float
) -> None:
    good = sum(outcome == ACKNOWLEDGED for outcome, _ in outcomes)
    lab.expect(good >= share * asked, "G4", f"{what}: {good} of {asked} writes succeeded")


def _spread(outcomes: list[tuple[str, float]]) -> str:
    seconds = sorted(s for _, s in outcomes)
    return f"p50 {statistics.median(seconds):.2f} s, p99 {seconds[int(len(seconds) * 0.99)]:.2f} s"


def same_table(lab: Lab) -> None:
    """2, 4 and 8 processes append to one table."""
    for writers in (2, 4, 8, *((16,) if lab.large else ())):
        case = lab.case(f"same-{writers}").make()
        times = lab.size(max(2, 24 // writers), 10)
        each = {rows.PERSON: lab.size(10, 100)}
        seconds, outcomes = _together(case, [each] * writers, times)
        _succeeded(
            lab, f"{writers} writers", outcomes, writers * times, 0.99 if writers <= 4 else 0.95
        )
        lab.number(f"{writers} processes x {times}: {seconds:.1f} s, {_spread(outcomes)}")
        case.finish(trials=writers * times)


def disjoint_tables(lab: Lab) -> None:
    """8 processes append to 8 tables: nobody meets anybody."""
    case = lab.case("disjoint").make((*_EIGHT, *rows.THREE, rows.QUIET))
    times = lab.size(5, 10)
    seconds, outcomes = _together(case, [{key: 5} for key in _EIGHT], times)
    _succeeded(lab, "8 on 8 tables", outcomes, 8 * times, 1.0)
    lab.number(f"8 processes x {times}: {seconds:.1f} s, {_spread(outcomes)}")
    case.finish((*rows.THREE, *_EIGHT), trials=8 * times)


def new_table_race(lab: Lab) -> None:
    """4 processes create the same graph and the same tables at once."""
    for number in range(lab.size(4, 50)):
        case = lab.case(f"create-{number}")
        _, outcomes = _together(case, [dict.fromkeys(rows.THREE, 3)] * 4, 1)
        _succeeded(lab, "4 creators", outcomes, 4, 1.0)
        case.finish(trials=4)


def counters(lab: Lab) -> None:
    """4 processes add 1 to a counter by reading and overwriting it: no update is lost."""
    case = lab.case("counter").make((*rows.THREE, rows.QUIET))
    case.write({"node:Counter": 1}, "append", writer="zero")
    times = lab.size(6, 25)
    barrier = launcher.barrier(4)
    children = [
        case.start(jobs.count_up, case.graph, times, case.options, barrier=barrier)
        for _ in range(4)
    ]
    done = sum(child.end() for child in children)
    pin = case.pin("node:Counter")
    import lance

    table = lance.dataset(f"{case.graph}/{pin.location}", version=pin.version).to_table()
    (value,) = table["age"].to_pylist()
    lab.expect(
        value == done == 4 * times, "O1", f"{4 * times} updates, {done} done, counter {value}"
    )
    refused = [e for _, e in case.ledger().errors() if e["type"] != "ExpectedVersionMismatch"]
    lab.expect(not refused, "O9", f"a lost update was refused as {refused[:1]}")
    lab.number(f"{len(case.ledger().errors())} attempts refused on the way to {value}")
    case.finish(trials=4 * times)


def crossing_pairs(lab: Lab) -> None:
    """Writers of two of three tables each, in all three pairings at once."""
    case = lab.case("crossing").make()
    rounds = lab.size(8, 200)
    tables = [dict.fromkeys(_PAIRS[i % 3], 3) for i in range(lab.size(3, 6))]
    seconds, outcomes = _together(case, tables, rounds)
    _succeeded(lab, "crossing pairs", outcomes, rounds * len(tables), 0.95)
    slowest = max(s for _, s in outcomes)
    lab.expect(slowest <= 30, "G11", f"a write took {slowest:.0f} s")
    lab.number(f"{len(tables)} processes x {rounds}: {seconds:.1f} s, {_spread(outcomes)}")
    case.finish(trials=rounds * len(tables))


def readers(lab: Lab) -> None:
    """2 readers of two tables while 4 writers write equal rows to both: no torn read."""
    case = lab.case("readers").make()
    seconds = lab.size(8, 120)
    pair = {rows.PERSON: 3, rows.COMPANY: 3}
    watching = [
        case.start(jobs.read_pairs, case.graph, rows.PERSON, rows.COMPANY, float(seconds))
        for _ in range(2)
    ]
    while any(child.alive() for child in watching):
        writers = [case.start(jobs.write_many, case.graph, pair, 3, case.options) for _ in range(4)]
        for child in writers:
            child.end()
    reads = 0
    for child in watching:
        seen = child.end()
        reads += seen["reads"]
        lab.expect(seen["torn"] == 0, "O3", f"{seen['torn']} of {seen['reads']} reads were torn")
        lab.expect(seen["shrank"] == 0, "O1", f"{seen['shrank']} reads saw fewer rows than before")
    lab.number(f"{reads} reads")
    case.finish(trials=reads)


def _one_after_another(case: Case, tables: Sequence[Mapping[str, int]], times: int) -> float:
    """Return the seconds of the same writes without any rival, in one process after another."""
    began = time.monotonic()
    done = 0
    for mine in tables:
        outcomes = case.run(
            jobs.write_many, case.graph, mine, times, case.options, faults=_LATENCY, surely=False
        )
        done += len(outcomes)
    return time.monotonic() - began - 0.1 * len(tables)


_LATENCY: dict[str, Fault] = {
    "table.before_commit": f"stall:{_LATENCY_SECONDS}",
    "commit.before_publish": f"stall:{_LATENCY_SECONDS}",
}


def speed(lab: Lab) -> None:
    """With the default grace and 0.1 s before each commit and publish: how much do rivals cost?"""
    times = lab.size(4, 10)
    for name, tables, most in (
        ("one table", [{rows.PERSON: 10}] * 8, 4.0),
        ("crossing pairs", [dict.fromkeys(_PAIRS[i % 3], 10) for i in range(8)], 12.0),
    ):
        case = lab.case(f"alone-{name}".replace(" ", "-"), grace=_DEFAULT_GRACE_SECONDS).make()
        alone = _one_after_another(case, tables, times)
        case.close(0)
        case = lab.case(f"speed-{name}".replace(" ", "-"), grace=_DEFAULT_GRACE_SECONDS).make()
        seconds, outcomes = _together(case, tables, times, _LATENCY)
        _succeeded(lab, name, outcomes, len(tables) * times, 0.95)
        ratio = seconds / alone
        lab.number(
            f"8 processes x {times} on {name}: {seconds:.1f} s, one after another {alone:.1f} s,"
            f" ratio {ratio:.2f} (at most {most:g}), {_spread(outcomes)}"
        )
        lab.expect(ratio <= most, "speed", f"{name} took {ratio:.1f} times as long")
        case.finish(trials=len(tables) * times)
