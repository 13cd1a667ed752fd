"""Read the text of a predicate as Spark SQL does, as far as Lance can answer it exactly.

`parse` knows comparisons, `IN`, `BETWEEN`, `LIKE`, null checks, three text searches and what joins
them, over columns and literals. Whatever else Spark's SQL has, Lance may compute otherwise: whole
numbers are divided otherwise, a time without a zone is read in another zone, a cast that fails is
an error in Spark. It is refused here with the reason. Pure functions over text; on the driver.
"""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date, datetime, timezone
from decimal import Decimal
from typing import Any

from omnigraph_spark.errors import OptionError

_DEPTH = 200
_TOKEN = re.compile(
    r"""(?P<space>[ \t\r\n]+|--[^\r\n\\]*|/\*(?:(?!/\*).)*?\*/)
      | (?P<text>'(?:[^']|'')*'|"(?:[^"]|"")*")
      | (?P<quoted>`(?:[^`]|``)*`)
      | (?P<number>(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?(?:BD|[LSYDF])?(?![\w.]))
      | (?P<word>[^\W\d]\w*)
      | (?P<sign><=>|<=|>=|<>|!=|==|\|\||->|::|[-=<>!(),.+*/%&|^~\[\]:;?])""",
    re.VERBOSE | re.DOTALL | re.IGNORECASE,
)
_COMPARISONS = {
    "=": "EqualTo",
    "==": "EqualTo",
    "<=>": "EqualNullSafe",
    "<": "LessThan",
    "<=": "LessThanOrEqual",
    ">": "GreaterThan",
    ">=": "GreaterThanOrEqual",
}
_SEARCHES = {
    "startswith": "StringStartsWith",
    "endswith": "StringEndsWith",
    "contains": "StringContains",
}
# fmt: off
_RESERVED = frozenset((
    "and", "or", "not", "in", "is", "null", "like", "between", "true", "false", "case", "when",
    "then", "else", "end", "exists", "select",
))
# fmt: on
_COMPUTED = {
    "/": "/ divides whole numbers into fractions in Spark, and cuts them off in Lance",
    "::": "a cast that fails is an error in Spark, and null in Lance",
    "[": "elements of lists and maps",
    ".": "fields of structs",
}
_ZONED = re.compile(
    r"(\d{4}-\d\d-\d\d)(?:[ T](\d\d:\d\d(?::\d\d(?:\.\d{1,6})?)?))?\s?(Z|UTC|[+-]\d\d:\d\d)\Z", re.I
)
_LOCAL = re.compile(r"(\d{4}-\d\d-\d\d)(?:[ T](\d\d:\d\d(?::\d\d(?:\.\d{1,6})?)?))?\Z")
_DAY = re.compile(r"\d{4}-\d\d-\d\d\Z")


@dataclass(frozen=True)
class Column:
    """A column by the name that the text has for it."""

    name: str


@dataclass(frozen=True)
class Literal:
    """A literal: `kind` is int, decimal, double, float, text, bool, null, day, instant or local.

    Decimals are of `Decimal`, points in time are in UTC.
    """

    kind: str
    value: Any


@dataclass(frozen=True)
class Leaf:
    """A test of one column; `name` is that of Spark's filter classes, `Like`, or `HasToken`."""

    name: str
    column: Column
    value: Any = None


@dataclass(frozen=True)
class Both:
    """A comparison of two columns."""

    name: str
    left: Column
    right: Column


@dataclass(frozen=True)
class Always:
    """True, false, or null."""

    value: bool | None


@dataclass(frozen=True)
class Not:
    """The opposite; null stays null."""

    child: Node


@dataclass(frozen=True)
class Join:
    """AND (`every`) or OR of its parts."""

    every: bool
    parts: tuple[Node, ...]


Node = Leaf | Both | Always | Not | Join


def parse(text: str) -> Node:
    """Return what a predicate says.

    Raises:
        OptionError: it is not a predicate, or says something that Lance may answer otherwise.
    """
    return _Parser(text).whole()


def columns(node: Node) -> set[str]:
    """Return the names of the columns that a predicate looks at."""
    if isinstance(node, Join):
        return set().union(*map(columns, node.parts))
    if isinstance(node, Not):
        return columns(node.child)
    if isinstance(node, Both):
        return {node.left.name, node.right.name}
    return {node.column.name} if isinstance(node, Leaf) else set()


def refused(why: str, found: str) -> OptionError:
    """Return the refusal of something that `where` can say and the option can't."""
    return OptionError(
        f"Option filter can't answer this as Spark's where does: {why}",
        expected="comparisons, IN, BETWEEN, LIKE and null checks of columns with literals,"
        " such as age > 30 AND name = 'ann'",
        found=found[:200],
        hint="Give this part to .where(…) on the frame: Spark evaluates it itself",
    )


