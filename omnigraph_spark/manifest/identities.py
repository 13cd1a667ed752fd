"""Tables that have two ids: whose rows are whose, which of them live, and what a reader demands.

From stamp 5 on a table's rows are named by its two ids, a dropped table that is made again is
another table, and its name stands in its `table` row alone (format.md, "Newer stamps"). Pure
functions over rows; where no row has ids nothing is done.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from omnigraph_spark.errors import CorruptManifestError
from omnigraph_spark.manifest.rows import (
    COMMIT,
    HEAD,
    INCARNATION,
    STABLE_ID,
    TABLE,
    TOMBSTONE,
    VERSION,
)
from omnigraph_spark.storage.layout import Identity

_MANY = 1_000  # a grouping takes a millisecond, and so many rows no longer
_TABLE_KINDS = (TABLE, VERSION, TOMBSTONE)


def has_identities(rows: pa.Table) -> bool:
    """Return whether rows are those of a format whose tables have ids."""
    return INCARNATION in rows.column_names


def named(rows: pa.Table) -> pa.Table:
    """Return rows under the names that their tables have now: older rows keep the old name."""
    if not has_identities(rows):
        return rows
    tables = rows.filter(pc.equal(rows["object_type"], TABLE))
    positions = pc.index_in(rows[INCARNATION], tables[INCARNATION].combine_chunks())
    own = pc.index_in(rows["table_key"], tables["table_key"].combine_chunks())
    is_other = pc.and_(pc.is_valid(positions), pc.fill_null(pc.not_equal(positions, own), True))
    if not pc.any(is_other).as_py():  # no table was renamed
        return rows
    names = pc.take(tables["table_key"].combine_chunks(), positions)
    current = pc.coalesce(names, rows["table_key"])
    if current.equals(rows["table_key"]):
        return rows
    number = rows.column_names.index("table_key")
    return rows.set_column(number, rows.schema.field(number), current)


def newest(rows: pa.Table) -> pa.Table:
    """Return the rows that tell what tables are: without the versions that newer ones supersede."""
    return rows.filter(pc.invert(are_superseded(rows, INCARNATION)))


def are_superseded(rows: pa.Table, key: str) -> pa.ChunkedArray:
    """Return for each row whether it is a version below the highest of those with its `key`."""
    versions = pc.equal(rows["object_type"], VERSION)
    highest = highest_by(rows.select([key, "table_version"]).filter(versions), key)
    keys = pa.array([*highest], rows[key].type)
    newest_numbers = pc.take(
        pa.array([*highest.values()], pa.uint64()), pc.index_in(rows[key], keys)
    )
    superseded = pc.and_(versions, pc.not_equal(rows["table_version"], newest_numbers))
    return pc.fill_null(superseded, False)


def living(rows: pa.Table) -> tuple[pa.Table, dict[str, Identity]]:
    """Return the rows of the tables that are there, and the ids of those by name.

    Raises:
        CorruptManifestError: a version without its table, or two tables of one name.
    """
    tables = rows.filter(pc.equal(rows["object_type"], TABLE)).to_pylist()
    known = {row[INCARNATION]: row for row in tables}
    highest, tombstones = (_highest(rows, kind) for kind in (VERSION, TOMBSTONE))
    by_name: dict[str, Identity] = {}
    for incarnation, version in highest.items():
        row = known.get(incarnation)
        if row is None or row[STABLE_ID] is None:
            raise CorruptManifestError(
                f"__manifest has versions of a table with the id {incarnation}, and not the table",
                expected="a table row with both ids",
            )
        if tombstones.get(incarnation, 0) >= version:
            continue
        key = row["table_key"]
        if key in by_name:
            raise CorruptManifestError(
                f"__manifest has two tables of the name {key[:80]!r}",
                expected="one",
                found=f"the ids {by_name[key].incarnation} and {incarnation}",
            )
        by_name[key] = Identity(row[STABLE_ID], incarnation)
    alive = pa.array([identity.incarnation for identity in by_name.values()], pa.uint64())
    return rows.filter(pc.is_in(rows[INCARNATION], alive)), by_name


def of_table(rows: pa.Table, key: str) -> pa.Table:
    """Return the rows of a table by its name, without those of a dropped one that had the name."""
    table_rows = rows.filter(pc.equal(rows["table_key"], key))
    if not has_identities(rows):
        return table_rows
    dropped = table_rows.filter(pc.equal(table_rows["object_type"], TOMBSTONE))[INCARNATION]
    return table_rows.filter(pc.invert(pc.is_in(table_rows[INCARNATION], dropped.combine_chunks())))


def of_same_tables(rows: pa.Table, others: pa.Table) -> pa.Table:
    """Return the rows of the tables that other rows are of, and of tables of the same names."""
    same = pc.is_in(rows["table_key"], others["table_key"].unique())
    if has_identities(rows):  # a row keeps the name that its table had
        same = pc.or_(same, pc.is_in(rows[INCARNATION], others[INCARNATION].unique()))
    return rows.filter(same)


def _highest(rows: pa.Table, kind: str) -> dict[int, int]:
    numbers = rows.select([INCARNATION, "table_version"]).filter(
        pc.equal(rows["object_type"], kind)
    )
    return highest_by(numbers, INCARNATION)


def highest_by(rows: pa.Table, key: str) -> dict[Any, int]:
    """Return the highest `table_version` by another column; rows without one don't count."""
    if rows.num_rows > _MANY:
        rows = rows.group_by(key).aggregate([("table_version", "max")])
        rows = rows.rename_columns({"table_version_max": "table_version"})
    highest: dict[Any, int] = {}
    for name, number in zip(rows[key].to_pylist(), rows["table_version"].to_pylist(), strict=True):
        if number is not None:
            highest[name] = max(number, highest.get(name, number))
    return highest


