"""`_schema.pg`: the engine's schema as text (format.md, "The engine's schema files").

`parse_pg` reads what the engine reads, comments, interfaces and annotations included; `render_pg`
writes types that are appended to a file. Pure functions over strings.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace
from decimal import Decimal
from typing import TypeVar

from omnigraph_spark.errors import CorruptManifestError, OptionError
from omnigraph_spark.schema import property_types
from omnigraph_spark.schema.model import (
    Annotation,
    Constraint,
    EdgeType,
    EngineSchema,
    InterfaceType,
    NodeType,
    Property,
    key_of,
)
from omnigraph_spark.storage import layout

_BLANK = re.compile(r"(?:\s+|//[^\n]*|/\*.*?\*/)*", re.DOTALL)
_WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_INTEGER = re.compile(r"\d+")
_NUMBER = re.compile(r"-?\d+(?:\.\d+)?")
_STRING = re.compile(r'"(?:[^"\\]|\\.)*"', re.DOTALL)
_LITERAL = re.compile(r'"(?:[^"\\]|\\.)*"|[A-Za-z0-9_.\-]+', re.DOTALL)
_TYPE = re.compile(r"(?:\[[^\]]*\]|(?:enum|Vector)\s*\([^)]*\)|[A-Za-z0-9]+)\s*\??")
_RULE = re.compile(r"@\s*(key|unique|index|range|check)\s*\(")
_Named = TypeVar("_Named", NodeType, EdgeType, InterfaceType, Property)
_ESCAPES = {"n": "\n", "r": "\r", "t": "\t"}


def parse_pg(text: str) -> EngineSchema:
    """Return the schema that the text of a `_schema.pg` declares.

    Raises:
        CorruptManifestError: it can't be read; the line is named.
    """
    return Parser(text).schema()


def render_pg(types: Iterable[NodeType | EdgeType]) -> str:
    """Return declarations of types as text, in their order, with a line feed at the end of each.

    `implements` is left out: the type's properties are all there.
    """
    return "".join(
        _edge(engine_type)
        if isinstance(engine_type, EdgeType)
        else _node(replace(engine_type, implements=()))
        for engine_type in types
    )


def render_schema(schema: EngineSchema) -> str:
    """Return the text of a whole `_schema.pg`: interfaces first, and node types that say which.

    A node type's own body leaves out what it has from an interface as it is.
    """
    parts = [
        f"interface {interface.name} {{\n{_lines(interface)}}}\n"
        for interface in schema.interfaces.values()
    ]
    for node in schema.nodes.values():
        own_properties = tuple(p for p in node.properties if p.name not in node.inherited)
        own = replace(node, properties=own_properties)
        parts.append(_node(own))
    parts += map(_edge, schema.edges.values())
    return "\n".join(parts)


def is_cut(text: str) -> bool:
    """Return whether a text that can't be read ends inside a declaration: the rest is lost.

    False for a text that can be read, and for one with something unknown before its last line.
    """
    parser = Parser(text)
    try:
        parser.schema()
    except CorruptManifestError:
        return parser.is_at_the_end()
    return False


class Parser:
    """Recursive descent over one text; `_at` is the place that is read next."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._nodes: dict[str, NodeType] = {}
        self._edges: dict[str, EdgeType] = {}
        self._interfaces: dict[str, InterfaceType] = {}

    def schema(self) -> EngineSchema:
        """Return the schema that the whole text declares."""
        self._skip()
        while self._at < len(self._text):
            word = self._take(_WORD, "node, edge or interface")
            if word == "interface":
                self._add(self._interfaces, self._interface())
            elif word == "node":
                self._add(self._nodes, self._node())
            elif word == "edge":
                self._add(self._edges, self._edge())
            else:
                raise self._error("node, edge or interface", word)
        nodes = {name: self._implemented(node) for name, node in self._nodes.items()}
        return EngineSchema(nodes, self._edges, self._interfaces)

    def is_at_the_end(self) -> bool:
        """Return whether what couldn't be read is in the last line, and nothing closes it."""
        rest = self._text[self._at :]
        return "\n" not in rest.rstrip() and "}" not in rest

    # --- declarations --------------------------------------------------------------------------

    def _interface(self) -> InterfaceType:
        name = self._take(_WORD, "a name")
        properties, _ = self._body()
        return InterfaceType(name, properties)

    def _node(self) -> NodeType:
        name = self._take(_WORD, "a name")
        annotations = self._annotations()
        implements: list[str] = []
        if self._peek(_WORD) == "implements":
            self._take(_WORD, "implements")
            implements.append(self._take(_WORD, "an interface"))
            while self._accept(","):
                implements.append(self._take(_WORD, "an interface"))
        properties, rules = self._body()
        return NodeType(name, None, properties, annotations, tuple(implements), rules)

    def _edge(self) -> EdgeType:
        name = self._take(_WORD, "a name")
        self._expect(":")
        source = self._take(_WORD, "a node type")
        self._expect("->")
        target = self._take(_WORD, "a node type")
        cardinality: tuple[int, int | None] = (0, None)
        if self._peek(re.compile(r"@card\s*\(")):
            self._take(re.compile(r"@card\s*\("), "@card(")
            low = int(self._take(_INTEGER, "a number"))
            self._expect("..")
            high = int(self._take(_INTEGER, "a number")) if self._peek(_INTEGER) else None
            self._expect(")")
            cardinality = (low, high)
        annotations = self._annotations()
        properties, rules = self._body() if self._peek("{") else ((), ())
        return EdgeType(name, source, target, properties, cardinality, annotations, rules)

    def _body(self) -> tuple[tuple[Property, ...], tuple[Constraint, ...]]:
        properties: dict[str, Property] = {}
        rules: list[Constraint] = []
        self._expect("{")
        while not self._accept("}"):
            if self._peek("@"):
                rules.append(self._rule())
            else:
                self._add(properties, self._property())
        return tuple(properties.values()), tuple(rules)

    def _property(self) -> Property:
        name = self._take(_WORD, "a property, @rule or }")
        self._expect(":")
        at = self._at
        text = self._take(_TYPE, "a type")
        try:
            engine_type = property_types.parse(text)
        except OptionError as error:
            raise self._error(str(error.expected), text, at) from error
        return Property(name, engine_type, self._annotations())

    def _annotations(self) -> tuple[Annotation, ...]:
        parsed: list[Annotation] = []
        while self._peek("@") and not self._peek(_RULE):
            self._expect("@")
            parsed.append(self._annotation(self._take(_WORD, "an annotation")))
        return tuple(parsed)

    def _annotation(self, name: str) -> Annotation:
        value: str | None = None
        kwargs: dict[str, str] = {}
        if self._accept("("):
            while True:
                literal = self._take(_LITERAL, "a value")
                if self._accept("="):
                    kwargs[literal] = _decoded(self._take(_LITERAL, "a value"))
                else:
                    value = _decoded(literal)
                if self._accept(")"):
                    break
                self._expect(",")
        return Annotation(name, value, tuple(sorted(kwargs.items())))

    def _rule(self) -> Constraint:
        match = _RULE.match(self._text, self._at)
        if match is None:
            raise self._error("@key(, @unique(, @index(, @range( or @check(", self._rest())
        self._at = match.end()
        self._skip()
        kind = match.group(1).capitalize()
        columns = [self._take(_WORD, "a property")]
        bounds: tuple[int | float | None, int | float | None] = (None, None)
        pattern: str | None = None
        if kind == "Range":
            self._expect(",")
            bounds = self._bounds()
        elif kind == "Check":
            self._expect(",")
            pattern = _decoded(self._take(_STRING, "a text in double quotes"))
        else:
            while self._accept(","):
                columns.append(self._take(_WORD, "a property"))
        self._expect(")")
        return Constraint(kind, tuple(columns), bounds, pattern)

    def _bounds(self) -> tuple[int | float | None, int | float | None]:
        low = _number(self._take(_NUMBER, "a number")) if self._peek(_NUMBER) else None
        self._expect("..")
        high = _number(self._take(_NUMBER, "a number")) if self._peek(_NUMBER) else None
        # The engine takes the first number that it meets for the lower bound, `..200` included, and
        # the JSON files have to agree with it.
        return (high, None) if low is None else (low, high)

    def _implemented(self, node: NodeType) -> NodeType:
        """Return the node type with those properties of its interfaces that it lacks itself."""
        properties = {p.name: p for p in node.properties}
        for name in node.implements:
            if name not in self._interfaces:
                raise self._error(f"an interface {name} that node {node.name} implements", "none")
            for prop in self._interfaces[name].properties:
                properties.setdefault(prop.name, prop)
        own = {p.name for p in node.properties}
        full = replace(
            node,
            properties=tuple(properties.values()),
            inherited=frozenset(properties.keys() - own),
        )
        return replace(full, key=key_of(full.constraints()))

    # --- text ----------------------------------------------------------------------------------

    def _add(self, named: dict[str, _Named], declaration: _Named) -> None:
        if declaration.name in named:
            raise self._error("names that differ", f"{declaration.name} twice")
        named[declaration.name] = declaration

    def _skip(self) -> None:
        match = _BLANK.match(self._text, self._at)
        self._at = self._at if match is None else match.end()

    def _peek(self, pattern: str | re.Pattern[str]) -> str | None:
        if isinstance(pattern, str):
            return pattern if self._text.startswith(pattern, self._at) else None
        match = pattern.match(self._text, self._at)
        return None if match is None else match.group(0)

    def _accept(self, token: str) -> bool:
        if not self._text.startswith(token, self._at):
            return False
        self._at += len(token)
        self._skip()
        return True

    def _expect(self, token: str) -> None:
        if not self._accept(token):
            raise self._error(token, self._rest())

    def _take(self, pattern: re.Pattern[str], expected: str) -> str:
        match = pattern.match(self._text, self._at)
        if match is None:
            raise self._error(expected, self._rest())
        self._at = match.end()
        self._skip()
        return match.group(0)

    def _rest(self) -> str:
        line = self._text[self._at : self._at + 40].split("\n", 1)[0]
        return repr(line) if self._at < len(self._text) else "the end of the file"

    def _error(self, expected: str, actual: str, at: int | None = None) -> CorruptManifestError:
        line = self._text.count("\n", 0, self._at if at is None else at) + 1
        return CorruptManifestError(
            f"{layout.SCHEMA_PG} can't be read at line {line}",
            expected=expected,
            found=actual,
            hint="Mend the file, or write with the engine that wrote it",
        )


