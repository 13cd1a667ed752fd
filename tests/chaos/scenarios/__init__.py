"""The scenarios by name; each takes a `Lab` and leaves its report there."""

from __future__ import annotations

from collections.abc import Callable

from tests.chaos.lab import Lab
from tests.chaos.scenarios import (
    ambiguity,
    branches,
    concurrency,
    crash,
    lost_rules,
    migration,
    operations,
    orphans,
    pairs,
    rules,
    sleepers,
    soak,
    spark,
    tasks,
)

Scenario = Callable[[Lab], None]

SCENARIOS: dict[str, Scenario] = {
    "kill-matrix": crash.kill_matrix,
    "kill-random": crash.kill_random,
    "kill-healer": crash.kill_healer,
    "kill-operations": operations.kill_operations,
    "pairs": pairs.pairs,
    "kill-on-branch": branches.kill_on_branch,
    "orphans": orphans.orphans,
    "sidecars": orphans.sidecars,
    "healer-versus-live": orphans.healer_versus_live,
    "list-then-get": orphans.list_then_get,
    "expectations": ambiguity.expectations,
    "stale-plans": ambiguity.stale_plans,
    "budget": ambiguity.budget,
    "ambiguity": ambiguity.cells,
    "after-publish": ambiguity.after_publish,
    "clocks": ambiguity.clocks,
    "maintained": ambiguity.maintained,
    "late-arrival": ambiguity.late_arrival,
    "twice-and-abort": ambiguity.twice_and_abort,
    "task-retry": tasks.task_retry,
    "speculation": tasks.speculation,
    "schema-change": tasks.schema_change,
    "same-batch": tasks.same_batch,
    "second-look": tasks.second_look,
    "late-engine": tasks.late_engine,
    "dead-record": tasks.dead_record,
    "guards": tasks.guards,
    "below-tombstone": rules.below_tombstone,
    "lost-row": rules.lost_row,
    "lost-rules": lost_rules.schema,
    "auto-cleanup": rules.auto_cleanup,
    "patience": rules.patience,
    "sleepers": sleepers.sleepers,
    "migration": migration.crashes,
    "future-stamps": migration.future_stamps,
    "same-table": concurrency.same_table,
    "disjoint-tables": concurrency.disjoint_tables,
    "disjoint-branches": branches.disjoint_branches,
    "new-table-race": concurrency.new_table_race,
    "counters": concurrency.counters,
    "crossing-pairs": concurrency.crossing_pairs,
    "readers": concurrency.readers,
    "speed": concurrency.speed,
    "soak": soak.soak,
    "spark-kill-drivers": spark.kill_drivers,
    "spark-retries": spark.retries,
}
