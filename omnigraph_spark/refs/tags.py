"""Tags: names for graph versions that protect every table version they pin; on the driver.

A tag of the graph is a Lance tag of `__manifest`, plus one on each table version of the tagged
snapshot, so that no cleanup, not even the engine's, takes those away. The tag of
`__manifest` is made last and removed first: while it is there, all it needs is protected. The
tables' tags carry the name and the tagged version, so that two that make one tag at the same time
don't take each other's away.
"""

from __future__ import annotations

import contextlib
import logging
import re
from datetime import datetime

from omnigraph_spark import _faults
from omnigraph_spark.errors import (
    BranchNotFoundError,
    OptionError,
    StorageError,
    VersionNotFoundError,
)
from omnigraph_spark.manifest.snapshot import Snapshot, TableEntry, load, open_main
from omnigraph_spark.manifest.writable import open_for_writing
from omnigraph_spark.refs import refs
from omnigraph_spark.refs.refs import Resolved, Tag
from omnigraph_spark.storage import layout
from omnigraph_spark.storage.lance_errors import (
    DatasetNotFoundError,
    Outcome,
    outcome_of,
    translated,
)
from omnigraph_spark.storage.store import Storage

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,99}\Z")
_LIKE_A_VERSION = re.compile(r"\d+\Z|[0-7][0-9A-HJKMNP-TV-Z]{25}\Z")
_OURS = re.compile(r"omnigraph-(?P<tag>.+)-[0-9a-f]{16}-\d+\Z")

_log = logging.getLogger(__name__)


@refs.settled("making", "tag", made=True)
def create_tag(storage: Storage, name: str, ref: Resolved) -> Tag:
    """Name a graph version; it and the table versions that it pins stay until the tag is deleted.

    Raises:
        OptionError: the name is malformed, reads like a version, commit id or branch, or is taken.
        VersionNotFoundError, BranchNotFoundError: the ref isn't there, or a cleanup or the deletion
            of its branch took it away meanwhile; the tag is then removed again.
        UnsupportedManifestVersion, UnsupportedError: the graph can't be written.
        StorageError: the store failed. Tags of tables may be left, which hinder nothing; making the
            tag again, or deleting it, takes them along.
    """
    _check_name(storage, name)
    origin = refs.identifier_of(storage, ref.branch)
    manifest = open_for_writing(storage, layout.MAIN)
    snapshot = load(storage, ref.branch, ref.version)
    own = _table_tag(name, snapshot.branch, snapshot.graph_version)
    at = (layout.lance_branch(snapshot.branch), snapshot.graph_version)
    try:
        for entry in snapshot.tables.values():
            _tag_table(storage, entry, own)
        _faults.point("tag.tables_tagged")
        with translated(f"Making the tag {name} of __manifest"):
            manifest.tags.create(name, at)
    except DatasetNotFoundError as error:
        _untag(storage, name)
        raise VersionNotFoundError(
            f"A cleanup has removed version {at[1]} of branch {snapshot.branch}",
            expected="a version that is kept",
            hint="Take a newer version, or the head",
        ) from error
    except StorageError as error:
        if outcome_of(error.__cause__ or error) is not Outcome.CONFLICT:
            raise
        existing = {tag.name: tag for tag in refs.list_tags(storage)}.get(name)
        if existing is None or (existing.branch, existing.version) != (snapshot.branch, at[1]):
            _untag(storage, name, keep=existing)
        raise _taken(name) from error
    _faults.point("tag.made")
    _check_made(storage, name, snapshot, origin)
    return Tag(name, snapshot.branch, snapshot.graph_version, _made_at(storage, name))


def _check_made(storage: Storage, name: str, pinned: Snapshot, origin: str | None) -> None:
    """Look, now that the tag is there, whether what it names still is; else take it back.

    Raises:
        BranchNotFoundError, VersionNotFoundError: it isn't.
        StorageError: the store failed; the tag stays.
    """
    try:
        if refs.identifier_of(storage, pinned.branch) != origin:
            raise BranchNotFoundError(
                f"Branch {pinned.branch} was deleted while the tag {name} was made",
                hint="The tag was removed again",
            )
        refs.check_pinned(storage, pinned)
    except (BranchNotFoundError, VersionNotFoundError):
        made = {tag.name: tag for tag in refs.list_tags(storage)}.get(name)
        if made and (made.branch, made.version) == (pinned.branch, pinned.graph_version):
            delete_tag(storage, name)
        raise


def _made_at(storage: Storage, name: str) -> datetime | None:
    return next((tag.created_at for tag in refs.list_tags(storage) if tag.name == name), None)


@refs.settled("deleting", "tag", made=False)
def delete_tag(storage: Storage, name: str) -> None:
    """Remove a tag and the protection of its table versions; the versions themselves stay for now.

    Raises:
        VersionNotFoundError: the graph has no such tag; what exists is listed.
        StorageError: the store failed; calling this again finishes it.
    """
    listed = {tag.name for tag in refs.list_tags(storage)}
    if name in listed:
        with translated(f"Deleting the tag {name} of __manifest"):
            open_main(storage).tags.delete(name)
    if not _untag(storage, name) and name not in listed:
        raise VersionNotFoundError(
            f"The graph has no tag {name[:60]!r}", expected=", ".join(sorted(listed)[:60]) or "none"
        )


