"""Named points where a test can kill, fail or stall a process; no cost when off.

Off unless the environment variable `OMNIGRAPH_SPARK_FAULTS` is set when the process starts:
`point=action[,point=action…]` with action `kill` (SIGKILL to this process), `kill_after:SECONDS`
(the same a little later, so in the middle of what comes next), `raise` (a StorageError), `unknown`
(what Lance raises when the store never answered a commit), `stall:SECONDS`, or
`run:module:function` (call a function, for a rival between two steps); `@N` after the action arms
the N-th hit only. With `file:PATH` the same text is read from a file at every point, so that a test
can arm the processes that Spark starts. Each delivered fault is appended to the file that
`OMNIGRAPH_SPARK_FAULTS_LOG` names, so that a test can count it.
"""

from __future__ import annotations

import importlib
import os
import signal
import threading
import time
from collections.abc import Callable

from omnigraph_spark.errors import OptionError, StorageError

POINTS = frozenset(
    {
        "stage.before_first_file",
        "stage.file_half_written",
        "stage.done",
        "commit.entered",
        "commit.record_written",
        "commit.checked",
        "commit.before_table",
        "commit.table_1",
        "commit.table_2",
        "commit.table_3",
        "commit.table_n",
        "commit.tables_done",
        "commit.before_publish",
        "commit.after_publish",
        "commit.published",
        "commit.before_undo",
        "commit.before_record_delete",
        "commit.done",
        "table.before_commit",
        "table.sending",
        "table.landed",
        "table.after_commit",
        "table.after_strip",
        "table.before_columns",
        "table.columns_added",
        "table.before_restore",
        "table.after_restore",
        "publish.opened",
        "publish.before_merge",
        "publish.sending",
        "publish.landed",
        "publish.after_merge",
        "new_graph.tables_made",
        "new_graph.files_put",
        "new_graph.made",
        "schema_lock.made",
        "schema_lock.taken",
        "schema_lock.silent",
        "schema_lock.taken_over",
        "schema_apply.tables_made",
        "schema_apply.recorded",
        "schema_apply.file_staged",
        "schema_apply.staged",
        "schema_apply.published",
        "schema_apply.file_put",
        "stream.offset",
        "stream.planned",
        "stream.commit",
        "stream.committed",
        "fork.before_removal",
        "fork.ref_removed",
        "branch.before_clone",
        "branch.cloned",
        "branch.close",
        "branch.manifest_removed",
        "tag.tables_tagged",
        "tag.made",
        "cleanup.planned",
        "cleanup.begun",
        "repair.waiting",
        "cleanup.manifests_removed",
        "cleanup.versions_removed",
        "lineage.before_row",
        "lineage.after_row",
        "lineage.after_actor",
        "migrate.before_annotation",
        "migrate.before_stamp",
        "migrate.after_stamp",
        "heal.before_restore",
        "heal.before_publish",
        "heal.after_publish",
        "heal.before_record_delete",
    }
)
_VARIABLE = "OMNIGRAPH_SPARK_FAULTS"
_LOG = "OMNIGRAPH_SPARK_FAULTS_LOG"


def _parse(text: str) -> dict[str, str]:
    armed: dict[str, str] = {}
    for part in filter(None, (piece.strip() for piece in text.split(","))):
        name, _, action = part.partition("=")
        if name not in POINTS or not action:
            raise OptionError(f"{_VARIABLE} names no fault point: {part!r}")
        armed[name] = action
    return armed


_text = os.environ.get(_VARIABLE, "")
_file = _text[len("file:") :] if _text.startswith("file:") else None
_armed: dict[str, str] = _parse("" if _file else _text)
_told: dict[str, str] = {}
_hits: dict[str, int] = {}
_hooks: dict[str, Callable[[], None]] = {}


def arm(name: str, action: str | Callable[[], None]) -> None:
    """Arm a point in this process (tests); `action` as in the environment, or a callable."""
    if name not in POINTS:
        raise OptionError(f"{name!r} is not a fault point")
    if callable(action):
        _hooks[name] = action
        _armed[name] = "hook"
    else:
        _armed[name] = action
    _hits.pop(name, None)


def disarm() -> None:
    """Disarm all points of this process."""
    _armed.clear()
    _hooks.clear()
    _hits.clear()


def point(name: str) -> None:
    """Do what is armed at a point, if anything is."""
    if _file is not None:
        _read_file(_file)
    if _armed and name in _armed:
        _fire(name)


def _read_file(path: str) -> None:
    """Arm what a file says now, beside what `arm` armed; one that isn't there arms nothing."""
    for name in _told:
        _armed.pop(name, None)
    _told.clear()
    if os.path.exists(path):
        with open(path, encoding="utf-8") as file:
            _told.update(_parse(file.read()))
    _armed.update(_told)


def _fire(name: str) -> None:
    action, _, number = _armed[name].partition("@")
    _hits[name] = _hits.get(name, 0) + 1
    if number and int(number) != _hits[name]:
        return
    _note(name)
    kind, _, argument = action.partition(":")
    if kind == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif kind == "kill_after":
        threading.Timer(float(argument), os.kill, (os.getpid(), signal.SIGKILL)).start()
    elif kind == "unknown":
        raise OSError("Commit result for version 0 is unknown (injected)")
    elif kind == "raise":
        raise StorageError(f"Injected fault at {name}", hint="Run it again without the fault")
    elif kind == "stall":
        time.sleep(float(argument))
    elif kind == "run":
        module, _, function = argument.partition(":")
        getattr(importlib.import_module(module), function)()
    elif kind == "hook":
        _hooks[name]()
    else:
        raise OptionError(f"{action!r} is not a fault action")


def _note(name: str) -> None:
    log = os.environ.get(_LOG)
    if log:
        with open(log, "a", encoding="utf-8") as file:
            file.write(f"{name} {os.getpid()}\n")
            file.flush()
            os.fsync(file.fileno())
