"""The snapshot is a pure fold of the manifest's rows ."""

from __future__ import annotations

import pickle
import random
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from omnigraph_spark.errors import (
    BranchNotFoundError,
    CorruptManifestError,
    GraphNotFoundError,
    TableNotFoundError,
    UnsupportedManifestVersion,
    VersionNotFoundError,
)
from omnigraph_spark.manifest import snapshot
from omnigraph_spark.manifest.rows import (
    MANIFEST_SCHEMA,
    ManifestRow,
    TableRow,
    TombstoneRow,
    VersionRow,
    to_arrow,
)
from omnigraph_spark.manifest.snapshot import Snapshot, TableEntry, fold, nearest
from omnigraph_spark.storage import layout
from omnigraph_spark.storage.store import Storage
from tests.support import graphs, writes

PERSON = writes.PERSON
TABLE = TableRow(PERSON, "nodes/40d76f1f51639ec0")


def folded(*rows: ManifestRow, branch: str = "main") -> Snapshot:
    return fold(to_arrow(rows), branch, 1)


def version(number: int, branch: str | None = None, count: int = 1) -> VersionRow:
    return VersionRow(PERSON, number, branch, count)


def raw(**columns: object) -> pa.Table:
    return pa.Table.from_pylist([columns], schema=MANIFEST_SCHEMA)


def test_the_latest_version_of_a_table_is_the_visible_one() -> None:
    entry = folded(TABLE, version(3), version(11, count=7), version(2)).entry(PERSON)
    assert (entry.table_version, entry.row_count, entry.table_branch) == (11, 7, None)
    assert entry.location == "nodes/40d76f1f51639ec0"


def test_versions_are_compared_as_numbers() -> None:
    assert folded(TABLE, version(9), version(10)).version(PERSON) == 10


@pytest.mark.parametrize(("tombstone", "visible"), [(4, 5), (5, 0), (6, 0)])
def test_a_tombstone_hides_its_own_version_and_every_lower_one(
    tombstone: int, visible: int
) -> None:
    found = folded(TABLE, version(4), version(5), TombstoneRow(PERSON, tombstone))
    assert found.version(PERSON) == visible


def test_a_version_above_the_tombstone_makes_the_table_visible_again() -> None:
    found = folded(TABLE, version(4), TombstoneRow(PERSON, 4), version(5))
    assert found.version(PERSON) == 5


def test_a_tombstone_hides_versions_of_every_table_branch() -> None:
    found = folded(TABLE, version(4), version(5, "dev"), TombstoneRow(PERSON, 5), branch="dev")
    assert PERSON not in found.tables


def test_a_tombstone_of_one_table_leaves_others_alone() -> None:
    other = TableRow("node:Company", "nodes/7cb4e55c59663b1c")
    found = folded(
        TABLE, other, version(4), VersionRow("node:Company", 2, None, 1), TombstoneRow(PERSON, 9)
    )
    assert list(found.tables) == ["node:Company"]


def test_of_an_inherited_and_an_own_entry_the_higher_version_wins() -> None:
    assert (
        folded(TABLE, version(8), version(7, "dev"), branch="dev").entry(PERSON).table_branch
        is None
    )
    assert (
        folded(TABLE, version(7), version(8, "dev"), branch="dev").entry(PERSON).table_branch
        == "dev"
    )


def test_of_an_inherited_and_an_own_entry_of_one_version_the_own_one_wins() -> None:
    rows = to_arrow([TABLE, version(7), version(7, "dev")])
    ids = pa.array(["t", "a", "b"])
    rows = rows.set_column(0, MANIFEST_SCHEMA.field(0), ids)
    for order in ([0, 1, 2], [0, 2, 1]):
        found = fold(rows.take(order), "dev", 1).entry(PERSON)
        assert found.table_branch == "dev"


def test_a_key_without_an_entry_is_not_in_the_snapshot() -> None:
    found = folded(TABLE)
    assert found.tables == {}
    assert found.version(PERSON) == 0
    assert found.locations == {PERSON: TABLE.location}


def test_rows_of_unknown_types_are_ignored() -> None:
    rows = to_arrow([TABLE, version(3)])
    strange = raw(object_id="x", object_type="lineage", table_key=PERSON, table_version=99)
    assert fold(pa.concat_tables([rows, strange]), "main", 1).version(PERSON) == 3


