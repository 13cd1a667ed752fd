"""What rides on the fields of Spark schemas, as JSON texts in their metadata.

`omnigraph.type`: the stored type and the engine's rules of a column.
`omnigraph.read`: which version a frame was read from (fact 39). `omnigraph.table`: the binding of
a catalog table (fact 1). `omnigraph.pack`, on `_table`: the tables of a whole-graph frame.
`omnigraph.required`: a person said NOT NULL of a column, where Spark only infers it. All is used on
the driver. None of it may hold a secret: Spark stores and shows field metadata.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, TypeVar

import pyarrow as pa
from pyspark.sql.types import StructField, StructType

from omnigraph_spark.errors import OptionError, UnsupportedError
from omnigraph_spark.schema import property_types
from omnigraph_spark.schema.property_types import EngineType
from omnigraph_spark.storage.layout import fnv1a64

TYPE = "omnigraph.type"
READ = "omnigraph.read"
TABLE = "omnigraph.table"
PACK = "omnigraph.pack"
REQUIRED = "omnigraph.required"
VARCHAR = "__CHAR_VARCHAR_TYPE_STRING"
_MARK_FLOOR = 1 << 30
_MARK_RANGE = 1 << 29
_T = TypeVar("_T")


@dataclass(frozen=True)
class CarriedType:
    """The stored type of a column: Arrow's text for people, the engine's type and key for writing.

    `width` is that of a fixed-size list which isn't a Vector; `engine` is None where it has none.
    """

    arrow: str
    nullable: bool
    engine: EngineType | None = None
    key: bool = False
    width: int | None = None

    def to_text(self) -> str:
        """Return the JSON that goes under `omnigraph.type`."""
        plain: dict[str, Any] = {"arrow": self.arrow, "nullable": self.nullable}
        if self.engine is not None:
            plain["type"] = self.engine.text().removesuffix("?")
            if self.engine.enum_values is not None:
                plain["enum"] = list(self.engine.enum_values)
        if self.key:
            plain["key"] = True
        if self.width is not None:
            plain["width"] = self.width
        return json.dumps(plain, ensure_ascii=False)


def carried(field: pa.Field, engine: EngineType | None = None, key: bool = False) -> CarriedType:
    """Return what a stored column's field carries; `engine` is what the schema files say of it."""
    arrow = field.type
    known = engine or property_types.of_field(field)
    width = arrow.list_size if known is None and pa.types.is_fixed_size_list(arrow) else None
    nullable = bool(field.nullable)
    return CarriedType(str(arrow), nullable, known, key, width)


def carried_type(field: StructField) -> CarriedType | None:
    """Return the stored type that a frame's column carries, None where that is lost or unreadable.

    The column may have been cast or changed since: whoever uses it checks that it still fits.
    """
    plain = _loads(field.metadata.get(TYPE), dict)
    if plain is None:
        return None
    nullable = bool(plain.get("nullable", True))
    engine = None
    if "type" in plain:
        try:
            engine = property_types.parse(f"{plain['type']}{'?' if nullable else ''}")
        except OptionError:  # written by another version of this package: as good as lost
            return None
    width = plain.get("width")
    return CarriedType(
        str(plain.get("arrow", "")),
        nullable,
        engine,
        plain.get("key") is True,
        width if isinstance(width, int) and width > 0 else None,
    )


@dataclass(frozen=True)
class ReadMark:
    """Which snapshot a column was read from; `table_version` is 0 for whole-graph frames.

    `frame` is the name of the load: two loads of one version are two frames.
    """

    graph: str
    branch: str
    version: int
    table_key: str | None = None
    table_version: int = 0
    frame: str = ""

    def to_json(self) -> dict[str, Any]:
        """Return plain data for a JSON text."""
        return asdict(self)


def marks_text(marks: Sequence[ReadMark]) -> str:
    """Return the JSON that goes under `omnigraph.read`: one mark, or the list that `pack` makes."""
    plain = [mark.to_json() for mark in marks]
    return json.dumps(plain[0] if len(plain) == 1 else plain, ensure_ascii=False)


def with_read(schema: StructType, mark: ReadMark) -> StructType:
    """Return `schema` with the read version on every field."""
    text = marks_text([mark])
    return StructType([_with(field, {READ: text}) for field in schema.fields])


def read_marks(schema: StructType) -> list[ReadMark]:
    """Return the different read versions that a frame's fields name, in field order."""
    marks: dict[ReadMark, None] = {}
    for field in schema.fields:
        text = field.metadata.get(READ)
        listed = _loads(text, list)
        for plain in [_loads(text, dict)] if listed is None else listed:
            mark = _mark(plain)
            if mark is not None:
                marks[mark] = None
    return list(marks)


