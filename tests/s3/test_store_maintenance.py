"""Maintenance on an S3 server: indices, compaction and cleanup as on a folder."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

import pytest

from omnigraph_spark.maintenance.check import check
from omnigraph_spark.maintenance.cleanup import cleanup
from omnigraph_spark.maintenance.optimize import create_index, optimize, run_here
from omnigraph_spark.manifest.snapshot import load
from omnigraph_spark.write.plan import Settings
from tests.support.branches import ids_at, make, names, remove, write_ids
from tests.support.stores import Store
from tests.support.writes import PERSON, ids, new_graph, records, write

QUICK = Settings(orphan_grace_seconds=0.15)


def test_a_table_is_indexed_compacted_and_cleaned_up_on_every_store(store: Store) -> None:
    storage = new_graph(store.storage("g"), [PERSON])
    for number in range(3):
        write(storage, {PERSON: [f"p{number}"]})
    create_index(storage, "main", PERSON, "id", "BTREE", None, QUICK)
    optimize(storage, "main", None, run_here, settings=QUICK)
    before = sum(info.size for info in storage.list(""))
    later = datetime.now(timezone.utc) + timedelta(days=8)
    told = cleanup(storage, now=later)
    done = cleanup(storage, dry_run=False, now=later)
    assert (done.versions, done.files, done.bytes) == (told.versions, told.files, told.bytes)
    gone = before - sum(info.size for info in storage.list(""))
    assert done.bytes >= gone > done.bytes / 2  # less what the cleanup itself leaves
    assert ids(storage, PERSON) == ["first", "p0", "p1", "p2"]
    entry = load(storage).entry(PERSON)
    scan = storage.dataset(entry.location, None, entry.table_version).scanner(filter="id = 'p1'")
    assert "ScalarIndexQuery" in scan.explain_plan()
    assert scan.to_table()["id"].to_pylist() == ["p1"]
    assert records(storage) == []


@pytest.mark.long
def test_a_branch_is_deleted_half_made_or_whole_and_made_again_on_every_store(store: Store) -> None:
    storage = new_graph(store.storage("g"), [PERSON])
    for _ in range(2):
        make(storage, "a/b")
        write_ids(storage, "a/b", PERSON, ["b"])
        assert ids_at(storage, PERSON, "a/b") == ["b", "first"]
        remove(storage, "a/b")
    make(storage, "a/b")
    for info in storage.list("__manifest/tree/a/b"):
        storage.delete(info.path)
    remove(storage, "a/b")
    assert names(storage) == ["main"]
    assert check(storage) == []
