"""The typed errors: their text, their way through Spark, and what they never show."""

from __future__ import annotations

import pickle
import re
import traceback

import pytest

from omnigraph_spark import errors
from omnigraph_spark._redaction import is_secret, redact
from omnigraph_spark.errors import (
    ExpectedVersionMismatch,
    IntegrityError,
    MergeConflictError,
    OmnigraphError,
    OptionError,
    PublishOutcomeUnknown,
    RowConflictError,
    SchemaMismatchError,
    StorageError,
    TableNotFoundError,
    at_spark,
    for_people,
    from_spark,
)
from omnigraph_spark.storage import lance_errors
from omnigraph_spark.storage.lance_errors import (
    DatasetNotFoundError,
    Outcome,
    outcome_of,
    translated,
)

SECRET = "wJalrXUtnFEMI/K7MDENG"


def all_classes(kind: type[OmnigraphError] = OmnigraphError) -> list[type[OmnigraphError]]:
    return [kind, *(one for sub in kind.__subclasses__() for one in all_classes(sub))]


def made(kind: type[OmnigraphError]) -> OmnigraphError:
    if kind is RowConflictError:
        return RowConflictError("node:Person", ["a"], 1)
    if issubclass(kind, ExpectedVersionMismatch):
        return kind("node:Person", 3, 4)
    if issubclass(kind, PublishOutcomeUnknown):
        return kind("01A", "the store went dark")
    if issubclass(kind, MergeConflictError):
        return kind("dev", "main", {("node:Person", "DivergentUpdate"): 3})
    return kind("It failed.", expected="one", found="other", hint="Do that.", rule="r")


def in_traceback(*raised: OmnigraphError) -> str:
    """Return a text like Spark's for an exception that a Python worker raised, causes first."""
    parts = [
        f"  File \"/x/errors.py\", line 1, in f\n    return f'[OMNIGRAPH_{{code}}]'\n"
        f"omnigraph_spark.errors.{type(error).__name__}: {error}\n"
        for error in raised
    ]
    chained = "\nThe above exception was the direct cause of the following exception:\n".join(parts)
    return (
        f"[PYTHON_DATA_SOURCE_ERROR] Failed:\nTraceback (most recent call last):\n{chained}\tat x"
    )


# --- text --------------------------------------------------------------------------------------


def test_the_text_says_what_was_expected_what_was_found_and_what_to_do() -> None:
    error = OptionError("It failed.", expected="one", found="other", hint="Do that.")
    assert str(error) == "[OMNIGRAPH_OPTION] It failed · expected one · found other · Do that"


def test_parts_that_are_not_given_leave_no_trace() -> None:
    assert str(OptionError("It failed")) == "[OMNIGRAPH_OPTION] It failed"


@pytest.mark.parametrize("kind", all_classes())
def test_every_error_has_a_code_of_capitals_and_one_line(kind: type[OmnigraphError]) -> None:
    assert re.fullmatch(r"[A-Z][A-Z_]*[A-Z]", kind.code)
    assert re.fullmatch(rf"\[OMNIGRAPH_{kind.code}\] [^\n]+", str(made(kind)))


def test_codes_belong_to_one_class_and_its_subclasses() -> None:
    owners: dict[str, type[OmnigraphError]] = {}
    for kind in all_classes():
        assert issubclass(kind, owners.setdefault(kind.code, kind)), kind


def test_hostile_text_stays_on_one_line() -> None:
    error = OptionError("No table 'x\ny'", found="a\r\n\tb")
    assert str(error) == "[OMNIGRAPH_OPTION] No table 'x y' · found a b"
    assert str(from_spark(RuntimeError(str(error)))) == str(error)


def test_option_errors_are_value_errors() -> None:
    assert issubclass(OptionError, ValueError)


def test_details_are_attributes() -> None:
    error = IntegrityError("bad rows", table_key="node:A", rule="key", samples=["x"])
    assert (error.details["rule"], error.details["samples"]) == ("key", ["x"])
    assert error.__dict__["table_key"] == "node:A"


