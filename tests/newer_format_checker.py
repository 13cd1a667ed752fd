"""The rules of stamps 4 and 6, for `check_graph`: what today's engines demand of a graph.

What its engine refuses the whole graph for comes first; then what makes its writes fail or go
wrong: drift, a lost primary key, columns in another order. Like `format_checker.py` it has a fold
of its own.
"""

from __future__ import annotations

import datetime
import json
from collections import Counter, defaultdict
from dataclasses import dataclass, replace
from typing import Any

import lance
import pyarrow as pa

from omnigraph_spark.errors import OmnigraphError
from omnigraph_spark.schema import ir2, shape
from omnigraph_spark.schema.model import EdgeType, EngineSchema, NodeType
from omnigraph_spark.schema.pg import parse_pg
from omnigraph_spark.storage import relocation
from omnigraph_spark.storage.lance_errors import DatasetNotFoundError
from tests import format_checker as older

Row = dict[str, Any]
Pair = tuple[int, int]

_LOCK = "__schema_apply_lock__"
_KEYED = b"lance-schema:unenforced-primary-key"
_KEY_PLACE = b"lance-schema:unenforced-primary-key:position"
_TABLE_KINDS = ("table", "table_version", "table_tombstone")
_LINEAGE_KINDS = ("graph_commit", "graph_head")
_RESERVED = {
    *("_rowid", "_rowaddr", "_rowoffset", "_row_created_at_version"),
    "_row_last_updated_at_version",
}
_CONFIG = {"table_version_management"}
_IDS = [("stable_table_id", pa.uint64(), True), ("table_incarnation_id", pa.uint64(), True)]
_LOOKED_BACK = 40  # commits whose versions are compared with the manifest's own


@dataclass(frozen=True)
class _Live:
    """A table that is there on a branch: its newest version row, its name and its folder."""

    pair: Pair | None
    key: str
    location: str
    row: Row


