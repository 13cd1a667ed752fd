"""Many frames, one commit: stage table after table, then publish once.

Runs in the process that called `OmniGraph.write`, except `leave_messages`, which is the commit hook
of each staging write and runs in a process of Spark's own. Between them stands an object per table
below `{root}/__staging/{publish_id}/`, which holds the messages of its tasks; the engine ignores
it.
"""

from __future__ import annotations

import base64
import contextlib
import json
import logging
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, replace

import pyarrow as pa

from omnigraph_spark.errors import OmnigraphError, PublishOutcomeUnknown, UnsupportedError
from omnigraph_spark.integrity.rules import Integrity
from omnigraph_spark.storage import layout
from omnigraph_spark.storage.progress import Progress
from omnigraph_spark.storage.store import Storage
from omnigraph_spark.write import staging
from omnigraph_spark.write.commit.commit import Committed, abort, commit
from omnigraph_spark.write.plan import DELETE, Settings, TableTarget, WritePlan
from omnigraph_spark.write.tasks import stage
from omnigraph_spark.write.tasks.stage import StagedTable

STAGE_OPTION = "__stage"
"""The option by which a staging write gets its plan; this package's own, without secrets."""

_log = logging.getLogger(__name__)


def describe(plan: WritePlan, key: str) -> str:
    """Return one table's part of a plan as the text of `STAGE_OPTION`; no secret is in it."""
    target = plan.targets[key]
    schema = base64.b64encode(target.schema.serialize().to_pybytes()).decode("ascii")
    plain = {
        "branch": plan.branch,
        "publish_id": plan.publish_id,
        "mode": plan.mode,
        "target": {**asdict(replace(target, schema=None)), "schema": schema},
        "settings": asdict(plan.settings),
        "integrity": plan.integrity.to_json(),
        "planned_at": plan.planned_at,
    }
    return json.dumps(plain, separators=(",", ":"))


def restored(storage: Storage, text: str) -> WritePlan:
    """Return the plan of one table that `describe` wrote."""
    plain = json.loads(text)
    schema = pa.ipc.read_schema(pa.py_buffer(base64.b64decode(plain["target"].pop("schema"))))
    for name in ("added", "renamed", "edge_key", "id_of"):
        plain["target"][name] = tuple(plain["target"][name])
    plain["target"]["others"] = tuple(tuple(span) for span in plain["target"]["others"])
    target = TableTarget(**plain["target"], schema=schema)
    return WritePlan(
        storage=storage,
        branch=plain["branch"],
        publish_id=plain["publish_id"],
        mode=plain["mode"],
        targets={target.table_key: target},
        settings=Settings(**plain["settings"]),
        integrity=Integrity.of_json(plain["integrity"]),
        planned_at=plain["planned_at"],
    )


def leave_messages(plan: WritePlan, staged: Iterable[StagedTable]) -> None:
    """Leave what the tasks of one table staged, for the process that publishes.

    Raises:
        StorageError: the store failed; the staged files stay unreferenced.
    """
    (key,) = plan.targets
    plan.storage.put(_path(plan.publish_id, key), stage.to_json(staged).encode("utf-8"))


def write_all(
    plan: WritePlan,
    stage_table: Callable[[str, str], None],
    stage_deletes: Callable[[str, str], None] | None = None,
) -> Committed:
    """Stage every table of a plan and publish them in one commit.

    `stage_deletes` stages frames of ids whose rows are deleted beside (`plan.deletes`).

    `stage_table(table key, text for STAGE_OPTION)` runs one ordinary Spark write. The staging
    objects are deleted in the end, unless the outcome is unknown. If a table can't be staged, the
    files that others left are deleted: nothing was committed yet.

    Raises:
        UnsupportedError: this process doesn't see what Spark's processes wrote.
        OmnigraphError: as `commit` and as the staging writes raise; nothing was published, unless
            it is a `PublishOutcomeUnknown`.
    """
    try:
        progress = Progress("write", len(plan.targets) + 1)
        with staging.recorded(plan.storage, plan.publish_id) as planned_at:
            plan = replace(plan, planned_at=planned_at)
            staged = _staged(plan, stage_table, progress)
            if stage_deletes is not None:
                staged += _staged(_of_deletes(plan), stage_deletes, None, staged)
            done = commit(plan, staged)
        progress.step("published")
    except PublishOutcomeUnknown:
        raise
    except BaseException:
        _forget(plan)
        raise
    _forget(plan)
    return done


def _staged(
    plan: WritePlan,
    stage_table: Callable[[str, str], None],
    progress: Progress | None,
    before: Sequence[StagedTable] = (),
) -> list[StagedTable]:
    staged: list[StagedTable] = []
    try:
        for key in sorted(plan.targets):
            stage_table(key, describe(plan, key))
            staged += _collect(plan, key)
            if progress is not None:
                progress.step(f"{key} is staged")
    except BaseException:
        abort(plan, [*before, *staged], complete=False)
        raise
    return staged


def _of_deletes(plan: WritePlan) -> WritePlan:
    targets = {key: replace(target, mode=DELETE, added=()) for key, target in plan.targets.items()}
    return replace(plan, mode=DELETE, targets=targets)


def _collect(plan: WritePlan, key: str) -> list[StagedTable]:
    message = plan.storage.get(_path(plan.publish_id, key))
    if message is None:
        raise UnsupportedError(
            f"Spark staged {key}, and this process can't see it at {plan.storage.root}",
            expected="a path that this process, the driver and the executors all reach",
            hint="Nothing was published. Under Spark Connect write each frame with df.write, or "
            "give a path on a shared store",
        )
    return stage.from_json(message.decode("utf-8"))


def _path(publish_id: str, key: str) -> str:
    return f"{staging.folder(publish_id)}/{layout.fnv1a64(key)}.json"


def _forget(plan: WritePlan) -> None:
    """Delete the staging objects; what can't be deleted is litter, and no reason to fail."""
    try:
        for key in plan.targets:
            plan.storage.delete(_path(plan.publish_id, key))
        if plan.storage.is_local():
            with contextlib.suppress(OSError):
                os.rmdir(plan.storage.uri(layout.STAGING, plan.publish_id))
    except OmnigraphError as error:
        _log.warning("staging objects of %s stay: %s", plan.publish_id, error)