# --- through pickle and Spark ------------------------------------------------------------------


@pytest.mark.parametrize("kind", all_classes())
def test_every_error_survives_pickling_with_its_attributes(kind: type[OmnigraphError]) -> None:
    error = made(kind)
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is kind
    assert str(copy) == str(error)
    assert copy.__dict__ == error.__dict__


@pytest.mark.parametrize("kind", all_classes())
def test_every_error_survives_as_text_in_a_spark_exception(kind: type[OmnigraphError]) -> None:
    error = made(kind)
    spark = RuntimeError(in_traceback(error))
    typed = from_spark(spark)
    assert isinstance(typed, OmnigraphError)
    assert typed.code == kind.code
    assert isinstance(error, type(typed)), "a subclass comes back as the owner of its code"
    assert str(typed) == str(error)
    assert typed.__cause__ is spark


def test_the_error_that_was_raised_in_the_end_counts_not_its_cause() -> None:
    text = in_traceback(StorageError("the cause"), OptionError("the end"))
    typed = from_spark(RuntimeError(text))
    assert isinstance(typed, OptionError)
    assert str(typed) == "[OMNIGRAPH_OPTION] the end"


def test_versions_of_a_mismatch_come_back_as_numbers() -> None:
    typed = from_spark(RuntimeError(in_traceback(ExpectedVersionMismatch("edge:Knows", 3, 14))))
    assert isinstance(typed, ExpectedVersionMismatch)
    assert (typed.table_key, typed.expected, typed.actual) == ("edge:Knows", 3, 14)


def test_the_id_of_an_unknown_publish_comes_back() -> None:
    error = PublishOutcomeUnknown("01M8FNDWKG190SV9YE9P33ECS6", "dark", cause="reset")
    typed = from_spark(RuntimeError(in_traceback(error)))
    assert isinstance(typed, PublishOutcomeUnknown)
    assert typed.publish_id == "01M8FNDWKG190SV9YE9P33ECS6"


def _crossing(error: OmnigraphError) -> str:
    """Return what Spark has of an error that leaves a method of the data source."""

    @at_spark
    def planned() -> None:
        def deep(level: int) -> None:
            if level:
                deep(level - 1)
            try:
                raise OSError("the store's own text")
            except OSError as cause:
                raise error from cause

        deep(12)

    try:
        planned()
    except OmnigraphError:
        return traceback.format_exc()
    raise AssertionError


@pytest.mark.parametrize("kind", all_classes())
def test_parts_and_details_of_an_error_come_back_from_spark(kind: type[OmnigraphError]) -> None:
    error = made(kind)
    expected, details = error.expected, dict(error.details)
    typed = from_spark(RuntimeError(_crossing(error)))
    assert isinstance(typed, OmnigraphError)
    assert typed.what == error.what.rstrip(".")
    assert typed.hint == ((error.hint or "").rstrip(".") or None)
    assert str(typed.expected) == str(expected)
    assert str(typed.found) == str(error.found)
    for name, value in details.items():
        if value is not None and not isinstance(value, dict):
            assert getattr(typed, name) == (list(value) if isinstance(value, tuple) else value)


def test_parts_that_the_text_does_not_have_are_none() -> None:
    typed = from_spark(RuntimeError(str(OptionError("It failed", hint="Do that"))))
    assert isinstance(typed, OptionError)
    assert (typed.what, typed.hint, typed.details) == ("It failed", "Do that", {})
    assert (typed.expected, typed.found) == (None, None)
    cut = "[OMNIGRAPH_OPTION] It failed\ndetails: {not json}"
    again = from_spark(RuntimeError(cut))
    assert isinstance(again, OptionError)
    assert again.details == {}


