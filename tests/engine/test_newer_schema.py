"""The schema files that engine 0.9 writes are those that this connector would write, and its own.

Properties that are added, dropped, renamed and altered here are those of the engine afterwards: it
reads and loads them, its update leaves the other values where they were, and it changes the schema
on from there; then we do.
"""

from __future__ import annotations

import contextlib
import json
import random
from collections.abc import Callable, Iterator
from datetime import date
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from omnigraph_spark import _faults
from omnigraph_spark.maintenance.check import check
from omnigraph_spark.maintenance.repair import repair
from omnigraph_spark.manifest.snapshot import load
from omnigraph_spark.schema import ir2
from omnigraph_spark.schema.pg import parse_pg
from omnigraph_spark.schema_changes import properties
from omnigraph_spark.storage.store import Storage
from tests.engine.test_newer_writes import agree
from tests.format_checker import check_graph
from tests.support import plain_writes, programs
from tests.support.engine import Engine, EngineRefusedError
from tests.support.writes import Died, die, once, write_options

SCALARS = ("String", "Bool", "I32", "I64", "U32", "U64", "F32", "F64", "Date", "DateTime")
WORDS = ("age", "b", "code", "d_1", "eMail", "f", "grade", "hue", "_i", "jot")


@pytest.fixture(scope="module")
def engine() -> Engine:
    """Engine 0.9; without it these tests are skipped."""
    return programs.engine_or_skip(programs.NEWER)


@pytest.mark.parametrize("seed", range(12))
def test_random_schemas_and_their_changes_get_the_ids_and_hashes_of_the_engine(
    engine: Engine, seed: int, tmp_path: Path
) -> None:
    rng = random.Random(seed)
    root = tmp_path / "graph"
    text = _text(tmp_path, rng, nodes=rng.randint(1, 4), edges=rng.randint(0, 3))
    engine.run("init", "--schema", str(tmp_path / "s.pg"), str(root))
    ir_text = (root / "_schema.ir.json").read_text("utf-8")
    domain = json.loads(ir_text)["schema_identity_domain"]
    assert ir2.new_ir(parse_pg(text), domain) == ir_text
    assert ir2.state_json(ir_text) == (root / "__schema_state.json").read_text("utf-8")

    more = _changed(text, rng)
    (tmp_path / "s.pg").write_text(more, "utf-8")
    engine.run("schema", "apply", "--schema", str(tmp_path / "s.pg"), str(root))
    assert ir2.changed_ir(parse_pg(more), ir_text) == (root / "_schema.ir.json").read_text("utf-8")


def _text(folder: Path, rng: random.Random, nodes: int, edges: int) -> str:
    """Write and return a schema: interfaces, keys, rules, annotations, every scalar type."""
    parts = ["interface Named {\n    label: String\n    seen: DateTime? @index\n}"]
    names = rng.sample(["Person", "Firm", "Town", "Zone", "Ax"], nodes)
    for name in names:
        implements = " implements Named" if rng.random() < 0.4 else ""
        own = ["    label: String"] if implements and rng.random() < 0.3 else []
        parts.append(f"node {name}{implements} {{\n{_body(rng, own, key=True)}}}")
    for number in range(edges):
        card = rng.choice(["", " @card(0..3)"])
        ends = f"{rng.choice(names)} -> {rng.choice(names)}"
        body = _body(rng, [], key=False)
        parts.append(
            f"edge E{number}: {ends}{card} {{\n{body}}}" if body else f"edge E{number}: {ends}"
        )
    text = "\n".join(parts) + "\n"
    (folder / "s.pg").write_text(text, "utf-8")
    return text


def _body(rng: random.Random, lines: list[str], key: bool) -> str:
    chosen = rng.sample(WORDS, rng.randint(0, 5))
    types = {name: rng.choice(SCALARS) for name in chosen}
    for name, scalar in types.items():
        kind = (
            rng.choice([scalar, f"[{scalar}]", "enum(z, b-1, a)"]) if rng.random() < 0.3 else scalar
        )
        plain = kind == scalar
        ruled = plain and key  # on edges the engine knows no ranges and checks
        marks = rng.choice(["", "", " @index", " @unique"]) if plain else ""
        said = rng.choice(["", "", ' @description("say \\"hé\\" \\\\ \\n")'])
        lines.append(f"    {name}: {kind}?{marks}{said}")
        if ruled and scalar in ("I32", "I64") and rng.random() < 0.5:
            lines.append(f"    @range({name}, -{rng.randint(1, 9)}..{rng.randint(1, 99)})")
        if ruled and scalar == "F64" and rng.random() < 0.5:
            lines.append(
                f"    @range({name}, 0.00001..{rng.choice(['1.5', '20000000000000000.0'])})"
            )
        if ruled and scalar == "String" and rng.random() < 0.5:
            lines.append(f'    @check({name}, "^[a-z]+\\\\d")')
    if key and rng.random() < 0.8:
        lines.append(f"    slug: {rng.choice(['String', 'I64', 'Date'])} @key")
    if not key and rng.random() < 0.3:
        lines.append("    @unique(src, dst)")
    rng.shuffle(lines)
    return "".join(f"{line}\n" for line in lines)


