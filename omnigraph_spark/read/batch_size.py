"""How many rows make a batch of a scan, so that its size in bytes stays bounded.

Lance's own limit in bytes bounds the batches that it gives, not what it decodes at a time: 64 rows
of 8 MB took 1.7 GB with that limit alone, and 0.8 GB with rows limited as well.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import TYPE_CHECKING

import pyarrow as pa

from omnigraph_spark.schema.property_types import is_blob

if TYPE_CHECKING:
    from lance import LanceFragment

BATCH_BYTES = 8 << 20
"""Bytes of a batch, about, where `batchSize` isn't given."""
AHEAD_BYTES = 32 << 20
"""So many bytes a scan reads before they are asked for; Lance's own limit is 2 GiB per scan."""
_MOST_ROWS = 32_768
_MUCH_BYTES = 64.0
"""Stored bytes of a row from which on rows are looked at: fewer are hardly more than ids."""
_SAMPLED_ROWS = 5
_BLOB_ROWS = 16
"""Blobs are not part of the data files, so that nothing tells their size before they are read."""
_IDS = ("id", "src", "dst")
_ID_BYTES = 32.0
LEAST_SHARE = 0.25
"""So partitions get at most four times as large for what their scans leave out."""
PARTIAL_SHARE = 1 / 32
"""The same where rows are aggregated as they are read: few are left for what follows the scan."""


def batch_rows(fragments: Sequence[LanceFragment], stored: pa.Schema, names: Sequence[str]) -> int:
    """Return the rows of a batch of about `BATCH_BYTES`; on an executor, once per scan.

    Columns of fixed width count as what they are, the others together as what they can take of the
    files (in bytes as stored, compressed). Where that is much, a few rows tell what they are
    in memory: text that repeats itself takes a thousandth in the file.
    """
    chosen = [field for field in stored if field.name in set(names)]
    if any(is_blob(field) for field in chosen):
        return _BLOB_ROWS
    wide = sum(_fixed_bytes(field.type) or 0.0 for field in chosen)
    varying = [field.name for field in chosen if _fixed_bytes(field.type) is None]
    if varying:
        metadata = [fragment.metadata for fragment in fragments]
        size = sum(file.file_size_bytes or 0 for meta in metadata for file in meta.files)
        rows = max(sum(meta.physical_rows for meta in metadata), 1)
        others = sum(_fixed_bytes(field.type) or 0.0 for field in stored)
        # Compressed, so a column that is left out can hide what a chosen one takes: half at least.
        most = max(size / rows - others, size / rows / 2)
        wide += most if most < _MUCH_BYTES else max(most, _sampled_bytes(fragments, varying))
    return int(min(max(BATCH_BYTES / max(wide, 1.0), 1), _MOST_ROWS))


def _sampled_bytes(fragments: Sequence[LanceFragment], names: Sequence[str]) -> float:
    """Return the median bytes of a few rows, which one large row among small ones doesn't move."""
    largest = max(fragments, key=lambda fragment: fragment.physical_rows)
    rows = largest.count_rows()
    places = sorted({rows * part // _SAMPLED_ROWS for part in range(_SAMPLED_ROWS)})
    if not rows:
        return 0.0
    sample = largest.take(places, columns=[*names])
    return float(statistics.median(sample.slice(row, 1).nbytes for row in range(sample.num_rows)))


def column_share(stored: pa.Schema, names: Sequence[str], least: float = LEAST_SHARE) -> float:
    """Return about what part of a table some columns are, or the least; on the driver.

    A scan of two columns of twenty reads little of each file: with partitions cut by the size of
    the files it would be many tasks that do next to nothing. A column that may be of any size (but
    for ids) counts as the whole.
    """
    if any(f.name in names and f.name not in _IDS and _fixed_bytes(f.type) is None for f in stored):
        return 1.0
    widths = {f.name: _fixed_bytes(f.type) or _ID_BYTES for f in stored}
    chosen = sum(width for name, width in widths.items() if name in names)
    return max(chosen / max(sum(widths.values()), 1.0), least)


def _fixed_bytes(kind: pa.DataType) -> float | None:
    """Return the bytes of a value of a type of fixed width, None for the others."""
    if pa.types.is_fixed_size_list(kind):
        inner = _fixed_bytes(kind.value_type)
        return None if inner is None else inner * int(kind.list_size)
    try:
        return int(kind.bit_width) / 8
    except ValueError:
        return None