class NewerChecker(older._Checker):
    """A graph of stamp 4 or 6; what both share with stamp 2 is inherited."""

    stamp = "4"
    columns = tuple(older._MANIFEST_COLUMNS)
    schema_files = older._SCHEMA_FILES

    def run(self) -> None:
        self.check_tree()
        main = lance.dataset(str(self.root / "__manifest"))
        self.check_manifest_dataset(main)
        branches = sorted(main.branches.list())
        self.check_branches(branches)
        schema = self.check_schema_files()
        for branch in (None, *(one for one in branches if one != _LOCK)):
            try:
                self.check_branch(branch, schema)
            except (OmnigraphError, OSError, ValueError, KeyError, pa.ArrowException) as error:
                self.wrong(f"branch {branch or 'main'}", f"can't be read: {error}")
        self.check_folders()

    # --- tree ----------------------------------------------------------------------------------

    def check_tree(self) -> None:
        folders = {"__manifest", "nodes", "edges", "__recovery", "__staging", "__writers"}
        folders.add(older._RECOVERIES)
        for entry in sorted(self.root.iterdir()):
            allowed = folders if entry.is_dir() else self.schema_files
            if entry.name in allowed or (self.crashed and self.is_half_done(entry.name)):
                continue
            self.wrong(entry.name, "is not a part of a graph")
        for record in sorted((self.root / "__recovery").glob("*.json")):
            self.check_record(f"__recovery/{record.name}", record.stem, record.read_bytes())
        if self.crashed:
            return
        for folder in ("__recovery", "__staging", "__writers"):
            left = [one for one in (self.root / folder).rglob("*") if one.is_file()]
            self.found += [f"{one.relative_to(self.root)}: left over" for one in sorted(left)]

    def is_half_done(self, name: str) -> bool:
        return name in {f"{one}.staging" for one in self.schema_files}

    def check_record(self, at: str, name: str, data: bytes) -> None:
        """A record that an engine can't parse stops every verb of it."""

    def check_branches(self, branches: list[str]) -> None:
        """Branches may be named after others."""

    # --- __manifest ----------------------------------------------------------------------------

    def check_manifest_dataset(self, main: lance.LanceDataset) -> None:
        self.check_dataset("__manifest", main, row_ids=False)
        self.check_columns("__manifest", main.schema, list(self.columns))
        if main.schema.field("object_id").metadata != {_KEYED: b"true"}:
            self.wrong("__manifest", "object_id isn't the primary key")
        if main.describe_indices():
            self.wrong("__manifest", "has an index")
        other = sorted(set(main.config()) - _CONFIG)
        if other:
            self.wrong("__manifest", f"has the settings {', '.join(other)}")

    def check_branch(self, branch: str | None, schema: EngineSchema) -> None:
        where = f"branch {branch or 'main'}"
        self.heads[branch or "main"] = self.storage.dataset("__manifest", branch).version
        manifest = relocation.open_for_reading(self.storage, "__manifest", branch)
        stamp = (manifest.schema.metadata or {}).get(b"omnigraph:internal_schema_version")
        if stamp != self.stamp.encode():
            self.wrong(where, f"stamp {stamp!r}, not {self.stamp}")
        rows: list[Row] = manifest.to_table().to_pylist()
        for object_id, times in Counter(row["object_id"] for row in rows).items():
            if times > 1:
                self.wrong(where, f"{times} rows of {object_id}")
        self.check_rows(where, rows)
        self.check_commits(where, branch, rows)
        tables = self.fold(where, branch, rows)
        self.check_tables_of_types(where, tables, schema)
        for one in tables:
            self.check_live(f"{where} {one.key}", branch, one, schema)

    def check_rows(self, where: str, rows: list[Row]) -> None:
        by_id = {row["object_id"]: row for row in rows}
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

    def fold(self, where: str, branch: str | None, rows: list[Row]) -> list[_Live]:
        locations = {r["table_key"]: r["location"] for r in rows if r["object_type"] == "table"}
        self.locations |= set(locations.values())
        live = older._live(rows, branch)
        return [
            _Live(None, key, locations[key], row)
            for key, row in sorted(live.items())
            if key in locations
        ]

    def check_tables_of_types(self, where: str, tables: list[_Live], schema: EngineSchema) -> None:
        for one in tables:
            if schema.of_table(one.key) is None:
                self.wrong(f"{where} {one.key}", "published, and unknown to _schema.pg")

    # --- lineage -------------------------------------------------------------------------------

    def check_commits(self, where: str, branch: str | None, rows: list[Row]) -> None:
        commits = [row for row in rows if row["object_type"] == "graph_commit"]
        told = {row["object_id"]: self.check_commit(where, row) for row in commits}
        commits = [row for row in commits if told[row["object_id"]] is not None]
        for row in commits:
            for parent in ("parent_commit_id", "merged_parent_commit_id"):
                named = told[row["object_id"]].get(parent)
                # What was merged from another branch has its row there.
                if named is not None and named not in told and parent == "parent_commit_id":
                    self.wrong(f"{where} {row['object_id']}", f"{parent} {named} isn't there")
        first = [row for row in commits if "parent_commit_id" not in told[row["object_id"]]]
        if len(first) != 1:
            self.wrong(where, f"{len(first)} commits have no parent, not the first alone")
        own = [row for row in commits if row["table_branch"] == branch]
        for number, times in Counter(row["table_version"] for row in own).items():
            if times > 1:
                self.wrong(where, f"{times} commits of version {number}")
        parents = Counter(told[row["object_id"]].get("parent_commit_id") for row in own)
        for parent, times in parents.items():
            if times > 1:
                self.wrong(where, f"{times} commits after {parent}: not one line")
        self.check_heads(where, branch, rows, commits)
        self.check_numbers(where, branch, own)

    def check_commit(self, where: str, row: Row) -> Any:
        at = f"{where} {row['object_id']}"
        if not older._ULID.match(row["object_id"]):
            self.wrong(at, "is not a ULID")
        if row["table_key"] != "" or row["table_version"] is None:
            self.wrong(at, "a commit has no table and a version")
            return None
        told = _parsed(row["metadata"])
        if told is None or not isinstance(told.get("created_at"), int):
            self.wrong(at, f"metadata {row['metadata']!r} of a commit")
            return None
        allowed = {"parent_commit_id", "merged_parent_commit_id", "actor_id", "created_at"}
        if any(value is None for value in told.values()) or not told.keys() <= allowed:
            self.wrong(at, f"metadata {row['metadata']!r}: keys that a commit hasn't")
        return told

    def check_heads(
        self, where: str, branch: str | None, rows: list[Row], commits: list[Row]
    ) -> None:
        heads: dict[str, Row] = {}
        for row in rows:
            if row["object_type"] != "graph_head":
                continue
            at = f"{where} {row['object_id']}"
            told = _parsed(row["metadata"])
            if row["table_key"] != "" or not row["object_id"].startswith("graph_head:"):
                self.wrong(at, "is not the name of a head")
            elif told is None or not isinstance(told.get("head_commit_id"), str):
                self.wrong(at, f"metadata {row['metadata']!r} of a head")
            else:
                heads[row["object_id"].removeprefix("graph_head:")] = told
        if "main" not in heads:
            self.wrong(where, "no graph_head:main")
        newest = max(commits, key=_order, default=None)
        own = heads.get(branch or "main")
        if newest is None or own is None:
            return
        if own["head_commit_id"] != newest["object_id"]:
            self.wrong(where, f"head {own['head_commit_id']}, newest {newest['object_id']}")
        parent = (_parsed(newest["metadata"]) or {}).get("parent_commit_id")
        if own.get("parent_commit_id") != parent:
            self.wrong(where, f"the head's parent is {own.get('parent_commit_id')}, not {parent}")

    def check_numbers(self, where: str, branch: str | None, own: list[Row]) -> None:
        """A commit's number is that of the manifest version which brought it."""
        for row in sorted(own, key=_order)[-_LOOKED_BACK:]:
            number = row["table_version"]
            at = f"{where} {row['object_id']}"
            if number > self.heads[branch or "main"]:
                self.wrong(at, f"version {number} isn't there")
                continue
            there = self.has_commit(branch, number, row["object_id"])
            before = number > 1 and self.has_commit(branch, number - 1, row["object_id"])
            if there is False or before is True:
                self.wrong(at, f"isn't what version {number} brought")

    def has_commit(self, branch: str | None, version: int, commit_id: str) -> bool | None:
        try:
            manifest = relocation.open_for_reading(self.storage, "__manifest", branch, version)
        except DatasetNotFoundError:  # cleaned up
            return None
        return bool(manifest.count_rows(f"object_id = '{commit_id}'"))

    # --- tables --------------------------------------------------------------------------------

    def check_live(self, at: str, branch: str | None, one: _Live, schema: EngineSchema) -> None:
        self.check_table(at, one.location, one.row)
        own_line = one.row["table_branch"] == branch  # an inherited version's line moves on
        if own_line and not self.crashed:
            head = self.storage.dataset(one.location, branch)
            if head.version > one.row["table_version"]:
                self.wrong(at, f"HEAD {head.version} is ahead of {one.row['table_version']}")
        if schema.of_table(one.key) is not None:
            self.check_properties(one.key, one.location, one.row, schema)


