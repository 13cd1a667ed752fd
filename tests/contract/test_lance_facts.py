"""What the code leans on in Lance, tried on real datasets: an upgrade that changes it fails here.

The facts and rules are those of docs/internals.
"""

from __future__ import annotations

import decimal
import json
import os
import shutil
from collections.abc import Callable
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest
from lance import LanceDataset
from lance import LanceOperation as Op
from lance.commit import CommitConflictError
from lance.dataset import AutoCleanupConfig
from lance.fragment import FragmentMetadata, write_fragments
from lance.optimize import Compaction

from omnigraph_spark.errors import StorageError
from omnigraph_spark.storage import layout
from omnigraph_spark.storage.lance_errors import (
    DatasetNotFoundError,
    Outcome,
    is_panic,
    outcome_of,
    translated,
)
from tests.support.s3 import Bucket

KEY: dict[str, Any] = {"lance-schema:unenforced-primary-key": "true"}
MANIFEST = pa.schema(
    [pa.field("object_id", pa.utf8(), nullable=False, metadata=KEY), ("value", pa.int64())]
)
UNKEYED = pa.schema([pa.field("object_id", pa.utf8(), nullable=False), ("value", pa.int64())])


def rows(*ids: str) -> pa.Table:
    return pa.table({"id": list(ids), "n": pa.array(range(len(ids)), pa.int32())})


def created(path: Path, data: pa.Table | None = None, **settings: Any) -> LanceDataset:
    """Make a dataset as tables of a graph are made."""
    settings = {"enable_stable_row_ids": True, "data_storage_version": "2.2", **settings}
    return lance.write_dataset(rows("a", "b") if data is None else data, str(path), **settings)


def staged(uri: str, *ids: str, mode: str = "append") -> list[FragmentMetadata]:
    found: list[FragmentMetadata] = write_fragments(rows(*ids), uri, mode=mode)
    return found


def without(dataset: LanceDataset, predicate: str) -> FragmentMetadata:
    """Return the first fragment with those rows deleted, uncommitted."""
    changed = dataset.get_fragments()[0].delete(predicate)
    assert changed is not None
    return changed


def append(dataset: LanceDataset, *ids: str) -> LanceDataset:
    return lance.write_dataset(rows(*ids), dataset.uri, mode="append")


def ids(dataset: LanceDataset) -> list[str]:
    return sorted(lance.dataset(dataset.uri).to_table()["id"].to_pylist())


def merge(manifest: LanceDataset, *object_ids: str, value: int = 1) -> None:
    """Publish rows the way the publisher does (21)."""
    schema = UNKEYED if not manifest.schema.field(0).metadata else MANIFEST
    table = pa.table(
        {"object_id": list(object_ids), "value": [value] * len(object_ids)}, schema=schema
    )
    (
        manifest.merge_insert("object_id")
        .when_matched_update_all()
        .when_not_matched_insert_all()
        .conflict_retries(0)
        .use_index(False)
        .execute(table)
    )


def manifest_pair(path: Path, schema: pa.Schema = MANIFEST) -> tuple[LanceDataset, LanceDataset]:
    """Return two handles on the first version of one manifest-like dataset."""
    table = pa.table({"object_id": ["node:A"], "value": [0]}, schema=schema)
    uri = lance.write_dataset(table, str(path), data_storage_version="2.2").uri
    return lance.dataset(uri), lance.dataset(uri)


def values(manifest: LanceDataset) -> list[tuple[str, int]]:
    table = lance.dataset(manifest.uri).to_table().to_pydict()
    return sorted(zip(table["object_id"], table["value"], strict=True))


# --- appends and columns -----------------------------------------------------------------------


def test_an_append_matches_columns_by_name_and_fills_missing_ones_with_null(
    tmp_path: Path,
) -> None:
    table = created(tmp_path / "t")
    lance.write_dataset(
        pa.table({"n": pa.array([9], pa.int32()), "id": ["c"]}), table.uri, mode="append"
    )
    lance.write_dataset(pa.table({"id": ["d"]}), table.uri, mode="append")
    after = lance.dataset(table.uri).to_table().slice(2).to_pydict()
    assert after == {"id": ["c", "d"], "n": [9, None]}


@pytest.mark.parametrize(
    "data",
    [
        pa.table({"id": ["c"], "n": pa.array([1], pa.int64())}),
        pa.table({"id": pa.array(["c"], pa.large_utf8()), "n": pa.array([1], pa.int32())}),
        pa.table({"id": ["c"], "n": pa.nulls(1)}),
    ],
    ids=["int64 into int32", "large_string into string", "null into int32"],
)
def test_an_append_casts_nothing(tmp_path: Path, data: pa.Table) -> None:
    table = created(tmp_path / "t")
    with pytest.raises(OSError, match="Append with different schema"):
        write_fragments(data, table.uri, mode="append")


