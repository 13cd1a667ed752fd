"""Public reports of this field as tests: commits that die, tasks that run twice."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import IntegerType, StringType, StructField, StructType

from omnigraph_spark import pack
from omnigraph_spark.errors import StorageError
from omnigraph_spark.manifest.snapshot import load as load_snapshot
from omnigraph_spark.spark.writer import OmnigraphCommitMessage, OmnigraphWriter
from omnigraph_spark.storage.store import Storage
from tests.format_checker import check_graph
from tests.support.frames import counts, load, people, refused, rows, save, versions

pytestmark = pytest.mark.long

GRACE = {"orphanGraceSeconds": "0.2", "integrity": "off"}
ENDS = {"Knows": "Person -> Person"}
THING = "node:Thing"


def social(spark: SparkSession, name: str) -> Any:
    """Return a frame of one person and one edge that starts and ends there."""
    edge = spark.createDataFrame([(f"e{name}", name, name)], "id STRING, src STRING, dst STRING")
    person = people(spark, [(name, name.upper(), 1)])
    return pack({"node:Person": person, "edge:Knows": edge}, endpoints=ENDS)


def test_a_job_that_dies_between_its_table_commits_and_its_publish_changes_nothing(
    spark: SparkSession, tmp_path: Path, spark_faults: Callable[[str], None]
) -> None:
    uri = str(tmp_path / "g")
    save(social(spark, "a"), uri, **GRACE)
    before = versions(uri)
    spark_faults("commit.before_publish=kill")
    with pytest.raises(Exception, match=r"."):
        save(social(spark, "dead"), uri, **GRACE)
    spark_faults("")
    heads = {
        key: Storage.at(uri).dataset(load_snapshot(Storage.at(uri)).locations[key]).version
        for key in before
    }
    assert all(heads[key] > before[key] for key in before), "both tables were committed"
    assert versions(uri) == before
    assert rows(load(spark, uri, table="node:Person"), "id") == [("a",)]
    save(social(spark, "b"), uri, **GRACE)
    assert rows(load(spark, uri, table="node:Person"), "id") == [("a",), ("b",)]
    assert rows(load(spark, uri, table="edge:Knows"), "id") == [("ea",), ("eb",)]
    assert check_graph(uri) == []


SCHEMA = StructType([StructField("id", StringType()), StructField("n", IntegerType())])
PARTS, EACH = 8, 125


def part(number: int) -> pa.RecordBatch:
    """Return the 125 rows of a partition."""
    first = number * EACH
    ids = [f"{n:04d}" for n in range(first, first + EACH)]
    numbers = pa.array(range(first, first + EACH), pa.int32())
    return pa.RecordBatch.from_arrays([pa.array(ids), numbers], names=["id", "n"])


def attempt(writer: OmnigraphWriter, number: int) -> OmnigraphCommitMessage:
    """Run a task of a write to its end, as an executor does."""
    made = writer.write(iter([part(number)]))
    assert isinstance(made, OmnigraphCommitMessage)
    return OmnigraphCommitMessage(json.dumps({**json.loads(made.text), "partition": number}))


@pytest.mark.parametrize("speculation", [False, True], ids=["retry", "speculation"])
def test_rows_of_tasks_that_ran_twice_are_there_once(tmp_path: Path, speculation: bool) -> None:
    """(a), (b): Spark takes one message per partition; whole drivers are in `make chaos`."""
    uri = str(tmp_path / "g")
    writer = OmnigraphWriter(SCHEMA, {"path": uri, "table": THING}, False)
    messages = [attempt(writer, number) for number in range(PARTS)]
    again = range(PARTS) if speculation else [3]
    for number in again:
        messages[number] = attempt(writer, number)
    writer.commit(list(messages))
    storage = Storage.at(uri)
    entry = load_snapshot(storage).entry(THING)
    found = storage.dataset(entry.location).to_table(columns=["id"])["id"].to_pylist()
    assert sorted(found) == [f"{n:04d}" for n in range(PARTS * EACH)]
    assert entry.row_count == 1000


@pytest.mark.parametrize("case", ["task", "commit"])
def test_a_failed_job_leaves_count_and_version_as_before_and_shows_its_cause(
    spark: SparkSession, tmp_path: Path, spark_faults: Callable[[str], None], case: str
) -> None:
    """(c) a task that always raises, (d) a commit that raises."""
    uri = str(tmp_path / "g")
    frame = spark.range(0, 1000, 1, PARTS).select(
        F.format_string("%04d", "id").alias("id"), F.col("id").cast("int").alias("n")
    )
    save(frame, uri, table=THING, **GRACE)
    before = versions(uri)
    if case == "task":
        last = F.when(F.col("n") >= 900, F.raise_error(F.lit("boom")).cast("int"))
        with pytest.raises(Exception, match="boom"):
            save(frame.withColumn("n", last.otherwise(F.col("n"))), uri, table=THING, **GRACE)
    else:
        spark_faults("commit.record_written=raise")
        with refused(StorageError, "Injected fault at commit.record_written"):
            save(frame, uri, table=THING, **GRACE)
        spark_faults("")
    assert versions(uri) == before
    assert counts(uri) == {THING: 1000}
    assert load(spark, uri, table=THING).count() == 1000
    save(frame.limit(10), uri, table=THING, **GRACE)
    assert counts(uri) == {THING: 1010}
    assert check_graph(uri) == []
