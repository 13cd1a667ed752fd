"""Merge a branch into another: a three-way merge by rows, computed by Spark, in one publish.

The driver reads the lineage and the three snapshots (common ancestor, source, target) and plans
which tables the merge touches; rows meet on executors only. Tables that the source didn't change
are left alone, those that only the source changed are taken as they are, the others are merged by
`id`. The publish expects every table of the target at the version that was merged: a rival's
publish refuses it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import reduce
from typing import TYPE_CHECKING, Any

from omnigraph_spark import engine_schema, layout
from omnigraph_spark.branches import merge_rows, refs
from omnigraph_spark.branches.diff import frame_at, pin, table_diff
from omnigraph_spark.branches.merge_base import head_commit, merge_bases
from omnigraph_spark.branches.merge_rows import FAIL, OURS, THEIRS
from omnigraph_spark.engine_schema.model import EngineSchema
from omnigraph_spark.errors import MergeConflictError, OptionError, UnsupportedError
from omnigraph_spark.history.commits import Commit
from omnigraph_spark.manifest.snapshot import Snapshot, load
from omnigraph_spark.options import WriteOptions
from omnigraph_spark.progress import Progress
from omnigraph_spark.storage import Storage
from omnigraph_spark.write import bulk, frame_plan
from omnigraph_spark.write.commit import Committed
from omnigraph_spark.write.plan import WritePlan, plan_write

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from omnigraph_spark.graph import OmniGraph


@dataclass(frozen=True)
class Merged:
    """What a merge did, or would do (`dry_run`: `committed` is None).

    `tables` get new versions, `dropped` go. `conflicts` counts by (table key, kind), and
    `conflict_rows` has them one by one: `_table`, `id`, `conflict`, and the rows as JSON.
    """

    base_commit: str
    source_commit: str
    target_commit: str
    tables: tuple[str, ...]
    dropped: tuple[str, ...]
    fast_forward: bool
    conflicts: Mapping[tuple[str, str], int]
    conflict_rows: DataFrame
    committed: Committed | None = None


@dataclass(frozen=True)
class _Sides:
    """The snapshots, and the commits that they are of: the bases (mostly one), source, target."""

    bases: tuple[Snapshot, ...]
    source: Snapshot
    target: Snapshot
    base_commits: tuple[Commit, ...]
    heads: tuple[Commit, Commit]

    @classmethod
    def of(cls, storage: Storage, source: str, into: str) -> _Sides:
        theirs, ours = load(storage, source), load(storage, into)
        heads = head_commit(storage, theirs), head_commit(storage, ours)
        common = merge_bases(storage, *heads)
        bases = tuple(load(storage, one.branch, one.manifest_version) for one in common)
        return cls(bases, theirs, ours, tuple(common), heads)

    @property
    def fast_forward(self) -> bool:
        """Tell whether the target is still where the source began."""
        return [one.graph_commit_id for one in self.base_commits] == [self.heads[1].graph_commit_id]

    def is_as_before(self, side: Snapshot, key: str) -> bool:
        """Tell whether a side has a table at the version of every base."""
        return all(pin(side, key) == pin(base, key) for base in self.bases)

    def changed(self) -> list[str]:
        """Return the tables that the source changed in another way than the target."""
        every = {key for one in (*self.bases, self.source, self.target) for key in one.tables}
        return [
            key
            for key in sorted(every)
            if pin(self.source, key) != pin(self.target, key)
            and not self.is_as_before(self.source, key)
        ]


@dataclass
class _Work:
    """What the merge of each table comes to; frames are lazy."""

    graph: OmniGraph
    sides: _Sides
    frames: dict[str, DataFrame] = field(default_factory=dict)
    dropped: list[str] = field(default_factory=list)
    conflicts: list[DataFrame] = field(default_factory=list)
    persisted: list[DataFrame] = field(default_factory=list)


def merge(
    graph: OmniGraph,
    options: WriteOptions,
    source: str,
    *,
    dry_run: bool = False,
    resolution: str | Mapping[str, str] = FAIL,
    only_fast_forward: bool = False,
) -> Merged:
    """Merge the head of branch `source` into `options.branch`; what is there already stays.

    `resolution` says, for all tables or by table key, whose rows win where both changed one: `ours`
    (the target's), `theirs` (the source's), or `fail`. Edges that would end nowhere, and doubled
    ids under `fail` and `theirs`, are refused whatever it says.

    Raises:
        MergeConflictError: both sides changed the same rows; nothing was written. It has the counts
            and the frame of the conflicts.
        BranchNotFoundError: no such branch.
        OptionError: a branch into itself, or a resolution of another name.
        UnsupportedError: no common commit, or no fast-forward where only that is wanted.
        SchemaMismatchError: the source's table has other columns than the target's.
        ExpectedVersionMismatch: somebody published to the target meanwhile; nothing was published.
        PublishOutcomeUnknown, StorageError: as every write.
    """
    storage = Storage.at(options.path, options.storage)
    resolve = _resolver(resolution)
    if source == options.branch:
        raise OptionError("A branch can't be merged into itself", found=source)
    sides = _Sides.of(storage, refs.branch_named(storage, source), options.branch)
    if only_fast_forward and not sides.fast_forward:
        raise UnsupportedError(
            f"{options.branch} has moved since {source} began: no fast-forward is possible",
            hint="Use merge",
        )
    with _working(graph, sides) as work:
        changed = sides.changed()
        with Progress("merge", len(changed) + 1) as progress:
            for key in changed:
                _merge_table(work, key, resolve(key))
                progress.step(f"{key} is compared")
            _check_edges(work, storage)
            progress.step("edge ends are checked")
        rows = _union(graph, work.conflicts)
        counts = {
            (one["_table"], one["conflict"]): int(one["count"])
            for one in (
                rows.groupBy("_table", "conflict").count().collect() if work.conflicts else []
            )
        }
        result = Merged(
            base_commit=sides.base_commits[0].graph_commit_id,
            source_commit=sides.heads[0].graph_commit_id,
            target_commit=sides.heads[1].graph_commit_id,
            tables=tuple(work.frames),
            dropped=tuple(work.dropped),
            fast_forward=sides.fast_forward,
            conflicts=counts,
            conflict_rows=rows,
        )
        if dry_run:
            return result
        if counts:
            raise MergeConflictError(source, options.branch, counts, rows)
        return replace(result, committed=_publish(work, storage, options))


@contextmanager
def _working(graph: OmniGraph, sides: _Sides) -> Iterator[_Work]:
    work = _Work(graph, sides)
    try:
        yield work
    finally:
        for frame in work.persisted:
            frame.unpersist()


def _resolver(resolution: str | Mapping[str, str]) -> Callable[[str], str]:
    """Return what gives the resolution of a table.

    Raises:
        OptionError: a key that is no table key, or a resolution of another name.
    """
    by_key = {} if isinstance(resolution, str) else dict(resolution)
    otherwise = resolution if isinstance(resolution, str) else FAIL
    for key in by_key:
        layout.split_table_key(key)
    for one in (otherwise, *by_key.values()):
        if one not in (OURS, THEIRS, FAIL):
            raise OptionError(
                f"{one[:40]!r} is no resolution", expected=f"{OURS}, {THEIRS} or {FAIL}"
            )
    return lambda key: by_key.get(key, otherwise)


def _merge_table(work: _Work, key: str, resolution: str) -> None:
    sides = work.sides
    bases = [frame_at(work.graph, one, key) for one in sides.bases]
    source, target = (frame_at(work.graph, one, key) for one in (sides.source, sides.target))
    if sides.is_as_before(sides.target, key):  # only the source changed it
        if source is None:
            work.dropped.append(key)
        elif not (_came_by_merge(sides.source, key) and _is_same(bases, source, key)):
            work.frames[key] = source
        return
    if source is None or target is None:  # one side dropped it and the other perhaps changed it
        if _is_same(bases, target if source is None else source, key):
            if source is None and target is not None:
                work.dropped.append(key)
        elif resolution == THEIRS:
            if source is None:
                work.dropped.append(key)
            else:
                work.frames[key] = source
        elif resolution == FAIL:
            work.conflicts.append(merge_rows.whole_table(work.graph.spark.range(1), key))
        return
    merge_rows.check_columns(source, target, key)
    decided = merge_rows.decisions(bases, source, target, key, resolution).persist()
    work.persisted.append(decided)
    work.conflicts.append(merge_rows.conflicts_of(decided, key))
    # Under `ours` the table is written although nothing of it changes: what was decided has to be
    # in a commit, or the next merge would ask again.
    if resolution == OURS or merge_rows.has_taken(decided):
        work.frames[key] = merge_rows.merged(source, target, decided)


def _came_by_merge(snapshot: Snapshot, key: str) -> bool:
    """Tell whether a table's version was made by a merge: it may hold just what it was given."""
    return "merged_parent" in snapshot.tables[key].ours


