"""Arguments of the Python API have the types that its methods declare, or are refused by name.

Runs where the methods run, on the driver or a Connect client, before anything else.
"""

from __future__ import annotations

import ast
import functools
import inspect
import numbers
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from omnigraph_spark.errors import OptionError

_Class = TypeVar("_Class", bound=type)
Fits = Callable[[Any], bool]

_LONGEST = 60
_CLASSES = ("DataFrame", "Column", "DataType", "StructType", "datetime", "timedelta")
"""Looked up by name: Spark's have several implementations, and none is imported for this."""
_PACKAGES = ("pyspark", "datetime")
"""Of the classes above; pandas has a DataFrame too."""


def _is_iterable(value: Any) -> bool:
    return isinstance(value, Iterable) and not isinstance(value, (str, bytes, Mapping))


_PLAIN: Mapping[str, Fits] = {
    "str": lambda value: isinstance(value, str),
    "int": lambda value: isinstance(value, numbers.Integral) and not isinstance(value, bool),
    "float": lambda value: isinstance(value, numbers.Real) and not isinstance(value, bool),
    "bool": lambda value: isinstance(value, bool),
    "None": lambda value: value is None,
    "list": _is_iterable,
    "Iterable": _is_iterable,
    "Sequence": lambda value: isinstance(value, Sequence) and _is_iterable(value),
    "tuple": lambda value: isinstance(value, (tuple, list)),
    "Mapping": lambda value: isinstance(value, Mapping),
    "Callable": callable,
    "Check": callable,
}


def checked(kind: _Class) -> _Class:
    """Decorate a class: its public methods refuse arguments of other types than they declare.

    The methods then raise `OptionError`, which names method, argument and what it expects.
    """
    for name, method in inspect.getmembers(kind, inspect.isfunction):
        if not name.startswith("_"):
            setattr(kind, name, _checking(method))
    return kind


def _checking(method: Callable[..., Any]) -> Callable[..., Any]:
    signature = inspect.signature(method)
    rules = {
        name: (str(parameter.annotation), rule)
        for name, parameter in signature.parameters.items()
        if parameter.kind not in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL)
        and (rule := _rule(str(parameter.annotation))) is not None
    }

    @functools.wraps(method)
    def calling(*args: Any, **kwargs: Any) -> Any:
        try:
            given = signature.bind(*args, **kwargs).arguments
        except TypeError:  # Python's own text for what is missing or unknown is the best there is
            return method(*args, **kwargs)
        for name, (text, fits) in rules.items():
            if name in given and not fits(given[name]):
                raise OptionError(
                    f"{method.__name__}: {name} is of type {type(given[name]).__name__}",
                    expected=text,
                    found=repr(given[name])[:_LONGEST],
                    hint="Nothing was done",
                )
        return method(*args, **kwargs)

    return calling


def _rule(annotation: str) -> Fits | None:
    """Return what fits an annotation; None for one that says nothing, or nothing known."""
    try:
        return _of(ast.parse(annotation, mode="eval").body)
    except SyntaxError:
        return None


def _of(node: ast.expr) -> Fits | None:
    match node:
        case ast.Constant(value=None):
            return _PLAIN["None"]
        case ast.Name(id=name) if name in _CLASSES:
            return lambda value: any(
                ancestor.__name__ == name and ancestor.__module__.partition(".")[0] in _PACKAGES
                for ancestor in type(value).__mro__
            )
        case ast.Name(id=name):
            return _PLAIN.get(name)
        case ast.BinOp(left=left, op=ast.BitOr(), right=right):
            first, other = _of(left), _of(right)
            if first is None or other is None:
                return None
            return lambda value: first(value) or other(value)
        case ast.Subscript(value=ast.Name(id=name), slice=inner) if name in _PLAIN:
            return _container(_PLAIN[name], name, inner)
    return None


def _container(outer: Fits, name: str, inner: ast.expr) -> Fits:
    """Return what fits a container; a mapping's parts are named better by who reads them."""
    looks_inside = name not in ("Mapping", "Callable") and not isinstance(inner, ast.Tuple)
    of_element = _of(inner) if looks_inside else None
    if of_element is None:
        return outer
    return lambda value: (
        outer(value)
        and (not isinstance(value, (list, tuple, set, frozenset)) or all(map(of_element, value)))
    )
