"""A merge of two branches from beginning to end, whatever runs its tables; without Spark.

The driver reads the lineage and the three snapshots (common ancestor, source, target) and plans,
from metadata, which rows the merge has to look at (`merge_sides`). A `Runner` reads and decides
them; what it comes to is one commit with two parents: upserts and deletes of the rows that change,
and new tables. The publish expects every table of the target at the version that was merged: a
rival's publish refuses it.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import pyarrow as pa

from omnigraph_spark.errors import (
    ExpectedVersionMismatch,
    OptionError,
    SchemaMismatchError,
    UnsupportedError,
)
from omnigraph_spark.history.commits import Commit
from omnigraph_spark.integrity.rules import of_write
from omnigraph_spark.integrity.values import MOST_SAMPLES
from omnigraph_spark.manifest import known_types
from omnigraph_spark.manifest.snapshot import Snapshot, TableEntry, load, open_manifest, read_rows
from omnigraph_spark.manifest.writable import refuse_made_again
from omnigraph_spark.merge import edges
from omnigraph_spark.merge.columns import merge_columns, one_column
from omnigraph_spark.merge.edges import After
from omnigraph_spark.merge.rules import DELETE_UPDATE, FAIL, ORPHAN, OURS, SOURCE, TARGET, THEIRS
from omnigraph_spark.merge.tables import Outcome, Runner, TableMerge
from omnigraph_spark.options import WriteOptions
from omnigraph_spark.refs import property_files
from omnigraph_spark.refs.merge_base import Lines, head_commit, joined, merge_bases
from omnigraph_spark.schema.model import EdgeType, EngineSchema, NodeType
from omnigraph_spark.storage import layout
from omnigraph_spark.storage.opened import Opened
from omnigraph_spark.storage.progress import Progress
from omnigraph_spark.storage.relocation import open_for_reading
from omnigraph_spark.storage.store import Storage
from omnigraph_spark.write import staging
from omnigraph_spark.write.commit.commit import Committed, commit
from omnigraph_spark.write.plan import (
    MERGE,
    NewTable,
    TableTarget,
    WritePlan,
    head,
    plan_write,
    refuse_moved_on,
)
from omnigraph_spark.write.reads import edge_key

_log = logging.getLogger(__name__)

Start = Callable[[Storage, Sequence[TableMerge]], Runner]
"""Makes what runs the merges of tables."""
ConflictRow = tuple[str | None, ...]
"""Table key, id, kind, and the rows of base, ours and theirs as JSON."""


@dataclass(frozen=True)
class Sides:
    """The snapshots, and the commits that they are of: the bases (mostly one), source, target."""

    bases: tuple[Snapshot, ...]
    source: Snapshot
    target: Snapshot
    base_commits: tuple[Commit, ...]
    heads: tuple[Commit, Commit]
    lines: Lines

    @classmethod
    def of(cls, storage: Storage, source: str, into: str) -> Sides:
        """Load the heads of two branches and their newest common commits."""
        theirs, ours = (known_types.load_with_types(storage, branch) for branch in (source, into))
        lines = Lines(storage)
        heads = head_commit(storage, theirs, lines), head_commit(storage, ours, lines)
        common = merge_bases(storage, *heads, lines)
        bases = tuple(load(storage, base.branch, base.manifest_version) for base in common)
        return cls(bases, theirs, ours, tuple(common), heads, lines)

    @property
    def fast_forward(self) -> bool:
        """Return whether the target is still where the source began."""
        return [base.graph_commit_id for base in self.base_commits] == [
            self.heads[1].graph_commit_id
        ]

    def is_as_before(self, side: Snapshot, key: str) -> bool:
        """Return whether a side has a table at the version of every base."""
        return all(pin(side, key) == pin(base, key) for base in self.bases)

    def changed(self) -> list[str]:
        """Return the tables that the source changed in another way than the target."""
        every = {
            key for snapshot in (*self.bases, self.source, self.target) for key in snapshot.tables
        }
        return [
            key
            for key in sorted(every)
            if pin(self.source, key) != pin(self.target, key)
            and not self.is_as_before(self.source, key)
        ]

    def of_table(self, key: str) -> dict[str, TableEntry | None]:
        """Return what each side has of a table, by the names of `merge_rules`."""
        sides = {f"b{number}": snapshot for number, snapshot in enumerate(self.bases)}
        sides |= {SOURCE: self.source, TARGET: self.target}
        return {
            name: replace(snapshot.tables[key], metadata={}) if key in snapshot.tables else None
            for name, snapshot in sides.items()
        }


def pin(snapshot: Snapshot, key: str) -> tuple[str | None, int] | None:
    """Return which version of which line a snapshot pins for a table, None where it has none."""
    entry = snapshot.tables.get(key)
    return None if entry is None else (entry.table_branch, entry.table_version)


@dataclass
class Prepared:
    """A merge that is decided and not written.

    `rows` are conflicts beside those that `runner` has; `counts` are of both, by table and kind.
    `mark` is the table that gets a version without a change, where nothing else would record that
    the source is merged: the next merge would begin at the same base and undo what came since.
    """

    storage: Storage
    sides: Sides
    runner: Runner
    written: tuple[str, ...]
    dropped: tuple[str, ...]
    rows: list[ConflictRow] = field(default_factory=list)
    counts: Mapping[tuple[str, str], int] = field(default_factory=dict)
    mark: str | None = None
    merges: Mapping[str, TableMerge] = field(default_factory=dict)
    opened: Opened = field(default_factory=Opened)


def resolver(resolution: str | Mapping[str, str]) -> Callable[[str], str]:
    """Return what gives the resolution of a table.

    Raises:
        OptionError: a key that is not a valid table key, or a resolution of another name.
    """
    by_key = {} if isinstance(resolution, str) else dict(resolution)
    otherwise = resolution if isinstance(resolution, str) else FAIL
    for key in by_key:
        layout.split_table_key(key)
    for chosen in (otherwise, *by_key.values()):
        if chosen not in (OURS, THEIRS, FAIL):
            raise OptionError(
                f"{chosen[:40]!r} is not a resolution", expected=f"{OURS}, {THEIRS} or {FAIL}"
            )
    return lambda key: by_key.get(key, otherwise)


def prepare(
    storage: Storage,
    source: str,
    into: str,
    start: Start,
    resolve: Callable[[str], str],
    *,
    only_fast_forward: bool = False,
) -> Prepared:
    """Decide the merge of branch `source` into `into`; writes nothing.

    Raises:
        BranchNotFoundError: no such branch.
        OptionError: a branch into itself.
        UnsupportedError: no common commit, or no fast-forward where only that is wanted.
        SchemaMismatchError: both sides changed a column in different ways.
        StorageError: the store failed.
    """
    if source == into:
        raise OptionError("A branch can't be merged into itself", found=source)
    opened = Opened()
    with opened.used():
        prepared = _prepared(storage, source, into, start, resolve, only_fast_forward)
    return replace(prepared, opened=opened)


def _prepared(
    storage: Storage,
    source: str,
    into: str,
    start: Start,
    resolve: Callable[[str], str],
    only_fast_forward: bool,
) -> Prepared:
    sides = Sides.of(storage, source, into)
    if only_fast_forward and not sides.fast_forward:
        raise UnsupportedError(
            f"{into} has moved since {source} began: no fast-forward is possible",
            hint="Use merge",
        )
    work = _Work(storage, sides, start)
    for key in sides.changed():
        work.add(key, resolve(key))
    progress = Progress("merge", 2)
    runner = start(storage, work.merges)
    outcomes = runner.outcomes()
    progress.step("rows are compared")
    columns = {merge.table_key: merge.columns for merge in work.merges if merge.columns is not None}
    written = tuple(
        key
        for key, outcome in outcomes.items()
        if outcome.is_written()
        or sides_create(sides, key)
        or (key in columns and columns[key].is_changed)
    )
    dropped = tuple(work.dropped)
    ours, theirs = known_types.known_of(storage, (sides.target, sides.source))
    schema = ours.schema.with_types(theirs.schema)
    after = After(storage, sides.target, set(written), set(dropped), runner.facts)
    loose = edges.orphans(schema, after)
    progress.step("endpoints are checked")
    rows: list[ConflictRow] = [
        *((key, None, DELETE_UPDATE, None, None, None) for key in work.whole),
        *((key, name, ORPHAN, None, None, None) for key, name in loose),
    ]
    mark = None if written or dropped else _mark(sides)
    counts = _counts(outcomes, rows)
    changed = {merge.table_key: merge for merge in work.merges if merge.table_key in written}
    return Prepared(storage, sides, runner, written, dropped, rows, counts, mark, changed)


def _mark(sides: Sides) -> str | None:
    """Return the table that records a merge without changes; None if it needs no record.

    It needs none where one head is the base already: the next merge can't begin before it. The
    table is the smallest that the target has written itself, else the smallest that it has.
    """
    bases = {base.graph_commit_id for base in sides.base_commits}
    if any(bases == {head.graph_commit_id} for head in sides.heads):
        return None
    own = layout.lance_branch(sides.target.branch)
    ranked = sorted(
        (entry.table_branch != own, entry.row_count, key)
        for key, entry in sides.target.tables.items()
    )
    return ranked[0][2] if ranked else None


def sides_create(sides: Sides, key: str) -> bool:
    """Return whether a merge makes a table: the target doesn't have it."""
    return key not in sides.target.tables


