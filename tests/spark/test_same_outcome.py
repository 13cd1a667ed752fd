"""One frame, one outcome: whichever way it is written, the same graph, or the same refusal.

With `--spark-master connect` each way goes through Spark Connect, and one more without it.
`OMNIGRAPH_SPARK_OUTCOMES` says how many random frames, `OMNIGRAPH_SPARK_OUTCOME_SEED` from which seed on.
"""

from __future__ import annotations

import math
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyspark
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from omnigraph_spark import OmniGraph, pack
from omnigraph_spark.errors import OmnigraphError, SchemaMismatchError, from_spark
from omnigraph_spark.manifest.snapshot import load
from omnigraph_spark.read.plan import read_table
from omnigraph_spark.spark import loading
from omnigraph_spark.storage.store import Storage
from tests.support import outcomes
from tests.support.outcomes import Case

CASES = int(os.environ.get("OMNIGRAPH_SPARK_OUTCOMES", "3"))
SEED = int(os.environ.get("OMNIGRAPH_SPARK_OUTCOME_SEED", "0"))
FEW = 20
"""Up to so many frames each goes three ways, which take turns; more go every way."""

Way = Callable[[OmniGraph, str, DataFrame], object]


def _save(frame: DataFrame, graph: OmniGraph, **options: str) -> None:
    frame.write.format("omnigraph").mode("append").options(**options).save(graph.uri)


def _one_table(graph: OmniGraph, key: str, frame: DataFrame) -> None:
    _save(frame, graph, table=key)


def _upsert(graph: OmniGraph, key: str, frame: DataFrame) -> None:
    _save(frame, graph, table=key, writeMode="merge")


def _whole_graph(graph: OmniGraph, key: str, frame: DataFrame) -> None:
    _save(pack({key: frame}), graph)


def _whole_upsert(graph: OmniGraph, key: str, frame: DataFrame) -> None:
    _save(pack({key: frame}), graph, writeMode="merge")


def _transaction(graph: OmniGraph, key: str, frame: DataFrame) -> None:
    with graph.transaction() as t:
        t.write({key: frame})


def _insert(graph: OmniGraph, frame: DataFrame, options: str) -> None:
    spark = graph.spark
    frame.createOrReplaceTempView("given")
    spark.sql("DROP TABLE IF EXISTS outcome")
    spark.sql(f"CREATE TABLE outcome USING omnigraph OPTIONS (path '{graph.uri}', {options})")
    names = ", ".join(f"`{name}`" for name in frame.columns)
    spark.sql(f"INSERT INTO outcome ({names}) SELECT {names} FROM given")


def _sql(graph: OmniGraph, key: str, frame: DataFrame) -> None:
    _insert(graph, frame, f"table '{key}'")


def _sql_upsert(graph: OmniGraph, key: str, frame: DataFrame) -> None:
    names = ",".join(name for name in frame.columns if name != "stranger")
    _insert(graph, frame, f"table '{key}', writeMode 'merge', columns '{names}'")


APPENDS: dict[str, Way] = {
    "one table": _one_table,
    "whole graph": _whole_graph,
    "OmniGraph.write": lambda graph, key, frame: graph.write({key: frame}),
    "SQL": _sql,
    "transaction": _transaction,
}
UPSERTS: dict[str, Way] = {
    "upsert": _upsert,
    "whole graph, upsert": _whole_upsert,
    "OmniGraph.write, upsert": lambda graph, key, frame: graph.write({key: frame}, mode="merge"),
    "SQL, upsert": _sql_upsert,
    "merge_into": lambda graph, key, frame: graph.merge_into(key, frame),
}
WAYS = {**APPENDS, **UPSERTS}
WITHOUT_CONNECT = "without Connect"
if pyspark.__version__.startswith("4.0."):
    # An INSERT takes all columns there, and one that has to cast an array loses the table's binding.
    del WAYS["SQL"], WAYS["SQL, upsert"]


def _classic(spark: SparkSession) -> SparkSession | None:
    """Return a session without Connect on the server of one with it; None for one without."""
    if "connect" not in type(spark).__module__:
        return None
    from pyspark import SparkContext
    from pyspark.sql.classic.dataframe import DataFrame as Classic
    from pyspark.sql.session import SparkSession as Session

    session = Session(SparkContext.getOrCreate())
    assert isinstance(session.range(1), Classic)
    return session


