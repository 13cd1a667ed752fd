"""What is left of a graph's rules when a change of its schema dies, races, or loses a file."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from omnigraph_spark import _faults
from omnigraph_spark import schema as engine_schema
from omnigraph_spark.errors import CorruptManifestError, IntegrityError
from omnigraph_spark.maintenance import check as checks
from omnigraph_spark.maintenance.check import check
from omnigraph_spark.maintenance.repair import repair
from omnigraph_spark.manifest import known_types
from omnigraph_spark.manifest.rows import OURS
from omnigraph_spark.manifest.snapshot import load, open_manifest, read_rows
from omnigraph_spark.merge.restore import restore
from omnigraph_spark.options import WriteOptions
from omnigraph_spark.schema_changes import properties
from omnigraph_spark.storage import layout
from omnigraph_spark.storage.store import Storage
from omnigraph_spark.write.commit import commit
from omnigraph_spark.write.plan import NewTable
from omnigraph_spark.write.tasks.stage import stage
from tests.support import ruled, writes
from tests.support.branches import make
from tests.support.ruled import COMPANY, KNOWS, PERSON, WORKS, ruled_graph, save
from tests.support.writes import EDGE_SCHEMA, age_records, once, write, write_options

GRACE = 0.1
RULES: dict[str, dict[str, Any]] = {
    "age": {"id": "z", "age": 999},
    "email": {"id": "z", "email": "taken"},
    "last": {"id": "z", "first": "same", "last": "name"},
    "mood": {"id": "z", "mood": "awful"},
}
"""A row that breaks the rule of a property of `node:Person`, by the property."""


both_stamps = pytest.mark.parametrize("graph", [2, 6], indirect=True)


class _Killed(BaseException):
    """Ends a call where it stands, as a kill does: nothing cleans up after it."""


@pytest.fixture
def graph(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Storage]:
    """A graph with rules, of stamp 2 unless a test asks for both."""
    storage = ruled_graph(tmp_path / "graph", getattr(request, "param", 2))
    save(storage, {PERSON: [{"id": "t", "email": "taken", "first": "same", "last": "name"}]})
    yield storage
    _faults.disarm()


def _options(storage: Storage, **more: str) -> WriteOptions:
    return write_options(storage, **more)


def _killed_at(storage: Storage, point: str, call: Callable[[], object], times: int = 1) -> None:
    """Die when a point is passed for that time, and let the grace of what is left be over."""
    passed: list[int] = []

    def die() -> None:
        passed.append(1)
        if len(passed) == times:
            raise _Killed

    _faults.arm(point, die)
    with pytest.raises(_Killed):
        call()
    _faults.disarm()
    age_records(storage)


def _is_refused(storage: Storage, name: str, under: str | None = None) -> bool:
    """Return whether the row that breaks a property's rule is refused, and leave no such row."""
    row = {under if key == name and under else key: value for key, value in RULES[name].items()}
    try:
        save(storage, {PERSON: [row]}, integrity="strict")
    except IntegrityError:
        return True
    save(storage, {PERSON: [{"id": "z"}]}, writeMode="delete", integrity="off")
    return False


def _kinds(storage: Storage) -> set[str]:
    return {one.kind for one in check(storage)}


def _heal(storage: Storage) -> None:
    """Write something, as a later writer does, and repair what is left."""
    save(storage, {COMPANY: [{"name": f"healer {load(storage).graph_version}"}]})
    _repair(storage)


def _repair(storage: Storage) -> None:
    repair(storage, False, GRACE)
    assert check(storage) == []


# --- changes of properties -----------------------------------------------------------------------


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "point"),
    [
        ("age", "commit.before_table"),
        ("email", "commit.before_publish"),
        ("last", "commit.entered"),
    ],
)
def test_a_drop_of_a_property_that_dies_before_its_publish_loses_no_rule(
    graph: Storage, name: str, point: str
) -> None:
    before = _types(graph)
    _killed_at(graph, point, lambda: properties.drop_property(graph, _options(graph), PERSON, name))
    assert checks.FORGOTTEN_PROPERTY in _kinds(graph)
    assert _is_refused(graph, name)
    _heal(graph)
    assert _is_refused(graph, name)
    assert _types(graph) == before


