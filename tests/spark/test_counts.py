"""Counts and other reads that need no columns, on a table with deletions, a vector and a blob."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from omnigraph_spark.errors import SchemaMismatchError
from tests.support.frames import refused
from tests.support.lance_graphs import new_graph, publish_head, write_table

KEY, EDGES = "node:Thing", "edge:Knows"
ALIVE = ["a", "c", "d"]


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Three things in two fragments, one more deleted; an edge table without rows."""
    import lance

    storage = new_graph(str(tmp_path_factory.mktemp("counts") / "graph"))
    table = pa.table(
        [
            pa.array(["a", "b", "c", "d"]),
            pa.array([1, 2, 3, 4], pa.int32()),
            pa.array([[1.0, 2.0]] * 4, pa.list_(pa.float32(), 2)),
            lance.blob_array([b"A", b"B" * 300_000, None, b"D" * 10]),
        ],
        schema=pa.schema(
            [
                pa.field("id", pa.utf8(), nullable=False),
                pa.field("n", pa.int32()),
                pa.field("vec", pa.list_(pa.float32(), 2)),
                lance.blob_field("pic"),
            ]
        ),
    )
    write_table(storage, KEY, table, max_rows_per_file=2).delete("id = 'b'")
    publish_head(storage, KEY)
    ends = [pa.field(name, pa.utf8(), nullable=False) for name in ("id", "src", "dst")]
    write_table(storage, EDGES, pa.schema(ends).empty_table())
    publish_head(storage, EDGES)
    return storage.root


def _load(spark: SparkSession, root: str, **asked: str) -> DataFrame:
    return spark.read.format("omnigraph").options(**asked).load(root)


def test_counts_leave_deleted_rows_out(spark: SparkSession, root: str, pushdown: str) -> None:
    frame = _load(
        spark,
        root,
        table=KEY,
        pushDownFilters=pushdown.replace("off", "false").replace("on", "true"),
    )
    assert frame.where("n > 1").count() == 2
    frame = _load(spark, root, table=KEY)
    assert frame.count() == 3
    assert frame.select(F.lit(1)).count() == 3
    assert frame.where("pic IS NOT NULL").count() == 2
    frame.createOrReplaceTempView("things")
    exists = spark.sql("SELECT 1 WHERE EXISTS (SELECT * FROM things WHERE n = 4)")
    assert exists.count() == 1
    assert spark.sql("SELECT 1 WHERE EXISTS (SELECT * FROM things WHERE n = 2)").count() == 0


@pytest.mark.parametrize(
    "asked",
    [{"maxPartitionBytes": "1"}, {"batchSize": "1"}, {"maxPartitionBytes": "1", "filter": "n > 0"}],
)
def test_counts_are_the_same_however_the_table_is_cut(
    spark: SparkSession, root: str, asked: dict[str, str]
) -> None:
    frame = _load(spark, root, table=KEY, **asked)
    assert [row.id for row in frame.select("id").orderBy("id").collect()] == ALIVE
    assert frame.count() == 3


def test_the_option_columns_leaves_heavy_columns_unread(
    spark: SparkSession, root: str, tmp_path: Path
) -> None:
    import shutil

    copy = Path(shutil.copytree(root, tmp_path / "copy"))
    blobs = list(copy.rglob("*.blob"))
    assert blobs
    for blob in blobs:
        blob.unlink()
    assert _load(spark, str(copy), table=KEY, columns="id").count() == 3


def test_a_frame_of_no_columns_is_refused(spark: SparkSession, root: str) -> None:
    frame = spark.read.format("omnigraph").option("table", KEY).schema(StructType([])).load(root)
    with refused(SchemaMismatchError, "no columns"):
        frame.count()


def test_a_table_without_rows_has_a_schema_and_none(spark: SparkSession, root: str) -> None:
    frame = _load(spark, root, table=EDGES)
    assert (frame.columns, frame.count(), frame.collect()) == (["id", "src", "dst"], 0, [])


def test_a_whole_graph_is_counted_by_table(spark: SparkSession, root: str) -> None:
    frame = _load(spark, root)
    assert frame.count() == 3
    assert [tuple(row) for row in frame.groupBy("_table").count().collect()] == [(KEY, 3)]
    assert frame.where(F.col("_table") == EDGES).count() == 0
    assert frame.where("src IS NULL").count() == 3


def test_metadata_columns_are_read_through_spark(spark: SparkSession, root: str) -> None:
    asked = {"columns": "id", "metadataColumns": "_rowid,_row_created_at_version"}
    rows: list[Any] = _load(spark, root, table=KEY, **asked).orderBy("id").collect()
    assert [tuple(row) for row in rows] == [("a", 0, 1), ("c", 2, 1), ("d", 3, 1)]


@pytest.mark.parametrize("kind", ["tables", "history", "refs", "runs", "files", "indexes"])
def test_metadata_frames_are_read_through_spark(spark: SparkSession, root: str, kind: str) -> None:
    frame = _load(spark, root, metadata=kind)
    rows = [row.asDict() for row in frame.collect()]
    assert frame.count() == len(rows)
    expected = {"tables": 2, "history": 1, "refs": 1, "runs": 0, "files": 2, "indexes": 0}
    assert len(rows) >= expected[kind]
    if kind == "tables":
        assert {row["table_key"]: row["row_count"] for row in rows} == {KEY: 3, EDGES: 0}
    if kind == "files":
        assert sum(row["row_count"] for row in rows) == 3
        assert all(Path(row["path"]).stat().st_size == row["size"] for row in rows)
