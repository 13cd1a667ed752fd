"""`check` finds what dead writers and moves leave, and `repair` mends it without a write."""

from __future__ import annotations

import json
import shutil
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from omnigraph_spark import _faults, schema
from omnigraph_spark.errors import (
    CorruptManifestError,
    GraphNotFoundError,
    OmnigraphError,
    RecoveryPendingError,
    StorageError,
    UnsupportedManifestVersion,
)
from omnigraph_spark.history import commits, runs
from omnigraph_spark.history.publishes import branch_names
from omnigraph_spark.maintenance import check as checks
from omnigraph_spark.maintenance import moved
from omnigraph_spark.maintenance.check import Finding, check
from omnigraph_spark.maintenance.repair import Action, repair
from omnigraph_spark.manifest import crash_records
from omnigraph_spark.manifest.publisher import Publish, publish
from omnigraph_spark.manifest.rows import VersionRow
from omnigraph_spark.manifest.snapshot import load, open_main
from omnigraph_spark.manifest.writable import open_for_writing
from omnigraph_spark.storage import layout, store
from omnigraph_spark.storage.ids import new_ulid
from omnigraph_spark.storage.lance_messages import with_base_paths
from omnigraph_spark.storage.lance_table_pb2 import Manifest
from omnigraph_spark.storage.store import Storage
from omnigraph_spark.write.commit.commit import commit
from tests.support import branches, graphs, writes
from tests.support.writes import ALL, COMPANY, PERSON, age, age_record, ids

GRACE = float(writes.GRACE)


@pytest.fixture
def graph(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Storage]:
    """Three tables of one row each, of stamp 2 unless a test asks for both."""
    empty = writes.empty_graph(Storage.at(str(tmp_path / "g")), getattr(request, "param", 2))
    yield writes.new_graph(empty)
    _faults.disarm()


def kinds(found: list[Finding] | list[Action]) -> list[str]:
    return sorted({one.kind for one in found})


def assert_mended(storage: Storage, *expected: str) -> None:
    """A dry run writes nothing and says what a real one then does; after it nothing is found."""
    before = graphs.file_hashes(Path(storage.root))
    assert kinds(check(storage)) == sorted(expected)
    planned = repair(storage)
    assert kinds(planned) == sorted(expected)
    assert not any(action.done for action in planned)
    assert graphs.file_hashes(Path(storage.root)) == before
    done = repair(storage, dry_run=False, grace_seconds=GRACE)
    assert kinds(done) == sorted(expected)
    assert all(action.done for action in done), done
    assert check(storage) == []
    assert repair(storage, dry_run=False, grace_seconds=GRACE) == []


def test_a_sound_graph_has_no_findings_and_checking_writes_nothing(graph: Storage) -> None:
    writes.write(graph, {PERSON: ["b"]}, "overwrite")
    before = graphs.file_hashes(Path(graph.root))
    assert check(graph) == []
    assert repair(graph, dry_run=False) == []
    assert graphs.file_hashes(Path(graph.root)) == before


def test_a_path_without_a_graph_is_refused(tmp_path: Path) -> None:
    with pytest.raises(GraphNotFoundError, match="OMNIGRAPH_GRAPH_NOT_FOUND"):
        check(Storage.at(str(tmp_path)))
    with pytest.raises(GraphNotFoundError, match="OMNIGRAPH_GRAPH_NOT_FOUND"):
        repair(Storage.at(str(tmp_path)), dry_run=False)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.long
def test_a_dead_write_is_rolled_back_as_a_whole(graph: Storage) -> None:
    dead_rows = {key: ["dead"] for key in ALL}
    dead = writes.write_and_die(graph, "commit.table_2", dead_rows, recordRuns="true")
    age_record(graph, dead.publish_id)
    assert_mended(graph, checks.CRASH_RECORD, checks.UNPUBLISHED_HEAD)
    assert [ids(graph, key) for key in ALL] == [["first"]] * 3
    rows = runs.read_runs(graph).to_pylist()
    assert [r["status"] for r in rows if r["run_id"] == dead.publish_id] == ["running", "aborted"]
    _faults.arm("heal.before_restore", writes.die)
    writes.write(graph, {PERSON: ["next"]}, orphanGraceSeconds="60")
    assert ids(graph, PERSON) == ["first", "next"]


