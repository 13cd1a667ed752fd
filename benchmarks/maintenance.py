"""Optimize among writers, and the space that a cleanup gives back.

Makes a table of many small fragments with an index on `id`, a branch and a tag, then optimizes it
while other processes append to it, one call after the other. Checks that no writer failed and that
every row is there once; prints fragments, times and what the writers waited. Then cleans up as if
it were eight days later, prints the space before and after, and reads every version that is left,
of both branches, and the tag.

    python benchmarks/maintenance.py --fragments 2000 --writers 4 --seconds 30 [--spark]
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import pyarrow as pa

from omnigraph_spark.errors import OmnigraphError
from omnigraph_spark.maintenance.cleanup import cleanup
from omnigraph_spark.maintenance.optimize import Run, create_index, optimize, run_here
from omnigraph_spark.manifest.snapshot import load
from omnigraph_spark.read.plan import read_table
from omnigraph_spark.refs import refs
from omnigraph_spark.refs.branches import create_branch
from omnigraph_spark.refs.refs import Resolved
from omnigraph_spark.refs.tags import create_tag
from omnigraph_spark.storage import layout
from omnigraph_spark.storage.store import Storage
from tests.support import lance_graphs, writes
from tests.support.writes import NODE_SCHEMA, PERSON, ids

BRANCH, TAG = "side", "before-optimize"


def make(root: str, fragments: int, rows_each: int) -> Storage:
    """Make a graph of one table in small fragments, with an index on `id`."""
    storage = lance_graphs.new_graph(root)
    names = pa.array([f"n{number:08}" for number in range(fragments * rows_each)])
    ages = pa.array(range(len(names)), pa.int32())
    table = pa.table([names, names, ages], schema=NODE_SCHEMA)
    lance_graphs.write_table(storage, PERSON, table, max_rows_per_file=rows_each)
    lance_graphs.publish_head(storage, PERSON)
    create_index(storage, "main", PERSON, "id", "BTREE", None)
    return storage


def appender(root: str, number: int, seconds: float, barrier: Any, queue: Any) -> None:
    """Append one row after the other until the time is over; report names, times and errors."""
    storage = Storage.at(root)
    names: list[str] = []
    times: list[float] = []
    errors: list[str] = []
    barrier.wait()
    begun = time.time_ns()
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        name, began = f"w{number}-{begun}-{len(names)}", time.monotonic()
        try:
            writes.write(storage, {PERSON: [name]}, orphanGraceSeconds="10")
        except OmnigraphError as error:
            errors.append(str(error))
            break
        names.append(name)
        times.append(time.monotonic() - began)
    queue.put((names, times, errors))


def among_writers(
    root: str, writers: int, seconds: float, work: Callable[[], None]
) -> tuple[list[str], list[float], list[str]]:
    """Do `work` while writers append; return their rows, seconds per append, and errors."""
    context = multiprocessing.get_context("spawn")
    barrier, queue = context.Barrier(writers + 1), context.Queue()
    running = [
        context.Process(target=appender, args=(root, n, seconds, barrier, queue), daemon=True)
        for n in range(writers)
    ]
    for process in running:
        process.start()
    barrier.wait()
    time.sleep(min(1.0, seconds / 10))
    work()
    found = [queue.get() for _ in running]
    for process in running:
        process.join()
    names, times, errors = ([x for one in found for x in one[i]] for i in range(3))
    return names, times, errors


def fragments_of(storage: Storage) -> int:
    """Return how many fragments the published version has."""
    entry = load(storage).entry(PERSON)
    return len(storage.dataset(entry.location, None, entry.table_version).get_fragments())


def size(storage: Storage) -> float:
    """Return the graph's size on disk in MiB."""
    return sum(info.size for info in storage.list("")) / 2**20


def counted_versions(storage: Storage) -> int:
    """Read every version of `__manifest` that is left, on both branches; return how many.

    Raises:
        AssertionError: a table has another number of rows than its version row says.
    """
    found = 0
    for branch in ("main", BRANCH):
        manifest = storage.dataset(layout.MANIFEST, layout.lance_branch(branch))
        for version in sorted(one["version"] for one in manifest.versions()):
            snapshot = load(storage, branch, version)
            for entry in snapshot.tables.values():
                rows = read_table(storage, snapshot, entry.table_key).num_rows
                assert rows == entry.row_count, (branch, version, entry, rows)
            found += 1
    return found


