"""Compact tables and bring their indices up to date: built aside, then one publish for all tables.

The driver plans; the rows are rewritten wherever `run` does it, on Spark's executors
(`spark_tasks`) or in this process (`run_here`); indices are built on the driver. Which tables:
those that live on the branch itself. What a branch inherits is its parent's to optimize.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from omnigraph_spark.errors import OptionError, did_you_mean
from omnigraph_spark.maintenance import compacting, indices
from omnigraph_spark.maintenance.compacting import Detached, Group
from omnigraph_spark.maintenance.indices import TableIndex
from omnigraph_spark.maintenance.prepared import Prepared
from omnigraph_spark.maintenance.rounds import Maintained, maintain
from omnigraph_spark.manifest.rows import INDEX, OPTIMIZE
from omnigraph_spark.manifest.snapshot import Snapshot, TableEntry, load
from omnigraph_spark.storage import layout
from omnigraph_spark.storage.lance_errors import translated
from omnigraph_spark.storage.progress import Progress, described
from omnigraph_spark.storage.store import Storage
from omnigraph_spark.write.plan import Settings

if TYPE_CHECKING:
    from lance import LanceDataset
    from pyspark.sql import SparkSession

    from omnigraph_spark.manifest.snapshot import TableEntry
    from omnigraph_spark.storage.store import Storage

TARGET_ROWS = 1_048_576
DELETIONS = 0.1

Run = Callable[[Storage, TableEntry, Sequence[str]], list[str]]
"""Runs the tasks of one table's compaction and returns their results."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class OptimizedTable:
    """What was done to one table: fragments before and after, and the indices rebuilt."""

    table_key: str
    fragments_before: int
    fragments_after: int
    indices: tuple[str, ...] = ()


@dataclass(frozen=True)
class Optimized:
    """What `optimize` published: None and no tables if there was nothing to do."""

    publish_id: str | None
    graph_version: int | None
    tables: tuple[OptimizedTable, ...] = ()


def optimize(
    storage: Storage,
    branch: str,
    tables: Iterable[str] | None,
    run: Run,
    *,
    target_rows: int = TARGET_ROWS,
    deletions: float = DELETIONS,
    settings: Settings | None = None,
    actor: str | None = None,
) -> Optimized:
    """Compact tables (None: all that live on the branch) and let their indices cover all rows.

    Raises:
        OptionError: `target_rows` or `deletions` is out of range.
        TableNotFoundError: a table isn't there.
        CommitTimeoutError: writers were first again and again; nothing was published.
        OmnigraphError: as `maintain`; nothing was published.
    """
    if target_rows < 1 or not 0 <= deletions <= 1:
        raise OptionError(
            "optimize can't work with these sizes",
            expected="target_rows of at least 1, deletions from 0 to 1",
            found=f"target_rows={target_rows}, deletions={deletions}",
        )
    done: dict[str, OptimizedTable] = {}
    keys = _keys(load(storage, branch), tables)
    progress = Progress(OPTIMIZE, len(keys) + 1)

    def prepare(entry: TableEntry) -> Prepared | None:
        dataset = storage.dataset(entry.location, entry.table_branch, entry.table_version)
        existing = indices.present(dataset)
        tasks = compacting.plan(dataset, target_rows, deletions, sorted(_untouchable(existing)))
        groups: list[Group] = []
        if tasks:
            _log.info("optimize: %s has %d group(s) of fragments", entry.table_key, len(tasks))
            groups = compacting.groups_of(run(storage, entry, tasks))
        prepared = _prepared(storage, entry, dataset, existing, groups)
        if prepared is not None:
            before = len(indices.fragment_ids(dataset))
            change = sum(len(group.new) - len(group.old) for group in groups)
            built = tuple(sorted(index.name for index in prepared.added))
            done[entry.table_key] = OptimizedTable(entry.table_key, before, before + change, built)
        progress.step(f"{entry.table_key} is rewritten" if groups else f"{entry.table_key} is tidy")
        return prepared

    finished = maintain(
        storage,
        branch,
        keys,
        prepare,
        mode=OPTIMIZE,
        settings=settings or Settings(),
        actor=actor,
    )
    progress.step("published" if finished.publish_id else "nothing to do")
    return Optimized(
        finished.publish_id, finished.graph_version, tuple(done[key] for key in finished.tables)
    )


def optimize_indices(
    storage: Storage,
    branch: str,
    tables: Iterable[str] | None,
    settings: Settings | None = None,
    actor: str | None = None,
) -> Maintained:
    """Let the indices of tables cover all rows; no rows are rewritten.

    Raises:
        TableNotFoundError: a table isn't there.
        OmnigraphError: as `maintain`; nothing was published.
    """

    def prepare(entry: TableEntry) -> Prepared | None:
        dataset = storage.dataset(entry.location, entry.table_branch, entry.table_version)
        return _prepared(storage, entry, dataset, indices.present(dataset), [])

    keys = _keys(load(storage, branch), tables)
    return maintain(
        storage, branch, keys, prepare, mode=INDEX, settings=settings or Settings(), actor=actor
    )


