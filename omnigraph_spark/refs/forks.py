"""Table forks: the Lance branch that a table gets at its first write on a graph branch.

Until then the branch's snapshot points at the parent's version (format.md, "Tree"). Runs on the
driver. The rules are 21 and 22: a fork is used only if its ref file says that it began at
the entry that the snapshot pins, and never one that Lance doesn't list.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from omnigraph_spark import _faults
from omnigraph_spark.errors import StorageError, UnsupportedError
from omnigraph_spark.manifest.snapshot import TableEntry, ref_in_file
from omnigraph_spark.storage import append_log, backoff, layout, relocation
from omnigraph_spark.storage.lance_errors import DatasetNotFoundError, is_panic, translated
from omnigraph_spark.storage.opened import version_of
from omnigraph_spark.storage.store import Storage

if TYPE_CHECKING:
    import pyarrow as pa
    from lance import LanceDataset

_log = logging.getLogger(__name__)

_ATTEMPTS = 40
_MANIFEST_FILE = re.compile(r"\d+\.manifest\Z")
_VERSIONS = "/_versions/"
_INSIDE = ("_versions", "_transactions", "_deletions", "_indices", "data")
_IN_A_FORK = re.compile(rf"(.+?)/(?:{'|'.join(_INSIDE)})/")


def ensure_fork(storage: Storage, entry: TableEntry, branch: str, grace_seconds: float) -> None:
    """Make the table's fork for a graph branch where it isn't there; nothing to do on `main`.

    Raises:
        UnsupportedError: the graph was moved, and the branch's manifest must be repaired first.
        StorageError: a fork of that name is there that began elsewhere (left over from a deleted
            branch of the same name), or the store failed.
    """
    name = layout.lance_branch(branch)
    if name is None:
        return
    if entry.table_branch == name:
        _refuse_moved(storage, entry.location, name, storage.dataset(entry.location, name))
        return
    at = (entry.table_branch or layout.MAIN, entry.table_version)
    pinned = None
    if entry.table_branch is None:
        pinned = version_of(storage, entry.location, None, entry.table_version)
    _ensure(storage, entry.location, name, at, grace_seconds, pinned)


def ensure_new_table_fork(
    storage: Storage, location: str, branch: str, schema: pa.Schema, grace_seconds: float
) -> int:
    """Make a fork for a table that has no version on `branch`, and return the version it began at.

    A type made on a branch gets an empty, unpublished first version on the table's main line, then
    the fork; what the fork inherits is overwritten by the commit that follows.

    Raises:
        StorageError: the store failed, or the folder of the fork is taken.
    """
    name = layout.lance_branch(branch)
    assert name is not None
    if not storage.has_dataset(location):
        _empty_main_line(storage, location, schema)
    ref = _refs(storage, location).get(name)
    if ref is None:
        version = int(storage.dataset(location).version)
        _ensure(storage, location, name, (layout.MAIN, version), grace_seconds)
        ref = _refs(storage, location)[name]
    return int(ref["parent_version"])


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
    ref = _refs(storage, location).get(name) if name is not None else None
    return None if ref is None else _origin(ref)


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
        return _listed(_main_line(storage, location), location)
    except DatasetNotFoundError:
        return {}


def _ref(storage: Storage, location: str, name: str) -> dict[str, Any] | None:
    """Return what a fork's file says, in Lance's words: one request, a listing three and more."""
    ref = ref_in_file(storage, location, name)
    if ref is None:
        return None
    return {"parent_branch": ref.parent, "parent_version": ref.parent_version}


def _main_line(storage: Storage, location: str) -> LanceDataset:
    with append_log.naming_repair(location):
        return storage.dataset(location)


def _listed(main: LanceDataset, location: str) -> dict[str, Any]:
    with translated(f"Listing the branches of {location}"):
        return dict(main.branches.list())


def _folder(storage: Storage, location: str, name: str) -> LanceDataset | None:
    """Open a fork, whether Lance lists it or not; None where no version of it is there."""
    try:
        return storage.dataset(location, name)
    except DatasetNotFoundError:
        return None


def _refuse_moved(storage: Storage, location: str, name: str, fork: LanceDataset) -> None:
    if relocation.is_moved(storage, location, name, fork):
        raise UnsupportedError(
            f"Branch {name} of {location} names another place: the graph was moved or copied",
            expected=storage.uri(location),
            hint="Reads work. Before writing to a branch run OmniGraph.repair(dry_run=False)",
        )


def _ensure(
    storage: Storage,
    location: str,
    name: str,
    at: tuple[str, int],
    grace_seconds: float,
    main: LanceDataset | None = None,
) -> None:
    """Create the fork unless it is listed; two forkers: one wins, the other looks again.

    `main` is the table's main line at some version, where the caller has it open.
    """
    end = time.monotonic() + grace_seconds
    for attempt in range(_ATTEMPTS):
        ref = _ref(storage, location, name)
        fork = _folder(storage, location, name)
        if ref is None and fork is not None:  # perhaps its file has a form that only Lance knows
            ref = _refs(storage, location).get(name)
        if ref is not None and fork is not None:
            _check_origin(location, name, at, ref)
            _refuse_moved(storage, location, name, fork)
            return
        if ref is not None:
            _remove_bare_ref(storage, location, name)
        elif fork is None:
            _try_create(_main_line(storage, location) if main is None else main, name, at)
        elif time.monotonic() >= end:
            remove_dead_fork(storage, location, name)
        else:
            backoff.growing(attempt, first=0.02, longest=0.25)
            continue
    raise StorageError(
        f"The fork {name} of {location} could not be made", expected="a branch that Lance lists"
    )


def _remove_bare_ref(storage: Storage, location: str, name: str) -> None:
    """Remove a ref without a folder: its maker slept, and the folder was taken for a dead one's."""
    bare = judged(storage, location, name)
    if bare.identifier is not None and not bare.files:
        _log.warning("removing the ref %s of %s, whose folder is gone", name, location)
        remove_fork(storage, bare, lambda: not storage.has_dataset(location, name))


