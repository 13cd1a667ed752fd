"""Real, separate processes that drive the commit path, and the faults that were delivered in them.

A process is forked from a server that has imported everything and run nothing (a tenth of a second
instead of one); it shares no memory with any other. Faults are armed in the child before it starts;
each one that fires leaves a line in the faults log, so that a scenario can show that it was delivered.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
import time
import traceback
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any

from tests.chaos import oracle

_CONTEXT = multiprocessing.get_context("forkserver")
FAULTS_LOG = "OMNIGRAPH_SPARK_FAULTS_LOG"
STUCK_SECONDS = 240.0

Fault = str | Callable[[], None]


@dataclass(frozen=True)
class Setup:
    """What a child needs before it runs its function."""

    writer: str
    folder: str
    faults: Mapping[str, Fault] = field(default_factory=dict)
    mutation: str | None = None
    barrier: Barrier | None = None

    @property
    def ledger(self) -> str:
        return f"{self.folder}/ledger"

    @property
    def faults_log(self) -> str:
        return f"{self.folder}/faults.log"


class Child:
    """One process: wait for it, kill it, ask what it returned or how it died."""

    def __init__(self, setup: Setup, function: Callable[..., Any], args: tuple[Any, ...]) -> None:
        self.name = setup.writer
        self._receive, send = _CONTEXT.Pipe(duplex=False)
        self._process = _CONTEXT.Process(target=_run, args=(send, setup, function, args))
        self._process.start()
        send.close()
        self.began = time.monotonic()

    @property
    def pid(self) -> int:
        assert self._process.pid is not None
        return self._process.pid

    def alive(self) -> bool:
        return self._process.is_alive()

    def answered(self) -> bool:
        """Return whether the function has returned."""
        return self._receive.poll(0)

    def kill(self) -> bool:
        """Kill it now; return whether it was still running."""
        running = self.alive()
        if running:
            os.kill(self.pid, signal.SIGKILL)
        return running

    def end(self, timeout: float = STUCK_SECONDS) -> Any:
        """Wait for the end and return what the function returned, None where it was killed.

        Raises:
            RuntimeError: the function raised, or the process didn't end in time and was killed.
        """
        answer: Any = None
        try:
            if self._receive.poll(timeout):
                answer = self._receive.recv()
            elif self.alive():
                self.kill()
                raise StuckError(f"{self.name} did not end in {timeout:.0f} s")
        except EOFError:
            answer = None
        self._process.join(10)
        self._receive.close()
        if isinstance(answer, _Raised):
            raise RuntimeError(f"{self.name}: {answer.text}")
        return answer

    def was_killed(self) -> bool:
        """Tell, after `end`, whether SIGKILL ended it."""
        return self._process.exitcode == -signal.SIGKILL


class StuckError(RuntimeError):
    """A process did not end in its time."""


@dataclass
class _Raised:
    text: str


def start(setup: Setup, function: Callable[..., Any], *args: Any) -> Child:
    """Start `function(setup, *args)` in a process of its own; both must be picklable."""
    _CONTEXT.set_forkserver_preload(["tests.chaos.preload"])
    return Child(setup, function, args)


def barrier(parties: int) -> Barrier:
    """Return a barrier that children wait at before they run."""
    return _CONTEXT.Barrier(parties)


def _run(
    send: Connection, setup: Setup, function: Callable[..., Any], args: tuple[Any, ...]
) -> None:
    from omnigraph_spark import _faults

    if os.environ.get("CHAOS_LOG"):
        logging.basicConfig(
            filename=f"{setup.folder}/log.txt",
            level=logging.INFO,
            format=f"%(asctime)s.%(msecs)03d {setup.writer} %(message)s",
        )
    os.environ[FAULTS_LOG] = setup.faults_log
    os.environ["AWS_SECRET_ACCESS_KEY"] = oracle.SECRET
    for point, action in setup.faults.items():
        _faults.arm(point, action)
    if setup.mutation is not None:
        from tests.chaos import mutations

        mutations.apply(setup.mutation)
    answer: Any
    try:
        if setup.barrier is not None:
            setup.barrier.wait(60)
        answer = function(setup, *args)
    except BaseException:
        answer = _Raised(traceback.format_exc())
    send.send(answer)
    send.close()


def delivered(folder: str | Path) -> Counter[str]:
    """Return how often each fault fired in the processes of a scenario."""
    path = Path(folder) / "faults.log"
    if not path.exists():
        return Counter()
    return Counter(line.split()[0] for line in path.read_text().splitlines() if line.strip())


def note(folder: str, name: str) -> None:
    """Note a fault that a scenario delivered by other means than a fault point."""
    with open(f"{folder}/faults.log", "a", encoding="utf-8") as file:
        file.write(f"{name} {os.getpid()}\n")
