"""Remove what nobody needs any more: old versions, their files, and what dead writers left.

Runs on the driver. The versions that go are named one by one, across `__manifest`, the logs and all
tables; everything that a version which stays mentions stays (rule 27). Version files go first,
those of `__manifest` before the tables', then, after a second look at what is there by then, the
files. A cleanup that dies in between leaves files that the next one takes. Not by Lance's own
cleanup: it goes by the paths in a branch's manifest, and in a graph that was moved deletes what the
branch reads.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta, timezone
from functools import partial
from itertools import groupby

from omnigraph_spark import _faults
from omnigraph_spark.errors import (
    BranchNotFoundError,
    CorruptManifestError,
    OmnigraphError,
    OptionError,
    UnsupportedError,
)
from omnigraph_spark.maintenance import references, retention
from omnigraph_spark.maintenance.references import Line, Names
from omnigraph_spark.maintenance.retention import Pin, Refs
from omnigraph_spark.manifest import crash_records, migrations
from omnigraph_spark.manifest.crash_records import Heartbeat
from omnigraph_spark.manifest.snapshot import Snapshot, open_main
from omnigraph_spark.manifest.writable import fence, is_fenced
from omnigraph_spark.refs import forks, refs
from omnigraph_spark.refs.forks import Fork
from omnigraph_spark.storage import layout
from omnigraph_spark.storage.ids import new_ulid
from omnigraph_spark.storage.progress import Progress, as_html, as_text
from omnigraph_spark.storage.store import ObjectInfo, Storage
from omnigraph_spark.write import staging as staging_records

WEEK = timedelta(days=7)
_DAY = timedelta(days=1)
_TIMEOUTS = 10
_BATCH = 1000
_LOGS = (
    layout.GRAPH_COMMITS,
    layout.GRAPH_COMMIT_ACTORS,
    layout.GRAPH_RUNS,
    layout.GRAPH_RUN_ACTORS,
)

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class CleanedDataset:
    """What goes of one dataset: `place` is a table key, or the name of a dataset of the graph.

    `skipped` says why nothing of it goes, None where it was looked through.
    """

    place: str
    versions: int = 0
    files: int = 0
    bytes: int = 0
    skipped: str | None = None


@dataclass(frozen=True)
class Cleaned:
    """What a cleanup removed, or would remove (`dry_run`); `before` is the cutoff that it went by.

    `forks` are the forks of deleted branches as `place/branch`, `staged` the left messages.
    """

    dry_run: bool
    before: datetime
    datasets: tuple[CleanedDataset, ...]
    forks: tuple[str, ...] = ()
    staged: int = 0

    def __repr__(self) -> str:
        return as_text(*self._shown())

    def _repr_html_(self) -> str:
        return as_html(*self._shown())

    def _shown(self) -> tuple[str, tuple[str, ...], list[tuple[object, ...]]]:
        would = "would go" if self.dry_run else "went"
        title = (
            f"Cleanup, {self.before:%Y-%m-%d %H:%M} UTC: {self.versions:,} versions and"
            f" {self.files:,} files of {self.bytes:,} bytes {would}"
        )
        if self.forks or self.staged:
            title += f", {len(self.forks):,} forks and {self.staged:,} staged messages too"
        if self.dry_run:
            title += " (dry_run=False removes them)"
        rows: list[tuple[object, ...]] = [
            (dataset.place, dataset.versions, dataset.files, dataset.bytes, dataset.skipped)
            for dataset in self.datasets
        ]
        return title, ("dataset", "versions", "files", "bytes", "skipped"), rows

    @property
    def versions(self) -> int:
        """Return how many versions go, of all datasets."""
        return sum(dataset.versions for dataset in self.datasets)

    @property
    def files(self) -> int:
        """Return how many files go, version files included."""
        return sum(dataset.files for dataset in self.datasets)

    @property
    def bytes(self) -> int:
        """Return how many bytes come free."""
        return sum(dataset.bytes for dataset in self.datasets)


def cleanup(
    storage: Storage,
    older_than: timedelta = WEEK,
    keep: int = 1,
    *,
    dry_run: bool = True,
    force: bool = False,
    commit_timeout_seconds: float = 300.0,
    grace_seconds: float = 10.0,
    now: datetime | None = None,
) -> Cleaned:
    """Remove versions and files that nothing needs, or say what would go (`dry_run`).

    Never younger than a day, nor than ten times `commit_timeout_seconds`, with `force` too: a
    writer may still stand on it. `grace_seconds` is how often its sign of life is renewed, as in a
    write, and how long another engine's unfinished write is waited for. `now` replaces the store's
    clock in tests.

    Raises:
        OptionError: `older_than` is under 7 days and `force` isn't given, or `keep` is under 1.
        GraphNotFoundError: no graph is there.
        UnsupportedManifestVersion, RecoveryPendingError: the graph can't be written.
        StorageError: the store failed; what was removed before stays removed.
    """
    if keep < 1 or older_than < timedelta(0):
        raise OptionError("cleanup keeps at least the newest version", expected="keep of 1 or more")
    if older_than < WEEK and not force:
        raise OptionError(
            f"cleanup would remove what is only {older_than} old",
            expected="older_than of at least 7 days",
            hint="force=True allows less, if no reader, stream or long job stands on old versions",
        )
    age = max(older_than, _DAY, timedelta(seconds=_TIMEOUTS * commit_timeout_seconds))
    migrations.refuse_newer(open_main(storage))
    crash_records.refuse_foreign(storage, grace_seconds)
    if dry_run:
        moment = now or datetime.now(timezone.utc)
        return _Cleanup(storage, moment, age, keep, None).run()
    publish_id = new_ulid()
    # Its own record is the store's clock (rule 24).
    with Heartbeat(storage, publish_id, grace_seconds) as heartbeat:
        heartbeat.record(layout.MAIN, [], None)
        try:
            moment = now or crash_records.renewed_at(storage, publish_id) or _never()
            return _Cleanup(storage, moment, age, keep, heartbeat).run()
        finally:
            heartbeat.remove()


def _never() -> datetime:
    """Return a time that makes nothing old: the store lost our own record."""
    return datetime(1971, 1, 1, tzinfo=timezone.utc)


@dataclass(frozen=True)
class _Doomed:
    """What goes of one dataset: version files, by line, and other files."""

    versions: dict[str | None, list[int]]
    manifests: list[ObjectInfo]
    files: list[ObjectInfo]

    def report(self, place: str) -> CleanedDataset:
        gone = [*self.manifests, *self.files]
        count = sum(len(numbers) for numbers in self.versions.values())
        return CleanedDataset(place, count, len(gone), sum(info.size for info in gone))


@dataclass
class _Plan:
    """What goes of all datasets, by location; forks of branches that are gone; left messages."""

    doomed: dict[str, _Doomed] = field(default_factory=dict)
    skipped: list[CleanedDataset] = field(default_factory=list)
    orphans: list[Fork] = field(default_factory=list)
    staged: list[ObjectInfo] = field(default_factory=list)

    def graph_versions(self) -> Mapping[str | None, list[int]]:
        """Return the versions of `__manifest` that go, by line."""
        doomed = self.doomed.get(layout.MANIFEST)
        return {} if doomed is None else doomed.versions


class _Changed(Exception):
    """A branch or tag was made meanwhile that needs what this cleanup removes."""


@dataclass(frozen=True)
class _Cleanup:
    """`heartbeat` renews the cleanup's own record; a dry run has none."""

    storage: Storage
    now: datetime
    age: timedelta
    keep: int
    heartbeat: Heartbeat | None

    @property
    def cutoff(self) -> datetime:
        """Return since when a version must have been superseded to go."""
        return self.now - self.age

    @property
    def dry_run(self) -> bool:
        """Return whether nothing is removed."""
        return self.heartbeat is None

    def run(self) -> Cleaned:
        """Plan all, then remove in an order that leaves nothing broken if it stops anywhere."""
        known = Refs.of(self.storage)
        heads = {branch.name: head for branch, head in refs.readable(self.storage)}
        pins = self._pins(known, heads)
        places = self._places(heads)
        progress = Progress("cleanup", len(places) * (1 if self.dry_run else 2))
        plan = self._plan(places, pins, known, progress)
        if self.heartbeat is not None:
            self._announce(plan)
            _faults.point("cleanup.planned")
            if Refs.of(self.storage) == known:
                plan = self._carry_out(plan, pins, known, progress, places)
            else:
                _log.warning("a branch or tag was made or deleted meanwhile; nothing removed")
                plan = _Plan()
        reports = [doomed.report(places[location]) for location, doomed in plan.doomed.items()]
        return Cleaned(
            self.dry_run,
            self.cutoff,
            tuple(sorted([*reports, *plan.skipped], key=lambda report: report.place)),
            tuple(f"{places[fork.location]}/{fork.name}" for fork in plan.orphans),
            len(plan.staged),
        )

    def _announce(self, plan: _Plan) -> None:
        """Say in the cleanup's own record which graph versions go; see `refs.check_pinned`."""
        assert self.heartbeat is not None
        going = {
            branch or layout.MAIN: [(low, high) for low, high in _ranges(numbers)]
            for branch, numbers in plan.graph_versions().items()
            if numbers
        }
        self.heartbeat.record(layout.MAIN, [], None, removing=going)

    def _pins(self, known: Refs, heads: Collection[str]) -> set[Pin]:
        """Return every version of `__manifest` and of the tables that must stay.

        A branch that is half made or half deleted is none of `heads`, and nothing of it can be
        read: it keeps only what its ref names.

        Raises:
            CorruptManifestError: a branch that is listed has no version.
            OmnigraphError: a kept graph version can't be read.
        """
        manifests = references.lines(self.storage, layout.MANIFEST)
        made = {}
        for name in sorted(heads):
            line = manifests.get(layout.lance_branch(name))
            if line is None or not line.versions:
                raise CorruptManifestError(f"Branch {name} is listed and has no version")
            made[name] = line.made()
        versions = retention.graph_versions(self.storage, known, made, self.cutoff, self.keep)
        _log.info("cleanup: %d graph version(s) stay", sum(map(len, versions.values())))
        own = {(layout.MANIFEST, layout.lance_branch(b), v) for b, n in versions.items() for v in n}
        return own | retention.pins(self.storage, versions)

    def _plan(
        self, places: Mapping[str, str], pins: set[Pin], known: Refs, progress: Progress
    ) -> _Plan:
        """Say what goes; a dataset that can't be read is left alone as a whole."""
        plan = _Plan(staged=self._staged())
        staging = staging_records.oldest_live(self.storage, self.now)
        for location, name in places.items():
            try:
                lines = references.lines(self.storage, location)
                named = pins | retention.named_by_lance(self.storage, location)
                doomed = self._doomed(location, lines, named, staging)
                plan.orphans += self._orphans(location, lines, named, known)
                plan.doomed[location] = doomed
            except OmnigraphError as error:
                _log.warning("cleanup leaves %s alone: %s", name, error)
                plan.skipped.append(CleanedDataset(name, skipped=str(error)))
            progress.step(f"looked through {name}")
        return plan

    def _carry_out(
        self,
        plan: _Plan,
        pins: set[Pin],
        known: Refs,
        progress: Progress,
        places: Mapping[str, str],
    ) -> _Plan:
        """Remove version files everywhere, look again what is mentioned, remove the files.

        Those of `__manifest` go first, so that no graph version is there without its tables.
        Returns what was removed.
        """
        done = _Plan(skipped=plan.skipped)
        fenced = self._fence(plan)
        _faults.point("cleanup.begun")
        try:
            for location, doomed in plan.doomed.items():
                self._delete(doomed.manifests, plan)
                done.doomed[location] = replace(doomed, files=[])
                if location == layout.MANIFEST:
                    _faults.point("cleanup.manifests_removed")
            _faults.point("cleanup.versions_removed")
            for location, doomed in plan.doomed.items():
                lines = references.lines(self.storage, location)
                named = pins | retention.named_by_lance(self.storage, location)
                staging = staging_records.oldest_live(self.storage, self.now)
                again = self._doomed(location, lines, named, staging, all_stay=True)
                still = {info.path for info in again.files}
                files = [info for info in doomed.files if info.path in still]
                self._delete(files, plan)
                done.doomed[location] = replace(doomed, files=files)
                progress.step(f"cleaned up {places[location]}")
            for fork in plan.orphans:
                if forks.remove_fork(self.storage, fork, partial(self._is_gone, fork.name)):
                    done.orphans.append(fork)
            self._delete(plan.staged, plan)
            done.staged.extend(plan.staged)
        except _Changed as error:
            _log.warning("the cleanup stops: %s", error)
        _log.info("cleanup: fenced %s", ", ".join(fenced) or "nothing")
        return done

    def _is_gone(self, name: str) -> bool:
        return name not in {branch.name for branch in refs.list_branches(self.storage)}

    def _places(self, heads: Mapping[str, Snapshot]) -> dict[str, str]:
        """Return all datasets of the graph, `__manifest` first, with what they are called."""
        places = {name: name for name in (layout.MANIFEST, *_LOGS)}
        for head in heads.values():
            for key, location in head.locations.items():
                places.setdefault(location, key)
        return places

    def _fence(self, plan: _Plan) -> list[str]:
        """Keep what a publish that sleeps knows from being mistaken for what comes; see `fence`."""
        fenced = []
        for branch, numbers in plan.graph_versions().items():
            if not numbers or is_fenced(self.storage, branch, max(numbers)):
                continue
            try:
                fence(self.storage, branch or layout.MAIN)
                fenced.append(branch or layout.MAIN)
            except BranchNotFoundError:
                continue  # the line of a branch that is gone
            except UnsupportedError as error:  # of a moved graph: nobody publishes to it
                _log.info("branch %s gets no fence: %s", branch, error)
        return fenced

    def _doomed(
        self,
        location: str,
        lines: Mapping[str | None, Line],
        named: set[Pin],
        staging: datetime | None,
        *,
        all_stay: bool = False,
    ) -> _Doomed:
        """Plan one dataset: which versions go, and which files no version that stays mentions.

        `named` is what refs and kept graph versions need, `staging` when the oldest write was
        planned that may still be staging.
        """
        going: dict[str | None, list[int]] = {}
        manifests: list[ObjectInfo] = []
        names = Names()
        for branch, line in lines.items():
            stay = retention.kept_by_age(line.made(), self.cutoff)
            stay |= {v for v in line.versions if all_stay or (location, branch, v) in named}
            going[branch] = sorted(set(line.versions) - stay)
            manifests += [line.versions[number] for number in going[branch]]
            manifests += [i for i in line.detached if i.last_modified < self.cutoff]
            references.names_of(self.storage, line, stay, names)
        return _Doomed(going, manifests, list(self._unnamed(lines, names, staging)))

    def _unnamed(
        self, lines: Mapping[str | None, Line], names: Names, staging: datetime | None
    ) -> Iterator[ObjectInfo]:
        """Yield old files that no version mentions; young ones may be a running writer's."""
        cutoff = self.cutoff if staging is None else min(self.cutoff, staging)
        for line in lines.values():
            for kind, inside in line.files.items():
                start = len(f"{line.folder}/{kind}/")
                for info in inside:
                    if info.last_modified < cutoff and not names.mention(kind, info.path[start:]):
                        yield info

    def _delete(self, files: Sequence[ObjectInfo], plan: _Plan) -> None:
        """Delete some files at a time, and look at the refs before each time.

        Raises:
            _Changed: a ref was made meanwhile that needs a graph version that goes.
        """
        for start in range(0, len(files), _BATCH):
            self._check_refs(plan)
            batch = files[start : start + _BATCH]
            self.storage.delete_many([info.path for info in batch])

    def _check_refs(self, plan: _Plan) -> None:
        now = Refs.of(self.storage)
        named = [(tag.branch, tag.version) for tag in now.tags]
        named += [(ref.parent or layout.MAIN, ref.parent_version or 0) for ref in now.branches]
        going = plan.graph_versions()
        for branch, version in named:
            if version in going.get(layout.lance_branch(branch), ()):
                raise _Changed(f"version {version} of branch {branch} got a name meanwhile")

    def _orphans(
        self, location: str, lines: Mapping[str | None, Line], named: set[Pin], known: Refs
    ) -> list[Fork]:
        """Return the forks of branches that are gone, old and needed by nothing."""
        needed = {branch for pinned, branch, _ in named if pinned == location}
        gone = [name for name in lines if name is not None and name not in known.names | needed]
        old = [forks.judged(self.storage, location, name, known.names) for name in gone]
        return [fork for fork in old if (newest := fork.newest()) and newest < self.cutoff]

    def _staged(self) -> list[ObjectInfo]:
        """Return the messages of writes that are long dead."""
        alive = {record.publish_id for record in crash_records.others(self.storage, "")}
        cutoff = min(self.cutoff, self.now - staging_records.LIVE)
        return [
            info
            for publish_id, inside in staging_records.by_write(
                self.storage.list(layout.STAGING)
            ).items()
            if publish_id not in alive and max(message.last_modified for message in inside) < cutoff
            for info in inside
        ]


def _ranges(numbers: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yield the runs of ascending numbers, both ends included."""
    for _, run in groupby(enumerate(numbers), lambda pair: pair[1] - pair[0]):
        inside = [number for _, number in run]
        yield inside[0], inside[-1]
