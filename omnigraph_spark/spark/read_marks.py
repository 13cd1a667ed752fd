"""What frames say that they were read from: the versions that a write expects, by their metadata.

Runs on the driver, at the plan; reads `__manifest` alone.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from pyspark.sql.types import StructType

from omnigraph_spark.errors import ExpectedVersionMismatch
from omnigraph_spark.manifest.snapshot import Snapshot, load
from omnigraph_spark.options import WriteOptions
from omnigraph_spark.spark import field_metadata
from omnigraph_spark.spark.field_metadata import ReadMark
from omnigraph_spark.storage.store import Storage
from omnigraph_spark.write.plan import OVERWRITE
from omnigraph_spark.write.reads import ReadFrom


def of_frames(
    storage: Storage, options: WriteOptions, schemas: Collection[StructType]
) -> list[ReadMark]:
    """Return what the frames say that they were read from, in this graph and on this branch.

    A graph that was moved since has another name, and nothing is expected then.
    """
    return [
        mark
        for schema in schemas
        for mark in field_metadata.read_marks(schema)
        if mark.graph == storage.root and mark.branch == options.branch
    ]


def versions(
    storage: Storage,
    options: WriteOptions,
    marks: Sequence[ReadMark],
    written: Collection[str],
    head: Snapshot,
) -> dict[str, int]:
    """Return the table versions that an overwrite's frames were read from.

    The lowest graph version that the fields name counts, for all tables: what replaces a table may
    be made of any other.

    Raises:
        ExpectedVersionMismatch: at the `head` a table is another one, made again since.
    """
    if not marks or options.mode != OVERWRITE or options.last_writer_wins:
        return {}
    lowest: ReadMark = min(marks, key=lambda mark: mark.version)
    snapshot = load(storage, options.branch, lowest.version)
    for key in written:
        _refuse_made_again(snapshot, head, key)
    return {key: snapshot.version(key) for key in written}


def of_rows(
    storage: Storage,
    options: WriteOptions,
    marks: Sequence[ReadMark],
    written: Collection[str],
    head: Snapshot,
) -> dict[str, ReadFrom]:
    """Return what an upsert's or delete's frames were read from, for tables that they were read of.

    Of several reads of one table the oldest counts, and the writes of all its frames are its own.

    Raises:
        ExpectedVersionMismatch: as `versions`.
    """
    found: dict[str, ReadFrom] = {}
    snapshots: dict[int, Snapshot] = {}
    for key in written if not options.last_writer_wins else ():
        of_table = [mark for mark in marks if mark.table_key in (None, key)]
        if not of_table:
            continue
        oldest = min(mark.version for mark in of_table)
        if oldest not in snapshots:
            snapshots[oldest] = load(storage, options.branch, oldest)
        _refuse_made_again(snapshots[oldest], head, key)
        entry = snapshots[oldest].tables.get(key)
        frames = tuple(mark.frame for mark in of_table if mark.frame)
        found[key] = ReadFrom(None, 0, frames)
        if entry is not None:
            found[key] = ReadFrom(entry.table_branch, entry.table_version, frames)
    return found


def _refuse_made_again(read: Snapshot, head: Snapshot, key: str) -> None:
    """Refuse rows of a table that was dropped since, for the one that has its name by now."""
    before, now = read.identities.get(key), head.identities.get(key)
    if before is not None and now is not None and before != now:
        raise ExpectedVersionMismatch(key, read.version(key), head.version(key), made_again=True)
