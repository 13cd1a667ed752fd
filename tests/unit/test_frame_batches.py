"""Whole-graph batches are taken apart by table and put together from tables; no Spark."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from omnigraph_spark.arrow import frame_batches
from omnigraph_spark.errors import IntegrityError, SchemaMismatchError
from omnigraph_spark.schema import property_types

MISMATCH = r"\[OMNIGRAPH_SCHEMA_MISMATCH\]"
P, C, K = "node:Person", "node:Company", "edge:Knows"
OWNERSHIP = {
    P: {"id": "id", "age__int": "age", "name": "name"},
    C: {"id": "id", "age__string": "age", "name": "name"},
    K: {"id": "id", "src": "src", "dst": "dst"},
}


def batch(*rows: dict) -> pa.RecordBatch:
    schema = pa.schema(
        [
            pa.field("_table", pa.utf8()),
            *(pa.field(n, pa.utf8()) for n in ("id", "src", "dst", "age__string", "name")),
            pa.field("age__int", pa.int32()),
        ]
    )
    return pa.RecordBatch.from_pylist(list(rows), schema)


def routed(rows: pa.RecordBatch) -> dict[str, list[dict]]:
    found: dict[str, list[dict]] = {}
    for key, part in frame_batches.route(rows, OWNERSHIP):
        part.validate(full=True)
        found.setdefault(key, []).extend(part.to_pylist())
    return found


def test_rows_go_to_their_tables_in_order_under_the_tables_own_names() -> None:
    rows = batch(
        {"_table": P, "id": "1", "age__int": 7, "name": "a"},
        {"_table": K, "id": "k", "src": "1", "dst": "2"},
        {"_table": P, "id": "2"},
        {"_table": C, "id": "c", "age__string": "old"},
        {"_table": P, "id": "0", "name": "z"},
    )
    expected: dict[str, list[dict]] = {
        P: [
            {"id": "1", "name": "a", "age": 7},
            {"id": "2", "name": None, "age": None},
            {"id": "0", "name": "z", "age": None},
        ],
        K: [{"id": "k", "src": "1", "dst": "2"}],
        C: [{"id": "c", "age": "old", "name": None}],
    }
    assert routed(rows) == expected
    assert routed(rows.slice(1, 2)) == {K: expected[K], P: expected[P][1:2]}


def test_a_batch_of_one_table_keeps_its_columns_as_they_are() -> None:
    rows = batch({"_table": P, "id": "1"}, {"_table": P, "id": "2"})
    ((key, part),) = frame_batches.route(rows, OWNERSHIP)
    assert key == P
    assert part.column("id").buffers()[2].address == rows.column("id").buffers()[2].address


def test_no_rows_route_to_nothing() -> None:
    assert routed(batch()) == {}


def test_a_value_in_another_tables_column_is_refused_with_table_column_and_id() -> None:
    rows = batch(
        {"_table": P, "id": "1", "age__int": 1},
        {"_table": P, "id": "2", "age__string": "x"},
    )
    with pytest.raises(
        SchemaMismatchError, match=MISMATCH + r".*node:Person.*column age__string.*id '2'"
    ) as caught:
        routed(rows)
    assert caught.value.samples == ["2"]  # type: ignore[attr-defined]


def test_a_value_in_a_column_of_no_table_is_refused() -> None:
    rows = batch({"_table": P, "id": "1"}).append_column("more", pa.array([None], pa.utf8()))
    assert routed(rows) == {P: [{"id": "1", "name": None, "age": None}]}
    rows = batch({"_table": P, "id": "1"}).append_column("more", pa.array(["x"]))
    with pytest.raises(SchemaMismatchError, match=MISMATCH + r".*column more"):
        routed(rows)


def test_an_edges_end_on_a_node_is_refused() -> None:
    with pytest.raises(SchemaMismatchError, match=MISMATCH + r".*node:Company.*column src"):
        routed(batch({"_table": C, "id": "1", "src": "x"}))


def test_a_table_that_the_write_does_not_know_is_refused_and_pack_is_shown() -> None:
    rows = batch({"_table": P, "id": "1"}, {"_table": "node:New", "id": "n"})
    with pytest.raises(SchemaMismatchError, match=MISMATCH + r".*node:New.*pack"):
        routed(rows)


def test_a_row_without_a_table_is_refused_with_its_id() -> None:
    rows = batch({"_table": P, "id": "1"}, {"_table": None, "id": "lost"})
    with pytest.raises(IntegrityError, match=r"\[OMNIGRAPH_INTEGRITY\].*_table.*'lost'"):
        routed(rows)


def test_a_table_whose_columns_the_frame_lacks_keeps_its_rows() -> None:
    rows = pa.record_batch({"_table": [K, K, P], "name": [None, None, "a"]})
    assert routed(rows) == {K: [{"id": None}, {"id": None}], P: [{"name": "a"}]}


@given(st.lists(st.tuples(st.sampled_from([P, C, K]), st.integers(0, 9)), min_size=1), st.data())
def test_every_row_arrives_once_in_its_table_and_in_order(
    rows: list[tuple[str, int]], data: st.DataObject
) -> None:
    start = data.draw(st.integers(0, len(rows) - 1))
    whole = batch(*({"_table": key, "id": str(n)} for key, n in rows)).slice(start)
    found = {key: [row["id"] for row in part] for key, part in routed(whole).items()}
    expected: dict[str, list[str]] = {}
    for key, n in rows[start:]:
        expected.setdefault(key, []).append(str(n))
    assert found == expected


WIDE = pa.schema(
    [
        pa.field("_table", pa.utf8(), nullable=False),
        ("id", pa.utf8()),
        ("src", pa.utf8()),
        ("age__int", pa.int32()),
        ("age__string", pa.utf8()),
        ("tags", pa.list_(pa.field("element", pa.utf8()))),
        ("pic", pa.binary()),
    ]
)


def test_a_table_batch_becomes_a_wide_one_with_nulls_and_the_tables_key() -> None:
    stored = pa.schema(
        [("id", pa.utf8()), ("age", pa.int32()), ("pic", property_types.blob_type())]
    )
    scanned = pa.record_batch(
        {
            "pic": pa.array([b"", b"A"], pa.large_binary()),
            "id": pa.array(["1", "2"], pa.large_utf8()),
            "age": pa.array([7, None], pa.int32()),
        }
    )
    owned = {"id": "id", "age__int": "age", "pic": "pic"}
    wide = frame_batches.assemble(P, scanned, WIDE, owned, stored)
    wide.validate(full=True)
    assert wide.schema.equals(WIDE)
    nothing = {"_table": P, "src": None, "age__string": None, "tags": None}
    assert wide.to_pylist() == [
        {"id": "1", "age__int": 7, "pic": None, **nothing},
        {"id": "2", "age__int": None, "pic": b"A", **nothing},
    ]


def test_a_part_of_the_wide_schema_is_assembled_too() -> None:
    scanned = pa.record_batch({"id": ["1", "2"]})
    part = pa.schema([("src", pa.utf8()), pa.field("_table", pa.utf8(), nullable=False)])
    assert (
        frame_batches.assemble(P, scanned, part, OWNERSHIP[P]).to_pylist()
        == [{"src": None, "_table": P}] * 2
    )
