"""Whole-graph frames: one wide frame of all tables.

`_table`, `id`, `src`, `dst`, then the union of all properties, as the tables have them in turn.
Where tables disagree on a property's type, each type gets a column `{property}__{type}`; so does a
node's property that is named like one of the frame's own columns (`src`, `dst`). The tables'
definitions ride as JSON in the metadata of `_table`, so that a frame can be written to a graph that
doesn't have them yet. Everything here runs on the driver and touches no storage; rows are handled
in `frame_batches`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.types import DataType, StringType, StructField, StructType

from omnigraph_spark import options
from omnigraph_spark.arrow.cast import can_store
from omnigraph_spark.arrow.frame_batches import TABLE
from omnigraph_spark.arrow.to_table import check_type
from omnigraph_spark.errors import OptionError, SchemaMismatchError
from omnigraph_spark.spark import field_metadata
from omnigraph_spark.spark.spark_types import arrow_type, relaxed, same_type
from omnigraph_spark.storage import layout

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_ENDPOINTS = ("src", "dst")
_OTHER = re.compile(r"[^A-Za-z0-9]+")
_EXAMPLE = "omnigraph_spark.pack({'node:Person': people, 'edge:Knows': knows})"

_FRAMES = "DataFrames by table: {'node:Person': people, 'edge:Knows': knows}"

Endpoints = Mapping[str, tuple[str, str]]


@dataclass(frozen=True)
class Definitions:
    """The tables of a whole-graph frame: columns, endpoints of edge types, keys of node types.

    `endpoints` and `keys` are by type name (`Knows`, `Person`), `tables` by table key. `named` says
    that a person listed the tables for this write (`pack`), and `empty` are those that had no rows
    when the frame was read: a frame that was read may have been filtered since.
    """

    tables: Mapping[str, StructType]
    endpoints: Endpoints
    keys: Mapping[str, str]
    named: bool = False
    empty: frozenset[str] = frozenset()

    def to_text(self) -> str:
        """Return the JSON that goes under `omnigraph.pack`."""
        return json.dumps(
            {
                "tables": {key: _columns_json(table) for key, table in self.tables.items()},
                "endpoints": {edge: list(ends) for edge, ends in self.endpoints.items()},
                "keys": dict(self.keys),
                "named": self.named,
                "empty": sorted(self.empty),
            },
            ensure_ascii=False,
            separators=(",", ":"),
        )


def _columns_json(table: StructType) -> list[list[Any]]:
    return [
        [f.name, f.dataType.jsonValue(), f.nullable, f.metadata.get(field_metadata.TYPE)]
        for f in table.fields
    ]


def definitions(schema: StructType) -> Definitions | None:
    """Return what `_table` carries of the frame's tables, None where the metadata was lost.

    Raises:
        SchemaMismatchError: the metadata is there and can't be read.
    """
    text = next(
        (f.metadata.get(field_metadata.PACK) for f in schema.fields if f.name == TABLE), None
    )
    if not text:
        return None
    try:
        plain = json.loads(text)
        tables = {key: _table_of(columns) for key, columns in plain["tables"].items()}
        ends = {edge: (str(s), str(t)) for edge, (s, t) in plain["endpoints"].items()}
        return Definitions(
            tables,
            ends,
            {str(k): str(v) for k, v in plain["keys"].items()},
            plain.get("named") is True,
            frozenset(str(key) for key in plain.get("empty", ())),
        )
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise SchemaMismatchError(
            f"The definitions in the metadata of {TABLE} can't be read",
            expected=f"what {_EXAMPLE} leaves there",
            found=type(error).__name__,
            hint="Build the frame again with pack",
        ) from error


def _table_of(columns: Sequence[Sequence[Any]]) -> StructType:
    fields = [
        {
            "name": name,
            "type": json_type,
            "nullable": nullable,
            "metadata": {field_metadata.TYPE: text} if text else {},
        }
        for name, json_type, nullable, text in columns
    ]
    return StructType.fromJson({"type": "struct", "fields": fields})


# --- the wide schema -----------------------------------------------------------------------------


def whole_graph_schema(
    tables: Mapping[str, StructType],
    endpoints: Endpoints | None = None,
    keys: Mapping[str, str] | None = None,
    *,
    named: bool = False,
    empty: Iterable[str] = (),
    alone: bool = False,
) -> StructType:
    """Return the schema of the whole-graph frame over `tables`, definitions included.

    `tables` are table frames' schemas by table key (`spark_field`s); a key that a column carries in
    its metadata needs no mention in `keys`. `named` and `empty` are those of `Definitions`.
    `alone`: the frame is of one table by name, whose properties keep their names.

    Raises:
        SchemaMismatchError: a property that has the very name of a `{property}__{type}` column; the
            message names table and column.
    """
    columns = _property_columns(tables, alone)
    ordered = {key: tables[key] for key in sorted(tables)}
    known = Definitions(
        ordered,
        endpoints or {},
        {**_carried_keys(tables), **(keys or {})},
        named,
        frozenset(empty),
    )
    table = StructField(TABLE, StringType(), False, {field_metadata.PACK: known.to_text()})
    sides = [name for name in _ENDPOINTS if name not in columns]
    fixed = [StructField(name, StringType(), True) for name in ("id", *sides)]
    wide = [StructField(name, kind, True) for name, kind in columns.items()]
    return StructType([table, *fixed, *wide])


def _carried_keys(tables: Mapping[str, StructType]) -> dict[str, str]:
    keys = {}
    for table_key, table in tables.items():
        kind, name = layout.split_table_key(table_key)
        marked = [f.name for f in table.fields if (c := field_metadata.carried_type(f)) and c.key]
        if kind == layout.NODE and len(marked) == 1:
            keys[name] = marked[0]
    return keys


def _property_columns(tables: Mapping[str, StructType], alone: bool) -> dict[str, DataType]:
    """Return {column: type} of all properties: the property's name, or one column per type.

    In the order of the tables' columns: node tables first, each by its key.
    """
    types: dict[str, dict[str, DataType]] = {}
    where: dict[str, str] = {}
    taken: set[str] = set()
    for key in sorted(tables, key=lambda key: (layout.is_edge(key), key)):
        for field in properties(tables[key], key):
            kind = relaxed(field.dataType)
            by_text = types.setdefault(field.name, {})
            where.setdefault(field.name, key)
            if _is_taken(field.name, key, alone):
                taken.add(field.name)
            if by_text.setdefault(type_text(kind), kind) != kind:
                raise _clash(key, field.name, suffixed(field))
    columns: dict[str, DataType] = {}
    for name, by_text in types.items():
        if len(by_text) == 1 and name not in taken:
            columns[name] = next(iter(by_text.values()))
            continue
        for text, kind in by_text.items():
            column = f"{name}__{text}"
            if column in types or column in columns:
                raise _clash(where.get(column, where[name]), column, column)
            columns[column] = kind
    return columns


def properties(table: StructType, table_key: str) -> list[StructField]:
    """Return the fields of a table frame that are properties."""
    sides = _ENDPOINTS if layout.is_edge(table_key) else ()
    return [field for field in table.fields if field.name not in ("id", *sides)]


def _is_taken(name: str, table_key: str, alone: bool) -> bool:
    """Return whether a whole-graph frame has a column of its own with a property's name."""
    return name == TABLE or (name in _ENDPOINTS and not alone and not layout.is_edge(table_key))


