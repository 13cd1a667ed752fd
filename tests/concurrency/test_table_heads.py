"""Whose is the head of a table, and what happens to it: cases that races led to."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import lance
import pytest
from lance import LanceOperation

from omnigraph_spark.manifest.snapshot import load
from omnigraph_spark.storage.store import Storage
from omnigraph_spark.write.commit import table_head
from omnigraph_spark.write.commit.table_commit import Moved, put_back
from omnigraph_spark.write.commit.table_head import Round, StartOver, is_clean, owner_of, settle
from tests.chaos import rows
from tests.chaos.jobs import Writer
from tests.chaos.launcher import Setup


class Table:
    """The Person table of a new graph, published at version 1, for commits by made-up writers."""

    def __init__(self, folder: Path) -> None:
        (folder / "ledger").mkdir()
        writer = Writer(Setup("w", str(folder)), str(folder / "graph"))
        assert writer.write({rows.PERSON: 2}) == "acknowledged"
        self.storage = writer.storage
        self.entry = load(self.storage).entry(rows.PERSON)

    def head(self) -> lance.LanceDataset:
        return self.storage.dataset(self.entry.location)

    def append(self, publish_id: str) -> lance.LanceDataset:
        head = self.head()
        fragments = lance.fragment.write_fragments(
            rows.batch(head.schema, publish_id, 1), head, mode="append"
        )
        return table_head.commit(head, head.version, LanceOperation.Append(fragments), publish_id)

    def restore(self, version: int, publish_id: str) -> lance.LanceDataset:
        head = self.head()
        return table_head.commit(head, head.version, LanceOperation.Restore(version), publish_id)

    def round(self, publish_id: str, **changes: Any) -> Round:
        storage: Storage = self.storage
        fresh: Callable[[], Any] = lambda: load(storage)  # noqa: E731
        return Round(storage, publish_id, 0.2, changes.pop("fresh", fresh), **changes)


@pytest.fixture
def table(tmp_path: Path) -> Table:
    return Table(tmp_path)


def test_a_restore_of_another_writers_version_is_still_that_writers(table: Table) -> None:
    """Who lands above a live writer and takes itself back must not heal over it at once."""
    table.append("A")
    table.append("B")
    assert owner_of(table.restore(2, "B")) == "A"


def test_a_lost_round_is_put_back_from_below_a_rival_that_took_itself_back(table: Table) -> None:
    """Otherwise the next writer waits a whole grace for two writers that are both alive."""
    mine = table.append("A")
    table.append("B")
    table.restore(mine.version, "B")
    moved = Moved(rows.PERSON, table.entry.location, None, 1, mine.version, 3, 1, 0)
    put_back(table.round("A"), moved, mine.schema)
    assert is_clean(table.head(), 1)
    assert table.head().count_rows() == 2


def test_a_lost_round_leaves_a_rivals_version_above_it_alone(table: Table) -> None:
    mine = table.append("A")
    theirs = table.append("B")
    moved = Moved(rows.PERSON, table.entry.location, None, 1, mine.version, 3, 1, 0)
    put_back(table.round("A"), moved, mine.schema)
    assert table.head().version == theirs.version


@pytest.mark.timeout(30)
def test_a_healer_whose_snapshot_is_old_starts_over(table: Table) -> None:
    """The head that it takes for an orphan was published meanwhile; it must not spin on it."""
    table.append("A")
    published = load(table.storage)
    newer = {rows.PERSON: type(table.entry)(rows.PERSON, table.entry.location, 2, None, 3)}
    moved_on = type(published)("main", 9, newer, published.locations, published.floors)
    round_ = table.round("B", dead=frozenset({"A"}), fresh=lambda: moved_on)
    with pytest.raises(StartOver, match="published meanwhile"):
        settle(round_, rows.PERSON, table.entry.location, None, 1)
    assert table.head().version == 2
