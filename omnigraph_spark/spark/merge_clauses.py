"""The clauses of `OmniGraph.merge_into`: which rows of a frame update, add or delete which rows.

Runs on the driver and evaluates nothing: the frames that come out are computed by the staging of
the write, each by one Spark job over a join of the frame with the table.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import and_
from typing import TYPE_CHECKING, Any

from omnigraph_spark.errors import OptionError
from omnigraph_spark.spark import field_metadata, frame_plan

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    Expression = str | Column
    Action = str | Mapping[str, Expression]
    Clauses = Action | Sequence[tuple[Expression | None, Action]] | None

UPDATE, INSERT, DELETE, IGNORE = "update", "insert", "delete", "ignore"
MATCHED = (UPDATE, DELETE, IGNORE)
NOT_MATCHED = (INSERT, IGNORE)


@dataclass(frozen=True)
class Clause:
    """One clause: for which rows (None: all that no earlier clause took), and what is done.

    `values` are given for single columns; None: all columns of the frame.
    """

    matched: bool
    condition: Expression | None
    action: str
    values: Mapping[str, Expression] | None = None


def clauses(name: str, given: Clauses, matched: bool) -> list[Clause]:
    """Return the clauses that an argument means.

    Raises:
        OptionError: none of the forms that are documented, or a value for `id`.
    """
    pairs: Any
    if given is None:
        return []
    if isinstance(given, str | Mapping):
        pairs = [(None, given)]
    elif isinstance(given, Sequence) and all(
        isinstance(pair, Sequence) and not isinstance(pair, str) and len(pair) == 2
        for pair in given
    ):
        pairs = given
    else:
        raise _malformed(name, given, matched)
    parsed = []
    for condition, action in pairs:
        if isinstance(action, Mapping):
            if not action or "id" in action:
                raise _malformed(name, action, matched)
            parsed.append(Clause(matched, condition, UPDATE if matched else INSERT, action))
        elif action in (MATCHED if matched else NOT_MATCHED):
            parsed.append(Clause(matched, condition, action))
        else:
            raise _malformed(name, action, matched)
    return parsed


def _malformed(name: str, given: object, matched: bool) -> OptionError:
    words = " or ".join(repr(action) for action in (MATCHED if matched else NOT_MATCHED))
    return OptionError(
        f"{name} is malformed",
        expected=f"{words}, a mapping of columns other than id to expressions, or a list of "
        "(condition, one of these)",
        found=repr(given)[:200],
        hint='Such as [("source.at > target.at", "update")]; a condition of None takes all rows',
    )


def split(
    target: DataFrame, source: DataFrame, found: Sequence[Clause], keys: Sequence[str] = ()
) -> tuple[DataFrame | None, DataFrame | None]:
    """Return the frame of the rows that are upserted, and that of the ids that are deleted.

    None where no clause does that. Both expect of the table what `target` was read from. Rows
    without `id` are matched by `keys`, those of the table's edges, where there are any.

    Raises:
        IntegrityError: `source` has no column by which rows are matched.
    """
    from pyspark.sql import functions as sf

    by_keys = "id" not in source.columns and bool(keys) and set(keys) <= set(source.columns)
    if by_keys:
        same = [
            sf.col(f"source.{_quoted(k)}").eqNullSafe(sf.col(f"target.{_quoted(k)}")) for k in keys
        ]
    else:
        source = _with_id(target, source)
        same = [sf.col("source.id") == sf.col("target.id")]
    joined = source.alias("source").join(target.alias("target"), reduce(and_, same), "left")
    matched = sf.col("target.id").isNotNull()
    number = None
    for at, clause in enumerate(found):
        taken = matched if clause.matched else ~matched
        if clause.condition is not None:
            taken = taken & _expression(clause.condition)
        number = sf.when(taken, at) if number is None else number.when(taken, at)
    if number is None:
        return None, None
    mark = target.schema["id"].metadata.get(field_metadata.READ)
    # A new edge without id gets the one that its keys make.
    identity = sf.col("target.id" if by_keys else "source.id").alias(
        "id", metadata={} if mark is None else {field_metadata.READ: mark}
    )
    upserts = [at for at, clause in enumerate(found) if clause.action in (UPDATE, INSERT)]
    gone = [at for at, clause in enumerate(found) if clause.action == DELETE]
    columns = [
        _value(name, found, number, target, source).alias(name) for name in _assigned(found, source)
    ]
    return (
        joined.where(number.isin(upserts)).select(identity, *columns) if upserts else None,
        joined.where(number.isin(gone)).select(identity) if gone else None,
    )


def updated(
    rows: DataFrame, values: Mapping[str, Expression], where: Expression | None
) -> DataFrame:
    """Return the ids of the rows that a condition is true for, with new values of some columns.

    Raises:
        OptionError: no column, `id`, or one that the table doesn't have.
    """
    strange = [name for name in values if name == "id" or name not in rows.columns]
    if strange or not values:
        raise OptionError(
            f"update can't set {', '.join(map(repr, strange)) or 'no column'}",
            expected=", ".join(name for name in rows.columns if name != "id")[:300],
            hint="An id stays as it is; add properties with add_property",
        )
    if where is not None:
        rows = rows.where(where)
    new = [_expression(value).alias(name) for name, value in values.items()]
    return rows.select("id", *new)


def _with_id(target: DataFrame, source: DataFrame) -> DataFrame:
    if "id" in source.columns:
        return source
    carried = ((field.name, field_metadata.carried_type(field)) for field in target.schema.fields)
    key = next((name for name, one in carried if one is not None and one.key), None)
    if key is None or key not in source.columns:
        (mark,) = field_metadata.read_marks(target.schema)
        raise frame_plan.lacks_id(str(mark.table_key), key, source.columns)
    return source.withColumn("id", source[key])


def _assigned(cases: Sequence[Clause], source: DataFrame) -> list[str]:
    names: dict[str, None] = {}
    for clause in cases:
        if clause.action in (UPDATE, INSERT):
            names |= dict.fromkeys(source.columns if clause.values is None else clause.values)
    return [name for name in names if name != "id"]


def _value(
    name: str, cases: Sequence[Clause], number: Column, target: DataFrame, source: DataFrame
) -> Column:
    """Return what a column becomes: by its row's clause, else what the table has, else null."""
    from pyspark.sql import functions as sf

    quoted = _quoted(name)
    stored = sf.col(f"target.{quoted}") if name in target.columns else sf.lit(None)
    value = None
    for at, clause in enumerate(cases):
        if clause.action not in (UPDATE, INSERT):
            continue
        if clause.values is None:
            given = sf.col(f"source.{quoted}") if name in source.columns else stored
        else:
            given = _expression(clause.values[name]) if name in clause.values else stored
        is_it = number == at
        value = sf.when(is_it, given) if value is None else value.when(is_it, given)
    assert value is not None
    return value


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def _expression(given: Expression) -> Column:
    from pyspark.sql import functions as sf

    return sf.expr(given) if isinstance(given, str) else given
