"""The stamp of `__manifest` and the way from v1 to v2 (format.md, "Stamps")."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from omnigraph_spark import _faults
from omnigraph_spark.errors import (
    CorruptManifestError,
    OmnigraphError,
    StorageError,
    UnsupportedManifestVersion,
)
from omnigraph_spark.history.init import init_graph
from omnigraph_spark.manifest import formats, migrations
from omnigraph_spark.manifest.migrations import INTERNAL_MANIFEST_SCHEMA_VERSION
from omnigraph_spark.manifest.rows import MANIFEST_SCHEMA, PRIMARY_KEY_ANNOTATION
from omnigraph_spark.manifest.snapshot import load, open_main, read_rows
from omnigraph_spark.manifest.writable import open_for_writing
from omnigraph_spark.storage import store
from omnigraph_spark.storage.store import Storage
from omnigraph_spark.write.commit.commit import commit
from tests.support import graphs, writes

PERSON = writes.PERSON
STAMP = "omnigraph:internal_schema_version"
REFUSED_STAMPS = ("5", "7", "101", "abc", "", "-1", "2.0", "4294967296")


@pytest.fixture
def v1(tmp_path: Path) -> Iterator[Storage]:
    yield Storage.at(str(graphs.unpack("v1", "social", tmp_path)))
    _faults.disarm()


def stamp(storage: Storage) -> str | None:
    raw = (open_main(storage).schema.metadata or {}).get(STAMP.encode())
    return None if raw is None else raw.decode()


def annotated(storage: Storage) -> list[str]:
    key = PRIMARY_KEY_ANNOTATION.encode()
    return [f.name for f in open_main(storage).schema if key in (f.metadata or {})]


def assert_migrated(storage: Storage, rows: pa.Table) -> None:
    assert stamp(storage) == "2"
    assert annotated(storage) == ["object_id"]
    by_id = [("object_id", "ascending")]
    assert read_rows(open_main(storage)).sort_by(by_id).equals(rows.sort_by(by_id))


# --- the stamp ---------------------------------------------------------------------------------


def test_a_new_graph_is_stamped_with_the_current_version_and_needs_no_migration(
    tmp_path: Path,
) -> None:
    storage = Storage.at(str(tmp_path / "g"))
    init_graph(storage)
    assert stamp(storage) == str(INTERNAL_MANIFEST_SCHEMA_VERSION) == "2"
    assert annotated(storage) == ["object_id"]
    before = graphs.file_hashes(tmp_path)
    open_for_writing(storage, "main")
    assert graphs.file_hashes(tmp_path) == before


def test_opening_a_current_graph_for_writing_is_one_look_and_no_write(tmp_path: Path) -> None:
    storage = writes.new_graph(Storage.at(str(tmp_path)), [PERSON])
    manifest = open_main(storage)
    before = graphs.file_hashes(tmp_path)
    assert migrations.migrate_internal_schema(manifest) is manifest
    assert graphs.file_hashes(tmp_path) == before


def test_a_manifest_without_a_stamp_is_v1(v1: Storage) -> None:
    assert stamp(v1) is None
    assert formats.stamp_of(open_main(v1)) == 1


def test_reads_of_a_v1_graph_work_and_change_no_byte(v1: Storage) -> None:
    before = graphs.file_hashes(Path(v1.root))
    counts = {key: e.row_count for key, e in load(v1).tables.items()}
    assert counts == graphs.export_of("v1", "social").row_counts
    assert graphs.file_hashes(Path(v1.root)) == before


def test_a_plan_of_a_write_migrates_nothing(v1: Storage) -> None:
    before = graphs.file_hashes(Path(v1.root))
    writes.plan(v1, [PERSON])
    assert graphs.file_hashes(Path(v1.root)) == before


def test_the_first_write_migrates_and_publishes(v1: Storage) -> None:
    before = writes.ids(v1, PERSON)
    writes.write(v1, {PERSON: ["new"]})
    assert stamp(v1) == "2"
    assert annotated(v1) == ["object_id"]
    assert writes.ids(v1, PERSON) == sorted([*before, "new"])


def test_the_manifests_own_auto_cleanup_is_removed_by_the_first_write(v1: Storage) -> None:
    open_main(v1).update_config({"lance.auto_cleanup.interval": "1"})
    oldest = open_main(v1).versions()[0]["version"]
    writes.write(v1, {PERSON: ["new"]})
    assert store.keys(open_main(v1)) == []
    assert open_main(v1).versions()[0]["version"] == oldest


# --- forward protection ------------------------------------------------------------------------


def restamp(storage: Storage, text: str) -> None:
    open_main(storage).update_schema_metadata({STAMP: text})


@pytest.mark.parametrize("text", REFUSED_STAMPS)
@pytest.mark.parametrize("step", ["plan", "commit", "publisher"])
def test_another_stamp_is_refused_for_writing_before_anything_changes(
    text: str, step: str, tmp_path: Path
) -> None:
    storage = writes.new_graph(Storage.at(str(tmp_path / "g")), [PERSON])
    planned = writes.plan(storage, [PERSON])
    staged = writes.stage_rows(planned, {PERSON: ["late"]})
    for one in staged:  # not the staged file's bytes: a refused commit takes them away again
        for fragment in one.fragments:
            for file in fragment["files"]:
                storage.delete(f"{planned.targets[PERSON].location}/data/{file['path']}")
    restamp(storage, text)
    before = graphs.file_hashes(tmp_path)
    steps: dict[str, Callable[[], object]] = {
        "plan": lambda: writes.plan(storage, [PERSON]),
        "commit": lambda: commit(planned, staged),
        "publisher": lambda: open_for_writing(storage, "main"),
    }
    with pytest.raises(UnsupportedManifestVersion, match="upgrade omnigraph first") as raised:
        steps[step]()
    message = str(raised.value)
    assert "OMNIGRAPH_UNSUPPORTED_MANIFEST_VERSION" in message
    assert "one of the stamps 2, 3, 4, 6" in message
    assert f"stamp {text}" in message or f"stamp {text!r}" in message
    assert graphs.file_hashes(tmp_path) == before


@pytest.mark.parametrize("text", ["5", "7", "101", "4294967296"])
def test_a_newer_stamp_is_read_where_the_columns_of_v2_are_there(text: str, tmp_path: Path) -> None:
    storage = writes.new_graph(Storage.at(str(tmp_path)), [PERSON])
    restamp(storage, text)
    assert writes.ids(storage, PERSON) == ["first"]


@pytest.mark.parametrize("text", ["abc", "", "-1", "2.0", "0", "02", " 2", "1e3", "9" * 40])
def test_a_stamp_that_is_no_plain_positive_integer_is_never_read_as_v1(
    text: str, tmp_path: Path
) -> None:
    storage = writes.new_graph(Storage.at(str(tmp_path)), [PERSON])
    restamp(storage, text)
    with pytest.raises(UnsupportedManifestVersion, match="upgrade omnigraph first"):
        load(storage)


def test_a_newer_stamp_without_the_columns_of_v2_is_refused_for_reading_too(
    tmp_path: Path,
) -> None:
    import lance

    schema = pa.schema([f for f in MANIFEST_SCHEMA if f.name != "table_branch"])
    uri = tmp_path / "g" / "__manifest"
    lance.write_dataset(schema.with_metadata({STAMP: "7"}).empty_table(), str(uri))
    with pytest.raises(UnsupportedManifestVersion, match="upgrade omnigraph first"):
        load(Storage.at(str(tmp_path / "g")))


@pytest.mark.parametrize("number", [1, 2])
def test_a_known_stamp_without_a_column_is_a_damaged_catalog(number: int, tmp_path: Path) -> None:
    import lance

    schema = pa.schema([f for f in MANIFEST_SCHEMA if f.name != "table_branch"])
    uri = tmp_path / "g" / "__manifest"
    lance.write_dataset(schema.with_metadata({STAMP: str(number)}).empty_table(), str(uri))
    with pytest.raises(CorruptManifestError, match="table_branch"):
        load(Storage.at(str(tmp_path / "g")))


# --- v1 to v2: idempotent, safe among others ---------------------------------------------------


@pytest.mark.parametrize(
    ("point", "left"),
    [
        ("migrate.before_annotation", (None, [])),
        ("migrate.before_stamp", (None, ["object_id"])),
        ("migrate.after_stamp", ("2", ["object_id"])),
    ],
)
def test_a_migration_that_fails_at_a_step_is_finished_by_the_next_open(
    v1: Storage, point: str, left: tuple[str | None, list[str]]
) -> None:
    rows = read_rows(open_main(v1))
    _faults.arm(point, "raise")
    with pytest.raises(StorageError, match="Injected fault"):
        open_for_writing(v1, "main")
    assert (stamp(v1), annotated(v1)) == left
    _faults.disarm()
    open_for_writing(v1, "main")
    assert_migrated(v1, rows)


def test_a_half_migrated_graph_still_reads_and_reads_change_nothing(v1: Storage) -> None:
    _faults.arm("migrate.before_stamp", "raise")
    with pytest.raises(StorageError, match="Injected fault"):
        open_for_writing(v1, "main")
    before = graphs.file_hashes(Path(v1.root))
    assert writes.ids(v1, PERSON)
    assert graphs.file_hashes(Path(v1.root)) == before


@pytest.mark.parametrize("point", ["migrate.before_annotation", "migrate.before_stamp"])
def test_a_rival_that_migrates_between_the_steps_is_no_error(v1: Storage, point: str) -> None:
    rows = read_rows(open_main(v1))
    _faults.arm(point, writes.once(lambda: open_for_writing(v1, "main")))
    open_for_writing(v1, "main")
    assert_migrated(v1, rows)


def test_a_primary_key_on_another_column_is_refused_and_nothing_changes(v1: Storage) -> None:
    open_main(v1).update_field_metadata({"table_key": {PRIMARY_KEY_ANNOTATION: "true"}})
    for key in store.keys(open_main(v1)):
        open_main(v1).delete_config_keys([key])
    before = graphs.file_hashes(Path(v1.root))
    with pytest.raises(CorruptManifestError, match=r"primary key.*object_id.*table_key"):
        open_for_writing(v1, "main")
    assert graphs.file_hashes(Path(v1.root)) == before


def _migrate(root: str, barrier: object, failures: object) -> None:
    barrier.wait()  # type: ignore[attr-defined]
    try:
        open_for_writing(Storage.at(root), "main")
    except OmnigraphError as error:
        failures.put(str(error))  # type: ignore[attr-defined]


def _kill_at(root: str, point: str) -> None:
    _faults.arm(point, "kill")
    open_for_writing(Storage.at(root), "main")


STEPS = ("migrate.before_annotation", "migrate.before_stamp", "migrate.after_stamp")


@pytest.mark.long
@pytest.mark.parametrize("point", STEPS)
def test_a_killed_migration_is_finished_by_four_processes_at_once(v1: Storage, point: str) -> None:
    rows = read_rows(open_main(v1))
    context = multiprocessing.get_context("spawn")
    killed = context.Process(target=_kill_at, args=(v1.root, point))
    killed.start()
    killed.join()
    assert killed.exitcode == -9
    barrier, failures = context.Barrier(4), context.Queue()
    migrators = [
        context.Process(target=_migrate, args=(v1.root, barrier, failures)) for _ in range(4)
    ]
    for one in migrators:
        one.start()
    for one in migrators:
        one.join()
    assert failures.empty()
    assert_migrated(v1, rows)
