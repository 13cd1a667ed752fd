"""What a merge decides of awkward rows and lineages: types, doubles, crosswise merges, gaps."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from omnigraph_spark import OmniGraph, _faults
from omnigraph_spark.errors import MergeConflictError, UnsupportedError
from omnigraph_spark.history import commits
from omnigraph_spark.maintenance import optimize
from omnigraph_spark.manifest.snapshot import load
from omnigraph_spark.refs import branches, refs
from omnigraph_spark.storage.store import Storage
from tests.support.s3 import Bucket
from tests.support.writes import KNOWS, PERSON, Died, die, new_graph, write

pytestmark = pytest.mark.long

NAN = float("nan")
AWKWARD = (
    "id STRING, d DOUBLE, n DECIMAL(20,2), b BINARY, v ARRAY<FLOAT>, m MAP<STRING,INT>,"
    " s STRUCT<x: DOUBLE, y: ARRAY<STRING>>"
)
FULL = (1.5, Decimal("1.10"), b"\x00\x01", [1.0, NAN], {"a": 1, "b": 2}, (NAN, ["p", None]))
OTHER = (NAN, Decimal("1.11"), b"\x00\x02", [NAN, 1.0], {"a": 2, "b": 2}, (NAN, ["p"]))
NULLS = (None,) * 6


@pytest.fixture
def storage(tmp_path: Path) -> Storage:
    return Storage.at(str(tmp_path / "g"))


def graph_of(spark: SparkSession, storage: Storage) -> OmniGraph:
    return OmniGraph.for_path(spark, storage.root)


def branch_off(storage: Storage, name: str, ref: str = "main") -> None:
    branches.create_branch(storage, name, refs.named(storage, ref))


def ids(graph: OmniGraph, branch: str = "main") -> list[str]:
    return sorted(row.id for row in graph.table(PERSON, branch=branch).collect())


def test_rows_of_awkward_values_are_merged_by_value(spark: SparkSession, storage: Storage) -> None:
    graph = graph_of(spark, storage)

    def put(branch: str, *rows: tuple[str, tuple[Any, ...]], mode: str = "overwrite") -> None:
        frame = spark.createDataFrame([(name, *values) for name, values in rows], AWKWARD)
        graph.write({"node:Odd": frame}, mode=mode, branch=branch)

    same = [(f"k{number}", FULL) for number in range(3)]
    put("main", ("a", FULL), ("b", FULL), ("c", NULLS), ("d", NULLS), *same, mode="append")
    branch_off(storage, "dev")
    put("dev", ("a", OTHER), ("b", FULL), ("c", FULL), ("d", NULLS), *same)
    put("main", ("a", FULL), ("b", NULLS), ("c", NULLS), ("d", OTHER), *same, ("e", OTHER))
    done = graph.merge("dev")
    assert done.conflicts == {}
    table = graph.table("node:Odd").select("id", "d", "n", "b", "v", "m", "s")
    found = {row.id: tuple(row)[1:] for row in table.collect()}
    expected = {"a": OTHER, "b": NULLS, "c": FULL, "d": OTHER, "e": OTHER, **dict(same)}
    assert str({name: plain(values) for name, values in sorted(found.items())}) == str(
        {name: plain(values) for name, values in sorted(expected.items())}
    )
    put("dev", ("a", FULL), ("d", FULL))
    put("main", ("a", NULLS), ("d", FULL))
    dry = graph.merge("dev", dry_run=True)
    assert dry.conflicts == {("node:Odd", "DivergentUpdate"): 1}
    (row,) = dry.conflict_rows.collect()
    assert (row.id, '"n":1.1' in row.theirs, row.ours) == ("a", True, "[{}]")


def plain(values: Any) -> Any:
    """Return values without Spark's classes, as text can be compared."""
    if isinstance(values, (bytearray, bytes)):
        return bytes(values)
    if isinstance(values, dict):
        return sorted(values.items())
    if isinstance(values, (tuple, list)):
        return [plain(value) for value in values]
    return values


def test_compacted_tables_have_no_changes_to_merge(spark: SparkSession, storage: Storage) -> None:
    new_graph(storage, [PERSON, KNOWS])
    write(storage, {PERSON: ["a", "b"]})
    write(storage, {PERSON: ["c"]})
    branch_off(storage, "dev")
    write(storage, {PERSON: ["m"]})
    write(storage, {PERSON: ["d"]}, branch="dev")
    for branch in ("main", "dev"):
        assert optimize.optimize(storage, branch, [PERSON], optimize.run_here).tables
    graph = graph_of(spark, storage)
    done = graph.merge("dev")
    assert (done.tables, done.conflicts) == ((PERSON,), {})
    assert ids(graph) == ["a", "b", "c", "d", "first", "m"]
    before = load(storage).graph_version
    write(storage, {PERSON: ["n"]})
    write(storage, {PERSON: ["o"]}, branch="dev")
    write(storage, {PERSON: ["a", "b", "c", "d", "first"]}, "overwrite", branch="dev")
    optimize.optimize(storage, "dev", [PERSON], optimize.run_here)
    write(storage, {PERSON: ["p"]})
    again = graph.merge("dev", dry_run=True)
    assert again.conflicts == {}
    assert before < load(storage).graph_version


def crosswise(spark: SparkSession, storage: Storage) -> OmniGraph:
    """Merge main into dev and dev into main at the same time: two newest common commits."""
    new_graph(storage, [PERSON, KNOWS])
    branch_off(storage, "dev")
    write(storage, {PERSON: ["m"]})
    write(storage, {PERSON: ["d"]}, branch="dev")
    branch_off(storage, "dev/then", "dev")
    graph = graph_of(spark, storage)
    graph.merge("main", "dev")
    graph.merge("dev/then", "main")
    return graph