def test_columns_of_newer_engines_are_ignored() -> None:
    rows = to_arrow([TABLE, version(3)]).append_column("stable_table_id", pa.array([1, 1]))
    assert fold(rows, "main", 1).version(PERSON) == 3


def test_the_order_of_the_rows_does_not_matter() -> None:
    rows: list[ManifestRow] = [TABLE, *(version(n) for n in range(1, 20)), TombstoneRow(PERSON, 12)]
    expected = folded(*rows)
    for seed in range(20):
        random.Random(seed).shuffle(rows)
        assert folded(*rows) == expected


def test_rows_of_skipped_versions_count_by_their_table_version() -> None:
    healed = version(9)
    rows: list[ManifestRow] = [TABLE, version(6), healed, replace(healed, object_version=7)]
    assert folded(*rows, replace(healed, object_version=8)).version(PERSON) == 9


def test_equal_rows_of_one_object_id_count_once() -> None:
    rows = to_arrow([TABLE, version(3)])
    assert fold(pa.concat_tables([rows, rows]), "main", 1) == fold(rows, "main", 1)


def test_contradictory_rows_of_one_object_id_are_refused_by_name() -> None:
    with pytest.raises(CorruptManifestError, match=r"OMNIGRAPH_CORRUPT_MANIFEST.*node:Person\$0"):
        folded(TABLE, version(3, count=1), version(3, count=2))


def test_the_floor_is_the_highest_version_or_tombstone() -> None:
    assert folded(TABLE, version(5), TombstoneRow(PERSON, 9)).floors == {PERSON: 9}
    assert folded(TABLE, version(5), TombstoneRow(PERSON, 3)).floors == {PERSON: 5}


def test_several_incarnations_of_a_table_are_refused_with_the_upgrade_message() -> None:
    with pytest.raises(UnsupportedManifestVersion, match="upgrade omnigraph first"):
        fold(
            pa.concat_tables(
                [
                    raw(object_id="a", object_type="table", table_key=PERSON, location="nodes/a"),
                    raw(object_id="b", object_type="table", table_key=PERSON, location="nodes/b"),
                ]
            ),
            "main",
            1,
        )


def test_a_table_whose_own_row_is_lost_is_found_where_its_name_says() -> None:
    found = folded(version(3))
    assert found.entry(PERSON).location == TABLE.location
    assert found.locations == {PERSON: TABLE.location}


def test_metadata_comes_back_as_it_was_written() -> None:
    ours = {"publish_id": "01", "user_metadata": 'é "quoted"'}
    entry = folded(TABLE, VersionRow(PERSON, 3, None, 1, {"omnigraph_spark": ours})).entry(PERSON)
    assert entry.ours == ours


def test_an_entry_of_another_writer_has_nothing_of_ours() -> None:
    entry = folded(TABLE, VersionRow(PERSON, 3, None, 1, {"manifest_path": "x"})).entry(PERSON)
    assert entry.ours == {}


def test_an_unknown_table_is_refused_with_the_list_of_those_there_are() -> None:
    with pytest.raises(TableNotFoundError, match=r"OMNIGRAPH_TABLE_NOT_FOUND.*node:Person"):
        folded(TABLE, version(3)).entry("node:Persom")


def test_a_bare_name_means_the_one_table_that_it_fits() -> None:
    edge = TableRow("edge:Person", "edges/a")
    both = folded(TABLE, version(3), edge, VersionRow("edge:Person", 1, None, 0))
    assert folded(TABLE, version(3)).resolve("Person") == PERSON
    assert both.resolve("edge:Person") == "edge:Person"
    with pytest.raises(TableNotFoundError, match="node:Person or edge:Person"):
        both.resolve("Person")
    with pytest.raises(TableNotFoundError, match="OMNIGRAPH_TABLE_NOT_FOUND"):
        both.resolve("person")


def test_a_snapshot_is_plain_data() -> None:
    found = folded(TABLE, version(3))
    assert pickle.loads(pickle.dumps(found)) == found


def test_the_snapshot_of_an_old_graph_version_stays_what_it_was(tmp_path: Path) -> None:
    storage = writes.new_graph(Storage.at(str(tmp_path)), [PERSON])
    before = snapshot.load(storage)
    writes.write(storage, {PERSON: ["b"]})
    assert snapshot.load(storage, version=before.graph_version) == before
    assert snapshot.load(storage).graph_version > before.graph_version


