"""Every option of the data source, declared once: name, type, default, unit, help.

`ReadOptions` and `WriteOptions` are built on the driver from Spark's option map, whose keys arrive
in lower case (fact 14). The table of docs/options.md is `markdown_table()`; a test fails on drift.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from omnigraph_spark import option_rules
from omnigraph_spark.errors import OptionError
from omnigraph_spark.option_rules import FeedEnds
from omnigraph_spark.option_values import (
    Parser,
    any_text,
    as_text,
    boolean,
    choice,
    edge_keys,
    integer,
    malformed,
    names,
    pairs,
    seconds,
    size,
    text,
    versions,
)

READ = "read"
WRITE = "write"
CREATE = "create table"
STREAM = "read stream"
SINK = "write stream"
_STORAGE_PREFIX = "storage."
_SPARK_OWN = frozenset(
    {
        "location",
        "owner",
        "provider",
        "checkpointlocation",
        "queryname",
        "external",
        "serialization.format",
    }
)


@dataclass(frozen=True)
class Option:
    """One option: where it counts (`scopes`), how its text is read, and its line of help."""

    name: str
    parse: Parser
    default: str | None
    scopes: tuple[str, ...]
    help: str


# fmt: off
OPTIONS: tuple[Option, ...] = (
    Option("path", any_text, None, (READ, WRITE),
           "graph root: a local path, `file:`, `s3://` (`s3a://`)"),
    Option("table", text, None, (READ, WRITE),
           "`node:Person`, `edge:Knows`, or a bare type name where only one fits; without it the"
           " whole graph"),
    Option("branch", text, "main", (READ, WRITE), "graph branch to read or write"),
    Option("versionAsOf", text, None, (READ,),
           "graph version of the branch, or a commit id, or a tag; excludes `timestampAsOf`"),
    Option("timestampAsOf", text, None, (READ,),
           "ISO 8601 with a zone (`2024-01-31T12:00:00Z`) or epoch ms; the last commit at or before"
           " it"),
    Option("columns", names, None, (READ,),
           "comma list of columns to read (Spark can't push a projection into a Python source)"),
    Option("filter", text, None, (READ,),
           "predicate that Lance answers; it means what `where` means, or is refused"),
    Option("metadataColumns", names, None, (READ,),
           "`_rowid`, `_row_created_at_version`, `_row_last_updated_at_version`"),
    Option("metadata", choice("tables", "history", "refs", "runs", "files", "indexes"), None,
           (READ,),
           "read a metadata frame instead of rows: `tables`, `history`, `refs`, `runs`, `files`,"
           " `indexes`"),
    Option("readChangeFeed", boolean, "false", (READ,),
           "read what publishes changed instead of rows, from a start to an end, both included"),
    Option("startingVersion", text, None, (READ,),
           "change feed, stream: first graph version, commit id or tag (a stream: or `latest`)"),
    Option("endingVersion", text, None, (READ,),
           "change feed, stream: the last; without it the head, or no end"),
    Option("startingTimestamp", text, None, (READ,),
           "change feed, stream: from the first commit at or after this time"),
    Option("endingTimestamp", text, None, (READ,),
           "change feed, stream: to the last commit at or before this time"),
    Option("maxCommitsPerTrigger", integer(1), "1000", (STREAM,),
           "commits in a batch; of the first snapshot, so many data files (Spark 4.2 and later)"),
    Option("maxRowsPerTrigger", integer(1), None, (STREAM,),
           "rows in a batch, about: a commit is never split (Spark 4.2 and later)"),
    Option("skipChangeCommits", boolean, "false", (STREAM,),
           "leave out commits that update or delete rows, instead of failing"),
    Option("failOnDataLoss", boolean, "true", (STREAM,),
           "fail if commits that weren't read yet are gone; `false` goes on with what is there"),
    Option("pushDownFilters", boolean, "false", (READ,),
           "let Spark 4.1+ push filters; only for a frame that one query uses once: Spark gives a"
           " frame that is used again another query's rows (`filter` has no such limit)"),
    Option("maxPartitionBytes", size, "128m", (READ,),
           "bytes per input partition: small fragments are packed, large ones split by rows"),
    Option("batchSize", integer(1), None, (READ,),
           "rows per Arrow batch; without it batches are sized by bytes"),
    Option("writeMode", choice("append", "overwrite", "merge", "delete"), None, (WRITE,),
           "what `.mode()` says; `merge`: upsert by `id`, all or some properties; `delete`: by `id`"),
    Option("replaceWhere", text, None, (WRITE,),
           "with mode `overwrite`: a predicate in Spark SQL; the rows for which it is true are"
           " deleted and the frame's rows added, which must all be inside"),
    Option("overwriteEmpty", boolean, "false", (WRITE,),
           "an overwrite by a whole-graph frame that was read empties the tables that it has no rows"
           " of; without it those stay as they are"),
    Option("endpoints", pairs("Knows: Person -> Person"), None, (WRITE,),
           "endpoints of edge tables that are created: `Knows: Person -> Person, WorksAt: Person ->"
           " Company`"),
    Option("keys", pairs("Person: name"), None, (WRITE,),
           "key properties of node tables that are created: `Person: name`"),
    Option("edgeKeys", edge_keys, None, (WRITE,),
           "columns that edges' ids are made from: `Bought: src, dst, at, Knows: src, dst`; recorded"
           " with tables that are created, elsewhere edges are found by these values"),
    Option("types", pairs("Person.vec: Vector(4)"), None, (WRITE,),
           "types of new columns, the engine's or Spark's: `Person.vec: Vector(4), Person.n: bigint`"),
    Option("storeAssignment", choice("ansi", "exact"), "ansi", (WRITE,),
           "how values get into columns of other types: `ansi`, as Spark's SQL stores them (numbers"
           " are rounded, overflow is an error); `exact`: refused where anything is lost"),
    Option("integrity", choice("off", "keys", "strict"), "strict", (WRITE,),
           "`off`: nulls and types; `keys`: also `@range`, `@check`, unique ids, `@unique`;"
           " `strict`: also endpoints and `@card`, and, if it is asked for by name, that an overwrite"
           " of nodes strands no edge"),
    Option("badRecordsPath", text, None, (WRITE,),
           "rows that break a rule go here as JSON lines, and the others are written"),
    Option("onDelete", choice("restrict", "cascade"), "restrict", (WRITE,),
           "what a delete of nodes does with their edges: refuse it, or delete them too"),
    Option("mergeSchema", boolean, "false", (WRITE,),
           "columns that the table lacks are added to it as nullable properties"),
    Option("expectedTableVersions", versions, None, (WRITE,),
           'JSON `{"node:Person": 7}` (0 = no such table); any difference is'
           ' `ExpectedVersionMismatch`'),
    Option("lastWriterWins", boolean, "false", (WRITE,),
           "write over what others wrote since the frame was read"),
    Option("branchFrom", text, None, (WRITE,),
           "create `branch` from this ref if it is missing: `dev`, `dev@7`, a tag, a commit id"),
    Option("graphFormat", choice("2", "6"), None, (WRITE,),
           "the form of a graph that the write makes: `2`, or `6`, that of engine 0.9; without it"
           " `2`. A graph that is there keeps its form"),
    Option("actor", text, None, (WRITE,), "who made the commit, recorded with it"),
    Option("recordRuns", boolean, "false", (WRITE,),
           "record when writes begin and how they end, for the metadata frame `runs` (graphs of"
           " engine 0.6); two more commits each"),
    Option("userMetadata", any_text, None, (WRITE,), "free text recorded with the commit"),
    Option("txnAppId", text, None, (WRITE,),
           "with `txnVersion`: the write is skipped if its tables already have this or a higher"
           " version of this app"),
    Option("txnVersion", integer(0), None, (WRITE,), "see `txnAppId`"),
    Option("optimizeEvery", integer(1), None, (SINK,),
           "compact the branch's tables after each so many batches"),
    Option("commitRetries", integer(0), "5", (WRITE,),
           "the publisher's retries on row-level contention (5 = at most 6 attempts)"),
    Option("commitTimeoutSeconds", seconds, "300", (WRITE,),
           "seconds that appends retry when others publish first"),
    Option("orphanGraceSeconds", seconds, "10", (WRITE,),
           "seconds that a silent writer's unpublished version is waited for"),
    Option("maxRowsPerFile", integer(1), "1048576", (WRITE,), "rows per data file"),
    Option("maxBytesPerFile", size, "90g", (WRITE,), "bytes per data file"),
    Option("schema", text, None, (CREATE,),
           "CREATE TABLE only: the columns of a table that isn't in the graph yet, `'id STRING,"
           " name STRING'`"),
)
# fmt: on
_BY_KEY = {option.name.lower(): option for option in OPTIONS}


@dataclass(frozen=True)
class Parsed:
    """Parsed options by declared name, and the storage options by Lance's key."""

    values: Mapping[str, Any]
    given: frozenset[str]
    storage: Mapping[str, str] = field(repr=False)

    def get(self, name: str) -> Any:
        """Return the parsed value of the option `name` (its default, None where it has none)."""
        return self.values[name]


