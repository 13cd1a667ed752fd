"""How the stable row ids of updated rows travel from tasks to the driver.

A row that keeps its id keeps its created-at version too, which Lance looks up when it commits an
Update. Tasks pack; the driver unpacks, and gives Lance the sequence of a fragment's ids
(`storage/lance_messages.py`).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from omnigraph_spark.storage.store import Storage
from omnigraph_spark.write.tasks import packed

Ids = NDArray[np.uint64]


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
