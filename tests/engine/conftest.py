"""The engine's programs, where there are any."""

from __future__ import annotations

import pytest

from tests.support import programs
from tests.support.engine import Engine


@pytest.fixture(scope="session")
def engine() -> Engine:
    """The original engine whose graphs are of stamp 2; without it these tests are skipped."""
    return programs.engine_or_skip(programs.OLDER)


@pytest.fixture(scope="session")
def newer() -> Engine:
    """Today's engine; without it these tests are skipped."""
    return programs.engine_or_skip(programs.NEWER)
