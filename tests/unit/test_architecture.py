"""The rules of docs/internals/architecture.md, checked on the source: sizes, imports, and docs that match."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from omnigraph_spark import errors

PROJECT = Path(__file__).resolve().parents[2]
PACKAGE = PROJECT / "omnigraph_spark"
PACKAGES = (PACKAGE, PROJECT / "pyspark_omnigraph")
MAX_MODULE_LINES = 600
MAX_FUNCTION_LINES = 80
MAX_FILES_AT_THE_ROOT = 8

# Packages and modules that may import pyspark; all others are tested without a JVM.
KNOW_SPARK = {
    "omnigraph_spark",  # exports
    "graph",
    "maintenance.integrity_check",
    "maintenance.optimize",
    "merge.diff",
    "merge.merge",
    "merge.on_spark",
    "narrowing",
    "schema_changes",
    "spark",
}

# From the top down: a module imports from its own package or from a lower one, never a higher one.
LAYERS: tuple[tuple[str, ...], ...] = (
    ("omnigraph_spark", "pyspark_omnigraph"),
    ("graph",),
    ("api",),
    ("merge", "schema_changes"),
    ("narrowing",),
    ("spark", "maintenance"),
    ("write.commit",),
    ("write.tasks", "read"),
    ("write",),
    ("refs", "integrity"),
    ("history", "arrow"),
    ("manifest", "options"),
    ("schema", "option_values"),
    ("storage", "_faults", "option_rules"),
    ("errors",),
    ("_redaction",),
)

STAMP_KEY = "omnigraph:internal_schema_version"
STAMP_MODULE = "manifest.formats"


@cache
def _modules() -> tuple[tuple[str, Path, ast.Module], ...]:
    """Return (dotted name below the package, path, syntax tree) of each module of the product."""
    return tuple(_parsed())


def _parsed() -> Iterator[tuple[str, Path, ast.Module]]:
    for package in PACKAGES:
        for path in sorted(package.rglob("*.py")):
            parts = path.relative_to(package).with_suffix("").parts
            name = ".".join(part for part in parts if part != "__init__") or package.name
            yield name, path, ast.parse(path.read_text(encoding="utf-8"))


@cache
def _imports(tree: ast.Module) -> tuple[tuple[str, int], ...]:
    """Return (what is imported, line) of every import that runs, those for type checkers left out.

    `from a.b import c` is `a.b.c`, whether c is a module or a name in a.b.
    """
    imports: list[tuple[str, int]] = []
    waiting: list[ast.AST] = [tree]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Import):
            imports += ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            imports += ((f"{node.module}.{alias.name}", node.lineno) for alias in node.names)
        elif isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            waiting += node.orelse
        elif not isinstance(node, ast.expr):  # no statement is below an expression
            waiting += ast.iter_child_nodes(node)
    return tuple(imports)


@cache
def _package(name: str) -> str:
    """Return the name in LAYERS that a module belongs to: the longest one that fits."""
    known = {place for places in LAYERS for place in places}
    package = name
    while package not in known:
        package = package.rpartition(".")[0]
        assert package, f"{name} has no place in LAYERS of {Path(__file__).name}"
    return package


@cache
def _layer(name: str) -> int:
    return next(level for level, places in enumerate(LAYERS) if _package(name) in places)


def _shown(path: Path) -> str:
    return str(path.relative_to(PROJECT))


def test_no_module_is_longer_than_the_limit() -> None:
    lengths = {_shown(path): len(path.read_text().splitlines()) for _, path, _ in _modules()}
    assert {path: n for path, n in lengths.items() if n > MAX_MODULE_LINES} == {}


def test_what_lies_at_the_root_of_the_package_fits_on_a_hand_and_a_half() -> None:
    assert len(list(PACKAGE.glob("*.py"))) <= MAX_FILES_AT_THE_ROOT


def test_no_function_is_longer_than_the_limit() -> None:
    long = [
        f"{_shown(path)}:{node.lineno} {node.name}: {node.end_lineno - node.lineno + 1} lines"
        for _, path, tree in _modules()
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.end_lineno is not None
        and node.end_lineno - node.lineno + 1 > MAX_FUNCTION_LINES
    ]
    assert long == []


def test_only_the_named_modules_know_pyspark() -> None:
    strangers = [
        f"{_shown(path)}:{line}"
        for name, path, tree in _modules()
        if not {name, name.partition(".")[0]} & KNOW_SPARK
        for module, line in _imports(tree)
        if module.partition(".")[0] == "pyspark"
    ]
    assert strangers == []


def test_nothing_imports_pandas() -> None:
    found = [
        f"{_shown(path)}:{line}"
        for _, path, tree in _modules()
        for module, line in _imports(tree)
        if module.partition(".")[0] == "pandas"
    ]
    assert found == []


@cache
def _imports_of_ours() -> tuple[tuple[str, str, str], ...]:
    """Return (module, module that it imports, place) within omnigraph_spark."""
    known = {name for name, _, _ in _modules()}
    pairs = []
    for name, path, tree in _modules():
        for imported, line in _imports(tree):
            if imported.partition(".")[0] != PACKAGE.name:
                continue
            target = imported.removeprefix(f"{PACKAGE.name}.")
            while target not in known:
                target = target.rpartition(".")[0] or PACKAGE.name
            if target != name:
                pairs.append((name, target, f"{_shown(path)}:{line} imports {target}"))
    return tuple(pairs)


def test_imports_point_downwards() -> None:
    upward = [
        place
        for name, target, place in _imports_of_ours()
        if name != "pyspark_omnigraph" and _layer(target) < _layer(name)
    ]
    assert upward == []


def test_no_modules_import_each_other_in_a_circle() -> None:
    graph: dict[str, set[str]] = {}
    for name, target, _ in _imports_of_ours():
        graph.setdefault(name, set()).add(target)
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(f"a circle of imports: {' -> '.join(error.args[1])}")


def test_no_two_packages_import_each_other() -> None:
    crossing: dict[tuple[str, str], str] = {}
    for name, target, place in _imports_of_ours():
        if _package(name) != _package(target):
            crossing.setdefault((_package(name), _package(target)), place)
    both_ways = {place for (a, b), place in crossing.items() if (b, a) in crossing}
    assert both_ways == set()


def test_read_and_write_do_not_import_each_other() -> None:
    crossing = [
        place
        for name, target, place in _imports_of_ours()
        if {name.partition(".")[0], target.partition(".")[0]} == {"read", "write"}
    ]
    assert crossing == []


def test_who_plans_a_read_imports_nothing_that_writes() -> None:
    """Spark 4.0 plans each read in a new process: a tenth of a second, for nothing."""
    code = (
        "import sys, omnigraph_spark.spark.datasource, omnigraph_spark.spark.reader\n"
        "print([name for name in sys.modules if name.startswith('omnigraph_spark.write')])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_lance_is_imported_late() -> None:
    """`import lance` costs a third of a second in every Python worker (fact 15)."""
    early = [
        f"{_shown(path)}:{node.lineno}"
        for _, path, tree in _modules()
        for node in tree.body
        for module, _ in _imports(node)
        if module.partition(".")[0] == "lance" and isinstance(node, ast.Import | ast.ImportFrom)
    ]
    assert early == []


def test_only_formats_looks_at_the_stamp() -> None:
    sources = {name: path.read_text(encoding="utf-8") for name, path, _ in _modules()}
    assert {name for name, text in sources.items() if STAMP_KEY in text} == {STAMP_MODULE}


def test_what_catches_everything_raises_it_again_or_keeps_it() -> None:
    """Ruff looks after `except Exception`; Rust panics are no `Exception` and are caught wider."""
    swallowing = [
        f"{_shown(path)}:{node.lineno}"
        for _, path, tree in _modules()
        for node in ast.walk(tree)
        if isinstance(node, ast.ExceptHandler)
        and (node.type is None or ast.unparse(node.type) == "BaseException")
        and not _raises_or_uses(node)
    ]
    assert swallowing == []


def _raises_or_uses(handler: ast.ExceptHandler) -> bool:
    return any(
        isinstance(node, ast.Raise) or (isinstance(node, ast.Name) and node.id == handler.name)
        for node in ast.walk(handler)
    )


def test_the_generated_tables_of_the_docs_are_up_to_date() -> None:
    """The table of docs/options.md and the codes of docs/errors.md."""
    check = subprocess.run(
        [sys.executable, str(PROJECT / "docs" / "generate.py"), "--check"],
        cwd=PROJECT,
        env={**os.environ, "PYTHONPATH": str(PROJECT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (check.returncode, check.stderr) == (0, "")


def test_every_error_code_belongs_to_one_class() -> None:
    codes = [
        vars(kind)["code"] for kind in _error_classes(errors.OmnigraphError) if "code" in vars(kind)
    ]
    assert len(codes) == len(set(codes))


def test_every_error_class_of_the_product_is_in_errors_or_inherits_a_code() -> None:
    elsewhere = [
        kind.__qualname__
        for kind in _error_classes(errors.OmnigraphError)
        if kind.__module__ != errors.__name__ and "code" in vars(kind)
    ]
    assert elsewhere == []


def _error_classes(kind: type[errors.OmnigraphError]) -> Iterator[type[errors.OmnigraphError]]:
    yield kind
    for sub in kind.__subclasses__():
        yield from _error_classes(sub)


@pytest.mark.parametrize("extra", ["pylance", "pyarrow", "obstore", "duckdb", "numpy"])
def test_the_lower_bounds_are_the_versions_that_the_second_half_of_the_tests_runs_on(
    extra: str,
) -> None:
    declared = re.search(rf'"{extra}>=([0-9.]+)', (PROJECT / "pyproject.toml").read_text("utf-8"))
    tested = re.search(
        rf"^FLOORS = .*\b{extra}==([0-9.]+)", (PROJECT / "Makefile").read_text(), re.M
    )
    assert declared
    assert tested
    assert declared.group(1) == tested.group(1)
