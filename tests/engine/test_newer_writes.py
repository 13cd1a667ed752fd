"""Today's engine (0.9.0) goes on with its graphs after each kind of thing that is done to them here.

It opens, exports, loads, updates, branches, merges and maintains them; then we read and write
again. Skipped without its program.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest

from omnigraph_spark import _faults
from omnigraph_spark.history import commits
from omnigraph_spark.maintenance.check import check
from omnigraph_spark.maintenance.cleanup import cleanup
from omnigraph_spark.maintenance.optimize import create_index, optimize, run_here
from omnigraph_spark.maintenance.repair import repair
from omnigraph_spark.manifest.snapshot import load
from omnigraph_spark.merge import restore
from omnigraph_spark.refs import refs, tags
from omnigraph_spark.storage.store import Storage
from tests.format_checker import check_graph
from tests.support import branches, exports, merges
from tests.support.engine import Engine, knows, person
from tests.support.writes import (
    ALL,
    COMPANY,
    KNOWS,
    PERSON,
    orphan,
    write,
    write_and_die,
    write_options,
)

SCHEMA = """
node Person {
    name: String @key
    age: I32?
}
node Company {
    name: String @key
    age: I32?
}
edge Knows: Person -> Person {
    w: F64?
}
"""


@pytest.fixture(scope="module")
def made(newer: Engine, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("made")
    (folder / "s.pg").write_text(SCHEMA, encoding="utf-8")
    root = folder / "g"
    newer.run("init", "--schema", str(folder / "s.pg"), str(root))
    lines = [person("ann", age=1), person("bob"), person("cy", age=3)]
    newer.load(root, [*lines, knows("ann", "ann"), knows("bob", "bob", w=0.5)])
    return root


@pytest.fixture
def graph(made: Path, tmp_path: Path) -> Iterator[Storage]:
    """A graph that today's engine made: persons ann, bob, cy, each but cy with an edge to itself."""
    yield Storage.at(str(shutil.copytree(made, tmp_path / "g")))
    _faults.disarm()


def agree(newer: Engine, storage: Storage, branch: str = "main") -> dict[str, list[str]]:
    """Compare all that the engine exports of a branch with what we read; return the ids."""
    export = exports.filled_tables(newer.export(Path(storage.root), branch))
    pinned = load(storage, branch)
    ours = {
        key: exports.table_rows(exports.read_frame(storage, pinned, table=key))
        for key in pinned.tables
    }
    filled = {
        key: [{n: v for n, v in row.items() if v is not None} for row in rows]
        for key, rows in ours.items()
        if rows
    }
    assert filled == export
    return {key: [row["id"] for row in rows] for key, rows in ours.items()}


def engine_writes(newer: Engine, storage: Storage, branch: str = "main") -> None:
    """Let the engine load, update and delete, and then write a row ourselves; twice."""
    root = Path(storage.root)
    lines = [person("ann", age=77), person("zoe", age=1), knows("zoe", "ann")]
    newer.load(root, lines, branch=branch)
    there = agree(newer, storage, branch)
    assert there[PERSON].count("zoe") == there[PERSON].count("ann") == 1
    update = 'query q() { update Person set { age: 99 } where name = "ann" }'
    newer.mutate(root, update, branch)
    write(storage, {PERSON: ["after"], KNOWS: ["after"]}, branch=branch, new={})
    newer.load(root, [person("once")], mode="append", branch=branch)
    newer.mutate(root, 'query q() { delete Person where name = "once" }', branch)
    write(storage, {PERSON: ["ann", "last"]}, branch=branch, writeMode="merge", new={})
    there = agree(newer, storage, branch)
    assert {"after", "last"} <= {*there[PERSON]}
    assert "once" not in there[PERSON]


def _cleanup(graph: Storage) -> None:
    for number in range(3):
        write(graph, {PERSON: [f"c{number}"]}, new={})
    optimize(graph, "main", None, run_here)
    done = cleanup(graph, now=datetime.now(timezone.utc) + timedelta(days=8))
    assert done.versions > 0


def _branch_and_back(graph: Storage) -> None:
    branches.make(graph, "dev")
    write(graph, {PERSON: ["on dev"]}, branch="dev", new={})
    branches.remove(graph, "dev")


def _merge_back(graph: Storage) -> None:
    branches.make(graph, "dev")
    write(graph, {PERSON: ["on dev", "ann"]}, branch="dev", writeMode="merge", new={})
    write(graph, {PERSON: ["on main"]}, new={})
    merges.merge(graph, "dev", "main")


