"""Cleanup without Spark: what stays stays readable, what goes is named, and the space is back."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest

from omnigraph_spark import _faults
from omnigraph_spark.errors import (
    OmnigraphError,
    OptionError,
    StorageError,
    UnsupportedManifestVersion,
    VersionNotFoundError,
)
from omnigraph_spark.history import commits
from omnigraph_spark.maintenance.cleanup import WEEK, Cleaned, cleanup
from omnigraph_spark.maintenance.optimize import create_index, optimize, run_here
from omnigraph_spark.manifest.snapshot import Snapshot, load, open_main
from omnigraph_spark.merge import restore
from omnigraph_spark.read.plan import read_table
from omnigraph_spark.refs import refs, tags
from omnigraph_spark.storage import layout
from omnigraph_spark.storage.store import Storage
from omnigraph_spark.write.commit.commit import commit
from omnigraph_spark.write.plan import Settings
from omnigraph_spark.write.tasks import packed
from tests.format_checker import check_graph
from tests.support import branches, graphs
from tests.support.writes import (
    COMPANY,
    KNOWS,
    PERSON,
    Died,
    data_files,
    die,
    ids,
    new_graph,
    orphan,
    plan,
    records,
    stage_rows,
    write,
    write_options,
)

QUICK = Settings(orphan_grace_seconds=0.15)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    storage = new_graph(Storage.at(str(tmp_path_factory.mktemp("made") / "g")))
    for number in range(4):
        write(storage, {PERSON: [f"p{number}"]})
    write(storage, {KNOWS: ["k"]})
    return Path(storage.root)


@pytest.fixture
def graph(made: Path, tmp_path: Path) -> Storage:
    """A graph of three tables, `node:Person` in five versions."""
    return Storage.at(str(shutil.copytree(made, tmp_path / "g")))


@pytest.fixture(autouse=True)
def disarmed() -> Iterator[None]:
    yield
    _faults.disarm()


def later(days: float = 8) -> datetime:
    return datetime.now(timezone.utc) + timedelta(days=days)


def clean(storage: Storage, days: float = 8, *, dry_run: bool = False) -> Cleaned:
    """Clean up as another writer would `days` from now."""
    return cleanup(storage, dry_run=dry_run, now=later(days))


def size(storage: Storage) -> int:
    return sum(info.size for info in storage.list(""))


def table_versions(storage: Storage, key: str, branch: str = "main") -> list[int]:
    return refs.kept_versions(storage, layout.table_location(key), branch)


def rows(storage: Storage, snapshot: Snapshot) -> dict[str, list[str]]:
    return {
        key: sorted(read_table(storage, snapshot, key)["id"].to_pylist()) for key in snapshot.tables
    }


@pytest.mark.long
def test_old_versions_go_with_their_files_and_the_head_stays(graph: Storage) -> None:
    optimize(graph, "main", None, run_here, settings=QUICK)
    head = load(graph)
    expected = rows(graph, head)
    before, files = size(graph), data_files(graph, PERSON)
    hashes = graphs.file_hashes(Path(graph.root))
    told = clean(graph, dry_run=True)
    assert graphs.file_hashes(Path(graph.root)) == hashes
    done = clean(graph)
    assert (done.versions, done.files, done.bytes) == (told.versions, told.files, told.bytes)
    assert done.bytes >= before - size(graph) > before / 2  # less what the cleanup itself leaves
    assert rows(graph, load(graph)) == expected
    assert load(graph).graph_version == head.graph_version + 1  # the fence
    assert table_versions(graph, PERSON) == [head.version(PERSON)]
    assert len(data_files(graph, PERSON)) <= 2 < len(files)
    assert {one.place: one.versions for one in done.datasets}[PERSON] >= 5
    assert all(one.skipped is None for one in done.datasets)
    assert records(graph) == []
    wrong = check_graph(graph.root, moved=True)
    assert [one for one in wrong if not one.endswith("isn't there")] == []
    write(graph, {PERSON: ["after"]})
    assert "after" in ids(graph, PERSON)
    assert clean(graph, 0.5).versions == 0


def test_what_a_cleanup_took_is_a_typed_error(graph: Storage) -> None:
    old = load(graph, version=4)
    optimize(graph, "main", None, run_here, settings=QUICK)
    clean(graph)
    with pytest.raises(VersionNotFoundError, match="OMNIGRAPH_VERSION_NOT_FOUND"):
        load(graph, version=4)
    with pytest.raises(VersionNotFoundError, match="OMNIGRAPH_VERSION_NOT_FOUND"):
        refs.resolve(graph, version_as_of="4")
    with pytest.raises(VersionNotFoundError, match="OMNIGRAPH_VERSION_NOT_FOUND"):
        restore.restore(graph, write_options(graph, "overwrite"), "4")
    with pytest.raises(StorageError, match="OMNIGRAPH_STORAGE"):
        read_table(graph, old, PERSON)


def test_a_reader_whose_open_dataset_loses_its_files_gets_a_typed_error(graph: Storage) -> None:
    from omnigraph_spark.storage.lance_errors import translated

    entry = load(graph).entry(PERSON)
    reader = graph.dataset(entry.location, None, entry.table_version)
    optimize(graph, "main", None, run_here, settings=QUICK)
    clean(graph)
    with pytest.raises(StorageError, match="OMNIGRAPH_STORAGE"), translated("Reading"):
        reader.to_table()


def test_nothing_under_a_week_goes_without_force_and_nothing_under_a_day_with_it(
    graph: Storage,
) -> None:
    optimize(graph, "main", None, run_here, settings=QUICK)
    with pytest.raises(OptionError, match="OMNIGRAPH_OPTION"):
        cleanup(graph, timedelta(days=6), dry_run=False, now=later(30))
    with pytest.raises(OptionError, match="OMNIGRAPH_OPTION"):
        cleanup(graph, keep=0, dry_run=False)
    assert clean(graph, 6.9).versions == 0
    zero = timedelta(0)
    assert cleanup(graph, zero, force=True, dry_run=False, now=later(0.9)).files == 0
    long = 10_000.0  # ten timeouts are 28 hours
    again = cleanup(
        graph, zero, force=True, dry_run=False, now=later(1.1), commit_timeout_seconds=long
    )
    assert again.files == 0
    assert cleanup(graph, zero, force=True, dry_run=False, now=later(1.1)).versions > 0
    assert ids(graph, PERSON) == ["first", "p0", "p1", "p2", "p3"]


def test_the_version_that_was_newest_at_the_cutoff_stays(graph: Storage) -> None:
    version = load(graph).graph_version
    at_cutoff = rows(graph, load(graph))
    old = datetime.now(timezone.utc).timestamp() - 20 * 86_400
    for info in graph.list(""):
        os.utime(graph.uri(info.path), (old, old))
    write(graph, {PERSON: ["today"]}, "overwrite")
    done = cleanup(graph, WEEK, dry_run=False)
    assert done.versions > 0
    assert rows(graph, load(graph, version=version)) == at_cutoff
    with pytest.raises(VersionNotFoundError):
        load(graph, version=version - 1)


def test_as_many_newest_versions_stay_as_are_asked_for(graph: Storage) -> None:
    newest = load(graph).graph_version
    expected = {v: rows(graph, load(graph, version=v)) for v in range(newest - 2, newest + 1)}
    cleanup(graph, keep=3, dry_run=False, now=later())
    assert {v: rows(graph, load(graph, version=v)) for v in expected} == expected
    with pytest.raises(VersionNotFoundError):
        load(graph, version=newest - 3)


# --- rule 27 -----------------------------------------------------------------------------------


def test_the_published_version_stays_under_an_unpublished_head(graph: Storage) -> None:
    orphan(graph, PERSON, ["ghost"])
    orphan(graph, PERSON, ["ghost2"])
    expected = ids(graph, PERSON)
    clean(graph)
    assert ids(graph, PERSON) == expected
    write(graph, {PERSON: ["after"]})
    assert ids(graph, PERSON) == sorted([*expected, "after"])


@pytest.mark.long
def test_versions_that_a_branch_inherits_without_a_fork_stay(graph: Storage) -> None:
    branches.make(graph, "dev")
    expected = rows(graph, load(graph, "dev"))
    write(graph, {PERSON: ["x"], COMPANY: ["y"], KNOWS: ["z"]}, "overwrite")
    optimize(graph, "main", None, run_here, settings=QUICK)
    done = clean(graph)
    assert done.versions > 0
    assert rows(graph, load(graph, "dev")) == expected
    assert branches.write_ids(graph, "dev", PERSON, ["more"])
    assert branches.ids_at(graph, PERSON, "dev") == sorted([*expected[PERSON], "more"])


@pytest.mark.long
def test_files_that_a_fork_takes_from_its_parent_stay_also_after_a_move(
    graph: Storage, tmp_path: Path
) -> None:
    create_index(graph, "main", PERSON, "id", "BTREE", None, QUICK)
    branches.make(graph, "dev")
    branches.write_ids(graph, "dev", PERSON, ["d"])
    branches.make(graph, "dev2", "dev")
    branches.write_ids(graph, "dev2", PERSON, ["e"])
    write(graph, {PERSON: ["x"]}, "overwrite")
    expected = {name: rows(graph, load(graph, name)) for name in ("main", "dev", "dev2")}
    moved = Storage.at(str(shutil.copytree(graph.root, tmp_path / "elsewhere" / "h")))
    for storage in (graph, moved):
        assert clean(storage).versions > 0
        assert {name: rows(storage, load(storage, name)) for name in expected} == expected
    shutil.rmtree(graph.root)
    assert {name: rows(moved, load(moved, name)) for name in expected} == expected


def test_a_tagged_version_stays_whole_until_the_tag_is_deleted(graph: Storage) -> None:
    version = load(graph).graph_version
    expected = rows(graph, load(graph))
    tags.create_tag(graph, "v1", refs.named(graph, "main"))
    write(graph, {PERSON: ["x"], KNOWS: ["y"]}, "overwrite")
    write(graph, {PERSON: ["z"]}, "overwrite")
    clean(graph)
    assert rows(graph, load(graph, *refs.named(graph, "v1"))) == expected
    tags.delete_tag(graph, "v1")
    clean(graph)
    with pytest.raises(VersionNotFoundError):
        load(graph, version=version)
    assert ids(graph, PERSON) == ["z"]


def test_a_deleted_branch_gives_back_what_only_it_needed(graph: Storage) -> None:
    branches.make(graph, "dev")
    write(graph, {PERSON: ["x"]}, "overwrite")
    clean(graph)
    kept = data_files(graph, PERSON)
    branches.remove(graph, "dev")
    clean(graph)
    assert len(data_files(graph, PERSON)) == 1 < len(kept)


@pytest.mark.long
def test_what_two_branches_are_merged_by_stays(graph: Storage) -> None:
    branches.make(graph, "dev")
    base = branches.write_ids(graph, "dev", PERSON, ["d0"])
    merged = commits.head(graph, "dev")
    assert merged is not None
    planned = replace(plan(graph, [PERSON]), merged_parent=merged.graph_commit_id)
    commit(planned, stage_rows(planned, {PERSON: ["d0"]}))
    expected = rows(graph, load(graph, "dev", base))
    for number in range(1, 4):
        branches.write_ids(graph, "dev", PERSON, [f"d{number}"])
        write(graph, {PERSON: [f"m{number}"]})
    assert clean(graph).versions > 0
    assert rows(graph, load(graph, "dev", base)) == expected
    with pytest.raises(VersionNotFoundError):
        load(graph, "dev", base + 1)


# --- writers, dead and alive -----------------------------------------------------------------------


def test_staged_files_of_a_running_write_stay_and_those_of_failed_tasks_go(graph: Storage) -> None:
    dead = plan(graph, [PERSON])
    stage_rows(dead, {PERSON: ["never"]})
    files = data_files(graph, PERSON)
    assert clean(graph, 6).files == 0
    assert data_files(graph, PERSON) == files
    clean(graph, 8)
    assert len(data_files(graph, PERSON)) == len(files) - 1
    assert ids(graph, PERSON) == ["first", "p0", "p1", "p2", "p3"]


def test_what_a_large_task_of_a_dead_upsert_left_beside_its_message_goes(
    graph: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packed, "MOST_IN_A_MESSAGE", 0)
    before = data_files(graph, PERSON)
    (left,) = stage_rows(plan(graph, [PERSON], writeMode="delete"), {PERSON: ["p1"]})
    assert data_files(graph, PERSON) == before | {left.beside.rsplit("/", 1)[-1]}
    clean(graph, 6)
    assert graph.head(left.beside) is not None
    clean(graph, 8)
    assert graph.head(left.beside) is None
    assert ids(graph, PERSON) == ["first", "p0", "p1", "p2", "p3"]


def test_messages_that_a_dead_bulk_write_staged_go(graph: Storage) -> None:
    graph.put(f"{layout.STAGING}/01ARZ3NDEKTSV4RRFFQ69G5FAV/x.json", b"[]")
    assert clean(graph, 6).staged == 0
    assert clean(graph, 8).staged == 1
    assert graph.list(layout.STAGING) == []


def test_a_fork_of_a_branch_that_is_gone_goes(graph: Storage) -> None:
    main = graph.dataset(layout.table_location(PERSON))
    main.create_branch("gone", load(graph).version(PERSON))
    assert clean(graph, 6).forks == ()
    assert clean(graph, 8).forks == (f"{PERSON}/gone",)
    assert branches.forks_of(graph, PERSON) == []
    assert ids(graph, PERSON) == ["first", "p0", "p1", "p2", "p3"]


def test_a_write_between_the_looking_and_the_removing_keeps_its_files(graph: Storage) -> None:
    optimize(graph, "main", None, run_here, settings=QUICK)
    whole = data_files(graph, PERSON)

    class Rival(Storage):
        def delete_many(self, paths: Sequence[str]) -> None:
            if any(path.endswith(".lance") for path in paths) and not done:
                done.append(paths[0])
                write(graph, {PERSON: ["rival"]})
            super().delete_many(paths)

    done: list[str] = []
    cleanup(Rival(graph.root), dry_run=False, now=later())
    assert done
    assert len(whole) > 2
    assert ids(graph, PERSON) == ["first", "p0", "p1", "p2", "p3", "rival"]


def test_a_version_that_is_restored_while_it_is_removed_keeps_its_files(graph: Storage) -> None:
    old = load(graph).graph_version
    expected = rows(graph, load(graph))
    write(graph, {PERSON: ["x"], KNOWS: ["y"]}, "overwrite")
    restored: list[int] = []

    class Rival(Storage):
        def delete_many(self, paths: Sequence[str]) -> None:
            if not restored:
                asked = write_options(graph, "overwrite")
                restored.append(restore.restore(graph, asked, str(old)).graph_version)
            super().delete_many(paths)

    cleanup(Rival(graph.root), dry_run=False, now=later())
    assert rows(graph, load(graph, version=restored[0])) == expected


def test_a_cleanup_that_dies_leaves_a_sound_graph_and_the_next_one_takes_the_rest(
    graph: Storage,
) -> None:
    optimize(graph, "main", None, run_here, settings=QUICK)
    expected = rows(graph, load(graph))
    told = clean(graph, dry_run=True)
    for allowed in (0, 3, 12, 30):
        left = [allowed]

        class Dying(Storage):
            def delete_many(self, paths: Sequence[str], left: list[int] = left) -> None:
                for path in paths:
                    if left[0] == 0:
                        die()
                    left[0] -= 1
                    super().delete(path)

        with pytest.raises(Died):
            cleanup(Dying(graph.root), dry_run=False, now=later())
        assert rows(graph, load(graph)) == expected
    done = clean(graph)
    assert 0 < done.files < told.files
    assert rows(graph, load(graph)) == expected
    clean(graph)  # the version under the one that the first has left
    assert clean(graph).files == 0


def test_a_dataset_that_cannot_be_read_is_left_alone_and_named(graph: Storage) -> None:
    optimize(graph, "main", None, run_here, settings=QUICK)
    folder = layout.table_location(COMPANY)
    (info, *_) = graph.list(f"{folder}/_versions")
    graph.put(f"{folder}/_versions/{layout.v2_manifest_name(7)}", b"damaged")
    before = {one.path for one in graph.list(folder)}
    done = clean(graph)
    assert {one.place for one in done.datasets if one.skipped} == {COMPANY}
    assert {one.path for one in graph.list(folder)} == before
    assert done.versions > 0
    assert info.size


def test_a_batch_that_was_written_stays_known_after_optimize_and_cleanup(graph: Storage) -> None:
    batch = {"txnAppId": "stream", "txnVersion": "7"}
    write(graph, {PERSON: ["once"]}, **batch)
    write(graph, {PERSON: ["x"]})
    optimize(graph, "main", None, run_here, settings=QUICK)
    clean(graph)
    assert write(graph, {PERSON: ["once"]}, **batch).skipped
    assert ids(graph, PERSON).count("once") == 1


# --- graphs of the engine --------------------------------------------------------------------------


@pytest.mark.long
@pytest.mark.parametrize(
    ("generation", "name", "there"),
    [g for g in graphs.ALL_GRAPHS if g[0] != "newer"],
)
def test_a_graph_of_the_engine_reads_the_same_after_a_cleanup(
    generation: str, name: str, there: tuple[str, ...], tmp_path: Path
) -> None:
    storage = Storage.at(str(graphs.unpack(generation, name, tmp_path)))
    names = branches.names(storage)
    expected = {branch: everything(storage, branch) for branch in names}
    try:
        clean(storage, 400)
    except OmnigraphError as error:
        pytest.fail(f"{generation}/{name}: {error}")
    assert {branch: everything(storage, branch) for branch in names} == expected
    assert set(there) <= set(names)


def test_a_graph_of_a_newer_engine_is_not_touched(tmp_path: Path) -> None:
    storage = Storage.at(str(graphs.unpack("newer", "social", tmp_path)))
    open_main(storage).update_schema_metadata({"omnigraph:internal_schema_version": "7"})
    hashes = graphs.file_hashes(Path(storage.root))
    for dry_run in (True, False):
        with pytest.raises(UnsupportedManifestVersion, match="OMNIGRAPH_UNSUPPORTED_MANIFEST"):
            clean(storage, 400, dry_run=dry_run)
    with pytest.raises(UnsupportedManifestVersion, match="OMNIGRAPH_UNSUPPORTED_MANIFEST"):
        optimize(storage, "main", None, run_here, settings=QUICK)
    assert graphs.file_hashes(Path(storage.root)) == hashes


def everything(storage: Storage, branch: str) -> dict[str, list[str]]:
    snapshot = load(storage, branch)
    return {
        key: sorted(map(str, read_table(storage, snapshot, key).to_pylist()))
        for key in snapshot.tables
    }
