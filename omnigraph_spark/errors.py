"""Every error that this package raises, with its code.

The text of an error is ``[OMNIGRAPH_<CODE>] what · expected … · found … · next step``. Spark
carries exceptions across its process boundaries as text only (fact 11), so the bracketed code is
the stable part: `from_spark` turns such a text back into the typed error.

`at_spark` and `for_people` stand where errors leave the package: what a person sees of them is the
text and the line that asked, not the way through the package. With the environment variable
`OMNIGRAPH_SPARK_TRACE=full` all of it is there.
"""

from __future__ import annotations

import difflib
import functools
import inspect
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, ClassVar, TypeVar, cast

from omnigraph_spark._redaction import redact

_BETWEEN = " · "
_MOST, _LONGEST = 10, 200
_Method = TypeVar("_Method", bound=Callable[..., Any])
_Class = TypeVar("_Class", bound=type)


def did_you_mean(name: str, known: Iterable[str], otherwise: str | None = None) -> str | None:
    """Return a hint for a mistyped name: the nearest that is known, and what to do otherwise."""
    by_lower = {one.lower(): one for one in known}
    near = difflib.get_close_matches(name.lower(), by_lower, n=1, cutoff=0.6)
    if not near:
        return otherwise
    asked = f"Did you mean {by_lower[near[0]]}?"
    return asked if otherwise is None else f"{asked} Otherwise: {otherwise}"


class OmnigraphError(Exception):
    """Base of every error raised here; `code` is stable, the wording is not.

    Attributes: `what`, `expected`, `found`, `hint`, and those that a class names. On an error that
    came back out of a Spark exception (`from_spark`), `expected` and `found` are text.
    """

    code: ClassVar[str] = "ERROR"
    # Named groups of what `from_spark` reads out of the text again; digits become numbers.
    _told: ClassVar[re.Pattern[str] | None] = None

    def __init__(
        self,
        what: str,
        *,
        expected: object = None,
        found: object = None,
        hint: str | None = None,
        **details: Any,
    ) -> None:
        self.what = redact(what)
        self.expected = _redacted(expected)
        self.found = _redacted(found)
        self.hint = None if hint is None else redact(hint)
        self.details = details
        for name, value in details.items():
            setattr(self, name, value)
        super().__init__(self._text())

    def _text(self) -> str:
        parts = [self.what.rstrip(".")]
        if self.expected is not None:
            parts.append(f"expected {self.expected}")
        if self.found is not None:
            parts.append(f"found {self.found}")
        if self.hint:
            parts.append(self.hint.rstrip("."))
        # One line: `from_spark` finds it in a traceback by its code and takes the rest of the line.
        text = _BETWEEN.join(" ".join(part.split()) for part in parts)
        return f"[OMNIGRAPH_{self.code}] {redact(text)}"

    def __reduce__(self) -> tuple[Any, ...]:
        return (_rebuild, (type(self), self.__dict__.copy(), self.args))


def _redacted(value: object) -> object:
    return redact(value) if isinstance(value, str) else value


def _rebuild(kind: type[OmnigraphError], state: dict[str, Any], args: tuple[Any, ...]) -> Exception:
    error = kind.__new__(kind)
    error.args = args
    error.__dict__.update(state)
    return error


class OptionError(OmnigraphError, ValueError):
    """An option or argument is unknown, malformed, or doesn't go with another one."""

    code = "OPTION"


class GraphNotFoundError(OmnigraphError):
    """The path holds no OmniGraph graph (no `__manifest`)."""

    code = "GRAPH_NOT_FOUND"


class TableNotFoundError(OmnigraphError):
    """The snapshot has no such table."""

    code = "TABLE_NOT_FOUND"


class BranchNotFoundError(OmnigraphError):
    """The graph has no such branch."""

    code = "BRANCH_NOT_FOUND"

    @classmethod
    def named(cls, branch: str, names: Sequence[str]) -> BranchNotFoundError:
        """Return the error for a name that isn't among those of the graph's branches."""
        return cls(
            f"The graph has no branch {branch[:80]!r}",
            expected=", ".join(names[:60]),
            hint=did_you_mean(branch, names, "OmniGraph.create_branch makes a branch"),
        )


