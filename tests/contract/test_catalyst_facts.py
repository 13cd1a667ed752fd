"""What `narrowing/catalyst.py` leans on: classes of Spark that are no public API.

Where one of these fails after an upgrade of pyspark, frames stay as they are (slower, never wrong),
and `narrowing/catalyst.py` has to change.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from omnigraph_spark import OmniGraph
from omnigraph_spark.narrowing import needs, trees
from omnigraph_spark.narrowing.catalyst import Query, eager_answers


@pytest.fixture(scope="module")
def root(spark_session: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> str:
    uri = str(tmp_path_factory.mktemp("catalyst") / "graph")
    rows = spark_session.range(20).selectExpr("concat('p', id) AS id", "int(id % 4) AS age")
    rows.write.format("omnigraph").mode("append").option("table", "node:P").save(uri)
    return uri


@pytest.fixture
def people(spark: SparkSession, root: str) -> DataFrame:
    return OmniGraph.for_path(spark, root).table("node:P")


def test_a_load_is_a_relation_of_a_python_table_and_its_source_comes_back(
    people: DataFrame, root: str
) -> None:
    (scan,) = Query(people.where("age > 1")).scans
    assert scan.option("PATH") == root
    assert scan.schema.names == ["id", "age"]
    load = scan.source().pinned()
    assert load is not None
    assert [*load.snapshot.tables] == ["node:P"]


def test_long_answers_come_through_a_connection_that_is_given_back_as_it_was(
    spark: SparkSession,
) -> None:
    client = spark.sparkContext._gateway._gateway_client
    connection = client._get_connection()
    client._give_back_connection(connection)
    plain, text = connection.socket, "long " * 20_000
    builder = spark._jvm.java.lang.StringBuilder
    with eager_answers(spark):
        assert type(connection.socket) is not type(plain)
        assert builder(text).toString() == text
        with pytest.raises(Py4JJavaError):
            builder("x").substring(3)
    assert connection.socket is plain
    with pytest.raises(RuntimeError, match="within"), eager_answers(spark):
        raise RuntimeError("within")
    assert connection.socket is plain


def test_scans_of_subqueries_are_found_and_replaced(spark: SparkSession, people: DataFrame) -> None:
    people.createOrReplaceTempView("people")
    frame = spark.sql("SELECT id FROM people WHERE age = (SELECT max(age) FROM people)")
    query = Query(frame)
    plans = {
        number: query.rows_of(scan, spark.createDataFrame([("x", 1)], scan.schema))
        for number, scan in enumerate(query.scans)
    }
    assert len(plans) == 2
    assert [row.id for row in query.made(plans).collect()] == ["x"]


def test_a_plan_of_resolved_parts_that_is_marked_so_is_not_analyzed_again(
    spark: SparkSession, people: DataFrame
) -> None:
    query = Query(people.where("age = 2L").select("id"))
    (scan,) = query.scans
    source = scan.source()
    made = query.made({0: query.scan_of(scan, source, [0, 1], "all")})
    execution = made._jdf.queryExecution()
    identity = spark._jvm.java.lang.System.identityHashCode
    assert identity(execution.logical()) == identity(execution.analyzed())
    assert len(made.collect()) == 5


def test_a_later_filter_finds_no_column_below_a_frame_and_adds_no_aggregate_to_it(
    spark: SparkSession, people: DataFrame
) -> None:
    grouped = people.groupBy("age").agg(F.max("id"))
    assert len(grouped.where("count(1) = 5").collect()) == 4
    named = people.alias("p").limit(9).select("p.id").hint("broadcast")
    assert len(named.where("age >= 0").collect()) == 9
    closed, by_name = Query(grouped).made({}), Query(named).made({})
    assert (closed.schema, by_name.schema) == (grouped.schema, named.schema)
    with pytest.raises(AnalysisException, match="INVALID_WHERE_CONDITION"):
        closed.where("count(1) = 5")
    for condition in ("age >= 0", people["age"] >= 0):
        with pytest.raises(AnalysisException):
            by_name.where(condition)
    assert len(by_name.where("p.id >= 'p'").collect()) == 9
    joined = people.join(by_name, people["id"] == by_name["id"])
    assert "BroadcastHashJoin" in joined._jdf.queryExecution().executedPlan().toString()


def test_tags_survive_the_renumbering_of_columns(spark: SparkSession, people: DataFrame) -> None:
    people.createOrReplaceTempView("people")
    frame = spark.sql(
        "WITH w AS (SELECT * FROM people) SELECT a.id FROM w a JOIN w b ON a.id = b.id AND b.age > 2"
    )
    query = Query(frame)
    found = needs.uses(trees.parse(query.optimized()[0]))
    assert [len(uses) for uses in found.values()] in ([2], [1, 1])
    assert {frozenset(use.columns) for uses in found.values() for use in uses} == {
        frozenset({0}),
        frozenset({0, 1}),
    }


def test_long_lists_stay_lists_and_settings_of_the_session_count(
    spark: SparkSession, people: DataFrame
) -> None:
    listed = people.where(F.col("id").isin([f"p{n}" for n in range(50)]))
    assert '.In"' in Query(listed).optimized()[0]
    spark.conf.set("spark.sql.session.timeZone", "Asia/Tokyo")
    assert Query(listed).zone() == "Asia/Tokyo"


def test_literals_are_told_by_their_texts(people: DataFrame) -> None:
    texts = {
        "'é\"x'": ('é"x', "string"),
        "DATE'2024-02-29'": ("2024-02-29", "date"),
        "TIMESTAMP'2024-01-01 00:00:00.5'": ("2024-01-01 00:00:00.5", "timestamp"),
        "TIMESTAMP_NTZ'1970-01-01 00:00:01'": ("1000000", "timestamp_ntz"),
        "double('NaN')": ("NaN", "double"),
        "-1.50BD": ("-1.50", "decimal(3,2)"),
        "9223372036854775807L": ("9223372036854775807", "long"),
        "true": ("true", "boolean"),
    }
    frame = people.selectExpr(*(f"struct(age, {text}) AS x{n}" for n, text in enumerate(texts)))
    found: set[Any] = set()

    def look(value: Any) -> None:
        if isinstance(value, dict):
            if str(value.get("class")).endswith(".Literal"):
                found.add((value["value"], str(value["dataType"])))
            for one in value.values():
                look(one)
        elif isinstance(value, list):
            for one in value:
                look(one)

    look(json.loads(Query(frame).optimized()[0]))
    assert set(texts.values()) <= found


@pytest.mark.parametrize(
    "text", ["rand()", "uuid()", "monotonically_increasing_id()", "shuffle(array(age))", "now()"]
)
def test_expressions_that_chance_decides_are_seen(people: DataFrame, text: str) -> None:
    assert Query(people.selectExpr("id", f"{text} AS r")).unsteady()


def test_expressions_that_only_the_order_decides_are_let_through(people: DataFrame) -> None:
    frame = people.groupBy("age").agg(F.size(F.collect_list("id")), F.first("id"))
    assert Query(frame).unsteady() == set()
    assert Query(frame.where(F.rand() > 2)).unsteady()


def test_a_small_relation_gives_its_values_without_a_job(
    spark: SparkSession, people: DataFrame
) -> None:
    small = spark.sql("SELECT * FROM VALUES ('p1'), ('p2') AS t(k)")
    query = Query(people.join(small, people.id == small.k))
    text, local = query.optimized()
    ((use,),) = needs.uses(trees.parse(text)).values()
    tracker = spark.sparkContext.statusTracker()
    spark.sparkContext.setJobGroup("small", "")
    assert sorted(local(use.joins[0].key)) == ["p1", "p2"]
    assert tracker.getJobIdsForGroup("small") == []
    spark.sparkContext.setLocalProperty("spark.jobGroup.id", None)


def test_what_is_cached_is_seen(people: DataFrame, tmp_path: Path) -> None:
    frame = people.where("age = 1")
    assert not Query(frame).is_cached()
    frame.cache()
    try:
        assert Query(frame.select("id")).is_cached()
    finally:
        frame.unpersist()