class IdentityChecker(NewerChecker):
    """A graph of stamp 6: its tables have two ids."""

    stamp = "6"
    columns = (*older._MANIFEST_COLUMNS[:6], *_IDS, *older._MANIFEST_COLUMNS[6:])
    schema_files = (*older._SCHEMA_FILES, "__init_claim.json")
    tables_of_types: dict[str, Pair]

    def check_branches(self, branches: list[str]) -> None:
        for one in branches:
            for other in branches:
                if other.startswith(f"{one}/"):
                    self.wrong(f"branch {other}", f"lies below branch {one}")
        if _LOCK in branches and not self.crashed:
            self.wrong(f"branch {_LOCK}", "the lock of a schema change is left over")

    def check_record(self, at: str, name: str, data: bytes) -> None:
        told = _parsed(data.decode("utf-8", "replace"))
        if told is None:
            self.wrong(at, "is not a JSON object")
            return
        version, pins = told.get("schema_version"), told.get("tables")
        if not isinstance(version, int) or version > 9 or told.get("operation_id") != name:
            self.wrong(at, f"is not a record of schema 9 with the id {name}")
        if not isinstance(pins, list) or any("identity" not in pin for pin in pins):
            self.wrong(at, "a pin without identity")

    # --- rows ----------------------------------------------------------------------------------

    def check_rows(self, where: str, rows: list[Row]) -> None:
        tables = {_pair(row): row for row in rows if row["object_type"] == "table"}
        for row in rows:
            at = f"{where} {row['object_id']}"
            kind, pair = row["object_type"], _pair(row)
            if kind in _LINEAGE_KINDS and pair != (None, None):
                self.wrong(at, f"has the ids {pair}")
            if kind not in _TABLE_KINDS:
                continue
            if not pair[0] or not pair[1]:
                self.wrong(at, f"has the ids {pair}")
                continue
            if row["object_id"] != _object_id(row):
                self.wrong(at, f"object_id is not {_object_id(row)}")
            if kind == "table":
                self.check_place(at, row, pair)
            elif pair not in tables:
                self.wrong(at, "no table row of its ids")
            elif kind == "table_version":
                self.check_version(at, row, tables[pair])
            elif row["table_version"] is None or row["table_key"] != tables[pair]["table_key"]:
                self.wrong(at, f"a tombstone of {tables[pair]['table_key']} at a version")

    def check_place(self, at: str, row: Row, pair: Pair) -> None:
        wanted = f"{row['table_key'].partition(':')[0]}s/{pair[0]:016x}-{pair[1]:016x}"
        if row["location"] != wanted:
            self.wrong(at, f"location {row['location']}, not {wanted}")

    def check_version(self, at: str, row: Row, table: Row) -> None:
        if row["table_version"] is None or row["row_count"] is None:
            self.wrong(at, "no table_version or row_count")
            return
        told = _parsed(row["metadata"])
        if told is None or not isinstance(told.get("manifest_path"), str):
            self.wrong(at, f"metadata without manifest_path: {row['metadata']}")
            return
        if told.get("naming_scheme") != "V2":
            self.wrong(at, f"naming scheme {told.get('naming_scheme')}")
        ours = told.get(older.OURS)
        if ours is not None:
            self.check_ours(at, told, ours)
            place = {row["table_key"]: {"location": table["location"]}}
            self.check_manifest_path(at, row, told, place)

    def fold(self, where: str, branch: str | None, rows: list[Row]) -> list[_Live]:
        tables = {_pair(row): row for row in rows if row["object_type"] == "table"}
        self.locations |= {row["location"] for row in tables.values()}
        floors: dict[Pair, int] = defaultdict(int)
        newest: dict[Pair, Row] = {}
        for row in rows:
            pair = _pair(row)
            if row["object_type"] == "table_tombstone":
                floors[pair] = max(floors[pair], row["table_version"] or 0)
            elif row["object_type"] == "table_version" and row["table_version"] is not None:
                there = newest.get(pair)
                if there is None or row["table_version"] > there["table_version"]:
                    newest[pair] = row
        live = [
            _Live(pair, tables[pair]["table_key"], tables[pair]["location"], row)
            for pair, row in newest.items()
            if pair in tables and row["table_version"] > floors[pair]
        ]
        for key, times in Counter(one.key for one in live).items():
            if times > 1:
                self.wrong(where, f"{times} live tables of the name {key}")
        return sorted(live, key=lambda one: one.key)

    def check_tables_of_types(self, where: str, tables: list[_Live], schema: EngineSchema) -> None:
        there = {one.key: one.pair for one in tables}
        for key in sorted(there.keys() | self.tables_of_types.keys()):
            wanted = self.tables_of_types.get(key)
            if there.get(key) != wanted:
                self.wrong(f"{where} {key}", f"ids {there.get(key)}, in _schema.ir.json {wanted}")

    # --- tables --------------------------------------------------------------------------------

    def check_live(self, at: str, branch: str | None, one: _Live, schema: EngineSchema) -> None:
        super().check_live(at, branch, one, schema)
        place = (one.location, one.row["table_branch"], one.row["table_version"])
        table = relocation.open_for_reading(self.storage, *place)
        keyed = [f.name for f in table.schema if (f.metadata or {}).get(_KEYED) == b"true"]
        placed = [f.name for f in table.schema if _KEY_PLACE in (f.metadata or {})]
        if keyed != ["id"] or placed:
            self.wrong(at, f"the primary key is {keyed}, with a place: {placed}")
        declared = schema.of_table(one.key)
        if declared is None:
            return
        fixed = ["id", "src", "dst"] if isinstance(declared, EdgeType) else ["id"]
        names = [name for name in table.schema.names if name not in fixed]
        known = {p.name for p in declared.properties}
        if names != sorted(names) and [n for n in names if n in known] != sorted(known):
            self.wrong(at, f"the columns {names} are not in the order of their names")

    def check_properties(self, key: str, location: str, row: Row, schema: EngineSchema) -> None:
        declared = schema.of_table(key)
        assert declared is not None
        plain = declared if isinstance(declared, EdgeType) else replace(declared, key=None)
        super().check_properties(key, location, row, EngineSchema.of([plain]))
        keys = _keys(declared)
        if keys:
            self.check_ids(key, location, row, declared, keys)

    def check_ids(
        self, key: str, location: str, row: Row, declared: NodeType | EdgeType, keys: list[str]
    ) -> None:
        place = (location, row["table_branch"], row["table_version"])
        table = relocation.open_for_reading(self.storage, *place).to_table(columns=["id", *keys])
        for one in table.to_pylist():
            texts = [_text(one[name]) for name in keys]
            wanted = texts[0]
            if len(keys) > 1:
                wanted = json.dumps(texts, separators=(",", ":"), ensure_ascii=False)
            if one["id"] != wanted:
                self.wrong(key, f"the id {one['id']} isn't {wanted}, its key's")
                return

    # --- schema files --------------------------------------------------------------------------

    def check_schema_files(self) -> EngineSchema:
        self.tables_of_types = {}
        texts = {
            name: (self.root / name).read_text("utf-8") if (self.root / name).exists() else None
            for name in older._SCHEMA_FILES
        }
        pg, ir_text, state = texts.values()
        if pg is None or ir_text is None or state is None:
            there = [name for name, text in texts.items() if text is not None]
            self.wrong("schema files", f"only {there} of {list(texts)}")
            return EngineSchema() if pg is None else parse_pg(pg)
        schema = parse_pg(pg)
        try:
            self.check_ir(schema, ir_text, state)
        except OmnigraphError as error:
            self.wrong("_schema.ir.json", f"{error}")
        lowered = Counter(name.lower() for name in schema.edges)
        for name, times in lowered.items():
            if times > 1:
                self.wrong("_schema.pg", f"{times} edge types {name}, but for the case")
        for one in schema.types():
            for name in sorted({p.name for p in one.properties} & _RESERVED):
                self.wrong("_schema.pg", f"{one.name}.{name} is a column of Lance's own")
        return schema

    def check_ir(self, schema: EngineSchema, ir_text: str, state: str) -> None:
        what = ir2.disagreement(schema, ir_text, state)
        if what is not None:
            self.wrong("schema files", what)
        document = ir2.document(ir_text)
        if shape.pretty(document) != ir_text:
            self.wrong("_schema.ir.json", "isn't printed as the engine prints it")
        elif what is None and ir2.changed_ir(schema, ir_text) != ir_text:
            self.wrong("_schema.ir.json", "isn't what the engine makes of _schema.pg")
        if set(json.loads(state)) != set(json.loads(ir2.state_json(ir_text))):
            self.wrong("__schema_state.json", f"keys {sorted(json.loads(state))}")
        for key, ids in ir2.table_ids(document).items():
            self.tables_of_types[key] = (ids.stable, ids.incarnation)


