"""Drop or rename columns of a table in its next version, unpublished; metadata alone (driver).

Lance's Project with `max_retries=0` is refused over appends, overwrites and other changes of the
columns; over a delete, an index build or a change of settings it lands later, which its version
shows (PROTOCOL 11). Indices of a dropped column go with it, those of a renamed one stay.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from omnigraph_spark.errors import SchemaMismatchError
from omnigraph_spark.manifest.snapshot import TableEntry
from omnigraph_spark.storage import column_numbers
from omnigraph_spark.write.commit.table_head import Round, commit, contiguous, settle, strip
from omnigraph_spark.write.plan import TableTarget

if TYPE_CHECKING:
    from lance import LanceDataset


def reshape(round_: Round, target: TableTarget, entry: TableEntry) -> LanceDataset:
    """Commit a table without the columns that `target.renamed` maps to None, others renamed.

    Raises:
        StartOver: somebody else was first; nothing of this stays that another could adopt.
        SchemaMismatchError: a column isn't there any more, or its new name is taken.
        StorageError: the store failed.
    """
    from lance import LanceOperation

    place = (target.table_key, entry.location, target.table_branch, entry.table_version)
    head = strip(settle(round_, *place))
    names = head.schema.names
    for old, new in target.renamed:
        if old not in names or new in names:
            raise SchemaMismatchError(
                f"The columns of {target.table_key} were changed by somebody else meanwhile",
                expected=f"a column {old}" if old not in names else f"no column {new}",
                found=", ".join(names)[:300],
                hint="Nothing was changed. Look at the table, then call again",
                table_key=target.table_key,
                column=old,
            )
    kept = {old: new for old, new in target.renamed if new is not None}
    gone = [old for old, new in target.renamed if new is None]
    schema = (
        column_numbers.without_columns(head, gone)
        if gone
        else column_numbers.with_names(head, kept)
    )
    before = int(head.version)
    made = commit(head, before, LanceOperation.Project(schema), round_.publish_id, max_retries=0)
    return contiguous(made, before, round_.publish_id)
