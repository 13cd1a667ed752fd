"""Where a stream stands and how far its next batch goes: offsets that are cut at graph commits.

Runs on the driver, in the process that Spark keeps for a streaming query; reads metadata, no rows.
A stream begins with the rows of one snapshot, nodes before edges, which may be cut anywhere between
two rows. After that a batch holds whole publishes: nodes and the edges that need them arrive
together, and no commit is ever split.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby, pairwise, takewhile
from typing import Any

from omnigraph_spark.errors import (
    CorruptManifestError,
    OptionError,
    UnsupportedError,
    VersionNotFoundError,
)
from omnigraph_spark.history import commits
from omnigraph_spark.history.commits import Commit
from omnigraph_spark.manifest.snapshot import Snapshot, head_version, load
from omnigraph_spark.options import StreamOptions
from omnigraph_spark.read.feed_plan import Planner, Sized
from omnigraph_spark.refs import changes, refs, times
from omnigraph_spark.refs.changes import Change, Span
from omnigraph_spark.storage import layout
from omnigraph_spark.storage.store import Storage

LATEST = "latest"
_LOOKED_AT = 16
"""So many commits are looked at together for their rows."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Position:
    """Everything up to a commit has been read; with `rows`, only so many rows of its snapshot.

    `commit` is the commit's id: the version of a branch that was made again means another one.
    """

    version: int
    commit: str
    rows: int | None = None

    def offset(self) -> dict[str, int | str]:
        """Return the position as Spark keeps it in the checkpoint."""
        offset: dict[str, int | str] = {"version": self.version, "commit": self.commit}
        return offset if self.rows is None else {**offset, "snapshotRows": self.rows}

    @classmethod
    def of(cls, offset: Mapping[str, Any]) -> Position:
        """Return the position that an offset of a checkpoint tells.

        Raises:
            CorruptManifestError: it isn't one of this source.
        """
        rows = offset.get("snapshotRows")
        try:
            return cls(
                int(offset["version"]), str(offset["commit"]), None if rows is None else rows
            )
        except (KeyError, TypeError, ValueError) as error:
            raise CorruptManifestError(
                "The checkpoint's offset isn't one of an omnigraph stream",
                expected='{"version": 7, "commit": "01…"}',
                found=str(dict(offset))[:200],
                hint="Give the query a checkpoint of its own",
            ) from error


