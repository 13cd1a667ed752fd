"""Look at a graph's own integrity with Spark: doubled ids, dangling edges, broken rules.

The driver pins a snapshot and builds one frame of everything that breaks a rule; nothing is read
before the frame is used, and the rows are compared by Spark alone.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from decimal import Decimal
from functools import reduce
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Window
from pyspark.sql import functions as sf
from pyspark.sql.types import (
    ArrayType,
    DataType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegralType,
    StringType,
)

from omnigraph_spark import schema as engine_schema
from omnigraph_spark.errors import CorruptManifestError
from omnigraph_spark.integrity import rules
from omnigraph_spark.integrity.rules import (
    CARD,
    CHECK,
    ENDPOINTS,
    ENUM,
    ID_IS_KEY,
    NOT_NULL,
    RANGE,
    UNIQUE,
    UNIQUE_ID,
    ValueRule,
)
from omnigraph_spark.integrity.values import MOST_SAMPLES
from omnigraph_spark.manifest import known_types
from omnigraph_spark.manifest.snapshot import Snapshot
from omnigraph_spark.schema.model import EngineSchema, NodeType
from omnigraph_spark.storage import layout
from omnigraph_spark.storage.store import Storage

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from omnigraph_spark.graph import OmniGraph

_LOOKED = (
    "table_key STRING, rule STRING, column STRING, low BIGINT, high BIGINT, node STRING, "
    "sample STRING"
)
"""Values of rows: at least `low` and at most `high` rows may have one. The end of an edge breaks
its rule (`high` is 0) unless the table `node` has it."""
_PLACE = ("table_key", "rule", "column")
_PARTS = 64
_ANY = (1 << 63) - 1


def integrity(graph: OmniGraph, storage: Storage, branch: str) -> DataFrame:
    """Return what breaks the rules of a branch's newest version, counted: none where it is sound.

    Raises:
        BranchNotFoundError, GraphNotFoundError: as the names say.
        CorruptManifestError: the schema files tell nothing of a table's rules.
        UnsupportedError: a `@check` whose regular expression can't be read here.
        StorageError: the store failed.
    """
    snapshot = known_types.load_with_types(storage, branch)
    files = engine_schema.read(storage) or EngineSchema()
    schema, _ = known_types.filled(storage, files, snapshot)
    rules.of_write(rules.STRICT, None, schema, snapshot.tables)  # refuses what can't be read
    tables = [_Table(graph, snapshot, schema, key) for key in snapshot.tables]
    none = graph.spark.createDataFrame([], _LOOKED)
    rows = reduce(
        lambda frame, other: frame.unionAll(other), [table.looked() for table in tables], none
    )
    endpoints = sorted(
        {node for table in tables for node in table.endpoints if node in snapshot.tables}
    )
    ids = [
        _table(graph, snapshot, node, ["id"]).select(sf.lit(node).alias("node"), "id")
        for node in endpoints
    ]
    if ids:
        existing = reduce(lambda frame, other: frame.unionAll(other), ids)
        same = (rows["node"] == existing["node"]) & (rows["sample"] == existing["id"])
        rows = rows.join(existing, same, "left_anti")
    return _counted(rows)


def _table(
    graph: OmniGraph, snapshot: Snapshot, key: str, columns: list[str] | None = None
) -> DataFrame:
    version = snapshot.graph_version
    return graph.table(key, columns=columns, branch=snapshot.branch, version=version)


def _counted(rows: DataFrame) -> DataFrame:
    """Return how many rows break each rule, and the first few values; no task holds all of them."""
    counts = rows.groupBy(*_PLACE, "low", "high", "sample").agg(sf.count("*").alias("n"))
    values = counts.where((sf.col("n") < sf.col("low")) | (sf.col("n") > sf.col("high")))
    part = Window.partitionBy(*_PLACE, "part")
    ranked = (
        values.withColumn("part", sf.pmod(sf.hash("sample"), sf.lit(_PARTS)))
        .withColumn("total", sf.sum("n").over(part))
        .withColumn("rank", sf.row_number().over(part.orderBy("sample")))
        .where(sf.col("rank") <= MOST_SAMPLES)
    )
    parts = ranked.groupBy(*_PLACE, "part").agg(
        sf.first("total").alias("total"), sf.collect_list("sample").alias("few")
    )
    few = sf.slice(sf.sort_array(sf.flatten(sf.collect_list("few"))), 1, MOST_SAMPLES)
    counted = parts.groupBy(*_PLACE).agg(sf.sum("total").alias("count"), few.alias("samples"))
    return counted.orderBy(*_PLACE)


class _Table:
    """The checks of one table, in one scan; `endpoints` are the node tables of its edges."""

    def __init__(
        self, graph: OmniGraph, snapshot: Snapshot, schema: EngineSchema, key: str
    ) -> None:
        self._key = key
        self._type = schema.of_table(key)
        if self._type is None and layout.is_edge(key):
            raise CorruptManifestError(
                f"Nothing declares where the edges of {key} end",
                expected=f"a declaration in {layout.SCHEMA_PG}",
                hint="Declare the edge type in the file; `check()` says what is wrong with it",
                table_key=key,
            )
        self._rules = rules.of_table(schema, key)
        self._rows = _table(graph, snapshot, key)
        self._there = set(self._rows.columns)
        self.endpoints = self._rules.endpoints or ()

    def looked(self) -> DataFrame:
        """Return what has to be looked at of each row, as `_LOOKED`."""
        columns = [*self._alike(), *self._by_value(), *self._loose()]
        each = sf.explode(sf.array_compact(sf.array(*columns))).alias("one")
        return self._rows.select(each).select(sf.lit(self._key).alias("table_key"), "one.*")

    def _alike(self) -> Iterator[Column]:
        """Yield what only so many rows may have alike."""
        for rule, columns in [(UNIQUE_ID, ("id",)), *((UNIQUE, c) for c in self._rules.unique)]:
            if not set(columns) <= self._there:
                continue
            filled = reduce(lambda a, b: a & b, [_named(c).isNotNull() for c in columns])
            texts = [_named(c).cast("string") for c in columns]
            text = texts[0] if len(texts) == 1 else sf.to_json(sf.array(*texts))
            yield sf.when(filled, _one(rule, ", ".join(columns), text, 0, 1))
        low, high = self._rules.card
        if layout.is_edge(self._key) and (low > 1 or high is not None):
            # Who has an edge has at least one: a lower bound of 1 needs no look.
            yield _one(CARD, "src", sf.col("src"), low, _ANY if high is None else high)

    def _by_value(self) -> Iterator[Column]:
        """Yield what breaks a rule by itself."""
        for rule in self._rules.values:
            if rule.column in self._there:
                kind = self._rows.schema[rule.column].dataType
                bad = _BY_KIND[rule.kind](rule, _named(rule.column), kind)
                shown = _named(rule.column)
                shown = sf.to_json(shown) if isinstance(kind, ArrayType) else shown
                if bad is not None:
                    yield sf.when(bad, _one(rule.kind, rule.column, shown))
        for prop in self._type.properties if self._type is not None else ():
            if prop.name in self._there and not prop.type.nullable:
                yield sf.when(_named(prop.name).isNull(), _one(NOT_NULL, prop.name, sf.col("id")))
        if isinstance(self._type, NodeType) and self._type.key in self._there:
            yield sf.when(
                sf.col("id") != _named(self._type.key), _one(ID_IS_KEY, "id", sf.col("id"))
            )

    def _loose(self) -> Iterator[Column]:
        """Yield the endpoints of edges, which a node must have."""
        for column, node in zip(("src", "dst"), self.endpoints, strict=False):
            yield _one(ENDPOINTS, column, sf.col(column), node=node)


def _named(column: str) -> Column:
    return sf.col(f"`{column}`")


def _one(
    rule: str, column: str, sample: Column, low: int = 0, high: int = 0, node: str | None = None
) -> Column:
    """Return a value as `_LOOKED`, but for its table."""
    return sf.struct(
        sf.lit(rule).alias("rule"),
        sf.lit(column).alias("column"),
        sf.lit(low).cast("bigint").alias("low"),
        sf.lit(high).cast("bigint").alias("high"),
        sf.lit(node).cast("string").alias("node"),
        sample.cast("string").alias("sample"),
    )


def _bad_enum(rule: ValueRule, column: Column, kind: DataType) -> Column | None:
    if isinstance(kind, StringType):
        return ~column.isin(*rule.values)
    if isinstance(kind, ArrayType) and isinstance(kind.elementType, StringType):
        return sf.exists(column, lambda item: ~item.isin(*rule.values))
    return None


def _bad_range(rule: ValueRule, column: Column, kind: DataType) -> Column | None:
    """Return what is outside a range; NaN is within none."""
    if isinstance(kind, (FloatType, DoubleType)):
        low = -math.inf if rule.low is None else float(rule.low)
        high = math.inf if rule.high is None else float(rule.high)
        wide = column.cast("double")
        return sf.isnan(wide) | (wide < sf.lit(low)) | (wide > sf.lit(high))
    if not isinstance(kind, (IntegralType, DecimalType)):
        return None
    bad = sf.lit(False)
    whole = column.cast("decimal(20,0)")
    if rule.low is not None:
        bad = bad | (whole < sf.lit(Decimal(math.ceil(rule.low))))
    if rule.high is not None:
        bad = bad | (whole > sf.lit(Decimal(math.floor(rule.high))))
    return bad


def _bad_check(rule: ValueRule, column: Column, kind: DataType) -> Column | None:
    """Return what doesn't match, by the same regular expressions as a write uses."""
    if not isinstance(kind, StringType):
        return None
    pattern = rule.re2()

    def differs(value: str | None) -> bool:
        matches = pc.match_substring_regex(pa.scalar(value, pa.utf8()), pattern).as_py()
        return matches is False

    return sf.udf(differs, "boolean", useArrow=False)(column)


_BY_KIND = {ENUM: _bad_enum, RANGE: _bad_range, CHECK: _bad_check}
