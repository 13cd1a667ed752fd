"""The head of one table's dataset: is it what the snapshot pins, and if not, whose is it?

Lance rebases an append onto whatever is at a table's head (fact 19), so before a commit the head
must be the pinned version, or be *clean*: nothing above it but a Restore of the pinned version and
the removal of auto-cleanup keys (rule 12). A head that is ahead belongs to a writer that is
still going to publish it, or that is gone; only after the grace is it restored. Runs on the driver.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from omnigraph_spark import _faults
from omnigraph_spark.errors import CorruptManifestError
from omnigraph_spark.manifest import crash_records, formats
from omnigraph_spark.manifest.formats import Format
from omnigraph_spark.manifest.snapshot import Snapshot
from omnigraph_spark.storage import backoff, store
from omnigraph_spark.storage.lance_errors import (
    Outcome,
    is_panic,
    is_transient,
    outcome_of,
    translated,
    typed,
)
from omnigraph_spark.storage.layout import PUBLISH_ID_PROPERTY, UNDO_PROPERTY
from omnigraph_spark.storage.store import Storage

if TYPE_CHECKING:
    from lance import LanceDataset

_MOST_GRACES = 6
_SURELY_OLD = timedelta(days=1)
_LONGEST_WALK = 64
_KEEP_ROWS = frozenset({"CreateIndex", "UpdateConfig"})
_INTERVAL_KEY = "lance.auto_cleanup.interval"

_log = logging.getLogger(__name__)


class StartOver(Exception):
    """Another writer was first at this table; the round ends and what it moved is put back."""


@dataclass
class Round:
    """What the table commits of one write share.

    `fresh` reads the branch's snapshot again; it is how a waiting writer sees that a head was
    published. `dead` are the publish ids of writers that are known to be gone. `files_used` says
    that staged files may be part of a table version, so that only cleanup may delete them (rule
    19).
    """

    storage: Storage
    publish_id: str
    grace_seconds: float
    fresh: Callable[[], Snapshot]
    dead: frozenset[str] = frozenset()
    files_used: bool = False

    @property
    def format(self) -> Format:
        """Return the format of the graph that is written to."""
        return formats.of_graph(self.storage)


def commit(
    dataset: LanceDataset | str,
    read_version: int,
    operation: Any,
    publish_id: str,
    *,
    undo: bool = False,
    **options: Any,
) -> LanceDataset:
    """Commit one Lance transaction that carries the publish id (rule 17).

    Raises:
        StartOver: another writer was first, or the store can't tell; the next round looks again.
        StorageError: the store failed.
    """
    import lance
    from lance.dataset import Transaction

    properties = {PUBLISH_ID_PROPERTY: publish_id, **({UNDO_PROPERTY: "true"} if undo else {})}
    transaction = Transaction(
        read_version=read_version, operation=operation, transaction_properties=properties
    )
    try:
        _faults.point("table.sending")
        made = lance.LanceDataset.commit(dataset, transaction, **options)
        _faults.point("table.landed")
        return made
    except BaseException as error:  # a Rust panic is not an Exception (fact 16)
        if not isinstance(error, (OSError, ValueError, RuntimeError)) and not is_panic(error):
            raise
        if outcome_of(error) in (Outcome.CONFLICT, Outcome.UNKNOWN) or is_transient(error):
            raise StartOver(str(error)) from error
        raise typed(error, "Committing a table version") from error


def settle(
    round_: Round, key: str, location: str, table_branch: str | None, pinned: int
) -> LanceDataset:
    """Return the table's dataset at a head that is as good as the pinned version.

    Waits for a live writer, heals what a dead one left, and then stands at HEAD.

    Raises:
        StartOver: the table was published meanwhile, or a healing lost a race.
        RecoveryPendingError: the head is another engine's, whose record is there.
        CorruptManifestError: the dataset doesn't have as many versions as `__manifest` says.
        StorageError: the store failed.
    """
    watch = _Watch(round_.grace_seconds)
    head = round_.storage.dataset(location, table_branch)
    while True:
        if head.version < pinned:
            raise CorruptManifestError(
                f"{key} is published at version {pinned}, and its dataset ends before",
                expected=f"version {pinned}",
                found=f"version {head.version}",
                hint="The table's folder is damaged or from another graph; restore it from a copy",
            )
        if is_clean(head, pinned):
            return head
        if not _writer_is_gone(round_, head, watch):
            watch.pause()
            if round_.fresh().version(key) != pinned:
                raise StartOver(f"{key} was published meanwhile")
            head = _latest(head)
            continue
        own = owner_of(head) == round_.publish_id
        _log.log(
            logging.INFO if own else logging.WARNING,
            "%s: version %d was never published; restoring %d",
            key,
            head.version,
            pinned,
        )
        _faults.point("heal.before_restore")
        if round_.format.has_lineage and owner_of(head) is None:
            # An engine's, with a record that its engine can't settle any more over a restored head.
            crash_records.refuse_foreign(round_.storage)
        unmoved = _latest(head).version == watch.version
        if round_.fresh().version(key) != pinned:
            raise StartOver(f"{key} was published meanwhile")
        if unmoved:
            return restore(head, pinned, round_.publish_id)


def settle_absent(
    round_: Round, key: str, location: str, table_branch: str | None, floor: int
) -> LanceDataset:
    """Return the dataset that is left in the place of a table without a live version, at HEAD.

    `floor` is the highest version that the key ever had, as a tombstone too, or at which its fork
    began: nothing above it was published (rule 20).

    Raises:
        StartOver: another writer published the table meanwhile.
        DatasetNotFoundError: there is none.
        StorageError: the store failed.
    """
    watch = _Watch(round_.grace_seconds)
    head = round_.storage.dataset(location, table_branch)
    while head.version > floor and not _is_undone(head, round_.publish_id):
        if _writer_is_gone(round_, head, watch):
            _log.warning("%s: replacing version %d, which was never published", key, head.version)
            break
        watch.pause()
        if round_.fresh().version(key):
            raise StartOver(f"{key} was created meanwhile")
        head = _latest(head)
    return head


def is_clean(head: LanceDataset, pinned: int) -> bool:
    """Return whether a dataset at HEAD holds exactly the pinned version's content (rule 12)."""
    version = int(head.version)
    for _ in range(_LONGEST_WALK):
        if version == pinned:
            return True
        transaction = _transaction(head, version)
        if transaction is None:
            return False
        operation = transaction.operation
        kind = type(operation).__name__
        if kind == "Restore":
            version = int(operation.version)
        elif kind == "UpdateConfig" and _is_strip(operation):
            version -= 1
        else:
            return False
    return False


