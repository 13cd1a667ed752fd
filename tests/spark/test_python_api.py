"""`OmniGraph` takes Python's values, raises this package's errors, and shows what it gives."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.types import LongType

from omnigraph_spark import OmniGraph, pack, unpack
from omnigraph_spark.errors import (
    BranchNotFoundError,
    OptionError,
    SchemaMismatchError,
    TableNotFoundError,
    from_spark,
)
from omnigraph_spark.merge import merge


@pytest.fixture(scope="module")
def graph(spark_session: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> OmniGraph:
    """A graph of two people and one edge, made with Python's values alone."""
    made = OmniGraph.for_path(spark_session, str(tmp_path_factory.mktemp("api") / "g"))
    people = spark_session.sql("SELECT 'a' AS name, 1 AS n UNION ALL SELECT 'b', 2").coalesce(1)
    knows = spark_session.sql("SELECT 'a' AS src, 'b' AS dst")
    made.write(
        {"node:Person": people, "edge:Knows": knows},
        keys={"Person": "name"},
        endpoints={"Knows": ("Person", "Person")},
        types={"Person": {"n": LongType()}},
        txnAppId="load",
        txnVersion=1,
        commitRetries=3,
        mergeSchema=True,
        actor=None,
    )
    return made


def test_python_values_are_taken_wherever_options_are(graph: OmniGraph) -> None:
    assert sorted(row.id for row in graph.table("Person").collect()) == ["a", "b"]
    assert dict(graph.table("Person").dtypes)["n"] == "bigint"
    again = graph.table("Person").where("name = 'a'")
    assert graph.write({"node:Person": again}, txnAppId="load", txnVersion=1).skipped
    done = graph.add_property("Person", "nick", "string", commitTimeoutSeconds=30, actor="ann")
    assert not done.skipped
    optimized = graph.optimize(commitRetries=2)
    assert optimized is not None
    assert graph.table("Person", columns="name, id").columns == ["name", "id"]  # type: ignore[arg-type]


def test_what_is_no_frame_or_no_value_is_refused_by_name(
    graph: OmniGraph, spark: SparkSession, tmp_path: Path
) -> None:
    for call, found in (
        (lambda: graph.write({"node:A": [1, 2]}), "list"),  # type: ignore[dict-item]
        (lambda: graph.write([spark.range(1)]), "list"),  # type: ignore[arg-type]
        (lambda: graph.write({1: spark.range(1)}), "int"),  # type: ignore[dict-item]
        (lambda: pack({"node:A": [1, 2]}), "list"),  # type: ignore[dict-item]
        (lambda: pack({"node:A": spark.range(1)}, keys={"A": 5}), "int"),  # type: ignore[dict-item]
        (lambda: pack({"node:A": spark.range(1)}, keys=["A"]), "keys"),  # type: ignore[arg-type]
        (lambda: pack({"node:A": spark.range(1)}, endpoints=5), "endpoints"),  # type: ignore[arg-type]
        (lambda: unpack({"node:A": spark.range(1)}), "dict"),  # type: ignore[arg-type]
        (lambda: graph.write({"node:A": spark.range(1)}, keys=5.5), "'5.5'"),
        (lambda: graph.write({"node:A": spark.range(1)}, keys={"A": 5}), "int"),
        (lambda: graph.table(b"Person"), "bytes"),  # type: ignore[arg-type]
        (lambda: graph.drop_property("Person", "n", mergeShcema=True), "mergeSchema"),
    ):
        with pytest.raises(OptionError, match=found):
            call()


def test_pack_takes_the_same_texts_and_mappings_as_a_write(spark: SparkSession) -> None:
    frames = {
        "node:A": spark.sql("SELECT 'a' AS name"),
        "edge:Of": spark.sql("SELECT 'a' AS src, 'a' AS dst"),
    }
    by_text = pack(frames, "Of: A -> A", "A: name")
    by_mapping = pack(frames, {"Of": ("A", "A")}, {"A": "name"})
    assert by_text.schema == by_mapping.schema
    assert [f.metadata for f in by_text.schema] == [f.metadata for f in by_mapping.schema]
    assert sorted(unpack(by_text)) == ["edge:Of", "node:A"]


# --- errors ------------------------------------------------------------------------------------


