"""Write the tables that come from the code into docs/ again (`make docs`).

A test fails when they differ, so nobody has to remember to run this.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from omnigraph_spark import errors, options

PROJECT = Path(__file__).resolve().parents[1]

# Where a docstring names the page of docs/internals that a rule comes from.
SOURCE = re.compile(r" \((?:rules?|facts?|format\.md)\b[^)]*\)")


def generated() -> dict[Path, str]:
    """Return each file that has a generated table, with its text as it should be."""
    tables = {
        "docs/options.md": ("options", options.markdown_table()),
        "docs/errors.md": ("errors", error_table()),
        "docs/internals/architecture.md": ("modules", module_table()),
    }
    return {
        PROJECT / name: replace_between((PROJECT / name).read_text(encoding="utf-8"), *table)
        for name, table in tables.items()
    }


def module_table() -> str:
    """Return one row per module of the package: its path and its docstring's first paragraph."""
    rows = ["| module | what |", "|---|---|"]
    package = PROJECT / "omnigraph_spark"
    for path in sorted(package.rglob("*.py"), key=lambda path: (len(path.parts), path)):
        docstring = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
        summary = SOURCE.sub("", " ".join(docstring.split("\n\n")[0].split()))
        if path.name != "__init__.py" and summary:
            rows.append(f"| `{path.relative_to(package)}` | {summary} |")
    return "\n".join(rows)


def error_table() -> str:
    """Return the table of error codes: one row per class of `errors`."""
    rows = ["| code | class | it means |", "|---|---|---|"]
    rows += [
        f"| `OMNIGRAPH_{kind.code}` | `{kind.__name__}` | {(kind.__doc__ or '').splitlines()[0]} |"
        for kind in sorted(error_classes(errors.OmnigraphError), key=lambda kind: kind.code)
        if kind.__module__ == errors.__name__ and kind is not errors.OmnigraphError
    ]
    return "\n".join(rows)


def error_classes(kind: type[errors.OmnigraphError]) -> Iterator[type[errors.OmnigraphError]]:
    """Yield a class and all below it."""
    yield kind
    for sub in kind.__subclasses__():
        yield from error_classes(sub)


def replace_between(text: str, name: str, new: str) -> str:
    """Return `text` with what stands between the markers of `name` replaced."""
    begin, end = f"<!-- {name}: begin", f"<!-- {name}: end -->"
    pattern = re.compile(rf"({re.escape(begin)}[^>]*-->\n).*?(\n{re.escape(end)})", re.DOTALL)
    replaced, count = pattern.subn(lambda match: f"{match[1]}{new}{match[2]}", text)
    if count != 1:
        raise SystemExit(f"expected one pair of markers named {name}, found {count}")
    return replaced


def main() -> None:
    """Write every generated table; with `--check` only say which files differ."""
    stale = {path: new for path, new in generated().items() if path.read_text("utf-8") != new}
    if "--check" in sys.argv[1:]:
        sys.exit("".join(f"{path.name} is stale: run `make docs`\n" for path in stale) or 0)
    for path, new in stale.items():
        path.write_text(new, encoding="utf-8")


if __name__ == "__main__":
    main()
