"""Tables and properties come and go, one publish each; old versions read as before."""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path

import pytest
from pyspark.sql.types import DoubleType, IntegerType, LongType, StringType

from omnigraph_spark import _faults, schema
from omnigraph_spark.errors import (
    ExpectedVersionMismatch,
    IntegrityError,
    OmnigraphError,
    OptionError,
    SchemaMismatchError,
    TableNotFoundError,
    UnsupportedError,
)
from omnigraph_spark.history import commits
from omnigraph_spark.manifest.snapshot import load
from omnigraph_spark.merge.restore import restore
from omnigraph_spark.options import WriteOptions
from omnigraph_spark.refs import branches
from omnigraph_spark.refs.property_files import put_back
from omnigraph_spark.refs.refs import Resolved
from omnigraph_spark.schema.column_order import as_shown
from omnigraph_spark.schema_changes import properties as changes
from omnigraph_spark.spark import ddl, spark_types
from omnigraph_spark.storage.store import Storage
from omnigraph_spark.write.commit.commit import commit
from omnigraph_spark.write.plan import NewTable
from tests.format_checker import check_graph
from tests.support import columns, graphs, plain_writes, writes
from tests.support.columns import properties, rows_of
from tests.support.writes import COMPANY, KNOWS, PERSON, Died, die, once


@pytest.fixture
def graph(tmp_path: Path) -> Iterator[Storage]:
    yield writes.new_graph(Storage.at(str(tmp_path / "g")))
    _faults.disarm()


FIRST = {"id": "first", "name": "first", "age": 0}


def asked(graph: Storage, **more: str) -> WriteOptions:
    return writes.write_options(graph, **more)


def dev(graph: Storage) -> None:
    branches.create_branch(graph, "dev", Resolved("main", None))


# --- add ---------------------------------------------------------------------------------------


def test_an_added_property_is_one_publish_with_lineage_and_older_versions_lack_it(
    graph: Storage,
) -> None:
    before = load(graph).graph_version
    done = changes.add_property(graph, asked(graph, actor="ann"), PERSON, "nick", "String?")
    assert done.graph_version == before + 1
    assert rows_of(graph, PERSON) == [{**FIRST, "nick": None}]
    assert rows_of(graph, PERSON, before) == [FIRST]
    assert properties(graph, PERSON)["nick"] == "String?"
    assert commits.read_commits(graph)[-1].manifest_version == before + 1
    writes.write(graph, {PERSON: ["next"]})
    assert [r["nick"] for r in rows_of(graph, PERSON)] == [None, "next"]
    assert check_graph(graph.root) == []


def test_a_property_that_is_there_already_is_not_published_again(graph: Storage) -> None:
    changes.add_property(graph, asked(graph), "Person", "score", DoubleType())
    before = load(graph)
    assert changes.add_property(graph, asked(graph), "Person", "score", "F64?").skipped
    assert load(graph) == before
    with pytest.raises(SchemaMismatchError, match="OMNIGRAPH_SCHEMA_MISMATCH.*another type"):
        changes.add_property(graph, asked(graph), "Person", "score", "I32?")


def test_a_property_that_a_dying_writer_left_unnamed_is_named_by_the_next_call(
    graph: Storage,
) -> None:
    _faults.arm("commit.published", die)
    with pytest.raises(Died):
        changes.add_property(graph, asked(graph), PERSON, "nick", "enum(a, b)?")
    _faults.disarm()
    assert "nick" not in properties(graph, PERSON)
    assert changes.add_property(graph, asked(graph), PERSON, "nick", "enum(a, b)?").skipped
    assert properties(graph, PERSON)["nick"] == "enum(a, b)?"


@pytest.mark.parametrize("kind", ["String", "Vector(3)", "Nonsense"])
def test_a_new_property_must_allow_nulls(graph: Storage, kind: str) -> None:
    before = graphs.file_hashes(Path(graph.root))
    with pytest.raises(OptionError, match="OMNIGRAPH_OPTION"):
        changes.add_property(graph, asked(graph), PERSON, "nick", kind)
    assert graphs.file_hashes(Path(graph.root)) == before


