"""What changed between two snapshots, row by row, as one DataFrame; the comparing is Spark's.

Planning runs on the driver and reads no rows: tables that are pinned at the same version in both
snapshots are left out. What is left is compared by whole rows and then by `id`, in one shuffle, so
doubled ids (tables written without integrity checks) neither multiply nor hide a change.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce
from typing import TYPE_CHECKING

from pyspark.sql.types import (
    ArrayType,
    DataType,
    DoubleType,
    FloatType,
    MapType,
    StringType,
    StructField,
    StructType,
)

from omnigraph_spark.arrow.frame_batches import TABLE
from omnigraph_spark.errors import UnsupportedError
from omnigraph_spark.manifest.snapshot import Snapshot
from omnigraph_spark.spark import frames, spark_types

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from omnigraph_spark.graph import OmniGraph

CHANGE = "_change_type"
INSERT, DELETE = "insert", "delete"
BEFORE, AFTER = "update_preimage", "update_postimage"
_COMPARE = "Compare the other columns of the two table frames with Spark"
_FLOATS = (FloatType, DoubleType)
_SIDE, _COUNT = "_omnigraph_side", "_omnigraph_count"

Tables = Mapping[str, StructType]


def diff(
    graph: OmniGraph, before: Snapshot, after: Snapshot, table: str | None = None
) -> DataFrame:
    """Return the rows that differ: `_table`, `_change_type`, then a whole-graph frame's columns.

    `_change_type` is `insert`, `delete`, or for a changed row `update_preimage` (as it was) and
    `update_postimage` (as it is). Evaluates nothing.

    Raises:
        TableNotFoundError: neither snapshot has the table `table`.
        SchemaMismatchError: a column's type changed, or names that a whole-graph frame can't have.
        UnsupportedError: a map inside another value can't be compared.
        AnalysisException: with the typed error's text, where a snapshot can't be read.
    """
    known = known_tables(graph, before, after)
    keys = sorted(known)
    if table is not None:
        resolved = (after if _has(after, table) else before).resolve(table)
        keys = [resolved]
        known = {resolved: known[resolved]}
    parts = [
        (key, table_diff(frame_at(graph, before, key), frame_at(graph, after, key), key))
        for key in keys
        if pin(before, key) != pin(after, key)
    ]
    return gathered(graph, known, parts, {CHANGE: StringType()}, alone=table is not None)


def _has(snapshot: Snapshot, name: str) -> bool:
    return name in snapshot.tables or any(k.partition(":")[2] == name for k in snapshot.tables)


def pin(snapshot: Snapshot, key: str) -> tuple[str | None, int] | None:
    """Return which version of which line a snapshot pins for a table, None where it has none."""
    entry = snapshot.tables.get(key)
    return None if entry is None else (entry.table_branch, entry.table_version)


def frame_at(graph: OmniGraph, snapshot: Snapshot, key: str) -> DataFrame | None:
    """Return a table of a snapshot, None where the snapshot doesn't have it."""
    if key not in snapshot.tables:
        return None
    return graph.table(key, branch=snapshot.branch, version=snapshot.graph_version)


def known_tables(graph: OmniGraph, *snapshots: Snapshot) -> dict[str, StructType]:
    """Return the columns of all tables of the snapshots, by key; one load per snapshot.

    Raises:
        SchemaMismatchError: a column has other types in the snapshots.
    """
    known: dict[str, StructType] = {}
    for snapshot in snapshots:
        if snapshot.tables:
            wide = graph.graph(branch=snapshot.branch, version=snapshot.graph_version).schema
            definitions = frames.definitions(wide)
            assert definitions is not None
            for key, table in definitions.tables.items():
                before = known.get(key, table)
                known[key] = spark_types.with_columns_of(before, table, key, _COMPARE)
    return known


