r"""Where rows go that break a rule, if the write names a `badRecordsPath`.

`{badRecordsPath}/{publish_id}/{part}-{number}.json` holds one JSON text per line: `table`, `rule`,
`column`, `reason`, and the `row`. The files of a write that failed in the end stay: its publish id
tells. Runs on executors (values) and on the driver (keys and endpoints); a retried task, or
a commit that retries, writes the same names again.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from omnigraph_spark.storage.store import Storage

_ROWS_PER_FILE = 5_000


class BadRecords:
    """Collects the violating rows of one task, or of one commit, in files of bounded size."""

    def __init__(
        self, path: str, options: Mapping[str, str], publish_id: str, part: str = "commit"
    ) -> None:
        self._storage = Storage.at(path, options)
        self._prefix = f"{publish_id}/{part}"
        self._lines: list[str] = []
        self._files = 0
        self.count = 0

    def add(
        self, table_key: str, rule: str, column: str, reason: str, rows: pa.RecordBatch
    ) -> None:
        """Set rows aside; they are in the store once the file is full, or at `close`.

        Raises:
            StorageError: the path can't be written.
        """
        known = {"table": table_key, "rule": rule, "column": column, "reason": reason}
        for start in range(0, rows.num_rows, _ROWS_PER_FILE):
            for row in rows.slice(start, _ROWS_PER_FILE).to_pylist():
                self._lines.append(json.dumps({**known, "row": row}, default=_plain))
            self.count += min(_ROWS_PER_FILE, rows.num_rows - start)
            if len(self._lines) >= _ROWS_PER_FILE:
                self._flush()

    def close(self) -> None:
        """Write what is left.

        Raises:
            StorageError: the path can't be written.
        """
        if self._lines:
            self._flush()

    def remove(self) -> None:
        """Delete what this object wrote; a commit that retries starts again.

        Raises:
            StorageError: the store failed.
        """
        for number in range(self._files):
            self._storage.delete(f"{self._prefix}-{number:04d}.json")
        self._lines, self._files, self.count = [], 0, 0

    def _flush(self) -> None:
        text = "\n".join(self._lines) + "\n"
        self._storage.put(f"{self._prefix}-{self._files:04d}.json", text.encode("utf-8"))
        self._files += 1
        self._lines = []


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):
        return base64.b64encode(value).decode("ascii")
    return str(value)
