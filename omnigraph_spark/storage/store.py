"""The only place that opens Lance datasets and plain objects of a graph.

A `Storage` is plain data (root URI and storage options), so it is pickled to executors and opened
there again; its `repr` shows no secret. Everything below the root is named by relative locations.
"""

from __future__ import annotations

import json
import logging
import os
import re
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from functools import lru_cache
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from omnigraph_spark.errors import OptionError
from omnigraph_spark.storage import layout, python_workers
from omnigraph_spark.storage.lance_errors import DatasetNotFoundError, translated

if TYPE_CHECKING:
    import pyarrow as pa
    from lance import LanceDataset
    from lance.file import LanceFileReader

_log = logging.getLogger(__name__)

_OBJECT_SCHEMES = ("s3", "s3+ddb", "gs", "az", "abfss")
_DATA_STORAGE_VERSION = "2.2"
_DELETED_AT_ONCE = 1000
_KEPT_BYTES = 64 << 20
_MOST_SESSIONS = 16
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.\-]*):")
_CLIENT_OPTIONS = frozenset(
    {
        "allow_http",
        "allow_invalid_certificates",
        "connect_timeout",
        "timeout",
        "proxy_url",
        "user_agent",
    }
)
_LANCE_ONLY = frozenset(
    {
        "ddbtablename",
        "ddbcommitengine",
        "download_retry_count",
        "client_max_retries",
        "client_retry_timeout",
    }
)


@dataclass(frozen=True)
class ObjectInfo:
    """A plain object: its path, its bytes, and when the store says it was last modified (UTC)."""

    path: str
    size: int
    last_modified: datetime
    e_tag: str | None = None


