"""Make and delete graph branches (rules 21 to 23); runs on the driver, once per call.

A graph branch is a Lance branch of `__manifest`, with one of `_graph_commits.lance` beside it;
tables are forked later, at their first write (format.md, "Tree"). What makes a branch exist is its
ref in `__manifest`: it is made last and removed first.
"""

from __future__ import annotations

import bisect
import contextlib
import logging
import time
from collections.abc import Iterable
from functools import partial

import pyarrow.compute as pc

from omnigraph_spark import _faults
from omnigraph_spark.errors import (
    BranchNotFoundError,
    OmnigraphError,
    OptionError,
    RecoveryPendingError,
    StorageError,
    UnsupportedError,
    VersionNotFoundError,
)
from omnigraph_spark.history.publishes import fork_of
from omnigraph_spark.manifest import crash_records, formats, schema_lock
from omnigraph_spark.manifest.publisher import Publish, publish
from omnigraph_spark.manifest.rows import VERSION
from omnigraph_spark.manifest.snapshot import Snapshot, load, open_manifest, read_rows
from omnigraph_spark.manifest.writable import fence, open_for_writing
from omnigraph_spark.refs import forks, ref_files, refs, same_schema, tags
from omnigraph_spark.refs.refs import Resolved
from omnigraph_spark.storage import append_log, backoff, layout
from omnigraph_spark.storage.ids import new_ulid
from omnigraph_spark.storage.lance_errors import (
    DatasetNotFoundError,
    Outcome,
    outcome_of,
    translated,
)
from omnigraph_spark.storage.relocation import open_for_reading
from omnigraph_spark.storage.store import Storage

_MOST_GRACES = 6
_CREATOR_SECONDS = 1.0
"""How long a folder without a ref may belong to a creator that is about to write the ref."""

_log = logging.getLogger(__name__)


@refs.settled("making", "branch", made=True)
def create_branch(
    storage: Storage, name: str, from_ref: Resolved, grace_seconds: float = 0.0
) -> None:
    """Make the graph branch `name` at a ref; tables are shared until they are written to.

    Another engine's unfinished write is waited for, `grace_seconds` at most.

    What a deleted branch of the same name left of its table forks is removed first: their version
    numbers would overlap with the new ones (rule 21). Once the ref is there, it is looked
    whether what it names still is.

    Raises:
        OptionError: the name is hostile, reserved, or taken.
        BranchNotFoundError, VersionNotFoundError: the ref isn't there, or a cleanup or the deletion
            of a branch took it away meanwhile; nothing is left of the branch.
        UnsupportedManifestVersion, RecoveryPendingError, UnsupportedError: the graph can't be
            written.
        StorageError: the store failed; a half-made branch is finished by calling this again, or
            removed by `delete_branch`.
    """
    layout.check_branch_name(name)
    if name == layout.MAIN:
        raise OptionError("main is there already", expected="another name")
    origin = refs.identifier_of(storage, from_ref.branch)
    parent = open_for_writing(storage, from_ref.branch, origin)
    if crash_records.refuse_foreign(storage, grace_seconds):
        parent = open_for_writing(storage, from_ref.branch, origin)
    version = int(parent.version) if from_ref.version is None else from_ref.version
    names = [branch.name for branch in refs.list_branches(storage)]
    if name in names:
        raise _taken(name)
    _refuse_nested(storage, name, names)
    snapshot = load(storage, from_ref.branch, version)
    if from_ref.version is not None:
        same_schema.refuse_other(storage, load(storage, from_ref.branch), snapshot)
    try:
        _remove_leftovers(storage, name, snapshot)
        _faults.point("branch.before_clone")
        _clone_lineage(storage, name, from_ref)
        _clone(storage, layout.MANIFEST, name, (from_ref.branch, version))
    except OptionError:
        _mend_lineage(storage, name)
        raise
    _faults.point("branch.cloned")
    made = _made(storage, name, snapshot, origin)
    _mark_birth(storage, name, made)


