"""`edgeKeys`: ids of edges made from their values, so that edges are found without ids."""

from __future__ import annotations

import hashlib
from datetime import date, datetime, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from omnigraph_spark import _faults
from omnigraph_spark.errors import IntegrityError, OptionError, SchemaMismatchError
from omnigraph_spark.manifest.snapshot import load
from omnigraph_spark.option_values import edge_keys
from omnigraph_spark.options import WriteOptions, parse
from omnigraph_spark.schema_changes import properties
from omnigraph_spark.storage.store import Storage
from tests.support.plain_writes import read, rows, save
from tests.support.writes import once

P, B = "node:Person", "edge:Bought"
MERGE: dict[str, Any] = {"table": B, "writeMode": "merge"}
DELETE: dict[str, Any] = {"table": B, "writeMode": "delete"}
DAY = "Bought: src, dst, day"


def bought(*edges: tuple[str, str, int | None, int]) -> dict[str, Any]:
    """Return a day's file: src, dst, day, amount."""
    src, dst, day, amount = zip(*edges, strict=True)
    return {
        "src": [*src],
        "dst": [*dst],
        "day": pa.array(day, pa.int32()),
        "amount": pa.array(amount, pa.int64()),
    }


FIRST = bought(("a", "b", 1, 10), ("a", "c", 1, 20), ("b", "c", None, 30))


@pytest.fixture
def people(tmp_path: Path) -> str:
    where = str(tmp_path / "g")
    save(where, {"id": ["a", "b", "c"]}, table=P)
    return where


@pytest.fixture
def root(people: str) -> str:
    save(people, FIRST, table=B, endpoints="Bought: Person -> Person", edgeKeys=DAY)
    return people


@pytest.fixture
def ulids(people: str) -> str:
    """The same edges with the ids that a writer without keys gives them, one of them twice."""
    save(people, FIRST, table=B, endpoints="Bought: Person -> Person")
    save(people, bought(("a", "c", 1, 21)), table=B)
    return people


def found(root: str, *columns: str, **more: str) -> list[tuple[Any, ...]]:
    return sorted(rows(root, B, *(columns or ("src", "dst", "day", "amount")), **more), key=repr)


def digest(*values: object) -> str:
    texts = ["N" if one is None else f"{len(str(one).encode())}:{one}" for one in values]
    return hashlib.sha256(",".join(texts).encode()).hexdigest()[:32]


def test_ids_follow_the_documented_rule(root: str) -> None:
    expected = {digest("a", "b", 1), digest("a", "c", 1), digest("b", "c", None)}
    assert {one for (one,) in rows(root, B, "id")} == expected


def test_every_type_of_a_key_has_one_text(people: str) -> None:
    moment = datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=timezone.utc)
    values = {
        "whole": pa.array([7], pa.int64()),
        "flag": pa.array([True]),
        "born": pa.array([date(2026, 1, 2)], pa.date32()),
        "at": pa.array([moment], pa.timestamp("us", "UTC")),
        "price": pa.array([Decimal("1.50")], pa.decimal128(9, 2)),
        "text": pa.array(["ä,1:"]),
    }
    keys = "Bought: src, dst, " + ", ".join(values)
    edge = {"src": ["a"], "dst": ["b"], **values}
    save(people, edge, table=B, endpoints="Bought: Person -> Person", edgeKeys=keys)
    micros = int(moment.timestamp()) * 1_000_000 + 678901
    wanted = digest("a", "b", 7, "true", "2026-01-02", micros, "1.50", "ä,1:")
    assert rows(people, B, "id") == [(wanted,)]
    save(people, {**edge, "whole": pa.array([7], pa.int32())}, **MERGE)
    assert len(rows(people, B)) == 1


def test_a_daily_file_is_idempotent_as_an_upsert_and_refused_as_a_doubled_append(root: str) -> None:
    before = load(Storage.at(root)).graph_version
    save(root, FIRST, **MERGE)
    assert load(Storage.at(root)).graph_version == before
    with pytest.raises(IntegrityError, match="unique id|doesn't have yet"):
        save(root, FIRST, table=B)
    save(root, bought(("a", "b", 1, 11), ("a", "b", 2, 5)), **MERGE)
    assert found(root) == sorted(
        [("a", "b", 1, 11), ("a", "b", 2, 5), ("a", "c", 1, 20), ("b", "c", None, 30)], key=repr
    )
    with pytest.raises(IntegrityError, match="more than once"):
        save(root, bought(("a", "b", 3, 1), ("a", "b", 3, 2)), **MERGE)


@pytest.mark.long
def test_edges_are_deleted_by_their_keys_and_found_by_id_too(root: str) -> None:
    gone = {name: values for name, values in bought(("a", "b", 1, 0)).items() if name != "amount"}
    save(root, gone, **DELETE)
    assert len(found(root)) == 2
    save(root, {"id": [digest("a", "c", 1)], "amount": pa.array([7])}, **MERGE)
    assert ("a", "c", 1, 7) in found(root)
    with pytest.raises(IntegrityError, match="isn't made from its keys"):
        save(root, {"id": ["other"], **bought(("a", "c", 5, 0))}, **MERGE)
    with pytest.raises(SchemaMismatchError, match="lacks dst, day, keys of its edges"):
        save(root, {"id": [digest("a", "c", 1)], "src": ["b"]}, **MERGE)
    with pytest.raises(IntegrityError, match="lacks column id"):
        save(root, {"src": ["a"]}, **DELETE)


