"""Every way in stores values as Spark's SQL does, and makes properties that may be null."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyspark
import pytest
from pyspark.sql import DataFrame, SparkSession

from omnigraph_spark import OmniGraph, pack
from omnigraph_spark.errors import SchemaMismatchError, from_spark

pytestmark = pytest.mark.long

KEY = "node:P"
TYPES = "P.f: F32?, P.at: DateTime?, P.vec: Vector(2)?, P.n: I32?, P.s: string"
FIRST = "'0' AS id, 0.5F f, TIMESTAMP '2026-01-01 00:00:00Z' at, array(1F, 2F) vec, 1 n, 's' s"
ROUNDED = (
    "'{}' AS id, 0.1D f, TIMESTAMP '2026-01-01 00:00:00.123456Z' at, array(0.1D, 0.2D) vec,"
    " 7.9D n, 5 s"
)
Way = Callable[[OmniGraph, DataFrame], None]


def _append(graph: OmniGraph, frame: DataFrame, **options: str) -> None:
    writer = frame.write.format("omnigraph").mode("append").options(table=KEY, **options)
    writer.save(graph.uri)


def _bulk(graph: OmniGraph, frame: DataFrame, **options: str) -> None:
    graph.write({KEY: frame}, **options)


def _whole_graph(graph: OmniGraph, frame: DataFrame) -> None:
    pack({KEY: frame}).write.format("omnigraph").mode("append").save(graph.uri)


def _sql(graph: OmniGraph, frame: DataFrame) -> None:
    frame.createOrReplaceTempView("given")
    graph.spark.sql(f"CREATE TABLE p USING omnigraph OPTIONS (path '{graph.uri}', table '{KEY}')")
    names = ", ".join(frame.columns)
    graph.spark.sql(f"INSERT INTO p ({names}) SELECT {names} FROM given")
    graph.spark.sql("DROP TABLE p")


WAYS: dict[str, Way] = {
    "one table": _append,
    "upsert": lambda graph, frame: _append(graph, frame, writeMode="merge"),
    "whole graph": _whole_graph,
    "OmniGraph.write": _bulk,
    "SQL": _sql,
}
if pyspark.__version__.startswith("4.0."):
    del WAYS["SQL"]  # an INSERT that has to cast an array loses the table's binding there: refused


@pytest.fixture
def graph(spark: SparkSession, tmp_path: Path) -> OmniGraph:
    made = OmniGraph.for_path(spark, str(tmp_path / "g"))
    spark.conf.set("spark.sql.session.timeZone", "UTC")
    made.write({KEY: spark.sql(f"SELECT {FIRST}")}, types=TYPES)
    return made


def test_every_way_in_stores_the_same_rounded_values(graph: OmniGraph) -> None:
    for name, way in WAYS.items():
        way(graph, graph.spark.sql(f"SELECT {ROUNDED.format(name)}"))
    graph.create_branch("dev")
    frame = graph.spark.sql(f"SELECT {ROUNDED.format('branch')}")
    _append(graph, frame, branch="dev")
    rows = graph.table("P", branch="dev").where("id <> '0'").selectExpr(
        "id", "f = 0.1F", "vec = array(0.1F, 0.2F)", "n", "s", "cast(at as string)"
    ).collect()  # fmt: skip
    assert {row.id for row in rows} == {*WAYS, "branch"}
    for row in rows:
        assert tuple(row)[1:] == (True, True, 7, "5", "2026-01-01 00:00:00.123"), row.id


def test_now_goes_into_a_datetime_and_python_floats_into_a_vector(graph: OmniGraph) -> None:
    frame = graph.spark.createDataFrame([("v", [0.1, 0.2])], "id STRING, vec ARRAY<DOUBLE>")
    _append(graph, frame.selectExpr("id", "vec", "current_timestamp() AS at"))
    new = graph.spark.sql("SELECT '1' AS id, current_timestamp() AS at, array(0.1D, 0.2D) AS vec")
    graph.write({"node:New": new}, types="New.at: DateTime, New.vec: Vector(2)")
    assert graph.table("P").where("id = 'v' AND at IS NOT NULL AND vec[0] = 0.1F").count() == 1
    assert graph.table("New").where("vec[1] = 0.2F AND at > '2020-01-01'").count() == 1


@pytest.mark.parametrize("name", ["one table", "OmniGraph.write"])
def test_overflow_and_with_exact_assignment_every_loss_is_an_error(
    graph: OmniGraph, name: str
) -> None:
    version = graph.tables().first().version  # type: ignore[union-attr]
    for columns, options in (
        ("3000000000L AS n", {}),
        ("1e300D AS f", {}),
        ("0.1D AS f", {"storeAssignment": "exact"}),
        ("1.5D AS n", {"storeAssignment": "exact"}),
        ("TIMESTAMP '2026-01-01 00:00:00.123456Z' AS at", {"storeAssignment": "exact"}),
    ):
        frame = graph.spark.sql(f"SELECT 'x' AS id, {columns}")
        way = _append if name == "one table" else _bulk
        with pytest.raises(Exception, match="SCHEMA_MISMATCH") as failure:
            way(graph, frame, **options)
        assert isinstance(from_spark(failure.value), SchemaMismatchError), columns
    assert graph.tables().first().version == version  # type: ignore[union-attr]


def test_what_spark_infers_as_not_null_may_be_null_the_next_day(
    spark: SparkSession, tmp_path: Path
) -> None:
    graph = OmniGraph.for_path(spark, str(tmp_path / "inferred"))
    first = spark.range(2).selectExpr(
        "concat('a', id) AS id", "id AS n", "'web' AS channel", "named_struct('x', 1) AS part"
    )
    graph.write({"node:A": first, "edge:E": first.selectExpr("id AS src", "id AS dst", "n")},
                endpoints="E: A -> A")  # fmt: skip
    pack({"node:B": first}).write.format("omnigraph").mode("append").save(graph.uri)
    for key, columns in (("node:A", "'b' AS id"), ("node:B", "'b' AS id"),
                         ("edge:E", "'a0' AS src, 'a1' AS dst")):  # fmt: skip
        nulls = spark.sql(f"SELECT {columns}, CAST(NULL AS BIGINT) AS n")
        nulls.write.format("omnigraph").mode("append").options(table=key).save(graph.uri)
        assert graph.table(key).where("n IS NULL").count() == 1
    part = spark.sql("SELECT 'c' AS id, named_struct('x', CAST(NULL AS INT)) AS part")
    part.write.format("omnigraph").mode("append").options(table="node:A").save(graph.uri)
    assert graph.table("A").where("part IS NOT NULL AND part.x IS NULL").count() == 1


def test_not_null_stays_where_a_table_was_declared_or_read_so_until_it_is_relaxed(
    spark: SparkSession, tmp_path: Path
) -> None:
    graph = OmniGraph.for_path(spark, str(tmp_path / "declared"))
    graph.add_table("node:A", "id STRING, n INT NOT NULL")
    spark.sql(
        f"CREATE TABLE b USING omnigraph OPTIONS (path '{graph.uri}', table 'node:B',"
        " schema 'id STRING, n INT NOT NULL')"
    )
    spark.sql("INSERT INTO b SELECT '1', 1")
    graph.write({"node:C": graph.table("B")})
    for name in "ABC":
        frame = spark.sql("SELECT 'x' AS id, CAST(NULL AS INT) AS n")
        with pytest.raises(Exception, match=f"column n of node:{name}, which may not be null"):
            graph.write({f"node:{name}": frame})
        assert not graph.alter_property(name, "n", nullable=True).skipped
        graph.write({f"node:{name}": frame})
        assert graph.table(name).where("n IS NULL").count() == 1
