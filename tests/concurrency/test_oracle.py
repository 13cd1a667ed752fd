"""The chaos oracle sees damage: each of its checks, on a graph that was damaged on purpose."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import product
from pathlib import Path
from random import Random
from typing import Any

import lance
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from omnigraph_spark.manifest import publisher
from omnigraph_spark.manifest.rows import VersionRow, to_arrow
from omnigraph_spark.manifest.snapshot import load, open_main
from omnigraph_spark.storage import layout
from omnigraph_spark.storage.ids import new_ulid
from tests.chaos import ledger as ledger_module
from tests.chaos import oracle, rows
from tests.chaos.jobs import Writer
from tests.chaos.launcher import Setup
from tests.chaos.ledger import ACKNOWLEDGED, AMBIGUOUS, FAILED, Ledger, Write
from tests.chaos.scenarios import pairs

PERSON = layout.table_location(rows.PERSON)


class Damaged:
    """A graph of three healthy writes and its ledger, both to be damaged."""

    def __init__(self, folder: Path) -> None:
        (folder / "ledger").mkdir()
        self.root = str(folder / "graph")
        self.writer = Writer(Setup("w", str(folder)), self.root)
        assert self.writer.write(dict.fromkeys(rows.THREE, 3)) == ACKNOWLEDGED
        assert self.writer.write({rows.PERSON: 2, rows.COMPANY: 2}) == ACKNOWLEDGED
        assert self.writer.write({rows.PERSON: 4}, "overwrite") == ACKNOWLEDGED
        self.ledger: Ledger = ledger_module.read(folder / "ledger")

    def check(self, **kwargs: Any) -> oracle.Verdict:
        return oracle.check(self.root, self.ledger, **kwargs)

    def found(self, **kwargs: Any) -> set[str]:
        return set(self.check(**kwargs).violations)

    def table(self, location: str = PERSON) -> lance.LanceDataset:
        return lance.dataset(f"{self.root}/{location}")

    def pin_head(self, key: str = rows.PERSON, rows_more: int = 0, **changes: Any) -> None:
        """Publish a table's head as it is, as a writer that breaks the rules would."""
        entry = load(self.writer.storage).entry(key)
        version = changes.get("version", self.table(entry.location).version)
        count = changes.get("count", entry.row_count + rows_more)
        row = VersionRow(key, version, None, count, changes.get("metadata", {}))
        publisher._merge(open_main(self.writer.storage), to_arrow([row]))

    def append(self, token: str, count: int = 1, location: str = PERSON) -> None:
        batch = rows.batch(self.table(location).schema, token, count)
        lance.write_dataset(batch, f"{self.root}/{location}", mode="append")


@pytest.fixture
def graph(tmp_path: Path) -> Damaged:
    return Damaged(tmp_path)


def test_a_healthy_graph_passes(graph: Damaged) -> None:
    verdict = graph.check()
    assert verdict.violations == {}
    assert verdict.publishes == 4


def test_o1_sees_an_acknowledged_write_that_is_not_there(graph: Damaged) -> None:
    graph.ledger.writes["x.1"] = Write("x.1", new_ulid(), "append", {rows.PERSON: 1}, ACKNOWLEDGED)
    assert graph.found() == {"O1"}


def test_o1_sees_a_lost_row(graph: Damaged) -> None:
    graph.table().delete("id = 'w.3-0'")
    graph.pin_head(rows_more=-1)
    assert "O1" in graph.found()


def test_o1_sees_values_in_the_wrong_column(graph: Damaged) -> None:
    graph.table().update({"note": "name"}, where="id = 'w.3-0'")
    graph.pin_head()
    assert "O1" in graph.found()


def test_o2_sees_a_row_of_a_failed_write(graph: Damaged) -> None:
    graph.ledger.writes["x.1"] = Write("x.1", new_ulid(), "append", {rows.PERSON: 1}, FAILED)
    graph.append("x.1")
    graph.pin_head(rows_more=1)
    assert "O2" in graph.found()


def test_o2_sees_half_of_an_ambiguous_write(graph: Damaged) -> None:
    publish_id = new_ulid()
    graph.ledger.writes["x.1"] = Write("x.1", publish_id, "append", {rows.PERSON: 2}, AMBIGUOUS)
    graph.append("x.1")
    graph.pin_head(rows_more=1, metadata={"omnigraph_spark": {"publish_id": publish_id}})
    assert "O2" in graph.found()


def test_o2_lets_a_whole_ambiguous_write_pass(graph: Damaged) -> None:
    publish_id = new_ulid()
    graph.ledger.writes["x.1"] = Write("x.1", publish_id, "append", {rows.PERSON: 2}, AMBIGUOUS)
    graph.append("x.1", 2)
    graph.pin_head(rows_more=2, metadata={"omnigraph_spark": {"publish_id": publish_id}})
    assert "O2" not in graph.found()


def test_o2_sees_a_head_that_an_engine_would_adopt(graph: Damaged) -> None:
    verdict = oracle.Verdict()
    oracle.check_heads(verdict, graph.root)
    assert verdict.violations == {}
    graph.append("x.1")
    oracle.check_heads(verdict, graph.root)
    assert set(verdict.violations) == {"O2"}


