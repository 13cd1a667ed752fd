"""Plans cover every live row exactly once, in partitions of the size asked for."""

from __future__ import annotations

import pickle
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import IntegerType, LongType, StringType, StructField, StructType

from omnigraph_spark import options
from omnigraph_spark.errors import OptionError, SchemaMismatchError, StorageError
from omnigraph_spark.manifest.snapshot import Snapshot, TableEntry
from omnigraph_spark.read import plan
from omnigraph_spark.spark.frame_schema import read_schema
from omnigraph_spark.spark.reader import OmnigraphReader
from omnigraph_spark.storage.store import Storage
from tests.support.spark_filters import EqualTo, GreaterThan, In, IsNull, LessThan

KEY, OTHER, EMPTY = "node:Thing", "node:Other", "edge:Empty"
_PLACES = {KEY: "nodes/0a", OTHER: "nodes/0b", EMPTY: "edges/0c"}
ROWS = 1000
SMALL = 300


def _write(root: Path, key: str, table: pa.Table, **asked: Any) -> Any:
    import lance

    return lance.write_dataset(
        table,
        str(root / _PLACES[key]),
        enable_stable_row_ids=True,
        data_storage_version="2.2",
        **asked,
    )


def _things(first: int, count: int) -> pa.Table:
    numbers = list(range(first, first + count))
    schema = pa.schema([pa.field("id", pa.utf8(), nullable=False), pa.field("n", pa.int64())])
    return pa.table([[f"i{n}" for n in numbers], numbers], schema=schema)


@pytest.fixture
def graph(tmp_path: Path) -> Path:
    """Three tables: one large fragment with deletions and ten small ones; five rows; none."""
    _write(tmp_path, KEY, _things(0, ROWS - SMALL))
    _write(tmp_path, KEY, _things(ROWS - SMALL, SMALL), mode="append", max_rows_per_file=30)
    dataset = Storage.at(str(tmp_path)).dataset(_PLACES[KEY])
    dataset.delete("n % 7 = 3")
    dataset.delete("n >= 940 AND n < 970")  # a whole fragment
    _write(tmp_path, OTHER, pa.table({"id": list("abcde"), "age": pa.array([1, 2, 3, None, 5])}))
    edges = pa.schema([pa.field(name, pa.utf8(), nullable=False) for name in ("id", "src", "dst")])
    _write(tmp_path, EMPTY, edges.empty_table())
    return tmp_path


ALIVE = [n for n in range(ROWS) if n % 7 != 3 and not 940 <= n < 970]


def _snapshot(root: Path) -> Snapshot:
    storage = Storage.at(str(root))
    tables = {
        key: TableEntry(key, place, storage.dataset(place).version, None, 0)
        for key, place in sorted(_PLACES.items())
    }
    return Snapshot("main", 1, tables, dict(_PLACES), {})


def _reader(
    root: Path, schema: StructType | None = None, filters: list[Any] | None = None, **asked: str
) -> OmnigraphReader:
    storage, pinned = Storage.at(str(root)), _snapshot(root)
    wanted = options.ReadOptions.of(options.parse({"path": str(root), **asked}))
    found, stored = read_schema(storage, pinned, wanted)
    asked_for = found if schema is None else schema
    reader = OmnigraphReader(storage, pinned, wanted, asked_for, stored)
    if filters is not None:
        assert list(reader.push(filters)) == []
    return reader


def _batches(reader: OmnigraphReader) -> Iterator[pa.RecordBatch]:
    tasks = pickle.loads(pickle.dumps(reader))
    for partition in pickle.loads(pickle.dumps(reader.partitions())):
        yield from tasks.read(partition)


def _rows(reader: OmnigraphReader) -> list[dict[str, Any]]:
    return [row for batch in _batches(reader) for row in batch.to_pylist()]


def _numbers(reader: OmnigraphReader) -> list[int]:
    return sorted(row["n"] for row in _rows(reader))


# --- partitions ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("size", "rows"),
    [
        ("1", None),
        *(
            (size, rows)
            for size in ("500", "1500", "4k", "1g")
            for rows in (None, "1", "7", "9999")
        ),
    ],
)
def test_every_live_row_is_read_once_however_it_is_cut(
    graph: Path, size: str, rows: str | None
) -> None:
    sized = {} if rows is None else {"batchSize": rows}
    assert _numbers(_reader(graph, table=KEY, maxPartitionBytes=size, **sized)) == ALIVE