def test_methods_raise_this_packages_errors_with_all_their_parts(
    graph: OmniGraph, spark: SparkSession
) -> None:
    with pytest.raises(TableNotFoundError) as missing:
        graph.table("Persn")
    assert missing.value.hint == "Did you mean node:Person?"
    assert missing.value.table_key == "Persn"  # type: ignore[attr-defined]
    assert len(traceback.extract_tb(missing.value.__traceback__)) <= 3
    with pytest.raises(TableNotFoundError, match=r"node:Custom, or, with .*edge:Custom"):
        graph.write({"Custom": spark.range(1)})
    for call in (graph.tables, graph.history, graph.graph):
        with pytest.raises(BranchNotFoundError):
            call(branch="nope")
    frame = spark.sql("SELECT 'c' AS name, 'x' AS nosuch")
    with pytest.raises(SchemaMismatchError, match="nosuch") as failure:
        graph.write({"node:Person": frame})
    assert failure.value.details["column"] == "nosuch"
    large = spark.sql("SELECT 'c' AS name, 1e30D AS n")
    with pytest.raises(SchemaMismatchError, match="doesn't fit column n") as staged:
        graph.write({"node:Person": large})
    assert (staged.value.column, staged.value.table_key) == ("n", "node:Person")  # type: ignore[attr-defined]
    assert str(staged.value.expected).startswith("I64")


def test_what_spark_shows_of_an_error_is_short_and_has_the_code_near_its_end(
    graph: OmniGraph, spark: SparkSession
) -> None:
    def shown(call: Callable[[], object]) -> list[str]:
        with pytest.raises(Exception, match="OMNIGRAPH_") as failure:
            call()
        typed = from_spark(failure.value)
        assert isinstance(typed, (SchemaMismatchError, TableNotFoundError, OptionError))
        assert typed.details or typed.hint
        return str(failure.value).splitlines()

    reader = spark.read.format("omnigraph")
    writer = spark.sql("SELECT 'c' AS name, 1e30D AS n").write.format("omnigraph").mode("append")
    calls: list[Callable[[], object]] = [
        lambda: reader.option("table", "Persn").load(graph.uri),
        lambda: reader.options(table="Person", filter="n / 2 > 1").load(graph.uri).count(),
        lambda: writer.option("tabel", "Person").save(graph.uri),
        lambda: writer.option("table", "Person").save(graph.uri),
    ]
    for call in calls:
        lines = shown(call)
        ours = [line for line in lines if "omnigraph_spark" in line and 'File "' in line]
        assert len(ours) <= 1, lines


# --- what is shown -----------------------------------------------------------------------------


def _descriptions(spark: SparkSession) -> set[str]:
    jobs = spark.sparkContext._jsc.sc().statusStore().jobsList(None)  # type: ignore[union-attr]
    told = [jobs.apply(at).description() for at in range(jobs.size())]
    return {str(one.get()) for one in told if one.isDefined()}


@pytest.mark.long
def test_each_step_of_a_long_call_has_its_description_in_sparks_ui(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(merge, "BYTES_HERE", -1)  # small merges need no job
    graph = OmniGraph.for_path(spark, str(tmp_path / "jobs"))
    spark.sparkContext.setJobDescription("mine")
    for part in ("a", "b"):
        one = spark.sql(f"SELECT '{part}' AS id, 1 AS n")
        graph.write({"node:A": one, "node:B": one}, recordRuns=True)
    graph.create_branch("dev")
    graph.write({"node:A": spark.sql("SELECT 'c' AS id, 2 AS n")}, branch="dev")
    graph.write({"node:A": spark.sql("SELECT 'd' AS id, 2 AS n")})
    graph.merge("dev")
    graph.optimize(["A"])
    assert spark.sparkContext.getLocalProperty("spark.job.description") == "mine"
    spark.sparkContext.setLocalProperty("spark.job.description", None)  # type: ignore[arg-type]
    shown = _descriptions(spark)
    assert {
        "OmniGraph.write: stage node:A (1 of 2)",
        "OmniGraph.write: stage node:B (2 of 2)",
        "OmniGraph.merge: compare node:A",
        "OmniGraph.merge: write node:A",
        "OmniGraph.optimize: compact node:A",
    } <= shown
    runs = spark.read.format("omnigraph").option("metadata", "runs").load(graph.uri).collect()
    assert len({row.run_id for row in runs}) == len(runs) > 0
    page = graph.history()._repr_html_()
    assert page.count("<tr>") == graph.history().count() + 1
