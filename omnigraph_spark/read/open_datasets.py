"""Datasets that a worker process keeps open, so that its next task doesn't open them again."""

from __future__ import annotations

import os
from collections import OrderedDict
from typing import TYPE_CHECKING

from omnigraph_spark.errors import StorageError
from omnigraph_spark.read.plan import Scan
from omnigraph_spark.storage.relocation import open_for_reading
from omnigraph_spark.storage.store import Storage

if TYPE_CHECKING:
    from lance import LanceDataset, LanceFragment

_MOST = 64
_open: OrderedDict[tuple[object, ...], LanceDataset] = OrderedDict()


def opened(storage: Storage, scan: Scan) -> LanceDataset:
    """Return the scan's dataset version, opened once per process; on executors.

    The key holds the process id, since Lance's threads don't survive a fork (CASES C43), and the
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
        StorageError: the dataset hasn't got one of them.
    """
    found = [dataset.get_fragment(number) for number in scan.fragments]
    there = [fragment for fragment in found if fragment is not None]
    if len(there) < len(found):
        raise StorageError(
            f"{scan.table_key} is another dataset than the one that was planned",
            expected=f"fragments {list(scan.fragments)[:20]}",
            found=f"{len(there)} of them",
            hint="Load the frame again",
        )
    return there
