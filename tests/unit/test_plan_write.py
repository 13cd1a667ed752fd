"""A write is refused while it is planned, before a byte is written."""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from omnigraph_spark import _faults
from omnigraph_spark.errors import (
    BranchNotFoundError,
    ExpectedVersionMismatch,
    OmnigraphError,
    OptionError,
    SchemaMismatchError,
    TableNotFoundError,
)
from omnigraph_spark.manifest.snapshot import load
from omnigraph_spark.storage import layout
from omnigraph_spark.storage.store import Storage
from omnigraph_spark.write.plan import NewTable, plan_write
from tests.support import graphs, writes
from tests.support.writes import ALL, COMPANY, KNOWS, PERSON

LONG = "a" * 300


@pytest.fixture
def graph(tmp_path: Path) -> Iterator[Storage]:
    yield writes.new_graph(Storage.at(str(tmp_path / "inside" / "g")))
    _faults.disarm()


class Unchanged:
    """A context in which nothing may be written, inside the graph or beside it."""

    def __init__(self, storage: Storage) -> None:
        self._beside = Path(storage.root).parent

    def __enter__(self) -> None:
        self._before = graphs.file_hashes(self._beside), sorted(self._beside.rglob("*"))

    def __exit__(self, *_: object) -> None:
        now = graphs.file_hashes(self._beside), sorted(self._beside.rglob("*"))
        assert now == self._before


# --- names -------------------------------------------------------------------------------------

HOSTILE_TYPES = (
    "",
    " ",
    "..",
    "../x",
    "../../etc/passwd",
    "/abs",
    "a/../../b",
    "a/b",
    "%2e%2e",
    "%2e%2e%2fx",
    "a\\b",
    "C:",
    "CON ",
    "a b",
    "a.b",
    "a`b",
    "a'b",
    'a"b',
    "a;DROP TABLE x",
    "a\x00b",
    "a\nb",
    "a\x7f",
    "$tombstone$",
    "Person$tombstone$00000000000000000001",
    "1abc",
    "Pеrson",  # a Cyrillic е
    "Ｐerson",  # full width
    "P\u200berson",  # an invisible character inside
    "é",
    LONG,
)


@pytest.mark.parametrize("kind", ["node", "edge"])
@pytest.mark.parametrize("name", HOSTILE_TYPES, ids=lambda name: ascii(name)[:30])
def test_a_hostile_table_name_is_refused_and_creates_nothing(
    graph: Storage, name: str, kind: str
) -> None:
    key = f"{kind}:{name}"
    ends = ("Person", "Person") if kind == "edge" else None
    schema = writes.EDGE_SCHEMA if kind == "edge" else writes.NODE_SCHEMA
    new = {key: NewTable(schema, None, ends)}
    with Unchanged(graph), pytest.raises(OmnigraphError, match="OMNIGRAPH_OPTION") as raised:
        writes.plan(graph, [key], new=new)
    text = str(raised.value)
    assert len(text) < 600
    assert text.isprintable()


@pytest.mark.parametrize(
    "key", ["", ":", "Person", "table:Person", "NODE:Person", "node::Person", " node:Person", LONG]
)
def test_what_is_no_table_key_is_refused(graph: Storage, key: str) -> None:
    with Unchanged(graph), pytest.raises(OmnigraphError, match="OMNIGRAPH_OPTION"):
        writes.plan(graph, [key], new={key: writes.NEW[PERSON]})


@pytest.mark.parametrize("key", ["node:person", "node:PERSON", "node:Persom", "edge:Person"])
def test_an_unknown_table_is_refused_with_the_list_of_those_there_are(
    graph: Storage, key: str
) -> None:
    with Unchanged(graph), pytest.raises(TableNotFoundError, match="node:Person") as raised:
        writes.plan(graph, [key], new={})
    assert "OMNIGRAPH_TABLE_NOT_FOUND" in str(raised.value)
    assert key in str(raised.value)


