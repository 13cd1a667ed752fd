"""Spark's plans, by py4j: the only module that touches classes of Catalyst and of Python sources.

None of them is public API. What is used here is pinned by `tests/contract/test_catalyst_facts.py`
on both ends of the range of versions, and whoever calls this leaves a frame as it was if anything
fails. It runs on the driver, starts no job, and changes nothing that the session can see.
"""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar
from weakref import WeakKeyDictionary

from py4j.java_gateway import (  # type: ignore[import-untyped]
    JavaClass,
    JavaMember,
    is_instance_of,
)
from py4j.protocol import STATIC_PREFIX  # type: ignore[import-untyped]
from pyspark import SparkContext
from pyspark.serializers import CloudPickleSerializer
from pyspark.sql import SparkSession
from pyspark.sql.classic.dataframe import DataFrame as ClassicDataFrame
from pyspark.sql.types import StructType

from omnigraph_spark.narrowing import needs

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from omnigraph_spark.spark.datasource import OmnigraphDataSource

_SHORT_NAME = "omnigraph"
_RELATION = "DataSourceV2Relation"
# They depend on the order of rows within a group, and on nothing else.
_BY_ORDER = frozenset({"CollectList", "CollectSet", "First", "Last"})
# In the plans that are only looked at: lists stay lists of literals, and nothing is pushed.
_PLANNING = {
    "spark.sql.optimizer.inSetConversionThreshold": "1000000",
    "spark.sql.python.filterPushdown.enabled": "false",
}
_NONDETERMINISTIC = "org.apache.spark.sql.catalyst.expressions.Nondeterministic"
_USERS = ("UDF", "UDAF", "Aggregator")
_SQL = "org.apache.spark.sql"
_CATALYST = f"{_SQL}.catalyst"
_SOURCES = f"{_SQL}.execution.datasources.v2.python"
_CONVERTERS = "scala.jdk.javaapi.CollectionConverters"
_pickled: Any = CloudPickleSerializer()  # type: ignore[no-untyped-call]


class Scan:
    """One omnigraph scan of a query: its relation in the plan, and its data source."""

    def __init__(self, context: SparkContext, relation: Any, table: Any) -> None:
        self._context = context
        self.relation = relation
        self.table = table
        self.of_jvm = relation.schema()
        self.schema: StructType = StructType.fromJson(json.loads(self.of_jvm.json()))

    def option(self, name: str) -> str | None:
        """Return an option that the scan was given, whatever the case of its name."""
        given = self.relation.options().__getattr__("getOrDefault")(name, None)
        return None if given is None else str(given)

    def source(self) -> OmnigraphDataSource:
        """Return the data source itself, with the snapshot that it is pinned to."""
        owner = _field(self._context, self.table, "ds").get(self.table)
        made = _field(self._context, owner, "dataSourceInPython").get(owner)
        if made is None:
            raise ValueError("the scan has no Python data source")
        source: OmnigraphDataSource = _pickled.loads(bytes(made.dataSource()))
        return source


