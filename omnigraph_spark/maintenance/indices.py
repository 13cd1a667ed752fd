"""The indices of a table: which there are, what they cover, and segments built but not committed.

Runs on the driver. Nothing here commits: an index is built as a segment of files that no version
names yet, so that a table's head is ahead of its published version for milliseconds only, however
long the build takes (rule 26).

Some of Lance's indices hold the addresses of rows (fragment and offset), with stable row ids too,
and some hold row ids: a compaction that kept one of the former by its name would
answer queries with other rows or none, and an upsert that kept one of the latter with the values of
before.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

from omnigraph_spark.errors import OptionError, StorageError, UnsupportedError
from omnigraph_spark.storage.ids import new_ulid
from omnigraph_spark.storage.lance_errors import translated
from omnigraph_spark.storage.layout import BY_LANCES_NAME, KINDS

if TYPE_CHECKING:
    from lance import LanceDataset
    from lance.dataset import Index

_EMPTY_TOO = frozenset({"BTREE", "INVERTED"})
# An updated row keeps its row id, so that a merge of these would keep the value of before; the
# others hold addresses, or are only asked for what to look at.
_BY_ROW_ID = frozenset({"BITMAP", "LABEL_LIST", "INVERTED"})

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class TableIndex:
    """One index of a table version: its name, Lance's name of its type, columns and segments.

    `covered` are the fragments that its segments say they hold, gone ones included. `parameters`
    are those of an inverted index. `buildable` says whether this module can build it again.
    """

    name: str
    type: str
    columns: tuple[str, ...]
    covered: frozenset[int]
    rows_indexed: int | None
    size: int | None
    segments: tuple[Index, ...]
    parameters: dict[str, Any]

    @property
    def buildable(self) -> bool:
        """Return whether it can be built again: a type of `KINDS` on one column."""
        return self.type in BY_LANCES_NAME and len(self.columns) == 1


def present(dataset: LanceDataset) -> list[TableIndex]:
    """Return the indices of an opened table version, by name.

    Raises:
        StorageError: the store failed.
    """
    with translated(f"Reading the indices of {dataset.uri}"):
        return sorted(map(_described, dataset.describe_indices()), key=lambda index: index.name)


def _described(description: Any) -> TableIndex:
    segments = tuple(_as_index(description, segment) for segment in description.segments)
    kind = str(description.index_type)
    details = description.details if kind == KINDS["INVERTED"] else {}
    return TableIndex(
        name=str(description.name),
        type=kind,
        columns=tuple(map(str, description.field_names)),
        covered=frozenset(
            int(n) for segment in description.segments for n in segment.fragment_ids or ()
        ),
        rows_indexed=description.num_rows_indexed,
        size=description.total_size_bytes,
        segments=segments,
        parameters={key: value for key, value in details.items() if value is not None},
    )


def _as_index(description: Any, segment: Any) -> Index:
    """Return a segment as transactions name it; its details stay unknown to pylance."""
    from lance.bitmap import Bitmap
    from lance.dataset import Index

    return Index(
        uuid=str(segment.uuid),
        name=str(description.name),
        fields=list(description.fields),
        dataset_version=int(segment.dataset_version_at_last_update),
        fragment_ids=Bitmap(segment.fragment_ids or ()),
        index_version=int(segment.index_version),
        created_at=segment.created_at or datetime.now(timezone.utc),
        base_id=segment.base_id,
    )


def fragment_ids(dataset: LanceDataset) -> frozenset[int]:
    """Return the ids of an opened version's fragments."""
    return frozenset(int(fragment.fragment_id) for fragment in dataset.get_fragments())


def kind_named(text: str) -> str:
    """Return the one spelling of an index type.

    Raises:
        OptionError: it is none that can be built here.
    """
    kind = text.strip().upper()
    if kind not in KINDS:
        raise OptionError(
            f"{text[:40]!r} is not an index type that can be built here", expected=", ".join(KINDS)
        )
    return kind


def build(
    dataset: LanceDataset,
    name: str,
    kind: str,
    column: str,
    parameters: dict[str, Any],
    fragments: Iterable[int],
) -> Index:
    """Build one segment over the fragments of an opened version; commits nothing.

    Reads the column of those fragments once. On failure files are left that no version names.

    Raises:
        UnsupportedError: the column's type has no such index, or the table has no rows yet and the
            type needs some.
        StorageError: the store failed.
    """
    numbers = sorted(fragments)
    if not numbers and kind not in _EMPTY_TOO:
        raise UnsupportedError(
            f"A {kind} index needs rows, and the table has none",
            expected=f"rows, or one of {', '.join(sorted(_EMPTY_TOO))}",
        )
    try:
        with translated(f"Building index {name} on {column}"):
            # A name that the table has is refused, though nothing is committed under it.
            segment = dataset.create_index_uncommitted(
                column, kind, name=f"{name}.{new_ulid()}", fragment_ids=numbers, **parameters
            )
            if numbers and kind == "INVERTED":  # its files are complete only after a merge
                segment = dataset.merge_existing_index_segments([segment])
    except StorageError as error:
        if isinstance(error.__cause__, (TypeError, NotImplementedError)) or (
            "can only be created on" in str(error)
        ):
            raise UnsupportedError(
                f"Column {column} can't have a {kind} index", found=str(error.found)
            ) from error
        raise
    return replace(segment, name=name)


def covering(dataset: LanceDataset, one: TableIndex) -> Index | None:
    """Return one segment that covers every fragment of an opened version; None if it is so already.

    New fragments are indexed and merged with what is there. The whole index is built again where
    covered ones are gone (a compaction, an overwrite), or where rows of them are and Lance would
    merge what the index says of those. Commits nothing.

    Raises:
        UnsupportedError, StorageError: as `build`.
    """
    existing = fragment_ids(dataset)
    column, kind = one.columns[0], BY_LANCES_NAME[one.type]
    missing = existing - one.covered
    if not missing and len(one.segments) == 1:
        return None
    if one.covered and one.covered <= existing and missing and not _is_stale(dataset, one):
        added = build(dataset, one.name, kind, column, one.parameters, missing)
        merged = _merged(dataset, one, added)
        if merged is not None:
            return replace(merged, name=one.name)
    return build(dataset, one.name, kind, column, one.parameters, existing)


def _is_stale(dataset: LanceDataset, index: TableIndex) -> bool:
    """Return whether an index may hold former values of rows that are in other fragments by now."""
    if BY_LANCES_NAME[index.type] not in _BY_ROW_ID:
        return False
    return any(
        fragment.num_deletions
        for fragment in dataset.get_fragments()
        if int(fragment.fragment_id) in index.covered
    )


def _merged(dataset: LanceDataset, index: TableIndex, added: Index) -> Index | None:
    """Merge what is there with a new segment; None where Lance can't."""
    # What pylance doesn't tell of a segment is the same for all segments of one index.
    segments = [
        replace(old, index_details=added.index_details, index_version=added.index_version)
        for old in index.segments
    ]
    try:
        with translated(f"Merging the segments of index {index.name}"):
            return dataset.merge_existing_index_segments([*segments, added])
    except StorageError as error:
        _log.info("index %s is built again as a whole: %s", index.name, error)
        return None


def find(indices: Sequence[TableIndex], name: str) -> TableIndex:
    """Return the index of a name.

    Raises:
        OptionError: the table has none of that name; what it has is listed.
    """
    for index in indices:
        if index.name == name:
            return index
    raise OptionError(
        f"The table has no index {name[:60]!r}",
        expected=", ".join(index.name for index in indices[:30]) or "none: it has no indices",
    )
