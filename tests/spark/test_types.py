"""Every type through Spark, written and read back: the right values, or a refusal by name."""

from __future__ import annotations

import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pyspark.sql.types as T
import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from omnigraph_spark.schema import property_types
from omnigraph_spark.storage import layout
from tests.support import graphs
from tests.support.graphs import file_hashes

PERSON = "node:Person"
MISMATCH = r"\[OMNIGRAPH_SCHEMA_MISMATCH\]"
INTEGRITY = r"\[OMNIGRAPH_INTEGRITY\]"


class Graph:
    """A graph in a folder, written and read through Spark."""

    def __init__(self, spark: SparkSession, root: Path) -> None:
        self.spark = spark
        self.root = root

    def write(
        self, frame: DataFrame, table: str = PERSON, mode: str = "append", **more: str
    ) -> None:
        writer = frame.write.format("omnigraph").option("table", table).mode(mode)
        writer.options(**more).save(str(self.root))

    def read(self, table: str = PERSON, **more: str) -> DataFrame:
        reader = self.spark.read.format("omnigraph").option("table", table).options(**more)
        return reader.load(str(self.root))

    def rows(self, *columns: str, table: str = PERSON) -> list[Any]:
        """Return the columns' values in the order of the ids, one value alone for one column."""
        found = self.read(table).orderBy("id").select(*columns).collect()
        return [row[0] if len(columns) == 1 else tuple(row) for row in found]

    def stored(self, table: str = PERSON) -> lance.LanceDataset:
        return lance.dataset(str(self.root / layout.table_location(table)))

    def refuses(self, frame: DataFrame, pattern: str, **more: str) -> None:
        """Fail unless the write is refused with `pattern` and changes no file."""
        before = file_hashes(self.root)
        with pytest.raises(Exception, match=pattern):
            self.write(frame, **more)
        assert file_hashes(self.root) == before


@pytest.fixture
def graph(spark: SparkSession, tmp_path: Path) -> Graph:
    return Graph(spark, tmp_path / "g")


def numbered(spark: SparkSession, *expressions: str) -> DataFrame:
    """Return a frame of one partition: ids 1, 2, … and a column c with the SQL values."""
    rows = " UNION ALL ".join(
        f"SELECT '{n}' AS id, {expression} AS c" for n, expression in enumerate(expressions, 1)
    )
    return spark.sql(rows).coalesce(1)


ROUND_TRIPS: dict[str, tuple[str, list[str], str]] = {
    "STRING": ("string", ["''", "'ünï 🙂'", "NULL"], "string"),
    "BOOLEAN": ("boolean", ["true", "NULL"], "bool"),
    "TINYINT": ("tinyint", ["CAST(-128 AS TINYINT)", "NULL"], "int32"),
    "SMALLINT": ("smallint", ["CAST(32767 AS SMALLINT)", "NULL"], "int32"),
    "INT": ("int", ["CAST(-2147483648 AS INT)", "NULL"], "int32"),
    "BIGINT": ("bigint", ["CAST(9223372036854775807 AS BIGINT)", "NULL"], "int64"),
    "FLOAT": ("float", ["CAST('-0.0' AS FLOAT)", "CAST('NaN' AS FLOAT)", "NULL"], "float"),
    "DOUBLE": ("double", ["0.1D", "CAST('-Infinity' AS DOUBLE)", "NULL"], "double"),
    "DATE": (
        "date",
        ["DATE'0001-01-01'", "DATE'1582-10-10'", "DATE'1899-12-31'", "DATE'9999-12-31'", "NULL"],
        "date32[day]",
    ),
    "TIMESTAMP": (
        "timestamp",
        [
            "TIMESTAMP'1969-12-31 23:59:59.999999Z'",
            "TIMESTAMP'0001-01-01 00:00:00Z'",
            "TIMESTAMP'2024-01-01 08:00:00.123456Z'",
            "NULL",
        ],
        "timestamp[us, tz=UTC]",
    ),
    "NTZ": (
        "timestamp_ntz",
        ["TIMESTAMP_NTZ'1969-12-31 23:59:59.999999'", "NULL"],
        "timestamp[us]",
    ),
    "DECIMAL(10,2)": ("decimal(10,2)", ["1.99BD", "-2BD", "NULL"], "decimal128(10, 2)"),
    "DECIMAL(38,18)": (
        "decimal(38,18)",
        ["CAST('99999999999999999999.999999999999999999' AS DECIMAL(38,18))", "NULL"],
        "decimal128(38, 18)",
    ),
    "INTERVAL": (
        "interval day to second",
        ["INTERVAL '-0 23:59:59.999995' DAY TO SECOND", "NULL"],
        "duration[us]",
    ),
    "BINARY": ("binary", ["X'41'", "X'00FF'", "NULL"], "extension<lance.blob.v2<BlobType>>"),
    "ARRAY": ("array<string>", ["array('a', NULL, '')", "array()", "NULL"], "list<item: string>"),
    "STRUCT": (
        "struct<a:int,b:string>",
        [
            "named_struct('a', 1, 'b', 'y')",
            "CAST(NULL AS STRUCT<a: INT, b: STRING>)",
            "CAST(named_struct('a', NULL, 'b', NULL) AS STRUCT<a: INT, b: STRING>)",
        ],
        "struct<a: int32, b: string>",
    ),
    "MAP": (
        "map<string,bigint>",
        ["map('k', 1L, 'l', NULL)", "map()", "NULL"],
        "map<string, int64>",
    ),
}  # fmt: skip


