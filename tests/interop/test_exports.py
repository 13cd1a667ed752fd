"""Every branch of every graph that the engine wrote reads as the engine itself exports it.

The fixtures were written below a root that no longer exists, so each unpacked graph is a moved one.
Here the reader runs without Spark; `test_exports_spark.py` reads through Spark.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from omnigraph_spark.manifest import snapshot
from omnigraph_spark.read import plan
from omnigraph_spark.storage.store import Storage
from tests.support import exports, graphs

BRANCHES = [
    pytest.param(generation, graph, branch, id=f"{generation}-{graph}-{branch}")
    for generation, graph, branches in graphs.ALL_GRAPHS
    for branch in branches
]


def _check(storage: Storage, generation: str, graph: str, branch: str) -> None:
    """Compare every table and the whole-graph frame of a branch with the export."""
    export = graphs.export_of(generation, graph, branch)
    pinned = snapshot.load(storage, branch)
    assert {*export.tables} <= {*pinned.tables}
    for key, entry in pinned.tables.items():
        expected = exports.export_rows(export, key)
        assert exports.table_rows(exports.read_frame(storage, pinned, table=key)) == expected
        assert plan.read_table(storage, pinned, key).num_rows == len(expected) == entry.row_count
    whole = exports.whole_graph_tables(exports.read_frame(storage, pinned))
    assert whole == exports.filled_tables(export)


@pytest.mark.parametrize(("generation", "graph", "branch"), BRANCHES)
def test_a_branch_reads_as_the_engine_exports_it(
    tmp_path: Path, generation: str, graph: str, branch: str
) -> None:
    root = graphs.unpack(generation, graph, tmp_path)
    before = graphs.file_hashes(root)
    _check(Storage.at(str(root)), generation, graph, branch)
    assert graphs.file_hashes(root) == before, "reading changed a file"


@pytest.mark.parametrize(("generation", "graph", "branch"), BRANCHES)
def test_a_moved_graph_reads_the_same_from_any_working_directory(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    generation: str,
    graph: str,
    branch: str,
) -> None:
    root = graphs.unpack(generation, graph, tmp_path / "first")
    _check(Storage.at(str(root)), generation, graph, branch)
    moved = root.rename(tmp_path / "an other é place")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    _check(Storage.at(str(moved)), generation, graph, branch)


def test_a_copy_reads_its_own_files_and_not_those_of_the_graph_it_was_copied_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bases on record are relative to where the engine ran; from there they'd lead back."""
    import shutil

    original = graphs.unpack("v2", "rich", tmp_path)
    copy = Path(shutil.copytree(original, tmp_path / "copy"))
    for data in (original / "nodes").rglob("*.lance"):
        data.write_bytes(b"not a Lance file")
    monkeypatch.chdir(tmp_path)
    _check(Storage.at(str(copy)), "v2", "rich", "dev")


def test_the_first_versions_of_a_graph_can_still_be_read(tmp_path: Path) -> None:
    root = graphs.unpack("v2", "evolved", tmp_path)
    storage = Storage.at(str(root))
    old = snapshot.load(storage, "main", 4)
    assert sorted(old.tables) == ["edge:Knows", "node:Person", "node:Temp"]
    for key, entry in old.tables.items():
        assert len(list(exports.read_frame(storage, old, table=key))) == entry.row_count
