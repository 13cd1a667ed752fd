"""The snapshot of a graph branch: a pure fold of the rows of its `__manifest`.

Per (`table_key`, `table_branch`) the highest `table_version` that no tombstone of the table covers;
where an inherited and a branch-owned entry remain, the higher version wins (format.md).
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from omnigraph_spark.errors import (
    BranchNotFoundError,
    CorruptManifestError,
    GraphNotFoundError,
    TableNotFoundError,
    UnsupportedManifestVersion,
    VersionNotFoundError,
)
from omnigraph_spark.manifest import formats, identities, manifest_rows, migrations
from omnigraph_spark.manifest.rows import (
    MANIFEST_SCHEMA,
    OURS,
    TABLE,
    TOMBSTONE,
    VERSION,
    fit,
)
from omnigraph_spark.storage import kept_rows, layout, store
from omnigraph_spark.storage.lance_errors import DatasetNotFoundError, translated
from omnigraph_spark.storage.layout import Identity
from omnigraph_spark.storage.store import Storage

if TYPE_CHECKING:
    from lance import LanceDataset


@dataclass(frozen=True)
class TableEntry:
    """One published table version: where its dataset is, which version, and how many rows."""

    table_key: str
    location: str
    table_version: int
    table_branch: str | None
    row_count: int
    metadata: Mapping[str, Any] = field(default_factory=dict)

    @property
    def ours(self) -> Mapping[str, Any]:
        """Return what this connector left in the version row's metadata, if it wrote it."""
        ours = self.metadata.get(OURS)
        return ours if isinstance(ours, dict) else {}


@dataclass(frozen=True)
class Snapshot:
    """All tables of a graph branch at one graph version; plain data, picklable.

    `locations` has every table that ever had a row, `floors` the highest version or tombstone of
    each: what is published next must be above it. `types` are filled by `known_types` alone, for
    those who need them. `identities` are the ids of the tables, in formats that have them; there
    `locations` and `floors` are of the tables that are there alone. `identifier` is what
    distinguishes the branch from others of its name, for those who write to it (rule 23).
    """

    branch: str
    graph_version: int
    tables: Mapping[str, TableEntry]
    locations: Mapping[str, str]
    floors: Mapping[str, int]
    types: Mapping[str, str] = field(default_factory=dict)
    identities: Mapping[str, Identity] = field(default_factory=dict)
    identifier: str | None = field(default=None, compare=False)

    def entry(self, key: str) -> TableEntry:
        """Return a table's entry.

        Raises:
            TableNotFoundError: the snapshot has no such table; what exists is listed.
        """
        entry = self.tables.get(key)
        if entry is None:
            near = nearest(key, self.tables)
            raise TableNotFoundError(
                f"No table {key[:80]!r} on branch {self.branch} at version {self.graph_version}",
                expected=", ".join(sorted(self.tables)[:60]) or "none: the graph has no tables",
                hint=f"Did you mean {near}?" if near else None,
                table_key=key,
                nearest=near,
            )
        return entry

    def version(self, key: str) -> int:
        """Return the table's published version, 0 where it has none."""
        entry = self.tables.get(key)
        return 0 if entry is None else entry.table_version

    def resolve(self, name: str) -> str:
        """Return the table key that a user's `name` means: a key, or a bare type name.

        Raises:
            TableNotFoundError: nothing fits, or both a node and an edge table do.
        """
        if ":" in name:
            return self.entry(name).table_key
        fitting = [k for k in (f"node:{name}", f"edge:{name}") if k in self.tables]
        if len(fitting) == 2:
            raise TableNotFoundError(
                f"{name!r} is a node and an edge table", expected=" or ".join(fitting)
            )
        return self.entry(fitting[0] if fitting else name).table_key


def nearest(name: str, keys: Iterable[str]) -> str | None:
    """Return the table key that a mistyped name or key most likely means; its kind counts last."""
    kind, _, bare = name.rpartition(":")
    alike: dict[str, list[str]] = {}
    for key in sorted(keys):
        alike.setdefault(key.partition(":")[2].lower(), []).append(key)
    matches = difflib.get_close_matches(bare.lower(), alike, n=1, cutoff=0.6)
    if not matches:
        return None
    same_kind = [key for key in alike[matches[0]] if key.partition(":")[0] == kind]
    return (same_kind or alike[matches[0]])[0]


