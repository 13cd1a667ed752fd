"""One atomic publish of any number of tables: expectations, guards, compare-and-swap, retry.

Runs on the driver, once per round of a write. The rules are 3 to 10 of
docs/internals/protocol.md; what makes an expectation atomic is that the publish writes the
unchanged `table` row (the guard) of each table that it depends on again, in the same merge
(fact 22). Where the lineage is in `__manifest`, the row of the branch's head does that for all
tables at once.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from omnigraph_spark import _faults
from omnigraph_spark.errors import (
    BranchNotFoundError,
    CorruptManifestError,
    ExpectedVersionMismatch,
    OmnigraphError,
    OptionError,
    PublishOutcomeUnknown,
    RowLevelCasContention,
)
from omnigraph_spark.manifest import formats, identities, lineage, manifest_rows, schema_lock
from omnigraph_spark.manifest.formats import Format
from omnigraph_spark.manifest.manifest_rows import BATCH_MARK, batch_of
from omnigraph_spark.manifest.rows import (
    CommitRow,
    ManifestRow,
    TableRow,
    VersionRow,
    to_arrow,
)
from omnigraph_spark.manifest.schema_record import Onto
from omnigraph_spark.manifest.snapshot import (
    Snapshot,
    branch_ref,
    fold,
    of_tables,
    open_manifest,
)
from omnigraph_spark.manifest.writable import open_for_writing, take_back
from omnigraph_spark.storage import backoff, layout
from omnigraph_spark.storage.lance_errors import (
    DatasetNotFoundError,
    Outcome,
    is_panic,
    outcome_of,
    translated,
    typed,
)
from omnigraph_spark.storage.layout import Identity
from omnigraph_spark.storage.store import Storage

if TYPE_CHECKING:
    from lance import LanceDataset

PUBLISHER_RETRY_BUDGET = 5
_HANDLE_SECONDS = 60.0
_FIRST_PAUSE_SECONDS = 0.02
_LONGEST_PAUSE_SECONDS = 1.0
_MERGE_ERRORS = (OmnigraphError, OSError, ValueError, RuntimeError)

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Publish:
    """What is to be published in one step.

    `expected` maps table keys to the version that must be the published one (0: none); an empty map
    skips the check (best effort). `guards` are tables whose publishes by others must collide with
    this one, beside those that `changes` touches; a guard makes the loser look again, and what it
    must then find unchanged belongs into `expected`. `edge_tables` are the edge tables that there
    may be, for a publish that removes node ids: another one is new and wasn't looked at. With
    `txn_whole` a batch is done as soon as any table of the graph has its `txn`. `lock_holder` is
    who must hold the lock of schema changes. `identities` are the ids that the tables had, in
    formats that have them: one that was dropped and made again is another table, whatever version
    it is at. With `onto` it lands on that commit alone, and only where the lineage is in
    `__manifest`.
    """

    branch: str
    publish_id: str
    changes: tuple[ManifestRow, ...]
    expected: Mapping[str, int] = field(default_factory=dict)
    guards: frozenset[str] = frozenset()
    edge_tables: frozenset[str] | None = None
    txn: tuple[str, int] | None = None
    txn_whole: bool = False
    retries: int = PUBLISHER_RETRY_BUDGET
    branch_identifier: str | None = None
    actor: str | None = None
    merged_parent: str | None = None
    lock_holder: str | None = None
    identities: Mapping[str, Identity] = field(default_factory=dict)
    onto: Onto | None = None

    def touched(self) -> frozenset[str]:
        """Return the keys of the tables that get a new version or a tombstone."""
        return frozenset(r.table_key for r in self.changes if not isinstance(r, TableRow))


@dataclass(frozen=True)
class Published:
    """A publish that is in `__manifest`; `skipped`: its `txn` was there, nothing changed."""

    graph_version: int
    skipped: bool = False


def publish(storage: Storage, request: Publish, opened: LanceDataset | None = None) -> Published:
    """Publish `request` on its branch, at most `1 + retries` attempts, each from a fresh snapshot.

    `opened` is the branch's `__manifest` where the caller has it open for writing.

    Raises:
        ExpectedVersionMismatch: a table isn't where the caller expects it; nothing was published.
        RowLevelCasContention: others won every attempt; nothing was published.
        PublishOutcomeUnknown: the store never said whether it landed; nothing may be deleted.
        UnsupportedManifestVersion: the graph's stamp can't be written by this version.
        CorruptManifestError: the rows would not become the visible ones.
        RecoveryPendingError: the lock of its schema change was taken over; nothing was published.
        StorageError: the store failed before anything was published.
    """
    attempt = _Attempts(request)
    while True:
        try:
            done = _once(storage, request, attempt, opened)
        except OmnigraphError as error:
            final = attempt.ended(error)
            if final is error:
                raise
            raise final from error
        if done is not None:
            return done
        opened = None
        attempt.pause()


class _Attempts:
    """How many attempts were made and whether one of them may have landed."""

    def __init__(self, request: Publish) -> None:
        self._request = request
        self._made = 0
        self._unknown_version: int | None = None
        self._cause = ""

    def lost(self, error: BaseException) -> None:
        """Count an attempt that did not land, or may have; raise where the budget is used up."""
        self._made += 1
        self._cause = type(error).__name__
        if outcome_of(error) is Outcome.UNKNOWN:
            number = re.search(r"version (\d+)", str(error))
            self._unknown_version = int(number.group(1)) if number else 1 << 62
        if self._made <= self._request.retries:
            return
        if self._unknown_version is not None:
            raise self._unknown() from error
        raise RowLevelCasContention(
            f"Publish {self._request.publish_id} lost all {self._made} attempts to other publishes",
            expected="one attempt without a rival at the same tables",
            hint="Nothing was published. Write again, or raise commitRetries",
            attempts=self._made,
        ) from error

    def absent_at(self, version: int) -> None:
        """Note that this version is a rival's: the publish can't land there later."""
        if self._unknown_version is not None and version >= self._unknown_version:
            self._unknown_version = None

    def ended(self, error: OmnigraphError) -> OmnigraphError:
        """Return what to raise for an error that ends the publish."""
        if self._unknown_version is None:
            return error
        return error if isinstance(error, PublishOutcomeUnknown) else self._unknown()

    def _unknown(self) -> PublishOutcomeUnknown:
        return PublishOutcomeUnknown(
            self._request.publish_id, "the store did not answer the publish", cause=self._cause
        )

    def pause(self) -> None:
        """Wait, longer after each lost attempt, with jitter, so that rivals come apart."""
        _log.info("publish %s: attempt %d lost, trying again", self._request.publish_id, self._made)
        backoff.growing(self._made, _FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS)


def _once(
    storage: Storage, request: Publish, attempt: _Attempts, opened: LanceDataset | None
) -> Published | None:
    """Do one attempt; None where it lost and another is allowed."""
    manifest = open_for_writing(storage, request.branch, request.branch_identifier, opened=opened)
    began = time.monotonic()
    rows = manifest_rows.read(manifest)
    if rows.has_publish(request.publish_id):
        return found_in(manifest, request.publish_id)
    attempt.absent_at(manifest.version)
    if request.lock_holder is not None:  # whoever takes the lock over then makes a version
        schema_lock.check_held(storage, request.lock_holder)
    snapshot = fold(rows.current, request.branch, manifest.version)
    if request.txn is not None and check_txn(
        rows.batches, request.txn, request.touched(), request.txn_whole
    ):
        return Published(manifest.version, skipped=True)
    _check_expected(snapshot, request)
    graph_format = formats.of(manifest)
    own = _commit_row(rows.current, request, manifest) if graph_format.has_lineage else None
    new_rows = _arrow(graph_format, snapshot, request, own)
    _check_visible(rows.current, new_rows, request, manifest.version)
    if graph_format.has_identities:
        identities.refuse_unreadable(rows.current, new_rows, rows.holds)
    _faults.point("publish.before_merge")
    if time.monotonic() - began > _HANDLE_SECONDS:
        return None
    try:
        version = _merge(manifest, new_rows)
    except BaseException as error:  # a Rust panic is not an Exception (fact 16)
        if not isinstance(error, _MERGE_ERRORS) and not is_panic(error):
            raise
        if outcome_of(error) in (Outcome.CONFLICT, Outcome.UNKNOWN):
            attempt.lost(error)
            return None
        landed = _landed_all_the_same(storage, request, error)
        if landed is None:
            if isinstance(error, OmnigraphError):
                raise
            raise typed(error, "Publishing to __manifest") from error
        version = landed.graph_version
    if _is_below(storage, request, manifest, version):
        return None
    if own is not None and own.graph_version != version:
        _renumber(manifest, graph_format, own, version)
    _check_after(storage, request)
    return Published(version)


def _commit_row(rows: pa.Table, request: Publish, manifest: LanceDataset) -> CommitRow:
    """Return the commit of a publish on the version that was opened, its head the parent."""
    parent = lineage.head_of(rows)
    now = _now()
    created_at = now if parent is None else max(now, parent.created_at + 1)
    if request.onto is not None:
        if parent is None or parent.commit_id != request.onto.parent:
            raise RowLevelCasContention(
                f"Publish {request.publish_id} was to follow a commit that isn't the newest",
                expected=request.onto.parent,
                found=None if parent is None else parent.commit_id,
                hint="Nothing was published. Try again",
                attempts=1,
            )
        created_at = request.onto.created_at
    return CommitRow(
        request.publish_id,
        int(manifest.version) + 1,
        layout.lance_branch(request.branch),
        None if parent is None else parent.commit_id,
        created_at,
        request.merged_parent,
        request.actor,
    )


def _now() -> int:
    """Return the time in microseconds since the epoch."""
    return time.time_ns() // 1000


def _renumber(manifest: LanceDataset, graph_format: Format, own: CommitRow, version: int) -> None:
    """Give a commit the number of the version that it landed at; a failure is logged.

    Commits to `__manifest` that don't touch the row of a branch's head don't collide with a
    publish. Readers travel to the number that the commit says.
    """
    _log.warning("commit %s says %d and is at %d", own.commit_id, own.graph_version, version)
    row = to_arrow(
        [replace(own, graph_version=version)], {} if graph_format.has_identities else None
    )
    try:
        _merge(manifest, row)
    except BaseException as error:  # a Rust panic is not an Exception (fact 16)
        if not isinstance(error, _MERGE_ERRORS) and not is_panic(error):
            raise
        _log.warning("commit %s keeps a wrong number: %s", own.commit_id, error)


def _is_below(storage: Storage, request: Publish, manifest: LanceDataset, version: int) -> bool:
    """Return whether the publish landed below the newest version, which doesn't have it; undo that.

    So it is where the process slept between Lance's look at the versions and its own: a cleanup has
    freed the number meanwhile. Nobody has read that version as the branch's head.
    """
    try:
        newest = storage.newest_of(layout.MANIFEST, layout.lance_branch(request.branch))
        if newest is None:
            with translated("Reading the newest version of __manifest"):
                newest = int(manifest.latest_version)
        if newest <= version:
            return False
        head = storage.dataset(layout.MANIFEST, layout.lance_branch(request.branch))
        if manifest_rows.read(head).has_publish(request.publish_id):
            return False
        _log.warning("publish %s landed at %d, below %d", request.publish_id, version, newest)
        line = layout.line(layout.MANIFEST, request.branch)
        storage.delete(f"{line}/_versions/{layout.v2_manifest_name(version)}")
    except OmnigraphError as error:
        _log.warning("after publish %s: %s", request.publish_id, error)
        return False
    return True


def found_in(manifest: LanceDataset, publish_id: str) -> Published:
    """Return a publish whose rows are in an opened `__manifest`; never fails.

    Where older versions can't be read, the newest stands in for the one that it made: the publish
    is there, and nothing that fails here may say otherwise.
    """
    try:
        return Published(_version_of_publish(manifest, publish_id))
    except OmnigraphError as error:
        _log.warning("looking for the version of publish %s: %s", publish_id, error)
        return Published(int(manifest.version))


def _landed_all_the_same(
    storage: Storage, request: Publish, error: BaseException
) -> Published | None:
    """Return the publish if it is there although the merge ended in an error, else None.

    Lance says of most commits whether they landed; an error after the commit's own request, or a
    panic, says nothing about it.

    Raises:
        PublishOutcomeUnknown: `__manifest` can't be read either.
    """
    try:
        manifest = open_for_writing(storage, request.branch, request.branch_identifier)
        landed = manifest_rows.read(manifest).has_publish(request.publish_id)
    except BranchNotFoundError as second:
        raise _in_no_branch(storage, request) from second
    except OmnigraphError as second:
        raise PublishOutcomeUnknown(
            request.publish_id,
            "the publish failed, and __manifest can't be read to see whether it landed",
            cause=type(error).__name__,
        ) from second
    return found_in(manifest, request.publish_id) if landed else None


def _check_after(storage: Storage, request: Publish) -> None:
    """Look whether the branch that was published to is still there (rule 23).

    The publish has landed: whatever fails here says nothing against it.

    Raises:
        PublishOutcomeUnknown: the branch was deleted, and perhaps made again, while the publish
            ran; or the outcome is unknown.
    """
    try:
        _faults.point("publish.after_merge")
        if request.branch_identifier is None:
            return
        identifier = branch_ref(storage, request.branch).identifier
    except BranchNotFoundError:
        identifier = None
    except OmnigraphError as error:
        if request.branch_identifier is None:
            _log.warning("after publish %s: %s", request.publish_id, error)
            return
        raise PublishOutcomeUnknown(
            request.publish_id,
            f"its rows are written, and whether branch {request.branch} is still the one that was"
            " written to can't be read",
            cause=type(error).__name__,
        ) from error
    if identifier != request.branch_identifier:
        raise _in_no_branch(storage, request)


def _in_no_branch(storage: Storage, request: Publish) -> PublishOutcomeUnknown:
    """Return the error for a branch that is gone; one that has its name by now keeps nothing."""
    take_back(storage, request.branch, request.publish_id)
    return PublishOutcomeUnknown(
        request.publish_id, f"branch {request.branch} was deleted while it was published to"
    )


def _merge(manifest: LanceDataset, rows: pa.Table) -> int:
    """Merge rows by `object_id` in one commit and return the version it made (fact 21)."""
    _faults.point("publish.sending")
    (
        manifest.merge_insert("object_id")
        .when_matched_update_all()
        .when_not_matched_insert_all()
        .conflict_retries(0)
        .use_index(False)
        .execute(rows)
    )
    _faults.point("publish.landed")
    return int(manifest.version)


def _version_of_publish(manifest: LanceDataset, publish_id: str) -> int:
    """Return the first graph version that has the publish, going back from the newest."""
    version = int(manifest.version)
    while version > 1:
        try:
            with translated(f"Opening version {version - 1} of __manifest"):
                older = manifest.checkout_version(version - 1)
        except DatasetNotFoundError:  # cleaned away
            break
        if not manifest_rows.read(older).has_publish(publish_id):
            break
        version -= 1
    return version


def _check_expected(snapshot: Snapshot, request: Publish) -> None:
    expected = dict(request.expected)
    if request.edge_tables is not None:
        edges = (key for key in snapshot.tables if layout.is_edge(key))
        expected |= {key: 0 for key in edges if key not in request.edge_tables}
    for key in sorted(expected):
        actual = snapshot.version(key)
        if actual != expected[key]:
            raise ExpectedVersionMismatch(key, expected[key], actual)
    for key in sorted(request.identities.keys() & (request.touched() | expected.keys())):
        if snapshot.identities.get(key) != request.identities[key]:
            raise ExpectedVersionMismatch(key, expected.get(key, 0), snapshot.version(key))


def _arrow(
    graph_format: Format, snapshot: Snapshot, request: Publish, own: CommitRow | None
) -> pa.Table:
    """Return the rows that a publish merges, in the graph's format."""
    _refuse_unknown(snapshot, request)
    if own is None:
        return to_arrow([*_guards(snapshot, request), *request.changes])
    skipped = [r for r in request.changes if isinstance(r, VersionRow) and r.stands_for_skipped]
    rows = [row for row in request.changes if row not in skipped]
    pairs = identities.of_rows(snapshot.identities, rows) if graph_format.has_identities else None
    return to_arrow([*rows, *lineage.rows_of(own)], pairs)


