"""Which stored rows a task's rows matched: offsets by fragment, packed for the commit message.

Offsets of a fragment are ascending; they travel as zlib-packed differences. The driver unites them
one fragment at a time, as bits: at most an eighth of a byte per stored row of the fragment, so it
never holds more than the packed messages and one fragment's rows.
"""

from __future__ import annotations

import base64
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from omnigraph_spark.errors import IntegrityError
from omnigraph_spark.lance_errors import translated

if TYPE_CHECKING:
    from lance import LanceDataset

Offsets = NDArray[np.uint32]
_SAMPLES = 5
_IDS_AT_ONCE = 262_144


@dataclass(frozen=True)
class Match:
    """Rows of one fragment that a task matched: those it replaces or deletes, and those it leaves.

    `same` are rows whose values would not change; they only count when a key comes twice.
    """

    fragment: int
    changed: str
    same: str
    rows: int


def pack(offsets: Offsets) -> str:
    """Return ascending offsets as text."""
    steps = np.diff(offsets, prepend=np.uint32(0)).astype("<u4")
    return base64.b64encode(zlib.compress(steps.tobytes(), 1)).decode("ascii")


def unpack(text: str) -> Offsets:
    """Return the offsets that `pack` wrote."""
    steps = np.frombuffer(zlib.decompress(base64.b64decode(text)), dtype="<u4")
    return np.cumsum(steps, dtype=np.uint32)


def of_addresses(changed: NDArray[np.uint64], same: NDArray[np.uint64]) -> tuple[Match, ...]:
    """Return the matches of row addresses (fragment << 32 | offset), by fragment."""
    found = []
    changed = np.unique(changed)
    touched = np.unique(np.concatenate((changed, same)) >> np.uint64(32))
    for fragment in touched:
        parts = [
            np.sort(one[one >> np.uint64(32) == fragment]).astype(np.uint32)
            for one in (changed, same)
        ]
        found.append(Match(int(fragment), pack(parts[0]), pack(parts[1]), len(parts[0])))
    return tuple(found)


def by_fragment(matches: Iterable[Match]) -> dict[int, list[Match]]:
    """Group the matches of all tasks by fragment."""
    grouped: dict[int, list[Match]] = {}
    for one in matches:
        grouped.setdefault(one.fragment, []).append(one)
    return grouped


def changed_rows(matches: Iterable[Match]) -> int:
    """Return how many stored rows the matches replace or delete, each counted once."""
    found = by_fragment(matches).values()
    return sum(parts[0].rows if len(parts) == 1 else len(united(parts)) for parts in found)


def united(matches: Sequence[Match]) -> Offsets:
    """Return the offsets of one fragment that are replaced or deleted, ascending."""
    return np.unique(np.concatenate([unpack(one.changed) for one in matches]))


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
    dataset: LanceDataset, table_key: str, grouped: Mapping[int, Sequence[Match]]
) -> None:
    """Refuse a write that has one key twice, where the table has it already; on the driver.

    `dataset` is the version that was matched.

    Raises:
        IntegrityError: two rows of the write matched one stored row; names keys.
        StorageError: the store failed.
    """
    for fragment, matches in grouped.items():
        parts = [unpack(text) for one in matches for text in (one.changed, one.same)]
        every = np.sort(np.concatenate(parts))
        doubled = np.unique(every[1:][every[1:] == every[:-1]])
        if len(doubled):
            with translated(f"Reading keys of {table_key}"):
                found = [
                    one
                    for ids in ids_at(dataset, fragment, doubled[:_SAMPLES])
                    for one in ids.to_pylist()
                ]
            raise doubled_keys(table_key, found, len(doubled))


def doubled_keys(table_key: str, samples: Sequence[str], count: int) -> IntegrityError:
    """Return the error that one write has keys more than once."""
    what = f"{table_key} gets the same id more than once in one write"
    return _doubled(table_key, what, "Drop the doubled rows", samples, count)


def doubled_in_table(table_key: str, samples: Sequence[str], count: int) -> IntegrityError:
    """Return the error that a table holds keys of an upsert more than once."""
    what = f"{table_key} holds ids of this upsert more than once"
    return _doubled(table_key, what, "Delete the doubled rows first", samples, count)


def _doubled(
    table_key: str, what: str, hint: str, samples: Sequence[str], count: int
) -> IntegrityError:
    return IntegrityError(
        what,
        expected="every id once",
        found=f"{count} ids, for example {samples[0]!r}",
        hint=f"{hint}: which of them is meant can't be told",
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
