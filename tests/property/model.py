"""A graph in plain Python: what every ref must show after any sequence of steps.

A table is a dict of rows by id, a version a dict of tables, and refs name versions. It knows
nothing of Lance, forks or manifests.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

Row = int
"""The one property of a row that changes."""
Table = Mapping[str, Row]
Tables = Mapping[str, Table]
Version = tuple[str, int]
"""A branch and a graph version that was made on it."""


@dataclass
class Branch:
    """A branch: the version that it began at (None: `main`), and the newest that it shows."""

    began: Version | None
    head: Version


@dataclass
class Model:
    """All that was ever published, and what refs name."""

    branches: dict[str, Branch]
    versions: dict[Version, Tables]
    tags: dict[str, Version] = field(default_factory=dict)

    def tables(self, branch: str) -> Tables:
        """Return what a branch's head shows."""
        return self.versions[self.branches[branch].head]

    def publish(self, branch: str, version: int, tables: Tables) -> None:
        """Note a new version of a branch."""
        self.branches[branch].head = (branch, version)
        self.versions[branch, version] = {key: dict(rows) for key, rows in tables.items()}

    def fork(self, name: str, at: Version) -> None:
        """Note a new branch."""
        self.branches[name] = Branch(at, at)

    def needed_by(self, branch: str) -> list[str]:
        """Return the branches and tags that keep a branch from being deleted."""
        children = [n for n, one in self.branches.items() if one.began and one.began[0] == branch]
        return children + [name for name, at in self.tags.items() if at[0] == branch]

    def delete(self, branch: str) -> None:
        """Forget a branch and what was published on it."""
        del self.branches[branch]
        self.versions = {at: t for at, t in self.versions.items() if at[0] != branch}

    def lineage(self, branch: str) -> list[Version]:
        """Return the versions that a branch had, its parents' up to where it began, ascending."""
        found: list[Version] = []
        name, limit = branch, self.branches[branch].head[1]
        while True:
            found += [at for at in self.versions if at[0] == name and at[1] <= limit]
            began = self.branches[name].began
            if began is None:
                return sorted(found, key=lambda at: at[1])
            name, limit = began
