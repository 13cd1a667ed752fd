"""Writes without Spark: plan, stage and commit in this process, on small tables of ids."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from omnigraph_spark import options as options_module
from omnigraph_spark.history import new_graph as new_graphs
from omnigraph_spark.manifest import crash_records
from omnigraph_spark.manifest.snapshot import load
from omnigraph_spark.options import WriteOptions
from omnigraph_spark.schema import parse_pg
from omnigraph_spark.storage import layout
from omnigraph_spark.storage.store import Storage
from omnigraph_spark.write.commit.commit import Committed, commit
from omnigraph_spark.write.plan import NewTable, WritePlan, plan_write
from omnigraph_spark.write.tasks.stage import StagedTable, stage

PERSON = "node:Person"
COMPANY = "node:Company"
KNOWS = "edge:Knows"
ALL = (PERSON, COMPANY, KNOWS)

NODE_SCHEMA = pa.schema(
    [
        pa.field("id", pa.utf8(), nullable=False),
        pa.field("name", pa.utf8(), nullable=False),
        pa.field("age", pa.int32()),
    ]
)
EDGE_SCHEMA = pa.schema(
    [
        pa.field("id", pa.utf8(), nullable=False),
        pa.field("src", pa.utf8(), nullable=False),
        pa.field("dst", pa.utf8(), nullable=False),
        pa.field("w", pa.float64()),
    ]
)
NEW: Mapping[str, NewTable] = {
    PERSON: NewTable(NODE_SCHEMA, "name"),
    COMPANY: NewTable(NODE_SCHEMA, "name"),
    KNOWS: NewTable(EDGE_SCHEMA, None, ("Person", "Person")),
}
GRACE = "0.15"
"""Seconds that a silent writer is waited for in tests."""

DEFAULT = "the default"
"""Given as the value of an option: what the product does where nobody gives it."""

both_stamps = pytest.mark.parametrize("made", [2, 6], indirect=True)
"""For tests whose graph is a copy of what the fixture `made` makes: on graphs of both forms."""

Rows = Mapping[str, Sequence[str]]
"""Ids to write, by table key."""


def write_options(storage: Storage, mode: str = "append", **more: str) -> WriteOptions:
    """Return parsed write options; `more` by their names, the grace short unless given.

    The rows of these tests are ids, and their edges end anywhere: `integrity` is off unless given.
    """
    raw = {"path": storage.root, "orphanGraceSeconds": GRACE, "integrity": "off", **more}
    raw = {name: value for name, value in raw.items() if value != DEFAULT}
    return WriteOptions.of(options_module.parse(raw), mode == "overwrite")


def batch(schema: pa.Schema, ids: Sequence[str]) -> pa.RecordBatch:
    """Return rows of these ids: text columns hold the id, numbers count up, lists are null."""

    def column(kind: pa.DataType) -> pa.Array:
        if pa.types.is_nested(kind):
            return pa.nulls(len(ids), kind)
        return pa.array(list(ids) if kind == pa.utf8() else range(len(ids)), kind)

    columns = [column(field.type) for field in schema]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def plan(
    storage: Storage,
    tables: Sequence[str],
    mode: str = "append",
    *,
    new: Mapping[str, NewTable] = NEW,
    read_versions: Mapping[str, int] | None = None,
    **more: str,
) -> WritePlan:
    """Plan a write of tables, which are made as `new` says where the graph doesn't have them."""
    wanted = {key: new.get(key) for key in tables}
    return plan_write(storage, write_options(storage, mode, **more), wanted, read_versions)


def stage_rows(planned: WritePlan, rows: Rows) -> list[StagedTable]:
    """Stage one batch per table."""
    batches = [(key, batch(planned.targets[key].schema, ids)) for key, ids in rows.items()]
    return stage(planned, batches)


def write(storage: Storage, rows: Rows, mode: str = "append", **more: Any) -> Committed:
    """Write ids to tables in one commit, as `plan` plans it."""
    planned = plan(storage, list(rows), mode, **more)
    return commit(planned, stage_rows(planned, rows))


def new_graph(storage: Storage, tables: Sequence[str] = ALL) -> Storage:
    """Make a graph of tables with one row `first` each."""
    write(storage, {key: ["first"] for key in tables})
    return storage


