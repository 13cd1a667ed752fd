"""Make an empty graph: a stamped `__manifest` without rows, and its lineage (format.md).

Several processes may do so at once, and one may die half way: whatever is missing is completed by
whoever comes next, and nothing depends on who did which step.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from omnigraph_spark.errors import OmnigraphError, StorageError
from omnigraph_spark.history import commits
from omnigraph_spark.history.publishes import publishes_between
from omnigraph_spark.manifest import formats
from omnigraph_spark.manifest.migrations import new_manifest_schema
from omnigraph_spark.storage import append_log, layout, store
from omnigraph_spark.storage.lance_errors import (
    DatasetNotFoundError,
    Outcome,
    outcome_of,
    translated,
)
from omnigraph_spark.storage.store import Storage

if TYPE_CHECKING:
    from lance import LanceDataset


_log = logging.getLogger(__name__)


_LOOKED_AT_EVERY = 3
_MANY_SMALL = 6
_CONFIG: dict[str, str | None] = {"table_version_management": "true"}
"""What the engine sets on its own `__manifest`."""


def init_graph(storage: Storage) -> None:
    """Make sure that a graph is at the root; on the driver, before the first write to it.

    The root may be absent, empty, or hold other files, which stay as they are. A graph that is
    there is left alone, unless it is an empty one that another process didn't finish.

    Raises:
        StorageError: the store failed; what was made so far is completed by the next call.
    """
    manifest = _open(storage)
    if manifest is None:
        _create(storage)
        manifest = storage.dataset(layout.MANIFEST)
    elif not _is_new(manifest):
        return
    _set_config(manifest)
    _make_lineage(storage)


def _make_lineage(storage: Storage) -> None:
    if all(storage.has_dataset(n) for n in (layout.GRAPH_COMMITS, layout.GRAPH_COMMIT_ACTORS)):
        return
    # Named by the version itself, so that two processes give the graph's first commit one id.
    first = publishes_between(storage, layout.MAIN, 0, 2)[0]
    commits.init_lineage(storage, first.publish_id, first.graph_version)


def _open(storage: Storage) -> LanceDataset | None:
    try:
        return storage.dataset(layout.MANIFEST)
    except DatasetNotFoundError:
        return None


def _create(storage: Storage) -> None:
    """Create `__manifest` without stable row ids (fact 31); one of several succeeds."""
    rows = new_manifest_schema().empty_table()
    try:
        storage.create_dataset(layout.MANIFEST, rows, stable_row_ids=False)
    except StorageError as error:
        if outcome_of(error.__cause__ or error) is not Outcome.CONFLICT:
            raise


def _is_new(manifest: LanceDataset) -> bool:
    """Return whether a manifest is one of ours that nothing was published to yet."""
    schema = manifest.schema
    with translated(f"Counting the rows of {layout.MANIFEST}"):
        return bool(
            schema.equals(new_manifest_schema(), check_metadata=True) and manifest.count_rows() == 0
        )


def _set_config(manifest: LanceDataset) -> None:
    if all(manifest.config().get(key) == value for key, value in _CONFIG.items()):
        return
    try:
        with translated(f"Setting up {layout.MANIFEST}"):
            manifest.update_config(_CONFIG)
    except StorageError as error:
        # Another process sets the same.
        if outcome_of(error.__cause__ or error) is not Outcome.CONFLICT:
            raise


def compact_own_datasets(storage: Storage, branch: str, graph_version: int) -> None:
    """Compact a branch's `__manifest` if the version that was just published is due; never raises.

    Runs on the driver, after each publish; costs nothing but at every third version, and there
    little while fragments are few: a branch may have many from the beginning. Whoever published
    that version does it, so no two processes do the same, and publishes that go on meanwhile are
    safe: one of the two is refused and retried or given up (rule 28). Left out where auto-cleanup
    settings are still on the dataset, since a commit would run them.
    """
    if graph_version % _LOOKED_AT_EVERY and graph_version % append_log.GATHER_EVERY:
        return
    try:
        with translated(f"Compacting {layout.MANIFEST}"):
            manifest = storage.dataset(layout.MANIFEST, branch)
            rows = [fragment.metadata.num_rows for fragment in manifest.get_fragments()]
            small = sum(count < append_log.SMALL_ROWS for count in rows)
            is_due = small >= _MANY_SMALL or graph_version % append_log.GATHER_EVERY == 0
            if not is_due or store.keys(manifest):
                return
            if formats.of(manifest).has_lineage:
                append_log.compact_at_once(manifest, graph_version)
            else:
                append_log.compact(manifest, graph_version)
    except OmnigraphError as error:
        _log.info("%s was left as it is: %s", layout.MANIFEST, error)
