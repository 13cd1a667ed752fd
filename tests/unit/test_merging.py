"""Merging branches without Spark: three ways by rows, one publish, conflicts counted and shown."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from omnigraph_spark import _faults
from omnigraph_spark.errors import (
    BranchNotFoundError,
    ExpectedVersionMismatch,
    MergeConflictError,
    OptionError,
    UnsupportedError,
)
from omnigraph_spark.history import commits
from omnigraph_spark.maintenance import optimize
from omnigraph_spark.manifest.snapshot import Snapshot, load
from omnigraph_spark.merge import merging, restore
from omnigraph_spark.merge.tables import Here
from omnigraph_spark.read import metadata_frames
from omnigraph_spark.refs.changes import Span
from omnigraph_spark.storage.store import Storage
from tests.format_checker import check_graph
from tests.support import branches, plain_writes
from tests.support.branches import make
from tests.support.feeds import read_feed
from tests.support.merges import (
    COMPANY,
    KNOWS,
    PERSON,
    Rows,
    conflicts,
    merge,
    prepare,
    rows_of,
    write_rows,
)
from tests.support.writes import once, orphan, write_options

START = (("a", 1), ("b", 2), ("c", 3), ("d", 4))


@pytest.fixture
def graph(tmp_path: Path) -> Storage:
    """Four people, one edge, and a branch `dev`."""
    storage = Storage.at(str(tmp_path / "g"))
    write_rows(storage, {PERSON: START, KNOWS: [("ab", "a", "b")]})
    make(storage, "dev")
    return storage


def put(graph: Storage, branch: str, rows: Rows) -> None:
    """Make a branch's people exactly these."""
    write_rows(graph, {PERSON: rows}, "overwrite", branch=branch)


def people(graph: Storage, branch: str = "main") -> list[tuple[Any, ...]]:
    return rows_of(graph, PERSON, branch)


def row_ids(graph: Storage, branch: str = "main") -> dict[str, int]:
    entry = load(graph, branch).entry(PERSON)
    dataset = graph.dataset(entry.location, entry.table_branch, entry.table_version)
    rows = dataset.scanner(columns=["id"], with_row_id=True).to_table().to_pylist()
    return {row["id"]: row["_rowid"] for row in rows}


def restore_to(graph: Storage, branch: str, version: int) -> None:
    restore.restore(graph, write_options(graph, branch=branch), str(version))


def at(graph: Storage, branch: str = "main") -> Snapshot:
    return load(graph, branch)


def test_rows_that_only_one_side_changed_are_taken_from_that_side(graph: Storage) -> None:
    put(graph, "dev", [("a", 10), ("b", 2), ("d", 4), ("e", 5)])  # a changed, c gone, e new
    put(graph, "main", [("a", 1), ("b", 20), ("c", 3), ("d", 4), ("f", 6)])  # b changed, f new
    edges = at(graph).entry(KNOWS)
    dev, main = commits.head(graph, "dev"), commits.head(graph)
    assert dev is not None and main is not None  # noqa: PT018  (for the type checker)
    done = merge(graph, "dev", actor="me")
    assert people(graph) == [("a", 10), ("b", 20), ("d", 4), ("e", 5), ("f", 6)]
    assert at(graph).entry(KNOWS) == edges
    head = commits.head(graph)
    assert head is not None
    assert head.parent_commit_id == main.graph_commit_id
    assert head.merged_parent_commit_id == dev.graph_commit_id
    assert (head.graph_commit_id, head.actor_id) == (done.publish_id, "me")
    ours = at(graph).entry(PERSON).ours
    assert ours["merged_parent"] == dev.graph_commit_id
    assert (ours["rows_added"], ours["rows_removed"]) == (2, 2)
    assert people(graph, "dev") == [("a", 10), ("b", 2), ("d", 4), ("e", 5)]
    assert check_graph(graph.root) == []


