"""Whole Spark drivers: killed at every step, tasks that fail and are repeated."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from tests.chaos import launcher, oracle, rows
from tests.chaos.lab import Case, Lab
from tests.chaos.ledger import ACKNOWLEDGED
from tests.chaos.scenarios.crash import KILL_POINTS

PROJECT = Path(__file__).resolve().parents[3]
_START_SECONDS = 120.0
_FAIL = "tests.chaos.spark_driver:fail_first_attempts"


def kill_drivers(lab: Lab) -> None:
    """Kill a whole driver, its JVM and all its Python workers, once at each step of a write."""
    asked = [
        (number, step, points[-1])
        for number in range(lab.size(1, 25))
        for step, points in KILL_POINTS.items()
    ]
    lab.each(asked, lambda one: _kill(lab, *one), together=2)


def _kill(lab: Lab, number: int, step: str, point: str) -> None:
    case = lab.case(f"driver-{number}-{step}").make()
    mode = "overwrite" if (number + int(step[1:])) % 4 == 0 else "append"
    driver = _start(case, mode=mode, faults=f"{point}=stall:600", master="local[1]", partitions=1)
    lab.report.armed[point] += 1
    reached = _wait(lambda: launcher.delivered(case.folder)[point] > 0, driver)
    _kill_all(driver)
    lab.expect(reached, "fault", f"{step}: the driver never came to {point}: {_log_of(case)}")
    case.finish()


def retries(lab: Lab) -> None:
    """Each task fails twice after it has written its files.

    Spark never runs two attempts of a task on one host, so speculation is not to be had on one
    machine; `tasks.speculation` does what it would do, with processes.
    """
    case = lab.case("retry").make()
    driver = _start(case, faults=f"stage.done=run:{_FAIL}", master="local[2,4]", partitions=4)
    _ends(lab, case, driver, "retry")
    lab.report.armed["stage.done"] += 1
    case.finish()


def _ends(lab: Lab, case: Case, driver: subprocess.Popen[bytes], what: str) -> None:
    ended = _wait(lambda: Path(case.folder, "driver.done").exists(), driver)
    if ended:
        driver.wait(60)
    _kill_all(driver)
    write = case.ledger().writes.get("driver.1")
    outcome = write.outcome if write else "never began"
    told = write.error if write else _log_of(case)
    lab.expect(outcome == ACKNOWLEDGED, "27", f"{what}: {outcome} {told}")


def _start(
    case: Case,
    *,
    mode: str = "append",
    faults: str = "",
    master: str = "local[2]",
    partitions: int = 2,
) -> subprocess.Popen[bytes]:
    asked: dict[str, Any] = {
        "folder": str(case.folder),
        "graph": case.graph,
        "writer": "driver",
        "mode": mode,
        "tables": dict.fromkeys(rows.THREE, 4),
        "options": {"orphanGraceSeconds": str(case.grace), "integrity": "off"},
        "master": master,
        "partitions": partitions,
    }
    environment = {
        **os.environ,
        "PYTHONPATH": str(PROJECT),
        "OMNIGRAPH_SPARK_FAULTS": faults,
        launcher.FAULTS_LOG: f"{case.folder}/faults.log",
        "AWS_SECRET_ACCESS_KEY": oracle.SECRET,
    }
    with open(case.folder / "driver.log", "wb") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "tests.chaos.spark_driver", json.dumps(asked)],
            cwd=case.folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )


def _wait(reached: Any, driver: subprocess.Popen[bytes]) -> bool:
    end = time.monotonic() + _START_SECONDS
    while time.monotonic() < end:
        if reached():
            return True
        if driver.poll() is not None:
            return bool(reached())
        time.sleep(0.02)
    return False


def _kill_all(driver: subprocess.Popen[bytes]) -> None:
    """SIGKILL a driver and everything below it: the JVM first, then its Python workers."""
    import psutil

    try:
        family = [psutil.Process(driver.pid), *psutil.Process(driver.pid).children(recursive=True)]
    except psutil.NoSuchProcess:
        family = []
    for process in sorted(family, key=lambda p: "java" not in p.name()):
        try:
            process.kill()
        except psutil.NoSuchProcess:
            continue
    psutil.wait_procs(family, 10)
    driver.wait(10)


def _log_of(case: Case) -> str:
    return (case.folder / "driver.log").read_text(encoding="utf-8", errors="replace")[-800:]
