"""Open a branch's `__manifest` for writing: the right branch, migrated, in its right place.

Runs on the driver, at each round and each attempt of a publish; always a fresh handle.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from omnigraph_spark import _faults
from omnigraph_spark.errors import BranchNotFoundError, UnsupportedError
from omnigraph_spark.manifest import migrations
from omnigraph_spark.manifest.snapshot import open_main
from omnigraph_spark.storage import layout, relocation, store
from omnigraph_spark.storage.lance_errors import Outcome, outcome_of, translated, typed
from omnigraph_spark.storage.store import Storage

if TYPE_CHECKING:
    from lance import LanceDataset


def open_for_writing(storage: Storage, branch: str, identifier: str | None = None) -> LanceDataset:
    """Open a branch's `__manifest`, migrated, with no auto-cleanup left on it.

    `identifier` is the one that the branch had when the write was planned.

    Raises:
        GraphNotFoundError, UnsupportedManifestVersion, StorageError: as `publish`.
        BranchNotFoundError: the graph has no such branch, or another one of that name by now.
        UnsupportedError: the branch's manifest names another place (a moved graph).
    """
    manifest = open_main(storage)
    if layout.lance_branch(branch) is not None:
        migrations.refuse_newer(manifest)
        found = branch_identifier(manifest, branch)
        if identifier is not None and found != identifier:
            raise BranchNotFoundError(
                f"Branch {branch} was deleted and made again since this write began",
                hint="Nothing was published. Read the branch as it is now, and write again",
            )
        refuse_moved(storage, branch)
        manifest = storage.dataset(layout.MANIFEST, branch)
    _faults.point("publish.opened")
    migrations.refuse_newer(manifest)
    migrations.check_readable(manifest)
    manifest = migrations.migrate_internal_schema(manifest)
    if store.keys(manifest):
        _strip(manifest)
    return manifest


def refuse_moved(storage: Storage, branch: str) -> None:
    """Refuse to write to a branch whose manifest names its parent's files in another place.

    Raises:
        UnsupportedError: the graph was moved or copied, and the branch not repaired (DESIGN 7).
    """
    if relocation.needs_relocation(storage, layout.MANIFEST, branch):
        raise UnsupportedError(
            f"Branch {branch} names another place: the graph was moved or copied",
            expected=storage.root,
            hint="Reads work. Before writing to a branch run OmniGraph.repair(dry_run=False)",
        )


def branch_identifier(main: LanceDataset, branch: str) -> str:
    """Return what tells a branch from another one of the same name (PROTOCOL 23).

    Raises:
        BranchNotFoundError: the graph has no such branch.
        StorageError: the store failed.
    """
    with translated("Listing the branches of __manifest"):
        found = main.branches.list()
    if branch not in found:
        names = ", ".join([layout.MAIN, *sorted(found)][:60])
        raise BranchNotFoundError(f"The graph has no branch {branch[:80]!r}", expected=names)
    return str(found[branch]["branch_identifier"])


def _strip(manifest: LanceDataset) -> None:
    try:
        store.strip_auto_cleanup(manifest)
    except (OSError, ValueError, RuntimeError) as error:
        if outcome_of(error) is not Outcome.CONFLICT:
            raise typed(error, "Removing auto-cleanup from __manifest") from error
    manifest.checkout_latest()