def test_a_list_does_not_go_into_a_fixed_size_list(tmp_path: Path) -> None:
    table = created(tmp_path / "t", pa.table({"v": pa.array([[1, 2]], pa.list_(pa.float32(), 2))}))
    data = pa.table({"v": pa.array([[1, 2]], pa.list_(pa.float32()))})
    with pytest.raises(OSError, match="Append with different schema"):
        write_fragments(data, table.uri, mode="append")


def test_a_column_of_type_null_is_created_without_complaint(tmp_path: Path) -> None:
    assert created(tmp_path / "t", pa.table({"x": pa.nulls(2)})).schema.field("x").type == pa.null()


def test_an_unaligned_decimal_panics_and_becomes_a_typed_error(tmp_path: Path) -> None:
    aligned = pa.array([decimal.Decimal("1.00")] * 4, pa.decimal128(10, 2)).buffers()[1]
    space = bytearray(aligned.size + 24)
    whole = pa.py_buffer(space)
    offset = (8 - whole.address) % 16
    space[offset : offset + aligned.size] = aligned.to_pybytes()
    column = pa.Array.from_buffers(
        pa.decimal128(10, 2), 4, [None, whole.slice(offset, aligned.size)]
    )
    table = pa.table({"price": column})
    with pytest.raises(BaseException, match="not aligned") as caught:
        lance.write_dataset(table, str(tmp_path / "t"))
    assert is_panic(caught.value)
    assert not isinstance(caught.value, Exception)
    with (
        pytest.raises(StorageError, match=r"OMNIGRAPH_STORAGE\] Writing t failed"),
        translated("Writing t"),
    ):
        lance.write_dataset(table, str(tmp_path / "t"))


# --- staging -----------------------------------------------------------------------------------


def test_staged_fragments_are_no_version_and_make_the_folder_first(tmp_path: Path) -> None:
    table = created(tmp_path / "t")
    staged(table.uri, "c")
    assert lance.dataset(table.uri).version == 1
    staged(str(tmp_path / "new"), "c", mode="create")
    assert os.listdir(tmp_path / "new") == ["data"]
    with pytest.raises(ValueError, match="was not found"):
        lance.dataset(str(tmp_path / "new"))


def test_mode_create_fails_where_a_dead_creator_left_a_dataset(tmp_path: Path) -> None:
    leftover = created(tmp_path / "t")
    with pytest.raises(OSError, match="Dataset already exists"):
        staged(leftover.uri, "c", mode="create")


def test_an_overwrite_takes_over_what_a_dead_creator_left_as_version_2(tmp_path: Path) -> None:
    leftover = created(tmp_path / "t")
    fragments = staged(leftover.uri, "c", mode="overwrite")
    taken = LanceDataset.commit(
        leftover.uri, Op.Overwrite(leftover.schema, fragments), read_version=1, max_retries=0
    )
    assert (taken.version, ids(taken), taken.has_stable_row_ids) == (2, ["c"], True)


def test_an_overwrite_cannot_add_stable_row_ids(tmp_path: Path) -> None:
    leftover = created(tmp_path / "t", enable_stable_row_ids=False)
    fragments = staged(leftover.uri, "c", mode="overwrite")
    taken = LanceDataset.commit(
        leftover.uri,
        Op.Overwrite(leftover.schema, fragments),
        read_version=1,
        max_retries=0,
        enable_stable_row_ids=True,
    )
    assert not taken.has_stable_row_ids


def test_an_append_compares_no_field_ids_so_values_land_in_the_wrong_columns(
    tmp_path: Path,
) -> None:
    data = pa.table({"first": ["1"], "second": ["2"]})
    table = created(tmp_path / "t", data)
    fragments = write_fragments(data, table.uri, mode="append")
    lance.write_dataset(data.select(["second", "first"]), table.uri, mode="overwrite")
    after = LanceDataset.commit(table.uri, Op.Append(fragments), read_version=2)
    assert after.to_table().to_pydict() == {"second": ["2", "1"], "first": ["1", "2"]}


# --- commits of one table ----------------------------------------------------------------------


@pytest.mark.parametrize("retries", [20, 0])
def test_an_append_rebases_over_an_orphan_and_shows_its_rows(tmp_path: Path, retries: int) -> None:
    table = created(tmp_path / "t")
    fragments = staged(table.uri, "mine")
    append(table, "orphan")
    after = LanceDataset.commit(
        table.uri, Op.Append(fragments), read_version=1, max_retries=retries
    )
    assert ids(after) == ["a", "b", "mine", "orphan"]
    assert after.version == 3, "the only sign: not read_version + 1"


