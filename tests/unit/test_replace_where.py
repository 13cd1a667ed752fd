"""`replaceWhere`: the rows that a predicate chooses are deleted and the frame's added, at once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from omnigraph_spark import _faults
from omnigraph_spark.errors import IntegrityError, OptionError, RowConflictError
from omnigraph_spark.history import commits
from omnigraph_spark.manifest.snapshot import load
from omnigraph_spark.storage.store import Storage
from tests.support.plain_writes import read, rows, save
from tests.support.writes import once

P, C, K = "node:Person", "node:Company", "edge:Knows"
INT = pa.int32()


def people(ids: str, *n: int | None) -> dict[str, Any]:
    return {"id": [*ids], "n": pa.array(n, INT)}


@pytest.fixture
def root(tmp_path: Path) -> str:
    """People a to d with n 1, 2, 3 and null; b knows c."""
    where = str(tmp_path / "g")
    save(where, people("abcd", 1, 2, 3, None), table=P)
    save(where, people("x", 2), table=C)
    save(
        where,
        {"id": ["e"], "src": ["b"], "dst": ["c"]},
        table=K,
        endpoints="Knows: Person -> Person",
    )
    return where


def replace_where(root: str, predicate: str, *tasks: Any, **more: Any) -> None:
    given = {k: v for k, v in {"table": P, "replaceWhere": predicate, **more}.items() if v != ""}
    save(root, *tasks, overwrite=True, **given)


@pytest.mark.long
def test_what_matches_goes_and_the_frame_comes_in_one_commit(root: str) -> None:
    before = load(Storage.at(root)).graph_version
    replace_where(root, "n >= 2", people("bc", 5, 6), people("z", 7))
    assert rows(root, P) == [("a", 1), ("b", 5), ("c", 6), ("d", None), ("z", 7)]
    assert load(Storage.at(root)).graph_version == before + 1
    head = commits.head(Storage.at(root), "main")
    assert head is not None
    assert head.manifest_version == before + 1
    replace_where(root, "n > 100", people("y", 101))  # nothing matches: an append
    assert rows(root, P)[-2:] == [("y", 101), ("z", 7)]


@pytest.mark.long
def test_an_empty_frame_deletes_what_matches_and_rows_of_null_stay(root: str) -> None:
    replace_where(root, "n <> 3 AND n <> 2", people(""))
    assert rows(root, P) == [("b", 2), ("c", 3), ("d", None)]
    replace_where(root, "n IS NULL", people("q", None))
    assert rows(root, P) == [("b", 2), ("c", 3), ("q", None)]
    replace_where(root, "true", people("r", 1), onDelete="cascade")
    assert (rows(root, P), rows(root, K)) == ([("r", 1)], [])


@pytest.mark.parametrize(("ids", "n"), [("zy", (2, 1)), ("zy", (2, None))])
def test_rows_outside_of_the_predicate_are_refused_by_id_and_null_is_outside(
    root: str, ids: str, n: Any
) -> None:
    before = rows(root, P)
    with pytest.raises(
        IntegrityError, match=r"node:Person are outside of replaceWhere: 1 .*'y'"
    ) as raised:
        replace_where(root, "n >= 2", people(ids, *n))
    assert list(raised.value.samples) == ["y"]
    assert rows(root, P) == before


def test_ids_that_stay_outside_of_the_predicate_are_still_taken(root: str) -> None:
    with pytest.raises(IntegrityError, match="'a'"):
        replace_where(root, "n >= 2", people("a", 9), onDelete="cascade")


@pytest.mark.long
def test_edges_are_judged_by_the_final_state(root: str) -> None:
    with pytest.raises(IntegrityError, match="dangling edges: 1 of edge:Knows"):
        replace_where(root, "n >= 2", people("b", 5))  # c goes
    replace_where(root, "n >= 2", people("bc", 5, 5))  # both come back
    assert len(rows(root, K)) == 1
    whole = {"_table": [P], "id": ["b"], "src": [None], "dst": [None], "n": pa.array([8], INT)}
    with pytest.raises(IntegrityError, match="edge:Knows"):
        replace_where(root, "_table = 'node:Person' AND n > 4", whole, table="")
    replace_where(root, "n > 4", people("b", 8), onDelete="cascade")
    assert (rows(root, P, "id"), rows(root, K)) == ([("a",), ("b",), ("d",)], [])


@pytest.mark.long
def test_new_edges_may_not_end_at_nodes_that_the_write_deletes(root: str) -> None:
    frame = read(root)
    whole = {
        "_table": [P, K],
        "id": ["b", "f"],
        "src": [None, "b"],
        "dst": [None, "c"],
        "n": pa.array([8, None], INT),
    }
    with pytest.raises(IntegrityError, match=r"edge:Knows.*dst|src.*edge:Knows"):
        replace_where(
            root, "n >= 2 OR src IS NOT NULL", whole, table="", schema=frame, onDelete="cascade"
        )


def test_a_whole_graph_is_replaced_by_one_predicate(root: str) -> None:
    frame = read(root)
    whole = {
        "_table": [P, P, C],
        "id": ["b", "c", "y"],
        "src": [None] * 3,
        "dst": [None] * 3,
        "n": pa.array([2, 4, 2], INT),
    }
    before = load(Storage.at(root)).graph_version
    replace_where(root, "n BETWEEN 2 AND 4", whole, table="", schema=frame)
    assert rows(root, P) == [("a", 1), ("b", 2), ("c", 4), ("d", None)]
    assert (rows(root, C), len(rows(root, K))) == ([("y", 2)], 1)
    assert load(Storage.at(root)).graph_version == before + 1


@pytest.mark.long
@pytest.mark.parametrize("point", ["commit.entered", "commit.before_publish"])
def test_what_others_write_meanwhile_is_replaced_where_it_matches(root: str, point: str) -> None:
    theirs = people("pq", 1, 2)
    _faults.arm(point, once(lambda: save(root, theirs, table=P)))
    replace_where(root, "n >= 2", people("bc", 5, 6))
    assert rows(root, P) == [("a", 1), ("b", 5), ("c", 6), ("d", None), ("p", 1)]


@pytest.mark.long
def test_a_frame_that_was_read_conflicts_with_others_changes_of_what_it_replaces(root: str) -> None:
    frame = read(root, table=P)
    save(root, people("ap", 0, 1), table=P, writeMode="merge")
    replace_where(root, "n >= 2", people("bc", 5, 6), schema=frame)
    save(root, people("q", 9), table=P)
    with pytest.raises(RowConflictError, match="'q'"):
        replace_where(root, "n >= 2", people("bc", 7, 7), schema=frame)
    replace_where(root, "n >= 2", people("bc", 7, 7), schema=frame, lastWriterWins="true")
    assert rows(root, P) == [("a", 0), ("b", 7), ("c", 7), ("d", None), ("p", 1)]


@pytest.mark.long
def test_new_tables_and_columns_and_branches_go_with_it(root: str) -> None:
    from omnigraph_spark.refs import branches, refs

    save(
        root,
        {"id": ["t"], "d": pa.array([5], INT)},
        table="node:New",
        replaceWhere="d = 5",
        overwrite=True,
    )
    assert rows(root, "node:New") == [("t", 5)]
    storage = Storage.at(root)
    branches.ensure_branch(storage, "dev", refs.named(storage, "main"))
    wide = {**people("d", 1), "note": ["hello"]}
    replace_where(
        root, "n = 1", {**people("z", 1), "note": ["hi"]}, branch="dev", mergeSchema="true"
    )
    assert rows(root, P, "id", branch="dev") == [("b",), ("c",), ("d",), ("z",)]
    assert rows(root, P, "id")[0] == ("a",)
    with pytest.raises(IntegrityError, match="'d'"):
        replace_where(root, "n = 1", wide, branch="dev")


@pytest.mark.parametrize("wrong", ["n / 2 > 1", "ghost = 1", "n >", "year(n) = 2"])
def test_predicates_that_can_not_be_answered_exactly_are_refused(root: str, wrong: str) -> None:
    with pytest.raises(OptionError, match="replaceWhere"):
        replace_where(root, wrong, people("b", 5))


def test_it_goes_with_overwrite_only(root: str) -> None:
    with pytest.raises(OptionError, match="replaceWhere goes with mode overwrite"):
        save(root, people("b", 5), table=P, replaceWhere="n = 5")
