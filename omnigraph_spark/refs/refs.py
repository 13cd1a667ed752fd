"""What a ref means: a branch and one of its graph versions; on the driver, nothing is written.

A ref is a branch (its head), a branch and a version on its lineage, a commit id, a tag, or a branch
and a point in time. Graph versions count per branch; a branch's lineage below its
fork is its parent's.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from functools import wraps
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, cast

from omnigraph_spark.errors import (
    BranchNotFoundError,
    OmnigraphError,
    OptionError,
    PublishOutcomeUnknown,
    StorageError,
    VersionNotFoundError,
    did_you_mean,
)
from omnigraph_spark.manifest import crash_records, snapshot
from omnigraph_spark.refs import times
from omnigraph_spark.storage import layout
from omnigraph_spark.storage.lance_errors import DatasetNotFoundError, translated
from omnigraph_spark.storage.store import Storage

if TYPE_CHECKING:
    from lance import LanceDataset

_COMMIT_ID = re.compile(r"[0-7][0-9A-HJKMNP-TV-Z]{25}\Z")
_NUMBER = re.compile(r"\d{1,19}\Z")
_SHOWN = 30
_F = TypeVar("_F", bound=Callable[..., Any])

_log = logging.getLogger(__name__)


class Resolved(NamedTuple):
    """A branch and a graph version of it; None is the branch's head at the time of loading."""

    branch: str
    version: int | None


@dataclass(frozen=True)
class Branch:
    """A graph branch, its parent, and the parent's version it was forked at (`main`: None)."""

    name: str
    parent: str | None
    parent_version: int | None
    created_at: datetime | None


@dataclass(frozen=True)
class Tag:
    """A tag: a name for one graph version of one branch."""

    name: str
    branch: str
    version: int
    created_at: datetime | None = None


def list_branches(storage: Storage) -> list[Branch]:
    """Return the graph's branches, `main` first, the rest by name.

    Raises:
        GraphNotFoundError: no graph is there.
        StorageError: the store failed.
    """
    with translated("Listing the branches of __manifest"):
        listed = snapshot.open_main(storage).branches.list()
    branches = [
        Branch(
            name=name,
            parent=ref.get("parent_branch") or layout.MAIN,
            parent_version=ref.get("parent_version"),
            created_at=_from_seconds(ref.get("create_at")),
        )
        for name, ref in sorted(listed.items())
        if name != layout.SCHEMA_LOCK
    ]
    return [Branch(layout.MAIN, None, None, None), *branches]


def list_tags(storage: Storage) -> list[Tag]:
    """Return the graph's tags (Lance tags of `__manifest`) by name.

    Raises:
        GraphNotFoundError: no graph is there.
        StorageError: the store failed.
    """
    return _tags(snapshot.open_main(storage))


def _tags(main: LanceDataset) -> list[Tag]:
    with translated("Listing the tags of __manifest"):
        listed = main.tags.list()
    return [
        Tag(
            name, tag.get("branch") or layout.MAIN, int(tag["version"]), _utc(tag.get("created_at"))
        )
        for name, tag in sorted(listed.items())
    ]


def identifier_of(storage: Storage, name: str) -> str | None:
    """Return what tells a branch from others of its name, None where it isn't there or is `main`.

    Raises:
        GraphNotFoundError, StorageError: as the names say.
    """
    if name == layout.MAIN:
        return None
    try:
        return snapshot.branch_ref(storage, name).identifier
    except BranchNotFoundError:
        return None


def all_locations(storage: Storage, *snapshots: snapshot.Snapshot) -> list[str]:
    """Return the places of all tables that any branch, or one of the snapshots, knows.

    Raises:
        GraphNotFoundError: no graph is there.
        StorageError: the store failed.
    """
    locations = {location for given in snapshots for location in given.locations.values()}
    for _, head in readable(storage):
        locations |= set(head.locations.values())
    return sorted(locations)