@pytest.mark.parametrize(
    ("kind", "engine"), [("double", "F64?"), ("BIGINT", "I64?"), ("array<string>", "[String]?")]
)
def test_a_new_property_may_be_of_a_type_by_sparks_name(
    graph: Storage, kind: str, engine: str
) -> None:
    changes.add_property(graph, asked(graph), PERSON, "nick", kind)
    assert properties(graph, PERSON)["nick"] == engine


# --- alter -------------------------------------------------------------------------------------


def test_a_property_that_may_not_be_null_can_be_relaxed(graph: Storage) -> None:
    changes.add_table(graph, asked(graph), "node:Shop", "id STRING, n INT NOT NULL, m INT")
    assert properties(graph, "node:Shop")["n"] == "I32"
    before = load(graph)
    done = changes.alter_property(graph, asked(graph, actor="ann"), "Shop", "n", True)
    assert done.graph_version == before.graph_version + 1
    assert properties(graph, "node:Shop") == {"n": "I32?", "m": "I32?"}
    assert changes.alter_property(graph, asked(graph), "Shop", "n", True).skipped
    frame = [("id", StringType()), ("n", IntegerType())]
    columns.write(graph, "node:Shop", frame, [{"id": "a", "n": None}])
    assert rows_of(graph, "node:Shop") == [{"id": "a", "n": None, "m": None}]
    assert commits.read_commits(graph)[-2].manifest_version == done.graph_version
    assert check_graph(graph.root) == []


def test_what_may_not_be_relaxed_is_refused_and_nothing_is_written(graph: Storage) -> None:
    changes.add_table(graph, asked(graph, keys="Shop: k"), "node:Shop", "k STRING, n INT NOT NULL")
    dev(graph)
    before = graphs.file_hashes(Path(graph.root))
    for name, kind in (("id", SchemaMismatchError), ("k", SchemaMismatchError),
                       ("nope", SchemaMismatchError), ("n", UnsupportedError)):  # fmt: skip
        with pytest.raises(kind):
            changes.alter_property(graph, asked(graph), "node:Shop", name, True)
    with pytest.raises(OptionError, match="NOT NULL"):
        changes.alter_property(graph, asked(graph), "node:Shop", "n", False)
    assert graphs.file_hashes(Path(graph.root)) == before


# --- widen -------------------------------------------------------------------------------------


WIDE = "id STRING, i INT NOT NULL, f FLOAT, d DECIMAL(5, 2), t TINYINT, u INT, l ARRAY<INT>"
WIDE_ROW = {"i": 2_000_000_000, "f": 1.5, "d": Decimal("999.99"), "t": 7, "u": None, "l": [1]}


def wide(graph: Storage) -> None:
    changes.add_table(graph, asked(graph), "node:Wide", WIDE)
    frame = [(f.name, f.dataType) for f in ddl.parse_columns(WIDE).fields]
    rows = [{"id": name, **WIDE_ROW} for name in ("a", "b")]
    columns.write(graph, "node:Wide", frame, rows)
    columns.write(graph, "node:Wide", frame, [{"id": "c", **WIDE_ROW, "f": None}])


