"""Look what is wrong with a graph: everything that dead writers leave, and damage.

Runs on the driver and writes nothing. Most of what it finds is repaired by the next write to the
table or branch; `repair` does the same without a write.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from functools import partial
from typing import TYPE_CHECKING

from omnigraph_spark import schema as engine_schema
from omnigraph_spark.errors import OmnigraphError, UnsupportedError, VersionNotFoundError
from omnigraph_spark.history import runs
from omnigraph_spark.maintenance import logs, moved
from omnigraph_spark.manifest import crash_records, formats, known_types, migrations
from omnigraph_spark.manifest.snapshot import Snapshot, TableEntry, forget, load, open_main
from omnigraph_spark.refs import branches as branches_
from omnigraph_spark.refs import forks, property_files, ref_files, refs, tags
from omnigraph_spark.schema.model import EngineSchema
from omnigraph_spark.storage import layout, store
from omnigraph_spark.storage.lance_errors import DatasetNotFoundError, translated
from omnigraph_spark.storage.progress import as_html, as_text
from omnigraph_spark.storage.store import Storage
from omnigraph_spark.write import staging
from omnigraph_spark.write.commit.table_head import is_clean, owner_of

if TYPE_CHECKING:
    from lance import LanceDataset

UNREADABLE = "unreadable"
NEWER_STAMP = "newer_stamp"
HALF_MIGRATION = "half_migration"
FOREIGN_RECORD = "foreign_record"
CRASH_RECORD = "crash_record"
UNPUBLISHED_HEAD = "unpublished_head"
WRONG_ROW_COUNT = "wrong_row_count"
AUTO_CLEANUP = "auto_cleanup"
MOVED_BRANCH = "moved_branch"
SCHEMA_LOCK = "schema_lock"
LEFTOVER_FORK = "leftover_fork"
LEFTOVER_TAG = "leftover_tag"
HALF_BRANCH = "half_branch"
HALF_TAG = "half_tag"
TORN_REF = "torn_ref"
MISSING_REF = "missing_ref"
MISSING_VERSION = "missing_version"
SCHEMA_FILES = "schema_files"
UNKNOWN_TYPE = "unknown_type"
FORGOTTEN_PROPERTY = "forgotten_property"
MISSING_LINEAGE = "missing_lineage"
RUNNING_RUN = "running_run"
STAGING = "staging"
DAMAGED_LOG = "damaged_log"
_LINEAGES = (layout.GRAPH_COMMITS,)
_MADE_WITH = 2
"""Versions of `__manifest` that a branch has before its first write."""

_NAMES = ("kind", "place", "branch", "repairable", "what")


@dataclass(frozen=True)
class Finding:
    """Something that isn't as it should be.

    `kind` is one of this module's constants, `place` a table key, branch, file or id, `branch` the
    graph branch that it concerns; `what` is a sentence for a person. `repairable` says whether
    `repair` takes care of it.
    """

    kind: str
    place: str
    what: str
    repairable: bool
    branch: str = layout.MAIN


class Findings(list[Finding]):
    """A list of findings that shows itself as a table."""

    def __repr__(self) -> str:
        return as_text(self._title(), _NAMES, map(_row, self))

    def _repr_html_(self) -> str:
        return as_html(self._title(), _NAMES, map(_row, self))

    def _title(self) -> str:
        if not self:
            return "Nothing is wrong with the graph"
        return f"{len(self)} finding{'s' if len(self) > 1 else ''}"


def _row(finding: Finding) -> tuple[object, ...]:
    return (
        finding.kind,
        finding.place,
        finding.branch,
        "yes" if finding.repairable else "no",
        finding.what,
    )


def check(storage: Storage) -> list[Finding]:
    """Return all that is wrong with a graph, an empty list if nothing is; writes nothing.

    A writer that is at work right now shows too: its crash record, its unpublished heads, its run.

    Raises:
        GraphNotFoundError: no graph is there.
        StorageError: the store failed at the graph's root.
    """
    forget(storage)
    manifest = open_main(storage)
    findings: list[Finding] = []
    try:
        findings += _torn(storage, layout.MANIFEST)
    except OmnigraphError as error:
        findings.append(Finding(UNREADABLE, layout.MANIFEST, str(error), False))
    if any(finding.kind == TORN_REF for finding in findings):  # the rest shows without them
        return findings
    branches = [branch.name for branch in refs.list_branches(storage)]
    lost: list[logs.Damaged] = []
    try:
        lost = logs.damaged(storage)
    except OmnigraphError as error:
        findings.append(Finding(UNREADABLE, layout.GRAPH_COMMITS, str(error), False))
    lineage = not any(log.location == layout.GRAPH_COMMITS for log in lost)
    steps: list[tuple[str, Callable[[], Iterator[Finding]]]] = [
        (layout.MANIFEST, lambda: _manifest(manifest)),
        (layout.RECOVERY, lambda: _records(storage)),
        (layout.SCHEMA_PG, lambda: _schema(storage)),
        (layout.GRAPH_COMMITS, lambda: _damaged(lost)),
        (layout.STAGING, lambda: _staging(storage)),
    ]
    if not any(log.location == layout.GRAPH_RUNS for log in lost):
        steps.append((layout.GRAPH_RUNS, lambda: running_runs(storage)))
    for name in branches:
        steps.append((f"branch {name}", partial(_branch, storage, name, branches, lineage)))
    for place in _with_forks(storage, lineage):
        steps.append((place, partial(_forks, storage, place, branches)))
    steps.append(("tags", lambda: _tags(storage)))
    for place, step in steps:
        try:
            findings += step()
        except OmnigraphError as error:
            findings.append(Finding(UNREADABLE, place, str(error), False))
    return list(dict.fromkeys(findings))


def _manifest(manifest: LanceDataset) -> Iterator[Finding]:
    if migrations.is_newer(manifest):
        yield Finding(
            NEWER_STAMP, layout.MANIFEST, "A newer engine wrote this graph; it is read only", False
        )
    elif migrations.is_half_migrated(manifest):
        yield Finding(
            HALF_MIGRATION, layout.MANIFEST, "A migration from v1 died between its steps", True
        )
    if store.keys(manifest):
        yield _deletes_versions(layout.MANIFEST, layout.MAIN)


def _deletes_versions(place: str, branch: str) -> Finding:
    return Finding(
        AUTO_CLEANUP,
        place,
        "Its auto-cleanup settings let Lance delete versions that the graph still needs",
        True,
        branch,
    )


def _records(storage: Storage) -> Iterator[Finding]:
    for name in crash_records.foreign(storage):
        yield Finding(
            FOREIGN_RECORD,
            name,
            "An unfinished write of another engine: open the graph for writing with that engine",
            False,
        )
    for record in crash_records.others(storage, ""):
        yield Finding(
            CRASH_RECORD,
            record.publish_id,
            f"A write to {', '.join(record.table_keys) or 'new tables'} is going on, or died after "
            f"{record.renewed:%Y-%m-%d %H:%M:%S} UTC",
            True,
            record.branch,
        )


def _schema(storage: Storage) -> Iterator[Finding]:
    snapshots = [
        loaded for loaded in map(partial(_loaded, storage), _names(storage)) if loaded is not None
    ]
    tables = any(s.tables for s in snapshots)
    types = any(known_types.are_described(s) for s in snapshots)
    damage = engine_schema.damage(storage, tables, types)
    if damage is not None:
        yield Finding(
            SCHEMA_FILES,
            layout.SCHEMA_PG,
            f"It {damage}: it doesn't give the graph's rules, and writers are refused",
            any(s.types for s in snapshots) or engine_schema.read_ir(storage) is not None,
        )
    elif not engine_schema.agree(storage):
        yield Finding(
            SCHEMA_FILES,
            layout.SCHEMA_PG,
            "The JSON files beside it are missing or say something else; the engine opens nothing",
            not formats.of_graph(storage).has_identities or engine_schema.can_agree(storage),
        )
    files = engine_schema.read(storage) or EngineSchema()
    for snapshot in snapshots:
        _, lost = known_types.filled(storage, files, snapshot)
        for key in snapshot.tables:
            if files.of_table(key) is None:
                yield Finding(
                    UNKNOWN_TYPE,
                    key,
                    "No schema file declares it: the engine's export fails",
                    lost.of_table(key) is not None,
                )
        for key, forgotten in property_files.forgotten(storage, snapshot).items():
            for name in sorted(p.name for p in forgotten.properties):
                yield Finding(
                    FORGOTTEN_PROPERTY,
                    f"{key}.{name}",
                    "The schema files name neither the column nor its rules, which __manifest knows"
                    ": a change of the table's properties died, or is going on",
                    True,
                )


def _names(storage: Storage) -> list[str]:
    return [branch.name for branch in refs.list_branches(storage)]


def _loaded(storage: Storage, branch: str) -> Snapshot | None:
    """Return a branch's snapshot; None for one that can't be read, which its own step tells."""
    try:
        return known_types.load_with_types(storage, branch)
    except OmnigraphError:
        return None


def running_runs(storage: Storage) -> Iterator[Finding]:
    """Yield the runs that the registry says are running although their writers are gone."""
    alive = {record.publish_id for record in crash_records.others(storage, "")}
    rows = runs.read_runs(storage)
    last = dict(zip(rows["run_id"].to_pylist(), rows["status"].to_pylist(), strict=True))
    for run_id, status in last.items():
        if status == runs.RUNNING and run_id not in alive:
            yield Finding(
                RUNNING_RUN, run_id, "Its writer is gone, and the registry says it is running", True
            )


def _damaged(lost: list[logs.Damaged]) -> Iterator[Finding]:
    for log in lost:
        yield Finding(
            DAMAGED_LOG,
            log.location,
            f"It can't be read, and writes go on without it: {log.why}",
            True,
            log.branch,
        )


def _staging(storage: Storage) -> Iterator[Finding]:
    oldest = datetime.now(timezone.utc) - staging.LIVE
    for publish_id, inside in sorted(staging.by_write(storage.list(layout.STAGING)).items()):
        # The record of a write that may still be staging is not a damage.
        if staging.has_messages(inside) or max(info.last_modified for info in inside) < oldest:
            yield Finding(
                STAGING, publish_id, "Messages of a write that is being staged, or died", True
            )


def _branch(storage: Storage, branch: str, branches: list[str], lineage: bool) -> Iterator[Finding]:
    if _is_half(storage, branch):
        yield from _half_branch(storage, branch)
        return
    for location in _places(storage, branch, lineage):
        if branch != layout.MAIN and moved.is_moved(storage, location, branch):
            yield Finding(
                MOVED_BRANCH,
                location,
                f"Branch {branch} names another place: the graph was moved or copied",
                True,
                branch,
            )
    snapshot = load(storage, branch)
    inherited = {}
    for key, entry in snapshot.tables.items():
        if layout.lance_branch(entry.table_branch) == layout.lance_branch(branch):
            yield from _table(storage, snapshot, entry)
        else:
            inherited[key] = entry
    yield from _pinned(storage, replace(snapshot, tables=inherited), f"Branch {branch}")
    missing = logs.missing_publishes(storage, branch) if lineage else []
    if missing:
        yield Finding(
            MISSING_LINEAGE,
            ", ".join(str(publish.graph_version) for publish in missing),
            f"{len(missing)} publish(es) of branch {branch} have no row in the lineage",
            True,
            branch,
        )


def _is_half(storage: Storage, branch: str) -> bool:
    """Return whether files of a branch's `__manifest` are gone."""
    try:
        load(storage, branch)
    except (DatasetNotFoundError, VersionNotFoundError):
        return branch != layout.MAIN
    return False


