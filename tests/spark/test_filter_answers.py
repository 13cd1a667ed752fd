"""One text means one thing: in `filter`, in `where`, pushed, in SQL, and in Spark without a graph.

Most of what random predicates say is answered by every surface in one query each, and by `filter`
in this process through the reader that Spark would run; some are queries of their own too:
`OMNIGRAPH_SPARK_PREDICATES` says how many, `OMNIGRAPH_SPARK_PREDICATE_SEED` which.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from functools import reduce
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from omnigraph_spark import OmniGraph
from omnigraph_spark.errors import OptionError, from_spark
from omnigraph_spark.spark import loading
from tests.conftest import PUSHDOWN

SEED = int(os.environ.get("OMNIGRAPH_SPARK_PREDICATE_SEED", "20261129"))
PREDICATES = 360
QUERIES = int(os.environ.get("OMNIGRAPH_SPARK_PREDICATES", "20"))
FEW = 100
"""Up to so many predicates are asked of one surface each, which take turns; more of every one."""
SCHEMA = (
    "id STRING, n INT, w BIGINT, y TINYINT, f FLOAT, d DOUBLE, m DECIMAL(10,2), k DECIMAL(38,18),"
    " b BOOLEAN, s STRING, day DATE, t TIMESTAMP, at TIMESTAMP, z TIMESTAMP_NTZ, l ARRAY<STRING>,"
    " o INT"
)
_ZERO = datetime(2026, 1, 1, tzinfo=timezone.utc)
_VALUES: dict[str, list[Any]] = {
    "n": [-(2**31), -3, -1, 0, 1, 5, 108, 2**31 - 1],
    "w": [-(2**63), -5, 0, 5, 2**53, 2**53 + 1, 2**63 - 1],
    "y": [-128, -1, 0, 5, 127],
    "f": [0.0, -0.0, 0.5, 0.10000000149011612, 5.0, float("nan"), float("inf"), -float("inf")],
    "d": [0.0, -0.0, 0.1, 5.0, 2.5, 1e300, float("nan"), float("inf")],
    "m": [Decimal("0.00"), Decimal("5.00"), Decimal("-2.55"), Decimal("99999999.99")],
    "k": [Decimal("0.1"), Decimal("5"), Decimal("-1.000000000000000001")],
    "b": [True, False],
    "s": ["", "S1", "5", "ann", "Ann", "a%b", "a_b", "a\nb", "é", "😀x", "it's", "null"],
    "day": [date(1582, 10, 4), date(2026, 1, 1), date(2026, 1, 5), date(9999, 12, 31)],
    "t": [_ZERO + timedelta(hours=h, microseconds=h) for h in (-9, 0, 5, 9)],
    "at": [_ZERO + timedelta(hours=h, milliseconds=h) for h in (-9, 0, 5, 9)],
    "z": [datetime(2026, 1, 1, h) for h in (0, 5, 9)],
    "l": [[], ["a"], ["a", None], [None], ["b", "a"]],
    "o": [-1, 0, 5, 108],
}
_NUMBERS = [
    "0", "5", "-1", "108", "127", "128", "-129", "2147483647", "2147483648", "-2147483648",
    "9007199254740993", "9223372036854775807", "99999999999999999999", "5.0", "2.5", "-2.55",
    "0.1", "5.001", "100000000.00", "1e0", "5e0", "1e300", "5L", "5Y", "2.5D", "0.1F", ".5",
    "16777217", "0.1BD", "NULL", "'5'", "true", "n / 2", "-o",
]  # fmt: skip
_LITERALS: dict[str, list[str]] = {
    **dict.fromkeys(("n", "w", "y", "f", "d", "m", "k"), _NUMBERS),
    "b": ["true", "FALSE", "NULL", "1", "'true'"],
    "s": ["''", "'S1'", "'ann'", '"Ann"', "'it''s'", "'é'", "'zz'", "5", "NULL", r"'a\nb'", "lower('S1')"],
    "day": ["DATE '2026-01-01'", "DATE'1582-10-04'", "'2026-01-05'", "'2026-1-5'", "NULL",
            "TIMESTAMP '2026-01-01 00:00:00+00:00'", "CAST('2026-01-05' AS DATE)", "20260101"],
    "z": ["TIMESTAMP_NTZ '2026-01-01 05:00:00'", "TIMESTAMP '2026-01-01 05:00:00'", "NULL"],
}  # fmt: skip
_LITERALS["t"] = _LITERALS["at"] = [
    "TIMESTAMP '2026-01-01 00:00:00+00:00'", "TIMESTAMP '2026-01-01 05:00:00.000005Z'",
    "TIMESTAMP '2026-01-01T14:00:00.005+09:00'", "TIMESTAMP '2026-01-01 05:00:00'",
    "'2026-01-01 05:00:00'", "'2026-01-01 05:00:00+00:00'", "DATE '2026-01-01'", "NULL",
]  # fmt: skip
_SIGNS = ["=", "<>", "<", "<=", ">", ">=", "<=>", "!=", "=="]


def _rows() -> list[tuple[Any, ...]]:
    pools = [[*values, None] for values in _VALUES.values()]
    return [
        (f"r{at:02}", *(pool[(at * 5 + at // len(pool)) % len(pool)] for pool in pools))
        for at in range(48)
    ]


def _leaf(chosen: random.Random) -> str:
    name = chosen.choice([*_VALUES])
    if name == "l":
        return chosen.choice(["l IS NULL", "l IS NOT NULL", "array_contains(l, 'a')", "l[0] = 'a'"])
    if name == "o":
        return f"n {chosen.choice(_SIGNS)} {chosen.choice(['o', 'O', 'w', 'o + 1'])}"
    literals = _LITERALS[name]
    one, other = chosen.choice(literals), chosen.choice(literals)
    column = chosen.choice([name, f"`{name}`", name.upper()])
    forms = [
        f"{column} {chosen.choice(_SIGNS)} {one}",
        f"{column} {chosen.choice(_SIGNS)} {one}",
        f"{one} {chosen.choice(_SIGNS)} {column}",
        f"{column} IN ({one}, {other})",
        f"{column} NOT IN ({one}, {other})",
        f"{column} BETWEEN {one} AND {other}",
        f"{column} NOT BETWEEN {one} AND {other}",
        f"{column} IS NULL",
        f"{column} IS NOT NULL",
        f"{column} {chosen.choice(['+', '*', '%', '/', 'div'])} 2 > {one}",
        f"cast({column} AS INT) = {one}",
        f"{column} = CASE WHEN n > 0 THEN {one} END",
    ]
    if name == "b":
        forms += ["b", "NOT b", "b IS TRUE", "b IS NOT FALSE", "(b) IS NULL"] * 2
    if name == "s":
        like = chosen.choice(["a%", "%n%", "%n", "a_b", "_", "a%b", "", "%", "__%", "A%n"])
        forms += [f"s LIKE '{like}'", f"s NOT LIKE '{like}'", "startswith(s, 'a')"] * 2
        forms += ["contains(s, 'n')", "endswith(s, '')", "s RLIKE 'a'", "lower(s) = 'ann'"]
    return chosen.choice(forms)


def _predicate(chosen: random.Random, depth: int = 0) -> str:
    if depth < 2 and chosen.random() < 0.35:
        word = chosen.choice([" AND ", " or ", " OR /* or */ "])
        return word.join(f"({_predicate(chosen, depth + 1)})" for _ in range(chosen.randint(2, 3)))
    leaf = _leaf(chosen)
    return f"NOT ({leaf})" if chosen.random() < 0.2 else leaf


@pytest.fixture(scope="module")
def source(spark_session: SparkSession) -> DataFrame:
    return spark_session.createDataFrame(_rows(), SCHEMA).coalesce(1)


@pytest.fixture(scope="module")
def graph(
    spark_session: SparkSession, source: DataFrame, tmp_path_factory: pytest.TempPathFactory
) -> OmniGraph:
    """A graph of the source's rows, and of a table that lacks most of the columns."""
    made = OmniGraph.for_path(spark_session, str(tmp_path_factory.mktemp("filter") / "g"))
    other = source.where("n IS NOT NULL").select("id", "n", "s")
    made.write({"node:A": source, "node:B": other}, types="A.at: DateTime?")
    return made


