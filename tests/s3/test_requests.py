"""What calls cost on an object store: upper bounds, so that none gets dearer unnoticed."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support import faulty_s3, requests
from tests.support.faulty_s3 import Proxy
from tests.support.s3 import Bucket

pytestmark = pytest.mark.long

MOST: dict[str, tuple[int, int]] = {
    "append": (76, 7),
    "load": (15, 1),
    "append again": (54, 7),
    "load again": (4, 1),
    "load at a time": (21, 4),
    "load at a version": (18, 2),
    "make a branch": (75, 17),
    "first append to a branch": (82, 12),
    "append to a branch": (63, 8),
    "load a branch": (16, 1),
    "merge ten rows": (108, 12),
    "cleanup of twelve tables": (202, 62),
}
"""(requests, opened datasets) by call, at most."""


@pytest.fixture
def proxy(bucket: Bucket) -> Iterator[Proxy]:
    with faulty_s3.in_front_of(bucket.endpoint) as made:
        yield made


def test_no_call_asks_a_store_more_often_than_this(bucket: Bucket, proxy: Proxy) -> None:
    found = requests.costs(bucket, proxy)
    assert found.keys() == MOST.keys()
    dearer = {
        name: (count.requests, count.opens)
        for name, count in found.items()
        if count.requests > MOST[name][0] or count.opens > MOST[name][1]
    }
    assert dearer == {}
