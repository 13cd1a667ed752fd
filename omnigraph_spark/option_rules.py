"""Which read options go together, and the two ends of a change feed as they were given."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from omnigraph_spark.errors import OptionError

if TYPE_CHECKING:
    from omnigraph_spark.options import Parsed

_FEED = "readChangeFeed"
_ENDS = ("startingVersion", "endingVersion", "startingTimestamp", "endingTimestamp")
_OF_ROWS = ("columns", "filter", "metadataColumns")

WRITTEN = "written"
"""`integrity=strict` where the write doesn't ask for it: an overwrite may strand others' edges."""


@dataclass(frozen=True)
class FeedEnds:
    """What was given for the two ends of a change feed.

    A version may be a commit id or a tag. A start time is that of the first commit at or after it,
    an end time of the last at or before it. Without an end the feed goes to the head.
    """

    start_version: str | None = None
    end_version: str | None = None
    start_time: str | None = None
    end_time: str | None = None


def check_read(parsed: Parsed) -> None:
    """Refuse read options that exclude each other.

    Raises:
        OptionError: both `versionAsOf` and `timestampAsOf`; `metadata` beside options for rows.
    """
    _refuse_both(parsed, "versionAsOf", "timestampAsOf")
    if parsed.get("metadata") and parsed.given & {"table", *_OF_ROWS}:
        raise OptionError(
            "metadata reads a metadata frame, and table, columns, filter and metadataColumns"
            " are for rows",
            hint="Filter the metadata frame with Spark",
        )


def feed_ends(parsed: Parsed) -> FeedEnds | None:
    """Return the ends of a change feed, None where rows are read.

    Raises:
        OptionError: no start, a version and a time for one end, an end without `readChangeFeed`, or
            beside it an option that is for rows of one version.
    """
    given = [name for name in _ENDS if name in parsed.given]
    if not parsed.get(_FEED):
        if given:
            raise OptionError(f"Option {given[0]} goes with {_FEED}", hint=f"Set {_FEED} to true")
        return None
    others = ("versionAsOf", "timestampAsOf", "metadata", "pushDownFilters", *_OF_ROWS)
    wrong = [name for name in others if name in parsed.given]
    if wrong:
        raise OptionError(
            f"Option {wrong[0]} doesn't go with {_FEED}",
            expected=", ".join(("branch", "table", *_ENDS)),
            hint="Choose and filter the feed's rows and columns with Spark",
        )
    _refuse_both(parsed, "startingVersion", "startingTimestamp")
    _refuse_both(parsed, "endingVersion", "endingTimestamp")
    if not {"startingVersion", "startingTimestamp"} & parsed.given:
        raise OptionError(
            "A change feed has no start", expected="startingVersion or startingTimestamp"
        )
    return FeedEnds(*(parsed.get(name) for name in _ENDS))


def stream_ends(parsed: Parsed) -> FeedEnds:
    """Return the ends of a streaming read; without a start it begins with the newest snapshot.

    Raises:
        OptionError: a version and a time for one end, or an option that isn't for streams.
    """
    others = ["versionAsOf", "timestampAsOf", "metadata", "metadataColumns", "pushDownFilters"]
    if parsed.get(_FEED):
        others += _OF_ROWS
    wrong = [name for name in others if name in parsed.given]
    if wrong:
        raise OptionError(
            f"Option {wrong[0]} doesn't go with a stream"
            + (f" with {_FEED}" if wrong[0] in ("columns", "filter") else ""),
            expected=", ".join(("branch", "table", *_ENDS)),
            hint="Choose and filter the stream's rows and columns with Spark",
        )
    _refuse_both(parsed, "startingVersion", "startingTimestamp")
    _refuse_both(parsed, "endingVersion", "endingTimestamp")
    if parsed.get(_FEED) and parsed.get("skipChangeCommits"):
        raise OptionError(
            f"skipChangeCommits doesn't go with {_FEED}", hint=f"{_FEED} gives every change"
        )
    return FeedEnds(*(parsed.get(name) for name in _ENDS))


def _refuse_both(parsed: Parsed, one: str, other: str) -> None:
    if parsed.get(one) and parsed.get(other):
        raise OptionError(f"{one} and {other} exclude each other", hint="Give one of them")
