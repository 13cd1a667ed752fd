"""An empty graph: what is made, and that nothing depends on who makes it."""

from __future__ import annotations

import multiprocessing
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from omnigraph_spark.errors import StorageError
from omnigraph_spark.history import commits
from omnigraph_spark.history import init as init_module
from omnigraph_spark.history.init import init_graph
from omnigraph_spark.manifest import formats, migrations, snapshot
from omnigraph_spark.storage import layout
from omnigraph_spark.storage.store import Storage
from tests.support import graphs
from tests.support.catalogs import publish_version

KEY = "node:Person"
STAMP_KEY = "omnigraph:internal_schema_version"
LINEAGE = (layout.GRAPH_COMMITS, layout.GRAPH_COMMIT_ACTORS)


@pytest.fixture
def storage(tmp_path: Path) -> Storage:
    return Storage.at(str(tmp_path / "new" / "graph"))


def test_a_new_graph_is_stamped_and_empty(storage: Storage) -> None:
    init_graph(storage)
    manifest = storage.dataset(layout.MANIFEST)
    assert manifest.schema.equals(migrations.new_manifest_schema(), check_metadata=True)
    assert formats.stamp_of(manifest) == 2
    assert manifest.count_rows() == 0
    assert snapshot.load(storage).tables == {}
    assert {path.name for path in Path(storage.root).iterdir()} == {layout.MANIFEST, *LINEAGE}


def test_the_datasets_are_made_as_the_format_says(storage: Storage) -> None:
    init_graph(storage)
    assert storage.dataset(layout.MANIFEST).config() == {"table_version_management": "true"}
    for name in (layout.MANIFEST, *LINEAGE):
        dataset = storage.dataset(name)
        assert dataset.data_storage_version == "2.2"
        assert not dataset.has_stable_row_ids
        assert not [key for key in dataset.config() if "cleanup" in key]
        assert all(len(p.stem) == 20 for p in Path(dataset.uri, "_versions").glob("*.manifest"))


def test_the_first_commit_is_that_of_the_version_that_made_the_graph(storage: Storage) -> None:
    init_graph(storage)
    (first,) = commits.read_commits(storage)
    assert first.manifest_version == 1
    assert first.parent_commit_id is None
    assert snapshot.load(storage, version=1).tables == {}


def test_making_it_twice_changes_nothing(storage: Storage) -> None:
    init_graph(storage)
    before = graphs.file_hashes(Path(storage.root))
    init_graph(storage)
    assert graphs.file_hashes(Path(storage.root)) == before


def test_a_graph_with_tables_is_left_alone(storage: Storage) -> None:
    init_graph(storage)
    publish_version(storage, KEY, 1)
    for name in LINEAGE:
        shutil.rmtree(Path(storage.root) / name)
    before = graphs.file_hashes(Path(storage.root))
    init_graph(storage)
    assert graphs.file_hashes(Path(storage.root)) == before


@pytest.mark.parametrize(
    ("generation", "graph"), [("v2", "social"), ("v1", "social"), ("newer", "social")]
)
def test_the_engines_graphs_are_left_alone(tmp_path: Path, generation: str, graph: str) -> None:
    root = graphs.unpack(generation, graph, tmp_path)
    before = graphs.file_hashes(root)
    init_graph(Storage.at(str(root)))
    assert graphs.file_hashes(root) == before


@pytest.mark.parametrize("stamp", ["3", "none of ours"])
def test_an_empty_graph_with_another_stamp_is_left_alone(storage: Storage, stamp: str) -> None:
    init_graph(storage)
    for name in LINEAGE:
        shutil.rmtree(Path(storage.root) / name)
    storage.dataset(layout.MANIFEST).update_schema_metadata({STAMP_KEY: stamp})
    before = graphs.file_hashes(Path(storage.root))
    init_graph(storage)
    assert graphs.file_hashes(Path(storage.root)) == before


def test_other_files_in_the_folder_stay(storage: Storage) -> None:
    root = Path(storage.root)
    (root / "nodes").mkdir(parents=True)
    (root / "nodes" / "notes.txt").write_text("mine")
    (root / "README").write_text("mine too")
    init_graph(storage)
    assert (root / "nodes" / "notes.txt").read_text() == "mine"
    assert (root / "README").read_text() == "mine too"
    assert snapshot.load(storage).tables == {}


