"""Rows as Spark shows them, in the form in which the engine exports them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from datetime import date, datetime, timezone
from decimal import Decimal
from typing import Any

from omnigraph_spark import options
from omnigraph_spark.manifest.snapshot import Snapshot
from omnigraph_spark.spark.frame_schema import read_schema
from omnigraph_spark.spark.reader import OmnigraphReader
from omnigraph_spark.storage.store import Storage
from tests.support.graphs import Export

_EPOCH_DAY = date(1970, 1, 1).toordinal()


def read_frame(storage: Storage, pinned: Snapshot, **asked: str) -> Iterator[dict[str, Any]]:
    """Yield the rows of a frame, planned and read as Spark does it."""
    wanted = options.ReadOptions.of(options.parse({"path": storage.root, **asked}))
    schema, stored = read_schema(storage, pinned, wanted)
    reader = OmnigraphReader(storage, pinned, wanted, schema, stored)
    for partition in reader.partitions():
        for batch in reader.read(partition):
            yield from batch.to_pylist()


def exported(value: Any) -> Any:
    """Return a value as in the export: days, UTC text, numbers; a blob is never shown."""
    if isinstance(value, datetime):
        utc = value.astimezone(timezone.utc).replace(tzinfo=None)
        return utc.isoformat(timespec="milliseconds").removesuffix(".000")
    if isinstance(value, date):
        return value.toordinal() - _EPOCH_DAY
    if isinstance(value, (bytes, bytearray)):
        return None
    if isinstance(value, Decimal):
        return int(value)
    return [exported(one) for one in value] if isinstance(value, list) else value


def table_rows(rows: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return a table frame's rows by `id`."""
    return _by_id({name: exported(value) for name, value in row.items()} for row in rows)


def export_rows(export: Export, key: str) -> list[dict[str, Any]]:
    """Return the export's rows of a table by `id`."""
    return _by_id(export.tables.get(key, []))


def whole_graph_tables(rows: Iterable[Mapping[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """Return a whole-graph frame's rows by table and `id`, without the nulls that widen them."""
    tables: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for row in rows:
        values = {name: exported(value) for name, value in row.items() if name != "_table"}
        tables[row["_table"]].append(_filled(values))
    return {key: _by_id(found) for key, found in tables.items()}


def filled_tables(export: Export) -> dict[str, list[dict[str, Any]]]:
    """Return the export's rows by table and `id`, without nulls."""
    return {key: _by_id(map(_filled, rows)) for key, rows in export.tables.items()}


def _filled(row: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if value is not None}


def _by_id(rows: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    return sorted(map(dict, rows), key=lambda row: row["id"])