@dataclass(frozen=True)
class Storage:
    """A graph's root and how to reach it; immutable and picklable, equal by root and options."""

    root: str
    options: Mapping[str, str] = field(default_factory=dict, repr=False)

    def __hash__(self) -> int:
        return hash((self.root, tuple(sorted(self.options.items()))))

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        """Take the attributes: every plan and task of a graph begins with this, in its process."""
        self.__dict__.update(state)
        python_workers.begin()

    @classmethod
    def at(cls, path: str, options: Mapping[str, str] | None = None) -> Storage:
        """Return the storage of the graph at `path`; opens and creates nothing.

        Raises:
            OptionError: an unknown scheme, a relative URI, or user info inside the URI.
        """
        return cls(normalize_root(path), {k.lower(): v for k, v in (options or {}).items()})

    def is_local(self) -> bool:
        """Return whether the root is a folder of this machine."""
        return self.root.startswith("/")

    def uri(self, *parts: str) -> str:
        """Return the full URI of a location below the root."""
        # The parameters of `s3+ddb://bucket/graph?ddbTableName=…` belong behind the whole path.
        base, mark, parameters = self.root, "", ""
        if not self.is_local():
            base, mark, parameters = self.root.partition("?")
        return "/".join((base, *parts)) + mark + parameters

    def dataset_uri(self, location: str, branch: str | None = None) -> str:
        """Return the URI of a dataset, or of its Lance branch (`{dataset}/tree/{branch}`)."""
        branch = layout.lance_branch(branch)
        return self.uri(location) if branch is None else self.uri(location, "tree", branch)

    def dataset(
        self, location: str, branch: str | None = None, version: int | None = None
    ) -> LanceDataset:
        """Open a dataset at `version` (None: its newest); works on driver and executors.

        The handle of a branch can be committed to, so a branch whose base paths point elsewhere (a
        moved graph) fails at its first read of data: readers call `relocation.open_for_reading`.

        Raises:
            DatasetNotFoundError: no dataset, or no such version of it, is there.
            StorageError: the store failed.
        """
        uri = self.dataset_uri(location, branch)
        newest = self.newest_of(location, branch) if version is None else None
        if newest is not None:
            with suppress(DatasetNotFoundError):  # removed in between: there are newer ones
                return self._open(location, uri, newest)
        return self._open(location, uri, version)

    def newest_of(self, location: str, branch: str | None = None) -> int | None:
        """Return the newest version of one of the graph's own datasets, None: Lance must list it.

        A listing takes as long as there are versions, 7 ms for 10,000.
        """
        if not self.is_local() or location not in layout.OWN_DATASETS:
            return None
        return newest_version(self.dataset_uri(location, branch))

    def _open(self, location: str, uri: str, version: int | None) -> LanceDataset:
        with translated(f"Opening {location} of {self.root}"):
            import lance

            python_workers.spare_loaded_modules()
            return lance.dataset(
                uri,
                version=version,
                storage_options=self.lance_options(),
                session=_session(self) if location in layout.OWN_DATASETS else None,
            )

    def create_dataset(
        self, location: str, rows: pa.Table, *, stable_row_ids: bool = True
    ) -> LanceDataset:
        """Make a dataset with its first rows in one commit; one of several creators succeeds.

        `lance.write_dataset(mode="create")` doesn't do: its Overwrite rebases, so that a slower
        creator replaces what a faster one, or anybody after it, has written. V2 manifest names,
        data storage 2.2, no auto-cleanup.

        Raises:
            StorageError: the store failed, or another writer's dataset is there; its cause then is
                `Outcome.CONFLICT`. A data file of ours may be left, which no version names.
        """
        import lance
        from lance.fragment import write_fragments

        uri, options = self.dataset_uri(location), self.lance_options()
        with translated(f"Creating {location} of {self.root}"):
            fragments = (
                write_fragments(
                    rows,
                    uri,
                    mode="create",
                    data_storage_version=_DATA_STORAGE_VERSION,
                    enable_stable_row_ids=stable_row_ids,
                    storage_options=options,
                )
                if rows.num_rows
                else []
            )
            return lance.LanceDataset.commit(
                uri,
                lance.LanceOperation.Overwrite(rows.schema, fragments),
                max_retries=0,
                enable_v2_manifest_paths=True,
                enable_stable_row_ids=stable_row_ids,
                storage_options=options,
            )

    def data_file(self, path: str, columns: Sequence[str]) -> LanceFileReader:
        """Open one data file below the root that no version names yet (staged fragments).

        Raises:
            StorageError: it isn't there, or the store failed.
        """
        from lance.file import LanceFileReader

        uri = self.uri(path).replace("s3+ddb://", "s3://", 1).partition("?")[0]
        with translated(f"Opening {path} of {self.root}"):
            return LanceFileReader(
                self.uri(path) if self.is_local() else uri,
                storage_options=self.lance_options(),
                columns=list(columns),
            )

    def has_dataset(self, location: str, branch: str | None = None) -> bool:
        """Return whether a dataset is at a location.

        Raises:
            StorageError: the store failed; absence alone is False.
        """
        try:
            self.dataset(location, branch)
        except DatasetNotFoundError:
            return False
        return True

    def lance_options(self) -> dict[str, str] | None:
        """Return the storage options for Lance calls (None for local folders)."""
        return dict(self.options) or None

    # --- plain objects -------------------------------------------------------------------------

    def get(self, path: str) -> bytes | None:
        """Return an object's bytes, or None where it isn't there.

        Raises:
            StorageError: the store failed.
        """
        import obstore

        return self._read(path, lambda store: obstore.get(store, path).bytes())

    def get_range(self, path: str, start: int, size: int) -> bytes | None:
        """Return some bytes of an object, or None where it isn't there.

        Raises:
            StorageError: the store failed.
        """
        import obstore

        return self._read(
            path, lambda store: obstore.get_range(store, path, start=start, length=size)
        )

    def _read(self, path: str, ask: Callable[[Any], Any]) -> bytes | None:
        """Return the bytes that a store answers for an object, or None where it isn't there."""
        if self._is_absent():
            return None
        try:
            with translated(f"Reading {path} of {self.root}"):
                return bytes(ask(self._objects()))
        except DatasetNotFoundError:
            return None

    def head(self, path: str) -> ObjectInfo | None:
        """Return what the store says of an object, None where it isn't there.

        Raises:
            StorageError: the store failed.
        """
        import obstore

        if self._is_absent():
            return None
        try:
            with translated(f"Looking at {path} of {self.root}"):
                meta = obstore.head(self._objects(), path)
        except DatasetNotFoundError:
            return None
        e_tag = meta["e_tag"]
        return ObjectInfo(
            path, meta["size"], meta["last_modified"], e_tag.strip('"') if e_tag else None
        )

    def object_path(self, path: str) -> str:
        """Return the path that the store knows an object by: no scheme, bucket or leading slash."""
        root = self.root if self.is_local() else self.root.split("://", 1)[1].partition("/")[2]
        return "/".join(part for part in (root.strip("/"), path) if part)

    def put(self, path: str, data: bytes) -> None:
        """Write an object, replacing what is there, in one step that a crash can't tear.

        Raises:
            StorageError: the store failed; the old object, if any, is unharmed.
        """
        import obstore

        with translated(f"Writing {path} of {self.root}"):
            if self.is_local():
                os.makedirs(self.root, exist_ok=True)
            obstore.put(self._objects(), path, data)

    def put_new(self, path: str, data: bytes) -> bool:
        """Write an object in one step if there is none of the name; return whether it was written.

        Raises:
            StorageError: the store failed.
        """
        import obstore
        from obstore.exceptions import AlreadyExistsError

        with translated(f"Writing {path} of {self.root}"):
            if self.is_local():
                os.makedirs(self.root, exist_ok=True)
            try:
                obstore.put(self._objects(), path, data, mode="create")
            except AlreadyExistsError:
                return False
        return True

    def delete(self, path: str) -> None:
        """Delete an object; one that isn't there is no error.

        Raises:
            StorageError: the store failed.
        """
        import obstore

        if self._is_absent():
            return
        try:
            with translated(f"Deleting {path} of {self.root}"):
                obstore.delete(self._objects(), path)
        except DatasetNotFoundError:
            return

    def delete_many(self, paths: Sequence[str]) -> None:
        """Delete objects, in few requests where the store can; those that aren't there don't count.

        Raises:
            StorageError: the store failed; some may be deleted.
        """
        import obstore

        if self._is_absent():
            return
        for start in range(0, len(paths), _DELETED_AT_ONCE):
            chunk = [*paths[start : start + _DELETED_AT_ONCE]]
            try:
                with translated(f"Deleting {len(chunk)} objects of {self.root}"):
                    obstore.delete(self._objects(), chunk)
            except DatasetNotFoundError:
                for path in chunk:
                    self.delete(path)

    def set_aside(self, path: str) -> None:
        """Move an object that can't be read to `__damaged/`; one that isn't there is no error.

        Raises:
            StorageError: the store failed.
        """
        data = self.get(path)
        if data is not None:
            aside = f"{layout.DAMAGED}/{path}"
            _log.warning("%s is damaged; it is now %s", path, aside)
            self.put(aside, data)
            self.delete(path)

    def folders(self, prefix: str) -> list[str]:
        """Return the paths of the folders directly below a folder, sorted; one request.

        Raises:
            StorageError: the store failed.
        """
        import obstore

        if self.is_local() and not os.path.isdir(self.uri(prefix)):
            return []
        with translated(f"Listing {prefix} of {self.root}"):
            listing = obstore.list_with_delimiter(self._objects(), prefix=prefix)
        return sorted(path.rstrip("/") for path in listing["common_prefixes"])

    def list(self, prefix: str) -> list[ObjectInfo]:
        """List the objects below a folder, sorted by path; an absent folder is an empty list.

        Raises:
            StorageError: the store failed.
        """
        import obstore

        if self.is_local() and not os.path.isdir(self.uri(prefix)):
            return []
        with translated(f"Listing {prefix} of {self.root}"):
            objects = [
                ObjectInfo(meta["path"], meta["size"], meta["last_modified"])
                for chunk in obstore.list(self._objects(), prefix=prefix)
                for meta in chunk
            ]
        return sorted(objects, key=lambda info: info.path)

    def _is_absent(self) -> bool:
        """Return whether the root is a folder that isn't there: asking for it must not make it."""
        return self.is_local() and not os.path.isdir(self.root)

    def _objects(self) -> Any:
        return _object_store(self)


