"""Points in time: how their text is read, and which commit of a lineage they mean; no side effects.

A time names its zone, or is a number of milliseconds: Spark tells a Python data source the
session's zone nowhere [run, 4.0 and 4.3], and a guess would read another version.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import datetime, timedelta, timezone, tzinfo
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from omnigraph_spark.errors import OptionError, VersionNotFoundError
from omnigraph_spark.history.commits import Commit

_EPOCH_MS = re.compile(r"-?\d{1,15}\Z")
_ISO = re.compile(
    r"(?P<date>\d{4}-\d{2}-\d{2})"
    r"(?:[T ](?P<time>\d{2}:\d{2}(?::\d{2})?)(?:\.(?P<fraction>\d{1,9}))?)?"
    r"\s*(?P<zone>Z|[+-]\d{2}(?::?\d{2})?)?\Z"
)
_OFFSET = re.compile(r"(?:UTC|GMT|UT)?(?P<sign>[+-])(?P<hours>\d{1,2})(?::?(?P<minutes>\d{2}))?\Z")
_DATE_AND_TIME = re.compile(r"\d{4}-\d{2}-\d{2}[T ]\d{2}:")


def is_like_time(text: str) -> bool:
    """Tell whether the text of a ref is meant as a time: no tag has a colon."""
    return _DATE_AND_TIME.match(text.strip()) is not None


def last_at(line: Sequence[Commit], branch: str, text: str, option: str) -> Commit:
    """Return the last commit of a branch's lineage at or before a time.

    Raises:
        OptionError: as `parse_timestamp`.
        VersionNotFoundError: the time is before the first commit, which is named.
    """
    moment = parse_timestamp(text, None, option)
    found = [commit for commit in line if commit.created_at <= moment]
    if not found:
        raise VersionNotFoundError(
            f"Branch {branch} has no commit at or before {text[:60]!r}",
            expected=_told(line[0], "later") if line else "a commit; the graph has no history",
        )
    return found[-1]


def first_since(line: Sequence[Commit], branch: str, text: str, option: str) -> Commit:
    """Return the first commit of a branch's lineage at or after a time.

    Raises:
        OptionError: as `parse_timestamp`.
        VersionNotFoundError: the time is after the last commit, which is named.
    """
    moment = parse_timestamp(text, None, option)
    found = next((commit for commit in line if commit.created_at >= moment), None)
    if found is None:
        raise VersionNotFoundError(
            f"Branch {branch} has no commit at or after {text[:60]!r}",
            expected=_told(line[-1], "before") if line else "a commit; the graph has no history",
        )
    return found


def _told(commit: Commit, side: str) -> str:
    return (
        f"{commit.created_at.isoformat()}Z or {side}: commit {commit.graph_commit_id}, "
        f"version {commit.manifest_version}"
    )


def parse_timestamp(text: str, session_zone: str | None, option: str = "timestampAsOf") -> datetime:
    """Return a point in time as UTC without a zone (as commits store it), to the microsecond.

    Raises:
        OptionError: neither ISO 8601 nor epoch milliseconds, out of range, an unknown zone, or no
            zone and none for the session.
    """
    stripped = text.strip()
    try:
        if _EPOCH_MS.match(stripped):
            return datetime(1970, 1, 1) + timedelta(milliseconds=int(stripped))
        return _parse_iso(stripped, session_zone, option)
    except (ValueError, OverflowError) as error:
        if isinstance(error, OptionError):
            raise
        raise OptionError(
            f"{option} is no time",
            expected="ISO 8601 such as 2024-01-31T12:00:00Z, or epoch milliseconds",
            found=repr(text[:60]),
        ) from error


def _parse_iso(text: str, session_zone: str | None, option: str) -> datetime:
    match = _ISO.match(text)
    if match is None:
        raise ValueError(text)
    local = datetime.fromisoformat(f"{match['date']}T{match['time'] or '00:00'}")
    local += timedelta(microseconds=int((match["fraction"] or "0")[:6].ljust(6, "0")))
    name = match["zone"] or session_zone
    if name is None:
        raise OptionError(
            f"{option} has no time zone, and Spark doesn't tell a Python source the session's",
            expected=f"{text}Z, {text}+05:30, or epoch milliseconds",
            found=repr(text),
        )
    zone = zone_of(name)
    return local.replace(tzinfo=zone).astimezone(timezone.utc).replace(tzinfo=None)


def zone_of(name: str) -> tzinfo:
    """Return a time zone by Spark's names: a region, `UTC`, `Z`, or an offset such as `+05:30`.

    Raises:
        OptionError: the zone is unknown.
    """
    if name in ("Z", "UTC"):
        return timezone.utc
    match = _OFFSET.match(name)
    if match is not None:
        offset = timedelta(hours=int(match["hours"]), minutes=int(match["minutes"] or 0))
        return timezone(-offset if match["sign"] == "-" else offset)
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:
        raise OptionError(
            f"Unknown time zone {name[:60]!r}", expected="a region, UTC, or an offset like +05:30"
        ) from error