def readable(storage: Storage) -> Iterator[tuple[Branch, snapshot.Snapshot]]:
    """Yield the branches with their heads, without those that are half made or half deleted.

    One of these has a ref, and the files of its `__manifest` are gone; what reads all branches goes
    on without it.

    Raises:
        GraphNotFoundError: no graph is there.
        CorruptManifestError, UnsupportedManifestVersion: a branch's rows can't be understood.
        StorageError: the store failed.
    """
    for branch in list_branches(storage):
        try:
            head = snapshot.load(storage, branch.name)
        except (DatasetNotFoundError, VersionNotFoundError, BranchNotFoundError) as error:
            if branch.name == layout.MAIN:
                raise
            _log.warning("branch %s is half made or half deleted: %s", branch.name, error)
            continue
        yield branch, head


def check_pinned(storage: Storage, pinned: snapshot.Snapshot) -> None:
    """Look whether all that a new ref names is there, and stays; called once the ref is there.

    A cleanup that began before can't know the ref. It says which graph versions it removes before
    it looks at the refs, so one of the two notices. A table version goes only after every graph
    version that names it.

    Raises:
        VersionNotFoundError: a version that the ref names is gone, or is being removed.
        StorageError: the store failed.
    """
    branch, number = pinned.branch, pinned.graph_version
    label = f"version {number} of branch {branch}"
    for record in crash_records.others(storage, ""):
        if record.removes(branch, number):
            raise VersionNotFoundError(
                f"A cleanup is removing {label}",
                expected="a version that is kept",
                hint="Take a newer version, or the head",
            )
    places = [(layout.MANIFEST, layout.lance_branch(branch), number)]
    places += [(e.location, e.table_branch, e.table_version) for e in pinned.tables.values()]
    for location, line, version in places:
        if not has_version(storage, location, line, version):
            raise VersionNotFoundError(
                f"A cleanup has removed {label}",
                expected=f"version {version} of {location}",
                hint="Take a newer version, or the head",
            )


def has_version(storage: Storage, location: str, branch: str | None, version: int) -> bool:
    """Return whether a version of a dataset's line has its manifest file; no data is read.

    Raises:
        StorageError: the store failed.
    """
    folder = f"{layout.line(location, branch)}/_versions"
    names = (layout.v2_manifest_name(version), f"{version}.manifest")
    return any(storage.head(f"{folder}/{name}") is not None for name in names)


def resolve(
    storage: Storage,
    branch: str = layout.MAIN,
    branch_given: bool = False,
    version_as_of: str | None = None,
    timestamp_as_of: str | None = None,
) -> Resolved:
    """Return the branch and version that a read's options mean; once per load.

    Args:
        storage: The graph.
        branch: The option `branch`.
        branch_given: Whether the user gave it: a commit id or tag of another branch is then
            refused.
        version_as_of: A graph version, a commit id (26-character ULID) or a tag.
        timestamp_as_of: ISO 8601 with a zone, or epoch milliseconds.

    Raises:
        GraphNotFoundError: no graph is there.
        BranchNotFoundError: the graph has no such branch; what exists is listed.
        VersionNotFoundError: no such version, commit or tag, or no commit at or before the time.
        OptionError: a malformed time or zone, or a commit id or tag of another branch.
        StorageError: the store failed.
    """
    if version_as_of is not None:
        return _resolve_version(storage, branch, branch_given, version_as_of.strip())
    if timestamp_as_of is not None:
        return _resolve_time(storage, branch, timestamp_as_of, "timestampAsOf")
    return Resolved(branch, None)


def named(storage: Storage, ref: int | str | datetime) -> Resolved:
    """Return what the text of a ref means; on the driver.

    A branch's name is its head, `branch@7` a version on its lineage, `branch@2024-01-31T12:00:00Z`
    the last one at or before that time; else a tag or a commit id, or a version or time of `main`.

    Raises:
        GraphNotFoundError: no graph is there.
        BranchNotFoundError, VersionNotFoundError: nothing of that name; what exists is listed.
        OptionError: a malformed time, or one without a zone.
        StorageError: the store failed.
    """
    text = str(ref).strip()
    if text in {branch.name for branch in list_branches(storage)}:
        return Resolved(text, None)
    branch, mark, version = text.rpartition("@")
    if times.is_like_time(version):
        return _resolve_time(storage, branch if mark else layout.MAIN, version, "The ref")
    if mark:
        return _resolve_version(storage, branch, True, version)
    if _NUMBER.match(text):
        return _resolve_version(storage, layout.MAIN, False, text)
    resolved = _named(storage, text)
    return _existing(storage, resolved, resolved.branch)


