"""`narrow`: an equal frame whose scans read what the query needs; on the driver, without a job."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, Any

from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql import functions as sf
from pyspark.sql.types import StructType

from omnigraph_spark import options
from omnigraph_spark._redaction import redact
from omnigraph_spark.arrow.frame_batches import TABLE
from omnigraph_spark.errors import OmnigraphError, OptionError
from omnigraph_spark.narrowing import needs, predicates, trees
from omnigraph_spark.read import plan
from omnigraph_spark.read.filters import Predicate
from omnigraph_spark.read.partial_aggregate import PartialAggregate
from omnigraph_spark.spark import catalog, loading
from omnigraph_spark.spark.frame_schema import METADATA_COLUMNS
from omnigraph_spark.spark.reader import Pushed

if TYPE_CHECKING:
    from omnigraph_spark.narrowing.catalyst import Query, Scan
    from omnigraph_spark.narrowing.needs import Use
    from omnigraph_spark.spark.datasource import OmnigraphDataSource
    from omnigraph_spark.spark.loading import Load

MOST_IDS = 5_000
"""Values of a join's small side that are looked up in the scan of the other side."""
MOST_SORTED = 1_000
"""The first rows of an order that a scan finds by itself; Lance holds them, and looks them up."""
MOST_CASES = 64
"""Tables whose rows are counted, by `_table`, without reading any."""

_INTEGERS = ("byte", "short", "integer", "long")
_SUMS = ("double", *_INTEGERS)
_KEYS = ("boolean", "date", "string", "timestamp", "timestamp_ntz", *_INTEGERS)
_SHORT_NAMES = ("tinyint", "smallint", "int", "bigint")

_log = logging.getLogger(__name__)

# What this Spark does otherwise than is known, or a graph that can't be read: the frame stays.
_OTHERWISE = (
    Py4JError,
    PySparkException,
    OmnigraphError,
    AttributeError,
    TypeError,
    ValueError,
    LookupError,
    ImportError,
)


@dataclass(frozen=True)
class ScanReport:
    """What a narrowed scan reads.

    Attributes:
        table: Table key, or `graph` for a whole-graph frame.
        columns: Columns that are read; empty where rows are only counted.
        filters: Predicates in Lance's SQL by table key; tables without one are read whole.
        limit: As many rows are enough, None for all.
        order: The columns that those rows are the first by, in each scan; empty for any rows.
        rows: Rows at most, from the tables' metadata.
        partial: What is aggregated of them where they are read, such as `sum(price)`; the rows are
            grouped by the other columns. None where Spark gets the rows themselves.
    """

    table: str
    columns: tuple[str, ...]
    filters: Mapping[str, str]
    limit: int | None
    rows: int
    order: tuple[str, ...] = ()
    partial: str | None = None

    def __str__(self) -> str:
        where = "; ".join(dict.fromkeys(_short(predicate) for predicate in self.filters.values()))
        parts = [
            f"{self.table} [{', '.join(self.columns)}]",
            f"where {where}" if where else "",
            f"order by {', '.join(self.order)}" if self.order else "",
            "" if self.limit is None else f"limit {self.limit}",
            f"of {self.rows} rows",
            "" if self.partial is None else f"partly aggregated: {self.partial or 'distinct rows'}",
        ]
        return " ".join(part for part in parts if part)


def narrow(frame: DataFrame) -> DataFrame:
    """Return an equal frame whose scans of graphs read what the query needs, and no more.

    Runs on the driver, plans the scans now, reads no rows but for the few of a join's small side,
    and starts no job. The frame comes back as it was where that isn't possible: Spark Connect,
    streaming, cached data, nondeterministic expressions, a version of Spark that isn't known; the
    reason is logged at DEBUG. The scans are pinned: those of catalog tables, too, to the versions
    that are the newest now, one for each graph and branch.

    A later filter or sort finds the frame's own columns and no others: Spark raises an
    AnalysisException where it would take one that an earlier `select` left out.

    Raises:
        OptionError: `frame` is something else.
    """
    if not isinstance(frame, DataFrame):
        raise OptionError(
            "Only a frame can be narrowed", expected="a DataFrame", found=type(frame).__name__
        )
    return narrowed(frame)[0]


