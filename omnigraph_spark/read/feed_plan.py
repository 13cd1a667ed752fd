"""From a change feed to the pieces of work of a read: plain data, made on the driver.

Of two versions of a table only the fragments that differ are read: those that both have hold the
same rows. So an append is read as what it added, and nothing is compared. Where both sides have
fragments of their own, their rows are compared by `id`, in ranges of ids small enough for a task.
Planning reads metadata, and a few hundred ids of a table that is cut into ranges.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from omnigraph_spark.history.publishes import keeps_rows
from omnigraph_spark.manifest.snapshot import TableEntry
from omnigraph_spark.read.plan import Scan, fragments_of, shared_out
from omnigraph_spark.refs.changes import Change
from omnigraph_spark.storage import column_numbers
from omnigraph_spark.storage.lance_errors import translated
from omnigraph_spark.storage.relocation import open_for_reading
from omnigraph_spark.storage.store import Storage

if TYPE_CHECKING:
    from lance import LanceDataset

_KEEP_ROWS = frozenset({"optimize", "index", "alter"})
"""Modes of our own publishes that leave every row of a table as it was."""
_SAMPLES_PER_RANGE = 32
_MOST_SIDES = 128
_MOST_APPENDS = 8
_ROW_BYTES = 64


@dataclass(frozen=True)
class Piece:
    """Some fragments of the versions before and after a publish, and a range of ids of them.

    Without a side (None) all rows of the other are new, or gone. The range is `low` <= id < `high`,
    None for no end.
    """

    change: Change
    before: Scan | None
    after: Scan | None
    low: str | None = None
    high: str | None = None


Partition = tuple[Piece, ...]
Sized = tuple[int, Piece]
"""A piece and about how many bytes it reads."""


@dataclass
class Planner:
    """Makes the pieces of a feed; each table version is opened once, on the driver."""

    storage: Storage
    max_partition_bytes: int
    _sides: dict[tuple[str, str | None, int], _Side] = field(default_factory=dict)
    _newest: dict[tuple[str, str | None], tuple[str, str | None, int]] = field(default_factory=dict)

    def partitions(self, changes: Iterable[Change]) -> list[Partition]:
        """Return the partitions that read these changes; small pieces go together.

        Raises:
            VersionNotFoundError, StorageError: a table version was cleaned up, or the store failed.
        """
        return self.shared(sized for change in changes for sized in self.pieces(change))

    def shared(self, sized: Iterable[Sized]) -> list[Partition]:
        """Return pieces in partitions; small ones go together."""
        return [tuple(pieces) for pieces in shared_out([*sized], self.max_partition_bytes)]

    def schema(self, entry: TableEntry) -> pa.Schema:
        """Return the stored schema of a table version."""
        return self._side(entry).dataset.schema

    def _side(self, entry: TableEntry) -> _Side:
        key = (entry.location, entry.table_branch, entry.table_version)
        side = self._sides.pop(key, None)
        if side is None:
            before = self._sides.get(self._newest.get(key[:2], key))
            side = _Side.of(self.storage, entry, before)
            self._newest[key[:2]] = key
        self._sides[key] = side
        return side

    def forget_old(self) -> None:
        """Close the table versions that weren't asked for lately: for a planner that lives long."""
        for key in [*self._sides][:-_MOST_SIDES]:
            del self._sides[key]

    def appended(self, change: Change) -> list[Sized] | None:
        """Return what reads the rows that a publish added to a table, None if it did more than add.

        Raises:
            VersionNotFoundError, StorageError: as `partitions`.
        """
        before, after, old, new = self._sides_of(change)
        if after is None:
            return None if _rows(old) else []
        if not old:
            return [*self._one_sided(change, after, new, True)]
        return [] if _keeps_rows(change, before, after) else None

    def counted(self, entry: TableEntry) -> list[tuple[int, int, int]]:
        """Return number, rows and bytes of each fragment of a table version that has rows."""
        return [
            (fragment.number, fragment.rows, fragment.size)
            for fragment in self._side(entry).fragments
            if fragment.rows
        ]

    def part(self, change: Change, fragment: int, rows: tuple[int, int] | None) -> Piece:
        """Return what reads a fragment of the version after a publish, or a range of its rows."""
        assert change.after is not None
        side = self._side(change.after)
        scan = side.scan(
            [candidate for candidate in side.fragments if candidate.number == fragment]
        )
        if rows is not None:
            scan = replace(scan, rows=rows, expected_rows=rows[1] - rows[0])
        return Piece(change, None, scan)

    def _sides_of(
        self, change: Change
    ) -> tuple[_Side | None, _Side | None, Sequence[_Fragment], Sequence[_Fragment]]:
        before = None if change.before is None else self._side(change.before)
        after = None if change.after is None else self._side(change.after)
        return before, after, *_different(before, after)

    def pieces(self, change: Change) -> Iterable[Sized]:
        """Give what reads the rows that a publish changed in a table, compared where need be."""
        before, after, old, new = self._sides_of(change)
        if not old or not new:
            for side, fragments in ((before, old), (after, new)):
                if side is not None:
                    yield from self._one_sided(change, side, fragments, side is after)
            return
        assert before is not None
        assert after is not None
        size = sum(fragment.size for fragment in (*old, *new))
        ranges = -(-size // self.max_partition_bytes)
        larger = (before, old) if _rows(old) > _rows(new) else (after, new)
        bounds = _bounds(*larger, ranges) if ranges > 1 else []
        ends = [None, *bounds, None]
        for low, high in pairwise(ends):
            piece = Piece(change, before.scan(old), after.scan(new), low, high)
            yield size // (len(bounds) + 1), piece

    def _one_sided(
        self, change: Change, side: _Side, fragments: Sequence[_Fragment], is_after: bool
    ) -> Iterable[Sized]:
        for fragment in fragments:
            if fragment.rows:
                scan = side.scan([fragment])
                pair = (None, scan) if is_after else (scan, None)
                yield fragment.size, Piece(change, *pair)


@dataclass(frozen=True)
class _Fragment:
    number: int
    content: str
    rows: int
    size: int


@dataclass(frozen=True)
class _Side:
    """One version of a table, opened."""

    entry: TableEntry
    dataset: LanceDataset
    token: str
    fragments: tuple[_Fragment, ...]

    @classmethod
    def of(cls, storage: Storage, entry: TableEntry, before: _Side | None) -> _Side:
        """Open a version; of what was appended to one that is open, only the new is looked at."""
        dataset = open_for_reading(storage, entry.location, entry.table_branch, entry.table_version)
        with translated(f"Reading the fragments of {entry.table_key}"):
            new = None if before is None else _appended(before, entry, dataset)
            found = dataset.get_fragments() if new is None else new
            fragments = tuple(_fragment(fragment.metadata) for fragment in found)
        text = "".join(f.content for f in fragments)
        if before is not None and new is not None:
            text, fragments = before.token + text, (*before.fragments, *fragments)
        digest = hashlib.blake2b(text.encode(), digest_size=8)
        return cls(entry, dataset, digest.hexdigest(), fragments)

    def scan(self, fragments: Sequence[_Fragment]) -> Scan:
        return Scan(
            table_key=self.entry.table_key,
            location=self.entry.location,
            table_branch=self.entry.table_branch,
            version=self.entry.table_version,
            token=self.token,
            fragments=tuple(fragment.number for fragment in fragments),
            rows=None,
            expected_rows=_rows(fragments),
        )


def _appended(before: _Side, entry: TableEntry, dataset: LanceDataset) -> list[Any] | None:
    """Return the fragments that a version has beside those of an earlier one, which it has all.

    None where something else than appends made it of that one, or its fragments have to be listed.
    """
    first, last = before.entry.table_version, entry.table_version
    if not first < last <= first + _MOST_APPENDS or dataset.version != last:
        return None  # a branch of a graph that was moved has versions of its own
    paths: list[list[str]] = []
    for version in range(first + 1, last + 1):
        transaction = dataset.read_transaction(version)
        operation: Any = None if transaction is None else transaction.operation
        if type(operation).__name__ != "Append":
            return None
        paths += [[file.path for file in one.files] for one in operation.fragments]
    # Lance numbers what is appended one after the other. There may be numbers that nothing has.
    number = max((one.number for one in before.fragments), default=-1) + 1
    found = [dataset.get_fragment(number + offset) for offset in range(len(paths))]
    same = all(
        one is not None and [file.path for file in one.metadata.files] == expected
        for one, expected in zip(found, paths, strict=True)
    )
    return found if same else None


def _fragment(metadata: Any) -> _Fragment:
    """Return what a fragment holds: two of the same content, in any two versions, are the same."""
    # Not all of it goes through JSON: row ids and versions of rows cost ten times the rest.
    gone = metadata.deletion_file
    content = [
        [[file.path, list(file.fields)] for file in metadata.files],
        None if gone is None else gone.asdict(),
        metadata.to_json()["overlays"] if getattr(metadata, "overlays", None) else None,
    ]
    size = sum(file.file_size_bytes or 0 for file in metadata.files)
    return _Fragment(
        metadata.id,
        json.dumps(content, sort_keys=True),
        metadata.num_rows,
        size or metadata.physical_rows * _ROW_BYTES,
    )


def _different(
    before: _Side | None, after: _Side | None
) -> tuple[Sequence[_Fragment], Sequence[_Fragment]]:
    """Return the fragments of each side that the other doesn't have."""
    old = () if before is None else before.fragments
    new = () if after is None else after.fragments
    if before is None or after is None:
        return old, new
    if not _reads_alike(before, after):
        return old, new  # a column was dropped or came back: the same files hold other rows
    both = {fragment.content for fragment in old} & {fragment.content for fragment in new}
    return (
        [fragment for fragment in old if fragment.content not in both],
        [fragment for fragment in new if fragment.content not in both],
    )


def _reads_alike(before: _Side, after: _Side) -> bool:
    """Return whether a file of both versions holds the same rows in both, new columns null there.

    A column is read by its number. A restore brings back one whose values the files still have.
    """
    old, new = (
        {entry[:2] for entry in column_numbers.of_dataset(s.dataset)} for s in (before, after)
    )
    if not old <= new:
        return False
    added = {number for _, number in new - old}
    return not added or not any(
        added.intersection(file.fields)
        for fragment in before.dataset.get_fragments()
        for file in fragment.data_files()
    )


def _keeps_rows(change: Change, before: _Side | None, after: _Side) -> bool:
    """Return whether a publish that gave a table other files left all its rows as they were."""
    if change.mode is not None:
        return change.mode in _KEEP_ROWS
    if before is None or before.entry.table_branch != after.entry.table_branch:
        return False
    versions = range(before.entry.table_version + 1, after.entry.table_version + 1)
    return all(keeps_rows(after.dataset, version) for version in versions)


def _rows(fragments: Iterable[_Fragment]) -> int:
    return sum(fragment.rows for fragment in fragments)


def _bounds(side: _Side, fragments: Sequence[_Fragment], ranges: int) -> list[str]:
    """Return ids that cut the rows of some fragments into about so many equal ranges."""
    share = ranges * _SAMPLES_PER_RANGE / max(1, _rows(fragments))
    ids: list[str] = []
    for described in fragments:
        samples = min(described.rows, math.ceil(described.rows * share))
        offsets = sorted({described.rows * number // samples for number in range(samples)})
        if offsets:
            with translated(f"Reading ids of {side.entry.table_key}"):
                (fragment,) = fragments_of(side.dataset, side.scan([described]))
                ids += fragment.take(offsets, columns=["id"])["id"].to_pylist()
    ids.sort()
    cuts = [ids[len(ids) * number // ranges] for number in range(1, ranges)] if ids else []
    return sorted({cut for cut in cuts if "\x00" not in cut and cut > ids[0]})
