"""Bad input, cell by cell: a typed error before any commit, and nothing has moved.

Writes go through the writer that Spark calls, without a JVM: its constructor plans on the driver,
`write` runs in a task, `commit` and `abort` on the driver again. The rights, disks and file handles
need processes of their own: `concurrency/test_os_limits.py`.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import (
    NullType,
    StringType,
    StructField,
    StructType,
    YearMonthIntervalType,
)

from omnigraph_spark.errors import (
    BranchNotFoundError,
    CorruptManifestError,
    ExpectedVersionMismatch,
    GraphNotFoundError,
    IntegrityError,
    OmnigraphError,
    OptionError,
    SchemaMismatchError,
    StorageError,
    TableNotFoundError,
    UnsupportedError,
    VersionNotFoundError,
)
from omnigraph_spark.manifest.snapshot import load
from omnigraph_spark.read.plan import read_table
from omnigraph_spark.refs import branches, refs, tags
from omnigraph_spark.spark import spark_types
from omnigraph_spark.spark.datasource import OmnigraphDataSource
from omnigraph_spark.spark.writer import OmnigraphCommitMessage, OmnigraphWriter
from omnigraph_spark.storage import layout
from omnigraph_spark.storage.store import Storage
from tests.support import damage, graphs, plain_writes, ruled

PERSON, COMPANY, KNOWS, WORKS = "node:Person", "node:Company", "edge:Knows", "edge:Works"
SCHEMA = """
node Person {
    age: I32?
    at: DateTime?
    born: Date?
    email: String? @unique
    first: String?
    mood: enum(good, bad)?
    need: String
    score: F32?
    size: F64?
    u: U32?
    vec: Vector(4)?
    @check(first, "^\\\\w+$")
    @range(size, 0.5..2.5)
}
node Company {
    name: String @key
}
edge Knows: Person -> Person {
    label: String? @unique
}
edge Works: Person -> Company @card(0..2) {
    since: I32?
    @range(since, 1900..)
}
"""
TIME = pa.timestamp("us", "UTC")


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A graph with two people, a company and two edges; each cell gets a copy."""
    root = tmp_path_factory.mktemp("bad") / "g"
    storage = Storage.at(str(root))
    storage.put(layout.SCHEMA_PG, SCHEMA.encode())
    first: ruled.Rows = {
        PERSON: [{"id": "a", "need": "x", "email": "a@x"}, {"id": "b", "need": "y"}],
        COMPANY: [{"name": "acme"}],
        KNOWS: [ruled.edge("a", "b", id="ab", label="old")],
        WORKS: [ruled.edge("a", "acme", id="aw")],
    }
    ruled.save(storage, first)
    return root


@pytest.fixture
def root(template: Path, tmp_path: Path) -> str:
    return str(shutil.copytree(template, tmp_path / "inside" / "g"))


# --- what a frame is, and how it is written ---------------------------------------------------------

Columns = dict[str, Any]
_SYSTEM = ("id", "src", "dst", "need")


def batch(columns: Columns) -> pa.RecordBatch:
    """Return columns as a batch; lists are text in `id` and its like, else what Arrow makes of them."""
    arrays = [
        values
        if isinstance(values, pa.Array)
        else pa.array(values, pa.utf8() if name in _SYSTEM else None)
        for name, values in columns.items()
    ]
    return pa.RecordBatch.from_arrays(arrays, names=list(columns))


def frame(batch: pa.RecordBatch) -> StructType:
    return StructType([spark_types.spark_field(field) for field in batch.schema])


def save(
    root: str,
    table: str | None,
    *tasks: Columns | pa.RecordBatch,
    schema: StructType | None = None,
    overwrite: bool = False,
    **options: str,
) -> None:
    """Write tasks of one batch each, as Spark does; a failure is followed by `abort`."""
    batches = [task if isinstance(task, pa.RecordBatch) else batch(task) for task in tasks]
    raw = {"path": root, "orphangraceseconds": "0.1", **({"table": table} if table else {})}
    raw |= {name.lower(): value for name, value in options.items()}
    plain_writes.send(OmnigraphWriter(schema or frame(batches[0]), raw, overwrite), batches)


def person(**more: Any) -> Columns:
    """Return one good person with what makes it bad."""
    return {"id": ["new"], "need": ["n"], **more}


def knows(**more: Any) -> Columns:
    return {"src": ["a"], "dst": ["b"], **more}


