"""Make a graph in the form of today's engines, with the tables of the write that makes it.

There the schema files name exactly the tables that are published, so a graph isn't made empty: its
tables, without rows, are part of its first commit. `__manifest` is created last, in one commit of
which one of several creators succeeds. It holds all that the three schema files follow from (the
types, and the domain of their ids), so whoever comes next puts files that are missing, or that a
slower creator has put, as they must be. What a dead creator left without a `__manifest` is no graph
to anybody, and is used again, or replaced. Runs on the driver.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from omnigraph_spark import _faults
from omnigraph_spark import schema as engine_schema
from omnigraph_spark.errors import OptionError, StorageError, UnsupportedError
from omnigraph_spark.manifest import formats
from omnigraph_spark.manifest.lineage import rows_of
from omnigraph_spark.manifest.rows import (
    EDGE_KEY,
    IDENTITY_SCHEMA,
    OURS,
    PRIMARY_KEY_ANNOTATION,
    VERSION,
    AnyRow,
    CommitRow,
    TableRow,
    VersionRow,
    to_arrow,
)
from omnigraph_spark.manifest.snapshot import open_main, read_rows
from omnigraph_spark.schema import ir2
from omnigraph_spark.schema.model import SYSTEM_COLUMNS, EdgeType, EngineSchema, NodeType
from omnigraph_spark.storage import layout
from omnigraph_spark.storage.ids import new_ulid
from omnigraph_spark.storage.lance_errors import DatasetNotFoundError, Outcome, outcome_of
from omnigraph_spark.storage.layout import Identity
from omnigraph_spark.storage.store import Storage

if TYPE_CHECKING:
    from lance import LanceDataset

OF_TODAY = 6
"""The form of the graphs of today's engines, by the stamp of their `__manifest`."""
FORMS: Mapping[int, tuple[int, ...]] = {2: (1, 2, 3), OF_TODAY: (OF_TODAY,)}
"""The stamps that graphs of each form have."""
_MADE = "made"
"""Key in our part of one version row's metadata: the text of the schema, the domain of its ids."""
_FIRST_VERSION = 1

_log = logging.getLogger(__name__)


def is_missing(storage: Storage, form: int) -> bool:
    """Return whether there is no graph yet; one that is there must have the form.

    The schema files of a graph that was just made are completed if its maker died.

    Raises:
        OptionError: the graph that is there has another form.
        UnsupportedManifestVersion: its stamp is unknown.
        StorageError: the store failed.
    """
    try:
        manifest = storage.dataset(layout.MANIFEST)
    except DatasetNotFoundError:
        return True
    stamp = formats.stamp_of(manifest)
    if stamp not in FORMS[form]:
        raise OptionError(
            f"Option graphFormat is {form}, and the graph that is there has another form",
            expected=f"a graph with one of the stamps {', '.join(map(str, FORMS[form]))}, or none",
            found=f"stamp {stamp}",
            hint="Leave graphFormat out to write to the graph as it is, or copy it with"
            " OmniGraph.convert(new_uri, format)",
        )
    if form == OF_TODAY:
        _complete(storage, manifest)
    return False


def make(
    storage: Storage,
    types: EngineSchema,
    edge_keys: Mapping[str, Sequence[str]] | None = None,
    text: str | None = None,
) -> None:
    """Make a graph with a table without rows for each type; one that is there stays as it is.

    `edge_keys` are the columns that the ids of a table's edges are made from, by table key; `text`
    is what `_schema.pg` says of the types where that is more than the types alone (interfaces).

    Raises:
        UnsupportedError: a column that the engine can't type or name.
        OptionError, SchemaMismatchError: a type that the engine's schema can't have.
        StorageError: the store failed, or a table's folder holds something else; no graph was made.
    """
    refuse_unspellable(types)
    engine_schema.types_to_add(EngineSchema(), types)
    text = engine_schema.render_pg(types.types()) if text is None else text
    domain = new_ulid()
    ir_text = ir2.new_ir(engine_schema.parse_pg(text), domain)
    pairs = ir2.table_ids(ir2.document(ir_text))
    rows = _rows(storage, types, pairs, {"text": text, "domain": domain}, edge_keys or {})
    _faults.point("new_graph.tables_made")
    # Before the graph is there: an engine refuses one without them. Another process may have made
    # one meanwhile, and changed it: its files stay.
    for name, content in zip(layout.SCHEMA_FILES, _files(text, ir_text), strict=True):
        storage.put_new(name, content.encode("utf-8"))
    _faults.point("new_graph.files_put")
    try:
        stamped = IDENTITY_SCHEMA.with_metadata({formats.STAMP_KEY: str(OF_TODAY)})
        manifest = storage.create_dataset(layout.MANIFEST, to_arrow(rows, pairs).cast(stamped))
    except StorageError as error:
        if outcome_of(error.__cause__ or error) is not Outcome.CONFLICT:
            raise
        _log.info("another process has made the graph at %s", storage.root)
        manifest = storage.dataset(layout.MANIFEST)
    _faults.point("new_graph.made")
    formats.remember(storage, manifest)
    _complete(storage, manifest)