def _counts(
    outcomes: Mapping[str, Outcome], rows: Sequence[ConflictRow]
) -> dict[tuple[str, str], int]:
    counts: Counter[tuple[str, str]] = Counter((str(row[0]), str(row[2])) for row in rows)
    for key, outcome in outcomes.items():
        counts.update({(key, kind): count for kind, count in outcome.conflicts.items()})
    return dict(counts)


@dataclass
class _Work:
    """Which tables are merged by rows, which go, and which are in conflict as a whole."""

    storage: Storage
    sides: Sides
    start: Start
    merges: list[TableMerge] = field(default_factory=list)
    dropped: list[str] = field(default_factory=list)
    whole: list[str] = field(default_factory=list)

    def add(self, key: str, resolution: str) -> None:
        """Take a table that the source changed."""
        source, target = (
            key in snapshot.tables for snapshot in (self.sides.source, self.sides.target)
        )
        if self.sides.is_as_before(self.sides.target, key):  # only the source changed it
            if source:
                self._merge(key, resolution)
            else:
                self.dropped.append(key)
        elif source and target:
            self._merge(key, resolution)
        elif self._is_same(key, SOURCE if source else TARGET):  # only one side did: it dropped it
            if target:
                self.dropped.append(key)
        elif resolution == THEIRS:
            if source:
                self._merge(key, resolution)
            else:
                self.dropped.append(key)
        elif resolution == FAIL:
            self.whole.append(key)

    def _merge(self, key: str, resolution: str) -> None:
        sides, bases = self.sides.of_table(key), self._bases()
        columns = None
        if sides[SOURCE] is not None and sides[TARGET] is not None:
            heads = {SOURCE: self.sides.source, TARGET: self.sides.target}
            columns = merge_columns(
                self.storage, sides, bases, heads, lambda side: self._joined(key, side)
            )
            for side, name in columns.dropped:
                self._refuse_values_lost(sides, side, name)
        self.merges.append(TableMerge.planned(self.storage, key, sides, bases, resolution, columns))

    def _refuse_values_lost(
        self, sides: Mapping[str, TableEntry | None], side: str, name: str
    ) -> None:
        """Refuse where one side dropped a column, and the other changed or added values of it.

        Raises:
            SchemaMismatchError: names the column.
        """
        bases = self._bases()
        entry, base = sides[side], sides[bases[0]]
        assert entry is not None
        assert base is not None
        base_version = (base.location, base.table_branch, base.table_version)
        columns = open_for_reading(self.storage, *base_version).schema.names
        compared = dict.fromkeys(bases, base) | {SOURCE: entry, TARGET: base}
        merge = TableMerge.planned(
            self.storage,
            base.table_key,
            compared,
            bases,
            FAIL,
            one_column(bases, name, [column for column in columns if column not in ("id", name)]),
        )
        merge = replace(merge, only_values_of=name)
        (outcome,) = self.start(self.storage, [merge]).outcomes().values()
        rows, samples = sum(outcome.conflicts.values()), sorted(outcome.samples)[:MOST_SAMPLES]
        if rows:
            pair = (self.sides.source.branch, self.sides.target.branch)
            on, gone = pair if side == SOURCE else pair[::-1]
            raise SchemaMismatchError(
                f"{gone} dropped {name} of {base.table_key}, and {on} changed or added its values",
                expected="values as they were in the newest common commit",
                found=f"{rows} rows with other or new values: id {', '.join(map(repr, samples))}",
                hint=f"Nothing was written. If they may go, call drop_property({base.table_key!r}, "
                f"{name!r}, branch={on!r}), then merge again",
                table_key=base.table_key,
                column=name,
                samples=samples,
            )

    def _joined(self, key: str, side: str) -> TableEntry | None:
        """Return what a side had of a table when it got what the one common commit has."""
        if len(self.sides.base_commits) != 1:
            return None
        head = self.sides.heads[0 if side == SOURCE else 1]
        joined_at = joined(self.storage, head, self.sides.base_commits[0], self.sides.lines)
        if joined_at is None:
            return None
        return load(self.storage, joined_at.branch, joined_at.manifest_version).tables.get(key)

    def _bases(self) -> list[str]:
        return [f"b{number}" for number in range(len(self.sides.bases))]

    def _is_same(self, key: str, side: str) -> bool:
        """Return whether a table holds the same rows as in every base."""
        sides = self.sides.of_table(key)
        bases = self._bases()
        if any(sides[name] is None for name in bases):
            return False
        compared = {name: sides[name] for name in bases}
        compared |= {SOURCE: sides[side], TARGET: sides[bases[0]]}
        merge = TableMerge.planned(self.storage, key, compared, bases, FAIL)
        (outcome,) = self.start(self.storage, [merge]).outcomes().values()
        return not outcome.is_written() and not outcome.conflicts