class Kept:
    """A graph with branches and copies of it, each in a folder of its own.

    Branches name the folder that they were made in: a copy's is of the same length, so its name can
    take the other's place. (The same folder again would show what Lance remembers of it.)
    """

    def __init__(self, folder: Path, made: Callable[[Storage], object]) -> None:
        """Make the graph in an empty folder."""
        self._folder = folder
        self._copies = 0
        made(Storage.at(str(self._root(0))))

    def copy(self) -> Storage:
        """Return a copy of the graph."""
        self._copies += 1
        root = shutil.copytree(self._root(0), self._root(self._copies))
        old, new = (str(self._root(number))[1:].encode() for number in (0, self._copies))
        for path in root.rglob("*"):
            if path.is_file() and old in (content := path.read_bytes()):
                path.write_bytes(content.replace(old, new))
        return Storage.at(str(root))

    def _root(self, number: int) -> Path:
        return self._folder / f"g{number:04}"


SCHEMA = """node Person {
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
"""What `NEW` makes, as the engine's schema says it."""


def empty_graph(storage: Storage, form: int, schema: str = SCHEMA) -> Storage:
    """Make the tables of a graph of stamp 6, without rows; one of stamp 2 comes with its rows."""
    if form == new_graphs.OF_TODAY:
        new_graphs.make(storage, parse_pg(schema))
    return storage


def ids(storage: Storage, key: str, version: int | None = None) -> list[str]:
    """Return the ids that a reader of a graph version sees in a table, sorted, doubles included."""
    entry = load(storage, version=version).entry(key)
    dataset = storage.dataset(entry.location, entry.table_branch, entry.table_version)
    found: list[str] = dataset.to_table(columns=["id"])["id"].to_pylist()
    assert len(found) == entry.row_count
    return sorted(found)


def head(storage: Storage, key: str) -> int:
    """Return the newest version of a table's dataset, published or not."""
    return int(storage.dataset(load(storage).locations[key]).version)


def once(action: Callable[[], object]) -> Callable[[], None]:
    """Return a hook that acts the first time and then no more."""
    done: list[bool] = []

    def hook() -> None:
        if not done:
            done.append(True)
            action()

    return hook


def age(storage: Storage, path: str, seconds: int = 3600) -> None:
    """Date a file back: a crash record then counts as one that nobody renews, without a wait."""
    file = Path(storage.uri(path))
    then = file.stat().st_mtime - seconds
    os.utime(file, (then, then))


def age_record(storage: Storage, publish_id: str) -> None:
    """Date the crash record of a publish back by an hour."""
    age(storage, crash_records.path_of(publish_id))


def age_records(storage: Storage) -> None:
    """Date every crash record back by an hour."""
    for info in storage.list(layout.RECOVERY):
        age(storage, info.path)


def orphan(storage: Storage, key: str, found: Sequence[str], publish_id: str | None = None) -> int:
    """Append rows to a table's dataset without publishing them, as a writer does that dies."""
    import lance
    from lance.dataset import Transaction

    from omnigraph_spark.storage.layout import PUBLISH_ID_PROPERTY

    planned = plan(storage, [key])
    staged = stage_rows(planned, {key: found})
    dataset = storage.dataset(planned.targets[key].location)
    fragments = [
        lance.FragmentMetadata.from_json(json.dumps(fragment))
        for one in staged
        for fragment in one.fragments
    ]
    properties = None if publish_id is None else {PUBLISH_ID_PROPERTY: publish_id}
    transaction = Transaction(
        read_version=dataset.version,
        operation=lance.LanceOperation.Append(fragments),
        transaction_properties=properties,
    )
    return int(lance.LanceDataset.commit(dataset, transaction).version)


class Died(BaseException):
    """What a hook raises where a process would be killed: nothing in the product catches it."""


def die() -> None:
    """Die as a killed process does: nothing is put back and the crash record stays."""
    raise Died


def write_and_die(
    storage: Storage, point: str, rows: Rows, mode: str = "append", **more: str
) -> WritePlan:
    """Write up to a fault point and die there; returns the plan of the dead write."""
    import contextlib

    from omnigraph_spark import _faults

    planned = plan(storage, list(rows), mode, **more)
    staged = stage_rows(planned, rows)
    _faults.arm(point, die)
    with contextlib.suppress(Died):
        commit(planned, staged)
        raise AssertionError(f"{point} was not reached")
    _faults.disarm()
    return planned


def records(storage: Storage) -> list[str]:
    """Return the publish ids of the crash records that are there."""
    return [info.path.rsplit("/", 1)[-1][:-5] for info in storage.list("__recovery")]


def data_files(storage: Storage, key: str) -> set[str]:
    """Return the names of a table's data files, whatever versions name them."""
    from omnigraph_spark.storage import layout

    folder = f"{layout.table_location(key)}/data"
    return {info.path.rsplit("/", 1)[-1] for info in storage.list(folder)}
