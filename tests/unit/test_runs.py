"""The run registry: a diary of writes that never stands in a write's way."""

from __future__ import annotations

import logging
import multiprocessing
import types
from pathlib import Path

import pyarrow as pa
import pytest

from omnigraph_spark.history import runs
from omnigraph_spark.storage import append_log, layout, store
from omnigraph_spark.storage.ids import new_ulid
from omnigraph_spark.storage.store import Storage
from tests.support import graphs


@pytest.fixture
def storage(tmp_path: Path) -> Storage:
    return Storage.at(str(tmp_path / "graph"))


def start(storage: Storage, run_id: str, actor: str | None = None) -> None:
    runs.start_run(
        storage,
        run_id=run_id,
        branch="main",
        base_version=4,
        base_commit_id="01BASE",
        operation_hash="job/7",
        actor=actor,
    )


def test_a_run_has_a_row_per_change_of_status(storage: Storage) -> None:
    run_id = new_ulid()
    start(storage, run_id, "ada")
    runs.finish_run(storage, run_id, runs.PUBLISHED, "01PUBLISHED")
    first, last = runs.read_runs(storage).to_pylist()
    expected = {
        "run_id": run_id,
        "target_branch": "main",
        "run_branch": "main",
        "base_snapshot_id": "01BASE",
        "base_manifest_version": 4,
        "operation_hash": "job/7",
        "status": "running",
        "published_snapshot_id": None,
        "actor_id": "ada",
    }
    for name, value in expected.items():
        assert first[name] == value
    assert first["created_at"] == first["updated_at"] == last["created_at"]
    assert last["updated_at"] >= first["updated_at"]
    changed = {"status": "published", "published_snapshot_id": "01PUBLISHED"}
    for name, value in {**expected, **changed}.items():
        assert last[name] == value


@pytest.mark.parametrize("status", [runs.FAILED, runs.ABORTED])
def test_a_run_that_came_to_nothing_says_so(storage: Storage, status: str) -> None:
    start(storage, run_id := new_ulid())
    runs.finish_run(storage, run_id, status)
    last = runs.read_runs(storage).to_pylist()[-1]
    assert (last["status"], last["published_snapshot_id"], last["actor_id"]) == (status, None, None)


def test_the_registry_is_made_by_the_first_run_in_the_format_of_the_engines(
    storage: Storage, tmp_path: Path
) -> None:
    theirs = Storage.at(str(graphs.unpack("v1", "social", tmp_path)))
    start(storage, new_ulid(), "ada")
    for name in (layout.GRAPH_RUNS, layout.GRAPH_RUN_ACTORS):
        ours = storage.dataset(name)
        assert ours.schema.equals(theirs.dataset(name).schema)
        assert ours.data_storage_version == "2.2"
        assert ours.config() == {}
        assert all(len(p.stem) == 20 for p in Path(ours.uri, "_versions").glob("*.manifest"))


def test_the_engines_runs_are_read_and_continued(tmp_path: Path) -> None:
    storage = Storage.at(str(graphs.unpack("v1", "social", tmp_path)))
    before = runs.read_runs(storage)
    assert before["status"].to_pylist() == ["running", "published"] * 3
    start(storage, run_id := new_ulid(), "ada")
    runs.finish_run(storage, run_id, runs.PUBLISHED, "01PUBLISHED")
    after = runs.read_runs(storage)
    assert after.slice(0, 6).equals(before)
    assert after["run_id"].to_pylist()[6:] == [run_id, run_id]
    assert store.keys(storage.dataset(layout.GRAPH_RUNS)) == []


def test_a_graph_without_registry_has_no_runs(storage: Storage) -> None:
    found = runs.read_runs(storage)
    assert found.num_rows == 0
    assert found.schema.equals(runs.RUNS.schema.append(pa.field("actor_id", pa.utf8())))
    assert not Path(storage.root).exists()


def test_an_end_is_noted_once(storage: Storage) -> None:
    start(storage, run_id := new_ulid())
    runs.finish_run(storage, run_id, runs.ABORTED)
    runs.finish_run(storage, run_id, runs.ABORTED)
    assert runs.read_runs(storage)["status"].to_pylist() == ["running", "aborted"]


def test_an_end_finds_its_start_far_behind_others(
    storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(append_log, "SMALL_ROWS", 1)
    start(storage, run_id := new_ulid())
    for _ in range(40):
        start(storage, new_ulid())
    runs.finish_run(storage, run_id, runs.FAILED)
    last = runs.read_runs(storage).to_pylist()[-1]
    assert (last["run_id"], last["status"], last["operation_hash"]) == (run_id, "failed", "job/7")


def test_an_end_without_a_start_is_left_out_and_logged(
    storage: Storage, caplog: pytest.LogCaptureFixture
) -> None:
    runs.finish_run(storage, "01NOSUCH", runs.PUBLISHED, "01X")
    assert runs.read_runs(storage).num_rows == 0
    assert "01NOSUCH" in caplog.text


@pytest.mark.long
def test_a_registry_that_cant_be_written_is_a_warning_with_its_cause(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def again(*_: float, **__: float) -> None:
        raise AssertionError("a failure that isn't a rival's was tried again")

    monkeypatch.setattr(append_log, "backoff", types.SimpleNamespace(growing=again))
    (tmp_path / "graph").mkdir()
    (tmp_path / "graph" / layout.GRAPH_RUNS).write_text("not a folder")
    with caplog.at_level(logging.WARNING):
        start(Storage.at(str(tmp_path / "graph")), "01RUN")
        runs.finish_run(Storage.at(str(tmp_path / "graph")), "01RUN", runs.FAILED)
    assert [record.levelname for record in caplog.records] == ["WARNING", "WARNING"]
    assert "the start of run 01RUN was not noted" in caplog.text
    assert "OMNIGRAPH_STORAGE" in caplog.text


def test_a_damaged_registry_is_a_warning_too(
    storage: Storage, caplog: pytest.LogCaptureFixture
) -> None:
    start(storage, "01RUN")
    for path in Path(storage.root, layout.GRAPH_RUNS, "_versions").iterdir():
        path.write_bytes(b"garbage")
    start(storage, "01OTHER")
    runs.finish_run(storage, "01RUN", runs.FAILED)
    assert "the start of run 01OTHER was not noted" in caplog.text
    assert "the end of run 01RUN was not noted" in caplog.text


def _write(root: str, count: int) -> list[str]:
    storage = Storage.at(root)
    made = [new_ulid() for _ in range(count)]
    for run_id in made:
        start(storage, run_id, run_id)
        runs.finish_run(storage, run_id, runs.PUBLISHED, run_id)
    return made


@pytest.mark.long
def test_many_processes_lose_no_row_from_the_very_first_on(storage: Storage) -> None:
    with multiprocessing.get_context("spawn").Pool(4) as pool:
        results = pool.starmap(_write, [(storage.root, 15)] * 4)
    found: dict[str, list[str]] = {}
    for row in runs.read_runs(storage).to_pylist():
        assert row["actor_id"] == row["run_id"]
        found.setdefault(row["run_id"], []).append(row["status"])
    assert found == {run_id: ["running", "published"] for ids in results for run_id in ids}
