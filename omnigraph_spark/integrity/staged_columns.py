"""Columns of a data file that no version names yet: what tasks staged, read on the driver.

Lance's reader of single files counts a blob as one column, and the file has one for each of its
parts: every column that comes behind a blob is out of its reach. A file of a table with blobs is
therefore read through a dataset in memory that has this one file; Lance then goes by field ids.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from omnigraph_spark.schema.property_types import is_blob
from omnigraph_spark.storage import column_numbers
from omnigraph_spark.storage.column_numbers import FieldMap
from omnigraph_spark.storage.lance_errors import translated
from omnigraph_spark.storage.store import Storage

if TYPE_CHECKING:
    from lance import LanceDataset

_BASE = 1


@dataclass(frozen=True)
class StagedFile:
    """One data file of a write's staged fragments; it holds all columns of its rows.

    `folder` is the folder of the table's line below the graph's root, `file` what the fragment says
    of the file, `fields` the field ids that the fragment was staged under.
    """

    folder: str
    rows: int
    file: Mapping[str, Any]
    fields: FieldMap

    @property
    def path(self) -> str:
        """Where the file is, below the graph's root."""
        return f"{self.folder}/data/{self.file['path']}"

    @property
    def bytes(self) -> int:
        """The size of the file, 0 where it isn't known."""
        return int(self.file["file_size_bytes"] or 0)


def schema_of(
    storage: Storage, file: StagedFile, table: pa.Schema, columns: Sequence[str]
) -> pa.Schema:
    """Return the types of some columns of a staged file of a table, as they are read.

    Raises:
        StorageError: the file can't be opened.
    """
    with translated(f"Reading {file.path}"):
        if _has_blobs(table):
            return _dataset(storage, file, table).scanner(columns=list(columns)).projected_schema
        first = storage.data_file(file.path, columns).read_range(0, 1)
        schema: pa.Schema = first.to_table().schema
        return schema


def batches(
    storage: Storage, file: StagedFile, table: pa.Schema, columns: Sequence[str], rows: int
) -> Iterator[pa.RecordBatch]:
    """Yield some columns of a staged file in the order of its rows, `rows` at a time.

    Raises:
        StorageError: the file can't be read.
    """
    with translated(f"Reading {file.path}"):
        if _has_blobs(table):
            dataset = _dataset(storage, file, table)
            read = dataset.to_batches(columns=list(columns), batch_size=rows, scan_in_order=True)
        else:
            reader = storage.data_file(file.path, columns)
            read = reader.read_all(batch_size=rows).to_batches()
    yield from read


def take(
    storage: Storage,
    file: StagedFile,
    table: pa.Schema,
    columns: Sequence[str],
    rows: Sequence[int],
) -> Iterator[pa.RecordBatch]:
    """Yield some columns of some rows (ascending numbers) of a staged file.

    Raises:
        StorageError: the file can't be read.
    """
    with translated(f"Reading {file.path}"):
        if _has_blobs(table):
            taken = _dataset(storage, file, table).take(list(rows), columns=list(columns))
            yield from taken.to_batches()
        else:
            reader = storage.data_file(file.path, columns)
            yield from reader.take_rows(list(rows)).to_batches()


def _has_blobs(table: pa.Schema) -> bool:
    return any(is_blob(field) for field in table)


def _dataset(storage: Storage, file: StagedFile, table: pa.Schema) -> LanceDataset:
    import lance
    from lance.fragment import FragmentMetadata

    plain = {
        "id": 0,
        "files": [{**file.file, "base_id": _BASE}],
        "physical_rows": file.rows,
        "deletion_file": None,
        "row_id_meta": None,
    }
    numbered = column_numbers.renumbered([plain], file.fields, column_numbers.of_new(table))
    base = lance.DatasetBasePath(
        path=storage.uri(file.folder), name=None, is_dataset_root=True, id=_BASE
    )
    fragments = [FragmentMetadata.from_json(json.dumps(fragment)) for fragment in numbered]
    return lance.LanceDataset.commit(
        f"memory://{uuid.uuid4().hex}",
        lance.LanceOperation.Overwrite(table, fragments, initial_bases=[base]),
        storage_options=storage.lance_options(),
    )
