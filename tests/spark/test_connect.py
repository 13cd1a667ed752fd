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

# What a user of Spark means, by the same calls as without Connect.
from omnigraph_spark import pack, register
from omnigraph_spark.errors import TableNotFoundError, from_spark
P = "node:Person"
save([("z", "Zoe")])
before = graph.table("Knows").count()
graph.graph().where("_table = 'node:Person' AND id <> 'z'").write.format("omnigraph").mode("overwrite").save(root)
assert ("z", "Zoe") not in read() and graph.table("Knows").count() == before
ends = graph.tables().where("table_key = 'edge:Knows'").first()
assert (ends.src_type, ends.dst_type) == ("Person", "Person")
assert graph.check(integrity=True).count() == 0
try:
    graph.table("Persn")
except TableNotFoundError as error:
    assert error.hint == "Did you mean node:Person?"
try:
    save([("x", "X")], table="Persn")
except Exception as error:
    assert isinstance(from_spark(error), TableNotFoundError) and from_spark(error).hint
news = spark.createDataFrame([("a", 50), ("q", 5)], "id STRING, age INT")
graph.merge_into("Person", news, when_matched={"age": "source.age + 1"}, when_not_matched="insert", txnAppId="c", txnVersion=1)
graph.update("Person", {"name": "upper(name)"}, "id = 'q' OR age = 51")
graph.delete("Person", "id = 'q'")
assert [tuple(row) for row in graph.table("Person").where("age = 51").collect()] == [("a", "ANNA", 51)]
news.where("id = 'a'").write.format("omnigraph").options(table=P, replaceWhere="age >= 50").mode("overwrite").save(root)
assert [row.age for row in graph.table("Person").where("id = 'a'").collect()] == [50]
day = spark.createDataFrame([("a", "c")], "src STRING, dst STRING")
for _ in range(2):
    graph.write({"edge:Met": day}, mode="merge", endpoints={"Met": ("Person", "Person")}, edgeKeys={"Met": ["src", "dst"]})
assert graph.table("Met").count() == 1
pack({P: spark.createDataFrame([("k", 7.9)], "id STRING, age DOUBLE")}).write.format("omnigraph").mode("append").save(root)
with graph.transaction() as t:
    t.write({P: spark.createDataFrame([("t", "Tim")], PERSON)})
made = graph.create_catalog_tables(None, "g_")
spark.sql("INSERT INTO g_Person (id, name, age) VALUES ('s', 'Sue', 3)")
spark.sql(f"CREATE TABLE ups USING omnigraph OPTIONS (path '{root}', table 'Person', writeMode 'merge', columns 'id,age')")
spark.sql("INSERT INTO ups VALUES ('s', 4)")
assert [tuple(row) for row in spark.sql("SELECT * FROM g_Person WHERE id IN ('k', 's', 't') ORDER BY id").collect()] == [
    ("k", None, 7), ("s", "Sue", 4), ("t", "Tim", None)]
register(spark)
assert spark.sql(f"SELECT * FROM omnigraph_history('{root}')").count() == graph.history().count()
queried = graph.query(lambda table: table("Person").where("id = 's'").select("name"))
assert [row.name for row in queried.where("age = 4").collect()] == ["Sue"]
graph.delete("Person", "id IN ('k', 's', 't')")
graph.delete("Met", "true")
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
    assert "DONE [('a', None), ('c', 'Cy'), ('d', 'Dan')]" in done.stdout
