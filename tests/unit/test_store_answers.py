"""What a store answers, and what it becomes: a refusal is never "not there"."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from omnigraph_spark.errors import (
    BucketNotFoundError,
    CredentialsError,
    GraphNotFoundError,
    OmnigraphError,
    PermissionDeniedError,
    StorageError,
    ThrottledError,
)
from omnigraph_spark.manifest.snapshot import load
from omnigraph_spark.storage.lance_errors import (
    DatasetNotFoundError,
    Outcome,
    is_transient,
    outcome_of,
    typed,
)
from omnigraph_spark.storage.store import Storage


def s3(status: str, code: str = "", message: str = "") -> str:
    """Return Lance's text for an answer of S3."""
    body = f": <Error><Code>{code}</Code><Message>{message}</Message></Error>" if code else ": "
    return (
        "LanceError(IO): Generic S3 error: Error performing list request: Error performing GET "
        f"http://host/b?list-type=2 in 1ms - Server returned non-2xx status code: {status}{body}"
    )


WRONG_KEY = "The AWS Access Key Id you provided does not exist in our records."
ANSWERS: list[tuple[str, type[StorageError]]] = [
    (s3("403 Forbidden", "InvalidAccessKeyId", WRONG_KEY), CredentialsError),
    (
        s3("403 Forbidden", "SignatureDoesNotMatch", "The signature does not match"),
        CredentialsError,
    ),
    (s3("400 Bad Request", "ExpiredToken", "The provided token has expired."), CredentialsError),
    (s3("401 Unauthorized"), CredentialsError),
    (s3("403 Forbidden", "AuthenticationFailed", "Signature not found: x"), CredentialsError),
    ("Failed to get AWS credentials: no providers in chain provided credentials", CredentialsError),
    (s3("403 Forbidden", "AccessDenied", "Access Denied"), PermissionDeniedError),
    (s3("403 Forbidden", "AllAccessDisabled", "The object was not found"), PermissionDeniedError),
    (s3("403 Forbidden"), PermissionDeniedError),
    ("Unable to open file /g/x: Permission denied (os error 13)", PermissionDeniedError),
    (
        s3("404 Not Found", "NoSuchBucket", "The specified bucket does not exist"),
        BucketNotFoundError,
    ),
    (s3("404 Not Found", "ContainerNotFound", "no container"), BucketNotFoundError),
    (s3("400 Bad Request", "InvalidBucketName", "not valid"), BucketNotFoundError),
    (s3("503 Service Unavailable", "SlowDown", "Please reduce your request rate."), ThrottledError),
    (s3("503 Service Unavailable", "ServerBusy", "x was not found in time"), ThrottledError),
    (s3("429 Too Many Requests"), ThrottledError),
    (s3("500 Internal Server Error", "InternalError", "the key does not exist yet"), StorageError),
    ("Generic S3 error: HTTP error: error sending request", StorageError),
    ("Received redirect without LOCATION, an incorrectly configured region", StorageError),
    (s3("404 Not Found", "NoSuchKey", "The specified key does not exist."), DatasetNotFoundError),
    (s3("404 Not Found"), DatasetNotFoundError),
    ("Dataset at path g/__manifest was not found", DatasetNotFoundError),
    ("Object at location g/x not found: no such file or directory", DatasetNotFoundError),
]


@pytest.mark.parametrize(("text", "kind"), ANSWERS)
def test_an_answer_of_a_store_becomes_the_error_that_it_is(
    text: str, kind: type[StorageError]
) -> None:
    error = typed(OSError(text), "Opening __manifest")
    assert type(error) is kind
    absent = outcome_of(OSError(text)) is Outcome.NOT_FOUND
    assert absent == (kind is DatasetNotFoundError)


def test_a_commit_that_may_have_landed_stays_unknown_whatever_the_store_said_last() -> None:
    text = "Commit result for version 7 is unknown: " + s3("503 Service Unavailable", "SlowDown")
    assert outcome_of(OSError(text)) is Outcome.UNKNOWN


@pytest.mark.parametrize(
    ("text", "transient"),
    [
        (s3("503 Service Unavailable", "SlowDown"), True),
        (s3("500 Internal Server Error"), True),
        ("HTTP error: error sending request", True),
        ("Connection reset by peer", True),
        (s3("403 Forbidden", "AccessDenied"), False),
        (s3("404 Not Found", "NoSuchBucket"), False),
        ("No space left on device", False),
    ],
)
def test_a_table_commit_goes_round_again_where_the_store_was_busy_or_out_of_reach(
    text: str, transient: bool
) -> None:
    assert is_transient(OSError(text)) == transient


# --- a server that refuses -----------------------------------------------------------------------

REFUSALS = {
    "key": (403, "InvalidAccessKeyId", WRONG_KEY, CredentialsError),
    "denied": (403, "AccessDenied", "Access Denied", PermissionDeniedError),
    "bucket": (404, "NoSuchBucket", "The specified bucket does not exist", BucketNotFoundError),
}


class Refuses(BaseHTTPRequestHandler):
    """Answers every request for a bucket in the way that the bucket's name says."""

    def answer(self) -> None:
        status, code, message, _ = REFUSALS[self.path.split("/")[1].partition("?")[0]]
        body = f"<Error><Code>{code}</Code><Message>{message}</Message></Error>".encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    do_GET = do_HEAD = do_PUT = do_DELETE = do_POST = answer

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Refuses)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.long
@pytest.mark.parametrize("bucket", REFUSALS)
def test_a_store_that_refuses_is_never_no_graph_and_no_object(bucket: str, endpoint: str) -> None:
    options = {
        "aws_endpoint": endpoint,
        "allow_http": "true",
        "aws_access_key_id": "x",
        "aws_secret_access_key": "y",
        "aws_region": "us-east-1",
    }
    storage = Storage.at(f"s3://{bucket}/g", options)
    kind = REFUSALS[bucket][3]
    for ask in (
        lambda: load(storage),
        lambda: storage.has_dataset("__manifest"),
        lambda: storage.get("_schema.pg"),
        lambda: storage.list("__recovery"),
        lambda: storage.get_range("x", 0, 1),
        lambda: storage.delete("x"),
    ):
        with pytest.raises(OmnigraphError) as found:
            ask()
        assert type(found.value) is kind
        assert not isinstance(found.value, (GraphNotFoundError, DatasetNotFoundError))
