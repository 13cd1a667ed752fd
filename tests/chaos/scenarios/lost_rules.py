"""The graph's own rules: nothing that happens to the schema files, and no merge, may lose one."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

from omnigraph_spark import _faults
from omnigraph_spark.errors import OmnigraphError
from omnigraph_spark.schema import parse_pg, render_pg
from omnigraph_spark.schema_changes import properties
from omnigraph_spark.schema_changes.properties import drop_property
from omnigraph_spark.spark import ddl
from omnigraph_spark.storage import layout
from omnigraph_spark.storage.store import Storage
from tests.chaos.lab import Lab
from tests.chaos.launcher import Setup
from tests.support import columns, merges, ruled
from tests.support.branches import ids_at, make
from tests.support.ruled import COMPANY, KNOWS, PERSON
from tests.support.writes import write_options

_OTHER = "node:Other"


class _Killed(BaseException):
    """Ends a call where it stands, as a kill does."""


def schema(lab: Lab) -> None:
    """Each way to lose a rule or a type, and what the next writer may do then."""
    for name in _WAYS:
        case = lab.case(f"rules-{name}").make()
        landed = case.run(lose, case.graph, name)
        lab.expect(not landed, "schema files", f"{name}: a write that breaks a rule landed")
        case.close()


def lose(setup: Setup, graph: str, name: str) -> bool:
    """Lose something in a graph of its own; return whether a write that breaks a rule lands then."""
    storage = ruled.ruled_graph(Storage.at(f"{graph}-{name}"))
    return _WAYS[name](storage)


def _lands(write: Callable[[], object]) -> bool:
    try:
        write()
    except OmnigraphError:
        return False
    return True


def _killed_drop(storage: Storage) -> bool:
    def die() -> None:
        if b"age:" not in (storage.get(layout.SCHEMA_PG) or b""):  # the files have forgotten it
            raise _Killed

    _faults.arm("commit.before_table", die)
    with contextlib.suppress(_Killed):
        drop_property(storage, write_options(storage), PERSON, "age")
    _faults.disarm()
    bad = {"id": "z", "age": 999}
    return _lands(lambda: ruled.save(storage, {PERSON: [bad]}, integrity="strict"))


def _lost_type(storage: Storage) -> bool:
    text = storage.get(layout.SCHEMA_PG)
    assert text is not None
    types = parse_pg(text.decode()).types()
    kept = render_pg([one for one in types if one.table_key != KNOWS])
    for name in (layout.SCHEMA_IR, layout.SCHEMA_STATE):
        storage.delete(name)
    storage.put(layout.SCHEMA_PG, kept.encode())
    return _lands(lambda: ruled.save(storage, {PERSON: [{"id": "b"}]}, writeMode="delete"))


def _empty_file(storage: Storage) -> bool:
    storage.put(layout.SCHEMA_PG, b"")
    return _lands(lambda: merges.write_rows(storage, {COMPANY: []}, "delete"))


def _merge(storage: Storage) -> bool:
    make(storage, "dev")
    for branch in ("main", "dev"):
        row = {"id": f"at {branch}", "email": "x@y"}
        ruled.save(storage, {PERSON: [row]}, integrity="strict", branch=branch)
    return _lands(lambda: merges.merge(storage, "dev", integrity="strict"))


def _merge_of_equals(storage: Storage) -> bool:
    make(storage, "dev")
    for branch in ("dev", "main"):
        ruled.save(storage, {PERSON: [{"id": "c"}]}, writeMode="delete", branch=branch)
    merges.merge(storage, "dev", integrity="strict")
    ruled.save(storage, {PERSON: [{"id": "c"}]})
    merges.merge(storage, "dev", integrity="strict")
    return "c" not in ids_at(storage, PERSON)


def _old_values(storage: Storage) -> bool:
    """Drop the last column and add another one of its name: are the old values under it?"""
    asked, there = write_options(storage), ddl.parse_columns("id STRING, d INT, l INT")
    properties.add_table(storage, asked, _OTHER, there)
    frame = [(field.name, field.dataType) for field in there.fields]
    columns.write(storage, _OTHER, frame, [{"id": "a", "d": 1, "l": 7}])
    drop_property(storage, write_options(storage), _OTHER, "l")
    if not _lands(lambda: properties.add_property(storage, asked, _OTHER, "l", "I32?")):
        return True
    return columns.table(storage, _OTHER)["l"].to_pylist() != [None]


_WAYS: dict[str, Callable[[Storage], bool]] = {
    "killed-drop": _killed_drop,
    "old-values": _old_values,
    "lost-type": _lost_type,
    "empty-file": _empty_file,
    "merge": _merge,
    "merge-of-equals": _merge_of_equals,
}
