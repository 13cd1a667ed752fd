"""Open a branch's `__manifest` for writing: the right branch, migrated, in its right place.

Runs on the driver, at each round and each attempt of a publish; always a fresh handle.
"""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING, Any

from omnigraph_spark import _faults
from omnigraph_spark.errors import (
    BranchNotFoundError,
    OmnigraphError,
    RowLevelCasContention,
    UnsupportedError,
)
from omnigraph_spark.manifest import formats, lineage, manifest_rows, migrations
from omnigraph_spark.manifest.snapshot import branch_ref, open_main
from omnigraph_spark.storage import backoff, layout, relocation, store
from omnigraph_spark.storage.lance_errors import (
    DatasetNotFoundError,
    Outcome,
    is_panic,
    outcome_of,
    translated,
    typed,
)
from omnigraph_spark.storage.store import Storage

if TYPE_CHECKING:
    from lance import LanceDataset

_FENCE_ATTEMPTS = 20
_FENCE_LOOKS = 8

_log = logging.getLogger(__name__)


def open_for_writing(
    storage: Storage,
    branch: str,
    identifier: str | None = None,
    *,
    opened: LanceDataset | None = None,
) -> LanceDataset:
    """Open a branch's `__manifest`, migrated, with no auto-cleanup left on it.

    `identifier` is the one that the branch had when the write was planned. `opened` is what this
    returned to the same call before: it is brought to the newest version.

    Raises:
        GraphNotFoundError, UnsupportedManifestVersion, StorageError: as `publish`.
        BranchNotFoundError: the graph has no such branch, or another one of that name by now.
        UnsupportedError: the branch's manifest names another place (a moved graph).
    """
    if layout.lance_branch(branch) is None:
        manifest = open_main(storage) if opened is None else _newest(opened)
    else:
        if opened is None:
            migrations.refuse_newer(open_main(storage))
        refuse_made_again(branch, identifier, branch_ref(storage, branch).identifier)
        manifest = storage.dataset(layout.MANIFEST, branch) if opened is None else _newest(opened)
        refuse_moved(storage, branch, manifest)
    _faults.point("publish.opened")
    migrations.refuse_newer(manifest)
    migrations.check_readable(manifest)
    manifest = migrations.migrate_internal_schema(manifest)
    if store.keys(manifest):
        _strip(manifest)
    return manifest


def refuse_made_again(branch: str, identifier: str | None, current: str | None) -> None:
    """Refuse to write to another branch of a name; without an identifier there is none to compare.

    Raises:
        BranchNotFoundError: the identifier isn't the branch's present one.
    """
    if identifier is not None and current != identifier:
        raise BranchNotFoundError(
            f"Branch {branch} was deleted and made again since this write began",
            hint="Nothing was published. Read the branch as it is now, and write again",
        )


def _newest(opened: LanceDataset) -> LanceDataset:
    with translated("Opening the newest version of __manifest"):
        opened.checkout_latest()
    return opened


def refuse_moved(storage: Storage, branch: str, manifest: LanceDataset) -> None:
    """Refuse to write to a branch whose manifest names its parent's files in another place.

    `manifest` is the newest one, opened for writing or for reading.

    Raises:
        UnsupportedError: the graph was moved or copied, and the branch not repaired.
    """
    if relocation.is_moved(storage, layout.MANIFEST, branch, manifest):
        raise UnsupportedError(
            f"Branch {branch} names another place: the graph was moved or copied",
            expected=storage.root,
            hint="Reads work. Before writing to a branch run OmniGraph.repair(dry_run=False)",
        )