def test_an_overwrite_is_strict_with_0_retries_and_swallows_a_rival_without(
    tmp_path: Path,
) -> None:
    table = created(tmp_path / "t")
    operation = Op.Overwrite(table.schema, staged(table.uri, "mine", mode="overwrite"))
    append(table, "rival")
    with pytest.raises(CommitConflictError, match="Commit conflict for version 2"):
        LanceDataset.commit(table.uri, operation, read_version=1, max_retries=0)
    assert ids(table) == ["a", "b", "rival"]
    after = LanceDataset.commit(table.uri, operation, read_version=1)
    assert ids(after) == ["mine"]


def test_a_merge_of_all_fragments_is_a_strict_append(tmp_path: Path) -> None:
    table = created(tmp_path / "t")
    old = [one.metadata for one in table.get_fragments()]
    operation = Op.Merge([*old, *staged(table.uri, "mine")], table.lance_schema)
    landed = LanceDataset.commit(table.uri, operation, read_version=1, max_retries=0)
    assert (landed.version, ids(landed)) == (2, ["a", "b", "mine"])
    with pytest.raises(CommitConflictError, match="preempted by concurrent transaction"):
        LanceDataset.commit(table.uri, operation, read_version=1, max_retries=0)


def test_a_restore_lands_over_newer_rows_and_hides_them_whatever_the_retries(
    tmp_path: Path,
) -> None:
    table = created(tmp_path / "t")
    append(table, "hidden")
    after = LanceDataset.commit(table.uri, Op.Restore(1), read_version=1, max_retries=0)
    assert (after.version, ids(after)) == (3, ["a", "b"])


def test_an_append_on_a_restore_is_clean(tmp_path: Path) -> None:
    table = created(tmp_path / "t")
    append(table, "orphan")
    LanceDataset.commit(table.uri, Op.Restore(1), read_version=2)
    after = LanceDataset.commit(table.uri, Op.Append(staged(table.uri, "mine")), read_version=3)
    assert (after.version, ids(after)) == (4, ["a", "b", "mine"])


def test_an_append_read_before_a_concurrent_restore_is_refused(tmp_path: Path) -> None:
    table = created(tmp_path / "t")
    fragments = staged(table.uri, "mine")
    append(table, "orphan")
    LanceDataset.commit(table.uri, Op.Restore(1), read_version=2)
    with pytest.raises(CommitConflictError, match="incompatible with concurrent transaction"):
        LanceDataset.commit(table.uri, Op.Append(fragments), read_version=2)


def test_a_restore_brings_auto_cleanup_keys_back(tmp_path: Path) -> None:
    cleanup = AutoCleanupConfig(interval=20, older_than_seconds=14 * 86400)
    table = created(tmp_path / "t", auto_cleanup_options=cleanup)
    keys = {"lance.auto_cleanup.interval": "20", "lance.auto_cleanup.older_than": "14days"}
    assert table.config() == keys
    table.delete_config_keys(list(keys))
    assert lance.dataset(table.uri).config() == {}
    after = LanceDataset.commit(table.uri, Op.Restore(1), read_version=2)
    assert after.config() == keys


def test_delete_config_keys_returns_nothing_and_makes_a_version(tmp_path: Path) -> None:
    table = created(tmp_path / "t")
    table.update_config({"lance.auto_cleanup.interval": "20"})
    result: object = table.delete_config_keys(["lance.auto_cleanup.interval"])  # type: ignore[func-returns-value]
    assert result is None
    assert lance.dataset(table.uri).version == 3


def test_a_delete_rebases_over_an_append_even_with_0_retries(tmp_path: Path) -> None:
    table = created(tmp_path / "t")
    changed = without(table, "id = 'a'")
    append(table, "rival")
    after = LanceDataset.commit(
        table.uri, Op.Delete([changed], [], "id = 'a'"), read_version=1, max_retries=0
    )
    assert (after.version, ids(after)) == (3, ["b", "rival"])


def test_two_updates_of_one_fragment_collide(tmp_path: Path) -> None:
    table = created(tmp_path / "t")
    one, two = (without(table, f"id = '{key}'") for key in "ab")
    LanceDataset.commit(table.uri, Op.Update(updated_fragments=[one]), read_version=1)
    with pytest.raises(CommitConflictError, match="preempted by concurrent transaction Update"):
        LanceDataset.commit(table.uri, Op.Update(updated_fragments=[two]), read_version=1)


def test_properties_of_a_transaction_are_readable_at_head(tmp_path: Path) -> None:
    table = created(tmp_path / "t")
    transaction = lance.Transaction(
        read_version=1,
        operation=Op.Append(staged(table.uri, "c")),
        transaction_properties={"publish_id": "01A"},
    )
    after = LanceDataset.commit(table.uri, transaction)
    seen = lance.dataset(table.uri).read_transaction(after.version)
    assert seen is not None
    assert seen.transaction_properties == {"publish_id": "01A"}
    assert isinstance(seen.operation, Op.Append)