def values(frame: DataFrame) -> dict[str, str]:
    """Return each column's values in the order of the ids, as text: NaN is NaN, -0.0 is not 0.0."""
    # Python can't hold every instant that Spark can, in the local zone.
    shown = [
        F.unix_micros(f.name).alias(f.name) if f.dataType == T.TimestampType() else F.col(f.name)
        for f in frame.schema.fields
    ]
    rows = frame.orderBy("id").select(*shown).collect()
    return {name: repr([row[name] for row in rows]) for name in frame.columns}


def test_values_of_every_spark_type_come_back_as_they_were(graph: Graph) -> None:
    rows = max(len(expressions) for _, expressions, _ in ROUND_TRIPS.values())
    queries = []
    for at in range(rows):
        columns = [
            f"CAST({expressions[at] if at < len(expressions) else 'NULL'} AS {spark}) AS `{name}`"
            for name, (spark, expressions, _) in ROUND_TRIPS.items()
        ]
        queries.append(f"SELECT '{at}' AS id, {', '.join(columns)}")
    frame = graph.spark.sql(" UNION ALL ".join(queries))
    graph.write(frame)
    back, stored = graph.read(), graph.stored().schema
    assert {name: back.schema[name].dataType.simpleString() for name in ROUND_TRIPS} == {
        name: spark for name, (spark, _, _) in ROUND_TRIPS.items()
    }
    for name, (_, _, arrow) in ROUND_TRIPS.items():
        assert str(stored.field(name).type).startswith(arrow), name
    assert values(back) == values(frame)


def test_days_before_the_gregorian_calendar_are_not_moved(graph: Graph) -> None:
    graph.write(numbered(graph.spark, *ROUND_TRIPS["DATE"][1]))
    frame = graph.read()
    days = [row[0] for row in frame.orderBy("id").select(F.unix_date("c")).collect()]
    assert days == [-719_162, -141_432, -25_568, 2_932_896, None]
    assert frame.where("c < DATE'1582-10-15'").count() == 2


def test_a_date_past_the_year_9999_in_a_filter_is_left_to_spark(
    graph: Graph, pushdown: str
) -> None:
    graph.write(numbered(graph.spark, *ROUND_TRIPS["DATE"][1]))
    frame = graph.read().where("c < DATE'+10000-01-01'")
    if pushdown == "off":
        assert frame.count() == 4
        return
    # PySpark 4.3 makes a Python date of it before it asks the source: nothing here can help that.
    with pytest.raises(AnalysisException, match="year 10000 is out of range"):
        frame.count()


@pytest.mark.parametrize("zone", ["UTC", "America/Los_Angeles", "Asia/Kolkata"])
def test_an_instant_is_the_same_in_every_session_zone(graph: Graph, zone: str) -> None:
    graph.spark.conf.set("spark.sql.session.timeZone", zone)
    texts = ("TIMESTAMP'2024-01-01 08:00:00.123Z'", "TIMESTAMP'1969-12-31 23:59:59.5Z'")
    graph.write(numbered(graph.spark, *texts), types="Person.c: DateTime")
    assert graph.stored().schema.field("c").type == pa.date64()
    millis = [row[0] for row in graph.read().orderBy("id").select(F.unix_millis("c")).collect()]
    assert millis == [1_704_096_000_123, -500]


