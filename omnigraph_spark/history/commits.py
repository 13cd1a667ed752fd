"""The lineage of a graph: one row per publish in `_graph_commits.lance`, its actors beside it.

A publish and its lineage row are two commits; a writer that dies between them leaves a gap, which
the next writer fills (rule 30). Rows are appended by many processes at once: each appends
everything that it finds missing below its own version, in one commit, so a row stands only above a
complete past. Two fillers of one gap write rows of the same ids, and readers take one row per
branch and version.

A branch's own rows are in the Lance branch of that name. What it inherited is read from its parent,
up to the version where it began: the parent's rows are complete, need no paths of an old place, and
know which publishes came after the fork.

In newer graphs all this is rows of `__manifest`, published with the tables: then there is nothing
to write, and what is read comes from there.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from omnigraph_spark import _faults
from omnigraph_spark.errors import BranchNotFoundError, StorageError
from omnigraph_spark.history.publishes import (
    PublishedVersion,
    branch_names,
    fork_of,
    publishes_between,
)
from omnigraph_spark.manifest import formats, lineage, manifest_rows
from omnigraph_spark.manifest.snapshot import branch_ref, open_manifest, read_rows
from omnigraph_spark.storage import append_log, layout
from omnigraph_spark.storage.append_log import AppendLog
from omnigraph_spark.storage.lance_errors import (
    DatasetNotFoundError,
    Outcome,
    outcome_of,
    translated,
)
from omnigraph_spark.storage.store import Storage

if TYPE_CHECKING:
    from lance import LanceDataset

COMMITS = AppendLog(
    layout.GRAPH_COMMITS,
    pa.schema(
        [
            pa.field("graph_commit_id", pa.utf8(), nullable=False),
            pa.field("manifest_branch", pa.utf8()),
            pa.field("manifest_version", pa.uint64(), nullable=False),
            pa.field("parent_commit_id", pa.utf8()),
            pa.field("merged_parent_commit_id", pa.utf8()),
            pa.field("created_at", pa.timestamp("us"), nullable=False),
        ]
    ),
)
COMMIT_ACTORS = AppendLog(
    layout.GRAPH_COMMIT_ACTORS,
    pa.schema(
        [
            pa.field("graph_commit_id", pa.utf8(), nullable=False),
            pa.field("actor_id", pa.utf8(), nullable=False),
            pa.field("created_at", pa.timestamp("us"), nullable=False),
        ]
    ),
)
# How far from the end a writer looks for the row before its own; further back only if it isn't
# there.
_NEAR_ROWS = 16
_TICK = timedelta(microseconds=1)
# A commit's actor is appended just before it; others append in between.
_NEAR_ACTORS = 64

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Commit:
    """One publish of a graph branch (format.md, "Lineage"); `created_at` is UTC without a zone."""

    graph_commit_id: str
    manifest_branch: str | None
    manifest_version: int
    parent_commit_id: str | None
    merged_parent_commit_id: str | None
    created_at: datetime
    actor_id: str | None = None

    @property
    def branch(self) -> str:
        """Return the graph branch on which it was made."""
        return self.manifest_branch or layout.MAIN


# --- writing -----------------------------------------------------------------------------------


def init_lineage(storage: Storage, graph_commit_id: str, manifest_version: int) -> None:
    """Make both datasets of the lineage, with the row of the version that made the graph.

    Runs on the driver, once per graph; one of several processes succeeds, the others go on with
    what it made. Datasets that are there are left as they are.

    Raises:
        StorageError: the store failed; a later call completes it.
    """
    first = Commit(graph_commit_id, None, manifest_version, None, None, _now())
    append_log.create_if_missing(storage, COMMITS, _rows([first]))
    append_log.create_if_missing(storage, COMMIT_ACTORS, COMMIT_ACTORS.schema.empty_table())


def record_publish(
    storage: Storage,
    branch: str,
    publish_id: str,
    graph_version: int,
    actor: str | None = None,
    merged_parent: str | None = None,
    identifier: str | None = None,
) -> None:
    """Append the lineage row of a publish, and before it the rows of earlier publishes without one.

    Runs on the driver, once per publish, after it; running it again changes nothing that a reader
    sees. In the steady state it costs one open and one append. A graph without a lineage gets one
    that begins with the version that made the graph.

    Args:
        storage: The graph.
        branch: The branch that was published to.
        publish_id: The publish; it becomes the graph commit's id.
        graph_version: The version of the branch's `__manifest` that the publish made.
        actor: Who wrote, if known.
        merged_parent: The commit that this publish merged in, if it is a merge.
        identifier: What tells the branch from others of its name; another one gets no row.

    Raises:
        BranchNotFoundError: the graph has no such branch.
        StorageError: the store failed. The publish stands; the next writer fills the gap.
    """
    own = PublishedVersion(graph_version, publish_id, _now(), actor, merged_parent)
    _faults.point("lineage.before_row")
    record(storage, branch, own, identifier)
    _faults.point("lineage.after_row")


def record(
    storage: Storage, branch: str, own: PublishedVersion, identifier: str | None = None
) -> None:
    """Append the row of a publish as `publishes_between` tells it, and those missing below it.

    Raises:
        BranchNotFoundError, StorageError: as `record_publish`.
    """
    if formats.of_graph(storage).has_lineage:
        return
    log = _opened(storage, branch)
    near = _near(storage, branch, own.graph_version, log)
    is_recorded = any(
        commit.graph_commit_id == own.publish_id
        and commit.merged_parent_commit_id == own.merged_parent
        for commit in near
        if commit.manifest_version == own.graph_version
    )
    if is_recorded:
        return
    below = [commit for commit in near if commit.manifest_version < own.graph_version]
    previous = _chosen(below)[-1] if below else _inherited_head(storage, branch)
    after = previous.manifest_version if previous else 0
    publishes = [*publishes_between(storage, branch, after, own.graph_version), own]
    if _is_other(storage, branch, identifier):
        return
    noted = _note_actors(storage, publishes)
    _faults.point("lineage.after_actor")
    if noted and _is_other(storage, branch, identifier):
        return
    rows = _rows(_chained(branch, publishes, previous))
    append_log.append(storage, COMMITS, rows, layout.lance_branch(branch), log)


def _near(storage: Storage, branch: str, version: int, log: LanceDataset | None) -> list[Commit]:
    """Return a branch's own commits of `version` and of the last version with a row below it."""
    commits: list[Commit] = []
    for newest in (_NEAR_ROWS, None):
        rows = _own_rows(storage, branch, newest, log)
        below = pc.max(rows.filter(pc.less(rows["manifest_version"], version))["manifest_version"])
        versions = pa.array([version, below.as_py()], pa.uint64())
        commits = _commits(rows.filter(pc.is_in(rows["manifest_version"], versions)))
        if below.is_valid:
            break
    return commits


