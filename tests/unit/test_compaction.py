"""The graph's own datasets stay small, and nothing is lost on the way."""

from __future__ import annotations

import datetime
import logging
import multiprocessing
import shutil
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest

from omnigraph_spark.errors import StorageError
from omnigraph_spark.history import commits, init, runs
from omnigraph_spark.history.init import compact_own_datasets, init_graph
from omnigraph_spark.manifest import rows, snapshot
from omnigraph_spark.storage import append_log, gathering, layout, store
from omnigraph_spark.storage.ids import new_ulid
from omnigraph_spark.storage.store import Storage
from tests.support import graphs
from tests.support.catalogs import publish_version
from tests.support.stores import Store

KEY = "node:Person"
NOW = datetime.datetime(2026, 1, 1)


@pytest.fixture
def graph(tmp_path: Path) -> Storage:
    storage = Storage.at(str(tmp_path / "graph"))
    init_graph(storage)
    return storage


def write(storage: Storage, key: str, version: int) -> int:
    """Do what a write does to the graph's own datasets; return the graph version."""
    published = publish_version(storage, key, version, actor="ada")
    commits.record_publish(storage, "main", *published, "ada")
    compact_own_datasets(storage, "main", published[1])
    return published[1]


def gather(storage: Storage, branch: str) -> None:
    """Compact a branch's `__manifest`, however few its fragments are."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(init, "_MANY_SMALL", 2)
        compact_own_datasets(storage, branch, 9)


def note(storage: Storage, count: int) -> list[str]:
    """Append rows to a log, one by one."""
    made = [new_ulid() for _ in range(count)]
    for run_id in made:
        row = {"run_id": run_id, "actor_id": "ada", "created_at": NOW}
        append_log.append(storage, runs.RUN_ACTORS, runs.RUN_ACTORS.rows([row]))
    return made


def fragments(storage: Storage, location: str) -> int:
    return len(storage.dataset(location).get_fragments())


# --- the manifest ------------------------------------------------------------------------------


@pytest.mark.long
def test_the_manifest_keeps_few_fragments_and_every_version(graph: Storage) -> None:
    seen = {write(graph, KEY, version): version for version in range(1, 50)}
    assert fragments(graph, layout.MANIFEST) <= append_log.COMPACT_EVERY
    head = graph.dataset(layout.MANIFEST).version
    assert [v["version"] for v in graph.dataset(layout.MANIFEST).versions()] == list(
        range(1, head + 1)
    )
    for graph_version, table_version in seen.items():
        assert snapshot.load(graph, version=graph_version).version(KEY) == table_version
    assert [c.manifest_version for c in commits.read_commits(graph)] == [1, *seen]


def test_nothing_is_done_but_at_some_versions_and_where_fragments_are_many(graph: Storage) -> None:
    for version in range(1, 6):
        publish_version(graph, KEY, version)
    before = graphs.file_hashes(Path(graph.root))
    compact_own_datasets(graph, "main", 9)  # five fragments
    assert graphs.file_hashes(Path(graph.root)) == before
    publish_version(graph, KEY, 6)
    before = graphs.file_hashes(Path(graph.root))
    for version in (1, 7, 8, 16):
        compact_own_datasets(graph, "main", version)
    assert graphs.file_hashes(Path(graph.root)) == before
    compact_own_datasets(graph, "main", 9)
    assert fragments(graph, layout.MANIFEST) == 1


def test_full_fragments_do_not_make_it_due(graph: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    for version in range(1, 8):
        publish_version(graph, KEY, version)
    monkeypatch.setattr(append_log, "SMALL_ROWS", 1)
    before = graphs.file_hashes(Path(graph.root))
    compact_own_datasets(graph, "main", 9)
    assert graphs.file_hashes(Path(graph.root)) == before


def test_a_manifest_with_auto_cleanup_settings_is_left_alone(tmp_path: Path) -> None:
    storage = Storage.at(str(graphs.unpack("v2", "rich", tmp_path)))
    assert store.keys(storage.dataset(layout.MANIFEST))
    before = graphs.file_hashes(Path(storage.root))
    gather(storage, "main")
    assert graphs.file_hashes(Path(storage.root)) == before


def test_a_branch_still_reads_the_same_after_its_parents_manifest_was_compacted(
    tmp_path: Path,
) -> None:
    storage = Storage.at(str(graphs.unpack("v2", "rich", tmp_path)))
    branches = ("dev", "feature/merged")
    before = {branch: snapshot.load(storage, branch) for branch in branches}
    store.strip_auto_cleanup(storage.dataset(layout.MANIFEST))
    fragments_before = fragments(storage, layout.MANIFEST)
    gather(storage, "main")
    assert fragments(storage, layout.MANIFEST) < fragments_before
    assert {branch: snapshot.load(storage, branch) for branch in branches} == before


def test_a_branchs_own_manifest_is_compacted_without_touching_its_parent(graph: Storage) -> None:
    for version in range(1, 4):
        write(graph, KEY, version)
    graph.dataset(layout.MANIFEST).create_branch("dev")
    before = snapshot.load(graph)
    main = graphs.file_hashes(Path(graph.root) / layout.MANIFEST / "data")
    gather(graph, "dev")
    assert len(graph.dataset(layout.MANIFEST, "dev").get_fragments()) == 1
    assert snapshot.load(graph, "dev").tables == before.tables
    assert snapshot.load(graph) == before
    assert graphs.file_hashes(Path(graph.root) / layout.MANIFEST / "data") == main


def test_a_branch_of_a_moved_graph_that_cant_be_compacted_is_left_and_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    root = graphs.unpack("v2", "rich", tmp_path)
    storage = Storage.at(str(root))
    store.strip_auto_cleanup(storage.dataset(layout.MANIFEST, "dev"))
    before = snapshot.load(storage, "dev")
    with caplog.at_level(logging.INFO):
        gather(storage, "dev")
    assert "was left as it is" in caplog.text
    assert snapshot.load(storage, "dev") == before


def test_compaction_of_a_graph_that_is_gone_is_no_error(tmp_path: Path) -> None:
    gather(Storage.at(str(tmp_path / "nothing")), "main")
    assert not (tmp_path / "nothing").exists()


def _write_many(root: str, name: str, count: int) -> list[int]:
    storage = Storage.at(root)
    return [write(storage, f"node:{name}", version) for version in range(1, count + 1)]


@pytest.mark.long
def test_publishes_go_on_while_others_compact(graph: Storage) -> None:
    workers, count = 3, 25
    with multiprocessing.get_context("spawn").Pool(workers) as pool:
        results = pool.starmap(_write_many, [(graph.root, f"W{n}", count) for n in range(workers)])
    assert snapshot.load(graph).floors == {f"node:W{n}": count for n in range(workers)}
    for n, versions in enumerate(results):
        for table_version, graph_version in enumerate(versions, 1):
            at = snapshot.load(graph, version=graph_version)
            assert at.version(f"node:W{n}") == table_version
    lineage = commits.read_commits(graph)
    assert [c.manifest_version for c in lineage[1:]] == sorted(v for r in results for v in r)
    rows = snapshot.read_rows(graph.dataset(layout.MANIFEST))
    assert rows.num_rows == workers * (count + 1)


def test_gathering_loses_against_a_publish_that_changed_one_of_the_fragments(
    graph: Storage,
) -> None:
    for version in range(1, 4):
        publish_version(graph, KEY, version)
    stale = graph.dataset(layout.MANIFEST)
    publish_version(graph, KEY, 4)
    with pytest.raises(OSError, match="conflict"):
        gathering.gathered(stale, append_log.SMALL_ROWS)
    assert snapshot.load(graph).version(KEY) == 4
    assert graph.dataset(layout.MANIFEST).version == stale.version + 1


def test_a_publish_from_below_a_gathering_loses_and_lands_the_next_time(graph: Storage) -> None:
    for version in range(1, 4):
        publish_version(graph, KEY, version)
    below = graph.dataset(layout.MANIFEST)
    gather(graph, "main")
    row = rows.to_arrow([rows.TableRow(KEY, layout.table_location(KEY))])
    merge = below.merge_insert("object_id").when_matched_update_all().conflict_retries(0)
    with pytest.raises(OSError, match="Too many concurrent writers"):
        merge.execute(row)
    publish_version(graph, KEY, 4)
    assert snapshot.load(graph).version(KEY) == 4


@pytest.mark.parametrize("is_new", [False, True])
def test_gathered_rows_and_their_columns_are_what_they_were(graph: Storage, is_new: bool) -> None:
    for version in range(1, 6):
        publish_version(graph, KEY, version)
    before = graph.dataset(layout.MANIFEST)
    if is_new:
        snapshot.forget(graph)
    gather(graph, "main")
    after = graph.dataset(layout.MANIFEST)
    assert (after.version, len(after.get_fragments())) == (before.version + 1, 1)
    assert after.schema.equals(before.schema, check_metadata=True)
    assert after.to_table().sort_by("object_id") == before.to_table().sort_by("object_id")


def test_a_column_that_is_not_known_here_is_gathered_too(graph: Storage) -> None:
    for version in range(1, 4):
        publish_version(graph, KEY, version)
    graph.dataset(layout.MANIFEST).add_columns({"newer": "object_id"})
    before = graph.dataset(layout.MANIFEST).to_table().sort_by("object_id")
    gather(graph, "main")
    assert fragments(graph, layout.MANIFEST) == 1
    assert graph.dataset(layout.MANIFEST).to_table().sort_by("object_id") == before


def test_rows_with_stable_ids_keep_them_and_only_one_version_is_made(tmp_path: Path) -> None:
    storage = Storage.at(str(tmp_path))
    storage.create_dataset("t", pa.table({"id": ["a", "b"]}), stable_row_ids=True)
    made = lance.write_dataset(pa.table({"id": ["c"]}), storage.dataset("t"), mode="append")
    made.delete("id = 'a'")
    before = made.to_table(with_row_id=True).to_pylist()
    version = made.version
    assert gathering.gathered(made, 8)
    after = storage.dataset("t")
    assert after.to_table(with_row_id=True).to_pylist() == before
    assert (after.version, fragments(storage, "t")) == (version + 1, 1)
    grown = lance.write_dataset(pa.table({"id": ["d"]}), after, mode="append")
    assert len({row["_rowid"] for row in grown.to_table(with_row_id=True).to_pylist()}) == 3


def test_what_a_publish_would_not_collide_with_is_not_gathered(tmp_path: Path) -> None:
    storage = Storage.at(str(tmp_path))
    storage.create_dataset("t", pa.table({"id": ["a"]}), stable_row_ids=False)
    for ids in (["b"], [*"0123456789"]):
        made = lance.write_dataset(pa.table({"id": ids}), storage.dataset("t"), mode="append")
    assert gathering.gathered(made, 8, newest=True)
    assert (storage.dataset("t").version, fragments(storage, "t")) == (made.version, 3)
    assert gathering.gathered(made, 8)
    assert fragments(storage, "t") == 2


@pytest.mark.long
def test_all_of_it_works_on_any_store(store: Store) -> None:
    storage = store.storage("graph")
    init_graph(storage)
    init_graph(storage)
    for version in range(1, 19):
        run_id = new_ulid()
        runs.start_run(
            storage,
            run_id=run_id,
            branch="main",
            base_version=1,
            base_commit_id=None,
            operation_hash=None,
            actor="ada",
        )
        write(storage, KEY, version)
        runs.finish_run(storage, run_id, runs.FAILED)
    assert snapshot.load(storage).version(KEY) == 18
    lineage = commits.read_commits(storage)
    assert len(lineage) == 19
    assert {c.actor_id for c in lineage[1:]} == {"ada"}
    assert runs.read_runs(storage)["status"].to_pylist() == ["running", "failed"] * 18
    for name in (layout.MANIFEST, layout.GRAPH_COMMITS, layout.GRAPH_RUNS):
        assert fragments(storage, name) <= append_log.COMPACT_EVERY
    with pytest.raises(StorageError, match="OMNIGRAPH_STORAGE"):
        storage.create_dataset(layout.GRAPH_RUNS, runs.RUNS.schema.empty_table())
    assert runs.read_runs(storage).num_rows == 36


# --- the logs ----------------------------------------------------------------------------------


def test_a_log_keeps_few_fragments_and_every_row(graph: Storage) -> None:
    made = note(graph, 100)
    assert fragments(graph, layout.GRAPH_RUN_ACTORS) <= append_log.COMPACT_EVERY
    rows = append_log.read(graph, runs.RUN_ACTORS)
    assert rows is not None
    assert rows["run_id"].to_pylist() == made


def test_full_fragments_are_gathered_now_and_then(
    graph: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(append_log, "SMALL_ROWS", 20)
    monkeypatch.setattr(append_log, "GATHER_EVERY", 112)
    made = note(graph, 80)
    full = [f.count_rows() for f in graph.dataset(layout.GRAPH_RUN_ACTORS).get_fragments()]
    assert len([count for count in full if count >= 20]) > 1
    made += note(graph, 30)
    gathered = graph.dataset(layout.GRAPH_RUN_ACTORS)
    assert max(f.count_rows() for f in gathered.get_fragments()) >= 80
    assert sorted(gathered.to_table()["run_id"].to_pylist()) == sorted(made)


def test_the_newest_rows_are_found_without_reading_full_fragments(
    graph: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(append_log, "SMALL_ROWS", 10)
    made = note(graph, 100)
    rows = append_log.read(graph, runs.RUN_ACTORS, newest=5)
    assert rows is not None
    assert rows.num_rows < 40
    assert set(made[-5:]) <= set(rows["run_id"].to_pylist())


def test_rows_appended_during_a_compaction_are_among_the_newest(graph: Storage) -> None:
    """They stand before the compacted fragment, since it takes its place when it is committed."""
    from lance.optimize import Compaction

    old = note(graph, 5)
    dataset = graph.dataset(layout.GRAPH_RUN_ACTORS)
    plan = Compaction.plan(dataset, {"target_rows_per_fragment": append_log.SMALL_ROWS})
    done = [task.execute(dataset) for task in plan.tasks]
    during = note(graph, 1)
    Compaction.commit(dataset, done)
    rows = append_log.read(graph, runs.RUN_ACTORS, newest=5)
    assert rows is not None
    assert rows["run_id"].to_pylist() == during + old


def test_old_versions_of_a_log_are_dropped(graph: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(append_log, "_RETENTION", datetime.timedelta(0))
    made = note(graph, 130)
    dataset = graph.dataset(layout.GRAPH_RUN_ACTORS)
    assert len(dataset.versions()) < 64
    files = list((Path(graph.root) / layout.GRAPH_RUN_ACTORS / "data").iterdir())
    assert len(files) < 80
    assert sorted(dataset.to_table()["run_id"].to_pylist()) == sorted(made)


def test_versions_that_somebody_may_be_reading_are_not_dropped(graph: Storage) -> None:
    note(graph, 70)
    dataset = graph.dataset(layout.GRAPH_RUN_ACTORS)
    assert len(dataset.versions()) == dataset.version


@pytest.mark.long
@pytest.mark.parametrize("moved", [False, True])
def test_a_branch_of_the_lineage_keeps_the_files_that_it_shares(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moved: bool
) -> None:
    """Lance's cleanup would delete them in a moved graph, whose branches name an old path."""
    monkeypatch.setattr(append_log, "_RETENTION", datetime.timedelta(0))
    root = graphs.unpack("v2", "rich", tmp_path)
    if moved:
        root = Path(shutil.move(root, tmp_path / "elsewhere"))
    storage = Storage.at(str(root))
    before = {b: commits.read_commits(storage, b) for b in ("dev", "feature/merged")}
    files = {path.name for path in (root / layout.GRAPH_COMMITS / "data").iterdir()}
    for version in range(1, 70):
        write(storage, "node:Added", version)
    assert {b: commits.read_commits(storage, b) for b in before} == before
    assert files <= {path.name for path in (root / layout.GRAPH_COMMITS / "data").iterdir()}
    from omnigraph_spark.storage import relocation

    for branch, lineage in before.items():
        raw = relocation.open_for_reading(storage, layout.GRAPH_COMMITS, branch).to_table()
        assert set(raw["graph_commit_id"].to_pylist()) == {c.graph_commit_id for c in lineage}