_sessions: OrderedDict[Storage, Any] = OrderedDict()
_sessions_lock = threading.Lock()


def _session(storage: Storage) -> Any:
    """Return what keeps the content of a graph's own datasets that this process has read.

    Whoever opens one again asks the store which version is the newest, each time; what a version
    holds never changes, and is fetched once. Lance keys it by the store's tag of the version file
    and by file names that are given once, so a dataset that was made again is another one. Tables
    are opened without: their row ids and indices would be kept by numbers.
    """
    from lance import Session  # type: ignore[attr-defined]

    with _sessions_lock:
        if storage not in _sessions:
            _sessions[storage] = Session(
                index_cache_size_bytes=1 << 20, metadata_cache_size_bytes=_KEPT_BYTES
            )
        _sessions.move_to_end(storage)
        while len(_sessions) > _MOST_SESSIONS:
            _sessions.popitem(last=False)
        return _sessions[storage]


def forget(storage: Storage) -> None:
    """Forget what this process has read of a graph's own datasets."""
    with _sessions_lock:
        _sessions.pop(storage, None)


@lru_cache(maxsize=64)
def _object_store(storage: Storage) -> Any:
    from obstore.store import LocalStore, from_url

    if storage.is_local():
        return LocalStore(prefix=storage.root)
    client = {k: _client_value(v) for k, v in storage.options.items() if k in _CLIENT_OPTIONS}
    config: Any = {
        k: v for k, v in storage.options.items() if k not in _CLIENT_OPTIONS | _LANCE_ONLY
    }
    return from_url(
        storage.root.replace("s3+ddb://", "s3://", 1).partition("?")[0],
        config=config or None,
        client_options=client or None,  # type: ignore[arg-type]
    )


