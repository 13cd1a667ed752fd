"""Things that happen between two steps of a writer: callables that are armed at a fault point.

They run inside the writer's process, through handles of their own, and are picklable.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from omnigraph_spark import _faults
from omnigraph_spark.manifest import publisher
from omnigraph_spark.manifest.rows import OURS, TableRow, VersionRow, to_arrow
from omnigraph_spark.manifest.snapshot import load, open_main
from omnigraph_spark.storage.ids import new_ulid
from omnigraph_spark.storage.store import Storage
from tests.chaos import jobs, rows
from tests.chaos.launcher import Setup
from tests.chaos.ledger import APPEND, FAILED, Pen

_NOBODY = Setup("", "")


@dataclass
class Step:
    """Does its thing at the first hit (or the first `times` hits) of its point, once at a time."""

    times: int = 1
    hits: int = field(default=0, init=False)
    busy: bool = field(default=False, init=False)

    def __call__(self) -> None:
        if self.busy or self.hits >= self.times:
            return
        self.hits += 1
        self.busy = True
        try:
            self.act()
        finally:
            self.busy = False

    def act(self) -> None:
        raise NotImplementedError


@dataclass
class Chain(Step):
    """Several steps, one after another."""

    steps: tuple[Step, ...] = ()

    def act(self) -> None:
        for step in self.steps:
            step()


@dataclass
class Rival(Step):
    """A whole write by another writer."""

    setup: Setup = _NOBODY
    graph: str = ""
    tables: Mapping[str, int] = field(default_factory=dict)
    mode: str = APPEND

    def act(self) -> None:
        jobs.Writer(self.setup, self.graph, orphanGraceSeconds=0.3).write(self.tables, self.mode)


@dataclass
class Orphan(Step):
    """Commits of another program to a table that nobody publishes; none may ever be seen."""

    setup: Setup = _NOBODY
    graph: str = ""
    key: str = rows.PERSON
    kind: str = "append"
    versions: int = 1

    def act(self) -> None:
        make_orphan(self.setup, self.graph, self.key, self.kind, self.versions)


def make_orphan(setup: Setup, graph: str, key: str, kind: str, versions: int) -> int:
    """Commit to a table without publishing, as a foreign writer; return the head's version."""
    import lance

    from omnigraph_spark.storage import layout

    pen = Pen(setup.ledger, setup.writer)
    location = layout.table_location(key)
    head: Any = lance.dataset(f"{graph}/{location}")
    for _ in range(versions):
        token = pen.next_token()
        pen.begin(token, new_ulid(), APPEND, {key: 2})
        pen.error(FAILED, token, {"type": "-", "typed": True, "text": "[OMNIGRAPH_-] - · -"}, 0)
        batch = rows.batch(head.schema, token, 2)
        if kind == "merge":
            merge = head.merge_insert("id").when_matched_update_all().when_not_matched_insert_all()
            merge.execute(batch)
        else:
            lance.write_dataset(batch, f"{graph}/{location}", mode=kind)
        head = lance.dataset(f"{graph}/{location}")
    return int(head.version)


@dataclass
class Unanswered(Step):
    """What Lance raises when the store never said whether a commit landed.

    `landed` says which side of the commit this stands on, and so which version it is about.
    """

    dataset: str = ""
    landed: bool = True

    def act(self) -> None:
        import lance

        version = int(lance.dataset(self.dataset).version) + (not self.landed)
        raise OSError(f"Commit result for version {version} is unknown (injected)")


@dataclass
class Sign(Step):
    """Makes a file that `Wait` waits for."""

    path: str = ""

    def act(self) -> None:
        Path(self.path).touch()


@dataclass
class Wait(Step):
    """Waits for a file, at most 60 s, then for some seconds more."""

    path: str = ""
    seconds: float = 0.0

    def act(self) -> None:
        deadline = time.monotonic() + 60
        while not Path(self.path).exists() and time.monotonic() < deadline:
            time.sleep(0.01)
        time.sleep(self.seconds)


@dataclass
class StoreGone(Step):
    """From here on `__manifest` can't be opened any more."""

    def act(self) -> None:
        _faults.arm("publish.opened", "raise")


@dataclass
class GuardRival(Step):
    """A rival that publishes a table's version again: row-level contention, no new version."""

    graph: str = ""
    key: str = rows.PERSON

    def act(self) -> None:
        storage = Storage.at(self.graph)
        entry = load(storage).entry(self.key)
        metadata = {**entry.metadata, OURS: {"publish_id": new_ulid(), "mode": "again"}}
        row = VersionRow(self.key, entry.table_version, None, entry.row_count, metadata)
        guard = TableRow(self.key, entry.location)
        publisher._merge(open_main(storage), to_arrow([guard, row]))


@dataclass
class Clock(Step):
    """Sets the clock of this process, as far as the lineage looks at it."""

    hours: float = 0.0

    def act(self) -> None:
        from datetime import timedelta

        from omnigraph_spark.history import commits

        real, module = commits._now, commits
        vars(module)["_now"] = lambda: real() + timedelta(hours=self.hours)


@dataclass
class Optimizer(Step):
    """Optimizes the graph, as another writer."""

    graph: str = ""

    def act(self) -> None:
        from omnigraph_spark.maintenance.optimize import optimize, run_here
        from omnigraph_spark.write.plan import Settings

        quick = Settings(orphan_grace_seconds=0.3)
        optimize(Storage.at(self.graph), "main", None, run_here, settings=quick)