def test_o3_sees_a_write_in_one_of_its_two_tables_though_only_for_one_version(
    graph: Damaged,
) -> None:
    publish_id = new_ulid()
    both = {rows.PERSON: 1, rows.COMPANY: 1}
    graph.ledger.writes["x.1"] = Write("x.1", publish_id, "append", both, AMBIGUOUS)
    ours = {"omnigraph_spark": {"publish_id": publish_id}}
    graph.append("x.1")
    graph.pin_head(rows_more=1, metadata=ours)
    graph.append("x.1", 1, layout.table_location(rows.COMPANY))
    graph.pin_head(rows.COMPANY, rows_more=1, metadata=ours)
    assert "O3" in graph.found()


def test_o4_sees_an_id_twice(graph: Damaged) -> None:
    graph.append("w.3")
    graph.pin_head(rows_more=1)
    assert "O4" in graph.found()


def test_o5_sees_a_pin_beyond_the_head(graph: Damaged) -> None:
    graph.pin_head(version=graph.table().version + 1)
    assert "O5" in graph.found()


def test_o5_sees_a_wrong_row_count(graph: Damaged) -> None:
    graph.table().update_config({"a": "b"})
    graph.pin_head(count=17)
    assert "O5" in graph.found()


def test_o5_sees_a_lost_data_file(graph: Damaged) -> None:
    (file,) = graph.table().get_fragments()[0].metadata.files
    Path(graph.root, PERSON, "data", file.path).unlink()
    assert "O5" in graph.found()


def _edit_lineage(graph: Damaged, edit: Callable[[list[dict[str, Any]]], None]) -> None:
    place = f"{graph.root}/{layout.GRAPH_COMMITS}"
    table = lance.dataset(place).to_table()
    found = table.to_pylist()
    edit(found)
    lance.write_dataset(type(table).from_pylist(found, table.schema), place, mode="overwrite")


def _drop_last(found: list[dict[str, Any]]) -> None:
    found.pop()


def _fork(found: list[dict[str, Any]]) -> None:
    found[-1]["parent_commit_id"] = found[0]["graph_commit_id"]


def _second(found: list[dict[str, Any]]) -> None:
    found.append({**found[-1], "graph_commit_id": new_ulid()})


def _stray(found: list[dict[str, Any]]) -> None:
    found.append({**found[-1], "graph_commit_id": new_ulid(), "manifest_version": 99})


@pytest.mark.parametrize("edit", [_drop_last, _fork, _second, _stray])
def test_o6_sees_a_lineage_that_does_not_match(
    graph: Damaged, edit: Callable[[list[dict[str, Any]]], None]
) -> None:
    _edit_lineage(graph, edit)
    assert graph.found() == {"O6"}


def test_o8_sees_a_changed_file(graph: Damaged) -> None:
    location = layout.table_location(rows.COMPANY)
    untouched = {location: oracle.listing(graph.root, location)}
    assert graph.found(untouched=untouched) == set()
    graph.table(location).update_config({"a": "b"})
    assert graph.found(untouched=untouched) == {"O8"}


@pytest.mark.parametrize(
    ("typed", "text"),
    [
        (False, "KeyError: 'x'"),
        (True, "[OMNIGRAPH_STORAGE] it failed"),
        (True, f"[OMNIGRAPH_STORAGE] it failed · key {oracle.SECRET} · do something"),
    ],
)
def test_o9_sees_an_error_that_helps_nobody(graph: Damaged, typed: bool, text: str) -> None:
    graph.ledger.refused.append({"token": "x.1", "type": "X", "typed": typed, "text": text})
    assert graph.found() == {"O9"}


def test_o10_sees_a_next_write_that_fails_is_slow_or_leaves_a_record(graph: Damaged) -> None:
    good = graph.ledger.writes["w.1"]
    bad = Write("x.1", new_ulid(), "append", {}, FAILED, error={"text": "no"})
    record = Path(graph.root, "__recovery", "x.json")
    for write, seconds, left, wanted in (
        (good, 1.0, False, set()),
        (bad, 1.0, False, {"O10"}),
        (None, 1.0, False, {"O10"}),
        (good, 31.0, False, {"O10"}),
        (good, 1.0, True, {"O10"}),
    ):
        record.parent.mkdir(exist_ok=True)
        record.unlink(missing_ok=True)
        if left:
            record.write_text(json.dumps({}))
        verdict = oracle.Verdict()
        oracle.check_next_write(verdict, graph.root, write, seconds)
        assert set(verdict.violations) == wanted


def test_every_row_tells_in_each_column_which_write_it_belongs_to() -> None:
    batch = rows.batch(rows.EDGE_SCHEMA, "w.1", 3)
    table = pa.Table.from_batches([batch])
    assert rows.wrong_values(table) == 0
    swapped = table.set_column(1, "src", table["dst"])
    assert rows.wrong_values(swapped) == 3
    assert pc.all(pc.equal(table["write"], "w.1")).as_py()


@pytest.mark.parametrize("large", [False, True])
def test_pairs_of_operations_meet_at_every_step_in_both_orders(large: bool) -> None:
    steps = {
        name: [f"{name}.{n}" for n in range(3 + 7 * (n % 5))]
        for n, name in enumerate(pairs.OPERATIONS)
    }
    trials = list(pairs.chosen(steps, Random(3), large=large))
    assert {(t.first, t.second) for t in trials} == {*product(steps, steps)}
    assert {t.point for t in trials} == {point for points in steps.values() for point in points}
    assert {t.killed for t in trials} == {True, False}
    if large:
        assert len(trials) == len({*trials})
        assert {(t.second, t.point, t.killed) for t in trials} == {
            (second, point, killed)
            for points in steps.values()
            for second, point, killed in product(steps, points, (True, False))
        }
