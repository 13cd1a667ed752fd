"""Files of branches and tags that are gone or torn: `check` names them, `repair` mends them."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest

from omnigraph_spark import _faults
from omnigraph_spark.errors import UnsupportedError
from omnigraph_spark.maintenance import check as checks
from omnigraph_spark.maintenance.check import check
from omnigraph_spark.maintenance.cleanup import cleanup
from omnigraph_spark.maintenance.repair import repair
from omnigraph_spark.refs import branches, refs, tags
from omnigraph_spark.storage import layout
from omnigraph_spark.storage.store import Storage
from tests.support.branches import GRACE, forks_of, ids_at, make, names, remove, write_ids
from tests.support.writes import KNOWS, PERSON, new_graph, once

PEOPLE = layout.table_location(PERSON)
LINEAGE = layout.GRAPH_COMMITS
TORN = (b"", b'{\n  "parentBranch": null,\n  "ident', b"[]")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Branches `dev` and `dev/sub` of it, each with a row of its own; tag `t` of `dev`."""
    storage = Storage.at(str(tmp_path_factory.mktemp("made") / "g"))
    new_graph(storage, (PERSON, KNOWS))
    make(storage, "dev")
    write_ids(storage, "dev", PERSON, ["d"])
    make(storage, "dev/sub", "dev")
    write_ids(storage, "dev/sub", PERSON, ["s"])
    tags.create_tag(storage, "t", refs.named(storage, "dev"))
    return Path(storage.root)


@pytest.fixture
def graph(made: Path, tmp_path: Path) -> Iterator[Storage]:
    storage = Storage.at(str(shutil.copytree(made, tmp_path / "g")))
    point_here(storage)
    yield storage
    _faults.disarm()


def point_here(storage: Storage) -> None:
    """Branches name the place that the graph was copied from."""
    repair(storage, False, GRACE)
    assert check(storage) == []


def mended(storage: Storage) -> list[tuple[str, bool]]:
    found = [(one.kind, one.done) for one in repair(storage, False, GRACE)]
    assert check(storage) == []
    return found


def rows(storage: Storage, needs: str = "both") -> dict[str, list[str]]:
    shown = {"branch": ("dev/sub",), "tag": ("t",)}.get(needs, ("dev/sub", "t"))
    return {ref: ids_at(storage, PERSON, ref) for ref in ("main", "dev", *shown)}


ROWS = {
    "main": ["first"],
    "dev": ["d", "first"],
    "dev/sub": ["d", "first", "s"],
    "t": ["d", "first"],
}


# --- torn ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("content", TORN)
@pytest.mark.parametrize("name", ["dev", "dev/sub"])
@pytest.mark.parametrize("place", [layout.MANIFEST, LINEAGE, PEOPLE])
def test_a_branch_whose_ref_file_is_torn_reads_as_before_after_a_repair(
    graph: Storage, place: str, name: str, content: bytes
) -> None:
    path = layout.ref_path(place, name)
    graph.put(path, content)
    found = {(one.kind, one.place, one.repairable) for one in check(graph)}
    assert (checks.TORN_REF, path, True) in found
    repair(graph, False, GRACE)
    assert check(graph) == []
    assert graph.get(f"{layout.DAMAGED}/{path}") == content
    assert rows(graph) == ROWS
    write_ids(graph, name, PERSON, ["next"])
    assert ids_at(graph, PERSON, name) == sorted([*ROWS[name], "next"])
    origins = {one.name: (one.parent, one.parent_version) for one in refs.list_branches(graph)}
    assert origins == {"main": (None, None), "dev": ("main", 3), "dev/sub": ("dev", 5)}


@pytest.mark.parametrize("content", TORN)
def test_a_tag_whose_file_is_torn_is_made_again_from_those_of_its_tables(
    graph: Storage, content: bytes
) -> None:
    before = [(one.name, one.branch, one.version) for one in refs.list_tags(graph)]
    graph.put(f"{layout.MANIFEST}/_refs/tags/t.json", content)
    assert mended(graph) == [(checks.TORN_REF, True)]
    assert [(one.name, one.branch, one.version) for one in refs.list_tags(graph)] == before
    assert rows(graph) == ROWS


def test_a_torn_file_of_a_tag_that_was_never_made_is_set_aside(graph: Storage) -> None:
    graph.put(f"{layout.MANIFEST}/_refs/tags/other.json", b"")
    assert mended(graph) == [(checks.TORN_REF, True)]
    assert [one.name for one in refs.list_tags(graph)] == ["t"]