def _refuse_nested(storage: Storage, name: str, names: list[str]) -> None:
    """Refuse a branch whose name is a folder above or below another one's, where engines do.

    Raises:
        OptionError: names that branch.
    """
    if not formats.of_graph(storage).has_identities:
        return
    for other in names:
        if name.startswith(f"{other}/") or other.startswith(f"{name}/"):
            raise OptionError(
                f"Branch {name} doesn't go with branch {other} in a graph of a newer engine",
                expected="a name that isn't the beginning of another one's path, or longer than it",
                hint="The engine keeps such names apart too. Choose another name",
            )


def _made(storage: Storage, name: str, pinned: Snapshot, origin: str | None) -> str:
    """Return the identifier of a branch that was just made, if all that it names is there.

    Who changes the schema takes the lock first and looks for branches then; so one of the two sees
    the other.

    Raises:
        BranchNotFoundError, VersionNotFoundError: it isn't; the branch was removed again.
        RecoveryPendingError, UnsupportedError: the schema changes, or was changed meanwhile; too.
        StorageError: the store failed.
    """
    identifier = refs.identifier_of(storage, name)
    if identifier is None:
        raise BranchNotFoundError(
            f"Branch {name} was deleted while it was made", hint="Make it again if it is wanted"
        )
    try:
        if refs.identifier_of(storage, pinned.branch) != origin:
            raise BranchNotFoundError(
                f"Branch {pinned.branch} was deleted while {name} was made from it"
            )
        _check_whole(storage, name)
        refs.check_pinned(storage, pinned)
        schema_lock.refuse_taken(storage)
        if pinned.identities:
            same_schema.refuse_other(storage, load(storage, pinned.branch), pinned)
    except (BranchNotFoundError, VersionNotFoundError, RecoveryPendingError, UnsupportedError):
        _log.warning("what branch %s is made from is gone or changed; removing it", name)
        _remove_forks(storage, name, identifier, (layout.MANIFEST, layout.GRAPH_COMMITS))
        raise
    return identifier


def _check_whole(storage: Storage, name: str) -> None:
    try:
        load(storage, name)
    except (DatasetNotFoundError, VersionNotFoundError) as error:
        raise BranchNotFoundError(
            f"The files of branch {name} were deleted while it was made",
            found=str(error),
            hint="Nothing is left of it. Make it again if it is wanted",
        ) from error


def _mark_birth(storage: Storage, name: str, identifier: str) -> None:
    """Make the branch's first version its own, so that no publish fits that isn't meant for it.

    A writer that slept since a branch of the same name was deleted knows versions of the same
    numbers. Its publish collides with the fence, or reads the file that the fence of the other
    branch wrote, which is gone.
    """
    try:
        fence(storage, name, identifier, rewritten=True)
    except BranchNotFoundError:
        raise
    except OmnigraphError as error:
        _log.warning("branch %s is made, and its first version is not its own: %s", name, error)


def ensure_branch(
    storage: Storage, name: str, from_ref: Resolved, grace_seconds: float = 0.0
) -> None:
    """Make the graph branch `name` at a ref unless it is there; of several callers one makes it.

    Raises:
        OptionError, VersionNotFoundError, UnsupportedError, StorageError: as `create_branch`.
    """
    try:
        if not has_branch(storage, name):
            create_branch(storage, name, from_ref, grace_seconds)
    except OptionError:
        if not has_branch(storage, name):
            raise


def has_branch(storage: Storage, name: str) -> bool:
    """Return whether the graph has a branch.

    Raises:
        GraphNotFoundError: no graph is there.
        StorageError: the store failed.
    """
    return name in {branch.name for branch in refs.list_branches(storage)}


