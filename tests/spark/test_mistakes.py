"""Usual mistakes, by `df.write`, by SQL and by `OmniGraph`: our class and code, short, and a way on."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Mapping

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from omnigraph_spark import OmniGraph
from omnigraph_spark.errors import (
    BranchNotFoundError,
    GraphNotFoundError,
    IntegrityError,
    OmnigraphError,
    OptionError,
    SchemaMismatchError,
    TableNotFoundError,
    VersionNotFoundError,
    from_spark,
)

pytestmark = pytest.mark.long

PERSON, KNOWS = "node:Person", "edge:Knows"
ROW = "SELECT 'c' AS id, 'Cy' AS name, 1 AS age"
EDGE = "SELECT 'a' AS src, 'b' AS dst"
Call = Callable[[], object]
Mistake = tuple[type[OmnigraphError], str, Mapping[str, Call]]
"""Class of the error, what its text says at least, and the same mistake on each surface."""


@pytest.fixture(scope="module")
def graph(spark_session: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> OmniGraph:
    """Two people who know each other, and a branch `dev`."""
    made = OmniGraph.for_path(spark_session, str(tmp_path_factory.mktemp("mistakes") / "g"))
    people = spark_session.sql(
        "SELECT 'a' AS id, 'Ann' AS name, 30 AS age UNION ALL SELECT 'b', 'Ben', 25"
    )
    edges = spark_session.sql(f"{EDGE}, DATE'2020-01-01' AS since")
    made.write({PERSON: people, KNOWS: edges}, endpoints={"Knows": ("Person", "Person")})
    made.create_branch("dev")
    return made


class _Calls:
    """Short spellings for what is tried."""

    def __init__(self, graph: OmniGraph) -> None:
        self._graph = graph

    def write(self, rows: str = ROW, table: str = PERSON, **options: str) -> Call:
        frame = self._graph.spark.sql(rows)
        writer = frame.write.format("omnigraph").mode("append").options(table=table, **options)
        return lambda: writer.save(self._graph.uri)

    def read(self, path: str | None = None, **options: str) -> Call:
        reader = self._graph.spark.read.format("omnigraph").options(**options)
        return lambda: reader.load(path or self._graph.uri).collect()

    def bulk(self, rows: str = ROW, table: str = PERSON, **options: object) -> Call:
        frame = self._graph.spark.sql(rows)
        return lambda: self._graph.write({table: frame}, **options)  # type: ignore[arg-type]

    def sql(self, values: str | None = None, path: str | None = None, **options: str) -> Call:
        spark = self._graph.spark

        def run() -> None:
            given = {"path": path or self._graph.uri, "table": PERSON, **options}
            listed = ", ".join(f"{name} '{value}'" for name, value in given.items())
            spark.sql("DROP TABLE IF EXISTS t")
            spark.sql(f"CREATE TABLE t USING omnigraph OPTIONS ({listed})")
            spark.sql("SELECT * FROM t" if values is None else f"INSERT INTO t {values}").collect()

        return run


def mistakes(graph: OmniGraph) -> dict[str, Mistake]:
    """Return the mistakes by their names."""
    do, none = _Calls(graph), f"{graph.uri}-none"
    elsewhere = OmniGraph.for_path(graph.spark, none)
    wrong_type = "SELECT 'c' AS id, 'Cy' AS name, 'x' AS age"
    too_large = "SELECT 'c' AS id, 'Cy' AS name, 99999999999 AS age"
    lost = "SELECT CAST(NULL AS STRING) AS id, 'a' AS src, 'zz' AS dst, DATE'2020-01-01' AS since"
    return {
        "option": (OptionError, "Did you mean mergeSchema", {
            "df.write": do.write(mergeShema="true"), "SQL": do.sql(mergeShema="true"),
            "OmniGraph": do.bulk(mergeShema=True), "read": do.read(mergeShema="true"),
        }),
        "value of an option": (OptionError, "expected true or false", {
            "df.write": do.write(mergeSchema="yep"), "OmniGraph": do.bulk(mergeSchema="yep"),
            "SQL": do.sql(f"{ROW}", mergeSchema="yep"),
        }),
        "choice": (OptionError, "Did you mean merge", {
            "df.write": do.write(writeMode="merg"), "SQL": do.sql(ROW, writeMode="merg"),
            "OmniGraph": do.bulk(mode="merg"),
        }),
        "table": (TableNotFoundError, "Did you mean node:Person", {
            "df.write": do.write(table="Persn"), "SQL": do.sql(table="Persn"),
            "OmniGraph": do.bulk(table="Persn"), "read": lambda: graph.table("Persn"),
            "diff": lambda: graph.diff("main", "dev", "Persn").collect(),
            "update": lambda: graph.update("Persn", {"age": "1"}),
            "merge_into": lambda: graph.merge_into("Persn", graph.spark.sql(ROW)),
            "add_property": lambda: graph.add_property("Persn", "x", "int"),
            "drop_table": lambda: graph.drop_table("Persn"),
        }),
        "column": (SchemaMismatchError, "Did you mean name", {
            "df.write": do.write("SELECT 'c' AS id, 'x' AS nmae"),
            "OmniGraph": do.bulk("SELECT 'c' AS id, 'x' AS nmae"),
            "rename_property": lambda: graph.rename_property("Person", "nmae", "x"),
            "drop_property": lambda: graph.drop_property("Person", "nmae"),
        }),
        "column of an option": (OptionError, "Did you mean name", {
            "read": do.read(table="Person", columns="id,nmae"), "SQL": do.sql(columns="id,nmae"),
            "OmniGraph": lambda: graph.table("Person", columns=["id", "nmae"]),
            "filter": do.read(table="Person", filter="nmae = 'x'"),
            "create_index": lambda: graph.create_index(PERSON, "nmae"),
        }),
        "branch": (BranchNotFoundError, "Did you mean dev", {
            "df.write": do.write(branch="dve"), "SQL": do.sql(branch="dve"),
            "OmniGraph": do.bulk(branch="dve"), "read": do.read(table="Person", branch="dve"),
            "merge": lambda: graph.merge("dve"), "delete_branch": lambda: graph.delete_branch("dve"),
        }),
        "branch that isn't made yet": (BranchNotFoundError, "create_branch makes a branch", {
            "df.write": do.write(branch="xyz"), "SQL": do.sql(ROW, branch="xyz", branchFrom="main"),
            "OmniGraph": do.bulk(branch="xyz"), "read": do.read(table="Person", branch="xyz"),
        }),
        "branch, version or tag": (VersionNotFoundError, "Did you mean dev", {
            "diff": lambda: graph.diff("main", "dve"),
            "create_branch": lambda: graph.create_branch("x", "dve"),
            "tag": lambda: graph.tag("x", "dve"),
        }),
        "path": (GraphNotFoundError, "holds no OmniGraph graph", {
            "read": do.read(none, table="Person"), "SQL": do.sql(path=none),
            "OmniGraph": lambda: elsewhere.table("Person"), "check": elsewhere.check,
        }),
        "type": (SchemaMismatchError, "Cast the column", {
            "df.write": do.write(wrong_type), "OmniGraph": do.bulk(wrong_type),
        }),
        "value": (SchemaMismatchError, "for example 99999999999", {
            "df.write": do.write(too_large), "OmniGraph": do.bulk(too_large),
        }),
        "endpoint": (IntegrityError, "Write the nodes before", {
            "df.write": do.write(lost, KNOWS), "OmniGraph": do.bulk(lost, KNOWS),
            "SQL": do.sql(lost, table=KNOWS),
        }),
        "endpoints of a new table": (SchemaMismatchError, "option endpoints 'New: ", {
            "df.write": do.write(EDGE, "edge:New"), "OmniGraph": do.bulk(EDGE, "edge:New"),
            "SQL": do.sql(f"SELECT NULL, {EDGE[7:]}", table="edge:New",
                          schema="id STRING, src STRING, dst STRING"),
        }),
        "row that is there": (IntegrityError, "writeMode=merge", {
            "df.write": do.write("SELECT 'a' AS id, 'Ann' AS name, 1 AS age"),
            "OmniGraph": do.bulk("SELECT 'a' AS id"), "SQL": do.sql("VALUES ('a', 'Ann', 1)"),
        }),
        "id twice": (IntegrityError, "Keep one row of each id", {
            "df.write": do.write(f"{ROW} UNION ALL {ROW}"),
            "OmniGraph": do.bulk(f"{ROW} UNION ALL {ROW}"),
            "SQL": do.sql("VALUES ('c', 'Cy', 1), ('c', 'Cy', 1)"),
        }),
        "null id": (IntegrityError, "Fill or drop those rows", {
            "df.write": do.write("SELECT CAST(NULL AS STRING) AS id"),
            "OmniGraph": do.bulk("SELECT CAST(NULL AS STRING) AS id"),
        }),
        "time": (OptionError, "ISO 8601", {
            "read": do.read(table="Person", timestampAsOf="yesterday"),
            "SQL": do.sql(timestampAsOf="yesterday"),
        }),
        "version": (VersionNotFoundError, "99", {
            "read": do.read(table="Person", versionAsOf="99"), "SQL": do.sql(versionAsOf="99"),
            "OmniGraph": lambda: graph.table("Person", version=99),
            "restore": lambda: graph.restore(99),
        }),
        "new property's type": (OptionError, "is not a property type", {
            "df.write": do.write(table="node:New", types="New.age: Strin"),
            "OmniGraph": do.bulk(table="node:New", types={"New": {"age": "Strin"}}),
            "add_property": lambda: graph.add_property("Person", "x", "Strin"),
        }),
        "key": (SchemaMismatchError, "Did you mean name", {
            "df.write": do.write(table="node:New", keys="New: nmae"),
            "OmniGraph": do.bulk(table="node:New", keys={"New": "nmae"}),
        }),
        "direction": (OptionError, "is for reading", {
            "df.write": do.write(versionAsOf="1"), "OmniGraph": do.bulk(versionAsOf=1),
        }),
    }  # fmt: skip


def test_usual_mistakes_are_told_at_a_glance_on_every_surface(
    spark: SparkSession, graph: OmniGraph
) -> None:
    before = graph.history().count()
    bare: list[str] = []
    for name, (kind, text, calls) in mistakes(graph).items():
        for surface, call in calls.items():
            wrong = _what_is_bare(call, kind, text)
            if wrong is not None:
                bare.append(f"{name}, {surface}: {wrong}")
    assert not bare, "\n".join(bare)
    assert graph.history().count() == before


def _what_is_bare(call: Call, kind: type[OmnigraphError], text: str) -> str | None:
    """Return what a mistake's error lacks, None where it is good."""
    with pytest.raises((PySparkException, OmnigraphError)) as failure:
        call()
    typed = from_spark(failure.value)
    if type(typed) is not kind or f"[OMNIGRAPH_{kind.code}]" not in str(typed):
        return f"{type(typed).__name__}: {typed}"
    if text not in str(typed) or (typed.expected is None and typed.hint is None):
        return f"no {text!r}: {typed}"
    trace = "".join(traceback.format_tb(failure.value.__traceback__))
    if isinstance(failure.value, PySparkException):
        trace = str(failure.value).partition("[OMNIGRAPH_")[0]
    lines = [line for line in trace.splitlines() if "omnigraph_spark" in line and 'File "' in line]
    return f"{len(lines)} lines of trace: {trace}" if len(lines) > 1 else None
