"""A whole write: rounds, put-back, crash records, lineage, what is left behind."""

from __future__ import annotations

import contextlib
import json
import logging
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from omnigraph_spark import _faults
from omnigraph_spark import schema as engine_schema
from omnigraph_spark.errors import (
    CommitTimeoutError,
    ExpectedVersionMismatch,
    OmnigraphError,
    OptionError,
    PublishOutcomeUnknown,
    RecoveryPendingError,
    RowLevelCasContention,
    StorageError,
    TableNotFoundError,
)
from omnigraph_spark.history import commits, runs
from omnigraph_spark.manifest import crash_records
from omnigraph_spark.manifest.publisher import Publish, publish
from omnigraph_spark.manifest.rows import ManifestRow, TombstoneRow, VersionRow
from omnigraph_spark.manifest.snapshot import load
from omnigraph_spark.schema_changes.properties import drop_table
from omnigraph_spark.storage import layout
from omnigraph_spark.storage.ids import new_ulid
from omnigraph_spark.storage.store import Storage
from omnigraph_spark.write.commit import table_head
from omnigraph_spark.write.commit.commit import Committed, abort, commit
from omnigraph_spark.write.plan import NewTable
from tests.format_checker import check_graph
from tests.support import graphs, writes
from tests.support.writes import ALL, COMPANY, KNOWS, PERSON, age_record, ids, records

NOBODY_DIED = "3600"
"""A grace after which nothing in a test is old."""


@pytest.fixture
def graph(tmp_path: Path) -> Iterator[Storage]:
    yield writes.new_graph(Storage.at(str(tmp_path / "g")))
    _faults.disarm()


def publish_rows(storage: Storage, *rows: ManifestRow) -> None:
    publish(storage, Publish("main", new_ulid(), rows))


def publish_heads(storage: Storage, *keys: str) -> None:
    """Publish tables' newest versions under another id, as an engine's recovery does."""
    rows = []
    for key in keys:
        now = storage.dataset(layout.table_location(key))
        rows.append(VersionRow(key, now.version, None, now.count_rows()))
    publish_rows(storage, *rows)


def statuses(storage: Storage, run_id: str) -> list[str]:
    rows = runs.read_runs(storage)
    return [row["status"] for row in rows.to_pylist() if row["run_id"] == run_id]


def lineage(storage: Storage) -> list[int]:
    return [c.manifest_version for c in commits.read_commits(storage)]


# --- what a write is ---------------------------------------------------------------------------


def test_a_write_of_many_tables_is_one_graph_version(graph: Storage) -> None:
    before = load(graph)
    done = writes.write(graph, {key: ["b"] for key in ALL})
    assert done.graph_version == load(graph).graph_version == before.graph_version + 1
    assert [ids(graph, key) for key in ALL] == [["b", "first"]] * 3
    assert [ids(graph, key, before.graph_version) for key in ALL] == [["first"]] * 3


def test_the_first_write_makes_the_graph(tmp_path: Path) -> None:
    storage = Storage.at(str(tmp_path / "new" / "graph"))
    writes.write(storage, {PERSON: ["a"]})
    assert ids(storage, PERSON) == ["a"]
    assert len(lineage(storage)) == 2


POINTS = (
    "commit.entered",
    "commit.record_written",
    "commit.before_table",
    "commit.table_1",
    "commit.table_2",
    "commit.table_3",
    "commit.table_n",
    "commit.tables_done",
    "commit.before_publish",
    "publish.before_merge",
    "publish.sending",
)


@pytest.mark.long
@pytest.mark.parametrize("point", POINTS)
def test_a_write_of_ten_tables_that_fails_anywhere_leaves_every_table_at_every_version(
    point: str, tmp_path: Path
) -> None:
    nodes = [f"node:T{number}" for number in range(10)]
    new = {key: NewTable(writes.NODE_SCHEMA, "name") for key in nodes}
    storage = Storage.at(str(tmp_path / "g"))
    for name in ("a", "b"):
        writes.write(storage, {key: [name] for key in nodes}, new=new)
    versions = range(2, load(storage).graph_version + 1)
    before = [load(storage, version=v) for v in versions]
    rows = [
        {key: ids(storage, key, v) for key in load(storage, version=v).tables} for v in versions
    ]
    _faults.arm(point, "raise")
    with pytest.raises(StorageError, match=f"Injected fault at {point}"):
        writes.write(storage, {key: ["c"] for key in nodes})
    _faults.disarm()
    assert load(storage) == before[-1]
    assert [load(storage, version=v) for v in versions] == before
    assert [
        {key: ids(storage, key, v) for key in load(storage, version=v).tables} for v in versions
    ] == rows
    assert records(storage) == []
    writes.write(storage, {key: ["d"] for key in nodes}, orphanGraceSeconds=NOBODY_DIED)
    assert {tuple(ids(storage, key)) for key in nodes} == {("a", "b", "d")}


def test_an_append_without_rows_publishes_nothing_and_says_so(graph: Storage) -> None:
    before = load(graph)
    done = writes.write(graph, {PERSON: []})
    assert (done.skipped, done.graph_version) == (True, before.graph_version)
    assert load(graph) == before


def test_an_overwrite_without_rows_empties_the_table(graph: Storage) -> None:
    writes.write(graph, {PERSON: []}, "overwrite")
    assert ids(graph, PERSON) == []
    assert ids(graph, COMPANY) == ["first"]
    writes.write(graph, {PERSON: ["again"]})
    assert ids(graph, PERSON) == ["again"]