def narrowed(frame: DataFrame) -> tuple[DataFrame, list[ScanReport]]:
    """Return an equal frame as `narrow`, and what its scans read (none where it stayed)."""
    started = time.perf_counter()
    reports: list[ScanReport] = []
    try:
        made, reports = _narrowed(frame)
    except _OTHERWISE as error:
        _log.debug("A frame stays as it is: %s: %s", type(error).__name__, redact(str(error)))
        return frame, []
    if reports:
        took = time.perf_counter() - started
        _log.debug("Narrowed in %.3f s: %s", took, "; ".join(str(report) for report in reports))
    return made, reports


def _narrowed(frame: DataFrame) -> tuple[DataFrame, list[ScanReport]]:
    from pyspark.sql.classic.dataframe import DataFrame as ClassicDataFrame

    from omnigraph_spark.narrowing.catalyst import Query, eager_answers

    if not isinstance(frame, ClassicDataFrame):
        return _stays(frame, "it is not a classic frame")
    with eager_answers(frame.sparkSession):
        return _of_query(frame, Query(frame))


def _of_query(frame: DataFrame, query: Query) -> tuple[DataFrame, list[ScanReport]]:
    if query.is_streaming():
        return _stays(frame, "it is a stream")
    if not query.scans or query.is_bare:
        return frame, []
    if query.is_cached():
        return _stays(frame, "Spark has cached a part of it")
    # Spark's optimizer has nothing to add to most look-ups, and takes half of what narrowing takes.
    tree = trees.parse(query.analyzed()) if query.is_stack else None
    if tree is not None and needs.is_optimal(tree):
        work = _Narrowing(query, needs.uses(tree, alone=0))
    else:
        unsteady = query.unsteady()
        if unsteady:
            return _stays(frame, f"it isn't deterministic: {', '.join(sorted(unsteady))}")
        text, local = query.optimized()
        if '.Sample"' in text:
            return _stays(frame, "it is a sample")
        work = _Narrowing(query, needs.uses(trees.parse(text)), local)
    plans, reports = work.all()
    if not plans:
        return frame, []
    made = query.made(plans, work.is_look_up())
    if not query.has_schema_of(made):
        return _stays(frame, "its schema would be another")
    return made, reports


def _stays(frame: DataFrame, why: str) -> tuple[DataFrame, list[ScanReport]]:
    _log.debug("A frame stays as it is: %s", why)
    return frame, []


@dataclass
class _Known:
    """A scan that can be narrowed: its data source, what it is pinned to, and its columns."""

    scan: Scan
    source: OmnigraphDataSource
    load: Load
    reader: predicates.Reader


