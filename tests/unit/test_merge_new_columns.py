"""Upserts with `mergeSchema`: new columns come with the rows that they are computed for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from omnigraph_spark import _faults
from omnigraph_spark.errors import SchemaMismatchError, UnsupportedError
from tests.support.plain_writes import read, rows, save
from tests.support.writes import once

P = "node:Person"
MERGE: dict[str, Any] = {"table": P, "writeMode": "merge", "mergeSchema": "true"}
INT = pa.int32()


@pytest.fixture
def root(tmp_path: Path) -> str:
    where = str(tmp_path / "g")
    save(where, {"id": ["a", "b", "c"], "n": pa.array([1, 2, 3], INT)}, table=P)
    return where


def test_a_computed_score_comes_with_an_upsert_and_other_rows_have_none(root: str) -> None:
    save(root, {"id": ["a", "z"], "pr": [0.5, 0.25]}, **MERGE)
    assert rows(root, P, "id", "n", "pr") == [
        ("a", 1, 0.5),
        ("b", 2, None),
        ("c", 3, None),
        ("z", None, 0.25),
    ]
    save(root, {"id": ["b"], "pr": [0.75]}, **MERGE)
    assert rows(root, P, "pr") == [(0.5,), (0.75,), (None,), (0.25,)]


def test_a_new_column_of_nulls_is_added_and_changes_no_row(root: str) -> None:
    save(root, {"id": ["a"], "pr": pa.array([None], pa.float64())}, **MERGE)
    assert "pr" in read(root, table=P).names
    assert rows(root, P, "id", "n", "pr")[0] == ("a", 1, None)


@pytest.mark.parametrize("point", ["commit.entered", "commit.before_publish"])
def test_columns_that_others_add_meanwhile_keep_their_values(root: str, point: str) -> None:
    theirs = {"id": ["a", "c"], "q": ["x", "y"], "n": pa.array([7, 8], INT)}
    _faults.arm(point, once(lambda: save(root, theirs, **MERGE)))
    save(root, {"id": ["a", "b"], "pr": [0.5, 0.25]}, **MERGE)
    assert rows(root, P, "id", "n", "q", "pr") == [
        ("a", 7, "x", 0.5),
        ("b", 2, None, 0.25),
        ("c", 8, "y", None),
    ]


def test_of_two_upserts_that_add_one_column_both_land(root: str) -> None:
    _faults.arm("commit.entered", once(lambda: save(root, {"id": ["b"], "pr": [0.1]}, **MERGE)))
    save(root, {"id": ["a"], "pr": [0.5]}, **MERGE)
    assert rows(root, P, "id", "pr") == [("a", 0.5), ("b", 0.1), ("c", None)]


def test_one_column_with_two_types_is_refused_by_name(root: str) -> None:
    _faults.arm("commit.entered", once(lambda: save(root, {"id": ["b"], "pr": ["x"]}, **MERGE)))
    with pytest.raises(SchemaMismatchError, match="pr"):
        save(root, {"id": ["a"], "pr": [0.5]}, **MERGE)
    assert rows(root, P, "id", "pr") == [("a", None), ("b", "x"), ("c", None)]


def test_branches_take_new_columns_too(root: str) -> None:
    from omnigraph_spark.refs import branches, refs
    from omnigraph_spark.storage.store import Storage

    storage = Storage.at(root)
    branches.ensure_branch(storage, "dev", refs.named(storage, "main"))
    save(root, {"id": ["a"], "pr": [0.5]}, branch="dev", **MERGE)
    assert rows(root, P, "pr", branch="dev") == [(0.5,), (None,), (None,)]
    assert rows(root, P) == [("a", 1), ("b", 2), ("c", 3)]


def test_a_delete_takes_no_columns(root: str) -> None:
    with pytest.raises(UnsupportedError, match="mergeSchema"):
        save(root, {"id": ["a"]}, table=P, writeMode="delete", mergeSchema="true")
