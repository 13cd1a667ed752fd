"""One table's part of a write: whose head is it, and what lands on it (rules 1, 11 to 20)."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from omnigraph_spark import _faults
from omnigraph_spark.errors import (
    ExpectedVersionMismatch,
    OmnigraphError,
    SchemaMismatchError,
    UnsupportedError,
)
from omnigraph_spark.manifest.crash_records import Heartbeat
from omnigraph_spark.manifest.publisher import Publish, publish
from omnigraph_spark.manifest.rows import ManifestRow, TombstoneRow, VersionRow
from omnigraph_spark.manifest.snapshot import load
from omnigraph_spark.storage import column_numbers, layout, store
from omnigraph_spark.storage.ids import new_ulid
from omnigraph_spark.storage.layout import PUBLISH_ID_PROPERTY
from omnigraph_spark.storage.store import Storage
from omnigraph_spark.write.commit import table_head
from omnigraph_spark.write.commit.commit import commit
from omnigraph_spark.write.plan import NewTable
from tests.support import graphs, writes
from tests.support.writes import KNOWS, PERSON, head, ids, orphan

LONG = "60"
"""A grace that a test which must not wait would notice."""


@pytest.fixture
def graph(tmp_path: Path) -> Iterator[Storage]:
    yield writes.new_graph(Storage.at(str(tmp_path / "g")))
    _faults.disarm()


def dataset(storage: Storage, key: str = PERSON) -> Any:
    return storage.dataset(layout.table_location(key))


def publish_rows(storage: Storage, *rows: ManifestRow) -> None:
    publish(storage, Publish("main", new_ulid(), rows))


def publish_head(storage: Storage, key: str = PERSON) -> None:
    """Publish a table's newest version, as a writer does that this connector knows nothing of."""
    now = dataset(storage, key)
    publish_rows(storage, VersionRow(key, now.version, None, now.count_rows()))


# --- rule 1: the field map ---------------------------------------------------------------------


def drop_and_add(storage: Storage) -> None:
    dataset(storage).drop_columns(["age"])
    dataset(storage).add_columns(pa.schema([pa.field("age", pa.int32())]))


def retype(storage: Storage) -> None:
    dataset(storage).alter_columns({"path": "age", "data_type": pa.int64()})


def rename(storage: Storage) -> None:
    dataset(storage).alter_columns({"path": "age", "name": "years"})


def allow_null(storage: Storage) -> None:
    dataset(storage).alter_columns({"path": "name", "nullable": True})


def reorder(storage: Storage) -> None:
    import lance

    rows = dataset(storage).to_table(columns=["age", "name", "id"])
    lance.write_dataset(rows, dataset(storage).uri, mode="overwrite")


@pytest.mark.parametrize("change", [drop_and_add, retype, rename, allow_null, reorder])
def test_fragments_are_never_committed_under_another_schema_than_they_were_staged_under(
    graph: Storage, change: Any
) -> None:
    planned = writes.plan(graph, [PERSON])
    files = writes.data_files(graph, PERSON)
    staged = writes.stage_rows(planned, {PERSON: ["late"]})
    change(graph)
    publish_head(graph)
    files |= writes.data_files(graph, PERSON) - _paths(staged)
    before, version = load(graph), head(graph, PERSON)
    with pytest.raises(SchemaMismatchError, match=r"OMNIGRAPH_SCHEMA_MISMATCH.*node:Person"):
        commit(planned, staged)
    assert load(graph) == before
    assert head(graph, PERSON) == version
    assert writes.data_files(graph, PERSON) == files, "staged files are not used again"
    assert writes.records(graph) == []


def _paths(staged: Any) -> set[str]:
    return {f["path"] for one in staged for fragment in one.fragments for f in fragment["files"]}


def test_the_field_map_names_ids_types_and_nullability_of_nested_fields_too() -> None:
    schema = pa.schema(
        [
            pa.field("id", pa.utf8(), nullable=False),
            pa.field("point", pa.struct([pa.field("x", pa.int32()), pa.field("y", pa.int32())])),
        ]
    )
    assert column_numbers.of_new(schema) == (
        ("id", 0, "string", False),
        ("point", 1, "struct<x: int32, y: int32>", True),
        ("point.x", 2, "int32", True),
        ("point.y", 3, "int32", True),
    )


