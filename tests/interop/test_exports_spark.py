"""The engine's graphs read through Spark, from a folder and from S3, equal to the engine's export."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

from tests.support import exports, graphs
from tests.support.stores import Store

BRANCHES = [
    pytest.param(generation, graph, branch, id=f"{generation}-{graph}-{branch}")
    for generation, graph, branches in graphs.ALL_GRAPHS
    for branch in branches
]


def _load(spark: SparkSession, root: str, store: Store, **options: str) -> DataFrame:
    return spark.read.format("omnigraph").options(**store.options).options(**options).load(root)


@pytest.mark.parametrize(("generation", "graph", "branch"), BRANCHES)
def test_the_whole_graph_frame_of_a_branch_equals_the_export(
    spark: SparkSession, store: Store, generation: str, graph: str, branch: str
) -> None:
    export = graphs.export_of(generation, graph, branch)
    root = store.fixture(generation, graph)
    frame = _load(spark, root, store, branch=branch)
    assert frame.columns[:4] == ["_table", "id", "src", "dst"]
    assert len(set(frame.columns)) == len(frame.columns)
    rows = [row.asDict() for row in frame.collect()]
    assert exports.whole_graph_tables(rows) == exports.filled_tables(export)


@pytest.mark.parametrize(("generation", "graph", "branch"), BRANCHES)
def test_every_table_frame_of_a_branch_equals_the_export(
    spark: SparkSession, local_store: Store, generation: str, graph: str, branch: str
) -> None:
    export = graphs.export_of(generation, graph, branch)
    root = Path(local_store.fixture(generation, graph))
    before = graphs.file_hashes(root)

    def read(key: str) -> list[dict[str, object]]:
        frame = _load(spark, str(root), local_store, branch=branch, table=key)
        return exports.table_rows(row.asDict() for row in frame.collect())

    keys = sorted(export.tables)
    with ThreadPoolExecutor(4) as pool:
        tables = dict(zip(keys, pool.map(read, keys), strict=True))
    assert tables == {key: exports.export_rows(export, key) for key in keys}
    assert graphs.file_hashes(root) == before, "reading changed a file"
