"""Rules of keys, values, edges: right and wrong cases of each, at the commit and in tasks."""

from __future__ import annotations

import os
import shutil
import tempfile
import unicodedata
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from omnigraph_spark import _faults
from omnigraph_spark import schema as engine_schema
from omnigraph_spark.errors import (
    CorruptManifestError,
    ExpectedVersionMismatch,
    IntegrityError,
    UnsupportedError,
)
from omnigraph_spark.integrity import scratch
from omnigraph_spark.manifest import known_types
from omnigraph_spark.manifest.snapshot import load
from omnigraph_spark.storage import layout
from omnigraph_spark.storage.store import Storage
from omnigraph_spark.write.commit.commit import commit
from omnigraph_spark.write.commit.commit_check import CommitCheck
from omnigraph_spark.write.plan import plan_write
from tests.support.frames import nothing_written
from tests.support.ruled import (
    COMPANY,
    KNOWS,
    PERSON,
    SCHEMA,
    WORKS,
    Row,
    Rows,
    edge,
    planned,
    rows,
    ruled_graph,
    save,
    staged,
)
from tests.support.writes import DEFAULT, data_files, head, once, write_options

LEVELS = ("keys", "strict")


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ruled") / "g"
    ruled_graph(folder)
    return folder


@pytest.fixture
def graph(template: Path, tmp_path: Path) -> Storage:
    return Storage.at(str(shutil.copytree(template, tmp_path / "g")))


@pytest.fixture(autouse=True)
def _disarmed() -> Any:
    yield
    _faults.disarm()


def refused(
    graph: Storage,
    rule: str,
    samples: list[Any],
    *tasks: Rows,
    count: int | None = None,
    **options: Any,
) -> IntegrityError:
    """Expect a write to be refused by a rule, with nothing published and no file left."""
    keys = sorted({key for task in tasks for key in task})
    before = {key: (rows(graph, key), head(graph, key), data_files(graph, key)) for key in keys}
    with pytest.raises(IntegrityError, match=r"OMNIGRAPH_INTEGRITY\]") as caught:
        save(graph, *tasks, **options)
    error = caught.value
    assert (error.rule, error.samples) == (rule, samples)
    assert error.count == (len(samples) if count is None else count)
    after = {key: (rows(graph, key), head(graph, key), data_files(graph, key)) for key in keys}
    assert after == before
    return error


# --- ids -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("level", LEVELS)
def test_an_id_that_two_rows_of_one_batch_have_is_refused(graph: Storage, level: str) -> None:
    new = [{"id": "x"}, {"id": "x"}, {"id": "y"}]
    error = refused(graph, "unique id", ["x"], {PERSON: new}, count=2, integrity=level)
    assert (error.table_key, error.column) == (PERSON, "id")
    assert "2 rows of node:Person break the rule 'unique id' (column id)" in str(error)


@pytest.mark.parametrize("level", LEVELS)
def test_an_id_that_rows_of_two_tasks_have_is_refused(graph: Storage, level: str) -> None:
    tasks: list[Rows] = [{PERSON: [{"id": "x"}]}, {PERSON: [{"id": "y"}, {"id": "x"}]}]
    refused(graph, "unique id", ["x"], *tasks, count=2, integrity=level)


@pytest.mark.parametrize("level", LEVELS)
def test_an_id_that_the_table_has_is_refused(graph: Storage, level: str) -> None:
    new = [{"id": "x"}, {"id": "b"}, {"id": "a"}]
    refused(graph, "unique id", ["a", "b"], {PERSON: new}, integrity=level)


def test_an_edge_id_that_the_table_has_is_refused(graph: Storage) -> None:
    refused(graph, "unique id", ["ab"], {KNOWS: [edge("b", "c", id="ab")]}, integrity="keys")


def test_a_key_that_the_table_has_is_refused(graph: Storage) -> None:
    refused(graph, "unique id", ["acme"], {COMPANY: [{"name": "acme"}]}, integrity="keys")


@pytest.mark.long
def test_ids_that_differ_in_case_form_or_blanks_are_different_ids(graph: Storage) -> None:
    composed, decomposed = (unicodedata.normalize(form, "é") for form in ("NFC", "NFD"))
    new = ["A", "a ", " a", "", composed, decomposed, "a\x00", "'", "a\nb", "\\", "ａ"]
    save(graph, {PERSON: [{"id": one} for one in new]}, integrity="strict")
    assert rows(graph, PERSON) == sorted(["a", "b", "c", *new])
    for one in new:
        refused(graph, "unique id", [one], {PERSON: [{"id": one}]}, integrity="keys")