def test_a_datetime_rounds_microseconds_down_and_with_exact_assignment_refuses_them(
    graph: Graph,
) -> None:
    graph.write(
        numbered(graph.spark, "TIMESTAMP'2024-01-01 00:00:00Z'"), types="Person.c: DateTime"
    )
    later = numbered(graph.spark, "TIMESTAMP'2024-01-02 00:00:00.001Z'")
    graph.write(later, integrity="off")  # of the same id
    frame = numbered(graph.spark, "TIMESTAMP'2024-01-01 00:00:00.000001Z'")
    with pytest.raises(Exception, match=MISMATCH + r".*column c of node:Person.*00:00:00\.000001"):
        graph.write(frame, storeAssignment="exact")
    assert graph.read().count() == 2
    graph.write(frame, integrity="off")
    assert graph.read().where("c = TIMESTAMP'2024-01-01 00:00:00Z'").count() == 2


# --- tables that other tools wrote ---------------------------------------------------------------


def other_tools_table(graph: Graph, *batches: pa.RecordBatch) -> None:
    """Put columns of another tool's making into Person, one fragment per batch."""
    first = graph.spark.createDataFrame([], "id STRING NOT NULL, gone INT")
    graph.write(first)
    root = graph.root
    dataset_path = str(root / layout.table_location(PERSON))
    schema = batches[0].schema
    before = lance.dataset(dataset_path).version
    lance.write_dataset(
        pa.Table.from_batches(batches[:1]),
        dataset_path,
        mode="overwrite",
        data_storage_version="2.2",
    )
    for batch in batches[1:]:
        lance.write_dataset(pa.table(batch.to_pydict(), schema=schema), dataset_path, mode="append")
    version = lance.dataset(dataset_path).version
    manifest = lance.dataset(str(root / "__manifest"))
    rows = manifest.to_table().to_pylist()
    newest = max(
        (r for r in rows if r["object_type"] == "table_version" and r["table_key"] == PERSON),
        key=lambda r: r["table_version"],
    )
    assert newest["table_version"] == before
    row = {
        **newest,
        "object_id": layout.version_object_id(PERSON, version),
        "table_version": version,
        "row_count": sum(b.num_rows for b in batches),
        "metadata": json.dumps({}),
    }
    lance.write_dataset(pa.Table.from_pylist([row], manifest.schema), manifest.uri, mode="append")


def ids(count: int) -> pa.Array:
    return pa.array([str(n) for n in range(1, count + 1)])


def test_unsigned_numbers_are_widened_and_never_negative(graph: Graph) -> None:
    columns = {
        "u8": pa.array([200], pa.uint8()),
        "u16": pa.array([65_535], pa.uint16()),
        "u32": pa.array([4_294_967_295], pa.uint32()),
        "u64": pa.array([18_446_744_073_709_551_615], pa.uint64()),
    }
    other_tools_table(graph, pa.record_batch({"id": ids(1), **columns}))
    frame = graph.read()
    assert [f.dataType.simpleString() for f in frame.schema.fields[1:]] == [
        "smallint", "int", "bigint", "decimal(20,0)",
    ]  # fmt: skip
    assert graph.rows("u8", "u16", "u32", "u64") == [
        (200, 65_535, 4_294_967_295, Decimal(18_446_744_073_709_551_615))
    ]
    assert frame.agg(F.sum("u32")).collect()[0][0] == 4_294_967_295
    for name, column in columns.items():
        assert frame.where(f"{name} = {column[0].as_py()}").count() == 1


def test_other_units_zones_and_kinds_of_string_are_read_as_sparks(graph: Graph) -> None:
    eight = 1_704_096_000
    columns = {
        "s": pa.array([eight], pa.int64()).view(pa.timestamp("s")),
        "ms": pa.array([eight * 1000], pa.int64()).view(pa.timestamp("ms", "+05:30")),
        "ns": pa.array([eight * 10**9 + 123_456_789], pa.int64()).view(pa.timestamp("ns")),
        "d": pa.array(["a"]).dictionary_encode(),
        "l": pa.array(["b"], pa.large_utf8()),
        "f": pa.array([np.float16(1.5)]),
    }
    other_tools_table(graph, pa.record_batch({"id": ids(1), **columns}))
    shown = graph.read().select(
        F.date_format("s", "yyyy-MM-dd HH:mm:ss.SSSSSS"),
        F.unix_micros("ms"),
        F.date_format("ns", "yyyy-MM-dd HH:mm:ss.SSSSSS"),
        "d",
        "l",
        "f",
    )
    assert tuple(shown.first() or ()) == (
        "2024-01-01 08:00:00.000000", eight * 10**6, "2024-01-01 08:00:00.123456", "a", "b", 1.5,
    )  # fmt: skip


