"""Is a graph on disk what docs/internals/format.md says? Tests call `check_graph` after they have written.

It reads with pylance and its own fold, not through the product's, so that one mistake isn't made
twice; only branches go through `relocation`, since Lance can't open those of a moved graph.
"""

from __future__ import annotations

import json
import os
import re
from collections import defaultdict
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa

from omnigraph_spark.errors import OmnigraphError
from omnigraph_spark.schema import ir
from omnigraph_spark.schema.model import EdgeType, EngineSchema, NodeType
from omnigraph_spark.schema.pg import parse_pg
from omnigraph_spark.storage import relocation
from omnigraph_spark.storage.store import Storage

OURS = "omnigraph_spark"
_LINEAGE = ("_graph_commits.lance", "_graph_commit_actors.lance")
_RUNS = ("_graph_runs.lance", "_graph_run_actors.lance")
_SCHEMA_FILES = ("_schema.pg", "_schema.ir.json", "__schema_state.json")
# The engine's own notes of what it took back; it makes the dataset when it first does.
_RECOVERIES = "_graph_commit_recoveries.lance"
_FOLDERS = (
    *("__manifest", "nodes", "edges", "__recovery", "__staging", _RECOVERIES),
    *_LINEAGE,
    *_RUNS,
)
_ULID = re.compile(r"[0-7][0-9A-HJKMNP-TV-Z]{25}\Z")
_V2_MANIFEST = re.compile(r"\d{20}\.manifest\Z")
_CLEANUP = "lance.auto_cleanup."
_STATUSES = {"running", "published", "failed", "aborted"}

_TIME = pa.timestamp("us")
_MANIFEST_COLUMNS = [
    ("object_id", pa.utf8(), False),
    ("object_type", pa.utf8(), False),
    ("location", pa.utf8(), True),
    ("metadata", pa.utf8(), True),
    ("base_objects", pa.list_(pa.field("item", pa.utf8())), True),
    ("table_key", pa.utf8(), False),
    ("table_version", pa.uint64(), True),
    ("table_branch", pa.utf8(), True),
    ("row_count", pa.uint64(), True),
]
_LOG_COLUMNS = {
    "_graph_commits.lance": [
        ("graph_commit_id", pa.utf8(), False),
        ("manifest_branch", pa.utf8(), True),
        ("manifest_version", pa.uint64(), False),
        ("parent_commit_id", pa.utf8(), True),
        ("merged_parent_commit_id", pa.utf8(), True),
        ("created_at", _TIME, False),
    ],
    "_graph_commit_actors.lance": [
        ("graph_commit_id", pa.utf8(), False),
        ("actor_id", pa.utf8(), False),
        ("created_at", _TIME, False),
    ],
    "_graph_runs.lance": [
        ("run_id", pa.utf8(), False),
        ("target_branch", pa.utf8(), False),
        ("run_branch", pa.utf8(), False),
        ("base_snapshot_id", pa.utf8(), False),
        ("base_manifest_version", pa.uint64(), False),
        ("operation_hash", pa.utf8(), True),
        ("status", pa.utf8(), False),
        ("published_snapshot_id", pa.utf8(), True),
        ("created_at", _TIME, False),
        ("updated_at", _TIME, False),
    ],
    "_graph_run_actors.lance": [
        ("run_id", pa.utf8(), False),
        ("actor_id", pa.utf8(), False),
        ("created_at", _TIME, False),
    ],
}


def check_graph(root: str, *, crashed: bool = False, moved: bool = False) -> list[str]:
    """Return what in the graph at `root`, a folder, contradicts the format; empty when all is well.

    Args:
        root: The graph's folder.
        crashed: A writer was killed and nobody has written since: crash records, staged messages,
            running runs, and datasets that nobody published are no violation.
        moved: The folder isn't where the rows were written: `manifest_path` is only compared below
            the root.
    """
    from tests import newer_format_checker as newer

    place = Path(os.path.abspath(root))
    checkers = {b"4": newer.NewerChecker, b"6": newer.IdentityChecker}
    checker = checkers.get(_stamp(place), _Checker)(place, crashed, moved)
    checker.run()
    return checker.found