def malformed(text: str, where: str) -> OptionError:
    """Return the refusal of text that is not a predicate."""
    return OptionError(
        "Option filter is not a predicate",
        expected="a condition such as age > 30 AND name = 'ann', odd names in backticks",
        found=f"{where} in {text[:120]!r}",
    )


class _Parser:
    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens = [*_tokens(text)]
        self._at = 0
        self._depth = 0

    def whole(self) -> Node:
        node = self._or()
        if self._at < len(self._tokens):
            raise self._unexpected()
        return node

    # --- what joins conditions -------------------------------------------------------------------

    def _or(self) -> Node:
        self._depth += 1
        if self._depth > _DEPTH:
            raise malformed(self._text, f"more than {_DEPTH} brackets")
        parts = [self._and()]
        while self._take("or"):
            parts.append(self._and())
        self._depth -= 1
        return parts[0] if len(parts) == 1 else Join(False, tuple(parts))

    def _and(self) -> Node:
        parts = [self._not()]
        while self._take("and"):
            parts.append(self._not())
        return parts[0] if len(parts) == 1 else Join(True, tuple(parts))

    def _not(self) -> Node:
        negated = False
        while self._take("not") or self._take("!"):
            negated = not negated
        condition = self._condition()
        return Not(condition) if negated else condition

    # --- one condition ---------------------------------------------------------------------------

    def _condition(self) -> Node:
        if self._take("("):
            inner = self._or()
            self._need(")")
            return self._after_condition(inner)
        search = self._search()
        if search is not None:
            return self._after_condition(search)
        left = self._operand()
        sign = self._peek()
        if sign in ("!=", "<>") or sign in _COMPARISONS:
            self._at += 1
            right = self._operand()
            self._refuse_computed()
            return _compared(_COMPARISONS.get(sign, "EqualTo"), left, right, sign in ("!=", "<>"))
        negated = self._take("not")
        for word, read in (("in", self._in), ("between", self._between), ("like", self._like)):
            if self._take(word):
                return Not(read(left)) if negated else read(left)
        if negated:
            raise self._unexpected()
        return self._after_condition(self._alone(left))

    def _after_condition(self, inner: Node) -> Node:
        if self._peek() in ("=", "==", "<>", "!=", "<=>", "<", ">", "<=", ">="):
            raise refused("a condition is compared", self._rest())
        self._refuse_computed()
        if not self._take("is"):
            return inner
        negated = self._take("not")
        word = self._next()
        if word == "null" and isinstance(inner, Leaf) and inner.name == "IsTrue":
            return Leaf("IsNotNull" if negated else "IsNull", inner.column)
        raise refused(f"IS {word.upper()} of a condition", self._text)

    def _alone(self, operand: Column | Literal) -> Node:
        if isinstance(operand, Column):
            if self._take("is"):
                negated = self._take("not")
                word = self._next()
                if word == "null":
                    return Leaf("IsNotNull" if negated else "IsNull", operand)
                if word in ("true", "false"):
                    leaf = Leaf("EqualNullSafe", operand, Literal("bool", word == "true"))
                    return Not(leaf) if negated else leaf
                raise refused(f"IS {word.upper()}", self._text)
            return Leaf("IsTrue", operand)
        if operand.kind in ("bool", "null") and self._peek() != "is":
            return Always(operand.value)
        self._refuse_computed()
        raise malformed(self._text, "a value that is not a condition")

    def _in(self, left: Column | Literal) -> Node:
        column = _column(left, "IN")
        self._need("(")
        values = [self._literal()]
        while self._take(","):
            values.append(self._literal())
        self._need(")")
        return Leaf("In", column, tuple(values))

    def _between(self, left: Column | Literal) -> Node:
        column = _column(left, "BETWEEN")
        low = self._literal()
        self._need("and")
        high = self._literal()
        return Join(
            True, (Leaf("GreaterThanOrEqual", column, low), Leaf("LessThanOrEqual", column, high))
        )

    def _like(self, left: Column | Literal) -> Node:
        if self._peek() in ("any", "all", "some"):
            raise refused("LIKE ANY and LIKE ALL", self._text)
        pattern = self._literal()
        if self._take("escape"):
            raise refused("LIKE with ESCAPE", self._text)
        return Leaf("Like", _column(left, "LIKE"), pattern)

    def _search(self) -> Node | None:
        name = self._peek()
        if self._at + 1 >= len(self._tokens) or self._tokens[self._at + 1][1] != "(":
            return None
        if self._tokens[self._at][0] != "word" or name in _RESERVED:
            return None
        if name not in (*_SEARCHES, "array_contains", "contains_tokens"):
            why = "a cast that fails is an error in Spark, and not in Lance"
            raise refused(
                why if "cast" in name else f"the function {name} may give something else in Lance",
                self._rest(),
            )
        self._at += 2
        column = _column(self._operand(), name)
        self._need(",")
        value = self._literal()
        self._need(")")
        return Leaf({**_SEARCHES, "array_contains": "Has"}.get(name, "HasToken"), column, value)

    # --- operands --------------------------------------------------------------------------------

    def _operand(self) -> Column | Literal:
        kind, word = self._token()
        if kind == "quoted":
            self._at += 1
            operand: Column | Literal = Column(word)
        elif kind == "word" and word.lower() not in _RESERVED and not self._is_typed():
            self._at += 1
            if self._peek() == "(":
                raise refused(f"the function {word} may give something else in Lance", self._text)
            operand = Column(word)
        else:
            return self._literal()
        self._refuse_computed()
        return operand

    def _is_typed(self) -> bool:
        """Return whether a text comes next: `DATE '…'`."""
        return self._at + 1 < len(self._tokens) and self._tokens[self._at + 1][0] == "text"

    def _literal(self) -> Literal:
        kind, word = self._token()
        self._at += 1
        if kind == "text":
            return Literal("text", _unquoted(word))
        if kind == "number":
            return self._computed(_number(word, False))
        if word == "-" and self._token()[0] == "number":
            self._at += 1
            return self._computed(_number(self._tokens[self._at - 1][1], True))
        lowered = word.lower()
        if kind == "word" and lowered in ("true", "false", "null"):
            known = {"true": True, "false": False}.get(lowered)
            return Literal("null" if known is None else "bool", known)
        if kind == "word" and self._at < len(self._tokens) and self._tokens[self._at][0] == "text":
            self._at += 1
            return _typed(lowered, _unquoted(self._tokens[self._at - 1][1]))
        if word in ("+", "-", "~"):
            raise refused("it computes", self._text)
        if kind in ("word", "quoted") and lowered not in _RESERVED:
            raise refused(f"a literal is needed where {word} is", self._text)
        self._at -= 1
        if lowered in ("case", "exists", "select"):
            raise refused(f"{word.upper()} isn't a comparison", self._text)
        raise self._unexpected()

    def _computed(self, literal: Literal) -> Literal:
        self._refuse_computed()
        return literal

    # --- tokens ----------------------------------------------------------------------------------

    def _refuse_computed(self) -> None:
        sign = self._peek()
        if sign in _COMPUTED:
            raise refused(_COMPUTED[sign], self._text)
        if sign in ("+", "-", "*", "%", "||", "&", "|", "^", "div", "->", ":"):
            raise refused(
                f"it computes with {sign}, and what overflows is an error in Spark, not in Lance",
                self._text,
            )
        if sign in ("rlike", "regexp", "ilike"):
            raise refused(f"{sign.upper()} follows other rules in Lance", self._text)

    def _token(self) -> tuple[str, str]:
        if self._at >= len(self._tokens):
            raise malformed(self._text, "an end too early")
        return self._tokens[self._at]

    def _peek(self) -> str:
        if self._at >= len(self._tokens) or self._tokens[self._at][0] in ("text", "quoted"):
            return ""
        return self._tokens[self._at][1].lower()

    def _next(self) -> str:
        self._token()
        self._at += 1
        return self._tokens[self._at - 1][1].lower()

    def _take(self, word: str) -> bool:
        if self._peek() != word:
            return False
        self._at += 1
        return True

    def _need(self, word: str) -> None:
        if not self._take(word):
            self._refuse_computed()
            raise self._unexpected()

    def _rest(self) -> str:
        return " ".join(word for _, word in self._tokens[self._at :]) or self._text

    def _unexpected(self) -> OptionError:
        if self._at >= len(self._tokens):
            return malformed(self._text, "an end too early")
        return malformed(self._text, f"{self._tokens[self._at][1]!r} at an unexpected place")


