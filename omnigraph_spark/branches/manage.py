"""Make and delete graph branches (PROTOCOL 21 to 23); runs on the driver, once per call.

A graph branch is a Lance branch of `__manifest`, with one of `_graph_commits.lance` beside it;
tables are forked later, at their first write (FORMAT, "Tree"). What makes a branch exist is its ref
in `__manifest`: it is made last and removed first.
"""

from __future__ import annotations

import logging
import random
import time

from omnigraph_spark import layout
from omnigraph_spark.branches import forks, refs
from omnigraph_spark.branches.refs import Resolved
from omnigraph_spark.errors import BranchNotFoundError, OptionError, StorageError, UnsupportedError
from omnigraph_spark.history import crash_records
from omnigraph_spark.ids import new_ulid
from omnigraph_spark.lance_errors import DatasetNotFoundError, Outcome, outcome_of, translated
from omnigraph_spark.manifest.publisher import Publish, publish
from omnigraph_spark.manifest.rows import VERSION
from omnigraph_spark.manifest.snapshot import fold, load, open_manifest, read_rows
from omnigraph_spark.manifest.writable import open_for_writing
from omnigraph_spark.storage import Storage

_MOST_GRACES = 6

_log = logging.getLogger(__name__)


def create_branch(storage: Storage, name: str, from_ref: Resolved) -> None:
    """Make the graph branch `name` at a ref; tables are shared until they are written to.

    What a deleted branch of the same name left of its table forks is removed first: their version
    numbers would overlap with the new ones (PROTOCOL 21).

    Raises:
        OptionError: the name is hostile, reserved, or taken.
        BranchNotFoundError, VersionNotFoundError: the ref isn't there.
        UnsupportedManifestVersion, RecoveryPendingError, UnsupportedError: the graph can't be
            written.
        StorageError: the store failed; a half-made branch is finished by calling this again.
    """
    layout.check_branch_name(name)
    if name == layout.MAIN:
        raise OptionError("main is there already", expected="another name")
    parent = open_for_writing(storage, from_ref.branch)
    crash_records.refuse_foreign(storage)
    version = int(parent.version) if from_ref.version is None else from_ref.version
    if name in {branch.name for branch in refs.list_branches(storage)}:
        raise OptionError(f"Branch {name} is there already", expected="another name")
    snapshot = load(storage, from_ref.branch, version)
    for location in sorted({*snapshot.locations.values(), *_all_locations(storage)}):
        forks.remove_fork(storage, location, name)
    forks.remove_fork(storage, layout.GRAPH_COMMITS, name)
    forks.remove_fork(storage, layout.MANIFEST, name)  # of a creator that died before its ref
    _clone(storage, layout.GRAPH_COMMITS, name, (from_ref.branch, None))
    _clone(storage, layout.MANIFEST, name, (from_ref.branch, version))


def _all_locations(storage: Storage) -> set[str]:
    """Return the places of all tables that any branch knows."""
    found: set[str] = set()
    for branch in refs.list_branches(storage):
        rows = read_rows(open_manifest(storage, branch.name))
        found |= set(fold(rows, branch.name, 0).locations.values())
    return found


def _clone(storage: Storage, location: str, name: str, at: tuple[str, int | None]) -> None:
    try:
        main = storage.dataset(location)
    except DatasetNotFoundError:
        return  # no lineage yet: its branch is made with its first row
    try:
        with translated(f"Making branch {name} of {location}"):
            main.create_branch(name, at)
    except StorageError as error:
        if outcome_of(error.__cause__ or error) is Outcome.CONFLICT:
            raise OptionError(
                f"Branch {name} was made by somebody else at the same time", expected="another name"
            ) from error
        raise


def delete_branch(storage: Storage, name: str, grace_seconds: float = 10.0) -> None:
    """Delete a graph branch and its table forks; other branches and `main` keep all they have.

    A closing mark is published first (all guards again), so that a writer that is about to publish
    loses; writers that are committing are waited for (PROTOCOL 23).

    Raises:
        BranchNotFoundError: the graph has no such branch.
        UnsupportedError: it is `main`, or another branch or a tag needs it.
        StorageError: the store failed; calling this again, or `repair`, finishes it.
    """
    if name == layout.MAIN:
        raise UnsupportedError("main can't be deleted")
    branches = refs.list_branches(storage)
    if name not in {branch.name for branch in branches}:
        raise BranchNotFoundError(
            f"The graph has no branch {name[:80]!r}",
            expected=", ".join(branch.name for branch in branches[:60]),
        )
    _refuse_needed(storage, name)
    snapshot = load(storage, name)
    _close(storage, name, frozenset(snapshot.locations), grace_seconds)
    locations = {*snapshot.locations.values(), *_all_locations(storage)}
    forks.remove_fork(storage, layout.MANIFEST, name)
    for location in (layout.GRAPH_COMMITS, *sorted(locations)):
        forks.remove_fork(storage, location, name)


def _refuse_needed(storage: Storage, name: str) -> None:
    """Refuse to delete a branch that others descend from, or whose forks others pin (DESIGN 8)."""
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
    rows = read_rows(open_manifest(storage, branch))
    return any(
        kind == VERSION and table_branch == fork
        for kind, table_branch in zip(
            rows["object_type"].to_pylist(), rows["table_branch"].to_pylist(), strict=True
        )
    )


def _close(storage: Storage, name: str, keys: frozenset[str], grace_seconds: float) -> None:
    """Publish the closing mark, then wait for writers of the branch that give signs of life."""
    publish(storage, Publish(name, new_ulid(), (), guards=keys))
    end = time.monotonic() + _MOST_GRACES * grace_seconds
    while time.monotonic() < end:
        alive = [r for r in crash_records.others(storage, "") if r.branch == name]
        if not alive:
            return
        _log.info("waiting for %d writer(s) of branch %s", len(alive), name)
        time.sleep(random.uniform(0.5, 1.0) * min(0.2, grace_seconds / 10))
