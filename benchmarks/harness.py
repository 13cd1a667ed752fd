"""Run cases side by side, round after round, and report medians and ratios."""

from __future__ import annotations

import json
import platform
import random
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

MIB = 1 << 20


@dataclass(frozen=True)
class Peer:
    """One way to do a case's work; `run(round)` does it once, after an untimed `prepare(round)`.

    `goal`: the first peer of the case is to take at most so many times what this one takes.
    """

    name: str
    run: Callable[[int], object]
    prepare: Callable[[int], object] | None = None
    goal: float | None = None


@dataclass(frozen=True)
class Case:
    """The same work done by several peers; ratios are ours over the others'."""

    name: str
    rows: int
    peers: tuple[Peer, ...]
    most_rounds: int | None = None


@dataclass
class Result:
    """Seconds per round, those of processors too, and the largest worker in MiB, per peer."""

    case: Case
    seconds: dict[str, list[float]] = field(default_factory=dict)
    processor_seconds: dict[str, list[float]] = field(default_factory=dict)
    worker_mib: dict[str, float] = field(default_factory=dict)

    def median(self, peer: str) -> float:
        """Return a peer's median in seconds."""
        return statistics.median(self.seconds[peer])

    def processors(self, peer: str) -> float:
        """Return a peer's median in seconds of processors, Spark's and its workers' together."""
        return statistics.median(self.processor_seconds[peer])


def measure(case: Case, rounds: int) -> Result:
    """Run every peer once to warm up, then `rounds` times, the peers taking turns.

    In another order each round, the same in each run: who comes after a slow peer finds its caches
    cold, and who comes after its like finds them warm.
    """
    result = Result(case)
    for number in range(min(rounds, case.most_rounds or rounds) + 1):
        for peer in random.Random(number).sample(case.peers, len(case.peers)):
            if peer.prepare is not None:
                peer.prepare(number)
            with largest_worker() as seen:
                start, used = time.perf_counter(), _processor_seconds()
                peer.run(number)
                took = time.perf_counter() - start
                used = _processor_seconds() - used
            if number > 0:
                result.seconds.setdefault(peer.name, []).append(took)
                result.processor_seconds.setdefault(peer.name, []).append(used)
                largest = max(result.worker_mib.get(peer.name, 0.0), seen[0] / MIB)
                result.worker_mib[peer.name] = largest
    return result


def _processor_seconds() -> float:
    """Return what this process and all below it have used; what ended counts with its parent."""
    me = psutil.Process()
    total = 0.0
    for one in (me, *me.children(recursive=True)):
        try:
            total += sum(one.cpu_times()[:4])
        except psutil.Error:
            continue
    return total


@contextmanager
def largest_worker(kind: str = "pyspark", interval: float = 0.25) -> Iterator[list[int]]:
    """Watch Spark's Python processes; the list's element is the largest resident size, in bytes.

    To look at them takes a few ms of this process's time, which what is shorter is spared.

    Those count whose command line has `kind` (`pyspark.worker`: the workers of tasks).

    Only workers that use the processor meanwhile count: idle ones of earlier runs live on.
    """
    seen = [0]
    first_cpu: dict[int, float] = {}
    stop = threading.Event()

    def watch() -> None:
        me = psutil.Process()
        while not stop.wait(interval):
            for child in me.children(recursive=True):
                try:
                    if "python" not in child.name() or kind not in " ".join(child.cmdline()):
                        continue
                    cpu = sum(child.cpu_times()[:2])
                    if cpu > first_cpu.setdefault(child.pid, cpu) + 0.05:
                        seen[0] = max(seen[0], child.memory_info().rss)
                except psutil.Error:
                    continue

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield seen
    finally:
        stop.set()
        watcher.join()


def print_result(result: Result) -> None:
    """Print one case: a line per peer, with how much faster or slower ours is."""
    ours = result.median(result.case.peers[0].name)
    print(f"\n{result.case.name} ({result.case.rows:,} rows)")
    print(
        f"  {'':24}{'median':>10}{'min':>10}{'max':>10}{'ours/this':>12}{'goal':>15}"
        f"{'processors':>12}{'worker':>12}"
    )
    for peer in result.case.peers:
        seconds = result.seconds[peer.name]
        size = result.worker_mib[peer.name]
        median = result.median(peer.name)
        print(
            f"  {peer.name:24}{median:9.3f}s{min(seconds):9.3f}s{max(seconds):9.3f}s"
            f"{ours / median:11.2f}x{_goal(ours / median, peer.goal):>15}"
            f"{result.processors(peer.name):11.2f}s" + (f"{size:8.0f} MiB" if size else "")
        )


def _goal(ratio: float, goal: float | None) -> str:
    if goal is None:
        return ""
    return f"{goal:g}x {'met' if ratio <= goal else 'MISSED'}"


def write_json(path: Path, results: list[Result], versions: dict[str, str]) -> None:
    """Write all figures to a file."""
    report: dict[str, Any] = {
        "versions": versions,
        "machine": {"cpus": psutil.cpu_count(), "platform": platform.platform()},
        "cases": [
            {
                "name": result.case.name,
                "rows": result.case.rows,
                "seconds": result.seconds,
                "processor_seconds": result.processor_seconds,
                "median_seconds": {peer: result.median(peer) for peer in result.seconds},
                "goals": {peer.name: peer.goal for peer in result.case.peers if peer.goal},
                "largest_worker_mib": result.worker_mib,
            }
            for result in results
        ],
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
