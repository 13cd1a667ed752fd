"""What a merge of branches owes to the graph: it is recorded, and the graph's rules hold after it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from omnigraph_spark.errors import IntegrityError
from omnigraph_spark.history import commits
from omnigraph_spark.manifest.snapshot import load
from omnigraph_spark.schema_changes.properties import drop_table
from omnigraph_spark.storage.store import Storage
from omnigraph_spark.write.commit.commit import Committed
from tests.support import merges, ruled
from tests.support.branches import ids_at, make
from tests.support.merges import KNOWS, PERSON
from tests.support.writes import DEFAULT, write_options

both_stamps = pytest.mark.parametrize("form", [2, 6])


def _people(tmp_path: Path, form: int = 2) -> Storage:
    storage = merges.empty_graph(Storage.at(str(tmp_path / "graph")), form)
    merges.write_rows(storage, {PERSON: [("a", 1), ("b", 2), ("c", 3)], KNOWS: [("e", "a", "b")]})
    make(storage, "dev")
    return storage


def _delete(storage: Storage, *ids: str, branch: str = "main") -> None:
    merges.write_rows(storage, {PERSON: [(one, None) for one in ids]}, "delete", branch=branch)


def _parents(storage: Storage, branch: str = "main") -> list[str | None]:
    return [one.merged_parent_commit_id for one in commits.read_commits(storage, branch)]


@both_stamps
def test_a_row_written_after_a_merge_that_found_both_sides_alike_stays(
    tmp_path: Path, form: int
) -> None:
    storage = _people(tmp_path, form)
    for branch in ("dev", "main"):
        _delete(storage, "c", branch=branch)
    done = merges.merge(storage, "dev")
    assert not done.skipped
    assert _parents(storage)[-1] == commits.read_commits(storage, "dev")[-1].graph_commit_id
    merges.write_rows(storage, {PERSON: [("c", 30)]})
    assert merges.merge(storage, "dev").skipped  # there is nothing new on dev
    assert merges.rows_of(storage, PERSON) == [("a", 1), ("b", 2), ("c", 30)]


@pytest.mark.long
@both_stamps
def test_a_value_set_after_a_merge_that_found_both_sides_alike_is_not_set_back(
    tmp_path: Path, form: int
) -> None:
    storage = _people(tmp_path, form)
    make(storage, "staging")
    for branch in ("dev", "staging"):
        merges.write_rows(storage, {PERSON: [("a", 10)]}, "merge", branch=branch)
    assert not merges.merge(storage, "dev", "staging").skipped
    merges.write_rows(storage, {PERSON: [("a", 1)]}, "merge", branch="staging")
    merges.write_rows(storage, {PERSON: [("d", 4)]}, branch="dev")
    merges.merge(storage, "dev", "staging")
    assert merges.rows_of(storage, PERSON, "staging") == [("a", 1), ("b", 2), ("c", 3), ("d", 4)]


def test_a_merge_of_two_sides_that_dropped_the_same_table_is_recorded(tmp_path: Path) -> None:
    storage = _people(tmp_path)
    for branch in ("dev", "main"):
        drop_table(storage, write_options(storage, branch=branch), [KNOWS])
    assert not merges.merge(storage, "dev").skipped
    merges.write_rows(storage, {KNOWS: [("f", "a", "c")]})
    merges.merge(storage, "dev")
    assert ids_at(storage, KNOWS) == ["f"]


def test_a_merge_of_two_sides_that_made_the_same_table_is_recorded(tmp_path: Path) -> None:
    storage = _people(tmp_path)
    for branch in ("dev", "main"):
        merges.write_rows(storage, {merges.COMPANY: [("acme", 1)]}, branch=branch)
    assert not merges.merge(storage, "dev").skipped
    merges.write_rows(storage, {merges.COMPANY: [("acme", 1)]}, "delete")
    merges.merge(storage, "dev")
    assert ids_at(storage, merges.COMPANY) == []


def _ruled(tmp_path: Path, form: int) -> Storage:
    storage = ruled.ruled_graph(tmp_path / "graph", form)
    make(storage, "dev")
    return storage


def _save(storage: Storage, key: str, *rows: Any, branch: str = "main", **more: str) -> None:
    options = {"integrity": "strict", "branch": branch, **more}
    ruled.save(storage, {key: list(rows)}, **options)


def _merge(storage: Storage, **options: str) -> Committed:
    return merges.merge(storage, "dev", **{"integrity": DEFAULT, **options})


@pytest.mark.long
@both_stamps
def test_a_merge_that_would_double_a_unique_value_is_refused(tmp_path: Path, form: int) -> None:
    storage = _ruled(tmp_path, form)
    _save(storage, ruled.PERSON, {"id": "m", "email": "x@y"})
    _save(storage, ruled.PERSON, {"id": "d", "email": "x@y"}, branch="dev")
    before = load(storage).graph_version
    with pytest.raises(IntegrityError) as refused:
        _merge(storage)
    assert (refused.value.rule, refused.value.column) == ("unique", "email")
    assert load(storage).graph_version == before
    assert not _merge(storage, integrity="off").skipped


@pytest.mark.long
@both_stamps
def test_a_merge_that_would_give_a_source_too_many_edges_is_refused(
    tmp_path: Path, form: int
) -> None:
    storage = _ruled(tmp_path, form)
    _save(storage, ruled.WORKS, ruled.edge("b", "acme"), ruled.edge("b", "acme"))
    _save(storage, ruled.WORKS, ruled.edge("b", "acme"), branch="dev")
    with pytest.raises(IntegrityError) as refused:
        _merge(storage)
    assert refused.value.rule == "card"


@both_stamps
def test_a_fast_forward_brings_no_value_that_a_rule_forbids(tmp_path: Path, form: int) -> None:
    storage = _ruled(tmp_path, form)
    _save(storage, ruled.PERSON, {"id": "d", "age": 999}, branch="dev", integrity="off")
    with pytest.raises(IntegrityError) as refused:
        _merge(storage)
    assert (refused.value.rule, refused.value.column) == ("range", "age")
    assert not _merge(storage, integrity="off").skipped
    assert "d" in ids_at(storage, ruled.PERSON)


@pytest.mark.long
@both_stamps
def test_a_unique_value_that_moved_to_another_row_on_the_branch_is_merged(
    tmp_path: Path, form: int
) -> None:
    storage = _ruled(tmp_path, form)
    _save(storage, ruled.PERSON, {"id": "old", "email": "x@y"})
    make(storage, "later")
    ruled.save(storage, {ruled.PERSON: [{"id": "old"}]}, writeMode="delete", branch="later")
    _save(storage, ruled.PERSON, {"id": "new", "email": "x@y"}, branch="later")
    merges.merge(storage, "later", integrity=DEFAULT)
    assert ids_at(storage, ruled.PERSON) == ["a", "b", "c", "new"]


@pytest.mark.long
@both_stamps
def test_edges_that_the_branch_deleted_do_not_count_in_a_merge(tmp_path: Path, form: int) -> None:
    storage = _ruled(tmp_path, form)
    _save(storage, ruled.WORKS, ruled.edge("b", "acme", id="w1"), ruled.edge("b", "acme", id="w2"))
    make(storage, "later")
    ruled.save(storage, {ruled.WORKS: [{"id": "w1"}]}, writeMode="delete", branch="later")
    _save(storage, ruled.WORKS, ruled.edge("b", "acme", id="w3"), branch="later")
    merges.merge(storage, "later", integrity=DEFAULT)
    assert ids_at(storage, ruled.WORKS) == ["aw", "w2", "w3"]
