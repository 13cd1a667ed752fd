"""Properties come, go and change in graphs of engine 0.9: columns and schema files together."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import IntegerType, StructField, StructType

from omnigraph_spark import _faults
from omnigraph_spark.errors import (
    ExpectedVersionMismatch,
    OmnigraphError,
    RecoveryPendingError,
    SchemaMismatchError,
    StorageError,
    UnsupportedError,
)
from omnigraph_spark.history import commits
from omnigraph_spark.maintenance.check import check
from omnigraph_spark.maintenance.repair import repair
from omnigraph_spark.manifest import schema_lock
from omnigraph_spark.manifest.snapshot import load, open_main
from omnigraph_spark.schema_changes import properties
from omnigraph_spark.storage.store import Storage
from tests.format_checker import check_graph
from tests.support import branches, graphs
from tests.support.frames import nothing_written
from tests.support.plain_writes import read, rows, save
from tests.support.stores import Store
from tests.support.writes import Died, die, once, write_options

PERSON = "node:Person"
TYPES = "Person.age: I32, Person.zip: String?, Person.bio: String?"
LOCK = "__schema_apply_lock__"


@pytest.fixture
def root(tmp_path: Path) -> Iterator[str]:
    place = str(tmp_path / "graph")
    columns = {
        "name": ["ann", "bo"],
        "zip": ["z1", None],
        "age": pa.array([1, 2], pa.int32()),
        "bio": ["b1", "b2"],
    }
    never_null = StructType([StructField("age", IntegerType(), nullable=False)])
    options = {"table": PERSON, "keys": "Person: name", "types": TYPES, "graphFormat": "6"}
    save(place, columns, schema=never_null, **options)
    yield place
    _faults.disarm()


def call(root: str, change: Callable[..., Any], *arguments: Any, **options: str) -> Any:
    storage = Storage.at(root)
    return change(storage, write_options(storage, **options), PERSON, *arguments)


def add(root: str, name: str = "email", kind: str = "String?", **options: str) -> Any:
    return call(root, properties.add_property, name, kind, **options)


def drop(root: str) -> Any:
    return call(root, properties.drop_property, "bio")


def rename(root: str) -> Any:
    return call(root, properties.rename_property, "bio", "text")


def relax(root: str) -> Any:
    return call(root, properties.alter_property, "age", True)


def widen(root: str) -> Any:
    return call(root, properties.widen_property, "age", "I64")


def append(root: str) -> None:
    given = {"name": ["cy"], "age": pa.array([3], pa.int32()), "mail": ["m"], "aa": [7]}
    save(root, given, table=PERSON, mergeSchema="true")


def upsert(root: str) -> None:
    save(
        root, {"name": ["ann"], "mail": ["m"]}, table=PERSON, mergeSchema="true", writeMode="merge"
    )


def overwrite(root: str) -> None:
    given = {"name": ["cy"], "age": pa.array([3], pa.int32()), "mail": ["m"]}
    save(root, given, table=PERSON, mergeSchema="true", overwrite=True)


ADDED: tuple[tuple[str, list[str]], ...] = (
    ("aa", ["id", "aa", "age", "bio", "name", "zip"]),
    ("email", ["id", "age", "bio", "email", "name", "zip"]),
    ("zz", ["id", "age", "bio", "name", "zip", "zz"]),
)
ANN = {"id": "ann", "name": "ann", "age": 1, "bio": "b1", "zip": "z1"}
BO = {"id": "bo", "name": "bo", "age": 2, "bio": "b2", "zip": None}
CHANGES: dict[Callable[[str], Any], list[dict[str, Any]]] = {
    add: [{**ANN, "email": None}, {**BO, "email": None}],
    drop: [{k: v for k, v in one.items() if k != "bio"} for one in (ANN, BO)],
    rename: [{"text" if k == "bio" else k: v for k, v in one.items()} for one in (ANN, BO)],
    relax: [ANN, BO],
    widen: [ANN, BO],
    append: [
        {**ANN, "mail": None, "aa": None},
        {**BO, "mail": None, "aa": None},
        {"id": "cy", "name": "cy", "age": 3, "bio": None, "zip": None, "mail": "m", "aa": 7},
    ],
    upsert: [{**ANN, "mail": "m"}, {**BO, "mail": None}],
    overwrite: [{"id": "cy", "name": "cy", "age": 3, "bio": None, "zip": None, "mail": "m"}],
}
ALONE = (add, drop, rename, relax, widen)
"""Changes that are one commit; the others write rows in a second one."""
BEFORE = (
    *("schema_lock.taken", "table.sending", "table.landed", "schema_apply.tables_made"),
    *("schema_apply.recorded", "schema_apply.file_staged", "schema_apply.staged"),
    "publish.sending",
)
AFTER = ("publish.landed", "schema_apply.published", "schema_apply.file_put")


def columns(root: str) -> list[str]:
    entry = load(Storage.at(root)).entry(PERSON)
    dataset = Storage.at(root).dataset(entry.location, None, entry.table_version)
    names: list[str] = dataset.schema.names
    return names


def found(root: str) -> list[dict[str, Any]]:
    return [dict(zip(columns(root), row, strict=True)) for row in rows(root, PERSON)]


def ids(root: str) -> dict[str, int]:
    ir = json.loads(Path(root, "_schema.ir.json").read_text())
    (person,) = (one for one in ir["nodes"] if one["name"] == "Person")
    return {p["name"]: p["property_id"] for p in person["properties"]}


def data(root: str) -> set[str]:
    return {one.name for one in Path(root, "nodes").glob("*/data/*")}


def sound(root: str) -> None:
    assert check_graph(root) == []
    assert check(Storage.at(root)) == []


@pytest.mark.long
@pytest.mark.parametrize("change", CHANGES)
def test_a_change_of_properties_is_in_the_files_and_the_rows(
    root: str, change: Callable[[str], Any]
) -> None:
    change(root)
    assert found(root) == CHANGES[change]
    sound(root)
    assert ids(root).keys() == {*columns(root)} - {"id"}


@pytest.mark.long
@pytest.mark.parametrize(("name", "order"), ADDED)
def test_a_new_property_stands_where_its_name_belongs_and_no_row_is_written_again(
    root: str, name: str, order: list[str]
) -> None:
    version, files = load(Storage.at(root)).graph_version, data(root)
    done = add(root, name)
    assert done.graph_version == version + 1
    assert columns(root) == order
    assert data(root) == files
    assert commits.read_commits(Storage.at(root))[-1].graph_commit_id == done.publish_id
    save(root, {"name": ["cy"], "age": pa.array([3], pa.int32()), name: ["new"]}, table=PERSON)
    save(root, {"name": ["bo"], "zip": ["z2"]}, table=PERSON, writeMode="merge")
    assert [row[name] for row in found(root)] == [None, None, "new"]
    assert [row["zip"] for row in found(root)] == ["z1", "z2", None]
    sound(root)


@pytest.mark.long
def test_properties_keep_their_ids_and_a_new_one_gets_the_next(root: str) -> None:
    before = ids(root)
    add(root)
    last = max(before.values()) + 1  # the table's own number, given after its properties'
    assert ids(root) == {**before, "email": last + 1}
    rename(root)
    widen(root)
    assert ids(root) == {
        **{k: v for k, v in before.items() if k != "bio"},
        "text": before["bio"],
        "email": last + 1,
    }
    call(root, properties.drop_property, "email")
    add(root)
    assert ids(root)["email"] == last + 2
    assert [row["email"] for row in found(root)] == [None, None]
    sound(root)


def test_rules_follow_a_renamed_property_and_go_with_a_dropped_one(tmp_path: Path) -> None:
    root = str(graphs.unpack("v6", "constraints", tmp_path))
    storage = Storage.at(root)
    options = write_options(storage)
    before = rows(root, "node:Pair", "a", "b", "score")
    properties.rename_property(storage, options, "Pair", "score", "z_score")
    assert rows(root, "node:Pair", "a", "b", "z_score") == before
    text = Path(root, "_schema.pg").read_text()
    assert "@range(z_score, -0.5..100000000000000000000.0)" in text
    assert "@unique(a, z_score)" in text
    properties.drop_property(storage, options, "Pair", "note")
    assert "note" not in Path(root, "_schema.pg").read_text()
    assert check_graph(root, moved=True) == []


DEATHS = (
    *((add, point) for point in (*BEFORE, *AFTER)),
    *((one, point) for one in ALONE[1:] for point in (BEFORE[2], BEFORE[-2], AFTER[1])),
)
"""One change dies at every step; the others where their table, files and publish are made."""


@pytest.mark.long
@pytest.mark.parametrize(("change", "point"), DEATHS)
def test_a_change_whose_process_dies_is_all_there_or_not_at_all_after_the_next_write(
    root: str, change: Callable[[str], Any], point: str
) -> None:
    text, wanted = Path(root, "_schema.pg").read_text(), CHANGES[change]
    _faults.arm(point, once(die))
    with contextlib.suppress(Died):
        change(root)
        raise AssertionError(f"{point} was not reached")
    _faults.disarm()
    assert LOCK in open_main(Storage.at(root)).branches.list()
    for code in ("z2", "z1"):  # an upsert that changes nothing leaves what a dead writer left
        save(root, {"name": ["ann"], "zip": [code]}, table=PERSON, writeMode="merge")
    sound(root)
    is_done = point in AFTER
    assert (Path(root, "_schema.pg").read_text() != text) is is_done
    assert found(root) == (wanted if is_done else [ANN, BO])
    if not is_done:
        change(root)
        assert found(root) == wanted
        sound(root)


@pytest.mark.long
@pytest.mark.parametrize("point", ["table.landed", "schema_apply.staged", "schema_apply.published"])
def test_a_repair_finishes_or_undoes_a_change_whose_process_died(root: str, point: str) -> None:
    _faults.arm(point, once(die))
    with contextlib.suppress(Died):
        add(root)
    _faults.disarm()
    assert check_graph(root) != []
    repair(Storage.at(root), dry_run=False, grace_seconds=0.1)
    sound(root)
    assert ("email" in ids(root)) is (point in AFTER)
    assert ("email" in columns(root)) is (point in AFTER)


@pytest.mark.long
@pytest.mark.parametrize("point", ["schema_apply.tables_made", "schema_apply.staged"])
def test_what_a_change_that_fails_has_made_is_taken_back(root: str, point: str) -> None:
    def fail() -> None:
        raise StorageError("the store failed")

    _faults.arm(point, fail)
    with pytest.raises(StorageError):
        add(root)
    _faults.disarm()
    assert found(root) == [ANN, BO]
    sound(root)
    add(root)
    sound(root)


def in_flight(root: str) -> None:
    """Write to another table as one does that began before the lock: it sees none of a change."""
    main = open_main(Storage.at(root))
    told = main.branches.list()[LOCK]["metadata"]
    main.branches.delete(LOCK)
    names = [*schema_lock.STAGED, *map(str, Path(root).glob("__recovery/*.json"))]
    paths = [Path(root, name) for name in names if Path(root, name).exists()]
    kept = {path: path.read_bytes() for path in paths}
    for path in paths:
        path.unlink()
    save(root, {"id": ["u"]}, table="node:Town")
    for path, content in kept.items():
        path.write_bytes(content)
    main.create_branch(LOCK, int(main.latest_version))
    main.branches.replace_metadata(LOCK, told)


@pytest.mark.long
@pytest.mark.parametrize(
    "point", ["schema_apply.tables_made", "schema_apply.staged", "publish.sending"]
)
def test_a_change_that_loses_to_a_write_is_made_again(root: str, point: str) -> None:
    save(root, {"id": ["t"]}, table="node:Town")
    _faults.arm(point, once(lambda: in_flight(root)))
    add(root)
    _faults.disarm()
    assert found(root) == CHANGES[add]
    assert rows(root, "node:Town", "id") == [("t",), ("u",)]
    sound(root)


def swept(root: str) -> None:
    """Do what an engine's command does that comes while a change is going on: undo it."""
    for name in schema_lock.STAGED:
        Path(root, name).unlink()
    (record,) = Path(root, "__recovery").glob("*.json")
    told = json.loads(record.read_text())
    assert (told["writer_kind"], told["tables"]) == ("SchemaApply", [])
    assert told["protocol_v7"]["effect_phase"] == "Armed"
    record.unlink()


