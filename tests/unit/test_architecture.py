"""The tree keeps its shape, and the page that explains it names what exists."""

from __future__ import annotations

import ast
import re
import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "holdfast"
PAGE = (ROOT / "docs" / "architecture.md").read_text()
MODULES = {
    "holdfast." + ".".join(path.relative_to(SOURCE).with_suffix("").parts): path
    for path in SOURCE.rglob("*.py")
    if path.stem != "__init__"
}
NAMED = sorted(set(re.findall(r"`((?:[a-z_]+/)+[a-z_]+\.py)`", PAGE)))
FLOOR = {"errors", "clock", "_faults", "_version"}
"""Modules that every package may import."""
FLUENT = {
    f"holdfast.api.streams.{name}"
    for name in ("data_stream", "keyed_stream", "connected", "windowed", "window_joins")
}
"""Streams lead to one another: each of these has methods that return the others."""


def imports(module: str) -> set[str]:
    """Modules of Holdfast that a module imports anywhere, for type checkers too."""
    found = set()
    for node in ast.walk(ast.parse(MODULES[module].read_text())):
        if isinstance(node, ast.ImportFrom) and node.module is not None:
            found |= {node.module, *(f"{node.module}.{name.name}" for name in node.names)}
        elif isinstance(node, ast.Import):
            found |= {name.name for name in node.names}
    return found & MODULES.keys() - {module}


def reachable(start: str, graph: dict[str, set[str]]) -> set[str]:
    """Modules that `start` imports, directly or not."""
    found: set[str] = set()
    todo = [start]
    while todo:
        new = graph[todo.pop()] - found
        found |= new
        todo += new
    return found


def test_no_module_imports_itself_through_others() -> None:
    graph = {module: imports(module) for module in MODULES}
    in_cycles = {module for module in graph if module in reachable(module, graph)}
    assert in_cycles <= FLUENT


def packages() -> dict[str, Path]:
    """Directories of all packages below `holdfast`, by their dotted names."""
    found = (path.parent for path in SOURCE.rglob("__init__.py"))
    return {".".join(path.relative_to(SOURCE).parts): path for path in found if path != SOURCE}


def test_a_package_has_three_to_fifteen_modules() -> None:
    sizes = {
        name: sum(path.stem != "__init__" for path in directory.glob("*.py"))
        for name, directory in packages().items()
        # It holds a package for each system, and what they share.
        if name != "connectors"
    }
    assert {name: size for name, size in sizes.items() if not 3 <= size <= 15} == {}


@pytest.mark.parametrize("package", packages())
def test_a_package_says_what_it_holds_what_it_does_not_and_what_it_imports(package: str) -> None:
    directory = packages()[package]
    text = ast.get_docstring(ast.parse((directory / "__init__.py").read_text())) or ""
    purpose, _, rest = text.partition("\n\n")
    assert purpose
    assert "\n" not in purpose
    assert "Not here: " in rest
    allowed = set(re.findall(r"`(\w+)`", rest.partition("\nImports: ")[2]))
    modules = {name for name, path in MODULES.items() if path.parent == directory}
    imported = {found.split(".")[1] for module in modules for found in imports(module)}
    assert imported - FLOOR - {package.partition(".")[0]} <= allowed


def test_no_module_is_too_long_to_read_in_one_sitting() -> None:
    lengths = {module: len(path.read_text().splitlines()) for module, path in MODULES.items()}
    assert {module: n for module, n in lengths.items() if n > 500} == {}


def test_the_figure_of_the_packages_shows_the_tree() -> None:
    drawing = runpy.run_path(str(ROOT / "scripts" / "draw_packages.py"))
    packages = {".".join(path.parent.relative_to(SOURCE).parts) for path in MODULES.values()} - {""}
    assert {package for layer in drawing["LAYERS"] for package in layer} == packages
    assert drawing["FIGURE"].read_text() == drawing["figure"](), "run `make figures`"


@pytest.mark.parametrize("path", NAMED)
def test_every_module_that_the_page_names_exists(path: str) -> None:
    assert (SOURCE / path).is_file()


def test_the_page_answers_where_a_dozen_changes_belong() -> None:
    table = PAGE.partition("## Where do I change X?")[2]
    rows = [line for line in table.splitlines() if line.startswith("| ")]
    assert len(rows) > 12