@pytest.mark.parametrize("size", ["100", "500", "1500", "1g"])
def test_filtered_rows_are_read_once_however_the_table_is_cut(graph: Path, size: str) -> None:
    wanted = [GreaterThan(("n",), 400), LessThan(("n",), 900)]
    expected = [n for n in ALIVE if 400 < n < 900]
    assert _numbers(_reader(graph, filters=wanted, table=KEY, maxPartitionBytes=size)) == expected
    assert _numbers(
        _reader(graph, table=KEY, maxPartitionBytes=size, filter="n > 400 AND n < 900 -- or not")
    ) == expected  # fmt: skip


def test_small_fragments_share_a_partition_and_large_ones_are_split(graph: Path) -> None:
    fragments = Storage.at(str(graph)).dataset(_PLACES[KEY]).get_fragments()
    sizes = {f.fragment_id: f.metadata.files[0].file_size_bytes for f in fragments}
    most = 2200
    assert sizes[0] > most > 2 * sizes[1]
    planned = _reader(graph, table=KEY, maxPartitionBytes=str(most)).partitions()
    ranges = [s for p in planned for s in p.value if s.rows is not None]
    assert {s.fragments for s in ranges} == {(0,)}
    assert [s.rows[0] for s in ranges[1:]] == [s.rows[1] for s in ranges[:-1]]
    assert max(s.rows[1] - s.rows[0] for s in ranges) / (ROWS - SMALL) * sizes[0] <= most * 1.1
    whole = [[n for s in p.value if s.rows is None for n in s.fragments] for p in planned]
    assert max(map(len, whole)) > 1
    assert all(sum(sizes[n] for n in numbers) <= most for numbers in whole)


@pytest.mark.parametrize(
    ("fit", "expected"), [(1, [1] * 7), (2, [2, 2, 2, 1]), (3, [3, 3, 1]), (5, [4, 3]), (6, [4, 3])]
)
def test_partitions_are_as_even_as_fragments_allow(
    tmp_path: Path, fit: int, expected: list[int]
) -> None:
    """Seven like fragments, so many of which fit into a partition: no task waits for a long one."""
    import lance

    rows = pa.table({"id": [f"{n:05d}" for n in range(700)]})
    place = "nodes/0000000000000000"
    made = lance.write_dataset(rows, str(tmp_path / place), max_rows_per_file=100)
    entry = TableEntry("node:T", place, made.version, None, 700)
    size = made.get_fragments()[0].metadata.files[0].file_size_bytes
    datasets = plan.open_tables(Storage.at(str(tmp_path)), [entry])
    most = size * fit + size // 2
    planned = plan.plan([entry], datasets, most, {"node:T": False}, {"node:T": 1.0})
    assert [sum(len(scan.fragments) for scan in scans) for scans in planned] == expected
    assert [n for scans in planned for scan in scans for n in scan.fragments] == [*range(7)]


def test_even_partitions_are_never_more_or_larger() -> None:
    seed = random.randrange(1 << 32)
    chance = random.Random(seed)
    for _ in range(300):
        sizes = [chance.randrange(0, 1 << chance.randrange(1, 28)) for _ in range(30)]
        most = chance.randrange(1, 1 << 28)
        groups = plan.shared_out([(size, size) for size in sizes], most)
        assert [size for group in groups for size in group] == sizes, seed
        assert all(sum(group) <= most or len(group) == 1 for group in groups), seed
        filled, room = 0, -1
        for size in sizes:
            filled, room = (filled, room - size) if size <= room else (filled + 1, most - size)
        assert len(groups) <= filled, seed


def test_few_columns_make_fewer_partitions_and_give_every_row(graph: Path) -> None:
    cut = {"table": KEY, "maxPartitionBytes": "500"}
    few = _reader(graph, columns="n", **cut)
    assert 1 < len(few.partitions()) < len(_reader(graph, **cut).partitions()) / 2
    assert _numbers(few) == ALIVE


def test_rows_that_an_index_finds_are_asked_for_by_fewer_tasks(graph: Path) -> None:
    cut = {"table": KEY, "maxPartitionBytes": "1500", "filter": "n > 400 AND n < 900"}
    without = len(_reader(graph, **cut).partitions())
    Storage.at(str(graph)).dataset(_PLACES[KEY]).create_scalar_index("n", "BTREE")
    indexed = _reader(graph, **cut)
    assert 1 < len(indexed.partitions()) < without
    assert _numbers(indexed) == [n for n in ALIVE if 400 < n < 900]


def test_a_large_size_makes_one_partition_of_all_small_tables(graph: Path) -> None:
    (only,) = _reader(graph).partitions()
    assert [scan.table_key for scan in only.value] == [OTHER, KEY]


