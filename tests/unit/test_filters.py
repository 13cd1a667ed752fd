"""Pushed filters give exactly the rows that Spark gives; what might not is left to Spark."""

from __future__ import annotations

import random
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from omnigraph_spark.read import filters
from tests.support import awkward
from tests.support.spark_filters import (
    CLASSES,
    EqualNullSafe,
    EqualTo,
    GreaterThan,
    In,
    IsNotNull,
    IsNull,
    LessThan,
    Not,
    StringContains,
    StringStartsWith,
)

if TYPE_CHECKING:
    from lance import LanceDataset

_COMPARISONS = (
    "EqualTo",
    "EqualNullSafe",
    "GreaterThan",
    "GreaterThanOrEqual",
    "LessThan",
    "LessThanOrEqual",
)
_SEARCHES = ("StringStartsWith", "StringEndsWith", "StringContains")
_DELETED = ("3", "17", "40")


@pytest.fixture(scope="module", params=["no index", "BTREE", "BITMAP", "ZONEMAP"])
def dataset(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The awkward table in several fragments with deleted rows, once per kind of index."""
    import lance

    path = tmp_path_factory.mktemp("awkward") / "table"
    made = lance.write_dataset(
        awkward.table(),
        path,
        max_rows_per_file=9,
        enable_stable_row_ids=True,
        data_storage_version="2.2",
    )
    if request.param != "no index":
        for name in awkward.BY_NAME:
            made.create_scalar_index(name, request.param)
    made.delete(f"id IN ({', '.join(repr(row) for row in _DELETED)})")
    return lance.dataset(path)


def _rows() -> list[dict[str, Any]]:
    columns = {column.name: awkward.spark_values(column) for column in awkward.COLUMNS}
    rows = [
        {"id": str(row), **{name: values[row] for name, values in columns.items()}}
        for row in range(awkward.ROWS)
    ]
    return [row for row in rows if row["id"] not in _DELETED]


ROWS = _rows()


def _pushed(dataset: LanceDataset, wanted: list[Any]) -> filters.Pushed:
    fields = {field.name: field for field in dataset.schema}
    return filters.push(wanted, {"node:T": fields}, None)


def _ids(dataset: LanceDataset, predicate: filters.Predicate) -> list[str]:
    if predicate is False:
        return []
    where = None if predicate is True else predicate
    return sorted(dataset.to_table(columns=["id"], filter=where)["id"].to_pylist())


def _expected(wanted: list[Any]) -> list[str]:
    return sorted(row["id"] for row in ROWS if all(awkward.holds(one, row) for one in wanted))


def _leaves(column: awkward.Column) -> Iterator[Any]:
    path = (column.name,)
    for name in _COMPARISONS:
        for literal in column.literals:
            yield CLASSES[name](path, literal)
    yield EqualNullSafe(path, None)
    yield EqualTo(path, None)
    yield IsNull(path)
    yield IsNotNull(path)
    for at in range(len(column.literals)):
        yield In(path, tuple(column.literals[at : at + 2]))
    yield In(path, (None, column.literals[0]))
    yield In(path, (None,))
    if isinstance(column.values[0], str):
        for name in _SEARCHES:
            for literal in column.literals:
                yield CLASSES[name](path, literal)


@pytest.mark.parametrize("name", awkward.BY_NAME)
def test_every_pushed_filter_gives_the_rows_that_spark_gives(
    dataset: LanceDataset, name: str
) -> None:
    column = awkward.BY_NAME[name]
    pushed = 0
    for leaf in _leaves(column):
        for one in (leaf, Not(leaf)):
            answer = _pushed(dataset, [one])
            if answer.handled[0]:
                pushed += 1
                found = _ids(dataset, answer.predicates["node:T"])
                assert found == _expected([one]), one
    assert pushed > 10


def test_random_conjunctions_give_the_rows_that_spark_gives(dataset: LanceDataset) -> None:
    chosen = random.Random(7)
    leaves = [leaf for column in awkward.COLUMNS for leaf in _leaves(column)]
    for _ in range(150):
        wanted = [
            Not(leaf) if chosen.random() < 0.4 else leaf
            for leaf in chosen.sample(leaves, chosen.randint(2, 5))
        ]
        answer = _pushed(dataset, wanted)
        handled = [one for one, ok in zip(wanted, answer.handled, strict=True) if ok]
        assert _ids(dataset, answer.predicates["node:T"]) == _expected(handled), wanted


# --- what is pushed, and what isn't ------------------------------------------------------------


def _push_one(one: Any, **fields: pa.DataType) -> filters.Predicate | None:
    """Return what is pushed of a filter to a table of these columns, None if Spark keeps it."""
    columns = {name: pa.field(name, kind) for name, kind in fields.items()}
    answer = filters.push([one], {"node:T": columns}, None)
    return answer.predicates["node:T"] if answer.handled[0] else None


@pytest.mark.parametrize(
    "kind",
    [
        pa.binary(),
        pa.large_binary(),
        pa.list_(pa.int32()),
        pa.struct([pa.field("a", pa.int32())]),
        pa.map_(pa.utf8(), pa.int32()),
        pa.float16(),
        pa.timestamp("ns", "UTC"),
        pa.decimal256(40, 2),
        pa.dictionary(pa.int32(), pa.utf8()),
        pa.duration("us"),
        pa.time64("us"),
    ],
    ids=str,
)
def test_types_that_lance_may_compare_differently_are_left_to_spark(kind: pa.DataType) -> None:
    for one in (EqualTo(("c",), 1), IsNull(("c",)), Not(IsNull(("c",))), In(("c",), (1, 2))):
        assert _push_one(one, c=kind) is None


def test_a_literal_that_the_column_cant_hold_is_left_to_spark() -> None:
    assert _push_one(LessThan(("c",), 256), c=pa.uint8()) is None
    assert _push_one(GreaterThan(("c",), -1), c=pa.uint8()) is None
    assert _push_one(EqualTo(("c",), Decimal("2.005")), c=pa.decimal128(10, 2)) is None
    assert _push_one(EqualTo(("c",), Decimal("123456789.00")), c=pa.decimal128(10, 2)) is None
    assert _push_one(EqualTo(("c",), awkward.instant(1)), c=pa.date64()) is None
    assert _push_one(EqualTo(("c",), awkward.local(0)), c=pa.timestamp("us", "UTC")) is None
    assert _push_one(EqualTo(("c",), awkward.instant(0)), c=pa.timestamp("us")) is None
    assert _push_one(In(("c",), (1, 300)), c=pa.uint8()) is None
    assert _push_one(EqualTo(("c",), True), c=pa.int32()) is None
    assert _push_one(EqualTo(("c",), "a\x00b"), c=pa.utf8()) is None
    assert _push_one(EqualTo(("c",), "\ud800"), c=pa.utf8()) is None


def test_a_comparison_with_null_keeps_no_row_and_a_list_with_null_keeps_its_values() -> None:
    assert _push_one(EqualTo(("c",), None), c=pa.int32()) is False
    assert _push_one(Not(In(("c",), (1, None))), c=pa.int32()) is False
    assert _push_one(In(("c",), (1, None)), c=pa.int32()) == "(`c` IN (cast('1' as int)))"


def test_text_in_a_filter_cant_change_what_the_filter_says() -> None:
    hostile = "x' OR 1=1 --"
    assert _push_one(EqualTo(("c",), hostile), c=pa.utf8()) == "(`c` = 'x'' OR 1=1 --')"


@pytest.mark.parametrize("name", ["sp ace", "Имя", "select", "c'q", "e\u0301", 'd"q', "1a", "TRUE"])
def test_odd_names_are_filtered_by_their_own_column(tmp_path: Path, name: str) -> None:
    import lance

    table = pa.table({"id": ["1", "2"], name: [1, 2], name.upper() + "x": [2, 1]})
    made = lance.write_dataset(table, tmp_path / "t", data_storage_version="2.2")
    answer = _pushed(made, [EqualTo((name,), 1)])
    assert answer.handled == (True,)
    assert _ids(made, answer.predicates["node:T"]) == ["1"]


def test_names_that_differ_only_by_case_are_two_columns(tmp_path: Path) -> None:
    import lance

    table = pa.table({"id": ["1", "2"], "Name": [1, 2], "name": [2, 1]})
    made = lance.write_dataset(table, tmp_path / "t", data_storage_version="2.2")
    assert _ids(made, _pushed(made, [EqualTo(("Name",), 1)]).predicates["node:T"]) == ["1"]
    assert _ids(made, _pushed(made, [EqualTo(("name",), 1)]).predicates["node:T"]) == ["2"]


@pytest.mark.parametrize("name", ["b`t", "a.b"])
def test_names_that_cant_be_quoted_are_left_to_spark(name: str) -> None:
    assert _push_one(EqualTo((name,), 1), **{name: pa.int32()}) is None


def test_nested_fields_and_unknown_columns_are_left_to_spark() -> None:
    assert _push_one(EqualTo(("s", "a"), 1), s=pa.struct([pa.field("a", pa.int32())])) is None
    assert _push_one(EqualTo(("s", "a"), 1), **{"s.a": pa.int32()}) is None
    assert _push_one(EqualTo(("other",), 1), c=pa.int32()) is None


def test_a_filter_of_another_kind_is_left_to_spark() -> None:
    class Between:
        attribute = ("c",)
        value = 1

    assert _push_one(Between(), c=pa.int32()) is None


def test_equality_on_id_is_answered_by_the_index(tmp_path: Path) -> None:
    import lance

    table = pa.table({"id": [f"i{n}" for n in range(1000)], "n": list(range(1000))})
    made = lance.write_dataset(table, tmp_path / "t", max_rows_per_file=100)
    made.create_scalar_index("id", "BTREE")
    where = _pushed(made, [IsNotNull(("id",)), EqualTo(("id",), "i7")]).predicates["node:T"]
    scanner = made.scanner(filter=str(where), fragments=made.get_fragments()[:3])
    assert "ScalarIndexQuery" in scanner.explain_plan()


def test_ten_thousand_values_and_five_hundred_terms_give_the_right_rows(tmp_path: Path) -> None:
    import lance

    ids = [f"i{n}" for n in range(1, 20_001)]
    made = lance.write_dataset(pa.table({"id": ids}), tmp_path / "t")
    listed = _pushed(made, [In(("id",), tuple(ids[:10_000]))])
    assert listed.handled == (True,)
    assert _ids(made, listed.predicates["node:T"]) == sorted(ids[:10_000])
    terms = _pushed(made, [Not(EqualTo(("id",), one)) for one in ids[:500]])
    assert all(terms.handled)
    assert _ids(made, terms.predicates["node:T"]) == sorted(ids[500:])


def test_what_is_beyond_the_limits_is_left_to_spark() -> None:
    fields = {"node:T": {"c": pa.field("c", pa.utf8())}}
    values = tuple(map(str, range(filters.MAX_LITERALS + 1)))
    assert filters.push([In(("c",), values)], fields, None).handled == (False,)
    many = [EqualTo(("c",), "x")] * (filters.MAX_FILTERS + 5)
    assert sum(filters.push(many, fields, None).handled) == filters.MAX_FILTERS
    long = EqualTo(("c",), "x" * (filters.MAX_TEXT + 1))
    assert filters.push([long], fields, None).handled == (False,)


# --- whole-graph frames ------------------------------------------------------------------------

_GRAPH = {
    "node:Person": {"id": pa.field("id", pa.utf8()), "age": pa.field("age", pa.int32())},
    "node:Thing": {"id": pa.field("id", pa.utf8()), "age__string": pa.field("age", pa.utf8())},
    "edge:Knows": {"id": pa.field("id", pa.utf8())},
}


def _push_graph(*wanted: Any) -> tuple[dict[str, filters.Predicate], tuple[bool, ...]]:
    answer = filters.push(wanted, _GRAPH, "_table")
    return dict(answer.predicates), answer.handled


def _left(*wanted: Any) -> list[str]:
    predicates, handled = _push_graph(*wanted)
    assert all(handled)
    return [key for key, predicate in predicates.items() if predicate is not False]


def test_a_filter_on_the_table_column_prunes_the_other_tables() -> None:
    everything = [*_GRAPH]
    table = ("_table",)
    assert _left(EqualTo(table, "node:Person")) == ["node:Person"]
    assert _left(Not(EqualTo(table, "node:Person"))) == ["node:Thing", "edge:Knows"]
    assert _left(In(table, ("node:Person", "edge:Knows", None))) == ["node:Person", "edge:Knows"]
    assert _left(Not(In(table, ("node:Person", None)))) == []
    assert _left(StringStartsWith(table, "node:")) == ["node:Person", "node:Thing"]
    assert _left(StringContains(table, "now")) == ["edge:Knows"]
    assert _left(GreaterThan(table, "node:Person")) == ["node:Thing"]
    assert _left(EqualNullSafe(table, "edge:Knows")) == ["edge:Knows"]
    assert _left(Not(EqualNullSafe(table, "edge:Knows"))) == ["node:Person", "node:Thing"]
    assert _left(IsNotNull(table)) == everything
    assert _left(IsNull(table)) == []
    assert _left(EqualTo(table, None)) == []


def test_a_table_without_the_column_has_null_there() -> None:
    missing = ["node:Thing", "edge:Knows"]
    assert _left(EqualTo(("age",), 3)) == ["node:Person"]
    assert _left(Not(EqualTo(("age",), 3))) == ["node:Person"]
    assert _left(IsNotNull(("age",))) == ["node:Person"]
    predicates, _ = _push_graph(IsNull(("age",)))
    assert [key for key, predicate in predicates.items() if predicate is True] == missing
    predicates, _ = _push_graph(Not(EqualNullSafe(("age",), 3)))
    assert [key for key, predicate in predicates.items() if predicate is True] == missing
    assert _left(EqualNullSafe(("age",), 3)) == ["node:Person"]
    predicates, _ = _push_graph(EqualNullSafe(("age",), None))
    assert [key for key, predicate in predicates.items() if predicate is True] == missing


def test_a_column_of_one_type_of_several_is_filtered_by_its_stored_name() -> None:
    predicates, handled = _push_graph(EqualTo(("age__string",), "x"))
    assert handled == (True,)
    assert predicates["node:Thing"] == "(`age` = 'x')"
    assert predicates["node:Person"] is False


def test_a_filter_that_one_table_cant_answer_is_left_to_spark_for_all() -> None:
    tables = {
        "node:A": {"c": pa.field("c", pa.int32())},
        "node:B": {"c": pa.field("c", pa.uint8())},
    }
    answer = filters.push([EqualTo(("c",), 300)], tables, "_table")
    assert answer.handled == (False,)
    assert answer.predicates == {"node:A": True, "node:B": True}