def fold(rows: pa.Table, branch: str, graph_version: int) -> Snapshot:
    """Fold the rows of a manifest into its snapshot; pure, in Arrow, linear in the rows.

    Equal rows of one `object_id` count once (a publish through a handle from before the annotation
    doubles them, rule 29).

    Raises:
        CorruptManifestError: contradictory rows of one `object_id`, a key that names no table, a
            location outside the root, metadata that is not a JSON object.
        UnsupportedManifestVersion: a table key has several locations (newer engines).
    """
    rows = fit(rows)
    pairs: dict[str, Identity] = {}
    if identities.has_identities(rows):  # a commit that is there twice spoils the graph there, too
        rows, pairs = identities.living(identities.named(of_tables(identities.newest(_once(rows)))))
        rows = rows.select(MANIFEST_SCHEMA.names)
    else:
        rows = _once(of_tables(rows.select(MANIFEST_SCHEMA.names)))
    kinds = rows["object_type"]
    locations = _locations(rows.filter(pc.equal(kinds, TABLE)))
    highest = highest_of(rows, VERSION)
    tombstones = highest_of(rows, TOMBSTONE)
    tables: dict[str, TableEntry] = {}
    # A damaged graph may lack a table's own row; where it lies follows from its name, and the next
    # publish writes the row again, as its guard (rule 8).
    for key in {*highest} - {*locations}:
        if layout.is_table_key(key):
            locations[key] = layout.table_location(key)
    live = {key: number for key, number in highest.items() if number > tombstones.get(key, 0)}
    for row in _live(rows, live, layout.lance_branch(branch)).to_pylist():
        entry = _entry(row, locations)
        tables[entry.table_key] = entry
    floors = {
        key: max(highest.get(key, 0), tombstones.get(key, 0)) for key in {*highest, *tombstones}
    }
    tables = dict(sorted(tables.items()))
    return Snapshot(branch, graph_version, tables, locations, floors, identities=pairs)


def of_tables(rows: pa.Table) -> pa.Table:
    """Return the rows that tell of tables: without commits, heads, and what isn't known."""
    known = pc.is_in(rows["object_type"], pa.array([TABLE, VERSION, TOMBSTONE]))
    return rows if pc.all(known).as_py() else rows.filter(known)


def _once(rows: pa.Table) -> pa.Table:
    """Drop equal doubles of an `object_id`, refuse contradictory ones."""
    if len(pc.unique(rows["object_id"])) == rows.num_rows:
        return rows
    compared = [name for name in rows.column_names if name != "base_objects"]
    distinct = rows.select(compared).group_by(compared).aggregate([])
    counts = distinct.group_by("object_id").aggregate([([], "count_all")])
    doubled = counts.filter(pc.greater(counts["count_all"], 1))["object_id"].to_pylist()
    if doubled:
        raise CorruptManifestError(
            f"__manifest has contradictory rows of {doubled[0]!r}",
            expected="one row",
            found=f"{len(doubled)} object ids with different rows",
            hint="Two writers without compare-and-swap have written to it; compare its versions",
        )
    return distinct.append_column(
        "base_objects", pa.nulls(distinct.num_rows, pa.list_(pa.utf8()))
    ).select(rows.column_names)


def _locations(rows: pa.Table) -> dict[str, str]:
    locations: dict[str, str] = {}
    for key, location in zip(
        rows["table_key"].to_pylist(), rows["location"].to_pylist(), strict=True
    ):
        if key in locations and locations[key] != location:
            raise UnsupportedManifestVersion(
                f"{key} has several incarnations in __manifest — upgrade omnigraph first",
                expected="one location per table",
                found="several",
            )
        if not key.startswith((f"{layout.NODE}:", f"{layout.EDGE}:")):
            raise CorruptManifestError(f"{key[:80]!r} in __manifest is not a valid table key")
        locations[key] = location
    return locations


def highest_of(rows: pa.Table, kind: str) -> dict[str, int]:
    """Return the highest `table_version` per table key of the version or the tombstone rows."""
    # Of many rows few are looked at whole: what is superseded is told by these two columns alone.
    numbers = rows.select(["table_key", "table_version"]).filter(
        pc.equal(rows["object_type"], kind)
    )
    if numbers["table_version"].null_count:
        raise CorruptManifestError(
            "A version or tombstone row of __manifest has no table_version", expected="a number"
        )
    return identities.highest_by(numbers, "table_key")


