"""The files of a dataset, sorted by its lines, and which of them a set of versions names.

Runs on the driver and writes nothing. A file is looked for by its name alone, never by its path:
Lance gives every data file, deletion file and index a name of its own, and a branch's manifest
names its parent's files by a path that may be old (format.md, "Tree"). So a name that any version
of any line mentions protects the file wherever it lies.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any

from omnigraph_spark.maintenance.compacting import storage_folder
from omnigraph_spark.refs import forks
from omnigraph_spark.storage.lance_errors import translated
from omnigraph_spark.storage.store import ObjectInfo, Storage

if TYPE_CHECKING:
    from lance import LanceDataset

VERSIONS = "_versions"
_FOLDERS = ("data", "_deletions", "_indices", "_transactions")
_HIGHEST = 0xFFFFFFFFFFFFFFFF


@dataclass
class Line:
    """One line of a dataset: the main line (branch None), or a Lance branch, listed or not.

    `versions` are its version files by number, `detached` those of versions beside the line,
    `files` what its versions may name, by folder.
    """

    location: str
    branch: str | None
    versions: dict[int, ObjectInfo] = field(default_factory=dict)
    detached: list[ObjectInfo] = field(default_factory=list)
    files: dict[str, list[ObjectInfo]] = field(default_factory=dict)

    @property
    def folder(self) -> str:
        """Return its folder below the graph's root."""
        return storage_folder(self.location, self.branch)

    def made(self) -> dict[int, datetime]:
        """Return when each version's file was written."""
        return {number: info.last_modified for number, info in self.versions.items()}

    def newest(self) -> datetime | None:
        """Return when the newest of all its files was written."""
        inside = [
            *self.versions.values(),
            *self.detached,
            *(i for f in self.files.values() for i in f),
        ]
        return max((info.last_modified for info in inside), default=None)


@dataclass(frozen=True)
class Names:
    """The names that versions mention: of data files, deletion files, indices, transactions."""

    data: set[str] = field(default_factory=set)
    deletions: set[str] = field(default_factory=set)
    indices: set[str] = field(default_factory=set)
    transactions: set[str] = field(default_factory=set)

    def mention(self, kind: str, inside: str) -> bool:
        """Return whether a file, `inside` being its path below the folder `kind`, is mentioned."""
        first = inside.split("/", maxsplit=1)[0]
        stem = first.partition(".")[0]
        if kind == "data":  # blobs lie in a folder named as the data file that they belong to
            return stem in self.data
        if kind == "_deletions":
            return stem.rpartition("-")[2] in self.deletions
        if kind == "_indices":
            return first in self.indices
        return stem.partition("-")[2] in self.transactions


def lines(storage: Storage, location: str) -> dict[str | None, Line]:
    """List a dataset's files and sort them by its lines; a folder of a fork is a line.

    Raises:
        StorageError: the store failed.
    """
    inside = [(info, info.path[len(location) + 1 :]) for info in storage.list(location)]
    branches = forks.names_in(
        path.removeprefix("tree/") for _, path in inside if path.startswith("tree/")
    )
    by_branch: dict[str | None, Line] = {None: Line(location, None)}
    by_branch |= {name: Line(location, name) for name in branches}
    # The folder of `a/b` lies in that of `a`: the longest name that fits is the file's line.
    order = sorted(branches, key=len, reverse=True)
    for info, path in inside:
        if not path.startswith("tree/"):
            _sort_in(by_branch[None], info, path)
            continue
        for name in order:
            if path.startswith(f"tree/{name}/"):
                _sort_in(by_branch[name], info, path[len(f"tree/{name}/") :])
                break
    return by_branch


def _sort_in(line: Line, info: ObjectInfo, path: str) -> None:
    kind, _, rest = path.partition("/")
    if kind == VERSIONS:
        stem, dot, suffix = rest.partition(".")
        if dot and suffix == "manifest" and stem.isdigit():
            number = int(stem)
            line.versions[_HIGHEST - number if len(stem) == 20 else number] = info
        elif suffix == "manifest" and stem[:1] == "d" and stem[1:].isdigit():
            line.detached.append(info)
    elif kind in _FOLDERS and rest:
        line.files.setdefault(kind, []).append(info)


def names_of(storage: Storage, line: Line, versions: Iterable[int], names: Names) -> None:
    """Add what some versions of a line mention to `names`.

    Raises:
        StorageError: a version can't be read: no file of the dataset may be removed then.
    """
    for version in sorted(versions):
        dataset = storage.dataset(line.location, line.branch, version)
        with translated(f"Reading what version {version} of {line.folder} needs"):
            _add(dataset, version, names)


def _add(dataset: LanceDataset, version: int, names: Names) -> None:
    for fragment in dataset.get_fragments():
        plain = fragment.metadata.to_json()
        names.data.update(PurePosixPath(path).name.partition(".")[0] for path in _paths(plain))
        deleted = plain.get("deletion_file")
        if deleted:
            names.deletions.add(str(deleted["id"]))
    for index in dataset.describe_indices():
        names.indices.update(str(segment.uuid) for segment in index.segments)
    try:
        transaction = dataset.read_transaction(version)
    except TypeError:  # pylance can't say it (a compaction by Lance itself)
        return
    if transaction is not None:
        names.transactions.add(str(transaction.uuid))


def _paths(plain: Any) -> Iterator[str]:
    """Yield every value of a key `path` in a fragment's JSON: files, overlays, outside row ids."""
    if isinstance(plain, dict):
        if isinstance(plain.get("path"), str):
            yield plain["path"]
        for value in plain.values():
            if isinstance(value, (dict, list)):
                yield from _paths(value)
    elif isinstance(plain, list) and plain and isinstance(plain[0], (dict, list)):
        for value in plain:
            yield from _paths(value)
