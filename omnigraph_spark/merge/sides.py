"""Which rows of a table a merge has to look at, and how they are read; without Spark.

Versions of a table share data files. A row that all versions have at the same place of the same
file is the same row in each of them, so it needs no comparing: only places count that are live in
some versions and not in others. After appends, upserts and deletes those are the changed rows;
after an overwrite or a compaction on one side, all rows.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from omnigraph_spark.arrow.to_spark import nullable_blobs, scan_options
from omnigraph_spark.arrow.to_table import to_table_batch
from omnigraph_spark.manifest.snapshot import TableEntry
from omnigraph_spark.read.plan import Scan, fragments_of, opened
from omnigraph_spark.storage import column_numbers
from omnigraph_spark.storage.lance_errors import translated
from omnigraph_spark.storage.relocation import open_for_reading
from omnigraph_spark.storage.store import Storage

if TYPE_CHECKING:
    from lance import LanceDataset

Offsets = NDArray[np.uint64]
Sides = Mapping[str, TableEntry | None]
"""What each version that takes part pins of one table, by the version's name in the merge."""

_PIECE_BYTES = 16 << 20
_ROW_BYTES = 64
_BATCH_BYTES = 8 << 20
_TAKE_BELOW = 32
"""Rows are taken by their places where fewer than one in so many is wanted."""


@dataclass(frozen=True)
class Place:
    """A data file in one version: the fragment that holds it there."""

    side: str
    scan: Scan
    has_deletions: bool


@dataclass(frozen=True)
class Piece:
    """A range of rows of one data file, in each version that has it; plain data.

    `everywhere`: all versions have the file, so that rows which are live in each are left out.
    `start` and `end` are offsets in the file; `size` is in bytes on disk.
    """

    places: tuple[Place, ...]
    everywhere: bool
    start: int
    end: int
    size: int


def pieces(storage: Storage, sides: Sides) -> list[Piece]:
    """Return what has to be read of a table; on the driver, from metadata.

    Raises:
        VersionNotFoundError, StorageError: a table version was cleaned up, or the store failed.
    """
    datasets = {side: _open(storage, entry) for side, entry in sides.items() if entry is not None}
    everywhere = 1 < len(datasets) == len(sides) and _are_alike(datasets.values())
    files: dict[str, list[tuple[Place, Any]]] = {}
    for side, dataset in datasets.items():
        entry = sides[side]
        assert entry is not None
        with translated(f"Reading the fragments of {entry.table_key}"):
            fragments = [fragment.metadata for fragment in dataset.get_fragments()]
        for fragment in fragments:
            description = fragment.to_json()
            content = json.dumps([_files(description), "" if everywhere else side])
            files.setdefault(content, []).append((_place(side, entry, fragment, content), fragment))
    return [
        piece
        for group in files.values()
        for piece in _of_file(group, everywhere and len(group) == len(sides))
    ]


def _open(storage: Storage, entry: TableEntry) -> LanceDataset:
    return open_for_reading(storage, entry.location, entry.table_branch, entry.table_version)


def _are_alike(datasets: Any) -> bool:
    """Return whether the columns have the same field ids in all versions.

    Otherwise one file may hold other values: a column that was dropped and added again is null.
    """
    columns = {
        tuple(column[:3] for column in column_numbers.of_dataset(dataset)) for dataset in datasets
    }
    return len(columns) == 1


def _files(description: Mapping[str, Any]) -> list[Any]:
    return [
        [[file["path"], file["fields"]] for file in description["files"]],
        description.get("overlays"),
    ]


def _place(side: str, entry: TableEntry, fragment: Any, token: str) -> Place:
    scan = Scan(
        table_key=entry.table_key,
        location=entry.location,
        table_branch=entry.table_branch,
        version=entry.table_version,
        token=token,
        fragments=(fragment.id,),
        rows=None,
        expected_rows=fragment.num_rows,
    )
    return Place(side, scan, fragment.num_rows < fragment.physical_rows)


