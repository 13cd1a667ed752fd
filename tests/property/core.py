"""Steps of a random sequence, done to a real graph and to the model; without Spark."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import pyarrow as pa
import pytest

from omnigraph_spark.branches import manage, refs, restore, tags
from omnigraph_spark.errors import UnsupportedError
from omnigraph_spark.manifest.snapshot import Snapshot, load
from omnigraph_spark.read.plan import read_table
from omnigraph_spark.storage import Storage
from omnigraph_spark.write.commit import commit
from omnigraph_spark.write.stage import stage
from tests.property.model import Branch, Model, Table, Tables, Version
from tests.support.writes import COMPANY, KNOWS, PERSON, plan, write_options

KEYS = (PERSON, KNOWS, COMPANY)
Step = tuple[str, int, int, int]
"""What to do, and three numbers that choose what to do it to, whatever there is by then."""

KINDS = ("append", "append", "overwrite", "both", "branch", "restore", "tag", "untag", "delete")


@dataclass
class Run:
    """One sequence: the graph, its model, and a counter that makes values differ."""

    storage: Storage
    model: Model
    count: int = 0
    log: list[str] = field(default_factory=list)

    @classmethod
    def begin(cls, storage: Storage) -> Run:
        """Begin with a graph as it is."""
        snapshot = load(storage)
        at = ("main", snapshot.graph_version)
        found = {key: contents(storage, snapshot, key) for key in snapshot.tables}
        return cls(storage, Model({"main": Branch(None, at)}, {at: found}))

    # --- steps -------------------------------------------------------------------------------

    def do(self, step: Step) -> None:
        """Do one step to both, and compare every ref."""
        kind, *numbers = step
        getattr(self, f"do_{kind}")(*numbers)
        self.check_refs()

    def do_append(self, where: int, which: int, many: int) -> None:
        """Append new rows to one table; now and then the table is new."""
        self.write(self.branch(where), "append", {KEYS[which % 3]: self.new_rows(1 + many % 3)})

    def do_both(self, where: int, which: int, many: int) -> None:
        """Append to two tables in one commit."""
        keys = (PERSON, KNOWS) if which % 2 else (KNOWS, COMPANY)
        rows = {key: self.new_rows(1 + many % 2) for key in keys}
        self.write(self.branch(where), "append", rows)

    def do_overwrite(self, where: int, which: int, many: int) -> None:
        """Replace a table: some rows stay, some change, some go, one is new; or all go."""
        branch, key = self.branch(where), KEYS[which % 3]
        old = self.model.tables(branch).get(key, {})
        self.count += 1
        kept = {
            one: value if (number + many) % 3 else self.count
            for number, (one, value) in enumerate(old.items())
            if (number + many) % 4
        }
        self.write(branch, "overwrite", {key: {} if many == 7 else {**kept, **self.new_rows(1)}})

    def do_branch(self, where: int, which: int, many: int) -> None:
        """Make a branch at a head, at an older version, or at a tag."""
        name = ("a", "a/b", "b", "ab")[many % 4]
        if name in self.model.branches:
            return
        branch = self.branch(where)
        lineage = self.model.lineage(branch)
        at = lineage[which % len(lineage)] if which % 3 == 0 else self.model.branches[branch].head
        ref = branch if at == self.model.branches[branch].head else f"{at[0]}@{at[1]}"
        manage.create_branch(self.storage, name, refs.named(self.storage, ref))
        head = (branch, load(self.storage, branch).graph_version)
        self.model.fork(name, at if ref != branch else self.as_inherited(branch, head))
        self.log.append(f"branch {name} from {ref}")

    def as_inherited(self, branch: str, head: Version) -> Version:
        """Return a branch's head as what it publishes next counts: on the branch itself."""
        self.model.versions.setdefault(head, self.model.tables(branch))
        return head

    def do_restore(self, where: int, which: int, many: int) -> None:
        """Restore a branch to a version that it had."""
        branch = self.branch(where)
        lineage = self.model.lineage(branch)
        at = lineage[which % len(lineage)]
        done = restore.restore(self.storage, write_options(self.storage, branch=branch), str(at[1]))
        if not done.skipped:
            self.model.publish(branch, done.graph_version, self.model.versions[at])
        assert self.model.tables(branch) == self.model.versions[at]
        self.log.append(f"restore {branch} to {at}")

    def do_tag(self, where: int, which: int, many: int) -> None:
        """Tag a version that a branch had."""
        name = f"t{many % 2}"
        if name not in self.model.tags:
            lineage = self.model.lineage(self.branch(where))
            at = lineage[which % len(lineage)]
            tags.create_tag(self.storage, name, refs.named(self.storage, f"{at[0]}@{at[1]}"))
            self.model.tags[name] = at
            self.log.append(f"tag {name} at {at}")

    def do_untag(self, where: int, which: int, many: int) -> None:
        """Delete a tag."""
        name = f"t{many % 2}"
        if self.model.tags.pop(name, None):
            tags.delete_tag(self.storage, name)
            self.log.append(f"untag {name}")

    def do_delete(self, where: int, which: int, many: int) -> None:
        """Delete a branch, or see it refused where something needs it."""
        branch = self.branch(where)
        if branch == "main" or self.model.needed_by(branch):
            with pytest.raises(UnsupportedError, match="OMNIGRAPH_UNSUPPORTED"):
                manage.delete_branch(self.storage, branch, 0.01)
            return
        manage.delete_branch(self.storage, branch, 0.01)
        self.model.delete(branch)
        self.log.append(f"delete {branch}")

    # --- help --------------------------------------------------------------------------------

    def branch(self, number: int) -> str:
        """Return the branch that a number chooses."""
        names = list(self.model.branches)
        return names[number % len(names)]

    def new_rows(self, many: int) -> Table:
        """Return rows of ids that were never used."""
        self.count += 1
        return {f"{self.count}.{number}": self.count for number in range(many)}

    def write(self, branch: str, mode: str, rows: Tables) -> None:
        """Write rows to both."""
        planned = plan(self.storage, list(rows), mode, branch=branch)
        batches = [(key, batch(planned.targets[key].schema, rows[key])) for key in rows]
        done = commit(planned, stage(planned, batches))
        old = self.model.tables(branch)
        new = {k: {**(old.get(k, {}) if mode == "append" else {}), **rows[k]} for k in rows}
        self.model.publish(branch, done.graph_version, {**old, **new})
        self.log.append(f"{mode} {dict(rows)} to {branch}: {done.graph_version}")

    # --- comparing ---------------------------------------------------------------------------

    def check_refs(self) -> None:
        """Compare every table of every ref with the model."""
        branches = [one.name for one in refs.list_branches(self.storage)]
        assert sorted(branches) == sorted(self.model.branches), self.log
        listed = {tag.name: (tag.branch, tag.version) for tag in refs.list_tags(self.storage)}
        assert listed == self.model.tags, self.log
        seen: dict[object, Table] = {}
        for name in branches:
            self.compare(load(self.storage, name), self.model.tables(name), seen)
        for at in self.model.tags.values():
            self.compare(load(self.storage, *at), self.model.versions[at], seen)

    def check_versions(self) -> None:
        """Compare every table of every version that was ever published and is not deleted."""
        seen: dict[object, Table] = {}
        for at, tables in self.model.versions.items():
            self.compare(load(self.storage, *at), tables, seen)

    def compare(self, snapshot: Snapshot, expected: Tables, seen: dict[object, Table]) -> None:
        """Compare a snapshot's tables; each table version is read once."""
        where = (snapshot.branch, snapshot.graph_version, self.log)
        assert sorted(snapshot.tables) == sorted(expected), where
        for key, rows in expected.items():
            entry = snapshot.tables[key]
            place = (key, entry.table_branch, entry.table_version)
            if place not in seen:
                seen[place] = contents(self.storage, snapshot, key)
            assert seen[place] == rows, (*where, key)
            assert entry.row_count == len(rows), (*where, key)


def contents(storage: Storage, snapshot: Snapshot, key: str) -> Table:
    """Return a table's rows; ids are never doubled here."""
    table = read_table(storage, snapshot, key)
    value = table["w"].cast(pa.int64()) if "w" in table.column_names else table["age"]
    found = dict(zip(table["id"].to_pylist(), value.to_pylist(), strict=True))
    assert len(found) == table.num_rows
    return found


def batch(schema: pa.Schema, rows: Mapping[str, int]) -> pa.RecordBatch:
    """Return rows in a table's schema: text columns hold the id, numbers the value."""
    ids: Sequence[str] = list(rows)
    columns = [
        pa.array(ids if one.type == pa.utf8() else list(rows.values()), one.type) for one in schema
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)
