"""Where two branches last had the same content: their newest common commits; without Spark.

Runs on the driver, once per merge; reads the lineage of both branches and of what was merged into
them. A publish whose lineage row is missing (its writer died between the two) gets it first.
"""

from __future__ import annotations

import logging

from omnigraph_spark.errors import UnsupportedError
from omnigraph_spark.history import commits
from omnigraph_spark.history.commits import Commit
from omnigraph_spark.history.publishes import PublishedVersion, publishes_between
from omnigraph_spark.manifest import formats
from omnigraph_spark.manifest.snapshot import Snapshot
from omnigraph_spark.storage.store import Storage

_log = logging.getLogger(__name__)


class Lines:
    """The lineages of branches, of which a call reads each once."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._read: dict[str, list[Commit]] = {}

    def of(self, branch: str) -> list[Commit]:
        """Return the lineage of a branch as it was when it was first asked for, without actors.

        Raises:
            BranchNotFoundError: the graph has no such branch.
            StorageError: the store failed.
        """
        if branch not in self._read:
            self._read[branch] = commits.read_commits(self._storage, branch, actors=False)
        return self._read[branch]

    def complete(self, branch: str, publish: PublishedVersion) -> None:
        """Write the rows that a lineage lacks up to a publish, and read lineages again.

        Raises:
            BranchNotFoundError, StorageError: as `commits.record`.
        """
        commits.record(self._storage, branch, publish)
        self._read.clear()


def head_commit(storage: Storage, snapshot: Snapshot, lines: Lines | None = None) -> Commit:
    """Return the commit of a branch's head, `snapshot` being that head.

    `lines` are the lineages of the caller's call, here and below.

    Raises:
        UnsupportedError: the graph has no lineage.
        StorageError: the store failed.
    """
    branch, version = snapshot.branch, snapshot.graph_version
    lines = lines or Lines(storage)
    own = lines.of(branch)
    newest = own[-1].manifest_version if own else 0
    missing = []
    if not formats.of_graph(storage).has_lineage:
        missing = publishes_between(storage, branch, newest, version + 1)
    if missing:
        lines.complete(branch, missing[-1])
        own = lines.of(branch)
    own = [commit for commit in own if commit.manifest_version <= version]
    if not own:
        raise UnsupportedError(
            f"Branch {branch} has no commits in the lineage",
            hint="Write to main once: the first write of this connector makes the lineage",
        )
    return own[-1]


def merge_bases(
    storage: Storage, source: Commit, target: Commit, lines: Lines | None = None
) -> list[Commit]:
    """Return the newest commits that both descend from, through merges too; the newest first.

    There is one, but where branches were merged crosswise: then none of them knows the others, and
    a row that they don't agree on can't be decided.

    Raises:
        UnsupportedError: they have no common commit, or the newest one was made on a branch that is
            deleted.
        StorageError: the store failed.
    """
    known: dict[str, Commit] = {}
    lines = lines or Lines(storage)
    ours = _ancestors(storage, target, known, lines)
    common = _ancestors(storage, source, known, lines) & ours
    inner = {parent for name in common & known.keys() for parent in _parents(known[name])}
    newest = common - inner
    if not newest:
        raise UnsupportedError(
            f"{source.branch} and {target.branch} have no common commit in the lineage"
        )
    lost = sorted(newest - known.keys())
    if lost:
        # With an older base, what one side has undone since would come back unnoticed.
        raise UnsupportedError(
            f"{source.branch} and {target.branch} both merged commit {lost[0]}, whose branch is "
            "deleted: what they changed since is unknown",
            expected="the newest common commit on a branch that is there",
            hint="Compare the two with OmniGraph.diff and write the rows that you want",
        )
    if len(newest) > 1:
        _log.warning("%s and %s were merged crosswise", source.branch, target.branch)
    bases = [known[name] for name in newest]
    return sorted(
        bases, key=lambda commit: (commit.created_at, commit.graph_commit_id), reverse=True
    )


def joined(
    storage: Storage, head: Commit, base: Commit, lines: Lines | None = None
) -> Commit | None:
    """Return the oldest commit on a head's branch that descends from `base`; None if none does.

    Raises:
        StorageError: the store failed.
    """
    known: dict[str, Commit] = {}
    lines = lines or Lines(storage)
    _ancestors(storage, head, known, lines)
    children: dict[str, list[str]] = {}
    for commit in known.values():
        for parent in _parents(commit):
            children.setdefault(parent, []).append(commit.graph_commit_id)
    descendants, left = set[str](), [base.graph_commit_id]
    while left:
        name = left.pop()
        if name not in descendants:
            descendants.add(name)
            left += children.get(name, [])
    own = lines.of(head.branch)
    upto = [commit for commit in own if commit.manifest_version <= head.manifest_version]
    return next((commit for commit in upto if commit.graph_commit_id in descendants), None)


def _parents(commit: Commit) -> list[str]:
    both = (commit.parent_commit_id, commit.merged_parent_commit_id)
    return [parent for parent in both if parent is not None]


def _ancestors(storage: Storage, start: Commit, known: dict[str, Commit], lines: Lines) -> set[str]:
    """Return the ids of a commit and all it descends from.

    `known` gets the commits; one that was merged from a branch deleted since has its id only.
    """
    for commit in lines.of(start.branch):
        known.setdefault(commit.graph_commit_id, commit)
    ancestors: set[str] = set()
    left = [start.graph_commit_id]
    while left:
        name = left.pop()
        if name in ancestors:
            continue
        ancestors.add(name)
        if name not in known:
            other = commits.find_commit(storage, name)
            if other is None:
                continue
            for commit in lines.of(other.branch):
                known.setdefault(commit.graph_commit_id, commit)
            known.setdefault(name, other)  # a row that the lineage leaves out
        left += _parents(known[name])
    return ancestors
