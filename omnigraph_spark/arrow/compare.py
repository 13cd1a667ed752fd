"""When two values are the same to store: the one notion of it, for upserts, merges and feeds.

Null equals null and NaN equals NaN, a map whatever the order of its entries; 0.0 and -0.0 differ,
since a replica that left one for the other would not be one. Runs in tasks.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pyarrow import types as pt

Flags = NDArray[np.bool_]
_BITS = {16: pa.int16(), 32: pa.int32(), 64: pa.int64()}


def differing(left: pa.Array, right: pa.Array) -> Flags:
    """Return True for each row whose value differs; both columns are of one type and length."""
    left, right = _plain(left), _plain(right)
    null, other = _flags(left.is_null()), _flags(right.is_null())
    flags: Flags = np.not_equal(null, other)
    compare = np.flatnonzero(~null & ~other)
    if len(compare):
        if len(compare) < len(left):
            rows = pa.array(compare)
            left, right = left.take(rows), right.take(rows)
        flags[compare] = _values_differ(left, right)
    return flags


def stored(value: Any, kind: pa.DataType) -> Any:
    """Return a Python value of an Arrow type as one that is equal where `differing` finds it so.

    It can be hashed.
    """
    if value is None:
        return None
    if isinstance(kind, pa.BaseExtensionType):
        kind = kind.storage_type
    if pt.is_dictionary(kind):
        kind = kind.value_type
    if isinstance(value, float):
        if value != value:
            return "NaN"
        return value if value else ("zero", math.copysign(1.0, value))
    if pt.is_struct(kind):
        return tuple(stored(value[field.name], field.type) for field in kind)
    if pt.is_map(kind):
        entries = value.items() if isinstance(value, dict) else value
        return frozenset((stored(k, kind.key_type), stored(v, kind.item_type)) for k, v in entries)
    if isinstance(value, list):
        return tuple(stored(item, kind.value_type) for item in value)
    return value


def _plain(column: pa.Array) -> pa.Array:
    if isinstance(column.type, pa.BaseExtensionType):
        column = column.storage
    if pt.is_dictionary(column.type):
        column = column.dictionary_decode()
    return column


def _flags(column: pa.Array) -> Flags:
    flags: Flags = column.to_numpy(zero_copy_only=False).astype(bool)
    return flags


def _values_differ(left: pa.Array, right: pa.Array) -> Flags:
    """Compare rows of which none is null."""
    kind = left.type
    if pt.is_struct(kind):
        flags = np.zeros(len(left), dtype=bool)
        for child, other in zip(left.flatten(), right.flatten(), strict=True):
            flags |= differing(child, other)
        return flags
    if pt.is_fixed_size_list(kind):
        inner = differing(left.flatten(), right.flatten())
        width = kind.list_size
        if not width:
            return np.zeros(len(left), dtype=bool)
        return np.asarray(inner.reshape(len(left), width).any(axis=1), dtype=bool)
    if pt.is_list(kind) or pt.is_large_list(kind):
        return _lists_differ(left, right)
    if pt.is_floating(kind):
        bits = _BITS[kind.bit_width]
        same = pc.equal(left.view(bits), right.view(bits))
        both = pc.and_(_is_nan(left), _is_nan(right))
        return _flags(pc.invert(pc.or_(same, both)))
    if pt.is_map(kind):
        pairs = zip(left.to_pylist(), right.to_pylist(), strict=True)
        return np.array([stored(a, kind) != stored(b, kind) for a, b in pairs], dtype=bool)
    return _flags(pc.not_equal(left, right))


def _is_nan(column: pa.Array) -> Any:
    wide = column.cast(pa.float32()) if pt.is_float16(column.type) else column
    return pc.is_nan(wide)


def _lists_differ(left: pa.Array, right: pa.Array) -> Flags:
    lengths = [
        pc.list_value_length(column).to_numpy(zero_copy_only=False) for column in (left, right)
    ]
    flags: Flags = np.not_equal(lengths[0], lengths[1])
    compare = np.flatnonzero(~flags & (lengths[0] > 0))
    if len(compare):
        rows = pa.array(compare)
        inner = differing(left.take(rows).flatten(), right.take(rows).flatten())
        starts = np.concatenate(([0], np.cumsum(lengths[0][compare])[:-1]))
        flags[compare] = np.logical_or.reduceat(inner, starts)
    return flags