def _changed(text: str, rng: random.Random) -> str:
    """Return a text with a renamed type, a new property and new types."""
    lines = text.splitlines()
    heads = [n for n, line in enumerate(lines) if line.startswith("node ")]
    at = rng.choice(heads)
    old = lines[at].split()[1]
    lines[at] = lines[at].replace(f"node {old}", f'node New{old} @rename_from("{old}")')
    lines[at] = f"{lines[at]}\n    added: {rng.choice(SCALARS)}?"
    for number, line in enumerate(lines):
        if line.startswith("edge "):
            head, arrow, target = line.partition(" -> ")
            name, colon, source = head.partition(": ")
            target = " ".join(f"New{w}" if w == old else w for w in target.split(" "))
            source = f"New{old}" if source == old else source
            lines[number] = f"{name}{colon}{source}{arrow}{target}"
    lines.append("node Brand {\n    z: String?\n    a: I64?\n}")
    lines.append(f"edge Is: New{old} -> Brand {{\n    w: F64?\n}}")
    return "\n".join(lines) + "\n"


# --- properties that change here -------------------------------------------------------------------

SCHEMA = """
node Person {
    name: String @key
    age: I32
    zip: String? @index
    bio: String?
    photo: Blob?
    vec: Vector(2)?
    day: Date?
    @range(age, 0..150)
}
edge Knows: Person -> Person {
    why: String?
    how: String?
    w: F64?
}
"""
PEOPLE = (("ann", 1, "z1", "b1"), ("bo", 2, "z2", None), ("cy", 3, None, "b3"))


@pytest.fixture
def graph(engine: Engine, tmp_path: Path) -> Iterator[Storage]:
    """A graph of the engine's own, with values of many types in each row."""
    (tmp_path / "s.pg").write_text(SCHEMA, "utf-8")
    root = tmp_path / "g"
    engine.run("init", "--schema", str(tmp_path / "s.pg"), str(root))
    lines: list[dict[str, Any]] = [
        {
            "type": "Person",
            "data": {"name": name, "age": age, "zip": code, "bio": bio, "photo": "base64:AAEC"}
            | {"vec": [age, -age], "day": "2020-01-02"},
        }
        for name, age, code, bio in PEOPLE
    ]
    lines += [
        {"edge": "Knows", "from": "ann", "to": "bo", "data": {"why": "w", "how": "h", "w": 0.5}},
        {"edge": "Knows", "from": "bo", "to": "cy", "data": {"how": "i"}},
    ]
    engine.load(root, lines)
    yield Storage.at(str(root))
    _faults.disarm()


def _call(change: Callable[..., Any], *arguments: Any) -> Callable[[Storage], Any]:
    return lambda graph: change(graph, write_options(graph), *arguments)


def _save(graph: Storage, **options: Any) -> None:
    rows = {"name": ["ann", "di"], "age": pa.array([1, 4], pa.int32()), "mail": ["m1", "m4"]}
    more = {"aa": [1.5, None], "zz": [[1], [2, 3]]}
    plain_writes.save(graph.root, {**rows, **more}, table="node:Person", **options)


def _merge_schema(graph: Storage) -> None:
    _save(graph, mergeSchema="true", writeMode="merge")


def _overwrite(graph: Storage) -> None:
    rows = {"name": ["ann", "bo", "cy"], "age": pa.array([1, 2, 3], pa.int32()), "mail": ["m"] * 3}
    plain_writes.save(
        graph.root, rows, table="node:Person", overwrite=True, mergeSchema="true", integrity="off"
    )


def _append_edges(graph: Storage) -> None:
    rows = {"src": ["ann"], "dst": ["cy"], "at": [7], "zest": ["z"]}
    plain_writes.save(graph.root, rows, table="edge:Knows", mergeSchema="true")


