"""The operating system says no: nothing visible, the cause is named, it works afterwards.

Each case runs in a process of its own, which gives up its rights or its resources.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from omnigraph_spark import _faults
from omnigraph_spark.errors import OmnigraphError
from omnigraph_spark.manifest.snapshot import load
from omnigraph_spark.storage import layout
from omnigraph_spark.storage.store import Storage
from omnigraph_spark.write.commit.commit import commit
from tests.support import graphs, writes
from tests.support.writes import COMPANY, PERSON, ids

PROJECT = Path(__file__).resolve().parents[2]
NOBODY = 65534

# Everything is imported and warmed up before the process gives up its rights: the interpreter's own
# folder may be out of reach afterwards.
CHILD = """
import json, os, resource, sys
from pathlib import Path
root, warm, action, limit = sys.argv[1:5]
from omnigraph_spark.errors import OmnigraphError
from omnigraph_spark.manifest.snapshot import load
from omnigraph_spark.read.plan import read_table
from omnigraph_spark.storage.store import Storage
from tests.support import writes
warmed = Storage.at(warm)
writes.new_graph(warmed)
read_table(warmed, load(warmed), writes.PERSON)
try:
    read_table(warmed, load(warmed), "node:None")
except OmnigraphError:
    pass
storage = Storage.at(root)
if limit == "rights":
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)
elif limit == "files":
    held = [open(os.devnull) for _ in range(8)]
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    highest = max(int(name) for name in os.listdir("/proc/self/fd"))
    resource.setrlimit(resource.RLIMIT_NOFILE, (highest, hard))
def act():
    if action == "write":
        writes.write(storage, {writes.PERSON: ["child"], writes.COMPANY: ["child"]})
    else:
        return read_table(storage, load(storage), writes.PERSON).num_rows
try:
    done = {"ok": act()}
except OmnigraphError as error:
    done = {"error": str(error)}
except BaseException as error:
    done = {"untyped": repr(error)}
if limit == "files":
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    writes.write(storage, {writes.PERSON: ["after"]})
print(json.dumps(done))
"""


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that everybody may enter, unlike pytest's own."""
    made = Path(tempfile.mkdtemp(prefix="omnigraph-"))
    made.chmod(0o755)
    yield made
    shutil.rmtree(made, ignore_errors=True)


@pytest.fixture
def graph(open_folder: Path) -> Iterator[Storage]:
    storage = writes.new_graph(Storage.at(str(open_folder / "g")))
    os.sync()
    yield storage
    _faults.disarm()


def child(storage: Storage, warm: Path, action: str, limit: str) -> dict[str, object]:
    done = subprocess.run(
        [sys.executable, "-c", CHILD, storage.root, str(warm / "warm"), action, limit],
        cwd=PROJECT,
        env={**os.environ, "PYTHONPATH": str(PROJECT)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    found: dict[str, object] = json.loads(done.stdout.splitlines()[-1])
    return found


def lock(path: Path, mode: int) -> None:
    """Give a tree to root alone, folders and files."""
    for one in [path, *path.rglob("*")] if path.is_dir() else [path]:
        one.chmod(mode | (0o100 if one.is_dir() else 0))


as_root = pytest.mark.skipif(os.getuid() != 0, reason="gives up root's rights, so it needs them")

NO_WRITE = {
    "root": "",
    "manifest": "__manifest",
    "dataset": layout.table_location(PERSON),
    "versions": f"{layout.table_location(PERSON)}/_versions",
    "manifest versions": "__manifest/_versions",
    "recovery": "__recovery",
}


@as_root
@pytest.mark.parametrize("place", NO_WRITE)
def test_a_write_without_the_right_to_write_names_the_cause_and_shows_nothing(
    graph: Storage, tmp_path: Path, place: str
) -> None:
    root = Path(graph.root)
    (root / "__recovery").mkdir(exist_ok=True)
    for one in [root, *root.rglob("*")]:
        one.chmod(0o777)
    closed = root / NO_WRITE[place]
    for one in [closed, *closed.rglob("*")]:
        one.chmod(0o755 if one.is_dir() else 0o644)
    before = load(graph)
    done = child(graph, tmp_path, "write", "rights")
    assert "untyped" not in done, done
    if "error" in done:
        assert "OMNIGRAPH_PERMISSION_DENIED" in str(done["error"])
        assert "ermission denied" in str(done["error"]), done
        assert load(graph) == before
        assert ids(graph, PERSON) == ids(graph, COMPANY) == ["first"]
    else:
        pytest.fail(f"a write went through a closed {place}")
    for one in [root, *root.rglob("*")]:
        one.chmod(0o777)
    writes.write(graph, {PERSON: ["after"], COMPANY: ["after"]})
    assert ids(graph, PERSON) == ids(graph, COMPANY) == ["after", "first"]


@as_root
@pytest.mark.parametrize("place", ["root", "manifest", "versions", "data"])
def test_a_read_without_the_right_to_read_names_the_cause(
    graph: Storage, tmp_path: Path, place: str
) -> None:
    places = {**NO_WRITE, "data": f"{layout.table_location(PERSON)}/data"}
    closed = Path(graph.root) / places[place]
    closed.chmod(0o700)
    done = child(graph, tmp_path, "read", "rights")
    closed.chmod(0o755)
    assert "OMNIGRAPH_" in str(done.get("error")), done
    assert "not found" not in str(done["error"]).lower() or place in ("root", "manifest"), done
    assert ids(graph, PERSON) == ["first"]


def test_a_process_without_file_handles_fails_typed_and_works_with_some_again(
    graph: Storage, tmp_path: Path
) -> None:
    done = child(graph, tmp_path, "write", "files")
    assert "OMNIGRAPH_" in str(done.get("error")), done
    assert "oo many open files" in str(done["error"]), done
    assert ids(graph, PERSON) == ["after", "first"]
    assert ids(graph, COMPANY) == ["first"]


# --- a full disk -------------------------------------------------------------------------------


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    place = tmp_path / "disk"
    place.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(place)],
        capture_output=True,
        text=True,
        check=False,
    )
    if mounted.returncode:
        pytest.skip(f"mounting a small disk is not allowed here: {mounted.stderr.strip()}")
    yield place
    _faults.disarm()
    subprocess.run(["umount", "-l", str(place)], check=False)


