"""The shape of a schema: all that it says, without the ids of the newer engines.

Pure functions over plain data (docs/internals/format.md, "Newer stamps"). Graphs of stamp 5 and
later keep a hash of it beside the hash of the IR: `_schema.pg` must compile to the same shape.
Types and properties are in the order of their names, enum values sorted, rules by kind and columns,
annotations by their JSON; all of it as the engine's own code does, since the hash is over the text.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

from omnigraph_spark.schema.model import (
    Annotation,
    Constraint,
    EdgeType,
    EngineSchema,
    InterfaceType,
    NodeType,
    Property,
)
from omnigraph_spark.schema.property_types import EngineType

Json = dict[str, Any]

# What has a place of its own in the shape is left out of the annotations.
_TYPED = ("rename_from", "embed", "key", "unique", "index")
_MARKS = ("key", "unique", "index")
_LISTED = {"key": "Key", "unique": "Unique", "index": "Index"}
_MAX_INTEGER = 2**63 - 1
_SMALL_FLOAT = re.compile(r'("Float": ?)(-?[0-9.]+)e-([0-9]+)')


def of_schema(schema: EngineSchema) -> Json:
    """Return the shape of a schema."""
    return {
        "interfaces": [_interface(one) for one in _by_name(schema.interfaces)],
        "nodes": [_node(one, schema.interfaces) for one in _by_name(schema.nodes)],
        "edges": [_edge(one) for one in _by_name(schema.edges)],
    }


def of_ir(ir: Mapping[str, Any]) -> Json:
    """Return the shape that an IR of version 2 holds: the same without ids."""
    return {
        "interfaces": [
            {"name": one["name"], "properties": _without_ids(one)} for one in ir["interfaces"]
        ],
        "nodes": [
            {
                "name": one["name"],
                "annotations": one["annotations"],
                "implements": sorted({ref["type_name"] for ref in one["implements"]}),
                "properties": _without_ids(one),
                "constraints": [constraint_of_ir(rule) for rule in one["constraints"]],
            }
            for one in ir["nodes"]
        ],
        "edges": [
            {
                "name": one["name"],
                "from_type": one["from_type"]["type_name"],
                "to_type": one["to_type"]["type_name"],
                "cardinality": one["cardinality"],
                "annotations": one["annotations"],
                "properties": _without_ids(one),
                "constraints": [constraint_of_ir(rule) for rule in one["constraints"]],
            }
            for one in ir["edges"]
        ],
    }


def digest(document: Mapping[str, Any]) -> str:
    """Return `sha256:` and the hash of compact JSON, keys in the document's own order."""
    return f"sha256:{hashlib.sha256(_compact(document).encode('utf-8')).hexdigest()}"


def pretty(document: Mapping[str, Any]) -> str:
    """Return JSON as the engine prints it into files."""
    return _with_rust_floats(json.dumps(document, ensure_ascii=False, indent=2))


def constraint_of_ir(rule: Mapping[str, Any]) -> Json:
    """Return a rule of an IR of version 2 in the form that shapes and IR of version 1 have."""
    kind = rule["kind"]
    if kind in _LISTED:
        return {_LISTED[kind]: [field_name(one) for one in rule["fields"]]}
    column = field_name(rule["field"])
    if kind == "range":
        return {"Range": {"property": column, "min": rule["min"], "max": rule["max"]}}
    return {"Check": {"property": column, "pattern": rule["pattern"]}}


def field_name(field: Mapping[str, Any]) -> str:
    """Return the column that a rule of an IR of version 2 names."""
    name: str = field["property_name"] if field["kind"] == "property" else field["role"]
    return name


# --- from the model ----------------------------------------------------------------------------


def _interface(one: InterfaceType) -> Json:
    return {"name": one.name, "properties": [_property(p) for p in _sorted(one.properties)]}


def _node(one: NodeType, interfaces: Mapping[str, InterfaceType]) -> Json:
    implements = sorted(set(one.implements))
    return {
        "name": one.name,
        "annotations": _annotations(one.annotations),
        "implements": implements,
        "properties": [
            _property(
                p,
                p.name not in one.inherited,
                [
                    {"owner_name": name, "property_name": p.name}
                    for name in implements
                    if p.name in {other.name for other in interfaces[name].properties}
                ],
            )
            for p in _sorted(one.properties)
        ],
        "constraints": _constraints(one.constraints()),
    }


def _edge(one: EdgeType) -> Json:
    return {
        "name": one.name,
        "from_type": one.source,
        "to_type": one.target,
        "cardinality": {"min": one.cardinality[0], "max": one.cardinality[1]},
        "annotations": _annotations(one.annotations),
        "properties": [_property(p) for p in _sorted(one.properties)],
        "constraints": _constraints(one.constraints()),
    }


