"""Options: every one parsed, every mistake named, nothing ignored in silence."""

from __future__ import annotations

import pickle
import re
from typing import Any

import pytest
from pyspark.sql.types import LongType

from omnigraph_spark import option_rules, options
from omnigraph_spark.errors import OptionError
from omnigraph_spark.option_values import as_text
from omnigraph_spark.options import (
    CREATE,
    OPTIONS,
    READ,
    SINK,
    STREAM,
    WRITE,
    ReadOptions,
    WriteOptions,
    parse,
)

PATH = {"path": "/g"}


def read(**given: str) -> ReadOptions:
    return ReadOptions.of(parse(PATH | given))


def write(**given: str) -> WriteOptions:
    return WriteOptions.of(parse(PATH | given), overwrite=False)


# --- declarations ------------------------------------------------------------------------------


def test_names_stay_different_in_lower_case() -> None:
    lowered = [one.name.lower() for one in OPTIONS]
    assert len(set(lowered)) == len(lowered)


@pytest.mark.parametrize("option", OPTIONS, ids=lambda one: one.name)
def test_every_option_is_camel_case_with_a_scope_a_line_of_help_and_a_default_that_parses(
    option: options.Option,
) -> None:
    assert re.fullmatch(r"[a-z]+([A-Z][a-z]*)*", option.name)
    assert set(option.scopes) <= {READ, WRITE, CREATE, STREAM, SINK}
    assert option.scopes
    assert option.help
    assert "\n" not in option.help
    if option.default is not None:
        option.parse(option.name, option.default)


def test_every_option_of_the_design_is_declared() -> None:
    designed = {
        "path",
        "table",
        "branch",
        "versionAsOf",
        "timestampAsOf",
        "columns",
        "filter",
        "metadataColumns",
        "maxPartitionBytes",
        "batchSize",
        "storeAssignment",
        "writeMode",
        "endpoints",
        "types",
        "integrity",
        "badRecordsPath",
        "onDelete",
        "overwriteEmpty",
        "replaceWhere",
        "edgeKeys",
        "mergeSchema",
        "expectedTableVersions",
        "lastWriterWins",
        "pushDownFilters",  # not in the design: docs/push_down.md
        "keys",
        "branchFrom",
        "graphFormat",
        "metadata",
        "schema",
        "actor",
        "recordRuns",
        "userMetadata",
        "txnAppId",
        "txnVersion",
        "commitRetries",
        "commitTimeoutSeconds",
        "orphanGraceSeconds",
        "maxRowsPerFile",
        "maxBytesPerFile",
        "readChangeFeed",
        "startingVersion",
        "endingVersion",
        "startingTimestamp",
        "endingTimestamp",
        "maxCommitsPerTrigger",
        "maxRowsPerTrigger",
        "skipChangeCommits",
        "failOnDataLoss",
        "optimizeEvery",
    }
    assert {one.name for one in OPTIONS} == designed


def test_the_table_for_the_readme_has_a_row_per_option() -> None:
    rows = options.markdown_table().splitlines()
    assert rows[0] == "| option | for | default | meaning |"
    assert len(rows) == 2 + len(OPTIONS) + 1
    assert "| `commitRetries` | write | `5` | the publisher's retries" in options.markdown_table()
    assert all(row.count(" | ") == 3 for row in rows[2:-1])


# --- the map that Spark hands over -------------------------------------------------------------


@pytest.mark.parametrize("key", ["versionasof", "versionAsOf", "VERSIONASOF"])
def test_keys_count_in_any_case(key: str) -> None:
    assert ReadOptions.of(parse({"PATH": "/g", key: "3"})).version_as_of == "3"


@pytest.mark.parametrize(
    ("key", "near"),
    [
        ("versionAsof_", "versionAsOf"),
        ("tabel", "table"),
        ("brunch", "branch"),
        ("commitRetry", "commitRetries"),
        ("timestamp_as_of", "timestampAsOf"),
    ],
)
def test_an_unknown_option_is_refused_and_the_nearest_named(key: str, near: str) -> None:
    with pytest.raises(
        OptionError, match=rf"OMNIGRAPH_OPTION\] Unknown option '{key}' · Did you mean {near}"
    ):
        parse(PATH | {key: "1"})


