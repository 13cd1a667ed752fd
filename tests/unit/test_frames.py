"""Schemas of whole-graph frames and which column is whose; no JVM."""

from __future__ import annotations

import json

import pyarrow as pa
import pyspark.sql.types as T
import pytest

from omnigraph_spark.errors import OptionError, SchemaMismatchError
from omnigraph_spark.schema import property_types
from omnigraph_spark.spark import field_metadata, frames, spark_types

MISMATCH = r"\[OMNIGRAPH_SCHEMA_MISMATCH\]"


def node(**columns: str) -> T.StructType:
    """Return a node table's frame from the engine's types, such as `age="I32?"`."""
    return _table({"id": "String", **columns})


def edge(**columns: str) -> T.StructType:
    return _table({"id": "String", "src": "String", "dst": "String", **columns})


def _table(columns: dict[str, str]) -> T.StructType:
    return T.StructType(
        [
            spark_types.spark_field(
                property_types.arrow_field(name, property_types.parse(text.removesuffix(" @key"))),
                engine=property_types.parse(text.removesuffix(" @key")),
                key=text.endswith(" @key"),
            )
            for name, text in columns.items()
        ]
    )


def shape(schema: T.StructType) -> dict[str, str]:
    return {f.name: f.dataType.simpleString() for f in schema.fields}


TABLES = {
    "node:Person": node(name="String @key", age="I32?", vec="Vector(4)?"),
    "node:Company": node(name="String", age="String?", Zip="String?"),
    "edge:Knows": edge(since="Date?", name="String?"),
}


def test_the_wide_schema_is_the_fixed_columns_and_all_properties_table_by_table() -> None:
    wide = frames.whole_graph_schema(TABLES)
    assert list(shape(wide).items()) == [
        ("_table", "string"), ("id", "string"), ("src", "string"), ("dst", "string"),
        ("name", "string"), ("age__string", "string"), ("age__int", "int"), ("Zip", "string"),
        ("vec", "array<float>"), ("since", "date"),
    ]  # fmt: skip
    assert [f.name for f in wide.fields if not f.nullable] == ["_table"]


@pytest.mark.parametrize(
    ("spark", "text"),
    [
        (T.IntegerType(), "int"),
        (T.DecimalType(20, 0), "decimal_20_0"),
        (T.ArrayType(T.StringType()), "array_string"),
        (T.MapType(T.StringType(), T.DecimalType(5, 2)), "map_string_decimal_5_2"),
        (T.StructType().add("a b", T.LongType()), "struct_a_b_bigint"),
        (T.DayTimeIntervalType(), "interval_day_to_second"),
        (T.TimestampNTZType(), "timestamp_ntz"),
    ],
)
def test_a_type_in_a_columns_name_is_its_simple_string(spark: T.DataType, text: str) -> None:
    assert frames.type_text(spark) == text


def test_tables_that_differ_in_inner_nullability_alone_share_a_column() -> None:
    tables = {
        "node:A": T.StructType().add("x", T.ArrayType(T.StringType(), containsNull=False)),
        "node:B": T.StructType().add("x", T.ArrayType(T.StringType())),
    }
    assert frames.whole_graph_schema(tables)["x"].dataType == T.ArrayType(T.StringType())


@pytest.mark.parametrize("name", ["_table", "src", "dst"])
def test_a_property_with_a_fixed_columns_name_is_shown_with_its_type(name: str) -> None:
    tables = {"edge:E": edge(_table="String"), "node:A": node(**{name: "String"})}
    tables["node:B"] = node(id__string="String")  # the ids of other tables stay in `id`
    wide = frames.whole_graph_schema(tables)
    own = [f"{one}__string" for one in dict.fromkeys((name, "id", "_table"))]
    assert wide.names == ["_table", "id", "src", "dst", *own]
    ends = {one: one for one in ("id", "src", "dst")}
    assert frames.ownership(wide, tables) == {
        "edge:E": {**ends, "_table__string": "_table"},
        "node:A": {"id": "id", f"{name}__string": name},
        "node:B": {"id": "id", "id__string": "id__string"},
    }


def test_a_frame_of_one_table_keeps_the_name_of_a_property_that_is_called_src() -> None:
    tables = {"node:A": node(src="I32?")}
    wide = frames.whole_graph_schema(tables, alone=True)
    assert wide.names == ["_table", "id", "dst", "src"]
    assert frames.ownership(wide, tables, alone=True) == {"node:A": {"id": "id", "src": "src"}}


