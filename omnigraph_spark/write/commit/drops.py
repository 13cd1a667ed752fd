"""Tables that a publish drops must leave no edge table that ends at them; on the driver, no I/O."""

from __future__ import annotations

from collections.abc import Collection

from omnigraph_spark.errors import IntegrityError
from omnigraph_spark.integrity import rules
from omnigraph_spark.manifest.snapshot import Snapshot
from omnigraph_spark.schema.model import EngineSchema


def refuse_stranded(dropped: Collection[str], snapshot: Snapshot, schema: EngineSchema) -> None:
    """Refuse to drop node tables at which edge tables end that stay.

    Raises:
        IntegrityError: names the edge tables.
    """
    for key in sorted(dropped):
        edges = {edge for edge, _ in rules.edges_at(schema, key)}
        left = sorted(edge for edge in edges - set(dropped) if edge in snapshot.tables)
        if left:
            raise IntegrityError(
                f"{key} can't be dropped: {len(left)} edge tables end there",
                expected="no edge table that ends there, or all of them dropped in the same call",
                found=", ".join(left[:10]),
                hint="Nothing was dropped. Name those tables in the same drop_table",
                table_key=key,
                rule="edge ends",
                samples=left[:10],
            )