def _is_strip(operation: Any) -> bool:
    updates = operation.config_updates
    others = (
        operation.table_metadata_updates,
        operation.schema_metadata_updates,
        operation.field_metadata_updates,
    )
    return updates is not None and not any(others) and not updates.replace


def _transaction(head: LanceDataset, version: int) -> Any:
    """Return a version's transaction, None where its file is gone or pylance can't say it.

    That is so of Lance's own compaction of a table with indices: pylance 14.0.2 builds its
    `RewrittenIndex` with too few values.
    """
    with translated(f"Reading the transaction of version {version}"):
        try:
            return head.read_transaction(version)
        except TypeError:
            return None


def _properties(head: LanceDataset) -> dict[str, str]:
    """Return the properties of the write that made what the newest version holds.

    The index builds and config changes of a write can't carry any; they belong to the write below
    them, so that a long index build isn't taken for a silent stranger's (rule 17). A Restore of
    another writer's version, by one that landed above it and took itself back, is still that
    writer's.
    """
    version = int(head.version)
    for _ in range(_LONGEST_WALK):
        transaction = _transaction(head, version)
        if transaction is None:
            break
        kind = type(transaction.operation).__name__
        if kind == "Restore":
            version = int(transaction.operation.version)
            continue
        if transaction.transaction_properties:
            return dict(transaction.transaction_properties)
        if kind not in _KEEP_ROWS:
            break
        version -= 1
    return {}


def owner_of(head: LanceDataset) -> str | None:
    """Return the publish id of the write that made what a dataset's head holds, if it says so."""
    return _properties(head).get(PUBLISH_ID_PROPERTY)


def _is_undone(head: LanceDataset, publish_id: str) -> bool:
    properties = _properties(head)
    return UNDO_PROPERTY in properties or properties.get(PUBLISH_ID_PROPERTY) == publish_id


def _writer_is_gone(round_: Round, head: LanceDataset, watch: _Watch) -> bool:
    owner = owner_of(head)
    if owner == round_.publish_id or owner in round_.dead or _is_a_day_old(head):
        watch.version = int(head.version)
        return True
    sign = crash_records.renewed_at(round_.storage, owner) if owner else None
    return watch.is_over(int(head.version), sign)