def remove_leftovers(storage: Storage) -> None:
    """Remove tags of tables whose graph tag was never finished; Lance keeps a tagged fork for ever.

    Raises:
        StorageError: the store failed.
    """
    for location, table_tag in leftovers(storage):
        _log.warning("removing the tag %s of %s, which no graph tag needs", table_tag, location)
        _delete_table_tag(storage, location, table_tag)


def leftovers(storage: Storage) -> list[tuple[str, str]]:
    """Return the tags of tables that no graph tag needs, each with where the table is.

    Raises:
        StorageError: the store failed.
    """
    made = [
        (location, found)
        for location in refs.all_locations(storage)
        for found in _table_tags(storage, location)
    ]
    # After the tables' tags: who makes a tag makes that of the graph last.
    listed = {tag.name for tag in refs.list_tags(storage)}
    return [
        (location, found)
        for location, found in made
        if (match := _OURS.match(found)) is not None and match["tag"] not in listed
    ]


def unprotected(storage: Storage, tag: Tag) -> list[str]:
    """Return the tables that lost their tag, by key; none of a tag that isn't of this connector.

    Raises:
        OmnigraphError: what the tag names can't be read.
    """
    snapshot = load(storage, tag.branch, tag.version)
    own = _table_tag(tag.name, tag.branch, tag.version)
    there = {
        key: own in _table_tags(storage, entry.location) for key, entry in snapshot.tables.items()
    }
    return [key for key, has_tag in there.items() if not has_tag] if any(there.values()) else []


def protect(storage: Storage, tag: Tag) -> None:
    """Tag the tables of a graph tag that lost theirs.

    Raises:
        OmnigraphError: what the tag names can't be read, or the store failed.
    """
    own = _table_tag(tag.name, tag.branch, tag.version)
    for entry in load(storage, tag.branch, tag.version).tables.values():
        _tag_table(storage, entry, own)


def named_by_tables(storage: Storage, name: str) -> Tag | None:
    """Return what a graph tag named whose own file is gone, as the tags of tables tell it.

    Raises:
        StorageError: the store failed.
    """
    found = {
        tag
        for location in refs.all_locations(storage)
        for tag in _table_tags(storage, location)
        if (match := _OURS.match(tag)) is not None and match["tag"] == name
    }
    for branch in refs.list_branches(storage):
        for tag in found:
            version = int(tag.rpartition("-")[2])
            if len(found) == 1 and tag == _table_tag(name, branch.name, version):
                return Tag(name, branch.name, version)
    return None


def make_again(storage: Storage, tag: Tag) -> None:
    """Make the graph's own tag again, whose tables have theirs.

    Raises:
        StorageError: the store failed, or the tag is there.
    """
    with translated(f"Making the tag {tag.name} of __manifest"):
        at = (layout.lance_branch(tag.branch), tag.version)
        open_main(storage).tags.create(tag.name, at)


def _check_name(storage: Storage, name: str) -> None:
    if not _NAME.match(name) or ".." in name or name.endswith((".", ".lock")):
        raise OptionError(
            f"{name[:60]!r} is not a valid tag name",
            expected="letters, digits, '.', '-', '_'; at most 100, no '.' or '-' in front",
        )
    if _LIKE_A_VERSION.match(name):
        raise OptionError(
            f"The tag {name} would read like a graph version or a commit id", expected="a name"
        )
    if name in {branch.name for branch in refs.list_branches(storage)}:
        raise OptionError(f"{name} is the name of a branch", expected="another name")
    if name in {tag.name for tag in refs.list_tags(storage)}:
        raise _taken(name)


def _taken(name: str) -> OptionError:
    return OptionError(
        f"Tag {name} is there already",
        expected="another name",
        hint="Delete the tag first to move it to another version",
    )


def _table_tag(name: str, branch: str, version: int) -> str:
    return f"omnigraph-{name}-{layout.fnv1a64(branch)}-{version}"


def _tag_table(storage: Storage, entry: TableEntry, tag: str) -> None:
    main = storage.dataset(entry.location)
    try:
        with translated(f"Making the tag {tag} of {entry.table_key}"):
            main.tags.create(tag, (entry.table_branch, entry.table_version))
    except StorageError as error:
        # The same tag of the same graph version: another writer makes it too, or died making it.
        if outcome_of(error.__cause__ or error) is not Outcome.CONFLICT:
            raise


def _untag(storage: Storage, name: str, keep: Tag | None = None) -> bool:
    """Remove the tables' tags of a graph tag, except those of `keep`; say if there were any."""
    kept_tag = _table_tag(name, keep.branch, keep.version) if keep else None
    removed = False
    for location in refs.all_locations(storage):
        for table_tag in _table_tags(storage, location):
            match = _OURS.match(table_tag)
            if match is not None and match["tag"] == name and table_tag != kept_tag:
                _delete_table_tag(storage, location, table_tag)
                removed = True
    return removed


def _table_tags(storage: Storage, location: str) -> list[str]:
    try:
        main = storage.dataset(location)
    except DatasetNotFoundError:
        return []
    with translated(f"Listing the tags of {location}"):
        return sorted(main.tags.list())


def _delete_table_tag(storage: Storage, location: str, tag: str) -> None:
    with contextlib.suppress(DatasetNotFoundError), translated(f"Deleting a tag of {location}"):
        storage.dataset(location).tags.delete(tag)