def _schema(storage: Storage, entry: TableEntry) -> pa.Schema:
    return open_for_reading(storage, entry.location, entry.table_branch, entry.table_version).schema


def publish(prepared: Prepared, options: WriteOptions) -> Committed:
    """Write what a merge decided in one commit, whose second parent is the source's head.

    Raises:
        ExpectedVersionMismatch: another writer published to the target meanwhile; nothing was
        published.
        OmnigraphError: as every write.
    """
    end = time.monotonic() + options.commit_timeout_seconds
    while True:
        with prepared.opened.used():
            planned = _planned(prepared, options)
        try:
            with staging.recorded(planned.storage, planned.publish_id) as planned_at:
                planned = replace(planned, planned_at=planned_at)
                with prepared.opened.used():
                    staged = prepared.runner.staged(planned)
                reshaped = {
                    key: target.schema
                    for key, target in planned.targets.items()
                    if target.has_new_columns
                }
                with property_files.in_step(planned.storage, reshaped, planned.types):
                    return commit(planned, staged)
        except ExpectedVersionMismatch as error:
            # Only maintenance may have come in between: then the rows are written again, to fit the
            # versions that it made, and planning refuses whatever else came.
            if time.monotonic() >= end:
                raise
            _log.info("merge %s: planning again: %s", planned.publish_id, error)