def _pair(row: Row) -> Any:
    return row["stable_table_id"], row["table_incarnation_id"]


def _object_id(row: Row) -> str:
    stable, incarnation = _pair(row)
    named = f"{row['object_type']}:{stable:016x}:{incarnation:016x}"
    return named if row["object_type"] == "table" else f"{named}:{row['table_version'] or 0:020}"


def _order(row: Row) -> tuple[int, int, str]:
    told = _parsed(row["metadata"]) or {}
    return row["table_version"], told.get("created_at", 0), row["object_id"]


def _parsed(text: str | None) -> Any:
    """Return a JSON object, None where it is none."""
    try:
        found = json.loads(text or "")
    except json.JSONDecodeError:
        return None
    return found if isinstance(found, dict) else None


def _keys(declared: NodeType | EdgeType) -> list[str]:
    """Return the properties that a node's id is made of, in their order."""
    if isinstance(declared, EdgeType):
        return []
    rule = next((one for one in declared.constraints() if one.kind == "Key"), None)
    return [] if rule is None else sorted(rule.columns)


def _text(value: Any) -> str:
    """Return a key's value as it stands in an id (floats aside)."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, datetime.datetime):
        return str(int((value - datetime.datetime(1970, 1, 1)).total_seconds() * 1000))
    if isinstance(value, datetime.date):
        return str((value - datetime.date(1970, 1, 1)).days)
    return str(value)