def _client_value(text: str) -> str | bool:
    return text.lower() == "true" if text.lower() in ("true", "false") else text


def normalize_root(path: str) -> str:
    """Return the one spelling of a graph's root: an absolute local path, or `scheme://…`.

    Raises:
        OptionError: an unknown scheme, or user info inside the URI.
    """
    if not path.strip() or "\x00" in path:
        raise OptionError("The path is empty or malformed", expected="the root of a graph")
    match = _SCHEME.match(path)
    if match is None:
        return _local_root(path)
    scheme = match.group(1).lower()
    if scheme == "file":
        return _local_root(_file_uri_path(path))
    if scheme == "s3a":
        scheme = "s3"
    if scheme not in _OBJECT_SCHEMES:
        if os.path.isdir(path):  # a folder whose name has a colon
            return _local_root(path)
        raise OptionError(
            f"Paths of the scheme {scheme}: can't be opened",
            expected="a local path, file:, " + ", ".join(f"{s}://" for s in _OBJECT_SCHEMES),
        )
    # A password may hold a slash, and no bucket a colon.
    first = path[match.end() :].lstrip("/").partition("/")[0]
    if ":" in first or ("@" in first and scheme != "abfss"):
        raise OptionError(
            f"The URI of {scheme}:// carries user info",
            hint="Give credentials through the environment or storage.* options",
        )
    parts = [part for part in path[match.end() :].split("/") if part]
    if not parts:
        raise OptionError(f"{scheme}:// names no bucket", expected=f"{scheme}://bucket/path")
    if "." in parts or ".." in parts:
        raise OptionError(
            "The path climbs", found=repr(path[:120]), expected="no part that is . or .."
        )
    return f"{scheme}://{'/'.join(parts)}"


def _local_root(path: str) -> str:
    # A path that begins with two slashes is one of its own to Python, and to nobody else.
    return re.sub(r"\A/+", "/", os.path.abspath(os.path.expanduser(path)))


def _file_uri_path(uri: str) -> str:
    split = urlsplit(uri.replace("#", "%23").replace("?", "%3F"))
    if split.netloc not in ("", "localhost"):
        raise OptionError("file: URIs name no host", found=split.netloc, expected="file:///path")
    return unquote(split.path)


_HINT = "latest_version_hint.json"
_MOST_PROBES = 64
_LONGEST_NS = 1_000_000_000


def newest_version(dataset_folder: str) -> int | None:
    """Return the newest version that is in a dataset's folder; None where only a listing can tell.

    The hint may be old or wrong (an older Lance writes none, a slow process writes it late, the
    dataset was created again), so it only says where to begin. The answer is a version whose
    successor isn't there. That alone doesn't do: a cleanup may have taken the successor away and
    left newer ones. So the folder must not have changed later than a second after this version was
    written: whoever removes a version that was made within that second, and keeps one before and
    one after it, is not a cleanup (rule 27). And its predecessor must be there: a process that
    slept over a cleanup gives a number away again, far below the newest, and its hint is as new as
    its file. Folders whose times say nothing are listed.
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
        if version > 1:
            os.stat(_path(folder, version - 1))
        changed = os.stat(folder).st_mtime_ns  # after the look for the successor
    except OSError:
        return None
    return version if 0 <= changed - written <= _LONGEST_NS else None


def _path(folder: str, version: int) -> str:
    return os.path.join(folder, layout.v2_manifest_name(version))


def _hinted(folder: str) -> int | None:
    try:
        with open(os.path.join(folder, _HINT), "rb") as file:
            version = json.loads(file.read(100))["version"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    plausible = type(version) is int and 0 < version < 1 << 62
    return version if plausible else None


_PREFIX = "lance.auto_cleanup."


def keys(dataset: LanceDataset) -> list[str]:
    """Return the auto-cleanup keys in the dataset's config, sorted."""
    return sorted(key for key in dataset.config() if key.startswith(_PREFIX))


def strip_auto_cleanup(dataset: LanceDataset) -> bool:
    """Remove the auto-cleanup keys in one commit; True if there were any.

    Runs on the driver. `dataset` then stands at the version made, which isn't the next one if
    another writer committed in between (rule 11): callers that need contiguity compare versions.

    Raises:
        OSError, ValueError: from Lance, untranslated, since callers tell conflicts apart.
    """
    present = keys(dataset)
    if present:
        dataset.delete_config_keys(present)
    return bool(present)
