"""What a merge makes of the columns of a table: what one side alone changed is taken from it.

Runs on the driver, from metadata. A property that was added, renamed, dropped or may be null since
the common version comes, goes or changes in the merged table as its rows do. A renamed one is known
by its number where nothing else had the number since (`renames`), from the common version on, or
from the merge that brought it in; otherwise a column that may have been renamed is asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple, NoReturn

import pyarrow as pa

from omnigraph_spark.errors import SchemaMismatchError
from omnigraph_spark.manifest.snapshot import Snapshot, TableEntry
from omnigraph_spark.merge.renames import Line
from omnigraph_spark.merge.rules import SOURCE, TARGET
from omnigraph_spark.schema.model import EdgeType, NodeType, fitted, reshaped, with_lost
from omnigraph_spark.storage import column_numbers
from omnigraph_spark.storage.relocation import open_for_reading
from omnigraph_spark.storage.store import Storage

Names = Mapping[str, str]
"""What each merged column is called in one version; one that the version lacks is left out."""


@dataclass(frozen=True)
class Columns:
    """The columns of a merged table, as plain data.

    `renamed` says what becomes of the target's columns that change (as in `TableTarget`), `added`
    are those that the source alone has. `dropped` are base columns that one side dropped, with the
    side that still has them. `names` are by version.
    """

    names: Mapping[str, Names]
    renamed: tuple[tuple[str, str | None], ...] = ()
    added: tuple[str, ...] = ()
    relaxed: frozenset[str] = frozenset()
    dropped: tuple[tuple[str, str], ...] = ()

    @property
    def is_changed(self) -> bool:
        """Return whether the target gets other columns than it has."""
        return bool(self.renamed or self.added)

    def merged(self, target: pa.Schema, source: pa.Schema) -> pa.Schema:
        """Return the merged table's schema: the target's columns, then what the source added."""
        new = dict(self.renamed)
        named = [(column, new.get(column.name, column.name)) for column in target]
        fields = [
            column.with_name(name).with_nullable(column.nullable or name in self.relaxed)
            for column, name in named
            if name is not None
        ]
        fields += [source.field(name).with_nullable(True) for name in self.added]
        return pa.schema(fields, target.metadata)

    def merged_type(
        self,
        target: NodeType | EdgeType | None,
        source: NodeType | EdgeType | None,
        schema: pa.Schema,
    ) -> NodeType | EdgeType | None:
        """Return the merged table's type; of what the target's doesn't name, the source's tells."""
        if target is None or source is None:
            return None
        mine = reshaped(target, dict(self.renamed))
        merged_names = {own: name for name, own in self.names[SOURCE].items()}
        theirs = reshaped(source, {p.name: merged_names.get(p.name) for p in source.properties})
        return fitted(with_lost(mine, theirs, schema.names), schema)


class _Column(NamedTuple):
    """A column of one version: Lance's number of it, its type as text, whether it may be null."""

    number: int
    kind: str
    nullable: bool


_Fields = Mapping[str, _Column]


@dataclass
class _Merge:
    """The columns of the versions of one table, and which are the same column of the base."""

    key: str
    branches: Mapping[str, str]
    fields: Mapping[str, _Fields]
    base: _Fields
    found: dict[str, dict[str, str]]
    names: dict[str, dict[str, str]] = field(default_factory=dict)

    def new(self, side: str) -> list[str]:
        """Return the columns that a side has and the base doesn't."""
        known = set(self.found[side].values())
        return [name for name in self.fields[side] if name not in known]

    def refuse(self, column: str, what: str, expected: str, found: str, hint: str) -> NoReturn:
        """Refuse the merge for a column.

        Raises:
            SchemaMismatchError: always.
        """
        raise SchemaMismatchError(
            f"{what}: column {column} of {self.key} can't be merged",
            expected=expected,
            found=found,
            hint=f"Nothing was written. {hint}, then merge again",
            table_key=self.key,
            column=column,
        )


