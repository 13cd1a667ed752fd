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
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import lance

from omnigraph_spark.history import commits, new_graph, runs
from omnigraph_spark.history.init import compact_own_datasets, init_graph
from omnigraph_spark.manifest import identities, lineage, snapshot
from omnigraph_spark.manifest.publisher import Publish, publish
from omnigraph_spark.manifest.rows import (
    OURS,
    CommitRow,
    ManifestRow,
    TableRow,
    VersionRow,
    to_arrow,
)
from omnigraph_spark.schema import parse_pg
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


@dataclass
class Graph:
    """A graph that is published to, and how often it was.

    Attributes:
        places: Folders of the tables.
        first: The version of each table that the graph began with.
        number: Publishes since then.
    """

    storage: Storage
    places: Mapping[str, str]
    first: int
    number: int = 0

    def publish_next(self) -> list[float]:
        """Publish the next version of the table whose turn it is; seconds per step, CPU, opens."""
        keys = [*self.places]
        publish_id = new_ulid()
        key, version = keys[self.number % len(keys)], self.number // len(keys) + self.first + 1
        row = version_row(self.storage, self.places[key], key, version, publish_id)
        busy = time.process_time()
        with opens() as opened:
            steps = write_once(self.storage, [row], publish_id)
        self.number += 1
        return [*steps, time.process_time() - busy, len(opened) / 1000]

    def fill(self, count: int) -> None:
        """Put the rows there that so many publishes leave, by two commits; a graph of form 6."""
        manifest = snapshot.open_main(self.storage)
        head = lineage.head_of(snapshot.read_rows(manifest))
        assert head is not None
        keys = [*self.places]
        rows: list[VersionRow | CommitRow] = []
        own = CommitRow(head.commit_id, int(manifest.version) + 1, None, None, head.created_at)
        for number in range(self.number, self.number + count):
            own = replace(own, commit_id=new_ulid(), parent=own.commit_id)
            own = replace(own, created_at=own.created_at + 1000)
            key, version = keys[number % len(keys)], number // len(keys) + self.first + 1
            place = self.places[key]
            rows += [version_row(self.storage, place, key, version, own.commit_id), own]
        pairs = identities.of_rows(snapshot.load(self.storage).identities, rows)
        for some in (to_arrow(rows, pairs), to_arrow(lineage.rows_of(own), {})):
            merge = manifest.merge_insert("object_id").when_matched_update_all()
            merge.when_not_matched_insert_all().execute(some)
            manifest.checkout_latest()
        self.number += count


@contextmanager
def opens() -> Iterator[list[object]]:
    """Collect the datasets that are opened."""
    found: list[object] = []
    real = lance.dataset

    def opened(*place: Any, **more: Any) -> lance.LanceDataset:
        found.append(place)
        return real(*place, **more)

    with patch.object(lance, "dataset", opened):
        yield found


def version_row(
    storage: Storage, location: str, key: str, version: int, publish_id: str
) -> VersionRow:
    """Return a version row with as much metadata as a real one."""
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
    parser.add_argument("--form", type=int, choices=(2, new_graph.OF_TODAY), default=2)
    parser.add_argument("--beside", type=Path, help="a folder of another run, of form 2")
    parser.add_argument("--filled", action="store_true", help="put most rows there at once")
    args = parser.parse_args()
    if args.publishes < 4 * WINDOW or args.publishes % WINDOW:
        parser.error(f"--publishes must be a multiple of {WINDOW}, at least {4 * WINDOW}")
    folder = args.into or Path(tempfile.mkdtemp(prefix="publishes-"))
    folder.mkdir(parents=True, exist_ok=True)
    try:
        _run(args, folder)
    finally:
        if args.into is None:
            shutil.rmtree(folder, ignore_errors=True)
    return 0


def _begin(root: Path, tables: int, form: int) -> Graph:
    """Open a graph of some tables, or make it with the first version of each."""
    storage, keys = Storage.at(str(root)), keys_of(tables)
    if form == new_graph.OF_TODAY:
        if not storage.has_dataset(layout.MANIFEST):
            new_graph.make(storage, parse_pg("".join(map(_declared, keys))))
    else:
        init_graph(storage)
        if not snapshot.load(storage).tables:
            publish_id = new_ulid()
            first: list[ManifestRow] = [TableRow(key, layout.table_location(key)) for key in keys]
            for key in keys:
                place = layout.table_location(key)
                first.append(version_row(storage, place, key, 1, publish_id))
            write_once(storage, first, publish_id)
    known = snapshot.load(storage).tables
    kept = root.with_name("first.json")
    if not kept.is_file():
        kept.write_text(json.dumps(min(known[key].table_version for key in keys)))
    made = Graph(storage, {key: known[key].location for key in keys}, json.loads(kept.read_text()))
    made.number = sum(known[key].table_version - made.first for key in keys)
    return made


