"""Commit one table's part of a write to its dataset, unpublished; drift-safe (rules 11 to 20).

Runs on the driver, once per table and round. Each version that is made must be exactly one more
than the last; what is published is the last one. A round that loses puts its tables back
(`put_back`).
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from omnigraph_spark import _faults
from omnigraph_spark.errors import OmnigraphError, UnsupportedError
from omnigraph_spark.manifest.rows import OURS, VersionRow
from omnigraph_spark.manifest.snapshot import TableEntry
from omnigraph_spark.refs import forks
from omnigraph_spark.schema.model import SYSTEM_COLUMNS
from omnigraph_spark.storage import column_numbers, layout
from omnigraph_spark.storage.lance_errors import (
    DatasetNotFoundError,
    Outcome,
    outcome_of,
    translated,
    typed,
)
from omnigraph_spark.storage.layout import BY_LANCES_NAME
from omnigraph_spark.write.commit import added_columns, commit_check, updates
from omnigraph_spark.write.commit.added_columns import reshape
from omnigraph_spark.write.commit.table_head import (
    Round,
    StartOver,
    commit,
    contiguous,
    is_clean,
    owner_of,
    restore,
    settle,
    settle_absent,
    strip,
)
from omnigraph_spark.write.plan import ALTER, OVERWRITE, RESTORE, TableTarget
from omnigraph_spark.write.tasks.stage import StagedTable
from omnigraph_spark.write.tasks.upsert import lance_fragments

if TYPE_CHECKING:
    from lance import LanceDataset

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Moved:
    """A table whose dataset this round has moved: from `before` (0: nothing) to `version`."""

    table_key: str
    location: str
    table_branch: str | None
    before: int
    version: int
    row_count: int
    rows_added: int
    rows_removed: int
    schema: pa.Schema = field(default_factory=lambda: pa.schema([]))

    def rows(self, storage_metadata: dict[str, Any], ours: dict[str, Any]) -> list[VersionRow]:
        """Return the version row, and one for each version that was skipped (rule 9)."""
        metadata = {
            **storage_metadata,
            OURS: {**ours, "rows_added": self.rows_added, "rows_removed": self.rows_removed},
        }
        numbers: list[int | None] = [None]
        if self.before:
            numbers += range(self.before + 1, self.version)
        return [
            VersionRow(
                self.table_key, self.version, self.table_branch, self.row_count, metadata, number
            )
            for number in numbers
        ]


def commit_table(
    round_: Round,
    target: TableTarget,
    entry: TableEntry | None,
    floor: int,
    staged: Sequence[StagedTable],
    bad: pa.Table | None = None,
) -> Moved:
    """Commit the staged fragments of one table on its pinned version.

    `entry` is the table in the round's snapshot, None where it has no live version; `floor` the
    highest version or tombstone that the key ever had; `bad` are staged rows to leave out again.

    Raises:
        StartOver: another writer was first; nothing of this table stays that another write could
            adopt.
        SchemaMismatchError: the table's schema isn't the one the fragments were staged under.
        UnsupportedError: a leftover of another program is in the way.
        StorageError: the store failed; what was committed is unpublished and healed by a later
            write.
    """
    added = sum(part.rows for part in staged)
    _faults.point("table.before_commit")
    if target.restore_to is not None:
        dataset = _restore(round_, target, entry, floor)
    elif target.mode == ALTER and target.has_new_columns and entry is not None:
        dataset = reshape(round_, target, entry)
    elif entry is None:
        dataset = _create(round_, target, floor, staged)
    else:
        dataset = _extend(round_, target, entry, staged)
    replaced = target.mode in (OVERWRITE, RESTORE)
    _faults.point("table.after_commit")
    if bad is not None:
        dataset = commit_check.drop_bad(dataset, staged, bad, round_, entry)
        added -= bad.num_rows
    with translated(f"Counting the rows of {target.table_key}"):
        row_count = int(dataset.count_rows())
    if target.restore_to is None:
        new = missing(target.table_key, dataset, entry.row_count if entry else 0, row_count)
        dataset = _build_indexes(dataset, _shared(round_, new), round_, entry)
    return Moved(
        target.table_key,
        target.location,
        target.table_branch,
        entry.table_version if entry else 0,
        int(dataset.version),
        row_count,
        row_count if target.restore_to is not None else added,
        entry.row_count
        if entry and replaced
        else updates.replaced_rows(staged, entry, row_count - added),
        dataset.schema,
    )


def put_back(round_: Round, moved: Moved, schema: pa.Schema) -> None:
    """Take a table back to where the round found it, if its head is still this round's (UNDO).

    Raises:
        StartOver, StorageError: it couldn't be; a later write waits for the grace and heals it.
    """
    from lance import LanceOperation

    _faults.point("commit.before_undo")
    head = round_.storage.dataset(moved.location, moved.table_branch)
    # A rival that landed above and took itself back leaves a Restore of this round's version.
    if not is_clean(head, moved.version):
        return
    # A branch that was made again under the name has versions of the same numbers.
    if owner_of(head) not in (None, round_.publish_id):
        return
    if moved.before:
        restore(head, moved.before, round_.publish_id)
        return
    empty = LanceOperation.Overwrite(schema, [])
    commit(head, int(head.version), empty, round_.publish_id, undo=True, max_retries=0)


def is_put_back(round_: Round, target: TableTarget, entry: TableEntry) -> bool:
    """Put a table back whose head is this write's and unpublished, if a lost round couldn't.

    Returns False where it stays ahead: then the write's crash record must stay too, or the engine's
    next insert would adopt the head (format.md, "Crash records").
    """
    pinned = entry.table_version
    try:
        head = round_.storage.dataset(entry.location, target.table_branch)
        if head.version > pinned and not is_clean(head, pinned):
            if owner_of(head) != round_.publish_id:
                return True
            restore(head, pinned, round_.publish_id)
    except DatasetNotFoundError:
        return True
    except (StartOver, OmnigraphError) as error:
        _log.warning("%s could not be put back to %d: %s", target.table_key, pinned, error)
        return False
    return True


def manifest_metadata(round_: Round, moved: Moved) -> dict[str, Any]:
    """Return the engine's part of a version row's metadata (format.md, "`__manifest` rows").

    The engine opens tables through it, this connector never does.
    """
    return dataset_metadata(round_, moved.location, moved.table_branch, moved.version)


def dataset_metadata(
    round_: Round, location: str, table_branch: str | None, version: int
) -> dict[str, Any]:
    """Return path, size, e_tag and naming scheme of a dataset version's manifest file."""
    storage = round_.storage
    line = location if table_branch is None else f"{location}/tree/{table_branch}"
    folder = f"{line}/_versions"
    named = ((layout.v2_manifest_name(version), "V2"), (f"{version}.manifest", "V1"))
    for name, scheme in named:
        info = storage.head(f"{folder}/{name}")
        if info is not None:
            return {
                "manifest_path": storage.object_path(f"{folder}/{name}"),
                "manifest_size": info.size,
                "e_tag": info.e_tag,
                "naming_scheme": scheme,
            }
    raise DatasetNotFoundError(f"Version {version} of {location} has no manifest file")


