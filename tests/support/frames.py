"""Short spellings for what most Spark tests do: write a frame, read it back, see it refused."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from omnigraph_spark import from_spark
from omnigraph_spark.errors import OmnigraphError
from omnigraph_spark.manifest import snapshot
from omnigraph_spark.storage.store import Storage
from tests.support.graphs import file_hashes
from tests.support.stores import Store

PERSON = "id STRING, name STRING, age INT"
KNOWS = "id STRING, src STRING, dst STRING, since DATE"
ANN_AND_BEN = (("a", "Ann", 30), ("b", "Ben", 25))


PLACES: dict[str, Store] = {}
"""The stores of graphs that need options to be reached, by root: see `placed`."""


def placed(store: Store, name: str = "graph") -> str:
    """Return the root of a graph in a store; the functions here then know how to reach it."""
    root = store.uri(name)
    PLACES[root] = store
    return root


def options_of(uri: str) -> dict[str, str]:
    """Return the data source's options that a graph's store needs."""
    return dict(PLACES[uri].options) if uri in PLACES else {}


def storage_of(uri: str) -> Storage:
    """Return the storage of a graph."""
    return Storage.at(uri, PLACES[uri].storage_options if uri in PLACES else None)


def people(spark: SparkSession, rows: Sequence[tuple[Any, ...]] = ANN_AND_BEN) -> DataFrame:
    """Return a frame of Person rows (id, name, age), its columns in the order id, age, name."""
    return spark.createDataFrame(list(rows), PERSON).select("id", "age", "name")


def knows(spark: SparkSession, *pairs: tuple[str, str]) -> DataFrame:
    """Return a frame of Knows rows without ids."""
    return spark.createDataFrame(list(pairs), "src STRING, dst STRING")


def save(frame: DataFrame, uri: str, mode: str = "append", **options: str) -> None:
    """Write a frame; option names as the data source has them."""
    given = {**options_of(uri), **options}
    frame.write.format("omnigraph").options(**given).mode(mode).save(uri)


def load(spark: SparkSession, uri: str, **options: str) -> DataFrame:
    """Return the frame that the options name."""
    return spark.read.format("omnigraph").options(**{**options_of(uri), **options}).load(uri)


def rows(frame: DataFrame, *columns: str) -> list[tuple[Any, ...]]:
    """Return the rows, of some columns or all, as sorted tuples (nulls first)."""
    chosen = frame.select(*columns) if columns else frame
    return sorted(
        (tuple(row) for row in chosen.collect()), key=lambda row: [(v is not None, v) for v in row]
    )


def versions(uri: str, options: Mapping[str, str] | None = None) -> dict[str, int]:
    """Return {table key: published version} of main."""
    found = snapshot.load(Storage.at(uri, options) if options else storage_of(uri))
    return {key: entry.table_version for key, entry in found.tables.items()}


def counts(uri: str) -> dict[str, int]:
    """Return {table key: row count} of main, as `__manifest` has it."""
    found = snapshot.load(storage_of(uri))
    return {key: entry.row_count for key, entry in found.tables.items()}


@contextmanager
def refused(kind: type[OmnigraphError], match: str) -> Iterator[None]:
    """Expect Spark to fail with the text of this typed error, with `match` in it."""
    with pytest.raises((PySparkException, OmnigraphError)) as caught:
        yield
    error = caught.value if isinstance(caught.value, OmnigraphError) else from_spark(caught.value)
    assert type(error) is kind, error
    assert f"[OMNIGRAPH_{kind.code}]" in str(error)
    assert re.search(match, str(error)), str(error)


@contextmanager
def nothing_written(root: str | Path) -> Iterator[None]:
    """Check that not one file below `root` changes, comes or goes inside."""
    before = _files(str(root))
    yield
    assert _files(str(root)) == before


def _files(root: str) -> Mapping[str, object]:
    bucket = PLACES[root].bucket if root in PLACES else None
    if bucket is None:
        return file_hashes(Path(root))
    return bucket.objects(root.removeprefix(f"{bucket.uri}/"))
