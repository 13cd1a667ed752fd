"""A write of many tables lands as a whole or not at all, whatever step of it fails."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from omnigraph_spark import OmniGraph, _faults, pack
from omnigraph_spark.errors import StorageError
from omnigraph_spark.manifest import snapshot
from omnigraph_spark.storage.store import Storage
from tests.format_checker import check_graph
from tests.support.frames import counts, refused, rows, save
from tests.support.stores import Store

NODES = [f"node:Type{number}" for number in range(9)]
EDGE = "edge:Links"
TABLES = [EDGE, *NODES]
ENDS = {"Links": "Type0 -> Type1"}

Arm = Callable[[str], None]


def frames(spark: SparkSession, tag: str) -> dict[str, Any]:
    """Return a frame of two rows for each of ten tables."""
    made: dict[str, Any] = {
        key: spark.createDataFrame([(f"{tag}1", 1), (f"{tag}2", 2)], "id STRING, n INT")
        for key in NODES
    }
    made[EDGE] = spark.createDataFrame([(f"{tag}1", f"{tag}2")] * 2, "src STRING, dst STRING")
    return made


@pytest.fixture
def uri(spark: SparkSession, local_store: Store) -> str:
    """A graph of ten tables with two rows each."""
    root = local_store.uri("graph")
    save(pack(frames(spark, "a"), endpoints=ENDS), root)
    assert counts(root) == dict.fromkeys(TABLES, 2)
    return root


def history(uri: str) -> dict[int, dict[str, tuple[int, int]]]:
    """Return {graph version: {table: (version, rows in its dataset)}} of all versions."""
    storage = Storage.at(uri)
    found = {}
    for version in range(1, snapshot.load(storage).graph_version + 1):
        tables = snapshot.load(storage, version=version).tables
        found[version] = {
            key: (e.table_version, storage.dataset(e.location, None, e.table_version).count_rows())
            for key, e in tables.items()
        }
    return found


@pytest.mark.parametrize(
    "fault",
    [
        "stage.done=raise",
        pytest.param("commit.entered=raise", marks=pytest.mark.long),
        pytest.param("table.after_commit=raise@1", marks=pytest.mark.long),
        pytest.param("table.after_commit=raise@6", marks=pytest.mark.long),
        pytest.param("table.before_commit=raise@10", marks=pytest.mark.long),
        pytest.param("commit.before_publish=raise", marks=pytest.mark.long),
        "publish.before_merge=raise",
    ],
)
def test_a_write_of_ten_tables_that_fails_at_any_step_leaves_all_as_they_were(
    spark: SparkSession, uri: str, spark_faults: Arm, fault: str
) -> None:
    before = history(uri)
    spark_faults(fault)
    with refused(StorageError, "Injected fault"):
        save(pack(frames(spark, "b"), endpoints=ENDS), uri)
    spark_faults("")
    assert history(uri) == before
    save(pack(frames(spark, "c"), endpoints=ENDS), uri)
    assert counts(uri) == dict.fromkeys(TABLES, 4)
    assert {len(tables) for tables in history(uri).values()} <= {0, 10}
    assert rows(OmniGraph.for_path(spark, uri).table("Type3"), "id") == [
        ("a1",), ("a2",), ("c1",), ("c2",)
    ]  # fmt: skip
    assert check_graph(uri) == []


def test_a_task_that_always_fails_leaves_all_tables_as_they_were(
    spark: SparkSession, uri: str
) -> None:
    before = history(uri)
    packed = pack(frames(spark, "b"), endpoints=ENDS)
    broken = packed.withColumn(
        "n",
        F.when(F.col("_table") == "node:Type4", F.raise_error(F.lit("boom")).cast("int")).otherwise(
            F.col("n")
        ),
    )
    with pytest.raises(Exception, match="boom"):
        save(broken, uri)
    assert history(uri) == before


@pytest.mark.long
def test_many_frames_in_one_commit_fail_as_one(spark: SparkSession, uri: str) -> None:
    before = history(uri)
    graph = OmniGraph.for_path(spark, uri)
    _faults.arm("table.after_commit", "raise@7")
    try:
        with pytest.raises(StorageError, match="Injected fault"):
            graph.write(frames(spark, "b"))
    finally:
        _faults.disarm()
    assert history(uri) == before
    graph.write(frames(spark, "c"))
    assert counts(uri) == dict.fromkeys(TABLES, 4)
    assert check_graph(uri) == []
