"""Bind catalog tables of Spark SQL to a graph, through the metadata of their fields.

After CREATE TABLE Spark hands a Python source no options any more; what survives is the metadata of
the fields that `schema()` returned (fact 1). So each field of a catalog table carries the options
of CREATE TABLE, without secrets (`field_metadata.bind`). Here is what may be bound, and what may be
read and written through a binding. All of it runs on the driver and changes nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING

from pyspark.sql.types import StructType

from omnigraph_spark._redaction import is_secret, redact
from omnigraph_spark.errors import OptionError, SchemaMismatchError, UnsupportedError
from omnigraph_spark.spark import ddl, field_metadata

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from omnigraph_spark.write.plan import WritePlan

_log = logging.getLogger(__name__)
_STORAGE = "storage."
_PER_WRITE = ("expectedtableversions", "txnappid", "txnversion")
_PINS = ("versionasof", "timestampasof")
_PARTS = ("filter", "metadata", "metadatacolumns", "readchangefeed")
_READ_TUNING = ("columns", "maxpartitionbytes", "batchsize")
_EXAMPLE = (
    "CREATE TABLE people USING omnigraph OPTIONS (path '/path/of/the/graph', table 'node:Person')"
)


def is_create_table(options: Mapping[str, str]) -> bool:
    """Return whether `schema()` runs for CREATE TABLE: nothing else gives the option `provider`."""
    return "provider" in {key.lower() for key in options}


def create_options(options: Mapping[str, str]) -> dict[str, str]:
    """Return what CREATE TABLE's OPTIONS clause and its path say, keys in lower case.

    Spark mixes TBLPROPERTIES, the comment and its own keys into the map; each key of the OPTIONS
    clause but the path is there a second time as `option.<key>`.

    Raises:
        OptionError: no path; a secret, which Spark would store in its catalog as plain text; an
            option that belongs to one write.
    """
    lowered = {key.lower(): value for key, value in options.items()}
    _refuse_secrets(lowered)
    prefix = "option."
    given = {key[len(prefix) :]: value for key, value in lowered.items() if key.startswith(prefix)}
    path = lowered.get("path") or lowered.get("location")
    if not path:
        raise OptionError("CREATE TABLE names no path", hint=f"Write: {_EXAMPLE}")
    for name in _PER_WRITE:
        if name in given:
            raise OptionError(
                f"Option {name} belongs to one write, and a catalog table would repeat it",
                hint="Leave it out, and give it to the DataFrame writer where it is needed",
            )
    if "pushdownfilters" in given:
        raise OptionError(
            "Option pushDownFilters is for a frame that one query uses once",
            hint="Leave it out of CREATE TABLE: one statement may scan a table twice",
        )
    return {**given, "path": _literal(path)}


def _literal(path: str) -> str:
    """Return the path that Spark's `file:` URI means: Spark decodes nothing and encodes nothing."""
    return path[len("file:") :] if path.startswith("file:/") else path


def _refuse_secrets(lowered: Mapping[str, str]) -> None:
    for key, value in lowered.items():
        name = key.removeprefix("option.")
        if is_secret(name) or redact(value) != value:
            raise OptionError(
                f"Option {name} holds a secret, and Spark's catalog keeps options as plain text",
                hint="Set it in the environment of the driver and the executors "
                "(AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, …); nothing was stored",
            )


def read_options(schema: StructType) -> dict[str, str]:
    """Return the options of the catalog table that a reader is for; Spark gave it none.

    Raises:
        UnsupportedError: the table has no binding (it was created with a column list).
    """
    bound = field_metadata.bound_options(schema)
    if bound is None:
        raise _unbound(schema)
    return bound


def write_options(schema: StructType) -> dict[str, str]:
    """Return the write options of the catalog table that an INSERT is for; Spark gave it none.

    Raises:
        UnsupportedError: no complete binding arrived (CREATE TABLE AS SELECT, `saveAsTable`, a
            column list in CREATE TABLE), the query's arrived (an INSERT of a table into itself), or
            the table is pinned to a version or shows only a part of its rows.
    """
    bound = field_metadata.bound_options_for_write(schema)
    if bound is None:
        raise _unbound(schema)
    for name in (*_PINS, *_PARTS):
        if name in bound:
            reason = (
                "is pinned to a version" if name in _PINS else "isn't a whole table of the graph"
            )
            raise UnsupportedError(
                f"This catalog table {reason} (option {name}), so nothing is written through it",
                hint="Write through a table that is created without that option",
            )
    return {key: value for key, value in bound.items() if key not in (*_READ_TUNING, "schema")}


def declared_columns(schema: StructType) -> StructType | None:
    """Return the columns that CREATE TABLE declared by the option `schema`, None where it didn't.

    Raises:
        OptionError: the option is malformed.
    """
    text = (field_metadata.bound_options(schema) or {}).get("schema")
    return None if text is None else ddl.parse_columns(text)


def recreate(bound: Mapping[str, str]) -> str:
    """Return the statements that give a catalog table the columns of the graph as they are now."""
    given = {key: value for key, value in bound.items() if key not in ("schema", "path")}
    listed = "".join(
        f", {key if key.isidentifier() else _quoted(key)} {_literal_of(value)}"
        for key, value in sorted(given.items())
    )
    return (
        "Create the catalog table again: DROP TABLE t; CREATE TABLE t USING omnigraph OPTIONS "
        f"(path {_literal_of(bound.get('path', ''))}{listed}). DROP TABLE leaves the graph as it is"
    )