def _half_branch(storage: Storage, branch: str) -> Iterator[Finding]:
    """Name a branch that can't be read; without writes of its own, nothing is lost with it."""
    empty = len(refs.kept_versions(storage, layout.MANIFEST, branch)) <= _MADE_WITH
    yield Finding(
        HALF_BRANCH,
        branch,
        "It has a ref, and files of its __manifest are gone: it was half made or half deleted"
        if empty
        else "Files of its __manifest are gone. Restore them from a copy, or delete the branch",
        empty,
        branch,
    )


def _tags(storage: Storage) -> Iterator[Finding]:
    """Look whether all that tags name is there, and whether their tables have theirs."""
    for location, name in tags.leftovers(storage):
        message = f"Its tag {name} is that of a tag of the graph which isn't there"
        yield Finding(LEFTOVER_TAG, location, message, True)
    for tag in refs.list_tags(storage):
        if refs.has_version(storage, layout.MANIFEST, tag.branch, tag.version):
            yield from _pinned(storage, load(storage, tag.branch, tag.version), f"Tag {tag.name}")
            bare = tags.unprotected(storage, tag)
            if bare:
                message = f"Another engine's cleanup may take what it names of {', '.join(bare)}"
                yield Finding(HALF_TAG, tag.name, message, True, tag.branch)
        else:
            message = f"Tag {tag.name} names version {tag.version} of the graph, which is gone"
            yield Finding(MISSING_VERSION, layout.MANIFEST, message, False, tag.branch)