def _restore(graph: Storage) -> None:
    before = load(graph).graph_version
    write(graph, {PERSON: ["gone again"], KNOWS: ["gone"]}, new={})
    restore.restore(graph, write_options(graph), str(before))


def _drift(graph: Storage) -> None:
    orphan(graph, PERSON, ["lost"])
    assert repair(graph, dry_run=False, grace_seconds=0.05)


def _died(graph: Storage) -> None:
    write_and_die(graph, "commit.tables_done", {PERSON: ["dead"], KNOWS: ["dead"]})
    assert repair(graph, dry_run=False, grace_seconds=0.05)


def _marked(graph: Storage) -> None:
    rows = {PERSON: ["m"], COMPANY: ["n"], KNOWS: ["o"]}
    write(graph, rows, new={}, txnAppId="app", txnVersion="3", userMetadata="a note", actor="eve")
    assert write(graph, rows, new={}, txnAppId="app", txnVersion="3").skipped


ACTIONS: dict[str, Callable[[Storage], object]] = {
    "nothing": lambda graph: None,
    "append": lambda graph: write(
        graph, {PERSON: ["dan"], COMPANY: ["acme"], KNOWS: ["dan"]}, new={}
    ),
    "append with marks": _marked,
    "overwrite": lambda graph: write(graph, {COMPANY: ["acme"]}, "overwrite", new={}),
    "overwrite of edges": lambda graph: write(graph, {KNOWS: ["cy"]}, "overwrite", new={}),
    "overwrite with nothing": lambda graph: write(graph, {COMPANY: []}, "overwrite", new={}),
    "upsert": lambda graph: write(graph, {PERSON: ["cy", "new"]}, writeMode="merge", new={}),
    "delete": lambda graph: write(
        graph, {PERSON: ["bob"]}, writeMode="delete", onDelete="cascade", new={}
    ),
    "index": lambda graph: create_index(graph, "main", PERSON, "age", "BITMAP", None),
    "BTREE index": lambda graph: create_index(graph, "main", PERSON, "age", "BTREE", None),
    "optimize": lambda graph: optimize(graph, "main", None, run_here),
    "cleanup": _cleanup,
    "restore": _restore,
    "tag": lambda graph: tags.create_tag(graph, "t", refs.named(graph, "main")),
    "branch made and deleted": _branch_and_back,
    "merge": _merge_back,
    "drift repaired": _drift,
    "dead write repaired": _died,
}


def sound(graph: Storage) -> None:
    """Look that nothing is wrong, by this connector's own check and by the format's rules."""
    assert check(graph) == []
    assert check_graph(graph.root, moved=True) == []


@pytest.mark.parametrize("what", ACTIONS)
def test_the_engine_reads_and_extends_a_graph_after(
    newer: Engine, graph: Storage, what: str
) -> None:
    ACTIONS[what](graph)
    agree(newer, graph)
    engine_writes(newer, graph)
    ours = [one.graph_commit_id for one in commits.read_commits(graph)]
    assert ours[::-1] == [one["graph_commit_id"] for one in newer.commits(Path(graph.root))]
    sound(graph)


@pytest.mark.parametrize("what", ACTIONS)
def test_the_engine_maintains_a_graph_after(newer: Engine, graph: Storage, what: str) -> None:
    ACTIONS[what](graph)
    before = agree(newer, graph)
    root = str(graph.root)
    newer.run("optimize", root, "--json")
    assert agree(newer, graph) == before
    write(graph, {PERSON: ["between"]}, new={})
    newer.run("cleanup", root, "--keep", "3", "--confirm", "--json")
    assert agree(newer, graph)[PERSON] == sorted([*before[PERSON], "between"])
    engine_writes(newer, graph)
    sound(graph)


@pytest.mark.parametrize("what", ACTIONS)
def test_the_engine_branches_and_merges_after(newer: Engine, graph: Storage, what: str) -> None:
    ACTIONS[what](graph)
    root = Path(graph.root)
    newer.run("branch", "create", "--uri", str(root), "feature/x")
    engine_writes(newer, graph, "feature/x")
    before = agree(newer, graph)
    assert "zoe" not in before[PERSON]
    newer.run("branch", "merge", "--uri", str(root), "feature/x", "--into", "main")
    after = agree(newer, graph)
    assert {"zoe", "after"} <= {*after[PERSON]}
    newer.run("branch", "delete", "--uri", str(root), "feature/x")
    write(graph, {PERSON: ["over"]}, new={})
    assert "over" in agree(newer, graph)[PERSON]
    sound(graph)


