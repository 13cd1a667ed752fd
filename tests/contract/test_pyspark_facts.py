"""What PySpark's Python Data Source API really does, as far as this package leans on it (facts 1 to 11, 14, 39, 42).

These tests use a probe source, not ours. Where one fails after an upgrade of pyspark, the part of the
package that leans on the fact (named in the test) has to change with it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyspark
import pytest
from pyspark.errors import AnalysisException, PythonException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from tests.contract.probe import VARCHAR_MARK, Probe, filtering_source, ten_rows_source

PYSPARK = tuple(int(part) for part in pyspark.__version__.split(".")[:2])
PUSH_DOWN = "spark.sql.python.filterPushdown.enabled"
TAGGED = {"tag": "t"}


@pytest.fixture
def probe(spark: SparkSession, tmp_path: Path) -> Probe:
    return Probe(spark, tmp_path)


Create = Callable[..., str]


@pytest.fixture
def create(spark: SparkSession, probe: Probe) -> Iterator[Create]:
    """Make catalog tables of the probe; `varchar` gives `id` the VARCHAR mark."""
    made: list[str] = []

    def make(name: str, *, varchar: int | None = None, tag: str | None = None) -> str:
        mark = "" if varchar is None else f", varchar '{varchar}'"
        spark.sql(
            f"CREATE TABLE {name} USING probe"
            f" OPTIONS (path '{probe.folder}/{name}', tag '{tag or name}'{mark})"
        )
        made.append(name)
        return name

    yield make
    for name in made:
        spark.sql(f"DROP TABLE IF EXISTS {name}")


def arrived(probe: Probe, work: Callable[[], Any]) -> dict[str, Any]:
    """Return the one `writer` call that `work` leads to."""
    probe.forget()
    work()
    return probe.only("writer")


# --- fact 1: catalog tables -------------------------------------------------------------------


def test_create_table_gives_schema_the_options_and_provider_and_a_file_uri(
    create: Create, probe: Probe
) -> None:
    create("t")
    options = probe.only("schema")["options"]
    assert options["tag"] == options["option.tag"] == "t"
    assert options["provider"] == "probe"
    assert options["path"] == options["location"] == f"file:{probe.folder}/t"


def test_catalog_tables_reach_reader_and_writer_without_options(
    spark: SparkSession, create: Create, probe: Probe
) -> None:
    create("t")
    probe.forget()
    spark.sql("SELECT * FROM t").collect()
    spark.sql("INSERT INTO t VALUES ('a', 1)")
    assert {tuple(call["options"]) for call in probe.calls("init")} == {()}
    assert probe.only("reader")["options"] == {}
    assert probe.only("writer")["options"] == {}


def test_field_metadata_of_create_table_reaches_reader_and_writer(
    spark: SparkSession, create: Create, probe: Probe
) -> None:
    create("t")
    probe.forget()
    spark.sql("SELECT n FROM t").collect()
    assert probe.only("reader")["metadata"] == [TAGGED, TAGGED]
    assert arrived(probe, lambda: spark.sql("INSERT INTO t VALUES ('a', 1)"))["metadata"] == [
        TAGGED,
        TAGGED,
    ]
    overwrite = arrived(probe, lambda: spark.sql("INSERT OVERWRITE t VALUES ('a', 1)"))
    assert (overwrite["metadata"], overwrite["overwrite"]) == ([TAGGED, TAGGED], True)


def test_a_column_list_arrives_in_the_order_of_the_table(
    spark: SparkSession, create: Create, probe: Probe
) -> None:
    create("t")
    call = arrived(probe, lambda: spark.sql("INSERT INTO t (n, id) VALUES (1, 'a')"))
    assert (call["names"], call["metadata"]) == (["id", "n"], [TAGGED, TAGGED])


def test_a_column_list_that_leaves_columns_out_is_filled_with_null_from_4_1_on(
    spark: SparkSession, create: Create, probe: Probe
) -> None:
    create("t")

    def insert() -> None:
        spark.sql("INSERT INTO t (id) VALUES ('a')")

    if PYSPARK < (4, 1):
        with pytest.raises(AnalysisException, match="CANNOT_FIND_DATA"):
            insert()
    else:
        call = arrived(probe, insert)
        assert (call["names"], call["nullable"]) == (["id", "n"], [False, True])


def test_without_the_varchar_mark_the_writer_sees_the_metadata_of_the_query(
    spark: SparkSession, create: Create, probe: Probe
) -> None:
    create("t")
    create("u")
    call = arrived(probe, lambda: spark.sql("INSERT INTO u SELECT * FROM t"))
    assert [m["tag"] for m in call["metadata"]] == ["t", "t"]


@pytest.mark.parametrize(
    "statement",
    [
        "INSERT INTO u SELECT * FROM t",
        "INSERT INTO u SELECT * FROM plain",
        "INSERT OVERWRITE u SELECT * FROM t",
        "INSERT INTO u SELECT CAST(id AS STRING) AS id, n FROM u",
    ],
)
def test_with_the_varchar_mark_the_writer_sees_the_metadata_of_the_table_without_the_mark(
    spark: SparkSession, create: Create, probe: Probe, statement: str
) -> None:
    create("plain")
    create("t", varchar=2**30 + 1)
    create("u", varchar=2**30 + 2)
    call = arrived(probe, lambda: spark.sql(statement))
    assert call["metadata"] == [{"tag": "u"}, {"tag": "u"}]


def test_insert_into_of_a_frame_brings_the_metadata_of_the_table_without_the_mark(
    spark: SparkSession, create: Create, probe: Probe
) -> None:
    create("t", varchar=2**30 + 1)
    create("u", varchar=2**30 + 2)
    call = arrived(probe, lambda: spark.table("t").write.insertInto("u"))
    assert call["metadata"] == [{"tag": "u"}, {"tag": "u"}]


def test_an_insert_of_a_table_into_itself_keeps_the_varchar_mark(
    spark: SparkSession, create: Create, probe: Probe
) -> None:
    create("t", varchar=2**30 + 1)
    for statement in ("INSERT INTO t SELECT * FROM t", "INSERT OVERWRITE t SELECT * FROM t"):
        call = arrived(probe, lambda statement=statement: spark.sql(statement))
        assert call["metadata"][0] == {"tag": "t", VARCHAR_MARK: f"varchar({2**30 + 1})"}


def test_ctas_and_save_as_table_arrive_like_an_insert_and_keep_the_varchar_mark(
    spark: SparkSession, create: Create, probe: Probe
) -> None:
    create("t", varchar=2**30 + 1)
    place = f"{probe.folder}/made"
    marked = {"tag": "t", VARCHAR_MARK: f"varchar({2**30 + 1})"}
    try:
        call = arrived(
            probe,
            lambda: spark.sql(
                f"CREATE TABLE made USING probe OPTIONS (path '{place}') AS SELECT * FROM t"
            ),
        )
        assert (call["options"], call["metadata"]) == ({}, [marked, TAGGED])
        spark.sql("DROP TABLE made")
        frame = spark.table("t")
        call = arrived(probe, lambda: frame.write.format("probe").saveAsTable("made"))
        assert (call["options"], call["metadata"]) == ({}, [marked, TAGGED])
    finally:
        spark.sql("DROP TABLE IF EXISTS made")


def test_the_varchar_mark_leaves_the_table_a_string_table(
    spark: SparkSession, create: Create
) -> None:
    create("t", varchar=2**30 + 1)
    assert spark.table("t").dtypes == [("id", "string"), ("n", "int")]
    assert [r.data_type for r in spark.sql("DESCRIBE t").collect()][:2] == ["string", "int"]
    assert spark.sql("SELECT id FROM t").collect() == [("x",)]


def test_with_explicit_columns_schema_is_never_called_and_nothing_survives(
    spark: SparkSession, probe: Probe
) -> None:
    spark.sql(
        f"CREATE TABLE named (id STRING, n INT) USING probe"
        f" OPTIONS (path '{probe.folder}/named', tag 'named')"
    )
    try:
        assert probe.calls("schema") == []
        call = arrived(probe, lambda: spark.sql("INSERT INTO named VALUES ('a', 1)"))
        assert (call["options"], call["metadata"]) == ({}, [{}, {}])
    finally:
        spark.sql("DROP TABLE named")


def test_a_temporary_view_keeps_its_options(spark: SparkSession, probe: Probe) -> None:
    spark.sql(f"CREATE TEMPORARY VIEW v USING probe OPTIONS (path '{probe.folder}/v', tag 'v')")
    try:
        spark.sql("SELECT * FROM v").collect()
        assert probe.only("reader")["options"] == {"path": f"{probe.folder}/v", "tag": "v"}
        assert "provider" not in probe.only("schema")["options"]
        spark.sql("INSERT INTO v VALUES ('a', 1)")
        assert probe.only("writer")["options"]["tag"] == "v"
    finally:
        spark.catalog.dropTempView("v")


def test_drop_table_leaves_the_path_and_truncate_is_refused(
    spark: SparkSession, create: Create, probe: Probe
) -> None:
    for ending in ("", " PURGE"):
        create("t")
        kept = probe.folder / "t" / "file"
        kept.parent.mkdir(exist_ok=True)
        kept.touch()
        with pytest.raises(AnalysisException, match="truncate"):
            spark.sql("TRUNCATE TABLE t")
        spark.sql(f"DROP TABLE t{ending}")
        assert kept.exists()


# --- fact 2-5, 10, 11, 14: one load, one write ------------------------------------------------


def test_init_runs_once_per_load_and_state_set_by_schema_reaches_every_reader(
    spark: SparkSession, probe: Probe
) -> None:
    frame = spark.read.format("probe").option("tag", "t").load("/g")
    frame.collect()
    frame.where("n = 1").collect()
    assert len(probe.calls("init")) == 1
    states = [call["state"] for call in probe.calls("reader")]
    assert states == [["schema"]] * len(states) != []


def test_processes_that_plan_or_run_tasks_carry_the_mark_of_those_that_are_used_again(
    spark: SparkSession, probe: Probe
) -> None:
    # What omnigraph_spark.storage.python_workers goes by.
    frame = spark.read.format("probe").load("/g")
    frame.write.format("probe").mode("append").save("/g")
    events = ("schema", "reader", "writer", "write", "commit")
    assert {event: probe.only(event)["used_again"] for event in events} == dict.fromkeys(
        events, True
    )


def test_with_a_users_schema_init_runs_and_schema_does_not(
    spark: SparkSession, probe: Probe
) -> None:
    spark.read.format("probe").schema("n INT").load("/g").collect()
    assert (len(probe.calls("init")), probe.calls("schema")) == (1, [])


def test_option_keys_arrive_in_lower_case(spark: SparkSession, probe: Probe) -> None:
    spark.read.format("probe").option("versionAsOf", "X").load("/g").collect()
    assert probe.only("reader")["options"]["versionasof"] == "X"


def append(frame: DataFrame) -> None:
    frame.write.format("probe").mode("append").save("/g")


def test_what_a_task_sets_on_the_writer_never_reaches_commit_and_messages_do(
    spark: SparkSession, probe: Probe
) -> None:
    append(spark.range(0, 7, 1, 2))
    commit = probe.only("commit")
    assert commit["state"] == "as the constructor left it"
    assert sorted(commit["messages"]) == ["3", "4"]


def test_abort_follows_a_commit_that_raised_with_all_messages_in_another_call(
    spark: SparkSession, probe: Probe
) -> None:
    probe.fail_commits()
    with pytest.raises(AnalysisException, match=r"\[OMNIGRAPH_STORAGE\] commit fails"):
        append(spark.range(0, 7, 1, 2))
    assert [call["event"] for call in probe.calls()][-2:] == ["commit", "abort"]
    assert sorted(probe.only("abort")["messages"]) == ["3", "4"]


def test_a_failed_task_is_a_none_in_the_messages_of_abort_and_commit_is_not_entered(
    spark: SparkSession, probe: Probe
) -> None:
    with pytest.raises(PythonException, match="thirteen rows"):
        append(spark.range(0, 13, 1, 1))
    assert probe.calls("commit") == []
    assert None in probe.only("abort")["messages"]


def test_a_frame_without_rows_still_commits(spark: SparkSession, probe: Probe) -> None:
    append(spark.range(0))
    assert set(probe.only("commit")["messages"]) <= {"0"}


@pytest.mark.parametrize("mode", ["errorifexists", "ignore"])
def test_save_modes_other_than_append_and_overwrite_are_refused_by_spark(
    spark: SparkSession, probe: Probe, mode: str
) -> None:
    with pytest.raises(AnalysisException, match="UNSUPPORTED_DATA_SOURCE_SAVE_MODE"):
        spark.range(1).write.format("probe").mode(mode).save("/g")
    assert probe.calls("writer") == []


# --- fact 7: filter push-down -----------------------------------------------------------------


@pytest.fixture
def push_down(spark: SparkSession) -> Iterator[Callable[[str], None]]:
    before = spark.conf.get(PUSH_DOWN, None) if PYSPARK >= (4, 1) else None
    yield lambda value: spark.conf.set(PUSH_DOWN, value)
    if before is None:
        spark.conf.unset(PUSH_DOWN)
    else:
        spark.conf.set(PUSH_DOWN, before)


@pytest.mark.skipif(PYSPARK < (4, 1), reason="4.0 has no filter push-down")
def test_overriding_push_filters_fails_every_read_while_push_down_is_off(
    spark: SparkSession, push_down: Callable[[str], None], tmp_path: Path
) -> None:
    spark.dataSource.register(filtering_source("overriding", str(tmp_path / "pushed")))
    push_down("false")
    with pytest.raises(AnalysisException, match="DATA_SOURCE_PUSHDOWN_DISABLED"):
        spark.read.format("filtering_overriding").load().collect()


def test_a_callable_on_the_instance_reads_with_push_down_off_and_gets_filters_with_it_on(
    spark: SparkSession, push_down: Callable[[str], None], tmp_path: Path
) -> None:
    pushed = tmp_path / "pushed"
    spark.dataSource.register(filtering_source("callable", str(pushed)))

    def read() -> int:
        return spark.read.format("filtering_callable").load().where("id = 'x'").count()

    push_down("false")
    assert read() == 1
    assert not pushed.exists()
    push_down("true")
    assert read() == 1
    assert pushed.exists() == (PYSPARK >= (4, 1))


# --- fact 9: found without registration -------------------------------------------------------


def test_our_source_is_found_by_its_name_without_a_call_to_register(spark: SparkSession) -> None:
    with pytest.raises(AnalysisException, match="OMNIGRAPH_GRAPH_NOT_FOUND"):
        spark.newSession().read.format("omnigraph").load("/no/such/graph")


# --- fact 39: field metadata on the way -------------------------------------------------------

KEPT: dict[str, Callable[[DataFrame], DataFrame]] = {
    "filter": lambda df: df.where("n = 1"),
    "alias": lambda df: df.select(F.col("id").alias("id")),
    "cast of another column": lambda df: df.select("id", F.col("n").cast("bigint")),
    "withColumn on another column": lambda df: df.withColumn("n", F.col("n") + 1),
    "inner join": lambda df: df.join(df.select("id"), "id"),
    "groupBy": lambda df: df.groupBy("id").count(),
    "repartition": lambda df: df.repartition(3),
    "left side of a union": lambda df: df.select("id").unionByName(_other(df)),
}
LOST: dict[str, Callable[[DataFrame], DataFrame]] = {
    "cast of it": lambda df: df.select(F.col("id").cast("string").alias("id")),
    "a function of it": lambda df: df.select(F.lower("id").alias("id")),
    "right side of a union": lambda df: _other(df).unionByName(df.select("id")),
    "full outer join": lambda df: df.select("id").join(_other(df), "id", "full_outer"),
    "createDataFrame": lambda df: df.sparkSession.createDataFrame(df.collect(), "id STRING, n INT"),
}


def _other(df: DataFrame) -> DataFrame:
    return df.sparkSession.range(1).select(F.lit("y").alias("id"))


def _read(spark: SparkSession) -> DataFrame:
    return spark.read.format("probe").option("tag", "t").load("/g")


@pytest.mark.parametrize("plan", list(KEPT))
def test_field_metadata_survives(spark: SparkSession, probe: Probe, plan: str) -> None:
    assert KEPT[plan](_read(spark)).schema["id"].metadata.get("tag") == "t"


@pytest.mark.parametrize("plan", list(LOST))
def test_field_metadata_is_lost(spark: SparkSession, probe: Probe, plan: str) -> None:
    assert "tag" not in LOST[plan](_read(spark)).schema["id"].metadata


def test_field_metadata_of_a_read_reaches_the_writer(spark: SparkSession, probe: Probe) -> None:
    frame = _read(spark).where("n = 1")
    assert arrived(probe, lambda: append(frame))["metadata"] == [TAGGED, TAGGED]


@pytest.mark.skipif(PYSPARK < (4, 1), reason="4.0 has no filter push-down")
def test_spark_gives_a_frame_that_is_used_again_the_rows_of_its_last_push_down(
    spark: SparkSession, push_down: Callable[[str], None]
) -> None:
    """When this fails, Spark is mended, and `pushDownFilters` may become the default."""
    spark.dataSource.register(ten_rows_source())
    push_down("true")
    frame = spark.read.format("ten_rows").load()
    assert frame.count() == 10
    assert frame.where("a = 3").count() == 1
    assert frame.count() == 1
    both = frame.where("a = 3").union(frame.where("a = 5"))
    assert [row.a for row in both.collect()] == [5, 5]
    assert frame.where("a = 1 OR a = 2").count() == 0