def test_an_overwrite_keeps_the_schema_and_builds_the_indices_again(tmp_path: Path) -> None:
    storage = Storage.at(str(graphs.unpack("v2", "social", tmp_path)))
    entry = load(storage).entry(PERSON)
    before = storage.dataset(entry.location, None, entry.table_version)
    planned = writes.plan(storage, [PERSON], "overwrite")
    rows = before.to_table().slice(0, 1)
    batch = pa.RecordBatch.from_arrays(
        [column.combine_chunks() for column in rows.columns], schema=planned.targets[PERSON].schema
    )
    from omnigraph_spark.write.tasks.stage import stage

    commit(planned, stage(planned, [(PERSON, batch)]))
    entry = load(storage).entry(PERSON)
    after = storage.dataset(entry.location, None, entry.table_version)
    assert after.schema.equals(before.schema, check_metadata=True)
    assert after.count_rows() == entry.row_count == 1
    indices = [(i.name, str(i.index_type), i.field_names) for i in before.describe_indices()]
    assert indices
    assert [(i.name, str(i.index_type), i.field_names) for i in after.describe_indices()] == indices
    name = rows["name"][0].as_py()
    plan = after.scanner(columns=["id"], filter=f"id = '{name}'").explain_plan()
    assert "ScalarIndexQuery" in plan


def test_actor_and_user_metadata_are_recorded_with_the_commit(graph: Storage) -> None:
    text = 'é "quoted" \\ {"publish_id":"01ARZ3NDEKTSV4RRFFQ69G5FAV"} \n'
    done = writes.write(graph, {PERSON: ["b"]}, actor="me", userMetadata=text, recordRuns="true")
    ours = load(graph).entry(PERSON).ours
    assert (ours["publish_id"], ours["actor"], ours["mode"]) == (done.publish_id, "me", "append")
    assert ours["user_metadata"] == text
    assert (ours["rows_added"], ours["rows_removed"]) == (1, 0)
    newest = commits.read_commits(graph)[-1]
    assert (newest.graph_commit_id, newest.actor_id) == (done.publish_id, "me")
    assert statuses(graph, done.publish_id) == [runs.RUNNING, runs.PUBLISHED]


# --- expectations ------------------------------------------------------------------------------


def move_company(storage: Storage) -> None:
    writes.write(storage, {COMPANY: ["moved"]})


def move_person(storage: Storage) -> None:
    writes.write(storage, {PERSON: ["moved"]})


def drop_company(storage: Storage) -> None:
    publish_rows(storage, TombstoneRow(COMPANY, load(storage).version(COMPANY)))


def create_new(storage: Storage) -> None:
    writes.write(storage, {"node:New": ["b"]}, new={"node:New": writes.NEW[PERSON]})


EXPECTATIONS = pytest.mark.parametrize(
    ("key", "expected", "move", "actual"),
    [
        pytest.param(PERSON, 1, move_person, 2, id="touched"),
        pytest.param(COMPANY, 1, move_company, 2, id="untouched"),
        pytest.param("node:New", 0, create_new, 1, id="unknown=0"),
        pytest.param(COMPANY, 1, drop_company, 0, id="dropped"),
    ],
)


@EXPECTATIONS
@pytest.mark.parametrize("when", ["before the plan", "after staging", "before the publish"])
def test_a_table_that_is_not_where_the_caller_expects_it_refuses_the_write(
    graph: Storage,
    key: str,
    expected: int,
    move: Callable[[Storage], None],
    actual: int,
    when: str,
) -> None:
    def ours() -> None:
        wanted = json.dumps({key: expected})
        planned = writes.plan(graph, [PERSON], expectedTableVersions=wanted)
        staged = writes.stage_rows(planned, {PERSON: ["ours"]})
        if when == "after staging":
            move(graph)
        commit(planned, staged)

    if when == "before the plan":
        move(graph)
    elif when == "before the publish":
        _faults.arm("commit.before_publish", writes.once(lambda: move(graph)))
    with pytest.raises(
        ExpectedVersionMismatch, match="OMNIGRAPH_EXPECTED_VERSION_MISMATCH"
    ) as raised:
        ours()
    error = raised.value
    if when == "before the publish":  # the rival has healed over this write's version
        actual = load(graph).version(key)
    assert (error.table_key, error.expected, error.actual) == (key, expected, actual)
    assert "ours" not in ids(graph, PERSON)
    assert records(graph) == []


@pytest.mark.long
def test_expectations_that_hold_let_the_write_through(graph: Storage) -> None:
    wanted = {"expectedTableVersions": json.dumps({PERSON: 1, COMPANY: 1, "node:New": 0})}
    writes.write(graph, {PERSON: ["ours"]}, **wanted)
    assert ids(graph, PERSON) == ["first", "ours"]


@pytest.mark.long
def test_an_overwrite_expects_the_version_that_its_frame_was_read_from(graph: Storage) -> None:
    """Read, change, write back: no lost update."""
    read = load(graph).version(PERSON)
    move_person(graph)
    with pytest.raises(ExpectedVersionMismatch, match="node:Person") as raised:
        writes.write(graph, {PERSON: ["ours"]}, "overwrite", read_versions={PERSON: read})
    assert (raised.value.expected, raised.value.actual) == (1, 2)
    assert ids(graph, PERSON) == ["first", "moved"]


