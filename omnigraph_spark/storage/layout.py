"""Names and places of a graph on disk: table keys, dataset locations, manifest object ids.

Pure functions over strings (format.md, "Tree" and "`__manifest` rows"); they run on the driver.
"""

from __future__ import annotations

import re
from typing import NamedTuple
from urllib.parse import quote

from omnigraph_spark.errors import CorruptManifestError, OptionError

MANIFEST = "__manifest"
GRAPH_COMMITS = "_graph_commits.lance"
GRAPH_COMMIT_ACTORS = "_graph_commit_actors.lance"
GRAPH_RUNS = "_graph_runs.lance"
GRAPH_RUN_ACTORS = "_graph_run_actors.lance"
OWN_DATASETS = frozenset(
    {MANIFEST, GRAPH_COMMITS, GRAPH_COMMIT_ACTORS, GRAPH_RUNS, GRAPH_RUN_ACTORS}
)
"""The datasets that the graph itself keeps, beside those of its tables."""
RECOVERY = "__recovery"
WRITERS = "__writers"
"""Crash records of this connector in graphs whose engines read each file in `__recovery`."""
SCHEMA_LOCK = "__schema_apply_lock__"
"""The branch of `__manifest` that is there while an engine changes the schema."""
STAGING = "__staging"
DAMAGED = "__damaged"
SCHEMA_PG = "_schema.pg"
SCHEMA_IR = "_schema.ir.json"
SCHEMA_STATE = "__schema_state.json"
SCHEMA_FILES = (SCHEMA_PG, SCHEMA_IR, SCHEMA_STATE)
MAIN = "main"

# Properties of Lance transactions on tables: whose commit it is, and that it left nothing behind.
PUBLISH_ID_PROPERTY = "omnigraph_spark.publish_id"
UNDO_PROPERTY = "omnigraph_spark.undo"

NODE = "node"
EDGE = "edge"
_FOLDER = {NODE: "nodes", EDGE: "edges"}
TABLE_FOLDERS = tuple(_FOLDER.values())
_TYPE_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
_MAX_NAME = 128
_MAX_BRANCH = 200  # of the ref's file name: with what Lance adds it must fit into 255 bytes
_BRANCH_SEGMENT = re.compile(r"[A-Za-z0-9._\-]+\Z")
_RESERVED_BRANCH = re.compile(rf"__run__|{SCHEMA_LOCK}\Z")


def fnv1a64(text: str) -> str:
    """Return the 64-bit FNV-1a of `text` in UTF-8 as 16 lower-case hex digits."""
    value = 0xCBF29CE484222325
    for byte in text.encode("utf-8"):
        value = ((value ^ byte) * 0x100000001B3) & 0xFFFFFFFFFFFFFFFF
    return f"{value:016x}"


def fnv1a32(text: str) -> int:
    """Return the 32-bit FNV-1a of `text` in UTF-8, 0 as 1."""
    value = 2166136261
    for byte in text.encode("utf-8"):
        value = ((value ^ byte) * 16777619) & 0xFFFFFFFF
    return value or 1


def table_key(kind: str, type_name: str) -> str:
    """Return `node:Person` for (`node`, `Person`)."""
    return f"{kind}:{type_name}"


def split_table_key(key: str) -> tuple[str, str]:
    """Return (kind, type name) of a checked table key.

    Raises:
        OptionError: `key` isn't `node:Type` or `edge:Type` with a valid type name.
    """
    kind, colon, name = key.partition(":")
    if not colon or kind not in _FOLDER:
        raise OptionError(
            f"{_shown(key)} is not a valid table key",
            expected="node:Type or edge:Type",
            hint="For example node:Person or edge:Knows",
        )
    check_type_name(name)
    return kind, name


def is_table_key(key: str) -> bool:
    """Return whether `key` has the form `node:Type` or `edge:Type`."""
    kind, colon, name = key.partition(":")
    return bool(colon) and kind in _FOLDER and _valid_type_name(name)


def is_edge(key: str) -> bool:
    """Return whether a table key is that of an edge table."""
    return key.startswith(f"{EDGE}:")


def _valid_type_name(name: str) -> bool:
    return bool(_TYPE_NAME.match(name)) and len(name) <= _MAX_NAME


def check_type_name(name: str) -> None:
    """Refuse a type name that can't be one of OmniGraph's.

    Raises:
        OptionError: not of the form `[A-Za-z_][A-Za-z0-9_]*`, or longer than 128 characters.
    """
    if not _valid_type_name(name):
        raise OptionError(
            f"{_shown(name)} is not a valid type name",
            expected=f"[A-Za-z_][A-Za-z0-9_]*, at most {_MAX_NAME} characters",
        )