def test_the_transaction_of_a_restore_names_the_version_that_it_restored(
    tmp_path: Path,
) -> None:
    table = created(tmp_path / "t")
    append(table, "orphan")
    LanceDataset.commit(table.uri, Op.Restore(1), read_version=2)
    seen = lance.dataset(table.uri).read_transaction(3)
    assert seen is not None
    assert isinstance(seen.operation, Op.Restore)
    assert seen.operation.version == 1


def test_an_overwrite_drops_the_indices(tmp_path: Path) -> None:
    table = created(tmp_path / "t")
    table.create_scalar_index("id", "BTREE")
    assert [one.name for one in lance.dataset(table.uri).describe_indices()] == ["id_idx"]
    after = LanceDataset.commit(
        table.uri,
        Op.Overwrite(table.schema, staged(table.uri, "c", mode="overwrite")),
        read_version=2,
        max_retries=0,
    )
    assert after.describe_indices() == []


# --- publishing --------------------------------------------------------------------------------


@pytest.mark.parametrize("object_id", ["node:A", "node:A$1"], ids=["existing row", "new row"])
def test_two_writers_of_one_object_id_cannot_both_land(tmp_path: Path, object_id: str) -> None:
    one, two = manifest_pair(tmp_path / "m")
    merge(one, object_id, value=1)
    with pytest.raises(OSError, match="Too many concurrent writers"):
        merge(two, object_id, value=2)
    assert (object_id, 1) in values(one)


def test_without_the_annotation_both_land_and_the_row_is_doubled(tmp_path: Path) -> None:
    one, two = manifest_pair(tmp_path / "m", UNKEYED)
    merge(one, "node:A$1", value=1)
    merge(two, "node:A$1", value=2)
    assert values(one) == [("node:A", 0), ("node:A$1", 1), ("node:A$1", 2)]


def test_different_object_ids_both_land_even_with_0_retries(tmp_path: Path) -> None:
    one, two = manifest_pair(tmp_path / "m")
    merge(one, "node:A$5", value=5)
    merge(two, "node:A$7", value=7)
    assert values(one) == [("node:A", 0), ("node:A$5", 5), ("node:A$7", 7)]


def test_a_guard_row_in_both_lets_one_land(tmp_path: Path) -> None:
    one, two = manifest_pair(tmp_path / "m")
    merge(one, "node:A", "node:A$5", value=0)
    with pytest.raises(OSError, match="Too many concurrent writers"):
        merge(two, "node:A", "node:A$7", value=0)
    assert values(one) == [("node:A", 0), ("node:A$5", 0)]


def test_publishes_of_different_guards_pass_side_by_side(tmp_path: Path) -> None:
    one, two = manifest_pair(tmp_path / "m")
    merge(one, "node:B", "node:B$1")
    merge(two, "node:C", "node:C$1")
    assert [key for key, _ in values(one)] == ["node:A", "node:B", "node:B$1", "node:C", "node:C$1"]


def test_schema_and_field_metadata_each_make_a_version(tmp_path: Path) -> None:
    manifest, _ = manifest_pair(tmp_path / "m", UNKEYED)
    manifest.update_field_metadata({"object_id": KEY})
    assert lance.dataset(manifest.uri).version == 2
    manifest.update_schema_metadata({"stamp": "2"})
    after = lance.dataset(manifest.uri)
    assert after.version == 3
    assert after.schema.metadata == {b"stamp": b"2"}
    assert b"lance-schema:unenforced-primary-key" in after.schema.field("object_id").metadata


@pytest.mark.parametrize("value", ["true", "false"])
def test_f5_an_annotation_that_is_set_is_never_set_again(tmp_path: Path, value: str) -> None:
    manifest, _ = manifest_pair(tmp_path / "m")
    with pytest.raises(OSError, match="cannot be changed once set"):
        manifest.update_field_metadata(
            {"object_id": {"lance-schema:unenforced-primary-key": value}}
        )
    assert lance.dataset(manifest.uri).version == 1


def test_the_second_of_two_migrators_is_refused(tmp_path: Path) -> None:
    one, two = manifest_pair(tmp_path / "m", UNKEYED)
    one.update_field_metadata({"object_id": KEY})
    with pytest.raises(OSError, match="UpdateConfig transaction is incompatible") as caught:
        two.update_field_metadata({"object_id": KEY})
    assert outcome_of(caught.value) is Outcome.CONFLICT


