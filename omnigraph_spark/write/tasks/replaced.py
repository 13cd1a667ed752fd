"""`replaceWhere`: refuse rows outside the predicate, and find the rows that it replaces.

The predicate is in Lance's SQL, so stored rows and new ones are judged by the same engine. New rows
are judged on executors, a batch at a time in memory; stored ones on the driver, in each round.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from omnigraph_spark.errors import IntegrityError
from omnigraph_spark.schema.property_types import is_blob
from omnigraph_spark.storage.lance_errors import translated
from omnigraph_spark.write.plan import NO_ROWS, TableTarget
from omnigraph_spark.write.tasks import matches
from omnigraph_spark.write.tasks.matches import Addresses, Match

if TYPE_CHECKING:
    from lance import LanceDataset

_SAMPLES = 10
_RULE = "replaceWhere"


def refuse_outside(target: TableTarget, rows: pa.RecordBatch) -> None:
    """Refuse rows for which the predicate of a write isn't true; NULL isn't.

    Raises:
        IntegrityError: there are such rows; names their ids.
        StorageError: Lance can't judge them.
    """
    if not target.replaces or not rows.num_rows:
        return
    outside = rows.column("id") if target.replaces == NO_ROWS else _outside(target, rows)
    if not len(outside):
        return
    samples = outside.slice(0, _SAMPLES).to_pylist()
    raise IntegrityError(
        f"Rows for {target.table_key} are outside of replaceWhere: {len(outside)}",
        expected="rows for which the predicate is true",
        found=f"ids {', '.join(map(repr, samples[:3]))}",
        hint="Filter the frame by the same predicate, or widen it. A row for which it is NULL is "
        "outside",
        table_key=target.table_key,
        rule=_RULE,
        samples=samples,
        count=len(outside),
    )


def _outside(target: TableTarget, rows: pa.RecordBatch) -> pa.Array:
    import lance

    names = [
        field.name
        for field in target.schema
        if field.name == "id" or (field.name in target.replaces and not is_blob(field))
    ]
    schema = pa.schema([target.schema.field(name).remove_metadata() for name in names])
    with translated("Judging rows by replaceWhere"):
        dataset = lance.write_dataset(
            pa.Table.from_batches([rows.select(names).cast(schema)]), "memory://", mode="create"
        )
        scanner = dataset.scanner(columns=["id"], filter=f"({target.replaces}) IS NOT TRUE")
        return scanner.to_table()["id"].combine_chunks()


def matching(dataset: LanceDataset, target: TableTarget) -> tuple[Match, ...]:
    """Return the stored rows of a table version that a write replaces.

    Raises:
        StorageError: the store failed.
    """
    none: Addresses = np.empty(0, dtype=np.uint64)
    if target.replaces == NO_ROWS:
        return ()
    with translated(f"Finding the rows of {target.table_key} that are replaced"):
        scanner = dataset.scanner(columns=[], filter=target.replaces, with_row_address=True)
        addresses = [
            batch.column("_rowaddr").to_numpy(zero_copy_only=False).astype(np.uint64)
            for batch in scanner.to_batches()
        ]
    return matches.of_addresses(np.concatenate([none, *addresses]), none)


def ids(dataset: LanceDataset, target: TableTarget) -> Iterator[pa.Array]:
    """Yield the ids of the stored rows that a write replaces, in batches.

    Raises:
        StorageError: the store failed.
    """
    if target.replaces == NO_ROWS:
        return
    with translated(f"Finding the rows of {target.table_key} that are replaced"):
        for batch in dataset.scanner(columns=["id"], filter=target.replaces).to_batches():
            yield batch.column("id")
