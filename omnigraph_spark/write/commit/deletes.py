"""Delete rows by id: which edges would lose an end, and what becomes of them; on the driver.

Runs inside each round, against the snapshot that is committed on (rule 25). The edge tables
that are looked at are guarded by the publish (rule 7), so what is found holds at the commit.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from omnigraph_spark.errors import CorruptManifestError, IntegrityError
from omnigraph_spark.integrity.rules import ENDPOINTS
from omnigraph_spark.manifest.snapshot import Snapshot
from omnigraph_spark.refs import forks
from omnigraph_spark.schema.model import EngineSchema
from omnigraph_spark.storage import column_numbers, layout
from omnigraph_spark.storage.lance_errors import translated
from omnigraph_spark.storage.store import Storage
from omnigraph_spark.write.commit import staged_files
from omnigraph_spark.write.plan import APPEND, CASCADE, DELETE, MERGE, TableTarget, WritePlan
from omnigraph_spark.write.tasks import matches
from omnigraph_spark.write.tasks.matches import Match
from omnigraph_spark.write.tasks.stage import StagedTable

if TYPE_CHECKING:
    from lance import LanceDataset

_SAMPLES = 5
_IDS_AT_ONCE = 1_048_576
_EDGES_AT_ONCE = 1_048_576
_ENDPOINTS = ("src", "dst")

ByTable = Mapping[str, list[StagedTable]]


@dataclass
class _Stranded:
    """Edges of one table that would lose an end: row addresses, and a sample of rows."""

    addresses: Any
    samples: list[dict[str, Any]]


def deleted_ids(
    storage: Storage, dataset: LanceDataset, found: ByTable, key: str
) -> Iterator[pa.Array]:
    """Yield the ids of a table's rows that a delete takes out, in bounded pieces."""
    grouped = matches.by_fragment(match for part in found[key] for match in part.matches)
    for number, parts in sorted(grouped.items()):
        with translated(f"Reading the ids of {key} that are deleted"):
            yield from matches.ids_at(dataset, number, matches.united(storage, parts))


def refuse_unknown_ends(
    removing: Iterable[str], snapshot: Snapshot, schema: EngineSchema, staying: Collection[str]
) -> None:
    """Refuse to take rows of node tables away while it isn't known where some edges end.

    `removing` are the tables that lose rows, `staying` those that are looked at.

    Raises:
        CorruptManifestError: an edge table has no type, in the schema files or in `__manifest`.
    """
    if all(layout.is_edge(key) for key in removing):
        return
    unknown = [
        key
        for key in snapshot.tables
        if key in staying and layout.is_edge(key) and schema.of_table(key) is None
    ]
    if unknown:
        raise CorruptManifestError(
            f"Nothing declares where the edges of {unknown[0]} end, so no node can be taken away",
            expected=f"a declaration in {layout.SCHEMA_PG} of every edge table",
            found=f"none of {', '.join(unknown[:10])}",
            hint="Nothing was written. Declare the edge type in the file, then write again",
            table_key=unknown[0],
        )


def with_edges(
    plan: WritePlan, found: ByTable, gone: ByTable, snapshot: Snapshot, schema: EngineSchema
) -> tuple[WritePlan, ByTable]:
    """Return a write that deletes nodes with the edges that it takes along, or refuse it.

    `found` is all that was staged, `gone` the deletes in it, and `schema` says where edges end.
    Nodes that come back in the same write don't count, nor do edges that it deletes or replaces. On
    a branch, an edge table that isn't forked yet is.

    Raises:
        IntegrityError: (`restrict`) edges would be left dangling; says how many, and which.
        CorruptManifestError: it isn't known where the edges of a table end.
        StorageError: the store failed.
    """
    removing = [
        key for key in found if any(match.rows for part in found[key] for match in part.matches)
    ]
    refuse_unknown_ends(removing, snapshot, schema, snapshot.tables)
    targets, staged = dict(plan.targets), dict(found)
    counts: dict[str, int] = {}
    samples: list[dict[str, Any]] = []
    for edge in schema.edges.values():
        key = edge.table_key
        if key not in snapshot.tables:
            continue
        endpoints = {
            side: layout.table_key(layout.NODE, name)
            for side, name in zip(_ENDPOINTS, (edge.source, edge.target), strict=True)
        }
        stranded = _stranded(plan, found, gone, snapshot, key, endpoints)
        if not len(stranded.addresses):
            continue
        counts[key] = len(stranded.addresses)
        samples += stranded.samples
        targets[key], more = _taken_along(plan, snapshot, key, stranded)
        staged[key] = [*staged.get(key, ()), more]
    if counts and plan.on_delete != CASCADE:
        raise _refused(counts, samples)
    return replace(plan, targets=targets), staged


