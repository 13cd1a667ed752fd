"""The engine's program, where there is one."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.support.engine import Engine


@pytest.fixture(scope="session")
def engine() -> Engine:
    """The original engine; without it these tests are skipped."""
    program = os.environ.get("OMNIGRAPH_ENGINE")
    if program is None:
        pytest.skip(
            "OMNIGRAPH_ENGINE names no engine: docs/internals/development.md says how to build one"
        )
    return Engine(Path(program))