def test_what_crosswise_merged_branches_dont_agree_on_is_a_conflict(
    spark: SparkSession, storage: Storage
) -> None:
    graph = crosswise(spark, storage)
    assert ids(graph) == ids(graph, "dev") == ["d", "first", "m"]
    assert graph.merge("dev", dry_run=True).conflicts == {}
    write(storage, {PERSON: ["first", "d"]}, "overwrite", expectedTableVersions="{}")
    write(storage, {PERSON: ["new"]}, branch="dev")
    # `m` is gone from main. One common commit has it and the other hasn't: with the wrong one of
    # the two as the base it would come back as a row that only dev has.
    dry = graph.merge("dev", dry_run=True)
    assert dry.conflicts[PERSON, "DeleteVsUpdate"] == 1
    rows = {row.id: row.conflict for row in dry.conflict_rows.collect()}
    assert rows["m"] == "DeleteVsUpdate"
    assert "new" not in rows
    graph.merge("dev", resolution="ours")
    assert ids(graph) == ["d", "first", "new"]


def test_branches_that_merged_a_deleted_branch_are_not_merged_by_guess(
    spark: SparkSession, storage: Storage
) -> None:
    new_graph(storage, [PERSON, KNOWS])
    branch_off(storage, "release")
    branch_off(storage, "feature")
    write(storage, {PERSON: ["f"]}, branch="feature")
    write(storage, {PERSON: ["m"]})
    write(storage, {PERSON: ["r"]}, branch="release")
    graph = graph_of(spark, storage)
    graph.merge("feature", "main")
    graph.merge("feature", "release")
    assert graph.merge("release", dry_run=True).conflicts == {}
    branches.delete_branch(storage, "feature", 0.01)
    with pytest.raises(UnsupportedError, match="both merged commit .* whose branch is deleted"):
        graph.merge("release")
    assert ids(graph) == ["f", "first", "m"]


def test_a_merge_whose_writer_died_before_its_row_is_still_a_merge(
    spark: SparkSession, storage: Storage
) -> None:
    new_graph(storage, [PERSON, KNOWS])
    branch_off(storage, "dev")
    write(storage, {PERSON: ["d", "x"]}, branch="dev")
    write(storage, {PERSON: ["m"]})
    source = commits.head(storage, "dev")
    assert source is not None
    graph = graph_of(spark, storage)
    _faults.arm("lineage.before_row", die)
    try:
        with pytest.raises(Died):
            graph.merge("dev", actor="me")
    finally:
        _faults.disarm()
    assert "merged_parent" in load(storage).entry(PERSON).ours
    told = graph.history().where("merged_parent_id IS NOT NULL").collect()
    assert [(row.merged_parent_id, row.actor) for row in told] == [(source.graph_commit_id, "me")]
    # `d` goes again; the next merge must not bring it back, whoever fills the gap.
    write(storage, {PERSON: ["first", "m", "x"]}, "overwrite")
    filled = [c for c in commits.read_commits(storage) if c.merged_parent_commit_id]
    assert [(c.merged_parent_commit_id, c.actor_id) for c in filled] == [
        (source.graph_commit_id, "me")
    ]
    write(storage, {PERSON: ["new"]}, branch="dev")
    graph.merge("dev", resolution="ours")
    assert ids(graph) == ["first", "m", "new", "x"]


def test_the_same_edge_made_on_two_branches_is_one_edge_or_a_conflict(
    spark: SparkSession, storage: Storage
) -> None:
    """(e)."""
    new_graph(storage, [PERSON, KNOWS])
    branch_off(storage, "dev")
    for branch in ("main", "dev"):
        write(storage, {KNOWS: ["same"]}, branch=branch)
    graph = graph_of(spark, storage)
    graph.merge("dev")
    assert sorted(row.id for row in graph.table(KNOWS).collect()) == ["first", "same"]
    write(storage, {KNOWS: ["x", "e"]})
    write(storage, {KNOWS: ["e"]}, branch="dev")  # another weight under the same id
    with pytest.raises(MergeConflictError, match="1 DivergentInsert in edge:Knows"):
        graph.merge("dev")
    assert sorted(row.id for row in graph.table(KNOWS).collect()) == ["e", "first", "same", "x"]


def test_branches_are_merged_on_s3(spark: SparkSession, bucket: Bucket) -> None:
    storage = new_graph(Storage.at(f"{bucket.uri}/g", bucket.storage_options), [PERSON, KNOWS])
    branch_off(storage, "dev")
    write(storage, {PERSON: ["d"], KNOWS: ["d"]}, branch="dev")
    write(storage, {PERSON: ["m"]})
    options = {key.removeprefix("storage."): value for key, value in bucket.spark_options.items()}
    graph = OmniGraph.for_path(spark, storage.root, **options)
    done = graph.merge("dev", resolution="ours")
    assert (done.tables, done.conflicts) == ((KNOWS, PERSON), {})
    assert ids(graph) == ["d", "first", "m"]
    assert graph.diff("main", "dev", table="Person").count() == 1
    version = load(storage).graph_version
    fed = {(row["_table"], row["_change_type"], row.id) for row in graph.changes(version).collect()}
    assert fed == {(PERSON, "insert", "d"), (KNOWS, "insert", "d")}
    graph.delete_branch("dev")
    assert [one.name for one in graph.branches()] == ["main"]
