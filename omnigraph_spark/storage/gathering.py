"""Put the rows of small fragments that stand together into one: a commit, and one file.

Lance's own compaction reads every file again and makes two versions, since it reserves the ids of
the new fragments for the indices. Where a dataset has none, and row ids that are places, its
fragments get their ids in the commit itself, and rows that this process has read needn't be read
again. The commit is the same (`Rewrite`): it loses against whoever changes one of the old
fragments, and whoever does so later loses against it (rule 28).
"""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from omnigraph_spark.storage import kept_rows

if TYPE_CHECKING:
    from lance import LanceDataset


def gathered(dataset: LanceDataset, below: int) -> bool:
    """Gather runs of fragments of fewer rows than `below`; False: this dataset is Lance's to do.

    Untranslated errors; a conflict leaves everything as it was, and a file that nobody names.
    """
    import lance
    from lance import LanceOperation

    if dataset.has_stable_row_ids or dataset.describe_indices():
        return False
    runs = groupby(dataset.get_fragments(), lambda one: bool(one.metadata.num_rows < below))
    groups = []
    for is_small, members in runs:
        run = [*members]
        if not is_small or len(run) < 2:
            continue
        rows = _rows(dataset, run)
        if rows.num_rows != sum(one.metadata.num_rows for one in run):
            return False
        old = [one.metadata for one in run]
        groups.append(LanceOperation.RewriteGroup(old, _written(dataset, rows)))
    if groups:
        rewrite = LanceOperation.Rewrite(groups, [])
        lance.LanceDataset.commit(dataset, rewrite, read_version=int(dataset.version))
    return True


def _rows(dataset: LanceDataset, run: list[Any]) -> pa.Table:
    """Return all columns of fragments, as the dataset has them."""
    tables = kept_rows.read(dataset, run, dataset.schema.names, keep=False)
    return pa.concat_tables([table.cast(dataset.schema) for table in tables])


def _written(dataset: LanceDataset, rows: pa.Table) -> list[Any]:
    from lance.fragment import write_fragments

    return [*write_fragments(rows, dataset, mode="append")] if rows.num_rows else []