def test_a_merge_changes_the_rows_that_change_and_nothing_else(graph: Storage) -> None:
    """Rows keep their stable ids, and the feed says update where a row is updated."""
    write_rows(graph, {PERSON: [("a", 10), ("e", 5)]}, "merge", branch="dev")
    write_rows(graph, {PERSON: [("c", 0)]}, "delete", branch="dev")
    write_rows(graph, {PERSON: [("f", 6)]})
    before = row_ids(graph)
    files = {file.path for fragment in fragments(graph) for file in fragment.data_files()}
    version = merge(graph, "dev").graph_version
    after = row_ids(graph)
    assert {name: after[name] for name in "abdf"} == {name: before[name] for name in "abdf"}
    assert files < {file.path for fragment in fragments(graph) for file in fragment.data_files()}
    told = read_feed(graph, Span("main", version, version))
    assert sorted((row["_change_type"], row["id"], row["age"]) for row in told) == [
        ("delete", "c", 3),
        ("insert", "e", 5),
        ("update_postimage", "a", 10),
        ("update_preimage", "a", 1),
    ]


def fragments(graph: Storage) -> list[Any]:
    entry = at(graph).entry(PERSON)
    dataset = graph.dataset(entry.location, entry.table_branch, entry.table_version)
    found: list[Any] = dataset.get_fragments()
    return found


def test_rows_that_all_versions_share_are_not_read(graph: Storage) -> None:
    write_rows(graph, {PERSON: [(f"x{n}", n) for n in range(1000)]})
    make(graph, "late")
    write_rows(graph, {PERSON: [("a", 10)]}, "merge", branch="late")
    write_rows(graph, {PERSON: [("x7", 70)]}, "merge")
    found = prepare(graph, "late")
    assert isinstance(found.runner, Here)
    assert found.runner.rows_read == {PERSON: {"b0": 2, "s": 2, "t": 2}}


@pytest.mark.long
def test_history_tells_of_every_kind_of_publish_what_it_touched(graph: Storage) -> None:
    first = commits.head(graph)
    write_rows(graph, {PERSON: [("a", 10), ("e", 5)]}, "merge", branch="dev", actor="me")
    write_rows(graph, {PERSON: [("b", 0)]}, "delete", branch="dev", onDelete="cascade")
    dev = commits.head(graph, "dev")
    write_rows(graph, {COMPANY: [("x", 1)]})
    merge(graph, "dev", actor="you")
    restore_to(graph, "main", 3)
    assert first is not None and dev is not None  # noqa: PT018  (for the type checker)
    told = metadata_frames.read("history", graph, at(graph)).to_pylist()
    assert [(row["tables"], row["rows_added"], row["rows_removed"]) for row in told[:3]] == [
        ([KNOWS, COMPANY, PERSON], 5, 5),  # restored: COMPANY goes, the others come back as a whole
        ([KNOWS, PERSON], 2, 3),  # merged: a is updated, e added, b gone with its edge
        ([COMPANY], 1, 0),
    ]
    assert [row["actor"] for row in told[:3]] == [None, "you", None]
    assert told[1]["merged_parent_id"] == dev.graph_commit_id
    assert [row["parent_id"] for row in told[:3]] == [row["commit_id"] for row in told[1:4]]
    assert [row["version"] for row in told[:3]] == [6, 5, 4]
    branch = metadata_frames.read("history", graph, at(graph, "dev")).to_pylist()
    assert [(row["tables"], row["rows_added"], row["rows_removed"]) for row in branch[:2]] == [
        ([KNOWS, PERSON], 0, 2),
        ([PERSON], 2, 1),
    ]
    assert [row["actor"] for row in branch[:2]] == [None, "me"]
    assert branch[1]["parent_id"] == first.graph_commit_id