def parse(raw: Mapping[str, str | None]) -> Parsed:
    """Parse Spark's option map; runs on the driver once per load, save or CREATE TABLE.

    Raises:
        OptionError: an unknown option (the nearest names are shown), or a malformed value.
    """
    values: dict[str, Any] = {
        option.name: None if option.default is None else option.parse(option.name, option.default)
        for option in OPTIONS
    }
    given: set[str] = set()
    storage: dict[str, str] = {}
    for key, value in raw.items():
        lowered = key.lower()
        if lowered in _SPARK_OWN or lowered.startswith("option.") or value is None:
            continue
        if lowered.startswith(_STORAGE_PREFIX):
            storage[lowered[len(_STORAGE_PREFIX) :]] = value
            continue
        option = _BY_KEY.get(lowered)
        if option is None:
            raise _unknown(key)
        values[option.name] = option.parse(option.name, value)
        given.add(option.name)
    return Parsed(values, frozenset(given), storage)


def of_python(given: Mapping[str, Any]) -> dict[str, str]:
    """Return options that a Python caller gave as the texts that Spark hands over; None is left out.

    Raises:
        OptionError: an unknown option, or a value of a type that it doesn't take.
    """
    texts = {}
    for key, value in given.items():
        lowered = key.lower()
        known = lowered in _BY_KEY or lowered.startswith(_STORAGE_PREFIX)
        if not known and lowered not in _SPARK_OWN:
            raise _unknown(key)
        if value is not None:
            name = _BY_KEY[lowered].name if lowered in _BY_KEY else key
            texts[key] = as_text(name, value)
    return texts


