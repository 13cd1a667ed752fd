"""What chaos processes do: writes through plan, stage and commit, noted in the ledger."""

from __future__ import annotations

import pickle
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from omnigraph_spark import options as option_module
from omnigraph_spark.errors import OmnigraphError, PublishOutcomeUnknown
from omnigraph_spark.manifest.snapshot import load
from omnigraph_spark.options import WriteOptions
from omnigraph_spark.storage.store import Storage
from omnigraph_spark.write.commit import commit as commit_module
from omnigraph_spark.write.plan import WritePlan, plan_write
from omnigraph_spark.write.tasks import stage as stage_module
from omnigraph_spark.write.tasks.stage import StagedTable
from tests.chaos import rows
from tests.chaos.launcher import Setup
from tests.chaos.ledger import ACKNOWLEDGED, AMBIGUOUS, APPEND, FAILED, OVERWRITE, Pen

Tables = Mapping[str, int]


class Writer:
    """One writer of a process: plans, stages and commits, and tells the ledger."""

    def __init__(self, setup: Setup, graph: str, **options: Any) -> None:
        self.pen = Pen(setup.ledger, setup.writer)
        self.storage = Storage.at(graph)
        self.graph = graph
        self.options = {key: str(value) for key, value in options.items()}

    def plan(self, tables: Tables, mode: str = APPEND, **extra: Any) -> WritePlan:
        """Plan a write of tables that exist, or are made by it."""
        read_versions = extra.pop("read_versions", None)
        # Ledgers count rows; their edges end anywhere.
        given = {"integrity": "off", **self.options, **{k: str(v) for k, v in extra.items()}}
        raw = {"path": self.graph, **given}
        parsed = WriteOptions.of(option_module.parse(raw), mode == OVERWRITE)
        new = {key: rows.new_table(key) for key in tables}
        return plan_write(self.storage, parsed, new, read_versions)

    def write(self, tables: Tables, mode: str = APPEND, **extra: Any) -> str:
        """Do a whole write and return its outcome."""
        token = self.pen.next_token()
        return self.attempt(token, lambda: self._whole(token, tables, mode, extra))

    def _whole(self, token: str, tables: Tables, mode: str, extra: Mapping[str, Any]) -> int:
        first = extra.get("first", 0)
        plan = self.plan(tables, mode, **{k: v for k, v in extra.items() if k != "first"})
        self.pen.begin(token, plan.publish_id, mode, tables)
        staged = stage_rows(plan, token, tables, first)
        return commit_module.commit(plan, staged).graph_version

    def attempt(self, token: str, step: Callable[[], int]) -> str:
        """Run the deciding step of a write and note how it ended."""
        began = time.monotonic()
        try:
            version = step()
        except PublishOutcomeUnknown as error:
            self.pen.error(AMBIGUOUS, token, told(error), time.monotonic() - began)
            return AMBIGUOUS
        except (OmnigraphError, OSError, ValueError, RuntimeError, KeyError, TypeError) as error:
            self.pen.error(FAILED, token, told(error), time.monotonic() - began)
            return FAILED
        self.pen.acknowledge(token, version, time.monotonic() - began)
        return ACKNOWLEDGED


def stage_rows(plan: WritePlan, token: str, tables: Tables, first: int = 0) -> list[StagedTable]:
    """Stage a write's rows, two batches per table so that a file can be half written."""
    batches = []
    for key, count in sorted(tables.items()):
        half = count // 2
        schema = plan.targets[key].schema
        batches += [(key, rows.batch(schema, token, half, first))] if half else []
        batches += [(key, rows.batch(schema, token, count - half, first + half))] if count else []
    return stage_module.stage(plan, batches)


def told(error: BaseException) -> dict[str, Any]:
    """Return what the ledger keeps of an error."""
    kept = ("expected", "actual", "table_key", "publish_id", "attempts")
    return {
        "type": type(error).__name__,
        "typed": isinstance(error, OmnigraphError),
        "text": str(error),
        **{name: getattr(error, name) for name in kept if hasattr(error, name)},
    }


