"""Graphs that the original engine wrote, unpacked for a test, and what it exports from them."""

from __future__ import annotations

import json
import tarfile
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PROJECT = Path(__file__).resolve().parents[2]
FIXTURES = PROJECT / "tests" / "data"

# (folder of fixtures, graph, branches that have an export)
ALL_GRAPHS = (
    ("v2", "social", ("main",)),
    ("v2", "pharma", ("main",)),
    ("v2", "rich", ("main", "dev", "feature/merged")),
    ("v2", "evolved", ("main",)),
    ("v1", "social", ("main", "dev")),
    ("v1", "pharma", ("main",)),
    ("v3", "social", ("main", "dev", "feature/merged")),
    ("v4", "social", ("main", "dev", "feature/merged")),
    ("newer", "social", ("main",)),
)


@dataclass(frozen=True)
class Export:
    """What the engine exports from a branch: per table key its rows by `id`, values as in the JSON.

    An edge's row has `id`, `src`, `dst` beside its properties, a node's has `id` where exported.
    """

    tables: dict[str, list[dict[str, Any]]]

    @property
    def row_counts(self) -> dict[str, int]:
        return {key: len(rows) for key, rows in self.tables.items()}


def fixture_file(generation: str, name: str) -> Path:
    """Return a file of the engine's graphs; each generation is a folder of tests/data."""
    return FIXTURES / generation / name


def unpack(generation: str, graph: str, into: Path) -> Path:
    """Unpack a graph below `into` and return its root."""
    into.mkdir(parents=True, exist_ok=True)
    with tarfile.open(fixture_file(generation, f"{graph}.tar.gz")) as archive:
        if hasattr(tarfile, "data_filter"):
            archive.extractall(into, filter="data")
        else:
            archive.extractall(into)
    return into / graph


def export_of(generation: str, graph: str, branch: str = "main") -> Export:
    """Read the engine's own export of a branch."""
    path = fixture_file(generation, f"{graph}.{branch.replace('/', '_')}.jsonl")
    return parse_export(path.read_text(encoding="utf-8"))


def parse_export(text: str) -> Export:
    """Return what the engine's JSON lines say."""
    tables: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for line in text.splitlines():
        row = json.loads(line)
        if "edge" in row:
            values = {**row["data"], "src": row["from"], "dst": row["to"]}
            tables[f"edge:{row['edge']}"].append(values)
        else:
            tables[f"node:{row['type']}"].append(dict(row["data"]))
    return Export(dict(tables))


def file_hashes(root: Path) -> dict[str, str]:
    """Return a hash per file below `root`: equal before and after means that nothing changed."""
    import hashlib

    return {
        str(path.relative_to(root)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(root.rglob("*"))
        if path.is_file()
    }
