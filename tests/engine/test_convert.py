"""A graph that was converted is, to the engine of the other generation, the same graph."""

from __future__ import annotations

import datetime
import json
import random
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from omnigraph_spark import OmniGraph
from tests.format_checker import check_graph
from tests.support import graphs
from tests.support.engine import Engine, Line, knows, person
from tests.support.graphs import Export

# Of the others the older form has not the keys (`v6/constraints`).
TO_TODAY = [("v1", "social"), ("v1", "pharma"), ("v2", "social"), ("v2", "rich"), ("v2", "evolved"),
            ("v3", "social"), ("v4", "social")]  # fmt: skip
TO_OLDER = [("v4", "social"), ("v6", "social"), ("v6", "rich"), ("newer", "social")]


def plain(found: Export) -> dict[str, list[str]]:
    """Return an export's rows as sorted texts; points in time as milliseconds, as 0.9 has them."""
    return {
        key: sorted(
            json.dumps({k: _instant(v) for k, v in row.items()}, sort_keys=True) for row in rows
        )
        for key, rows in found.tables.items()
        if rows
    }


def _instant(value: Any) -> Any:
    if not isinstance(value, str) or "T" not in value:
        return value
    try:
        at = datetime.datetime.fromisoformat(value.removesuffix("Z"))
    except ValueError:
        return value
    since = at - datetime.datetime(1970, 1, 1)
    return since // datetime.timedelta(milliseconds=1)


def convert(spark: SparkSession, source: Path, form: int) -> Path:
    made = source.parent / f"{source.name}-{form}"
    target = OmniGraph.for_path(spark, str(source)).convert(str(made), form)
    assert target.uri == str(made)
    assert check_graph(str(made)) == []
    return made


@pytest.mark.parametrize(("generation", "graph"), TO_TODAY)
def test_todays_engine_exports_from_a_converted_graph_what_the_older_one_exported(
    newer: Engine, spark: SparkSession, generation: str, graph: str, tmp_path: Path
) -> None:
    source = graphs.unpack(generation, graph, tmp_path)
    made = convert(spark, source, 6)
    assert plain(newer.export(made)) == plain(graphs.export_of(generation, graph))
    assert (made / "_schema.pg").read_bytes() == (source / "_schema.pg").read_bytes()


@pytest.mark.parametrize(("generation", "graph"), TO_OLDER)
def test_the_older_engine_exports_from_a_converted_graph_what_todays_exported(
    engine: Engine, spark: SparkSession, generation: str, graph: str, tmp_path: Path
) -> None:
    source = graphs.unpack(generation, graph, tmp_path)
    made = convert(spark, source, 2)
    assert plain(engine.export(made)) == plain(graphs.export_of(generation, graph))
    assert (made / "_schema.pg").read_bytes() == (source / "_schema.pg").read_bytes()


@pytest.mark.parametrize("seed", range(10))
def test_random_graphs_export_the_same_there_and_back(
    engine: Engine, newer: Engine, spark: SparkSession, seed: int, tmp_path: Path
) -> None:
    rng = random.Random(seed)
    root = tmp_path / "graph"
    text, lines = _random_graph(rng)
    (tmp_path / "s.pg").write_text(text, "utf-8")
    engine.run("init", "--schema", str(tmp_path / "s.pg"), str(root))
    if lines:
        engine.load(root, lines)
    wanted = plain(engine.export(root))
    there = convert(spark, root, 6)
    assert plain(newer.export(there)) == wanted
    back = convert(spark, there, 2)
    assert plain(engine.export(back)) == wanted


def test_todays_engine_works_on_with_a_converted_graph_and_holds_to_its_rules(
    newer: Engine, spark: SparkSession, tmp_path: Path
) -> None:
    made = convert(spark, graphs.unpack("v2", "social", tmp_path), 6)
    newer.load(made, [person("zoe", age=9), knows("zoe", "zoe")])
    newer.run("branch", "create", "--uri", str(made), "--from", "main", "dev")
    newer.load(made, [person("yan")], branch="dev")
    newer.run("branch", "merge", "--uri", str(made), "dev", "--into", "main")
    found = {row["name"] for row in newer.export(made).tables["node:Person"]}
    assert {"zoe", "yan"} <= found
    assert check_graph(str(made)) == []


SCALARS = {
    "String": lambda r: r.choice(["", "x", 'ünï "q"', "a" * 300]),
    "Bool": lambda r: r.random() < 0.5,
    "I32": lambda r: r.choice([0, -(2**31), 2**31 - 1]),
    "I64": lambda r: r.choice([0, -5, 2**53]),
    "U32": lambda r: r.choice([0, 2**32 - 1]),
    "F64": lambda r: r.choice([0.0, -1.5, 1e300]),
    "Date": lambda r: r.choice(["1900-01-01", "2024-02-29"]),
    "DateTime": lambda r: r.choice(["2024-02-29T12:00:00Z", "1969-07-20T20:17:40Z"]),
}


def _random_graph(rng: random.Random) -> tuple[str, list[Line]]:
    """Return a schema and rows: keyed and unkeyed nodes, edges, all types, nulls, empty tables."""
    nodes = rng.sample(["Ant", "Bee", "Cat"], rng.randint(1, 3))
    text, lines, ids = "", [], {}
    for name in nodes:
        columns = {f"p{n}": rng.choice(list(SCALARS)) for n in range(rng.randint(0, 5))}
        body = "".join(f"    {column}: {kind}?\n" for column, kind in columns.items())
        text += f"node {name} {{\n    slug: String @key\n{body}}}\n"
        ids[name] = [f"{name}-{n}" for n in range(rng.choice([0, 1, 7]))]
        for slug in ids[name]:
            row = {c: SCALARS[k](rng) for c, k in columns.items() if rng.random() < 0.7}
            lines.append({"type": name, "data": {"slug": slug, **row}})
    for number in range(rng.randint(0, 2)):
        source, target = rng.choice(nodes), rng.choice(nodes)
        text += f"edge E{number}: {source} -> {target} {{\n    w: F64?\n}}\n"
        for a in ids[source]:
            for b in ids[target]:
                if rng.random() < 0.4:
                    edge = {"edge": f"E{number}", "from": a, "to": b, "data": {"w": rng.random()}}
                    lines.append(edge)
    return text, lines
