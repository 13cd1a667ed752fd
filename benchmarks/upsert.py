"""What an upsert costs beside an append of the same rows, and beside pylance's own merge_insert.

Half of the rows are new; the table has an index on `id` (`--no-index`: none). First the core alone,
in one process, task after task: seconds of the clock and of the processor, and what the driver
gets: bytes of the commit messages, and of the files beside them, per matched row. Each way gets its
own copy of one graph. Then the same rows through Spark (`--no-spark`: not).

pylance's merge_insert with an index needs more memory than Lance's default pool has, so it gets
4 GiB here.

    python benchmarks/upsert.py --rows 5000000 --new 1000000
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
import pyarrow as pa

from benchmarks.bench import start_spark
from benchmarks.harness import Case, Peer, measure, print_result
from benchmarks.integrity import build_indices
from omnigraph_spark import options
from omnigraph_spark.manifest.snapshot import load
from omnigraph_spark.options import WriteOptions
from omnigraph_spark.storage.store import Storage
from omnigraph_spark.write.commit.commit import commit
from omnigraph_spark.write.plan import NewTable, plan_write
from omnigraph_spark.write.tasks.stage import stage, to_json

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
    raw = {"path": root, "writeMode": mode, "integrity": "off"}
    planned = plan_write(
        storage, WriteOptions.of(options.parse(raw), False), {KEY: NewTable(SCHEMA)}
    )
    began, worked = time.perf_counter(), time.process_time()
    staged = [one for task in tasks for one in stage(planned, [(KEY, task)])]
    middle = time.perf_counter()
    sizes = len(to_json(staged)), sum(_size(storage, one.beside) for one in staged)
    matched = sum(match.rows for one in staged for match in one.matches)
    commit(planned, staged)
    end = time.perf_counter()
    each = "".join(f", {size / matched:.2f} B" for size in sizes) if matched else ""
    print(
        f"{mode}: {end - began:.2f} s (tasks {middle - began:.2f}, commit {end - middle:.2f}), "
        f"{time.process_time() - worked:.2f} s of processors; messages {sizes[0] >> 10} KiB and "
        f"files {sizes[1] >> 10} KiB{each and each + ' per matched row'}"
    )


def _size(storage: Storage, path: str) -> int:
    found = storage.head(path) if path else None
    return found.size if found else 0


def main() -> None:
    """Build the graph, then measure the three ways."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=5_000_000)
    parser.add_argument("--new", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--no-index", action="store_true", help="no BTREE index on the ids")
    parser.add_argument("--no-spark", action="store_true", help="the core alone")
    args = parser.parse_args()
    os.environ.setdefault("LANCE_MEM_POOL_SIZE", str(4 << 30))
    rng = np.random.default_rng(1)
    with tempfile.TemporaryDirectory(prefix="omnigraph-upsert-") as folder:
        origin = f"{folder}/origin"
        write(origin, np_tasks(np.arange(args.rows), 1), "append")
        if not args.no_index:
            build_indices(origin)
        old = rng.choice(args.rows, args.new // 2, replace=False)
        numbers = np.concatenate([old, np.arange(args.rows, args.rows + args.new // 2)])
        rng.shuffle(numbers)
        tasks = np_tasks(numbers, -1)
        for mode in ("append", "merge"):
            shutil.copytree(origin, f"{folder}/{mode}")
            write(f"{folder}/{mode}", tasks, mode)
        merge_insert(origin, f"{folder}/lance", pa.Table.from_batches(tasks))
        if not args.no_spark:
            through_spark(origin, folder, args.rows, args.new, args.rounds)


def merge_insert(origin: str, root: str, rows: pa.Table) -> None:
    """Upsert the rows with pylance's own means, and print what it took."""
    shutil.copytree(origin, root)
    storage = Storage.at(root)
    dataset = storage.dataset(load(storage).entry(KEY).location)
    began, worked = time.perf_counter(), time.process_time()
    builder = dataset.merge_insert("id").when_matched_update_all().when_not_matched_insert_all()
    builder.execute(rows)
    print(
        f"pylance merge_insert: {time.perf_counter() - began:.2f} s, "
        f"{time.process_time() - worked:.2f} s of processors"
    )


def through_spark(origin: str, folder: str, rows: int, new: int, rounds: int) -> None:
    """Measure an append with `integrity=off` and an upsert of the same rows through Spark."""
    spark = start_spark(Path(folder))
    step = 2 * rows // new  # every so many rows of the table is updated
    numbers = spark.range(0, new, numPartitions=4).selectExpr(
        f"CASE WHEN id % 2 = 0 THEN id div 2 * {step} ELSE {rows} + id div 2 END AS n"
    )
    frame = numbers.selectExpr(
        "concat('person-', lpad(n, 12, '0')) AS id",
        "-n AS a",
        "concat('name ', n % 1000) AS b",
        "n * 1.5D AS f",
    )

    def peer(mode: str) -> Peer:
        target = f"{folder}/spark-{mode}"
        given = {"table": KEY, "writeMode": mode, "integrity": "off"}

        def prepare(number: int) -> None:
            shutil.rmtree(target, ignore_errors=True)
            shutil.copytree(origin, target)

        def save(number: int) -> None:
            frame.write.format("omnigraph").options(**given).mode("append").save(target)

        return Peer(mode, save, prepare)

    case = Case("upsert beside append", new, (peer("merge"), peer("append")))
    print_result(measure(case, rounds))
    spark.stop()


def np_tasks(numbers: np.ndarray, sign: int) -> list[pa.RecordBatch]:
    """Cut numbers into the batches of the tasks."""
    return [people(part, sign) for part in np.array_split(numbers, _TASKS)]


if __name__ == "__main__":
    main()
