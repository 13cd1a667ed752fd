"""What Lance's exceptions mean; the only place that reads their text.

Lance raises ValueError, OSError, RuntimeError, its own CommitConflictError, and `PanicException` of
pyo3, which is not an `Exception` (fact 16). Commit paths need to know four things apart: it surely
did not land, another writer was first, the outcome is unknown, and it isn't there.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum

from omnigraph_spark._redaction import redact
from omnigraph_spark.errors import (
    BucketNotFoundError,
    CredentialsError,
    OmnigraphError,
    PermissionDeniedError,
    StorageError,
    ThrottledError,
)

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

# What a store answers: the number of its HTTP status, and the code in the body that S3 and Azure
# (`<Code>`) or GCS (`"reason"`) send along. An answer to HEAD has no body.
_STATUS = re.compile(r"status code: (\d{3})|\b(?:HTTP|status)[ :=]+(\d{3})\b")
_CODE = re.compile(r"<Code>\s*(\w+)\s*</Code>|\"(?:reason|code)\":\s*\"(\w+)\"")
_CREDENTIALS = re.compile(
    r"unauthenticated|lacked valid authentication|invalid_grant|no (?:valid )?credentials"
    r"|credentials? (?:provider|were not|not|could not|error)"
    r"|failed to (?:load|get) (?:\w+ )?credentials|chain provided credentials",
    re.IGNORECASE,
)
_CREDENTIAL_CODES = frozenset(
    {
        "InvalidAccessKeyId",
        "SignatureDoesNotMatch",
        "ExpiredToken",
        "InvalidToken",
        "TokenRefreshRequired",
        "RequestExpired",
        "RequestTimeTooSkewed",
        "AuthorizationHeaderMalformed",
        "MissingSecurityHeader",
        "AuthenticationFailed",
        "InvalidAuthenticationInfo",
        "NoAuthenticationInformation",
        "authError",
        "Unauthorized",
    }
)
_BUCKET_CODES = frozenset(
    {"NoSuchBucket", "InvalidBucketName", "ContainerNotFound", "FilesystemNotFound"}
)
_BUCKET = re.compile(r"specified (?:bucket|container|filesystem) does not exist", re.IGNORECASE)
_DENIED = re.compile(r"permission ?denied|lacked the necessary privileges|os error 13\b", re.I)
_BUSY_CODES = frozenset(
    {
        "SlowDown",
        "ServerBusy",
        "TooManyRequests",
        "RequestLimitExceeded",
        "Throttling",
        "ThrottlingException",
        "rateLimitExceeded",
        "userRateLimitExceeded",
    }
)
_CONNECTION = re.compile(
    r"error sending request|connection (?:reset|refused|closed|aborted)|timed? ?out|broken pipe",
    re.IGNORECASE,
)

_UNKNOWN_COLUMN = re.compile(r"no field named|column \S+ does not exist", re.IGNORECASE)


class Outcome(Enum):
    """What an exception of a commit says about the commit."""

    CONFLICT = "another writer was first; nothing landed"
    UNKNOWN = "it may have landed"
    NOT_FOUND = "what it names isn't there"
    FAILED = "it did not land"


class DatasetNotFoundError(StorageError):
    """A dataset or a version of it isn't there."""


def is_panic(error: BaseException) -> bool:
    """Return whether `error` is a Rust panic that came through pyo3."""
    return type(error).__name__ == "PanicException"


def outcome_of(error: BaseException) -> Outcome:
    """Classify an exception that a Lance commit raised."""
    text = str(error)
    if _UNKNOWN.search(text):
        return Outcome.UNKNOWN
    if type(error).__name__ == "CommitConflictError" or _CONFLICT.search(text):
        return Outcome.CONFLICT
    if _NOT_FOUND.search(text) and refusal_of(error) is None and _status(text) in (None, 404):
        return Outcome.NOT_FOUND
    return Outcome.FAILED


def refusal_of(error: BaseException) -> type[StorageError] | None:
    """Return what a store's refusal is, None for an error that is none.

    The code in the answer's body counts more than its status, and that more than any words: AWS
    says of a wrong key that it "does not exist in our records".
    """
    text = str(error)
    status, code = _status(text), _first(_CODE, text)
    if code in _BUCKET_CODES or _BUCKET.search(text):
        return BucketNotFoundError
    if code in _CREDENTIAL_CODES or status == 401:
        return CredentialsError
    if code in _BUSY_CODES or status in (429, 503):
        return ThrottledError
    if status == 403:
        return PermissionDeniedError
    if status is None and _CREDENTIALS.search(text):
        return CredentialsError
    if status is None and _DENIED.search(text):
        return PermissionDeniedError
    return None


def is_transient(error: BaseException) -> bool:
    """Return whether a store that is asked again may answer: it was busy, or out of reach.

    Whether what it was asked for is done already, the outcome is unknown from such an error.
    """
    text = str(error)
    status = _status(text)
    if refusal_of(error) is ThrottledError or (status is not None and status >= 500):
        return True
    return status is None and _CONNECTION.search(text) is not None


def _status(text: str) -> int | None:
    code = _first(_STATUS, text)
    return None if code is None else int(code)


def _first(pattern: re.Pattern[str], text: str) -> str | None:
    match = pattern.search(text)
    return None if match is None else next(group for group in match.groups() if group)


def is_unknown_column(error: BaseException) -> bool:
    """Return whether Lance refused a filter or projection for a missing column."""
    return bool(_UNKNOWN_COLUMN.search(str(error)))


def typed(error: BaseException, what: str) -> OmnigraphError:
    """Return the typed error for an exception of Lance, pyarrow or the store."""
    if isinstance(error, OmnigraphError):
        return error
    sentence = first_sentence(str(error))
    if isinstance(error, ModuleNotFoundError):
        return StorageError(
            f"{what} needs a package that this Python doesn't have",
            found=sentence,
            hint="Install pylance in the Python of the driver and of every executor",
        )
    if outcome_of(error) is Outcome.NOT_FOUND:
        return DatasetNotFoundError(
            f"{what}: it isn't there",
            found=sentence,
            hint="If it was there, a cleanup removed it: load the newest version",
        )
    kind = refusal_of(error) or StorageError
    return kind(f"{what} failed", found=f"{type(error).__name__}: {sentence}", hint=_HINTS[kind])


_HINTS: dict[type[StorageError], str] = {
    CredentialsError: "Check the options storage.*, or the environment of the driver and of every "
    "executor; keys that are valid for a while have to be given again",
    PermissionDeniedError: "The graph's root must be listed, read and, for writes, written and "
    "deleted from by these credentials",
    BucketNotFoundError: "Check the spelling of the path, the endpoint and the region; make the "
    "bucket before the graph",
    ThrottledError: "Run it again later, or with fewer tasks at once",
    StorageError: "Check the path, the permissions and the store, and run it again",
}


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
    except BaseException as error:  # a Rust panic is not an Exception (fact 16)
        if not isinstance(error, Exception) and not is_panic(error):
            raise
        raise typed(error, what) from _presentable(error)


def _presentable(error: BaseException) -> BaseException | None:
    """Return the cause that may be shown: none where its own text holds a secret."""
    return error if redact(str(error)) == str(error) else None


def first_sentence(text: str) -> str:
    """Return Lance's text without its source positions, shortened and without secrets."""
    text = re.sub(r",?\s*/\S+/(?:rust|library)/\S+:\d+:\d+", "", text)
    text = " ".join(text.split())
    return redact(text if len(text) <= 300 else text[:299] + "…")