def _is_same(bases: Sequence[DataFrame | None], other: DataFrame | None, key: str) -> bool:
    """Tell whether a table holds the same rows as in every base; Spark compares them."""
    return other is not None and all(
        base is not None and table_diff(base, other, key).isEmpty() for base in bases
    )


def _check_edges(work: _Work, storage: Storage) -> None:
    """Look for edges that the merge would leave without an end."""
    schema = engine_schema.read(storage) or EngineSchema()
    for edge in schema.edges.values():
        key = edge.table_key
        ends = {
            side: layout.table_key(layout.NODE, name)
            for side, name in (("src", edge.source), ("dst", edge.target))
        }
        touched = {*work.frames, *work.dropped}
        edges = _after(work, key)
        if edges is None or not touched & {key, *ends.values()}:
            continue
        old_edges = frame_at(work.graph, work.sides.target, key)
        old = None
        if old_edges is not None:
            old_nodes = {s: frame_at(work.graph, work.sides.target, k) for s, k in ends.items()}
            old = merge_rows.loose_ends(old_edges, old_nodes)
        nodes = {side: _after(work, one) for side, one in ends.items()}
        work.conflicts.append(merge_rows.orphans(edges, nodes, old, key))


def _after(work: _Work, key: str) -> DataFrame | None:
    """Return a table as it is after the merge."""
    if key in work.dropped:
        return None
    return work.frames.get(key, frame_at(work.graph, work.sides.target, key))


