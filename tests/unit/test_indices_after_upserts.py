"""After an upsert every kind of index finds the new values, and no more the old ones.

Lance keeps the row ids of updated rows, and some of its indices map values to row ids: an index
that claims to cover the new fragments answers with the values of before.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from omnigraph_spark.maintenance.optimize import optimize, optimize_indices, run_here
from omnigraph_spark.manifest.snapshot import load
from omnigraph_spark.storage.store import Storage
from omnigraph_spark.write.commit.commit import commit
from omnigraph_spark.write.plan import Settings
from omnigraph_spark.write.tasks.stage import stage
from tests.support.lance_graphs import new_graph, publish_head, write_table
from tests.support.writes import plan

KEY = "node:T"
WIDTH = 8
SCHEMA = pa.schema(
    [
        pa.field("id", pa.utf8(), nullable=False),
        pa.field("number", pa.int32()),
        pa.field("text", pa.utf8()),
        pa.field("labels", pa.list_(pa.utf8())),
        pa.field("vector", pa.list_(pa.float32(), WIDTH)),
    ]
)
ROWS = 600
QUICK = Settings(orphan_grace_seconds=0.15, commit_timeout_seconds=20.0)


def batch(ids: list[int], values: list[int]) -> pa.RecordBatch:
    """Return a row per id, all of whose properties say its value."""
    columns: list[list[Any]] = [
        [f"i{one}" for one in ids],
        values,
        [f"word{one} and" for one in values],
        [[f"label{one}"] for one in values],
        [[float(one)] * WIDTH for one in values],
    ]
    return pa.RecordBatch.from_arrays(
        [pa.array(c, f.type) for c, f in zip(columns, SCHEMA, strict=True)], schema=SCHEMA
    )


Find = Callable[[Any, int], list[str]]


def by_filter(text: str) -> Find:
    """Return what finds the ids of a value through a filter."""
    return lambda table, value: table.to_table(filter=text.format(value))["id"].to_pylist()


def by_words(table: Any, value: int) -> list[str]:
    """Find the ids of a value by the word in their texts."""
    found: list[str] = table.to_table(full_text_query=f"word{value}", columns=["id"])["id"]
    return found.to_pylist()  # type: ignore[attr-defined,no-any-return]


def by_nearness(table: Any, value: int) -> list[str]:
    """Find the ids whose vectors are those of a value."""
    near = {"column": "vector", "q": [float(value)] * WIDTH, "k": 3, "nprobes": 4}
    found = table.to_table(nearest=near, columns=["id", "_distance"])
    return [row["id"] for row in found.to_pylist() if row["_distance"] < 0.25]


@dataclass(frozen=True)
class Kind:
    """One kind of index: its column, and what asks it; `here`: it can be built again here."""

    name: str
    column: str
    find: Find
    here: bool = True


KINDS = [
    Kind("BTREE", "number", by_filter("number = {}")),
    Kind("BITMAP", "number", by_filter("number = {}")),
    Kind("ZONEMAP", "number", by_filter("number = {}")),
    Kind("BLOOMFILTER", "number", by_filter("number = {}")),
    Kind("LABEL_LIST", "labels", by_filter("array_has(labels, 'label{}')")),
    Kind("NGRAM", "text", by_filter("contains(text, 'word{} and')")),
    Kind("INVERTED", "text", by_words),
    Kind("IVF_FLAT", "vector", by_nearness, here=False),
]


def graph_with(kind: Kind, root: Path) -> Storage:
    """Make a graph of one table, in two fragments, with such an index as others make it."""
    storage = new_graph(str(root / "g"))
    numbers = list(range(ROWS))
    made = write_table(
        storage, KEY, pa.Table.from_batches([batch(numbers, numbers)]), max_rows_per_file=ROWS // 2
    )
    if kind.name == "IVF_FLAT":
        made.create_index(kind.column, kind.name, num_partitions=4, name="of_test")
    else:
        made.create_scalar_index(kind.column, kind.name, name="of_test")
    publish_head(storage, KEY)
    return storage


def table(storage: Storage) -> Any:
    entry = load(storage).entry(KEY)
    return storage.dataset(entry.location, entry.table_branch, entry.table_version)


def write(storage: Storage, mode: str, rows: pa.RecordBatch) -> None:
    planned = plan(storage, [KEY], writeMode=mode)
    commit(planned, stage(planned, [(KEY, rows)]))


def found(storage: Storage, kind: Kind, *values: int) -> list[list[str]]:
    """Return the ids of each value, found by the index."""
    there = table(storage)
    assert [one.name for one in there.describe_indices()] == ["of_test"]
    return [sorted(kind.find(there, value)) for value in values]


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_an_index_finds_new_values_and_not_old_ones(kind: Kind, tmp_path: Path) -> None:
    storage = graph_with(kind, tmp_path)
    assert found(storage, kind, 5, 5000) == [["i5"], []]
    write(storage, "merge", batch([5, 400, 9000], [5000, 5001, 5002]))
    expected = [[], [], ["i5"], ["i400"], ["i9000"], ["i6"]]
    asked = (5, 400, 5000, 5001, 5002, 6)
    assert found(storage, kind, *asked) == expected
    if kind.here:
        optimize_indices(storage, "main", [KEY], QUICK)
        assert found(storage, kind, *asked) == expected
    write(storage, "merge", batch([5], [6000]))
    expected[2] = []
    assert found(storage, kind, *asked) == expected
    assert found(storage, kind, 6000) == [["i5"]]
    optimize(storage, "main", [KEY], run_here, deletions=0.0, settings=QUICK)
    assert found(storage, kind, *asked) == expected
    assert found(storage, kind, 6000) == [["i5"]]
    write(storage, "delete", batch([5, 6], [0, 0]).select(["id"]))
    assert found(storage, kind, 6000, 6, 5001) == [[], [], ["i400"]]
    write(storage, "merge", batch([5], [5]))
    assert found(storage, kind, 5, 6000) == [["i5"], []]
