"""What streams can't do fails by name, on each Spark; the oldest one runs this file too."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession, datasource
from pyspark.sql.datasource import DataSourceStreamReader

from omnigraph_spark.errors import UnsupportedError, from_spark
from omnigraph_spark.storage.store import Storage
from tests.support.writes import PERSON, ids, new_graph

HAS_LIMITS = hasattr(DataSourceStreamReader, "getDefaultReadLimit")  # Spark 4.2 and later
WRITES = hasattr(datasource, "DataSourceStreamArrowWriter")  # Spark 4.1 and later


@pytest.fixture
def graph(tmp_path: Path) -> Storage:
    return new_graph(Storage.at(str(tmp_path / "g")), [PERSON])


def people(spark: SparkSession, graph: Storage, **options: str) -> DataFrame:
    reader = spark.readStream.format("omnigraph").option("table", PERSON)
    return reader.options(**options).load(graph.root)


@pytest.mark.skipif(WRITES, reason="Spark 4.1 and later write streams")
def test_a_spark_that_has_no_arrow_writer_for_streams_is_named(
    spark: SparkSession, graph: Storage, tmp_path: Path
) -> None:
    writer = people(spark, graph).writeStream.format("omnigraph").option("table", PERSON)
    writer = writer.option("checkpointLocation", str(tmp_path / "c")).trigger(availableNow=True)
    with pytest.raises(Exception) as caught:  # noqa: PT011
        writer.start(str(tmp_path / "copy")).awaitTermination()
    error = from_spark(caught.value)
    assert isinstance(error, UnsupportedError)
    assert "writeStream needs Spark 4.1" in str(error)
    assert "foreachBatch" in str(error)


@pytest.mark.skipif(HAS_LIMITS, reason="Spark 4.2 and later have limits per batch")
@pytest.mark.parametrize("limit", ["maxCommitsPerTrigger", "maxRowsPerTrigger"])
def test_a_spark_that_has_no_limits_per_batch_is_named(
    spark: SparkSession, graph: Storage, tmp_path: Path, limit: str
) -> None:
    writer = people(spark, graph, **{limit: "1"}).writeStream.format("noop")
    writer = writer.option("checkpointLocation", str(tmp_path / "c")).trigger(availableNow=True)
    with pytest.raises(StreamingQueryException) as caught:
        writer.start().awaitTermination()
    error = from_spark(caught.value)
    assert isinstance(error, UnsupportedError)
    assert f"{limit} needs Spark 4.2" in str(error)


@pytest.mark.skipif(not WRITES, reason="Spark 4.1 and later write streams")
def test_update_mode_is_refused_by_its_name_and_writes_nothing(
    spark: SparkSession, graph: Storage, tmp_path: Path
) -> None:
    counted = people(spark, graph).groupBy("name").count().selectExpr("name", "CAST(1 AS INT) age")
    writer = counted.writeStream.format("omnigraph").option("table", PERSON).outputMode("update")
    writer = writer.option("checkpointLocation", str(tmp_path / "c")).trigger(availableNow=True)
    with pytest.raises(Exception, match="does not support Update mode"):
        writer.start(graph.root).awaitTermination()
    assert ids(graph, PERSON) == ["first"]
