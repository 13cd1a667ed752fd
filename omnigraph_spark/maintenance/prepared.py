"""What maintenance wants to do to one table, built beforehand, and how it gets onto its head.

Runs on the driver, once per table and round. A commit of maintenance rebases over whatever landed
since its building, and says nothing (rule 26). So what it was built on is compared with the
head first; the versions that it makes must lie directly above each other; and what lies under the
first of them must be published, or all of it is taken back.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from omnigraph_spark import _faults
from omnigraph_spark.errors import OmnigraphError, StorageError
from omnigraph_spark.maintenance import compacting, indices
from omnigraph_spark.maintenance.compacting import Group
from omnigraph_spark.manifest.snapshot import TableEntry
from omnigraph_spark.storage import backoff, column_numbers, layout
from omnigraph_spark.storage.column_numbers import FieldMap
from omnigraph_spark.storage.lance_errors import DatasetNotFoundError, translated
from omnigraph_spark.write.commit import staged_files
from omnigraph_spark.write.commit.table_commit import Moved
from omnigraph_spark.write.commit.table_head import (
    Round,
    StartOver,
    commit,
    is_clean,
    restore,
    settle,
    strip,
)

if TYPE_CHECKING:
    from lance import LanceDataset
    from lance.dataset import Index

_PUBLISH_SECONDS = 2.0
"""How long a version under ours is given to be published before ours are taken back."""

_log = logging.getLogger(__name__)


class Stale(Exception):
    """The table's fragments, schema or indices aren't those any more that this was built on."""


@dataclass(frozen=True)
class Prepared:
    """One table's part of a maintenance: built on its version `base`, committed to nothing.

    `dropped` are the names of indices whose segments go, `added` the segments that come, `groups`
    the fragments that are replaced. `needed` is what must be as it was: fragments by id.
    """

    table_key: str
    base: int
    fields: FieldMap
    needed: dict[int, Any]
    groups: tuple[Group, ...] = ()
    dropped: frozenset[str] = frozenset()
    added: tuple[Index, ...] = ()
    known: frozenset[str] = frozenset()

    @classmethod
    def of(
        cls,
        entry: TableEntry,
        dataset: LanceDataset,
        *,
        groups: tuple[Group, ...] = (),
        dropped: frozenset[str] = frozenset(),
        added: tuple[Index, ...] = (),
    ) -> Prepared:
        """Return it, with what of `dataset` (opened at the version it was built on) must stay.

        A compaction needs its fragments unchanged, deletions too; an index only their files.
        """
        old = {int(fragment.id) for group in groups for fragment in group.old}
        covered = {int(n) for index in added for n in index.fragment_ids}
        needed = {}
        with translated(f"Reading the fragments of {entry.table_key}"):
            for fragment in dataset.get_fragments():
                number = int(fragment.fragment_id)
                files = compacting.files_of(fragment.metadata)
                if number in old:
                    needed[number] = files
                elif number in covered:
                    needed[number] = {"files": files["files"]}
        known = frozenset(index.name for index in indices.present(dataset))
        fields = column_numbers.of_dataset(dataset)
        return cls(
            entry.table_key, entry.table_version, fields, needed, groups, dropped, added, known
        )


def apply(round_: Round, prepared: Prepared, entry: TableEntry) -> Moved:
    """Commit a prepared maintenance at the table's head, unpublished; all of it or nothing.

    `entry` is the table in the round's snapshot, with the Lance branch that is written to.

    Raises:
        StartOver: another writer was at the table; what was made is taken back.
        Stale: what it was built on has changed; it must be built again.
        StorageError: the store failed; what was committed is unpublished, and a later write heals
            it.
    """
    key, branch = entry.table_key, entry.table_branch
    head = settle(round_, key, entry.location, branch, entry.table_version)
    _check(prepared, head)
    first: int | None = None
    made = head
    try:
        before = int(head.version)
        head = strip(head)
        if head.version != before:
            first = before = int(head.version)
        made = head
        for operation in _operations(prepared, head):
            _faults.point("table.before_commit")
            made = commit(made, int(made.version), operation, round_.publish_id)
            _faults.point("table.after_commit")
            if first is None:
                first = int(made.version)
            elif made.version != before + 1:
                raise StartOver(f"a commit landed at {made.version}, not at {before + 1}")
            before = int(made.version)
        if first is None:
            raise Stale(f"there is nothing left to do to {key}")
        _check_files(round_, prepared, entry)
        _check_ids(prepared, made)
        under = _published_under(round_, made, key, first)
    except (StartOver, Stale, OmnigraphError):
        if first is not None:
            _take_back(round_, made, first)
        raise
    return _moved(entry, under, made)


def _operations(prepared: Prepared, head: LanceDataset) -> Iterator[Any]:
    """Yield what is committed, one version each; no version in between answers a query wrongly."""
    from lance import LanceOperation

    gone = [
        segment
        for index in indices.present(head)
        if index.name in prepared.dropped
        for segment in index.segments
    ]
    # A segment names the version that it was built at; a detached one has a number of its own.
    added = [replace(index, dataset_version=prepared.base) for index in prepared.added]
    if prepared.groups:
        if gone:
            yield LanceOperation.CreateIndex([], gone)
        yield compacting.operation(prepared.groups)
        if added:
            yield LanceOperation.CreateIndex(added, [])
    elif added or gone:
        yield LanceOperation.CreateIndex(added, gone)


def _check(prepared: Prepared, head: LanceDataset) -> None:
    """Compare what was built on with the head.

    Raises:
        Stale: they differ.
    """
    if column_numbers.of_dataset(head) != prepared.fields:
        raise Stale(f"{prepared.table_key} has another schema by now")
    if frozenset(index.name for index in indices.present(head)) != prepared.known:
        raise Stale(f"{prepared.table_key} has other indices by now")
    with translated(f"Reading the fragments of {prepared.table_key}"):
        now = {
            int(fragment.fragment_id): compacting.files_of(fragment.metadata)
            for fragment in head.get_fragments()
        }
    for number, needed in prepared.needed.items():
        current = now.get(number, {})
        if any(current.get(name) != value for name, value in needed.items()):
            raise Stale(f"fragment {number} of {prepared.table_key} was rewritten meanwhile")
    if any(int(fragment.id) in now for group in prepared.groups for fragment in group.new):
        raise Stale(f"{prepared.table_key} got more fragments than there were ids for")


def _check_files(round_: Round, prepared: Prepared, entry: TableEntry) -> None:
    """Look that what was built is there, after it became part of an unpublished version.

    Raises:
        StorageError: a cleanup removed some of it; or the store failed.
    """
    line = layout.line(entry.location, entry.table_branch)
    new = (fragment for group in prepared.groups for fragment in group.new)
    files = {f"{line}/data/{file.path}" for fragment in new for file in fragment.files}
    staged_files.check_files(round_.storage, prepared.table_key, files)
    for segment in prepared.added:
        if not round_.storage.list(f"{line}/_indices/{segment.uuid}"):
            raise StorageError(
                f"What was built of index {segment.name} on {prepared.table_key} is gone",
                hint="Nothing was published. Run it again, and let cleanup remove only what is "
                "older than your longest job",
            )


def _check_ids(prepared: Prepared, made: LanceDataset) -> None:
    """Look, after a commit that may have landed above appends, for fragment ids given twice.

    Raises:
        Stale: the appends took the ids that were meant for this.
    """
    ids = [int(fragment.fragment_id) for fragment in made.get_fragments()]
    if len(ids) != len(set(ids)):
        raise Stale(f"{prepared.table_key} got more fragments than there were ids for")


def _published_under(round_: Round, made: LanceDataset, key: str, first: int) -> int:
    """Return the published version that lies under the first version made here (rule 26).

    Raises:
        StartOver: it isn't published, and its writer doesn't publish it soon.
    """
    end = time.monotonic() + min(_PUBLISH_SECONDS, max(round_.grace_seconds / 2, 0.05))
    try:
        with translated(f"Opening the version under {first} of {key}"):
            below = made.checkout_version(first - 1)
    except DatasetNotFoundError as error:
        raise StartOver(f"version {first - 1} of {key} is gone") from error
    while True:
        published = round_.fresh().version(key)
        if is_clean(below, published):
            return published
        if published >= first or time.monotonic() >= end:
            raise StartOver(f"version {first - 1} of {key}, which lies under ours, isn't published")
        backoff.poll(0.03)


def _take_back(round_: Round, made: LanceDataset, first: int) -> None:
    """Restore what lies under the versions made here, if the head is still ours; quietly."""
    last = int(made.version)
    try:
        with translated("Reading the newest version of a table"):
            made.checkout_latest()
        if made.version == last:
            restore(made, first - 1, round_.publish_id)
    except (StartOver, OmnigraphError) as error:
        _log.warning("a table could not be put back to %d: %s", first - 1, error)


def _moved(entry: TableEntry, before: int, made: LanceDataset) -> Moved:
    with translated(f"Counting the rows of {entry.table_key}"):
        rows = int(made.count_rows())
    return Moved(
        entry.table_key,
        entry.location,
        entry.table_branch,
        before,
        int(made.version),
        rows,
        rows_added=0,
        rows_removed=0,
    )
