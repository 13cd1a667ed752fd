"""How many rows a batch of a scan has."""

from __future__ import annotations

import os
from pathlib import Path

import pyarrow as pa
import pytest

from omnigraph_spark.read.batch_size import BATCH_BYTES, batch_rows, column_share
from omnigraph_spark.schema.property_types import blob_type

MIB = 1 << 20
SCHEMA = pa.schema(
    [
        pa.field("id", pa.utf8()),
        pa.field("n", pa.int64()),
        pa.field("text", pa.utf8()),
        pa.field("vector", pa.list_(pa.float32(), 256)),
    ]
)


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> object:
    """32 rows of half a MiB that doesn't compress, and a vector."""
    import lance

    text = [os.urandom(MIB // 4).hex() for _ in range(32)]
    table = pa.table(
        [[str(n) for n in range(32)], list(range(32)), text, [[0.5] * 256] * 32], schema=SCHEMA
    )
    return lance.write_dataset(
        table, str(tmp_path_factory.mktemp("g") / "t"), data_storage_version="2.2"
    )


@pytest.mark.parametrize(
    ("names", "low", "high"),
    [
        (["n"], 32_768, 32_768),
        (["n", "vector"], BATCH_BYTES // 1_033, BATCH_BYTES // 1_031),
        (["text"], 8, 33),
        (["id", "n", "text", "vector"], 8, 33),
        ([], 32_768, 32_768),
    ],
)
def test_a_batch_has_about_as_many_bytes_whatever_its_columns_are(
    dataset: object, names: list[str], low: int, high: int
) -> None:
    fragments = dataset.get_fragments()  # type: ignore[attr-defined]
    assert low <= batch_rows(fragments, SCHEMA, names) <= high


def test_text_that_compresses_well_counts_as_what_it_is_in_memory(tmp_path: Path) -> None:
    import lance

    text = [os.urandom(512).hex() * 1024 for _ in range(64)]
    rows = pa.table({"id": [str(n) for n in range(64)], "text": text})
    dataset = lance.write_dataset(rows, str(tmp_path / "t"), data_storage_version="2.2")
    dataset.delete("id = '0'")
    fragments = dataset.get_fragments()
    assert fragments[0].metadata.files[0].file_size_bytes < 4 * MIB
    assert batch_rows(fragments, dataset.schema, ["id", "text"]) in (7, 8)
    assert batch_rows(fragments, dataset.schema, ["id"]) > 64


def test_one_large_row_among_small_ones_makes_no_small_batches(tmp_path: Path) -> None:
    import lance

    text = [os.urandom(200).hex() for _ in range(999)] + [os.urandom(MIB).hex()]
    rows = pa.table({"text": text})
    dataset = lance.write_dataset(rows, str(tmp_path / "t"), data_storage_version="2.2")
    assert batch_rows(dataset.get_fragments(), dataset.schema, ["text"]) > 1_000


def test_a_row_larger_than_a_batch_is_a_batch() -> None:
    wide = pa.schema([pa.field("vector", pa.list_(pa.float64(), 4 * MIB))])
    assert batch_rows([], wide, ["vector"]) == 1


def test_blobs_come_few_at_a_time() -> None:
    blobs = pa.schema([pa.field("id", pa.utf8()), blob_type_field("b")])
    assert batch_rows([], blobs, ["id", "b"]) == 16
    assert batch_rows([], blobs, ["id"]) > 16


@pytest.mark.parametrize(
    ("names", "share"),
    [
        (["id", "n", "text", "vector"], 1.0),
        (["id", "n", "vector"], (32 + 8 + 1024) / (32 + 8 + 32 + 1024)),
        (["id", "n"], 0.25),
        (["n", "text"], 1.0),
        ([], 0.25),
    ],
)
def test_columns_are_about_their_part_of_the_bytes_and_text_may_be_all_of_them(
    names: list[str], share: float
) -> None:
    assert column_share(SCHEMA, names) == pytest.approx(share)


def blob_type_field(name: str) -> pa.Field:
    return pa.field(name, blob_type())
