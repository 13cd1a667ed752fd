"""Lance's `RowIdSequence` of a fragment: how an updated row keeps its stable row id.

pylance takes the sequence in a fragment's `row_id_meta` and has nothing that builds one. It is a
protobuf message of segments (Lance's `rowids.proto`); an ascending run of ids is kept as a bitmap
or as offsets of 16, 32 or 64 bits, whichever is smallest. A row that keeps its id keeps its
created-at version too, which Lance looks up when it commits an Update. Tasks pack, the driver
encodes.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from omnigraph_spark.storage.store import Storage
from omnigraph_spark.write.tasks import packed

Ids = NDArray[np.uint64]
_FEWEST_IN_A_PIECE = 32


def pack(row_ids: Ids, addresses: Ids) -> str:
    """Return row ids as text, for a caller that knows the rows' addresses.

    Where no row was updated yet, ids and addresses grow alike, and next to nothing is left to say.
    """
    return packed.pack(_steps(row_ids) - _steps(addresses))


def unpack(storage: Storage, text: str, addresses: Ids) -> Ids:
    """Return the row ids that `pack` wrote for these addresses.

    Raises:
        StorageError: they are in a file that can't be read.
    """
    more = packed.unpack(storage, text, np.int64)
    return np.cumsum(more + _steps(addresses)).astype(np.uint64)


def _steps(numbers: Ids) -> NDArray[np.int64]:
    steps = numbers.astype(np.int64)
    steps[1:] -= steps[:-1].copy()
    return steps


def encoded(row_ids: Ids) -> bytes:
    """Return the row ids of a fragment, in the order of its rows, as Lance's message."""
    return b"".join(_field(1, piece) for run in _runs(row_ids) for piece in _segments(run))


def _runs(row_ids: Ids) -> list[Ids]:
    """Cut ids into strictly ascending runs."""
    if not len(row_ids):
        return []
    breaks = np.flatnonzero(row_ids[1:] <= row_ids[:-1]) + 1
    return [run for run in np.split(row_ids, breaks) if len(run)]


def _segments(run: Ids) -> list[bytes]:
    """Return a run as one segment, or where it is sparse as pieces of 16-bit offsets."""
    span = int(run[-1]) - int(run[0]) + 1
    if span // 8 > 2 * len(run):
        cuts = np.flatnonzero(np.diff(run >> np.uint64(16))) + 1
        if len(run) >= _FEWEST_IN_A_PIECE * (len(cuts) + 1):
            return [_narrow(piece) for piece in np.split(run, cuts)]
    return [_segment(run)]


def _narrow(piece: Ids) -> bytes:
    offsets = _field(2, (piece - piece[0]).astype("<u2").tobytes())
    return _field(4, _field(1, _number(1, int(piece[0])) + offsets))


def _segment(run: Ids) -> bytes:
    first, last = int(run[0]), int(run[-1])
    span = last - first + 1
    if span == len(run):
        return _field(1, _number(1, first) + _number(2, last + 1))
    offsets = run - run[0]
    if span // 8 <= 4 * len(run):
        bits = np.zeros(span, dtype=bool)
        bits[offsets.astype(np.int64)] = True
        packed = np.packbits(bits, bitorder="little").tobytes()
        return _field(3, _number(1, first) + _number(2, last + 1) + _field(3, packed))
    if span < 1 << 32:
        narrow = _number(1, first) + _field(2, offsets.astype("<u4").tobytes())
        return _field(4, _field(2, narrow))
    return _field(4, _field(3, _field(2, run.astype("<u8").tobytes())))


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


def _number(field: int, value: int) -> bytes:
    return _varint(field << 3) + _varint(value)


def _field(field: int, content: bytes) -> bytes:
    return _varint(field << 3 | 2) + _varint(len(content)) + content
