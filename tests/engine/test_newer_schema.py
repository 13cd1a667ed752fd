"""The schema files that engine 0.9 writes are those that this connector would write."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from omnigraph_spark.schema import ir2
from omnigraph_spark.schema.pg import parse_pg
from tests.support import programs
from tests.support.engine import Engine

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
