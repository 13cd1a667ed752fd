"""Measure lance-spark beside Spark's Parquet, on whichever Spark its jar is for.

Where there is no jar of lance-spark for the Spark that this package runs on, two ratios can still
be compared: lance-spark to Parquet on the older Spark, and omnigraph to Parquet on the newer one
(`bench.py`). Runs in an environment with that pyspark, and psutil.

    python benchmarks/lance_spark.py --jar lance-spark-bundle-3.5_2.12-0.0.14.jar --rows 4000000
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from benchmarks.harness import Case, Peer, measure, print_result

TASKS = 4


def edges(spark: SparkSession, rows: int) -> DataFrame:
    """Return the edges of `frames.py`, which needs a Spark with Python sources."""
    number = F.col("number")
    return (
        spark.range(0, rows, 1, TASKS)
        .withColumnRenamed("id", "number")
        .select(
            F.lpad(number.cast("string"), 13, "e").alias("id"),
            F.lpad((number % 50_021).cast("string"), 9, "n").alias("src"),
            F.lpad((number % 49_999).cast("string"), 9, "n").alias("dst"),
            (number / 3).alias("weight"),
            F.date_add(F.lit("2020-01-01"), (number % 2_000).cast("int")).alias("since"),
        )
    )


def main() -> None:
    """Write and scan the edges with both."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jar", required=True)
    parser.add_argument("--catalog", default="com.lancedb.lance.spark.LanceNamespaceSparkCatalog")
    parser.add_argument("--rows", type=int, default=4_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    asked = parser.parse_args()
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    with tempfile.TemporaryDirectory(prefix="lance-spark-") as folder:
        spark = (
            SparkSession.builder.master("local[2]")
            .config("spark.jars", asked.jar)
            .config("spark.ui.enabled", "false")
            .config("spark.driver.memory", "4g")
            .config("spark.sql.catalog.lance", asked.catalog)
            .config("spark.sql.catalog.lance.impl", "dir")
            .config("spark.sql.catalog.lance.root", f"{folder}/lance")
            .getOrCreate()
        )
        spark.sparkContext.setLogLevel("ERROR")
        frame = edges(spark, asked.rows).cache()
        frame.count()
        parquet = f"{folder}/1.parquet"

        def write(kind: str, number: int) -> None:
            if kind == "lance":
                frame.writeTo(f"lance.default.edges{number}").create()
            else:
                frame.write.parquet(f"{folder}/{number}.parquet")

        def scan(kind: str) -> None:
            lance = kind == "lance"
            read = spark.table("lance.default.edges1") if lance else spark.read.parquet(parquet)
            read.write.format("noop").mode("overwrite").save()

        print(f"Spark {spark.version}")
        for name, peers in (
            ("append", [Peer(k, lambda n, k=k: write(k, n)) for k in ("lance", "parquet")]),
            ("scan", [Peer(k, lambda _, k=k: scan(k)) for k in ("lance", "parquet")]),
        ):
            print_result(measure(Case(name, asked.rows, tuple(peers)), asked.rounds))
        spark.stop()


if __name__ == "__main__":
    main()
