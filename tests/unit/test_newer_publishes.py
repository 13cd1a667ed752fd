"""Publishes to graphs whose lineage is in `__manifest` (stamps 4 and 6), without an engine.

The graphs of stamp 6 are those that engine 0.9 made; those of stamp 4 are made here.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from omnigraph_spark import _faults
from omnigraph_spark.errors import (
    CommitTimeoutError,
    CorruptManifestError,
    OptionError,
    RecoveryPendingError,
    SchemaMismatchError,
    UnsupportedError,
)
from omnigraph_spark.history import commits
from omnigraph_spark.history.publishes import keeps_rows
from omnigraph_spark.maintenance.check import MOVED_BRANCH, UNPUBLISHED_HEAD, check
from omnigraph_spark.maintenance.cleanup import cleanup
from omnigraph_spark.maintenance.repair import repair
from omnigraph_spark.manifest import lineage
from omnigraph_spark.manifest.publisher import Publish, publish
from omnigraph_spark.manifest.rows import (
    CommitRow,
    TombstoneRow,
    VersionRow,
    to_arrow,
)
from omnigraph_spark.manifest.snapshot import fold, load, open_main, read_rows
from omnigraph_spark.refs import branches as manage
from omnigraph_spark.refs import refs
from omnigraph_spark.schema_changes import properties
from omnigraph_spark.storage import append_log, backoff
from omnigraph_spark.storage.ids import new_ulid
from omnigraph_spark.storage.store import Storage
from omnigraph_spark.write.commit.commit import commit
from omnigraph_spark.write.commit.table_head import StartOver
from omnigraph_spark.write.plan import head
from tests.format_checker import check_graph
from tests.support import branches, graphs, writes
from tests.support.writes import KNOWS, PERSON, ids, new_graph, orphan, write, write_and_die

STAMP = "omnigraph:internal_schema_version"
LOGS = ("_graph_commits.lance", "_graph_commit_actors.lance", "_graph_runs.lance")


@pytest.fixture
def social(tmp_path: Path) -> Iterator[Storage]:
    """A graph of engine 0.9, as it lies now; its branches name another place."""
    yield Storage.at(str(graphs.unpack("v6", "social", tmp_path)))
    _faults.disarm()


@pytest.fixture
def four(tmp_path: Path) -> Iterator[Storage]:
    """A graph of stamp 4: what stamp 2 has, and the lineage in `__manifest`."""
    storage = new_graph(Storage.at(str(tmp_path / "g")), [PERSON, KNOWS])
    manifest = open_main(storage)
    own = CommitRow(new_ulid(), int(manifest.version) + 1, None, None, 1)
    manifest.merge_insert("object_id").when_not_matched_insert_all().execute(
        to_arrow(lineage.rows_of(own))
    )
    open_main(storage).update_schema_metadata({STAMP: "4"})
    for name in (*LOGS, "_graph_run_actors.lance", "__recovery"):
        for info in storage.list(name):
            storage.delete(info.path)
    open_main(storage)  # the format is that of the last open
    yield storage
    _faults.disarm()


@pytest.fixture(params=["social", "four"])
def graph(request: pytest.FixtureRequest) -> Storage:
    found: Storage = request.getfixturevalue(request.param)
    return found


def rows_of(storage: Storage) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = read_rows(open_main(storage)).to_pylist()
    return found


def new_rows(storage: Storage, before: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the rows that are new or changed since."""
    return [row for row in rows_of(storage) if row not in before]


