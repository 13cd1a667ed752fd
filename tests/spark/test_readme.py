"""The examples of the README, the docs and `examples/`, run as they are written there."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from omnigraph_spark import OmniGraph
from tests.support.stores import Store

pytestmark = pytest.mark.long

PROJECT = Path(__file__).resolve().parents[2]


def blocks(document: str, heading: str, language: str) -> list[str]:
    """Return the code blocks of a language under a heading of a document, in order."""
    text = (PROJECT / document).read_text(encoding="utf-8")
    section = re.search(rf"^#+ {re.escape(heading)}\n(.*?)(?=^#+ [A-Z]|\Z)", text, re.M | re.S)
    assert section, f"{document} has no heading {heading!r}"
    found = re.findall(rf"^```{language}\n(.*?)^```", section.group(1), re.M | re.S)
    assert found, f"{heading!r} of {document} shows no {language}"
    return [str(block) for block in found]


def run_python(document: str, heading: str, names: dict[str, Any]) -> dict[str, Any]:
    """Run the Python examples under a heading with `names` defined; return what they define."""
    for block in blocks(document, heading, "python"):
        exec(block, names)
    return names


def run_sql(spark: SparkSession, document: str, heading: str, uri: str) -> None:
    """Run the SQL examples under a heading on the graph at `uri`."""
    for block in blocks(document, heading, "sql"):
        for statement in filter(None, map(str.strip, block.split(";"))):
            spark.sql(statement.replace("/data/graph", uri)).collect()


@pytest.fixture
def graph(spark: SparkSession, local_store: Store) -> str:
    """The graph that the README's `A new graph` makes."""
    uri = local_store.uri("readme")
    run_python("README.md", "A new graph", {"spark": spark, "uri": uri})
    return uri


def test_the_readme_makes_a_graph_whose_ids_are_the_names(spark: SparkSession, graph: str) -> None:
    rows = OmniGraph.for_path(spark, graph).table("Person").orderBy("id").collect()
    assert [(row.id, row.name, row.age) for row in rows] == [
        ("Ada", "Ada", 36),
        ("Grace", "Grace", 45),
    ]
    knows = OmniGraph.for_path(spark, graph).table("edge:Knows").collect()
    assert [(row.src, row.dst, len(row.id)) for row in knows] == [("Ada", "Grace", 26)]


def test_the_five_line_examples_append_to_a_graph_and_copy_it(
    spark: SparkSession, graph: str, local_store: Store
) -> None:
    knows = spark.createDataFrame([("Alan", "Ada")], "src STRING, dst STRING")
    other = local_store.uri("other")
    newcomers, others = (
        spark.createDataFrame([one], "name STRING, age INT") for one in (("Alan", 41), ("Kay", 1))
    )
    names: dict[str, Any] = {"spark": spark, "uri": graph, "other_uri": other}
    names |= {"knows": knows, "newcomers": newcomers, "others": others}
    run_python("README.md", "Use it", names)
    copied = OmniGraph.for_path(spark, other)
    assert copied.graph().count() == 3  # the frame is of the version that it was read at
    counts = {
        row.table_key: row.row_count for row in OmniGraph.for_path(spark, graph).tables().collect()
    }
    assert counts == {"node:Person": 4, "edge:Knows": 2}


def test_the_readme_upserts_and_deletes(spark: SparkSession, graph: str) -> None:
    people = "name STRING, age INT"
    OmniGraph.for_path(spark, graph).write(
        {"node:Person": spark.createDataFrame([("Edsger", 72)], people)}
    )
    names = {
        "spark": spark,
        "uri": graph,
        "changed": spark.createDataFrame(
            [("Ada", 37), ("Kay", 1)], "id STRING, age INT"
        ).selectExpr("id", "id AS name", "age"),
        "gone": spark.createDataFrame([("Edsger",)], "id STRING"),
    }
    run_python("README.md", "Upsert and delete", names)
    rows = OmniGraph.for_path(spark, graph).table("Person").orderBy("id").collect()
    assert [(row.id, row.age) for row in rows] == [("Ada", 37), ("Grace", 45), ("Kay", 1)]


def test_the_readme_travels_in_time(spark: SparkSession, local_store: Store) -> None:
    uri = local_store.fixture("v2", "rich")
    names = {"spark": spark, "uri": uri, "OmniGraph": OmniGraph}
    run_python("README.md", "Time travel, branches, history", names)


def test_the_readme_and_the_document_maintain_the_graph(spark: SparkSession, graph: str) -> None:
    for document, heading in (
        ("README.md", "Indices, optimize, cleanup"),
        ("docs/maintenance.md", "Maintenance: indices, optimize, cleanup"),
    ):
        made = run_python(document, heading, {"spark": spark, "uri": graph, "OmniGraph": OmniGraph})
        (row,) = made["graph"].indexes().where("name = 'name_idx'").collect()
        assert (row.table_key, row.rows_indexed, row.rows_not_indexed) == ("node:Person", 2, 0)
        assert made["graph"].table("Person").count() == 2


def test_the_sql_of_the_readme_runs(spark: SparkSession, graph: str) -> None:
    run_sql(spark, "README.md", "SQL", graph)
    assert [row.id for row in spark.table("people").where("age = 72").collect()] == ["Edsger"]