@pytest.mark.long
def test_more_ids_than_are_looked_up_one_by_one_are_checked_too(graph: Storage) -> None:
    many = [{"id": f"n{number}"} for number in range(3_000)]
    save(graph, {PERSON: many[:2_000]}, integrity="keys")
    told = sorted(one["id"] for one in many[1_500:2_000])[:10]
    refused(graph, "unique id", told, {PERSON: many[1_500:]}, count=500, integrity="keys")
    save(graph, {PERSON: many[2_000:]}, integrity="keys")
    assert len(rows(graph, PERSON)) == 3_003


def test_an_id_of_a_megabyte_is_checked_like_any_other(graph: Storage) -> None:
    long = "x" * (1 << 20)
    save(graph, {PERSON: [{"id": long}]}, integrity="keys")
    error = refused(graph, "unique id", [long], {PERSON: [{"id": long}]}, integrity="keys")
    assert len(str(error)) < 1_000


def test_off_looks_at_no_keys_and_no_ends(graph: Storage) -> None:
    save(graph, {PERSON: [{"id": "a"}, {"id": "z"}, {"id": "z"}]}, integrity="off")
    save(graph, {KNOWS: [edge("nobody", "a")]})
    assert rows(graph, PERSON) == ["a", "a", "b", "c", "z", "z"]


def test_an_overwrite_may_bring_ids_that_the_table_had_and_no_id_twice(graph: Storage) -> None:
    twice = [{"id": "a"}, {"id": "a"}]
    refused(graph, "unique id", ["a"], {PERSON: twice}, count=2, mode="overwrite", integrity="keys")
    save(graph, {PERSON: [{"id": "a"}, {"id": "n"}]}, mode="overwrite", integrity="keys")
    assert rows(graph, PERSON) == ["a", "n"]


def test_a_deleted_id_may_come_again(graph: Storage) -> None:
    save(graph, {PERSON: [{"id": "a"}]}, mode="overwrite", integrity="keys")
    save(graph, {PERSON: [{"id": "b"}]}, integrity="keys")
    assert rows(graph, PERSON) == ["a", "b"]


def test_ids_are_unique_per_branch(graph: Storage) -> None:
    options = {"branch": "dev", "branchFrom": "main", "integrity": "strict"}
    save(graph, {PERSON: [{"id": "d"}]}, **options)
    with pytest.raises(IntegrityError, match=r"OMNIGRAPH_INTEGRITY\] 1 row of node:Person"):
        save(graph, {PERSON: [{"id": "d"}]}, **options)
    save(graph, {PERSON: [{"id": "d"}]}, integrity="strict")
    save(graph, {KNOWS: [edge("d", "a")]}, **options)


# --- @unique -------------------------------------------------------------------------------------


def test_a_unique_value_that_another_row_has_is_refused(graph: Storage) -> None:
    save(graph, {PERSON: [{"id": "m", "email": "m@x"}]}, integrity="keys")
    both = [{"id": "n", "email": "n@x"}, {"id": "o", "email": "n@x"}]
    error = refused(graph, "unique", ["n@x"], {PERSON: both}, count=2, integrity="keys")
    assert error.column == "email"
    known: Rows = {PERSON: [{"id": "n", "email": "m@x"}]}
    refused(graph, "unique", ["m@x"], known, integrity="keys")


def test_nulls_are_no_unique_values(graph: Storage) -> None:
    new = [{"id": "n", "email": None, "first": "N"}, {"id": "o", "email": None, "first": "N"}]
    save(graph, {PERSON: new}, integrity="strict")
    save(graph, {PERSON: [{"id": "p", "first": "N"}]}, integrity="strict")


def test_a_unique_group_counts_as_a_whole(graph: Storage) -> None:
    save(graph, {PERSON: [{"id": "n", "first": "Ann", "last": "Lee"}]}, integrity="keys")
    save(graph, {PERSON: [{"id": "o", "first": "Ann", "last": "Ray"}]}, integrity="keys")
    again: Rows = {PERSON: [{"id": "p", "first": "Ann", "last": "Lee"}]}
    error = refused(graph, "unique", ["Ann, Lee"], again, integrity="keys")
    assert error.column == "first, last"