def _planned(prepared: Prepared, options: WriteOptions) -> WritePlan:
    """Plan a merge's write on the target's head, which holds the rows that were compared.

    Raises:
        ExpectedVersionMismatch: it doesn't any more.
        BranchNotFoundError: another branch has its name by now.
        OmnigraphError: as `plan_write`.
    """
    storage, sides = prepared.storage, prepared.sides
    options = replace(options, mode=MERGE)
    now = head(storage, options)
    refuse_made_again(options.branch, sides.target.identifier, now.identifier)
    keys = prepared.written if prepared.mark is None else (prepared.mark,)
    compared = {key: sides.target.version(key) for key in sorted({*sides.target.tables, *keys})}
    refuse_moved_on(storage, now, compared)
    new = _definitions(storage, sides, keys)
    planned = plan_write(storage, options, {key: new.get(key) for key in keys}, snapshot=now)
    planned = _with_columns(prepared, planned, options)
    return replace(
        planned,
        targets=_with_edge_keys(storage, sides.source, planned.targets),
        expected={key: now.version(key) for key in compared},
        dropped=prepared.dropped,
        merged_parent=sides.heads[0].graph_commit_id,
        txn_whole=planned.txn is not None,
    )


def _with_columns(prepared: Prepared, planned: WritePlan, options: WriteOptions) -> WritePlan:
    """Return a plan whose tables get the columns that the merge gives them, with their rules."""
    storage, sides, targets = prepared.storage, prepared.sides, dict(planned.targets)
    changed = {
        key: (merge, merge.columns)
        for key, merge in prepared.merges.items()
        if key in targets and merge.columns is not None and merge.columns.is_changed
    }
    if not changed:
        return planned
    ours, theirs = (
        known.schema for known in known_types.known_of(storage, (sides.target, sides.source))
    )
    types = []
    for key, (merge, columns) in changed.items():
        target, schema = targets[key], merge.schema(storage)
        targets[key] = replace(target, schema=schema, renamed=columns.renamed, added=columns.added)
        merged = columns.merged_type(ours.of_table(key), theirs.of_table(key), schema)
        types += [merged] if merged is not None else []
    if not types:
        return replace(planned, targets=targets)
    declared = EngineSchema.of(types)
    integrity = of_write(
        planned.integrity.level,
        planned.integrity.bad_records_path,
        declared.with_types(ours).with_types(planned.new_types),
        targets,
    )
    return replace(planned, targets=targets, types=declared, integrity=integrity)


