"""A graph in plain Python: what every ref must show after any sequence of steps.

A table is a dict of rows by id, a version a dict of tables, and refs name versions. It knows
nothing of Lance, forks or manifests.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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


@dataclass
class Commits:
    """Which commit came from which: the lineage in plain Python, merges and deleted branches too."""

    parents: dict[str, tuple[str, ...]] = field(default_factory=dict)
    content: dict[str, Tables] = field(default_factory=dict)
    heads: dict[str, str] = field(default_factory=dict)
    at: dict[Version, str] = field(default_factory=dict)
    made_on: dict[str, set[str]] = field(default_factory=dict)
    lost: set[str] = field(default_factory=set)

    def publish(
        self, branch: str, version: int, commit: str, tables: Tables, merged: str | None = None
    ) -> None:
        """Note a commit."""
        own = self.heads.get(branch)
        self.parents[commit] = tuple(one for one in (own, merged) if one is not None)
        self.content[commit] = {key: dict(rows) for key, rows in tables.items()}
        self.heads[branch] = self.at[branch, version] = commit
        self.made_on.setdefault(branch, set()).add(commit)

    def fork(self, name: str, at: Version) -> None:
        """Note a new branch."""
        self.heads[name] = self.at[at]

    def delete(self, branch: str) -> None:
        """Forget a branch: nobody can read its commits any more."""
        del self.heads[branch]
        self.lost |= self.made_on.pop(branch, set())
        self.at = {at: commit for at, commit in self.at.items() if at[0] != branch}

    def ancestors(self, commit: str) -> set[str]:
        """Return a commit and all that it came from."""
        found = {commit}
        for parent in self.parents[commit]:
            found |= self.ancestors(parent)
        return found

    def bases(self, source: str, target: str) -> set[str]:
        """Return the newest commits that two branches have in common."""
        both = self.ancestors(self.heads[source]) & self.ancestors(self.heads[target])
        return both - {parent for one in both for parent in self.parents[one]}


def merged(bases: Sequence[Tables], source: Tables, target: Tables) -> Tables:
    """Return what a merge makes of the target, its own side winning where both changed a row."""
    found: dict[str, Table] = {}
    for key in {*source, *target, *(key for base in bases for key in base)}:
        old, theirs, ours = [base.get(key) for base in bases], source.get(key), target.get(key)
        if all(one == ours for one in old):
            ours = theirs
        elif theirs is not None and ours is not None:
            ours = _rows([one or {} for one in old], theirs, ours)
        if ours is not None:
            found[key] = ours
    return found


def _rows(bases: Sequence[Table], source: Table, target: Table) -> Table:
    chosen = {}
    for one in {*source, *target}:
        values = {base.get(one) for base in bases}
        taken = source if values == {target.get(one)} else target
        if one in taken:
            chosen[one] = taken[one]
    return chosen