@pytest.mark.parametrize(
    ("key", "source", "instead"),
    [
        ("replacewhere", "Delta", "writeMode"),
        ("overwriteschema", "Delta", "mergeSchema"),
        ("partitionOverwriteMode", "Delta", "overwrite"),
        ("snapshot-id", "Iceberg", "versionAsOf"),
        ("snapshot-property.a", "Iceberg", "userMetadata"),
        ("CHECK-NULLABILITY", "Iceberg", "alter_property"),
        ("nearest", "lance-spark", "pylance"),
        ("write_mode", "lance-spark", "writeMode"),
        ("labels", "Neo4j", "node:Person"),
        ("relationship.source.node.keys", "Neo4j", "endpoints"),
        ("authentication.basic.password", "Neo4j", "storage"),
    ],
)
def test_an_option_of_another_format_is_answered_with_what_to_use_here(
    key: str, source: str, instead: str
) -> None:
    if key.lower() in {one.name.lower() for one in OPTIONS}:
        pytest.skip("there is such an option now")
    with pytest.raises(OptionError, match=rf"Unknown option .*{source}.*{instead}") as caught:
        parse(PATH | {key: "sEcReT"})
    assert "sEcReT" not in str(caught.value)


def test_every_option_that_a_hint_names_is_there_and_no_hint_is_about_one_of_ours() -> None:
    ours = {one.name.lower(): one.name for one in OPTIONS}
    for name, source, instead in option_rules.FOREIGN.values():
        assert name in str(options._unknown(name)) or name.lower() in ours, (name, source)
        words = re.findall(r"\b([a-z]+[A-Z]\w+)\b(?!\.)", instead)
        assert [word for word in words if word.lower() not in ours and word != "readStream"] == []


# --- values from Python ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("mergeSchema", True, "true"),
        ("lastWriterWins", False, "false"),
        ("commitRetries", 3, "3"),
        ("txnVersion", 2**40, str(2**40)),
        ("commitTimeoutSeconds", 1.5, "1.5"),
        ("actor", "ann", "ann"),
        ("keys", {"Customer": "cust_id", "node:A": "b"}, "Customer: cust_id, node:A: b"),
        ("endpoints", {"Knows": ("Person", "Person")}, "Knows: Person -> Person"),
        ("endpoints", {"Knows": "Person -> City"}, "Knows: Person -> City"),
        ("types", {"P.vec": "Vector(4)", "P.n": LongType()}, "P.vec: Vector(4), P.n: bigint"),
        ("types", {"P": {"m": "map<string, int>"}}, "P.m: map<string, int>"),
        ("expectedTableVersions", {"node:P": 7}, '{"node:P": 7}'),
        ("columns", ["id", "name"], "id, name"),
        ("edgeKeys", {"Bought": ["src", "dst", "at"], "Knows": "src, dst"},
         "Bought: src, dst, at, Knows: src, dst"),
    ],
)  # fmt: skip
def test_a_python_value_says_what_the_options_text_says(name: str, value: Any, text: str) -> None:
    assert as_text(name, value) == text
    if name.lower() in {one.name.lower() for one in OPTIONS}:
        assert parse(PATH | options.of_python({name: value})) == parse(PATH | {name: text})


def test_python_values_that_an_option_cant_be_are_refused_by_type_and_without_the_value() -> None:
    for name, value in (("actor", object()), ("keys", {"A": 5}), ("keys", {5: "a"}),
                        ("types", [b"sEcReT"]), ("actor", b"sEcReT")):  # fmt: skip
        with pytest.raises(OptionError, match=rf"Option {name} can't be .*expected text") as caught:
            options.of_python({name: value})
        assert "sEcReT" not in str(caught.value)
    with pytest.raises(OptionError, match="Unknown option"):
        options.of_python({"mergeShcema": True})
    assert options.of_python({"actor": None}) == {}
    for name, wrong in (("mergeSchema", 2), ("commitRetries", 1.5), ("commitRetries", True)):
        with pytest.raises(OptionError, match=f"Option {name} is malformed"):
            parse(PATH | options.of_python({name: wrong}))


def test_an_option_like_no_other_is_pointed_to_the_readme() -> None:
    with pytest.raises(OptionError, match="lists all options"):
        parse(PATH | {"zzz": "1"})


def test_an_option_of_the_store_without_its_prefix_is_told_the_prefix_and_not_the_value() -> None:
    with pytest.raises(OptionError, match=r"storage\.aws_secret_access_key") as caught:
        parse(PATH | {"AWS_SECRET_ACCESS_KEY": "sEcReT"})
    assert "sEcReT" not in str(caught.value)


