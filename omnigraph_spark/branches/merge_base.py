"""Where two branches last had the same content: their newest common commit; without Spark.

Runs on the driver, once per merge; reads the lineage of both branches and of what was merged into
them. A publish whose lineage row is missing (its writer died between the two) gets it first.
"""

from __future__ import annotations

import logging

from omnigraph_spark.errors import UnsupportedError
from omnigraph_spark.history import commits
from omnigraph_spark.history.commits import Commit
from omnigraph_spark.history.publishes import publishes_between
from omnigraph_spark.manifest.snapshot import Snapshot
from omnigraph_spark.storage import Storage

_log = logging.getLogger(__name__)


def head_commit(storage: Storage, snapshot: Snapshot) -> Commit:
    """Return the commit of a branch's head, `snapshot` being that head.

    Raises:
        UnsupportedError: the graph has no lineage.
        StorageError: the store failed.
    """
    branch, version = snapshot.branch, snapshot.graph_version
    own = commits.read_commits(storage, branch)
    newest = own[-1].manifest_version if own else 0
    missing = publishes_between(storage, branch, newest, version + 1)
    if missing:
        last = missing[-1]
        commits.record_publish(storage, branch, last.publish_id, last.graph_version, last.actor)
        own = commits.read_commits(storage, branch)
    own = [commit for commit in own if commit.manifest_version <= version]
    if not own:
        raise UnsupportedError(
            f"Branch {branch} has no commits in the lineage",
            hint="Write to main once: the first write of this connector makes the lineage",
        )
    return own[-1]


def merge_base(storage: Storage, source: Commit, target: Commit) -> Commit:
    """Return the newest commit that both descend from, through merges too.

    Where branches were merged crosswise there can be several; the newest by its time is taken. A
    row that only one of the two knows may then count as changed on both sides and is reported as a
    conflict, never decided silently.

    Raises:
        UnsupportedError: they have no common commit.
        StorageError: the store failed.
    """
    known: dict[str, Commit] = {}
    common = _ancestors(storage, source, known) & _ancestors(storage, target, known)
    inner = {parent for one in common for parent in _parents(known[one])}
    newest = [known[one] for one in common - inner]
    if not newest:
        raise UnsupportedError(
            f"{source.branch} and {target.branch} have no common commit in the lineage"
        )
    if len(newest) > 1:
        _log.warning("%d common ancestors; the newest is taken", len(newest))
    return max(newest, key=lambda one: (one.created_at, one.graph_commit_id))


def _parents(commit: Commit) -> list[str]:
    both = (commit.parent_commit_id, commit.merged_parent_commit_id)
    return [one for one in both if one is not None]


def _ancestors(storage: Storage, start: Commit, known: dict[str, Commit]) -> set[str]:
    """Return the ids of a commit and all it descends from that the lineage still has."""
    for one in commits.read_commits(storage, start.branch):
        known.setdefault(one.graph_commit_id, one)
    found: set[str] = set()
    left = [start.graph_commit_id]
    while left:
        name = left.pop()
        if name not in known:
            other = commits.find_commit(storage, name)
            if other is None:
                continue  # of a branch that is deleted
            for one in commits.read_commits(storage, other.branch):
                known.setdefault(one.graph_commit_id, one)
        if name not in found:
            found.add(name)
            left += _parents(known[name])
    return found