def test_a_publish_is_its_versions_its_commit_and_the_branchs_head(graph: Storage) -> None:
    before = rows_of(graph)
    head = commits.head(graph)
    assert head is not None
    done = write(graph, {PERSON: ["a"], KNOWS: ["b"]}, new={}, actor="eve")
    found = new_rows(graph, before)
    kinds = sorted(row["object_type"] for row in found)
    assert kinds == ["graph_commit", "graph_head", "table_version", "table_version"]
    made, top = (
        next(row for row in found if row["object_type"] == kind)
        for kind in ("graph_commit", "graph_head")
    )
    assert made["object_id"] == done.publish_id
    assert made["table_version"] == done.graph_version
    above = range(done.graph_version + 1, open_main(graph).version + 1)
    assert all(keeps_rows(open_main(graph), version) for version in above)  # a compaction
    told = json.loads(made["metadata"])
    assert told.pop("created_at") > 1_500_000_000_000_000
    assert told == {"parent_commit_id": head.graph_commit_id, "actor_id": "eve"}
    assert top["object_id"] == "graph_head:main"
    assert json.loads(top["metadata"]) == {
        "head_commit_id": done.publish_id,
        "parent_commit_id": head.graph_commit_id,
    }
    assert not [info for name in LOGS for info in graph.list(name)]
    assert graph.list("__recovery") == graph.list("__writers") == []


@pytest.mark.parametrize("mode", ["append", "overwrite"])
def test_each_kind_of_write_keeps_to_the_format(social: Storage, mode: str) -> None:
    write(social, {PERSON: ["a", "b"], KNOWS: ["c"]}, mode, new={})
    write(social, {PERSON: ["a", "d"]}, writeMode="merge", new={})
    write(social, {PERSON: ["b"]}, writeMode="delete", onDelete="cascade", new={})
    assert {"a", "d"} <= {*ids(social, PERSON)}
    assert check_graph(social.root, moved=True) == []
    line = commits.read_commits(social)
    assert [one.parent_commit_id for one in line[1:]] == [o.graph_commit_id for o in line[:-1]]


def test_of_two_publishes_from_one_version_the_second_looks_again(graph: Storage) -> None:
    """They touch different tables, and collide on the row of the branch's head."""
    rival = writes.once(lambda: write(graph, {KNOWS: ["first"]}, new={}))
    _faults.arm("publish.before_merge", rival)
    write(graph, {PERSON: ["second"]}, new={})
    _faults.disarm()
    line = commits.read_commits(graph)
    assert [one.manifest_version for one in line] == sorted({o.manifest_version for o in line})
    parents = [one.parent_commit_id for one in line[1:]]
    assert parents == [one.graph_commit_id for one in line[:-1]]


def test_a_commit_that_landed_later_than_it_says_gets_the_right_number(graph: Storage) -> None:
    def foreign() -> None:
        open_main(graph).update_config({"somebody": "else"})

    _faults.arm("publish.before_merge", writes.once(foreign))
    done = write(graph, {PERSON: ["a"]}, new={})
    _faults.disarm()
    newest = commits.read_commits(graph)[-1]
    assert (newest.graph_commit_id, newest.manifest_version) == (
        done.publish_id,
        done.graph_version,
    )
    assert "a" in ids(graph, PERSON, version=done.graph_version)


def test_whatever_fails_while_a_landed_commit_gets_its_number_does_not_deny_it(
    graph: Storage,
) -> None:
    class PanicException(BaseException):
        """What a Rust panic is in Python."""

    PanicException.__module__ = "pyo3_runtime"
    sent: list[int] = []

    def fail_at_the_second() -> None:
        sent.append(1)
        if len(sent) == 2:
            raise PanicException("index out of bounds")

    rival = writes.once(lambda: open_main(graph).update_config({"somebody": "else"}))
    _faults.arm("publish.before_merge", rival)
    _faults.arm("publish.sending", fail_at_the_second)
    done = write(graph, {PERSON: ["a"]}, new={})
    _faults.disarm()
    assert len(sent) == 2
    assert commits.read_commits(graph)[-1].graph_commit_id == done.publish_id
    assert "a" in ids(graph, PERSON, version=done.graph_version)


def test_a_publish_that_landed_and_lost_its_answer_is_found_by_its_commit(graph: Storage) -> None:
    request = Publish("main", new_ulid(), ())
    first = publish(graph, request)
    assert publish(graph, request) == first
    assert len([r for r in rows_of(graph) if r["object_id"] == request.publish_id]) == 1