def _answered(graph: OmniGraph, text: str, table: str | None = "A") -> list[tuple[str, str]] | None:
    """Return the rows that `filter` keeps, None where it is refused."""
    asked = {"path": graph.uri, "filter": text} | ({} if table is None else {"table": table})
    load = loading.resolve(asked)
    schema = load.schema()
    try:
        reader = load.reader(schema)
    except OptionError:
        return None
    found: list[tuple[str, str]] = []
    for partition in reader.partitions():
        for batch in reader.read(partition):
            assert isinstance(batch, pa.RecordBatch)
            tables = ["node:A"] * len(batch) if table else batch.column("_table").to_pylist()
            found += zip(tables, batch.column("id").to_pylist(), strict=True)
    return sorted(found)


def _marked(frame: DataFrame, texts: list[str]) -> list[list[tuple[str, str]]]:
    """Return the rows for which each predicate is true."""
    whole = "_table" in frame.columns
    table = F.col("_table") if whole else F.lit("node:A")
    marks = [F.expr(text).alias(f"p{at}") for at, text in enumerate(texts)]
    rows = frame.select(table.alias("_t"), F.col("id").alias("_i"), *marks).collect()
    return [
        sorted((row[0], row[1]) for row in rows if row[at + 2] is True) for at in range(len(texts))
    ]


