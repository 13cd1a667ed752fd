"""Tables come and go in graphs of engine 0.9: with the lock, the files and one publish, or not."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import lance
import pytest

from omnigraph_spark import _faults
from omnigraph_spark.errors import (
    CorruptManifestError,
    ExpectedVersionMismatch,
    IntegrityError,
    RecoveryPendingError,
    SchemaMismatchError,
    StorageError,
    TableNotFoundError,
    UnsupportedError,
    from_spark,
)
from omnigraph_spark.history import schema_apply
from omnigraph_spark.maintenance.repair import repair
from omnigraph_spark.manifest import schema_lock
from omnigraph_spark.manifest.crash_records import Heartbeat
from omnigraph_spark.manifest.snapshot import load
from omnigraph_spark.schema_changes import properties
from omnigraph_spark.storage.ids import new_ulid
from omnigraph_spark.storage.store import Storage
from tests.format_checker import check_graph
from tests.support import branches, graphs
from tests.support.frames import nothing_written
from tests.support.plain_writes import read, rows, save
from tests.support.stores import Store
from tests.support.writes import Died, die, once, write_options

LOCK = "__schema_apply_lock__"
BEFORE = ("schema_lock.taken", "schema_apply.tables_made", "schema_apply.staged")
AFTER = ("publish.after_merge", "schema_apply.published")


@pytest.fixture
def root(tmp_path: Path) -> Iterator[str]:
    place = str(tmp_path / "graph")
    save(place, {"name": ["ann"]}, table="node:Person", keys="Person: name", graphFormat="6")
    yield place
    _faults.disarm()


def add_firm(root: str, **options: str) -> None:
    save(root, {"title": ["x"]}, table="node:Firm", keys="Firm: title", **options)


def drop_firm(root: str) -> None:
    properties.drop_table(Storage.at(root), write_options(Storage.at(root)), ["node:Firm"])


def folders(root: str) -> set[str]:
    return {one.name for one in Path(root, "nodes").iterdir()}


def test_a_write_adds_the_table_that_the_graph_lacks(root: str) -> None:
    add_firm(root)
    assert check_graph(root) == []
    assert rows(root, "node:Firm", "title") == [("x",)]
    assert load(Storage.at(root)).identities == {"node:Person": (1, 3), "node:Firm": (4, 6)}
    assert "node Firm {" in Path(root, "_schema.pg").read_text()


@pytest.mark.long
def test_a_dropped_table_that_is_made_again_is_another_table(root: str) -> None:
    add_firm(root)
    version = load(Storage.at(root)).graph_version
    drop_firm(root)
    assert check_graph(root) == []
    assert "Firm" not in Path(root, "_schema.pg").read_text()
    with pytest.raises(Exception, match="Firm"):
        rows(root, "node:Firm")
    save(root, {"id": ["y"], "sum": [7]}, table="node:Firm")
    assert check_graph(root) == []
    assert rows(root, "node:Firm", "sum") == [(7,)]
    assert load(Storage.at(root)).identities["node:Firm"] == (7, 9)
    assert load(Storage.at(root), version=version).entry("node:Firm").row_count == 1


def test_a_node_table_that_edges_end_at_is_not_dropped_alone(root: str) -> None:
    edge = {"src": ["ann"], "dst": ["ann"]}
    save(root, edge, table="edge:Knows", endpoints="Knows: Person -> Person")
    options = write_options(Storage.at(root))
    with nothing_written(root), pytest.raises(IntegrityError):
        properties.drop_table(Storage.at(root), options, ["node:Person"])
    properties.drop_table(Storage.at(root), options, ["node:Person", "edge:Knows"])
    assert check_graph(root) == []
    assert load(Storage.at(root)).tables == {}


def test_tables_of_the_engines_own_graphs_come_and_go(tmp_path: Path) -> None:
    root = str(graphs.unpack("v6", "constraints", tmp_path))
    add_firm(root)
    assert check_graph(root, moved=True) == []
    drop_firm(root)
    assert check_graph(root, moved=True) == []


def test_other_branches_are_in_the_way_of_a_change(tmp_path: Path) -> None:
    root = str(graphs.unpack("v6", "social", tmp_path))
    with nothing_written(root), pytest.raises(UnsupportedError, match="dev, feature/merged"):
        add_firm(root)


def test_another_definition_of_a_type_that_is_there_is_refused(root: str) -> None:
    with nothing_written(root), pytest.raises(SchemaMismatchError):
        save(root, {"title": [1]}, table="node:Person")


@pytest.mark.long
@pytest.mark.parametrize("point", [*BEFORE, *AFTER])
@pytest.mark.parametrize("change", [add_firm, drop_firm])
def test_a_change_whose_process_dies_is_all_there_or_not_at_all_after_the_next_write(
    root: str, change: Callable[[str], None], point: str
) -> None:
    if change is drop_firm:
        add_firm(root)
    begun = load(Storage.at(root)).identities
    _faults.arm(point, once(die))
    with contextlib.suppress(Died):
        change(root)
        raise AssertionError(f"{point} was not reached")
    _faults.disarm()
    assert LOCK in lance.dataset(f"{root}/__manifest").branches.list()
    save(root, {"name": ["bo"]}, table="node:Person")
    assert check_graph(root) == []
    after = load(Storage.at(root)).identities
    assert (after == begun) is (point in BEFORE)
    assert ("node:Firm" in after) is ((change is add_firm) is (point in AFTER))
    if "node:Firm" not in after:
        add_firm(root)
        assert check_graph(root) == []
        assert rows(root, "node:Firm", "title") == [("x",)]


@pytest.mark.parametrize("point", ["schema_apply.staged", "schema_apply.published"])
def test_a_repair_finishes_or_undoes_a_change_whose_process_died(root: str, point: str) -> None:
    _faults.arm(point, once(die))
    with contextlib.suppress(Died):
        add_firm(root)
    _faults.disarm()
    repair(Storage.at(root), dry_run=True)
    assert check_graph(root) != []
    repair(Storage.at(root), dry_run=False, grace_seconds=0.1)
    assert check_graph(root) == []
    assert ("node:Firm" in load(Storage.at(root)).tables) is (point in AFTER)


def test_what_a_change_that_fails_has_made_is_gone(root: str) -> None:
    def fail() -> None:
        raise StorageError("the store failed")

    before = folders(root)
    _faults.arm("schema_apply.staged", fail)
    with pytest.raises(StorageError):
        add_firm(root)
    _faults.disarm()
    assert check_graph(root) == []
    assert folders(root) == before
    add_firm(root)
    assert check_graph(root) == []


def test_the_lock_of_an_engine_is_respected(root: str) -> None:
    lance.dataset(f"{root}/__manifest").create_branch(LOCK)
    with pytest.raises(RecoveryPendingError):
        save(root, {"name": ["bo"]}, table="node:Person")
    with pytest.raises(RecoveryPendingError):
        add_firm(root)
    assert LOCK in lance.dataset(f"{root}/__manifest").branches.list()


def test_the_lock_of_a_process_that_lives_is_respected(root: str) -> None:
    holder = new_ulid()
    main = lance.dataset(f"{root}/__manifest")
    main.create_branch(LOCK)
    main.branches.replace_metadata(LOCK, {"omnigraph_spark": holder})
    with Heartbeat(Storage.at(root), holder, 0.1) as heartbeat:
        heartbeat.record("main", (), None)
        with pytest.raises(RecoveryPendingError, match="Another process"):
            add_firm(root, orphanGraceSeconds="2")
        heartbeat.remove()
    add_firm(root)
    assert check_graph(root) == []


@pytest.mark.long
def test_two_changes_at_once_are_one_after_the_other(root: str) -> None:
    def rival() -> None:
        with pytest.raises(RecoveryPendingError):
            save(root, {"id": ["t"], "a": [1]}, table="node:Town", orphanGraceSeconds="0.3")

    _faults.arm("schema_lock.taken", once(rival))
    add_firm(root, orphanGraceSeconds="0.3")
    save(root, {"id": ["t"], "a": [1]}, table="node:Town")
    assert check_graph(root) == []
    assert sorted(load(Storage.at(root)).tables) == ["node:Firm", "node:Person", "node:Town"]


def test_a_write_to_a_table_that_is_being_dropped_wins(root: str) -> None:
    add_firm(root)
    versions = {"node:Firm": load(Storage.at(root)).version("node:Firm") - 1}
    with pytest.raises(ExpectedVersionMismatch):
        schema_apply.drop_tables(Storage.at(root), versions, None, 0.1)
    assert check_graph(root) == []
    assert rows(root, "node:Firm", "title") == [("x",)]


def test_schema_files_that_contradict_the_tables_are_not_changed(root: str) -> None:
    path = Path(root, "_schema.pg")
    path.write_text(path.read_text().replace("String @key", "String @key @index"))
    with pytest.raises(CorruptManifestError, match="another shape"):
        add_firm(root)
    assert not any(Path(root, name).exists() for name in schema_lock.STAGED)
    assert LOCK not in lance.dataset(f"{root}/__manifest").branches.list()


@pytest.mark.long
def test_tables_come_and_go_in_a_graph_in_any_store(store: Store) -> None:
    root, storage = store.uri("graph"), store.storage("graph")
    given = dict(store.options)
    save(
        root, {"name": ["ann"]}, table="node:Person", keys="Person: name", graphFormat="6", **given
    )
    _faults.arm("schema_apply.published", once(die))
    with contextlib.suppress(Died):
        add_firm(root, **given)
    _faults.disarm()
    add_firm(root, **given)
    found = load(storage)
    assert {key: one.row_count for key, one in found.tables.items()} == {
        "node:Firm": 1,
        "node:Person": 1,
    }
    assert storage.get("_schema.pg.staging") is None
    properties.drop_table(storage, write_options(storage, **given), ["node:Firm"])
    assert sorted(load(storage).tables) == ["node:Person"]


def silent_until(root: str, act: Callable[[], object]) -> None:
    """Add a table and, once its files are staged, act as others do to a holder that gives no sign.

    The holder renews its record every 100 s, the others wait for 0.1 s.
    """
    _faults.arm("schema_apply.staged", once(act))
    with pytest.raises(RecoveryPendingError):
        add_firm(root, orphanGraceSeconds="300")
    _faults.disarm()


@pytest.mark.long
@pytest.mark.parametrize("remade", [False, True])
def test_a_holder_that_slept_while_its_lock_was_taken_over_publishes_nothing(
    root: str, remade: bool
) -> None:
    def act() -> None:
        save(root, {"name": ["bo"]}, table="node:Person")
        if remade:
            save(root, {"id": ["t"], "a": [1]}, table="node:Town")

    silent_until(root, act)
    assert check_graph(root) == []
    assert "node:Firm" not in load(Storage.at(root)).tables
    assert LOCK not in lance.dataset(f"{root}/__manifest").branches.list()
    add_firm(root)
    assert check_graph(root) == []


def test_a_publish_that_slept_while_its_lock_was_taken_over_collides(root: str) -> None:
    def act() -> None:
        assert schema_lock.recover(Storage.at(root), 0.1)

    _faults.arm("publish.sending", once(act))
    with pytest.raises(RecoveryPendingError):
        add_firm(root, orphanGraceSeconds="300")
    _faults.disarm()
    assert check_graph(root) == []
    assert sorted(load(Storage.at(root)).tables) == ["node:Person"]


@pytest.mark.long
@pytest.mark.parametrize("point", ["schema_lock.silent", "schema_lock.taken_over"])
def test_who_comes_second_to_a_dead_holders_lock_leaves_the_next_ones_change_alone(
    root: str, point: str
) -> None:
    _faults.arm("schema_apply.staged", once(die))
    with contextlib.suppress(Died):
        add_firm(root)
    _faults.disarm()
    waiting, go = threading.Event(), threading.Event()
    outcome: list[BaseException] = []

    def wait() -> None:
        waiting.set()
        assert go.wait(60)

    def come_second() -> None:
        try:
            save(root, {"name": ["bo"]}, table="node:Person")
        except RecoveryPendingError as error:
            outcome.append(error)

    def go_on() -> None:
        go.set()
        second.join(60)

    _faults.arm(point, once(wait))
    second = threading.Thread(target=come_second)
    second.start()
    assert waiting.wait(60)
    _faults.arm("schema_apply.staged", once(go_on))
    save(root, {"id": ["t"], "a": [1]}, table="node:Town")
    _faults.disarm()
    assert len(outcome) == 1
    assert check_graph(root) == []
    assert sorted(load(Storage.at(root)).tables) == ["node:Person", "node:Town"]


def test_a_lock_whose_holder_could_not_be_named_is_dropped_again(root: str) -> None:
    def fail() -> None:
        raise StorageError("the store failed")

    _faults.arm("schema_lock.made", once(fail))
    with pytest.raises(StorageError):
        add_firm(root)
    _faults.disarm()
    assert check_graph(root) == []
    add_firm(root)
    assert check_graph(root) == []


def test_files_of_a_lock_whose_maker_was_killed_are_in_nobodys_way(root: str) -> None:
    lance.dataset(f"{root}/__manifest").create_branch(LOCK)
    Path(root, "__manifest/_refs/branches", f"{LOCK}.json").unlink()
    add_firm(root)
    assert check_graph(root) == []


@pytest.mark.long
@pytest.mark.parametrize("point", ["commit.entered", "commit.before_publish"])
@pytest.mark.parametrize("mode", ["append", "merge"])
def test_rows_for_a_table_that_was_made_again_meanwhile_are_refused(
    root: str, point: str, mode: str
) -> None:
    def again() -> None:
        drop_firm(root)
        add_firm(root)

    add_firm(root)
    _faults.arm(point, once(again))
    with pytest.raises(TableNotFoundError, match="made again"):
        save(root, {"title": ["late"]}, table="node:Firm", writeMode=mode)
    _faults.disarm()
    assert check_graph(root) == []
    assert rows(root, "node:Firm", "title") == [("x",)]


@pytest.mark.long
@pytest.mark.parametrize("mode", ["overwrite", "merge", "delete", "whole"])
def test_a_frame_of_a_table_that_was_made_again_since_it_was_read_is_refused(
    root: str, mode: str
) -> None:
    add_firm(root)
    asked = {} if mode == "whole" else {"table": "node:Firm"}
    schema = read(root, **asked)
    drop_firm(root)
    save(root, {"title": ["x", "y"]}, table="node:Firm", keys="Firm: title")
    options = {"writeMode": mode} if mode in ("merge", "delete") else {}
    given: dict[str, Any] = {"id": ["x"], "title": ["x"]}
    if mode == "whole":
        given = {"_table": ["node:Firm"], "name": [None], **given}
    more = {"overwrite": mode in ("overwrite", "whole"), "schema": schema, **asked, **options}
    with (
        nothing_written(root),
        pytest.raises(ExpectedVersionMismatch, match="dropped and made again") as told,
    ):
        save(root, given, **more)
    assert told.value.table_key == "node:Firm"
    again = from_spark(RuntimeError(str(told.value)))
    assert isinstance(again, ExpectedVersionMismatch)
    assert again.table_key == "node:Firm"
    save(root, given, **more, lastWriterWins="true")
    left = {"overwrite": ["x"], "merge": ["x", "y"], "delete": ["y"], "whole": ["x"]}
    assert [row[0] for row in rows(root, "node:Firm", "title")] == left[mode]
    assert check_graph(root) == []


@pytest.mark.long
def test_a_branch_that_was_begun_before_a_change_of_tables_is_not_made(root: str) -> None:
    _faults.arm("branch.before_clone", once(lambda: add_firm(root)))
    with pytest.raises(UnsupportedError, match="other tables"):
        branches.make(Storage.at(root), "b")
    _faults.disarm()
    assert branches.names(Storage.at(root)) == ["main"]
    assert check_graph(root) == []


def test_a_branch_is_not_made_under_a_lock_that_was_taken_meanwhile(root: str) -> None:
    main = lance.dataset(f"{root}/__manifest")
    _faults.arm("branch.before_clone", once(lambda: main.create_branch(LOCK)))
    with pytest.raises(RecoveryPendingError):
        branches.make(Storage.at(root), "b")
    _faults.disarm()
    assert branches.names(Storage.at(root)) == ["main"]


def test_a_change_of_tables_is_refused_where_a_branch_was_made_meanwhile(root: str) -> None:
    def change() -> None:
        with pytest.raises(UnsupportedError, match="other branches"):
            add_firm(root)

    _faults.arm("branch.cloned", once(change))
    branches.make(Storage.at(root), "b")
    _faults.disarm()
    assert check_graph(root) == []


@pytest.mark.long
def test_an_edge_table_that_is_made_again_keeps_its_own_key(root: str) -> None:
    storage = Storage.at(root)
    edge = {"src": ["ann"], "dst": ["ann"]}
    new = {"endpoints": "Knows: Person -> Person", "edgeKeys": "Knows: src, dst"}
    for _ in range(2):
        save(root, edge, table="edge:Knows", **new)
        for _ in range(3):
            save(root, edge, table="edge:Knows", writeMode="merge")
        assert len(rows(root, "edge:Knows")) == 1
        properties.drop_table(storage, write_options(storage), ["edge:Knows"])
