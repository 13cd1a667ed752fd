"""Look at a graph after a scenario and count what is wrong with it: checks O1 to O6 and O8 to O10.

Works from the files and the ledger alone, with a fold of its own: nothing of the product is asked what
the product did right. Every version of `__manifest` is looked at, not only the newest.

- O1 every row of an acknowledged write is visible exactly once, with the right values;
- O2 nothing of a failed write is visible; an ambiguous one is there as a whole or not at all;
- O3 at every graph version a write to several tables is in all of them or in none;
- O4 ids are unique per table;
- O5 each pinned version is at most the dataset's newest, opens, and has the recorded number of rows;
- O6 one lineage row per publish, each the child of the publish before;
- O8 tables that nobody wrote to have the same files;
- O9 every error is one of ours, says what to do, and shows no secret;
- O10 the next write works, soon, and leaves no crash record behind.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from tests.chaos import rows
from tests.chaos.ledger import ACKNOWLEDGED, DROP, FAILED, OVERWRITE, Ledger, Write

CHECKS = ("O1", "O2", "O3", "O4", "O5", "O6", "O8", "O9", "O10")
SECRET = "canary5ecret"
"""A secret in the environment of every writer; no error text may hold it."""
NEXT_WRITE_SECONDS = 30.0


@dataclass
class Verdict:
    """Violations by check, with one line of text each."""

    violations: dict[str, list[str]] = field(default_factory=dict)
    versions: int = 0
    publishes: int = 0

    def add(self, check: str, text: str) -> None:
        found = self.violations.setdefault(check, [])
        if text not in found:
            found.append(text)

    def count(self) -> dict[str, int]:
        return {check: len(self.violations.get(check, ())) for check in CHECKS}

    def __bool__(self) -> bool:
        return not self.violations


@dataclass(frozen=True)
class Content:
    """What one version of a table holds: rows per write."""

    rows: int
    by_write: Mapping[str, int]
    ids: int
    wrong: int


@dataclass(frozen=True)
class Pin:
    """A table in a snapshot: where, which version, how many rows are recorded."""

    location: str
    version: int
    row_count: int


class Graph:
    """The files of a graph, read without the product."""

    def __init__(self, root: str | Path) -> None:
        import lance

        self.root = str(root)
        self._lance = lance
        self._manifest = lance.dataset(f"{self.root}/__manifest")
        self._content: dict[tuple[str, int], Content | str] = {}
        self._heads: dict[str, int] = {}

    def versions(self) -> list[int]:
        return sorted(v["version"] for v in self._manifest.versions())

    def manifest_rows(self, version: int) -> list[dict[str, Any]]:
        columns = ["object_id", "object_type", "location", "metadata", "table_key"]
        columns += ["table_version", "table_branch", "row_count"]
        found: list[dict[str, Any]] = (
            self._manifest.checkout_version(version).to_table(columns=columns).to_pylist()
        )
        return found

    def head(self, location: str) -> int:
        if location not in self._heads:
            self._heads[location] = int(self._lance.dataset(f"{self.root}/{location}").version)
        return self._heads[location]

    def content(self, location: str, version: int) -> Content | str:
        """Return what a table's version holds, or why it can't be read."""
        key = (location, version)
        if key not in self._content:
            try:
                self._content[key] = self._read(location, version)
            except (OSError, ValueError, RuntimeError) as error:
                self._content[key] = str(error)[:200]
        return self._content[key]

    def _read(self, location: str, version: int) -> Content:
        table = self._lance.dataset(f"{self.root}/{location}", version=version).to_table()
        counts = table.group_by("write").aggregate([([], "count_all")])
        by_write = dict(
            zip(counts["write"].to_pylist(), counts["count_all"].to_pylist(), strict=True)
        )
        ids = int(pc.count_distinct(table["id"]).as_py())
        return Content(table.num_rows, by_write, ids, rows.wrong_values(table))

    def lineage(self) -> list[dict[str, Any]]:
        table: pa.Table = self._lance.dataset(f"{self.root}/_graph_commits.lance").to_table()
        return [row for row in table.to_pylist() if row["manifest_branch"] is None]


def snapshot_of(found: list[dict[str, Any]]) -> dict[str, Pin]:
    """Fold the rows of main's manifest: the highest version above the tombstones (format.md)."""
    places = {r["table_key"]: r["location"] for r in found if r["object_type"] == "table"}
    gone: dict[str, int] = {}
    for row in found:
        if row["object_type"] == "table_tombstone":
            gone[row["table_key"]] = max(gone.get(row["table_key"], 0), row["table_version"])
    live: dict[str, Pin] = {}
    for row in found:
        key, version = row["table_key"], row["table_version"]
        if row["object_type"] != "table_version" or version <= gone.get(key, 0):
            continue
        if key not in live or version > live[key].version:
            live[key] = Pin(places[key], version, row["row_count"])
    return live


