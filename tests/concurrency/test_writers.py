"""Real processes on one graph: nothing lost, doubled, torn or adopted."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from omnigraph_spark.errors import ExpectedVersionMismatch, RowLevelCasContention
from omnigraph_spark.history import commits
from omnigraph_spark.manifest.snapshot import load
from omnigraph_spark.storage.store import Storage
from tests.support import writes
from tests.support.processes import Outcome, at_once
from tests.support.writes import ALL, COMPANY, KNOWS, PERSON, ids

WRITES = 4
both_forms = pytest.mark.parametrize("graph", [2, 6], indirect=True)
FOUR_TABLES = tuple(f"node:T{number}" for number in range(4))
NEW = dict.fromkeys((*FOUR_TABLES, "node:New"), writes.NEW[PERSON])


@pytest.fixture
def graph(tmp_path: Path, request: pytest.FixtureRequest) -> Storage:
    form = getattr(request, "param", 2)
    return writes.new_graph(writes.empty_graph(Storage.at(str(tmp_path / "g")), form))


def assert_sound(storage: Storage) -> None:
    """O3, O5, O6, and no leftovers."""
    snapshot = load(storage)
    for key, entry in snapshot.tables.items():
        found = Counter(ids(storage, key))
        assert max(found.values(), default=1) == 1, f"doubled in {key}"
        assert writes.head(storage, key) >= entry.table_version
    lineage = [c.manifest_version for c in commits.read_commits(storage)]
    assert lineage == sorted(set(lineage))
    assert writes.records(storage) == []


def _append(storage: Storage, number: int, outcome: Outcome, keys: tuple[str, ...]) -> None:
    for count in range(WRITES):
        name = f"w{number}-{count}"
        writes.write(storage, {key: [name] for key in keys}, orphanGraceSeconds="10")
        outcome.acknowledged.append(name)


def same_table(storage: Storage, number: int, outcome: Outcome) -> None:
    _append(storage, number, outcome, (PERSON,))


def own_table(storage: Storage, number: int, outcome: Outcome) -> None:
    _append(storage, number, outcome, (FOUR_TABLES[number],))


def crossing(storage: Storage, number: int, outcome: Outcome) -> None:
    keys = (PERSON, COMPANY, KNOWS)
    _append(storage, number, outcome, (keys[number % 3], keys[(number + 1) % 3]))


@both_forms
@pytest.mark.parametrize("count", [2, 4])
def test_appends_of_many_processes_to_one_table_all_land_once(graph: Storage, count: int) -> None:
    outcomes = at_once(graph.root, [same_table] * count)
    assert [one.errors for one in outcomes] == [[]] * count
    names = [name for one in outcomes for name in one.acknowledged]
    assert len(names) == count * WRITES
    assert ids(graph, PERSON) == sorted(["first", *names])
    assert_sound(graph)


def test_appends_to_different_tables_never_meet(graph: Storage) -> None:
    for key in FOUR_TABLES:
        writes.write(graph, {key: ["first"]}, new=NEW)
    before = load(graph).graph_version
    outcomes = at_once(graph.root, [own_table] * 4)
    assert [one.errors for one in outcomes] == [[]] * 4
    for key, one in zip(FOUR_TABLES, outcomes, strict=True):
        assert ids(graph, key) == sorted(["first", *one.acknowledged])
        assert load(graph).version(key) == 1 + WRITES, "no version was lost to a rival"
    assert load(graph).graph_version >= before + 4 * WRITES
    assert_sound(graph)


@both_forms
def test_writers_of_crossing_pairs_of_tables_are_whole_at_every_version(graph: Storage) -> None:
    outcomes = at_once(graph.root, [crossing] * 3)
    assert [one.errors for one in outcomes] == [[]] * 3
    for version in range(3, load(graph).graph_version + 1):
        tables = load(graph, version=version).tables
        if not tables:
            continue
        seen = Counter(name for key in tables for name in ids(graph, key, version))
        assert {n for name, n in seen.items() if name != "first"} <= {2}, f"torn at {version}"
    assert_sound(graph)


def counter(storage: Storage, number: int, outcome: Outcome) -> None:
    """Add 1 to a counter by reading and overwriting, again and again until it landed."""
    for _ in range(WRITES):
        while True:
            entry = load(storage).entry(PERSON)
            rows = storage.dataset(entry.location, None, entry.table_version).to_table()
            value = int(rows["id"][0].as_py())
            try:
                writes.write(
                    storage,
                    {PERSON: [str(value + 1)]},
                    "overwrite",
                    read_versions={PERSON: entry.table_version},
                    orphanGraceSeconds="10",
                )
            except (ExpectedVersionMismatch, RowLevelCasContention):
                continue
            break


@both_forms
def test_read_modify_write_of_many_processes_loses_no_update(graph: Storage) -> None:
    writes.write(graph, {PERSON: ["0"]}, "overwrite")
    outcomes = at_once(graph.root, [counter] * 3)
    assert [one.errors for one in outcomes] == [[]] * 3
    assert ids(graph, PERSON) == [str(3 * WRITES)]
    assert_sound(graph)


def creator(storage: Storage, number: int, outcome: Outcome) -> None:
    writes.write(storage, {"node:New": [f"w{number}"]}, new=NEW, orphanGraceSeconds="10")


def test_creators_of_one_table_all_keep_their_rows(graph: Storage) -> None:
    outcomes = at_once(graph.root, [creator] * 4)
    assert [one.errors for one in outcomes] == [[]] * 4
    assert ids(graph, "node:New") == ["w0", "w1", "w2", "w3"]
    assert_sound(graph)


def first_writer(storage: Storage, number: int, outcome: Outcome) -> None:
    writes.write(storage, {PERSON: [f"w{number}"]}, orphanGraceSeconds="10")


def test_creators_of_one_graph_end_with_one_graph(tmp_path: Path) -> None:
    storage = Storage.at(str(tmp_path / "new"))
    outcomes = at_once(storage.root, [first_writer] * 4)
    assert [one.errors for one in outcomes] == [[]] * 4
    assert ids(storage, PERSON) == ["w0", "w1", "w2", "w3"]
    assert_sound(storage)


def pairs(storage: Storage, number: int, outcome: Outcome) -> None:
    _append(storage, number, outcome, (PERSON, COMPANY))


def reader(storage: Storage, number: int, outcome: Outcome) -> None:
    """Read both tables of one snapshot until all rows are there."""
    reads, last = 0, 0
    while last < 1 + 2 * WRITES:
        snapshot = load(storage)
        counts = set()
        for key in (PERSON, COMPANY):
            entry = snapshot.entry(key)
            rows = storage.dataset(entry.location, None, entry.table_version).count_rows()
            assert rows == entry.row_count
            counts.add(rows)
        if len(counts) != 1 or min(counts) < last:
            outcome.errors.append(f"torn or backwards: {counts} after {last}")
            return
        last, reads = counts.pop(), reads + 1
    outcome.result = reads


def test_readers_always_see_tables_that_belong_together(graph: Storage) -> None:
    outcomes = at_once(graph.root, [pairs, pairs, reader, reader])
    assert [one.errors for one in outcomes] == [[]] * 4
    assert all(one.result > 5 for one in outcomes[2:])
    assert_sound(graph)


def healer(storage: Storage, number: int, outcome: Outcome) -> None:
    """Heal as fast as it can: its grace is far shorter than the others' pauses."""
    for count in range(WRITES):
        name = f"h{number}-{count}"
        writes.write(storage, {PERSON: [name]}, orphanGraceSeconds="0.05")
        outcome.acknowledged.append(name)


def test_eager_healers_run_over_no_acknowledged_row(graph: Storage) -> None:
    outcomes = at_once(graph.root, [healer, healer, pairs])
    assert [one.errors for one in outcomes] == [[]] * 3
    names = [name for one in outcomes for name in one.acknowledged]
    assert ids(graph, PERSON) == sorted(["first", *names])
    assert ids(graph, COMPANY) == sorted(["first", *outcomes[2].acknowledged])
    assert set(load(graph).tables) == set(ALL)