def type_text(spark: DataType) -> str:
    """Return a type as it stands in a column's name: `int`, `decimal_20_0`, `array_string`."""
    return _OTHER.sub("_", spark.simpleString()).strip("_")


def suffixed(field: StructField) -> str:
    """Return the name of a property's column where tables disagree on its type."""
    return f"{field.name}__{type_text(relaxed(field.dataType))}"


def _clash(table_key: str, name: str, column: str) -> SchemaMismatchError:
    return SchemaMismatchError(
        f"Property {name} of {table_key} and the column {column} that stands for one of several "
        "types of a property would have one name in the whole-graph frame",
        expected="properties whose names differ from {property}__{type}",
        found=name,
        hint="Read the tables one by one: .option('table', …)",
        table_key=table_key,
        column=name,
    )


def ownership(
    schema: StructType, tables: Mapping[str, StructType], *, alone: bool = False
) -> dict[str, dict[str, str]]:
    """Return, per table, which column of a whole-graph frame feeds (or shows) which of its columns.

    A column `{property}__{type}` belongs to the tables whose property has that type, a column with
    the property's own name to the others whose type it can be cast to. `_table` belongs to none.
    """
    given = {field.name: field for field in schema.fields if field.name != TABLE}
    return {key: _owned_columns(given, key, table, alone) for key, table in tables.items()}


def _owned_columns(
    given: Mapping[str, StructField], table_key: str, table: StructType, alone: bool
) -> dict[str, str]:
    own = set(table.names)
    ours = {field.name for field in properties(table, table_key)}
    owned = {}
    for field in table.fields:
        special = suffixed(field)
        if field.name in ours and special in given and special not in own:
            owned[special] = field.name
        elif field.name in ours and _is_taken(field.name, table_key, alone):
            continue
        elif field.name in given and _castable(given[field.name], field):
            owned[field.name] = field.name
    return owned


