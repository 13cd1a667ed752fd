"""Merge a branch with many changed rows on executors of their own: how long, how large the driver.

For each size a fresh Spark (`local-cluster`: the executors are other JVMs) makes a table, changes a
fifth of its rows on a branch, appends some on `main`, and merges. Printed are the seconds, and the
largest resident size that the driver's Python process, its JVM, and the Python processes that this
JVM starts for planning and committing had during the merge. None of them may grow with the rows.

    python benchmarks/merge_branch.py --rows 1250000 5000000
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
    "spark.driver.memory": "512m",
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


def people(spark: SparkSession, rows: int) -> DataFrame:
    """Return a table of so many people."""
    return spark.range(rows).selectExpr(
        "concat('person-', id) AS id",
        "CAST(id % 90 AS INT) AS age",
        "concat('name of ', id) AS name",
        "rand(1) AS weight",
        "id * 7 AS number",
    )


def one(rows: int, folder: Path) -> dict[str, Any]:
    """Make, change, merge; returns the figures."""
    spark = new_session("local-cluster[2,1,1024]", folder, CONF)
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
    graph.write({PERSON: new}, mode="overwrite", branch="dev")
    added = people(spark, 1000).withColumn("id", sf.concat(sf.lit("new-"), "id"))
    graph.write({PERSON: added})
    began = time.perf_counter()
    with Sizes() as sizes:
        graph.merge("dev")
    took = time.perf_counter() - began
    table = graph.table(PERSON)
    counted = table.selectExpr("count(*) AS n", "count_if(age >= 1000) AS changed").first()
    expected = (rows + 1000, -(-rows // CHANGED))
    if counted is None or tuple(counted) != expected:
        raise AssertionError(f"merged {counted}, expected {expected}")
    spark.stop()
    return {
        "rows": rows,
        "changed": expected[1],
        "seconds": round(took, 1),
        **{f"{kind} MiB": size // MIB for kind, size in sizes.largest.items()},
    }


def main() -> None:
    """Run each size in a process of its own and print a line for each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, nargs="+", default=[1_250_000, 5_000_000])
    parser.add_argument("--one", action="store_true", help="one size, in this process")
    asked = parser.parse_args()
    if asked.one:
        with tempfile.TemporaryDirectory() as folder:
            print(json.dumps(one(asked.rows[0], Path(folder))))
        return
    for rows in asked.rows:
        command = [sys.executable, __file__, "--one", "--rows", str(rows)]
        subprocess.run(command, check=True)


if __name__ == "__main__":
    main()
