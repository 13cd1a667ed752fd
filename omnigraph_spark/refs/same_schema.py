"""Whether an older version of a graph has the tables and columns of today; on the driver.

There is one schema for all branches. Newer engines refuse a whole graph in which a branch's tables
aren't exactly those that the schema files name, or lack a column of theirs (format.md, "Newer
stamps"): so a version from before a change of the schema can be read, and not become a head again.
"""

from __future__ import annotations

from omnigraph_spark.errors import UnsupportedError
from omnigraph_spark.manifest.snapshot import Snapshot, TableEntry
from omnigraph_spark.storage.relocation import open_for_reading
from omnigraph_spark.storage.store import Storage


def refuse_other(storage: Storage, now: Snapshot, old: Snapshot) -> None:
    """Refuse a version from before a change of the schema, where engines would refuse the graph.

    `now` is the head of a branch, which fits the schema files; tables that didn't move since aren't
    opened.

    Raises:
        UnsupportedError: the version had other tables, or a table had other columns.
        StorageError: the store failed, or a table version was cleaned up.
    """
    if not (now.identities or old.identities):
        return
    if dict(now.identities) != dict(old.identities):
        differing = sorted(dict(set(now.identities.items()) ^ set(old.identities.items())))
        raise _refused(old, f"other tables ({', '.join(differing)[:200]})")
    for key, entry in old.tables.items():
        head = now.tables[key]
        if _place(head) != _place(entry) and _columns(storage, head) != _columns(storage, entry):
            raise _refused(old, f"other columns in {key}")


def _place(entry: TableEntry) -> tuple[str, str | None, int]:
    return entry.location, entry.table_branch, entry.table_version


def _columns(storage: Storage, entry: TableEntry) -> list[tuple[str, str, bool]]:
    schema = open_for_reading(storage, *_place(entry)).schema
    return [(field.name, str(field.type), field.nullable) for field in schema]


def _refused(old: Snapshot, others: str) -> UnsupportedError:
    return UnsupportedError(
        f"Version {old.graph_version} of branch {old.branch} has {others}: with them as a head the"
        " engine would refuse the whole graph",
        expected="a version since the last change of the schema",
        hint="It can be read. Write the rows that are wanted of it to the tables of today",
    )
