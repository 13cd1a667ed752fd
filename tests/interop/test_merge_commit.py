"""The merge commit that the engine made has the rows that our three-way rule gives."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from omnigraph_spark.history import commits
from omnigraph_spark.history.commits import Commit
from omnigraph_spark.manifest.snapshot import load
from omnigraph_spark.read.plan import read_table
from omnigraph_spark.refs import merge_base
from omnigraph_spark.storage.store import Storage
from tests.property.model import merged
from tests.support import graphs


def contents(storage: Storage, commit: Commit) -> dict[str, dict[str, Any]]:
    """Return the rows of every table at a commit, by id, as text."""
    snapshot = load(storage, commit.branch, commit.manifest_version)
    return {
        key: {str(row["id"]): str(row) for row in read_table(storage, snapshot, key).to_pylist()}
        for key in snapshot.tables
    }


def test_the_engines_merge_is_the_three_way_merge_of_its_parents(tmp_path: Path) -> None:
    storage = Storage.at(str(graphs.unpack("v2", "rich", tmp_path)))
    line = commits.read_commits(storage)
    made = next(one for one in line if one.merged_parent_commit_id is not None)
    ours = next(one for one in line if one.graph_commit_id == made.parent_commit_id)
    theirs = commits.find_commit(storage, made.merged_parent_commit_id or "")
    assert theirs is not None
    assert theirs.branch == "feature/merged"
    (base,) = merge_base.merge_bases(storage, theirs, ours)
    assert (base.branch, base.manifest_version) == ("main", 6)
    sides = [contents(storage, one) for one in (base, theirs, ours)]
    assert merged([sides[0]], sides[1], sides[2]) == contents(storage, made)
    assert sides[2] != contents(storage, made) != sides[1]
    assert [one.graph_commit_id for one in merge_base.merge_bases(storage, theirs, made)] == [
        theirs.graph_commit_id
    ]
