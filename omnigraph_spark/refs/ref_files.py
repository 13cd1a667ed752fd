"""The files by which Lance lists the branches and tags of a dataset: find those it can't read.

One that a power cut left empty or cut off hides all others: Lance then lists none. A file of a
branch can be made again from the first version in the branch's folder, whose transaction says what
it is a clone of. Runs on the driver.
"""

from __future__ import annotations

import json
import logging
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

from omnigraph_spark.refs import refs
from omnigraph_spark.storage import layout
from omnigraph_spark.storage.lance_errors import DatasetNotFoundError, translated
from omnigraph_spark.storage.store import Storage

BRANCH, TAG = "branch", "tag"
_FOLDERS = {"branches": BRANCH, "tags": TAG}
_NEEDED = {BRANCH: {"parentVersion", "createAt", "manifestSize"}, TAG: {"version", "manifestSize"}}
_ENDING = ".json"

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Torn:
    """A ref file that can't be read: of which dataset, of a branch or a tag, its name and path."""

    location: str
    kind: str
    name: str
    path: str


def torn(storage: Storage, location: str) -> Iterator[Torn]:
    """Yield the ref files of a dataset that can't be read.

    Raises:
        StorageError: the store failed.
    """
    start = len(f"{location}/_refs/")
    for info in storage.list(f"{location}/_refs"):
        folder, _, name = info.path[start:].partition("/")
        kind = _FOLDERS.get(folder)
        if kind is None or not name.endswith(_ENDING):
            continue
        if _is_torn(storage, info.path, kind):
            yield Torn(location, kind, unquote(name.removesuffix(_ENDING)), info.path)


def _is_torn(storage: Storage, path: str, kind: str) -> bool:
    data = storage.get(path)
    return data is not None and not _NEEDED[kind] <= _parsed(data).keys()


def _parsed(data: bytes) -> dict[str, Any]:
    try:
        found = json.loads(data)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def remove_torn(storage: Storage, branch: str) -> None:
    """Set the ref files of a branch aside that can't be read: what is left then has no ref.

    Raises:
        StorageError: the store failed.
    """
    tables = [path for folder in layout.TABLE_FOLDERS for path in storage.folders(folder)]
    for location in (layout.MANIFEST, layout.GRAPH_COMMITS, *tables):
        path = layout.ref_path(location, branch)
        if _is_torn(storage, path, BRANCH):
            storage.set_aside(path)


def is_known(storage: Storage, location: str, branch: str) -> bool:
    """Return whether the ref file of a branch can be made again.

    Raises:
        StorageError: the store failed.
    """
    return _origin(storage, location, branch) is not None


def make_again(storage: Storage, location: str, branch: str) -> bool:
    """Write the ref file of a branch from what its first version says; False where none says it.

    It gets an identifier of its own: a write that was on its way to the branch is refused.

    Raises:
        StorageError: the store failed.
    """
    origin = _origin(storage, location, branch)
    if origin is None:
        return False
    parent, version = origin
    begun = storage.head(f"{layout.line(location, branch)}/_versions/{_file(version)}")
    cloned = storage.head(f"{layout.line(location, parent)}/_versions/{_file(version)}")
    above: list[Any] = []
    if parent is not None:
        ref = _parsed(storage.get(layout.ref_path(location, parent)) or b"")
        above = ref.get("identifier", {}).get("version_mapping", [])
    made = {
        "parentBranch": parent,
        "identifier": {"version_mapping": [*above, [version, uuid.uuid4().hex]]},
        "parentVersion": version,
        "createAt": int(begun.last_modified.timestamp()) if begun else 0,
        "manifestSize": cloned.size if cloned else 0,
        "metadata": {},
    }
    path = layout.ref_path(location, branch)
    _log.warning("writing the ref file %s again", path)
    storage.put(path, json.dumps(made, indent=2).encode())
    return True


def _file(version: int) -> str:
    return layout.v2_manifest_name(version)


def _origin(storage: Storage, location: str, branch: str) -> tuple[str | None, int] | None:
    """Return the Lance branch (None: the main line) and version that a branch is a clone of."""
    kept = refs.kept_versions(storage, location, branch)
    if not kept:
        return None
    try:
        with translated(f"Reading the first version of branch {branch} of {location}"):
            first = storage.dataset(location, branch, kept[0]).read_transaction(kept[0])
    except (DatasetNotFoundError, TypeError):  # pylance can't say every transaction
        return None
    operation: Any = None if first is None else first.operation
    if type(operation).__name__ != "Clone" or operation.ref_version != kept[0]:
        return None
    return layout.lance_branch(operation.ref_name), kept[0]
