"""Run the merges of tables on Spark: two jobs for all tables together, classic and Spark Connect.

The first reads what differs, brings rows of one id together and decides them; the second writes
what was decided. Rows travel as Arrow bytes, some thousands in one value, so that Spark moves few
and large rows and no value changes its type. The driver sees counts, staged fragments and samples,
and ids only while endpoints are checked, a bucket at a time.
"""

from __future__ import annotations

import json
import pickle
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from pyspark.sql import functions as sf
from pyspark.sql.functions import udf

from omnigraph_spark.merge import tables as merge_tables
from omnigraph_spark.merge.rules import Decision
from omnigraph_spark.merge.tables import Facts, Outcome, TableMerge
from omnigraph_spark.storage.progress import described
from omnigraph_spark.storage.store import Storage
from omnigraph_spark.write.plan import WritePlan
from omnigraph_spark.write.tasks import stage
from omnigraph_spark.write.tasks.stage import StagedTable

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_BUCKET_BYTES = 32 << 20
"""Of files, per bucket of ids: what a task holds in memory is a few times that."""
_PART = "struct<bucket: int, side: string, rows: binary>"
_CONFLICT = "struct<id: string, conflict: string, base: string, ours: string, theirs: string>"


class OnSpark:
    """Merges tables in Spark's tasks; `close` frees what the executors keep."""

    def __init__(self, spark: SparkSession, storage: Storage, merges: Sequence[TableMerge]) -> None:
        self._spark = spark
        self._storage = storage
        self._merges = tuple(merges)
        self._numbers = {merge.table_key: number for number, merge in enumerate(merges)}
        self._buckets = _buckets(spark, self._storage, self._merges).persist()

    def outcomes(self) -> dict[str, Outcome]:
        """Decide all tables; returns what each comes to. One job."""
        storage, merges = self._storage, self._merges

        def decide(number: int, parts: list[Any]) -> str:
            outcome = Outcome()
            outcome.add(_decided(storage, merges[number], parts))
            numbers = [outcome.taken, outcome.gone, outcome.settled]
            return json.dumps([*numbers, dict(outcome.conflicts), outcome.samples])

        decided = udf(decide, "string", useArrow=False)("merge", "parts")
        outcomes = {merge.table_key: Outcome() for merge in merges}
        with self._step("compare"):
            rows = self._buckets.select("merge", decided.alias("told")).collect()
        for row in rows:
            total = outcomes[merges[row["merge"]].table_key]
            taken, gone, settled, conflicts, samples = json.loads(row["told"])
            total.taken += taken
            total.gone += gone
            total.settled += settled
            total.conflicts.update(conflicts)
            total.samples += samples
        return outcomes

    def facts(self, key: str) -> Iterable[Facts]:
        """Return what edges have to know of a table, bucket by bucket."""
        storage, merges = self._storage, self._merges

        def tell(number: int, parts: list[Any]) -> bytes:
            facts = merge_tables.facts_of(merges[number], _decided(storage, merges[number], parts))
            return zlib.compress(pickle.dumps(facts), 1)

        packed = udf(tell, "binary", useArrow=False)("merge", "parts")
        these = self._buckets.where(sf.col("merge") == self._numbers[key])
        for row in these.select(packed.alias("told")).toLocalIterator():
            yield pickle.loads(zlib.decompress(row["told"]))

    def staged(self, plan: WritePlan) -> list[StagedTable]:
        """Write what the target's tables get as fragments; commits nothing. One job."""
        storage, merges = self._storage, self._merges

        def write(number: int, parts: list[Any]) -> str:
            merge = merges[number]
            if merge.table_key not in plan.targets:
                return "[]"
            decision = _decided(storage, merge, parts)
            return stage.to_json(merge_tables.staged_rows(plan, merge, decision))

        written = udf(write, "string", useArrow=False).asNondeterministic()("merge", "parts")
        with self._step("write"):
            rows = self._buckets.select(written.alias("told")).collect()
        return [table for row in rows for table in stage.from_json(row["told"])]

    def _step(self, step: str) -> AbstractContextManager[None]:
        tables = ", ".join(sorted(self._numbers))
        return described(self._spark, f"OmniGraph.merge: {step} {tables[:200]}")

    def conflicts(self) -> DataFrame:
        """Return the conflicts as a frame; evaluates nothing, and is good after `close` too."""
        storage, merges = self._storage, self._merges

        def tell(number: int, parts: list[Any]) -> list[Any]:
            return list(_decided(storage, merges[number], parts).conflicts)

        def named(number: int) -> str:
            return merges[number].table_key

        conflicts = udf(tell, f"array<{_CONFLICT}>", useArrow=False)("merge", "parts")
        rows = self._buckets.select(
            udf(named, "string", useArrow=False)("merge").alias("_table"),
            sf.explode(conflicts).alias("one"),
        )
        return rows.select("_table", "one.*")

    def close(self) -> None:
        """Free what the executors keep."""
        self._buckets.unpersist()


def _buckets(spark: SparkSession, storage: Storage, merges: Sequence[TableMerge]) -> DataFrame:
    """Return (merge, parts): the rows of some ids of a table, as parts of all its versions."""
    counts = [max(1, -(-merge.size() // _BUCKET_BYTES)) for merge in merges]

    def read(number: int, piece: int) -> list[tuple[int, str, bytes]]:
        merge = merges[number]
        rows = merge_tables.rows_of(storage, merge, [merge.pieces[piece]])
        return [
            (bucket, side, _packed(part))
            for side, table in rows.items()
            for bucket, part in _spread(table, counts[number])
        ]

    pieces = [(n, p) for n, merge in enumerate(merges) for p in range(len(merge.pieces))]
    frame = spark.createDataFrame(pieces, "merge int, piece int").repartition(max(1, len(pieces)))
    parts = udf(read, f"array<{_PART}>", useArrow=False)("merge", "piece")
    rows = frame.select("merge", sf.explode(parts).alias("part"))
    by_bucket = rows.groupBy("merge", sf.col("part.bucket").alias("bucket"))
    return by_bucket.agg(
        sf.collect_list(sf.struct("part.side", "part.rows")).alias("parts")
    ).select("merge", "parts")


def _spread(table: pa.Table, buckets: int) -> Iterator[tuple[int, pa.Table]]:
    """Yield the rows of each bucket of ids."""
    if not table.num_rows:
        return
    if buckets == 1:
        yield 0, table
        return
    ids = table["id"].cast(pa.binary()).to_pylist()
    places = np.fromiter(map(zlib.crc32, ids), dtype=np.uint32, count=len(ids)) % buckets
    order = np.argsort(places, kind="stable")
    ends = np.searchsorted(places[order], np.arange(buckets + 1))
    for bucket in range(buckets):
        rows = order[ends[bucket] : ends[bucket + 1]]
        if len(rows):
            yield bucket, table.take(pa.array(rows))


def _packed(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue())


def _decided(storage: Storage, merge: TableMerge, parts: Iterable[Any]) -> Decision:
    """Decide a bucket, in a task."""
    schema = merge_tables.columns(storage, merge)  # loads what blobs need, before they are unpacked
    by_side: dict[str, list[pa.Table]] = {side: [schema.empty_table()] for side in merge.sides}
    for part in parts:
        by_side[part["side"]].append(pa.ipc.open_stream(part["rows"]).read_all())
    rows = {side: pa.concat_tables(tables) for side, tables in by_side.items()}
    return merge_tables.decided(storage, merge, rows)
