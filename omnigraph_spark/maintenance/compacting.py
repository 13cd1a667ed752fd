"""The compaction of one table, in parts: plan, tasks, and a finished version that nobody sees.

Lance's own commit of a compaction reserves fragment ids at the head, then rewrites the indices,
then commits: two versions with a long time between them, in which no append can pass. Here the new
fragments get their ids first, on a detached version; indices are built on that; and what is
committed at the head in the end is small (rule 26).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from omnigraph_spark.storage import layout
from omnigraph_spark.storage.lance_errors import translated
from omnigraph_spark.storage.store import Storage

if TYPE_CHECKING:
    from lance import LanceDataset
    from lance.fragment import FragmentMetadata

SPARE_IDS = 4096
"""Fragment ids that are left to appends which land while indices are built on the detached version.

The gap stays small because a moved branch is read through a dataset that has a filler for each id.
"""


@dataclass(frozen=True)
class Group:
    """Fragments of a table, and those that take their place: the same rows, fewer files."""

    old: tuple[FragmentMetadata, ...]
    new: tuple[FragmentMetadata, ...]


def plan(
    dataset: LanceDataset,
    target_rows: int,
    deletions_threshold: float,
    excluded: Sequence[int],
) -> list[str]:
    """Return the tasks of a compaction as JSON texts, one per group of fragments; on the driver.

    Raises:
        StorageError: the store failed.
    """
    from lance.optimize import Compaction

    with translated(f"Planning the compaction of {dataset.uri}"):
        planned = Compaction.plan(
            dataset,
            {
                "target_rows_per_fragment": target_rows,
                "materialize_deletions": True,
                "materialize_deletions_threshold": deletions_threshold,
                "excluded_fragment_ids": list(excluded),
                "num_threads": 1,
            },
        )
        tasks: list[Any] = list(planned.tasks)
        return [str(task.json()) for task in tasks]


def execute(
    storage: Storage, location: str, branch: str | None, version: int, tasks: Sequence[str]
) -> list[str]:
    """Rewrite the fragments of tasks into new files, and return the results as JSON texts.

    On an executor. Commits nothing; a task that dies leaves files that no version names.

    Raises:
        StorageError: the store failed.
    """
    dataset = storage.dataset(location, branch, version)
    with translated(f"Compacting {location}"):
        from lance import optimize

        kind: Any = optimize.CompactionTask  # its JSON form isn't in pylance's stubs
        return [kind.from_json(task).execute(dataset).json() for task in tasks]


def groups_of(results: Sequence[str]) -> list[Group]:
    """Return what the tasks made, their new fragments without ids."""
    from lance import optimize

    kind: Any = optimize.RewriteResult
    rewrites = [kind.from_json(text) for text in results]
    return [
        Group(tuple(rewrite.original_fragments), tuple(rewrite.new_fragments))
        for rewrite in rewrites
    ]


def operation(groups: Sequence[Group]) -> Any:
    """Return the Lance operation that puts the new fragments in the place of the old ones."""
    from lance import LanceOperation

    return LanceOperation.Rewrite(
        [LanceOperation.RewriteGroup(list(group.old), list(group.new)) for group in groups], []
    )


def numbered(groups: Sequence[Group], first: int) -> list[Group]:
    """Return the groups with the ids that their new fragments get, from `first` on."""
    from lance.fragment import FragmentMetadata

    done, number = [], first
    for group in groups:
        new = []
        for fragment in group.new:
            new.append(FragmentMetadata.from_json(json.dumps({**fragment.to_json(), "id": number})))
            number += 1
        done.append(Group(group.old, tuple(new)))
    return done


class Detached:
    """A version beside a table's line, for building on it; removed in the end.

    `with Detached(storage, location, branch, base, groups) as (dataset, groups)`: the base version
    with the groups' new fragments in it, and the groups with the ids that those have there.
    """

    def __init__(
        self,
        storage: Storage,
        location: str,
        branch: str | None,
        base: LanceDataset,
        groups: Sequence[Group],
    ) -> None:
        self._storage = storage
        self._folder = storage_folder(location, branch)
        self._base = base
        self._groups = groups
        self._made: list[int] = []

    def __enter__(self) -> tuple[LanceDataset, list[Group]]:
        """Commit it.

        Raises:
            StorageError: the store failed.
        """
        before = {int(fragment.fragment_id) for fragment in self._base.get_fragments()}
        try:
            # Only Lance knows the highest id that the table ever had; it is told by what it gives.
            first = self._commit(self._groups)
            given = [int(fragment.fragment_id) for fragment in first.get_fragments()]
            start = min((n for n in given if n not in before), default=0) + SPARE_IDS
            groups = numbered(self._groups, start)
            return self._commit(groups), groups
        except BaseException:
            self.__exit__()
            raise

    def __exit__(self, *_: object) -> None:
        """Remove its version files; what was built stays."""
        for number in self._made:
            self._storage.delete(f"{self._folder}/_versions/d{number}.manifest")

    def _commit(self, groups: Sequence[Group]) -> LanceDataset:
        import lance

        with translated(f"Making a detached version of {self._folder}"):
            made = lance.LanceDataset.commit(
                self._base,
                operation(groups),
                read_version=int(self._base.version),
                detached=True,
                storage_options=self._storage.lance_options(),
            )
        self._made.append(int(made.version))
        return made


def storage_folder(location: str, branch: str | None) -> str:
    """Return the folder of a dataset's line below the graph's root."""
    name = layout.lance_branch(branch)
    return location if name is None else f"{location}/tree/{name}"


def files_of(fragment: FragmentMetadata) -> Mapping[str, Any]:
    """Return what of a fragment may not change while it is worked on: its files and deletions."""
    plain = fragment.to_json()
    return {"files": [file["path"] for file in plain["files"]], "gone": plain["deletion_file"]}