def test_the_compare_and_swap_works_through_storage_options(bucket: Bucket) -> None:
    table = pa.table({"object_id": ["node:A"], "value": [0]}, schema=MANIFEST)
    uri, settings = f"{bucket.uri}/m", bucket.storage_options
    lance.write_dataset(table, uri, data_storage_version="2.2", storage_options=settings)
    one, two = (lance.dataset(uri, storage_options=settings) for _ in range(2))
    merge(one, "node:A", "node:A$5")
    with pytest.raises(OSError, match="Too many concurrent writers"):
        merge(two, "node:A", "node:A$7")
    after = lance.dataset(uri, storage_options=settings).to_table()["object_id"].to_pylist()
    assert sorted(after) == ["node:A", "node:A$5"]


def test_a_publish_costs_tens_of_kilobytes_whatever_its_rows(tmp_path: Path) -> None:
    manifest, _ = manifest_pair(tmp_path / "m")

    def size() -> int:
        return sum(one.stat().st_size for one in (tmp_path / "m").rglob("*") if one.is_file())

    costs = []
    for version in range(1, 4):
        before = size()
        merge(lance.dataset(manifest.uri), "node:A", f"node:A${version}")
        costs.append(size() - before)
    assert all(40_000 < cost < 100_000 for cost in costs), costs


# --- rows --------------------------------------------------------------------------------------


@pytest.mark.parametrize("predicate", ["_rowaddr IN (0)", "_rowoffset IN (0)", "_rowid IN (0)"])
def test_a_fragment_delete_is_an_uncommitted_fragment(tmp_path: Path, predicate: str) -> None:
    table = created(tmp_path / "t")
    assert without(table, predicate).num_deletions == 1
    assert lance.dataset(table.uri).version == 1


def test_delete_rows_gives_none_when_the_whole_fragment_goes(tmp_path: Path) -> None:
    fragment = created(tmp_path / "t").get_fragments()[0]
    one_less = fragment.delete_rows([0])
    assert one_less is not None
    assert one_less.num_deletions == 1
    assert fragment.delete_rows([0, 1]) is None


def test_a_merge_can_be_had_as_a_transaction(tmp_path: Path) -> None:
    table = created(tmp_path / "t")
    merged = table.merge_insert("id").when_matched_update_all().when_not_matched_insert_all()
    transaction, _ = merged.execute_uncommitted(rows("a", "z"))
    assert isinstance(transaction.operation, Op.Update)
    assert lance.dataset(table.uri).version == 1


def test_a_merge_inserts_a_repeated_new_key_twice_and_a_null_key_every_time(
    tmp_path: Path,
) -> None:
    table = created(tmp_path / "t")
    nobody = pa.table({"id": pa.array([None], pa.utf8()), "n": pa.array([1], pa.int32())})
    for data in (rows("new", "new"), nobody, nobody):
        merged = lance.dataset(table.uri).merge_insert("id")
        merged.when_matched_update_all().when_not_matched_insert_all().execute(data)
    assert lance.dataset(table.uri).to_table()["id"].to_pylist().count("new") == 2
    assert lance.dataset(table.uri).to_table()["id"].null_count == 2


def test_created_and_updated_versions_of_rows_can_be_scanned(tmp_path: Path) -> None:
    table = append(created(tmp_path / "t"), "c")
    columns = ["id", "_row_created_at_version", "_row_last_updated_at_version"]
    assert table.to_table(columns=columns).to_pylist() == [
        {"id": "a", columns[1]: 1, columns[2]: 1},
        {"id": "b", columns[1]: 1, columns[2]: 1},
        {"id": "c", columns[1]: 2, columns[2]: 2},
    ]


# --- branches ----------------------------------------------------------------------------------


def test_a_branch_is_a_dataset_of_its_own_below_tree(tmp_path: Path) -> None:
    table = created(tmp_path / "t")
    branch = table.create_branch("dev")
    assert branch.uri == f"{table.uri}/tree/dev"
    after = LanceDataset.commit(branch.uri, Op.Append(staged(branch.uri, "dev")), read_version=1)
    assert (after.version, ids(after)) == (2, ["a", "b", "dev"])
    assert (lance.dataset(table.uri).version, ids(table)) == (1, ["a", "b"])


def test_a_ref_names_the_parent_and_a_slash_in_its_name_is_encoded(tmp_path: Path) -> None:
    table = created(tmp_path / "t")
    table.create_branch("dev")
    lance.dataset(f"{table.uri}/tree/dev").create_branch("a/b")
    refs = tmp_path / "t" / "_refs" / "branches"
    assert sorted(os.listdir(refs)) == ["a%2Fb.json", "dev.json"]
    ref = json.loads((refs / "a%2Fb.json").read_text())
    assert (ref["parentBranch"], ref["parentVersion"]) == ("dev", 1)
    assert (tmp_path / "t/tree/a/b/_versions").is_dir()


