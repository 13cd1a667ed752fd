"""An embedded SQL engine for checks of any size: DuckDB over Arrow streams, spilling to disk.

Runs on the driver, once per round of a write that checks keys, and in the tasks of large upserts.
What it holds in memory is bounded by `MEMORY_LIMIT`; the rest goes to a folder of its own in the
system's place for temporary files, which is gone when the check is done.
"""

from __future__ import annotations

import shutil
import tempfile
from types import TracebackType
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from omnigraph_spark.errors import StorageError

if TYPE_CHECKING:
    import duckdb

MEMORY_LIMIT = "512MB"
_THREADS = 2
# A streamed table stands left in every join and is probed; the right one is built, spilling.
# The optimizer, which knows no stream's size, would swap them.
_KEEP_ORDER = "join_order,build_side_probe_side"


class Scratch:
    """A database of one check; use it in a `with` block. Its errors begin with `what`."""

    def __init__(self, what: str = "Checking keys and endpoints") -> None:
        import duckdb

        self._what = what
        self._folder = tempfile.mkdtemp(prefix="omnigraph-check-")
        try:
            self._db: duckdb.DuckDBPyConnection = duckdb.connect(
                ":memory:",
                config={
                    "threads": _THREADS,
                    "memory_limit": MEMORY_LIMIT,
                    "temp_directory": self._folder,
                    "preserve_insertion_order": False,
                    "autoinstall_known_extensions": False,
                    "autoload_known_extensions": False,
                    "disabled_optimizers": _KEEP_ORDER,
                },
            )
        except BaseException:
            shutil.rmtree(self._folder, ignore_errors=True)
            raise

    def __enter__(self) -> Scratch:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._db.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def run(self, sql: str, **streams: pa.RecordBatchReader) -> list[tuple[Any, ...]]:
        """Run a statement and return its rows; `streams` are tables by name, read once, in it.

        Raises:
            StorageError: a stream couldn't be read, or there is no room to spill to.
        """
        return self._execute(sql, streams).fetchall()

    def table(self, sql: str, **streams: pa.RecordBatchReader) -> pa.Table:
        """Run a query and return its rows as Arrow; `streams` as in `run`.

        Raises:
            StorageError: a stream couldn't be read, or there is no room to spill to.
        """
        import duckdb

        try:
            for name, stream in streams.items():
                self._db.register(name, stream)
            rows: pa.Table = self._db.sql(sql).to_arrow_table()
            for name in streams:
                self._db.unregister(name)
        except (duckdb.Error, OSError) as error:
            raise self._failed(error) from error
        return rows

    def value(self, sql: str) -> Any:
        """Return the one value of a query.

        Raises:
            StorageError: there is no room to spill to.
        """
        return self.run(sql)[0][0]

    def _execute(
        self, sql: str, streams: dict[str, pa.RecordBatchReader]
    ) -> duckdb.DuckDBPyConnection:
        import duckdb

        try:
            for name, stream in streams.items():
                self._db.register(name, stream)
            done = self._db.execute(sql)
            for name in streams:
                self._db.unregister(name)
            return done
        except (duckdb.Error, OSError) as error:
            raise self._failed(error) from error

    def _failed(self, error: Exception) -> StorageError:
        return StorageError(
            f"{self._what} failed",
            expected=f"tables that can be read, and room to spill to in {self._folder}",
            found=" ".join(str(error).split())[:300],
            hint="Nothing was published. Write again",
        )
