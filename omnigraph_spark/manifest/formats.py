"""The generations of the graph format: what differs between stamps, as facts about a graph.

Nothing above this package asks for a stamp; it asks the format of a graph for the fact that it
needs (format.md, "Stamps"). Which format a graph has is remembered per process whenever its
`__manifest` is opened: a stamp is never raised, but from none to 2.
"""

from __future__ import annotations

import re
import threading
from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from omnigraph_spark.errors import UnsupportedManifestVersion
from omnigraph_spark.storage import layout
from omnigraph_spark.storage.lance_errors import DatasetNotFoundError
from omnigraph_spark.storage.store import Storage

if TYPE_CHECKING:
    from lance import LanceDataset

STAMP_KEY = "omnigraph:internal_schema_version"
IMPLICIT = 1
NEW_GRAPHS = 2
"""The stamp of graphs that are made here."""
WRITABLE = (2, 3, 4, 6)
"""Stamps that are written: those of which an engine has gone on with what was written here."""
_MOST_KNOWN = 256


@dataclass(frozen=True)
class Format:
    """What is true of all graphs of one stamp."""

    stamp: int

    @property
    def is_writable(self) -> bool:
        """Return whether this version writes such graphs, after a migration where it is none."""
        return self.stamp in (IMPLICIT, *WRITABLE)

    @property
    def has_lineage(self) -> bool:
        """Return whether commits and heads are rows of `__manifest`, published with the tables.

        The row of the head is what two publishes of one branch collide on; there are no guards, no
        rows of skipped versions, and no logs beside `__manifest`.
        """
        return self.stamp >= 4

    @property
    def has_identities(self) -> bool:
        """Return whether tables have two ids, which their rows and folders are named by.

        Then the schema files name exactly the tables of every branch, columns stand in a fixed
        order, and `id` is a table's primary key.
        """
        return self.stamp >= 5

    @property
    def publishes_restores(self) -> bool:
        """Return whether its engines refuse a table whose head is ahead of its published version.

        A head that was taken back is published there; at older stamps it is as good as published.
        """
        return self.stamp >= 3

    @property
    def records(self) -> str:
        """Return the folder of this connector's crash records; newer engines choke on theirs."""
        return layout.WRITERS if self.has_lineage else layout.RECOVERY


def stamp_of(manifest: LanceDataset) -> int:
    """Return the stamp of an opened `__manifest`; a manifest without one is v1.

    Raises:
        UnsupportedManifestVersion: the stamp isn't a plain positive integer.
    """
    raw = (manifest.schema.metadata or {}).get(STAMP_KEY.encode())
    if raw is None:
        return IMPLICIT
    text = raw.decode("utf-8", "replace")
    if not re.fullmatch(r"[1-9][0-9]{0,18}", text):
        raise unsupported(repr(text[:40]))
    return int(text)


def unsupported(found: object) -> UnsupportedManifestVersion:
    """Return the error for a stamp that this version can't write, or not even read."""
    return UnsupportedManifestVersion(
        "The graph's internal schema version is not one of ours — upgrade omnigraph first",
        expected=f"one of the stamps {', '.join(map(str, WRITABLE))}",
        found=f"stamp {found}",
        hint="Nothing was changed. Use a newer omnigraph_spark, or the engine that wrote the graph",
        supported=WRITABLE[-1],
    )


def of(manifest: LanceDataset) -> Format:
    """Return the format of an opened `__manifest`.

    Raises:
        UnsupportedManifestVersion: as `stamp_of`.
    """
    return Format(stamp_of(manifest))


_known: OrderedDict[Storage, Format] = OrderedDict()
_lock = threading.Lock()


def remember(storage: Storage, manifest: LanceDataset) -> None:
    """Remember the format of a graph whose `__manifest` was just opened, unless it is damaged."""
    try:
        graph_format = of(manifest)
    except UnsupportedManifestVersion:
        return
    with _lock:
        _known[storage] = graph_format
        _known.move_to_end(storage)
        while len(_known) > _MOST_KNOWN:
            _known.popitem(last=False)


def of_graph(storage: Storage) -> Format:
    """Return the format of a graph as it was last opened; that of new graphs where there is none.

    Raises:
        UnsupportedManifestVersion: as `stamp_of`.
        StorageError: the store failed.
    """
    with _lock:
        graph_format = _known.get(storage)
    if graph_format is not None:
        return graph_format
    try:
        manifest = storage.dataset(layout.MANIFEST)
    except DatasetNotFoundError:
        return Format(NEW_GRAPHS)
    remember(storage, manifest)
    return of(manifest)
