"""Planted bugs: each rule of the protocol left out, to show that the scenarios would notice.

A mutation replaces functions of the product in every writer process of a scenario. The scenario must
then find a violation; one that finds none has proved nothing about that rule.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from omnigraph_spark import _faults
from omnigraph_spark.history import commits
from omnigraph_spark.maintenance import cleanup
from omnigraph_spark.manifest import crash_records, known_types, migrations, publisher
from omnigraph_spark.manifest.manifest_rows import ManifestRows
from omnigraph_spark.manifest.publisher import Published
from omnigraph_spark.manifest.snapshot import load
from omnigraph_spark.merge import merging
from omnigraph_spark.refs import branches, forks, ref_files, refs
from omnigraph_spark.schema import files as schema_files
from omnigraph_spark.schema.model import EngineSchema
from omnigraph_spark.storage import column_numbers, layout
from omnigraph_spark.storage.lance_errors import Outcome
from omnigraph_spark.write import staging
from omnigraph_spark.write.commit import (
    added_columns,
    commit,
    heal,
    staged_files,
    table_commit,
    table_head,
)
from tests.chaos.lab import Caught, Lab
from tests.chaos.launcher import Setup
from tests.chaos.scenarios import (
    ambiguity,
    concurrency,
    crash,
    lost_rules,
    migration,
    orphans,
    rules,
    sleepers,
    tasks,
)


@dataclass(frozen=True)
class Mutation:
    """A rule that is left out, how, and the scenario that should notice."""

    rule: str
    plant: Callable[[], None]
    scenario: Callable[[Lab], None]


def _put(where: Any, **functions: Any) -> None:
    """Replace functions of the product; one that isn't there any more is an error."""
    for name, function in functions.items():
        if not hasattr(where, name):
            raise AttributeError(f"{where} has no {name}: the mutation is out of date")
        setattr(where, name, function)


def _no_field_map() -> None:
    _put(column_numbers, check=lambda *_: None)


def _no_contiguity() -> None:
    for module in (table_commit, added_columns, added_columns):
        _put(module, contiguous=lambda made, *_: made)


def _no_guards() -> None:
    _put(publisher, _guards=lambda snapshot, request: [])


def _publish_first() -> None:
    held: list[tuple[Any, ...]] = []
    commit_table, publish = commit.commit_table, commit.publish

    def later(round_: Any, target: Any, entry: Any, *rest: Any) -> Any:
        held.append((round_, target, entry, *rest))
        staged = rest[1]
        before = entry.table_version if entry else 0
        kept = entry.row_count if entry and target.mode != "overwrite" else 0
        added = sum(one.rows for one in staged)
        return table_commit.Moved(
            target.table_key, target.location, None, before, before + 1, kept + added, added, 0
        )

    def now(*asked: Any) -> Published:
        done = publish(*asked)
        while held:
            commit_table(*held.pop(0))
        return done

    _put(commit, commit_table=later, publish=now)
    _put(commit, manifest_metadata=lambda *_: {})


def _no_own_id() -> None:
    _put(ManifestRows, has_publish=lambda *_: False)


def _delete_files() -> None:
    real = commit._Write.run

    def run(self: Any, heartbeat: Any) -> Any:
        try:
            return real(self, heartbeat)
        except BaseException:
            staged_files.delete(self._plan, self._all_staged())
            raise

    _put(commit._Write, run=run)


def _abort_deletes() -> None:
    real = commit.abort
    _put(commit, abort=lambda plan, staged, complete: real(plan, staged, complete=False))


def _no_second_look() -> None:
    real = table_head.settle

    def settle(round_: Any, *where: Any) -> Any:
        once = round_.fresh()
        return real(replace(round_, fresh=lambda: once), *where)

    _put(table_commit, settle=settle)
    _put(heal, settle=settle)


def _no_put_back() -> None:
    _put(commit, quietly_put_back=lambda *_: None)
    _put(commit, is_put_back=lambda *_: True)


def _expect_once() -> None:
    real = publisher._check_expected
    checked: list[Any] = []

    def once(snapshot: Any, expected: Any) -> None:
        if expected not in checked:
            checked.append(expected)
            real(snapshot, expected)

    _put(publisher, _check_expected=once)