def test_the_loser_of_two_creators_with_other_columns_is_refused(graph: Storage) -> None:
    key = "node:New"
    other = writes.NODE_SCHEMA.set(2, pa.field("age", pa.int64()))
    planned = writes.plan(graph, [key], new={key: NewTable(writes.NODE_SCHEMA, "name")})
    staged = writes.stage_rows(planned, {key: ["ours"]})
    theirs = {key: NewTable(other, "name")}
    _faults.arm(
        "commit.record_written", writes.once(lambda: writes.write(graph, {key: ["b"]}, new=theirs))
    )
    with pytest.raises(SchemaMismatchError, match="OMNIGRAPH_SCHEMA_MISMATCH"):
        commit(planned, staged)
    assert ids(graph, key) == ["b"]


def test_the_loser_of_two_creators_with_another_column_order_is_refused(graph: Storage) -> None:
    """Same names and types, other field ids: its values would land in the wrong columns."""
    key = "node:New"
    fields = list(writes.NODE_SCHEMA)
    other = {key: NewTable(pa.schema([fields[0], fields[2], fields[1]]), "name")}
    _faults.arm(
        "commit.before_table", writes.once(lambda: writes.write(graph, {key: ["b"]}, new=other))
    )
    with pytest.raises(SchemaMismatchError, match="node:New changed while the write was running"):
        writes.write(graph, {key: ["ours"]}, new={key: NewTable(writes.NODE_SCHEMA, "name")})
    assert ids(graph, key) == ["b"]


# --- rules 11, 12: contiguity, SELF, UNDO, CLEAN -----------------------------------------------


def test_an_append_that_rebased_over_an_orphan_undoes_itself_and_the_orphan_is_never_seen(
    graph: Storage,
) -> None:
    """Lance's own append would land on the orphan and show its rows."""
    _faults.arm("table.sending", writes.once(lambda: orphan(graph, PERSON, ["orphan"])))
    writes.write(graph, {PERSON: ["ours"]})
    assert ids(graph, PERSON) == ["first", "ours"]


def test_an_append_that_rebased_over_a_rivals_lets_the_rivals_head_stand_at_once(
    graph: Storage,
) -> None:
    """SELF: the rival that is still to publish must find its own rows at the head."""
    seen: list[list[str]] = []

    def look() -> None:
        rows = dataset(graph).to_table(columns=["id"])["id"].to_pylist()
        seen.append(sorted(rows))

    _faults.arm("table.sending", writes.once(lambda: orphan(graph, PERSON, ["theirs"])))
    _faults.arm("publish.opened", look)
    writes.write(graph, {PERSON: ["ours"]})
    assert ["first", "theirs"] in seen
    assert ["first", "ours", "theirs"] not in seen


def test_two_appends_of_which_one_rebases_both_land_once(graph: Storage) -> None:
    _faults.arm("table.sending", writes.once(lambda: writes.write(graph, {PERSON: ["theirs"]})))
    writes.write(graph, {PERSON: ["ours"]})
    assert ids(graph, PERSON) == ["first", "ours", "theirs"]


@pytest.mark.parametrize("count", [1, 2, 5])
@pytest.mark.parametrize("mode", ["append", "overwrite"])
def test_unpublished_versions_of_a_dead_writer_are_never_adopted(
    graph: Storage, count: int, mode: str
) -> None:
    for number in range(count):
        orphan(graph, PERSON, [f"orphan{number}"])
    writes.write(graph, {PERSON: ["ours"]}, mode)
    assert ids(graph, PERSON) == (["first", "ours"] if mode == "append" else ["ours"])


def test_an_index_built_over_an_orphan_is_no_reason_to_adopt_it(graph: Storage) -> None:
    orphan(graph, PERSON, ["orphan"])
    dataset(graph).create_scalar_index("name", "BTREE")
    writes.write(graph, {PERSON: ["ours"]})
    assert ids(graph, PERSON) == ["first", "ours"]