def test_a_row_that_an_engine_would_refuse_is_not_published(social: Storage) -> None:
    before = rows_of(social)
    now = load(social).entry(PERSON)
    good = {"manifest_path": "p", "naming_scheme": "V2"}
    bad = [
        VersionRow(PERSON, now.table_version + 1, None, 1, {"naming_scheme": "V2"}),
        VersionRow(PERSON, now.table_version, None, 9, good),
        TombstoneRow("node:Nobody", 3),
    ]
    for row in bad:
        with pytest.raises(CorruptManifestError, match="Nothing was published|no table row"):
            publish(social, Publish("main", new_ulid(), (row,)))
    assert rows_of(social) == before


@pytest.mark.parametrize("what", ["record", "staged", "lock"])
def test_what_an_engine_has_under_way_is_respected(social: Storage, what: str) -> None:
    if what == "record":
        social.put("__recovery/01M8JH8RQMHNM9RTTVWPQX9Z2D.json", b'{"schema_version": 9}')
    elif what == "staged":
        social.put("_schema.ir.json.staging", b"{}")
    else:
        open_main(social).create_branch("__schema_apply_lock__")
    before = graphs.file_hashes(Path(social.root))
    for refused in (
        lambda: write(social, {PERSON: ["a"]}, new={}),
        lambda: branches.make(social, "b"),
        lambda: repair(social, dry_run=False, grace_seconds=0.0),
    ):
        with pytest.raises(RecoveryPendingError):
            refused()
    assert graphs.file_hashes(Path(social.root)) == before
    assert "__schema_apply_lock__" not in [*branches.names(social)]


WAITING: dict[str, Callable[[Storage], object]] = {
    "append": lambda graph: write(graph, {PERSON: ["a"]}, new={}),
    "create a branch": lambda graph: manage.create_branch(
        graph, "b", refs.named(graph, "main"), 60
    ),
    "a write that makes its branch": lambda graph: write(
        graph, {PERSON: ["a"]}, new={}, branch="b", branchFrom="main", orphanGraceSeconds="60"
    ),
    "cleanup": lambda graph: cleanup(graph, grace_seconds=60, dry_run=False),
    "repair": lambda graph: repair(graph, dry_run=False, grace_seconds=60),
}