class Query:
    """A classic frame's plan, to be looked at and to be created again with other scans.

    Attributes:
        scans: The omnigraph scans in it, those of subqueries included.
    """

    def __init__(self, frame: DataFrame) -> None:
        """Look at a frame's analyzed plan.

        Raises:
            Py4JError, TypeError, AttributeError, ValueError: this Spark is another than is known.
        """
        self._frame = frame
        self.spark: SparkSession = frame.sparkSession
        self._context = self.spark.sparkContext
        self._gateway: Any = _gateway(self.spark)
        self._session: Any = self.spark._jsparkSession
        self._execution = frame._jdf.queryExecution()
        self._plan = self._execution.analyzed()
        self._stacked = self._under_stack()
        self._has_fillers = False
        within = [] if self.is_stack else _each(self._plan.subqueriesAll())
        self._plans = [self._plan, *within]
        self.scans = [Scan(self._context, leaf, table) for leaf, table in self._tables()]

    def _tables(self) -> Iterator[tuple[Any, Any]]:
        """Yield the relations of our tables, each once, and those tables."""
        seen: list[Any] = []
        for leaf in self._relations():
            if leaf in seen:
                continue
            seen.append(leaf)
            table = leaf.table()
            # A table of another kind by this name has no source to ask: its scan stays.
            if table.name() == _SHORT_NAME:
                yield leaf, table

    def _relations(self) -> list[Any]:
        if self.is_stack:
            return [self._stacked]
        leaves = (leaf for plan in self._plans for leaf in _each(plan.collectLeaves()))
        return [leaf for leaf in leaves if _kind(leaf) == _RELATION]

    @cached_property
    def _kind(self) -> str:
        return _kind(self._plan)

    @property
    def is_bare(self) -> bool:
        """Return whether the frame is a scan and nothing else."""
        return self._kind == _RELATION

    def is_cached(self) -> bool:
        """Return whether Spark would take a part of the query from its cache."""
        shared = self._session.sharedState
        if _once(self._context, "cache", lambda: shared().cacheManager()).isEmpty():
            return False
        return "InMemoryRelation" in self._execution.withCachedData().toString()

    def unsteady(self) -> set[str]:
        """Return the kinds of expressions by which two runs of the query may differ."""
        kinds: set[str] = set()
        if self._has("CURRENT_LIKE"):
            kinds.add("the time of the query")  # the planned one would be before the one that runs
        for plan in self._plans:
            if not plan.deterministic():
                _unsteady(self._gateway, plan, kinds)
        return kinds - _BY_ORDER

    @property
    def is_stack(self) -> bool:
        """Return whether the frame is a scan under filters, with at most a projection on top.

        Such a frame has no subqueries, and is no stream.
        """
        return self._stacked is not None

    def _under_stack(self) -> Any:
        """Return the relation of a stack, None where the plan is none."""
        plan, kind = self._plan, self._kind
        if kind == "Project":
            plan = plan.child()
            kind = _kind(plan)
        while kind == "Filter":
            plan = plan.child()
            kind = _kind(plan)
        return plan if kind == _RELATION and not self._has("PLAN_EXPRESSION") else None

    def _has(self, pattern: str) -> bool:
        found = self._static(f"{_CATALYST}.trees.TreePattern", pattern)
        return bool(self._plan.containsPattern(_once(self._context, pattern, found)))

    def is_streaming(self) -> bool:
        """Return whether the query reads a stream."""
        return not self.is_stack and bool(self._plan.isStreaming())

    def analyzed(self) -> str:
        """Return the JSON of the analyzed plan, its scans as they are."""
        return str(self._plan.toJSON())

    def optimized(self) -> tuple[str, Callable[[int], list[Any] | None]]:
        """Return the JSON of the optimized plan, its scans tagged, and what reads local columns.

        The function returns the values of a column (by expression id) of a local relation, None
        where there is no such.
        """
        tagged = [
            (scan.relation, self._tagged(number, scan.relation))
            for number, scan in enumerate(self.scans)
        ]
        with _planner(self.spark) as planner:
            frame = self._of_rows(planner, self._with(tagged))
            plan = frame.queryExecution().optimizedPlan()
            text = plan.toJSON()
        return text, lambda key: self._local(plan, key)

    def zone(self) -> str:
        """Return the time zone in which `optimized` shows timestamps."""
        conf = self._static(f"{_SQL}.internal.SQLConf", "get")()
        return str(conf.sessionLocalTimeZone())

    def made(self, plans: Mapping[int, Any], is_answered: bool = False) -> DataFrame:
        """Return the frame with other plans for some scans, by their numbers.

        `is_answered`: the scan of a stack keeps the rows of its filters, and no others.
        """
        if is_answered:
            (plan,) = plans.values()
            if self._kind == "Project":
                plan = self._plan.withNewChildren(self._seq([plan]))
        else:
            plan = self._with([(self.scans[number].relation, new) for number, new in plans.items()])
        if self._is_exact:  # nothing is left to resolve, and to find that takes 5 ms
            plan.setAnalyzed()
        else:
            plan = self._closed(plan)
        return ClassicDataFrame(self._of_rows(self._session, plan), self.spark)

    @property
    def _is_exact(self) -> bool:
        """Return whether the plan that was made has the query's rows and columns at each node."""
        return self.is_stack and not self._has_fillers

    def _closed(self, plan: Any) -> Any:
        """Return a plan of which what is made later sees no more than its columns (fact 52).

        Below them are columns that aren't read, and rows that are aggregated in part. Spark looks
        for the column of a filter no deeper than to an alias; the projection over it gives the
        columns their own names again.
        """
        name = self._java(f"{_CATALYST}.AliasIdentifier")("narrowed")
        plans = f"{_CATALYST}.plans.logical"
        alias = self._java(f"{plans}.SubqueryAlias")(name, plan)
        return self._java(f"{plans}.Project")(plan.output(), alias)

    def has_schema_of(self, made: DataFrame) -> bool:
        """Return whether a frame has the query's schema, metadata included."""
        if self._is_exact:  # it has the same projection, or the same columns
            return True
        return bool(made._jdf.schema().equals(self._frame._jdf.schema()))

    def scan_of(
        self,
        scan: Scan,
        source: OmnigraphDataSource,
        places: Sequence[int],
        shown: str,
        is_alone: bool = False,
    ) -> Any:
        """Return the plan of a scan of a data source that this process made and pinned.

        It reads the columns at some places of the scan's own; `shown` says so to users. `is_alone`:
        the plan as it stands names no others.
        """
        output = scan.relation.output()
        is_whole = [*places] == [*range(len(scan.schema.fields))]
        read = {} if is_whole else {place: output.apply(place) for place in places}
        columns = output if is_whole else self._seq([*read.values()])
        if is_whole:
            jschema = scan.of_jvm
        else:
            jschema = self._static(f"{_CATALYST}.types.DataTypeUtils", "fromAttributes")(columns)
        owner = self._java(f"{_SOURCES}.PythonDataSourceV2")()
        owner.setShortName(_SHORT_NAME)
        result = self._java(f"{_SOURCES}.PythonDataSourceCreationResult")
        made = result(bytearray(_pickled.dumps(source)), jschema)
        _field(self._context, owner, "dataSourceInPython").set(owner, made)
        table = self._java(f"{_SOURCES}.PythonTable")(owner, shown, jschema)
        # The names of a catalog table would stand for it in Spark's cache.
        narrower = self._copy(scan.relation, table, columns, self._none, self._none)
        if is_whole or is_alone:
            return narrower
        return self._as(scan, output, narrower, read)

    def rows_of(self, scan: Scan, frame: DataFrame) -> Any:
        """Return the plan of a frame of Spark's own in the place of a scan, by names."""
        plan, output = frame._jdf.queryExecution().analyzed(), scan.relation.output()
        present = {str(column.name()): column for column in _each(plan.output())}
        names = scan.schema.names
        read = {
            place: self._alias(present[names[place]], scan, place, output.apply(place))
            for place in range(len(names))
            if names[place] in present
        }
        return self._as(scan, output, plan, read)

    def _as(self, scan: Scan, output: Any, plan: Any, read: Mapping[int, Any]) -> Any:
        """Return a plan with the scan's columns, those that are read by place; nobody reads others.

        They stand as the column does, null only if it may be: the optimizer knows which columns are
        never null, and counts those that are, unread. It knows literals, too, and leaves conditions
        out that hold for any value: an expression that fails would be evaluated there.
        """
        literal = f"{_CATALYST}.expressions.Literal"
        columns = []
        for place, field in enumerate(scan.schema.fields):
            column = read.get(place)
            if column is None:
                self._has_fillers = True
                unread = output.apply(place)
                kind = unread.dataType()
                if field.nullable:
                    filler = self._static(literal, "create")(None, kind)
                else:
                    filler = self._static(literal, "default")(kind)
                column = self._alias(filler, scan, place, unread)
            columns.append(column)
        return self._project(columns, plan)

    def _alias(self, child: Any, scan: Scan, place: int, column: Any) -> Any:
        field = scan.schema.fields[place]
        if field.metadata:
            metadata = self._static("scala.Option", "apply")(column.metadata())
        else:
            metadata = self._none
        return self._java(f"{_CATALYST}.expressions.Alias")(
            child, field.name, column.exprId(), column.qualifier(), metadata, self._nothing
        )

    @property
    def _none(self) -> Any:
        return _once(self._context, "none", self._static("scala.Option", "empty"))

    @property
    def _nothing(self) -> Any:
        return _once(self._context, "nothing", lambda: self._seq([]))

    def _tagged(self, number: int, relation: Any) -> Any:
        """Return a relation whose first column's name says which it is, through all renumbering."""
        output = relation.output()
        first = output.apply(0).withName(needs.tag(number, int(output.size())))
        return self._copy(relation, relation.table(), output.updated(0, first))

    def _copy(self, relation: Any, *first: Any) -> Any:
        """Return a relation with other first parts: table, output, catalog, identifier."""
        arity = _once(self._context, "parts of a relation", relation.productArity)
        rest = [relation.productElement(at) for at in range(len(first), arity)]
        return relation.copy(*first, *rest)

    def _with(self, pairs: Sequence[tuple[Any, Any]]) -> Any:
        """Return the query's plan with nodes replaced, those in subqueries included."""
        known = self._java("java.util.HashMap")()
        for old, new in pairs:
            known.put(old, new)
        wrapped = self._static(_CONVERTERS, "asScala")(known)
        return self._plan.transformUpWithSubqueries(wrapped)

    def _of_rows(self, session: Any, plan: Any) -> Any:
        return self._static(f"{_SQL}.classic.Dataset", "ofRows")(session, plan)

    def _local(self, plan: Any, key: int) -> list[Any] | None:
        """Return the values of a column of a local relation of a plan; starts no job."""
        for leaf in _each(plan.collectLeaves()):
            if _class(leaf) != "LocalRelation":
                continue
            for attribute in _each(leaf.output()):
                if attribute.exprId().id() == key:
                    column = self._project([attribute], leaf)
                    made = ClassicDataFrame(self._of_rows(self._session, column), self.spark)
                    return [row[0] for row in made.collect()]
        return None

    def _project(self, columns: Sequence[Any], plan: Any) -> Any:
        return self._java(f"{_CATALYST}.plans.logical.Project")(self._seq(columns), plan)

    def _java(self, name: str) -> Any:
        """Return a class of the JVM: to look its package up there costs a request for each part."""
        return JavaClass(name, self._gateway._gateway_client)

    def _static(self, owner: str, name: str) -> Any:
        """Return a static method of a class of the JVM, without a request that looks for it."""
        return JavaMember(name, None, f"{STATIC_PREFIX}{owner}", self._gateway._gateway_client)

    def _seq(self, items: Sequence[Any]) -> Any:
        return self._static(_CONVERTERS, "asScala")(self._list(items)).toSeq()

    def _list(self, items: Sequence[Any]) -> Any:
        made = self._java("java.util.ArrayList")()
        for item in items:
            made.add(item)
        return made


