"""The engine's schema as plain data: node and edge types, their properties and rules.

Pure and Spark-free. `pg.py` reads and writes it as `_schema.pg`, `ir.py` as the JSON form. There is
one schema for all branches of a graph (format.md, "The engine's schema files").
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace

import pyarrow as pa

from omnigraph_spark.errors import OptionError, SchemaMismatchError, did_you_mean
from omnigraph_spark.schema import column_order, property_types
from omnigraph_spark.schema.property_types import EngineType
from omnigraph_spark.storage import layout

SYSTEM_COLUMNS = {layout.NODE: ("id",), layout.EDGE: ("id", "src", "dst")}
# What the engine's grammar takes as a name: types begin with a capital letter, properties don't.
_TYPE_NAME = re.compile(r"[A-Z][A-Za-z0-9_]*\Z")


@dataclass(frozen=True)
class Annotation:
    """`@name`, `@name("value")` or `@name("value", key="…")` on a type or a property."""

    name: str
    value: str | None = None
    kwargs: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Constraint:
    """A rule of a type: `kind` is Key, Unique, Index, Range or Check.

    `columns` are the properties that it names; `bounds` are Range's two, `pattern` is Check's.
    """

    kind: str
    columns: tuple[str, ...]
    bounds: tuple[int | float | None, int | float | None] = (None, None)
    pattern: str | None = None


@dataclass(frozen=True)
class Property:
    """A property of a type; `id`, `src` and `dst` are columns of the table, not properties."""

    name: str
    type: EngineType
    annotations: tuple[Annotation, ...] = ()

    def arrow_field(self) -> pa.Field:
        """Return the property's Arrow field in the table's dataset (format.md, "Tables")."""
        return property_types.arrow_field(self.name, self.type)

    def constraints(self) -> tuple[Constraint, ...]:
        """Return the rules that `@key`, `@unique` and `@index` on the property stand for."""
        kinds = {"key": "Key", "unique": "Unique", "index": "Index"}
        return tuple(
            Constraint(kinds[annotation.name], (self.name,))
            for annotation in self.annotations
            if annotation.name in kinds and annotation.value is None
        )


@dataclass(frozen=True)
class LeftOut:
    """A column of a table that the engine can't type or name; it is kept in Lance, nullable."""

    column: str
    reason: str


@dataclass(frozen=True)
class InterfaceType:
    """An interface: properties that node types take over."""

    name: str
    properties: tuple[Property, ...] = ()


@dataclass(frozen=True)
class NodeType:
    """A node type; `key` is the property whose value is the node's `id`, None where there is none.

    A key without a rule that says so is marked `@key` on its property.
    `properties` are all of them, an interface's included. `rules` are the constraints that stand in
    the type's body; those that annotations of properties stand for come on top (`constraints`).
    `left_out` says which columns of the table the definition leaves out, and why; `inherited` which
    properties stand in an interface only, where that is known.
    """

    name: str
    key: str | None = None
    properties: tuple[Property, ...] = ()
    annotations: tuple[Annotation, ...] = ()
    implements: tuple[str, ...] = ()
    rules: tuple[Constraint, ...] = ()
    left_out: tuple[LeftOut, ...] = field(default=(), compare=False)
    inherited: frozenset[str] = field(default=frozenset(), compare=False)

    def __post_init__(self) -> None:
        if self.key is not None and key_of(self.constraints()) is None:
            marked = tuple(
                replace(p, annotations=(*p.annotations, Annotation("key")))
                if p.name == self.key
                else p
                for p in self.properties
            )
            object.__setattr__(self, "properties", marked)

    @property
    def table_key(self) -> str:
        """Return `node:{name}`."""
        return layout.table_key(layout.NODE, self.name)

    def constraints(self) -> tuple[Constraint, ...]:
        """Return all rules of the type."""
        return self.rules + tuple(c for p in self.properties for c in p.constraints())


@dataclass(frozen=True)
class EdgeType:
    """An edge type from node type `source` to node type `target`.

    `cardinality` is (min, max) of edges per source, max None = any number.
    """

    name: str
    source: str
    target: str
    properties: tuple[Property, ...] = ()
    cardinality: tuple[int, int | None] = (0, None)
    annotations: tuple[Annotation, ...] = ()
    rules: tuple[Constraint, ...] = ()
    left_out: tuple[LeftOut, ...] = field(default=(), compare=False)

    @property
    def table_key(self) -> str:
        """Return `edge:{name}`."""
        return layout.table_key(layout.EDGE, self.name)

    def constraints(self) -> tuple[Constraint, ...]:
        """Return all rules of the type."""
        return self.rules + tuple(c for p in self.properties for c in p.constraints())