def check(
    root: str | Path,
    ledger: Ledger,
    untouched: Mapping[str, str] | None = None,
    *,
    every_version: bool = True,
) -> Verdict:
    """Run O1 to O6, O8 and O9; `untouched` maps locations to their `listing` from before."""
    verdict = Verdict()
    graph = Graph(root)
    history = _History(graph, ledger)
    verdict.versions, verdict.publishes = len(history.versions), len(history.publishes)
    _check_outcomes(verdict, ledger, history)
    checked = history.versions if every_version else history.versions[-1:]
    for version in checked:
        _check_version(verdict, graph, ledger, history, version)
    _check_lineage(verdict, graph, history)
    for location, before in (untouched or {}).items():
        if listing(root, location) != before:
            verdict.add("O8", f"the files of {location} changed")
    for token, error in ledger.errors():
        _check_error(verdict, token, error)
    return verdict


class _History:
    """Which publish made which graph version, and what every version should hold by the ledger."""

    def __init__(self, graph: Graph, ledger: Ledger) -> None:
        self.versions = graph.versions()
        self.pins: dict[int, dict[str, Pin]] = {}
        self.publishes: list[int] = []
        self.first_seen: dict[str, int] = {}
        self.expected: dict[int, dict[str, Counter[str]]] = {}
        by_id = {w.publish_id: w for w in ledger.writes.values()}
        now: dict[str, Counter[str]] = {}
        before: set[tuple[Any, ...]] = set()
        for version in self.versions:
            found = graph.manifest_rows(version)
            self.pins[version] = snapshot_of(found)
            after = {tuple(row.values()) for row in found}
            if after != before or version == self.versions[0]:
                self.publishes.append(version)
            for publish_id in _publish_ids(after - before):
                if publish_id in self.first_seen:
                    continue
                self.first_seen[publish_id] = version
                if publish_id in by_id:
                    now = _applied(now, by_id[publish_id])
            self.expected[version] = now
            before = after


def _publish_ids(changed: set[tuple[Any, ...]]) -> list[str]:
    import json

    ids = []
    for row in changed:
        if row[1] == "table_version":
            ours = json.loads(row[3] or "{}").get("omnigraph_spark", {})
            if "publish_id" in ours:
                ids.append(ours["publish_id"])
            if ours.get("user_metadata"):
                ids.append(user_id(ours["user_metadata"]))
        if row[1] == "table_tombstone":
            ids.append(drop_id(row[4], row[5]))
    return sorted(set(ids))


def user_id(user_metadata: str) -> str:
    """Return what stands for the publish id of a write that is known by its `userMetadata`."""
    return f"user metadata {user_metadata}"


def drop_id(key: str, version: int) -> str:
    """Return what stands for the publish id of a drop, whose tombstone carries none."""
    return f"drop of {key} at {version}"


def _applied(now: dict[str, Counter[str]], write: Write) -> dict[str, Counter[str]]:
    after = dict(now)
    for key, count in write.tables.items():
        if write.mode == DROP:
            after.pop(key, None)
            continue
        kept = Counter[str]() if write.mode == OVERWRITE else Counter(now.get(key, {}))
        if count:
            kept[write.token] += count
        after[key] = kept
    return after


