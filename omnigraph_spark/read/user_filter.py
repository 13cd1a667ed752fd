"""The option `filter`: a predicate in Lance's SQL, checked on the driver before a read."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING

from omnigraph_spark.errors import OptionError
from omnigraph_spark.storage import lance_errors

if TYPE_CHECKING:
    from lance import LanceDataset

_SHOWN = 60
# What brackets don't count in: text, names, comments. A quote inside is doubled.
_OPAQUE = re.compile(r"'(?:[^']|'')*'|\"(?:[^\"]|\"\")*\"|`[^`]*`|--[^\n]*|/\*.*?\*/", re.DOTALL)


def enclosed(text: str | None) -> str | None:
    """Return the predicate so that more can be AND-ed to it (it may end in a comment)."""
    return None if text is None else f"({text}\n)"


def fitting_tables(text: str, datasets: Mapping[str, LanceDataset]) -> set[str]:
    """Return the tables that have all columns which the filter names; the others give no rows.

    Raises:
        OptionError: the filter is no predicate, doesn't go with a table's types, or names a column
            that no table has.
    """
    _check_brackets(text)
    fitting: set[str] = set()
    missing = None
    for key, dataset in datasets.items():
        try:
            dataset.scanner(filter=enclosed(text), columns=["_rowid"]).explain_plan()
        except BaseException as error:  # a Rust panic is no Exception (FACTS 16)
            if not isinstance(error, Exception) and not lance_errors.is_panic(error):
                raise
            found = lance_errors.first_sentence(str(error))
            if not lance_errors.is_unknown_column(error):
                raise _refused(f"Option filter doesn't work on {key}", found) from error
            missing = found.partition(". Valid fields")[0]
        else:
            fitting.add(key)
    if missing is not None and not fitting:
        names = dict.fromkeys(name for one in datasets.values() for name in one.schema.names)
        raise OptionError(
            "Option filter names a column that isn't there",
            expected=f"stored columns: {', '.join([*names][:_SHOWN])}",
            found=missing,
            hint="_table, and columns that Spark computes, can be filtered with Spark",
        )
    return fitting


def _check_brackets(text: str) -> None:
    """Refuse text whose brackets close what they didn't open: Lance ignores what follows them."""
    depth = 0
    for character in _OPAQUE.sub(" ", text):
        depth += {"(": 1, ")": -1}.get(character, 0)
        if depth < 0:
            break
    if depth != 0 or not text.strip():
        raise _refused("Option filter is no predicate", repr(text[:120]))


def _refused(what: str, found: str) -> OptionError:
    return OptionError(
        what,
        expected="a predicate in Lance's SQL over stored columns: age > 30 AND name = 'ann'",
        found=found,
        hint="Put odd names in backticks; what Lance can't say can be filtered with Spark",
    )