@pytest.mark.long
def test_an_overwrite_expects_the_version_that_it_was_planned_on(graph: Storage) -> None:
    planned = writes.plan(graph, [PERSON], "overwrite")
    staged = writes.stage_rows(planned, {PERSON: ["ours"]})
    move_person(graph)
    with pytest.raises(ExpectedVersionMismatch, match="node:Person"):
        commit(planned, staged)
    assert ids(graph, PERSON) == ["first", "moved"]


@pytest.mark.long
def test_last_writer_wins_overwrites_what_came_in_between(graph: Storage) -> None:
    planned = writes.plan(graph, [PERSON], "overwrite", lastWriterWins="true")
    staged = writes.stage_rows(planned, {PERSON: ["ours"]})
    move_person(graph)
    _faults.arm("commit.before_publish", writes.once(lambda: move_person(graph)))
    commit(planned, staged)
    assert ids(graph, PERSON) == ["ours"]


@pytest.mark.long
def test_an_append_goes_round_again_with_the_same_files(graph: Storage) -> None:
    planned = writes.plan(graph, [PERSON])
    staged = writes.stage_rows(planned, {PERSON: ["ours"]})
    files = writes.data_files(graph, PERSON)
    for point in ("commit.before_table", "commit.before_publish", "publish.before_merge"):
        _faults.arm(point, writes.once(lambda: writes.write(graph, {PERSON: ["r"]})))
    commit(planned, staged)
    assert "ours" in ids(graph, PERSON)
    assert len(writes.data_files(graph, PERSON) - files) == 3, "only the rivals' files are new"


@pytest.mark.parametrize(
    ("how", "unchecked"),
    [
        ({}, True),
        ({"read_versions": {PERSON: 1}}, False),
        ({"read_versions": {COMPANY: 1}}, True),
        ({"expectedTableVersions": '{"node:Person": 1}'}, False),
    ],
)
def test_an_overwrite_that_knew_no_version_it_was_read_from_says_unchecked(
    graph: Storage, how: dict[str, Any], unchecked: bool
) -> None:
    writes.write(graph, {PERSON: ["ours"]}, "overwrite", **how)
    assert load(graph).entry(PERSON).ours.get("unchecked", False) is unchecked


def test_an_append_is_never_unchecked(graph: Storage) -> None:
    writes.write(graph, {PERSON: ["ours"]})
    assert "unchecked" not in load(graph).entry(PERSON).ours


def test_new_edges_while_their_node_table_is_overwritten_make_it_look_again(
    graph: Storage,
) -> None:
    """The overwrite's guards: it retries, and its publish then expects the edges it has seen."""
    rounds: list[int] = []
    _faults.arm("commit.record_written", lambda: rounds.append(1))
    _faults.arm(
        "publish.before_merge", writes.once(lambda: writes.write(graph, {KNOWS: ["rival"]}))
    )
    writes.write(graph, {PERSON: ["ours"]}, "overwrite")
    assert ids(graph, KNOWS) == ["first", "rival"]
    assert ids(graph, PERSON) == ["ours"]
    assert len(rounds) == 3  # ours, the rival's, ours again


def test_a_new_edge_table_while_its_node_table_is_overwritten_makes_it_look_again(
    graph: Storage,
) -> None:
    new = {"edge:Likes": NewTable(writes.EDGE_SCHEMA, None, ("Person", "Company"))}
    rounds: list[int] = []
    _faults.arm("commit.record_written", lambda: rounds.append(1))
    _faults.arm(
        "publish.before_merge",
        writes.once(lambda: writes.write(graph, {"edge:Likes": ["rival"]}, new=new)),
    )
    writes.write(graph, {PERSON: ["ours"]}, "overwrite")
    assert len(rounds) == 3
    assert ids(graph, "edge:Likes") == ["rival"]


# --- budgets -----------------------------------------------------------------------------------


@pytest.mark.long
def test_an_append_that_loses_every_round_times_out_with_nothing_published(
    graph: Storage,
) -> None:
    busy: list[bool] = []

    def rival() -> None:
        if not busy:
            busy.append(True)
            writes.write(graph, {PERSON: ["rival"]})
            busy.clear()

    _faults.arm("commit.before_publish", rival)
    with pytest.raises(CommitTimeoutError, match="OMNIGRAPH_COMMIT_TIMEOUT"):
        writes.write(graph, {PERSON: ["ours"]}, commitTimeoutSeconds="1")
    _faults.disarm()
    assert "ours" not in ids(graph, PERSON)
    pinned = load(graph).version(PERSON)
    assert table_head.is_clean(graph.dataset(layout.table_location(PERSON)), pinned)
    assert records(graph) == []


def hold_the_guard(storage: Storage) -> Callable[[], None]:
    """Return a rival that re-writes a table's guard and moves nothing."""
    busy: list[bool] = []

    def rival() -> None:
        if not busy:
            busy.append(True)
            row = VersionRow("node:Company", load(storage).version(COMPANY) + 1, None, 1)
            request = Publish("main", new_ulid(), (row,), guards=frozenset({PERSON}))
            publish(storage, request)
            busy.clear()

    return rival


@pytest.mark.long
def test_an_overwrite_that_loses_the_publishers_budget_ends_in_contention(graph: Storage) -> None:
    _faults.arm("publish.before_merge", hold_the_guard(graph))
    with pytest.raises(RowLevelCasContention, match="OMNIGRAPH_ROW_LEVEL") as raised:
        writes.write(graph, {PERSON: ["ours"]}, "overwrite", commitRetries="1")
    assert raised.value.details["attempts"] == 2
    assert ids(graph, PERSON) == ["first"]


