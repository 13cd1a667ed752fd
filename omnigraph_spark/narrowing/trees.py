"""Spark's plans as plain trees, made from the JSON that Spark gives of them; pure, no JVM.

One text instead of a call per node: a plan of a hundred nodes has thousands of expressions. The
JSON of a tree is a list of its nodes in pre-order, each with its class, its number of children, and
its fields; expressions and the plans of subqueries are such lists among the fields.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

_EXPRESSIONS = "org.apache.spark.sql.catalyst.expressions."


@dataclass(frozen=True)
class Tree:
    """A node of a plan or of an expression; `kind` is its class without the package."""

    kind: str
    fields: Mapping[str, Any]
    children: tuple[Tree, ...]

    @property
    def is_expression(self) -> bool:
        """Return whether it is one of Catalyst's expressions."""
        return str(self.fields["class"]).startswith(_EXPRESSIONS)

    def inner(self) -> Iterator[Tree]:
        """Yield the trees in the node's fields: a plan's expressions, a subquery's plan."""
        for value in self.fields.values():
            yield from within(value)


def parse(text: str) -> Tree:
    """Return the tree of `TreeNode.toJSON`.

    Raises:
        ValueError, KeyError, TypeError, IndexError: the text isn't of that form.
    """
    return _tree(json.loads(text))


def attribute(tree: Tree) -> int | None:
    """Return the expression id of a reference to a column, None for anything else."""
    return expr_id(tree) if tree.kind == "AttributeReference" else None


def expr_id(tree: Tree) -> int:
    """Return the expression id of an attribute or an alias."""
    return int(tree.fields["exprId"]["id"])


def within(value: Any) -> Iterator[Tree]:
    """Yield the trees in a value of a field."""
    if _is_flat(value):
        yield _tree(value)
    elif isinstance(value, list):
        for item in value:
            yield from within(item)
    elif isinstance(value, dict):
        for item in value.values():
            yield from within(item)


def _is_flat(value: Any) -> bool:
    return (
        isinstance(value, list)
        and bool(value)
        and isinstance(value[0], dict)
        and "class" in value[0]
        and "num-children" in value[0]
    )


def _tree(flat: Sequence[Mapping[str, Any]]) -> Tree:
    """Return the tree of a list in pre-order, without recursion: filters may be deep chains."""
    done: list[Tree] = []
    for fields in reversed(flat):
        count = int(fields["num-children"])
        if len(done) < count:
            raise ValueError("the JSON of a plan ends too early")
        children = tuple(done.pop() for _ in range(count))
        done.append(Tree(str(fields["class"]).rpartition(".")[2], fields, children))
    if len(done) != 1:
        raise ValueError("the JSON of a plan has more than one root")
    return done[0]
