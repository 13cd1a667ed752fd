"""The schema files of engine 0.9: version 2 of the IR, with ids, and the state with two hashes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from omnigraph_spark.errors import CorruptManifestError, UnsupportedError
from omnigraph_spark.schema import ir2, shape
from omnigraph_spark.schema.files import read_ir
from omnigraph_spark.schema.ir2 import Renamed
from omnigraph_spark.schema.ir_reader import parse_ir
from omnigraph_spark.schema.pg import parse_pg, render_schema
from omnigraph_spark.storage.layout import Identity
from omnigraph_spark.storage.store import Storage
from tests.support import graphs

OF_VERSION_2 = ("social", "rich", "constraints")
DOMAIN = "01M8JHAD24TJMGQXM0N5YS2KP4"
PEOPLE = """\
node Person {
    name: String @key
    age: I32?
}
edge Knows: Person -> Person {
    since: Date?
}
"""


@pytest.fixture(params=OF_VERSION_2)
def files(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, str, str]:
    root = graphs.unpack("v6", request.param, tmp_path)
    names = ("_schema.pg", "_schema.ir.json", "__schema_state.json")
    pg, ir_text, state = ((root / name).read_text("utf-8") for name in names)
    return pg, ir_text, state


def test_the_ir_made_from_the_text_and_the_ir_that_is_there_is_the_engines_byte_for_byte(
    files: tuple[str, str, str],
) -> None:
    pg, ir_text, state = files
    assert ir2.changed_ir(parse_pg(pg), ir_text) == ir_text
    assert ir2.state_json(ir_text) == state
    assert ir2.disagreement(parse_pg(pg), ir_text, state) is None


@pytest.mark.parametrize("graph", ["social", "constraints"])
def test_a_graph_that_was_never_changed_gets_the_ids_that_the_engine_gave(
    graph: str, tmp_path: Path
) -> None:
    root = graphs.unpack("v6", graph, tmp_path)
    ir_text = (root / "_schema.ir.json").read_text("utf-8")
    domain = json.loads(ir_text)["schema_identity_domain"]
    assert ir2.new_ir(parse_pg((root / "_schema.pg").read_text("utf-8")), domain) == ir_text


def test_what_is_read_from_an_ir_has_the_shape_that_was_written(
    files: tuple[str, str, str],
) -> None:
    pg, ir_text, _ = files
    wanted = shape.of_schema(parse_pg(pg))
    assert shape.of_schema(parse_ir(ir_text)) == wanted
    assert shape.of_schema(parse_pg(render_schema(parse_ir(ir_text)))) == wanted


def test_the_ir_is_read_where_the_state_vouches_for_it(tmp_path: Path) -> None:
    root = graphs.unpack("v6", "rich", tmp_path)
    told = read_ir(Storage.at(str(root)))
    assert told is not None
    assert sorted(told.nodes) == ["City", "Person", "Place", "Sample"]
    assert told.nodes["Sample"].key == "slug"
    state = root / "__schema_state.json"
    state.write_text(state.read_text().replace('"schema_ir_hash": "sha256:', '"schema_ir_hash": "'))
    assert read_ir(Storage.at(str(root))) is None


def test_new_types_get_ids_in_the_order_types_then_properties_then_tables() -> None:
    before = ir2.new_ir(parse_pg(PEOPLE), DOMAIN)
    assert ir2.table_ids(ir2.document(before)) == {
        "node:Person": Identity(1, 6),
        "edge:Knows": Identity(2, 7),
    }
    more = f"{PEOPLE}node B {{\n y: I64?\n x: I64?\n}}\nnode A\n{{\n}}\nedge Ab: A -> B\n"
    after = json.loads(ir2.changed_ir(parse_pg(more), before))
    a, b, _ = after["nodes"]
    ab, _ = after["edges"]
    assert [a["type_id"], b["type_id"], ab["type_id"]] == [8, 9, 10]
    assert [(p["name"], p["property_id"]) for p in b["properties"]] == [("x", 11), ("y", 12)]
    tables = [one["table_incarnation_id"] for one in (a, b, ab)]
    assert tables == [13, 14, 15]
    assert after["next_identity_id"] == 16


def test_ids_of_what_was_dropped_are_never_given_again() -> None:
    before = ir2.new_ir(parse_pg(PEOPLE), DOMAIN)
    without = ir2.changed_ir(parse_pg(PEOPLE.partition("edge")[0]), before)
    assert json.loads(without)["next_identity_id"] == 8
    again = ir2.document(ir2.changed_ir(parse_pg(PEOPLE), without))
    assert ir2.table_ids(again)["edge:Knows"] == Identity(8, 10)
    assert ir2.table_ids(again)["node:Person"] == Identity(1, 6)


@pytest.mark.parametrize("hinted", [True, False], ids=["rename_from", "renamed"])
def test_what_is_renamed_keeps_its_ids(hinted: bool) -> None:
    before = ir2.new_ir(parse_pg(PEOPLE), DOMAIN)
    text = PEOPLE.replace("edge Knows:", "edge Meets:").replace("age: I32?", "years: I32?")
    renamed = Renamed({"edge:Meets": "Knows"}, {("node:Person", "years"): "age"})
    if hinted:
        text = text.replace("-> Person {", '-> Person @rename_from("Knows") {')
        text = text.replace("years: I32?", 'years: I32? @rename_from("age")')
        renamed = Renamed()
    after = ir2.document(ir2.changed_ir(parse_pg(text), before, renamed))
    assert ir2.table_ids(after)["edge:Meets"] == Identity(2, 7)
    years = after["nodes"][0]["properties"][1]
    assert (years["name"], years["property_id"], years["annotations"]) == ("years", 3, [])
    assert after["next_identity_id"] == 8


def test_a_rename_of_what_is_not_there_is_refused() -> None:
    before = ir2.new_ir(parse_pg(PEOPLE), DOMAIN)
    text = PEOPLE.replace("edge Knows:", "edge Meets:")
    with pytest.raises(CorruptManifestError, match="renamed from Likes"):
        ir2.changed_ir(parse_pg(text), before, Renamed({"edge:Meets": "Likes"}))


def test_bounds_are_spelled_as_the_engine_spells_them() -> None:
    rules = "".join(
        f"@range(a, {low}..{high})\n"
        for low, high in (
            ("0.0000001", "1.0"),
            ("0.00001", "9999999999999998.0"),
            ("-0.000012345", "10000000000000000.0"),
        )
    )
    text = ir2.new_ir(parse_pg(f"node N {{\na: F64?\n{rules}}}"), DOMAIN)
    for number in ("1e-7", "0.00001", "-0.000012345", "9999999999999998.0", "1e+16", "1.0"):
        assert f'"Float": {number}' in text


def test_a_whole_bound_that_is_too_large_for_64_bits_is_a_float() -> None:
    text = ir2.new_ir(parse_pg("node N {\na: I64?\n@range(a, 1..9223372036854775808)\n}"), DOMAIN)
    assert '"Integer": 1' in text
    assert '"Float": 9.223372036854776e+18' in text


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"next_identity_id": 7}, "not below next_identity_id"),
        ({"next_identity_id": None}, "TypeError"),
        ({"nodes": [{}]}, "KeyError"),
    ],
)
def test_a_malformed_ir_is_refused(change: dict[str, Any], what: str) -> None:
    ir_text = ir2.new_ir(parse_pg(PEOPLE), DOMAIN)
    with pytest.raises(CorruptManifestError) as raised:
        ir2.document(json.dumps({**json.loads(ir_text), **change}))
    assert what in str(raised.value.found)


def test_an_id_of_two_things_is_refused() -> None:
    ir_text = ir2.new_ir(parse_pg(PEOPLE), DOMAIN)
    with pytest.raises(CorruptManifestError, match="malformed"):
        ir2.document(ir_text.replace('"table_incarnation_id": 7', '"table_incarnation_id": 6'))


def test_an_ir_of_another_version_is_refused() -> None:
    ir_text = ir2.new_ir(parse_pg(PEOPLE), DOMAIN)
    for version in (1, 3):
        with pytest.raises(UnsupportedError):
            ir2.document(ir_text.replace('"ir_version": 2', f'"ir_version": {version}'))
    with pytest.raises(UnsupportedError, match="newer engine"):
        parse_ir(ir_text.replace('"ir_version": 2', '"ir_version": 3'))


@pytest.mark.parametrize(
    ("old", "new", "what"),
    [
        ("sha256:", "sha256:0", "schema_shape_hash"),
        ('"format_version": 2', '"format_version": 3', "format_version"),
        ('"schema_identity_version": 2', '"schema_identity_version": 1', "schema_identity_version"),
        (DOMAIN, DOMAIN[::-1], "schema_identity_domain"),
    ],
)
def test_files_that_contradict_each_other_are_found(old: str, new: str, what: str) -> None:
    schema = parse_pg(PEOPLE)
    ir_text = ir2.new_ir(schema, DOMAIN)
    state = ir2.state_json(ir_text)
    assert what in str(ir2.disagreement(schema, ir_text, state.replace(old, new, 1)))
    other = parse_pg(PEOPLE.replace("age: I32?", "age: I64?"))
    assert "another shape" in str(ir2.disagreement(other, ir_text, state))