def _inherited_head(storage: Storage, branch: str) -> Commit | None:
    """Return the commit that a branch began from; completes its parent's lineage up to there.

    A parent whose last publish before the fork has no row yet would leave the branch's first commit
    with the wrong parent for ever.
    """
    fork = fork_of(storage, branch)
    if fork is None:
        return None
    inherited = [
        c
        for c in read_commits(storage, fork.parent, actors=False)
        if c.manifest_version <= fork.version
    ]
    after = inherited[-1].manifest_version if inherited else 0
    missing = publishes_between(storage, fork.parent, after, fork.version + 1)
    if missing:
        record(storage, fork.parent, missing[-1])
        return _inherited_head(storage, branch)
    return inherited[-1] if inherited else None


def _chained(
    branch: str, publishes: list[PublishedVersion], previous: Commit | None
) -> list[Commit]:
    """Return the rows of consecutive publishes, each the child of the one before."""
    parent = previous.graph_commit_id if previous else None
    chained = []
    for publish in publishes:
        commit = Commit(
            graph_commit_id=publish.publish_id,
            manifest_branch=layout.lance_branch(branch),
            manifest_version=publish.graph_version,
            parent_commit_id=parent,
            merged_parent_commit_id=publish.merged_parent,
            created_at=_after(previous, publish.created_at),
            actor_id=publish.actor,
        )
        chained.append(commit)
        parent, previous = commit.graph_commit_id, commit
    return chained


def _after(previous: Commit | None, moment: datetime) -> datetime:
    """Return a commit's time: later than that of the commit before, whatever a writer's clock says.

    Otherwise the last commit at or before a time would depend on whose clock was wrong.
    """
    return moment if previous is None else max(moment, previous.created_at + _TICK)