@contextmanager
def eager_answers(spark: SparkSession) -> Iterator[None]:
    """Let long answers of the JVM come at once, for this thread, until the block ends.

    Py4J writes an answer in pieces of 8 KB, and the system holds the last piece back until the one
    before is acknowledged, which the reading side delays by 40 ms, as long as all the rest takes
    (fact 51).
    """
    quick = getattr(socket, "TCP_QUICKACK", None)  # Linux has it
    client = _gateway(spark)._gateway_client
    if quick is None or not hasattr(client, "_get_connection"):  # slower, and as right
        yield
        return
    connection = client._get_connection()
    client._give_back_connection(connection)
    plain = connection.socket
    connection.socket = _Acknowledging(plain, quick)
    try:
        yield
    finally:
        if connection.socket is not None:  # closed meanwhile
            connection.socket = plain


class _Acknowledging:
    """A socket that acknowledges what comes after each send without a delay."""

    def __init__(self, plain: Any, quick: int) -> None:
        self._plain = plain
        self._quick = quick

    def sendall(self, data: bytes) -> None:
        self._plain.sendall(data)
        with suppress(OSError):  # sent it is: an error now would have Py4J send it once more
            # The system forgets it with the next send.
            self._plain.setsockopt(socket.IPPROTO_TCP, self._quick, 1)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._plain, name)


