"""Files of branches and tags that are gone or torn: `check` names them, `repair` mends them."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from itertools import cycle, product
from pathlib import Path

import pytest

from omnigraph_spark import _faults
from omnigraph_spark.errors import UnsupportedError
from omnigraph_spark.maintenance import check as checks
from omnigraph_spark.maintenance.check import check
from omnigraph_spark.maintenance.cleanup import cleanup
from omnigraph_spark.maintenance.repair import repair
from omnigraph_spark.manifest.snapshot import load
from omnigraph_spark.refs import branches, refs, tags
from omnigraph_spark.storage import layout
from omnigraph_spark.storage.store import Storage
from tests.support.branches import GRACE, ids_at, make, names, remove, write_ids
from tests.support.writes import KNOWS, PERSON, Kept, empty_graph, new_graph, once

PEOPLE = "the table of people"
LINEAGE = layout.GRAPH_COMMITS
SUB = {2: "dev/sub", 6: "of/dev"}
"""A branch of `dev`; engines of stamp 6 allow none below the name of another one."""
TORN = (b"", b'{\n  "parentBranch": null,\n  "ident', b"[]")


@pytest.fixture(scope="module", params=[2, 6])
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Kept:
    """Branches `dev` and one of it, each with a row of its own; tag `t` of `dev`."""

    def make_it(storage: Storage) -> None:
        new_graph(empty_graph(storage, request.param), (PERSON, KNOWS))
        make(storage, "dev")
        write_ids(storage, "dev", PERSON, ["d"])
        make(storage, SUB[request.param], "dev")
        write_ids(storage, SUB[request.param], PERSON, ["s"])
        tags.create_tag(storage, "t", refs.named(storage, "dev"))

    return Kept(tmp_path_factory.mktemp("made"), make_it)


@pytest.fixture
def graph(made: Kept) -> Iterator[Storage]:
    graph = made.copy()
    assert check(graph) == []
    yield graph
    _faults.disarm()


@pytest.fixture
def sub(graph: Storage) -> str:
    (found,) = {"dev/sub", "of/dev"} & set(names(graph))
    return found


def path_of(storage: Storage, place: str) -> str:
    """Return a dataset's path; skip what a graph with its lineage in `__manifest` doesn't have."""
    found = load(storage).locations[PERSON] if place == PEOPLE else place
    if not storage.list(found):
        pytest.skip(f"there is no {found} in a graph of this stamp")
    return found


def mended(storage: Storage) -> list[tuple[str, bool]]:
    found = [(one.kind, one.done) for one in repair(storage, False, GRACE)]
    assert check(storage) == []
    return found


def rows(storage: Storage) -> dict[str, list[str]]:
    refs_there = [*names(storage), *(tag.name for tag in refs.list_tags(storage))]
    return {ref: ids_at(storage, PERSON, ref) for ref in refs_there}


def origins(storage: Storage) -> dict[str, tuple[str | None, int | None]]:
    return {one.name: (one.parent, one.parent_version) for one in refs.list_branches(storage)}


# --- torn ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("place", "is_sub", "content"),
    [
        (*where, content)
        for where, content in zip(
            product((layout.MANIFEST, LINEAGE, PEOPLE), (False, True)), cycle(TORN)
        )
    ],
)
def test_a_branch_whose_ref_file_is_torn_reads_as_before_after_a_repair(
    graph: Storage, sub: str, place: str, is_sub: bool, content: bytes
) -> None:
    name = sub if is_sub else "dev"
    path = layout.ref_path(path_of(graph, place), name)
    before, begun = rows(graph), origins(graph)
    graph.put(path, content)
    found = {(one.kind, one.place, one.repairable) for one in check(graph)}
    assert (checks.TORN_REF, path, True) in found
    repair(graph, False, GRACE)
    assert check(graph) == []
    assert graph.get(f"{layout.DAMAGED}/{path}") == content
    assert rows(graph) == before
    write_ids(graph, name, PERSON, ["next"])
    assert ids_at(graph, PERSON, name) == sorted([*before[name], "next"])
    assert origins(graph) == begun


@pytest.mark.parametrize("content", TORN)
def test_a_tag_whose_file_is_torn_is_made_again_from_those_of_its_tables(
    graph: Storage, content: bytes
) -> None:
    before = [(one.name, one.branch, one.version) for one in refs.list_tags(graph)]
    read = rows(graph)
    graph.put(f"{layout.MANIFEST}/_refs/tags/t.json", content)
    assert mended(graph) == [(checks.TORN_REF, True)]
    assert [(one.name, one.branch, one.version) for one in refs.list_tags(graph)] == before
    assert rows(graph) == read


def test_a_torn_file_of_a_tag_that_was_never_made_is_set_aside(graph: Storage) -> None:
    graph.put(f"{layout.MANIFEST}/_refs/tags/other.json", b"")
    assert mended(graph) == [(checks.TORN_REF, True)]
    assert [one.name for one in refs.list_tags(graph)] == ["t"]


def test_a_torn_file_of_a_tables_tag_is_made_again(graph: Storage) -> None:
    people = path_of(graph, PEOPLE)
    (path,) = [info.path for info in graph.list(f"{people}/_refs/tags")]
    graph.put(path, b"")
    found = mended(graph)
    assert found[0] == (checks.TORN_REF, True)
    assert list(graph.dataset(people).tags.list()) == [Path(path).stem]


@pytest.mark.parametrize("place", [layout.MANIFEST, LINEAGE, PEOPLE])
def test_a_branch_whose_ref_file_is_torn_can_be_deleted(
    graph: Storage, sub: str, place: str
) -> None:
    graph.put(layout.ref_path(path_of(graph, place), sub), b"")
    remove(graph, sub)
    assert names(graph) == ["main", "dev"]
    assert list(graph.dataset(path_of(graph, PEOPLE)).branches.list()) == ["dev"]
    assert check(graph) == []
    make(graph, sub)
    assert ids_at(graph, PERSON, sub) == ["first"]


# --- gone ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("place", [LINEAGE, PEOPLE])
@pytest.mark.parametrize("is_sub", [False, True])
def test_a_fork_in_use_whose_ref_file_is_gone_gets_it_back(
    graph: Storage, sub: str, place: str, is_sub: bool
) -> None:
    name, place, before = sub if is_sub else "dev", path_of(graph, place), rows(graph)
    graph.delete(layout.ref_path(place, name))
    found = [(one.kind, one.place, one.branch) for one in check(graph)]
    assert (checks.MISSING_REF, place, name) in found
    repair(graph, False, GRACE)
    assert check(graph) == []
    assert rows(graph) == before
    write_ids(graph, name, PERSON, ["next"])
    assert check(graph) == []


@pytest.mark.parametrize("by", ["branch", "tag"])
def test_a_branch_whose_ref_is_gone_gets_it_back_if_another_branch_or_a_tag_needs_it(
    graph: Storage, sub: str, by: str
) -> None:
    if by == "branch":
        tags.delete_tag(graph, "t")
    else:
        remove(graph, sub)
    before = rows(graph)
    graph.delete(layout.ref_path(layout.MANIFEST, "dev"))
    with pytest.raises(UnsupportedError, match=f"(?i){by} "):
        remove(graph, "dev")
    found = {(one.kind, one.place, one.repairable) for one in check(graph)}
    assert (checks.MISSING_REF, layout.MANIFEST, True) in found
    repair(graph, False, GRACE)
    assert check(graph) == []
    assert rows(graph) == before


def test_what_a_dead_deletion_left_of_a_tables_fork_is_removed_without_a_version_in_it(
    graph: Storage, sub: str
) -> None:
    before = ids_at(graph, PERSON, "dev")
    branches.delete_branch(graph, sub, GRACE)
    left = f"{path_of(graph, PEOPLE)}/tree/{sub}/data/left.lance"
    graph.put(left, b"x")
    assert mended(graph) == [(checks.LEFTOVER_FORK, True)]
    assert graph.get(left) is None
    assert ids_at(graph, PERSON, "dev") == before


def test_a_cleanup_removes_what_a_dead_deletion_left_of_a_fork_without_a_version(
    graph: Storage,
) -> None:
    left = f"{path_of(graph, PEOPLE)}/tree/gone/data/left.lance"
    graph.put(left, b"x")
    later = datetime.now(timezone.utc) + timedelta(days=30)
    done = cleanup(graph, dry_run=False, now=later, grace_seconds=GRACE)
    assert done.forks == (f"{PERSON}/gone",)
    assert graph.get(left) is None


def test_the_fork_of_a_table_that_no_branch_knows_is_found(graph: Storage) -> None:
    unknown = "nodes/0123456789abcdef"
    graph.put(f"{unknown}/tree/gone/_versions/1.manifest", b"x")
    assert [(one.kind, one.place, one.branch) for one in check(graph)] == [
        (checks.LEFTOVER_FORK, unknown, "gone")
    ]
    assert mended(graph) == [(checks.LEFTOVER_FORK, True)]
    assert graph.list(unknown) == []


def test_a_fork_whose_maker_died_before_its_ref_is_removed(graph: Storage) -> None:
    edges = load(graph).locations[KNOWS]
    graph.dataset(edges).create_branch("dev", ("main", 1))
    graph.delete(layout.ref_path(edges, "dev"))
    assert mended(graph) == [(checks.LEFTOVER_FORK, True)]
    assert graph.list(f"{edges}/tree/dev") == []
    write_ids(graph, "dev", KNOWS, ["k"])
    assert ids_at(graph, KNOWS, "dev") == ["first", "k"]


@pytest.mark.parametrize("place", [layout.MANIFEST, PEOPLE])
def test_a_repair_leaves_alone_what_gets_its_ref_meanwhile(graph: Storage, place: str) -> None:
    path = layout.ref_path(path_of(graph, place), "new")
    make(graph, "new")
    write_ids(graph, "new", PERSON, ["n"])
    text = graph.get(path)
    assert text is not None
    graph.delete(path)
    _faults.arm("repair.waiting", once(lambda: graph.put(path, text)))
    repair(graph, False, GRACE)
    assert ids_at(graph, PERSON, "new") == ["first", "n"]
    assert check(graph) == []


# --- tags ------------------------------------------------------------------------------------------


def test_tags_of_tables_whose_graph_tag_is_gone_are_found_and_removed(graph: Storage) -> None:
    graph.delete(f"{layout.MANIFEST}/_refs/tags/t.json")
    assert mended(graph) == [(checks.LEFTOVER_TAG, True)] * len(load(graph).tables)
    assert list(graph.dataset(path_of(graph, PEOPLE)).tags.list()) == []


def test_a_tag_that_lost_a_tables_tag_gets_it_back(graph: Storage) -> None:
    people = path_of(graph, PEOPLE)
    (path,) = [info.path for info in graph.list(f"{people}/_refs/tags")]
    graph.delete(path)
    assert [(one.kind, one.place) for one in check(graph)] == [(checks.HALF_TAG, "t")]
    assert mended(graph) == [(checks.HALF_TAG, True)]
    assert list(graph.dataset(people).tags.list()) == [Path(path).stem]


def test_a_repair_waits_for_who_is_making_a_tag(graph: Storage) -> None:
    path = f"{layout.MANIFEST}/_refs/tags/t.json"
    text = graph.get(path)
    assert text is not None
    before = rows(graph)
    graph.delete(path)
    _faults.arm("repair.waiting", once(lambda: graph.put(path, text)))
    repair(graph, False, GRACE)
    assert check(graph) == []
    assert rows(graph) == before