def _union(graph: OmniGraph, parts: list[DataFrame]) -> DataFrame:
    if not parts:
        return graph.spark.createDataFrame([], merge_rows.CONFLICT_SCHEMA)
    return reduce(lambda left, right: left.unionAll(right), parts)


def _publish(work: _Work, storage: Storage, options: WriteOptions) -> Committed:
    """Write the merged tables in one commit, whose second parent is the source's head."""
    sides = work.sides
    options = replace(options, **_definitions(storage, work))
    if work.frames:
        schemas = {key: frame.schema for key, frame in work.frames.items()}
        planned = frame_plan.plan_frames(options, schemas)
    else:
        planned = plan_write(storage, options, {})
    planned = _as_merge(planned, sides, tuple(work.dropped))
    return bulk.write_all(planned, work.graph.stager(work.frames))


def _as_merge(planned: WritePlan, sides: _Sides, dropped: tuple[str, ...]) -> WritePlan:
    keys = sorted({*sides.target.tables, *planned.targets})
    return replace(
        planned,
        expected={key: sides.target.version(key) for key in keys},
        unchecked=False,
        dropped=dropped,
        merged_parent=sides.heads[0].graph_commit_id,
    )


def _definitions(storage: Storage, work: _Work) -> dict[str, Any]:
    """Return what is needed to create the tables that only the source has."""
    schema = engine_schema.read(storage) or EngineSchema()
    new = {key for key in work.frames if key not in work.sides.target.tables}
    ends = {e.name: (e.source, e.target) for e in schema.edges.values() if e.table_key in new}
    keys = {
        node.name: node.key
        for node in schema.nodes.values()
        if node.key is not None and layout.table_key(layout.NODE, node.name) in new
    }
    return {"endpoints": ends, "keys": keys}
