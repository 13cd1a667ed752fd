"""Look-ups that their scans answer alone, while rows move under the indices that are asked."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

from omnigraph_spark import OmniGraph, narrow
from omnigraph_spark.narrowing.narrow import narrowed

SEED = int(os.environ.get("OMNIGRAPH_SPARK_QUERY_SEED", "0"))
STEPS = 9
IDS = [f"p{number}" for number in range(40)]
Rows = dict[str, int]


def _upsert(graph: OmniGraph, rows: Rows, chance: random.Random, branch: str) -> None:
    changed = {id_: chance.randrange(5) for id_ in chance.sample(IDS, 12)}
    frame = graph.spark.createDataFrame([*changed.items()], "id string, age int")
    graph.write({"node:P": frame}, mode="merge", branch=branch)
    rows.update(changed)


def _delete(graph: OmniGraph, rows: Rows, chance: random.Random, branch: str) -> None:
    gone = chance.sample([*rows], min(len(rows), 6))
    graph.delete("P", f"id IN ({', '.join(map(repr, gone))})", branch=branch)
    for id_ in gone:
        del rows[id_]


def _index(graph: OmniGraph, _: Rows, chance: random.Random, branch: str) -> None:
    column = chance.choice(["id", "age"])
    graph.create_index("P", column, branch=branch)


def _optimize(graph: OmniGraph, _: Rows, chance: random.Random, branch: str) -> None:
    graph.optimize(branch=branch)


ACTS: tuple[Callable[[OmniGraph, Rows, random.Random, str], None], ...] = (
    _upsert,
    _upsert,
    _delete,
    _index,
    _optimize,
)


def _surfaces(graph: OmniGraph, branch: str, root: str) -> Mapping[str, DataFrame]:
    load = lambda **more: graph.spark.read.format("omnigraph").load(root, branch=branch, **more)  # noqa: E731
    return {
        "load": load(table="P"),
        "handle": graph.table("P", branch=branch),
        "SQL": graph.sql("SELECT * FROM P", branch=branch),
        "whole graph": load().where("_table = 'node:P'"),
    }


@pytest.mark.long
@pytest.mark.parametrize("form", ["2", "6"])
@pytest.mark.parametrize("branch", ["main", "dev"])
def test_look_ups_give_the_rows_of_their_version_wherever_rows_and_indices_are(
    spark: SparkSession, tmp_path: Path, form: str, branch: str
) -> None:
    root, chance = str(tmp_path / "graph"), random.Random(SEED)
    graph = OmniGraph.for_path(spark, root)
    rows: Rows = {id_: chance.randrange(5) for id_ in IDS[:30]}
    frame = spark.createDataFrame([*rows.items()], "id string, age int")
    graph.write({"node:P": frame}, graphFormat=form, maxRowsPerFile="10")
    if branch != "main":
        graph.create_branch(branch)
    for step in range(STEPS):
        asked = chance.sample(IDS, 2)
        before = [
            (name, id_, rows.get(id_), narrow(table.where(f"id = '{id_}'").select("age")))
            for name, table in _surfaces(graph, branch, root).items()
            for id_ in asked
        ]
        act = ACTS[step] if step < len(ACTS) else chance.choice(ACTS)
        act(graph, rows, chance, branch)
        told = f"seed {SEED}, step {step}: {act.__name__}"
        for name, id_, age, found in before:
            expected = [] if age is None else [age]
            assert [row.age for row in found.collect()] == expected, f"{told}, {name} before, {id_}"
        age = chance.randrange(5)
        expected_ids = sorted(id_ for id_, value in rows.items() if value == age)
        for name, table in _surfaces(graph, branch, root).items():
            made, reports = narrowed(table.where(f"age = {age}"))
            assert reports
            assert sorted(row.id for row in made.collect()) == expected_ids, f"{told}, {name}"