def _remove_leftovers(storage: Storage, name: str, snapshot: Snapshot) -> None:
    """Remove the forks that a deleted branch of this name left; not its `__manifest`, see `_clone`.

    Raises:
        OptionError: another writer made the branch meanwhile: those forks are not leftovers.
    """
    names = _names(storage)
    for location in (layout.GRAPH_COMMITS, *refs.all_locations(storage, snapshot)):
        fork = forks.judged(storage, location, name, names)
        if not fork.exists:
            continue
        if _is_made(storage, name, location):
            raise _taken(name)
        _log.warning("removing the fork %s of %s, left over from a deleted branch", name, location)
        if not forks.remove_fork(storage, fork, partial(_is_absent, storage, name)):
            raise _taken(name)


def _names(storage: Storage) -> list[str]:
    return [branch.name for branch in refs.list_branches(storage)]


def _is_made(storage: Storage, name: str, location: str) -> bool:
    """Return whether a branch whose fork is there is there, or is made meanwhile.

    Who makes a branch makes that of the lineage first, and no other fork.
    """
    if location != layout.GRAPH_COMMITS:
        return has_branch(storage, name)
    return forks.is_listed_soon(storage, layout.MANIFEST, name, _CREATOR_SECONDS)


def _mend_lineage(storage: Storage, name: str) -> None:
    """Make the lineage of another writer's branch again, if it was removed as a leftover."""
    if not forks.is_listed_soon(storage, layout.MANIFEST, name, _CREATOR_SECONDS):
        return  # no branch: who makes it next removes what there is
    whole = storage.has_dataset(layout.GRAPH_COMMITS, name)
    if whole or not storage.has_dataset(layout.GRAPH_COMMITS):
        return
    origin = fork_of(storage, name)
    assert origin is not None
    made = refs.identifier_of(storage, name)
    fork = forks.judged(storage, layout.GRAPH_COMMITS, name, _names(storage))
    forks.remove_fork(storage, fork, lambda: refs.identifier_of(storage, name) == made)
    with contextlib.suppress(OptionError):  # another one mended it
        _clone_lineage(storage, name, Resolved(origin.parent, origin.version))


def _remove_forks(
    storage: Storage, name: str, identifier: str | None, places: Iterable[str]
) -> bool:
    """Remove forks of a branch, `__manifest` first; return whether there was something.

    What is removed is looked at before the branch's ref goes: who makes a branch of the name
    afterwards makes forks of its own.

    Raises:
        BranchNotFoundError: the branch is another one than `identifier` says.
        StorageError: the store failed; calling this again finishes it.
    """
    names = _names(storage)
    manifest, *others = [forks.judged(storage, location, name, names) for location in places]
    if manifest.identifier != identifier:
        raise BranchNotFoundError(
            f"Branch {name} was deleted and made again meanwhile",
            hint="Nothing of the new one was deleted. Delete it if it isn't wanted either",
        )
    removed = [forks.remove_fork(storage, manifest, lambda: True)]
    _faults.point("branch.manifest_removed")
    for fork in others:
        removed.append(forks.remove_fork(storage, fork, partial(_is_absent, storage, name)))
    return any(removed)


def _all_places(storage: Storage, snapshot: Snapshot | None) -> list[str]:
    """Return where a branch may have forks, `__manifest` first.

    Of one that can't be read nobody knows the tables, so every table's folder counts.
    """
    if snapshot is not None:
        tables = set(refs.all_locations(storage, snapshot))
    else:
        listed = (storage.folders(folder) for folder in layout.TABLE_FOLDERS)
        tables = {*refs.all_locations(storage), *(path for paths in listed for path in paths)}
    return [layout.MANIFEST, layout.GRAPH_COMMITS, *sorted(tables)]


