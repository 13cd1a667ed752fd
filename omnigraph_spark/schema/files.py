"""The three schema files of a graph: read them, add types, make them agree again.

`_schema.pg` is the truth, the two JSON files are made from it. So it is written first and the state
file, which vouches for the IR, last. A crash between leaves a graph that we read and write as
usual, since we go by `_schema.pg`, and that the engine refuses until the next `add_types` or
`repair` has made the JSON files again. A `_schema.pg` that is missing,
empty or cut off is damage: writers refuse it, and nobody makes the JSON files from it. All
functions run on the driver.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace

from omnigraph_spark.errors import (
    CorruptManifestError,
    OmnigraphError,
    SchemaMismatchError,
    StorageError,
    UnsupportedError,
)
from omnigraph_spark.schema import ir, ir2
from omnigraph_spark.schema.ir_reader import parse_ir
from omnigraph_spark.schema.model import (
    EdgeType,
    EngineSchema,
    NodeType,
    check_type_name,
    describe,
    same_definition,
)
from omnigraph_spark.schema.pg import is_cut, parse_pg, render_pg, render_schema
from omnigraph_spark.storage import backoff, layout
from omnigraph_spark.storage.store import Storage

_log = logging.getLogger(__name__)
_ATTEMPTS = 20
_MAX_PAUSE_SECONDS = 0.2


@dataclass(frozen=True)
class Found:
    """What a writer found in the schema files: the types, and the text of `_schema.pg`."""

    schema: EngineSchema
    text: str | None


def read(storage: Storage) -> EngineSchema | None:
    """Return the graph's schema for a reader, None where it has no schema files; changes nothing.

    Goes by `_schema.pg`. If that is missing or empty, or holds something that this version can't
    read, and the JSON files vouch for each other, they tell instead.

    Raises:
        CorruptManifestError: no file tells.
        StorageError: the store failed.
    """
    text = _text(storage, layout.SCHEMA_PG)
    try:
        schema = None if text is None else parse_pg(text)
    except CorruptManifestError:
        ir_schema = read_ir(storage)
        if ir_schema is None:
            raise
        return ir_schema
    if schema is None or not schema.types():
        return read_ir(storage) or schema
    return schema


def read_for_writing(storage: Storage, has_tables: bool, is_described: bool) -> Found:
    """Return the schema for a writer, who must not take lost rules for none; changes nothing.

    `has_tables` says whether the graph has tables, `is_described` whether `__manifest` knows the
    types of some.

    Raises:
        CorruptManifestError: `_schema.pg` is missing, empty or cut off; or it can't be read, and
            the JSON files don't tell either.
        StorageError: the store failed.
    """
    text = _text(storage, layout.SCHEMA_PG)
    problem = _damage(storage, text, has_tables, is_described)
    if problem is not None:
        raise CorruptManifestError(
            f"{layout.SCHEMA_PG} {problem}: the rules of the graph can't be distinguished from it",
            expected="the types of the graph's tables",
            hint=f"Nothing was written. `repair` makes the file again, from {layout.SCHEMA_IR} and"
            " what __manifest knows; or bring it back from a copy of the graph",
        )
    if text is None:
        return Found(EngineSchema(), None)
    try:
        return Found(parse_pg(text), text)
    except CorruptManifestError:
        ir_schema = read_ir(storage)
        if ir_schema is None:
            raise
        return Found(ir_schema, text)


def read_ir(storage: Storage) -> EngineSchema | None:
    """Return what `_schema.ir.json` says if `__schema_state.json` vouches for it, else None.

    Raises:
        StorageError: the store failed.
    """
    ir_text, state = _text(storage, layout.SCHEMA_IR), _text(storage, layout.SCHEMA_STATE)
    if ir_text is None or state is None:
        return None
    try:
        return parse_ir(ir_text) if ir.state_hash(state) == ir.ir_hash(ir_text) else None
    except (CorruptManifestError, UnsupportedError):
        return None


def damage(storage: Storage, has_tables: bool, is_described: bool) -> str | None:
    """Return what is wrong with `_schema.pg` itself, None if nothing is.

    Raises:
        StorageError: the store failed.
    """
    return _damage(storage, _text(storage, layout.SCHEMA_PG), has_tables, is_described)


def _damage(storage: Storage, text: str | None, has_tables: bool, is_described: bool) -> str | None:
    if text is None:
        if not is_described and _text(storage, layout.SCHEMA_IR) is None:
            return None
        # Another writer may have put both since.
        return "is missing" if _text(storage, layout.SCHEMA_PG) is None else None
    try:
        schema = parse_pg(text)
    except CorruptManifestError:
        return "is cut off" if is_cut(text) else None
    if not schema.types():
        lost = has_tables or is_described or _has_types(read_ir(storage))
        return "is empty" if lost else None
    ends_in_an_edge = text.rstrip() == text and not text.endswith("}")
    return "is cut off" if ends_in_an_edge and _lost_a_body(storage, schema) else None


def read_if_sound(storage: Storage) -> EngineSchema | None:
    """Return the schema of a graph for a read, which works without it: damage doesn't stop that.

    Raises:
        StorageError: the store failed.
    """
    try:
        return read(storage)
    except StorageError:
        raise
    except OmnigraphError as error:
        _log.warning(
            "Keys, endpoints, enums are unknown, the schema files can't be read: %s", error
        )
        return None


def _has_types(schema: EngineSchema | None) -> bool:
    return schema is not None and bool(schema.types())


def _lost_a_body(storage: Storage, schema: EngineSchema) -> bool:
    """Return whether the last edge is less than the JSON files say: it may be cut off."""
    last = list(schema.edges.values())[-1]
    if not {last.source, last.target} <= schema.nodes.keys():
        return True
    ir_schema = read_ir(storage)
    whole = None if ir_schema is None else ir_schema.edges.get(last.name)
    if whole is None:
        return False
    lost_card = last.cardinality == (0, None) != whole.cardinality
    return lost_card or len(whole.properties) > len(last.properties)


def add_types(storage: Storage, new: EngineSchema, text: str | None = None) -> None:
    """Put node and edge types into the graph's schema files; call it before their tables' publish.

    What is there stays: `_schema.pg` byte for byte, with the new types' text behind it, and the
    entries of the JSON files, keys that this version doesn't know included. A type that is there
    with the same definition is left alone, so the call may be repeated. Files that disagree, or are
    missing, are made to agree on the way, also when `new` is empty: a write that adds no type calls
    this too, and isn't refused if it can't be done. `text` is that of `_schema.pg` where the caller
    has just read it.

    Two writers at once: the last put of a file wins, so each looks again after its puts, and merges
    its types in once more if they are gone. What is left: a writer that stalls between its read and
    its put (milliseconds) until the other has looked drops the other's types. Calling this again
    with those types puts them back.

    Raises:
        SchemaMismatchError: a type of that name is there with another definition, an end of an edge
            type is not a node type, or two edge types differ in upper and lower case only.
        OptionError: a type name that the engine can't spell.
        CorruptManifestError: `_schema.pg` can't be read, or is missing, empty or cut off while the
            IR is there.
        UnsupportedError: the files are of a newer engine; nothing was changed.
        StorageError: the store failed, or others kept changing the files. They may be half-way: the
            module's text says what that means.
    """
    if not new.types():
        _agree_if_possible(storage, text)
        return
    change(storage, lambda text: merged(text, new))


def change(storage: Storage, changed: Callable[[str | None], str | None]) -> None:
    """Change `_schema.pg` as `changed` says, and make the JSON files agree with it.

    `changed` gets the text that is there (None: no files yet), returns the new one, and must leave
    alone what it has returned before: after the puts it is asked again (`add_types` says why).

    Raises:
        CorruptManifestError, UnsupportedError, StorageError: as `add_types`.
        OmnigraphError: what `changed` raises; nothing was changed then.
    """
    for attempt in range(_ATTEMPTS):
        if attempt > 0:
            backoff.poll(_MAX_PAUSE_SECONDS)
        text = _source(storage)
        new_text = changed(text)
        if new_text is None:
            return
        if new_text != text or not _agree(storage, text):
            _put_all(storage, new_text, changed=new_text != text)
            text = _source(storage)
        if text is not None and changed(text) == text and _agree(storage, text):
            return
    raise StorageError(
        f"The schema files of {storage.root} are being changed by others all the time",
        hint="No table was published. Run the write again",
    )


def repair(storage: Storage, known: EngineSchema | None = None) -> bool:
    """Make the schema files whole: `_schema.pg` if it is damaged, then the JSON files from it.

    A `_schema.pg` that is missing, empty or cut off is made again from the IR. `known` are the
    types of the graph's tables as `__manifest` knows them: those that no file has are added. An IR
    with ids stays as it is: nothing else has them.

    Returns:
        Whether anything was written. A graph without schema files, and without `known` types, is
        left alone.

    Raises:
        CorruptManifestError: `_schema.pg` can't be read, and nothing tells what was in it.
        UnsupportedError: the files are of a newer engine.
        StorageError: the store failed.
    """
    known = known or EngineSchema()
    text = _text(storage, layout.SCHEMA_PG)
    if _has_ids(_text(storage, layout.SCHEMA_IR)):
        return _repair_beside_ids(storage, text)
    problem = _damage(storage, text, bool(known.types()), bool(known.types()))
    if problem is not None:
        ir_text = _text(storage, layout.SCHEMA_IR)
        whole = _parsed_ir(ir_text).with_types(known)
        if not whole.types():
            raise CorruptManifestError(
                f"{layout.SCHEMA_PG} {problem}, and neither {layout.SCHEMA_IR} nor __manifest tells"
                " what was in it",
                hint="Bring it back from a copy of the graph",
            )
        _put_all(storage, render_schema(whole), changed=True)
        return True
    lost = EngineSchema.of(
        engine_type for engine_type in known.types() if not _has_type(text, engine_type)
    )
    if lost.types():
        change(storage, lambda current: merged(current, lost))
        return True
    if text is None or _agree(storage, text):
        return False
    _put_all(storage, text, changed=False)
    return True


def _has_ids(ir_text: str | None) -> bool:
    try:
        return ir_text is not None and ir.parsed(ir_text).get("ir_version") == ir2.IR_VERSION
    except CorruptManifestError:
        return False


def _repair_beside_ids(storage: Storage, text: str | None) -> bool:
    """Make what is damaged of the other two files again from an IR that has ids."""
    ir_text = _text(storage, layout.SCHEMA_IR) or ""
    problem = _damage(storage, text, False, False)
    if problem is not None:
        state = _text(storage, layout.SCHEMA_STATE) or "{}"
        text = render_schema(parse_ir(ir_text))
        other = ir2.disagreement(parse_pg(text), ir_text, state)
        if other is not None:
            raise CorruptManifestError(
                f"{layout.SCHEMA_PG} {problem}, and the other files don't tell what was in it",
                found=other,
                hint="Bring it back from a copy of the graph",
            )
        storage.put(layout.SCHEMA_PG, text.encode("utf-8"))
        return True
    if _agree(storage, text) or not _fits_ids(text, ir_text):
        return False
    storage.put(layout.SCHEMA_STATE, ir2.state_json(ir_text).encode("utf-8"))
    return True


def _fits_ids(text: str | None, ir_text: str) -> bool:
    try:
        state = ir2.state_json(ir_text)
        return text is not None and ir2.disagreement(parse_pg(text), ir_text, state) is None
    except (CorruptManifestError, UnsupportedError):
        return False


def can_agree(storage: Storage) -> bool:
    """Return whether `repair` can make the JSON files agree with a sound `_schema.pg`.

    An IR that has ids, and is damaged or says something else, stays: nothing else tells the ids.

    Raises:
        StorageError: the store failed.
    """
    ir_text = _text(storage, layout.SCHEMA_IR) or ""
    return _fits_ids(_text(storage, layout.SCHEMA_PG), ir_text)


def _parsed_ir(text: str | None) -> EngineSchema:
    try:
        return EngineSchema() if text is None else parse_ir(text)
    except CorruptManifestError:
        return EngineSchema()


def _has_type(text: str | None, engine_type: NodeType | EdgeType) -> bool:
    return text is not None and parse_pg(text).of_table(engine_type.table_key) is not None


def agree(storage: Storage) -> bool:
    """Return whether the three files say the same; a graph without `_schema.pg` has nothing to say.

    Raises:
        CorruptManifestError: `_schema.pg` can't be read.
        UnsupportedError: the files are of a newer engine.
        StorageError: the store failed.
    """
    text = _text(storage, layout.SCHEMA_PG)
    return text is None or _agree(storage, text)


def _agree_if_possible(storage: Storage, text: str | None) -> None:
    """Make the JSON files from a sound `_schema.pg` where they don't agree with it."""
    try:
        if text is not None and _agree(storage, text):
            return
        text = _text(storage, layout.SCHEMA_PG)  # another writer may have changed it since
        if text is None or _agree(storage, text):
            return
        if _damage(storage, text, False, False) is None:
            _put_all(storage, text, changed=False)
    except (CorruptManifestError, UnsupportedError) as error:
        _log.warning("The schema files of %s stay as they are: %s", storage.root, error)


