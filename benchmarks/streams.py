"""Does a stream stay as fast as it was, after a thousand commits?

A sink writes micro-batches into one table of a graph, and a source follows that graph, a commit per
batch; without Spark, by the calls that Spark makes of them (tests/support/streams.py). Prints what
the last hundred batches of each cost beside the hundred that a young copy of the graph gets, whose
batches are done in turn with them, so that a machine that got busier doesn't show as a ratio.
Times are by the clock and of this process (`cpu`). Then says how many files the table has.

    python benchmarks/streams.py --batches 1000                   # optimizeEvery=50
    python benchmarks/streams.py --batches 1000 --optimize-every 0  # a file per batch stays
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from pyspark.sql.types import IntegerType, StringType, StructField, StructType

from omnigraph_spark.manifest.snapshot import load
from omnigraph_spark.storage.store import Storage
from tests.support.streams import Sink, Stream
from tests.support.writes import KNOWS, PERSON, ids, new_graph

WINDOW = 100
ROWS = 10
PEOPLE = StructType(
    [
        StructField("id", StringType()),
        StructField("name", StringType()),
        StructField("age", IntegerType()),
    ]
)
MOST_RATIO = 1.3
STEPS = ("sink", "source: where", "source: plan", "source: rows", "source")


@dataclass
class Pipe:
    """A graph with a sink that fills it and a source that follows it; `took` by step, per batch."""

    storage: Storage
    number: int
    optimize_every: int
    took: list[dict[str, tuple[float, float]]] = field(default_factory=list)

    def __post_init__(self) -> None:
        asked = {"optimizeEvery": str(self.optimize_every)} if self.optimize_every else {}
        self.sink = Sink(self.storage, PEOPLE, table=PERSON, **asked)
        # A head start for the process: what is done once per query isn't the cost of a batch.
        self.stream = Stream(self.storage, table=PERSON, startingVersion="latest")
        self.stream.plan()

    def batch(self) -> None:
        """Write a batch, and read it from the stream."""
        rows = [
            {"id": f"p{self.number}.{n}", "name": f"p{self.number}.{n}", "age": n % 90}
            for n in range(ROWS)
        ]
        took: dict[str, tuple[float, float]] = {}
        _timed(took, "sink", lambda: self.sink.batch(self.number, rows))
        self.number += 1
        start, end = _timed(took, "source: where", self.stream.plan)
        pieces = _timed(took, "source: plan", lambda: self.stream.reader.partitions(start, end))
        found = _timed(
            took,
            "source: rows",
            lambda: [one.num_rows for piece in pieces for one in self.stream.reader.read(piece)],
        )
        assert sum(found) == ROWS, found
        self.stream.offset = end
        parts = [took[name] for name in STEPS if name.startswith("source:")]
        took["source"] = (sum(one[0] for one in parts), sum(one[1] for one in parts))
        self.took.append(took)


def _timed(took: dict[str, tuple[float, float]], name: str, run: Callable[[], Any]) -> Any:
    began, busy = time.perf_counter(), time.process_time()
    found = run()
    took[name] = (time.perf_counter() - began, time.process_time() - busy)
    return found


def main() -> int:
    """Run the benchmark and print its table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batches", type=int, default=1000)
    parser.add_argument("--optimize-every", type=int, default=50)
    args = parser.parse_args()
    if args.batches < 3 * WINDOW or args.batches % WINDOW:
        parser.error(f"--batches must be a multiple of {WINDOW}, at least {3 * WINDOW}")
    folder = Path(tempfile.mkdtemp(prefix="streams-"))
    try:
        _run(folder, args.batches, args.optimize_every)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return 0


def _run(folder: Path, batches: int, optimize_every: int) -> None:
    grown = Pipe(new_graph(Storage.at(str(folder / "grown")), [PERSON, KNOWS]), 0, optimize_every)
    young_root = folder / "young"
    for _ in range(WINDOW):
        grown.batch()
    shutil.copytree(grown.storage.root, young_root)
    for _ in range(batches - 2 * WINDOW):
        grown.batch()
    young = Pipe(Storage.at(str(young_root)), WINDOW, optimize_every)
    for _ in range(WINDOW):
        young.batch()
        grown.batch()
    print(f"{batches} batches of {ROWS} rows, optimizeEvery={optimize_every or 'not given'}")
    print("\nmedians, ms (cpu: of this process); the ratio is of the last two columns, in turn")
    print(f"{'':<20}{'first 100':>12}{'second 100':>12}{'last 100':>12}{'ratio':>8}{'goal':>18}")
    for name in STEPS:
        for place, suffix in enumerate(("", ", cpu")):
            first, then, now = (
                1000 * statistics.median(one[name][place] for one in some)
                for some in (grown.took[:WINDOW], young.took, grown.took[-WINDOW:])
            )
            ratio = now / then
            goal = ""
            if ":" not in name:
                goal = f"{MOST_RATIO} {'met' if ratio <= MOST_RATIO else 'MISSED'}"
            print(
                f"{name + suffix:<20}{first:>12.2f}{then:>12.2f}{now:>12.2f}{ratio:>8.2f}{goal:>18}"
            )
    entry = load(grown.storage).entry(PERSON)
    files = len(grown.storage.dataset(entry.location, None, entry.table_version).get_fragments())
    print(f"\nfragments of the table: {files}; rows {len(ids(grown.storage, PERSON)):,}")


if __name__ == "__main__":
    sys.exit(main())