HOSTILE_BRANCHES = (
    "..",
    "../x",
    "/abs",
    "a/../../b",
    "a//b",
    "a/",
    ".hidden",
    "%2e%2e",
    "a b",
    "a\x00b",
    "a\nb",
    "a\\b",
    "a:b",
    "a*b",
    "a?b",
    "x.lock",
    "__run__x",
    "__schema_apply_lock__",
    "é",
    LONG,
)


@pytest.mark.parametrize("branch", HOSTILE_BRANCHES, ids=lambda name: ascii(name)[:30])
def test_a_hostile_branch_name_is_refused_and_creates_nothing(graph: Storage, branch: str) -> None:
    with Unchanged(graph), pytest.raises(OmnigraphError, match="OMNIGRAPH_(OPTION|BRANCH)"):
        writes.plan(graph, [PERSON], branch=branch)
    with Unchanged(graph), pytest.raises(OmnigraphError, match="OMNIGRAPH_(OPTION|BRANCH)"):
        load(graph, branch)


@pytest.mark.parametrize("branch", ["dev", "Main", "MAIN", "main2", "mai", "a/b"])
def test_an_unknown_branch_is_refused_with_the_list_of_those_there_are(
    graph: Storage, branch: str
) -> None:
    with (
        Unchanged(graph),
        pytest.raises(BranchNotFoundError, match=r"OMNIGRAPH_BRANCH_NOT_FOUND.*main"),
    ):
        writes.plan(graph, [PERSON], branch=branch)


@pytest.mark.parametrize("end", ["Nobody", "person", "../x", "", "Per son"])
def test_a_new_edge_table_ends_at_node_tables_that_are_there(graph: Storage, end: str) -> None:
    new = {"edge:Likes": NewTable(writes.EDGE_SCHEMA, None, ("Person", end))}
    with Unchanged(graph), pytest.raises(OptionError, match="OMNIGRAPH_OPTION"):
        writes.plan(graph, ["edge:Likes"], new=new)


def test_a_new_edge_table_may_end_at_a_node_table_of_the_same_write(graph: Storage) -> None:
    new: Mapping[str, NewTable] = {
        "edge:Likes": NewTable(writes.EDGE_SCHEMA, None, ("Person", "Film")),
        "node:Film": writes.NEW[PERSON],
    }
    planned = writes.plan(graph, list(new), new=new)
    assert [t.mode for t in planned.targets.values()] == ["create", "create"]


@pytest.mark.parametrize(
    "options",
    [
        {"expectedTableVersions": '{"Person": 1}'},
        {"expectedTableVersions": '{"node:../x": 1}'},
        {"expectedTableVersions": '{"node:Person": "1"}'},
        {"expectedTableVersions": '{"node:Person": -1}'},
        {"expectedTableVersions": '{"node:Person": 1.5}'},
        {"expectedTableVersions": '["node:Person"]'},
        {"expectedTableVersions": "{"},
        {"txnAppId": "app"},
        {"txnVersion": "1"},
        {"txnAppId": "app", "txnVersion": "one"},
        {"txnAppId": "app", "txnVersion": "-1"},
        {"commitRetries": "-1"},
        {"commitRetries": "many"},
        {"commitTimeoutSeconds": "-5"},
        {"orphanGraceSeconds": "soon"},
        {"maxRowsPerFile": "0"},
        {"integrity": "perhaps"},
        {"expectedTableVersion": "{}"},
    ],
    ids=str,
)
def test_a_malformed_option_is_refused_by_name(graph: Storage, options: dict[str, str]) -> None:
    with Unchanged(graph), pytest.raises(OptionError, match="OMNIGRAPH_OPTION") as raised:
        writes.plan(graph, [PERSON], **_more(options))
    assert any(name in str(raised.value) for name in options)


def _more(options: dict[str, str]) -> dict[str, Any]:
    return dict(options)


# --- what is planned ---------------------------------------------------------------------------


