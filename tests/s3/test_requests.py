"""What calls cost on an object store: upper bounds, so that none gets dearer unnoticed."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support import faulty_s3, requests
from tests.support.faulty_s3 import Proxy
from tests.support.s3 import Bucket

pytestmark = pytest.mark.long

MOST: dict[str, tuple[int, int]] = {
    "append": (118, 9),
    "load": (28, 1),
    "append again": (56, 8),
    "load again": (4, 1),
    "load at a time": (40, 7),
    "load at a version": (22, 4),
    "make a branch": (106, 21),
    "first append to a branch": (136, 29),
    "append to a branch": (102, 19),
    "load a branch": (30, 3),
    "merge ten rows": (210, 40),
    "cleanup of twelve tables": (282, 82),
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