@pytest.mark.long
def test_keys_are_recorded_with_the_table_on_branches_and_through_other_writes(root: str) -> None:
    from omnigraph_spark.refs import branches, refs

    storage = Storage.at(root)
    branches.ensure_branch(storage, "dev", refs.named(storage, "main"))
    save(root, {"id": ["q"]}, table=P, branch="dev")
    for _ in range(2):
        save(root, bought(("c", "a", 9, 1)), branch="dev", **MERGE)
    assert len(found(root, branch="dev")) == 4
    with pytest.raises(OptionError, match="made from other columns.*expected src, dst, day"):
        save(root, FIRST, edgeKeys="Bought: src, dst", **MERGE)
    save(root, FIRST, table=B, overwrite=True)
    save(root, FIRST, edgeKeys=DAY, **MERGE)
    asked = WriteOptions.of(parse({"path": root}), False)
    with pytest.raises(SchemaMismatchError, match="day of edge:Bought is its key"):
        properties.rename_property(storage, asked, B, "day", "at")
    assert len(found(root)) == 3


@pytest.mark.long
def test_keys_come_with_a_branch_that_is_merged_and_with_a_restore(people: str) -> None:
    from omnigraph_spark.merge import merging, restore
    from omnigraph_spark.merge.tables import Here
    from omnigraph_spark.refs import branches, refs

    storage = Storage.at(people)
    branches.ensure_branch(storage, "dev", refs.named(storage, "main"))
    ends = "Bought: Person -> Person"
    save(people, FIRST, table=B, branch="dev", endpoints=ends, edgeKeys=DAY)
    asked = WriteOptions.of(parse({"path": people, "writeMode": "overwrite"}), True)
    merged = merging.prepare(storage, "dev", "main", Here, merging.resolver("fail"))
    merging.publish(merged, asked)
    version = load(storage).graph_version
    save(people, FIRST, **MERGE)
    save(people, bought(("c", "a", 7, 7)), **MERGE)
    restore.restore(storage, asked, str(version))
    save(people, bought(("a", "b", 1, 8)), **MERGE)
    assert found(people)[0] == ("a", "b", 1, 8)
    assert len(found(people)) == 3


@pytest.mark.long
def test_edges_of_other_ids_are_matched_by_the_values_of_the_keys(ulids: str) -> None:
    there = {row[1:]: row[0] for row in rows(ulids, B, "id", "src", "dst", "day")}
    with pytest.raises(IntegrityError, match="lacks column id"):
        save(ulids, FIRST, **MERGE)
    changed = bought(("a", "b", 1, 11), ("b", "c", None, 31), ("c", "a", 1, 1))
    for _ in range(2):
        save(ulids, changed, edgeKeys=DAY, **MERGE)
    now = {row[1:]: row[0] for row in rows(ulids, B, "id", "src", "dst", "day")}
    assert {key: now[key] for key in there} == there
    assert now["c", "a", 1] == digest("c", "a", 1)
    with pytest.raises(IntegrityError, match="several edges with the keys of one row"):
        save(ulids, FIRST, edgeKeys=DAY, **MERGE)
    with pytest.raises(IntegrityError, match="doesn't have yet"):
        save(ulids, bought(("a", "b", 1, 0)), table=B, edgeKeys=DAY)
    both = {name: values for name, values in bought(("a", "c", 1, 0)).items() if name != "amount"}
    save(ulids, both, edgeKeys=DAY, **DELETE)
    assert found(ulids, "src", "dst") == [("a", "b"), ("b", "c"), ("c", "a")]
    save(ulids, {"src": ["a", "x"], "dst": ["b", "y"]}, edgeKeys="Bought: src, dst", **DELETE)
    assert found(ulids, "src", "dst") == [("b", "c"), ("c", "a")]


@pytest.mark.long
def test_two_writers_of_one_new_edge_end_in_one(root: str) -> None:
    new = bought(("c", "b", 4, 1))
    _faults.arm("commit.entered", once(lambda: save(root, new, **MERGE)))
    save(root, bought(("c", "b", 4, 2)), **MERGE)
    assert [row for row in found(root) if row[2] == 4] == [("c", "b", 4, 2)]


def test_whole_graph_frames_make_ids_where_they_have_none(root: str) -> None:
    frame = read(root)
    whole = {
        "_table": [P, B],
        "id": ["z", None],
        "src": [None, "z"],
        "dst": [None, "a"],
        "day": pa.array([None, 8], pa.int32()),
        "amount": pa.array([None, 4], pa.int64()),
    }
    for _ in range(2):
        save(root, whole, schema=frame, writeMode="merge")
    assert (digest("z", "a", 8),) in rows(root, B, "id")
    assert len(found(root)) == 4


@pytest.mark.parametrize(
    ("keys", "match"),
    [
        ("Bought: src, ghost", "ghost of edge:Bought can't be a key"),
        ("Bought: id", "id of edge:Bought can't be a key"),
        ("Person: id", "Person, which"),
        ("src, dst", "edgeKeys is malformed"),
        ("Bought: src, src", "edgeKeys is malformed"),
        ("Bought:", "edgeKeys is malformed"),
    ],
)
def test_keys_that_can_not_be_are_refused(people: str, keys: str, match: str) -> None:
    with pytest.raises(OptionError, match=match):
        save(people, FIRST, table=B, endpoints="Bought: Person -> Person", edgeKeys=keys)


def test_a_floating_key_is_refused(people: str) -> None:
    edge = {"src": ["a"], "dst": ["b"], "w": [0.5]}
    with pytest.raises(OptionError, match=r"w of edge:Bought can't be a key.*double"):
        save(people, edge, table=B, endpoints="Bought: Person -> Person", edgeKeys="Bought: w")


def test_the_text_of_the_option_names_columns_by_type() -> None:
    found = edge_keys("edgeKeys", "Bought: src, dst, at, edge:Knows: src , dst")
    assert found == {"Bought": ("src", "dst", "at"), "Knows": ("src", "dst")}