@pytest.mark.long
def test_a_drop_that_dies_loses_no_rule_of_a_graph_whose_manifest_knew_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as older:
        older.setattr(commit._Write, "_told", lambda *_: {})
        graph = ruled_graph(tmp_path / "graph")
    assert known_types.load_with_types(graph, "main").types == {}
    drop = lambda: properties.drop_property(graph, _options(graph), PERSON, "age")  # noqa: E731
    # The second time: in the change, not in what prepares it.
    _killed_at(graph, "commit.before_table", drop, times=2)
    assert _is_refused(graph, "age")
    _heal(graph)
    assert _is_refused(graph, "age")


@pytest.mark.long
@pytest.mark.parametrize("point", ["commit.before_publish", "commit.published"])
def test_a_rename_of_a_property_that_dies_loses_no_rule(graph: Storage, point: str) -> None:
    name = "years" if point == "commit.published" else "age"
    rename = lambda: properties.rename_property(graph, _options(graph), PERSON, "age", "years")  # noqa: E731
    _killed_at(graph, point, rename)
    assert _is_refused(graph, "age", name)
    _heal(graph)
    assert _is_refused(graph, "age", name)


@pytest.mark.long
def test_a_change_on_top_of_one_that_died_loses_no_rule(graph: Storage) -> None:
    drop = lambda: properties.drop_property(graph, _options(graph), PERSON, "age")  # noqa: E731
    _killed_at(graph, "commit.before_table", drop)
    properties.add_property(graph, _options(graph), PERSON, "age", "I32?")
    assert _is_refused(graph, "age")
    _killed_at(graph, "commit.before_table", drop)
    properties.rename_property(graph, _options(graph), PERSON, "age", "years")
    assert _is_refused(graph, "age", "years")
    assert _kinds(graph) == set()


@pytest.mark.long
def test_a_new_enum_property_whose_writer_dies_takes_its_values_alone(graph: Storage) -> None:
    add = lambda: properties.add_property(graph, _options(graph), PERSON, "tone", "enum(a, b)?")  # noqa: E731
    _killed_at(graph, "commit.published", add)
    for _ in range(2):
        with pytest.raises(IntegrityError, match="tone"):
            save(graph, {PERSON: [{"id": "z", "tone": "c"}]})
        _heal(graph)


def test_a_row_that_breaks_the_rule_of_a_property_is_refused_while_it_is_being_dropped(
    graph: Storage,
) -> None:
    seen: list[bool] = []
    _faults.arm("commit.entered", once(lambda: seen.append(_is_refused(graph, "age"))))
    properties.drop_property(graph, _options(graph), PERSON, "age")
    assert seen == [True]
    assert check(graph) == []


@pytest.mark.long
def test_a_restore_brings_a_dropped_property_back_with_its_rules(graph: Storage) -> None:
    version = load(graph).graph_version
    before = _types(graph)
    properties.drop_property(graph, _options(graph), PERSON, "age")
    properties.rename_property(graph, _options(graph), PERSON, "email", "mail")
    restore(graph, _options(graph), str(version))
    assert _is_refused(graph, "age")
    assert _is_refused(graph, "email")
    assert _types(graph) == before


@pytest.mark.long
def test_a_restore_that_dies_loses_no_rule(graph: Storage) -> None:
    version = load(graph).graph_version
    properties.rename_property(graph, _options(graph), PERSON, "email", "mail")
    _killed_at(graph, "commit.before_table", lambda: restore(graph, _options(graph), str(version)))
    assert _is_refused(graph, "email", "mail")
    _heal(graph)
    assert _is_refused(graph, "email", "mail")


def test_a_branch_keeps_the_rules_of_a_property_that_main_has_dropped(graph: Storage) -> None:
    make(graph, "dev")
    properties.drop_property(graph, _options(graph), PERSON, "age")
    with pytest.raises(IntegrityError):
        save(graph, {PERSON: [{"id": "z", "age": 999}]}, integrity="strict", branch="dev")
    assert check(graph) == []


def test_a_rule_that_somebody_takes_out_of_the_file_is_gone(graph: Storage) -> None:
    text = graph.get(layout.SCHEMA_PG)
    assert text is not None
    graph.put(layout.SCHEMA_PG, text.replace(b"@range(age, 0..120)", b""))
    assert not _is_refused(graph, "age")
    assert _is_refused(graph, "email")


# --- damaged files -------------------------------------------------------------------------------


def _cut(text: bytes, at: bytes) -> bytes:
    return text[: text.index(at)]


DAMAGE: dict[str, Callable[[bytes], bytes | None]] = {
    "empty": lambda _: b"",
    "missing": lambda _: None,
    "a comment alone": lambda _: b"// types of the graph\n",
    "half a property": lambda text: _cut(text, b"32?"),
    "half a rule": lambda text: _cut(text, b"..120"),
    "half an edge": lambda text: _cut(text, b" @card"),
}


