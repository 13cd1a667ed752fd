"""The way back from `ir.py` and `ir2.py`: `_schema.ir.json` as a schema. Pure functions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from omnigraph_spark.errors import CorruptManifestError
from omnigraph_spark.schema import ir2, shape
from omnigraph_spark.schema.ir import IR_VERSION, check_version, parsed
from omnigraph_spark.schema.model import (
    Annotation,
    Constraint,
    EdgeType,
    EngineSchema,
    InterfaceType,
    NodeType,
    Property,
    key_of,
)
from omnigraph_spark.schema.property_types import EngineType
from omnigraph_spark.storage import layout


def parse_ir(ir_text: str) -> EngineSchema:
    """Return the schema that an IR of version 1 or 2 describes.

    Raises:
        CorruptManifestError: it is not such IR.
        UnsupportedError: it is of a newer engine.
    """
    document = parsed(ir_text)
    if document.get("ir_version") == ir2.IR_VERSION:
        return _identified(ir2.document(ir_text))
    check_version(document.get("ir_version"), IR_VERSION, layout.SCHEMA_IR)
    try:
        interfaces = {
            interface["name"]: InterfaceType(interface["name"], _properties_of(interface))
            for interface in document["interfaces"]
        }
        nodes = (_node_of(node, _properties_of(node)) for node in document["nodes"])
        return EngineSchema(
            {node.name: _inheriting(node, interfaces) for node in nodes},
            {edge["name"]: _edge_of(edge, _properties_of(edge)) for edge in document["edges"]},
            interfaces,
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise CorruptManifestError(
            f"{layout.SCHEMA_IR} is malformed",
            expected="the engine's IR, version 1",
            found=f"{type(error).__name__}: {error}",
            hint=f"Delete it: it is made again from {layout.SCHEMA_PG} by the next write",
        ) from error


def _inheriting(node: NodeType, interfaces: Mapping[str, InterfaceType]) -> NodeType:
    """Return a node type that has the properties of its interfaces from them where they are alike.

    Which of them stood in the type's own body as well, IR of version 1 doesn't say.
    """
    given = {p for name in node.implements for p in interfaces[name].properties}
    alike = frozenset(p.name for p in node.properties if p in given)
    return replace(node, inherited=alike)


def _identified(document: Mapping[str, Any]) -> EngineSchema:
    """Return the schema of an IR of version 2, whose shape says it all."""
    plain = shape.of_ir(document)
    interfaces = {
        interface["name"]: InterfaceType(interface["name"], _marked_properties(interface))
        for interface in plain["interfaces"]
    }
    nodes, edges = {}, {}
    for entry in plain["nodes"]:
        direct = {p["name"] for p in entry["properties"] if p["declared_directly"]}
        node = _node_of(entry, _marked_properties(entry))
        inherited = {p.name for p in node.properties} - direct
        nodes[node.name] = replace(node, inherited=frozenset(inherited))
    for entry in plain["edges"]:
        edges[entry["name"]] = _edge_of(entry, _marked_properties(entry))
    return EngineSchema(nodes, edges, interfaces)


def _marked_properties(owner: Mapping[str, Any]) -> tuple[Property, ...]:
    """Return properties with the annotations that a shape has in places of their own."""
    return tuple(
        Property(
            p["name"],
            _type_of(p["prop_type"]),
            (
                *(Annotation(mark) for mark in p["property_constraints"]),
                *_embedding(p["embed_source"]),
                *_annotations_of(p),
            ),
        )
        for p in owner["properties"]
    )


def _embedding(embed: Mapping[str, Any] | None) -> tuple[Annotation, ...]:
    if embed is None:
        return ()
    model = () if embed["model"] is None else (("model", embed["model"]),)
    return (Annotation("embed", embed["property_name"], model),)


def _node_of(node: Mapping[str, Any], properties: tuple[Property, ...]) -> NodeType:
    rules = _rules_of(node)
    return NodeType(
        node["name"],
        key_of(rules),
        properties,
        _annotations_of(node),
        tuple(node["implements"]),
        _body_rules(properties, rules),
    )


def _edge_of(edge: Mapping[str, Any], properties: tuple[Property, ...]) -> EdgeType:
    return EdgeType(
        edge["name"],
        edge["from_type"],
        edge["to_type"],
        properties,
        (edge["cardinality"]["min"], edge["cardinality"]["max"]),
        _annotations_of(edge),
        _body_rules(properties, _rules_of(edge)),
    )


def _properties_of(owner: Mapping[str, Any]) -> tuple[Property, ...]:
    return tuple(
        Property(p["name"], _type_of(p["prop_type"]), _annotations_of(p))
        for p in owner["properties"]
    )


def _type_of(prop_type: Mapping[str, Any]) -> EngineType:
    scalar, values = prop_type["scalar"], prop_type["enum_values"]
    return EngineType(
        f"Vector({scalar['Vector']})" if isinstance(scalar, dict) else scalar,
        prop_type["list"],
        prop_type["nullable"],
        None if values is None else tuple(values),
    )


def _annotations_of(owner: Mapping[str, Any]) -> tuple[Annotation, ...]:
    return tuple(
        Annotation(
            annotation["name"],
            annotation["value"],
            tuple(sorted(annotation.get("kwargs", {}).items())),
        )
        for annotation in owner["annotations"]
    )


def _rules_of(owner: Mapping[str, Any]) -> list[Constraint]:
    rules: list[Constraint] = []
    for rule in owner["constraints"]:
        ((kind, value),) = rule.items()
        if kind == "Range":
            bounds = (_bound_of(value["min"]), _bound_of(value["max"]))
            rules.append(Constraint(kind, (value["property"],), bounds))
        elif kind == "Check":
            rules.append(Constraint(kind, (value["property"],), pattern=value["pattern"]))
        else:
            rules.append(Constraint(kind, tuple(value)))
    return rules


def _bound_of(bound: Mapping[str, Any] | None) -> int | float | None:
    if bound is None:
        return None
    ((_, value),) = bound.items()
    return value  # type: ignore[no-any-return]


def _body_rules(
    properties: Iterable[Property], rules: Iterable[Constraint]
) -> tuple[Constraint, ...]:
    """Return the rules that no annotation of a property stands for."""
    marked = [rule for p in properties for rule in p.constraints()]
    return tuple(rule for rule in rules if rule not in marked)