def _check_outcomes(verdict: Verdict, ledger: Ledger, history: _History) -> None:
    for write in ledger.writes.values():
        there = history.first_seen.get(write.publish_id)
        if write.outcome == ACKNOWLEDGED and any(write.tables.values()) and there is None:
            verdict.add("O1", f"{write.token} was acknowledged and never published")
        if write.outcome == FAILED and there is not None:
            verdict.add("O2", f"{write.token} failed and was published at {there}")
        told = write.graph_version if write.graph_version != -1 else there  # -1: wasn't told
        if write.outcome == ACKNOWLEDGED and there is not None and there != told:
            verdict.add(
                "O6", f"{write.token} was told version {write.graph_version}, and is at {there}"
            )


def _check_version(
    verdict: Verdict, graph: Graph, ledger: Ledger, history: _History, version: int
) -> None:
    expected = history.expected[version]
    pins = history.pins[version]
    state: dict[str, dict[str, bool]] = {}
    for key in sorted({*expected, *pins}):
        pin = pins.get(key)
        found = _pinned(verdict, graph, key, pin, version)
        if found is None:
            continue
        wanted = expected.get(key, Counter())
        for token in sorted({*wanted, *map(str, found.by_write)}):
            have, want = found.by_write.get(token, 0), wanted.get(token, 0)
            write = ledger.writes.get(token)
            state.setdefault(token, {})[key] = have > 0
            if have != want:
                _difference(verdict, token, write, key, have, want, version)
        if found.ids != found.rows:
            verdict.add(
                "O4", f"{key} at {pin and pin.version}: {found.rows - found.ids} id(s) twice"
            )
        if found.wrong:
            verdict.add(
                "O1", f"{key} at {pin and pin.version}: {found.wrong} row(s) of wrong values"
            )
    for token, seen in state.items():
        write = ledger.writes.get(token)
        if write is None or len(write.tables) < 2:
            continue
        # A dropped table has nobody's rows, and tells nothing.
        keys = [key for key in write.tables if key in expected or key in pins]
        wanted_in = {key: expected.get(key, Counter()).get(token, 0) > 0 for key in keys}
        found_in = {key: seen.get(key, False) for key in keys}
        if found_in != wanted_in and any(found_in.values()) and not all(found_in.values()):
            verdict.add("O3", f"{token} is only in part of its tables at version {version}")


def _pinned(
    verdict: Verdict, graph: Graph, key: str, pin: Pin | None, version: int
) -> Content | None:
    if pin is None:
        verdict.add("O5", f"{key} is missing at version {version}")
        return None
    try:
        head = graph.head(pin.location)
    except (OSError, ValueError, RuntimeError) as error:
        verdict.add("O5", f"{key} doesn't open: {str(error)[:120]}")
        return None
    if pin.version > head:
        verdict.add("O5", f"{key} is pinned at {pin.version} and ends at {head}")
        return None
    found = graph.content(pin.location, pin.version)
    if isinstance(found, str):
        verdict.add("O5", f"{key} version {pin.version} doesn't read: {found}")
        return None
    if found.rows != pin.row_count:
        verdict.add("O5", f"{key} {pin.version} has {found.rows} rows, recorded {pin.row_count}")
    return found


def _difference(
    verdict: Verdict, token: str, write: Write | None, key: str, have: int, want: int, version: int
) -> None:
    text = f"{token} has {have} rows in {key}, not {want}"
    if write is None:
        verdict.add("O2", f"{text} (nobody's)")
    elif have > want and want == 0:
        verdict.add("O2", f"{text} ({write.outcome}, from version {version})")
    elif write.outcome == ACKNOWLEDGED:
        verdict.add("O1", text)
    else:
        verdict.add("O2", f"{text} ({write.outcome})")