def test_a_reader_that_meets_the_dropping_of_old_versions_looks_again(
    graph: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = note(graph, 12)
    real = append_log._scan
    stale = graph.dataset(layout.GRAPH_RUN_ACTORS)

    def scan_after_a_drop(dataset: Any, *args: Any) -> Any:
        if dataset.version == stale.version:
            fresh = graph.dataset(layout.GRAPH_RUN_ACTORS)
            fresh.optimize.compact_files()
            fresh.checkout_latest()
            fresh.cleanup_old_versions(older_than=datetime.timedelta(0))
        return real(dataset, *args)

    monkeypatch.setattr(append_log, "_scan", scan_after_a_drop)
    rows = append_log.read(graph, runs.RUN_ACTORS)
    assert rows is not None
    assert rows["run_id"].to_pylist() == made


def test_a_compaction_that_fails_leaves_the_append_done(
    graph: Storage, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: Any) -> None:
        raise OSError("Retryable commit conflict for version 17")

    monkeypatch.setattr(append_log, "compact", fail)
    with caplog.at_level(logging.INFO):
        made = note(graph, 20)
    assert "was left as it is" in caplog.text
    rows = append_log.read(graph, runs.RUN_ACTORS)
    assert rows is not None
    assert rows["run_id"].to_pylist() == made


@pytest.mark.long
def test_bytes_and_fragments_do_not_grow_with_the_number_of_publishes(graph: Storage) -> None:
    root = Path(graph.root)

    def size() -> int:
        return sum(path.stat().st_size for path in root.rglob("*") if path.is_file())

    sizes = []
    for version in range(1, 145):
        write(graph, KEY, version)
        if version % 48 == 0:
            sizes.append(size())
    first, second = sizes[1] - sizes[0], sizes[2] - sizes[1]
    assert second <= 1.1 * first
    assert second / 48 <= 120_000
