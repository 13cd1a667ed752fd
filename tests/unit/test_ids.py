"""ULIDs."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from omnigraph_spark.errors import OptionError
from omnigraph_spark.storage.ids import new_ulid, ulid_from, ulids

ALPHABET = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
PROJECT = Path(__file__).resolve().parents[2]


def value_of(ulid: str) -> int:
    value = 0
    for character in ulid:
        value = value * 32 + ALPHABET.index(character)
    return value


def test_a_ulid_is_26_characters_that_begin_with_the_time() -> None:
    before = time.time_ns() // 1_000_000
    made = new_ulid()
    after = time.time_ns() // 1_000_000
    assert len(made) == 26
    assert before <= value_of(made) >> 80 <= after


def test_the_spelling_is_that_of_the_ulid_specification() -> None:
    assert ulid_from(0, b"\x00" * 10) == "0" * 26
    assert ulid_from(2**48 - 1, b"\xff" * 10) == "7" + "Z" * 25
    assert ulid_from(1, b"\x00" * 9 + b"\x21") == "0000000001" + "0" * 14 + "11"


def test_the_same_bits_give_the_same_id() -> None:
    assert ulid_from(5, b"0123456789abc") == ulid_from(5, b"0123456789")


def test_a_column_of_ulids_counts_up_by_one_and_carries_the_time() -> None:
    before = time.time_ns() // 1_000_000
    column = ulids(1000)
    after = time.time_ns() // 1_000_000
    column.validate(full=True)
    assert column.type == pa.utf8()
    assert column.null_count == 0
    values = [value_of(text) for text in column.to_pylist()]
    assert values == list(range(values[0], values[0] + 1000))
    assert before <= values[0] >> 80 <= after


def test_a_column_counts_on_across_the_middle_of_the_random_bits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(os, "urandom", lambda n: b"\xff" * n)
    values = [value_of(text) % 2**80 for text in ulids(5).to_pylist()]
    first = 0xFFFF << 64 | 2**63 - 1
    assert values == list(range(first, first + 5))


def test_two_columns_share_no_id() -> None:
    both = pa.chunked_array([ulids(50_000), ulids(50_000)])
    assert pc.count_distinct(both).as_py() == 100_000


def test_no_ids_are_an_empty_column() -> None:
    assert ulids(0).equals(pa.array([], pa.utf8()))


@pytest.mark.parametrize("count", [-1, 2**31])
def test_more_ids_than_an_array_holds_are_refused(count: int) -> None:
    with pytest.raises(OptionError, match="OMNIGRAPH_OPTION"):
        ulids(count)


def test_a_forked_worker_makes_other_ids_than_its_sibling() -> None:
    script = """
import os
from omnigraph_spark.storage.ids import new_ulid, ulids
new_ulid(), ulids(1)
for child in range(2):
    if os.fork() == 0:
        print(new_ulid()[10:], ulids(1)[0].as_py()[10:], flush=True)
        os._exit(0)
    os.wait()
"""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", script],
        capture_output=True,
        text=True,
        check=True,
        cwd=PROJECT,
    )
    assert len(set(done.stdout.split())) == 4
