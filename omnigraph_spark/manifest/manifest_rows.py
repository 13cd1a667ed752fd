"""The rows of an opened `__manifest`, and what each publish and each reader look for among them.

Where commits are rows, a publish leaves two for good, and nearly all of them are superseded sooner
or later. What follows from the rows of a big fragment, which never change, is kept beside them, so
that a publish takes as long after 10,000 others as after a hundred.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from omnigraph_spark.manifest import identities
from omnigraph_spark.manifest.rows import COMMIT, INCARNATION, OURS, TABLE, TOMBSTONE, VERSION, fit
from omnigraph_spark.storage import kept_rows
from omnigraph_spark.storage.lance_errors import translated

if TYPE_CHECKING:
    from lance import LanceDataset

BATCH_MARK = '"txn":['
"""What the metadata of a row has that names a batch of a stream."""
TYPE_MARK = '"type":"'
"""What the metadata of a version row has that holds the table's type."""
_PUBLISH_ID = re.compile(rb'"publish_id":"([^"]*)"')


class ManifestRows:
    """All rows of a branch's `__manifest` at one version.

    Attributes:
        big: The rows of each big fragment.
        small: The rows of all other fragments.
    """

    def __init__(self, big: Sequence[kept_rows.Kept], small: pa.Table) -> None:
        """Hold rows as they were read."""
        self.big = tuple(big)
        self.small = small

    @cached_property
    def table(self) -> pa.Table:
        """All rows, big fragments first, under the names that their tables have now."""
        return identities.named(pa.concat_tables([*(one.rows for one in self.big), self.small]))

    @cached_property
    def current(self) -> pa.Table:
        """The rows that a snapshot and the newest commit follow from, as from all rows.

        All of them where an `object_id` is there twice, which whoever folds them looks into.
        """
        if not self.big or not self._are_single():
            return self.table
        parts = [one.made(_current) for one in self.big]
        return identities.named(pa.concat_tables([*parts, self.small]))

    @cached_property
    def batches(self) -> pa.Table:
        """The rows that say which batches of streams were published, as all rows do."""
        parts = [one.made(_newest_batches) for one in self.big]
        return identities.named(pa.concat_tables([*parts, self.small]))

    def holds(self, object_id: str) -> bool:
        """Return whether there is a row of this `object_id`."""
        for one in self.big:
            ids = one.made(_object_ids)
            if object_id in ids if ids is not None else _is_in(one.rows, object_id):
                return True
        return _is_in(self.small, object_id)

    def has_publish(self, publish_id: str) -> bool:
        """Return whether a publish is there: its commit, or rows that name it (rule 3)."""
        if self.holds(publish_id):
            return True
        of_id = publish_id.encode()
        mentioning = [one.rows for one in self.big if of_id in one.made(_publish_ids)]
        return any(_names_publish(rows, publish_id) for rows in (*mentioning, self.small))

    def _are_single(self) -> bool:
        """Return whether no `object_id` is there twice."""
        small = self.small["object_id"].to_pylist()
        sets = [one.made(_object_ids) for one in self.big]
        if len({*small}) < len(small):
            return False
        known = [ids for ids in sets if ids is not None]
        return (
            len(known) == len(sets)
            and all(ids.isdisjoint(small) for ids in known)
            and all(one.isdisjoint(other) for one, other in itertools.combinations(known, 2))
        )


def read(manifest: LanceDataset) -> ManifestRows:
    """Read the rows of an opened `__manifest`; those of a fragment are read once per process.

    Those of small fragments come in one piece: a fold over many pieces takes twice as long.

    Raises:
        StorageError: the store failed.
    """
    with translated("Reading __manifest"):
        fragments = manifest.get_fragments()
        empty = fit(manifest.schema.empty_table())
        kept = kept_rows.read(manifest, fragments, empty.schema.names, fit)
    is_big = [one.metadata.num_rows >= kept_rows.BIG_ROWS for one in fragments]
    small = [one.rows for one, big in zip(kept, is_big, strict=True) if not big]
    return ManifestRows(
        [one for one, big in zip(kept, is_big, strict=True) if big],
        pa.concat_tables(small or [empty]).combine_chunks(),
    )