def _mark(plain: object) -> ReadMark | None:
    """Return a mark, None for what some other writer put there."""
    if not isinstance(plain, dict) or not isinstance(plain.get("version"), int):
        return None
    key = plain.get("table_key")
    return ReadMark(
        str(plain.get("graph")),
        str(plain.get("branch")),
        plain["version"],
        key if isinstance(key, str) else None,
        table_version if isinstance(table_version := plain.get("table_version"), int) else 0,
        str(plain.get("frame") or ""),
    )


def bind(schema: StructType, options: Mapping[str, str]) -> StructType:
    """Return the schema of a catalog table, with the options on every field (fact 1).

    `id` also gets a VARCHAR mark that differs between bindings: Spark then always projects into the
    table's own types, so that its binding reaches the writer and not the query's. `options` must
    hold no secret: the caller refuses those before.
    """
    text = json.dumps(dict(sorted(options.items())), ensure_ascii=False)
    mark = _MARK_FLOOR + int(fnv1a64(text), 16) % _MARK_RANGE
    fields = []
    for at, field in enumerate(schema.fields):
        binding = {"options": dict(options), "at": at, "of": len(schema.fields)}
        extra = {TABLE: json.dumps(binding, ensure_ascii=False, sort_keys=True)}
        if field.name == "id":
            extra[VARCHAR] = f"varchar({mark})"
        fields.append(_with(field, extra))
    return StructType(fields)


def bound_options(schema: StructType) -> dict[str, str] | None:
    """Return the options of the catalog table that a scan reads, None where nothing is bound.

    For `reader()` alone: a reader may take any field's binding, a writer may not.
    """
    for field in schema.fields:
        plain = _loads(field.metadata.get(TABLE), dict)
        if plain is not None:
            return _options(plain)
    return None


def bound_options_for_write(schema: StructType) -> dict[str, str] | None:
    """Return the options of the catalog table that an INSERT goes to, None where nothing is bound.

    A binding counts only if every field carries the same one, complete and in order: a
    frame that was derived from a bound table and is written elsewhere carries pieces of it.

    Raises:
        UnsupportedError: the VARCHAR mark is still there: CREATE TABLE AS SELECT, `saveAsTable`, or
            an INSERT of the table into itself, which Spark doesn't let us tell apart.
    """
    places = [_loads(field.metadata.get(TABLE), dict) for field in schema.fields]
    if any(_is_marked(field) for field in schema.fields):
        raise UnsupportedError(
            "This write would take its target from the table that it reads",
            expected="INSERT INTO from another query, or .save(path)",
            found="CREATE TABLE AS SELECT, saveAsTable, or an INSERT of a table into itself",
            hint="Write SELECT CAST(id AS STRING) AS id, … instead of SELECT *, or use .save(path)",
        )
    whole: list[dict[str, Any]] = [binding for binding in places if binding is not None]
    if not whole or len(whole) != len(places):
        return None
    count = len(places)
    same = all(
        binding.get("at") == at
        and binding.get("of") == count
        and _options(binding) == _options(whole[0])
        for at, binding in enumerate(whole)
    )
    return _options(whole[0]) if same else None


def _is_marked(field: StructField) -> bool:
    text = str(field.metadata.get(VARCHAR, ""))
    number = text.removeprefix("varchar(").removesuffix(")")
    return TABLE in field.metadata and number.isdigit() and int(number) >= _MARK_FLOOR


def _options(binding: Mapping[str, Any]) -> dict[str, str]:
    options = binding.get("options")
    return {str(k): str(v) for k, v in options.items()} if isinstance(options, dict) else {}


def _with(field: StructField, extra: Mapping[str, str]) -> StructField:
    return StructField(field.name, field.dataType, field.nullable, {**field.metadata, **extra})


def _loads(text: object, kind: type[_T]) -> _T | None:
    """Return the JSON of that kind in a metadata text, None for anything else: users set it too."""
    if not isinstance(text, str):
        return None
    try:
        plain = json.loads(text)
    except ValueError:
        return None
    return plain if isinstance(plain, kind) else None


def required(schema: StructType) -> StructType:
    """Return a schema in which every column that is NOT NULL is so because a person said it."""
    return StructType(
        [
            f
            if f.nullable
            else StructField(f.name, f.dataType, False, {**f.metadata, REQUIRED: "1"})
            for f in schema.fields
        ]
    )