def test_a_strip_that_lands_beyond_the_next_version_is_noticed(graph: Storage) -> None:
    dataset(graph).update_config({"lance.auto_cleanup.interval": "1000"})
    publish_head(graph)
    _faults.arm("table.after_strip", writes.once(lambda: orphan(graph, PERSON, ["orphan"])))
    writes.write(graph, {PERSON: ["ours"]})
    assert ids(graph, PERSON) == ["first", "ours"]


def test_a_round_that_ends_in_a_definite_mismatch_puts_its_tables_back(graph: Storage) -> None:
    pinned = {key: load(graph).version(key) for key in (PERSON, KNOWS)}
    _faults.arm(
        "commit.before_publish",
        writes.once(lambda: writes.write(graph, {writes.COMPANY: ["rival"]})),
    )
    with pytest.raises(ExpectedVersionMismatch, match="node:Company"):
        writes.write(
            graph,
            {PERSON: ["ours"], KNOWS: ["ours"]},
            expectedTableVersions=json.dumps({writes.COMPANY: 1}),
        )
    for key, version in pinned.items():
        assert table_head.is_clean(dataset(graph, key), version)
        assert head(graph, key) > version
    assert writes.records(graph) == []


def test_a_head_that_was_put_back_is_as_good_as_the_published_version(graph: Storage) -> None:
    """CLEAN: the next writer doesn't wait for anybody's grace."""
    _faults.arm("commit.before_publish", "raise")
    with pytest.raises(OmnigraphError, match="Injected fault"):
        writes.write(graph, {PERSON: ["ours"]})
    _faults.disarm()
    _faults.arm("heal.before_restore", writes.die)
    writes.write(graph, {PERSON: ["next"]}, orphanGraceSeconds=LONG)
    assert ids(graph, PERSON) == ["first", "next"]


def test_a_head_with_a_strip_above_the_published_version_is_as_good_as_that(
    graph: Storage,
) -> None:
    dataset(graph).update_config({"lance.auto_cleanup.interval": "1000"})
    publish_head(graph)
    dataset(graph).delete_config_keys(store.keys(dataset(graph)))
    _faults.arm("heal.before_restore", writes.die)
    writes.write(graph, {PERSON: ["next"]}, orphanGraceSeconds=LONG)
    assert ids(graph, PERSON) == ["first", "next"]


def test_a_head_with_anything_else_above_the_published_version_is_not_clean(
    graph: Storage,
) -> None:
    pinned = load(graph).version(PERSON)
    now = dataset(graph)
    now.restore()  # Lance's Restore of the head itself, so of the pinned version
    assert table_head.is_clean(dataset(graph), pinned)
    orphan(graph, PERSON, ["orphan"])
    assert not table_head.is_clean(dataset(graph), pinned)
    dataset(graph).delete("id = 'orphan'")
    assert not table_head.is_clean(dataset(graph), pinned)


# --- rule 14: Restore is never strict ----------------------------------------------------------


def test_a_writer_that_wakes_before_it_is_healed_over_keeps_its_rows(graph: Storage) -> None:
    """The healer looks again directly before the Restore."""
    orphan(graph, PERSON, ["slow"])
    _faults.arm("heal.before_restore", writes.once(lambda: publish_head(graph)))
    writes.write(graph, {PERSON: ["ours"]})
    assert ids(graph, PERSON) == ["first", "ours", "slow"]


def test_a_head_that_moved_before_the_restore_is_watched_for_a_grace_of_its_own(
    graph: Storage,
) -> None:
    orphan(graph, PERSON, ["one"])
    began: list[float] = []

    def move() -> None:
        began.append(time.monotonic())
        if len(began) == 1:
            orphan_above(graph, "two")

    _faults.arm("heal.before_restore", move)
    writes.write(graph, {PERSON: ["ours"]})
    assert ids(graph, PERSON) == ["first", "ours"]
    assert began[1] - began[0] >= float(writes.GRACE)


