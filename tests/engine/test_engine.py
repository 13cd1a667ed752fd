"""Engines of stamps 2, 3 and 4 open, export, extend, branch and heal what this connector wrote.

Each is skipped without its program. After each thing that this connector does, the engine's export
equals what this connector reads; then the engine writes, and both agree again. Graphs of stamp 2 are
made here, those of the others by their engines.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest

from omnigraph_spark import _faults
from omnigraph_spark.errors import RecoveryPendingError
from omnigraph_spark.history import commits
from omnigraph_spark.maintenance.check import check
from omnigraph_spark.maintenance.cleanup import cleanup
from omnigraph_spark.maintenance.optimize import create_index, optimize, run_here
from omnigraph_spark.maintenance.repair import repair
from omnigraph_spark.manifest.snapshot import load, open_main
from omnigraph_spark.merge import restore
from omnigraph_spark.refs import branches as manage
from omnigraph_spark.refs import refs, tags
from omnigraph_spark.schema_changes import properties
from omnigraph_spark.storage.store import Storage
from tests.format_checker import check_graph
from tests.support import branches, columns, exports, graphs, merges, programs
from tests.support.engine import Engine, EngineRefusedError, knows, person
from tests.support.writes import (
    ALL,
    COMPANY,
    KNOWS,
    PERSON,
    SCHEMA,
    ids,
    new_graph,
    records,
    write,
    write_and_die,
    write_options,
)


@pytest.fixture(scope="module", params=[programs.OLDER, programs.OF_STAMP_3, programs.OF_STAMP_4])
def engine(request: pytest.FixtureRequest) -> Engine:
    """An engine of a stamp whose tables have no ids."""
    return programs.engine_or_skip(request.param)


of_stamp_2 = pytest.mark.parametrize("engine", [programs.OLDER], indirect=True)


@pytest.fixture(scope="module")
def made(engine: Engine, tmp_path_factory: pytest.TempPathFactory) -> Path:
    storage = Storage.at(str(tmp_path_factory.mktemp("made") / "g"))
    if engine.release < (0, 6, 2):
        new_graph(storage)
    else:
        engine.make(Path(storage.root), SCHEMA)
        write(storage, {key: ["first"] for key in ALL}, new={})
    write(storage, {PERSON: ["ann", "bob", "cy"], KNOWS: ["ann", "bob"]})
    return Path(storage.root)


@pytest.fixture
def graph(made: Path, tmp_path: Path) -> Iterator[Storage]:
    """A graph of the engine's stamp: persons first, ann, bob, cy, each but cy with an edge to itself."""
    yield Storage.at(str(shutil.copytree(made, tmp_path / "g")))
    _faults.disarm()


def agree(engine: Engine, storage: Storage, branch: str = "main") -> dict[str, list[str]]:
    """Compare all that the engine exports of a branch with what we read; return the ids."""
    export = exports.filled_tables(engine.export(Path(storage.root), branch))
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


def engine_writes(engine: Engine, storage: Storage, branch: str = "main") -> None:
    """Let the engine change a row, add one with an edge, and then write a row ourselves."""
    root = Path(storage.root)
    lines = [person("ann", age=77), person("zoe", age=1), knows("zoe", "ann")]
    engine.load(root, lines, branch=branch)
    there = agree(engine, storage, branch)
    assert there[PERSON].count("zoe") == there[PERSON].count("ann") == 1
    write(storage, {PERSON: ["after"], KNOWS: ["after"]}, branch=branch, new={})
    assert "after" in agree(engine, storage, branch)[PERSON]
    # A cleanup took old versions, and the engine's optimize doesn't publish what it compacts.
    # Nor does it note a publish whose writer died before it could.
    harmless = ("isn't there", "holds more than the pinned", "has no row in _graph_commits.lance")
    wrong = check_graph(storage.root, moved=True)
    assert [one for one in wrong if not any(text in one for text in harmless)] == []


def _cleanup(graph: Storage) -> None:
    optimize(graph, "main", None, run_here)
    done = cleanup(graph, now=datetime.now(timezone.utc) + timedelta(days=8))
    assert done.versions > 0


def _branch_and_back(graph: Storage) -> None:
    branches.make(graph, "dev")
    write(graph, {PERSON: ["on dev"]}, branch="dev")
    branches.remove(graph, "dev")