def _no_record() -> None:
    _put(crash_records, write=lambda *_: None)


def _adopt() -> None:
    def at_head(
        round_: Any, _key: str, location: str, table_branch: str | None, _pinned: int
    ) -> Any:
        return round_.storage.dataset(location, table_branch)

    _put(table_commit, settle=at_head)


def _no_skip_rows() -> None:
    real = table_commit.Moved.rows
    _put(table_commit.Moved, rows=lambda *args: real(*args)[:1])


def _record_goes_first() -> None:
    _put(
        heal,
        _resolve=lambda round_, record: crash_records.delete(round_.storage, record.publish_id),
    )


def _ignore_foreign() -> None:
    _put(crash_records, refuse_foreign=lambda *_: None)


def _no_txn() -> None:
    _put(commit, check_txn=lambda *_: False)
    _put(publisher, check_txn=lambda *_: False)


def _annotate_blindly() -> None:
    _put(migrations, _annotated=lambda _: [])


def _any_stamp() -> None:
    _put(migrations, stamp_of=lambda _: 2)


def _leave_gaps() -> None:
    _put(commits, publishes_between=lambda *_: [])


def _no_rounds_check() -> None:
    """The files of a write that writer's recovery published aren't looked for, nor its own id."""
    _no_own_id()
    _put(staged_files, are_published=lambda *_: False)


def _unknown_is_failed() -> None:
    """The mark of an unknown outcome is taken for a definite failure."""
    real = publisher.outcome_of

    def outcome(error: BaseException) -> Outcome:
        found = real(error)
        return Outcome.FAILED if found is Outcome.UNKNOWN else found

    for module in (publisher, table_head):
        _put(module, outcome_of=outcome)


def _invisible() -> None:
    _put(publisher, _check_visible=lambda *_: None)


def _auto_cleanup_stays() -> None:
    for module in (table_head, table_commit, heal):
        _put(module, strip=lambda head: head)
    _put(table_head, _leave_cleanup_slot=lambda head, *_: head)


def _commit_time_counts() -> None:
    """The grace counts from the commit's time, and the healer's clock is an hour ahead."""

    def is_old(head: Any) -> bool:
        made = head.get_version()["timestamp"]
        return bool(datetime.now(made.tzinfo) + timedelta(hours=1) - made > timedelta(seconds=10))

    _put(table_head, _is_a_day_old=is_old)


def _no_signs_of_life() -> None:
    _put(crash_records, renewed_at=lambda *_: None)


def _second_creator_fails() -> None:
    """What the second creator of a table gets is taken for a failure of the store."""
    real = table_head.outcome_of
    second = re.compile(r"already exists|/0\.manifest was not found", re.IGNORECASE)
    _put(
        table_head,
        outcome_of=lambda e: Outcome.FAILED if second.search(str(e)) else real(e),
    )


def _errors_after_publish() -> None:
    """What fails after the publish is raised, as before it."""

    def tidy(_: Any, step: Callable[[], None]) -> None:
        step()

    _put(commit._Write, _tidy=tidy)


def _landed_not_looked_for() -> None:
    _put(publisher, _landed_all_the_same=lambda *_: None)


def _own_clocks() -> None:
    _put(commits, _after=lambda _, moment: moment)


def _maintenance_counts() -> None:
    """What an optimize publishes is taken for a change of rows."""
    _put(commit, has_same_rows=lambda rows, key, expected, published: expected == published)


def _types_not_kept() -> None:
    _put(commit._Write, _told=lambda *_: {})


def _files_alone_count() -> None:
    _put(known_types, filled=lambda storage, files, snapshot: (files, EngineSchema()))


def _damage_is_no_rules() -> None:
    _put(schema_files, _damage=lambda *_: None)


def _merges_not_recorded() -> None:
    _put(merging, _mark=lambda *_: None)


def _nothing_checked() -> None:
    _put(commit.CommitCheck, run=lambda *_: None)


def _steps(*steps: str) -> Callable[[Lab], None]:
    return lambda lab: crash.kill_steps(lab, steps)


def _no_fence() -> None:
    _put(cleanup._Cleanup, _fence=lambda *_: [])


