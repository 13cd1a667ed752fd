"""The versions of datasets that one call reads, each opened once; on the driver.

What a version holds never changes, so a call that looks at one in several of its steps needn't open
it again. Nothing is kept beyond the call, nor for other threads; which version is the newest isn't
asked here.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING

from omnigraph_spark.storage.store import Storage

if TYPE_CHECKING:
    from lance import LanceDataset

_MOST = 16
_Key = tuple[Storage, str, str | None, int]


class Opened:
    """What a call has opened, the versions that it used last."""

    def __init__(self) -> None:
        self._versions: OrderedDict[_Key, LanceDataset] = OrderedDict()

    @contextmanager
    def used(self) -> Iterator[None]:
        """Let `version_of` give what is here until the block ends, and add to it."""
        before = _current.set(self)
        try:
            yield
        finally:
            _current.reset(before)

    def version(self, key: _Key) -> LanceDataset:
        """Return a version, opened now if it isn't here."""
        dataset = self._versions.pop(key, None)
        if dataset is None:
            storage, location, table_branch, version = key
            dataset = storage.dataset(location, table_branch, version)
        self._versions[key] = dataset
        while len(self._versions) > _MOST:
            self._versions.popitem(last=False)
        return dataset


_current: ContextVar[Opened | None] = ContextVar("opened", default=None)


@contextmanager
def one_call() -> Iterator[None]:
    """Let what a function opens be kept until it ends, or as long as that of its caller."""
    if _current.get() is not None:
        yield
        return
    with Opened().used():
        yield


def version_of(
    storage: Storage, location: str, table_branch: str | None, version: int
) -> LanceDataset:
    """Open a version that nothing is committed through, or return it as this call has opened it.

    Raises:
        DatasetNotFoundError, StorageError: as `Storage.dataset`.
    """
    call = _current.get()
    if call is None:
        return storage.dataset(location, table_branch, version)
    return call.version((storage, location, table_branch, version))