class VersionNotFoundError(OmnigraphError):
    """The graph has no such version, commit id or tag, or it was cleaned up."""

    code = "VERSION_NOT_FOUND"


class SchemaMismatchError(OmnigraphError):
    """A frame's columns or types don't fit the table's, or a staged file's don't any more."""

    code = "SCHEMA_MISMATCH"


class IntegrityError(OmnigraphError):
    """Rows break a rule of the table; nothing was published.

    Attributes: `table_key`, `rule`, `column`, `count` (of rows; a rule of values counts within one
    batch of one task) and `samples` (ids or values, at most ten).
    """

    code = "INTEGRITY"
    table_key: str
    rule: str
    column: str | None = None
    count: int | None = None
    samples: Sequence[Any] = ()
    _told = re.compile(
        r"(?P<count>\d+) rows? of (?P<table_key>\S+) breaks? the rule '(?P<rule>[^']+)' "
        r"\(column (?P<column>[^)]+)\)"
    )


class UnsupportedManifestVersion(OmnigraphError):
    """The graph's stamp is not one that this version can write (`found`, `supported`)."""

    code = "UNSUPPORTED_MANIFEST_VERSION"


class ExpectedVersionMismatch(OmnigraphError):
    """A table isn't at the version that the write expects; nothing was published.

    Attributes: `table_key`, `expected`, `actual` (0 = the table has no live version).
    """

    code = "EXPECTED_VERSION_MISMATCH"
    table_key: str
    actual: int
    _told = re.compile(
        r"(?P<table_key>\S+) was (?:published|dropped) .* expected version (?P<expected>\d+) "
        r".* found version (?P<actual>\d+)"
    )

    def __init__(
        self, table_key: str, expected: int, actual: int, made_again: bool = False
    ) -> None:
        done = "dropped and made" if made_again else "published"
        super().__init__(
            f"{table_key} was {done} again since it was read",
            expected=f"version {expected}",
            found=f"version {actual}{' of another table' if made_again else ''}",
            hint="Nothing was published. Read the table again, redo the change, and write it again;"
            " to go back to an older version call restore, to write over what was published since "
            "give lastWriterWins=true",
            table_key=table_key,
            actual=actual,
        )
        self.expected = expected


class RowConflictError(ExpectedVersionMismatch):
    """Other writes changed, added or deleted rows that an upsert or delete names; nothing written.

    Counted since the frame was read. Attributes: `table_key`, `count` (of rows, within one task)
    and `samples` (ids, at most ten). `expected` and `actual` are None: no single version decides.
    """

    code = "ROW_CONFLICT"
    count: int | None = None
    samples: Sequence[Any] = ()
    actual: int | None = None  # type: ignore[assignment]
    _told = re.compile(
        r"(?P<count>\d+) rows? of (?P<table_key>\S+) that this write names (?:was|were) changed"
    )

    def __init__(self, table_key: str, samples: Sequence[str], count: int) -> None:
        rows = "1 row" if count == 1 else f"{count} rows"
        verb = "was" if count == 1 else "were"
        OmnigraphError.__init__(
            self,
            f"{rows} of {table_key} that this write names {verb} changed, added or deleted by "
            "another write since the frame was read",
            expected="rows as they were read",
            found=f"id {', '.join(map(repr, samples))}",
            hint="Nothing was published. Read the table again, redo the change for these rows, and "
            "write it again; or give lastWriterWins=true to write over what others wrote",
            table_key=table_key,
            samples=list(samples),
            count=count,
        )


class RowLevelCasContention(OmnigraphError):
    """Other publishes won every attempt of the publisher; nothing was published."""

    code = "ROW_LEVEL_CAS_CONTENTION"