@pytest.mark.parametrize("act", WAITING.values(), ids=WAITING)
def test_an_engines_write_that_ends_in_time_is_waited_for(
    social: Storage, act: Callable[[Storage], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    record = "__recovery/01M8JH8RQMHNM9RTTVWPQX9Z2D.json"
    social.put(record, b'{"schema_version": 9}')
    monkeypatch.setattr(backoff, "poll", lambda seconds: social.delete(record))
    act(social)
    assert social.list("__recovery") == []
    assert {one.kind for one in check(social)} <= {MOVED_BRANCH}


@pytest.fixture
def rival(social: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another engine's write, under way; it lands during the first wait for it."""
    record = "__recovery/01M8JH8RQMHNM9RTTVWPQX9Z2D.json"
    social.put(record, b'{"schema_version": 9}')

    def ends(seconds: float) -> None:
        social.delete(record)
        write(social, {PERSON: ["theirs"]}, new={})

    monkeypatch.setattr(backoff, "poll", ends)


@pytest.mark.usefixtures("rival")
def test_a_branch_that_waited_for_another_writer_has_its_rows(social: Storage) -> None:
    manage.create_branch(social, "b", refs.named(social, "main"), 60)
    assert "theirs" in branches.ids_at(social, PERSON, "b")


@pytest.mark.usefixtures("rival")
@pytest.mark.parametrize("ref", [{}, {"branch": "b", "branchFrom": "main"}], ids=["main", "new"])
def test_a_write_that_waited_for_another_writer_is_planned_on_its_rows(
    social: Storage, ref: dict[str, str]
) -> None:
    options = writes.write_options(social, **ref, orphanGraceSeconds="60")
    assert head(social, options).version(PERSON) == load(social).version(PERSON)


def test_a_dead_writers_tables_are_taken_back_and_that_is_published(graph: Storage) -> None:
    write_and_die(graph, "commit.tables_done", {PERSON: ["dead"], KNOWS: ["dead"]})
    assert [info.path.split("/")[0] for info in graph.list("__writers")] == ["__writers"]
    assert graph.list("__recovery") == []
    write(graph, {PERSON: ["alive"]}, new={})
    there = load(graph)
    for key in (PERSON, KNOWS):
        assert "dead" not in ids(graph, key)
        assert writes.head(graph, key) == there.version(key)
    assert graph.list("__writers") == []


@pytest.mark.long
def test_a_head_that_was_taken_back_is_published_before_a_write_and_by_a_repair(
    graph: Storage,
) -> None:
    pinned = load(graph).version(PERSON)
    orphan(graph, PERSON, ["lost"])
    entry = load(graph).entry(PERSON)
    graph.dataset(entry.location, None, pinned).restore()
    assert UNPUBLISHED_HEAD in {one.kind for one in check(graph)}
    count = len(commits.read_commits(graph))
    write(graph, {PERSON: ["a"]}, new={})
    assert len(commits.read_commits(graph)) == count + 2
    orphan(graph, PERSON, ["lost"])
    repair(graph, dry_run=False, grace_seconds=0.05)
    assert writes.head(graph, PERSON) == load(graph).version(PERSON)
    assert "lost" not in ids(graph, PERSON)


def test_a_write_that_fails_for_good_leaves_no_head_that_isnt_published(graph: Storage) -> None:
    planned = writes.plan(graph, [PERSON, KNOWS], commitTimeoutSeconds="0.01")
    staged = writes.stage_rows(planned, {PERSON: ["a"], KNOWS: ["b"]})

    def lose() -> None:
        raise StartOver("another writer was first")

    _faults.arm("commit.tables_done", lose)
    with pytest.raises(CommitTimeoutError, match=r"lost \d rounds"):
        commit(planned, staged)
    _faults.disarm()
    there = load(graph)
    for key in (PERSON, KNOWS):
        assert writes.head(graph, key) == there.version(key)
        assert "a" not in ids(graph, key)


def test_an_append_is_refused_over_another_writers_instead_of_landing_above_it(
    graph: Storage,
) -> None:
    _faults.arm("table.sending", writes.once(lambda: orphan(graph, PERSON, ["rival"])))
    before = load(graph).version(PERSON)
    planned = writes.plan(graph, [PERSON], commitTimeoutSeconds="0.01")
    with pytest.raises(CommitTimeoutError, match=r"lost \d rounds"):
        commit(planned, writes.stage_rows(planned, {PERSON: ["late"]}))
    _faults.disarm()
    assert writes.head(graph, PERSON) == before + 1  # the rival's, still its own to publish


def test_properties_are_changed_by_the_engine_alone(social: Storage) -> None:
    options = writes.write_options(social)
    before = graphs.file_hashes(Path(social.root))
    for refused in (
        lambda: properties.add_property(social, options, PERSON, "nick", "String?"),
        lambda: properties.drop_property(social, options, PERSON, "age"),
    ):
        with pytest.raises(UnsupportedError):
            refused()
    assert graphs.file_hashes(Path(social.root)) == before


@pytest.mark.parametrize("name", ["a/b", "a/b/c/d", "a"])
def test_a_branch_is_no_folder_of_another_ones_name(social: Storage, name: str) -> None:
    branches.make(social, "a/b/c")
    with pytest.raises(OptionError, match="a/b/c"):
        branches.make(social, name)
    branches.make(social, "a/x")
    assert {"a/b/c", "a/x"} <= {*branches.names(social)}


def test_a_table_whose_columns_stand_in_another_order_is_not_written_to(social: Storage) -> None:
    entry = load(social).entry(PERSON)
    dataset = social.dataset(entry.location)
    dataset.add_columns(pa.field("aaa", pa.utf8()))
    metadata = {**entry.metadata, "manifest_path": "p"}
    row = VersionRow(PERSON, int(dataset.version), None, entry.row_count, metadata)
    publish(social, Publish("main", new_ulid(), (row,)))
    with pytest.raises(SchemaMismatchError, match="stand in an order"):
        write(social, {PERSON: ["a"]}, new={})


def test_a_head_that_an_engine_has_a_record_of_is_not_restored(social: Storage) -> None:
    def engine() -> None:
        social.put("__recovery/01M8JH8RQMHNM9RTTVWPQX9Z2D.json", b'{"schema_version": 9}')
        orphan_of_engine(social)

    _faults.arm("table.before_commit", writes.once(engine))
    with pytest.raises(RecoveryPendingError):
        write(social, {PERSON: ["a"]}, new={})
    _faults.disarm()
    assert writes.head(social, PERSON) == load(social).version(PERSON) + 1
    assert "a" not in ids(social, PERSON)


def test_a_write_does_not_build_on_a_head_that_was_taken_back_since_it_looked(
    social: Storage,
) -> None:
    pinned = load(social).version(PERSON)

    def come_and_go() -> None:
        orphan(social, PERSON, ["lost"])
        social.dataset(load(social).entry(PERSON).location, None, pinned).restore()

    _faults.arm("commit.before_table", writes.once(come_and_go))
    write(social, {PERSON: ["a"]}, new={})
    _faults.disarm()
    dataset = social.dataset(load(social).entry(PERSON).location)
    published = {
        row["table_version"]
        for row in rows_of(social)
        if row["object_type"] == "table_version" and row["table_key"] == PERSON
    }
    assert {pinned, pinned + 2, pinned + 3} <= published
    assert dataset.version == pinned + 3


def orphan_of_engine(storage: Storage) -> None:
    """Commit to a table as an engine does: without a publish id, and not published yet."""
    dataset = storage.dataset(load(storage).entry(PERSON).location)
    dataset.delete("true")


def operations(storage: Storage) -> list[str]:
    """Return what made each version of the graph's catalog."""
    manifest = open_main(storage)
    transactions = map(manifest.read_transaction, range(2, int(manifest.version) + 1))
    return [type(one.operation).__name__ for one in transactions if one is not None]


def test_the_catalog_is_gathered_in_one_version_that_a_publish_beside_it_collides_with(
    graph: Storage,
) -> None:
    """A version that collides with nobody would put an engine's publish under a wrong number."""
    for number in range(14):
        write(graph, {PERSON: [f"g{number}"]}, new={})
    assert "Rewrite" in operations(graph)
    assert len(open_main(graph).get_fragments()) < 12
    write(graph, {PERSON: ["one more"]}, new={})
    before = open_main(graph)
    head = read_rows(before).filter(pc.equal(read_rows(before)["object_type"], "graph_head"))
    append_log.compact_at_once(open_main(graph), append_log.GATHER_EVERY)
    assert int(open_main(graph).version) == int(before.version) + 1
    assert len(open_main(graph).get_fragments()) == 1
    publish = before.merge_insert("object_id").when_matched_update_all().conflict_retries(0)
    with pytest.raises(OSError, match="concurrent writers"):
        publish.execute(head.select(before.schema.names))
    assert "ReserveFragments" not in operations(graph)
    wrong = check_graph(graph.root, moved=True)
    assert [one for one in wrong if "is not a part of a graph" not in one] == []  # emptied folders


def test_rows_of_a_renamed_table_have_its_new_name_also_before_the_next_write_to_it(
    tmp_path: Path,
) -> None:
    storage = Storage.at(str(graphs.unpack("v6", "rich", tmp_path)))
    rows = read_rows(open_main(storage))
    names = {
        row["table_incarnation_id"]: row["table_key"]
        for row in rows.to_pylist()
        if row["object_type"] == "table"
    }
    named = [row for row in rows.to_pylist() if row["table_incarnation_id"] in names]
    assert [row["table_key"] for row in named] == [
        names[row["table_incarnation_id"]] for row in named
    ]
    newest = load(storage).entry("node:Place").table_version
    (place,) = (number for number, name in names.items() if name == "node:Place")
    its_newest = pc.and_(
        pc.equal(rows["table_incarnation_id"], pa.scalar(place, pa.uint64())),
        pc.equal(rows["table_version"], pa.scalar(newest, pa.uint64())),
    )
    earlier = fold(rows.filter(pc.invert(pc.fill_null(its_newest, False))), "main", 1)
    assert earlier.entry("node:Place").table_version < newest