def _try_create(main: LanceDataset, name: str, at: tuple[str, int]) -> None:
    """Ask Lance for the branch; whoever is second gets an error and looks again."""
    try:
        main.create_branch(name, at)
    except BaseException as error:  # a Rust panic is not an Exception (fact 16)
        if not isinstance(error, (OSError, ValueError, RuntimeError)) and not is_panic(error):
            raise


def _check_origin(location: str, name: str, at: tuple[str, int], ref: dict[str, Any]) -> None:
    began = _origin(ref)
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
            hint="Nothing was written. OmniGraph.repair(dry_run=False) removes what is left of a"
            " branch that was deleted",
        )
    for info in [*inside, *storage.list(f"{folder}/_transactions")]:
        storage.delete(info.path)


def is_there(storage: Storage, location: str, name: str) -> bool:
    """Return whether there is anything of a fork: its ref, or a version in its folder.

    Raises:
        StorageError: the store failed.
    """
    versions = storage.list(f"{location}/tree/{name}/_versions")
    return bool(versions) or name in _refs(storage, location)


def is_listed_soon(storage: Storage, location: str, name: str, seconds: float) -> bool:
    """Return whether Lance lists a fork, now or within a while: its ref is written last.

    Raises:
        StorageError: the store failed.
    """
    end = time.monotonic() + seconds
    while name not in _refs(storage, location):
        if time.monotonic() >= end:
            return False
        backoff.poll(0.05)
    return True


@dataclass(frozen=True)
class Fork:
    """What there was of a fork when it was judged; a later one of the same name is another fork.

    `identifier` is that of its ref, None without one; `files` maps the paths in its folder to when
    they were written.
    """

    location: str
    name: str
    identifier: str | None
    files: Mapping[str, datetime]

    @property
    def exists(self) -> bool:
        """Return whether there was anything of it."""
        return self.identifier is not None or bool(self.files)

    def newest(self) -> datetime | None:
        """Return when the newest of its files was written."""
        return max(self.files.values(), default=None)


def judged(storage: Storage, location: str, name: str, keep: Iterable[str] = ()) -> Fork:
    """Return what there is of a fork now, for `remove_fork`.

    `keep` are graph branches that stay: the folder of `a/b` lies in that of `a`, and while another
    writer makes the fork `a/b` no ref names it yet.

    Raises:
        StorageError: the store failed.
    """
    listed = _refs(storage, location)
    return Fork(
        location, name, _identifier(listed, name), _files(storage, location, name, keep, listed)
    )


