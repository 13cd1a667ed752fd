"""Fixtures of the tests without Spark."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from omnigraph_spark.storage import backoff


@pytest.fixture(scope="session", autouse=True)
def short_pauses() -> Iterator[None]:
    """Make the pauses after a lost try a tenth: they decide nothing, and would be minutes."""
    growing, shrinking = backoff.growing, backoff.shrinking
    patch = pytest.MonkeyPatch()
    patch.setattr(
        backoff, "growing", lambda tried, first, longest: growing(tried, first / 10, longest / 10)
    )
    patch.setattr(
        backoff,
        "shrinking",
        lambda lost, first, least=0.01: shrinking(lost, first / 10, least / 10),
    )
    yield
    patch.undo()
