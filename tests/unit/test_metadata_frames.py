"""The metadata frames tell what the engine's graphs hold, wherever they lie."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from omnigraph_spark.history import commits, runs
from omnigraph_spark.manifest import snapshot
from omnigraph_spark.manifest.publisher import Publish, publish
from omnigraph_spark.manifest.rows import OURS, TableRow, VersionRow
from omnigraph_spark.read import metadata_frames
from omnigraph_spark.storage import layout
from omnigraph_spark.storage.ids import new_ulid
from omnigraph_spark.storage.store import Storage
from tests.support import graphs


@pytest.fixture(scope="module")
def rich(tmp_path_factory: pytest.TempPathFactory) -> Storage:
    return Storage.at(str(graphs.unpack("v2", "rich", tmp_path_factory.mktemp("metadata"))))


def _rows(kind: str, storage: Storage, branch: str = "main", version: int | None = None) -> Any:
    table = metadata_frames.read(kind, storage, snapshot.load(storage, branch, version))
    assert table.schema == metadata_frames.SCHEMAS[kind]
    return table.to_pylist()


def test_tables_are_those_of_the_snapshot(rich: Storage) -> None:
    rows = {row["table_key"]: row for row in _rows("tables", rich, "dev")}
    person = rows["node:Person"]
    assert (person["version"], person["branch"], person["row_count"]) == (8, "dev", 4)
    assert (person["location"], person["dataset_version"]) == (
        layout.table_location("node:Person"),
        7,
    )
    assert rows["node:Temp"]["branch"] == "main"
    assert len(rows) == 5


def test_history_is_the_branchs_lineage_with_the_tables_that_each_commit_changed(
    rich: Storage,
) -> None:
    rows = _rows("history", rich, "dev")
    assert [(row["version"], row["branch"]) for row in rows] == [
        (8, "dev"), (7, "dev"), (6, "main"), (5, "main"), (4, "main"), (3, "main"),
    ]  # fmt: skip
    assert [row["parent_id"] for row in rows[:-1]] == [row["commit_id"] for row in rows[1:]]
    assert rows[0]["tables"] == ["edge:Knows"]
    assert rows[2]["tables"] == ["edge:Likes", "node:Person"]
    assert rows[0]["publish_id"] is None
    assert _rows("history", rich, "main", 5)[0]["version"] == 5
    merge = _rows("history", rich)[0]
    assert merge["merged_parent_id"] == _rows("history", rich, "feature/merged")[0]["commit_id"]


def test_our_publishes_tell_their_rows_and_user_metadata(tmp_path: Path) -> None:
    storage = Storage.at(str(graphs.unpack("v2", "social", tmp_path)))
    before = snapshot.load(storage)
    publish_id = new_ulid()
    changes: list[TableRow | VersionRow] = []
    for key, added in (("node:Person", 3), ("node:Company", 2)):
        entry = before.entry(key)
        dataset = storage.dataset(entry.location)
        dataset.update_config({"any": "thing"})
        ours = {
            "publish_id": publish_id,
            "rows_added": added,
            "rows_removed": 1,
            "user_metadata": "x",
        }
        row = VersionRow(key, dataset.version, None, entry.row_count, {OURS: ours})
        changes += [TableRow(key, entry.location), row]
    done = publish(storage, Publish("main", publish_id, tuple(changes)))
    commits.record_publish(storage, "main", publish_id, done.graph_version, actor="ann")
    newest = _rows("history", storage)[0]
    told = (
        "version",
        "publish_id",
        "commit_id",
        "actor",
        "user_metadata",
        "rows_added",
        "rows_removed",
    )
    assert [newest[name] for name in told] == [
        done.graph_version, publish_id, publish_id, "ann", "x", 5, 2,
    ]  # fmt: skip
    assert newest["tables"] == ["node:Company", "node:Person"]


def test_refs_are_branches_and_tags(tmp_path: Path) -> None:
    storage = Storage.at(str(graphs.unpack("v2", "rich", tmp_path)))
    storage.dataset(layout.MANIFEST).tags.create("release", ("dev", 7))
    rows = [tuple(row.values())[:4] for row in _rows("refs", storage)]
    assert rows == [
        ("main", "branch", 9, None),
        ("dev", "branch", 8, "main"),
        ("feature/merged", "branch", 7, "main"),
        ("release", "tag", 7, "dev"),
    ]


def test_runs_are_the_registry_as_the_engine_wrote_it(tmp_path: Path) -> None:
    storage = Storage.at(str(graphs.unpack("v1", "social", tmp_path)))
    rows = _rows("runs", storage)
    assert len({row["run_id"] for row in rows}) == len(rows), "one row per run"
    assert len(rows) < len(runs.read_runs(storage)), "how it began and how it ended are one"
    published = next(row for row in rows if row["status"] == "published")
    ids = {
        row["commit_id"] for branch in ("main", "dev") for row in _rows("history", storage, branch)
    }
    assert published["published_snapshot_id"] in ids
    assert _rows("runs", Storage.at(str(graphs.unpack("v2", "social", tmp_path / "v2")))) == []


def test_files_are_where_the_graph_is_now(rich: Storage) -> None:
    rows = _rows("files", rich, "dev")
    assert all(Path(row["path"]).stat().st_size == row["size"] for row in rows)
    assert {"tree/dev" in row["path"] for row in rows if row["table_key"] == "node:Person"} == {
        True,
        False,
    }
    counts: dict[str, int] = {}
    for row in rows:
        counts[row["table_key"]] = counts.get(row["table_key"], 0) + row["row_count"]
    assert counts == {row["table_key"]: row["row_count"] for row in _rows("tables", rich, "dev")}


def test_indexes_are_those_of_each_table_also_on_a_moved_branch(rich: Storage) -> None:
    rows = [row for row in _rows("indexes", rich, "dev") if row["table_key"] == "node:Person"]
    assert {row["name"]: (row["type"], row["columns"]) for row in rows} == {
        "id_idx": ("BTree", ["id"]),
        "name_idx": ("Inverted", ["name"]),
    }


@pytest.mark.long
def test_every_frame_of_every_graph_is_made(tmp_path: Path) -> None:
    for generation, graph, branches in graphs.ALL_GRAPHS:
        storage = Storage.at(str(graphs.unpack(generation, graph, tmp_path / generation)))
        for branch in branches:
            for kind in metadata_frames.SCHEMAS:
                assert json.dumps(_rows(kind, storage, branch), default=str)
