"""Which tables a write doesn't touch and yet guards (DESIGN 5, "Guards"; PROTOCOL 7)."""

from __future__ import annotations

from collections.abc import Sequence

from omnigraph_spark import schema as engine_schema
from omnigraph_spark.manifest.snapshot import Snapshot
from omnigraph_spark.schema.model import EngineSchema
from omnigraph_spark.storage import layout
from omnigraph_spark.write.plan import APPEND, MERGE, WritePlan

KEEPS_IDS = frozenset({APPEND, MERGE})
"""Modes that take no node id away, so that no edge can lose its end."""


def keeps_ids(plan: WritePlan) -> bool:
    """Tell whether a write takes no node id away; a merge of branches may."""
    return plan.mode in KEEPS_IDS and plan.merged_parent is None


def untouched_guards(plan: WritePlan, snapshot: Snapshot, touched: Sequence[str]) -> frozenset[str]:
    """Return the untouched tables whose publishes must collide with this one; on the driver."""
    created = [key for key in touched if key not in snapshot.tables]
    replaced = not keeps_ids(plan)
    gone = {*touched, *plan.dropped}
    if not replaced and not any(layout.is_edge(key) for key in created):
        return frozenset()
    schema = engine_schema.read(plan.storage) or EngineSchema()
    guards: set[str] = set()
    for edge in schema.edges.values():
        ends = {layout.table_key(layout.NODE, end) for end in (edge.source, edge.target)}
        if edge.table_key in created:
            guards |= ends
        if replaced and ends & gone:
            guards.add(edge.table_key)
    return frozenset(key for key in guards if key in snapshot.tables)
