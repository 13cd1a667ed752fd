"""The engine's programs, where there are any."""

from __future__ import annotations

import os
from pathlib import Path

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


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave the sample of these tests, unless all of them are asked for, or a file is named."""
    here = Path(__file__).parent
    named = any("test_" in one for one in config.args)
    if named or os.environ.get("OMNIGRAPH_ENGINE_TESTS") == "all":
        return
    left_out = [
        item
        for item in items
        if item.path.is_relative_to(here) and item.get_closest_marker("sample") is None
    ]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in left_out]
