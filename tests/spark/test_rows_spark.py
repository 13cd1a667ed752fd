"""`merge_into`, `update` and `delete`: rows chosen by Spark, one commit each."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from omnigraph_spark import OmniGraph
from omnigraph_spark.errors import IntegrityError, OptionError, RowConflictError
from tests.support.frames import counts, refused, rows, save

P, K = "node:Person", "edge:Knows"


@pytest.fixture
def graph(spark: SparkSession, tmp_path: Path) -> OmniGraph:
    """Four people, of whom b knows c."""
    found = OmniGraph.for_path(spark, str(tmp_path / "graph"))
    people = spark.createDataFrame(
        [("a", 1, 10), ("b", 2, 10), ("c", 3, 10), ("d", None, 10)], "id STRING, n INT, at INT"
    )
    knows = spark.createDataFrame([("e", "b", "c")], "id STRING, src STRING, dst STRING")
    found.write({P: people, K: knows}, endpoints="Knows: Person -> Person")
    return found


def people(graph: OmniGraph, *columns: str, **more: Any) -> list[tuple[Any, ...]]:
    return rows(graph.table(P, **more), "id", *(columns or ("n", "at")))


def last(graph: OmniGraph) -> Any:
    return graph.history().orderBy(F.desc("version")).first()


@pytest.mark.long
def test_a_conditional_merge_updates_adds_and_deletes_in_one_commit(
    spark: SparkSession, graph: OmniGraph
) -> None:
    source = spark.createDataFrame(
        [
            ("a", 5, 11, False),  # newer: updated
            ("b", 5, 9, False),  # older: left alone
            ("d", 5, 11, True),  # deleted
            ("x", 7, 1, False),  # added
            ("y", 7, 1, True),  # gone before it came
        ],
        "id STRING, n INT, at INT, gone BOOLEAN",
    ).repartition(2)
    before = last(graph).version
    done = graph.merge_into(
        "Person",
        source,
        when_matched=[
            ("source.gone", "delete"),
            (
                F.col("source.at") > F.col("target.at"),
                {"n": "source.n + target.n", "at": "source.at"},
            ),
        ],
        when_not_matched=[("NOT source.gone", {"n": "source.n", "at": F.lit(0)})],
        userMetadata="conditional",
    )
    assert people(graph) == [("a", 6, 11), ("b", 2, 10), ("c", 3, 10), ("x", 7, 0)]
    found = last(graph)
    assert (found.version, done.graph_version) == (before + 1, before + 1)
    assert (found.rows_added, found.rows_removed, found.user_metadata) == (2, 2, "conditional")
    # Deleted nodes have edges: refused, or taken along, in the same commit as the updates.
    both = spark.createDataFrame([("b", 0), ("a", 9)], "id STRING, n INT")
    clauses = [("source.n = 0", "delete"), (None, "update")]
    with pytest.raises(IntegrityError, match="dangling edges: 1 of"):
        graph.merge_into(P, both, when_matched=clauses)
    graph.merge_into(P, both, when_matched=clauses, on_delete="cascade")
    assert people(graph, "n") == [("a", 9), ("c", 3), ("x", 7)]
    assert counts(graph.uri)[K] == 0
    assert graph.check() == []


@pytest.mark.long
def test_a_merge_may_only_update_or_only_add(spark: SparkSession, graph: OmniGraph) -> None:
    source = spark.createDataFrame([("a", 9), ("z", 9)], "id STRING, n INT")
    graph.merge_into(P, source, when_not_matched=None)
    assert people(graph, "n")[0] == ("a", 9)
    assert counts(graph.uri)[P] == 4
    graph.merge_into(P, source.withColumn("n", F.lit(1)), when_matched="ignore")
    assert [row for row in people(graph, "n") if row[0] in "az"] == [("a", 9), ("z", 1)]
    scored = source.withColumn("score", F.lit(0.5))
    graph.merge_into(P, scored.where("id = 'a'"), mergeSchema="true")
    assert people(graph, "score")[0] == ("a", 0.5)
    for wrong in ("upsert", {"id": "1"}, {}, [("x", "insert")], 5):
        with pytest.raises(OptionError, match="when_matched is malformed"):
            graph.merge_into(P, source, when_matched=wrong)
    twice = source.union(source)
    with refused(IntegrityError, "more than once"):
        graph.merge_into(P, twice, when_not_matched=None)


def test_rows_are_updated_and_deleted_by_condition_on_a_branch_too(graph: OmniGraph) -> None:
    graph.create_branch("dev")
    graph.update("Person", {"n": "n * 10", "at": F.col("at") + 1}, "n >= 2", branch="dev")
    assert people(graph, branch="dev") == [
        ("a", 1, 10),
        ("b", 20, 11),
        ("c", 30, 11),
        ("d", None, 10),
    ]
    assert people(graph)[1] == ("b", 2, 10)
    graph.delete(P, "n < 10", branch="dev")  # NULL stays
    assert people(graph, "n", branch="dev") == [("b", 20), ("c", 30), ("d", None)]
    with pytest.raises(IntegrityError, match="dangling edges"):
        graph.delete(P, F.col("id") == "b", branch="dev")
    graph.delete(P, F.col("id") == "b", on_delete="cascade", branch="dev")
    graph.delete(K, "true")
    assert counts(graph.uri) == {P: 4, K: 0}
    graph.update(P, {"n": F.lit(0)})
    assert people(graph, "n") == [(one, 0) for one in "abcd"]
    for wrong in ({}, {"id": "'x'"}, {"ghost": "1"}):
        with pytest.raises(OptionError, match="update can't set"):
            graph.update(P, wrong)


@pytest.mark.long
def test_a_row_that_others_change_between_the_read_and_the_commit_refuses_an_update(
    spark: SparkSession, graph: OmniGraph, monkeypatch: pytest.MonkeyPatch
) -> None:
    from omnigraph_spark.spark import frame_plan

    real = frame_plan.plan_frames
    values = [100]

    def of_a(n: int) -> DataFrame:
        return spark.createDataFrame([("a", n)], "id STRING, n INT")

    def raced(*args: Any) -> Any:
        monkeypatch.undo()
        save(of_a(values[-1]), graph.uri, table=P, writeMode="merge")
        return real(*args)

    for act in (
        lambda: graph.update(P, {"n": "n + 1"}, "n < 3"),
        lambda: graph.delete(P, "n >= 100"),
        lambda: graph.merge_into(P, of_a(0), when_matched={"n": "target.n + 1"}),
    ):
        values.append(values[-1] + 1)
        monkeypatch.setattr(frame_plan, "plan_frames", raced)
        with refused(RowConflictError, "id 'a'"):
            act()
    graph.update(P, {"n": "n + 1"}, "n < 3 AND id <> 'a'")
    assert people(graph, "n")[:2] == [("a", 103), ("b", 3)]


def test_replace_where_goes_through_every_surface(spark: SparkSession, graph: OmniGraph) -> None:
    new = spark.createDataFrame([("b", 5, 1), ("c", 6, 1), ("z", 7, 1)], "id STRING, n INT, at INT")
    save(new, graph.uri, mode="overwrite", table=P, replaceWhere="n >= 2")
    assert people(graph, "n") == [("a", 1), ("b", 5), ("c", 6), ("d", None), ("z", 7)]
    with refused(IntegrityError, "outside of replaceWhere.*'z'"):
        save(new, graph.uri, mode="overwrite", table=P, replaceWhere="n < 7")
    whole = graph.graph().where("n = 5").withColumn("n", F.col("n") + 1)
    save(whole, graph.uri, mode="overwrite", replaceWhere="n IN (5, 6)", onDelete="cascade")
    assert people(graph, "n") == [("a", 1), ("b", 6), ("d", None), ("z", 7)]
    assert counts(graph.uri)[K] == 0
    graph.write({P: new.limit(0)}, mode="overwrite", replaceWhere="n > 6")
    assert counts(graph.uri)[P] == 3
    spark.sql(
        f"CREATE TABLE replaced USING omnigraph OPTIONS (path '{graph.uri}', table '{P}', "
        "replaceWhere 'n = 6')"
    )
    spark.sql("INSERT OVERWRITE replaced SELECT 'q' AS id, 6 AS n, 6 AS at")
    spark.sql("DROP TABLE replaced")
    assert people(graph, "n") == [("a", 1), ("d", None), ("q", 6)]


@pytest.mark.long
def test_edges_with_keys_need_no_ids_in_any_surface(spark: SparkSession, graph: OmniGraph) -> None:
    schema = "src STRING, dst STRING, day INT, amount INT"
    first = spark.createDataFrame([("a", "b", 1, 5), ("a", "c", None, 6)], schema)
    bought, both = "edge:Bought", {"Bought": ["src", "dst", "day"]}
    graph.write({bought: first}, endpoints="Bought: Person -> Person", edgeKeys=both)

    def found() -> list[tuple[Any, ...]]:
        return rows(graph.table(bought), "src", "dst", "day", "amount")

    save(first, graph.uri, table=bought, writeMode="merge")
    with refused(IntegrityError, "doesn't have yet"):
        save(first, graph.uri, table=bought)
    spark.sql(f"CREATE TABLE bought USING omnigraph OPTIONS (path '{graph.uri}', table '{bought}')")
    with refused(IntegrityError, "doesn't have yet"):
        # Spark 4.0 takes no list that leaves columns out.
        spark.sql("INSERT INTO bought (id, src, dst, day, amount) VALUES (NULL, 'a', 'b', 1, 9)")
    spark.sql("DROP TABLE bought")
    news = spark.createDataFrame([("a", "c", None, 1), ("b", "c", 2, 2), ("a", "b", 1, 0)], schema)
    graph.merge_into(
        "Bought",
        news,
        when_matched=[("source.amount = 0", "delete"), (None, {"amount": "source.amount + 10"})],
    )
    assert found() == [("a", "c", None, 11), ("b", "c", 2, 2)]
    whole = graph.graph().where("day = 2").withColumn("id", F.lit(None).cast("string"))
    save(whole.withColumn("amount", F.lit(3)), graph.uri, writeMode="merge")
    assert found()[1] == ("b", "c", 2, 3)
    save(news.select("src", "dst", "day"), graph.uri, table=bought, writeMode="delete")
    assert counts(graph.uri)[bought] == 0
    ends = {"Knows": "src, dst"}
    frame = spark.createDataFrame([("b", "c")], "src STRING, dst STRING")
    graph.write({K: frame}, mode="delete", edgeKeys=ends)
    assert counts(graph.uri)[K] == 0