def test_what_is_not_there_is_refused_by_kind(tmp_path: Path) -> None:
    storage = Storage.at(str(tmp_path / "none"))
    with pytest.raises(GraphNotFoundError, match="OMNIGRAPH_GRAPH_NOT_FOUND"):
        snapshot.load(storage)
    assert not (tmp_path / "none").exists()
    storage = writes.new_graph(Storage.at(str(tmp_path / "g")), [PERSON])
    with pytest.raises(BranchNotFoundError, match=r"OMNIGRAPH_BRANCH_NOT_FOUND.*main"):
        snapshot.load(storage, "dev")
    with pytest.raises(VersionNotFoundError, match="OMNIGRAPH_VERSION_NOT_FOUND"):
        snapshot.load(storage, version=999)


@pytest.mark.parametrize(("generation", "graph", "branches"), graphs.ALL_GRAPHS)
def test_the_snapshot_of_the_engines_graphs_counts_what_the_engine_counts(
    generation: str, graph: str, branches: tuple[str, ...], tmp_path: Path
) -> None:
    storage = Storage.at(str(graphs.unpack(generation, graph, tmp_path)))
    before = graphs.file_hashes(tmp_path)
    for branch in branches:
        tables = snapshot.load(storage, branch).tables
        counts = {key: entry.row_count for key, entry in tables.items() if entry.row_count}
        assert counts == graphs.export_of(generation, graph, branch).row_counts
    assert graphs.file_hashes(tmp_path) == before


@pytest.mark.parametrize("branch", ["main", "dev"])
def test_a_fold_of_any_rows_says_what_the_rules_say_of_each_table(branch: str) -> None:
    chance = random.Random(7)
    keys = ["node:A", "node:B", "edge:C"]
    for _ in range(150):
        rows: dict[str, ManifestRow] = {}
        for _ in range(chance.randrange(40)):
            key, number = chance.choice(keys), chance.randrange(1, 12)
            if chance.random() < 0.15:
                rows[f"{key}/{number}/gone"] = TombstoneRow(key, number)
            else:
                line = chance.choice([None, "dev"])
                rows[f"{key}/{number}"] = VersionRow(key, number, line, chance.randrange(9))
        gone = {
            k: max((r.table_version for r in rows.values() if _of(r, TombstoneRow, k)), default=0)
            for k in keys
        }
        visible = {}
        for key in keys:
            found = [r for r in rows.values() if _of(r, VersionRow, key)]
            newest = max(found, key=lambda r: r.table_version, default=None)
            if newest is not None and newest.table_version > gone[key]:
                visible[key] = (newest.table_version, newest.table_branch, newest.row_count)
        shuffled = [*(TableRow(k, layout.table_location(k)) for k in keys), *rows.values()]
        chance.shuffle(shuffled)
        tables = folded(*shuffled, branch=branch).tables
        assert visible == {
            k: (e.table_version, e.table_branch, e.row_count) for k, e in tables.items()
        }


def _of(row: ManifestRow, kind: type[ManifestRow], key: str) -> bool:
    return isinstance(row, kind) and row.table_key == key


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("Custmer", "node:Customer"),
        ("node:Custmer", "node:Customer"),
        ("customer", "node:Customer"),
        ("edge:Customer", "node:Customer"),
        ("edge:Know", "edge:Knows"),
        ("Boght", "edge:Bought"),
        ("edge:Persn", "edge:Person"),
        ("Persn", "edge:Person"),
        ("Zzz", None),
        ("", None),
    ],
)
def test_a_mistyped_table_is_answered_with_the_nearest_one_and_its_kind(
    name: str, near: str | None
) -> None:
    keys = ["node:Customer", "edge:Knows", "edge:Bought", "edge:Person", "node:Person"]
    assert nearest(name, keys) == near
    entries = {key: TableEntry(key, "x", 1, None, 0) for key in keys}
    snapshot = Snapshot("main", 3, entries, {}, {})
    with pytest.raises(TableNotFoundError) as caught:
        snapshot.resolve(name)
    assert caught.value.hint == (f"Did you mean {near}?" if near else None)
