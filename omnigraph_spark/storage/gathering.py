"""Put the rows of small fragments that stand together into one: a commit, and one file.

Lance's own compaction reads every file again and makes two versions, since it reserves the ids of
the new fragments for the indices. Where a dataset has none, its fragments get their ids in the
commit itself, and rows that this process has read needn't be read again (but for those with stable
ids, which they keep). The commit is the same (`Rewrite`): it loses against whoever changes one of
the old fragments, and whoever does so later loses against it (rule 28).
"""

from __future__ import annotations

import json
from itertools import groupby
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from omnigraph_spark.storage import kept_rows, lance_messages

if TYPE_CHECKING:
    from lance import LanceDataset


def gathered(dataset: LanceDataset, below: int, *, newest: bool = False) -> bool:
    """Gather runs of fragments of fewer rows than `below`; False: this dataset is Lance's to do.

    With `newest` nothing is gathered unless the newest fragment is: whoever publishes by changing a
    row of it then collides with this commit, and doesn't land above it under a number of before.

    Untranslated errors; a conflict leaves everything as it was, and a file that nobody names.
    """
    import lance
    from lance import LanceOperation

    if dataset.describe_indices():
        return False
    fragments = dataset.get_fragments()
    runs = [
        [*members]
        for is_small, members in groupby(fragments, lambda one: bool(one.metadata.num_rows < below))
        if is_small
    ]
    runs = [run for run in runs if len(run) > 1]
    if newest and (not runs or runs[-1][-1].fragment_id != fragments[-1].fragment_id):
        return True
    groups = []
    for run in runs:
        made = _made(dataset, run)
        if made is None:
            return False
        groups.append(LanceOperation.RewriteGroup([one.metadata for one in run], made))
    if groups:
        rewrite = LanceOperation.Rewrite(groups, [])
        lance.LanceDataset.commit(dataset, rewrite, read_version=int(dataset.version))
    return True


def _made(dataset: LanceDataset, run: list[Any]) -> list[Any] | None:
    """Write the rows of a run into one file, with their ids where those are stable."""
    from lance import FragmentMetadata
    from lance.fragment import write_fragments

    ids = None
    if dataset.has_stable_row_ids:
        scanner = dataset.scanner(
            columns=dataset.schema.names, fragments=run, with_row_id=True, scan_in_order=True
        )
        rows = scanner.to_table()
        ids = rows["_rowid"].to_numpy()
        rows = rows.drop_columns(["_rowid"])
    else:
        rows = _rows(dataset, run)
    if rows.num_rows != sum(one.metadata.num_rows for one in run):
        return None
    made = [*write_fragments(rows, dataset, mode="append")] if rows.num_rows else []
    if ids is None or not made:
        return made
    if len(made) > 1:
        return None
    plain = made[0].to_json()
    plain["row_id_meta"] = {"Inline": list(lance_messages.row_id_sequence(ids))}
    return [FragmentMetadata.from_json(json.dumps(plain))]


def _rows(dataset: LanceDataset, run: list[Any]) -> pa.Table:
    """Return all columns of fragments, as the dataset has them."""
    kept = kept_rows.read(dataset, run, dataset.schema.names, keep=False)
    return pa.concat_tables([one.rows.cast(dataset.schema) for one in kept])
