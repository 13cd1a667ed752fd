"""An S3 that answers 503 from a publish on: no error denies what is there, and the graph stays whole."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import cycle, product

import pytest

from omnigraph_spark.errors import OmnigraphError, PublishOutcomeUnknown
from omnigraph_spark.maintenance.check import check
from omnigraph_spark.maintenance.optimize import optimize, run_here
from omnigraph_spark.maintenance.repair import repair
from omnigraph_spark.manifest.snapshot import load
from omnigraph_spark.merge import restore
from omnigraph_spark.refs import branches as manage
from omnigraph_spark.refs import refs
from omnigraph_spark.storage.store import Storage
from omnigraph_spark.write.plan import Settings
from tests.support import faulty_s3, merges
from tests.support.branches import GRACE, ids_at, make, names
from tests.support.faulty_s3 import Proxy
from tests.support.merges import KNOWS, PERSON, write_rows
from tests.support.s3 import Bucket
from tests.support.writes import write_options

pytestmark = pytest.mark.long

SECONDS = float(os.environ.get("OMNIGRAPH_SPARK_STORE_FAULTS", "2"))
"""How long the store is busy; where it is given, every combination is tried."""
ALL = "OMNIGRAPH_SPARK_STORE_FAULTS" in os.environ
QUICK = Settings(orphan_grace_seconds=GRACE)
ONCE = {"client_max_retries": "1", "client_retry_timeout": "1", "download_retry_count": "1"}


@pytest.fixture
def proxy(bucket: Bucket) -> Iterator[Proxy]:
    with faulty_s3.in_front_of(bucket.endpoint) as made:
        yield made


@pytest.fixture
def graph(request: pytest.FixtureRequest, bucket: Bucket, proxy: Proxy) -> Storage:
    """People and who knows whom on S3, behind the proxy, with a branch `dev`; by stamp."""
    through = replace(bucket, endpoint=proxy.endpoint)
    storage = Storage.at(f"{bucket.uri}/g", {**through.storage_options, **ONCE})
    merges.empty_graph(storage, request.param)
    write_rows(storage, {PERSON: [("a", 1), ("b", 2)], KNOWS: [("ab", "a", "b")]})
    for number in range(2):
        write_rows(storage, {PERSON: [(f"p{number}", number)]})
    make(storage, "dev")
    write_rows(storage, {PERSON: [("d", 4)]}, branch="dev")
    write_rows(storage, {PERSON: [("d2", 5)]}, branch="dev")
    return storage


def _published(branch: str) -> faulty_s3.Starts:
    line = "" if branch == "main" else f"tree/{branch}/"
    pattern = re.compile(rf"/g/__manifest/{line}_versions/\d+\.manifest$")
    return lambda method, path: method == "PUT" and pattern.search(path) is not None


def _ref(kind: str, name: str) -> faulty_s3.Starts:
    end = f"g/__manifest/_refs/branches/{name}.json"
    kinds = (kind, "POST") if kind == "DELETE" else (kind,)  # files are deleted by the dozen
    return lambda method, path: method in kinds and end in path


def _optimize(graph: Storage, branch: str) -> object:
    return optimize(graph, branch, None, run_here, settings=QUICK)


def _merge(graph: Storage, branch: str) -> object:
    source = "dev" if branch == "main" else "main"
    return merges.merge(graph, source, branch, orphanGraceSeconds=str(GRACE))


WRITES: dict[str, Callable[[Storage, str], object]] = {
    "append": lambda g, b: write_rows(g, {PERSON: [("x", 9)], KNOWS: [("xa", "x", "a")]}, branch=b),
    "upsert": lambda g, b: write_rows(g, {PERSON: [("a", 9), ("x", 9)]}, "merge", branch=b),
    "merge": _merge,
    "optimize": _optimize,
    "restore": lambda g, b: restore.restore(
        g, write_options(g, branch=b), str(load(g, b).graph_version - 1)
    ),
}


def outcome(proxy: Proxy, act: Callable[[], object]) -> str:
    """Do it while the store goes dark; a definite error is the text that it has."""
    try:
        act()
    except PublishOutcomeUnknown:
        return "unknown"
    except OmnigraphError as error:
        return str(error)
    else:
        return "done"
    finally:
        assert proxy.went_dark()
        proxy.wait()


def assert_whole(graph: Storage) -> None:
    """Assert that the next writes work, and that nothing is found afterwards."""
    for branch in names(graph):
        before = ids_at(graph, PERSON, branch)
        write_rows(graph, {PERSON: [("next", 1)]}, branch=branch)
        assert ids_at(graph, PERSON, branch) == sorted([*before, "next"])
    if check(graph):
        repair(graph, dry_run=False, grace_seconds=GRACE)
    assert check(graph) == []


@pytest.mark.parametrize(
    ("what", "branch", "loses_answer", "graph"),
    [
        *(product(WRITES, ("main", "dev"), (False, True), (2, 6)) if ALL else ()),
        *(
            ()
            if ALL
            else zip(WRITES, cycle(("main", "dev")), cycle((True, False, True)), cycle((6, 2)))
        ),
    ],
    indirect=["graph"],
)
def test_a_store_that_is_busy_after_a_publish_makes_no_error_that_denies_it(
    graph: Storage, proxy: Proxy, what: str, branch: str, loses_answer: bool
) -> None:
    if what == "merge" and branch == "dev":
        write_rows(graph, {PERSON: [("m", 6)]})
    before = load(graph, branch).graph_version
    proxy.dark(_published(branch), SECONDS, loses_answer=loses_answer)
    told = outcome(proxy, lambda: WRITES[what](graph, branch))
    assert load(graph, branch).graph_version > before
    assert told in ("done", "unknown")
    assert proxy.refused
    assert_whole(graph)


@pytest.mark.parametrize("graph", [2, 6] if ALL else [6], indirect=True)
@pytest.mark.parametrize("loses_answer", [False, True] if ALL else [True])
def test_a_store_that_is_busy_once_a_branch_is_there_makes_no_error_that_denies_it(
    graph: Storage, proxy: Proxy, loses_answer: bool
) -> None:
    proxy.dark(_ref("PUT", "new"), SECONDS, loses_answer=loses_answer)
    told = outcome(proxy, lambda: manage.create_branch(graph, "new", refs.named(graph, "main")))
    there = "new" in names(graph)
    assert (told in ("done", "unknown")) or not there, told
    if told == "done":
        assert there
        assert ids_at(graph, PERSON, "new") == ids_at(graph, PERSON)
    assert_whole(graph)


@pytest.mark.parametrize("graph", [2, 6] if ALL else [2], indirect=True)
@pytest.mark.parametrize("loses_answer", [False, True] if ALL else [True])
def test_a_store_that_is_busy_once_a_branch_is_gone_makes_no_error_that_denies_it(
    graph: Storage, proxy: Proxy, loses_answer: bool
) -> None:
    proxy.dark(_ref("DELETE", "dev"), SECONDS, loses_answer=loses_answer)
    told = outcome(proxy, lambda: manage.delete_branch(graph, "dev", GRACE))
    assert "dev" not in names(graph)
    assert told in ("done", "unknown"), told
    assert_whole(graph)
