"""A Python data source that writes down every call that Spark makes to it.

Its classes are made inside functions, so that Spark's worker processes get them by value.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.types import IntegerType, StringType, StructField, StructType

VARCHAR_MARK = "__CHAR_VARCHAR_TYPE_STRING"


class Probe:
    """The driver's side of the probe: its calls, in order, and the switch that fails a commit."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self.folder = folder
        self._log = folder / "calls.jsonl"
        self._fail_commit = folder / "fail_commit"
        spark.dataSource.register(_source(str(self._log), str(self._fail_commit)))

    def calls(self, event: str | None = None) -> list[dict[str, Any]]:
        """Return the calls since `forget`, all or those of one kind."""
        if not self._log.exists():
            return []
        calls = [json.loads(line) for line in self._log.read_text().splitlines()]
        return [call for call in calls if event in (None, call["event"])]

    def only(self, event: str) -> dict[str, Any]:
        """Return the one call of a kind."""
        (call,) = self.calls(event)
        return call

    def forget(self) -> None:
        """Start an empty record of calls."""
        self._log.unlink(missing_ok=True)

    def fail_commits(self) -> None:
        """Let every later `commit` raise."""
        self._fail_commit.touch()


def _source(log: str, fail_commit: str) -> type[DataSource]:  # noqa: C901 - a source is sent whole
    def note(event: str, **details: object) -> None:
        with open(log, "a") as lines:
            process = {"pid": os.getpid(), "used_again": "SPARK_REUSE_WORKER" in os.environ}
            lines.write(json.dumps({"event": event, **process, **details}) + "\n")

    class Message(WriterCommitMessage):
        def __init__(self, text: str) -> None:
            self.text = text

    def texts(messages: Sequence[WriterCommitMessage | None]) -> list[str | None]:
        return [getattr(message, "text", None) for message in messages]

    class Reader(DataSourceReader):
        def __init__(self, schema: StructType) -> None:
            self.fields = list(schema)

        def partitions(self) -> list[InputPartition]:
            return [InputPartition(0)]

        def read(self, partition: InputPartition) -> Iterator[tuple[object, ...]]:
            yield tuple("x" if isinstance(f.dataType, StringType) else 1 for f in self.fields)

    class Writer(DataSourceArrowWriter):
        def __init__(self) -> None:
            self.state = "as the constructor left it"

        def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
            rows = sum(batch.num_rows for batch in iterator)
            self.state = "changed by a task"
            note("write", rows=rows)
            if rows == 13:
                raise ValueError("thirteen rows")
            return Message(str(rows))

        def commit(self, messages: list[WriterCommitMessage | None]) -> None:
            note("commit", messages=texts(messages), state=self.state)
            if os.path.exists(fail_commit):
                raise ValueError("[OMNIGRAPH_STORAGE] commit fails")

        def abort(self, messages: list[WriterCommitMessage | None]) -> None:
            note("abort", messages=texts(messages))

    class Source(DataSource):
        def __init__(self, options: dict[str, str]) -> None:
            self.options = options
            self.resolved: list[str] = []
            note("init", options=dict(options))

        @classmethod
        def name(cls) -> str:
            return "probe"

        def schema(self) -> StructType:
            note("schema", options=dict(self.options))
            self.resolved.append("schema")
            tag = {"tag": self.options.get("tag", "none")}
            size = self.options.get("varchar")
            mark = {VARCHAR_MARK: f"varchar({size})"} if size else {}
            return StructType(
                [
                    StructField("id", StringType(), False, {**tag, **mark}),
                    StructField("n", IntegerType(), True, tag),
                ]
            )

        def reader(self, schema: StructType) -> DataSourceReader:
            note(
                "reader",
                options=dict(self.options),
                metadata=[field.metadata for field in schema],
                state=self.resolved,
            )
            return Reader(schema)

        def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
            note(
                "writer",
                options=dict(self.options),
                names=schema.names,
                nullable=[field.nullable for field in schema],
                metadata=[field.metadata for field in schema],
                overwrite=overwrite,
            )
            return Writer()

    return Source


def filtering_source(kind: str, pushed: str) -> type[DataSource]:
    """Return the source `filtering_{kind}` whose reader writes the filters that it gets to `pushed`.

    `kind` is `overriding` (a method `pushFilters`) or `callable` (an object on the instance).
    """

    def note(filters: list[Any]) -> list[Any]:
        with open(pushed, "a") as lines:
            lines.write(f"{len(filters)}\n")
        return filters

    class Plain(DataSourceReader):
        def partitions(self) -> list[InputPartition]:
            return [InputPartition(0)]

        def read(self, partition: InputPartition) -> Iterator[tuple[object, ...]]:
            yield ("x",)

    class Overriding(Plain):
        def pushFilters(self, filters: list[Any]) -> list[Any]:
            return note(filters)

    class Callable:
        __func__ = staticmethod(getattr(DataSourceReader, "pushFilters", note))

        def __call__(self, filters: list[Any]) -> list[Any]:
            return note(filters)

    def reader() -> DataSourceReader:
        if kind == "overriding":
            return Overriding()
        plain = Plain()
        plain.pushFilters = Callable()  # type: ignore[method-assign, assignment]
        return plain

    class Source(DataSource):
        @classmethod
        def name(cls) -> str:
            return f"filtering_{kind}"

        def schema(self) -> str:
            return "id STRING"

        def reader(self, schema: StructType) -> DataSourceReader:
            return reader()

    return Source


def ten_rows_source() -> type[DataSource]:
    """Return the source `ten_rows` (a = 0 to 9), whose reader takes equality filters."""

    class Reader(DataSourceReader):
        wanted: int | None = None

        def pushFilters(self, filters: list[Any]) -> Iterator[Any]:
            for one in filters:
                if type(one).__name__ == "EqualTo":
                    self.wanted = one.value
                else:
                    yield one

        def partitions(self) -> list[InputPartition]:
            return [InputPartition(0)]

        def read(self, partition: InputPartition) -> Iterator[tuple[int]]:
            yield from ((i,) for i in range(10) if self.wanted in (None, i))

    class TenRows(DataSource):
        @classmethod
        def name(cls) -> str:
            return "ten_rows"

        def schema(self) -> str:
            return "a INT"

        def reader(self, schema: StructType) -> DataSourceReader:
            return Reader()

    return TenRows
