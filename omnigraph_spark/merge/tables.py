"""The merge of single tables: read what differs, decide it, stage what the target gets.

Without Spark: `Here` does it all in this process, for merges of few bytes; `merge_spark` gives the
same functions to Spark's tasks. A table is decided in buckets, each of which has all rows of its
ids.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Protocol

import numpy as np
import pyarrow as pa

from omnigraph_spark.arrow.to_table import table_schema
from omnigraph_spark.integrity.screen import Screen
from omnigraph_spark.integrity.values import MOST_SAMPLES
from omnigraph_spark.manifest.snapshot import TableEntry
from omnigraph_spark.merge import rules
from omnigraph_spark.merge import sides as merge_sides
from omnigraph_spark.merge.columns import Columns, Names
from omnigraph_spark.merge.rules import DOUBLED, OURS, SOURCE, TARGET, Conflict, Decision
from omnigraph_spark.merge.sides import Piece, Sides
from omnigraph_spark.storage import layout
from omnigraph_spark.storage.opened import version_of
from omnigraph_spark.storage.relocation import open_for_reading
from omnigraph_spark.storage.store import Storage
from omnigraph_spark.write.plan import TableTarget, WritePlan
from omnigraph_spark.write.tasks import matches, stage
from omnigraph_spark.write.tasks.lookup import Known, looked_up, lookup
from omnigraph_spark.write.tasks.stage import StagedTable

if TYPE_CHECKING:
    from lance import LanceDataset

Rows = Mapping[str, pa.Table]
"""Rows of one table by the name of the version."""


@dataclass(frozen=True)
class TableMerge:
    """One table of a merge, as plain data; `bases` are names of versions in `sides`.

    A table that the target doesn't have is taken from the source as it is, without `columns`.
    With `only_values_of` a column nothing is merged: rows of the source are conflicts if they
    have other values of it than the target, or bring one.
    """

    table_key: str
    sides: Sides
    bases: tuple[str, ...]
    resolution: str
    pieces: tuple[Piece, ...]
    columns: Columns | None = None
    only_values_of: str | None = None

    @classmethod
    def planned(
        cls,
        storage: Storage,
        key: str,
        sides: Sides,
        bases: Sequence[str],
        resolution: str,
        columns: Columns | None = None,
    ) -> TableMerge:
        """Plan the merge of a table from its metadata; on the driver.

        Raises:
            VersionNotFoundError, StorageError: a table version isn't there.
        """
        needed = sides if sides[TARGET] is not None else {SOURCE: sides[SOURCE]}
        pieces = tuple(merge_sides.pieces(storage, needed))
        return cls(key, sides, tuple(bases), resolution, pieces, columns)

    def size(self) -> int:
        """Return the bytes on disk of what has to be read."""
        return sum(piece.size * len(piece.places) for piece in self.pieces)

    def dataset(self, storage: Storage) -> LanceDataset:
        """Open the version that the merged table extends."""
        entry = self.sides[TARGET] or self.sides[SOURCE]
        assert entry is not None
        return open_for_reading(storage, entry.location, entry.table_branch, entry.table_version)

    def schema(self, storage: Storage) -> pa.Schema:
        """Return the columns of the merged table."""
        target = self.dataset(storage).schema
        if self.columns is None or not self.columns.is_changed:
            return target
        source = target
        if self.columns.added:
            entry = self.sides[SOURCE]
            assert entry is not None
            pin = (entry.location, entry.table_branch, entry.table_version)
            source = open_for_reading(storage, *pin).schema
        return self.columns.merged(target, source)

    def named_on(self, side: str) -> Names | None:
        """Return what a version calls the merged columns; None: as they are."""
        return None if self.columns is None else self.columns.names.get(side)


@dataclass(frozen=True)
class Facts:
    """What the check of endpoints has to know of some ids of a table.

    `gone` are ids of rows that the target loses, `came` the ids of those it gets that it hadn't;
    of an edge table `brought` has the id, `src` and `dst` of all that it gets.
    """

    gone: pa.Array
    came: pa.Array
    brought: pa.Table | None


@dataclass
class Outcome:
    """What the merge of a table comes to, counted; `samples` are ids in conflict, some of them."""

    taken: int = 0
    gone: int = 0
    settled: int = 0
    conflicts: Counter[str] = field(default_factory=Counter)
    samples: list[str] = field(default_factory=list)

    def add(self, decided: Decision) -> None:
        """Count one bucket's decision."""
        self.taken += decided.taken.num_rows
        self.gone += len(decided.gone)
        self.settled += decided.settled
        self.conflicts.update(kind for _, kind, *_ in decided.conflicts)
        self.samples += [id_ for id_, *_ in decided.conflicts[:MOST_SAMPLES]]

    def is_written(self) -> bool:
        """Return whether the table gets a version; one that only settles has to be in a commit."""
        return bool(self.taken or self.gone or self.settled)


