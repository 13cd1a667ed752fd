"""What a query needs of each of its scans, read off its optimized plan; pure, no JVM.

Spark's optimizer has done the thinking: it moved filters down to the scans, cut what nobody uses
by projections, and put limits where they are enough. Two rules keep this right:

- a column is left out only if no expression of the plan names it, and if no node above takes its
  input as it comes (a union takes columns by place; so may nodes that aren't known here);
- a filter, sort or limit is taken over only if nothing but projections, filters, sorts and limits
  lie between it and the scan, and neither a filter nor a sort lies above a limit.

The query must be deterministic, and hold no `Sample`: then its rows can't depend on columns that it
doesn't name, nor on rows that each use of a scan throws away. The caller looks for that.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from omnigraph_spark.narrowing.trees import Tree, attribute, expr_id, within

_TAG = "omnigraph scan "
_RELATIONS = ("DataSourceV2ScanRelation", "DataSourceV2Relation")
# What these need of their input their expressions say, and what they hand on is said above them.
_SAY_WHAT_THEY_NEED = frozenset(
    {
        "Aggregate",
        "ArrowEvalPython",
        "BatchEvalPython",
        "Expand",
        "Filter",
        "Generate",
        "GlobalLimit",
        "Join",
        "LocalLimit",
        "Offset",
        "Project",
        "RebalancePartitions",
        "Repartition",
        "RepartitionByExpression",
        "Sort",
        "Window",
        "WindowGroupLimit",
    }
)
# They hand on columns that they don't name.
_HAND_ON = _SAY_WHAT_THEY_NEED - {"Aggregate", "Expand", "Project"}
# Expressions of columns and literals of one type; where the types differ there is a cast.
_OPTIMAL = frozenset(
    {
        "Alias",
        "And",
        "AttributeReference",
        "EqualNullSafe",
        "EqualTo",
        "GreaterThan",
        "GreaterThanOrEqual",
        "In",
        "IsNotNull",
        "IsNull",
        "LessThan",
        "LessThanOrEqual",
        "Literal",
        "Not",
        "Or",
    }
)
_LIMITS = ("GlobalLimit", "LocalLimit")
_PARTIAL = {"Sum": "sum", "Min": "min", "Max": "max"}


@dataclass(frozen=True)
class Key:
    """A key of a sort: the place of a column, and which values come first."""

    place: int
    ascending: bool
    nulls_first: bool


Order = tuple[Key, ...]


@dataclass
class Use:
    """One use of a scan in the plan.

    Attributes:
        columns: Places of the columns that the plan uses, in the scan's output.
        conditions: Filters that lie over the scan, each with the places of the columns behind the
            expression ids that it names.
        limit: As many rows are enough, None for all.
        order: Those rows are the first in this order, None for any rows.
        joins: Joins that throw away rows of the scan whose column (by place) has no partner.
        kept: Places of the columns that filters and projections over the scan look into.
        functions: Where the rows are only aggregated, and equal rows count as one but for sums:
            `sum`, `min` or `max` by place, for columns that nothing else looks into.
    """

    output: Mapping[int, int]
    columns: set[int] = field(default_factory=set)
    conditions: list[tuple[Tree, Mapping[int, int]]] = field(default_factory=list)
    limit: int | None = None
    order: Order | None = None
    joins: list[Partner] = field(default_factory=list)
    kept: set[int] = field(default_factory=set)
    functions: Mapping[int, str] | None = None


@dataclass(frozen=True)
class Partner:
    """The other side of a join: rows of a scan without an equal value there don't count.

    Attributes:
        place: The scan's column that is compared.
        side: The plan of the other side, and the expression id of its column.
    """

    place: int
    side: Tree
    key: int


def tag(scan: int, columns: int) -> str:
    """Return a name for the first column of a scan: which scan of the query, of how many columns.

    A name goes through all renumbering of columns, and the optimizer cuts none off such a scan.
    """
    return f"{_TAG}{scan} of {columns}"


def is_optimal(plan: Tree) -> bool:
    """Return whether an optimizer leaves filters over a scan, and a projection on top, as they are.

    So it is where they compare columns with literals: there is nothing to fold, to move or to cut.
    """
    if plan.kind in ("Project", "Filter"):
        inner = all(tree.kind in _OPTIMAL for value in plan.inner() for tree in _all(value))
        return inner and is_optimal(plan.children[0])
    return plan.kind in _RELATIONS


def _all(tree: Tree) -> Iterator[Tree]:
    """Yield an expression and all below it, without recursion: conditions may be deep chains."""
    found = [tree]
    while found:
        one = found.pop()
        yield one
        found += one.children


def uses(plan: Tree, alone: int | None = None) -> dict[int, list[Use]]:
    """Return the uses of the tagged scans of an optimized plan, by the number of the scan.

    A scan that isn't in the result is used by nothing that is left of the query. `alone` is the
    number of a plan's only scan, which then needs no tag.

    Raises:
        ValueError, KeyError, TypeError, IndexError: the plan isn't of the form that is known.
    """
    walk = _Walk(alone)
    walk.visit(plan)
    walk.take_all(plan)
    by_scan: dict[int, list[Use]] = {}
    for scan, use in walk.found:
        use.columns |= {position for id_, position in use.output.items() if id_ in walk.named}
        by_scan.setdefault(scan, []).append(use)
    return by_scan


@dataclass
class _Chain:
    """What lies over a scan, up to a limit, and which ids are which of its columns there."""

    use: Use
    places: Mapping[int, int]
    limited: bool = False
    order: Order | None = None


class _Walk:
    """One walk over a plan."""

    def __init__(self, alone: int | None) -> None:
        self._alone = alone
        self.named: set[int] = set()
        self.found: list[tuple[int, Use]] = []

    def visit(self, node: Tree) -> _Chain | None:
        """Look at a node and all below and within it; return the chain that it is the top of."""
        if node.kind in _RELATIONS:
            return self._scan(node)
        id_ = attribute(node)
        if id_ is not None:
            self.named.add(id_)
            return None
        chains = [self.visit(child) for child in node.children]
        for inner in node.inner():
            self.visit(inner)
            self.take_all(inner)
        if node.kind not in _SAY_WHAT_THEY_NEED:
            for child in node.children:
                self.take_all(child)
        if node.kind == "Join":
            _join(node, chains)
        chain = chains[0] if len(chains) == 1 else None
        return None if chain is None else _next(node, chain)

    def take_all(self, node: Tree) -> None:
        """Note that all columns count which a node hands on from scans."""
        if node.is_expression:
            return
        if node.kind in _RELATIONS:
            self.named |= {expr_id(column) for column in within(node.fields["output"])}
        elif node.kind in _HAND_ON:
            for child in node.children:
                self.take_all(child)

    def _scan(self, node: Tree) -> _Chain | None:
        output = [*within(node.fields["output"])]
        scan = self._alone if self._alone is not None else _tagged(output)
        if scan is None:
            return None
        places = {expr_id(column): place for place, column in enumerate(output)}
        use = Use(places)
        self.found.append((scan, use))
        return _Chain(use, places)


def _tagged(output: list[Tree]) -> int | None:
    """Return which scan has these columns, None for one without a tag."""
    name = str(output[0].fields["name"]) if output else ""
    if not name.startswith(_TAG):
        return None
    scan, _, columns = name.removeprefix(_TAG).partition(" of ")
    if int(columns) != len(output):
        raise ValueError("the optimizer has cut columns off a scan")
    return int(scan)


def _next(node: Tree, chain: _Chain) -> _Chain | None:
    """Return the chain with one more node on top, None where it ends."""
    if node.kind == "Aggregate":
        chain.use.functions = None if chain.limited or chain.order else _functions(node, chain)
        return None
    if node.kind == "Project":
        for column in within(node.fields["projectList"]):
            if attribute(column.children[0] if column.kind == "Alias" else column) is None:
                chain.use.kept |= _places(column, chain.places)
        return replace(chain, places=_renamed(node, chain.places))
    if node.kind == "Sort" and not chain.limited:
        order = _order(node, chain.places)
        return None if order is None else replace(chain, order=order)
    if node.kind == "Filter" and not chain.limited:
        (condition,) = within(node.fields["condition"])
        chain.use.conditions.append((condition, chain.places))
        chain.use.kept |= _places(condition, chain.places)
        return chain
    if node.kind in _LIMITS:
        (count,) = within(node.fields["limitExpr"])
        if count.kind != "Literal":
            return None
        most = int(count.fields["value"])
        chain.use.limit = most if chain.use.limit is None else min(most, chain.use.limit)
        chain.use.order = chain.order
        return replace(chain, limited=True)
    return None


def _places(expression: Tree, places: Mapping[int, int]) -> set[int]:
    """Return the places of the columns that an expression names, those of its subqueries too."""
    found: set[int] = set()
    waiting = [expression]
    while waiting:
        one = waiting.pop()
        id_ = attribute(one)
        if id_ is not None and id_ in places:
            found.add(places[id_])
        waiting += [*one.children, *one.inner()]
    return found


def _functions(aggregate: Tree, chain: _Chain) -> dict[int, str] | None:
    """Return the functions of an aggregate by place, None where it counts equal rows otherwise."""
    places, kept = chain.places, set(chain.use.kept)
    functions: dict[int, set[str]] = {}
    waiting = [*within(aggregate.fields["aggregateExpressions"])]
    for key in within(aggregate.fields["groupingExpressions"]):
        kept |= _places(key, places)
    while waiting:
        one = waiting.pop()
        if one.kind != "AggregateExpression":
            id_ = attribute(one)
            kept |= {places[id_]} if id_ is not None and id_ in places else set()
            waiting += [*one.children, *one.inner()]
            continue
        function = one.children[0]
        id_ = attribute(function.children[0]) if function.children else None
        place = None if id_ is None else places.get(id_)
        plain = place is not None and len(one.children) == 1 and not one.fields["isDistinct"]
        if plain and function.kind in _PARTIAL:
            assert place is not None
            functions.setdefault(place, set()).add(_PARTIAL[function.kind])
        elif one.fields["isDistinct"] or function.kind in ("Min", "Max"):
            kept |= _places(one, places)
        else:
            return None
    if any("sum" in asked and (len(asked) > 1 or at in kept) for at, asked in functions.items()):
        return None
    return {
        at: next(iter(asked))
        for at, asked in functions.items()
        if len(asked) == 1 and at not in kept
    }


def _order(sort: Tree, places: Mapping[int, int]) -> Order | None:
    """Return the order of a sort across partitions by columns of a scan, None for another."""
    if sort.fields["global"] is not True:
        return None
    keys = []
    for one in within(sort.fields["order"]):
        id_ = attribute(one.children[0])
        place = None if id_ is None else places.get(id_)
        ascending = _object(one.fields["direction"]) == "Ascending$"
        nulls_first = _object(one.fields["nullOrdering"]) == "NullsFirst$"
        if place is None:
            return None
        keys.append(Key(place, ascending, nulls_first))
    return tuple(keys)


def _object(field: Any) -> str:
    """Return the name of an object of Scala without its package."""
    return str(field["object"]).rpartition(".")[2]


def _renamed(project: Tree, places: Mapping[int, int]) -> dict[int, int]:
    """Return which ids are which columns above a projection."""
    above: dict[int, int] = {}
    for column in within(project.fields["projectList"]):
        source = column.children[0] if column.kind == "Alias" else column
        id_ = attribute(source)
        if id_ is not None and id_ in places:
            above[expr_id(column)] = places[id_]
    return above


# Rows of a side that find no partner are thrown away, by the kind of join: left side, right side.
_LOSES = {
    "Inner$": (True, True),
    "LeftSemi$": (True, True),
    "LeftOuter$": (False, True),
    "LeftAnti$": (False, True),
    "RightOuter$": (True, False),
}


def _join(node: Tree, chains: list[_Chain | None]) -> None:
    """Note for each side that loses rows without a partner what it is compared with."""
    kind = _object({"object": "", **node.fields["joinType"]})
    loses = _LOSES.get(kind, (False, False))
    conditions = [*within(node.fields.get("condition"))]
    if len(chains) != 2 or not conditions:
        return
    for chain, lost, other in zip(chains, loses, reversed(node.children), strict=True):
        if chain is None or not lost or chain.limited:
            continue
        for part in conjuncts(conditions[0]):
            if part.kind != "EqualTo":
                continue
            ids = [attribute(side) for side in part.children]
            for mine, its in (ids, reversed(ids)):
                if mine is None or its is None:
                    continue
                if (
                    mine in chain.places
                    and its not in chain.places
                    and _comes_from_a_leaf(other, its)
                ):
                    chain.use.joins.append(Partner(chain.places[mine], other, its))


# They hand on the rows' own values of a column, under its id. A union hands on those of several
# columns under the id of the first.
_KEEP_VALUES = _HAND_ON - {"Generate"}


def _comes_from_a_leaf(side: Tree, key: int) -> bool:
    """Return whether all values of a plan's column are values of one leaf's column of that id."""
    if not side.children:
        return any(attribute(column) == key for column in within(side.fields.get("output")))
    if side.kind in ("Project", "Aggregate"):
        field = "projectList" if side.kind == "Project" else "aggregateExpressions"
        if all(attribute(column) != key for column in within(side.fields[field])):
            return False
    elif side.kind not in _KEEP_VALUES:
        return False
    return any(_comes_from_a_leaf(child, key) for child in side.children)


def conjuncts(condition: Tree) -> list[Tree]:
    """Return the parts of a condition that all must hold."""
    parts: list[Tree] = []
    waiting = [condition]
    while waiting:
        part = waiting.pop()
        if part.kind == "And":
            waiting.extend(reversed(part.children))
        else:
            parts.append(part)
    return parts