def test_unique_times_that_differ_by_a_millisecond_are_different(graph: Storage) -> None:
    from datetime import datetime, timedelta

    noon = datetime(2026, 1, 1, 12)
    later = noon + timedelta(milliseconds=1)
    save(graph, {PERSON: [{"id": "n", "at": noon}, {"id": "o", "at": later}]}, integrity="keys")
    with pytest.raises(IntegrityError, match=r"'unique' \(column at\)"):
        save(graph, {PERSON: [{"id": "p", "at": later}]}, integrity="keys")


def test_a_unique_value_of_an_edge_is_checked(graph: Storage) -> None:
    refused(graph, "unique", ["old"], {KNOWS: [edge("b", "c", label="old")]}, integrity="keys")


# --- edges ---------------------------------------------------------------------------------------


def test_an_edge_from_or_to_nowhere_is_refused_under_strict(graph: Storage) -> None:
    lost: list[Row] = [edge("a", "zzz"), edge("a", "b"), edge("yyy", "a")]
    error = refused(graph, "endpoints exist", ["yyy"], {KNOWS: lost}, integrity="strict")
    assert (error.table_key, error.column) == (KNOWS, "src")
    error = refused(graph, "endpoints exist", ["zzz"], {KNOWS: lost[:2]}, integrity="strict")
    assert error.column == "dst"
    save(graph, {KNOWS: lost}, integrity="keys")


@pytest.mark.long
def test_an_end_must_be_in_the_table_that_the_schema_names(graph: Storage) -> None:
    refused(graph, "endpoints exist", ["b"], {WORKS: [edge("a", "b")]}, integrity="strict")
    refused(graph, "endpoints exist", ["acme"], {KNOWS: [edge("a", "acme")]}, integrity="strict")
    save(graph, {WORKS: [edge("b", "acme")]}, integrity="strict")


def test_new_nodes_and_the_edges_to_them_go_into_one_write(graph: Storage) -> None:
    new: Rows = {
        PERSON: [{"id": "n"}, {"id": "o"}],
        KNOWS: [edge("n", "a"), edge("b", "o"), edge("n", "o")],
        COMPANY: [{"name": "new"}],
        WORKS: [edge("n", "new")],
    }
    save(graph, new, integrity="strict")
    assert len(rows(graph, KNOWS)) == 4


def test_a_new_graph_is_written_whole_under_strict(tmp_path: Path) -> None:
    storage = Storage.at(str(tmp_path / "new"))
    storage.put(layout.SCHEMA_PG, SCHEMA.encode())
    people: list[Row] = [{"id": "a"}, {"id": "b"}]
    lost: Rows = {PERSON: people, KNOWS: [edge("a", "c")]}
    with pytest.raises(IntegrityError, match=r"1 row of edge:Knows .*'c'"):
        save(storage, lost, integrity="strict")
    save(storage, {PERSON: people, KNOWS: [edge("a", "b")]}, integrity="strict")
    assert rows(storage, KNOWS, "src", "dst") == [("a", "b")]


@pytest.mark.long
def test_an_overwrite_of_nodes_may_not_strand_edges(graph: Storage) -> None:
    left: Rows = {PERSON: [{"id": "a"}, {"id": "n"}]}
    with pytest.raises(IntegrityError, match=r"1 row of edge:Knows .*'edges stay attached'.*'ab'"):
        save(graph, left, mode="overwrite", integrity="strict")
    assert rows(graph, PERSON) == ["a", "b", "c"]
    save(graph, {PERSON: [{"id": "a"}, {"id": "b"}]}, mode="overwrite", integrity="strict")
    # with the edges in the same write, none of those that are there stays
    save(graph, {**left, KNOWS: [edge("a", "n")]}, mode="overwrite", integrity="strict")
    assert rows(graph, KNOWS, "src", "dst") == [("a", "n")]
    lost: Rows = {PERSON: [{"id": "a"}], KNOWS: [edge("a", "n")]}
    with pytest.raises(IntegrityError, match=r"'endpoints exist' \(column dst\).*'n'"):
        save(graph, lost, mode="overwrite", integrity="strict")


def test_an_overwrite_of_nodes_without_rows_strands_every_edge(graph: Storage) -> None:
    with pytest.raises(IntegrityError, match=r"edge:(Knows|Works) .*'edges stay attached'"):
        save(graph, {}, mode="overwrite", tables=[PERSON], integrity="strict")
    save(graph, {}, mode="overwrite", tables=[PERSON, KNOWS, WORKS], integrity="strict")
    assert rows(graph, PERSON) == []


