"""What happens to a graph while a stream follows it: the right rows, or a typed error; no gap."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest

from omnigraph_spark import _faults
from omnigraph_spark.errors import (
    BranchNotFoundError,
    OmnigraphError,
    UnsupportedError,
    VersionNotFoundError,
)
from omnigraph_spark.history import commits
from omnigraph_spark.history.commits import COMMITS, Commit
from omnigraph_spark.maintenance import cleanup, repair
from omnigraph_spark.manifest.snapshot import load
from omnigraph_spark.refs import branches, refs
from omnigraph_spark.schema_changes import properties
from omnigraph_spark.storage import append_log
from omnigraph_spark.storage.ids import new_ulid
from omnigraph_spark.storage.store import Storage
from tests.support.streams import Stream
from tests.support.writes import (
    COMPANY,
    KNOWS,
    PERSON,
    new_graph,
    write,
    write_and_die,
    write_options,
)

Follow = Callable[..., Stream]


@pytest.fixture
def graph(tmp_path: Path) -> Iterator[Storage]:
    yield new_graph(Storage.at(str(tmp_path / "g")), [PERSON, COMPANY, KNOWS])
    _faults.disarm()


@pytest.fixture(params=["new rows", "change feed"])
def follow(request: pytest.FixtureRequest, graph: Storage) -> Follow:
    """Return what starts a query, of new rows or of changes, that has read the snapshot."""
    feed = {"readChangeFeed": "true"} if request.param == "change feed" else {}

    def start(**asked: str) -> Stream:
        stream = Stream(graph, **feed, **asked)
        assert "first" in stream.ids()
        return stream

    return start


def test_a_branch_that_is_deleted_is_not_found_and_one_made_again_is_not_read_as_the_same(
    graph: Storage, follow: Follow
) -> None:
    branches.create_branch(graph, "dev", refs.named(graph, "main"))
    stream = follow(table=PERSON, branch="dev")
    write(graph, {PERSON: ["a"]}, branch="dev")
    assert stream.rest() == [["a"]]
    branches.delete_branch(graph, "dev")
    with pytest.raises(BranchNotFoundError):
        stream.batch()
    branches.create_branch(graph, "dev", refs.named(graph, "main"))
    for name in ("x", "y", "z"):
        write(graph, {PERSON: [name]}, branch="dev")
    for _ in range(2):
        with pytest.raises(VersionNotFoundError, match="was made again"):
            stream.batch()
        stream.restart()


def test_a_graph_that_is_deleted_and_made_again_is_not_read_as_the_same(
    graph: Storage, follow: Follow
) -> None:
    stream = follow()
    write(graph, {PERSON: ["a"]})
    assert stream.rest() == [["a"]]
    shutil.rmtree(graph.root)
    new_graph(graph, [PERSON, COMPANY, KNOWS])
    for name in ("x", "y", "z"):
        write(graph, {PERSON: [name]})
    for _ in range(2):
        with pytest.raises(VersionNotFoundError, match="was made again"):
            stream.batch()
        stream.restart()


def test_a_table_that_is_dropped_and_made_again_is_changes(graph: Storage, follow: Follow) -> None:
    stream = follow(table=COMPANY)
    properties.drop_table(graph, write_options(graph, "overwrite"), [COMPANY])
    write(graph, {COMPANY: ["x"]})
    write(graph, {COMPANY: ["y"]})
    if "readChangeFeed" in stream.asked:
        told = [(row["_change_type"], row["id"]) for row in stream.batch()]
        assert told == [("delete", "first"), ("insert", "x"), ("insert", "y")]
        return
    for _ in range(2):
        with pytest.raises(UnsupportedError, match="node:Company"):
            stream.batch()
        stream.restart()
    stream.restart(skipChangeCommits="true")
    assert stream.rest() == [["x", "y"]]


def test_a_cleanup_between_plan_and_read_ends_a_batch_or_leaves_it_as_it_was(
    graph: Storage, follow: Follow
) -> None:
    stream = follow(table=PERSON)
    write(graph, {PERSON: ["a"]})
    start, end = stream.plan()
    planned = stream.reader.partitions(start, end)
    write(graph, {PERSON: ["b"]})
    later = datetime.now(timezone.utc) + timedelta(days=30)
    cleanup.cleanup(graph, dry_run=False, now=later)
    try:
        batches = [batch for one in planned for batch in stream.reader.read(one)]
        assert [name for batch in batches for name in batch["id"].to_pylist()] == ["a"]
    except OmnigraphError as error:
        assert "was cleaned up" in str(error) or "not found" in str(error).lower()  # noqa: PT017
    stream.restart()
    with pytest.raises(VersionNotFoundError, match="cleaned up"):
        stream.batch()
    stream.restart(failOnDataLoss="false")
    write(graph, {PERSON: ["c"]})
    assert stream.rest() == [["c"]]


def test_a_writer_whose_clock_goes_backwards_is_read_once_and_in_order(
    graph: Storage, follow: Follow, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = follow(table=PERSON)
    since = datetime.now(timezone.utc)
    write(graph, {PERSON: ["a"]})
    behind = since.replace(tzinfo=None) - timedelta(hours=5)
    monkeypatch.setattr(commits, "_now", lambda: behind)
    for name in ("b", "c"):
        write(graph, {PERSON: [name]})
    timed = follow_from(graph, since)
    assert timed.rest() == [["a", "b", "c"]]
    rows = stream.batch()
    assert [row["id"] for row in rows] == ["a", "b", "c"]
    if "readChangeFeed" in stream.asked:
        times = [row["_commit_timestamp"] for row in rows]
        assert times == sorted({*times})
    stream.restart()
    assert stream.rest() == []


def follow_from(graph: Storage, since: datetime) -> Stream:
    return Stream(graph, table=PERSON, startingTimestamp=since.isoformat())


@pytest.mark.parametrize("restarts", [False, True])
def test_a_commit_whose_row_is_missing_in_the_lineage_is_read_once(
    graph: Storage, follow: Follow, restarts: bool
) -> None:
    stream = follow(table=PERSON)
    write_and_die(graph, "lineage.before_row", {PERSON: ["dead"]})
    assert stream.ids() == ["dead"]
    if restarts:
        stream.restart()
    assert stream.rest() == []
    write(graph, {PERSON: ["next"]})  # fills the gap
    assert stream.ids() == ["next"]
    stream.restart()
    assert stream.rest() == []


@pytest.mark.parametrize("restarts", [False, True])
def test_a_commit_that_the_row_of_another_engine_closed_over_is_read_once(
    graph: Storage, follow: Follow, restarts: bool
) -> None:
    stream = follow(table=PERSON)
    head = commits.read_commits(graph)[-1]
    write_and_die(graph, "lineage.before_row", {PERSON: ["dead"]})
    assert stream.ids() == ["dead"]
    write_and_die(graph, "lineage.before_row", {PERSON: ["theirs"]})
    version = load(graph).graph_version
    row = Commit(new_ulid(), None, version, head.graph_commit_id, None, datetime(2040, 1, 1))
    append_log.append(graph, COMMITS, commits._rows([row]))
    if restarts:
        stream.restart()
    assert stream.ids() == ["theirs"]
    repair.repair(graph, dry_run=False, grace_seconds=0.05)
    write(graph, {PERSON: ["next"]})
    assert stream.ids() == ["next"]
