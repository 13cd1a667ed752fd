"""Keep `__manifest` small as publishes go (FACTS 31, 45).

The graph's logs look after themselves (`storage/append_log.py`). The versions of `__manifest` are
the graph's history: none is ever dropped here, so a compaction must write little: most rows are
gathered twice in their life.
"""

from __future__ import annotations

import logging

from omnigraph_spark.errors import OmnigraphError
from omnigraph_spark.storage import append_log, auto_cleanup, layout
from omnigraph_spark.storage.lance_errors import translated
from omnigraph_spark.storage.store import Storage

_log = logging.getLogger(__name__)


def compact_own_datasets(storage: Storage, branch: str, graph_version: int) -> None:
    """Compact a branch's `__manifest` if the version that was just published is due; never raises.

    Runs on the driver, after each publish; costs nothing but at every 16th version. Whoever
    published that version does it, so no two processes do the same, and publishes that go on
    meanwhile are safe: one of the two is refused and retried or given up (PROTOCOL 28). Left out
    where auto-cleanup settings are still on the dataset, since a commit would run them.
    """
    if graph_version % append_log.COMPACT_EVERY:
        return
    try:
        with translated(f"Compacting {layout.MANIFEST}"):
            manifest = storage.dataset(layout.MANIFEST, branch)
            if not auto_cleanup.keys(manifest):
                append_log.compact(manifest, graph_version)
    except OmnigraphError as error:
        _log.info("%s was left as it is: %s", layout.MANIFEST, error)
