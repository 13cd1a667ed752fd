"""The data files of a write's messages: are they published, and when they may be deleted.

Runs on the driver. A file that was ever part of a table commit is never deleted here (rule 19).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence, Set

import pyarrow as pa
import pyarrow.compute as pc

from omnigraph_spark.arrow.to_table import to_table_batch
from omnigraph_spark.errors import PublishOutcomeUnknown, StorageError
from omnigraph_spark.manifest.snapshot import Snapshot
from omnigraph_spark.schema.property_types import is_blob
from omnigraph_spark.storage.lance_errors import translated
from omnigraph_spark.storage.store import Storage
from omnigraph_spark.write.plan import TableTarget, WritePlan
from omnigraph_spark.write.tasks.stage import StagedTable

_FEW_FILES = 4


def are_published(
    plan: WritePlan, by_table: Mapping[str, Sequence[StagedTable]], snapshot: Snapshot
) -> bool:
    """Return whether another writer's recovery has published the staged files (rule 2).

    Costs nothing for tables that nobody published since the plan.

    Raises:
        PublishOutcomeUnknown: some of them are part of a published version and some aren't.
        StorageError: the store failed.
    """
    total = published = 0
    for key, staged in by_table.items():
        entry = snapshot.tables.get(key)
        ours = _paths(staged)
        total += len(ours)
        if entry is None or not ours or entry.table_version == plan.targets[key].version:
            continue
        dataset = plan.storage.dataset(entry.location, entry.table_branch, entry.table_version)
        with translated(f"Listing the files of {key}"):
            fragments = dataset.get_fragments()
        committed = {file.path for fragment in fragments for file in fragment.data_files()}
        published += len(ours & committed)
    if 0 < published < total:
        raise PublishOutcomeUnknown(
            plan.publish_id, f"another writer published {published} of its {total} files"
        )
    return 0 < published == total


def check_there(storage: Storage, target: TableTarget, staged: Sequence[StagedTable]) -> None:
    """Look that staged data files are there, after they became part of an unpublished version.

    From then on cleanup keeps them; before, a writer that slept may have lost them in between.
    One request per file where there are few, else one listing.

    Raises:
        StorageError: a cleanup removed some; or the store failed.
    """
    check_files(storage, target.table_key, {f"{target.data}/{path}" for path in _paths(staged)})


def check_files(storage: Storage, table_key: str, paths: Set[str]) -> None:
    """Look that data files of one folder, below the root, are there; see `check_there`.

    Raises:
        StorageError: some aren't; or the store failed.
    """
    if len(paths) <= _FEW_FILES:
        gone = [path for path in sorted(paths) if storage.head(path) is None]
    else:
        folder = next(iter(paths)).rpartition("/")[0]
        gone = sorted(paths - {info.path for info in storage.list(folder)})
    if gone:
        raise StorageError(
            f"{len(gone)} of {len(paths)} staged files of {table_key} are gone",
            expected=gone[0],
            found="a cleanup that took them for old",
            hint="Nothing was published. Write again, and let cleanup remove only what is older "
            "than your longest job",
        )


def _paths(staged: Iterable[StagedTable]) -> set[str]:
    return {f["path"] for part in staged for fragment in part.fragments for f in fragment["files"]}


def delete(plan: WritePlan, staged: Iterable[StagedTable]) -> None:
    """Delete the data files of fragments that were never part of a table commit.

    A blob column keeps its bytes in a folder beside the data file that is named after it.

    Raises:
        StorageError: the store failed; the rest is left to cleanup.
    """
    staged = list(staged)
    delete_beside(plan, staged)
    paths: list[str] = []
    for part in staged:
        target = plan.targets[part.table_key]
        files = [f"{target.data}/{path}" for path in _paths([part])]
        paths += files
        if any(is_blob(field) for field in target.schema):
            folders = [path.rsplit(".", 1)[0] for path in files]
            paths += [info.path for folder in folders for info in plan.storage.list(folder)]
    plan.storage.delete_many(paths)


def delete_beside(plan: WritePlan, staged: Iterable[StagedTable]) -> None:
    """Delete what tasks left in files for the driver alone, once nobody reads it again.

    Raises:
        StorageError: the store failed; the rest is left to cleanup.
    """
    for path in {part.beside for part in staged} - {""}:
        plan.storage.delete(path)


_READ_ROWS = 8_192


def read(
    plan: WritePlan,
    target: TableTarget,
    staged: StagedTable,
    without: Mapping[int, pa.Array] | None = None,
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a task's files in the columns that its frame brought.

    `without` are the rows of each of its files that are left out.

    Raises:
        StorageError: a file isn't there, or the store failed.
    """
    names = list(staged.columns or target.schema.names)
    schema = pa.schema([target.schema.field(name) for name in names])
    for number, fragment in enumerate(staged.fragments):
        path = f"{target.data}/{fragment['files'][0]['path']}"
        left_out = (without or {}).get(number)
        row = 0
        reader = plan.storage.data_file(path, names)
        with translated(f"Reading {path}"):
            for batch in reader.read_all(batch_size=_READ_ROWS).to_batches():
                rows = to_table_batch(batch, schema, target.table_key)
                if left_out is not None and len(left_out):
                    places = pa.array(range(row, row + rows.num_rows), pa.int64())
                    row += rows.num_rows
                    rows = rows.filter(pc.invert(pc.is_in(places, value_set=left_out)))
                yield rows