def test_storage_options_lose_their_prefix_and_ours_never_reach_the_store() -> None:
    parsed = parse(PATH | {"storage.AWS_Endpoint": "http://h", "table": "node:A"})
    assert parsed.storage == {"aws_endpoint": "http://h"}
    assert options.storage_options({"STORAGE.aws_region": "x", "path": "/g"}) == {"aws_region": "x"}


def test_storage_options_are_in_no_repr() -> None:
    given = {"storage.aws_secret_access_key": "sEcReT"}
    parsed = parse(PATH | given)
    shown = repr(parsed) + repr(read(**given)) + repr(write(**given))
    assert "sEcReT" not in shown


def test_what_spark_adds_by_itself_is_no_option_of_ours() -> None:
    added = {
        "location": "file:/g",
        "owner": "me",
        "provider": "omnigraph",
        "option.path": "/g",
        "checkpointLocation": "/c",
        "queryName": "q",
    }
    assert parse(PATH | added).given == {"path"}


def test_a_value_of_none_is_not_given() -> None:
    assert parse({"path": "/g", "table": None}).given == {"path"}


def test_options_are_taken_by_what_they_are_for() -> None:
    raw = {"path": "/g", "Actor": "me", "filter": "x", "storage.a": "b", "schema": "id STRING"}
    assert options.for_scope(raw, READ) == {"path": "/g", "filter": "x", "storage.a": "b"}
    assert options.for_scope(raw, WRITE) == {"path": "/g", "Actor": "me", "storage.a": "b"}


# --- values ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "value", "parsed"),
    [
        ("columns", " id , name", ("id", "name")),
        ("metadataColumns", "_rowid", ("_rowid",)),
        ("metadata", "HISTORY", "history"),
        ("maxPartitionBytes", "1", 1),
        ("maxPartitionBytes", "2k", 2048),
        ("maxPartitionBytes", "128m", 128 << 20),
        ("maxPartitionBytes", "1 GiB", 1 << 30),
        ("maxPartitionBytes", "3TB", 3 << 40),
        ("batchSize", "10", 10),
        ("endpoints", "Knows: Person -> Person", {"Knows": "Person -> Person"}),
        (
            "endpoints",
            "edge:Knows: Person -> Person, WorksAt:Person->Company",
            {"Knows": "Person -> Person", "WorksAt": "Person->Company"},
        ),
        ("keys", "node:Person: name, City: zip", {"Person": "name", "City": "zip"}),
        (
            "types",
            "Person.vec: Vector(4), Person.kind: enum(a, b), Person.tags: [String]?",
            {"Person.vec": "Vector(4)", "Person.kind": "enum(a, b)", "Person.tags": "[String]?"},
        ),
        (
            "expectedTableVersions",
            '{"node:Person": 7, "edge:E": 0}',
            {"node:Person": 7, "edge:E": 0},
        ),
        ("lastWriterWins", "TRUE", True),
        ("lastWriterWins", " false ", False),
        ("commitRetries", "0", 0),
        ("commitTimeoutSeconds", "0.5", 0.5),
        ("userMetadata", "", ""),
        ("txnVersion", "999999999999999999", 999999999999999999),
    ],
)
def test_a_value_is_parsed(name: str, value: str, parsed: Any) -> None:
    assert parse({name: value}).get(name) == parsed


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("columns", ""),
        ("columns", "a,,b"),
        ("columns", "a,a"),
        ("metadata", "nothing"),
        ("maxPartitionBytes", "0"),
        ("maxPartitionBytes", "-1"),
        ("maxPartitionBytes", "1x"),
        ("maxPartitionBytes", "1.5g"),
        ("batchSize", "0"),
        ("batchSize", "ten"),
        ("batchSize", "1e3"),
        ("writeMode", "upsert"),
        ("endpoints", "Knows"),
        ("endpoints", "Knows: "),
        ("endpoints", "A: B -> C, A: B -> C"),
        ("keys", "Person name"),
        ("types", "Person.vec = Vector(4)"),
        ("integrity", "maybe"),
        ("expectedTableVersions", "7"),
        ("expectedTableVersions", "[]"),
        ("expectedTableVersions", "{node: 1}"),
        ("expectedTableVersions", '{"node:A": "7"}'),
        ("expectedTableVersions", '{"node:A": true}'),
        ("expectedTableVersions", '{"node:A": -1}'),
        ("expectedTableVersions", '{"node:A": 1.5}'),
        ("expectedTableVersions", '{"Person": 7}'),
        ("lastWriterWins", "yes"),
        ("commitRetries", "-1"),
        ("commitTimeoutSeconds", "-1"),
        ("commitTimeoutSeconds", "nan"),
        ("commitTimeoutSeconds", "inf"),
        ("txnVersion", "-1"),
        ("table", ""),
        ("branch", " "),
        ("versionAsOf", ""),
        ("filter", ""),
    ],
)
def test_a_malformed_value_is_refused_with_the_options_name(name: str, value: str) -> None:
    with pytest.raises(
        OptionError, match=rf"OMNIGRAPH_OPTION\] Option {name} is malformed · expected .* · found"
    ):
        parse({name: value})


