"""Public reports of this field as tests: reads, filters, counts, snapshots, paths."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from omnigraph_spark.errors import GraphNotFoundError, OptionError
from omnigraph_spark.manifest import snapshot
from tests.support.frames import load, people, placed, refused, rows, save, storage_of
from tests.support.s3 import REGION, Bucket
from tests.support.stores import Store

pytestmark = pytest.mark.long

TABLE = "node:Thing"


def stored(frame: DataFrame, store: Store, **options: str) -> DataFrame:
    """Write a frame as the table of a new graph and return it as it is read."""
    root = placed(store, f"g{len(os.listdir(store.folder))}")
    save(frame, root, table=TABLE, **options)
    return load(frame.sparkSession, root, table=TABLE)


def values(frame: DataFrame, column: str) -> list[Any]:
    return [row[column] for row in frame.orderBy("id").collect()]


# --- filters, pushed and not ---------------------------------------------------------------------


@pytest.mark.parametrize("zone", ["America/Los_Angeles", "Asia/Kolkata", "UTC"])
def test_time_literals_mean_the_session_zone_and_keep_microseconds(
    spark: SparkSession, local_store: Store, pushdown: str, zone: str
) -> None:
    spark.conf.set("spark.sql.session.timeZone", "UTC")
    frame = spark.sql(
        "SELECT * FROM VALUES ('a', TIMESTAMP'2024-01-01 08:00:00Z', TIMESTAMP_NTZ'2024-01-01 08:00:00'),"
        " ('b', TIMESTAMP'1969-12-31 23:59:59.500001Z', TIMESTAMP_NTZ'1969-12-31 23:59:59.500001')"
        " AS t(id, ts, z)"
    )
    read = stored(frame, local_store)
    spark.conf.set("spark.sql.session.timeZone", zone)
    local = {
        "America/Los_Angeles": ("2024-01-01 00:00:00", "1969-12-31 16:00:00"),
        "Asia/Kolkata": ("2024-01-01 13:30:00", "1970-01-01 05:30:00"),
        "UTC": ("2024-01-01 08:00:00", "1970-01-01 00:00:00"),
    }[zone]
    assert values(read.where(f"ts = TIMESTAMP'{local[0]}'"), "id") == ["a"]
    assert values(read.where(f"ts < TIMESTAMP'{local[1]}'"), "id") == ["b"]
    assert values(read.where("z = TIMESTAMP_NTZ'2024-01-01 08:00:00'"), "id") == ["a"]
    assert values(read.where("z = TIMESTAMP_NTZ'1969-12-31 23:59:59.500001'"), "id") == ["b"]


def test_decimal_literals_are_exact(spark: SparkSession, local_store: Store, pushdown: str) -> None:
    wide = "99999999999999999999.999999999999999999"
    read = stored(
        spark.sql(
            "SELECT id, CAST(p AS DECIMAL(10,2)) p, CAST(w AS DECIMAL(38,18)) w FROM VALUES "
            f"('a', '1.99', '{wide}'), ('b', '2.00', '0'), ('c', '2.01', '-1') AS t(id, p, w)"
        ),
        local_store,
    )
    assert values(read.where("p > 2.00"), "id") == ["c"]
    assert values(read.where("p = 2"), "id") == ["b"]
    assert values(read.where("p IN (1.99, 2.01)"), "id") == ["a", "c"]
    assert values(read.where(f"w = CAST('{wide}' AS DECIMAL(38,18))"), "id") == ["a"]
    assert str(read.where("id = 'a'").first().w) == wide  # type: ignore[union-attr]


TEXTS = ["O'Brien", "a\\b", "x' OR 1=1 --", "", "new\nline", "😀"]


def test_text_in_a_filter_is_taken_as_it_is(
    spark: SparkSession, local_store: Store, pushdown: str
) -> None:
    frame = spark.createDataFrame(
        [(str(i), text) for i, text in enumerate(TEXTS)], "id STRING, n STRING"
    )
    read = stored(frame, local_store)
    for text in TEXTS:
        assert values(read.where(F.col("n") == F.lit(text)), "n") == [text]
    assert values(read.where(F.col("n").isin(TEXTS)), "n") == TEXTS
    assert values(read.where("n <> 'zz'"), "n") == TEXTS


def test_negations_treat_null_as_spark_does(
    spark: SparkSession, local_store: Store, pushdown: str
) -> None:
    read = stored(
        spark.createDataFrame([("a", None), ("b", 1), ("c", 2)], "id STRING, b INT"), local_store
    )
    for condition, expected in (
        ("NOT (b <=> 1)", [None, 2]),
        ("b <=> NULL", [None]),
        ("NOT (b = 1)", [2]),
        ("NOT (b IN (1) AND b IN (2))", [1, 2]),
        ("NOT (b > 1 OR b IS NULL)", [1]),
    ):
        assert values(read.where(condition), "b") == expected, condition


@pytest.mark.parametrize("kind", ["FLOAT", "DOUBLE"])
def test_special_floats_are_found_as_spark_finds_them(
    spark: SparkSession, local_store: Store, pushdown: str, kind: str
) -> None:
    texts = ["1.0", "NaN", None, "2.0", "Infinity", "-0.0"]
    frame = spark.createDataFrame(
        [(str(i), text) for i, text in enumerate(texts)], "id STRING, t STRING"
    ).selectExpr("id", f"CAST(t AS {kind}) AS x")
    read = stored(frame, local_store)
    for condition, expected in (
        (f"x = CAST('NaN' AS {kind})", ["1"]),
        ("x > 1.5", ["1", "3", "4"]),
        ("isnan(x)", ["1"]),
        ("x <> 1.0", ["1", "3", "4", "5"]),
        ("x = 0.0", ["5"]),
        (f"x <= CAST('NaN' AS {kind})", ["0", "1", "3", "4", "5"]),
        (f"x IN (CAST('NaN' AS {kind}), 1.0)", ["0", "1"]),
    ):
        assert values(read.where(condition), "id") == expected, condition


def test_very_large_predicates_give_the_right_rows(
    spark: SparkSession, local_store: Store, pushdown: str
) -> None:
    read = stored(
        spark.range(20_000).selectExpr("CAST(id AS STRING) AS id", "id AS n"), local_store
    )
    assert read.where(F.col("id").isin([str(i) for i in range(10_000)])).count() == 10_000
    assert read.where(" OR ".join(f"n = {i}" for i in range(500))).count() == 500
    assert read.where(" AND ".join(f"n <> {i}" for i in range(500))).count() == 19_500


def test_limits_come_after_filters(spark: SparkSession, local_store: Store, pushdown: str) -> None:
    root = placed(local_store)
    for part in range(5):
        rows_of = spark.range(part * 20, part * 20 + 20).selectExpr(
            "lpad(CAST(id AS STRING), 3, '0') AS id", "id AS n", "IF(id > 90, 'X', 'y') AS t"
        )
        save(rows_of.coalesce(1), root, table=TABLE)
    read = load(spark, root, table=TABLE)
    assert read.where("n > 90 AND lower(t) = 'x'").limit(3).count() == 3
    assert read.limit(0).count() == 0
    assert read.limit(1000).count() == 100
    assert [r.id for r in read.orderBy(F.desc("id")).limit(2).collect()] == ["099", "098"]


# --- counts and snapshots ------------------------------------------------------------------------


def test_counts_need_no_columns(spark: SparkSession, local_store: Store, pushdown: str) -> None:
    frame = spark.sql(
        "SELECT id, array(1.0F, 2.0F) AS v, CAST('x' AS BINARY) AS pic"
        " FROM VALUES ('1'), ('2'), ('3') AS t(id)"
    )
    read = stored(frame, local_store)
    assert read.count() == 3
    assert read.select(F.lit(1)).count() == 3
    assert read.where("id > '1'").count() == 2
    read.createOrReplaceTempView("things")
    assert spark.sql("SELECT 1 WHERE EXISTS (SELECT * FROM things)").count() == 1


def test_a_frame_keeps_its_snapshot_in_all_its_actions(
    spark: SparkSession, local_store: Store
) -> None:
    root = placed(local_store)
    save(people(spark), root, table="node:Person")
    frame = load(spark, root, table="node:Person")
    save(people(spark, [("c", "Cy", 1)]), root, table="node:Person")
    assert frame.count() == 2
    assert frame.join(frame, "id").count() == 2
    assert frame.where("age > 26").join(frame.where("age < 26"), "id", "full").count() == 2
    newest = load(spark, root, metadata="history").selectExpr("max(version) AS v").first()
    assert newest is not None
    save(people(spark, [("d", "Di", 1)]), root, table="node:Person")
    pinned = load(spark, root, table="node:Person", versionAsOf=str(newest.v))
    assert rows(pinned, "id") == [("a",), ("b",), ("c",)]


# --- paths and stores ----------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["my graph", "gräph", "a#b", "a%20b", "plain"])
def test_all_spellings_of_a_path_are_one_graph(
    spark: SparkSession, tmp_path: Path, name: str
) -> None:
    root = str(tmp_path / name)
    save(people(spark), root, table="node:Person")
    encoded = (tmp_path / name).as_uri()
    spellings = [root, f"{root}/", encoded, f"{encoded}/"]
    if "%" not in name:
        spellings.append(f"file:{root}")
    for spelling in spellings:
        assert load(spark, spelling, table="node:Person").count() == 2, spelling
    assert os.listdir(tmp_path) == [name]


@pytest.mark.parametrize("path", ["dbfs:/x", "hdfs://host/g", "http://host/g"])
def test_an_unknown_scheme_is_refused_by_name(spark: SparkSession, path: str) -> None:
    with refused(OptionError, path.partition(":")[0]):
        load(spark, path, table="node:Person")
    with refused(OptionError, path.partition(":")[0]):
        save(people(spark), path, table="node:Person")


def test_a_missing_graph_is_said_to_be_none_and_nothing_is_made(
    spark: SparkSession, tmp_path: Path
) -> None:
    with refused(GraphNotFoundError, "holds no OmniGraph graph"):
        load(spark, str(tmp_path / "none"), table="node:Person")
    assert os.listdir(tmp_path) == []


def test_storage_options_work_in_any_case_and_for_s3a(spark: SparkSession, bucket: Bucket) -> None:
    options = {
        "storage.AWS_ENDPOINT": bucket.endpoint,
        "storage.Allow_Http": "True",
        "storage.aws_region": REGION,
    }
    people(spark).write.format("omnigraph").options(table="node:Person", **options).mode(
        "append"
    ).save(f"{bucket.uri}/g")
    for uri in (f"{bucket.uri}/g", f"{bucket.uri}/g/", f"s3a://{bucket.name}/g"):
        read = spark.read.format("omnigraph").options(table="node:Person", **options).load(uri)
        assert rows(read, "id") == [("a",), ("b",)]
    assert {key.partition("/")[0] for key in bucket.objects()} == {"g"}


# --- sessions ------------------------------------------------------------------------------------


def test_many_small_tasks_leave_one_file_on_every_store(spark: SparkSession, store: Store) -> None:
    root = placed(store, "small")
    numbers = spark.range(300).selectExpr("cast(id as string) as id", "id as n")
    save(numbers.repartition(15), root, table=TABLE)
    assert rows(load(spark, root, table=TABLE)) == rows(numbers)
    entry = snapshot.load(storage_of(root)).entry(TABLE)
    assert len(storage_of(root).list(f"{entry.location}/data")) == 1
    changed = numbers.selectExpr("cast(cast(id as int) + 150 as string) as id", "-n as n")
    save(changed.repartition(15), root, table=TABLE, writeMode="merge")
    kept = numbers.where("n < 150").union(changed)
    assert rows(load(spark, root, table=TABLE)) == rows(kept)
    entry = snapshot.load(storage_of(root)).entry(TABLE)
    assert len(storage_of(root).list(f"{entry.location}/data")) == 3


def test_filters_work_whatever_the_push_down_setting_is(
    spark: SparkSession, local_store: Store
) -> None:
    read = stored(people(spark).select("id", "age"), local_store)
    setting = "spark.sql.python.filterPushdown.enabled"
    assert read.where("id = 'a'").count() == 1
    for value in ("true", "false"):
        spark.conf.set(setting, value)
        assert read.where("id = 'a'").count() == 1


def test_with_push_down_asked_for_and_on_the_scan_finds_the_row(
    spark: SparkSession, local_store: Store, pushdown: str
) -> None:
    root = placed(local_store)
    save(people(spark), root, table=TABLE)
    for condition, found in (("id = 'a'", ["a"]), ("age > 26 OR name = 'Ben'", ["a", "b"])):
        read = load(spark, root, table=TABLE, pushDownFilters="true")
        assert values(read.where(condition), "id") == found


@pytest.mark.skipif("__import__('pyspark').__version__.startswith('4.0')", reason="no push-down")
def test_pushed_filters_reach_lance_only_where_they_are_asked_for(
    spark: SparkSession, local_store: Store
) -> None:
    root = placed(local_store)
    save(people(spark), root, table=TABLE)
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")

    def plan(**options: str) -> str:
        read = load(spark, root, table=TABLE, **options).where("id = 'a'")
        return str(read._jdf.queryExecution().executedPlan().toString())

    assert "Filter (" in plan()
    assert "Filter (" not in plan(pushDownFilters="true")


def test_a_second_session_finds_the_source_without_registration(
    spark: SparkSession, local_store: Store
) -> None:
    root = placed(local_store)
    save(people(spark), root, table="node:Person")
    other = spark.newSession()
    assert other.read.format("omnigraph").option("table", "Person").load(root).count() == 2
