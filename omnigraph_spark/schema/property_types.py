"""The engine's property types, as text and as Arrow types (format.md, "Tables").

One vocabulary for `_schema.pg`, the `types` option and the types that ride in field metadata:
`String`, `I32?`, `[String]`, `Vector(4)`, `enum(draft, active)`. Pure functions without Spark;
Lance is imported only where a blob column is built.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from omnigraph_spark.errors import OptionError, SchemaMismatchError, did_you_mean

BLOB_EXTENSION = "lance.blob.v2"
_EXTENSION_KEY = b"ARROW:extension:name"
_OLD_BLOB_KEY = b"lance-encoding:blob"

_PLAIN: Mapping[str, pa.DataType] = {
    "String": pa.utf8(),
    "Bool": pa.bool_(),
    "I32": pa.int32(),
    "I64": pa.int64(),
    "U32": pa.uint32(),
    "U64": pa.uint64(),
    "F32": pa.float32(),
    "F64": pa.float64(),
    "Date": pa.date32(),
    "DateTime": pa.date64(),
}
_BY_ARROW = {arrow: name for name, arrow in _PLAIN.items()}
_VECTOR = re.compile(r"Vector\s*\(\s*([1-9][0-9]{0,8})\s*\)\Z")
_ENUM = re.compile(r"enum\s*\((.*)\)\Z", re.DOTALL)
_ENUM_VALUE = re.compile(r"[^\s,()\"'{}\[\]]+\Z")
_NAME = re.compile(r"[a-z_][A-Za-z0-9_]*\Z")


@dataclass(frozen=True)
class EngineType:
    """A property's type: `scalar` is `String`, …, `Vector(n)`; an enum is a String with values.

    `nullable` is the property's; elements of a list may always be null in Arrow.
    """

    scalar: str
    list: bool = False
    nullable: bool = True
    enum_values: tuple[str, ...] | None = None

    def text(self) -> str:
        """Return the type as `_schema.pg` spells it, such as `[String]?`."""
        scalar = self.scalar
        if self.enum_values is not None:
            scalar = f"enum({', '.join(self.enum_values)})"
        return (f"[{scalar}]" if self.list else scalar) + ("?" if self.nullable else "")

    def vector_width(self) -> int | None:
        """Return n of `Vector(n)`, else None."""
        match = _VECTOR.match(self.scalar)
        return int(match.group(1)) if match else None

    def to_json(self) -> dict[str, Any]:
        """Return plain data for a JSON text; `from_json` reads it."""
        plain: dict[str, Any] = {"type": self.text().removesuffix("?"), "nullable": self.nullable}
        return plain


def from_json(plain: Mapping[str, Any]) -> EngineType:
    """Return the type that `EngineType.to_json` wrote.

    Raises:
        OptionError: it holds no valid type.
    """
    return parse(f"{plain.get('type')}{'?' if plain.get('nullable', True) else ''}")


def parse(text: str) -> EngineType:
    """Return the type that a text such as `Vector(4)?`, `[I64]` or `enum(a, b)` names.

    Raises:
        OptionError: `text` names no type of the engine.
    """
    body = text.strip()
    nullable = body.endswith("?")
    body = body.removesuffix("?").strip()
    as_list = body.startswith("[") and body.endswith("]")
    if as_list:
        body = body[1:-1].strip()
    scalar, values = _scalar(body, text)
    return EngineType(scalar, as_list, nullable, values)


def _scalar(body: str, text: str) -> tuple[str, tuple[str, ...] | None]:
    vector = _VECTOR.match(body)
    if vector:
        return f"Vector({int(vector.group(1))})", None
    enum = _ENUM.match(body)
    if enum:
        values = tuple(value.strip() for value in enum.group(1).split(","))
        if all(_ENUM_VALUE.match(value) for value in values) and len(set(values)) == len(values):
            return "String", values
    elif body in _PLAIN or body == "Blob":
        return body, None
    raise OptionError(
        f"{text!r} is not a property type",
        expected=f"{', '.join(_PLAIN)}, Blob, Vector(n), enum(a, b) or [T]; then ? for nullable",
        hint=did_you_mean(body, [*_PLAIN, "Blob"]),
    )


def to_arrow(engine_type: EngineType) -> pa.DataType:
    """Return the Arrow type that the engine stores a property as (format.md, "Tables").

    Raises:
        SchemaMismatchError: a list of blobs, which no table can hold.
    """
    width = engine_type.vector_width()
    if engine_type.scalar == "Blob":
        if engine_type.list:
            raise SchemaMismatchError(
                "A list of blobs can't be stored", expected="Blob or [String]"
            )
        return blob_type()
    arrow_type = _PLAIN[engine_type.scalar] if width is None else pa.list_(pa.float32(), width)
    return pa.list_(arrow_type) if engine_type.list else arrow_type


def arrow_field(name: str, engine_type: EngineType) -> pa.Field:
    """Return the Arrow field of a property in a table's dataset."""
    return pa.field(name, to_arrow(engine_type), nullable=engine_type.nullable)


def of_field(field: pa.Field) -> EngineType | None:
    """Return the engine's type of a stored column, or None where the engine has none for it.

    An enum can't be distinguished from a String here: its values are in the schema files only.
    """
    if is_blob(field):
        return EngineType("Blob", nullable=field.nullable)
    arrow_type, as_list = field.type, pa.types.is_list(field.type)
    if as_list:
        arrow_type = field.type.value_type
    scalar = _BY_ARROW.get(arrow_type) or _vector_text(arrow_type)
    return None if scalar is None else EngineType(scalar, as_list, field.nullable)


def _vector_text(arrow: pa.DataType) -> str | None:
    if pa.types.is_fixed_size_list(arrow) and arrow.value_type == pa.float32():
        return f"Vector({arrow.list_size})"
    return None


def can_name(name: str) -> bool:
    """Return whether `_schema.pg` can spell a property's name (others the engine never sees)."""
    return bool(_NAME.match(name))


def is_blob(field: pa.Field) -> bool:
    """Return whether a stored column is one of Lance's blobs, of the present or the older kind.

    The extension is seen as such only once Lance is imported; before, its name is in the metadata.
    """
    if isinstance(field.type, pa.BaseExtensionType):
        return bool(field.type.extension_name == BLOB_EXTENSION)
    metadata = field.metadata or {}
    return (
        metadata.get(_EXTENSION_KEY) == BLOB_EXTENSION.encode()
        or metadata.get(_OLD_BLOB_KEY) == b"true"
    )


def blob_type(storage: pa.DataType | None = None) -> pa.DataType:
    """Return the Arrow type of a blob column, by default as the engine creates it (data, uri)."""
    from lance.blob import BlobType

    if storage is None:
        storage = pa.struct([pa.field("data", pa.large_binary()), pa.field("uri", pa.utf8())])
    return BlobType.__arrow_ext_deserialize__(storage, b"")