def _tokens(text: str) -> Iterator[tuple[str, str]]:
    at = 0
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None or (text.startswith("/*", at) and match.lastgroup != "space"):
            raise malformed(text, f"{text[at : at + 20]!r} at an unexpected place")
        at = match.end()
        kind = str(match.lastgroup)
        if kind == "quoted":
            yield kind, match.group()[1:-1].replace("``", "`")
        elif kind != "space":
            yield kind, match.group()


def _compared(name: str, left: Column | Literal, right: Column | Literal, negated: bool) -> Node:
    turned = {"LessThan": "GreaterThan", "GreaterThan": "LessThan"}
    turned |= {f"{a}OrEqual": f"{b}OrEqual" for a, b in turned.items()}
    node: Node
    if isinstance(left, Column) and isinstance(right, Column):
        node = Both(name, left, right)
    elif isinstance(left, Column):
        node = Leaf(name, left, right)
    elif isinstance(right, Column):
        node = Leaf(turned.get(name, name), right, left)
    else:
        raise refused("a comparison without a column", f"{left.value!r} and {right.value!r}")
    return Not(node) if negated else node


def _column(operand: Column | Literal, operation: str) -> Column:
    if isinstance(operand, Literal):
        raise refused(f"{operation} without a column", repr(operand.value))
    return operand