@pytest.mark.long
def test_the_same_predicate_has_the_same_answer_in_every_surface_or_is_refused(
    spark: SparkSession, graph: OmniGraph, source: DataFrame
) -> None:
    spark.conf.set("spark.sql.session.timeZone", "Asia/Tokyo")
    chosen = random.Random(SEED)
    texts = list(dict.fromkeys(_predicate(chosen) for _ in range(PREDICATES)))
    answers = {text: _answered(graph, text) for text in texts}
    kept = [text for text, rows in answers.items() if rows is not None]
    assert len(texts) > 300
    assert len(kept) > 100, f"seed {SEED}"
    plain = _marked(source, kept)
    where = _marked(graph.table("A"), kept)
    graph.table("A").createOrReplaceTempView("a")
    columns = ", ".join(f"({text}) AS p{at}" for at, text in enumerate(kept))
    told = spark.sql(f"SELECT 'node:A', id, {columns} FROM a").collect()
    for at, text in enumerate(kept):
        assert answers[text] == plain[at], f"seed {SEED}: {text}"
        assert where[at] == plain[at], f"seed {SEED}: {text}"
        sql = sorted((row[0], row[1]) for row in told if row[at + 2] is True)
        assert sql == plain[at], f"seed {SEED}: {text}"
    some = chosen.sample(kept, 60)
    for text, rows in zip(some, _marked(graph.graph(), some), strict=True):
        assert _answered(graph, text, None) == rows, f"seed {SEED}, whole graph: {text}"


Surface = Callable[[OmniGraph, str], DataFrame]


def _reader(graph: OmniGraph, **options: str) -> DataFrame:
    return graph.spark.read.format("omnigraph").options(table="A", **options).load(graph.uri)


SURFACES: dict[str, Surface] = {
    "filter": lambda graph, text: _reader(graph, filter=text),
    "where": lambda graph, text: _reader(graph).where(text),
    "pushed where": lambda graph, text: _reader(graph, pushDownFilters="true").where(text),
    "where of the graph's frame": lambda graph, text: graph.table("A").where(text),
    "where of all tables": lambda graph, text: graph.graph().where(
        f"_table = 'node:A' AND ({text})"
    ),
    "SQL": lambda graph, text: graph.spark.sql(f"SELECT * FROM answers WHERE {text}"),
}


def _asked(find: Callable[[str], DataFrame], texts: list[str]) -> dict[str, list[str] | str]:
    """Return the ids that each predicate finds, of many in one query; or the error it fails with."""
    try:
        parts = [
            find(text).select(F.lit(at).alias("at"), F.col("id")) for at, text in enumerate(texts)
        ]
        rows = reduce(DataFrame.union, parts).collect()
    except PySparkException as error:
        if len(texts) > 1:  # one of them fails: which one
            half = len(texts) // 2
            return _asked(find, texts[:half]) | _asked(find, texts[half:])
        typed = from_spark(error)
        assert isinstance(typed, PySparkException | OptionError), (texts, typed)
        return {texts[0]: typed.code if isinstance(typed, OptionError) else "Spark"}
    return {text: sorted(row.id for row in rows if row.at == at) for at, text in enumerate(texts)}


