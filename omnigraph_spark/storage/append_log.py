"""Lance datasets that only ever grow by small appends: the lineage, the runs, their actors.

Many processes append at once, on the driver, outside of any lock. Left alone such a dataset grows
quadratically on disk, since each version lists all fragments (fact 41); so every few versions the
process that made that version compacts it, and drops old versions where nobody can need them.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from omnigraph_spark.errors import OmnigraphError, StorageError
from omnigraph_spark.storage import backoff, gathering, kept_rows, layout, store
from omnigraph_spark.storage.lance_errors import (
    DatasetNotFoundError,
    Outcome,
    outcome_of,
    translated,
)
from omnigraph_spark.storage.store import Storage

if TYPE_CHECKING:
    from lance import LanceDataset

# Every 8th version gathers the fragments since the last time, every 512th the gathered ones: so a
# row is rewritten some times in its life, however long the log gets. A process that is new to a log
# reads each of its fragments.
COMPACT_EVERY = 8
GATHER_EVERY = 512
SMALL_ROWS = 128
LARGE_ROWS = 65_536
_DROP_EVERY = 64
# Readers and appenders open a log, use it and let go; this is how long they may take.
_RETENTION = timedelta(minutes=10)
_APPEND_ATTEMPTS = 30
_LONGEST_PAUSE_SECONDS = 0.5

LOGS = frozenset(
    {
        layout.GRAPH_COMMITS,
        layout.GRAPH_COMMIT_ACTORS,
        layout.GRAPH_RUNS,
        layout.GRAPH_RUN_ACTORS,
    }
)

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class AppendLog:
    """A log below the graph's root and the columns that this connector writes."""

    location: str
    schema: pa.Schema

    def rows(self, values: list[dict[str, Any]]) -> pa.Table:
        """Return values as rows of the log; absent columns are null."""
        return pa.Table.from_pylist(values, schema=self.schema)


def read(
    storage: Storage,
    log: AppendLog,
    branch: str | None = None,
    newest: int | None = None,
    opened: LanceDataset | None = None,
) -> pa.Table | None:
    """Read the rows of a log; None where there is no log.

    Rows come about in the order in which they were appended, but those that are appended during a
    compaction stand before the compacted ones.

    Args:
        storage: The graph.
        log: Which log.
        branch: A Lance branch of it: then only the rows in its own files (not the inherited ones,
            so a moved graph needs no relocation), and those that a compaction copied into them.
        newest: This many of the newest rows are enough; older ones may be missing.
        opened: The log, where the caller has just opened it.

    Raises:
        StorageError: the store failed, twice: a reader that meets the dropping of old versions
            finds everything again in the newest one.
    """
    with naming_repair(log.location):
        try:
            return _read(storage, log, branch, newest, opened)
        except DatasetNotFoundError:
            return _read(storage, log, branch, newest)


@contextmanager
def naming_repair(location: str) -> Iterator[None]:
    """Let what a damaged log raises name the call that makes it again; a refusal stays as it is.

    Raises:
        StorageError: of the same kind as what was raised inside.
    """
    try:
        yield
    except StorageError as error:
        is_named = error.what.startswith(f"{location} can't be used")
        is_refusal = type(error) not in (StorageError, DatasetNotFoundError)
        if is_named or is_refusal or location not in LOGS:
            raise
        raise type(error)(
            f"{location} can't be used: {error.what}",
            expected="all files of this log",
            found=error.found,
            hint=f"If {location} is damaged, OmniGraph.repair(dry_run=False) "
            "makes it again from __manifest",
        ) from (error.__cause__ or error)


def _read(
    storage: Storage,
    log: AppendLog,
    branch: str | None,
    newest: int | None,
    opened: LanceDataset | None = None,
) -> pa.Table | None:
    try:
        dataset = storage.dataset(log.location, branch) if opened is None else opened
    except DatasetNotFoundError:
        return None
    with translated(f"Reading {log.location}"):
        return _scan(dataset, log.schema.names, newest)


def _scan(dataset: LanceDataset, columns: list[str], newest: int | None) -> pa.Table:
    """Return the rows of an opened log's own fragments, each of which a process reads once."""
    chosen = _own_fragments(dataset, newest)
    if not chosen:
        return dataset.schema.empty_table().select(columns)
    kept = kept_rows.read(dataset, chosen, columns)
    return pa.concat_tables([one.rows for one in kept])


def _own_fragments(dataset: LanceDataset, newest: int | None) -> list[Any]:
    """Return an opened log's own fragments; of the full ones only what `newest` rows need."""
    chosen: list[Any] = []
    rows = 0
    for fragment in reversed(dataset.get_fragments()):
        metadata = fragment.metadata
        enough = newest is not None and rows >= newest and metadata.num_rows >= SMALL_ROWS
        if enough or any(file.base_id is not None for file in metadata.files):
            continue
        chosen.append(fragment)
        rows += metadata.num_rows
    return chosen[::-1]


def is_whole(storage: Storage, log: AppendLog, branch: str | None, version: int) -> bool:
    """Return whether all rows of one version of a log can be read."""
    try:
        dataset = storage.dataset(log.location, branch, version)
        with translated(f"Reading version {version} of {log.location}"):
            fragments = _own_fragments(dataset, None)
            if fragments:
                dataset.scanner(columns=log.schema.names, fragments=fragments).to_table()
    except StorageError:
        return False
    return True


