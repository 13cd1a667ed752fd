"""Whole-graph frames through Spark: pack, unpack, write and read back."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from omnigraph_spark import OmniGraph, pack, unpack
from omnigraph_spark.errors import OptionError, SchemaMismatchError
from omnigraph_spark.spark import field_metadata, frames
from tests.support.graphs import file_hashes

MISMATCH = r"\[OMNIGRAPH_SCHEMA_MISMATCH\]"


@pytest.fixture
def tables(spark: SparkSession) -> dict[str, DataFrame]:
    """Tables that disagree on the type of `age`, one of them keyed and without ids."""
    return {
        "node:Person": spark.sql("SELECT 'ann' AS name, 7 AS age UNION ALL SELECT 'bob', NULL"),
        "node:Company": spark.sql("SELECT 'c' AS id, 'old' AS age, array(1.5F, 2.5F) AS vec"),
        "edge:Knows": spark.sql("SELECT 'ann' AS src, 'bob' AS dst, DATE'2024-02-29' AS since"),
    }


@pytest.fixture
def packed(tables: dict[str, DataFrame]) -> DataFrame:
    return pack(tables, endpoints={"Knows": "Person -> Person"}, keys={"Person": "name"})


def write(frame: DataFrame, root: Path, **options: str) -> None:
    frame.write.format("omnigraph").mode("append").options(**options).save(str(root))


def read(spark: SparkSession, root: Path, **options: str) -> DataFrame:
    return spark.read.format("omnigraph").options(**options).load(str(root))


def test_a_packed_frame_has_one_column_per_property_and_type(packed: DataFrame) -> None:
    assert packed.columns == [
        "_table", "id", "src", "dst", "age__string", "age__int", "vec", "name", "since",
    ]  # fmt: skip
    rows = {(r._table, r.name, r.age__int, r.age__string, r.src) for r in packed.collect()}
    assert rows == {
        ("node:Person", "ann", 7, None, None),
        ("node:Person", "bob", None, None, None),
        ("node:Company", None, None, "old", None),
        ("edge:Knows", None, None, None, "ann"),
    }


@pytest.mark.parametrize("kind", ["TINYINT", "INT", "BIGINT", "BOOLEAN", "DATE"])
def test_ids_and_ends_of_other_types_are_packed_as_the_text_that_a_table_stores(
    spark: SparkSession, tmp_path: Path, kind: str
) -> None:
    value = {"BOOLEAN": "true", "DATE": "DATE'2026-01-02'"}.get(kind, f"CAST(7 AS {kind})")
    given = {
        "node:Person": spark.sql(f"SELECT {value} AS id, 1 AS n"),
        "edge:Knows": spark.sql(f"SELECT {value} AS id, {value} AS src, {value} AS dst, 2 AS n"),
    }
    whole = pack(given, endpoints={"Knows": "Person -> Person"})
    write(whole, tmp_path / "g")
    for key, frame in given.items():
        ends = {"endpoints": "Knows: Person -> Person"} if key.startswith("edge") else {}
        write(frame, tmp_path / "one", table=key, **ends)
        columns = [name for name in frame.columns if name != "n"]
        stored = [read(spark, tmp_path / g, table=key).select(columns) for g in ("g", "one")]
        assert stored[0].collect() == stored[1].collect()
        assert set(stored[0].first()) == {spark.sql(f"SELECT CAST({value} AS STRING)").first()[0]}
    gone = pack({"edge:Knows": given["edge:Knows"].select("id")})
    write(gone, tmp_path / "g", writeMode="delete")
    assert read(spark, tmp_path / "g", table="edge:Knows").count() == 0


def test_ids_of_other_types_become_text_on_a_branch_and_in_a_transaction(
    spark: SparkSession, tmp_path: Path
) -> None:
    graph = OmniGraph.for_path(spark, str(tmp_path / "g"))

    def person(number: int) -> dict[str, DataFrame]:
        return {"node:Person": spark.sql(f"SELECT {number} AS id, 1 AS n")}

    graph.write(person(1))
    write(pack(person(2)), tmp_path / "g", branch="dev", branchFrom="main")
    graph.write(person(3), branch="dev")
    with graph.transaction(branch="dev") as t:
        t.write(person(4))
        write(pack(person(5)), tmp_path / "g", **t.options)
    found = [
        {row.id for row in read(spark, tmp_path / "g", table="Person", branch=branch).collect()}
        for branch in ("main", "dev")
    ]
    assert found == [{"1"}, {"1", "2", "3", "4", "5"}]


@pytest.mark.parametrize("column", ["id", "src"])
def test_ids_and_ends_that_are_never_text_are_refused_by_column_when_they_are_packed(
    spark: SparkSession, column: str
) -> None:
    values = {"id": "'e'", "src": "'a'", "dst": "'b'", column: "1.5D"}
    frame = spark.sql("SELECT " + ", ".join(f"{value} AS {name}" for name, value in values.items()))
    with pytest.raises(SchemaMismatchError, match=rf"Column {column} of edge:Knows .* double"):
        pack({"edge:Knows": frame})


def test_a_property_of_two_types_keeps_both_on_the_way_through_a_graph(
    spark: SparkSession, packed: DataFrame, tmp_path: Path
) -> None:
    write(packed, tmp_path / "g", types="Company.vec: Vector(2)")
    whole = read(spark, tmp_path / "g")
    assert whole.columns == packed.columns
    assert [tuple(r) for r in whole.where("_table = 'node:Company'").select("id", "age__string", "vec").collect()] == [
        ("c", "old", [1.5, 2.5])
    ]  # fmt: skip
    write(whole, tmp_path / "copy")
    again = read(spark, tmp_path / "copy")
    assert again.schema.simpleString() == whole.schema.simpleString()
    assert whole.exceptAll(again).count() == again.exceptAll(whole).count() == 0
    for schema_file in ("_schema.pg", "_schema.ir.json", "__schema_state.json"):
        one, other = ((tmp_path / g / schema_file).read_text() for g in ("g", "copy"))
        assert one == other
    assert "vec: Vector(2)" in (tmp_path / "copy" / "_schema.pg").read_text()


def test_unpacking_gives_the_tables_back(packed: DataFrame, tables: dict[str, DataFrame]) -> None:
    parts = unpack(packed)
    assert list(parts) == ["edge:Knows", "node:Company", "node:Person"]
    for key, frame in tables.items():
        assert parts[key].columns == frame.columns
        assert parts[key].exceptAll(frame).count() == frame.exceptAll(parts[key]).count() == 0


def test_unpacking_leaves_out_what_the_frame_has_lost(packed: DataFrame) -> None:
    parts = unpack(packed.drop("vec", "since").where("age__int IS NULL"))
    assert parts["node:Company"].columns == ["id", "age"]
    assert parts["edge:Knows"].columns == ["src", "dst"]
    assert [row.name for row in parts["node:Person"].collect()] == ["bob"]


def test_a_frame_without_definitions_cannot_be_unpacked(packed: DataFrame) -> None:
    lost = packed.withColumn("_table", F.concat("_table", F.lit("")))
    with pytest.raises(SchemaMismatchError, match=MISMATCH + r".*pack"):
        unpack(lost)


def test_packing_what_was_read_keeps_the_versions_and_drops_the_fields_own_marks(
    spark: SparkSession, packed: DataFrame, tmp_path: Path
) -> None:
    root = tmp_path / "g"
    write(packed, root)
    person = read(spark, root, table="node:Person")
    more = person.limit(1).selectExpr("'cy' AS id", "'cy' AS name", "1 AS age")
    write(more, root, table="node:Person")
    company = read(spark, root, table="node:Company")
    again = pack({"node:Person": person, "node:Company": company})
    marks = field_metadata.read_marks(again.schema)
    assert [(mark.table_key, mark.version) for mark in marks] == [
        (f.table_key, f.version)
        for frame in (person, company)
        for f in field_metadata.read_marks(frame.schema)
    ]
    assert marks[0].version < marks[1].version
    assert all(
        field_metadata.READ not in f.metadata and field_metadata.TYPE not in f.metadata
        for f in again.schema.fields
        if f.name != "_table"
    )
    known = frames.definitions(again.schema)
    assert known is not None
    assert known.keys == {"Person": "name"}


def test_packing_tables_of_the_catalog_binds_the_frame_to_none_of_them(
    spark: SparkSession, packed: DataFrame, tmp_path: Path
) -> None:
    write(packed, tmp_path / "g")
    spark.sql(
        f"CREATE TABLE companies USING omnigraph "
        f"OPTIONS (path '{tmp_path / 'g'}', table 'node:Company')"
    )
    again = pack({"node:Company": spark.table("companies")})
    assert not [f.name for f in again.schema.fields if field_metadata.TABLE in f.metadata]
    assert not [f.name for f in again.schema.fields if field_metadata.VARCHAR in f.metadata]
    assert again.where("id = 'c'").count() == 1


def test_a_value_in_another_tables_column_fails_the_write_and_nothing_is_published(
    spark: SparkSession, packed: DataFrame, tmp_path: Path
) -> None:
    root = tmp_path / "g"
    write(packed, root)
    wrong = packed.withColumn(
        "age__string", F.when(F.col("name") == "bob", "x").otherwise(F.col("age__string"))
    )
    pattern = MISMATCH + r".*node:Person has a value in column age__string"
    with pytest.raises(Exception, match=pattern):
        write(wrong, root)
    assert read(spark, root).count() == 4


def test_an_unknown_table_in_the_rows_is_refused_and_nothing_is_published(
    spark: SparkSession, packed: DataFrame, tmp_path: Path
) -> None:
    root = tmp_path / "g"
    write(packed, root)
    strange = packed.select(F.lit("node:New").alias("_table"), F.lit("1").alias("id"))
    with pytest.raises(Exception, match=MISMATCH + r" _table names node:New.*pack"):
        write(strange, root)
    assert read(spark, root).count() == 4


@pytest.mark.parametrize(
    ("frames_of", "more", "error", "pattern"),
    [
        ({}, {}, OptionError, r"\[OMNIGRAPH_OPTION\] pack got no frames"),
        ({"Person": "SELECT '1' AS id"}, {}, OptionError, r"\[OMNIGRAPH_OPTION\]"),
        ({"node:../x": "SELECT '1' AS id"}, {}, OptionError, r"\[OMNIGRAPH_OPTION\]"),
        ({"node:A": "SELECT 1 AS x, 2 AS x"}, {}, SchemaMismatchError, MISMATCH + ".*column x"),
        (
            {"node:A": "SELECT INTERVAL '1' YEAR AS y"},
            {},
            SchemaMismatchError,
            MISMATCH + ".*Column y",
        ),
        ({"node:A": "SELECT '1' AS id"}, {"keys": {"A": "no"}}, OptionError, "OMNIGRAPH_OPTION"),
        ({"node:A": "SELECT '1' AS id"}, {"keys": {"B": "id"}}, OptionError, "OMNIGRAPH_OPTION"),
        (
            {"edge:E": "SELECT '1' AS src, '2' AS dst"},
            {"endpoints": {"E": "A"}},
            OptionError,
            "OMNIGRAPH_OPTION",
        ),
    ],
)
def test_what_cannot_be_packed_is_refused(
    spark: SparkSession,
    frames_of: dict[str, str],
    more: dict,
    error: type[Exception],
    pattern: str,
) -> None:
    with pytest.raises(error, match=pattern):
        pack({key: spark.sql(query) for key, query in frames_of.items()}, **more)


def test_names_that_differ_only_in_case_between_tables_keep_their_values(
    spark: SparkSession, tmp_path: Path
) -> None:
    spark.conf.set("spark.sql.caseSensitive", "true")
    root = tmp_path / "g"
    write(spark.sql("SELECT '1' AS id, 'upper' AS Name"), root, table="node:A")
    write(spark.sql("SELECT '2' AS id, 'lower' AS name"), root, table="node:B")
    rows = read(spark, root).orderBy("id").select("Name", "name").collect()
    assert [tuple(row) for row in rows] == [("upper", None), (None, "lower")]


def test_a_refused_whole_graph_write_changes_no_file(
    spark: SparkSession, packed: DataFrame, tmp_path: Path
) -> None:
    root = tmp_path / "g"
    write(packed, root)
    before = file_hashes(root)
    with pytest.raises(Exception, match=MISMATCH + r".*more"):
        write(packed.withColumn("more", F.lit(1)), root)
    assert file_hashes(root) == before


@pytest.mark.long
def test_node_properties_called_src_and_dst_are_shown_under_another_name_where_edges_are_too(
    spark: SparkSession, tmp_path: Path
) -> None:
    graph = OmniGraph.for_path(spark, str(tmp_path / "g"))
    airports = spark.sql("SELECT 'fra' AS id, 'E' AS dst, 7 AS src")
    flights = spark.sql("SELECT 'fra' AS src, 'fra' AS dst")
    both = {"node:Airport": airports, "edge:To": flights}
    at = graph.write(both, endpoints="To: Airport -> Airport").graph_version
    whole = graph.graph()
    assert whole.columns == ["_table", "id", "src", "dst", "dst__string", "src__int"]
    assert [tuple(r) for r in whole.where("src__int = 7").drop("_table").collect()] == [
        ("fra", None, None, "E", 7)
    ]
    write(whole, tmp_path / "copy")
    copy = OmniGraph.for_path(spark, str(tmp_path / "copy"))
    assert copy.table("Airport").exceptAll(graph.table("Airport")).isEmpty()
    assert copy.table("Airport").columns == graph.table("Airport").columns
    later = spark.sql("SELECT 'fra' AS id, 'A' AS dst")
    write(later, tmp_path / "g", table="node:Airport", writeMode="merge")
    for changed in (graph.changes(at + 1), graph.diff(f"main@{at}", "main")):
        found = changed.orderBy("_change_type").select("_change_type", "src", "dst__string", "src__int")  # fmt: skip
        assert [tuple(r) for r in found.collect()] == [
            ("update_postimage", None, "A", 7), ("update_preimage", None, "E", 7)
        ]  # fmt: skip
    alone = graph.diff(f"main@{at}", "main", "Airport")
    for changed in (graph.changes(at + 1, table="Airport"), alone):
        found = changed.orderBy("_change_type").select("_change_type", "src", "dst")
        assert [tuple(r) for r in found.collect()] == [
            ("update_postimage", 7, "A"), ("update_preimage", 7, "E")
        ]  # fmt: skip