def _declared(key: str) -> str:
    """Return the schema's text of a table; an edge joins the two tables before."""
    kind, _, name = key.partition(":")
    if kind == "node":
        return f"node {name} {{\n    name: String @key\n}}\n"
    number = int(name.removeprefix("Type"))
    return f"edge {name}: Type{number - 2} -> Type{number - 1} {{\n    w: F64?\n}}\n"


def _run(args: argparse.Namespace, folder: Path) -> None:
    publishes, told = args.publishes, folder / "bytes.json"
    seconds = float("inf") if args.minutes is None else 60 * args.minutes
    graph = _begin(folder / "graph", args.tables, args.form)
    other = _begin(args.beside / "graph", args.tables, 2) if args.beside else None
    root, apart = Path(graph.storage.root), folder / "graph-beside"
    young = replace(graph, storage=Storage.at(str(apart)))
    bytes_at = json.loads(told.read_text()) if told.is_file() else [sizes(root)]
    publishes = max(publishes, graph.number + WINDOW)
    compared = {"again, late": young, "last 100": graph}
    if other is not None:
        compared["beside"] = other
    windows: dict[str, list[list[float]]] = {name: [] for name in ("second 100", *compared)}
    end = time.monotonic() + seconds
    while graph.number < publishes:
        number = graph.number
        if number == WINDOW:
            shutil.copytree(root, folder / "graph-young")
        # Out of time: begin the last hundred, at a multiple of 100.
        if number >= 2 * WINDOW and number % WINDOW == 0 and time.monotonic() > end:
            publishes = min(publishes, number + WINDOW)
        if args.filled and number == 2 * WINDOW:
            graph.fill(publishes - 3 * WINDOW)
            number = graph.number
        if number == publishes - WINDOW:
            shutil.rmtree(apart, ignore_errors=True)
            shutil.copytree(folder / "graph-young", apart)
            young.number = WINDOW
        took = graph.publish_next()
        if number // WINDOW == 1:
            windows["second 100"].append(took)
        if number >= publishes - WINDOW:
            for name, one in compared.items():
                windows[name].append(took if one is graph else one.publish_next())
        if graph.number % WINDOW == 0:
            bytes_at.append(sizes(root))
            told.write_text(json.dumps(bytes_at))
    # Only now: a process that forgets what it read of one graph forgets that of the others, too.
    opened: dict[str, list[list[float]]] = {name: [] for name in compared}
    for name, one in [*compared.items()] * WINDOW:
        opened[name].append(open_snapshots(one.storage))
    print(f"{publishes} publishes, {args.tables} tables, a graph of form {args.form}")
    if other is not None:
        print(f"beside: form 2, {other.number} publishes")
    _print_times(windows, opened)
    _print_sizes(bytes_at)
    line = commits.read_commits(graph.storage)
    print(f"\nlineage: {len(line)} commits for {publishes + 2} publishes (with init)")


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
    windows: Mapping[str, list[list[float]]], opened: Mapping[str, list[list[float]]]
) -> None:
    """Print medians; all but the second hundred were measured in turns."""
    print("\nmedians, ms; the ratios are those of the last hundred to what was measured in turns")
    print(f"{'step':<16}" + "".join(f"{name:>12}" for name in windows) + f"{'ratios':>12}")
    for place, name in enumerate((*STEPS, "all", "all, cpu", "datasets opened")):
        _print_row(name, {one: _median(took, place) for one, took in windows.items()})
    for place, name in enumerate(("open anew", "open anew, cpu", "open again", "open again, cpu")):
        medians = {
            one: 1000 * statistics.median(each[place] for each in took)
            for one, took in opened.items()
        }
        _print_row(name, {"second 100": float("nan"), **medians})


def _print_row(name: str, medians: Mapping[str, float]) -> None:
    last = medians["last 100"]
    ratios = [
        f"{last / before:>8.2f}" if before > 0.01 else f"{'-':>8}"
        for one, before in medians.items()
        if one not in ("second 100", "last 100")
    ]
    print(f"{name:<16}" + "".join(f"{value:>12.2f}" for value in medians.values()), *ratios)


def _median(window: list[list[float]], place: int) -> float:
    """Return the median in ms of a step, of all steps, of the processor's time, or of opens."""
    if not window:  # a run that went on with a grown graph has no second hundred
        return float("nan")
    if place == len(STEPS):
        return 1000 * statistics.median(sum(took[: len(STEPS)]) for took in window)
    return 1000 * statistics.median(took[place - (place > len(STEPS))] for took in window)


def _print_sizes(bytes_at: list[dict[str, int]]) -> None:
    """Print the bytes per publish by quarters; there is one record per hundred publishes."""
    if len(bytes_at) < 5:  # most of the rows came at once
        return
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