def test_the_sql_document_makes_a_table_that_isnt_there_yet(
    spark: SparkSession, local_store: Store
) -> None:
    run_sql(spark, "docs/sql.md", "A table that isn't in the graph yet", local_store.uri("new"))
    assert [row.id for row in spark.table("people").collect()] == ["Ada"]


def test_the_sql_document_makes_views(spark: SparkSession, graph: str) -> None:
    run_sql(spark, "docs/sql.md", "Views", graph)
    assert spark.table("people").count() == 2
    run_python("docs/sql.md", "Views", {"spark": spark, "uri": graph, "OmniGraph": OmniGraph})
    assert spark.table("g_Person").count() == 2
    assert spark.table("g_Knows").count() == 1


def test_the_examples_of_the_branches_page_run_one_after_the_other(
    spark: SparkSession, graph: str
) -> None:
    names: dict[str, Any] = {"spark": spark, "uri": graph, "OmniGraph": OmniGraph}
    run_python("docs/branches.md", "Branches, history and time travel", names)
    for heading in ("Making and writing branches", "Tags, restore", "Comparing", "Merging"):
        run_python("docs/branches.md", heading, names)
    assert names["dry"].conflicts == {}
    run_python("docs/branches.md", "Change feed", names)
    assert {row._change_type for row in names["feed"].collect()} == {"insert"}
    run_sql(spark, "docs/branches.md", "Change feed", graph)
    spark.sql("DROP VIEW changes")
    made = OmniGraph.for_path(spark, graph)
    assert sorted(row.id for row in made.table("Person").collect()) == ["Ada", "Alan", "Grace"]


@pytest.fixture
def quickstart(spark: SparkSession, local_store: Store, tmp_path: Path) -> dict[str, Any]:
    """What the first two sections of the quickstart define."""
    (tmp_path / "people.csv").write_text("name,age\nAda,36\nGrace,45\n")
    (tmp_path / "knows.csv").write_text("src,dst,since\nAda,Grace,1950\n")
    names = {"spark": spark, "uri": local_store.uri("quick"), "folder": str(tmp_path)}
    run_python("docs/quickstart.md", "Load two CSV files", names)
    return run_python("docs/quickstart.md", "Query it", names)


def test_the_quickstart_goes_from_csv_files_to_a_merged_branch(quickstart: dict[str, Any]) -> None:
    assert [(row.src, row.dst) for row in quickstart["pairs"].select("src", "dst").collect()] == [
        ("Ada", "Grace")
    ]
    run_python("docs/quickstart.md", "Change it", quickstart)
    run_python("docs/quickstart.md", "Try something on a branch", quickstart)
    rows = quickstart["graph"].table("Person").orderBy("id").collect()
    assert [(row.id, row.age) for row in rows] == [
        ("Ada", 37),
        ("Alan", 41),
        ("Edsger", 72),
        ("Grace", 45),
    ]


def test_the_pages_on_reading_writing_and_graphframes_run(
    spark: SparkSession, quickstart: dict[str, Any]
) -> None:
    names = {"spark": spark, "uri": quickstart["uri"], "OmniGraph": OmniGraph}
    run_python("docs/reading.md", "Reading", names)
    assert sorted(row.id for row in names["adults"].collect()) == ["Ada", "Grace"]
    names["newcomers"] = spark.createDataFrame([("Kay", 1)], "name STRING, age INT")
    run_python("docs/writing.md", "Writing", names)
    run_python("docs/graphframes.md", "GraphFrames", names)
    ranks = OmniGraph.for_path(spark, str(names["uri"])).table("Person").select("id", "rank")
    assert {row.id: row.rank for row in ranks.collect()} == {"Ada": 1.0, "Grace": 1.0, "Kay": 1.0}


def test_the_habits_of_delta_iceberg_and_neo4j_work(spark: SparkSession, graph: str) -> None:
    names: dict[str, Any] = {"spark": spark, "uri": graph, "OmniGraph": OmniGraph}
    headings = ("Reading and writing a table", "Upsert", "Delete", "History, maintenance")
    for heading in headings:
        run_python("docs/coming_from.md", heading, names)
    rows = names["graph"].table("Person").orderBy("id").collect()
    assert [(row.id, row.age) for row in rows] == [("Ada", 37), ("Grace", 45)]


@pytest.mark.parametrize(
    "notebook", sorted((PROJECT / "examples").glob("*.ipynb")), ids=lambda path: path.stem
)
def test_the_notebooks_run(spark: SparkSession, local_store: Store, notebook: Path) -> None:
    cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    names: dict[str, Any] = {"spark": spark, "uri": local_store.uri(notebook.stem)}
    for cell in cells:
        if cell["cell_type"] == "code" and "setup" not in cell["metadata"].get("tags", []):
            exec("".join(cell["source"]), names)
    assert names["done"] is True


def test_the_upserts_page_updates_deletes_and_merges(spark: SparkSession, graph: str) -> None:
    news = spark.createDataFrame(
        [("Ada", 40, False), ("Grace", 0, True), ("Mary", 9, False)],
        "id STRING, age INT, gone BOOLEAN",
    )
    names = {"spark": spark, "uri": graph, "OmniGraph": OmniGraph, "news": news}
    run_python("docs/upserts.md", "Conditional merges, updates and deletes", names)
    found = OmniGraph.for_path(spark, graph).table("Person").orderBy("id").collect()
    assert [(row.id, row.age) for row in found] == [("Ada", 40), ("Mary", 9)]
