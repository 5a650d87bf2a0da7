"""The examples in the documentation run, and print what the pages show.

The Python blocks of a page run in order, in one namespace. A `text` block that follows
one is what it prints; a block without one prints nothing. A block that opens with
"python no-run" is left out.
"""

from __future__ import annotations

import contextlib
import io
import re
import tempfile
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]

_BLOCK = re.compile(r"^```(?P<info>[^\n`]*)\n(?P<body>.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True, slots=True)
class Example:
    """A block to run, where it stands in its page, and what it prints."""

    line: int
    code: str
    output: str


def examples(page: Path) -> list[Example]:
    """The blocks of a page that are to be run."""
    text = page.read_text()
    blocks = list(_BLOCK.finditer(text))
    found = []
    for block, after in zip_longest(blocks, blocks[1:]):
        if block["info"] == "python":
            shown = after["body"] if after is not None and after["info"] == "text" else ""
            line = 1 + text.count("\n", 0, block.start("body"))
            found.append(Example(line, block["body"], shown))
    return found


PAGES = [page for page in [ROOT / "README.md", *sorted(ROOT.glob("docs/*.md"))] if examples(page)]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
@pytest.mark.usefixtures("spark")
def test_the_examples_of_a_page_print_what_it_shows(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    # As in a script: what `__main__` defines is shipped to workers by value.
    namespace: dict[str, Any] = {"__name__": "__main__"}
    for example in examples(page):
        # Blank lines before it give a traceback the line numbers of the page.
        source = "\n" * (example.line - 1) + example.code
        code = compile(source, str(page), "exec", dont_inherit=True)
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(code, namespace)
        assert printed.getvalue().rstrip() == example.output.rstrip(), f"{page}:{example.line}"