def _unquoted(word: str) -> str:
    if "\\" in word:
        raise refused("Spark takes \\ in text for an escape", word)
    if word[0] == '"' and '""' in word[1:-1]:
        raise refused('a doubled " in text', word)
    return word[1:-1].replace("''", "'") if word[0] == "'" else word[1:-1]


def _number(word: str, negative: bool) -> Literal:
    upper = word.upper()
    sign = "-" if negative else ""
    if upper.endswith("BD") and "E" not in upper:
        return _decimal(sign + upper[:-2])
    if upper[-1] in "LSY":
        bits = {"L": 64, "S": 16, "Y": 8}[upper[-1]]
        whole = int(sign + upper[:-1]) if upper[:-1].isdecimal() else None
        if whole is None or not -(1 << bits - 1) <= whole < 1 << bits - 1:
            raise malformed(word, "a number out of range")
        return Literal("int", whole)
    if upper[-1] == "F" or upper[-1] == "D" or "E" in upper:
        kind = "float" if upper[-1] == "F" else "double"
        try:
            value = float(sign + upper.rstrip("FD"))
            if kind == "float":
                (value,) = struct.unpack("f", struct.pack("f", value))
        except (ValueError, OverflowError):
            value = math.inf
        if math.isinf(value):
            raise malformed(word, "a number out of range")
        return Literal(kind, value)
    if upper.isdecimal() and len(upper.lstrip("0")) < 19:
        return Literal("int", int(sign + upper))
    return _decimal(sign + upper)


def _decimal(text: str) -> Literal:
    value = Decimal(text)
    if len(value.as_tuple().digits) > 38 or -int(value.as_tuple().exponent) > 38:
        raise refused("a decimal of more than 38 digits", text)
    return Literal("decimal", value)


def _typed(kind: str, text: str) -> Literal:
    """Return `DATE '…'`, `TIMESTAMP '…'` and their like."""
    if kind == "date" and _DAY.match(text):
        return Literal("day", _made(lambda: date.fromisoformat(text), text))
    if kind in ("timestamp", "timestamp_ltz"):
        return instant(text)
    if kind == "timestamp_ntz" and (match := _LOCAL.match(text)):
        return Literal("local", _made(lambda: _moment(match.group(1), match.group(2), ""), text))
    if kind in ("date", "timestamp_ntz"):
        raise refused(f"the literal {kind.upper()} {text!r} isn't in ISO form", text)
    raise refused(f"literals such as {kind.upper()}'…'", text)


def instant(text: str) -> Literal:
    """Return the literal of a point in time, which must name its zone.

    Raises:
        OptionError: it has none (Spark takes the session's, which the source never sees).
    """
    match = _ZONED.match(text)
    if match is None:
        raise refused(
            "a time without a zone is in the zone of the session, which only Spark knows; write"
            " TIMESTAMP '2024-01-31 12:00:00+00:00'",
            text,
        )
    day, time, zone = match.groups()
    offset = "+00:00" if zone.upper() in ("Z", "UTC") else zone
    moment = _made(lambda: _moment(day, time, offset), text)
    return Literal("instant", _made(lambda: moment.astimezone(timezone.utc), text))


def day(text: str) -> Literal | None:
    """Return text as a date where Spark reads it as the same one, None else."""
    return _typed("date", text) if _DAY.match(text) else None


def _moment(day: str, time: str | None, zone: str) -> datetime:
    hours, _, fraction = (time or "00:00:00").partition(".")
    seconds = hours if hours.count(":") == 2 else f"{hours}:00"
    return datetime.fromisoformat(f"{day}T{seconds}.{fraction.ljust(6, '0')}{zone}")


def _made(make: Any, text: str) -> Any:
    try:
        return make()
    except (ValueError, OverflowError):
        raise refused("there is no such date or time", text) from None