@pytest.mark.parametrize("point", ["schema_apply.staged", "schema_apply.published"])
def test_a_change_survives_an_engines_command_that_takes_it_for_a_dead_one(
    root: str, point: str
) -> None:
    _faults.arm(point, once(lambda: swept(root)))
    add(root)
    assert found(root) == CHANGES[add]
    sound(root)


@pytest.mark.parametrize("change", CHANGES)
def test_other_branches_are_in_the_way_of_a_change(root: str, change: Callable[[str], Any]) -> None:
    branches.make(Storage.at(root), "dev")
    with nothing_written(root), pytest.raises(UnsupportedError, match="dev"):
        change(root)
    options = {"branch": "dev"}
    with nothing_written(root), pytest.raises(UnsupportedError, match="dev"):
        add(root, **options)


def test_the_lock_of_an_engine_is_respected(root: str) -> None:
    open_main(Storage.at(root)).create_branch(LOCK)
    with pytest.raises(RecoveryPendingError):
        add(root)
    assert LOCK in open_main(Storage.at(root)).branches.list()


@pytest.mark.parametrize(
    ("change", "error"),
    [
        (lambda root: add(root, "price", "DECIMAL(5, 2)"), UnsupportedError),
        (lambda root: add(root, "Big"), UnsupportedError),
        (lambda root: add(root, "name", "I64?"), SchemaMismatchError),
        (lambda root: call(root, properties.rename_property, "bio", "Bio"), UnsupportedError),
        (lambda root: call(root, properties.rename_property, "bio", "zip"), SchemaMismatchError),
        (lambda root: call(root, properties.drop_property, "name"), SchemaMismatchError),
        (lambda root: call(root, properties.drop_property, "nope"), SchemaMismatchError),
        (lambda root: call(root, properties.widen_property, "age", "F64"), SchemaMismatchError),
        (
            lambda root: save(
                root,
                {"name": ["x"], "Big": [1]},
                table=PERSON,
                mergeSchema="true",
                writeMode="merge",
            ),
            UnsupportedError,
        ),
    ],
)
def test_what_cannot_be_a_property_is_refused_and_nothing_is_written(
    root: str, change: Callable[[str], Any], error: type[OmnigraphError]
) -> None:
    with nothing_written(root), pytest.raises(error):
        change(root)