def text_of(data: bytes) -> pa.Array:
    """Return one value of type text made of any bytes."""
    offsets = pa.array([0, len(data)], pa.int32()).buffers()[1]
    return pa.Array.from_buffers(pa.utf8(), 1, [None, offsets, pa.py_buffer(data)])


def plan_read(root: str, **options: str) -> object:
    """Plan a read of Person, as Spark does before its tasks."""
    source = OmnigraphDataSource({"path": root, "table": PERSON, **options})
    return source.reader(source.schema()).partitions()


# --- cells ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Cell:
    """One bad input: what is done, the error it must be, and what the error must name."""

    number: int
    name: str
    act: Callable[[str], object]
    kind: type[OmnigraphError]
    named: str
    damage: Callable[[str], object] | None = None


CELLS: list[Cell] = []


def cell(
    number: int,
    name: str,
    kind: type[OmnigraphError],
    named: str,
    act: Callable[[str], object],
    damage: Callable[[str], object] | None = None,
) -> None:
    CELLS.append(Cell(number, name, act, kind, named, damage))


def row(
    name: str,
    kind: type[OmnigraphError],
    named: str,
    table: str | None,
    *tasks: Columns | pa.RecordBatch,
    **options: Any,
) -> None:
    """Add a cell: a write of these tasks."""
    cell(35, name, kind, named, lambda root: save(root, table, *tasks, **options))


KEYS, STRICT = {"integrity": "keys"}, {"integrity": "strict"}
MERGE, DELETE = {"writeMode": "merge"}, {"writeMode": "delete"}
INT, LONG, DOUBLE = pa.int32(), pa.int64(), pa.float64()

# fmt: off
# 35, ids
row("null id", IntegrityError, "column id", PERSON, {"id": [None], "need": ["n"]})
row("no id column", IntegrityError, "lacks column id", PERSON, {"need": ["n"]})
row("id of another type", SchemaMismatchError, "Column id", PERSON, person(id=pa.array([b"x"])))
row("id twice in a batch", IntegrityError, "'new'", PERSON,
    {"id": ["new", "new"], "need": ["n", "n"]}, **KEYS)
row("id twice across tasks", IntegrityError, "'new'", PERSON, person(), person(), **KEYS)
row("id that is there", IntegrityError, "'a'", PERSON, person(id=["a"]), **KEYS)
row("id that isn't the key", IntegrityError, "name", COMPANY, {"id": ["x"], "name": ["y"]})
row("null key", IntegrityError, "null", COMPANY, {"name": pa.array([None], pa.utf8())})
# 35, upserts and deletes by id
row("upsert, id twice in a task", IntegrityError, "'new'", PERSON,
    {"id": ["new", "new"], "need": ["n", "n"]}, **MERGE)
row("upsert, id twice across tasks", IntegrityError, "'a'", PERSON,
    person(id=["a"]), person(id=["a"]), **MERGE)
row("upsert, null id", IntegrityError, "column id", PERSON, {"id": [None], "need": ["n"]}, **MERGE)
row("upsert, no id column", IntegrityError, "lacks column id", PERSON, {"need": ["n"]}, **MERGE)
row("upsert, edge without id column", IntegrityError, "id", KNOWS, knows(), **MERGE)
row("upsert, edge with null id", IntegrityError, "id", KNOWS, knows(id=[None]), **MERGE)
row("upsert, new row lacks what may not be null", IntegrityError, "need", PERSON,
    {"id": ["new"], "age": pa.array([1], INT)}, **MERGE)
row("upsert, null into what may not be null", IntegrityError, "need", PERSON,
    {"id": ["a"], "need": [None]}, **MERGE)
row("upsert, extra column", SchemaMismatchError, "ghost", PERSON, person(ghost=["x"]), **MERGE)
row("upsert, overflow", SchemaMismatchError, "age", PERSON,
    {"id": ["a"], "age": pa.array([3_000_000_000], LONG)}, **MERGE)
row("upsert, bad enum", IntegrityError, "mood", PERSON, {"id": ["a"], "mood": ["sad"]}, **MERGE)
row("delete with mergeSchema", UnsupportedError, "mergeSchema", PERSON, {"id": ["a"]},
    mergeSchema="true", **DELETE)
row("delete with badRecordsPath", UnsupportedError, "badRecordsPath", PERSON, {"id": ["a"]},
    badRecordsPath="/tmp/none", **DELETE)
row("upsert by overwrite", OptionError, "merge", PERSON, person(), overwrite=True, **MERGE)
row("upsert, moved since it was read", ExpectedVersionMismatch, "node:Person", PERSON, person(),
    expectedTableVersions='{"node:Person": 7}', **MERGE)
