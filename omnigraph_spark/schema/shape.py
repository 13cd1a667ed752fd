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
        "interfaces": [_interface(interface) for interface in _by_name(schema.interfaces)],
        "nodes": [_node(node, schema.interfaces) for node in _by_name(schema.nodes)],
        "edges": [_edge(edge) for edge in _by_name(schema.edges)],
    }


def of_ir(ir: Mapping[str, Any]) -> Json:
    """Return the shape that an IR of version 2 holds: the same without ids."""
    return {
        "interfaces": [
            {"name": interface["name"], "properties": _without_ids(interface)}
            for interface in ir["interfaces"]
        ],
        "nodes": [
            {
                "name": node["name"],
                "annotations": node["annotations"],
                "implements": sorted({ref["type_name"] for ref in node["implements"]}),
                "properties": _without_ids(node),
                "constraints": [constraint_of_ir(rule) for rule in node["constraints"]],
            }
            for node in ir["nodes"]
        ],
        "edges": [
            {
                "name": edge["name"],
                "from_type": edge["from_type"]["type_name"],
                "to_type": edge["to_type"]["type_name"],
                "cardinality": edge["cardinality"],
                "annotations": edge["annotations"],
                "properties": _without_ids(edge),
                "constraints": [constraint_of_ir(rule) for rule in edge["constraints"]],
            }
            for edge in ir["edges"]
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
        return {_LISTED[kind]: [field_name(field) for field in rule["fields"]]}
    column = field_name(rule["field"])
    if kind == "range":
        return {"Range": {"property": column, "min": rule["min"], "max": rule["max"]}}
    return {"Check": {"property": column, "pattern": rule["pattern"]}}


def field_name(field: Mapping[str, Any]) -> str:
    """Return the column that a rule of an IR of version 2 names."""
    name: str = field["property_name"] if field["kind"] == "property" else field["role"]
    return name


# --- from the model ----------------------------------------------------------------------------


def _interface(interface: InterfaceType) -> Json:
    return {
        "name": interface.name,
        "properties": [_property(p) for p in _sorted(interface.properties)],
    }


def _node(node: NodeType, interfaces: Mapping[str, InterfaceType]) -> Json:
    implements = sorted(set(node.implements))
    return {
        "name": node.name,
        "annotations": _annotations(node.annotations),
        "implements": implements,
        "properties": [
            _property(
                p,
                p.name not in node.inherited,
                [
                    {"owner_name": name, "property_name": p.name}
                    for name in implements
                    if p.name in {other.name for other in interfaces[name].properties}
                ],
            )
            for p in _sorted(node.properties)
        ],
        "constraints": _constraints(node.constraints()),
    }


def _edge(edge: EdgeType) -> Json:
    return {
        "name": edge.name,
        "from_type": edge.source,
        "to_type": edge.target,
        "cardinality": {"min": edge.cardinality[0], "max": edge.cardinality[1]},
        "annotations": _annotations(edge.annotations),
        "properties": [_property(p) for p in _sorted(edge.properties)],
        "constraints": _constraints(edge.constraints()),
    }


def _property(prop: Property, direct: bool = True, satisfies: list[Json] | None = None) -> Json:
    marked = {a.name for a in prop.annotations if a.value is None}
    return {
        "name": prop.name,
        "prop_type": _type(prop.type),
        "annotations": _annotations(prop.annotations),
        "property_constraints": [mark for mark in _MARKS if mark in marked],
        "embed_source": _embed_source(prop),
        "declared_directly": direct,
        "satisfies_interface_properties": satisfies or [],
    }


def _type(engine_type: EngineType) -> Json:
    width = engine_type.vector_width()
    values = engine_type.enum_values
    return {
        "scalar": engine_type.scalar if width is None else {"Vector": width},
        "nullable": engine_type.nullable,
        "list": engine_type.list,
        "enum_values": None if values is None else sorted(set(values)),
    }


def _embed_source(prop: Property) -> Json | None:
    annotation = next((a for a in prop.annotations if a.name == "embed"), None)
    if annotation is None or annotation.value is None:
        return None
    return {"property_name": annotation.value, "model": dict(annotation.kwargs).get("model")}


def _annotations(annotations: Iterable[Annotation]) -> list[Json]:
    plain = [
        {"name": annotation.name, "value": annotation.value}
        | ({"kwargs": dict(sorted(annotation.kwargs))} if annotation.kwargs else {})
        for annotation in annotations
        if annotation.name not in _TYPED
    ]
    by_text = {_compact(entry): entry for entry in plain}
    return [by_text[text] for text in sorted(by_text)]


def _constraints(constraints: Iterable[Constraint]) -> list[Json]:
    ranked = {_rank(rule): rule for rule in constraints}
    return [_constraint(ranked[rank]) for rank in sorted(ranked)]


def _constraint(rule: Constraint) -> Json:
    if rule.kind == "Range":
        low, high = (_bound(bound) for bound in rule.bounds)
        return {rule.kind: {"property": rule.columns[0], "min": low, "max": high}}
    if rule.kind == "Check":
        return {rule.kind: {"property": rule.columns[0], "pattern": rule.pattern}}
    return {rule.kind: sorted(set(rule.columns))}


def _rank(rule: Constraint) -> str:
    """Return what the engine sorts rules by; equal ones are one."""
    kind = rule.kind.lower()
    if rule.kind == "Range":
        low, high = (_bound_text(_bound(bound)) for bound in rule.bounds)
        return f"{kind}:{rule.columns[0]}:{low}:{high}"
    if rule.kind == "Check":
        return f"{kind}:{rule.columns[0]}:{rule.pattern}"
    return f"{kind}:{','.join(sorted(set(rule.columns)))}"


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
            "name": p["name"],
            "prop_type": p["prop_type"],
            "annotations": p["annotations"],
            "property_constraints": p["property_constraints"],
            "embed_source": _embed_without_ids(p["embed_source"]),
            "declared_directly": p["declared_directly"],
            "satisfies_interface_properties": [
                {"owner_name": owner_name, "property_name": name}
                for owner_name, name in sorted(
                    {
                        (ref["owner_type_name"], ref["property_name"])
                        for ref in p["satisfies_interface_properties"]
                    }
                )
            ],
        }
        for p in owner["properties"]
    ]


def _embed_without_ids(embed: Mapping[str, Any] | None) -> Json | None:
    if embed is None:
        return None
    return {"property_name": embed["source"]["property_name"], "model": embed["model"]}


def _by_name(named: Mapping[str, Any]) -> list[Any]:
    return [named[name] for name in sorted(named)]


def _sorted(properties: Iterable[Property]) -> list[Property]:
    return sorted(properties, key=lambda p: p.name)


def _compact(document: Any) -> str:
    return _with_rust_floats(json.dumps(document, ensure_ascii=False, separators=(",", ":")))


def _with_rust_floats(text: str) -> str:
    """Spell the bounds of ranges as the engine does: `0.00001` and `1e-7`, not `1e-05`, `1e-07`.

    No text of a person can look like one: its quotes are escaped.
    """
    return _SMALL_FLOAT.sub(lambda match: match[1] + _spelled(match[2], int(match[3])), text)


def _spelled(digits: str, exponent: int) -> str:
    if exponent != 5:  # the last that is written out
        return f"{digits}e-{exponent}"
    sign = "-" if digits.startswith("-") else ""
    return f"{sign}0.{'0' * (exponent - 1)}{digits.lstrip('-').replace('.', '')}"
