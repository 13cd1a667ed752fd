"""Open a dataset for reading although its branch names its parent's files by an old path.

A Lance branch keeps its parent's root in its manifest as the writer spelled it (format.md, "Tree";
fact 26): after a move or a copy, or from another working directory, Lance opens other files than
the graph's own, or none. The paths on record are never trusted: where a base isn't exactly the root
that the graph has now, the same fragments are put into an in-memory dataset whose bases are right.
No file is written or changed.

Rows, deletions, row ids and the version columns are those of the branch. What differs on such a
handle: its version number and URI are its own, it has no indices (a scan finds the same rows
without them), no history, and nothing may be committed to it.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from omnigraph_spark.errors import CorruptManifestError
from omnigraph_spark.storage import layout
from omnigraph_spark.storage.lance_errors import DatasetNotFoundError, translated
from omnigraph_spark.storage.opened import version_of
from omnigraph_spark.storage.store import Storage

if TYPE_CHECKING:
    from lance import LanceDataset
    from lance.fragment import FragmentMetadata


_MEMORY = "memory://"


def open_for_reading(
    storage: Storage, location: str, table_branch: str | None = None, version: int | None = None
) -> LanceDataset:
    """Open a version of a dataset or of its Lance branch, with its files where they are now.

    Runs on the driver and on executors, once per dataset and version; needs no other process. Works
    for tables, `__manifest` and `_graph_commits.lance`, on branches of branches too. The handle is
    for reading only.

    Args:
        storage: The graph.
        location: The dataset below the root, such as `nodes/40d76f1f51639ec0`.
        table_branch: Its Lance branch; None for the main line.
        version: The version to open; None for the newest.

    Raises:
        DatasetNotFoundError: no such dataset, branch or version is there.
        CorruptManifestError: a base is neither the dataset's root nor a parent branch's, or a
            branch names itself among its parents.
        StorageError: the store failed.
    """
    dataset = (
        storage.dataset(location, table_branch)
        if version is None
        else version_of(storage, location, table_branch, version)
    )
    return in_place(storage, location, table_branch, dataset)


def in_place(
    storage: Storage, location: str, table_branch: str | None, dataset: LanceDataset
) -> LanceDataset:
    """Return an opened version of a dataset or branch with its files where they are now.

    Raises:
        CorruptManifestError, StorageError: as `open_for_reading`.
    """
    recorded = {key: base.path for key, base in dataset.base_paths().items()}
    if _is_main_line(storage, location, recorded):
        return dataset
    roots = _roots(storage, location, table_branch)
    bases = {key: _current_root(path, location, roots) for key, path in recorded.items()}
    if all(recorded[key] == bases[key] for key in bases):
        return dataset
    return _rebased(dataset, storage, bases, storage.dataset_uri(location, table_branch))


def needs_relocation(storage: Storage, location: str, table_branch: str | None = None) -> bool:
    """Return whether a branch's newest manifest names roots that aren't the graph's (moved graph).

    Runs on the driver. Writers ask before they commit to a branch: Lance would write new versions
    onto bases that it can't read.

    Raises:
        DatasetNotFoundError: no such dataset or branch is there.
        CorruptManifestError: as `open_for_reading`.
        StorageError: the store failed.
    """
    return is_moved(storage, location, table_branch, storage.dataset(location, table_branch))


def is_moved(
    storage: Storage, location: str, table_branch: str | None, dataset: LanceDataset
) -> bool:
    """Return whether an opened branch names roots that aren't the graph's, or did (`in_place`).

    Raises:
        CorruptManifestError, StorageError: as `open_for_reading`.
    """
    if dataset.uri.startswith(_MEMORY):
        return True
    recorded = {key: base.path for key, base in dataset.base_paths().items()}
    if _is_main_line(storage, location, recorded):
        return False
    roots = _roots(storage, location, table_branch)
    return any(_current_root(path, location, roots) != path for path in recorded.values())


def _is_main_line(storage: Storage, location: str, recorded: Mapping[int, str]) -> bool:
    """Return whether no base is another than the dataset's main line, where it is now."""
    return all(path == storage.uri(location) for path in recorded.values())


def bases(storage: Storage, location: str, branch: str) -> dict[int, tuple[str, str]]:
    """Return (path on record, path now) of a branch's bases by their ids; on the driver.

    Raises:
        DatasetNotFoundError: no such dataset or branch is there.
        CorruptManifestError: as `open_for_reading`.
        StorageError: the store failed.
    """
    dataset = storage.dataset(location, branch)
    roots = _roots(storage, location, branch)
    return {
        number: (base.path, _current_root(base.path, location, roots))
        for number, base in dataset.base_paths().items()
    }


