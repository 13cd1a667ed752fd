"""Maintenance through Spark: tasks on executors, the methods of `OmniGraph`, the metadata frame."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from importlib.util import find_spec
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from omnigraph_spark import OmniGraph
from omnigraph_spark.errors import OptionError, VersionNotFoundError
from omnigraph_spark.maintenance.cleanup import cleanup
from omnigraph_spark.storage.store import Storage
from tests.support.sparks import ScriptRunner
from tests.support.writes import PERSON, new_graph, write


def many(folder: Path) -> Storage:
    """Make a graph whose `node:Person` is in five fragments."""
    storage = new_graph(Storage.at(str(folder / "g")), [PERSON])
    for number in range(4):
        write(storage, {PERSON: [f"p{number}"]})
    return storage


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
    here = f"table_key = '{PERSON}' AND name = 'id_idx'"
    (row,) = graph.indexes().where(here).collect()
    assert (row.name, row.type, list(row.columns)) == ("id_idx", "BTree", ["id"])
    assert (row.rows_indexed, row.rows_not_indexed) == (5, 1)
    done = graph.optimize(actor="ann")
    table = {one.table_key: one for one in done.tables}[PERSON]
    assert (table.fragments_before, table.fragments_after <= 2) == (6, True)
    (row,) = graph.indexes().where(here).collect()
    assert (row.rows_indexed, row.rows_not_indexed) == (6, 0)
    assert {row.id for row in graph.table("Person").collect()} == before
    newest = graph.history().orderBy("version", ascending=False).first()
    assert newest is not None
    assert (newest.version, newest.actor) == (done.graph_version, "ann")
    assert graph.drop_index("Person", "id_idx").tables == (PERSON,)
    assert graph.indexes().where(here).count() == 0


CONNECT = """
import sys
from pyspark.sql import SparkSession
from omnigraph_spark import OmniGraph
spark = SparkSession.builder.remote("local[2]").getOrCreate()
graph = OmniGraph.for_path(spark, sys.argv[1])
done = graph.optimize()
print("fragments", [(one.fragments_before, one.fragments_after) for one in done.tables])
print("rows", sorted(row.id for row in graph.table("Person").collect()))
"""


@pytest.mark.skipif(
    any(find_spec(name) is None for name in ("grpc", "pandas", "zstandard")),
    reason="Spark Connect isn't installed",
)
def test_optimize_runs_under_spark_connect(run_spark_script: ScriptRunner, tmp_path: Path) -> None:
    storage = many(tmp_path)
    done = run_spark_script(CONNECT, storage.root, session=False)
    assert "fragments [(5, " in done.stdout
    assert "rows ['first', 'p0', 'p1', 'p2', 'p3']" in done.stdout


def test_cleanup_says_what_would_go_and_a_fresh_graph_keeps_everything(
    spark: SparkSession, tmp_path: Path
) -> None:
    graph = OmniGraph.for_path(spark, many(tmp_path).root)
    graph.optimize()
    told = graph.cleanup()
    assert (told.dry_run, told.versions, told.files, told.bytes) == (True, 0, 0, 0)
    assert graph.cleanup(timedelta(days=30), keep=5, dry_run=False).versions == 0
    assert graph.table("Person", version=5).count() == 3
    with pytest.raises(OptionError, match="OMNIGRAPH_OPTION"):
        graph.cleanup(timedelta(days=1))


def test_reading_a_version_that_was_cleaned_up_says_so_through_spark(
    spark: SparkSession, tmp_path: Path
) -> None:
    storage = many(tmp_path)
    graph = OmniGraph.for_path(spark, storage.root)
    pinned = graph.table("Person", version=5)
    graph.optimize()
    cleanup(storage, dry_run=False, now=datetime.now(timezone.utc) + timedelta(days=8))
    with pytest.raises(VersionNotFoundError, match="no graph version 5"):
        graph.table("Person", version=5)
    with pytest.raises(Exception, match="OMNIGRAPH_STORAGE.*cleanup removed it"):
        pinned.count()
    assert graph.table("Person").count() == 5
