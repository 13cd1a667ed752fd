"""The column list of the option `schema` is read as Spark reads it."""

from __future__ import annotations

import pytest
from pyspark.sql import types as T

from omnigraph_spark.errors import OptionError
from omnigraph_spark.spark.ddl import parse_columns


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("STRING", T.StringType()),
        ("boolean", T.BooleanType()),
        ("TINYINT", T.ByteType()),
        ("smallint", T.ShortType()),
        ("INT", T.IntegerType()),
        ("integer", T.IntegerType()),
        ("BIGINT", T.LongType()),
        ("FLOAT", T.FloatType()),
        ("double", T.DoubleType()),
        ("DATE", T.DateType()),
        ("TIMESTAMP", T.TimestampType()),
        ("timestamp_ntz", T.TimestampNTZType()),
        ("BINARY", T.BinaryType()),
        ("VARCHAR(10)", T.StringType()),
        ("DECIMAL", T.DecimalType(10, 0)),
        ("decimal(20)", T.DecimalType(20, 0)),
        ("DECIMAL(38, 18)", T.DecimalType(38, 18)),
        ("ARRAY<ARRAY<INT>>", T.ArrayType(T.ArrayType(T.IntegerType()))),
        ("map<string, double>", T.MapType(T.StringType(), T.DoubleType())),
        (
            "STRUCT<a: INT NOT NULL, b: ARRAY<STRING>>",
            T.StructType(
                [
                    T.StructField("a", T.IntegerType(), False),
                    T.StructField("b", T.ArrayType(T.StringType())),
                ]
            ),
        ),
    ],
)
def test_a_type_is_read_in_any_case(text: str, expected: T.DataType) -> None:
    assert parse_columns(f"c {text}")["c"].dataType == expected


def test_columns_keep_order_names_and_nullability() -> None:
    parsed = parse_columns("id STRING NOT NULL, `a, ``b` INT COMMENT 'x, y', Since: date")
    assert [(f.name, f.nullable) for f in parsed] == [
        ("id", False),
        ("a, `b", True),
        ("Since", True),
    ]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "id",
        "id STRING,",
        "id STRING name STRING",
        "id STRNG",
        "id ARRAY<STRING",
        "id DECIMAL(39)",
        "id DECIMAL(5, 6)",
        "id DECIMAL(x)",
        "id STRING NOT",
        "id STRING; DROP TABLE x",
        "id STRING, ID INT",
        "< STRING",
        "id VARIANT",
    ],
)
def test_what_is_no_column_list_is_refused(text: str) -> None:
    with pytest.raises(OptionError, match="OMNIGRAPH_OPTION.*schema"):
        parse_columns(text)
