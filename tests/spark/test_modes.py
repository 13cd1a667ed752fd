"""Save modes, and what a session's settings may not change."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession

from omnigraph_spark.errors import OptionError, StorageError
from tests.support.frames import load, nothing_written, people, placed, refused, save
from tests.support.sparks import PROJECT
from tests.support.stores import Store

NODE = "node:Person"


@pytest.fixture
def uri(spark: SparkSession, local_store: Store) -> str:
    """A graph of two people."""
    root = placed(local_store)
    save(people(spark), root, table=NODE)
    return root


@pytest.mark.parametrize("mode", ["error", "errorifexists", "ignore"])
def test_other_save_modes_are_refused_and_the_message_names_the_ones_that_work(
    spark: SparkSession, uri: str, mode: str
) -> None:
    writer = people(spark).write.format("omnigraph").option("table", NODE)
    with nothing_written(uri), pytest.raises(AnalysisException, match='"Append" or "Overwrite"'):
        writer.mode(mode).save(uri)


def test_saving_without_a_mode_is_never_a_silent_append(spark: SparkSession, uri: str) -> None:
    with nothing_written(uri), pytest.raises(AnalysisException, match='"Append" or "Overwrite"'):
        people(spark).write.format("omnigraph").option("table", NODE).save(uri)


@pytest.mark.parametrize(
    ("mode", "write_mode", "match"),
    [
        ("append", "overwrite", r"mode\('overwrite'\)"),
        ("overwrite", "append", r"mode\('append'\)"),
        ("overwrite", "merge", r"mode\('append'\)"),
        ("overwrite", "delete", r"mode\('append'\)"),
        ("append", "upsert", "append or overwrite"),
    ],
)
def test_a_write_mode_that_does_not_go_with_the_save_mode_is_refused(
    spark: SparkSession, uri: str, mode: str, write_mode: str, match: str
) -> None:
    with nothing_written(uri), refused(OptionError, match):
        save(people(spark), uri, mode, table=NODE, writeMode=write_mode)


def test_on_delete_is_refused_with_any_write_but_a_delete(spark: SparkSession, uri: str) -> None:
    with nothing_written(uri), refused(OptionError, "onDelete goes with writeMode delete"):
        save(people(spark), uri, table=NODE, onDelete="cascade")


def test_large_arrow_types_append_to_the_types_that_are_stored(
    spark: SparkSession, uri: str
) -> None:
    spark.conf.set("spark.sql.execution.arrow.useLargeVarTypes", "true")
    save(people(spark, [("c", "Cleo", 1)]), uri, table=NODE)
    assert load(spark, uri, table=NODE).count() == 3


def test_a_python_without_lance_is_told_what_to_install(tmp_path: Path) -> None:
    """An executor's Python that has this package and not pylance: no hang, and a message."""
    hidden = tmp_path / "hidden" / "lance"
    hidden.mkdir(parents=True)
    (hidden / "__init__.py").write_text(
        "raise ModuleNotFoundError('No module named lance', name='lance')"
    )
    script = "from omnigraph_spark.storage.store import Storage\nStorage.at('/no/graph').dataset('nodes/x')\n"
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": f"{hidden.parent}{os.pathsep}{PROJECT}"},
        timeout=60,
        check=False,
    )
    assert f"[OMNIGRAPH_{StorageError.code}]" in done.stderr
    assert "Install pylance in the Python of the driver and of every executor" in done.stderr
