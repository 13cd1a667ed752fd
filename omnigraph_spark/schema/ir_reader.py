"""The way back from `ir.py`: `_schema.ir.json` as a schema. Pure functions over text."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from omnigraph_spark.errors import CorruptManifestError
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
    """Return the schema that an IR of version 1 describes.

    Raises:
        CorruptManifestError: it is not such IR.
        UnsupportedError: it is of a newer engine.
    """
    document = parsed(ir_text)
    check_version(document.get("ir_version"), IR_VERSION, layout.SCHEMA_IR)
    try:
        return EngineSchema(
            {one["name"]: _node_of(one) for one in document["nodes"]},
            {one["name"]: _edge_of(one) for one in document["edges"]},
            {
                one["name"]: InterfaceType(one["name"], _properties_of(one))
                for one in document["interfaces"]
            },
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise CorruptManifestError(
            f"{layout.SCHEMA_IR} is malformed",
            expected="the engine's IR, version 1",
            found=f"{type(error).__name__}: {error}",
            hint=f"Delete it: it is made again from {layout.SCHEMA_PG} by the next write",
        ) from error


def _node_of(one: Mapping[str, Any]) -> NodeType:
    properties, rules = _properties_of(one), _rules_of(one)
    return NodeType(
        one["name"],
        key_of(rules),
        properties,
        _annotations_of(one),
        tuple(one["implements"]),
        _body_rules(properties, rules),
    )


def _edge_of(one: Mapping[str, Any]) -> EdgeType:
    properties = _properties_of(one)
    return EdgeType(
        one["name"],
        one["from_type"],
        one["to_type"],
        properties,
        (one["cardinality"]["min"], one["cardinality"]["max"]),
        _annotations_of(one),
        _body_rules(properties, _rules_of(one)),
    )


def _properties_of(owner: Mapping[str, Any]) -> tuple[Property, ...]:
    return tuple(
        Property(one["name"], _type_of(one["prop_type"]), _annotations_of(one))
        for one in owner["properties"]
    )


def _type_of(one: Mapping[str, Any]) -> EngineType:
    scalar, values = one["scalar"], one["enum_values"]
    return EngineType(
        f"Vector({scalar['Vector']})" if isinstance(scalar, dict) else scalar,
        one["list"],
        one["nullable"],
        None if values is None else tuple(values),
    )


def _annotations_of(owner: Mapping[str, Any]) -> tuple[Annotation, ...]:
    return tuple(
        Annotation(one["name"], one["value"], tuple(sorted(one.get("kwargs", {}).items())))
        for one in owner["annotations"]
    )


def _rules_of(owner: Mapping[str, Any]) -> list[Constraint]:
    rules: list[Constraint] = []
    for one in owner["constraints"]:
        ((kind, value),) = one.items()
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
    marked = [rule for one in properties for rule in one.constraints()]
    return tuple(rule for rule in rules if rule not in marked)