def table_location(key: str) -> str:
    """Return where a new table's dataset goes: `nodes/{fnv1a64}` or `edges/{fnv1a64}`."""
    _, name = split_table_key(key)
    return folder_of(key, fnv1a64(name))


def folder_of(key: str, name: str) -> str:
    """Return the folder of this name among those of a table's kind."""
    return f"{_FOLDER[key.partition(':')[0]]}/{name}"


class Identity(NamedTuple):
    """The two ids of a table: one for its type, one for each time that the type was made."""

    stable: int
    incarnation: int

    def object_id(self, kind: str, version: int | None = None) -> str:
        """Return the `object_id` of a row of the table."""
        number = "" if version is None else f":{version:020d}"
        return f"{kind}:{self.stable:016x}:{self.incarnation:016x}{number}"

    def location(self, table_key: str) -> str:
        """Return where the table's dataset is."""
        return folder_of(table_key, f"{self.stable:016x}-{self.incarnation:016x}")


def check_location(location: str | None, key: str) -> str:
    """Return a `location` read from `__manifest` if it stays inside the graph's root.

    Raises:
        CorruptManifestError: it is missing, absolute, a URI, or climbs out of the root.
    """
    parts = (location or "").split("/")
    safe = (
        location is not None
        and len(parts) == 2
        and parts[0] in _FOLDER.values()
        and re.fullmatch(r"[A-Za-z0-9_\-]+", parts[1]) is not None
    )
    if not safe or location is None:
        raise CorruptManifestError(
            f"The location of {_shown(key)} in {MANIFEST} leaves the graph or is malformed",
            expected="nodes/{id} or edges/{id}",
            found=_shown(str(location)),
            hint="The graph's catalog is damaged; nothing was read from or written to that place",
        )
    return location


def version_object_id(key: str, version: int) -> str:
    """Return the `object_id` of a `table_version` row (format.md, "`__manifest` rows")."""
    return f"{key}${version:020d}"


def tombstone_object_id(key: str, version: int) -> str:
    """Return the `object_id` of a `table_tombstone` row."""
    return f"{key}$tombstone${version:020d}"


def check_branch_name(name: str) -> str:
    """Return a branch name that may be created or written to.

    Raises:
        OptionError: hostile (`..`, absolute, spaces, control characters), too long, or reserved by
            the engine (`__run__…`, `__schema_apply_lock__`).
    """
    segments = name.split("/")
    valid = (
        0 < len(_ref_file(name)) <= _MAX_BRANCH
        and all(_BRANCH_SEGMENT.match(s) and not s.startswith(".") for s in segments)
        and not any(s.endswith(".lock") or ".." in s for s in segments)
    )
    if not valid:
        raise OptionError(
            f"{_shown(name)} is not a valid branch name",
            expected=(
                "letters, digits, '.', '-' and '_', in parts joined by '/', no part starting with"
                f" '.', at most {_MAX_BRANCH} characters (a '/' counts five)"
            ),
        )
    if _RESERVED_BRANCH.match(name):
        raise OptionError(f"{_shown(name)} is reserved by the engine", expected="another name")
    return name


def _ref_file(branch: str) -> str:
    """Return a branch's name as a file name holds it while Lance writes the ref: encoded twice."""
    return branch.replace("/", "%252F")


def line(location: str, branch: str | None) -> str:
    """Return the folder of a dataset's main line, or of one of its Lance branches."""
    name = lance_branch(branch)
    return location if name is None else f"{location}/tree/{name}"


def ref_path(location: str, branch: str) -> str:
    """Return the path of the file that makes Lance list a branch of a dataset."""
    return f"{location}/_refs/branches/{quote(branch, safe='')}.json"


def lance_branch(branch: str | None) -> str | None:
    """Return Lance's name of a graph branch: None for `main`, which is never stored."""
    return None if branch is None or branch == MAIN else branch


def v2_manifest_name(version: int) -> str:
    """Return the file name of a dataset version under the V2 naming scheme."""
    return f"{0xFFFFFFFFFFFFFFFF - version:020d}.manifest"


def _shown(text: str) -> str:
    """Return hostile text as a short, printable literal."""
    shown = repr(text)
    return shown if len(shown) <= 80 else f"{shown[:77]}…'"


KINDS: dict[str, str] = {
    "BTREE": "BTree",
    "BITMAP": "Bitmap",
    "LABEL_LIST": "LabelList",
    "INVERTED": "Inverted",
    "NGRAM": "NGram",
    "ZONEMAP": "ZoneMap",
    "BLOOMFILTER": "BloomFilter",
}
"""What they are built by, and what Lance calls them once they are there."""

BY_LANCES_NAME = {theirs: ours for ours, theirs in KINDS.items()}
