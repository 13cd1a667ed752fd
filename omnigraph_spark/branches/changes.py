"""The change feed: what each publish of a branch changed, row by row, as one DataFrame.

Planning runs on the driver: it reads the lineage and one snapshot per publish, and no rows. A table
counts only where its version moved. What consecutive appends brought is one scan of the last
version, since Lance keeps the version at which each row was made; anything else is the comparison
of the table before and after the publish (`diff`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import TYPE_CHECKING

from pyspark.sql.types import LongType, StringType, StructType, TimestampType

from omnigraph_spark.branches.diff import (
    CHANGE,
    INSERT,
    Tables,
    column,
    frame_at,
    gathered,
    known_tables,
    pin,
    table_diff,
)
from omnigraph_spark.branches.restore import on_lineage
from omnigraph_spark.errors import OptionError
from omnigraph_spark.history import commits
from omnigraph_spark.history.publishes import publishes_between
from omnigraph_spark.manifest.snapshot import Snapshot, load
from omnigraph_spark.storage import Storage

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from omnigraph_spark.graph import OmniGraph

_VERSION, _TIME, _COMMIT = "_commit_version", "_commit_timestamp", "_commit_id"
_LEADING = {
    CHANGE: StringType(),
    _VERSION: LongType(),
    _TIME: TimestampType(),
    _COMMIT: StringType(),
}
_MADE_AT = "_row_created_at_version"
_APPEND = "append"


@dataclass(frozen=True)
class _Publish:
    """A publish of the branch's lineage, and the snapshots before and after it."""

    version: int
    commit_id: str
    created_at: datetime
    before: Snapshot
    after: Snapshot


def changes(
    graph: OmniGraph,
    storage: Storage,
    branch: str,
    start: str,
    end: str | None,
    table: str | None = None,
) -> DataFrame:
    """Return what the publishes from `start` to `end`, both included, changed; evaluates nothing.

    The columns: `_table`, `_change_type` (as in `diff`), `_commit_version`, `_commit_timestamp`,
    `_commit_id`, then a whole-graph frame's. `start` and `end` are graph versions, commit ids or
    tags of the branch's lineage; `end` None is its head.

    Raises:
        VersionNotFoundError: no such version, or one that is needed was cleaned up.
        OptionError: a version that the branch never had, or an end before the start.
        TableNotFoundError: no version from start to end has the table.
        SchemaMismatchError, UnsupportedError: as `diff`.
        StorageError: the store failed.
    """
    first = on_lineage(storage, branch, start).version
    head = load(storage, branch)
    last = head.graph_version if end is None else on_lineage(storage, branch, end).version
    assert first is not None
    assert last is not None
    if last < first:
        raise OptionError("The end is before the start", found=f"{first} to {last}")
    publishes = list(_publishes(storage, head, first, last))
    known = _columns(graph, [head, *(one.after for one in publishes)])
    if table is not None:
        key = _resolved(table, head, publishes)
        known = {key: known[key]}
    parts = [part for key in known for part in _of_table(graph, key, publishes)]
    return gathered(graph, known, parts, _LEADING)


def _publishes(storage: Storage, head: Snapshot, first: int, last: int) -> Iterator[_Publish]:
    """Yield the publishes from `first` to `last`, those included that have no lineage row yet."""
    told = [
        (one.branch, one.manifest_version, one.graph_commit_id, one.created_at)
        for one in commits.read_commits(storage, head.branch)
    ]
    newest = told[-1][1] if told else 0
    told += [
        (head.branch, one.graph_version, one.publish_id, one.created_at)
        for one in publishes_between(storage, head.branch, newest, head.graph_version + 1)
    ]
    before: Snapshot | None = None
    for number, (branch, version, commit_id, created_at) in enumerate(told):
        if not first <= version <= last:
            continue
        if before is None:
            before = (
                load(storage, *told[number - 1][:2]) if number else Snapshot(branch, 0, {}, {}, {})
            )
        after = load(storage, branch, version)
        yield _Publish(version, commit_id, created_at, before, after)
        before = after


def _columns(graph: OmniGraph, snapshots: list[Snapshot]) -> Tables:
    """Return the columns of every table, each as the newest of the snapshots has it."""
    known: dict[str, StructType] = {}
    for snapshot in sorted(snapshots, key=lambda one: -one.graph_version):
        if set(snapshot.tables) - set(known):
            known = {**known_tables(graph, snapshot), **known}
    return known


def _resolved(table: str, head: Snapshot, publishes: list[_Publish]) -> str:
    for one in reversed(publishes):
        if table in one.after.tables or table in {k.partition(":")[2] for k in one.after.tables}:
            return one.after.resolve(table)
    return head.resolve(table)


def _of_table(
    graph: OmniGraph, key: str, publishes: list[_Publish]
) -> Iterator[tuple[str, DataFrame]]:
    """Yield the changes of one table: a frame per run of appends, one per other publish."""
    run: list[_Publish] = []
    for one in publishes:
        if pin(one.before, key) == pin(one.after, key):
            continue
        if _is_append(one, key):
            run.append(one)
            continue
        if run:
            yield key, _appended(graph, key, run)
            run = []
        rows = table_diff(frame_at(graph, one.before, key), frame_at(graph, one.after, key), key)
        yield key, _marked(rows, one)
    if run:
        yield key, _appended(graph, key, run)


def _is_append(one: _Publish, key: str) -> bool:
    there = key in one.before.tables and key in one.after.tables
    return there and one.after.tables[key].ours.get("mode") == _APPEND


def _marked(rows: DataFrame, one: _Publish) -> DataFrame:
    from pyspark.sql import functions as sf

    return rows.select(
        "*",
        sf.lit(one.version).cast("long").alias(_VERSION),
        sf.lit(one.created_at.replace(tzinfo=timezone.utc)).alias(_TIME),
        sf.lit(one.commit_id).alias(_COMMIT),
    )


def _appended(graph: OmniGraph, key: str, run: list[_Publish]) -> DataFrame:
    """Return what a run of appends brought: the rows of the last version that were made since.

    A publish owns the rows made above the version pinned before it, up to its own: versions that a
    healing skipped have no rows of their own.
    """
    from pyspark.sql import functions as sf

    last = run[-1].after
    rows = graph.table(
        key, branch=last.branch, version=last.graph_version, metadata_columns=[_MADE_AT]
    )
    since = run[0].before.tables[key].table_version
    ranges = graph.spark.createDataFrame(
        [
            (
                one.before.tables[key].table_version,
                one.after.tables[key].table_version,
                one.version,
                one.created_at.replace(tzinfo=timezone.utc),
                one.commit_id,
            )
            for one in run
        ],
        f"_lo LONG, _hi LONG, {_VERSION} LONG, {_TIME} TIMESTAMP, {_COMMIT} STRING",
    )
    made = column(_MADE_AT)
    joined = rows.where(made > since).join(
        sf.broadcast(ranges), (made > sf.col("_lo")) & (made <= sf.col("_hi"))
    )
    return joined.drop("_lo", "_hi", _MADE_AT).withColumn(CHANGE, sf.lit(INSERT))
