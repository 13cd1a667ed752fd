"""What tests of branches do and look at: refs by their text, the rows of a ref, forks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from omnigraph_spark.manifest.snapshot import Snapshot, load
from omnigraph_spark.read.plan import read_table
from omnigraph_spark.refs import branches, refs
from omnigraph_spark.storage import layout
from omnigraph_spark.storage.store import Storage
from tests.support.writes import write

GRACE = 0.05


def make(storage: Storage, name: str, ref: str = "main") -> None:
    """Make a branch from a ref's text."""
    branches.create_branch(storage, name, refs.named(storage, ref))


def remove(storage: Storage, name: str) -> None:
    """Delete a branch with a short grace."""
    branches.delete_branch(storage, name, GRACE)


def at(storage: Storage, ref: str = "main") -> Snapshot:
    """Return the snapshot of a ref."""
    return load(storage, *refs.named(storage, ref))


def ids_at(storage: Storage, key: str, ref: str = "main") -> list[str]:
    """Return the ids of a table at a ref, sorted, doubles included, counted as published."""
    snapshot = at(storage, ref)
    found: list[str] = read_table(storage, snapshot, key)["id"].to_pylist()
    assert len(found) == snapshot.entry(key).row_count
    return sorted(found)


def write_ids(
    storage: Storage, branch: str, key: str, ids: Sequence[str], mode: str = "append", **more: Any
) -> int:
    """Write ids to one table of a branch and return the graph version."""
    done = write(storage, {key: ids}, mode, branch=branch, orphanGraceSeconds=str(GRACE), **more)
    return done.graph_version


def names(storage: Storage) -> list[str]:
    """Return the names of the graph's branches, `main` first."""
    return [branch.name for branch in refs.list_branches(storage)]


def forks_of(storage: Storage, key: str) -> list[str]:
    """Return the Lance branches of a table."""
    location = load(storage).locations.get(key, layout.table_location(key))
    return sorted(storage.dataset(location).branches.list())
