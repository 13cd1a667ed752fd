"""Batches as Lance's file writer should get them: pages of a bounded size; runs in tasks.

Lance makes a page of whatever it holds of a column once that is 8 MiB, so a batch of half a GiB, as
Spark 4.0 sends 64 large rows, is encoded as a whole, and read as a whole. And the value of a page
whose values are all equal has a place of its own in the file, which every read of the file reads
before it gives the first row: a large row that comes alone is such a page. Two make an ordinary
page, which is read when it is wanted.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
import pyarrow as pa

_LARGE_ROW_BYTES = 4 << 20
_MOST_JOINED_BYTES = 1 << 30  # of text in one array there can be 2 GiB
_LARGE_BATCH_BYTES = 96 << 20
"""Spark 4.1 and later send batches of up to 64 MiB and a row, which stay as they are."""
_CUT_BYTES = 16 << 20


def bounded(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the rows of batches in order, a large row together with the next, large batches cut.

    Holds one row, or one cut, more than the batches themselves. The last row may stay alone.
    """
    held: pa.RecordBatch | None = None
    for batch in (part for whole in batches for part in _parts(whole)):
        if held is not None and held.nbytes + batch.nbytes > _MOST_JOINED_BYTES:
            yield held
            held = None
        if held is not None:
            (batch,) = pa.Table.from_batches([held, batch]).combine_chunks().to_batches()
            held = None
        if batch.num_rows == 1 and batch.nbytes >= _LARGE_ROW_BYTES:
            held = batch
        else:
            yield batch
    if held is not None:
        yield held


def _parts(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    if batch.nbytes <= _LARGE_BATCH_BYTES:
        yield batch
        return
    step = max(2, batch.num_rows * _CUT_BYTES // batch.nbytes)
    for start in range(0, batch.num_rows, step):
        end = min(start + step, batch.num_rows)
        # A copy: Lance counts a slice as large as what it is a slice of.
        yield batch.take(pa.array(np.arange(start, end)))
