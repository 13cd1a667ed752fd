"""The engine's schema files: `_schema.pg`, `_schema.ir.json`, `__schema_state.json`."""

from omnigraph_spark.schema.files import (
    add_types,
    agree,
    can_agree,
    change,
    damage,
    merged,
    read,
    read_for_writing,
    read_if_sound,
    read_ir,
    repair,
    types_to_add,
)
from omnigraph_spark.schema.ir import ir_json, state_json
from omnigraph_spark.schema.model import EdgeType, EngineSchema, NodeType, Property, of_arrow
from omnigraph_spark.schema.pg import parse_pg, render_pg

__all__ = [
    "EdgeType",
    "EngineSchema",
    "NodeType",
    "Property",
    "add_types",
    "agree",
    "can_agree",
    "change",
    "damage",
    "ir_json",
    "merged",
    "of_arrow",
    "parse_pg",
    "read",
    "read_for_writing",
    "read_if_sound",
    "read_ir",
    "render_pg",
    "repair",
    "state_json",
    "types_to_add",
]
