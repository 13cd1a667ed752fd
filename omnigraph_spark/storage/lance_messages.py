"""Two protobuf messages of Lance that pylance has no call for: row ids, and places of a version.

`lance_table.proto` is an excerpt of Lance's own files; fields that it leaves out stay as they are.
After a change of it, with its path as the last word: `protoc -I. --python_out=. --pyi_out=.`.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from omnigraph_spark.errors import CorruptManifestError

if TYPE_CHECKING:
    from omnigraph_spark.storage.lance_table_pb2 import U64Segment

Ids = NDArray[np.uint64]
_FEWEST_IN_A_PIECE = 32

# The end of a version manifest: where the message's length is, two numbers of the format, magic.
_FOOTER = struct.Struct("<QHH4s")
_LENGTH = struct.Struct("<I")
_MAGIC = b"LANC"
_KNOWN_FORMATS = frozenset({(0, 2)})


def with_base_paths(data: bytes, bases: Mapping[int, str], name: str) -> bytes:
    """Return a version manifest whose base paths are `bases` (by id); pure.

    What lies before its last message, which the message points into, keeps its place.

    Raises:
        CorruptManifestError: it isn't a manifest as Lance writes it, or of a format that isn't
            known here; `name` is named.
    """
    from google.protobuf.message import DecodeError

    from omnigraph_spark.storage.lance_table_pb2 import Manifest

    start, footer = _message_start(data, name)
    try:
        manifest = Manifest.FromString(data[start : len(data) - _FOOTER.size])
    except DecodeError as error:
        raise _unreadable(name) from error
    changed = False
    for base in manifest.base_paths:
        path = bases.get(base.id, base.path)
        if path != base.path:
            base.path = path
            changed = True
    if not changed:
        return data
    message = bytes(manifest.SerializeToString())
    return data[: start - _LENGTH.size] + _LENGTH.pack(len(message)) + message + footer


def _message_start(data: bytes, name: str) -> tuple[int, bytes]:
    """Return where a manifest's message begins, and the footer behind it."""
    if len(data) < _FOOTER.size + _LENGTH.size:
        raise _unreadable(name)
    footer = data[-_FOOTER.size :]
    position, major, minor, magic = _FOOTER.unpack(footer)
    start = position + _LENGTH.size
    if magic != _MAGIC or start > len(data) - _FOOTER.size:
        raise _unreadable(name)
    if (major, minor) not in _KNOWN_FORMATS:
        raise _unreadable(name, f"format {major}.{minor}")
    (length,) = _LENGTH.unpack(data[position:start])
    if start + length != len(data) - _FOOTER.size:
        raise _unreadable(name)
    return start, footer


def _unreadable(name: str, detail: str | None = None) -> CorruptManifestError:
    return CorruptManifestError(
        f"{name} is not a version manifest that can be pointed to a new place",
        expected="a file as Lance writes it",
        found=detail,
        hint="Nothing was changed in it. Restore it from a copy, or move the graph back",
    )


def row_id_sequence(row_ids: Ids) -> bytes:
    """Return the row ids of a fragment, in the order of its rows, as Lance's message.

    An ascending run of ids is kept as a bitmap or as offsets of 16, 32 or 64 bits, whichever is
    smallest.
    """
    from omnigraph_spark.storage.lance_table_pb2 import RowIdSequence

    segments = (segment for run in _runs(row_ids) for segment in _segments(run))
    return bytes(RowIdSequence(segments=segments).SerializeToString())


def _runs(row_ids: Ids) -> list[Ids]:
    """Cut ids into strictly ascending runs."""
    if not len(row_ids):
        return []
    breaks = np.flatnonzero(row_ids[1:] <= row_ids[:-1]) + 1
    return [run for run in np.split(row_ids, breaks) if len(run)]


def _segments(run: Ids) -> list[U64Segment]:
    """Return a run as one segment, or where it is sparse as pieces of 16-bit offsets."""
    span = int(run[-1]) - int(run[0]) + 1
    if span // 8 > 2 * len(run):
        cuts = np.flatnonzero(np.diff(run >> np.uint64(16))) + 1
        if len(run) >= _FEWEST_IN_A_PIECE * (len(cuts) + 1):
            return [_narrow(piece) for piece in np.split(run, cuts)]
    return [_segment(run)]


def _narrow(piece: Ids) -> U64Segment:
    from omnigraph_spark.storage.lance_table_pb2 import EncodedU64Array, U64Segment

    first = piece[0]
    offsets = (piece - first).astype("<u2").tobytes()
    array = EncodedU64Array.U16Array(base=int(first), offsets=offsets)
    return U64Segment(sorted_array=EncodedU64Array(u16_array=array))


def _segment(run: Ids) -> U64Segment:
    from omnigraph_spark.storage.lance_table_pb2 import EncodedU64Array, U64Segment

    first, last = int(run[0]), int(run[-1])
    span = last - first + 1
    if span == len(run):
        return U64Segment(range=U64Segment.Range(start=first, end=last + 1))
    offsets = run - run[0]
    if span // 8 <= 4 * len(run):
        bits = np.zeros(span, dtype=bool)
        bits[offsets.astype(np.int64)] = True
        bitmap = np.packbits(bits, bitorder="little").tobytes()
        held = U64Segment.RangeWithBitmap(start=first, end=last + 1, bitmap=bitmap)
        return U64Segment(range_with_bitmap=held)
    if span < 1 << 32:
        narrow = EncodedU64Array.U32Array(base=first, offsets=offsets.astype("<u4").tobytes())
        return U64Segment(sorted_array=EncodedU64Array(u32_array=narrow))
    wide = EncodedU64Array.U64Array(values=run.astype("<u8").tobytes())
    return U64Segment(sorted_array=EncodedU64Array(u64_array=wide))