def test_a_column_that_spark_cannot_hold_is_named_and_can_be_left_out(graph: Graph) -> None:
    other_tools_table(
        graph, pa.record_batch({"id": ids(2), "t": pa.array([1, 2], pa.time64("us"))})
    )
    with pytest.raises(Exception, match=MISMATCH + r" Column t "):
        graph.read()
    assert graph.read(columns="id").count() == 2


def test_a_users_schema_reorders_by_name(graph: Graph) -> None:
    graph.write(graph.spark.sql("SELECT '1' AS id, 7 AS a, 'x' AS b"))
    reader = graph.spark.read.format("omnigraph").option("table", PERSON)
    frame = reader.schema("b STRING, a INT").load(str(graph.root))
    assert [tuple(row) for row in frame.collect()] == [("x", 7)]


def test_elements_that_are_not_null_and_fragments_of_other_kinds_are_read(graph: Graph) -> None:
    kind = pa.list_(pa.field("item", pa.utf8(), nullable=False))
    batches = [
        pa.record_batch({"id": pa.array([n]), "tags": pa.array([[n, "x"]], kind)}) for n in "12"
    ]
    other_tools_table(graph, *batches)
    assert graph.read().schema["tags"].dataType == T.ArrayType(T.StringType(), containsNull=False)
    assert graph.rows("id", "tags") == [("1", ["1", "x"]), ("2", ["2", "x"])]


# --- vectors, blobs, structs ---------------------------------------------------------------------


def test_vectors_come_back_in_their_rows_and_other_widths_are_refused(graph: Graph) -> None:
    floats = "CAST({} AS ARRAY<FLOAT>)"
    values = ["NULL", "array(1, 2, 3, 4)", "array(5, 6, 7, 8)", "array(1, NULL, 3, 4)"]
    graph.write(
        numbered(graph.spark, *(floats.format(v) for v in values)), types="Person.c: Vector(4)"
    )
    assert graph.stored().schema.field("c").type == pa.list_(pa.float32(), 4)
    assert graph.rows("c") == [None, [1, 2, 3, 4], [5, 6, 7, 8], [1, None, 3, 4]]
    with pytest.raises(
        Exception, match=r"column c of node:Person.*width 4 expected, width 3 found"
    ):
        graph.write(numbered(graph.spark, floats.format("array(1, 2, 3)")))
    assert graph.read().count() == 4


@pytest.mark.parametrize("ascending", [True, False])
def test_blobs_come_back_with_their_ids(graph: Graph, ascending: bool) -> None:
    big = "CAST(repeat('ab', 1000000) AS BINARY)"
    frame = numbered(graph.spark, "X'41'", "X'00FF'", "CAST(NULL AS BINARY)", big)
    graph.write(frame.coalesce(1).sortWithinPartitions("id", ascending=ascending))
    assert graph.rows("c") == [b"A", b"\x00\xff", None, b"ab" * 1_000_000]
    assert [row.c for row in graph.read().where("id = '2'").collect()] == [b"\x00\xff"]
    assert graph.read().where("c IS NULL").count() == 1
    assert graph.read().where("c = X'41'").count() == 1


def test_an_empty_binary_never_becomes_null(graph: Graph) -> None:
    empty = numbered(graph.spark, "X'41'", "X''", "CAST(NULL AS BINARY)")
    with pytest.raises(Exception, match=r"OMNIGRAPH_SCHEMA_MISMATCH\].*column|Column c"):
        graph.write(empty)
    graph.write(empty.selectExpr("id", "nullif(c, X'') AS c"))
    assert graph.rows("c") == [b"A", None, None]
    with pytest.raises(Exception, match=r"Column c of node:Person holds an empty BINARY"):
        graph.write(empty, writeMode="merge")
    assert graph.rows("c") == [b"A", None, None]


