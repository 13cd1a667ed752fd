"""What a write leaves of itself in the version rows of its publish, beside the engine's keys."""

from __future__ import annotations

from typing import Any

from omnigraph_spark.manifest.snapshot import TableEntry
from omnigraph_spark.write.plan import WritePlan


def marks(plan: WritePlan) -> dict[str, Any]:
    """Return this connector's part of the `metadata` of each version row, as plain data."""
    ours: dict[str, Any] = {"publish_id": plan.publish_id, "mode": plan.mode}
    if plan.txn is not None:
        ours["txn"] = list(plan.txn)
    if plan.user_metadata is not None:
        ours["user_metadata"] = plan.user_metadata
    if plan.actor is not None:
        ours["actor"] = plan.actor
    if plan.unchecked:
        ours["unchecked"] = True
    if plan.merged_parent is not None:
        ours["merged_parent"] = plan.merged_parent
    if plan.integrity.checks_rows():
        ours["integrity"] = plan.integrity.level
    return ours


def of_dropped(ours: dict[str, Any], entry: TableEntry | None) -> dict[str, Any]:
    """Return the marks of a tombstone: all rows of the table are removed."""
    return {**ours, "rows_added": 0, "rows_removed": 0 if entry is None else entry.row_count}
