"""What an upsert costs beside an append of the same rows, and beside pylance's own merge_insert.

Half of the rows are new. Runs on the core without Spark, in one process, task after task; each way
gets its own copy of one graph with an index on `id`. Prints seconds, the bytes of the commit
messages per matched row, and how far the process's memory grew in the commit.

    python benchmarks/upsert.py --rows 5000000 --new 1000000
"""

from __future__ import annotations

import argparse
import resource
import shutil
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
import pyarrow as pa

from omnigraph_spark import options
from omnigraph_spark.manifest.snapshot import load
from omnigraph_spark.options import WriteOptions
from omnigraph_spark.storage import Storage
from omnigraph_spark.write.commit import commit
from omnigraph_spark.write.plan import NewTable, plan_write
from omnigraph_spark.write.stage import stage, to_json

KEY = "node:Person"
SCHEMA = pa.schema(
    [
        pa.field("id", pa.utf8(), nullable=False),
        pa.field("a", pa.int64()),
        pa.field("b", pa.utf8()),
        pa.field("f", pa.float64()),
    ]
)
_TASKS = 4


def people(numbers: np.ndarray, sign: int = 1) -> pa.RecordBatch:
    """Return one row per number."""
    columns = [
        pa.array([f"person-{number:012d}" for number in numbers]),
        pa.array(numbers * sign),
        pa.array([f"name {number % 1000}" for number in numbers]),
        pa.array(numbers * 1.5),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)


def write(root: str, tasks: list[pa.RecordBatch], mode: str) -> None:
    """Write tasks one after the other, commit them, and print what it took."""
    storage = Storage.at(root)
    raw = {"path": root, "writeMode": mode}
    planned = plan_write(
        storage, WriteOptions.of(options.parse(raw), False), {KEY: NewTable(SCHEMA)}
    )
    began = time.perf_counter()
    staged = [one for task in tasks for one in stage(planned, [(KEY, task)])]
    middle = time.perf_counter()
    message = len(to_json(staged))
    matched = sum(match.rows for one in staged for match in one.matches)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    commit(planned, staged)
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    end = time.perf_counter()
    each = f", {message / matched:.2f} B per matched row" if matched else ""
    print(
        f"{mode}: {end - began:.2f} s (tasks {middle - began:.2f}, commit {end - middle:.2f}); "
        f"messages {message >> 10} KiB{each}; peak memory grew {grown >> 10} MiB in the commit"
    )


def main() -> None:
    """Build the graph, then measure the three ways."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=5_000_000)
    parser.add_argument("--new", type=int, default=1_000_000)
    args = parser.parse_args()
    rng = np.random.default_rng(1)
    with tempfile.TemporaryDirectory(prefix="omnigraph-upsert-") as folder:
        origin = f"{folder}/origin"
        write(origin, np_tasks(np.arange(args.rows), 1), "append")
        storage = Storage.at(origin)
        entry = load(storage).entry(KEY)
        place = entry.location
        with_index = [i.name for i in storage.dataset(place).describe_indices()]
        print(f"{args.rows} rows; indices of the origin: {with_index or 'none'}")
        old = rng.choice(args.rows, args.new // 2, replace=False)
        numbers = np.concatenate([old, np.arange(args.rows, args.rows + args.new // 2)])
        rng.shuffle(numbers)
        tasks = np_tasks(numbers, -1)
        for mode in ("append", "merge"):
            shutil.copytree(origin, f"{folder}/{mode}")
            write(f"{folder}/{mode}", tasks, mode)
        shutil.copytree(origin, f"{folder}/lance")
        began = time.perf_counter()
        (
            Storage.at(f"{folder}/lance")
            .dataset(place)
            .merge_insert("id")
            .when_matched_update_all()
            .when_not_matched_insert_all()
            .execute(pa.Table.from_batches(tasks))
        )
        print(f"pylance merge_insert: {time.perf_counter() - began:.2f} s")


def np_tasks(numbers: np.ndarray, sign: int) -> list[pa.RecordBatch]:
    """Cut numbers into the batches of the tasks."""
    return [people(part, sign) for part in np.array_split(numbers, _TASKS)]


if __name__ == "__main__":
    main()