@pytest.mark.long
def test_a_widened_property_keeps_its_values_and_takes_larger_ones(graph: Storage) -> None:
    wide(graph)
    writes.write(graph, {"node:Wide": ["b"]}, writeMode="delete", new={})
    changes.drop_property(graph, asked(graph), "node:Wide", "l")
    before = load(graph).graph_version
    for name, kind in (("i", "I64"), ("f", DoubleType()), ("d", "decimal(20, 4)"),
                       ("t", "bigint"), ("u", "I64?")):  # fmt: skip
        done = changes.widen_property(graph, asked(graph), "Wide", name, kind)
        assert not done.skipped
        assert changes.widen_property(graph, asked(graph), "Wide", name, kind).skipped
    since = [one for one in commits.read_commits(graph) if one.manifest_version > before]
    assert len(since) == 5
    row = {**WIDE_ROW, "d": Decimal("999.9900")}
    del row["l"]
    assert rows_of(graph, "node:Wide") == [{"id": "a", **row}, {"id": "c", **row, "f": None}]
    found = columns.table(graph, "node:Wide").schema
    assert {f.name: str(f.type) for f in found if f.name != "id"} == {
        "i": "int64", "f": "double", "d": "decimal128(20, 4)", "t": "int64", "u": "int64",
    }  # fmt: skip
    assert [f.name for f in as_shown(found, False)] == ["id", "i", "f", "d", "t", "u"]
    assert spark_types.spark_type(found.field("t")) == LongType()
    assert not found.field("i").nullable
    assert properties(graph, "node:Wide") == {"i": "I64", "f": "F64?", "t": "I64?", "u": "I64?"}
    frame = [("id", StringType()), ("i", LongType()), ("t", LongType())]
    columns.write(graph, "node:Wide", frame, [{"id": "d", "i": 1 << 40, "t": 1 << 41}])
    assert [(r["i"], r["t"]) for r in rows_of(graph, "node:Wide")][-1] == (1 << 40, 1 << 41)
    assert [r["i"] for r in rows_of(graph, "node:Wide", before)] == [2_000_000_000] * 2
    assert str(columns.table(graph, "node:Wide", before).schema.field("i").type) == "int32"
    assert check_graph(graph.root) == []


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("i", "F32"), ("i", "F64"), ("i", "String"), ("f", "I64"), ("d", "decimal(5, 3)"), ("d", "decimal(6, 4)"),
        ("d", "double"), ("l", "[I64]"), ("t", "int"), ("id", "F64"), ("ghost", "I64"), ("i", "Date"),
    ],
)  # fmt: skip
def test_a_type_that_does_not_hold_all_values_is_refused_and_nothing_is_written(
    graph: Storage, name: str, kind: str
) -> None:
    wide(graph)
    before = graphs.file_hashes(Path(graph.root))
    with pytest.raises(SchemaMismatchError, match="OMNIGRAPH_SCHEMA_MISMATCH"):
        changes.widen_property(graph, asked(graph), "Wide", name, kind)
    assert graphs.file_hashes(Path(graph.root)) == before


@pytest.mark.parametrize(
    ("old", "new"), [("String?", "enum(a, b)"), ("enum(a, b)?", "String"), ("enum(a, b)?", "enum(a, b, c)")]
)  # fmt: skip
def test_the_values_of_an_enum_are_no_type_that_is_widened(
    graph: Storage, old: str, new: str
) -> None:
    changes.add_property(graph, asked(graph), PERSON, "mood", old)
    before = graphs.file_hashes(Path(graph.root))
    with pytest.raises(SchemaMismatchError, match="values of an enum can't be changed"):
        changes.widen_property(graph, asked(graph), PERSON, "mood", new)
    assert changes.widen_property(graph, asked(graph), PERSON, "mood", old).skipped
    assert graphs.file_hashes(Path(graph.root)) == before


@pytest.mark.long
def test_a_property_that_is_widened_on_a_branch_has_its_old_type_on_others(graph: Storage) -> None:
    wide(graph)
    changes.alter_property(graph, asked(graph), "Wide", "i", True)
    dev(graph)
    changes.widen_property(graph, asked(graph, branch="dev"), "Wide", "i", "I64")
    assert str(columns.table(graph, "node:Wide").schema.field("i").type) == "int32"
    assert [r["i"] for r in columns.table(graph, "node:Wide", branch="dev").to_pylist()] == [
        2_000_000_000
    ] * 3
    assert "i" not in properties(graph, "node:Wide")
    assert check_graph(graph.root) == []
    changes.widen_property(graph, asked(graph), "Wide", "i", "I64")
    assert properties(graph, "node:Wide")["i"] == "I64?"
    assert check_graph(graph.root) == []


