"""What the engines of newer graphs demand of a table that is written, and what isn't written there.

Their tables have a primary key, a fixed order of columns, and ids of nodes that follow from the key
(format.md, "Newer stamps"): an engine refuses a graph, or changes values of rows, where a writer
doesn't keep to that. Runs on the driver at the plan; nothing is written.
"""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa

from omnigraph_spark.errors import SchemaMismatchError, UnsupportedError
from omnigraph_spark.manifest import formats
from omnigraph_spark.manifest.rows import PRIMARY_KEY_ANNOTATION
from omnigraph_spark.schema.model import SYSTEM_COLUMNS, EdgeType, NodeType
from omnigraph_spark.storage import layout
from omnigraph_spark.storage.store import Storage


def refuse_schema_change(storage: Storage, what: str) -> None:
    """Refuse a change of the tables or properties of a graph whose schema the engine must change.

    Raises:
        UnsupportedError: the graph's tables have ids, which follow from the schema files.
        StorageError: the store failed.
    """
    if formats.of_graph(storage).has_identities:
        raise UnsupportedError(
            f"{what} is not supported in a graph of a newer engine",
            expected="tables and properties that the graph has",
            hint="Change the schema with the engine (omnigraph schema apply), then write again",
        )


def stored_order(table_key: str, names: Iterable[str]) -> list[str]:
    """Return a table's columns in the order that the newer engines' updates go by."""
    fixed = SYSTEM_COLUMNS[layout.split_table_key(table_key)[0]]
    return [*fixed, *sorted(name for name in names if name not in fixed)]


def check_table(table_key: str, schema: pa.Schema) -> None:
    """Refuse a table that isn't as the newer engines need it, before anything is written to it.

    Raises:
        SchemaMismatchError: its columns stand in another order, or `id` is no primary key.
    """
    wanted = stored_order(table_key, schema.names)
    if schema.names != wanted:
        raise SchemaMismatchError(
            f"The columns of {table_key} stand in an order in which an engine's update would move"
            " values into other columns",
            expected=", ".join(wanted)[:300],
            found=", ".join(schema.names)[:300],
            hint="Nothing was written. Load the graph's export into a new graph with the engine",
            table_key=table_key,
        )
    marked = (schema.field("id").metadata or {}).get(PRIMARY_KEY_ANNOTATION.encode())
    if marked != b"true":
        raise SchemaMismatchError(
            f"{table_key} has lost its primary key: the engine refuses every write to it",
            expected=f"id with {PRIMARY_KEY_ANNOTATION}",
            found="id without it",
            hint="Nothing was written. Load the graph's export into a new graph with the engine",
            table_key=table_key,
            column="id",
        )


def id_columns(known: NodeType | EdgeType | None, schema: pa.Schema) -> tuple[str, ...]:
    """Return the columns that a node's `id` is made from, none where it is its key's plain text.

    Raises:
        UnsupportedError: a key of a type whose text isn't known here.
    """
    if not isinstance(known, NodeType):
        return ()
    keys = [rule.columns for rule in known.constraints() if rule.kind == "Key" and rule.columns]
    names = tuple(sorted(keys[0])) if keys else ()
    kinds = [schema.field(name).type for name in names if name in schema.names]
    if any(pa.types.is_floating(kind) for kind in kinds):
        raise UnsupportedError(
            f"{known.table_key} has a key of decimals, whose text the engine makes in its own way",
            hint="Write to this table with the engine",
        )
    plain = len(names) < 2 and not any(pa.types.is_date(kind) for kind in kinds)
    return () if plain else names