def _stamp(root: Path) -> bytes | None:
    if not (root / "__manifest").is_dir():
        return None
    schema = lance.dataset(str(root / "__manifest")).schema
    return (schema.metadata or {}).get(b"omnigraph:internal_schema_version")


class _Checker:
    def __init__(self, root: Path, crashed: bool, moved: bool) -> None:
        self.root = root
        self.storage = Storage.at(str(root))
        self.crashed = crashed
        self.moved = moved
        self.found: list[str] = []
        self.publish_ids: set[str] = set()
        self.heads: dict[str, int] = {}  # branch -> version of its __manifest
        self.locations: set[str] = set()

    def wrong(self, where: str, what: str) -> None:
        self.found.append(f"{where}: {what}")

    def run(self) -> None:
        if not (self.root / "__manifest").is_dir():
            self.wrong(str(self.root), "no __manifest")
            return
        self.check_tree()
        main = lance.dataset(str(self.root / "__manifest"))
        self.check_manifest_dataset(main)
        schema = self.check_schema_files()
        for branch in (None, *main.branches.list()):
            try:
                self.check_branch(branch, schema)
            except (OmnigraphError, OSError, ValueError, pa.ArrowException) as error:
                self.wrong(f"branch {branch or 'main'}", f"can't be read: {error}")
        self.check_folders()
        self.check_lineage(list(main.branches.list()))
        self.check_runs()

    # --- tree and datasets ---------------------------------------------------------------------

    def check_tree(self) -> None:
        for entry in sorted(self.root.iterdir()):
            allowed = _FOLDERS if entry.is_dir() else _SCHEMA_FILES
            if entry.name not in allowed:
                self.wrong(entry.name, "is not a part of a graph")
        if self.crashed:
            return
        for folder in ("__recovery", "__staging"):
            left = [one for one in (self.root / folder).rglob("*") if one.is_file()]
            self.found += [f"{one.relative_to(self.root)}: left over" for one in sorted(left)]

    def check_folders(self) -> None:
        """Datasets are where some `table` row says, and nowhere else."""
        for kind in ("nodes", "edges"):
            for folder in sorted((self.root / kind).glob("*")):
                location = f"{kind}/{folder.name}"
                if location not in self.locations and not self.crashed:
                    self.wrong(location, "no table row of any branch names this folder")

    def check_dataset(self, where: str, dataset: lance.LanceDataset, *, row_ids: bool) -> None:
        if dataset.data_storage_version != "2.2":
            self.wrong(where, f"storage version {dataset.data_storage_version}, not 2.2")
        if row_ids and not dataset.has_stable_row_ids:
            self.wrong(where, "no stable row ids")
        for name in sorted((self.root / where / "_versions").glob("*.manifest")):
            if not _V2_MANIFEST.match(name.name):
                self.wrong(where, f"{name.name} is not a V2 manifest name")

    def check_no_cleanup(self, where: str, dataset: lance.LanceDataset) -> None:
        kept = sorted(key for key in dataset.config() if key.startswith(_CLEANUP))
        if kept:
            self.wrong(where, f"written by us, and still has {', '.join(kept)}")

    def check_columns(
        self, where: str, schema: pa.Schema, wanted: list[tuple[str, pa.DataType, bool]]
    ) -> None:
        there = [(one.name, one.type, one.nullable) for one in schema]
        if there != wanted:
            self.wrong(where, f"columns {there}, not {wanted}")

    # --- __manifest ----------------------------------------------------------------------------

    def check_manifest_dataset(self, main: lance.LanceDataset) -> None:
        self.check_dataset("__manifest", main, row_ids=False)
        self.check_columns("__manifest", main.schema, _MANIFEST_COLUMNS)
        stamp = (main.schema.metadata or {}).get(b"omnigraph:internal_schema_version")
        keyed = (main.schema.field("object_id").metadata or {}).get(
            b"lance-schema:unenforced-primary-key"
        )
        if (stamp, keyed) not in ((None, None), (b"2", b"true"), (b"3", b"true")):
            self.wrong("__manifest", f"stamp {stamp!r} with primary-key annotation {keyed!r}")

    def check_branch(self, branch: str | None, schema: EngineSchema) -> None:
        where = f"branch {branch or 'main'}"
        self.heads[branch or "main"] = self.storage.dataset("__manifest", branch).version
        manifest = relocation.open_for_reading(self.storage, "__manifest", branch)
        rows: list[dict[str, Any]] = manifest.to_table().to_pylist()
        self.check_rows(where, rows)
        ours = any(OURS in _json(row) for row in rows)
        if ours and branch is None:
            self.check_no_cleanup("__manifest", manifest)
            self.check_no_cleanup(_LINEAGE[0], self.storage.dataset(_LINEAGE[0]))
        locations = {r["table_key"]: r["location"] for r in rows if r["object_type"] == "table"}
        self.locations |= set(locations.values())
        for key, row in sorted(_live(rows, branch).items()):
            if key in locations:
                self.check_table(f"{where} {key}", locations[key], row)
                if row["table_branch"] == branch:  # an inherited version's line moves on
                    self.check_head(f"{where} {key}", locations[key], row)
            if schema.of_table(key) is None:
                self.wrong(f"{where} {key}", "published, and unknown to _schema.pg")
            elif key in locations and branch is None:
                self.check_properties(key, locations[key], row, schema)

    def check_rows(self, where: str, rows: list[dict[str, Any]]) -> None:
        by_id: dict[str, dict[str, Any]] = {}
        for row in rows:
            other = by_id.setdefault(row["object_id"], row)
            if other != row:
                self.wrong(where, f"two rows of {row['object_id']} differ")
        for row in rows:
            at = f"{where} {row['object_id']}"
            kind = row["object_type"]
            if kind == "table":
                self.check_table_row(at, row)
            elif kind == "table_version":
                self.check_version_row(at, row, by_id)
            elif kind == "table_tombstone":
                wanted = f"{row['table_key']}$tombstone${row['table_version'] or 0:020}"
                if row["object_id"] != wanted:
                    self.wrong(at, f"object_id is not {wanted}")

    def check_table_row(self, at: str, row: dict[str, Any]) -> None:
        kind, _, name = row["table_key"].partition(":")
        if row["object_id"] != row["table_key"]:
            self.wrong(at, f"object_id is not {row['table_key']}")
        wanted = f"{kind}s/{_fnv1a64(name)}"
        if row["location"] != wanted:
            self.wrong(at, f"location {row['location']}, not {wanted}")

    def check_version_row(
        self, at: str, row: dict[str, Any], by_id: dict[str, dict[str, Any]]
    ) -> None:
        key, version = row["table_key"], row["table_version"]
        if key not in by_id:
            self.wrong(at, f"no table row of {key}")
        if version is None or row["row_count"] is None:
            self.wrong(at, "no table_version or row_count")
            return
        # A row of a version that a healer skipped repeats the healed version's (rule 9).
        own = f"{key}${version:020}"
        if row["object_id"] != own:
            healed = by_id.get(own)
            same = healed is not None and {**healed, "object_id": ""} == {**row, "object_id": ""}
            if not same or row["object_id"] > own:
                self.wrong(at, f"object_id is not {own}, and the row doesn't repeat that one's")
        metadata = _json(row)
        if metadata.get("naming_scheme") != "V2" or "manifest_path" not in metadata:
            self.wrong(at, f"metadata without manifest_path or naming_scheme V2: {metadata}")
            return
        ours = metadata.get(OURS)
        if ours is not None:
            self.check_ours(at, metadata, ours)
            self.check_manifest_path(at, row, metadata, by_id)

    def check_ours(self, at: str, metadata: dict[str, Any], ours: dict[str, Any]) -> None:
        if not {"manifest_path", "manifest_size", "naming_scheme"} <= metadata.keys():
            self.wrong(at, f"metadata lacks keys of the engine: {sorted(metadata)}")
        publish_id = ours.get("publish_id")
        if not isinstance(publish_id, str) or not _ULID.match(publish_id):
            self.wrong(at, f"publish id {publish_id!r} is not a ULID")
        else:
            self.publish_ids.add(publish_id)
        txn = ours.get("txn")
        if txn is not None and not (len(txn) == 2 and isinstance(txn[1], int)):
            self.wrong(at, f"txn {txn!r} is not [app id, version]")

    def check_manifest_path(
        self,
        at: str,
        row: dict[str, Any],
        metadata: dict[str, Any],
        by_id: dict[str, dict[str, Any]],
    ) -> None:
        location = by_id.get(row["table_key"], {}).get("location")
        tree = f"/tree/{row['table_branch']}" if row["table_branch"] else ""
        name = f"{0xFFFFFFFFFFFFFFFF - row['table_version']:020}.manifest"
        below = f"{location}{tree}/_versions/{name}"
        wanted = f"{str(self.root).lstrip('/')}/{below}"
        path = str(metadata["manifest_path"])
        if path != wanted and not (self.moved and path.endswith(f"/{below}")):
            self.wrong(at, f"manifest_path {path}, not {wanted}")
        file = self.root / below
        if not file.is_file():
            self.wrong(at, f"{below} isn't there")
        elif metadata["manifest_size"] != file.stat().st_size:
            self.wrong(at, f"manifest_size {metadata['manifest_size']}, not {file.stat().st_size}")

    # --- tables --------------------------------------------------------------------------------

    def check_head(self, at: str, location: str, row: dict[str, Any]) -> None:
        """Look whether there are rows at a table's HEAD that nobody published."""
        version = row["table_version"]
        head = self.storage.dataset(location, row["table_branch"])
        ahead = head.version > version
        if OURS in _json(row) and ahead and not self.crashed and _moves_rows(head, version):
            self.wrong(at, f"HEAD {head.version} holds more than the pinned {version}")

    def check_table(self, at: str, location: str, row: dict[str, Any]) -> None:
        branch, version = row["table_branch"], row["table_version"]
        main = lance.dataset(str(self.root / location))
        if branch is not None and branch not in main.branches.list():
            self.wrong(at, f"the table has no branch {branch}")
            return
        head = self.storage.dataset(location, branch)
        if version > head.version:
            self.wrong(at, f"pinned at {version}, above HEAD {head.version}")
            return
        table = relocation.open_for_reading(self.storage, location, branch, version)
        rows = table.count_rows()
        if rows != row["row_count"]:
            self.wrong(at, f"row_count {row['row_count']}, and {rows} rows")
        where = location if branch is None else f"{location}/tree/{branch}"
        self.check_dataset(where, head, row_ids=True)
        if OURS in _json(row):
            self.check_no_cleanup(where, head)
        fixed = ["id", "src", "dst"] if row["table_key"].startswith("edge:") else ["id"]
        first = [(one.name, one.type, one.nullable) for one in table.schema][: len(fixed)]
        if first != [(name, pa.utf8(), False) for name in fixed]:
            self.wrong(at, f"begins with {first}, not with {fixed} as utf8 not null")

    def check_properties(
        self, key: str, location: str, row: dict[str, Any], schema: EngineSchema
    ) -> None:
        """Check the columns against `_schema.pg`: types, nullability, and an `id` that is a key."""
        declared = schema.of_table(key)
        assert declared is not None
        table = relocation.open_for_reading(
            self.storage, location, row["table_branch"], row["table_version"]
        )
        columns = {one.name: one for one in table.schema}
        for one in declared.properties:
            wanted = one.arrow_field()
            there = columns.pop(one.name, None)
            if there is None:
                self.wrong(key, f"{one.name} of _schema.pg is not a column")
            elif str(there.type) != str(wanted.type) or there.nullable != wanted.nullable:
                self.wrong(key, f"column {there}, in _schema.pg {wanted}")
        for name in {"id", "src", "dst"} if isinstance(declared, EdgeType) else {"id"}:
            columns.pop(name, None)
        for one in columns.values():
            if not one.nullable:
                self.wrong(key, f"{one.name} is not null, and unknown to _schema.pg")
        keyed_by = declared.key if isinstance(declared, NodeType) else None
        if keyed_by is not None and keyed_by in table.schema.names:
            ids = table.to_table(columns=["id", keyed_by])
            if ids["id"].combine_chunks() != ids[keyed_by].combine_chunks():
                self.wrong(key, f"an id isn't the value of its key {keyed_by}")

    # --- schema files --------------------------------------------------------------------------

    def check_schema_files(self) -> EngineSchema:
        texts = {
            name: (self.root / name).read_text("utf-8") if (self.root / name).exists() else None
            for name in _SCHEMA_FILES
        }
        pg, ir_text, state = (texts[name] for name in _SCHEMA_FILES)
        if pg is None or ir_text is None or state is None:
            there = [name for name, text in texts.items() if text is not None]
            if there or any((self.root / kind).exists() for kind in ("nodes", "edges")):
                self.wrong("schema files", f"only {there} of {list(_SCHEMA_FILES)}")
            return EngineSchema() if pg is None else parse_pg(pg)
        schema = parse_pg(pg)
        if json.loads(ir_text) != json.loads(ir.ir_json(schema)):
            self.wrong("_schema.ir.json", "disagrees with _schema.pg")
        if ir_text != json.dumps(json.loads(ir_text), indent=2, ensure_ascii=False):
            self.wrong("_schema.ir.json", "isn't printed as the engine prints it")
        told = json.loads(state)
        if told.get("schema_ir_hash") != ir.ir_hash(ir_text):
            self.wrong("__schema_state.json", "schema_ir_hash isn't the hash of the IR")
        if (told.get("format_version"), told.get("schema_identity_version")) != (1, 1):
            self.wrong("__schema_state.json", f"versions {told}")
        for edge in schema.edges.values():
            for end in (edge.source, edge.target):
                if end not in schema.nodes:
                    self.wrong("_schema.pg", f"edge {edge.name} ends at {end}, which is not a node")
        return schema

    # --- logs ----------------------------------------------------------------------------------

    def check_lineage(self, branches: list[str]) -> None:
        for name in _LINEAGE:
            if not (self.root / name).is_dir():
                self.wrong(name, "isn't there")
                return
            dataset = lance.dataset(str(self.root / name))
            self.check_dataset(name, dataset, row_ids=False)
            self.check_columns(name, dataset.schema, _LOG_COLUMNS[name])
        commits = self.all_commits(branches)
        self.check_lineage_rows(commits)
        self.check_first(commits)
        ids = {row["graph_commit_id"] for row in commits}
        if not self.crashed:
            for publish_id in sorted(self.publish_ids - ids):
                self.wrong(f"publish {publish_id}", "has no row in _graph_commits.lance")
        actors = lance.dataset(str(self.root / _LINEAGE[1]))
        named = set(actors.to_table()["graph_commit_id"].to_pylist())
        if named & self.publish_ids:
            self.check_no_cleanup(_LINEAGE[1], actors)
        for commit_id in sorted(named - ids):
            self.wrong(f"actor of {commit_id}", "no such commit")

    def check_lineage_rows(self, commits: list[dict[str, Any]]) -> None:
        ids = {row["graph_commit_id"] for row in commits}
        versions: dict[tuple[str, int], str] = {}
        notes = self.recoveries()
        for row in commits:
            at = f"commit {row['graph_commit_id']}"
            branch = row["manifest_branch"] or "main"
            if not _ULID.match(row["graph_commit_id"]):
                self.wrong(at, "is not a ULID")
            if row["graph_commit_id"] in notes:
                continue
            other = versions.setdefault((branch, row["manifest_version"]), row["graph_commit_id"])
            if other != row["graph_commit_id"]:
                self.wrong(at, f"and {other} are both version {row['manifest_version']}")
            if branch in self.heads and row["manifest_version"] > self.heads[branch]:
                self.wrong(at, f"version {row['manifest_version']} of {branch} isn't there")
            for parent in ("parent_commit_id", "merged_parent_commit_id"):
                if row[parent] is not None and row[parent] not in ids:
                    self.wrong(at, f"{parent} {row[parent]} isn't there")

    def all_commits(self, branches: list[str]) -> list[dict[str, Any]]:
        """Return the rows of all lines, each once: a branch's begins with those it inherited."""
        known = lance.dataset(str(self.root / _LINEAGE[0])).branches.list()
        rows: dict[str, dict[str, Any]] = {}
        for branch in (None, *(one for one in branches if one in known)):
            log = relocation.open_for_reading(self.storage, _LINEAGE[0], branch)
            for row in log.to_table().to_pylist():
                other = rows.setdefault(row["graph_commit_id"], row)
                if {**other, "created_at": 0} != {**row, "created_at": 0}:
                    self.wrong(f"commit {row['graph_commit_id']}", "two rows of it differ")
        return list(rows.values())

    def recoveries(self) -> set[str]:
        """Return the commits that only note what the engine took back."""
        place = self.root / _RECOVERIES
        if not place.is_dir():
            return set()
        return set(lance.dataset(str(place)).to_table()["graph_commit_id"].to_pylist())

    def check_first(self, commits: list[dict[str, Any]]) -> None:
        first = [row for row in commits if row["parent_commit_id"] is None]
        if len(first) != 1:
            self.wrong(_LINEAGE[0], f"{len(first)} commits have no parent, not the first alone")
            return
        main = [row["manifest_version"] for row in commits if row["manifest_branch"] is None]
        if first[0]["manifest_branch"] is not None or first[0]["manifest_version"] != min(main):
            self.wrong(_LINEAGE[0], f"the commit without a parent isn't the first: {first[0]}")

    def check_runs(self) -> None:
        for name in _RUNS:
            if (self.root / name).is_dir():
                dataset = lance.dataset(str(self.root / name))
                self.check_dataset(name, dataset, row_ids=False)
                self.check_columns(name, dataset.schema, _LOG_COLUMNS[name])
        if not (self.root / _RUNS[0]).is_dir():
            return
        statuses: dict[str, list[str]] = defaultdict(list)
        rows = lance.dataset(str(self.root / _RUNS[0])).to_table().to_pylist()
        for row in sorted(rows, key=lambda one: one["updated_at"]):
            statuses[row["run_id"]].append(row["status"])
            if not _ULID.match(row["run_id"]) or row["status"] not in _STATUSES:
                self.wrong(f"run {row['run_id']}", f"status {row['status']}")
        for run_id, seen in statuses.items():
            if seen[-1] == "running" and not self.crashed:
                self.wrong(f"run {run_id}", "is still running")


