"""The rows that one round of a check looks at, and what becomes of those that break a rule.

Runs on the driver: staged rows in tables of the scratch database, published rows as streams.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from omnigraph_spark.integrity import rules, sources
from omnigraph_spark.integrity.rules import TableRules
from omnigraph_spark.integrity.scratch import Scratch
from omnigraph_spark.integrity.staged_columns import StagedFile
from omnigraph_spark.integrity.values import MOST_SAMPLES, Violation
from omnigraph_spark.manifest.snapshot import Snapshot
from omnigraph_spark.schema.model import EngineSchema
from omnigraph_spark.storage import layout
from omnigraph_spark.storage.store import Storage

if TYPE_CHECKING:
    from lance import LanceDataset

NOTHING = "nothing"
SAME_IDS = "rows of the same ids"
ALL = "all rows"


@dataclass(frozen=True)
class TableWrite:
    """What a write does to one table: its staged files, and which rows it `replaces`.

    `replaces` is NOTHING, SAME_IDS (an upsert) or ALL (an overwrite). `made_ids`: the write itself
    gave every row a new id, which no other row can have. `removed` gives the ids of more rows that
    it takes out beside, in bounded pieces. `before` says what the published version calls columns
    that it renames; None for those that it adds.
    """

    table_key: str
    replaces: str
    files: tuple[StagedFile, ...]
    schema: pa.Schema
    made_ids: bool = False
    removed: Callable[[], Iterable[pa.Array]] | None = None
    before: Mapping[str, str | None] = field(default_factory=dict)


@dataclass
class Staged:
    """The staged rows of one table in the scratch database: its name there, and how many.

    The ids of `TableWrite.removed` are in the table `{name}_gone`.
    """

    write: TableWrite
    rules: TableRules
    name: str
    columns: dict[str, str]
    rows: int = 0

    def pairs(self, names: Iterable[str]) -> list[tuple[str, str]]:
        """Return (scratch column, stored one) of some scratch columns."""
        return [(name, self.columns[name]) for name in names]

    def column(self, stored: str) -> str:
        """Return the scratch column of a stored one."""
        return next(name for name, column in self.columns.items() if column == stored)


@dataclass(frozen=True)
class Question:
    """What one round asks: the staged `writes` on top of `snapshot`, by the rules of `schema`.

    `unique` looks at `@unique`, `strict` at edges too, and `attached` also at those of other tables
    that an overwrite of nodes would leave dangling; `set_aside` takes violating rows out of
    the write instead of failing it. `seen` are the fragments, by table, that an earlier round found
    in order.
    """

    storage: Storage
    snapshot: Snapshot
    schema: EngineSchema
    writes: tuple[TableWrite, ...]
    unique: bool
    strict: bool
    attached: bool
    set_aside: bool
    seen: Mapping[str, frozenset[str]]


class RoundRows:
    """The rows of one round; `read` and `seen` tell afterwards which tables were looked at."""

    def __init__(self, asked: Question, scratch: Scratch) -> None:
        self._asked = asked
        self._snapshot = asked.snapshot
        self._db = scratch
        ordered = sorted(
            asked.writes, key=lambda write: (layout.is_edge(write.table_key), write.table_key)
        )
        self._staged = {
            write.table_key: self._described(number, write) for number, write in enumerate(ordered)
        }
        self._datasets: dict[str, LanceDataset] = {}
        self._fragments: dict[str, dict[str, Any]] = {}
        self.read: dict[str, int] = {}
        self.seen: dict[str, frozenset[str]] = {}

    # --- staged rows -----------------------------------------------------------------------------

    def _described(self, number: int, write: TableWrite) -> Staged:
        table_rules = rules.of_table(self._asked.schema, write.table_key)
        with_ends = self._asked.strict and layout.is_edge(write.table_key)
        stored = ["id", *(("src", "dst") if with_ends else ())]
        names = set(write.schema.names)
        unique = table_rules.unique if self._asked.unique else ()
        groups = tuple(group for group in unique if set(group) <= names)
        extra = [c for c in dict.fromkeys(c for group in groups for c in group) if c not in stored]
        columns = {name: name for name in stored} | {f"c{i}": c for i, c in enumerate(extra)}
        checked_rules = TableRules(
            unique=groups, endpoints=table_rules.endpoints, card=table_rules.card
        )
        return Staged(write, checked_rules, f"s{number}", columns)

    def _load(self, staged: Staged) -> None:
        name = staged.name
        self._db.run(f"CREATE TABLE {name}_gone (id VARCHAR)")
        for ids in staged.write.removed() if staged.write.removed is not None else ():
            pieces = pa.table({"id": ids.cast(pa.utf8())}).to_reader()
            self._db.run(f"INSERT INTO {name}_gone SELECT id FROM incoming", incoming=pieces)
        self._db.run(
            f"CREATE TABLE {name}_bad "
            "(f INTEGER, r BIGINT, rule VARCHAR, col VARCHAR, expected VARCHAR)"
        )
        if not staged.write.files:
            columns = ", ".join(f"{column} VARCHAR" for column in staged.columns)
            self._db.run(f"CREATE TABLE {name} (f INTEGER, r BIGINT, {columns})")
            return
        storage = self._asked.storage
        write = staged.write
        stream = sources.staged_rows(storage, write.files, write.schema, staged.columns)
        self._db.run(f"CREATE TABLE {name} AS SELECT * FROM incoming", incoming=stream())
        staged.rows = self._db.value(f"SELECT count(*) FROM {name}")

    # --- what was found --------------------------------------------------------------------------

    def _report(
        self, staged: Staged, rule: str, column: str, select: str, expected: str, hint: str
    ) -> None:
        """Raise what the query (`f`, `r`, `v`) finds, or take its rows out of the write."""
        self._db.run(f"CREATE OR REPLACE TABLE found AS {select}")
        violation = self._violation(staged.write.table_key, rule, column, expected, hint)
        if violation is None:
            return
        if not self._asked.set_aside:
            raise violation.error()
        values = ", ".join(_text(value) for value in (rule, column, f"expected {expected}"))
        self._db.run(f"INSERT INTO {staged.name}_bad SELECT f, r, {values} FROM found")
        self._db.run(
            f"CREATE OR REPLACE TABLE {staged.name} AS "
            f"SELECT s.* FROM {staged.name} s ANTI JOIN found b ON s.f = b.f AND s.r = b.r"
        )
        staged.rows -= violation.count

    def _violation(
        self, table_key: str, rule: str, column: str, expected: str, hint: str
    ) -> Violation | None:
        count = self._db.value("SELECT count(*) FROM found")
        if not count:
            return None
        samples = self._db.run(
            f"SELECT v FROM (SELECT DISTINCT v FROM found) ORDER BY v LIMIT {MOST_SAMPLES}"
        )
        values = tuple(sample for (sample,) in samples)
        return Violation(table_key, rule, column, count, values, expected, hint)

    def _bad_rows(self) -> dict[str, pa.Table]:
        if not self._asked.set_aside:
            return {}
        tables = {
            key: self._db.table(f"SELECT * FROM {staged.name}_bad ORDER BY f, r")
            for key, staged in self._staged.items()
        }
        return {key: rows for key, rows in tables.items() if rows.num_rows}

    # --- published rows --------------------------------------------------------------------------

    def _few(self, table: str, column: str) -> tuple[str, list[str]] | None:
        """Return the texts to look up where they are few: (column, texts)."""
        if self._db.value(f"SELECT count(*) FROM {table}") > sources.MOST_LOOKED_UP:
            return None
        return column, [text for (text,) in self._db.run(f"SELECT DISTINCT {column} FROM {table}")]

    def _published(
        self,
        key: str,
        columns: dict[str, str],
        among: tuple[str, list[str]] | None = None,
        *,
        whole: bool = False,
    ) -> pa.RecordBatchReader:
        """Return the rows of a table in the snapshot; unless `whole`, not those that were seen.

        What was seen is known by its content: an earlier round compared those very rows.
        """
        fragments = self._fragments_of(key)
        seen = None if whole else self._asked.seen.get(key)
        if seen is None:
            return sources.published_rows(self._datasets[key], columns, None, among)
        new = [fragment for content, fragment in fragments.items() if content not in seen]
        return sources.published_rows(self._datasets[key], columns, new)

    def _fragments_of(self, key: str) -> dict[str, Any]:
        self._note(key)
        if key not in self._fragments:
            entry = self._snapshot.tables[key]
            dataset = self._asked.storage.dataset(
                entry.location, entry.table_branch, entry.table_version
            )
            self._datasets[key] = dataset
            self._fragments[key] = sources.fragments_of(dataset)
            self.seen[key] = frozenset(self._fragments[key])
        return self._fragments[key]

    def _columns_of(self, key: str) -> frozenset[str]:
        """Return the columns of a published table."""
        self._fragments_of(key)
        return frozenset(self._datasets[key].schema.names)

    def _note(self, key: str) -> None:
        self.read[key] = self._snapshot.version(key)


def _text(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"