# --- jobs --------------------------------------------------------------------------------------


def write_once(
    setup: Setup, graph: str, tables: Tables, mode: str = APPEND, options: Any = None
) -> str:
    """Do one write."""
    return Writer(setup, graph, **(options or {})).write(tables, mode)


def write_many(
    setup: Setup, graph: str, tables: Tables, times: int, options: Any = None
) -> list[tuple[str, float]]:
    """Do several writes one after another; return their outcomes and seconds."""
    writer = Writer(setup, graph, **(options or {}))
    done = []
    for _ in range(times):
        began = time.monotonic()
        outcome = writer.write(tables)
        done.append((outcome, time.monotonic() - began))
    return done


def count_up(setup: Setup, graph: str, times: int, options: Any = None) -> int:
    """Add 1 to a counter `times` times: read it, overwrite it, again after a conflict."""
    writer = Writer(setup, graph, **(options or {}))
    done = 0
    end = time.monotonic() + 120
    while done < times and time.monotonic() < end:
        pin = load(writer.storage).entry("node:Counter")
        (value,) = (
            writer.storage.dataset(pin.location, None, pin.table_version)
            .to_table(columns=["age"])["age"]
            .to_pylist()
        )
        outcome = writer.write(
            {"node:Counter": 1},
            OVERWRITE,
            first=value + 1,
            read_versions={"node:Counter": pin.table_version},
        )
        done += outcome == ACKNOWLEDGED
    return done


def read_pairs(setup: Setup, graph: str, first: str, second: str, seconds: float) -> dict[str, int]:
    """Read two tables at one snapshot, over and over; count torn reads and counts that shrank."""
    storage = Storage.at(graph)
    counts = {"reads": 0, "torn": 0, "shrank": 0}
    before = 0
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        snapshot = load(storage)
        seen = [
            storage.dataset(e.location, None, e.table_version).count_rows()
            for e in (snapshot.entry(first), snapshot.entry(second))
        ]
        counts["reads"] += 1
        counts["torn"] += seen[0] != seen[1]
        counts["shrank"] += seen[0] < before
        before = seen[0]
    return counts


def plan_to_file(
    setup: Setup, graph: str, tables: Tables, mode: str, path: str, options: Any = None
) -> str:
    """Plan a write, as a driver does, and leave the plan for tasks; return the token."""
    writer = Writer(setup, graph, **(options or {}))
    token = writer.pen.next_token()
    plan = writer.plan(tables, mode)
    writer.pen.begin(token, plan.publish_id, mode, tables)
    Path(path).write_bytes(pickle.dumps(plan))
    return token


def stage_task(
    setup: Setup, plan_path: str, token: str, tables: Tables, first: int, result: str
) -> None:
    """Stage a part of a planned write, as a task does, and leave the message in a file."""
    plan: WritePlan = pickle.loads(Path(plan_path).read_bytes())
    staged = stage_rows(plan, token, tables, first)
    Path(result).write_text(stage_module.to_json(staged), encoding="utf-8")


def commit_files(setup: Setup, plan_path: str, token: str, messages: list[str]) -> str:
    """Commit a planned write from its tasks' messages, as the driver's commit hook does."""
    plan: WritePlan = pickle.loads(Path(plan_path).read_bytes())
    writer = Writer(setup, plan.storage.root)
    staged = staged_of(messages)
    return writer.attempt(token, lambda: commit_module.commit(plan, staged).graph_version)


def abort_files(setup: Setup, plan_path: str, messages: list[str], complete: bool) -> None:
    """Abort a planned write, as the driver's abort hook does."""
    plan: WritePlan = pickle.loads(Path(plan_path).read_bytes())
    commit_module.abort(plan, staged_of(messages), complete=complete)


def staged_of(messages: list[str]) -> list[StagedTable]:
    """Return the staged tables of the messages that are there."""
    texts = [Path(m).read_text(encoding="utf-8") for m in messages if Path(m).exists()]
    return [one for text in texts for one in stage_module.from_json(text)]