def test_what_is_so_already_publishes_nothing(root: str) -> None:
    add(root)
    relax(root)
    with nothing_written(root):
        assert add(root).skipped
        assert relax(root).skipped


@pytest.mark.parametrize(
    ("table", "name", "error", "why"),
    [
        ("Pair", "a", SchemaMismatchError, "is its key"),
        ("Pair", "b", SchemaMismatchError, "is its key"),
        ("Doc", "title", UnsupportedError, "@embed"),
        ("Doc", "name", UnsupportedError, "interface"),
    ],
)
def test_keys_and_what_others_build_on_must_stay(
    tmp_path: Path, table: str, name: str, error: type[OmnigraphError], why: str
) -> None:
    root = str(graphs.unpack("v6", "constraints", tmp_path))
    storage = Storage.at(root)
    options = write_options(storage)
    version = load(storage).graph_version
    for change, more in ((properties.drop_property, ()), (properties.rename_property, ("n",))):
        with pytest.raises(error, match=why):
            change(storage, options, table, name, *more)
    assert check_graph(root, moved=True) == []
    assert load(storage).graph_version == version


def test_rows_that_were_staged_before_a_property_was_added_land_without_it(root: str) -> None:
    _faults.arm("commit.entered", once(lambda: add(root)))
    save(root, {"name": ["ann"], "zip": ["zz"]}, table=PERSON, writeMode="merge")
    assert found(root) == [{**ANN, "zip": "zz", "email": None}, {**BO, "email": None}]
    sound(root)