def test_the_same_change_on_both_sides_is_no_conflict(graph: Storage) -> None:
    both = [("a", 10), ("c", 3), ("d", None), ("new", 7)]
    put(graph, "dev", [*both, ("e", 5)])
    put(graph, "main", both)
    merge(graph, "dev")
    assert people(graph) == sorted([*both, ("e", 5)])


@pytest.mark.long
def test_a_zero_of_another_sign_is_a_change_that_merges_and_conflicts(tmp_path: Path) -> None:
    storage = Storage.at(str(tmp_path / "zeros"))

    def upsert(branch: str, **values: float) -> None:
        rows = {"id": [*values], "v": [*values.values()]}
        plain_writes.save(storage.root, rows, table=PERSON, writeMode="merge", branch=branch)

    upsert("main", a=0.0, b=0.0, c=0.0)
    make(storage, "dev")
    upsert("dev", a=-0.0, b=-0.0)
    upsert("main", b=-0.0, c=1.0)
    merge(storage, "dev")
    assert [(one, str(v)) for one, v in rows_of(storage, PERSON)] == [
        ("a", "-0.0"), ("b", "-0.0"), ("c", "1.0")
    ]  # fmt: skip
    upsert("dev", a=0.0)
    upsert("main", a=2.0)
    assert conflicts(prepare(storage, "dev")) == [(PERSON, "a", "DivergentUpdate")]


def test_conflicts_are_counted_shown_and_nothing_is_written(graph: Storage) -> None:
    put(graph, "dev", [("a", 10), ("b", 2), ("d", 40), ("n", 1), ("ok", 1)])
    put(graph, "main", [("a", 11), ("b", 2), ("c", 30), ("n", 2)])
    before = at(graph)
    with pytest.raises(MergeConflictError, match="OMNIGRAPH_MERGE_CONFLICT"):
        merge(graph, "dev")
    found = prepare(graph, "dev")
    assert found.counts == {
        (PERSON, "DeleteVsUpdate"): 2,
        (PERSON, "DivergentInsert"): 1,
        (PERSON, "DivergentUpdate"): 1,
    }
    assert conflicts(found) == [
        (PERSON, "a", "DivergentUpdate"),
        (PERSON, "c", "DeleteVsUpdate"),
        (PERSON, "d", "DeleteVsUpdate"),
        (PERSON, "n", "DivergentInsert"),
    ]
    assert isinstance(found.runner, Here)
    (images,) = [row[3:] for row in found.runner.conflicts() if row[1] == "a"]
    assert images == ('[{"age":1}]', '[{"age":11}]', '[{"age":10}]')
    assert at(graph) == before


@pytest.mark.parametrize(
    ("resolution", "expected"),
    [
        ("ours", [("a", 11), ("b", 2), ("c", 30), ("n", 2), ("ok", 1)]),
        ("theirs", [("a", 10), ("b", 2), ("d", 40), ("n", 1), ("ok", 1)]),
        ({PERSON: "theirs"}, [("a", 10), ("b", 2), ("d", 40), ("n", 1), ("ok", 1)]),
    ],
)
def test_a_resolution_decides_what_both_changed_and_nothing_else(
    graph: Storage, resolution: Any, expected: list[tuple[str, int]]
) -> None:
    put(graph, "dev", [("a", 10), ("b", 2), ("d", 40), ("n", 1), ("ok", 1)])
    put(graph, "main", [("a", 11), ("b", 2), ("c", 30), ("n", 2)])
    merge(graph, "dev", resolution=resolution)
    assert people(graph) == expected


def test_what_ours_decided_is_in_a_commit_and_not_asked_again(graph: Storage) -> None:
    put(graph, "dev", [*START[1:], ("a", 10)])
    put(graph, "main", [*START[1:], ("a", 11)])
    done = merge(graph, "dev", resolution="ours")
    assert not done.skipped
    assert people(graph) == sorted([*START[1:], ("a", 11)])
    assert prepare(graph, "dev").counts == {}


