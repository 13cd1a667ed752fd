"""What the Python processes that Spark uses again leave out of their garbage collections."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from omnigraph_spark.storage.store import Storage
from tests.support.sparks import PROJECT
from tests.support.writes import PERSON, new_graph

OPEN_TWICE = """\
import gc, sys, weakref
from omnigraph_spark.storage.store import Storage

class Cycle:
    def __init__(self):
        self.itself = self

def dataset_opened():
    Storage.at(sys.argv[1]).dataset("__manifest")
    return gc.get_freeze_count()

first = dataset_opened()
later = weakref.ref(Cycle())
second = dataset_opened()
gc.collect()
print(first, second, later() is None)
"""


def _environment(used_again: bool) -> dict[str, str]:
    """Return this process's environment for a worker that Spark uses again, or doesn't."""
    plain = {key: value for key, value in os.environ.items() if key != "SPARK_REUSE_WORKER"}
    return {**plain, "SPARK_REUSE_WORKER": "1"} if used_again else plain


@pytest.mark.parametrize("used_again", [True, False])
def test_only_a_worker_that_is_used_again_spares_its_loaded_modules_from_collection_and_once(
    tmp_path: Path, used_again: bool
) -> None:
    new_graph(Storage.at(str(tmp_path / "g")), [PERSON])
    done = subprocess.run(
        [sys.executable, "-c", OPEN_TWICE, str(tmp_path / "g")],
        env=_environment(used_again),
        cwd=PROJECT,
        capture_output=True,
        text=True,
        check=True,
    )
    first, second, collected = done.stdout.split()
    assert (int(first) > 10_000, first == second, collected) == (used_again, True, "True")


LISTED_AGAIN = """\
import importlib, os, sys, zipfile, zipimport
from omnigraph_spark.storage import python_workers

folder = sys.argv[1]
names = ("pyspark.zip", "py4j-0.10-src.zip", "spark-core_2.13-4.0.2.jar", "of_the_user.zip")
for number, name in enumerate(names):
    with zipfile.ZipFile(os.path.join(folder, name), "w") as archive:
        archive.writestr(f"mod{number}/__init__.py", f"X = {number}")
        archive.writestr(f"mod{number}/later.py", f"Y = {number}")
    sys.path.append(os.path.join(folder, name))
import mod0, mod1, mod2, mod3
getattr(python_workers, sys.argv[2])()
listed = []
real = zipimport._read_directory
zipimport._read_directory = lambda path: listed.append(os.path.basename(path)) or real(path)
importlib.invalidate_caches()
from mod0 import later
import mod3.later
print(sorted(set(listed)), later.Y, mod3.later.Y)
"""


@pytest.mark.parametrize("used_again", [True, False])
@pytest.mark.parametrize("call", ["begin", "spare_loaded_modules"])
def test_archives_of_spark_are_not_listed_again_for_each_task_and_their_modules_still_load(
    tmp_path: Path, used_again: bool, call: str
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", LISTED_AGAIN, str(tmp_path), call],
        env=_environment(used_again),
        cwd=PROJECT,
        capture_output=True,
        text=True,
        check=True,
    )
    listed, values = done.stdout.split("]")
    assert values.split() == ["0", "3"]
    assert "of_the_user.zip" in listed
    assert ("spark-core_2.13-4.0.2.jar" in listed) is not used_again
    assert ("py4j-0.10-src.zip" in listed) is not used_again


BEGIN = """\
import os, pickle, socket, sys
from omnigraph_spark.storage.store import Storage

storage = pickle.dumps(Storage.at("/g"))
to_jvm = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
again = socket.socket(fileno=os.dup(to_jvm.fileno()))
to_user, _ = socket.socketpair()
pickle.loads(storage)
later = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
assert pickle.loads(storage) == Storage.at("/g")
no_delay = [one.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) for one in (to_jvm, later)]
to_jvm.sendall(b"open")
again.sendall(b" still")
to_user.close()
print(no_delay)
"""


@pytest.mark.parametrize("used_again", [True, False])
def test_a_task_sends_its_rows_at_once_and_its_connections_stay_open(used_again: bool) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        done = subprocess.run(
            [sys.executable, "-c", BEGIN, str(server.getsockname()[1])],
            env=_environment(used_again),
            cwd=PROJECT,
            capture_output=True,
            text=True,
            check=True,
        )
        with server.accept()[0] as connection:
            assert connection.recv(100) == b"open still"
    assert done.stdout.strip() == ("[1, 0]" if used_again else "[0, 0]")


ACKNOWLEDGE = """\
import pickle, socket, sys
from omnigraph_spark.storage.store import Storage

storage = pickle.dumps(Storage.at("/g"))
to_jvm = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
seen = []
for _ in range(3):
    for _ in range(20):  # to and fro, as tasks come: the system begins to delay what it acknowledges
        to_jvm.sendall(b"x")
        to_jvm.recv(1)
    seen.append(to_jvm.getsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK))
    pickle.loads(storage)
    seen.append(to_jvm.getsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK))
print(seen)
"""


@pytest.mark.skipif(not hasattr(socket, "TCP_QUICKACK"), reason="Linux has it")
@pytest.mark.parametrize("used_again", [True, False])
def test_each_task_acknowledges_at_once_when_its_first_piece_is_unpacked(used_again: bool) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        child = subprocess.Popen(
            [sys.executable, "-c", ACKNOWLEDGE, str(server.getsockname()[1])],
            env=_environment(used_again),
            cwd=PROJECT,
            stdout=subprocess.PIPE,
            text=True,
        )
        with server.accept()[0] as connection:
            while connection.recv(1):
                connection.sendall(b"x")
        printed, _ = child.communicate(timeout=60)
    assert printed.strip() == str([0, 1 if used_again else 0] * 3)
