"""One atomic publish of any number of tables (rules 3 to 10)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from omnigraph_spark import _faults
from omnigraph_spark.errors import (
    CorruptManifestError,
    ExpectedVersionMismatch,
    OptionError,
    PublishOutcomeUnknown,
    RowLevelCasContention,
    StorageError,
)
from omnigraph_spark.history.init import init_graph
from omnigraph_spark.manifest import publisher
from omnigraph_spark.manifest.publisher import Publish, Published, publish
from omnigraph_spark.manifest.rows import (
    OURS,
    ManifestRow,
    TableRow,
    TombstoneRow,
    VersionRow,
    to_arrow,
)
from omnigraph_spark.manifest.snapshot import load, open_main, read_rows
from omnigraph_spark.storage import layout
from omnigraph_spark.storage.ids import new_ulid
from omnigraph_spark.storage.store import Storage

A, B, KNOWS, LIKES = "node:A", "node:B", "edge:Knows", "edge:Likes"
TABLES = (A, B, KNOWS, LIKES)


@pytest.fixture
def graph(tmp_path: Path) -> Iterator[Storage]:
    """A graph whose four tables are published at version 4 (a publish never looks at datasets)."""
    storage = Storage.at(str(tmp_path / "g"))
    init_graph(storage)
    made = [row for key in TABLES for row in (table(key), version(key, 4))]
    publish(storage, Publish("main", new_ulid(), tuple(made)))
    yield storage
    _faults.disarm()


def table(key: str) -> TableRow:
    return TableRow(key, layout.table_location(key))


def version(key: str, number: int, **ours: Any) -> VersionRow:
    return VersionRow(key, number, None, 1, {OURS: ours} if ours else {})


def request(*changes: ManifestRow, **more: Any) -> Publish:
    """Return a publish whose version rows carry its id, as those of a write do."""
    publish_id = more.pop("publish_id", None) or new_ulid()
    ours = {"publish_id": publish_id}
    if "txn" in more:
        ours["txn"] = list(more["txn"])
    marked = tuple(
        VersionRow(r.table_key, r.table_version, r.table_branch, r.row_count, {OURS: ours})
        if isinstance(r, VersionRow) and r.object_version is None
        else r
        for r in changes
    )
    return Publish("main", publish_id, marked, **more)


class Rival:
    """Another writer that steps in at a fault point; its own publishes don't meet it there."""

    def __init__(self, act: Callable[[int], object]) -> None:
        self.met = 0
        self._act = act
        self._busy = False

    def __call__(self) -> None:
        if self._busy:
            return
        self._busy = True
        try:
            self.met += 1
            self._act(self.met)
        finally:
            self._busy = False


def rival_at(point: str, act: Callable[[int], object]) -> Rival:
    rival = Rival(act)
    _faults.arm(point, rival)
    return rival


def first_time(action: Callable[[], object]) -> Callable[[int], object]:
    """Return what a rival does that steps in once."""
    return lambda met: action() if met == 1 else None


def versions(storage: Storage) -> dict[str, int]:
    return {key: entry.table_version for key, entry in load(storage).tables.items()}


def test_one_write_to_the_manifest_flips_all_tables_at_once(graph: Storage) -> None:
    before = load(graph)
    done = publish(graph, request(*(version(key, 5) for key in TABLES)))
    assert done == Published(before.graph_version + 1)
    assert versions(graph) == dict.fromkeys(TABLES, 5)
    assert load(graph, version=before.graph_version) == before


def test_a_failed_publish_flips_no_table(graph: Storage) -> None:
    before = load(graph)
    _faults.arm("publish.sending", "raise")
    with pytest.raises(StorageError, match="OMNIGRAPH_STORAGE"):
        publish(graph, request(*(version(key, 5) for key in TABLES)))
    assert load(graph) == before


@pytest.mark.parametrize(("expected", "actual"), [({A: 3}, 4), ({A: 5}, 4), ({A: 0}, 4)])
def test_an_expectation_is_exactly_the_latest_version(
    graph: Storage, expected: dict[str, int], actual: int
) -> None:
    before = load(graph)
    with pytest.raises(
        ExpectedVersionMismatch, match="OMNIGRAPH_EXPECTED_VERSION_MISMATCH"
    ) as raised:
        publish(graph, request(version(A, 9), expected=expected))
    error = raised.value
    assert (error.table_key, error.expected, error.actual) == (A, expected[A], actual)
    assert load(graph) == before
    assert publish(graph, request(version(A, 9), expected={A: 4})).graph_version