@pytest.mark.long
def test_a_target_that_hasnt_moved_becomes_as_the_source(graph: Storage) -> None:
    put(graph, "dev", [("a", 10), ("e", 5)])
    write_rows(graph, {COMPANY: [("x", 1)]}, branch="dev")
    write_rows(graph, {KNOWS: [("ea", "e", "a")]}, "overwrite", branch="dev")
    found = prepare(graph, "dev", only_fast_forward=True)
    assert (found.sides.fast_forward, found.written) == (True, (KNOWS, COMPANY, PERSON))
    merge(graph, "dev")
    for key in (PERSON, KNOWS, COMPANY):
        assert rows_of(graph, key) == rows_of(graph, key, "dev")
    assert people(graph) == [("a", 10), ("e", 5)]
    assert check_graph(graph.root) == []


def test_a_target_that_has_moved_cant_be_fast_forwarded(graph: Storage) -> None:
    put(graph, "dev", [("a", 10)])
    write_rows(graph, {PERSON: [("f", 6)]})
    with pytest.raises(UnsupportedError, match="main has moved since dev began"):
        prepare(graph, "dev", only_fast_forward=True)


@pytest.mark.long
def test_a_second_merge_begins_where_the_first_ended(graph: Storage) -> None:
    put(graph, "dev", [*START, ("e", 5)])
    merge(graph, "dev")
    put(graph, "main", [*START, ("e", 50)])
    put(graph, "dev", [*START, ("e", 5), ("g", 7)])
    merge(graph, "dev")
    assert people(graph) == sorted([*START, ("e", 50), ("g", 7)])
    merge(graph, "main", "dev")
    assert people(graph, "dev") == people(graph)
    version = at(graph).graph_version
    assert merge(graph, "dev").skipped
    assert at(graph).graph_version == version


def test_tables_that_a_side_made_or_dropped_are_merged_too(graph: Storage) -> None:
    start = at(graph).graph_version
    write_rows(graph, {COMPANY: [("x", 1)]}, branch="dev")
    write_rows(graph, {"node:Other": [("y", 1)]})
    merge(graph, "dev")
    assert sorted(at(graph).tables) == [KNOWS, COMPANY, "node:Other", PERSON]
    assert rows_of(graph, COMPANY) == [("x", 1)]
    restore_to(graph, "dev", start)
    merge(graph, "dev")
    assert sorted(at(graph).tables) == [KNOWS, "node:Other", PERSON]
    assert people(graph) == sorted(START)


@pytest.mark.long
def test_a_table_dropped_on_one_side_and_changed_on_the_other_is_a_conflict(
    graph: Storage,
) -> None:
    write_rows(graph, {COMPANY: [("x", 1)]})
    start = at(graph, "dev").graph_version
    merge(graph, "main", "dev")
    restore_to(graph, "dev", start)
    write_rows(graph, {COMPANY: [("y", 2)]})
    assert conflicts(prepare(graph, "dev")) == [(COMPANY, None, "DeleteVsUpdate")]
    merge(graph, "dev", resolution="theirs")
    assert COMPANY not in at(graph).tables


@pytest.mark.long
def test_a_table_that_was_only_compacted_goes_where_the_other_side_dropped_it(
    graph: Storage,
) -> None:
    start = at(graph, "dev").graph_version
    for name in ("x", "y"):
        write_rows(graph, {COMPANY: [(name, 1)]})
    merge(graph, "main", "dev")
    restore_to(graph, "dev", start)
    assert optimize.optimize(graph, "main", [COMPANY], optimize.run_here).tables
    assert prepare(graph, "dev").dropped == (COMPANY,)


def test_an_edge_whose_end_the_other_side_deleted_is_an_orphan(graph: Storage) -> None:
    write_rows(graph, {KNOWS: [("cd", "c", "d"), ("xx", "x", "x")]}, branch="dev")
    put(graph, "main", [("a", 1), ("b", 2), ("d", 4)])
    found = prepare(graph, "dev", resolution="theirs")
    assert conflicts(found) == [(KNOWS, "cd", "OrphanEdge"), (KNOWS, "xx", "OrphanEdge")]


