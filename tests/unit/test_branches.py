"""Graph branches without Spark: made, written, deleted, and made again (rules 21 to 23)."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from omnigraph_spark import _faults
from omnigraph_spark.errors import (
    BranchNotFoundError,
    ExpectedVersionMismatch,
    OmnigraphError,
    OptionError,
    PublishOutcomeUnknown,
    StorageError,
    TableNotFoundError,
    UnsupportedError,
    VersionNotFoundError,
)
from omnigraph_spark.history import commits
from omnigraph_spark.manifest.snapshot import load
from omnigraph_spark.refs import branches as manage
from omnigraph_spark.refs import forks, refs
from omnigraph_spark.storage import layout
from omnigraph_spark.storage.store import Storage
from omnigraph_spark.write.commit.commit import commit
from tests.format_checker import check_graph
from tests.support.branches import (
    GRACE,
    at,
    forks_of,
    ids_at,
    make,
    names,
    remove,
    write_ids,
)
from tests.support.writes import (
    ALL,
    COMPANY,
    KNOWS,
    PERSON,
    Died,
    age_records,
    die,
    new_graph,
    once,
    plan,
    stage_rows,
    write,
)


@pytest.fixture
def graph(tmp_path: Path) -> Iterator[Storage]:
    """A graph of three tables, one row `first` each; no fault outlives the test."""
    yield new_graph(Storage.at(str(tmp_path / "g")))
    _faults.disarm()


# --- making ------------------------------------------------------------------------------------


def test_a_new_branch_shares_every_table_and_is_a_branch_at_every_level(graph: Storage) -> None:
    make(graph, "dev")
    assert at(graph, "dev").tables == at(graph).tables
    assert [forks_of(graph, key) for key in ALL] == [[], [], []]
    assert sorted(graph.dataset(layout.GRAPH_COMMITS).branches.list()) == ["dev"]
    assert check_graph(graph.root) == []


def test_a_table_is_forked_at_its_first_write_and_main_stays_as_it_is(graph: Storage) -> None:
    make(graph, "dev")
    before = at(graph)
    write_ids(graph, "dev", PERSON, ["d1"])
    write_ids(graph, "dev", PERSON, ["d2"])
    assert ids_at(graph, PERSON, "dev") == ["d1", "d2", "first"]
    assert ids_at(graph, PERSON) == ["first"]
    assert (forks_of(graph, PERSON), forks_of(graph, COMPANY)) == (["dev"], [])
    assert at(graph) == before
    assert check_graph(graph.root) == []


def test_a_branch_doesnt_see_what_its_parent_gets_later(graph: Storage) -> None:
    make(graph, "dev")
    write_ids(graph, "main", PERSON, ["m"])
    assert ids_at(graph, PERSON, "dev") == ["first"]
    write_ids(graph, "dev", PERSON, ["d"])
    assert ids_at(graph, PERSON, "dev") == ["d", "first"]
    assert ids_at(graph, PERSON) == ["first", "m"]


def test_a_branch_of_a_branch_begins_with_its_parents_rows(graph: Storage) -> None:
    make(graph, "dev")
    write_ids(graph, "dev", PERSON, ["d"])
    make(graph, "dev2", "dev")
    write_ids(graph, "dev2", PERSON, ["e"])
    write_ids(graph, "dev", PERSON, ["late"])
    assert ids_at(graph, PERSON, "dev2") == ["d", "e", "first"]
    assert ids_at(graph, PERSON, "dev") == ["d", "first", "late"]
    assert check_graph(graph.root) == []


def test_a_type_can_be_created_on_a_branch_and_is_not_on_main(tmp_path: Path) -> None:
    graph = new_graph(Storage.at(str(tmp_path / "g")), [PERSON])
    make(graph, "dev")
    write_ids(graph, "dev", COMPANY, ["c"])
    assert ids_at(graph, COMPANY, "dev") == ["c"]
    with pytest.raises(TableNotFoundError, match="OMNIGRAPH_TABLE_NOT_FOUND"):
        at(graph).entry(COMPANY)
    write_ids(graph, "main", COMPANY, ["m"])
    assert (ids_at(graph, COMPANY), ids_at(graph, COMPANY, "dev")) == (["m"], ["c"])
    assert check_graph(graph.root) == []


def test_a_branch_made_in_the_past_has_the_rows_and_the_history_of_then(graph: Storage) -> None:
    then = at(graph).graph_version
    write_ids(graph, "main", PERSON, ["later"])
    make(graph, "dev", f"main@{then}")
    assert ids_at(graph, PERSON, "dev") == ["first"]
    raw = graph.dataset(layout.GRAPH_COMMITS, "dev").to_table()["manifest_version"].to_pylist()
    assert max(raw) == then
    version = write_ids(graph, "dev", PERSON, ["d"])
    assert ids_at(graph, PERSON, "dev") == ["d", "first"]
    head, before = commits.read_commits(graph, "dev")[:-3:-1]
    assert (head.manifest_version, before.manifest_version) == (version, then)
    assert head.parent_commit_id == before.graph_commit_id
    assert check_graph(graph.root) == []


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("", "is not a valid branch name"),
        ("a b", "is not a valid branch name"),
        ("../x", "is not a valid branch name"),
        ("x/../y", "is not a valid branch name"),
        ("/x", "is not a valid branch name"),
        ("x//y", "is not a valid branch name"),
        ("x\x00", "is not a valid branch name"),
        ("x@3", "is not a valid branch name"),
        ("é", "is not a valid branch name"),
        ("a" * 300, "is not a valid branch name"),
        ("__run__01", "reserved by the engine"),
        ("__schema_apply_lock__", "reserved by the engine"),
        ("main", "is there already"),
        ("dev", "is there already"),
    ],
)
def test_hostile_reserved_and_taken_names_are_refused(graph: Storage, name: str, why: str) -> None:
    make(graph, "dev")
    with pytest.raises(OptionError, match=f"OMNIGRAPH_OPTION.*{why}"):
        make(graph, name)
    assert names(graph) == ["main", "dev"]


@pytest.mark.parametrize("ref", ["nope", "main@99", "99", "01ARZ3NDEKTSV4RRFFQ69G5FAV"])
def test_a_branch_from_a_ref_that_isnt_there_is_refused(graph: Storage, ref: str) -> None:
    with pytest.raises(VersionNotFoundError, match="OMNIGRAPH_VERSION_NOT_FOUND"):
        make(graph, "dev", ref)
    assert names(graph) == ["main"]


@pytest.mark.long
def test_branch_names_that_begin_alike_dont_meet(graph: Storage) -> None:
    for name in ("a", "a/b", "ab", "a/b/c"):
        make(graph, name)
        write_ids(graph, name, PERSON, [name.replace("/", "-")])
    for gone, left in (("a", ["a/b", "a/b/c", "ab"]), ("a/b/c", ["a/b", "ab"])):
        remove(graph, gone)
        for name in left:
            assert ids_at(graph, PERSON, name) == sorted([name.replace("/", "-"), "first"])
            write_ids(graph, name, COMPANY, ["x"])
    assert names(graph) == ["main", "a/b", "ab"]
    assert check_graph(graph.root) == []


def test_deleting_a_leaves_a_fork_that_somebody_is_just_making_of_a_b(graph: Storage) -> None:
    make(graph, "a")
    make(graph, "a/b")
    planned = plan(graph, [PERSON], branch="a/b")
    ref = f"{layout.table_location(PERSON)}/_refs/branches/a%2Fb.json"
    content = graph.get(ref)
    assert content is not None
    graph.delete(ref)  # as between the clone and its ref
    remove(graph, "a")
    graph.put(ref, content)
    commit(planned, stage_rows(planned, {PERSON: ["x"]}))
    assert ids_at(graph, PERSON, "a/b") == ["first", "x"]


# --- branchFrom --------------------------------------------------------------------------------


def test_branch_from_makes_a_missing_branch_and_leaves_one_that_is_there(graph: Storage) -> None:
    then = at(graph).graph_version
    write_ids(graph, "main", PERSON, ["m"])
    write_ids(graph, "dev", PERSON, ["d"], branchFrom=f"main@{then}")
    assert ids_at(graph, PERSON, "dev") == ["d", "first"]
    write_ids(graph, "dev", PERSON, ["e"], branchFrom="main")
    assert ids_at(graph, PERSON, "dev") == ["d", "e", "first"]
    assert ids_at(graph, PERSON) == ["first", "m"]


def test_a_refused_write_makes_no_branch(graph: Storage) -> None:
    with pytest.raises(ExpectedVersionMismatch, match="OMNIGRAPH_EXPECTED_VERSION_MISMATCH"):
        write_ids(
            graph,
            "dev",
            PERSON,
            ["d"],
            branchFrom="main",
            expectedTableVersions=f'{{"{PERSON}":9}}',
        )
    with pytest.raises(OptionError, match="is not a valid branch name"):
        write_ids(graph, "../dev", PERSON, ["d"], branchFrom="main")
    with pytest.raises(VersionNotFoundError, match="no version, commit or tag 'nope'"):
        write_ids(graph, "dev", PERSON, ["d"], branchFrom="nope")
    assert names(graph) == ["main"]


def test_without_branch_from_a_missing_branch_is_refused_and_the_branches_are_listed(
    graph: Storage,
) -> None:
    with pytest.raises(BranchNotFoundError, match=r"no branch 'dev' · expected main"):
        write_ids(graph, "dev", PERSON, ["d"])


# --- forks: rule 21 and 22 -----------------------------------------------------------------


def forget(graph: Storage, name: str) -> None:
    """Remove a graph branch as an older program does: its table forks are left over."""
    graph.dataset(layout.MANIFEST).branches.delete(name)
    graph.dataset(layout.GRAPH_COMMITS).branches.delete(name)


def test_what_a_deleted_branch_left_is_gone_before_a_branch_of_its_name_exists(
    graph: Storage,
) -> None:
    make(graph, "dev")
    write_ids(graph, "dev", PERSON, ["ghost1"])
    write_ids(graph, "dev", PERSON, ["ghost2"])
    forget(graph, "dev")
    assert forks_of(graph, PERSON) == ["dev"]
    make(graph, "dev")
    assert forks_of(graph, PERSON) == []
    write_ids(graph, "dev", PERSON, ["d"])
    assert ids_at(graph, PERSON, "dev") == ["d", "first"]
    assert check_graph(graph.root) == []


def test_a_fork_that_began_elsewhere_is_refused_and_nothing_is_written(graph: Storage) -> None:
    make(graph, "dev")
    write_ids(graph, "main", PERSON, ["m"])
    graph.dataset(layout.table_location(PERSON)).create_branch("dev", ("main", None))
    with pytest.raises(StorageError, match=r"OMNIGRAPH_STORAGE.*left over from another branch"):
        write_ids(graph, "dev", PERSON, ["d"])
    assert ids_at(graph, PERSON, "dev") == ["first"]


def test_rows_that_a_dead_writer_left_on_a_fork_never_appear(graph: Storage) -> None:
    make(graph, "dev")
    for point in ("commit.table_1", "commit.before_publish"):
        planned = plan(graph, [PERSON], branch="dev", orphanGraceSeconds=str(GRACE))
        staged = stage_rows(planned, {PERSON: ["ghost"]})
        _faults.arm(point, die)
        with pytest.raises(Died):
            commit(planned, staged)
        _faults.disarm()
        age_records(graph)
        write_ids(graph, "dev", PERSON, [point.replace(".", "-")])
    assert ids_at(graph, PERSON, "dev") == ["commit-before_publish", "commit-table_1", "first"]
    assert check_graph(graph.root) == []


def half_forked(graph: Storage, name: str) -> Path:
    """Leave a table's fork as a forker does that dies before its ref; return its folder."""
    location = layout.table_location(PERSON)
    graph.dataset(location).create_branch(name, ("main", None))
    graph.delete(f"{location}/_refs/branches/{name}.json")
    return Path(graph.uri(location, "tree", name))


