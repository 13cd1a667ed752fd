"""The three-way rules of a merge, row by row, as Spark columns and joins.

Nothing here runs an action; the rows of the three versions of a table meet by `id` in one shuffle.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce
from typing import TYPE_CHECKING

from omnigraph_spark import arrow_types
from omnigraph_spark.branches.diff import column, comparable
from omnigraph_spark.errors import SchemaMismatchError
from omnigraph_spark.frame_batches import TABLE

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import DataType

INSERTS = "DivergentInsert"
UPDATES = "DivergentUpdate"
DELETE_UPDATE = "DeleteVsUpdate"
ORPHAN = "OrphanEdge"
DOUBLED = "UniqueViolation"
OURS, THEIRS, FAIL = "ours", "theirs", "fail"
CONFLICT_SCHEMA = (
    f"{TABLE} STRING, id STRING, conflict STRING, base STRING, ours STRING, theirs STRING"
)
_DECISION, _CONFLICT = "_omnigraph_decision", "_omnigraph_conflict"
_SIDE, _ROW = "_omnigraph_side", "_omnigraph_row"


def decisions(
    bases: Sequence[DataFrame | None],
    source: DataFrame,
    target: DataFrame,
    key: str,
    resolution: str,
) -> DataFrame:
    """Return, per id that a merge has to decide: whose rows it takes, or what is in conflict.

    The columns: `id`, the decision (`theirs`, or null for a conflict), the conflict's kind, and for
    a conflict the rows of base, ours (the target) and theirs (the source) as JSON. Ids whose rows
    of the target stay are left out. Rows count as equal where all their values are; doubled ids are
    compared as a whole. Where several bases don't agree on an id, it is in conflict.

    Raises:
        SchemaMismatchError: a column had another type in a base.
        UnsupportedError: a map inside another value can't be compared.
    """
    from pyspark.sql import functions as sf

    old = [f"b{number}" for number in range(len(bases))]
    sided = [
        _sided(frame, target, side, key)
        for frame, side in (*zip(bases, old, strict=True), (source, "s"), (target, "t"))
        if frame is not None
    ]
    union = reduce(lambda left, right: left.unionAll(right), sided)
    by_id = union.groupBy("id").agg(
        *(
            sf.sort_array(sf.collect_list(sf.when(sf.col(_SIDE) == side, sf.col(_ROW)))).alias(side)
            for side in (*old, "s", "t")
        )
    )
    b, s, t = sf.col("b0"), sf.col("s"), sf.col("t")
    agreed = reduce(lambda all_of, side: all_of & sf.col(side).eqNullSafe(b), old[1:], sf.lit(True))
    changed = by_id.where(~s.eqNullSafe(t) & ~(agreed & s.eqNullSafe(b)))
    kind = (
        sf.when(agreed & t.eqNullSafe(b), sf.when(sf.size(s) > 1, DOUBLED))
        .when((sf.size(s) == 0) | (sf.size(t) == 0), DELETE_UPDATE)
        .when(sf.size(b) == 0, INSERTS)
        .otherwise(UPDATES)
    )
    judged = changed.withColumn(_CONFLICT, kind)
    if resolution == OURS:
        judged = judged.where(sf.col(_CONFLICT).isNull())
    elif resolution == THEIRS:
        doubled = sf.when(sf.size(s) > 1, DOUBLED)
        judged = judged.withColumn(_CONFLICT, doubled)
    shown = sf.col(_CONFLICT).isNotNull()
    return judged.select(
        "id",
        sf.when(~shown, THEIRS).alias(_DECISION),
        sf.col(_CONFLICT),
        *(
            sf.when(shown, sf.to_json(sf.col(side))).alias(name)
            for side, name in (("b0", "base"), ("t", "ours"), ("s", "theirs"))
        ),
    )


_IMAGES = ("base", "ours", "theirs")


def _sided(frame: DataFrame, target: DataFrame, side: str, key: str) -> DataFrame:
    """Return the rows of one version with the target's columns; a base may lack a later one."""
    from pyspark.sql import functions as sf

    there = {field.name: field.dataType for field in frame.schema.fields}
    for field in target.schema.fields:
        if field.name in there and not arrow_types.same_type(there[field.name], field.dataType):
            raise _other_type(field.name, key, field.dataType, there[field.name])
    plain = comparable(frame, key)
    values = comparable(target.limit(0), key).schema.fields
    columns = [
        column(one.name) if one.name in there else sf.lit(None).cast(one.dataType).alias(one.name)
        for one in values
        if one.name != "id"
    ]
    row = sf.struct(*columns) if columns else sf.struct(sf.lit(1).alias("_"))
    return plain.select("id", sf.lit(side).alias(_SIDE), row.alias(_ROW))