class Runner(Protocol):
    """Runs the merges of tables somewhere; what it decided it keeps until it is closed."""

    def outcomes(self) -> dict[str, Outcome]:
        """Decide all tables; returns what each comes to."""
        ...

    def facts(self, key: str) -> Iterable[Facts]:
        """Return what edges have to know of a table, in pieces of bounded size."""
        ...

    def staged(self, plan: WritePlan) -> list[StagedTable]:
        """Write what the target's tables get as fragments; commits nothing."""
        ...


def rows_of(storage: Storage, merge: TableMerge, pieces: Iterable[Piece]) -> dict[str, pa.Table]:
    """Read pieces of a table: the rows by version, in the columns of the merged table.

    Raises:
        SchemaMismatchError, IntegrityError: a version holds what the table's schema can't.
        StorageError: the store failed.
    """
    schema = merge.schema(storage)
    read = table_schema(schema)
    batches: dict[str, list[pa.RecordBatch]] = {side: [] for side in merge.sides}
    for piece in pieces:
        names = merge.named_on(piece.places[0].side)
        for side, batch in merge_sides.read(storage, piece, schema, merge.table_key, names):
            batches[side].append(batch)
    return {side: pa.Table.from_batches(parts, read) for side, parts in batches.items()}


def columns(storage: Storage, merge: TableMerge) -> pa.Schema:
    """Return the columns of what `rows_of` reads."""
    return table_schema(merge.schema(storage))


def decided(storage: Storage, merge: TableMerge, rows: Rows) -> Decision:
    """Decide some ids of a table, `rows` having all of theirs.

    Raises:
        StorageError: the store failed.
    """
    if merge.sides[TARGET] is None:
        new = rows[SOURCE]
        none = pa.array([], pa.utf8())
        zeros = np.zeros(new.num_rows, dtype=np.int64)
        return Decision(new, zeros, none, np.zeros(0, dtype=np.int64), ())
    decision = rules.decide(rows, merge.bases, merge.resolution)
    if merge.only_values_of is not None:
        return rules.values_lost(decision, merge.only_values_of)
    return _without_doubles(merge, merge.dataset(storage), decision)


def _without_doubles(merge: TableMerge, target: LanceDataset, decision: Decision) -> Decision:
    """Return a decision without ids of which the target holds more rows than were compared.

    Those are doubled: a row of each is the same in all versions, and it is unclear which of them
    is meant.
    """
    new = decision.taken["id"].combine_chunks()
    ids = pa.concat_arrays([new, decision.gone.cast(new.type)])
    if not len(ids):
        return decision
    known = Known(ids, lookup(target, ids))
    stored = np.bincount(known.found.positions, minlength=len(ids))
    expected = np.concatenate([decision.replaced, decision.gone_rows])
    doubled = (stored != expected) | (np.arange(len(ids)) < len(new)) & (expected > 1)
    if not doubled.any():
        return replace(decision, known=known)
    single = pa.array(~doubled)
    conflicts: list[Conflict] = [
        (row_id, DOUBLED, None, None, None) for row_id in ids.filter(pa.array(doubled)).to_pylist()
    ]
    is_ours = merge.resolution == OURS
    first, rest = single.slice(0, len(new)), single.slice(len(new))
    return Decision(
        taken=decision.taken.filter(first),
        replaced=decision.replaced[first.to_numpy(zero_copy_only=False)],
        gone=decision.gone.filter(rest),
        gone_rows=decision.gone_rows[rest.to_numpy(zero_copy_only=False)],
        conflicts=decision.conflicts if is_ours else (*decision.conflicts, *conflicts),
        settled=decision.settled + (len(conflicts) if is_ours else 0),
        known=known,
    )