class _Narrowing:
    """The work on one query."""

    def __init__(
        self,
        query: Query,
        uses: Mapping[int, list[Use]],
        local: Callable[[int], list[Any] | None] | None = None,
    ) -> None:
        """Take what the query needs of its scans.

        `local` gives the values of a column of a local relation; it is None where `uses` are those
        of the plan as it stands, not of the optimized one: a scan alone, under filters.
        """
        self._query = query
        self._uses = uses
        self._local = local
        self._zone = cache(query.zone)
        self._snapshots: dict[tuple[object, ...], Load] = {}
        self._known: dict[int, _Known | None] = {}

    def all(self) -> tuple[dict[int, Any], list[ScanReport]]:
        """Return the plans in place of scans, by number, and what they read."""
        plans: dict[int, Any] = {}
        reports: list[ScanReport] = []
        for number, uses in self._uses.items():
            try:
                done = self._one(number, uses)
            except _OTHERWISE as error:
                _log.debug(
                    "A scan stays as it is: %s: %s", type(error).__name__, redact(str(error))
                )
                continue
            if done is not None:
                plans[number], report = done
                reports.append(report)
        return plans, reports

    @property
    def _is_alone(self) -> bool:
        """Return whether the query is a scan under filters that are looked at as they stand."""
        return self._local is None

    def is_look_up(self) -> bool:
        """Return whether the only scan answers all conditions, so that Spark needn't look again."""
        if not self._is_alone:
            return False
        ((number, (use,)),) = self._uses.items()
        known = self._know(number)
        return known is not None and known.reader.is_look_up(use.conditions)

    def _one(self, number: int, uses: list[Use]) -> tuple[Any, ScanReport] | None:
        known = self._know(number)
        if known is None:
            return None
        scan, load = known.scan, known.load
        names = scan.schema.names
        columns = set[int]().union(*(use.columns for use in uses))
        pushed = self._pushed(known, uses)
        free = all(predicate is True for predicate in pushed.predicates.values())
        plain = free and pushed.limit is None and load.options.filter is None
        if plain and {names[position] for position in columns} <= {TABLE}:
            counted = self._counted(known, bool(columns))
            if counted is not None:
                return counted
        positions = [position for position in range(len(names)) if position in columns] or [
            _cheapest(scan.schema)
        ]
        schema = StructType([scan.schema.fields[position] for position in positions])
        functions = uses[0].functions if len(uses) == 1 else None
        if functions is not None and pushed.limit is None:
            by_name = {names[position]: function for position, function in functions.items()}
            pushed = replace(pushed, partial=_partial(schema, by_name))
        if plain and len(columns) == len(names) and pushed.partial is None:
            return None
        return self._scanned(known, schema, pushed)

    def _know(self, number: int) -> _Known | None:
        if number not in self._known:
            self._known[number] = self._look(self._query.scans[number])
        return self._known[number]

    def _look(self, scan: Scan) -> _Known | None:
        """Return what is known of a scan; None where it is none of rows, or narrowed already."""
        source = scan.source()
        load = source.pinned()
        if load is None:
            if (scan.option("pushDownFilters") or "").lower() == "true":
                return None
            load = self._newest(scan.schema)
        requested = load.options
        if load.span is not None or requested.metadata is not None or requested.push_down_filters:
            return None
        if load.pushed is not None:
            return None
        columns = load.rows_reader(scan.schema).columns
        reader = predicates.Reader(
            tables=columns.fields,
            table_column=TABLE if columns.whole_graph else None,
            names=[None if name in METADATA_COLUMNS else name for name in scan.schema.names],
            zone=self._zone,
        )
        return _Known(scan, source, load, reader)

    def _newest(self, schema: StructType) -> Load:
        """Return what a catalog table means now, the same snapshot for all of a graph's branch."""
        raw = options.for_scope(catalog.read_options(schema), options.READ)
        load = loading.resolve(raw)
        requested = load.options
        key = (
            load.storage.root,
            requested.branch,
            requested.version_as_of,
            requested.timestamp_as_of,
        )
        if load.span is None:
            first = self._snapshots.setdefault(key, load)
            load = replace(load, snapshot=first.snapshot)
        if requested.table is not None:
            load.snapshot.resolve(requested.table)
        return load

    def _pushed(self, known: _Known, uses: list[Use]) -> Pushed:
        """Return what all uses of a scan let it leave out."""
        combined: dict[str, Predicate] | None = None
        limits: list[int | None] = []
        for use in uses:
            pushed = known.reader.pushed(use.conditions)
            limits.append(use.limit if pushed.exact else None)
            by_table: Mapping[str, Predicate] = pushed.predicates
            if use.limit is None:
                by_table = self._joined(known, use, by_table)
            combined = dict(by_table) if combined is None else predicates.either(combined, by_table)
        most = [limit for limit in limits if limit is not None]
        enough = max(most) if len(most) == len(limits) == 1 else None
        order = uses[0].order
        if enough is None or order is None:
            return Pushed(combined or {}, enough)
        by = known.reader.sorts(order) if enough <= MOST_SORTED else None
        return Pushed(combined or {}, None if by is None else enough, by)

    def _joined(
        self, known: _Known, use: Use, by_table: Mapping[str, Predicate]
    ) -> Mapping[str, Predicate]:
        """Return predicates and the values of joins' small sides, where an index finds those."""
        for partner in use.joins:
            values = self._values(partner)
            if values is None:
                continue
            matching = known.reader.is_in(partner.place, [*dict.fromkeys(values)])
            if matching is not None and self._is_indexed(known, matching):
                by_table = predicates.both(by_table, matching)
        return by_table

    def _values(self, partner: needs.Partner) -> list[Any] | None:
        """Return the values of a join's other side, None where it isn't known to be small."""
        values = None if self._local is None else self._local(partner.key)
        if values is None:
            values = self._looked_up(partner.key)
        if values is None or len(values) > MOST_IDS:
            return None
        return [value for value in values if value is not None]

    def _looked_up(self, key: int) -> list[Any] | None:
        """Return the values of a column of another scan whose filter an index answers."""
        for number, uses in self._uses.items():
            for use in uses:
                if key not in use.output:
                    continue
                known = self._know(number)
                if known is None or known.reader.table_column is not None:
                    return None
                return _few(known, use, use.output[key])
        return None

    def _is_indexed(self, known: _Known, by_table: Mapping[str, Predicate]) -> bool:
        texts = {
            key: predicate for key, predicate in by_table.items() if isinstance(predicate, str)
        }
        entries = [known.load.snapshot.entry(key) for key in texts]
        datasets = plan.open_tables(known.load.storage, entries)
        return all(plan.index_answers(datasets[key], text) for key, text in texts.items())

    def _counted(self, known: _Known, by_table: bool) -> tuple[Any, ScanReport] | None:
        """Return as many rows as the tables have, without reading any; None for many tables."""
        load = known.load
        keys = [*known.reader.tables]
        if by_table and len(keys) > MOST_CASES:
            return None
        datasets = plan.open_tables(load.storage, [load.snapshot.entry(key) for key in keys])
        counts = {
            key: sum(fragment.metadata.num_rows for fragment in dataset.get_fragments())
            for key, dataset in datasets.items()
        }
        rows = sum(counts.values())
        frame = self._query.spark.range(rows)
        if by_table:
            frame = frame.select(_table_of(counts).alias(TABLE))
        else:
            frame = frame.select(frame["id"].alias("omnigraph row"))
        report = ScanReport(_shown(known), (TABLE,) if by_table else (), {}, None, rows)
        return self._query.rows_of(known.scan, frame), report

    def _scanned(self, known: _Known, schema: StructType, pushed: Pushed) -> tuple[Any, ScanReport]:
        load = replace(known.load, pushed=pushed, planned=None)
        load.planned = load.rows_reader(schema).plan_now()
        report = ScanReport(
            _shown(known),
            tuple(schema.names),
            {
                key: predicate
                for key, predicate in pushed.predicates.items()
                if isinstance(predicate, str)
            },
            pushed.limit,
            sum(scan.expected_rows for scans in load.planned for scan in scans),
            tuple(str(key) for key in pushed.order or ()),
            None if pushed.partial is None else str(pushed.partial),
        )
        source = known.source.with_load(load)
        places = [known.scan.schema.names.index(name) for name in schema.names]
        shown = f"omnigraph {report}"
        return self._query.scan_of(known.scan, source, places, shown, self._is_alone), report


