"""A damaged catalog and lost files: typed errors that name what is wrong."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import lance
import pyarrow as pa
import pytest

from omnigraph_spark import _faults
from omnigraph_spark.errors import CorruptManifestError, GraphNotFoundError, OmnigraphError
from omnigraph_spark.manifest.rows import MANIFEST_SCHEMA
from omnigraph_spark.manifest.snapshot import load, open_main
from omnigraph_spark.read.plan import read_table
from omnigraph_spark.storage import layout
from omnigraph_spark.storage.store import Storage
from omnigraph_spark.write.commit.commit import commit
from tests.support import graphs, writes
from tests.support.damage import (
    BROKEN_FILES,
    LIES,
    VERSION_ROW,
    Damage,
    change,
    cut,
    empty,
    garbage,
    newest,
)
from tests.support.writes import ALL, COMPANY, PERSON


@pytest.fixture
def graph(tmp_path: Path) -> Iterator[Storage]:
    yield writes.new_graph(Storage.at(str(tmp_path / "inside" / "g")))
    _faults.disarm()


@pytest.mark.parametrize(("damage", "named"), LIES.values(), ids=list(LIES))
def test_a_manifest_row_that_lies_is_refused_by_name_and_nothing_is_written(
    graph: Storage, damage: Damage, named: str
) -> None:
    planned = writes.plan(graph, [PERSON])
    staged = writes.stage_rows(planned, {PERSON: ["late"]})
    _decoy(Path(graph.root))
    damage(graph)
    before = hashes_but_staged(graph)
    listing = sorted(map(str, Path(graph.root).parent.iterdir()))
    for step in (
        lambda: load(graph),
        lambda: writes.plan(graph, [PERSON]),
        lambda: writes.plan(graph, [PERSON], "overwrite"),
        lambda: commit(planned, staged),
    ):
        with pytest.raises(CorruptManifestError, match="OMNIGRAPH_CORRUPT_MANIFEST") as raised:
            step()
        assert named in str(raised.value)
        assert "secret" not in str(raised.value)
    assert hashes_but_staged(graph) == before
    assert sorted(map(str, Path(graph.root).parent.iterdir())) == listing
    assert writes.records(graph) == []


def hashes_but_staged(storage: Storage) -> dict[str, str]:
    """Return all files' hashes but of the table's data folder: a refused write deletes its own."""
    folder = f"{layout.table_location(PERSON)}/data/"
    return {k: v for k, v in graphs.file_hashes(Path(storage.root)).items() if folder not in k}


def _decoy(root: Path) -> None:
    """Put a readable dataset where a location that leaves the graph would lead."""
    rows = pa.Table.from_batches([writes.batch(writes.NODE_SCHEMA, ["stolen"])])
    for place in (root.parent / "outside", root.parent.parent / "outside"):
        lance.write_dataset(rows, str(place))


def test_a_tombstone_below_the_live_version_is_no_damage(graph: Storage) -> None:
    rows = [{"object_id": layout.tombstone_object_id(PERSON, 0), "table_version": 0}]
    row = {**rows[0], "object_type": "table_tombstone", "table_key": PERSON}
    table = pa.Table.from_pylist([row], schema=MANIFEST_SCHEMA)
    open_main(graph).merge_insert("object_id").when_not_matched_insert_all().execute(table)
    assert writes.ids(graph, PERSON) == ["first"]


def test_a_version_that_the_table_never_had_is_named(graph: Storage) -> None:
    change("table_version", "99", VERSION_ROW)(graph)
    snapshot = load(graph)
    with pytest.raises(OmnigraphError, match=r"OMNIGRAPH_(CORRUPT_MANIFEST|STORAGE).*nodes/"):
        read_table(graph, snapshot, PERSON)
    with pytest.raises(OmnigraphError, match=r"OMNIGRAPH_(CORRUPT_MANIFEST|STORAGE).*nodes/"):
        writes.plan(graph, [PERSON])
    assert [len(read_table(graph, snapshot, key)) for key in ALL if key != PERSON] == [1, 1]


def test_a_table_whose_dataset_ends_before_the_published_version_is_not_written_to(
    graph: Storage,
) -> None:
    """Version files were lost: the published one, and all after it."""
    writes.write(graph, {PERSON: ["b"]})
    planned = writes.plan(graph, [PERSON])
    staged = writes.stage_rows(planned, {PERSON: ["late"]})
    newest(graph, layout.table_location(PERSON)).unlink()
    before = load(graph)
    with pytest.raises(CorruptManifestError, match=r"node:Person.*expected version 2.*version 1"):
        commit(planned, staged)
    assert load(graph) == before


# --- damaged version files ---------------------------------------------------------------------


DAMAGE = pytest.mark.parametrize("damage", BROKEN_FILES)


@DAMAGE
def test_a_damaged_version_file_of_the_manifest_is_a_typed_error_that_names_it(
    graph: Storage, damage: Callable[[Path], None]
) -> None:
    planned = writes.plan(graph, [PERSON])
    staged = writes.stage_rows(planned, {PERSON: ["late"]})
    damage(newest(graph, "__manifest"))
    before = hashes_but_staged(graph)
    for step in (
        lambda: load(graph),
        lambda: writes.plan(graph, [PERSON]),
        lambda: commit(planned, staged),
    ):
        with pytest.raises(OmnigraphError, match=r"OMNIGRAPH_[A-Z_]+\].*__manifest"):
            step()
    assert hashes_but_staged(graph) == before


@DAMAGE
def test_a_damaged_version_file_of_a_table_leaves_the_other_tables_readable(
    graph: Storage, damage: Callable[[Path], None]
) -> None:
    damage(newest(graph, layout.table_location(PERSON)))
    snapshot = load(graph)
    with pytest.raises(OmnigraphError, match=r"OMNIGRAPH_[A-Z_]+\].*nodes/40d76f1f51639ec0"):
        read_table(graph, snapshot, PERSON)
    with pytest.raises(OmnigraphError, match=r"OMNIGRAPH_[A-Z_]+\].*nodes/40d76f1f51639ec0"):
        writes.plan(graph, [PERSON])
    assert read_table(graph, snapshot, COMPANY).num_rows == 1
    writes.write(graph, {COMPANY: ["b"]})
    assert writes.ids(graph, COMPANY) == ["b", "first"]


# --- lost files --------------------------------------------------------------------------------


def data_file(storage: Storage, key: str) -> Path:
    (path,) = (Path(storage.root) / layout.table_location(key) / "data").iterdir()
    return path


def test_a_lost_table_folder_is_named_and_the_other_tables_are_read(graph: Storage) -> None:
    shutil.rmtree(Path(graph.root) / layout.table_location(PERSON))
    snapshot = load(graph)
    with pytest.raises(OmnigraphError, match="nodes/40d76f1f51639ec0"):
        read_table(graph, snapshot, PERSON)
    with pytest.raises(OmnigraphError, match="nodes/40d76f1f51639ec0"):
        writes.plan(graph, [PERSON])
    assert [read_table(graph, snapshot, key).num_rows for key in ALL if key != PERSON] == [1, 1]


@pytest.mark.parametrize("damage", [Path.unlink, empty, cut, garbage])
def test_a_lost_or_damaged_data_file_is_an_error_and_never_a_short_result(
    graph: Storage, damage: Callable[[Path], None]
) -> None:
    damage(data_file(graph, PERSON))
    snapshot = load(graph)
    with pytest.raises(OmnigraphError, match=r"OMNIGRAPH_[A-Z_]+\].*(node:Person|nodes/40d7)"):
        read_table(graph, snapshot, PERSON)
    assert read_table(graph, snapshot, COMPANY).num_rows == 1


@pytest.mark.parametrize("place", range(0, 600, 40))
def test_a_flipped_bit_in_a_data_file_never_shortens_the_result(graph: Storage, place: int) -> None:
    """Lance's files carry no checksums, so a flip inside a value can't be distinguished from a value."""
    path = data_file(graph, PERSON)
    data = bytearray(path.read_bytes())
    data[place % len(data)] ^= 0x10
    path.write_bytes(bytes(data))
    try:
        found = read_table(graph, load(graph), PERSON)
    except OmnigraphError as error:
        assert "node:Person" in str(error) or "nodes/40d7" in str(error)  # noqa: PT017
    else:
        assert found.num_rows == 1


def test_a_lost_deletion_file_is_an_error_and_never_deleted_rows(graph: Storage) -> None:
    writes.write(graph, {PERSON: ["b", "c", "d"]})
    dataset = graph.dataset(layout.table_location(PERSON))
    dataset.delete("id = 'b'")
    _publish_head(graph)
    shutil.rmtree(Path(graph.root) / layout.table_location(PERSON) / "_deletions")
    with pytest.raises(OmnigraphError, match=r"OMNIGRAPH_[A-Z_]+\].*(node:Person|nodes/40d7)"):
        read_table(graph, load(graph), PERSON)


def _publish_head(storage: Storage) -> None:
    from omnigraph_spark.manifest.publisher import Publish, publish
    from omnigraph_spark.manifest.rows import VersionRow
    from omnigraph_spark.storage.ids import new_ulid

    now = storage.dataset(layout.table_location(PERSON))
    row = VersionRow(PERSON, now.version, None, now.count_rows())
    publish(storage, Publish("main", new_ulid(), (row,)))


def test_a_lost_lineage_hinders_neither_reads_nor_writes_and_is_begun_again(
    graph: Storage,
) -> None:
    from omnigraph_spark.history import commits

    for name in (layout.GRAPH_COMMITS, layout.GRAPH_COMMIT_ACTORS):
        shutil.rmtree(Path(graph.root) / name)
    assert writes.ids(graph, PERSON) == ["first"]
    done = writes.write(graph, {PERSON: ["b"]})
    assert writes.ids(graph, PERSON) == ["b", "first"]
    versions = [c.manifest_version for c in commits.read_commits(graph)]
    assert versions == sorted(set(versions))
    assert versions[-1] == done.graph_version


@pytest.mark.parametrize("damage", [empty, cut, garbage])
def test_a_damaged_lineage_does_not_lose_a_publish(
    graph: Storage, damage: Callable[[Path], None]
) -> None:
    damage(newest(graph, layout.GRAPH_COMMITS))
    try:
        writes.write(graph, {PERSON: ["b"]})
        found = ["b", "first"]
    except OmnigraphError:
        found = ["first"]
    assert writes.ids(graph, PERSON) == found


def test_a_lost_manifest_is_no_graph(graph: Storage) -> None:
    shutil.rmtree(Path(graph.root) / "__manifest")
    with pytest.raises(GraphNotFoundError, match="OMNIGRAPH_GRAPH_NOT_FOUND"):
        load(graph)


def test_a_symlink_of_a_table_folder_is_followed_like_any_folder(graph: Storage) -> None:
    """Documented: who may write to the graph's folder may link from it."""
    folder = Path(graph.root) / layout.table_location(PERSON)
    moved = folder.rename(Path(graph.root).parent / "elsewhere")
    folder.symlink_to(moved)
    assert writes.ids(graph, PERSON) == ["first"]


@pytest.mark.parametrize("damage", [empty, cut, garbage])
@pytest.mark.parametrize("name", ["_schema.pg", "_schema.ir.json", "__schema_state.json"])
def test_a_damaged_schema_file_hinders_no_read(
    graph: Storage, name: str, damage: Callable[[Path], None]
) -> None:
    damage(Path(graph.root) / name)
    assert [read_table(graph, load(graph), key).num_rows for key in ALL] == [1, 1, 1]
