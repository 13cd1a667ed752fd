"""The checker of tests/format_checker.py: the engine's graphs pass, damaged ones don't."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest

from tests.format_checker import check_graph
from tests.support import graphs

PERSON = "nodes/40d76f1f51639ec0"
PUBLISH_ID = "01M8FNDWKG190SV9YE9P33ECS6"
Row = dict[str, Any]
ACTOR: Row = {
    "graph_commit_id": PUBLISH_ID,
    "actor_id": "me",
    "created_at": "2026-01-01T00:00:00",
}


@pytest.fixture
def social(tmp_path: Path) -> Path:
    return graphs.unpack("v2", "social", tmp_path)


@pytest.mark.parametrize(
    ("generation", "graph"), [one[:2] for one in graphs.ALL_GRAPHS if one[0] != "newer"]
)
def test_graphs_that_the_engine_wrote_have_no_violation(
    generation: str, graph: str, tmp_path: Path
) -> None:
    assert check_graph(str(graphs.unpack(generation, graph, tmp_path))) == []


def test_a_moved_graph_with_branches_has_no_violation(tmp_path: Path) -> None:
    root = graphs.unpack("v2", "rich", tmp_path / "before")
    moved = shutil.move(root, tmp_path / "after")
    assert check_graph(str(moved)) == []


def test_a_folder_that_is_no_graph_is_said_to_be_none(tmp_path: Path) -> None:
    assert check_graph(str(tmp_path)) == [f"{tmp_path}: no __manifest"]


def test_a_stamp_that_no_release_had_is_a_violation(tmp_path: Path) -> None:
    root = graphs.unpack("newer", "social", tmp_path)
    manifest = lance.dataset(str(root / "__manifest"))
    manifest.update_schema_metadata({"omnigraph:internal_schema_version": "5"})
    assert_found(root, "stamp b'5'")


# --- the tree ----------------------------------------------------------------------------------


def test_a_stray_file_is_found(social: Path) -> None:
    (social / "_SUCCESS").touch()
    assert check_graph(str(social)) == ["_SUCCESS: is not a part of a graph"]


@pytest.mark.parametrize("path", ["__recovery/01A.json", "__staging/01A/0.json"])
def test_what_a_writer_left_over_is_found_unless_it_was_killed(social: Path, path: str) -> None:
    (social / path).parent.mkdir(parents=True, exist_ok=True)
    (social / path).write_text("{}")
    assert check_graph(str(social)) == [f"{path}: left over"]
    assert check_graph(str(social), crashed=True) == []


def test_a_dataset_that_no_table_row_names_is_found(social: Path) -> None:
    lance.write_dataset(pa.table({"id": ["a"]}), str(social / "nodes/0123456789abcdef"))
    assert_found(social, "nodes/0123456789abcdef: no table row")


# --- __manifest --------------------------------------------------------------------------------


def test_a_location_that_is_not_the_hash_of_the_name_is_found(social: Path) -> None:
    shutil.copytree(social / PERSON, social / "nodes/people")
    change(social, "node:Person", location="nodes/people")
    assert_found(social, f"location nodes/people, not {PERSON}")


def test_an_object_id_of_another_version_is_found(social: Path) -> None:
    change(social, f"node:Person${4:020}", object_id=f"node:Person${3:020}")
    assert_found(social, f"object_id is not node:Person${4:020}")


def test_a_row_that_repeats_the_healed_version_is_no_violation(social: Path) -> None:
    def repeat(rows: list[Row]) -> list[Row]:
        healed = next(one for one in rows if one["object_id"] == f"node:Person${4:020}")
        return [*rows, {**healed, "object_id": f"node:Person${3:020}"}]

    rewrite(social, repeat)
    assert check_graph(str(social)) == []


def test_a_version_without_a_table_row_is_found(social: Path) -> None:
    rewrite(social, lambda rows: [one for one in rows if one["object_id"] != "node:Person"])
    assert_found(social, "no table row of node:Person")


def test_contradicting_rows_of_one_object_id_are_found(social: Path) -> None:
    rewrite(social, lambda rows: [*rows, {**rows[-1], "row_count": 99}])
    assert_found(social, "two rows of")


def test_metadata_without_a_manifest_path_is_found(social: Path) -> None:
    change(social, f"node:Person${4:020}", metadata='{"naming_scheme": "V2"}')
    assert_found(social, "metadata without manifest_path")


def test_a_stamp_without_the_primary_key_annotation_is_found(social: Path) -> None:
    rewrite(social, lambda rows: rows, annotated=False)
    assert_found(social, "stamp b'2' with primary-key annotation None")


def test_a_wrong_row_count_is_found(social: Path) -> None:
    change(social, f"node:Person${4:020}", row_count=9)
    assert_found(social, "row_count 9, and 4 rows")


def test_a_pin_above_head_is_found(social: Path) -> None:
    change(social, f"node:Person${4:020}", object_id=f"node:Person${9:020}", table_version=9)
    assert_found(social, "pinned at 9, above HEAD 4")


def test_a_branch_that_the_table_has_not_is_found(social: Path) -> None:
    change(social, f"node:Person${4:020}", table_branch="dev")
    assert_found(social, "the table has no branch dev")


# --- what this connector writes ----------------------------------------------------------------


def ours(social: Path, **metadata: object) -> None:
    """Make the published version of Person look like one of our writes."""
    name = f"{0xFFFFFFFFFFFFFFFF - 4:020}.manifest"
    path = social / PERSON / "_versions" / name
    told = {
        "manifest_path": str(path).lstrip("/"),
        "manifest_size": path.stat().st_size,
        "e_tag": None,
        "naming_scheme": "V2",
        "omnigraph_spark": {"publish_id": PUBLISH_ID},
        **metadata,
    }
    change(social, f"node:Person${4:020}", metadata=json.dumps(told))


def test_settings_of_auto_cleanup_on_what_we_wrote_are_found(social: Path) -> None:
    ours(social)
    for where in (PERSON, "__manifest", "_graph_commits.lance"):
        assert_found(social, f"{where}: written by us, and still has")
    assert not any("actors" in one for one in check_graph(str(social))), "nothing written there"
    edit_log(social, "_graph_commit_actors.lance", lambda _: [ACTOR])
    assert_found(social, "_graph_commit_actors.lance: written by us, and still has")


def test_a_publish_without_a_row_in_the_lineage_is_found(social: Path) -> None:
    ours(social)
    assert_found(social, f"publish {PUBLISH_ID}: has no row")
    assert not any("has no row" in one for one in check_graph(str(social), crashed=True))


def test_a_publish_id_that_is_no_ulid_is_found(social: Path) -> None:
    ours(social, omnigraph_spark={"publish_id": "mine"})
    assert_found(social, "publish id 'mine' is not a ULID")


def test_a_wrong_manifest_size_is_found(social: Path) -> None:
    ours(social, manifest_size=1)
    assert_found(social, "manifest_size 1, not")


def test_a_manifest_path_under_another_root_is_found_unless_the_graph_was_moved(
    social: Path,
) -> None:
    name = f"{0xFFFFFFFFFFFFFFFF - 4:020}.manifest"
    ours(social, manifest_path=f"elsewhere/{PERSON}/_versions/{name}")
    assert_found(social, "manifest_path elsewhere")
    assert not any("manifest_path" in one for one in check_graph(str(social), moved=True))


def test_rows_above_the_published_version_are_found_until_they_are_restored_away(
    social: Path,
) -> None:
    ours(social)
    uri = str(social / PERSON)
    lance.write_dataset(
        pa.table({"id": ["Zoe"], "age": pa.array([1], pa.int32()), "name": ["Zoe"]}),
        uri,
        mode="append",
    )
    assert_found(social, "HEAD 5 holds more than the pinned 4")
    lance.LanceDataset.commit(uri, lance.LanceOperation.Restore(4), read_version=5)
    assert not any("holds more" in one for one in check_graph(str(social)))


# --- tables ------------------------------------------------------------------------------------


def test_a_table_without_stable_row_ids_is_found(social: Path) -> None:
    rows = lance.dataset(str(social / PERSON)).to_table()
    shutil.rmtree(social / PERSON)
    for mode in ("create", "overwrite", "overwrite", "overwrite"):
        lance.write_dataset(rows, str(social / PERSON), mode=mode, data_storage_version="2.2")
    assert_found(social, f"{PERSON}: no stable row ids")


def test_a_table_of_an_older_storage_version_is_found(social: Path) -> None:
    replace_person(social, lambda rows: rows, version="2.0")
    assert_found(social, f"{PERSON}: storage version 2.0, not 2.2")


def test_an_id_that_is_not_the_key_is_found(social: Path) -> None:
    replace_person(
        social,
        lambda rows: rows.set_column(0, rows.schema.field("id"), pa.array(["1", "2", "3", "4"])),
    )
    assert_found(social, "node:Person: an id isn't the value of its key name")


def test_a_table_that_does_not_begin_with_id_is_found(social: Path) -> None:
    replace_person(social, lambda rows: rows.select(["name", "age", "id"]))
    assert_found(social, "not with ['id'] as utf8 not null")


def test_a_column_of_another_type_than_declared_is_found(social: Path) -> None:
    replace_person(social, lambda rows: rows.set_column(1, "age", rows["age"].cast(pa.int64())))
    assert_found(social, "column pyarrow.Field<age: int64>")


def test_a_not_null_column_that_the_engine_does_not_know_is_found(social: Path) -> None:
    replace_person(
        social,
        lambda rows: rows.append_column(
            pa.field("extra", pa.utf8(), nullable=False), pa.array(["x"] * 4)
        ),
    )
    assert_found(social, "node:Person: extra is not null, and unknown to _schema.pg")


# --- schema files ------------------------------------------------------------------------------


def test_a_table_that_the_schema_files_do_not_know_is_found(social: Path) -> None:
    text = (social / "_schema.pg").read_text()
    (social / "_schema.pg").write_text(text.replace("node Company", "node Firm"))
    assert_found(social, "node:Company: published, and unknown to _schema.pg")
    assert_found(social, "_schema.ir.json: disagrees")
    assert_found(social, "edge WorksAt ends at Company, which is not a node")


def test_a_state_file_with_another_hash_is_found(social: Path) -> None:
    path = social / "__schema_state.json"
    path.write_text(path.read_text().replace("sha256:e", "sha256:0"))
    assert check_graph(str(social)) == [
        "__schema_state.json: schema_ir_hash isn't the hash of the IR"
    ]


@pytest.mark.parametrize("name", ["_schema.pg", "_schema.ir.json", "__schema_state.json"])
def test_a_missing_schema_file_is_found(social: Path, name: str) -> None:
    (social / name).unlink()
    assert_found(social, "schema files: only")


# --- lineage and runs --------------------------------------------------------------------------


def test_a_parent_that_is_not_there_is_found(social: Path) -> None:
    edit_log(social, "_graph_commits.lance", lambda rows: rows[1:])
    assert_found(social, "parent_commit_id")
    assert_found(social, "0 commits have no parent")


def test_two_commits_of_one_version_are_found(social: Path) -> None:
    edit_log(
        social,
        "_graph_commits.lance",
        lambda rows: [*rows, {**rows[1], "graph_commit_id": PUBLISH_ID}],
    )
    assert_found(social, "are both version 4")


def test_a_commit_of_a_version_to_come_is_found(social: Path) -> None:
    edit_log(
        social, "_graph_commits.lance", lambda rows: [rows[0], {**rows[1], "manifest_version": 99}]
    )
    assert_found(social, "version 99 of main isn't there")


def test_an_actor_of_no_commit_is_found(social: Path) -> None:
    edit_log(social, "_graph_commit_actors.lance", lambda _: [ACTOR])
    assert_found(social, f"actor of {PUBLISH_ID}: no such commit")


def test_a_missing_lineage_is_found(social: Path) -> None:
    shutil.rmtree(social / "_graph_commits.lance")
    assert_found(social, "_graph_commits.lance: isn't there")


def test_a_run_that_never_ended_is_found_unless_its_writer_was_killed(tmp_path: Path) -> None:
    root = graphs.unpack("v1", "social", tmp_path)
    edit_log(
        root,
        "_graph_runs.lance",
        lambda rows: [{**rows[0], "run_id": PUBLISH_ID, "status": "running"}],
    )
    assert_found(root, f"run {PUBLISH_ID}: is still running")
    assert check_graph(str(root), crashed=True) == []


# --- damage ------------------------------------------------------------------------------------


def assert_found(root: Path, what: str) -> None:
    found = check_graph(str(root))
    assert any(what in one for one in found), found


def change(root: Path, row: str, /, **values: object) -> None:
    """Change columns of one row of `__manifest`."""
    rewrite(
        root,
        lambda rows: [{**one, **values} if one["object_id"] == row else one for one in rows],
    )


def rewrite(root: Path, edit: Callable[[list[Row]], list[Row]], annotated: bool = True) -> None:
    """Replace the rows of `__manifest`; the dataset's settings stay."""
    uri = str(root / "__manifest")
    manifest = lance.dataset(uri)
    rows = edit(manifest.to_table().to_pylist())
    schema = manifest.schema
    if not annotated:
        shutil.rmtree(uri)
        schema = schema.set(0, schema.field(0).with_metadata({}))
        for _ in range(manifest.version):  # the lineage names its versions
            lance.write_dataset(
                pa.Table.from_pylist(rows, schema),
                uri,
                mode="overwrite",
                data_storage_version="2.2",
            )
        return
    lance.write_dataset(pa.Table.from_pylist(rows, schema), uri, mode="overwrite")


def replace_person(root: Path, edit: Callable[[pa.Table], pa.Table], version: Any = "2.2") -> None:
    """Make the table again with other rows, its version 4 again the published one."""
    rows = edit(lance.dataset(str(root / PERSON)).to_table())
    shutil.rmtree(root / PERSON)
    for _ in range(4):
        lance.write_dataset(
            rows,
            str(root / PERSON),
            mode="overwrite",
            data_storage_version=version,
            enable_stable_row_ids=True,
        )


def edit_log(root: Path, name: str, edit: Callable[[list[Row]], list[Row]]) -> None:
    uri = str(root / name)
    log = lance.dataset(uri)
    rows = edit(log.to_table().to_pylist())
    columns = [pa.array([one[field.name] for one in rows]).cast(field.type) for field in log.schema]
    lance.write_dataset(pa.table(columns, schema=log.schema), uri, mode="overwrite")
