"""The change feed's part on the driver: which publishes a feed is of, and what each one touched.

It reads the lineage and one snapshot per publish, and no rows; a table counts only where its
version moved. What is found is plain data, in the order of the publishes (`read.feed_plan` makes
the pieces of work of it).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import pairwise
from typing import NamedTuple

from omnigraph_spark.errors import OptionError
from omnigraph_spark.history import commits
from omnigraph_spark.history.commits import Commit
from omnigraph_spark.manifest.snapshot import Snapshot, TableEntry, head_version, load
from omnigraph_spark.option_rules import FeedEnds
from omnigraph_spark.refs import refs, times
from omnigraph_spark.storage.store import Storage


class Span(NamedTuple):
    """The graph versions that a feed is of, both included, on the lineage of one branch."""

    branch: str
    first: int
    last: int


@dataclass(frozen=True)
class Change:
    """One table of one publish: what the snapshots before and after it pin, None for no table.

    `created_at` is the commit's time, UTC without a zone; `mode` is how the publish wrote the
    table, None where another engine did.
    """

    table_key: str
    before: TableEntry | None
    after: TableEntry | None
    version: int
    commit_id: str
    created_at: datetime
    mode: str | None = None


@dataclass(frozen=True)
class Feed:
    """All changes of a span; `tables` has each table that is in any of its snapshots, the newest.

    Plain data, picklable.
    """

    changes: tuple[Change, ...]
    tables: Mapping[str, TableEntry]


def span(storage: Storage, branch: str, ends: FeedEnds) -> Span:
    """Return the versions that a feed's ends mean now; an end that isn't given is the head.

    Raises:
        VersionNotFoundError: no such version, or no commit at or after the start (at or before the
            end).
        OptionError: a version that the branch never had, an end before the start, a malformed time.
        BranchNotFoundError, GraphNotFoundError, StorageError: as the names say.
    """
    head = head_version(storage, branch)
    line = commits.complete(storage, branch, head) if ends.start_time or ends.end_time else []
    if ends.start_version is not None:
        first = _version(storage, branch, ends.start_version)
    else:
        since = times.first_since(line, branch, ends.start_time or "", "startingTimestamp")
        first = since.manifest_version
    if ends.end_version is not None:
        last = _version(storage, branch, ends.end_version)
    elif ends.end_time is not None:
        until = times.last_at(line, branch, ends.end_time, "endingTimestamp")
        last = until.manifest_version
    else:
        last = head
    if last < first:
        raise OptionError("The end is before the start", found=f"{first} to {last}")
    return Span(branch, first, last)


def _version(storage: Storage, branch: str, text: str) -> int:
    version = refs.on_lineage(storage, branch, text).version
    assert version is not None
    return version


def feed(
    storage: Storage,
    asked: Span,
    table: str | None = None,
    line: Sequence[Commit] | None = None,
    kept: dict[str, Snapshot] | None = None,
) -> Feed:
    """Return what the publishes of a span touched, of one table (a key or a bare name) or of all.

    `line` is the branch's lineage up to the span's end at least, if the caller has it; `kept` are
    snapshots by their commits, of which the span's last one is left there for the next span.

    Raises:
        VersionNotFoundError: a version that is needed was cleaned up.
        TableNotFoundError: no snapshot of the span has the table.
        StorageError: the store failed.
    """
    known = commits.complete(storage, asked.branch, asked.last) if line is None else line
    line = [commit for commit in known if commit.manifest_version <= asked.last]
    inside = [commit for commit in line if commit.manifest_version >= asked.first]
    before = line[-len(inside) - 1] if len(inside) < len(line) else None
    kept = {} if kept is None else kept
    snapshots = [_snapshot(storage, asked.branch, commit, kept) for commit in (before, *inside)]
    kept.clear()
    if inside:
        kept[inside[-1].graph_commit_id] = snapshots[-1]
    changes = [
        change
        for commit, (old, new) in zip(inside, pairwise(snapshots), strict=True)
        for change in _between(old, new, commit)
    ]
    newest = snapshots[::-1]
    tables: dict[str, TableEntry] = {}
    for snapshot in newest:
        tables = {**snapshot.tables, **tables}
    if table is not None:
        key = next((snapshot for snapshot in newest if _has(snapshot, table)), newest[0]).resolve(
            table
        )
        changes = [change for change in changes if change.table_key == key]
        tables = {key: tables[key]}
    plain = {key: replace(entry, metadata={}) for key, entry in sorted(tables.items())}
    return Feed(tuple(changes), plain)


def _snapshot(
    storage: Storage, branch: str, commit: Commit | None, kept: Mapping[str, Snapshot]
) -> Snapshot:
    if commit is None:
        return Snapshot(branch, 0, {}, {}, {})
    return kept.get(commit.graph_commit_id) or load(storage, commit.branch, commit.manifest_version)


def _between(old: Snapshot, new: Snapshot, commit: Commit) -> list[Change]:
    return [
        Change(
            key,
            _bare(old.tables.get(key)),
            _bare(new.tables.get(key)),
            commit.manifest_version,
            commit.graph_commit_id,
            commit.created_at,
            new.tables[key].ours.get("mode") if key in new.tables else None,
        )
        for key in sorted({*old.tables, *new.tables})
        if _pin(old, key) != _pin(new, key)
    ]


def _bare(entry: TableEntry | None) -> TableEntry | None:
    return None if entry is None else replace(entry, metadata={})


def _pin(snapshot: Snapshot, key: str) -> tuple[str | None, int] | None:
    entry = snapshot.tables.get(key)
    return None if entry is None else (entry.table_branch, entry.table_version)


def _has(snapshot: Snapshot, name: str) -> bool:
    return name in snapshot.tables or any(k.partition(":")[2] == name for k in snapshot.tables)
