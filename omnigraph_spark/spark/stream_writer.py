"""Spark's side of a streaming write: each batch is one commit, published once whatever is repeated.

Spark makes a writer for every batch and pickles it to the tasks; for `commit` or `abort` it makes
another one, in another process, so the plan that the tasks staged by travels in a message. What
makes a batch the same batch after a restart is the query's id, which the checkpoint keeps, and the
batch's number: both are in the version rows of its publish, and looked for inside of it.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceStreamArrowWriter, WriterCommitMessage

from omnigraph_spark import _faults, options
from omnigraph_spark.errors import GraphNotFoundError, OmnigraphError, UnsupportedError, at_spark
from omnigraph_spark.maintenance import optimize
from omnigraph_spark.manifest.snapshot import load
from omnigraph_spark.options import WriteOptions
from omnigraph_spark.spark import frame_plan
from omnigraph_spark.spark.frame_plan import FramePlan
from omnigraph_spark.spark.writer import (
    OmnigraphCommitMessage,
    own_messages,
    refuse_doubles,
    staged_here,
)
from omnigraph_spark.storage.store import Storage
from omnigraph_spark.write.commit import commit
from omnigraph_spark.write.tasks.stage import StagedTable

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

_QUERY = "sql.streaming.queryId"
_BATCH = "streaming.sql.batchId"

_log = logging.getLogger(__name__)


@dataclass
class OmnigraphStreamMessage(OmnigraphCommitMessage):
    """What one task of a batch hands to the commit; the first partition's also brings the plan.

    There is no secret in it. `done`: the batch was published before, and nothing was staged.
    """

    query: str = ""
    framed: FramePlan | None = None
    done: bool = False


class OmnigraphStreamWriter(DataSourceStreamArrowWriter):
    """Write each batch of a stream in one commit, exactly once."""

    def __init__(
        self, schema: StructType, raw: Mapping[str, str], overwrite: bool, *, plans: bool
    ) -> None:
        """Check the options, and plan the batch where the tasks get their writer (`plans`).

        Raises:
            OptionError, UnsupportedError: the options don't allow the write.
            SchemaMismatchError, IntegrityError, TableNotFoundError: the frame doesn't fit.
            UnsupportedManifestVersion, RecoveryPendingError, StorageError: the graph can't be
                written.
        """
        requested = WriteOptions.of(options.parse(raw), overwrite, stream=True)
        # A stream's frame was read once, and written many times since: it expects no version.
        self._asked = replace(requested, last_writer_wins=True)
        self._storage = Storage.at(requested.path, requested.storage)
        self._schema = schema
        self._framed = self._planned() if plans else None
        self._published = self._batches_seen() if plans else {}

    @at_spark
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Stage the rows of one task; on an executor, again from the beginning on a retry.

        Raises:
            IntegrityError, SchemaMismatchError, TableNotFoundError: rows that don't fit.
            StorageError: the store failed. Files written so far stay unreferenced.
            UnsupportedError: Spark doesn't tell the task which batch it is of.
        """
        from pyspark import TaskContext

        framed = self._framed
        assert framed is not None
        context = TaskContext.get()
        query = context.getLocalProperty(_QUERY) if context else None
        number = context.getLocalProperty(_BATCH) if context else None
        if not query or number is None:
            raise UnsupportedError(
                "Spark doesn't say which query and which batch a task is of",
                expected=f"the properties {_QUERY} and {_BATCH}",
                hint="Use foreachBatch with txnAppId and txnVersion (the streaming page)",
            )
        partition = context.partitionId() if context else 0
        done = self._published.get(_app(query), -1) >= int(number)
        staged: list[StagedTable] = []
        if not done:
            _, staged = staged_here(framed, iterator)
        message = OmnigraphStreamMessage.of(partition, staged)
        bare = replace(framed, plan=replace(framed.plan, storage=Storage.at(self._storage.root)))
        return OmnigraphStreamMessage(message.text, query, None if partition else bare, done)

    @at_spark
    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Commit a batch in one publish, unless it was published before; on the driver.

        Raises:
            StorageError: two messages are of one task; nothing was published.
            OmnigraphError: as `write.commit.commit`.
        """
        ours = own_messages(messages)
        staged = [part for message in ours for part in message.staged()]
        framed = self._framed_of(ours, batchId)
        if framed is None or any(_is_done(message) for message in ours):
            _log.info("batch %d was published before, or has no task", batchId)
            return
        plan = framed.narrowed({part.table_key for part in staged})
        refuse_doubles(plan, ours, staged)
        _faults.point("stream.commit")
        done = commit.commit(plan, staged)
        _log.info("batch %d is graph version %d", batchId, done.graph_version)
        _faults.point("stream.committed")
        every = self._asked.optimize_every
        if every is not None and (batchId + 1) % every == 0:
            self._optimize()

    @at_spark
    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Clean up after a failed batch; files go only if a task failed, and commit didn't run."""
        ours = own_messages(messages)
        framed = self._framed_of(ours, batchId)
        if framed is not None:
            staged = [part for message in ours for part in message.staged()]
            commit.abort(framed.plan, staged, complete=len(ours) == len(messages))

    def _planned(self) -> FramePlan:
        return frame_plan.plan_frame(self._asked, self._schema)

    def _batches_seen(self) -> dict[str, int]:
        """Return, of the newest write of each table, which batch of which application it was."""
        seen: dict[str, int] = {}
        try:
            tables = load(self._storage, self._asked.branch).tables
        except GraphNotFoundError:
            return seen
        for entry in tables.values():
            txn = entry.ours.get("txn")
            if isinstance(txn, list) and len(txn) == 2:
                seen[str(txn[0])] = max(int(txn[1]), seen.get(str(txn[0]), -1))
        return seen

    def _framed_of(
        self, messages: Sequence[OmnigraphCommitMessage], number: int
    ) -> FramePlan | None:
        """Return the plan that the tasks staged by, with this batch's name on it."""
        for message in messages:
            if isinstance(message, OmnigraphStreamMessage) and message.framed is not None:
                plan = replace(message.framed.plan, storage=self._storage)
                plan = replace(plan, txn=(_app(message.query), number), txn_whole=True)
                return replace(message.framed, plan=plan)
        return None

    def _optimize(self) -> None:
        """Compact the tables; the batch is done, so what fails here is for the next time."""
        try:
            optimize.optimize(self._storage, self._asked.branch, None, optimize.run_here)
        except OmnigraphError as error:
            _log.warning("the tables weren't compacted: %s", error)


def _app(query: str) -> str:
    return f"stream:{query}"


def _is_done(message: OmnigraphCommitMessage) -> bool:
    return isinstance(message, OmnigraphStreamMessage) and message.done
