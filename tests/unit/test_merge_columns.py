"""Merges of branches whose tables' columns changed: what one side alone changed is taken from it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from omnigraph_spark import _faults
from omnigraph_spark import schema as engine_schema
from omnigraph_spark.errors import IntegrityError, SchemaMismatchError
from omnigraph_spark.maintenance.check import check
from omnigraph_spark.maintenance.optimize import optimize, run_here
from omnigraph_spark.manifest.snapshot import load
from omnigraph_spark.schema_changes import properties as changes
from omnigraph_spark.storage.store import Storage
from tests.format_checker import check_graph
from tests.support import columns, merges, ruled
from tests.support.branches import ids_at, make
from tests.support.plain_writes import save
from tests.support.writes import DEFAULT, Died, Kept, die, write_options

P = merges.PERSON
INT, TEXT = "I32?", "String?"
START: dict[str, Any] = {"id": ["a", "b", "c"], "n": [1, 2, 3], "m": ["x", "y", "z"]}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Kept:
    """Three people with a number and a text; branches `dev` and `other` of it."""

    def make_it(storage: Storage) -> None:
        save(storage.root, START, table=P)
        make(storage, "dev")
        make(storage, "other")

    return Kept(tmp_path_factory.mktemp("made"), make_it)


@pytest.fixture
def graph(made: Kept) -> Storage:
    return made.copy()


def put(graph: Storage, branch: str, mode: str = "merge", **rows: Any) -> None:
    """Write rows, given by column."""
    save(graph.root, rows, table=P, branch=branch, writeMode=mode)


def add(graph: Storage, branch: str, name: str = "q", kind: str = TEXT) -> None:
    changes.add_property(graph, write_options(graph, branch=branch), P, name, kind)


def drop(graph: Storage, branch: str, name: str = "n") -> None:
    changes.drop_property(graph, write_options(graph, branch=branch), P, name)


def rename(graph: Storage, branch: str, old: str = "n", new: str = "years") -> None:
    changes.rename_property(graph, write_options(graph, branch=branch), P, old, new)


def people(graph: Storage, branch: str = "main") -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = columns.table(graph, P, branch=branch).to_pylist()
    return found


def row(name: str, **values: Any) -> dict[str, Any]:
    return {"id": name, **values}


def merge(graph: Storage, source: str, into: str = "main", **more: Any) -> None:
    merges.merge(graph, source, into, **more)
    assert not check(graph)
    assert not check_graph(graph.root)
    assert engine_schema.agree(graph)


INTO = ["main", "other"]


def _sides(into: str, changed: str) -> tuple[str, str]:
    """Return (the branch whose columns change, the other one) of a merge of `dev` into `into`."""
    return ("dev", into) if changed == "source" else (into, "dev")


@pytest.mark.long
@pytest.mark.parametrize("into", INTO)
@pytest.mark.parametrize("changed", ["source", "target"])
def test_a_property_that_one_side_added_comes_with_its_values(
    graph: Storage, into: str, changed: str
) -> None:
    one, other = _sides(into, changed)
    add(graph, one)
    put(graph, one, id=["a", "new"], n=[1, 9], m=["x", "w"], q=["qa", "qn"])
    put(graph, other, id=["b", "more"], n=[20, 8], m=["y", "v"])
    merge(graph, "dev", into)
    assert people(graph, into) == [
        row("a", n=1, m="x", q="qa"),
        row("b", n=20, m="y", q=None),
        row("c", n=3, m="z", q=None),
        row("more", n=8, m="v", q=None),
        row("new", n=9, m="w", q="qn"),
    ]


@pytest.mark.long
@pytest.mark.parametrize("into", INTO)
@pytest.mark.parametrize("changed", ["source", "target"])
def test_a_property_that_one_side_renamed_keeps_the_values_of_both(
    graph: Storage, into: str, changed: str
) -> None:
    one, other = _sides(into, changed)
    rename(graph, one)
    put(graph, one, id=["a", "new"], years=[10, 9], m=["x", "w"])
    put(graph, other, id=["b", "more"], n=[20, 8], m=["y", "v"])
    merge(graph, "dev", into)
    expected = [
        row("a", m="x", years=10),
        row("b", m="y", years=20),
        row("c", m="z", years=3),
        row("more", m="v", years=8),
        row("new", m="w", years=9),
    ]
    assert people(graph, into) == expected
    assert load(graph, into).tables[P].row_count == 5


@pytest.mark.long
@pytest.mark.parametrize("into", INTO)
@pytest.mark.parametrize("changed", ["source", "target"])
def test_a_property_that_one_side_dropped_goes_and_rows_of_the_other_that_lack_it_come(
    graph: Storage, into: str, changed: str
) -> None:
    one, other = _sides(into, changed)
    drop(graph, one)
    put(graph, one, id=["a"], m=["xx"])
    put(graph, other, id=["b", "more"], n=[2, None], m=["yy", "v"])
    merge(graph, "dev", into)
    assert people(graph, into) == [
        row("a", m="xx"),
        row("b", m="yy"),
        row("c", m="z"),
        row("more", m="v"),
    ]


NEW_ALONE = ({"id": ["new"], "n": [8], "m": ["w"]}, ["new"])
CHANGED_TOO = ({"id": [*"cba", "new"], "n": [None, 2, 10, 0], "m": [*"zyxw"]}, ["a", "c", "new"])


@pytest.mark.long
@pytest.mark.parametrize(("into", "rows", "ids"), [("main", *NEW_ALONE), ("other", *CHANGED_TOO)])
@pytest.mark.parametrize("changed", ["source", "target"])
def test_values_that_one_side_changed_or_added_and_the_other_dropped_are_a_conflict_that_names_them(
    graph: Storage, into: str, changed: str, rows: dict[str, Any], ids: list[str]
) -> None:
    one, other = _sides(into, changed)
    drop(graph, one)
    put(graph, other, **rows)
    before = load(graph, into).graph_version
    with pytest.raises(SchemaMismatchError, match=f"{one} dropped n of {P}") as refused:
        merge(graph, "dev", into)
    assert refused.value.details == {"table_key": P, "column": "n", "samples": ids}
    assert f"drop_property('{P}', 'n', branch='{other}')" in str(refused.value)
    assert load(graph, into).graph_version == before
    drop(graph, other)
    merge(graph, "dev", into)
    after = dict(zip(START["id"], START["m"], strict=True)) | dict(
        zip(rows["id"], rows["m"], strict=True)
    )
    assert people(graph, into) == [row(one, m=m) for one, m in sorted(after.items())]


@pytest.mark.long
@pytest.mark.parametrize("changed", ["source", "target"])
def test_a_property_that_may_be_null_on_one_side_may_be_null_after_the_merge(
    tmp_path: Path, changed: str
) -> None:
    graph = Storage.at(str(tmp_path / "g"))
    changes.add_table(graph, write_options(graph), P, "id STRING, n INT NOT NULL, m STRING")
    save(graph.root, START, table=P, integrity="keys")
    make(graph, "dev")
    one, other = _sides("main", changed)
    options = write_options(graph, branch=one)
    # The call itself refuses this while another branch has the property; the engine doesn't.
    changes._reshaped(graph, options, changes._plan(graph, options, P), {"n": "n"})
    put(graph, one, id=["d"], m=["v"])
    put(graph, other, id=["b"], n=[20], m=["y"])
    merge(graph, "dev")
    assert [one["n"] for one in people(graph)] == [1, 20, 3, None]
    assert columns.table(graph, P).schema.field("n").nullable


@pytest.mark.long
def test_a_fast_forward_takes_added_renamed_and_dropped_properties_at_once(graph: Storage) -> None:
    rename(graph, "dev", "n", "years")
    drop(graph, "dev", "m")
    add(graph, "dev", "n", TEXT)
    put(graph, "dev", id=["a", "d"], years=[10, 4], n=["one", "four"])
    found = merges.prepare(graph, "dev", only_fast_forward=True)
    assert found.written == (P,)
    assert people(graph)[0] == row("a", n=1, m="x")  # nothing is written by what only prepares
    merge(graph, "dev")
    assert people(graph) == [
        row("a", years=10, n="one"),
        row("b", years=2, n=None),
        row("c", years=3, n=None),
        row("d", years=4, n="four"),
    ]
    assert people(graph, "dev") == people(graph)


@pytest.mark.long
@pytest.mark.parametrize("rows", [False, True])
def test_a_change_of_columns_alone_is_merged_and_not_found_again(
    graph: Storage, rows: bool
) -> None:
    rename(graph, "dev")
    if rows:
        put(graph, "main", id=["d"], n=[4], m=["v"])
    merge(graph, "dev")
    assert [one["years"] for one in people(graph)] == [1, 2, 3, 4][: 3 + rows]
    assert merges.merge(graph, "dev").skipped


@pytest.mark.long
def test_the_same_change_on_both_sides_is_no_conflict(graph: Storage) -> None:
    for branch in ("dev", "main"):
        rename(graph, branch)
        drop(graph, branch, "m")
        add(graph, branch)
    put(graph, "dev", id=["a"], years=[10], q=["qa"])
    put(graph, "main", id=["b"], years=[20], q=["qb"])
    merge(graph, "dev")
    assert people(graph) == [
        row("a", years=10, q="qa"),
        row("b", years=20, q="qb"),
        row("c", years=3, q=None),
    ]


@pytest.mark.parametrize(
    ("ours", "theirs", "column", "text"),
    [
        (
            ("rename", "n", "age"),
            ("rename", "n", "years"),
            "n",
            "rename_property('{P}', 'age', 'years', branch='main')",
        ),
        (("rename", "n", "age"), ("drop", "n"), "n", "drop_property('{P}', 'age', branch='main')"),
        (("drop", "n"), ("rename", "n", "age"), "n", "drop_property('{P}', 'age', branch='dev')"),
        (("add", "q", INT), ("add", "q", TEXT), "q", "rename_property('{P}', 'q', …)"),
        (
            ("add", "years", INT),
            ("rename", "n", "years"),
            "years",
            "rename_property('{P}', 'years', …)",
        ),
        (("add", "Q", INT), ("add", "q", INT), "q", "rename_property('{P}', 'q', …)"),
    ],
)
def test_what_both_sides_changed_in_different_ways_is_a_conflict_that_names_it_and_the_call(
    graph: Storage, ours: tuple[str, ...], theirs: tuple[str, ...], column: str, text: str
) -> None:
    for branch, (what, *given) in (("main", ours), ("dev", theirs)):
        {"add": add, "drop": drop, "rename": rename}[what](graph, branch, *given)
    before = load(graph).graph_version
    with pytest.raises(SchemaMismatchError) as refused:
        merge(graph, "dev")
    assert refused.value.details == {"table_key": P, "column": column}
    assert text.format(P=P) in str(refused.value)
    assert load(graph).graph_version == before


@pytest.mark.long
def test_a_rename_after_an_earlier_merge_is_taken_and_never_loses_values(
    graph: Storage,
) -> None:
    put(graph, "dev", id=["d"], n=[4], m=["v"])
    put(graph, "main", id=["e"], n=[5], m=["w"])
    merge(graph, "dev")
    rename(graph, "main")
    put(graph, "dev", id=["f"], n=[6], m=["u"])
    merge(graph, "dev")
    assert [(one["id"], one["years"]) for one in people(graph)] == [
        ("a", 1),
        ("b", 2),
        ("c", 3),
        ("d", 4),
        ("e", 5),
        ("f", 6),
    ]


@pytest.mark.long
def test_a_rename_that_may_be_another_column_is_asked_for_and_never_loses_values(
    graph: Storage,
) -> None:
    rename(graph, "main")
    put(graph, "dev", id=["d"], n=[4], m=["v"])
    put(graph, "main", id=["e"], years=[5], m=["w"])
    merge(graph, "dev")
    rename(graph, "main", "years", "age")
    put(graph, "dev", id=["f"], n=[6], m=["u"])
    with pytest.raises(SchemaMismatchError, match="main renamed n to age, or") as refused:
        merge(graph, "dev")
    assert f"rename_property('{P}', 'n', 'age', branch='dev')" in str(refused.value)
    rename(graph, "dev", "n", "age")
    merge(graph, "dev")
    assert [(one["id"], one["age"]) for one in people(graph)] == [
        ("a", 1),
        ("b", 2),
        ("c", 3),
        ("d", 4),
        ("e", 5),
        ("f", 6),
    ]


@pytest.mark.long
@pytest.mark.parametrize("changed", ["source", "target"])
def test_names_that_moved_to_other_columns_after_an_earlier_merge_take_their_values_along(
    graph: Storage, changed: str
) -> None:
    one, other = _sides("main", changed)
    add(graph, other, "q")
    put(graph, other, id=["a"], n=[1], m=["x"], q=["qa"])
    merge(graph, other, one)
    put(graph, one, id=["a"], n=[1], m=["x"], q=["mine"])
    drop(graph, one, "m")
    rename(graph, one, "q", "m")
    put(graph, other, id=["new"], n=[9], m=[None], q=["qn"])
    merge(graph, "dev")
    assert people(graph) == [
        row("a", n=1, m="mine"),
        row("b", n=2, m=None),
        row("c", n=3, m=None),
        row("new", n=9, m="qn"),
    ]


@pytest.mark.long
@pytest.mark.parametrize("how", ["overwritten", "compacted"])
@pytest.mark.parametrize("changed", ["source", "target"])
def test_a_new_property_with_the_number_of_a_dropped_one_never_gets_its_values(
    tmp_path: Path, changed: str, how: str
) -> None:
    graph = Storage.at(str(tmp_path / "g"))
    for name in "ab":
        save(graph.root, {"id": [name], "m": ["x"], "n": [1]}, table=P)
    make(graph, "dev")
    one, other = _sides("main", changed)
    drop(graph, one)
    if how == "overwritten":
        kept = {"id": ["a", "b"], "m": ["x", "x"]}
        save(graph.root, kept, overwrite=True, table=P, branch=one)
    else:
        optimize(graph, one, None, run_here)
    add(graph, one, "q", "I64?")
    put(graph, one, id=["a"], m=["x"], q=[77])
    put(graph, other, id=["new"], m=["y"], n=[5])
    with pytest.raises(SchemaMismatchError, match=f"{one} renamed n to q, or dropped n and added"):
        merge(graph, "dev")
    drop(graph, other)
    merge(graph, "dev")
    assert people(graph) == [
        row("a", m="x", q=77),
        row("b", m="x", q=None),
        row("new", m="y", q=None),
    ]


@pytest.mark.long
@pytest.mark.parametrize("changed", ["source", "target"])
def test_a_renamed_property_keeps_its_values_beside_one_that_was_dropped_and_added_again(
    graph: Storage, changed: str
) -> None:
    one, other = _sides("main", changed)
    drop(graph, one)
    add(graph, one, "n", "I64?")
    rename(graph, one, "m", "text")
    put(graph, other, id=["d"], n=[4], m=["v"])
    merge(graph, "dev")
    assert people(graph) == [
        row("a", n=None, text="x"),
        row("b", n=None, text="y"),
        row("c", n=None, text="z"),
        row("d", n=4, text="v"),
    ]


def _exchange(graph: Storage, branch: str, one: str, other: str) -> None:
    rename(graph, branch, one, "between")
    rename(graph, branch, other, one)
    rename(graph, branch, "between", other)


@pytest.mark.long
def test_columns_that_exchanged_their_names_are_asked_for_and_never_mixed_up(
    graph: Storage,
) -> None:
    add(graph, "main", "q")
    put(graph, "main", id=["a"], n=[1], m=["x"], q=["qa"])
    make(graph, "third")
    _exchange(graph, "third", "m", "q")
    put(graph, "main", id=["d"], n=[4], m=["md"], q=["qd"])
    with pytest.raises(SchemaMismatchError, match="third gave m the name of the column q"):
        merge(graph, "third")
    _exchange(graph, "main", "m", "q")
    merge(graph, "third")
    found = [one for one in people(graph) if one["id"] in "ad"]
    assert found == [row("a", n=1, q="x", m="qa"), row("d", n=4, q="md", m="qd")]


@pytest.mark.long
@pytest.mark.parametrize("changed", ["source", "target"])
def test_a_column_that_got_the_name_of_a_dropped_one_takes_its_own_values_along(
    graph: Storage, changed: str
) -> None:
    add(graph, "main", "q")
    put(graph, "main", id=["a"], n=[1], m=["x"], q=["qa"])
    make(graph, "third")
    one, other = ("third", "main") if changed == "source" else ("main", "third")
    drop(graph, one, "m")
    rename(graph, one, "q", "m")
    put(graph, other, id=["d"], n=[4], m=[None], q=["qd"])
    merge(graph, "third")
    found = [one for one in people(graph) if one["id"] in "ad"]
    assert found == [row("a", n=1, m="qa"), row("d", n=4, m="qd")]


@pytest.mark.long
def test_columns_are_merged_again_after_an_earlier_merge(graph: Storage) -> None:
    add(graph, "dev")
    put(graph, "dev", id=["a"], n=[1], m=["x"], q=["qa"])
    merge(graph, "dev")
    add(graph, "dev", "r", INT)
    drop(graph, "dev", "m")
    put(graph, "dev", id=["b"], n=[2], q=["qb"], r=[7])
    put(graph, "main", id=["d"], n=[4], m=[None], q=["qd"])
    merge(graph, "dev")
    assert people(graph) == [
        row("a", n=1, q="qa", r=None),
        row("b", n=2, q="qb", r=7),
        row("c", n=3, q=None, r=None),
        row("d", n=4, q="qd", r=None),
    ]
    merge(graph, "main", "dev")
    assert people(graph, "dev") == people(graph)


@pytest.mark.long
def test_a_compaction_on_either_side_changes_nothing_of_it(graph: Storage) -> None:
    put(graph, "main", id=["d"], n=[4], m=["v"])
    rename(graph, "dev")
    add(graph, "dev")
    put(graph, "dev", id=["e"], years=[5], m=["w"], q=["qe"])
    for branch in ("main", "dev"):
        optimize(graph, branch, None, run_here)
    merge(graph, "dev")
    assert people(graph)[3:] == [row("d", m="v", years=4, q=None), row("e", m="w", years=5, q="qe")]


@pytest.mark.long
def test_rules_follow_a_renamed_property_and_hold_in_the_merge_and_after_it(
    tmp_path: Path,
) -> None:
    graph = ruled.ruled_graph(tmp_path / "g")
    make(graph, "dev")
    options = write_options(graph, branch="dev")
    changes.rename_property(graph, options, ruled.PERSON, "email", "mail")
    ruled.save(graph, {ruled.PERSON: [{"id": "m", "email": "x@y"}]}, integrity="strict")
    twice = [{"id": "d", "mail": "x@y"}]
    ruled.save(graph, {ruled.PERSON: twice}, integrity="strict", branch="dev")
    with pytest.raises(IntegrityError) as refused:
        merges.merge(graph, "dev", integrity=DEFAULT)
    assert (refused.value.rule, refused.value.column) == ("unique", "mail")
    ruled.save(graph, {ruled.PERSON: [{"id": "d"}]}, writeMode="delete", branch="dev")
    merges.merge(graph, "dev", integrity=DEFAULT)
    assert "email" not in columns.properties(graph, ruled.PERSON)
    assert columns.properties(graph, ruled.PERSON)["mail"] == TEXT
    with pytest.raises(IntegrityError, match="mail"):
        ruled.save(graph, {ruled.PERSON: [{"id": "z", "mail": "x@y"}]}, integrity="strict")
    assert not check(graph)


@pytest.mark.long
@pytest.mark.parametrize(
    "point", ["table.columns_added", "commit.tables_done", "commit.before_publish"]
)
def test_a_merge_that_dies_after_its_columns_leaves_the_graph_as_it_was(
    graph: Storage, point: str
) -> None:
    rename(graph, "dev")
    add(graph, "dev")
    put(graph, "dev", id=["d"], years=[4], m=["v"], q=["qd"])
    before = people(graph)
    _faults.arm(point, die)
    with pytest.raises(Died):
        merges.merge(graph, "dev")
    _faults.disarm()
    assert people(graph) == before
    put(graph, "main", id=["e"], n=[5], m=["w"])
    assert people(graph) == [*before, row("e", n=5, m="w")]
    merge(graph, "dev")
    assert [one["years"] for one in people(graph)] == [1, 2, 3, 4, 5]


@pytest.mark.long
def test_tables_that_one_side_made_or_dropped_come_and_go_beside_changed_columns(
    graph: Storage,
) -> None:
    merges.write_rows(graph, {merges.COMPANY: [("acme", 1)]}, branch="dev")
    rename(graph, "dev")
    merge(graph, "dev")
    assert ids_at(graph, merges.COMPANY) == ["acme"]
    changes.drop_table(graph, write_options(graph), [merges.COMPANY])
    add(graph, "dev")
    merge(graph, "dev")
    assert merges.COMPANY not in load(graph).tables
    assert "q" in people(graph)[0]


@pytest.mark.long
@pytest.mark.parametrize("changed", ["source", "target"])
def test_a_property_that_one_side_gave_a_wider_type_is_asked_for_and_then_merged(
    tmp_path: Path, changed: str
) -> None:
    graph = Storage.at(str(tmp_path / "g"))
    small = pa.array([1, 2], pa.int32())
    save(graph.root, {"id": ["a", "b"], "n": small}, table=P)
    make(graph, "dev")
    one, other = _sides("main", changed)
    changes.widen_property(graph, write_options(graph, branch=one), P, "n", "I64?")
    put(graph, one, id=["a"], n=[2**40])
    put(graph, other, id=["b", "c"], n=pa.array([20, 3], pa.int32()))
    with pytest.raises(SchemaMismatchError, match=f"{one} gave n another type") as refused:
        merge(graph, "dev")
    assert f"alter_property('{P}', 'n', type=…, branch='{other}')" in str(refused.value)
    changes.widen_property(graph, write_options(graph, branch=other), P, "n", "I64?")
    merge(graph, "dev")
    assert people(graph) == [row("a", n=2**40), row("b", n=20), row("c", n=3)]
