"""What `OmniGraph` offers to change single rows: conditional merges, updates and deletes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

from omnigraph_spark.errors import OptionError
from omnigraph_spark.storage import layout

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from omnigraph_spark.graph import OmniGraph
    from omnigraph_spark.spark.merge_clauses import Clauses
    from omnigraph_spark.write.commit.commit import Committed

_DELETES = ("restrict", "cascade")


class RowMethods:
    """A part of `OmniGraph`; each method is one commit of one table, on one branch.

    The rows are chosen by Spark from the newest version; a row that another write changed, added or
    deleted since then refuses the write. `write_options` are those of writes.
    """

    def merge_into(
        self,
        table: str,
        frame: DataFrame,
        *,
        when_matched: Clauses = "update",
        when_not_matched: Clauses = "insert",
        on_delete: str = "restrict",
        branch: str = layout.MAIN,
        **write_options: Any,
    ) -> Committed:
        """Update, add and delete rows by the rows of a frame, matched by `id`, in one commit.

        Edges whose ids are made from keys (`edgeKeys`) may be matched by those.

        `when_matched` is `"update"` (all columns of the frame), `"delete"`, `"ignore"` or a mapping
        of columns to expressions; `when_not_matched` is `"insert"`, `"ignore"` or a mapping. Or a
        list of `(condition, one of these)`, of which each row takes the first that is true.
        Conditions and expressions are Spark SQL or Columns over `source` (the frame) and `target`
        (the table). `on_delete` is what becomes of edges at deleted nodes: `restrict`, `cascade`.

        >>> graph.merge_into(
        ...     "Person",
        ...     people,
        ...     when_matched=[
        ...         ("source.age IS NULL", "delete"),
        ...         ("source.seen > target.seen", {"age": "source.age", "seen": "source.seen"}),
        ...     ],
        ...     when_not_matched=[("source.age IS NOT NULL", "insert")],
        ... )  # doctest: +SKIP

        Each row of the table may be matched by one row of the frame. With a clause that deletes the
        frame is computed twice.

        Raises:
            OptionError: malformed clauses.
            RowConflictError: others changed the rows meanwhile; nothing was published.
            IntegrityError: a frame without `id` and key, two rows of it that match one row, or
                deleted nodes with edges.
            OmnigraphError, PySparkException: as `write`.
        """
        from omnigraph_spark.spark import edge_keys, frame_plan, merge_clauses
        from omnigraph_spark.write.commit import bulk

        _check_on_delete(on_delete)
        clauses = [
            *merge_clauses.clauses("when_matched", when_matched, True),
            *merge_clauses.clauses("when_not_matched", when_not_matched, False),
        ]
        graph = self._graph()
        options = graph._write_options("merge", branch, write_options)
        keys = edge_keys.of_table(graph._store(), options, table)
        target = graph.table(table, branch=branch)
        upserts, gone = merge_clauses.split(target, frame, clauses, keys)
        if upserts is None and gone is None:
            raise OptionError("merge_into has no clause", expected="when_matched, when_not_matched")
        if upserts is None and gone is not None:
            more = {**write_options, "onDelete": on_delete}
            return graph.write({table: gone}, mode="delete", branch=branch, **more)
        assert upserts is not None
        plan = frame_plan.plan_frames(options, {table: upserts.schema})
        (key,) = plan.targets
        if gone is None:
            return bulk.write_all(plan, graph.stager({key: upserts}))
        plan = replace(plan, deletes=True, on_delete=on_delete)
        return bulk.write_all(plan, graph.stager({key: upserts}), graph.stager({key: gone}))

    def update(
        self,
        table: str,
        set: Mapping[str, str | Column],
        where: str | Column | None = None,
        *,
        branch: str = layout.MAIN,
        **write_options: Any,
    ) -> Committed:
        """Set columns of the rows that a condition is true for (None: of all) in one commit.

        Conditions and values are Spark SQL or Columns over the table's columns.

        >>> graph.update("Person", {"age": "age + 1"}, "age IS NOT NULL")  # doctest: +SKIP

        Raises:
            OptionError: no column, `id`, or one that the table doesn't have.
            RowConflictError: others changed the rows meanwhile; nothing was published.
            OmnigraphError, PySparkException: as `write`.
        """
        from omnigraph_spark.spark import merge_clauses

        graph = self._graph()
        rows = merge_clauses.updated(graph.table(table, branch=branch), set, where)
        return graph.write({table: rows}, mode="merge", branch=branch, **write_options)

    def delete(
        self,
        table: str,
        where: str | Column,
        *,
        on_delete: str = "restrict",
        branch: str = layout.MAIN,
        **write_options: Any,
    ) -> Committed:
        """Delete the rows that a condition is true for, in one commit.

        The condition is Spark SQL or a Column over the table's columns. Rows for which it is NULL
        stay. `on_delete` is what becomes of edges at deleted nodes: `restrict` refuses the delete,
        `cascade` deletes them too.

        Raises:
            OptionError: `on_delete` is neither.
            IntegrityError: (`restrict`) edges end at the nodes.
            RowConflictError: others changed the rows meanwhile; nothing was published.
            OmnigraphError, PySparkException: as `write`.
        """
        _check_on_delete(on_delete)
        graph = self._graph()
        rows = graph.table(table, branch=branch).where(where).select("id")
        more = {**write_options, "onDelete": on_delete}
        return graph.write({table: rows}, mode="delete", branch=branch, **more)

    def _graph(self) -> OmniGraph:
        return cast("OmniGraph", self)


def _check_on_delete(given: str) -> None:
    if given not in _DELETES:
        raise OptionError("on_delete is malformed", expected=" or ".join(_DELETES), found=given)
