"""Draws docs/figures/packages.svg, the packages and modules of Holdfast: `make figures`."""

from __future__ import annotations

import ast
from html import escape
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "holdfast"
FIGURE = ROOT / "docs" / "figures" / "packages.svg"
LAYERS = (
    ("cli",),
    ("connectors", "connectors.files", "connectors.postgres"),
    ("spark", "spark.sources", "spark.placement", "testing"),
    ("control", "registry"),
    ("state_processor",),
    ("checkpoint", "checkpoint.files", "checkpoint.commit"),
    ("checkpoint.restore", "checkpoint.savepoint"),
    ("job",),
    ("runtime", "runtime.operators", "runtime.windows"),
    ("state", "state.store", "state.tables"),
    ("state.operator", "state.timers", "state.ttl"),
    ("api", "api.streams", "api.windows"),
    ("serde", "storage", "config"),
    ("types", "types.columns"),
)
"""Packages from top to bottom: a top-level package imports only from top-level packages below it.

Packages of one top-level package may stand in any order and may import one another.
"""
WIDTH, MARGIN, GAP, LINE, LETTER = 1180, 16, 10, 15, 6.3
HEAD = 40


def modules(package: str) -> list[str]:
    """The modules of a package, by name."""
    directory = SOURCE / package.replace(".", "/")
    return sorted(path.stem for path in directory.glob("*.py") if path.stem != "__init__")


def purpose(package: str) -> str:
    """First line of the package's docstring."""
    source = (SOURCE / package.replace(".", "/") / "__init__.py").read_text()
    return (ast.get_docstring(ast.parse(source)) or "").partition("\n")[0]


def figure() -> str:
    """The figure as SVG."""
    parts: list[str] = []
    top = MARGIN
    for layer in LAYERS:
        width = (WIDTH - 2 * MARGIN - GAP * (len(layer) - 1)) / len(layer)
        boxes = [(package, _wrapped(modules(package), width)) for package in layer]
        whys = [_wrapped(purpose(package).split(), width, " ") for package in layer]
        heads = max(map(len, whys))
        height = HEAD - 14 + LINE * (heads + max(len(lines) for _, lines in boxes))
        for place, (package, lines) in enumerate(boxes):
            left = MARGIN + place * (width + GAP)
            parts.append(
                f'<rect x="{left:.0f}" y="{top}" width="{width:.0f}" height="{height}" rx="6" '
                'fill="#f5f7fa" stroke="#9aa5b1"/>'
            )
            parts.append(_text(left + 10, top + 18, package, weight="bold"))
            for row, line in enumerate(whys[place]):
                parts.append(_text(left + 10, top + 18 + LINE * (row + 1), line, colour="#52606d"))
            for row, line in enumerate(lines):
                below = top + 18 + LINE * (row + 1 + heads)
                parts.append(_text(left + 10, below, line, colour="#1f5e8c"))
        top += height + GAP
    floor = "errors · clock · _faults · _version"
    parts.append(_text(MARGIN + 10, top + 14, floor, colour="#1f5e8c"))
    height = top + 30
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-size="11.5" '
        'font-family="system-ui, sans-serif" role="img" aria-label="The packages of Holdfast">'
    )
    ground = f'<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>'
    return "\n".join([head, ground, *parts, "</svg>", ""])


def _wrapped(words: list[str], width: float, between: str = " · ") -> list[str]:
    lines = [""]
    for word in words:
        longer = f"{lines[-1]}{between}{word}" if lines[-1] else word
        if len(longer) * LETTER > width - 20 and lines[-1]:
            lines.append(word)
        else:
            lines[-1] = longer
    return lines


def _text(x: float, y: float, text: str, *, colour: str = "#1f2933", weight: str = "") -> str:
    bold = f' font-weight="{weight}"' if weight else ""
    return f'<text x="{x:.0f}" y="{y}"{bold} fill="{colour}">{escape(text)}</text>'


if __name__ == "__main__":
    FIGURE.write_text(figure())
    print(FIGURE)