class PublishOutcomeUnknown(OmnigraphError):
    """The store never answered whether the write landed; nothing was deleted (`publish_id`)."""

    code = "PUBLISH_OUTCOME_UNKNOWN"
    publish_id: str
    _told = re.compile(r"The outcome of publish (?P<publish_id>\S+) is unknown")

    def __init__(
        self, publish_id: str, what: str, *, cause: str = "", of: str = "", hint: str = ""
    ) -> None:
        super().__init__(
            f"The outcome of {of or f'publish {publish_id}'} is unknown: {what}",
            expected="an answer from the store",
            found=cause or None,
            hint=hint
            or (
                "No file was deleted. Before writing again, look whether OmniGraph.for_path(spark,"
                f" uri).history() has a row with publish_id = '{publish_id}'"
            ),
            publish_id=publish_id,
        )


class MergeConflictError(OmnigraphError):
    """Two branches changed the same rows in different ways; nothing was written.

    Attributes: `conflicts` (counts by table key and kind) and `rows`, the DataFrame of the
    conflicts, or None on an error that came back out of a Spark exception.
    """

    code = "MERGE_CONFLICT"
    conflicts: Mapping[tuple[str, str], int] = MappingProxyType({})
    rows: Any = None

    def __init__(
        self, source: str, into: str, conflicts: Mapping[tuple[str, str], int], rows: Any = None
    ) -> None:
        shown = [f"{n} {kind} in {key}" for (key, kind), n in sorted(conflicts.items())]
        super().__init__(
            f"{source} and {into} have changes that don't go together",
            expected="no row that both changed in different ways, and no dangling edge",
            found=", ".join(shown[:20]),
            hint=(
                "Nothing was written. merge(…, dry_run=True).conflict_rows lists them;"
                " resolution='ours' or 'theirs' decides rows that both changed"
            ),
            conflicts=dict(conflicts),
        )
        self.rows = rows


class CorruptManifestError(OmnigraphError):
    """`__manifest`, a table or a schema file on disk contradicts the format."""

    code = "CORRUPT_MANIFEST"


class RecoveryPendingError(OmnigraphError):
    """Another engine's crash record is in `__recovery/`; the graph isn't written around it."""

    code = "RECOVERY_PENDING"


class CommitTimeoutError(OmnigraphError):
    """`commitTimeoutSeconds` ran out while others published first; nothing was published."""

    code = "COMMIT_TIMEOUT"


class UnsupportedError(OmnigraphError):
    """The request is understood and deliberately not supported."""

    code = "UNSUPPORTED"


class StorageError(OmnigraphError):
    """The store refused or failed; `cause` is its own text without secrets."""

    code = "STORAGE"


class CredentialsError(StorageError):
    """The store doesn't accept the credentials, or there are none."""

    code = "CREDENTIALS"


class PermissionDeniedError(StorageError):
    """The store knows who asks, and doesn't allow it."""

    code = "PERMISSION_DENIED"


class BucketNotFoundError(StorageError):
    """The bucket or container of the path isn't there; none is ever made."""

    code = "BUCKET_NOT_FOUND"


class ThrottledError(StorageError):
    """The store went on refusing requests because there were too many, or it was too busy."""

    code = "THROTTLED"


def _subclasses(kind: type[OmnigraphError]) -> dict[str, type[OmnigraphError]]:
    by_code = {kind.code: kind}
    for sub in kind.__subclasses__():
        by_code = _subclasses(sub) | by_code
    return by_code


_CODED = re.compile(
    r"(?P<text>\[OMNIGRAPH_(?P<code>[A-Z_]+)\][^\n]*)(?:\ndetails: (?P<details>\{.*\}))?"
)