def _with_edge_keys(
    storage: Storage, source: Snapshot, targets: Mapping[str, TableTarget]
) -> dict[str, TableTarget]:
    """Return targets that keep what the source records of the ids of its edges."""
    keyed = dict(targets)
    edges = [key for key in targets if layout.is_edge(key) and key in source.tables]
    if edges:
        rows = read_rows(open_manifest(storage, source.branch, source.graph_version))
    for key in edges:
        if names := edge_key(rows, key):
            keyed[key] = replace(keyed[key], edge_key=names, keeps_key=True)
    return keyed


def _definitions(storage: Storage, sides: Sides, keys: Sequence[str]) -> dict[str, NewTable]:
    """Return what is needed to create the tables that only the source has."""
    new = [key for key in keys if key not in sides.target.tables]
    if not new:
        return {}
    known = known_types.known(storage, sides.source).schema
    definitions = {}
    for key in new:
        table_type = known.of_table(key)
        definitions[key] = NewTable(
            schema=_schema(storage, sides.source.tables[key]),
            key=table_type.key if isinstance(table_type, NodeType) else None,
            endpoints=(table_type.source, table_type.target)
            if isinstance(table_type, EdgeType)
            else None,
            carried={each.name: each.type for each in table_type.properties}
            if table_type is not None
            else {},
        )
    return definitions
