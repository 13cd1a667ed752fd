"""A stream from graph to graph whose driver is killed at every step: each row arrives once.

The driver is a process of its own that keeps a checkpoint as Spark does: where each batch ends,
before it is run, and which batches are done. It is killed at the steps of a write, or raises after
its publish, and is started again, sometimes without the last file of the checkpoint. What a real
Spark does with it: tests/spark/test_streams.py.

`OMNIGRAPH_SPARK_RESTARTS` says how many restarts (24; where it is given, also half of them on S3, at
least one per step), `OMNIGRAPH_SEED` repeats a run; both are printed.
"""

from __future__ import annotations

import json
import os
import random
import re
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from omnigraph_spark import _faults
from omnigraph_spark.history import commits
from omnigraph_spark.refs.changes import Span
from omnigraph_spark.storage.store import Storage
from tests.chaos import launcher
from tests.chaos.launcher import Setup
from tests.chaos.scenarios.crash import KILL_POINTS
from tests.format_checker import check_graph
from tests.support.feeds import read_feed
from tests.support.stores import Store
from tests.support.streams import Sink, Stream
from tests.support.writes import ALL, GRACE, write

pytestmark = pytest.mark.long

RESTARTS = int(os.environ.get("OMNIGRAPH_SPARK_RESTARTS", "24"))
SEED = int(os.environ.get("OMNIGRAPH_SEED", str(random.randrange(1 << 32))))
BATCHES = 20
# What a process that is killed in a put leaves of it on a local disk; no listing of a store shows it.
_HALF_PUT = re.compile(r"^__recovery/\S+\.json#\d+: left over$")
FIRST = "3"  # the version of a new graph's first write
LOST = "the sink fails after its publish"
ASKED = "the driver dies between two batches, and the checkpoint loses its last commit"
FAULTS: Mapping[str, Sequence[tuple[str, str]]] = {
    **{step: [(point, "kill") for point in points] for step, points in KILL_POINTS.items()},
    LOST: [("stream.committed", "raise")],
    ASKED: [("stream.offset", "kill")],
    "the driver dies in the plan of a batch": [("stream.planned", "kill")],
}
PUBLISHED = {
    *KILL_POINTS["K9"],
    *KILL_POINTS["K10"],
    *KILL_POINTS["K11"],
    *KILL_POINTS["K12"],
    FAULTS[LOST][0][0],
}
"""Where a driver dies whose batch may be published: the next one dies in another batch."""


