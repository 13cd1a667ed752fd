"""The engine's schema as text: `_schema.pg` and the two JSON files, on what the engine wrote."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest

from omnigraph_spark.errors import (
    CorruptManifestError,
    OptionError,
    SchemaMismatchError,
    UnsupportedError,
)
from omnigraph_spark.schema import property_types
from omnigraph_spark.schema.ir import ir_hash, ir_json, state_hash, state_json
from omnigraph_spark.schema.ir_reader import parse_ir
from omnigraph_spark.schema.model import (
    Annotation,
    Constraint,
    EdgeType,
    EngineSchema,
    LeftOut,
    NodeType,
    Property,
    describe,
    of_arrow,
    same_definition,
    table_schema,
)
from omnigraph_spark.schema.pg import parse_pg, render_pg
from omnigraph_spark.storage import layout
from tests.support import graphs

OF_VERSION_1 = [one[:2] for one in graphs.ALL_GRAPHS if one[0] != "newer"]

EVERYTHING = """\
// A line comment, with a brace { in it
interface Named {
    name: String @index
    nick: String?
}
/* and a block
   of them */
node Person @description("a \\"person\\"") implements Named {
    id_number: String @key
    name: String @index  // declared again, as the interface has it
    tags: [String]?
    status: enum(on-hold, active, 2nd)
    vec: Vector( 4 )?
    level: I64
    @unique(name, status)
    @range(level, -1..200)
    @check(name, "^[a-z]{2,}\\\\d$")
}
edge Knows: Person -> Person @card(0..1) @note(plain) {
    since: Date?
    @index(src, since)
}
edge Likes: Person -> Person @card(1..)
"""


def described(type_text: str, name: str = "p") -> Property:
    return Property(name, property_types.parse(type_text))


# --- what the engine wrote ---------------------------------------------------------------------


@pytest.mark.parametrize(("generation", "graph"), OF_VERSION_1)
class TestFixtures:
    @pytest.fixture
    def root(self, generation: str, graph: str, tmp_path: Path) -> Path:
        return graphs.unpack(generation, graph, tmp_path)

    def test_the_ir_made_from_the_pg_text_is_the_engines_byte_for_byte(self, root: Path) -> None:
        schema = parse_pg((root / "_schema.pg").read_text("utf-8"))
        assert ir_json(schema) == (root / "_schema.ir.json").read_text("utf-8")

    def test_the_ir_made_from_the_parsed_ir_is_the_same_again(self, root: Path) -> None:
        text = (root / "_schema.ir.json").read_text("utf-8")
        assert ir_json(parse_ir(text)) == text

    def test_the_state_file_holds_the_hash_of_the_ir(self, root: Path) -> None:
        text = (root / "_schema.ir.json").read_text("utf-8")
        state = (root / "__schema_state.json").read_text("utf-8")
        assert state_hash(state) == ir_hash(text)
        assert state_json(text) == state

    def test_rendered_types_make_the_same_ir(self, root: Path) -> None:
        schema = parse_pg((root / "_schema.pg").read_text("utf-8"))
        again = parse_pg(render_pg(schema.types()))
        assert ir_json(again) == (root / "_schema.ir.json").read_text("utf-8")


def test_the_types_of_rich_are_what_its_tables_hold(tmp_path: Path) -> None:
    root = graphs.unpack("v2", "rich", tmp_path)
    sample = parse_pg((root / "_schema.pg").read_text("utf-8")).nodes["Sample"]
    assert sample.key == "slug"
    assert {one.name: one.type.text() for one in sample.properties} == {
        "slug": "String",
        "flag": "Bool?",
        "i32": "I32?",
        "i64": "I64?",
        "u32": "U32?",
        "u64": "U64?",
        "f32": "F32?",
        "f64": "F64?",
        "day": "Date?",
        "at": "DateTime?",
        "tags": "[String]?",
        "nums": "[I64]?",
        "vec": "Vector(4)?",
        "status": "enum(draft, active, retired)",
        "raw": "Blob?",
    }


def test_the_files_of_a_newer_graph_are_read_and_never_written_as_older_ones(
    tmp_path: Path,
) -> None:
    root = graphs.unpack("newer", "social", tmp_path)
    schema = parse_pg((root / "_schema.pg").read_text("utf-8"))
    assert sorted(schema.edges) == ["Knows", "WorksAt"]
    text = (root / "_schema.ir.json").read_text("utf-8")
    refusal = r"OMNIGRAPH_UNSUPPORTED\].*upgrade omnigraph first"
    assert sorted(parse_ir(text).edges) == ["Knows", "WorksAt"]
    with pytest.raises(UnsupportedError, match=refusal):
        parse_ir(text.replace('"ir_version": 2', '"ir_version": 3'))
    with pytest.raises(UnsupportedError, match=refusal):
        ir_json(schema, text)
    with pytest.raises(UnsupportedError, match=refusal):
        state_json("{}", (root / "__schema_state.json").read_text("utf-8"))


# --- _schema.pg --------------------------------------------------------------------------------


def test_everything_that_the_grammar_has_is_read() -> None:
    schema = parse_pg(EVERYTHING)
    person = schema.nodes["Person"]
    assert person.annotations == (Annotation("description", 'a "person"'),)
    assert person.implements == ("Named",)
    assert person.key == "id_number"
    assert [one.name for one in person.properties] == [
        "id_number",
        "name",
        "tags",
        "status",
        "vec",
        "level",
        "nick",
    ]
    assert person.rules == (
        Constraint("Unique", ("name", "status")),
        Constraint("Range", ("level",), (-1, 200)),
        Constraint("Check", ("name",), pattern="^[a-z]{2,}\\d$"),
    )
    assert schema.edges["Knows"] == EdgeType(
        "Knows",
        "Person",
        "Person",
        (described("Date?", "since"),),
        (0, 1),
        (Annotation("note", "plain"),),
        (Constraint("Index", ("src", "since")),),
    )
    assert schema.edges["Likes"].cardinality == (1, None)


def test_the_ir_has_rules_sorted_by_kind_and_columns_and_enums_sorted() -> None:
    document = json.loads(ir_json(parse_pg(EVERYTHING)))
    person = document["nodes"][0]
    assert person["constraints"] == [
        {"Check": {"property": "name", "pattern": "^[a-z]{2,}\\d$"}},
        {"Index": ["name"]},
        {"Key": ["id_number"]},
        {"Range": {"property": "level", "min": {"Integer": -1}, "max": {"Integer": 200}}},
        {"Unique": ["name", "status"]},
    ]
    assert [one["name"] for one in person["properties"]] == sorted(
        one["name"] for one in person["properties"]
    )
    status = next(one for one in person["properties"] if one["name"] == "status")
    assert status["prop_type"]["enum_values"] == ["2nd", "active", "on-hold"]
    named = document["interfaces"][0]
    assert named["type_id"] == layout.fnv1a32("interface:Named")
    assert named["properties"][0]["prop_id"] == layout.fnv1a32("interface:Named:name")
    assert document["edges"][0]["cardinality"] == {"min": 0, "max": 1}


def test_the_ir_of_everything_is_read_back_to_the_same_ir() -> None:
    text = ir_json(parse_pg(EVERYTHING))
    assert ir_json(parse_ir(text)) == text


def test_an_annotation_with_a_keyword_argument_keeps_it() -> None:
    schema = parse_pg('node A {\n  text: String\n  v: Vector(2) @embed("text", model="m")\n}')
    annotation = Annotation("embed", "text", (("model", "m"),))
    assert schema.nodes["A"].properties[1].annotations == (annotation,)
    prop = json.loads(ir_json(schema))["nodes"][0]["properties"][1]
    assert prop["annotations"] == [{"name": "embed", "value": "text", "kwargs": {"model": "m"}}]
    assert parse_pg(render_pg(schema.types())) == schema


def test_an_interface_gives_its_index_only_to_types_that_lack_the_property() -> None:
    schema = parse_pg(
        "interface I { p: String @index }\n"
        "node Has implements I { p: String }\n"
        "node Lacks implements I { }"
    )
    assert schema.nodes["Has"].constraints() == ()
    assert schema.nodes["Lacks"].constraints() == (Constraint("Index", ("p",)),)


def test_a_lone_upper_bound_is_read_as_the_engine_reads_it() -> None:
    schema = parse_pg("node A { n: F64 @range(n, ..2.5) }".replace("@range", "\n@range"))
    assert schema.nodes["A"].rules == (Constraint("Range", ("n",), (2.5, None)),)
    rule = json.loads(ir_json(schema))["nodes"][0]["constraints"][0]
    assert rule == {"Range": {"property": "n", "min": {"Float": 2.5}, "max": None}}


def test_an_empty_text_is_a_schema_without_types() -> None:
    assert parse_pg(" \n// nothing\n") == EngineSchema()


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("node Person {\n  name String\n}", 2),
        ("node Person {\n  name: Text\n}", 2),
        ("node Person {\n  name: String\n", 3),
        ("node Person { }\nedge Knows Person -> Person", 2),
        ("view Person { }", 1),
        ("node Person { }\nnode Person { }", 2),
        ("node A { p: String\np: I32 }", 2),
        ("node A implements Nothing { }", 1),
        ("node A { p: enum() }", 1),
        ('node A {\n @check(p, "open)\n}', 2),
    ],
)
def test_a_text_that_cannot_be_read_is_refused_with_its_line(text: str, line: int) -> None:
    with pytest.raises(
        CorruptManifestError,
        match=rf"OMNIGRAPH_CORRUPT_MANIFEST\] _schema.pg can't be read at line {line} ",
    ):
        parse_pg(text)


def test_types_are_rendered_in_the_engines_form() -> None:
    node = NodeType("Person", "name", (described("String", "name"), described("[I64]?", "nums")))
    edges = [
        EdgeType("Knows", "Person", "Person", (described("enum(a, b)", "kind"),)),
        EdgeType("Likes", "Person", "Person"),
    ]
    assert render_pg([node, *edges]) == (
        "node Person {\n    name: String @key\n    nums: [I64]?\n}\n"
        "edge Knows: Person -> Person {\n    kind: enum(a, b)\n}\n"
        "edge Likes: Person -> Person\n"
    )


def test_texts_in_annotations_survive_quoting() -> None:
    value = 'a "quoted"\\ text\nof\ttwo lines'
    node = NodeType("A", None, (described("String"),), (Annotation("description", value),))
    assert parse_pg(render_pg([node])).nodes["A"].annotations == (Annotation("description", value),)


# --- ids and kept keys -------------------------------------------------------------------------


def test_ids_are_hashes_of_kind_and_names() -> None:
    schema = EngineSchema.of([NodeType("Person", None, (described("I32", "age"),))])
    person = json.loads(ir_json(schema))["nodes"][0]
    assert (person["type_id"], person["properties"][0]["prop_id"]) == (3227219152, 3446138241)


def test_two_names_with_one_id_are_refused() -> None:
    seen: dict[int, str] = {}
    pair: tuple[str, str] | None = None
    for number in range(400_000):
        name = f"p{number}"
        other = seen.setdefault(layout.fnv1a32(f"node:A:{name}"), name)
        if other != name:
            pair = (other, name)
            break
    assert pair is not None
    schema = EngineSchema.of([NodeType("A", None, tuple(described("I32", p) for p in pair))])
    with pytest.raises(SchemaMismatchError, match=r"OMNIGRAPH_SCHEMA_MISMATCH\].*the same id"):
        ir_json(schema)


def test_keys_that_this_version_does_not_know_stay_where_types_are_added() -> None:
    old = parse_pg("node A { p: String }")
    document = json.loads(ir_json(old))
    document["comment"] = "kept"
    document["nodes"][0]["hint"] = {"also": "kept"}
    both = parse_pg("node A { p: String }\nnode B { q: I32? }")
    merged = json.loads(ir_json(both, json.dumps(document)))
    assert merged["comment"] == "kept"
    assert [one["name"] for one in merged["nodes"]] == ["A", "B"]
    assert merged["nodes"][0] == document["nodes"][0]


def test_the_entry_of_a_type_whose_columns_changed_is_made_again() -> None:
    document = json.loads(ir_json(parse_pg("node A { p: String }")))
    document["nodes"][0]["hint"] = "stale"
    changed = parse_pg("node A { p: String\nq: I32? }")
    assert ir_json(changed, json.dumps(document)) == ir_json(changed)


def test_an_entry_whose_rules_alone_differ_stays_as_the_engine_wrote_it() -> None:
    theirs = ir_json(parse_pg("node A { p: String @index }"))
    assert ir_json(parse_pg("node A { p: String }"), theirs) == theirs


def test_an_entry_whose_key_differs_is_made_again() -> None:
    theirs = ir_json(parse_pg("node A { p: String @key }"))
    ours = parse_pg("node A { p: String }")
    assert ir_json(ours, theirs) == ir_json(ours)


def test_the_entry_of_a_type_that_is_gone_goes() -> None:
    there = ir_json(parse_pg("node A { }\nnode B { }"))
    assert ir_json(parse_pg("node A { }"), there) == ir_json(parse_pg("node A { }"))


@pytest.mark.parametrize("existing", ["", "[]", "{", "null"])
def test_json_files_that_are_none_are_made_again(existing: str) -> None:
    schema = parse_pg("node A { }")
    assert ir_json(schema, existing) == ir_json(schema)
    assert state_json(ir_json(schema), existing) == state_json(ir_json(schema))


def test_a_state_file_keeps_keys_that_this_version_does_not_know() -> None:
    text = ir_json(parse_pg("node A { }"))
    state = json.loads(state_json(text, '{"format_version": 1, "note": "kept"}'))
    assert state == {
        "format_version": 1,
        "note": "kept",
        "schema_ir_hash": ir_hash(text),
        "schema_identity_version": 1,
    }


@pytest.mark.parametrize("text", ["[]", "{}", '{"ir_version": 1, "nodes": [{"name": "A"}]}'])
def test_an_ir_that_is_malformed_is_a_typed_error(text: str) -> None:
    with pytest.raises(CorruptManifestError, match=r"OMNIGRAPH_CORRUPT_MANIFEST\]"):
        parse_ir(text)


# --- from a table's columns --------------------------------------------------------------------


def test_a_node_type_is_made_of_the_columns_behind_id() -> None:
    schema = pa.schema(
        [
            pa.field("id", pa.utf8(), nullable=False),
            ("age", pa.int32()),
            ("vec", pa.list_(pa.float32(), 4)),
            ("tags", pa.list_(pa.utf8())),
            pa.field("at", pa.date64(), nullable=False),
        ]
    )
    node = of_arrow("node:Person", schema)
    assert describe(node) == (
        "node Person { age: I32?, at: DateTime, tags: [String]?, vec: Vector(4)? }"
    )
    assert node.left_out == ()
    assert [one.arrow_field() for one in node.properties] == list(schema)[1:]


def test_an_edge_type_has_no_property_id_src_or_dst() -> None:
    schema = pa.schema([("id", pa.utf8()), ("src", pa.utf8()), ("dst", pa.utf8())])
    edge = of_arrow("edge:Knows", schema, endpoints=("Person", "Company"))
    assert edge == EdgeType("Knows", "Person", "Company")


def test_a_node_may_have_properties_src_and_dst() -> None:
    schema = pa.schema([("id", pa.utf8()), ("src", pa.utf8())])
    assert [one.name for one in of_arrow("node:Line", schema).properties] == ["src"]


@pytest.mark.parametrize(
    ("column", "says"),
    [
        (pa.field("t", pa.timestamp("us")), "no type for timestamp"),
        (pa.field("d", pa.decimal128(10, 2)), "no type for decimal"),
        (pa.field("s", pa.struct([("a", pa.int32())])), "no type for struct"),
        (pa.field("l", pa.list_(pa.list_(pa.float32(), 2))), "no type for list"),
        (pa.field("Имя", pa.utf8()), "rename the column"),
        (pa.field("Name", pa.utf8()), "rename the column"),
        (pa.field("sp ace", pa.utf8()), "rename the column"),
    ],
    ids=str,
)
def test_a_column_that_the_engine_cannot_type_or_name_is_left_out_and_reported(
    column: pa.Field, says: str
) -> None:
    schema = pa.schema([("id", pa.utf8()), column.with_nullable(False), ("n", pa.int32())])
    node = of_arrow("node:A", schema)
    assert [one.name for one in node.properties] == ["n"]
    assert [one.column for one in node.left_out] == [column.name]
    assert says in node.left_out[0].reason
    stored = table_schema(schema, node)
    assert stored.field(column.name).nullable, "the engine writes rows without it"
    assert stored.names == schema.names


def test_an_enum_that_rides_along_is_kept_with_the_columns_nullability() -> None:
    schema = pa.schema([("id", pa.utf8()), pa.field("status", pa.utf8(), nullable=False)])
    carried = {"status": property_types.parse("enum(a, b)?")}
    node = of_arrow("node:A", schema, carried=carried)
    assert node.properties[0].type.text() == "enum(a, b)"


def test_a_carried_type_that_is_not_the_columns_is_ignored() -> None:
    schema = pa.schema([("id", pa.utf8()), ("n", pa.int64())])
    node = of_arrow("node:A", schema, carried={"n": property_types.parse("U32")})
    assert node.properties[0].type.text() == "I64?"


def test_a_key_is_marked_and_its_column_not_null() -> None:
    schema = pa.schema([("id", pa.utf8()), ("name", pa.utf8()), ("age", pa.int32())])
    node = of_arrow("node:Person", schema, key="name")
    assert isinstance(node, NodeType)
    assert node.constraints() == (Constraint("Key", ("name",)),)
    assert render_pg([node]) == "node Person {\n    name: String @key\n    age: I32?\n}\n"
    stored = table_schema(schema, node)
    assert [one.nullable for one in stored] == [True, False, True]


@pytest.mark.parametrize(
    ("key", "found"),
    [("age", "found I32"), ("nobody", "no such property"), ("Name", "no such property")],
)
def test_a_key_that_is_no_string_property_of_the_engine_is_refused(key: str, found: str) -> None:
    schema = pa.schema([("id", pa.utf8()), ("age", pa.int32()), ("Name", pa.utf8())])
    with pytest.raises(SchemaMismatchError, match=rf"OMNIGRAPH_SCHEMA_MISMATCH\].*{found}"):
        of_arrow("node:Person", schema, key=key)


def test_an_edge_table_without_ends_is_refused_and_told_the_option() -> None:
    with pytest.raises(SchemaMismatchError, match=r"option endpoints 'Knows: Person -> Company'"):
        of_arrow("edge:Knows", pa.schema([("id", pa.utf8())]))


@pytest.mark.parametrize("name", ["person", "_Person", "9"])
def test_a_type_name_that_the_engine_cannot_spell_is_refused(name: str) -> None:
    with pytest.raises(OptionError, match=r"OMNIGRAPH_OPTION\]"):
        of_arrow(f"node:{name}", pa.schema([("id", pa.utf8())]))


def test_definitions_are_compared_without_order_indices_and_descriptions() -> None:
    one = parse_pg("node A { p: String @index\nq: enum(a, b) }").nodes["A"]
    other = parse_pg('node A @description("x") { q: enum(b, a)\np: String }').nodes["A"]
    assert same_definition(one, other)


@pytest.mark.parametrize(
    "text",
    [
        "node A { p: String @key\nq: I32 }",
        "node A { p: String\nq: I32? }",
        "node A { p: String\nq: I64 }",
        "node A { p: String\nq: I32\nr: I32? }",
        "node A { p: enum(x)\nq: I32 }",
    ],
)
def test_a_difference_in_key_type_nullability_or_columns_is_another_definition(text: str) -> None:
    one = parse_pg("node A { p: String\nq: I32 }").nodes["A"]
    assert not same_definition(one, parse_pg(text).nodes["A"])


def test_left_out_columns_say_nothing_about_the_definition() -> None:
    assert NodeType("A", left_out=(LeftOut("x", "why"),)) == NodeType("A")
