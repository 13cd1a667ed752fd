"""Today's engine (0.9.0) goes on with its graphs after each kind of thing that is done to them here.

It opens, exports, loads, updates, branches, merges and maintains them; then we read and write
again. Skipped without its program.
"""

from __future__ import annotations

import shutil
from base64 import b64encode
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import date, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from omnigraph_spark import _faults
from omnigraph_spark.errors import IntegrityError, RecoveryPendingError, UnsupportedError
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
from tests.support import branches, exports, merges, plain_writes
from tests.support.engine import Engine, EngineRefusedError, knows, person
from tests.support.writes import (
    ALL,
    COMPANY,
    KNOWS,
    PERSON,
    SCHEMA,
    orphan,
    write,
    write_and_die,
    write_options,
)


@pytest.fixture(scope="module")
def made(newer: Engine, tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("made") / "g"
    newer.make(root, SCHEMA)
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
        key: exports.table_rows(map(_texts, exports.read_frame(storage, pinned, table=key)))
        for key in pinned.tables
    }
    filled = {
        key: [{n: v for n, v in row.items() if v is not None} for row in rows]
        for key, rows in ours.items()
        if rows
    }
    assert filled == export
    return {key: [row["id"] for row in rows] for key, rows in ours.items()}


def _texts(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row with its blobs as this engine exports them."""
    return {
        name: f"base64:{b64encode(value).decode()}" if isinstance(value, bytes) else value
        for name, value in row.items()
    }


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
    "catalog gathered": lambda graph: [
        write(graph, {PERSON: [f"c{number}"]}, new={}) for number in range(14)
    ],
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


@pytest.mark.sample
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
    assert check(graph) == []
    wrong = check_graph(graph.root, moved=True)
    assert [one for one in wrong if not one.endswith("isn't there")] == []  # taken by the cleanup


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


@pytest.mark.sample
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


@pytest.mark.sample
def test_writers_of_both_kinds_lose_nothing_side_by_side(newer: Engine, graph: Storage) -> None:
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
        loading = newer.start(*newer.load_arguments(root, [person(name)]))
        refused = []
        for part in range(3):
            try:
                ours(f"w{number}.{part}")
            except (
                RecoveryPendingError
            ):  # it ended with its record there: its next load settles that
                refused.append(f"w{number}.{part}")
        loading.communicate(timeout=120)
        if loading.returncode == 0:
            loaded.append(name)
        if refused:
            newer.load(root, [person(f"e{number}.settles")])
            loaded.append(f"e{number}.settles")
        for one in refused:
            ours(one)
    there = agree(newer, graph)[PERSON]
    assert [one for one in there if one[0] == "w"] == sorted(written)
    assert len(written) == 36
    assert [one for one in there if one[0] == "e"] == sorted(loaded)
    sound(graph)


def _apply(newer: Engine, graph: Storage, text: str) -> None:
    root = Path(graph.root)
    (root.parent / "next.pg").write_text(text, encoding="utf-8")
    newer.run("schema", "apply", "--schema", str(root.parent / "next.pg"), str(root))


@pytest.mark.sample
def test_a_version_from_before_a_schema_change_is_read_and_is_no_head_again(
    newer: Engine, graph: Storage
) -> None:
    old = load(graph).graph_version
    _apply(newer, graph, SCHEMA.replace("age: I32?", "age: I32?\n    nick: String?", 1))
    newer.load(Path(graph.root), [person("nn", nick="n")])
    write(graph, {PERSON: ["more"]}, new={})
    for refused in (
        lambda: restore.restore(graph, write_options(graph), str(old)),
        lambda: branches.make(graph, "past", f"main@{old}"),
    ):
        with pytest.raises(UnsupportedError, match="other columns in node:Person"):
            refused()
    middle = load(graph).graph_version
    _apply(
        newer, graph, (Path(graph.root) / "_schema.pg").read_text() + "\nnode Town { x: String? }\n"
    )
    with pytest.raises(UnsupportedError, match="other tables"):
        restore.restore(graph, write_options(graph), str(middle))
    rows = [*exports.read_frame(graph, load(graph, version=old), table=PERSON)]
    assert [sorted(row) for row in rows] == [["age", "id", "name"]] * 3
    agree(newer, graph)
    engine_writes(newer, graph)
    sound(graph)


EVERY_TYPE = """
node Sample {
    slug: String @key
    flag: Bool?
    i32: I32?
    i64: I64?
    u32: U32?
    u64: U64?
    f32: F32?
    f64: F64?
    day: Date?
    tags: [String]?
    nums: [I64]?
    vec: Vector(4)?
    status: enum(draft, active, retired)
    raw: Blob?
}
node Pair {
    b: I32
    a: String
    @key(b, a)
}
node Day {
    d: Date @key
}
node Num {
    n: I64 @key
}
node Yes {
    y: Bool @key
}
edge Has: Sample -> Pair {
    w: F64?
}
"""


@pytest.fixture
def typed(newer: Engine, tmp_path: Path) -> Storage:
    (tmp_path / "s.pg").write_text(EVERY_TYPE, encoding="utf-8")
    root = tmp_path / "typed"
    newer.run("init", "--schema", str(tmp_path / "s.pg"), str(root))
    first = {"slug": "s", "status": "draft", "i32": -7, "u64": 2**63, "tags": ["x"], "f64": 0.5}
    lines = [
        {"type": "Sample", "data": {**first, "vec": [1, 2, 3, 4], "raw": "base64:AAEC"}},
        {"type": "Pair", "data": {"a": 'x"y', "b": 7}},
        {"type": "Day", "data": {"d": "2020-01-02"}},
        {"type": "Num", "data": {"n": -5}},
        {"type": "Yes", "data": {"y": True}},
    ]
    newer.load(root, lines)
    return Storage.at(str(root))


@pytest.mark.sample
def test_ids_of_nodes_are_made_from_their_keys_as_the_engine_makes_them(
    newer: Engine, typed: Storage
) -> None:
    root = typed.root
    options = {"writeMode": "merge"}
    keys: dict[str, tuple[dict[str, pa.Array], list[str]]] = {
        "node:Pair": (
            {"a": pa.array(['x"y', "é\\\n"]), "b": pa.array([7, -1], pa.int32())},
            ['["x\\"y","7"]', '["é\\\\\\n","-1"]'],
        ),
        "node:Day": (
            {"d": pa.array([date(2020, 1, 2), date(1969, 12, 31)])},
            ["-1", "18263"],
        ),
        "node:Num": ({"n": pa.array([-5, 10**12])}, ["-5", "1000000000000"]),
        "node:Yes": ({"y": pa.array([True, False])}, ["false", "true"]),
    }
    for table, (columns, wanted) in keys.items():
        plain_writes.save(root, columns, table=table, **options)
        found = [row[0] for row in plain_writes.rows(root, table, "id")]
        assert found == sorted(wanted), table
    lines = [
        {"type": "Pair", "data": {"a": "é\\\n", "b": -1}},
        {"type": "Day", "data": {"d": "1969-12-31"}},
        {"type": "Num", "data": {"n": 10**12}},
        {"type": "Yes", "data": {"y": False}},
    ]
    newer.load(Path(root), lines)  # the engine finds each of them by its id
    assert [load(typed).entry(key).row_count for key in keys] == [2, 2, 2, 2]
    for line in lines:
        with pytest.raises(EngineRefusedError):
            newer.load(Path(root), [line], mode="append")
    one = {"id": pa.array(["q"]), "a": pa.array(["q"]), "b": pa.array([1], pa.int32())}
    with pytest.raises(IntegrityError, match="isn't its key a, b"):
        plain_writes.save(root, one, table="node:Pair")
    assert check_graph(root, moved=True) == []


@pytest.mark.sample
@pytest.mark.parametrize("mode", ["append", "overwrite", "merge"])
def test_values_of_every_type_go_both_ways(newer: Engine, typed: Storage, mode: str) -> None:
    root = Path(typed.root)
    columns = {
        "slug": pa.array(["s", "t"] if mode == "merge" else ["t", "u"]),
        "status": pa.array(["active", "retired"]),
        "flag": pa.array([True, None]),
        "i32": pa.array([-(2**31), None], pa.int32()),
        "i64": pa.array([2**63 - 1, None]),
        "u32": pa.array([2**32 - 1, None], pa.uint32()),
        "u64": pa.array([2**64 - 1, None], pa.uint64()),
        "f32": pa.array([0.5, None], pa.float32()),
        "f64": pa.array([1e300, None]),
        "day": pa.array([date(1969, 12, 31), None]),
        "tags": pa.array([["a", "ü"], None]),
        "nums": pa.array([[1, -2], None]),
        "vec": pa.array([[1.0, 2.0, 3.0, 4.0], None], pa.list_(pa.float32())),
    }
    if mode == "merge":
        plain_writes.save(typed.root, columns, table="node:Sample", writeMode="merge")
    else:
        columns["raw"] = pa.array([b"\x00\xff", None])
        plain_writes.save(typed.root, columns, table="node:Sample", overwrite=mode == "overwrite")
    agree(newer, typed)
    update = 'query q() { update Sample set { i32: 5 } where slug = "t" }'
    newer.mutate(root, update)
    newer.load(root, [{"type": "Sample", "data": {"slug": "z", "status": "draft"}}])
    agree(newer, typed)
    newer.run("optimize", str(root))
    agree(newer, typed)
    sound(typed)


def test_the_engine_refuses_what_a_dead_writer_left_until_it_is_put_back(
    newer: Engine, graph: Storage
) -> None:
    root = Path(graph.root)
    write_and_die(graph, "commit.tables_done", {PERSON: ["dead"], KNOWS: ["dead"]})
    assert "dead" not in agree(newer, graph)[PERSON]
    with pytest.raises(EngineRefusedError, match="repair"):
        newer.load(root, [person("zoe")])
    assert "zoe" not in agree(newer, graph)[PERSON]
    assert repair(graph, dry_run=False, grace_seconds=0.05)
    newer.load(root, [person("zoe")])
    assert "zoe" in agree(newer, graph)[PERSON]
    sound(graph)


def test_branches_of_a_moved_graph_are_the_engines_again_after_a_repair(
    newer: Engine, graph: Storage, tmp_path: Path
) -> None:
    branches.make(graph, "dev")
    write(graph, {PERSON: ["on dev"]}, branch="dev", new={})
    moved = Storage.at(str(Path(graph.root).rename(tmp_path / "moved")))
    with pytest.raises(UnsupportedError, match="moved"):
        write(moved, {PERSON: ["more"]}, branch="dev", new={})
    assert repair(moved, dry_run=False, grace_seconds=0.05)
    assert "on dev" in agree(newer, moved, "dev")[PERSON]
    engine_writes(newer, moved, "dev")
    newer.run("branch", "merge", "--uri", moved.root, "dev", "--into", "main")
    assert "on dev" in agree(newer, moved)[PERSON]
    assert check(moved) == []  # the repair gave version manifests another size than their rows say


@pytest.mark.timeout(1200)
def test_four_writers_of_both_kinds_with_twenty_five_writes_each(
    newer: Engine, graph: Storage
) -> None:
    """No acknowledged row is lost or doubled, and the graph is writable by both afterwards."""
    root = Path(graph.root)
    refused: Counter[str] = Counter()

    def engine_loads(who: str) -> list[str]:
        done = []
        for number in range(25):
            name = f"{who}{number}"
            for _ in range(200):
                try:
                    newer.load(root, [person(name)])
                except EngineRefusedError as error:
                    refused["conflict" if "conflict" in str(error).lower() else "other"] += 1
                else:
                    done.append(name)
                    break
        return done

    def our_writes(who: str) -> list[str]:
        done = []
        for number in range(25):
            name = f"{who}{number}"
            rows = {PERSON: [name], KNOWS: [name]} if number % 2 else {PERSON: [name]}
            write(graph, rows, new={}, commitTimeoutSeconds="120", orphanGraceSeconds="10")
            done.append(name)
        return done

    with ThreadPoolExecutor(4) as pool:
        jobs = [pool.submit(engine_loads, who) for who in ("e", "f")]
        jobs += [pool.submit(our_writes, who) for who in ("v", "w")]
        acknowledged = [name for job in jobs for name in job.result()]
    assert len(acknowledged) == 100, refused
    there = agree(newer, graph)[PERSON]
    assert sorted({*there} - {"ann", "bob", "cy"}) == sorted(acknowledged)
    assert len(there) == len({*there})
    repair(graph, dry_run=False, grace_seconds=0.05)
    engine_writes(newer, graph)
    line = commits.read_commits(graph)
    assert [one.parent_commit_id for one in line[1:]] == [o.graph_commit_id for o in line[:-1]]
    sound(graph)
