"""Merge a branch with many changed rows on executors of their own: how long, how large the driver.

For each size a fresh Spark (`local-cluster`: the executors are other JVMs) makes a table, changes a
fifth of its rows on a branch, appends some on `main`, and merges. Printed are the seconds, the
largest resident size that the driver's Python process and the Python processes that its JVM starts
had during the merge, and how many bytes the driver's JVM still uses after a collection: its heap is
fixed and small at every size (`--heap`), since a JVM takes what it may whether it needs it or not.
None of them may grow with the rows.

    python benchmarks/merge_branch.py --rows 1250000 5000000 --how upsert
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
from pyspark.sql import functions as sf

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from omnigraph_spark import OmniGraph
from tests.support.sparks import new_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

MIB = 1 << 20
PERSON = "node:Person"
CHANGED = 5
"""One row in so many is changed on the branch."""
CONF = {
    "spark.driver.extraJavaOptions": "-XX:+UseSerialGC",
    "spark.sql.shuffle.partitions": "8",
}


class Sizes:
    """Watches the resident sizes of the driver's processes, in bytes."""

    def __init__(self) -> None:
        self.largest = {"python": 0, "jvm": 0, "workers": 0}
        self._stop = threading.Event()
        self._watcher = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Sizes:
        self._watcher.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._watcher.join()

    def _watch(self) -> None:
        me = psutil.Process()
        while not self._stop.wait(0.1):
            self._note("python", me)
            for jvm in me.children():
                self._look(jvm)

    def _look(self, process: psutil.Process) -> None:
        try:
            line = " ".join(process.cmdline())
            if "CoarseGrainedExecutorBackend" in line:
                return
            kind = "jvm" if "java" in process.name() else "workers"
            self._note(kind, process)
            for child in process.children():
                self._look(child)
        except psutil.Error:
            return

    def _note(self, kind: str, process: psutil.Process) -> None:
        self.largest[kind] = max(self.largest[kind], process.memory_info().rss)


def cpu_seconds() -> float:
    """Return what this process and all that it started have used so far."""
    found = 0.0
    me = psutil.Process()
    for process in (me, *me.children(recursive=True)):
        try:
            times = process.cpu_times()
        except psutil.Error:
            continue
        found += times.user + times.system
    return found


def people(spark: SparkSession, rows: int) -> DataFrame:
    """Return a table of so many people."""
    return spark.range(rows).selectExpr(
        "concat('person-', id) AS id",
        "CAST(id % 90 AS INT) AS age",
        "concat('name of ', id) AS name",
        "rand(1) AS weight",
        "id * 7 AS number",
    )


def heap_in_use(spark: SparkSession) -> int:
    """Return the bytes that live on the heap of the driver's JVM, after a collection."""
    jvm = spark.sparkContext._jvm
    assert jvm is not None
    bean = jvm.java.lang.management.ManagementFactory.getMemoryMXBean()
    bean.gc()
    return int(bean.getHeapMemoryUsage().getUsed())


def one(rows: int, how: str, heap: str, folder: Path) -> dict[str, Any]:
    """Make, change, merge; returns the figures."""
    conf = {**CONF, "spark.driver.memory": heap}
    spark = new_session("local-cluster[2,1,1024]", folder, conf)
    graph = OmniGraph.for_path(spark, str(folder / "graph"))
    graph.write({PERSON: people(spark, rows)})
    graph.create_branch("dev")
    old = graph.table(PERSON, branch="dev")
    new = old.selectExpr(
        "id",
        f"IF(number % {7 * CHANGED} = 0, age + 1000, age) AS age",
        "name",
        "weight",
        "number",
    )
    if how == "upsert":
        new = new.where("age >= 1000")
        graph.write({PERSON: new}, branch="dev", writeMode="merge", lastWriterWins="true")
    else:
        graph.write({PERSON: new}, mode="overwrite", branch="dev")
    added = people(spark, 1000).withColumn("id", sf.concat(sf.lit("new-"), "id"))
    graph.write({PERSON: added})
    before = heap_in_use(spark)
    began, cpu = time.perf_counter(), cpu_seconds()
    with Sizes() as sizes:
        graph.merge("dev")
    took, used = time.perf_counter() - began, cpu_seconds() - cpu
    after = heap_in_use(spark)
    table = graph.table(PERSON)
    counted = table.selectExpr("count(*) AS n", "count_if(age >= 1000) AS changed").first()
    expected = (rows + 1000, -(-rows // CHANGED))
    if counted is None or tuple(counted) != expected:
        raise AssertionError(f"merged {counted}, expected {expected}")
    spark.stop()
    return {
        "rows": rows,
        "changed": expected[1],
        "how": how,
        "seconds": round(took, 1),
        "CPU seconds": round(used, 1),
        "heap": heap,
        "heap MiB before": before // MIB,
        "heap MiB after": after // MIB,
        **{f"{kind} MiB": size // MIB for kind, size in sizes.largest.items()},
    }


def main() -> None:
    """Run each size in a process of its own and print a line for each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, nargs="+", default=[1_250_000, 5_000_000])
    parser.add_argument("--how", choices=("upsert", "overwrite"), default="upsert")
    parser.add_argument("--heap", default="480m", help="the driver JVM's; Spark asks for 466m")
    parser.add_argument("--one", action="store_true", help="one size, in this process")
    asked = parser.parse_args()
    if asked.one:
        with tempfile.TemporaryDirectory() as folder:
            print(json.dumps(one(asked.rows[0], asked.how, asked.heap, Path(folder))))
        return
    for rows in asked.rows:
        same = ["--how", asked.how, "--heap", asked.heap]
        command = [sys.executable, __file__, "--one", "--rows", str(rows), *same]
        subprocess.run(command, check=True)


if __name__ == "__main__":
    main()
