"""Numbers on their way to the driver: packed as text in a commit message, or beside it in a file.

Tasks pack, the driver unpacks. What many rows of a large task need would make its message large, so
above `MOST_IN_A_MESSAGE` it goes into a file next to the staged fragments, and the driver reads
from that one piece at a time. The name of such a file is its own: no version of the table names it,
so cleanup takes it where nobody deleted it before.
"""

from __future__ import annotations

import base64
import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from omnigraph_spark.errors import StorageError
from omnigraph_spark.storage.store import Storage

MOST_IN_A_MESSAGE = 1 << 20
SUFFIX = ".rows"
_IN_FILE = "@"


def pack(numbers: NDArray[Any]) -> str:
    """Return numbers as text; small ones and runs of equal ones take little room."""
    width = numbers.dtype.itemsize
    # All lowest bytes first: the others are mostly zero.
    planes = numbers.astype(numbers.dtype.newbyteorder("<")).view(np.uint8).reshape(-1, width).T
    return base64.b64encode(zlib.compress(planes.tobytes(), 1)).decode("ascii")


def unpack(storage: Storage, text: str, kind: type[np.integer[Any]]) -> NDArray[Any]:
    """Return the numbers of a text that `pack` wrote, wherever it is now.

    Raises:
        StorageError: the store failed, or the file is gone.
    """
    if text.startswith(_IN_FILE):
        path, start, size = text[1:].rsplit(":", 2)
        data = storage.get_range(path, int(start), int(size))
        if data is None:
            raise StorageError(
                f"{path} is gone, with what a task found",
                expected="a file that the task left",
                hint="Nothing was published. Write again",
            )
        text = data.decode("ascii")
    planes = np.frombuffer(zlib.decompress(base64.b64decode(text)), dtype=np.uint8)
    dtype = np.dtype(kind).newbyteorder("<")
    rows = np.ascontiguousarray(planes.reshape(dtype.itemsize, -1).T)
    numbers: NDArray[Any] = rows.view(dtype).ravel()
    return numbers


def moved_out(storage: Storage, path: str, texts: Sequence[str]) -> list[str]:
    """Write texts into one file, and return what `unpack` finds each of them by.

    Raises:
        StorageError: the store failed.
    """
    storage.put(path, "".join(texts).encode("ascii"))
    moved, start = [], 0
    for text in texts:
        moved.append(f"{_IN_FILE}{path}:{start}:{len(text)}")
        start += len(text)
    return moved
