"""Large rows make pages of a bounded size, and none is a page alone."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from omnigraph_spark.storage.store import Storage
from omnigraph_spark.write.commit.commit import commit
from omnigraph_spark.write.plan import NewTable
from omnigraph_spark.write.tasks import stage as staging
from omnigraph_spark.write.tasks.stage import bounded, stage
from tests.support.writes import plan

T = "node:T"
SCHEMA = pa.schema([pa.field("id", pa.utf8(), nullable=False), pa.field("t", pa.utf8())])
LARGE = 9 << 20


def row(number: int, size: int = LARGE) -> pa.RecordBatch:
    text = random.Random(number).randbytes(size // 2).hex()  # nothing makes it much smaller
    return pa.RecordBatch.from_arrays([pa.array([str(number)]), pa.array([text])], schema=SCHEMA)


def sizes(batches: Iterator[pa.RecordBatch]) -> list[int]:
    return [batch.num_rows for batch in batches]


def test_a_large_row_goes_with_the_one_behind_it_in_order() -> None:
    five = [row(number) for number in range(5)]
    made = [*bounded(five)]
    assert sizes(iter(made)) == [2, 2, 1]
    assert pa.Table.from_batches(made).equals(pa.Table.from_batches(five))


def test_small_rows_and_batches_of_several_rows_stay_as_they_are() -> None:
    several = pa.Table.from_batches([row(1), row(2)]).combine_chunks().to_batches()
    batches = [row(0, 80), *several, row(3, 80)]
    assert [a is b for a, b in zip(bounded(batches), batches, strict=True)] == [True] * 3


def test_a_large_row_goes_with_small_ones_too() -> None:
    assert sizes(bounded([row(0), row(1, 80), row(2)])) == [2, 1]


def test_rows_too_large_for_one_array_stay_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(staging, "_MOST_JOINED_BYTES", 2 * LARGE)
    assert sizes(bounded([row(0), row(1), row(2, 80), row(3)])) == [1, 2, 1]


def test_a_large_batch_is_cut_into_pieces_of_two_rows_at_least(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    whole = pa.Table.from_batches([row(number) for number in range(5)]).combine_chunks()
    monkeypatch.setattr(staging, "_LARGE_BATCH_BYTES", 4 * LARGE)
    for most, expected in ((1, [2, 2, 1]), (3 * LARGE + 99, [3, 2]), (9 * LARGE, [5])):
        monkeypatch.setattr(staging, "_CUT_BYTES", most)
        made = [*bounded(whole.to_batches())]
        assert sizes(iter(made)) == expected
        assert pa.Table.from_batches(made).equals(whole)
        assert all(batch.get_total_buffer_size() < 1.1 * batch.nbytes for batch in made)


def test_an_error_behind_a_large_row_is_raised_as_it_is() -> None:
    def broken() -> Iterator[pa.RecordBatch]:
        yield row(0)
        raise ValueError("as it is")

    with pytest.raises(ValueError, match="as it is"):
        sizes(bounded(broken()))


@pytest.mark.parametrize(("mode", "pages"), [("append", 2), ("merge", 1)])
def test_no_page_of_a_file_is_one_large_row(tmp_path: Path, mode: str, pages: int) -> None:
    """Pages of one row are read before the first row is given, all of them at once."""
    from lance.file import LanceFileReader

    storage = Storage.at(str(tmp_path / "g"))
    if mode == "merge":
        first = plan(storage, [T], new={T: NewTable(SCHEMA)})
        commit(first, stage(first, [(T, row(number, 80)) for number in range(4)]))
    planned = plan(storage, [T], new={T: NewTable(SCHEMA)}, writeMode=mode)
    staged = stage(planned, ((T, row(number)) for number in range(4)))
    ((fragment,),) = (one.fragments for one in staged)
    path = storage.uri(f"{planned.targets[T].location}/data/{fragment['files'][0]['path']}")
    metadata = LanceFileReader(path).metadata()
    assert Path(path).stat().st_size > LARGE
    assert [len(column.pages) for column in metadata.columns] == [1, pages]
    commit(planned, staged)
