"""Random queries over a small graph, as functions of its frames: one query, any copy of the rows."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import date, datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any

import pyarrow as pa

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PEOPLE, KNOWS, CITIES = 90, 200, 7
_NAN = float("nan")


@dataclass(frozen=True)
class Query:
    """`run` makes the query over views of `p` (people), `k` (knows), `c` (cities), `g` (the graph).

    `any_rows`: which rows come is Spark's choice, so only their number can be compared.
    """

    text: str
    run: Callable[[SparkSession, Mapping[str, str]], DataFrame]
    any_rows: bool = False


def tables(seed: int) -> dict[str, pa.Table]:
    """Return the rows of the graph: nulls, NaN, zeros of both signs, odd text, empty lists."""
    dice = random.Random(seed)
    scores = (None, _NAN, -0.0, 0.0, 1.5, -2.25, 1e300, float("inf"))
    homes = (
        None,
        {"street": None, "zip": None, "geo": None},
        {"street": "high", "zip": 3, "geo": {"x": 1.5, "y": None}},
        {"street": "low", "zip": 5, "geo": {"x": None, "y": -1.0}},
    )
    names = (None, "", "ann", "bob", "Bob", "ö'x", "bo%b", "ann ")
    zero = datetime(2024, 3, 1, tzinfo=timezone.utc)
    people = {
        "id": [f"p{at:03}" for at in range(PEOPLE)],
        "age": [dice.choice((None, *range(8))) for _ in range(PEOPLE)],
        "big": [dice.choice((None, 1 << 40, -5, 0)) for _ in range(PEOPLE)],
        "name": [dice.choice(names) for _ in range(PEOPLE)],
        "score": [dice.choice(scores) for _ in range(PEOPLE)],
        "flag": [dice.choice((None, True, False)) for _ in range(PEOPLE)],
        "born": [dice.choice((None, date(1970, 1, 1), date(2024, 2, 29))) for _ in range(PEOPLE)],
        "seen": [
            dice.choice((None, zero, zero + timedelta(microseconds=1))) for _ in range(PEOPLE)
        ],
        "tags": [dice.choice((None, [], ["a"], ["a", "b"], ["c", "a"])) for _ in range(PEOPLE)],
        "home": [dice.choice(homes) for _ in range(PEOPLE)],
        "city": [dice.choice((None, *(f"c{n}" for n in range(CITIES)))) for _ in range(PEOPLE)],
    }
    geo = pa.struct([("x", pa.float64()), ("y", pa.float64())])
    types = [
        ("id", pa.string()),
        ("age", pa.int32()),
        ("big", pa.int64()),
        ("name", pa.string()),
        ("score", pa.float64()),
        ("flag", pa.bool_()),
        ("born", pa.date32()),
        ("seen", pa.timestamp("us", "UTC")),
        ("tags", pa.list_(pa.string())),
        ("home", pa.struct([("street", pa.string()), ("zip", pa.int32()), ("geo", geo)])),
        ("city", pa.string()),
    ]
    knows = {
        "id": [f"k{at:03}" for at in range(KNOWS)],
        "src": [f"p{dice.randrange(PEOPLE):03}" for _ in range(KNOWS)],
        "dst": [f"p{dice.randrange(PEOPLE):03}" for _ in range(KNOWS)],
        "since": [dice.choice((None, *range(2000, 2006))) for _ in range(KNOWS)],
        "weight": [dice.choice(scores) for _ in range(KNOWS)],
    }
    cities = {
        "id": [f"c{at}" for at in range(CITIES)],
        "name": [f"city {at}" for at in range(CITIES)],
        "size": [dice.choice((None, 1, 2, 3)) for _ in range(CITIES)],
    }
    return {
        "p": pa.table(people, pa.schema(types)),
        "k": pa.table(knows),
        "c": pa.table(cities),
    }


_COLUMNS = {
    "p": ("id", "age", "big", "name", "score", "flag", "born", "seen", "tags", "city"),
    "k": ("id", "src", "dst", "since", "weight"),
    "c": ("id", "name", "size"),
}
_VALUES = {
    "id": ("'p003'", "'p05'", "'k010'", "'c1'"),
    "src": ("'p003'", "'p050'"),
    "dst": ("'p007'", "'p05'"),
    "age": ("0", "3", "7", "9", "2.5", "NULL"),
    "big": ("0", "1099511627776", "-5", "3"),
    "name": ("'ann'", "''", "'Bob'", "'bo%b'", "'ö''x'", "NULL"),
    "score": ("0.0D", "-0.0D", "double('NaN')", "1.5", "double('Infinity')"),
    "weight": ("0.0D", "double('NaN')", "-2.25"),
    "born": ("DATE'1970-01-01'", "DATE'2024-02-29'", "DATE'2000-01-01'"),
    "seen": ("TIMESTAMP'2024-03-01 00:00:00'", "TIMESTAMP'2024-03-01 00:00:00.000001'"),
    "city": ("'c1'", "'c3'", "'c99'"),
    "since": ("2001", "2004", "NULL"),
    "size": ("1", "2"),
}
_PREFIXES = ("'p0%'", "'%b'", "'%n%'", "'p_0%'", "'bo\\\\%b'")
_JOINS = ("JOIN", "LEFT JOIN", "RIGHT JOIN", "FULL JOIN", "LEFT SEMI JOIN", "LEFT ANTI JOIN")
_AGGREGATES = (
    "count(*)",
    "count({})",
    "count(DISTINCT {})",
    "min({})",
    "max({})",
    "count_if({} IS NULL)",
)


class _Maker:
    """Makes the texts of one query."""

    def __init__(self, dice: random.Random) -> None:
        self.dice = dice

    def column(self, table: str, alias: str, but: tuple[str, ...] = ("tags",)) -> str:
        return f"{alias}.{self.dice.choice([one for one in _COLUMNS[table] if one not in but])}"

    def some(self, table: str, alias: str, most: int = 4) -> str:
        names = self.dice.sample(
            _COLUMNS[table], self.dice.randint(1, min(most, len(_COLUMNS[table])))
        )
        return ", ".join(f"{alias}.{name}" for name in names)

    def leaf(self, table: str, alias: str) -> str:
        column = self.column(table, alias)
        name = column.partition(".")[2]
        kind = self.dice.randrange(9)
        if name == "flag":
            return self.dice.choice(
                (column, f"NOT {column}", f"{column} IS NULL", f"{column} = true")
            )
        one, other = (self.dice.choice(_VALUES[name]) for _ in range(2))
        if kind == 0:
            return f"{column} IS {self.dice.choice(('', 'NOT '))}NULL"
        if kind == 1:
            return f"{column} {self.dice.choice(('', 'NOT '))}IN ({one}, {other})"
        if kind == 2:
            return f"{column} BETWEEN {one} AND {other}"
        if kind == 3 and name in ("id", "src", "dst", "name", "city"):
            return f"{column} {self.dice.choice(('', 'NOT '))}LIKE {self.dice.choice(_PREFIXES)}"
        if kind == 4:
            return f"{column} <=> {one}"
        if kind == 5 and name in ("id", "name", "city"):
            return f"length({column}) > {self.dice.randint(0, 4)}"
        return f"{column} {self.dice.choice(('=', '<>', '<', '<=', '>', '>='))} {one}"

    def condition(self, table: str, alias: str, depth: int = 0) -> str:
        kind = self.dice.randrange(4)
        if depth < 2 and kind < 2:
            left, right = (self.condition(table, alias, depth + 1) for _ in range(2))
            return f"({left} {('AND', 'OR')[kind]} {right})"
        if depth < 2 and kind == 2 and self.dice.random() < 0.3:
            return f"NOT ({self.condition(table, alias, depth + 1)})"
        return self.leaf(table, alias)

    def where(self, table: str, alias: str) -> str:
        return f" WHERE {self.condition(table, alias)}" if self.dice.random() < 0.7 else ""

    def aggregate(self, table: str, alias: str) -> str:
        return self.dice.choice(_AGGREGATES).format(self.column(table, alias))

    def key(self, table: str, alias: str) -> str:
        return self.column(table, alias, ("tags", "score", "weight"))


def _select(make: _Maker) -> str:
    table = make.dice.choice("pkc")
    distinct = make.dice.choice(("", "", "DISTINCT "))
    return f"SELECT {distinct}{make.some(table, 'a')} FROM {{{table}}} a{make.where(table, 'a')}"


def _grouped(make: _Maker) -> str:
    table = make.dice.choice("pkc")
    keys = [make.key(table, "a") for _ in range(make.dice.randint(0, 2))]
    keys = [*dict.fromkeys(keys)]
    how = make.dice.choice(("{}", "{}", "ROLLUP({})", "CUBE({})"))
    grouped = f" GROUP BY {how.format(', '.join(keys))}" if keys else ""
    having = " HAVING count(*) > 1" if keys and make.dice.random() < 0.3 else ""
    chosen = [*keys, *(f"{make.aggregate(table, 'a')} AS x{n}" for n in range(2))]
    return f"SELECT {', '.join(chosen)} FROM {{{table}}} a{make.where(table, 'a')}{grouped}{having}"


_NUMBERS = {"p": ("age", "big", "score"), "k": ("since", "weight"), "c": ("size",)}


def _summed(make: _Maker) -> str:
    """Sums, least and greatest values, and what is distinct: what a scan can aggregate in part."""
    table = make.dice.choice("pkc")
    number = f"a.{make.dice.choice(_NUMBERS[table])}"
    key = make.key(table, "a")
    chosen = make.dice.choice(
        (
            f"sum({number}) AS s",
            f"sum({number}) + 1 AS s, max({key}) AS m",
            f"sum({number}) AS s, min({number}) AS m",
            f"min({key}) AS l, max({key}) AS m",
            f"count(DISTINCT {key}) AS n, sum({number}) AS s",
            f"sum(DISTINCT {number}) AS s, max({key}) AS m",
            f"sum({number}) AS s, count({key}) AS n",
            f"max({key}) FILTER (WHERE {make.leaf(table, 'a')}) AS m, sum({number}) AS s",
            f"sum({number}) FILTER (WHERE {make.leaf(table, 'a')}) AS s",
            f"sum({number}) AS s, max(length(cast({key} AS string))) AS m",
        )
    )
    grouping = make.dice.choice(("", make.key(table, "a"), make.key(table, "a"), f"{key} IS NULL"))
    shown = f"{grouping} AS k, {chosen}" if grouping else chosen
    having = " HAVING max(a.id) > 'c'" if grouping and make.dice.random() < 0.2 else ""
    grouped = f" GROUP BY {grouping}" if grouping else ""
    inner = f"SELECT {shown} FROM {{{table}}} a{make.where(table, 'a')}{grouped}{having}"
    return make.dice.choice((inner, inner, f"{inner} UNION ALL {inner}"))


def _joined(make: _Maker) -> str:
    how = make.dice.choice(_JOINS)
    on = make.dice.choice(
        ("a.id = b.src", "a.id = b.dst", "a.id = b.src AND a.age < b.since - 2000")
    )
    shown = make.some("p", "a")
    if "SEMI" not in how and "ANTI" not in how:
        shown += ", " + ", ".join(
            f"{one} AS {one.replace('.', '_')}" for one in make.some("k", "b").split(", ")
        )
    return f"SELECT {shown} FROM {{p}} a {how} {{k}} b ON {on}{make.where('p', 'a')}"


def _self_joined(make: _Maker) -> str:
    how = make.dice.choice(_JOINS[:4])
    on = make.dice.choice(
        ("a.city = b.city AND a.age = b.age", "a.id = b.id", "a.age < b.age AND a.name = b.name")
    )
    left, right = make.column("p", "a"), make.column("p", "b")
    return (
        f"SELECT {left} AS l, {right} AS r, count(*) AS n FROM {{p}} a {how} {{p}} b ON {on}"
        f" AND {make.condition('p', 'b', 2)}{make.where('p', 'a')} GROUP BY {left}, {right}"
    )


def _window(make: _Maker) -> str:
    key, order = make.key("p", "a"), make.key("p", "a")
    function = make.dice.choice(
        ("row_number()", "rank()", f"max({make.column('p', 'a')})", "count(*)", "lag(a.id)")
    )
    inner = f"SELECT {make.some('p', 'a')}, {function} OVER (PARTITION BY {key} ORDER BY {order}, a.id) AS w FROM {{p}} a{make.where('p', 'a')}"
    if make.dice.random() < 0.4 and ("row_number" in inner or "rank()" in inner):
        return f"SELECT * FROM ({inner}) t WHERE w <= 2"
    return inner


def _union(make: _Maker) -> str:
    how = make.dice.choice(("UNION ALL", "UNION", "EXCEPT", "INTERSECT", "EXCEPT ALL"))
    text = ("id", "name", "city")
    one, other = make.dice.choice(text), make.dice.choice(text)
    left = f"SELECT a.{one} AS t, a.age AS n FROM {{p}} a{make.where('p', 'a')}"
    right = make.dice.choice(
        (
            f"SELECT b.{other}, b.age FROM {{p}} b{make.where('p', 'b')}",
            f"SELECT b.src, b.since FROM {{k}} b{make.where('k', 'b')}",
            f"SELECT b.name, b.size FROM {{c}} b{make.where('c', 'b')}",
        )
    )
    outer = make.dice.choice(
        ("{}", "SELECT n FROM ({}) u", "SELECT count(*) AS m, max(t) AS t FROM ({}) u")
    )
    return outer.format(f"({left}) {how} ({right})")


def _scalar(make: _Maker) -> str:
    inner = f"(SELECT {make.dice.choice(('max', 'min'))}(b.since) FROM {{k}} b WHERE b.src = a.id)"
    plain = f"(SELECT count(*) FROM {{k}} b{make.where('k', 'b')})"
    return (
        f"SELECT {make.some('p', 'a', 2)}, {make.dice.choice((inner, plain))} AS s FROM {{p}} a"
        f" WHERE a.age >= (SELECT min(b.age) + {make.dice.randint(0, 3)} FROM {{p}} b{make.where('p', 'b')})"
    )


def _in_subquery(make: _Maker) -> str:
    test = make.dice.choice(
        (
            f"a.id IN (SELECT b.src FROM {{k}} b{make.where('k', 'b')})",
            f"a.id NOT IN (SELECT b.dst FROM {{k}} b{make.where('k', 'b')})",
            f"a.city IN (SELECT b.id FROM {{c}} b{make.where('c', 'b')})",
            f"a.city NOT IN (SELECT b.city FROM {{p}} b WHERE {make.condition('p', 'b')})",
            f"EXISTS (SELECT 1 FROM {{k}} b WHERE b.src = a.id AND {make.condition('k', 'b')})",
            f"NOT EXISTS (SELECT 1 FROM {{k}} b WHERE b.dst = a.id AND {make.condition('k', 'b')})",
            f"EXISTS (SELECT 1 FROM {{k}} b WHERE b.src = a.id) OR {make.leaf('p', 'a')}",
        )
    )
    return f"SELECT {make.some('p', 'a')} FROM {{p}} a WHERE {test} AND {make.condition('p', 'a')}"


def _cte(make: _Maker) -> str:
    left, right = make.column("p", "l"), make.column("p", "r")
    use = make.dice.choice(
        (
            f"SELECT {left} AS l, {right} AS r FROM w l JOIN w r ON l.id = r.id AND {make.condition('p', 'r')}",
            f"SELECT count({left}) AS n FROM w l UNION ALL SELECT count({right}) FROM w r WHERE {make.condition('p', 'r')}",
            f"SELECT l.id FROM w l WHERE l.age = (SELECT max(r.age) FROM w r WHERE {make.condition('p', 'r')})",
            f"SELECT count(*) AS n, max({left}) AS m FROM w l",
        )
    )
    return f"WITH w AS (SELECT * FROM {{p}} a{make.where('p', 'a')}) {use}"


def _sorted(make: _Maker) -> str:
    table = make.dice.choice("pk")
    ways = ("ASC", "DESC NULLS LAST", "DESC", "ASC NULLS LAST", "DESC NULLS FIRST")
    keys = [make.column(table, "a") for _ in range(make.dice.randint(1, 2))]
    order = ", ".join(f"{key} {make.dice.choice(ways)}" for key in [*keys, "a.id"])
    offset = f" OFFSET {make.dice.randint(1, 5)}" if make.dice.random() < 0.3 else ""
    return (
        f"SELECT {make.some(table, 'a')} FROM {{{table}}} a{make.where(table, 'a')}"
        f" ORDER BY {order} LIMIT {make.dice.randint(0, 9)}{offset}"
    )


def _nested(make: _Maker) -> str:
    inner = f"SELECT *, length(a.name) AS n FROM {{p}} a{make.where('p', 'a')} ORDER BY a.id LIMIT {make.dice.randint(1, 50)}"
    return f"SELECT {make.some('p', 't')}, t.n FROM ({inner}) t{make.where('p', 't')}"


def _exploded(make: _Maker) -> str:
    how = make.dice.choice(("LATERAL VIEW explode", "LATERAL VIEW OUTER explode"))
    return make.dice.choice(
        (
            f"SELECT {make.some('p', 'a')}, tag FROM {{p}} a {how}(a.tags) x AS tag{make.where('p', 'a')}",
            f"SELECT tag, count(*) AS n FROM {{p}} a {how}(a.tags) x AS tag{make.where('p', 'a')} GROUP BY tag",
            f"SELECT get(a.tags, 0) AS t, size(a.tags) AS n FROM {{p}} a WHERE array_contains(a.tags, 'a') OR {make.leaf('p', 'a')}",
        )
    )


def _structured(make: _Maker) -> str:
    where = make.where("p", "a")
    return make.dice.choice(
        (
            f"SELECT a.home.zip AS z, a.home.geo.x AS x FROM {{p}} a{where}",
            f"SELECT a.home.street AS s, count(*) AS n, max(a.home.geo.y) AS y FROM {{p}} a{where} GROUP BY 1",
            f"SELECT a.id, b.home.zip FROM {{p}} a LEFT JOIN {{p}} b ON a.home.zip = b.age AND {make.leaf('p', 'b')}{where}",
            f"SELECT a.id, a.home.zip FROM {{p}} a{where} ORDER BY a.home.zip DESC, a.id LIMIT 7",
            f"SELECT a.home, a.home.zip AS z FROM {{p}} a{where}",
            f"SELECT a.id FROM {{p}} a WHERE a.home IS NULL OR a.home.zip > 3 AND {make.leaf('p', 'a')}",
            f"SELECT a.home.geo AS g, {make.some('p', 'a')} FROM {{p}} a WHERE a.home.zip IS NOT NULL",
            f"SELECT coalesce(a.home, named_struct('street', 'x', 'zip', 1, 'geo', NULL)).zip AS z FROM {{p}} a{where}",
            f"SELECT t.h.zip AS z, t.h.street FROM (SELECT a.home AS h FROM {{p}} a{where}) t",
            f"SELECT a.home.zip AS z FROM {{p}} a{where} UNION ALL SELECT b.age FROM {{p}} b",
        )
    )


def _pivot(make: _Maker) -> str:
    return (
        f"SELECT * FROM (SELECT a.city, a.flag, a.age FROM {{p}} a{make.where('p', 'a')})"
        " PIVOT (count(age) AS n, max(age) AS m FOR flag IN (true AS t, false AS f))"
    )


def _values(make: _Maker) -> str:
    ids = ", ".join(f"('p{make.dice.randrange(PEOPLE + 5):03}', {n})" for n in range(4))
    how = make.dice.choice(_JOINS[:4])
    column = make.dice.choice(("src", "dst"))
    return f"SELECT b.{column}, b.since, v.n FROM {{k}} b {how} (VALUES {ids}) v(id, n) ON b.{column} = v.id{make.where('k', 'b')}"


def _neighbours(make: _Maker) -> str:
    return (
        f"SELECT a.id, b.dst, c.age FROM {{p}} a JOIN {{k}} b ON a.id = b.src JOIN {{p}} c ON b.dst = c.id"
        f" WHERE a.id IN ('p001', 'p017', 'p0{make.dice.randint(20, 89)}') AND {make.condition('p', 'c')}"
    )


def _whole(make: _Maker) -> str:
    test = make.dice.choice(
        (
            "_table = 'node:P'",
            "_table IN ('edge:K', 'node:C')",
            "_table <> 'edge:K'",
            "age > 3",
            "src IS NOT NULL",
            "_table LIKE 'node:%'",
        )
    )
    return make.dice.choice(
        (
            "SELECT _table, count(*) AS n FROM {g} GROUP BY _table",
            f"SELECT _table, count(*) AS n, max(age) AS m FROM {{g}} WHERE {test} GROUP BY _table",
            f"SELECT id, age, since FROM {{g}} WHERE {test}",
            f"SELECT count(*) AS n FROM {{g}} WHERE {test}",
            f"SELECT a.id, b.since FROM {{g}} a JOIN {{g}} b ON a.id = b.src WHERE a.{test.replace('src IS NOT NULL', 'age = 1')}",
        )
    )


_SHAPES: tuple[Callable[[_Maker], str], ...] = (
    _select,
    _select,
    _grouped,
    _grouped,
    _summed,
    _summed,
    _joined,
    _joined,
    _self_joined,
    _window,
    _union,
    _scalar,
    _in_subquery,
    _in_subquery,
    _cte,
    _cte,
    _sorted,
    _nested,
    _exploded,
    _structured,
    _structured,
    _pivot,
    _values,
    _neighbours,
    _whole,
)


def query(seed: int) -> Query:
    """Return the query of a seed: three of four are SQL, the others are built from frames."""
    dice = random.Random(seed)
    make = _Maker(dice)
    if dice.random() < 0.75:
        text = dice.choice(_SHAPES)(make)
        return Query(text, lambda spark, names: spark.sql(text.format(**names)))
    return _frames(make)


def _frames(make: _Maker) -> Query:
    from pyspark.sql import functions as sf
    from pyspark.sql.types import IntegerType

    dice = make.dice
    where = make.condition("p", "a").replace("a.", "")
    key = make.key("p", "a").partition(".")[2]
    other = make.column("p", "a").partition(".")[2]
    count = dice.randint(1, 20)

    def long(text):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202
        """Spark reads the hints of a UDF, and has others in mind."""
        return -1 if text is None else len(str(text))

    def people(spark: Any, names: Mapping[str, str]) -> Any:
        return spark.table(names["p"])

    def udf(spark: Any, names: Mapping[str, str]) -> Any:
        length = sf.udf(long, IntegerType(), useArrow=False)
        return (
            people(spark, names)
            .where(where)
            .where(length(other) > 1)
            .select("id", length(key).alias("n"))
        )

    def joined(spark: Any, names: Mapping[str, str]) -> Any:
        left = people(spark, names).where(where)
        right = people(spark, names).groupBy("city").agg(sf.max(other).alias("most"))
        return left.join(right, "city", dice_how).select("id", "most")

    dice_how = (
        dice.choice(("inner", "left", "full", "left_semi")) if dice.random() < 0.8 else "inner"
    )
    if dice_how == "left_semi":
        dice_how = "right"
    made: dict[str, Callable[[Any, Mapping[str, str]], Any]] = {
        "udf": udf,
        "joined": joined,
        "dropDuplicates": lambda s, n: people(s, n).where(where).select(key).dropDuplicates([key]),
        "withColumn": lambda s, n: (
            people(s, n)
            .withColumn("age", sf.col("age") + 1)
            .where(where)
            .select("id", "age", other if other != "age" else "id")
            .toDF("a", "b", "c")
        ),
        "drop": lambda s, n: people(s, n).where(where).drop(key, "tags"),
        "na": lambda s, n: (
            people(s, n).na.fill({"age": -1, "name": "?"}).where(where).select("id", "age", "name")
        ),
        "dropna": lambda s, n: people(s, n).na.drop(subset=["age", key]).select("id"),
        "pivot": lambda s, n: (
            people(s, n)
            .where(where)
            .groupBy("city")
            .pivot("flag", [True, False])
            .agg(sf.count(other))
        ),
        "cube": lambda s, n: people(s, n).cube("city", "flag").agg(sf.count("*"), sf.max(other)),
        "collect": lambda s, n: (
            people(s, n)
            .where(where)
            .groupBy(key)
            .agg(sf.sort_array(sf.collect_list("id")).alias("ids"))
        ),
        "struct": lambda s, n: (
            people(s, n)
            .select(sf.struct("id", sf.col(key).alias("k"), sf.col("age").alias("n")).alias("s"))
            .where("s.n > 1")
            .select("s.id", "s.k")
        ),
        "union": lambda s, n: (
            people(s, n)
            .where(where)
            .select("id", "age")
            .unionByName(s.table(n["k"]).select(sf.col("since").alias("age"), "id"))
            .groupBy("age")
            .count()
        ),
        "repartition": lambda s, n: (
            people(s, n).repartition(2, key).where(where).agg(sf.count(other), sf.count("*"))
        ),
        "sorted": lambda s, n: (
            people(s, n).where(where).sort(sf.desc(key), "id").limit(count).select("id")
        ),
        "limit": lambda s, n: (
            people(s, n).where(where).limit(count).select("id", other).toDF("a", "b")
        ),
        "tail": lambda s, n: s.table(n["k"]).where("since > 2001").limit(count).agg(sf.count("*")),
        "graph": lambda s, n: s.table(n["g"]).where("_table = 'node:P'").where(where).select("id"),
    }
    name = dice.choice(sorted(made))
    return Query(
        f"{name} where {where} key {key} other {other} count {count} {dice_how}",
        made[name],
        name == "limit",
    )
