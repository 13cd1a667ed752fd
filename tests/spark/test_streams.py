"""Streams with a real Spark: queries that are killed and started again from their checkpoint.

What batches hold and what is refused is tested without a JVM, in tests/unit/test_streams.py.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.errors import AnalysisException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession, datasource
from pyspark.sql.datasource import DataSourceStreamReader
from pyspark.sql.streaming.query import StreamingQuery

from omnigraph_spark.errors import OptionError, UnsupportedError, from_spark
from omnigraph_spark.manifest.snapshot import load
from omnigraph_spark.storage.store import Storage
from tests.support.writes import KNOWS, PERSON, ids, new_graph, write

HAS_LIMITS = hasattr(DataSourceStreamReader, "getDefaultReadLimit")  # Spark 4.2 and later


@pytest.fixture
def graph(tmp_path: Path) -> Storage:
    return new_graph(Storage.at(str(tmp_path / "g")), [PERSON, KNOWS])


def streamed(spark: SparkSession, graph: Storage, **options: str) -> DataFrame:
    return spark.readStream.format("omnigraph").options(**options).load(graph.root)


def finished(start: Callable[[], StreamingQuery]) -> StreamingQuery:
    """Run a query to its end.

    Spark gives a Python process 10 seconds to start, which isn't enough on a busy machine: then the
    query goes on from its checkpoint, as it would after any other failure.
    """
    while True:
        query = start()
        try:
            query.awaitTermination()
        except StreamingQueryException as error:
            if "failed to connect back" not in str(error):
                raise
        else:
            return query


class Follower:
    """A query with a checkpoint that reads what is there and ends; may be run again."""

    def __init__(self, folder: Path) -> None:
        self.checkpoint = str(folder / "checkpoint")
        self.query: StreamingQuery | None = None

    def ids(self, frame: DataFrame) -> list[list[str]]:
        """Read what is there now and return the ids of each batch."""
        batches: list[list[str]] = []

        def keep(batch: DataFrame, number: int) -> None:
            batches.append(sorted(row.id for row in batch.collect()))

        writer = frame.writeStream.foreachBatch(keep).trigger(availableNow=True)
        self.query = finished(writer.option("checkpointLocation", self.checkpoint).start)
        return [batch for batch in batches if batch]


@pytest.mark.long
def test_a_stream_goes_on_from_its_checkpoint_after_its_process_was_killed(
    spark: SparkSession,
    graph: Storage,
    tmp_path: Path,
    spark_faults: Callable[[str], None],
) -> None:
    follower = Follower(tmp_path)
    limits = {"maxRowsPerTrigger": "2"} if HAS_LIMITS else {}
    frame = streamed(spark, graph, **limits)
    assert follower.ids(frame) == [["first", "first"]]
    write(graph, {PERSON: ["a", "b"], KNOWS: ["e"]})
    write(graph, {PERSON: ["c"]})
    spark_faults("stream.planned=kill")
    with pytest.raises(StreamingQueryException):
        follower.ids(frame)
    spark_faults("")
    expected = [["a", "b", "e"], ["c"]] if HAS_LIMITS else [["a", "b", "c", "e"]]
    assert follower.ids(frame) == expected
    assert follower.ids(frame) == []
    assert follower.query is not None
    if HAS_LIMITS:
        progress = follower.query.lastProgress
        assert progress is not None
        source = progress["sources"][0]
        assert '"version"' in str(source["latestOffset"])


def test_what_a_stream_and_a_read_take_is_told_apart(
    spark: SparkSession, graph: Storage, tmp_path: Path
) -> None:
    version = str(write(graph, {PERSON: ["a"]}).graph_version)
    asked = {"table": PERSON, "startingVersion": version}
    assert Follower(tmp_path).ids(streamed(spark, graph, **asked)) == [["a"]]
    with pytest.raises(AnalysisException) as caught:
        spark.read.format("omnigraph").options(**asked).load(graph.root).collect()
    assert isinstance(from_spark(caught.value), OptionError)
    if not HAS_LIMITS:
        limited = streamed(spark, graph, maxCommitsPerTrigger="1")
        with pytest.raises(StreamingQueryException) as stopped:
            Follower(tmp_path / "limited").ids(limited)
        assert isinstance(from_spark(stopped.value), UnsupportedError)


@pytest.mark.skipif(
    not hasattr(datasource, "DataSourceStreamArrowWriter"),
    reason="Spark 4.1 and later write streams",
)
@pytest.mark.long
def test_a_written_stream_has_each_row_once_wherever_it_was_killed(
    spark: SparkSession,
    graph: Storage,
    tmp_path: Path,
    spark_faults: Callable[[str], None],
) -> None:
    copy = Storage.at(str(tmp_path / "copy"))
    checkpoint = tmp_path / "written"
    frame = streamed(spark, graph)

    def run() -> None:
        writer = frame.writeStream.format("omnigraph").trigger(availableNow=True)
        writer = writer.options(integrity="off", orphanGraceSeconds="0.2")
        writer = writer.option("checkpointLocation", str(checkpoint))
        finished(lambda: writer.start(copy.root))

    run()
    for point in ("stage.done", "commit.table_1", "commit.before_publish", "stream.committed"):
        write(graph, {PERSON: [point], KNOWS: [point]})
        spark_faults(f"{point}=kill")
        with pytest.raises(StreamingQueryException):
            run()
        spark_faults("")
        run()
        assert (ids(copy, PERSON), ids(copy, KNOWS)) == (ids(graph, PERSON), ids(graph, KNOWS))
    newest = max((checkpoint / "commits").glob("[0-9]*"), key=lambda path: int(path.name))
    for path in (newest, newest.with_name(f".{newest.name}.crc")):
        path.unlink(missing_ok=True)
    version = load(copy).graph_version
    run()
    assert load(copy).graph_version == version