@pytest.mark.long
def test_a_dead_write_to_a_branch_is_rolled_back_by_a_writer_of_another_branch(
    graph: Storage,
) -> None:
    make(graph, "dev")
    before = ids_at(graph, PERSON, "dev")
    write_ids(graph, "main", PERSON, ["m"])  # main and dev pin other versions of the table
    _faults.arm("commit.before_publish", die)
    with pytest.raises(Died):
        write_ids(graph, "dev", PERSON, ["dead"])
    _faults.disarm()
    age_records(graph)
    write_ids(graph, "main", COMPANY, ["c"], commitTimeoutSeconds="5")
    assert ids_at(graph, PERSON, "dev") == before
    assert not graph.list("__recovery")
    write_ids(graph, "dev", PERSON, ["next"])
    assert ids_at(graph, PERSON, "dev") == sorted([*before, "next"])


def test_a_clone_whose_forker_died_before_its_ref_is_made_again(graph: Storage) -> None:
    make(graph, "dev")
    half_forked(graph, "dev")
    assert forks_of(graph, PERSON) == []
    write_ids(graph, "dev", PERSON, ["d"])
    assert forks_of(graph, PERSON) == ["dev"]
    assert ids_at(graph, PERSON, "dev") == ["d", "first"]
    assert check_graph(graph.root) == []