def _pinned(storage: Storage, snapshot: Snapshot, who: str) -> Iterator[Finding]:
    """Look whether the table versions that a snapshot names are there; no table is opened."""
    for key, entry in snapshot.tables.items():
        pin = (entry.location, entry.table_branch, entry.table_version)
        if not refs.has_version(storage, *pin):
            message = f"{who} reads version {entry.table_version} of the table, which is gone"
            yield Finding(MISSING_VERSION, key, message, False, snapshot.branch)


def _places(storage: Storage, branch: str, lineage: bool) -> list[str]:
    return [
        layout.MANIFEST,
        *([layout.GRAPH_COMMITS] if lineage else []),
        *sorted(set(load(storage, branch).locations.values())),
    ]


def _torn(storage: Storage, place: str) -> Iterator[Finding]:
    """Name the files by which Lance lists branches and tags that can't be read."""
    for one in ref_files.torn(storage, place):
        known = one.kind == ref_files.TAG or ref_files.is_known(storage, place, one.name)
        what = f"The file of {one.kind} {one.name} can't be read: Lance lists no other one either"
        if not known:
            what += ". Nothing says where it began: put it back from a copy, or delete the branch"
        branch = one.name if one.kind == ref_files.BRANCH else layout.MAIN
        yield Finding(TORN_REF, one.path, what, known, branch)


