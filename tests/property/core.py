"""Steps of a random sequence, done to a real graph and to the model; without Spark."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, ClassVar, TypeVar

import pyarrow as pa
import pytest

from omnigraph_spark.errors import IntegrityError, UnsupportedError
from omnigraph_spark.history import commits
from omnigraph_spark.history.commits import Commit
from omnigraph_spark.maintenance import optimize
from omnigraph_spark.manifest.snapshot import Snapshot, load
from omnigraph_spark.merge import merging, restore
from omnigraph_spark.merge.tables import Here
from omnigraph_spark.read.plan import read_table
from omnigraph_spark.refs import branches as manage
from omnigraph_spark.refs import merge_base, refs, tags
from omnigraph_spark.refs.changes import Span
from omnigraph_spark.storage.store import Storage
from omnigraph_spark.write.commit.commit import Committed, commit
from omnigraph_spark.write.tasks.stage import stage
from tests.property.model import Branch, Commits, Model, Table, Tables, Version, merged
from tests.support.feeds import of_tables, read_feed
from tests.support.writes import COMPANY, KNOWS, PERSON, plan, write_options

Step = tuple[str, int, int, int]
"""What to do, and three numbers that choose what to do it to, whatever there is by then."""

KINDS = (
    *("append", "append", "overwrite", "upsert", "upsert", "delete", "cascade", "both"),
    *("merge", "merge", "merge", "restore", "compact", "branch", "drop_branch", "tag", "untag"),
)
EFFECTS: Mapping[str, Callable[[Table, Table], Table]] = {
    "append": lambda old, new: {**old, **new},
    "overwrite": lambda old, new: new,
    "merge": lambda old, new: {**old, **new},
    "delete": lambda old, gone: {one: value for one, value in old.items() if one not in gone},
}
"""What a write of each mode makes of a table; another mode needs a line here and a step below."""


AnyRun = TypeVar("AnyRun", bound="Run")


@dataclass
class Run:
    """One sequence: the graph, its model, and a counter that makes values differ."""

    keys: ClassVar[tuple[str, str, str]] = (PERSON, KNOWS, COMPANY)
    storage: Storage
    model: Model
    commits: Commits
    count: int = 0
    seen: dict[object, Table] = field(default_factory=dict)
    log: list[str] = field(default_factory=list)
    lines: dict[str, list[Commit]] = field(default_factory=dict)

    @classmethod
    def begin(cls: type[AnyRun], storage: Storage) -> AnyRun:
        """Begin with a graph as it is."""
        snapshot = load(storage)
        at = ("main", snapshot.graph_version)
        found = {key: contents(storage, snapshot, key) for key in snapshot.tables}
        known = Commits()
        head = commits.head(storage)
        assert head is not None
        known.publish("main", snapshot.graph_version, head.graph_commit_id, found)
        return cls(storage, Model({"main": Branch(None, at)}, {at: found}), known)

    # --- steps -------------------------------------------------------------------------------

    def do(self, step: Step) -> None:
        """Do one step to both, and compare every ref."""
        kind, *numbers = step
        getattr(self, f"do_{kind}")(*numbers)
        self.check_refs()

    def do_append(self, where: int, which: int, many: int) -> None:
        """Append new rows to one table; now and then the table is new."""
        self.write(
            self.branch(where), "append", {self.keys[which % 3]: self.new_rows(1 + many % 3)}
        )

    def do_both(self, where: int, which: int, many: int) -> None:
        """Append to two tables in one commit."""
        two = {self.keys[which % 3], self.keys[(which + 1) % 3]}
        rows = self.new_rows(1 + many % 2)  # an edge's ends have its id: a delete may cascade
        self.write(self.branch(where), "append", dict.fromkeys(sorted(two), rows))

    def do_overwrite(self, where: int, which: int, many: int) -> None:
        """Replace a table: some rows stay, some change, some go, one is new; or all go."""
        branch, key = self.branch(where), self.keys[which % 3]
        old = self.model.tables(branch).get(key, {})
        self.count += 1
        kept = {
            one: value if (number + many) % 3 else self.count
            for number, (one, value) in enumerate(old.items())
            if (number + many) % 4
        }
        self.write(branch, "overwrite", {key: {} if many == 7 else {**kept, **self.new_rows(1)}})

    def do_upsert(self, where: int, which: int, many: int) -> None:
        """Upsert a table: some of its rows, and perhaps a new one."""
        branch, key = self.branch(where), self.keys[which % 3]
        old = self.model.tables(branch).get(key, {})
        self.count += 1
        some = {one: self.count for n, one in enumerate(old) if (n + many) % 2}
        rows = {**some, **self.new_rows(many % 2)}
        if rows:
            self.write(branch, "merge", {key: rows})

    def do_delete(self, where: int, which: int, many: int) -> None:
        """Delete rows of a table by id; refused where that would leave an edge without an end."""
        self.delete(self.branch(where), self.keys[which % 3], many, "restrict")

    def do_cascade(self, where: int, which: int, many: int) -> None:
        """Delete rows of a table, and the edges that end there."""
        self.delete(self.branch(where), self.keys[which % 3], many, "cascade")

    def delete(self, branch: str, key: str, many: int, on_delete: str) -> None:
        """Delete some of a table's rows, and an id that it never had."""
        tables = self.model.tables(branch)
        if key not in tables:
            return
        gone = {one: 0 for n, one in enumerate([*tables[key], "never"]) if (n + many) % 3}
        stranded = {one: 0 for one in tables.get(KNOWS, {}) if key == PERSON and one in gone}
        if stranded and on_delete == "restrict":
            with pytest.raises(IntegrityError, match="OMNIGRAPH_INTEGRITY.* dangling edges"):
                self.write(branch, "delete", {key: gone}, onDelete=on_delete)
            return
        taken = {key: gone, **({KNOWS: stranded} if stranded else {})}
        self.write(branch, "delete", {key: gone}, taken, onDelete=on_delete)

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
        self.commits.heads[name] = self.commits.heads[branch] if ref == branch else self.at(at)
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
            self.published(branch, done, self.model.versions[at])
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

    def do_drop_branch(self, where: int, which: int, many: int) -> None:
        """Delete a branch, or see it refused where something needs it."""
        branch = self.branch(where)
        if branch == "main" or self.model.needed_by(branch):
            with pytest.raises(UnsupportedError, match="OMNIGRAPH_UNSUPPORTED"):
                manage.delete_branch(self.storage, branch, 0.01)
            return
        manage.delete_branch(self.storage, branch, 0.01)
        self.model.delete(branch)
        self.seen = {}  # a branch of the same name would have the same numbers
        self.commits.delete(branch)
        self.log.append(f"drop {branch}")

    def do_compact(self, where: int, which: int, many: int) -> None:
        """Compact the tables that live on a branch: a publish that changes no row."""
        branch = self.branch(where)
        done = optimize.optimize(self.storage, branch, None, optimize.run_here)
        if done.publish_id is not None and done.graph_version is not None:
            at = Committed(done.publish_id, done.graph_version)
            self.published(branch, at, self.model.tables(branch))
        self.log.append(f"compact {branch}: {done.graph_version}")

    def do_merge(self, where: int, which: int, many: int) -> None:
        """Merge a branch into another; where both changed a row, the target's wins."""
        source = self.branch(where)
        others = [name for name in self.model.branches if name != source]
        if not others:
            return
        target = others[which % len(others)]
        bases = self.check_bases(source, target)
        if bases is None:
            return
        new = self.merged(source, target, bases)
        merged = self.commits.heads[source]
        stranded = self.stranded(source, target, new)
        done = self.merge(source, target, stranded)
        if done is not None and not done.skipped:
            self.published(target, done, new, merged)
        if done is not None:
            assert self.model.tables(target) == new, self.log
        self.log.append(f"merge {source} into {target}: {done and done.graph_version}")

    def stranded(self, source: str, target: str, new: Tables) -> set[str]:
        """Return the edges that a merge would leave without the ends that they had, or ever."""
        old = self.model.tables(target)

        def loose(tables: Tables) -> set[str]:
            return set(tables.get(KNOWS, {})) - set(tables.get(PERSON, {}))

        return loose(new) - loose(old)

    def merge(self, source: str, target: str, stranded: set[str]) -> Committed | None:
        """Merge by the product; None where it is refused for edges that would be left dangling."""
        found = merging.prepare(self.storage, source, target, Here, merging.resolver("ours"))
        assert {row[1] for row in found.rows if row[2] == "OrphanEdge"} == stranded, self.log
        if stranded:
            return None
        return merging.publish(found, write_options(self.storage, branch=target))

    def check_bases(self, source: str, target: str) -> set[str] | None:
        """Return the newest common commits, None where one of them can't be read any more."""
        heads = [
            merge_base.head_commit(self.storage, load(self.storage, n)) for n in (source, target)
        ]
        expected = self.commits.bases(source, target)
        assert [one.graph_commit_id for one in heads] == [
            self.commits.heads[name] for name in (source, target)
        ], self.log
        if expected & self.commits.lost:
            with pytest.raises(UnsupportedError, match="whose branch is deleted"):
                merge_base.merge_bases(self.storage, *heads)
            return None
        found = {one.graph_commit_id for one in merge_base.merge_bases(self.storage, *heads)}
        assert found == expected, self.log
        return found

    def merged(self, source: str, target: str, bases: set[str]) -> Tables:
        """Return what the target has after a merge, by the model."""
        old = [self.commits.content[one] for one in sorted(bases)]
        return merged(old, self.model.tables(source), self.model.tables(target))

    # --- help --------------------------------------------------------------------------------

    def published(
        self, branch: str, done: Committed, tables: Tables, merged: str | None = None
    ) -> None:
        """Note a publish in both models."""
        self.model.publish(branch, done.graph_version, tables)
        self.commits.publish(branch, done.graph_version, done.publish_id, tables, merged)

    def at(self, version: Version) -> str:
        """Return the commit of a version; that of an inherited head is the parent's."""
        name, number = version
        while (name, number) not in self.commits.at:
            began = self.model.branches[name].began
            assert began is not None
            name, number = began
        return self.commits.at[name, number]

    def branch(self, number: int) -> str:
        """Return the branch that a number chooses."""
        names = list(self.model.branches)
        return names[number % len(names)]

    def new_rows(self, many: int) -> Table:
        """Return rows of ids that were never used."""
        self.count += 1
        return {f"{self.count}.{number}": self.count for number in range(many)}

    def write(
        self, branch: str, mode: str, rows: Tables, effect: Tables | None = None, **options: str
    ) -> None:
        """Write rows to both; `effect` are those of the model, if a write takes others along."""
        spark_mode = "overwrite" if mode == "overwrite" else "append"
        planned = plan(
            self.storage, list(rows), spark_mode, branch=branch, writeMode=mode, **options
        )
        batches = [(key, batch(planned.targets[key].schema, rows[key])) for key in rows]
        done = commit(planned, stage(planned, batches))
        self.written(branch, mode, rows if effect is None else effect, done)

    def written(self, branch: str, mode: str, rows: Tables, done: Committed) -> None:
        """Note a write in both models."""
        old = self.model.tables(branch)
        new = {k: EFFECTS[mode](old.get(k, {}), rows[k]) for k in rows}
        if done.skipped:
            assert {**old, **new} == old, self.log
        else:
            self.published(branch, done, {**old, **new})
        self.log.append(f"{mode} {dict(rows)} to {branch}: {done.graph_version}")

    # --- comparing ---------------------------------------------------------------------------

    def check_refs(self) -> None:
        """Compare every table of every ref with the model."""
        branches = [one.name for one in refs.list_branches(self.storage)]
        assert sorted(branches) == sorted(self.model.branches), self.log
        listed = {tag.name: (tag.branch, tag.version) for tag in refs.list_tags(self.storage)}
        assert listed == self.model.tags, self.log
        for name in branches:
            self.compare(load(self.storage, name), self.model.tables(name), self.seen)
            self.check_line(name)
        for at in self.model.tags.values():
            self.compare(load(self.storage, *at), self.model.versions[at], self.seen)

    def check_line(self, name: str) -> None:
        """Compare the lineage as one who follows a branch of that name reads it, and as a whole."""
        head = load(self.storage, name).graph_version
        whole = commits.complete(self.storage, name, head)
        line = commits.continued(self.storage, name, self.lines.get(name, []), head)
        assert line == whole, (name, self.log)
        self.lines[name] = line

    def check_versions(self) -> None:
        """Compare every table of every version that was ever published and is not deleted."""
        seen: dict[object, Table] = {}
        for at, tables in self.model.versions.items():
            self.compare(load(self.storage, *at), tables, seen)

    def check_feeds(self) -> None:
        """Compare each branch's change feed with the snapshots before and after every publish."""
        for name in self.model.branches:
            self.check_feed(name)

    def check_feed(self, name: str) -> None:
        """Compare the feed of a branch's own publishes, one by one; the rest is its parent's."""
        every = [at for at in self.model.lineage(name) if at in self.commits.at]
        own = [n for n, at in enumerate(every) if at[0] == name]
        line = every[max(0, own[0] - 1) :] if own else []
        told: dict[int, list[Any]] = {at[1]: [] for at in line[1:]}
        if told:
            for row in self.feed(name, line[1][1], line[-1][1]):
                told[row["_commit_version"]].append((row["_table"], *change_of(row)))
        for before, after in pairwise(line):
            old, new = self.model.versions[before], self.model.versions[after]
            expected = [
                (key, *change)
                for key in {*old, *new}
                for change in of_tables(old.get(key, {}), new.get(key, {}))
            ]
            assert sorted(told[after[1]]) == sorted(expected), (name, after, self.log)

    def feed(self, branch: str, first: int, last: int) -> list[Mapping[str, Any]]:
        """Read a change feed, in small ranges."""
        return [*read_feed(self.storage, Span(branch, first, last), max_bytes=2000)]

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


def change_of(row: Mapping[str, Any]) -> tuple[str, str, int]:
    """Return a feed's row as (change type, id, value)."""
    value = row["w"] if row["_table"] == KNOWS else row["age"]
    return row["_change_type"], row["id"], int(value)


def batch(schema: pa.Schema, rows: Mapping[str, int]) -> pa.RecordBatch:
    """Return rows in a table's schema: text columns hold the id, numbers the value."""
    ids: Sequence[str] = list(rows)
    columns = [
        pa.array(ids if one.type == pa.utf8() else list(rows.values()), one.type) for one in schema
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)
