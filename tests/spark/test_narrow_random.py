"""Random queries: narrowed, as they are, and over the same rows in Parquet, all give the same."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Row, SparkSession

from omnigraph_spark import OmniGraph
from omnigraph_spark.narrowing.narrow import narrowed
from tests.support import queries

pytestmark = pytest.mark.rounds

# How many, and from which seed on: `OMNIGRAPH_SPARK_QUERIES=2000` for many.
QUERIES = int(os.environ.get("OMNIGRAPH_SPARK_QUERIES", "20"))
SEED = int(os.environ.get("OMNIGRAPH_SPARK_QUERY_SEED", "0"))


@dataclass(frozen=True)
class Copies:
    """The views of the same rows: of a graph, and of Parquet files."""

    graph: Mapping[str, str]
    parquet: Mapping[str, str]


@pytest.fixture
def copies(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Copies:
    """A graph of several files per table, with deleted rows and indices, and its rows in Parquet."""
    folder = tmp_path_factory.mktemp("queries")
    root = str(folder / "graph")
    graph = OmniGraph.for_path(spark, root)
    rows = queries.tables(SEED)
    keys = {"p": "node:P", "k": "edge:K", "c": "node:C"}
    options = {"endpoints": "K: P -> P", "maxRowsPerFile": "40", "integrity": "off"}
    graph.write({keys[name]: spark.createDataFrame(rows[name]) for name in keys}, **options)
    for name, id_ in (("k", "k000"), ("k", "k199"), ("c", "c6")):
        gone = spark.createDataFrame([(id_,)], "id string")
        writer = gone.write.format("omnigraph").mode("append")
        writer.options(table=keys[name], writeMode="delete", integrity="off").save(root)
    graph.create_index("node:P", "id")
    graph.create_index("edge:K", "src")
    views: dict[str, dict[str, str]] = {"graph": {}, "parquet": {}}
    for name in ("p", "k", "c", "g"):
        frame = graph.graph() if name == "g" else graph.table(keys[name])
        frame.write.parquet(str(folder / name))
        for kind, one in (("graph", frame), ("parquet", spark.read.parquet(str(folder / name)))):
            one.createOrReplaceTempView(f"{kind}_{name}")
            views[kind][name] = f"{kind}_{name}"
    return Copies(views["graph"], views["parquet"])


def _plain(value: Any) -> Any:
    """Return a value so that equal ones are equal: sums of floats depend on their order."""
    if isinstance(value, float):
        return "NaN" if math.isnan(value) else f"{value + 0.0:.9g}"
    if isinstance(value, Row | tuple | list):
        return [_plain(one) for one in value]
    return value


def _rows(frame: DataFrame) -> list[str]:
    return sorted(repr(_plain(row)) for row in frame.collect())


@pytest.mark.timeout(3600)
def test_random_queries_give_the_same_narrowed_or_not(spark: SparkSession, copies: Copies) -> None:
    spark.conf.set("spark.sql.shuffle.partitions", "1")
    spark.conf.set("spark.sql.adaptive.enabled", "false")
    spark.conf.set("spark.sql.crossJoin.enabled", "true")
    scans = wrong = 0
    failed: list[str] = []
    for seed in range(SEED, SEED + QUERIES):
        asked = queries.query(seed)
        plain = asked.run(spark, copies.graph)
        made, reports = narrowed(plain)
        scans += bool(reports)
        where = f"seed {seed}: {asked.text}\n{reports}"
        try:
            got, expected = _rows(made), _rows(asked.run(spark, copies.parquet))
        except PySparkException as error:
            error.add_note(where)
            raise
        assert made.schema.json() == plain.schema.json(), where
        if asked.any_rows:
            got, expected = [str(len(got))], [str(len(expected))]
        if got != expected or (QUERIES > 300 and not asked.any_rows and got != _rows(plain)):
            wrong += 1
            failed.append(f"{where}\n  narrowed {got[:5]}\n  parquet  {expected[:5]}")
    assert not failed, f"{wrong} of {QUERIES}, {scans} narrowed\n" + "\n".join(failed[:5])
    assert scans > QUERIES * 0.7