def from_spark(error: BaseException) -> BaseException:
    """Return the typed error whose text a Spark exception carries, else `error` itself.

    Runs on the driver, in user code. Only text crosses Spark's process boundary, and with it come
    `what`, `expected`, `found`, `hint` and the details (`table_key`, `column`, `samples`, …). Of
    several texts the last one counts: it was raised in the end.
    """
    if isinstance(error, OmnigraphError):
        return error
    matches = list(_CODED.finditer(str(error)))
    if not matches:
        return error
    text = matches[-1]["text"]
    kind = _subclasses(OmnigraphError).get(matches[-1]["code"], OmnigraphError)
    typed = kind.__new__(kind)
    typed.args = (text,)
    typed.what, typed.expected, typed.found, typed.hint = _parts(text)
    typed.details = _details(matches[-1]["details"])
    for name, value in typed.details.items():
        setattr(typed, name, value)
    match = None if kind._told is None else kind._told.search(text)
    for name, value in (match.groupdict() if match else {}).items():
        setattr(typed, name, int(value) if value.isdecimal() else value)
    typed.__cause__ = error
    return typed


def _parts(text: str) -> tuple[str, str | None, str | None, str | None]:
    """Return what, expected, found and hint of an error's text."""
    what, *parts = text.partition("] ")[2].split(_BETWEEN)
    named: dict[str, str] = {}
    for word in ("expected", "found"):
        if parts and parts[0].startswith(f"{word} "):
            named[word] = parts.pop(0).removeprefix(f"{word} ")
    return what, named.get("expected"), named.get("found"), _BETWEEN.join(parts) or None


def _details(text: str | None) -> dict[str, Any]:
    try:
        details = json.loads(text or "{}")
    except ValueError:  # cut off, or not ours
        return {}
    return details if isinstance(details, dict) else {}


# --- where errors leave the package --------------------------------------------------------------


def at_spark(method: _Method) -> _Method:
    """Decorate a method that Spark calls: its errors leave it from one frame, details in the text.

    The details are a line of JSON behind the text; `from_spark` reads them.
    """
    if inspect.isgeneratorfunction(method):

        @functools.wraps(method)
        def generating(*args: Any, **kwargs: Any) -> Iterator[Any]:
            try:
                yield from method(*args, **kwargs)
                return
            except OmnigraphError as error:
                failure = _with_details(error)
            raise failure

        return cast("_Method", generating)

    @functools.wraps(method)
    def calling(*args: Any, **kwargs: Any) -> Any:
        try:
            return method(*args, **kwargs)
        except OmnigraphError as error:
            failure = _with_details(error)
        raise failure

    return cast("_Method", calling)


def for_people(kind: _Class) -> _Class:
    """Decorate a class that people call: its public methods raise this package's errors.

    What Spark raises with one of our texts comes out as the typed error, and no error brings the
    way that it took through the package.
    """
    for name, method in inspect.getmembers(kind, inspect.isfunction):
        if not name.startswith("_"):
            setattr(kind, name, _typed(method))
    return kind


def _typed(method: _Method) -> _Method:
    @functools.wraps(method)
    def calling(*args: Any, **kwargs: Any) -> Any:
        try:
            return method(*args, **kwargs)
        except Exception as error:
            failure = from_spark(error)
            if not isinstance(failure, OmnigraphError):
                raise
            failure = _bare(failure)
        raise failure

    return cast("_Method", calling)


def _bare(error: OmnigraphError) -> OmnigraphError:
    if os.environ.get("OMNIGRAPH_SPARK_TRACE") != "full":
        error.__cause__ = error.__context__ = None
        error.__traceback__ = None
    return error


def _with_details(error: OmnigraphError) -> OmnigraphError:
    plain = {
        name: _short(value)
        for name, value in error.details.items()
        if value is not None and not isinstance(value, Mapping)
    }
    text = str(error).partition("\n")[0]
    if plain:
        shown = json.dumps(plain, ensure_ascii=False, default=str, sort_keys=True)
        error.args = (f"{text}\ndetails: {redact(shown)}",)
    return _bare(error)


def _short(value: Any) -> Any:
    """Return a detail as something small that JSON can hold."""
    if isinstance(value, (bool, int, float)):
        return value
    if isinstance(value, (list, tuple, set, frozenset)):
        return [_short(item) for item in list(value)[:_MOST]]
    text = str(value)
    return text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"