@pytest.mark.long
def test_an_append_that_loses_the_publishers_budget_starts_a_new_round(graph: Storage) -> None:
    rival = hold_the_guard(graph)
    met: list[int] = []

    def first_two() -> None:
        met.append(1)
        if len(met) <= 3:
            rival()

    _faults.arm("publish.before_merge", first_two)
    writes.write(graph, {PERSON: ["ours"]}, commitRetries="0")
    assert ids(graph, PERSON) == ["first", "ours"]


# --- once, whatever is lost (rules 2, 3, 4, 19) ---------------------------------------------


@pytest.mark.parametrize("rival", [False, True])
@pytest.mark.parametrize("landed", [False, True])
@pytest.mark.parametrize("level", ["table", "publish"])
@pytest.mark.parametrize("answers", ["once", "never"])
def test_a_lost_answer_never_loses_or_doubles_rows(
    graph: Storage, level: str, landed: bool, rival: bool, answers: str
) -> None:
    """The 16 cells that a process can see by itself."""
    busy: list[bool] = []
    lost: list[bool] = []

    def lose() -> None:
        if busy or (lost and answers == "once"):
            return
        lost.append(True)
        busy.append(True)
        if rival:
            writes.write(graph, {COMPANY: ["rival"], PERSON: ["rival"]})
        busy.clear()
        raise OSError("Commit result for version 999999 is unknown")

    _faults.arm(f"{level}.{'landed' if landed else 'sending'}", lose)
    files = writes.data_files(graph, PERSON)
    try:
        writes.write(graph, {PERSON: ["ours"]}, commitTimeoutSeconds="1", commitRetries="1")
        outcome = 1
    except PublishOutcomeUnknown:
        assert level == "publish"
        outcome = None
    except CommitTimeoutError:
        assert level == "table"
        outcome = 0
    _faults.disarm()
    found = ids(graph, PERSON).count("ours")
    assert found == outcome if outcome is not None else found in (0, 1)
    if outcome != 1:
        assert writes.data_files(graph, PERSON) > files, "files of a table commit stay"
    writes.write(graph, {PERSON: ["next"]})
    after = ids(graph, PERSON)
    assert after.count("ours") == found, "nothing appears or vanishes later"
    assert after.count("next") == after.count("first") == 1
    assert len(after) == len(set(after)) or after.count("rival") == len(lost)


def test_calling_commit_again_changes_nothing(graph: Storage) -> None:
    planned = writes.plan(graph, list(ALL))
    staged = writes.stage_rows(planned, {key: ["b"] for key in ALL})
    first = commit(planned, staged)
    writes.write(graph, {PERSON: ["c"]})
    before, files = load(graph), graphs.file_hashes(Path(graph.root) / "nodes")
    assert commit(planned, staged) == first
    assert load(graph) == before
    assert graphs.file_hashes(Path(graph.root) / "nodes") == files
    assert len(lineage(graph)) == len(set(lineage(graph)))


def test_calling_commit_again_after_an_unknown_outcome_finds_the_publish(graph: Storage) -> None:
    planned = writes.plan(graph, [PERSON])
    staged = writes.stage_rows(planned, {PERSON: ["ours"]})

    def lose() -> None:
        raise OSError("Commit result for version 999999 is unknown")

    _faults.arm("publish.landed", lose)
    _faults.arm("publish.opened", writes.once(lambda: None))
    with pytest.MonkeyPatch.context() as patch:
        from omnigraph_spark.manifest.manifest_rows import ManifestRows

        patch.setattr(ManifestRows, "has_publish", lambda *_: False)
        with pytest.raises((PublishOutcomeUnknown, ExpectedVersionMismatch)):
            commit(planned, staged)
    _faults.disarm()
    assert not commit(planned, staged).skipped
    assert ids(graph, PERSON) == ["first", "ours"]


@pytest.mark.parametrize("outcome", ["published", "unknown"])
@pytest.mark.parametrize("complete", [True])
def test_abort_deletes_nothing_when_every_message_is_there(
    graph: Storage, outcome: str, complete: bool
) -> None:
    planned = writes.plan(graph, [PERSON])
    staged = writes.stage_rows(planned, {PERSON: ["ours"]})
    if outcome == "published":
        commit(planned, staged)
    else:
        _faults.arm("publish.sending", "unknown")
        with pytest.raises(OmnigraphError, match="OMNIGRAPH_"):
            commit(planned, staged)
    files = writes.data_files(graph, PERSON)
    abort(planned, staged, complete=complete)
    assert writes.data_files(graph, PERSON) == files


def test_abort_deletes_the_files_of_a_job_whose_commit_was_never_entered(graph: Storage) -> None:
    before = writes.data_files(graph, PERSON)
    planned = writes.plan(graph, [PERSON, COMPANY])
    staged = writes.stage_rows(planned, {PERSON: ["a"], COMPANY: ["b"]})
    assert writes.data_files(graph, PERSON) > before
    abort(planned, staged, complete=False)
    assert writes.data_files(graph, PERSON) == before


def test_files_are_deleted_by_a_failure_before_the_first_table_commit_and_only_then(
    graph: Storage,
) -> None:
    before = writes.data_files(graph, PERSON)
    _faults.arm("commit.before_table", "raise")
    with pytest.raises(StorageError, match="Injected"):
        writes.write(graph, {PERSON: ["ours"]})
    assert writes.data_files(graph, PERSON) == before
    _faults.disarm()
    _faults.arm("commit.before_publish", "raise")
    with pytest.raises(StorageError, match="Injected"):
        writes.write(graph, {PERSON: ["ours"]})
    assert len(writes.data_files(graph, PERSON) - before) == 1