def _restore(graph: Storage) -> None:
    before = load(graph).graph_version
    write(graph, {PERSON: ["gone again"]})
    restore.restore(graph, write_options(graph), str(before))


def _drop_property(graph: Storage, branch: str = "main") -> None:
    properties.drop_property(graph, write_options(graph, branch=branch), KNOWS, "w")


def _rename_property(graph: Storage, branch: str = "main") -> None:
    properties.rename_property(graph, write_options(graph, branch=branch), KNOWS, "w", "weight")


def _widen_property(graph: Storage, branch: str = "main") -> None:
    properties.widen_property(graph, write_options(graph, branch=branch), PERSON, "age", "I64")


def _add_properties(graph: Storage, branch: str = "main") -> None:
    asked = write_options(graph, branch=branch)
    for name, kind in (("nick", "String?"), ("born", "Date?"), ("seen", "DateTime?")):
        properties.add_property(graph, asked, PERSON, name, kind)
    properties.add_property(graph, asked, KNOWS, "tags", "[String]?")


def _merge_schema(graph: Storage, branch: str = "main") -> None:
    columns.write(
        graph,
        PERSON,
        [*columns.PERSON_FRAME, columns.NICK, columns.SCORE],
        [{"id": "eve", "name": "eve", "age": 3, "nick": "e", "score": 5}],
        branch=branch,
    )


def _add_table(graph: Storage) -> None:
    properties.add_table(graph, write_options(graph, keys="Town: name"), "node:Town", "name STRING")
    asked = write_options(graph, endpoints="LivesIn: Person -> Town")
    properties.add_table(graph, asked, "edge:LivesIn", "since DATE")


ACTIONS: dict[str, Callable[[Storage], object]] = {
    "nothing": lambda graph: None,
    "append": lambda graph: write(graph, {PERSON: ["dan"], COMPANY: ["acme"], KNOWS: ["dan"]}),
    "overwrite": lambda graph: write(graph, {COMPANY: ["acme"]}, "overwrite"),
    "overwrite with nothing": lambda graph: write(graph, {COMPANY: []}, "overwrite"),
    "upsert": lambda graph: write(graph, {PERSON: ["cy", "new"]}, writeMode="merge"),
    "delete": lambda graph: write(
        graph, {PERSON: ["bob"]}, writeMode="delete", onDelete="cascade", new={}
    ),
    "add properties": _add_properties,
    "drop property": _drop_property,
    "rename property": _rename_property,
    "widen property": _widen_property,
    "mergeSchema": _merge_schema,
    "add tables": _add_table,
    "drop table": lambda graph: properties.drop_table(graph, write_options(graph), [COMPANY]),
    "catalog gathered": lambda graph: [
        write(graph, {PERSON: [f"c{number}"]}, new={}) for number in range(14)
    ],
    "index": lambda graph: create_index(graph, "main", PERSON, "age", "BTREE", None),
    "optimize": lambda graph: optimize(graph, "main", None, run_here),
    "cleanup": _cleanup,
    "restore": _restore,
    "tag": lambda graph: tags.create_tag(graph, "t", refs.named(graph, "main")),
    "branch made and deleted": _branch_and_back,
}


@pytest.mark.sample
@pytest.mark.parametrize("what", ACTIONS)
def test_the_engine_reads_and_extends_a_graph_after(
    engine: Engine, graph: Storage, what: str
) -> None:
    ACTIONS[what](graph)
    agree(engine, graph)
    engine_writes(engine, graph)
    ours = [one.graph_commit_id for one in commits.read_commits(graph)]
    assert ours == [one["graph_commit_id"] for one in engine.commits(Path(graph.root))]


@pytest.mark.parametrize("what", ACTIONS)
def test_the_engine_maintains_a_graph_after(engine: Engine, graph: Storage, what: str) -> None:
    ACTIONS[what](graph)
    before = agree(engine, graph)
    root = str(graph.root)
    engine.run("optimize", root, "--json")
    assert agree(engine, graph) == before
    write(graph, {PERSON: ["between"]}, new={})
    engine.run("cleanup", root, "--keep", "3", "--confirm", "--json")
    assert agree(engine, graph)[PERSON] == sorted([*before[PERSON], "between"])
    engine_writes(engine, graph)