@pytest.mark.parametrize("died_in", ["_set_config", "_make_lineage"])
def test_a_crash_half_way_is_completed_by_the_next_call(
    storage: Storage, monkeypatch: pytest.MonkeyPatch, died_in: str
) -> None:
    def die(*_: Any) -> None:
        raise StorageError("Injected fault")

    with monkeypatch.context() as patched:
        patched.setattr(init_module, died_in, die)
        with pytest.raises(StorageError, match="Injected fault"):
            init_graph(storage)
    check_it_gets_completed(storage)


def test_a_crash_between_the_two_datasets_of_the_lineage_is_completed(storage: Storage) -> None:
    init_graph(storage)
    shutil.rmtree(Path(storage.root) / layout.GRAPH_COMMIT_ACTORS)
    check_it_gets_completed(storage)


def check_it_gets_completed(storage: Storage) -> None:
    init_graph(storage)
    (first,) = commits.read_commits(storage)
    assert first.manifest_version == 1
    assert storage.dataset(layout.MANIFEST).config() == {"table_version_management": "true"}
    assert storage.dataset(layout.GRAPH_COMMIT_ACTORS).count_rows() == 0
    commits.record_publish(storage, "main", *publish_version(storage, KEY, 1))
    assert len(commits.read_commits(storage)) == 2


def test_a_publish_between_the_steps_of_another_creator_keeps_one_lineage(storage: Storage) -> None:
    init_module._create(storage)
    published = publish_version(storage, KEY, 1)
    commits.record_publish(storage, "main", *published)
    early = commits.read_commits(storage)
    init_graph(storage)
    assert commits.read_commits(storage) == early
    assert [c.manifest_version for c in early] == [1, published[1]]


def _race(root: str, barrier: Any, name: str) -> None:
    storage = Storage.at(root)
    barrier.wait(60)
    init_graph(storage)
    commits.record_publish(storage, "main", *publish_version(storage, f"node:{name}", 1))


@pytest.mark.long
def test_creators_at_once_end_with_one_graph(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    names = ["A", "B", "C"]
    for attempt in range(3):
        root = str(tmp_path / f"graph{attempt}")
        barrier = context.Barrier(len(names))
        processes = [context.Process(target=_race, args=(root, barrier, n)) for n in names]
        for process in processes:
            process.start()
        for process in processes:
            process.join(120)
        assert [process.exitcode for process in processes] == [0] * len(names)
        storage = Storage.at(root)
        assert set(snapshot.load(storage).tables) == {f"node:{n}" for n in names}
        lineage = commits.read_commits(storage)
        assert [c.parent_commit_id for c in lineage] == [None] + [
            c.graph_commit_id for c in lineage[:-1]
        ]
        assert len(lineage) == len(names) + 1
        config = storage.dataset(layout.MANIFEST).config()
        assert config == {"table_version_management": "true"}


def test_a_creator_that_others_overtook_is_refused_and_replaces_nothing(
    storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    from lance import fragment

    mine, theirs = (pa.table({"x": pa.array([n], pa.int64())}) for n in (1, 2))
    real = fragment.write_fragments

    def overtaken(*args: Any, **kwargs: Any) -> Any:
        staged = real(*args, **kwargs)
        monkeypatch.undo()
        storage.create_dataset("nodes/t", theirs)
        return staged

    monkeypatch.setattr(fragment, "write_fragments", overtaken)
    with pytest.raises(StorageError, match="OMNIGRAPH_STORAGE"):
        storage.create_dataset("nodes/t", mine)
    assert storage.dataset("nodes/t").version == 1
    assert storage.dataset("nodes/t").to_table().equals(theirs)


@pytest.mark.long
def test_a_place_that_cant_be_written_is_a_typed_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    with pytest.raises(StorageError, match="OMNIGRAPH_STORAGE"):
        init_graph(Storage.at(str(tmp_path / "file" / "graph")))
