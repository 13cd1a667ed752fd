"""The newest version of a dataset in a local folder, without listing thousands of them.

Lance finds the newest version of a local folder by listing all of them, a millisecond for each
2,000, and a write opens the graph's own datasets a dozen times. After each commit Lance leaves the
number in a file, which it reads on object stores of unordered listings only. Runs wherever datasets
are opened; reads three directory entries and a file of 16 bytes.
"""

from __future__ import annotations

import json
import os

from omnigraph_spark.storage import layout

_HINT = "latest_version_hint.json"
_MOST_PROBES = 64
_LONGEST_NS = 1_000_000_000


def newest_version(dataset_folder: str) -> int | None:
    """Return the newest version that is in a dataset's folder; None where only a listing can tell.

    The hint may be old or wrong (an older Lance writes none, a slow process writes it late, the
    dataset was made anew), so it only says where to begin. The answer is a version whose successor
    isn't there. That alone doesn't do: a cleanup may have taken the successor away and left newer
    ones. So the folder must not have changed later than a second after this version was written:
    whoever removes a version that was made within that second, and keeps one before and one after
    it, is no cleanup (PROTOCOL 27). Folders whose times say nothing are listed.
    """
    folder = os.path.join(dataset_folder, "_versions")
    version = _hinted(folder)
    if version is None:
        return None
    try:
        written = os.stat(_path(folder, version)).st_mtime_ns
        for _ in range(_MOST_PROBES):
            try:
                written = os.stat(_path(folder, version + 1)).st_mtime_ns
            except FileNotFoundError:
                break
            version += 1
        else:
            return None
        changed = os.stat(folder).st_mtime_ns  # after the look for the successor
    except OSError:
        return None
    return version if 0 <= changed - written <= _LONGEST_NS else None


def _path(folder: str, version: int) -> str:
    return os.path.join(folder, layout.v2_manifest_name(version))


def _hinted(folder: str) -> int | None:
    try:
        with open(os.path.join(folder, _HINT), "rb") as file:
            found = json.loads(file.read(100))["version"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    plausible = type(found) is int and 0 < found < 1 << 62
    return found if plausible else None
