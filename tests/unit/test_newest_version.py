"""The newest version of a local folder is found without a listing, or not said at all."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import lance
import pyarrow as pa
import pytest

from omnigraph_spark.storage import layout, store
from omnigraph_spark.storage.store import Storage, newest_version

ROWS = pa.table({"a": [1]})


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """One of a graph's own datasets, with five versions."""
    return make(tmp_path / layout.GRAPH_RUNS, 5)


def make(path: Path, versions: int) -> Path:
    for number in range(versions):
        lance.write_dataset(ROWS, str(path), mode="append" if number else "create")
    return path


def hint(path: Path) -> Path:
    return path / "_versions" / "latest_version_hint.json"


def version_file(path: Path, number: int) -> Path:
    return path / "_versions" / layout.v2_manifest_name(number)


def later(path: Path, seconds: float) -> None:
    """Say that a file or folder was changed later than it was."""
    nanoseconds = path.stat().st_mtime_ns + int(seconds * 1e9)
    os.utime(path, ns=(nanoseconds, nanoseconds))


def opened(path: Path) -> int:
    return int(Storage.at(str(path.parent)).dataset(path.name).version)


def test_the_version_of_the_last_commit_is_found(log: Path) -> None:
    assert newest_version(str(log)) == 5
    assert opened(log) == 5


def test_commits_that_left_no_hint_are_found(log: Path) -> None:
    hint(log).write_text(json.dumps({"version": 1}))
    assert newest_version(str(log)) == 5


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"version":"5"}', '{"version":true}', '{"version":-1}', '{"v":5}']
)
def test_a_hint_that_is_none_says_nothing(log: Path, text: str) -> None:
    hint(log).write_text(text)
    assert newest_version(str(log)) is None
    assert opened(log) == 5


def test_without_a_hint_or_a_dataset_nothing_is_said(log: Path) -> None:
    hint(log).unlink()
    assert newest_version(str(log)) is None
    assert opened(log) == 5
    assert newest_version(str(log.parent / "none")) is None


def test_a_hint_ahead_of_all_versions_says_nothing(log: Path) -> None:
    hint(log).write_text(json.dumps({"version": 6}))
    assert newest_version(str(log)) is None
    assert opened(log) == 5


def test_a_gap_that_a_cleanup_left_is_not_taken_for_the_end(log: Path) -> None:
    hint(log).write_text(json.dumps({"version": 2}))
    version_file(log, 3).unlink()
    later(log / "_versions", 1.1)
    assert newest_version(str(log)) is None
    assert opened(log) == 5


def test_a_folder_whose_time_does_not_move_is_listed(log: Path) -> None:
    later(log / "_versions", -60)
    assert newest_version(str(log)) is None
    assert opened(log) == 5


def test_a_version_from_before_the_folder_changed_is_not_trusted(log: Path) -> None:
    assert newest_version(str(log)) == 5
    later(log / "_versions", 1.1)
    assert newest_version(str(log)) is None


def test_a_dataset_that_was_made_anew_has_its_own_newest_version(log: Path) -> None:
    assert opened(log) == 5
    shutil.rmtree(log)
    make(log, 2)
    assert newest_version(str(log)) == 2
    assert opened(log) == 2


def test_a_branch_has_its_own_newest_version(log: Path) -> None:
    branch = lance.dataset(str(log)).create_branch("dev")
    lance.write_dataset(ROWS, branch, mode="append")
    graph = Storage.at(str(log.parent))
    assert newest_version(graph.dataset_uri(log.name, "dev")) == 6
    assert int(graph.dataset(log.name, "dev").version) == 6
    assert opened(log) == 5


def test_a_version_that_goes_before_it_is_opened_is_looked_for_again(
    log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "newest_version", lambda _: 4)
    version_file(log, 4).unlink()
    assert opened(log) == 5


def test_many_versions_behind_the_hint_are_listed(log: Path) -> None:
    for number in range(6, 80):
        version_file(log, number).hardlink_to(version_file(log, 5))
    hint(log).write_text(json.dumps({"version": 5}))
    assert newest_version(str(log)) is None
    hint(log).write_text(json.dumps({"version": 20}))
    assert newest_version(str(log)) == 79


def test_tables_are_opened_by_lance_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    location = layout.table_location("node:A")
    make(tmp_path / location, 2)
    monkeypatch.setattr(store, "newest_version", lambda _: 1)
    assert int(Storage.at(str(tmp_path)).dataset(location).version) == 2
