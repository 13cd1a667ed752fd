"""Which versions a cleanup must leave: of `__manifest`, through it of every table (rule 27).

Runs on the driver and writes nothing. A version's age is that of the version after it: what was the
newest until yesterday could be read, or travelled to, until yesterday. Ages are the store's, of the
version's own manifest file; a graph that was copied is as young as its copy.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import combinations, pairwise

from omnigraph_spark.errors import UnsupportedError
from omnigraph_spark.history import commits
from omnigraph_spark.manifest.snapshot import load
from omnigraph_spark.refs import refs
from omnigraph_spark.refs.merge_base import merge_bases
from omnigraph_spark.refs.refs import Branch, Tag
from omnigraph_spark.storage import layout
from omnigraph_spark.storage.lance_errors import DatasetNotFoundError, translated
from omnigraph_spark.storage.store import Storage

_log = logging.getLogger(__name__)

Pin = tuple[str, str | None, int]
"""A table version that must stay: location, Lance branch (None: the main line), version."""


@dataclass(frozen=True)
class Refs:
    """What names versions of the graph: branches and tags, as they were when a cleanup began."""

    branches: tuple[Branch, ...]
    tags: tuple[Tag, ...]

    @classmethod
    def of(cls, storage: Storage) -> Refs:
        """Read them.

        Raises:
            GraphNotFoundError, StorageError: as the names say.
        """
        return cls(tuple(refs.list_branches(storage)), tuple(refs.list_tags(storage)))

    @property
    def names(self) -> frozenset[str]:
        """Return the names of the branches."""
        return frozenset(branch.name for branch in self.branches)


def kept_by_age(made: Mapping[int, datetime], cutoff: datetime) -> set[int]:
    """Return the versions of a line that stay for their age: the newest, and superseded lately.

    `made` maps versions to when their manifest files were written.
    """
    numbers = sorted(made)
    after = dict(pairwise(numbers))
    return {n for n in numbers if n not in after or made[after[n]] > cutoff}


def graph_versions(
    storage: Storage,
    known: Refs,
    made: Mapping[str, Mapping[int, datetime]],
    cutoff: datetime,
    keep: int,
) -> dict[str, set[int]]:
    """Return the graph versions of each branch that must stay.

    `made` has each branch's versions of `__manifest` and when they were written. Beside what age
    and `keep` say (the newest so many): tags, the points where branches begin, publishes that the
    lineage doesn't know yet, and what two branches are merged by.

    Raises:
        OmnigraphError: the lineage or a branch can't be read.
    """
    needed: dict[str, set[int]] = {}
    for branch in known.branches:
        versions = made.get(branch.name)
        if versions is None:  # half made or half deleted
            continue
        newest = commits.head(storage, branch.name)
        noted = newest.manifest_version if newest else 0
        needed[branch.name] = {
            *kept_by_age(versions, cutoff),
            *sorted(versions)[len(versions) - keep :],
            *(version for version in versions if version > noted),
        }
    for branch in known.branches:
        if branch.parent is not None and branch.parent_version is not None:
            needed.setdefault(branch.parent, set()).add(branch.parent_version)
    for tag in known.tags:
        needed.setdefault(tag.branch, set()).add(tag.version)
    whole = [branch for branch in known.branches if branch.name in made]
    for name, version in _merge_bases(storage, whole):
        needed.setdefault(name, set()).add(version)
    return {name: numbers & set(made.get(name, {})) for name, numbers in needed.items()}


def _merge_bases(storage: Storage, branches: Sequence[Branch]) -> Iterable[tuple[str, int]]:
    """Yield (branch, graph version) of what every two branches have in common."""
    heads = [
        head for branch in branches if (head := commits.head(storage, branch.name)) is not None
    ]
    for commit, other in combinations(heads, 2):
        try:
            bases = merge_bases(storage, commit, other)
        except UnsupportedError:
            continue
        yield from ((base.branch, base.manifest_version) for base in bases)


def pins(storage: Storage, kept: Mapping[str, set[int]]) -> set[Pin]:
    """Return every table version that a kept graph version names.

    Raises:
        OmnigraphError: a kept graph version can't be read: nothing may be removed then.
    """
    pinned: set[Pin] = set()
    for branch, versions in kept.items():
        for version in sorted(versions):
            for entry in load(storage, branch, version).tables.values():
                own = layout.lance_branch(entry.table_branch)
                pinned.add((entry.location, own, entry.table_version))
    return pinned


def named_by_lance(storage: Storage, location: str) -> set[Pin]:
    """Return what Lance's own tags and branches of a dataset need of it.

    Raises:
        StorageError: the store failed.
    """
    try:
        main = storage.dataset(location)
    except DatasetNotFoundError:
        return set()
    with translated(f"Listing the tags and branches of {location}"):
        tags = main.tags.list().values()
        branches = main.branches.list().values()
    named = [(tag.get("branch"), tag["version"]) for tag in tags]
    named += [(branch.get("parent_branch"), branch["parent_version"]) for branch in branches]
    return {
        (location, layout.lance_branch(branch), int(version))
        for branch, version in named
        if version
    }