@pytest.mark.timeout(0)
def test_each_row_arrives_once_wherever_the_driver_of_a_stream_dies(
    store: Store, tmp_path: Path
) -> None:
    if store.kind == "s3" and "OMNIGRAPH_SPARK_RESTARTS" not in os.environ:
        pytest.skip("minutes long: OMNIGRAPH_SPARK_RESTARTS asks for it")
    restarts = RESTARTS if store.kind == "local" else max(RESTARTS // 2, len(FAULTS))
    print(f"OMNIGRAPH_SPARK_RESTARTS={restarts} OMNIGRAPH_SEED={SEED}")  # noqa: T201
    choice = random.Random(SEED)
    steps: list[str] = []
    while len(steps) < restarts:
        more = [*FAULTS]
        choice.shuffle(more)
        steps += more
    for number, first in enumerate(range(0, restarts, 24)):
        folder = tmp_path / f"query{number}"
        folder.mkdir()
        source, copy = (store.storage(f"{name}{number}") for name in ("source", "copy"))
        for batch in range(BATCHES):
            write(source, rows_of(batch))
        replay(choice, folder, source, copy, steps[first : min(first + 24, restarts)])
        assert told(copy) == told(source), f"OMNIGRAPH_SEED={SEED}"
        if store.kind == "local":
            # Of a driver that died after the last publish a record stays until the next write.
            time.sleep(2 * float(GRACE))
            write(copy, rows_of(BATCHES))
            found = [one for one in check_graph(copy.root) if not _HALF_PUT.search(one)]
            assert found == []


def rows_of(batch: int) -> dict[str, list[str]]:
    """Return what a commit of the source has: three tables, so that a write has all its steps."""
    names = [f"{batch}.{number}" for number in range(1 + batch % 3)]
    return dict.fromkeys(ALL, names)


def replay(
    choice: random.Random, folder: Path, source: Storage, copy: Storage, steps: list[str]
) -> None:
    """Run a query whose driver dies at each of some steps, and then to its end."""
    deaths = [choice.choice(FAULTS[step]) for step in steps]
    # Many drivers do a batch before the one that they die in; the last one needs a batch, too.
    before = BATCHES - 1 - sum(point in PUBLISHED for point, _ in deaths)
    at_once = {*choice.sample(range(len(steps)), max(len(steps) - before, 0))}
    for number, (step, (point, action)) in enumerate(zip(steps, deaths, strict=True)):
        setup = Setup(f"driver{number}", str(folder))
        after = 0 if number in at_once else 1
        child = launcher.start(setup, drive, source, copy, {point: action}, after)
        if action == "kill":
            child.end()
            assert child.was_killed(), f"{number} {step} {point} OMNIGRAPH_SEED={SEED}"
        else:
            with pytest.raises(RuntimeError, match="Injected fault at"):
                child.end()
        done = logged(folder, "commits")
        if done and done[-1] == logged(folder, "offsets")[-1]:
            path_of(folder, "commits", done[-1]).unlink()
    launcher.start(Setup("last", str(folder)), drive, source, copy, {}, 0).end()
    assert logged(folder, "offsets") == [*range(BATCHES)]
    assert logged(folder, "commits")[-1] == BATCHES - 1
    assert launcher.delivered(folder).total() == len(steps)


def drive(
    setup: Setup, source: Storage, copy: Storage, faults: Mapping[str, str], after: int
) -> None:
    """Run a query from its checkpoint to the end of the source; faults count from a batch on."""
    folder = Path(setup.folder)
    stream = Stream(source, startingVersion=FIRST, maxCommitsPerTrigger="1", **given(source))
    sink = Sink(copy, stream.schema, **given(copy))
    planned, done = logged(folder, "offsets"), logged(folder, "commits")
    number = planned[-1] if {*planned[-1:]} - {*done} else len(planned)
    while True:
        for point, action in faults.items() if after == 0 else ():
            _faults.arm(point, action)
        after -= 1
        if number not in planned:
            if number:
                stream.offset = ends_of(folder, number - 1)[1]
            start, end = stream.plan()
            if start == end:
                return
            put(folder, "offsets", number, f"{json.dumps(start)}\n{json.dumps(end)}")
        rows = stream.read(*ends_of(folder, number))
        half = len(rows) // 2
        sink.batch(number, rows[:half], rows[half:])
        put(folder, "commits", number, "{}")
        number += 1


def ends_of(folder: Path, number: int) -> list[dict[str, Any]]:
    """Return where a batch begins and ends, as the checkpoint has it."""
    lines = path_of(folder, "offsets", number).read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


def given(storage: Storage) -> dict[str, str]:
    """Return the options that reach a store."""
    return {f"storage.{name}": value for name, value in storage.options.items()}


def path_of(folder: Path, log: str, number: int) -> Path:
    return folder / log / str(number)


def put(folder: Path, log: str, number: int, text: str) -> None:
    path = path_of(folder, log, number)
    path.parent.mkdir(exist_ok=True)
    path.with_suffix(".tmp").write_text(text, encoding="utf-8")
    path.with_suffix(".tmp").rename(path)


def logged(folder: Path, log: str) -> list[int]:
    """Return the batches that the checkpoint has a file of."""
    return sorted(int(one.name) for one in (folder / log).glob("*") if not one.suffix)


def told(graph: Storage) -> list[list[tuple[str, str]]]:
    """Return the rows that each publish of a graph added, doubles included; it did nothing else."""
    line = commits.read_commits(graph)
    found: list[list[tuple[str, str]]] = []
    for commit in line:
        version = commit.manifest_version
        rows = read_feed(graph, Span("main", version, version))
        assert {row["_change_type"] for row in rows} <= {"insert"}
        if rows:
            found.append(sorted((row["_table"], row["id"]) for row in rows))
    return found
