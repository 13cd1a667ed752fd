"""Tags without Spark: a name for one version of every table, which no cleanup takes away."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from omnigraph_spark import _faults
from omnigraph_spark.errors import OptionError, UnsupportedError, VersionNotFoundError
from omnigraph_spark.manifest.snapshot import load
from omnigraph_spark.refs import refs, tags
from omnigraph_spark.storage import layout
from omnigraph_spark.storage.store import Storage
from tests.format_checker import check_graph
from tests.support.branches import at, ids_at, make, remove, write_ids
from tests.support.writes import ALL, COMPANY, PERSON, new_graph


@pytest.fixture
def graph(tmp_path: Path) -> Iterator[Storage]:
    """A graph of three tables, one row `first` each."""
    yield new_graph(Storage.at(str(tmp_path / "g")))
    _faults.disarm()


def tag(graph: Storage, name: str, ref: str = "main") -> None:
    tags.create_tag(graph, name, refs.named(graph, ref))


def table_tags(graph: Storage, key: str) -> list[str]:
    return sorted(graph.dataset(layout.table_location(key)).tags.list())


def test_a_tag_names_one_version_of_every_table_for_good(graph: Storage) -> None:
    then = at(graph)
    tag(graph, "v1")
    write_ids(graph, "main", PERSON, ["later"])
    write_ids(graph, "main", COMPANY, ["x"], "overwrite")
    assert at(graph, "v1") == then
    assert [ids_at(graph, key, "v1") for key in ALL] == [["first"]] * 3
    (found,) = refs.list_tags(graph)
    assert (found.name, found.branch, found.version) == ("v1", "main", then.graph_version)
    assert refs.resolve(graph, version_as_of="v1") == ("main", then.graph_version)
    assert check_graph(graph.root) == []


def test_a_tag_of_a_branch_names_the_branch(graph: Storage) -> None:
    make(graph, "dev")
    write_ids(graph, "dev", PERSON, ["d"])
    tag(graph, "v1", "dev")
    write_ids(graph, "dev", PERSON, ["e"])
    assert ids_at(graph, PERSON, "v1") == ["d", "first"]
    assert refs.named(graph, "v1") == ("dev", at(graph, "dev").graph_version - 1)


def test_a_cleanup_of_a_tables_old_versions_leaves_the_tagged_one(graph: Storage) -> None:
    tag(graph, "v1")
    tagged = at(graph).entry(PERSON).table_version
    for number in range(3):
        write_ids(graph, "main", PERSON, [f"p{number}"], "overwrite")
    dataset = graph.dataset(layout.table_location(PERSON))
    dataset.cleanup_old_versions(timedelta(0), error_if_tagged_old_versions=False)
    left = [one["version"] for one in dataset.versions()]
    assert left == [tagged, at(graph).entry(PERSON).table_version]
    assert ids_at(graph, PERSON, "v1") == ["first"]


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("", "is not a valid tag name"),
        ("a b", "is not a valid tag name"),
        ("../x", "is not a valid tag name"),
        ("a/b", "is not a valid tag name"),
        ("-a", "is not a valid tag name"),
        ("x@1", "is not a valid tag name"),
        ("7", "read like a graph version"),
        ("01ARZ3NDEKTSV4RRFFQ69G5FAV", "read like a graph version or a commit id"),
        ("main", "is the name of a branch"),
        ("dev", "is the name of a branch"),
        ("v1", "is there already"),
    ],
)
def test_names_that_arent_free_or_could_be_another_ref_are_refused(
    graph: Storage, name: str, why: str
) -> None:
    make(graph, "dev")
    tag(graph, "v1")
    before = {key: table_tags(graph, key) for key in ALL}
    with pytest.raises(OptionError, match=rf"OMNIGRAPH_OPTION\].*{why}"):
        tag(graph, name)
    assert {key: table_tags(graph, key) for key in ALL} == before
    assert [one.name for one in refs.list_tags(graph)] == ["v1"]


def test_deleting_a_tag_takes_the_tables_tags_and_no_other_tags(graph: Storage) -> None:
    tag(graph, "v1")
    write_ids(graph, "main", PERSON, ["p"])
    tag(graph, "v1-2")
    graph.dataset(layout.table_location(PERSON)).tags.create("mine", (None, 1))
    tags.delete_tag(graph, "v1")
    assert [one.name for one in refs.list_tags(graph)] == ["v1-2"]
    assert table_tags(graph, PERSON)[0] == "mine"
    assert [len(table_tags(graph, key)) for key in ALL] == [2, 1, 1]
    assert ids_at(graph, PERSON, "v1-2") == ["first", "p"]
    with pytest.raises(VersionNotFoundError, match="no tag 'v1' · expected v1-2"):
        tags.delete_tag(graph, "v1")
    with pytest.raises(VersionNotFoundError, match="no version, commit or tag 'v1'"):
        refs.resolve(graph, version_as_of="v1")


def test_a_tag_can_be_made_again_at_another_version(graph: Storage) -> None:
    tag(graph, "v1")
    write_ids(graph, "main", PERSON, ["p"])
    tags.delete_tag(graph, "v1")
    tag(graph, "v1")
    assert ids_at(graph, PERSON, "v1") == ["first", "p"]


def test_a_tagged_branch_is_not_deleted_until_the_tag_is(graph: Storage) -> None:
    make(graph, "dev")
    write_ids(graph, "dev", PERSON, ["d"])
    tag(graph, "v1", "dev")
    with pytest.raises(UnsupportedError, match="Tag v1 names a version of branch dev"):
        remove(graph, "dev")
    tags.delete_tag(graph, "v1")
    remove(graph, "dev")
    assert [one.name for one in refs.list_branches(graph)] == ["main"]


def test_tags_of_tables_that_a_dead_tagger_left_hinder_nothing(graph: Storage) -> None:
    make(graph, "dev")
    write_ids(graph, "dev", PERSON, ["d"])
    tag(graph, "v1", "dev")
    graph.dataset(layout.MANIFEST).tags.delete("v1")  # as if it had never been made
    assert len(table_tags(graph, PERSON)) == 1
    tag(graph, "v1", "dev")
    assert ids_at(graph, PERSON, "v1") == ["d", "first"]
    graph.dataset(layout.MANIFEST).tags.delete("v1")
    remove(graph, "dev")
    assert table_tags(graph, PERSON) == []


def test_a_tagger_that_loses_the_name_leaves_the_winners_protection(
    graph: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    then = load(graph).graph_version
    write_ids(graph, "main", PERSON, ["p"])
    monkeypatch.setattr(tags, "_check_name", lambda *_: None)  # both looked before either was made
    tag(graph, "v1", str(then))
    with pytest.raises(OptionError, match="Tag v1 is there already"):
        tag(graph, "v1")
    assert [len(table_tags(graph, key)) for key in ALL] == [1, 1, 1]
    with pytest.raises(OptionError, match="Tag v1 is there already"):
        tag(graph, "v1", str(then))
    assert ids_at(graph, PERSON, "v1") == ["first"]
    assert [len(table_tags(graph, key)) for key in ALL] == [1, 1, 1]
    assert table_tags(graph, PERSON)[0].endswith(f"-{then}")
