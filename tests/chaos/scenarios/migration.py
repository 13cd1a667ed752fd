"""Stamps: a migration that is killed, or run by many at once, and stamps of the future."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import lance
import pyarrow as pa

from omnigraph_spark.errors import OmnigraphError
from omnigraph_spark.history import init
from omnigraph_spark.manifest import formats, migrations
from omnigraph_spark.manifest.rows import MANIFEST_SCHEMA, PRIMARY_KEY_ANNOTATION
from omnigraph_spark.manifest.snapshot import load
from omnigraph_spark.storage.store import Storage
from tests.chaos import jobs, launcher, oracle, rows
from tests.chaos.lab import ALL, Case, Lab
from tests.chaos.launcher import Setup
from tests.chaos.ledger import ACKNOWLEDGED, FAILED

POINTS = ("migrate.before_annotation", "migrate.before_stamp", "migrate.after_stamp")
STAMPS = ("7", "101", "abc", "", "-1", "2.0", "4294967296")
_STAMP_KEY = formats.STAMP_KEY


def crashes(lab: Lab) -> None:
    """Kill v1 to v2 at each step; then one writer, one that dies again, or four at once go on."""
    asked: list[Callable[[], None]] = [
        partial(_crash, lab, number, point, how)
        for number in range(lab.size(1, 20))
        for point in POINTS
        for how in ("one", "dies-again", "four")
    ]
    lab.each(asked, lambda cell: cell())
    case = lab.case("four-fresh")
    _old_graph(case)
    _four(case)
    _is_v2(case)
    case.finish()
    _other_key(lab)


def _old_graph(case: Case) -> None:
    outcome = case.run(old_writer, case.graph, dict.fromkeys(ALL, 3), writer="old")
    assert outcome == ACKNOWLEDGED, case.ledger().errors()
    case.untouched(rows.QUIET)
    before = oracle.listing(case.graph, "__manifest")
    load(Storage.at(case.graph))
    unchanged = oracle.listing(case.graph, "__manifest") == before
    case.lab.expect(unchanged, "O8", "a read changed a v1 manifest")
    stamped = _STAMP_KEY.encode() in (
        lance.dataset(f"{case.graph}/__manifest").schema.metadata or {}
    )
    case.lab.expect(not stamped, "32", "the old graph is not v1")


def old_writer(setup: Setup, graph: str, tables: dict[str, int]) -> str:
    """Write as a version before the stamp would: no annotation, no stamp."""
    plain = pa.schema([field.remove_metadata() for field in MANIFEST_SCHEMA])
    old: Any = init
    old.new_manifest_schema = lambda: plain
    old = migrations
    old.migrate_internal_schema = lambda manifest: manifest
    return jobs.Writer(setup, graph).write(tables)


def _crash(lab: Lab, number: int, point: str, how: str) -> None:
    case = lab.case(f"migrate-{number}-{point}-{how}")
    _old_graph(case)
    tables = dict.fromkeys(rows.THREE, 2)
    child = case.start(
        jobs.write_once, case.graph, tables, "append", case.options, faults={point: "kill"}
    )
    child.end()
    lab.expect(child.was_killed(), "fault", f"{point} did not kill")
    if how == "dies-again":
        case.start(
            jobs.write_once,
            case.graph,
            tables,
            "append",
            case.options,
            faults={"migrate.before_stamp": "kill", "commit.record_written": "kill"},
            surely=False,
        ).end()
    if how == "four":
        _four(case)
    else:
        outcome = case.write(tables)
        lab.expect(outcome == ACKNOWLEDGED, "32", f"{point} {how}: {outcome}")
    _is_v2(case)
    case.finish()


def _four(case: Case) -> None:
    barrier = launcher.barrier(4)
    four = [
        case.start(jobs.write_once, case.graph, {key: 2}, "append", case.options, barrier=barrier)
        for key in (*rows.THREE, rows.PERSON)
    ]
    outcomes = [child.end() for child in four]
    case.lab.expect(outcomes == [ACKNOWLEDGED] * 4, "32", f"four at once: {outcomes}")


def _is_v2(case: Case) -> None:
    schema = lance.dataset(f"{case.graph}/__manifest").schema
    keys = [f.name for f in schema if PRIMARY_KEY_ANNOTATION.encode() in (f.metadata or {})]
    stamp = (schema.metadata or {}).get(_STAMP_KEY.encode())
    case.lab.expect(keys == ["object_id"] and stamp == b"2", "32", f"keys {keys}, stamp {stamp}")


def _other_key(lab: Lab) -> None:
    """A primary key on another column can't be moved: refused, nothing changes."""
    case = lab.case("other-key")
    _old_graph(case)
    manifest = lance.dataset(f"{case.graph}/__manifest")
    manifest.update_field_metadata({"table_key": {PRIMARY_KEY_ANNOTATION: "true"}})
    before = oracle.listing(case.graph, "__manifest")
    outcome = case.write({rows.PERSON: 1}, writer="refused")
    lab.expect(outcome == FAILED, "32", f"a primary key elsewhere: {outcome}")
    lab.expect(oracle.listing(case.graph, "__manifest") == before, "32", "__manifest changed")
    case.close()


def future_stamps(lab: Lab) -> None:
    """A graph with a stamp that isn't ours is refused for writing, and not a byte changes."""
    for stamp in STAMPS:
        case = lab.case(f"stamp-{stamp or 'empty'}").make()
        lance.dataset(f"{case.graph}/__manifest").update_schema_metadata({_STAMP_KEY: stamp})
        before = oracle.listing(case.graph, ".")
        for mode in ("append", "overwrite"):
            outcome = case.write({rows.PERSON: 1}, mode, writer=f"refused-{mode}")
            told = dict(case.ledger().errors()).get(f"refused-{mode}.1", {})
            text = str(told.get("text"))
            right = told.get("type") == "UnsupportedManifestVersion" and "upgrade" in text
            lab.expect(outcome == FAILED and right, "33", f"{stamp!r} {mode}: {outcome} {told}")
            lab.expect((stamp or "''") in text and "2" in text, "33", f"{stamp!r}: {text}")
        lab.expect(oracle.listing(case.graph, ".") == before, "33", f"{stamp!r}: bytes changed")
        _read_of(lab, case, stamp)
        lab.expect(oracle.listing(case.graph, ".") == before, "33", f"{stamp!r}: a read wrote")
        case.close()


def _read_of(lab: Lab, case: Case, stamp: str) -> None:
    """A plain number above ours reads, since the columns are there; anything else is refused."""
    try:
        load(Storage.at(case.graph))
        readable = True
    except OmnigraphError:
        readable = False
    lab.expect(readable == stamp.isdigit(), "33", f"{stamp!r}: readable: {readable}")