def parent_branches(storage: Storage, location: str, branch: str | None) -> list[str]:
    """Return a Lance branch's ancestors, nearest first, without the main line.

    Read from `_refs/branches/{name}.json`, whose `parentBranch` is null for the main line
    (format.md).

    Raises:
        CorruptManifestError: a ref file isn't JSON of that shape, or the parents go in a circle.
        StorageError: the store failed.
    """
    ancestors: list[str] = []
    current = layout.lance_branch(branch)
    while current is not None:
        parent = _parent_of(storage, location, current)
        if parent is not None and (parent in ancestors or parent == branch):
            raise CorruptManifestError(
                f"The branches of {location} name each other as parents",
                found=" -> ".join([str(branch), *ancestors, parent]),
            )
        if parent is not None:
            ancestors.append(parent)
        current = parent
    return ancestors


def _parent_of(storage: Storage, location: str, branch: str) -> str | None:
    path = layout.ref_path(location, branch)
    data = storage.get(path)
    if data is None:
        raise DatasetNotFoundError(
            f"Branch {branch} of {location} has no ref file", expected=path, found="nothing"
        )
    try:
        parent = json.loads(data).get("parentBranch")
    except (ValueError, AttributeError) as error:
        raise CorruptManifestError(
            f"The ref file of branch {branch} is not a JSON object", found=path
        ) from error
    if parent is not None and not isinstance(parent, str):
        raise CorruptManifestError(
            f"The parent of branch {branch} is not a name", found=repr(parent)
        )
    return layout.lance_branch(parent)


def _roots(storage: Storage, location: str, branch: str | None) -> dict[str, str]:
    """Return {path below the graph's root: full path now} of the roots that may be bases."""
    roots = {location: storage.uri(location)}
    for name in [*parent_branches(storage, location, branch), layout.lance_branch(branch)]:
        if name is not None:
            roots[f"{location}/tree/{name}"] = storage.dataset_uri(location, name)
    return roots


def _current_root(path: str, location: str, roots: Mapping[str, str]) -> str:
    """Return where the base on record as `path` is now."""
    spelled = "/" + path.strip("/")
    for tail in sorted(roots, key=len, reverse=True):
        if spelled.endswith("/" + tail):
            return roots[tail]
    raise CorruptManifestError(
        f"A branch of {location} takes files from a place that isn't this table's",
        expected=f"a path that ends in {' or '.join(roots)}",
        found=path,
        hint="Such a clone can't be read as part of a graph",
    )


def _rebased(
    dataset: LanceDataset, storage: Storage, bases: Mapping[int, str], own_root: str
) -> LanceDataset:
    """Return an in-memory dataset of the same fragments with right bases (fact 26)."""
    import lance

    own_id = max(bases) + 1
    initial = [
        lance.DatasetBasePath(path=root, name=None, is_dataset_root=True, id=key)
        for key, root in (*bases.items(), (own_id, own_root))
    ]
    raw = [fragment.metadata.to_json() for fragment in dataset.get_fragments()]
    # Only an Overwrite registers bases, but it numbers fragments from 0, takes none with deletions
    # and starts row versions again; a Merge takes fragments as they are, if their ids are there.
    # Ids must stay, since a deletion file's name begins with its fragment's: fillers keep the
    # places of gone fragments until a Delete removes them.
    numbered, fillers = _numbered(raw, own_id)
    schema = dataset.lance_schema
    steps: list[Any] = [lance.LanceOperation.Delete([], fillers, "true")] if fillers else []
    steps.append(
        lance.LanceOperation.Merge([_pointed(fragment, own_id) for fragment in raw], schema)
    )
    with translated(f"Pointing the bases of {own_root} to where the graph is now"):
        rebased = lance.LanceDataset.commit(
            f"{_MEMORY}{uuid.uuid4().hex}",
            lance.LanceOperation.Overwrite(schema, numbered, initial_bases=initial),
            storage_options=storage.lance_options(),
            enable_stable_row_ids=dataset.has_stable_row_ids,
        )
        for step in steps:
            rebased = lance.LanceDataset.commit(
                rebased,
                step,
                read_version=rebased.version,
                storage_options=storage.lance_options(),
            )
    return rebased


def _numbered(
    fragments: list[dict[str, Any]], own_id: int
) -> tuple[list[FragmentMetadata], list[int]]:
    """Return fragments without deletions at the places of their ids, and the fillers' ids."""
    by_id = {int(fragment["id"]): fragment for fragment in fragments}
    filler = {"id": 0, "files": [], "physical_rows": 0, "deletion_file": None, "row_id_meta": None}
    places = range(max(by_id, default=-1) + 1)
    numbered = [
        _pointed({**by_id.get(number, filler), "deletion_file": None}, own_id) for number in places
    ]
    return numbered, [number for number in places if number not in by_id]


def _pointed(fragment: Mapping[str, Any], own_id: int) -> FragmentMetadata:
    """Return a fragment whose own files (no base id) are found under the base `own_id`."""
    from lance.fragment import FragmentMetadata

    deletions = fragment["deletion_file"]
    pointed = {
        **fragment,
        "files": [_with_base(file, own_id) for file in fragment["files"]],
        "deletion_file": _with_base(deletions, own_id) if deletions else None,
    }
    return FragmentMetadata.from_json(json.dumps(pointed))


def _with_base(file: dict[str, Any], own_id: int) -> dict[str, Any]:
    return file if file.get("base_id") is not None else {**file, "base_id": own_id}
