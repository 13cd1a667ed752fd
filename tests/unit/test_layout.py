"""Names and places of a graph on disk."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from omnigraph_spark.errors import CorruptManifestError, OptionError
from omnigraph_spark.storage import layout
from tests.support import graphs

HOSTILE = ["../x", "/etc", "a" * 300, "x\x00y", "x\ny", "x y", "", "é", "a/b", "node:Person", "9a"]


@pytest.mark.parametrize(
    ("name", "hashed"),
    [
        ("Person", "40d76f1f51639ec0"),
        ("Company", "7cb4e55c59663b1c"),
        ("Knows", "602a25a3bd0b455b"),
        ("WorksAt", "844eefbe5068b644"),
    ],
)
def test_a_folder_is_the_hash_of_the_type_name(name: str, hashed: str) -> None:
    assert layout.fnv1a64(name) == hashed


def test_hashes_keep_their_leading_zeros() -> None:
    short = next(f"T{n}" for n in range(1000) if int(layout.fnv1a64(f"T{n}"), 16) < 1 << 60)
    assert len(layout.fnv1a64(short)) == 16


def test_a_hash_of_32_bits_that_is_0_becomes_1() -> None:
    assert layout.fnv1a32("") == 2166136261
    assert layout.fnv1a32("sXbssr") == 1  # found by searching: its FNV-1a is 0


def test_the_ids_of_the_engines_ir_are_hashes_of_names(tmp_path: Path) -> None:
    root = graphs.unpack("v2", "rich", tmp_path)
    ir = json.loads((root / "_schema.ir.json").read_text("utf-8"))
    for kind, section in (("node", "nodes"), ("edge", "edges")):
        for one in ir[section]:
            key = layout.table_key(kind, one["name"])
            assert one["type_id"] == layout.fnv1a32(key)
            for prop in one["properties"]:
                assert prop["prop_id"] == layout.fnv1a32(f"{key}:{prop['name']}")


def test_nodes_and_edges_have_folders_of_their_own() -> None:
    assert layout.table_location("node:Person") == "nodes/40d76f1f51639ec0"
    assert layout.table_location("edge:Knows") == "edges/602a25a3bd0b455b"


def test_object_ids_are_those_of_the_format() -> None:
    assert layout.version_object_id("node:Person", 7) == "node:Person$00000000000000000007"
    tombstone = "node:Person$tombstone$00000000000000000007"
    assert layout.tombstone_object_id("node:Person", 7) == tombstone


@given(st.integers(1, 2**63), st.integers(1, 2**63))
def test_manifest_names_sort_the_newest_first(one: int, other: int) -> None:
    names = layout.v2_manifest_name(one), layout.v2_manifest_name(other)
    assert (names[0] < names[1]) == (one > other)
    assert len(names[0]) == len("18446744073709551614.manifest")


def test_the_first_version_has_the_manifest_name_that_lance_gives_it() -> None:
    assert layout.v2_manifest_name(1) == "18446744073709551614.manifest"


@pytest.mark.parametrize("key", ["node:Person", "edge:_x1"])
def test_a_table_key_is_kind_and_name(key: str) -> None:
    assert layout.is_table_key(key)
    assert layout.table_key(*layout.split_table_key(key)) == key
    assert layout.is_edge(key) == key.startswith("edge:")


@pytest.mark.parametrize("name", HOSTILE)
def test_a_table_key_of_hostile_shape_is_refused(name: str) -> None:
    for key in (f"node:{name}", name, f"view:{name}"):
        assert not layout.is_table_key(key) or key == "node:Person"
    with pytest.raises(OptionError, match=r"^\[OMNIGRAPH_OPTION\] [^\n]{0,300}$"):
        layout.table_location(f"node:{name}")


def test_the_longest_type_name_has_128_characters() -> None:
    layout.check_type_name("A" * 128)
    with pytest.raises(OptionError, match=r"OMNIGRAPH_OPTION\].*at most 128 characters"):
        layout.check_type_name("A" * 129)


@pytest.mark.parametrize("location", ["nodes/40d76f1f51639ec0", "edges/Knows-1"])
def test_a_location_below_the_root_is_taken(location: str) -> None:
    assert layout.check_location(location, "node:Person") == location


@pytest.mark.parametrize(
    "location",
    [
        None,
        "",
        "nodes",
        "nodes/",
        "/nodes/x",
        "nodes/../x",
        "nodes/..",
        "nodes/a/b",
        "../nodes/x",
        "other/x",
        "s3://bucket/nodes/x",
        "nodes/x\x00",
        "nodes/x\n",
        "nodes/é",
        "nodes/a b",
    ],
)
def test_a_location_that_leaves_the_root_is_a_corrupt_manifest(location: str | None) -> None:
    with pytest.raises(
        CorruptManifestError, match=r"OMNIGRAPH_CORRUPT_MANIFEST\] The location of 'node:Person'"
    ):
        layout.check_location(location, "node:Person")


@pytest.mark.parametrize("name", ["dev", "feature/merged", "v1.2_x-y", "main", "a" * 200])
def test_a_branch_name_that_lance_takes_is_taken(name: str) -> None:
    assert layout.check_branch_name(name) == name


@pytest.mark.parametrize(
    "name",
    [
        "",
        "a b",
        "../x",
        "a/../b",
        "a..b",
        "/a",
        "a/",
        "a//b",
        ".a",
        "a/.b",
        "a.lock",
        "a@{b",
        "a~b",
        "a:b",
        "a\\b",
        "a\nb",
        "a\x00",
        "é",
        "a" * 201,
        "a/" * 60 + "b",
    ],
)
def test_a_branch_name_of_hostile_shape_is_refused(name: str) -> None:
    with pytest.raises(
        OptionError, match=r"^\[OMNIGRAPH_OPTION\] [^\n]* is not a valid branch name"
    ):
        layout.check_branch_name(name)


@pytest.mark.parametrize("name", ["__run__", "__run__01A", "__schema_apply_lock__"])
def test_branches_of_the_engine_are_reserved(name: str) -> None:
    with pytest.raises(OptionError, match=r"OMNIGRAPH_OPTION\].*reserved by the engine"):
        layout.check_branch_name(name)


def test_main_is_no_branch_to_lance() -> None:
    assert layout.lance_branch("main") is None
    assert layout.lance_branch(None) is None
    assert layout.lance_branch("dev") == "dev"
