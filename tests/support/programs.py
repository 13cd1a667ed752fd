"""The programs of the original engine: named by the environment, or kept beside the project.

They are unpacked once per process into a folder that later processes find again.
"""

from __future__ import annotations

import lzma
import os
import tempfile
from functools import cache
from pathlib import Path

import pytest

from tests.support.engine import Engine
from tests.support.graphs import PROJECT

OLDER, NEWER = "0.6.1", "0.9.0"
"""The release that graphs of stamp 2 are tried with, and today's, whose graphs are of stamp 6."""
OF_STAMP_3, OF_STAMP_4 = "0.7.2", "0.8.0"
_NAMED = {
    OLDER: "OMNIGRAPH_ENGINE",
    OF_STAMP_3: "OMNIGRAPH_ENGINE_07",
    OF_STAMP_4: "OMNIGRAPH_ENGINE_08",
    NEWER: "OMNIGRAPH_ENGINE_09",
}
_PACKED = PROJECT.parent / "shared" / "engines"


@cache
def program(release: str) -> Path | None:
    """Return the program of a release, unpacked where need be; None where there is none."""
    named = os.environ.get(_NAMED[release])
    if named is not None:
        return Path(named)
    packed = _PACKED / f"omnigraph-{release}.xz"
    if not packed.is_file():
        return None
    folder = Path(tempfile.gettempdir()) / f"omnigraph-engines-{os.getuid()}"
    there = folder / packed.stem
    if not there.is_file():
        folder.mkdir(exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=folder, delete=False) as file:
            file.write(lzma.decompress(packed.read_bytes()))
        os.chmod(file.name, 0o755)
        os.replace(file.name, there)
    return there


def engine_or_skip(release: str) -> Engine:
    """Return the engine of a release; a test is skipped without it."""
    found = program(release)
    if found is None:
        pytest.skip(
            f"{_NAMED[release]} names no program of engine {release}, and none is kept beside the"
            " project (docs/internals/development.md)"
        )
    return Engine(found)