@pytest.mark.parametrize("what", ACTIONS)
def test_the_engine_branches_and_merges_after(engine: Engine, graph: Storage, what: str) -> None:
    ACTIONS[what](graph)
    root = Path(graph.root)
    engine.run("branch", "create", "--uri", str(root), "feature/x")
    engine_writes(engine, graph, "feature/x")
    before = agree(engine, graph)
    assert "zoe" not in before[PERSON]
    engine.run("branch", "merge", "--uri", str(root), "feature/x", "--into", "main")
    after = agree(engine, graph)
    assert {"zoe", "after"} <= {*after[PERSON]}
    engine.run("branch", "delete", "--uri", str(root), "feature/x")
    write(graph, {PERSON: ["last"]}, new={})
    assert "last" in agree(engine, graph)[PERSON]


@of_stamp_2
@pytest.mark.parametrize("what", ACTIONS)
def test_what_is_written_at_stamp_3_is_what_an_engine_of_stamp_2_goes_on_with(
    engine: Engine, graph: Storage, what: str
) -> None:
    """The two differ in nothing but the number and in heads that must be published."""
    key = "omnigraph:internal_schema_version"
    open_main(graph).update_schema_metadata({key: "3"})
    ACTIONS[what](graph)
    branches.make(graph, "late")
    write_and_die(graph, "commit.tables_done", {PERSON: ["dead"], KNOWS: ["dead"]})
    write(graph, {PERSON: ["p"], KNOWS: ["p"]}, new={})
    assert check(graph) == []
    assert open_main(graph).schema.metadata[key.encode()] == b"3"
    open_main(graph).update_schema_metadata({key: "2"})
    assert "p" in agree(engine, graph)[PERSON]
    engine_writes(engine, graph)
    ours = [one.graph_commit_id for one in commits.read_commits(graph)]
    assert ours == [one["graph_commit_id"] for one in engine.commits(Path(graph.root))]


@pytest.mark.sample
def test_the_engine_reads_merges_and_deletes_our_branches(engine: Engine, graph: Storage) -> None:
    root = str(graph.root)
    branches.make(graph, "dev")
    write(graph, {PERSON: ["d1"], KNOWS: ["d1"]}, branch="dev")
    branches.make(graph, "dev/sub", "dev")
    write(graph, {PERSON: ["ann"]}, branch="dev/sub", writeMode="delete", onDelete="cascade")
    branches.make(graph, "idle")
    assert engine.branches(Path(root)) == ["dev", "dev/sub", "idle", "main"]
    for branch in ("main", "dev", "dev/sub", "idle"):
        agree(engine, graph, branch)
    engine_writes(engine, graph, "dev")
    engine_writes(engine, graph, "idle")
    engine.run("branch", "merge", "--uri", root, "dev", "--into", "main")
    assert {"d1", "zoe"} <= {*agree(engine, graph)[PERSON]}
    engine.run("branch", "delete", "--uri", root, "idle")
    assert engine.branches(Path(root)) == ["dev", "dev/sub", "main"]
    assert "ann" not in agree(engine, graph, "dev/sub")[PERSON]
    assert check(graph) == []


@pytest.mark.parametrize(
    "change", [_add_properties, _drop_property, _rename_property, _merge_schema]
)
def test_the_engine_opens_and_extends_a_graph_whose_merge_brought_columns(
    engine: Engine, graph: Storage, change: Callable[[Storage, str], None]
) -> None:
    branches.make(graph, "dev")
    change(graph, "dev")
    # A value on main of the property that goes would be a conflict.
    written = [PERSON] if change is _drop_property else [PERSON, KNOWS]
    write(graph, {key: ["main"] for key in written}, new={})
    merges.merge(graph, "dev")
    agree(engine, graph)
    branches.remove(graph, "dev")
    engine_writes(engine, graph)
    assert check(graph) == []


POINTS = (
    "commit.record_written",
    "commit.table_1",
    "table.before_commit",
    "table.after_commit",
    "commit.tables_done",
    "commit.before_publish",
    "publish.landed",
    "commit.after_publish",
    "lineage.before_row",
    "commit.before_record_delete",
)