def test_a_long_value_is_cut_in_the_message() -> None:
    with pytest.raises(OptionError, match=r"OMNIGRAPH_OPTION\]") as caught:
        parse({"batchSize": "9" * 10_000})
    assert len(str(caught.value)) < 250


# --- reading -----------------------------------------------------------------------------------


def test_defaults_of_a_read() -> None:
    asked = read()
    assert (asked.path, asked.table, asked.branch, asked.branch_given) == (
        "/g",
        None,
        "main",
        False,
    )
    assert (asked.max_partition_bytes, asked.batch_size) == (128 << 20, None)
    assert (asked.columns, asked.metadata_columns, asked.metadata) == (None, (), None)


def test_a_branch_that_is_given_is_told_from_the_default() -> None:
    assert read(branch="main").branch_given


@pytest.mark.parametrize("path", [{}, {"path": ""}])
def test_a_read_or_a_write_without_a_path_is_refused(path: dict[str, str]) -> None:
    with pytest.raises(OptionError, match=r"OMNIGRAPH_OPTION\] No path given · Use \.load"):
        ReadOptions.of(parse(path))
    with pytest.raises(OptionError, match=r"OMNIGRAPH_OPTION\] No path given · Use \.save"):
        WriteOptions.of(parse(path), overwrite=False)


def test_a_version_and_a_time_exclude_each_other() -> None:
    with pytest.raises(OptionError, match="versionAsOf and timestampAsOf exclude each other"):
        read(versionAsOf="1", timestampAsOf="2026-01-01")


@pytest.mark.parametrize("name", ["table", "columns", "filter", "metadataColumns"])
def test_a_metadata_frame_has_no_options_for_rows(name: str) -> None:
    with pytest.raises(OptionError, match="metadata reads a metadata frame"):
        read(metadata="history", **{name: "x"})


@pytest.mark.parametrize("name", ["endpoints", "keys", "actor", "txnAppId", "commitRetries"])
def test_a_read_refuses_an_option_that_is_for_writing(name: str) -> None:
    value = {"endpoints": "A: B -> C", "keys": "A: b", "commitRetries": "1"}.get(name, "x")
    with pytest.raises(OptionError, match=rf"Option {name} is for writing, not for reading"):
        read(**{name: value})


def test_read_options_are_pickled_to_executors() -> None:
    asked = read(columns="id", **{"storage.aws_region": "x"})
    assert pickle.loads(pickle.dumps(asked)) == asked


# --- writing -----------------------------------------------------------------------------------


def test_defaults_of_a_write() -> None:
    asked = write()
    assert (asked.mode, asked.branch, asked.table, asked.txn) == ("append", "main", None, None)
    assert (asked.commit_retries, asked.commit_timeout_seconds) == (5, 300.0)
    assert (asked.orphan_grace_seconds, asked.last_writer_wins) == (10.0, False)
    assert (asked.max_rows_per_file, asked.max_bytes_per_file) == (1 << 20, 90 << 30)


@pytest.mark.parametrize(
    ("overwrite", "given", "mode"),
    [
        (False, None, "append"),
        (True, None, "overwrite"),
        (False, "append", "append"),
        (True, "Overwrite", "overwrite"),
    ],
)
def test_the_mode_is_sparks_unless_an_option_says_the_same(
    overwrite: bool, given: str | None, mode: str
) -> None:
    raw = PATH if given is None else PATH | {"writeMode": given}
    assert WriteOptions.of(parse(raw), overwrite).mode == mode


@pytest.mark.parametrize(("overwrite", "given"), [(True, "append"), (False, "overwrite")])
def test_a_mode_that_is_not_sparks_is_refused(overwrite: bool, given: str) -> None:
    with pytest.raises(OptionError, match=rf"writeMode {given} doesn't go with .mode\("):
        WriteOptions.of(parse(PATH | {"writeMode": given}), overwrite)


