"""The lock of a schema change in graphs of today's engines, and what a dead holder of ours left.

While the branch `__schema_apply_lock__` of `__manifest` is there, neither the engine nor this
connector begins a write. Ours names its holder in the branch's metadata, whose record is renewed
while it lives; so a lock of a process that died is distinguished from an engine's and removed, with
its files: where the publish of its change has landed the change is finished, else it is undone. A
holder that only slept finds another name in the lock when it wakes, and stops: whoever takes a lock
over writes its own name first, then a version that the holder's publish collides with. Runs on the
driver.
"""

from __future__ import annotations

import logging
import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime

from omnigraph_spark import _faults
from omnigraph_spark.errors import (
    OmnigraphError,
    PublishOutcomeUnknown,
    RecoveryPendingError,
    UnsupportedError,
)
from omnigraph_spark.manifest import crash_records, formats, schema_record
from omnigraph_spark.manifest.crash_records import Heartbeat
from omnigraph_spark.manifest.rows import OURS
from omnigraph_spark.manifest.snapshot import TableEntry, branch_names, load, open_main
from omnigraph_spark.manifest.writable import fence
from omnigraph_spark.schema import ir2
from omnigraph_spark.schema.pg import parse_pg
from omnigraph_spark.storage import backoff, layout
from omnigraph_spark.storage.ids import new_ulid
from omnigraph_spark.storage.lance_errors import translated
from omnigraph_spark.storage.layout import Identity
from omnigraph_spark.storage.store import Storage

STAGED = tuple(f"{name}.staging" for name in layout.SCHEMA_FILES)
"""What the schema files are to become, where engines look for it."""
_POLL_SECONDS = 0.05

_log = logging.getLogger(__name__)


@contextmanager
def held(
    storage: Storage, holder: str, grace_seconds: float, tables: Sequence[TableEntry] = ()
) -> Iterator[None]:
    """Hold the lock; `holder` is a ULID of its own, `tables` those that get new versions under it.

    It stays after `PublishOutcomeUnknown`, and after a process that dies: `recover` removes it.

    Raises:
        UnsupportedError: the graph has other branches, which share the schema.
        RecoveryPendingError: another process changes the schema, or an engine's record is there.
        StorageError: the store failed.
    """
    recover(storage, grace_seconds)
    refuse_branches(storage)
    crash_records.refuse_foreign(storage, grace_seconds)
    _remove_unlisted(storage, grace_seconds)
    with Heartbeat(storage, holder, grace_seconds) as heartbeat:
        heartbeat.record(layout.MAIN, tables, None)
        try:
            _take(storage, holder)
            _refuse_branches_under(storage, holder)
        except OmnigraphError:
            heartbeat.remove()
            raise
        _faults.point("schema_lock.taken")
        try:
            yield
        except PublishOutcomeUnknown:
            raise
        except OmnigraphError:
            with suppress(OmnigraphError):
                heartbeat.remove()
            raise
        try:
            heartbeat.remove()
        except OmnigraphError as error:  # the change is published: nothing may deny that now
            _log.warning("the record of a schema change stays, for the next write: %s", error)


def check_held(storage: Storage, holder: str) -> None:
    """Refuse to go on under a lock that was taken over: its holder was silent for too long.

    Raises:
        RecoveryPendingError: another process holds it, or nobody does.
        StorageError: the store failed.
    """
    if _holder(storage) != holder:
        raise _pending()


def release(storage: Storage, holder: str) -> None:
    """Drop the lock.

    Raises:
        RecoveryPendingError: it was taken over; it stays.
        StorageError: the store failed.
    """
    check_held(storage, holder)
    with translated(f"Dropping {layout.SCHEMA_LOCK}"):
        open_main(storage).branches.delete(layout.SCHEMA_LOCK)


def _take(storage: Storage, holder: str) -> None:
    main = open_main(storage)
    try:
        main.create_branch(layout.SCHEMA_LOCK, int(main.version))
    except (OSError, ValueError, RuntimeError) as error:
        raise _pending() from error
    try:
        _faults.point("schema_lock.made")
        with translated(f"Naming the holder of {layout.SCHEMA_LOCK}"):
            main.branches.replace_metadata(layout.SCHEMA_LOCK, {OURS: holder})
    except OmnigraphError:
        # It was just made here, and without a name it would be an engine's, which nobody removes.
        with suppress(OSError, ValueError, RuntimeError):
            main.branches.delete(layout.SCHEMA_LOCK)
        raise
    check_held(storage, holder)


