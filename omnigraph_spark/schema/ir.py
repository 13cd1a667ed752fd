"""The engine's two JSON files: `_schema.ir.json` and `__schema_state.json`.

Pure functions over text (format.md, "The engine's schema files"). The IR is the schema with ids
that are hashes of names; the state file holds its hash. Any two of the three files that disagree
and the engine refuses the graph, so the IR is always made from the text of `_schema.pg`, in the
engine's own order: types and properties by name, rules by kind and columns, enum values sorted.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from typing import Any

from omnigraph_spark.errors import CorruptManifestError, SchemaMismatchError, UnsupportedError
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
from omnigraph_spark.storage import layout

IR_VERSION = 1
STATE_VERSION = 1
_SECTIONS = ("interfaces", "nodes", "edges")


def ir_json(schema: EngineSchema, existing: str | None = None) -> str:
    """Return the text of `_schema.ir.json` for a schema, as the engine prints it.

    Args:
        schema: what `_schema.pg` says now.
        existing: the text of the file that is there. Its entry of a type whose columns and key
            haven't changed stays as it is, unknown keys included; so do unknown keys of the file.

    Raises:
        SchemaMismatchError: two names of one kind have the same 32-bit id.
        UnsupportedError: `existing` is of a newer engine.
    """
    fresh = _ir(schema)
    old = _kept(existing)
    for section in _SECTIONS:
        entries = {
            entry["name"]: entry for entry in old.get(section, ()) if isinstance(entry, dict)
        }
        fresh[section] = [
            entries[entry["name"]] if _unchanged(entries.get(entry["name"]), entry) else entry
            for entry in fresh[section]
        ]
    return _pretty({**old, **fresh})


def state_json(ir_text: str, existing: str | None = None) -> str:
    """Return the text of `__schema_state.json` that belongs to the text of an IR.

    Raises:
        UnsupportedError: `existing` is of a newer engine.
    """
    old = _loaded(existing)
    check_version(old.get("format_version"), STATE_VERSION, layout.SCHEMA_STATE)
    state = {
        "format_version": STATE_VERSION,
        "schema_ir_hash": ir_hash(ir_text),
        "schema_identity_version": old.get("schema_identity_version", 1),
    }
    return _pretty({**old, **state})


def ir_hash(ir_text: str) -> str:
    """Return `sha256:` and the hash of the IR's compact JSON, keys in the file's order.

    Raises:
        CorruptManifestError: the text is not a JSON object.
    """
    compact = json.dumps(parsed(ir_text), ensure_ascii=False, separators=(",", ":"))
    return f"sha256:{hashlib.sha256(compact.encode('utf-8')).hexdigest()}"


def state_hash(state_text: str) -> str | None:
    """Return the `schema_ir_hash` that the state file names, None where it names none."""
    digest = _loaded(state_text).get("schema_ir_hash")
    return digest if isinstance(digest, str) else None


def check_version(found: object, known: int, name: str) -> None:
    """Refuse a schema file of a newer engine; None (no such file or key) is fine.

    Raises:
        UnsupportedError: another version than `known`.
    """
    if found is not None and found != known:
        raise UnsupportedError(
            f"{name} was written by a newer engine; upgrade omnigraph first",
            expected=f"version {known}",
            found=f"version {found}",
            hint="Nothing was changed",
        )


# --- writing -----------------------------------------------------------------------------------


def _ir(schema: EngineSchema) -> dict[str, Any]:
    _check_ids(
        f"{kind}:{name}"
        for kind, types in (
            ("interface", schema.interfaces),
            (layout.NODE, schema.nodes),
            (layout.EDGE, schema.edges),
        )
        for name in types
    )
    return {
        "ir_version": IR_VERSION,
        "interfaces": [_interface(schema.interfaces[name]) for name in sorted(schema.interfaces)],
        "nodes": [_node(schema.nodes[name]) for name in sorted(schema.nodes)],
        "edges": [_edge(schema.edges[name]) for name in sorted(schema.edges)],
    }


def _interface(interface: InterfaceType) -> dict[str, Any]:
    owner = f"interface:{interface.name}"
    return {
        "name": interface.name,
        "type_id": layout.fnv1a32(owner),
        "properties": _properties(owner, interface.properties),
    }


def _node(node: NodeType) -> dict[str, Any]:
    return {
        "name": node.name,
        "type_id": layout.fnv1a32(node.table_key),
        "annotations": _annotations(node.annotations),
        "implements": sorted(set(node.implements)),
        "properties": _properties(node.table_key, node.properties),
        "constraints": _constraints(node.constraints()),
    }


def _edge(edge: EdgeType) -> dict[str, Any]:
    return {
        "name": edge.name,
        "type_id": layout.fnv1a32(edge.table_key),
        "from_type": edge.source,
        "to_type": edge.target,
        "cardinality": {"min": edge.cardinality[0], "max": edge.cardinality[1]},
        "annotations": _annotations(edge.annotations),
        "properties": _properties(edge.table_key, edge.properties),
        "constraints": _constraints(edge.constraints()),
    }


def _properties(owner: str, properties: Iterable[Property]) -> list[dict[str, Any]]:
    ordered = sorted(properties, key=lambda p: p.name)
    _check_ids(f"{owner}:{p.name}" for p in ordered)
    return [
        {
            "name": p.name,
            "prop_id": layout.fnv1a32(f"{owner}:{p.name}"),
            "prop_type": _type(p.type),
            "annotations": _annotations(p.annotations),
        }
        for p in ordered
    ]


def _type(engine_type: EngineType) -> dict[str, Any]:
    width = engine_type.vector_width()
    return {
        "scalar": engine_type.scalar if width is None else {"Vector": width},
        "nullable": engine_type.nullable,
        "list": engine_type.list,
        "enum_values": None if engine_type.enum_values is None else sorted(engine_type.enum_values),
    }


def _annotations(annotations: Iterable[Annotation]) -> list[dict[str, Any]]:
    ordered = sorted(
        annotations,
        key=lambda annotation: (
            annotation.name,
            annotation.value is not None,
            annotation.value or "",
        ),
    )
    return [
        {"name": annotation.name, "value": annotation.value}
        | ({"kwargs": dict(annotation.kwargs)} if annotation.kwargs else {})
        for annotation in ordered
    ]


def _constraints(constraints: Iterable[Constraint]) -> list[dict[str, Any]]:
    return [_constraint(rule) for rule in sorted(constraints, key=_rank)]


def _constraint(rule: Constraint) -> dict[str, Any]:
    if rule.kind == "Range":
        low, high = (_bound(bound) for bound in rule.bounds)
        return {rule.kind: {"property": rule.columns[0], "min": low, "max": high}}
    if rule.kind == "Check":
        return {rule.kind: {"property": rule.columns[0], "pattern": rule.pattern}}
    return {rule.kind: sorted(rule.columns)}


def _rank(rule: Constraint) -> str:
    """Return what the engine sorts rules by: the kind in small letters, then the columns."""
    kind = rule.kind.lower()
    if rule.kind == "Range":
        low, high = (_bound_text(bound) for bound in rule.bounds)
        return f"{kind}:{rule.columns[0]}:{low}:{high}"
    if rule.kind == "Check":
        return f"{kind}:{rule.columns[0]}:{rule.pattern}"
    return f"{kind}:{','.join(sorted(rule.columns))}"


def _bound(bound: int | float | None) -> dict[str, int | float] | None:
    if bound is None:
        return None
    return {"Float" if isinstance(bound, float) else "Integer": bound}


def _bound_text(bound: int | float | None) -> str:
    if bound is None:
        return "None"
    return f"Some({'Float' if isinstance(bound, float) else 'Integer'}({bound}))"


def _check_ids(names: Iterable[str]) -> None:
    seen: dict[int, str] = {}
    for name in names:
        other = seen.setdefault(layout.fnv1a32(name), name)
        if other != name:
            raise SchemaMismatchError(
                f"{name} and {other} have the same id in the engine's schema",
                hint="Rename one of them",
            )


# --- text --------------------------------------------------------------------------------------


def _kept(existing: str | None) -> dict[str, Any]:
    document = _loaded(existing)
    check_version(document.get("ir_version"), IR_VERSION, layout.SCHEMA_IR)
    return document


def _unchanged(existing: Any, fresh: Mapping[str, Any]) -> bool:
    """Return whether an entry that is there has a fresh one's ids, endpoints, columns and key."""
    rules = ("annotations", "constraints", "implements", "cardinality")
    expected = {key: value for key, value in fresh.items() if key not in rules}
    expected["properties"] = [
        {key: value for key, value in p.items() if key != "annotations"}
        for p in fresh["properties"]
    ]
    return _holds(existing, expected) and _keys(existing) == _keys(fresh)


