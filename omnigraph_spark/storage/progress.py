"""How calls show what they do: steps in the log and in the Spark UI, outcomes as small tables.

Spark draws a progress bar of its own on the same terminal, so none is drawn here. Runs on the
driver.
"""

from __future__ import annotations

import contextlib
import html
import logging
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

_DESCRIPTION = "spark.job.description"
_ROWS = 50

_log = logging.getLogger(__name__)


class Progress:
    """The steps of one call: `Progress("optimize", 3).step("node:Person is compacted")`.

    `total` is how many steps are expected; more than that are not an error.
    """

    def __init__(self, title: str, total: int) -> None:
        self._title = title
        self._total = max(total, 1)
        self._done = 0

    def step(self, what: str) -> None:
        """Log that a step is done, at level INFO."""
        self._done += 1
        _log.info("%s: %s (%d of %d)", self._title, what, self._done, self._total)


@contextlib.contextmanager
def described(spark: Any, text: str) -> Iterator[None]:
    """Let the Spark UI show the jobs of a block under a description; the caller's own comes back.

    A session of Spark Connect has no jobs to describe, and nothing happens.
    """
    context = getattr(spark, "sparkContext", None)
    if context is None:
        yield
        return
    before = context.getLocalProperty(_DESCRIPTION)
    context.setJobDescription(text)
    try:
        yield
    finally:
        context.setLocalProperty(_DESCRIPTION, before)


def as_text(title: str, names: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return a title and, below it, rows in columns of even width."""
    cells = [[_cell(value) for value in row] for row in rows]
    shown = [list(names), *cells[:_ROWS]] if cells else []
    widths = [max(len(row[at]) for row in shown) for at in range(len(names))] if shown else []
    lines = [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in shown
    ]
    return "\n".join([title, *(f"  {line}" for line in lines), *_rest(len(cells), "  ")])


def as_html(title: str, names: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return a title and a table for a notebook; whatever stands in it is text, never HTML."""
    cells = [[html.escape(_cell(value)) for value in row] for row in rows]
    head = "".join(f"<th>{html.escape(name)}</th>" for name in names)
    body = "".join(
        f"<tr>{''.join(f'<td>{cell}</td>' for cell in row)}</tr>" for row in cells[:_ROWS]
    )
    table = f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>" if cells else ""
    rest = "".join(f"<p>{line}</p>" for line in _rest(len(cells), ""))
    return f"<div><strong>{html.escape(title)}</strong>{table}{rest}</div>"


def _rest(count: int, indent: str) -> list[str]:
    return [f"{indent}… and {count - _ROWS} more"] if count > _ROWS else []


def _cell(value: object) -> str:
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return "" if value is None else str(value)
