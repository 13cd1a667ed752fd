"""Roots, options and plain objects of a graph, without a server; tests/s3 has the rest."""

from __future__ import annotations

import os
import pickle
import threading
from pathlib import Path

import lance
import pyarrow as pa
import pytest

from omnigraph_spark.errors import OptionError, StorageError
from omnigraph_spark.storage.lance_errors import DatasetNotFoundError
from omnigraph_spark.storage.store import Storage, normalize_root

# --- spellings of a root -----------------------------------------------------------


@pytest.mark.parametrize(
    "path",
    [
        "/data/my graph",
        "/data/my graph/",
        "/data//my graph",
        "//data/my graph",
        "/data/./my graph",
        "/data/other/../my graph",
        "file:/data/my graph",
        "file:///data/my graph",
        "file:///data/my%20graph",
        "file:///data/my%20graph/",
        "file://localhost/data/my%20graph",
        "FILE:/data/my graph",
    ],
)
def test_all_spellings_of_a_folder_are_one_root(path: str) -> None:
    assert normalize_root(path) == "/data/my graph"


@pytest.mark.parametrize(
    ("path", "root"),
    [
        ("/data/é", "/data/é"),
        ("/data/a#b", "/data/a#b"),
        ("/data/a?b", "/data/a?b"),
        ("/data/my%20graph", "/data/my%20graph"),
        ("/data/100%", "/data/100%"),
        ("file:/data/a#b", "/data/a#b"),
        ("file:/data/a%23b", "/data/a#b"),
        ("file:/data/a?b", "/data/a?b"),
        ("file:/data/%C3%A9", "/data/é"),
        ("file:/data/my%2520graph", "/data/my%20graph"),
    ],
)
def test_percent_signs_are_decoded_in_file_uris_alone(path: str, root: str) -> None:
    assert normalize_root(path) == root


def test_a_relative_path_is_made_absolute_on_the_driver(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert normalize_root("graphs/g") == str(tmp_path / "graphs/g")
    assert normalize_root(".") == str(tmp_path)


def test_a_tilde_is_the_home_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    assert normalize_root("~/g") == "/home/me/g"


def test_a_folder_whose_name_has_a_colon_is_a_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "g:1").mkdir()
    monkeypatch.chdir(tmp_path)
    assert normalize_root("g:1") == str(tmp_path / "g:1")


@pytest.mark.parametrize(
    "path", ["s3://b/g", "s3://b/g/", "s3://b//g", "s3a://b/g", "S3://b/g", "s3:///b/g/"]
)
def test_all_spellings_of_a_bucket_are_one_root(path: str) -> None:
    assert normalize_root(path) == "s3://b/g"


def test_a_bucket_alone_is_a_root() -> None:
    assert Storage.at("s3://b/").uri("__manifest") == "s3://b/__manifest"


@pytest.mark.parametrize("path", ["gs://b/g", "az://c/g", "abfss://c@a.dfs.core.windows.net/g"])
def test_other_stores_of_lance_are_taken(path: str) -> None:
    assert normalize_root(path) == path


