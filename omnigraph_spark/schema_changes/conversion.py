"""A new graph of the other form with the rows of main: for the engine of another generation.

Spark reads the tables of one version and writes them in one publish, with their ids as they are.
The driver makes the new graph first, with the schema's text as it stands: properties, rules,
interfaces and annotations are the same. What isn't carried: older versions and their commits, other
branches, tags, indices, and the keys that edges' ids were made from (`edgeKeys`).
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from omnigraph_spark import schema as engine_schema
from omnigraph_spark.errors import (
    CorruptManifestError,
    OptionError,
    StorageError,
    UnsupportedError,
)
from omnigraph_spark.history import init, new_graph
from omnigraph_spark.manifest import formats, known_types
from omnigraph_spark.manifest.snapshot import Snapshot, load, open_main
from omnigraph_spark.schema.model import SYSTEM_COLUMNS, EdgeType, EngineSchema, NodeType
from omnigraph_spark.storage import layout
from omnigraph_spark.storage.relocation import open_for_reading
from omnigraph_spark.storage.store import Storage

if TYPE_CHECKING:
    from omnigraph_spark.graph import OmniGraph
    from omnigraph_spark.write.commit.commit import Committed

_log = logging.getLogger(__name__)


def convert(source: OmniGraph, target: OmniGraph, form: int) -> Committed | None:
    """Make the graph `target` in a form, with the rows of the source's main; None without tables.

    Raises:
        OptionError: an unknown form, the source has it already, or a graph is at the target.
        UnsupportedError: something that the form can't say; nothing was made.
        CorruptManifestError: the source's tables and its schema contradict each other.
        StorageError: the store failed; the target may hold a graph without rows.
        OmnigraphError: as a write.
    """
    storage, made = source._store(), target._store()
    _refuse_form(storage, made, form)
    snapshot = known_types.load_with_types(storage, layout.MAIN)
    text, schema = _schema(storage, snapshot)
    for key in snapshot.tables:
        _check_columns(storage, snapshot, key, schema.of_table(key), form)
    _make(made, text, schema, form)
    if not snapshot.tables:
        return None
    version = snapshot.graph_version
    frames = {key: source.table(key, version=version) for key in snapshot.tables}
    done = target.write(frames, integrity="off", storeAssignment="exact", **_told(schema, form))
    _check_counts(snapshot, load(made))
    return done


def _refuse_form(storage: Storage, made: Storage, form: int) -> None:
    if form not in new_graph.FORMS:
        known = " or ".join(map(str, new_graph.FORMS))
        raise OptionError(f"{form} is not a form of graphs", expected=known)
    stamp = formats.of(open_main(storage)).stamp
    if stamp in new_graph.FORMS[form]:
        raise OptionError(
            f"The graph has form {form} already",
            expected="the other form",
            found=f"stamp {stamp}",
            hint="Copy the folder for a copy of the same form",
        )
    if made.has_dataset(layout.MANIFEST):
        raise OptionError(
            "There is a graph at the new place",
            expected="a place without a graph",
            found=made.root,
            hint="Choose another one. What a conversion that failed has left may be deleted",
        )


def _schema(storage: Storage, snapshot: Snapshot) -> tuple[str, EngineSchema]:
    """Return the text of the schema with all that is known of the tables, and what it says."""
    known = known_types.known(storage, snapshot)
    text = engine_schema.merged(known.text, known.lost)
    schema = engine_schema.parse_pg(text)
    for key in snapshot.tables:
        declared, whole = schema.of_table(key), known.schema.of_table(key)
        named = {p.name for p in declared.properties} if declared is not None else set()
        if declared is None or (whole is not None and {p.name for p in whole.properties} - named):
            raise CorruptManifestError(
                f"{layout.SCHEMA_PG} doesn't say all of {key}",
                expected="a type with all properties of the table",
                hint="Nothing was made. Run OmniGraph.repair(dry_run=False) on the source first",
            )
    without = [
        engine_type
        for engine_type in schema.types()
        if engine_type.table_key not in snapshot.tables
    ]
    if without:
        raise CorruptManifestError(
            f"{without[0].table_key} is in {layout.SCHEMA_PG} and has no table",
            expected="a table for each type",
            hint=f"Nothing was made. Write a row of it, or take it out of {layout.SCHEMA_PG}",
        )
    return text, schema


def _check_columns(
    storage: Storage,
    snapshot: Snapshot,
    key: str,
    engine_type: NodeType | EdgeType | None,
    form: int,
) -> None:
    """Refuse what the new form can't say, and columns that the schema doesn't name."""
    assert engine_type is not None
    entry = snapshot.entry(key)
    coordinates = (entry.location, entry.table_branch, entry.table_version)
    columns = {f.name: f for f in open_for_reading(storage, *coordinates).schema}
    kind, _ = layout.split_table_key(key)
    known = {p.name: p for p in engine_type.properties}
    for name in sorted(columns.keys() - known.keys() - {*SYSTEM_COLUMNS[kind]}):
        raise UnsupportedError(
            f"{key}.{name} is a column that the engine doesn't know: the schema can't name it",
            expected="columns that are properties of the schema",
            found=str(columns[name].type),
            hint="Nothing was made. Drop or rename the property first",
        )
    for name, p in known.items():
        if name not in columns or not _is_alike(columns[name], p.arrow_field()):
            raise CorruptManifestError(
                f"{key}.{name} is stored in another way than {layout.SCHEMA_PG} says",
                expected=str(p.arrow_field()),
                found=str(columns.get(name)),
            )
    if form == new_graph.OF_TODAY:
        _refuse_rules_of_edges(engine_type)
    else:
        _refuse_keys(engine_type)


def _refuse_rules_of_edges(engine_type: NodeType | EdgeType) -> None:
    """Refuse rules that today's engines know on nodes only: they would refuse the whole graph."""
    for rule in engine_type.constraints() if isinstance(engine_type, EdgeType) else ():
        if rule.kind in ("Range", "Check", "Key"):
            raise UnsupportedError(
                f"{engine_type.table_key} has a rule that today's engines know on node types only",
                expected="@unique, @index and @card",
                found=f"@{rule.kind.lower()}({', '.join(rule.columns)})",
                hint=f"Nothing was made. Take the rule out of {layout.SCHEMA_PG} with the engine",
            )


