"""`badRecordsPath` with upserts: a row that is set aside leaves the stored row as it was."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from omnigraph_spark import _faults
from omnigraph_spark.errors import UnsupportedError
from omnigraph_spark.manifest.snapshot import load
from omnigraph_spark.storage import layout
from omnigraph_spark.storage.store import Storage
from tests.support.plain_writes import rows, save
from tests.support.writes import once

P, K = "node:Person", "edge:Knows"
SCHEMA = """
node Person {
    age: I32?
    email: String? @unique
    @range(age, 0..120)
}
"""


def people(ids: str, emails: Sequence[str | None], ages: Sequence[int | None]) -> dict[str, Any]:
    return {"id": [*ids], "email": pa.array(emails, pa.utf8()), "age": pa.array(ages, pa.int32())}


@pytest.fixture
def root(tmp_path: Path) -> str:
    where = str(tmp_path / "g")
    Storage.at(where).put(layout.SCHEMA_PG, SCHEMA.encode())
    save(where, people("abcd", ["a@", "b@", "c@", "d@"], [1, 2, 3, 4]), table=P)
    ends = "Knows: Person -> Person"
    save(where, {"id": ["e"], "src": ["a"], "dst": ["b"]}, table=K, endpoints=ends)
    return where


def upsert(root: str, bad: Path, *tasks: Any, **more: str) -> list[tuple[str, str]]:
    """Upsert with a path for bad records; return (id, rule) of what was set aside."""
    save(root, *tasks, **{"table": P, "writeMode": "merge", "badRecordsPath": str(bad), **more})
    found = [
        json.loads(line) for file in bad.rglob("*.json") for line in file.read_text().splitlines()
    ]
    return sorted((one["row"]["id"], one["rule"]) for one in found)


def test_rows_that_break_rules_are_set_aside_and_the_stored_ones_stay(
    root: str, tmp_path: Path
) -> None:
    one = people("abz", ["a2@", "c@", "z@"], [10, 20, 30])  # b: taken by c
    two = people("cy", [None, "d@"], [300, 40])  # c: out of range, y: taken by d
    before = load(Storage.at(root)).graph_version
    aside = upsert(root, tmp_path / "bad", one, two)
    assert [name for name, _ in aside] == ["b", "c", "y"]
    assert rows(root, P, "id", "email", "age") == [
        ("a", "a2@", 10),
        ("b", "b@", 2),
        ("c", "c@", 3),
        ("d", "d@", 4),
        ("z", "z@", 30),
    ]
    assert load(Storage.at(root)).graph_version == before + 1


@pytest.mark.long
def test_what_counted_on_a_row_that_was_set_aside_goes_too(root: str, tmp_path: Path) -> None:
    # b gives its email away to c, and takes d's, which d keeps: b is set aside, so c has to be.
    chain = people("bc", ["d@", "b@"], [20, 30])
    aside = upsert(root, tmp_path / "bad", chain)
    assert [name for name, _ in aside] == ["b", "c"]
    assert rows(root, P, "age") == [(1,), (2,), (3,), (4,)]


@pytest.mark.long
def test_a_round_that_is_lost_sets_aside_anew(root: str, tmp_path: Path) -> None:
    theirs = people("d", ["d2@"], [5])
    _faults.arm(
        "commit.before_publish", once(lambda: save(root, theirs, table=P, writeMode="merge"))
    )
    aside = upsert(root, tmp_path / "bad", people("bcz", ["d@", "a@", "z@"], [20] * 3))
    assert [name for name, _ in aside] == ["c"]
    assert rows(root, P, "email") == [("a@",), ("d@",), ("c@",), ("d2@",), ("z@",)]


@pytest.mark.long
def test_an_edge_that_ends_nowhere_is_set_aside(root: str, tmp_path: Path) -> None:
    edges = {"id": ["e", "f"], "src": ["a", "b"], "dst": ["nobody", "c"]}
    aside = upsert(root, tmp_path / "bad", edges, table=K)
    assert [name for name, _ in aside] == ["e"]
    assert rows(root, K, "id", "dst") == [("e", "b"), ("f", "c")]


def test_nothing_is_published_where_all_rows_are_bad(root: str, tmp_path: Path) -> None:
    before = load(Storage.at(root)).graph_version
    assert upsert(root, tmp_path / "bad", people("b", ["d@"], [1]))
    assert load(Storage.at(root)).graph_version == before


def test_a_delete_brings_no_values(root: str, tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match="badRecordsPath"):
        save(root, {"id": ["a"]}, table=P, writeMode="delete", badRecordsPath=str(tmp_path))