def test_a_plan_writes_nothing_and_makes_no_graph(tmp_path: Path) -> None:
    storage = Storage.at(str(tmp_path / "absent"))
    planned = writes.plan(storage, list(ALL))
    assert [t.mode for t in planned.targets.values()] == ["create"] * 3
    assert list(tmp_path.iterdir()) == []


def test_a_plan_of_a_write_to_a_graph_writes_nothing(graph: Storage) -> None:
    with Unchanged(graph):
        writes.plan(graph, list(ALL))
        writes.plan(graph, list(ALL), "overwrite")


def test_a_plan_is_plain_data_for_the_tasks(graph: Storage) -> None:
    planned = writes.plan(graph, list(ALL))
    again = pickle.loads(pickle.dumps(planned))
    assert again == planned
    assert len(pickle.dumps(planned)) < 20_000


def test_the_secrets_of_a_storage_show_in_no_repr_of_a_plan(tmp_path: Path) -> None:
    storage = Storage.at(str(tmp_path / "g"), {"aws_secret_access_key": "CANARY"})
    planned = writes.plan(storage, [PERSON])
    assert "CANARY" not in repr(planned)


def test_a_target_is_planned_on_the_published_version_and_not_on_the_head(graph: Storage) -> None:
    writes.orphan(graph, PERSON, ["orphan"])
    dataset = graph.dataset(layout.table_location(PERSON))
    dataset.add_columns(pa.schema([pa.field("unpublished", pa.int32())]))
    target = writes.plan(graph, [PERSON]).targets[PERSON]
    assert target.version == 1
    assert "unpublished" not in target.schema.names


def test_an_overwrite_expects_the_planned_versions_of_exactly_its_tables(graph: Storage) -> None:
    assert writes.plan(graph, [PERSON, KNOWS], "overwrite").expected == {PERSON: 1, KNOWS: 1}
    assert writes.plan(graph, [PERSON]).expected == {}
    assert writes.plan(graph, [PERSON], "overwrite", lastWriterWins="true").expected == {}


def test_the_lowest_version_that_was_read_is_expected(graph: Storage) -> None:
    writes.write(graph, {PERSON: ["b"]})
    with pytest.raises(ExpectedVersionMismatch, match="node:Person") as raised:
        writes.plan(graph, [PERSON], "overwrite", read_versions={PERSON: 1})
    assert (raised.value.expected, raised.value.actual) == (1, 2)
    writes.plan(graph, [PERSON], "overwrite", read_versions={PERSON: 2})


def test_an_overwrite_with_an_older_version_names_restore_and_blames_nobody(graph: Storage) -> None:
    writes.write(graph, {PERSON: ["b"]})
    with pytest.raises(ExpectedVersionMismatch, match=r"restore.*lastWriterWins") as raised:
        writes.plan(graph, [PERSON], "overwrite", read_versions={PERSON: 1})
    assert "another writer" not in str(raised.value)
    lost = {PERSON: ["old"]}
    writes.write(graph, lost, "overwrite", read_versions={PERSON: 1}, lastWriterWins="true")
    assert writes.ids(graph, PERSON) == ["old"]


def test_a_stated_version_goes_before_one_that_was_read(graph: Storage) -> None:
    writes.write(graph, {PERSON: ["b"]})
    writes.plan(
        graph,
        [PERSON],
        "overwrite",
        read_versions={PERSON: 1},
        expectedTableVersions='{"node:Person": 2}',
    )


def test_two_tables_may_not_share_a_folder(graph: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    """A collision of the hash, which nobody has seen, would mix two tables' rows."""
    taken = layout.table_location(COMPANY)
    monkeypatch.setattr(layout, "table_location", lambda _: taken)
    with pytest.raises(
        SchemaMismatchError, match=r"node:New would share its folder with node:Comp"
    ):
        plan_write(graph, writes.write_options(graph), {"node:New": writes.NEW[PERSON]})