def table_diff(before: DataFrame | None, after: DataFrame | None, key: str) -> DataFrame:
    """Return the rows of a table that differ, with `_change_type` in front; evaluates nothing.

    Raises:
        SchemaMismatchError, UnsupportedError: as `diff`.
    """
    from pyspark.sql import Window
    from pyspark.sql import functions as sf

    given = [frame for frame in (before, after) if frame is not None]
    columns = reduce(
        lambda a, b: spark_types.with_columns_of(a, b, key, _COMPARE),
        (frame.schema for frame in given),
    )
    sided = [
        comparable(frame, key).withColumn(_SIDE, sf.lit(side))
        for frame, side in ((before, -1), (after, 1))
        if frame is not None
    ]
    union = reduce(lambda a, b: a.unionByName(b, allowMissingColumns=True), sided)
    # Grouping and the window are both by id first, so this one shuffle serves the two.
    spread = union.repartition(column("id"))
    signed = [field for field in columns.fields if _has_floats(field)]
    counts = spread.groupBy(
        *(column(name) for name in columns.names),
        *(_signs(field).alias(f"{_SIDE}_{at}") for at, field in enumerate(signed)),
    ).agg(
        sf.sum(_SIDE).alias(_COUNT),
        *(sf.first(column(field.name)).alias(f"{_COUNT}_{at}") for at, field in enumerate(signed)),
    )
    by_id = Window.partitionBy(column("id"))
    gone, came = column(_COUNT) < 0, column(_COUNT) > 0
    kind = (
        sf.when(gone & sf.max(came).over(by_id), BEFORE)
        .when(gone, DELETE)
        .when(sf.max(gone).over(by_id), AFTER)
        .otherwise(INSERT)
    )
    changed = counts.where(column(_COUNT) != 0).withColumn(CHANGE, kind)
    repeated = changed.withColumn(_COUNT, sf.explode(sf.expr(f"sequence(1, int(abs({_COUNT})))")))
    held = {field.name: f"{_COUNT}_{at}" for at, field in enumerate(signed)}
    return repeated.select(
        column(CHANGE),
        *(
            _original(field, held.get(field.name, field.name)).alias(field.name)
            for field in columns.fields
        ),
    )


def column(name: str) -> Column:
    """Return a column by its exact name."""
    from pyspark.sql import functions as sf

    return sf.col("`" + name.replace("`", "``") + "`")


def comparable(frame: DataFrame, key: str) -> DataFrame:
    """Return a frame whose values Spark can group by: maps as sorted lists of their entries.

    Raises:
        UnsupportedError: a map inside another value.
    """
    from pyspark.sql import functions as sf

    columns = []
    for field in frame.schema.fields:
        is_map = isinstance(field.dataType, MapType)
        inner = field.dataType.jsonValue()
        if str(inner).count("'type': 'map'") > (1 if is_map else 0):
            raise UnsupportedError(
                f"Column {field.name} of {key} holds maps inside other values, which Spark can't "
                "compare",
                hint=_COMPARE,
            )
        value = column(field.name)
        columns.append(sf.array_sort(sf.map_entries(value)).alias(field.name) if is_map else value)
    return frame.select(*columns)


def _has_floats(field: StructField) -> bool:
    return any(name in field.dataType.simpleString() for name in ("float", "double"))


def _signs(field: StructField) -> Column:
    """Return what distinguishes -0.0 from 0.0 in a column; Spark groups them as one value."""
    from pyspark.sql import functions as sf

    value, kind = column(field.name), field.dataType
    if isinstance(kind, ArrayType) and isinstance(kind.elementType, _FLOATS):
        has_zeros = sf.array_contains(value, sf.lit(0).cast(kind.elementType))
    elif isinstance(kind, _FLOATS):
        has_zeros = value == 0
    else:
        has_zeros = value.isNotNull()
    return sf.when(has_zeros, value.cast("string"))


def _original(field: StructField, name: str) -> Column:
    from pyspark.sql import functions as sf

    value = column(name)
    return sf.map_from_entries(value) if isinstance(field.dataType, MapType) else value


def gathered(
    graph: OmniGraph,
    known: Tables,
    parts: Sequence[tuple[str, DataFrame]],
    leading: Mapping[str, DataType],
    *,
    alone: bool = False,
) -> DataFrame:
    """Return one frame of parts of tables: `_table`, `leading`, then the wide columns.

    `leading` are columns that each part has beside its table's, with their types.
    `alone`: the frame is of one table, asked for by its name.
    """
    from pyspark.sql import functions as sf

    wide = frames.whole_graph_schema(known, alone=alone)
    owned = frames.ownership(wide, known, alone=alone)
    rest = [field for field in wide.fields if field.name != TABLE]
    selected = []
    for key, part in parts:
        shown = [
            column(owned[key][field.name]).alias(field.name)
            if owned[key].get(field.name) in part.columns
            else sf.lit(None).cast(field.dataType).alias(field.name)
            for field in rest
        ]
        front = [sf.lit(key).alias(TABLE), *(column(name) for name in leading)]
        selected.append(part.select(*front, *shown))
    if selected:
        return reduce(lambda a, b: a.unionAll(b), selected)
    front_fields = [StructField(name, kind) for name, kind in leading.items()]
    empty = StructType([StructField(TABLE, StringType()), *front_fields, *rest])
    return graph.spark.createDataFrame([], empty)
