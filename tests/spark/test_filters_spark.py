"""Random filters on awkward values keep the same rows with push-down on and off.

The oracle of `tests/support/awkward.py` stands behind the exhaustive unit tests; here Spark itself
stands behind the oracle.
"""

from __future__ import annotations

import random
from datetime import date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from omnigraph_spark.spark import spark_types
from tests.conftest import PUSHDOWN
from tests.support import awkward
from tests.support.lance_graphs import new_graph, publish_head, write_table

KEY = "node:Awkward"
FILTERS = 24


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A graph whose one table, made by Lance alone, has the awkward values, indexed by id."""
    storage = new_graph(str(tmp_path_factory.mktemp("awkward") / "graph"))
    write_table(storage, KEY, awkward.table(), max_rows_per_file=9).create_scalar_index(
        "id", "BTREE"
    )
    publish_head(storage, KEY)
    return storage.root


def _load(spark: SparkSession, root: str, push: bool = False) -> DataFrame:
    asked = {"table": KEY, "pushDownFilters": str(push).lower()}
    return spark.read.format("omnigraph").options(**asked).load(root)


def _literal(column: awkward.Column, value: Any) -> Column:
    """Return a literal of the column's Spark type: what Spark pushes has that type."""
    kind = spark_types.spark_type(pa.field(column.name, column.arrow))
    if isinstance(value, Decimal):
        return F.lit(str(value)).cast(kind)
    if isinstance(value, datetime):  # F.lit goes through Java's old calendar
        name = "TIMESTAMP_NTZ" if value.tzinfo is None else "TIMESTAMP"
        return F.expr(f"{name}'{value.isoformat()}'")
    return F.expr(f"DATE'{value}'") if isinstance(value, date) else F.lit(value).cast(kind)


def _fits(column: awkward.Column, value: Any) -> bool:
    """Leave out what the Spark type can't hold: the cast would overflow."""
    if not isinstance(value, int) or isinstance(value, bool):
        return True
    spark = spark_types.read_type(pa.field(column.name, column.arrow))
    bits = spark.bit_width
    return bool(-(1 << bits - 1) <= value < 1 << bits - 1)


def _random(chosen: random.Random) -> tuple[str, Column]:
    column = chosen.choice(awkward.COLUMNS)
    mine = F.col(f"`{column.name}`")
    values = [value for value in column.literals if _fits(column, value)]
    one, other = (_literal(column, chosen.choice(values)) for _ in range(2))
    made = {
        "=": mine == one,
        "<>": mine != one,
        "<": mine < one,
        "<=": mine <= one,
        ">": mine > one,
        ">=": mine >= one,
        "<=>": mine.eqNullSafe(one),
        "in": mine.isin(one, other),
        "null": mine.isNull(),
        "not null": mine.isNotNull(),
    }
    name = chosen.choice(sorted(made))
    condition = made[name]
    if chosen.random() < 0.4:
        name, condition = f"not {name}", ~condition
    return f"{column.name} {name}", condition


@pytest.mark.long
def test_random_filters_keep_the_same_rows_pushed_or_not(spark: SparkSession, root: str) -> None:
    """Unpushed, all filters are columns of one query; pushed, each pair is a query of its own."""
    if spark.version.startswith("4.0"):
        pytest.skip("Spark 4.0 pushes no filters into Python sources")
    chosen = random.Random(11)
    wanted = [_random(chosen) for _ in range(FILTERS)]
    spark.conf.set(PUSHDOWN, "false")
    marks = [condition.alias(f"f{at}") for at, (_, condition) in enumerate(wanted)]
    rows = _load(spark, root).select("id", *marks).collect()
    spark.conf.set(PUSHDOWN, "true")
    for at in range(0, FILTERS, 2):
        (first, left), (second, right) = wanted[at], wanted[at + 1]
        expected = {row.id for row in rows if row[f"f{at}"] and row[f"f{at + 1}"]}
        found = {
            row.id
            for row in _load(spark, root, push=True).where(left).where(right).select("id").collect()
        }
        assert found == expected, (first, second)


@pytest.mark.parametrize("name", ["f64", "text", "int64", "date64", "day", "uint64", "p10", "flag"])
def test_the_oracles_order_of_values_is_sparks(spark: SparkSession, root: str, name: str) -> None:
    from tests.support.spark_filters import CLASSES

    column = awkward.BY_NAME[name]
    mine = F.col(f"`{name}`")
    rows = [{"id": str(at), name: value} for at, value in enumerate(awkward.spark_values(column))]
    checks: list[tuple[Any, Column]] = []
    for value in column.literals:
        if _fits(column, value):
            literal = _literal(column, value)
            checks += [
                (CLASSES["EqualTo"]((name,), value), mine == literal),
                (CLASSES["LessThan"]((name,), value), mine < literal),
                (CLASSES["GreaterThanOrEqual"]((name,), value), mine >= literal),
                (CLASSES["EqualNullSafe"]((name,), value), mine.eqNullSafe(literal)),
            ]
    marks = [condition.alias(f"f{at}") for at, (_, condition) in enumerate(checks)]
    found = {row.id: row for row in _load(spark, root).select("id", *marks).collect()}
    for at, (one, _) in enumerate(checks):
        for row in rows:
            assert found[row["id"]][f"f{at}"] == awkward.holds(one, row), (one, row)


def test_pushed_filters_are_handled_and_the_rest_is_left_in_sparks_plan(
    spark: SparkSession, root: str, capsys: pytest.CaptureFixture[str]
) -> None:
    if spark.version.startswith("4.0"):
        pytest.skip("Spark 4.0 pushes no filters into Python sources")
    spark.conf.set(PUSHDOWN, "true")
    frame = _load(spark, root, push=True).where("f64 > 1.0 AND lower(text) = 'a'")
    frame.explain()
    left = next(line for line in capsys.readouterr().out.splitlines() if "Filter" in line)
    assert "lower(text" in left
    assert "f64" not in left