def types_to_add(there: EngineSchema, new: EngineSchema) -> list[NodeType | EdgeType]:
    """Return the types of `new` that aren't there yet; pure, so a plan can ask before tasks run.

    Raises:
        SchemaMismatchError, OptionError: as `add_types`.
    """
    added: list[NodeType | EdgeType] = []
    for new_type in new.types():
        old = there.of_table(new_type.table_key)
        if old is None:
            check_type_name(new_type.name)
            added.append(
                replace(new_type, implements=()) if isinstance(new_type, NodeType) else new_type
            )
        elif not same_definition(old, new_type):
            raise SchemaMismatchError(
                f"{new_type.table_key} is in {layout.SCHEMA_PG} with another definition",
                expected=describe(old),
                found=describe(new_type),
                hint=(
                    "Write the columns that the type has, or use another type name; if no branch"
                    f" has a table of it (a write died), take it out of {layout.SCHEMA_PG}"
                ),
            )
    _check_edges(there, added)
    return added


def _agree(storage: Storage, text: str | None) -> bool:
    """Return whether the JSON files are there, vouch for each other, and hold what `text` says.

    Rules and annotations aren't compared: where we and the engine read one of them differently,
    its own files stay as they are.
    """
    ir_text, state = _text(storage, layout.SCHEMA_IR), _text(storage, layout.SCHEMA_STATE)
    if text is None or ir_text is None or state is None:
        return False
    try:
        if ir.parsed(ir_text).get("ir_version") == ir2.IR_VERSION:
            return ir2.disagreement(parse_pg(text), ir_text, state) is None
        vouched = ir.state_hash(state) == ir.ir_hash(ir_text)
    except CorruptManifestError:
        return False
    return vouched and ir.ir_hash(ir.ir_json(parse_pg(text), ir_text)) == ir.ir_hash(ir_text)