def _is_other(storage: Storage, branch: str, identifier: str | None) -> bool:
    """Return whether a branch isn't the one that was published to, but another of its name."""
    if identifier is None or branch_ref(storage, branch).identifier == identifier:
        return False
    _log.warning("branch %s was made again: a commit of the one before gets no row", branch)
    return True


def _note_actors(storage: Storage, publishes: list[PublishedVersion]) -> bool:
    """Append who made commits, before their rows; returns whether there was anything to append."""
    # Actors first: a gap is filled by a later writer, a row without its actor by nobody.
    actors = [
        {"graph_commit_id": p.publish_id, "actor_id": p.actor, "created_at": p.created_at}
        for p in publishes
        if p.actor is not None
    ]
    if actors:
        try:
            append_log.append(storage, COMMIT_ACTORS, COMMIT_ACTORS.rows(actors))
        except StorageError as error:  # `repair` finds them in `__manifest`
            _log.warning("the actors of %d commits aren't noted: %s", len(actors), error)
    return bool(actors)


def _opened(storage: Storage, branch: str) -> LanceDataset | None:
    """Open the log that a branch's own rows go to, for reading and appending.

    The Lance branch of a graph branch is made if it isn't there; None where it was, or where there
    is no log yet.
    """
    try:
        with append_log.naming_repair(COMMITS.location):
            return storage.dataset(COMMITS.location, branch)
    except DatasetNotFoundError:
        if layout.lance_branch(branch) is not None:
            _make_branch(storage, branch)
    return None


def _make_branch(storage: Storage, branch: str) -> None:
    fork = fork_of(storage, branch)
    name = layout.lance_branch(branch)
    if fork is None or name is None:
        raise BranchNotFoundError.named(branch, [layout.MAIN])
    if not storage.has_dataset(COMMITS.location, fork.parent):
        _inherited_head(storage, branch)
    with append_log.naming_repair(COMMITS.location):
        main = storage.dataset(COMMITS.location)
    try:
        with translated(f"Creating branch {branch} of {COMMITS.location}"):
            main.create_branch(name, (layout.lance_branch(fork.parent), None))
    except StorageError as error:
        if outcome_of(error.__cause__ or error) is not Outcome.CONFLICT:
            raise


def _rows(commits: Iterable[Commit]) -> pa.Table:
    return COMMITS.rows(
        [{name: getattr(c, name) for name in COMMITS.schema.names} for c in commits]
    )


def _now() -> datetime:
    return datetime.now(timezone.utc).replace(tzinfo=None)


# --- reading -----------------------------------------------------------------------------------


def head(storage: Storage, branch: str = layout.MAIN) -> Commit | None:
    """Return the newest commit of a branch, its own or inherited; None without a lineage.

    Raises:
        BranchNotFoundError: the graph has no such branch.
        StorageError: the store failed.
    """
    if formats.of_graph(storage).has_lineage:
        newest_row = lineage.head_of(manifest_rows.read(open_manifest(storage, branch)).current)
        return None if newest_row is None else _told(newest_row)
    rows = _own_rows(storage, branch, _NEAR_ROWS)
    newest = rows.filter(pc.equal(rows["manifest_version"], pc.max(rows["manifest_version"])))
    if newest.num_rows:
        return _with_actors(storage, _chosen(_commits(newest)), _NEAR_ACTORS)[0]
    commits = read_commits(storage, branch)
    return commits[-1] if commits else None


def read_commits(
    storage: Storage, branch: str = layout.MAIN, *, actors: bool = True
) -> list[Commit]:
    """Return a branch's lineage, inherited commits first, one per version, by version.

    Runs on the driver; reads each ancestor's log once. A graph without a lineage has an empty one.

    Raises:
        BranchNotFoundError: the graph has no such branch.
        StorageError: the store failed.
    """
    if formats.of_graph(storage).has_lineage:
        return _published(storage, branch)
    raw: list[Commit] = []
    limit: int | None = None
    name = branch
    while True:
        fork = fork_of(storage, name)
        raw += [c for c in _own(storage, name) if limit is None or c.manifest_version <= limit]
        if fork is None:
            line = _in_line(_chosen(raw))
            return _with_actors(storage, line) if actors else line
        limit = fork.version
        name = fork.parent