def _guards(snapshot: Snapshot, request: Publish) -> list[TableRow]:
    """Return the guards; a table that the changes create brings its own `table` row."""
    new_tables = {r.table_key for r in request.changes if isinstance(r, TableRow)}
    guarded = (request.touched() | request.guards) - new_tables
    guards = [
        TableRow(key, snapshot.locations[key])
        for key in sorted(guarded)
        if key in snapshot.locations
    ]
    # That a table isn't there can be expected too; whoever makes it inserts the same row.
    guards += [
        TableRow(key, layout.table_location(key))
        for key in sorted(request.guards - new_tables - set(snapshot.locations))
        if request.expected.get(key) == 0
    ]
    return guards


def _refuse_unknown(snapshot: Snapshot, request: Publish) -> None:
    new_tables = {r.table_key for r in request.changes if isinstance(r, TableRow)}
    unknown = sorted(request.touched() - new_tables - set(snapshot.locations))
    if unknown:
        raise CorruptManifestError(
            f"{unknown[0]} gets a version and has no table row",
            expected="a table row among the changes",
        )


def _check_visible(rows: pa.Table, added: pa.Table, request: Publish, version: int) -> None:
    """Refuse a publish that would be acknowledged and invisible (rule 5)."""
    added = of_tables(added)
    rows = identities.of_same_tables(rows, added)
    remaining = rows.filter(pc.invert(pc.is_in(rows["object_id"], added["object_id"])))
    after = fold(
        pa.concat_tables([remaining, added.cast(remaining.schema)]), request.branch, version
    )
    for row in request.changes:
        if isinstance(row, VersionRow) and after.version(row.table_key) != row.table_version:
            # Made and dropped by others since the round began: its creator's number is used up.
            if request.expected.get(row.table_key) == 0:
                raise ExpectedVersionMismatch(row.table_key, 0, after.floors[row.table_key])
            raise CorruptManifestError(
                f"Version {row.table_version} of {row.table_key} would not become the visible one",
                expected=f"a version above {after.floors.get(row.table_key, 0)}",
                hint="Nothing was published",
            )


