"""Versions that nobody published, foreign records, healers beside live writers."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from omnigraph_spark.manifest import crash_records
from omnigraph_spark.manifest.snapshot import load
from omnigraph_spark.storage.ids import new_ulid
from omnigraph_spark.storage.store import Storage
from tests.chaos import jobs, rivals, rows
from tests.chaos.lab import Case, Lab
from tests.chaos.launcher import Setup, note
from tests.chaos.ledger import ACKNOWLEDGED, FAILED

KINDS = ("append", "overwrite", "merge")
COUNTS = (1, 2, 5)


def orphans(lab: Lab) -> None:
    """Unpublished versions of another program are never adopted: 24 cells."""
    asked: list[Callable[[], None]] = []
    for number in range(lab.size(1, 20)):
        for kind in KINDS:
            for count in COUNTS:
                asked.append(partial(_orphan_before, lab, number, kind, count))
                asked.append(partial(_orphan_between, lab, number, kind, count))
            for between in (False, True):
                asked.append(partial(_orphan_with_record, lab, number, kind, between=between))
    lab.each(asked, lambda cell: cell())


def _orphan_before(lab: Lab, number: int, kind: str, count: int) -> None:
    case = lab.case(f"before-{number}-{kind}-{count}").make()
    case.run(rivals.make_orphan, case.graph, rows.PERSON, kind, count, writer="orphan")
    note(str(case.folder), "orphan.before")
    lab.report.armed["orphan.before"] += 1
    outcome = case.write({rows.PERSON: 3})
    lab.expect(outcome == ACKNOWLEDGED, "O10", f"{count} x {kind} before: the append {outcome}")
    case.finish(heads=False)


def _orphan_between(lab: Lab, number: int, kind: str, count: int) -> None:
    case = lab.case(f"between-{number}-{kind}-{count}").make()
    orphan = rivals.Orphan(setup=case.setup("orphan"), graph=case.graph, kind=kind, versions=count)
    outcome = case.write({rows.PERSON: 3}, faults={"table.sending": orphan})
    lab.expect(outcome == ACKNOWLEDGED, "O10", f"{count} x {kind} between: the append {outcome}")
    case.finish(heads=False)


def _orphan_with_record(lab: Lab, number: int, kind: str, *, between: bool) -> None:
    """The engine left a record beside its orphan: refuse, and name the record."""
    case = lab.case(f"record-{number}-{kind}-{between}").make()
    case.run(rivals.make_orphan, case.graph, rows.PERSON, kind, 1, writer="orphan")
    path = f"{case.graph}/__recovery/{new_ulid()}.json"
    leave = rivals_record(path, case)
    if between:
        outcome = case.write({rows.PERSON: 3}, faults={"commit.entered": leave}, writer="refused")
    else:
        leave()
        outcome = case.write({rows.PERSON: 3}, writer="refused")
    errors = dict(case.ledger().errors())
    told = errors.get("refused.1", {})
    lab.expect(
        outcome in (FAILED, None) or bool(told), "O2", f"{kind}: written around a foreign record"
    )
    lab.expect(
        told.get("type") == "RecoveryPendingError" and os.path.basename(path) in told["text"],
        "O9",
        f"{kind}: the refusal doesn't name the record: {told}",
    )
    lab.expect(os.path.exists(path), "O8", f"{kind}: a foreign record was removed")
    os.remove(path)
    case.finish(heads=False)


class _Leave(rivals.Step):
    """Puts a record of the engine into `__recovery`."""

    def __init__(self, path: str, text: str) -> None:
        super().__init__()
        self.path, self.text = path, text

    def act(self) -> None:
        os.makedirs(os.path.dirname(self.path), exist_ok=True)
        Path(self.path).write_text(self.text, encoding="utf-8")


def rivals_record(path: str, case: Case) -> _Leave:
    """Return what leaves a record as engine 0.6.1 does (format.md, "Crash records")."""
    pin = case.pin(rows.PERSON)
    return _Leave(path, json.dumps(_engine_record(path, case.graph, pin.location, pin.version)))


def _engine_record(path: str, graph: str, location: str, version: int) -> dict[str, object]:
    return {
        "schema_version": 1,
        "operation_id": Path(path).stem,
        "started_at": "1795825395000000",
        "branch": None,
        "actor_id": None,
        "writer_kind": "Load",
        "tables": [
            {
                "table_key": rows.PERSON,
                "table_path": f"{graph}/{location}",
                "expected_version": version,
                "post_commit_pin": version + 1,
                "table_branch": None,
            }
        ],
    }


def sidecars(lab: Lab) -> None:
    """Records of other programs in `__recovery`: refused by name, kept, and reads go on; 6 cells."""
    name = new_ulid()
    good = _engine_record(f"{name}.json", "/g", "nodes/x", 1)
    own = {**good, "schema_version": 99, "omnigraph_spark": {"publish_id": name}}
    cells = {
        "valid": (f"{name}.json", json.dumps(good)),
        "version-99": (f"{name}.json", json.dumps({**good, "schema_version": 99})),
        "garbage": (f"{name}.json", "{not json"),
        "empty": (f"{name}.json", ""),
        "foreign-name": ("..notes of mine.txt", "hello"),
        "own-key-version-99": (f"{name}.json", json.dumps(own)),
    }
    asked = [(cell, *file_and_text) for cell, file_and_text in cells.items()]
    lab.each(asked, lambda one: _sidecar(lab, *one))


def _sidecar(lab: Lab, cell: str, file: str, text: str) -> None:
    case = lab.case(f"sidecar-{cell}").make()
    path = Path(case.graph) / "__recovery" / file
    path.parent.mkdir(exist_ok=True)
    path.write_text(text, encoding="utf-8")
    lab.report.armed[f"sidecar.{cell}"] += 1
    note(str(case.folder), f"sidecar.{cell}")
    before = load(Storage.at(case.graph))
    outcome = case.write(dict.fromkeys(rows.THREE, 2), writer="refused")
    told = dict(case.ledger().errors()).get("refused.1", {})
    lab.expect(outcome == FAILED, "O2", f"{cell}: the write {outcome}")
    lab.expect(
        told.get("type") == "RecoveryPendingError" and file in str(told.get("text")),
        "O9",
        f"{cell}: {told}",
    )
    lab.expect(path.read_text(encoding="utf-8") == text, "O8", f"{cell}: the file changed")
    lab.expect(load(Storage.at(case.graph)) == before, "O8", f"{cell}: a read saw a change")
    path.unlink()
    case.finish()


POINTS = (
    "commit.table_1",
    "commit.table_2",
    "commit.tables_done",
    "publish.before_merge",
    "publish.sending",
)


def healer_versus_live(lab: Lab) -> None:
    """A live writer sleeps between its first commit and its publish; others write meanwhile."""
    trials = lab.size(20, 500)
    case = lab.case("live", grace=0.15).make()
    for number in range(0, trials, 2):
        live = []
        for _ in range(2):
            stall = lab.random.uniform(0.1, 1.3)
            point = lab.random.choice(POINTS)
            tables = dict.fromkeys(lab.random.sample(rows.THREE, 2), 3)
            live.append(
                case.start(
                    jobs.write_once,
                    case.graph,
                    tables,
                    "append",
                    case.options,
                    faults={point: f"stall:{stall:.2f}@1"},
                    surely=False,
                )
            )
        healer = case.start(
            jobs.write_many, case.graph, dict.fromkeys(rows.THREE, 2), 2, case.options
        )
        if number % 4 == 0:
            _suspend(live[0].pid, lab.random.uniform(0.2, 0.8))
        outcomes = [child.end() for child in (*live, healer)]
        lab.expect(outcomes[:2] == [ACKNOWLEDGED] * 2, "O10", f"live writers: {outcomes}")
    case.finish(trials=trials)


def _suspend(pid: int, seconds: float) -> None:
    """Stop a process with its heartbeat, as a suspended machine would."""
    time.sleep(0.2)
    try:
        os.kill(pid, signal.SIGSTOP)
        time.sleep(seconds)
        os.kill(pid, signal.SIGCONT)
    except ProcessLookupError:
        return


def list_then_get(lab: Lab) -> None:
    """Records that vanish between being listed and being read are not an error."""
    case = lab.case("vanishing").make()
    reads = lab.size(200, 5000)
    churn = [
        case.start(churn_records, case.graph, 4.0 if not lab.large else 60.0) for _ in range(2)
    ]
    seen = case.run(list_records, case.graph, reads)
    made = sum(child.end() for child in churn)
    lab.expect(seen["failed"] == [], "O9", f"listing failed: {seen['failed'][:2]}")
    lab.number(f"{seen['reads']} listings beside {made} records that came and went")
    case.finish(trials=seen["reads"])


def churn_records(setup: Setup, graph: str, seconds: float) -> int:
    """Make and delete records of our own kind as fast as it goes."""
    storage = Storage.at(graph)
    made = 0
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        publish_id = new_ulid()
        crash_records.write(storage, publish_id, crash_records.Noted("main", ()))
        crash_records.delete(storage, publish_id)
        made += 1
    return made


def list_records(setup: Setup, graph: str, times: int) -> dict[str, object]:
    """Look at the records over and over."""
    storage = Storage.at(graph)
    failed: list[str] = []
    for _ in range(times):
        try:
            crash_records.refuse_foreign(storage)
            crash_records.others(storage, "nobody")
            crash_records.renewed_at(storage, "nobody")
        except Exception as error:
            failed.append(str(error))
    return {"reads": times, "failed": failed}
