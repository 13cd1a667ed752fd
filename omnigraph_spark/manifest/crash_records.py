"""Crash records: what a writer leaves in `__recovery/` while it commits.

The form is the engine's, so that an engine that opens the graph after a crash rolls the whole write
back; the extra key `omnigraph_spark` tells our own from the engine's. `post_commit_pin` is always
0: nobody rolls a dead write forward. An engine whose lineage is in `__manifest` fails at a record
of this form, or undoes a write that is going on: there ours lie in `__writers/`, which it doesn't
look at, and all in `__recovery/` are its own. All functions run on the driver.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from types import TracebackType
from typing import Any

from omnigraph_spark.errors import RecoveryPendingError, StorageError
from omnigraph_spark.manifest import formats
from omnigraph_spark.manifest.rows import OURS
from omnigraph_spark.manifest.snapshot import TableEntry, open_main
from omnigraph_spark.storage import backoff, layout
from omnigraph_spark.storage.lance_errors import translated
from omnigraph_spark.storage.store import ObjectInfo, Storage

_SCHEMA_VERSION = 1
_POLL_SECONDS = 0.1
_STAGED = ".staging"


@dataclass(frozen=True)
class CrashRecord:
    """One of our own records: who left it, for which tables, and when it was last renewed (UTC).

    `branch_identifier` tells the branch from another one of the name, None for `main`; `removing`
    has the graph versions that a cleanup removes, by branch, as ranges with both ends.
    """

    publish_id: str
    branch: str
    table_keys: tuple[str, ...]
    renewed: datetime
    branch_identifier: str | None = None
    removing: Mapping[str, Sequence[Sequence[int]]] = field(default_factory=dict)

    def removes(self, branch: str, version: int) -> bool:
        """Return whether it is of a cleanup that removes a graph version."""
        return any(low <= version <= high for low, high in self.removing.get(branch, ()))


@dataclass(frozen=True)
class Noted:
    """What a writer's record says, beside its publish id and time; see `CrashRecord`."""

    branch: str
    tables: tuple[TableEntry, ...]
    actor: str | None = None
    branch_identifier: str | None = None
    removing: Mapping[str, Sequence[Sequence[int]]] = field(default_factory=dict)

    def ours(self) -> dict[str, Any]:
        """Return what only this connector understands of it; the engine passes over it."""
        details: dict[str, Any] = {}
        if self.branch_identifier is not None:
            details["branch_identifier"] = self.branch_identifier
        if self.removing:
            details["removing"] = {key: [*map(list, value)] for key, value in self.removing.items()}
        return details


def path_of(publish_id: str, folder: str = layout.RECOVERY) -> str:
    """Return the path of a write's record; the folder follows from the graph's format."""
    return f"{folder}/{publish_id}.json"


def _path(storage: Storage, publish_id: str) -> str:
    return path_of(publish_id, formats.of_graph(storage).records)


