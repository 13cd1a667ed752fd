"""Frames that narrow themselves when an action runs, and a session that gives such frames.

A subclass of Spark's classic frame: what makes a frame of it makes one of its own kind, what runs a
job runs the narrowed query instead. Spark's own classes stay as they are. Frames that Spark makes
by itself (a query over a view, a plain frame joined with this one) are plain: for them `narrow`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import wraps
from typing import TYPE_CHECKING, Any

from pyspark.sql import DataFrame, DataFrameReader, SparkSession
from pyspark.sql.classic.dataframe import DataFrame as ClassicDataFrame
from pyspark.sql.group import GroupedData

from omnigraph_spark.errors import OptionError
from omnigraph_spark.narrowing.narrow import narrow

if TYPE_CHECKING:
    from pyspark import RDD
    from pyspark.sql import DataFrameWriter, Row

_ACTIONS = (
    "collect",
    "explain",
    "foreach",
    "foreachPartition",
    "localCheckpoint",
    "checkpoint",
    "mergeInto",
    "tail",
    "toArrow",
    "toJSON",
    "toLocalIterator",
    "toPandas",
    "writeTo",
)
"""What runs a job, or makes what does: done by the narrowed frame."""


def narrowing(frame: DataFrame) -> DataFrame:
    """Return a classic frame as one that narrows itself; any other frame as it is."""
    if type(frame) is ClassicDataFrame:
        return NarrowingFrame(frame._jdf, frame.sparkSession)
    return frame


def built(made: object) -> DataFrame:
    """Return the frame that a user's function made as one that narrows itself.

    Raises:
        OptionError: it made something else.
    """
    if not isinstance(made, DataFrame):
        raise OptionError(
            "A query is a frame of the tables",
            expected="a DataFrame from the function that builds the query",
            found=type(made).__name__,
        )
    return narrowing(made)


def enable_narrowing(spark: SparkSession) -> SparkSession:
    """Return the same session in a form whose `sql`, `table` and `read` give narrowing frames.

    The session that is given stays as it is. On the driver; changes nothing in Spark. A session of
    Spark Connect comes back as it was.
    """
    if type(spark) is not SparkSession:
        return spark
    return NarrowingSession(spark.sparkContext, spark._jsparkSession)


def sql_over(
    spark: SparkSession,
    views: Mapping[str, DataFrame],
    text: str,
    args: Mapping[str, Any] | list[Any] | None,
) -> DataFrame | None:
    """Return a query over frames by name, which nobody else sees; None under Spark Connect.

    Raises:
        AnalysisException, ParseException: the query is wrong.
    """
    if type(spark).__module__.startswith("pyspark.sql.connect"):
        return None
    from omnigraph_spark.narrowing import catalyst

    return narrowing(catalyst.sql_over(spark, views, text, args))


class NarrowingFrame(ClassicDataFrame):
    """A frame whose actions read what they need; see `narrow`."""

    def narrowed(self) -> DataFrame:
        """Return the plain frame that an action would run; see `narrow`."""
        return narrow(ClassicDataFrame(self._jdf, self.sparkSession))

    def count(self) -> int:
        """Return the number of rows, from the tables' own counts where nothing is in the way."""
        return int(self.groupBy().count().collect()[0][0])

    def isEmpty(self) -> bool:
        """Return whether there are no rows; one row at most is read."""
        return not self.take(1)

    def take(self, num: int) -> list[Row]:
        """Return the first rows; `num` rows at most are read."""
        rows: list[Row] = self.limit(num).collect()
        return rows

    def show(self, n: int = 20, truncate: bool | int = True, vertical: bool = False) -> None:
        """Print the first rows; one more than those at most is read."""
        shown = self.limit(n + 1) if isinstance(n, int) and not isinstance(n, bool) else self
        assert isinstance(shown, NarrowingFrame)
        shown.narrowed().show(n, truncate, vertical)

    @property
    def write(self) -> DataFrameWriter:
        """Return the writer of the narrowed frame."""
        return self.narrowed().write

    @property
    def rdd(self) -> RDD[Row]:
        """Return the rows of the narrowed frame."""
        return self.narrowed().rdd


class NarrowingGroups(GroupedData):
    """Groups of a narrowing frame: what they are aggregated to narrows itself."""


class NarrowingReader(DataFrameReader):
    """A reader of narrowing frames."""

    def load(self, *args: Any, **kwargs: Any) -> DataFrame:
        """Load as Spark does; the frame narrows itself."""
        return narrowing(super().load(*args, **kwargs))

    def table(self, tableName: str) -> DataFrame:
        """Read a table as Spark does; the frame narrows itself."""
        return narrowing(super().table(tableName))


class NarrowingSession(SparkSession):
    """A session whose frames narrow themselves; see `enable_narrowing`."""

    @property
    def read(self) -> DataFrameReader:
        """Return a reader of narrowing frames."""
        return NarrowingReader(self)

    def sql(self, *args: Any, **kwargs: Any) -> DataFrame:
        """Run a statement as Spark does; the frame narrows itself."""
        return narrowing(super().sql(*args, **kwargs))

    def table(self, tableName: str) -> DataFrame:
        """Read a table or view as Spark does; the frame narrows itself."""
        return narrowing(super().table(tableName))


def _of_own_kind(made: Any, session: SparkSession) -> Any:
    """Return what a method made, frames and groups as those that narrow themselves."""
    if type(made) is ClassicDataFrame:
        return NarrowingFrame(made._jdf, session)
    if type(made) is GroupedData:
        return NarrowingGroups(made._jgd, NarrowingFrame(made._df._jdf, session))
    if isinstance(made, list):
        return [_of_own_kind(element, session) for element in made]
    return made


def _acting(name: str) -> Callable[..., Any]:
    @wraps(getattr(ClassicDataFrame, name))
    def act(self: NarrowingFrame, *args: Any, **kwargs: Any) -> Any:
        return getattr(self.narrowed(), name)(*args, **kwargs)

    return act


def _making(method: Callable[..., Any], session_of: Callable[[Any], SparkSession]) -> Any:
    @wraps(method)
    def make(self: Any, *args: Any, **kwargs: Any) -> Any:
        return _of_own_kind(method(self, *args, **kwargs), session_of(self))

    return make


def _wrap() -> None:
    """Give the subclasses their methods: actions by name, all other public methods wrapped."""
    for name in _ACTIONS:
        if hasattr(ClassicDataFrame, name):
            setattr(NarrowingFrame, name, _acting(name))
    for base, own, session_of in (
        (ClassicDataFrame, NarrowingFrame, lambda frame: frame.sparkSession),
        (GroupedData, NarrowingGroups, lambda groups: groups.session),
    ):
        for name, method in vars(base).items():
            public = not name.startswith("_") or name == "__getitem__"
            if public and callable(method) and name not in vars(own):
                setattr(own, name, _making(method, session_of))


_wrap()
