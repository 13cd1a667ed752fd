"""A proxy in front of an S3 server that answers 503 for a while, from a request on."""

from __future__ import annotations

import http.client
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit

_BUSY = (
    b'<?xml version="1.0" encoding="UTF-8"?>'
    b"<Error><Code>SlowDown</Code><Message>Please reduce your request rate.</Message></Error>"
)
_HOP_BY_HOP = {"connection", "keep-alive", "transfer-encoding", "content-length"}

Starts = Callable[[str, str], bool]
"""Whether the store goes dark once a request has been done: method, and path (POST: and body)."""


class Proxy:
    """What the proxy does now: `dark` arms it for one request, which may lose its answer too."""

    def __init__(self, server: str) -> None:
        parts = urlsplit(server)
        assert parts.hostname is not None
        assert parts.port is not None
        self.server = (parts.hostname, parts.port)
        self.endpoint = ""
        self.requests = 0
        self.refused = 0
        self._starts: Starts | None = None
        self._seconds = 0.0
        self._loses_answer = False
        self._until = 0.0
        self._lock = threading.Lock()

    def dark(self, starts: Starts, seconds: float, *, loses_answer: bool = False) -> None:
        """Answer 503 for so long after the first request that `starts` knows was done."""
        with self._lock:
            self._starts, self._seconds, self._loses_answer = starts, seconds, loses_answer
            self.refused = 0

    def is_dark(self) -> bool:
        """Return whether requests are refused now."""
        return time.monotonic() < self._until

    def went_dark(self) -> bool:
        """Return whether the request came."""
        return self._starts is None

    def wait(self) -> None:
        """Wait until requests are answered again."""
        while self.is_dark():
            time.sleep(0.05)

    def done(self, method: str, path: str, status: int) -> bool:
        """Note a request that the server did; returns whether its answer is lost."""
        with self._lock:
            self.requests += 1
            if self._starts is None or status >= 300 or not self._starts(method, path):
                return False
            self._starts = None
            self._until = time.monotonic() + self._seconds
            return self._loses_answer


@contextmanager
def in_front_of(server: str) -> Iterator[Proxy]:
    """Start the proxy on a free port and stop it."""
    proxy = Proxy(server)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _pass_on(self) -> None:
            size = int(self.headers.get("Content-Length") or 0)
            body = self.rfile.read(size) if size else b""
            if proxy.is_dark():
                proxy.refused += 1
                self._answer(503, {"Content-Type": "application/xml"}, _BUSY)
                return
            upstream = http.client.HTTPConnection(*proxy.server)
            try:
                upstream.request(self.command, self.path, body, dict(self.headers))
                response = upstream.getresponse()
                content = response.read()
                headers = {k: v for k, v in response.getheaders() if k.lower() not in _HOP_BY_HOP}
                size_told = response.getheader("Content-Length")
            finally:
                upstream.close()
            path = unquote(urlsplit(self.path).path)
            told = path + body.decode("utf-8", "replace") if self.command == "POST" else path
            if proxy.done(self.command, told, response.status):
                self._answer(503, {"Content-Type": "application/xml"}, _BUSY)
                return
            if self.command == "HEAD" and size_told is not None:
                headers["Content-Length"] = size_told
            self._answer(response.status, headers, content)

        def _answer(self, status: int, headers: dict[str, str], content: bytes) -> None:
            self.send_response_only(status)
            for name, value in headers.items():
                self.send_header(name, value)
            if "Content-Length" not in headers:
                self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(content)

        do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = _pass_on

        def log_message(self, format: str, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as listening:
        listening.daemon_threads = True
        thread = threading.Thread(target=listening.serve_forever, daemon=True)
        thread.start()
        proxy.endpoint = f"http://127.0.0.1:{listening.server_address[1]}"
        try:
            yield proxy
        finally:
            listening.shutdown()
            thread.join()
