"""Does a publish stay as fast and as small as it was, after thousands of them?

Publishes to one graph again and again, with everything that a write leaves in the graph's own
datasets (catalog, lineage, runs, actors) and without Spark and table data, and prints what the last
hundred cost beside the second hundred, and the bytes that each publish left on disk. A copy of the
graph as it was after a hundred publishes does its second hundred once more, in turn with the last
hundred of the other, so that a machine that got busier or idler in between doesn't show as a ratio.
Each of these also opens a snapshot (of the grown graph, and of the young one) and times that, as a
process does that has read the graph before, and as one that hasn't (`again`). Times are by the
clock, and of this process (`cpu`), which others' work on the machine changes less.

    python benchmarks/publishes.py --publishes 2000 --tables 50
    python benchmarks/publishes.py --publishes 10000 --tables 50 --minutes 40   # as far as it gets
    python benchmarks/publishes.py --publishes 10000 --into /tmp/grown   # again: measures again

With `--into` the graph stays, and the same command goes on where the last one ended: from 10,000 on
each run publishes a hundred more, beside a fresh copy of the young graph.
"""

from __future__ import annotations

import argparse
import itertools
import json
import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from omnigraph_spark.history import commits, runs
from omnigraph_spark.history.init import compact_own_datasets, init_graph
from omnigraph_spark.manifest import snapshot
from omnigraph_spark.manifest.publisher import Publish, publish
from omnigraph_spark.manifest.rows import OURS, ManifestRow, TableRow, VersionRow
from omnigraph_spark.storage import kept_rows, layout
from omnigraph_spark.storage.ids import new_ulid
from omnigraph_spark.storage.store import Storage

OWN = (
    layout.MANIFEST,
    layout.GRAPH_COMMITS,
    layout.GRAPH_COMMIT_ACTORS,
    layout.GRAPH_RUNS,
    layout.GRAPH_RUN_ACTORS,
)
WINDOW = 100
STEPS = ("start_run", "publish", "record_publish", "compaction", "finish_run")


def keys_of(tables: int) -> list[str]:
    """Return table keys, a third of them edges."""
    return [f"{'edge' if i % 3 == 2 else 'node'}:Type{i}" for i in range(tables)]


def version_row(storage: Storage, key: str, version: int, publish_id: str) -> VersionRow:
    """Return a version row with as much metadata as a real one."""
    location = layout.table_location(key)
    name = layout.v2_manifest_name(version)
    metadata = {
        "manifest_path": f"{storage.uri(location)[1:]}/_versions/{name}",
        "manifest_size": 1000 + version,
        "e_tag": None,
        "naming_scheme": "V2",
        OURS: {
            "publish_id": publish_id,
            "actor": "benchmark",
            "mode": "append",
            "rows_added": 10,
            "rows_removed": 0,
        },
    }
    return VersionRow(key, version, None, 10 * version, metadata)


def write_once(storage: Storage, changes: list[ManifestRow], publish_id: str) -> list[float]:
    """Do all that a write does to the graph's own datasets; return seconds per step."""
    ticks = [time.perf_counter()]
    base = commits.head(storage)
    runs.start_run(
        storage,
        run_id=publish_id,
        branch=layout.MAIN,
        base_version=base.manifest_version if base else 0,
        base_commit_id=base.graph_commit_id if base else None,
        operation_hash=None,
        actor="benchmark",
    )
    ticks.append(time.perf_counter())
    version = publish(storage, Publish(layout.MAIN, publish_id, tuple(changes))).graph_version
    ticks.append(time.perf_counter())
    commits.record_publish(storage, layout.MAIN, publish_id, version, "benchmark")
    ticks.append(time.perf_counter())
    compact_own_datasets(storage, layout.MAIN, version)
    ticks.append(time.perf_counter())
    runs.finish_run(storage, publish_id, runs.PUBLISHED, publish_id)
    ticks.append(time.perf_counter())
    return [after - before for before, after in itertools.pairwise(ticks)]


def sizes(root: Path) -> dict[str, int]:
    """Return the bytes of each of the graph's own datasets."""
    return {
        name: sum(path.stat().st_size for path in (root / name).rglob("*") if path.is_file())
        for name in OWN
    }