def _extend(
    round_: Round,
    target: TableTarget,
    entry: TableEntry,
    staged: Sequence[StagedTable],
) -> LanceDataset:
    """Append to, or overwrite, a table that has a published version."""
    pinned = entry.table_version
    head = settle(round_, target.table_key, entry.location, target.table_branch, pinned)
    if round_.format.publishes_restores and head.version != pinned:
        # Whoever publishes that head meanwhile would find this write's above it, and wait for it.
        raise StartOver(f"{target.table_key} was taken back to {pinned} meanwhile")
    head = strip(head)
    first = int(head.version)
    head = added_columns.reshaped(round_, target, head)
    try:
        return _extended(round_, target, entry, staged, head)
    except (StartOver, OmnigraphError):
        if head.version > first:
            _go_back(head, int(head.version), round_, pinned)
        raise


def _extended(
    round_: Round,
    target: TableTarget,
    entry: TableEntry,
    staged: Sequence[StagedTable],
    head: LanceDataset,
) -> LanceDataset:
    from lance import LanceOperation

    pinned = entry.table_version
    schema = added_columns.schema_with(target, head)
    fragments = added_columns.fitted(
        round_.storage, target, staged, column_numbers.of_schema(schema)
    )
    round_.files_used |= bool(fragments)
    if target.mode != OVERWRITE:
        wide = added_columns.add(round_, head, schema)
        changed = wide is not head or bool(target.renamed)
        if changed and not fragments and not any(part.matches for part in staged):
            return wide
        made = wide
        for operation in updates.operations(round_.storage, wide, staged, fragments):
            if round_.format.publishes_restores:
                operation = _strict(made, operation)
            made = _step(made, operation, round_, int(wide.version), pinned)
        return made
    before, indexes = int(head.version), _shared(round_, dropped_by_overwrite(head))
    replaced = LanceOperation.Overwrite(schema, fragments)
    made = commit(head, before, replaced, round_.publish_id, max_retries=0)
    made = contiguous(made, before, round_.publish_id)
    return _build_indexes(made, indexes, round_, entry)


