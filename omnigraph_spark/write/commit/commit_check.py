"""The check of keys and endpoints inside the rounds of a commit (rule 25), and its bad rows.

Runs on the driver, once per round, after dead writes were healed and before a table is committed.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from omnigraph_spark import _faults
from omnigraph_spark.errors import IntegrityError, OmnigraphError
from omnigraph_spark.integrity import cross_rows, rules, staged_columns
from omnigraph_spark.integrity.bad_records import BadRecords
from omnigraph_spark.integrity.cross_rows import Verdict
from omnigraph_spark.integrity.round_rows import ALL, NOTHING, SAME_IDS, Question, TableWrite
from omnigraph_spark.integrity.rules import ENDPOINTS, STRICT
from omnigraph_spark.integrity.staged_columns import StagedFile
from omnigraph_spark.manifest.snapshot import Snapshot, TableEntry
from omnigraph_spark.schema.model import EngineSchema
from omnigraph_spark.schema.property_types import is_blob
from omnigraph_spark.storage.lance_errors import translated
from omnigraph_spark.write.commit.deletes import deleted_ids, refuse_unknown_ends
from omnigraph_spark.write.commit.table_head import Round, StartOver, commit, restore
from omnigraph_spark.write.plan import ALTER, MERGE, OVERWRITE, RESTORE, TableTarget, WritePlan
from omnigraph_spark.write.tasks.stage import StagedTable
from omnigraph_spark.write.tasks.upsert import ROW_IDS

if TYPE_CHECKING:
    from lance import LanceDataset

_log = logging.getLogger(__name__)


class CommitCheck:
    """The checks of one write, over all its rounds; `verdict` is the last round's."""

    def __init__(
        self,
        plan: WritePlan,
        by_table: Mapping[str, Sequence[StagedTable]],
        bad: BadRecords | None = None,
    ) -> None:
        self._plan = plan
        self._by_table = by_table
        self._files = {key: _files(plan.targets[key], staged) for key, staged in by_table.items()}
        self._may_repeat = any(
            _may_repeat(plan.targets[key], staged) for key, staged in by_table.items()
        )
        self._bad: BadRecords | None = bad
        if bad is None and plan.integrity.bad_records_path is not None:
            self._bad = BadRecords(
                plan.integrity.bad_records_path, plan.storage.options, plan.publish_id
            )
        self.verdict = Verdict()

    def without_bad(
        self, plan: WritePlan, by_table: Mapping[str, Sequence[StagedTable]]
    ) -> CommitCheck:
        """Return the check of what is left of an upsert; it writes to the same path."""
        return CommitCheck(plan, by_table, self._bad)

    def run(
        self,
        snapshot: Snapshot,
        touched: Iterable[str],
        schema: EngineSchema,
        *,
        again: bool = False,
    ) -> None:
        """Check the staged rows of the tables against the snapshot that is committed on.

        `schema` are the types that hold for its tables.

        Rows to set aside are in the path for bad records when this returns, beside those of this
        round that are there already (`again`).

        Raises:
            IntegrityError: rows break a rule, and aren't set aside, or edge tables end at a table
                that is dropped; nothing was committed.
            StorageError: the store failed, or there was no room to spill to.
            UnsupportedError: a rule that can't be checked here.
        """
        plan = self._plan
        if plan.mode == ALTER and plan.dropped:
            refuse_stranded(plan.dropped, snapshot, schema)
        # An upsert can't tell two rows of one id apart: at every level it must have one of each.
        upserts = plan.mode == MERGE and self._may_repeat
        if plan.mode == RESTORE or not (plan.integrity.checks_rows() or upserts):
            return
        if plan.mode == OVERWRITE and plan.integrity.level == STRICT:
            refuse_unknown_ends(touched, snapshot, schema, snapshot.tables)
        self.verdict = cross_rows.check(
            Question(
                storage=plan.storage,
                snapshot=snapshot,
                schema=plan.types.with_types(schema).with_types(plan.new_types),
                writes=tuple(
                    TableWrite(
                        key,
                        _replaces(plan),
                        self._files[key],
                        plan.targets[key].schema,
                        key in plan.integrity.made_ids,
                        partial(self._removed, key) if self._takes_out(key) else None,
                        plan.targets[key].before(),
                    )
                    for key in touched
                ),
                unique=plan.integrity.checks_rows(),
                strict=plan.integrity.checks_endpoints(),
                attached=plan.integrity.level == STRICT,
                set_aside=self._bad is not None,
                seen=self.verdict.seen,
            )
        )
        if self._bad is not None:
            self._write_bad(self._bad, again)
        _faults.point("commit.checked")

    def _takes_out(self, key: str) -> bool:
        return self._plan.merged_parent is not None or any(o.deletes for o in self._by_table[key])

    def _removed(self, key: str) -> Iterator[pa.Array]:
        """Yield the ids of the stored rows that the write takes out.

        Those of a merge of branches are all that it replaces or takes out.
        """
        target = self._plan.targets[key]
        gone = [part for part in self._by_table[key] if part.deletes or self._plan.merged_parent]
        if not any(part.matches for part in gone):
            return
        coordinates = (target.location, target.table_branch, target.version)
        by_table = {key: gone}
        yield from deleted_ids(
            self._plan.storage, self._plan.storage.dataset(*coordinates), by_table, key
        )

    def bad(self, table_key: str) -> pa.Table | None:
        """Return the rows of a table that this round sets aside, None where there are none."""
        return self.verdict.bad.get(table_key)

    def _write_bad(self, into: BadRecords, again: bool) -> None:
        if not again:
            into.remove()
        for key, bad in self.verdict.bad.items():
            schema = self._plan.targets[key].schema
            columns = [field.name for field in schema if not is_blob(field)]
            for (number, rule, column, expected), rows in _grouped(bad):
                file = self._files[key][number]
                for batch in staged_columns.take(self._plan.storage, file, schema, columns, rows):
                    into.add(key, rule, column, expected, batch)
        into.close()
        if self.verdict.bad:
            _log.warning(
                "write %s sets %d rows aside in %s",
                self._plan.publish_id,
                into.count,
                self._plan.integrity.bad_records_path,
            )