def _property(one: Property, direct: bool = True, satisfies: list[Json] | None = None) -> Json:
    marked = {a.name for a in one.annotations if a.value is None}
    return {
        "name": one.name,
        "prop_type": _type(one.type),
        "annotations": _annotations(one.annotations),
        "property_constraints": [mark for mark in _MARKS if mark in marked],
        "embed_source": _embed_source(one),
        "declared_directly": direct,
        "satisfies_interface_properties": satisfies or [],
    }


def _type(one: EngineType) -> Json:
    width = one.vector_width()
    values = one.enum_values
    return {
        "scalar": one.scalar if width is None else {"Vector": width},
        "nullable": one.nullable,
        "list": one.list,
        "enum_values": None if values is None else sorted(set(values)),
    }


def _embed_source(one: Property) -> Json | None:
    found = next((a for a in one.annotations if a.name == "embed"), None)
    if found is None or found.value is None:
        return None
    return {"property_name": found.value, "model": dict(found.kwargs).get("model")}


def _annotations(annotations: Iterable[Annotation]) -> list[Json]:
    plain = [
        {"name": one.name, "value": one.value}
        | ({"kwargs": dict(sorted(one.kwargs))} if one.kwargs else {})
        for one in annotations
        if one.name not in _TYPED
    ]
    by_text = {_compact(one): one for one in plain}
    return [by_text[text] for text in sorted(by_text)]


def _constraints(constraints: Iterable[Constraint]) -> list[Json]:
    ranked = {_rank(one): one for one in constraints}
    return [_constraint(ranked[rank]) for rank in sorted(ranked)]


def _constraint(one: Constraint) -> Json:
    if one.kind == "Range":
        low, high = (_bound(bound) for bound in one.bounds)
        return {one.kind: {"property": one.columns[0], "min": low, "max": high}}
    if one.kind == "Check":
        return {one.kind: {"property": one.columns[0], "pattern": one.pattern}}
    return {one.kind: sorted(set(one.columns))}


def _rank(one: Constraint) -> str:
    """Return what the engine sorts rules by; equal ones are one."""
    kind = one.kind.lower()
    if one.kind == "Range":
        low, high = (_bound_text(_bound(bound)) for bound in one.bounds)
        return f"{kind}:{one.columns[0]}:{low}:{high}"
    if one.kind == "Check":
        return f"{kind}:{one.columns[0]}:{one.pattern}"
    return f"{kind}:{','.join(sorted(set(one.columns)))}"


def _bound(bound: int | float | None) -> Json | None:
    if bound is None:
        return None
    whole = isinstance(bound, int) and -_MAX_INTEGER - 1 <= bound <= _MAX_INTEGER
    return {"Integer": bound} if whole else {"Float": float(bound)}


def _bound_text(bound: Json | None) -> str:
    if bound is None:
        return "None"
    ((kind, value),) = bound.items()
    return f"Some({kind}({_as_rust_prints(value)}))"


def _as_rust_prints(value: int | float) -> str:
    """Return a number as Rust's `{:?}` does: `1e20`, `1e-7`, where Python has `1e+20`, `1e-07`."""
    digits, e, exponent = repr(value).partition("e")
    return f"{digits}e{int(exponent)}" if e else digits


# --- from an IR --------------------------------------------------------------------------------


def _without_ids(owner: Mapping[str, Any]) -> list[Json]:
    return [
        {
            "name": one["name"],
            "prop_type": one["prop_type"],
            "annotations": one["annotations"],
            "property_constraints": one["property_constraints"],
            "embed_source": _embed_without_ids(one["embed_source"]),
            "declared_directly": one["declared_directly"],
            "satisfies_interface_properties": [
                {"owner_name": owner_name, "property_name": name}
                for owner_name, name in sorted(
                    {
                        (ref["owner_type_name"], ref["property_name"])
                        for ref in one["satisfies_interface_properties"]
                    }
                )
            ],
        }
        for one in owner["properties"]
    ]


def _embed_without_ids(embed: Mapping[str, Any] | None) -> Json | None:
    if embed is None:
        return None
    return {"property_name": embed["source"]["property_name"], "model": embed["model"]}


def _by_name(named: Mapping[str, Any]) -> list[Any]:
    return [named[name] for name in sorted(named)]


def _sorted(properties: Iterable[Property]) -> list[Property]:
    return sorted(properties, key=lambda one: one.name)


def _compact(document: Any) -> str:
    return _with_rust_floats(json.dumps(document, ensure_ascii=False, separators=(",", ":")))


def _with_rust_floats(text: str) -> str:
    """Spell the bounds of ranges as the engine does: `0.00001` and `1e-7`, not `1e-05`, `1e-07`.

    No text of a person can look like one: its quotes are escaped.
    """
    return _SMALL_FLOAT.sub(lambda found: found[1] + _spelled(found[2], int(found[3])), text)


def _spelled(digits: str, exponent: int) -> str:
    if exponent != 5:  # the last that is written out
        return f"{digits}e-{exponent}"
    sign = "-" if digits.startswith("-") else ""
    return f"{sign}0.{'0' * (exponent - 1)}{digits.lstrip('-').replace('.', '')}"
