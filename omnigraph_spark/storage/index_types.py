"""The types of Lance's indices that can be built here, by both of their names.

No Lance and no I/O; used by writes, which build again what they drop, and by maintenance.
"""

from __future__ import annotations

KINDS: dict[str, str] = {
    "BTREE": "BTree",
    "BITMAP": "Bitmap",
    "LABEL_LIST": "LabelList",
    "INVERTED": "Inverted",
    "NGRAM": "NGram",
    "ZONEMAP": "ZoneMap",
    "BLOOMFILTER": "BloomFilter",
}
"""What they are built by, and what Lance calls them once they are there."""

BY_LANCES_NAME = {theirs: ours for ours, theirs in KINDS.items()}