def _is_a_day_old(head: LanceDataset) -> bool:
    made = head.get_version()["timestamp"]
    assert isinstance(made, datetime)
    age = datetime.now(made.tzinfo) - made
    return bool(age > _SURELY_OLD)


def _latest(head: LanceDataset) -> LanceDataset:
    with translated("Reading the newest version of a table"):
        head.checkout_latest()
    return head


def restore(head: LanceDataset, version: int, publish_id: str) -> LanceDataset:
    """Make `version` the content of the head again, in the next version; strips auto-cleanup after.

    Raises:
        StartOver: the restore didn't land directly above `head` (it is never strict, rule 14);
            it was taken back where nobody had built on it.
        StorageError: the store failed.
    """
    from lance import LanceOperation

    head = _leave_cleanup_slot(head, version, publish_id)
    _faults.point("table.before_restore")
    before = int(head.version)
    made = commit(head, before, LanceOperation.Restore(version), publish_id)
    _faults.point("table.after_restore")
    if made.version != before + 1:
        take_back(made, publish_id)
        raise StartOver(f"a restore landed at {made.version}, not at {before + 1}")
    return strip(made)


def contiguous(made: LanceDataset, before: int, publish_id: str) -> LanceDataset:
    """Return a commit that landed directly above `before`, else take it back (rules 11, 12).

    Raises:
        StartOver: it landed above another writer's commit.
    """
    if made.version == before + 1:
        return made
    take_back(made, publish_id)
    raise StartOver(f"a commit landed at {made.version}, not at {before + 1}")


def take_back(made: LanceDataset, publish_id: str) -> None:
    """Undo a commit that landed above another writer's, if nobody has built on it (SELF)."""
    from lance import LanceOperation

    mine = int(made.version)
    if _latest(made).version == mine:
        commit(made, mine, LanceOperation.Restore(mine - 1), publish_id)


def strip(head: LanceDataset) -> LanceDataset:
    """Remove auto-cleanup keys, if there are any, in the next version.

    Raises:
        StartOver: another writer committed in between.
        StorageError: the store failed.
    """
    before = int(head.version)
    try:
        stripped = store.strip_auto_cleanup(head)
    except (OSError, ValueError, RuntimeError) as error:
        if outcome_of(error) in (Outcome.CONFLICT, Outcome.UNKNOWN):
            raise StartOver(str(error)) from error
        raise typed(error, "Removing auto-cleanup from a table") from error
    if stripped:
        _faults.point("table.after_strip")
        if head.version != before + 1:
            raise StartOver(f"a config change landed at {head.version}, not at {before + 1}")
    return head


def _leave_cleanup_slot(head: LanceDataset, version: int, publish_id: str) -> LanceDataset:
    """Step over a version at which a Restore would run Lance's auto-cleanup (rule 15)."""
    from lance import LanceOperation

    with translated(f"Reading the settings of version {version}"):
        interval = head.checkout_version(version).config().get(_INTERVAL_KEY)
    if interval is None or not interval.isdigit() or int(interval) == 0:
        return head
    before = int(head.version)
    if (before + 1) % int(interval):
        return head
    gone = LanceOperation.UpdateMap(updates={_INTERVAL_KEY: None}, replace=False)
    made = commit(head, before, LanceOperation.UpdateConfig(config_updates=gone), publish_id)
    if made.version != before + 1:
        raise StartOver(f"a config change landed at {made.version}, not at {before + 1}")
    return made


class _Watch:
    """How long one head has been silent, on the watcher's own monotonic clock (rules 16, 17)."""

    def __init__(self, grace_seconds: float) -> None:
        self._grace = grace_seconds
        self._first = self._last = 0.0
        self._sign: datetime | None = None
        self._pause = 0.01
        self.version: int | None = None

    def is_over(self, version: int, sign: datetime | None) -> bool:
        """Return whether the head may be healed; `sign` is its writer's last sign of life."""
        now = time.monotonic()
        if version != self.version:
            self.version, self._first, self._last, self._sign = version, now, now, sign
        elif sign is not None and sign != self._sign:
            self._last, self._sign = now, sign
        silent, watched = now - self._last, now - self._first
        return silent >= self._grace or watched >= _MOST_GRACES * self._grace

    def pause(self) -> None:
        """Sleep a little, longer each time, with jitter."""
        backoff.poll(self._pause)
        self._pause = min(self._pause * 1.5, max(0.02, min(0.2, self._grace / 10)))
