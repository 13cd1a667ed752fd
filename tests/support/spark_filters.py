"""Spark's filter classes; PySpark 4.0 has none, so there equals in name and shape stand in."""

from __future__ import annotations

from dataclasses import make_dataclass
from typing import Any

NAMES = (
    "EqualTo", "EqualNullSafe", "GreaterThan", "GreaterThanOrEqual", "LessThan", "LessThanOrEqual",
    "In", "StringStartsWith", "StringEndsWith", "StringContains", "IsNull", "IsNotNull", "Not",
)  # fmt: skip


def _classes() -> dict[str, Any]:
    import pyspark.sql.datasource as source

    if hasattr(source, "EqualTo"):
        return {name: getattr(source, name) for name in NAMES}
    shapes = {"Not": ["child"], "IsNull": ["attribute"], "IsNotNull": ["attribute"]}
    return {
        name: make_dataclass(name, shapes.get(name, ["attribute", "value"]), frozen=True)
        for name in NAMES
    }


CLASSES = _classes()
EqualTo = CLASSES["EqualTo"]
EqualNullSafe = CLASSES["EqualNullSafe"]
GreaterThan = CLASSES["GreaterThan"]
LessThan = CLASSES["LessThan"]
In = CLASSES["In"]
IsNull = CLASSES["IsNull"]
IsNotNull = CLASSES["IsNotNull"]
Not = CLASSES["Not"]
StringStartsWith = CLASSES["StringStartsWith"]
StringContains = CLASSES["StringContains"]