def _keys(entry: Mapping[str, Any]) -> list[Any]:
    return [rule["Key"] for rule in entry.get("constraints", ()) if "Key" in rule]


def _holds(existing: Any, expected: Any) -> bool:
    """Return whether a JSON object that is there says all that `wanted` says, or more."""
    if isinstance(expected, dict):
        return isinstance(existing, dict) and all(
            key in existing and _holds(existing[key], value) for key, value in expected.items()
        )
    if isinstance(expected, list):
        return (
            isinstance(existing, list)
            and len(existing) == len(expected)
            and all(_holds(a, b) for a, b in zip(existing, expected, strict=True))
        )
    return type(existing) is type(expected) and bool(existing == expected)


def _loaded(text: str | None) -> dict[str, Any]:
    """Return a JSON object, an empty one for a text that is none: it is made again."""
    try:
        return parsed(text or "")
    except CorruptManifestError:
        return {}


def parsed(text: str) -> dict[str, Any]:
    """Return the JSON object that a schema file's text is.

    Raises:
        CorruptManifestError: it is none.
    """
    try:
        document = json.loads(text)
    except json.JSONDecodeError as error:
        raise CorruptManifestError("A schema file is not JSON", found=str(error)) from error
    if not isinstance(document, dict):
        raise CorruptManifestError(
            "A schema file is not a JSON object", found=type(document).__name__
        )
    return document


def _pretty(document: Mapping[str, Any]) -> str:
    return json.dumps(document, ensure_ascii=False, indent=2)