def refuse_branches(storage: Storage) -> None:
    """Refuse a change of the schema of a graph whose branches share it.

    Raises:
        UnsupportedError: the graph has other branches than `main`.
        StorageError: the store failed.
    """
    others = [name for name in branch_names(open_main(storage)) if name != layout.MAIN]
    if others:
        raise UnsupportedError(
            "The tables and properties of this graph can't be changed while it has other branches:"
            " all branches share one schema",
            expected="main alone",
            found=", ".join(others)[:300],
            hint="Nothing was changed. Merge and delete the branches first; the engine asks for"
            " the same",
        )


def _refuse_branches_under(storage: Storage, holder: str) -> None:
    try:
        refuse_branches(storage)
    except OmnigraphError:
        release(storage, holder)
        raise


def _remove_unlisted(storage: Storage, grace_seconds: float) -> None:
    """Delete the files of a lock without a ref, left where who made or dropped it was killed.

    Lance makes no branch where they are. Who is making one writes the ref last, within the grace.
    """
    folder = f"{layout.MANIFEST}/tree/{layout.SCHEMA_LOCK}"
    files = storage.list(folder)
    end = time.monotonic() + grace_seconds
    while files and time.monotonic() < end:
        backoff.poll(_POLL_SECONDS)
        if storage.list(folder) != files:
            return
    if not files or _is_taken(storage):
        return
    _log.warning("removing files of a lock that isn't there any more")
    storage.delete_many([info.path for info in files])


def refuse_taken(storage: Storage) -> None:
    """Refuse what doesn't go with a change of the schema, whoever makes it.

    Raises:
        RecoveryPendingError: the lock is there.
        StorageError: the store failed.
    """
    if formats.of_graph(storage).has_identities and _is_taken(storage):
        raise _pending()


def _is_taken(storage: Storage) -> bool:
    with translated("Listing the branches of __manifest"):
        return layout.SCHEMA_LOCK in open_main(storage).branches.list()


def recover(storage: Storage, grace_seconds: float) -> bool:
    """Finish or undo the schema change of a process of ours that died; return whether one had.

    A holder that renews its record within the grace lives. The record of a dead one stays: the
    next write rolls back the heads of the tables that it names.

    Raises:
        RecoveryPendingError: it lives, or what it left fits neither before nor after its change.
        StorageError: the store failed.
    """
    holder = _silent_holder(storage, grace_seconds)
    if holder is None:
        return False
    _log.warning("a change of the schema by %s died; finishing or undoing it", holder)
    own = new_ulid()
    _faults.point("schema_lock.silent")
    if not _take_over(storage, holder, own):
        return recover(storage, grace_seconds)
    _faults.point("schema_lock.taken_over")
    settle(storage, own)
    release(storage, own)
    return True


def _silent_holder(storage: Storage, grace_seconds: float) -> str | None:
    """Return the holder of ours that gave no sign of life for the grace; None if there is none."""
    holder = _holder(storage)
    if holder is None:
        return None
    end = time.monotonic() + grace_seconds
    seen = crash_records.renewed_at(storage, holder)
    while time.monotonic() < end:
        backoff.poll(_POLL_SECONDS)
        if _holder(storage) != holder:
            return None
        if _renewed(storage, holder, seen):
            raise _pending()
    return holder


def _take_over(storage: Storage, holder: str, own: str) -> bool:
    """Put another name into the lock, then a version that a publish of its holder collides with.

    Returns False where another process was first. What is published from then on is so for good.
    """
    if _holder(storage) != holder:
        return False
    with translated(f"Taking {layout.SCHEMA_LOCK} over"):
        open_main(storage).branches.replace_metadata(layout.SCHEMA_LOCK, {OURS: own})
    fence(storage, layout.MAIN)
    return _holder(storage) == own


def _renewed(storage: Storage, holder: str, seen: datetime | None) -> bool:
    now = crash_records.renewed_at(storage, holder)
    return now is not None and now != seen


