"""What the checks of keys and edge ends cost: appends with `integrity` off, keys and strict.

Appends edges to a table of edges between nodes that are there, through Spark, the levels in turn,
each on a copy of the same graph. Ids come from the frame (`given`) or are made by the write
(`made`). The driver's memory is the largest Python process that worked meanwhile, the commit's
among them.

    python benchmarks/integrity.py --nodes 1000000 --edges 5000000 --new 1000000
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from pyspark.sql import DataFrame, SparkSession

from benchmarks.bench import start_spark
from benchmarks.harness import Case, Peer, measure, print_result
from omnigraph_spark.manifest.snapshot import load
from omnigraph_spark.storage.store import Storage

ENDS = "Knows: Person -> Person"


def edges(spark: SparkSession, first: int, rows: int, nodes: int, *, ids: bool) -> DataFrame:
    """Return a frame of edges between random nodes, numbered from `first`."""
    numbers = spark.range(first, first + rows, numPartitions=4)
    return numbers.selectExpr(
        *(["concat('edge-', lpad(id, 12, '0')) AS id"] if ids else []),
        f"concat('person-', abs(hash(id)) % {nodes}) AS src",
        f"concat('person-', abs(hash(id, 7)) % {nodes}) AS dst",
        "cast(id AS double) AS weight",
    )


def save(frame: DataFrame, uri: str, table: str, **options: str) -> None:
    """Append a frame to a table of the graph."""
    frame.write.format("omnigraph").options(table=table, **options).mode("append").save(uri)


def main() -> None:
    """Build the graph, then measure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=1_000_000)
    parser.add_argument("--edges", type=int, default=5_000_000)
    parser.add_argument("--new", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--index", action="store_true", help="BTREE indices on the ids")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="omnigraph-integrity-") as folder:
        spark = start_spark(Path(folder))
        origin = f"{folder}/origin"
        people = spark.range(args.nodes).selectExpr("concat('person-', id) AS id")
        save(people, origin, "node:Person")
        known = edges(spark, 0, args.edges, args.nodes, ids=True)
        save(known, origin, "edge:Knows", endpoints=ENDS)
        if args.index:
            build_indices(origin)
        for kind in ("given", "made"):
            new = edges(spark, args.edges, args.new, args.nodes, ids=kind == "given")
            result = measure(
                case(new, origin, folder, args.new, f"append, ids {kind}"), args.rounds
            )
            print_result(result)
        spark.stop()


def build_indices(origin: str) -> None:
    """Index `id` of both tables and publish the versions, as the engine's own graphs have them."""
    from omnigraph_spark.manifest.publisher import Publish, publish
    from omnigraph_spark.manifest.rows import VersionRow
    from omnigraph_spark.storage.ids import new_ulid

    storage = Storage.at(origin)
    for key, entry in load(storage).tables.items():
        dataset = storage.dataset(entry.location)
        dataset.create_scalar_index("id", "BTREE", name="id_idx")
        row = VersionRow(key, int(dataset.version), None, entry.row_count)
        publish(storage, Publish("main", new_ulid(), (row,)))


def case(new: DataFrame, origin: str, folder: str, rows: int, name: str) -> Case:
    """Return the case of one frame: strict and keys beside off, each on a graph of its own."""

    def peer(level: str) -> Peer:
        target = f"{folder}/{level}"

        def prepare(number: int) -> None:
            shutil.rmtree(target, ignore_errors=True)
            shutil.copytree(origin, target)

        return Peer(level, lambda _: save(new, target, "edge:Knows", integrity=level), prepare)

    return Case(name, rows, (peer("strict"), peer("keys"), peer("off")))


if __name__ == "__main__":
    main()
