"""The JSON files of the newer engines: `_schema.ir.json` version 2, `__schema_state.json` format 2.

Pure functions over text (docs/internals/format.md, "Newer stamps"). Every type, property and table
has an id there, from one counter per graph that never goes back; the folder of a table is named by
two of them. So ids are taken over from the file that is there, by kind and name or as `renamed`
says, and only what is new gets new ones, in the engine's order: types (interfaces, nodes, edges, by
name), then properties (by their type's id and their name), then tables (by their type's id).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from omnigraph_spark.errors import CorruptManifestError, UnsupportedError
from omnigraph_spark.schema import shape
from omnigraph_spark.schema.ir import parsed
from omnigraph_spark.schema.model import EngineSchema
from omnigraph_spark.schema.shape import Json, digest, pretty
from omnigraph_spark.storage import layout
from omnigraph_spark.storage.layout import Identity

IR_VERSION = 2
STATE_VERSION = 2
IDENTITY_VERSION = 2
INTERFACE = "interface"
_SECTIONS = {INTERFACE: "interfaces", layout.NODE: "nodes", layout.EDGE: "edges"}
_SYSTEM = {layout.NODE: ("id",), layout.EDGE: ("id", "src", "dst")}


@dataclass(frozen=True)
class Renamed:
    """What has another name than before: new table key to old type name, (table key, new) to old.

    Property renames are looked up under the type's new table key.
    """

    types: Mapping[str, str] = field(default_factory=dict)
    properties: Mapping[tuple[str, str], str] = field(default_factory=dict)


def new_ir(schema: EngineSchema, domain: str) -> str:
    """Return the text of `_schema.ir.json` of a new graph; `domain` is a ULID of its own."""
    return pretty(_Resolved(schema, None, domain, Renamed()).document())


def changed_ir(schema: EngineSchema, accepted: str, renamed: Renamed | None = None) -> str:
    """Return the text of `_schema.ir.json` for a changed schema; `accepted` is what is there now.

    Raises:
        CorruptManifestError, UnsupportedError: `accepted` is not an IR of version 2.
        CorruptManifestError: something is renamed from what isn't there.
    """
    old = document(accepted)
    domain = old["schema_identity_domain"]
    return pretty(_Resolved(schema, old, domain, renamed or Renamed()).document())


def state_json(ir_text: str) -> str:
    """Return the text of `__schema_state.json` that belongs to the text of an IR.

    Raises:
        CorruptManifestError, UnsupportedError: it is not an IR of version 2.
    """
    ir = document(ir_text)
    return pretty(
        {
            "format_version": STATE_VERSION,
            "schema_shape_hash": digest(shape.of_ir(ir)),
            "schema_ir_hash": digest(ir),
            "schema_identity_version": IDENTITY_VERSION,
            "schema_identity_domain": ir["schema_identity_domain"],
        }
    )


def document(ir_text: str) -> Json:
    """Return the JSON of an IR of version 2.

    Raises:
        CorruptManifestError: it is malformed.
        UnsupportedError: it has another version.
    """
    ir = parsed(ir_text)
    version = ir.get("ir_version")
    if version != IR_VERSION:
        raise UnsupportedError(
            f"{layout.SCHEMA_IR} is of another engine",
            expected=f"version {IR_VERSION}",
            found=f"version {version}",
            hint="Nothing was changed",
        )
    try:
        shape.of_ir(ir)
        ids = _ids(ir)
        sound = isinstance(ir["schema_identity_domain"], str) and len(set(ids)) == len(ids)
        sound = sound and all(0 < number < ir["next_identity_id"] for number in ids)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise _malformed(f"{type(error).__name__}: {error}") from error
    if not sound:
        raise _malformed("an id that is doubled, 0, or not below next_identity_id")
    return ir


def disagreement(pg: EngineSchema, ir_text: str, state_text: str) -> str | None:
    """Return what of the three schema files contradicts the others, None if nothing does.

    Raises:
        CorruptManifestError, UnsupportedError: the IR is not one of version 2.
    """
    state = parsed(state_text)
    expected = parsed(state_json(ir_text))
    for key, value in expected.items():
        if state.get(key) != value:
            return f"{layout.SCHEMA_STATE}: {key} is {state.get(key)!r}, not {value!r}"
    if digest(shape.of_schema(pg)) != expected["schema_shape_hash"]:
        return f"{layout.SCHEMA_PG} holds another shape than {layout.SCHEMA_IR}"
    return None


def table_ids(ir: Mapping[str, Any]) -> dict[str, Identity]:
    """Return the ids of the tables of an IR (`document`), by table key."""
    return {
        layout.table_key(kind, entry["name"]): Identity(
            entry["type_id"], entry["table_incarnation_id"]
        )
        for kind in (layout.NODE, layout.EDGE)
        for entry in ir[_SECTIONS[kind]]
    }


def _ids(ir: Mapping[str, Any]) -> list[int]:
    ids = []
    for section in _SECTIONS.values():
        for entry in ir[section]:
            ids.append(entry["type_id"])
            if section != _SECTIONS[INTERFACE]:
                ids.append(entry["table_incarnation_id"])
            ids += [p["property_id"] for p in entry["properties"]]
    return ids


def _malformed(problem: str) -> CorruptManifestError:
    return CorruptManifestError(
        f"{layout.SCHEMA_IR} is malformed",
        expected=f"the engine's IR, version {IR_VERSION}",
        found=problem,
        hint="Bring it back from a copy of the graph; its ids can't be made again",
    )


class _Resolved:
    """The ids of a schema's types, properties and tables, and the IR that they make."""

    def __init__(
        self, schema: EngineSchema, accepted: Json | None, domain: str, renamed: Renamed
    ) -> None:
        self._shape = shape.of_schema(schema)
        self._domain = domain
        self._next: int = 1 if accepted is None else accepted["next_identity_id"]
        self._types: dict[tuple[str, str], int] = {}
        self._properties: dict[tuple[int, str], int] = {}
        self._incarnations: dict[tuple[str, str], int] = {}
        # A hint in the text of a new graph says nothing: there is nothing that it could name.
        entries = {} if accepted is None else _accepted(accepted)
        self._hints = renamed if accepted is None else _with_hints(schema, renamed)
        self._owners = {
            (kind, entry["name"]): self._match_type(entries, kind, entry["name"])
            for kind, section in _SECTIONS.items()
            for entry in self._shape[section]
        }
        self._number_types()
        self._number_properties()
        self._number_tables()

    def document(self) -> Json:
        """Return the IR as JSON, keys in the engine's order."""
        return {
            "ir_version": IR_VERSION,
            "schema_identity_domain": self._domain,
            "next_identity_id": self._next,
            "interfaces": [self._interface(interface) for interface in self._shape["interfaces"]],
            "nodes": [self._node(node) for node in self._shape["nodes"]],
            "edges": [self._edge(edge) for edge in self._shape["edges"]],
        }

    # --- ids -----------------------------------------------------------------------------------

    def _match_type(
        self, entries: Mapping[tuple[str, str], Json], kind: str, name: str
    ) -> Json | None:
        entry = entries.get((kind, name))
        old = self._hints.types.get(f"{kind}:{name}")
        if entry is None and old is not None:
            entry = entries.get((kind, old))
            if entry is None:
                raise _malformed(f"{kind}:{name} is renamed from {old}, which isn't there")
        return entry

    def _number_types(self) -> None:
        for key, old in self._owners.items():
            self._types[key] = self._new() if old is None else old["type_id"]

    def _number_properties(self) -> None:
        new = []
        for (kind, owner), old in self._owners.items():
            old_ids = (
                {} if old is None else {p["name"]: p["property_id"] for p in old["properties"]}
            )
            type_id = self._types[kind, owner]
            for name in self._names(kind, owner):
                before = self._hints.properties.get((f"{kind}:{owner}", name), name)
                property_id = old_ids.get(name, old_ids.get(before))
                if property_id is None:
                    new.append((type_id, name))
                else:
                    self._properties[type_id, name] = property_id
        for key in sorted(new):
            self._properties[key] = self._new()

    def _number_tables(self) -> None:
        new = []
        for key, old in self._owners.items():
            if key[0] == INTERFACE:
                continue
            if old is None:
                new.append(key)
            else:
                self._incarnations[key] = old["table_incarnation_id"]
        for key in sorted(new, key=lambda owner: self._types[owner]):
            self._incarnations[key] = self._new()

    def _names(self, kind: str, owner: str) -> list[str]:
        entry = next(
            candidate for candidate in self._shape[_SECTIONS[kind]] if candidate["name"] == owner
        )
        return [p["name"] for p in entry["properties"]]

    def _new(self) -> int:
        number = self._next
        self._next += 1
        return number

    # --- entries -------------------------------------------------------------------------------

    def _interface(self, interface: Json) -> Json:
        type_id = self._types[INTERFACE, interface["name"]]
        return {
            "name": interface["name"],
            "type_id": type_id,
            "properties": [
                self._property(type_id, interface["name"], p) for p in interface["properties"]
            ],
        }

    def _node(self, node: Json) -> Json:
        key = (layout.NODE, node["name"])
        type_id = self._types[key]
        refs = [self._type_ref(INTERFACE, name) for name in node["implements"]]
        return {
            "name": node["name"],
            "type_id": type_id,
            "table_incarnation_id": self._incarnations[key],
            "annotations": node["annotations"],
            "implements": sorted(refs, key=lambda ref: (ref["type_id"], ref["type_name"])),
            "properties": [self._property(type_id, node["name"], p) for p in node["properties"]],
            "constraints": [self._constraint(key, rule) for rule in node["constraints"]],
        }

    def _edge(self, edge: Json) -> Json:
        key = (layout.EDGE, edge["name"])
        type_id = self._types[key]
        return {
            "name": edge["name"],
            "type_id": type_id,
            "table_incarnation_id": self._incarnations[key],
            "from_type": self._type_ref(layout.NODE, edge["from_type"]),
            "to_type": self._type_ref(layout.NODE, edge["to_type"]),
            "cardinality": edge["cardinality"],
            "annotations": edge["annotations"],
            "properties": [self._property(type_id, edge["name"], p) for p in edge["properties"]],
            "constraints": [self._constraint(key, rule) for rule in edge["constraints"]],
        }

    def _property(self, type_id: int, owner: str, prop: Json) -> Json:
        embed = prop["embed_source"]
        refs = [
            self._property_ref(
                self._types[INTERFACE, ref["owner_name"]], ref["owner_name"], ref["property_name"]
            )
            for ref in prop["satisfies_interface_properties"]
        ]
        return {
            "name": prop["name"],
            "property_id": self._properties[type_id, prop["name"]],
            "prop_type": prop["prop_type"],
            "annotations": prop["annotations"],
            "property_constraints": prop["property_constraints"],
            "embed_source": None
            if embed is None
            else {
                "source": self._property_ref(type_id, owner, embed["property_name"]),
                "model": embed["model"],
            },
            "declared_directly": prop["declared_directly"],
            "satisfies_interface_properties": sorted(refs, key=lambda ref: tuple(ref.values())),
        }

    def _type_ref(self, kind: str, name: str) -> Json:
        type_id = self._types.get((kind, name))
        if type_id is None:
            raise CorruptManifestError(
                f"{layout.SCHEMA_PG} names {kind} {name}, which it doesn't declare"
            )
        return {"type_id": type_id, "type_name": name}

    def _property_ref(self, type_id: int, owner: str, name: str) -> Json:
        property_id = self._properties.get((type_id, name))
        if property_id is None:
            raise CorruptManifestError(
                f"{layout.SCHEMA_PG} names the property {name} of {owner}, which has none such"
            )
        return {
            "owner_type_id": type_id,
            "owner_type_name": owner,
            "property_id": property_id,
            "property_name": name,
        }

    def _constraint(self, owner: tuple[str, str], rule: Json) -> Json:
        ((kind, value),) = rule.items()
        if kind == "Range":
            bounds = {"min": value["min"], "max": value["max"]}
            return {"kind": "range", "field": self._field(owner, value["property"]), **bounds}
        if kind == "Check":
            named = self._field(owner, value["property"])
            return {"kind": "check", "field": named, "pattern": value["pattern"]}
        return {"kind": kind.lower(), "fields": [self._field(owner, name) for name in value]}

    def _field(self, owner: tuple[str, str], name: str) -> Json:
        kind, type_name = owner
        if name in _SYSTEM[kind]:
            return {
                "kind": "system",
                "stable_table_id": self._types[owner],
                "table_type_name": type_name,
                "table_incarnation_id": self._incarnations[owner],
                "role": name,
            }
        return {"kind": "property"} | self._property_ref(self._types[owner], type_name, name)


def _accepted(ir: Json) -> dict[tuple[str, str], Json]:
    return {(kind, entry["name"]): entry for kind, name in _SECTIONS.items() for entry in ir[name]}


def _with_hints(schema: EngineSchema, renamed: Renamed) -> Renamed:
    """Return what is renamed with what the text's `@rename_from` say; the caller's word counts."""
    types, properties = {}, {}
    for engine_type in schema.types():
        for mark in engine_type.annotations:
            if mark.name == "rename_from" and mark.value is not None:
                types[engine_type.table_key] = mark.value
        for p in engine_type.properties:
            for mark in p.annotations:
                if mark.name == "rename_from" and mark.value is not None:
                    properties[engine_type.table_key, p.name] = mark.value
    return Renamed({**types, **renamed.types}, {**properties, **renamed.properties})