row("upsert to an end that isn't there", IntegrityError, "nobody", KNOWS,
    {"id": ["ab"], "dst": ["nobody"]}, **MERGE, **STRICT)
row("delete without id column", IntegrityError, "id", PERSON, {"need": ["n"]}, **DELETE)
row("delete of a null id", IntegrityError, "id", PERSON, {"id": [None]}, **DELETE)
row("delete of an edge with null id", IntegrityError, "id", KNOWS, {"id": [None]}, **DELETE)
row("delete by an id of another type", SchemaMismatchError, "id", PERSON,
    {"id": pa.array([b"a"])}, **DELETE)
row("delete of nodes that edges end at", IntegrityError, "edge:Knows", PERSON, {"id": ["a"]},
    **DELETE)
row("delete from no table", TableNotFoundError, "node:Ghost", "node:Ghost", {"id": ["a"]}, **DELETE)
row("delete by overwrite", OptionError, "delete", PERSON, {"id": ["b"]}, overwrite=True, **DELETE)
row("delete, moved since it was read", ExpectedVersionMismatch, "node:Person", PERSON,
    {"id": ["b"]}, expectedTableVersions='{"node:Person": 7}', **DELETE)
# 35, columns and types
row("extra column", SchemaMismatchError, "ghost", PERSON, person(ghost=["x"]))
row("name in another case", SchemaMismatchError, "rename it to age", PERSON,
    person(AGE=pa.array([1], INT)))
row("column twice", SchemaMismatchError, "need more than once", PERSON,
    pa.RecordBatch.from_arrays([pa.array(["n"])] * 3, names=["id", "need", "need"]))
row("missing required column", SchemaMismatchError, "need", PERSON, {"id": ["new"]})
row("null in a required column", IntegrityError, "need", PERSON, {"id": ["new"], "need": [None]})
row("text for a number", SchemaMismatchError, "age", PERSON, person(age=["1"]))
row("overflow of int", SchemaMismatchError, "3000000000", PERSON,
    person(age=pa.array([3_000_000_000], LONG)))
row("negative for unsigned", SchemaMismatchError, "-1", PERSON, person(u=pa.array([-1], LONG)))
row("fraction for an integer", SchemaMismatchError, "age", PERSON, person(age=pa.array([1.5])), storeAssignment="exact")
row("double that float can't hold", SchemaMismatchError, "score", PERSON,
    person(score=pa.array([0.1], DOUBLE)), storeAssignment="exact")
row("decimal that double can't hold", SchemaMismatchError, "size", PERSON,
    person(size=pa.array([Decimal("1.00000000000000000001")], pa.decimal128(38, 20))),
    storeAssignment="exact")
row("microseconds for DateTime", SchemaMismatchError, "at", PERSON,
    person(at=pa.array([1_000_001], TIME)), storeAssignment="exact")
row("time without a zone for DateTime", SchemaMismatchError, "at", PERSON,
    person(at=pa.array([1_000_000], pa.timestamp("us"))))
row("time for a date", SchemaMismatchError, "born", PERSON,
    person(born=pa.array([1_000_000], TIME)))
row("vector too short", SchemaMismatchError, "vec", PERSON,
    person(vec=pa.array([[1.0, 2.0, 3.0]], pa.list_(pa.float32()))))
row("vector too long", SchemaMismatchError, "vec", PERSON,
    person(vec=pa.array([[1.0] * 5], pa.list_(pa.float32()))))
row("text that is not UTF-8", SchemaMismatchError, "first", PERSON,
    person(first=text_of(b"\xff\xfe")))
row("id that is not UTF-8", SchemaMismatchError, "id", PERSON, person(id=text_of(b"a\xff")))
row("key that is not UTF-8", SchemaMismatchError, "name", COMPANY, {"name": text_of(b"\xc3")})
row("upsert, text that is not UTF-8", SchemaMismatchError, "first", PERSON,
    {"id": ["a"], "first": text_of(b"\xff")}, **MERGE)
row("delete by an id that is not UTF-8", SchemaMismatchError, "id", PERSON,
    {"id": text_of(b"\xff")}, **DELETE)
row("list of text that is not UTF-8", SchemaMismatchError, "not UTF-8", "node:Pet",
    {"id": ["p"], "tags": pa.ListArray.from_arrays([0, 1], text_of(b"\xff"))})
row("_table that is not UTF-8", SchemaMismatchError, "_table", None,
    {"_table": text_of(b"\xff"), **person()})
