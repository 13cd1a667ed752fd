"""The three schema files of a graph: adding types, and making them agree again after a crash."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
import pytest

from omnigraph_spark import schema as engine_schema
from omnigraph_spark.errors import (
    CorruptManifestError,
    OptionError,
    SchemaMismatchError,
    StorageError,
    UnsupportedError,
)
from omnigraph_spark.schema import EdgeType, EngineSchema, NodeType, add_types, parse_pg
from omnigraph_spark.storage.store import Storage
from omnigraph_spark.write.plan import NewTable
from tests.format_checker import check_graph
from tests.support import graphs, writes
from tests.support.stores import Store

FILES = ("_schema.pg", "_schema.ir.json", "__schema_state.json")


def types(text: str) -> EngineSchema:
    return parse_pg(text)


CITY = types("node City {\n    name: String @key\n}\nedge LivesIn: Person -> City\n")
CITY = EngineSchema(CITY.nodes, CITY.edges)


@pytest.fixture
def social(tmp_path: Path) -> Storage:
    return Storage.at(str(graphs.unpack("v2", "social", tmp_path)))


def texts(storage: Storage) -> dict[str, str]:
    found = {name: storage.get(name) for name in FILES}
    return {name: data.decode() for name, data in found.items() if data is not None}


def assert_agreeing(storage: Storage) -> None:
    found = texts(storage)
    assert set(found) == set(FILES)
    schema = parse_pg(found["_schema.pg"])
    assert json.loads(found["_schema.ir.json"]) == json.loads(engine_schema.ir_json(schema))
    assert found["__schema_state.json"] == engine_schema.state_json(found["_schema.ir.json"])


@dataclass(frozen=True)
class Crash(Exception):
    path: str


@dataclass(frozen=True)
class Interrupted(Storage):
    """A store on which something happens right before an object is put."""

    before_put: Callable[[str], None] = field(default=lambda _path: None)

    __hash__ = Storage.__hash__

    def put(self, path: str, data: bytes) -> None:
        self.before_put(path)
        super().put(path, data)


# --- adding ------------------------------------------------------------------------------------


def test_types_are_added_behind_what_is_there_byte_for_byte(social: Storage) -> None:
    before = texts(social)
    add_types(social, CITY)
    after = texts(social)
    assert after["_schema.pg"] == (
        before["_schema.pg"]
        + "\nnode City {\n    name: String @key\n}\nedge LivesIn: Person -> City\n"
    )
    ir = json.loads(after["_schema.ir.json"])
    assert [one["name"] for one in ir["nodes"]] == ["City", "Company", "Person"]
    assert [one["name"] for one in ir["edges"]] == ["Knows", "LivesIn", "WorksAt"]
    old = json.loads(before["_schema.ir.json"])
    assert [one for one in ir["nodes"] if one["name"] != "City"] == old["nodes"]
    assert check_graph(social.root) == []


def test_the_first_types_make_all_three_files(store: Store) -> None:
    storage = store.storage("g")
    add_types(storage, types("node A { p: String @key }\nedge E: A -> A"))
    assert_agreeing(storage)
    assert texts(storage)["_schema.pg"] == "node A {\n    p: String @key\n}\nedge E: A -> A\n"


def test_the_same_types_again_change_nothing(social: Storage) -> None:
    add_types(social, CITY)
    before = graphs.file_hashes(Path(social.root))
    add_types(social, CITY)
    assert graphs.file_hashes(Path(social.root)) == before


def test_an_equal_definition_of_an_engines_type_changes_nothing(social: Storage) -> None:
    before = graphs.file_hashes(Path(social.root))
    add_types(social, types("node Person { age: I32?\nname: String @key }"))
    assert graphs.file_hashes(Path(social.root)) == before


@pytest.mark.parametrize(
    "text",
    [
        "node Person { name: String @key\nage: I64? }",
        "node Person { name: String\nage: I32? }",
        "node Company { name: String @key\nage: I32? }",
        "node Person { name: String @key\nage: I32? }\nedge Knows: Person -> Company",
    ],
)
def test_another_definition_is_refused_and_nothing_is_written(social: Storage, text: str) -> None:
    before = graphs.file_hashes(Path(social.root))
    schema = types(text if "Company {" in text else text + "\nnode Company { name: String @key }")
    with pytest.raises(SchemaMismatchError, match=r"OMNIGRAPH_SCHEMA_MISMATCH\].*another definit"):
        add_types(social, EngineSchema({**CITY.nodes, **schema.nodes}, schema.edges))
    assert graphs.file_hashes(Path(social.root)) == before


@pytest.mark.parametrize(
    ("new", "error", "says"),
    [
        (EdgeType("Eats", "Person", "Food"), SchemaMismatchError, "end Food of edge:Eats"),
        (EdgeType("KNOWS", "Person", "Person"), SchemaMismatchError, "upper and lower case"),
        (NodeType("city"), OptionError, "begins with a capital letter"),
    ],
)
def test_a_type_that_the_engine_would_refuse_is_refused_here(
    social: Storage, new: NodeType | EdgeType, error: type[Exception], says: str
) -> None:
    before = graphs.file_hashes(Path(social.root))
    with pytest.raises(error, match=says):
        add_types(social, EngineSchema.of([new]))
    assert graphs.file_hashes(Path(social.root)) == before


def test_a_plan_can_ask_what_would_be_added_or_refused(social: Storage) -> None:
    there = engine_schema.read(social)
    assert there is not None
    assert engine_schema.types_to_add(there, CITY) == list(CITY.types())
    person = types("node Person { age: I32?\nname: String @key }")
    assert engine_schema.types_to_add(there, person) == []


def test_a_table_whose_type_is_declared_differently_is_refused_before_tasks_run(
    social: Storage,
) -> None:
    add_types(social, types("node City { name: String @key }"))
    schema = pa.schema([pa.field("id", pa.utf8(), nullable=False), ("zip", pa.int32())])
    before = graphs.file_hashes(Path(social.root))
    with pytest.raises(SchemaMismatchError, match=r"node:City is in _schema\.pg with another"):
        writes.plan(social, ["node:City"], new={"node:City": NewTable(schema)})
    assert graphs.file_hashes(Path(social.root)) == before


def test_a_declared_type_without_a_table_gets_its_table(social: Storage) -> None:
    """A write that died between the schema files and the publish is written again."""
    add_types(social, types("node City { name: String @key }"))
    schema = pa.schema([pa.field("id", pa.utf8(), nullable=False), ("name", pa.utf8())])
    writes.write(social, {"node:City": ["Rome"]}, new={"node:City": NewTable(schema, "name")})
    assert writes.ids(social, "node:City") == ["Rome"]
    assert check_graph(social.root) == []


def test_a_text_without_a_line_feed_at_its_end_gets_one(social: Storage) -> None:
    social.put("_schema.pg", texts(social)["_schema.pg"].rstrip().encode())
    add_types(social, CITY)
    assert "edge WorksAt: Person -> Company\n\nnode City {" in texts(social)["_schema.pg"]
    assert_agreeing(social)


def test_a_graph_with_pg_text_alone_gets_the_json_files(social: Storage) -> None:
    pg = texts(social)["_schema.pg"]
    before = texts(social)
    social.delete("_schema.ir.json")
    social.delete("__schema_state.json")
    add_types(social, EngineSchema())
    assert texts(social) == before | {"_schema.pg": pg}


def test_a_graph_without_schema_files_and_types_gets_none(tmp_path: Path) -> None:
    add_types(Storage.at(str(tmp_path)), EngineSchema())
    assert list(tmp_path.iterdir()) == []


def test_a_missing_pg_text_beside_an_ir_is_refused(social: Storage) -> None:
    social.delete("_schema.pg")
    with pytest.raises(CorruptManifestError, match=r"_schema.pg is missing, and _schema.ir.json"):
        add_types(social, CITY)
    assert "City" not in texts(social)["_schema.ir.json"]


def test_the_files_of_a_newer_engine_are_refused_and_unchanged(tmp_path: Path) -> None:
    root = graphs.unpack("newer", "social", tmp_path)
    before = graphs.file_hashes(root)
    with pytest.raises(UnsupportedError, match=r"OMNIGRAPH_UNSUPPORTED\].*upgrade omnigraph"):
        add_types(Storage.at(str(root)), CITY)
    add_types(Storage.at(str(root)), EngineSchema())
    assert graphs.file_hashes(root) == before


# --- reading -----------------------------------------------------------------------------------


def test_a_graph_without_pg_text_has_no_schema(tmp_path: Path) -> None:
    assert engine_schema.read(Storage.at(str(tmp_path))) is None


def test_the_pg_text_tells_also_while_the_json_files_are_behind(social: Storage) -> None:
    social.put("_schema.pg", (texts(social)["_schema.pg"] + "node City { }\n").encode())
    schema = engine_schema.read(social)
    assert schema is not None
    assert "City" in schema.nodes


def test_a_pg_text_of_unknown_form_is_read_through_json_files_that_vouch_for_each_other(
    social: Storage,
) -> None:
    social.put("_schema.pg", b"view Person { }")
    schema = engine_schema.read(social)
    assert schema is not None
    assert schema.nodes["Person"].key == "name"
    social.put("__schema_state.json", b"{}")
    with pytest.raises(CorruptManifestError, match=r"_schema.pg can't be read at line 1"):
        engine_schema.read(social)


def test_a_write_without_new_types_is_not_refused_for_a_pg_text_of_unknown_form(
    social: Storage, caplog: pytest.LogCaptureFixture
) -> None:
    social.put("_schema.pg", b"view Person { }")
    before = texts(social)
    add_types(social, EngineSchema())
    assert texts(social) == before
    assert "can't be read at line 1" in caplog.text


def test_a_pg_text_that_is_no_utf8_is_a_typed_error(social: Storage) -> None:
    social.put("_schema.pg", b"\xff\xfe")
    with pytest.raises(CorruptManifestError, match=r"_schema.pg is not UTF-8 text"):
        engine_schema.read(social)


# --- crashes -----------------------------------------------------------------------------------


@pytest.mark.parametrize("path", FILES)
def test_a_crash_before_any_put_leaves_a_schema_that_reads_and_that_the_next_write_completes(
    social: Storage, path: str
) -> None:
    def crash(put: str) -> None:
        if put == path:
            raise Crash(path)

    with pytest.raises(Crash):
        add_types(Interrupted(social.root, before_put=crash), CITY)
    schema = engine_schema.read(social)
    assert schema is not None
    assert ("City" in schema.nodes) == (path != "_schema.pg")
    add_types(social, EngineSchema())
    assert_agreeing(social)
    add_types(social, CITY)
    assert check_graph(social.root) == []


def test_the_pg_text_is_put_first_and_the_state_last(social: Storage) -> None:
    puts: list[str] = []
    add_types(Interrupted(social.root, before_put=puts.append), CITY)
    assert puts == list(FILES)


@pytest.mark.parametrize("path", FILES[1:])
@pytest.mark.parametrize("damage", [None, b"", b"{}", b"no json"])
def test_repair_makes_json_files_again_that_are_gone_or_damaged(
    social: Storage, path: str, damage: bytes | None
) -> None:
    before = texts(social)
    if damage is None:
        social.delete(path)
    else:
        social.put(path, damage)
    assert engine_schema.repair(social)
    assert texts(social) == before
    assert not engine_schema.repair(social)


def test_repair_leaves_files_alone_that_agree(social: Storage) -> None:
    before = graphs.file_hashes(Path(social.root))
    assert not engine_schema.repair(social)
    assert graphs.file_hashes(Path(social.root)) == before


def test_repair_leaves_a_graph_without_pg_text_alone(tmp_path: Path) -> None:
    assert not engine_schema.repair(Storage.at(str(tmp_path)))


# --- two writers -------------------------------------------------------------------------------


def test_types_that_another_writer_overwrote_are_put_in_again(social: Storage) -> None:
    """The other writer read before our put and puts after it: ours are gone, once."""
    stale = texts(social)["_schema.pg"] + "\nnode Theirs {\n}\n"
    done: list[str] = []

    def overwrite(path: str) -> None:
        if path == "_schema.ir.json" and not done:
            done.append(path)
            social.put("_schema.pg", stale.encode())

    add_types(Interrupted(social.root, before_put=overwrite), CITY)
    schema = parse_pg(texts(social)["_schema.pg"])
    assert {"Theirs", "City", "Person", "Company"} == set(schema.nodes)
    assert_agreeing(social)


def test_json_files_that_another_writer_put_back_are_made_again(social: Storage) -> None:
    old = texts(social)["_schema.ir.json"]
    done: list[str] = []

    def put_back(path: str) -> None:
        if path == "__schema_state.json" and not done:
            done.append(path)
            social.put("_schema.ir.json", old.encode())

    add_types(Interrupted(social.root, before_put=put_back), CITY)
    assert_agreeing(social)


def test_files_that_are_always_changed_by_others_end_in_a_typed_error(
    social: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("omnigraph_spark.schema.files._MAX_PAUSE_SECONDS", 0.0)
    old = texts(social)["_schema.pg"].encode()

    def overwrite(path: str) -> None:
        if path == "__schema_state.json":
            social.put("_schema.pg", old)

    with pytest.raises(StorageError, match=r"OMNIGRAPH_STORAGE\].*being changed by others"):
        add_types(Interrupted(social.root, before_put=overwrite), CITY)


def test_writers_side_by_side_end_with_all_their_types(store: Store) -> None:
    storage = store.storage("g")
    gate = threading.Barrier(4)
    failures: list[BaseException] = []

    def write(number: int) -> None:
        gate.wait()
        try:
            add_types(storage, types(f"node A{number} {{ p: String }}"))
        except StorageError as error:
            failures.append(error)

    writers = [threading.Thread(target=write, args=(number,)) for number in range(4)]
    for one in writers:
        one.start()
    for one in writers:
        one.join()
    assert failures == []
    for number in range(4):  # whoever was overwritten after his look puts his type in again
        add_types(storage, types(f"node A{number} {{ p: String }}"))
    assert set(parse_pg(texts(storage)["_schema.pg"]).nodes) == {"A0", "A1", "A2", "A3"}
    assert_agreeing(storage)
