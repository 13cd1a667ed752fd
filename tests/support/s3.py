"""An S3 store on this machine: moto's server in a process of its own."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.sparks import CANARY_KEY, CANARY_SECRET

REGION = "us-east-1"

# Ends when its standard input does, so it never outlives the tests.
_SERVER = """\
import logging, sys
from moto.server import ThreadedMotoServer
logging.getLogger("werkzeug").setLevel(logging.ERROR)
server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
server.start()
print(server.get_host_and_port()[1], flush=True)
sys.stdin.read()
server.stop()
"""


@dataclass(frozen=True)
class Bucket:
    """One bucket of the server, and how to reach it."""

    name: str
    endpoint: str

    @property
    def uri(self) -> str:
        return f"s3://{self.name}"

    @property
    def public_options(self) -> dict[str, str]:
        """Return Lance's storage options without the keys (those are in the environment)."""
        return {
            "aws_endpoint": self.endpoint,
            "allow_http": "true",
            "aws_region": REGION,
        }

    @property
    def storage_options(self) -> dict[str, str]:
        """Return Lance's storage options, keys included."""
        return {
            **self.public_options,
            "aws_access_key_id": CANARY_KEY,
            "aws_secret_access_key": CANARY_SECRET,
        }

    @property
    def spark_options(self) -> dict[str, str]:
        """Return the options of the data source, without the keys."""
        return {f"storage.{key}": value for key, value in self.public_options.items()}

    def client(self) -> Any:
        """Return a boto3 client of the server."""
        return client(self.endpoint)

    def upload(self, folder: Path, prefix: str = "") -> str:
        """Copy a folder's files below `prefix` and return the URI of the copy."""
        prefix = prefix or folder.name
        s3 = self.client()
        for path in sorted(folder.rglob("*")):
            if path.is_file():
                key = f"{prefix}/{path.relative_to(folder).as_posix()}"
                s3.put_object(Bucket=self.name, Key=key, Body=path.read_bytes())
        return f"{self.uri}/{prefix}"

    def objects(self, prefix: str = "") -> dict[str, bytes]:
        """Return every object below `prefix` with its bytes."""
        s3 = self.client()
        pages = s3.get_paginator("list_objects_v2").paginate(Bucket=self.name, Prefix=prefix)
        return {
            entry["Key"]: s3.get_object(Bucket=self.name, Key=entry["Key"])["Body"].read()
            for page in pages
            for entry in page.get("Contents", [])
        }


def client(endpoint: str) -> Any:
    """Return a boto3 client of the server at `endpoint`."""
    import boto3

    return boto3.client(
        "s3",
        endpoint_url=endpoint,
        region_name=REGION,
        aws_access_key_id=CANARY_KEY,
        aws_secret_access_key=CANARY_SECRET,
    )


@contextmanager
def serving() -> Iterator[str]:
    """Start the server on a free port, yield its endpoint, and stop it."""
    process = subprocess.Popen(
        [sys.executable, "-c", _SERVER],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        assert process.stdout is not None
        port = process.stdout.readline().strip()
        assert port, "moto's server didn't start"
        yield f"http://127.0.0.1:{port}"
    finally:
        assert process.stdin is not None
        process.stdin.close()
        try:
            process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        if process.stdout is not None:
            process.stdout.close()
