"""What `OmniGraph` offers to write on the side first: transactions, and write, audit, publish.

Both are a branch that nobody else writes to, and one publish of all that happened on it. What is
written there, and how often, are ordinary writes; reads there see them.
"""

from __future__ import annotations

import logging
import time
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar, cast

from omnigraph_spark.api.arguments import checked
from omnigraph_spark.errors import (
    ExpectedVersionMismatch,
    IntegrityError,
    MergeConflictError,
    OmnigraphError,
    OptionError,
    PublishOutcomeUnknown,
    SchemaMismatchError,
    for_people,
)
from omnigraph_spark.storage import layout
from omnigraph_spark.storage.ids import new_ulid

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from omnigraph_spark.graph import OmniGraph
    from omnigraph_spark.merge.merge import Merged
    from omnigraph_spark.options import WriteOptions
    from omnigraph_spark.storage.store import Storage
    from omnigraph_spark.write.commit.commit import Committed

PREFIX = "staged/"
"""What the names of these branches begin with; no engine treats such a branch as its own."""

Check = Callable[["Staged"], object]
"""Looks at a staged graph; False, or an exception, refuses it."""

_Self = TypeVar("_Self", bound="_Side")
_log = logging.getLogger(__name__)


class StagingMethods:
    """A part of `OmniGraph`, in a class of its own for its length."""

    @abstractmethod
    def _store(self) -> Storage: ...

    @abstractmethod
    def _write_options(self, mode: str, branch: str, given: Mapping[str, Any]) -> WriteOptions: ...

    def transaction(
        self,
        branch: str = layout.MAIN,
        *,
        txnAppId: str | None = None,
        txnVersion: int | str | None = None,
        **write_options: Any,
    ) -> Transaction:
        """Return a transaction: writes inside its `with` block become one publish at the end.

        Ordinary frame writes take part with `.options(**t.options)`, and so does `t.write({…})`. An
        exception inside leaves nothing. With `txnAppId` and `txnVersion` it is published once,
        however often it is run. `write_options` are those of the publish (`actor`, …).

        Raises:
            OptionError: one of `txnAppId` and `txnVersion` without the other.
        """
        if (txnAppId is None) != (txnVersion is None):
            raise OptionError("txnAppId and txnVersion go together", hint="Give both or neither")
        if txnAppId is not None:
            write_options |= {"txnAppId": txnAppId, "txnVersion": str(txnVersion)}
        return Transaction(cast("OmniGraph", self), branch, write_options)

    def stage(
        self, branch: str = layout.MAIN, *, checks: Sequence[Check] = (), **write_options: Any
    ) -> Staged:
        """Return a staged graph: write to it, audit it, then publish it or drop it.

        In a `with` block it is made at the beginning; at the end it is audited by `checks` and
        published, or dropped if a check or the block fails. By hand: `begin`, `audit`, `publish`,
        `drop`. `write_options` are those of the publish.
        """
        return Staged(cast("OmniGraph", self), branch, checks, write_options)


