"""Columns are shown as they were written, wherever their files have them."""

from __future__ import annotations

import pyarrow as pa
import pytest

from omnigraph_spark.schema import column_order
from omnigraph_spark.schema.column_order import POSITION, as_shown, as_stored, behind
from omnigraph_spark.schema.model import of_arrow

ID, SRC, DST = (pa.field(name, pa.utf8(), nullable=False) for name in ("id", "src", "dst"))
ZIP, AGE, MET = pa.field("zip", pa.utf8()), pa.field("age", pa.int32()), pa.field("met", pa.utf8())


def names(fields: list[pa.Field] | pa.Schema) -> list[str]:
    return [field.name for field in fields]


def test_a_file_has_the_properties_by_name_and_people_see_them_as_they_were_written() -> None:
    stored = as_stored([ID], [ZIP, AGE, MET])
    assert names(stored) == ["id", "age", "met", "zip"]
    assert names(as_shown(stored, False)) == ["id", "zip", "age", "met"]
    assert names(as_shown(reversed(stored), False)) == ["id", "zip", "age", "met"]


def test_an_added_column_comes_last_whatever_its_name() -> None:
    stored = pa.schema(as_stored([ID], [ZIP, MET]))
    wide = pa.schema([*stored, *behind(stored, [AGE])])
    assert names(as_shown(wide, False)) == ["id", "zip", "met", "age"]
    assert names(as_shown(wide, False, ["age", "met", "zip"])) == ["id", "zip", "met", "age"]


def test_columns_of_the_engine_stand_as_the_schema_file_lists_them() -> None:
    stored = pa.schema([ID, AGE, MET, ZIP])
    assert names(as_shown(stored, False, ["zip", "age"])) == ["id", "zip", "age", "met"]
    assert names(as_shown(stored, False)) == names(stored)
    assert behind(stored, [pa.field("b", pa.utf8())])[0].metadata is None


def test_only_the_ends_of_an_edge_lead() -> None:
    written = [pa.field("src", pa.utf8()), ZIP, pa.field("dst", pa.utf8())]
    assert names(as_shown(as_stored([ID], written), False)) == ["id", "src", "zip", "dst"]
    assert names(as_shown([DST, ZIP, SRC, ID], True)) == ["id", "src", "dst", "zip"]


@pytest.mark.parametrize("text", [b"", b"-1", b"x", b"9" * 40, "٣".encode()])
def test_a_number_that_cannot_be_read_counts_as_none(text: bytes) -> None:
    odd = AGE.with_metadata({POSITION: text})
    assert names(as_shown([ID, odd, *as_stored([], [ZIP])], False)) == ["id", "zip", "age"]


def test_what_else_a_field_says_stays() -> None:
    noted = AGE.with_metadata({"note": "x"})
    (stored,) = as_stored([], [noted])
    assert stored.metadata == {b"note": b"x", POSITION: b"1"}
    assert column_order.as_shown([stored], False)[0].type == pa.int32()


def test_the_engines_type_has_the_properties_in_that_order() -> None:
    node = of_arrow("node:A", pa.schema(as_stored([ID], [ZIP, AGE])))
    assert [one.name for one in node.properties] == ["zip", "age"]