@pytest.mark.long
def test_a_restore_over_a_widened_property_gives_it_its_old_type_again(graph: Storage) -> None:
    wide(graph)
    before, rows = load(graph).graph_version, rows_of(graph, "node:Wide")
    changes.widen_property(graph, asked(graph), "Wide", "u", "I64")
    changes.alter_property(graph, asked(graph), "Wide", "i", True)
    restore(graph, writes.write_options(graph, "overwrite"), str(before))
    assert rows_of(graph, "node:Wide") == rows
    assert {**properties(graph, "node:Wide"), "l": ""} == {
        "i": "I32", "f": "F32?", "t": "I32?", "u": "I32?", "l": ""
    }  # fmt: skip
    assert check_graph(graph.root) == []


def test_rows_that_land_while_a_property_is_widened_are_widened_too(graph: Storage) -> None:
    _faults.arm("table.before_columns", once(lambda: writes.write(graph, {PERSON: ["rival"]})))
    changes.widen_property(graph, asked(graph), PERSON, "age", "I64")
    assert rows_of(graph, PERSON) == [FIRST, {"id": "rival", "name": "rival", "age": 0}]
    assert properties(graph, PERSON) == {"name": "String", "age": "I64?"}
    assert check_graph(graph.root) == []


def test_a_type_that_another_writer_gave_meanwhile_stays(graph: Storage) -> None:
    changes.add_property(graph, asked(graph), PERSON, "sum", "DECIMAL(5,2)")
    wider = ("DECIMAL(12,6)", "DECIMAL(8,2)")
    rival, late = (
        lambda kind=kind: changes.widen_property(graph, asked(graph), PERSON, "sum", kind)
        for kind in wider
    )
    _faults.arm("commit.entered", once(rival))
    with pytest.raises(SchemaMismatchError, match="were changed by another writer meanwhile"):
        late()
    assert rows_of(graph, PERSON) == [{**FIRST, "sum": None}]
    entry = load(graph).tables[PERSON]
    stored = graph.dataset(entry.location, None, entry.table_version).schema
    assert str(stored.field("sum").type) == "decimal128(12, 6)"


def test_rows_that_were_staged_before_a_property_was_widened_are_refused(graph: Storage) -> None:
    planned = writes.plan(graph, [PERSON])
    staged = writes.stage_rows(planned, {PERSON: ["late"]})
    changes.widen_property(graph, asked(graph), PERSON, "age", "I64")
    with pytest.raises(SchemaMismatchError, match="OMNIGRAPH_SCHEMA_MISMATCH.*column age"):
        commit(planned, staged)
    assert rows_of(graph, PERSON) == [FIRST]


@pytest.mark.parametrize(
    "point", ["table.before_columns", "table.after_commit", "commit.published"]
)
def test_a_widening_that_dies_is_taken_back_or_stands_as_a_whole(
    graph: Storage, point: str
) -> None:
    _faults.arm(point, die)
    with pytest.raises(Died):
        changes.widen_property(graph, asked(graph), PERSON, "age", "I64")
    _faults.disarm()
    assert check_graph(graph.root, crashed=True) == []
    writes.write(graph, {PERSON: ["next"]}, orphanGraceSeconds="0")
    assert [r["id"] for r in rows_of(graph, PERSON)] == ["first", "next"]
    kind = "int64" if point == "commit.published" else "int32"
    assert str(columns.table(graph, PERSON).schema.field("age").type) == kind
    put_back(graph)
    assert properties(graph, PERSON)["age"] == ("I64?" if kind == "int64" else "I32?")
    assert check_graph(graph.root, crashed=point == "commit.published") == []


@pytest.mark.parametrize(
    ("call", "given", "kind"),
    [
        ("add_property", (PERSON, "id", "String?"), SchemaMismatchError),
        ("add_property", (KNOWS, "src", "String?"), SchemaMismatchError),
        ("add_property", (PERSON, 3, "String?"), OptionError),
        ("add_property", (PERSON, "q", 3), OptionError),
        ("drop_property", (None, "age"), OptionError),
        ("drop_property", (PERSON, None), OptionError),
        ("rename_property", (PERSON, "age", None), OptionError),
        ("alter_property", (b"Person", "age", True), OptionError),
    ],
)
def test_names_that_no_property_can_have_are_refused_by_type(
    graph: Storage, call: str, given: tuple[object, ...], kind: type[OmnigraphError]
) -> None:
    before = graphs.file_hashes(Path(graph.root))
    with pytest.raises(kind):
        getattr(changes, call)(graph, asked(graph), *given)
    assert graphs.file_hashes(Path(graph.root)) == before


