"""`OmniGraph`: the handle of one graph, and `register`."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from omnigraph_spark import OmniGraph, pack, register, unpack
from omnigraph_spark.errors import (
    ExpectedVersionMismatch,
    GraphNotFoundError,
    IntegrityError,
    OptionError,
    SchemaMismatchError,
    TableNotFoundError,
    UnsupportedError,
)
from tests.support.frames import counts, knows, nothing_written, people, placed, refused, rows, save
from tests.support.graphs import file_hashes
from tests.support.stores import Store

NODE = "node:Person"
EDGE = "edge:Knows"
ENDS = "Knows: Person -> Person"
PUSH_DOWN = "spark.sql.python.filterPushdown.enabled"


@pytest.fixture
def graph(spark: SparkSession, local_store: Store) -> OmniGraph:
    """The handle of a graph of two people and one edge, written in one commit."""
    made = OmniGraph.for_path(spark, placed(local_store))
    made.write({NODE: people(spark), EDGE: knows(spark, ("a", "b"))}, endpoints=ENDS)
    return made


def test_a_handle_opens_nothing_and_shows_no_storage_option(
    spark: SparkSession, tmp_path: Path
) -> None:
    handle = OmniGraph.for_path(spark, f"{tmp_path}/none/", aws_secret_access_key="canary-17")
    assert handle.uri == f"{tmp_path}/none"
    assert "canary-17" not in repr(handle)
    assert list(tmp_path.iterdir()) == []
    with refused(GraphNotFoundError, "none"):
        handle.tables()
    with pytest.raises(OptionError, match="OMNIGRAPH_OPTION.*dbfs"):
        OmniGraph.for_path(spark, "dbfs:/graph")


def test_a_table_is_read_by_key_or_bare_name_with_the_columns_asked_for(graph: OmniGraph) -> None:
    assert rows(graph.table(NODE)) == [("a", 30, "Ann"), ("b", 25, "Ben")]
    assert graph.table("Person", columns=["name", "id"]).columns == ["name", "id"]
    with refused(TableNotFoundError, "edge:Knows, node:Person"):
        graph.table("Ghost")
    with refused(OptionError, "nmae"):
        graph.table(NODE, columns=["nmae"])


@pytest.mark.long
def test_a_version_and_a_commit_id_name_what_was_then(
    spark: SparkSession, graph: OmniGraph
) -> None:
    then = graph.history().orderBy(F.desc("version")).collect()[0]
    graph.write({NODE: people(spark, [("c", "Cleo", 1)])})
    assert graph.table(NODE).count() == 3
    assert graph.table(NODE, version=then.version).count() == 2
    assert graph.table(NODE, version=then.commit_id).count() == 2
    assert graph.graph(version=then.version).count() == 3


def test_tables_history_and_refs_tell_what_was_written(
    spark: SparkSession, graph: OmniGraph
) -> None:
    done = graph.write({NODE: people(spark, [("c", "Cleo", 1)])}, actor="me", userMetadata="why")
    assert rows(graph.tables(), "table_key", "row_count") == [(EDGE, 1), (NODE, 3)]
    last = graph.history().orderBy(F.desc("version")).collect()[0]
    assert (last.version, last.publish_id) == (done.graph_version, done.publish_id)
    assert (last.actor, last.user_metadata, last.tables) == ("me", "why", [NODE])
    assert rows(graph.refs(), "name", "version") == [("main", done.graph_version)]


# --- many frames, one commit -----------------------------------------------------------------------


def test_many_frames_are_one_version_of_the_graph(spark: SparkSession, graph: OmniGraph) -> None:
    before = graph.history().count()
    more = {"Person": people(spark, [("c", "Cleo", 1)]), EDGE: knows(spark, ("c", "a"), ("a", "c"))}
    graph.write(more)
    assert graph.history().count() == before + 1
    assert counts(graph.uri) == {EDGE: 3, NODE: 3}
    assert all(len(row.id) == 26 for row in graph.table(EDGE).collect())


def test_an_overwrite_of_many_frames_leaves_the_other_tables(
    spark: SparkSession, graph: OmniGraph
) -> None:
    graph.write({"node:Pet": people(spark)})
    graph.write({NODE: people(spark, []), EDGE: knows(spark)}, mode="overwrite")
    assert counts(graph.uri) == {EDGE: 0, NODE: 0, "node:Pet": 2}


def test_staging_leaves_nothing_behind(spark: SparkSession, graph: OmniGraph) -> None:
    root = Path(graph.uri)
    assert list((root / "__staging").rglob("*")) == []
    before = set(file_hashes(root))
    broken = knows(spark, ("a", "b")).withColumn("dst", F.expr("raise_error('broken')"))
    with pytest.raises(Exception, match="broken"):
        graph.write(
            {"edge:Aaa": knows(spark, ("a", "b")), EDGE: broken}, endpoints="Aaa: Person -> Person"
        )
    assert set(file_hashes(root)) == before
    assert list((root / "__staging").rglob("*")) == []


def test_frames_that_do_not_fit_are_refused_before_any_of_them_is_written(
    spark: SparkSession, graph: OmniGraph
) -> None:
    good, bad = people(spark), people(spark).withColumn("shoe", F.lit(44))
    with nothing_written(graph.uri):
        with pytest.raises(SchemaMismatchError, match="OMNIGRAPH_SCHEMA_MISMATCH.*shoe"):
            graph.write({"node:Pet": good, NODE: bad})
        with pytest.raises(IntegrityError, match="OMNIGRAPH_INTEGRITY.*id"):
            graph.write({"node:Pet": good, NODE: good.drop("id")})
        with pytest.raises(OptionError, match="OMNIGRAPH_OPTION.*table key"):
            graph.write({"../x:y": good})
        with pytest.raises(OptionError, match="OMNIGRAPH_OPTION.*Two frames"):
            graph.write({NODE: good, "Person": good})
        with pytest.raises(OptionError, match="OMNIGRAPH_OPTION.*No frames"):
            graph.write({})
        with pytest.raises(OptionError, match="OMNIGRAPH_OPTION.*append"):
            graph.write({NODE: good}, mode="upsert")
        with pytest.raises(OptionError, match="OMNIGRAPH_OPTION.*userMetadata"):
            graph.write({NODE: good}, userMetdata="x")


def test_rows_that_do_not_fit_publish_nothing(spark: SparkSession, graph: OmniGraph) -> None:
    before = counts(graph.uri)
    without_end = knows(spark, ("a", None))  # type: ignore[arg-type]
    with refused(IntegrityError, "dst"):
        graph.write({NODE: people(spark, [("c", "Cleo", 1)]), EDGE: without_end})
    assert counts(graph.uri) == before


@pytest.mark.long
def test_a_stale_frame_does_not_overwrite_in_a_commit_of_many(
    spark: SparkSession, graph: OmniGraph
) -> None:
    stale = graph.table(NODE)
    graph.write({NODE: people(spark, [("c", "Cleo", 1)])})
    with (
        nothing_written(graph.uri),
        pytest.raises(
            ExpectedVersionMismatch, match="OMNIGRAPH_EXPECTED_VERSION_MISMATCH.*node:Person"
        ),
    ):
        graph.write({NODE: stale, EDGE: knows(spark)}, mode="overwrite")


def test_a_store_that_this_process_cannot_see_is_said_to_be_so(
    spark: SparkSession, graph: OmniGraph, monkeypatch: pytest.MonkeyPatch
) -> None:
    from omnigraph_spark.write.commit import bulk

    # What Spark's process stages goes elsewhere, as with a Connect server on another machine.
    monkeypatch.setattr(bulk, "_path", lambda publish_id, key: f"__staging/elsewhere/{key}")
    before = counts(graph.uri)
    with pytest.raises(UnsupportedError, match="OMNIGRAPH_UNSUPPORTED.*can't see it"):
        graph.write({NODE: people(spark, [("c", "Cleo", 1)])})
    assert counts(graph.uri) == before


def test_the_plan_that_travels_as_an_option_holds_no_secret(
    spark: SparkSession, graph: OmniGraph
) -> None:
    from omnigraph_spark.options import WriteOptions, parse
    from omnigraph_spark.spark import frame_plan
    from omnigraph_spark.write.commit import bulk

    raw = {"path": graph.uri, "storage.aws_secret_access_key": "canary-17"}
    frames = {NODE: people(spark).schema}
    plan = frame_plan.plan_frames(WriteOptions.of(parse(raw), overwrite=False), frames)
    text = bulk.describe(plan, NODE)
    assert "canary-17" not in text
    assert b"canary-17" in pickle.dumps(plan)
    again = bulk.restored(plan.storage, text)
    assert (again.targets, again.settings) == (plan.targets, plan.settings)


# --- views, packing, registration -------------------------------------------------------------------


def test_views_of_a_node_and_an_edge_type_of_one_name_are_told_apart(
    spark: SparkSession, graph: OmniGraph
) -> None:
    graph.write({"edge:Person": knows(spark, ("b", "a"))}, endpoints="Person: Person -> Person")
    assert graph.create_views("v_") == {
        EDGE: "v_Knows",
        "edge:Person": "v_edge_Person",
        NODE: "v_node_Person",
    }
    assert rows(spark.sql("SELECT src FROM v_edge_Person")) == [("b",)]


def test_a_graph_that_is_read_unpacks_into_what_was_packed(
    spark: SparkSession, graph: OmniGraph, local_store: Store
) -> None:
    parts = unpack(graph.graph())
    assert rows(parts[NODE]) == rows(graph.table(NODE))
    copy = local_store.uri("copy")
    save(pack(parts, endpoints={"Knows": ("Person", "Person")}), copy)
    assert counts(copy) == counts(graph.uri)


@pytest.mark.long
def test_register_makes_the_source_known_and_changes_no_setting(
    spark: SparkSession, graph: OmniGraph
) -> None:
    before = dict(spark.conf.getAll)
    register(spark)
    assert dict(spark.conf.getAll) == before
    assert graph.table(NODE).where("age > 26").count() == 1