def test_an_edge_and_the_node_it_ends_at_come_together(graph: Storage) -> None:
    write_rows(graph, {PERSON: [("e", 5)], KNOWS: [("ae", "a", "e")]}, branch="dev")
    write_rows(graph, {PERSON: [("f", 6)]})
    merge(graph, "dev")
    assert rows_of(graph, KNOWS) == [("ab", "a", "b"), ("ae", "a", "e")]


def test_a_node_and_the_edges_at_it_go_together(graph: Storage) -> None:
    write_rows(graph, {PERSON: [("b", 0)]}, "delete", branch="dev", onDelete="cascade")
    write_rows(graph, {PERSON: [("f", 6)], KNOWS: [("cd", "c", "d")]})
    merge(graph, "dev")
    assert rows_of(graph, KNOWS) == [("cd", "c", "d")]
    assert [name for name, _ in people(graph)] == ["a", "c", "d", "f"]


@pytest.mark.long
def test_edges_that_ended_nowhere_before_the_merge_dont_block_it(graph: Storage) -> None:
    write_rows(graph, {KNOWS: [("xx", "x", "x")]})
    make(graph, "late")
    write_rows(graph, {PERSON: [("e", 5)]}, branch="late")
    put(graph, "dev", [*START, ("g", 7)])
    merge(graph, "dev")
    merge(graph, "late")
    assert people(graph) == sorted([*START, ("e", 5), ("g", 7)])
    assert at(graph).entry(KNOWS).row_count == 2


def test_a_deleted_node_under_an_edge_of_the_target_is_an_orphan(graph: Storage) -> None:
    put(graph, "dev", [("a", 1), ("b", 2)])
    write_rows(graph, {KNOWS: [("cd", "c", "d")]})
    assert conflicts(prepare(graph, "dev")) == [(KNOWS, "cd", "OrphanEdge")]


def test_the_same_edge_made_on_two_branches_is_one_edge_or_a_conflict(graph: Storage) -> None:
    """(e)."""
    for branch in ("main", "dev"):
        write_rows(graph, {KNOWS: [("ac", "a", "c")]}, branch=branch)
    merge(graph, "dev")
    assert rows_of(graph, KNOWS) == [("ab", "a", "b"), ("ac", "a", "c")]
    write_rows(graph, {KNOWS: [("ad", "a", "d")]})
    write_rows(graph, {KNOWS: [("ad", "d", "a")]}, branch="dev")
    assert prepare(graph, "dev").counts == {(KNOWS, "DivergentInsert"): 1}


def test_doubled_ids_that_a_source_brings_are_refused(graph: Storage) -> None:
    write_rows(graph, {PERSON: [("z", 1), ("z", 2)]}, branch="dev")
    write_rows(graph, {PERSON: [("f", 6)]})
    for resolution in ("fail", "theirs"):
        assert prepare(graph, "dev", resolution=resolution).counts == {
            (PERSON, "UniqueViolation"): 1
        }


def test_an_id_that_is_doubled_beside_the_rows_that_changed_is_refused(graph: Storage) -> None:
    """The first row of `a` is the same everywhere, so only the second one is looked at."""
    write_rows(graph, {PERSON: [("a", 100)]}, branch="dev")
    write_rows(graph, {PERSON: [("f", 6)]})
    for resolution in ("fail", "theirs"):
        assert conflicts(prepare(graph, "dev", resolution=resolution)) == [
            (PERSON, "a", "UniqueViolation")
        ]
    merge(graph, "dev", resolution="ours")
    assert people(graph) == sorted([*START, ("f", 6)])