# --- drop and rename ---------------------------------------------------------------------------


def test_a_dropped_property_is_gone_from_now_on_and_there_in_older_versions(
    graph: Storage,
) -> None:
    before = load(graph).graph_version
    done = changes.drop_property(graph, asked(graph), PERSON, "age")
    assert done.graph_version == before + 1
    assert rows_of(graph, PERSON) == [{"id": "first", "name": "first"}]
    assert rows_of(graph, PERSON, before) == [FIRST]
    assert properties(graph, PERSON) == {"name": "String"}
    assert check_graph(graph.root) == []


@pytest.mark.long
def test_what_comes_after_a_dropped_property_keeps_its_values_through_every_later_change(
    tmp_path: Path,
) -> None:
    graph = Storage.at(str(tmp_path / "later"))
    columns_there = {"id": ["a", "b"], "m": ["ma", "mb"], "n": ["na", "nb"], "q": ["qa", "qb"]}
    plain_writes.save(graph.root, columns_there, table=PERSON)
    changes.drop_property(graph, asked(graph), PERSON, "m")
    changes.rename_property(graph, asked(graph), PERSON, "n", "k")
    changes.add_property(graph, asked(graph), PERSON, "z", "String?")
    more = {"id": ["c"], "k": ["kc"], "q": ["qc"], "z": ["zc"], "w": ["wc"]}
    plain_writes.save(graph.root, more, table=PERSON, mergeSchema="true")
    changes.drop_property(graph, asked(graph), PERSON, "z")
    changes.rename_property(graph, asked(graph), PERSON, "q", "r")
    assert rows_of(graph, PERSON) == [
        {"id": "a", "k": "na", "r": "qa", "w": None},
        {"id": "b", "k": "nb", "r": "qb", "w": None},
        {"id": "c", "k": "kc", "r": "qc", "w": "wc"},
    ]
    assert check_graph(graph.root) == []


def test_a_property_that_was_dropped_and_added_again_has_no_old_values(graph: Storage) -> None:
    changes.drop_property(graph, asked(graph), PERSON, "age")
    changes.add_property(graph, asked(graph), PERSON, "age", "I32?")
    assert rows_of(graph, PERSON) == [{**FIRST, "age": None}]
    writes.write(graph, {PERSON: ["next"]})
    assert [r["age"] for r in rows_of(graph, PERSON)] == [None, 0]


def test_a_renamed_property_keeps_its_values_and_its_index(graph: Storage) -> None:
    dataset = graph.dataset(load(graph).entry(PERSON).location)
    assert dataset.schema.names == ["id", "name", "age"]
    before = load(graph).graph_version
    changes.rename_property(graph, asked(graph), PERSON, "age", "years")
    assert rows_of(graph, PERSON) == [{"id": "first", "name": "first", "years": 0}]
    assert rows_of(graph, PERSON, before) == [FIRST]
    assert properties(graph, PERSON) == {"name": "String", "years": "I32?"}
    writes.write(graph, {PERSON: ["next"]})
    assert [r["years"] for r in rows_of(graph, PERSON)] == [0, 0]
    assert check_graph(graph.root) == []


@pytest.mark.parametrize(
    ("table", "name"), [(PERSON, "id"), (PERSON, "name"), (KNOWS, "src"), (PERSON, "ghost")]
)
def test_the_key_and_the_fixed_columns_stay(graph: Storage, table: str, name: str) -> None:
    before = graphs.file_hashes(Path(graph.root))
    with pytest.raises(SchemaMismatchError, match="OMNIGRAPH_SCHEMA_MISMATCH"):
        changes.drop_property(graph, asked(graph), table, name)
    with pytest.raises(SchemaMismatchError, match="OMNIGRAPH_SCHEMA_MISMATCH"):
        changes.rename_property(graph, asked(graph), table, name, "other")
    assert graphs.file_hashes(Path(graph.root)) == before


