"""Spark Connect: frames, SQL and all of `OmniGraph`, without a JVM in the client.

Runs where grpcio is installed: `make test-connect` has an environment of its own for it.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.sparks import ScriptRunner

pytest.importorskip("grpc", reason="Spark Connect needs grpcio: make test-connect has it")

_START = """
import sys
from pyspark.sql import SparkSession
spark = SparkSession.builder.remote("local[2]").getOrCreate()
assert "connect" in type(spark).__module__
root = sys.argv[1]
"""

_FRAMES = (
    _START
    + """
frame = spark.createDataFrame([("a", "Ann")], "id STRING, name STRING")
frame.write.format("omnigraph").option("table", "node:Person").mode("append").save(root)
print("ROWS", spark.read.format("omnigraph").option("table", "Person").load(root).count())
spark.sql(f"CREATE TABLE p USING omnigraph OPTIONS (path '{root}', table 'Person')")
print("SQL", spark.sql("SELECT count(*) AS n FROM p").first().n)
try:
    frame.write.format("omnigraph").option("tabel", "x").mode("append").save(root)
except Exception as error:
    print("ERROR", "OMNIGRAPH_OPTION" in str(error) and "tabel" in str(error))
"""
)

_GRAPH = (
    _START
    + """
from omnigraph_spark import OmniGraph
PERSON = "id STRING, name STRING"
graph = OmniGraph.for_path(spark, root)
people = spark.createDataFrame([("a", "Ann"), ("b", "Ben")], PERSON)
knows = spark.createDataFrame([("a", "b")], "src STRING, dst STRING")
graph.write({"node:Person": people, "edge:Knows": knows}, endpoints="Knows: Person -> Person")
first = graph.history().count()

def save(rows, **options):
    frame = spark.createDataFrame(rows, PERSON)
    given = {"table": "node:Person", **options}
    frame.write.format("omnigraph").options(**given).mode("append").save(root)

def read(**options):
    frame = spark.read.format("omnigraph").options(table="Person", **options).load(root)
    return sorted((row.id, row.name) for row in frame.collect())

save([("a", "Anna"), ("c", "Cy")], writeMode="merge")
assert read() == [("a", "Anna"), ("b", "Ben"), ("c", "Cy")]
assert spark.read.format("omnigraph").load(root).count() == 4
graph.create_branch("dev")
save([("d", "Dan")], branch="dev")
assert [(row.id, row._change_type) for row in graph.diff("main", "dev").collect()] == [("d", "insert")]
assert graph.merge("dev", "main").conflicts == {}
assert ("d", "Dan") in read()
graph.tag("v1")
assert graph.create_index("node:Person", "name", "BTREE").tables == ("node:Person",)
graph.optimize()
assert graph.cleanup(dry_run=True).dry_run
save([("b", "x")], writeMode="delete", onDelete="cascade")
assert spark.read.format("omnigraph").load(root).where("_table = 'edge:Knows'").count() == 0
assert read(versionAsOf="v1") == [("a", "Anna"), ("b", "Ben"), ("c", "Cy"), ("d", "Dan")]
graph.add_property("node:Person", "age", "I32?")
assert graph.check() == []
assert graph.history().count() > first
print("DONE", read())
"""
)


def test_frames_writes_and_sql_work_through_spark_connect(
    run_spark_script: ScriptRunner, tmp_path: Path
) -> None:
    done = run_spark_script(_FRAMES, str(tmp_path / "graph"), session=False)
    assert [line for line in done.stdout.splitlines() if line.split()[:1] != []][-3:] == [
        "ROWS 1",
        "SQL 1",
        "ERROR True",
    ]


def test_the_graph_api_works_through_spark_connect(
    run_spark_script: ScriptRunner, tmp_path: Path
) -> None:
    done = run_spark_script(_GRAPH, str(tmp_path / "graph"), session=False)
    assert "DONE [('a', 'Anna'), ('c', 'Cy'), ('d', 'Dan')]" in done.stdout
