"""A scenario's workbench: graphs with their ledgers, processes on them, and the verdict at the end."""

from __future__ import annotations

import random
import shutil
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any, TypeVar

from tests.chaos import jobs, launcher, ledger, oracle, rows
from tests.chaos.launcher import Child, Fault, Setup

GRACE_SECONDS = 0.3
"""The grace of most scenarios: short, so that a dead writer is healed soon, and live ones often."""
_T = TypeVar("_T")
ALL = (*rows.THREE, rows.QUIET)


class Caught(Exception):
    """A planted bug was noticed."""


@dataclass
class Report:
    """What a scenario found: trials, faults armed and delivered, violations by check, numbers."""

    name: str
    seed: int
    trials: int = 0
    armed: Counter[str] = field(default_factory=Counter)
    delivered: Counter[str] = field(default_factory=Counter)
    violations: dict[str, list[str]] = field(default_factory=dict)
    numbers: list[str] = field(default_factory=list)
    versions: int = 0
    publishes: int = 0
    seconds: float = 0.0
    planted: bool = False

    def undelivered(self) -> dict[str, int]:
        """Return the faults that were armed more often than they fired."""
        missing = {p: n - self.delivered[p] for p, n in self.armed.items()}
        return {point: n for point, n in missing.items() if n > 0}

    def add(self, check: str, text: str) -> None:
        """Count a violation.

        Raises:
            Caught: in a run with a planted bug: the first violation is all that is asked.
        """
        self.violations.setdefault(check, []).append(text)
        if self.planted:
            raise Caught(f"{check}: {text}")

    def clean(self) -> bool:
        return not self.violations and not self.undelivered()


class Lab:
    """Where one scenario works; `large` asks for the large sizes, `mutation` for a planted bug."""

    def __init__(
        self,
        name: str,
        folder: Path,
        seed: int,
        *,
        large: bool = False,
        mutation: str | None = None,
    ) -> None:
        self.name = name
        self.folder = folder
        self.random = random.Random(f"{seed}/{name}")
        self.large = large
        self.mutation = mutation
        self.report = Report(name, seed, planted=mutation is not None)
        self.minutes: float | None = None

    def size(self, small: int, large: int) -> int:
        return large if self.large else small

    def case(self, name: str, grace: float = GRACE_SECONDS, **options: Any) -> Case:
        """Return a new, empty case; its writers have `options`."""
        folder = self.folder / name
        shutil.rmtree(folder, ignore_errors=True)
        (folder / "ledger").mkdir(parents=True)
        return Case(self, folder, {"orphanGraceSeconds": grace, "actor": "chaos", **options})

    def each(self, asked: Sequence[_T], function: Callable[[_T], None], together: int = 3) -> None:
        """Call `function` with each, several at a time: most of a case is waiting."""
        pool = ThreadPoolExecutor(together)
        try:
            for done in [pool.submit(function, one) for one in asked]:
                done.result()
        finally:
            pool.shutdown(cancel_futures=True)

    def expect(self, holds: bool, check: str, text: str) -> None:
        """Count a violation of a check unless `holds`."""
        if not holds:
            self.report.add(check, f"{self.name}: {text}")

    def number(self, text: str) -> None:
        """Keep a measured number for the report."""
        self.report.numbers.append(text)