def test_a_branch_keeps_its_parents_path_and_cannot_be_read_after_a_move(
    tmp_path: Path,
) -> None:
    table = created(tmp_path / "t")
    branch = table.create_branch("dev")
    assert [base.path for base in branch.base_paths().values()] == [table.uri]
    shutil.move(table.uri, tmp_path / "moved")
    moved = lance.dataset(str(tmp_path / "moved/tree/dev"))
    with pytest.raises(pa.ArrowInvalid, match=f"Not found: {table.uri}/data"):
        moved.to_table()


def test_a_fork_without_its_ref_opens_and_is_not_listed(tmp_path: Path) -> None:
    table = created(tmp_path / "t")
    table.create_branch("dev")
    (tmp_path / "t/_refs/branches/dev.json").unlink()
    assert lance.dataset(table.uri).branches.list() == {}
    assert lance.dataset(f"{table.uri}/tree/dev").version == 1


def test_a_second_fork_from_a_newer_version_does_not_find_that_version_in_the_folder(
    tmp_path: Path,
) -> None:
    table = created(tmp_path / "t")
    table.create_branch("dev")
    with pytest.raises(OSError, match=r"tree/dev/_versions/2\.manifest was not found"):
        append(table, "c").create_branch("dev")
    assert lance.dataset(f"{table.uri}/tree/dev").version == 1


@pytest.mark.parametrize("name", ["a b", "a..b", "/a", "a/", "a//b", "a.lock", "a@b", "main", ""])
def test_names_that_lance_refuses_for_a_branch_are_refused_here_too(
    tmp_path: Path, name: str
) -> None:
    with pytest.raises((OSError, ValueError), match="Ref is invalid"):
        created(tmp_path / "t").create_branch(name)
    if name != "main":
        with pytest.raises(ValueError, match=r"\[OMNIGRAPH_OPTION\]"):
            layout.check_branch_name(name)


@pytest.mark.parametrize("name", ["dev", "feature/merged", "a_b.c-d", "a/" * 33 + "b", "a" * 200])
def test_names_that_are_allowed_here_make_a_branch(tmp_path: Path, name: str) -> None:
    assert layout.check_branch_name(name) == name
    created(tmp_path / "t").create_branch(name)


# --- filters -----------------------------------------------------------------------------------


def test_special_floats_agree_with_spark_when_the_literal_is_a_cast(tmp_path: Path) -> None:
    nan, inf = float("nan"), float("inf")
    table = created(tmp_path / "t", pa.table({"x": [1.0, nan, None, 2.0, inf, -0.0]}))

    def found(predicate: str) -> str:
        return str(table.to_table(filter=predicate)["x"].to_pylist())

    assert found("x = cast('NaN' as double)") == "[nan]"
    assert found("x > 1.5") == "[nan, 2.0, inf]"
    assert found("x <= cast('NaN' as double)") == "[1.0, nan, 2.0, inf, -0.0]"
    assert found("x = 0.0") == "[-0.0]"


def test_a_decimal_needs_a_typed_literal(tmp_path: Path) -> None:
    price = pa.array([decimal.Decimal("2.50")], pa.decimal128(10, 2))
    table = created(tmp_path / "t", pa.table({"p": price}))
    assert table.to_table(filter="p > cast(2.00 as decimal(10,2))").num_rows == 1
    with pytest.raises(ValueError, match="could not convert to literal"):
        table.to_table(filter="p > 2.00")


def test_double_quotes_make_a_text_and_no_name(tmp_path: Path) -> None:
    assert created(tmp_path / "t").to_table(filter="\"n\" = 'n'").num_rows == 2


def test_a_negated_pair_of_in_keeps_null_rows(tmp_path: Path) -> None:
    table = created(tmp_path / "t", pa.table({"x": [1.0, None, 2.0]}))
    kept = table.to_table(filter="NOT (x IN (1.0) AND x IN (2.0))")
    assert kept["x"].to_pylist() == [1.0, None, 2.0]


def test_a_column_with_a_backtick_breaks_every_scan(tmp_path: Path) -> None:
    table = created(tmp_path / "t", pa.table({"b`t": [1], "o": [2]}))
    with pytest.raises(ValueError, match="No field named"):
        table.to_table()


@pytest.mark.parametrize("name", ["a.b", "_rowid"])
def test_dotted_and_reserved_names_are_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(OSError, match=r"cannot contain|reserved name"):
        created(tmp_path / "t", pa.table({name: [1]}))


def test_a_date_of_the_year_10000_is_refused(tmp_path: Path) -> None:
    table = created(tmp_path / "t", pa.table({"d": [date(2020, 1, 1)]}))
    with pytest.raises(ValueError, match="Cannot cast string '10000-01-01'"):
        table.to_table(filter="d < date '10000-01-01'")


