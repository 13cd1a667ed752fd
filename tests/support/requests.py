"""How many requests an object store gets from a call, and how many datasets the call opens."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from typing import Any
from unittest.mock import patch

import lance

from omnigraph_spark.maintenance.cleanup import cleanup
from omnigraph_spark.manifest.snapshot import forget
from omnigraph_spark.spark import loading
from omnigraph_spark.storage.ids import new_ulid
from omnigraph_spark.storage.store import Storage
from tests.support import branches, merges
from tests.support.faulty_s3 import Proxy
from tests.support.merges import KNOWS, NEW, PERSON, write_rows
from tests.support.s3 import Bucket

GRACE = "60"
"""Long, so that no writer's sign of life is renewed while it is counted."""
PUBLISHES = 17
"""Between two of so many publishes `__manifest` is compacted."""
CYCLE = 7
"""So many publishes of one process see each size that `__manifest` has, and a compaction."""


@dataclass
class Count:
    """What a call cost."""

    requests: int = 0
    opens: int = 0


@contextmanager
def counted(proxy: Proxy) -> Iterator[Count]:
    """Count what the store is asked, and which datasets are opened, until the block ends."""
    found, before, real = Count(), proxy.requests, lance.dataset

    def opened(*place: Any, **more: Any) -> lance.LanceDataset:
        found.opens += 1
        return real(*place, **more)

    with patch.object(lance, "dataset", opened):
        yield found
    found.requests = proxy.requests - before


def costs(bucket: Bucket, proxy: Proxy) -> dict[str, Count]:
    """Do what users do to small graphs, each by a process that hasn't seen the graph; by name.

    What has `again` in its name is done by the same process a second time. Appends and loads are
    done as often as it takes to see every size that `__manifest` gets; the most that one cost counts.
    """
    through = replace(bucket, endpoint=proxy.endpoint)
    storage = Storage.at(f"{bucket.uri}/g", through.storage_options)
    found: dict[str, Count] = {}

    def cost(name: str, act: Callable[[], object], *, again: bool = False) -> None:
        if not again:
            forget(storage)
        with counted(proxy) as count:
            act()
        most = found.setdefault(name, count)
        most.requests = max(most.requests, count.requests)
        most.opens = max(most.opens, count.opens)

    def append(branch: str = "main") -> None:
        rows = {PERSON: [(new_ulid(), 9)]}
        write_rows(storage, rows, branch=branch, orphanGraceSeconds=GRACE)

    def load(**more: str) -> None:
        given = {f"storage.{name}": value for name, value in through.storage_options.items()}
        loading.resolve({"path": storage.root, "table": PERSON, **given, **more})

    write_rows(storage, {PERSON: [("a", 1), ("b", 2)], KNOWS: [("ab", "a", "b")]})
    then = ""
    for number in range(PUBLISHES):
        cost("append", append)
        cost("load", load)
        if number == PUBLISHES // 2:
            then = datetime.now(timezone.utc).isoformat()
    for _ in range(CYCLE):
        cost("append again", append, again=True)
    cost("load again", load, again=True)
    cost("load at a time", lambda: load(timestampAsOf=then))
    cost("load at a version", lambda: load(versionAsOf="9"))
    cost("make a branch", lambda: branches.make(storage, "dev"))
    cost("first append to a branch", lambda: append("dev"))
    cost("append to a branch", lambda: append("dev"))
    cost("load a branch", lambda: load(branch="dev"))
    write_rows(storage, {PERSON: [(f"m{number}", number) for number in range(10)]}, branch="dev")
    cost("merge ten rows", lambda: merges.merge(storage, "dev", orphanGraceSeconds=GRACE))
    _clean_up(bucket, through, cost)
    return found


def _clean_up(bucket: Bucket, through: Bucket, cost: Callable[..., None]) -> None:
    """Count a cleanup that removes nothing, of twelve tables."""
    storage = Storage.at(f"{bucket.uri}/twelve", through.storage_options)
    new = {f"node:T{number}": NEW[PERSON] for number in range(12)}
    for name in ("a", "b"):
        write_rows(storage, {key: [(name, 1)] for key in new}, new=new)
    forget(storage)
    cost("cleanup of twelve tables", lambda: cleanup(storage))