@dataclass(frozen=True)
class EngineSchema:
    """All types of a graph by name."""

    nodes: Mapping[str, NodeType] = field(default_factory=dict)
    edges: Mapping[str, EdgeType] = field(default_factory=dict)
    interfaces: Mapping[str, InterfaceType] = field(default_factory=dict)

    @classmethod
    def of(cls, types: Iterable[NodeType | EdgeType]) -> EngineSchema:
        """Return the schema of these node and edge types."""
        types = tuple(types)
        return cls(
            {node.name: node for node in types if isinstance(node, NodeType)},
            {edge.name: edge for edge in types if isinstance(edge, EdgeType)},
        )

    def with_types(self, new: EngineSchema) -> EngineSchema:
        """Return this schema with those of `new` that it lacks."""
        return replace(self, nodes={**new.nodes, **self.nodes}, edges={**new.edges, **self.edges})

    def types(self) -> tuple[NodeType | EdgeType, ...]:
        """Return all node types, then all edge types."""
        return (*self.nodes.values(), *self.edges.values())

    def of_table(self, table_key: str) -> NodeType | EdgeType | None:
        """Return the type of a table, None where the schema has none."""
        kind, name = layout.split_table_key(table_key)
        return self.edges.get(name) if kind == layout.EDGE else self.nodes.get(name)


def key_of(constraints: Iterable[Constraint]) -> str | None:
    """Return the key property that the rules of a node type name (the first of several)."""
    return next((c.columns[0] for c in constraints if c.kind == "Key" and c.columns), None)


def of_arrow(
    table_key: str,
    schema: pa.Schema,
    key: str | None = None,
    endpoints: tuple[str, str] | None = None,
    carried: Mapping[str, EngineType] | None = None,
) -> NodeType | EdgeType:
    """Return the engine's type of a table with this Arrow schema; pure, on the driver.

    Its properties stand in the order in which the columns are shown.

    Columns that the engine can't type or name are left out and reported in `left_out`:
    the caller logs them and makes the table with `table_schema`, where they are nullable.

    Args:
        table_key: the table's key; its name must be one that the engine can spell.
        schema: the table's columns, `id` (`src`, `dst`) among them.
        key: the key property of a node type.
        endpoints: source and target node type of an edge type.
        carried: engine types by column that Arrow can't tell, such as an enum.

    Raises:
        OptionError: a type name that the engine can't spell.
        SchemaMismatchError: the key is not a String column, or an edge type has no endpoints.
    """
    kind, name = layout.split_table_key(table_key)
    check_type_name(name)
    properties: list[Property] = []
    left_out: list[LeftOut] = []
    for column in column_order.as_shown(schema, kind == layout.EDGE):
        if column.name in SYSTEM_COLUMNS[kind]:
            continue
        engine_type = engine_type_of(column, carried or {})
        if isinstance(engine_type, LeftOut):
            left_out.append(engine_type)
        else:
            properties.append(Property(column.name, engine_type))
    if kind == layout.EDGE:
        if endpoints is None:
            raise SchemaMismatchError(
                f"The endpoints of the new edge table {table_key} are not known",
                expected=f"option endpoints '{name}: Person -> Company'",
            )
        return EdgeType(name, *endpoints, tuple(properties), left_out=tuple(left_out))
    if key is not None:
        properties = _with_key(table_key, key, properties)
    return NodeType(name, key, tuple(properties), left_out=tuple(left_out))


def table_schema(schema: pa.Schema, engine_type: NodeType | EdgeType) -> pa.Schema:
    """Return the Arrow schema that a new table of `engine_type` gets, in the columns' order.

    What the engine doesn't know must be nullable, since it writes rows without it; the
    key must not be.
    """
    left_out = {unseen.column for unseen in engine_type.left_out}
    key = engine_type.key if isinstance(engine_type, NodeType) else None
    return pa.schema(
        [
            column.with_nullable(column.name in left_out)
            if column.name in left_out or column.name == key
            else column
            for column in schema
        ],
        metadata=schema.metadata,
    )


def check_type_name(name: str) -> None:
    """Refuse a new type's name that `_schema.pg` can't spell: the engine would refuse the graph.

    Raises:
        OptionError: it doesn't begin with a capital letter.
    """
    layout.check_type_name(name)
    if not _TYPE_NAME.match(name):
        raise OptionError(
            f"{name!r} can't be the name of a new type",
            expected="a name that begins with a capital letter, [A-Z][A-Za-z0-9_]*",
            hint="The original engine can't read any other, and would refuse the whole graph",
        )


def same_definition(one: NodeType | EdgeType, other: NodeType | EdgeType) -> bool:
    """Return whether two types hold the same: kind, key, endpoints, properties with their types.

    Annotations, indices and other rules don't count: they say nothing about the table's columns,
    and a frame can't carry them.
    """
    return _definition(one) == _definition(other)


def reshaped(one: NodeType | EdgeType, names: Mapping[str, str | None]) -> NodeType | EdgeType:
    """Return a type whose properties have other names (None: they are dropped), and its rules.

    A rule goes with the first property that it names; so does a property whose new name the engine
    can't spell.
    """
    renamed = [(p, names.get(p.name, p.name)) for p in one.properties]
    spelled = {
        p.name: new for p, new in renamed if new is not None and property_types.can_name(new)
    }
    properties = tuple(
        replace(p, name=spelled[p.name]) for p in one.properties if p.name in spelled
    )
    rules = tuple(
        replace(rule, columns=tuple(spelled[name] for name in rule.columns))
        for rule in one.rules
        if set(rule.columns) <= spelled.keys()
    )
    return replace(one, properties=properties, rules=rules)


