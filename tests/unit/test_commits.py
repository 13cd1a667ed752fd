"""The lineage: one commit per publish, whoever dies or comes late."""

from __future__ import annotations

import multiprocessing
import os
import shutil
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from omnigraph_spark import _faults
from omnigraph_spark.errors import BranchNotFoundError, StorageError
from omnigraph_spark.history import commits, publishes
from omnigraph_spark.history.commits import COMMITS, Commit
from omnigraph_spark.history.init import init_graph
from omnigraph_spark.history.publishes import publishes_between
from omnigraph_spark.storage import append_log, kept_rows, layout, store
from omnigraph_spark.storage.ids import new_ulid
from omnigraph_spark.storage.store import Storage
from tests.support import graphs
from tests.support.catalogs import publish_like_the_engine, publish_version

KEY = "node:Person"


@pytest.fixture
def graph(tmp_path: Path) -> Storage:
    storage = Storage.at(str(tmp_path / "graph"))
    init_graph(storage)
    return storage


def check_one_line(lineage: list[Commit]) -> None:
    """Assert that a lineage is a line: one commit per version, each the child of the one before."""
    assert len({c.manifest_version for c in lineage}) == len(lineage)
    assert [c.parent_commit_id for c in lineage] == [None] + [
        c.graph_commit_id for c in lineage[:-1]
    ]
    assert [c.manifest_version for c in lineage] == sorted(c.manifest_version for c in lineage)


# --- reading what the engine wrote -------------------------------------------------------------


@pytest.mark.parametrize("moved", [False, True])
@pytest.mark.parametrize(
    ("branch", "versions", "own"),
    [
        ("main", [3, 4, 5, 6, 7, 8, 9], 7),
        ("dev", [3, 4, 5, 6, 7, 8], 2),
        ("feature/merged", [3, 4, 5, 6, 7], 1),
    ],
)
def test_the_lineage_of_an_engine_graph_is_read_on_every_branch(
    tmp_path: Path, branch: str, versions: list[int], own: int, moved: bool
) -> None:
    root = graphs.unpack("v2", "rich", tmp_path)
    if moved:
        root = Path(shutil.move(root, tmp_path / "elsewhere"))
    before = graphs.file_hashes(root)
    storage = Storage.at(str(root))
    lineage = commits.read_commits(storage, branch)
    assert [c.manifest_version for c in lineage] == versions
    check_one_line(lineage)
    assert [c.branch for c in lineage].count(branch) == own
    assert commits.head(storage, branch) == lineage[-1]
    assert graphs.file_hashes(root) == before


def test_a_merge_names_the_commit_that_it_merged(tmp_path: Path) -> None:
    storage = Storage.at(str(graphs.unpack("v2", "rich", tmp_path)))
    merge = commits.read_commits(storage)[-1]
    merged = commits.read_commits(storage, "feature/merged")[-1]
    assert merge.merged_parent_commit_id == merged.graph_commit_id
    assert merge.created_at == datetime(2026, 11, 27, 23, 14, 46, 59314)


def test_a_v1_branch_has_its_parents_commits_and_its_own(tmp_path: Path) -> None:
    storage = Storage.at(str(graphs.unpack("v1", "social", tmp_path)))
    lineage = commits.read_commits(storage, "dev")
    assert [(c.manifest_version, c.branch) for c in lineage] == [
        (2, "main"),
        (3, "main"),
        (4, "dev"),
    ]
    check_one_line(lineage)


def test_a_commit_is_found_by_its_id_on_whichever_branch_it_was_made(tmp_path: Path) -> None:
    storage = Storage.at(str(graphs.unpack("v2", "rich", tmp_path)))
    for branch in ("main", "dev", "feature/merged"):
        newest = commits.read_commits(storage, branch)[-1]
        found = commits.find_commit(storage, newest.graph_commit_id)
        assert found == newest
        assert found is not None
        assert found.branch == branch
    assert commits.find_commit(storage, new_ulid()) is None


def test_a_graph_without_lineage_has_no_commits(tmp_path: Path) -> None:
    storage = Storage.at(str(tmp_path / "nothing"))
    assert commits.read_commits(storage) == []
    assert commits.head(storage) is None
    assert commits.find_commit(storage, new_ulid()) is None
    assert not (tmp_path / "nothing").exists()