def test_where_nobody_says_how_strict_the_rows_that_are_written_are_checked(
    graph: Storage,
) -> None:
    with pytest.raises(IntegrityError, match=r"'unique id'.*'a'"):
        save(graph, {PERSON: [{"id": "a"}]}, integrity=DEFAULT)
    with pytest.raises(IntegrityError, match=r"'endpoints exist' \(column dst\).*'nobody'"):
        save(graph, {KNOWS: [edge("a", "nobody")]}, integrity=DEFAULT)
    assert rows(graph, KNOWS, "src", "dst") == [("a", "b")]
    save(graph, {PERSON: [{"id": "n"}]}, mode="overwrite", integrity=DEFAULT)
    assert rows(graph, PERSON) == ["n"]
    assert rows(graph, KNOWS, "src", "dst") == [("a", "b")]


def test_an_overwrite_of_edges_looks_at_the_new_ones_only(graph: Storage) -> None:
    save(graph, {KNOWS: [edge("gone", "gone", id="old")]})
    save(graph, {KNOWS: [edge("a", "c")]}, mode="overwrite", integrity="strict")
    assert rows(graph, KNOWS, "src", "dst") == [("a", "c")]


@pytest.mark.long
def test_a_source_may_not_have_more_edges_than_card_allows(graph: Storage) -> None:
    save(graph, {COMPANY: [{"name": "b"}, {"name": "c"}]})
    three: list[Row] = [edge("b", "acme"), edge("b", "b"), edge("b", "c")]
    refused(graph, "card", ["b"], {WORKS: three}, count=3, integrity="strict")
    two_more: list[Row] = [edge("a", "b"), edge("a", "c")]  # a has one
    error = refused(graph, "card", ["a"], {WORKS: two_more}, count=2, integrity="strict")
    assert "0..2 edges of a source" in str(error)
    save(graph, {WORKS: [edge("a", "b"), edge("b", "b"), edge("b", "c")]}, integrity="strict")
    save(graph, {WORKS: two_more}, mode="overwrite", integrity="strict")


# --- values --------------------------------------------------------------------------------------


@pytest.mark.parametrize("level", ["off", "keys", "strict"])
def test_a_value_that_is_no_member_of_an_enum_is_refused_at_every_level(
    graph: Storage, level: str
) -> None:
    new: list[Row] = [
        {"id": "n", "mood": "good"},
        {"id": "o", "mood": "Good"},
        {"id": "p", "mood": None},
    ]
    refused(graph, "enum", ["Good"], {PERSON: new}, integrity=level)
    save(graph, {PERSON: [new[0], new[2]]}, integrity=level)


@pytest.mark.parametrize(
    ("column", "right", "wrong", "rule"),
    [
        ("age", 0, -1, "range"),
        ("age", 120, 121, "range"),
        ("size", 0.5, 0.49, "range"),
        ("size", 2.5, float("inf"), "range"),
        ("size", 1.0, float("nan"), "range"),
        ("first", "Zoë", "Zoë Z", "check"),
        ("first", "a_1", "", "check"),
        ("first", "٣", "a\n", "check"),
    ],
)
@pytest.mark.parametrize("level", LEVELS)
def test_a_value_outside_its_range_or_pattern_is_refused(
    graph: Storage, level: str, column: str, right: Any, wrong: Any, rule: str
) -> None:
    bad: Rows = {PERSON: [{"id": "n", column: right}, {"id": "o", column: wrong}]}
    with pytest.raises(IntegrityError, match=rf"1 row of node:Person .*'{rule}' \(column {column}"):
        save(graph, bad, integrity=level)
    save(graph, {PERSON: [{"id": "n", column: right}, {"id": "q", column: None}]}, integrity=level)
    save(graph, {PERSON: [{"id": "o", column: wrong}]}, integrity="off")


def test_a_rule_of_an_edge_property_is_checked(graph: Storage) -> None:
    refused(graph, "range", [1899], {WORKS: [edge("b", "acme", since=1899)]}, integrity="keys")


