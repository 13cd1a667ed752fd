"""What the Python processes that Spark uses again leave out of their garbage collections."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from omnigraph_spark.storage.store import Storage
from tests.support.sparks import PROJECT
from tests.support.writes import PERSON, new_graph

OPEN_TWICE = """\
import gc, sys, weakref
from omnigraph_spark.storage.store import Storage

class Cycle:
    def __init__(self):
        self.itself = self

def dataset_opened():
    Storage.at(sys.argv[1]).dataset("__manifest")
    return gc.get_freeze_count()

first = dataset_opened()
later = weakref.ref(Cycle())
second = dataset_opened()
gc.collect()
print(first, second, later() is None)
"""


@pytest.mark.parametrize("used_again", [True, False])
def test_only_a_worker_that_is_used_again_spares_its_loaded_modules_from_collection_and_once(
    tmp_path: Path, used_again: bool
) -> None:
    new_graph(Storage.at(str(tmp_path / "g")), [PERSON])
    env = {k: v for k, v in os.environ.items() if k != "SPARK_REUSE_WORKER"}
    done = subprocess.run(
        [sys.executable, "-c", OPEN_TWICE, str(tmp_path / "g")],
        env={**env, **({"SPARK_REUSE_WORKER": "1"} if used_again else {})},
        cwd=PROJECT,
        capture_output=True,
        text=True,
        check=True,
    )
    first, second, collected = done.stdout.split()
    assert (int(first) > 10_000, first == second, collected) == (used_again, True, "True")