def test_an_unknown_branch_is_refused_by_name(tmp_path: Path) -> None:
    storage = Storage.at(str(graphs.unpack("v2", "rich", tmp_path)))
    with pytest.raises(BranchNotFoundError, match=r"OMNIGRAPH_BRANCH_NOT_FOUND.*feature/merged"):
        commits.read_commits(storage, "nosuch")


def test_a_lost_data_file_is_a_typed_error_and_never_a_shorter_lineage(tmp_path: Path) -> None:
    root = graphs.unpack("v2", "rich", tmp_path)
    next((root / layout.GRAPH_COMMITS / "data").iterdir()).unlink()
    kept_rows.forget()
    with pytest.raises(StorageError, match="OMNIGRAPH_STORAGE"):
        commits.read_commits(Storage.at(str(root)))


# --- recording ---------------------------------------------------------------------------------


def test_a_publish_becomes_a_commit_named_by_its_publish_id(graph: Storage) -> None:
    publish_id, version = publish_version(graph, KEY, 1)
    commits.record_publish(graph, "main", publish_id, version, "ada")
    lineage = commits.read_commits(graph)
    check_one_line(lineage)
    assert [c.manifest_version for c in lineage] == [1, version]
    assert lineage[-1].graph_commit_id == publish_id
    assert lineage[-1].actor_id == "ada"
    assert lineage[-1].manifest_branch is None
    assert commits.head(graph) == lineage[-1]


def test_recording_twice_changes_nothing(graph: Storage) -> None:
    published = publish_version(graph, KEY, 1)
    commits.record_publish(graph, "main", *published, "ada")
    rows = graph.dataset(layout.GRAPH_COMMITS).count_rows()
    commits.record_publish(graph, "main", *published, "ada")
    assert graph.dataset(layout.GRAPH_COMMITS).count_rows() == rows


def test_a_publish_whose_writer_died_gets_its_row_and_actor_from_the_next_writer(
    graph: Storage,
) -> None:
    dead_id, dead_version = publish_version(graph, KEY, 1, actor="ada")
    deader_id, _ = publish_version(graph, KEY, 2)
    own_id, own_version = publish_version(graph, KEY, 3)
    commits.record_publish(graph, "main", own_id, own_version, "bob")
    lineage = commits.read_commits(graph)
    check_one_line(lineage)
    assert [c.graph_commit_id for c in lineage[1:]] == [dead_id, deader_id, own_id]
    assert [c.actor_id for c in lineage[1:]] == ["ada", None, "bob"]
    assert lineage[1].manifest_version == dead_version
    assert lineage[1].created_at <= lineage[2].created_at <= lineage[3].created_at


@pytest.mark.parametrize("point", ["lineage.before_row", "lineage.after_actor"])
def test_a_writer_that_dies_in_the_middle_of_its_lineage_leaves_a_gap_that_is_filled(
    graph: Storage, point: str
) -> None:
    dead = publish_version(graph, KEY, 1, actor="ada")
    _faults.arm(point, "raise")
    try:
        with pytest.raises(StorageError, match="Injected fault"):
            commits.record_publish(graph, "main", *dead, "ada")
    finally:
        _faults.disarm()
    assert len(commits.read_commits(graph)) == 1
    commits.record_publish(graph, "main", *publish_version(graph, KEY, 2))
    lineage = commits.read_commits(graph)
    check_one_line(lineage)
    assert lineage[1].graph_commit_id == dead[0]
    assert lineage[1].actor_id == "ada"


def test_a_slow_writer_finds_the_row_that_a_faster_one_wrote_for_it(graph: Storage) -> None:
    slow = publish_version(graph, KEY, 1)
    fast = publish_version(graph, KEY, 2)
    commits.record_publish(graph, "main", *fast)
    commits.record_publish(graph, "main", *slow, "ada")
    lineage = commits.read_commits(graph)
    check_one_line(lineage)
    assert [c.graph_commit_id for c in lineage[1:]] == [slow[0], fast[0]]


def test_a_slow_merge_still_names_what_it_merged(graph: Storage) -> None:
    slow = publish_version(graph, KEY, 1)
    fast = publish_version(graph, KEY, 2)
    commits.record_publish(graph, "main", *fast)
    merged = new_ulid()
    commits.record_publish(graph, "main", *slow, None, merged)
    lineage = commits.read_commits(graph)
    check_one_line(lineage)
    assert lineage[1].merged_parent_commit_id == merged
    assert lineage[2].graph_commit_id == fast[0]


