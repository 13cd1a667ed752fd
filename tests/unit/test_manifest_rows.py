"""What is looked at of a grown `__manifest` says the same as all of its rows."""

from __future__ import annotations

import random
from typing import Any

import pyarrow as pa
import pytest

from omnigraph_spark.errors import CorruptManifestError
from omnigraph_spark.manifest import identities, lineage
from omnigraph_spark.manifest.known_types import with_types
from omnigraph_spark.manifest.manifest_rows import ManifestRows
from omnigraph_spark.manifest.publisher import check_txn
from omnigraph_spark.manifest.rows import (
    IDENTITY_SCHEMA,
    MANIFEST_SCHEMA,
    OURS,
    AnyRow,
    CommitRow,
    TableRow,
    TombstoneRow,
    VersionRow,
    fit,
    to_arrow,
)
from omnigraph_spark.manifest.snapshot import Snapshot, fold
from omnigraph_spark.storage import layout
from omnigraph_spark.storage.kept_rows import Kept
from omnigraph_spark.storage.layout import Identity

A = "node:A"
PAIRS = {f"node:T{number}": Identity(number, number) for number in range(1, 9)}


def in_parts(rows: pa.Table, *sizes: int) -> ManifestRows:
    """Return rows as they lie in big fragments of some sizes, the rest in small ones."""
    big, start = [], 0
    for size in sizes:
        big.append(Kept(rows.slice(start, size).combine_chunks()))
        start += size
    return ManifestRows(big, rows.slice(start).combine_chunks())


def version(key: str, number: int, publish_id: str = "P") -> VersionRow:
    return VersionRow(key, number, None, number, {OURS: {"publish_id": publish_id}})


def identified(*rows: AnyRow) -> pa.Table:
    return fit(to_arrow(rows, PAIRS))


class Grown:
    """What many publishes leave: tables made, written to, renamed, dropped and made again.

    Of the rows of one `object_id` the last counts, as a merge into `__manifest` leaves it.
    """

    def __init__(self, dice: random.Random, *, has_ids: bool) -> None:
        self.dice, self.has_ids = dice, has_ids
        self.rows: dict[str, dict[str, Any]] = {}
        self.names: dict[int, str] = {}
        self.numbers: dict[int, int] = {}
        self.first: dict[str, int] = {}
        for publish in range(dice.randrange(5, 120)):
            self.publish(publish)

    def publish(self, publish: int) -> None:
        dice, kind = self.dice, self.dice.random()
        if not self.names or kind < 0.1:
            self.make(f"node:T{dice.randrange(6)}", publish)
        elif kind < 0.17:
            number = dice.choice([*self.names])
            self.numbers[number] += 1
            self.put(number, TombstoneRow(self.names[number], self.numbers[number]))
            del self.names[number]
        elif kind < 0.25 and self.has_ids:
            number = dice.choice([*self.names])
            self.names[number] = f"node:New{publish}"
            self.make_row(number)
        else:
            number = dice.choice([*self.names])
            self.numbers[number] += dice.randrange(1, 3)
            self.write(number, publish)
        branch = dice.choice([None, "dev"])
        for row in lineage.rows_of(CommitRow(f"P{publish}", publish + 2, branch, None, publish)):
            self.add(to_arrow([row], {} if self.has_ids else None))

    def make(self, key: str, publish: int) -> None:
        if key in self.names.values():
            return
        new = len(self.numbers) + 1
        number = new if self.has_ids else self.first.setdefault(key, new)
        self.names[number] = key
        self.numbers[number] = self.numbers.get(number, 0) + 1
        self.make_row(number)
        self.write(number, publish)

    def make_row(self, number: int) -> None:
        key = self.names[number]
        pair = Identity(number, number) if self.has_ids else None
        location = layout.table_location(key) if pair is None else pair.location(key)
        self.put(number, TableRow(key, location, pair))

    def write(self, number: int, publish: int) -> None:
        ours: dict[str, Any] = {"publish_id": f"P{publish}"}
        if self.dice.random() < 0.3:
            ours["txn"] = [self.dice.choice(["a", "b\u00fc"]), self.dice.randrange(9)]
        if self.dice.random() < 0.2 and not self.has_ids:
            ours["type"] = f"node T {{ p{publish}: I64? }}"
        branch = None if self.has_ids else self.dice.choice([None, "dev"])
        last = self.numbers[number]
        self.put(number, VersionRow(self.names[number], last, branch, publish, {OURS: ours}))

    def put(self, number: int, row: AnyRow) -> None:
        pairs = {self.names[number]: Identity(number, number)} if self.has_ids else None
        self.add(to_arrow([row], pairs))

    def add(self, table: pa.Table) -> None:
        for row in table.to_pylist():
            self.rows.pop(row["object_id"], None)
            self.rows[row["object_id"]] = row

    def table(self) -> pa.Table:
        schema = IDENTITY_SCHEMA if self.has_ids else MANIFEST_SCHEMA
        return fit(pa.Table.from_pylist([*self.rows.values()], schema))


