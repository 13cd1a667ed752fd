"""Staging that fails, twice-run tasks, schemas that change, batches that come again."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from omnigraph_spark.history import commits
from omnigraph_spark.manifest import publisher
from omnigraph_spark.manifest.publisher import Publish, publish
from omnigraph_spark.manifest.rows import OURS, VersionRow, to_arrow
from omnigraph_spark.manifest.snapshot import load, open_main
from omnigraph_spark.storage.ids import new_ulid
from omnigraph_spark.storage.store import Storage
from omnigraph_spark.write.commit import table_head
from tests.chaos import jobs, launcher, rivals, rows
from tests.chaos.lab import Case, Lab
from tests.chaos.launcher import Setup
from tests.chaos.ledger import ACKNOWLEDGED, APPEND, FAILED, OVERWRITE, Pen

_PARTS = 3
_ATTEMPTS = 4
_POINTS = ("stage.before_first_file", "stage.file_half_written", "stage.done")


def task_retry(lab: Lab) -> None:
    """Tasks die at any step and run again: rows once; a task that always dies: nothing visible."""
    case = lab.case("retry").make()
    for number in range(lab.size(8, 100)):
        deaths = [lab.random.randrange(_ATTEMPTS) for _ in range(_PARTS)]
        if number % 4 == 3:
            deaths[lab.random.randrange(_PARTS)] = _ATTEMPTS
        _job(case, number, deaths, ("append", "overwrite")[number % 2])
    case.finish(trials=lab.size(8, 100))


def _job(case: Case, number: int, deaths: list[int], mode: str) -> None:
    """Run a job of several tasks, of which some attempts are killed, as Spark would."""
    lab = case.lab
    tables = dict.fromkeys(rows.THREE, 2)
    whole = dict.fromkeys(rows.THREE, 2 * _PARTS)
    driver = f"driver{number}"
    plan = str(case.folder / f"plan{number}")
    token = case.run(jobs.plan_to_file, case.graph, whole, mode, plan, case.options, writer=driver)
    messages, complete = [], True
    for part, dying in enumerate(deaths):
        message = str(case.folder / f"message{number}-{part}")
        for attempt in range(_ATTEMPTS):
            armed = {lab.random.choice(_POINTS): "kill"} if attempt < dying else {}
            child = case.start(
                jobs.stage_task,
                plan,
                token,
                tables,
                part * 2,
                message,
                writer=driver,
                faults=armed,
            )
            child.end()
            if not child.was_killed():
                messages.append(message)
                break
        else:
            complete = False
    if complete:
        outcome = case.run(jobs.commit_files, plan, token, messages, writer=driver)
        lab.expect(outcome == ACKNOWLEDGED, "27", f"deaths {deaths}: {outcome}")
        return
    case.run(jobs.abort_files, plan, messages, False, writer=driver)
    error = {"type": "-", "typed": True, "text": "[OMNIGRAPH_-] a task failed · -"}
    Pen(f"{case.folder}/ledger", driver).error(FAILED, token, error, 0)


def speculation(lab: Lab) -> None:
    """Two attempts of each task end well and one message of each is taken: rows once."""
    case = lab.case("speculation").make()
    for number in range(lab.size(5, 60)):
        tables = {rows.PERSON: 3, rows.COMPANY: 3}
        whole = dict.fromkeys(tables, 3 * _PARTS)
        driver, plan = f"driver{number}", str(case.folder / f"plan{number}")
        token = case.run(
            jobs.plan_to_file, case.graph, whole, "append", plan, case.options, writer=driver
        )
        attempts = [
            (part, str(case.folder / f"message{number}-{part}-{attempt}"))
            for part in range(_PARTS)
            for attempt in range(2)
        ]
        running = [
            case.start(jobs.stage_task, plan, token, tables, part * 3, message, writer=driver)
            for part, message in attempts
        ]
        for child in running:
            child.end()
        taken = [attempts[2 * part + lab.random.randrange(2)][1] for part in range(_PARTS)]
        outcome = case.run(jobs.commit_files, plan, token, taken, writer=driver)
        lab.expect(outcome == ACKNOWLEDGED, "28", f"the commit {outcome}")
    case.finish(trials=lab.size(5, 60))


# --- a schema that changes below a write -----------------------------------------------------------


def schema_change(lab: Lab) -> None:
    """A table is replaced by one of another column order between staging and commit: refused."""
    for number in range(lab.size(2, 20)):
        case = lab.case(f"schema-{number}").make()
        plan, message = str(case.folder / "plan"), str(case.folder / "message")
        tables = {rows.PERSON: 3, rows.KNOWS: 2}
        token = case.run(
            jobs.plan_to_file, case.graph, tables, "append", plan, case.options, writer="driver"
        )
        case.run(jobs.stage_task, plan, token, tables, 0, message, writer="driver")
        case.run(reorder_columns, case.graph, rows.PERSON, writer="other")
        outcome = case.run(jobs.commit_files, plan, token, [message], writer="driver")
        told = dict(case.ledger().errors()).get(token, {})
        lab.expect(
            outcome == FAILED and told.get("type") == "SchemaMismatchError",
            "1",
            f"{outcome}: {told}",
        )
        case.finish()


def reorder_columns(setup: Setup, graph: str, key: str) -> None:
    """Replace a table by two rows in another column order, and publish that."""
    from lance import LanceOperation
    from lance.fragment import write_fragments

    storage = Storage.at(graph)
    pen = Pen(setup.ledger, setup.writer)
    token, publish_id = pen.next_token(), new_ulid()
    pen.begin(token, publish_id, OVERWRITE, {key: 2})
    entry = load(storage).entry(key)
    head = storage.dataset(entry.location)
    names = ["id", "age", "note", "name", "write"]
    batch = rows.batch(rows.NODE_SCHEMA, token, 2).select(names)
    uri = storage.dataset_uri(entry.location)
    fragments = write_fragments(
        batch, uri, mode="overwrite", data_storage_version="2.2", enable_stable_row_ids=True
    )
    made = table_head.commit(
        head,
        head.version,
        LanceOperation.Overwrite(batch.schema, fragments),
        publish_id,
        max_retries=0,
    )
    row = VersionRow(key, made.version, None, 2, {OURS: {"publish_id": publish_id}})
    request = Publish("main", publish_id, (row,), {key: entry.table_version})
    done = publish(storage, request)
    commits.record_publish(storage, "main", publish_id, done.graph_version)
    pen.acknowledge(token, done.graph_version, 0)


# --- the same batch again, a healer's second look, a late engine -----------------------------------


def same_batch(lab: Lab) -> None:
    """Processes write one batch (`txnAppId`, `txnVersion`) at once and again: rows once."""
    for number in range(lab.size(3, 30)):
        case = lab.case(f"batch-{number}").make()
        options = {**case.options, "txnAppId": "stream", "txnVersion": 7}
        barrier = launcher.barrier(3)
        tables = {rows.PERSON: 3, rows.COMPANY: 3}
        together = [
            case.start(write_batch, case.graph, tables, options, writer=f"b{i}", barrier=barrier)
            for i in range(3)
        ]
        skipped = [child.end() for child in together]
        skipped.append(case.run(write_batch, case.graph, tables, options, writer="again"))
        lab.expect(skipped.count(False) == 1, "10", f"skipped: {skipped}")
        case.finish(trials=4)


def write_batch(setup: Setup, graph: str, tables: dict[str, int], options: Any) -> bool:
    """Write one batch; return whether it was there already. Only who wrote it acknowledges rows."""
    writer = jobs.Writer(setup, graph, **options)
    token = writer.pen.next_token()
    plan = writer.plan(tables)
    staged = jobs.stage_rows(plan, token, tables)
    done = jobs.commit_module.commit(plan, staged)
    shown = dict.fromkeys(tables, 0) if done.skipped else tables
    writer.pen.begin(token, plan.publish_id, APPEND, shown)
    writer.pen.acknowledge(token, done.graph_version, 0)
    return done.skipped


class _WaitFor(rivals.Step):
    """Waits until a file is there."""

    def __init__(self, path: str) -> None:
        super().__init__()
        self.path = path

    def act(self) -> None:
        end = time.monotonic() + 30
        while not Path(self.path).exists() and time.monotonic() < end:
            time.sleep(0.005)


class _LetPublish(rivals.Step):
    """Lets a waiting writer publish, and waits until it has."""

    def __init__(self, graph: str, path: str) -> None:
        super().__init__()
        self.graph, self.path = graph, path

    def act(self) -> None:
        storage = Storage.at(self.graph)
        before = load(storage).version(rows.PERSON)
        Path(self.path).touch()
        end = time.monotonic() + 30
        while load(storage).version(rows.PERSON) == before and time.monotonic() < end:
            time.sleep(0.005)


def second_look(lab: Lab) -> None:
    """A head is published in the moment before its healing: it must not be restored over."""
    for number in range(lab.size(2, 30)):
        case = lab.case(f"look-{number}", grace=0.1).make()
        go = str(case.folder / "go")
        live = case.start(
            jobs.write_once,
            case.graph,
            {rows.PERSON: 3},
            "append",
            case.options,
            writer="live",
            faults={"publish.before_merge": _WaitFor(go)},
        )
        case.wait_for_a_commit(rows.PERSON)
        outcome = case.write(
            {rows.PERSON: 2},
            faults={"heal.before_restore": _LetPublish(case.graph, go)},
            writer="healer",
        )
        lab.expect(live.end() == outcome == ACKNOWLEDGED, "14", f"the healer: {outcome}")
        kinds = case.operations(rows.PERSON)
        lab.expect("Restore" not in kinds, "14", f"a published version was restored over: {kinds}")
        case.finish()


def late_engine(lab: Lab) -> None:
    """An engine that was healed over publishes late, and without guards: refused, not lost to view."""
    for number in range(lab.size(2, 30)):
        case = lab.case(f"engine-{number}").make()
        landed = case.run(engine_publishes_late, case.graph, case.options, writer="engine")
        lab.expect(not landed, "9", "the engine was told that its rows are published")
        case.finish()


def engine_publishes_late(setup: Setup, graph: str, options: Any) -> bool:
    """Commit as engine 0.6.1 does, sleep while another writer heals and writes, then publish."""
    storage = Storage.at(graph)
    handle = open_main(storage)
    entry = load(storage).entry(rows.PERSON)
    version = rivals.make_orphan(
        Setup(f"{setup.writer}-orphan", setup.folder), graph, rows.PERSON, "append", 1
    )
    other = Setup(f"{setup.writer}-other", setup.folder)
    jobs.Writer(other, graph, **options).write({rows.PERSON: 2})
    row = VersionRow(rows.PERSON, version, None, entry.row_count + 2, {})
    try:
        publisher._merge(handle, to_arrow([row]))
    except (OSError, ValueError, RuntimeError):
        return False
    return True


def dead_record(lab: Lab) -> None:
    """A dead writer's record goes only after all of its tables were rolled back."""
    for number in range(lab.size(3, 30)):
        case = lab.case(f"dead-{number}").make()
        case.start(
            jobs.write_once,
            case.graph,
            dict.fromkeys(rows.THREE, 3),
            "append",
            case.options,
            faults={"commit.table_3": "kill"},
        ).end()
        time.sleep(case.grace + 0.1)
        case.write({rows.COMPANY: 2})
        case.check_heads()
        case.finish()