def complete(storage: Storage, branch: str, version: int, *, actors: bool = True) -> list[Commit]:
    """Return a branch's lineage up to a version, with the publishes that have no row yet.

    Writes nothing. A publish is without a row only as long as nobody published after a writer that
    died (rule 30), so the gap is at the end of a branch, or just below a fork.

    Raises:
        BranchNotFoundError: the graph has no such branch.
        StorageError: the store failed.
    """
    known = read_commits(storage, branch, actors=actors)
    if formats.of_graph(storage).has_lineage:
        return [commit for commit in known if commit.manifest_version <= version]
    return _filled(storage, branch, version, known)


def _filled(storage: Storage, branch: str, version: int, known: list[Commit]) -> list[Commit]:
    fork = fork_of(storage, branch)
    line = [] if fork is None else _filled(storage, fork.parent, min(fork.version, version), known)
    own = [c for c in known if c.branch == branch and c.manifest_version <= version]
    after = own[-1].manifest_version if own else fork.version if fork else 0
    line += own
    missing = publishes_between(storage, branch, after, version + 1)
    return line + _chained(branch, missing, line[-1] if line else None)


def continued(storage: Storage, branch: str, line: Sequence[Commit], version: int) -> list[Commit]:
    """Return `complete` at a version, given what it was at an earlier one; without new actors.

    Where the newest rows go on from the line's last commit, only they are read: what follows a
    branch for a long time doesn't read its whole lineage for each commit.

    Raises:
        BranchNotFoundError: the graph has no such branch.
        StorageError: the store failed.
    """
    last = line[-1] if line else None
    if last is None or last.branch != branch or last.manifest_version > version:
        return complete(storage, branch, version)
    in_manifest = formats.of_graph(storage).has_lineage
    if in_manifest:
        found = _published(storage, branch, last.manifest_version)
    else:
        rows = _own_rows(storage, branch, _NEAR_ROWS)
        near = rows.filter(pc.greater_equal(rows["manifest_version"], last.manifest_version))
        found = _chosen(_commits(near))
    # Another commit there: the branch was made again, or its log was.
    if not found or found[0].graph_commit_id != last.graph_commit_id:
        return complete(storage, branch, version)
    new = [last, *(one for one in found[1:] if one.manifest_version <= version)]
    if in_manifest:
        return [*line[:-1], *_later(new)]
    missing = publishes_between(storage, branch, new[-1].manifest_version, version + 1)
    new = _in_line(new)
    return [*line[:-1], *new, *_chained(branch, missing, new[-1])]


def with_publish(
    storage: Storage, branch: str, line: Sequence[Commit], version: int
) -> list[Commit]:
    """Return a branch's lineage with the publish of a version that has no row, if there is one.

    Raises:
        StorageError: the store failed.
    """
    below = [one for one in line if one.manifest_version < version]
    above = line[len(below) :]
    known = formats.of_graph(storage).has_lineage or any(
        one.manifest_version == version for one in above
    )
    missing = [] if known else publishes_between(storage, branch, version - 1, version + 1)
    return [*below, *_chained(branch, missing, below[-1] if below else None), *above]


def find_commit(storage: Storage, commit_id: str) -> Commit | None:
    """Return the commit of this id, on whichever branch it was made; None if there is none.

    Raises:
        StorageError: the store failed.
    """
    if formats.of_graph(storage).has_lineage:
        every = (_published(storage, branch) for branch in branch_names(storage))
        return next((c for line in every for c in line if c.graph_commit_id == commit_id), None)
    for branch in branch_names(storage):
        matches = [c for c in _own(storage, branch) if c.graph_commit_id == commit_id]
        if matches:
            return _with_actors(storage, matches)[0]
    return None


def _published(storage: Storage, branch: str, since: int = 0) -> list[Commit]:
    """Return the commits that a branch's `__manifest` has itself, oldest first."""
    rows = read_rows(open_manifest(storage, branch))
    if since:
        rows = rows.filter(pc.greater_equal(rows["table_version"], since))
    return _later([_told(commit) for commit in lineage.commits_of(rows)])


def _told(commit: lineage.GraphCommit) -> Commit:
    moment = datetime.fromtimestamp(0, timezone.utc) + timedelta(microseconds=commit.created_at)
    return Commit(
        commit.commit_id,
        commit.branch,
        commit.graph_version,
        commit.parent,
        commit.merged_parent,
        moment.replace(tzinfo=None),
        commit.actor,
    )


