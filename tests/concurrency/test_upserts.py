"""Sixteen writers upsert one new key at once: one row is left, round after round.

`OMNIGRAPH_SPARK_UPSERT_ROUNDS` says how many rounds; 200 is the long run.
"""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pyarrow as pa
import pytest

from omnigraph_spark.manifest.snapshot import load
from omnigraph_spark.storage.store import Storage
from omnigraph_spark.write.commit.commit import commit
from omnigraph_spark.write.tasks.stage import stage
from tests.support.writes import COMPANY, NODE_SCHEMA, ids, new_graph, plan

pytestmark = pytest.mark.rounds

_WRITERS = 16
_ROUNDS = int(os.environ.get("OMNIGRAPH_SPARK_UPSERT_ROUNDS", "1"))


@pytest.mark.long
def test_of_sixteen_upserts_of_one_new_key_one_row_is_left(tmp_path: Path) -> None:
    storage = new_graph(Storage.at(str(tmp_path / "g")))
    for number in range(_ROUNDS):
        key = f"new-{number}"
        errors: list[BaseException] = []

        def one(writer: int, key: str = key, errors: list[BaseException] = errors) -> None:
            try:
                planned = plan(storage, [COMPANY], writeMode="merge")
                row = pa.RecordBatch.from_arrays(
                    [pa.array([key]), pa.array([key]), pa.array([writer], pa.int32())],
                    schema=NODE_SCHEMA,
                )
                commit(planned, stage(planned, [(COMPANY, row)]))
            except BaseException as error:  # noqa: BLE001  (looked at below)
                errors.append(error)

        writers = [threading.Thread(target=one, args=(writer,)) for writer in range(_WRITERS)]
        for thread in writers:
            thread.start()
        for thread in writers:
            thread.join()
        assert errors == []
        assert ids(storage, COMPANY).count(key) == 1
    entry = load(storage).entry(COMPANY)
    assert entry.row_count == 1 + _ROUNDS
