"""Spark's side of a write: plan on the driver, stage in tasks, commit or abort on the driver.

Spark makes the writer in one process, pickles it to the tasks, and to another process for `commit`
or `abort` (fact 3): whatever these need is planned in the constructor or travels in the messages.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage

from omnigraph_spark import options
from omnigraph_spark.errors import SchemaMismatchError, StorageError, at_spark
from omnigraph_spark.integrity.screen import Screen
from omnigraph_spark.options import WriteOptions
from omnigraph_spark.spark import catalog, field_metadata, frame_plan
from omnigraph_spark.spark.frame_plan import FramePlan
from omnigraph_spark.storage import layout
from omnigraph_spark.storage.store import Storage
from omnigraph_spark.write import staging
from omnigraph_spark.write.commit import bulk, commit
from omnigraph_spark.write.plan import WritePlan
from omnigraph_spark.write.tasks import routing, stage
from omnigraph_spark.write.tasks.stage import StagedTable

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

_log = logging.getLogger(__name__)


@dataclass
class OmnigraphCommitMessage(WriterCommitMessage):
    """What one task hands to the commit: JSON text alone, no handles and no secrets."""

    text: str

    @classmethod
    def of(cls, partition: int, staged: Sequence[StagedTable]) -> OmnigraphCommitMessage:
        """Return the message of the task that wrote a partition."""
        return cls(json.dumps({"partition": partition, "staged": stage.to_json(staged)}))

    def partition(self) -> int:
        """Return the number of the partition that was written."""
        return int(json.loads(self.text)["partition"])

    def staged(self) -> list[StagedTable]:
        """Return what the task staged."""
        return stage.from_json(json.loads(self.text)["staged"])


class OmnigraphWriter(DataSourceArrowWriter):
    """Write a table frame or a whole-graph frame in one commit."""

    def __init__(self, schema: StructType, raw: Mapping[str, str], overwrite: bool) -> None:
        """Plan the write; on the driver, once per write. Nothing is written.

        Raises:
            OptionError, UnsupportedError: the options, or the catalog table, don't allow the write.
            SchemaMismatchError, IntegrityError, TableNotFoundError: the frame doesn't fit.
            ExpectedVersionMismatch: a table isn't where the frame or the options expect it.
            UnsupportedManifestVersion, RecoveryPendingError, StorageError: the graph can't be
                written.
        """
        staged_text = raw.get(bulk.STAGE_OPTION)
        self._staging = staged_text is not None
        if staged_text is not None:
            storage = Storage.at(raw["path"], options.storage_options(raw))
            self._framed = frame_plan.restored(bulk.restored(storage, staged_text), schema)
            return
        if "path" not in raw:
            framed = _plan_insert(schema, overwrite)
        else:
            framed = frame_plan.plan_frame(WriteOptions.of(options.parse(raw), overwrite), schema)
        if any(target.version for target in framed.plan.targets.values()):
            planned_at = staging.begin(framed.plan.storage, framed.plan.publish_id)
            framed = replace(framed, plan=replace(framed.plan, planned_at=planned_at))
        self._framed = framed

    @at_spark
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Stage the rows of one task; on an executor, again from the beginning on a retry.

        Raises:
            IntegrityError, SchemaMismatchError, TableNotFoundError: rows that don't fit.
            StorageError: the store failed. Files written so far stay unreferenced.
        """
        table = layout.fnv1a64(min(self._framed.plan.targets)) if self._staging else "part"
        return OmnigraphCommitMessage.of(*staged_here(self._framed, iterator, table))

    @at_spark
    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Commit all tables in one publish; on the driver, in a process of its own.

        Raises:
            StorageError: two messages are of one task; nothing was published, their files are
                deleted.
            OmnigraphError: as `write.commit.commit`.
        """
        ours = own_messages(messages)
        staged = [part for message in ours for part in message.staged()]
        plan = self._framed.plan
        if self._staging:
            refuse_doubles(plan, ours, staged)
            bulk.leave_messages(plan, staged)
            return
        plan = self._framed.narrowed({part.table_key for part in staged})
        refuse_doubles(plan, ours, staged)
        try:
            done = commit.commit(plan, staged)
        finally:
            staging.end(plan.storage, plan.publish_id)
        _log.info("write %s: graph version %d", done.publish_id, done.graph_version)

    @at_spark
    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Clean up after a failed job; on the driver. Files go only if a task failed."""
        ours = own_messages(messages)
        staged = [part for message in ours for part in message.staged()]
        plan = self._framed.plan
        commit.abort(plan, staged, complete=len(ours) == len(messages))
        if not self._staging:  # the record of many frames is that of the call that stages them
            staging.end(plan.storage, plan.publish_id)


def _plan_insert(schema: StructType, overwrite: bool) -> FramePlan:
    """Plan an INSERT through a catalog table, whose columns may be older than the graph's."""
    declared = catalog.declared_columns(schema)
    parsed = WriteOptions.of(options.parse(catalog.write_options(schema)), overwrite)
    try:
        framed = frame_plan.plan_frame(parsed, schema, declared)
    except SchemaMismatchError as error:
        raise catalog.changed(error, field_metadata.bound_options(schema) or {}) from error
    owned = framed.routing.ownership
    seen = {
        key: schema.names if owned is None else [*owned[key].values()]
        for key in framed.plan.targets
    }
    catalog.refuse_unseen(framed.plan, seen, schema)
    return framed


def staged_here(
    framed: FramePlan, iterator: Iterator[pa.RecordBatch], name: str = "part"
) -> tuple[int, list[StagedTable]]:
    """Stage the rows of the task that calls, and return its partition's number and what it staged.

    `name` is how the task's bad records are called.

    Raises:
        IntegrityError, SchemaMismatchError, TableNotFoundError: rows that don't fit.
        StorageError: the store failed. Files written so far stay unreferenced.
    """
    from pyspark import TaskContext

    plan = framed.plan
    context = TaskContext.get()
    partition = context.partitionId() if context else 0
    screen = Screen(
        plan.integrity, plan.storage.options, plan.publish_id, f"{name}-{partition:05d}"
    )
    batches = routing.route(framed.routing, plan.targets, iterator, screen, plan.settings.exact)
    return partition, stage.stage(plan, batches)


def own_messages(
    messages: Sequence[WriterCommitMessage | None],
) -> list[OmnigraphCommitMessage]:
    """Return the messages of the tasks that succeeded."""
    return [message for message in messages if isinstance(message, OmnigraphCommitMessage)]


def refuse_doubles(
    plan: WritePlan, messages: Sequence[OmnigraphCommitMessage], staged: Sequence[StagedTable]
) -> None:
    """Refuse two results of one partition, which would double its rows; their files are deleted.

    Raises:
        StorageError: there are two.
    """
    partitions = [message.partition() for message in messages]
    if len(set(partitions)) == len(partitions):
        return
    commit.abort(plan, staged, complete=False)
    doubled = next(p for p in partitions if partitions.count(p) > 1)
    raise StorageError(
        f"Spark handed over two results of partition {doubled}, which would double its rows",
        expected="one result per partition",
        hint="Nothing was published. Write again",
    )