def _live(rows: pa.Table, live: Mapping[str, int], own: str | None) -> pa.Table:
    """Return one version row per table: that of its version in `live`, the branch's own first."""
    keys = pa.array(list(live), pa.utf8())
    live_versions = pc.take(
        pa.array(list(live.values()), pa.uint64()), pc.index_in(rows["table_key"], keys)
    )
    newest = pc.and_(
        pc.equal(rows["object_type"], VERSION), pc.equal(rows["table_version"], live_versions)
    )
    versions = rows.filter(newest)
    own_first = pc.fill_null(
        pc.equal(versions["table_branch"], pa.scalar(own, pa.utf8())), own is None
    )
    ordered = versions.append_column("own", own_first).sort_by(
        [("table_key", "ascending"), ("own", "ascending")]
    )
    keys = ordered["table_key"].combine_chunks()
    if len(keys) == 0:
        return ordered
    last = pc.not_equal(keys[:-1], keys[1:])
    return ordered.filter(pa.concat_arrays([last, pa.array([True])]))


def _entry(row: Mapping[str, Any], locations: Mapping[str, str]) -> TableEntry:
    key = row["table_key"]
    if key not in locations:
        raise CorruptManifestError(
            f"__manifest has a version of {key[:80]!r}, which is not a valid table key",
            expected="node:Type or edge:Type",
        )
    return TableEntry(
        table_key=key,
        location=layout.check_location(locations[key], key),
        table_version=row["table_version"],
        table_branch=row["table_branch"],
        row_count=row["row_count"] or 0,
        metadata=_metadata(row["metadata"], row["object_id"]),
    )


def _metadata(text: str | None, object_id: str) -> dict[str, Any]:
    try:
        parsed = json.loads(text) if text else {}
    except json.JSONDecodeError:
        parsed = None
    if not isinstance(parsed, dict):
        raise CorruptManifestError(
            f"The metadata of {object_id!r} in __manifest is not a JSON object",
            found=repr((text or "")[:40]),
        )
    return parsed


def read_rows(manifest: LanceDataset) -> pa.Table:
    """Read all rows of an opened `__manifest`, under the names that their tables have now.

    Raises:
        StorageError: the store failed.
    """
    return manifest_rows.read(manifest).table


def open_manifest(
    storage: Storage, branch: str = layout.MAIN, version: int | None = None
) -> LanceDataset:
    """Open a branch's `__manifest` for reading, wherever the graph lies now; on the driver.

    Raises:
        GraphNotFoundError: no graph is there.
        BranchNotFoundError: the graph has no such branch; what exists is listed.
        VersionNotFoundError: the branch has no such version.
        UnsupportedManifestVersion: a newer shape that can't be read.
    """
    return open_at(storage, branch, version)[0]


def open_at(
    storage: Storage, branch: str = layout.MAIN, version: int | None = None
) -> tuple[LanceDataset, int]:
    """Open a branch's `__manifest` for reading, and return its graph version beside it.

    The version of the handle isn't always it: a relocated handle has its own numbers.

    Raises:
        OmnigraphError: as `open_manifest`.
    """
    manifest, number, _ = open_identified(storage, branch, version)
    return manifest, number


def open_identified(
    storage: Storage, branch: str = layout.MAIN, version: int | None = None
) -> tuple[LanceDataset, int, str | None]:
    """Open as `open_at`, and return the branch's identifier as well; None for `main`.

    Raises:
        OmnigraphError: as `open_manifest`.
    """
    from omnigraph_spark.storage import relocation

    name = layout.lance_branch(branch)
    identifier = None if name is None else branch_ref(storage, branch).identifier
    if version is None:
        head = open_main(storage) if name is None else storage.dataset(layout.MANIFEST, name)
        version = int(head.version)
        manifest = relocation.in_place(storage, layout.MANIFEST, name, head)
    else:
        manifest = _open_version(storage, branch, version)
    migrations.check_readable(manifest)
    return manifest, version, identifier


def head_version(storage: Storage, branch: str = layout.MAIN) -> int:
    """Return the newest graph version of a branch; on the driver.

    The version of a handle from `open_manifest` isn't it: a relocated handle has its own numbers.

    Raises:
        GraphNotFoundError: no graph is there.
        BranchNotFoundError: the graph has no such branch; what exists is listed.
        StorageError: the store failed.
    """
    if layout.lance_branch(branch) is None:
        return int(open_main(storage).version)
    branch_ref(storage, branch)
    return int(storage.dataset(layout.MANIFEST, branch).version)