def create_index(
    storage: Storage,
    branch: str,
    table: str,
    column: str,
    kind: str,
    name: str | None,
    settings: Settings | None = None,
    actor: str | None = None,
) -> Maintained:
    """Build an index on a column and publish it; one of that name on the column is rebuilt.

    Raises:
        OptionError: no such type or column, or the name belongs to another column.
        TableNotFoundError: the table isn't there.
        UnsupportedError: the column's type has no such index.
        OmnigraphError: as `maintain`; nothing was published.
    """
    kind = indices.kind_named(kind)
    key = load(storage, branch).resolve(table)

    def prepare(entry: TableEntry) -> Prepared | None:
        dataset = storage.dataset(entry.location, entry.table_branch, entry.table_version)
        chosen = name or f"{_column(dataset, entry, column)}_idx"
        same = [index for index in indices.present(dataset) if index.name == chosen]
        if same and same[0].columns != (column,):
            raise OptionError(
                f"{entry.table_key} has an index {chosen} on {', '.join(same[0].columns)}",
                expected="another name",
            )
        fragments = indices.fragment_ids(dataset)
        built = indices.build(dataset, chosen, kind, column, {}, fragments)
        return Prepared.of(entry, dataset, added=(built,), dropped=frozenset({chosen}))

    return maintain(
        storage, branch, [key], prepare, mode=INDEX, settings=settings or Settings(), actor=actor
    )


def drop_index(
    storage: Storage,
    branch: str,
    table: str,
    name: str,
    settings: Settings | None = None,
    actor: str | None = None,
) -> Maintained:
    """Drop an index and publish the table without it; queries answer the same, slower.

    Raises:
        OptionError: the table has no index of that name.
        TableNotFoundError: the table isn't there.
        OmnigraphError: as `maintain`; nothing was published.
    """
    key = load(storage, branch).resolve(table)

    def prepare(entry: TableEntry) -> Prepared | None:
        dataset = storage.dataset(entry.location, entry.table_branch, entry.table_version)
        indices.find(indices.present(dataset), name)
        return Prepared.of(entry, dataset, dropped=frozenset({name}))

    return maintain(
        storage, branch, [key], prepare, mode=INDEX, settings=settings or Settings(), actor=actor
    )


def run_here(storage: Storage, entry: TableEntry, tasks: Sequence[str]) -> list[str]:
    """Run the tasks in this process, one after the other.

    Raises:
        StorageError: the store failed.
    """
    return compacting.execute(
        storage, entry.location, entry.table_branch, entry.table_version, tasks
    )


def _keys(snapshot: Snapshot, tables: Iterable[str] | None) -> list[str]:
    """Return the keys of the tables to work on; inherited ones are left out."""
    own = layout.lance_branch(snapshot.branch)
    requested = snapshot.tables if tables is None else sorted(map(snapshot.resolve, tables))
    keys = [key for key in requested if snapshot.tables[key].table_branch == own]
    left = sorted(set(requested) - set(keys))
    if left:
        _log.info("%s: inherited by %s, left alone", ", ".join(left), snapshot.branch)
    return keys


def _untouchable(existing: Sequence[TableIndex]) -> frozenset[int]:
    """Return the fragments under indices that can't be built again here, such as vector indices."""
    fixed = [index for index in existing if not index.buildable]
    for index in fixed:
        _log.warning(
            "index %s (%s) can't be built again here: what it covers stays as it is",
            index.name,
            index.type,
        )
    return frozenset(number for index in fixed for number in index.covered)


def _prepared(
    storage: Storage,
    entry: TableEntry,
    dataset: LanceDataset,
    existing: Sequence[TableIndex],
    groups: Sequence[Group],
) -> Prepared | None:
    """Build the indices over what the table is going to be; None if nothing is to be done."""
    if not groups:
        added = _segments(dataset, existing)
        if not added:
            return None
        return Prepared.of(entry, dataset, added=added, dropped=_names(added))
    address = (storage, entry.location, entry.table_branch)
    with Detached(*address, dataset, groups) as (beside, final):
        added = _segments(beside, existing)
        return Prepared.of(entry, dataset, groups=tuple(final), added=added, dropped=_names(added))


def _segments(dataset: LanceDataset, existing: Sequence[TableIndex]) -> tuple[Any, ...]:
    built = []
    for index in existing:
        if index.buildable and (segment := indices.covering(dataset, index)) is not None:
            _log.info("optimize: index %s covers all rows", index.name)
            built.append(segment)
    return tuple(built)


def _names(added: Iterable[Any]) -> frozenset[str]:
    return frozenset(str(index.name) for index in added)


def _column(dataset: LanceDataset, entry: TableEntry, column: str) -> str:
    with translated(f"Reading the columns of {entry.table_key}"):
        names = list(dataset.schema.names)
    if column not in names:
        raise OptionError(
            f"{entry.table_key} has no column {column[:60]!r}",
            expected=", ".join(names[:60]),
            hint=did_you_mean(column, names),
        )
    return column


def run_on_spark(spark: SparkSession) -> Run:
    """Return what runs each task of a compaction as a task of Spark.

    As a plain user-defined function: `mapInArrow` asks for pandas, and there are no RDDs in Spark
    Connect. A task that Spark runs twice leaves files that no version names.
    """
    from pyspark.sql.functions import udf

    def run(storage: Storage, entry: TableEntry, tasks: Sequence[str]) -> list[str]:
        address = (storage, entry.location, entry.table_branch, entry.table_version)

        def compact(task: str) -> str:
            return compacting.execute(*address, [task])[0]

        frame = spark.createDataFrame([(task,) for task in tasks], "task string")
        compacted = udf(compact, "string", useArrow=False).asNondeterministic()
        done = frame.repartition(len(tasks)).select(compacted("task").alias("done"))
        with described(spark, f"OmniGraph.optimize: compact {entry.table_key}"):
            return [str(row.done) for row in done.collect()]

    return run
