"""Which stored rows a task's rows matched: offsets by fragment, packed for the commit message.

Offsets of a fragment are ascending; they travel as packed differences (`packed`). The driver
unites them one fragment at a time, so it never holds more than the packed messages and one
fragment's rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from omnigraph_spark.errors import IntegrityError
from omnigraph_spark.storage.lance_errors import translated
from omnigraph_spark.storage.store import Storage
from omnigraph_spark.write.tasks import packed

if TYPE_CHECKING:
    from lance import LanceDataset

Addresses = NDArray[np.uint64]
Offsets = NDArray[np.uint32]
_SAMPLES = 5
_IDS_AT_ONCE = 262_144


@dataclass(frozen=True)
class Match:
    """Rows of one fragment that a task matched: those it replaces or deletes, and those it leaves.

    `same` are rows whose values would not change; they only count when a key comes twice. A task
    lists the matches of its updated rows in the order in which it wrote them.
    """

    fragment: int
    changed: str
    same: str
    rows: int


def pack(offsets: Offsets) -> str:
    """Return ascending offsets as text."""
    return packed.pack(np.diff(offsets, prepend=np.uint32(0)))


def unpack(storage: Storage, text: str) -> Offsets:
    """Return the offsets that `pack` wrote.

    Raises:
        StorageError: they are in a file that can't be read.
    """
    return np.cumsum(packed.unpack(storage, text, np.uint32), dtype=np.uint32)


def of_addresses(changed: Addresses, same: Addresses) -> tuple[Match, ...]:
    """Return the matches of row addresses (fragment << 32 | offset), by fragment."""
    none = np.empty(0, dtype=np.uint32)
    parts = _offsets(ascending(changed)), _offsets(ascending(same))
    return tuple(
        Match(
            fragment,
            pack(parts[0].get(fragment, none)),
            pack(parts[1].get(fragment, none)),
            len(parts[0].get(fragment, none)),
        )
        for fragment in sorted(parts[0].keys() | parts[1].keys())
    )


def ascending(numbers: NDArray[Any]) -> NDArray[Any]:
    """Return numbers sorted, each once."""
    if np.all(numbers[1:] > numbers[:-1]):
        return numbers
    numbers = np.sort(numbers)
    return numbers[np.concatenate(([True], numbers[1:] != numbers[:-1]))]


def _offsets(addresses: Addresses) -> dict[int, Offsets]:
    if not len(addresses):
        return {}
    fragments = (addresses >> np.uint64(32)).astype(np.int64)
    starts = np.concatenate(([0], np.flatnonzero(np.diff(fragments)) + 1))
    cut = np.split(addresses.astype(np.uint32), starts[1:])
    return dict(zip(fragments[starts].tolist(), cut, strict=True))


def addresses(storage: Storage, matches: Iterable[Match]) -> Iterator[Addresses]:
    """Yield the row addresses that matches replace or delete, a fragment at a time.

    Raises:
        StorageError: as `unpack`.
    """
    for match in matches:
        offsets = unpack(storage, match.changed).astype(np.uint64)
        yield offsets | np.uint64(match.fragment << 32)


def by_fragment(matches: Iterable[Match]) -> dict[int, list[Match]]:
    """Group the matches of all tasks by fragment."""
    grouped: dict[int, list[Match]] = {}
    for match in matches:
        grouped.setdefault(match.fragment, []).append(match)
    return grouped


def united(storage: Storage, matches: Sequence[Match]) -> Offsets:
    """Return the offsets of one fragment that are replaced or deleted, ascending.

    Raises:
        StorageError: as `unpack`.
    """
    return ascending(np.concatenate([unpack(storage, match.changed) for match in matches]))


def ids_at(dataset: LanceDataset, fragment: int, offsets: Offsets) -> Iterator[pa.Array]:
    """Yield the ids at offsets of a fragment, in bounded pieces.

    `LanceFragment.take` counts only rows that aren't deleted, so the ids are scanned.
    """
    stored = dataset.get_fragment(fragment)
    assert stored is not None
    scanner = stored.scanner(columns=["id"], with_row_address=True, batch_size=_IDS_AT_ONCE)
    for batch in scanner.to_batches():
        places = batch.column("_rowaddr").to_numpy(zero_copy_only=False).astype(np.uint32)
        ids = batch.column("id").filter(pa.array(np.isin(places, offsets)))
        if len(ids):
            yield ids


def refuse_doubles(
    storage: Storage,
    dataset: LanceDataset,
    table_key: str,
    grouped: Mapping[int, Sequence[Match]],
) -> None:
    """Refuse a write that has one key twice, where the table has it already; on the driver.

    `dataset` is the version that was matched.

    Raises:
        IntegrityError: two rows of the write matched one stored row; names keys.
        StorageError: the store failed.
    """
    for fragment, matches in grouped.items():
        parts = [unpack(storage, text) for match in matches for text in (match.changed, match.same)]
        every = np.sort(np.concatenate(parts))
        doubled = ascending(every[1:][every[1:] == every[:-1]])
        if len(doubled):
            with translated(f"Reading keys of {table_key}"):
                samples = [
                    sample
                    for ids in ids_at(dataset, fragment, doubled[:_SAMPLES])
                    for sample in ids.to_pylist()
                ]
            raise doubled_keys(table_key, samples, len(doubled))


def doubled_keys(table_key: str, samples: Sequence[str], count: int) -> IntegrityError:
    """Return the error that one write has keys more than once."""
    message = f"{table_key} gets the same id more than once in one write"
    return _doubled(table_key, message, "Drop the doubled rows", samples, count)


def doubled_in_table(table_key: str, samples: Sequence[str], count: int) -> IntegrityError:
    """Return the error that a table holds keys of an upsert more than once."""
    message = f"{table_key} holds ids of this upsert more than once"
    return _doubled(table_key, message, "Delete the doubled rows first", samples, count)


def _doubled(
    table_key: str, message: str, hint: str, samples: Sequence[str], count: int
) -> IntegrityError:
    return IntegrityError(
        message,
        expected="every id once",
        found=f"{count} of them more than once, for example {samples[0]!r}",
        hint=f"{hint}: which of them is meant is unclear",
        table_key=table_key,
        rule="unique id",
        samples=list(samples),
    )


def gathered(batches: Iterable[pa.RecordBatch], rows: int) -> Iterator[pa.Table]:
    """Yield batches together, about `rows` at a time: each look-up hashes all of its keys again."""
    waiting: list[pa.RecordBatch] = []
    count = 0
    for batch in batches:
        waiting.append(batch)
        count += batch.num_rows
        if count >= rows:
            yield pa.Table.from_batches(waiting)
            waiting, count = [], 0
    if waiting:
        yield pa.Table.from_batches(waiting)