def test_an_expectation_of_a_table_that_is_not_touched_is_checked_too(graph: Storage) -> None:
    with pytest.raises(ExpectedVersionMismatch, match="node:B") as raised:
        publish(graph, request(version(A, 5), expected={B: 3}))
    assert (raised.value.table_key, raised.value.expected, raised.value.actual) == (B, 3, 4)


def test_an_unknown_table_is_at_version_0(graph: Storage) -> None:
    publish(graph, request(version(A, 5), expected={"node:New": 0}))
    with pytest.raises(ExpectedVersionMismatch, match="node:New") as raised:
        publish(graph, request(version(A, 6), expected={"node:New": 1}))
    assert raised.value.actual == 0


def test_a_dropped_table_is_at_version_0(graph: Storage) -> None:
    publish(graph, request(TombstoneRow(B, 4)))
    with pytest.raises(ExpectedVersionMismatch, match="node:B") as raised:
        publish(graph, request(version(A, 5), expected={B: 4}))
    assert raised.value.actual == 0
    publish(graph, request(version(A, 5), expected={B: 0}))


def test_an_empty_map_publishes_whatever_the_versions_are(graph: Storage) -> None:
    publish(graph, request(version(A, 5)))
    publish(graph, request(version(A, 7)))
    assert versions(graph)[A] == 7


def test_an_empty_map_still_collides_with_a_rival_at_the_same_table(graph: Storage) -> None:
    """Best effort skips the check of versions, not the compare-and-swap."""
    rival = rival_at(
        "publish.before_merge",
        lambda met: publish(graph, request(version(A, 5))) if met == 1 else None,
    )
    publish(graph, request(version(A, 6)))
    assert rival.met == 2
    assert versions(graph)[A] == 6


@pytest.mark.parametrize(("ours", "theirs"), [(5, 7), (7, 5), (5, 5)])
def test_of_two_writers_of_one_table_exactly_one_wins_whatever_their_versions(
    graph: Storage, ours: int, theirs: int
) -> None:
    rival_at(
        "publish.before_merge",
        first_time(lambda: publish(graph, request(version(A, theirs), expected={A: 4}))),
    )
    with pytest.raises(ExpectedVersionMismatch, match="node:A") as raised:
        publish(graph, request(version(A, ours), expected={A: 4}))
    assert (raised.value.expected, raised.value.actual) == (4, theirs)
    assert versions(graph)[A] == theirs


def test_two_writers_of_different_tables_both_win_at_the_first_attempt(graph: Storage) -> None:
    rival = rival_at(
        "publish.before_merge",
        lambda _: publish(graph, request(version(B, 5), expected={B: 4})),
    )
    publish(graph, request(version(A, 5), expected={A: 4}))
    assert rival.met == 1
    assert versions(graph) == {A: 5, B: 5, KNOWS: 4, LIKES: 4}


def test_two_creators_of_one_table_exactly_one_wins(graph: Storage) -> None:
    new = "node:New"
    rival_at(
        "publish.before_merge",
        first_time(lambda: publish(graph, request(table(new), version(new, 1), expected={new: 0}))),
    )
    with pytest.raises(ExpectedVersionMismatch, match="node:New"):
        publish(graph, request(table(new), version(new, 2), expected={new: 0}))
    assert versions(graph)[new] == 1


def lose_all(graph: Storage, retries: int) -> tuple[Rival, RowLevelCasContention]:
    rival = rival_at(
        "publish.before_merge", lambda met: publish(graph, request(version(A, 100 + met)))
    )
    with pytest.raises(RowLevelCasContention, match="OMNIGRAPH_ROW_LEVEL_CAS_CONTENTION") as raised:
        publish(graph, request(version(A, 500), retries=retries))
    return rival, raised.value


def test_the_budget_is_six_attempts_and_then_a_typed_error_with_nothing_published(
    graph: Storage,
) -> None:
    assert publisher.PUBLISHER_RETRY_BUDGET == 5
    before = load(graph).graph_version
    rival, error = lose_all(graph, publisher.PUBLISHER_RETRY_BUDGET)
    assert rival.met == error.details["attempts"] == 6
    assert versions(graph)[A] == 106
    assert load(graph).graph_version == before + 6
    assert error.__cause__ is not error


@pytest.mark.parametrize("retries", [0, 1])
def test_commit_retries_is_the_number_of_attempts_after_the_first(
    graph: Storage, retries: int
) -> None:
    assert lose_all(graph, retries)[0].met == retries + 1


