"""The run registry `_graph_runs.lance`: one row per change of status of a Spark write.

Made by the first write with `recordRuns` in a graph whose lineage is a log too; the engine ignores
it. It is a diary: nothing reads it to decide anything, and a failure to write it never fails the
write.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import datetime, timezone
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from omnigraph_spark.errors import OmnigraphError
from omnigraph_spark.manifest import formats
from omnigraph_spark.storage import append_log, layout
from omnigraph_spark.storage.append_log import AppendLog
from omnigraph_spark.storage.store import Storage

RUNNING = "running"
PUBLISHED = "published"
FAILED = "failed"
ABORTED = "aborted"

RUNS = AppendLog(
    layout.GRAPH_RUNS,
    pa.schema(
        [
            pa.field("run_id", pa.utf8(), nullable=False),
            pa.field("target_branch", pa.utf8(), nullable=False),
            pa.field("run_branch", pa.utf8(), nullable=False),
            pa.field("base_snapshot_id", pa.utf8(), nullable=False),
            pa.field("base_manifest_version", pa.uint64(), nullable=False),
            pa.field("operation_hash", pa.utf8()),
            pa.field("status", pa.utf8(), nullable=False),
            pa.field("published_snapshot_id", pa.utf8()),
            pa.field("created_at", pa.timestamp("us"), nullable=False),
            pa.field("updated_at", pa.timestamp("us"), nullable=False),
        ]
    ),
)
RUN_ACTORS = AppendLog(
    layout.GRAPH_RUN_ACTORS,
    pa.schema(
        [
            pa.field("run_id", pa.utf8(), nullable=False),
            pa.field("actor_id", pa.utf8(), nullable=False),
            pa.field("created_at", pa.timestamp("us"), nullable=False),
        ]
    ),
)
# A run's first row is looked for here before the whole log is read.
_NEAR_ROWS = 32

_log = logging.getLogger(__name__)


def start_run(
    storage: Storage,
    *,
    run_id: str,
    branch: str,
    base_version: int,
    base_commit_id: str | None,
    operation_hash: str | None,
    actor: str | None,
) -> None:
    """Note that a write to `branch` has begun; on the driver, once per write, never raises.

    Args:
        storage: The graph; a log that isn't there is made.
        run_id: The run's ULID.
        branch: Target of the write; Spark writes have no branch of their own for the run.
        base_version: Graph version that the write began from.
        base_commit_id: Graph commit of that version; None (a gap in the lineage) becomes "".
        operation_hash: The idempotency key, where the write has one.
        actor: Who writes.
    """

    def note() -> None:
        now = _now()
        if actor is not None:
            row = {"run_id": run_id, "actor_id": actor, "created_at": now}
            append_log.append(storage, RUN_ACTORS, RUN_ACTORS.rows([row]))
        row = {
            "run_id": run_id,
            "target_branch": branch,
            "run_branch": branch,
            "base_snapshot_id": base_commit_id or "",
            "base_manifest_version": base_version,
            "operation_hash": operation_hash,
            "status": RUNNING,
            "published_snapshot_id": None,
            "created_at": now,
            "updated_at": now,
        }
        append_log.append(storage, RUNS, RUNS.rows([row]))

    _best_effort(storage, f"the start of run {run_id}", note)


def finish_run(
    storage: Storage, run_id: str, status: str, published_commit_id: str | None = None
) -> None:
    """Note a run's end: `published`, `failed` or `aborted`; on the driver, never raises.

    A run whose start was not noted is left out, since its base isn't known; so is an end that is
    noted already.
    """

    def note() -> None:
        rows = _rows_of(storage, run_id)
        first = next((row for row in rows if row["status"] == RUNNING), None)
        if first is None:
            _log.warning("run %s has no first row, its end (%s) is not noted", run_id, status)
            return
        if any(row["status"] == status for row in rows):
            return
        row = {
            **first,
            "status": status,
            "published_snapshot_id": published_commit_id,
            "updated_at": _now(),
        }
        append_log.append(storage, RUNS, RUNS.rows([row]))

    _best_effort(storage, f"the end of run {run_id}", note)


def read_runs(storage: Storage) -> pa.Table:
    """Return all rows of the registry, oldest change first, `actor_id` as the last column.

    Raises:
        StorageError: the store failed. A graph without the registry has no rows.
    """
    rows = append_log.read(storage, RUNS)
    if rows is None:
        rows = RUNS.schema.empty_table()
    actors = append_log.read(storage, RUN_ACTORS)
    if actors is None:
        actors = RUN_ACTORS.schema.empty_table()
    positions = pc.index_in(rows["run_id"], actors["run_id"].combine_chunks())
    rows = rows.append_column("actor_id", pc.take(actors["actor_id"], positions))
    # `running` before the ends that a run may come to within the same microsecond.
    return rows.sort_by([("updated_at", "ascending"), ("status", "descending")])


def _rows_of(storage: Storage, run_id: str) -> list[dict[str, Any]]:
    run_rows: list[dict[str, Any]] = []
    for newest in (_NEAR_ROWS, None):
        rows = append_log.read(storage, RUNS, newest=newest)
        run_rows = [] if rows is None else rows.filter(pc.equal(rows["run_id"], run_id)).to_pylist()
        if any(row["status"] == RUNNING for row in run_rows):
            break
    return run_rows


def _best_effort(storage: Storage, event: str, note: Callable[[], None]) -> None:
    try:
        if not formats.of_graph(storage).has_lineage:
            note()
    except OmnigraphError as error:
        _log.warning("%s was not noted in %s: %s", event, layout.GRAPH_RUNS, error)


def _now() -> datetime:
    return datetime.now(timezone.utc).replace(tzinfo=None)
