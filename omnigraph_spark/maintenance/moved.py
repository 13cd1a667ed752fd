"""Point the branches of a moved or copied graph at where the graph is now.

A Lance branch keeps its parent's root in its version manifests as the writer spelled it, and Lance
offers no way to change it. So the manifest files are rewritten: the last part of such a file is one
protobuf message, in which the field `base_paths` (18) has a `path` (4); everything before it, which
the message points into, keeps its place. Each file is replaced in one step, and means the same to a
reader of this connector before and after, so a crash in between leaves nothing half done.

Runs on the driver. Nobody can write to such a branch meanwhile: Lance can't open it.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping

from omnigraph_spark.errors import CorruptManifestError
from omnigraph_spark.storage import relocation
from omnigraph_spark.storage.lance_errors import DatasetNotFoundError
from omnigraph_spark.storage.store import Storage

_BASE_PATHS = 18
_BASE_ID, _BASE_PATH = 1, 4
_FOOTER = struct.Struct("<QHH4s")  # where the message's length stands, two format numbers, magic
_LENGTH = struct.Struct("<I")
_MAGIC = b"LANC"
_BYTES = 2  # protobuf's wire type of texts, bytes and messages


def point_here(storage: Storage, location: str, branch: str) -> int:
    """Rewrite the version manifests of a dataset's branch that name other places; return how many.

    Raises:
        CorruptManifestError: a base isn't this graph's, or a file isn't as Lance writes it.
        StorageError: the store failed; files done so far stay done, the next call goes on.
    """
    bases = {
        number: now for number, (_, now) in relocation.bases(storage, location, branch).items()
    }
    changed = 0
    for info in storage.list(f"{location}/tree/{branch}/_versions"):
        name = info.path.rsplit("/", 1)[-1]
        data = storage.get(info.path) if name.endswith(".manifest") else None
        if data is None:
            continue
        rewritten = rewrite(data, bases, info.path)
        if rewritten != data:
            storage.put(info.path, rewritten)
            changed += 1
    return changed


def is_moved(storage: Storage, location: str, branch: str) -> bool:
    """Return whether a dataset's branch is there and names another place.

    Raises:
        CorruptManifestError, StorageError: as `relocation.needs_relocation`.
    """
    try:
        return relocation.needs_relocation(storage, location, branch)
    except DatasetNotFoundError:
        return False


def rewrite(data: bytes, bases: Mapping[int, str], name: str) -> bytes:
    """Return a version manifest whose base paths are `bases` (by id); pure.

    Raises:
        CorruptManifestError: it isn't a manifest as Lance writes it; `name` is named.
    """
    if len(data) < _FOOTER.size + _LENGTH.size:
        raise _unreadable(name)
    place, major, minor, magic = _FOOTER.unpack(data[-_FOOTER.size :])
    start = place + _LENGTH.size
    if magic != _MAGIC or start > len(data) - _FOOTER.size:
        raise _unreadable(name)
    (length,) = _LENGTH.unpack(data[place:start])
    if start + length != len(data) - _FOOTER.size:
        raise _unreadable(name)
    message = b"".join(
        raw if number != _BASE_PATHS else _with_path(raw, value, bases, name)
        for number, value, raw in _fields(data[start : start + length], name)
    )
    footer = _FOOTER.pack(place, major, minor, magic)
    return data[:place] + _LENGTH.pack(len(message)) + message + footer


def _with_path(raw: bytes, base: bytes, bases: Mapping[int, str], name: str) -> bytes:
    """Return one `base_paths` field with the path of its id."""
    parts = list(_fields(base, name))
    base_id = next((int.from_bytes(v, "little") for n, v, _ in parts if n == _BASE_ID), 0)
    if base_id not in bases:
        return raw
    path = bases[base_id].encode()
    kept = b"".join(part for number, _, part in parts if number != _BASE_PATH)
    return _field(_BASE_PATHS, kept + _field(_BASE_PATH, path))


def _field(number: int, value: bytes) -> bytes:
    return _varint(number << 3 | _BYTES) + _varint(len(value)) + value


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _fields(message: bytes, name: str) -> Iterator[tuple[int, bytes, bytes]]:
    """Yield (number, value, all bytes) of a message's fields; a varint's value as little-endian."""
    at = 0
    while at < len(message):
        begin = at
        tag, at = _read_varint(message, at, name)
        wire = tag & 7
        if wire == 0:
            number, at = _read_varint(message, at, name)
            value = number.to_bytes(10, "little")
        elif wire in (1, 5):
            size = 8 if wire == 1 else 4
            value, at = message[at : at + size], at + size
        elif wire == _BYTES:
            size, at = _read_varint(message, at, name)
            value, at = message[at : at + size], at + size
        else:
            raise _unreadable(name)
        if at > len(message):
            raise _unreadable(name)
        yield tag >> 3, value, message[begin:at]


def _read_varint(message: bytes, at: int, name: str) -> tuple[int, int]:
    value = shift = 0
    while at < len(message) and shift < 70:
        byte = message[at]
        value |= (byte & 0x7F) << shift
        at += 1
        shift += 7
        if byte < 0x80:
            return value, at
    raise _unreadable(name)


def _unreadable(name: str) -> CorruptManifestError:
    return CorruptManifestError(
        f"{name} is not a version manifest that can be pointed to a new place",
        expected="a file as Lance writes it",
        hint="Nothing was changed in it. Restore it from a copy, or move the graph back",
    )