@pytest.mark.long
@both_stamps
@pytest.mark.parametrize("how", DAMAGE)
def test_a_damaged_schema_file_is_named_refused_and_made_again(graph: Storage, how: str) -> None:
    before, ir = _types(graph), graph.get(layout.SCHEMA_IR)
    text = graph.get(layout.SCHEMA_PG)
    assert text is not None
    damaged = DAMAGE[how](text)
    if damaged is None:
        graph.delete(layout.SCHEMA_PG)
    else:
        graph.put(layout.SCHEMA_PG, damaged)
    version = load(graph).graph_version
    with pytest.raises(CorruptManifestError, match=layout.SCHEMA_PG):
        save(graph, {COMPANY: [{"name": "n"}]}, integrity="off")
    with pytest.raises(CorruptManifestError, match=layout.SCHEMA_PG):
        write(graph, {PERSON: ["a"]}, writeMode="delete")
    assert graph.get(layout.SCHEMA_IR) == ir
    assert load(graph).graph_version == version
    (found,) = [one for one in check(graph) if one.kind == checks.SCHEMA_FILES]
    assert found.repairable
    _repair(graph)
    assert _types(graph) == before
    assert _is_refused(graph, "age")


@both_stamps
def test_a_schema_file_that_vanishes_while_a_write_runs_stops_it(graph: Storage) -> None:
    ir = graph.get(layout.SCHEMA_IR)
    plan = ruled.planned(graph, [PERSON])
    graph.put(layout.SCHEMA_PG, b"")
    with pytest.raises(CorruptManifestError, match="is empty"):
        commit.commit(plan, ruled.staged(plan, {PERSON: [{"id": "n"}]}))
    assert graph.get(layout.SCHEMA_IR) == ir


@pytest.mark.parametrize("graph", [6], indirect=True)
@pytest.mark.parametrize("names", [(layout.SCHEMA_PG, layout.SCHEMA_IR), layout.SCHEMA_FILES])
def test_nothing_is_written_while_no_schema_file_tells_the_types_that_have_ids(
    graph: Storage, names: tuple[str, ...]
) -> None:
    plan = ruled.planned(graph, [PERSON])
    for name in names:
        graph.delete(name)
    with pytest.raises(CorruptManifestError, match="is missing"):
        write(graph, {PERSON: ["q"]})
    with pytest.raises(CorruptManifestError, match="is missing"):
        commit.commit(plan, ruled.staged(plan, {PERSON: [{"id": "n"}]}))
    assert (checks.SCHEMA_FILES, False) in [(one.kind, one.repairable) for one in check(graph)]


