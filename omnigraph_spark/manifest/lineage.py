"""The lineage of a graph whose commits are rows of `__manifest`; pure functions over rows.

A branch's `__manifest` has its parent's commits up to where it began, then its own. The newest one
is the parent of the next; the head row of the branch, which each publish rewrites, is what any two
publishes of it collide on (format.md, "Newer stamps").
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from omnigraph_spark.errors import CorruptManifestError
from omnigraph_spark.manifest.rows import COMMIT, CommitRow, HeadRow

_COLUMNS = ["object_id", "metadata", "table_version", "table_branch"]


@dataclass(frozen=True)
class GraphCommit:
    """A commit as `__manifest` has it; `created_at` in microseconds since the epoch."""

    commit_id: str
    graph_version: int
    branch: str | None
    parent: str | None
    merged_parent: str | None
    created_at: int
    actor: str | None

    @property
    def order(self) -> tuple[int, int, str]:
        """Return what the commits of a branch are sorted by."""
        return self.graph_version, self.created_at, self.commit_id


def commits_of(rows: pa.Table) -> list[GraphCommit]:
    """Return all commits among the rows of a branch's `__manifest`, oldest first.

    Raises:
        CorruptManifestError: a commit without a version, or with unreadable metadata.
    """
    commit_rows = rows.filter(pc.equal(rows["object_type"], COMMIT)).select(_COLUMNS).to_pylist()
    return sorted(map(_commit, commit_rows), key=lambda commit: commit.order)


def head_of(rows: pa.Table) -> GraphCommit | None:
    """Return the newest commit among the rows of a branch's `__manifest`, all or the current ones.

    Raises:
        CorruptManifestError: as `commits_of`.
    """
    are_commits = pc.equal(rows["object_type"], COMMIT)
    newest = pc.max(rows["table_version"].filter(are_commits))
    if not newest.is_valid:
        return None
    last = pc.and_(are_commits, pc.equal(rows["table_version"], newest))
    found = rows.select(_COLUMNS).filter(last).to_pylist()
    return max(map(_commit, found), key=lambda commit: commit.order)


def _commit(row: dict[str, Any]) -> GraphCommit:
    try:
        metadata = json.loads(row["metadata"])
        return GraphCommit(
            row["object_id"],
            int(row["table_version"]),
            row["table_branch"],
            metadata.get("parent_commit_id"),
            metadata.get("merged_parent_commit_id"),
            int(metadata["created_at"]),
            metadata.get("actor_id"),
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CorruptManifestError(
            f"The commit {str(row['object_id'])[:40]!r} in __manifest can't be read",
            expected="a version, and JSON with created_at",
            found=f"{type(error).__name__}: {error}",
        ) from error


def rows_of(own: CommitRow) -> Iterable[CommitRow | HeadRow]:
    """Return the rows that a publish adds to the lineage: its commit, and the branch's new head."""
    return own, HeadRow(own.branch, own.commit_id, own.parent)
