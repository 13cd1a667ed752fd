"""What `OmniGraph` offers for queries over one snapshot; every method is one call below."""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any, cast

from omnigraph_spark.errors import UnsupportedError
from omnigraph_spark.refs import times
from omnigraph_spark.storage import layout

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from omnigraph_spark.graph import OmniGraph
    from omnigraph_spark.manifest.snapshot import Snapshot
    from omnigraph_spark.storage.store import Storage

_WORD = re.compile(r"\w+")


class QueryMethods:
    """A part of `OmniGraph`, in a class of its own for its length."""

    @abstractmethod
    def _store(self) -> Storage: ...

    def sql(
        self,
        text: str,
        args: Mapping[str, Any] | list[Any] | None = None,
        *,
        branch: str | None = None,
        version: int | str | datetime | None = None,
    ) -> DataFrame:
        """Return a query over the tables of one snapshot; it reads what it needs (`narrow`).

        >>> graph.sql("SELECT p.age FROM Person p JOIN Knows k ON k.src = p.id")  # doctest: +SKIP

        A table's name is its type's; where a node and an edge type share one, `node_Name` and
        `edge_Name`. Views of the session are there too, unless a type has the same name; none is
        made in the session. `args` are the query's parameters, as in `SparkSession.sql`. Nothing is
        evaluated before the frame is used. Runs on the driver.

        Raises:
            AnalysisException: the query is wrong, with the typed error's text where a table is.
            BranchNotFoundError, VersionNotFoundError, GraphNotFoundError: as the names say.
            UnsupportedError: the session is one of Spark Connect (`create_views` works there).
        """
        from omnigraph_spark.narrowing import frames

        graph = cast("OmniGraph", self)
        snapshot = self._snapshot(branch, version)
        words = {word.lower() for word in _WORD.findall(text)}
        views = {
            view: graph.table(key, branch=snapshot.branch, version=snapshot.graph_version)
            for key, view in view_names("", [*snapshot.tables]).items()
            if view.lower() in words
        }
        made = frames.sql_over(graph.spark, views, text, args)
        if made is None:
            raise UnsupportedError(
                "Spark Connect can't keep the views of one query to itself",
                hint="Use create_views, then spark.sql",
            )
        return made

    def query(
        self,
        make: Callable[[Callable[[str], DataFrame]], DataFrame],
        *,
        branch: str | None = None,
        version: int | str | datetime | None = None,
    ) -> DataFrame:
        """Return a query that `make` builds over tables of one snapshot; it reads what it needs.

        >>> graph.query(lambda table: table("Person").join(table("Knows"), …))  # doctest: +SKIP

        `make` is called once, now, with a function from a table's name to its frame. What it gives,
        and what is made of that, narrows itself when an action runs (`narrow`). Runs on the driver.

        Raises:
            OptionError: `make` gave something that is not a frame.
            AnalysisException: with the typed error's text.
            BranchNotFoundError, VersionNotFoundError, GraphNotFoundError: as the names say.
        """
        from omnigraph_spark.narrowing import frames

        graph = cast("OmniGraph", self)
        snapshot = self._snapshot(branch, version)
        return frames.built(
            make(
                lambda name: graph.table(
                    name, branch=snapshot.branch, version=snapshot.graph_version
                )
            )
        )

    def _snapshot(self, branch: str | None, version: int | str | datetime | None) -> Snapshot:
        """Return the tables that are meant now."""
        from omnigraph_spark.manifest.snapshot import load
        from omnigraph_spark.refs import refs

        storage = self._store()
        text = None if version is None else str(version)
        is_time = text is not None and times.is_like_time(text)
        at, number = refs.resolve(
            storage,
            branch or layout.MAIN,
            branch is not None,
            None if is_time else text,
            text if is_time else None,
        )
        return load(storage, at, number)


def view_names(prefix: str, keys: list[str]) -> dict[str, str]:
    """Return the names of the tables' views: the type's, with its kind where two types share it."""
    kinds = {key: layout.split_table_key(key) for key in keys}
    lowered = [name.lower() for _, name in kinds.values()]
    return {
        key: f"{prefix}{name}" if lowered.count(name.lower()) == 1 else f"{prefix}{kind}_{name}"
        for key, (kind, name) in kinds.items()
    }