def drop_bad(
    made: LanceDataset,
    staged: Sequence[StagedTable],
    bad: pa.Table,
    round_: Round,
    entry: TableEntry | None,
) -> LanceDataset:
    """Delete rows that were set aside from the version that brought them; one version more.

    `entry` is the table as published, None where the write makes it.

    Raises:
        StartOver: another writer was first; the table is put back if it still can be.
        StorageError: the store failed; the same.
    """
    reached = int(made.version)
    try:
        with translated("Taking rows out of a table's new version"):
            operation = _deletion(made, staged, bad)
        done = commit(made, reached, operation, round_.publish_id, max_retries=0)
        if done.version != reached + 1:
            raise StartOver(f"rows were set aside at {done.version}, not at {reached + 1}")
        return done
    except (StartOver, OmnigraphError):
        with contextlib.suppress(StartOver, OmnigraphError):
            made.checkout_latest()
            if entry is not None and made.version == reached:
                restore(made, entry.table_version, round_.publish_id)
        raise


def _deletion(made: LanceDataset, staged: Sequence[StagedTable], bad: pa.Table) -> Any:
    from lance import LanceOperation

    paths = [fragment["files"][0]["path"] for part in staged for fragment in part.fragments]
    rows = {
        paths[number]: bad.filter(pc.equal(bad["f"], number))["r"].to_pylist()
        for number in pc.unique(bad["f"]).to_pylist()
    }
    updated, gone = [], []
    for fragment in made.get_fragments():
        offsets = rows.get(fragment.data_files()[0].path)
        if offsets is None:
            continue
        left = fragment.delete_rows(offsets)
        if left is None:
            gone.append(fragment.fragment_id)
        else:
            updated.append(left)
    return LanceOperation.Delete(updated, gone, "rows that badRecordsPath sets aside")


def _replaces(plan: WritePlan) -> str:
    return {OVERWRITE: ALL, MERGE: SAME_IDS}.get(plan.mode, NOTHING)


def _may_repeat(target: TableTarget, staged: Iterable[StagedTable]) -> bool:
    """Return whether an upsert's new rows may have an id twice: not within one file of one chunk.

    The stored rows that its tasks matched are compared before the rounds.
    """
    new = [f for part in staged for f in part.fragments if ROW_IDS not in f]
    return len(new) > (1 if target.mode == MERGE else 0)


def _files(target: TableTarget, staged: Iterable[StagedTable]) -> tuple[StagedFile, ...]:
    return tuple(
        StagedFile(target.data.removesuffix("/data"), fragment["physical_rows"], file, part.fields)
        for part in staged
        for fragment in part.fragments
        for file in fragment["files"][:1]
    )


def _grouped(bad: pa.Table) -> list[tuple[tuple[int, str, str, str], list[int]]]:
    """Return the rows to set aside, ascending, by file, rule, column and what was expected."""
    grouped = bad.group_by(["f", "rule", "col", "expected"]).aggregate([("r", "list")]).to_pylist()
    return [
        ((row["f"], row["rule"], row["col"], row["expected"]), sorted(row["r_list"]))
        for row in grouped
    ]


def refuse_stranded(dropped: Collection[str], snapshot: Snapshot, schema: EngineSchema) -> None:
    """Refuse to drop node tables at which edge tables end that stay.

    Raises:
        CorruptManifestError: it isn't known where the edges of a table that stays end.
        IntegrityError: names the edge tables.
    """
    refuse_unknown_ends(dropped, snapshot, schema, staying=set(snapshot.tables) - set(dropped))
    for key in sorted(dropped):
        edges = {edge for edge, _ in rules.edges_at(schema, key)}
        left = sorted(edge for edge in edges - set(dropped) if edge in snapshot.tables)
        if left:
            raise IntegrityError(
                f"{key} can't be dropped: {len(left)} edge tables end there",
                expected="no edge table that ends there, or all of them dropped in the same call",
                found=", ".join(left[:10]),
                hint="Nothing was dropped. Name those tables in the same drop_table",
                table_key=key,
                rule=ENDPOINTS,
                samples=left[:10],
            )
