"""Which versions of `__manifest` are publishes, and what each one left for the lineage.

A version whose rows changed is a publish; migrations, compactions and settings make versions that
are none. Runs on the driver, only where the lineage has a gap; writes nothing.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa
import pyarrow.compute as pc

from omnigraph_spark.errors import GraphNotFoundError
from omnigraph_spark.manifest.rows import OURS, TOMBSTONE, VERSION
from omnigraph_spark.manifest.snapshot import branch_ref
from omnigraph_spark.storage import layout
from omnigraph_spark.storage.ids import ulid_from
from omnigraph_spark.storage.lance_errors import DatasetNotFoundError, translated
from omnigraph_spark.storage.store import Storage

if TYPE_CHECKING:
    from lance import LanceDataset

_CHANGE_ROWS = frozenset({"Overwrite", "Append", "Delete", "Update", "Restore"})
_KEEP_ROWS = frozenset(
    {
        "Rewrite",
        "CreateIndex",
        "UpdateConfig",
        "UpdateMap",
        "Clone",
        "Project",
        "Merge",
        # What pylance makes of operations it has no class for, such as the reservation of fragment
        # ids that a compaction begins with. None of those changes rows.
        "BaseOperation",
    }
)


@dataclass(frozen=True)
class PublishedVersion:
    """A publish as `__manifest` tells it: its id, its time (UTC, without zone), and who wrote.

    `merged_parent` is the commit that it merged in, if it is a merge.
    """

    graph_version: int
    publish_id: str
    created_at: datetime
    actor: str | None
    merged_parent: str | None = None


@dataclass(frozen=True)
class Fork:
    """Where a graph branch began: versions of `parent` up to `version` are its past."""

    parent: str
    version: int


def fork_of(storage: Storage, branch: str) -> Fork | None:
    """Return where a branch began; None for `main` and where there is no graph.

    Raises:
        BranchNotFoundError: the graph has no such branch.
        StorageError: the store failed.
    """
    if layout.lance_branch(branch) is None:
        return None
    try:
        ref = branch_ref(storage, branch)
    except GraphNotFoundError:
        return None
    return Fork(ref.parent, ref.parent_version)


def branch_names(storage: Storage) -> list[str]:
    """Return the graph's branches, `main` first; an absent graph has only `main`.

    Raises:
        StorageError: the store failed.
    """
    try:
        manifest = storage.dataset(layout.MANIFEST)
    except DatasetNotFoundError:
        return [layout.MAIN]
    with translated(f"Listing the branches of {layout.MANIFEST}"):
        names = set(manifest.branches.list()) - {layout.SCHEMA_LOCK}
    return [layout.MAIN, *sorted(names)]


def publishes_between(
    storage: Storage,
    branch: str,
    after: int,
    before: int,
    known: frozenset[int] = frozenset(),
) -> list[PublishedVersion]:
    """Return a branch's publishes at versions above `after` and below `before`, ascending.

    One small read per version that is none of these publishes, two opens per one that is. Versions
    that were cleaned away, and those that are `known`, are left out.

    Raises:
        StorageError: the store failed.
    """
    versions = [version for version in range(after + 1, before) if version not in known]
    if not versions:
        return []
    manifest = storage.dataset(layout.MANIFEST, layout.lance_branch(branch))
    publishes = []
    for version in versions:
        try:
            with translated(f"Reading version {version} of {layout.MANIFEST}"):
                published = _published(manifest, version)
        except DatasetNotFoundError:
            continue
        if published is not None:
            publishes.append(published)
    return publishes


def keeps_rows(dataset: LanceDataset, version: int) -> bool:
    """Return whether a version of a dataset has the rows of the one before, by its transaction.

    Raises:
        StorageError: the store failed, or the version isn't there.
    """
    with translated(f"Reading the transaction of version {version}"):
        transaction = dataset.read_transaction(version)
    return transaction is not None and type(transaction.operation).__name__ in _KEEP_ROWS


def _published(manifest: LanceDataset, version: int) -> PublishedVersion | None:
    transaction = manifest.read_transaction(version)
    if transaction is not None and type(transaction.operation).__name__ in _KEEP_ROWS:
        return None
    at_version = manifest.checkout_version(version)
    if transaction is None or type(transaction.operation).__name__ not in _CHANGE_ROWS:
        if _same_rows(manifest, at_version):
            return None
        new: list[Any] = []
        token = f"{manifest.uri}@{version}".encode()
    else:
        new = _new_fragments(at_version, transaction.operation)
        token = transaction.uuid.encode()
    ours = _ours(at_version, new)
    publish_id = ours.get("publish_id") or _derived_id(token)
    return PublishedVersion(
        version, publish_id, _time_of(at_version), ours.get("actor"), ours.get("merged_parent")
    )


def _derived_id(token: bytes) -> str:
    """Return the id of a publish that left none: the same for everybody who fills its gap."""
    return ulid_from(0, hashlib.sha256(token).digest())


def _time_of(manifest: LanceDataset) -> datetime:
    # Lance gives local time without a zone.
    local = cast(datetime, manifest.get_version()["timestamp"])
    return local.astimezone(timezone.utc).replace(tzinfo=None)


def _new_fragments(manifest: LanceDataset, operation: Any) -> list[Any]:
    """Return the fragments of this version that its own operation added."""
    added = getattr(operation, "new_fragments", None) or getattr(operation, "fragments", None) or []
    paths = {file.path for fragment in added for file in fragment.files}
    return [
        fragment
        for fragment in manifest.get_fragments()
        if any(file.path in paths for file in fragment.metadata.files)
    ]


def _ours(manifest: LanceDataset, fragments: list[Any]) -> dict[str, Any]:
    """Return what this connector left in the rows of these fragments, {} if nothing."""
    if not fragments:
        return {}
    rows = manifest.scanner(columns=["object_type", "metadata"], fragments=fragments).to_table()
    table_rows = rows.filter(pc.is_in(rows["object_type"], pa.array([VERSION, TOMBSTONE])))
    texts = table_rows["metadata"].to_pylist()
    for text in texts:
        try:
            ours = json.loads(text or "{}").get(OURS)
        except (ValueError, AttributeError):
            continue
        if isinstance(ours, dict) and isinstance(ours.get("publish_id"), str):
            return ours
    return {}


def _same_rows(manifest: LanceDataset, at_version: LanceDataset) -> bool:
    """Return whether a version has the rows of the one before: for operations that tell nothing."""
    version = int(at_version.version)
    if version == 1:
        return False
    columns = ["object_id", "object_type", "metadata", "table_version", "table_branch", "row_count"]
    before = manifest.checkout_version(version - 1)
    return bool(_sorted(before, columns).equals(_sorted(at_version, columns)))


def _sorted(manifest: LanceDataset, columns: list[str]) -> pa.Table:
    return manifest.to_table(columns=columns).sort_by("object_id").combine_chunks()
