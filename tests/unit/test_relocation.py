"""Branches open wherever their graph lies, with the rows, row ids and version columns they had."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from omnigraph_spark.errors import CorruptManifestError
from omnigraph_spark.storage import layout
from omnigraph_spark.storage.lance_errors import DatasetNotFoundError
from omnigraph_spark.storage.relocation import needs_relocation, open_for_reading, parent_branches
from omnigraph_spark.storage.store import Storage
from tests.support import graphs

PLACE = "nodes/00000000000000aa"
BRANCHES = (None, "dev", "a/sub")
_BLOBS = [b"A", None, b"", b"B" * 200_000, b"C" * 5_000_000]


def _table(rows: slice) -> pa.Table:
    import lance

    ids = list("abcde")[rows]
    schema = pa.schema(
        [
            pa.field("id", pa.utf8(), nullable=False),
            pa.field("v", pa.int64()),
            lance.blob_field("pic"),
        ]
    )
    numbers = list(range(5))[rows]
    return pa.table(
        [pa.array(ids), pa.array(numbers), lance.blob_array(_BLOBS[rows])], schema=schema
    )


@pytest.fixture
def graph(tmp_path: Path) -> Path:
    """A table with deletions, a gone fragment, blobs of every kind, a branch and a branch of it."""
    import lance

    root = tmp_path / "graph"
    uri = str(root / PLACE)
    main = lance.write_dataset(
        _table(slice(None)),
        uri,
        max_rows_per_file=2,
        enable_stable_row_ids=True,
        data_storage_version="2.2",
    )
    main.delete("id IN ('a', 'b')")
    main.create_branch("dev")
    lance.write_dataset(_table(slice(0, 1)), f"{uri}/tree/dev", mode="append")
    dev = lance.dataset(f"{uri}/tree/dev")
    dev.delete("id = 'c'")
    dev = lance.dataset(f"{uri}/tree/dev")
    dev.create_branch("a/sub")
    sub = lance.write_dataset(_table(slice(1, 2)), f"{uri}/tree/a/sub", mode="append")
    sub.update({"v": "99"}, where="id = 'e'")
    return root


def _rows(dataset: Any) -> list[dict[str, Any]]:
    extra = ["_rowid", "_rowaddr", "_row_created_at_version", "_row_last_updated_at_version"]
    scanner = dataset.scanner(columns=[*dataset.schema.names, *extra], blob_handling="all_binary")
    rows = scanner.to_table().to_pylist()
    return sorted(rows, key=lambda row: row["_rowid"])


@pytest.mark.parametrize("branch", BRANCHES)
def test_a_moved_branch_has_the_rows_ids_and_versions_that_it_had(
    graph: Path, branch: str | None
) -> None:
    expected = _rows(Storage.at(str(graph)).dataset(PLACE, branch))
    assert len(expected) == {None: 3, "dev": 3, "a/sub": 4}[branch]
    moved = graph.rename(graph.parent / "moved")
    before = graphs.file_hashes(moved)
    dataset = open_for_reading(Storage.at(str(moved)), PLACE, branch)
    assert _rows(dataset) == expected
    assert dataset.count_rows() == len(expected)
    assert graphs.file_hashes(moved) == before


def test_an_older_version_of_a_moved_branch_is_that_version(graph: Path) -> None:
    storage = Storage.at(str(graph))
    newest = storage.dataset(PLACE, "dev").version
    expected = _rows(storage.dataset(PLACE, "dev", newest - 1))
    moved = Storage.at(str(graph.rename(graph.parent / "moved")))
    assert _rows(open_for_reading(moved, PLACE, "dev", newest - 1)) == expected
    assert _rows(open_for_reading(moved, PLACE, "dev")) != expected


def test_a_copy_never_reads_the_files_of_the_original(graph: Path) -> None:
    expected = _rows(Storage.at(str(graph)).dataset(PLACE, "a/sub"))
    copy = Path(shutil.copytree(graph, graph.parent / "copy"))
    for data in graph.rglob("*.lance"):
        data.write_bytes(b"broken")
    assert _rows(open_for_reading(Storage.at(str(copy)), PLACE, "a/sub")) == expected


def test_a_branch_at_its_place_is_opened_as_it_is(graph: Path) -> None:
    storage = Storage.at(str(graph))
    assert open_for_reading(storage, PLACE, "dev").uri == storage.dataset_uri(PLACE, "dev")
    assert not needs_relocation(storage, PLACE, "dev")
    assert not needs_relocation(storage, PLACE)
    moved = Storage.at(str(graph.rename(graph.parent / "moved")))
    assert needs_relocation(moved, PLACE, "dev")
    assert not needs_relocation(moved, PLACE)


def test_an_empty_branch_opens_after_a_move(tmp_path: Path) -> None:
    import lance

    empty = pa.table({"id": pa.array([], pa.utf8())})
    lance.write_dataset(empty, str(tmp_path / "g" / PLACE)).create_branch("dev")
    moved = (tmp_path / "g").rename(tmp_path / "h")
    dataset = open_for_reading(Storage.at(str(moved)), PLACE, "dev")
    assert (dataset.count_rows(), dataset.schema.names) == (0, ["id"])


def test_the_catalog_and_the_lineage_of_the_engines_branches_open(tmp_path: Path) -> None:
    storage = Storage.at(str(graphs.unpack("v2", "rich", tmp_path)))
    for branch in ("dev", "feature/merged"):
        manifest = open_for_reading(storage, layout.MANIFEST, branch)
        assert "omnigraph:internal_schema_version" in str(manifest.schema.metadata)
        assert {"node:Person"} <= {*manifest.to_table()["table_key"].to_pylist()}
        commits = open_for_reading(storage, layout.GRAPH_COMMITS, branch)
        assert branch in commits.to_table()["manifest_branch"].to_pylist()


def test_parents_are_read_from_the_ref_files(graph: Path) -> None:
    storage = Storage.at(str(graph))
    assert parent_branches(storage, PLACE, "a/sub") == ["dev"]
    assert parent_branches(storage, PLACE, "dev") == []
    assert parent_branches(storage, PLACE, None) == []


def test_a_missing_branch_or_version_is_not_found(graph: Path) -> None:
    storage = Storage.at(str(graph))
    with pytest.raises(DatasetNotFoundError, match="OMNIGRAPH_STORAGE"):
        open_for_reading(storage, PLACE, "nope")
    with pytest.raises(DatasetNotFoundError, match="OMNIGRAPH_STORAGE"):
        open_for_reading(storage, PLACE, None, 99)


def _ref_file(graph: Path, name: str) -> Path:
    return graph / PLACE / "_refs" / "branches" / f"{name}.json"


def test_branches_that_are_each_others_parents_are_refused(graph: Path) -> None:
    moved = graph.rename(graph.parent / "moved")
    path = _ref_file(moved, "dev")
    path.write_text(json.dumps({**json.loads(path.read_text()), "parentBranch": "a/sub"}))
    with pytest.raises(CorruptManifestError, match=r"OMNIGRAPH_CORRUPT_MANIFEST.*parents"):
        open_for_reading(Storage.at(str(moved)), PLACE, "a/sub")


@pytest.mark.parametrize("text", ["", "[]", '{"parentBranch": 7}', "\x00"])
def test_a_damaged_ref_file_is_named(graph: Path, text: str) -> None:
    moved = graph.rename(graph.parent / "moved")
    _ref_file(moved, "dev").write_text(text)
    with pytest.raises(CorruptManifestError, match=r"OMNIGRAPH_CORRUPT_MANIFEST.*dev"):
        open_for_reading(Storage.at(str(moved)), PLACE, "dev")


def test_a_clone_of_another_table_is_refused(graph: Path) -> None:
    import lance

    foreign = lance.dataset(str(graph / PLACE)).shallow_clone(
        str(graph.parent / "other" / "nodes" / "00000000000000bb"), 2
    )
    assert foreign.base_paths()
    with pytest.raises(CorruptManifestError, match=r"OMNIGRAPH_CORRUPT_MANIFEST.*isn't this table"):
        open_for_reading(Storage.at(str(graph.parent / "other")), "nodes/00000000000000bb")
