"""Table forks: the Lance branch that a table gets at its first write on a graph branch.

Until then the branch's snapshot points at the parent's version (FORMAT, "Tree"). Runs on the
driver. The rules are PROTOCOL 21 and 22: a fork is used only if its ref file says that it began at
the entry that the snapshot pins, and never one that Lance doesn't list.
"""

from __future__ import annotations

import contextlib
import random
import re
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from omnigraph_spark.errors import StorageError, UnsupportedError
from omnigraph_spark.manifest.snapshot import TableEntry
from omnigraph_spark.storage import layout, relocation
from omnigraph_spark.storage.lance_errors import DatasetNotFoundError, is_panic, translated
from omnigraph_spark.storage.store import Storage

if TYPE_CHECKING:
    import pyarrow as pa
    from lance import LanceDataset

_ATTEMPTS = 40
_MANIFEST_FILE = re.compile(r"\d+\.manifest\Z")


def ensure_fork(storage: Storage, entry: TableEntry, branch: str, grace_seconds: float) -> None:
    """Make the table's fork for a graph branch where it isn't there; nothing to do on `main`.

    Raises:
        UnsupportedError: the graph was moved, and the branch's manifest must be repaired first.
        StorageError: a fork of that name is there that began elsewhere (left over from a deleted
            branch of the same name), or the store failed.
    """
    name = layout.lance_branch(branch)
    if name is None or entry.table_branch == name:
        _refuse_moved(storage, entry.location, name)
        return
    at = (entry.table_branch or layout.MAIN, entry.table_version)
    _ensure(storage, entry.location, name, at, grace_seconds)


def ensure_new_table_fork(
    storage: Storage, location: str, branch: str, schema: pa.Schema, grace_seconds: float
) -> int:
    """Make a fork for a table that has no version on `branch`, and return the version it began at.

    A type made on a branch gets an empty, unpublished first version on the table's main line, then
    the fork (DESIGN 5); what the fork inherits is overwritten by the commit that follows.

    Raises:
        StorageError: the store failed, or the folder of the fork is taken.
    """
    name = layout.lance_branch(branch)
    assert name is not None
    if not storage.has_dataset(location):
        _empty_main_line(storage, location, schema)
    found = _refs(storage, location).get(name)
    if found is None:
        version = int(storage.dataset(location).version)
        _ensure(storage, location, name, (layout.MAIN, version), grace_seconds)
        found = _refs(storage, location)[name]
    return int(found["parent_version"])


def fork_version(storage: Storage, location: str, branch: str) -> int | None:
    """Return the version that a listed fork of a table began at, None where there is no fork.

    Raises:
        StorageError: the store failed.
    """
    began = origin(storage, location, branch)
    return None if began is None else began[1]


def origin(storage: Storage, location: str, branch: str | None) -> tuple[str, int] | None:
    """Return the branch (`main` for the main line) and version that a listed fork began at.

    Raises:
        StorageError: the store failed.
    """
    name = layout.lance_branch(branch)
    found = _refs(storage, location).get(name) if name is not None else None
    return None if found is None else _origin(found)


def _origin(ref: dict[str, Any]) -> tuple[str, int]:
    return ref["parent_branch"] or layout.MAIN, int(ref["parent_version"])


def _empty_main_line(storage: Storage, location: str, schema: pa.Schema) -> None:
    """Make the first version, marked as holding nothing that a creator on `main` must wait for."""
    import lance
    from lance.dataset import Transaction

    transaction = Transaction(
        read_version=0,
        operation=lance.LanceOperation.Overwrite(schema, []),
        transaction_properties={layout.UNDO_PROPERTY: "true"},
    )
    try:
        with translated(f"Creating the main line of {location}"):
            lance.LanceDataset.commit(
                storage.dataset_uri(location),
                transaction,
                max_retries=0,
                enable_stable_row_ids=True,
                enable_v2_manifest_paths=True,
                storage_options=storage.lance_options(),
            )
    except StorageError:
        if not storage.has_dataset(location):
            raise


def _refs(storage: Storage, location: str) -> dict[str, Any]:
    try:
        main = storage.dataset(location)
    except DatasetNotFoundError:
        return {}
    with translated(f"Listing the branches of {location}"):
        return dict(main.branches.list())


def _refuse_moved(storage: Storage, location: str, name: str | None) -> None:
    if name is not None and relocation.needs_relocation(storage, location, name):
        raise UnsupportedError(
            f"Branch {name} of {location} names another place: the graph was moved or copied",
            expected=storage.uri(location),
            hint="Reads work. Before writing to a branch run OmniGraph.repair(dry_run=False)",
        )