def table_schema(one: NodeType | EdgeType) -> pa.Schema:
    """Return the columns of a new table in the order that today's engines need.

    `id`, then an edge's endpoints, then properties by name; `id` is the primary key, which can't be
    added later.
    """
    kind, _ = layout.split_table_key(one.table_key)
    key = {PRIMARY_KEY_ANNOTATION: "true"}
    fixed = [
        pa.field(name, pa.utf8(), nullable=False, metadata=key if name == "id" else None)
        for name in SYSTEM_COLUMNS[kind]
    ]
    properties = sorted(one.properties, key=lambda p: p.name)
    return pa.schema([*fixed, *(p.arrow_field() for p in properties)])


def refuse_unspellable(types: EngineSchema) -> None:
    """Refuse types with a column that the engine can't see: today's engines know all columns.

    Raises:
        UnsupportedError: names the column.
    """
    for table in types.types():
        for left in table.left_out:
            raise UnsupportedError(
                f"{table.table_key}.{left.column} can't be a column of a graph of form {OF_TODAY}:"
                f" {left.reason}",
                expected="columns that the engine has a type and a name for",
                found=left.column,
                hint="Nothing was made. Cast or rename the column, leave it out, or make the graph"
                " in form 2",
            )


def empty_table(
    storage: Storage, one: NodeType | EdgeType, pair: Identity, ours: Mapping[str, Any]
) -> tuple[TableRow, VersionRow]:
    """Make a table without rows, and return the rows by which it is published.

    Raises:
        StorageError: the store failed, or its folder holds something else.
    """
    key, location = one.table_key, pair.location(one.table_key)
    _make_table(storage, location, table_schema(one))
    metadata = {**_metadata(storage, location), OURS: dict(ours)}
    return TableRow(key, location, pair), VersionRow(key, _FIRST_VERSION, None, 0, metadata)


def _make_table(storage: Storage, location: str, schema: pa.Schema) -> None:
    """Make a table's dataset without rows; another creator of the same graph makes the same."""
    try:
        storage.create_dataset(location, schema.empty_table())
    except StorageError as error:
        if outcome_of(error.__cause__ or error) is not Outcome.CONFLICT:
            raise
        existing = storage.dataset(location)
        same = existing.schema.equals(schema, check_metadata=True)
        if not same or existing.version != _FIRST_VERSION or existing.count_rows():
            raise StorageError(
                f"The folder {location} holds another table, and there is no graph",
                expected="an empty folder, or none",
                found=f"{existing.count_rows()} rows at version {existing.version}",
                hint="Nothing was made. If no other process is making a graph there, delete"
                f" {storage.uri(location)}, or choose another path",
            ) from error


def _rows(
    storage: Storage,
    types: EngineSchema,
    pairs: Mapping[str, Identity],
    made: Mapping[str, str],
    edge_keys: Mapping[str, Sequence[str]],
) -> list[AnyRow]:
    commit_id = new_ulid()
    rows: list[AnyRow] = []
    for table_type in types.types():
        key = table_type.table_key
        ours: dict[str, Any] = {"publish_id": commit_id}
        if not rows:
            ours[_MADE] = dict(made)
        if edge_keys.get(key):
            ours[EDGE_KEY] = list(edge_keys[key])
        rows += empty_table(storage, table_type, pairs[key], ours)
    now = time.time_ns() // 1000
    rows += rows_of(CommitRow(commit_id, _FIRST_VERSION, None, None, now))
    return rows


def _metadata(storage: Storage, location: str) -> dict[str, Any]:
    path = f"{location}/_versions/{layout.v2_manifest_name(_FIRST_VERSION)}"
    info = storage.head(path)
    if info is None:
        raise StorageError(f"{storage.uri(path)} was just written, and isn't there")
    return {
        "manifest_path": storage.object_path(path),
        "manifest_size": info.size,
        "e_tag": info.e_tag,
        "naming_scheme": "V2",
    }


def _complete(storage: Storage, manifest: LanceDataset) -> None:
    """Put the schema files of a graph without a publish, where they aren't as they were made."""
    if manifest.version != _FIRST_VERSION:
        return
    newest = open_main(storage)  # the one that was given may be older
    if newest.version != _FIRST_VERSION:
        return
    notes = (
        json.loads(row["metadata"]).get(OURS, {}).get(_MADE)
        for row in read_rows(newest).to_pylist()
        if row["object_type"] == VERSION
    )
    made = next((note for note in notes if note is not None), None)
    if made is None:
        return
    text = made["text"]
    ir_text = ir2.new_ir(engine_schema.parse_pg(text), made["domain"])
    existing = [storage.get(name) for name in layout.SCHEMA_FILES]
    if existing != [content.encode("utf-8") for content in _files(text, ir_text)]:
        _put_files(storage, text, ir_text)


def _files(text: str, ir_text: str) -> tuple[str, str, str]:
    return text, ir_text, ir2.state_json(ir_text)


def _put_files(storage: Storage, text: str, ir_text: str) -> None:
    for name, content in zip(layout.SCHEMA_FILES, _files(text, ir_text), strict=True):
        storage.put(name, content.encode("utf-8"))