def _live(rows: list[dict[str, Any]], branch: str | None) -> dict[str, dict[str, Any]]:
    """Return the live version row per table key (format.md, "Snapshot of a graph branch")."""
    floors: dict[str, int] = defaultdict(int)
    for row in rows:
        if row["object_type"] == "table_tombstone":
            floors[row["table_key"]] = max(floors[row["table_key"]], row["table_version"])
    live: dict[str, dict[str, Any]] = {}
    for row in rows:
        key = row["table_key"]
        if row["object_type"] != "table_version" or row["table_version"] <= floors[key]:
            continue
        rank = (row["table_version"], row["table_branch"] == branch)
        other = live.get(key)
        if other is None or rank > (other["table_version"], other["table_branch"] == branch):
            live[key] = row
    return live


def _moves_rows(head: lance.LanceDataset, pinned: int) -> bool:
    """Return whether HEAD isn't clean: more than config and indices is above the pinned version.

    What a Restore of the pinned version covers is of no account (rule 12).
    """
    for version in range(head.version, pinned, -1):
        transaction = head.read_transaction(version)
        operation = None if transaction is None else transaction.operation
        if isinstance(operation, lance.LanceOperation.Restore) and operation.version == pinned:
            return False
        if type(operation).__name__ not in ("UpdateConfig", "CreateIndex"):
            return True
    return False


def _json(row: dict[str, Any]) -> dict[str, Any]:
    if row["object_type"] != "table_version" or not row["metadata"]:
        return {}
    found: dict[str, Any] = json.loads(row["metadata"])
    return found


def _fnv1a64(text: str) -> str:
    value = 0xCBF29CE484222325
    for byte in text.encode("utf-8"):
        value = ((value ^ byte) * 0x100000001B3) % (1 << 64)
    return f"{value:016x}"