def orphan_above(storage: Storage, name: str) -> None:
    """Append to the head whatever it is, as the engine does."""
    import lance

    rows = writes.batch(dataset(storage).schema, [name])
    lance.write_dataset(pa.Table.from_batches([rows]), dataset(storage), mode="append")


def test_a_restore_that_lands_over_a_live_writers_version_is_taken_back(graph: Storage) -> None:
    """The rival publishes between the last look and the Restore."""
    orphan(graph, PERSON, ["orphan"])

    def rival() -> None:
        orphan_above(graph, "rival")
        publish_head(graph)

    _faults.arm("table.before_restore", writes.once(rival))
    writes.write(graph, {PERSON: ["ours"]})
    assert ids(graph, PERSON) == ["first", "orphan", "ours", "rival"]


# --- rule 15: auto-cleanup ---------------------------------------------------------------------


@pytest.mark.parametrize("orphans", [1, 2, 3])
def test_no_heal_of_an_engines_table_deletes_a_version_that_is_pinned(
    orphans: int, tmp_path: Path
) -> None:
    """A Restore brings the settings back, and their hook runs in that same commit."""
    storage = Storage.at(str(graphs.unpack("v2", "social", tmp_path)))
    short = {"lance.auto_cleanup.interval": "2", "lance.auto_cleanup.older_than": "0s"}
    folder = storage.uri(layout.table_location(PERSON), "_versions")
    pinned = load(storage).version(PERSON)
    if pinned % 2:  # so that the version with the settings isn't one where the hook runs
        dataset(storage).update_config({"some.key": "1"})
    now = dataset(storage)
    now.update_config(short)
    publish_head(storage)
    pinned = load(storage).version(PERSON)
    before = ids(storage, PERSON)
    for number in range(orphans):
        now = dataset(storage)
        store.strip_auto_cleanup(now)
        orphan_above(storage, f"orphan{number}")
    files = {path.name for path in Path(folder).iterdir()}
    writes.write(storage, {PERSON: ["ours"]})
    assert files <= {path.name for path in Path(folder).iterdir()}
    assert ids(storage, PERSON) == sorted([*before, "ours"])
    assert dataset(storage).checkout_version(pinned).count_rows() == len(before)
    assert store.keys(dataset(storage)) == []


def test_the_engines_auto_cleanup_is_gone_before_the_first_commit_to_a_table(
    tmp_path: Path,
) -> None:
    storage = Storage.at(str(graphs.unpack("v2", "social", tmp_path)))
    pinned = load(storage).version(PERSON)
    assert store.keys(dataset(storage))
    seen: list[list[str]] = []
    _faults.arm("table.sending", lambda: seen.append(store.keys(dataset(storage))))
    try:
        writes.write(storage, {PERSON: ["ours"]})
    finally:
        _faults.disarm()
    assert seen == [[]]
    assert load(storage).version(PERSON) == pinned + 2


# --- rules 16, 17: the grace and the sign of life ----------------------------------------------


def heal_time(storage: Storage) -> float:
    """Return how long a write waited until it restored a head."""
    healed: list[float] = []
    _faults.arm("heal.before_restore", lambda: healed.append(time.monotonic()))
    began = time.monotonic()
    writes.write(storage, {PERSON: ["ours"]})
    assert ids(storage, PERSON) == ["first", "ours"]
    return healed[0] - began


def test_a_silent_head_is_waited_for_as_long_as_the_grace(graph: Storage) -> None:
    orphan(graph, PERSON, ["orphan"])
    assert heal_time(graph) >= float(writes.GRACE)