def _few(known: _Known, use: Use, position: int) -> list[Any] | None:
    """Return a column's values of the rows that a scan's filter keeps, if an index finds few."""
    pushed = known.reader.pushed(use.conditions)
    ((key, where),) = pushed.predicates.items()
    if where is False:
        return []
    if where is True or known.load.options.filter is not None:
        return None
    field = known.reader.tables[key].get(known.reader.names[position] or "")
    dataset = plan.open_tables(known.load.storage, [known.load.snapshot.entry(key)])[key]
    if field is None or plan.share_by_index(dataset, where) is None:
        return None
    table = dataset.scanner(columns=[field.name], filter=where, limit=MOST_IDS + 1).to_table()
    values: list[Any] = table.column(0).to_pylist()
    return values


def _table_of(counts: Mapping[str, int]) -> Any:
    """Return the table key of a row by its number, as the rows of the tables follow each other."""
    keys = [key for key, count in counts.items() if count]
    if not keys:
        return sf.lit("")
    chosen: Any = sf
    end = 0
    for key in keys[:-1]:
        end += counts[key]
        chosen = chosen.when(sf.col("id") < end, key)
    return sf.lit(keys[-1]) if chosen is sf else chosen.otherwise(keys[-1])


def _partial(schema: StructType, functions: Mapping[str, str]) -> PartialAggregate | None:
    """Return what a scan can aggregate of a frame's columns exactly as Spark does.

    Not by a column of floats, whose NaN and zeros Spark takes for equal, or one with parts; nor the
    sum of floats of 32 bits, which Spark adds up in 64.
    """
    for field in schema.fields:
        kind = field.dataType.typeName()
        allowed = _SUMS if functions.get(field.name) == "sum" else _KEYS
        if kind not in allowed or field.dataType.simpleString() not in (kind, *_SHORT_NAMES):
            return None
    return PartialAggregate(
        tuple((name, functions[name]) for name in schema.names if name in functions)
    )


def _cheapest(schema: StructType) -> int:
    """Return the place of the column to read where no column's values count."""
    kinds = [field.dataType.typeName() for field in schema.fields]
    for kind in (
        "boolean",
        "byte",
        "short",
        "integer",
        "float",
        "date",
        "long",
        "double",
        "string",
    ):
        if kind in kinds:
            return kinds.index(kind)
    return 0


def _shown(known: _Known) -> str:
    if known.reader.table_column is not None:
        return "graph"
    return next(iter(known.reader.tables))


def _short(text: str) -> str:
    return text if len(text) <= 80 else f"{text[:80]}…"
