"""What a publish depends on can't change between its check and its merge."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from omnigraph_spark import _faults
from omnigraph_spark.errors import ExpectedVersionMismatch
from omnigraph_spark.manifest.publisher import Publish, publish
from omnigraph_spark.manifest.rows import VersionRow
from omnigraph_spark.manifest.snapshot import load
from omnigraph_spark.storage.ids import new_ulid
from tests.chaos import rows
from tests.chaos.jobs import Writer
from tests.chaos.launcher import Setup


@pytest.fixture
def writer(tmp_path: Path) -> Iterator[Writer]:
    (tmp_path / "ledger").mkdir()
    made = Writer(Setup("w", str(tmp_path)), str(tmp_path / "graph"))
    assert made.write({rows.PERSON: 2}) == "acknowledged"
    yield made
    _faults.disarm()


def _publish_expecting_no_company(writer: Writer) -> None:
    entry = load(writer.storage).entry(rows.PERSON)
    row = VersionRow(rows.PERSON, entry.table_version, None, entry.row_count, entry.metadata)
    expected = {rows.PERSON: entry.table_version, rows.COMPANY: 0}
    request = Publish("main", new_ulid(), (row,), expected, frozenset({rows.COMPANY}))
    publish(writer.storage, request)


def test_a_table_that_is_made_between_check_and_merge_is_a_mismatch(writer: Writer) -> None:
    once = [True]

    def make_company() -> None:
        if once:
            once.clear()
            assert writer.write({rows.COMPANY: 1}) == "acknowledged"

    _faults.arm("publish.before_merge", make_company)
    with pytest.raises(ExpectedVersionMismatch, match="expected version 0 · found version 1"):
        _publish_expecting_no_company(writer)


def test_a_table_that_was_expected_not_to_be_there_can_be_made_later(writer: Writer) -> None:
    _publish_expecting_no_company(writer)
    assert rows.COMPANY not in load(writer.storage).tables
    assert writer.write({rows.COMPANY: 3}) == "acknowledged"
    assert load(writer.storage).entry(rows.COMPANY).row_count == 3