def _object_ids(rows: pa.Table) -> frozenset[str] | None:
    """Return the ids of rows; None where one is there twice."""
    ids = rows["object_id"].to_pylist()
    single = frozenset(ids)
    return single if len(single) == len(ids) else None


def _publish_ids(rows: pa.Table) -> frozenset[bytes]:
    """Return all ids of publishes in the memory of the rows' metadata."""
    found = (_PUBLISH_ID.findall(memory) for memory in _memory(rows["metadata"]))
    return frozenset(itertools.chain.from_iterable(found))


def _current(rows: pa.Table) -> pa.Table:
    """Return rows without versions of tables and commits that others among them supersede.

    Where tables have no ids, an older version may hold the table's type, and stays then.
    """
    if identities.has_identities(rows):
        superseded = identities.are_superseded(rows, INCARNATION)
    else:
        typed = pc.fill_null(pc.match_substring(rows["metadata"], TYPE_MARK), False)
        superseded = pc.and_not(identities.are_superseded(rows, "table_key"), typed)
    are_commits = pc.equal(rows["object_type"], COMMIT)
    highest = pc.max(rows["table_version"].filter(are_commits))
    older = pc.and_(are_commits, pc.less(rows["table_version"], highest))
    unneeded = pc.or_(superseded, pc.fill_null(older, False))
    return rows.filter(pc.invert(unneeded)).combine_chunks()


def _newest_batches(rows: pa.Table) -> pa.Table:
    """Return the rows that name a batch of a stream, the newest of each stream and table alone."""
    marked = pc.fill_null(pc.match_substring(rows["metadata"], BATCH_MARK), False)
    marked = rows.filter(pc.or_(marked, pc.equal(rows["object_type"], TABLE)))  # they have names
    table = INCARNATION if identities.has_identities(rows) else "table_key"
    newest: dict[tuple[object, ...], tuple[int, int]] = {}
    unclear = []
    columns = (marked[name].to_pylist() for name in (table, "object_type", "metadata"))
    for place, (key, kind, text) in enumerate(zip(*columns, strict=True)):
        batch = batch_of(text)
        if batch is None:
            unclear.append(place)
            continue
        app_id, number = batch
        highest = newest.get((key, kind, app_id), (number, place))
        newest[key, kind, app_id] = max(highest, (number, place))
    places = sorted([*unclear, *(place for _, place in newest.values())])
    return marked.take(pa.array(places, pa.int64())).combine_chunks()


def batch_of(metadata: str | None) -> tuple[str, int] | None:
    """Return the stream and the batch that a row's metadata names, None where it names none."""
    try:
        app_id, number = json.loads(metadata or "")[OURS]["txn"]
        return str(app_id), int(number)
    except (ValueError, KeyError, TypeError):
        return None


def _is_in(rows: pa.Table, object_id: str) -> bool:
    sought = re.compile(re.escape(object_id.encode()))
    if not any(sought.search(memory) for memory in _memory(rows["object_id"])):
        return False
    return bool(pc.any(pc.equal(rows["object_id"], object_id)).as_py())


def _names_publish(rows: pa.Table, publish_id: str) -> bool:
    """Return whether rows of tables name a publish in their metadata."""
    text = f'"publish_id":"{publish_id}"'
    sought = re.compile(re.escape(text.encode()))
    if not any(sought.search(memory) for memory in _memory(rows["metadata"])):
        return False
    naming = pc.fill_null(pc.match_substring(rows["metadata"], text), False)
    kinds = rows["object_type"].filter(naming)
    return bool(pc.any(pc.is_in(kinds, pa.array([VERSION, TOMBSTONE]))).as_py())


def _memory(texts: pa.ChunkedArray) -> list[pa.Buffer]:
    """Return the bytes that texts lie in, which may hold more than the texts themselves.

    To look there first is ten times faster than at each text, for what each publish asks of all
    rows, and nearly always in vain.
    """
    return [chunk.buffers()[2] for chunk in texts.chunks if chunk.buffers()[2] is not None]