def _many(graph: Storage) -> None:
    for number, kind in enumerate(SCALARS):
        _call(properties.add_property, "Person", f"{'azm'[number % 3]}_{kind.lower()}", f"{kind}?")(
            graph
        )
    _call(properties.drop_property, "Person", "bio")(graph)
    _call(properties.rename_property, "Person", "z_bool", "a_bool")(graph)


def _dropped_and_added(graph: Storage) -> None:
    _call(properties.drop_property, "Person", "bio")(graph)
    _call(properties.add_property, "Person", "bio", "String?")(graph)


CHANGES: dict[str, Callable[[Storage], Any]] = {
    "add first": _call(properties.add_property, "Person", "aa", "String?"),
    "add between": _call(properties.add_property, "Person", "mail", "String?"),
    "add last": _call(properties.add_property, "Person", "zz", "I64?"),
    "add enum": _call(properties.add_property, "Person", "hue", "enum(red, blue)?"),
    "add list": _call(properties.add_property, "Person", "list", "[String]?"),
    "add vector": _call(properties.add_property, "Person", "uvec", "Vector(3)?"),
    "add blob": _call(properties.add_property, "Person", "logo", "Blob?"),
    "add to edges": _call(properties.add_property, "Knows", "at", "DateTime?"),
    "drop": _call(properties.drop_property, "Person", "bio"),
    "drop indexed": _call(properties.drop_property, "Person", "zip"),
    "drop blob": _call(properties.drop_property, "Person", "photo"),
    "drop of edges": _call(properties.drop_property, "Knows", "how"),
    "rename in place": _call(properties.rename_property, "Person", "zip", "zip_code"),
    "rename to first": _call(properties.rename_property, "Person", "zip", "a_code"),
    "rename to last": _call(properties.rename_property, "Person", "age", "years"),
    "rename blob": _call(properties.rename_property, "Person", "photo", "z_photo"),
    "rename of edges": _call(properties.rename_property, "Knows", "how", "zow"),
    "relax": _call(properties.alter_property, "Person", "age", True),
    "widen": _call(properties.widen_property, "Person", "age", "I64"),
    "mergeSchema upsert": _merge_schema,
    "mergeSchema overwrite": _overwrite,
    "mergeSchema of edges": _append_edges,
    "drop and add": _dropped_and_added,
    "many": _many,
}
_DAY = date(2021, 3, 4)
SAMPLE = ("add first", "drop indexed", "rename to first", "widen", "mergeSchema upsert")


def _sampled(names: Any) -> list[Any]:
    return [
        pytest.param(name, marks=pytest.mark.sample if name in SAMPLE else ()) for name in names
    ]


def _rows(graph: Storage, table: str) -> list[dict[str, Any]]:
    entry = load(graph).entry(table)
    dataset = graph.dataset(entry.location, None, entry.table_version)
    names = [f.name for f in dataset.schema if "blob" not in str(f.type) and f.name != "logo"]
    names = [name for name in names if "photo" not in name]
    found: list[dict[str, Any]] = dataset.to_table(columns=names).sort_by("id").to_pylist()
    return found


def _goes_on(engine: Engine, graph: Storage) -> None:
    """Let the engine read, update, load, delete, maintain and change the graph; then we do."""
    root = Path(graph.root)
    agree(engine, graph)
    before = _rows(graph, "node:Person")
    engine.mutate(
        root, 'query q() { update Person set { day: date("2021-03-04") } where name = "ann" }'
    )
    wanted = [{**row, "day": _DAY} if row["name"] == "ann" else row for row in before]
    assert _rows(graph, "node:Person") == wanted, "an update moved values"
    edges = _rows(graph, "edge:Knows")
    text = (root / "_schema.pg").read_text("utf-8")
    aged = next((n for n in ("age", "years") if f" {n}:" in text), None)
    line = {"type": "Person", "data": {"name": "new", str(aged): 7}}
    edge = {"edge": "Knows", "from": "new", "to": "ann", "data": {"w": 2.5}}
    engine.load(root, [line, edge])
    assert [r for r in _rows(graph, "node:Person") if r["name"] != "new"] == wanted
    assert [r for r in _rows(graph, "edge:Knows") if r["src"] != "new"] == edges
    agree(engine, graph)
    engine.run("optimize", str(root))
    agree(engine, graph)
    changed = text.replace("    day: Date?", "    day: Date?\n    cc: String?\n    zzz: I64?")
    (root.parent / "next.pg").write_text(changed, "utf-8")
    engine.run("schema", "apply", "--schema", str(root.parent / "next.pg"), str(root))
    agree(engine, graph)
    _call(properties.add_property, "Person", "bb", "String?")(graph)
    _call(properties.rename_property, "Person", "cc", "zzzz")(graph)
    plain_writes.save(
        graph.root,
        {"name": ["bo"], "bb": ["x"], "zzzz": ["y"]},
        table="node:Person",
        writeMode="merge",
    )
    engine.mutate(root, 'query q() { update Person set { zzz: 5 } where name = "bo" }')
    (bo,) = (row for row in _rows(graph, "node:Person") if row["name"] == "bo")
    (old,) = (row for row in wanted if row["name"] == "bo")
    assert bo == {**old, "bb": "x", "zzzz": "y", "zzz": 5}
    engine.mutate(root, 'query q() { delete Person where name = "new" }')
    agree(engine, graph)
    assert check(graph) == []
    assert check_graph(graph.root, moved=True) == []