class Case:
    """One graph, its writers' ledger, and the faults that were delivered to them."""

    def __init__(self, lab: Lab, folder: Path, options: Mapping[str, Any]) -> None:
        self.lab = lab
        self.folder = folder
        self.graph = str(folder / "graph")
        self.options = dict(options)
        self.children: list[Child] = []
        self.label = folder.name
        self.random = random.Random(f"{lab.report.seed}/{lab.name}/{folder.name}")
        self._untouched: dict[str, str] = {}
        self._numbers = 0

    @property
    def grace(self) -> float:
        return float(self.options["orphanGraceSeconds"])

    def setup(
        self, writer: str, faults: Mapping[str, Fault] | None = None, barrier: Barrier | None = None
    ) -> Setup:
        return Setup(writer, str(self.folder), faults or {}, self.lab.mutation, barrier)

    def start(
        self,
        function: Callable[..., Any],
        *args: Any,
        writer: str | None = None,
        faults: Mapping[str, Fault] | None = None,
        surely: bool = True,
        barrier: Barrier | None = None,
    ) -> Child:
        """Start a process; `surely`: all of its faults must be delivered."""
        if writer is None:
            self._numbers += 1
            writer = f"w{self._numbers}"
        if surely:
            self.lab.report.armed.update((faults or {}).keys())
        child = launcher.start(self.setup(writer, faults, barrier), function, *args)
        self.children.append(child)
        return child

    def run(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Start a process and wait for its end."""
        return self.start(function, *args, **kwargs).end()

    def write(self, tables: Mapping[str, int], mode: str = "append", **kwargs: Any) -> str | None:
        """Do one write in a process of its own; None where it was killed."""
        options = {**self.options, **kwargs.pop("options", {})}
        outcome: str | None = self.run(
            jobs.write_once, self.graph, dict(tables), mode, options, **kwargs
        )
        return outcome

    def make(self, tables: tuple[str, ...] = ALL, count: int = 3) -> Case:
        """Make the graph, with a table that nobody writes to afterwards."""
        outcome = self.write(dict.fromkeys(tables, count), writer="maker")
        assert outcome == ledger.ACKNOWLEDGED, ledger.read(self.folder / "ledger").errors()
        if rows.QUIET in tables:
            self.untouched(rows.QUIET)
        return self

    def untouched(self, key: str) -> None:
        """Demand that a table's files are the same at the end."""
        from omnigraph_spark.storage import layout

        location = layout.table_location(key)
        self._untouched[location] = oracle.listing(self.graph, location)

    def ledger(self) -> ledger.Ledger:
        return ledger.read(self.folder / "ledger")

    def pin(self, key: str) -> oracle.Pin:
        """Return a table's published version by the oracle's own fold."""
        graph = oracle.Graph(self.graph)
        return oracle.snapshot_of(graph.manifest_rows(graph.versions()[-1]))[key]

    def wait_for_a_commit(self, key: str) -> None:
        """Wait until a table's head is above its published version, at most 30 s."""
        deadline = time.monotonic() + 30
        while self._head(key).version == self.pin(key).version and time.monotonic() < deadline:
            time.sleep(0.01)

    def operations(self, key: str) -> list[str]:
        """Return the kinds of commits that a table has had, such as `Append` and `Restore`."""
        head = self._head(key)
        numbers = [one["version"] for one in head.versions()]
        return [type(head.read_transaction(number).operation).__name__ for number in numbers]

    def _head(self, key: str) -> Any:
        import lance

        return lance.dataset(f"{self.graph}/{self.pin(key).location}")

    def check(self, **kwargs: Any) -> oracle.Verdict:
        """Run the oracle and count what it finds."""
        verdict = oracle.check(self.graph, self.ledger(), self._untouched, **kwargs)
        self._count(verdict)
        return verdict

    def check_heads(self) -> None:
        """Count heads that an engine's next insert would adopt; nobody may be writing now."""
        verdict = oracle.Verdict()
        oracle.check_heads(verdict, self.graph)
        self._count(verdict)

    def finish(
        self, tables: tuple[str, ...] = rows.THREE, trials: int = 1, *, heads: bool = True
    ) -> oracle.Verdict:
        """Look at the heads, do the next write (O10), run the oracle, count faults and trials."""
        if heads:
            self.check_heads()
        verdict = self.next_write(tables)
        found = oracle.check(self.graph, self.ledger(), self._untouched)
        for check, texts in verdict.violations.items():
            for text in texts:
                found.add(check, text)
        self._count(found)
        self.close(trials)
        return found

    def look_at_next_write(self, tables: tuple[str, ...]) -> None:
        """Do the next write (O10) and count what is wrong with it."""
        self._count(self.next_write(tables))

    def next_write(self, tables: tuple[str, ...]) -> oracle.Verdict:
        """Write to the tables as the next user would, twice: the second finds old records."""
        verdict = oracle.Verdict()
        self._numbers += 1
        name = f"next{self._numbers}"
        began = time.monotonic()
        self.write(dict.fromkeys(tables, 2), writer=name)
        seconds = time.monotonic() - began
        if oracle.records(self.graph):
            time.sleep(self.grace + 0.05)
            self.write(dict.fromkeys(tables, 1), writer=f"{name}b")
        write = self.ledger().writes.get(f"{name}.1")
        oracle.check_next_write(verdict, self.graph, write, seconds)
        return verdict

    def close(self, trials: int = 1) -> None:
        """Count the faults and trials of this case, and remove its files where all is well."""
        self.lab.report.delivered.update(launcher.delivered(self.folder))
        self.lab.report.trials += trials
        if not self.lab.report.violations:
            shutil.rmtree(self.folder, ignore_errors=True)

    def _count(self, verdict: oracle.Verdict) -> None:
        for check, texts in verdict.violations.items():
            for text in texts:
                self.lab.report.add(check, f"{self.label}: {text}")
        self.lab.report.versions += verdict.versions
        self.lab.report.publishes += verdict.publishes