def test_a_pattern_that_cannot_be_read_is_refused_before_anything_is_written(
    tmp_path: Path,
) -> None:
    storage = Storage.at(str(tmp_path / "g"))
    text = 'node Person {\n    code: String?\n    @check(code, "a(?=b)")\n}\n'
    storage.put(layout.SCHEMA_PG, text.encode())
    save(storage, {PERSON: [{"id": "a", "code": "x"}]})
    with (
        nothing_written(tmp_path / "g"),
        pytest.raises(UnsupportedError, match=r"OMNIGRAPH_UNSUPPORTED\] .*Person.code.*a\(\?=b\)"),
    ):
        save(storage, {PERSON: [{"id": "b", "code": "x"}]}, integrity="keys")


def test_strict_refuses_edges_whose_ends_are_declared_nowhere(
    graph: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(known_types, "remembered", lambda *_: None)
    text = SCHEMA.partition("edge Knows")[0]
    for name in (layout.SCHEMA_IR, layout.SCHEMA_STATE):
        graph.delete(name)
    graph.put(layout.SCHEMA_PG, text.encode())
    plan = plan_write(graph, write_options(graph, integrity="strict"), {KNOWS: None})
    with pytest.raises(CorruptManifestError, match=r"doesn't declare edge:Knows"):
        commit(plan, staged(plan, {KNOWS: [edge("a", "b")]}))


# --- upserts -------------------------------------------------------------------------------------


def check_upsert(graph: Storage, *tasks: Rows, integrity: str = "strict") -> None:
    """Check rows as an upsert commits them: they replace the rows of their ids."""
    keys = sorted({key for task in tasks for key in task})
    plan = planned(graph, keys, integrity=integrity)
    files = staged(plan, *tasks)
    by_table = {key: [one for one in files if one.table_key == key] for key in keys}
    CommitCheck(replace(plan, mode="merge"), by_table).run(
        load(graph), keys, engine_schema.read_for_writing(graph, True, True).schema
    )


@pytest.mark.parametrize("level", ["off", "keys", "strict"])
def test_an_upsert_may_bring_ids_that_are_there_and_no_id_twice(graph: Storage, level: str) -> None:
    check_upsert(graph, {PERSON: [{"id": "a"}, {"id": "n"}]}, integrity=level)
    for tasks in (
        [{PERSON: [{"id": "n"}, {"id": "n"}]}],
        [{PERSON: [{"id": "n"}]}, {PERSON: [{"id": "n"}]}],
        [{PERSON: [{"id": "a"}]}, {PERSON: [{"id": "a"}]}],
    ):
        with pytest.raises(IntegrityError, match=r"2 rows of node:Person .*'unique id'"):
            check_upsert(graph, *tasks, integrity=level)


def test_an_upsert_may_keep_or_swap_unique_values_and_not_take_one_that_stays(
    graph: Storage,
) -> None:
    save(graph, {PERSON: [{"id": "m", "email": "m@x"}, {"id": "n", "email": "n@x"}]})
    check_upsert(graph, {PERSON: [{"id": "m", "email": "m@x"}]})
    check_upsert(graph, {PERSON: [{"id": "m", "email": "n@x"}, {"id": "n", "email": "m@x"}]})
    with pytest.raises(IntegrityError, match=r"1 row .*'unique' \(column email\).*'n@x'"):
        check_upsert(graph, {PERSON: [{"id": "m", "email": "n@x"}]})


@pytest.mark.long
def test_an_upsert_of_edges_counts_the_rows_that_stay(graph: Storage) -> None:
    save(graph, {WORKS: [edge("a", "acme", id="aw2")], PERSON: [{"id": "d"}]})
    check_upsert(graph, {WORKS: [edge("a", "acme", id="aw"), edge("b", "acme")]})
    with pytest.raises(IntegrityError, match=r"1 row of edge:Works .*'card' .*'a'"):
        check_upsert(graph, {WORKS: [edge("a", "acme", id="aw3")]})
    with pytest.raises(IntegrityError, match=r"1 row of edge:Works .*'endpoints exist' .*'e'"):
        check_upsert(graph, {WORKS: [edge("e", "acme", id="aw")]})
    check_upsert(graph, {PERSON: [{"id": "e"}], WORKS: [edge("e", "acme", id="aw")]})


@pytest.mark.long
def test_an_upsert_is_refused_by_every_kind_of_rule_and_changes_nothing(graph: Storage) -> None:
    save(graph, {PERSON: [{"id": "m", "email": "m@x"}]})
    cases: list[tuple[str, Rows]] = [
        ("range", {PERSON: [{"id": "a", "age": 200}]}),
        ("unique", {PERSON: [{"id": "a", "email": "m@x"}]}),
        ("endpoints exist", {KNOWS: [edge("a", "z", id="ab")]}),
        ("card", {WORKS: [edge("a", "acme"), edge("a", "acme")]}),
    ]
    for rule, bad in cases:
        before = {key: rows(graph, key) for key in (PERSON, KNOWS, WORKS)}
        with pytest.raises(IntegrityError, match=rf"OMNIGRAPH_INTEGRITY\] .*'{rule}'"):
            save(graph, bad, writeMode="merge", integrity="strict")
        assert {key: rows(graph, key) for key in (PERSON, KNOWS, WORKS)} == before
    good: Rows = {PERSON: [{"id": "a", "age": 7}, {"id": "z"}], KNOWS: [edge("a", "z", id="ab")]}
    save(graph, good, writeMode="merge", integrity="strict")
    assert rows(graph, KNOWS, "src", "dst") == [("a", "z")]
    assert rows(graph, PERSON) == ["a", "b", "c", "m", "z"]


@pytest.mark.long
def test_an_upsert_and_an_append_of_one_new_id_at_once_make_one_row(graph: Storage) -> None:
    rival = once(lambda: save(graph, {PERSON: [{"id": "x"}]}, integrity="keys"))
    _faults.arm("commit.before_publish", rival)
    save(graph, {PERSON: [{"id": "x", "last": "L"}]}, writeMode="merge", integrity="keys")
    assert rows(graph, PERSON) == ["a", "b", "c", "x"]


# --- rivals --------------------------------------------------------------------------------------


@pytest.mark.long
def test_of_two_appends_of_one_new_id_one_lands_and_the_other_is_refused(graph: Storage) -> None:
    rival = once(lambda: save(graph, {PERSON: [{"id": "x"}]}, integrity="keys"))
    _faults.arm("commit.before_publish", rival)
    with pytest.raises(IntegrityError, match=r"'unique id' .*'x'"):
        save(graph, {PERSON: [{"id": "x"}, {"id": "y"}]}, integrity="keys")
    assert rows(graph, PERSON) == ["a", "b", "c", "x"]
    _faults.disarm()
    save(graph, {PERSON: [{"id": "y"}]}, integrity="keys")


@pytest.mark.long
def test_an_append_that_lost_a_round_goes_again_where_the_rival_brought_other_ids(
    graph: Storage,
) -> None:
    rival = once(lambda: save(graph, {PERSON: [{"id": "x"}]}, integrity="keys"))
    _faults.arm("commit.before_publish", rival)
    save(graph, {PERSON: [{"id": "y"}]}, integrity="keys")
    assert rows(graph, PERSON) == ["a", "b", "c", "x", "y"]


@pytest.mark.parametrize("point", ["commit.checked", "commit.before_publish"])
def test_an_edge_does_not_land_on_a_node_that_a_rival_takes_away(
    graph: Storage, point: str
) -> None:
    without_c: Rows = {PERSON: [{"id": "a"}, {"id": "b"}]}
    rival = once(lambda: save(graph, without_c, mode="overwrite", integrity="strict"))
    _faults.arm(point, rival)
    with pytest.raises(IntegrityError, match=r"'endpoints exist' .*'c'"):
        save(graph, {KNOWS: [edge("a", "c")]}, integrity="strict")
    assert rows(graph, PERSON) == ["a", "b"]
    assert rows(graph, KNOWS, "src", "dst") == [("a", "b")]


@pytest.mark.parametrize("point", ["commit.checked", "commit.before_publish"])
def test_a_node_is_not_taken_away_from_under_an_edge_that_a_rival_brings(
    graph: Storage, point: str
) -> None:
    rival = once(lambda: save(graph, {KNOWS: [edge("a", "c")]}, integrity="strict"))
    _faults.arm(point, rival)
    with pytest.raises(IntegrityError, match=r"'edges stay attached'"):
        save(
            graph,
            {PERSON: [{"id": "a"}, {"id": "b"}]},
            mode="overwrite",
            integrity="strict",
        )
    assert rows(graph, PERSON) == ["a", "b", "c"]
    assert len(rows(graph, KNOWS)) == 2


@pytest.mark.long
def test_rows_that_an_earlier_round_saw_and_a_restore_brought_back_are_looked_at_again(
    graph: Storage,
) -> None:
    """After the overwrite of a rival, and its undoing, all rows count again (rule 25)."""
    rivals = iter(
        [
            lambda: save(graph, {PERSON: [{"id": "b"}]}, mode="overwrite"),
            lambda: save(graph, {PERSON: [{"id": "b"}, {"id": "x"}]}, mode="overwrite"),
        ]
    )

    def rival() -> None:
        if (act := next(rivals, None)) is not None:
            act()

    plan = planned(graph, [PERSON], integrity="keys")
    files = staged(plan, {PERSON: [{"id": "x"}]})

    def guarded() -> None:
        _faults.disarm()
        rival()
        _faults.arm("commit.before_publish", guarded)

    _faults.arm("commit.before_publish", guarded)
    with pytest.raises(IntegrityError, match=r"'unique id' .*'x'"):
        commit(plan, files)
    assert rows(graph, PERSON) == ["b", "x"]


def test_an_edge_check_survives_that_others_add_nodes(graph: Storage) -> None:
    rival = once(lambda: save(graph, {PERSON: [{"id": "n"}]}))
    _faults.arm("commit.before_publish", rival)
    save(graph, {KNOWS: [edge("a", "c")]}, integrity="strict")
    assert len(rows(graph, KNOWS)) == 2


@pytest.mark.long
def test_of_many_writers_of_one_new_id_at_once_one_lands(graph: Storage) -> None:
    """Two rounds of six here; OMNIGRAPH_SPARK_RACES=200 makes it as many rounds of sixteen."""
    many = os.environ.get("OMNIGRAPH_SPARK_RACES")
    rounds, writers = (int(many), 16) if many else (2, 6)

    def write(number: int) -> IntegrityError | None:
        try:
            save(graph, {PERSON: [{"id": f"new-{number}"}]}, integrity="keys")
        except IntegrityError as error:
            return error
        return None

    for number in range(rounds):
        with ThreadPoolExecutor(writers) as pool:
            outcomes = list(pool.map(write, [number] * writers))
        assert outcomes.count(None) == 1
        assert {one.rule for one in outcomes if one is not None} == {"unique id"}
    assert rows(graph, PERSON) == sorted(["a", "b", "c", *(f"new-{n}" for n in range(rounds))])


@pytest.mark.long
def test_of_edges_and_overwrites_of_nodes_at_once_none_leaves_an_edge_without_its_end(
    graph: Storage,
) -> None:
    """Four rounds here; OMNIGRAPH_SPARK_RACES=50 makes it as many."""
    for number in range(int(os.environ.get("OMNIGRAPH_SPARK_RACES", "4"))):
        save(graph, {PERSON: [{"id": f"n{number}"}]}, integrity="strict")

        def overwrite() -> None:
            save(
                graph,
                {PERSON: [{"id": "a"}, {"id": "b"}]},
                mode="overwrite",
                integrity="strict",
            )

        def insert(end: str) -> None:
            save(graph, {KNOWS: [edge("a", end)]}, integrity="strict")

        with ThreadPoolExecutor(2) as pool:
            done = [pool.submit(overwrite), pool.submit(insert, f"n{number}")]
        errors = [one.exception() for one in done]
        assert all(
            error is None or isinstance(error, (IntegrityError, ExpectedVersionMismatch))
            for error in errors
        ), errors
        people = set(rows(graph, PERSON))
        assert {end for pair in rows(graph, KNOWS, "src", "dst") for end in pair} <= people


# --- memory --------------------------------------------------------------------------------------


@pytest.mark.long
def test_a_check_that_does_not_fit_its_memory_spills_to_disk_and_leaves_nothing_there(
    graph: Storage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scratch_folder = tmp_path / "scratch"
    scratch_folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(scratch_folder))
    monkeypatch.setattr(scratch, "MEMORY_LIMIT", "100MB")
    spilled: list[int] = []
    run = scratch.Scratch.run

    def watched(self: scratch.Scratch, sql: str, **streams: Any) -> Any:
        done = run(self, sql, **streams)
        spilled.append(sum(path.stat().st_size for path in scratch_folder.rglob("*")))
        return done

    monkeypatch.setattr(scratch.Scratch, "run", watched)
    many: list[Row] = [{"id": f"{'long' * 40}{number:09}"} for number in range(400_000)]
    save(graph, {PERSON: many}, integrity="keys")
    told = [one["id"] for one in many[:10]]
    refused(graph, "unique id", told, {PERSON: many}, count=len(many), integrity="keys")
    assert max(spilled) > 1 << 20
    assert list(scratch_folder.iterdir()) == []