def salvaged(storage: Storage, log: AppendLog, branch: str | None) -> pa.Table:
    """Return the rows of a damaged log that can be read: of each fragment that is whole.

    They are those of its newest version; where that can't even be opened, there are none.
    """
    tables = [log.schema.empty_table()]
    try:
        dataset = storage.dataset(log.location, branch)
        with translated(f"Listing the fragments of {log.location}"):
            fragments = dataset.get_fragments()
    except StorageError:
        return tables[0]
    for fragment in fragments:
        if any(file.base_id is not None for file in fragment.metadata.files):
            continue
        try:
            with translated(f"Reading a fragment of {log.location}"):
                scanner = dataset.scanner(columns=log.schema.names, fragments=[fragment])
                tables.append(scanner.to_table().cast(log.schema))
        except StorageError as error:
            _log.warning("rows of %s are lost: %s", log.location, error)
    return pa.concat_tables(tables)


def append(
    storage: Storage,
    log: AppendLog,
    rows: pa.Table,
    branch: str | None = None,
    opened: LanceDataset | None = None,
) -> None:
    """Append rows in one commit, making the log where it isn't there; safe among other appenders.

    `opened` is the log, where the caller has just opened it; each further attempt opens it again.
    A commit whose outcome stays unknown is made again: readers of these logs take doubled rows as
    one.

    Raises:
        StorageError: the store failed, or others won every attempt; nothing, or everything, is
            there.
    """
    for attempt in range(_APPEND_ATTEMPTS):
        try:
            with translated(f"Appending to {log.location}"):
                written = _append_once(storage, log, rows, branch, None if attempt else opened)
        except StorageError as error:
            if _outcome(error) is Outcome.FAILED or attempt + 1 == _APPEND_ATTEMPTS:
                raise
            backoff.growing(attempt, first=0.01, longest=_LONGEST_PAUSE_SECONDS)
            continue
        keep_small(written, log.location, branch)
        return


def _append_once(
    storage: Storage,
    log: AppendLog,
    rows: pa.Table,
    branch: str | None,
    opened: LanceDataset | None,
) -> LanceDataset:
    import lance

    try:
        dataset = storage.dataset(log.location, branch) if opened is None else opened
    except DatasetNotFoundError:
        if branch is not None:
            raise
        return create(storage, log, rows)
    # The keys go before our first commit to a dataset of the engine (format.md, "Tree").
    if store.strip_auto_cleanup(dataset):
        dataset.checkout_latest()
    return lance.write_dataset(rows, dataset, mode="append")


def create(storage: Storage, log: AppendLog, rows: pa.Table) -> LanceDataset:
    """Make a log with its first rows in one commit; one of several creators succeeds.

    Without stable row ids, which the engine's logs have: with them every version lists for each row
    the version that made it, and nobody looks a log's rows up by id.

    Raises:
        StorageError: as `Storage.create_dataset`.
    """
    return storage.create_dataset(log.location, rows, stable_row_ids=False)


def create_if_missing(storage: Storage, log: AppendLog, rows: pa.Table) -> None:
    """Make a log with its first rows unless another writer has made it.

    Raises:
        StorageError: the store failed.
    """
    if storage.has_dataset(log.location):
        return
    try:
        create(storage, log, rows)
    except StorageError as error:
        if _outcome(error) is not Outcome.CONFLICT:
            raise


def _outcome(error: StorageError) -> Outcome:
    return outcome_of(error.__cause__ or error)


def keep_small(dataset: LanceDataset, name: str, branch: str | None = None) -> None:
    """Compact a log if the version that was just made is one where that is due; never raises.

    Whoever made the version does it, so no two processes do the same. A conflict means that
    another writer is at it.
    """
    version = int(dataset.version)
    if version % COMPACT_EVERY:
        return
    try:
        with translated(f"Compacting {name}"):
            compact(dataset, version)
            if version % _DROP_EVERY == 0 and branch is None:
                _drop_old_versions(dataset)
    except OmnigraphError as error:
        _log.info("%s was left as it is: %s", name, error)


def compact(dataset: LanceDataset, version: int) -> None:
    """Gather small fragments of a dataset that has reached `version`; two versions at most."""
    if version % GATHER_EVERY == 0:
        dataset.optimize.compact_files(target_rows_per_fragment=LARGE_ROWS)
    elif not gathering.gathered(dataset, SMALL_ROWS):
        dataset.optimize.compact_files(target_rows_per_fragment=SMALL_ROWS)


def compact_at_once(dataset: LanceDataset, version: int) -> None:
    """Gather small fragments in one commit that any publish beside it collides with, or leave them.

    For a `__manifest` that holds its commits: a version more, which reserves ids and collides with
    nobody, would let an engine's publish land under another number than its commit says, and the
    engine refuses such a graph.
    """
    gathering.gathered(dataset, SMALL_ROWS if version % GATHER_EVERY else LARGE_ROWS, newest=True)


def _drop_old_versions(dataset: LanceDataset) -> None:
    """Drop the versions of a log that nobody can be reading any more.

    Not while there are branches: Lance keeps what a branch takes from the main line only where the
    branch still names the main line by its path, and in a graph that was moved or copied it
    doesn't.
    """
    dataset.checkout_latest()
    if not dataset.branches.list():
        dataset.cleanup_old_versions(older_than=_RETENTION, error_if_tagged_old_versions=False)