def sql_over(
    spark: SparkSession,
    views: Mapping[str, DataFrame],
    text: str,
    args: Mapping[str, Any] | list[Any] | None,
) -> DataFrame:
    """Return a query over frames by name; their views live in a copy of the session.

    Raises:
        AnalysisException, ParseException: the query is wrong.
    """
    jvm: Any = spark._jvm
    rows = jvm.org.apache.spark.sql.classic.Dataset
    apart = spark._jsparkSession.cloneSession()
    for name, frame in views.items():
        plan = frame._jdf.queryExecution().analyzed()
        rows.ofRows(apart, plan).createOrReplaceTempView(f"`{name}`")
    session = SparkSession(spark.sparkContext, apart)
    given: Any = args
    made = session.sql(text) if given is None else session.sql(text, given)
    plan = made._jdf.queryExecution().analyzed()
    return ClassicDataFrame(rows.ofRows(spark._jsparkSession, plan), spark)


class _planner:
    """A session like the user's, for plans that are only looked at; its settings are as of now."""

    _known: ClassVar[WeakKeyDictionary[SparkSession, Any]] = WeakKeyDictionary()
    _lock = threading.Lock()

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark

    def __enter__(self) -> Any:
        self._lock.acquire()
        try:
            own = self._spark._jsparkSession
            planner = self._known.get(self._spark)
            if planner is None:
                planner = own.cloneSession()
                self._known[self._spark] = planner
            settings = planner.sessionState().conf().settings()
            # Java's own: Python's `clear` of a Java map takes its entries out one by one.
            settings.__getattr__("clear")()
            settings.putAll(own.sessionState().conf().settings())
            for key, value in _PLANNING.items():
                settings.put(key, value)
            return planner
        except BaseException:
            self._lock.release()
            raise

    def __exit__(self, *_: object) -> None:
        self._lock.release()