@pytest.mark.parametrize("new", ["name", "a.b", "_rowid", "NAME"])
def test_a_name_that_is_taken_or_that_no_column_can_have_is_refused(
    graph: Storage, new: str
) -> None:
    with pytest.raises(SchemaMismatchError, match="OMNIGRAPH_SCHEMA_MISMATCH"):
        changes.rename_property(graph, asked(graph), PERSON, "age", new)
    assert properties(graph, PERSON) == {"age": "I32?", "name": "String"}


def test_a_property_that_another_branch_still_has_leaves_the_schema_files_only(
    graph: Storage,
) -> None:
    dev(graph)
    changes.rename_property(graph, asked(graph, branch="dev"), PERSON, "age", "years")
    assert properties(graph, PERSON) == {"name": "String"}
    assert rows_of(graph, PERSON) == [FIRST]
    assert "years" in columns.table(graph, PERSON, branch="dev").schema.names
    assert check_graph(graph.root) == []
    changes.rename_property(graph, asked(graph), PERSON, "age", "years")
    assert properties(graph, PERSON) == {"name": "String", "years": "I32?"}
    assert check_graph(graph.root) == []


def test_a_property_that_allows_no_nulls_stays_while_another_branch_has_it(
    graph: Storage,
) -> None:
    name = COMPANY, "name"
    engine_schema_text = graph.get("_schema.pg")
    assert engine_schema_text is not None
    writes.write(graph, {"node:City": ["c"]}, new={"node:City": NewTable(writes.NODE_SCHEMA)})
    dev(graph)
    with pytest.raises(UnsupportedError, match=r"OMNIGRAPH_UNSUPPORTED.*branch dev"):
        changes.drop_property(graph, asked(graph), "node:City", name[1])
    branches.delete_branch(graph, "dev")
    changes.drop_property(graph, asked(graph), "node:City", name[1])
    assert check_graph(graph.root) == []


def test_a_failed_drop_leaves_the_schema_files_as_they_were(graph: Storage) -> None:
    before = load(graph).tables

    def broken() -> None:
        raise OSError("disk full")

    _faults.arm("publish.sending", broken)
    with pytest.raises(OmnigraphError):
        changes.drop_property(graph, asked(graph), PERSON, "age")
    _faults.disarm()
    assert load(graph).tables == before
    assert properties(graph, PERSON) == {"name": "String", "age": "I32?"}
    assert schema.agree(graph)
    assert "age" in graph.dataset(before[PERSON].location).schema.names


@pytest.mark.parametrize("point", ["commit.before_table", "table.after_commit", "commit.published"])
def test_a_dying_drop_leaves_nothing_that_the_schema_files_name_and_a_table_lacks(
    graph: Storage, point: str
) -> None:
    _faults.arm(point, die)
    with pytest.raises(Died):
        changes.drop_property(graph, asked(graph), PERSON, "age")
    _faults.disarm()
    assert check_graph(graph.root, crashed=True) == []


def test_an_append_that_publishes_while_a_property_is_dropped_keeps_its_rows(
    graph: Storage,
) -> None:
    _faults.arm("commit.before_table", once(lambda: writes.write(graph, {PERSON: ["rival"]})))
    changes.drop_property(graph, asked(graph), PERSON, "age")
    assert [r["id"] for r in rows_of(graph, PERSON)] == ["first", "rival"]
    assert "age" not in rows_of(graph, PERSON)[0]
    assert check_graph(graph.root) == []


