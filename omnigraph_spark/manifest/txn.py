"""Batches that were written before: `txnAppId`, `txnVersion` in version rows (PROTOCOL 10)."""

from __future__ import annotations

import json

import pyarrow as pa
import pyarrow.compute as pc

from omnigraph_spark.errors import OptionError
from omnigraph_spark.manifest.rows import OURS, VERSION


def txn_versions(rows: pa.Table, app_id: str) -> dict[str, int]:
    """Return the highest `txnVersion` of an application per table, from the version rows."""
    versions = rows.filter(pc.equal(rows["object_type"], VERSION))
    marked = versions.filter(pc.match_substring(versions["metadata"], '"txn":['))
    found: dict[str, int] = {}
    for key, text in zip(
        marked["table_key"].to_pylist(), marked["metadata"].to_pylist(), strict=True
    ):
        txn = _txn(text)
        if txn is not None and txn[0] == app_id:
            found[key] = max(found.get(key, -1), txn[1])
    return found


def _txn(metadata: str) -> tuple[str, int] | None:
    """Return the mark in a version row's metadata, None where there is none of this form."""
    try:
        app_id, number = json.loads(metadata)[OURS]["txn"]
        return str(app_id), int(number)
    except (ValueError, KeyError, TypeError):
        return None


def check_txn(rows: pa.Table, txn: tuple[str, int], touched: frozenset[str]) -> bool:
    """Tell whether every table of a write has this or a higher `txnVersion` of the application.

    Raises:
        OptionError: some of the tables have it and some don't.
    """
    app_id, number = txn
    seen = txn_versions(rows, app_id)
    having = sorted(k for k in touched if seen.get(k, -1) >= number)
    if having and len(having) < len(touched):
        raise OptionError(
            f"txnAppId {app_id!r} at version {number} was written to some of this write's tables",
            expected="all of them or none",
            found=", ".join(having),
            hint="Nothing was published. Use one txnAppId per set of tables, or OmniGraph.write",
        )
    return bool(having)