def test_a_write_that_somebodys_recovery_published_whole_is_done(graph: Storage) -> None:
    """The engine rolls forward under an id of its own; retrying would double the rows."""
    planned = writes.plan(graph, [PERSON, COMPANY])
    staged = writes.stage_rows(planned, {PERSON: ["ours"], COMPANY: ["ours"]})
    _faults.arm("commit.before_publish", writes.die)
    with pytest.raises(writes.Died):
        commit(planned, staged)
    _faults.disarm()
    publish_heads(graph, PERSON, COMPANY)
    version = load(graph).graph_version
    assert commit(planned, staged) == Committed(planned.publish_id, version, skipped=True)
    assert ids(graph, PERSON) == ids(graph, COMPANY) == ["first", "ours"]
    assert len(lineage(graph)) == len(set(lineage(graph)))


def test_a_write_that_somebodys_recovery_published_in_part_is_unknown_and_goes_no_further(
    graph: Storage,
) -> None:
    planned = writes.plan(graph, [PERSON, COMPANY])
    staged = writes.stage_rows(planned, {PERSON: ["ours"], COMPANY: ["ours"]})
    _faults.arm("commit.before_publish", writes.die)
    with pytest.raises(writes.Died):
        commit(planned, staged)
    _faults.disarm()
    publish_heads(graph, PERSON)
    with pytest.raises(PublishOutcomeUnknown, match="1 of its 2 files"):
        commit(planned, staged)
    assert ids(graph, PERSON) == ["first", "ours"]
    assert ids(graph, COMPANY) == ["first"]


def test_a_live_round_that_is_recovered_under_its_feet_is_done_once(graph: Storage) -> None:
    _faults.arm("commit.before_publish", writes.once(lambda: publish_heads(graph, PERSON)))
    assert writes.write(graph, {PERSON: ["ours"]}).skipped
    assert ids(graph, PERSON) == ["first", "ours"]


# --- txnAppId, txnVersion ----------------------------------------------------------------------


def txn(number: int, app: str = "app") -> dict[str, str]:
    return {"txnAppId": app, "txnVersion": str(number)}


def test_a_batch_is_written_once_and_its_second_files_go_away(graph: Storage) -> None:
    writes.write(graph, {PERSON: ["b1"]}, **txn(1))
    before, files = load(graph), writes.data_files(graph, PERSON)
    for number in (1, 0):
        done = writes.write(graph, {PERSON: ["again"]}, **txn(number))
        assert done.skipped
    assert load(graph) == before
    assert writes.data_files(graph, PERSON) == files
    writes.write(graph, {PERSON: ["b2"]}, **txn(2))
    writes.write(graph, {PERSON: ["c1"]}, **txn(1, "other"))
    assert ids(graph, PERSON) == ["b1", "b2", "c1", "first"]


def test_a_batch_without_rows_counts_as_written(graph: Storage) -> None:
    writes.write(graph, {PERSON: []}, **txn(1))
    assert load(graph).entry(PERSON).ours["txn"] == ["app", 1]
    assert writes.write(graph, {PERSON: ["late"]}, **txn(1)).skipped
    assert ids(graph, PERSON) == ["first"]


def test_a_batch_of_other_tables_is_not_skipped_and_a_mixed_one_is_refused(
    graph: Storage,
) -> None:
    writes.write(graph, {PERSON: ["b"]}, **txn(1))
    assert not writes.write(graph, {COMPANY: ["b"]}, **txn(1)).skipped
    assert writes.write(graph, {PERSON: ["c"], COMPANY: ["c"]}, **txn(1)).skipped
    with pytest.raises(OptionError, match=r"OMNIGRAPH_OPTION.*txnAppId"):
        writes.write(graph, {PERSON: ["c"], KNOWS: ["c"]}, **txn(1))
    assert ids(graph, PERSON) == ["b", "first"]


def test_two_attempts_of_one_batch_at_once_write_it_once(graph: Storage) -> None:
    def other_attempt() -> None:
        writes.write(graph, {PERSON: ["b"]}, **txn(1))

    _faults.arm("commit.before_publish", writes.once(other_attempt))
    assert writes.write(graph, {PERSON: ["b"]}, **txn(1)).skipped
    assert ids(graph, PERSON) == ["b", "first"]


def test_a_batch_survives_overwrites(graph: Storage) -> None:
    writes.write(graph, {PERSON: ["b"]}, **txn(7))
    writes.write(graph, {PERSON: ["other"]}, "overwrite")
    assert writes.write(graph, {PERSON: ["b"]}, **txn(7)).skipped


# --- crash records (rule 24) -------------------------------------------


def test_a_write_leaves_a_record_of_the_engines_form_while_it_commits(graph: Storage) -> None:
    seen: list[dict[str, Any]] = []

    def look() -> None:
        (name,) = records(graph)
        data = graph.get(crash_records.path_of(name))
        assert data is not None
        seen.append({**json.loads(data), "file": name})

    _faults.arm("commit.before_publish", look)
    new = {"node:New": writes.NEW[PERSON]}
    done = writes.write(
        graph, {PERSON: ["b"], KNOWS: ["b"], "node:New": ["n"]}, new=new, actor="me"
    )
    (record,) = seen
    assert record["file"] == record["operation_id"] == done.publish_id
    assert record["schema_version"] == 1
    assert record["started_at"].isdigit()
    assert (record["branch"], record["actor_id"], record["writer_kind"]) == (None, "me", "Load")
    assert record["tables"] == [
        {
            "table_key": key,
            "table_path": graph.uri(layout.table_location(key)),
            "expected_version": 1,
            "post_commit_pin": 0,
            "table_branch": None,
        }
        for key in (KNOWS, PERSON)
    ], "tables without a published version would make the engine refuse every write"
    assert record["omnigraph_spark"]["publish_id"] == done.publish_id
    assert records(graph) == []