@pytest.mark.long
@pytest.mark.rounds
@pytest.mark.timeout(3600)
def test_queries_with_a_predicate_give_what_spark_gives_on_the_same_rows(
    spark: SparkSession, graph: OmniGraph, source: DataFrame
) -> None:
    print(f"OMNIGRAPH_SPARK_PREDICATES={QUERIES} OMNIGRAPH_SPARK_PREDICATE_SEED={SEED}")  # noqa: T201
    spark.conf.set("spark.sql.session.timeZone", "Asia/Tokyo")
    spark.conf.set(PUSHDOWN, "true")
    chosen = random.Random(SEED + 1)
    texts: dict[str, None] = {}
    while len(texts) < QUERIES:
        texts[_predicate(chosen)] = None
    asked = [*texts]
    expected = {
        text: ids
        for at in range(0, len(asked), 20)
        for text, ids in _asked(source.where, asked[at : at + 20]).items()
    }
    kept = [
        text for text in asked if expected[text] != "Spark"
    ]  # a row fails: each plan says which
    spark.sql(f"CREATE TABLE answers USING omnigraph OPTIONS (path '{graph.uri}', table 'A')")
    names = [name for name in SURFACES if name != "pushed where" or spark.version >= "4.1"]
    refused, wrong = 0, list[str]()
    for turn, name in enumerate(names):
        mine = kept if QUERIES > FEW else kept[turn :: len(names)]
        if name == "filter":
            mine = kept
            unanswered = [text for text in mine if _answered(graph, text) is None]
            refused = len(unanswered)
            for text in unanswered[: max(2, QUERIES // 60)]:
                assert _asked(lambda one: SURFACES["filter"](graph, one), [text]) == {
                    text: "OPTION"
                }
            mine = [text for text in mine if text not in unanswered]
            mine = mine if QUERIES > FEW else mine[: QUERIES // len(names)]
        for at in range(0, len(mine), 10):
            surface = SURFACES[name]
            found = _asked(lambda one, ask=surface: ask(graph, one), mine[at : at + 10])
            wrong += [f"{name}: {text}: {ids}, not {expected[text]}" for text, ids in found.items()
                      if ids != expected[text]]  # fmt: skip
    bare = len(asked) - len(kept)
    print(f"{len(asked)} predicates; {bare} fail in Spark, filter refuses {refused}")  # noqa: T201
    assert not wrong, f"seed {SEED}: {len(wrong)} wrong answers\n" + "\n".join(wrong[:10])
    assert len(kept) > QUERIES * 0.5


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("n / 2 > 54", "divides whole numbers"),
        ("n + 2147483647 < 0", "overflows"),
        ("cast(s as int) is null", "a cast that fails"),
        ("s::int = 5", "a cast that fails"),
        ("try_cast(s as int) is null", "cast"),
        ("t > timestamp '2026-01-01 05:00:00'", "zone of the session"),
        ("t > '2026-01-01 05:00:00'", "zone of the session"),
        ("day < timestamp '2026-01-01 00:00:00Z'", "session's zone"),
        ("n > '105'", "casts the text"),
        ("s = 5", "quotes"),
        ("w = 9007199254740993e0", "rounds"),
        ("k = 0.12345678901234567890123", "38 digits"),
        ("s RLIKE 'a'", "RLIKE"),
        ("year(day) = 2026", "function year"),
        ("s = 'a\\nb'", "escape"),
        ("lower(s) = 'ann'", "function lower"),
    ],
)
def test_what_lance_may_answer_otherwise_is_refused_with_the_reason(
    graph: OmniGraph, text: str, why: str
) -> None:
    load = loading.resolve({"path": graph.uri, "table": "A", "filter": text})
    with pytest.raises(OptionError, match=why) as failure:
        load.reader(load.schema())
    assert ".where(" in str(failure.value)


def test_decimals_and_dates_are_compared_by_their_values(graph: OmniGraph) -> None:
    for text in ("m = 5.0", "m = 5", "day > '2026-01-04'", "n > 4.5", "y < 1000"):
        assert _answered(graph, text), text


def test_a_refused_filter_reaches_the_user_of_a_frame_as_an_option_error(
    spark: SparkSession, graph: OmniGraph
) -> None:
    reader = spark.read.format("omnigraph").options(table="A", filter="n / 2 > 54")
    with pytest.raises(Exception, match="divides whole numbers") as failure:
        reader.load(graph.uri).count()
    assert isinstance(from_spark(failure.value), OptionError)
