"""Graphs in the form of engine 0.9 that a write makes: whole, or not there, and of one maker."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from omnigraph_spark import _faults
from omnigraph_spark.errors import OptionError, StorageError, UnsupportedError
from omnigraph_spark.manifest import formats
from omnigraph_spark.manifest.snapshot import load
from omnigraph_spark.schema_changes import properties
from omnigraph_spark.storage.store import Storage
from tests.format_checker import check_graph
from tests.support.frames import nothing_written
from tests.support.plain_writes import rows, save
from tests.support.writes import Died, die, once, write_options

ANN = {"name": ["ann"], "age": [1]}
POINTS = ("new_graph.tables_made", "new_graph.files_put", "new_graph.made")


@pytest.fixture
def root(tmp_path: Path) -> Iterator[str]:
    yield str(tmp_path / "graph")
    _faults.disarm()


def make(root: str, **options: str) -> None:
    save(root, ANN, table="node:Person", keys="Person: name", graphFormat="6", **options)


def test_a_write_makes_the_graph_with_its_tables_and_goes_on_as_on_any_graph(root: str) -> None:
    make(root)
    make(root, writeMode="merge")
    assert check_graph(root) == []
    found = load(Storage.at(root))
    assert rows(root, "node:Person", "id", "age", "name") == [("ann", 1, "ann")]
    assert found.identities["node:Person"] == (1, 4)
    assert found.tables["node:Person"].location == "nodes/0000000000000001-0000000000000004"
    assert formats.of_graph(Storage.at(root)).stamp == 6


def test_the_columns_stand_in_the_order_of_their_names_whatever_the_frame_has(root: str) -> None:
    frame = {"zip": ["1"], "id": ["a"], "at": [2], "name": ["a"]}
    save(root, frame, table="node:Person", graphFormat="6")
    entry = load(Storage.at(root)).entry("node:Person")
    names = Storage.at(root).dataset(entry.location).schema.names
    assert names == ["id", "at", "name", "zip"]
    assert rows(root, "node:Person", "zip", "at", "name") == [("1", 2, "a")]


def test_the_keys_of_edges_are_recorded_with_the_table_that_the_graph_is_made_with(
    root: str,
) -> None:
    storage = Storage.at(root)
    edge = {"src": ["ann"], "dst": ["ann"]}
    make(root)
    for _ in range(2):
        save(
            root,
            edge,
            table="edge:Knows",
            endpoints="Knows: Person -> Person",
            edgeKeys="Knows: src, dst",
            writeMode="merge",
        )
    assert load(storage).entry("edge:Knows").row_count == 1
    assert check_graph(root) == []


def test_an_empty_table_makes_the_graph_too(root: str) -> None:
    options = write_options(Storage.at(root), graphFormat="6")
    done = properties.add_table(Storage.at(root), options, "node:Person", "name STRING")
    assert done.graph_version == 1
    assert check_graph(root) == []
    assert rows(root, "node:Person") == []


@pytest.mark.parametrize(("made", "asked"), [("6", "2"), ("2", "6")])
def test_a_graph_of_another_form_is_refused_and_nothing_is_written(
    root: str, made: str, asked: str
) -> None:
    save(root, ANN, table="node:Person", keys="Person: name", graphFormat=made)
    with nothing_written(root), pytest.raises(OptionError, match="convert"):
        save(root, ANN, table="node:Person", graphFormat=asked)
    save(root, {"name": ["bo"]}, table="node:Person", graphFormat=made)
    assert rows(root, "node:Person", "name") == [("ann",), ("bo",)]


def test_a_column_that_the_engine_has_no_type_for_is_refused_and_nothing_is_made(
    root: str,
) -> None:
    money = pa.array([1], pa.decimal128(10, 2))
    with pytest.raises(UnsupportedError, match=r"Person\.money"):
        save(root, {"id": ["a"], "money": money}, table="node:Person", graphFormat="6")
    assert not Path(root).exists()


@pytest.mark.parametrize("point", POINTS)
def test_a_maker_that_dies_leaves_nothing_that_the_next_one_trips_over(
    root: str, point: str
) -> None:
    _faults.arm(point, die)
    with contextlib.suppress(Died):
        make(root)
        raise AssertionError(f"{point} was not reached")
    _faults.disarm()
    for path in Path(root).glob("_*schema*"):
        if point == "new_graph.made":  # as if a slower maker had put its own files
            path.write_text("{}")
    make(root)
    assert check_graph(root) == []
    assert rows(root, "node:Person", "name") == [("ann",)]


@pytest.mark.parametrize("point", POINTS)
def test_of_two_makers_one_makes_the_graph_and_both_write_to_it(root: str, point: str) -> None:
    def rival() -> None:
        other = {"name": ["bo"], "age": [2]}
        save(root, other, table="node:Person", keys="Person: name", graphFormat="6")

    _faults.arm(point, once(rival))
    make(root)
    assert check_graph(root) == []
    assert rows(root, "node:Person", "name") == [("ann",), ("bo",)]


def test_a_folder_with_rows_where_a_table_would_be_is_refused_and_kept(root: str) -> None:
    make(root)
    for name in ("__manifest", "_schema.pg", "_schema.ir.json", "__schema_state.json"):
        place = Path(root, name)
        place.rename(place.with_name(f"gone{name}"))
    with pytest.raises(StorageError, match="holds another table"):
        make(root)
    assert not Path(root, "__manifest").exists()


@pytest.mark.long
@pytest.mark.parametrize("point", ["new_graph.tables_made", "new_graph.files_put"])
@pytest.mark.parametrize("changed", [False, True])
def test_a_slow_maker_of_other_tables_leaves_the_files_of_the_graph_that_is_there(
    root: str, point: str, changed: bool
) -> None:
    def first() -> None:
        save(root, {"name": ["ann"]}, table="node:Person", keys="Person: name", graphFormat="6")
        if changed:
            save(root, {"id": ["t"], "a": [1]}, table="node:Town")

    two = {"title": ["x"], "sum": [1]}
    _faults.arm(point, once(first))
    with contextlib.suppress(UnsupportedError):
        save(root, two, table="node:Firm", keys="Firm: title", graphFormat="6")
    _faults.disarm()
    save(root, two, table="node:Firm", keys="Firm: title")
    found = [one for one in check_graph(root) if "no table row" not in one]
    assert found == []
    assert rows(root, "node:Person", "name") == [("ann",)]