ENGINE_RECORD = {
    "schema_version": 1,
    "operation_id": "01ARZ3NDEKTSV4RRFFQ69G5FAV",
    "started_at": "1795825395000000",
    "branch": None,
    "actor_id": None,
    "writer_kind": "Load",
    "tables": [],
}
OURS = {"publish_id": "01ARZ3NDEKTSV4RRFFQ69G5FAV", "heartbeat_ms": 1}


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("01ARZ3NDEKTSV4RRFFQ69G5FAV", json.dumps(ENGINE_RECORD)),
        (
            "01ARZ3NDEKTSV4RRFFQ69G5FAV",
            json.dumps({**ENGINE_RECORD, "schema_version": 99, "omnigraph_spark": OURS}),
        ),
        ("01ARZ3NDEKTSV4RRFFQ69G5FAV", "{ garbage"),
        ("01ARZ3NDEKTSV4RRFFQ69G5FAV", ""),
        ("README", "not a record"),
        ("stranger", json.dumps({**ENGINE_RECORD, "omnigraph_spark": OURS})),
        (
            "hostile",
            json.dumps(
                {**ENGINE_RECORD, "omnigraph_spark": {"publish_id": "../_schema.pg", "x": 1}}
            ),
        ),
        ("list", "[1, 2]"),
    ],
)
@pytest.mark.parametrize("step", ["plan", "commit"])
def test_a_record_that_is_not_ours_refuses_writes_and_is_kept(
    graph: Storage, name: str, content: str, step: str
) -> None:
    planned = writes.plan(graph, [PERSON])
    staged = writes.stage_rows(planned, {PERSON: ["ours"]})
    graph.put(crash_records.path_of(name), content.encode())
    before = load(graph)
    steps: dict[str, Callable[[], object]] = {
        "plan": lambda: writes.plan(graph, [PERSON]),
        "commit": lambda: commit(planned, staged),
    }
    with pytest.raises(RecoveryPendingError, match=rf"OMNIGRAPH_RECOVERY_PENDING.*{name}\.json"):
        steps[step]()
    assert graph.get(crash_records.path_of(name)) == content.encode()
    assert graph.get("_schema.pg") is not None
    assert records(graph) == [name]
    assert load(graph) == before
    assert ids(graph, PERSON) == ["first"], "reads still work"


@pytest.mark.long
def test_a_record_that_appears_between_two_rounds_stops_the_write(graph: Storage) -> None:
    def rival() -> None:
        writes.write(graph, {PERSON: ["rival"]})
        graph.put(crash_records.path_of("engine"), json.dumps(ENGINE_RECORD).encode())

    _faults.arm("commit.before_publish", writes.once(rival))
    with pytest.raises(RecoveryPendingError, match="engine"):
        writes.write(graph, {PERSON: ["ours"]})
    assert ids(graph, PERSON) == ["first", "rival"]


@pytest.mark.parametrize("at", ["plan", "commit"])
def test_a_record_that_goes_away_in_time_is_waited_for(graph: Storage, at: str) -> None:
    def begin() -> threading.Timer:
        graph.put(crash_records.path_of("engine"), json.dumps(ENGINE_RECORD).encode())
        timer = threading.Timer(0.2, lambda: graph.delete(crash_records.path_of("engine")))
        timer.start()
        return timer

    timer = begin() if at == "plan" else None
    planned = writes.plan(graph, [PERSON], orphanGraceSeconds="60")
    staged = writes.stage_rows(planned, {PERSON: ["ours"]})
    timer = timer or begin()
    commit(planned, staged)
    timer.join()
    assert ids(graph, PERSON) == ["first", "ours"]


DEATHS = (
    "commit.record_written",
    "commit.table_1",
    "commit.table_2",
    "commit.table_3",
    "commit.before_publish",
    "commit.after_publish",
    "lineage.after_actor",
    "lineage.after_row",
    "commit.before_record_delete",
)


@pytest.mark.parametrize("point", DEATHS)
@pytest.mark.parametrize("mode", ["append", "overwrite"])
def test_the_next_write_repairs_what_a_dead_one_left_without_a_manual_step(
    graph: Storage, point: str, mode: str
) -> None:
    rows = {key: ["dead"] for key in ALL}
    dead = writes.write_and_die(graph, point, rows, recordRuns="true")
    published = DEATHS.index(point) >= DEATHS.index("commit.after_publish")
    assert records(graph) == [dead.publish_id]
    age_record(graph, dead.publish_id)
    writes.write(graph, {PERSON: ["next"]}, mode)
    kept = ["dead", "first"] if published else ["first"]
    assert ids(graph, PERSON) == (sorted([*kept, "next"]) if mode == "append" else ["next"])
    assert ids(graph, COMPANY) == ids(graph, KNOWS) == kept
    assert records(graph) == []
    for key in ALL:
        pinned = load(graph).version(key)
        assert table_head.is_clean(graph.dataset(layout.table_location(key)), pinned)
    end = runs.PUBLISHED if published else runs.ABORTED
    if point != "commit.record_written":  # its run had not begun
        assert statuses(graph, dead.publish_id) == [runs.RUNNING, end]
    versions = lineage(graph)
    assert versions == sorted(set(versions))
    if published:
        assert dead.publish_id in [c.graph_commit_id for c in commits.read_commits(graph)]