def test_a_property_with_the_very_name_of_a_split_column_is_refused() -> None:
    tables = {**TABLES, "node:Odd": node(age__int="I32?")}
    with pytest.raises(SchemaMismatchError, match=MISMATCH + r".*node:Odd.*age__int"):
        frames.whole_graph_schema(tables)
    del tables["node:Company"]
    assert "age__int" in frames.whole_graph_schema(tables).names


def test_two_types_that_would_share_a_split_column_are_refused() -> None:
    tables = {
        "node:A": T.StructType().add("x", T.StructType().add("a_b", T.LongType())),
        "node:B": T.StructType().add("x", T.StructType().add("a b", T.LongType())),
    }
    with pytest.raises(SchemaMismatchError, match=MISMATCH + r".*x__struct_a_b_bigint"):
        frames.whole_graph_schema(tables)


def test_definitions_come_back_with_types_ends_and_keys() -> None:
    wide = frames.whole_graph_schema(TABLES, {"Knows": ("Person", "Person")})
    known = frames.definitions(T.StructType.fromJson(json.loads(wide.json())))
    assert known is not None
    assert known.tables == {key: TABLES[key] for key in sorted(TABLES)}
    assert [f.metadata for f in known.tables["node:Person"]] == [
        f.metadata for f in TABLES["node:Person"]
    ]
    assert known.endpoints == {"Knows": ("Person", "Person")}
    assert known.keys == {"Person": "name"}


def test_a_frame_without_definitions_has_none_and_broken_ones_are_refused() -> None:
    assert frames.definitions(T.StructType().add("_table", T.StringType())) is None
    assert frames.definitions(T.StructType().add("id", T.StringType())) is None
    broken = T.StructType().add("_table", T.StringType(), metadata={field_metadata.PACK: "{}"})
    with pytest.raises(SchemaMismatchError, match=MISMATCH + r".*pack"):
        frames.definitions(broken)


def test_each_tables_column_is_fed_by_its_own_column_of_the_frame() -> None:
    wide = frames.whole_graph_schema(TABLES)
    assert frames.ownership(wide, TABLES) == {
        "node:Person": {"id": "id", "name": "name", "age__int": "age", "vec": "vec"},
        "node:Company": {"id": "id", "name": "name", "age__string": "age", "Zip": "Zip"},
        "edge:Knows": {"id": "id", "src": "src", "dst": "dst", "since": "since", "name": "name"},
    }


def test_a_plain_name_feeds_the_tables_whose_type_it_can_be_cast_to() -> None:
    frame = T.StructType().add("_table", T.StringType()).add("age", T.LongType())
    frame = frame.add("age__string", T.StringType()).add("since", T.StringType())
    assert frames.ownership(frame, TABLES) == {
        "node:Person": {"age": "age"},
        "node:Company": {"age__string": "age"},
        "edge:Knows": {},
    }


def test_a_property_keeps_a_split_columns_name_where_it_is_its_own() -> None:
    tables = {"node:A": node(age="I32?", age__int="I32?")}
    frame = T.StructType().add("age", T.IntegerType()).add("age__int", T.IntegerType())
    assert frames.ownership(frame, tables) == {"node:A": {"age": "age", "age__int": "age__int"}}


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ({"Knows": "Person -> Company"}, ("Person", "Company")),
        ({"Knows": "Person->Company"}, ("Person", "Company")),
        ({"Knows": ("Person", "Company")}, ("Person", "Company")),
    ],
)
def test_endpoints_are_a_text_or_a_pair(
    given: dict[str, str | tuple[str, str]], found: tuple[str, str]
) -> None:
    assert frames.checked_endpoints(given) == {"Knows": found}


@pytest.mark.parametrize(
    "given", [{"Knows": "Person"}, {"Knows": "a -> b -> c"}, {"../x": "A -> B"}, {"Knows": "A ->"}]
)
def test_malformed_endpoints_are_refused(given: dict[str, str]) -> None:
    with pytest.raises(OptionError, match=r"\[OMNIGRAPH_OPTION\]"):
        frames.checked_endpoints(given)


def test_the_whole_graph_schema_is_what_pyspark_makes_arrow_of() -> None:
    wide = frames.whole_graph_schema(TABLES)
    assert spark_types.arrow_schema(wide).field("vec").type == pa.list_(pa.float32())