def test_a_filtered_fragment_is_cut_into_few_ranges(graph: Path) -> None:
    planned = _reader(graph, table=KEY, filter="n > 1", maxPartitionBytes="10").partitions()
    ranges = [scan for p in planned for scan in p.value if scan.fragments == (0,)]
    assert len(ranges) == 8


def test_a_table_without_rows_has_no_partitions_and_reads_as_nothing(graph: Path) -> None:
    reader = _reader(graph, table=EMPTY)
    assert reader.partitions() == []
    # What Spark makes of an empty list (fact 5): 4.3 and 4.0.
    assert list(reader.read(InputPartition(None))) == []
    assert list(reader.read(None)) == []


def test_planning_two_thousand_fragments_is_quick(tmp_path: Path) -> None:
    import time

    _write(tmp_path, KEY, _things(0, 4000), max_rows_per_file=2)
    for key in (OTHER, EMPTY):
        _write(tmp_path, key, _things(0, 0))
    reader = _reader(tmp_path, table=KEY)
    start = time.perf_counter()
    planned = reader.partitions()
    assert time.perf_counter() - start < 2
    assert sum(len(scan.fragments) for p in planned for scan in p.value) == 2000


def test_a_fragment_without_a_later_column_reads_as_null(graph: Path) -> None:
    import lance

    dataset = lance.dataset(str(graph / _PLACES[OTHER]))
    dataset.add_columns(pa.schema([pa.field("late", pa.utf8())]))
    lance.write_dataset(pa.table({"id": ["f"], "late": ["x"]}), dataset.uri, mode="append")
    rows = {row["id"]: row["late"] for row in _rows(_reader(graph, table=OTHER))}
    assert rows == {**dict.fromkeys("abcde"), "f": "x"}
    only = _rows(_reader(graph, filters=[IsNull(("late",))], table=OTHER))
    assert sorted(row["id"] for row in only) == list("abcde")


# --- whole-graph frames --------------------------------------------------------------------------


def test_a_pruned_table_is_not_even_opened(graph: Path) -> None:
    reader = _reader(graph, filters=[EqualTo(("_table",), OTHER)])
    (graph / _PLACES[KEY]).rename(graph / "gone")
    assert {row["_table"] for row in _rows(reader)} == {OTHER}


def test_filters_on_a_column_keep_only_tables_that_have_it(graph: Path) -> None:
    assert [row["id"] for row in _rows(_reader(graph, filters=[In(("age",), (2, 5))]))] == [
        "b",
        "e",
    ]
    missing = _rows(_reader(graph, filters=[IsNull(("age",))]))
    assert len(missing) == len(ALIVE) + 1


def test_a_table_that_lacks_a_column_of_the_option_filter_has_null_there(graph: Path) -> None:
    assert {row["_table"] for row in _rows(_reader(graph, filter="age > 1"))} == {OTHER}
    assert {row["_table"] for row in _rows(_reader(graph, filter="NOT age > 1"))} <= {OTHER}
    assert len(_rows(_reader(graph, filter="age IS NULL"))) == len(ALIVE) + 1
    assert len(_rows(_reader(graph, table=OTHER, filter="age IS NULL"))) == 1


def test_the_option_filter_may_name_the_table(graph: Path) -> None:
    only = _rows(_reader(graph, filter=f"_table = '{OTHER}' AND age > 1"))
    assert {row["_table"] for row in only} == {OTHER}
    reader = _reader(graph, filter=f"_table <> '{OTHER}'")
    (graph / _PLACES[OTHER]).rename(graph / "gone")
    assert len(_rows(reader)) == len(ALIVE)


@pytest.mark.parametrize(
    "text",
    [
        "nosuch = 1",
        "_table = 5",
        "age >",
        "age > 'x'",
        "age = 1) OR (1 = 1",
        "age = 1 OR (1 = 1",
        "age = 1 /* x",
        "age = 1 -- \\\n OR 1 = 1",
        "/* /* */ age = 1 -- */",
        "age IN ()",
        "age IN (1, 2",
        "CASE WHEN age = 1 THEN true END",
        "(" * 300 + "age = 1" + ")" * 300,
        "age = 1; DROP TABLE t",
        "age",
        " ",
    ],
)
def test_a_filter_that_is_no_predicate_is_refused_while_planning(graph: Path, text: str) -> None:
    with pytest.raises(OptionError, match=r"OMNIGRAPH_OPTION.*[Ff]ilter"):
        _reader(graph, filter=text).partitions()


def test_brackets_in_text_names_and_comments_dont_count(graph: Path) -> None:
    assert _rows(_reader(graph, table=OTHER, filter="id = ')' -- (")) == []
    assert len(_rows(_reader(graph, table=OTHER, filter="id <> '((' AND `age` > 1"))) == 3