def _lineage_at(storage: Storage, ref: Resolved) -> int | None:
    """Return the newest version of a branch's lineage without commits above a ref (None: newest).

    A branch made in the past would otherwise inherit rows of publishes that it doesn't have.
    Versions of the log only ever add rows, so the last fitting one is found by halves.
    """
    if ref.version is None or not storage.has_dataset(layout.GRAPH_COMMITS, ref.branch):
        return None
    versions = refs.kept_versions(storage, layout.GRAPH_COMMITS, ref.branch)

    def is_above(number: int) -> bool:
        log = open_for_reading(
            storage, layout.GRAPH_COMMITS, layout.lance_branch(ref.branch), number
        )
        with translated(f"Reading version {number} of the lineage"):
            newest = pc.max(log.to_table(columns=["manifest_version"])["manifest_version"]).as_py()
        return newest is not None and newest > ref.version

    position = bisect.bisect_left(versions, True, key=is_above)
    return versions[position - 1] if position else None


def _clone_lineage(storage: Storage, name: str, from_ref: Resolved) -> None:
    with append_log.naming_repair(layout.GRAPH_COMMITS):
        at = (from_ref.branch, _lineage_at(storage, from_ref))
        _clone(storage, layout.GRAPH_COMMITS, name, at)


def _clone(storage: Storage, location: str, name: str, at: tuple[str, int | None]) -> None:
    """Make the Lance branch of `__manifest` or of the lineage.

    Raises:
        OptionError: another writer made it at the same time.
        StorageError: the store failed, or a folder without a ref is there that isn't a mere clone.
    """
    try:
        main = storage.dataset(location)
    except DatasetNotFoundError:
        return  # no lineage yet: its branch is made with its first row
    if forks.is_there(storage, location, name):
        if forks.is_listed_soon(storage, location, name, _CREATOR_SECONDS):
            raise _taken(name)
        # A creator died between the clone and its ref (rule 22).
        forks.remove_dead_fork(storage, location, name)
    try:
        with translated(f"Making branch {name} of {location}"):
            main.create_branch(name, at)
    except StorageError as error:
        # What the second of two at the same time gets depends on how far the first has come.
        outcome = outcome_of(error.__cause__ or error)
        if outcome in (Outcome.CONFLICT, Outcome.NOT_FOUND) and forks.is_listed_soon(
            storage, location, name, _CREATOR_SECONDS
        ):
            raise _taken(name) from error
        raise


def _taken(name: str) -> OptionError:
    return OptionError(f"Branch {name} is there already", expected="another name")


@refs.settled("deleting", "branch", made=False)
def delete_branch(storage: Storage, name: str, grace_seconds: float = 10.0) -> None:
    """Delete a graph branch and its table forks; other branches and `main` keep all they have.

    A closing mark is published first (all guards again), so that a writer that is about to publish
    loses; writers that are committing are waited for (rule 23). What is half made or half
    deleted is deleted without; only the branch that is there now is, none of that name that another
    makes meanwhile.

    Raises:
        BranchNotFoundError: the graph has no such branch, or another one of the name by now.
        UnsupportedError: it is `main`, or another branch or a tag needs it.
        StorageError: the store failed; calling this again finishes it.
    """
    if name == layout.MAIN:
        raise UnsupportedError("main can't be deleted")
    layout.check_branch_name(name)
    ref_files.remove_torn(storage, name)
    identifier = refs.identifier_of(storage, name)
    if identifier is None:
        identifier = _delete_unlisted(storage, name)
        if identifier is None:
            return
    refuse_needed(storage, name)
    _remove_unborn(storage, name)
    snapshot = _head_of(storage, name)
    tags.remove_leftovers(storage)
    if snapshot is None:
        _log.warning("branch %s is half made or half deleted; deleting what is left of it", name)
    else:
        _close(storage, name, identifier, frozenset(snapshot.locations), grace_seconds)
        refuse_needed(storage, name)
    _remove_forks(storage, name, identifier, _all_places(storage, snapshot))


def _delete_unlisted(storage: Storage, name: str) -> str | None:
    """Remove what there is of a branch without a ref, or return the identifier that it has by now.

    Raises:
        BranchNotFoundError: there is nothing of it.
    """
    names = _names(storage)
    places = _all_places(storage, None)
    if not any(forks.judged(storage, location, name, names).exists for location in places):
        raise BranchNotFoundError.named(name, names)
    if remove_unlisted(storage, name, _CREATOR_SECONDS):
        return None
    return refs.identifier_of(storage, name)