@pytest.mark.parametrize("mode", ["append", "merge"])
def test_rows_that_were_staged_before_a_property_was_added_land_without_it(
    graph: Storage, mode: str
) -> None:
    planned = writes.plan(graph, [PERSON], writeMode=mode)
    staged = writes.stage_rows(
        planned, {PERSON: ["first", "late"] if mode == "merge" else ["late"]}
    )
    changes.add_property(graph, asked(graph), PERSON, "nick", "String?")
    changes.add_property(graph, asked(graph), PERSON, "ages", "[I32]?")
    commit(planned, staged)
    found = {r["id"]: (r["name"], r["nick"], r["ages"]) for r in rows_of(graph, PERSON)}
    assert found == {"first": ("first", None, None), "late": ("late", None, None)}
    assert check_graph(graph.root) == []


def test_a_property_that_is_added_while_rows_are_appended_lands_with_them(graph: Storage) -> None:
    _faults.arm("commit.before_table", once(lambda: writes.write(graph, {PERSON: ["rival"]})))
    changes.add_property(graph, asked(graph), PERSON, "nick", "String?")
    assert [(r["id"], r["nick"]) for r in rows_of(graph, PERSON)] == [
        ("first", None), ("rival", None)
    ]  # fmt: skip
    assert check_graph(graph.root) == []


def test_rows_that_were_staged_before_a_property_was_dropped_are_refused(graph: Storage) -> None:
    planned = writes.plan(graph, [PERSON])
    staged = writes.stage_rows(planned, {PERSON: ["late"]})
    changes.drop_property(graph, asked(graph), PERSON, "age")
    with pytest.raises(SchemaMismatchError, match="OMNIGRAPH_SCHEMA_MISMATCH.*column age"):
        commit(planned, staged)
    assert [r["id"] for r in rows_of(graph, PERSON)] == ["first"]


def test_a_restore_over_changed_properties_keeps_the_schema_files_in_step(
    graph: Storage,
) -> None:
    first = load(graph).graph_version
    changes.add_property(graph, asked(graph), PERSON, "nick", "String?")
    changes.drop_property(graph, asked(graph), PERSON, "age")
    second = load(graph).graph_version
    restore(graph, writes.write_options(graph, "overwrite"), str(first))
    assert rows_of(graph, PERSON) == [FIRST]
    assert properties(graph, PERSON) == {"name": "String", "age": "I32?"}
    assert check_graph(graph.root) == []
    restore(graph, writes.write_options(graph, "overwrite"), str(second))
    assert rows_of(graph, PERSON) == [{"id": "first", "name": "first", "nick": None}]
    assert properties(graph, PERSON) == {"name": "String", "nick": "String?"}
    assert check_graph(graph.root) == []


# --- tables ------------------------------------------------------------------------------------


def test_an_added_table_is_empty_and_takes_rows(graph: Storage) -> None:
    changes.add_table(graph, asked(graph, keys="City: name"), "node:City", "name STRING, size INT")
    changes.add_table(
        graph, asked(graph, endpoints="LivesIn: Person -> City"), "edge:LivesIn", "since DATE"
    )
    assert columns.table(graph, "node:City").schema.names == ["id", "name", "size"]
    assert columns.table(graph, "edge:LivesIn").schema.names == ["id", "src", "dst", "since"]
    assert load(graph).entry("node:City").row_count == 0
    writes.write(graph, {"node:City": ["c"]})
    assert [r["id"] for r in rows_of(graph, "node:City")] == ["c"]
    with pytest.raises(OptionError, match=r"OMNIGRAPH_OPTION.*node:City is there already"):
        changes.add_table(graph, asked(graph), "node:City", "name STRING")
    assert check_graph(graph.root) == []


def test_a_table_that_a_rival_makes_at_the_same_moment_is_made_once(graph: Storage) -> None:
    def rival() -> None:
        changes.add_table(graph, asked(graph), "node:City", "name STRING")

    _faults.arm("commit.entered", once(rival))
    with pytest.raises(ExpectedVersionMismatch, match="OMNIGRAPH_EXPECTED_VERSION_MISMATCH"):
        changes.add_table(graph, asked(graph), "node:City", "name STRING")
    assert load(graph).entry("node:City").row_count == 0
    assert check_graph(graph.root) == []