def _of_file(group: Sequence[tuple[Place, Any]], everywhere: bool) -> Iterator[Piece]:
    deletions = {json.dumps(fragment.to_json().get("deletion_file")) for _, fragment in group}
    if everywhere and len(deletions) == 1:
        return
    fragment = group[0][1]
    rows = int(fragment.physical_rows)
    known = sum(file.file_size_bytes or 0 for file in fragment.files) or rows * _ROW_BYTES
    parts = min(-(-known // _PIECE_BYTES), rows)
    places = tuple(place for place, _ in group)
    for part in range(parts):
        start, end = rows * part // parts, rows * (part + 1) // parts
        yield Piece(places, everywhere, start, end, known // parts)


def read(
    storage: Storage,
    piece: Piece,
    schema: pa.Schema,
    key: str,
    names: Mapping[str, str] | None = None,
) -> Iterator[tuple[str, pa.RecordBatch]]:
    """Yield (version's name, rows in the table schema) of a piece; in a task.

    Rows that several versions share are read once. `names` says what the piece's versions call the
    columns of `schema`, which several of them call alike; None: as they are.

    Raises:
        SchemaMismatchError, IntegrityError: a version holds what the table's schema can't.
        StorageError: the store failed.
    """
    own = {name: name for name in schema.names} if names is None else names
    live = {place.side: _live(storage, place, piece) for place in piece.places}
    both = reduce(np.intersect1d, live.values()) if piece.everywhere else np.empty(0, np.uint64)
    groups: dict[bytes, list[Place]] = {}
    for place in piece.places:
        offsets = np.setdiff1d(live[place.side], both, assume_unique=True)
        if len(offsets):
            groups.setdefault(offsets.tobytes(), []).append(place)
    for packed, places in groups.items():
        offsets = np.frombuffer(packed, dtype=np.uint64)
        for batch in _rows(storage, places[0], piece, offsets, live[places[0].side], own):
            fitted = to_table_batch(batch, schema, key)
            for place in places:
                yield place.side, fitted


def _live(storage: Storage, place: Place, piece: Piece) -> Offsets:
    """Return the offsets of rows that aren't deleted, ascending."""
    if not place.has_deletions:
        return np.arange(piece.start, piece.end, dtype=np.uint64)
    dataset = opened(storage, place.scan)
    with translated(f"Reading the rows of {place.scan.table_key}"):
        rows = dataset.scanner(
            columns=[],
            with_row_address=True,
            filter=_range(place, piece),
            fragments=fragments_of(dataset, place.scan),
        ).to_table()
    return np.sort(_offsets(rows["_rowaddr"].combine_chunks()))


def _rows(
    storage: Storage,
    place: Place,
    piece: Piece,
    offsets: Offsets,
    live: Offsets,
    own: Mapping[str, str],
) -> Iterator[pa.RecordBatch]:
    """Yield the rows at offsets, with those columns that this version has; `own` are its names."""
    dataset = opened(storage, place.scan)
    columns = {name: mine for name, mine in own.items() if mine in dataset.schema.names}
    names = list(columns.values())
    options = scan_options(dataset.schema)
    (fragment,) = fragments_of(dataset, place.scan)
    with translated(f"Reading {place.scan.table_key} of {storage.root}"):
        if len(offsets) * _TAKE_BELOW < len(live) and not options and piece.start == 0:
            # `take` counts the rows that aren't deleted, from the fragment's first.
            positions = np.searchsorted(live, offsets)
            taken = fragment.take(positions.tolist(), columns=names).rename_columns(list(columns))
            yield from taken.to_batches()
            return
        # A range costs a request more: its rows are found first, then read.
        is_whole = piece.start == 0 and piece.end == fragment.physical_rows
        scanner = dataset.scanner(
            columns=names,
            with_row_address=True,
            filter=None if is_whole else _range(place, piece),
            fragments=[fragment],
            batch_size_bytes=_BATCH_BYTES,
            **options,
        )
        blobs = nullable_blobs(dataset.schema)
        for batch in scanner.to_batches():
            keep = np.isin(_offsets(batch.column("_rowaddr")), offsets)
            rows = batch.filter(pa.array(keep)).select(names)
            if rows.num_rows:
                yield _without_empty(rows, blobs).rename_columns(list(columns))


def _range(place: Place, piece: Piece) -> str:
    first = place.scan.fragments[0] << 32
    return f"_rowaddr >= {first + piece.start} AND _rowaddr < {first + piece.end}"


def _offsets(addresses: pa.Array) -> Offsets:
    offsets: Offsets = addresses.to_numpy(zero_copy_only=False).astype(np.uint64)
    offsets &= np.uint64(0xFFFFFFFF)
    return offsets


def _without_empty(rows: pa.RecordBatch, blobs: frozenset[str]) -> pa.RecordBatch:
    """Return rows in which an empty blob that may be null is null."""
    columns = [
        pc.if_else(pc.equal(pc.binary_length(column), 0), pa.scalar(None, column.type), column)
        if name in blobs
        else column
        for name, column in zip(rows.schema.names, rows.columns, strict=True)
    ]
    return pa.RecordBatch.from_arrays(columns, names=rows.schema.names)