def _stranded(
    plan: WritePlan,
    staged: ByTable,
    deleted: ByTable,
    snapshot: Snapshot,
    key: str,
    endpoints: Mapping[str, str],
) -> _Stranded:
    """Find the edges of one table that end at deleted nodes and aren't deleted themselves."""
    entry = snapshot.tables[key]
    edges = plan.storage.dataset(entry.location, entry.table_branch, entry.table_version)
    gone = _addresses(plan.storage, (m for part in staged.get(key, ()) for m in part.matches))
    result = _Stranded(np.empty(0, dtype=np.uint64), [])
    for node in sorted({end for end in endpoints.values() if deleted.get(end)}):
        at = plan.targets[node]
        nodes = plan.storage.dataset(at.location, at.table_branch, at.version)
        sides = [side for side in _ENDPOINTS if endpoints[side] == node]
        gone_ids = deleted_ids(plan.storage, nodes, deleted, node)
        pieces = (pa.record_batch([ids], ["id"]) for ids in gone_ids)
        for chunk in matches.gathered(pieces, _IDS_AT_ONCE):
            ids = _not_back(plan, staged.get(node, ()), chunk["id"].combine_chunks())
            if not len(ids):
                continue
            scanner = edges.scanner(columns=["id", *_ENDPOINTS], with_row_address=True)
            with translated(f"Looking for edges of {key} that would be left dangling"):
                for rows in matches.gathered(scanner.to_batches(), _EDGES_AT_ONCE):
                    _look(rows, ids, sides, gone, result, key)
    result.addresses = matches.ascending(result.addresses)
    return result


def _not_back(plan: WritePlan, staged: Sequence[StagedTable], ids: pa.Array) -> pa.Array:
    """Return the deleted ids that no staged row has."""
    for part in staged:
        if part.fragments:
            id_only = replace(part, columns=("id",))
            for batch in staged_files.read(plan, plan.targets[part.table_key], id_only):
                ids = ids.filter(pc.invert(pc.is_in(ids, value_set=batch.column("id"))))
    return ids


def _look(
    edges: pa.Table, ids: pa.Array, sides: list[str], gone: Any, into: _Stranded, key: str
) -> None:
    hit = pc.is_in(edges[sides[0]], value_set=ids)
    for side in sides[1:]:
        hit = pc.or_(hit, pc.is_in(edges[side], value_set=ids))
    rows = edges.filter(hit)
    if not rows.num_rows:
        return
    addresses = rows["_rowaddr"].to_numpy().astype(np.uint64)
    left = ~np.isin(addresses, gone)
    into.addresses = np.concatenate((into.addresses, addresses[left]))
    room = _SAMPLES - len(into.samples)
    for row in rows.filter(pa.array(left)).slice(0, room).select(["id", *_ENDPOINTS]).to_pylist():
        into.samples.append({"table": key, **row})


def _addresses(storage: Storage, gone: Iterator[Match]) -> Any:
    none = np.empty(0, dtype=np.uint64)
    return np.concatenate([none, *matches.addresses(storage, gone)])


def _taken_along(
    plan: WritePlan, snapshot: Snapshot, key: str, stranded: _Stranded
) -> tuple[TableTarget, StagedTable]:
    entry = snapshot.tables[key]
    forks.ensure_fork(plan.storage, entry, plan.branch, plan.settings.orphan_grace_seconds)
    branch = layout.lance_branch(plan.branch)
    dataset = plan.storage.dataset(entry.location, branch, entry.table_version)
    target = TableTarget(
        table_key=key,
        location=entry.location,
        mode=DELETE,
        version=entry.table_version,
        table_branch=branch,
        schema=dataset.schema,
    )
    none = np.empty(0, dtype=np.uint64)
    gone = matches.of_addresses(stranded.addresses, none)
    fields = column_numbers.of_dataset(dataset)
    return target, StagedTable(key, (), 0, 0, fields, gone, ("id",), deletes=True)


def _refused(counts: Mapping[str, int], samples: list[dict[str, Any]]) -> IntegrityError:
    row = samples[0]
    each = ", ".join(f"{count} of {key}" for key, count in sorted(counts.items()))
    return IntegrityError(
        f"The delete would leave dangling edges: {each}",
        expected="no edge at a deleted node",
        found=f"for example {row['table']} {row['id']!r}: {row['src']!r} -> {row['dst']!r}",
        hint="Delete the edges in the same write, or give onDelete=cascade",
        table_key=row["table"],
        rule=ENDPOINTS,
        samples=samples[:_SAMPLES],
    )


KEEPS_IDS = frozenset({APPEND, MERGE})
"""Modes that take no node id away, so that no edge can lose its end."""


def keeps_ids(plan: WritePlan) -> bool:
    """Return whether a write takes no node id away; a merge of branches may, and `merge_into`."""
    return plan.mode in KEEPS_IDS and plan.merged_parent is None and not plan.deletes


def untouched_guards(
    plan: WritePlan, snapshot: Snapshot, touched: Sequence[str], schema: EngineSchema
) -> frozenset[str]:
    """Return the untouched tables whose publishes must collide with this one; on the driver.

    `schema` says where edges end; a table whose edges end nobody knows where is guarded too.
    """
    created = [key for key in touched if key not in snapshot.tables]
    replaced = not keeps_ids(plan)
    gone = {*touched, *plan.dropped}
    if not replaced and not any(layout.is_edge(key) for key in created):
        return frozenset()
    guards: set[str] = set()
    if replaced:
        guards |= {k for k in snapshot.tables if layout.is_edge(k) and not schema.of_table(k)}
        guards -= gone
    schema = schema.with_types(plan.new_types)
    for edge in schema.edges.values():
        endpoints = {layout.table_key(layout.NODE, end) for end in (edge.source, edge.target)}
        if edge.table_key in created:
            guards |= endpoints
        if replaced and endpoints & gone:
            guards.add(edge.table_key)
    return frozenset(key for key in guards if key in snapshot.tables)