def test_rows_that_were_staged_before_a_property_was_dropped_are_refused(root: str) -> None:
    _faults.arm("commit.entered", once(lambda: drop(root)))
    given = {"name": ["cy"], "age": pa.array([3], pa.int32()), "bio": ["b3"]}
    with pytest.raises(SchemaMismatchError, match="changed while the write was running"):
        save(root, given, table=PERSON)
    sound(root)


def test_an_overwrite_of_what_was_read_brings_new_properties(root: str) -> None:
    schema = read(root, table=PERSON)
    given = {"id": ["ann"], "name": ["ann"], "age": pa.array([1], pa.int32()), "mail": ["m"]}
    save(root, given, table=PERSON, mergeSchema="true", overwrite=True, schema=schema)
    assert [row["mail"] for row in found(root)] == ["m"]
    stale = {**given, "more": ["x"]}
    with pytest.raises(ExpectedVersionMismatch):
        save(root, stale, table=PERSON, mergeSchema="true", overwrite=True, schema=schema)
    assert "more" not in columns(root)


def test_a_version_that_is_expected_of_a_table_is_that_before_its_new_properties(root: str) -> None:
    version = load(Storage.at(root)).version(PERSON)
    given = {"name": ["ann"], "mail": ["m"]}
    options = {"table": PERSON, "mergeSchema": "true", "writeMode": "merge"}
    save(root, given, expectedTableVersions=json.dumps({PERSON: version}), **options)
    more = {**given, "more": ["x"]}
    with pytest.raises(ExpectedVersionMismatch):
        save(root, more, expectedTableVersions=json.dumps({PERSON: version}), **options)
    assert "more" not in columns(root)


@pytest.mark.long
def test_properties_change_in_a_graph_in_any_store(store: Store) -> None:
    root, storage = store.uri("graph"), store.storage("graph")
    given = dict(store.options)
    save(root, {"name": ["ann"]}, table=PERSON, keys="Person: name", graphFormat="6", **given)
    options = write_options(storage, **given)
    _faults.arm("schema_apply.published", once(die))
    with contextlib.suppress(Died):
        properties.add_property(storage, options, PERSON, "email", "String?")
    _faults.disarm()
    properties.rename_property(storage, options, PERSON, "email", "zed")
    save(root, {"name": ["ann"], "zed": ["z"]}, table=PERSON, writeMode="merge", **given)
    entry = load(storage).entry(PERSON)
    rows = storage.dataset(entry.location, None, entry.table_version).to_table().to_pylist()
    assert rows == [{"id": "ann", "name": "ann", "zed": "z"}]
    assert storage.get("_schema.pg.staging") is None
    assert storage.list("__recovery") == []
