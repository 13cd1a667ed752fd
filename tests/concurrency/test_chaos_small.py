"""A few chaos scenarios in the ordinary run; `make chaos` runs all of them, and larger."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.chaos import launcher, mutations
from tests.chaos.__main__ import run
from tests.chaos.lab import Lab
from tests.chaos.scenarios import SCENARIOS, crash

pytestmark = pytest.mark.long

SEED = 20260729


@pytest.mark.parametrize(
    "name",
    [
        "stale-plans",
        "budget",
        "schema-change",
        "second-look",
        "late-engine",
        "guards",
        "twice-and-abort",
        "disjoint-branches",
    ],
)
def test_nothing_is_lost_torn_or_doubled(name: str, tmp_path: Path) -> None:
    report = run(name, tmp_path, SEED, quiet=True)
    assert report.violations == {}
    assert report.undelivered() == {}
    assert report.trials > 0


def test_a_writer_killed_inside_its_publish_is_all_or_nothing(tmp_path: Path) -> None:
    lab = Lab("steps", tmp_path, SEED)
    crash.kill_steps(lab, ["K9"])
    assert lab.report.violations == {}
    assert lab.report.undelivered() == {}


@pytest.mark.parametrize("name", ["orphans-adopted", "no-guards-at-publisher"])
def test_a_planted_bug_is_noticed(name: str, tmp_path: Path) -> None:
    assert mutations.caught(name, tmp_path, SEED) is not None


@pytest.mark.parametrize("name", list(mutations.MUTATIONS))
def test_every_planted_bug_still_fits_the_product(name: str, tmp_path: Path) -> None:
    setup = launcher.Setup("w", str(tmp_path), mutation=name)
    assert launcher.start(setup, mutations.planted_alone).end() is True


def test_every_step_of_a_write_has_a_fault_point() -> None:
    assert list(crash.KILL_POINTS) == [f"K{number}" for number in range(1, 13)]
    assert all(crash.KILL_POINTS.values())
    assert {"kill-matrix", "ambiguity", "soak"} <= set(SCENARIOS)
