"""The change feed without Spark: every kind of publish, ranges, shared files, ends."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pyarrow as pa
import pytest

from omnigraph_spark import _faults
from omnigraph_spark.errors import (
    BranchNotFoundError,
    OptionError,
    TableNotFoundError,
    VersionNotFoundError,
)
from omnigraph_spark.history import commits
from omnigraph_spark.maintenance import optimize
from omnigraph_spark.manifest.snapshot import load
from omnigraph_spark.merge import restore
from omnigraph_spark.option_rules import FeedEnds
from omnigraph_spark.read.feed_plan import Planner
from omnigraph_spark.refs import branches, changes, refs, tags
from omnigraph_spark.refs.changes import Span
from omnigraph_spark.schema_changes import properties
from omnigraph_spark.storage.store import Storage
from omnigraph_spark.write.commit.commit import commit
from omnigraph_spark.write.tasks.stage import stage
from tests.support import graphs, plain_writes
from tests.support.feeds import by_hand, pieces, read_feed
from tests.support.writes import (
    COMPANY,
    KNOWS,
    PERSON,
    Died,
    die,
    new_graph,
    plan,
    write,
    write_options,
)


@pytest.fixture
def graph(tmp_path: Path) -> Storage:
    return new_graph(Storage.at(str(tmp_path / "g")), [PERSON, KNOWS])


def head(graph: Storage, branch: str = "main") -> int:
    return load(graph, branch).graph_version


def short(rows: list[dict[str, object]]) -> list[tuple[object, ...]]:
    return sorted((r["_commit_version"], r["_table"], r["_change_type"], r["id"]) for r in rows)  # type: ignore[type-var]


def test_a_publish_of_two_tables_is_told_with_its_commit(graph: Storage) -> None:
    done = write(graph, {PERSON: ["a", "b"], KNOWS: ["e"]})
    found = read_feed(graph, Span("main", done.graph_version, done.graph_version))
    version = done.graph_version
    assert short(found) == [
        (version, KNOWS, "insert", "e"),
        (version, PERSON, "insert", "a"),
        (version, PERSON, "insert", "b"),
    ]
    head_commit = commits.head(graph)
    assert head_commit is not None
    for row in found:
        assert row["_commit_id"] == done.publish_id == head_commit.graph_commit_id
        assert row["_commit_timestamp"].replace(tzinfo=None) == head_commit.created_at
    (edge,) = [row for row in found if row["_table"] == KNOWS]
    assert (edge["src"], edge["dst"], edge["name"]) == ("e", "e", None)


@pytest.mark.long
def test_every_kind_of_publish_is_told_as_a_comparison_by_hand_tells_it(graph: Storage) -> None:
    start = head(graph)
    write(graph, {PERSON: ["a", "b", "c"]})
    write(graph, {PERSON: ["b", "first", "n"]}, "overwrite")  # other ages: changed rows
    restore.restore(graph, write_options(graph), str(start))
    branches.create_branch(graph, "dev", refs.named(graph, "main"))
    write(graph, {PERSON: ["d"], COMPANY: ["x"]}, branch="dev")
    write(graph, {PERSON: []}, "overwrite", branch="dev")
    restore.restore(graph, write_options(graph, branch="dev"), str(start))
    line = commits.complete(graph, "dev", head(graph, "dev"))
    for before, after in pairwise(line):
        old, new = (load(graph, one.branch, one.manifest_version) for one in (before, after))
        version = after.manifest_version
        found = read_feed(graph, Span("dev", version, version))
        for key in (PERSON, COMPANY, KNOWS):
            sides = [
                [(r["id"], r.get("age")) for r in contents(graph, one, key).to_pylist()]
                if key in one.tables
                else []
                for one in (old, new)
            ]
            told = [(r["_change_type"], r["id"], r["age"]) for r in found if r["_table"] == key]
            assert sorted(told) == by_hand(*sides), (after, key)


def test_a_zero_that_an_upsert_gave_another_sign_is_in_the_feed(tmp_path: Path) -> None:
    storage = Storage.at(str(tmp_path / "zeros"))
    plain_writes.save(storage.root, {"id": ["a", "b"], "v": [0.0, 1.0]}, table=PERSON)
    before = head(storage)
    signed = {"id": ["a", "b"], "v": [-0.0, 1.0]}
    plain_writes.save(storage.root, signed, table=PERSON, writeMode="merge")
    found = read_feed(storage, Span("main", before + 1, head(storage)))
    assert [(row["_change_type"], row["id"], str(row["v"])) for row in found] == [
        ("update_preimage", "a", "0.0"),
        ("update_postimage", "a", "-0.0"),
    ]


def contents(graph: Storage, snapshot: object, key: str) -> pa.Table:
    from omnigraph_spark.read.plan import read_table

    return read_table(graph, snapshot, key)  # type: ignore[arg-type]


def many(graph: Storage, ids: list[str], mode: str = "append") -> int:
    """Write people in several files."""
    planned = plan(graph, [PERSON], mode, maxRowsPerFile="100")
    schema = planned.targets[PERSON].schema
    arrays = [
        pa.array(ids if field.type == pa.utf8() else [len(i) for i in ids], field.type)
        for field in schema
    ]
    rows = pa.RecordBatch.from_arrays(arrays, schema=schema)
    return commit(planned, stage(planned, [(PERSON, rows)])).graph_version


@pytest.mark.long
@pytest.mark.parametrize("max_bytes", [1, 700, 3000, 1 << 30])
def test_ranges_of_ids_tell_the_same_whatever_their_size(graph: Storage, max_bytes: int) -> None:
    many(graph, [f"p'{n:04}" for n in range(1000)])
    version = many(graph, [f"p'{n:04}" for n in range(500, 1500)] + ["x"], "overwrite")
    found = read_feed(graph, Span("main", version, version), max_bytes=max_bytes)
    kinds = [(row["_change_type"], row["id"]) for row in found]
    assert sorted(kinds) == sorted(
        [("delete", f"p'{n:04}") for n in range(500)]
        + [("delete", "first")]
        + [("insert", f"p'{n:04}") for n in range(1000, 1500)]
        + [("insert", "x")]
    )
    if max_bytes == 700:
        assert pieces(graph, Span("main", version, version), max_bytes) > 20


def test_the_changes_of_like_publishes_are_shared_out_evenly(graph: Storage) -> None:
    first = head(graph) + 1
    for number in range(7):
        many(graph, [f"n{number}{n:03d}" for n in range(100)])
    found = changes.feed(graph, Span("main", first, head(graph)), PERSON)
    sizes = [size for change in found.changes for size, _ in Planner(graph, 1 << 30).pieces(change)]
    assert len(sizes) == 7
    partitions = Planner(graph, 5 * max(sizes)).partitions(found.changes)
    assert [len(pieces) for pieces in partitions] == [4, 3]


def test_files_that_both_versions_have_are_not_read(graph: Storage) -> None:
    many(graph, [f"p{n}" for n in range(1000)])
    version = write(graph, {PERSON: ["new"]}).graph_version
    entry = load(graph).entry(PERSON)
    for file in (Path(graph.root) / entry.location / "data").iterdir():
        if b"p999" in file.read_bytes():
            file.write_bytes(b"")
    found = read_feed(graph, Span("main", version, version))
    assert short(found) == [(version, PERSON, "insert", "new")]


def test_a_compacted_table_has_not_changed(graph: Storage) -> None:
    for name in "abcd":
        write(graph, {PERSON: [name]})
    done = optimize.optimize(graph, "main", [PERSON], optimize.run_here)
    assert [one.fragments_after for one in done.tables] == [1]
    version = head(graph)
    assert read_feed(graph, Span("main", version, version)) == []
    after = write(graph, {PERSON: ["e"]}).graph_version
    found = read_feed(graph, Span("main", version, after))
    assert short(found) == [(after, PERSON, "insert", "e")]


def test_an_added_property_changes_no_row_and_a_dropped_one_every_row_that_had_it(
    graph: Storage,
) -> None:
    start = head(graph)
    properties.add_property(graph, write_options(graph), PERSON, "nick", "String?")
    assert read_feed(graph, Span("main", start + 1, head(graph))) == []
    version = write(graph, {PERSON: ["n"]}).graph_version
    (row,) = read_feed(graph, Span("main", version, version))
    assert (row["_change_type"], row["id"], row["nick"]) == ("insert", "n", "n")
    version = properties.drop_property(graph, write_options(graph), PERSON, "nick").graph_version
    found = read_feed(graph, Span("main", version, version))
    assert sorted((r["_change_type"], r["id"], r["nick"]) for r in found) == [
        ("update_postimage", "n", None),
        ("update_preimage", "n", "n"),
    ]


@pytest.mark.parametrize("again", [False, True])
def test_a_restore_that_brings_a_dropped_property_back_tells_its_values(
    graph: Storage, again: bool
) -> None:
    properties.add_property(graph, write_options(graph), PERSON, "nick", "String?")
    old = write(graph, {PERSON: ["a", "b"]}).graph_version
    properties.drop_property(graph, write_options(graph), PERSON, "nick")
    if again:
        properties.add_property(graph, write_options(graph), PERSON, "nick", "String?")
    version = restore.restore(graph, write_options(graph), str(old)).graph_version
    found = read_feed(graph, Span("main", version, version))
    assert sorted((r["_change_type"], r["id"], r["nick"]) for r in found) == [
        ("update_postimage", "a", "a"),
        ("update_postimage", "b", "b"),
        ("update_preimage", "a", None),
        ("update_preimage", "b", None),
    ]


def test_deleted_rows_are_told_and_the_rows_beside_them_are_not(tmp_path: Path) -> None:
    storage = Storage.at(str(graphs.unpack("v2", "rich", tmp_path)))
    line = commits.read_commits(storage)
    first, last = line[1].manifest_version, line[-1].manifest_version
    told: dict[object, int] = {}
    for row in read_feed(storage, Span("main", first, last)):
        kind = str(row["_change_type"])
        step = {"insert": 1, "delete": -1}.get(kind, 0)
        told[row["_table"]] = told.get(row["_table"], 0) + step
    snapshot = load(storage)
    assert told == {key: entry.row_count for key, entry in snapshot.tables.items()}


def test_a_publish_that_has_no_row_in_the_lineage_is_told_too(graph: Storage) -> None:
    _faults.arm("lineage.before_row", die)
    with pytest.raises(Died):
        write(graph, {PERSON: ["dead"]}, actor="me")
    _faults.disarm()
    found = read_feed(graph, changes.span(graph, "main", FeedEnds(str(head(graph)))))
    assert [(row["_change_type"], row["id"]) for row in found] == [("insert", "dead")]


def test_the_ends_may_be_versions_commits_tags_and_times(graph: Storage) -> None:
    for name in "ab":
        write(graph, {PERSON: [name]})
    line = commits.read_commits(graph)
    second, third = line[-2], line[-1]
    tags.create_tag(graph, "two", refs.named(graph, str(second.manifest_version)))
    expected = Span("main", second.manifest_version, third.manifest_version)
    time = second.created_at.isoformat() + "Z"
    for start in (
        FeedEnds(str(second.manifest_version)),
        FeedEnds(second.graph_commit_id),
        FeedEnds("two"),
        FeedEnds(start_time=time),
        FeedEnds("two", str(third.manifest_version)),
        FeedEnds("two", third.graph_commit_id),
        FeedEnds("two", end_time="2999-01-01T00:00:00Z"),
    ):
        assert changes.span(graph, "main", start) == expected, start
    only = Span("main", second.manifest_version, second.manifest_version)
    assert changes.span(graph, "main", FeedEnds("two", "two")) == only
    assert changes.span(graph, "main", FeedEnds(start_time=time, end_time=time)) == only


def test_ends_that_arent_there_are_refused(graph: Storage) -> None:
    for ends, kind, why in (
        (FeedEnds("99"), VersionNotFoundError, "no graph version 99"),
        (FeedEnds("nope"), VersionNotFoundError, "no version, commit or tag 'nope'"),
        (FeedEnds("3", "2"), OptionError, "The end is before the start"),
        (FeedEnds(start_time="2999-01-01T00:00:00Z"), VersionNotFoundError, "at or after"),
        (FeedEnds("1", end_time="1999-01-01T00:00:00Z"), VersionNotFoundError, "at or before"),
        (FeedEnds(start_time="2999-01-01"), OptionError, "startingTimestamp has no time zone"),
        (FeedEnds("1", end_time="x"), OptionError, "endingTimestamp is not a time"),
    ):
        with pytest.raises(kind, match=f"OMNIGRAPH_.*{why}"):
            changes.span(graph, "main", ends)
    with pytest.raises(BranchNotFoundError, match="no branch 'nope'"):
        changes.span(graph, "nope", FeedEnds("1"))
    with pytest.raises(TableNotFoundError, match="Nope"):
        changes.feed(graph, Span("main", 2, head(graph)), "Nope")
