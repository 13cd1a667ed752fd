"""Narrowed frames: what their scans read, and that nobody gets another query's rows."""

from __future__ import annotations

import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.classic.dataframe import DataFrame as ClassicDataFrame

from omnigraph_spark import OmniGraph, enable_narrowing, narrow
from omnigraph_spark.errors import OptionError
from omnigraph_spark.narrowing.catalyst import Query
from omnigraph_spark.narrowing.frames import NarrowingFrame
from omnigraph_spark.narrowing.narrow import ScanReport, narrowed

ROWS = 3_000


@pytest.fixture(scope="module")
def root(spark_session: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> str:
    """People in three files, an edge from each to the next, indices on ids and ends."""
    uri = str(tmp_path_factory.mktemp("narrow") / "graph")
    graph = OmniGraph.for_path(spark_session, uri)
    rows = spark_session.range(0, ROWS, 1, 1)
    people = rows.selectExpr(
        "concat('p', id) AS id", "int(id % 90) AS age", "concat('n', id) AS name"
    )
    knows = rows.selectExpr(
        "concat('k', id) AS id",
        "concat('p', id) AS src",
        f"concat('p', (id + 1) % {ROWS}) AS dst",
        "id AS w",
    )
    graph.write(
        {"node:Person": people, "edge:Knows": knows},
        endpoints="Knows: Person -> Person",
        maxRowsPerFile="1000",
        integrity="off",
    )
    for table, column in (("node:Person", "id"), ("edge:Knows", "src")):
        graph.create_index(table, column)
    return uri


@pytest.fixture
def graph(spark: SparkSession, root: str) -> OmniGraph:
    return OmniGraph.for_path(spark, root)


def _report(frame: DataFrame) -> ScanReport:
    (report,) = narrowed(frame)[1]
    return report


def test_a_scan_reads_the_columns_rows_and_counts_that_the_query_needs(graph: OmniGraph) -> None:
    people, knows = graph.table("Person"), graph.table("Knows")
    one = _report(people.agg(F.sum("age")))
    assert (one.columns, dict(one.filters), one.limit, one.rows) == (("age",), {}, None, ROWS)
    found = _report(people.where("id = 'p7' AND length(name) > 1").select("name"))
    assert found.columns == ("id", "name")
    assert "`id` = 'p7'" in found.filters["node:Person"]
    first = _report(people.limit(5))
    assert (first.limit, first.rows) == (
        5,
        ROWS,
    )  # three files that one task reads, as far as needed
    assert _report(people.where("age > 3").limit(5)).limit == 5
    assert _report(people.where("length(name) > 3").limit(5)).limit is None
    counted = _report(knows.groupBy().count())
    assert (counted.columns, counted.rows) == ((), ROWS)
    small = graph.spark.sql("SELECT * FROM VALUES ('p1'), ('p2') AS t(id)")
    joined = _report(knows.join(small, knows.src == small.id).select("dst"))
    assert "'p1', 'p2'" in joined.filters["edge:Knows"]


@pytest.mark.parametrize(
    ("condition", "columns", "pushed", "is_optimized"),
    [
        ("id = 'p7'", "*", "`id` = 'p7'", False),
        ("id = 'p7' AND age >= 7", "name", "`age` >= ", False),
        ("NOT (age < 89) OR id IN ('p7', 'p8')", "name AS n", "`id` IN ('p7', 'p8')", False),
        ("id = concat('p', '7')", "*", "`id` = 'p7'", True),
        ("age = 7L", "name", "`age` = ", True),
        ("id = 'p7'", "upper(name)", "`id` = 'p7'", True),
        ("id = 'p7' AND (age = 7 OR TRUE OR name = 'x')", "id", "`id` = 'p7'", False),
        ("id = 'p7' AND (length(name) > 9 OR TRUE)", "id", "`id` = 'p7'", True),
        ("age = 7 AND (age = 8 OR name IS NULL OR name IS NOT NULL)", "id", "`age` = ", False),
    ],
)
def test_of_a_look_up_that_is_optimal_as_it_stands_no_plan_is_optimized(
    graph: OmniGraph,
    monkeypatch: pytest.MonkeyPatch,
    condition: str,
    columns: str,
    pushed: str,
    is_optimized: bool,
) -> None:
    asked: list[Query] = []
    optimized = Query.optimized

    def noted(query: Query) -> Any:
        asked.append(query)
        return optimized(query)

    monkeypatch.setattr(Query, "optimized", noted)
    plain = graph.table("Person").where(condition).selectExpr(columns)
    made, (report,) = narrowed(plain)
    assert bool(asked) == is_optimized
    assert pushed in report.filters["node:Person"]
    rows = made.collect()
    assert rows
    assert sorted(map(repr, rows)) == sorted(map(repr, plain.collect()))


@pytest.mark.parametrize("value", ["p7", "p\ufffd", "p" * 2_000_000, "p'7", "", None, 7])
@pytest.mark.parametrize("column", ["id", "age"])
def test_a_look_up_gives_the_rows_of_its_value_whether_lance_is_asked_for_it_or_not(
    graph: OmniGraph, column: str, value: Any
) -> None:
    plain = ClassicDataFrame(graph.table("Person")._jdf, graph.spark)
    for query in (
        plain.where(plain[column] == F.lit(value)),
        plain.where(F.lit(value) == F.col(column)),
    ):
        for asked in (query, query.select("name"), query.where("age >= 0"), query.select()):
            try:
                expected = asked.collect()
            except PySparkException:  # text that is no number
                continue
            assert sorted(map(repr, narrow(asked).collect())) == sorted(map(repr, expected))


Make = Callable[[DataFrame], DataFrame]


@pytest.mark.parametrize(
    ("query", "later", "text"),
    [
        (lambda p: p.where("id = 'p7'").select("id"), "name IS NULL", "UNRESOLVED_COLUMN"),
        (lambda p: p.select("id", "age"), "name = 'n7'", "UNRESOLVED_COLUMN"),
        (lambda p: p.limit(9).select("id"), "age IS NULL", "UNRESOLVED_COLUMN"),
        (lambda p: p.select("id").limit(9), "age IS NULL", "UNRESOLVED_COLUMN"),
        (
            lambda p: p.selectExpr("id", "upper(name) n").select("id"),
            "n < 'N'",
            "UNRESOLVED_COLUMN",
        ),
        (lambda p: p.groupBy("age").agg(F.max("id")), "count(1) > 5", "INVALID_WHERE_CONDITION"),
        (lambda p: p.groupBy("age").agg(F.max("id")), "max(name) > 'n'", "UNRESOLVED_COLUMN"),
        (lambda p: p.groupBy("age").agg(F.count("id")), "max(name) > 'n'", "UNRESOLVED_COLUMN"),
        (lambda p: p.groupBy().count(), "max(name) > 'n'", "UNRESOLVED_COLUMN"),
        (lambda p: p.where("length(name) < 9 OR TRUE").select("id"), "name = 'n7'", "UNRESOLVED"),
        (lambda p: p.where("id > 'p' AND length(id) > 1").select("id"), "age = 7", "UNRESOLVED"),
    ],
)
def test_a_filter_by_what_a_narrowed_frame_left_out_fails_and_never_gives_other_rows(
    graph: OmniGraph, query: Make, later: str, text: str
) -> None:
    narrowing = graph.table("Person")
    plain = query(ClassicDataFrame(narrowing._jdf, graph.spark))
    made, reports = narrowed(plain)
    assert reports
    assert narrowed(query(narrowing).where(later))[0].collect() == plain.where(later).collect()
    with pytest.raises(PySparkException, match=text):
        made.where(later).collect()
    with pytest.raises(PySparkException):
        made.sort("name").collect()
    first = made.columns[0]
    for condition in (f"{first} IS NOT NULL", f"{first} >= '2'"):
        assert made.where(condition).count() == plain.where(condition).count()


def test_a_frame_of_counted_tables_has_no_columns_but_its_own(graph: OmniGraph) -> None:
    plain = ClassicDataFrame(graph.graph()._jdf, graph.spark).select("_table")
    made, (report,) = narrowed(plain)
    assert (report.columns, report.rows) == (("_table",), 2 * ROWS)
    assert plain.where("age IS NULL").count() == ROWS
    with pytest.raises(PySparkException, match="UNRESOLVED_COLUMN"):
        made.where("age IS NULL")
    assert made.where("_table = 'node:Person'").count() == ROWS


@pytest.mark.parametrize(
    ("query", "partial", "most"),
    [
        ("SELECT sum(age), max(age + 1) FROM {p}", None, ROWS),
        ("SELECT sum(w) FROM {k}", "sum(w)", 12),
        ("SELECT sum(w) + 1 AS s, min(src), max(dst) FROM {k}", "min(src), max(dst), sum(w)", 12),
        ("SELECT age, max(name) FROM {p} GROUP BY age", "max(name)", 90 * 12),
        ("SELECT DISTINCT age FROM {p}", "", 90 * 12),
        ("SELECT count(DISTINCT age) FROM {p} WHERE age > 80", "", 9 * 12),
        ("SELECT age, sum(length(name)) FROM {p} GROUP BY age", None, ROWS),
        ("SELECT sum(w), count(src) FROM {k}", None, ROWS),
        ("SELECT _table, max(age), sum(w) FROM {g} GROUP BY _table", "max(age), sum(w)", 24),
        ("SELECT DISTINCT id FROM {p}", "", ROWS),
    ],
)
def test_sums_extremes_and_distinct_rows_come_partly_aggregated(
    graph: OmniGraph, query: str, partial: str | None, most: int
) -> None:
    graph.table("Person").createOrReplaceTempView("partial_p")
    graph.table("Knows").createOrReplaceTempView("partial_k")
    graph.graph().createOrReplaceTempView("partial_g")
    plain = graph.spark.sql(query.format(p="partial_p", k="partial_k", g="partial_g"))
    made, (report,) = narrowed(plain)
    assert report.partial == partial
    assert sorted(map(repr, made.collect())) == sorted(map(repr, plain.collect()))
    assert _rows_read(made) <= most


def _rows_read(frame: DataFrame) -> int:
    """How many rows the scans of a frame give to Spark."""
    leaves = frame._jdf.queryExecution().executedPlan().collectLeaves()
    scans = [leaves.apply(at) for at in range(leaves.size())]
    if scans[0].getClass().getSimpleName().startswith("AdaptiveSparkPlan"):
        inner = scans[0].executedPlan().collectLeaves()
        scans = [inner.apply(at) for at in range(inner.size())]
    counts = [scan.metrics().get("numOutputRows") for scan in scans]
    return sum(int(one.get().value()) for one in counts if one.isDefined())


@pytest.mark.parametrize(
    ("sort", "by"),
    [
        ("age DESC, id", ("age DESC NULLS LAST", "id ASC NULLS FIRST")),
        ("age NULLS LAST, id DESC", ("age ASC NULLS LAST", "id DESC NULLS LAST")),
        ("name", ("name ASC NULLS FIRST",)),
    ],
)
def test_each_task_sorts_out_the_first_rows_by_itself(
    spark: SparkSession, root: str, sort: str, by: tuple[str, ...]
) -> None:
    """Of ranges of files, too; the rows that a task gives are few, and the answer is Spark's."""
    reader = spark.read.format("omnigraph").option("maxPartitionBytes", "20000")
    people = reader.option("table", "Person").load(root)
    people.createOrReplaceTempView("first_people")
    query = (
        f"SELECT id, name, age FROM first_people WHERE age <> 7 ORDER BY {sort} LIMIT 4 OFFSET 1"
    )
    made, (report,) = narrowed(spark.sql(query))
    assert (report.limit, report.order) == (5, by)
    rows = [row.asDict() for row in people.where("age <> 7").sort(F.expr("id")).collect()]
    columns = [(one.split()[0], one.split()[1] == "DESC") for one in reversed(by)]
    for column, backwards in columns:
        rows.sort(key=lambda row: row[column], reverse=backwards)
    assert [row.asDict() for row in made.collect()] == rows[1:5]
    assert people.rdd.getNumPartitions() > 2  # of 1000 rows in three files: ranges of them


def test_a_join_looks_up_what_an_index_finds_on_the_other_side(graph: OmniGraph) -> None:
    people, knows = graph.table("Person"), graph.table("Knows")
    hops = people.where("id IN ('p1', 'p5')").join(knows, people.id == knows.src).select("dst")
    made, reports = narrowed(hops)
    filters = {one.table: one.filters for one in reports}
    assert "`src` IN ('p1', 'p5')" in filters["edge:Knows"]["edge:Knows"]
    assert sorted(row.dst for row in made.collect()) == ["p2", "p6"]


def test_a_whole_graph_frame_is_counted_and_pruned_by_its_tables(graph: OmniGraph) -> None:
    whole = graph.graph()
    made, (report,) = narrowed(whole.groupBy("_table").count())
    assert report.columns == ("_table",)
    assert {row["_table"]: row["count"] for row in made.collect()} == {
        "node:Person": ROWS,
        "edge:Knows": ROWS,
    }
    one = _report(whole.where("_table = 'edge:Knows'").agg(F.sum("w")))
    assert (one.columns, one.rows) == (("_table", "w"), ROWS)


def test_counts_leave_deleted_rows_out(spark: SparkSession, tmp_path: Path) -> None:
    graph = OmniGraph.for_path(spark, str(tmp_path / "graph"))
    graph.write({"node:P": spark.range(10).selectExpr("concat('p', id) AS id")})
    gone = spark.createDataFrame([("p3",)], "id string").write.format("omnigraph").mode("append")
    gone.options(table="node:P", writeMode="delete").save(graph.uri)
    frame = graph.table("node:P")
    assert _report(frame.groupBy().count()).rows == 9
    assert frame.count() == 9


def test_a_column_that_is_never_null_counts_all_rows_unread(graph: OmniGraph) -> None:
    """Spark counts it without looking; what stands for it must not be null."""
    frame = graph.table("Person").selectExpr("count(id) AS n", "count_if(id IS NULL) AS m")
    made, (report,) = narrowed(frame)
    assert report.columns == ()
    assert made.collect() == [(ROWS, 0)]


def test_one_frame_in_many_queries_and_threads_gives_each_its_own_rows(graph: OmniGraph) -> None:
    people = graph.table("Person")

    def named(number: int) -> list[str]:
        return [row.name for row in people.where(f"id = 'p{number}'").select("name").collect()]

    assert people.count() == ROWS
    with ThreadPoolExecutor(4) as pool:
        assert [*pool.map(named, range(8))] == [[f"n{number}"] for number in range(8)]
    both = people.where("age = 3").union(people.where("age = 5")).select("age").distinct()
    assert sorted(row.age for row in both.collect()) == [3, 5]
    assert people.count() == ROWS
    assert len(people.collect()) == ROWS


def test_a_cached_frame_is_read_from_the_cache(
    graph: OmniGraph, caplog: pytest.LogCaptureFixture
) -> None:
    frame = graph.table("Person").where("age < 2").cache()
    try:
        with caplog.at_level(logging.DEBUG, "omnigraph_spark.narrowing"):
            assert frame.count() == frame.select("id").count() == 68
        assert "Spark has cached a part of it" in caplog.text
    finally:
        frame.unpersist()


def test_a_narrowed_frame_is_written_and_keeps_where_it_was_read(
    graph: OmniGraph, tmp_path: Path
) -> None:
    frame = graph.table("Person").where("age = 4")
    assert narrow(frame).schema.json() == frame.schema.json()
    target = str(tmp_path / "copy")
    frame.write.format("omnigraph").mode("append").option("table", "node:Person").save(target)
    written = OmniGraph.for_path(graph.spark, target).table("Person")
    assert {row.age for row in written.collect()} == {4}
    assert written.count() == frame.count()


def test_what_chance_decides_stays_as_it_is(
    graph: OmniGraph, caplog: pytest.LogCaptureFixture
) -> None:
    people = graph.table("Person")
    with caplog.at_level(logging.DEBUG, "omnigraph_spark.narrowing"):
        assert narrowed(people.select("id").withColumn("r", F.rand()))[1] == []
        assert narrowed(people.select("id").sample(0.5, 1))[1] == []
    assert "it isn't deterministic: Rand" in caplog.text
    assert "it is a sample" in caplog.text


def test_an_unknown_spark_leaves_frames_as_they_are(
    graph: OmniGraph, monkeypatch: pytest.MonkeyPatch
) -> None:
    from omnigraph_spark.narrowing import catalyst

    def other(self: object, *_: object) -> None:
        raise AttributeError("no such class")

    monkeypatch.setattr(catalyst.Query, "optimized", other)
    assert graph.table("Person").where("id = 'p7'").count() == 1


def test_sql_and_query_are_over_one_snapshot(graph: OmniGraph) -> None:
    spark = graph.spark
    text = "SELECT p.age, k.w FROM Person p JOIN Knows k ON k.src = p.id WHERE p.id = :id"
    frame = graph.sql(text, {"id": "p7"})
    assert [tuple(row) for row in frame.collect()] == [(7, 7)]
    assert not [view.name for view in spark.catalog.listTables() if view.isTemporary]
    made = graph.query(lambda table: table("Person").where("age = 3").select("id"), version=None)
    assert made.count() == len([n for n in range(ROWS) if n % 90 == 3])
    later = made.where("name = 'n93'")  # a column that the query has left out
    assert [row.id for row in later.collect()] == ["p93"]
    assert _report(later).columns == ("id", "age", "name")
    spark.range(1).createOrReplaceTempView("one_row")
    plain = graph.query(lambda table: spark.table("one_row").crossJoin(table("Person").limit(2)))
    assert isinstance(plain, NarrowingFrame)
    assert plain.count() == 2
    with pytest.raises(OptionError, match="found str"):
        graph.query(lambda _: "SELECT 1")  # type: ignore[arg-type, return-value]


def test_a_session_whose_frames_narrow_themselves(
    graph: OmniGraph, root: str, capsys: pytest.CaptureFixture[str]
) -> None:
    session = enable_narrowing(graph.spark)
    frame = session.read.format("omnigraph").option("table", "Person").load(root)
    frame.createOrReplaceTempView("people")
    session.sql("SELECT max(age) FROM people WHERE id < 'p2'").explain()
    shown = capsys.readouterr().out
    assert "omnigraph node:Person [id, age] where" in shown
    assert "`id` < 'p2'" in shown
    assert f"of {ROWS} rows" in shown
    assert session.table("people").groupBy("age").count().count() == 90


def test_a_catalog_table_is_narrowed_to_the_newest_version_of_each_query(
    spark: SparkSession, tmp_path: Path
) -> None:
    graph = OmniGraph.for_path(spark, str(tmp_path / "graph"))
    graph.write({"node:P": spark.range(3).selectExpr("concat('p', id) AS id", "int(id) AS age")})
    spark.sql(f"CREATE TABLE ps USING omnigraph OPTIONS (path '{graph.uri}', table 'node:P')")
    session = enable_narrowing(spark)
    assert session.sql("SELECT sum(age) AS s FROM ps").collect() == [(3,)]
    graph.write({"node:P": spark.sql("SELECT 'p9' AS id, 10 AS age")})
    frame = session.sql("SELECT sum(age) AS s FROM ps")
    assert frame.collect() == [(13,)]
    assert _report(frame).columns == ("age",)
