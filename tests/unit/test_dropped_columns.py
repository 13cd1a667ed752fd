"""A table that lost a column in its middle, whose field ids have a gap, is written like any other."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from omnigraph_spark import _faults
from omnigraph_spark.maintenance.optimize import optimize, run_here
from omnigraph_spark.manifest.snapshot import load
from omnigraph_spark.merge.restore import restore
from omnigraph_spark.refs import branches
from omnigraph_spark.refs.refs import Resolved
from omnigraph_spark.schema_changes import properties as changes
from omnigraph_spark.spark import ddl
from omnigraph_spark.storage.store import Storage
from tests.format_checker import check_graph
from tests.support import columns, writes
from tests.support.columns import rows_of

TABLE = "node:W"
COLUMNS = ddl.parse_columns("id STRING, d INT, i INT, l ARRAY<INT>, t INT, u STRING")
LEFT = [(f.name, f.dataType) for f in COLUMNS.fields if f.name != "l"]
ROW = {"d": 1, "i": 2, "t": 3, "u": "four"}


@pytest.fixture
def graph(tmp_path: Path) -> Iterator[Storage]:
    """A table whose column `l` was dropped: the ids of `t` and `u` are higher than their places."""
    made = writes.new_graph(Storage.at(str(tmp_path / "g")))
    changes.add_table(made, asked(made), TABLE, COLUMNS)
    frame = [(f.name, f.dataType) for f in COLUMNS.fields]
    rows = [{"id": name, "l": [7], **ROW} for name in ("a", "b")]
    columns.write(made, TABLE, frame, rows)
    changes.drop_property(made, asked(made), TABLE, "l")
    yield made
    _faults.disarm()


def asked(graph: Storage, **more: str) -> Any:
    return writes.write_options(graph, **more)


def _put(graph: Storage, ids: str, mode: str = "append", **more: str) -> None:
    """Write rows with those of the columns that the table still has."""
    names = columns.table(graph, TABLE).schema.names
    renamed = [("tt" if name == "t" and "tt" in names else name, kind) for name, kind in LEFT]
    frame = [(name, kind) for name, kind in renamed if name in names]
    rows = [{"id": name, "tt": ROW["t"], **ROW} for name in ids]
    kept = [{k: v for k, v in row.items() if k in dict(frame)} for row in rows]
    columns.write(graph, TABLE, frame, kept, mode, **more)


def _branch(graph: Storage) -> None:
    branches.create_branch(graph, "dev", Resolved("main", None))
    _put(graph, "c", branch="dev")
    _put(graph, "c")
    assert columns.table(graph, TABLE, branch="dev").equals(columns.table(graph, TABLE))


def _restore(graph: Storage) -> None:
    before = load(graph).graph_version
    _put(graph, "c")
    now = load(graph).graph_version
    restore(graph, asked(graph, mode="overwrite"), str(before))
    restore(graph, asked(graph, mode="overwrite"), str(now))


def _optimize(graph: Storage) -> None:
    _put(graph, "c")
    optimize(graph, "main", None, run_here)


ACTIONS: dict[str, Callable[[Storage], object]] = {
    "append": lambda graph: _put(graph, "c"),
    "overwrite": lambda graph: _put(graph, "abc", "overwrite"),
    "upsert": lambda graph: _put(graph, "bc", writeMode="merge"),
    "append and optimize": _optimize,
    "branch": _branch,
    "restore": _restore,
}
CHANGES: dict[str, tuple[Callable[[Storage], object], Callable[[dict[str, Any]], dict[str, Any]]]] = {
    "rename": (
        lambda graph: changes.rename_property(graph, asked(graph), TABLE, "t", "tt"),
        lambda row: {"tt" if k == "t" else k: v for k, v in row.items()},
    ),
    "drop another": (
        lambda graph: changes.drop_property(graph, asked(graph), TABLE, "d"),
        lambda row: {k: v for k, v in row.items() if k != "d"},
    ),
    "add": (
        lambda graph: changes.add_property(graph, asked(graph), TABLE, "n", "I32?"),
        lambda row: {**row, "n": None},
    ),
    "add it again": (
        lambda graph: changes.add_property(graph, asked(graph), TABLE, "l", "[I32]?"),
        lambda row: {**row, "l": None},
    ),
    "widen": (
        lambda graph: changes.widen_property(graph, asked(graph), TABLE, "i", "I64"),
        lambda row: row,
    ),
}  # fmt: skip


@pytest.mark.long
@pytest.mark.parametrize("what", ACTIONS)
def test_rows_are_written_to_a_table_that_lost_a_column(graph: Storage, what: str) -> None:
    ACTIONS[what](graph)
    assert rows_of(graph, TABLE) == [{"id": name, **ROW} for name in "abc"]
    assert check_graph(graph.root) == []


@pytest.mark.long
@pytest.mark.parametrize("what", ACTIONS)
@pytest.mark.parametrize("change", CHANGES)
def test_a_table_that_lost_a_column_changes_others_and_is_written(
    graph: Storage, change: str, what: str
) -> None:
    act, expected = CHANGES[change]
    act(graph)
    assert rows_of(graph, TABLE) == [expected({"id": name, **ROW}) for name in "ab"]
    ACTIONS[what](graph)
    assert rows_of(graph, TABLE) == [expected({"id": name, **ROW}) for name in "abc"]
    assert check_graph(graph.root) == []
