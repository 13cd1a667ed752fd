"""The rows of `__manifest`, those of its big fragments kept in memory for the next read.

Nearly all rows of an old graph lie in one fragment that changes at every 512th version, and every
load, round and publish reads all rows. What is kept is named by what it was read from: the
fragment's files, which Lance never writes again once they are there and names at random, and the
columns by name and id. So it can't be wrong, and needs no thought about what happened to the graph:
a compaction, a restore, a branch or a graph made anew at the same path have other files. Which
fragments there are is read from the version itself each time.

Runs wherever a manifest is read; kept per process, 64 MiB at most, the least used go first.
"""

from __future__ import annotations

import json
import threading
from collections import OrderedDict
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from omnigraph_spark.manifest.rows import MANIFEST_SCHEMA, fit

if TYPE_CHECKING:
    from lance import LanceDataset

_BIG_ROWS = 1024
_MOST_BYTES = 64 << 20

_kept: OrderedDict[str, pa.Table] = OrderedDict()
_lock = threading.Lock()


def read_all(manifest: LanceDataset) -> pa.Table:
    """Return all rows in the shape of `MANIFEST_SCHEMA`, big fragments first; untranslated errors.

    Rows of small fragments come in one piece: a fold over many pieces takes twice as long.
    """
    small, tables = [], []
    for fragment in manifest.get_fragments():
        if fragment.metadata.num_rows < _BIG_ROWS:
            small.append(fragment)
        else:
            tables.append(_big(manifest, fragment))
    if small or not tables:
        tables.append(_scan(manifest, small))
    return pa.concat_tables(tables)


def _big(manifest: LanceDataset, fragment: Any) -> pa.Table:
    key = _name(manifest, fragment)
    with _lock:
        found = _kept.get(key)
        if found is not None:
            _kept.move_to_end(key)
            return found
    rows = _scan(manifest, [fragment])
    with _lock:
        _kept[key] = rows
        while sum(kept.nbytes for kept in _kept.values()) > _MOST_BYTES:
            _kept.popitem(last=False)
    return rows


def _name(manifest: LanceDataset, fragment: Any) -> str:
    """Return what a fragment's rows follow from: its files, deletions too, and the columns."""
    columns = [(field.name(), field.id()) for field in manifest.lance_schema.fields()]
    return json.dumps([columns, fragment.metadata.to_json()])


def _scan(manifest: LanceDataset, fragments: list[Any]) -> pa.Table:
    names = MANIFEST_SCHEMA.names
    if not fragments:
        return fit(manifest.schema.empty_table())
    return fit(manifest.scanner(columns=names, fragments=fragments).to_table()).combine_chunks()
