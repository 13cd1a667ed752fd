"""The engine's own graphs after upserts and deletes: the format still holds, and the rows are right."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from omnigraph_spark.manifest.snapshot import load
from omnigraph_spark.storage.store import Storage
from omnigraph_spark.write.commit.commit import commit
from omnigraph_spark.write.tasks.stage import stage
from tests.format_checker import check_graph
from tests.support import graphs
from tests.support.writes import plan


def _ids(storage: Storage, key: str) -> list[str]:
    entry = load(storage).entry(key)
    dataset = storage.dataset(entry.location, entry.table_branch, entry.table_version)
    found: list[str] = dataset.to_table(columns=["id"])["id"].to_pylist()
    assert len(found) == entry.row_count
    return sorted(found)


def _first_optional(schema: pa.Schema) -> pa.Field:
    return next(f for f in schema if f.nullable and f.type in (pa.int32(), pa.utf8(), pa.date32()))


@pytest.mark.parametrize("graph", ["social", "evolved"])
def test_format_holds_after_an_upsert_and_a_delete(tmp_path: Path, graph: str) -> None:
    root = graphs.unpack("v2", graph, tmp_path)
    assert check_graph(str(root), moved=True) == []
    storage = Storage.at(str(root))
    people = _ids(storage, "node:Person")

    planned = plan(storage, ["node:Person"], new={}, writeMode="merge")
    column = _first_optional(planned.targets["node:Person"].schema)
    batch = pa.RecordBatch.from_arrays(
        [pa.array(people), pa.nulls(len(people), column.type)], names=["id", column.name]
    )
    commit(planned, stage(planned, [("node:Person", batch)]))
    assert check_graph(str(root), moved=True) == []
    assert _ids(storage, "node:Person") == people
    entry = load(storage).entry("node:Person")
    dataset = storage.dataset(entry.location, entry.table_branch, entry.table_version)
    assert dataset.to_table(columns=[column.name])[column.name].null_count == len(people)
    assert dataset.count_rows(filter=f"id = '{people[0]}'") == 1

    planned = plan(storage, ["node:Person"], new={}, writeMode="delete", onDelete="cascade")
    gone = pa.RecordBatch.from_pydict({"id": people[:1]})
    commit(planned, stage(planned, [("node:Person", gone)]))
    assert check_graph(str(root), moved=True) == []
    assert _ids(storage, "node:Person") == people[1:]