# --- columns -------------------------------------------------------------------------------------


def test_columns_are_read_in_the_order_that_was_asked_for(graph: Path) -> None:
    reader = _reader(graph, table=KEY, columns="n, id")
    assert next(_batches(reader)).schema.names == ["n", "id"]
    with pytest.raises(OptionError, match=r"OMNIGRAPH_OPTION.*'nope'.*id, n"):
        _reader(graph, table=KEY, columns="id,nope")


def test_a_users_schema_may_drop_and_reorder(graph: Path) -> None:
    schema = StructType([StructField("n", LongType()), StructField("id", StringType())])
    first = next(_batches(_reader(graph, schema=schema, table=KEY)))
    assert first.schema.names == ["n", "id"]
    assert all(field.nullable for field in first.schema)
    wide = StructType([StructField("age", LongType())])
    assert len(_rows(_reader(graph, schema=wide))) == len(ALIVE) + 5


@pytest.mark.parametrize(
    "field",
    [
        StructField("n", IntegerType()),
        StructField("N", LongType()),
        StructField("other", LongType()),
        StructField("n", LongType(), nullable=False),
    ],
    ids=str,
)
def test_a_users_schema_may_not_rename_add_or_retype(graph: Path, field: StructField) -> None:
    with pytest.raises(SchemaMismatchError, match=f"OMNIGRAPH_SCHEMA_MISMATCH.*{field.name}"):
        _reader(graph, schema=StructType([field]), table=KEY)


def test_metadata_columns_tell_row_ids_and_versions(graph: Path) -> None:
    names = "_rowid,_row_created_at_version,_row_last_updated_at_version"
    rows = _rows(_reader(graph, table=KEY, metadataColumns=names))
    assert {row["n"]: row["_rowid"] for row in rows} == {n: n for n in ALIVE}
    assert {row["_row_created_at_version"] for row in rows if row["n"] < ROWS - SMALL} == {1}
    assert {row["_row_created_at_version"] for row in rows if row["n"] >= ROWS - SMALL} == {2}
    with pytest.raises(OptionError, match=r"OMNIGRAPH_OPTION.*_rowaddr"):
        _reader(graph, table=KEY, metadataColumns="_rowaddr")


def test_a_frame_of_no_columns_is_refused(graph: Path) -> None:
    with pytest.raises(SchemaMismatchError, match=r"OMNIGRAPH_SCHEMA_MISMATCH.*no columns"):
        _reader(graph, schema=StructType([]), table=KEY)


def test_batches_are_sized_by_bytes_unless_rows_are_given(tmp_path: Path) -> None:
    ids = [str(n) for n in range(64)]
    texts = [ids[n % 10] * (1 << 20) for n in range(64)]
    _write(tmp_path, KEY, pa.table({"id": ids, "t": texts}))
    for key in (OTHER, EMPTY):
        _write(tmp_path, key, _things(0, 0))
    sizes = [batch.nbytes for batch in _batches(_reader(tmp_path, table=KEY))]
    assert len(sizes) >= 4
    assert max(sizes) < 32 << 20
    rows = [batch.num_rows for batch in _batches(_reader(tmp_path, table=KEY, batchSize="3"))]
    assert max(rows) == 3
    assert sum(rows) == 64


# --- failures ------------------------------------------------------------------------------------


def _data_files(graph: Path, key: str = KEY) -> list[Path]:
    return sorted((graph / _PLACES[key] / "data").iterdir(), key=lambda path: path.stat().st_size)


def test_a_missing_table_is_a_typed_error_and_other_tables_still_read(graph: Path) -> None:
    reader = _reader(graph, table=KEY)
    others = _reader(graph, table=OTHER)
    (graph / _PLACES[KEY]).rename(graph / "gone")
    with pytest.raises(StorageError, match=r"OMNIGRAPH_STORAGE.*nodes/0a"):
        reader.partitions()
    assert len(_rows(others)) == 5


