"""A mix of everything for a while: writes, kills, rivals, readers; then look."""

from __future__ import annotations

import os
import random
import time
from pathlib import Path
from typing import Any

from omnigraph_spark.manifest.snapshot import load
from omnigraph_spark.storage.store import Storage
from tests.chaos import jobs, oracle, rows
from tests.chaos.lab import Case, Lab
from tests.chaos.launcher import Child, Setup, note

_SEGMENT_SECONDS = 8.0
_WRITERS = 4
# Rows of `__manifest` per write: a version row per table, and those of versions that a healing skips.
_MOST_ROWS_PER_PUBLISH = 12


def soak(lab: Lab) -> None:
    """4 writers and 2 readers at random, a kill every second; the oracle after each segment."""
    minutes = lab.minutes if lab.minutes is not None else lab.size(1, 120)
    case = lab.case("soak", grace=0.3).make()
    steady = case.start(steady_writer, case.graph, minutes * 60, case.options, writer="steady")
    end = time.monotonic() + minutes * 60
    segment = 0
    while time.monotonic() < end:
        segment += 1
        _segment(case, segment)
        case.check(every_version=segment % 8 == 0)
    Path(case.folder, "stop").touch()
    _steady(lab, steady.end())
    case.check_heads()
    _constant(lab, case)
    writes = len(case.ledger().writes)
    lab.number(f"{writes} writes, {lab.report.armed['kill.soak']} kills, {segment} segments")
    case.finish(trials=writes)


def _segment(case: Case, segment: int) -> None:
    lab = case.lab
    pause = Path(case.folder, "pause")
    end = time.monotonic() + _SEGMENT_SECONDS
    pause.unlink(missing_ok=True)
    started = 0

    def writer() -> Child:
        nonlocal started
        started += 1
        seed = lab.random.randrange(1 << 30)
        name = f"s{segment}-{started}"
        return case.start(
            random_writer, case.graph, end - time.monotonic(), seed, case.options, writer=name
        )

    writers = [writer() for _ in range(_WRITERS)]
    readers = [
        case.start(jobs.read_pairs, case.graph, rows.PERSON, rows.PERSON, _SEGMENT_SECONDS)
        for _ in range(2)
    ]
    while time.monotonic() < end - 0.5:
        time.sleep(lab.random.uniform(0.3, 1.0))
        victim = lab.random.randrange(_WRITERS)
        if writers[victim].kill():
            note(str(case.folder), "kill.soak")
            lab.report.armed["kill.soak"] += 1
        writers[victim].end()
        writers[victim] = writer()
    for child in writers:
        child.end()
    for child in readers:
        child.end()
    pause.touch()
    time.sleep(0.2)
    deadline = time.monotonic() + 30
    while not Path(case.folder, "paused").exists() and time.monotonic() < deadline:
        time.sleep(0.05)


def random_writer(setup: Setup, graph: str, seconds: float, seed: int, options: Any) -> int:
    """Append and overwrite random tables until the time is over."""
    chance = random.Random(seed)
    writer = jobs.Writer(setup, graph, **options)
    end = time.monotonic() + seconds
    done = 0
    while time.monotonic() < end:
        keys = chance.sample(rows.THREE, chance.randint(1, 3))
        mode = "overwrite" if chance.random() < 0.2 else "append"
        writer.write({key: chance.randint(1, 5) for key in keys}, mode)
        done += 1
    return done


def steady_writer(setup: Setup, graph: str, seconds: float, options: Any) -> dict[str, Any]:
    """Write all the time in one process, which must not grow; rests while the oracle looks."""
    import psutil

    writer = jobs.Writer(setup, graph, **options)
    folder = Path(setup.folder)
    me = psutil.Process()
    seen: list[tuple[int, int]] = []
    end = time.monotonic() + seconds + 60
    while not (folder / "stop").exists() and time.monotonic() < end:
        if (folder / "pause").exists():
            (folder / "paused").touch()
            time.sleep(0.05)
            continue
        (folder / "paused").unlink(missing_ok=True)
        writer.write({rows.COMPANY: 2})
        seen.append((me.memory_info().rss, len(os.listdir("/proc/self/fd"))))
    return {"writes": len(seen), "seen": seen}


def _steady(lab: Lab, steady: dict[str, Any]) -> None:
    seen = steady["seen"]
    third = max(1, len(seen) // 3)
    (first, _), (last, fds) = seen[third], seen[-1]
    lab.number(
        f"one process over {len(seen)} writes: {first >> 20} to {last >> 20} MB, {fds} open files"
    )
    # Small runs have not warmed up yet: their caches still fill.
    lab.expect(last <= first * (1.1 if lab.large else 1.5), "45", "the process keeps growing")
    lab.expect(fds <= seen[third][1] + 16, "45", f"open files grew from {seen[third][1]} to {fds}")


def _constant(lab: Lab, case: Case) -> None:
    graph = oracle.Graph(case.graph)
    versions = graph.versions()
    per_publish = len(graph.manifest_rows(versions[-1])) / len(versions)
    lab.number(f"{len(versions)} graph versions, {per_publish:.1f} rows of __manifest per version")
    lab.expect(per_publish <= _MOST_ROWS_PER_PUBLISH, "45", f"{per_publish:.1f} rows per publish")
    load(Storage.at(case.graph))
