"""The steps of a long call, in the log; runs on the driver.

Spark draws a progress bar of its own on the same terminal, so none is drawn here.
"""

from __future__ import annotations

import logging

_log = logging.getLogger(__name__)


class Progress:
    """The steps of one call: `Progress("optimize", 3).step("node:Person is compacted")`.

    `total` is how many steps are expected; more than that are no error.
    """

    def __init__(self, title: str, total: int) -> None:
        self._title = title
        self._total = max(total, 1)
        self._done = 0

    def step(self, what: str) -> None:
        """Log that a step is done, at level INFO."""
        self._done += 1
        _log.info("%s: %s (%d of %d)", self._title, what, self._done, self._total)