def has_taken(decided: DataFrame) -> bool:
    """Tell whether a merge takes any row from the source; runs a job."""
    from pyspark.sql import functions as sf

    return not decided.where(sf.col(_DECISION) == THEIRS).isEmpty()


def check_columns(source: DataFrame, target: DataFrame, key: str) -> None:
    """Refuse to merge tables whose columns differ: values would be lost.

    Raises:
        SchemaMismatchError: names a column that differs.
    """
    ours = {field.name: field.dataType for field in target.schema.fields}
    theirs = {field.name: field.dataType for field in source.schema.fields}
    for name in sorted({*ours, *theirs}):
        left, right = ours.get(name), theirs.get(name)
        if left is None or right is None or not arrow_types.same_type(left, right):
            raise _other_type(name, key, left, right)


def _other_type(
    name: str, key: str, ours: DataType | None, theirs: DataType | None
) -> SchemaMismatchError:
    return SchemaMismatchError(
        f"Column {name} of {key} isn't the same in the versions that are merged",
        expected=ours.simpleString() if ours else "no such column",
        found=theirs.simpleString() if theirs else "no such column",
        hint="Make the columns of the two branches alike first",
        table_key=key,
        column=name,
    )


def merged(source: DataFrame, target: DataFrame, decided: DataFrame) -> DataFrame:
    """Return the target's rows, those of decided ids replaced by the source's."""
    from pyspark.sql import functions as sf

    taken = decided.where(sf.col(_DECISION) == THEIRS).select("id")
    kept = target.join(taken, "id", "left_anti")
    brought = source.join(taken, "id", "left_semi")
    columns = [column(name) for name in target.columns]
    return kept.select(*columns).unionAll(brought.select(*columns))


def conflicts_of(decided: DataFrame, key: str) -> DataFrame:
    """Return the undecided rows of a table in the columns of `CONFLICT_SCHEMA`."""
    from pyspark.sql import functions as sf

    return decided.where(sf.col(_CONFLICT).isNotNull()).select(
        sf.lit(key).alias(TABLE), "id", sf.col(_CONFLICT).alias("conflict"), *_IMAGES
    )


def doubled_of(brought: DataFrame, key: str) -> DataFrame:
    """Return the ids that a table has more than once, as conflicts."""
    from pyspark.sql import functions as sf

    counts = brought.groupBy("id").count().where("count > 1")
    return counts.select(
        sf.lit(key).alias(TABLE), "id", sf.lit(DOUBLED).alias("conflict"), *_none()
    )


def whole_table(spark_rows: DataFrame, key: str) -> DataFrame:
    """Return the one conflict of a table that one side dropped and the other changed.

    `spark_rows` is any frame of one row.
    """
    from pyspark.sql import functions as sf

    nothing = sf.lit(None).cast("string")
    return spark_rows.select(
        sf.lit(key).alias(TABLE),
        nothing.alias("id"),
        sf.lit(DELETE_UPDATE).alias("conflict"),
        *_none(),
    )


def _none() -> list[Column]:
    from pyspark.sql import functions as sf

    return [sf.lit(None).cast("string").alias(name) for name in _IMAGES]


def orphans(
    edges: DataFrame, ends: Mapping[str, DataFrame | None], old: DataFrame | None, key: str
) -> DataFrame:
    """Return the edges that end nowhere after the merge and didn't before, as conflicts.

    `ends` are the node tables of `src` and `dst` after the merge, None where there is none; `old`
    are the edges of the target that ended nowhere already, from `loose_ends`.
    """
    from pyspark.sql import functions as sf

    loose = loose_ends(edges, ends)
    if old is not None:
        loose = loose.join(old, ["id", "end"], "left_anti")
    return (
        loose.select("id")
        .distinct()
        .select(sf.lit(key).alias(TABLE), "id", sf.lit(ORPHAN).alias("conflict"), *_none())
    )


def loose_ends(edges: DataFrame, ends: Mapping[str, DataFrame | None]) -> DataFrame:
    """Return (`id`, `end`) of each edge end, `end` being a node id, that no node has."""
    from pyspark.sql import functions as sf

    parts = []
    for side, nodes in ends.items():
        these = edges.select("id", sf.col(side).alias("end"))
        if nodes is not None:
            these = these.join(nodes.select(sf.col("id").alias("end")), "end", "left_anti")
        parts.append(these.select("id", "end"))
    return reduce(lambda left, right: left.unionAll(right), parts)