def test_two_fillers_of_one_gap_make_one_commit_of_it(graph: Storage, tmp_path: Path) -> None:
    gap = publish_version(graph, KEY, 1, actor="ada")
    own = publish_version(graph, KEY, 2)
    # The other filler saw the log before our rows were there, and appends what it found missing.
    shutil.copytree(graph.root, tmp_path / "other")
    commits.record_publish(graph, "main", *own)
    other = Storage.at(str(tmp_path / "other"))
    commits.record_publish(other, "main", *own)
    theirs = append_log.read(other, COMMITS)
    assert theirs is not None
    append_log.append(graph, COMMITS, theirs.slice(1))
    lineage = commits.read_commits(graph)
    check_one_line(lineage)
    assert [c.graph_commit_id for c in lineage[1:]] == [gap[0], own[0]]
    commits.record_publish(graph, "main", *publish_version(graph, KEY, 3))
    check_one_line(commits.read_commits(graph))


def test_a_publish_of_the_engine_without_a_row_gets_the_same_id_from_every_filler(
    graph: Storage, tmp_path: Path
) -> None:
    version = publish_like_the_engine(graph, KEY, 1)
    shutil.copytree(graph.root, tmp_path / "other")
    other = Storage.at(str(tmp_path / "other"))
    own = publish_version(graph, KEY, 2)
    for storage in (graph, other):
        commits.record_publish(storage, "main", own[0], own[1])
    ours, theirs = (commits.read_commits(storage) for storage in (graph, other))
    assert [c.graph_commit_id for c in ours] == [c.graph_commit_id for c in theirs]
    assert ours[1].manifest_version == version
    assert ours[1].created_at == theirs[1].created_at
    assert len(ours[1].graph_commit_id) == 26


def test_a_row_that_the_engine_wrote_late_does_not_break_the_line(graph: Storage) -> None:
    version = publish_like_the_engine(graph, KEY, 1)
    own = publish_version(graph, KEY, 2)
    commits.record_publish(graph, "main", *own)
    derived = commits.read_commits(graph)[1]
    at = derived.created_at - timedelta(seconds=1)
    late = Commit(new_ulid(), None, version, derived.parent_commit_id, None, at)
    append_log.append(
        graph, COMMITS, COMMITS.rows([{n: getattr(late, n) for n in COMMITS.schema.names}])
    )
    lineage = commits.read_commits(graph)
    check_one_line(lineage)
    assert lineage[1] == derived


@pytest.mark.parametrize("known", [True, False])
def test_settings_and_compactions_of_the_manifest_are_no_publishes(
    graph: Storage, monkeypatch: pytest.MonkeyPatch, known: bool
) -> None:
    """By what their transactions say, or, for an unknown kind, by comparing the rows."""

    def compared(*_: object) -> bool:
        raise AssertionError("rows were read to find out")

    if known:
        monkeypatch.setattr(publishes, "_same_rows", compared)
    else:
        monkeypatch.setattr(publishes, "_KEEP_ROWS", frozenset())
    commits.record_publish(graph, "main", *publish_version(graph, KEY, 1))
    manifest = graph.dataset(layout.MANIFEST)
    publish_version(graph, KEY, 2)
    manifest.checkout_latest()
    manifest.optimize.compact_files()
    manifest.update_config({"some": "setting"})
    manifest.update_schema_metadata({"some": "metadata"})
    manifest.checkout_latest()
    between = int(manifest.version)
    own = publish_version(graph, KEY, 3)
    assert own[1] == between + 1
    commits.record_publish(graph, "main", *own)
    lineage = commits.read_commits(graph)
    check_one_line(lineage)
    assert [c.manifest_version for c in lineage] == [1, 3, 4, own[1]]


def test_a_graph_that_others_made_without_lineage_gets_all_of_it(graph: Storage) -> None:
    shutil.rmtree(Path(graph.root) / layout.GRAPH_COMMITS)
    shutil.rmtree(Path(graph.root) / layout.GRAPH_COMMIT_ACTORS)
    first = publish_version(graph, KEY, 1)
    own = publish_version(graph, KEY, 2)
    commits.record_publish(graph, "main", *own, "ada")
    lineage = commits.read_commits(graph)
    check_one_line(lineage)
    assert [c.manifest_version for c in lineage] == [1, first[1], own[1]]
    assert [c.graph_commit_id for c in lineage[1:]] == [first[0], own[0]]
    assert lineage[-1].actor_id == "ada"
    assert graph.dataset(layout.GRAPH_COMMITS).config() == {}