def remove_unlisted(storage: Storage, name: str, seconds: float) -> bool:
    """Remove what there is of a branch without a ref; False where it has one within a while.

    Who makes a branch writes its ref last.

    Raises:
        UnsupportedError: another branch or a tag needs it.
        StorageError: the store failed; calling this again finishes it.
    """
    if forks.is_listed_soon(storage, layout.MANIFEST, name, seconds):
        return False
    refuse_needed(storage, name)
    if _remove_forks(storage, name, None, _all_places(storage, None)):
        _log.warning("removed what an unfinished deletion of branch %s had left", name)
    return True


def _remove_unborn(storage: Storage, name: str) -> None:
    """Remove the lineage of children whose maker died before it made the rest.

    Raises:
        UnsupportedError: a child is there by now.
    """
    for child in forks.children(storage, layout.GRAPH_COMMITS, name):
        if forks.is_listed_soon(storage, layout.MANIFEST, child, _CREATOR_SECONDS):
            refuse_needed(storage, name)
            continue
        _log.warning("removing the lineage of branch %s, which was never made", child)
        unborn = forks.judged(storage, layout.GRAPH_COMMITS, child, _names(storage))
        forks.remove_fork(storage, unborn, partial(_is_absent, storage, child))


def _is_absent(storage: Storage, name: str) -> bool:
    return not has_branch(storage, name)


def _head_of(storage: Storage, name: str) -> Snapshot | None:
    """Return a branch's head, None where its files are gone."""
    return next((head for branch, head in refs.readable(storage) if branch.name == name), None)


def refuse_needed(storage: Storage, name: str) -> None:
    """Refuse to delete a branch that others descend from, or whose forks others pin.

    Raises:
        UnsupportedError: one does, or a tag names a version of it.
        GraphNotFoundError, StorageError: as the names say.
    """
    for branch in refs.list_branches(storage):
        if branch.parent == name:
            raise UnsupportedError(
                f"Branch {branch.name} descends from {name}", hint=f"Delete {branch.name} first"
            )
        if branch.name != name and _pins(storage, branch.name, name):
            raise UnsupportedError(
                f"Branch {branch.name} reads table versions that live in forks of {name}",
                hint=f"Keep {name}, or delete {branch.name} first",
            )
    for tag in refs.list_tags(storage):
        if tag.branch == name:
            raise UnsupportedError(
                f"Tag {tag.name} names a version of branch {name}", hint="Delete the tag first"
            )


def _pins(storage: Storage, branch: str, fork: str) -> bool:
    try:
        rows = read_rows(open_manifest(storage, branch))
    except (DatasetNotFoundError, BranchNotFoundError, VersionNotFoundError) as error:
        _log.warning("branch %s is half made or half deleted: %s", branch, error)
        return False
    return any(
        kind == VERSION and table_branch == fork
        for kind, table_branch in zip(
            rows["object_type"].to_pylist(), rows["table_branch"].to_pylist(), strict=True
        )
    )


def _close(
    storage: Storage, name: str, identifier: str | None, keys: frozenset[str], grace_seconds: float
) -> None:
    """Publish the closing mark, then wait for writers of the branch that give signs of life."""
    _faults.point("branch.close")
    mark = Publish(name, new_ulid(), (), guards=keys, branch_identifier=identifier)
    publish(storage, mark)
    end = time.monotonic() + _MOST_GRACES * grace_seconds
    while time.monotonic() < end:
        alive = [r for r in crash_records.others(storage, "") if r.branch == name]
        if not alive:
            return
        _log.info("waiting for %d writer(s) of branch %s", len(alive), name)
        backoff.poll(min(0.2, grace_seconds / 10))
