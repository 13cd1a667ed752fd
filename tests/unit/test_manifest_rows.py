"""What is looked at of a grown `__manifest` says the same as all of its rows."""

from __future__ import annotations

import random
from typing import Any

import pyarrow as pa
import pytest

from omnigraph_spark.errors import CorruptManifestError
from omnigraph_spark.manifest import identities, lineage
from omnigraph_spark.manifest.manifest_rows import ManifestRows
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


def random_rows(dice: random.Random) -> pa.Table:
    """Return what many publishes leave: tables made, written to, renamed, dropped and made again.

    A renamed or dropped table's newest row counts, as a merge into `__manifest` leaves it.
    """
    rows: dict[str, dict[str, Any]] = {}
    names: dict[int, str] = {}
    numbers: dict[int, int] = {}

    def put(table: pa.Table) -> None:
        for row in table.to_pylist():
            rows.pop(row["object_id"], None)
            rows[row["object_id"]] = row

    for publish in range(dice.randrange(5, 120)):
        kind = dice.random()
        alive = [*names]
        if not alive or kind < 0.1:
            number = len(numbers) + 1
            key = f"node:T{dice.randrange(6)}"
            if key in names.values():
                continue
            names[number], numbers[number] = key, 1
            pair = Identity(number, number)
            made = TableRow(key, pair.location(key), pair)
            put(to_arrow([made, version(key, 1, f"P{publish}")], {key: pair}))
        elif kind < 0.17:
            number = dice.choice(alive)
            key, numbers[number] = names.pop(number), numbers[number] + 1
            gone = TombstoneRow(key, numbers[number])
            put(to_arrow([gone], {key: Identity(number, number)}))
        elif kind < 0.25:
            number, key = dice.choice(alive), f"node:New{publish}"
            names[number] = key
            pair = Identity(number, number)
            put(to_arrow([TableRow(key, pair.location(key), pair)], {key: pair}))
        else:
            number = dice.choice(alive)
            numbers[number] += dice.randrange(1, 3)
            new = version(names[number], numbers[number], f"P{publish}")
            put(to_arrow([new], {names[number]: Identity(number, number)}))
        branch = dice.choice([None, "dev"])
        put(
            to_arrow(
                lineage.rows_of(CommitRow(f"P{publish}", publish + 2, branch, None, publish)), {}
            )
        )
    return fit(pa.Table.from_pylist([*rows.values()], IDENTITY_SCHEMA))


def folded(rows: pa.Table) -> Snapshot | str:
    try:
        return fold(rows, layout.MAIN, 9)
    except CorruptManifestError as error:
        return str(error)


@pytest.mark.parametrize("seed", range(60))
def test_the_current_rows_fold_into_the_snapshot_of_all_rows(seed: int) -> None:
    dice = random.Random(seed)
    every = random_rows(dice)
    sizes = [dice.randrange(every.num_rows) for _ in range(dice.randrange(1, 3))]
    if sum(sizes) > every.num_rows:
        sizes = [every.num_rows]
    rows = in_parts(every, *sizes)
    snapshot = folded(rows.table)
    assert isinstance(snapshot, Snapshot), snapshot
    assert folded(rows.current) == snapshot
    assert lineage.head_of(every) is not None
    assert lineage.head_of(rows.current) == lineage.head_of(every)
    for publish in range(-1, 125):
        is_there = f"P{publish}" in every["object_id"].to_pylist()
        assert rows.has_publish(f"P{publish}") == is_there
    assert all(map(rows.holds, every["object_id"].to_pylist()))


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


def test_where_tables_have_no_ids_all_rows_are_current() -> None:
    every = fit(to_arrow([version(A, number) for number in range(4)]))
    rows = in_parts(every, 3)
    assert rows.current.equals(every)


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