# --- versions and files ------------------------------------------------------------------------


def test_manifests_have_the_names_of_the_v2_scheme(tmp_path: Path) -> None:
    table = append(created(tmp_path / "t"), "c")
    names = {one for one in os.listdir(tmp_path / "t/_versions") if one.endswith(".manifest")}
    assert names == {layout.v2_manifest_name(1), layout.v2_manifest_name(2)}
    assert table.data_storage_version == "2.2"
    assert table.has_stable_row_ids


def test_write_dataset_sets_no_auto_cleanup(tmp_path: Path) -> None:
    assert created(tmp_path / "t").config() == {}


def test_a_file_that_an_orphan_and_a_later_version_share_survives_a_cleanup(
    tmp_path: Path,
) -> None:
    table = created(tmp_path / "t")
    fragments = staged(table.uri, "shared")
    LanceDataset.commit(table.uri, Op.Append(fragments), read_version=1)
    LanceDataset.commit(table.uri, Op.Restore(1), read_version=2)
    after = LanceDataset.commit(table.uri, Op.Append(fragments), read_version=3)
    after.cleanup_old_versions(older_than=timedelta(0), delete_unverified=True)
    assert ids(after) == ["a", "b", "shared"]


def test_a_staged_file_survives_a_cleanup_that_does_not_delete_unverified(
    tmp_path: Path,
) -> None:
    table = created(tmp_path / "t")
    staged(table.uri, "c")
    table.cleanup_old_versions(older_than=timedelta(0))
    assert len(os.listdir(tmp_path / "t/data")) == 2
    table.cleanup_old_versions(older_than=timedelta(0), delete_unverified=True)
    assert len(os.listdir(tmp_path / "t/data")) == 1


def test_what_a_cleanup_took_away_is_not_found_in_two_spellings(tmp_path: Path) -> None:
    table = created(tmp_path / "t")
    lance.write_dataset(rows("c"), table.uri, mode="overwrite").cleanup_old_versions(
        older_than=timedelta(0)
    )
    with pytest.raises(ValueError, match="was not found") as opened:
        lance.dataset(table.uri, version=1)
    with pytest.raises(pa.ArrowInvalid, match="Not found") as scanned:
        table.to_table()
    assert outcome_of(opened.value) is outcome_of(scanned.value) is Outcome.NOT_FOUND


def test_a_version_lists_all_fragments_so_small_appends_grow_quadratically(
    tmp_path: Path,
) -> None:
    table = created(tmp_path / "t")
    for _ in range(39):
        append(table, "c")
    sizes = [
        (tmp_path / "t/_versions" / layout.v2_manifest_name(version)).stat().st_size
        for version in (10, 20, 30, 40)
    ]
    steps = [sizes[1] - sizes[0], sizes[2] - sizes[1], sizes[3] - sizes[2]]
    assert min(steps) > 500, "bytes per ten fragments"
    assert max(steps) < 1.5 * min(steps)


# --- what lance_errors makes of it -------------------------------------------------------------


def _second_creator(path: Path) -> None:
    created(path)
    created(path)


def _second_creator_with_a_commit(path: Path) -> None:
    fragments = staged(str(path), "c", mode="create")
    for _ in range(2):
        LanceDataset.commit(
            str(path), Op.Overwrite(rows("c").schema, fragments), read_version=0, max_retries=0
        )


def _second_fork(path: Path) -> None:
    table = created(path)
    for _ in range(2):
        lance.dataset(table.uri).create_branch("dev")


def _overwrite_of_an_old_version(path: Path) -> None:
    table = created(path)
    operation = Op.Overwrite(table.schema, staged(table.uri, "c", mode="overwrite"))
    append(table, "rival")
    LanceDataset.commit(table.uri, operation, read_version=1, max_retries=0)


def _append_before_a_restore(path: Path) -> None:
    table = created(path)
    append(table, "orphan")
    LanceDataset.commit(table.uri, Op.Restore(1), read_version=2)
    LanceDataset.commit(table.uri, Op.Append(staged(table.uri, "c")), read_version=2)


def _merge_of_a_taken_row(path: Path) -> None:
    one, two = manifest_pair(path)
    merge(one, "node:A")
    merge(two, "node:A")


def _update_of_a_taken_fragment(path: Path) -> None:
    table = created(path)
    one, two = (without(table, f"id = '{key}'") for key in "ab")
    LanceDataset.commit(table.uri, Op.Update(updated_fragments=[one]), read_version=1)
    LanceDataset.commit(table.uri, Op.Update(updated_fragments=[two]), read_version=1)