def test_five_lost_attempts_and_then_a_free_one_succeed(graph: Storage) -> None:
    rival = rival_at(
        "publish.before_merge",
        lambda met: publish(graph, request(version(A, 100 + met))) if met <= 5 else None,
    )
    publish(graph, request(version(A, 500)))
    assert rival.met == 6
    assert versions(graph)[A] == 500


def test_the_check_runs_again_in_every_attempt(graph: Storage) -> None:
    """A rival at the guard of A moves B: not rebased through, but refused in the next attempt."""
    rival = rival_at(
        "publish.before_merge",
        first_time(lambda: publish(graph, request(version(B, 9), guards=frozenset({A})))),
    )
    with pytest.raises(ExpectedVersionMismatch, match="node:B") as raised:
        publish(graph, request(version(A, 5), expected={A: 4, B: 4}))
    assert rival.met == 1
    assert raised.value.actual == 9
    assert versions(graph)[A] == 4


# --- guards of node deletes and of new edge tables (issue "under fire") ---------------


def node_delete() -> Publish:
    """Return what a delete on A publishes: it has looked at the edge tables that end at A."""
    edges = frozenset({KNOWS, LIKES})
    return request(
        version(A, 5), expected={A: 4, KNOWS: 4, LIKES: 4}, guards=edges, edge_tables=edges
    )


def edge_append() -> Publish:
    """Return what an edge append publishes: it expects the node table, and guards only its own."""
    return request(version(KNOWS, 5), expected={KNOWS: 4, A: 4})


def edge_creation() -> Publish:
    """Return what the creation of an edge table publishes: it guards the node types at its ends."""
    new = "edge:New"
    return request(
        table(new), version(new, 1), expected={new: 0, A: 4, B: 4}, guards=frozenset({A, B})
    )


@pytest.mark.parametrize("other", [edge_append, edge_creation])
@pytest.mark.parametrize("delete_first", [True, False])
def test_of_a_node_delete_and_new_edges_one_is_refused_whichever_comes_first(
    graph: Storage, other: Callable[[], Publish], delete_first: bool
) -> None:
    winner, loser = (node_delete, other) if delete_first else (other, node_delete)
    moved = node_delete().expected if delete_first else {KNOWS: 0, "edge:New": 0}
    rival_at("publish.before_merge", first_time(lambda: publish(graph, winner())))
    with pytest.raises(ExpectedVersionMismatch, match="OMNIGRAPH_EXPECTED") as raised:
        publish(graph, loser())
    assert raised.value.table_key in moved
    assert (versions(graph)[A] == 5) is delete_first
    edges = versions(graph).get("edge:New", 0) + versions(graph)[KNOWS]
    assert edges == (4 if delete_first else 5)


@pytest.mark.parametrize("delete_first", [True, False])
def test_without_the_deletes_guards_both_would_land(graph: Storage, delete_first: bool) -> None:
    """The planted bug that the guards are there against."""
    bare = request(version(A, 5), expected={A: 4})
    first, second = (bare, edge_append()) if delete_first else (edge_append(), bare)
    rival_at("publish.before_merge", first_time(lambda: publish(graph, first)))
    publish(graph, second)
    assert versions(graph) == {A: 5, B: 4, KNOWS: 5, LIKES: 4}


def test_appends_to_different_tables_never_refuse_each_other(graph: Storage) -> None:
    """Two edge tables that end at one node type, and the node table itself."""
    for ours, theirs in [(KNOWS, LIKES), (LIKES, KNOWS), (KNOWS, B), (A, B), (B, KNOWS)]:
        now = versions(graph)
        theirs_next = request(version(theirs, now[theirs] + 1), expected={theirs: now[theirs]})
        rival = rival_at("publish.before_merge", first_time(partial(publish, graph, theirs_next)))
        mine = request(version(ours, now[ours] + 1), expected={ours: now[ours]}, retries=0)
        publish(graph, mine)
        assert rival.met == 1


def test_a_guard_leaves_the_table_row_as_it_was(graph: Storage) -> None:
    before = sorted(map(str, _table_rows(graph)))
    publish(graph, request(version(A, 5), guards=frozenset({B, "node:Unknown"})))
    assert sorted(map(str, _table_rows(graph))) == before


def _table_rows(storage: Storage) -> list[dict[str, Any]]:
    rows = read_rows(open_main(storage)).to_pylist()
    return [row for row in rows if row["object_type"] == "table"]


# --- own id, unknown outcomes (rules 3, 4) --------------------------------------------------


