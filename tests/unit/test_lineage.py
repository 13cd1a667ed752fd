"""Commit times only grow, and a damaged lineage stops no write and can be made again."""

from __future__ import annotations

import os
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest

from omnigraph_spark import _faults
from omnigraph_spark.errors import StorageError
from omnigraph_spark.history import commits
from omnigraph_spark.history.commits import COMMITS, Commit
from omnigraph_spark.history.init import init_graph
from omnigraph_spark.maintenance import check as checks
from omnigraph_spark.maintenance import repair
from omnigraph_spark.manifest import formats, publisher
from omnigraph_spark.manifest.snapshot import forget, load
from omnigraph_spark.refs import branches, refs
from omnigraph_spark.refs.refs import Resolved
from omnigraph_spark.storage import append_log, layout, store
from omnigraph_spark.storage.ids import new_ulid
from omnigraph_spark.storage.store import Storage
from tests.support import merges
from tests.support.branches import GRACE, ids_at, make, names
from tests.support.catalogs import publish_like_the_engine, publish_version
from tests.support.writes import PERSON, Kept, both_stamps, empty_graph, new_graph, write

KEY = "node:Person"


@pytest.fixture(scope="module")
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Kept:
    """One table and three more publishes, by actors; a branch `b` with two of its own."""

    def make_it(graph: Storage) -> None:
        new_graph(empty_graph(graph, getattr(request, "param", 2)), [PERSON])
        for number in range(3):
            write(graph, {PERSON: [f"m{number}"]}, actor=f"actor {number}")
        make(graph, "b")
        for number in range(2):
            write(graph, {PERSON: [f"b{number}"]}, branch="b", actor="on b")

    return Kept(tmp_path_factory.mktemp("made"), make_it)


@pytest.fixture
def graph(made: Kept) -> Iterator[Storage]:
    yield made.copy()
    _faults.disarm()


# --- times ---------------------------------------------------------------------------------------


@pytest.mark.long
@both_stamps
@pytest.mark.parametrize("branch", ["main", "b"])
def test_a_writer_whose_clock_is_behind_makes_a_later_commit_all_the_same(
    graph: Storage, monkeypatch: pytest.MonkeyPatch, branch: str
) -> None:
    before = commits.read_commits(graph, branch)[-1]
    behind = before.created_at - timedelta(hours=5)
    monkeypatch.setattr(commits, "_now", lambda: behind)
    in_micros = int(behind.replace(tzinfo=timezone.utc).timestamp() * 1_000_000)
    monkeypatch.setattr(publisher, "_now", lambda: in_micros)
    done = [write(graph, {PERSON: [name]}, branch=branch).graph_version for name in ("x", "y")]
    line = commits.read_commits(graph, branch)
    assert [c.manifest_version for c in line[-2:]] == done
    assert before.created_at < line[-2].created_at < line[-1].created_at
    if not formats.of_graph(graph).has_identities:
        stored = append_log.read(graph, COMMITS, layout.lance_branch(branch))
        assert stored is not None
        assert min(stored["created_at"].to_pylist()[-2:]) > before.created_at
    at = refs.resolve(graph, branch, timestamp_as_of=f"{before.created_at.isoformat()}Z")
    assert at.version == before.manifest_version


def test_rows_that_others_wrote_by_clocks_of_their_own_are_read_in_the_order_of_versions(
    tmp_path: Path,
) -> None:
    graph = Storage.at(str(tmp_path / "g"))
    init_graph(graph)
    times = [timedelta(hours=hours) for hours in (5, -5, 0)]
    parent = commits.read_commits(graph)[0]
    for number, off in enumerate(times, start=1):
        version = publish_like_the_engine(graph, KEY, number)
        made = datetime(2030, 1, 1) + off
        row = Commit(new_ulid(), None, version, parent.graph_commit_id, None, made)
        append_log.append(graph, COMMITS, commits._rows([row]))
        parent = row
    line = commits.read_commits(graph)
    assert [c.created_at for c in line] == sorted({c.created_at for c in line})
    at = refs.resolve(graph, timestamp_as_of="2030-01-01T01:00:00Z")
    assert at == Resolved("main", line[0].manifest_version)