def for_scope(raw: Mapping[str, str], scope: str) -> dict[str, str]:
    """Return the options of a map that count in `scope`, storage options included.

    A catalog table keeps options of several scopes; a read or a write of it takes those it knows.
    """
    return {
        key: value
        for key, value in raw.items()
        if key.lower().startswith(_STORAGE_PREFIX)
        or (key.lower() in _BY_KEY and scope in _BY_KEY[key.lower()].scopes)
    }


def storage_options(raw: Mapping[str, str]) -> dict[str, str]:
    """Return the storage options of a map, by Lance's keys."""
    return {
        key[len(_STORAGE_PREFIX) :].lower(): value
        for key, value in raw.items()
        if key.lower().startswith(_STORAGE_PREFIX)
    }


def _unknown(key: str) -> OptionError:
    lowered = key.lower()
    if lowered.startswith(("aws_", "google_", "azure_", "allow_http")):
        return OptionError(
            f"Unknown option {key[:60]!r}",
            hint=f"Options of the store are given as storage.{lowered[:60]}",
        )
    elsewhere = option_rules.of_another_format(key[:60])
    if elsewhere is not None:
        return OptionError(f"Unknown option {elsewhere[0]!r}", hint=elsewhere[1])
    near = difflib.get_close_matches(lowered, list(_BY_KEY), n=3, cutoff=0.6)
    names = ", ".join(_BY_KEY[n].name for n in near)
    return OptionError(
        f"Unknown option {key[:60]!r}",
        hint=f"Did you mean {names}?" if names else "docs/options.md lists all options",
    )


@dataclass(frozen=True)
class ReadOptions:
    """What a read asks for; `storage` is kept out of `repr`."""

    path: str
    table: str | None
    branch: str
    branch_given: bool
    version_as_of: str | None
    timestamp_as_of: str | None
    columns: tuple[str, ...] | None
    filter: str | None
    metadata_columns: tuple[str, ...]
    metadata: str | None
    feed: FeedEnds | None
    max_partition_bytes: int
    batch_size: int | None
    push_down_filters: bool
    storage: Mapping[str, str] = field(repr=False)

    @classmethod
    def of(cls, parsed: Parsed) -> ReadOptions:
        """Check the options of a read.

        Raises:
            OptionError: no path; an option that is for writing only; options that exclude each
                other.
        """
        _refuse_other(parsed, STREAM, "reading")
        return cls._of(parsed, option_rules.feed_ends(parsed))

    @classmethod
    def _of(cls, parsed: Parsed, feed: FeedEnds | None) -> ReadOptions:
        for scope in (WRITE, SINK):
            _refuse_other(parsed, scope, "reading")
        path = parsed.get("path")
        if not path:
            raise OptionError("No path given", hint="Use .load('/path/of/the/graph')")
        option_rules.check_read(parsed)
        return cls(
            path=path,
            table=parsed.get("table"),
            branch=parsed.get("branch"),
            branch_given="branch" in parsed.given,
            version_as_of=parsed.get("versionAsOf"),
            timestamp_as_of=parsed.get("timestampAsOf"),
            columns=parsed.get("columns"),
            filter=parsed.get("filter"),
            metadata_columns=parsed.get("metadataColumns") or (),
            metadata=parsed.get("metadata"),
            feed=feed,
            max_partition_bytes=parsed.get("maxPartitionBytes"),
            batch_size=parsed.get("batchSize"),
            push_down_filters=parsed.get("pushDownFilters"),
            storage=parsed.storage,
        )