@pytest.mark.parametrize("given", ["merge", "delete"])
def test_merge_and_delete_go_with_sparks_append_alone(given: str) -> None:
    assert WriteOptions.of(parse(PATH | {"writeMode": given}), False).mode == given
    with pytest.raises(OptionError, match=rf"writeMode {given} doesn't go with .mode\("):
        WriteOptions.of(parse(PATH | {"writeMode": given}), True)


def test_branch_from_says_where_a_missing_branch_begins_and_needs_its_name() -> None:
    assert write(branch="dev", branchFrom="main@3").branch_from == "main@3"
    with pytest.raises(OptionError, match=r"OMNIGRAPH_OPTION\] branchFrom goes with branch"):
        write(branchFrom="dev")


@pytest.mark.parametrize(
    ("name", "value", "for_what"),
    [
        ("versionAsOf", "1", "reading"),
        ("columns", "id", "reading"),
        ("filter", "x", "reading"),
        ("metadata", "runs", "reading"),
        ("maxPartitionBytes", "1m", "reading"),
        ("schema", "id STRING", "CREATE TABLE"),
    ],
)
def test_a_write_refuses_an_option_that_is_for_something_else(
    name: str, value: str, for_what: str
) -> None:
    with pytest.raises(OptionError, match=rf"Option {name} is for {for_what}, not for writing"):
        write(**{name: value})


def test_ends_are_taken_apart() -> None:
    assert write(endpoints="Knows: Person -> Person, W: A->B").endpoints == {
        "Knows": ("Person", "Person"),
        "W": ("A", "B"),
    }


@pytest.mark.parametrize("ends", ["Knows: Person", "Knows: -> B", "Knows: A ->", "Knows: A > B"])
def test_malformed_ends_are_refused(ends: str) -> None:
    with pytest.raises(OptionError, match="Option endpoints is malformed"):
        write(endpoints=ends)


def test_an_app_id_and_a_version_go_together() -> None:
    assert write(txnAppId="a", txnVersion="0").txn == ("a", 0)
    for given in ({"txnAppId": "a"}, {"txnVersion": "1"}):
        with pytest.raises(OptionError, match="txnAppId and txnVersion go together"):
            write(**given)


def test_write_options_are_pickled_to_tasks() -> None:
    asked = write(endpoints="A: B -> C", **{"storage.aws_region": "x"})
    assert pickle.loads(pickle.dumps(asked)) == asked


# --- the change feed -----------------------------------------------------------------------------

FEED = {"path": "/g", "readChangeFeed": "true"}


def test_the_ends_of_a_feed_are_versions_or_times() -> None:
    asked = ReadOptions.of(
        parse({**FEED, "startingVersion": "3", "endingTimestamp": "2999-01-01Z"})
    )
    assert asked.feed is not None
    assert (asked.feed.start_version, asked.feed.end_version) == ("3", None)
    assert (asked.feed.start_time, asked.feed.end_time) == (None, "2999-01-01Z")
    assert ReadOptions.of(parse({"path": "/g", "readChangeFeed": "false"})).feed is None


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({}, "has no start"),
        ({"endingVersion": "3"}, "has no start"),
        ({"startingVersion": "1", "startingTimestamp": "0"}, "startingVersion and startingTimest"),
        (
            {"startingVersion": "1", "endingVersion": "1", "endingTimestamp": "0"},
            "endingVersion and endingTimestamp exclude",
        ),
        (
            {"startingVersion": "1", "versionAsOf": "1"},
            "versionAsOf doesn't go with readChangeFeed",
        ),
        ({"startingVersion": "1", "timestampAsOf": "0"}, "timestampAsOf doesn't go with"),
        ({"startingVersion": "1", "metadata": "history"}, "metadata doesn't go with"),
        ({"startingVersion": "1", "columns": "id"}, "columns doesn't go with"),
        ({"startingVersion": "1", "filter": "id = 'a'"}, "filter doesn't go with"),
        ({"startingVersion": "1", "metadataColumns": "_rowid"}, "metadataColumns doesn't go"),
        ({"startingVersion": "1", "pushDownFilters": "true"}, "pushDownFilters doesn't go"),
        ({"startingVersion": "1", "readChangeFeed": "false"}, "startingVersion goes with readCh"),
    ],
)
def test_what_doesnt_go_with_a_feed_is_refused(given: dict[str, str], why: str) -> None:
    with pytest.raises(OptionError, match=f"OMNIGRAPH_OPTION.*{why}"):
        ReadOptions.of(parse({**FEED, **given}))
