"""How the text of an option is read: one parser per kind of value.

A parser takes the option's name, for messages, and Spark's text. All are pure, and raise
OptionError for a malformed value.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from omnigraph_spark.errors import OptionError, did_you_mean
from omnigraph_spark.storage import layout

_SIZE = re.compile(r"(\d+)\s*([kmgt]?)i?b?\Z", re.IGNORECASE)
_KIND = re.compile(r"(?:node|edge):")
_FACTOR = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}

Parser = Callable[[str, str], Any]


def any_text(_name: str, value: str) -> str:
    """Return the text as it is."""
    return value


def text(name: str, value: str) -> str:
    """Return a text that isn't blank."""
    if not value.strip():
        raise malformed(name, value, "a text that isn't empty")
    return value


def boolean(name: str, value: str) -> bool:
    """Return what `true` or `false` says, in any case."""
    lowered = value.strip().lower()
    if lowered not in ("true", "false"):
        raise malformed(name, value, "true or false")
    return lowered == "true"


def integer(low: int) -> Parser:
    """Return a parser of whole numbers that are at least `low`."""

    def parse(name: str, value: str) -> int:
        if not re.fullmatch(r"-?\d{1,18}", value.strip()) or int(value) < low:
            raise malformed(name, value, f"a whole number of at least {low}")
        return int(value)

    return parse


def seconds(name: str, value: str) -> float:
    """Return a number of seconds, 0 or more."""
    if not re.fullmatch(r"\d{1,9}(\.\d{1,6})?", value.strip()):
        raise malformed(name, value, "a number of seconds, 0 or more")
    return float(value)


def size(name: str, value: str) -> int:
    """Return a number of bytes: `128m`, `1g`, `1048576`."""
    match = _SIZE.match(value.strip())
    if not match or int(match.group(1)) < 1:
        raise malformed(name, value, "a size such as 128m, 1g or a number of bytes")
    return int(match.group(1)) * _FACTOR[match.group(2).lower()]


def choice(*allowed: str) -> Parser:
    """Return a parser of one of `allowed`, in any case, as it is spelled there."""

    def parse(name: str, value: str) -> str:
        for word in allowed:
            if value.strip().lower() == word.lower():
                return word
        raise malformed(name, value, " or ".join(allowed), did_you_mean(value, allowed))

    return parse


def names(name: str, value: str) -> tuple[str, ...]:
    """Return the different names of a comma list."""
    parts = tuple(part.strip() for part in value.split(","))
    if not all(parts) or len(set(parts)) != len(parts):
        raise malformed(name, value, "a comma list of different names")
    return parts


def versions(name: str, value: str) -> dict[str, int]:
    """Return table versions by table key, from JSON."""
    try:
        parsed = json.loads(value)
    except json.JSONDecodeError:
        parsed = None
    valid = isinstance(parsed, dict) and all(
        layout.is_table_key(key) and isinstance(v, int) and not isinstance(v, bool) and v >= 0
        for key, v in parsed.items()
    )
    if not valid or not isinstance(parsed, dict):
        raise malformed(name, value, 'JSON such as {"node:Person": 7}')
    return dict(parsed)


def pairs(example: str) -> Parser:
    """Return a parser of `left: right, left: right`; a left side `node:A` counts as `A`."""

    def parse(name: str, value: str) -> dict[str, str]:
        entries: dict[str, str] = {}
        for part in _parts(value):
            left, colon, right = (
                piece.strip() for piece in _KIND.sub("", part.strip()).partition(":")
            )
            if not (left and colon and right) or left in entries:
                raise malformed(name, value, f"a comma list such as {example}")
            entries[left] = right
        return entries

    return parse


def _parts(value: str) -> list[str]:
    """Return what commas separate, but those inside brackets: `enum(a, b)`, `map<string, int>`."""
    parts, depth = [""], 0
    for at, character in enumerate(value):
        if character in "(<":
            depth += 1
        elif character == ")" or (character == ">" and value[at - 1 : at] != "-"):
            depth = max(0, depth - 1)
        if character == "," and not depth:
            parts.append("")
        else:
            parts[-1] += character
    return parts


def as_text(name: str, value: object) -> str:
    """Return a Python value as the text of an option: text, numbers, booleans, lists and mappings.

    A mapping is written as the option has it: `{"Person": "name"}` for `keys`, `{"Knows":
    ("Person", "Person")}` for `endpoints`, `{"Person.n": "bigint"}` or `{"Person": {"n":
    LongType()}}` for `types`, `{"node:Person": 7}` for `expectedTableVersions`.

    Raises:
        OptionError: a value that the option can't be; its type is named, not the value.
    """
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (str, int, float)):
        return str(value)
    if isinstance(value, Mapping):
        if name == "expectedTableVersions":
            return json.dumps({str(key): version for key, version in value.items()})
        pairs = dict(_flat(name, value))
        return ", ".join(f"{key}: {_one(name, item)}" for key, item in pairs.items())
    if isinstance(value, (list, tuple)):
        return ", ".join(_one(name, item) for item in value)
    raise _unfit(name, value)


def _flat(name: str, value: Mapping[Any, Any]) -> Iterator[tuple[str, Any]]:
    for key, item in value.items():
        if not isinstance(key, str):
            raise _unfit(name, key)
        if isinstance(item, Mapping):
            yield from ((f"{key}.{inner}", kind) for inner, kind in item.items())
        else:
            yield key, item


def _one(name: str, value: object) -> str:
    if isinstance(value, (list, tuple)) and all(isinstance(part, str) for part in value):
        return (" -> " if name == "endpoints" else ", ").join(value)
    spark_type = getattr(value, "simpleString", None)
    if callable(spark_type):
        return str(spark_type())
    if not isinstance(value, str):
        raise _unfit(name, value)
    return value


def _unfit(name: str, value: object) -> OptionError:
    return OptionError(
        f"Option {name} can't be of the type {type(value).__name__}",
        expected="text, a number, a boolean, or a mapping or list of texts",
        found=type(value).__name__,
    )


def edge_keys(name: str, value: str) -> dict[str, tuple[str, ...]]:
    """Return the key columns of edge types: `Bought: src, dst, at, Knows: src, dst`."""
    example = "key columns by type: Bought: src, dst, at, Knows: src, dst"
    by_edge: dict[str, list[str]] = {}
    columns: list[str] | None = None
    for part in value.split(","):
        left, colon, right = _KIND.sub("", part.strip()).rpartition(":")
        if colon:
            columns = by_edge.setdefault(left.strip(), [])
        if columns is None or not right.strip() or right.strip() in columns:
            raise malformed(name, value, example)
        columns.append(right.strip())
    if "" in by_edge:
        raise malformed(name, value, example)
    return {edge: tuple(names) for edge, names in by_edge.items()}


def malformed(name: str, value: str, expected: str, hint: str | None = None) -> OptionError:
    """Return the error for a value that a parser refuses."""
    shown = value if len(value) <= 60 else value[:57] + "…"
    what = f"Option {name} is malformed"
    return OptionError(what, expected=expected, found=repr(shown), hint=hint)