for bad, spark in (("void", NullType()), ("year-month interval", YearMonthIntervalType())):
    row(f"new column of type {bad}", SchemaMismatchError, "odd", "node:Pet", {"id": ["p"]},
        schema=StructType([StructField("id", StringType()), StructField("odd", spark)]))
for odd in ("a.b", "b`t", "_rowid", ""):
    row(f"new column named {odd!r}", SchemaMismatchError, "can't be a column", "node:Pet",
        {"id": ["p"], odd: ["x"]})
row("names that differ in case", SchemaMismatchError, "differ only in case", "node:Pet",
    {"id": ["p"], "name": ["x"], "Name": ["y"]})
# 35, rules of values
row("enum of another value", IntegrityError, "sad", PERSON, person(mood=["sad"]))
row("out of range", IntegrityError, "size", PERSON, person(size=[9.0]), **KEYS)
row("NaN in a range", IntegrityError, "size", PERSON, person(size=[float("nan")]), **KEYS)
row("infinity in a range", IntegrityError, "size", PERSON, person(size=[float("inf")]), **KEYS)
row("text that no pattern fits", IntegrityError, "first", PERSON, person(first=["two words"]),
    **KEYS)
row("unique value twice", IntegrityError, "same", PERSON,
    person(email=["same"]), person(id=["other"], email=["same"]), **KEYS)
row("unique value that is there", IntegrityError, "a@x", PERSON, person(email=["a@x"]), **KEYS)
# 35, edges
row("null src", IntegrityError, "src", KNOWS, knows(src=[None]))
row("null dst", IntegrityError, "dst", KNOWS, knows(dst=[None]))
row("no src column", SchemaMismatchError, "src", KNOWS, {"dst": ["b"]})
row("no dst column", SchemaMismatchError, "dst", KNOWS, {"src": ["a"]})
row("src of another type", SchemaMismatchError, "src", KNOWS, knows(src=pa.array([b"a"])))
row("src nowhere", IntegrityError, "nobody", KNOWS, knows(src=["nobody"]), **STRICT)
row("dst nowhere", IntegrityError, "nobody", KNOWS, knows(dst=["nobody"]), **STRICT)
row("more edges than allowed", IntegrityError, "card", WORKS,
    {"src": ["a", "a"], "dst": ["acme", "acme"]}, **STRICT)
row("overwrite that strands edges", IntegrityError, "edge:Knows", PERSON, person(), overwrite=True,
    **STRICT)
row("new edge table without ends", SchemaMismatchError, "endpoints", "edge:Likes", knows())
row("new edge table that is dangling", OptionError, "Ghost", "edge:Likes", knows(),
    endpoints="Likes: Person -> Ghost")
# 35, frames as a whole
row("no columns", OptionError, "no columns", None, pa.record_batch([], names=[]))
row("no columns for a table", IntegrityError, "id", PERSON, pa.record_batch([], names=[]))
row("null _table", IntegrityError, "_table", None,
    {"_table": pa.array([None], pa.utf8()), **person()})
row("_table of no table", SchemaMismatchError, "node:Ghost", None,
    {"_table": ["node:Ghost"], **person()})
row("value in another table's column", SchemaMismatchError, "label", None,
    {"_table": [PERSON], **person(label=["x"])})
row("overwrite of a moved table", ExpectedVersionMismatch, "node:Person", PERSON, person(),
    overwrite=True, expectedTableVersions='{"node:Person": 7}')
row("expected version of no table", ExpectedVersionMismatch, "node:Ghost", PERSON, person(),
    expectedTableVersions='{"node:Ghost": 7}')

# 36, names of tables
for name in ("../x", "/abs", "a/../../b", "node:../x", "node:%2e%2e", "node:..", "node:", "..",
             "node:a b", "node:" + "P" * 300, "node:P$tombstone$1", "node:a\\b", "node:C:\\x",
             "node:Per\u0455on", "graph:Person", "node:x'; DROP TABLE y", "node:a\x00b", "'\" OR 1"):
    cell(36, f"table {name[:24]!r}", OptionError, "",
         lambda root, name=name: save(root, name, person()))
cell(36, "table of no graph", TableNotFoundError, "node:Person",
     lambda root: save(root, "Ghost", person()))
cell(36, "table in another case", TableNotFoundError, "node:Person",
     lambda root: save(root, "person", person()))
cell(36, "new table in lower case", OptionError, "capital letter",
     lambda root: save(root, "node:person", person()))
