"""The access key and the secret appear nowhere: logs, plans, errors, catalog, graph files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.s3 import Bucket
from tests.support.sparks import CANARY_KEY, CANARY_SECRET, ScriptRunner

pytestmark = pytest.mark.long

# Everything that can fail and print: run with Spark's log at DEBUG, secrets given as options too.
_SCRIPT = """
import io, json, logging, sys
from contextlib import redirect_stdout
logging.basicConfig(level=logging.DEBUG, stream=sys.stderr)
logging.getLogger("py4j").setLevel(logging.INFO)
spark.sparkContext.setLogLevel("DEBUG")
from omnigraph_spark import OmniGraph
uri, options = sys.argv[1], json.loads(sys.argv[2])
people = spark.createDataFrame([("a", "Ann"), ("b", "Ben")], "id STRING, name STRING")
people.write.format("omnigraph").options(table="node:Person", **options).mode("append").save(uri)
frame = spark.read.format("omnigraph").options(table="node:Person", **options).load(uri)
assert frame.count() == 2
for mode in ("extended", "formatted", "codegen", "cost"):
    frame.where("id = 'a'").explain(mode)
lance_options = {k.removeprefix("storage."): v for k, v in options.items()}
graph = OmniGraph.for_path(spark, uri, **lance_options)
print(repr(graph), graph.tables().collect(), graph.history().collect())

def failing(name, step):
    try:
        step()
    except Exception as error:
        while error is not None:
            print("FAILED", name, repr(error), str(error))
            error = error.__cause__ or error.__context__
    else:
        print("PASSED", name)

read = lambda **o: spark.read.format("omnigraph").options(**{**options, **o})
write = lambda f, **o: f.write.format("omnigraph").options(**{**options, **o}).mode("append")
failing("table", lambda: read(table="node:Ghost").load(uri).count())
failing("branch", lambda: read(branch="ghost").load(uri).count())
failing("version", lambda: read(versionAsOf="99").load(uri).count())
failing("option", lambda: read(tabel="x").load(uri).count())
failing("graph", lambda: read().load(uri + "-none").count())
failing("bucket", lambda: read().load("s3://no-such-bucket-here/g").count())
nowhere = {"storage.aws_endpoint": "http://127.0.0.1:9", "storage.client_max_retries": "1"}
failing("endpoint", lambda: read(**nowhere).load(uri).count())
failing("filter", lambda: read(table="node:Person", filter="nope = 1").load(uri).count())
wrong = people.withColumn("name", people.id.isNull())
failing("types", lambda: write(wrong, table="node:Person").save(uri))
nulls = spark.createDataFrame([(None, "x")], "id STRING, name STRING")
failing("null", lambda: write(nulls, table="node:Person").save(uri))
failing("form", lambda: write(people).save(uri))
versions = {"expectedTableVersions": '{"node:Person": 9}'}
failing("expected", lambda: write(people, table="node:Person", **versions).save(uri))
clause = ", ".join(f"`{k}` '{v}'" for k, v in options.items())
spark.sparkContext.setLogLevel("INFO")  # at DEBUG Spark's parser prints each statement as typed
create = f"USING omnigraph OPTIONS (path '{uri}', table 'node:Person', "
failing("secret in DDL", lambda: spark.sql(f"CREATE TABLE t {create}{clause})"))
spark.sparkContext.setLogLevel("DEBUG")
public = ", ".join(f"`{k}` '{v}'" for k, v in options.items() if "key" not in k)
spark.sql(f"CREATE TABLE people {create}{public})")
spark.sql("INSERT INTO people VALUES ('c', 'Cy')")
assert spark.table("people").count() == 3
print(spark.sql("DESCRIBE EXTENDED people").collect())
print(spark.sql("SHOW CREATE TABLE people").collect())
print(spark.table("people").schema.json())
"""


def test_no_secret_is_shown_or_stored_whatever_is_done_with_a_graph_on_s3(
    bucket: Bucket, run_spark_script: ScriptRunner, tmp_path: Path
) -> None:
    uri = f"{bucket.uri}/graph"
    options = {f"storage.{key}": value for key, value in bucket.storage_options.items()}
    conf = {"spark.eventLog.enabled": "true", "spark.eventLog.dir": str(tmp_path)}
    done = run_spark_script(_SCRIPT, uri, json.dumps(options), conf=conf)
    assert done.stdout.count("FAILED") >= 12
    assert "PASSED" not in done.stdout
    ours = [line for line in done.stdout.splitlines() if "OMNIGRAPH_" in line]
    assert len(ours) >= 12
    shown = {"stdout": done.stdout, "stderr": done.stderr}
    for path in tmp_path.rglob("*"):
        # The script's own arguments aside, which the JVM keeps with its Python launcher's.
        if path.is_file() and path.name != "script.py":
            shown[str(path.relative_to(tmp_path))] = path.read_text("utf-8", "replace")
    shown |= {key: data.decode("utf-8", "replace") for key, data in bucket.objects().items()}
    leaks = {
        where: line.strip()[:300]
        for where, text in shown.items()
        for line in text.splitlines()
        if CANARY_SECRET in line or CANARY_KEY in line
    }
    assert leaks == {}
