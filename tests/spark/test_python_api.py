"""`OmniGraph` takes Python's values, raises this package's errors, and shows what it gives."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.types import LongType

from omnigraph_spark import OmniGraph, pack
from omnigraph_spark.errors import OptionError


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
        (lambda: graph.write({"node:A": spark.range(1)}, keys=5.5), "'5.5'"),
        (lambda: graph.write({"node:A": spark.range(1)}, keys={"A": 5}), "int"),
        (lambda: graph.table(b"Person"), "bytes"),  # type: ignore[arg-type]
        (lambda: graph.drop_property("Person", "n", mergeShcema=True), "mergeSchema"),
    ):
        with pytest.raises(OptionError, match=found):
            call()
