"""Real processes that write at once: started together, counted afterwards."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from omnigraph_spark.errors import OmnigraphError
from omnigraph_spark.storage.store import Storage

_CONTEXT = multiprocessing.get_context("spawn")
_SECONDS = 180


@dataclass
class Outcome:
    """What one process did: rows that were acknowledged, errors by code, what else it returned."""

    acknowledged: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    result: Any = None


Work = Callable[[Storage, int, Outcome], None]


def _run(work: Work, root: str, number: int, barrier: Any, queue: Any) -> None:
    outcome = Outcome()
    barrier.wait(_SECONDS)
    try:
        work(Storage.at(root), number, outcome)
    except OmnigraphError as error:
        outcome.errors.append(str(error))
    queue.put((number, outcome))


def at_once(root: str, works: Sequence[Work]) -> list[Outcome]:
    """Run functions (of a module: they are pickled) in a process each, from one start."""
    barrier, queue = _CONTEXT.Barrier(len(works)), _CONTEXT.Queue()
    running = [
        _CONTEXT.Process(target=_run, args=(work, root, number, barrier, queue), daemon=True)
        for number, work in enumerate(works)
    ]
    for process in running:
        process.start()
    end = time.monotonic() + _SECONDS
    found = dict(queue.get(timeout=max(1.0, end - time.monotonic())) for _ in works)
    for process in running:
        process.join(10)
    return [found[number] for number in range(len(works))]