@pytest.mark.parametrize("kind", ["BINARY", "ARRAY<FLOAT>", "STRING"])
def test_a_batch_of_nothing_but_nulls_is_taken(graph: Graph, kind: str) -> None:
    value = {"BINARY": "X'41'", "ARRAY<FLOAT>": "array(CAST(1 AS FLOAT))", "STRING": "'A'"}[kind]
    graph.write(numbered(graph.spark, value, f"CAST(NULL AS {kind})"))
    stored = graph.stored().schema.field("c").type
    nulls = "SELECT CAST(id + 10 AS STRING) AS id, CAST(NULL AS {}) AS c FROM range(3)"
    graph.write(graph.spark.sql(nulls.format(kind)))
    assert graph.stored().schema.field("c").type == stored
    assert graph.read().where("c IS NULL").count() == 4
    assert graph.read().where("c IS NOT NULL").count() == 1


def test_structs_are_told_apart_from_null_in_filters(graph: Graph) -> None:
    graph.write(numbered(graph.spark, *ROUND_TRIPS["STRUCT"][1]))
    frame = graph.read()
    counts = [frame.where(f).count() for f in ("c IS NULL", "c.a IS NULL", "NOT (c.a = 1)")]
    assert counts == [1, 2, 0]


def test_a_struct_field_with_a_dot_in_its_name_is_no_path(graph: Graph) -> None:
    graph.write(numbered(graph.spark, "named_struct('x.y', 1)", "named_struct('x.y', 2)"))
    frame = graph.read()
    assert frame.where("c.`x.y` = 1").count() == 1
    assert frame.where("c.`x.y` IS NOT NULL").count() == 2


# --- appends that don't match ---------------------------------------------------------------------


@pytest.fixture
def people(graph: Graph) -> Graph:
    graph.write(graph.spark.createDataFrame([("0", 1, "x")], "id STRING NOT NULL, a INT, b STRING"))
    return graph


@pytest.mark.parametrize(
    ("query", "row"),
    [
        ("SELECT 'y' AS b, '1' AS id", ("1", None, "y")),
        ("SELECT 'y' AS b, 5 AS a, '1' AS id", ("1", 5, "y")),
        ("SELECT '1' AS id, CAST(5 AS SMALLINT) AS a, 'y' AS b", ("1", 5, "y")),
        ("SELECT '1' AS id, 5L AS a, 'y' AS b", ("1", 5, "y")),
        ("SELECT '1' AS id, 5 AS a, NULL AS b", ("1", 5, None)),
        ("SELECT IF(rand() < 2, '1', NULL) AS id, 5 AS a, 'y' AS b", ("1", 5, "y")),
        ("SELECT '' AS id, NULL AS a, '' AS b", ("", None, "")),
    ],
    ids=["missing", "moved", "smallint", "bigint", "void", "nullable id", "empty id"],
)
def test_a_frame_that_fits_by_name_is_written(people: Graph, query: str, row: tuple) -> None:
    people.write(people.spark.sql(query))
    assert set(people.rows("id", "a", "b")) == {("0", 1, "x"), row}
    assert people.stored().schema.field("a").type == pa.int32()


@pytest.mark.parametrize(
    ("query", "pattern"),
    [
        ("SELECT '1' AS id, 1 AS a, 'y' AS b, 0 AS c", MISMATCH + r".*no column 'c'"),
        ("SELECT 1 AS a, 'y' AS b", INTEGRITY + r".*lacks column id"),
        ("SELECT '1' AS id, 'x' AS a", MISMATCH + r" Column a of node:Person.*int32.*string"),
        ("SELECT '1' AS id, parse_json('{}') AS b", MISMATCH + r" Column b .*VARIANT"),
        (
            "SELECT '1' AS id, INTERVAL '10-8' YEAR TO MONTH AS b",
            MISMATCH + r" Column b .*INTERVAL",
        ),
    ],
    ids=["extra", "no id", "text into int", "variant", "year-month interval"],
)
def test_a_frame_that_cannot_fit_is_refused_before_anything_is_written(
    people: Graph, query: str, pattern: str
) -> None:
    people.refuses(people.spark.sql(query), pattern)


@pytest.mark.parametrize(
    ("query", "pattern"),
    [
        ("SELECT '1' AS id, 3000000000L AS a", MISMATCH + r".*column a of node:Person.*3000000000"),
        ("SELECT CAST(NULL AS STRING) AS id, 1 AS a", INTEGRITY + r".*column id of node:Person"),
    ],
    ids=["bigint that is too large", "null id"],
)
def test_a_row_that_does_not_fit_fails_the_write_and_leaves_the_table(
    people: Graph, query: str, pattern: str
) -> None:
    with pytest.raises(Exception, match=pattern):
        people.write(people.spark.sql(query))
    assert people.rows("id") == ["0"]


