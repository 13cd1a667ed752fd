"""What Lance's exceptions mean; the only place that reads their text.

Lance raises ValueError, OSError, RuntimeError, its own CommitConflictError, and `PanicException` of
pyo3, which is no `Exception` (FACTS 16). Commit paths need to know four things apart: it surely did
not land, somebody else was first, nobody can tell, and it isn't there.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum

from omnigraph_spark._redaction import redact
from omnigraph_spark.errors import OmnigraphError, StorageError

_UNKNOWN = re.compile(r"commit result for version \d+ is unknown|outcome is unknown", re.IGNORECASE)
_CONFLICT = re.compile(
    r"commit conflict|conflicts? with|incompatible with concurrent"
    r"|concurrent (?:writers|transaction)|retryable commit|too many concurrent"
    r"|preempted by concurrent|failed to commit the transaction"
    r"|already exists|/0\.manifest was not found|modified by a concurrent"
    # what the second of two that fork one branch gets
    r"|clone operation should not enter build_manifest",
    re.IGNORECASE,
)
_NOT_FOUND = re.compile(r"was not found|not found:|does not exist|no such file", re.IGNORECASE)

_UNKNOWN_COLUMN = re.compile(r"no field named|column \S+ does not exist", re.IGNORECASE)


class Outcome(Enum):
    """What an exception of a commit says about the commit."""

    CONFLICT = "somebody else was first; nothing landed"
    UNKNOWN = "it may have landed"
    NOT_FOUND = "what it names isn't there"
    FAILED = "it did not land"


class DatasetNotFoundError(StorageError):
    """A dataset or a version of it isn't there."""


def is_panic(error: BaseException) -> bool:
    """Tell whether `error` is a Rust panic that came through pyo3."""
    return type(error).__name__ == "PanicException"


def outcome_of(error: BaseException) -> Outcome:
    """Classify an exception that a Lance commit raised."""
    text = str(error)
    if _UNKNOWN.search(text):
        return Outcome.UNKNOWN
    if type(error).__name__ == "CommitConflictError" or _CONFLICT.search(text):
        return Outcome.CONFLICT
    if _NOT_FOUND.search(text):
        return Outcome.NOT_FOUND
    return Outcome.FAILED


def is_unknown_column(error: BaseException) -> bool:
    """Tell whether Lance refused a filter or projection for a column that the dataset hasn't."""
    return bool(_UNKNOWN_COLUMN.search(str(error)))


def typed(error: BaseException, what: str) -> OmnigraphError:
    """Return the typed error for an exception of Lance, pyarrow or the store."""
    if isinstance(error, OmnigraphError):
        return error
    found = first_sentence(str(error))
    if isinstance(error, ModuleNotFoundError):
        return StorageError(
            f"{what} needs a package that this Python hasn't got",
            found=found,
            hint="Install pylance in the Python of the driver and of every executor",
        )
    if outcome_of(error) is Outcome.NOT_FOUND:
        return DatasetNotFoundError(
            f"{what}: it isn't there",
            found=found,
            hint="If it was there, a cleanup removed it: load the newest version",
        )
    return StorageError(
        f"{what} failed",
        found=f"{type(error).__name__}: {found}",
        hint="Check the path, the permissions and the store, and run it again",
    )


@contextmanager
def translated(what: str) -> Iterator[None]:
    """Turn whatever Lance raises inside into a typed error; `what` names the step and the place.

    Raises:
        StorageError: for every exception of Lance, the store or the operating system.
    """
    try:
        yield
    except (OmnigraphError, KeyboardInterrupt, SystemExit, GeneratorExit, MemoryError):
        raise
    except BaseException as error:  # a Rust panic is no Exception (FACTS 16)
        if not isinstance(error, Exception) and not is_panic(error):
            raise
        raise typed(error, what) from _presentable(error)


def _presentable(error: BaseException) -> BaseException | None:
    """Return the cause that may be shown: none where its own text holds a secret."""
    return error if redact(str(error)) == str(error) else None


def first_sentence(text: str) -> str:
    """Return Lance's text without its source positions, shortened and without secrets."""
    text = re.sub(r",?\s*/\S+/rust/\S+:\d+:\d+", "", text)
    text = " ".join(text.split())
    return redact(text if len(text) <= 300 else text[:299] + "…")
