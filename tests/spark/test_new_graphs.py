"""Frames of Spark that make a graph in the form of engine 0.9, and bring tables to it."""

from __future__ import annotations

from pathlib import Path

from pyspark.sql import SparkSession

from omnigraph_spark import OmniGraph, pack
from omnigraph_spark.errors import OptionError
from omnigraph_spark.manifest.snapshot import load
from omnigraph_spark.storage.store import Storage
from tests.format_checker import check_graph
from tests.support.frames import counts, knows, people, refused, rows, save


def test_a_whole_graph_frame_makes_the_graph_with_all_of_its_tables(
    spark: SparkSession, tmp_path: Path
) -> None:
    root = str(tmp_path / "graph")
    frame = pack({"node:Person": people(spark), "edge:Knows": knows(spark, ("a", "b"))})
    save(frame, root, graphFormat="6", endpoints="Knows: Person -> Person")
    assert check_graph(root) == []
    assert counts(root) == {"edge:Knows": 1, "node:Person": 2}
    graph = OmniGraph.for_path(spark, root)
    assert rows(graph.table("Person"), "id", "name", "age") == [("a", "Ann", 30), ("b", "Ben", 25)]
    assert rows(graph.table("Knows"), "src", "dst") == [("a", "b")]
    # The tables, then the rows.
    assert load(Storage.at(root)).graph_version == 2


def test_many_frames_make_the_graph_and_others_bring_tables_to_it(
    spark: SparkSession, tmp_path: Path
) -> None:
    root = str(tmp_path / "graph")
    graph = OmniGraph.for_path(spark, root)
    graph.write({"node:Person": people(spark).drop("id")}, graphFormat=6, keys={"Person": "name"})
    made = knows(spark, ("Ann", "Ben"))
    graph.write({"edge:Knows": made}, endpoints={"Knows": ("Person", "Person")})
    graph.add_table("node:City", "name STRING NOT NULL, size INT", key="name")
    assert check_graph(root) == []
    assert counts(root) == {"edge:Knows": 1, "node:City": 0, "node:Person": 2}
    graph.drop_table("edge:Knows", "node:City")
    assert check_graph(root) == []
    assert counts(root) == {"node:Person": 2}
    with refused(OptionError, "another form"):
        save(people(spark), root, table="node:Person", graphFormat="2")
