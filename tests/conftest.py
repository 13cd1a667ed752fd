"""Fixtures that all tests share. Files go to pytest's temporary folders, never into the project."""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

from tests.support import s3, sparks
from tests.support.stores import Store

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MANY_CASES = 4
PUSHDOWN = "spark.sql.python.filterPushdown.enabled"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--spark-master",
        default=sparks.LOCAL,
        help="Spark's master for the `spark` fixture: local-cluster[2,1,1024], say, or `connect`",
    )


def pytest_configure(config: pytest.Config) -> None:
    # One file per process that runs tests: a worker of pytest-xdist inherits its parent's setting.
    os.environ["OMNIGRAPH_SPARK_FAULTS"] = f"file:{sparks.FAULTS}"
    sparks.prepare_environment()
    # How long a busy machine takes to draw an example says nothing about the code.
    settings.register_profile("busy", deadline=None, suppress_health_check=[HealthCheck.too_slow])
    settings.load_profile("busy")


@pytest.hookimpl(tryfirst=True)  # before those that `-m` leaves out are left out
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Call tests of Spark on S3 long, and run with another master only those that start Spark."""
    with_spark = [item for item in items if "spark_session" in getattr(item, "fixturenames", ())]
    for item in with_spark:
        call = getattr(item, "callspec", None)
        if call is not None and call.params.get("store") == "s3":
            item.add_marker(pytest.mark.long)
    chosen = items if config.getoption("--spark-master") == sparks.LOCAL else with_spark
    left_out = {*items} - {*chosen} | {*_others_turn(chosen)}
    config.hook.pytest_deselected(items=[*left_out])
    items[:] = [item for item in items if item not in left_out]


def _others_turn(items: list[pytest.Item]) -> Iterator[pytest.Item]:
    """Yield two thirds of a long test's cases, where they are many: a third runs each day."""
    sample = os.environ.get("OMNIGRAPH_SPARK_SAMPLE", "all")
    cases: dict[str, list[pytest.Item]] = {}
    for item in items:
        if sample != "all" and item.get_closest_marker("long") is not None:
            cases.setdefault(item.nodeid.partition("[")[0], []).append(item)
    for same in cases.values():
        if len(same) >= MANY_CASES:
            yield from (item for place, item in enumerate(same) if place % 3 != int(sample) % 3)


@pytest.fixture(scope="session")
def spark_session(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[SparkSession]:
    """The session itself; tests take `spark`."""
    session = sparks.new_session(
        request.config.getoption("--spark-master"), tmp_path_factory.mktemp("spark")
    )
    yield session
    session.stop()


@pytest.fixture
def spark(spark_session: SparkSession) -> Iterator[SparkSession]:
    """A session in this process; a test's settings, temp views and tables don't outlive it."""
    before = dict(spark_session.conf.getAll)
    yield spark_session
    after = dict(spark_session.conf.getAll)
    for key in after.keys() - before.keys():
        spark_session.conf.unset(key)
    for key, value in before.items():
        if after.get(key) != value:
            spark_session.conf.set(key, value)
    for table in spark_session.catalog.listTables():
        if table.isTemporary:
            spark_session.catalog.dropTempView(table.name)
        else:
            spark_session.sql(f"DROP TABLE IF EXISTS `{table.name}`")


@pytest.fixture(params=["off", "on"])
def pushdown(request: pytest.FixtureRequest, spark: SparkSession) -> str:
    """Run the test with Spark's filter push-down into Python sources off (its default) and on."""
    if request.param == "on" and spark.version.startswith("4.0"):
        pytest.skip("Spark 4.0 pushes no filters into Python sources")
    spark.conf.set(PUSHDOWN, str(request.param == "on").lower())
    return str(request.param)


@pytest.fixture
def spark_faults() -> Iterator[Callable[[str], None]]:
    """Arm fault points in what Spark starts: `spark_faults("commit.entered=raise")`."""

    def arm(text: str) -> None:
        sparks.FAULTS.write_text(text, encoding="utf-8")

    yield arm
    sparks.FAULTS.unlink(missing_ok=True)


@pytest.fixture
def run_spark_script(tmp_path: Path) -> sparks.ScriptRunner:
    """Run a script with a Spark of its own; see `ScriptRunner.__call__`."""
    return sparks.ScriptRunner(tmp_path)


@pytest.fixture(scope="session")
def s3_endpoint() -> Iterator[str]:
    """The endpoint of an S3 server that runs as long as the tests."""
    with s3.serving() as endpoint:
        yield endpoint


@pytest.fixture
def bucket(s3_endpoint: str) -> s3.Bucket:
    """An empty bucket of the test's own."""
    made = s3.Bucket(f"test-{uuid.uuid4().hex[:12]}", s3_endpoint)
    made.client().create_bucket(Bucket=made.name)
    return made


@pytest.fixture(params=["local", "s3"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    """A place for graphs: each test that takes it runs on a folder and on S3."""
    on_s3 = request.param == "s3"
    return Store(request.param, tmp_path, request.getfixturevalue("bucket") if on_s3 else None)


@pytest.fixture
def local_store(tmp_path: Path) -> Store:
    """A place for graphs on this machine only."""
    return Store("local", tmp_path, None)