def _later(commits: list[Commit]) -> list[Commit]:
    """Return commits each later than the one before, whatever their writers' clocks say."""
    line: list[Commit] = []
    for commit in commits:
        line.append(
            replace(commit, created_at=_after(line[-1] if line else None, commit.created_at))
        )
    return line


def _own_rows(
    storage: Storage,
    branch: str,
    newest: int | None = None,
    log: LanceDataset | None = None,
) -> pa.Table:
    """Return the rows of the commits that were made on a branch itself."""
    name = layout.lance_branch(branch)
    rows = append_log.read(storage, COMMITS, name, newest, log)
    if rows is None:
        return COMMITS.schema.empty_table()
    branches = pc.fill_null(rows["manifest_branch"], layout.MAIN)
    return rows.filter(pc.equal(branches, branch or layout.MAIN))


def _own(storage: Storage, branch: str) -> list[Commit]:
    """Return the commits that were made on a branch itself, doubles included, without actors."""
    return _commits(_own_rows(storage, branch))


def _commits(rows: pa.Table) -> list[Commit]:
    return [Commit(**row) for row in rows.to_pylist()]


def _chosen(commits: list[Commit]) -> list[Commit]:
    """Return one commit per version, by version; pure.

    Of several rows the one counts that the chosen commit of the next version has as its parent, so
    that the lineage is one unbroken line; then one that knows what it merged; then the oldest.
    """
    by_version: dict[int, list[Commit]] = {}
    for commit in _without_markers(commits):
        by_version.setdefault(commit.manifest_version, []).append(commit)
    chosen: list[Commit] = []
    parent_id: str | None = None
    for version in sorted(by_version, reverse=True):
        best = min(
            by_version[version],
            key=lambda c: (
                c.graph_commit_id != parent_id,
                c.merged_parent_commit_id is None,
                c.created_at,
                c.graph_commit_id,
            ),
        )
        chosen.append(best)
        parent_id = best.parent_commit_id
    return chosen[::-1]


def _in_line(chosen: list[Commit]) -> list[Commit]:
    """Let each commit be the child of the one before it, and later; pure.

    Rows may say otherwise: those that another engine wrote above a publish whose row wasn't there
    yet, and those of writers whose clocks differ. A parent that isn't in the line stays named.
    """
    known = {commit.graph_commit_id for commit in chosen}
    line: list[Commit] = []
    for commit in chosen:
        if line:
            before = line[-1]
            parent = commit.parent_commit_id
            if parent in known:
                parent = before.graph_commit_id
            created_at = _after(before, commit.created_at)
            if (parent, created_at) != (commit.parent_commit_id, commit.created_at):
                commit = replace(commit, parent_commit_id=parent, created_at=created_at)
        line.append(commit)
    return line


def _without_markers(commits: list[Commit]) -> list[Commit]:
    """Leave out the engine's notes that it took a dead write back: they publish nothing.

    Such a row names the version that it found, and the next commit names it as its parent.
    """
    known = {c.graph_commit_id: c for c in commits}
    meant: dict[str | None, str] = {}
    for c in sorted(commits, key=lambda commit: commit.created_at):
        parent = known.get(c.parent_commit_id or "")
        same = parent and (parent.branch, parent.manifest_version) == (c.branch, c.manifest_version)
        if parent and same and c.merged_parent_commit_id is None:
            meant[c.graph_commit_id] = meant.get(parent.graph_commit_id, parent.graph_commit_id)
    remaining = [c for c in commits if c.graph_commit_id not in meant]
    parents = [meant.get(c.parent_commit_id, c.parent_commit_id) for c in remaining]
    return [replace(c, parent_commit_id=p) for c, p in zip(remaining, parents, strict=True)]


def _with_actors(
    storage: Storage, commits: list[Commit], newest: int | None = None
) -> list[Commit]:
    try:
        rows = append_log.read(storage, COMMIT_ACTORS, newest=newest) if commits else None
    except StorageError as error:  # commits count without them
        _log.warning("the actors of commits can't be read: %s", error)
        rows = None
    if rows is None or rows.num_rows == 0:
        return commits
    ids, names = (rows[column].to_pylist() for column in ("graph_commit_id", "actor_id"))
    actors = dict(zip(ids, names, strict=True))
    return [replace(c, actor_id=actors.get(c.graph_commit_id)) for c in commits]