class _Side:
    """A branch on the side: where it is written to and read from; driver only."""

    def __init__(self, graph: OmniGraph, branch: str, write_options: Mapping[str, Any]) -> None:
        if "graphformat" in {name.lower() for name in write_options}:
            raise OptionError(
                "graphFormat doesn't go with what is staged: a graph is made before that",
                expected="a graph, or none, which is made in form 2",
                hint="Make the graph with a write with graphFormat first",
            )
        self._graph = graph
        self._given = dict(write_options)
        self.target = branch
        self.branch = f"{PREFIX}{new_ulid().lower()}"
        self._begun = False

    @property
    def options(self) -> dict[str, str]:
        """The options by which Spark's reads and writes are of what is staged."""
        return {**self._graph._spark_storage(), "branch": self.branch}

    def begin(self: _Self) -> _Self:
        """Make the branch, from the head of the target; a graph that isn't there is made empty.

        Raises:
            BranchNotFoundError: the target isn't there.
            UnsupportedManifestVersion, RecoveryPendingError: the graph can't be written.
            StorageError: the store failed.
        """
        from omnigraph_spark.history import init

        if layout.lance_branch(self.target) is None:
            init.init_graph(self._graph._store())
        self._graph.create_branch(self.branch, self.target)
        self._begun = True
        return self

    def write(
        self, frames: Mapping[str, DataFrame], *, mode: str = "append", **write_options: Any
    ) -> Committed:
        """Stage table frames; as `OmniGraph.write`, on the side.

        Raises:
            OmnigraphError: as `OmniGraph.write`.
        """
        return self._graph.write(frames, mode=mode, branch=self.branch, **write_options)

    def table(self, name: str, *, columns: str | list[str] | None = None) -> DataFrame:
        """Return a table with what is staged up to now.

        Raises:
            AnalysisException: with the typed error's text.
        """
        return self._graph.table(name, columns=columns, branch=self.branch)

    def graph(self) -> DataFrame:
        """Return the whole graph as a frame, with what is staged up to now.

        Raises:
            AnalysisException: with the typed error's text.
        """
        return self._graph.graph(branch=self.branch)

    def drop(self) -> None:
        """Delete what is staged; the target has none of it.

        Raises:
            StorageError: the store failed; calling it again finishes it.
        """
        if self._begun:
            self._graph.delete_branch(self.branch)
            self._begun = False

    def _is_empty(self) -> bool:
        """Return whether nothing was written."""
        from omnigraph_spark.manifest.snapshot import head_version
        from omnigraph_spark.refs import refs

        storage = self._graph._store()
        own = next(branch for branch in refs.list_branches(storage) if branch.name == self.branch)
        return head_version(storage, self.branch) == own.parent_version

    def _merged(self, *, only_fast_forward: bool) -> Merged:
        from omnigraph_spark.merge import merge

        options = self._graph._write_options("overwrite", self.target, self._given)
        return merge.merge(self._graph, options, self.branch, only_fast_forward=only_fast_forward)

    def _dropped(self) -> None:
        """Drop what is staged after it has been published, or because something else failed."""
        try:
            self.drop()
        except OmnigraphError as error:
            _log.warning("branch %s is left: %s", self.branch, error)