def folded(rows: pa.Table) -> Snapshot | str:
    try:
        return with_types(fold(rows, layout.MAIN, 9), rows)
    except CorruptManifestError as error:
        return str(error)


@pytest.mark.parametrize("seed", range(60))
@pytest.mark.parametrize("has_ids", [True, False])
def test_what_is_looked_at_says_the_same_as_all_rows(seed: int, has_ids: bool) -> None:
    dice = random.Random(seed)
    every = Grown(dice, has_ids=has_ids).table()
    sizes = [dice.randrange(every.num_rows) for _ in range(dice.randrange(1, 3))]
    if sum(sizes) > every.num_rows:
        sizes = [every.num_rows]
    rows = in_parts(every, *sizes)
    assert folded(rows.current) == folded(rows.table)
    assert isinstance(folded(rows.current), Snapshot)
    assert lineage.head_of(every) is not None
    assert lineage.head_of(rows.current) == lineage.head_of(every)
    ids = {*every["object_id"].to_pylist()}
    assert all(rows.has_publish(f"P{n}") == (f"P{n}" in ids) for n in range(-1, 125))
    assert all(map(rows.holds, ids))
    for batch in [(app, number) for app in ("a", "b\u00fc", "c") for number in range(9)]:
        assert_same_batches(rows, batch)


def assert_same_batches(rows: ManifestRows, batch: tuple[str, int]) -> None:
    keys = {*rows.table["table_key"].to_pylist()} - {""}
    some = check_txn(rows.table, batch, frozenset(keys), whole=True)
    assert check_txn(rows.batches, batch, frozenset(keys), whole=True) == some
    found = [check_txn(rows.batches, batch, frozenset([key])) for key in keys]
    assert found == [check_txn(rows.table, batch, frozenset([key])) for key in keys]
    assert any(found) == some


def test_of_a_big_fragment_superseded_versions_and_commits_are_not_looked_at_again() -> None:
    key, pair = "node:T1", PAIRS["node:T1"]
    lines: list[AnyRow] = [TableRow(key, pair.location(key), pair)]
    for number in range(1, 101):
        lines += [
            version(key, number, f"P{number}"),
            CommitRow(f"P{number}", number, None, None, 1),
        ]
    rows = in_parts(identified(*lines), 150)
    assert rows.table.num_rows == 201
    assert rows.current.num_rows == 1 + 2 + 51
    assert rows.big[0].made(identities.newest) is rows.big[0].made(identities.newest)


@pytest.mark.parametrize("sizes", [(3,), (4,), (2, 2), (0,)])
@pytest.mark.parametrize("is_same", [True, False])
def test_an_id_that_is_there_twice_is_looked_into_wherever_the_two_rows_lie(
    sizes: tuple[int, ...], is_same: bool
) -> None:
    """Equal rows count once; of others no snapshot is made, were they superseded or not."""
    key, pair = "node:T1", PAIRS["node:T1"]
    rows = identified(
        TableRow(key, pair.location(key), pair),
        version(key, 1, "P1"),
        version(key, 2, "P2"),
        version(key, 1, "P1" if is_same else "P3"),
    )
    parts = in_parts(rows, *sizes)
    assert folded(parts.current) == folded(rows)
    assert isinstance(folded(parts.current), Snapshot) == is_same


def test_where_tables_have_no_ids_a_version_that_holds_a_type_stays() -> None:
    typed = VersionRow(A, 1, None, 1, {OURS: {"type": "node A { p: I64? }"}})
    every = fit(to_arrow([TableRow(A, "nodes/x"), typed, *(version(A, n) for n in range(2, 6))]))
    current = in_parts(every, 5).current
    assert current["table_version"].to_pylist() == [None, 1, 4, 5]
    assert with_types(fold(current, "main", 1), current) == with_types(
        fold(every, "main", 1), every
    )


@pytest.mark.parametrize("big", [0, 1, 2, 3, 4])
def test_a_publish_is_found_by_its_id_in_the_rows_alone(big: int) -> None:
    rows = to_arrow([version(A, n, publish_id=f"P{n}") for n in range(4)])

    def has(rows: pa.Table, publish_id: str) -> bool:
        return ManifestRows([Kept(rows.slice(0, big))], rows.slice(big)).has_publish(publish_id)

    assert has(rows, "P2")
    assert not has(rows, "P4")
    assert not has(rows.slice(0, 2), "P2"), "the text is in memory, not a row's"
    assert has(rows.slice(2), "P2")
    assert not has(rows.slice(0, 0), "P2")
    assert not has(to_arrow([TableRow(A, "nodes/x")]), "P2"), "no text at all"
    assert not has(to_arrow([]), "P2")


@pytest.mark.parametrize("big", [0, 1])
def test_an_id_in_a_tables_own_row_is_no_publish(big: int) -> None:
    guard = {**TableRow(A, "nodes/x").columns(), "metadata": '{"publish_id":"P1"}'}
    rows = in_parts(pa.Table.from_pylist([guard], MANIFEST_SCHEMA), *[1] * big)
    assert not rows.has_publish("P1")