def test_an_error_at_sparks_boundary_shows_the_way_of_one_frame_and_no_secret() -> None:
    kept = {"column": "n", "table_key": "node:A", "token": f"aws_secret_access_key={SECRET}"}
    error = SchemaMismatchError("It doesn't fit", **kept)
    lines = _crossing(error).strip().splitlines()
    at = next(n for n, line in enumerate(lines) if "[OMNIGRAPH_SCHEMA_MISMATCH]" in line)
    inside = [line for line in lines[:at] if "omnigraph_spark" in line]
    assert len(inside) == 1, lines
    assert "the store's own text" not in "".join(lines)
    assert lines[at + 1].startswith('details: {"column": "n", "table_key": "node:A"')
    assert len(lines) == at + 2
    assert SECRET not in "".join(lines)


def test_errors_of_a_class_for_people_are_typed_and_bare() -> None:
    @for_people
    class Handle:
        def read(self, failure: Exception) -> None:
            self._deep(5, failure)

        def _deep(self, level: int, failure: Exception) -> None:
            if level:
                self._deep(level - 1, failure)
            raise failure

    spark = RuntimeError("Failed: [OMNIGRAPH_TABLE_NOT_FOUND] No table 'x' · expected y")
    for failure in (spark, TableNotFoundError("No table 'x'", expected="y")):
        with pytest.raises(TableNotFoundError, match="No table 'x'") as caught:
            Handle().read(failure)
        assert caught.value.expected == "y"
        assert len(traceback.extract_tb(caught.value.__traceback__)) <= 2
        assert caught.value.__cause__ is caught.value.__context__ is None
    with pytest.raises(ZeroDivisionError):
        Handle().read(ZeroDivisionError())


def test_the_whole_way_of_an_error_is_there_on_demand(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMNIGRAPH_SPARK_TRACE", "full")
    text = _crossing(StorageError("It failed"))
    assert text.count("in deep") >= 2
    assert "the store's own text" in text


def test_an_error_of_a_code_to_come_is_an_omnigraph_error() -> None:
    typed = from_spark(RuntimeError("[OMNIGRAPH_OF_TOMORROW] later"))
    assert type(typed) is OmnigraphError
    assert str(typed) == "[OMNIGRAPH_OF_TOMORROW] later"


def test_an_error_of_somebody_else_stays_what_it_is() -> None:
    error = RuntimeError("[PYTHON_DATA_SOURCE_ERROR] nothing of ours")
    assert from_spark(error) is error


# --- secrets -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        f"aws_secret_access_key={SECRET}",
        f"AWS_SECRET_ACCESS_KEY: {SECRET}",
        f"{{'aws_secret_access_key': '{SECRET}', 'aws_region': 'x'}}",
        f'{{"aws_session_token": "{SECRET} and more"}}',
        f'AmazonS3Config {{ secret_access_key: Some("{SECRET}") }}',
        f"s3://key:{SECRET}@bucket/graph",
        f"https://user:{SECRET}@host/x",
        f"https://{SECRET.replace('/', '')}@host/x",
        f"https://h/x?X-Amz-Signature={SECRET}&x=1",
        f"https://account.blob/x?sv=2024&sig={SECRET}&x=1",
        f"Authorization: Bearer {SECRET}",
        f"x-amz-security-token: {SECRET}",
        f"AWS4-HMAC-SHA256 Credential={SECRET}/2026, SignedHeaders=host, Signature={SECRET}",
        f"<AWSAccessKeyId>{SECRET}</AWSAccessKeyId><StringToSign>{SECRET}</StringToSign>",
        f"password: {SECRET}",
        "password: hunter",
        "the key AKIAIOSFODNN7EXAMPLE does not exist",
        f"aws_sse_customer_key_base64={SECRET}",
        f"azure_storage_account_key={SECRET}",
    ],
)
def test_a_secret_in_a_text_is_redacted(text: str) -> None:
    shown = redact(text)
    for secret in (SECRET, SECRET.replace("/", ""), "hunter", "AKIAIOSFODNN7EXAMPLE"):
        assert secret not in shown
    assert "(redacted)" in shown
    assert redact(shown) == shown