def _no_birth() -> None:
    _put(branches, _mark_birth=lambda *_: None)
    _put(publisher, take_back=lambda *_: None)


def _pins_looked_at_once() -> None:
    _put(refs, check_pinned=lambda *_: None)
    _put(cleanup._Cleanup, _check_refs=lambda *_: None)


def _staged_files_trusted() -> None:
    _put(staged_files, check_there=lambda *_: None)


def _no_staging_record() -> None:
    _put(staging, oldest_live=lambda *_: None)


def _forks_by_name() -> None:
    def remove(storage: Any, fork: Any, is_unwanted: Any) -> bool:
        _faults.point("fork.before_removal")
        storage.delete(layout.ref_path(fork.location, fork.name))
        folder = f"{fork.location}/tree/{fork.name}"
        storage.delete_many([info.path for info in storage.list(folder)])
        return True

    _put(forks, remove_fork=remove)


def _commits_by_name() -> None:
    _put(commits, _is_other=lambda *_: False)


def _heal_by_name() -> None:
    real = heal.open_for_writing
    _put(heal, open_for_writing=lambda storage, branch, _: real(storage, branch))
    roll_back = heal.roll_back
    _put(heal, roll_back=lambda *given, identifier=None, **more: roll_back(*given, **more))


def _old_column_numbers() -> None:
    _put(column_numbers, _padded=lambda *_: [])


def _widened_files_trusted() -> None:
    _put(added_columns, _check_written=lambda *_: None)


def _lost_refs_stay() -> None:
    _put(ref_files, make_again=lambda *_: False)


def _half_branches_hinder() -> None:
    def all_of_them(storage: Any) -> Any:
        for branch in refs.list_branches(storage):
            yield branch, load(storage, branch.name)

    _put(refs, readable=all_of_them)


MUTATIONS: dict[str, Mutation] = {
    "no-field-map": Mutation("1", _no_field_map, tasks.schema_change),
    "files-not-looked-for": Mutation("2", _no_rounds_check, ambiguity.cells),
    "own-id-not-looked-for": Mutation("3", _no_own_id, ambiguity.cells),
    "no-guards": Mutation("7", _no_guards, ambiguity.expectations),
    "no-guards-at-publisher": Mutation("7", _no_guards, tasks.guards),
    "no-skip-rows": Mutation("9", _no_skip_rows, tasks.late_engine),
    "txn-not-looked-for": Mutation("10", _no_txn, tasks.same_batch),
    "no-contiguity": Mutation("11", _no_contiguity, orphans.orphans),
    "no-put-back": Mutation("12", _no_put_back, ambiguity.expectations),
    "no-second-look": Mutation("14", _no_second_look, tasks.second_look),
    "unknown-taken-for-failed": Mutation("4", _unknown_is_failed, ambiguity.cells),
    "published-below-tombstone": Mutation("5", _invisible, rules.below_tombstone),
    "no-guard-of-a-lost-row": Mutation("8", _no_guards, rules.lost_row),
    "auto-cleanup-stays": Mutation("15", _auto_cleanup_stays, rules.auto_cleanup),
    "grace-by-commit-time": Mutation("16", _commit_time_counts, rules.patience),
    "no-signs-of-life": Mutation("17", _no_signs_of_life, rules.patience),
    "second-creator-fails": Mutation("20", _second_creator_fails, concurrency.new_table_race),
    "orphans-adopted": Mutation("12", _adopt, orphans.orphans),
    "files-deleted": Mutation("19", _delete_files, ambiguity.twice_and_abort),
    "abort-deletes": Mutation("19", _abort_deletes, ambiguity.twice_and_abort),
    "publish-before-commit": Mutation("rounds", _publish_first, _steps("K9")),
    "expected-outside-retry": Mutation("rounds", _expect_once, ambiguity.expectations),
    "no-crash-record": Mutation("rounds", _no_record, _steps("K7")),
    "record-without-roll-back": Mutation("24", _record_goes_first, tasks.dead_record),
    "foreign-record-ignored": Mutation("24", _ignore_foreign, orphans.sidecars),
    "annotation-set-blindly": Mutation("29", _annotate_blindly, migration.crashes),
    "any-stamp": Mutation("stamps", _any_stamp, migration.future_stamps),
    "errors-after-publish": Mutation("4", _errors_after_publish, ambiguity.after_publish),
    "landed-not-looked-for": Mutation("4", _landed_not_looked_for, ambiguity.after_publish),
    "times-by-own-clock": Mutation("30", _own_clocks, ambiguity.clocks),
    "maintenance-is-a-change": Mutation("26", _maintenance_counts, ambiguity.maintained),
    "no-fence": Mutation("6", _no_fence, sleepers.sleepers),
    "no-birth-mark": Mutation("23", _no_birth, sleepers.sleepers),
    "forks-removed-by-name": Mutation("21", _forks_by_name, sleepers.sleepers),
    "half-branches-hinder": Mutation("22", _half_branches_hinder, sleepers.sleepers),
    "pins-looked-at-once": Mutation("27", _pins_looked_at_once, sleepers.sleepers),
    "staged-files-trusted": Mutation("27", _staged_files_trusted, sleepers.sleepers),
    "commits-by-name": Mutation("23", _commits_by_name, sleepers.sleepers),
    "heal-by-name": Mutation("23", _heal_by_name, sleepers.sleepers),
    "old-column-numbers": Mutation("1", _old_column_numbers, lost_rules.schema),
    "widened-files-trusted": Mutation("27", _widened_files_trusted, sleepers.sleepers),
    "lost-refs-stay": Mutation("22", _lost_refs_stay, sleepers.sleepers),
    "no-staging-record": Mutation("27", _no_staging_record, sleepers.sleepers),
    "types-not-kept": Mutation("schema", _types_not_kept, lost_rules.schema),
    "schema-files-alone": Mutation("schema", _files_alone_count, lost_rules.schema),
    "damage-is-no-rules": Mutation("schema", _damage_is_no_rules, lost_rules.schema),
    "merges-not-recorded": Mutation("merge", _merges_not_recorded, lost_rules.schema),
    "merges-not-checked": Mutation("merge", _nothing_checked, lost_rules.schema),
    "lineage-gaps-stay": Mutation("30", _leave_gaps, _steps("K10")),
}