def _resolve_version(storage: Storage, branch: str, branch_given: bool, text: str) -> Resolved:
    if _NUMBER.match(text):
        return _existing(storage, _on_lineage(storage, branch, int(text)), branch)
    named = _named(storage, text)
    if branch_given and named.branch != branch:
        raise OptionError(
            f"versionAsOf {text[:60]!r} is on branch {named.branch}",
            expected=f"a version of branch {branch}",
            hint="Leave branch out: a commit id or a tag names its branch",
        )
    return _existing(storage, named, named.branch)


def _named(storage: Storage, text: str) -> Resolved:
    """Return what a commit id or a tag names."""
    from omnigraph_spark.history import commits

    tags = list_tags(storage)
    for tag in tags:
        if tag.name == text:
            return Resolved(tag.branch, tag.version)
    if _COMMIT_ID.match(text):
        commit = commits.find_commit(storage, text)
        if commit is not None:
            return Resolved(commit.manifest_branch or layout.MAIN, commit.manifest_version)
    known = [*(branch.name for branch in list_branches(storage)), *(tag.name for tag in tags)]
    names = ", ".join(tag.name for tag in tags[:_SHOWN])
    raise VersionNotFoundError(
        f"The graph has no version, commit or tag {text[:60]!r}",
        expected="a branch, a graph version (a number), a commit id (26 characters)"
        + (f", or one of the tags {names}" if names else "; there are no tags"),
        hint=did_you_mean(text, known, "The metadata frame `history` lists versions and commits"),
    )


def _on_lineage(storage: Storage, branch: str, version: int) -> Resolved:
    """Return the branch that holds a version of `branch`'s lineage: below the fork its parent."""
    if branch == layout.MAIN:  # has no parent
        return Resolved(branch, version)
    branches = {listed.name: listed for listed in list_branches(storage)}
    if branch not in branches:
        raise BranchNotFoundError.named(branch, [*branches])
    current = branches[branch]
    while current.parent is not None and version < (current.parent_version or 0):
        current = branches.get(current.parent, branches[layout.MAIN])
    return Resolved(current.name, version)


def on_lineage(storage: Storage, branch: str, version: str) -> Resolved:
    """Return what `version` means on a branch's lineage: the branch or one of its ancestors.

    It is a graph version, a commit id, a tag, or a time.

    Raises:
        VersionNotFoundError: no such version, commit or tag, or no commit at or before the time.
        OptionError: it is a version of another branch, or made after this one began; or a
            malformed time.
    """
    if times.is_like_time(version):
        return _resolve_time(storage, branch, version, "The version")
    ref = resolve(storage, branch, version_as_of=version)
    assert ref.version is not None
    try:
        inherited = resolve(storage, branch, version_as_of=str(ref.version))
    except VersionNotFoundError:
        inherited = None
    if ref != inherited:
        raise OptionError(
            f"{version[:60]!r} is version {ref.version} of {ref.branch}, which branch {branch} "
            "never had",
            expected=f"a version of {branch}, or of a parent before the branch began",
        )
    return ref


