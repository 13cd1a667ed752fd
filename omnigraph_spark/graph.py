"""`OmniGraph`: a thin handle of one graph; every method is one call below or to Spark."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal, overload

from omnigraph_spark import option_values, options
from omnigraph_spark.api.arguments import checked
from omnigraph_spark.api.maintenance import MaintenanceMethods
from omnigraph_spark.api.queries import QueryMethods, view_names
from omnigraph_spark.api.refs import RefMethods
from omnigraph_spark.api.rows import RowMethods
from omnigraph_spark.api.schema_changes import SchemaMethods
from omnigraph_spark.api.staging import StagingMethods
from omnigraph_spark.errors import OmnigraphError, for_people
from omnigraph_spark.options import WriteOptions
from omnigraph_spark.refs import times
from omnigraph_spark.storage import layout
from omnigraph_spark.storage.progress import as_html, as_text, described
from omnigraph_spark.storage.store import normalize_root

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, DataFrameReader, SparkSession

    from omnigraph_spark.maintenance.check import Findings
    from omnigraph_spark.maintenance.repair import Action
    from omnigraph_spark.storage.store import Storage
    from omnigraph_spark.write.commit.commit import Committed

FORMAT = "omnigraph"
_COMMITS = 20


def register(spark: SparkSession) -> None:
    """Make `format("omnigraph")` known to a session, and to the thread that calls it.

    Also SQL's `omnigraph_history` and `omnigraph_diff`. The format needs it only where the package
    isn't installed as Spark expects it, and in threads that a program starts itself to write frames
    which were made elsewhere: Spark looks for the source in the session that is active in the
    thread. Changes no setting: Spark's filter push-down for Python sources is on its own not safe
    (docs/push_down.md).
    """
    from pyspark.errors import AnalysisException

    from omnigraph_spark.spark import table_functions
    from omnigraph_spark.spark.datasource import OmnigraphDataSource

    try:
        spark.dataSource.register(OmnigraphDataSource)
    except AnalysisException as error:  # Spark 4.0, where it has found the source by itself
        if "DATA_SOURCE_ALREADY_EXISTS" not in str(error):
            raise
    _make_active(spark)
    table_functions.register(spark)


def _make_active(spark: SparkSession) -> None:
    """Make a session the active one of this thread, as making any frame from values does.

    In a thread without one `df.write` finds no Python data source.
    """
    spark.createDataFrame([], "id string")


@for_people
@checked
@dataclass(frozen=True)
class OmniGraph(
    RefMethods, QueryMethods, MaintenanceMethods, SchemaMethods, RowMethods, StagingMethods
):
    """A graph at a path, as a Spark session sees it. Holds no connection and no snapshot.

    `storage` are storage options by Lance's keys (`aws_endpoint`), kept out of `repr`.
    """

    spark: SparkSession = field(repr=False)
    uri: str
    storage: Mapping[str, str] = field(default_factory=dict, repr=False)

    def __str__(self) -> str:
        """Return the tables of the newest version as text; reads the graph."""
        return as_text(*self._shown())

    def _repr_html_(self) -> str:
        return as_html(*self._shown())

    def _shown(self) -> tuple[str, tuple[str, ...], list[tuple[object, ...]]]:
        """Return title, column names and a row per table, for a person to see."""
        from omnigraph_spark import schema as engine_schema
        from omnigraph_spark.manifest.snapshot import load

        names = ("table", "rows", "version", "from", "to", "properties")
        try:
            store = self._store()
            snapshot = load(store)
            known = engine_schema.read(store) or engine_schema.EngineSchema()
        except OmnigraphError as error:
            return f"OmniGraph {self.uri}: {error}", names, []
        rows: list[tuple[object, ...]] = []
        for key, entry in sorted(snapshot.tables.items()):
            kind, name = layout.split_table_key(key)
            edge = known.edges.get(name) if kind == layout.EDGE else None
            ends = (edge.source, edge.target) if edge is not None else (None, None)
            table_type = known.of_table(key)
            properties = ", ".join(
                f"{p.name}: {p.type.text()}" for p in (table_type.properties if table_type else ())
            )
            rows.append((key, entry.row_count, entry.table_version, *ends, properties[:200]))
        count = f"{len(rows)} table{'' if len(rows) == 1 else 's'}"
        title = f"OmniGraph {self.uri}, main at version {snapshot.graph_version}, {count}"
        return title, names, rows

    @classmethod
    def for_path(cls, spark: SparkSession, uri: str, **storage: Any) -> OmniGraph:
        """Return the handle of the graph at `uri`; opens nothing, and the graph need not be there.

        >>> OmniGraph.for_path(spark, "s3://bucket/g", aws_region="eu-west-1")  # doctest: +SKIP

        Raises:
            OptionError: a scheme that can't be opened, or user info in the URI.
        """
        prefix = "storage."
        return cls(
            spark,
            normalize_root(uri),
            {
                key.removeprefix(prefix): option_values.as_text(key, value)
                for key, value in storage.items()
            },
        )

    def table(
        self,
        name: str,
        *,
        columns: str | list[str] | None = None,
        branch: str | None = None,
        version: int | str | datetime | None = None,
        metadata_columns: str | list[str] | None = None,
    ) -> DataFrame:
        """Return one table as a frame: `node:Person`, `edge:Knows`, or a bare name that fits one.

        `version` is a graph version, a commit id, a tag, or a time with its zone (the last commit
        at or before it); None reads the newest, pinned from here on.

        The frame narrows itself: what runs on it reads the columns and rows that it needs
        (`narrow`).

        Raises:
            OptionError, TableNotFoundError, GraphNotFoundError, BranchNotFoundError,
            VersionNotFoundError, StorageError: as the names say.
        """
        reader = self._reader(branch, version).option("table", option_values.as_text("table", name))
        if columns is not None:
            reader = reader.option("columns", option_values.as_text("columns", columns))
        if metadata_columns is not None:
            reader = reader.option(
                "metadataColumns", option_values.as_text("metadataColumns", metadata_columns)
            )
        return self._narrowing(reader.load(self.uri))

    def graph(
        self, *, branch: str | None = None, version: int | str | datetime | None = None
    ) -> DataFrame:
        """Return the whole graph as one frame (`unpack` takes it apart); it narrows itself.

        Raises:
            OmnigraphError: as `table`.
        """
        return self._narrowing(self._reader(branch, version).load(self.uri))

    def tables(
        self, *, branch: str | None = None, version: int | str | datetime | None = None
    ) -> DataFrame:
        """Return the tables of a snapshot: key, versions, rows, location.

        Raises:
            OmnigraphError: as `table`.
        """
        return self._reader(branch, version).option("metadata", "tables").load(self.uri)

    def history(self, *, branch: str | None = None) -> DataFrame:
        """Return the commits of a branch: version, commit ids, actor, time, what changed.

        Raises:
            OmnigraphError: as `table`.
        """
        frame = self._reader(branch, None).option("metadata", "history").load(self.uri)
        # Looked for on the object by notebooks; a frame's own shows its columns' names alone.
        object.__setattr__(frame, "_repr_html_", lambda: _history_html(frame, self.uri))
        return frame

    def changes(
        self,
        start: int | str | datetime,
        end: int | str | datetime | None = None,
        table: str | None = None,
        *,
        branch: str = layout.MAIN,
    ) -> DataFrame:
        """Return what each publish of a branch changed, from version `start` to `end` (its head).

        Both ends count. Columns: `_table`, `_change_type`, `_commit_version`, `_commit_timestamp`,
        `_commit_id`, then the row, as in `diff`. `start` and `end` may be commit ids, tags or times
        (a start time: from the first commit at or after it). The versions are pinned now.

        Raises:
            VersionNotFoundError, OptionError, TableNotFoundError: as the names say.
            SchemaMismatchError: a column's type changed within the versions.
        """
        reader = self._reader(branch, None).option("readChangeFeed", "true")
        for name, text in (("starting", str(start)), ("ending", None if end is None else str(end))):
            if text is not None:
                kind = "Timestamp" if times.is_like_time(text) else "Version"
                reader = reader.option(name + kind, text)
        if table is not None:
            reader = reader.option("table", table)
        return reader.load(self.uri)

    def refs(self) -> DataFrame:
        """Return the branches and tags.

        Raises:
            OmnigraphError: as `table`.
        """
        return self._reader(None, None).option("metadata", "refs").load(self.uri)

    def write(
        self,
        frames: Mapping[str, DataFrame],
        *,
        mode: str = "append",
        branch: str = layout.MAIN,
        **write_options: Any,
    ) -> Committed:
        """Write many table frames in one commit; returns its publish id and graph version.

        One ordinary Spark write per table stages its rows, then one publish shows them all. Runs in
        the calling process, which must reach the storage. `write_options` are the data source's
        options by name, as text or as Python values: `mergeSchema=True`, `txnVersion=7`,
        `endpoints={"Knows": ("Person", "Person")}`, `keys={"Person": "name"}`.

        Raises:
            OptionError, SchemaMismatchError, IntegrityError, TableNotFoundError: before anything is
                written.
            ExpectedVersionMismatch, CommitTimeoutError, RowLevelCasContention: others published
                first; nothing was published.
            PublishOutcomeUnknown: the store never said; nothing was deleted.
            PythonException, AnalysisException: a frame failed while it was computed; nothing was
                published.
        """
        from omnigraph_spark.spark import frame_plan
        from omnigraph_spark.spark import frames as frames_module
        from omnigraph_spark.write.commit import bulk

        plan = frame_plan.plan_frames(
            self._write_options(mode, branch, write_options), frames_module.schemas_of(frames)
        )
        by_key = {frame_plan.key_among(plan, name): frame for name, frame in frames.items()}

        return bulk.write_all(plan, self.stager(by_key))

    def stager(self, frames: Mapping[str, DataFrame]) -> Callable[[str, str], None]:
        """Return what stages one table of a bulk write: an ordinary Spark write of its frame."""
        from omnigraph_spark.write.commit import bulk

        keys = sorted(frames)

        def stage_table(key: str, text: str) -> None:
            _make_active(self.spark)
            writer = frames[key].write.format(FORMAT).mode("append")
            writer = writer.options(**self._spark_storage()).option(bulk.STAGE_OPTION, text)
            step = f"OmniGraph.write: stage {key} ({keys.index(key) + 1} of {len(keys)})"
            with described(self.spark, step):
                writer.save(self.uri)

        return stage_table

    def create_views(
        self,
        prefix: str = "",
        *,
        branch: str | None = None,
        version: int | str | datetime | None = None,
    ) -> dict[str, str]:
        """Make one temporary view per table, all of one snapshot; returns {table key: view name}.

        A view is named `{prefix}{type}`; where a node and an edge type share a name,
        `{prefix}{kind}_{type}`. Views of the same names are replaced.

        Raises:
            OmnigraphError: as `table`.
        """
        tables = (
            self.tables(branch=branch, version=version).select("table_key", "version").collect()
        )
        names = view_names(prefix, [row.table_key for row in tables])
        for row in tables:
            pinned = self.table(row.table_key, branch=branch, version=row.version)
            pinned.createOrReplaceTempView(names[row.table_key])
        return names

    def create_catalog_tables(
        self,
        database: str | None = None,
        prefix: str = "",
        *,
        branch: str | None = None,
        version: int | str | datetime | None = None,
    ) -> dict[str, str]:
        """Make one catalog table per table of the graph; returns {table key: catalog table}.

        They are named as the views of `create_views`, in `database` (the current one). Safe to run
        again, and to be run after tables or properties were added, dropped or renamed: a catalog
        table of this graph that lacks nothing stays, another is made again. Runs on the driver; if
        it fails, the catalog tables made so far stay.

        Raises:
            OptionError: a table or view of that name is there and isn't of this graph; nothing was
                made. Also a secret among the storage options: Spark's catalog would show it.
            AnalysisException: with the typed error's text.
        """
        from omnigraph_spark.spark import catalog

        given = {**self._spark_storage(), **_pins(branch, version)}
        keys = self.tables(branch=branch, version=version).select("table_key").collect()
        names = view_names(prefix, [row.table_key for row in keys])
        return catalog.create_tables(self.spark, self.uri, given, database, names)

    @overload
    def check(
        self, *, integrity: Literal[False] = False, branch: str = layout.MAIN
    ) -> Findings: ...

    @overload
    def check(self, *, integrity: Literal[True], branch: str = layout.MAIN) -> DataFrame: ...

    def check(self, *, integrity: bool = False, branch: str = layout.MAIN) -> Findings | DataFrame:
        """Return what dead writers, a move or damage left wrong with the graph; writes nothing.

        Runs on the driver and looks at the files and metadata of all branches. An empty list is a
        sound graph. A writer that is at work right now shows too.

        With `integrity=True` it returns a frame instead, which looks with Spark at the rows of
        `branch`, pinned now: doubled ids, edges without ends, values and numbers of edges that
        break a rule of the schema. Columns: `table_key`, `rule`, `column`, `count` (rows) and
        `samples` (at most ten values); no row is a sound graph.

        Raises:
            GraphNotFoundError, BranchNotFoundError, StorageError: as the names say.
            CorruptManifestError, UnsupportedError: (`integrity`) rules that can't be read.
        """
        if integrity:
            from omnigraph_spark.maintenance import integrity_check

            return integrity_check.integrity(self, self._store(), branch)
        from omnigraph_spark.maintenance.check import Findings, check

        return Findings(check(self._store()))

    def repair(self, dry_run: bool = True, grace_seconds: float = 10.0) -> list[Action]:
        """Repair what `check` found; with `dry_run` say what would be done and write nothing.

        Nothing here is needed before the next write, but for a branch of a moved graph.

        Raises:
            UnsupportedManifestVersion, RecoveryPendingError: the graph can't be written.
            CommitTimeoutError: live writers were at the same tables again and again.
            GraphNotFoundError, StorageError: no graph is there, or the store failed.
        """
        from omnigraph_spark.maintenance.repair import repair

        return repair(self._store(), dry_run, grace_seconds)

    def _store(self) -> Storage:
        from omnigraph_spark.storage.store import Storage

        return Storage.at(self.uri, self.storage)

    def _reader(self, branch: str | None, version: int | str | datetime | None) -> DataFrameReader:
        reader = self.spark.read.format(FORMAT).options(**self._spark_storage())
        return reader.options(**_pins(branch, version))

    def _narrowing(self, frame: DataFrame) -> DataFrame:
        from omnigraph_spark.narrowing.frames import narrowing

        return narrowing(frame)

    def _spark_storage(self) -> dict[str, str]:
        return {f"storage.{key}": value for key, value in self.storage.items()}

    def _write_options(self, mode: str, branch: str, given: Mapping[str, Any]) -> WriteOptions:
        requested = options.of_python({"writeMode": mode, **given, "branch": branch})
        raw = {**self._spark_storage(), **requested, "path": self.uri}
        return WriteOptions.of(options.parse(raw), mode == "overwrite")


def _pins(branch: str | None, version: int | str | datetime | None) -> dict[str, str]:
    """Return the options of a read that say which branch, and which version of it."""
    pins = {} if branch is None else {"branch": branch}
    if version is not None:
        is_time = times.is_like_time(str(version))
        pins["timestampAsOf" if is_time else "versionAsOf"] = str(version)
    return pins


def _history_html(frame: DataFrame, uri: str) -> str:
    rows = frame.orderBy(frame["version"].desc()).limit(_COMMITS).collect()
    return as_html(f"The newest commits of {uri}", frame.columns, [tuple(row) for row in rows])