def fence(
    storage: Storage, branch: str, identifier: str | None = None, *, rewritten: bool = False
) -> int:
    """Commit a version of the same rows that no publish of an older handle lands above.

    Lance lets a commit land above versions whose files are gone, as if nothing had been in them.
    The fence stays above those: a publish that slept meanwhile collides with it, and looks again.
    It never lands above a publish itself, so it hides none. With `rewritten` its rows are in a file
    of its own. Returns the version that it made.

    Raises:
        RowLevelCasContention: publishes were first every time.
        OmnigraphError: as `open_for_writing`.
    """
    import lance
    from lance import LanceOperation

    for attempt in range(_FENCE_ATTEMPTS):
        manifest = open_for_writing(storage, branch, identifier)
        before = int(manifest.version)
        try:
            same = _rewritten(storage, manifest) if rewritten else _fragments(manifest)
            made = lance.LanceDataset.commit(
                manifest,
                LanceOperation.Merge(same, manifest.lance_schema),
                read_version=before,
                max_retries=0,
            )
            return int(made.version)
        except BaseException as error:  # a Rust panic is not an Exception (fact 16)
            if not isinstance(error, (OSError, ValueError, RuntimeError)) and not is_panic(error):
                raise
            if outcome_of(error) not in (Outcome.CONFLICT, Outcome.UNKNOWN):
                raise typed(error, "Committing to __manifest") from error
            backoff.growing(attempt, first=0.02, longest=0.5)
    raise RowLevelCasContention(
        f"Branch {branch} was published to {_FENCE_ATTEMPTS} times meanwhile",
        hint="Nothing was changed. Run it again when less is written",
        attempts=_FENCE_ATTEMPTS,
    )


def is_fenced(storage: Storage, branch: str | None, above: int) -> bool:
    """Return whether a fence lies among the newest versions of a line, above a number of it.

    Raises:
        StorageError: the store failed.
    """
    try:
        manifest = storage.dataset(layout.MANIFEST, branch)
    except DatasetNotFoundError:
        return False
    newest = int(manifest.version)
    for version in range(newest, max(above, newest - _FENCE_LOOKS), -1):
        with translated(f"Reading the transaction of version {version} of __manifest"):
            transaction = manifest.read_transaction(version)
        if transaction is not None and type(transaction.operation).__name__ == "Merge":
            return True
    return False


def take_back(storage: Storage, branch: str, publish_id: str) -> None:
    """Remove the rows of a publish that landed in another branch of the name than it was meant for.

    Nothing happens where no branch has the name. Only its own rows go, so that nobody's publish
    that landed above it is hidden; what can't be removed is logged. Where the lineage is in
    `__manifest`, its head must be the one before again: so nothing is taken back below another's.
    """
    try:
        branch_ref(storage, branch)
        manifest = storage.dataset(layout.MANIFEST, branch)
        if formats.of(manifest).has_lineage:
            _restore_before(manifest, publish_id)
            return
        with translated(f"Taking publish {publish_id} back"):
            manifest.delete(f'metadata LIKE \'%"publish_id":"{publish_id}"%\'')
    except BranchNotFoundError:
        return
    except OmnigraphError as error:
        _log.warning("publish %s in another branch %s: %s", publish_id, branch, error)


def _restore_before(manifest: LanceDataset, publish_id: str) -> None:
    """Restore the version under a publish that made the newest one; else only say so."""
    import lance
    from lance import LanceOperation

    newest = int(manifest.version)
    head = lineage.head_of(manifest_rows.read(manifest).current)
    if head is None or (head.commit_id, head.graph_version) != (publish_id, newest):
        _log.warning("publish %s stays: another one landed above it", publish_id)
        return
    with translated(f"Taking publish {publish_id} back"):
        lance.LanceDataset.commit(
            manifest, LanceOperation.Restore(newest - 1), read_version=newest, max_retries=0
        )


def _fragments(manifest: LanceDataset) -> list[Any]:
    return [fragment.metadata for fragment in manifest.get_fragments()]


def _rewritten(storage: Storage, manifest: LanceDataset) -> list[Any]:
    """Write what can be into new files of the manifest's own folder: fragments without deletions.

    Lance wants a fragment of each id to stay, with as many rows, and doesn't mind which files it
    has. The fragment of the newest publish never has deletions, and a publish reads all of them.
    """
    from lance import FragmentMetadata
    from lance.fragment import write_fragments

    made = []
    for fragment in manifest.get_fragments():
        plain = fragment.metadata.to_json()
        if plain.get("deletion_file"):
            made.append(fragment.metadata)
            continue
        rows = fragment.to_table()
        (new,) = write_fragments(
            rows, manifest, mode="append", storage_options=storage.lance_options()
        )
        same = {**plain, "files": new.to_json()["files"]}  # its rows keep their ids
        made.append(FragmentMetadata.from_json(json.dumps(same)))
    return made


def _strip(manifest: LanceDataset) -> None:
    try:
        store.strip_auto_cleanup(manifest)
    except (OSError, ValueError, RuntimeError) as error:
        if outcome_of(error) is not Outcome.CONFLICT:
            raise typed(error, "Removing auto-cleanup from __manifest") from error
    manifest.checkout_latest()