def _castable(given: StructField, field: StructField) -> bool:
    if same_type(given.dataType, field.dataType):
        return True
    return can_store(arrow_type(given.dataType, given.name), arrow_type(field.dataType, field.name))


# --- pack and unpack -----------------------------------------------------------------------------


def pack(
    frames: Mapping[str, DataFrame],
    endpoints: str | Mapping[str, str | tuple[str, str]] | None = None,
    keys: str | Mapping[str, str] | None = None,
) -> DataFrame:
    """Return one whole-graph frame of typed table frames, ready to be written in one commit.

    `frames` by table key; `endpoints` for edge types that the graph doesn't have yet
    (`{"Knows": "Person -> Person"}`), `keys` for node types whose `id` is a property's value
    (`{"Person": "name"}`), or the texts of the options of these names. Evaluates nothing.

    >>> graph = pack({"node:Person": people, "edge:Knows": knows},
    ...              endpoints={"Knows": "Person -> Person"})  # doctest: +SKIP

    Raises:
        OptionError: no frame, a key that is not a valid table key, or malformed endpoints or keys.
        SchemaMismatchError: columns that can't stand in a whole-graph frame, a doubled column, or
            an `id`, `src` or `dst` of a type that is never stored as text.
    """
    if not frames:
        raise OptionError("pack got no frames", hint=_EXAMPLE)
    schemas, texts = {}, {}
    for key, schema in schemas_of(frames).items():
        layout.split_table_key(key)
        schemas[key], texts[key] = _with_text_ids(key, _checked(key, schema), frames[key])
    parsed = options.parse(options.of_python({"endpoints": endpoints, "keys": keys}))
    wide = whole_graph_schema(
        schemas,
        checked_endpoints(parsed.get("endpoints") or {}),
        _checked_keys(parsed.get("keys") or {}, schemas),
        named=True,
    )
    owned = ownership(wide, schemas)
    parts = [_widened(key, frame, wide, owned[key]) for key, frame in texts.items()]
    marks = {
        mark: None for schema in schemas.values() for mark in field_metadata.read_marks(schema)
    }
    metadata = dict(wide[TABLE].metadata)
    if marks:
        metadata[field_metadata.READ] = field_metadata.marks_text(list(marks))
    union = reduce(lambda left, right: left.union(right), parts)
    return _with_metadata(union, metadata)


def schemas_of(frames: Mapping[str, DataFrame]) -> dict[str, StructType]:
    """Return the schemas of frames by table.

    Raises:
        OptionError: no mapping of names to DataFrames.
    """
    if not isinstance(frames, Mapping):
        raise OptionError(
            "The frames to write are no mapping", expected=_FRAMES, found=type(frames).__name__
        )
    schemas = {}
    for name, frame in frames.items():
        schema = getattr(frame, "schema", None)
        if not isinstance(name, str) or not isinstance(schema, StructType):
            raise OptionError(
                f"What is to be written to {name!r} is not a DataFrame",
                expected=_FRAMES,
                found=type(frame).__name__ if isinstance(name, str) else type(name).__name__,
                hint="Make one with spark.createDataFrame",
            )
        schemas[name] = schema
    return schemas


def _checked(key: str, schema: StructType) -> StructType:
    doubled = sorted({name for name in schema.names if schema.names.count(name) > 1})
    if doubled:
        raise SchemaMismatchError(
            f"The frame for {key} has column {doubled[0]} more than once",
            expected="different names",
            table_key=key,
            column=doubled[0],
        )
    for field in schema.fields:
        arrow_type(field.dataType, field.name)
    return schema


def checked_endpoints(endpoints: Mapping[str, str | tuple[str, str]]) -> dict[str, tuple[str, str]]:
    """Return the endpoints of edge types by name, from texts such as `Person -> Company` or pairs.

    Raises:
        OptionError: not of that form, or a hostile name.
    """
    ends = {}
    for edge, given in endpoints.items():
        pieces = given.split("->") if isinstance(given, str) else list(given)
        names = [str(piece).strip() for piece in pieces]
        if len(names) != 2:
            raise OptionError(
                f"The endpoints of {edge} are malformed",
                expected="'Person -> Company' or ('Person', 'Company')",
                found=repr(given),
            )
        for name in (edge, *names):
            layout.check_type_name(name)
        ends[edge] = (names[0], names[1])
    return ends


def _checked_keys(keys: Mapping[str, str], schemas: Mapping[str, StructType]) -> dict[str, str]:
    for name, column in keys.items():
        schema = schemas.get(layout.table_key(layout.NODE, name))
        if schema is None or column not in schema.names:
            raise OptionError(
                f"keys says {name}: {column}, and no such column is among the frames",
                expected="a node type of the frames and a property of it",
                found=f"{name}: {column}",
            )
    return dict(keys)