@pytest.mark.parametrize("graph", [6], indirect=True)
@pytest.mark.parametrize("damage", [lambda _: b"", lambda text: text[: len(text) // 2]])
def test_a_state_that_is_damaged_is_made_again_from_the_ids(
    graph: Storage, damage: Callable[[bytes], bytes]
) -> None:
    before = graph.get(layout.SCHEMA_STATE)
    assert before is not None
    graph.put(layout.SCHEMA_STATE, damage(before))
    _repair(graph)
    assert graph.get(layout.SCHEMA_STATE) == before


@pytest.mark.parametrize("graph", [6], indirect=True)
@pytest.mark.parametrize(
    ("name", "damage"),
    [
        (layout.SCHEMA_STATE, lambda text: text.replace(b"sha256:", b"sha256:0")),
        (layout.SCHEMA_IR, lambda text: text.replace(b"Company", b"Campany")),
        (layout.SCHEMA_IR, lambda text: text[:-9]),
    ],
)
def test_types_are_not_made_again_from_an_ir_that_nothing_vouches_for(
    graph: Storage, name: str, damage: Callable[[bytes], bytes]
) -> None:
    text = graph.get(name)
    assert text is not None
    graph.delete(layout.SCHEMA_PG)
    graph.put(name, damage(text))
    (found,) = [one for one in check(graph) if one.kind == checks.SCHEMA_FILES]
    assert not found.repairable
    repair(graph, False, GRACE)
    assert graph.get(layout.SCHEMA_PG) is None


def test_all_schema_files_are_made_again_from_what_the_manifest_knows(graph: Storage) -> None:
    before = _types(graph)
    for name in (layout.SCHEMA_PG, layout.SCHEMA_IR, layout.SCHEMA_STATE):
        graph.delete(name)
    with pytest.raises(CorruptManifestError, match="is missing"):
        write(graph, {PERSON: ["a"]}, writeMode="delete")
    _repair(graph)
    assert _types(graph) == before


# --- lost types ----------------------------------------------------------------------------------


def _add_edges(graph: Storage, name: str, ends: tuple[str, str] = ("Person", "Person")) -> str:
    key = f"edge:{name}"
    new = {key: NewTable(EDGE_SCHEMA, None, ends)}
    row = {"id": name, "src": "c", "dst": "c", "w": 0.0}
    plan = writes.plan(graph, [key], new=new)
    batch = pa.RecordBatch.from_pylist([row], EDGE_SCHEMA)
    commit.commit(plan, stage(plan, [(key, batch)]))
    return key


def _lose(graph: Storage, *names: str) -> None:
    """Put the files of before some types were made, as a writer does that looked before."""
    there = engine_schema.read(graph)
    assert there is not None
    kept = [one for one in there.types() if one.name not in names]
    text = engine_schema.render_pg(kept)
    graph.put(layout.SCHEMA_PG, text.encode())
    ir_text = engine_schema.ir_json(engine_schema.parse_pg(text))
    graph.put(layout.SCHEMA_IR, ir_text.encode())
    graph.put(layout.SCHEMA_STATE, engine_schema.state_json(ir_text).encode())


def test_edges_of_a_type_that_a_racing_writer_dropped_from_the_files_are_guarded(
    graph: Storage,
) -> None:
    fast = _add_edges(graph, "Fast")
    _lose(graph, "Fast")
    (found,) = check(graph)
    assert (found.kind, found.place, found.repairable) == (checks.UNKNOWN_TYPE, fast, True)
    with pytest.raises(IntegrityError, match=r"dangling edges: 1 of edge:Fast"):
        save(graph, {PERSON: [{"id": "c"}]}, writeMode="delete", tables=[KNOWS])


def test_a_node_table_is_not_dropped_while_edges_of_a_lost_type_end_there(graph: Storage) -> None:
    fast = _add_edges(graph, "Fast")
    _lose(graph, "Fast")
    with pytest.raises(IntegrityError, match=fast):
        properties.drop_table(graph, _options(graph), [PERSON, KNOWS, WORKS])
    with pytest.raises(IntegrityError, match=r"edges stay attached"):
        save(graph, {PERSON: [{"id": "a"}, {"id": "b"}]}, mode="overwrite", integrity="strict")


@pytest.mark.long
def test_a_lost_type_is_back_after_the_next_write_or_a_repair(graph: Storage) -> None:
    _add_edges(graph, "Fast")
    _lose(graph, "Fast", "Works", "Company")
    save(graph, {PERSON: [{"id": "n"}]})
    assert check(graph) == []
    before = _types(graph)
    assert {"min": 0, "max": 2} in [one["cardinality"] for one in before["edges"]]
    _lose(graph, "Fast", "Works", "Company")
    repair(graph, False, GRACE)
    assert check(graph) == []
    assert _types(graph) == before


def test_no_node_is_taken_away_while_nothing_tells_where_some_edges_end(
    graph: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commit._Write, "_told", lambda *_: {})
    _add_edges(graph, "Fast")
    _lose(graph, "Fast")
    for remove in (
        lambda: save(graph, {PERSON: [{"id": "c"}]}, writeMode="delete"),
        lambda: properties.drop_table(graph, _options(graph), [COMPANY, WORKS]),
    ):
        with pytest.raises(CorruptManifestError, match=r"edge:Fast end"):
            remove()
    save(graph, {WORKS: [{"id": "aw"}]}, writeMode="delete")


def test_a_type_is_put_into_the_manifest_once_and_not_with_every_write(graph: Storage) -> None:
    save(graph, {PERSON: [{"id": "n"}]})
    marked = [one for one in _marks(graph) if known_types.TYPE in one]
    assert len(marked) == len(load(graph).tables)


def _marks(graph: Storage) -> list[dict[str, Any]]:
    rows_there = read_rows(open_manifest(graph))
    texts = [text for text in rows_there["metadata"].to_pylist() if text]
    return [json.loads(text)[OURS] for text in texts]


def _types(graph: Storage) -> dict[str, Any]:
    """Return the types that the schema files name, in the engine's own order."""
    found = engine_schema.read(graph)
    assert found is not None
    types: dict[str, Any] = json.loads(engine_schema.ir_json(found))
    return types
