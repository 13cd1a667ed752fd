"""Keep the schema files in step with tables whose columns come and go; on the driver.

There is one schema for all branches, and the engine takes a property of it that a branch's table
lacks for damage, while it ignores a column that the schema doesn't name (fact 47). So a property
is named only once the newest version of the table on every branch has its column: after the publish
that adds it, and no longer from before the publish that drops it. A write that dies in between
leaves a column that the engine doesn't see, and nothing else: its rules are in `__manifest` too
(`manifest/known_types.py`), writes hold to them, and `repair` puts them back.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import pyarrow as pa

from omnigraph_spark import schema as engine_schema
from omnigraph_spark.errors import OmnigraphError, PublishOutcomeUnknown
from omnigraph_spark.manifest import known_types
from omnigraph_spark.manifest.snapshot import Snapshot
from omnigraph_spark.refs import refs
from omnigraph_spark.schema import edits
from omnigraph_spark.schema.model import (
    SYSTEM_COLUMNS,
    Constraint,
    EdgeType,
    EngineSchema,
    LeftOut,
    NodeType,
    Property,
    engine_type_of,
    fitted,
    reshaped,
)
from omnigraph_spark.storage import layout
from omnigraph_spark.storage.relocation import open_for_reading
from omnigraph_spark.storage.store import Storage

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Forgotten:
    """What `forget` took out of a type: properties, and the rules that named them.

    `order` are all properties that the type had, in their order.
    """

    properties: tuple[Property, ...] = ()
    rules: tuple[Constraint, ...] = ()
    order: tuple[str, ...] = ()


def forget(storage: Storage, table_key: str, names: frozenset[str]) -> Forgotten:
    """Take properties out of the schema files, before their columns go; returns what was there.

    Raises:
        CorruptManifestError, UnsupportedError: the files can't be changed by this version, or a
            property comes from an interface.
        StorageError: the store failed.
    """
    schema = engine_schema.read(storage)
    declared = None if schema is None else schema.of_table(table_key)
    if declared is None or not names & {p.name for p in declared.properties}:
        return Forgotten()
    engine_schema.change(
        storage,
        lambda text: None if text is None else edits.drop_properties(text, table_key, names),
    )
    return Forgotten(
        tuple(p for p in declared.properties if p.name in names),
        tuple(rule for rule in declared.rules if names & set(rule.columns)),
        tuple(p.name for p in declared.properties),
    )


def name_added(
    storage: Storage,
    properties: Mapping[str, tuple[Property, ...]],
    rules: Mapping[str, tuple[Constraint, ...]] | None = None,
    orders: Mapping[str, tuple[str, ...]] | None = None,
) -> None:
    """Name columns as properties in the schema files, those that the table has on every branch.

    `rules` of the same tables come with them, where all columns that they name are properties.
    `orders` are where among a type's properties they belong; others come last. May be called
    again, and names then what was left out before.

    Raises:
        CorruptManifestError, UnsupportedError: the files can't be changed by this version.
        StorageError: the store failed.
    """
    if not any(properties.values()):
        return
    of_rules, order = rules or {}, orders or {}
    schema = engine_schema.read(storage) or EngineSchema()
    properties = {
        key: tuple(p for p in new if not _is_named(schema, key, p))
        for key, new in properties.items()
    }
    everywhere = {key: _everywhere(storage, key, new) for key, new in properties.items() if new}
    if not any(everywhere.values()):
        return

    def changed(text: str | None) -> str | None:
        for key, new in everywhere.items():
            text = (
                text
                if text is None
                else edits.add_properties(text, key, new, of_rules.get(key, ()), order.get(key, ()))
            )
        return text

    engine_schema.change(storage, changed)


def _is_named(schema: EngineSchema, table_key: str, prop: Property) -> bool:
    declared = schema.of_table(table_key)
    return declared is not None and any(p.name == prop.name for p in declared.properties)


@contextlib.contextmanager
def in_step(
    storage: Storage, schemas: Mapping[str, pa.Schema], types: EngineSchema
) -> Iterator[None]:
    """Let a publish give tables other columns: `schemas` are what they have after it.

    `types` are those of the tables after it, with their rules, where they are known. Properties
    without a column leave the schema files before, and come back if the publish fails;
    columns that they don't name are named after it, by what their types tell.

    Raises:
        CorruptManifestError, UnsupportedError, StorageError: as `forget`; what comes after the
            publish is only logged.
    """
    lost = without_columns(storage, schemas)
    forgotten = {key: forget(storage, key, names) for key, names in lost.items()}
    try:
        yield
    except PublishOutcomeUnknown:
        raise
    except OmnigraphError:
        quietly_name(storage, forgotten)
        raise
    quietly_name(storage, {k: _whole(k, schema, types) for k, schema in schemas.items()})


def without_columns(
    storage: Storage, schemas: Mapping[str, pa.Schema]
) -> dict[str, frozenset[str]]:
    """Return, by table, the properties in the schema files that have no such column in `schemas`.

    Raises:
        CorruptManifestError, StorageError: the files can't be read.
    """
    if not schemas:
        return {}
    known = engine_schema.read(storage) or EngineSchema()
    missing = {}
    for key, schema in schemas.items():
        declared = known.of_table(key)
        properties = declared.properties if declared is not None else ()
        names = frozenset(p.name for p in properties if not _has(schema, p))
        if names:
            missing[key] = names
    return missing


def _whole(key: str, schema: pa.Schema, types: EngineSchema) -> Forgotten:
    """Return a table's columns as properties, with the rules of its type."""
    properties, known = _told(key, schema), types.of_table(key)
    if known is None:
        return Forgotten(properties)
    named = {p.name: p for p in fitted(known, schema).properties}
    return Forgotten(tuple(named.get(p.name, p) for p in properties), known.rules)