def _strict(head: LanceDataset, operation: Any) -> Any:
    """Return an append as an operation that is refused over any other change (rule 13).

    Where taking back costs a published commit, it is better not to land above another writer.
    """
    from lance import LanceOperation

    if not isinstance(operation, LanceOperation.Append):
        return operation
    fragments = [fragment.metadata for fragment in head.get_fragments()]
    return LanceOperation.Merge([*fragments, *operation.fragments], head.lance_schema)


def _step(
    head: LanceDataset, operation: Any, round_: Round, first: int, pinned: int
) -> LanceDataset:
    """Commit one operation; where it isn't the one on `first` and fails, the table goes back."""
    before = int(head.version)
    try:
        strict = type(operation).__name__ == "Merge"
        retries: dict[str, Any] = {"max_retries": 0} if strict else {}
        made = commit(head, before, operation, round_.publish_id, **retries)
        return contiguous(made, before, round_.publish_id)
    except (StartOver, OmnigraphError):
        if before > first:
            _go_back(head, before, round_, pinned)
        raise


def _go_back(head: LanceDataset, reached: int, round_: Round, pinned: int) -> None:
    """Undo versions of this write up to `reached`, if nobody has built on them."""
    with contextlib.suppress(StartOver, OmnigraphError):
        head.checkout_latest()
        if head.version == reached:
            restore(head, pinned, round_.publish_id)


def _restore(
    round_: Round, target: TableTarget, entry: TableEntry | None, floor: int
) -> LanceDataset:
    """Give a table the content of an older version again; a dropped one above its tombstone."""
    coordinates = (target.table_key, target.location, target.table_branch)
    assert target.restore_to is not None
    if entry is not None:
        head = settle(round_, *coordinates, entry.table_version)
        return restore(strip(head), target.restore_to, round_.publish_id)
    made = restore(settle_absent(round_, *coordinates, floor), target.restore_to, round_.publish_id)
    return _above(floor, made, round_)


def _above(floor: int, made: LanceDataset, round_: Round) -> LanceDataset:
    """Return the same content at a version above a tombstone, which can lie above HEAD."""
    while made.version <= floor:
        made = restore(made, int(made.version), round_.publish_id)
    return made


def _create(
    round_: Round,
    target: TableTarget,
    floor: int,
    staged: Sequence[StagedTable],
) -> LanceDataset:
    """Make the first version of a table, or replace what a dead creator or a dropped table left."""
    from lance import LanceOperation

    expected = column_numbers.of_new(target.schema)
    fragments: list[Any] = []
    for part in staged:
        column_numbers.check(target.table_key, part.fields, expected)
        fragments += lance_fragments(round_.storage, part.fragments, part.matches)
    if target.table_branch is not None:
        began = forks.ensure_new_table_fork(
            round_.storage,
            target.location,
            target.table_branch,
            target.schema,
            round_.grace_seconds,
        )
        floor = max(floor, began)
    try:
        head = settle_absent(round_, target.table_key, target.location, target.table_branch, floor)
    except DatasetNotFoundError:
        return _first_version(round_, target, fragments)
    if not head.has_stable_row_ids:
        raise UnsupportedError(
            f"The folder of {target.table_key} holds a dataset without stable row ids",
            expected="none, or one that this connector or the engine made",
            found=round_.storage.uri(target.location),
            hint="Move it away, then write again",
        )
    head = strip(head)
    before = int(head.version)
    round_.files_used |= bool(fragments)
    replaced = LanceOperation.Overwrite(target.schema, fragments)
    made = commit(head, before, replaced, round_.publish_id, max_retries=0)
    made = contiguous(made, before, round_.publish_id)
    for part in staged:
        column_numbers.check(target.table_key, part.fields, column_numbers.of_dataset(made))
    return _above(floor, made, round_)


