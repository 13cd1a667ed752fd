"""Which read options go together, the ends of a change feed, and options of other formats."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from omnigraph_spark.errors import OptionError

if TYPE_CHECKING:
    from omnigraph_spark.options import Parsed

_FEED = "readChangeFeed"
_ENDS = ("startingVersion", "endingVersion", "startingTimestamp", "endingTimestamp")
_OF_ROWS = ("columns", "filter", "metadataColumns")

WRITTEN = "written"
"""`integrity=strict` where the write doesn't ask for it: an overwrite may strand others' edges."""


@dataclass(frozen=True)
class FeedEnds:
    """What was given for the two ends of a change feed.

    A version may be a commit id or a tag. A start time is that of the first commit at or after it,
    an end time of the last at or before it. Without an end the feed goes to the head.
    """

    start_version: str | None = None
    end_version: str | None = None
    start_time: str | None = None
    end_time: str | None = None


def check_read(parsed: Parsed) -> None:
    """Refuse read options that exclude each other.

    Raises:
        OptionError: both `versionAsOf` and `timestampAsOf`; `metadata` beside options for rows.
    """
    _refuse_both(parsed, "versionAsOf", "timestampAsOf")
    if parsed.get("metadata") and parsed.given & {"table", *_OF_ROWS}:
        raise OptionError(
            "metadata reads a metadata frame, and table, columns, filter and metadataColumns"
            " are for rows",
            hint="Filter the metadata frame with Spark",
        )


def feed_ends(parsed: Parsed) -> FeedEnds | None:
    """Return the ends of a change feed, None where rows are read.

    Raises:
        OptionError: no start, a version and a time for one end, an end without `readChangeFeed`, or
            beside it an option that is for rows of one version.
    """
    given = [name for name in _ENDS if name in parsed.given]
    if not parsed.get(_FEED):
        if given:
            raise OptionError(f"Option {given[0]} goes with {_FEED}", hint=f"Set {_FEED} to true")
        return None
    others = ("versionAsOf", "timestampAsOf", "metadata", "pushDownFilters", *_OF_ROWS)
    wrong = [name for name in others if name in parsed.given]
    if wrong:
        raise OptionError(
            f"Option {wrong[0]} doesn't go with {_FEED}",
            expected=", ".join(("branch", "table", *_ENDS)),
            hint="Choose and filter the feed's rows and columns with Spark",
        )
    _refuse_both(parsed, "startingVersion", "startingTimestamp")
    _refuse_both(parsed, "endingVersion", "endingTimestamp")
    if not {"startingVersion", "startingTimestamp"} & parsed.given:
        raise OptionError(
            "A change feed has no start", expected="startingVersion or startingTimestamp"
        )
    return FeedEnds(*(parsed.get(name) for name in _ENDS))


def stream_ends(parsed: Parsed) -> FeedEnds:
    """Return the ends of a streaming read; without a start it begins with the newest snapshot.

    Raises:
        OptionError: a version and a time for one end, or an option that isn't for streams.
    """
    others = ["versionAsOf", "timestampAsOf", "metadata", "metadataColumns", "pushDownFilters"]
    if parsed.get(_FEED):
        others += _OF_ROWS
    wrong = [name for name in others if name in parsed.given]
    if wrong:
        raise OptionError(
            f"Option {wrong[0]} doesn't go with a stream"
            + (f" with {_FEED}" if wrong[0] in ("columns", "filter") else ""),
            expected=", ".join(("branch", "table", *_ENDS)),
            hint="Choose and filter the stream's rows and columns with Spark",
        )
    _refuse_both(parsed, "startingVersion", "startingTimestamp")
    _refuse_both(parsed, "endingVersion", "endingTimestamp")
    if parsed.get(_FEED) and parsed.get("skipChangeCommits"):
        raise OptionError(
            f"skipChangeCommits doesn't go with {_FEED}", hint=f"{_FEED} gives every change"
        )
    return FeedEnds(*(parsed.get(name) for name in _ENDS))


def _refuse_both(parsed: Parsed, option: str, other: str) -> None:
    if parsed.get(option) and parsed.get(other):
        raise OptionError(f"{option} and {other} exclude each other", hint="Give one of them")


# --- options of other formats --------------------------------------------------------------------

_OVERWRITES = (
    "replaceWhere with mode overwrite replaces what a predicate chooses, writeMode merge rows by id"
)
_COLUMNS = (
    "types gives new columns their types, mergeSchema=true adds columns, alter_property relaxes"
)
_FILES = "maxRowsPerFile and maxBytesPerFile cut files, OmniGraph.optimize gathers small ones"
_LAYOUT = "there are no partitions; OmniGraph.create_index and the option filter find rows"
_PUSHED = "the options columns and filter say what Lance reads; pushDownFilters=true takes Spark's"
_STREAM = "readStream takes startingVersion, maxCommitsPerTrigger, maxRowsPerTrigger"

_ELSEWHERE: tuple[tuple[str, str, str], ...] = (
    ("Delta", "partitionOverwriteMode replaceOn replaceUsing", _OVERWRITES),
    ("Delta", "overwriteSchema schemaTrackingLocation", _COLUMNS),
    ("Delta", "maxRecordsPerFile optimizeWrite dataChange compression targetFileSize", _FILES),
    ("Delta", "clusterByAuto zOrderBy partitionBy", _LAYOUT),
    ("Delta", "readChangeData", "readChangeFeed=true with startingVersion"),
    (
        "Delta",
        "maxFilesPerTrigger maxBytesPerTrigger ignoreDeletes ignoreChanges ignoreFileDeletion"
        " excludeRegex withEventTimeOrder",
        _STREAM,
    ),
    (
        "Iceberg",
        "snapshot-id tag as-of-timestamp",
        "versionAsOf takes a version, a commit id or a tag, timestampAsOf a time",
    ),
    (
        "Iceberg",
        "start-snapshot-id end-snapshot-id",
        "readChangeFeed=true with startingVersion and endingVersion",
    ),
    (
        "Iceberg",
        "target-file-size-bytes target-delete-file-size-bytes write-format delete-format"
        " delete-granularity compression-codec compression-level compression-strategy"
        " rewritten-file-scan-task-set-id",
        _FILES,
    ),
    (
        "Iceberg",
        "fanout-enabled distribution-mode advisory-partition-size output-spec-id locality"
        " use-table-distribution-and-ordering check-ordering preserve-data-grouping"
        " aggregate-push-down.enabled",
        _LAYOUT,
    ),
    ("Iceberg", "check-nullability merge-schema spark-merge-schema", _COLUMNS),
    ("Iceberg", "overwrite-mode", _OVERWRITES),
    (
        "Iceberg",
        "isolation-level validate-from-snapshot-id wap.id wap-id",
        "expectedTableVersions says what must not have changed; branch names a branch",
    ),
    ("Iceberg", "split-size lookback file-open-cost", "maxPartitionBytes is what one task reads"),
    ("Iceberg", "batch-size vectorization-enabled", "batchSize is rows per batch"),
    (
        "Iceberg",
        "stream-from-timestamp streaming-max-files-per-micro-batch"
        " streaming-max-rows-per-micro-batch streaming-skip-delete-snapshots"
        " streaming-skip-overwrite-snapshots",
        _STREAM,
    ),
    (
        "lance-spark",
        "nearest quantize full_text_query fts_query",
        "for a search open the table with pylance, at the location and version in tables()",
    ),
    ("lance-spark", "version", "versionAsOf takes a version of the graph"),
    (
        "lance-spark",
        "batch_size block_size index_cache_size metadata_cache_size use_queued_write_buffer"
        " queue_depth",
        "batchSize is rows per batch",
    ),
    ("lance-spark", "max_row_per_file max_rows_per_group max_bytes_per_file", _FILES),
    ("lance-spark", "write_mode", "writeMode is append, overwrite, merge or delete"),
    (
        "lance-spark",
        "data_storage_version file_format_version enable_stable_row_ids uri dataset_uri dataset db",
        "the path is the graph's, table names a table; the files' format isn't an option",
    ),
    ("lance-spark", "topN_push_down", _PUSHED),
    ("the Neo4j connector", "labels", "table=node:Person is one node type"),
    (
        "the Neo4j connector",
        "relationship relationship.nodes.map",
        "table=edge:Knows is one edge type, with the columns src and dst",
    ),
    (
        "the Neo4j connector",
        "node.keys node.keys.skip.nulls node.properties relationship.keys"
        " relationship.keys.skip.nulls relationship.properties schema.optimization"
        " schema.optimization.type schema.optimization.node.keys"
        " schema.optimization.relationship.keys",
        "writeMode=merge upserts by id; keys='Person: name' makes a property the id of a node type",
    ),
    (
        "the Neo4j connector",
        "relationship.save.strategy relationship.source.labels relationship.target.labels"
        " relationship.source.save.mode relationship.target.save.mode"
        " relationship.source.node.keys relationship.target.node.keys"
        " relationship.source.node.keys.skip.nulls relationship.target.node.keys.skip.nulls"
        " relationship.source.node.properties relationship.target.node.properties",
        "endpoints='Knows: Person -> Person' names them; src and dst hold their ids",
    ),
    (
        "the Neo4j connector",
        "query query.count script",
        "there is no Cypher; join the frames of OmniGraph.table with Spark",
    ),
    (
        "the Neo4j connector",
        "url database access.mode authentication.type authentication.basic.username"
        " authentication.basic.password encryption.enabled db.transaction.timeout"
        " connection.max.lifetime.msecs index.await.timeout",
        "there is no server; the graph is a path, and storage.… options reach its store",
    ),
    (
        "the Neo4j connector",
        "transaction.retries transaction.retries.max transaction.retry.timeout"
        " transaction.codes.fail",
        "commitRetries and commitTimeoutSeconds say how hard a commit tries",
    ),
    (
        "the Neo4j connector",
        "pushdown.filters.enabled pushdown.columns.enabled pushdown.aggregate.enabled"
        " pushdown.limit.enabled pushdown.topN.enabled",
        _PUSHED,
    ),
    ("the Neo4j connector", "partitions batch.size", "maxPartitionBytes and batchSize cut a read"),
    (
        "the Neo4j connector",
        "schema.flatten.limit schema.strategy type.conversion",
        "a graph's types are stored; docs/types.md lists them",
    ),
    ("the Neo4j connector", "streaming.property.name streaming.from", _STREAM),
)
"""Options of other formats that there are none of here: format, names, and what to use."""
FOREIGN: Mapping[str, tuple[str, str, str]] = {
    name.lower(): (name, source, instead)
    for source, known, instead in _ELSEWHERE
    for name in known.split()
}


def of_another_format(key: str) -> tuple[str, str] | None:
    """Return how another format spells an option, and what to use here; None if none has it."""
    if key.lower().startswith("snapshot-property."):
        return key, "That is an option of Iceberg: userMetadata is recorded with the commit here"
    foreign = FOREIGN.get(key.lower())
    if foreign is None:
        return None
    name, source, instead = foreign
    return name, f"That is an option of {source}. Here {instead}"