@pytest.fixture(scope="module")
def origin(spark_session: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A graph of some rows in each table."""
    root = tmp_path_factory.mktemp("outcomes") / "origin"
    graph = OmniGraph.for_path(spark_session, str(root))
    columns = ", ".join(
        f"{name} {one.stored}{'' if one.nullable else ' NOT NULL'}"
        for name, one in outcomes.PROPERTIES.items()
    )
    row = {"req": 1, "st": (1, "a"), "n": 1, "s": "s"}
    people = [(one, *map(row.get, outcomes.PROPERTIES)) for one in outcomes.PEOPLE]
    graph.write(
        {
            outcomes.NODE: spark_session.createDataFrame(people, f"id STRING, {columns}"),
            outcomes.KEYED: spark_session.createDataFrame(
                [("k0", 1, "s")], "name STRING, n INT, s STRING"
            ),
            outcomes.EDGE: spark_session.createDataFrame(
                [("e0", "p0", "p1", 0.5)], "id STRING, src STRING, dst STRING, wt DOUBLE"
            ),
            outcomes.KEYED_EDGE: spark_session.createDataFrame(
                [("p0", "p1", 0.5)], "src STRING, dst STRING, wt DOUBLE"
            ),
        },
        keys={"K": "name"},
        endpoints=outcomes.ENDPOINTS,
        edgeKeys="B: src, dst",
        types=outcomes.TYPES,
    )
    return root


def _plain(value: Any) -> Any:
    if isinstance(value, float) and math.isnan(value):
        return "NaN"
    return repr(value)


def _state(root: Path, one: Case) -> list[str]:
    """Return what a graph holds, as text: types, whether they may be null, rows without made ids."""
    storage = Storage.at(str(root))
    snapshot = load(storage)
    told = []
    for key in sorted(snapshot.tables):
        fields = loading.resolve({"path": str(root), "table": key}).schema().fields
        told.append(f"{key} {[(f.name, f.dataType.simpleString(), f.nullable) for f in fields]}")
        table = read_table(storage, snapshot, key)
        for place, field in enumerate(table.schema):
            if field.type == pa.date64():  # of which Python would show the day alone
                millis = table.column(place).cast(pa.timestamp("ms"))
                table = table.set_column(place, field.name, millis)
        rows = table.to_pylist()
        if key == one.table == outcomes.EDGE and "id" not in dict(one.columns):
            rows = [{**row, "id": row["id"] if row["id"] == "e0" else "made"} for row in rows]
        told += sorted(str({name: _plain(value) for name, value in row.items()}) for row in rows)
    return told


def outcome(way: Way, origin: Path, root: Path, one: Case, frame: DataFrame) -> list[str]:
    """Write a frame into a copy of the graph; returns what is there then, or the error's code."""
    shutil.copytree(origin, root)
    graph = OmniGraph.for_path(frame.sparkSession, str(root))
    try:
        way(graph, one.table, frame)
    except (PySparkException, OmnigraphError) as error:
        typed = from_spark(error)
        assert _state(root, one) == _state(origin, one), "a refused write left something"
        if isinstance(typed, OmnigraphError):
            return [typed.code]
        return [f"Spark: {typed.getCondition()}"]  # type: ignore[attr-defined]
    return _state(root, one)


SPARKS_OWN = {
    # An INSERT's columns are the catalog table's; Spark looks at them before it calls the source.
    outcomes.STRANGER: ("UNRESOLVED_COLUMN", "INSERT_COLUMN"),
    # It gives what an INSERT leaves out the value null, which these columns don't take.
    outcomes.MISSING: ("INCOMPATIBLE_DATA_FOR_TABLE",),
    outcomes.NO_ID: ("INCOMPATIBLE_DATA_FOR_TABLE",),
    outcomes.NO_END: ("INCOMPATIBLE_DATA_FOR_TABLE",),
    # It casts to the catalog table's types, and checks its NOT NULL, before a row gets here.
    outcomes.NULL_ID: ("NOT_NULL_ASSERT_VIOLATION",),
    outcomes.NULL_END: ("NOT_NULL_ASSERT_VIOLATION",),
    outcomes.TYPE: ("INCOMPATIBLE_DATA_FOR_TABLE",),
    outcomes.VALUE: ("CAST_OVERFLOW", "NUMERIC_VALUE_OUT_OF_RANGE", "NOT_NULL_ASSERT_VIOLATION"),
}
"""What Spark itself refuses in an INSERT, with errors of its own, by what is wrong with the rows."""


def _is_sparks_own(name: str, one: Case, found: list[str]) -> bool:
    own = SPARKS_OWN.get(one.fault or "", ())
    if name.startswith("SQL") and (one.fault, one.faulty) == (outcomes.VALUE, "f"):
        return True  # its cast makes an infinity of a DOUBLE that is too large for a FLOAT
    return name.startswith("SQL") and found[0].startswith(tuple(f"Spark: {code}" for code in own))


def _is_null_end(name: str, one: Case, found: list[str]) -> bool:
    """Return whether a whole-graph frame, which has both ends always, says what a null end is."""
    return (
        name.startswith("whole graph") and one.fault == outcomes.NO_END and found == ["INTEGRITY"]
    )


def _expected(name: str, one: Case) -> tuple[str, bool]:
    """Return the way whose outcome a way must have, and whether the frame is refused there."""
    if name in UPSERTS and one.fault == outcomes.EXISTING:
        return "upsert", False
    if name in UPSERTS and one.fault == outcomes.MISSING:
        return "upsert", True  # of a row that is there its column isn't wanted: the row is refused
    if name in UPSERTS and one.table == outcomes.EDGE and "id" not in dict(one.columns):
        return "upsert", True
    return "one table", one.fault is not None


def _differences(found: list[str], expected: list[str]) -> str:
    return f"{[*set(found) - set(expected)]} instead of {[*set(expected) - set(found)]}"


@pytest.mark.long
@pytest.mark.rounds
@pytest.mark.timeout(7200)
def test_a_frame_has_one_outcome_whichever_way_it_is_written(
    spark: SparkSession, origin: Path, tmp_path: Path
) -> None:
    print(f"OMNIGRAPH_SPARK_OUTCOMES={CASES} OMNIGRAPH_SPARK_OUTCOME_SEED={SEED}")  # noqa: T201
    wrong: list[str] = []
    classic = _classic(spark)
    for seed in range(SEED, SEED + CASES):
        one = outcomes.case(seed)
        rows = [list(row) for row in one.rows]
        frame = spark.createDataFrame(rows, one.schema).coalesce(one.partitions)
        frames = dict.fromkeys(WAYS, frame)
        names = [*WAYS]
        if CASES <= FEW:
            names = [names[(seed * 3 + turn) % len(names)] for turn in range(3)]
        if classic is not None:
            names.append(WITHOUT_CONNECT)
            frames[WITHOUT_CONNECT] = classic.createDataFrame(rows, one.schema).coalesce(
                one.partitions
            )
        names = list(dict.fromkeys([*(_expected(name, one)[0] for name in names), *names]))
        ways = {**WAYS, WITHOUT_CONNECT: _one_table}
        found = {
            name: outcome(ways[name], origin, tmp_path / f"{seed}-{at}", one, frames[name])
            for at, name in enumerate(names)
        }
        for name, told in found.items():
            reference, is_refused = _expected(name, one)
            if _is_sparks_own(name, one, told) or _is_null_end(name, one, told):
                continue
            said = None
            if (len(told) == 1) != is_refused:
                said = f"{'refused' if len(told) == 1 else 'taken'}: {told}"
            elif told != found[reference]:
                said = f"not as by {reference}: {_differences(told, found[reference])}"
            if said is not None:
                wrong.append(f"seed {seed}, {name}, {said}\n  {one}")
            shutil.rmtree(tmp_path / f"{seed}-{names.index(name)}")
    assert not wrong, f"{len(wrong)} differ\n" + "\n".join(wrong[:5])


# --- tables that a write makes -------------------------------------------------------------------

New = Callable[[OmniGraph, DataFrame, dict[str, str]], object]
NEW = "node:New"
MAKERS: dict[str, New] = {
    "one table": lambda graph, frame, keys: _save(frame, graph, table=NEW, **keys),
    "upsert": lambda graph, frame, keys: _save(frame, graph, table=NEW, writeMode="merge", **keys),
    "branch": lambda graph, frame, keys: _save(frame, graph, table=NEW, branch="dev", **keys),
    "whole graph": lambda graph, frame, keys: _save(
        pack({NEW: frame}, keys=keys.get("keys")), graph
    ),
    "OmniGraph.write": lambda graph, frame, keys: graph.write({NEW: frame}, **keys),
}


IMPOSSIBLE = {
    "array(named_struct()) AS s": {},
    "struct(1 AS a, 2 AS a) AS s": {},
    "1 AS k": {"keys": "New: k"},
    "DATE'2026-01-01' AS k": {"keys": "New: k"},
}
"""A struct without fields, two fields of a name, a key of numbers, a key of dates."""


@pytest.mark.long
def test_what_no_table_can_have_is_refused_with_its_column_by_every_way_that_makes_one(
    spark: SparkSession, origin: Path, tmp_path: Path
) -> None:
    shutil.copytree(origin, tmp_path / "g")
    graph = OmniGraph.for_path(spark, str(tmp_path / "g"))
    graph.create_branch("dev")
    before = graph.history().count()
    for turn, (query, keys) in enumerate(IMPOSSIBLE.items()):
        frame = spark.sql(f"SELECT 'a' AS id, {query}")
        names = [*MAKERS]
        if CASES <= FEW:  # two ways, by turns
            names = [names[(2 * turn + at) % len(names)] for at in range(2)]
        for name in names:
            with pytest.raises((PySparkException, OmnigraphError)) as failure:
                MAKERS[name](graph, frame, keys)
            typed = from_spark(failure.value)
            assert isinstance(typed, SchemaMismatchError), (name, query, typed)
            assert re.search(rf"\b{query[-1]}\b", str(typed)), (name, query, typed)
    assert graph.history().count() == before