@pytest.mark.parametrize("tables", [1, 3])
@pytest.mark.parametrize("mode", ["append", "overwrite"])
@pytest.mark.parametrize("point", POINTS)
def test_a_write_that_died_is_all_there_or_not_at_all_after_the_engines_next_load(
    engine: Engine, graph: Storage, point: str, mode: str, tables: int
) -> None:
    rows = {key: ["dead"] for key in ALL[:tables]}
    write_and_die(graph, point, rows, mode)
    if engine.is_newer:  # it refuses to write to what died, until that is put back here
        write(graph, {COMPANY: ["next"]}, new={})
        repair(graph, dry_run=False, grace_seconds=0.05)
    engine.load(Path(graph.root), [person("zoe", age=1)])
    there = agree(engine, graph)
    shown = {"dead" in there[key] for key in rows}
    assert len(shown) == 1, "torn"
    assert "zoe" in there[PERSON]
    assert records(graph) == []
    assert {one.kind for one in check(graph)} <= {"running_run"}
    repair(graph, dry_run=False)
    engine_writes(engine, graph)
    assert check(graph) == []


@pytest.fixture
def original() -> Iterator[Path]:
    """Where the fixtures were written: the engine follows the absolute paths in them."""
    root = Path("/srv/graphs")
    if root.exists() or not os.access("/srv", os.W_OK):
        pytest.skip("the fixtures' own root can't be made here")
    yield root
    shutil.rmtree(root)


@of_stamp_2
@pytest.mark.parametrize(
    ("generation", "name"), [("v2", "social"), ("v2", "evolved"), ("v1", "social")]
)
def test_the_engine_goes_on_with_its_own_graphs_after_our_writes(
    engine: Engine, original: Path, generation: str, name: str
) -> None:
    storage = Storage.at(str(graphs.unpack(generation, name, original)))
    before = ids(storage, PERSON)
    write(storage, {PERSON: ["ours"]}, new={})
    write(storage, {PERSON: [before[0]]}, writeMode="merge", new={})
    write(storage, {PERSON: [before[1]]}, writeMode="delete", onDelete="cascade", new={})
    properties.add_property(storage, write_options(storage), PERSON, "nick", "String?")
    assert agree(engine, storage)[PERSON] == sorted({*before, "ours"} - {before[1]})
    engine.load(Path(storage.root), [person("zoe")])
    assert "zoe" in agree(engine, storage)[PERSON]


@pytest.mark.sample
def test_writers_of_both_kinds_lose_nothing_side_by_side(engine: Engine, graph: Storage) -> None:
    """Each load of the engine that it acknowledges, and each write of ours, is there once."""
    root = Path(graph.root)
    loaded: list[str] = []
    written: list[str] = []

    def ours(name: str) -> None:
        asked = {"commitTimeoutSeconds": "60", "orphanGraceSeconds": "2"}
        write(graph, {PERSON: [name], KNOWS: [name]}, new={}, **asked)
        written.append(name)

    for number in range(12):
        name = f"e{number}"
        loading = engine.start(*engine.load_arguments(root, [person(name)]))
        refused = []
        for part in range(3):
            try:
                ours(f"w{number}.{part}")
            except RecoveryPendingError:  # it left its record, which its next load settles
                refused.append(f"w{number}.{part}")
        loading.communicate(timeout=120)
        if loading.returncode == 0:
            loaded.append(name)
        if refused:
            engine.load(root, [person(f"e{number}.settles")])
            loaded.append(f"e{number}.settles")
        for one in refused:
            ours(one)
    there = agree(engine, graph)[PERSON]
    assert [one for one in there if one[0] == "w"] == sorted(written)
    assert len(written) == 36
    assert [one for one in there if one[0] == "e" and one != "eve"] == sorted(loaded)


def test_the_engine_refuses_what_it_would_refuse_of_its_own(engine: Engine, graph: Storage) -> None:
    """The schema files that we write hold: an edge that is dangling, a property nobody knows."""
    root = Path(graph.root)
    with pytest.raises(EngineRefusedError):
        engine.load(root, [knows("ann", "nobody")])
    with pytest.raises(EngineRefusedError):
        engine.load(root, [{"type": "Nothing", "data": {"name": "x"}}])
    agree(engine, graph)
    assert manage.has_branch(graph, "main")