@pytest.mark.parametrize("damage", ["missing", "empty", "half", "flipped", "deletions"])
def test_a_damaged_file_is_a_typed_error_and_never_a_short_result(graph: Path, damage: str) -> None:
    reader = _reader(graph, table=KEY)
    path = _data_files(graph)[-1]
    data = path.read_bytes()
    if damage == "missing":
        path.unlink()
    elif damage == "deletions":
        for file in (graph / _PLACES[KEY] / "_deletions").iterdir():
            file.unlink()
    elif damage == "flipped":
        path.write_bytes(data[:-40] + bytes(255 - one for one in data[-40:]))
    else:
        path.write_bytes(data[: 0 if damage == "empty" else len(data) // 2])
    with pytest.raises(StorageError, match=r"OMNIGRAPH_STORAGE.*node:Thing"):
        _rows(reader)


def test_fewer_rows_than_planned_is_an_error(graph: Path) -> None:
    reader = _reader(graph, table=KEY)
    (planned,) = reader.partitions()
    scan = planned.value[0]
    more = type(scan)(**{**scan.__dict__, "expected_rows": scan.expected_rows + 1})
    with pytest.raises(StorageError, match=r"OMNIGRAPH_STORAGE.*another number of rows"):
        list(reader.read(InputPartition((more,))))


def test_a_graph_made_again_at_the_same_place_is_opened_anew(graph: Path) -> None:
    import shutil

    assert len(_rows(_reader(graph, table=OTHER))) == 5
    shutil.rmtree(graph / _PLACES[OTHER])
    _write(graph, OTHER, pa.table({"id": ["z"], "age": pa.array([9])}))
    assert [row["id"] for row in _rows(_reader(graph, table=OTHER))] == ["z"]


@pytest.mark.parametrize(
    ("where", "asked"),
    [
        ("n < 100", True),
        ("n < 200", False),
        ("n < 500", False),
        ("n >= 900", True),
        ("n BETWEEN 450 AND 460", True),
        ("n >= 0", False),
        ("n = 3", True),
        ("id = 'i3'", True),
        ("n >= 0 AND `id` IN ('i3', 'i4')", True),
        ("n >= 0 OR id = 'i3'", False),
        ("NOT (id = 'i3')", False),
        ("name = 'x'", False),
        ("name = 'x' AND n >= 0", False),
    ],
)
def test_an_index_is_asked_where_it_finds_few_rows(
    graph: Path, monkeypatch: pytest.MonkeyPatch, where: str, asked: bool
) -> None:
    """Each task asks it for the rows of the whole table, which takes longer than to read them."""
    monkeypatch.setattr(plan, "_SMALL_ROWS", 10)
    rows = _things(0, ROWS).append_column("name", pa.array(["x"] * ROWS))
    _write(graph, KEY, rows, max_rows_per_file=100, mode="overwrite")
    dataset = Storage.at(str(graph)).dataset(_PLACES[KEY])
    for column in ("id", "n"):
        dataset.create_scalar_index(column, "BTREE")
    dataset = Storage.at(str(graph)).dataset(_PLACES[KEY])
    assert (plan.share_by_index(dataset, where) is not None) == asked
    reader = _reader(graph, table=KEY, filter=where)
    partitions = reader.partitions()
    assert {scan.by_index for one in partitions for scan in one.value} == {asked}
    scan = partitions[0].value[0]
    planned = reader._scanner(dataset, scan, ["id"], where, None).explain_plan()
    assert ("ScalarIndexQuery" in planned) == asked
    found = dataset.scanner(filter=where, columns=["id"], use_scalar_index=False).to_table()
    rows_read = [r for one in partitions for batch in reader.read(one) for r in batch.to_pylist()]
    assert sorted(row["id"] for row in rows_read) == sorted(found["id"].to_pylist())


def test_of_a_small_table_an_index_is_always_asked(graph: Path) -> None:
    dataset = Storage.at(str(graph)).dataset(_PLACES[KEY])
    assert plan.share_by_index(dataset, "n >= 0") is None
    dataset.create_scalar_index("n", "BTREE")
    assert plan.share_by_index(Storage.at(str(graph)).dataset(_PLACES[KEY]), "n >= 0") == 0.25


def test_the_rows_of_an_id_are_no_reason_to_ask_the_index_of_another_column(
    graph: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plan, "_SMALL_ROWS", 10)
    _write(graph, KEY, _things(0, ROWS), max_rows_per_file=100, mode="overwrite")
    dataset = Storage.at(str(graph)).dataset(_PLACES[KEY])
    dataset.create_scalar_index("n", "BTREE")
    dataset = Storage.at(str(graph)).dataset(_PLACES[KEY])
    assert plan.index_answers(dataset, "id = 'i3' AND n >= 0")
    with monkeypatch.context() as patch:
        patch.setattr(plan, "_MOST_FOUND", -1.0)  # whatever a few fragments say is too much
        assert plan.share_by_index(dataset, "id = 'i3' AND n >= 0") is None
        dataset.create_scalar_index("id", "BTREE")
        dataset = Storage.at(str(graph)).dataset(_PLACES[KEY])
        assert plan.share_by_index(dataset, "id = 'i3'") is not None
