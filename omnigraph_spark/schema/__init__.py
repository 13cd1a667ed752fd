"""The engine's schema files: `_schema.pg`, `_schema.ir.json`, `__schema_state.json`."""

from omnigraph_spark.schema.files import (
    add_types,
    agree,
    change,
    read,
    read_if_sound,
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
    "change",
    "ir_json",
    "of_arrow",
    "parse_pg",
    "read",
    "read_if_sound",
    "render_pg",
    "repair",
    "state_json",
    "types_to_add",
]
