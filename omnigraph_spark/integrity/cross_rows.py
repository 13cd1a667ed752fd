"""Rules that more than one row decides: keys, uniqueness, endpoints, numbers of edges.

Runs on the driver, once per round of a write, inside the round (rule 25): what is looked at is
the snapshot that is committed on, plus the staged rows, minus the rows that the write replaces. A
later round compares keys only with fragments that no earlier one has seen, told by their files and
deletions. That endpoints exist it takes as seen only if every fragment of the nodes that it has
seen is still there unchanged; after a delete, an overwrite or a restore it looks at all of them
again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import pyarrow as pa

from omnigraph_spark.errors import CorruptManifestError
from omnigraph_spark.integrity import rules
from omnigraph_spark.integrity.round_rows import (
    ALL,
    NOTHING,
    SAME_IDS,
    Question,
    RoundRows,
    Staged,
)
from omnigraph_spark.integrity.rules import CARD, ENDPOINTS, UNIQUE, UNIQUE_ID
from omnigraph_spark.integrity.scratch import Scratch
from omnigraph_spark.integrity.values import STRANDED
from omnigraph_spark.storage import layout


@dataclass(frozen=True)
class Verdict:
    """What a check found in order, or to be set aside.

    `read` are the versions of the tables that were looked at (0: none): they must still be the
    published ones at the publish. `bad` has, by table key, the rows to set aside: `f` and `r`
    (which staged file, which row in it), `rule`, `col` and `expected`. `seen` is what the next
    round needs not look at again.
    """

    read: Mapping[str, int] = field(default_factory=dict)
    bad: Mapping[str, pa.Table] = field(default_factory=dict)
    seen: Mapping[str, frozenset[str]] = field(default_factory=dict)


def check(asked: Question) -> Verdict:
    """Check one round of a write.

    Raises:
        IntegrityError: rows break a rule, and aren't to be set aside.
        StorageError: the store failed, or there was no room to spill to.
        UnsupportedError: a rule over columns that can't be compared.
        CorruptManifestError: the endpoints of an edge table are declared nowhere.
    """
    with Scratch() as scratch:
        round_ = _Round(asked, scratch)
        bad = round_.run()
    return Verdict(round_.read, bad, {} if bad else round_.seen)


class _Round(RoundRows):
    """One round's check; `read` and `seen` tell afterwards what was looked at."""

    def run(self) -> dict[str, pa.Table]:
        """Check all tables, nodes first; return the rows to set aside by table."""
        for staged in self._staged.values():
            self._load(staged)
            if staged.rows:
                if not staged.write.made_ids:
                    self._check_ids(staged)
                for columns in staged.rules.unique:
                    self._check_unique(staged, columns)
        if self._asked.strict:
            for key, staged in self._staged.items():
                if layout.is_edge(key):
                    if staged.rows:
                        self._check_endpoints(staged, self._endpoints(staged))
                        self._check_card(staged)
                elif staged.write.replaces == ALL and self._asked.attached:
                    self._check_stranded(staged)
        return self._bad_rows()

    # --- rules -----------------------------------------------------------------------------------

    def _check_ids(self, staged: Staged) -> None:
        s, key = staged.name, staged.write.table_key
        # Most writes repeat no id, and numbers are grouped in half of the time that texts need.
        if self._db.run(f"SELECT 1 FROM {s} GROUP BY hash(id) HAVING count(*) > 1 LIMIT 1"):
            self._report(
                staged,
                UNIQUE_ID,
                "id",
                f"SELECT f, r, id AS v FROM {s} WHERE id IN "
                f"(SELECT id FROM {s} GROUP BY id HAVING count(*) > 1)",
                "every id once in a write",
                "Keep one row of each id",
            )
        if staged.write.replaces != NOTHING or key not in self._snapshot.tables:
            return
        published = self._published(key, {"id": "id"}, self._few(s, "id"))
        self._db.run(
            "CREATE OR REPLACE TABLE hits AS "
            f"SELECT p.id FROM {_kept(staged)} SEMI JOIN {s} t ON p.id = t.id",
            p=published,
        )
        self._report(
            staged,
            UNIQUE_ID,
            "id",
            f"SELECT f, r, id AS v FROM {s} WHERE id IN (SELECT id FROM hits)",
            f"ids that {key} doesn't have yet",
            "Drop the rows that are there already, or write them with writeMode=merge",
        )

    def _check_unique(self, staged: Staged, columns: tuple[str, ...]) -> None:
        s, key = staged.name, staged.write.table_key
        names = [staged.column(column) for column in columns]
        listed = ", ".join(names)
        filled = " AND ".join(f"{name} IS NOT NULL" for name in names)
        shown = names[0] if len(names) == 1 else f"concat_ws(', ', {listed})"
        label = ", ".join(columns)
        select = f"SELECT f, r, {shown} AS v FROM {s} WHERE {filled} AND ({listed}) IN "
        self._report(
            staged,
            UNIQUE,
            label,
            f"{select}(SELECT {listed} FROM {s} WHERE {filled} GROUP BY ALL HAVING count(*) > 1)",
            "values that no other row has",
            "Keep one row of each value",
        )
        if staged.write.replaces == ALL or key not in self._snapshot.tables:
            return
        stored = self._stored(staged, dict.fromkeys(["id", *names]))
        if stored is None:
            return
        on = " AND ".join(f"p.{name} = t.{name}" for name in names)
        self._db.run(
            f"CREATE OR REPLACE TABLE hits AS SELECT {', '.join(f'p.{name}' for name in names)} "
            f"FROM {_kept(staged)} SEMI JOIN {s} t ON {on}",
            p=self._published(key, stored, whole=staged.write.replaces == SAME_IDS),
        )
        self._report(
            staged,
            UNIQUE,
            label,
            f"{select}(SELECT {listed} FROM hits)",
            f"values that no row of {key} has yet",
            "Drop those rows, or change the values",
        )

    def _stored(self, staged: Staged, names: Iterable[str]) -> dict[str, str] | None:
        """Return the published columns of scratch columns; None: no row has one that is added."""
        before = staged.write.before
        columns = {name: before.get(column, column) for name, column in staged.pairs(names)}
        stored = {name: column for name, column in columns.items() if column is not None}
        existing = self._columns_of(staged.write.table_key)
        return (
            stored if stored.keys() == columns.keys() and existing >= {*stored.values()} else None
        )

    def _endpoints(self, staged: Staged) -> tuple[str, str]:
        if staged.rules.endpoints is None:
            raise CorruptManifestError(
                f"{layout.SCHEMA_PG} doesn't declare {staged.write.table_key}",
                expected="its two endpoints, to check that they exist",
                hint="Write with integrity=keys, or declare the edge in the file",
                table_key=staged.write.table_key,
            )
        return staged.rules.endpoints

    def _check_endpoints(self, staged: Staged, endpoints: tuple[str, str]) -> None:
        s = staged.name
        for node_table in dict.fromkeys(endpoints):
            columns = [
                c for c, end in zip(("src", "dst"), endpoints, strict=True) if end == node_table
            ]
            self._db.run(
                "CREATE OR REPLACE TABLE missing AS "
                + " UNION ".join(f"SELECT {column} AS id FROM {s}" for column in columns)
            )
            self._take_away_known(node_table)
            for column in columns:
                self._report(
                    staged,
                    ENDPOINTS,
                    column,
                    f"SELECT f, r, {column} AS v FROM {s} WHERE {column} IN "
                    "(SELECT id FROM missing)",
                    f"ids of {node_table}",
                    "Write the nodes before, or in the same write (omnigraph_spark.pack,"
                    " OmniGraph.write)",
                )

    def _take_away_known(self, node_table: str) -> None:
        """Leave in `missing` the ids that the node table won't have after this write."""
        beside = self._staged.get(node_table)
        if beside is not None and beside.rows:
            self._db.run(
                f"CREATE OR REPLACE TABLE missing AS SELECT id FROM missing m "
                f"ANTI JOIN {beside.name} n ON m.id = n.id"
            )
        replaced = beside is not None and beside.write.replaces == ALL
        if replaced or node_table not in self._snapshot.tables:
            return
        seen = self._asked.seen.get(node_table)
        if seen is not None and seen <= self._fragments_of(node_table).keys():
            self._db.run("DELETE FROM missing")  # an earlier round found them all, and they stay
            return
        if not self._db.value("SELECT count(*) FROM missing"):
            self._note(node_table)
            return
        gone = beside is not None and beside.write.removed is not None
        self._db.run(
            "CREATE OR REPLACE TABLE hits AS SELECT p.id "
            f"FROM {_kept(beside) if gone else 'p'} SEMI JOIN missing m ON p.id = m.id",
            p=self._published(node_table, {"id": "id"}, self._few("missing", "id")),
        )
        self._db.run(
            "CREATE OR REPLACE TABLE missing AS "
            "SELECT id FROM missing m ANTI JOIN hits h ON m.id = h.id"
        )

    def _check_card(self, staged: Staged) -> None:
        low, high = staged.rules.card
        if low <= 1 and high is None:  # who has an edge has at least one
            return
        s, key = staged.name, staged.write.table_key
        self._db.run(
            f"CREATE OR REPLACE TABLE counts AS SELECT src, count(*) AS n FROM {s} GROUP BY src"
        )
        if staged.write.replaces != ALL and key in self._snapshot.tables:
            self._db.run(
                "CREATE OR REPLACE TABLE hits AS SELECT p.src, count(*) AS n "
                f"FROM {_kept(staged)} SEMI JOIN counts c ON p.src = c.src GROUP BY p.src",
                p=self._published(
                    key, {"id": "id", "src": "src"}, self._few("counts", "src"), whole=True
                ),
            )
            self._db.run(
                "CREATE OR REPLACE TABLE counts AS SELECT src, sum(n) AS n FROM "
                "(SELECT * FROM counts UNION ALL SELECT * FROM hits) GROUP BY src"
            )
        over = "false" if high is None else f"n > {high}"
        self._report(
            staged,
            CARD,
            "src",
            f"SELECT f, r, src AS v FROM {s} WHERE src IN "
            f"(SELECT src FROM counts WHERE n < {low} OR {over})",
            f"{low}..{'' if high is None else high} edges of a source, with those that are there",
            "Drop edges of those sources",
        )

    def _check_stranded(self, staged: Staged) -> None:
        """Refuse an overwrite of a node table that takes away endpoints of edges which stay."""
        key = staged.write.table_key
        if key not in self._snapshot.tables:
            return
        self._db.run(
            f"CREATE OR REPLACE TABLE gone AS SELECT p.id FROM p ANTI JOIN {staged.name} t "
            "ON p.id = t.id",
            p=self._published(key, {"id": "id"}, whole=True),
        )
        if not self._db.value("SELECT count(*) FROM gone"):
            return
        for edge_table, column in rules.edges_at(self._asked.schema, key):
            beside = self._staged.get(edge_table)
            replaced = beside is not None and beside.write.replaces == ALL
            if edge_table not in self._snapshot.tables or replaced:
                continue
            self._db.run(
                f"CREATE OR REPLACE TABLE found AS SELECT p.id AS v FROM {_kept(beside)} "
                f"SEMI JOIN gone g ON p.{column} = g.id",
                p=self._published(edge_table, {"id": "id", column: column}, whole=True),
            )
            violation = self._violation(
                edge_table,
                STRANDED,
                column,
                f"a {column} that the new rows of {key} have too",
                "Overwrite the edges in the same write, or delete them before",
            )
            if violation is not None:
                raise violation.error()


def _kept(staged: Staged | None) -> str:
    """Return the rows of the stream `p` that stay beside a write to their table."""
    if staged is None:
        return "p"
    tables = [] if staged.write.replaces == NOTHING else [staged.name]
    tables += [] if staged.write.removed is None else [f"{staged.name}_gone"]
    if not tables:
        return "p"
    replaced = " UNION ALL ".join(f"SELECT id FROM {name}" for name in tables)
    return f"(SELECT * FROM p ANTI JOIN ({replaced}) o ON p.id = o.id) AS p"
