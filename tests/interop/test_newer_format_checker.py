"""The checker knows stamps 4 and 6: graphs of engine 0.9 pass, each rule that is broken is found."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest

from omnigraph_spark.schema import ir2
from omnigraph_spark.schema.pg import parse_pg
from tests.format_checker import check_graph
from tests.support import graphs

Row = dict[str, Any]
PERSON = "nodes/0000000000000002-000000000000000a"
ULID = "01M8FNDWKG190SV9YE9P33ECS6"
KEYED = "lance-schema:unenforced-primary-key"


@pytest.fixture
def social(tmp_path: Path) -> Path:
    return graphs.unpack("v6", "social", tmp_path)


@pytest.mark.parametrize(
    ("generation", "graph"),
    [("v6", "social"), ("v6", "rich"), ("v6", "constraints"), ("newer", "social")],
)
def test_graphs_that_the_engine_wrote_have_no_violation(
    generation: str, graph: str, tmp_path: Path
) -> None:
    assert check_graph(str(graphs.unpack(generation, graph, tmp_path))) == []


# --- the tree ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["_graph_commits.lance/x", "_schema.pg.staging", "_SUCCESS"])
def test_what_such_a_graph_has_not_is_found(social: Path, name: str) -> None:
    (social / name).parent.mkdir(exist_ok=True)
    (social / name).touch()
    assert check_graph(str(social)) == [
        f"{name.split('/', maxsplit=1)[0]}: is not a part of a graph"
    ]


def test_the_files_of_a_schema_change_that_died_are_found_unless_its_writer_was_killed(
    social: Path,
) -> None:
    (social / "_schema.ir.json.staging").touch()
    lance.dataset(str(social / "__manifest")).create_branch("__schema_apply_lock__")
    assert_found(social, "_schema.ir.json.staging: is not a part")
    assert_found(social, "the lock of a schema change is left over")
    assert check_graph(str(social), crashed=True) == []


@pytest.mark.parametrize(
    ("record", "what"),
    [
        ("{", "is not a JSON object"),
        ({"schema_version": 9, "operation_id": "other", "tables": []}, "with the id"),
        ({"schema_version": 10, "operation_id": ULID, "tables": []}, "schema 9"),
        ({"schema_version": 9, "operation_id": ULID, "tables": [{"table_key": "x"}]}, "identity"),
    ],
)
def test_a_record_that_the_engine_cannot_parse_is_found_even_after_a_crash(
    social: Path, record: object, what: str
) -> None:
    path = social / "__recovery" / f"{ULID}.json"
    path.write_text(record if isinstance(record, str) else json.dumps(record))
    found = check_graph(str(social), crashed=True)
    assert any(what in one for one in found), found


def test_a_record_that_can_be_parsed_is_left_over_once_nobody_writes(social: Path) -> None:
    record = {"schema_version": 9, "operation_id": ULID, "tables": []}
    (social / "__recovery" / f"{ULID}.json").write_text(json.dumps(record))
    assert check_graph(str(social)) == [f"__recovery/{ULID}.json: left over"]
    assert check_graph(str(social), crashed=True) == []


def test_a_dataset_that_no_table_row_names_is_found(social: Path) -> None:
    lance.write_dataset(pa.table({"id": ["a"]}), str(social / "nodes/0123456789abcdef"))
    assert_found(social, "nodes/0123456789abcdef: no table row")


def test_a_branch_below_another_is_found(social: Path) -> None:
    lance.dataset(str(social / "__manifest")).create_branch("dev/x")
    assert_found(social, "branch dev/x: lies below branch dev")


# --- __manifest as a dataset -------------------------------------------------------------------


def test_an_index_and_settings_of_the_manifest_are_found(social: Path) -> None:
    manifest = lance.dataset(str(social / "__manifest"))
    manifest.create_scalar_index("object_id", "BTREE")
    manifest.update_config({"lance.auto_cleanup.interval": "20"})
    assert_found(social, "__manifest: has an index")
    assert_found(social, "__manifest: has the settings lance.auto_cleanup.interval")


def test_another_stamp_of_a_branch_is_found(social: Path) -> None:
    branch = lance.dataset(str(social / "__manifest")).checkout_version(("dev", None))
    branch.update_schema_metadata({"omnigraph:internal_schema_version": "5"})
    assert_found(social, "branch dev: stamp b'5', not 6")


def test_a_manifest_without_its_primary_key_is_found(social: Path) -> None:
    rewrite(social, lambda rows: rows, keyed=False)
    assert_found(social, "__manifest: object_id isn't the primary key")


# --- rows --------------------------------------------------------------------------------------

VERSION = f"table_version:{2:016x}:{10:016x}:{7:020}"
TABLE = f"table:{2:016x}:{10:016x}"


@pytest.mark.parametrize(
    ("row", "values", "what"),
    [
        (VERSION, {"object_id": f"{VERSION[:-1]}4"}, f"object_id is not {VERSION}"),
        (VERSION, {"table_incarnation_id": 99}, "object_id is not"),
        (VERSION, {"stable_table_id": None}, "has the ids (None, 10)"),
        (VERSION, {"stable_table_id": 0}, "has the ids (0, 10)"),
        (VERSION, {"row_count": None}, "no table_version or row_count"),
        (VERSION, {"metadata": None}, "metadata without manifest_path"),
        (VERSION, {"metadata": '{"manifest_path": 1}'}, "metadata without manifest_path"),
        (VERSION, {"row_count": 77}, "row_count 77, and"),
        (TABLE, {"location": "nodes/40d76f1f51639ec0"}, f"not {PERSON}"),
        (TABLE, {"table_key": "node:Human"}, "in _schema.ir.json None"),
        (TABLE, {"table_key": "node:Company"}, "2 live tables of the name node:Company"),
        ("graph_head:main", {"metadata": "x"}, "metadata 'x' of a head"),
        ("graph_head:main", {"metadata": '{"head_commit_id":"01"}'}, "head 01, newest"),
        ("graph_head:main", {"stable_table_id": 2}, "has the ids (2, None)"),
        ("graph_head:main", {"object_id": "graph_head:other"}, "no graph_head:main"),
        ("newest", {"metadata": None}, "metadata None of a commit"),
        ("newest", {"metadata": '{"created_at":"now"}'}, "of a commit"),
        ("newest", {"metadata": '{"created_at":1,"actor_id":null}'}, "keys that a commit hasn't"),
        ("newest", {"metadata": '{"created_at":1}'}, "2 commits have no parent"),
        ("newest", {"table_version": None}, "a commit has no table and a version"),
        ("newest", {"table_version": 99}, "version 99 isn't there"),
        ("newest", {"table_version": 6}, "isn't what version 6 brought"),
        ("newest", {"table_incarnation_id": 5}, "has the ids (None, 5)"),
        ("newest", {"object_id": "mine"}, "mine: is not a ULID"),
    ],
)
def test_a_row_that_the_engine_would_not_have_written_is_found(
    social: Path, row: str, values: Row, what: str
) -> None:
    edit = {"newest": newest_commit(social)}.get(row, row)
    change(social, edit, **values)
    assert_found(social, what)


def test_a_version_row_of_a_skipped_number_is_found(social: Path) -> None:
    def repeat(rows: list[Row]) -> list[Row]:
        healed = next(one for one in rows if one["object_id"] == VERSION)
        return [*rows, {**healed, "object_id": f"{VERSION[:-1]}8"}]

    rewrite(social, repeat)
    assert_found(social, f"object_id is not {VERSION}")


def test_a_version_without_a_table_row_is_found(social: Path) -> None:
    rewrite(social, lambda rows: [one for one in rows if one["object_id"] != TABLE])
    assert_found(social, "no table row of its ids")
    assert_found(social, "node:Person: ids None, in _schema.ir.json (2, 10)")


def test_two_rows_of_one_object_id_are_found(social: Path) -> None:
    rewrite(social, lambda rows: [*rows, rows[-1]])
    assert_found(social, "2 rows of")


def test_two_lines_of_commits_on_one_branch_are_found(social: Path) -> None:
    newest = newest_commit(social)

    def fork(rows: list[Row]) -> list[Row]:
        there = next(one for one in rows if one["object_id"] == newest)
        return [*rows, {**there, "object_id": ULID}]

    rewrite(social, fork)
    assert_found(social, "not one line")
    assert_found(social, "2 commits of version")


@pytest.mark.parametrize("values", [{"table_key": "node:Other"}, {"stable_table_id": 77}])
def test_a_tombstone_of_another_table_is_found(tmp_path: Path, values: Row) -> None:
    root = graphs.unpack("v6", "rich", tmp_path)
    rows = lance.dataset(str(root / "__manifest")).to_table().to_pylist()
    tombstone = next(one for one in rows if one["object_type"] == "table_tombstone")
    change(root, tombstone["object_id"], **values)
    assert_found(root, "a tombstone of" if "table_key" in values else "object_id is not")


# --- schema files and tables ---------------------------------------------------------------------


@pytest.mark.parametrize("name", ["_schema.pg", "_schema.ir.json", "__schema_state.json"])
def test_a_missing_schema_file_is_found(social: Path, name: str) -> None:
    (social / name).unlink()
    assert_found(social, "schema files: only")


@pytest.mark.parametrize(
    ("name", "old", "new", "what"),
    [
        ("_schema.ir.json", '"ir_version": 2', '"ir_version": 1', "of another engine"),
        ("_schema.ir.json", '"next_identity_id": 13', '"next_identity_id": 2', "malformed"),
        ("_schema.ir.json", "{\n  ", "{", "isn't printed as the engine prints it"),
        ("__schema_state.json", '"format_version": 2', '"format_version": 1', "format_version"),
        ("__schema_state.json", '_shape_hash": "s', '_shape_hash": "t', "schema_shape_hash"),
        ("__schema_state.json", '_ir_hash": "s', '_ir_hash": "t', "schema_ir_hash"),
        ("__schema_state.json", "_domain", "_realm", "schema_identity_domain"),
        ("_schema.pg", "age: I32?", "age: I64?", "holds another shape"),
        ("_schema.pg", "edge WorksAt", "edge KNOWS", "2 edge types knows"),
        ("_schema.pg", "age: I32?", "_rowid: I32?", "Person._rowid is a column of Lance's own"),
    ],
)
def test_schema_files_that_the_engine_refuses_are_found(
    social: Path, name: str, old: str, new: str, what: str
) -> None:
    text = (social / name).read_text()
    assert old in text
    (social / name).write_text(text.replace(old, new, 1))
    assert_found(social, what)


def test_a_type_without_a_table_is_found_on_every_branch(social: Path) -> None:
    text = (social / "_schema.pg").read_text() + "node Zed {\n}\n"
    ir_text = ir2.changed_ir(parse_pg(text), (social / "_schema.ir.json").read_text())
    (social / "_schema.pg").write_text(text)
    (social / "_schema.ir.json").write_text(ir_text)
    (social / "__schema_state.json").write_text(ir2.state_json(ir_text))
    for branch in ("main", "dev"):
        assert_found(social, f"branch {branch} node:Zed: ids None, in _schema.ir.json (13, 14)")


def test_a_head_ahead_of_its_published_version_is_found_unless_its_writer_was_killed(
    social: Path,
) -> None:
    lance.dataset(str(social / PERSON)).delete("false")
    lance.dataset(str(social / PERSON)).update_config({"x": "y"})
    assert_found(social, "is ahead of 7")
    assert not any("ahead" in one for one in check_graph(str(social), crashed=True))


def test_a_table_that_lost_its_primary_key_is_found(social: Path) -> None:
    replace_person(social, lambda rows: rows, keyed=False)
    assert_found(social, "the primary key is []")


def test_columns_out_of_order_are_found(social: Path) -> None:
    replace_person(social, lambda rows: rows.select(["id", "name", "age"]))
    assert_found(social, "the columns ['name', 'age'] are not in the order of their names")


def test_an_id_that_is_not_the_composite_key_is_found(tmp_path: Path) -> None:
    root = graphs.unpack("v6", "constraints", tmp_path)
    (pair,) = (
        one["location"]
        for one in lance.dataset(str(root / "__manifest")).to_table().to_pylist()
        if one["table_key"] == "node:Pair" and one["object_type"] == "table"
    )
    assert check_graph(str(root)) == []
    replace(root / pair, lambda rows: rows.set_column(0, rows.schema.field(0), rows["a"]))
    assert_found(root, "its key's")


# --- stamp 4 -------------------------------------------------------------------------------------


@pytest.fixture
def of_stamp_4(tmp_path: Path) -> Path:
    """A graph of stamp 2 as engine 0.8 would have it: commits in `__manifest`, no logs."""
    root = graphs.unpack("v2", "evolved", tmp_path)
    commits = lance.dataset(str(root / "_graph_commits.lance")).to_table().to_pylist()
    manifest = lance.dataset(str(root / "__manifest"))
    rows = manifest.to_table().to_pylist()
    schema = manifest.schema.with_metadata({"omnigraph:internal_schema_version": "4"})
    empty = dict.fromkeys(manifest.schema.names) | {"table_key": ""}
    commits.sort(key=lambda one: one["manifest_version"])
    lineage: list[Row] = []
    parent: Row = {}
    for number, one in enumerate(commits, start=1):
        told = {**parent, "created_at": number}
        named = {"object_id": one["graph_commit_id"], "object_type": "graph_commit"}
        lineage.append({**empty, **named, "metadata": json.dumps(told), "table_version": number})
        head = {"head_commit_id": one["graph_commit_id"], **parent}
        parent = {"parent_commit_id": one["graph_commit_id"]}
    head_row = {"object_id": "graph_head:main", "object_type": "graph_head"}
    shutil.rmtree(root / "__manifest")
    for number in range(1, len(lineage) + 1):
        there = [*rows, *lineage[:number], {**empty, **head_row, "metadata": json.dumps(head)}]
        lance.write_dataset(
            pa.Table.from_pylist(there, schema),
            str(root / "__manifest"),
            mode="create" if number == 1 else "overwrite",
            data_storage_version="2.2",
            enable_v2_manifest_paths=True,
        )
    for name in ("_graph_commits.lance", "_graph_commit_actors.lance", "_graph_runs.lance"):
        shutil.rmtree(root / name, ignore_errors=True)
    return root


def test_a_graph_of_stamp_4_has_no_violation(of_stamp_4: Path) -> None:
    assert check_graph(str(of_stamp_4)) == []


def test_what_breaks_the_lineage_of_stamp_4_is_found(of_stamp_4: Path) -> None:
    change(of_stamp_4, "graph_head:main", metadata='{"head_commit_id":"01"}')
    assert_found(of_stamp_4, "head 01, newest")
    shutil.copytree(of_stamp_4 / "__manifest", of_stamp_4 / "_graph_commits.lance")
    assert_found(of_stamp_4, "_graph_commits.lance: is not a part of a graph")


def test_a_head_ahead_and_wrong_rows_of_stamp_4_are_found(of_stamp_4: Path) -> None:
    rows = lance.dataset(str(of_stamp_4 / "__manifest")).to_table().to_pylist()
    table = next(one for one in rows if one["object_id"] == "node:Person")
    lance.dataset(str(of_stamp_4 / table["location"])).update_config({"x": "y"})
    change(of_stamp_4, table["object_id"], location="nodes/elsewhere")
    assert_found(of_stamp_4, "location nodes/elsewhere, not")
    change(of_stamp_4, table["object_id"], location=table["location"])
    assert_found(of_stamp_4, "is ahead of")


# --- damage ------------------------------------------------------------------------------------


def assert_found(root: Path, what: str) -> None:
    found = check_graph(str(root))
    assert any(what in one for one in found), found


def newest_commit(root: Path) -> str:
    rows = lance.dataset(str(root / "__manifest")).to_table().to_pylist()
    commits = [one for one in rows if one["object_type"] == "graph_commit"]
    newest: str = max(commits, key=lambda one: one["table_version"])["object_id"]
    return newest


def change(root: Path, row: str, /, **values: object) -> None:
    """Change columns of one row of `__manifest`."""
    rewrite(
        root,
        lambda rows: [{**one, **values} if one["object_id"] == row else one for one in rows],
    )


def rewrite(root: Path, edit: Callable[[list[Row]], list[Row]], keyed: bool = True) -> None:
    """Replace the rows of the newest version of `__manifest`; its settings stay."""
    uri = str(root / "__manifest")
    manifest = lance.dataset(uri)
    rows = edit(manifest.to_table().to_pylist())
    assert rows != manifest.to_table().to_pylist() or not keyed
    schema = manifest.schema
    if not keyed:
        schema = schema.set(0, schema.field(0).remove_metadata())
    lance.write_dataset(pa.Table.from_pylist(rows, schema), uri, mode="overwrite")


def replace_person(root: Path, edit: Callable[[pa.Table], pa.Table], keyed: bool = True) -> None:
    replace(root / PERSON, edit, keyed)


def replace(place: Path, edit: Callable[[pa.Table], pa.Table], keyed: bool = True) -> None:
    """Make a table again with other rows, its published version again the newest one."""
    version = lance.dataset(str(place)).version
    rows = edit(lance.dataset(str(place)).to_table())
    if not keyed:
        schema = rows.schema
        rows = rows.cast(schema.set(0, schema.field(0).remove_metadata()))
    shutil.rmtree(place)
    for _ in range(version):
        lance.write_dataset(
            rows,
            str(place),
            mode="overwrite",
            data_storage_version="2.2",
            enable_stable_row_ids=True,
            enable_v2_manifest_paths=True,
        )