def merge_columns(
    storage: Storage,
    sides: Mapping[str, TableEntry | None],
    bases: Sequence[str],
    heads: Mapping[str, Snapshot],
    joined: Callable[[str], TableEntry | None],
) -> Columns:
    """Return what a merge makes of the columns of a table that both sides have.

    `heads` are the snapshots of source and target; `joined` returns what a side had of the table
    when it got the common version's rows.

    Raises:
        SchemaMismatchError: both sides changed a column in different ways; it names the column, and
            the call that helps.
        VersionNotFoundError, StorageError: a table version can't be opened.
    """
    entries = {side: entry for side, entry in sides.items() if entry is not None}
    target = entries[TARGET]
    fields = {side: _fields(storage, entry) for side, entry in entries.items()}
    if all(columns == fields[TARGET] for columns in fields.values()):
        same = {name: name for name in fields[TARGET]}
        return Columns(dict.fromkeys(entries, same))
    branches = {side: head.branch for side, head in heads.items()}
    known = [fields[name] for name in bases if name in fields]
    agreed = len(known) == len(bases) and all(
        _kinds(columns) == _kinds(known[0]) for columns in known
    )
    base = known[0] if agreed else fields[TARGET]
    first = entries[bases[0]] if agreed else target
    starts = {
        side: _start(storage, base, Line(storage, first, entries[side], heads[side]), joined, side)
        for side in (SOURCE, TARGET)
    }
    matched = {
        side: _matched(start.fields, fields[side], start.line) for side, start in starts.items()
    }
    work = _Merge(target.table_key, branches, fields, base, matched)
    if not agreed:
        _refuse_unlike(work)
    _adopt_names(work)
    _match_altered(work)
    for side in (SOURCE, TARGET):
        _refuse_unclear(work, side, starts[side])
    work.names = {side: {} for side in entries}
    return _merged(work, bases)


def _fields(storage: Storage, entry: TableEntry) -> _Fields:
    pin = (entry.location, entry.table_branch, entry.table_version)
    return {
        path: _Column(number, kind.replace("large_", ""), nullable)
        for path, number, kind, nullable in column_numbers.of_dataset(
            open_for_reading(storage, *pin)
        )
        if "." not in path
    }


def _kinds(fields: _Fields) -> dict[str, str]:
    return {name: column.kind for name, column in fields.items()}


class _Start(NamedTuple):
    """Where a side's own versions begin: the base's columns as numbered there, and the line."""

    fields: _Fields
    highest: int
    line: Line


def _start(
    storage: Storage,
    base: _Fields,
    line: Line,
    joined: Callable[[str], TableEntry | None],
    side: str,
) -> _Start:
    """Return where to follow a side from: the base, or where an earlier merge brought it in."""
    plain = _Start(base, max(column.number for column in base.values()), line)
    if line.spans is not None:
        return plain
    entry = joined(side)
    if entry is None:
        return plain
    then = _fields(storage, entry)
    if any(name not in then or then[name].kind != column.kind for name, column in base.items()):
        return plain
    numbered = {name: column._replace(number=then[name].number) for name, column in base.items()}
    return _Start(
        numbered, max(column.number for column in then.values()), replace(line, base=entry)
    )


def _matched(base: _Fields, side: _Fields, line: Line) -> dict[str, str]:
    """Return, by column of the base, what a side calls it; what it doesn't have is left out.

    A number counts before a name: another column may have got the name meanwhile.
    """
    matched = {}
    by_number = {column.number: name for name, column in side.items()}
    for name, column in base.items():
        now = by_number.get(column.number)
        if now in (None, name) or side[now].kind != column.kind:
            continue
        if line.keeps(column.number):
            matched[name] = now
    taken = set(matched.values())
    for name, column in base.items():
        is_free = name not in matched and name not in taken
        if is_free and name in side and side[name].kind == column.kind:
            matched[name] = name
    return matched


def _adopt_names(work: _Merge) -> None:
    """Take a column for renamed that one side surely renamed and the other has by the new name."""
    for side, other in ((SOURCE, TARGET), (TARGET, SOURCE)):
        new = work.new(side)
        for name, now in work.found[other].items():
            is_alike = now in new and work.fields[side][now].kind == work.base[name].kind
            if name != now and name not in work.found[side] and is_alike:
                work.found[side][name] = now