NOT_PLANTED = {
    "13": "the strict append by Merge isn't used: nothing to leave out",
    "18": "an overwrite that isn't strict lands beyond the next version, which 11 takes back, and"
    " what it swallowed moved the table, which 7 refuses: it shows only where both are left out too",
    "28": "Lance refuses or retries the compaction by itself: no code of ours to leave out",
}
"""Rules that no mutation leaves out, and why."""


def apply(name: str) -> None:
    """Plant a bug in this process."""
    MUTATIONS[name].plant()


def planted_alone(setup: Setup) -> bool:
    """Do nothing, in a process that a bug was planted in: shows that it still can be."""
    return setup.mutation is not None


def caught(name: str, folder: Path, seed: int) -> str | None:
    """Run the scenario of a planted bug; return what it found, None where it noticed nothing."""
    lab = Lab(f"mutation-{name}", folder / name, seed, mutation=name)
    try:
        MUTATIONS[name].scenario(lab)
    except Caught as found:
        return str(found)
    return None


def score(folder: Path, seed: int, only: list[str] | None = None) -> int:
    """Plant each bug in turn, print what noticed it, and return 0 where all were noticed."""
    names = [name for name in MUTATIONS if not only or name in only]
    noticed = 0
    for name in names:
        try:
            found = caught(name, folder, seed)
        except (RuntimeError, AssertionError) as error:
            # A scenario that breaks down has noticed nothing: the mutation may be out of date.
            print(f"{name}: {error}")
            found = None
        noticed += found is not None
        rule = MUTATIONS[name].rule
        print(
            f"{name:26} {rule:9} {'caught' if found else 'NOT CAUGHT':10} {found or ''}"[:200],
            flush=True,
        )
    for rule, why in NOT_PLANTED.items() if not only else ():
        print(f"{'-':26} {rule:9} {'not planted':10} {why}")
    print(f"mutation score: {noticed} of {len(names)}")
    return 0 if noticed == len(names) else 1