def open_main(storage: Storage) -> LanceDataset:
    """Open the newest `__manifest` of `main`, ready to be committed to.

    Raises:
        GraphNotFoundError: no graph is there.
        StorageError: the store failed.
    """
    try:
        manifest = storage.dataset(layout.MANIFEST)
    except DatasetNotFoundError as error:
        raise GraphNotFoundError(
            f"{storage.root} holds no OmniGraph graph",
            expected=f"a folder with {layout.MANIFEST}/ inside",
            hint="Check the path; a write with .mode('append') creates a graph",
        ) from error
    formats.remember(storage, manifest)
    return manifest


def branch_names(main: LanceDataset) -> list[str]:
    """Return the graph's branches, `main` first, from an opened `__manifest`; no engine's lock.

    Raises:
        StorageError: the store failed.
    """
    with translated("Listing the branches of __manifest"):
        names = set(main.branches.list()) - {layout.SCHEMA_LOCK}
    return [layout.MAIN, *sorted(names)]


class BranchRef(NamedTuple):
    """What Lance knows of a branch; `identifier` tells it from others of its name (rule 23)."""

    parent: str
    parent_version: int
    identifier: str


def branch_ref(storage: Storage, branch: str) -> BranchRef:
    """Return what Lance knows of a graph branch, from its own file.

    A branch is what its ref file says (rule 22): this is one request, a listing three and more.

    Raises:
        GraphNotFoundError: no graph is there.
        BranchNotFoundError: the graph has no such branch; what exists is listed.
        StorageError: the store failed.
    """
    if branch != layout.SCHEMA_LOCK:
        ref = ref_in_file(storage, layout.MANIFEST, branch)
        if ref is not None:
            return ref
    with translated("Listing the branches of __manifest"):
        listed = open_main(storage).branches.list()
    listed.pop(layout.SCHEMA_LOCK, None)
    if branch not in listed:
        raise BranchNotFoundError.named(branch, [layout.MAIN, *sorted(listed)])
    there = listed[branch]
    return BranchRef(
        there["parent_branch"] or layout.MAIN,
        int(there["parent_version"]),
        str(there["branch_identifier"]),
    )


def ref_in_file(storage: Storage, location: str, branch: str) -> BranchRef | None:
    """Return what the file of a dataset's branch says; None: no file, or one of another form.

    Raises:
        StorageError: the store failed.
    """
    path = layout.ref_path(location, branch)
    is_name = len(path.rpartition("/")[2]) <= _MOST_FILE_NAME
    data = storage.get(path) if is_name else None
    if data is not None:
        # Any other form is left to Lance.
        with suppress(ValueError, KeyError, TypeError, AttributeError):
            found = json.loads(data)
            pairs = [(int(number), str(name)) for number, name in _mapping(found)]
            version = int(found["parentVersion"])
            return BranchRef(found["parentBranch"] or layout.MAIN, version, str(pairs))
    return None


def _mapping(found: Any) -> Any:
    return found["identifier"]["version_mapping"]


def _open_version(storage: Storage, branch: str, version: int) -> LanceDataset:
    from omnigraph_spark.storage import relocation

    try:
        return relocation.open_for_reading(
            storage, layout.MANIFEST, layout.lance_branch(branch), version
        )
    except DatasetNotFoundError as error:
        raise VersionNotFoundError(
            f"Branch {branch} has no graph version {version}",
            expected=f"a version up to {head_version(storage, branch)} that was not cleaned up",
            hint="The metadata frame `history` lists them",
        ) from error


def load(storage: Storage, branch: str = layout.MAIN, version: int | None = None) -> Snapshot:
    """Read the snapshot of a branch at a graph version (None: its head); on the driver, no writes.

    Raises:
        GraphNotFoundError, BranchNotFoundError, VersionNotFoundError: what the names say.
        UnsupportedManifestVersion: a newer shape that can't be read.
        CorruptManifestError: the rows contradict the format.
        StorageError: the store failed.
    """
    manifest, pinned = open_at(storage, branch, version)
    return fold(manifest_rows.read(manifest).current, branch, pinned)


_MOST_FILE_NAME = 255


def forget(storage: Storage) -> None:
    """Let the next reads of a graph fetch everything from the store: for those who look for damage.

    Otherwise a process has what it once read of files that never change, whatever became of them.
    """
    store.forget(storage)
    kept_rows.forget()
