"""The key columns of edge tables (`edgeKeys`): what a write asks for and what a table records.

Runs on the driver, once per write; reads `__manifest` only where edges are written.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pyarrow as pa

from omnigraph_spark.errors import GraphNotFoundError, OptionError, SchemaMismatchError
from omnigraph_spark.manifest.snapshot import open_manifest, read_rows
from omnigraph_spark.options import WriteOptions
from omnigraph_spark.storage import layout
from omnigraph_spark.storage.store import Storage
from omnigraph_spark.write.plan import CREATE, DELETE, OVERWRITE, TableTarget
from omnigraph_spark.write.reads import edge_key
from omnigraph_spark.write.tasks.edge_ids import is_fit


def with_keys(
    storage: Storage, options: WriteOptions, targets: Mapping[str, TableTarget]
) -> dict[str, TableTarget]:
    """Return targets that say which columns the ids of their edges are made from.

    Raises:
        OptionError: a key of no column, of a type without one text, or other keys than recorded.
        StorageError: the store failed.
    """
    keyed = dict(targets)
    edges = [key for key in targets if layout.is_edge(key)]
    known = recorded(storage, options.branch, [k for k in edges if targets[k].mode != CREATE])
    nodes = {name for name in options.edge_keys if layout.table_key(layout.EDGE, name) not in edges}
    if nodes:
        raise OptionError(
            f"Option edgeKeys names {min(nodes)}, which is not an edge table of this write",
            expected=", ".join(sorted(key.partition(":")[2] for key in edges)) or "edge tables",
            hint="Option keys names the key of a node table",
        )
    for key in edges:
        given, stored = options.edge_keys.get(key.partition(":")[2], ()), known.get(key, ())
        if given and stored and given != stored:
            raise OptionError(
                f"The ids of {key} are made from other columns",
                expected=", ".join(stored),
                found=", ".join(given),
                hint="Leave edgeKeys out: the table knows its keys",
            )
        names = stored or given
        if names:
            _check(names, targets[key])
            # All ids are made by the rule from here on, also where every row is replaced.
            keeps = bool(stored) or targets[key].mode in (CREATE, OVERWRITE)
            keyed[key] = replace(targets[key], edge_key=names, keeps_key=keeps)
    return keyed


def recorded(storage: Storage, branch: str, tables: list[str]) -> dict[str, tuple[str, ...]]:
    """Return the key columns that edge tables were made with, () for those without.

    Raises:
        StorageError: the store failed.
    """
    if not tables:
        return {}
    try:
        rows: pa.Table = read_rows(open_manifest(storage, branch))
    except GraphNotFoundError:
        return dict.fromkeys(tables, ())
    return {key: edge_key(rows, key) for key in tables}


def of_table(storage: Storage, options: WriteOptions, table: str) -> tuple[str, ...]:
    """Return the key columns of a table, by its key or its bare name: recorded, or given.

    Raises:
        StorageError: the store failed.
    """
    name = table.rpartition(":")[2]
    key = layout.table_key(layout.EDGE, name)
    if table not in (name, key):
        return ()
    return recorded(storage, options.branch, [key])[key] or options.edge_keys.get(name, ())


def refuse_some(names: Sequence[str], target: TableTarget) -> None:
    """Refuse a frame with some of a table's key columns: its edges' ids couldn't be told.

    Raises:
        SchemaMismatchError: names what is missing.
    """
    missing = [name for name in target.edge_key if name not in names]
    some = len(missing) < len(target.edge_key)
    if not missing or target.mode == DELETE or not (some and target.keeps_key):
        return
    raise SchemaMismatchError(
        f"The frame for {target.table_key} lacks {', '.join(missing)}, keys of its edges",
        expected=f"all of {', '.join(target.edge_key)}, or none of them beside id",
        found=", ".join(names)[:300],
        table_key=target.table_key,
        column=missing[0],
    )


def _check(names: tuple[str, ...], target: TableTarget) -> None:
    for name in names:
        exists = name in target.schema.names and name != "id"
        if exists and is_fit(target.schema.field(name).type):
            continue
        raise OptionError(
            f"{name} of {target.table_key} can't be a key of its edges",
            expected="src, dst, or a property of text, whole numbers, decimals, booleans, dates or "
            "points in time",
            found=str(target.schema.field(name).type) if exists else "no such column",
        )
