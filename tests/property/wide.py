"""Random steps on a graph of 20 tables whose edges always have their ends, properties added."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

from omnigraph_spark.errors import SchemaMismatchError
from omnigraph_spark.history import commits
from omnigraph_spark.manifest.snapshot import Snapshot
from omnigraph_spark.schema_changes import properties
from omnigraph_spark.storage.store import Storage
from omnigraph_spark.write.commit.commit import Committed
from omnigraph_spark.write.plan import NewTable
from tests.property.core import KINDS, Run
from tests.support.writes import (
    COMPANY,
    EDGE_SCHEMA,
    KNOWS,
    NODE_SCHEMA,
    PERSON,
    write,
    write_options,
)

ANCHOR = "node:Anchor"
"""Its rows are only appended, with edges that end at them: so a merge leaves none dangling."""
EDGES = tuple(f"edge:Link{number}" for number in range(3))
NODES = (COMPANY, *(f"node:Type{number}" for number in range(13)))
TABLES = (PERSON, KNOWS, ANCHOR, *EDGES, *NODES)
NEW = {
    **{key: NewTable(NODE_SCHEMA, "name") for key in (PERSON, ANCHOR, *NODES)},
    KNOWS: NewTable(EDGE_SCHEMA, None, ("Person", "Person")),
    **{key: NewTable(EDGE_SCHEMA, None, ("Anchor", "Anchor")) for key in EDGES},
}
Row = dict[str, Any]
STEPS = (*KINDS, "grow", "link")


@dataclass
class Wide(Run):
    """Steps on 20 tables; each step has its own choice of three of them."""

    @classmethod
    def make(cls, storage: Storage) -> Wide:
        """Make a graph of 20 tables with one row each."""
        write(storage, {key: ["first"] for key in TABLES}, new=NEW)
        return cls.begin(storage)

    def random_step(self, choice: random.Random) -> None:
        """Do a step; half of them on main, where a stream sees them."""
        where = choice.choice([0, choice.randrange(12)])
        at = choice.randrange(len(NODES))
        self.keys = (choice.choice((PERSON, NODES[at - 1])), NODES[at], NODES[at - 2])  # type: ignore[misc]
        self.do((choice.choice(STEPS), where, choice.randrange(12), choice.randrange(12)))

    def do_both(self, where: int, which: int, many: int) -> None:
        """Append nodes and the edges between them in one commit."""
        rows = self.new_rows(1 + many % 3)
        self.write(self.branch(where), "append", {PERSON: rows, KNOWS: rows})

    def do_link(self, where: int, which: int, many: int) -> None:
        """Append edges of another type, and a table beside, in one commit."""
        rows = self.new_rows(1 + many % 3)
        found = {ANCHOR: rows, EDGES[which % 3]: rows, NODES[many]: rows}
        self.write(self.branch(where), "append", found)

    def do_overwrite(self, where: int, which: int, many: int) -> None:
        """Replace a table that no endpoints in."""
        super().do_overwrite(where, 1, many)

    def do_grow(self, where: int, which: int, many: int) -> None:
        """Add a property to a table."""
        branch, key = self.branch(where), NODES[which]
        options = write_options(self.storage, branch=branch)
        done = properties.add_property(self.storage, options, key, f"more{many % 3}", "String?")
        if not done.skipped:
            self.published(branch, done, self.model.tables(branch))
        self.log.append(f"grow {key} of {branch}: {done.graph_version}")

    def merge(self, source: str, target: str, stranded: set[str]) -> Committed | None:
        """Merge; None also where one side took a property away whose values the other changed."""
        try:
            return super().merge(source, target, stranded)
        except SchemaMismatchError as error:
            refused = ("have no common version", "changed or added its values")
            if not any(text in str(error) for text in refused):
                raise
            return None

    def is_long(self, steps: int) -> bool:
        """Return whether main has had so many commits."""
        return len(commits.read_commits(self.storage)) >= steps


def values(row: Row) -> Row:
    """Return what a row has, nulls left out: a table may lack a column that the frame has."""
    return {name: v for name, v in row.items() if v is not None and not name.startswith("_")}


def contents(storage: Storage, snapshot: Snapshot) -> dict[str, dict[str, Row]]:
    """Return the rows of all tables of a snapshot, by id."""
    found = {}
    for key, entry in snapshot.tables.items():
        table = storage.dataset(entry.location, entry.table_branch, entry.table_version).to_table()
        found[key] = {row["id"]: values(row) for row in table.to_pylist()}
    return found