def _check_lineage(verdict: Verdict, graph: Graph, history: _History) -> None:
    by_version: dict[int, set[tuple[str, str | None]]] = {}
    for row in graph.lineage():
        entry = (row["graph_commit_id"], row["parent_commit_id"])
        by_version.setdefault(row["manifest_version"], set()).add(entry)
    ids: dict[str, int] = {}
    parent: str | None = None
    for version in history.publishes:
        entries = by_version.pop(version, set())
        if len(entries) != 1:
            what = "no lineage row" if not entries else f"{len(entries)} different lineage rows"
            verdict.add("O6", f"publish {version} has {what}")
            parent = None
            continue
        ((commit, said),) = entries
        if parent is not None and said != parent:
            verdict.add("O6", f"publish {version} is the child of {said}, not of {parent}")
        if commit in ids:
            verdict.add("O6", f"commit {commit} is at versions {ids[commit]} and {version}")
        seen = history.first_seen.get(commit)
        if seen is not None and seen != version:
            verdict.add("O6", f"commit {commit} is at version {version}, published at {seen}")
        ids[commit] = version
        parent = commit
    for version in by_version:
        if version in history.versions:
            verdict.add("O6", f"version {version} is not a publish and has a lineage row")
        else:
            verdict.add("O6", f"there is a lineage row of version {version}, which is not there")


def _check_error(verdict: Verdict, token: str, error: Mapping[str, Any]) -> None:
    text = str(error.get("text", ""))
    if not error.get("typed") or not text.startswith("[OMNIGRAPH_"):
        verdict.add("O9", f"{token}: {error.get('type')} is not one of ours: {text[:200]}")
    elif " · " not in text:
        verdict.add("O9", f"{token}: the error says nothing beside what happened: {text[:200]}")
    if SECRET in text:
        verdict.add("O9", f"{token}: the error shows a secret")


def check_next_write(
    verdict: Verdict, root: str | Path, write: Write | None, seconds: float
) -> None:
    """O10: judge the write that came after a scenario, and what it left in `__recovery`."""
    if write is None or write.outcome != ACKNOWLEDGED:
        told = None if write is None else (write.error or {}).get("text", "it never ended")
        verdict.add("O10", f"the next write failed: {told}")
    if seconds > NEXT_WRITE_SECONDS:
        verdict.add("O10", f"the next write took {seconds:.1f} s")
    left = records(root)
    if left:
        verdict.add("O10", f"crash records are left: {', '.join(left[:3])}")


def check_heads(verdict: Verdict, root: str | Path) -> None:
    """O2 ahead of time: while nobody writes, a head holds what is published, or a record says why not.

    The engine publishes with its next insert whatever is at a head, unless it finds
    a crash record; so a head that is left ahead without one is a phantom to be.
    """
    if records(root):
        return
    graph = Graph(root)
    for key, pin in snapshot_of(graph.manifest_rows(graph.versions()[-1])).items():
        head = graph.head(pin.location)
        ahead, published = (
            graph.content(pin.location, head),
            graph.content(pin.location, pin.version),
        )
        if ahead != published:
            verdict.add(
                "O2", f"{key}: the head {head} could be adopted, {pin.version} is published"
            )


def records(root: str | Path) -> list[str]:
    """Return the names of the crash records of a graph.

    A writer that is killed inside its put leaves the store library's own temporary file (`…#1`)
    behind, which that library never lists, here or in the engine: litter, and no record.
    """
    folder = Path(root) / "__recovery"
    names = sorted(os.listdir(folder)) if folder.is_dir() else []
    return [name for name in names if not re.search(r"#[0-9]+$", name)]


def listing(root: str | Path, location: str) -> str:
    """Return a digest of names, sizes and bytes of all files of a table."""
    digest = hashlib.sha256()
    for path in sorted((Path(root) / location).rglob("*")):
        if path.is_file():
            digest.update(f"{path.relative_to(root)} {path.stat().st_size}".encode())
            digest.update(path.read_bytes())
    return digest.hexdigest()
