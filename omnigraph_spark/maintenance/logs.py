"""The logs of a graph (lineage, runs, their actors): which are damaged; make them again.

Runs on the driver. A log is damaged where the store answers and the newest version of it can't be
read: a file that a power cut left empty or cut off, or that another writer removed. What can still
be read stays, the damaged files are moved to `__damaged/`, and what is missing then is written
again from `__manifest`, as far as no cleanup took its versions away.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa

from omnigraph_spark.errors import StorageError
from omnigraph_spark.history import commits, runs
from omnigraph_spark.history.publishes import PublishedVersion, fork_of, publishes_between
from omnigraph_spark.manifest import formats
from omnigraph_spark.manifest.rows import OURS
from omnigraph_spark.manifest.snapshot import head_version, open_manifest, read_rows
from omnigraph_spark.refs import refs
from omnigraph_spark.storage import append_log, layout
from omnigraph_spark.storage.append_log import AppendLog
from omnigraph_spark.storage.store import Storage

_OF_BRANCHES = commits.COMMITS
_LOGS = (commits.COMMITS, commits.COMMIT_ACTORS, runs.RUNS, runs.RUN_ACTORS)
_FOLDERS = ("_versions", "_transactions", "_deletions", "data")

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Damaged:
    """A line of a log that can't be read: its own, or that of a graph branch; and why."""

    location: str
    branch: str
    why: str


def damaged(storage: Storage) -> list[Damaged]:
    """Return the lines of logs that are damaged; reads all rows of each log once.

    Raises:
        StorageError: the store failed.
    """
    branches = [branch.name for branch in refs.list_branches(storage)]
    lines = []
    for log in _LOGS:
        for branch in branches if log is _OF_BRANCHES else [layout.MAIN]:
            error = _unreadable(storage, log, branch)
            if error is not None:
                lines.append(Damaged(log.location, branch, str(error)))
    return lines


def _unreadable(storage: Storage, log: AppendLog, branch: str) -> StorageError | None:
    """Return why a line can't be read, None if it can, or isn't there.

    Raises:
        StorageError: the store doesn't answer either.
    """
    try:
        append_log.read(storage, log, layout.lance_branch(branch))
    except StorageError as error:
        _answers(storage, log.location, branch)
        return error
    # A newest version that is gone leaves an older one or nothing: missing rows are distinguished.
    return None


def _answers(storage: Storage, location: str, branch: str) -> None:
    """Ask the store for the files of a line: one that refuses or is slow hasn't lost any."""
    for info in storage.list(f"{_line(location, branch)}/_versions")[:1]:
        storage.get(info.path)


def make_again(storage: Storage, found: Damaged) -> None:
    """Set the damaged files of a line aside, and write again what can be read of its rows.

    Raises:
        StorageError: the store failed; calling this again goes on.
    """
    log = next(candidate for candidate in _LOGS if candidate.location == found.location)
    branch = layout.lance_branch(found.branch)
    rows = append_log.salvaged(storage, log, branch)
    versions = refs.kept_versions(storage, log.location, branch)
    while versions and not append_log.is_whole(storage, log, branch, versions[-1]):
        _set_aside(storage, log.location, found.branch, versions.pop())
    if not versions:
        _set_all_aside(storage, log.location, found.branch)
        if branch is not None:
            return  # the next row makes the branch of the log again
    existing = append_log.read(storage, log, branch)
    known = set() if existing is None else {_as_key(row) for row in existing.to_pylist()}
    lost = [row for row in rows.to_pylist() if _as_key(row) not in known]
    if lost:
        append_log.append(storage, log, log.rows(lost), branch)


def _as_key(row: dict[str, object]) -> tuple[tuple[str, str], ...]:
    return tuple((name, str(value)) for name, value in sorted(row.items()))


def _line(location: str, branch: str) -> str:
    name = layout.lance_branch(branch)
    return location if name is None else f"{location}/tree/{name}"


def _set_aside(storage: Storage, location: str, branch: str, version: int) -> None:
    folder = f"{_line(location, branch)}/_versions"
    for name in (layout.v2_manifest_name(version), f"{version}.manifest"):
        storage.set_aside(f"{folder}/{name}")


def _set_all_aside(storage: Storage, location: str, branch: str) -> None:
    line = _line(location, branch)
    for folder in _FOLDERS:
        for info in storage.list(f"{line}/{folder}"):
            storage.set_aside(info.path)


def missing_publishes(storage: Storage, branch: str) -> list[PublishedVersion]:
    """Return a branch's own publishes that have no row in the lineage, ascending.

    Those above its last row, whose writers died; and those between rows, over which another engine
    has published: the next writer takes such a lineage for complete.

    Raises:
        StorageError: the store failed.
    """
    if formats.of_graph(storage).has_lineage:  # published with the tables
        return []
    fork = fork_of(storage, branch)
    line = commits.read_commits(storage, branch)
    own = frozenset(commit.manifest_version for commit in line if commit.branch == branch)
    # On main what lies below the first row made the graph.
    after = fork.version if fork is not None else min(own, default=1) - 1
    return publishes_between(storage, branch, after, head_version(storage, branch) + 1, own)


def fill(storage: Storage, branch: str) -> None:
    """Write the rows of a branch's publishes that have none.

    Raises:
        StorageError: the store failed; calling this again goes on.
    """
    for publish in missing_publishes(storage, branch):
        commits.record(storage, branch, publish)


def fill_actors(storage: Storage) -> None:
    """Write the rows of actors that the log lacks and `__manifest` knows.

    Raises:
        StorageError: the store failed.
    """
    existing = append_log.read(storage, commits.COMMIT_ACTORS)
    known = set() if existing is None else set(existing["graph_commit_id"].to_pylist())
    rows = []
    for branch in refs.list_branches(storage):
        named = dict(_actors(read_rows(open_manifest(storage, branch.name))))
        for commit in commits.read_commits(storage, branch.name):
            name = named.get(commit.graph_commit_id)
            if name is not None and commit.graph_commit_id not in known:
                known.add(commit.graph_commit_id)
                values = (commit.graph_commit_id, name, commit.created_at)
                rows.append(dict(zip(commits.COMMIT_ACTORS.schema.names, values, strict=True)))
    if rows:
        append_log.append(storage, commits.COMMIT_ACTORS, commits.COMMIT_ACTORS.rows(rows))


def _actors(rows: pa.Table) -> Iterator[tuple[str, str]]:
    """Yield (publish id, actor) of the publishes whose rows are in a `__manifest`."""
    for text in rows["metadata"].to_pylist():
        if text is None or '"actor"' not in text:
            continue
        ours = json.loads(text).get(OURS)
        if isinstance(ours, dict) and ours.get("actor") is not None and "publish_id" in ours:
            yield str(ours["publish_id"]), str(ours["actor"])