def _with_forks(storage: Storage, lineage: bool) -> list[str]:
    """Return the datasets that may have forks, also those of tables that no branch knows."""
    tables = [path for folder in layout.TABLE_FOLDERS for path in storage.folders(folder)]
    return [layout.MANIFEST, *([layout.GRAPH_COMMITS] if lineage else []), *tables]


def _forks(storage: Storage, place: str, branches: list[str]) -> Iterator[Finding]:
    """Look for forks of a dataset that no branch has, and for those whose ref file is gone."""
    torn = list(_torn(storage, place)) if place != layout.MANIFEST else []
    if torn:
        yield from torn
        return
    listed, bare = forks.listed_and_bare(storage, place)
    read = forks_in_use(storage, place) if bare or listed - {*branches} else set()
    for name in sorted(bare | listed - {*branches}):
        if place == layout.MANIFEST:
            if name in bare:
                yield _without_ref(storage, name)
            elif name == layout.SCHEMA_LOCK:
                what = "The schema of the graph is being changed, or who changed it died"
                yield Finding(SCHEMA_LOCK, name, what, True)
        elif name in bare and (name in read or (name in branches and place in _LINEAGES)):
            yield _missing_ref(storage, place, name, "")
        elif name not in read:
            what = "half made" if name in branches else "and the graph no such branch"
            yield Finding(LEFTOVER_FORK, place, f"It has a fork {name}, {what}", True, name)


def forks_in_use(storage: Storage, place: str) -> set[str | None]:
    """Return the forks of a table that the heads of branches read.

    Raises:
        StorageError: the store failed.
    """
    heads = [head for _, head in refs.readable(storage)]
    entries = [entry for head in heads for entry in head.tables.values()]
    return {layout.lance_branch(e.table_branch) for e in entries if e.location == place}


def _without_ref(storage: Storage, name: str) -> Finding:
    """Name a branch that has files and no ref.

    Its maker or deleter died, or is at work; but one that another branch or a tag needs can't have
    been deleted: its file was lost.
    """
    try:
        branches_.refuse_needed(storage, name)
    except UnsupportedError as error:
        return _missing_ref(storage, layout.MANIFEST, name, f": {error.what}")
    what = "Its __manifest has files and no ref: it was half made or half deleted"
    return Finding(HALF_BRANCH, name, what, True, name)


def _missing_ref(storage: Storage, place: str, name: str, why: str) -> Finding:
    known = ref_files.is_known(storage, place, name)
    what = f"The ref file of its branch {name} is gone, and is needed{why}"
    what += "" if known else ". Put it back from a copy"
    return Finding(MISSING_REF, place, what, known, name)


def _table(storage: Storage, snapshot: Snapshot, entry: TableEntry) -> Iterator[Finding]:
    key, branch = entry.table_key, snapshot.branch
    try:
        head = storage.dataset(entry.location, entry.table_branch)
        published = storage.dataset(entry.location, entry.table_branch, entry.table_version)
        with translated(f"Counting the rows of {key}"):
            rows = int(published.count_rows())
        if rows != entry.row_count:
            yield _wrong_count(entry, rows, branch)
        restores_count = formats.of_graph(storage).publishes_restores
        clean = not restores_count and is_clean(head, entry.table_version)
        if head.version > entry.table_version and not clean:
            yield Finding(
                UNPUBLISHED_HEAD,
                key,
                f"Version {head.version} by write {owner_of(head) or 'of an unknown writer'} is "
                f"above the published version {entry.table_version}",
                True,
                branch,
            )
        if store.keys(head):
            yield _deletes_versions(key, branch)
    except OmnigraphError as error:
        yield Finding(UNREADABLE, key, str(error), False, branch)


def _wrong_count(entry: TableEntry, rows: int, branch: str) -> Finding:
    message = f"Version {entry.table_version} has {rows} rows, __manifest says {entry.row_count}"
    return Finding(WRONG_ROW_COUNT, entry.table_key, message, False, branch)