@dataclass(frozen=True)
class StreamOptions:
    """What a streaming read asks for; `limits` names the limits per batch that were given."""

    read: ReadOptions
    ends: FeedEnds
    change_feed: bool
    max_commits: int
    max_rows: int | None
    skip_change_commits: bool
    fail_on_data_loss: bool
    limits: tuple[str, ...]

    @classmethod
    def of(cls, parsed: Parsed) -> StreamOptions:
        """Check the options of a streaming read.

        Raises:
            OptionError: no path, an option that isn't for streams, or options that exclude each
                other.
        """
        ends = option_rules.stream_ends(parsed)
        return cls(
            read=ReadOptions._of(parsed, None),
            ends=ends,
            change_feed=parsed.get("readChangeFeed"),
            max_commits=parsed.get("maxCommitsPerTrigger"),
            max_rows=parsed.get("maxRowsPerTrigger"),
            skip_change_commits=parsed.get("skipChangeCommits"),
            fail_on_data_loss=parsed.get("failOnDataLoss"),
            limits=tuple(sorted(parsed.given & {"maxCommitsPerTrigger", "maxRowsPerTrigger"})),
        )


@dataclass(frozen=True)
class WriteOptions:
    """What a write asks for; times in seconds, sizes in bytes, `storage` kept out of `repr`."""

    path: str
    table: str | None
    branch: str
    mode: str
    endpoints: Mapping[str, tuple[str, str]]
    keys: Mapping[str, str]
    edge_keys: Mapping[str, tuple[str, ...]]
    types: Mapping[str, str]
    expected_table_versions: Mapping[str, int]
    last_writer_wins: bool
    integrity: str
    merge_schema: bool
    exact: bool
    on_delete: str
    overwrite_empty: bool
    replace_where: str | None
    bad_records_path: str | None
    branch_from: str | None
    graph_format: int | None
    actor: str | None
    user_metadata: str | None
    txn: tuple[str, int] | None
    commit_retries: int
    commit_timeout_seconds: float
    orphan_grace_seconds: float
    record_runs: bool
    max_rows_per_file: int
    max_bytes_per_file: int
    optimize_every: int | None
    storage: Mapping[str, str] = field(repr=False)

    @classmethod
    def of(cls, parsed: Parsed, overwrite: bool, *, stream: bool = False) -> WriteOptions:
        """Check the options of a write; `overwrite` is what Spark's `.mode()` said.

        Of a `stream` it is the output mode `complete`, and what says which batch it is, and which
        versions are expected, comes from the stream.

        Raises:
            OptionError: a missing path, a pair that doesn't go together, a read option, or one that
                isn't built yet.
        """
        _refuse_unbuilt(parsed, stream)
        path = parsed.get("path")
        if not path:
            raise OptionError("No path given", hint="Use .save('/path/of/the/graph')")
        if (parsed.get("txnAppId") is None) != (parsed.get("txnVersion") is None):
            raise OptionError("txnAppId and txnVersion go together", hint="Give both or neither")
        if parsed.get("branchFrom") is not None and parsed.get("branch") == "main":
            raise OptionError("branchFrom goes with branch", hint="Name the branch to be created")
        mode = _mode(parsed.get("writeMode"), overwrite)
        if parsed.get("replaceWhere") is not None:
            if mode != "overwrite":
                raise OptionError("replaceWhere goes with mode overwrite", found=f"mode {mode}")
            mode = "replace"
        if parsed.get("onDelete") == "cascade" and mode not in ("delete", "replace"):
            raise OptionError(
                "onDelete goes with writeMode delete and replaceWhere", hint="Leave it out"
            )
        if parsed.get("overwriteEmpty") and mode != "overwrite":
            raise OptionError("overwriteEmpty goes with overwrite", hint="Leave it out")
        return cls(
            path=path,
            table=parsed.get("table"),
            branch=parsed.get("branch"),
            mode=mode,
            endpoints=_endpoints(parsed.get("endpoints") or {}),
            keys=parsed.get("keys") or {},
            edge_keys=parsed.get("edgeKeys") or {},
            types=parsed.get("types") or {},
            expected_table_versions=parsed.get("expectedTableVersions") or {},
            last_writer_wins=parsed.get("lastWriterWins"),
            integrity=parsed.get("integrity")
            if "integrity" in parsed.given
            else option_rules.WRITTEN,
            merge_schema=parsed.get("mergeSchema"),
            exact=parsed.get("storeAssignment") == "exact",
            on_delete=parsed.get("onDelete"),
            overwrite_empty=parsed.get("overwriteEmpty"),
            replace_where=parsed.get("replaceWhere"),
            bad_records_path=parsed.get("badRecordsPath"),
            branch_from=parsed.get("branchFrom"),
            graph_format=None
            if parsed.get("graphFormat") is None
            else int(parsed.get("graphFormat")),
            actor=parsed.get("actor"),
            user_metadata=parsed.get("userMetadata"),
            txn=None
            if parsed.get("txnAppId") is None
            else (parsed.get("txnAppId"), parsed.get("txnVersion")),
            commit_retries=parsed.get("commitRetries"),
            commit_timeout_seconds=parsed.get("commitTimeoutSeconds"),
            orphan_grace_seconds=parsed.get("orphanGraceSeconds"),
            record_runs=parsed.get("recordRuns"),
            max_rows_per_file=parsed.get("maxRowsPerFile"),
            max_bytes_per_file=parsed.get("maxBytesPerFile"),
            optimize_every=parsed.get("optimizeEvery"),
            storage=parsed.storage,
        )


