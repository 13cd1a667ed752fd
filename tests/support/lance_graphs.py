"""A graph whose tables were written by Lance alone: shapes that no writer of ours makes."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from omnigraph_spark.history.init import init_graph
from omnigraph_spark.manifest.publisher import Publish, publish
from omnigraph_spark.manifest.rows import TableRow, VersionRow
from omnigraph_spark.storage import layout
from omnigraph_spark.storage.ids import new_ulid
from omnigraph_spark.storage.store import Storage


def new_graph(uri: str) -> Storage:
    """Make an empty graph."""
    storage = Storage.at(uri)
    init_graph(storage)
    return storage


def write_table(storage: Storage, key: str, table: pa.Table, **asked: Any) -> Any:
    """Write a table's dataset, unpublished, and return it."""
    import lance

    return lance.write_dataset(
        table,
        storage.dataset_uri(layout.table_location(key)),
        enable_stable_row_ids=True,
        data_storage_version="2.2",
        **asked,
    )


def publish_head(storage: Storage, key: str) -> None:
    """Publish the newest version of a table's dataset on main."""
    place = layout.table_location(key)
    dataset = storage.dataset(place)
    rows = (TableRow(key, place), VersionRow(key, dataset.version, None, dataset.count_rows()))
    publish(storage, Publish("main", new_ulid(), rows))
