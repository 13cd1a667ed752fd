"""From a snapshot to the pieces of work of a read: plain data, made on the driver.

A `Scan` names a dataset version and some of its fragments, or a range of rows of one large
fragment. A partition is a tuple of scans: small fragments, and small tables of a whole-graph read,
go together until `maxPartitionBytes` is reached. Planning looks at metadata only and is linear in
the fragments.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa

from omnigraph_spark.errors import StorageError
from omnigraph_spark.manifest.snapshot import Snapshot, TableEntry
from omnigraph_spark.storage.lance_errors import translated
from omnigraph_spark.storage.relocation import open_for_reading
from omnigraph_spark.storage.store import Storage

if TYPE_CHECKING:
    from lance import LanceDataset, LanceFragment

_OPENERS = 16
_UNKNOWN_ROW_BYTES = 64
# A filtered range of a fragment reads the filter's columns of the whole fragment, so there are few.
_FILTERED_RANGES = 8
_HALVINGS = 12
_SMALL_ROWS = 1_000_000
_MOST_FOUND = 1 / 8
_SMALL_SHARE = 1 / 4
_IDS_SHARE = 1 / 64
_IDS = re.compile(r"(^|[\s(`])(id|src|dst)`?\s*(=|IN\b)", re.IGNORECASE)
_ID_ASKED = re.compile(r"\[(id|src|dst) = ")
_UNSURE = re.compile(r"\b(OR|NOT)\b", re.IGNORECASE)

Partition = tuple["Scan", ...]
_Item = TypeVar("_Item")


@dataclass(frozen=True)
class Scan:
    """Some fragments of a dataset version, or a range of rows of one fragment.

    `token` tells this dataset from another one that took its place under the same name and version
    (workers keep datasets open). A range is of rows on disk where rows are filtered, of the rows
    that aren't deleted where they aren't; then a scan gives exactly `expected_rows`. Without
    `by_index` an index that could answer its filter isn't asked.
    """

    table_key: str
    location: str
    table_branch: str | None
    version: int
    token: str
    fragments: tuple[int, ...]
    rows: tuple[int, int] | None
    expected_rows: int
    by_index: bool = True


@dataclass(frozen=True)
class _Piece:
    """One fragment or range with its size, before packing."""

    fragment: int
    rows: tuple[int, int] | None
    live_rows: int
    size: int


def open_tables(storage: Storage, entries: Iterable[TableEntry]) -> dict[str, LanceDataset]:
    """Open table versions for reading, several at a time; on the driver.

    Raises:
        DatasetNotFoundError: a table's dataset, branch or version isn't there.
        CorruptManifestError, StorageError: as `relocation.open_for_reading`.
    """
    listed = list(entries)

    def opened(entry: TableEntry) -> LanceDataset:
        return open_for_reading(storage, entry.location, entry.table_branch, entry.table_version)

    if len(listed) < 2:
        return {entry.table_key: opened(entry) for entry in listed}
    with ThreadPoolExecutor(min(_OPENERS, len(listed))) as pool:
        datasets = list(pool.map(opened, listed))
    return {entry.table_key: dataset for entry, dataset in zip(listed, datasets, strict=True)}


def plan(
    entries: Sequence[TableEntry],
    datasets: Mapping[str, LanceDataset],
    max_partition_bytes: int,
    filtered: Mapping[str, bool],
    shares: Mapping[str, float],
    by_index: Mapping[str, bool] | None = None,
) -> list[Partition]:
    """Return the partitions that read the given tables whole; on the driver, once per action.

    Args:
        entries: The tables to read, in the order of the rows.
        datasets: Each of them opened (`open_tables`).
        max_partition_bytes: Bytes on disk that a partition reads at most, about; one row range
            never gets smaller than a row.
        filtered: Per table key, whether rows are filtered while they are read.
        shares: Per table key, about what part of its bytes the columns are that are read.
        by_index: Per table key, whether indices are asked for the rows of filters; all are.

    Returns:
        Partitions without empty fragments; an empty list where there are no rows.

    Raises:
        StorageError: the store failed.
    """
    sized = []
    for entry in entries:
        key = entry.table_key
        token, pieces = _pieces(datasets[key], max_partition_bytes, filtered[key], shares[key])
        sized += [(piece.size, (entry, token, piece)) for piece in pieces]
    asked = by_index or {}
    return [_partition(group, asked) for group in shared_out(sized, max_partition_bytes)]


def first_rows(partitions: Sequence[Partition], most: int) -> list[Partition]:
    """Return the first partitions that have `most` rows together; for scans without a filter."""
    first: list[Partition] = []
    for partition in partitions:
        if most <= 0:
            break
        first.append(partition)
        most -= sum(scan.expected_rows for scan in partition)
    return first


def shared_out(sized: Sequence[tuple[int, _Item]], most: int) -> list[list[_Item]]:
    """Return items of a size in groups, in order, as even as they can be without being more.

    A group gets `most` at most, or one item. Filled up to `most` one after the other, the last
    would be what is left: three quarters for one task, a quarter for another, which then waits.
    """
    sizes = [size for size, _ in sized]
    limit = _even_limit(sizes, most)
    groups: list[list[_Item]] = []
    for starts, (_, item) in zip(_starts(sizes, limit), sized, strict=True):
        if starts:
            groups.append([])
        groups[-1].append(item)
    return groups


def _even_limit(sizes: Sequence[int], most: int) -> int:
    """Return the least limit with which there are no more groups than with `most`."""
    count = sum(_starts(sizes, most))
    if count < 2:
        return most
    low, high = min(sum(sizes) // count, most), most
    for _ in range(_HALVINGS):
        middle = (low + high) // 2
        fits = sum(_starts(sizes, middle)) <= count
        low, high = (low, middle) if fits else (middle, high)
    return high


def _starts(sizes: Sequence[int], limit: int) -> Iterator[bool]:
    """Tell for each size whether it starts a group."""
    room = -1
    for size in sizes:
        starts = size > room
        room = limit - size if starts else room - size
        yield starts


def _partition(
    group: Iterable[tuple[TableEntry, str, _Piece]], by_index: Mapping[str, bool]
) -> Partition:
    tables = groupby(group, key=lambda item: item[:2])
    return tuple(
        scan
        for (entry, token), pieces in tables
        for scan in _scans(
            entry,
            token,
            [piece for _, _, piece in pieces],
            by_index.get(entry.table_key, True),
        )
    )


def index_answers(dataset: LanceDataset, where: str) -> bool:
    """Return whether Lance can ask an index for the rows of a filter; on the driver, reads no rows.

    Raises:
        StorageError: the store failed.
    """
    return bool(_index_query(dataset, where))


def _index_query(dataset: LanceDataset, where: str) -> str:
    """Return what Lance would ask its indices for a filter, "" where it would ask none."""
    with translated("Planning a filter"):
        planned = dataset.scanner(filter=where, columns=["_rowid"]).explain_plan()
    return str(planned.partition("ScalarIndexQuery:")[2])


def share_by_index(dataset: LanceDataset, where: str) -> float | None:
    """Return about what share of rows an index finds for a filter, None where it isn't to be asked.

    On the driver. An index gives the ids of all rows that it finds in the table, to each task that
    asks it: those of 24 million rows take it 4 s, in which a scan reads a hundred million. So it
    is asked in a small table always, for the rows of some ids, and else where a few fragments, of
    which the filter's columns are read, say that it finds an eighth of the rows at most.

    Raises:
        StorageError: the store failed.
    """
    asked = _index_query(dataset, where)
    if not asked:
        return None
    fragments = dataset.get_fragments()
    counts = [fragment.metadata.num_rows for fragment in fragments]
    if sum(counts) <= _SMALL_ROWS:
        return _SMALL_SHARE
    if _is_of_ids(where) and _ID_ASKED.search(asked):
        return _IDS_SHARE
    last = len(fragments) - 1
    # The ends first: of rows in an order, such as that of time, a filter often finds those.
    chosen = [*dict.fromkeys(last * part // 8 for part in (8, 0, 4, 2, 6, 1, 3, 5, 7))]
    most = sum(counts[place] for place in chosen) * _MOST_FOUND
    found = 0
    with translated("Estimating a filter"):
        for place in chosen:
            found += dataset.scanner(
                filter=where,
                columns=[],
                with_row_id=True,
                fragments=[fragments[place]],
                use_scalar_index=False,
            ).count_rows()
            if found > most:
                return None
    return max(found / most * _MOST_FOUND, _IDS_SHARE) if most else _IDS_SHARE


def _is_of_ids(where: str) -> bool:
    """Return whether rows satisfy a filter only if an id or an end is one of some values."""
    plain = where.replace("IS NOT NULL", "")
    return _IDS.search(plain) is not None and _UNSURE.search(plain) is None


def _pieces(
    dataset: LanceDataset, most: int, filtered: bool, share: float
) -> tuple[str, list[_Piece]]:
    """Return the dataset's token and its fragments, large ones cut into ranges."""
    digest = hashlib.blake2b(digest_size=8)
    pieces: list[_Piece] = []
    with translated("Reading the fragments of a table"):
        fragments = [
            (fragment.fragment_id, fragment.metadata) for fragment in dataset.get_fragments()
        ]
    for number, metadata in fragments:
        for file in metadata.files:
            digest.update(file.path.encode())
        pieces.extend(_cut(number, metadata, most, filtered, share))
    return digest.hexdigest(), pieces