def changed(error: SchemaMismatchError, bound: Mapping[str, str]) -> SchemaMismatchError:
    """Return the error of a catalog table whose columns aren't the graph's (any more)."""
    return SchemaMismatchError(
        f"The columns of this catalog table aren't those of the graph: {error.what}",
        expected=error.expected,
        found=error.found,
        hint=recreate(bound),
        table_key=error.details.get("table_key"),
        column=error.details.get("column"),
    )


def create_tables(
    spark: SparkSession,
    uri: str,
    given: Mapping[str, str],
    database: str | None,
    names: Mapping[str, str],
) -> dict[str, str]:
    """Make one catalog table per table of a graph; `names` are theirs by table key.

    Raises:
        OptionError: a table of that name is there and isn't of this graph; nothing was made.
        AnalysisException: with the typed error's text.
    """
    places = {
        key: ".".join(_quoted(part) for part in (database, name) if part is not None)
        for key, name in names.items()
    }
    options = {key: {"path": uri, "table": key, **given} for key in names}
    existing = {key: _columns_there(spark, identifier) for key, identifier in places.items()}
    for key, columns in existing.items():
        bound = None if columns is None else field_metadata.bound_options(columns)
        if columns is not None and (bound is None or bound.get("path") != uri):
            raise OptionError(
                f"{places[key]} is there already, and is not a catalog table of this graph",
                expected="a name that is free, or that this method made before",
                hint="Give a prefix or another database; nothing was made",
            )
    for key, identifier in places.items():
        old = existing[key]
        if old is not None:
            if _is_current(spark, old, options[key]):
                continue
            spark.sql(f"DROP TABLE {identifier}")
        listed = ", ".join(f"`{name}` {_literal_of(text)}" for name, text in options[key].items())
        spark.sql(f"CREATE TABLE {identifier} USING omnigraph OPTIONS ({listed})")
    return places


def _columns_there(spark: SparkSession, identifier: str) -> StructType | None:
    return spark.table(identifier).schema if spark.catalog.tableExists(identifier) else None


def _is_current(spark: SparkSession, existing: StructType, options: Mapping[str, str]) -> bool:
    """Return whether a catalog table has the options and columns that it would be made with now."""
    bound = field_metadata.bound_options(existing) or {}
    if bound != {key.lower(): value for key, value in options.items()}:
        return False
    given = {key: value for key, value in options.items() if key != "path"}
    now = spark.read.format("omnigraph").options(**given).load(options["path"]).schema
    return [(f.name, f.dataType) for f in now] == [(f.name, f.dataType) for f in existing]


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def _literal_of(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


_warned: set[tuple[str, ...]] = set()


def warn_of_unseen(bound: Mapping[str, str], shown: Sequence[str], there: Sequence[str]) -> None:
    """Say once per process which properties a catalog table lacks that its table has."""
    unseen = [name for name in there if name not in shown]
    mark = (bound.get("path", ""), bound.get("table", ""), *unseen)
    if unseen and "columns" not in bound and mark not in _warned:
        _warned.add(mark)
        _log.warning(
            "A catalog table of %s doesn't show %s, which the graph has got since. %s",
            bound.get("table", bound.get("path")),
            ", ".join(unseen),
            recreate(bound),
        )


def refuse_unseen(plan: WritePlan, seen: Mapping[str, Collection[str]], schema: StructType) -> None:
    """Refuse an overwrite through a catalog table that would null properties it doesn't show.

    `seen` are the columns of each table of the write that the catalog table shows.

    Raises:
        SchemaMismatchError: names the table, its columns, and the statements that mend it.
    """
    # Not above: readers and planners import this module, and none of what plans a write.
    from omnigraph_spark.write.plan import OVERWRITE

    for key, target in plan.targets.items():
        unseen = [name for name in target.schema.names if name not in seen[key]]
        if target.mode == OVERWRITE and unseen:
            raise SchemaMismatchError(
                f"INSERT OVERWRITE would empty {', '.join(unseen)} of {key}, which this catalog"
                " table doesn't show",
                expected=f"all of {', '.join(target.schema.names)}",
                found=", ".join(seen[key]),
                hint=recreate(field_metadata.bound_options(schema) or {}),
                table_key=key,
                column=unseen[0],
            )


def _unbound(schema: StructType) -> UnsupportedError:
    if any(field_metadata.TABLE in field.metadata for field in schema):
        reason = "The columns that arrived aren't those of one catalog table"
    else:
        reason = "No path arrived: Spark hands none over for this statement"
    columns = ", ".join(f"{f.name} {f.dataType.simpleString().upper()}" for f in schema)[:300]
    return UnsupportedError(
        reason,
        expected="a table that was created without a column list, and not changed since",
        found="CREATE TABLE … (columns) or … AS SELECT, saveAsTable, or save without a path",
        hint=f"Write: {_EXAMPLE} (for a table that isn't in the graph yet with one more option, "
        f"schema '{columns}'), then INSERT INTO it. Outside SQL use .load(path) and .save(path)",
    )
