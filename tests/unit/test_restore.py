"""Restore without Spark: the content of an older version of all tables, as a new version."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from omnigraph_spark import _faults
from omnigraph_spark.errors import (
    ExpectedVersionMismatch,
    OptionError,
    PublishOutcomeUnknown,
    VersionNotFoundError,
)
from omnigraph_spark.history import commits, publishes
from omnigraph_spark.manifest.publisher import Publish, publish
from omnigraph_spark.manifest.rows import TOMBSTONE, TombstoneRow
from omnigraph_spark.manifest.snapshot import load, open_manifest, read_rows
from omnigraph_spark.merge import restore
from omnigraph_spark.refs import refs, tags
from omnigraph_spark.storage import layout
from omnigraph_spark.storage.ids import new_ulid
from omnigraph_spark.storage.store import Storage
from omnigraph_spark.write.commit.commit import Committed
from tests.format_checker import check_graph
from tests.support.branches import GRACE, at, forks_of, ids_at, make, remove, write_ids
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
    write,
    write_options,
)


@pytest.fixture
def graph(tmp_path: Path) -> Iterator[Storage]:
    """A graph of two tables, one row `first` each."""
    yield new_graph(Storage.at(str(tmp_path / "g")), [PERSON, KNOWS])
    _faults.disarm()


def back(graph: Storage, version: int | str, branch: str = "main", **more: str) -> Committed:
    options = write_options(graph, branch=branch, orphanGraceSeconds=str(GRACE), **more)
    return restore.restore(graph, options, str(version))


def head_version(graph: Storage, branch: str = "main") -> int:
    return at(graph, branch).graph_version


def data_files(graph: Storage) -> set[Path]:
    return {path for path in Path(graph.root).glob("*s/*/**/data/*") if path.is_file()}


def test_the_old_content_of_all_tables_is_a_new_version_and_the_old_ones_stay(
    graph: Storage,
) -> None:
    then = head_version(graph)
    write_ids(graph, "main", PERSON, ["p"])
    between = write_ids(graph, "main", KNOWS, ["k"], "overwrite")
    files = data_files(graph)
    done = back(graph, then, actor="me", userMetadata="why")
    assert done.graph_version == between + 1 == head_version(graph)
    assert (ids_at(graph, PERSON), ids_at(graph, KNOWS)) == (["first"], ["first"])
    assert (ids_at(graph, PERSON, f"main@{between}"), ids_at(graph, KNOWS, f"main@{between}")) == (
        ["first", "p"],
        ["k"],
    )
    assert data_files(graph) == files
    ours = at(graph).entry(KNOWS).ours
    assert (ours["mode"], ours["rows_added"], ours["rows_removed"]) == ("restore", 1, 1)
    assert (ours["user_metadata"], ours["actor"]) == ("why", "me")
    newest = commits.read_commits(graph)[-1]
    assert (newest.graph_commit_id, newest.actor_id) == (done.publish_id, "me")
    assert check_graph(graph.root) == []


def test_a_table_that_didnt_move_is_not_touched(graph: Storage) -> None:
    then = head_version(graph)
    before = at(graph).entry(KNOWS)
    write_ids(graph, "main", PERSON, ["p"])
    back(graph, then)
    assert at(graph).entry(KNOWS) == before


def test_a_restored_graph_can_be_written_to_and_restored_again(graph: Storage) -> None:
    then = head_version(graph)
    write_ids(graph, "main", PERSON, ["p"])
    full = head_version(graph)
    back(graph, then)
    write_ids(graph, "main", PERSON, ["q"])
    assert ids_at(graph, PERSON) == ["first", "q"]
    back(graph, full)
    assert ids_at(graph, PERSON) == ["first", "p"]
    back(graph, then)
    assert ids_at(graph, PERSON) == ["first"]
    assert check_graph(graph.root) == []


def test_a_restore_to_what_the_branch_is_already_publishes_nothing(graph: Storage) -> None:
    then = head_version(graph)
    done = back(graph, then)
    assert (done.skipped, done.graph_version) == (True, then)
    write_ids(graph, "main", PERSON, ["p"])
    back(graph, then)
    version = head_version(graph)
    assert back(graph, version).skipped
    assert head_version(graph) == version


def test_tables_born_since_go_and_come_back_above_their_tombstone(graph: Storage) -> None:
    then = head_version(graph)
    full = write_ids(graph, "main", COMPANY, ["c"])
    gone = back(graph, then).graph_version
    assert COMPANY not in at(graph).tables
    assert ids_at(graph, COMPANY, f"main@{full}") == ["c"]
    files = data_files(graph)
    back(graph, full)
    assert ids_at(graph, COMPANY) == ["c"]
    assert at(graph).entry(COMPANY).table_version > load(graph, version=gone).floors[COMPANY]
    assert data_files(graph) == files
    back(graph, then)
    write_ids(graph, "main", COMPANY, ["new"])
    assert ids_at(graph, COMPANY) == ["new"]
    assert check_graph(graph.root) == []


@pytest.mark.parametrize("way", ["restore", "create"])
def test_a_table_comes_back_above_a_tombstone_that_lies_above_its_head(
    graph: Storage, way: str
) -> None:
    full = write_ids(graph, "main", COMPANY, ["c"])
    beyond = at(graph).entry(COMPANY).table_version + 3
    publish(graph, Publish("main", new_ulid(), (TombstoneRow(COMPANY, beyond),)))
    assert COMPANY not in at(graph).tables
    if way == "restore":
        back(graph, full)
    else:
        write_ids(graph, "main", COMPANY, ["c"])
    assert ids_at(graph, COMPANY) == ["c"]
    assert at(graph).entry(COMPANY).table_version == beyond + 1


def test_a_restore_that_only_drops_tables_is_found_by_its_publish_id(graph: Storage) -> None:
    then = head_version(graph)
    write_ids(graph, "main", COMPANY, ["c"])
    _faults.arm("lineage.before_row", die)
    with pytest.raises(Died):
        back(graph, then)
    _faults.disarm()
    rows = read_rows(open_manifest(graph)).to_pylist()
    (tombstone,) = [row for row in rows if row["object_type"] == TOMBSTONE]
    version = head_version(graph)
    (found,) = publishes.publishes_between(graph, "main", version - 1, version + 1)
    assert f'"publish_id":"{found.publish_id}"' in tombstone["metadata"]
    age_records(graph)
    write_ids(graph, "main", PERSON, ["p"])
    assert commits.read_commits(graph)[-2].graph_commit_id == found.publish_id
    assert check_graph(graph.root) == []


def test_back_to_the_empty_graph_and_forward_again(graph: Storage) -> None:
    full = head_version(graph)
    back(graph, 1)
    assert at(graph).tables == {}
    back(graph, full)
    assert [ids_at(graph, key) for key in (PERSON, KNOWS)] == [["first"], ["first"]]
    assert check_graph(graph.root) == []


# --- on a branch -------------------------------------------------------------------------------


def test_on_a_branch_back_to_a_version_of_its_own(graph: Storage) -> None:
    make(graph, "dev")
    one = write_ids(graph, "dev", PERSON, ["d1"])
    write_ids(graph, "dev", PERSON, ["d2"])
    main = at(graph)
    back(graph, one, "dev")
    assert ids_at(graph, PERSON, "dev") == ["d1", "first"]
    write_ids(graph, "dev", PERSON, ["d3"])
    assert ids_at(graph, PERSON, "dev") == ["d1", "d3", "first"]
    assert at(graph) == main
    assert check_graph(graph.root) == []


def test_on_a_branch_back_to_where_it_began_needs_no_new_files(graph: Storage) -> None:
    write_ids(graph, "main", PERSON, ["m"])
    make(graph, "dev")
    began = head_version(graph, "dev")
    write_ids(graph, "dev", PERSON, ["d"], "overwrite")
    files = data_files(graph)
    back(graph, began, "dev")
    assert ids_at(graph, PERSON, "dev") == ["first", "m"]
    assert data_files(graph) == files
    assert check_graph(graph.root) == []


@pytest.mark.parametrize("forked", [False, True], ids=["no fork yet", "forked"])
def test_on_a_branch_back_to_below_its_fork_copies_the_parents_rows(
    graph: Storage, forked: bool
) -> None:
    then = head_version(graph)
    write_ids(graph, "main", PERSON, ["m"])
    make(graph, "dev")
    if forked:
        write_ids(graph, "dev", PERSON, ["d"])
    main = at(graph)
    before = head_version(graph, "dev")
    back(graph, then, "dev")
    assert ids_at(graph, PERSON, "dev") == ["first"]
    assert forks_of(graph, PERSON) == ["dev"]
    assert forks_of(graph, KNOWS) == []
    back(graph, before, "dev")
    assert ids_at(graph, PERSON, "dev") == (["d", "first", "m"] if forked else ["first", "m"])
    assert at(graph) == main
    assert check_graph(graph.root) == []


@pytest.mark.long
def test_on_a_branch_a_table_that_main_had_then_is_dropped_and_comes_back(graph: Storage) -> None:
    then = head_version(graph)
    write_ids(graph, "main", COMPANY, ["c"])
    make(graph, "dev")
    full = head_version(graph, "dev")
    back(graph, then, "dev")
    assert COMPANY not in at(graph, "dev").tables
    assert ids_at(graph, COMPANY) == ["c"]
    back(graph, full, "dev")
    assert ids_at(graph, COMPANY, "dev") == ["c"]
    write_ids(graph, "dev", COMPANY, ["d"])
    assert (ids_at(graph, COMPANY), ids_at(graph, COMPANY, "dev")) == (["c"], ["c", "d"])
    assert check_graph(graph.root) == []
    remove(graph, "dev")
    assert ids_at(graph, COMPANY) == ["c"]


# --- what is refused ---------------------------------------------------------------------------


def test_only_versions_that_the_branch_had_are_restored(graph: Storage) -> None:
    make(graph, "dev")
    write_ids(graph, "dev", PERSON, ["d"])
    of_dev = commits.read_commits(graph, "dev")[-1].graph_commit_id
    tags.create_tag(graph, "v1", refs.named(graph, "dev"))
    later = write_ids(graph, "main", PERSON, ["m"])
    of_main = commits.read_commits(graph)[-1].graph_commit_id
    for version, branch in ((of_dev, "main"), ("v1", "main"), (of_main, "dev")):
        with pytest.raises(OptionError, match=f"which branch {branch} never had"):
            back(graph, version, branch)
    for version in ("99", "nope"):
        with pytest.raises(VersionNotFoundError, match="OMNIGRAPH_VERSION_NOT_FOUND"):
            back(graph, version)
    assert head_version(graph) == later
    write_ids(graph, "dev", PERSON, ["e"])
    back(graph, "v1", "dev")
    assert ids_at(graph, PERSON, "dev") == ["d", "first"]


def test_a_table_version_that_was_cleaned_up_is_named(graph: Storage) -> None:
    from datetime import timedelta

    then = head_version(graph)
    write_ids(graph, "main", PERSON, ["p"], "overwrite")
    graph.dataset(layout.table_location(PERSON)).cleanup_old_versions(timedelta(0))
    version = head_version(graph)
    with pytest.raises(VersionNotFoundError, match="Version 1 of node:Person was cleaned up"):
        back(graph, then)
    assert head_version(graph) == version


@pytest.mark.parametrize("rival", [PERSON, KNOWS], ids=["restored table", "table left alone"])
@pytest.mark.parametrize("point", ["commit.before_table", "publish.before_merge"])
def test_a_rivals_publish_refuses_the_restore_and_keeps_its_rows(
    graph: Storage, rival: str, point: str
) -> None:
    then = head_version(graph)
    write_ids(graph, "main", PERSON, ["p"])
    _faults.arm(point, once(lambda: write_ids(graph, "main", rival, ["rival"])))
    with pytest.raises(ExpectedVersionMismatch, match="OMNIGRAPH_EXPECTED_VERSION_MISMATCH"):
        back(graph, then)
    _faults.disarm()
    assert ids_at(graph, PERSON) == sorted(["first", "p", *(["rival"] if rival == PERSON else [])])
    assert "rival" in ids_at(graph, rival)
    write_ids(graph, "main", PERSON, ["next"])
    assert "next" in ids_at(graph, PERSON)
    assert check_graph(graph.root) == []


@pytest.mark.long
@pytest.mark.parametrize(
    "point",
    [
        "commit.record_written",
        "table.before_restore",
        "table.after_restore",
        "commit.table_1",
        "commit.tables_done",
        "publish.before_merge",
        "publish.landed",
        "commit.before_record_delete",
    ],
)
@pytest.mark.parametrize("branch", ["main", "dev"])
def test_a_restore_killed_at_any_step_is_all_there_or_not_at_all(
    graph: Storage, point: str, branch: str
) -> None:
    then = head_version(graph)
    write(graph, {PERSON: ["p"], COMPANY: ["c"]})
    make(graph, "dev")
    write(graph, {PERSON: ["p2"], KNOWS: ["k"]}, branch=branch)
    old = {key: ids_at(graph, key, branch) for key in ALL}
    _faults.arm(point, die)
    with pytest.raises(Died):
        back(graph, then, branch)
    _faults.disarm()
    age_records(graph)
    done = point in ("publish.landed", "commit.before_record_delete")
    if done:
        assert COMPANY not in at(graph, branch).tables
        old = {PERSON: ["first"], KNOWS: ["first"]}
    assert {key: ids_at(graph, key, branch) for key in old} == old
    write_ids(graph, branch, PERSON, ["next"])
    assert ids_at(graph, PERSON, branch) == sorted([*old[PERSON], "next"])
    assert ids_at(graph, KNOWS, branch) == old[KNOWS]
    back(graph, then, branch)
    assert {key: ids_at(graph, key, branch) for key in at(graph, branch).tables} == {
        PERSON: ["first"],
        KNOWS: ["first"],
    }
    assert check_graph(graph.root) == []


def test_a_restore_whose_publish_lost_its_answer_is_found(graph: Storage) -> None:
    then = head_version(graph)
    write_ids(graph, "main", COMPANY, ["c"])

    def lost() -> None:
        raise OSError("Commit result for version 9 is unknown")

    _faults.arm("publish.landed", once(lost))
    done = back(graph, then)
    _faults.disarm()
    assert done.graph_version == head_version(graph)
    assert COMPANY not in at(graph).tables
    _faults.arm("publish.landed", lost)
    with pytest.raises(PublishOutcomeUnknown, match="OMNIGRAPH_PUBLISH_OUTCOME_UNKNOWN"):
        back(graph, then + 1, commitRetries="0")