@pytest.mark.parametrize("what", _sampled(CHANGES))
def test_the_engine_goes_on_after_properties_changed_here(
    engine: Engine, graph: Storage, what: str
) -> None:
    before = _rows(graph, "node:Person")
    CHANGES[what](graph)
    kept = [name for name in before[0] if name in _rows(graph, "node:Person")[0]]
    if not what.startswith("mergeSchema"):
        after = [{name: row[name] for name in kept} for row in _rows(graph, "node:Person")]
        assert after == [
            {n: None if what == "drop and add" and n == "bio" else row[n] for n in kept}
            for row in before
        ]
    _goes_on(engine, graph)


@pytest.mark.parametrize("what", ["add first", "rename to first"])
def test_a_branch_of_the_engines_goes_on_with_properties_that_changed_here(
    engine: Engine, graph: Storage, what: str
) -> None:
    CHANGES[what](graph)
    root = Path(graph.root)
    engine.run("branch", "create", "--uri", str(root), "dev")
    engine.mutate(root, 'query q() { update Person set { bio: "B" } where name = "ann" }', "dev")
    engine.run("branch", "merge", "--uri", str(root), "dev", "--into", "main")
    assert _rows(graph, "node:Person")[0]["bio"] == "B"
    engine.run("branch", "delete", "--uri", str(root), "dev")
    _goes_on(engine, graph)
    rows = _rows(graph, "node:Person")
    engine.run("cleanup", str(root), "--keep", "1", "--confirm", "--json")
    assert _rows(graph, "node:Person") == rows


BEFORE = (
    *("schema_lock.taken", "table.landed", "schema_apply.tables_made", "schema_apply.recorded"),
    *("schema_apply.file_staged", "schema_apply.staged", "publish.sending"),
)
AFTER = ("publish.landed", "schema_apply.published", "schema_apply.file_put")


@pytest.mark.parametrize("point", [*BEFORE, *AFTER])
@pytest.mark.parametrize("first", ["engine", "we"])
def test_wherever_a_change_of_properties_dies_the_engine_and_we_go_on(
    engine: Engine, graph: Storage, point: str, first: str
) -> None:
    """The engine's next command finishes or undoes it, or our next write; the other agrees."""
    root = Path(graph.root)
    _faults.arm(point, once(die))
    with contextlib.suppress(Died):
        CHANGES["rename to first"](graph)
        raise AssertionError(f"{point} was not reached")
    _faults.disarm()
    if first == "engine":
        there = engine.export(root).tables["node:Person"]
        assert ("a_code" in there[0]) is (point in AFTER)
        with pytest.raises(EngineRefusedError):
            engine.load(root, [{"type": "Person", "data": {"name": "no", "age": 1}}])
    repair(graph, dry_run=False, grace_seconds=0.05)
    assert ("a_code" in _rows(graph, "node:Person")[0]) is (point in AFTER)
    _goes_on(engine, graph)


def test_the_engines_commands_beside_a_change_of_properties_break_nothing(
    engine: Engine, graph: Storage
) -> None:
    """Each of them takes the change for one that died, at every step of it."""
    root = Path(graph.root)
    ran: list[str] = []

    def command() -> None:
        with contextlib.suppress(EngineRefusedError):
            engine.export(root)
        ran.append("")

    points = (*BEFORE, *AFTER)
    for number, point in enumerate(points):
        _faults.arm(point, once(command))
        _call(properties.add_property, "Person", f"a{number}", "String?")(graph)
        _faults.disarm()
        agree(engine, graph)
        assert f"a{number}" in _rows(graph, "node:Person")[0]
    assert len(ran) == len(points)
    _goes_on(engine, graph)
