"""Rows of `__manifest` that are kept in memory are those that a fresh read would find."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest

from omnigraph_spark.history.init import init_graph
from omnigraph_spark.manifest.rows import MANIFEST_SCHEMA, TableRow, VersionRow, fit, to_arrow
from omnigraph_spark.manifest.snapshot import load, open_main, read_rows
from omnigraph_spark.storage import kept_rows, layout
from omnigraph_spark.storage.store import Storage

KEYS = ("node:A", "node:B", "edge:C")
BIG = 8


@pytest.fixture(autouse=True)
def small_is_big(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_rows, "BIG_ROWS", BIG)
    monkeypatch.setattr(kept_rows, "_kept", type(kept_rows._kept)())


@pytest.fixture
def manifest(tmp_path: Path) -> lance.LanceDataset:
    """A `__manifest` with three tables at version 10, all in one fragment."""
    return make(tmp_path / "g", 1)


def make(root: Path, count: int) -> lance.LanceDataset:
    rows = [TableRow(key, layout.table_location(key)) for key in KEYS]
    rows += [VersionRow(key, n, None, count) for key in KEYS for n in range(1, 11)]  # type: ignore[misc]
    return lance.write_dataset(
        to_arrow(rows), str(root / layout.MANIFEST), data_storage_version="2.2"
    )


def publish(manifest: lance.LanceDataset, number: int, count: int = 1) -> None:
    """Merge a version and its guard, as the publisher does: the old guard's row is deleted."""
    rows = [
        TableRow(KEYS[0], layout.table_location(KEYS[0])),
        VersionRow(KEYS[0], number, None, count),
    ]
    merge = manifest.merge_insert("object_id").when_matched_update_all()
    merge.when_not_matched_insert_all().execute(to_arrow(rows))


def fresh(manifest: lance.LanceDataset) -> list[dict[str, Any]]:
    rows = fit(lance.dataset(manifest.uri, version=manifest.version).to_table())
    return in_order(rows)


def in_order(rows: pa.Table) -> list[dict[str, Any]]:
    return sorted(rows.to_pylist(), key=lambda row: row["object_id"])


def scans(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list that gets the number of fragments of each scan from now on."""
    seen: list[int] = []
    scan: Callable[..., pa.Table] = kept_rows._scan

    def counted(
        manifest: lance.LanceDataset, fragments: list[Any], columns: list[str], **more: bool
    ) -> pa.Table:
        seen.append(len(fragments))
        return scan(manifest, fragments, columns, **more)

    monkeypatch.setattr(kept_rows, "_scan", counted)
    return seen


def test_a_big_fragment_is_read_once(
    manifest: lance.LanceDataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = scans(monkeypatch)
    assert in_order(read_rows(manifest)) == fresh(manifest)
    assert in_order(read_rows(lance.dataset(manifest.uri))) == fresh(manifest)
    assert seen == [1]


def test_a_publish_lets_only_the_fragments_be_read_that_it_changed(
    manifest: lance.LanceDataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(11, 15):
        publish(manifest, number)
    read_rows(manifest)
    seen = scans(monkeypatch)
    publish(manifest, 15)  # a fragment of its own, and a deletion where the guard was before
    assert in_order(read_rows(manifest)) == fresh(manifest)
    assert in_order(read_rows(lance.dataset(manifest.uri))) == fresh(manifest)
    assert seen == [2]


def test_the_rows_are_the_versions_own_after_every_kind_of_change(
    manifest: lance.LanceDataset,
) -> None:
    def check() -> None:
        assert in_order(read_rows(manifest)) == fresh(manifest)

    check()
    publish(manifest, 11)
    check()
    publish(manifest, 12)
    check()
    manifest.optimize.compact_files()
    check()
    manifest.delete("table_version = 3")
    check()
    publish(manifest, 12, count=99)
    check()
    for version in range(1, int(manifest.version) + 1):
        older = lance.dataset(manifest.uri, version=version)
        assert in_order(read_rows(older)) == fresh(older)
    manifest = lance.dataset(manifest.uri, version=2)
    manifest.restore()
    check()
    publish(manifest, 13)
    check()


def test_a_graph_that_was_made_anew_at_the_same_place_has_its_own_rows(tmp_path: Path) -> None:
    storage = Storage.at(str(tmp_path / "g"))
    make(tmp_path / "g", 1)
    assert load(storage).entry("node:A").row_count == 1
    shutil.rmtree(tmp_path / "g")
    make(tmp_path / "g", 2)
    assert load(storage).entry("node:A").row_count == 2


def test_a_branch_that_was_made_anew_has_its_own_rows(manifest: lance.LanceDataset) -> None:
    for count in (5, 6):
        branch = manifest.create_branch("dev")
        publish(branch, 20, count)
        branch.optimize.compact_files()
        assert in_order(read_rows(branch)) == fresh(branch)
        found = {row["object_id"]: row for row in read_rows(branch).to_pylist()}
        assert found[layout.version_object_id("node:A", 20)]["row_count"] == count
        manifest.branches.delete("dev")
    assert in_order(read_rows(manifest)) == fresh(manifest)


def test_a_branch_has_the_rows_of_its_parents_files_from_there(
    manifest: lance.LanceDataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(manifest, 11)
    branch = manifest.create_branch("dev")
    publish(branch, 12, count=7)
    read_rows(manifest)
    seen = scans(monkeypatch)
    assert in_order(read_rows(branch)) == in_order(fit(branch.to_table()))
    assert seen == [2]  # its own fragment, and that in which it deleted the guard


def test_columns_that_change_their_names_are_read_again(manifest: lance.LanceDataset) -> None:
    assert read_rows(manifest)["location"].null_count == 30
    for old, new in (
        ("location", "other"),
        ("table_branch", "location"),
        ("other", "table_branch"),
    ):
        manifest.alter_columns({"path": old, "name": new})  # type: ignore[dict-item]
    assert read_rows(manifest)["location"].null_count == 33
    assert in_order(read_rows(manifest)) == fresh(manifest)


def test_what_is_kept_has_an_end(
    manifest: lance.LanceDataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    others = [make(tmp_path / str(n), n) for n in range(3)]
    monkeypatch.setattr(kept_rows, "_MOST_BYTES", int(2.5 * read_rows(manifest).nbytes))
    for one in (*others, manifest, *others):
        assert in_order(read_rows(one)) == fresh(one)
        assert len(kept_rows._kept) <= 2
    monkeypatch.setattr(kept_rows, "_MOST_BYTES", 1)
    assert in_order(read_rows(make(tmp_path / "last", 9)))[0]["object_type"] == "table"
    assert len(kept_rows._kept) == 0


def test_a_manifest_without_rows_has_the_columns(tmp_path: Path) -> None:
    storage = Storage.at(str(tmp_path))
    init_graph(storage)
    rows = read_rows(open_main(storage))
    assert rows.num_rows == 0
    assert rows.schema.equals(fit(MANIFEST_SCHEMA.empty_table()).schema)
