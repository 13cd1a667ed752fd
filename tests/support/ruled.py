"""A graph whose schema has rules, and writes to it as Spark's tasks and driver make them.

Without Spark: rows are given as dicts, one list per task.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from omnigraph_spark import schema as engine_schema
from omnigraph_spark.integrity.screen import Screen
from omnigraph_spark.manifest.snapshot import load
from omnigraph_spark.schema.model import EdgeType, NodeType
from omnigraph_spark.storage import layout
from omnigraph_spark.storage.ids import ulids
from omnigraph_spark.storage.store import Storage
from omnigraph_spark.write.commit.commit import Committed, commit
from omnigraph_spark.write.plan import NewTable, WritePlan, plan_write
from omnigraph_spark.write.tasks.routing import Routing, route
from omnigraph_spark.write.tasks.stage import StagedTable, stage
from tests.support import writes
from tests.support.writes import write_options

PERSON, COMPANY, KNOWS, WORKS = "node:Person", "node:Company", "edge:Knows", "edge:Works"
SCHEMA = """
node Person {
    age: I32?
    at: DateTime?
    email: String? @unique
    first: String?
    last: String?
    mood: enum(good, bad)?
    size: F64?
    @check(first, "^\\\\w+$")
    @range(age, 0..120)
    @range(size, 0.5..2.5)
    @unique(first, last)
    @unique(at)
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
Row = Mapping[str, Any]
Rows = Mapping[str, Sequence[Row]]


def ruled_graph(root: Storage | str | Path, form: int = 2) -> Storage:
    """Make a graph with the four tables: people a, b, c, company acme, a knows b, a works there."""
    storage = root if isinstance(root, Storage) else Storage.at(str(root))
    if form == 2:
        storage.put(layout.SCHEMA_PG, SCHEMA.encode())
    writes.empty_graph(storage, form, SCHEMA)
    save(
        storage,
        {
            PERSON: [{"id": "a"}, {"id": "b"}, {"id": "c"}],
            COMPANY: [{"name": "acme"}],
            KNOWS: [edge("a", "b", id="ab", label="old")],
            WORKS: [edge("a", "acme", id="aw")],
        },
    )
    return storage


def edge(src: str, dst: str, **more: Any) -> Row:
    return {"id": more.pop("id", None) or ulids(1)[0].as_py(), "src": src, "dst": dst, **more}


def planned(
    storage: Storage, tables: Sequence[str], mode: str = "append", **options: str
) -> WritePlan:
    """Plan a write of tables that the schema has."""
    schema = engine_schema.read(storage)
    assert schema is not None
    wanted = {key: _new_table(schema.of_table(key)) for key in tables}
    return plan_write(storage, write_options(storage, mode, **options), wanted)


def staged(plan: WritePlan, *tasks: Rows) -> list[StagedTable]:
    """Stage the rows of tasks, each as a task of its own does."""
    done = []
    for number, rows in enumerate(tasks):
        screen = Screen(plan.integrity, plan.storage.options, plan.publish_id, f"part-{number:05d}")
        batches = []
        for key, found in rows.items():
            schema = plan.targets[key].schema
            names = [name for name in schema.names if any(name in row for row in found)]
            given = pa.schema([(name, _as_spark(schema.field(name).type)) for name in names])
            batch = pa.RecordBatch.from_pylist(list(found), given)
            batches.append((key, batch))
        done += stage(plan, _screened(plan, batches, screen))
    return done


def _as_spark(kind: pa.DataType) -> pa.DataType:
    if isinstance(kind, pa.BaseExtensionType):  # a blob
        return pa.binary()
    return pa.timestamp("us", "UTC") if pa.types.is_date64(kind) else kind


def _screened(plan: WritePlan, batches: list[tuple[str, pa.RecordBatch]], screen: Screen) -> Any:
    for key, batch in batches:
        yield from route(Routing(single=key), plan.targets, [batch], screen)


def save(
    storage: Storage, *tasks: Rows, mode: str = "append", tables: Sequence[str] = (), **options: str
) -> Committed:
    """Write the rows of tasks in one commit."""
    keys = sorted({*tables, *(key for rows in tasks for key in rows)})
    plan = planned(storage, keys, mode, **options)
    return commit(plan, staged(plan, *tasks))


def rows(storage: Storage, key: str, *columns: str) -> list[Any]:
    """Return the rows that a reader sees, sorted: tuples of columns, or the values of one."""
    entry = load(storage).entry(key)
    dataset = storage.dataset(entry.location, entry.table_branch, entry.table_version)
    table = dataset.to_table(columns=list(columns or ("id",)))
    assert table.num_rows == entry.row_count
    found = list(zip(*(column.to_pylist() for column in table.columns), strict=True))
    return sorted(one[0] if len(one) == 1 else one for one in found)


def bad_records(folder: Path) -> list[dict[str, Any]]:
    """Return what was set aside below a local folder, in the order of the files."""
    return [
        json.loads(line)
        for path in sorted(folder.rglob("*.json"))
        for line in path.read_text(encoding="utf-8").splitlines()
    ]


def _new_table(found: NodeType | EdgeType | None) -> NewTable | None:
    if found is None:
        return None
    is_edge = isinstance(found, EdgeType)
    system = [pa.field(name, pa.utf8(), False) for name in ("id", "src", "dst")]
    fields = [one.arrow_field() for one in sorted(found.properties, key=lambda one: one.name)]
    return NewTable(
        pa.schema([*system[: 3 if is_edge else 1], *fields]),
        None if isinstance(found, EdgeType) else found.key,
        (found.source, found.target) if isinstance(found, EdgeType) else None,
        {one.name: one.type for one in found.properties if one.type.enum_values is not None},
    )
