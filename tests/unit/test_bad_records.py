"""Option badRecordsPath: rows that break a rule are set aside, the others are written at once."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from omnigraph_spark import _faults
from omnigraph_spark.errors import IntegrityError, OptionError, StorageError
from omnigraph_spark.manifest.snapshot import load
from omnigraph_spark.storage import layout
from omnigraph_spark.storage.store import Storage
from tests.format_checker import check_graph
from tests.support import plain_writes
from tests.support.branches import make
from tests.support.ruled import (
    COMPANY,
    KNOWS,
    PERSON,
    WORKS,
    Row,
    Rows,
    bad_records,
    edge,
    planned,
    rows,
    ruled_graph,
    save,
)
from tests.support.writes import head, once


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ruled") / "g"
    ruled_graph(folder)
    return folder


@pytest.fixture
def graph(template: Path, tmp_path: Path) -> Storage:
    return Storage.at(str(shutil.copytree(template, tmp_path / "g")))


@pytest.fixture
def aside(tmp_path: Path) -> Path:
    return tmp_path / "bad"


@pytest.fixture(autouse=True)
def _disarmed() -> Any:
    yield
    _faults.disarm()


def told(folder: Path) -> list[tuple[str, str, Any]]:
    """Return (rule, column, id) of what was set aside, sorted."""
    return sorted((one["rule"], one["column"], one["row"].get("id")) for one in bad_records(folder))


def test_values_that_break_a_rule_are_set_aside_by_tasks(graph: Storage, aside: Path) -> None:
    first: list[Row] = [{"id": "n", "age": 7}, {"id": "o", "age": -1}, {"id": None, "age": 1}]
    second: list[Row] = [{"id": "p", "mood": "sad"}, {"id": "q", "first": "a b"}, {"id": "r"}]
    save(
        graph,
        {PERSON: first},
        {PERSON: second},
        integrity="keys",
        badRecordsPath=str(aside),
    )
    assert rows(graph, PERSON) == ["a", "b", "c", "n", "r"]
    assert told(aside) == [
        ("check", "first", "q"),
        ("enum", "mood", "p"),
        ("not null", "id", None),
        ("range", "age", "o"),
    ]
    one = next(one for one in bad_records(aside) if one["rule"] == "range")
    assert (one["table"], one["reason"]) == (PERSON, "expected 0..120")
    assert one["row"] == {"id": "o", "age": -1} | {
        k: None for k in one["row"] if k not in ("id", "age")
    }


def test_off_sets_nulls_and_enum_values_aside_and_nothing_else(graph: Storage, aside: Path) -> None:
    new: list[Row] = [{"id": None}, {"id": "n", "mood": "sad"}, {"id": "a", "age": -1}]
    save(graph, {PERSON: new}, integrity="off", badRecordsPath=str(aside))
    assert rows(graph, PERSON) == ["a", "a", "b", "c"]
    assert told(aside) == [("enum", "mood", "n"), ("not null", "id", None)]


def test_an_id_that_is_not_its_key_is_set_aside(graph: Storage, aside: Path) -> None:
    new: list[Row] = [{"id": "x", "name": "y"}, {"id": None, "name": "z"}, {"id": "w", "name": "w"}]
    save(graph, {COMPANY: new}, badRecordsPath=str(aside))
    assert rows(graph, COMPANY) == ["acme", "w", "z"]
    assert told(aside) == [("id is the key", "id", "x")]


def test_keys_that_rows_share_are_set_aside_all_of_them(graph: Storage, aside: Path) -> None:
    tasks: list[Rows] = [
        {PERSON: [{"id": "x"}, {"id": "n"}, {"id": "a"}]},
        {PERSON: [{"id": "x"}, {"id": "o"}]},
    ]
    before = head(graph, PERSON)
    save(graph, *tasks, integrity="keys", badRecordsPath=str(aside))
    assert rows(graph, PERSON) == ["a", "b", "c", "n", "o"]
    assert told(aside) == [("unique id", "id", one) for one in ("a", "x", "x")]
    assert head(graph, PERSON) == before + 2  # the rows, and without the bad ones
    entry = load(graph).entry(PERSON)
    assert (entry.row_count, entry.ours["rows_added"]) == (5, 2)
    assert check_graph(graph.root, moved=True) == []


def test_an_edge_to_a_node_that_was_set_aside_is_set_aside_too(graph: Storage, aside: Path) -> None:
    new: Rows = {
        PERSON: [{"id": "x"}, {"id": "x"}, {"id": "n"}, {"id": "a"}],
        KNOWS: [
            edge("n", "x", id="1"),
            edge("n", "a", id="2"),
            edge("q", "n", id="3"),
            edge("n", "b", id="ab"),
        ],
    }
    save(graph, new, integrity="strict", badRecordsPath=str(aside))
    assert rows(graph, KNOWS, "src", "dst") == [("a", "b"), ("n", "a")]
    assert told(aside) == [
        ("endpoints exist", "dst", "1"),
        ("endpoints exist", "src", "3"),
        ("unique id", "id", "a"),
        ("unique id", "id", "ab"),
        ("unique id", "id", "x"),
        ("unique id", "id", "x"),
    ]


def test_unique_values_and_edges_too_many_are_set_aside(graph: Storage, aside: Path) -> None:
    people: list[Row] = [{"id": "n", "email": "e"}, {"id": "o", "email": "e"}, {"id": "p"}]
    works = [edge("a", "acme", id=f"w{number}") for number in range(2)]
    save(
        graph,
        {PERSON: people, WORKS: [*works, edge("b", "acme", id="w2")]},
        integrity="strict",
        badRecordsPath=str(aside),
    )
    assert rows(graph, PERSON) == ["a", "b", "c", "p"]
    assert rows(graph, WORKS) == ["aw", "w2"]
    assert told(aside) == [
        ("card", "src", "w0"),
        ("card", "src", "w1"),
        ("unique", "email", "n"),
        ("unique", "email", "o"),
    ]


def test_a_write_whose_rows_are_all_bad_writes_none(graph: Storage, aside: Path) -> None:
    save(graph, {PERSON: [{"id": "a"}]}, integrity="keys", badRecordsPath=str(aside))
    assert rows(graph, PERSON) == ["a", "b", "c"]
    assert told(aside) == [("unique id", "id", "a")]


def test_an_overwrite_and_a_new_table_set_rows_aside(tmp_path: Path, aside: Path) -> None:
    from omnigraph_spark.storage import layout
    from tests.support.ruled import SCHEMA

    storage = Storage.at(str(tmp_path / "new"))
    storage.put(layout.SCHEMA_PG, SCHEMA.encode())
    twice: Rows = {PERSON: [{"id": "x"}, {"id": "x"}, {"id": "y"}]}
    for mode in ("append", "overwrite"):
        save(storage, twice, mode=mode, integrity="strict", badRecordsPath=str(aside))
        assert rows(storage, PERSON) == ["y"]
    assert len(bad_records(aside)) == 4
    assert check_graph(storage.root) == []


def test_an_overwrite_that_strands_edges_is_refused_all_the_same(
    graph: Storage, aside: Path
) -> None:
    with pytest.raises(IntegrityError, match=r"'edges stay attached'"):
        save(
            graph,
            {PERSON: [{"id": "a"}]},
            mode="overwrite",
            integrity="strict",
            badRecordsPath=str(aside),
        )
    assert rows(graph, PERSON) == ["a", "b", "c"]


@pytest.mark.long
def test_a_round_that_goes_again_sets_aside_what_is_bad_then(graph: Storage, aside: Path) -> None:
    rival = once(lambda: save(graph, {PERSON: [{"id": "y"}]}, integrity="keys"))
    _faults.arm("commit.before_publish", rival)
    new: Rows = {PERSON: [{"id": "a"}, {"id": "y"}, {"id": "z"}]}
    save(graph, new, integrity="keys", badRecordsPath=str(aside))
    assert rows(graph, PERSON) == ["a", "b", "c", "y", "z"]
    assert told(aside) == [("unique id", "id", "a"), ("unique id", "id", "y")]


def test_a_path_for_bad_records_that_cannot_be_written_fails_the_write(
    graph: Storage, tmp_path: Path
) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    with pytest.raises(StorageError, match=r"OMNIGRAPH_STORAGE\]"):
        save(
            graph,
            {PERSON: [{"id": "a"}, {"id": "n"}]},
            integrity="keys",
            badRecordsPath=str(blocked),
        )
    assert rows(graph, PERSON) == ["a", "b", "c"]


def test_many_bad_rows_go_into_files_of_bounded_size(graph: Storage, aside: Path) -> None:
    many: list[Row] = [{"id": f"n{number}", "age": -1} for number in range(12_000)]
    save(graph, {PERSON: [*many, {"id": "o"}]}, integrity="keys", badRecordsPath=str(aside))
    assert rows(graph, PERSON) == ["a", "b", "c", "o"]
    assert len(bad_records(aside)) == 12_000
    assert len(list(aside.rglob("*.json"))) == 3


def test_a_commit_that_dies_after_the_rows_and_before_their_removal_leaves_nothing_visible(
    graph: Storage, aside: Path
) -> None:
    def fail() -> None:
        raise StorageError("injected")

    _faults.arm("table.after_commit", fail)
    with pytest.raises(StorageError, match="injected"):
        save(
            graph,
            {PERSON: [{"id": "a"}, {"id": "n"}]},
            integrity="keys",
            badRecordsPath=str(aside),
        )
    _faults.disarm()
    assert rows(graph, PERSON) == ["a", "b", "c"]
    save(graph, {PERSON: [{"id": "o"}]}, integrity="keys")
    assert rows(graph, PERSON) == ["a", "b", "c", "o"]


def test_a_relative_path_means_the_folder_of_the_driver_and_a_bad_one_is_refused_at_once(
    graph: Storage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert planned(graph, [PERSON], badRecordsPath="x").integrity.bad_records_path == str(
        tmp_path / "x"
    )
    with pytest.raises(OptionError, match=r"OMNIGRAPH_OPTION\]"):
        planned(graph, [PERSON], badRecordsPath="ftp://host/x")


@pytest.mark.long
def test_columns_behind_a_blob_are_checked_and_set_aside(tmp_path: Path, aside: Path) -> None:
    graph = Storage.at(str(tmp_path / "blobs"))
    pg = "node Doc {\n    aa: Blob?\n    b: I32?\n    email: String? @unique\n    tags: [String]?\n}\n"
    graph.put(layout.SCHEMA_PG, pg.encode())
    save(graph, {"node:Doc": [{"id": "z", "email": "z@"}]})  # a table without any blob so far
    first: list[Row] = [
        {"id": "d", "aa": b"p", "b": 1},
        {"id": "d", "aa": b"q", "b": 2, "tags": ["x"]},
        {"id": "ok", "aa": b"r" * 100_000, "b": 3, "email": "o@"},
    ]
    second: list[Row] = [{"id": "e", "aa": None, "b": 4, "email": "z@"}, {"id": "f", "aa": b"s"}]
    save(
        graph,
        {"node:Doc": first},
        {"node:Doc": second},
        integrity="keys",
        badRecordsPath=str(aside),
    )
    assert rows(graph, "node:Doc", "id", "email") == [("f", None), ("ok", "o@"), ("z", "z@")]
    found = [(one["rule"], one["row"]["id"], one["row"]["b"]) for one in bad_records(aside)]
    assert sorted(found) == [("unique", "e", 4), ("unique id", "d", 1), ("unique id", "d", 2)]
    with pytest.raises(IntegrityError, match="o@"):
        save(graph, {"node:Doc": [{"id": "g", "aa": b"t", "email": "o@"}]}, integrity="keys")
    with pytest.raises(IntegrityError, match="o@"):
        save(
            graph,
            {"node:Doc": [{"id": "f", "aa": b"t", "email": "o@"}]},
            writeMode="merge",
            integrity="keys",
        )
    assert blobs(graph, "main") == {"f": b"s", "ok": b"r" * 100_000}
    make(graph, "dev")
    later: list[Row] = [{"id": "d", "aa": b"u", "b": 5, "email": "z@"}, {"id": "i", "aa": b"v"}]
    save(
        graph,
        {"node:Doc": later},
        badRecordsPath=str(aside / "dev"),
        branch="dev",
        integrity="keys",
    )
    assert told(aside / "dev") == [("unique", "email", "d")]
    save(
        graph,
        {"node:Doc": [{"id": "f", "aa": b"w", "email": "f@"}]},
        writeMode="merge",
        branch="dev",
    )
    assert blobs(graph, "dev") == {"f": b"w", "i": b"v", "ok": b"r" * 100_000}
    whole = {
        "_table": ["node:Doc"] * 3,
        "id": ["d", "j", "k"],
        "aa": pa.array([b"u", b"x", None], pa.binary()),
        "b": pa.array([6, 7, 8], pa.int32()),
        "email": ["z@", "j@", None],
    }
    plain_writes.save(graph.root, whole, badRecordsPath=str(aside / "whole"))
    assert told(aside / "whole") == [("unique", "email", "d")]
    assert blobs(graph, "main") == {"f": b"s", "j": b"x", "ok": b"r" * 100_000}


def blobs(graph: Storage, branch: str) -> dict[str, bytes]:
    """Return the blobs of a branch by id, without the nulls."""
    entry = load(graph, branch).entry("node:Doc")
    dataset = graph.dataset(entry.location, entry.table_branch, entry.table_version)
    found = dataset.to_table(columns=["id", "aa"], blob_handling="all_binary").to_pylist()
    return {one["id"]: one["aa"] for one in found if one["aa"]}