def test_a_rival_that_publishes_to_the_target_refuses_the_merge(graph: Storage) -> None:
    put(graph, "dev", [*START, ("e", 5)])
    rival = once(lambda: write_rows(graph, {KNOWS: [("bc", "b", "c")]}))
    _faults.arm("commit.entered", rival)
    try:
        with pytest.raises(ExpectedVersionMismatch, match="edge:Knows"):
            merge(graph, "dev")
    finally:
        _faults.disarm()
    assert people(graph) == sorted(START)
    assert rows_of(graph, KNOWS) == [("ab", "a", "b"), ("bc", "b", "c")]


def test_a_merge_over_a_dead_writers_rows_takes_none_of_them(graph: Storage) -> None:
    put(graph, "dev", [("a", 10), ("b", 2), ("d", 4), ("e", 5)])
    orphan(graph, PERSON, ["dead"])
    merge(graph, "dev")
    assert people(graph) == [("a", 10), ("b", 2), ("d", 4), ("e", 5)]


def test_what_cant_be_merged_is_refused_by_name(graph: Storage) -> None:
    with pytest.raises(BranchNotFoundError, match="no branch 'nope'"):
        prepare(graph, "nope")
    with pytest.raises(OptionError, match="into itself"):
        prepare(graph, "main")
    with pytest.raises(OptionError, match="'mine' is not a resolution"):
        prepare(graph, "dev", resolution="mine")
    with pytest.raises(OptionError, match="is not a valid table key"):
        prepare(graph, "dev", resolution={"Person": "ours"})


# --- what a merge reads once ---------------------------------------------------------------------


def test_rows_are_looked_up_again_where_maintenance_came_after_the_comparison(
    graph: Storage,
) -> None:
    """The rows lie elsewhere then; what was found before names other places."""
    for number in range(4):
        write_rows(graph, {PERSON: [(f"m{number}", number)]})
    make(graph, "more")
    write_rows(graph, {PERSON: [("a", 100), ("m3", 103)]}, "merge", branch="more")
    found = prepare(graph, "more")
    assert optimize.optimize(graph, "main", [PERSON], optimize.run_here).tables
    merging.publish(found, write_options(graph, "overwrite"))
    values = dict(people(graph))
    assert (values["a"], values["m3"], values["m0"]) == (100, 103, 0)
    assert len(values) == len(people(graph)) == 8


def test_a_version_is_opened_once_by_a_merge_and_again_by_the_next(
    graph: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[str, str | None, int | None]] = []
    real = Storage.dataset

    def noted(
        self: Storage, location: str, branch: str | None = None, version: int | None = None
    ) -> Any:
        if location.startswith("nodes/") and version is not None:
            seen.append((location, branch, version))
        return real(self, location, branch, version)

    write_rows(graph, {PERSON: [("n1", 1)]}, branch="dev")
    monkeypatch.setattr(Storage, "dataset", noted)
    for name in ("n2", "n3"):
        seen.clear()
        merge(graph, "dev")
        assert seen
        assert len(seen) == len(set(seen))
        write_rows(graph, {PERSON: [(name, 1)]}, branch="dev")


def test_a_target_that_was_deleted_and_made_again_since_the_comparison_gets_nothing(
    graph: Storage,
) -> None:
    """Its tables have the versions that were compared, and other rows at other places."""
    make(graph, "source")
    write_rows(graph, {PERSON: [("a", 11)]}, "merge", branch="source")
    write_rows(graph, {PERSON: [("d", None)]}, "delete", branch="source", onDelete="cascade")
    put(graph, "dev", START)
    prepared = prepare(graph, "source", "dev")
    compared = load(graph, "dev").version(PERSON)
    branches.remove(graph, "dev")
    make(graph, "dev")
    put(graph, "dev", [("x", 1), *reversed(START)])
    assert load(graph, "dev").version(PERSON) == compared
    before = people(graph, "dev")
    with pytest.raises(BranchNotFoundError, match="deleted and made again"):
        merging.publish(prepared, write_options(graph, branch="dev"))
    assert people(graph, "dev") == before