def spark_run() -> Run:
    """Return what runs tasks on a local Spark."""
    from pyspark.sql import SparkSession

    from omnigraph_spark.maintenance.optimize import run_on_spark

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    session = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    return run_on_spark(session.getOrCreate())


def main() -> None:
    """Run it and print a table."""
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("--fragments", type=int, default=2000)
    asked.add_argument("--rows", type=int, default=50, help="rows of a fragment")
    asked.add_argument("--writers", type=int, default=4)
    asked.add_argument("--seconds", type=float, default=30.0, help="how long the writers append")
    asked.add_argument("--spark", action="store_true", help="compact on a local Spark")
    given = asked.parse_args()
    folder = tempfile.mkdtemp(prefix="omnigraph-maintenance-")
    try:
        report(given, Path(folder) / "g")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def report(given: argparse.Namespace, root: Path) -> None:
    """Do the steps on a graph at `root` and print what they took."""
    storage = make(str(root), given.fragments, given.rows)
    run = spark_run() if given.spark else run_here
    _, alone, _ = among_writers(storage.root, given.writers, given.seconds / 3, lambda: None)
    create_branch(storage, BRANCH, Resolved("main", None))
    writes.write(storage, {PERSON: ["on-the-side"]}, branch=BRANCH)
    create_tag(storage, TAG, Resolved("main", None))
    tagged = ids(storage, PERSON)
    taken: list[tuple[float, int]] = []
    before = fragments_of(storage)

    def work() -> None:
        end = time.monotonic() + given.seconds - 3
        while not taken or time.monotonic() < end:
            began = time.monotonic()
            optimize(storage, "main", None, run)
            taken.append((time.monotonic() - began, fragments_of(storage)))

    names, times, errors = among_writers(storage.root, given.writers, given.seconds, work)
    assert errors == [], errors
    counted = ids(storage, PERSON)
    assert (
        len(counted) == len(set(counted)) == given.fragments * given.rows + len(alone) + len(names)
    )
    during = fragments_of(storage)
    began = time.monotonic()
    optimize(storage, "main", None, run)
    again = time.monotonic() - began
    assert ids(storage, PERSON) == counted
    print(f"fragments before                     {before:10}")
    print(f"optimize among {given.writers} writers           {taken[0][0]:10.2f} s")
    print(f"fragments when it returned           {taken[0][1]:10}")
    print(f"optimize again and again             {len(taken) - 1:10} times")
    print(f"fragments when the writers ended     {during:10}")
    print(f"optimize, no writers                 {again:10.2f} s")
    print(f"fragments at the end                 {fragments_of(storage):10}")
    print(
        f"appends acknowledged                 {len(names):10}, none failed, none lost or doubled"
    )
    for title, found in (("without optimize", alone), ("with optimize", times)):
        print(
            f"one append {title:18}: median {statistics.median(found):7.2f} s,"
            f" longest {max(found):7.2f} s"
        )
    full = size(storage)
    began = time.monotonic()
    done = cleanup(storage, dry_run=False, now=datetime.now(timezone.utc) + timedelta(days=8))
    spent = time.monotonic() - began
    assert ids(storage, PERSON) == counted
    name = refs.resolve(storage, version_as_of=TAG)
    of_tag = load(storage, name.branch, name.version)
    assert sorted(read_table(storage, of_tag, PERSON)["id"].to_pylist()) == sorted(tagged)
    kept = counted_versions(storage)
    print(f"size before cleanup                  {full:10.1f} MiB")
    print(f"size after cleanup                   {size(storage):10.1f} MiB")
    print(f"cleanup: {done.versions} versions, {done.files} files, in {spent:.1f} s")
    print(f"versions that are left and read right{kept:10}, and the tag")


if __name__ == "__main__":
    main()