def test_a_live_writer_shows_and_is_left_alone(graph: Storage) -> None:
    live = writes.write_and_die(graph, "commit.record_written", {PERSON: ["live"]})
    assert kinds(check(graph)) == [checks.CRASH_RECORD]
    done = repair(graph, dry_run=False, grace_seconds=3600)
    assert [(action.kind, action.done) for action in done] == [(checks.CRASH_RECORD, False)]
    assert writes.records(graph) == [live.publish_id]


@pytest.mark.long
def test_an_orphan_without_a_record_is_restored_after_the_grace(graph: Storage) -> None:
    writes.orphan(graph, PERSON, ["orphan"], "01ARZ3NDEKTSV4RRFFQ69G5FAV")
    (found,) = check(graph)
    assert found.place == PERSON
    assert "version 1" in found.what
    assert "01ARZ3NDEKTSV4RRFFQ69G5FAV" in found.what
    assert_mended(graph, checks.UNPUBLISHED_HEAD)
    assert ids(graph, PERSON) == ["first"]


@pytest.mark.long
@pytest.mark.parametrize("published", [True, False])
def test_a_run_whose_record_the_engine_took_away_is_ended(graph: Storage, published: bool) -> None:
    point = "commit.after_publish" if published else "commit.before_table"
    dead = writes.write_and_die(graph, point, {PERSON: ["dead"]}, recordRuns="true")
    crash_records.delete(graph, dead.publish_id)
    expected = [checks.RUNNING_RUN, *([checks.MISSING_LINEAGE] if published else [])]
    assert_mended(graph, *expected)
    last = [r for r in runs.read_runs(graph).to_pylist() if r["run_id"] == dead.publish_id][-1]
    assert last["status"] == ("published" if published else "aborted")
    assert last["published_snapshot_id"] == (dead.publish_id if published else None)


@pytest.mark.long
def test_missing_lineage_rows_are_filled(graph: Storage) -> None:
    _faults.arm("lineage.before_row", "raise")
    lost = [writes.write(graph, {PERSON: [name]}, actor="me") for name in ("b", "c")]
    _faults.disarm()
    (found,) = check(graph)
    assert found.place == ", ".join(str(one.graph_version) for one in lost)
    assert_mended(graph, checks.MISSING_LINEAGE)
    newest = commits.read_commits(graph)[-2:]
    assert [c.graph_commit_id for c in newest] == [one.publish_id for one in lost]
    assert [c.actor_id for c in newest] == ["me", "me"]


@pytest.mark.parametrize("name", ["_schema.ir.json", "__schema_state.json"])
def test_schema_files_that_disagree_are_made_again(graph: Storage, name: str) -> None:
    good = graph.get(name)
    graph.put(name, b"{}")
    assert_mended(graph, checks.SCHEMA_FILES)
    assert graph.get(name) == good


def test_tables_that_no_schema_file_declares_are_reported_and_declared_again(
    graph: Storage,
) -> None:
    for name in ("_schema.pg", "_schema.ir.json", "__schema_state.json"):
        graph.delete(name)
    found = check(graph)
    assert [(one.kind, one.place, one.repairable) for one in found] == [
        (checks.SCHEMA_FILES, "_schema.pg", True),
        *((checks.UNKNOWN_TYPE, key, True) for key in sorted(ALL)),
    ]
    repair(graph, False, 0.1)
    assert check(graph) == []


@pytest.mark.parametrize("graph", [2, 6], indirect=True)
def test_a_table_whose_version_a_branch_inherits_and_cannot_read_is_reported(
    graph: Storage,
) -> None:
    writes.write(graph, {PERSON: ["second"]})
    branches.make(graph, "dev")
    writes.write(graph, {PERSON: ["third"]})
    pinned = load(graph, "dev").tables[PERSON]
    graph.delete(f"{pinned.location}/_versions/{layout.v2_manifest_name(pinned.table_version)}")
    found = [one for one in check(graph) if one.branch == "dev"]
    assert [(one.kind, one.place, one.repairable) for one in found] == [
        (checks.MISSING_VERSION, PERSON, False)
    ]