# --- gaps ----------------------------------------------------------------------------------------


def test_a_gap_that_the_row_of_another_engine_closed_over_is_reported_and_mended(
    tmp_path: Path,
) -> None:
    graph = Storage.at(str(tmp_path / "g"))
    init_graph(graph)
    first = commits.read_commits(graph)[-1]
    lost_id, lost = publish_version(graph, KEY, 1, actor="ada")  # its writer died here
    theirs = publish_like_the_engine(graph, KEY, 2)
    row = Commit(new_ulid(), None, theirs, first.graph_commit_id, None, datetime(2030, 1, 1))
    append_log.append(graph, COMMITS, commits._rows([row]))
    commits.record_publish(graph, "main", *publish_version(graph, KEY, 3))
    found = [one for one in checks.check(graph) if one.kind == checks.MISSING_LINEAGE]
    assert [one.place for one in found] == [str(lost)]
    actions = repair.repair(graph, dry_run=False, grace_seconds=0.05)
    assert {a.kind: a.done for a in actions}[checks.MISSING_LINEAGE]
    line = commits.read_commits(graph)
    assert [c.graph_commit_id for c in line[1:3]] == [lost_id, row.graph_commit_id]
    assert line[1].actor_id == "ada"
    assert [c.parent_commit_id for c in line[1:]] == [c.graph_commit_id for c in line[:-1]]
    assert not [one for one in checks.check(graph) if one.kind == checks.MISSING_LINEAGE]


# --- damage --------------------------------------------------------------------------------------


def newest(graph: Storage, location: str, folder: str = "_versions") -> Path:
    files = [p for p in Path(graph.uri(location, folder)).iterdir() if "hint" not in p.name]
    return max(files, key=lambda path: path.stat().st_mtime_ns)


def emptied(path: Path) -> None:
    path.write_bytes(b"")


def all_emptied(versions: Path) -> None:
    for path in versions.glob("*.manifest"):
        emptied(path)


def halved(path: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2])


DAMAGE = {
    "the newest version is empty": lambda g, log: emptied(newest(g, log)),
    "the newest version is cut off": lambda g, log: halved(newest(g, log)),
    "a data file is gone": lambda g, log: os.remove(newest(g, log, "data")),
    "all versions are empty": lambda g, log: all_emptied(Path(g.uri(log, "_versions"))),
}
LOGS = [layout.GRAPH_COMMITS, layout.GRAPH_COMMIT_ACTORS, f"{layout.GRAPH_COMMITS}/tree/b"]


def told(line: list[Commit]) -> list[tuple[str, int, str | None]]:
    return [(c.graph_commit_id, c.manifest_version, c.actor_id) for c in line]


@pytest.mark.long
@pytest.mark.parametrize("log", LOGS)
@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_log_stops_no_write_and_is_made_again(
    graph: Storage, damage: str, log: str
) -> None:
    before = {branch: told(commits.read_commits(graph, branch)) for branch in ("main", "b")}
    DAMAGE[damage](graph, log)
    forget(graph)
    new = {b: write(graph, {PERSON: ["after"]}, branch=b, actor="late") for b in ("main", "b")}
    for branch in new:
        assert "after" in ids_at(graph, PERSON, branch)
    (found,) = [one for one in checks.check(graph) if one.kind == checks.DAMAGED_LOG]
    assert (found.place, found.branch) == (log.partition("/")[0], "b" if "tree" in log else "main")
    assert checks.UNREADABLE not in {one.kind for one in checks.check(graph)}
    actions = repair.repair(graph, dry_run=False, grace_seconds=0.05)
    assert all(action.done for action in actions), actions
    assert checks.check(graph) == []
    for branch, done in new.items():
        assert told(commits.read_commits(graph, branch)) == [
            *before[branch],
            (done.publish_id, done.graph_version, "late"),
        ]
    write(graph, {PERSON: ["next"]}, branch="b")
    assert checks.check(graph) == []


