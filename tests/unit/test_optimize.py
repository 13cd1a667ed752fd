"""Compaction and index maintenance without Spark: real Lance, tasks run in this process."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from omnigraph_spark import _faults
from omnigraph_spark.errors import (
    CommitTimeoutError,
    OptionError,
    StorageError,
    UnsupportedError,
)
from omnigraph_spark.maintenance import indices
from omnigraph_spark.maintenance.check import check
from omnigraph_spark.maintenance.optimize import (
    create_index,
    drop_index,
    optimize,
    optimize_indices,
    run_here,
)
from omnigraph_spark.manifest.snapshot import TableEntry, load
from omnigraph_spark.read import metadata_frames
from omnigraph_spark.read.plan import read_table
from omnigraph_spark.refs import refs
from omnigraph_spark.storage import layout, store
from omnigraph_spark.storage.layout import KINDS
from omnigraph_spark.storage.store import Storage
from omnigraph_spark.write.plan import Settings
from tests.format_checker import check_graph
from tests.support import branches, graphs, lance_graphs
from tests.support.writes import (
    COMPANY,
    KNOWS,
    NODE_SCHEMA,
    PERSON,
    Died,
    die,
    head,
    ids,
    new_graph,
    once,
    orphan,
    records,
    write,
)

QUICK = Settings(orphan_grace_seconds=0.15, commit_timeout_seconds=20.0)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    storage = new_graph(Storage.at(str(tmp_path_factory.mktemp("made") / "g")))
    for number in range(9):
        write(storage, {PERSON: [f"p{number}"]})
    for number in range(3):
        write(storage, {KNOWS: [f"k{number}"]})
    return Path(storage.root)


@pytest.fixture
def graph(made: Path, tmp_path: Path) -> Storage:
    """A graph of three tables, `node:Person` in ten fragments and `edge:Knows` in four."""
    return Storage.at(str(shutil.copytree(made, tmp_path / "g")))


@pytest.fixture(autouse=True)
def disarmed() -> Iterator[None]:
    yield
    _faults.disarm()


def many_fragments(folder: Path, rows: int, fragments: int) -> Storage:
    """Make a graph whose one table, of ids `n0`, `n1`, …, is in many small fragments."""
    storage = lance_graphs.new_graph(str(folder / "many"))
    names = pa.array([f"n{number}" for number in range(rows)])
    ages = pa.array(range(rows), pa.int32())
    table = pa.table([names, names, ages], schema=NODE_SCHEMA)
    lance_graphs.write_table(storage, PERSON, table, max_rows_per_file=rows // fragments)
    lance_graphs.publish_head(storage, PERSON)
    return storage


def opened(storage: Storage, key: str, branch: str = "main") -> Any:
    entry = load(storage, branch).entry(key)
    return storage.dataset(entry.location, entry.table_branch, entry.table_version)


def fragments(storage: Storage, key: str, branch: str = "main") -> int:
    return len(opened(storage, key, branch).get_fragments())


def versions_of_rows(storage: Storage, key: str) -> pa.Table:
    columns = ["id", "_row_created_at_version", "_row_last_updated_at_version"]
    return opened(storage, key).scanner(columns=columns, with_row_id=True).to_table().sort_by("id")


def found_by_index(storage: Storage, key: str, id_: str) -> list[str]:
    dataset = opened(storage, key)
    scanner = dataset.scanner(filter=f"id = '{id_}'", columns=["id"])
    assert "ScalarIndexQuery" in scanner.explain_plan()
    return scanner.to_table()["id"].to_pylist()


def index_rows(storage: Storage, name: str, key: str = PERSON) -> list[dict[str, Any]]:
    found = frame(storage, "indexes")
    return [row for row in found if (row["table_key"], row["name"]) == (key, name)]


def frame(storage: Storage, kind: str) -> list[dict]:
    return metadata_frames.read(kind, storage, load(storage)).to_pylist()


@pytest.mark.long
def test_all_tables_are_compacted_in_one_publish_and_rows_stay_as_they_are(graph: Storage) -> None:
    before = {key: versions_of_rows(graph, key) for key in (PERSON, KNOWS)}
    company = load(graph).version(COMPANY)
    start = load(graph).graph_version
    done = optimize(graph, "main", None, run_here, settings=QUICK)
    assert done.graph_version == start + 1
    before_after = {
        one.table_key: (one.fragments_before, one.fragments_after) for one in done.tables
    }
    assert [before_after[key][0] for key in (PERSON, KNOWS)] == [10, 4]
    assert before_after == {
        key: (before_after[key][0], fragments(graph, key)) for key in (PERSON, KNOWS)
    }
    assert max(fragments(graph, PERSON), fragments(graph, KNOWS)) <= 2
    assert {key: versions_of_rows(graph, key) for key in (PERSON, KNOWS)} == before
    assert load(graph).version(COMPANY) == company
    assert ids(graph, PERSON) == ["first", *(f"p{n}" for n in range(9))]
    assert records(graph) == []
    create_index(graph, "main", PERSON, "id", "BTREE", None, QUICK)
    assert check_graph(graph.root, moved=True) == []
    assert check(graph) == []


def test_optimize_of_a_tidy_graph_publishes_nothing(graph: Storage) -> None:
    for _ in range(3):  # what an index covers, and what it doesn't yet, is gathered apart
        optimize(graph, "main", None, run_here, settings=QUICK)
    version = load(graph).graph_version
    assert optimize(graph, "main", None, run_here, settings=QUICK).publish_id is None
    assert load(graph).graph_version == version


def test_an_index_answers_right_after_a_compaction_and_covers_new_rows(graph: Storage) -> None:
    create_index(graph, "main", "Person", "id", "btree", None, QUICK)
    write(graph, {PERSON: ["late"]})
    (row,) = index_rows(graph, "id_idx")
    assert (row["rows_indexed"], row["rows_not_indexed"]) == (10, 1)
    done = optimize(graph, "main", ["Person"], run_here, settings=QUICK)
    assert done.tables[0].indices == ("id_idx",)
    (row,) = index_rows(graph, "id_idx")
    assert (row["name"], row["type"], row["columns"]) == ("id_idx", "BTree", ["id"])
    assert (row["rows_indexed"], row["rows_not_indexed"]) == (11, 0)
    for id_ in ("first", "p0", "p8", "late"):
        assert found_by_index(graph, PERSON, id_) == [id_]
    write(graph, {PERSON: ["later"]})
    assert found_by_index(graph, PERSON, "later") == ["later"]
    assert found_by_index(graph, PERSON, "nobody") == []


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_every_kind_of_index_answers_as_a_scan_before_and_after_optimize(
    graph: Storage, kind: str
) -> None:
    queries = {"NGRAM": "contains(name, 'p3')", "LABEL_LIST": "array_has_any(name, ['p3'])"}
    if kind == "LABEL_LIST":
        with pytest.raises(UnsupportedError, match="OMNIGRAPH_UNSUPPORTED"):
            create_index(graph, "main", PERSON, "name", kind, "by_name", QUICK)
        assert index_rows(graph, "by_name") == []
        return
    create_index(graph, "main", PERSON, "name", kind, "by_name", QUICK)
    for _ in range(2):
        write(graph, {PERSON: ["more"]})
        for step in (optimize_indices, None):
            if step is None:
                optimize(graph, "main", None, run_here, settings=QUICK)
            else:
                step(graph, "main", None, QUICK)
            (row,) = index_rows(graph, "by_name")
            assert row["rows_not_indexed"] == 0
            table = opened(graph, PERSON)
            if kind == "INVERTED":
                assert table.to_table(full_text_query="p3")["id"].to_pylist() == ["p3"]
            else:
                query = queries.get(kind, "name = 'p3'")
                assert table.to_table(filter=query)["id"].to_pylist() == ["p3"]


def test_a_dropped_index_is_gone_and_an_unknown_one_is_refused(graph: Storage) -> None:
    create_index(graph, "main", PERSON, "age", "BITMAP", None, QUICK)
    drop_index(graph, "main", PERSON, "age_idx", QUICK)
    assert index_rows(graph, "age_idx") == []
    with pytest.raises(OptionError, match="OMNIGRAPH_OPTION"):
        drop_index(graph, "main", PERSON, "age_idx", QUICK)


@pytest.mark.parametrize(("column", "kind"), [("nothing", "BTREE"), ("age", "IVF_PQ")])
def test_a_column_or_type_that_is_not_there_is_refused(
    graph: Storage, column: str, kind: str
) -> None:
    with pytest.raises(OptionError, match="OMNIGRAPH_OPTION"):
        create_index(graph, "main", PERSON, column, kind, None, QUICK)


def test_deleted_rows_are_materialized_and_the_others_keep_their_ids(tmp_path: Path) -> None:
    storage = many_fragments(tmp_path, rows=100, fragments=10)
    opened(storage, PERSON).delete("age % 2 = 1")
    lance_graphs.publish_head(storage, PERSON)
    before = versions_of_rows(storage, PERSON)
    assert before.num_rows == 50
    create_index(storage, "main", PERSON, "id", "BTREE", None, QUICK)
    optimize(storage, "main", None, run_here, target_rows=20, settings=QUICK)
    table = opened(storage, PERSON)
    assert sum(one.num_deletions for one in table.get_fragments()) == 0
    assert versions_of_rows(storage, PERSON) == before
    assert found_by_index(storage, PERSON, "n4") == ["n4"]
    assert found_by_index(storage, PERSON, "n5") == []


# --- rule 26 -----------------------------------------------------------------------------------


def test_rows_of_a_dead_writer_at_the_head_are_not_published_by_maintenance(graph: Storage) -> None:
    before = ids(graph, PERSON)
    for step in (
        lambda: create_index(graph, "main", PERSON, "id", "BTREE", None, QUICK),
        lambda: optimize(graph, "main", None, run_here, settings=QUICK),
    ):
        orphan(graph, PERSON, ["ghost"])
        step()
        assert ids(graph, PERSON) == before
    assert fragments(graph, PERSON) <= 2
    assert records(graph) == []


@pytest.mark.parametrize("hit", [1, 2, 3])
def test_rows_that_land_under_or_between_its_versions_unpublished_are_not_adopted(
    graph: Storage, hit: int
) -> None:
    create_index(graph, "main", PERSON, "id", "BTREE", None, QUICK)
    before = ids(graph, PERSON)
    commits: list[int] = []

    def rival() -> None:
        commits.append(1)
        if len(commits) == hit:
            orphan(graph, PERSON, ["ghost"])

    _faults.arm("table.sending", rival)
    optimize(graph, "main", [PERSON], run_here, settings=QUICK)
    assert len(commits) > 3, "it took all of it back and began again"
    assert ids(graph, PERSON) == before
    assert fragments(graph, PERSON) <= 2
    assert found_by_index(graph, PERSON, "p3") == ["p3"]


def test_a_round_that_is_lost_leaves_what_the_rival_has_made_at_the_head(graph: Storage) -> None:
    _faults.arm("table.sending", once(lambda: orphan(graph, PERSON, ["rival"])))
    hurried = Settings(orphan_grace_seconds=0.15, commit_timeout_seconds=0.0)
    with pytest.raises(CommitTimeoutError, match="OMNIGRAPH_COMMIT_TIMEOUT"):
        optimize(graph, "main", [PERSON], run_here, settings=hurried)
    left = graph.dataset(layout.table_location(PERSON))
    assert len(left.get_fragments()) == 11
    assert left.count_rows() == 11
    assert records(graph) == []


def test_an_append_that_is_published_while_an_index_is_built_is_kept(graph: Storage) -> None:
    published: list[int] = []

    def rival() -> None:
        published.append(write(graph, {PERSON: ["rival"]}).graph_version)

    _faults.arm("table.sending", once(rival))
    before = load(graph).graph_version
    done = create_index(graph, "main", PERSON, "id", "BTREE", None, QUICK)
    assert published[0] < done.graph_version
    assert "rival" in ids(graph, PERSON)
    assert [row["rows_not_indexed"] for row in index_rows(graph, "id_idx")] == [1]
    assert found_by_index(graph, PERSON, "rival") == ["rival"]
    assert before < published[0]


def test_a_table_that_is_overwritten_while_it_is_compacted_is_compacted_anew(
    graph: Storage,
) -> None:
    runs: list[str] = []

    def run(storage: Storage, entry: TableEntry, tasks: Sequence[str]) -> list[str]:
        done = run_here(storage, entry, tasks)
        if entry.table_key == PERSON:
            runs.append(entry.table_key)
            if len(runs) == 1:
                write(graph, {PERSON: ["new"]}, "overwrite")
                write(graph, {PERSON: ["newer"]})
        return done

    done = optimize(graph, "main", None, run, settings=QUICK)
    assert runs == [PERSON, PERSON]
    assert ids(graph, PERSON) == ["new", "newer"]
    assert [one.table_key for one in done.tables] == [KNOWS, PERSON]
    assert fragments(graph, PERSON) <= 2


@pytest.mark.long
def test_a_table_that_loses_again_and_again_ends_in_a_typed_error_and_stays_as_it_is(
    graph: Storage,
) -> None:
    def run(storage: Storage, entry: TableEntry, tasks: Sequence[str]) -> list[str]:
        write(graph, {entry.table_key: ["x", "y"]}, "overwrite")
        write(graph, {entry.table_key: ["z"]})
        return run_here(storage, entry, tasks)

    with pytest.raises(CommitTimeoutError, match="OMNIGRAPH_COMMIT_TIMEOUT"):
        optimize(graph, "main", [PERSON], run, settings=QUICK)
    assert ids(graph, PERSON) == ["x", "y", "z"]
    assert head(graph, PERSON) == load(graph).version(PERSON)
    assert records(graph) == []


@pytest.mark.parametrize(
    "point", ["commit.record_written", "table.sending", "table.landed", "commit.tables_done"]
)
def test_a_maintenance_that_dies_is_rolled_back_by_the_next_write(
    graph: Storage, point: str
) -> None:
    create_index(graph, "main", PERSON, "id", "BTREE", None, QUICK)
    before = ids(graph, PERSON)
    _faults.arm(point, die)
    with pytest.raises(Died):
        optimize(graph, "main", None, run_here, settings=QUICK)
    _faults.disarm()
    assert len(records(graph)) == 1
    assert ids(graph, PERSON) == before
    write(graph, {PERSON: ["after"]}, orphanGraceSeconds="0.01")
    assert ids(graph, PERSON) == sorted([*before, "after"])
    assert found_by_index(graph, PERSON, "after") == ["after"]
    assert found_by_index(graph, PERSON, "p3") == ["p3"]


def test_a_published_maintenance_that_dies_is_not_rolled_back(graph: Storage) -> None:
    _faults.arm("commit.after_publish", die)
    with pytest.raises(Died):
        optimize(graph, "main", None, run_here, settings=QUICK)
    _faults.disarm()
    write(graph, {COMPANY: ["after"]}, orphanGraceSeconds="0.01")
    assert fragments(graph, PERSON) <= 2
    assert records(graph) == []
    assert [row["version"] for row in frame(graph, "history")][1] == load(graph).graph_version - 1


def test_a_store_that_fails_leaves_the_tables_as_they_were(graph: Storage) -> None:
    _faults.arm("commit.tables_done", "raise")
    with pytest.raises(StorageError, match="OMNIGRAPH_STORAGE"):
        optimize(graph, "main", None, run_here, settings=QUICK)
    _faults.disarm()
    assert fragments(graph, PERSON) == 10
    assert records(graph) == []
    write(graph, {PERSON: ["after"]}, orphanGraceSeconds="30")
    assert "after" in ids(graph, PERSON)


def test_nothing_is_left_of_the_versions_that_indices_were_built_on(graph: Storage) -> None:
    create_index(graph, "main", PERSON, "id", "BTREE", None, QUICK)
    write(graph, {PERSON: ["more"]})
    optimize(graph, "main", None, run_here, settings=QUICK)
    names = [info.path.rsplit("/", 1)[-1] for info in graph.list("nodes") + graph.list("edges")]
    assert [name for name in names if name.startswith("d") and name.endswith("manifest")] == []


# --- branches --------------------------------------------------------------------------------------


def test_on_a_branch_only_its_own_tables_are_compacted_and_main_stays(graph: Storage) -> None:
    create_index(graph, "main", PERSON, "id", "BTREE", None, QUICK)
    branches.make(graph, "dev")
    for number in range(3):
        branches.write_ids(graph, "dev", PERSON, [f"d{number}"])
    main = load(graph)
    done = optimize(graph, "dev", None, run_here, settings=QUICK)
    assert [(one.table_key, one.fragments_before) for one in done.tables] == [(PERSON, 13)]
    assert load(graph).tables == main.tables
    assert fragments(graph, PERSON, "dev") <= 3, "covered and new ones are gathered apart"
    assert "d2" in branches.ids_at(graph, PERSON, "dev")
    dataset = opened(graph, PERSON, "dev")
    for name in ("d0", "p0", "first"):
        assert dataset.to_table(filter=f"id = '{name}'")["id"].to_pylist() == [name]
    assert "ScalarIndexQuery" in dataset.scanner(filter="id = 'd0'").explain_plan()
    optimize(graph, "dev", None, run_here, settings=QUICK)
    assert fragments(graph, PERSON, "dev") <= 2


def test_an_index_on_an_inherited_table_belongs_to_the_branch_alone(graph: Storage) -> None:
    branches.make(graph, "dev")
    create_index(graph, "dev", PERSON, "age", "BTREE", None, QUICK)
    assert index_rows(graph, "age_idx") == []
    assert "age_idx" in [one.name for one in indices.present(opened(graph, PERSON, "dev"))]
    branches.write_ids(graph, "dev", PERSON, ["d"])
    assert "d" in branches.ids_at(graph, PERSON, "dev")


def test_an_index_that_is_dropped_while_a_table_is_compacted_stays_dropped(graph: Storage) -> None:
    create_index(graph, "main", PERSON, "id", "BTREE", None, QUICK)
    runs: list[int] = []

    def run(storage: Storage, entry: TableEntry, tasks: Sequence[str]) -> list[str]:
        if not runs:
            drop_index(graph, "main", PERSON, "id_idx", QUICK)
        runs.append(1)
        return run_here(storage, entry, tasks)

    optimize(graph, "main", [PERSON], run, settings=QUICK)
    assert len(runs) == 2
    assert index_rows(graph, "id_idx") == []
    assert fragments(graph, PERSON) <= 2


# --- graphs of the engine --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("generation", "name"), [(g[0], g[1]) for g in graphs.ALL_GRAPHS if g[0] != "newer"]
)
def test_a_graph_of_the_engine_reads_the_same_after_optimize(
    generation: str, name: str, tmp_path: Path
) -> None:
    storage = Storage.at(str(graphs.unpack(generation, name, tmp_path)))
    expected = {branch: everything(storage, branch) for branch in branches.names(storage)}
    indexed = {row["table_key"]: row["name"] for row in frame(storage, "indexes")}
    keyed = next(key for key in expected["main"] if key.startswith("node:"))
    create_index(storage, "main", keyed, "id", "BTREE", "id_idx", QUICK)
    optimize(storage, "main", None, run_here, settings=QUICK)
    assert {branch: everything(storage, branch) for branch in expected} == expected
    assert {row["table_key"]: row["name"] for row in frame(storage, "indexes")} == indexed
    assert {row["rows_not_indexed"] for row in frame(storage, "indexes")} <= {0}


def everything(storage: Storage, branch: str) -> dict[str, list[str]]:
    snapshot = load(storage, branch)
    return {
        key: sorted(map(str, read_table(storage, snapshot, key).to_pylist()))
        for key in snapshot.tables
    }


def test_the_engines_auto_cleanup_takes_no_version_during_maintenance(graph: Storage) -> None:
    place = layout.table_location(PERSON)
    short = {"lance.auto_cleanup.interval": "1", "lance.auto_cleanup.older_than": "0s"}
    graph.dataset(place).update_config(short)
    lance_graphs.publish_head(graph, PERSON)
    published = load(graph)
    before = set(refs.kept_versions(graph, place, None))
    create_index(graph, "main", PERSON, "id", "BTREE", None, QUICK)
    optimize(graph, "main", None, run_here, settings=QUICK)
    assert before < set(refs.kept_versions(graph, place, None))
    assert store.keys(graph.dataset(place)) == []
    assert read_table(graph, published, PERSON).num_rows == 10