def _existing(storage: Storage, ref: Resolved, requested: str) -> Resolved:
    """Return `ref` if that version is there.

    Raises:
        VersionNotFoundError: it isn't; the versions that are there are listed.
        GraphNotFoundError: no graph is there.
    """
    try:
        storage.dataset(layout.MANIFEST, ref.branch, ref.version)
    except StorageError as error:
        # Lance's words for a missing version 0 are those of a race between two creators.
        if not isinstance(error, DatasetNotFoundError) and ref.version != 0:
            raise
        snapshot.open_main(storage)  # where no graph is, that is what to say
        versions = kept_versions(storage, layout.MANIFEST, ref.branch)
        raise VersionNotFoundError(
            f"Branch {requested} has no graph version {ref.version}",
            expected=f"one of {_ranges(versions)} on branch {ref.branch}" if versions else None,
            hint="The metadata frame `history` lists versions and commits",
        ) from error
    return ref


def _resolve_time(storage: Storage, branch: str, text: str, option: str) -> Resolved:
    from omnigraph_spark.history import commits

    head = snapshot.head_version(storage, branch)
    line = commits.complete(storage, branch, head, actors=False)
    commit = times.last_at(line, branch, text, option)
    if commit is line[-1]:  # by its number: a publish meanwhile is after the time
        return Resolved(branch, head)
    return _existing(storage, _on_lineage(storage, branch, commit.manifest_version), branch)


def kept_versions(storage: Storage, location: str, branch: str | None) -> list[int]:
    """Return the versions of a dataset's branch that are there, ascending; lists file names only.

    Raises:
        StorageError: the store failed.
    """
    branch = layout.lance_branch(branch)
    prefix = location if branch is None else f"{location}/tree/{branch}"
    versions = []
    for info in storage.list(f"{prefix}/_versions"):
        stem, dot, suffix = info.path.rpartition("/")[2].partition(".")
        if dot and suffix == "manifest" and stem.isdigit():
            number = int(stem)
            versions.append(0xFFFFFFFFFFFFFFFF - number if len(stem) == 20 else number)
    return sorted(versions)


def _ranges(numbers: Iterable[int]) -> str:
    """Return ascending numbers as text, runs as `3-7`, at most some of them."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    shown = [str(low) if low == high else f"{low}-{high}" for low, high in runs[-_SHOWN:]]
    return ", ".join(["…", *shown] if len(runs) > _SHOWN else shown)


def _from_seconds(seconds: int | None) -> datetime | None:
    return None if seconds is None else datetime(1970, 1, 1) + timedelta(seconds=seconds)


def _utc(moment: datetime | None) -> datetime | None:
    return None if moment is None else moment.astimezone(timezone.utc).replace(tzinfo=None)


def settled(act: str, kind: str, *, made: bool) -> Callable[[_F], _F]:
    """Let a function that makes or removes a ref deny nothing that it did; a decorator.

    The function takes the storage and the name of the ref, a branch or a tag (`kind`). If it ends
    in an error of the store, it is looked whether the ref is there. One that is gone is removed:
    `check` finds what is left of it. One that is there may lack what comes after it: that is an
    outcome that nobody knows. Otherwise the error stands.
    """

    def around(function: _F) -> _F:
        @wraps(function)
        def call(storage: Storage, name: str, *rest: Any, **more: Any) -> Any:
            try:
                return function(storage, name, *rest, **more)
            except StorageError as error:
                listed = _is_listed(storage, act, kind, name, error)
                if made and listed:
                    raise _unsure(act, kind, name, "it is there", error) from error
                if made or listed:
                    raise
                _log.warning("%s %s is gone; after that: %s", kind, name, error)
                return None

        return cast(_F, call)

    return around


def _is_listed(storage: Storage, act: str, kind: str, name: str, error: StorageError) -> bool:
    try:
        listed = list_branches(storage) if kind == "branch" else list_tags(storage)
    except OmnigraphError as second:
        raise _unsure(act, kind, name, "the store doesn't answer", error) from second
    return any(ref.name == name for ref in listed)


def _unsure(
    act: str, kind: str, name: str, reason: str, error: StorageError
) -> PublishOutcomeUnknown:
    return PublishOutcomeUnknown(
        "",
        reason,
        cause=type(error).__name__,
        of=f"{act} {kind} {name}",
        hint=f"Look whether the {kind} is listed; if it is, it may be deleted, and made again",
    )