@pytest.mark.parametrize(
    "text",
    [
        "No table node:Person on branch main",
        "node Login { token: String, signature: String? }",
        "abfss://container@account.dfs.core.windows.net/graph",
        "Opening nodes/40d76f1f51639ec0 of s3://bucket/graph",
        "mail a@b.example",
        "expected version 3 · found version 4",
    ],
)
def test_what_is_no_secret_stays_readable(text: str) -> None:
    assert redact(text) == text


@pytest.mark.parametrize(
    ("name", "secret"),
    [
        ("aws_secret_access_key", True),
        ("AWS_ACCESS_KEY_ID", True),
        ("aws_session_token", True),
        ("azure_storage_sas_token", True),
        ("google_application_credentials", True),
        ("aws_sse_customer_key_base64", True),
        ("aws_endpoint", False),
        ("aws_region", False),
        ("allow_http", False),
        ("aws_virtual_hosted_style_request", False),
    ],
)
def test_names_of_storage_options_that_hold_secrets_are_known(name: str, secret: bool) -> None:
    assert is_secret(name) == secret


def test_no_part_of_an_error_shows_a_secret() -> None:
    text = f"token={SECRET}"
    error = OptionError(text, expected=text, found=text, hint=text)
    assert SECRET not in str(error)
    assert SECRET not in repr(error)
    assert SECRET not in f"{error.what}{error.expected}{error.found}{error.hint}"


def test_a_secret_does_not_leak_through_the_cause_of_a_translated_error() -> None:
    """Spark shows the whole traceback, causes included."""
    with (
        pytest.raises(StorageError, match=r"OMNIGRAPH_STORAGE\] Writing failed") as caught,
        translated("Writing"),
    ):
        raise OSError(f"403: <AWSAccessKeyId>{SECRET}</AWSAccessKeyId>")
    assert SECRET not in str(caught.value)
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__


def test_a_harmless_cause_is_kept() -> None:
    cause = OSError("disk full")
    with (
        pytest.raises(StorageError, match=r"OMNIGRAPH_STORAGE\].*found OSError: disk") as caught,
        translated("Writing"),
    ):
        raise cause
    assert caught.value.__cause__ is cause


# --- translation -------------------------------------------------------------------------------


def test_a_typed_error_passes_translation_unchanged() -> None:
    error = OptionError("mine")
    with (
        pytest.raises(OptionError, match=r"OMNIGRAPH_OPTION\] mine") as caught,
        translated("Writing"),
    ):
        raise error
    assert caught.value is error


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit, GeneratorExit, MemoryError])
def test_what_is_no_failure_of_the_store_passes_translation(kind: type[BaseException]) -> None:
    with pytest.raises(kind), translated("Writing"):
        raise kind


def test_lances_source_positions_are_not_shown() -> None:
    error = lance_errors.typed(
        OSError("Too many, /home/runner/work/lance/lance/rust/lance/src/x.rs:103:9"), "Writing"
    )
    assert error.found == "OSError: Too many"


def test_a_long_text_of_lance_is_cut() -> None:
    error = lance_errors.typed(OSError("x" * 5000), "Writing")
    assert len(str(error)) < 500


@pytest.mark.parametrize(
    ("text", "outcome"),
    [
        ("Commit result for version 7 is unknown", Outcome.UNKNOWN),
        ("Commit result for version 7 is unknown: commit conflict", Outcome.UNKNOWN),
        ("Dataset at path g/_versions/0.manifest was not found", Outcome.CONFLICT),
        ("Dataset at path g/_versions/10.manifest was not found", Outcome.NOT_FOUND),
        (
            "Dataset at path g/_versions/18446744073709551610.manifest was not found",
            Outcome.NOT_FOUND,
        ),
        ("disk full", Outcome.FAILED),
    ],
)
def test_texts_are_told_apart(text: str, outcome: Outcome) -> None:
    assert outcome_of(OSError(text)) is outcome


def test_what_is_not_there_is_a_storage_error_of_its_own() -> None:
    error = lance_errors.typed(ValueError("Dataset at path x was not found"), "Opening x")
    assert type(error) is DatasetNotFoundError
    assert isinstance(error, StorageError)
    assert errors.from_spark(RuntimeError(str(error))).__class__ is StorageError