def _put_all(storage: Storage, text: str, changed: bool) -> None:
    """Write `_schema.pg` (if it changed), then the IR, then the state; refuses before any put."""
    ir_text = ir.ir_json(parse_pg(text), _text(storage, layout.SCHEMA_IR))
    state = ir.state_json(ir_text, _text(storage, layout.SCHEMA_STATE))
    if changed:
        storage.put(layout.SCHEMA_PG, text.encode("utf-8"))
    storage.put(layout.SCHEMA_IR, ir_text.encode("utf-8"))
    storage.put(layout.SCHEMA_STATE, state.encode("utf-8"))


def merged(text: str | None, new: EngineSchema) -> str:
    """Return the text of `_schema.pg` with the types that it lacks behind it; pure.

    Raises:
        SchemaMismatchError, OptionError: as `add_types`.
    """
    added = types_to_add(parse_pg(text or ""), new)
    if not added:
        return text or ""
    rendered = render_pg(added)
    if not text:
        return rendered
    return f"{text}{'' if text.endswith(chr(10)) else chr(10)}\n{rendered}"


def _check_edges(existing: EngineSchema, added: list[NodeType | EdgeType]) -> None:
    nodes = {*existing.nodes, *(node.name for node in added if isinstance(node, NodeType))}
    spelled = {name.lower(): name for name in existing.edges}
    for edge in added:
        if not isinstance(edge, EdgeType):
            continue
        for end in (edge.source, edge.target):
            if end not in nodes:
                raise SchemaMismatchError(
                    f"The end {end} of {edge.table_key} is not a node type of the graph",
                    expected=", ".join(sorted(nodes)) or "a node type, made before or with it",
                )
        other = spelled.setdefault(edge.name.lower(), edge.name)
        if other != edge.name:
            raise SchemaMismatchError(
                f"{edge.table_key} differs from edge:{other} in upper and lower case only",
                expected="another name",
            )


def _source(storage: Storage) -> str | None:
    """Return the text of `_schema.pg`, None in a graph that has no schema files yet."""
    text = _text(storage, layout.SCHEMA_PG)
    problem = _damage(storage, text, False, False)
    if problem is not None:
        raise CorruptManifestError(
            f"{layout.SCHEMA_PG} {problem}, and {layout.SCHEMA_IR} is there",
            hint="Nothing was changed. `repair` makes the file again, or bring it back from a copy",
        )
    return text if text is not None else _text(storage, layout.SCHEMA_PG)


def _text(storage: Storage, path: str) -> str | None:
    data = storage.get(path)
    if data is None:
        return None
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise CorruptManifestError(f"{path} is not UTF-8 text", found=str(error)) from error
