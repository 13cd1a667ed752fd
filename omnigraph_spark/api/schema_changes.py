"""What `OmniGraph` offers to change tables and properties; every method is one call below."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

from omnigraph_spark.errors import OptionError
from omnigraph_spark.storage import layout

if TYPE_CHECKING:
    from pyspark.sql.types import DataType, StructType

    from omnigraph_spark.graph import OmniGraph
    from omnigraph_spark.options import WriteOptions
    from omnigraph_spark.storage.store import Storage
    from omnigraph_spark.write.commit.commit import Committed


class SchemaMethods:
    """A part of `OmniGraph`, in a class of its own for its length.

    Each method is one publish with its lineage, on one branch; `write_options` are those of writes
    (`actor`, `userMetadata`). Older graph versions are read with the columns that they had. In
    graphs of engine 0.9 every method raises `UnsupportedError` while there are other branches, and
    for columns that the engine has no type or name for.
    """

    @abstractmethod
    def _store(self) -> Storage: ...

    @abstractmethod
    def _write_options(self, mode: str, branch: str, given: Mapping[str, Any]) -> WriteOptions: ...

    def add_table(
        self,
        table: str,
        columns: str | StructType = "",
        *,
        key: str | None = None,
        endpoints: tuple[str, str] | None = None,
        branch: str = layout.MAIN,
        **write_options: Any,
    ) -> Committed:
        """Make an empty table, such as `add_table("edge:Knows", "since DATE", endpoints=(…))`.

        `columns` is a list as in CREATE TABLE, or a Spark schema; `id` (`src`, `dst`) may be left
        out. `key` names a node's key property, `endpoints` an edge's source and target node type.

        Raises:
            OptionError, SchemaMismatchError: the table is there, or can't be made like this.
            OmnigraphError: as `write`.
        """
        from omnigraph_spark.schema_changes import properties

        name = table.partition(":")[2]
        given = dict(write_options)
        if key is not None:
            given["keys"] = f"{name}: {key}"
        if endpoints is not None:
            given["endpoints"] = f"{name}: {endpoints[0]} -> {endpoints[1]}"
        options = self._write_options("append", branch, given)
        return properties.add_table(self._store(), options, table, columns)

    def drop_table(
        self, *tables: str, branch: str = layout.MAIN, **write_options: Any
    ) -> Committed:
        """Drop tables in one publish; their data stays for older versions and for `restore`.

        Raises:
            IntegrityError: edge tables end at a node table and aren't dropped in the same call.
            TableNotFoundError: no such table.
            ExpectedVersionMismatch: another writer wrote to one of them meanwhile; nothing was
            dropped.
            OmnigraphError: as `write`.
        """
        from omnigraph_spark.schema_changes import properties

        options = self._write_options("append", branch, write_options)
        return properties.drop_table(self._store(), options, tables)

    def add_property(
        self,
        table: str,
        name: str,
        kind: str | DataType,
        *,
        branch: str = layout.MAIN,
        **write_options: Any,
    ) -> Committed:
        """Add a property that may be null: `add_property("node:Person", "nick", "String?")`.

        `kind` is an engine type or a Spark type. If it is there already nothing is published.

        Raises:
            OptionError, SchemaMismatchError: the type allows no nulls, or the name is taken.
            OmnigraphError: as `write`.
        """
        from omnigraph_spark.schema_changes import properties

        options = self._write_options("append", branch, write_options)
        return properties.add_property(self._store(), options, table, name, kind)

    def drop_property(
        self, table: str, name: str, *, branch: str = layout.MAIN, **write_options: Any
    ) -> Committed:
        """Drop a property; added again it is another one, without the old values.

        Raises:
            SchemaMismatchError: no such property, or it is the key, `id`, `src` or `dst`.
            UnsupportedError: an interface or another branch holds on to it.
            OmnigraphError: as `write`.
        """
        from omnigraph_spark.schema_changes import properties

        options = self._write_options("append", branch, write_options)
        return properties.drop_property(self._store(), options, table, name)

    def alter_property(
        self,
        table: str,
        name: str,
        *,
        nullable: bool | None = None,
        type: str | DataType | None = None,
        branch: str = layout.MAIN,
        **write_options: Any,
    ) -> Committed:
        """Let a property be null (`nullable=True`), or give it a wider type: `type="I64"`.

        The type must hold all values that may be there: 32-bit integers become 64-bit ones, F32
        becomes F64, decimals get more digits. That writes the column again, in this process, and
        its index goes; to allow null writes nothing. What is so already publishes nothing.

        Raises:
            OptionError: `nullable` is false, since a property can't be made NOT NULL, or goes with
                `type`, which is another call.
            SchemaMismatchError: a type that isn't wider, no such property, or it is the key, `id`,
                `src` or `dst`.
            UnsupportedError: an interface or another branch holds on to it.
            OmnigraphError: as `write`.
        """
        from omnigraph_spark.schema_changes import properties

        options = self._write_options("append", branch, write_options)
        if type is None:
            may_be = True if nullable is None else nullable
            return properties.alter_property(self._store(), options, table, name, may_be)
        if nullable is not None:
            raise OptionError(
                "alter_property changes the type or allows null, one at a time",
                expected="type or nullable",
                found="both",
            )
        return properties.widen_property(self._store(), options, table, name, type)

    def rename_property(
        self, table: str, old: str, new: str, *, branch: str = layout.MAIN, **write_options: Any
    ) -> Committed:
        """Rename a property; its values and indices stay.

        Raises:
            SchemaMismatchError: no such property, it is the key, or the new name can't be.
            UnsupportedError: an interface or another branch holds on to it.
            OmnigraphError: as `write`.
        """
        from omnigraph_spark.schema_changes import properties

        options = self._write_options("append", branch, write_options)
        return properties.rename_property(self._store(), options, table, old, new)

    def convert(self, new_uri: str, format: int) -> OmniGraph:
        """Make a new graph in the other form at `new_uri`; returns its handle.

        `format` is 6 for engine 0.9, 2 for the engines up to 0.6.1. It has main's tables with the
        same rows, ids, properties and rules, read and written by Spark in one publish. Older
        versions, other branches, tags, indices and `edgeKeys` are left out; this graph stays as it
        is.

        Raises:
            OptionError: the graph has that form, or there is a graph at `new_uri`.
            UnsupportedError: something that the form can't say (for 2: keys of several properties,
                or of another type than String); nothing was made.
            CorruptManifestError: tables and schema contradict each other; nothing was made.
            OmnigraphError: as `write`; a graph without rows may be left at `new_uri`.
        """
        from omnigraph_spark.schema_changes import conversion
        from omnigraph_spark.storage.store import normalize_root

        source = cast("OmniGraph", self)
        target = replace(source, uri=normalize_root(new_uri))
        conversion.convert(source, target, format)
        return target