def _match_altered(work: _Merge) -> None:
    """Match columns that have another type than in the base, where both sides gave it the same.

    Raises:
        SchemaMismatchError: one side alone did; values of the other would have to be written again.
    """
    for name in work.base:
        other_type = [
            side
            for side in (SOURCE, TARGET)
            if name not in work.found[side]
            and name in work.fields[side]
            and name not in work.found[side].values()
        ]
        kinds = {
            side: columns[name].kind for side, columns in work.fields.items() if name in columns
        }
        if len(other_type) == 2 and kinds[SOURCE] == kinds[TARGET]:
            for side in other_type:
                work.found[side][name] = name
        elif other_type:
            theirs, ours = (kinds.get(side, "no such column") for side in (SOURCE, TARGET))
            changed, other = other_type[0], TARGET if other_type[0] == SOURCE else SOURCE
            on, branch = work.branches[changed], work.branches[other]
            work.refuse(
                name,
                f"{on} gave {name} another type",
                f"one type on {on} and {branch}: {ours}",
                theirs,
                f"Call alter_property({work.key!r}, {name!r}, type=…, branch={branch!r})",
            )


def _refuse_unclear(work: _Merge, side: str, start: _Start) -> None:
    """Refuse where a column is gone from a side, and a new one may be the same under a new name.

    On one line of versions a number above all that it began with is that of a column that was
    added: who numbers columns again gives no higher numbers.
    """
    other = TARGET if side == SOURCE else SOURCE
    is_one_line = start.line.spans is not None
    for name, column in work.base.items():
        if name in work.found[side] or name not in work.found[other]:
            continue
        for now in work.new(side):
            is_added = is_one_line and work.fields[side][now].number > start.highest
            if work.fields[side][now].kind == column.kind and not is_added:
                on, branch = work.branches[side], work.branches[other]
                work.refuse(
                    name,
                    f"{on} renamed {name} to {now}, or dropped {name} and added {now}",
                    f"the same on {branch}",
                    f"{name} on {branch}",
                    f"Call rename_property({work.key!r}, {name!r}, {now!r}, branch={branch!r}) or "
                    f"drop_property({work.key!r}, {name!r}, branch={branch!r})",
                )


def _refuse_unlike(work: _Merge) -> None:
    """Refuse columns that differ where no common version says which side changed them."""
    theirs, ours = (_kinds(work.fields[side]) for side in (SOURCE, TARGET))
    for name in sorted({*theirs, *ours}):
        if theirs.get(name) == ours.get(name):
            continue
        holder, missing = (TARGET, SOURCE) if name in ours else (SOURCE, TARGET)
        hint = f"Call rename_property for one of the two columns {name}"
        if name not in ours or name not in theirs:
            hint = (
                f"Call add_property({work.key!r}, {name!r}, …, branch={work.branches[missing]!r})"
                f" or drop_property({work.key!r}, {name!r}, branch={work.branches[holder]!r})"
            )
        work.refuse(
            name,
            "The branches have no common version of the table that tells which of them changed it",
            ours.get(name, "no such column"),
            theirs.get(name, "no such column"),
            hint,
        )


def _merged(work: _Merge, bases: Sequence[str]) -> Columns:
    renamed: dict[str, str | None] = {}
    relaxed, dropped = set[str](), []
    for name in work.base:
        theirs, ours = work.found[SOURCE].get(name), work.found[TARGET].get(name)
        if theirs is None or ours is None:
            if theirs is not None or ours is not None:
                dropped.append(_dropped(work, name))
            if ours is not None:
                renamed[ours] = None
            continue
        new = _new_name(work, name, theirs, ours)
        may = work.fields[SOURCE][theirs].nullable and not work.fields[TARGET][ours].nullable
        if new != ours or may:
            renamed[ours] = new
        if may:
            relaxed.add(new)
        _name(work, new, {**dict.fromkeys(bases, name), SOURCE: theirs, TARGET: ours})
    _refuse_exchanged(work, renamed)
    theirs_new = work.new(SOURCE)
    for name in work.new(TARGET):
        if name in theirs_new:
            _same_kind(work, name)
            if work.fields[SOURCE][name].nullable and not work.fields[TARGET][name].nullable:
                renamed[name] = name
                relaxed.add(name)
        _name(work, name, {TARGET: name, **({SOURCE: name} if name in theirs_new else {})})
    added = [name for name in theirs_new if name not in work.new(TARGET)]
    for name in added:
        _name(work, name, {SOURCE: name})
    return Columns(
        work.names,
        tuple(renamed.items()),
        tuple(added),
        frozenset(relaxed),
        tuple(dropped),
    )