def test_a_young_record_of_ours_belongs_to_a_live_writer_and_is_left_alone(
    graph: Storage,
) -> None:
    dead = writes.write_and_die(graph, "commit.table_1", {key: ["slow"] for key in ALL})
    writes.write(graph, {PERSON: ["next"]}, orphanGraceSeconds=NOBODY_DIED)
    assert records(graph) == [dead.publish_id]
    assert ids(graph, PERSON) == ["first", "next"]


def test_the_age_of_a_record_is_taken_on_the_stores_clock_alone(graph: Storage) -> None:
    """`heartbeat_ms` is another machine's clock: however old, it says nothing."""
    slow = writes.write_and_die(graph, "commit.record_written", {PERSON: ["slow"]})
    path = crash_records.path_of(slow.publish_id)
    data = graph.get(path)
    assert data is not None
    record = json.loads(data)
    record["omnigraph_spark"]["heartbeat_ms"] = 1
    graph.put(path, json.dumps(record).encode())
    writes.write(graph, {COMPANY: ["next"]}, orphanGraceSeconds=NOBODY_DIED)
    assert records(graph) == [slow.publish_id]


def test_a_writer_that_only_slept_writes_again_as_a_whole_after_it_was_rolled_back(
    graph: Storage,
) -> None:
    """It wakes between its table commits and its publish: half of it may not land."""

    def sleep() -> None:
        (name,) = records(graph)
        age_record(graph, name)
        writes.write(graph, {KNOWS: ["healer"]})

    _faults.arm("commit.before_publish", writes.once(sleep))
    writes.write(graph, {PERSON: ["slow"], COMPANY: ["slow"]})
    for version in range(2, load(graph).graph_version + 1):
        tables = load(graph, version=version).tables
        if COMPANY in tables:
            assert ("slow" in ids(graph, PERSON, version)) == (
                "slow" in ids(graph, COMPANY, version)
            )
    assert ids(graph, PERSON) == ids(graph, COMPANY) == ["first", "slow"]


def note_and_die(deaths: list[bool]) -> None:
    deaths.append(True)
    writes.die()


@pytest.mark.long
@pytest.mark.parametrize(
    "point", ["heal.before_restore", "table.before_restore", "table.after_restore",
              "heal.before_publish", "heal.after_publish", "heal.before_record_delete"]
)  # fmt: skip
def test_a_healer_that_dies_is_healed_in_turn(graph: Storage, point: str) -> None:
    dead = writes.write_and_die(graph, "commit.before_publish", {key: ["dead"] for key in ALL})
    age_record(graph, dead.publish_id)
    deaths: list[bool] = []
    for _ in range(5):
        planned = writes.plan(graph, [COMPANY])
        staged = writes.stage_rows(planned, {COMPANY: ["healer"]})
        _faults.arm(point, partial(note_and_die, deaths))
        with contextlib.suppress(writes.Died):
            commit(planned, staged)
            break  # what the dead ones before had got through was enough
        _faults.disarm()
        age_record(graph, planned.publish_id)
    _faults.disarm()
    assert deaths
    before = load(graph).graph_version
    writes.write(graph, {PERSON: ["next"]})
    assert ids(graph, PERSON) == ["first", "next"]
    assert ids(graph, KNOWS) == ["first"]
    assert ids(graph, COMPANY) in (["first"], ["first", "healer"])
    assert records(graph) == []
    assert load(graph).graph_version - before <= 7
    assert lineage(graph) == sorted(set(lineage(graph)))


def test_records_that_vanish_or_come_back_are_no_error(graph: Storage) -> None:
    def vanish() -> None:
        for name in records(graph):
            graph.delete(crash_records.path_of(name))

    _faults.arm("commit.before_publish", vanish)
    writes.write(graph, {PERSON: ["b"]})
    assert ids(graph, PERSON) == ["b", "first"]
    assert records(graph) == []


def test_no_run_is_recorded_unless_it_is_asked_for(graph: Storage) -> None:
    done = writes.write(graph, {PERSON: ["b"]})
    assert statuses(graph, done.publish_id) == []
    assert not graph.has_dataset(layout.GRAPH_RUNS)


def test_what_a_failed_write_could_not_put_back_keeps_its_record(graph: Storage) -> None:
    """Without it the engine's next insert would adopt the head."""
    _faults.arm("commit.before_publish", "raise")
    _faults.arm("table.before_restore", "raise")
    planned = writes.plan(graph, [PERSON], recordRuns="true")
    with pytest.raises(StorageError, match="before_publish"):
        commit(planned, writes.stage_rows(planned, {PERSON: ["failed"]}))
    _faults.disarm()
    assert records(graph) == [planned.publish_id]
    assert statuses(graph, planned.publish_id) == [runs.RUNNING, runs.FAILED]
    age_record(graph, planned.publish_id)
    writes.write(graph, {PERSON: ["next"]})
    assert ids(graph, PERSON) == ["first", "next"]
    assert records(graph) == []
    assert statuses(graph, planned.publish_id) == [runs.RUNNING, runs.FAILED]