def write(storage: Storage, publish_id: str, noted: Noted) -> None:
    """Write or renew a record; its tables are those that have a published version.

    Raises:
        StorageError: the store failed; an older record of this write may still be there.
    """
    now_us = time.time_ns() // 1000
    record = {
        "schema_version": _SCHEMA_VERSION,
        "operation_id": publish_id,
        "started_at": str(now_us),
        "branch": layout.lance_branch(noted.branch),
        "actor_id": noted.actor,
        "writer_kind": "Load",
        "tables": [
            {
                "table_key": entry.table_key,
                "table_path": storage.uri(entry.location),
                "expected_version": entry.table_version,
                "post_commit_pin": 0,
                "table_branch": entry.table_branch,
            }
            for entry in noted.tables
        ],
        OURS: {"publish_id": publish_id, "heartbeat_ms": now_us // 1000, **noted.ours()},
    }
    storage.put(_path(storage, publish_id), json.dumps(record, indent=1).encode())


def delete(storage: Storage, publish_id: str) -> None:
    """Delete a record; one that is gone already is not an error.

    Raises:
        StorageError: the store failed.
    """
    storage.delete(_path(storage, publish_id))


def refuse_foreign(storage: Storage, wait_seconds: float = 0.0) -> bool:
    """Refuse to write beside a record that isn't ours, after giving its writer time to finish.

    A change of the schema by a newer engine counts as one: it leaves its files and a branch
    meanwhile. Returns whether it waited; what was read before is old then.

    Raises:
        RecoveryPendingError: the engine's, or an unreadable, record stays; its file is named and
            kept.
        StorageError: the store failed.
    """
    end, waited = time.monotonic() + wait_seconds, False
    while True:
        records = foreign(storage)
        if not records:
            return waited
        if time.monotonic() >= end:
            raise RecoveryPendingError(
                f"The graph has an unfinished write of another engine ({records[0]})",
                expected=f"an empty {layout.RECOVERY}/, and no change of the schema going on",
                found=f"{len(records)} record(s)",
                hint=(
                    "Nothing was written. Open the graph for writing with the engine that left it,"
                    " which finishes or undoes that write, and run this again. A change of tables"
                    " by this connector that died is finished by OmniGraph.repair(dry_run=False)"
                ),
            )
        backoff.poll(_POLL_SECONDS)
        waited = True


def foreign(storage: Storage) -> list[str]:
    """Return the paths of the records that aren't ours, and of what a schema change leaves.

    Raises:
        StorageError: the store failed.
    """
    records = [info.path for info, record in _all(storage) if record is None]
    if not formats.of_graph(storage).has_lineage:
        return records
    records += [info.path for info in storage.list(layout.RECOVERY)]
    return [*records, *_schema_change(storage)]


def _schema_change(storage: Storage) -> list[str]:
    """Return what a newer engine leaves while it changes the schema, or died at it."""
    leftovers = [f"{name}{_STAGED}" for name in layout.SCHEMA_FILES]
    leftovers = [path for path in leftovers if storage.head(path) is not None]
    with translated("Listing the branches of __manifest"):
        if layout.SCHEMA_LOCK in open_main(storage).branches.list():
            leftovers.append(f"branch {layout.SCHEMA_LOCK}")
    return leftovers


def others(storage: Storage, publish_id: str) -> list[CrashRecord]:
    """Return our own kind's records of other writes.

    Raises:
        StorageError: the store failed.
    """
    return [r for _, r in _all(storage) if r is not None and r.publish_id != publish_id]


def renewed_at(storage: Storage, publish_id: str) -> datetime | None:
    """Return when a record was last renewed by the store's clock, None where there is none.

    Raises:
        StorageError: the store failed.
    """
    path = _path(storage, publish_id)
    folder = path.rpartition("/")[0]
    return next((i.last_modified for i in storage.list(folder) if i.path == path), None)


def dead(storage: Storage, own_publish_id: str, grace_seconds: float) -> list[CrashRecord]:
    """Return the records of other writes that were not renewed for the grace.

    Age is taken on the store's clock alone, against the caller's own record, which must just have
    been written (rule 24).

    Raises:
        RecoveryPendingError: as `refuse_foreign`, after the grace.
        StorageError: the store failed.
    """
    listed = storage.list(formats.of_graph(storage).records)
    own = _path(storage, own_publish_id)
    records = [record for _, record in _read(storage, [i for i in listed if i.path != own])]
    if None in records or formats.of_graph(storage).has_lineage:
        refuse_foreign(storage, grace_seconds)
    now = next((info.last_modified for info in listed if info.path == own), None)
    if now is None:
        return []
    oldest = now - timedelta(seconds=grace_seconds)
    return [record for record in records if record is not None and record.renewed < oldest]


def _all(storage: Storage) -> list[tuple[ObjectInfo, CrashRecord | None]]:
    """Return what lies where our records do, None for what isn't one; what vanishes is left out."""
    return _read(storage, storage.list(formats.of_graph(storage).records))


def _read(
    storage: Storage, listed: Iterable[ObjectInfo]
) -> list[tuple[ObjectInfo, CrashRecord | None]]:
    entries: list[tuple[ObjectInfo, CrashRecord | None]] = []
    for info in listed:
        text = storage.get(info.path)
        if text is not None:
            entries.append((info, _parsed(info, text)))
    return entries


def _parsed(info: ObjectInfo, text: bytes) -> CrashRecord | None:
    try:
        record = json.loads(text)
        publish_id = record[OURS]["publish_id"]
        # The id becomes a path again when the record is deleted, so it must be the file's own.
        named = path_of(publish_id, info.path.rpartition("/")[0])
        if record["schema_version"] != _SCHEMA_VERSION or named != info.path:
            return None
        return CrashRecord(
            publish_id=publish_id,
            branch=record["branch"] or layout.MAIN,
            table_keys=tuple(str(table["table_key"]) for table in record["tables"]),
            renewed=info.last_modified,
            branch_identifier=record[OURS].get("branch_identifier"),
            removing=dict(record[OURS].get("removing", {})),
        )
    except (ValueError, KeyError, TypeError):
        return None


class Heartbeat:
    """Renews a write's record every third of the grace, in a thread, until it is stopped.

    A record that another writer removed in the meantime is written again: its writer still lives. A
    store that fails a renewal is tried again at the next beat; `lost` then holds its error.
    """

    def __init__(self, storage: Storage, publish_id: str, grace_seconds: float) -> None:
        self._storage = storage
        self._publish_id = publish_id
        self._every = max(grace_seconds / 3, 0.01)
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._record: Noted | None = None
        self._thread = threading.Thread(target=self._run, name="omnigraph-heartbeat", daemon=True)

    def __enter__(self) -> Heartbeat:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def record(
        self,
        branch: str,
        tables: Iterable[TableEntry],
        actor: str | None,
        branch_identifier: str | None = None,
        removing: Mapping[str, Sequence[Sequence[int]]] | None = None,
    ) -> None:
        """Write the record of this round now, and renew it from here on.

        Raises:
            StorageError: the store failed.
        """
        with self._lock:
            self._record = Noted(branch, tuple(tables), actor, branch_identifier, removing or {})
            write(self._storage, self._publish_id, self._record)

    def remove(self) -> None:
        """Stop renewing and delete the record.

        Raises:
            StorageError: the store failed.
        """
        with self._lock:
            self._record = None
            delete(self._storage, self._publish_id)

    def stop(self) -> None:
        """Stop renewing; the record stays where it is."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        while not self._stop.wait(self._every):
            with self._lock:
                if self._record is None:
                    continue
                # The next beat tries again; a writer that stays silent too long is healed over.
                with suppress(StorageError):
                    write(self._storage, self._publish_id, self._record)
