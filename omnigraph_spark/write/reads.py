"""What a frame was read from, and which publishes of others came to its tables since; pure.

An upsert or delete of a frame that was read from the very table conflicts with a row of it that
another write changed, inserted or deleted since. Publishes leave the names of the frames that they
wrote in their version rows, so that a frame's own earlier writes are told from those of others.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from omnigraph_spark.manifest import identities
from omnigraph_spark.manifest.rows import EDGE_KEY as EDGE_KEY
from omnigraph_spark.manifest.rows import HEAL, INDEX, OPTIMIZE, OURS, TOMBSTONE, VERSION
from omnigraph_spark.manifest.snapshot import TableEntry

FRAMES = "frames"
"""Key of this connector's part of a version row: the names of the frames that were written."""

Span = tuple[str | None, int, str | None, int]
"""Changes of others to a table: Lance branch and version before them, and after them.

Version 0: the table wasn't there.
"""


@dataclass(frozen=True)
class ReadFrom:
    """The version of a table that frames were read from, and the names of those frames."""

    table_branch: str | None
    version: int
    frames: tuple[str, ...] = ()


def spans_of_others(rows: pa.Table, read: ReadFrom, entry: TableEntry) -> tuple[Span, ...]:
    """Return what others changed in a table between the version that was read and the published.

    `rows` are those of the branch's `__manifest`, `entry` is the table in its snapshot.
    """
    if entry.table_version <= read.version:
        return ()
    position = (read.table_branch, read.version)
    began = None
    spans: list[Span] = []
    steps = _published(rows, entry.table_key, read.version)
    steps[entry.table_version] = (entry.table_branch, dict(entry.ours))
    for version in sorted(v for v in steps if v <= entry.table_version):
        branch, ours = steps[version]
        if set(ours.get(FRAMES) or ()) & set(read.frames):
            if began is not None:
                spans.append((*began, *position))
            began = None
        elif began is None:
            began = position
        position = (branch, version)
    if began is not None:
        spans.append((*began, *position))
    return tuple(spans)


def edge_key(rows: pa.Table, key: str) -> tuple[str, ...]:
    """Return the columns that the ids of an edge table are made from, () where none are recorded.

    The newest version row since the table was made that says so counts; other programs' rows say
    nothing. One row's text is read, however many there are.
    """
    of_table = identities.of_table(rows, key)
    kinds, versions = of_table["object_type"], of_table["table_version"]
    gone = pc.max(versions.filter(pc.equal(kinds, TOMBSTONE))).as_py() or 0
    says = pc.and_(
        pc.and_(pc.equal(kinds, VERSION), pc.greater(versions, gone)),
        pc.match_substring(of_table["metadata"], f'"{EDGE_KEY}":'),
    )
    recorded = of_table.filter(says)
    if not recorded.num_rows:
        return ()
    newest = recorded.filter(pc.equal(recorded["table_version"], pc.max(recorded["table_version"])))
    names = _ours(newest["metadata"][0].as_py()).get(EDGE_KEY)
    return tuple(names) if isinstance(names, list) else ()


def has_same_rows(rows: pa.Table, key: str, expected: int, published: int) -> bool:
    """Return whether a table's published version holds exactly the rows of an older one.

    So it is where nothing but maintenance was published in between: an expectation of the older
    version is met by the newer one. `rows` are those of the branch's `__manifest`.
    """
    if not 0 < expected < published:
        return expected == published
    steps = [ours for v, (_, ours) in _published(rows, key, expected).items() if v <= published]
    return bool(steps) and all(ours.get("mode") in (OPTIMIZE, INDEX, HEAL) for ours in steps)


def _published(
    rows: pa.Table, key: str, above: int
) -> dict[int, tuple[str | None, dict[str, Any]]]:
    rows = identities.of_table(rows, key)
    mask = pc.and_(pc.equal(rows["object_type"], VERSION), pc.greater(rows["table_version"], above))
    newer = rows.filter(mask).select(["table_version", "table_branch", "metadata"])
    return {
        row["table_version"]: (row["table_branch"], _ours(row["metadata"]))
        for row in newer.to_pylist()
    }


def _ours(text: str | None) -> dict[str, Any]:
    """Return this connector's part of a row's metadata; whatever else is there is another's."""
    try:
        plain = json.loads(text) if text else {}
    except json.JSONDecodeError:
        return {}
    ours = plain.get(OURS) if isinstance(plain, dict) else None
    return ours if isinstance(ours, dict) else {}
