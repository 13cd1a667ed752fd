"""Which edges a merge would leave dangling; on the driver, before anything is written.

Two things take an edge's end away: the merge brings an edge whose end the merged node table won't
have, or it takes a node away at which an edge of the target ends. Both are looked for among what
the merge changes, a bounded piece at a time; edges that ended nowhere in the target before don't
count.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from omnigraph_spark.manifest.snapshot import Snapshot
from omnigraph_spark.merge.tables import Facts
from omnigraph_spark.schema.model import EngineSchema
from omnigraph_spark.storage import layout
from omnigraph_spark.storage.lance_errors import translated
from omnigraph_spark.storage.relocation import open_for_reading
from omnigraph_spark.storage.store import Storage
from omnigraph_spark.write.tasks.lookup import lookup
from omnigraph_spark.write.tasks.matches import gathered

if TYPE_CHECKING:
    from lance import LanceDataset

_ENDPOINTS = ("src", "dst")
_ROWS_AT_ONCE = 1_048_576
_NO_IDS = pa.array([], pa.utf8())


@dataclass(frozen=True)
class After:
    """The target before a merge, and what the merge changes of it.

    `merged` are the tables with facts, `dropped` those that go.
    """

    storage: Storage
    target: Snapshot
    merged: Collection[str]
    dropped: Collection[str]
    facts: Callable[[str], Iterable[Facts]]

    def of(self, key: str) -> Iterable[Facts]:
        """Return what changes of a table; of one that goes, all ids are gone."""
        if key in self.dropped:
            return (
                Facts(rows["id"].combine_chunks(), _NO_IDS, None) for rows in self.rows(key, ["id"])
            )
        return self.facts(key) if key in self.merged else ()

    def dataset(self, key: str) -> LanceDataset:
        """Open a table as the target has it."""
        at = self.target.tables[key]
        return open_for_reading(self.storage, at.location, at.table_branch, at.table_version)

    def rows(self, key: str, columns: list[str]) -> Iterator[pa.Table]:
        """Yield some columns of a table as the target has it, in bounded pieces."""
        with translated(f"Reading {key}"):
            batches = self.dataset(key).scanner(columns=columns).to_batches()
            yield from gathered(batches, _ROWS_AT_ONCE)


def orphans(schema: EngineSchema, after: After) -> list[tuple[str, str]]:
    """Return (edge table, id) of each edge that the merge would leave dangling.

    Raises:
        StorageError: the store failed.
    """
    orphaned: list[tuple[str, str]] = []
    for edge in schema.edges.values():
        key = edge.table_key
        if key in after.dropped or not (key in after.target.tables or key in after.merged):
            continue
        names = (edge.source, edge.target)
        endpoints = dict(
            zip(_ENDPOINTS, (layout.table_key(layout.NODE, name) for name in names), strict=True)
        )
        edges = _Edges(after, key, endpoints)
        orphaned += [(key, name) for name in sorted({*edges.brought_loose(), *edges.stranded()})]
    return orphaned


@dataclass(frozen=True)
class _Edges:
    """One edge table, and the node tables of its two endpoints."""

    after: After
    key: str
    endpoints: Mapping[str, str]

    def brought_loose(self) -> set[str]:
        """Return the ids of edges that the merge brings and whose end it doesn't leave or bring."""
        loose: set[str] = set()
        for facts in self.after.of(self.key):
            if facts.brought is None or not facts.brought.num_rows:
                continue
            for side, node in self.endpoints.items():
                lost = self._lost(node, facts.brought[side].combine_chunks().unique())
                if len(lost):
                    rows = facts.brought.filter(pc.is_in(facts.brought[side], value_set=lost))
                    pairs = set(zip(rows["id"].to_pylist(), rows[side].to_pylist(), strict=True))
                    loose |= {name for name, end in pairs - self._loose_before(pairs, node)}
        return loose

    def _lost(self, node: str, ids: pa.Array) -> pa.Array:
        """Return the ids that a node table won't have after the merge."""
        present = self._has(node, ids)
        for facts in self.after.of(node):
            present &= ~_among(ids, facts.gone)
        for facts in self.after.of(node):
            present |= _among(ids, facts.came)
        return ids.filter(pa.array(~present))

    def _has(self, node: str, ids: pa.Array) -> NDArray[np.bool_]:
        present = np.zeros(len(ids), dtype=np.bool_)
        if node in self.after.target.tables:
            present[lookup(self.after.dataset(node), ids).positions] = True
        return present

    def _loose_before(self, pairs: set[tuple[str, str]], node: str) -> set[tuple[str, str]]:
        """Return the pairs (edge, end) that the target has already, without such a node."""
        if self.key not in self.after.target.tables:
            return set()
        endpoints = pa.array(sorted({end for _, end in pairs}), pa.utf8())
        never = set(endpoints.filter(pa.array(~self._has(node, endpoints))).to_pylist())
        edges = pa.array(sorted({name for name, end in pairs if end in never}), pa.utf8())
        existing: set[tuple[str, str]] = set()
        for rows in self.after.rows(self.key, ["id", *_ENDPOINTS]) if len(edges) else ():
            these = rows.filter(pc.is_in(rows["id"], value_set=edges))
            for side in _ENDPOINTS:
                existing |= set(zip(these["id"].to_pylist(), these[side].to_pylist(), strict=True))
        return {(name, end) for name, end in existing if end in never}

    def stranded(self) -> set[str]:
        """Return the ids of edges of the target that stay where a node goes."""
        stranded: set[str] = set()
        if self.key not in self.after.target.tables:
            return stranded
        for node in dict.fromkeys(self.endpoints.values()):
            sides = [side for side in _ENDPOINTS if self.endpoints[side] == node]
            for facts in self.after.of(node):
                if not len(facts.gone):
                    continue
                for rows in self.after.rows(self.key, ["id", *sides]):
                    hit = np.zeros(rows.num_rows, dtype=np.bool_)
                    for side in sides:
                        hit |= _among(rows[side], facts.gone)
                    stranded |= set(rows["id"].filter(pa.array(hit)).to_pylist())
        return stranded - self._changed if stranded else stranded

    @cached_property
    def _changed(self) -> set[str]:
        """Return the ids of the target's edges that the merge takes away or replaces."""
        changed: set[str] = set()
        for facts in self.after.of(self.key):
            changed |= set(facts.gone.to_pylist())
            if facts.brought is not None:
                changed |= set(facts.brought["id"].to_pylist())
        return changed


def _among(values: pa.Array | pa.ChunkedArray, ids: pa.Array) -> NDArray[np.bool_]:
    hit = pc.is_in(values, value_set=ids.cast(values.type)) if len(ids) else None
    if hit is None:
        return np.zeros(len(values), dtype=np.bool_)
    if isinstance(hit, pa.ChunkedArray):
        hit = hit.combine_chunks()
    mask: NDArray[np.bool_] = hit.to_numpy(zero_copy_only=False)
    return mask