def _decoded(literal: str) -> str:
    if not literal.startswith('"'):
        return literal
    return re.sub(
        r"\\(.)", lambda m: _ESCAPES.get(m.group(1), m.group(1)), literal[1:-1], flags=re.DOTALL
    )


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    for letter, character in _ESCAPES.items():
        escaped = escaped.replace(character, f"\\{letter}")
    return f'"{escaped}"'


def _number(text: str) -> int | float:
    return float(text) if "." in text else int(text)


def _node(node: NodeType) -> str:
    listed = f" implements {', '.join(node.implements)}" if node.implements else ""
    return f"node {node.name}{_marks(node.annotations)}{listed} {{\n{_lines(node)}}}\n"


def _edge(edge: EdgeType) -> str:
    low, high = edge.cardinality
    card = "" if edge.cardinality == (0, None) else f" @card({low}..{'' if high is None else high})"
    head = f"edge {edge.name}: {edge.source} -> {edge.target}{card}{_marks(edge.annotations)}"
    lines = _lines(edge)
    return f"{head} {{\n{lines}}}\n" if lines else f"{head}\n"


def _lines(engine_type: NodeType | EdgeType | InterfaceType) -> str:
    lines = [render_property(p) for p in engine_type.properties]
    if not isinstance(engine_type, InterfaceType):
        lines += [render_rule(rule) for rule in engine_type.rules]
    return "".join(f"    {line}\n" for line in lines)


def render_property(one: Property) -> str:
    """Return one property as it stands in a type's body."""
    return f"{one.name}: {one.type.text()}{_marks(one.annotations)}"


def _marks(annotations: Iterable[Annotation]) -> str:
    text = ""
    for annotation in annotations:
        values = [] if annotation.value is None else [_quoted(annotation.value)]
        values += [f"{key}={_quoted(value)}" for key, value in annotation.kwargs]
        text += f" @{annotation.name}" + (f"({', '.join(values)})" if values else "")
    return text


def render_rule(rule: Constraint) -> str:
    """Return one rule as it stands in a type's body."""
    values = list(rule.columns)
    if rule.kind == "Range":
        values.append("..".join(map(_bound, rule.bounds)))
    if rule.pattern is not None:
        values.append(_quoted(rule.pattern))
    return f"@{rule.kind.lower()}({', '.join(values)})"


def _bound(bound: int | float | None) -> str:
    """Return a bound as the grammar takes it: a float with a point, and without an exponent."""
    if not isinstance(bound, float):
        return "" if bound is None else str(bound)
    digits = format(Decimal(repr(bound)), "f")
    return digits if "." in digits else f"{digits}.0"