def _ensure(
    storage: Storage, location: str, name: str, at: tuple[str, int], grace_seconds: float
) -> None:
    """Create the fork unless it is listed; two forkers: one wins, the other looks again."""
    end = time.monotonic() + grace_seconds
    for attempt in range(_ATTEMPTS):
        found = _refs(storage, location).get(name)
        if found is not None:
            _check_origin(location, name, at, found)
            _refuse_moved(storage, location, name)
            return
        if not storage.has_dataset(location, name):
            _try_create(storage.dataset(location), name, at)
        elif time.monotonic() >= end:
            remove_dead_fork(storage, location, name)
        else:
            time.sleep(random.uniform(0.5, 1.0) * min(0.25, 0.02 * 2**attempt))
            continue
    raise StorageError(
        f"The fork {name} of {location} could not be made", expected="a branch that Lance lists"
    )


def _try_create(main: LanceDataset, name: str, at: tuple[str, int]) -> None:
    """Ask Lance for the branch; whoever is second gets an error and looks again."""
    try:
        main.create_branch(name, at)
    except BaseException as error:  # a Rust panic is no Exception (FACTS 16)
        if not isinstance(error, (OSError, ValueError, RuntimeError)) and not is_panic(error):
            raise


def _check_origin(location: str, name: str, at: tuple[str, int], found: dict[str, Any]) -> None:
    began = _origin(found)
    if began != at:
        raise StorageError(
            f"The fork {name} of {location} is left over from another branch of that name",
            expected=f"a fork of {at[0]} at version {at[1]}",
            found=f"a fork of {began[0]} at version {began[1]}",
            hint="Nothing was written. OmniGraph.repair(dry_run=False) removes leftover forks",
        )


def remove_dead_fork(storage: Storage, location: str, name: str) -> None:
    """Remove a folder that a dead forker left: no ref file, nothing but the clone's version.

    Raises:
        StorageError: it holds more than that; it is left alone.
    """
    folder = f"{location}/tree/{name}"
    inside = storage.list(f"{folder}/_versions")
    versions = [i for i in inside if _MANIFEST_FILE.search(i.path.rsplit("/", 1)[-1])]
    if len(versions) != 1:
        raise StorageError(
            f"{folder} has no ref file and holds {len(versions)} versions",
            expected="a branch that Lance lists, or a clone that nobody wrote to",
            hint="Nothing was written. Look whose it is, and move it away",
        )
    for info in [*inside, *storage.list(f"{folder}/_transactions")]:
        storage.delete(info.path)


def is_there(storage: Storage, location: str, name: str) -> bool:
    """Tell whether there is anything of a fork: its ref, or a version in its folder.

    Raises:
        StorageError: the store failed.
    """
    versions = storage.list(f"{location}/tree/{name}/_versions")
    return bool(versions) or name in _refs(storage, location)


def is_listed_soon(storage: Storage, location: str, name: str, seconds: float) -> bool:
    """Tell whether Lance lists a fork, now or within a while: its ref is written last.

    Raises:
        StorageError: the store failed.
    """
    end = time.monotonic() + seconds
    while name not in _refs(storage, location):
        if time.monotonic() >= end:
            return False
        time.sleep(random.uniform(0.5, 1.0) * 0.05)
    return True


def remove_fork(storage: Storage, location: str, name: str, keep: Iterable[str] = ()) -> bool:
    """Remove a fork: its ref, then its folder; returns False where nothing was there.

    `keep` are graph branches that stay. The folder of `a/b` lies in that of `a`, and while somebody
    makes the fork `a/b` no ref names it yet.

    Raises:
        StorageError: the store failed, or another branch descends from it.
    """
    listed = name in _refs(storage, location)
    if listed:
        with translated(f"Deleting branch {name} of {location}"):
            storage.dataset(location).branches.delete(name)
    inside = f"{location}/tree/{name}/"
    others = {*keep, *_refs(storage, location)} - {name}
    kept = tuple(f"{location}/tree/{other}/" for other in others if other.startswith(f"{name}/"))
    found = [i for i in storage.list(inside.rstrip("/")) if not i.path.startswith(kept)]
    for info in found:
        with contextlib.suppress(DatasetNotFoundError):
            storage.delete(info.path)
    return listed or bool(found)
