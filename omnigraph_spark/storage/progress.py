"""The steps of a long call: always in the log, and as a bar when a person is watching.

Runs on the driver. A bar is drawn only if stderr is a terminal; a job's log file, a notebook's cell
or a pipe gets none. It is one line that is drawn again, and stays as it was at the end.
"""

from __future__ import annotations

import logging
import shutil
import sys
from types import TracebackType
from typing import TextIO

_WIDTH = 24

_log = logging.getLogger(__name__)


class Progress:
    """The steps of one call: `with Progress("optimize", 3) as progress: progress.step("a table")`.

    `total` is how many steps are expected; more than that are no error.
    """

    def __init__(self, title: str, total: int, stream: TextIO | None = None) -> None:
        self._title = title
        self._total = max(total, 1)
        self._done = 0
        self._stream = stream or sys.stderr
        self._watched = self._stream.isatty()
        self._drawn = False

    def __enter__(self) -> Progress:
        self._draw("")
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._drawn:
            self._write("\n")

    def step(self, what: str) -> None:
        """Say that a step is done."""
        self._done += 1
        _log.info("%s: %s (%d of %d)", self._title, what, self._done, self._total)
        self._draw(what)

    def _draw(self, what: str) -> None:
        if not self._watched:
            return
        share = min(self._done / self._total, 1.0)
        full = round(_WIDTH * share)
        bar = "#" * full + "." * (_WIDTH - full)
        columns = max(shutil.get_terminal_size().columns - 1, 20)
        line = f"{self._title} [{bar}] {self._done}/{self._total} {what}"
        self._drawn = True
        self._write("\r" + line[:columns].ljust(columns))

    def _write(self, text: str) -> None:
        """Write to the person's terminal; one that is gone fails no call."""
        try:
            self._stream.write(text)
            self._stream.flush()
        except (OSError, ValueError):
            self._watched = self._drawn = False