def settle(storage: Storage, holder: str, files: Sequence[bytes | None] = ()) -> None:
    """Make the schema files agree with what is published, under the lock; leave no staged ones.

    `files` are those of a change that its holder knows to be published: an engine's command that
    ran at the same time may have removed the staged ones.

    Raises:
        RecoveryPendingError: the tables are neither those before nor those after the change, or
            the lock was taken over.
        StorageError: the store failed.
    """
    published = dict(load(storage).identities)
    live = [storage.get(name) for name in layout.SCHEMA_FILES]
    staged = [*files] or [storage.get(path) for path in STAGED]
    whole = [live[n] if content is None else content for n, content in enumerate(staged)]
    records = schema_record.found(storage)
    has_landed = bool(files) or not records or schema_record.has_landed(storage, records)
    check_held(storage, holder)
    if has_landed and whole != live and _tables(whole) == published:  # the publish has landed
        for name, data in zip(layout.SCHEMA_FILES, whole, strict=True):
            storage.put(name, data or b"")
            _faults.point("schema_apply.file_put")
    elif _tables(live) != published:
        raise _pending()
    _remove_staged(storage, records)
    remove_unpublished(storage, published)


def _remove_staged(storage: Storage, records: Sequence[schema_record.Found]) -> None:
    """Remove the staged files, then the record: without it an engine refuses a graph with them."""
    storage.delete_many(STAGED)
    storage.delete_many([record.path for record in records])


def undo(storage: Storage, holder: str) -> None:
    """Take back what a change whose publish didn't land has made, under the lock.

    Raises:
        RecoveryPendingError: the lock was taken over, and with it what is to be done.
        StorageError: the store failed.
    """
    check_held(storage, holder)
    _remove_staged(storage, schema_record.found(storage))
    remove_unpublished(storage, dict(load(storage).identities))


def remove_unpublished(storage: Storage, published: dict[str, Identity]) -> None:
    """Delete folders of tables that were made and never published; only under the lock.

    Their ids are above all that were ever given: the next change gives them again, and both engines
    refuse a folder that is there already.

    Raises:
        StorageError: the store failed.
    """
    ir_text = storage.get(layout.SCHEMA_IR)
    if ir_text is None:
        return
    above = ir2.document(ir_text.decode("utf-8"))["next_identity_id"]
    needed = {identity.location(key) for key, identity in published.items()}
    for kind in layout.TABLE_FOLDERS:
        for name in storage.folders(kind):
            location = f"{kind}/{name.rstrip('/').rpartition('/')[2]}"
            if location not in needed and _incarnation(location) >= above:
                storage.delete_many([info.path for info in storage.list(location)])
                if storage.is_local():
                    shutil.rmtree(storage.uri(location), ignore_errors=True)


def _incarnation(location: str) -> int:
    try:
        return int(location.rpartition("-")[2], 16)
    except ValueError:
        return 0


def _tables(files: list[bytes | None]) -> dict[str, Identity] | None:
    """Return the ids of the tables that schema files name, None where they don't agree."""
    texts = [None if data is None else data.decode("utf-8", "replace") for data in files]
    pg, ir_text, state = texts
    if pg is None or ir_text is None or state is None:
        return None
    try:
        if ir2.disagreement(parse_pg(pg), ir_text, state) is not None:
            return None
        return ir2.table_ids(ir2.document(ir_text))
    except OmnigraphError:
        return None


def _holder(storage: Storage) -> str | None:
    """Return who of ours holds the lock, None where nobody does, or an engine."""
    if not formats.of_graph(storage).has_identities:
        return None
    with translated("Listing the branches of __manifest"):
        lock = open_main(storage).branches.list().get(layout.SCHEMA_LOCK)
    if lock is None:
        return None
    metadata = lock.get("metadata") or {}
    holder = metadata.get(OURS)
    return holder if isinstance(holder, str) else None


def _pending() -> RecoveryPendingError:
    return RecoveryPendingError(
        "Another process is changing the schema of this graph, or died at it",
        expected=f"no branch {layout.SCHEMA_LOCK} in __manifest",
        hint="Nothing was written. Try again. If no engine and no other process works on the graph:"
        f" lance.dataset(uri + '/{layout.MANIFEST}').branches.delete('{layout.SCHEMA_LOCK}')",
    )