def forgotten(storage: Storage, snapshot: Snapshot) -> dict[str, Forgotten]:
    """Return what the schema files don't name of a snapshot's tables and `__manifest` knows.

    Only what the files may name: what a table has on every branch.

    Raises:
        CorruptManifestError, StorageError: the files can't be read, or the store failed.
    """
    files = engine_schema.read(storage) or EngineSchema()
    whole, _ = known_types.filled(storage, files, snapshot)
    unnamed = {}
    for key in snapshot.tables:
        declared, full = files.of_table(key), whole.of_table(key)
        if declared is None or full is None or full is declared:
            continue
        known = {p.name for p in declared.properties}
        new = _everywhere(storage, key, tuple(p for p in full.properties if p.name not in known))
        if new:
            unnamed[key] = Forgotten(new, full.rules)
    return unnamed


def _told(table_key: str, schema: pa.Schema) -> tuple[Property, ...]:
    """Return a table's columns as the properties that their types tell of."""
    kind, _ = layout.split_table_key(table_key)
    engine = {
        field.name: engine_type_of(field, {})
        for field in schema
        if field.name not in SYSTEM_COLUMNS[kind]
    }
    return tuple(Property(n, e) for n, e in engine.items() if not isinstance(e, LeftOut))


def quietly_name(storage: Storage, what: Mapping[str, Forgotten]) -> None:
    """Name properties (again); what can't be, the engine doesn't see, and it is logged."""
    properties = {key: lost.properties for key, lost in what.items() if lost.properties}
    if not properties:
        return
    try:
        name_added(
            storage,
            properties,
            {key: lost.rules for key, lost in what.items()},
            {key: lost.order for key, lost in what.items()},
        )
    except OmnigraphError as error:
        _log.warning("The schema files don't name all columns of %s: %s", ", ".join(what), error)


def put_back(storage: Storage) -> None:
    """Make the schema files whole: from each other, and from what `__manifest` knows of branches.

    Raises:
        CorruptManifestError, UnsupportedError: the files can't be changed by this version.
        StorageError: the store failed.
    """
    snapshots = []
    for branch in refs.list_branches(storage):
        try:
            snapshots.append(known_types.load_with_types(storage, branch.name))
        except OmnigraphError as error:
            _log.warning("Branch %s is left out of the schema files: %s", branch.name, error)
    files = engine_schema.read(storage) or EngineSchema()
    lost: dict[str, NodeType | EdgeType] = {}
    for snapshot in snapshots:
        for engine_type in known_types.filled(storage, files, snapshot)[1].types():
            lost.setdefault(engine_type.table_key, engine_type)
    types = [
        reshaped(engine_type, {p.name: None for p in _not_everywhere(storage, engine_type)})
        for engine_type in lost.values()
    ]
    engine_schema.repair(storage, EngineSchema.of(types))
    for snapshot in snapshots:
        unnamed = forgotten(storage, snapshot)
        name_added(
            storage,
            {key: missing.properties for key, missing in unnamed.items()},
            {key: missing.rules for key, missing in unnamed.items()},
        )


def _not_everywhere(storage: Storage, engine_type: NodeType | EdgeType) -> list[Property]:
    everywhere = _everywhere(storage, engine_type.table_key, engine_type.properties)
    return [p for p in engine_type.properties if p not in everywhere]


def _everywhere(
    storage: Storage, key: str, properties: tuple[Property, ...]
) -> tuple[Property, ...]:
    left = list(properties)
    for branch, schema in table_schemas(storage, key):
        for prop in [p for p in left if not _has(schema, p)]:
            left.remove(prop)
            _log.warning(
                "%s.%s is a column that the engine doesn't see: the table of branch %s lacks it",
                key,
                prop.name,
                branch,
            )
    return tuple(left)


def table_schemas(storage: Storage, key: str) -> Iterator[tuple[str, pa.Schema]]:
    """Yield (branch, schema of the table's newest version) for each branch that has the table."""
    for branch, head in refs.readable(storage):
        entry = head.tables.get(key)
        if entry is not None:
            coordinates = (entry.location, entry.table_branch, entry.table_version)
            yield branch.name, open_for_reading(storage, *coordinates).schema


def _has(schema: pa.Schema, prop: Property) -> bool:
    if prop.name not in schema.names:
        return False
    stored, declared = schema.field(prop.name), prop.arrow_field()
    return str(stored.type) == str(declared.type) and bool(stored.nullable == declared.nullable)