def fitted(one: NodeType | EdgeType, schema: pa.Schema) -> NodeType | EdgeType:
    """Return a type with those of its properties that are columns, typed as the columns are."""
    fields = {field.name: field for field in schema}
    one = reshaped(one, {p.name: None for p in one.properties if p.name not in fields})
    return replace(
        one,
        properties=tuple(
            replace(p, type=_stored_as(p.type, fields[p.name])) for p in one.properties
        ),
    )


def _stored_as(kind: EngineType, field: pa.Field) -> EngineType:
    stored = property_types.of_field(field)
    scalar = kind.scalar if stored is None else stored.scalar
    return replace(kind, scalar=scalar, nullable=field.nullable)


def with_lost(
    one: NodeType | EdgeType, whole: NodeType | EdgeType, columns: Collection[str]
) -> NodeType | EdgeType:
    """Return a type with those properties of `whole` that it lacks and the table has as columns.

    Rules that name one of them come along, if all that they name is there.
    """
    known = {p.name for p in one.properties}
    lost = tuple(p for p in whole.properties if p.name not in known and p.name in columns)
    if not lost:
        return one
    names = {p.name for p in lost}
    rules = tuple(
        rule
        for rule in whole.rules
        if names & set(rule.columns)
        and set(rule.columns) <= known | names
        and rule not in one.rules
    )
    return replace(one, properties=_in_order_of(whole, one, lost), rules=(*one.rules, *rules))


def _in_order_of(
    whole: NodeType | EdgeType, engine_type: NodeType | EdgeType, lost: Iterable[Property]
) -> tuple[Property, ...]:
    """Return the properties of `one`, each lost one before the first that `whole` has after it."""
    names = [p.name for p in whole.properties]
    properties = list(engine_type.properties)
    for p in reversed(tuple(lost)):
        behind = names[names.index(p.name) + 1 :]
        at = next(
            (i for i, other in enumerate(properties) if other.name in behind), len(properties)
        )
        properties.insert(at, p)
    return tuple(properties)


def describe(one: NodeType | EdgeType) -> str:
    """Return a type on one line, for messages."""
    columns = ", ".join(f"{p.name}: {p.type.text()}" for p in _sorted(one.properties))
    if isinstance(one, EdgeType):
        return f"edge {one.name}: {one.source} -> {one.target} {{ {columns} }}"
    key = "" if one.key is None else f" key {one.key}"
    return f"node {one.name}{key} {{ {columns} }}"


def _definition(engine_type: NodeType | EdgeType) -> tuple[object, ...]:
    columns = tuple((p.name, _canonical(p.type)) for p in _sorted(engine_type.properties))
    if isinstance(engine_type, EdgeType):
        return (layout.EDGE, engine_type.name, engine_type.source, engine_type.target, columns)
    return (layout.NODE, engine_type.name, engine_type.key, columns)


def _sorted(properties: Iterable[Property]) -> list[Property]:
    return sorted(properties, key=lambda p: p.name)


def _canonical(engine_type: EngineType) -> EngineType:
    values = engine_type.enum_values
    return (
        engine_type if values is None else replace(engine_type, enum_values=tuple(sorted(values)))
    )


def engine_type_of(column: pa.Field, carried: Mapping[str, EngineType]) -> EngineType | LeftOut:
    """Return the engine's type of a column, or why the engine can't see it."""
    if not property_types.can_name(column.name):
        return LeftOut(
            column.name,
            "the engine's property names begin with a small letter or _ and hold ASCII letters,"
            " digits and _: rename the column to make the engine see it",
        )
    stored = property_types.of_field(column)
    carried_type = carried.get(column.name)
    if carried_type is not None and property_types.to_arrow(carried_type) == column.type:
        stored = replace(carried_type, nullable=column.nullable)
    if stored is None or not _spellable(stored):
        return LeftOut(
            column.name,
            f"the engine has no type for {column.type}: cast it, or give one by the types option,"
            " to make the engine see it",
        )
    return stored


def _spellable(engine_type: EngineType) -> bool:
    """Return whether `_schema.pg` can spell a type: lists are of plain types only."""
    if not engine_type.list:
        return True
    plain = engine_type.vector_width() is None and engine_type.enum_values is None
    return plain and engine_type.scalar != "Blob"


def _with_key(table_key: str, key: str, properties: list[Property]) -> list[Property]:
    prop = next((p for p in properties if p.name == key), None)
    if prop is None or prop.type.list or prop.type.scalar != "String":
        raise SchemaMismatchError(
            f"{key!r} can't be the key of {table_key}",
            expected="a String property whose name begins with a small letter",
            found="no such property" if prop is None else prop.type.text(),
            hint=did_you_mean(key, [p.name for p in properties]) if prop is None else None,
        )
    keyed = Property(key, replace(prop.type, nullable=False))
    return [keyed if p is prop else p for p in properties]
