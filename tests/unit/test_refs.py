"""What branch, version, commit id, tag and time mean, on graphs of the engine."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from itertools import pairwise
from pathlib import Path

import pytest

from omnigraph_spark import _faults
from omnigraph_spark.errors import (
    BranchNotFoundError,
    GraphNotFoundError,
    OptionError,
    VersionNotFoundError,
)
from omnigraph_spark.history import commits
from omnigraph_spark.manifest import snapshot
from omnigraph_spark.manifest.snapshot import load
from omnigraph_spark.refs import refs, times
from omnigraph_spark.refs.refs import Resolved
from omnigraph_spark.storage import layout
from omnigraph_spark.storage.store import Storage
from tests.support import graphs
from tests.support.writes import PERSON, Died, die, ids, new_graph, write


@pytest.fixture(scope="module")
def storage(tmp_path_factory: pytest.TempPathFactory) -> Storage:
    """`rich`: main at 9; `dev` (8) and `feature/merged` (7) forked from 6; two tags."""
    root = graphs.unpack("v2", "rich", tmp_path_factory.mktemp("refs"))
    storage = Storage.at(str(root))
    main = storage.dataset(layout.MANIFEST)
    main.tags.create("release", 5)
    main.tags.create("trial", ("dev", 7))
    return storage


# --- branches and versions -----------------------------------------------------------------------


def test_without_a_version_a_branch_means_its_head(storage: Storage) -> None:
    assert refs.resolve(storage, "dev") == Resolved("dev", None)
    assert snapshot.load(storage, "dev").graph_version == 8


def test_a_version_is_the_branchs_own_from_its_fork_on_and_its_parents_below(
    storage: Storage,
) -> None:
    assert refs.resolve(storage, "dev", version_as_of="8") == Resolved("dev", 8)
    assert refs.resolve(storage, "dev", version_as_of="6") == Resolved("dev", 6)
    assert refs.resolve(storage, "dev", version_as_of="5") == Resolved("main", 5)
    assert refs.resolve(storage, version_as_of=" 9 ") == Resolved("main", 9)


@pytest.mark.parametrize(("branch", "version"), [("main", "99"), ("dev", "9"), ("main", "0")])
def test_an_unknown_version_is_refused_and_those_that_are_there_are_listed(
    storage: Storage, branch: str, version: str
) -> None:
    with pytest.raises(VersionNotFoundError, match=r"OMNIGRAPH_VERSION_NOT_FOUND.*\d-\d"):
        refs.resolve(storage, branch, version_as_of=version)


def test_a_cleaned_up_version_is_refused(tmp_path: Path) -> None:
    root = graphs.unpack("v2", "rich", tmp_path)
    (root / layout.MANIFEST / "_versions" / layout.v2_manifest_name(4)).unlink()
    with pytest.raises(VersionNotFoundError, match="one of 1-3, 5-9 on branch main"):
        refs.resolve(Storage.at(str(root)), version_as_of="4")


def test_an_unknown_branch_is_refused_and_those_that_are_there_are_listed(
    storage: Storage,
) -> None:
    for asked in ({"version_as_of": "3"}, {"timestamp_as_of": "2030-01-01T00:00:00Z"}):
        with pytest.raises(BranchNotFoundError, match="main, dev, feature/merged"):
            refs.resolve(storage, "nope", True, **asked)


def test_a_folder_without_a_graph_is_refused(tmp_path: Path) -> None:
    with pytest.raises(GraphNotFoundError, match="OMNIGRAPH_GRAPH_NOT_FOUND"):
        refs.resolve(Storage.at(str(tmp_path)), version_as_of="1")


def test_branches_are_listed_with_their_forks(storage: Storage) -> None:
    found = {one.name: (one.parent, one.parent_version) for one in refs.list_branches(storage)}
    assert found == {"main": (None, None), "dev": ("main", 6), "feature/merged": ("main", 6)}


# --- commit ids and tags -------------------------------------------------------------------------


def test_a_commit_id_names_its_branch_and_version(storage: Storage) -> None:
    for branch, head in (("dev", 8), ("main", 9), ("feature/merged", 7)):
        own = commits.head(storage, branch)
        assert own is not None
        assert refs.resolve(storage, version_as_of=own.graph_commit_id) == Resolved(branch, head)


def test_a_commit_id_beside_another_branch_is_refused(storage: Storage) -> None:
    own = commits.head(storage, "dev")
    assert own is not None
    assert refs.resolve(storage, "dev", True, own.graph_commit_id) == Resolved("dev", 8)
    with pytest.raises(OptionError, match=r"OMNIGRAPH_OPTION.*on branch dev"):
        refs.resolve(storage, "main", True, own.graph_commit_id)


def test_a_tag_names_its_branch_and_version(storage: Storage) -> None:
    assert refs.resolve(storage, version_as_of="release") == Resolved("main", 5)
    assert refs.resolve(storage, version_as_of="trial") == Resolved("dev", 7)
    with pytest.raises(OptionError, match=r"OMNIGRAPH_OPTION.*on branch dev"):
        refs.resolve(storage, "main", True, "trial")
    assert [(t.name, t.branch, t.version) for t in refs.list_tags(storage)] == [
        ("release", "main", 5),
        ("trial", "dev", 7),
    ]


@pytest.mark.parametrize("text", ["x", "", "-1", "1.5", "01ARZ3NDEKTSV4RRFFQ69G5FAV", "../x"])
def test_what_is_no_version_commit_or_tag_is_refused_and_the_tags_are_listed(
    storage: Storage, text: str
) -> None:
    with pytest.raises(VersionNotFoundError, match="tags release, trial"):
        refs.resolve(storage, version_as_of=text)


# --- times ---------------------------------------------------------------------------------------


def test_a_time_means_the_last_commit_at_or_before_it(storage: Storage) -> None:
    lineage = commits.read_commits(storage, "dev")
    assert [c.manifest_version for c in lineage] == [3, 4, 5, 6, 7, 8]
    for commit, following in pairwise(lineage):
        branch = "main" if commit.manifest_version < 6 else "dev"
        expected = Resolved(branch, commit.manifest_version)
        between = commit.created_at + (following.created_at - commit.created_at) / 2
        for moment in (commit.created_at, between):
            text = moment.isoformat() + "Z"
            assert refs.resolve(storage, "dev", timestamp_as_of=text) == expected


def test_a_time_after_the_last_commit_means_the_head(storage: Storage) -> None:
    assert refs.resolve(storage, "dev", timestamp_as_of="2999-01-01Z") == Resolved("dev", 8)


def test_a_publish_while_a_time_is_looked_up_is_not_read(tmp_path: Path) -> None:
    storage = new_graph(Storage.at(str(tmp_path / "g")), [PERSON])
    head = load(storage).graph_version
    asked = datetime.now(timezone.utc).isoformat()
    found = refs.resolve(storage, timestamp_as_of=asked)
    ref = refs.named(storage, f"main@{asked}")
    write(storage, {PERSON: ["late"]})
    assert found == ref == refs.resolve(storage, timestamp_as_of=asked) == Resolved("main", head)
    assert "late" not in ids(storage, PERSON, found.version)


def test_a_time_before_the_first_commit_is_refused_and_the_first_is_named(
    storage: Storage,
) -> None:
    first = commits.read_commits(storage)[0]
    with pytest.raises(VersionNotFoundError, match=first.graph_commit_id):
        refs.resolve(storage, timestamp_as_of="1999-01-01T00:00:00Z")
    with pytest.raises(VersionNotFoundError, match="version 3"):
        refs.resolve(storage, timestamp_as_of="0")


def test_a_newer_graph_has_the_times_of_the_commits_in_its_catalog(tmp_path: Path) -> None:
    storage = Storage.at(str(graphs.unpack("newer", "social", tmp_path)))
    assert not (Path(storage.root) / "_graph_commits.lance").exists()
    line = commits.complete(storage, "main", storage.dataset("__manifest").version)
    assert line == commits.read_commits(storage)
    assert len(line) > 1
    for commit in line[:-1]:
        text = commit.created_at.isoformat() + "Z"
        expected = Resolved("main", commit.manifest_version)
        assert refs.resolve(storage, timestamp_as_of=text) == expected
    with pytest.raises(VersionNotFoundError, match="no commit at or before"):
        refs.resolve(storage, timestamp_as_of="1999-01-01T00:00:00Z")


def test_a_publish_without_a_row_in_the_lineage_counts_by_its_time(tmp_path: Path) -> None:
    storage = new_graph(Storage.at(str(tmp_path / "g")), [PERSON])
    _faults.arm("lineage.before_row", die)
    with pytest.raises(Died):
        write(storage, {PERSON: ["dead"]})
    _faults.disarm()
    head = load(storage).graph_version
    told = commits.complete(storage, "main", head)[-1]
    assert told.manifest_version == head
    assert commits.read_commits(storage)[-1].manifest_version < head
    assert refs.resolve(storage, timestamp_as_of=told.created_at.isoformat() + "Z").version == head
    at = refs.named(storage, f"main@{(told.created_at - timedelta(microseconds=1)).isoformat()}Z")
    assert at == Resolved("main", commits.read_commits(storage)[-1].manifest_version)


def test_a_ref_may_be_a_time_of_a_branch_or_of_main(storage: Storage) -> None:
    lineage = commits.read_commits(storage, "dev")
    for commit in lineage[:-1]:
        text = commit.created_at.isoformat() + "Z"
        branch = "main" if commit.manifest_version < 6 else "dev"
        at = Resolved(branch, commit.manifest_version)
        assert refs.named(storage, f"dev@{text}") == at
        assert refs.on_lineage(storage, "dev", text) == at
    first = commits.read_commits(storage)[0]
    text = first.created_at.isoformat() + "Z"
    assert refs.named(storage, text) == Resolved("main", first.manifest_version)
    assert refs.on_lineage(storage, "dev", "2999-01-01T00:00:00Z") == Resolved(
        "dev", lineage[-1].manifest_version
    )
    with pytest.raises(OptionError, match="has no time zone"):
        refs.named(storage, "dev@2024-01-31T12:00:00")
    with pytest.raises(BranchNotFoundError, match="no branch 'nope'"):
        refs.named(storage, "nope@2024-01-31T12:00:00Z")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2024-01-31T12:00:00Z", datetime(2024, 1, 31, 12)),
        ("2024-01-31 12:00:00.5 Z", datetime(2024, 1, 31, 12, 0, 0, 500_000)),
        ("2024-01-31T12:00+05:30", datetime(2024, 1, 31, 6, 30)),
        ("2024-01-31T12:00:00.123456789+05:30", datetime(2024, 1, 31, 6, 30, 0, 123_456)),
        ("2024-01-31T12:00:00-08", datetime(2024, 1, 31, 20)),
        ("2024-01-31T12:00:00 -0300", datetime(2024, 1, 31, 15)),
        ("1706702400000", datetime(2024, 1, 31, 12)),
        ("-1", datetime(1969, 12, 31, 23, 59, 59, 999_000)),
    ],
)
def test_times_are_iso_8601_or_epoch_milliseconds(text: str, expected: datetime) -> None:
    assert times.parse_timestamp(text) == expected


@pytest.mark.parametrize(
    "text",
    ["yesterday", "2024-13-01", "2024-01-31T25:00:00Z", "", "31.01.2024", "9" * 15, "20240131T12Z"],
)
def test_what_is_not_a_time_is_refused(text: str) -> None:
    with pytest.raises(OptionError, match="is not a time"):
        times.parse_timestamp(text)


@pytest.mark.parametrize("text", ["2024-01-31T12:00:00", "2024-01-31", "2024-01-31 12:00"])
def test_a_time_without_a_zone_is_refused(text: str) -> None:
    with pytest.raises(OptionError, match=r"OMNIGRAPH_OPTION.*no time zone"):
        times.parse_timestamp(text)
