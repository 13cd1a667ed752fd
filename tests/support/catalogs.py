"""Graphs that are only a catalog: published versions of tables whose datasets don't exist.

Enough for what looks at `__manifest` and the lineage alone.
"""

from __future__ import annotations

from omnigraph_spark.manifest.publisher import Publish, publish
from omnigraph_spark.manifest.rows import OURS, ManifestRow, TableRow, VersionRow, to_arrow
from omnigraph_spark.storage import layout
from omnigraph_spark.storage.ids import new_ulid
from omnigraph_spark.storage.store import Storage


def version_row(
    key: str, version: int, publish_id: str | None, actor: str | None = None
) -> VersionRow:
    """Return a version row; without a publish id it looks like one of the engine's."""
    metadata: dict[str, object] = {"naming_scheme": "V2"}
    if publish_id is not None:
        metadata[OURS] = {"publish_id": publish_id} | ({"actor": actor} if actor else {})
    return VersionRow(key, version, None, version, metadata)


def publish_version(
    storage: Storage, key: str, version: int, *, actor: str | None = None
) -> tuple[str, int]:
    """Publish a version of a table and return (publish id, graph version)."""
    publish_id = new_ulid()
    changes: list[ManifestRow] = [version_row(key, version, publish_id, actor)]
    if version == 1:
        changes.insert(0, TableRow(key, layout.table_location(key)))
    done = publish(storage, Publish(layout.MAIN, publish_id, tuple(changes)))
    return publish_id, done.graph_version


def publish_like_the_engine(
    storage: Storage,
    key: str,
    version: int,
    branch: str = layout.MAIN,
    publish_id: str | None = None,
) -> int:
    """Merge a version row without our metadata into a branch's `__manifest`; return its version."""
    manifest = storage.dataset(layout.MANIFEST, branch)
    rows = to_arrow(
        [TableRow(key, layout.table_location(key)), version_row(key, version, publish_id)]
    )
    (
        manifest.merge_insert("object_id")
        .when_matched_update_all()
        .when_not_matched_insert_all()
        .conflict_retries(0)
        .use_index(False)
        .execute(rows)
    )
    return int(manifest.version)