def _refuse_keys(engine_type: NodeType | EdgeType) -> None:
    for rule in engine_type.constraints() if isinstance(engine_type, NodeType) else ():
        if rule.kind != "Key":
            continue
        kinds = {p.name: p.type.scalar for p in engine_type.properties}
        if len(rule.columns) > 1 or kinds.get(rule.columns[0]) != "String":
            raise UnsupportedError(
                f"The key of {engine_type.table_key} is none that the older form can have",
                expected="one property of type String",
                found=", ".join(f"{name}: {kinds.get(name)}" for name in rule.columns),
                hint="Nothing was made. Write the rows to a new graph with another key",
            )


def _is_alike(stored: pa.Field, declared: pa.Field) -> bool:
    return str(stored.type) == str(declared.type) and bool(stored.nullable == declared.nullable)


def _make(made: Storage, text: str, schema: EngineSchema, form: int) -> None:
    if form == new_graph.OF_TODAY:
        new_graph.make(made, schema, text=text)
        return
    init.init_graph(made)
    engine_schema.change(made, lambda _: text)


def _told(schema: EngineSchema, form: int) -> dict[str, Any]:
    """Return what a write must be told of tables that it makes; today's form has them already."""
    if form == new_graph.OF_TODAY:
        return {}
    keys = {node.name: node.key for node in schema.nodes.values() if node.key is not None}
    endpoints = {edge.name: (edge.source, edge.target) for edge in schema.edges.values()}
    return {name: value for name, value in (("keys", keys), ("endpoints", endpoints)) if value}


def _check_counts(before: Snapshot, after: Snapshot) -> None:
    """Compare the rows of the tables: nothing may be lost without a word."""
    expected = {key: entry.row_count for key, entry in before.tables.items()}
    actual = {key: entry.row_count for key, entry in after.tables.items()}
    if expected != actual:
        differing = sorted(k for k in {*expected, *actual} if expected.get(k) != actual.get(k))
        raise StorageError(
            f"The new graph has other rows than the source: {', '.join(differing)[:200]}",
            expected=str({key: expected.get(key) for key in differing})[:200],
            found=str({key: actual.get(key) for key in differing})[:200],
            hint="Delete the new graph and convert again; another process may have written to it",
        )
