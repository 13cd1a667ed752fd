"""Small scenarios for single rules of the commit protocol: what would be invisible, lost guards, settings, patience."""

from __future__ import annotations

import time

from omnigraph_spark.errors import OmnigraphError
from omnigraph_spark.manifest.publisher import Publish, publish
from omnigraph_spark.manifest.rows import OURS, TombstoneRow, VersionRow
from omnigraph_spark.manifest.snapshot import load, open_main
from omnigraph_spark.storage.ids import new_ulid
from omnigraph_spark.storage.store import Storage
from tests.chaos import jobs, rows
from tests.chaos.lab import Lab
from tests.chaos.launcher import Setup
from tests.chaos.ledger import ACKNOWLEDGED
from tests.chaos.rivals import Sign, Wait
from tests.chaos.scenarios.tasks import _race


def below_tombstone(lab: Lab) -> None:
    """A publish that nobody would see is refused (rule 5): its table was dropped above it meanwhile."""
    case = lab.case("tombstone").make()
    landed = case.run(publish_below_tombstone, case.graph)
    lab.expect(not landed, "5", "a version below a tombstone was acknowledged")
    case.close()


def publish_below_tombstone(setup: Setup, graph: str) -> bool:
    """Drop a table, then publish a version of it that isn't above the tombstone."""
    storage = Storage.at(graph)
    entry = load(storage).entry(rows.QUIET)
    gone = TombstoneRow(rows.QUIET, entry.table_version + 5, {OURS: {"publish_id": new_ulid()}})
    publish(storage, Publish("main", new_ulid(), (gone,)))
    late = VersionRow(rows.QUIET, entry.table_version + 1, None, 3, {OURS: {}})
    try:
        publish(storage, Publish("main", new_ulid(), (late,), {rows.QUIET: 0}))
    except OmnigraphError:
        return False
    return True


def lost_row(lab: Lab) -> None:
    """Of two writers of a table whose own row was lost one is refused (rule 8)."""
    for first in (0, 1):
        case = lab.case(f"lost-{first}").make()
        landed = case.run(publish_twice_without_row, case.graph, first)
        lab.expect(landed == 1, "8", f"{landed} of 2 landed on a table without its row")
        case.close()


def publish_twice_without_row(setup: Setup, graph: str, first: int) -> int:
    """Lose a table's row of `__manifest`, publish two versions of it at once; count what landed."""
    storage = Storage.at(graph)
    open_main(storage).delete(f"object_id = '{rows.PERSON}'")
    entry = load(storage).entry(rows.PERSON)
    requests = [
        Publish(
            "main",
            new_ulid(),
            (
                VersionRow(
                    rows.PERSON,
                    entry.table_version + 1 + above,
                    None,
                    entry.row_count,
                    {OURS: {"publish_id": new_ulid()}},
                ),
            ),
            {rows.PERSON: entry.table_version},
        )
        for above in (first, 1 - first)
    ]
    return _race(storage, requests)


def auto_cleanup(lab: Lab) -> None:
    """No heal of a table with Lance's auto-cleanup deletes a version that is pinned (rule 15)."""
    case = lab.case("cleanup-keys").make()
    case.run(put_auto_cleanup, case.graph, writer="engine")
    for number in range(4):
        case.start(
            jobs.write_once,
            case.graph,
            {rows.PERSON: 2},
            "append",
            case.options,
            faults={"commit.table_1": "kill"},
            writer=f"dead{number}",
        ).end()
        time.sleep(case.grace + 0.05)
        outcome = case.write({rows.PERSON: 2}, writer=f"healer{number}")
        lab.expect(outcome == ACKNOWLEDGED, "O10", f"the healer {outcome}")
        case.check()
    case.finish(trials=4)


def put_auto_cleanup(setup: Setup, graph: str) -> None:
    """Give a table the engine's settings, eager ones, and publish that version."""
    storage = Storage.at(graph)
    entry = load(storage).entry(rows.PERSON)
    dataset = storage.dataset(entry.location)
    dataset.update_config(
        {"lance.auto_cleanup.interval": "2", "lance.auto_cleanup.older_than": "0s"}
    )
    now = storage.dataset(entry.location)
    publish_id = new_ulid()
    row = VersionRow(
        rows.PERSON, now.version, None, entry.row_count, {OURS: {"publish_id": publish_id}}
    )
    done = publish(storage, Publish("main", publish_id, (row,), {rows.PERSON: entry.table_version}))
    from omnigraph_spark.history import commits

    commits.record_publish(storage, "main", publish_id, done.graph_version)


def patience(lab: Lab) -> None:
    """A slow writer that gives signs of life isn't healed over within six graces (rules 16, 17).

    It stays slow for three graces from when the other writer begins to look, however late that is.
    """
    for number in range(lab.size(2, 20)):
        case = lab.case(f"slow-{number}", grace=1.0).make()
        looks = f"{case.folder}/looks"
        live = case.start(
            jobs.write_once,
            case.graph,
            {rows.PERSON: 3},
            "append",
            case.options,
            writer="live",
            faults={"commit.before_publish": Wait(path=looks, seconds=3.0)},
        )
        case.wait_for_a_commit(rows.PERSON)
        outcome = case.write(
            {rows.PERSON: 2}, writer="other", faults={"commit.record_written": Sign(path=looks)}
        )
        lab.expect(live.end() == outcome == ACKNOWLEDGED, "17", f"the other writer: {outcome}")
        kinds = case.operations(rows.PERSON)
        lab.expect("Restore" not in kinds, "17", f"a live writer was restored over: {kinds}")
        case.finish()