def test_a_dropped_table_is_gone_and_its_data_and_older_versions_stay(graph: Storage) -> None:
    before = load(graph)
    done = changes.drop_table(graph, asked(graph), ["Company"])
    assert done.graph_version == before.graph_version + 1
    assert COMPANY not in load(graph).tables
    assert rows_of(graph, COMPANY, before.graph_version) == [FIRST]
    with pytest.raises(TableNotFoundError, match="OMNIGRAPH_TABLE_NOT_FOUND"):
        changes.drop_table(graph, asked(graph), [COMPANY])
    assert check_graph(graph.root) == []
    changes.add_table(graph, asked(graph, keys="Company: name"), COMPANY, "name STRING, age INT")
    writes.write(graph, {COMPANY: ["new"]})
    assert [r["id"] for r in rows_of(graph, COMPANY)] == ["new"]
    assert check_graph(graph.root) == []


def test_a_node_table_goes_only_together_with_the_edge_tables_that_end_there(
    graph: Storage,
) -> None:
    before = load(graph).tables
    with pytest.raises(IntegrityError, match=r"OMNIGRAPH_INTEGRITY.*edge:Knows"):
        changes.drop_table(graph, asked(graph), [PERSON])
    assert load(graph).tables == before
    changes.drop_table(graph, asked(graph), [PERSON, KNOWS])
    assert set(load(graph).tables) == {COMPANY}
    assert check_graph(graph.root) == []


def test_an_edge_table_that_is_made_while_its_end_is_dropped_stops_the_drop(
    graph: Storage,
) -> None:
    def rival() -> None:
        changes.add_table(
            graph, asked(graph, endpoints="Owns: Company -> Company"), "edge:Owns", ""
        )

    for point in ("commit.entered", "commit.before_publish"):
        _faults.arm(point, once(rival))
        with pytest.raises((IntegrityError, ExpectedVersionMismatch)):
            changes.drop_table(graph, asked(graph), [COMPANY])
        _faults.disarm()
        assert COMPANY in load(graph).tables
        changes.drop_table(graph, asked(graph), ["edge:Owns"])


def test_a_table_that_is_written_to_while_it_is_dropped_stays(graph: Storage) -> None:
    _faults.arm("commit.entered", once(lambda: writes.write(graph, {COMPANY: ["late"]})))
    with pytest.raises(ExpectedVersionMismatch, match="OMNIGRAPH_EXPECTED_VERSION_MISMATCH"):
        changes.drop_table(graph, asked(graph), [COMPANY])
    assert [r["id"] for r in rows_of(graph, COMPANY)] == ["first", "late"]


# --- the engine's own graphs -------------------------------------------------------------------


@pytest.mark.long
@pytest.mark.parametrize("name", ["rich", "pharma"])
def test_the_engines_graphs_after_changes_are_still_what_format_says(
    tmp_path: Path, name: str
) -> None:
    graph = Storage.at(str(graphs.unpack("v2", name, tmp_path)))
    old = load(graph)
    before = {key: columns.table(graph, key) for key in old.tables}
    node, free = {"rich": ("node:Sample", "i32"), "pharma": ("node:Trial", "enrollment")}[name]
    edge = {"rich": "edge:Likes", "pharma": "edge:AboutDeal"}[name]
    changes.add_property(graph, asked(graph), node, "added", "F64?")
    changes.add_property(graph, asked(graph), edge, "added", "[String]?")
    field = before[node].schema.field(free)
    if field.nullable:
        changes.rename_property(graph, asked(graph), node, free, "renamed")
        assert columns.table(graph, node)["renamed"] == before[node][free]
        changes.drop_property(graph, asked(graph), node, "renamed")
    else:
        changes.drop_property(graph, asked(graph), node, "added")
    changes.drop_table(graph, asked(graph), [edge])
    for key, table in before.items():
        assert columns.table(graph, key, old.graph_version) == table
    assert check_graph(graph.root, moved=True) == []
    assert schema.agree(graph)
