"""How a manifest of an older stamp gets to the one that is written, and which can't be written.

With `manifest/formats.py`, which reads the stamp, the only place that knows stamps. A new on-disk
shape is one format there, one arm in `migrate_internal_schema` and one test. Reads never migrate,
and a stamp is never raised but from none to 2: engines of older stamps would be locked out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from omnigraph_spark import _faults
from omnigraph_spark.errors import CorruptManifestError, UnsupportedManifestVersion
from omnigraph_spark.manifest import formats
from omnigraph_spark.manifest.formats import IMPLICIT, NEW_GRAPHS, STAMP_KEY, stamp_of, unsupported
from omnigraph_spark.manifest.rows import (
    IDENTITY_SCHEMA,
    MANIFEST_SCHEMA,
    PRIMARY_KEY_ANNOTATION,
)
from omnigraph_spark.storage import store
from omnigraph_spark.storage.lance_errors import Outcome, outcome_of, translated, typed

if TYPE_CHECKING:
    from lance import LanceDataset

INTERNAL_MANIFEST_SCHEMA_VERSION = NEW_GRAPHS
_MIGRATOR_ATTEMPTS = 10


def new_manifest_schema() -> pa.Schema:
    """Return the Arrow schema, stamp included, of a `__manifest` that is created now."""
    return MANIFEST_SCHEMA.with_metadata({STAMP_KEY: str(INTERNAL_MANIFEST_SCHEMA_VERSION)})


def check_readable(manifest: LanceDataset) -> None:
    """Refuse a manifest that lacks a column which a read needs; runs on the driver, writes nothing.

    Raises:
        UnsupportedManifestVersion: a newer stamp whose rows this version can't understand.
        CorruptManifestError: a known stamp, and a column is missing or has another type.
    """
    graph_format = formats.of(manifest)
    schema = manifest.schema
    wide = graph_format.has_identities and graph_format.is_writable
    for column in IDENTITY_SCHEMA if wide else MANIFEST_SCHEMA:
        index = schema.get_field_index(column.name)
        if index >= 0 and schema.field(index).type == column.type:
            continue
        if not graph_format.is_writable:
            raise unsupported(graph_format.stamp)
        raise CorruptManifestError(
            f"__manifest has no usable column {column.name}",
            expected=str(column.type),
            found="nothing" if index < 0 else str(schema.field(index).type),
            hint="The graph's catalog is damaged; restore it from a copy",
        )


def is_newer(manifest: LanceDataset) -> bool:
    """Return whether the stamp is one that this version only reads."""
    return not formats.of(manifest).is_writable


def refuse_newer(manifest: LanceDataset) -> None:
    """Refuse to write to a manifest with a newer stamp, before anything changes.

    Raises:
        UnsupportedManifestVersion: the stamp is one that this version only reads, or garbage.
    """
    if is_newer(manifest):
        raise unsupported(stamp_of(manifest))


def is_half_migrated(manifest: LanceDataset) -> bool:
    """Return whether a migration from v1 died between its steps; reads and writes still work."""
    return stamp_of(manifest) == IMPLICIT and bool(_annotated(manifest))


def migrate_internal_schema(manifest: LanceDataset) -> LanceDataset:
    """Return `manifest` at a stamp that is written; runs on the driver at each open for writing.

    In the steady state this is one look at metadata that is loaded already. Each step is safe to
    run again after a crash, and safe against other migrators (rule 29).

    Raises:
        UnsupportedManifestVersion: a stamp that this version can't write.
        StorageError: the store failed; the manifest may be between two steps, the next call goes
            on.
    """
    for _ in range(_MIGRATOR_ATTEMPTS):
        match stamp_of(manifest):
            case stamp if stamp in formats.WRITABLE:
                return manifest
            case 1:
                manifest = _step(manifest)
            case stamp:
                raise unsupported(stamp)
    raise UnsupportedManifestVersion(
        "__manifest is still being migrated by others",
        expected=f"stamp {INTERNAL_MANIFEST_SCHEMA_VERSION}",
        found=f"stamp {stamp_of(manifest)}",
        hint="Run the write again",
        supported=INTERNAL_MANIFEST_SCHEMA_VERSION,
    )


def _step(manifest: LanceDataset) -> LanceDataset:
    """Do the next half step of v1 to v2 and open the manifest again."""
    try:
        _v1_to_v2(manifest)
    except (OSError, ValueError, RuntimeError) as error:
        if outcome_of(error) is not Outcome.CONFLICT and "incompatible" not in str(error).lower():
            raise typed(error, "Migrating __manifest") from error
    with translated("Opening __manifest after a migration step"):
        manifest.checkout_latest()
    return manifest


def _annotated(manifest: LanceDataset) -> list[str]:
    """Return the columns that carry the primary-key annotation."""
    key = PRIMARY_KEY_ANNOTATION.encode()
    return [field.name for field in manifest.schema if key in (field.metadata or {})]


def _v1_to_v2(manifest: LanceDataset) -> None:
    store.strip_auto_cleanup(manifest)
    annotated = _annotated(manifest)
    if annotated not in ([], ["object_id"]):
        raise CorruptManifestError(
            "__manifest has its primary key on another column",
            expected="object_id",
            found=", ".join(annotated),
            hint="Lance can't move it; copy the graph into a new one",
        )
    _faults.point("migrate.before_annotation")
    if not annotated:
        manifest.update_field_metadata({"object_id": {PRIMARY_KEY_ANNOTATION: "true"}})
    _faults.point("migrate.before_stamp")
    manifest.update_schema_metadata({STAMP_KEY: str(INTERNAL_MANIFEST_SCHEMA_VERSION)})
    _faults.point("migrate.after_stamp")
