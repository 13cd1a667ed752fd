"""Change feeds without Spark, and the comparison of two snapshots by hand."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from omnigraph_spark.read.feed_plan import Planner
from omnigraph_spark.refs import changes
from omnigraph_spark.refs.changes import Span
from omnigraph_spark.spark.feed_reader import FeedReader, feed_schema, feed_tables
from omnigraph_spark.storage.store import Storage

BYTES = 128 << 20
Row = tuple[Any, ...]


def read_feed(
    storage: Storage, span: Span, table: str | None = None, max_bytes: int = BYTES
) -> list[dict[str, Any]]:
    """Read a feed in this process, as Spark's tasks read it."""
    found = changes.feed(storage, span, table)
    tables = feed_tables(storage, found, max_bytes)
    reader = FeedReader(storage, found, tables, max_bytes, feed_schema(tables))
    return [
        row
        for partition in reader.partitions()
        for batch in reader.read(partition)
        for row in batch.to_pylist()
    ]


def pieces(storage: Storage, span: Span, max_bytes: int = BYTES) -> int:
    """Return how many pieces of work a feed has."""
    found = changes.feed(storage, span)
    return sum(len(one) for one in Planner(storage, max_bytes).partitions(found.changes))


def by_hand(before: Iterable[Row], after: Iterable[Row]) -> list[tuple[Any, ...]]:
    """Return (change type, row…) of what differs between two lists of rows whose first is the id.

    Rows are distinguished as wholes; doubled ids count as often as they are there.
    """
    old, new = Counter(before), Counter(after)
    gone, came = old - new, new - old
    gone_ids, came_ids = {row[0] for row in gone}, {row[0] for row in came}
    found = [
        ("update_preimage" if row[0] in came_ids else "delete", *row) for row in gone.elements()
    ]
    found += [
        ("update_postimage" if row[0] in gone_ids else "insert", *row) for row in came.elements()
    ]
    return sorted(found)


def of_tables(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[tuple[Any, ...]]:
    """Return (change type, id, value) of two tables as plain dicts."""
    return by_hand(before.items(), after.items())
