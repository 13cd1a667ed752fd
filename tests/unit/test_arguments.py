"""Arguments of the Python API: of the declared types, or refused by name before anything is done."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import pytest

from omnigraph_spark import OmniGraph
from omnigraph_spark.api.arguments import checked
from omnigraph_spark.api.staging import Staged, Transaction
from omnigraph_spark.errors import OptionError


@checked
class Api:
    def text(self, name: str, other: str | None = None) -> Any:
        return name, other

    def number(self, count: int, share: float = 0.5) -> Any:
        return count, share

    def flag(self, on: bool = True) -> Any:
        return on

    def many(self, names: Iterable[str] | None = None, order: Sequence[int] = ()) -> Any:
        return names, order

    def by_name(self, frames: Mapping[str, int], make: Callable[[int], str] | None = None) -> Any:
        return frames, make

    def anything(self, value: Any, *more: int, **options: int) -> Any:
        return value, more, options

    def _own(self, name: str) -> Any:
        return name


GOOD = [
    ("text", ("a", None), {}),
    ("text", (), {"name": "", "other": "b"}),
    ("number", (0, 1), {}),
    ("number", (-1, 0.25), {}),
    ("flag", (False,), {}),
    ("many", (["a"], (1, 2)), {}),
    ("many", ({"a"},), {}),
    ("many", (None, [1]), {}),
    ("by_name", ({"a": 1}, str), {}),
    ("by_name", ({}, None), {}),
    ("anything", (object(), "x"), {"y": "z"}),
    ("_own", (1,), {}),
]
BAD = [
    ("text", (None,), "name", "NoneType"),
    ("text", (b"a",), "name", "bytes"),
    ("text", ("a", 1), "other", "int"),
    ("number", (True,), "count", "bool"),
    ("number", ("1",), "count", "str"),
    ("number", (1.0,), "count", "float"),
    ("number", (1, "0.5"), "share", "str"),
    ("flag", (1,), "on", "int"),
    ("flag", ("true",), "on", "str"),
    ("many", ("abc",), "names", "str"),
    ("many", ([1],), "names", "list"),
    ("many", ({"a": 1},), "names", "dict"),
    ("many", (None, {1}), "order", "set"),
    ("by_name", ([("a", 1)],), "frames", "list"),
    ("by_name", ({}, 5), "make", "int"),
]


@pytest.mark.parametrize(("method", "args", "kwargs"), GOOD)
def test_what_fits_its_annotation_arrives_as_it_is(
    method: str, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    assert getattr(Api(), method)(*args, **kwargs) is not None


@pytest.mark.parametrize(("method", "args", "name", "kind"), BAD)
def test_what_does_not_fit_is_refused_with_its_name_and_type(
    method: str, args: tuple[Any, ...], name: str, kind: str
) -> None:
    with pytest.raises(OptionError, match=f"{method}: {name} is of type {kind} ") as caught:
        getattr(Api(), method)(*args)
    assert caught.value.expected
    assert caught.value.found


def test_missing_and_unknown_arguments_are_pythons_own_errors() -> None:
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'name'"):
        Api().text()  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="unexpected keyword argument 'nam'"):
        Api().text("a", nam=1)  # type: ignore[call-arg]


def test_a_frame_of_another_library_is_not_taken_for_one_of_sparks() -> None:
    frame = type("DataFrame", (), {"__module__": "pandas.core.frame"})()
    graph = object.__new__(OmniGraph)
    with pytest.raises(OptionError, match="merge_into: frame is of type DataFrame"):
        graph.merge_into("node:Person", frame)


@pytest.mark.parametrize("kind", [OmniGraph, Transaction, Staged])
def test_every_public_method_refuses_an_object_for_each_of_its_declared_arguments(
    kind: type,
) -> None:
    refused = 0
    graph: Any = object.__new__(kind)  # nothing is set: a check that comes too late fails otherwise
    for name, method in inspect.getmembers(kind, inspect.isfunction):
        parameters = [
            p
            for p in list(inspect.signature(method).parameters.values())[1:]
            if p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)
        ]
        for one in parameters:
            if (
                name.startswith("_")
                or "Any" in str(one.annotation)
                or "Clauses" in str(one.annotation)
            ):
                continue
            first = {p.name: object() for p in parameters if p.default is p.empty and p is not one}
            with pytest.raises(OptionError, match=rf"^\[OMNIGRAPH_OPTION\] {name}: "):
                getattr(graph, name)(**{one.name: object(), **first})
            refused += 1
    assert refused >= (80 if kind is OmniGraph else 5)