def test_a_torn_file_of_a_tables_tag_is_made_again(graph: Storage) -> None:
    (path,) = [info.path for info in graph.list(f"{PEOPLE}/_refs/tags")]
    graph.put(path, b"")
    found = mended(graph)
    assert found[0] == (checks.TORN_REF, True)
    assert list(graph.dataset(PEOPLE).tags.list()) == [Path(path).stem]


@pytest.mark.parametrize("place", [layout.MANIFEST, LINEAGE, PEOPLE])
def test_a_branch_whose_ref_file_is_torn_can_be_deleted(graph: Storage, place: str) -> None:
    graph.put(layout.ref_path(place, "dev/sub"), b"")
    remove(graph, "dev/sub")
    assert names(graph) == ["main", "dev"]
    assert forks_of(graph, PERSON) == ["dev"]
    assert check(graph) == []
    make(graph, "dev/sub")
    assert ids_at(graph, PERSON, "dev/sub") == ["first"]


# --- gone ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("place", [LINEAGE, PEOPLE])
@pytest.mark.parametrize("name", ["dev", "dev/sub"])
def test_a_fork_in_use_whose_ref_file_is_gone_gets_it_back(
    graph: Storage, place: str, name: str
) -> None:
    graph.delete(layout.ref_path(place, name))
    found = [(one.kind, one.place, one.branch) for one in check(graph)]
    assert (checks.MISSING_REF, place, name) in found
    repair(graph, False, GRACE)
    assert check(graph) == []
    assert rows(graph) == ROWS
    write_ids(graph, name, PERSON, ["next"])
    assert check(graph) == []


@pytest.mark.parametrize("by", ["branch", "tag"])
def test_a_branch_whose_ref_is_gone_gets_it_back_if_another_branch_or_a_tag_needs_it(
    graph: Storage, by: str
) -> None:
    if by == "branch":
        tags.delete_tag(graph, "t")
    else:
        remove(graph, "dev/sub")
    before = rows(graph, by)
    graph.delete(layout.ref_path(layout.MANIFEST, "dev"))
    with pytest.raises(UnsupportedError, match=f"(?i){by} "):
        remove(graph, "dev")
    found = {(one.kind, one.place, one.repairable) for one in check(graph)}
    assert (checks.MISSING_REF, layout.MANIFEST, True) in found
    repair(graph, False, GRACE)
    assert check(graph) == []
    assert rows(graph, by) == before


def test_what_a_dead_deletion_left_of_a_tables_fork_is_removed_without_a_version_in_it(
    graph: Storage,
) -> None:
    branches.delete_branch(graph, "dev/sub", GRACE)
    left = f"{PEOPLE}/tree/dev/sub/data/left.lance"
    graph.put(left, b"x")
    assert mended(graph) == [(checks.LEFTOVER_FORK, True)]
    assert graph.get(left) is None
    assert ids_at(graph, PERSON, "dev") == ROWS["dev"]


def test_a_cleanup_removes_what_a_dead_deletion_left_of_a_fork_without_a_version(
    graph: Storage,
) -> None:
    left = f"{PEOPLE}/tree/gone/data/left.lance"
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
    edges = layout.table_location(KNOWS)
    graph.dataset(edges).create_branch("dev", ("main", 1))
    graph.delete(layout.ref_path(edges, "dev"))
    assert mended(graph) == [(checks.LEFTOVER_FORK, True)]
    assert graph.list(f"{edges}/tree/dev") == []
    write_ids(graph, "dev", KNOWS, ["k"])
    assert ids_at(graph, KNOWS, "dev") == ["first", "k"]


@pytest.mark.parametrize("place", [layout.MANIFEST, PEOPLE])
def test_a_repair_leaves_alone_what_gets_its_ref_meanwhile(graph: Storage, place: str) -> None:
    path = layout.ref_path(place, "new")
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
    assert mended(graph) == [(checks.LEFTOVER_TAG, True)] * 2
    assert list(graph.dataset(PEOPLE).tags.list()) == []


def test_a_tag_that_lost_a_tables_tag_gets_it_back(graph: Storage) -> None:
    (path,) = [info.path for info in graph.list(f"{PEOPLE}/_refs/tags")]
    graph.delete(path)
    assert [(one.kind, one.place) for one in check(graph)] == [(checks.HALF_TAG, "t")]
    assert mended(graph) == [(checks.HALF_TAG, True)]
    assert list(graph.dataset(PEOPLE).tags.list()) == [Path(path).stem]


def test_a_repair_waits_for_who_is_making_a_tag(graph: Storage) -> None:
    path = f"{layout.MANIFEST}/_refs/tags/t.json"
    text = graph.get(path)
    assert text is not None
    graph.delete(path)
    _faults.arm("repair.waiting", once(lambda: graph.put(path, text)))
    repair(graph, False, GRACE)
    assert check(graph) == []
    assert rows(graph) == ROWS
