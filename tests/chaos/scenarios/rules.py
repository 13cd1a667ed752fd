"""Small scenarios for single rules of PROTOCOL: what would be invisible, lost guards."""

from __future__ import annotations

from omnigraph_spark.errors import OmnigraphError
from omnigraph_spark.ids import new_ulid
from omnigraph_spark.manifest.publisher import Publish, publish
from omnigraph_spark.manifest.rows import OURS, TombstoneRow, VersionRow
from omnigraph_spark.manifest.snapshot import load, open_main
from omnigraph_spark.storage import Storage
from tests.chaos import rows
from tests.chaos.lab import Lab
from tests.chaos.launcher import Setup
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