def is_published(storage: Storage, branch: str, txn: tuple[str, int]) -> bool:
    """Return whether a branch has a batch of an application, or a later one, on any table.

    Raises:
        GraphNotFoundError, BranchNotFoundError, StorageError: as the names say.
    """
    rows = manifest_rows.read(open_manifest(storage, branch)).batches
    return any(number >= txn[1] for _, number in _batches(rows, txn[0]))


def _batches(rows: pa.Table, app_id: str) -> list[tuple[str, int]]:
    """Return the table and the `txnVersion` of each row that names a batch of an application."""
    mentioning = pc.match_substring(rows["metadata"], BATCH_MARK)
    marked = rows.select(["table_key", "metadata"]).filter(pc.fill_null(mentioning, False))
    named = ((row["table_key"], batch_of(row["metadata"])) for row in marked.to_pylist())
    return [(key, batch[1]) for key, batch in named if batch is not None and batch[0] == app_id]


def check_txn(
    rows: pa.Table, txn: tuple[str, int], touched: frozenset[str], whole: bool = False
) -> bool:
    """Return whether every table of a write has this or a higher `txnVersion` of the application.

    With `whole` one table is enough: each batch of the application is one publish, and may be of
    other tables than the one before.

    Raises:
        OptionError: some of the tables have it and some don't.
    """
    app_id, number = txn
    published = {key for key, known in _batches(rows, app_id) if known >= number}
    if whole:
        return bool(published)
    having = sorted(published & touched)
    if having and len(having) < len(touched):
        raise OptionError(
            f"txnAppId {app_id!r} at version {number} was written to some of this write's tables",
            expected="all of them or none",
            found=", ".join(having),
            hint="Nothing was published. Use one txnAppId per set of tables, or OmniGraph.write",
        )
    return bool(having)
