"""What rides on fields: stored types, read marks and the binding of catalog tables; no JVM."""

from __future__ import annotations

import json

import pyarrow as pa
import pyspark.sql.types as T
import pytest

from omnigraph_spark.errors import UnsupportedError
from omnigraph_spark.schema import property_types
from omnigraph_spark.spark import catalog, field_metadata
from omnigraph_spark.spark.field_metadata import ReadMark

FRAME = T.StructType().add("id", T.StringType(), False).add("age", T.IntegerType())
OPTIONS = {"path": "/g", "table": "node:Person"}


def with_metadata(schema: T.StructType, *metadata: dict[str, str]) -> T.StructType:
    return T.StructType(
        [
            T.StructField(f.name, f.dataType, f.nullable, m)
            for f, m in zip(schema.fields, metadata, strict=True)
        ]
    )


def without_mark(schema: T.StructType) -> T.StructType:
    """Return what arrives after Spark has projected: the binding without the VARCHAR mark."""
    return with_metadata(
        schema,
        *({k: v for k, v in f.metadata.items() if k != field_metadata.VARCHAR} for f in schema),
    )


def test_a_stored_type_survives_its_text() -> None:
    engine = property_types.parse("enum(draft, active)")
    carried = field_metadata.carried(pa.field("c", pa.utf8(), nullable=False), engine, key=True)
    field = T.StructField("c", T.StringType(), True, {field_metadata.TYPE: carried.to_text()})
    assert field_metadata.carried_type(field) == carried
    plain = json.loads(carried.to_text())
    assert plain == {
        "arrow": "string",
        "nullable": False,
        "type": "enum(draft, active)",
        "enum": ["draft", "active"],
        "key": True,
    }


def test_read_marks_come_back_once_each_in_order() -> None:
    first = ReadMark("/g", "main", 7, "node:Person", 5)
    whole = ReadMark("/g", "dev", 9)
    schema = field_metadata.with_read(FRAME, first)
    assert field_metadata.read_marks(schema) == [first]
    both = {field_metadata.READ: field_metadata.marks_text([whole, first])}
    mixed = with_metadata(FRAME, schema["id"].metadata, both)
    assert field_metadata.read_marks(mixed) == [first, whole]


@pytest.mark.parametrize(
    "text", ["", "x", "3", "[3]", "{}", '{"version": "7"}', "[[]]", '{"graph": "/g"}']
)
def test_marks_that_are_none_are_passed_over(text: str) -> None:
    schema = with_metadata(FRAME, {field_metadata.READ: text}, {})
    assert field_metadata.read_marks(schema) == []


def test_marks_leave_other_metadata_alone() -> None:
    schema = field_metadata.with_read(
        with_metadata(FRAME, {"a": "b"}, {}), ReadMark("/g", "main", 1)
    )
    assert schema["id"].metadata["a"] == "b"


def test_a_catalog_table_is_bound_for_reading_and_for_writing() -> None:
    bound = field_metadata.bind(FRAME, OPTIONS)
    assert field_metadata.bound_options(bound) == OPTIONS
    assert field_metadata.bound_options_for_write(without_mark(bound)) == OPTIONS
    assert field_metadata.bound_options(FRAME) is None
    assert field_metadata.bound_options_for_write(FRAME) is None


def test_the_mark_is_a_varchar_that_no_user_writes_and_differs_between_tables() -> None:
    marks = {
        field_metadata.bind(FRAME, {**OPTIONS, "table": f"node:T{n}"})["id"].metadata[
            field_metadata.VARCHAR
        ]
        for n in range(50)
    }
    assert len(marks) == 50
    assert all(2**30 <= int(mark[8:-1]) < 2**30 + 2**29 for mark in marks)
    same = [field_metadata.bind(FRAME, OPTIONS)["id"].metadata for _ in range(2)]
    assert same[0] == same[1]


def test_a_write_with_the_mark_is_refused_with_the_statement_that_works() -> None:
    with pytest.raises(UnsupportedError, match=r"\[OMNIGRAPH_UNSUPPORTED\].*CAST\(id AS STRING\)"):
        field_metadata.bound_options_for_write(field_metadata.bind(FRAME, OPTIONS))


def test_a_varchar_of_a_users_own_is_no_mark() -> None:
    own = with_metadata(FRAME, {field_metadata.VARCHAR: "varchar(10)"}, {})
    assert field_metadata.bound_options_for_write(own) is None


@pytest.mark.parametrize("order", [[1, 0], [0], [0, 0], [1]])
def test_pieces_of_a_binding_bind_nothing(order: list[int]) -> None:
    bound = without_mark(field_metadata.bind(FRAME, OPTIONS))
    assert field_metadata.bound_options_for_write(T.StructType([bound[i] for i in order])) is None


def test_a_mixture_of_bindings_binds_nothing() -> None:
    one = without_mark(field_metadata.bind(FRAME, OPTIONS))
    other = without_mark(field_metadata.bind(FRAME, {**OPTIONS, "table": "node:Company"}))
    mixed = T.StructType([one["id"], other["age"]])
    assert field_metadata.bound_options_for_write(mixed) is None
    partly = T.StructType([one["id"], FRAME["age"]])
    assert field_metadata.bound_options_for_write(partly) is None


def test_a_catalog_table_that_is_older_than_the_graph_is_said_to_be_so_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    bound = {"path": "/g", "table": "node:Older", "storage.aws_region": "x"}
    for _ in range(2):
        catalog.warn_of_unseen(bound, ["id", "age"], ["id", "age", "note"])
    catalog.warn_of_unseen(bound, ["id", "age", "note"], ["id", "age", "note"])
    catalog.warn_of_unseen({**bound, "columns": "id"}, ["id"], ["id", "age", "note"])
    (said,) = [record.getMessage() for record in caplog.records]
    assert "note" in said
    assert (
        "DROP TABLE t; CREATE TABLE t USING omnigraph OPTIONS"
        " (path '/g', `storage.aws_region` 'x', table 'node:Older')"
    ) in said