def refuse_unreadable(before: pa.Table, new: pa.Table, is_published: Callable[[str], bool]) -> None:
    """Refuse rows that would make an engine refuse the whole graph (format.md, "Newer stamps").

    `before` are the rows that are published already, but for superseded ones, `new` those of a
    publish. `is_published` says whether there is a row of an `object_id`.

    Raises:
        CorruptManifestError: names the row and what is wrong with it; nothing was published.
    """
    existing = before.filter(pc.equal(before["object_type"], TABLE)).to_pylist()
    tables = {row[INCARNATION]: row for row in existing}
    rows = new.to_pylist()
    tables |= {row[INCARNATION]: row for row in rows if row["object_type"] == TABLE}
    for row in rows:
        problem = _wrong_table(row, tables) if row["object_type"] in _TABLE_KINDS else _wrong(row)
        if problem is not None:
            raise _refused(row, problem)
    for row in rows:
        if row["object_type"] in (VERSION, TOMBSTONE, COMMIT) and is_published(row["object_id"]):
            raise _refused(row, "it is published already")


def _wrong_table(row: Mapping[str, Any], tables: Mapping[int, Mapping[str, Any]]) -> str | None:
    stable, incarnation, kind = row[STABLE_ID], row[INCARNATION], row["object_type"]
    if not stable or not incarnation:
        return "it lacks an id"
    pair, key = Identity(stable, incarnation), row["table_key"]
    table = tables.get(incarnation)
    if table is None or table[STABLE_ID] != stable:
        return "there is no table of these ids"
    number = row["table_version"]
    if row["object_id"] != pair.object_id(kind, number):
        return "it isn't named by its ids and its version"
    if kind == TABLE:
        return None if row["location"] == pair.location(key) else "it names another folder"
    if number is None:
        return "it has no version"
    if kind == TOMBSTONE:
        return None if key == table["table_key"] else "it has another name than its table"
    if row["row_count"] is None or '"manifest_path":"' not in (row["metadata"] or ""):
        return "it has no row count or no manifest_path"
    return None


def _wrong(row: Mapping[str, Any]) -> str | None:
    if row["object_type"] not in (COMMIT, HEAD):
        return "its kind is unknown"
    if row.get(STABLE_ID) is not None or row.get(INCARNATION) is not None:
        return "it has ids of a table"
    if not row["metadata"] or (row["object_type"] == COMMIT and row["table_version"] is None):
        return "it lacks what a commit has"
    return None


def _refused(row: Mapping[str, Any], problem: str) -> CorruptManifestError:
    return CorruptManifestError(
        f"A row of this publish would make the graph unreadable: {problem}",
        expected="what docs/internals/format.md says of newer stamps",
        found=str(row["object_id"])[:120],
        hint="Nothing was published. Please report this with the calls that led to it",
    )


def of_rows(identities: Mapping[str, Identity], rows: Iterable[Any]) -> dict[str, Identity]:
    """Return the ids of all tables that a publish's rows are of: known ones, and new ones."""
    new = {row.table_key: row.identity for row in rows if getattr(row, "identity", None)}
    return {**identities, **new}
