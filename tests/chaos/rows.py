"""The rows that chaos writers write: each tells in every column which write it belongs to.

A write has a token (`writer.sequence`), its i-th row of a table the id `token-i`. All other columns
follow from these, so that values in the wrong column show.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from omnigraph_spark.write.plan import NewTable

NODE_SCHEMA = pa.schema(
    [
        pa.field("id", pa.utf8(), nullable=False),
        pa.field("age", pa.int32()),
        pa.field("name", pa.utf8(), nullable=False),
        pa.field("note", pa.utf8()),
        pa.field("write", pa.utf8()),
    ]
)
EDGE_SCHEMA = pa.schema(
    [
        pa.field("id", pa.utf8(), nullable=False),
        pa.field("src", pa.utf8(), nullable=False),
        pa.field("dst", pa.utf8(), nullable=False),
        pa.field("note", pa.utf8()),
        pa.field("write", pa.utf8()),
    ]
)
PERSON, COMPANY, KNOWS, QUIET = "node:Person", "node:Company", "edge:Knows", "node:Quiet"
THREE = (KNOWS, COMPANY, PERSON)


def new_table(key: str) -> NewTable:
    """Return what a frame of a chaos table says of it; edges end at Person."""
    if key.startswith("edge:"):
        return NewTable(EDGE_SCHEMA, None, ("Person", "Person"))
    return NewTable(NODE_SCHEMA, "name")


def batch(schema: pa.Schema, token: str, rows: int, first: int = 0) -> pa.RecordBatch:
    """Return rows `first` and on of a write, in the columns of `schema` (those that are known)."""
    numbers = range(first, first + rows)
    ids = [f"{token}-{i}" for i in numbers]
    values: dict[str, list[Any]] = {
        "id": ids,
        "age": list(numbers),
        "name": ids,
        "note": [f"note of {one}" for one in ids],
        "write": [token] * rows,
        "src": [f"from {one}" for one in ids],
        "dst": [f"to {one}" for one in ids],
    }
    arrays = [pa.array(values.get(f.name, [None] * rows), f.type) for f in schema]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def wrong_values(table: pa.Table) -> int:
    """Return how many rows have a value that doesn't follow from their id."""
    ids = table["id"]
    expected = {
        "name": ids,
        "note": pc.binary_join_element_wise("note of ", ids, ""),
        "src": pc.binary_join_element_wise("from ", ids, ""),
        "dst": pc.binary_join_element_wise("to ", ids, ""),
        "write": pc.replace_substring_regex(ids, "-[0-9]+$", ""),
    }
    right = pa.chunked_array([pa.array([True] * table.num_rows)])
    for name, column in expected.items():
        if name in table.column_names:
            right = pc.and_(right, pc.fill_null(pc.equal(table[name], column), False))
    return table.num_rows - int(pc.sum(pc.cast(right, pa.int64())).as_py() or 0)
