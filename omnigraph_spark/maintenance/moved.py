"""Point the branches of a moved or copied graph at where the graph is now.

A Lance branch keeps its parent's root in its version manifests as the writer spelled it, and Lance
offers no way to change it. So the manifest files are rewritten: the last part of such a file is one
protobuf message, whose base paths are replaced. Each file is replaced in one step, and means the
same to a reader of this connector before and after, so a crash in between leaves nothing half done.

Runs on the driver. Nobody can write to such a branch meanwhile: Lance can't open it.
"""

from __future__ import annotations

from omnigraph_spark.storage import lance_messages, relocation
from omnigraph_spark.storage.lance_errors import DatasetNotFoundError
from omnigraph_spark.storage.store import Storage


def point_here(storage: Storage, location: str, branch: str) -> int:
    """Rewrite the version manifests of a dataset's branch that name other places; return how many.

    Raises:
        CorruptManifestError: a base isn't this graph's, or a file isn't as Lance writes it.
        StorageError: the store failed; files done so far stay done, the next call goes on.
    """
    bases = {
        number: now for number, (_, now) in relocation.bases(storage, location, branch).items()
    }
    changed = 0
    for info in storage.list(f"{location}/tree/{branch}/_versions"):
        name = info.path.rsplit("/", 1)[-1]
        data = storage.get(info.path) if name.endswith(".manifest") else None
        if data is None:
            continue
        rewritten = lance_messages.with_base_paths(data, bases, info.path)
        if rewritten != data:
            storage.put(info.path, rewritten)
            changed += 1
    return changed


def is_moved(storage: Storage, location: str, branch: str) -> bool:
    """Return whether a dataset's branch is there and names another place.

    Raises:
        CorruptManifestError, StorageError: as `relocation.needs_relocation`.
    """
    try:
        return relocation.needs_relocation(storage, location, branch)
    except DatasetNotFoundError:
        return False