def _dropped(work: _Merge, name: str) -> tuple[str, str]:
    """Return (side that still has it, column) of a column that one side dropped.

    Raises:
        SchemaMismatchError: the other side renamed it.
    """
    side = SOURCE if name in work.found[SOURCE] else TARGET
    gone = TARGET if side == SOURCE else SOURCE
    now, on = work.found[side][name], work.branches[side]
    if now != name:
        work.refuse(
            name,
            f"{work.branches[gone]} dropped {name}, and {on} renamed it to {now}",
            "dropped or renamed on both, or by one alone",
            f"dropped on {work.branches[gone]}, {now} on {on}",
            f"Call drop_property({work.key!r}, {now!r}, branch={on!r})",
        )
    return side, name


def _new_name(work: _Merge, name: str, theirs: str, ours: str) -> str:
    if theirs != name != ours and theirs != ours:
        branch = work.branches[TARGET]
        work.refuse(
            name,
            f"{work.branches[SOURCE]} renamed {name} to {theirs}, and {branch} to {ours}",
            "one new name",
            f"{theirs} and {ours}",
            f"Call rename_property({work.key!r}, {ours!r}, {theirs!r}, branch={branch!r})",
        )
    return theirs if theirs != name else ours


def _refuse_exchanged(work: _Merge, renamed: Mapping[str, str | None]) -> None:
    """Refuse where a column is to get the name of another one that stays under a third name."""
    branch = work.branches[TARGET]
    for old, new in renamed.items():
        if new is None or new == old or new not in work.found[TARGET].values():
            continue
        if renamed.get(new, new) is not None:
            work.refuse(
                old,
                f"{work.branches[SOURCE]} gave {old} the name of the column {new}",
                f"the same names on {branch}",
                f"{old} and {new} on {branch}",
                f"Give the columns their new names with rename_property({work.key!r}, …, "
                f"branch={branch!r})",
            )


def _same_kind(work: _Merge, name: str) -> None:
    theirs, ours = (work.fields[side][name].kind for side in (SOURCE, TARGET))
    if theirs != ours:
        work.refuse(
            name,
            f"{work.branches[SOURCE]} and {work.branches[TARGET]} both added {name}",
            ours,
            theirs,
            f"Call rename_property({work.key!r}, {name!r}, …) on one of the two branches",
        )


def _name(work: _Merge, name: str, by_side: Mapping[str, str]) -> None:
    """Note what a merged column is called in each version.

    Raises:
        SchemaMismatchError: another merged column has the name, but for upper and lower case.
    """
    taken = {used.lower() for names in work.names.values() for used in names}
    if name.lower() in taken:
        work.refuse(
            name,
            f"{work.branches[SOURCE]} and {work.branches[TARGET]} each have a column of the name",
            "names that differ in more than upper and lower case",
            f"two columns {name}",
            f"Call rename_property({work.key!r}, {name!r}, …) on one of the two branches",
        )
    for side, own in by_side.items():
        work.names[side][name] = own


def one_column(base: Sequence[str], name: str, others: Sequence[str]) -> Columns:
    """Return columns that compare one column of a table alone, beside `id`."""
    names = {"id": "id", name: name}
    gone: tuple[tuple[str, str | None], ...] = tuple((other, None) for other in others)
    return Columns(dict.fromkeys((*base, SOURCE, TARGET), names), gone)
