"""Points in time: how their text is read, and which commit of a lineage they mean; no side effects.

A time names its zone, or is a number of milliseconds: Spark tells a Python data source the
session's zone nowhere, and a guess would read another version.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import datetime, timedelta, timezone

from omnigraph_spark.errors import OptionError, VersionNotFoundError
from omnigraph_spark.history.commits import Commit

_EPOCH_MS = re.compile(r"-?\d{1,15}\Z")
_CALENDAR = re.compile(r"\d{4}-\d{2}-\d{2}(?![\d-])")
_DATE_ALONE = re.compile(r"(\d{4}-\d{2}-\d{2})\s*(Z|[+-]\d{2}(?::?\d{2})?)?\Z")
_SPACE_BEFORE_ZONE = re.compile(r"\s+(?=Z\Z|[+-]\d{2}(?::?\d{2})?\Z)")
_DATE_AND_TIME = re.compile(r"\d{4}-\d{2}-\d{2}[T ]\d{2}:")


def is_like_time(text: str) -> bool:
    """Return whether the text of a ref is meant as a time: no tag has a colon."""
    return _DATE_AND_TIME.match(text.strip()) is not None


def last_at(line: Sequence[Commit], branch: str, text: str, option: str) -> Commit:
    """Return the last commit of a branch's lineage at or before a time.

    Raises:
        OptionError: as `parse_timestamp`.
        VersionNotFoundError: the time is before the first commit, which is named.
    """
    moment = parse_timestamp(text, option)
    earlier = [commit for commit in line if commit.created_at <= moment]
    if not earlier:
        raise VersionNotFoundError(
            f"Branch {branch} has no commit at or before {text[:60]!r}",
            expected=_told(line[0], "later") if line else "a commit; the graph has no history",
        )
    return earlier[-1]


def first_since(line: Sequence[Commit], branch: str, text: str, option: str) -> Commit:
    """Return the first commit of a branch's lineage at or after a time.

    Raises:
        OptionError: as `parse_timestamp`.
        VersionNotFoundError: the time is after the last commit, which is named.
    """
    moment = parse_timestamp(text, option)
    first = next((commit for commit in line if commit.created_at >= moment), None)
    if first is None:
        raise VersionNotFoundError(
            f"Branch {branch} has no commit at or after {text[:60]!r}",
            expected=_told(line[-1], "before") if line else "a commit; the graph has no history",
        )
    return first


def _told(commit: Commit, side: str) -> str:
    return (
        f"{commit.created_at.isoformat()}Z or {side}: commit {commit.graph_commit_id}, "
        f"version {commit.manifest_version}"
    )


def parse_timestamp(text: str, option: str = "timestampAsOf") -> datetime:
    """Return a point in time as UTC without a zone (as commits store it), to the microsecond.

    Raises:
        OptionError: neither ISO 8601 nor epoch milliseconds, out of range, or without a zone.
    """
    stripped = text.strip()
    try:
        if _EPOCH_MS.match(stripped):
            return datetime(1970, 1, 1) + timedelta(milliseconds=int(stripped))
        if not _CALENDAR.match(stripped):
            raise ValueError(stripped)
        whole = _DATE_ALONE.sub(r"\1T00:00\2", stripped)
        moment = datetime.fromisoformat(_SPACE_BEFORE_ZONE.sub("", whole))
        if moment.tzinfo is not None:
            return moment.astimezone(timezone.utc).replace(tzinfo=None)
    except (ValueError, OverflowError) as error:
        raise OptionError(
            f"{option} is not a time",
            expected="ISO 8601 such as 2024-01-31T12:00:00Z, or epoch milliseconds",
            found=repr(text[:60]),
        ) from error
    raise OptionError(
        f"{option} has no time zone, and Spark doesn't tell a Python source the session's",
        expected=f"{stripped}Z, {stripped}+05:30, or epoch milliseconds",
        found=repr(stripped),
    )
