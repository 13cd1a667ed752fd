"""TPC-H over a graph whose tables are node types: narrowed, the answers are Parquet's."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from omnigraph_spark import OmniGraph
from omnigraph_spark.narrowing.narrow import narrowed
from tests.support import tpch

pytestmark = pytest.mark.long

# `OMNIGRAPH_SPARK_TPCH=22` runs all of them.
COUNT = int(os.environ.get("OMNIGRAPH_SPARK_TPCH", "3"))
SCALE = 0.01
_FIRST = (2, 15, 21)  # subqueries in subqueries, one expression used twice, one table three times


@pytest.mark.skipif(tpch.generator() is None, reason="tpchgen-cli isn't installed")
def test_the_answers_of_tpch_are_those_of_parquet(spark: SparkSession, tmp_path: Path) -> None:
    root, files = tpch.make(spark, tmp_path, SCALE)
    numbers = [*_FIRST, *(number for number in tpch.QUERIES if number not in _FIRST)][:COUNT]
    for name, path in files.items():
        spark.read.parquet(path).createOrReplaceTempView(name)
    expected = {number: spark.sql(tpch.QUERIES[number]) for number in numbers}
    OmniGraph.for_path(spark, root).create_views()
    for number in numbers:
        made, reports = narrowed(spark.sql(tpch.QUERIES[number]))
        assert reports, number
        assert made.collect() == expected[number].collect(), number
