"""Look at the rows of a task before they are written: rules that one row decides.

Runs on executors, once per batch. Without a `badRecordsPath` the first broken rule ends the task,
and with it the write; with one the violating rows are set aside and the others go on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from omnigraph_spark.integrity import values
from omnigraph_spark.integrity.bad_records import BadRecords
from omnigraph_spark.integrity.rules import ID_IS_KEY, NOT_NULL, Integrity, ValueRule
from omnigraph_spark.storage import layout


class Screen:
    """The checks of one task; `close` it when the task's last row has gone through."""

    def __init__(
        self,
        integrity: Integrity,
        storage_options: Mapping[str, str],
        publish_id: str,
        part: str,
    ) -> None:
        self._rules: Mapping[str, Sequence[ValueRule]] = integrity.values
        self._bad: BadRecords | None = None
        if integrity.bad_records_path is not None:
            self._bad = BadRecords(integrity.bad_records_path, storage_options, publish_id, part)

    def incoming(
        self, rows: pa.RecordBatch, schema: pa.Schema, table_key: str, key: str | None
    ) -> pa.RecordBatch:
        """Return a frame's rows for a table without those that the table can't have at all.

        These are nulls where the table allows none, and ids that aren't their row's key. Only
        where such rows are set aside: else what fills ids and casts columns refuses them.

        Raises:
            StorageError: the path for bad records can't be written.
        """
        if self._bad is None:
            return rows
        names = rows.schema.names
        filled = ("id",) if key is not None or layout.is_edge(table_key) else ()
        for field in schema:
            if field.nullable or field.name in filled or field.name not in names:
                continue
            nulls = rows.column(field.name).is_null()
            rows = self._aside(rows, nulls, table_key, NOT_NULL, field.name, "a value")
        if key is not None and key in names and "id" in names:
            given, expected = (rows.column(name).cast(pa.utf8()) for name in ("id", key))
            differ = pc.fill_null(pc.not_equal(given, expected), False)
            rows = self._aside(rows, differ, table_key, ID_IS_KEY, "id", f"the value of {key}")
        return rows

    def outgoing(self, rows: pa.RecordBatch, table_key: str) -> pa.RecordBatch:
        """Return rows in the table's schema without those that break a rule of values.

        Raises:
            IntegrityError: a row breaks a rule, and bad rows aren't set aside.
            StorageError: the path for bad records can't be written.
        """
        for rule in self._rules.get(table_key, ()):
            bad = values.broken(rule, rows)
            if bad is None:
                continue
            if self._bad is None:
                raise values.violation(rule, table_key, rows, bad).error()
            rows = self._aside(rows, bad, table_key, rule.kind, rule.column, rule.allowed())
        return rows

    def close(self) -> None:
        """Write what is left of the rows that were set aside.

        Raises:
            StorageError: the path for bad records can't be written.
        """
        if self._bad is not None:
            self._bad.close()

    def _aside(
        self, rows: pa.RecordBatch, bad: pa.Array, key: str, rule: str, column: str, expected: str
    ) -> pa.RecordBatch:
        if self._bad is None or not pc.any(bad).as_py():
            return rows
        self._bad.add(key, rule, column, f"expected {expected}", rows.filter(bad))
        return rows.filter(pc.invert(bad))
