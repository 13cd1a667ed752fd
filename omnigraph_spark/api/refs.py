"""What `OmniGraph` offers on branches, tags and versions; every method is one call below."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any, cast

from omnigraph_spark.storage import layout

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from omnigraph_spark.graph import OmniGraph
    from omnigraph_spark.merge.merge import Merged
    from omnigraph_spark.options import WriteOptions
    from omnigraph_spark.refs.refs import Branch, Tag
    from omnigraph_spark.storage.store import Storage
    from omnigraph_spark.write.commit.commit import Committed


class RefMethods:
    """A part of `OmniGraph`, in a class of its own for its length."""

    @abstractmethod
    def _store(self) -> Storage: ...

    @abstractmethod
    def _write_options(self, mode: str, branch: str, given: Mapping[str, Any]) -> WriteOptions: ...

    def _graph(self) -> OmniGraph:
        return cast("OmniGraph", self)

    def branches(self) -> list[Branch]:
        """Return the branches, `main` first, with what each was made from.

        Raises:
            GraphNotFoundError, StorageError: as the names say.
        """
        from omnigraph_spark.refs import refs

        return refs.list_branches(self._store())

    def create_branch(self, name: str, from_ref: int | str | datetime = layout.MAIN) -> None:
        """Make a branch; tables are shared with what it is made from until they are written to.

        `from_ref` is a branch (its head), `dev@7`, `dev@2024-01-31T12:00:00Z`, a tag, a commit id,
        or a version or time of `main`.

        Raises:
            OptionError: the name is hostile, reserved by the engine, or taken.
            BranchNotFoundError, VersionNotFoundError: the ref isn't there.
            UnsupportedManifestVersion, UnsupportedError: the graph can't be written.
            RecoveryPendingError: another engine's unfinished write stays for ten seconds.
            StorageError: the store failed; calling it again finishes it.
        """
        from omnigraph_spark.refs import branches as manage
        from omnigraph_spark.refs import refs
        from omnigraph_spark.write.plan import Settings

        storage = self._store()
        grace = Settings().orphan_grace_seconds
        manage.create_branch(storage, name, refs.named(storage, from_ref), grace)

    def delete_branch(self, name: str) -> None:
        """Delete a branch and the forks of its tables; writers that are committing are waited for.

        Raises:
            BranchNotFoundError: no such branch.
            UnsupportedError: it is `main`, others descend from it, or a tag names a version of it.
            StorageError: the store failed; calling it again finishes it.
        """
        from omnigraph_spark.refs import branches as manage

        manage.delete_branch(self._store(), name)

    def tags(self) -> list[Tag]:
        """Return the tags by name.

        Raises:
            GraphNotFoundError, StorageError: as the names say.
        """
        from omnigraph_spark.refs import refs

        return refs.list_tags(self._store())

    def tag(self, name: str, ref: int | str | datetime = layout.MAIN) -> Tag:
        """Name a version of all tables, and keep it from every cleanup until the tag is deleted.

        Raises:
            OptionError: the name is malformed, taken, or could be read as another ref.
            BranchNotFoundError, VersionNotFoundError: the ref isn't there.
            StorageError: the store failed; there is no tag yet.
        """
        from omnigraph_spark.refs import refs, tags

        storage = self._store()
        return tags.create_tag(storage, name, refs.named(storage, ref))

    def delete_tag(self, name: str) -> None:
        """Delete a tag; the versions that it kept stay until a cleanup.

        Raises:
            VersionNotFoundError: no such tag.
            StorageError: the store failed; calling it again finishes it.
        """
        from omnigraph_spark.refs import tags

        tags.delete_tag(self._store(), name)

    def restore(
        self, version: int | str | datetime, *, branch: str = layout.MAIN, **write_options: Any
    ) -> Committed:
        """Make the content of an older version of a branch its newest, all tables in one commit.

        `version` is a graph version, commit id or tag of the branch's own past, or a time. Old
        versions stay.

        Raises:
            VersionNotFoundError, OptionError: no such version, or the branch never had it.
            ExpectedVersionMismatch: another writer published to the branch meanwhile; nothing
            changed.
            PublishOutcomeUnknown: the store never said; nothing was deleted.
            StorageError: the store failed; nothing was published.
        """
        from omnigraph_spark.merge import restore

        options = self._write_options("overwrite", branch, write_options)
        return restore.restore(self._store(), options, str(version))

    def diff(
        self,
        before: int | str | datetime,
        after: int | str | datetime = layout.MAIN,
        table: str | None = None,
    ) -> DataFrame:
        """Return the rows that differ between two refs: `_table`, `_change_type`, the row.

        `_change_type` is `insert`, `delete`, `update_preimage` or `update_postimage`. Refs are as
        in `create_branch`. Both are pinned now; nothing is compared before the frame is used.

        Raises:
            BranchNotFoundError, VersionNotFoundError, TableNotFoundError: as the names say.
            SchemaMismatchError, UnsupportedError: columns that can't be compared.
        """
        from omnigraph_spark.manifest.snapshot import load
        from omnigraph_spark.merge import diff
        from omnigraph_spark.refs import refs

        storage = self._store()
        old, new = (load(storage, *refs.named(storage, ref)) for ref in (before, after))
        return diff.diff(self._graph(), old, new, table)

    def merge(
        self,
        source: str,
        into: str = layout.MAIN,
        *,
        dry_run: bool = False,
        resolution: str | Mapping[str, str] = "fail",
        **write_options: Any,
    ) -> Merged:
        """Merge a branch into another, row by row, in one commit with two parents.

        Rows that only one side changed since the common ancestor are taken from that side. Where
        both changed one, `resolution` decides for all tables or by table key: `ours` (the target's
        row), `theirs` (the source's), `fail`. `dry_run` writes nothing and says what would happen.
        The graph's rules are checked as in a write; the option `integrity` relaxes that.

        Raises:
            MergeConflictError: both changed the same rows, both brought a value that must be
                unique, or edges would be left dangling.
            IntegrityError: the merged graph would break a rule; nothing was published.
            BranchNotFoundError, OptionError, UnsupportedError, SchemaMismatchError: it can't be
                merged.
            ExpectedVersionMismatch: another writer published to `into` meanwhile; nothing was
            published.
            PublishOutcomeUnknown, StorageError: as `write`.
        """
        from omnigraph_spark.merge import merge

        options = self._write_options("overwrite", into, write_options)
        return merge.merge(self._graph(), options, source, dry_run=dry_run, resolution=resolution)

    def fast_forward(self, source: str, into: str = layout.MAIN, **write_options: Any) -> Merged:
        """Merge a branch into one that hasn't moved since it began; else as `merge`.

        Raises:
            UnsupportedError: `into` has moved.
            OmnigraphError: as `merge`.
        """
        from omnigraph_spark.merge import merge

        options = self._write_options("overwrite", into, write_options)
        return merge.merge(self._graph(), options, source, only_fast_forward=True)