@pytest.mark.long
def test_a_half_migration_is_finished(tmp_path: Path) -> None:
    storage = Storage.at(str(graphs.unpack("v1", "social", tmp_path)))
    found = kinds(check(storage))
    assert checks.HALF_MIGRATION not in found, "a plain v1 graph is in order"
    _faults.arm("migrate.before_stamp", "raise")
    with pytest.raises(StorageError, match="Injected"):
        open_for_writing(storage, "main")
    _faults.disarm()
    assert checks.HALF_MIGRATION in kinds(check(storage))
    repair(storage, dry_run=False, grace_seconds=GRACE)
    assert checks.HALF_MIGRATION not in kinds(check(storage))
    assert writes.ids(storage, PERSON)


def test_auto_cleanup_of_the_engine_is_removed_and_the_tables_stay_in_order(
    tmp_path: Path,
) -> None:
    storage = Storage.at(str(graphs.unpack("v2", "social", tmp_path)))
    before = {key: ids(storage, key) for key in load(storage).tables}
    places = {one.place for one in check(storage) if one.kind == checks.AUTO_CLEANUP}
    assert places == {*before, "__manifest"}
    repair(storage, dry_run=False, grace_seconds=GRACE)
    assert check(storage) == []
    assert {key: ids(storage, key) for key in load(storage).tables} == before
    for key, entry in load(storage).tables.items():
        head = storage.dataset(entry.location)
        assert (head.version, store.keys(head)) == (entry.table_version, []), key


def test_staged_messages_are_deleted_when_they_are_older_than_a_week(graph: Storage) -> None:
    for name in ("old", "young"):
        graph.put(f"__staging/{name}/a.json", b"[]")
    age(graph, "__staging/old/a.json", 700_000)
    assert [one.place for one in check(graph)] == ["old", "young"]
    done = repair(graph, dry_run=False, grace_seconds=GRACE)
    assert [(one.place, one.done) for one in done] == [("old", True), ("young", False)]
    assert graph.get("__staging/young/a.json") == b"[]"


def test_a_record_of_another_engine_is_reported_and_stops_a_repair(graph: Storage) -> None:
    writes.orphan(graph, PERSON, ["orphan"])
    graph.put("__recovery/engine.json", json.dumps({"schema_version": 1, "tables": []}).encode())
    before = graphs.file_hashes(Path(graph.root))
    found = {one.kind: one for one in check(graph)}
    assert found[checks.FOREIGN_RECORD].place == "__recovery/engine.json"
    assert not found[checks.FOREIGN_RECORD].repairable
    with pytest.raises(RecoveryPendingError, match="engine.json"):
        repair(graph, dry_run=False, grace_seconds=0.0)
    assert graphs.file_hashes(Path(graph.root)) == before


def test_a_newer_graph_is_reported_and_never_repaired(graph: Storage) -> None:
    writes.orphan(graph, PERSON, ["orphan"])
    open_main(graph).update_schema_metadata({"omnigraph:internal_schema_version": "7"})
    before = graphs.file_hashes(Path(graph.root))
    assert checks.NEWER_STAMP in kinds(check(graph))
    with pytest.raises(UnsupportedManifestVersion, match="upgrade omnigraph first"):
        repair(graph, dry_run=False, grace_seconds=GRACE)
    assert graphs.file_hashes(Path(graph.root)) == before


def test_damage_is_reported_by_table_and_the_rest_is_still_checked(graph: Storage) -> None:
    shutil.rmtree(Path(graph.root) / layout.table_location(COMPANY))
    writes.orphan(graph, PERSON, ["orphan"])
    found = {(one.kind, one.place): one for one in check(graph)}
    assert set(found) == {(checks.UNREADABLE, COMPANY), (checks.UNPUBLISHED_HEAD, PERSON)}
    assert not found[checks.UNREADABLE, COMPANY].repairable


def test_a_row_count_that_is_wrong_is_reported(graph: Storage) -> None:
    writes.write(graph, {PERSON: ["b"]})
    row = VersionRow(PERSON, load(graph).version(PERSON), None, 99)
    publish(graph, Publish("main", new_ulid(), (row,)))
    found = [one for one in check(graph) if one.kind == checks.WRONG_ROW_COUNT]
    assert [one.place for one in found] == [PERSON]


@pytest.mark.long
def test_a_fork_of_no_branch_is_removed(graph: Storage) -> None:
    graph.dataset(layout.table_location(PERSON)).create_branch("gone")
    assert_mended(graph, checks.LEFTOVER_FORK)
    assert not (
        Path(graph.root) / layout.table_location(PERSON) / "tree" / "gone"
    ).exists() or not [
        *(Path(graph.root) / layout.table_location(PERSON) / "tree" / "gone").rglob("*.manifest")
    ]