# 36, names of branches and tags
for name in ("", "../x", "/abs", "a/../../b", "..", "a b", "a\nb", "%2e%2e", ".hidden", "a//b",
             "a/", "x.lock", "b" * 300, "C:\\x", "br\u0430nch", "__run__x", "__schema_apply_lock__",
             "a'; --", "main"):
    cell(36, f"branch {name[:24]!r}", OptionError, "", lambda root, name=name: branches.create_branch(
        Storage.at(root), name, refs.named(Storage.at(root), "main")))
cell(36, "write to no branch", BranchNotFoundError, "nope",
     lambda root: save(root, PERSON, person(), branch="nope"))
cell(36, "branch from no ref", VersionNotFoundError, "nope",
     lambda root: save(root, PERSON, person(), branch="dev", branchFrom="nope"))
cell(36, "hostile branch from main", OptionError, "branch name",
     lambda root: save(root, PERSON, person(), branch="../x", branchFrom="main"))
cell(36, "hostile tag", OptionError, "", lambda root: tags.create_tag(
    Storage.at(root), "../x", refs.named(Storage.at(root), "main")))
for text in ("1 = 1) OR (1 = 1", "need = 'x'; DROP TABLE y", "need = 'open", "ghost = 1", " "):
    cell(36, f"filter {text!r}", OptionError, "filter", lambda root, text=text: plan_read(
        root, filter=text))
cell(36, "unknown option", OptionError, "userMetadata",
     lambda root: save(root, PERSON, person(), userMetdata="x"))
cell(36, "path of another scheme", OptionError, "dbfs",
     lambda root: save("dbfs:/x", PERSON, person()))


# 37, a manifest that lies, and one whose files are broken
def look(root: str) -> None:
    """Read the snapshot, and then all of Person."""
    storage = Storage.at(root)
    read_table(storage, load(storage), PERSON)


def at(root: str, place: str) -> Path:
    """Return a file of the graph; of a folder of versions or data, the newest or only one."""
    found = Path(root) / place
    return min(p for p in found.iterdir() if not p.name.startswith(".")) if found.is_dir() else found


PEOPLE = layout.table_location(PERSON)
for name, (lie, named) in damage.LIES.items():
    for doing, act in (("read", look), ("write", lambda root: save(root, PERSON, person()))):
        cell(37, f"{doing}, {name}", CorruptManifestError, named, act,
             lambda root, lie=lie: lie(Storage.at(root)))
for broken in damage.BROKEN_FILES:
    for place, named in (("__manifest", "__manifest"), (PEOPLE, PEOPLE)):
        cell(37, f"{broken.__name__} version file of {place}", OmnigraphError, named, look,
             lambda root, broken=broken, place=place: broken(at(root, f"{place}/_versions")))
cell(37, "version above the newest", OmnigraphError, PEOPLE, look, lambda root: damage.change(
    "table_version", "99", layout.version_object_id(PERSON, 1))(Storage.at(root)))
# 38, lost files
for what, place in (("table", PEOPLE), ("versions", f"{PEOPLE}/_versions"),
                    ("data", f"{PEOPLE}/data")):
    cell(38, f"lost {what}", OmnigraphError, PEOPLE, look,
         lambda root, place=place: shutil.rmtree(Path(root) / place))
for broken in (damage.empty, damage.cut, damage.garbage):
    cell(38, f"{broken.__name__} data file", OmnigraphError, "", look,
         lambda root, broken=broken: broken(at(root, f"{PEOPLE}/data")))
cell(38, "lost manifest", GraphNotFoundError, "g", look,
     lambda root: shutil.rmtree(Path(root) / "__manifest"))
cell(38, "lost version file, on writing", OmnigraphError, PEOPLE,
     lambda root: save(root, PERSON, person()), lambda root: at(root, f"{PEOPLE}/_versions").unlink())


# 39, what the operating system refuses to anybody, root too
def blocked(place: str) -> Callable[[str], object]:
    """Return what puts a file where a folder must be."""

    def act(root: str) -> None:
        shutil.rmtree(Path(root) / place, ignore_errors=True)
        (Path(root) / place).write_text("in the way")

    return act


def looped(place: str) -> Callable[[str], object]:
    """Return what makes a folder a link to itself."""

    def act(root: str) -> None:
        shutil.rmtree(Path(root) / place, ignore_errors=True)
        (Path(root) / place).symlink_to(Path(root) / place)

    return act


