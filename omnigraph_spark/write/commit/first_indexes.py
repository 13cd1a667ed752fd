"""Which indices a write builds: the engine's, once a table is worth them, and those it dropped.

The engine indexes `id` (`src`, `dst`) after its loads and leaves empty tables without (FORMAT,
"Tables"). Here the write does it that brings a table over `WORTH_ROWS`: each index is a commit of
its own, which made the first write of 50 tables of a few rows 2.7 times slower, and on a table
that small a scan is as fast. So it happens once in a table's life, smaller appends never pay, and
an index that somebody drops stays dropped. Above `MOST_ROWS` the builds (1.3 s per column and
million rows, in one process) would outweigh the write: that is left to `OmniGraph.create_index`,
which builds aside and beside running writers. Runs on the driver.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from omnigraph_spark.schema.model import SYSTEM_COLUMNS
from omnigraph_spark.storage import layout
from omnigraph_spark.storage.index_types import BY_LANCES_NAME
from omnigraph_spark.storage.lance_errors import translated

if TYPE_CHECKING:
    from lance import LanceDataset

WORTH_ROWS = 20_000
MOST_ROWS = 1_000_000

_log = logging.getLogger(__name__)


def missing(
    table_key: str, made: LanceDataset, before: int, now: int
) -> list[tuple[str, str, str]]:
    """Return (name, type, column) of the indices that this write is to build; mostly none.

    `before` and `now` are the table's rows as published and as committed.
    """
    if not before < WORTH_ROWS <= now:
        return []
    kind, _ = layout.split_table_key(table_key)
    with translated(f"Listing the indices of {table_key}"):
        there = {tuple(index.field_names) for index in made.describe_indices()}
    found = [(f"{c}_idx", "BTREE", c) for c in SYSTEM_COLUMNS[kind] if (c,) not in there]
    if found and now > MOST_ROWS:
        _log.info(
            "%s has %d rows: no index is built for so many within a write (OmniGraph.create_index)",
            table_key,
            now,
        )
        return []
    return found


def dropped_by_overwrite(head: LanceDataset) -> list[tuple[str, str, str]]:
    """Return (name, type, column) of the indices that an overwrite drops and can build again."""
    found = []
    with translated("Listing the indices of a table"):
        present = head.describe_indices()
    for index in present:
        kind = BY_LANCES_NAME.get(str(index.index_type))
        if kind is None or len(index.field_names) != 1:
            _log.warning(
                "index %s (%s) is not built again by an overwrite", index.name, index.index_type
            )
            continue
        found.append((str(index.name), kind, str(index.field_names[0])))
    return found
