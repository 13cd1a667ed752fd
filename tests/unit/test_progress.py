"""Progress: the steps of long calls are in the log; Lance's needless warnings are not."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest

from omnigraph_spark.storage.progress import Progress

PROJECT = Path(__file__).resolve().parents[2]
WRITE = """
import sys, omnigraph_spark
from omnigraph_spark.storage.store import Storage
from tests.support.writes import new_graph
new_graph(Storage.at(sys.argv[1]))
"""


def test_every_step_is_logged_also_those_above_the_expected_number(
    caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    progress = Progress("optimize", 2)
    with caplog.at_level(logging.INFO, "omnigraph_spark"):
        for what in ("node:Person is compacted", "published", "one more"):
            progress.step(what)
    assert caplog.messages == [
        "optimize: node:Person is compacted (1 of 2)",
        "optimize: published (2 of 2)",
        "optimize: one more (3 of 2)",
    ]
    assert capsys.readouterr() == ("", "")


@pytest.mark.long
@pytest.mark.parametrize("own", [None, "warn"])
def test_a_new_table_is_no_warning_unless_the_user_has_set_lances_log(
    own: str | None, tmp_path: Path
) -> None:
    environment = {key: value for key, value in os.environ.items() if key != "LANCE_LOG"}
    if own is not None:
        environment["LANCE_LOG"] = own
    done = subprocess.run(
        [sys.executable, "-c", WRITE, str(tmp_path / "g")],
        env={**environment, "PYTHONPATH": str(PROJECT)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert ("it will be created" in done.stderr) == (own is not None)