def _cut(number: int, metadata: Any, most: int, filtered: bool, share: float) -> Iterator[_Piece]:
    physical, live = metadata.physical_rows, metadata.num_rows
    if live == 0:
        return
    known = sum(file.file_size_bytes or 0 for file in metadata.files)
    size = max(int((known or physical * _UNKNOWN_ROW_BYTES) * share), 1)
    # With a filter a range is of rows on disk, told by address; else of those left, by offset.
    rows = physical if filtered else live
    parts = min(-(-size // most), rows)
    if filtered:
        parts = min(parts, _FILTERED_RANGES)
    if parts == 1:
        yield _Piece(number, None, live, size)
        return
    for part in range(parts):
        start, end = rows * part // parts, rows * (part + 1) // parts
        yield _Piece(number, (start, end), end - start, size // parts)


def _scans(entry: TableEntry, token: str, pieces: Sequence[_Piece], by_index: bool) -> list[Scan]:
    """Return the scans of neighbouring pieces: whole fragments in one, each range by itself."""
    whole = [piece for piece in pieces if piece.rows is None]
    groups = [whole] if whole else []
    groups += [[piece] for piece in pieces if piece.rows is not None]
    return [
        Scan(
            table_key=entry.table_key,
            location=entry.location,
            table_branch=entry.table_branch,
            version=entry.table_version,
            token=token,
            fragments=tuple(piece.fragment for piece in group),
            rows=group[0].rows,
            expected_rows=sum(piece.live_rows for piece in group),
            by_index=by_index,
        )
        for group in groups
    ]


def read_table(storage: Storage, snapshot: Snapshot, key: str) -> pa.Table:
    """Read a whole table of a snapshot as Lance stores it, blobs as bytes; without Spark.

    Raises:
        TableNotFoundError: the snapshot has no such table.
        StorageError: the table isn't there, or the store failed.
    """
    dataset = open_tables(storage, [snapshot.entry(key)])[key]
    with translated(f"Reading {key}"):
        return dataset.scanner(blob_handling="all_binary").to_table()


_MOST = 64
_open: OrderedDict[tuple[object, ...], LanceDataset] = OrderedDict()


def opened(storage: Storage, scan: Scan) -> LanceDataset:
    """Return the scan's dataset version, opened once per process; on executors.

    The key holds the process id, since Lance's threads don't survive a fork, and the
    scan's token, since a graph may be deleted and made again at the same place.

    Raises:
        DatasetNotFoundError: the dataset, branch or version isn't there.
        CorruptManifestError, StorageError: as `relocation.open_for_reading`.
    """
    key = (os.getpid(), storage, scan.location, scan.table_branch, scan.version, scan.token)
    dataset = _open.pop(key, None)
    if dataset is None:
        dataset = open_for_reading(storage, scan.location, scan.table_branch, scan.version)
    _open[key] = dataset
    while len(_open) > _MOST:
        _open.popitem(last=False)
    return dataset


def fragments_of(dataset: LanceDataset, scan: Scan) -> list[LanceFragment]:
    """Return the fragments of a scan.

    Raises:
        StorageError: the dataset doesn't have one of them.
    """
    fragments = [dataset.get_fragment(number) for number in scan.fragments]
    existing = [fragment for fragment in fragments if fragment is not None]
    if len(existing) < len(fragments):
        raise StorageError(
            f"{scan.table_key} is another dataset than the one that was planned",
            expected=f"fragments {list(scan.fragments)[:20]}",
            found=f"{len(existing)} of them",
            hint="Load the frame again",
        )
    return existing