def guards(lab: Lab) -> None:
    """At the publisher: a node delete's guards against an edge append, and against a new edge table."""
    for what in ("edge-append", "edge-table", "apart"):
        for first in (0, 1):
            case = lab.case(f"guards-{what}-{first}").make()
            landed = case.run(publish_both, case.graph, what, first)
            wanted = 2 if what == "apart" else 1
            lab.expect(landed == wanted, "guards", f"{what}, {first} first: {landed} landed")
            case.close()


def publish_both(setup: Setup, graph: str, what: str, first: int) -> int:
    """Publish two requests planned on one snapshot, the second through an old handle; count."""
    storage = Storage.at(graph)
    snapshot = load(storage)

    def version(key: str) -> VersionRow:
        entry = snapshot.tables[key]
        ours = {OURS: {"publish_id": new_ulid()}}
        return VersionRow(key, entry.table_version + 1, None, entry.row_count, ours)

    person = snapshot.version(rows.PERSON)
    edges = {key: snapshot.version(key) for key in snapshot.tables if key.startswith("edge:")}
    delete = Publish(
        "main",
        new_ulid(),
        (version(rows.PERSON),),
        {rows.PERSON: person, **edges},
        guards=frozenset(edges),
        edge_tables=frozenset(edges),
    )
    append = Publish(
        "main",
        new_ulid(),
        (version(rows.KNOWS),),
        {rows.KNOWS: snapshot.version(rows.KNOWS), rows.PERSON: person},
    )
    if what == "edge-table":
        from omnigraph_spark.manifest.rows import TableRow

        key = "edge:Likes"
        made = (
            TableRow(key, "edges/0000000000000001"),
            VersionRow(key, 1, None, 0, {OURS: {"publish_id": new_ulid()}}),
        )
        append = Publish(
            "main", new_ulid(), made, {key: 0, rows.PERSON: person}, frozenset({rows.PERSON})
        )
    if what == "apart":
        delete = Publish("main", new_ulid(), (version(rows.PERSON),), {rows.PERSON: person})
        append = Publish(
            "main",
            new_ulid(),
            (version(rows.COMPANY),),
            {rows.COMPANY: snapshot.version(rows.COMPANY)},
        )
    requests = [delete, append] if first == 0 else [append, delete]
    return _race(storage, requests)


def _race(storage: Storage, requests: list[Publish]) -> int:
    """Let the second publish in the moment before the first one's merge; count what landed."""
    from omnigraph_spark import _faults
    from omnigraph_spark.errors import OmnigraphError

    landed = 0

    def one(request: Publish) -> None:
        nonlocal landed
        try:
            publish(storage, request)
        except OmnigraphError:
            return
        landed += 1

    done = False

    def between() -> None:
        nonlocal done
        if not done:
            done = True
            one(requests[0])

    _faults.arm("publish.before_merge", between)
    one(requests[1])
    return landed