def _with_text_ids(key: str, schema: StructType, frame: DataFrame) -> tuple[StructType, DataFrame]:
    """Return a table frame whose id and endpoints are text, as a whole-graph frame has them.

    Raises:
        SchemaMismatchError: a column of theirs of a type that is never stored as text.
    """
    for field in schema.fields:
        is_property = field in properties(schema, key)
        if is_property or isinstance(field.dataType, StringType):
            continue
        given = pa.field(field.name, arrow_type(field.dataType, field.name))
        check_type(given, pa.field(field.name, pa.utf8(), nullable=False), key)
        text = StructField(field.name, StringType(), field.nullable)
        schema = StructType([text if other is field else other for other in schema.fields])
        frame = frame.withColumn(field.name, _column(frame, field.name).cast(StringType()))
    return schema, frame


def _widened(key: str, frame: DataFrame, wide: StructType, owned: Mapping[str, str]) -> DataFrame:
    from pyspark.sql import functions as sf

    columns: list[Column] = [sf.lit(key).alias(TABLE)]
    for field in wide.fields[1:]:
        if field.name in owned:
            columns.append(_column(frame, owned[field.name]).alias(field.name, metadata=_BLANK))
        else:
            columns.append(sf.lit(None).cast(field.dataType).alias(field.name))
    return frame.select(*columns)


# PySpark 4.0 takes an empty dict for "keep what is there".
_BLANK = {field_metadata.PACK: ""}


def _column(frame: DataFrame, name: str) -> Column:
    return frame["`" + name.replace("`", "``") + "`"]


def _with_metadata(frame: DataFrame, metadata: dict[str, Any]) -> DataFrame:
    rest = [_column(frame, name) for name in frame.columns if name != TABLE]
    return frame.select(_column(frame, TABLE).alias(TABLE, metadata=metadata), *rest)


def unpack(frame: DataFrame) -> dict[str, DataFrame]:
    """Return the table frames of a whole-graph frame, by table key, in its definitions' order.

    Columns that the frame has lost since are left out. Each table frame is a filter over `frame`,
    so cache that if it is costly. Evaluates nothing.

    Raises:
        OptionError: `frame` is not a DataFrame.
        SchemaMismatchError: `frame` is not a whole-graph frame, or has lost its definitions.
    """
    from pyspark.sql import functions as sf

    schema = getattr(frame, "schema", None)
    if not isinstance(schema, StructType):
        raise OptionError(
            "What is to be unpacked is not a DataFrame",
            expected=f"a whole-graph frame as read, or as made by {_EXAMPLE}",
            found=type(frame).__name__,
        )
    known = definitions(schema)
    if known is None:
        raise SchemaMismatchError(
            "The frame doesn't say which columns belong to which table",
            expected=f"a whole-graph frame as read, or as made by {_EXAMPLE}",
            found=", ".join(schema.names),
            hint=f"Filter by hand: df.where(\"{TABLE} = 'node:Person'\").select('id', 'age')",
        )
    owned = ownership(schema, known.tables)
    parts = {}
    for key, table in known.tables.items():
        sources = {column: name for name, column in owned[key].items()}
        columns = [
            _column(frame, sources[field.name]).alias(field.name, metadata=field.metadata or _BLANK)
            for field in table.fields
            if field.name in sources
        ]
        parts[key] = frame.where(_column(frame, TABLE) == sf.lit(key)).select(*columns)
    return parts


def last_changes(changes: DataFrame) -> DataFrame:
    """Return the last change of each row of a change feed, as the feed has it; nothing is run."""
    from pyspark.sql import Window
    from pyspark.sql import functions as sf

    newest = Window.partitionBy(TABLE, "id").orderBy(sf.col("_commit_version").desc())
    return (
        changes.where("_change_type <> 'update_preimage'")
        .withColumn("_nth", sf.row_number().over(newest))
        .where("_nth = 1")
        .drop("_nth")
    )


def split_changes(last: DataFrame) -> tuple[dict[str, DataFrame], dict[str, DataFrame]]:
    """Return the rows that there are in the end, and the ids that aren't, by table; one job.

    Raises:
        SchemaMismatchError: the frame has lost its definitions.
    """
    from pyspark.sql import functions as sf

    is_gone = sf.col("_change_type") == "delete"
    groups = last.select(TABLE, is_gone.alias("gone")).distinct().collect()
    rows = unpack(last.where(~is_gone))
    written = {row[TABLE]: rows[row[TABLE]] for row in groups if not row["gone"]}
    ids = last.where(is_gone)
    gone = {
        row[TABLE]: ids.where(sf.col(TABLE) == row[TABLE]).select("id")
        for row in groups
        if row["gone"]
    }
    return written, gone