def fill(place: Path) -> None:
    """Take all the space that is left."""
    with (place / "ballast").open("wb", buffering=0) as file:
        for size in (1 << 16, 1 << 12, 1):
            try:
                while True:
                    file.write(b"\0" * size)
            except OSError:
                continue


FULL_AT = (
    "stage.before_first_file",
    "stage.done",
    "commit.entered",
    "commit.record_written",
    "commit.before_table",
    "table.sending",
    "commit.table_1",
    "commit.tables_done",
    "commit.before_publish",
    "publish.sending",
    "commit.after_publish",
    "commit.before_record_delete",
)


@pytest.mark.parametrize("point", FULL_AT)
def test_a_disk_that_gets_full_at_any_step_tears_nothing_and_works_with_space_again(
    small_disk: Path, point: str
) -> None:
    storage = writes.new_graph(Storage.at(str(small_disk / "g")))
    _faults.arm(point, writes.once(lambda: fill(small_disk)))
    rows = {PERSON: ["ours"], COMPANY: ["ours"]}
    try:
        planned = writes.plan(storage, list(rows))
        commit(planned, writes.stage_rows(planned, rows))
        failed = None
    except OmnigraphError as error:
        failed = str(error)
    _faults.disarm()
    found = ids(storage, PERSON), ids(storage, COMPANY)
    assert found[0] == found[1], "torn"
    if failed is None:
        assert found[0] == ["first", "ours"]
    else:
        assert "OMNIGRAPH_" in failed
        assert "No space left" in failed, failed
        assert found[0] == ["first"]
    (small_disk / "ballast").unlink()
    writes.write(storage, {PERSON: ["after"], COMPANY: ["after"]})
    assert ids(storage, PERSON) == ids(storage, COMPANY) == sorted([*found[0], "after"])


@pytest.fixture
def read_only(graph: Storage, tmp_path: Path) -> Iterator[Storage]:
    place = tmp_path / "read-only"
    place.mkdir()
    steps = (["mount", "--bind", graph.root], ["mount", "-o", "remount,ro,bind"])
    for step in steps:
        done = subprocess.run([*step, str(place)], capture_output=True, text=True, check=False)
        if done.returncode:
            subprocess.run(["umount", "-l", str(place)], check=False, capture_output=True)
            pytest.skip(f"a read-only mount is not allowed here: {done.stderr.strip()}")
    yield Storage.at(str(place))
    subprocess.run(["umount", "-l", str(place)], check=False)


@pytest.mark.parametrize("mode", ["append", "overwrite"])
def test_a_read_only_mount_is_read_and_refuses_writes_by_its_cause(
    graph: Storage, read_only: Storage, mode: str
) -> None:
    before = graphs.file_hashes(Path(read_only.root))
    assert ids(read_only, PERSON) == ["first"]
    with pytest.raises(OmnigraphError, match=r"OMNIGRAPH_STORAGE.*[Rr]ead-only"):
        writes.write(read_only, {PERSON: ["ours"]}, mode)
    assert graphs.file_hashes(Path(read_only.root)) == before
    writes.write(graph, {PERSON: ["ours"]}, mode)  # the same graph, where it can be written to
    assert "ours" in ids(read_only, PERSON)
