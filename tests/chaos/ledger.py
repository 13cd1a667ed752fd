"""What each writer process says of its writes, in a file of its own, fsynced line by line.

A write is acknowledged, failed, or ambiguous: its process died before it heard, or was told that
the outcome is unknown.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ACKNOWLEDGED, FAILED, AMBIGUOUS = "acknowledged", "failed", "ambiguous"
APPEND, OVERWRITE, DROP = "append", "overwrite", "drop"


@dataclass
class Write:
    """One write as the ledger tells it; `tables` maps table keys to rows."""

    token: str
    publish_id: str
    mode: str
    tables: dict[str, int]
    outcome: str = AMBIGUOUS
    graph_version: int | None = None
    error: dict[str, Any] | None = None
    seconds: float = 0.0
    began: float = 0.0


@dataclass
class Ledger:
    """All writes of a graph by token, and the errors of writes that never got as far as a plan."""

    writes: dict[str, Write] = field(default_factory=dict)
    refused: list[dict[str, Any]] = field(default_factory=list)

    def errors(self) -> list[tuple[str, dict[str, Any]]]:
        """Return (token, error) of everything that raised."""
        found = [(w.token, w.error) for w in self.writes.values() if w.error is not None]
        return found + [(one["token"], one) for one in self.refused]

    def of(self, outcome: str) -> list[Write]:
        """Return the writes with an outcome."""
        return [w for w in self.writes.values() if w.outcome == outcome]


class Pen:
    """Appends to the ledger file of one writer process."""

    def __init__(self, folder: str, writer: str) -> None:
        self.writer = writer
        self._path = Path(folder) / f"{writer}.jsonl"
        self._sequence = 0

    def next_token(self) -> str:
        self._sequence += 1
        return f"{self.writer}.{self._sequence}"

    def begin(self, token: str, publish_id: str, mode: str, tables: Mapping[str, int]) -> None:
        self._line(e="begin", token=token, publish_id=publish_id, mode=mode, tables=dict(tables))

    def acknowledge(self, token: str, graph_version: int, seconds: float) -> None:
        self._line(e=ACKNOWLEDGED, token=token, graph_version=graph_version, seconds=seconds)

    def error(self, outcome: str, token: str, error: dict[str, Any], seconds: float) -> None:
        self._line(e=outcome, token=token, error=error, seconds=seconds)

    def _line(self, **event: Any) -> None:
        data = (json.dumps({**event, "t": time.time()}) + "\n").encode()
        handle = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        try:
            os.write(handle, data)
            os.fsync(handle)
        finally:
            os.close(handle)


def read(folder: str | Path) -> Ledger:
    """Read all writers' files; a line that a kill cut short is left out."""
    ledger = Ledger()
    for path in sorted(Path(folder).glob("*.jsonl")):
        for text in path.read_text(encoding="utf-8").splitlines():
            try:
                event = json.loads(text)
            except json.JSONDecodeError:
                continue
            _take(ledger, event)
    return ledger


def _take(ledger: Ledger, event: dict[str, Any]) -> None:
    token = event["token"]
    if event["e"] == "begin":
        ledger.writes[token] = Write(
            token, event["publish_id"], event["mode"], event["tables"], began=event["t"]
        )
        return
    write = ledger.writes.get(token)
    if write is None:
        ledger.refused.append({"token": token, **event["error"]})
        return
    write.outcome = event["e"]
    write.graph_version = event.get("graph_version")
    write.error = event.get("error")
    write.seconds = event["seconds"]
