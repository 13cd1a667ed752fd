"""Maintenance through Spark: tasks on executors, the methods of `OmniGraph`, the metadata frame."""

from __future__ import annotations

from pathlib import Path

from pyspark.sql import SparkSession

from omnigraph_spark import OmniGraph
from omnigraph_spark.storage import Storage
from tests.support.writes import PERSON, new_graph, write


def test_optimize_runs_its_tasks_on_spark_and_the_frame_of_indices_says_what_is_covered(
    spark: SparkSession, tmp_path: Path
) -> None:
    storage = new_graph(Storage.at(str(tmp_path / "g")))
    for number in range(4):
        write(storage, {PERSON: [f"p{number}"]})
    graph = OmniGraph.for_path(spark, storage.root)
    assert graph.create_index("Person", "id").tables == (PERSON,)
    write(storage, {PERSON: ["late"]})
    before = {row.id for row in graph.table("Person").collect()}
    (row,) = graph.indexes().collect()
    assert (row.name, row.type, list(row.columns)) == ("id_idx", "BTree", ["id"])
    assert (row.rows_indexed, row.rows_not_indexed) == (5, 1)
    done = graph.optimize(actor="ann")
    (table,) = done.tables
    assert (table.table_key, table.fragments_before, table.fragments_after) == (PERSON, 6, 2)
    (row,) = graph.indexes().collect()
    assert (row.rows_indexed, row.rows_not_indexed) == (6, 0)
    assert {row.id for row in graph.table("Person").collect()} == before
    newest = graph.history().orderBy("version", ascending=False).first()
    assert newest is not None
    assert (newest.version, newest.actor) == (done.graph_version, "ann")
    assert graph.drop_index("Person", "id_idx").tables == (PERSON,)
    assert graph.indexes().count() == 0
