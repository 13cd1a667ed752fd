"""Rows of fragments that this process has read: their files never change, so they are read once.

For `__manifest` and the logs, whose newest rows are read by each write. Which fragments a dataset
has is asked of the store each time, by whoever opened it; here only their rows are kept, under what
they follow from.
"""

from __future__ import annotations

import json
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

if TYPE_CHECKING:
    from lance import LanceDataset

BIG_ROWS = 1024
_ADDRESS = "_rowaddr"
_MOST_BYTES = 64 << 20
_MOST_FRAGMENTS = 1024
_MADE_ROW_BYTES = 200  # what `Kept.made` is reckoned to take for each row

Made = TypeVar("Made")


@dataclass(frozen=True)
class Kept:
    """The rows of a fragment, and what was made from them, which is kept as long as they are."""

    rows: pa.Table
    _made: dict[Callable[[pa.Table], Any], Any] = field(default_factory=dict)

    def made(self, function: Callable[[pa.Table], Made]) -> Made:
        """Return what a function makes of the rows; it is called once, and must always agree."""
        if function not in self._made:
            self._made[function] = function(self.rows)
        made: Made = self._made[function]
        return made

    @cached_property
    def bytes(self) -> int:
        """Return the memory that this is reckoned to take."""
        return int(self.rows.nbytes) + _MADE_ROW_BYTES * int(self.rows.num_rows)


_kept: OrderedDict[str, Kept] = OrderedDict()
_lock = threading.Lock()


def forget() -> None:
    """Forget all rows: for those who look for damage."""
    with _lock:
        _kept.clear()


def read(
    dataset: LanceDataset,
    fragments: Sequence[Any],
    columns: Sequence[str],
    fitted: Callable[[pa.Table], pa.Table] | None = None,
    *,
    keep: bool = True,
) -> list[Kept]:
    """Return the rows of each of some fragments; untranslated errors.

    Those of small fragments that weren't read before come by one scan. `fitted` is what rows go
    through before they are kept: always the same for the same columns. Without `keep` those that
    weren't read before are read, and not kept.
    """
    own = _columns(dataset, columns)
    names = [_name(own, one) for one in fragments]
    with _lock:
        found = {name: _kept[name] for name in names if name in _kept}
        for name in found:
            _kept.move_to_end(name)
    new = {name: one for name, one in zip(names, fragments, strict=True) if name not in found}
    big = {name: one for name, one in new.items() if one.metadata.num_rows >= BIG_ROWS}
    rows = {name: _scan(dataset, [one], columns) for name, one in big.items()}
    rows |= _small(dataset, {name: one for name, one in new.items() if name not in big}, columns)
    if fitted is not None:
        rows = {name: fitted(table).combine_chunks() for name, table in rows.items()}
    read_now = {name: Kept(table) for name, table in rows.items()}
    if keep:
        _keep(read_now)
    found |= read_now
    return [found[name] for name in names]


def _small(
    dataset: LanceDataset, fragments: Mapping[str, Any], columns: Sequence[str]
) -> dict[str, pa.Table]:
    """Read small fragments in one scan, and return the rows of each."""
    if len(fragments) < 2:
        return {name: _scan(dataset, [one], columns) for name, one in fragments.items()}
    rows = _scan(dataset, [*fragments.values()], columns, addressed=True)
    ids = pc.shift_right(rows[_ADDRESS], pa.scalar(32, pa.uint64()))
    rows = rows.drop_columns([_ADDRESS])
    return {
        name: rows.filter(pc.equal(ids, one.fragment_id)).combine_chunks()
        for name, one in fragments.items()
    }


def _scan(
    dataset: LanceDataset,
    fragments: list[Any],
    columns: Sequence[str],
    *,
    addressed: bool = False,
) -> pa.Table:
    """Read fragments, with the addresses of their rows as the last column if they are wanted."""
    scanner = dataset.scanner(
        columns=[*columns],
        fragments=fragments,
        with_row_address=addressed,
        scan_in_order=True,
    )
    rows: pa.Table = scanner.to_table()
    return rows.combine_chunks()


def _keep(read_now: Mapping[str, Kept]) -> None:
    if not read_now:
        return
    with _lock:
        _kept.update(read_now)
        size = sum(one.bytes for one in _kept.values())
        while size > _MOST_BYTES or len(_kept) > _MOST_FRAGMENTS:
            size -= _kept.popitem(last=False)[1].bytes


def _columns(dataset: LanceDataset, columns: Sequence[str]) -> list[Any]:
    numbers = [(field.name(), field.id()) for field in dataset.lance_schema.fields()]
    return [numbers, [*columns]]


def _name(columns: list[Any], fragment: Any) -> str:
    """Return what a fragment's rows follow from: its files, deletions too, and the columns.

    The names of files are given once. Where they lie doesn't count: a branch has those of its
    parent under another folder.
    """
    metadata = fragment.metadata
    files = [{**vars(file), "base_id": None} for file in metadata.files]
    deletions = None
    if metadata.deletion_file is not None:
        deletions = {**metadata.deletion_file.asdict(), "base_id": None}
    more = metadata.to_json()["overlays"] if getattr(metadata, "overlays", None) else None
    return json.dumps([columns, metadata.id, metadata.physical_rows, files, deletions, more])
