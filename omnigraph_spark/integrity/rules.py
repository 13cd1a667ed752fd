"""The rules of a table as plain data, from the engine's schema; pure, picklable, without Spark.

Which level checks what (option `integrity`): `off` nulls and types, an enum's values among them;
`keys` also `@range`, `@check`, that ids are unique, and `@unique`; `strict` also that edges end
somewhere, and `@card`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from omnigraph_spark.errors import UnsupportedError
from omnigraph_spark.option_rules import WRITTEN
from omnigraph_spark.schema.model import EdgeType, EngineSchema, NodeType
from omnigraph_spark.storage import layout

OFF = "off"
KEYS = "keys"
STRICT = "strict"

ENUM = "enum"
RANGE = "range"
CHECK = "check"
NOT_NULL = "not null"
ID_IS_KEY = "id is the key"
UNIQUE_ID = "unique id"
UNIQUE = "unique"
ENDPOINTS = "endpoints exist"
CARD = "card"

# What the engine's regular expressions mean by these letters, which RE2 takes as ASCII only.
_CLASSES = {
    "d": r"\p{Nd}",
    "w": r"\p{L}\p{M}\p{Nd}\p{Pc}",
    "s": r"\p{Z}\t\n\v\f\r",
}


@dataclass(frozen=True)
class ValueRule:
    """A rule that one value meets or breaks: `kind` is ENUM, RANGE or CHECK.

    `values` are an enum's, `low` and `high` a range's (both belong to it, None: no bound),
    `pattern` a check's, in the engine's regular expressions.
    """

    kind: str
    column: str
    values: tuple[str, ...] = ()
    low: int | float | None = None
    high: int | float | None = None
    pattern: str | None = None

    def allowed(self) -> str:
        """Return what the rule allows, for messages."""
        if self.kind == ENUM:
            return f"one of {', '.join(self.values)}"
        if self.kind == RANGE:
            low, high = ("" if bound is None else f"{bound}" for bound in (self.low, self.high))
            return f"{low}..{high}"
        return f"a match of {self.pattern!r}"

    def re2(self) -> str:
        r"""Return `pattern` as RE2 reads it: the engine's `\w`, `\d`, `\s` are Unicode's."""
        return _as_re2(self.pattern or "")


@dataclass(frozen=True)
class TableRules:
    """All rules of one table beyond types and nulls.

    `unique` are groups of columns whose values together stand in one row only; `endpoints` the
    table keys of an edge's source and target; `card` how many edges a source has (None: any
    number).
    """

    values: tuple[ValueRule, ...] = ()
    unique: tuple[tuple[str, ...], ...] = ()
    endpoints: tuple[str, str] | None = None
    card: tuple[int, int | None] = (0, None)


@dataclass(frozen=True)
class Integrity:
    """What a write checks: plain data that travels with the plan to tasks and commit.

    `values` are the rules that tasks check, by table key, already those of the level;
    `bad_records_path` is where violating rows go instead of failing the write (None: they fail it).
    `made_ids` are the edge tables whose frames have no ids: each row gets a new one.
    """

    level: str = OFF
    bad_records_path: str | None = None
    values: Mapping[str, tuple[ValueRule, ...]] = field(default_factory=dict)
    made_ids: frozenset[str] = frozenset()

    def checks_rows(self) -> bool:
        """Return whether the commit looks at keys and endpoints."""
        return self.level != OFF

    def checks_endpoints(self) -> bool:
        """Return whether edges that are written must end at nodes."""
        return self.level in (STRICT, WRITTEN)

    def to_json(self) -> dict[str, Any]:
        """Return plain data for a JSON text; `of_json` reads it."""
        return {
            "level": self.level,
            "bad_records_path": self.bad_records_path,
            "values": {key: [asdict(rule) for rule in rules] for key, rules in self.values.items()},
        }

    @classmethod
    def of_json(cls, plain: Mapping[str, Any]) -> Integrity:
        """Return what `to_json` wrote."""
        values = {
            key: tuple(ValueRule(**{**rule, "values": tuple(rule["values"])}) for rule in rules)
            for key, rules in plain["values"].items()
        }
        return cls(plain["level"], plain["bad_records_path"], values)


def of_write(
    level: str, bad_records_path: str | None, schema: EngineSchema, tables: Iterable[str]
) -> Integrity:
    """Return what a write to `tables` checks at `level`; on the driver, once per write.

    Raises:
        UnsupportedError: a `@check` whose regular expression can't be read here.
    """
    values = {}
    for key in sorted(tables):
        rules = of_table(schema, key).values
        chosen = tuple(rule for rule in rules if level != OFF or rule.kind == ENUM)
        for rule in chosen:
            _check_pattern(key, rule)
        if chosen:
            values[key] = chosen
    return Integrity(level, bad_records_path, values)


def of_table(schema: EngineSchema, table_key: str) -> TableRules:
    """Return the rules of a table; a table that the schema doesn't know has none."""
    table_type = schema.of_table(table_key)
    if table_type is None:
        return TableRules()
    endpoints: tuple[str, str] | None = None
    card: tuple[int, int | None] = (0, None)
    if isinstance(table_type, EdgeType):
        endpoints = (
            layout.table_key(layout.NODE, table_type.source),
            layout.table_key(layout.NODE, table_type.target),
        )
        card = table_type.cardinality
    return TableRules(tuple(_value_rules(table_type)), tuple(_unique(table_type)), endpoints, card)


