"""`mergeSchema`: new columns of a frame become nullable properties, without a rewrite."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql.types import ArrayType, BinaryType, FloatType, ShortType, StringType

from omnigraph_spark import _faults
from omnigraph_spark import schema as engine_schema
from omnigraph_spark.errors import OmnigraphError, SchemaMismatchError
from omnigraph_spark.manifest.snapshot import load
from omnigraph_spark.storage.store import Storage
from omnigraph_spark.write.commit import bulk
from omnigraph_spark.write.commit.commit import commit
from omnigraph_spark.write.plan import WritePlan
from omnigraph_spark.write.tasks.stage import StagedTable
from tests.format_checker import check_graph
from tests.support import columns, graphs, writes
from tests.support.columns import NICK, PERSON_FRAME, SCORE, frame, properties, rows_of
from tests.support.writes import COMPANY, PERSON, Died, die, head, once


@pytest.fixture
def graph(tmp_path: Path) -> Iterator[Storage]:
    yield writes.new_graph(Storage.at(str(tmp_path / "g")))
    _faults.disarm()


FIRST = {"id": "first", "name": "first", "age": 0}


def person(name: str, **more: object) -> dict[str, object]:
    return {"id": name, "name": name, "age": None, **more}


def prepared(
    graph: Storage, column: columns.Column, name: str, value: object
) -> tuple[WritePlan, list[StagedTable]]:
    """Plan and stage an append of one row that brings a column; nothing is committed yet."""
    schema = frame(*PERSON_FRAME, column)
    planned = columns.plan(graph, {PERSON: schema})
    return planned, columns.staged(planned, PERSON, schema, [person(name, **{column[0]: value})])


# --- appends -----------------------------------------------------------------------------------


def test_an_append_adds_its_new_columns_in_the_same_publish_and_old_rows_read_null(
    graph: Storage,
) -> None:
    before = load(graph)
    done = columns.write(
        graph, PERSON, (*PERSON_FRAME, NICK, SCORE), [person("b", nick="bee", score=7)]
    )
    assert done.graph_version == before.graph_version + 1
    assert rows_of(graph, PERSON) == [
        person("b", nick="bee", score=7),
        {**FIRST, "nick": None, "score": None},
    ]
    assert rows_of(graph, PERSON, before.graph_version) == [FIRST]
    assert properties(graph, PERSON) == {
        "age": "I32?",
        "name": "String",
        "nick": "String?",
        "score": "I64?",
    }
    assert check_graph(graph.root) == []


def test_adding_a_column_rewrites_no_data_file(graph: Storage) -> None:
    entry = load(graph).entry(PERSON)
    old = {path.path for path in graph.list(f"{entry.location}/data")}
    columns.write(graph, PERSON, (*PERSON_FRAME, NICK), [person("b", nick="x")])
    new = {path.path for path in graph.list(f"{entry.location}/data")}
    assert old < new
    assert len(new) == len(old) + 1


def test_a_frame_without_rows_adds_its_columns_too(graph: Storage) -> None:
    columns.write(graph, PERSON, (*PERSON_FRAME, NICK), [])
    assert rows_of(graph, PERSON) == [{**FIRST, "nick": None}]
    assert properties(graph, PERSON)["nick"] == "String?"


def test_without_the_option_a_new_column_is_refused_and_the_option_named(graph: Storage) -> None:
    from omnigraph_spark.spark.frame_plan import plan_frames

    with pytest.raises(SchemaMismatchError, match=r"OMNIGRAPH_SCHEMA_MISMATCH.*nick.*") as caught:
        plan_frames(writes.write_options(graph), {PERSON: frame(*PERSON_FRAME, NICK)})
    assert "mergeSchema" in str(caught.value)


def test_columns_that_the_table_has_may_be_left_out_if_they_allow_nulls(graph: Storage) -> None:
    columns.write(graph, PERSON, (*PERSON_FRAME[:2], NICK), [{"id": "b", "name": "b", "nick": "x"}])
    assert rows_of(graph, PERSON)[0] == person("b", nick="x")
    with pytest.raises(SchemaMismatchError, match=r"OMNIGRAPH_SCHEMA_MISMATCH.*name"):
        columns.plan(graph, {COMPANY: frame(("id", StringType()), NICK)})


@pytest.mark.parametrize(
    ("kind", "types", "value", "stored", "engine"),
    [
        (
            ArrayType(FloatType()),
            "Person.c: Vector(2)",
            [1.5, 2.5],
            "fixed_size_list",
            "Vector(2)?",
        ),
        (ArrayType(StringType()), "", ["a", None], "list", "[String]?"),
        (StringType(), "Person.c: enum(x, y)", "x", "string", "enum(x, y)?"),
        (ShortType(), "", 3, "int32", "I32?"),
        (BinaryType(), "", b"ab", "binary", "Blob?"),
    ],
    ids=["vector", "list", "enum", "smallint", "blob"],
)
def test_new_columns_get_the_types_that_new_tables_give_them(
    graph: Storage, kind: object, types: str, value: object, stored: str, engine: str
) -> None:
    options = {"types": types} if types else {}
    columns.write(
        graph,
        PERSON,
        (*PERSON_FRAME, ("c", kind)),
        [person("b", c=value)],
        **options,  # type: ignore[arg-type]
    )
    found = columns.table(graph, PERSON)
    assert stored in str(found.schema.field("c").type)
    assert properties(graph, PERSON)["c"] == engine
    assert found["c"].to_pylist() == [value, None]
    columns.write(graph, PERSON, (*PERSON_FRAME, ("c", kind)), [person("d", c=value)])  # type: ignore[arg-type]
    assert columns.table(graph, PERSON)["id"].to_pylist() == ["b", "d", "first"]
    assert check_graph(graph.root) == []


@pytest.mark.parametrize("name", ["a.b", "_rowid", "AGE"])
def test_names_that_no_column_can_have_are_refused_before_a_task_runs(
    graph: Storage, name: str
) -> None:
    before = graphs.file_hashes(Path(graph.root))
    with pytest.raises(SchemaMismatchError, match="OMNIGRAPH_SCHEMA_MISMATCH"):
        columns.plan(graph, {PERSON: frame(*PERSON_FRAME, (name, StringType()))})
    assert graphs.file_hashes(Path(graph.root)) == before


def test_a_column_that_the_engine_cannot_name_is_kept_and_left_out_of_its_schema(
    graph: Storage,
) -> None:
    columns.write(graph, PERSON, (*PERSON_FRAME, ("größe", StringType())), [person("b", größe="x")])
    assert rows_of(graph, PERSON)[0]["größe"] == "x"
    assert "größe" not in properties(graph, PERSON)
    assert check_graph(graph.root) == []


def test_two_tables_get_columns_in_one_publish(graph: Storage) -> None:
    one, two = frame(*PERSON_FRAME, NICK), frame(*PERSON_FRAME, SCORE)
    planned = columns.plan(graph, {PERSON: one, COMPANY: two})
    rows = columns.staged(planned, PERSON, one, [person("p", nick="x")])
    rows += columns.staged(planned, COMPANY, two, [person("c", score=1)])
    before = load(graph).graph_version
    assert commit(planned, rows).graph_version == before + 1
    assert rows_of(graph, PERSON)[1]["nick"] == "x"
    assert rows_of(graph, COMPANY)[0]["score"] == 1


def test_a_staging_write_of_many_frames_knows_the_added_columns(graph: Storage) -> None:
    schema = frame(*PERSON_FRAME, NICK)
    planned = columns.plan(graph, {PERSON: schema})
    again = bulk.restored(graph, bulk.describe(planned, PERSON))
    assert again.targets[PERSON] == planned.targets[PERSON]
    commit(planned, columns.staged(again, PERSON, schema, [person("b", nick="x")]))
    assert rows_of(graph, PERSON)[0]["nick"] == "x"


# --- overwrites --------------------------------------------------------------------------------


def test_an_overwrite_adds_columns_and_keeps_the_indices(graph: Storage) -> None:
    entry = load(graph).entry(PERSON)
    columns.write(graph, PERSON, (*PERSON_FRAME, NICK), [person("b", nick="x")], "overwrite")
    assert rows_of(graph, PERSON) == [person("b", nick="x")]
    columns.write(graph, PERSON, (*PERSON_FRAME, NICK, SCORE), [person("c", nick="y", score=2)])
    assert rows_of(graph, PERSON) == [
        person("b", nick="x", score=None),
        person("c", nick="y", score=2),
    ]
    dataset = graph.dataset(entry.location)
    assert [f.name for f in dataset.schema] == ["id", "name", "age", "nick", "score"]
    assert check_graph(graph.root) == []


# --- a dropped column's id is never used again --------------------------------------------------


def test_a_column_that_was_dropped_and_added_again_has_no_old_values(graph: Storage) -> None:
    columns.write(graph, PERSON, (*PERSON_FRAME, NICK), [person("b", nick="old")])
    entry = load(graph).entry(PERSON)
    dataset = graph.dataset(entry.location)
    dataset.drop_columns(["nick"])
    from omnigraph_spark.manifest.publisher import Publish, publish
    from omnigraph_spark.manifest.rows import VersionRow
    from omnigraph_spark.storage.ids import new_ulid

    row = VersionRow(PERSON, dataset.version, None, dataset.count_rows())
    publish(graph, Publish("main", new_ulid(), (row,)))
    columns.write(graph, PERSON, (*PERSON_FRAME, NICK), [person("c", nick="new")])
    assert [r["nick"] for r in rows_of(graph, PERSON)] == [None, "new", None]


# --- races -------------------------------------------------------------------------------------


def test_writers_that_add_the_same_column_at_once_end_with_one_column_and_all_rows(
    graph: Storage,
) -> None:
    first, second = prepared(graph, NICK, "a", "one"), prepared(graph, NICK, "b", "two")
    commit(*first)
    commit(*second)
    assert [(r["id"], r["nick"]) for r in rows_of(graph, PERSON)] == [
        ("a", "one"),
        ("b", "two"),
        ("first", None),
    ]
    assert check_graph(graph.root) == []


def test_writers_that_add_different_columns_at_once_end_with_both(graph: Storage) -> None:
    first, second = prepared(graph, NICK, "a", "one"), prepared(graph, SCORE, "b", 2)
    commit(*first)
    commit(*second)
    assert [(r["id"], r["nick"], r["score"]) for r in rows_of(graph, PERSON)] == [
        ("a", "one", None),
        ("b", None, 2),
        ("first", None, None),
    ]
    assert set(properties(graph, PERSON)) == {"age", "name", "nick", "score"}


def test_a_column_that_a_rival_added_with_another_type_is_refused_and_nothing_changes(
    graph: Storage,
) -> None:
    first = prepared(graph, ("c", StringType()), "a", "one")
    second = prepared(graph, ("c", ShortType()), "b", 2)
    commit(*first)
    before = load(graph)
    with pytest.raises(SchemaMismatchError, match=r"OMNIGRAPH_SCHEMA_MISMATCH.* c .*another type"):
        commit(*second)
    assert load(graph).tables == before.tables
    assert head(graph, PERSON) == before.version(PERSON)


@pytest.mark.parametrize("point", ["table.before_columns", "table.columns_added", "table.landed"])
def test_an_append_that_lands_in_the_middle_of_adding_a_column_loses_nothing(
    graph: Storage, point: str
) -> None:
    planned, staged = prepared(graph, NICK, "b", "x")

    def rival() -> None:
        writes.orphan(graph, PERSON, ["rival"])

    _faults.arm(point, once(rival))
    commit(planned, staged)
    _faults.disarm()
    # the rival published nothing: its row must never show
    assert [(r["id"], r["nick"]) for r in rows_of(graph, PERSON)] == [("b", "x"), ("first", None)]
    assert check_graph(graph.root) == []


def test_an_index_that_somebody_builds_while_a_column_is_added_is_not_adopted(
    graph: Storage,
) -> None:
    planned, staged = prepared(graph, NICK, "b", "x")
    entry = load(graph).entry(PERSON)

    def rival() -> None:
        graph.dataset(entry.location).create_scalar_index("age", "BTREE")

    _faults.arm("table.before_columns", once(rival))
    commit(planned, staged)
    _faults.disarm()
    now = load(graph).entry(PERSON)
    published = graph.dataset(now.location, None, now.table_version)
    assert published.describe_indices() == []
    assert [(r["id"], r["nick"]) for r in rows_of(graph, PERSON)] == [("b", "x"), ("first", None)]
    assert check_graph(graph.root) == []


@pytest.mark.parametrize(
    "point", ["table.columns_added", "table.after_commit", "commit.before_publish"]
)
def test_a_writer_that_dies_after_its_column_leaves_the_graph_as_it_was(
    graph: Storage, point: str
) -> None:
    planned, staged = prepared(graph, NICK, "b", "x")
    before = load(graph)
    _faults.arm(point, die)
    with pytest.raises(Died):
        commit(planned, staged)
    _faults.disarm()
    assert load(graph).tables == before.tables
    assert "nick" not in properties(graph, PERSON)
    writes.write(graph, {PERSON: ["next"]})
    assert rows_of(graph, PERSON) == [FIRST, {"id": "next", "name": "next", "age": 0}]
    assert "nick" not in columns.table(graph, PERSON).schema.names
    assert check_graph(graph.root, crashed=True) == []


def test_a_column_is_put_back_when_the_write_fails(graph: Storage) -> None:
    planned, staged = prepared(graph, NICK, "b", "x")
    before = load(graph)

    def broken() -> None:
        raise OSError("disk full")

    _faults.arm("publish.sending", broken)
    with pytest.raises(OmnigraphError):
        commit(planned, staged)
    _faults.disarm()
    assert load(graph).tables == before.tables
    dataset = graph.dataset(before.entry(PERSON).location)
    assert "nick" not in dataset.schema.names


def test_a_writer_that_dies_before_the_schema_files_leaves_a_column_that_the_next_can_name(
    graph: Storage,
) -> None:
    planned, staged = prepared(graph, NICK, "b", "x")
    _faults.arm("commit.published", die)
    with pytest.raises(Died):
        commit(planned, staged)
    _faults.disarm()
    assert rows_of(graph, PERSON)[0]["nick"] == "x"
    assert "nick" not in properties(graph, PERSON)
    assert check_graph(graph.root, crashed=True) == []


def test_a_column_that_another_branch_lacks_stays_out_of_the_schema_files(graph: Storage) -> None:
    from omnigraph_spark.refs import branches
    from omnigraph_spark.refs.refs import Resolved

    branches.create_branch(graph, "dev", Resolved("main", None))
    columns.write(graph, PERSON, (*PERSON_FRAME, NICK), [person("b", nick="x")], branch="dev")
    assert "nick" in columns.table(graph, PERSON, branch="dev").schema.names
    assert "nick" not in properties(graph, PERSON)
    assert check_graph(graph.root) == []
    columns.write(graph, PERSON, (*PERSON_FRAME, NICK), [])
    assert properties(graph, PERSON)["nick"] == "String?"
    assert check_graph(graph.root) == []


# --- the engine's own graphs -------------------------------------------------------------------


@pytest.mark.long
@pytest.mark.parametrize("name", ["social", "pharma", "rich", "evolved"])
def test_the_engines_graphs_with_added_columns_are_still_what_format_says(
    tmp_path: Path, name: str
) -> None:
    graph = Storage.at(str(graphs.unpack("v2", name, tmp_path)))
    snapshot = load(graph)
    before = {key: columns.table(graph, key) for key in snapshot.tables}
    for key in list(snapshot.tables)[:6]:
        stored = before[key].schema
        from omnigraph_spark.spark.spark_types import spark_field

        schema = frame()
        for field in stored:
            schema = schema.add(spark_field(field))
        planned = columns.plan(graph, {key: schema.add("added", StringType())})
        commit(planned, [])
    for key, table in before.items():
        assert columns.table(graph, key, snapshot.graph_version) == table
        assert columns.table(graph, key).select(table.schema.names) == table
    assert check_graph(graph.root, moved=True) == []
    assert engine_schema.agree(graph)