def lose_the_answer(after: Callable[[], object] | None = None) -> Callable[[int], object]:
    """Return a hook for a publish that has landed: a rival may follow, then the answer is lost."""

    def act() -> None:
        if after is not None:
            after()
        raise OSError("Commit result for version 99 is unknown")

    return first_time(act)


@pytest.mark.parametrize("rival_on_top", [False, True])
def test_a_publish_that_landed_and_lost_its_answer_is_found_by_its_id_before_expectations(
    graph: Storage, rival_on_top: bool
) -> None:
    before = load(graph).graph_version
    theirs = request(version(A, 6), expected={A: 5})
    after = (lambda: publish(graph, theirs)) if rival_on_top else None
    rival_at("publish.landed", lose_the_answer(after))
    done = publish(graph, request(version(A, 5), expected={A: 4}))
    assert done == Published(before + 1)
    assert versions(graph)[A] == (6 if rival_on_top else 5)
    assert load(graph).graph_version == before + (2 if rival_on_top else 1)


def test_publishing_again_under_the_same_id_changes_nothing(graph: Storage) -> None:
    ours = request(version(A, 5), expected={A: 4})
    first = publish(graph, ours)
    publish(graph, request(version(A, 6), expected={A: 5}))
    before = read_rows(open_main(graph)).num_rows
    assert publish(graph, ours) == first
    assert versions(graph)[A] == 6
    assert read_rows(open_main(graph)).num_rows == before


def go_dark(_: int) -> None:
    raise OSError("Commit result for version 999999 is unknown")


def test_a_store_that_never_answers_leaves_the_outcome_unknown(graph: Storage) -> None:
    rival = rival_at("publish.sending", go_dark)
    ours = request(version(A, 5), expected={A: 4})
    with pytest.raises(PublishOutcomeUnknown, match="OMNIGRAPH_PUBLISH_OUTCOME_UNKNOWN") as raised:
        publish(graph, ours)
    assert raised.value.publish_id == ours.publish_id
    assert rival.met == 6


def test_an_unknown_outcome_is_not_called_a_mismatch_later(graph: Storage) -> None:
    """The late PUT may still land: B, which the publish expects, is under no guard of it."""

    def act(met: int) -> None:
        publish(graph, request(version(B, 9)))
        go_dark(met)

    rival_at("publish.sending", act)
    with pytest.raises(PublishOutcomeUnknown, match="OMNIGRAPH_PUBLISH_OUTCOME_UNKNOWN") as raised:
        publish(graph, request(version(A, 5), expected={A: 4, B: 4}))
    assert isinstance(raised.value.__cause__, ExpectedVersionMismatch)


def test_an_unknown_outcome_is_settled_once_somebody_has_its_version(graph: Storage) -> None:
    place = load(graph).graph_version + 1

    def act(met: int) -> None:
        if met == 1:
            publish(graph, request(version(A, 9)))
            raise OSError(f"Commit result for version {place} is unknown")

    rival_at("publish.sending", act)
    with pytest.raises(ExpectedVersionMismatch, match="node:A"):
        publish(graph, request(version(A, 5), expected={A: 4}))


# --- visibility, handles, damaged graphs, the engine (rules 5, 6, 8, 9) ---------------------


@pytest.mark.parametrize("number", [3, 4])
def test_a_version_at_or_below_the_tombstone_is_refused_not_acknowledged(
    graph: Storage, number: int
) -> None:
    publish(graph, request(TombstoneRow(A, 4)))
    before = load(graph)
    with pytest.raises(CorruptManifestError, match=r"node:A would not become the visible one"):
        publish(graph, request(version(A, number)))
    # Who makes the table, and may retry, is told that others made and dropped it.
    with pytest.raises(ExpectedVersionMismatch, match="expected version 0 · found version 4"):
        publish(graph, request(version(A, number), expected={A: 0}))
    assert load(graph) == before


def test_a_version_below_the_published_one_is_refused_not_acknowledged(graph: Storage) -> None:
    with pytest.raises(CorruptManifestError, match="would not become the visible one"):
        publish(graph, request(version(A, 3)))
    assert versions(graph)[A] == 4


def test_a_version_below_an_inherited_one_is_refused_not_acknowledged(graph: Storage) -> None:
    row = VersionRow(A, 3, "dev", 1, {})
    with pytest.raises(CorruptManifestError, match="would not become the visible one"):
        publish(graph, Publish("main", new_ulid(), (row,)))