def _unsteady(gateway: Any, plan: Any, kinds: set[str]) -> None:
    for expression in _each(plan.expressions()):
        if not expression.deterministic():
            _unsteady_expression(gateway, expression, kinds)
    for child in _each(plan.children()):
        if not child.deterministic():
            _unsteady(gateway, child, kinds)


def _unsteady_expression(gateway: Any, expression: Any, kinds: set[str]) -> None:
    below = [child for child in _each(expression.children()) if not child.deterministic()]
    if (
        not below
        or _class(expression).endswith(_USERS)
        or is_instance_of(gateway, expression, _NONDETERMINISTIC)
    ):
        kinds.add(_class(expression))
    for child in below:
        _unsteady_expression(gateway, child, kinds)


def _gateway(spark: SparkSession) -> Any:
    return spark.sparkContext._gateway


def _each(items: Any) -> list[Any]:
    return [items.apply(at) for at in range(items.size())]


def _class(item: Any) -> str:
    return str(item.getClass().getSimpleName())


def _kind(plan: Any) -> str:
    """Return the class of a plan's node, by one call."""
    return str(plan.nodeName())


_kept: WeakKeyDictionary[SparkContext, dict[str, Any]] = WeakKeyDictionary()


def _once(context: SparkContext, name: str, ask: Callable[[], Any]) -> Any:
    """Return what doesn't change while a Spark application runs, asked of its JVM once."""
    kept = _kept.setdefault(context, {})
    if name not in kept:
        kept[name] = ask()
    return kept[name]


def _field(context: SparkContext, item: Any, name: str) -> Any:
    """Return a private field of the one class that has a field of this name."""

    def find() -> Any:
        field = item.getClass().getDeclaredField(name)
        field.setAccessible(True)
        return field

    return _once(context, f"field {name}", find)
