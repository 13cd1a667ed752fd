"""The record that a write leaves from its plan until its end, so that its staged files stay.

Tasks may stage for days before the commit, and until then no version names their files. While the
record is there and its tasks give signs of life, cleanup removes no unnamed file that is younger
than the record (`oldest_live`). It lies in `{root}/__staging/{publish_id}/`; the driver writes and
deletes it, tasks renew it. The engine ignores it.
"""

from __future__ import annotations

import contextlib
import logging
import os
import time
from collections.abc import Iterable, Iterator
from datetime import datetime, timedelta

from omnigraph_spark.errors import OmnigraphError
from omnigraph_spark.storage import layout
from omnigraph_spark.storage.store import ObjectInfo, Storage

PLANNED = "planned"
RENEWED = "renewed"
LIVE = timedelta(days=7)
"""How long a write may be silent: as long as it takes until cleanup calls a file old."""
_RENEW_SECONDS = 3600.0

_log = logging.getLogger(__name__)


def begin(storage: Storage, publish_id: str) -> float:
    """Leave the record, and return the time; on the driver, once per write, before a task begins.

    Raises:
        StorageError: the store failed.
    """
    storage.put(f"{folder(publish_id)}/{PLANNED}", publish_id.encode())
    return time.time()


@contextlib.contextmanager
def recorded(storage: Storage, publish_id: str) -> Iterator[float]:
    """Keep the record while a write stages and commits in this process; yields its time.

    Raises:
        StorageError: the store failed at the beginning.
    """
    planned = begin(storage, publish_id)
    try:
        yield planned
    finally:
        end(storage, publish_id)


def renew(storage: Storage, publish_id: str, planned: float | None) -> None:
    """Give a sign of life, if the write is older than an hour; on executors, once per task.

    `planned` is the time of the plan in seconds since the epoch, None where no record was left.

    Raises:
        StorageError: the store failed.
    """
    if planned is not None and time.time() - planned > _RENEW_SECONDS:
        storage.put(f"{folder(publish_id)}/{RENEWED}", publish_id.encode())


def end(storage: Storage, publish_id: str) -> None:
    """Delete the record; what can't be deleted is litter, and no reason to fail."""
    inside = folder(publish_id)
    try:
        storage.delete_many([f"{inside}/{PLANNED}", f"{inside}/{RENEWED}"])
        if storage.is_local():
            with contextlib.suppress(OSError):  # a write of many frames has messages in it
                os.rmdir(storage.uri(inside))
    except OmnigraphError as error:
        _log.warning("the staging record of %s stays: %s", publish_id, error)


def folder(publish_id: str) -> str:
    """Return the folder of what a write stages beside its data files."""
    return f"{layout.STAGING}/{publish_id}"


def by_write(found: Iterable[ObjectInfo]) -> dict[str, list[ObjectInfo]]:
    """Sort what lies in `__staging` by the publish ids of the writes that left it."""
    writes: dict[str, list[ObjectInfo]] = {}
    for info in found:
        writes.setdefault(info.path.split("/")[1], []).append(info)
    return writes


def has_messages(inside: Iterable[ObjectInfo]) -> bool:
    """Return whether there is more of a write than its record."""
    return any(info.path.split("/")[-1] not in (PLANNED, RENEWED) for info in inside)


def oldest_live(storage: Storage, now: datetime) -> datetime | None:
    """Return when the oldest write that may still be staging was planned, by the store's clock.

    Raises:
        StorageError: the store failed.
    """
    planned = [
        min(info.last_modified for info in inside)
        for inside in by_write(storage.list(layout.STAGING)).values()
        if max(info.last_modified for info in inside) > now - LIVE
    ]
    return min(planned, default=None)
