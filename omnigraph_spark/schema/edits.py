"""Change single properties in the text of `_schema.pg`, and leave every other byte as it is.

Pure functions over text: what people wrote beside a property (comments, order, blank lines) stays.
Each function may be applied again to its own result and then changes nothing.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from omnigraph_spark.errors import UnsupportedError
from omnigraph_spark.schema.model import Constraint, EdgeType, NodeType, Property
from omnigraph_spark.schema.pg import Parser, parse_pg, render_property, render_rule
from omnigraph_spark.storage import layout

Span = tuple[int, int]
"""Where something stands in the text: first character, and the one behind its last."""


@dataclass
class _Place:
    """Where a type's parts stand; `close` is its closing brace, None for an edge without a body."""

    begin: int = 0
    end: int = 0
    close: int | None = None
    properties: dict[str, Span] = field(default_factory=dict)
    rules: list[tuple[Constraint, Span]] = field(default_factory=list)


def add_properties(
    text: str,
    table_key: str,
    properties: tuple[Property, ...],
    rules: tuple[Constraint, ...] = (),
    order: tuple[str, ...] = (),
) -> str:
    """Return `text` with the properties and rules that a type lacks at the end of its body.

    Properties that `order` names stand before the first of those that it names after them.

    A rule is left out if it names a property that the type doesn't have then, a type if the text
    doesn't have it: its table is unknown to the engine as a whole.
    """
    declared = parse_pg(text).of_table(table_key)
    if declared is None:
        return text
    known = {p.name for p in declared.properties}
    new = [p for p in properties if p.name not in known]
    known |= {p.name for p in new}
    more = [r for r in rules if r not in declared.rules and known >= set(r.columns)]
    if not (new or more):
        return text
    for prop in reversed(new):
        text, is_placed = _before(text, table_key, prop, order)
        new = [other for other in new if other is not prop] if is_placed else new
    if not (new or more):
        return text
    place = _place(text, table_key)
    rendered = [*map(render_property, new), *map(render_rule, more)]
    lines = "".join(f"    {declaration}\n" for declaration in rendered)
    if place.close is None:
        return f"{text[: place.end]} {{\n{lines}}}{text[place.end :]}"
    line = text.rfind("\n", 0, place.close) + 1
    if not text[line : place.close].strip():
        return f"{text[:line]}{lines}{text[line:]}"
    return f"{text[: place.close].rstrip()}\n{lines}{text[place.close :]}"


def _before(text: str, table_key: str, prop: Property, order: tuple[str, ...]) -> tuple[str, bool]:
    """Return `text` with a property before those that `order` has after it, if any is there."""
    following = order[order.index(prop.name) + 1 :] if prop.name in order else ()
    place = _place(text, table_key)
    behind = next((name for name in following if name in place.properties), None)
    if behind is None:
        return text, False
    begin, _ = place.properties[behind]
    space = text[text.rfind("\n", 0, begin) + 1 : begin]
    space = "    " if space.strip() else space
    return f"{text[:begin]}{render_property(prop)}\n{space}{text[begin:]}", True


def drop_properties(text: str, table_key: str, names: frozenset[str]) -> str:
    """Return `text` without some properties of a type, and without the rules that name them.

    Raises:
        UnsupportedError: a property comes from an interface that the type implements.
    """
    declared = parse_pg(text).of_table(table_key)
    if declared is None:
        return text
    gone = names & {p.name for p in declared.properties}
    if not gone:
        return text
    place = _place(text, table_key)
    _refuse_inherited(declared, place, gone)
    spans = [place.properties[name] for name in gone]
    spans += [span for rule, span in place.rules if gone & set(rule.columns)]
    for span in sorted(spans, reverse=True):
        text = _without(text, span)
    left = parse_pg(text).of_table(table_key)
    if left is not None and gone & {p.name for p in left.properties}:
        _refuse_inherited(declared, _Place(), gone)
    return text


def drop_types(text: str, table_keys: frozenset[str]) -> str:
    """Return `text` without some types; what people wrote between types stays."""
    locating = _Locating(text)
    locating.schema()
    spans = [(p.begin, p.end) for key, p in locating.places.items() if key in table_keys]
    for span in sorted(spans, reverse=True):
        text = _without(text, span)
    return text


def _place(text: str, table_key: str) -> _Place:
    parser = _Locating(text)
    parser.schema()
    return parser.places[table_key]


def _refuse_inherited(declared: NodeType | EdgeType, place: _Place, names: frozenset[str]) -> None:
    for name in sorted(names):
        if name not in place.properties:
            raise UnsupportedError(
                f"Property {name} of {declared.table_key} comes from an interface",
                expected=f"a property that {declared.name} declares itself",
                hint=f"Change the interface in {layout.SCHEMA_PG} with the engine",
            )


def _without(text: str, span: Span) -> str:
    """Take a span out, with its line where nothing else but a comment stands on it."""
    begin, end = span
    line = text.rfind("\n", 0, begin) + 1
    following = text.find("\n", end)
    stop = len(text) if following < 0 else following + 1
    rest = text[end:stop].strip()
    if not text[line:begin].strip() and (not rest or rest.startswith("//")):
        return text[:line] + text[stop:]
    return text[:begin] + text[end:].lstrip(" \t")


class _Locating(Parser):
    """A parser that also notes where the parts of each type stand."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._begin = self._end = 0  # of the last token
        self._now = _Place()
        self.places: dict[str, _Place] = {}

    def _skip(self) -> None:
        self._end = self._at
        super()._skip()

    def _take(self, pattern: re.Pattern[str], expected: str) -> str:
        self._begin = self._at
        return super()._take(pattern, expected)

    def _node(self) -> NodeType:
        self._now = _Place(self._begin)
        node = super()._node()
        self._placed(node.table_key)
        return node

    def _edge(self) -> EdgeType:
        self._now = _Place(self._begin)
        edge = super()._edge()
        self._placed(edge.table_key)
        return edge

    def _placed(self, table_key: str) -> None:
        self._now.end = self._end
        if self._text[self._end - 1] == "}":
            self._now.close = self._end - 1
        self.places[table_key] = self._now

    def _property(self) -> Property:
        begin = self._at
        prop = super()._property()
        self._now.properties[prop.name] = (begin, self._end)
        return prop

    def _rule(self) -> Constraint:
        begin = self._at
        rule = super()._rule()
        self._now.rules.append((rule, (begin, self._end)))
        return rule