@dataclass
class StreamPlan:
    """The publishes of one branch as a stream sees them; `table` None is the whole graph."""

    storage: Storage
    asked: StreamOptions
    table: str | None
    _first: tuple[int, Planner, list[tuple[Change, int, int, int]]] | None = field(default=None)
    _known: tuple[int, list[Commit]] | None = field(default=None)
    _snapshots: dict[str, Snapshot] = field(default_factory=dict)

    def __post_init__(self) -> None:
        # What a batch ends with the next one begins with: opened once.
        self.planner = Planner(self.storage, self.asked.read.max_partition_bytes)

    @property
    def branch(self) -> str:
        """The graph branch that is followed."""
        return self.asked.read.branch

    def first(self, target: Position | None = None) -> Position:
        """Return where a new query begins: before the newest snapshot, or at the asked start.

        `target` is the last position of a query that ends by itself.

        Raises:
            VersionNotFoundError, OptionError, BranchNotFoundError: as the start's name says.
        """
        ends = self.asked.ends
        line = self._line()
        if target is not None:
            line = [commit for commit in line if commit.manifest_version <= target.version]
        if ends.start_version == LATEST:
            return _at(line, None)
        if ends.start_version is not None:
            version = refs.on_lineage(self.storage, self.branch, ends.start_version).version
            assert version is not None
        elif ends.start_time is not None:
            since = times.first_since(line, self.branch, ends.start_time, "startingTimestamp")
            version = since.manifest_version
        else:
            return replace(_at(line, self._end(line)), rows=0)
        return _at(line, version - 1)

    def head(self) -> Position:
        """Return where a batch without limits would end now."""
        line = self._line()
        return _at(line, self._end(line))

    def next(self, start: Position, target: Position | None, *, limited: bool) -> Position:
        """Return the end of the batch that begins at `start`, which itself if there is nothing new.

        `target` is the last position of a query that ends by itself.

        Raises:
            VersionNotFoundError: what comes next was cleaned up, or is of another branch.
        """
        is_snapshot = start.rows is not None
        if not is_snapshot and head_version(self.storage, self.branch) == start.version:
            return start
        line = self._line(start)
        end = _at(line, self._end(line))
        if target is not None and target.version < end.version:
            end = target
        if start.rows is not None:
            _check(start, line)
            return self._cut_snapshot(start) if limited else end
        start = self._readable(start, line)
        if not limited:
            return end if end.version > start.version else start
        inside = [c for c in line if start.version < c.manifest_version <= end.version]
        inside = inside[: self.asked.max_commits]
        if not inside:
            return start
        if self.asked.max_rows is not None:
            inside = inside[: self._within_rows(start, inside, line)]
        return Position(inside[-1].manifest_version, inside[-1].graph_commit_id)

    def changes(self, start: Position, end: Position) -> list[tuple[Change, list[Sized]]]:
        """Return what reads the batch between two positions, publish by publish.

        Raises:
            VersionNotFoundError: a version that is needed was cleaned up, or is another one now.
            UnsupportedError: a publish updates or deletes rows, and the stream wants appends alone.
            StorageError: the store failed.
        """
        batch: list[tuple[Change, list[Sized]]] = []
        if start == end:
            return batch
        line = self._line(start)
        if start.rows is not None:
            _check(start, line)
            batch += self._of_snapshot(start, end if end.rows is not None else None)
            if end.rows is not None:
                return batch
            start = replace(start, rows=None)
        start = self._readable(start, line)
        self.planner.forget_old()
        for _, group in groupby(self._between(start, end, line), key=lambda change: change.version):
            batch += self._of_publish(self.planner, [*group])
        return batch

    # --- the first snapshot ----------------------------------------------------------------------

    def _snapshot(self, start: Position) -> tuple[Planner, list[tuple[Change, int, int, int]]]:
        """Return the fragments of the snapshot that a stream begins with, always in one order."""
        if self._first is None or self._first[0] != start.version:
            planner = Planner(self.storage, self.asked.read.max_partition_bytes)
            fragments = []
            for change in self._whole(start):
                assert change.after is not None
                fragments += [(change, *fragment) for fragment in planner.counted(change.after)]
            self._first = start.version, planner, fragments
        return self._first[1], self._first[2]

    def _cut_snapshot(self, start: Position) -> Position:
        """Return how far into the snapshot the next batch goes."""
        assert start.rows is not None
        _, fragments = self._snapshot(start)
        most = self.asked.max_rows
        end = files = 0
        for _, _, rows, _ in fragments:
            over = most is not None and end + rows > start.rows + most
            if end + rows > start.rows:
                files += 1
                if files > self.asked.max_commits:
                    return replace(start, rows=end)
            if over and most is not None:
                cut = start.rows + most
                if self.asked.read.filter is None:
                    return replace(start, rows=cut)
                # A filter's rows can't be counted beforehand: files stay whole.
                return replace(start, rows=end if end > start.rows else end + rows)
            end += rows
        return replace(start, rows=None)

    def _of_snapshot(
        self, start: Position, end: Position | None
    ) -> Iterator[tuple[Change, list[Sized]]]:
        planner, fragments = self._snapshot(start)
        low, high = start.rows or 0, None if end is None else end.rows
        before = 0
        for change, number, rows, size in fragments:
            first = max(low - before, 0)
            last = rows if high is None else min(high - before, rows)
            before += rows
            if first < last:
                cuts = self._cuts(first, last, size * (last - first) // rows)
                whole = cuts == [(0, rows)]
                pieces = [
                    (size // len(cuts), planner.part(change, number, None if whole else cut))
                    for cut in cuts
                ]
                yield change, pieces

    def _cuts(self, first: int, last: int, size: int) -> list[tuple[int, int]]:
        if self.asked.read.filter is not None:
            if first:
                raise OptionError(
                    "A filter came to a stream that has read a part of a file without it",
                    hint="Begin with a new checkpoint, or leave the filter out and use Spark's",
                )
            return [(first, last)]
        parts = max(1, min(-(-size // self.asked.read.max_partition_bytes), last - first))
        bounds = [first + (last - first) * part // parts for part in range(parts + 1)]
        return [*pairwise(bounds)]

    # --- publishes -------------------------------------------------------------------------------

    def _between(self, start: Position, end: Position, line: Sequence[Commit]) -> list[Change]:
        """Return what the publishes after `start` up to `end` touched of the stream's tables."""
        if end.version <= start.version:
            return []
        span = Span(self.branch, start.version + 1, end.version)
        try:
            touched = changes.feed(self.storage, span, line=line, kept=self._snapshots).changes
        except VersionNotFoundError as error:
            raise _lost(
                start, f"a version that comes next was cleaned up ({error.what})"
            ) from error
        return [change for change in touched if self.table in (None, change.table_key)]

    def _of_publish(
        self, planner: Planner, touched: Sequence[Change]
    ) -> list[tuple[Change, list[Sized]]]:
        if self.asked.change_feed:
            return [(change, [*planner.pieces(change)]) for change in touched]
        pieces = []
        for change in touched:
            added = planner.appended(change)
            if added is None and self.asked.skip_change_commits:
                _log.info(
                    "version %d changes rows of %s: left out", change.version, change.table_key
                )
                return []
            if added is None:
                raise UnsupportedError(
                    f"Version {change.version} (commit {change.commit_id}) updates or deletes rows"
                    f" of {change.table_key}, and the stream is of new rows",
                    found=change.mode and f"mode {change.mode}",
                    hint="readChangeFeed=true reads what changed; skipChangeCommits=true leaves"
                    " such commits out",
                )
            pieces.append((change, added))
        return pieces

    def _within_rows(
        self, start: Position, inside: Sequence[Commit], line: Sequence[Commit]
    ) -> int:
        """Return how many of the next commits fit into `maxRowsPerTrigger`; one at least."""
        most = self.asked.max_rows or 0
        planner = self.planner
        rows = 0
        for at in range(0, len(inside), _LOOKED_AT):
            some = inside[at : at + _LOOKED_AT]
            before = start if at == 0 else _of(inside[at - 1])
            touched = self._between(before, _of(some[-1]), line)
            for number, commit in enumerate(some):
                rows += sum(
                    scan.expected_rows
                    for change in touched
                    if change.version == commit.manifest_version
                    for _, piece in planner.pieces(change)
                    for scan in (piece.before, piece.after)
                    if scan is not None
                )
                if rows > most:
                    return max(1, at + number)
        return len(inside)

    # --- the lineage -----------------------------------------------------------------------------

    def _line(self, start: Position | None = None) -> list[Commit]:
        """Return the branch's lineage up to its head, with the commit of `start` if it is there.

        What is new is added to what is known.
        """
        head = head_version(self.storage, self.branch)
        if self._known is None or self._known[0] != head:
            known = [] if self._known is None else self._known[1]
            self._known = head, commits.continued(self.storage, self.branch, known, head)
        line = self._known[1]
        if start is not None and not _is_on(start, line):
            # A row of another engine may have closed over a commit that was read without a row.
            whole = commits.with_publish(self.storage, self.branch, line, start.version)
            line = whole if _is_on(start, whole) else line
        return line

    def _end(self, line: Sequence[Commit]) -> int | None:
        """Return the version of the stream's end, None where it goes on for ever."""
        ends = self.asked.ends
        if ends.end_version is not None:
            return refs.on_lineage(self.storage, self.branch, ends.end_version).version
        if ends.end_time is not None:
            return times.last_at(
                line, self.branch, ends.end_time, "endingTimestamp"
            ).manifest_version
        return None

    def _whole(self, start: Position) -> list[Change]:
        """Return the tables of the first snapshot as if one publish had made all of them."""
        commit = next((c for c in self._line() if c.graph_commit_id == start.commit), None)
        if commit is None:
            return []
        try:
            tables = load(self.storage, commit.branch, commit.manifest_version).tables
        except VersionNotFoundError as error:
            raise _lost(start, f"its first snapshot was cleaned up ({error.what})") from error
        return [
            Change(
                table_key=key,
                before=None,
                after=replace(tables[key], metadata={}),
                version=commit.manifest_version,
                commit_id=commit.graph_commit_id,
                created_at=commit.created_at,
            )
            for key in sorted(tables, key=lambda key: (layout.is_edge(key), key))
            if self.table in (None, key)
        ]

    def _readable(self, start: Position, line: Sequence[Commit]) -> Position:
        """Return a position itself, or with `failOnDataLoss=false` the next one that can be read.

        Raises:
            VersionNotFoundError: what comes after it can't be read, and that is to be an error.
        """
        if self.asked.fail_on_data_loss:
            _check(start, line)
            return start
        position = start if _is_on(start, line) else _at(line, start.version)
        versions = {*refs.kept_versions(self.storage, layout.MANIFEST, self.branch)}
        readable = takewhile(
            lambda c: c.branch != self.branch or c.manifest_version in versions, reversed(line)
        )
        oldest = [*readable][-1:]
        if oldest and position.version < oldest[0].manifest_version:
            position = _of(oldest[0])
        if position != start:
            _log.warning(
                "the stream goes on at version %d, after %d", position.version, start.version
            )
        return position


def _of(commit: Commit) -> Position:
    return Position(commit.manifest_version, commit.graph_commit_id)


def _at(line: Sequence[Commit], version: int | None) -> Position:
    """Return the position of the last commit at or below a version (None: of all)."""
    reached = [c for c in line if version is None or c.manifest_version <= version]
    return _of(reached[-1]) if reached else Position(0, "")


def _check(start: Position, line: Sequence[Commit]) -> None:
    """Refuse a position that isn't on the branch's lineage.

    Raises:
        VersionNotFoundError: the branch or the graph was made again, or its head went back.
    """
    if not _is_on(start, line):
        raise _lost(
            start, "the branch has no such commit any more: it, or the graph, was made again"
        )


def _is_on(start: Position, line: Sequence[Commit]) -> bool:
    return not start.commit or any(c.graph_commit_id == start.commit for c in reversed(line))


def _lost(start: Position, why: str) -> VersionNotFoundError:
    return VersionNotFoundError(
        f"The stream has read up to version {start.version} (commit {start.commit}), and {why}",
        hint="Begin with a new checkpoint; failOnDataLoss=false goes on with what is there",
    )
