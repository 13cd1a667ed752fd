"""`OmniGraph.convert`: what is refused before anything is made, and what comes along."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from omnigraph_spark import OmniGraph
from omnigraph_spark.errors import CorruptManifestError, OptionError, UnsupportedError
from tests.format_checker import check_graph
from tests.support import graphs
from tests.support.frames import counts, people, rows, save

pytestmark = pytest.mark.long


def test_rows_ids_and_the_schema_come_along_in_both_directions(
    spark: SparkSession, tmp_path: Path
) -> None:
    source = graphs.unpack("v2", "rich", tmp_path)
    to_six = OmniGraph.for_path(spark, str(source)).convert(str(tmp_path / "six"), 6)
    to_two = to_six.convert(str(tmp_path / "two"), 2)
    for graph in (to_six, to_two):
        assert check_graph(graph.uri) == []
        assert counts(graph.uri) == graphs.export_of("v2", "rich").row_counts
        text = Path(graph.uri, "_schema.pg").read_text("utf-8")
        assert text == (source / "_schema.pg").read_text("utf-8")
    before = OmniGraph.for_path(spark, str(source))
    for table in ("node:Sample", "edge:Knows"):
        wanted = rows(before.table(table).drop("raw"))
        assert rows(to_six.table(table).drop("raw")) == wanted
        assert rows(to_two.table(table).drop("raw")) == wanted


def test_a_graph_that_spark_wrote_is_converted_with_its_ids(
    spark: SparkSession, tmp_path: Path
) -> None:
    save(people(spark), str(tmp_path / "two"), table="node:Person")
    made = OmniGraph.for_path(spark, str(tmp_path / "two")).convert(str(tmp_path / "six"), 6)
    assert check_graph(made.uri) == []
    assert rows(made.table("Person"), "id", "age") == [("a", 30), ("b", 25)]


@pytest.mark.parametrize(("generation", "form"), [("v2", 2), ("v6", 6), ("v2", 3)])
def test_the_form_that_the_graph_has_and_unknown_forms_are_refused(
    spark: SparkSession, generation: str, form: int, tmp_path: Path
) -> None:
    source = graphs.unpack(generation, "social", tmp_path)
    with pytest.raises(OptionError, match="form"):
        OmniGraph.for_path(spark, str(source)).convert(str(tmp_path / "made"), form)
    assert not (tmp_path / "made").exists()


def test_a_place_with_a_graph_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    source = graphs.unpack("v2", "social", tmp_path)
    there = graphs.unpack("v6", "rich", tmp_path)
    with pytest.raises(OptionError, match="There is a graph"):
        OmniGraph.for_path(spark, str(source)).convert(str(there), 6)


def test_keys_that_the_older_form_has_not_are_refused(spark: SparkSession, tmp_path: Path) -> None:
    source = graphs.unpack("v6", "constraints", tmp_path)
    with pytest.raises(UnsupportedError, match="The key of node:Day"):
        OmniGraph.for_path(spark, str(source)).convert(str(tmp_path / "made"), 2)
    assert not (tmp_path / "made").exists()


def test_columns_that_the_engine_does_not_know_are_refused_by_name(
    spark: SparkSession, tmp_path: Path
) -> None:
    frame = spark.sql("SELECT 'a' AS id, CAST(1 AS DECIMAL(10, 2)) AS money")
    save(frame, str(tmp_path / "two"), table="node:Person")
    with pytest.raises(UnsupportedError, match=r"Person\.money"):
        OmniGraph.for_path(spark, str(tmp_path / "two")).convert(str(tmp_path / "six"), 6)
    assert not (tmp_path / "six").exists()


def test_a_type_without_a_table_is_refused_in_the_form_where_it_would_be_damage(
    spark: SparkSession, tmp_path: Path
) -> None:
    source = graphs.unpack("v2", "social", tmp_path)
    with (source / "_schema.pg").open("a") as file:
        file.write("node Zed {\n}\n")
    with pytest.raises(CorruptManifestError, match="node:Zed"):
        OmniGraph.for_path(spark, str(source)).convert(str(tmp_path / "made"), 6)
    assert not (tmp_path / "made").exists()


def test_rules_that_todays_engines_do_not_know_on_edges_are_refused(
    spark: SparkSession, tmp_path: Path
) -> None:
    source = graphs.unpack("v2", "rich", tmp_path)
    path = source / "_schema.pg"
    text = path.read_text("utf-8")
    assert "    weight: F64?\n" in text
    path.write_text(
        text.replace("    weight: F64?\n", "    weight: F64?\n    @range(weight, 0..9)\n")
    )
    with pytest.raises(UnsupportedError, match="on node types only"):
        OmniGraph.for_path(spark, str(source)).convert(str(tmp_path / "made"), 6)
    assert not (tmp_path / "made").exists()
