"""The record of a property change in graphs of today's engines: how a dead one is finished.

Where tables come or go, everybody sees in `__manifest` whether a change's publish has landed. Where
only properties change, the tables are the same before and after; an engine that finds the new
schema files beside the old ones then refuses the graph. So such a change leaves the record that an
engine leaves for its own changes, in `__recovery/`. It names no table and stays unconfirmed: so an
engine, like this connector, does nothing but look for the change's commit. If it is there, the new
files are put in their place, else they are removed. Runs on the driver.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from omnigraph_spark.errors import CorruptManifestError
from omnigraph_spark.manifest import lineage, manifest_rows
from omnigraph_spark.manifest.rows import OURS
from omnigraph_spark.manifest.snapshot import open_main, read_rows
from omnigraph_spark.schema import ir2
from omnigraph_spark.storage import layout
from omnigraph_spark.storage.ids import new_ulid
from omnigraph_spark.storage.store import Storage

_VERSION = 9
_KIND = "SchemaApply"


@dataclass(frozen=True)
class Onto:
    """What the commit of a change must say for engines to know it: its parent, and its time.

    `created_at` is in microseconds since the epoch.
    """

    parent: str
    created_at: int


@dataclass(frozen=True)
class Found:
    """A record that is there: its path, and the id of the commit that it announces."""

    path: str
    commit_id: str


def write(
    storage: Storage, commit_id: str, actor: str | None, ir_text: str, new_ir_text: str
) -> Onto:
    """Announce a change from one IR to another, to be published as a commit on the head as it is.

    Raises:
        CorruptManifestError: the graph has no commit.
        StorageError: the store failed; the record may be there.
    """
    head = lineage.head_of(manifest_rows.read(open_main(storage)).current)
    if head is None:
        raise CorruptManifestError("__manifest has no commit", expected="the graph's first one")
    now = time.time_ns() // 1000
    onto = Onto(head.commit_id, max(now, head.created_at + 1))
    state = json.loads(ir2.state_json(ir_text))
    record: dict[str, Any] = {
        "schema_version": _VERSION,
        "operation_id": commit_id,
        "started_at": str(now),
        "branch": None,
        "actor_id": actor,
        "writer_kind": _KIND,
        "tables": [],
        "protocol_v7": {
            "authority": {
                "branch_identifier": {"version_mapping": []},
                "graph_head": head.commit_id,
                "schema_identity_domain": state["schema_identity_domain"],
                "schema_ir_hash": state["schema_ir_hash"],
                "schema_identity_version": state["schema_identity_version"],
            },
            "lineage": {
                "graph_commit_id": commit_id,
                "branch": None,
                "actor_id": actor,
                "merged_parent_commit_id": None,
                "created_at": onto.created_at,
            },
            "rollback_graph_commit_id": new_ulid(),
            "target_schema_ir_hash": json.loads(ir2.state_json(new_ir_text))["schema_ir_hash"],
            "effect_phase": "Armed",
            "effects": [],
            "intended_delta": {"table_updates": []},
        },
        OURS: {"publish_id": commit_id},
    }
    storage.put(f"{layout.RECOVERY}/{commit_id}.json", json.dumps(record, indent=1).encode())
    return onto


def found(storage: Storage) -> list[Found]:
    """Return the records of property changes that are there; ask only under the lock.

    While a lock of ours is there no engine leaves one of its own. An engine that takes a change for
    a dead one may put its record again after the change has removed it.

    Raises:
        StorageError: the store failed.
    """
    records = []
    for info in storage.list(layout.RECOVERY):
        text = storage.get(info.path)
        try:
            record = json.loads(text or b"")
            if record["writer_kind"] == _KIND:
                commit_id = record["protocol_v7"]["lineage"]["graph_commit_id"]
                records.append(Found(info.path, str(commit_id)))
        except (ValueError, KeyError, TypeError):
            continue
    return records


def has_landed(storage: Storage, records: Iterable[Found]) -> bool:
    """Return whether the commit that one of some records announces is in the graph.

    Raises:
        CorruptManifestError: a commit can't be read.
        StorageError: the store failed.
    """
    announced = {record.commit_id for record in records}
    commits = lineage.commits_of(read_rows(open_main(storage)))
    return any(one.commit_id in announced for one in commits)
