"""Writing frames with Spark: tables, whole graphs, ids, what is refused."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from omnigraph_spark import OmniGraph, pack, register
from omnigraph_spark.errors import (
    ExpectedVersionMismatch,
    IntegrityError,
    OptionError,
    SchemaMismatchError,
    StorageError,
    TableNotFoundError,
)
from tests.support import graphs
from tests.support.frames import (
    counts,
    knows,
    load,
    nothing_written,
    people,
    refused,
    rows,
    save,
    versions,
)
from tests.support.stores import Store

NODE = "node:Person"
EDGE = "edge:Knows"
ENDS = "Knows: Person -> Person"


@pytest.fixture
def uri(spark: SparkSession, local_store: Store) -> str:
    """A graph of two people and one edge."""
    root = local_store.uri("graph")
    frames = {NODE: people(spark), EDGE: knows(spark, ("a", "b"))}
    save(pack(frames, endpoints={"Knows": "Person -> Person"}), root)
    return root


# --- new graphs and tables -----------------------------------------------------------------------


def test_a_frame_makes_a_graph_and_reads_back(spark: SparkSession, local_store: Store) -> None:
    root = local_store.uri("new")
    save(people(spark), root, table=NODE)
    assert rows(load(spark, root, table=NODE)) == [("a", 30, "Ann"), ("b", 25, "Ben")]
    assert load(spark, root, table="Person").columns == ["id", "age", "name"]


def test_a_packed_frame_makes_all_its_tables_in_one_commit(spark: SparkSession, uri: str) -> None:
    assert counts(uri) == {EDGE: 1, NODE: 2}
    assert rows(load(spark, uri, metadata="history"), "tables")[-1] == ([EDGE, NODE],)


def test_an_edge_table_needs_its_ends(spark: SparkSession, uri: str) -> None:
    likes = knows(spark, ("a", "b"))
    with nothing_written(uri), refused(SchemaMismatchError, "endpoints 'Likes: "):
        save(likes, uri, table="edge:Likes")
    save(likes, uri, table="edge:Likes", endpoints="Likes: Person -> Person")
    assert rows(load(spark, uri, table="Likes"), "src", "dst") == [("a", "b")]


def test_an_edge_table_whose_end_is_no_table_is_refused(spark: SparkSession, uri: str) -> None:
    with nothing_written(uri), refused(OptionError, "Ghost"):
        save(knows(spark), uri, table="edge:Likes", endpoints="Likes: Person -> Ghost")


def test_options_for_creation_that_name_another_type_are_refused(
    spark: SparkSession, uri: str
) -> None:
    for option, value in (
        ("endpoints", "Knowz: Person -> Person"),
        ("keys", "Persn: name"),
        ("types", "Persn.age: I64"),
    ):
        with nothing_written(uri), refused(OptionError, f"{option} names .*Person"):
            save(people(spark), uri, table=NODE, **{option: value})


def test_the_types_option_gives_a_new_column_its_engine_type(
    spark: SparkSession, local_store: Store
) -> None:
    root = local_store.uri("new")
    frame = spark.sql("SELECT 'a' AS id, array(1f, 2f) AS vec, 7L AS n")
    save(frame, root, table="node:Doc", types="Doc.vec: Vector(2), Doc.n: U32")
    schema = local_store.storage("new").get("_schema.pg")
    assert schema is not None
    assert b"vec: Vector(2)" in schema
    assert b"n: U32" in schema
    assert rows(load(spark, root, table="Doc"), "n", "vec") == [(7, [1.0, 2.0])]
    with refused(OptionError, r"Doc\.wrong"):
        save(frame, local_store.uri("other"), table="node:Doc", types="Doc.wrong: U32")


def test_a_whole_graph_is_copied_in_one_commit(spark: SparkSession, local_store: Store) -> None:
    source, copy = local_store.fixture("v2", "social"), local_store.uri("copy")
    save(load(spark, source), copy)
    assert counts(copy) == counts(source)
    for key in counts(source):
        old, new = load(spark, source, table=key), load(spark, copy, table=key)
        assert new.schema.simpleString() == old.schema.simpleString()
        assert rows(new) == rows(old)


# --- ids -----------------------------------------------------------------------------------------


def test_edges_without_ids_get_a_ulid_each(spark: SparkSession, uri: str) -> None:
    many = spark.range(0, 100, 1, 4).select(F.lit("a").alias("src"), F.lit("b").alias("dst"))
    save(many, uri, table=EDGE)
    given = spark.sql("SELECT 'mine' AS id, 'a' AS src, 'b' AS dst UNION ALL SELECT NULL, 'b', 'a'")
    save(given, uri, table=EDGE)
    ids = [row.id for row in load(spark, uri, table=EDGE).collect()]
    assert len(set(ids)) == len(ids) == 103
    assert sum(len(one) == 26 for one in ids) == 102
    assert "mine" in ids


def test_keyed_nodes_have_their_key_as_id(spark: SparkSession, local_store: Store) -> None:
    root = local_store.uri("keyed")
    save(spark.sql("SELECT 'Ann' AS name"), root, table=NODE, keys="Person: name")
    save(spark.sql("SELECT CAST(NULL AS STRING) AS id, 'Ben' AS name"), root, table=NODE)
    save(spark.sql("SELECT '' AS id, '' AS name"), root, table=NODE)
    assert rows(load(spark, root, table=NODE), "id", "name") == [
        ("", ""),
        ("Ann", "Ann"),
        ("Ben", "Ben"),
    ]
    before = versions(root)
    with refused(IntegrityError, "isn't its key name.*'other'"):
        save(spark.sql("SELECT 'other' AS id, 'Cleo' AS name"), root, table=NODE)
    assert versions(root) == before


def test_a_node_without_an_id_is_refused(spark: SparkSession, uri: str) -> None:
    with nothing_written(uri), refused(IntegrityError, "id"):
        save(spark.sql("SELECT 'x' AS name"), uri, table=NODE)
    before = versions(uri)
    with refused(IntegrityError, "column id of node:Person"):
        save(spark.sql("SELECT CAST(NULL AS STRING) AS id, 'x' AS name"), uri, table=NODE)
    assert versions(uri) == before


def test_an_edge_without_an_end_is_refused(spark: SparkSession, uri: str) -> None:
    before = versions(uri)
    with refused(IntegrityError, "dst"):
        save(knows(spark, ("a", None)), uri, table=EDGE)  # type: ignore[arg-type]
    assert versions(uri) == before


# --- modes ---------------------------------------------------------------------------------------


def test_append_adds_and_overwrite_replaces_one_table(spark: SparkSession, uri: str) -> None:
    save(people(spark, [("c", "Cleo", 1)]), uri, table=NODE)
    assert counts(uri) == {EDGE: 1, NODE: 3}
    save(people(spark, [("d", "Dan", 2)]), uri, "overwrite", table=NODE)
    assert rows(load(spark, uri, table=NODE), "id") == [("d",)]
    assert counts(uri) == {EDGE: 1, NODE: 1}


def test_an_overwrite_of_a_packed_frame_replaces_the_listed_tables_alone(
    spark: SparkSession, uri: str
) -> None:
    save(people(spark), uri, table="node:Pet")
    save(pack({NODE: people(spark, [("z", "Zoe", 3)]), EDGE: knows(spark)}), uri, "overwrite")
    assert counts(uri) == {EDGE: 0, NODE: 1, "node:Pet": 2}


def test_a_whole_graph_frame_without_definitions_writes_the_tables_that_its_rows_name(
    spark: SparkSession, uri: str
) -> None:
    frame = spark.sql(
        f"SELECT '{NODE}' AS _table, 'z' AS id, CAST(NULL AS STRING) AS src, "
        "CAST(NULL AS STRING) AS dst, 'Zoe' AS name, 3 AS age"
    )
    before = versions(uri)
    save(frame, uri, "overwrite")
    assert rows(load(spark, uri, table=NODE)) == [("z", 3, "Zoe")]
    assert versions(uri)[EDGE] == before[EDGE]


def test_the_engine_and_the_reader_see_an_append_of_a_fixture(
    spark: SparkSession, local_store: Store
) -> None:
    root = local_store.fixture("v2", "social")
    before = counts(root)
    save(spark.sql("SELECT 'Zed' AS name, 41 AS age"), root, table=NODE)
    assert counts(root) == {**before, NODE: before[NODE] + 1}
    assert rows(load(spark, root, table=NODE).where("id = 'Zed'")) == [("Zed", "Zed", 41)]


# --- C15: empties --------------------------------------------------------------------------------


def test_appending_no_rows_changes_no_count_and_makes_a_new_table(
    spark: SparkSession, uri: str
) -> None:
    none = people(spark, []).limit(0)
    save(none, uri, table=NODE)
    assert counts(uri)[NODE] == 2
    save(none, uri, table="node:Pet")
    empty = load(spark, uri, table="node:Pet")
    assert (empty.count(), empty.columns) == (0, ["id", "age", "name"])


def test_overwriting_with_no_rows_empties_the_table(spark: SparkSession, uri: str) -> None:
    save(people(spark).where("false"), uri, "overwrite", table=NODE)
    assert load(spark, uri, table=NODE).count() == 0
    assert load(spark, uri, table=NODE).columns == ["id", "age", "name"]


def test_tasks_without_rows_leave_no_files(
    spark: SparkSession, uri: str, local_store: Store
) -> None:
    one = spark.range(1).repartition(8).selectExpr("'c' AS id", "'Cleo' AS name", "1 AS age")
    save(one, uri, table=NODE)
    dataset = local_store.storage("graph").dataset(
        "nodes/40d76f1f51639ec0", None, versions(uri)[NODE]
    )
    assert dataset.count_rows() == 3
    assert all(fragment.count_rows() for fragment in dataset.get_fragments())


def test_a_frame_without_columns_is_refused(spark: SparkSession, uri: str) -> None:
    with nothing_written(uri), refused(IntegrityError, "id"):
        save(spark.range(1).select(), uri, table=NODE)
    with nothing_written(uri), refused(OptionError, "no columns.*pack"):
        save(spark.range(1).select(), uri)


# --- C37: frames that don't quite fit --------------------------------------------------------------


@pytest.mark.parametrize(
    ("columns", "expected"),
    [
        ("'c' AS id, 'x' AS name", ("c", None, "x")),
        ("'x' AS name, 7 AS age, 'c' AS id", ("c", 7, "x")),
        ("'c' AS id, 7S AS age", ("c", 7, None)),
        ("'c' AS id, 7L AS age", ("c", 7, None)),
        ("nullif('c', 'z') AS id, 7 AS age", ("c", 7, None)),
        ("'c' AS id, NULL AS age, NULL AS name", ("c", None, None)),
    ],
)
def test_columns_are_matched_by_name_and_cast_without_loss(
    spark: SparkSession, uri: str, columns: str, expected: tuple[Any, ...]
) -> None:
    for mode in ("append", "merge"):
        save(spark.sql(f"SELECT {columns}"), uri, table=NODE, writeMode=mode)
        assert rows(load(spark, uri, table=NODE).where("id = 'c'")) == [expected]


@pytest.mark.parametrize(
    ("columns", "kind", "match", "early"),
    [
        ("'c' AS id, 1 AS age, 2 AS shoe", SchemaMismatchError, "no column 'shoe'", True),
        ("'c' AS id, 1 AS Age", SchemaMismatchError, "rename it to age", True),
        ("1 AS age, 'x' AS name", IntegrityError, "lacks column id", True),
        ("'c' AS id, 'seven' AS age", SchemaMismatchError, r"age .*I32.*string", True),
        ("'c' AS id, 3000000000 AS age", SchemaMismatchError, "age .*3000000000", False),
        ("nullif('c', 'c') AS id, 1 AS age", IntegrityError, "null in column id", False),
    ],
)
def test_what_would_lose_something_is_refused_by_column(
    spark: SparkSession, uri: str, columns: str, kind: Any, match: str, early: bool
) -> None:
    before = versions(uri)
    frame = spark.sql(f"SELECT {columns}")
    for mode in ("append", "merge"):
        if early:
            with nothing_written(uri), refused(kind, match):
                save(frame, uri, table=NODE, writeMode=mode)
        else:
            with refused(kind, match):
                save(frame, uri, table=NODE, writeMode=mode)
        assert versions(uri) == before


# --- frames that fit neither form, and other bad input ---------------------------------------------


def test_a_frame_of_neither_form_is_told_both(spark: SparkSession, uri: str) -> None:
    for mode in ("append", "overwrite"):
        with nothing_written(uri), refused(OptionError, r"option\('table'.*pack\("):
            save(people(spark), uri, mode)


def test_a_whole_graph_frame_for_tables_that_nobody_knows_shows_pack(
    spark: SparkSession, uri: str, local_store: Store
) -> None:
    frame = people(spark).withColumn("_table", F.lit("node:Ghost"))
    before = versions(uri)
    with refused(SchemaMismatchError, r"node:Ghost.*pack\("):
        save(frame, uri)
    assert versions(uri) == before
    fresh = local_store.uri("fresh")
    with refused(OptionError, r"pack\("):
        save(frame, fresh)
    assert not Path(fresh).exists()


def test_a_value_in_a_column_of_another_table_is_refused_with_a_sample(
    spark: SparkSession, uri: str
) -> None:
    frame = spark.sql(
        f"SELECT '{EDGE}' AS _table, 'e1' AS id, 'a' AS src, 'b' AS dst, 'x' AS name, NULL AS age"
    )
    before = versions(uri)
    with refused(SchemaMismatchError, "edge:Knows.*column name.*'e1'"):
        save(frame, uri)
    assert versions(uri) == before


def test_a_column_of_no_table_is_refused_early(spark: SparkSession, uri: str) -> None:
    frame = people(spark).withColumn("_table", F.lit(NODE)).withColumn("shoe", F.lit(44))
    with nothing_written(uri), refused(SchemaMismatchError, "shoe belongs to no table"):
        save(frame, uri)


@pytest.mark.parametrize(
    "name",
    [
        "../x",
        "node:../x",
        "/etc/passwd",
        "node:" + "P" * 300,
        "node:a\tb",
        "node:",
        "graph:Person",
        "node:person two",
    ],
)
def test_a_hostile_table_name_is_refused_and_nothing_is_written(
    spark: SparkSession, uri: str, name: str
) -> None:
    with nothing_written(Path(uri).parent), refused(OptionError, "OMNIGRAPH_OPTION"):
        save(people(spark), uri, table=name)


def test_an_unknown_table_of_a_bare_name_lists_what_exists(spark: SparkSession, uri: str) -> None:
    with nothing_written(uri), refused(TableNotFoundError, "edge:Knows, node:Person"):
        save(people(spark), uri, table="Ghost")


def test_an_unknown_option_names_the_nearest(spark: SparkSession, uri: str) -> None:
    with nothing_written(uri), refused(OptionError, "userMetadata"):
        save(people(spark), uri, table=NODE, userMetdata="x")


def test_options_for_reading_are_refused_on_writing(spark: SparkSession, uri: str) -> None:
    with nothing_written(uri), refused(OptionError, "versionAsOf"):
        save(people(spark), uri, table=NODE, versionAsOf="2")


@pytest.mark.parametrize("column", ["name", "id"])
def test_text_that_is_no_utf8_is_refused_before_it_makes_the_table_unreadable(
    spark: SparkSession, uri: str, column: str
) -> None:
    other = "id" if column == "name" else "name"
    frame = spark.sql(f"SELECT CAST(X'FFFE' AS STRING) AS {column}, 'c' AS {other}")
    with nothing_written(uri), refused(SchemaMismatchError, f"Column {column} .*not UTF-8"):
        save(frame, uri, table=NODE)


@pytest.mark.parametrize(
    ("column", "match"),
    [
        ("`a.b`", "a.b"),
        ("`b``t`", "b`t"),
        ("_rowid", "_rowid"),
        ("name, 2 AS NAME", "differ only in case"),
    ],
)
def test_names_that_no_table_can_have_are_refused(
    spark: SparkSession, uri: str, column: str, match: str
) -> None:
    spark.conf.set("spark.sql.caseSensitive", "true")
    with nothing_written(uri), refused(SchemaMismatchError, match):
        save(spark.sql(f"SELECT 'a' AS id, 1 AS {column}"), uri, table="node:Pet")


def test_a_path_that_cannot_be_a_graph_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    with refused(OptionError, "dbfs"):
        save(people(spark), "dbfs:/x", table=NODE)
    assert not list(tmp_path.glob("dbfs*"))


# --- C36 and expectations ---------------------------------------------------------------------------


def test_a_table_is_overwritten_by_what_was_read_from_it(spark: SparkSession, uri: str) -> None:
    save(load(spark, uri, table=NODE).where("id <> 'a'"), uri, "overwrite", table=NODE)
    assert rows(load(spark, uri, table=NODE)) == [("b", 25, "Ben")]


def test_a_whole_graph_is_overwritten_by_what_was_read_from_it(
    spark: SparkSession, uri: str
) -> None:
    kept = load(spark, uri).where("id IS NULL OR id <> 'a'")
    before = versions(uri)
    with refused(IntegrityError, "endpoints exist"):
        save(kept, uri, "overwrite")
    assert versions(uri) == before
    save(kept, uri, "overwrite", integrity="keys")
    assert counts(uri) == {EDGE: 1, NODE: 1}


def test_a_failed_overwrite_keeps_the_old_rows(spark: SparkSession, uri: str) -> None:
    broken = people(spark).withColumn("age", F.expr("CAST(raise_error('broken') AS INT)"))
    before = versions(uri)
    with pytest.raises(Exception, match="broken"):
        save(broken, uri, "overwrite", table=NODE)
    assert versions(uri) == before
    assert rows(load(spark, uri, table=NODE), "id") == [("a",), ("b",)]


def test_an_overwrite_keeps_the_schema_of_the_table(spark: SparkSession, uri: str) -> None:
    with nothing_written(uri), refused(SchemaMismatchError, "shoe"):
        save(people(spark).withColumn("shoe", F.lit(1)), uri, "overwrite", table=NODE)


@pytest.mark.parametrize("whole", [False, True], ids=["table frame", "whole-graph frame"])
def test_a_frame_that_was_read_before_somebody_else_published_does_not_overwrite(
    spark: SparkSession, uri: str, whole: bool
) -> None:
    options = {} if whole else {"table": NODE}
    stale = load(spark, uri, **options)
    save(people(spark, [("c", "Cleo", 1)]), uri, table=NODE)
    before = versions(uri)
    with refused(ExpectedVersionMismatch, "node:Person"):
        save(stale, uri, "overwrite", **options)
    assert versions(uri) == before
    save(stale, uri, "overwrite", lastWriterWins="true", **options)
    assert rows(load(spark, uri, table=NODE), "id") == [("a",), ("b",)]


def test_an_append_of_a_stale_frame_is_no_lost_update(spark: SparkSession, uri: str) -> None:
    stale = load(spark, uri, table=NODE).selectExpr("concat(id, '2') AS id", "name", "age")
    save(people(spark, [("c", "Cleo", 1)]), uri, table=NODE)
    save(stale, uri, table=NODE)
    assert rows(load(spark, uri, table=NODE), "id") == [("a",), ("a2",), ("b",), ("b2",), ("c",)]


def test_expected_table_versions_are_checked(spark: SparkSession, uri: str) -> None:
    now = versions(uri)[NODE]
    wrong, right = f'{{"{NODE}": {now + 1}}}', f'{{"{NODE}": {now}, "node:Ghost": 0}}'
    with nothing_written(uri), refused(ExpectedVersionMismatch, f"version {now + 1}.*{now}"):
        save(people(spark), uri, table=NODE, expectedTableVersions=wrong)
    save(people(spark, [("c", "Cleo", 1)]), uri, table=NODE, expectedTableVersions=right)
    assert counts(uri)[NODE] == 3


def test_a_write_that_is_repeated_with_its_txn_version_is_skipped(
    spark: SparkSession, uri: str
) -> None:
    for _ in range(2):
        save(people(spark, [("c", "Cleo", 1)]), uri, table=NODE, txnAppId="job", txnVersion="1")
    assert counts(uri)[NODE] == 3


def test_actor_and_user_metadata_are_in_the_history(spark: SparkSession, uri: str) -> None:
    save(people(spark, [("c", "Cleo", 1)]), uri, table=NODE, actor="me", userMetadata="why")
    last = load(spark, uri, metadata="history").orderBy("version").collect()[-1]
    assert (last.actor, last.user_metadata, last.rows_added) == ("me", "why", 1)


# --- tasks and messages ------------------------------------------------------------------------------


def test_two_results_of_one_task_are_refused_and_their_files_deleted(
    spark: SparkSession, uri: str
) -> None:
    from omnigraph_spark.spark.writer import OmnigraphWriter

    frame = people(spark, [("c", "Cleo", 1)])
    writer = OmnigraphWriter(frame.schema, {"path": uri, "table": NODE}, False)
    with nothing_written(uri):
        messages = [writer.write(iter(frame.toArrow().to_batches())) for _ in range(2)]
        with pytest.raises(StorageError, match="OMNIGRAPH_STORAGE.*two results of partition 0"):
            writer.commit(list(messages))


def test_abort_deletes_the_files_of_its_messages_only_if_a_task_failed(
    spark: SparkSession, uri: str
) -> None:
    from omnigraph_spark.spark.writer import OmnigraphWriter

    frame = people(spark, [("c", "Cleo", 1)])
    batches = frame.toArrow().to_batches()
    with nothing_written(uri):
        writer = OmnigraphWriter(frame.schema, {"path": uri, "table": NODE}, False)
        writer.abort([writer.write(iter(batches)), None])
    files = set(graphs.file_hashes(Path(uri)))
    writer.abort([writer.write(iter(batches))])
    assert len(set(graphs.file_hashes(Path(uri))) - files) == 1


def test_commit_messages_are_json_text_alone(spark: SparkSession, uri: str) -> None:
    import json
    import pickle

    from omnigraph_spark.spark.writer import OmnigraphCommitMessage, OmnigraphWriter

    frame: DataFrame = people(spark, [("c", "Cleo", 1)])
    raw = {"path": uri, "table": NODE, "storage.aws_secret_access_key": "canary-17"}
    writer = pickle.loads(pickle.dumps(OmnigraphWriter(frame.schema, raw, False)))
    message = writer.write(iter(frame.toArrow().to_batches()))
    assert isinstance(message, OmnigraphCommitMessage)
    assert list(vars(message)) == ["text"]
    assert json.loads(message.text)["partition"] == 0
    assert b"canary-17" not in pickle.dumps(message)


# --- threads of the driver -----------------------------------------------------------------------


def test_a_thread_that_got_its_frames_from_another_one_writes_them(
    spark: SparkSession, uri: str, local_store: Store
) -> None:
    """Spark looks for a source in the session that is active in a thread; a new one has none."""
    frame = people(spark)
    other = local_store.uri("other")

    def registered() -> None:
        register(spark)
        save(frame, other, table=NODE)

    steps = (
        lambda: OmniGraph.for_path(spark, uri).write({NODE: frame}, mode="overwrite"),
        registered,
    )
    for step in steps:
        with ThreadPoolExecutor(1) as pool:
            pool.submit(step).result()
    assert counts(uri)[NODE] == counts(other)[NODE] == 2


def test_every_way_to_change_rows_works_in_threads_without_a_session(
    spark: SparkSession, uri: str
) -> None:
    graph = OmniGraph.for_path(spark, uri)
    frame = people(spark, [("b", "Bo", 26), ("c", "Cy", 40)])
    spark.sql(f"CREATE TABLE in_threads USING omnigraph OPTIONS (path '{uri}', table '{NODE}')")
    ways = (
        lambda: graph.update("Person", {"age": "age + 1"}, "id = 'a'"),
        lambda: graph.merge_into("Person", frame, when_matched=[("source.age > 25", "update")]),
        lambda: graph.delete("Person", "id = 'c'"),
        lambda: spark.sql("INSERT INTO in_threads (id, age, name) VALUES ('d', 50, 'Di')"),
        lambda: graph.optimize(),
        lambda: graph.create_branch("dev"),
        lambda: graph.update("Person", {"name": "'Al'"}, "id = 'a'", branch="dev"),
        lambda: graph.merge("dev"),
    )
    for way in ways:
        with ThreadPoolExecutor(1) as pool:
            pool.submit(way).result()
    with ThreadPoolExecutor(1) as pool:
        found = pool.submit(lambda: rows(load(spark, uri, table=NODE))).result()
    assert found == [("a", 31, "Al"), ("b", 26, "Bo"), ("d", 50, "Di")]