def edges_at(schema: EngineSchema, node_table: str) -> list[tuple[str, str]]:
    """Return (edge table, `src` or `dst`) for each edge end that is a row of `node_table`."""
    _, name = layout.split_table_key(node_table)
    return [
        (edge.table_key, column)
        for edge in schema.edges.values()
        for column, end in (("src", edge.source), ("dst", edge.target))
        if end == name
    ]


def _value_rules(table_type: NodeType | EdgeType) -> Iterable[ValueRule]:
    for prop in table_type.properties:
        if prop.type.enum_values is not None:
            yield ValueRule(ENUM, prop.name, values=prop.type.enum_values)
    for rule in table_type.constraints():
        if rule.kind == "Range":
            yield ValueRule(RANGE, rule.columns[0], low=rule.bounds[0], high=rule.bounds[1])
        elif rule.kind == "Check":
            yield ValueRule(CHECK, rule.columns[0], pattern=rule.pattern)


def _unique(table_type: NodeType | EdgeType) -> Iterable[tuple[str, ...]]:
    groups: dict[tuple[str, ...], None] = {}
    for rule in table_type.constraints():
        # A key of one property is the node's id, and ids are looked at anyway.
        if rule.kind == "Unique" or (rule.kind == "Key" and len(rule.columns) > 1):
            groups.setdefault(rule.columns)
    return groups


def _check_pattern(table_key: str, rule: ValueRule) -> None:
    if rule.kind != CHECK:
        return
    try:
        pc.match_substring_regex(pa.array([""]), rule.re2())
    except pa.ArrowInvalid as error:
        raise UnsupportedError(
            f"The @check of {table_key}.{rule.column} can't be read",
            expected="a regular expression that RE2 reads too",
            found=f"{rule.pattern!r} ({error})",
            hint="Write with integrity=off, or with the engine",
            table_key=table_key,
        ) from error


def _as_re2(pattern: str) -> str:
    made: list[str] = []
    in_class = False
    at = 0
    while at < len(pattern):
        letter = pattern[at]
        if letter == "\\" and at + 1 < len(pattern):
            made.append(_escape(pattern[at + 1], in_class))
            at += 2
            continue
        if letter == "[" and not in_class:
            in_class = True
            if pattern[at + 1 : at + 2] == "^":  # `[^]…]`: a bracket that comes first is itself
                made.append("[^")
                at += 2
            else:
                made.append("[")
                at += 1
            if pattern[at : at + 1] == "]":
                made.append("\\]")
                at += 1
            continue
        if letter == "]":
            in_class = False
        made.append(letter)
        at += 1
    return "".join(made)


def _escape(letter: str, in_class: bool) -> str:
    members = _CLASSES.get(letter.lower())
    if members is None or (in_class and letter.isupper()):
        return f"\\{letter}"
    if in_class:
        return members
    return f"[{'^' if letter.isupper() else ''}{members}]"
