"""What the product leans on of an S3 store, on moto's server (fact 28)."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import lance
import pyarrow as pa
import pytest

from omnigraph_spark.storage.lance_errors import DatasetNotFoundError, Outcome, outcome_of
from omnigraph_spark.storage.store import Storage
from tests.support.s3 import REGION, Bucket

ROWS = pa.table({"id": ["a", "b"], "age": pa.array([1, 2], pa.int32())})


def test_lance_writes_and_reads_a_dataset_with_keys_from_the_options(bucket: Bucket) -> None:
    uri = f"{bucket.uri}/plain"
    lance.write_dataset(ROWS, uri, storage_options=bucket.storage_options)
    assert lance.dataset(uri, storage_options=bucket.storage_options).to_table() == ROWS


def test_lance_takes_the_keys_from_the_environment(bucket: Bucket) -> None:
    uri = f"{bucket.uri}/environment"
    lance.write_dataset(ROWS, uri, storage_options=bucket.public_options)
    assert lance.dataset(uri, storage_options=bucket.public_options).count_rows() == 2


def test_two_writers_of_one_key_cant_both_land(bucket: Bucket) -> None:
    uri = f"{bucket.uri}/cas"
    field = pa.field(
        "object_id",
        pa.string(),
        nullable=False,
        metadata={"lance-schema:unenforced-primary-key": "true"},
    )
    schema = pa.schema([field, pa.field("n", pa.int64())])
    lance.write_dataset(
        pa.table({"object_id": ["x"], "n": [0]}, schema=schema),
        uri,
        storage_options=bucket.storage_options,
    )
    handles = [lance.dataset(uri, storage_options=bucket.storage_options) for _ in range(2)]

    def write(number: int) -> Exception | None:
        merge = (
            handles[number]
            .merge_insert("object_id")
            .when_matched_update_all()
            .when_not_matched_insert_all()
            .conflict_retries(0)
            .use_index(False)
        )
        try:
            merge.execute(pa.table({"object_id": ["new"], "n": [number]}, schema=schema))
        except OSError as error:
            return error
        return None

    with ThreadPoolExecutor(2) as pool:
        errors = [error for error in pool.map(write, range(2)) if error is not None]
    found = lance.dataset(uri, storage_options=bucket.storage_options).to_table()
    assert found["object_id"].to_pylist().count("new") == 1
    assert [outcome_of(error) for error in errors] == [Outcome.CONFLICT]


@pytest.mark.parametrize("keys", ["options", "environment"])
def test_plain_objects_are_written_listed_read_and_deleted(bucket: Bucket, keys: str) -> None:
    options = bucket.storage_options if keys == "options" else bucket.public_options
    storage = Storage.at(f"{bucket.uri}/graph", options)
    assert storage.get("_schema.pg") is None
    assert storage.list("__recovery") == []

    storage.put("__recovery/a.json", b"{}")
    storage.put("__recovery/b.json", b"[1]")
    storage.put("__recovery/b.json", b"[12]")
    assert [(o.path, o.size) for o in storage.list("__recovery")] == [
        ("__recovery/a.json", 2),
        ("__recovery/b.json", 4),
    ]
    assert storage.get("__recovery/b.json") == b"[12]"
    assert set(bucket.objects()) == {"graph/__recovery/a.json", "graph/__recovery/b.json"}

    storage.delete("__recovery/a.json")
    storage.delete("__recovery/a.json")
    assert [o.path for o in storage.list("__recovery")] == ["__recovery/b.json"]


def test_an_absent_dataset_and_an_absent_version_are_told_from_a_failing_store(
    bucket: Bucket,
) -> None:
    storage = Storage.at(f"{bucket.uri}/graph", bucket.storage_options)
    assert not storage.has_dataset("nodes/x")
    lance.write_dataset(ROWS, storage.uri("nodes/x"), storage_options=storage.lance_options())
    assert storage.has_dataset("nodes/x")
    assert storage.dataset("nodes/x").count_rows() == 2
    with pytest.raises(DatasetNotFoundError, match="OMNIGRAPH_"):
        storage.dataset("nodes/x", version=7)


def test_everything_can_come_from_the_environment(
    bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT", bucket.endpoint)
    monkeypatch.setenv("AWS_ALLOW_HTTP", "true")
    monkeypatch.setenv("AWS_REGION", REGION)
    storage = Storage.at(f"{bucket.uri}/graph")
    storage.put("_schema.pg", b"node A { }")
    assert storage.get("_schema.pg") == b"node A { }"
    lance.write_dataset(ROWS, storage.uri("nodes/x"), storage_options=storage.lance_options())
    assert storage.dataset("nodes/x").to_table() == ROWS