def _mode(write_mode: str | None, overwrite: bool) -> str:
    spark_mode = "overwrite" if overwrite else "append"
    mode = write_mode or spark_mode
    if mode in ("merge", "delete") and not overwrite:
        return mode
    if mode != spark_mode:
        raise OptionError(
            f"writeMode {mode} doesn't go with .mode({spark_mode!r})",
            hint="Use .mode('overwrite'), in SQL INSERT OVERWRITE"
            if mode == "overwrite"
            else "Use .mode('append'), in SQL INSERT INTO",
        )
    return mode


def _endpoints(given: Mapping[str, str]) -> dict[str, tuple[str, str]]:
    ends: dict[str, tuple[str, str]] = {}
    for edge, both in given.items():
        source, arrow, target = (piece.strip() for piece in both.partition("->"))
        if not (source and arrow and target):
            raise malformed("endpoints", f"{edge}: {both}", "Knows: Person -> Person")
        ends[edge] = (source, target)
    return ends


def _refuse_other(parsed: Parsed, scope: str, doing: str) -> None:
    """Refuse an option that is for `scope` alone: ignoring it would hide a mistake."""
    for name in sorted(parsed.given):
        if _BY_KEY[name.lower()].scopes == (scope,):
            verb = {
                READ: "reading",
                WRITE: "writing",
                CREATE: "CREATE TABLE",
                STREAM: "readStream",
                SINK: "writeStream",
            }[scope]
            raise OptionError(f"Option {name} is for {verb}, not for {doing}", hint="Leave it out")


def _refuse_unbuilt(parsed: Parsed, stream: bool) -> None:
    for scope in (READ, CREATE, STREAM, *(() if stream else (SINK,))):
        _refuse_other(parsed, scope, "writing")
    wrong = parsed.given & {"txnAppId", "txnVersion", "expectedTableVersions"}
    if stream and wrong:
        raise OptionError(
            f"Option {min(wrong)} doesn't go with writeStream",
            hint="Leave it out: each batch is written once, by the query's id and the batch's number",
        )


def markdown_table() -> str:
    """Return the table of docs/options.md."""
    rows = ["| option | for | default | meaning |", "|---|---|---|---|"]
    for option in OPTIONS:
        default = "" if option.default is None else f"`{option.default}`"
        rows.append(f"| `{option.name}` | {', '.join(option.scopes)} | {default} | {option.help} |")
    rows.append(
        "| `storage.<key>` | read, write | | passed to Lance as storage option `<key>`"
        " (`storage.aws_endpoint`, `storage.allow_http`, …); AWS_* environment variables count"
        " too |"
    )
    return "\n".join(rows)