def _identifier(listed: Mapping[str, Any], name: str) -> str | None:
    return str(listed[name]["branch_identifier"]) if name in listed else None


def _files(
    storage: Storage, location: str, name: str, keep: Iterable[str], listed: Iterable[str]
) -> dict[str, datetime]:
    folder = f"{location}/tree/{name}"
    others = {*keep, *listed} - {name}
    kept_folders = tuple(
        f"{location}/tree/{other}/" for other in others if other.startswith(f"{name}/")
    )
    return {
        info.path: info.last_modified
        for info in storage.list(folder)
        if not info.path.startswith(kept_folders)
    }


def remove_fork(storage: Storage, fork: Fork, is_unwanted: Callable[[], bool]) -> bool:
    """Remove a fork as it was judged: its ref, then its files; returns whether it was removed.

    Whatever came since stays: a ref with another identifier, files that were written later.
    Directly before each step `is_unwanted` is asked again; a fork that is wanted by now is left
    alone.

    Raises:
        StorageError: the store failed, or another branch descends from it; calling this again
            finishes it.
    """
    if not fork.exists:
        return False
    location, name = fork.location, fork.name
    _faults.point("fork.before_removal")
    listed = _refs(storage, location)
    if fork.identifier is not None and (
        not is_unwanted() or _identifier(listed, name) != fork.identifier
    ):
        _log.warning("the fork %s of %s was made again, and stays", name, location)
        return False
    if listed:
        _refuse_needed(storage, location, name, listed)
    if fork.identifier is not None:
        # Lance would remove the folder with it, and with that what a faster creator has in it.
        storage.delete(layout.ref_path(location, name))
        _faults.point("fork.ref_removed")
    now = {info.path: info.last_modified for info in storage.list(f"{location}/tree/{name}")}
    gone = [path for path, written in fork.files.items() if now.get(path) == written]
    if gone and (not is_unwanted() or name in _refs(storage, location)):
        _log.warning("the fork %s of %s was made again, and stays", name, location)
        return False
    storage.delete_many(gone)
    return True


def _refuse_needed(storage: Storage, location: str, name: str, listed: Mapping[str, Any]) -> None:
    """Refuse to remove a fork that others of the dataset, or its tags, are made from."""
    with translated(f"Listing the tags of {location}"):
        tags = storage.dataset(location).tags.list()
    needed = [
        *(f"branch {other}" for other, ref in listed.items() if ref["parent_branch"] == name),
        *(f"tag {tag}" for tag, info in tags.items() if info.get("branch") == name),
    ]
    if needed:
        raise StorageError(
            f"Branch {name} of {location} can't be deleted: {needed[0]} needs it",
            hint=f"Delete {needed[0]} first",
        )


def names_in(paths: Iterable[str]) -> set[str]:
    """Return the names of the forks that files belong to, given by their paths below `tree/`.

    The folder of `a/b` lies in that of `a`. A fork whose deletion died may have no version left.
    """
    paths = list(paths)
    found = {path[: path.index(_VERSIONS)] for path in paths if path.find(_VERSIONS) > 0}
    with_versions = frozenset(found)
    for path in paths:
        if not any(_is_inside(path, name) for name in with_versions):
            match = _IN_A_FORK.match(path)
            if match is not None:
                found.add(match[1])
    return found


def _is_inside(path: str, name: str) -> bool:
    return path.startswith(f"{name}/") and path[len(name) + 1 :].split("/", 1)[0] in _INSIDE


def listed_and_bare(storage: Storage, location: str) -> tuple[set[str], set[str]]:
    """Return the forks of a dataset that have a ref, and those that have files and none.

    Raises:
        StorageError: the store failed.
    """
    start = len(f"{location}/tree/")
    with_files = names_in(info.path[start:] for info in storage.list(f"{location}/tree"))
    listed = {*_refs(storage, location)}  # after the files: who makes a fork writes its ref last
    return listed, with_files - listed


def children(storage: Storage, location: str, name: str) -> list[str]:
    """Return the forks of a dataset that begin at a fork of it.

    Raises:
        StorageError: the store failed.
    """
    listed = _refs(storage, location)
    return sorted(other for other, ref in listed.items() if ref["parent_branch"] == name)
