"""Where a test's graph lives: a folder of this machine, or a bucket. One suite runs on both."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from omnigraph_spark.storage.store import Storage
from tests.support import graphs
from tests.support.s3 import Bucket


@dataclass(frozen=True)
class Store:
    """Makes roots of graphs in a fresh place; `options` are what Spark's reader and writer need."""

    kind: str  # "local" or "s3"
    folder: Path
    bucket: Bucket | None

    @property
    def options(self) -> Mapping[str, str]:
        """Return the data source's options (`storage.…`), without keys; {} for folders."""
        return {} if self.bucket is None else self.bucket.spark_options

    @property
    def storage_options(self) -> dict[str, str] | None:
        """Return Lance's storage options, keys included; None for folders."""
        return None if self.bucket is None else self.bucket.storage_options

    def uri(self, name: str) -> str:
        """Return the root of a graph that isn't there yet."""
        return str(self.folder / name) if self.bucket is None else f"{self.bucket.uri}/{name}"

    def storage(self, name: str) -> Storage:
        """Return the `Storage` of `uri(name)`."""
        return Storage.at(self.uri(name), self.storage_options)

    def fixture(self, generation: str, graph: str, name: str | None = None) -> str:
        """Put a graph that the engine wrote into the store and return its root."""
        root = graphs.unpack(generation, graph, self.folder / "unpacked" / generation)
        if self.bucket is not None:
            return self.bucket.upload(root, name or graph)
        if name is not None:
            return str(root.rename(self.folder / name))
        return str(root)
