"""Progress: steps in the log always, a bar only where a person is watching; Lance's needless noise."""

from __future__ import annotations

import io
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


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def steps(stream: io.StringIO) -> str:
    with Progress("optimize", 2, stream) as progress:
        progress.step("node:Person is rewritten")
        progress.step("published")
    return stream.getvalue()


def test_a_terminal_gets_one_line_that_is_drawn_again() -> None:
    drawn = steps(Terminal())
    assert drawn.count("\n") == 1
    assert drawn.endswith("\n")
    first, second, third = (line.rstrip() for line in drawn.strip("\n").split("\r")[1:])
    assert first == f"optimize [{'.' * 24}] 0/2"
    assert second.startswith(f"optimize [{'#' * 12}{'.' * 12}] 1/2 node:Person")
    assert third == f"optimize [{'#' * 24}] 2/2 published"
    assert len({len(line) for line in drawn.strip("\n").split("\r")[1:]}) == 1, (
        "nothing is left over"
    )


def test_a_file_gets_nothing_and_the_log_every_step(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "omnigraph_spark"):
        assert steps(io.StringIO()) == ""
    assert caplog.messages == [
        "optimize: node:Person is rewritten (1 of 2)",
        "optimize: published (2 of 2)",
    ]


def test_a_bar_ends_its_line_when_the_call_fails_and_takes_more_steps_than_it_was_told() -> None:
    stream = Terminal()

    def fail() -> None:
        with Progress("cleanup", 1, stream) as progress:
            progress.step("one")
            progress.step("two")
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert f"[{'#' * 24}] 2/1 two" in stream.getvalue()
    assert stream.getvalue().endswith("\n")


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