def test_the_grace_counts_on_the_healers_own_clock(
    graph: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the healer's calendar the commit is hours old: two clocks that disagree."""

    class Calendar(type):
        def __instancecheck__(cls, found: object) -> bool:
            return isinstance(found, datetime)

    class Ahead(datetime, metaclass=Calendar):
        @classmethod
        def now(cls, tz: Any = None) -> Any:
            return datetime.now(tz) + timedelta(hours=20)

    orphan(graph, PERSON, ["orphan"])
    monkeypatch.setattr(table_head, "datetime", Ahead)
    assert heal_time(graph) >= float(writes.GRACE)


def test_a_commit_older_than_a_day_is_healed_at_once(
    graph: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert timedelta(days=1) == table_head._SURELY_OLD
    orphan(graph, PERSON, ["orphan"])
    monkeypatch.setattr(table_head, "_SURELY_OLD", timedelta(0))
    assert heal_time(graph) < float(writes.GRACE)


@pytest.mark.long
def test_a_writer_that_gives_signs_of_life_is_waited_for_six_graces_and_no_longer(
    graph: Storage,
) -> None:
    publish_id = new_ulid()
    orphan(graph, PERSON, ["slow"], publish_id)
    with Heartbeat(graph, publish_id, float(writes.GRACE)) as heartbeat:
        heartbeat.record("main", [load(graph).entry(PERSON)], None)
        waited = heal_time(graph)
    assert waited >= 6 * float(writes.GRACE)


def test_a_slow_writer_publishes_while_the_next_one_waits(graph: Storage) -> None:
    publish_id = new_ulid()
    orphan(graph, PERSON, ["slow"], publish_id)
    looked: list[int] = []

    def look() -> None:
        looked.append(1)
        if len(looked) == 2:  # the second round of the waiting writer's looks
            publish_head(graph)

    with Heartbeat(graph, publish_id, float(writes.GRACE)) as heartbeat:
        heartbeat.record("main", [load(graph).entry(PERSON)], None)
        _faults.arm("table.before_commit", look)
        _faults.arm("commit.before_table", look)
        writes.write(graph, {PERSON: ["ours"]})
    assert ids(graph, PERSON) == ["first", "ours", "slow"]


def test_every_table_transaction_carries_the_publish_id(graph: Storage) -> None:
    done = writes.write(graph, {PERSON: ["ours"], KNOWS: ["ours"]})
    for key in (PERSON, KNOWS):
        now = dataset(graph, key)
        properties = now.read_transaction(now.version).transaction_properties
        assert properties[PUBLISH_ID_PROPERTY] == done.publish_id
        assert table_head.owner_of(now) == done.publish_id


def test_the_index_builds_of_an_overwrite_belong_to_it(graph: Storage) -> None:
    """A long build is not a silent stranger's: its transaction can't carry an id of its own."""
    dataset(graph).create_scalar_index("name", "BTREE")
    publish_head(graph)
    done = writes.write(graph, {PERSON: ["ours"]}, "overwrite")
    now = dataset(graph)
    assert type(now.read_transaction(now.version).operation).__name__ == "CreateIndex"
    assert table_head.owner_of(now) == done.publish_id
    orphan_above(graph, "the engine's, which gives no id")
    assert table_head.owner_of(dataset(graph)) is None


# --- rule 18: overwrite ------------------------------------------------------------------------


def test_an_overwrite_never_swallows_a_rivals_append(graph: Storage) -> None:
    _faults.arm("table.sending", writes.once(lambda: writes.write(graph, {PERSON: ["rival"]})))
    with pytest.raises(ExpectedVersionMismatch, match="node:Person") as raised:
        writes.write(graph, {PERSON: ["ours"]}, "overwrite")
    assert (raised.value.expected, raised.value.actual) == (1, 2)
    assert ids(graph, PERSON) == ["first", "rival"]


def test_an_overwrite_over_an_orphan_that_came_in_between_replaces_what_is_published(
    graph: Storage,
) -> None:
    _faults.arm("table.sending", writes.once(lambda: orphan(graph, PERSON, ["orphan"])))
    writes.write(graph, {PERSON: ["ours"]}, "overwrite")
    assert ids(graph, PERSON) == ["ours"]


def test_a_rival_between_an_overwrite_and_its_index_is_noticed(graph: Storage) -> None:
    dataset(graph).create_scalar_index("name", "BTREE")
    publish_head(graph)
    _faults.arm("table.landed", writes.once(lambda: orphan_above(graph, "orphan")))
    writes.write(graph, {PERSON: ["ours"]}, "overwrite")
    assert ids(graph, PERSON) == ["ours"]


# --- rule 20: new tables -----------------------------------------------------------------------

NEW = "node:New"
NEW_TABLE = {NEW: NewTable(writes.NODE_SCHEMA, "name")}


def create(storage: Storage, name: str = "ours", **more: str) -> None:
    writes.write(storage, {NEW: [name]}, new=NEW_TABLE, **more)


@pytest.mark.parametrize("point", ["commit.before_table", "table.before_commit", "table.sending"])
def test_two_creators_of_one_table_both_keep_their_rows(graph: Storage, point: str) -> None:
    _faults.arm(point, writes.once(lambda: create(graph, "theirs")))
    create(graph)
    assert ids(graph, NEW) == ["ours", "theirs"]


def test_what_a_dead_creator_left_is_replaced_and_never_seen(graph: Storage) -> None:
    planned = writes.plan(graph, [NEW], new=NEW_TABLE)
    staged = writes.stage_rows(planned, {NEW: ["dead"]})
    _faults.arm("commit.before_publish", writes.die)
    with pytest.raises(writes.Died):
        commit(planned, staged)
    _faults.disarm()
    create(graph)
    assert ids(graph, NEW) == ["ours"]
    assert load(graph).version(NEW) == 2


def test_a_live_creators_dataset_is_waited_for(graph: Storage) -> None:
    _leave_dataset(graph, stable_row_ids=True)
    began = time.monotonic()
    create(graph)
    assert time.monotonic() - began >= float(writes.GRACE)
    assert ids(graph, NEW) == ["ours"]


def _leave_dataset(storage: Storage, *, stable_row_ids: bool) -> None:
    import lance

    rows = pa.Table.from_batches([writes.batch(writes.NODE_SCHEMA, ["left"])])
    lance.write_dataset(
        rows,
        storage.dataset_uri(layout.table_location(NEW)),
        enable_stable_row_ids=stable_row_ids,
        data_storage_version="2.2",
    )


def test_a_leftover_without_stable_row_ids_is_refused_and_kept(graph: Storage) -> None:
    _leave_dataset(graph, stable_row_ids=False)
    before = load(graph)
    with pytest.raises(UnsupportedError, match=r"OMNIGRAPH_UNSUPPORTED.*stable row ids"):
        create(graph)
    assert load(graph) == before
    assert dataset(graph, NEW).to_table()["id"].to_pylist() == ["left"]


def test_a_failed_creation_leaves_no_rows_and_the_next_one_does_not_wait(graph: Storage) -> None:
    _faults.arm("commit.before_publish", "raise")
    with pytest.raises(OmnigraphError, match="Injected fault"):
        create(graph, "failed")
    _faults.disarm()
    assert dataset(graph, NEW).count_rows() == 0
    began = time.monotonic()
    create(graph, orphanGraceSeconds=LONG)
    assert time.monotonic() - began < float(LONG) / 2
    assert ids(graph, NEW) == ["ours"]


def test_a_dropped_table_made_again_lies_above_its_tombstone(graph: Storage) -> None:
    writes.write(graph, {PERSON: ["b"]})
    dropped = load(graph).version(PERSON)
    publish_rows(graph, TombstoneRow(PERSON, dropped))
    assert PERSON not in load(graph).tables
    writes.write(graph, {PERSON: ["again"]})
    assert ids(graph, PERSON) == ["again"]
    assert load(graph).version(PERSON) == dropped + 1


def test_a_new_empty_table_is_published_and_takes_rows_later(graph: Storage) -> None:
    writes.write(graph, {NEW: []}, new=NEW_TABLE)
    assert ids(graph, NEW) == []
    writes.write(graph, {NEW: ["a"]})
    assert ids(graph, NEW) == ["a"]
    assert dataset(graph, NEW).data_storage_version == "2.2"
    assert dataset(graph, NEW).has_stable_row_ids


def test_new_datasets_have_stable_row_ids_version_2_2_and_no_auto_cleanup(graph: Storage) -> None:
    for key in writes.ALL:
        now = dataset(graph, key)
        assert now.has_stable_row_ids
        assert now.data_storage_version == "2.2"
        assert store.keys(now) == []