def test_a_store_that_does_not_answer_is_no_damage(
    graph: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object, **__: object) -> object:
        raise StorageError("403 Forbidden (injected)")

    monkeypatch.setattr(append_log, "read", refused)
    monkeypatch.setattr(Storage, "get", refused)
    assert checks.DAMAGED_LOG not in {one.kind for one in checks.check(graph)}


@pytest.mark.long
def test_a_registry_of_runs_that_is_damaged_is_made_again(graph: Storage) -> None:
    write(graph, {PERSON: ["before"]}, recordRuns="true")
    emptied(newest(graph, layout.GRAPH_RUNS))
    write(graph, {PERSON: ["after"]}, recordRuns="true")
    actions = repair.repair(graph, dry_run=False, grace_seconds=0.05)
    assert (checks.DAMAGED_LOG, True) in {(a.kind, a.done) for a in actions}
    assert checks.check(graph) == []


@pytest.mark.long
def test_an_old_version_number_that_a_sleeper_gives_away_again_is_not_the_newest(
    tmp_path: Path,
) -> None:
    graph = new_graph(Storage.at(str(tmp_path / "g")), [PERSON])
    for _ in range(6):
        write(graph, {PERSON: ["x"]})
    log = Path(graph.uri(layout.GRAPH_COMMITS))
    versions = log / "_versions"
    stale = versions / layout.v2_manifest_name(4)
    data = stale.read_bytes()
    for number in range(1, 6):  # as the dropping of old versions does
        (versions / layout.v2_manifest_name(number)).unlink()
    count = len(commits.read_commits(graph))
    stale.write_bytes(data)
    (versions / "latest_version_hint.json").write_text('{"version": 4}')
    assert store.newest_version(str(log)) is None
    assert len(commits.read_commits(graph)) == count
    write(graph, {PERSON: ["y"]})
    assert len(commits.read_commits(graph)) == count + 1
    assert load(graph).graph_version == commits.read_commits(graph)[-1].manifest_version


# --- branches beside a damaged lineage -----------------------------------------------------------


def _cut(graph: Storage, pattern: str) -> None:
    for path in Path(graph.root, layout.GRAPH_COMMITS).glob(pattern):
        path.write_bytes(path.read_bytes()[:7])


BESIDE = {
    "create": lambda g: make(g, "new"),
    "create of the past": lambda g: make(g, "new", "main@3"),
    "merge": lambda g: merges.merge(g, "b"),
    "merge into the branch": lambda g: merges.merge(g, "main", "b"),
    "delete": lambda g: branches.delete_branch(g, "b", GRACE),
    "time": lambda g: refs.named(g, "main@2099-01-01T00:00:00Z"),
}


@pytest.mark.long
@pytest.mark.parametrize("damage", ["_versions/*", "data/*", "tree/*/_versions/*", "tree/*/data/*"])
@pytest.mark.parametrize("what", BESIDE)
def test_what_needs_a_damaged_lineage_works_or_names_the_repair_that_makes_it_work(
    graph: Storage, what: str, damage: str
) -> None:
    write(graph, {PERSON: ["m"]})
    _cut(graph, damage)
    told = ""
    try:
        BESIDE[what](graph)
    except StorageError as refused:
        told = str(refused)
    if told:
        assert "OmniGraph.repair(dry_run=False)" in told
        assert "/rust" not in told
        repair.repair(graph, dry_run=False, grace_seconds=GRACE)
        BESIDE[what](graph)
    for branch in names(graph):
        write(graph, {PERSON: [f"after on {branch}"]}, branch=branch)
        assert f"after on {branch}" in ids_at(graph, PERSON, branch)
    if checks.check(graph):
        repair.repair(graph, dry_run=False, grace_seconds=GRACE)
    assert checks.check(graph) == []