def test_a_dead_write_to_a_branch_that_is_gone_blocks_nobody(graph: Storage) -> None:
    gone = new_ulid()
    crash_records.write(graph, gone, crash_records.Noted("gone", ()))
    age_record(graph, gone)
    writes.write(graph, {PERSON: ["next"]})
    assert records(graph) == []


def test_an_overwrite_is_not_refused_for_its_own_healing(graph: Storage) -> None:
    dead = writes.write_and_die(graph, "commit.before_publish", {PERSON: ["dead"]})
    planned = writes.plan(graph, [PERSON], "overwrite", expectedTableVersions='{"node:Person": 1}')
    staged = writes.stage_rows(planned, {PERSON: ["ours"]})
    age_record(graph, dead.publish_id)
    commit(planned, staged)
    assert ids(graph, PERSON) == ["ours"]


def test_an_overwrite_is_refused_for_a_rivals_write_after_the_healing(graph: Storage) -> None:
    dead = writes.write_and_die(graph, "commit.before_publish", {PERSON: ["dead"]})
    age_record(graph, dead.publish_id)
    _faults.arm("heal.after_publish", writes.once(lambda: writes.write(graph, {PERSON: ["rival"]})))
    with pytest.raises(ExpectedVersionMismatch, match="node:Person"):
        writes.write(graph, {PERSON: ["ours"]}, "overwrite")
    assert ids(graph, PERSON) == ["first", "rival"]


def test_a_heal_publishes_a_row_for_each_version_that_it_skips(graph: Storage) -> None:
    """So that a late publish of the engine, which writes no guards, loses (rule 9)."""
    from omnigraph_spark.manifest.snapshot import open_main, read_rows

    dead = writes.write_and_die(graph, "commit.before_publish", {PERSON: ["dead"]})
    age_record(graph, dead.publish_id)
    writes.write(graph, {COMPANY: ["next"]})
    rows = {r["object_id"]: r for r in read_rows(open_main(graph)).to_pylist()}
    now = load(graph).version(PERSON)
    assert now == 3
    for number in (2, 3):
        row = rows[layout.version_object_id(PERSON, number)]
        assert (row["table_version"], row["row_count"]) == (now, 1)
        assert json.loads(row["metadata"])["omnigraph_spark"]["mode"] == "heal"


def test_a_write_that_skips_versions_publishes_rows_for_them_too(graph: Storage) -> None:
    from omnigraph_spark.manifest.snapshot import open_main, read_rows

    writes.orphan(graph, PERSON, ["orphan"])
    writes.write(graph, {PERSON: ["ours"]})
    rows = {r["object_id"]: r for r in read_rows(open_main(graph)).to_pylist()}
    now = load(graph).version(PERSON)
    assert now == 4
    assert {rows[layout.version_object_id(PERSON, n)]["table_version"] for n in (2, 3, 4)} == {4}


# --- lineage, schema files ---------------------------------------------------------------------


def test_a_lineage_that_cannot_be_written_does_not_fail_the_write(
    graph: Storage, caplog: pytest.LogCaptureFixture
) -> None:
    _faults.arm("lineage.before_row", "raise")
    with caplog.at_level(logging.WARNING):
        done = writes.write(graph, {PERSON: ["b"]})
    _faults.disarm()
    assert ids(graph, PERSON) == ["b", "first"]
    assert done.graph_version not in lineage(graph)
    assert "Injected fault" in caplog.text
    writes.write(graph, {PERSON: ["c"]})
    versions = lineage(graph)
    assert versions == sorted(set(versions))
    assert done.graph_version in versions
    assert done.publish_id in [c.graph_commit_id for c in commits.read_commits(graph)]


def test_the_schema_files_name_a_new_type_before_its_table_is_published(graph: Storage) -> None:
    """A published table that they don't know kills the engine's export."""
    known: list[bool] = []

    def look() -> None:
        schema = engine_schema.read(graph)
        known.append(schema is not None and "New" in schema.nodes)

    _faults.arm("publish.sending", look)
    writes.write(graph, {"node:New": ["a"]}, new={"node:New": writes.NEW[PERSON]})
    assert known == [True]


def test_json_schema_files_that_are_lost_are_made_again_by_the_next_write(graph: Storage) -> None:
    for name in ("_schema.ir.json", "__schema_state.json"):
        graph.delete(name)
    writes.write(graph, {PERSON: ["b"]})
    assert graph.get("_schema.ir.json") is not None
    assert graph.get("__schema_state.json") is not None


@pytest.mark.long
@pytest.mark.parametrize("point", ["commit.table_1", "commit.before_publish"])
def test_a_table_that_others_made_and_dropped_meanwhile_is_made_in_another_round(
    tmp_path: Path, point: str
) -> None:
    storage = writes.new_graph(Storage.at(str(tmp_path / "g")), [PERSON])

    def rival() -> None:
        writes.write(storage, {COMPANY: ["rival"]})
        drop_table(storage, writes.write_options(storage), [COMPANY])

    _faults.arm(point, writes.once(rival))
    writes.write(storage, {COMPANY: ["mine"]})
    assert ids(storage, COMPANY) == ["mine"]
    assert check_graph(storage.root) == []


def test_a_table_dropped_after_the_plan_is_not_made_again_by_an_append(graph: Storage) -> None:
    planned = writes.plan(graph, [COMPANY])
    staged = writes.stage_rows(planned, {COMPANY: ["ours"]})
    drop_company(graph)
    with pytest.raises(TableNotFoundError, match=r"OMNIGRAPH_TABLE_NOT_FOUND.*node:Company"):
        commit(planned, staged)
    assert COMPANY not in load(graph).tables