def test_a_handle_that_got_old_is_opened_again_before_the_merge(
    graph: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert publisher._HANDLE_SECONDS == 60.0
    opened: list[int] = []
    _faults.arm("publish.opened", lambda: opened.append(len(opened)))
    old = iter([-1.0, 60.0])
    _faults.arm(
        "publish.before_merge",
        lambda: monkeypatch.setattr(publisher, "_HANDLE_SECONDS", next(old)),
    )
    publish(graph, request(version(A, 5), expected={A: 4}))
    assert len(opened) == 2
    assert versions(graph)[A] == 5


def lose_guard_row(graph: Storage) -> None:
    open_main(graph).delete(f"object_id = '{A}'")


def test_a_lost_guard_row_is_written_again(graph: Storage) -> None:
    lose_guard_row(graph)
    publish(graph, request(version(A, 5), expected={A: 4}))
    assert {row["table_key"]: row["location"] for row in _table_rows(graph)}[
        A
    ] == layout.table_location(A)


def test_two_writers_of_a_table_that_lost_its_guard_row_collide(graph: Storage) -> None:
    lose_guard_row(graph)
    rival_at(
        "publish.before_merge",
        first_time(lambda: publish(graph, request(version(A, 5), expected={A: 4}))),
    )
    with pytest.raises(ExpectedVersionMismatch, match="node:A"):
        publish(graph, request(version(A, 7), expected={A: 4}))
    assert len([row for row in _table_rows(graph) if row["table_key"] == A]) == 1


@pytest.mark.parametrize("skipped_rows", [True, False])
def test_a_late_publish_of_the_engine_loses_against_the_rows_of_skipped_versions(
    graph: Storage, skipped_rows: bool
) -> None:
    """It writes no guards: without the rows its 5 and our 6 both land, and its rows are hidden."""
    engine = open_main(graph)
    healed = version(A, 6)
    skipped = VersionRow(A, 6, None, 1, {}, object_version=5)
    publish(graph, request(healed, *([skipped] if skipped_rows else []), expected={A: 4}))

    def late() -> None:
        (
            engine.merge_insert("object_id")
            .when_matched_update_all()
            .when_not_matched_insert_all()
            .conflict_retries(0)
            .use_index(False)
            .execute(to_arrow([version(A, 5)]))
        )

    if skipped_rows:
        with pytest.raises(OSError, match="concurrent"):
            late()
    else:
        late()
    assert versions(graph)[A] == 6


# --- txnAppId, txnVersion (rule 10) --------------------------------------------------------


def test_a_batch_that_is_there_already_is_skipped(graph: Storage) -> None:
    publish(graph, request(version(A, 5), version(B, 5), txn=("app", 3)))
    before = load(graph)
    for number in (3, 2):
        done = publish(graph, request(version(A, 6), version(B, 6), txn=("app", number)))
        assert done == Published(before.graph_version, skipped=True)
    assert load(graph) == before


def test_a_newer_batch_another_application_and_another_table_are_not_skipped(
    graph: Storage,
) -> None:
    publish(graph, request(version(A, 5), txn=("app", 3)))
    assert not publish(graph, request(version(A, 6), txn=("app", 4))).skipped
    assert not publish(graph, request(version(A, 7), txn=("other", 3))).skipped
    assert not publish(graph, request(version(B, 5), txn=("app", 3))).skipped


def test_a_batch_that_is_there_for_some_of_its_tables_is_refused(graph: Storage) -> None:
    publish(graph, request(version(A, 5), txn=("app", 3)))
    with pytest.raises(OptionError, match=r"OMNIGRAPH_OPTION.*'app' at version 3"):
        publish(graph, request(version(A, 6), version(B, 5), txn=("app", 3)))
    assert versions(graph) == {A: 5, B: 4, KNOWS: 4, LIKES: 4}


def test_two_attempts_of_one_batch_meet_at_the_guard_and_the_loser_finds_the_winner(
    graph: Storage,
) -> None:
    rival = rival_at(
        "publish.before_merge",
        first_time(lambda: publish(graph, request(version(A, 5), txn=("app", 3), expected={A: 4}))),
    )
    assert publish(graph, request(version(A, 7), txn=("app", 3), expected={A: 4})).skipped
    assert rival.met == 1
    assert versions(graph)[A] == 5


def test_garbage_in_the_metadata_of_an_old_version_is_no_batch(graph: Storage) -> None:
    old = layout.version_object_id(A, 4)
    publish(graph, request(version(A, 5)))
    open_main(graph).update({"metadata": "'{\"txn\":[ nonsense'"}, f"object_id = '{old}'")
    publish(graph, request(version(A, 6), txn=("app", 1)))
    assert versions(graph)[A] == 6
