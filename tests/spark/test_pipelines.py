"""Spark's Declarative Pipelines: the documentation's own pipelines, run by `spark-pipelines`.

Runs where grpcio and PyYAML are installed: `make test-connect` has an environment of its own.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest

from omnigraph_spark.manifest.snapshot import load
from omnigraph_spark.storage.store import Storage
from tests.spark.test_readme import blocks
from tests.support.plain_writes import save
from tests.support.sparks import PROJECT, prepare_environment

pytest.importorskip("grpc", reason="spark-pipelines needs grpcio: make test-connect has it")
pytest.importorskip("yaml", reason="spark-pipelines needs PyYAML: make test-connect has it")

pytestmark = [
    pytest.mark.long,
    pytest.mark.timeout(900),
]  # three starts of Spark, perhaps beside other tests

PAGE = "docs/pipelines.md"
STORED = """
from pyspark import pipelines as dp
from pyspark.sql import SparkSession

spark = SparkSession.active()


@dp.materialized_view(format="omnigraph", table_properties={"table": "node:Adult"})
def stored():
    return spark.read.format("omnigraph").option("table", "node:Person").load("/data/graph")
"""


def people(root: Path, *rows: tuple[str, int]) -> None:
    ids, ages = zip(*rows, strict=True)
    columns = {"id": pa.array(ids), "name": pa.array(ids), "age": pa.array(ages, pa.int32())}
    save(str(root), columns, table="node:Person", keys="Person: name")


def run(folder: Path, source: str) -> subprocess.CompletedProcess[str]:
    """Run the page's pipeline project with one file of transformations."""
    (folder / "transformations").mkdir(exist_ok=True)
    (folder / "transformations" / "flows.py").write_text(at(folder, source), encoding="utf-8")
    project = blocks(PAGE, "A graph as sink", "yaml")[0]
    (folder / "spark-pipeline.yml").write_text(at(folder, project), encoding="utf-8")
    prepare_environment()
    return subprocess.run(
        [str(Path(sys.executable).with_name("spark-pipelines")), "run"],
        cwd=folder,
        env={
            **os.environ,
            "PYTHONPATH": str(PROJECT),
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        },
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        timeout=240,
        check=False,
    )


def at(folder: Path, text: str) -> str:
    return text.replace("/data/", f"{folder}/")


def adults(folder: Path) -> list[tuple[str, int]]:
    storage = Storage(str(folder / "adults"))
    entry = load(storage).entry("node:Adult")
    table = storage.dataset(entry.location, entry.table_branch, entry.table_version)
    return sorted((row["id"], row["age"]) for row in table.to_table().to_pylist())


def test_a_pipeline_s_sink_gets_each_commit_of_the_source_once(tmp_path: Path) -> None:
    people(tmp_path / "graph", ("ann", 30), ("bo", 9))
    flow = blocks(PAGE, "A graph as sink", "python")[0]
    first = run(tmp_path, flow)
    assert first.returncode == 0, first.stderr[-4000:]
    assert adults(tmp_path) == [("ann", 30)]
    version = load(Storage(str(tmp_path / "adults"))).graph_version

    people(tmp_path / "graph", ("cy", 44))
    second = run(tmp_path, flow)
    assert second.returncode == 0, second.stderr[-4000:]
    assert adults(tmp_path) == [("ann", 30), ("cy", 44)]
    assert load(Storage(str(tmp_path / "adults"))).graph_version == version + 1


def test_a_pipeline_s_table_stored_in_a_graph_is_refused_by_name(tmp_path: Path) -> None:
    people(tmp_path / "graph", ("ann", 30))
    source = blocks(PAGE, "A graph as source", "python")[0]
    done = run(tmp_path, STORED + source)
    assert done.returncode != 0
    assert "OMNIGRAPH_UNSUPPORTED" in done.stdout + done.stderr
    assert "adults has COMPLETED" in done.stdout + done.stderr
