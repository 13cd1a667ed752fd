"""`OmniGraph.check(integrity=True)`: what breaks the rules of a graph, and checks of branches."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from omnigraph_spark import OmniGraph
from tests.support import ruled
from tests.support.branches import make
from tests.support.ruled import KNOWS, PERSON, WORKS, edge, save


@pytest.fixture
def graph(spark: SparkSession, tmp_path: Path) -> OmniGraph:
    ruled.ruled_graph(tmp_path / "graph")
    return OmniGraph.for_path(spark, str(tmp_path / "graph"))


def _found(graph: OmniGraph, branch: str = "main") -> list[tuple[object, ...]]:
    return [tuple(row) for row in graph.check(integrity=True, branch=branch).collect()]


@pytest.mark.long
def test_every_broken_rule_is_counted_with_samples_on_the_branch_that_breaks_it(
    graph: OmniGraph,
) -> None:
    storage = graph._store()
    make(storage, "dev")
    people: list[Any] = [
        {"id": "a"},
        {"id": "n1", "email": "x@y", "age": 999},
        {"id": "n2", "email": "x@y", "age": -1},
        {"id": "n3", "first": "f", "last": "l", "size": float("nan")},
        {"id": "n4", "first": "f", "last": "l"},
        {"id": "n5", "first": "no name!"},
    ]
    works = [edge("b", "acme"), edge("b", "acme"), edge("b", "acme", since=1)]
    save(
        storage,
        {
            PERSON: people,
            KNOWS: [edge("a", "nobody"), edge("nobody", "a"), edge("nowhere", "b")],
            WORKS: works,
        },
        integrity="off",
        branch="dev",
    )
    assert _found(graph, "dev") == [
        (KNOWS, "endpoints exist", "dst", 1, ["nobody"]),
        (KNOWS, "endpoints exist", "src", 2, ["nobody", "nowhere"]),
        (WORKS, "card", "src", 3, ["b"]),
        (WORKS, "range", "since", 1, ["1"]),
        (PERSON, "check", "first", 1, ["no name!"]),
        (PERSON, "range", "age", 2, ["-1", "999"]),
        (PERSON, "range", "size", 1, ["NaN"]),
        (PERSON, "unique", "email", 2, ["x@y"]),
        (PERSON, "unique", "first, last", 2, ['["f","l"]']),
        (PERSON, "unique id", "id", 2, ["a"]),
    ]
    assert _found(graph) == []
    assert graph.check() == []


@pytest.mark.long
def test_many_broken_rows_are_counted_and_ten_are_shown(graph: OmniGraph) -> None:
    storage = graph._store()
    rows = [{"id": f"n{number:03}", "age": 500 + number} for number in range(100)]
    save(storage, {PERSON: rows[:50]}, {PERSON: rows[50:]}, integrity="off")
    frame = graph.check(integrity=True)
    assert frame.columns == ["table_key", "rule", "column", "count", "samples"]
    (found,) = frame.collect()
    assert tuple(found)[:4] == (PERSON, "range", "age", 100)
    assert found["samples"] == [str(number) for number in range(500, 510)]
