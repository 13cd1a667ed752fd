"""The original engine as a program: what it says of a graph, and writes of its own.

Its command line is built once from its published source (`docs/internals/development.md` says how);
`OMNIGRAPH_ENGINE` names the program.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any
from uuid import uuid4

from tests.support.graphs import Export, parse_export

Line = Mapping[str, Any]
"""A line of the engine's JSONL: a node (`type`, `data`) or an edge (`edge`, `from`, `to`, `data`)."""


class EngineRefusedError(Exception):
    """What the engine said when it ended with an error."""


@dataclass(frozen=True)
class Engine:
    """The engine's command line, run as a process of its own each time."""

    program: Path

    @cached_property
    def release(self) -> tuple[int, ...]:
        """Return its version, as numbers."""
        said = self.run("--version").split()[-1]
        return tuple(int(part) for part in said.split("."))

    @property
    def is_newer(self) -> bool:
        """Return whether its graphs have their lineage in `__manifest`."""
        return self.release >= (0, 8)

    def run(self, *arguments: str) -> str:
        """Run a command and return what it printed."""
        ran = subprocess.run(
            [str(self.program), *arguments], capture_output=True, text=True, timeout=120
        )
        if ran.returncode != 0:
            said = ran.stderr.partition("Location:")[0]  # what follows is a stack
            raise EngineRefusedError(f"{arguments}: {ran.stdout}{said}")
        return ran.stdout

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        """Start a command and don't wait for it."""
        return subprocess.Popen(
            [str(self.program), *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    @property
    def refuses_heads(self) -> bool:
        """Return whether it refuses to write to a table whose head was never published."""
        return self.release >= (0, 6, 2)

    def make(self, root: Path, schema: str) -> None:
        """Make an empty graph of a schema."""
        text = root.with_name(f"{root.name}.pg")
        text.write_text(schema, encoding="utf-8")
        self.run("init", "--schema", str(text), str(root))

    def export(self, root: Path, branch: str = "main") -> Export:
        """Return every row of a branch."""
        return parse_export(self.run("export", str(root), "--branch", branch))

    def load(
        self, root: Path, lines: Sequence[Line], mode: str = "merge", branch: str = "main"
    ) -> str:
        """Load rows into a branch."""
        return self.run(*self.load_arguments(root, lines, mode, branch))

    def load_arguments(
        self, root: Path, lines: Sequence[Line], mode: str = "merge", branch: str = "main"
    ) -> list[str]:
        """Return the arguments of a load, its rows in a file beside the graph."""
        data = root.parent / f"{root.name}.{uuid4().hex}.jsonl"
        data.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
        asked = ["load", str(root), "--data", str(data), "--mode", mode]
        return [*asked, "--branch", branch, "--json"]

    def mutate(self, root: Path, query: str, branch: str = "main") -> str:
        """Run a mutation, given as text."""
        uri = "--store" if self.release >= (0, 7) else "--uri"
        asked = ["mutate", uri, str(root), "-e", query, "--branch", branch]
        return self.run(*asked, "--json")

    def commits(self, root: Path, branch: str = "main") -> list[dict[str, Any]]:
        """Return the commits of a branch, as the engine lists them."""
        said = json.loads(self.run("commit", "list", str(root), "--branch", branch, "--json"))
        found: list[dict[str, Any]] = said["commits"] if isinstance(said, dict) else said
        return found

    def branches(self, root: Path) -> list[str]:
        """Return the names of the branches, sorted."""
        said = json.loads(self.run("branch", "list", "--uri", str(root), "--json"))
        found = said["branches"] if isinstance(said, dict) else said
        return sorted(one if isinstance(one, str) else one["name"] for one in found)


def person(name: str, **data: Any) -> Line:
    """Return a node of the graphs of `tests/support/writes.py`."""
    return {"type": "Person", "data": {"name": name, **data}}


def knows(source: str, target: str, **data: Any) -> Line:
    """Return an edge of those graphs."""
    return {"edge": "Knows", "from": source, "to": target, "data": data}
