"""The engine's property types as text and as Arrow types."""

from __future__ import annotations

import pyarrow as pa
import pytest

from omnigraph_spark.errors import OptionError, SchemaMismatchError
from omnigraph_spark.schema import property_types
from omnigraph_spark.schema.property_types import EngineType

SPELLED = {
    "String": pa.utf8(),
    "Bool?": pa.bool_(),
    "I32": pa.int32(),
    "I64?": pa.int64(),
    "U32": pa.uint32(),
    "U64": pa.uint64(),
    "F32": pa.float32(),
    "F64": pa.float64(),
    "Date": pa.date32(),
    "DateTime?": pa.date64(),
    "Vector(4)": pa.list_(pa.float32(), 4),
    "[String]?": pa.list_(pa.utf8()),
    "[I64]": pa.list_(pa.int64()),
    "enum(draft, phase-1)?": pa.utf8(),
}


@pytest.mark.parametrize(("text", "arrow"), SPELLED.items())
def test_a_type_keeps_its_text_and_has_the_arrow_type_of_the_format(
    text: str, arrow: pa.DataType
) -> None:
    parsed = property_types.parse(text)
    assert parsed.text() == text
    assert property_types.to_arrow(parsed) == arrow
    assert property_types.from_json(parsed.to_json()) == parsed
    assert property_types.arrow_field("p", parsed).nullable is text.endswith("?")


@pytest.mark.parametrize(("text", "arrow"), SPELLED.items())
def test_a_stored_column_names_its_type_and_an_enum_is_a_string_there(
    text: str, arrow: pa.DataType
) -> None:
    field = pa.field("p", arrow, nullable=text.endswith("?"))
    expected = text if not text.startswith("enum") else "String?"
    found = property_types.of_field(field)
    assert found is not None
    assert found.text() == expected


def test_spaces_make_no_difference() -> None:
    assert property_types.parse(" Vector( 4 ) ? ") == property_types.parse("Vector(4)?")
    assert property_types.parse("enum( a ,b )").enum_values == ("a", "b")
    assert property_types.parse("[ String ]") == EngineType("String", list=True, nullable=False)


@pytest.mark.parametrize(
    "text",
    ["", "string", "Vector", "Vector(0)", "Vector(-1)", "Vector(x)", "enum()", "enum(a, a)",
     "enum(a b)", "[[I32]]", "I32??", "I33", "[I32", "String; DROP"],
)  # fmt: skip
def test_what_is_no_type_is_refused_with_what_is_one(text: str) -> None:
    with pytest.raises(
        OptionError, match=r"\[OMNIGRAPH_OPTION\].*is not a property type.*Vector\(n\)"
    ):
        property_types.parse(text)


def test_a_blob_is_told_by_its_extension_before_and_after_lance_is_imported() -> None:
    field = property_types.arrow_field("raw", property_types.parse("Blob?"))
    assert property_types.is_blob(field)
    plain = pa.field(
        "raw", field.type.storage_type, metadata={"ARROW:extension:name": "lance.blob.v2"}
    )
    old = pa.field("raw", pa.large_binary(), metadata={"lance-encoding:blob": "true"})
    assert property_types.is_blob(plain)
    assert property_types.is_blob(old)
    assert not property_types.is_blob(pa.field("raw", pa.large_binary()))
    assert [property_types.of_field(f) for f in (field, plain)] == [EngineType("Blob")] * 2


def test_a_list_of_blobs_is_refused() -> None:
    with pytest.raises(SchemaMismatchError, match="OMNIGRAPH_SCHEMA_MISMATCH"):
        property_types.to_arrow(property_types.parse("[Blob]"))


@pytest.mark.parametrize(
    "arrow",
    [pa.int8(), pa.uint16(), pa.float16(), pa.timestamp("us", "UTC"), pa.decimal128(20, 0),
     pa.large_utf8(), pa.struct([("a", pa.int32())]), pa.list_(pa.float64(), 3),
     pa.list_(pa.decimal128(5, 2))],
)  # fmt: skip
def test_other_columns_have_no_type_of_the_engine(arrow: pa.DataType) -> None:
    assert property_types.of_field(pa.field("p", arrow)) is None


@pytest.mark.parametrize(
    ("name", "fits"),
    [
        ("age", True),
        ("_a1", True),
        ("Age", False),
        ("Имя", False),
        ("sp ace", False),
        ("1a", False),
        ("", False),
    ],
)
def test_only_plain_names_go_into_the_schema_files(name: str, fits: bool) -> None:
    assert property_types.can_name(name) is fits
