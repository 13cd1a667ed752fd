"""Measure reading and writing beside Spark's Parquet, pylance in one process, and the API's cost.

`make bench`, or `make bench ARGS='--rows 1000000 --rounds 7 --only scan'`. Prints medians of
several rounds in which the peers take turns, with ratios and goals, and writes
`artifacts/bench.json`. `docs/performance.md` has what was measured.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Callable, Mapping
from importlib.metadata import version
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from pyspark.sql import SparkSession

from benchmarks import graph_cases, peers, table_cases
from benchmarks.ceiling import CeilingDataSource
from benchmarks.frames import Bench
from benchmarks.harness import Case, Result, measure, print_result, write_json

PROJECT = Path(__file__).resolve().parents[1]
CASES: dict[str, Callable[[Bench], Case]] = {
    "scan": table_cases.scan,
    "append": table_cases.append,
    "projection": table_cases.projection,
    "lookup": table_cases.lookup,
    "tables": graph_cases.tables,
    "planning": graph_cases.planning,
    "whole_graph": graph_cases.whole_graph,
    "bulk": graph_cases.bulk,
}


def start_spark(folder: Path, more: Mapping[str, str] | None = None) -> SparkSession:
    """Start Spark with the settings of `conf/spark-defaults.conf`, and more."""
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ["PYTHONPATH"] = os.pathsep.join(
        [str(PROJECT), *filter(None, [os.environ.get("PYTHONPATH")])]
    )
    builder = SparkSession.builder.master("local[2]").appName("omnigraph-bench")
    for line in (PROJECT / "conf" / "spark-defaults.conf").read_text("utf-8").splitlines():
        if line.strip() and not line.startswith("#"):
            key, value = line.split()
            builder = builder.config(key, value)
    for key, value in (more or {}).items():
        builder = builder.config(key, value)
    if peers.jar() is not None:
        builder = builder.config("spark.jars", peers.jar())
    spark = (
        builder.config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.memory", "4g")
        .config("spark.sql.warehouse.dir", str(folder / "warehouse"))
        .config("spark.local.dir", str(folder / "scratch"))
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    spark.dataSource.register(CeilingDataSource)
    return spark


def main() -> None:
    """Run the chosen cases."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rows", type=int, default=4_000_000, help="rows of the edge table")
    parser.add_argument("--rounds", type=int, default=3, help="measured rounds per peer")
    parser.add_argument("--only", default=",".join(CASES), help="comma list of " + ", ".join(CASES))
    parser.add_argument("--json", type=Path, default=PROJECT / "artifacts" / "bench.json")
    arguments = parser.parse_args()
    results: list[Result] = []
    with tempfile.TemporaryDirectory(prefix="omnigraph-bench-") as folder:
        spark = start_spark(Path(folder))
        try:
            for name in arguments.only.split(","):
                case = CASES[name](Bench(spark, Path(folder), arguments.rows))
                results.append(measure(case, arguments.rounds))
                print_result(results[-1])
        finally:
            spark.stop()
    versions = {
        name: version(name) for name in ("pyspark", "pylance", "pyarrow", "omnigraph-spark")
    }
    write_json(arguments.json, results, versions)
    print(
        f"\n{' '.join(f'{name} {number}' for name, number in versions.items())} -> {arguments.json}"
    )


if __name__ == "__main__":
    main()
