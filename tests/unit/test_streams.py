"""Streaming reads without a JVM: where batches end, what they hold, restarts, what is refused."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.datasource import DataSourceStreamReader

from omnigraph_spark import options
from omnigraph_spark.errors import (
    CorruptManifestError,
    OptionError,
    SchemaMismatchError,
    TableNotFoundError,
    UnsupportedError,
    VersionNotFoundError,
)
from omnigraph_spark.history import commits
from omnigraph_spark.maintenance import cleanup, optimize
from omnigraph_spark.manifest import formats
from omnigraph_spark.manifest.snapshot import load
from omnigraph_spark.merge import restore
from omnigraph_spark.options import StreamOptions
from omnigraph_spark.read import feed_plan
from omnigraph_spark.refs import branches, refs
from omnigraph_spark.schema_changes import properties
from omnigraph_spark.storage.store import Storage
from tests.support.plain_writes import people_of_engine_0_9
from tests.support.streams import ReadAllAvailable, Stream
from tests.support.writes import KNOWS, PERSON, ids, new_graph, write, write_options

needs_limits = pytest.mark.skipif(
    not hasattr(DataSourceStreamReader, "getDefaultReadLimit"),
    reason="Spark 4.2 and later have limits per batch",
)


@pytest.fixture
def graph(tmp_path: Path) -> Storage:
    return new_graph(Storage.at(str(tmp_path / "g")), [PERSON, KNOWS])


def test_a_stream_gives_the_snapshot_and_then_what_is_appended_once(graph: Storage) -> None:
    stream = Stream(graph, table="Person")
    assert stream.rest() == [["first"]]
    write(graph, {PERSON: ["a", "b"]})
    write(graph, {KNOWS: ["e"]})
    write(graph, {PERSON: ["c"]})
    assert stream.rest() == [["a", "b", "c"]]
    assert stream.rest() == []


@needs_limits
def test_a_batch_is_read_again_as_it_was_after_a_restart(graph: Storage) -> None:
    stream = Stream(graph, maxCommitsPerTrigger="2")
    stream.batch()
    for name in "abc":
        write(graph, {PERSON: [name]})
    start, end = stream.plan()
    first = stream.read(start, end)
    write(graph, {PERSON: ["d"]})
    stream.restart()
    assert stream.read(start, end) == first
    assert [row["id"] for row in first] == ["a", "b"]


@needs_limits
@pytest.mark.parametrize("most", ["3", "1000"])
def test_the_first_snapshot_is_cut_into_batches_of_rows_with_nodes_before_edges(
    graph: Storage, most: str
) -> None:
    write(graph, {PERSON: [f"p{n}" for n in range(7)], KNOWS: [f"k{n}" for n in range(4)]})
    whole = [*ids(graph, PERSON), *ids(graph, KNOWS)]
    stream = Stream(graph, maxRowsPerTrigger=most)
    found: list[list[str]] = []
    while batch := stream.batch():
        found.append([f"{row['_table']}/{row['id']}" for row in batch])
        write(graph, {PERSON: [f"later{len(found)}"]})
        stream.restart()
        if "snapshotRows" not in (stream.offset or {}):
            break
    flat = [one for batch in found for one in batch]
    assert all(len(batch) <= int(most) for batch in found)
    assert len(flat) == len({*flat}) == len(whole)
    assert [one.startswith("edge") for one in flat] == sorted(
        one.startswith("edge") for one in flat
    )
    later = [one for batch in stream.rest() for one in batch]
    assert sorted(later) == sorted(f"later{n + 1}" for n in range(len(found)))


@needs_limits
def test_a_limit_of_rows_never_splits_a_commit_and_takes_one_at_least(graph: Storage) -> None:
    stream = Stream(graph, maxRowsPerTrigger="4")
    stream.batch()
    write(graph, {PERSON: ["a1", "a2"], KNOWS: ["e1"]})
    write(graph, {PERSON: ["b1"]})
    write(graph, {PERSON: ["c1", "c2", "c3", "c4", "c5"]})
    write(graph, {PERSON: ["d1"]})
    assert [sorted(one) for one in stream.rest()] == [
        ["a1", "a2", "b1", "e1"],
        ["c1", "c2", "c3", "c4", "c5"],
        ["d1"],
    ]


@needs_limits
def test_a_query_that_ends_by_itself_ends_at_what_was_there_when_it_began(graph: Storage) -> None:
    stream = Stream(graph, table=PERSON, maxCommitsPerTrigger="1")
    write(graph, {PERSON: ["a"]})
    stream.reader.prepareForTriggerAvailableNow()
    write(graph, {PERSON: ["too late"]})
    assert sorted(one for batch in stream.rest() for one in batch) == ["a", "first"]
    stream.restart()
    assert stream.rest() == [["too late"]]


@needs_limits
def test_without_a_limit_a_batch_has_all_there_is(graph: Storage) -> None:
    stream = Stream(graph, table=PERSON, maxCommitsPerTrigger="1")
    write(graph, {PERSON: ["a"]})
    write(graph, {PERSON: ["b"]})
    stream.plan()
    write(graph, {PERSON: ["c"]})
    assert sorted(stream.ids(ReadAllAvailable())) == ["a", "b", "c", "first"]
    assert stream.rest() == []


def test_a_stream_begins_and_ends_where_its_options_say(graph: Storage) -> None:
    one = write(graph, {PERSON: ["a"]})
    two = write(graph, {PERSON: ["b"]})
    write(graph, {PERSON: ["c"]})
    since = Stream(graph, table=PERSON, startingVersion=str(one.graph_version))
    assert since.rest() == [["a", "b", "c"]]
    until = Stream(
        graph, table=PERSON, startingVersion=one.publish_id, endingVersion=two.publish_id
    )
    assert until.rest() == [["a", "b"]]
    latest = Stream(graph, table=PERSON, startingVersion="latest")
    assert latest.rest() == []
    write(graph, {PERSON: ["d"]})
    assert (latest.rest(), until.rest()) == ([["d"]], [])


def test_a_publish_that_changes_rows_is_refused_by_name_or_left_out_as_a_whole(
    graph: Storage,
) -> None:
    stream = Stream(graph, table=PERSON)
    stream.batch()
    write(graph, {PERSON: ["a"]})
    changed = write(graph, {PERSON: ["new", "a"]}, "append", writeMode="merge")
    write(graph, {PERSON: ["b"]})
    with pytest.raises(
        UnsupportedError, match=f"{changed.publish_id}.*node:Person.*readChangeFeed"
    ):
        stream.batch()
    stream.restart(skipChangeCommits="true")
    assert stream.rest() == [["a", "b"]]


def test_publishes_that_leave_all_rows_as_they_were_are_not_changes(graph: Storage) -> None:
    stream = Stream(graph, table=PERSON)
    stream.batch()
    write(graph, {PERSON: ["a"]})
    write(graph, {PERSON: ["b"]}, "append", writeMode="merge")
    optimize.optimize(graph, "main", None, optimize.run_here)
    write(graph, {PERSON: ["c"]})
    assert stream.rest() == [["a", "b", "c"]]


def test_a_change_feed_without_a_start_gives_the_snapshot_as_inserts_and_then_changes(
    graph: Storage,
) -> None:
    stream = Stream(graph, readChangeFeed="true")
    version = load(graph).graph_version
    first = stream.batch()
    assert [(row["_change_type"], row["_commit_version"]) for row in first] == [
        ("insert", version)
    ] * 2
    write(graph, {PERSON: ["a", "first"]}, "append", writeMode="merge")
    write(graph, {KNOWS: ["first"]}, "append", writeMode="delete")
    told = sorted((row["_table"], row["_change_type"], row["id"]) for row in stream.batch())
    assert told == [
        (KNOWS, "delete", "first"),
        (PERSON, "insert", "a"),
        (PERSON, "update_postimage", "first"),
        (PERSON, "update_preimage", "first"),
    ]


@needs_limits
def test_a_filter_and_columns_hold_for_the_snapshot_and_for_what_comes(graph: Storage) -> None:
    write(graph, {PERSON: ["a", "b"]})
    stream = Stream(graph, table=PERSON, columns="id,age", filter="age >= 1", maxRowsPerTrigger="1")
    assert stream.schema.names == ["id", "age"]
    write(graph, {PERSON: ["c", "d", "e"]})
    assert sorted(one for batch in stream.rest() for one in batch) == ["b", "d", "e"]


def test_a_property_that_is_added_ends_the_query_and_a_restart_has_it(graph: Storage) -> None:
    stream = Stream(graph, table=PERSON)
    narrow = Stream(graph, table=PERSON, columns="id")
    stream.batch(), narrow.batch()
    properties.add_property(graph, write_options(graph), PERSON, "nick", "String?")
    write(graph, {PERSON: ["a"]})
    with pytest.raises(
        SchemaMismatchError, match="Column nick of node:Person was added.*checkpoint"
    ):
        stream.batch()
    assert narrow.rest() == [["a"]]
    stream.restart()
    (row,) = stream.batch()
    assert (row["id"], row["nick"]) == ("a", "a")


@pytest.mark.long
def test_a_branch_that_was_made_again_is_noticed(graph: Storage) -> None:
    branches.create_branch(graph, "dev", refs.named(graph, "main"))
    stream = Stream(graph, table=PERSON, branch="dev")
    stream.batch()
    write(graph, {PERSON: ["a"]}, branch="dev")
    assert stream.rest() == [["a"]]
    branches.delete_branch(graph, "dev")
    branches.create_branch(graph, "dev", refs.named(graph, "main"))
    for name in ("x", "y", "z"):
        write(graph, {PERSON: [name]}, branch="dev")
    with pytest.raises(VersionNotFoundError, match="was made again.*failOnDataLoss"):
        stream.batch()
    stream.restart(failOnDataLoss="false")
    assert [*stream.rest()] == [["y", "z"]]


def test_versions_that_were_cleaned_up_end_the_query_or_are_left_out_when_asked(
    graph: Storage,
) -> None:
    stream = Stream(graph, table=PERSON)
    stream.batch()
    for name in "abc":
        write(graph, {PERSON: [name]})
    tidy(graph)
    write(graph, {PERSON: ["d"]})
    with pytest.raises(VersionNotFoundError, match="cleaned up.*failOnDataLoss"):
        stream.batch()
    stream.restart(failOnDataLoss="false")
    assert stream.rest() == [["d"]]


def test_a_restore_is_a_change(graph: Storage) -> None:
    stream = Stream(graph, table=PERSON)
    feed = Stream(graph, table=PERSON, readChangeFeed="true")
    version = load(graph).graph_version
    write(graph, {PERSON: ["a"]})
    assert (sorted(stream.ids()), sorted(feed.ids())) == (["a", "first"], ["a", "first"])
    restore.restore(graph, write_options(graph, "overwrite"), str(version))
    with pytest.raises(UnsupportedError, match="restore"):
        stream.batch()
    assert [(row["_change_type"], row["id"]) for row in feed.batch()] == [("delete", "a")]


def test_a_dropped_table_is_a_change_and_then_not_found(graph: Storage) -> None:
    stream = Stream(graph, table=KNOWS)
    stream.batch()
    properties.drop_table(graph, write_options(graph, "overwrite"), [KNOWS])
    with pytest.raises(UnsupportedError, match="edge:Knows"):
        stream.batch()
    with pytest.raises(TableNotFoundError):
        stream.restart()


def test_an_offset_of_another_source_is_refused(graph: Storage) -> None:
    stream = Stream(graph)
    stream.offset = {"index": 3}
    with pytest.raises(CorruptManifestError, match="isn't one of an omnigraph stream"):
        stream.batch()


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"versionAsOf": "1"}, "versionAsOf doesn't go with a stream"),
        ({"metadata": "history"}, "metadata doesn't go with a stream"),
        ({"readChangeFeed": "true", "filter": "id = 'a'"}, "filter doesn't go with a stream with"),
        ({"readChangeFeed": "true", "skipChangeCommits": "true"}, "skipChangeCommits doesn't go"),
        ({"startingVersion": "1", "startingTimestamp": "0"}, "exclude each other"),
        ({"writeMode": "merge"}, "is for writing"),
        ({"maxRowsPerTrigger": "0"}, "maxRowsPerTrigger"),
    ],
)
def test_options_that_dont_go_with_a_stream_are_refused(given: dict[str, str], why: str) -> None:
    with pytest.raises(OptionError, match=why):
        StreamOptions.of(options.parse({"path": "/g", **given}))


@pytest.mark.long
@pytest.mark.parametrize("form", [2, 6])
@pytest.mark.parametrize("branch", ["main", "dev"])
def test_a_batch_costs_the_same_after_many_commits(
    graph: Storage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: int, branch: str
) -> None:
    """Datasets that are opened, fragments that are looked at, commits whose rows are read."""
    if form == 6:
        graph = people_of_engine_0_9(str(tmp_path / "newer"))
    assert formats.of_graph(graph).stamp == form
    if branch != "main":
        branches.create_branch(graph, branch, refs.named(graph, "main"))
        write(graph, {PERSON: ["own"]}, branch=branch)
    stream = Stream(graph, table=PERSON, branch=branch)
    stream.batch()
    counted: Counter[str] = Counter()
    for owner, name in ((Storage, "_open"), (feed_plan, "_fragment"), (commits, "Commit")):
        monkeypatch.setattr(owner, name, counting(counted, name, getattr(owner, name)))
    costs = []
    for number in range(10):
        write(graph, {PERSON: [f"p{number}"]}, branch=branch)
        counted.clear()
        assert stream.ids() == [f"p{number}"]
        costs.append({**counted})
    _, second, *later = costs  # the first one opens the snapshot that it begins with, too
    # Fragments of `__manifest` were gathered now and then: that version is looked at, too.
    assert {cost["_open"] - second["_open"] for cost in later} <= {0, 1}
    later = [{**cost, "_open": second["_open"]} for cost in later]
    if form == 6:  # there an append is a transaction of all fragments, and all are looked at
        later = [{**cost, "_fragment": second["_fragment"]} for cost in later]
    else:
        assert second["_fragment"] == 1
    assert later == [second] * len(later)


def counting(counted: Counter[str], name: str, call: Callable[..., Any]) -> Callable[..., Any]:
    def counts(*args: Any, **named: Any) -> Any:
        counted[name] += 1
        return call(*args, **named)

    return counts


@pytest.mark.long
@needs_limits
def test_a_stream_of_random_publishes_gives_each_row_once_whenever_it_is_restarted(
    graph: Storage,
) -> None:
    seed = random.randrange(1 << 30)
    dice = random.Random(seed)
    stream = Stream(graph, maxRowsPerTrigger=str(dice.randint(1, 6)))
    found: list[str] = []
    written = ["first", "first"]
    for number in range(15):
        rows = [f"n{number}_{n}" for n in range(dice.randint(1, 4))]
        write(graph, {dice.choice([PERSON, KNOWS]): rows})
        written += rows
        for _ in range(dice.randint(0, 2)):
            start, end = stream.plan()
            if dice.random() < 0.5:  # killed after the batch was planned: it is read again
                stream.restart()
            if start != end:
                found += [row["id"] for row in stream.read(start, end)]
                stream.offset = end
    found += [one for batch in stream.rest() for one in batch]
    assert sorted(found) == sorted(written), f"seed {seed}"


def tidy(graph: Storage) -> None:
    """Remove every version but the newest."""
    later = datetime.now(timezone.utc) + timedelta(days=30)
    cleanup.cleanup(graph, dry_run=False, now=later)
