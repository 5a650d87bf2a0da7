"""The tree keeps its shape, and the page that explains it names what exists."""

from __future__ import annotations

import ast
import re
import runpy
from collections import Counter
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


def test_a_package_has_at_most_fifteen_modules_and_says_what_it_is_for() -> None:
    counts = Counter(path.parent for path in MODULES.values())
    assert {str(path): n for path, n in counts.items() if n > 15} == {}
    for package in counts:
        text = (package / "__init__.py").read_text()
        assert ast.get_docstring(ast.parse(text)), package


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
