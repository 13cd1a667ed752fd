"""Where two branches last had the same content, without Spark: merges, gaps, deleted branches."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from omnigraph_spark import _faults
from omnigraph_spark.errors import UnsupportedError
from omnigraph_spark.history import commits
from omnigraph_spark.history.commits import Commit
from omnigraph_spark.refs.merge_base import head_commit, merge_bases
from omnigraph_spark.storage import append_log, layout
from omnigraph_spark.storage.ids import new_ulid
from omnigraph_spark.storage.store import Storage
from omnigraph_spark.write.commit.commit import commit
from tests.support.branches import at, make, remove
from tests.support.writes import PERSON, Died, die, new_graph, plan, stage_rows, write


@pytest.fixture
def graph(tmp_path: Path) -> Storage:
    """`main` with one commit, and `dev` with one more."""
    storage = new_graph(Storage.at(str(tmp_path / "g")), [PERSON])
    make(storage, "dev")
    write(storage, {PERSON: ["d"]}, branch="dev")
    return storage


def head(graph: Storage, branch: str = "main") -> Commit:
    return head_commit(graph, at(graph, branch))


def merge(graph: Storage, source: Commit, into: str) -> None:
    """Publish to a branch what a merge would: a commit that names its second parent."""
    planned = plan(graph, [PERSON], branch=into)
    planned = replace(planned, merged_parent=source.graph_commit_id)
    commit(planned, stage_rows(planned, {PERSON: [f"merged {source.graph_commit_id}"]}))


def bases(graph: Storage, source: str, target: str = "main") -> list[str]:
    return [
        one.graph_commit_id for one in merge_bases(graph, head(graph, source), head(graph, target))
    ]


def test_the_base_is_where_a_branch_began_and_then_what_was_merged_last(graph: Storage) -> None:
    began = head(graph)
    write(graph, {PERSON: ["m"]})
    assert bases(graph, "dev") == [began.graph_commit_id]
    merged = head(graph, "dev")
    merge(graph, merged, "main")
    write(graph, {PERSON: ["later"]}, branch="dev")
    assert bases(graph, "dev") == bases(graph, "main", "dev") == [merged.graph_commit_id]
    merge(graph, head(graph), "dev")
    assert bases(graph, "dev") == [head(graph).graph_commit_id]


def test_a_branch_of_a_branch_meets_main_through_its_parent(graph: Storage) -> None:
    make(graph, "dev/deep", "dev")
    write(graph, {PERSON: ["deep"]}, branch="dev/deep")
    merged = head(graph, "dev")
    merge(graph, merged, "main")
    assert bases(graph, "dev/deep") == [merged.graph_commit_id]


def test_crosswise_merges_leave_two_bases(graph: Storage) -> None:
    ours, theirs = head(graph), head(graph, "dev")
    write(graph, {PERSON: ["m"]})
    ours = head(graph)
    merge(graph, theirs, "main")
    merge(graph, ours, "dev")
    assert set(bases(graph, "dev")) == {ours.graph_commit_id, theirs.graph_commit_id}


@pytest.mark.long
def test_a_base_on_a_deleted_branch_is_no_base_and_no_older_one_is_taken(graph: Storage) -> None:
    make(graph, "other")
    write(graph, {PERSON: ["o"]}, branch="other")
    lost = head(graph, "dev")
    for into in ("main", "other"):
        merge(graph, lost, into)
    assert bases(graph, "other") == [lost.graph_commit_id]
    remove(graph, "dev")
    with pytest.raises(UnsupportedError, match=f"both merged commit {lost.graph_commit_id}"):
        bases(graph, "other")
    newer = head(graph)
    merge(graph, newer, "other")
    assert bases(graph, "other") == [newer.graph_commit_id]


def test_a_recovery_note_that_was_merged_stands_for_its_commit(graph: Storage) -> None:
    """The engine merges the newest row of a branch, which may note what it took back."""
    theirs = head(graph, "dev")
    note = replace(
        theirs,
        graph_commit_id=new_ulid(),
        parent_commit_id=theirs.graph_commit_id,
        created_at=theirs.created_at + timedelta(seconds=1),
    )
    rows = commits._rows([note])
    append_log.append(graph, commits.COMMITS, rows, layout.lance_branch("dev"))
    merge(graph, note, "main")
    assert bases(graph, "dev") == bases(graph, "main", "dev") == [theirs.graph_commit_id]


def test_who_fills_the_gap_of_a_merge_names_what_it_merged(graph: Storage) -> None:
    """rule 30: without it the next merge would begin too early and bring back what is gone."""
    merged = head(graph, "dev")
    _faults.arm("lineage.before_row", die)
    with pytest.raises(Died):
        merge(graph, merged, "main")
    _faults.disarm()
    told = commits.complete(graph, "main", at(graph).graph_version)[-1]
    assert told.merged_parent_commit_id == merged.graph_commit_id
    assert commits.read_commits(graph)[-1].merged_parent_commit_id is None
    assert head(graph) == told  # a merge that begins here fills the gap first
    assert bases(graph, "dev") == [merged.graph_commit_id]


def test_a_writer_fills_the_gap_of_a_merge_too(graph: Storage) -> None:
    merged = head(graph, "dev")
    _faults.arm("lineage.before_row", die)
    with pytest.raises(Died):
        merge(graph, merged, "main")
    _faults.disarm()
    write(graph, {PERSON: ["next"]})
    filled = commits.read_commits(graph)[-2]
    assert filled.merged_parent_commit_id == merged.graph_commit_id
    assert bases(graph, "dev") == [merged.graph_commit_id]