@pytest.mark.parametrize("what", ACTIONS)
def test_we_branch_and_merge_what_the_engine_writes_after(
    newer: Engine, graph: Storage, what: str
) -> None:
    ACTIONS[what](graph)
    root = Path(graph.root)
    branches.make(graph, "work")
    engine_writes(newer, graph, "work")
    newer.load(root, [person("on main")])
    merges.merge(graph, "work", "main")
    there = agree(newer, graph)
    assert {"zoe", "after", "on main"} <= {*there[PERSON]}
    newer.load(root, [person("later")], branch="work")
    newer.run("branch", "merge", "--uri", str(root), "work", "--into", "main")
    assert "later" in agree(newer, graph)[PERSON]
    branches.remove(graph, "work")
    assert "work" not in newer.branches(root)
    engine_writes(newer, graph)
    sound(graph)


def test_the_engine_reads_merges_and_deletes_our_branches(newer: Engine, graph: Storage) -> None:
    root = str(graph.root)
    branches.make(graph, "dev")
    write(graph, {PERSON: ["d1"], KNOWS: ["d1"]}, branch="dev", new={})
    branches.make(graph, "sub", "dev")
    cascade = {"writeMode": "delete", "onDelete": "cascade"}
    write(graph, {PERSON: ["ann"]}, branch="sub", new={}, **cascade)
    branches.make(graph, "idle")
    assert newer.branches(Path(root)) == ["dev", "idle", "main", "sub"]
    for branch in ("main", "dev", "sub", "idle"):
        agree(newer, graph, branch)
    engine_writes(newer, graph, "dev")
    engine_writes(newer, graph, "idle")
    newer.run("branch", "merge", "--uri", root, "dev", "--into", "main")
    assert {"d1", "zoe"} <= {*agree(newer, graph)[PERSON]}
    newer.run("branch", "delete", "--uri", root, "idle")
    assert newer.branches(Path(root)) == ["dev", "main", "sub"]
    assert "ann" not in agree(newer, graph, "sub")[PERSON]
    sound(graph)


POINTS = (
    "commit.record_written",
    "commit.table_1",
    "table.before_commit",
    "table.after_commit",
    "commit.tables_done",
    "commit.before_publish",
    "publish.sending",
    "publish.landed",
    "commit.after_publish",
    "commit.before_record_delete",
)


@pytest.mark.parametrize("tables", [1, 3])
@pytest.mark.parametrize("mode", ["append", "overwrite"])
@pytest.mark.parametrize("point", POINTS)
def test_a_write_that_died_is_all_there_or_not_at_all_for_the_engine(
    newer: Engine, graph: Storage, point: str, mode: str, tables: int
) -> None:
    rows = {key: ["dead"] for key in ALL[:tables]}
    write_and_die(graph, point, rows, mode)
    there = agree(newer, graph)
    shown = {"dead" in there[key] for key in rows}
    assert len(shown) == 1, "torn"
    write(graph, {PERSON: ["zed"]}, new={})
    if not shown.pop():
        repair(graph, dry_run=False, grace_seconds=0.05)
    engine_writes(newer, graph)
    repair(graph, dry_run=False, grace_seconds=0.05)
    sound(graph)


def test_writers_of_both_kinds_lose_nothing_side_by_side(newer: Engine, graph: Storage) -> None:
    """Each load of the engine that it acknowledges, and each write of ours, is there once."""
    root = Path(graph.root)
    loaded: list[str] = []
    written: list[str] = []
    for number in range(12):
        name = f"e{number}"
        loading = newer.start(*newer.load_arguments(root, [person(name)]))
        for part in range(3):
            one = f"w{number}.{part}"
            write(graph, {PERSON: [one], KNOWS: [one]}, new={}, commitTimeoutSeconds="60")
            written.append(one)
        loading.communicate(timeout=120)
        if loading.returncode == 0:
            loaded.append(name)
    there = agree(newer, graph)[PERSON]
    assert [one for one in there if one[0] == "w"] == sorted(written)
    assert [one for one in there if one[0] == "e"] == sorted(loaded)
    sound(graph)