def test_auto_cleanup_goes_before_the_first_row_of_ours(tmp_path: Path) -> None:
    storage = Storage.at(str(graphs.unpack("v2", "rich", tmp_path)))
    engine = commits.read_commits(storage)
    before = storage.dataset(layout.GRAPH_COMMITS)
    assert store.keys(before)
    published = publish_version(storage, "node:Added", 1)
    commits.record_publish(storage, "main", *published, "ada")
    for name in (layout.GRAPH_COMMITS, layout.GRAPH_COMMIT_ACTORS):
        assert store.keys(storage.dataset(name)) == []
    after = storage.dataset(layout.GRAPH_COMMITS)
    made = range(before.version + 1, after.version + 1)
    transactions = [after.read_transaction(v) for v in made]
    kinds = [type(t.operation).__name__ for t in transactions if t is not None]
    assert kinds == ["UpdateConfig", "Append"]
    lineage = commits.read_commits(storage)
    assert lineage[:-1] == engine
    check_one_line(lineage)


def test_in_the_steady_state_a_record_opens_the_log_and_nothing_else(
    graph: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    commits.record_publish(graph, "main", *publish_version(graph, KEY, 1))
    published = publish_version(graph, KEY, 2)
    opened: list[str] = []
    real = Storage.dataset

    def counting(self: Storage, location: str, *args: object) -> object:
        opened.append(location)
        return real(self, location, *args)  # type: ignore[arg-type]

    monkeypatch.setattr(Storage, "dataset", counting)
    commits.record_publish(graph, "main", *published)
    assert opened == [layout.GRAPH_COMMITS]  # one handle reads its end and appends


def test_a_long_lineage_is_found_from_far_behind(
    graph: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commits, "_NEAR_ROWS", 2)
    monkeypatch.setattr(append_log, "SMALL_ROWS", 1)
    published = [publish_version(graph, KEY, n) for n in range(1, 8)]
    for one in published:
        commits.record_publish(graph, "main", *one)
    commits.record_publish(graph, "main", *published[0])
    assert graph.dataset(layout.GRAPH_COMMITS).count_rows() == 8
    check_one_line(commits.read_commits(graph))


# --- branches ----------------------------------------------------------------------------------


def branch_off(graph: Storage, name: str, *, lineage: bool = True) -> None:
    graph.dataset(layout.MANIFEST).create_branch(name)
    if lineage:
        graph.dataset(layout.GRAPH_COMMITS).create_branch(name)


@pytest.mark.parametrize("lineage", [True, False])
def test_a_branchs_first_commit_is_the_child_of_where_it_began(
    graph: Storage, lineage: bool
) -> None:
    base = publish_version(graph, KEY, 1)
    commits.record_publish(graph, "main", *base)
    branch_off(graph, "dev", lineage=lineage)
    publish_id = new_ulid()
    version = publish_like_the_engine(graph, KEY, 2, "dev", publish_id)
    commits.record_publish(graph, "dev", publish_id, version)
    own = commits.read_commits(graph, "dev")
    check_one_line(own)
    assert [c.graph_commit_id for c in own[-2:]] == [base[0], publish_id]
    assert own[-1].branch == "dev"
    assert [c.graph_commit_id for c in commits.read_commits(graph)][-1] == base[0]


def test_what_the_parent_published_after_the_fork_is_not_inherited(graph: Storage) -> None:
    base = publish_version(graph, KEY, 1)
    commits.record_publish(graph, "main", *base)
    graph.dataset(layout.MANIFEST).create_branch("dev")
    later = publish_version(graph, KEY, 2)
    commits.record_publish(graph, "main", *later)
    # The lineage is branched a moment after the manifest, and has a row too many by then.
    graph.dataset(layout.GRAPH_COMMITS).create_branch("dev")
    assert [c.graph_commit_id for c in commits.read_commits(graph, "dev")][-1] == base[0]
    version = publish_like_the_engine(graph, KEY, 2, "dev")
    assert version == later[1]
    commits.record_publish(graph, "dev", publish_id := new_ulid(), version)
    own = commits.read_commits(graph, "dev")
    check_one_line(own)
    assert [c.graph_commit_id for c in own[-2:]] == [base[0], publish_id]


def test_a_branch_made_before_its_parents_row_was_written_has_the_right_parent(
    graph: Storage,
) -> None:
    slow = publish_version(graph, KEY, 1)
    branch_off(graph, "dev")
    version = publish_like_the_engine(graph, KEY, 2, "dev")
    commits.record_publish(graph, "dev", publish_id := new_ulid(), version)
    own = commits.read_commits(graph, "dev")
    check_one_line(own)
    assert [c.graph_commit_id for c in own[-2:]] == [slow[0], publish_id]
    commits.record_publish(graph, "main", *slow)
    check_one_line(commits.read_commits(graph))


def test_a_branch_of_a_branch_has_all_ancestors(graph: Storage) -> None:
    commits.record_publish(graph, "main", *publish_version(graph, KEY, 1))
    branch_off(graph, "dev")
    on_dev = publish_like_the_engine(graph, KEY, 2, "dev")
    commits.record_publish(graph, "dev", dev_id := new_ulid(), on_dev)
    graph.dataset(layout.MANIFEST).create_branch("dev/two", ("dev", None))
    on_two = publish_like_the_engine(graph, KEY, 3, "dev/two")
    commits.record_publish(graph, "dev/two", two_id := new_ulid(), on_two)
    lineage = commits.read_commits(graph, "dev/two")
    check_one_line(lineage)
    assert [c.branch for c in lineage] == ["main", "main", "dev", "dev/two"]
    assert [c.graph_commit_id for c in lineage[-2:]] == [dev_id, two_id]


# --- many at once ------------------------------------------------------------------------------


@pytest.mark.long
def test_the_head_is_the_newest_commit_however_many_there_are(
    graph: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(append_log, "SMALL_ROWS", 8)
    for version in range(1, 40):
        published = publish_version(graph, KEY, version)
        commits.record_publish(graph, "main", *published, f"actor {version}")
        head = commits.head(graph)
        assert head is not None
        assert (head.graph_commit_id, head.actor_id) == (published[0], f"actor {version}")
    check_one_line(commits.read_commits(graph))


def _publish_and_record(root: str, name: str, count: int) -> list[tuple[str, int]]:
    storage = Storage.at(root)
    done = []
    for version in range(1, count + 1):
        published = publish_version(storage, f"node:{name}", version, actor=name)
        commits.record_publish(storage, "main", *published, name)
        done.append(published)
    return done


@pytest.mark.long
def test_many_processes_lose_no_row_and_draw_one_line(graph: Storage) -> None:
    workers, count = 4, 12
    with multiprocessing.get_context("spawn").Pool(workers) as pool:
        results = pool.starmap(
            _publish_and_record, [(graph.root, f"W{n}", count) for n in range(workers)]
        )
    published = {version: publish_id for result in results for publish_id, version in result}
    lineage = commits.read_commits(graph)
    check_one_line(lineage)
    assert {c.manifest_version: c.graph_commit_id for c in lineage[1:]} == published
    assert all(c.actor_id in {f"W{n}" for n in range(workers)} for c in lineage[1:])
    head = graph.dataset(layout.MANIFEST).version
    assert [p.graph_version for p in publishes_between(graph, "main", 0, head + 1)] == [
        c.manifest_version for c in lineage
    ]


def test_time_is_utc_whatever_the_time_zone_of_the_writer(
    graph: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    import time

    monkeypatch.setenv("TZ", "Asia/Tokyo")
    time.tzset()
    try:
        before = datetime.fromtimestamp(os.stat(graph.root).st_mtime).timestamp()
        publish_version(graph, KEY, 1)
        commits.record_publish(graph, "main", *publish_version(graph, KEY, 2))
        filled, own = commits.read_commits(graph)[1:]
    finally:
        monkeypatch.undo()
        time.tzset()
    offset = datetime(1970, 1, 1)
    for commit in (filled, own):
        seconds = (commit.created_at - offset).total_seconds()
        assert abs(seconds - before) < 300


def test_a_row_that_notes_a_recovery_hides_no_commit(graph: Storage) -> None:
    """The engine notes a dead write that it took back at the version that it found."""
    first, version = publish_version(graph, KEY, 1)
    commits.record_publish(graph, "main", first, version)
    note = Commit(new_ulid(), None, version, first, None, datetime(2030, 1, 1))
    second, version = publish_version(graph, KEY, 2)
    own = Commit(second, None, version, note.graph_commit_id, None, datetime(2030, 1, 2))
    append_log.append(graph, COMMITS, commits._rows([note, own]))
    lineage = commits.read_commits(graph)
    check_one_line(lineage)
    assert [c.graph_commit_id for c in lineage[1:]] == [first, second]
    for commit_id in (first, note.graph_commit_id):
        found = commits.find_commit(graph, commit_id)
        assert found is not None
        assert found.manifest_version == version - 1
