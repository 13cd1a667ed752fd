"""Merge a branch into another: a three-way merge by rows, in one publish; what users call.

Small merges run in the calling process, where a job of Spark's would cost more than the merge;
large ones run on Spark (`merge_spark`). What a merge is says `merging`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from omnigraph_spark.arrow.frame_batches import TABLE
from omnigraph_spark.errors import MergeConflictError
from omnigraph_spark.merge import merging
from omnigraph_spark.merge.on_spark import OnSpark
from omnigraph_spark.merge.rules import FAIL
from omnigraph_spark.merge.tables import Here, Runner, TableMerge
from omnigraph_spark.options import WriteOptions
from omnigraph_spark.storage.store import Storage
from omnigraph_spark.write.commit.commit import Committed

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from omnigraph_spark.graph import OmniGraph

BYTES_HERE = 16 << 20
"""Merges that have to read at most so many bytes of files run in the calling process."""
CONFLICT_SCHEMA = (
    f"{TABLE} STRING, id STRING, conflict STRING, base STRING, ours STRING, theirs STRING"
)


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
    (the target's), `theirs` (the source's), or `fail`. Edges that would be left dangling, and
    doubled ids under `fail` and `theirs`, are refused whatever it says.

    Raises:
        IntegrityError: the merged graph would break a rule; nothing was published.
        MergeConflictError: both sides changed the same rows; nothing was written. It has the counts
            and the frame of the conflicts.
        BranchNotFoundError: no such branch.
        OptionError: a branch into itself, or a resolution of another name.
        UnsupportedError: no common commit, or no fast-forward where only that is wanted.
        SchemaMismatchError: the source's table has other columns than the target's.
        ExpectedVersionMismatch: another writer published to the target meanwhile; nothing was
        published.
        PublishOutcomeUnknown, StorageError: as every write.
    """
    storage = Storage.at(options.path, options.storage)
    resolve = merging.resolver(resolution)
    with _running(graph) as start:
        prepared = merging.prepare(
            storage,
            source,
            options.branch,
            start,
            resolve,
            only_fast_forward=only_fast_forward,
        )
        sides = prepared.sides
        result = Merged(
            base_commit=sides.base_commits[0].graph_commit_id,
            source_commit=sides.heads[0].graph_commit_id,
            target_commit=sides.heads[1].graph_commit_id,
            tables=prepared.written,
            dropped=prepared.dropped,
            fast_forward=sides.fast_forward,
            conflicts=prepared.counts,
            conflict_rows=_conflicts(graph, prepared),
        )
        if dry_run:
            return result
        if prepared.counts:
            raise MergeConflictError(source, options.branch, prepared.counts, result.conflict_rows)
        return replace(result, committed=merging.publish(prepared, options))


@contextmanager
def _running(graph: OmniGraph) -> Iterator[merging.Start]:
    """Give what starts runners, and close them in the end."""
    runners: list[OnSpark] = []

    def start(storage: Storage, merges: Sequence[TableMerge]) -> Runner:
        if sum(table.size() for table in merges) <= BYTES_HERE:
            return Here(storage, merges)
        runners.append(OnSpark(graph.spark, storage, merges))
        return runners[-1]

    try:
        yield start
    finally:
        for runner in runners:
            runner.close()


def _conflicts(graph: OmniGraph, prepared: merging.Prepared) -> DataFrame:
    rows = list(prepared.rows)
    if isinstance(prepared.runner, Here):
        rows += prepared.runner.conflicts()
    frame = graph.spark.createDataFrame(rows, CONFLICT_SCHEMA)
    if isinstance(prepared.runner, OnSpark):
        frame = frame.unionAll(prepared.runner.conflicts())
    return frame