# --- moved graphs ------------------------------------------------------------------------------


@pytest.mark.long
def test_a_moved_graph_is_written_to_on_every_branch_after_a_repair(tmp_path: Path) -> None:
    root = graphs.unpack("v2", "rich", tmp_path / "before")
    storage = Storage.at(str(root.rename(tmp_path / "moved graph #é")))
    branches = branch_names(storage)
    rows = {b: counts(storage, b) for b in branches}
    found = [one for one in check(storage) if one.kind == checks.MOVED_BRANCH]
    assert {one.branch for one in found} == {b for b in branches if b != "main"}
    with pytest.raises(OmnigraphError, match="moved or copied"):
        writes.plan(storage, [PERSON], branch="dev")
    repair(storage, dry_run=False, grace_seconds=GRACE)
    assert [one for one in check(storage) if one.kind == checks.MOVED_BRANCH] == []
    assert {b: counts(storage, b) for b in branches} == rows
    for branch in branches:
        for one in found:
            if one.branch == branch:
                storage.dataset(one.place, branch).to_table()  # as Lance opens it by itself
    planned = writes.plan(storage, [PERSON], branch="dev")
    assert commit(planned, []).skipped


def counts(storage: Storage, branch: str) -> dict[str, int]:
    return {key: entry.row_count for key, entry in load(storage, branch).tables.items()}


def test_rewriting_a_version_manifest_changes_its_base_paths_alone(tmp_path: Path) -> None:
    root = graphs.unpack("v2", "rich", tmp_path)
    for path in (root / "__manifest" / "tree" / "dev" / "_versions").iterdir():
        data = path.read_bytes()
        assert with_base_paths(data, {}, "x") == data
        elsewhere = with_base_paths(data, {0: "/somewhere/else"}, "x")
        assert bases(elsewhere) == ["/somewhere/else"]
        assert bases(data) == ["rich/__manifest"]
        assert without_bases(elsewhere) == without_bases(data)
        back = with_base_paths(elsewhere, {0: "rich/__manifest"}, "x")
        assert bases(back) == bases(data)
        assert without_bases(back) == without_bases(data)


def message_of(manifest: bytes) -> tuple[int, Manifest]:
    (position,) = struct.unpack("<Q", manifest[-16:-8])
    return position, Manifest.FromString(manifest[position + 4 : -16])


def bases(manifest: bytes) -> list[str]:
    return [base.path for base in message_of(manifest)[1].base_paths]


def without_bases(manifest: bytes) -> tuple[bytes, bytes, bytes]:
    """What precedes a version manifest's message, its other fields, and the footer."""
    position, message = message_of(manifest)
    del message.base_paths[:]
    return manifest[:position], message.SerializeToString(), manifest[-16:]


def test_a_version_manifest_of_a_newer_format_is_left_alone(tmp_path: Path) -> None:
    root = graphs.unpack("v2", "rich", tmp_path)
    path = next((root / "__manifest" / "tree" / "dev" / "_versions").iterdir())
    data = path.read_bytes()
    newer = data[:-8] + struct.pack("<HH", 9, 0) + data[-4:]
    with pytest.raises(CorruptManifestError, match=r"name\.manifest.*format 9\.0"):
        with_base_paths(newer, {0: "/x"}, "name.manifest")


@pytest.mark.parametrize("size", [0, 10, 100, -1])
def test_a_file_that_is_no_version_manifest_is_left_alone(size: int, tmp_path: Path) -> None:
    root = graphs.unpack("v2", "rich", tmp_path)
    path = next((root / "__manifest" / "tree" / "dev" / "_versions").iterdir())
    with pytest.raises(CorruptManifestError, match=r"OMNIGRAPH_CORRUPT_MANIFEST.*name\.manifest"):
        with_base_paths(path.read_bytes()[:size], {0: "/x"}, "name.manifest")


def test_a_graph_that_was_not_moved_needs_no_rewriting(graph: Storage) -> None:
    open_main(graph).create_branch("dev")
    assert not moved.is_moved(graph, "__manifest", "dev")
    assert moved.point_here(graph, "__manifest", "dev") == 0
    assert schema.agree(graph)
