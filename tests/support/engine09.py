"""The program of engine 0.9, where there is one: named by OMNIGRAPH_ENGINE_09, or kept beside."""

from __future__ import annotations

import lzma
import os
import tempfile
from functools import lru_cache
from pathlib import Path

from tests.support.graphs import PROJECT

PACKED = PROJECT.parent / "shared" / "engines" / "omnigraph-0.9.0.xz"
WITHOUT = "OMNIGRAPH_ENGINE_09 names no program of engine 0.9, and none is kept beside the project"


@lru_cache(maxsize=1)
def program() -> Path | None:
    """Return the program, unpacked where need be; None where there is none."""
    named = os.environ.get("OMNIGRAPH_ENGINE_09")
    if named is not None:
        return Path(named)
    if not PACKED.is_file():
        return None
    into = Path(tempfile.mkdtemp(prefix="engine09-")) / "omnigraph-0.9.0"
    into.write_bytes(lzma.decompress(PACKED.read_bytes()))
    into.chmod(0o755)
    return into
