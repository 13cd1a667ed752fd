"""The word list of CONTRIBUTING.md, and that nothing cites a document that a clone doesn't have."""

from __future__ import annotations

import io
import re
import tokenize
from functools import cache
from pathlib import Path

import pytest

PROJECT = Path(__file__).resolve().parents[2]
PAGES = (*(PROJECT / "docs").rglob("*.md"), PROJECT / "README.md", PROJECT / "CHANGELOG.md")
MODULES = tuple((PROJECT / "omnigraph_spark").rglob("*.py"))

DIALECT = re.compile(
    r"somebody|hasn't got|haven't got|goes round|go round|going round|gives way|\banew\b"
    r"|ends? nowhere|(?<!here )\bis no (?:table|type|branch|tag|node|property|predicate|index|error)\b"
    r"|\bTell whether\b",
    re.I,
)
ELSEWHERE = re.compile(
    r"\b(?:FACTS|PROTOCOL|DESIGN|CASES|RELIABILITY) [C\d]|\[run\b|\bissue \d|seed 0\d"
)


@cache
def _texts(path: Path) -> tuple[tuple[int, str], ...]:
    """Return the lines of a page; of a module its comments and strings."""
    text = path.read_text(encoding="utf-8")
    if path.suffix != ".py":
        return tuple(enumerate(text.splitlines(), 1))
    return tuple(
        line
        for token in tokenize.generate_tokens(io.StringIO(text).readline)
        if token.type in (tokenize.STRING, tokenize.COMMENT)
        for line in enumerate(token.string.splitlines(), token.start[0])
    )


@pytest.mark.parametrize("pattern", [DIALECT, ELSEWHERE], ids=["dialect", "references"])
def test_docs_comments_and_texts_say_it_in_plain_words(pattern: re.Pattern[str]) -> None:
    found = [
        f"{path.relative_to(PROJECT)}:{line} {match.group(0)}"
        for path in (*PAGES, *MODULES)
        for line, text in _texts(path)
        if path.name != "CONTRIBUTING.md"
        and (match := pattern.search(re.sub(r"test_\w+", "", text)))
    ]
    assert found == []