for how in (blocked, looped):
    for place in (f"{PEOPLE}/data", "__recovery"):
        cell(39, f"{how.__name__} {place}", StorageError, "",
             lambda root: save(root, PERSON, person()), how(place))
    cell(39, f"{how.__name__} table", OmnigraphError, PEOPLE, look, how(PEOPLE))
cell(39, "graph below a file", OmnigraphError, "", lambda root: save(
    f"{root}/_schema.pg/g", PERSON, person()))
cell(39, "name that is too long", OmnigraphError, "", lambda root: save(
    f"{root}/{'g' * 300}", PERSON, person()))

# fmt: on


@pytest.mark.parametrize("one", CELLS, ids=lambda one: f"{one.number}-{one.name}")
def test_bad_input_is_a_typed_error_before_any_commit_and_nothing_moves(
    root: str, one: Cell
) -> None:
    if one.damage is not None:
        one.damage(root)
    before = state(root)
    with pytest.raises(one.kind, match=r"^\[OMNIGRAPH_[A-Z_]+\] ") as caught:
        one.act(root)
    text = str(caught.value)
    assert f"[OMNIGRAPH_{type(caught.value).code}]" in text
    assert one.named in text, text
    shown, _, details = text.partition("\ndetails: ")
    assert "\n" not in shown + details
    assert state(root) == before


def state(root: str) -> object:
    """Return all bytes of the graph but its run diary, and what lies beside and above it."""
    hashes = {
        name: digest
        for name, digest in graphs.file_hashes(Path(root)).items()
        if not name.startswith("_graph_run")
    }
    above = Path(root).parent
    return hashes, sorted(os.listdir(above)), sorted(os.listdir(above.parent))


def test_there_are_at_least_80_cells_and_the_numbers_that_reliability_asks_for() -> None:
    counts = Counter(one.number for one in CELLS)
    sys.stdout.write(f"bad input: {len(CELLS)} cells, {dict(sorted(counts.items()))}\n")
    wanted = {35: 30, 36: 25, 37: 15, 38: 8, 39: 8}
    assert {number: counts[number] >= least for number, least in wanted.items()} == dict.fromkeys(
        wanted, True
    )
    assert len({(one.number, one.name) for one in CELLS}) == len(CELLS) >= 80


# --- what looks bad and is not ----------------------------------------------------------------------


@pytest.mark.parametrize("value", ["", "nul\x00byte", "x" * (1 << 20), "'; --", "\U0001f600", " "])
def test_an_odd_id_is_a_value_like_any_other(root: str, value: str) -> None:
    save(root, PERSON, person(id=[value]), **STRICT)
    storage = Storage.at(root)
    assert value in read_table(storage, load(storage), PERSON)["id"].to_pylist()
    save(root, PERSON, {"id": [value], "age": pa.array([7], INT)}, **MERGE)
    save(root, PERSON, {"id": [value]}, **DELETE)
    assert sorted(read_table(storage, load(storage), PERSON)["id"].to_pylist()) == ["a", "b"]


def test_columns_may_stand_in_any_order_and_no_rows_are_no_error(root: str) -> None:
    storage = Storage.at(root)
    before = load(storage)
    save(root, PERSON, batch({"id": [], "need": []}))
    assert load(storage).tables == before.tables
    save(root, PERSON, {"need": ["n"], "age": pa.array([3], INT), "id": ["c"]})
    found = read_table(storage, load(storage), PERSON).select(["id", "need", "age"]).to_pylist()
    assert {"id": "c", "need": "n", "age": 3} in found


def test_no_partitions_and_ten_thousand_partitions_write_what_they_hold(root: str) -> None:
    storage = Storage.at(root)
    raw = {"path": root, "table": PERSON}
    rows = batch(person())
    OmnigraphWriter(frame(rows), raw, False).commit([])
    assert load(storage).entry(PERSON).row_count == 2
    writer = OmnigraphWriter(frame(rows), raw, False)
    made: Sequence[Any] = [OmnigraphCommitMessage.of(n, []) for n in range(10_000)]
    full = writer.write(iter([rows]))
    assert isinstance(full, OmnigraphCommitMessage)
    writer.commit([full, *made[1:]])
    assert load(storage).entry(PERSON).row_count == 3


@pytest.mark.long
def test_a_row_of_100_megabytes_is_written_and_read(root: str) -> None:
    save(root, PERSON, person(need=["m" * (100 << 20)]))
    storage = Storage.at(root)
    found = read_table(storage, load(storage), PERSON)["need"].to_pylist()
    assert max(map(len, found)) == 100 << 20
