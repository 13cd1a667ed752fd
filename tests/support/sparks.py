"""Spark sessions for tests: one in this process, or one per script in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOCAL = "local[2]"
CONNECT = "connect"
"""In place of a master: a session of Spark Connect, whose server this process starts."""

FAULTS = Path(tempfile.gettempdir()) / f"omnigraph-faults-{os.getpid()}"
"""What this file says is armed in the processes that Spark starts (see `faults` in conftest)."""

# Secrets that no log line, plan, error, catalog entry or file may show; the S3 tests use them.
CANARY_KEY = "CANARYACCESSKEY00017"
CANARY_SECRET = "canary+secret/00017+never+to+be+shown"

# A session of tests is over before code that is compiled a second time, for speed, pays for the
# compiling: without that, and with one thread to collect garbage, a test takes a third less CPU.
_SHORT_LIVED_JVM = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"

# Scripts get this in front of their own source.
_PRELUDE = """\
import json, os, sys
sys.path.insert(0, {project!r})
from tests.support.sparks import new_session
spark = new_session({master!r}, {folder!r}, json.loads({conf!r}))
"""
PROJECT = Path(__file__).resolve().parents[2]


def prepare_environment() -> None:
    """Set what the JVM and its Python workers inherit; before the first session of a process."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    os.environ.pop("SPARK_HOME", None)
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        del os.environ[name]
    os.environ["AWS_ACCESS_KEY_ID"] = CANARY_KEY
    os.environ["AWS_SECRET_ACCESS_KEY"] = CANARY_SECRET
    os.environ["AWS_EC2_METADATA_DISABLED"] = "true"
    os.environ.setdefault("OMNIGRAPH_SPARK_FAULTS", f"file:{FAULTS}")


def settings(master: str, folder: str | Path) -> dict[str, str]:
    """Return the Spark settings of a test session whose files all go below `folder`."""
    conf = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.memory": "2g",
        "spark.default.parallelism": "2",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.warehouse.dir": f"{folder}/warehouse",
        "spark.local.dir": f"{folder}/scratch",
        "spark.driver.extraJavaOptions": f"-Dderby.system.home={folder}/derby {_SHORT_LIVED_JVM}",
        "spark.executor.extraJavaOptions": _SHORT_LIVED_JVM,
        "spark.sql.execution.arrow.pyspark.enabled": "true",
    }
    if master.startswith("local-cluster"):
        conf["spark.driver.memory"] = "1g"
        conf["spark.executor.memory"] = "1g"
    return conf


def new_session(
    master: str, folder: str | Path, conf: Mapping[str, str] | None = None
) -> SparkSession:
    """Start the one Spark session of this process."""
    prepare_environment()
    from pyspark.sql import SparkSession

    is_remote = master == CONNECT
    builder = SparkSession.builder
    builder = builder.remote(LOCAL) if is_remote else builder.master(master)
    for key, value in {**settings(master, folder), **(conf or {})}.items():
        builder = builder.config(key, value)
    with warnings.catch_warnings():
        # Its server has these settings; a session of it can't have some of them of its own.
        warnings.filterwarnings("ignore", message="Failed to set spark")
        spark = builder.appName("omnigraph-tests").getOrCreate()
    if not is_remote:
        spark.sparkContext.setLogLevel("ERROR")
    return spark


class ScriptRunner:
    """Runs Python scripts in processes of their own, each with its own Spark.

    One process holds one Spark at most, so what needs other start settings, a restart, another
    time zone, Spark Connect or a working directory of its own runs as a script.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._count = 0

    def __call__(
        self,
        source: str,
        *args: str,
        conf: Mapping[str, str] | None = None,
        env: Mapping[str, str] | None = None,
        master: str = LOCAL,
        session: bool = True,
        check: bool = True,
        cwd: Path | None = None,
        timeout: float = 240,
    ) -> subprocess.CompletedProcess[str]:
        """Run `source` and return what it printed; `spark` is a started session in it.

        Args:
            source: the script; top-level statements, not indented.
            args: `sys.argv[1:]` of the script.
            conf: Spark settings on top of `settings()`.
            env: environment variables on top of this process's (see `prepare_environment`).
            master: Spark's master.
            session: False: no `spark`, the script starts what it needs itself.
            check: fail the test, with the output's end, when the script fails.
            cwd: working directory; by default an empty folder.
            timeout: seconds until the script is killed and the test fails.
        """
        self._count += 1
        folder = self.folder / f"script{self._count}"
        folder.mkdir(parents=True)
        prelude = _PRELUDE.format(
            project=str(PROJECT),
            master=master,
            folder=str(folder),
            conf=json.dumps(dict(conf or {})),
        )
        script = folder / "script.py"
        script.write_text((prelude if session else "") + source, encoding="utf-8")
        prepare_environment()
        done = subprocess.run(
            [sys.executable, str(script), *args],
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            cwd=cwd or folder,
            env={**os.environ, **(env or {})},
            timeout=timeout,
            check=False,
        )
        if check and done.returncode != 0:
            output = f"{done.stdout[-4000:]}\n{done.stderr[-8000:]}"
            raise AssertionError(f"the script ended with {done.returncode}\n{output}")
        return done