@pytest.mark.parametrize("path", ["dbfs:/x", "hdfs://n/x", "http://h/x", "wasb://c@a/x", "x:y"])
def test_an_unknown_scheme_is_refused_and_nothing_created(
    path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(OptionError, match=r"OMNIGRAPH_OPTION\] Paths of the scheme \w+: can't"):
        Storage.at(path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("path", ["", "  ", "/data/\x00", "s3://", "s3:///"])
def test_a_path_that_names_nothing_is_refused(path: str) -> None:
    with pytest.raises(OptionError, match=r"OMNIGRAPH_OPTION\]"):
        normalize_root(path)


@pytest.mark.parametrize("path", ["s3://b/../c", "s3://b/g/./x", "gs://b/.."])
def test_a_path_that_climbs_out_of_a_bucket_is_refused(path: str) -> None:
    with pytest.raises(OptionError, match=r"OMNIGRAPH_OPTION\] The path climbs"):
        normalize_root(path)


def test_a_file_uri_with_a_host_is_refused() -> None:
    with pytest.raises(OptionError, match=r"OMNIGRAPH_OPTION\] file: URIs name no host"):
        normalize_root("file://server/data")


@pytest.mark.parametrize("secret", ["sEcReT", "sEc/ReT"])
def test_user_info_in_a_uri_is_refused_and_not_shown(secret: str) -> None:
    with pytest.raises(OptionError, match=r"OMNIGRAPH_OPTION\].*carries user info") as caught:
        Storage.at(f"s3://AKIA:{secret}@bucket/g")
    assert secret not in str(caught.value)


@pytest.mark.parametrize("name", ["my graph", "é", "a#b", "a?b", "100%", "my%20graph"])
def test_lance_and_plain_objects_meet_in_one_folder_of_any_name(tmp_path: Path, name: str) -> None:
    storage = Storage.at(str(tmp_path / name))
    storage.put("_schema.pg", b"x")
    lance.write_dataset(pa.table({"id": ["a"]}), storage.uri("nodes", "x"))
    assert os.listdir(tmp_path) == [name]
    assert sorted(os.listdir(tmp_path / name)) == ["_schema.pg", "nodes"]
    assert storage.dataset("nodes/x").count_rows() == 1
    assert storage.get("_schema.pg") == b"x"


# --- options -----------------------------------------------------------------------


def test_options_count_in_any_case() -> None:
    upper = Storage.at("s3://b/g", {"AWS_ENDPOINT": "http://h", "Allow_HTTP": "True"})
    assert upper.lance_options() == {"aws_endpoint": "http://h", "allow_http": "True"}
    assert upper == Storage.at("s3a://b/g/", {"aws_endpoint": "http://h", "allow_http": "True"})


def test_a_folder_needs_no_options() -> None:
    assert Storage.at("/data/g").lance_options() is None


def test_neither_repr_nor_str_shows_an_option() -> None:
    storage = Storage.at("s3://b/g", {"aws_secret_access_key": "sEcReT"})
    assert "sEcReT" not in repr(storage) + str(storage)


def test_a_storage_is_pickled_with_its_options() -> None:
    storage = Storage.at("s3://b/g", {"aws_secret_access_key": "sEcReT"})
    copy = pickle.loads(pickle.dumps(storage))
    assert copy == storage
    assert hash(copy) == hash(storage)


def test_parameters_of_the_commit_table_stay_behind_the_path() -> None:
    storage = Storage.at("s3+ddb://b/g?ddbTableName=t")
    assert storage.uri("nodes", "x") == "s3+ddb://b/g/nodes/x?ddbTableName=t"


def test_a_folders_question_mark_is_part_of_its_name() -> None:
    assert Storage.at("/data/a?b").uri("x") == "/data/a?b/x"


def test_the_uri_of_a_branch_is_below_tree_and_main_has_none() -> None:
    storage = Storage.at("/g")
    assert storage.dataset_uri("nodes/x", "feature/merged") == "/g/nodes/x/tree/feature/merged"
    assert storage.dataset_uri("nodes/x", "main") == storage.dataset_uri("nodes/x") == "/g/nodes/x"


# --- datasets ----------------------------------------------------------------------------------


def test_a_missing_dataset_and_a_missing_version_are_not_found(tmp_path: Path) -> None:
    storage = Storage.at(str(tmp_path))
    lance.write_dataset(pa.table({"id": ["a"]}), storage.uri("nodes/x"))
    assert storage.has_dataset("nodes/x")
    assert not storage.has_dataset("nodes/y")
    for location, version in (("nodes/y", None), ("nodes/x", 10), ("nodes/x", 99)):
        with pytest.raises(DatasetNotFoundError, match=rf"Opening {location} of {tmp_path}"):
            storage.dataset(location, version=version)


def test_a_damaged_dataset_is_not_taken_for_a_missing_one(tmp_path: Path) -> None:
    storage = Storage.at(str(tmp_path))
    lance.write_dataset(pa.table({"id": ["a"]}), storage.uri("x"))
    for path in (tmp_path / "x/_versions").glob("*.manifest"):
        path.write_bytes(b"")
    with pytest.raises(StorageError, match=r"OMNIGRAPH_STORAGE\]") as caught:
        storage.has_dataset("x")
    assert not isinstance(caught.value, DatasetNotFoundError)


# --- plain objects -----------------------------------------------------------------------------


def test_reading_listing_and_deleting_in_a_missing_graph_create_nothing(tmp_path: Path) -> None:
    storage = Storage.at(str(tmp_path / "g"))
    assert storage.get("_schema.pg") is None
    assert storage.list("__recovery") == []
    storage.delete("__recovery/x")
    assert not storage.has_dataset("__manifest")
    assert list(tmp_path.iterdir()) == []


def test_an_object_is_put_replaced_listed_and_deleted(tmp_path: Path) -> None:
    storage = Storage.at(str(tmp_path / "g"))
    storage.put("__recovery/b.json", b"1")
    storage.put("__recovery/a.json", b"1")
    storage.put("__recovery/b.json", b"22")
    listed = storage.list("__recovery")
    assert [(one.path, one.size) for one in listed] == [
        ("__recovery/a.json", 1),
        ("__recovery/b.json", 2),
    ]
    assert all(one.last_modified.tzinfo is not None for one in listed)
    assert storage.get("__recovery/b.json") == b"22"
    storage.delete("__recovery/b.json")
    storage.delete("__recovery/b.json")
    assert storage.get("__recovery/b.json") is None


def test_a_reader_never_sees_half_an_object(tmp_path: Path) -> None:
    storage = Storage.at(str(tmp_path / "g"))
    whole = [bytes([letter]) * 200_000 for letter in b"ab"]
    storage.put("x", whole[0])
    stop = threading.Event()

    def write() -> None:
        for number in range(100):
            storage.put("x", whole[number % 2])
        stop.set()

    writer = threading.Thread(target=write)
    writer.start()
    while not stop.is_set():
        assert storage.get("x") in whole
    writer.join()
    assert os.listdir(tmp_path / "g") == ["x"]


def test_an_object_where_a_folder_is_needed_is_a_typed_error(tmp_path: Path) -> None:
    storage = Storage.at(str(tmp_path))
    (tmp_path / "__recovery").write_text("")
    with pytest.raises(StorageError, match=r"OMNIGRAPH_STORAGE\] Writing __recovery/x of"):
        storage.put("__recovery/x", b"1")


def test_asking_for_what_is_in_a_folder_that_is_not_there_does_not_make_it(tmp_path: Path) -> None:
    storage = Storage.at(str(tmp_path / "none" / "g"))
    assert storage.get("x") is None
    assert storage.get_range("x", 0, 4) is None
    assert storage.head("x") is None
    assert storage.list("x") == []
    assert not storage.has_dataset("x")
    storage.delete("x")
    storage.delete_many(["x", "y"])
    assert list(tmp_path.iterdir()) == []
    storage.put("x", b"1")
    assert storage.get_range("x", 0, 1) == b"1"