@for_people
@checked
class Transaction(_Side):
    """Writes that become one publish, or nothing; made by `OmniGraph.transaction`.

    `skipped` says that this `txnVersion`, or a later one, was published before: then nothing of
    this one is. `committed` is the publish, None where there was none.
    """

    skipped = False
    committed: Committed | None = None

    @property
    def options(self) -> dict[str, str]:
        """The options by which Spark's reads and writes are of what is staged."""
        # What comes again breaks the rules that it kept the first time, and is thrown away.
        return {**super().options, **({"integrity": "off"} if self.skipped else {})}

    def write(
        self, frames: Mapping[str, DataFrame], *, mode: str = "append", **write_options: Any
    ) -> Committed:
        """Stage table frames; as `OmniGraph.write`, on the side, and nothing where it is `skipped`.

        Raises:
            OmnigraphError: as `OmniGraph.write`.
        """
        if self.skipped:
            from omnigraph_spark.manifest.snapshot import head_version
            from omnigraph_spark.write.commit.commit import Committed

            version = head_version(self._graph._store(), self.target)
            return Committed(self.branch, version, skipped=True)
        return super().write(frames, mode=mode, **write_options)

    def apply(self, changes: DataFrame, **write_options: Any) -> None:
        """Stage what a change feed of any graph has: of each row the last change counts.

        `changes` has the columns of `OmniGraph.changes`, of whole commits. Tables that the graph
        lacks are made; properties are not. Runs two writes, and one job before them.

        Raises:
            SchemaMismatchError: a table lacks a property, or the frame isn't a change feed.
            OmnigraphError: as `OmniGraph.write`.
        """
        from omnigraph_spark.manifest.snapshot import load
        from omnigraph_spark.spark import frames

        if self.skipped:
            return
        known = frames.definitions(changes.schema)
        if known is None or "_change_type" not in changes.columns:
            raise SchemaMismatchError(
                "The frame isn't a change feed, or has lost what _table says of its tables",
                expected="a frame of OmniGraph.changes, or of readStream with readChangeFeed",
                found=", ".join(changes.columns)[:300],
            )
        last = frames.last_changes(changes).persist()
        try:
            written, gone = frames.split_changes(last)
            if written:
                names = {key.partition(":")[2] for key in written}
                endpoints = {n: f"{n}: {a} -> {b}" for n, (a, b) in known.endpoints.items()}
                keys = {n: f"{n}: {key}" for n, key in known.keys.items()}
                for option, texts in (("endpoints", endpoints), ("keys", keys)):
                    text = ", ".join(texts[name] for name in sorted(names & {*texts}))
                    write_options = {option: text, **write_options} if text else write_options
                self.write(written, mode="merge", **write_options)
            tables = load(self._graph._store(), self.branch).tables
            gone = {key: frame for key, frame in gone.items() if key in tables}
            if gone:
                self.write(gone, mode="delete")
        finally:
            last.unpersist()

    def __enter__(self) -> Transaction:
        """Begin; a batch that was published before is known here already, as `skipped`."""
        self.begin()
        self.skipped = self._is_published()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Publish all that was staged, or drop it.

        Raises:
            MergeConflictError: others changed the same rows meanwhile; nothing was published.
            IntegrityError: the graph would break a rule; nothing was published.
            ExpectedVersionMismatch: others published again and again until `commitTimeoutSeconds`.
            PublishOutcomeUnknown, StorageError: as every write.
        """
        try:
            if kind is None and not self.skipped and not self._is_empty():
                self._publish()
        except PublishOutcomeUnknown:
            self._begun = False  # the branch is left: what it has may be needed
            raise
        finally:
            self._dropped()

    def _publish(self) -> None:
        options = self._graph._write_options("overwrite", self.target, self._given)
        end = time.monotonic() + options.commit_timeout_seconds
        while True:
            try:
                done = self._merged(only_fast_forward=False).committed
            except MergeConflictError:
                # Another driver of the same batch may have been first: its rows are these.
                self.skipped = self._is_published()
                if not self.skipped:
                    raise
                return
            except ExpectedVersionMismatch as error:
                if time.monotonic() >= end:
                    raise
                _log.info("%s: %s; merging again", self.branch, error)
                continue
            self.skipped = done is not None and done.skipped
            self.committed = None if self.skipped else done
            return

    def _is_published(self) -> bool:
        from omnigraph_spark.manifest import publisher

        options = self._graph._write_options("overwrite", self.target, self._given)
        storage = self._graph._store()
        return options.txn is not None and publisher.is_published(storage, self.target, options.txn)


@for_people
@checked
class Staged(_Side):
    """A graph that is written to on the side until it is good enough; made by `OmniGraph.stage`."""

    published: Merged | None = None

    def __init__(
        self,
        graph: OmniGraph,
        branch: str,
        checks: Sequence[Check],
        write_options: Mapping[str, Any],
    ) -> None:
        super().__init__(graph, branch, write_options)
        self._checks = checks

    def audit(self, *checks: Check) -> None:
        """Run checks over what is staged: each is called with this object.

        Raises:
            IntegrityError: a check returned False; `rule` is its name.
            Exception: what a check raises.
        """
        for check in checks:
            name = getattr(check, "__name__", "check")
            if check(self) is False:
                raise IntegrityError(
                    f"The staged graph didn't pass the check {name}",
                    found=f"branch {self.branch}",
                    hint="Nothing was published",
                    table_key=None,
                    rule=name,
                    samples=[],
                )

    def publish(self, *, fast_forward: bool = True) -> Merged | None:
        """Publish what is staged in one commit, by the graph's rules; None if nothing is staged.

        With `fast_forward` only if the target hasn't moved meanwhile: what was audited is then what
        is published. Without it the two are merged. What is staged is dropped after it.

        Raises:
            UnsupportedError: the target has moved; what is staged stays.
            IntegrityError, MergeConflictError: the graph would break a rule, or others changed the
                same rows; nothing was published, what is staged stays.
            ExpectedVersionMismatch, PublishOutcomeUnknown, StorageError: as every write.
        """
        if not self._is_empty():
            self.published = self._merged(only_fast_forward=fast_forward)
        self._dropped()
        return self.published

    def __enter__(self) -> Staged:
        """Begin."""
        return self.begin()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Audit what is staged and publish it, or drop it.

        Raises:
            OmnigraphError: as `audit` and `publish`; then it is dropped.
        """
        try:
            if kind is None and self._begun:
                self.audit(*self._checks)
                self.publish()
        except PublishOutcomeUnknown:
            self._begun = False
            raise
        finally:
            self._dropped()
