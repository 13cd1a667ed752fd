"""Time travel and branches through Spark, on versions, commits, tags and times."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import pytest
from pyspark.sql import SparkSession

from omnigraph_spark import OmniGraph
from omnigraph_spark.errors import BranchNotFoundError, OptionError, VersionNotFoundError
from omnigraph_spark.history import commits
from omnigraph_spark.manifest.snapshot import load as load_snapshot
from omnigraph_spark.refs import branches, refs, tags
from omnigraph_spark.storage.store import Storage
from tests.support.frames import load, nothing_written, people, refused, save
from tests.support.writes import COMPANY, PERSON, new_graph, write

LATER = timedelta(hours=5, minutes=30)


@pytest.fixture(scope="module")
def storage(tmp_path_factory: pytest.TempPathFactory) -> Storage:
    """Three commits on `main`; `rev/1`, made at the second, with a table of its own and a tag."""
    storage = new_graph(Storage.at(str(tmp_path_factory.mktemp("travel") / "g")), [PERSON])
    write(storage, {PERSON: ["second"]})
    branches.create_branch(storage, "rev/1", refs.named(storage, "main"))
    write(storage, {PERSON: ["third"]})
    write(storage, {PERSON: ["branch"], COMPANY: ["x"]}, branch="rev/1")
    tags.create_tag(storage, "tagged", refs.named(storage, "rev/1"))
    return storage


def times(storage: Storage) -> list[datetime]:
    """Return the times of the commits that wrote rows to main."""
    return [one.created_at for one in commits.read_commits(storage)[1:]]


def ids(spark: SparkSession, storage: Storage, **options: str) -> list[str]:
    frame = load(spark, storage.root, table="Person", **options)
    return sorted(row.id for row in frame.collect())


def test_a_time_means_the_last_commit_at_or_before_it(
    spark: SparkSession, storage: Storage
) -> None:
    first, second, third = times(storage)
    halfway = first + (second - first) / 2
    for moment, expected in (
        (first, ["first"]),
        (halfway, ["first"]),
        (second, ["first", "second"]),
        (third, ["first", "second", "third"]),
        (third + timedelta(days=1), ["first", "second", "third"]),
    ):
        for text in (
            f"{moment.isoformat()}Z",
            f"{(moment + LATER).isoformat()}+05:30",
        ):
            assert ids(spark, storage, timestampAsOf=text) == expected, text
    with refused(VersionNotFoundError, "no commit at or before"):
        ids(spark, storage, timestampAsOf="1999-01-01T00:00:00Z")


@pytest.mark.parametrize("zone", ["UTC", "Asia/Kolkata"])
def test_a_time_without_a_zone_is_refused_whatever_the_session_zone_is(
    spark: SparkSession, storage: Storage, zone: str
) -> None:
    """C38 wants it to be read in the session's zone, which Spark tells no Python source."""
    spark.conf.set("spark.sql.session.timeZone", zone)
    second = times(storage)[1]
    with refused(OptionError, "timestampAsOf has no time zone"):
        ids(spark, storage, timestampAsOf=second.isoformat())
    assert ids(spark, storage, timestampAsOf=f"{second.isoformat()}Z") == ["first", "second"]


@pytest.mark.parametrize(
    ("options", "kind", "why"),
    [
        ({"versionAsOf": "0"}, VersionNotFoundError, "no graph version 0"),
        ({"versionAsOf": "999"}, VersionNotFoundError, "no graph version 999"),
        ({"versionAsOf": "x"}, VersionNotFoundError, "no version, commit or tag 'x'"),
        ({"branch": "nope"}, BranchNotFoundError, "no branch 'nope'"),
        ({"branch": "main", "versionAsOf": "tagged"}, OptionError, "is on branch rev/1"),
        ({"versionAsOf": "2", "timestampAsOf": "0"}, OptionError, "exclude each other"),
    ],
)
def test_a_ref_that_isnt_there_is_refused(
    spark: SparkSession, storage: Storage, options: dict[str, str], kind: Any, why: str
) -> None:
    with refused(kind, why):
        ids(spark, storage, **options)


def test_a_branch_a_version_of_it_a_commit_and_a_tag_are_read(
    spark: SparkSession, storage: Storage
) -> None:
    head = load_snapshot(storage, "rev/1").graph_version
    commit = commits.head(storage, "rev/1")
    assert commit is not None
    expected = ["branch", "first", "second"]
    for options in (
        {"branch": "rev/1"},
        {"branch": "rev/1", "versionAsOf": str(head)},
        {"versionAsOf": commit.graph_commit_id},
        {"branch": "rev/1", "versionAsOf": commit.graph_commit_id},
        {"versionAsOf": "tagged"},
    ):
        assert ids(spark, storage, **options) == expected, options
    with refused(OptionError, "is on branch rev/1"):
        ids(spark, storage, branch="main", versionAsOf=commit.graph_commit_id)
    graph = OmniGraph.for_path(spark, storage.root)
    assert graph.table("Company", branch="rev/1").columns == ["id", "name", "age"]
    tables = {row.table_key for row in graph.tables(branch="rev/1").collect()}
    assert tables == {PERSON, COMPANY}
    second = f"{times(storage)[1].isoformat()}Z"
    assert graph.table("Person", branch="rev/1", version=second).count() == 2


def test_a_branch_that_isnt_there_or_cant_be_is_refused_for_writing(
    spark: SparkSession, storage: Storage
) -> None:
    frame = people(spark)
    with nothing_written(storage.root):
        with refused(BranchNotFoundError, "no branch 'nope'"):
            save(frame, storage.root, table="Person", branch="nope")
        with refused(OptionError, "a b"):
            save(frame, storage.root, table="Person", branch="a b", branchFrom="main")


def test_history_tells_every_publish_with_its_rows(spark: SparkSession, storage: Storage) -> None:
    graph = OmniGraph.for_path(spark, storage.root)
    told = graph.history(branch="rev/1").orderBy("version").collect()
    line = commits.read_commits(storage, "rev/1")
    assert [row.commit_id for row in told] == [one.graph_commit_id for one in line]
    assert [row.parent_id for row in told[1:]] == [row.commit_id for row in told[:-1]]
    assert [(row.branch, row.tables, row.rows_added, row.rows_removed) for row in told[1:]] == [
        ("main", [PERSON], 1, 0),
        ("main", [PERSON], 1, 0),
        ("rev/1", [COMPANY, PERSON], 2, 0),
    ]


def test_a_branch_is_restored_to_a_time(spark: SparkSession, storage: Storage) -> None:
    branches.create_branch(storage, "back", refs.named(storage, "main"))
    graph = OmniGraph.for_path(spark, storage.root)
    graph.restore(f"{times(storage)[0].isoformat()}Z", branch="back")
    assert ids(spark, storage, branch="back") == ["first"]
    told = graph.history(branch="back").orderBy("version").collect()[-1]
    # What lies below the fork is copied into it: the three rows went and the one came.
    assert (told.branch, told.tables) == ("back", [PERSON])
    assert (told.rows_added, told.rows_removed) == (1, 3)