def test_a_folder_without_ref_that_holds_more_than_a_clone_is_refused_by_name(
    graph: Storage,
) -> None:
    import lance

    make(graph, "dev")
    folder = half_forked(graph, "dev")
    lance.dataset(str(folder)).delete("true")
    before = sorted(folder.rglob("*"))
    with pytest.raises(StorageError, match="tree/dev has no ref file and holds 2 versions"):
        write_ids(graph, "dev", PERSON, ["d"])
    assert sorted(folder.rglob("*")) == before
    assert ids_at(graph, PERSON, "dev") == ["first"]


@pytest.mark.long
def test_a_creator_of_a_branch_that_died_before_its_ref_blocks_nobody(graph: Storage) -> None:
    graph.dataset(layout.MANIFEST).create_branch("dev", ("main", None))
    graph.delete(f"{layout.MANIFEST}/_refs/branches/dev.json")
    write_ids(graph, "main", PERSON, ["m"])
    make(graph, "dev")
    assert ids_at(graph, PERSON, "dev") == ["first", "m"]
    assert check_graph(graph.root) == []


def test_of_two_that_fork_a_table_at_once_both_go_on_with_one_fork(graph: Storage) -> None:
    make(graph, "dev")
    entry = at(graph, "dev").entry(PERSON)
    barrier, errors = threading.Barrier(4), []

    def fork() -> None:
        barrier.wait()
        try:
            forks.ensure_fork(graph, entry, "dev", 5.0)
        except OmnigraphError as error:
            errors.append(error)

    threads = [threading.Thread(target=fork) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    write_ids(graph, "dev", PERSON, ["d"])
    assert ids_at(graph, PERSON, "dev") == ["d", "first"]


def test_of_two_that_make_one_branch_one_is_told_that_it_is_there(graph: Storage) -> None:
    barrier, outcomes = threading.Barrier(3), []

    def creator() -> None:
        barrier.wait()
        try:
            make(graph, "dev")
        except OptionError as error:
            assert "is there already" in str(error)  # noqa: PT017  (in a thread)
            outcomes.append("refused")
        else:
            outcomes.append("made")

    threads = [threading.Thread(target=creator) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(outcomes) == ["made", "refused", "refused"]
    assert ids_at(graph, PERSON, "dev") == ["first"]
    assert check_graph(graph.root) == []


def test_a_creator_that_took_anothers_lineage_for_left_over_makes_it_again(
    graph: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the ref that it removes and the folder, the other makes both, of an older version."""
    older = load(graph).graph_version
    write_ids(graph, "main", PERSON, ["newer"])
    graph.dataset(layout.GRAPH_COMMITS).create_branch("dev", ("main", None))
    removed = forks.remove_fork

    def overtaken(storage: Storage, fork: forks.Fork, is_unwanted: Callable[[], bool]) -> bool:
        monkeypatch.setattr(forks, "remove_fork", removed)
        storage.dataset(fork.location).branches.delete(fork.name)
        manage.create_branch(storage, fork.name, refs.Resolved("main", older))
        for info in storage.list(f"{fork.location}/tree/{fork.name}"):
            storage.delete(info.path)
        return True

    monkeypatch.setattr(forks, "remove_fork", overtaken)
    monkeypatch.setattr(manage, "_CREATOR_SECONDS", 0.1)
    with pytest.raises(OptionError, match="dev is there already"):
        make(graph, "dev")
    lineage = graph.dataset(layout.GRAPH_COMMITS, "dev").to_table()["manifest_version"].to_pylist()
    assert max(lineage) == older
    assert ids_at(graph, PERSON, "dev") == ["first"]
    write_ids(graph, "dev", PERSON, ["d"])
    assert ids_at(graph, PERSON, "dev") == ["d", "first"]
    assert check_graph(graph.root) == []


def test_the_lineage_of_a_branch_that_is_being_made_is_not_taken_for_left_over(
    graph: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph.dataset(layout.GRAPH_COMMITS).create_branch("dev", ("main", None))
    main = graph.dataset(layout.MANIFEST)
    later = threading.Timer(0.2, lambda: main.create_branch("dev", ("main", None)))
    later.start()
    try:
        with pytest.raises(OptionError, match="dev is there already"):
            make(graph, "dev")
    finally:
        later.join()
    assert graph.dataset(layout.GRAPH_COMMITS, "dev").count_rows() > 0
    assert check_graph(graph.root) == []


# --- deleting: rule 23 ---------------------------------------------------------------------


def test_deleting_a_branch_takes_its_forks_and_leaves_main(graph: Storage) -> None:
    make(graph, "dev")
    write_ids(graph, "dev", PERSON, ["d"])
    before = at(graph)
    remove(graph, "dev")
    assert names(graph) == ["main"]
    assert forks_of(graph, PERSON) == []
    assert [p for p in Path(graph.root).rglob("*") if "tree" in p.parts and p.is_file()] == []
    assert (at(graph), ids_at(graph, PERSON)) == (before, ["first"])
    with pytest.raises(BranchNotFoundError, match="OMNIGRAPH_BRANCH_NOT_FOUND"):
        load(graph, "dev")
    assert check_graph(graph.root) == []


@pytest.mark.long
def test_a_branch_deleted_and_made_again_has_nothing_of_the_old_one(graph: Storage) -> None:
    for number in range(3):
        make(graph, "dev")
        assert ids_at(graph, PERSON, "dev") == ["first"]
        write_ids(graph, "dev", PERSON, [f"d{number}"])
        assert ids_at(graph, PERSON, "dev") == [f"d{number}", "first"]
        assert len(commits.read_commits(graph, "dev")) == len(commits.read_commits(graph)) + 1
        remove(graph, "dev")


def test_what_others_need_is_not_deleted(graph: Storage) -> None:
    make(graph, "dev")
    write_ids(graph, "dev", PERSON, ["d"])
    make(graph, "dev2", "dev")
    with pytest.raises(UnsupportedError, match="dev2 descends from dev · Delete dev2 first"):
        remove(graph, "dev")
    with pytest.raises(UnsupportedError, match="main can't be deleted"):
        remove(graph, "main")
    with pytest.raises(BranchNotFoundError, match="no branch 'nope' · expected main, dev, dev2"):
        remove(graph, "nope")
    assert ids_at(graph, PERSON, "dev2") == ["d", "first"]


@pytest.mark.long
def test_an_unfinished_deletion_is_finished_by_the_next(graph: Storage) -> None:
    make(graph, "dev")
    write_ids(graph, "dev", PERSON, ["d"])
    forget(graph, "dev")
    remove(graph, "dev")
    assert forks_of(graph, PERSON) == []
    with pytest.raises(BranchNotFoundError, match="no branch 'dev'"):
        remove(graph, "dev")


@pytest.mark.long
def test_a_writer_whose_branch_was_made_again_publishes_nothing_in_the_new_one(
    graph: Storage,
) -> None:
    make(graph, "dev")
    write_ids(graph, "dev", PERSON, ["old"])
    planned = plan(graph, [PERSON], branch="dev", orphanGraceSeconds=str(GRACE))
    staged = stage_rows(planned, {PERSON: ["late"]})
    remove(graph, "dev")
    make(graph, "dev")
    write_ids(graph, "dev", PERSON, ["new"])
    with pytest.raises(BranchNotFoundError, match="dev was deleted and made again"):
        commit(planned, staged)
    assert ids_at(graph, PERSON, "dev") == ["first", "new"]
    write_ids(graph, "dev", PERSON, ["more"])
    assert ids_at(graph, PERSON, "dev") == ["first", "more", "new"]


@pytest.mark.long
def test_a_writer_about_to_publish_loses_to_the_deletion_and_its_folder_blocks_nothing(
    graph: Storage,
) -> None:
    make(graph, "dev")
    write_ids(graph, "dev", PERSON, ["old"])
    planned = plan(graph, [PERSON], branch="dev", orphanGraceSeconds=str(GRACE))
    staged = stage_rows(planned, {PERSON: ["late"]})
    _faults.arm("publish.before_merge", once(lambda: remove(graph, "dev")))
    with pytest.raises(OmnigraphError, match="dev"):
        commit(planned, staged)
    _faults.disarm()
    assert names(graph) == ["main"]
    make(graph, "dev")
    write_ids(graph, "dev", PERSON, ["new"])
    assert ids_at(graph, PERSON, "dev") == ["first", "new"]


def test_the_closing_mark_makes_a_publish_collide_that_opened_the_branch_before(
    graph: Storage,
) -> None:
    make(graph, "dev")
    write_ids(graph, "dev", PERSON, ["old"])
    planned = plan(graph, [PERSON], branch="dev", orphanGraceSeconds=str(GRACE))
    staged = stage_rows(planned, {PERSON: ["late"]})
    attempts: list[int] = []
    _faults.arm("publish.opened", lambda: attempts.append(1))
    close = once(lambda: manage._close(graph, "dev", None, frozenset([PERSON]), 0.0))
    _faults.arm("publish.before_merge", close)
    alone = commit(planned, staged)
    assert len(attempts) == 4  # the round, the lost publish, the mark, and the publish that won
    assert ids_at(graph, PERSON, "dev") == ["first", "late", "old"]
    assert alone.graph_version == at(graph, "dev").graph_version


def test_a_branch_deleted_right_after_the_publish_leaves_its_outcome_unknown(
    graph: Storage,
) -> None:
    make(graph, "dev")
    write_ids(graph, "dev", PERSON, ["old"])
    planned = plan(graph, [PERSON], branch="dev", orphanGraceSeconds=str(GRACE))
    staged = stage_rows(planned, {PERSON: ["late"]})

    def made_again() -> None:
        remove(graph, "dev")
        make(graph, "dev")

    _faults.arm("publish.after_merge", once(made_again))
    with pytest.raises(PublishOutcomeUnknown, match="dev was deleted while it was published to"):
        commit(planned, staged)


def test_deleting_waits_for_a_writer_that_gives_signs_of_life(graph: Storage) -> None:
    make(graph, "dev")
    planned = plan(graph, [PERSON], branch="dev", orphanGraceSeconds="5")
    staged = stage_rows(planned, {PERSON: ["d"]})
    reached, go_on, done = threading.Event(), threading.Event(), []

    def pause() -> None:
        reached.set()
        go_on.wait(10)

    _faults.arm("commit.before_table", once(pause))
    writer = threading.Thread(target=lambda: done.append(commit(planned, staged)))
    writer.start()
    assert reached.wait(10)
    deleter = threading.Thread(target=lambda: manage.delete_branch(graph, "dev", 5.0))
    deleter.start()
    deleter.join(0.5)
    assert deleter.is_alive()
    assert names(graph) == ["main", "dev"]
    go_on.set()
    writer.join()
    deleter.join()
    assert len(done) == 1
    assert names(graph) == ["main"]


# --- crashes and crowds --------------------------------------------------

POINTS = [
    "commit.record_written",
    "commit.before_table",
    "table.before_commit",
    "table.sending",
    "table.landed",
    "commit.table_1",
    "commit.tables_done",
    "publish.opened",
    "publish.before_merge",
    "publish.landed",
    "commit.published",
    "lineage.after_actor",
    "commit.before_record_delete",
]
PUBLISHED = {"publish.landed", "commit.published", "lineage.after_actor"}


@pytest.mark.long
@pytest.mark.parametrize("second", [False, True], ids=["first write", "second write"])
@pytest.mark.parametrize("point", POINTS)
def test_a_writer_killed_on_a_branch_leaves_all_or_nothing_and_main_alone(
    graph: Storage, point: str, second: bool
) -> None:
    make(graph, "dev")
    old = {key: ["first"] for key in ALL}
    if second:
        write(graph, {key: ["old"] for key in ALL}, branch="dev")
        old = {key: ["first", "old"] for key in ALL}
    main = at(graph)
    planned = plan(graph, ALL, branch="dev", orphanGraceSeconds=str(GRACE), actor="a")
    staged = stage_rows(planned, {key: ["x"] for key in ALL})
    _faults.arm(point, die)
    with pytest.raises(Died):
        commit(planned, staged)
    _faults.disarm()
    found = {key: ids_at(graph, key, "dev") for key in ALL}
    new = {key: [*old[key], "x"] for key in ALL}
    assert found == (new if point in PUBLISHED | {"commit.before_record_delete"} else old)
    age_records(graph)
    write(graph, {key: ["y"] for key in ALL}, branch="dev", orphanGraceSeconds=str(GRACE))
    assert {key: ids_at(graph, key, "dev") for key in ALL} == {
        key: [*found[key], "y"] for key in ALL
    }
    assert at(graph) == main
    assert check_graph(graph.root) == []


@pytest.mark.long
def test_writers_on_branches_of_their_own_all_succeed_beside_branches_that_come_and_go(
    graph: Storage,
) -> None:
    branches = [f"w{number}" for number in range(4)]
    for name in branches:
        make(graph, name)
    errors: list[BaseException] = []

    def writer(name: str) -> None:
        try:
            for number in range(4):
                write(
                    graph, {PERSON: [f"{name}-{number}"], KNOWS: [f"{name}-{number}"]}, branch=name
                )
        except BaseException as error:  # noqa: BLE001  (asserted on below)
            errors.append(error)

    def comer() -> None:
        try:
            for number in range(4):
                make(graph, f"t{number}")
                write_ids(graph, f"t{number}", PERSON, [f"t{number}"])
                remove(graph, f"t{number}")
        except BaseException as error:  # noqa: BLE001  (asserted on below)
            errors.append(error)

    threads = [threading.Thread(target=writer, args=(name,)) for name in branches]
    threads.append(threading.Thread(target=comer))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    for name in branches:
        expected = sorted(["first", *(f"{name}-{number}" for number in range(4))])
        assert (ids_at(graph, PERSON, name), ids_at(graph, KNOWS, name)) == (expected, expected)
    assert ids_at(graph, PERSON) == ["first"]
    assert names(graph) == ["main", *branches]
    assert check_graph(graph.root) == []


# --- a graph that was moved --------------------------------------------------------------------


def test_a_branch_of_a_moved_graph_is_read_and_not_written(graph: Storage, tmp_path: Path) -> None:
    make(graph, "dev")
    write_ids(graph, "dev", PERSON, ["d"])
    shutil.move(graph.root, tmp_path / "moved")
    moved = Storage.at(str(tmp_path / "moved"))
    assert ids_at(moved, PERSON, "dev") == ["d", "first"]
    with pytest.raises(UnsupportedError, match=r"graph was moved or copied.*OmniGraph.repair"):
        write_ids(moved, "dev", PERSON, ["x"])
    with pytest.raises(UnsupportedError, match="graph was moved or copied"):
        make(moved, "dev2", "dev")
    write_ids(moved, "main", PERSON, ["m"])
    make(moved, "dev3")
    write_ids(moved, "dev3", PERSON, ["e"])
    assert ids_at(moved, PERSON, "dev3") == ["e", "first", "m"]


# --- refs --------------------------------------------------------------------------------------


def test_a_ref_is_a_branch_a_version_on_it_a_commit_id_or_a_version_of_main(graph: Storage) -> None:
    then = at(graph).graph_version
    make(graph, "dev")
    version = write_ids(graph, "dev", PERSON, ["d"])
    commit_id = commits.read_commits(graph, "dev")[-1].graph_commit_id
    assert refs.named(graph, "dev") == ("dev", None)
    assert refs.named(graph, f"dev@{version}") == ("dev", version)
    assert refs.named(graph, f"dev@{then - 1}") == ("main", then - 1)
    assert refs.named(graph, commit_id) == ("dev", version)
    assert refs.named(graph, str(then)) == ("main", then)