@pytest.mark.parametrize(
    ("query", "pattern"),
    [
        ("SELECT '1' AS id, NULL AS nick", MISMATCH + r" Column nick .*VOID"),
        ("SELECT '1' AS id, array(NULL) AS l", MISMATCH + r" Column l .*VOID"),
        ("SELECT '1' AS id, parse_json('{}') AS v", MISMATCH + r" Column v .*VARIANT"),
        ("SELECT '1' AS id, INTERVAL '1' YEAR AS y", MISMATCH + r" Column y "),
        ("SELECT '1' AS id, 1 AS `col.dots`", MISMATCH + r" 'col\.dots'"),
        ("SELECT '1' AS id, 1 AS `b``t`", MISMATCH + r" 'b`t'"),
        ("SELECT '1' AS id, 1 AS _rowid", MISMATCH + r" '_rowid'"),
        ("SELECT '1' AS id, 1 AS Name, 2 AS name", MISMATCH + r".*'Name' and 'name'"),
    ],
)
def test_a_new_table_refuses_columns_that_it_could_not_hold(
    graph: Graph, query: str, pattern: str
) -> None:
    graph.spark.conf.set("spark.sql.caseSensitive", "true")
    graph.refuses(graph.spark.sql(query), pattern)
    assert not graph.root.exists()


def test_columns_of_any_other_name_are_written_read_and_filtered(graph: Graph) -> None:
    names = ["userId", "sp ace", "Имя", "select", "c'q", "é", "e\u0301", "n" * 5000, 'q"q']
    rows = [("1", *range(len(names))), ("2", *range(100, 100 + len(names)))]
    graph.write(graph.spark.createDataFrame(rows, ["id", *names]))
    back = graph.read()
    assert set(back.columns) == {"id", *names}
    for at, name in enumerate(names):
        assert [row.id for row in back.where(F.col(f"`{name}`") == at).collect()] == ["1"], name


def test_large_strings_from_spark_leave_the_stored_type_alone(people: Graph) -> None:
    people.spark.conf.set("spark.sql.execution.arrow.useLargeVarTypes", "true")
    people.write(people.spark.sql("SELECT '1' AS id, 2 AS a, 'y' AS b"))
    assert people.stored().schema.field("b").type == pa.utf8()
    assert people.rows("b") == ["x", "y"]


def test_char_and_varchar_become_strings(graph: Graph) -> None:
    graph.spark.sql("CREATE TABLE padded (id STRING, c CHAR(5), v VARCHAR(3)) USING parquet")
    graph.spark.sql("INSERT INTO padded VALUES ('1', 'ab', 'xyz')")
    graph.write(graph.spark.table("padded"))
    assert [f.dataType for f in graph.read().schema.fields] == [T.StringType()] * 3
    assert graph.rows("c", "v") == [("ab   ", "xyz")]


def test_day_time_intervals_keep_their_microseconds(graph: Graph) -> None:
    graph.write(numbered(graph.spark, "INTERVAL '-0 23:59:59.999995' DAY TO SECOND"))
    (micros,) = graph.stored().to_table().column("c").cast(pa.int64()).to_pylist()
    assert micros == -86_399_999_995
    assert graph.read().where("c = INTERVAL '-0 23:59:59.999995' DAY TO SECOND").count() == 1


# --- types that are carried to a new graph -------------------------------------------------------


def test_a_copy_of_a_table_keeps_the_engines_types(graph: Graph, tmp_path: Path) -> None:
    source = Graph(graph.spark, graphs.unpack("v2", "rich", tmp_path / "from"))
    graph.write(source.read("node:Sample"), table="node:Sample")
    original, copy = (g.stored("node:Sample").schema for g in (source, graph))
    assert {f.name: (f.type, f.nullable) for f in copy} == {
        f.name: (f.type, f.nullable) for f in original
    }
    assert property_types.is_blob(copy.field("raw"))
    assert "enum(" in (graph.root / "_schema.pg").read_text()
    assert "@key" in (graph.root / "_schema.pg").read_text()
    one, other = (g.read("node:Sample") for g in (source, graph))
    assert one.schema.simpleString() == other.schema.simpleString()
    assert one.exceptAll(other).count() == other.exceptAll(one).count() == 0
