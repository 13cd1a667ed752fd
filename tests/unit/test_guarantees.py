"""docs/internals/guarantees.md cites tests that exist."""

from __future__ import annotations

import re
from pathlib import Path

from tests.chaos.scenarios import SCENARIOS

PROJECT = Path(__file__).resolve().parents[2]


def test_every_test_that_the_guarantees_cite_is_there() -> None:
    text = (PROJECT / "docs" / "internals" / "guarantees.md").read_text(encoding="utf-8")
    cited = re.findall(r"`(test_\w+\.py)::(test_\w+)`", text)
    assert len(cited) > 40
    sources = {
        path.name: path.read_text(encoding="utf-8")
        for path in (PROJECT / "tests").rglob("test_*.py")
    }
    missing = [
        f"{file}::{name}" for file, name in cited if f"def {name}(" not in sources.get(file, "")
    ]
    assert missing == []


def test_every_promise_cites_a_test() -> None:
    text = (PROJECT / "docs" / "internals" / "guarantees.md").read_text(encoding="utf-8")
    promised = text.partition("## What is not promised")[0]
    bullets = re.split(r"\n- ", promised)[1:]
    assert [bullet[:60] for bullet in bullets if "::" not in bullet] == []


def test_every_scenario_that_the_guarantees_cite_is_there() -> None:
    text = (PROJECT / "docs" / "internals" / "guarantees.md").read_text(encoding="utf-8")
    cited = set(re.findall(r"`chaos: ([\w-]+)`", text))
    assert len(cited) > 10
    assert sorted(cited - set(SCENARIOS)) == []