def _rewrite_against_a_delete(path: Path) -> None:
    table = created(path)
    append(table, "c")
    stale = lance.dataset(table.uri)
    task = Compaction.plan(stale, {"target_rows_per_fragment": 100}).tasks[0]
    done = task.execute(stale)
    lance.dataset(table.uri).delete("id = 'a'")
    Compaction.commit(stale, [done])


@pytest.mark.parametrize(
    "force",
    [
        _second_creator,
        _second_creator_with_a_commit,
        _second_fork,
        _overwrite_of_an_old_version,
        _append_before_a_restore,
        _merge_of_a_taken_row,
        _update_of_a_taken_fragment,
        _rewrite_against_a_delete,
    ],
)
def test_every_lost_race_is_a_conflict(tmp_path: Path, force: Callable[[Path], None]) -> None:
    with pytest.raises(Exception, match=r"\S") as caught:
        force(tmp_path / "t")
    assert outcome_of(caught.value) is Outcome.CONFLICT, caught.value


def _open_nothing(path: Path) -> None:
    lance.dataset(str(path))


def _open_version(version: int) -> Callable[[Path], None]:
    def opening(path: Path) -> None:
        lance.dataset(created(path).uri, version=version)

    opening.__name__ = f"_open_version_{version}"
    return opening


def _append_to_nothing(path: Path) -> None:
    LanceDataset.commit(str(path), Op.Append([]), read_version=1)


def _append_to_a_missing_version(path: Path) -> None:
    table = created(path)
    LanceDataset.commit(table.uri, Op.Append(staged(table.uri, "c")), read_version=7)


@pytest.mark.parametrize(
    "force",
    [
        _open_nothing,
        _open_version(99),
        _open_version(10),
        _append_to_nothing,
        _append_to_a_missing_version,
    ],
)
def test_what_is_not_there_is_not_found(tmp_path: Path, force: Callable[[Path], None]) -> None:
    with (
        pytest.raises(DatasetNotFoundError, match=r"OMNIGRAPH_STORAGE\] Opening t: it isn't there"),
        translated("Opening t"),
    ):
        force(tmp_path / "t")


def test_what_the_caller_did_wrong_is_neither_a_conflict_nor_missing(tmp_path: Path) -> None:
    table = created(tmp_path / "t")
    for wrong in (
        lambda: table.to_table(filter="nothing = 1"),
        lambda: write_fragments(pa.table({"q": [1]}), table.uri, mode="append"),
        lambda: manifest_pair(tmp_path / "m")[0].update_field_metadata({"object_id": KEY}),
    ):
        with pytest.raises((OSError, ValueError), match=r"\S") as caught:
            wrong()
        assert outcome_of(caught.value) is Outcome.FAILED, caught.value


def test_an_unknown_outcome_is_told_from_a_conflict_by_its_text() -> None:
    """Lance's sentence when a store stays dark; forced with a store in the fault tests."""
    error = OSError("Commit result for version 7 is unknown: error sending request")
    assert outcome_of(error) is Outcome.UNKNOWN


@pytest.mark.parametrize("stable", [False, True])
def test_a_session_takes_a_dataset_that_was_made_again_for_another_one(
    tmp_path: Path, stable: bool
) -> None:
    """Same place, same version numbers, other files: what is kept is kept by the files' tags."""
    session = lance.Session()  # type: ignore[attr-defined]
    seen = []
    for value in ("a", "b"):
        shutil.rmtree(tmp_path / "t", ignore_errors=True)
        made = created(tmp_path / "t", rows(value, "x"), enable_stable_row_ids=stable)
        lance.write_dataset(rows(f"{value}2"), made, mode="append")
        there = lance.dataset(made.uri, session=session)
        alone = lance.dataset(made.uri)
        assert there.version == alone.version == 2
        assert there.to_table(with_row_id=True) == alone.to_table(with_row_id=True)
        older = there.checkout_version(1)
        assert older.to_table() == rows(value, "x")
        seen.append(there.read_transaction(2).uuid)
        assert seen[-1] == alone.read_transaction(2).uuid
    assert seen[0] != seen[1]


def test_a_session_hides_no_version_of_another_writer(tmp_path: Path) -> None:
    session = lance.Session()  # type: ignore[attr-defined]
    uri = created(tmp_path / "t", rows("a")).uri
    assert lance.dataset(uri, session=session).version == 1
    lance.write_dataset(rows("b"), uri, mode="append")
    assert lance.dataset(uri, session=session).version == 2
    os.remove(next(path for path in (tmp_path / "t/_versions").iterdir() if "614" in path.name))
    with pytest.raises((OSError, ValueError)) as caught:
        lance.dataset(uri, version=1, session=session)
    assert outcome_of(caught.value) is Outcome.NOT_FOUND
