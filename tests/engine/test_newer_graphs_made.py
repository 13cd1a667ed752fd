"""Engine 0.9 works on with graphs that were made here, and after tables came and went."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from omnigraph_spark import _faults
from omnigraph_spark.schema_changes import properties
from omnigraph_spark.storage.store import Storage
from tests.format_checker import check_graph
from tests.support.engine import Engine, EngineRefusedError, knows, person
from tests.support.plain_writes import rows, save
from tests.support.writes import Died, die, once, write_options

DEATHS = (
    *("schema_lock.taken", "schema_apply.tables_made", "schema_apply.staged"),
    *("publish.after_merge", "schema_apply.published"),
)


@pytest.fixture
def root(tmp_path: Path) -> Iterator[Path]:
    """A graph of two tables that was made here."""
    place = tmp_path / "graph"
    frame = {"name": ["ann", "bo"], "age": [1, None]}
    save(str(place), frame, table="node:Person", keys="Person: name", graphFormat="6")
    edge = {"src": ["ann"], "dst": ["bo"]}
    save(str(place), edge, table="edge:Knows", endpoints="Knows: Person -> Person")
    yield place
    _faults.disarm()


def names(newer: Engine, root: Path, branch: str = "main") -> list[str]:
    return sorted(row["name"] for row in newer.export(root, branch).tables["node:Person"])


def apply(newer: Engine, root: Path, *changes: tuple[str, str]) -> None:
    text = (root / "_schema.pg").read_text("utf-8")
    for old, new in changes:
        text = text.replace(old, new, 1)
    path = root.parent / "changed.pg"
    path.write_text(text, "utf-8")
    newer.run("schema", "apply", "--schema", str(path), str(root))


def add_firm(root: Path) -> None:
    save(str(root), {"title": ["x"]}, table="node:Firm", keys="Firm: title")


def drop(root: Path, *tables: str) -> None:
    storage = Storage.at(str(root))
    properties.drop_table(storage, write_options(storage), tables)


def test_the_engine_reads_changes_loads_branches_merges_and_optimizes_a_graph_made_here(
    newer: Engine, root: Path
) -> None:
    assert names(newer, root) == ["ann", "bo"]
    assert newer.export(root).row_counts == {"node:Person": 2, "edge:Knows": 1}
    nick = "age: I64?\n    email: String?"
    apply(newer, root, ("age: I64?", nick), ("edge Knows", "node Town {\n}\n\nedge Knows"))
    lines = [person("cy", email="c@x"), {"type": "Town", "data": {"id": "t"}}, knows("cy", "ann")]
    newer.load(root, lines)
    newer.run("branch", "create", "--uri", str(root), "--from", "main", "dev")
    newer.load(root, [person("di")], branch="dev")
    newer.mutate(root, 'query q() { update Person set { age: 7 } where name = "ann" }')
    newer.run("branch", "merge", "--uri", str(root), "dev", "--into", "main")
    newer.run("optimize", str(root))
    assert names(newer, root) == ["ann", "bo", "cy", "di"]
    save(str(root), {"name": ["ed"], "email": ["e@x"]}, table="node:Person")
    found = rows(str(root), "node:Person", "name", "age", "email")
    assert found[0] == ("ann", 7, None)
    assert found[-1] == ("ed", None, "e@x")
    assert check_graph(str(root)) == []
    assert names(newer, root) == ["ann", "bo", "cy", "di", "ed"]


def test_the_engine_works_on_after_tables_were_added_dropped_and_added_again(
    newer: Engine, root: Path
) -> None:
    add_firm(root)
    newer.load(root, [{"type": "Firm", "data": {"title": "y"}}, person("cy")])
    assert newer.export(root).row_counts == {"node:Person": 3, "node:Firm": 2, "edge:Knows": 1}
    drop(root, "node:Firm", "edge:Knows")
    assert newer.export(root).row_counts == {"node:Person": 3}
    newer.load(root, [person("di")])
    apply(newer, root, ("node Person", "node Firm {\n    n: I32?\n}\n\nnode Person"))
    newer.load(root, [{"type": "Firm", "data": {"id": "f", "n": 3}}])
    assert rows(str(root), "node:Firm", "id", "n") == [("f", 3)]
    drop(root, "node:Firm")
    add_firm(root)
    assert check_graph(str(root)) == []
    assert newer.export(root).tables["node:Firm"] == [{"id": "x", "title": "x"}]
    assert len(newer.commits(root)) >= 8


@pytest.mark.parametrize("point", DEATHS)
def test_wherever_a_change_dies_the_engine_opens_the_graph_and_loads_after_our_next_write(
    newer: Engine, root: Path, point: str
) -> None:
    _faults.arm(point, once(die))
    with contextlib.suppress(Died):
        add_firm(root)
        raise AssertionError(f"{point} was not reached")
    _faults.disarm()
    assert names(newer, root) == ["ann", "bo"]
    with pytest.raises(EngineRefusedError):
        newer.load(root, [person("no")])  # the lock is there
    save(str(root), {"name": ["cy"]}, table="node:Person")
    newer.load(root, [person("di")])
    assert names(newer, root) == ["ann", "bo", "cy", "di"]
    add_firm(root)
    assert newer.export(root).tables["node:Firm"] == [{"id": "x", "title": "x"}]
    assert check_graph(str(root)) == []
