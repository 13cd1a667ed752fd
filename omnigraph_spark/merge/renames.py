"""Whether a column of one table version is, under another name, that of an earlier one.

Lance gives a column a number that stays through renames. It gives the number of a dropped column to
a new one, once no data file has it any more, and an overwrite by another program may number all
columns again. So an equal number is a sign, and what proves it is a data file that both versions
have, or every version between them. Runs on the driver, from metadata.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from omnigraph_spark.manifest.rows import TOMBSTONE
from omnigraph_spark.manifest.snapshot import (
    Snapshot,
    TableEntry,
    highest_of,
    open_manifest,
    read_rows,
)
from omnigraph_spark.refs import forks
from omnigraph_spark.storage import column_numbers, layout
from omnigraph_spark.storage.lance_errors import DatasetNotFoundError, translated
from omnigraph_spark.storage.relocation import open_for_reading
from omnigraph_spark.storage.store import Storage

if TYPE_CHECKING:
    from lance import LanceDataset

_MOST_VERSIONS = 500
"""Further back than so many versions nothing is looked for."""

Span = tuple[str | None, int, int]
"""Versions of one line: its Lance branch, the first, the last."""


@dataclass(frozen=True)
class Line:
    """The versions of a table from a common one to that of a branch's head."""

    storage: Storage
    base: TableEntry
    entry: TableEntry
    head: Snapshot

    @cached_property
    def spans(self) -> tuple[Span, ...] | None:
        """Return the versions from the newest on, None where they don't lead to the common one."""
        base, entry = self.base, self.entry
        line, version, spans = entry.table_branch, entry.table_version, list[Span]()
        if base.location != entry.location:
            return None
        while line != base.table_branch:
            began = forks.origin(self.storage, entry.location, line)
            if began is None:
                return None
            spans.append((line, began[1] + 1, version))
            line, version = layout.lance_branch(began[0]), began[1]
        if version < base.table_version:
            return None
        spans.append((line, base.table_version, version))
        rows = read_rows(open_manifest(self.storage, self.head.branch, self.head.graph_version))
        was_gone = highest_of(rows, TOMBSTONE).get(entry.table_key, 0) >= base.table_version
        return None if was_gone else tuple(spans)

    def keeps(self, number: int) -> bool:
        """Return whether the column with a number is surely the same at both ends.

        Raises:
            StorageError: the store failed.
        """
        if self.spans is None:
            return False
        before, after = self._files(self.base), self._files(self.entry)
        shared = before.items() & after.items()
        return any(number in fields for _, fields in shared) or self._is_in_all(number)

    def _files(self, entry: TableEntry) -> dict[str, tuple[int, ...]]:
        """Return the numbers of the columns that each data file of a version has."""
        dataset = self._open(entry.table_branch, entry.table_version)
        with translated(f"Reading the fragments of {entry.table_key}"):
            return {
                file.path: tuple(file.fields)
                for fragment in dataset.get_fragments()
                for file in fragment.data_files()
            }

    def _is_in_all(self, number: int) -> bool:
        """Return whether each version has the number, and nothing but a rename changed the name."""
        if sum(last - first for _, first, last in self.spans or ()) > _MOST_VERSIONS:
            return False
        newer: tuple[LanceDataset, str] | None = None
        try:
            for dataset in self._versions():
                fields = column_numbers.of_dataset(dataset)
                name = next((path for path, n, _, _ in fields if n == number), None)
                if name is None or (newer and newer[1] != name and not _renames(newer[0])):
                    return False
                newer = dataset, name
        except DatasetNotFoundError:  # cleaned up
            return False
        return newer is not None

    def _versions(self) -> Iterator[LanceDataset]:
        for line, first, last in self.spans or ():
            for version in range(last, first - 1, -1):
                yield self._open(line, version)

    def _open(self, line: str | None, version: int) -> LanceDataset:
        return open_for_reading(self.storage, self.entry.location, line, version)


def _renames(dataset: LanceDataset) -> bool:
    """Return whether a version was made by a change of names alone."""
    with translated("Reading the transaction of a table version"):
        transaction = dataset.read_transaction(int(dataset.version))
    return transaction is not None and type(transaction.operation).__name__ == "Project"
