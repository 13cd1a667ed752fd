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
    there = None if schema is None else schema.of_table(table_key)
    if there is None or not names & {one.name for one in there.properties}:
        return Forgotten()
    engine_schema.change(
        storage,
        lambda text: None if text is None else edits.drop_properties(text, table_key, names),
    )
    return Forgotten(
        tuple(one for one in there.properties if one.name in names),
        tuple(rule for rule in there.rules if names & set(rule.columns)),
        tuple(one.name for one in there.properties),
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
    of_rules, order = rules or {}, orders or {}
    schema = engine_schema.read(storage) or EngineSchema()
    properties = {
        key: tuple(one for one in new if not _is_named(schema, key, one))
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


def _is_named(schema: EngineSchema, table_key: str, one: Property) -> bool:
    there = schema.of_table(table_key)
    return there is not None and any(p.name == one.name for p in there.properties)


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
    known = engine_schema.read(storage) or EngineSchema()
    found = {}
    for key, schema in schemas.items():
        there = known.of_table(key)
        properties = there.properties if there is not None else ()
        names = frozenset(one.name for one in properties if not _has(schema, one))
        if names:
            found[key] = names
    return found


def _whole(key: str, schema: pa.Schema, types: EngineSchema) -> Forgotten:
    """Return a table's columns as properties, with the rules of its type."""
    told, known = _told(key, schema), types.of_table(key)
    if known is None:
        return Forgotten(told)
    named = {one.name: one for one in fitted(known, schema).properties}
    return Forgotten(tuple(named.get(one.name, one) for one in told), known.rules)


def forgotten(storage: Storage, snapshot: Snapshot) -> dict[str, Forgotten]:
    """Return what the schema files don't name of a snapshot's tables and `__manifest` knows.

    Only what the files may name: what a table has on every branch.

    Raises:
        CorruptManifestError, StorageError: the files can't be read, or the store failed.
    """
    files = engine_schema.read(storage) or EngineSchema()
    whole, _ = known_types.filled(storage, files, snapshot)
    found = {}
    for key in snapshot.tables:
        there, one = files.of_table(key), whole.of_table(key)
        if there is None or one is None or one is there:
            continue
        known = {p.name for p in there.properties}
        new = _everywhere(storage, key, tuple(p for p in one.properties if p.name not in known))
        if new:
            found[key] = Forgotten(new, one.rules)
    return found


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
    properties = {key: one.properties for key, one in what.items() if one.properties}
    if not properties:
        return
    try:
        name_added(
            storage,
            properties,
            {key: one.rules for key, one in what.items()},
            {key: one.order for key, one in what.items()},
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
        for one in known_types.filled(storage, files, snapshot)[1].types():
            lost.setdefault(one.table_key, one)
    types = [
        reshaped(one, {p.name: None for p in _not_everywhere(storage, one)})
        for one in lost.values()
    ]
    engine_schema.repair(storage, EngineSchema.of(types))
    for snapshot in snapshots:
        found = forgotten(storage, snapshot)
        name_added(
            storage,
            {key: one.properties for key, one in found.items()},
            {key: one.rules for key, one in found.items()},
        )


def _not_everywhere(storage: Storage, one: NodeType | EdgeType) -> list[Property]:
    everywhere = _everywhere(storage, one.table_key, one.properties)
    return [p for p in one.properties if p not in everywhere]


def _everywhere(
    storage: Storage, key: str, properties: tuple[Property, ...]
) -> tuple[Property, ...]:
    left = list(properties)
    for branch, schema in table_schemas(storage, key):
        for one in [p for p in left if not _has(schema, p)]:
            left.remove(one)
            _log.warning(
                "%s.%s is a column that the engine doesn't see: the table of branch %s lacks it",
                key,
                one.name,
                branch,
            )
    return tuple(left)


def table_schemas(storage: Storage, key: str) -> Iterator[tuple[str, pa.Schema]]:
    """Yield (branch, schema of the table's newest version) for each branch that has the table."""
    for branch, head in refs.readable(storage):
        entry = head.tables.get(key)
        if entry is not None:
            place = (entry.location, entry.table_branch, entry.table_version)
            yield branch.name, open_for_reading(storage, *place).schema


def _has(schema: pa.Schema, one: Property) -> bool:
    if one.name not in schema.names:
        return False
    there, wanted = schema.field(one.name), one.arrow_field()
    return str(there.type) == str(wanted.type) and bool(there.nullable == wanted.nullable)