def _first_version(round_: Round, target: TableTarget, fragments: list[Any]) -> LanceDataset:
    """Create the dataset in one strict commit: of several creators one succeeds (rule 20).

    Lance's `mode="create"`, and a commit with retries, silently overwrite a faster creator's.
    """
    from lance import LanceOperation

    storage = round_.storage
    round_.files_used |= bool(fragments)
    made = commit(
        storage.dataset_uri(target.location),
        0,
        LanceOperation.Overwrite(target.schema, fragments),
        round_.publish_id,
        max_retries=0,
        storage_options=storage.lance_options(),
        enable_stable_row_ids=True,
        enable_v2_manifest_paths=True,
    )
    return contiguous(made, 0, round_.publish_id)


def _shared(
    round_: Round, indexes: Sequence[tuple[str, Any, str]]
) -> Sequence[tuple[str, Any, str]]:
    """Return the indices that a write may build: those that the graph's engines can use.

    A BTREE of this Lance is one that newer engines pass over, and build again with `optimize`.
    """
    if not round_.format.has_identities:
        return indexes
    return [index for index in indexes if index[1] != "BTREE"]


def _build_indexes(
    made: LanceDataset,
    indexes: Sequence[tuple[str, Any, str]],
    round_: Round,
    entry: TableEntry | None,
) -> LanceDataset:
    """Build indices, one version each; undo the write to a table that is there if one isn't next.

    What is left of a new table is replaced by the next round, or by whoever makes the table.
    """
    for index in indexes:
        reached = int(made.version)
        try:
            _build_index(made, *index)
        except (StartOver, OmnigraphError):
            if entry is not None:
                _go_back(made, reached, round_, entry.table_version)
            raise
    return made


def _build_index(made: LanceDataset, name: str, kind: Any, column: str) -> None:
    before = int(made.version)
    try:
        made.create_scalar_index(column, kind, name=name, replace=True)
    except (OSError, ValueError, RuntimeError) as error:
        if outcome_of(error) in (Outcome.CONFLICT, Outcome.UNKNOWN):
            raise StartOver(str(error)) from error
        raise typed(error, f"Building index {name}") from error
    if made.version != before + 1:
        raise StartOver(f"an index landed at {made.version}, not at {before + 1}")


def quietly_put_back(round_: Round, moved: Sequence[Moved], schemas: dict[str, pa.Schema]) -> None:
    """Put back all tables of a lost round; what can't be is logged and healed by a later write."""
    for table in reversed(moved):
        try:
            put_back(round_, table, schemas[table.table_key])
        except (StartOver, OmnigraphError) as error:
            _log.warning("%s could not be put back to %d: %s", table.table_key, table.before, error)


WORTH_ROWS = 20_000
MOST_ROWS = 1_000_000


def missing(
    table_key: str, made: LanceDataset, before: int, now: int
) -> list[tuple[str, str, str]]:
    """Return (name, type, column) of the indices that this write is to build; mostly none.

    `before` and `now` are the table's rows as published and as committed.
    """
    if not before < WORTH_ROWS <= now:
        return []
    kind, _ = layout.split_table_key(table_key)
    with translated(f"Listing the indices of {table_key}"):
        indexed = {tuple(index.field_names) for index in made.describe_indices()}
    indexes = [(f"{c}_idx", "BTREE", c) for c in SYSTEM_COLUMNS[kind] if (c,) not in indexed]
    if indexes and now > MOST_ROWS:
        _log.info(
            "%s has %d rows: no index is built for so many within a write (OmniGraph.create_index)",
            table_key,
            now,
        )
        return []
    return indexes


def dropped_by_overwrite(head: LanceDataset) -> list[tuple[str, str, str]]:
    """Return (name, type, column) of the indices that an overwrite drops and can build again."""
    dropped = []
    with translated("Listing the indices of a table"):
        present = head.describe_indices()
    for index in present:
        kind = BY_LANCES_NAME.get(str(index.index_type))
        if kind is None or len(index.field_names) != 1:
            _log.warning(
                "index %s (%s) is not built again by an overwrite", index.name, index.index_type
            )
            continue
        dropped.append((str(index.name), kind, str(index.field_names[0])))
    return dropped
