"""What is read off a plan, and what is said to Lance of it; plans as Spark's JSON, no JVM."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from datetime import date, datetime, timezone
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from omnigraph_spark.narrowing import needs, trees
from omnigraph_spark.narrowing.needs import Use
from omnigraph_spark.narrowing.predicates import Reader

_LOGICAL = "org.apache.spark.sql.catalyst.plans.logical."
_EXPRESSION = "org.apache.spark.sql.catalyst.expressions."
_RELATION = "org.apache.spark.sql.execution.datasources.v2.DataSourceV2ScanRelation"
NAMES = ("id", "age", "name", "seen")
TYPES = ("string", "integer", "string", "timestamp")
FIELDS = {
    "id": pa.field("id", pa.string()),
    "age": pa.field("age", pa.int32()),
    "name": pa.field("name", pa.string()),
    "seen": pa.field("seen", pa.timestamp("us", "UTC")),
}
Flat = list[dict[str, Any]]


def node(kind: str, children: Sequence[Flat] = (), **fields: Any) -> Flat:
    """A node of a plan or an expression as Spark writes it: a list in pre-order."""
    prefix = "" if "." in kind else _LOGICAL if kind in _PLANS else _EXPRESSION
    own = {"class": prefix + kind, "num-children": len(children), **fields}
    return [own, *(part for child in children for part in child)]


_PLANS = ("Project", "Filter", "Join", "Union", "GlobalLimit", "LocalLimit", "Aggregate", "Novel")


def column(id_: int, kind: str = "integer", name: str = "x") -> Flat:
    return node("AttributeReference", name=name, dataType=kind, exprId={"id": id_})


def alias(id_: int, child: Flat) -> Flat:
    return node("Alias", [child], name="y", exprId={"id": id_})


def literal(value: str | None, kind: str = "integer") -> Flat:
    return node("Literal", value=value, dataType=kind)


def scan(number: int = 0, first: int = 0) -> Flat:
    names = [needs.tag(number, len(TYPES)), *NAMES[1:]]
    output = [column(first + place, kind, names[place]) for place, kind in enumerate(TYPES)]
    return node(_RELATION, output=output)


def project(child: Flat, *columns: Flat) -> Flat:
    return node("Project", [child], projectList=[*columns])


def where(child: Flat, condition: Flat) -> Flat:
    return node("Filter", [child], condition=condition)


def limit(count: int, child: Flat) -> Flat:
    local = node("LocalLimit", [child], limitExpr=literal(str(count)))
    return node("GlobalLimit", [local], limitExpr=literal(str(count)))


def join(left: Flat, right: Flat, condition: Flat, kind: str = "Inner$") -> Flat:
    joined = {"object": f"org.apache.spark.sql.catalyst.plans.{kind}"}
    return node("Join", [left, right], joinType=joined, condition=condition)


def uses(plan: Flat) -> dict[int, list[Use]]:
    return needs.uses(trees.parse(json.dumps(plan)))


def only(plan: Flat) -> Use:
    ((use,),) = uses(plan).values()
    return use


def test_a_projection_names_the_columns_that_are_read() -> None:
    assert only(project(scan(), column(2))).columns == {2}
    assert only(scan()).columns == {0, 1, 2, 3}


def test_a_count_needs_no_column() -> None:
    counted = node("Aggregate", [project(scan())], groupingExpressions=[], aggregateExpressions=[])
    assert only(counted).columns == set()


def test_a_scan_whose_columns_were_cut_off_is_not_read_by_places() -> None:
    cut = node(
        _RELATION, output=[column(0, "string", needs.tag(0, 4)), column(2, "string", "name")]
    )
    with pytest.raises(ValueError, match="cut columns off"):
        uses(project(cut, column(2)))


def test_what_takes_its_input_by_place_takes_all_of_it() -> None:
    other = project(scan(1, 10), column(10), column(11), column(12), column(13))
    found = uses(project(node("Union", [scan(), other]), column(0)))
    assert found[0][0].columns == {0, 1, 2, 3}
    assert found[1][0].columns == {0, 1, 2, 3}


def test_a_node_that_is_not_known_takes_all_and_stops_filters_and_limits() -> None:
    use = only(project(where(node("Novel", [scan()]), column(1, "boolean")), column(0)))
    assert (use.columns, use.conditions, use.limit) == ({0, 1, 2, 3}, [], None)


def test_a_subquery_hands_on_all_its_columns() -> None:
    inner = node("ScalarSubquery", plan=scan(1, 10))
    found = uses(project(scan(), column(0), alias(90, inner)))
    assert found[0][0].columns == {0}
    assert found[1][0].columns == {0, 1, 2, 3}


def test_a_limit_counts_below_projections_and_no_filter_passes_it() -> None:
    over = where(limit(5, project(scan(), column(1))), node("IsNotNull", [column(1)]))
    use = only(over)
    assert use.limit == 5
    assert use.conditions == []


def test_a_filter_below_a_limit_is_a_condition_of_the_scan() -> None:
    use = only(limit(5, where(scan(), node("IsNotNull", [column(1)]))))
    assert use.limit == 5
    assert len(use.conditions) == 1


@pytest.mark.parametrize(
    ("kind", "left", "right"),
    [
        ("Inner$", 1, 1),
        ("LeftSemi$", 1, 1),
        ("LeftOuter$", 0, 1),
        ("LeftAnti$", 0, 1),
        ("RightOuter$", 1, 0),
        ("FullOuter$", 0, 0),
    ],
)
def test_only_sides_that_lose_rows_without_a_partner_are_looked_up(
    kind: str, left: int, right: int
) -> None:
    found = uses(join(scan(), scan(1, 10), node("EqualTo", [column(0), column(10)]), kind))
    assert len(found[0][0].joins) == left
    assert len(found[1][0].joins) == right


def test_a_join_below_a_limit_of_the_scan_is_not_looked_up() -> None:
    found = uses(join(limit(3, scan()), scan(1, 10), node("EqualTo", [column(0), column(10)])))
    assert found[0][0].joins == []


def test_a_union_on_the_other_side_of_a_join_is_not_looked_up() -> None:
    """It hands on the columns of all its inputs under the ids of the first."""
    other = node("Union", [project(scan(1, 10), column(10)), project(scan(2, 20), column(20))])
    found = uses(join(scan(), other, node("EqualTo", [column(0), column(10)])))
    assert found[0][0].joins == []


def test_the_other_side_of_a_join_is_followed_through_filters_and_projections() -> None:
    other = project(where(scan(1, 10), node("IsNotNull", [column(11)])), column(10))
    found = uses(join(scan(), other, node("EqualTo", [column(0), column(10)])))
    assert [(one.place, one.key) for one in found[0][0].joins] == [(0, 10)]


def aggregate(child: Flat, keys: Sequence[Flat], *columns: Flat) -> Flat:
    return node("Aggregate", [child], groupingExpressions=[*keys], aggregateExpressions=[*columns])


def function(kind: str, of: Flat, distinct: bool = False, only: Flat | None = None) -> Flat:
    prefix = f"{_EXPRESSION}aggregate."
    inner = [node(prefix + kind, [of])] + ([] if only is None else [only])
    made = node(prefix + "AggregateExpression", inner, isDistinct=distinct)
    return alias(99, made)


_AGE, _NAME = column(1), column(2, "string")


@pytest.mark.parametrize(
    ("plan", "functions"),
    [
        (aggregate(scan(), [], function("Sum", _AGE)), {1: "sum"}),
        (aggregate(scan(), [_NAME], _NAME, function("Sum", _AGE)), {1: "sum"}),
        (aggregate(project(scan(), _NAME, _AGE), [_NAME], function("Min", _AGE)), {1: "min"}),
        (aggregate(scan(), [_NAME], _NAME), {}),
        (aggregate(scan(), [], function("Count", _AGE, distinct=True)), {}),
        (aggregate(scan(), [], function("Min", _AGE), function("Max", _AGE)), {}),
        (aggregate(scan(), [_AGE], function("Max", _AGE)), {}),
        (aggregate(scan(), [], function("Max", node("Abs", [_AGE]))), {}),
        (aggregate(scan(), [], function("Max", _AGE, only=node("IsNull", [_NAME]))), {}),
        (aggregate(where(scan(), node("IsNull", [_NAME])), [], function("Sum", _AGE)), {1: "sum"}),
        (aggregate(where(scan(), node("IsNull", [_AGE])), [], function("Max", _AGE)), {}),
        (aggregate(project(scan(), alias(50, _AGE)), [], function("Sum", column(50))), {1: "sum"}),
    ],
)
def test_what_only_distinct_rows_and_sums_count_for_is_aggregated_in_part(
    plan: Flat, functions: dict[int, str]
) -> None:
    assert only(plan).functions == functions


@pytest.mark.parametrize(
    "plan",
    [
        aggregate(scan(), [], function("Count", _AGE)),
        aggregate(scan(), [], function("Average", _AGE)),
        aggregate(scan(), [], function("Sum", node("Abs", [_AGE]))),
        aggregate(scan(), [], function("Sum", _AGE), function("Max", _AGE)),
        aggregate(scan(), [_AGE], function("Sum", _AGE)),
        aggregate(scan(), [], function("Sum", _AGE, only=node("IsNull", [_NAME]))),
        aggregate(scan(), [], function("Sum", _AGE), function("Count", _NAME)),
        aggregate(where(scan(), node("IsNull", [_AGE])), [], function("Sum", _AGE)),
        aggregate(project(scan(), alias(50, node("Abs", [_AGE])), _AGE), [], function("Sum", _AGE)),
        aggregate(limit(3, scan()), [], function("Sum", _AGE)),
        aggregate(node("Novel", [scan()]), [], function("Sum", _AGE)),
        project(scan(), _AGE),
    ],
)
def test_where_every_row_counts_none_is_aggregated(plan: Flat) -> None:
    assert only(plan).functions is None


def _read(condition: Flat, zone: str = "UTC") -> tuple[Any, bool]:
    reader = Reader({"node:P": FIELDS}, None, NAMES, lambda: zone)
    places = {place: place for place in range(len(NAMES))}
    pushed = reader.pushed([(trees.parse(json.dumps(condition)), places)])
    found = pushed.predicates["node:P"]
    bare = found.replace("(", "").replace(")", "") if isinstance(found, str) else found
    return bare, pushed.exact


def test_comparisons_go_to_lance_in_either_order() -> None:
    assert _read(node("GreaterThan", [column(1), literal("3")])) == (
        "`age` > cast'3' as int",
        True,
    )
    assert _read(node("GreaterThan", [literal("3"), column(1)])) == (
        "`age` < cast'3' as int",
        True,
    )


def test_a_part_that_lance_can_not_answer_is_left_out_of_an_and_and_spoils_an_or() -> None:
    known = node("EqualTo", [column(1), literal("3")])
    unknown = node("EqualTo", [node("Abs", [column(1)]), literal("3")])
    assert _read(node("And", [known, unknown])) == ("`age` = cast'3' as int", False)
    assert _read(node("Or", [known, unknown])) == (True, False)
    assert _read(node("Not", [node("And", [known, unknown])])) == (True, False)


def test_an_or_of_two_columns_is_one_predicate() -> None:
    either = node(
        "Or",
        [node("EqualTo", [column(1), literal("3")]), node("IsNull", [column(2, "string")])],
    )
    found, exact = _read(either)
    assert found == "`age` = cast'3' as int OR `name` IS NULL"
    assert exact


def test_a_collated_column_stays_with_spark() -> None:
    condition = node("EqualTo", [column(2, "string collate UTF8_LCASE"), literal("A", "string")])
    assert _read(condition) == (True, False)


def test_a_moment_is_read_in_the_sessions_zone_and_not_at_all_where_clocks_repeat() -> None:
    def at(text: str) -> Flat:
        return node("EqualTo", [column(3, "timestamp"), literal(text, "timestamp")])

    noon = datetime(2024, 1, 31, 3, 0, 0, 500_000, tzinfo=timezone.utc)
    micros = int(noon.timestamp() * 1_000_000)
    assert str(micros) in str(_read(at("2024-01-31 12:00:00.5"), "Asia/Tokyo")[0])
    assert _read(at("2024-10-27 02:30:00"), "Europe/Berlin") == (True, False)
    assert _read(at("+10000-01-01 00:00:00")) == (True, False)


def test_literals_are_read_by_their_types() -> None:
    reader = Reader({}, None, NAMES, "UTC")

    def value(text: str, kind: str) -> Any:
        return reader._literal(trees.parse(json.dumps(literal(text, kind))))

    assert value("1.50", "decimal(3,2)") == Decimal("1.50")
    assert value("2024-02-29", "date") == date(2024, 2, 29)
    assert value("-Infinity", "double") == float("-inf")
    assert value("1000001", "timestamp_ntz") == datetime(1970, 1, 1, 0, 0, 1, 1)


def test_a_column_that_no_table_stores_stays_with_spark() -> None:
    reader = Reader({"node:P": FIELDS}, "_table", (None, *NAMES[1:]), "UTC")
    condition = trees.parse(json.dumps(node("EqualTo", [column(0, "long"), literal("3", "long")])))
    pushed = reader.pushed([(condition, {0: 0})])
    assert (pushed.predicates["node:P"], pushed.exact) == (True, False)


def test_only_text_and_integers_are_looked_up_for_a_join() -> None:
    fields = {"x": pa.field("x", pa.float64()), "n": pa.field("n", pa.int32())}
    reader = Reader({"node:P": fields}, None, ("x", "n"), "UTC")
    assert reader.is_in(0, [0.0]) is None
    found = reader.is_in(1, [3])
    assert found is not None
    assert "`n` IN" in str(found["node:P"])


def test_bytes_that_are_no_text_stay_with_spark() -> None:
    condition = node("EqualTo", [column(0, "string"), literal("a\ufffd", "string")])
    assert _read(condition) == (True, False)


def _deep(depth: int) -> Iterator[Flat]:
    for _ in range(depth):
        yield node("EqualTo", [column(1), literal("3")])


@pytest.mark.parametrize("count", [1, 5_000])
def test_only_comparisons_of_columns_and_literals_over_a_scan_are_optimal(count: int) -> None:
    condition = node("EqualTo", [column(0), literal("7")])
    for _ in range(count):
        condition = node("And", [condition, node("IsNotNull", [column(0)])])
    plain = where(scan(), condition)
    folded = node("EqualTo", [column(0), node("Cast", [literal("7")])])
    found = {
        name: needs.is_optimal(trees.parse(json.dumps(plan)))
        for name, plan in {
            "filter": plain,
            "two filters, renamed": project(where(plain, condition), alias(9, column(0))),
            "cast": where(plain, folded),
            "computed": project(plain, node("Upper", [column(0)])),
            "limit": limit(3, plain),
        }.items()
    }
    assert [name for name, is_so in found.items() if is_so] == ["filter", "two filters, renamed"]


def test_a_deep_chain_of_ors_stays_with_spark() -> None:
    chain = node("EqualTo", [column(1), literal("4")])
    for one in _deep(300):
        chain = node("Or", [chain, one])
    assert _read(chain) == (True, False)


def test_the_json_of_a_plan_that_ends_too_early_is_refused() -> None:
    with pytest.raises(ValueError, match="too early"):
        trees.parse(json.dumps([{"class": "a.B", "num-children": 1}]))