def facts_of(merge: TableMerge, found: Decision) -> Facts:
    """Return what edges have to know of a decision."""
    new = found.taken["id"].filter(pa.array(found.replaced == 0)).combine_chunks()
    brought = None
    if layout.is_edge(merge.table_key):
        brought = found.taken.select(["id", "src", "dst"])
    return Facts(found.gone, new, brought)


def staged_rows(plan: WritePlan, merge: TableMerge, found: Decision) -> list[StagedTable]:
    """Write what the target gets of a decision as fragments, and name what it loses.

    Raises:
        IntegrityError: a row of the source breaks a rule of values that the merge checks.
        IntegrityError, StorageError: as `stage.stage`; files so far stay unreferenced.
    """
    target = plan.targets[merge.table_key]
    alone = replace(plan, targets={merge.table_key: target})
    screen = Screen(plan.integrity, plan.storage.options, plan.publish_id, "merge")
    taken = (screen.outgoing(batch, merge.table_key) for batch in found.taken.to_batches())
    known = found.known if _is_compared(target, merge.sides[TARGET]) else None
    staged = stage.stage(alone, [(merge.table_key, batch) for batch in taken], known)
    if len(found.gone):
        place = (target.location, target.table_branch, target.version)
        dataset = version_of(plan.storage, *place)
        gone = looked_up(dataset, found.gone, known).addresses
        none = np.empty(0, dtype=np.uint64)
        fields = stage.planned_fields(target, dataset)
        named = matches.of_addresses(gone, none)
        staged.append(StagedTable(merge.table_key, (), 0, 0, fields, named, ("id",)))
    return staged


def _is_compared(target: TableTarget, entry: TableEntry | None) -> bool:
    """Return whether a plan writes on the very version that was compared."""
    return entry is not None and (target.location, target.table_branch, target.version) == (
        entry.location,
        entry.table_branch,
        entry.table_version,
    )


class Here:
    """Merges tables in this process: for what is small, where a job of Spark's would cost more.

    `rows_read` counts, by table and version, the rows that were compared.
    """

    def __init__(self, storage: Storage, merges: Sequence[TableMerge]) -> None:
        self._storage = storage
        self._merges = {merge.table_key: merge for merge in merges}
        self._decided: dict[str, Decision] = {}
        self.rows_read: dict[str, dict[str, int]] = {}

    def outcomes(self) -> dict[str, Outcome]:
        """Decide all tables; returns what each comes to."""
        outcomes = {}
        for key, merge in self._merges.items():
            rows = rows_of(self._storage, merge, merge.pieces)
            self.rows_read[key] = {side: table.num_rows for side, table in rows.items()}
            self._decided[key] = decided(self._storage, merge, rows)
            outcomes[key] = Outcome()
            outcomes[key].add(self._decided[key])
        return outcomes

    def facts(self, key: str) -> Iterable[Facts]:
        """Return what edges have to know of a table."""
        return [facts_of(self._merges[key], self._decided[key])]

    def staged(self, plan: WritePlan) -> list[StagedTable]:
        """Write what the target's tables get as fragments; commits nothing."""
        return [
            table
            for key in plan.targets
            if key in self._merges
            for table in staged_rows(plan, self._merges[key], self._decided[key])
        ]

    def conflicts(self) -> Iterator[tuple[str | None, ...]]:
        """Yield the conflicts: (table key, id, kind, base, ours, theirs)."""
        for key, decision in self._decided.items():
            for conflict in decision.conflicts:
                yield (key, *conflict)
