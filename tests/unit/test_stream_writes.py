"""Streaming writes without a JVM: each batch once, whatever is repeated, killed or comes twice."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import datasource
from pyspark.sql.types import IntegerType, StringType, StructField, StructType

from omnigraph_spark import _faults, options
from omnigraph_spark.errors import IntegrityError, OptionError, PublishOutcomeUnknown
from omnigraph_spark.history import commits
from omnigraph_spark.maintenance import cleanup, optimize
from omnigraph_spark.manifest import formats
from omnigraph_spark.manifest.snapshot import load
from omnigraph_spark.options import WriteOptions
from omnigraph_spark.storage.store import Storage
from tests.support.plain_writes import people_of_engine_0_9
from tests.support.streams import Sink, Stream
from tests.support.writes import KNOWS, PERSON, Died, die, ids, new_graph, once, write

if not hasattr(datasource, "DataSourceStreamArrowWriter"):
    pytest.skip("Spark 4.1 and later write streams", allow_module_level=True)

PEOPLE = StructType(
    [
        StructField("id", StringType()),
        StructField("name", StringType()),
        StructField("age", IntegerType()),
    ]
)
GRAPH = StructType(
    [
        StructField("_table", StringType(), False),
        *(StructField(name, StringType()) for name in ("id", "src", "dst", "name")),
    ]
)

KILLED_AT = [
    "stage.done",
    "stream.commit",
    "commit.record_written",
    "commit.table_1",
    "commit.before_publish",
    "publish.landed",
    "commit.before_record_delete",
    "stream.committed",
]


@pytest.fixture(autouse=True)
def disarmed() -> Iterator[None]:
    yield
    _faults.disarm()


@pytest.fixture
def graph(tmp_path: Path) -> Storage:
    return new_graph(Storage.at(str(tmp_path / "g")), [PERSON, KNOWS])


def people(*names: str, age: int = 1) -> list[dict[str, Any]]:
    return [{"id": name, "name": name, "age": age} for name in names]


def node(name: str) -> dict[str, Any]:
    return {"_table": PERSON, "id": name, "name": name}


def edge(name: str, src: str, dst: str) -> dict[str, Any]:
    return {"_table": KNOWS, "id": name, "src": src, "dst": dst}


def test_a_batch_that_comes_again_is_written_once_and_the_next_one_is(graph: Storage) -> None:
    sink = Sink(graph, PEOPLE, table=PERSON)
    sink.batch(0, people("a"), people("b"))
    version = load(graph).graph_version
    sink.batch(0, people("a"), people("b"))
    assert load(graph).graph_version == version
    sink.batch(1, people("c"))
    Sink(graph, PEOPLE, "another query", table=PERSON).batch(0, people("d"))
    assert ids(graph, PERSON) == ["a", "b", "c", "d", "first"]


def test_tasks_of_a_batch_that_is_published_stage_nothing(graph: Storage) -> None:
    sink = Sink(graph, PEOPLE, table=PERSON)
    sink.batch(0, people("a"))
    (message,) = sink.stage(0, people("a"))
    assert message.done
    assert message.staged() == []


@pytest.mark.long
def test_two_drivers_with_one_checkpoint_write_a_batch_once(graph: Storage) -> None:
    sink = Sink(graph, PEOPLE, table=PERSON)
    slow = sink.stage(0, people("a"))
    fast = sink.stage(0, people("a"))
    _faults.arm("commit.before_publish", once(lambda: sink.commit(0, fast)))
    sink.commit(0, slow)
    assert ids(graph, PERSON) == ["a", "first"]


@pytest.mark.parametrize("point", KILLED_AT)
def test_a_batch_is_written_once_wherever_its_driver_was_killed(graph: Storage, point: str) -> None:
    sink = Sink(graph, GRAPH)
    rows = [node("a"), node("b")], [edge("e", "a", "b")]
    _faults.arm(point, die)
    with pytest.raises(Died):
        sink.batch(0, *rows)
    _faults.disarm()
    for _ in range(2):
        sink.batch(0, *rows)
    assert ids(graph, PERSON) == ["a", "b", "first"]
    assert ids(graph, KNOWS) == ["e", "first"]


def test_a_lost_answer_of_the_publish_is_made_up_for_by_the_restart(graph: Storage) -> None:
    sink = Sink(graph, PEOPLE, table=PERSON, commitRetries="0")

    def unknown() -> None:
        raise OSError("Commit result for version 99 is unknown")

    _faults.arm("publish.landed", unknown)
    with pytest.raises(PublishOutcomeUnknown):
        sink.batch(0, people("a"))
    _faults.disarm()
    sink.batch(0, people("a"))
    assert ids(graph, PERSON) == ["a", "first"]


def test_a_batch_is_known_after_optimize_cleanup_and_other_writes(graph: Storage) -> None:
    from datetime import datetime, timedelta, timezone

    sink = Sink(graph, PEOPLE, table=PERSON)
    sink.batch(0, people("a"))
    write(graph, {PERSON: ["other"]})
    optimize.optimize(graph, "main", None, optimize.run_here)
    cleanup.cleanup(graph, dry_run=False, now=datetime.now(timezone.utc) + timedelta(days=30))
    sink.batch(0, people("a"))
    assert ids(graph, PERSON) == ["a", "first", "other"]


def test_batches_of_other_tables_are_batches_of_one_query(graph: Storage) -> None:
    sink = Sink(graph, GRAPH)
    sink.batch(0, [node("a")])
    sink.batch(1, [edge("e", "a", "first")])
    before = load(graph)
    for number, rows in enumerate(([node("a")], [edge("e", "a", "first")])):
        sink.batch(number, rows)
    assert load(graph).graph_version == before.graph_version
    sink.batch(2, [])
    assert load(graph).graph_version == before.graph_version


def test_rows_that_break_a_rule_end_the_batch_and_nothing_is_written(graph: Storage) -> None:
    sink = Sink(graph, GRAPH)
    version = load(graph).graph_version
    with pytest.raises(IntegrityError):
        sink.batch(0, [node("a"), edge("e", "a", "nobody")])
    assert load(graph).graph_version == version


def test_a_stream_upserts_deletes_and_replaces(graph: Storage) -> None:
    Sink(graph, PEOPLE, "m", table=PERSON, writeMode="merge").batch(0, people("first", "a", age=7))
    assert ages(graph) == {"first": 7, "a": 7}
    gone = StructType([StructField("id", StringType())])
    delete = Sink(graph, gone, "d", table=PERSON, writeMode="delete", onDelete="cascade")
    delete.batch(0, [{"id": "a"}])
    assert ages(graph) == {"first": 7}
    complete = Sink(graph, PEOPLE, "c", table=PERSON)
    complete.batch(0, people("x", "y"), overwrite=True)
    complete.batch(1, people("x"), overwrite=True)
    assert ages(graph) == {"x": 1}


def ages(graph: Storage) -> dict[str, int]:
    entry = load(graph).entry(PERSON)
    rows = graph.dataset(entry.location, entry.table_branch, entry.table_version).to_table()
    return dict(zip(rows["id"].to_pylist(), rows["age"].to_pylist(), strict=True))


def test_a_stream_of_a_graph_makes_its_tables_and_a_copy_of_it(
    graph: Storage, tmp_path: Path
) -> None:
    copy = Storage.at(str(tmp_path / "copy"))
    source = Stream(graph)
    sink = Sink(copy, source.schema, integrity="off")
    for number in range(3):
        if rows := source.batch():
            sink.batch(number, rows)
        write(graph, {PERSON: [f"p{number}"], KNOWS: [f"k{number}"]})
    sink.batch(3, source.batch())
    assert ids(copy, PERSON) == ids(graph, PERSON)
    assert ids(copy, KNOWS) == ids(graph, KNOWS)


@pytest.mark.long
def test_a_stream_between_graphs_of_engine_0_9_has_each_row_once_wherever_it_was_killed(
    tmp_path: Path,
) -> None:
    source, copy = people_of_engine_0_9(str(tmp_path / "g")), Storage.at(str(tmp_path / "copy"))
    stream = Stream(source)
    sink = Sink(copy, stream.schema, graphFormat="6")
    sink.batch(0, stream.batch())
    for number, point in enumerate(KILLED_AT, start=1):
        write(source, {PERSON: [point], KNOWS: [point]})
        start, end = stream.plan()
        _faults.arm(point, die)
        with pytest.raises(Died):
            sink.batch(number, stream.read(start, end))
        _faults.disarm()
        stream.restart()
        for _ in range(2):
            sink.batch(number, stream.read(start, end))
        stream.offset = end
        assert ids(copy, PERSON) == ids(source, PERSON) == ids(copy, KNOWS)
    assert formats.of_graph(source).stamp == formats.of_graph(copy).stamp == 6
    assert len(commits.read_commits(copy)) == len(commits.read_commits(source))


@pytest.mark.long
def test_many_small_batches_leave_few_files_where_they_are_compacted(graph: Storage) -> None:
    sink = Sink(graph, PEOPLE, table=PERSON, optimizeEvery="6")
    for number in range(20):
        sink.batch(number, people(f"p{number}"))
    entry = load(graph).entry(PERSON)
    dataset = graph.dataset(entry.location, entry.table_branch, entry.table_version)
    assert len(dataset.get_fragments()) <= 6
    assert len(ids(graph, PERSON)) == 21


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"txnAppId": "a", "txnVersion": "1"}, "txnAppId doesn't go with writeStream"),
        ({"expectedTableVersions": '{"node:A": 1}'}, "expectedTableVersions doesn't go"),
        ({"maxRowsPerTrigger": "1"}, "is for readStream"),
    ],
)
def test_options_that_dont_go_with_a_written_stream_are_refused(
    given: dict[str, str], why: str
) -> None:
    with pytest.raises(OptionError, match=why):
        WriteOptions.of(options.parse({"path": "/g", **given}), False, stream=True)


def test_an_option_of_streams_is_refused_for_a_write() -> None:
    with pytest.raises(OptionError, match="optimizeEvery is for writeStream"):
        WriteOptions.of(options.parse({"path": "/g", "optimizeEvery": "3"}), False)
