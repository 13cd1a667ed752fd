"""What `OmniGraph` offers on maintenance; every method is one call below."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, cast

from omnigraph_spark.storage import layout

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, DataFrameReader

    from omnigraph_spark.graph import OmniGraph
    from omnigraph_spark.maintenance.cleanup import Cleaned
    from omnigraph_spark.maintenance.optimize import Optimized
    from omnigraph_spark.maintenance.rounds import Maintained
    from omnigraph_spark.options import WriteOptions
    from omnigraph_spark.storage.store import Storage


class MaintenanceMethods:
    """A part of `OmniGraph`, in a class of its own for its length."""

    @abstractmethod
    def _store(self) -> Storage: ...

    @abstractmethod
    def _reader(
        self, branch: str | None, version: int | str | datetime | None
    ) -> DataFrameReader: ...

    @abstractmethod
    def _write_options(self, mode: str, branch: str, given: Mapping[str, Any]) -> WriteOptions: ...

    def indexes(self, *, branch: str | None = None) -> DataFrame:
        """Return the indices of all tables: name, type, columns, rows covered and not covered.

        Raises:
            OmnigraphError: as `OmniGraph.table`.
        """
        uri = cast("OmniGraph", self).uri
        return self._reader(branch, None).option("metadata", "indexes").load(uri)

    def create_index(
        self,
        table: str,
        column: str,
        type: str = "BTREE",
        *,
        name: str | None = None,
        branch: str = layout.MAIN,
        **write_options: Any,
    ) -> Maintained:
        """Build an index on a column and publish it; readers see it from the next load on.

        `type` is `BTREE`, `BITMAP`, `LABEL_LIST`, `INVERTED`, `NGRAM`, `ZONEMAP` or `BLOOMFILTER`.
        `name` is `{column}_idx` if it isn't given; an index of that name on the same column is
        rebuilt. Writers go on meanwhile; the rows they add are not covered until `optimize` or
        `optimize_indices`. `write_options`: `commitTimeoutSeconds`, `actor`, and their like.

        Raises:
            OptionError: no such type or column, or the name belongs to another column.
            TableNotFoundError, BranchNotFoundError: as the names say.
            UnsupportedError: the column's type has no such index.
            CommitTimeoutError: writers rewrote the table again and again; nothing was published.
            PublishOutcomeUnknown, StorageError: as `write`.
        """
        from omnigraph_spark.maintenance import optimize
        from omnigraph_spark.write.plan import Settings

        options = self._write_options("append", branch, write_options)
        return optimize.create_index(
            self._store(), branch, table, column, type, name, Settings.of(options), options.actor
        )

    def drop_index(
        self, table: str, name: str, *, branch: str = layout.MAIN, **write_options: Any
    ) -> Maintained:
        """Drop an index; queries answer the same, slower.

        Raises:
            OptionError: the table has no index of that name.
            TableNotFoundError, BranchNotFoundError: as the names say.
            CommitTimeoutError, PublishOutcomeUnknown, StorageError: as `create_index`.
        """
        from omnigraph_spark.maintenance import optimize
        from omnigraph_spark.write.plan import Settings

        options = self._write_options("append", branch, write_options)
        return optimize.drop_index(
            self._store(), branch, table, name, Settings.of(options), options.actor
        )

    def optimize_indices(
        self,
        tables: Iterable[str] | None = None,
        *,
        branch: str = layout.MAIN,
        **write_options: Any,
    ) -> Maintained:
        """Let the indices of tables (None: all) cover the rows that were added since; one publish.

        Raises:
            TableNotFoundError, BranchNotFoundError: as the names say.
            CommitTimeoutError, PublishOutcomeUnknown, StorageError: as `create_index`.
        """
        from omnigraph_spark.maintenance import optimize
        from omnigraph_spark.write.plan import Settings

        options = self._write_options("append", branch, write_options)
        return optimize.optimize_indices(
            self._store(), branch, tables, Settings.of(options), options.actor
        )

    def optimize(
        self,
        tables: Iterable[str] | None = None,
        *,
        branch: str = layout.MAIN,
        target_rows: int = 1_048_576,
        deletions: float = 0.1,
        **write_options: Any,
    ) -> Optimized:
        """Compact tables (None: all of the branch itself), cover all rows by indices; one publish.

        Small fragments are gathered into fragments of `target_rows` rows, and fragments of whose
        rows more than the share `deletions` is deleted are rewritten without them. The tasks run on
        Spark. Rows, their ids and versions stay as they are; writers go on meanwhile, and where one
        changes the same fragments, this is the one that starts again.

        Raises:
            OptionError: a size is out of range.
            TableNotFoundError, BranchNotFoundError: as the names say.
            CommitTimeoutError: writers were first again and again; nothing was published.
            PublishOutcomeUnknown, StorageError: as `write`.
        """
        from omnigraph_spark.maintenance import optimize
        from omnigraph_spark.write.plan import Settings

        options = self._write_options("append", branch, write_options)
        return optimize.optimize(
            self._store(),
            branch,
            tables,
            optimize.run_on_spark(cast("OmniGraph", self).spark),
            target_rows=target_rows,
            deletions=deletions,
            settings=Settings.of(options),
            actor=options.actor,
        )

    def cleanup(
        self,
        older_than: timedelta = timedelta(days=7),
        keep: int = 1,
        *,
        dry_run: bool = True,
        force: bool = False,
        commit_timeout_seconds: float = 300.0,
    ) -> Cleaned:
        """Remove versions, files and leftovers that nothing needs; `dry_run` says what would go.

        Of each branch stay the versions that were its newest within `older_than`, and its `keep`
        newest; of all branches what tags, branches and merges need. Everything that those name
        stays, in every table. Under 7 days `force` is needed; under a day, or ten times
        `commit_timeout_seconds` (the longest that any writer of the graph uses), nothing goes.

        Raises:
            OptionError: under 7 days without `force`, or `keep` under 1.
            GraphNotFoundError: no graph is there.
            UnsupportedManifestVersion, RecoveryPendingError: the graph can't be written.
            StorageError: the store failed; what was removed before stays removed.
        """
        from omnigraph_spark.maintenance.cleanup import cleanup

        return cleanup(
            self._store(),
            older_than,
            keep,
            dry_run=dry_run,
            force=force,
            commit_timeout_seconds=commit_timeout_seconds,
        )