def main() -> int:
    """Run the benchmark and print its tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--publishes", type=int, default=2000)
    parser.add_argument("--tables", type=int, default=50)
    parser.add_argument("--minutes", type=float, help="begin the last hundred then")
    parser.add_argument("--into", type=Path, help="keep the graph in this folder, and go on there")
    args = parser.parse_args()
    if args.publishes < 4 * WINDOW or args.publishes % WINDOW:
        parser.error(f"--publishes must be a multiple of {WINDOW}, at least {4 * WINDOW}")
    folder = args.into or Path(tempfile.mkdtemp(prefix="publishes-"))
    folder.mkdir(parents=True, exist_ok=True)
    try:
        seconds = float("inf") if args.minutes is None else 60 * args.minutes
        _run(folder, args.publishes, args.tables, seconds)
    finally:
        if args.into is None:
            shutil.rmtree(folder, ignore_errors=True)
    return 0


def publish_next(storage: Storage, keys: list[str], number: int) -> list[float]:
    """Publish the next version of the table whose turn it is; return seconds per step, and CPU."""
    publish_id = new_ulid()
    row = version_row(storage, keys[number % len(keys)], number // len(keys) + 2, publish_id)
    busy = time.process_time()
    steps = write_once(storage, [row], publish_id)
    return [*steps, time.process_time() - busy]


def _begin(storage: Storage, keys: list[str]) -> int:
    """Make the graph with the first version of each table; return the publishes that it has."""
    init_graph(storage)
    rows = snapshot.read_rows(snapshot.open_main(storage)).num_rows
    if rows:
        return rows - 2 * len(keys)  # a row per table, one per first version, one per publish
    publish_id = new_ulid()
    first: list[ManifestRow] = [TableRow(key, layout.table_location(key)) for key in keys]
    first += [version_row(storage, key, 1, publish_id) for key in keys]
    write_once(storage, first, publish_id)
    return 0


def _run(folder: Path, publishes: int, tables: int, seconds: float) -> None:
    root, told = folder / "graph", folder / "bytes.json"
    storage, young = Storage.at(str(root)), Storage.at(str(folder / "graph-beside"))
    keys = keys_of(tables)
    number = _begin(storage, keys)
    bytes_at = json.loads(told.read_text()) if told.is_file() else [sizes(root)]
    publishes = max(publishes, number + WINDOW)
    second: list[list[float]] = []
    beside: list[list[float]] = []
    last: list[list[float]] = []
    opened: list[tuple[list[float], list[float]]] = []
    end = time.monotonic() + seconds
    while number < publishes:
        if number == WINDOW:
            shutil.copytree(root, folder / "graph-young")
        # Out of time: begin the last hundred, at a multiple of 100.
        if number >= 2 * WINDOW and number % WINDOW == 0 and time.monotonic() > end:
            publishes = min(publishes, number + WINDOW)
        if number == publishes - WINDOW:
            shutil.rmtree(young.root, ignore_errors=True)
            shutil.copytree(folder / "graph-young", young.root)
        took = publish_next(storage, keys, number)
        if number // WINDOW == 1:
            second.append(took)
        if number >= publishes - WINDOW:
            last.append(took)
            beside.append(publish_next(young, keys, number - publishes + 2 * WINDOW))
            opened.append((open_snapshots(young), open_snapshots(storage)))
        number += 1
        if number % WINDOW == 0:
            bytes_at.append(sizes(root))
            told.write_text(json.dumps(bytes_at))
    print(f"{publishes} publishes, {tables} tables")
    _print_times(second, beside, last)
    for place, name in enumerate(
        ("open again", "open again, cpu", "open again", "open again, cpu")
    ):
        then, now = (
            1000 * statistics.median(x[place] for x in s) for s in zip(*opened, strict=True)
        )
        print(f"{name:<16}{'':>12}{then:>12.2f}{now:>12.2f}{now / then:>8.2f}")
    _print_sizes(bytes_at)
    lineage = commits.read_commits(storage)
    print(f"\nlineage: {len(lineage)} commits for {publishes + 2} publishes (with init)")


def open_snapshots(storage: Storage) -> list[float]:
    """Return the seconds that it takes to open a snapshot, again and again; each with CPU."""
    ticks = []
    for anew in (True, False):
        if anew:
            kept_rows.forget()
        began, busy = time.perf_counter(), time.process_time()
        snapshot.load(storage)
        ticks += [time.perf_counter() - began, time.process_time() - busy]
    return ticks


def _print_times(
    second: list[list[float]], beside: list[list[float]], last: list[list[float]]
) -> None:
    """Print medians; `beside` is the second hundred again, each between two of the last hundred."""
    print(
        "\nmedians, ms; the ratio is that of the last two columns, which were measured side by side"
    )
    print(f"{'step':<16}{'second 100':>12}{'again, late':>12}{'last 100':>12}{'ratio':>8}")
    for place, name in enumerate((*STEPS, "all", "all, cpu")):
        then, before, after = (_median(window, place) for window in (second, beside, last))
        ratio = f"{after / before:>8.2f}" if before > 0.01 else f"{'-':>8}"
        print(f"{name:<16}{then:>12.2f}{before:>12.2f}{after:>12.2f}{ratio}")


def _median(window: list[list[float]], place: int) -> float:
    """Return the median in ms of a step, of all steps, or of the processor's time."""
    if not window:  # a run that went on with a grown graph has no second hundred
        return float("nan")
    if place == len(STEPS):
        return 1000 * statistics.median(sum(took[:-1]) for took in window)
    return 1000 * statistics.median(took[min(place, len(STEPS))] for took in window)


def _print_sizes(bytes_at: list[dict[str, int]]) -> None:
    """Print the bytes per publish by quarters; there is one record per hundred publishes."""
    places = [round(quarter * (len(bytes_at) - 1) / 4) for quarter in range(5)]
    print(f"\n{'KB per publish':<28}" + "".join(f"{f'quarter {i + 1}':>12}" for i in range(4)))
    for name in (*OWN, "all"):
        names = OWN if name == "all" else (name,)
        per = [
            sum(bytes_at[new][n] - bytes_at[old][n] for n in names) / (new - old) / WINDOW / 1000
            for old, new in itertools.pairwise(places)
        ]
        print(f"{name:<28}" + "".join(f"{value:>12.1f}" for value in per))
    total = sum(bytes_at[-1].values())
    print(f"{'on disk at the end':<28}{total / 1e6:>10.1f} MB")


if __name__ == "__main__":
    sys.exit(main())
