"""Random sequences of branches, writes, merges, restores and tags: every ref shows what it should.

`OMNIGRAPH_SEQUENCES` says how many sequences (100; 300 in `make test-rounds`, which CI runs),
`OMNIGRAPH_SPARK_SEQUENCES` how many go through Spark (10), `OMNIGRAPH_SEED` repeats a run; all are
printed.
"""

from __future__ import annotations

import os
import random
import shutil
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from omnigraph_spark.merge import merge
from omnigraph_spark.storage.store import Storage
from tests.format_checker import check_graph
from tests.property.core import KINDS, Run, Step
from tests.property.spark import run as run_through_spark
from tests.support.writes import KNOWS, PERSON, new_graph, write

SEQUENCES = int(os.environ.get("OMNIGRAPH_SEQUENCES", "25"))
SPARK_SEQUENCES = int(os.environ.get("OMNIGRAPH_SPARK_SEQUENCES", "10"))
SEED = int(os.environ.get("OMNIGRAPH_SEED", str(random.randrange(1 << 32))))

numbers = st.integers(0, 11)
BEGINNINGS: tuple[list[Step], ...] = (
    [],
    [("branch", 0, 1, 0), ("append", 1, 0, 1)],
    [("branch", 0, 1, 0), ("overwrite", 1, 0, 1), ("append", 0, 0, 1)],
    [("branch", 0, 1, 0), ("append", 1, 0, 1), ("branch", 1, 1, 1), ("upsert", 0, 0, 1)],
)
"""Mostly two branches that have gone different ways: without them a merge has nothing to do."""
steps = st.builds(
    lambda beginning, rest: [*beginning, *rest],
    st.sampled_from(BEGINNINGS),
    st.lists(st.tuples(st.sampled_from(KINDS), numbers, numbers, numbers), min_size=1, max_size=4),
)


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A graph of two tables that each sequence begins with a copy of."""
    root = tmp_path_factory.mktemp("template") / "g"
    new_graph(Storage.at(str(root)), [PERSON, KNOWS])
    return root


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the copies go."""
    return tmp_path_factory.mktemp("sequences")


def violations(root: Path, run: Run) -> list[str]:
    """Return what contradicts the format.

    A type that was made on a branch leaves the empty first version of its main line behind when the
    branch is deleted; the next that creates the type takes it over. The commits of a deleted branch
    are gone, also those that were merged.
    """
    deleted = any(line.startswith("drop") for line in run.log)
    left = ("no table row of any branch", ": merged_parent_commit_id ") if deleted else ()
    found = check_graph(str(root), moved=True)
    return [one for one in found if not any(text in one for text in left)]


@pytest.mark.long
@pytest.mark.rounds
@pytest.mark.timeout(0)
def test_every_ref_and_every_version_shows_what_a_plain_model_says(
    template: Path, places: Path
) -> None:
    print(f"OMNIGRAPH_SEQUENCES={SEQUENCES} OMNIGRAPH_SEED={SEED}")  # noqa: T201
    ran = 0

    @seed(SEED)
    @settings(
        max_examples=SEQUENCES,
        deadline=None,
        database=None,
        phases=[Phase.generate, Phase.shrink],
        suppress_health_check=list(HealthCheck),
    )
    @given(steps)
    def sequence(found: list[Step]) -> None:
        nonlocal ran
        ran += 1
        root = places / f"g{ran}"
        shutil.copytree(template, root)
        try:
            run = Run.begin(Storage.at(str(root)))
            for step in found:
                run.do(step)
            run.check_versions()
            run.check_feeds()
            if sum(number for step in found for number in step[1:]) % 10 == 0:
                assert violations(root, run) == [], run.log
        finally:
            shutil.rmtree(root)

    sequence()
    assert ran >= SEQUENCES // 2


SPARK_KINDS = ("append", "overwrite", "upsert", "delete", "restore", "compact", "both")


def spark_steps(number: int, chance: random.Random) -> list[Step]:
    """Return a sequence in which two branches go different ways and meet again.

    Every write path is in one of seven sequences that follow each other, a merge in all.
    """

    def step(kind: str, where: int) -> Step:
        which = 0 if kind == "restore" else 3 * chance.randrange(4)  # the oldest; else one table
        return (kind, where, which, chance.choice((1, 2, 4, 5)))

    chosen = SPARK_KINDS[number % 7], SPARK_KINDS[(number + 2) % 7]
    there, back = ((1, 0), (0, 1)) if chance.random() < 0.7 else ((0, 1), (1, 0))
    steps = [("branch", 0, 1, 0), step("append", 1), step(chosen[0], 1), step(chosen[1], 0)]
    steps.append(("merge", *there, 0))
    if chance.random() < 0.3:
        steps += [step(chosen[1], 1), ("merge", *chance.choice([there, back]), 0)]
    return steps


@pytest.mark.long
@pytest.mark.timeout(0)
def test_spark_makes_of_a_sequence_what_the_model_says(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every other sequence merges on Spark's executors, the rest in this process."""
    print(f"OMNIGRAPH_SPARK_SEQUENCES={SPARK_SEQUENCES} OMNIGRAPH_SEED={SEED}")  # noqa: T201
    storage = new_graph(Storage.at(str(tmp_path / "template")), [PERSON])
    for name in ("x", "y"):  # two files, so that there is something to compact
        write(storage, {PERSON: [f"{name}{number}" for number in range(3)]})
    published: set[str] = set()
    for number in range(SPARK_SEQUENCES):
        monkeypatch.setattr(merge, "BYTES_HERE", -1 if number % 2 else 16 << 20)
        root = tmp_path / f"g{number}"
        shutil.copytree(tmp_path / "template", root)
        steps = spark_steps(number, random.Random(SEED + number))
        published |= {*run_through_spark(spark, Storage.at(str(root)), steps)}
        assert check_graph(str(root), moved=True) == [], steps
    if len(SPARK_KINDS) <= SPARK_SEQUENCES:
        assert published >= {*SPARK_KINDS, "merge"}
