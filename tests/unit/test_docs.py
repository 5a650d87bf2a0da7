"""The documentation agrees with the code, and its links lead somewhere."""

from __future__ import annotations

import re
from enum import Enum
from pathlib import Path

import pytest

import holdfast
from holdfast import errors
from holdfast.config.configuration import OPTIONS

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = sorted([ROOT / "README.md", ROOT / "CHANGELOG.md", *DOCS.rglob("*.md")])

_FENCED = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
_HEADING = re.compile(r"^#+ +(.+?) *$", re.MULTILINE)


def prose(page: Path) -> str:
    """A page without its code."""
    return _FENCED.sub("", page.read_text())


def anchors(page: Path) -> set[str]:
    """What the headings of a page can be linked by."""
    found = (re.sub(r"[^\w\- ]", "", heading.lower()) for heading in _HEADING.findall(prose(page)))
    return {heading.replace(" ", "-") for heading in found}


def options_table() -> str:
    """The table of all options, as docs/running.md shows it."""
    rows = ["| Key | Default | What it does |", "|---|---|---|"]
    for option in OPTIONS.values():
        default = option.default
        if isinstance(default, bool):
            default = str(default).lower()
        elif isinstance(default, Enum):
            default = default.value
        shown = "not set" if default is None else f"`{default}`"
        rows.append(f"| `{option.key}` | {shown} | {option.description} |")
    return "\n".join(rows)


def mentioned(name: str, text: str) -> bool:
    """Whether a name stands in a text as a word of its own."""
    return re.search(rf"\b{re.escape(name)}\b", text) is not None


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_leads_to_a_page_and_a_heading_that_exist(page: Path) -> None:
    for link in _LINK.findall(prose(page)):
        if link.startswith(("https://", "http://")):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), f"{page.name} links to {link}"
        if anchor:
            assert anchor in anchors(target), f"{page.name} links to {link}"


def test_every_page_is_linked_from_the_map_of_the_documentation() -> None:
    links = set(_LINK.findall(prose(DOCS / "index.md")))
    assert {page.name for page in DOCS.glob("*.md")} - {"index.md"} <= links


def test_every_decision_is_linked_from_the_list_of_decisions() -> None:
    links = set(_LINK.findall(prose(DOCS / "design" / "README.md")))
    records = {page.name for page in (DOCS / "design").glob("*.md")} - {"README.md"}
    assert records
    assert records <= links


def test_every_decision_says_context_decision_and_what_was_given_up() -> None:
    for page in (DOCS / "design").glob("[0-9]*.md"):
        assert {"context", "decision", "what-was-given-up"} <= anchors(page), page.name


def test_the_table_of_options_is_that_of_the_code() -> None:
    assert options_table() in (DOCS / "running.md").read_text()


def test_every_public_name_is_documented() -> None:
    text = "\n".join(page.read_text() for page in PAGES)
    shelves = [getattr(holdfast, shelf) for shelf in vars(holdfast)["_SHELVES"]]
    names = [name for module in (holdfast, *shelves) for name in getattr(module, "__all__", ())]
    assert [name for name in names if not mentioned(name, text)] == []


def test_every_error_is_in_the_table_of_errors() -> None:
    text = (DOCS / "running.md").read_text()
    names = [n for n, v in vars(errors).items() if isinstance(v, type) and n.endswith("Error")]
    assert [name for name in names if not mentioned(name, text)] == []


def test_the_numbers_among_the_limits_are_those_of_the_code() -> None:
    from holdfast.config.parallelism import MAX_PARALLELISM_LIMIT
    from holdfast.spark.session import QUERY_SETTINGS
    from holdfast.state.backend import CACHE_LIMIT
    from holdfast.state.list import MAX_CHUNKS
    from holdfast.state.store.write_buffer import MAX_BYTES

    text = " ".join((DOCS / "limits.md").read_text().split())
    rows = int(QUERY_SETTINGS["spark.sql.execution.arrow.maxRecordsPerBatch"])
    megabytes = int(QUERY_SETTINGS["spark.sql.execution.arrow.maxBytesPerBatch"]) >> 20
    assert f"up to {rows:,} rows, or about {megabytes} MB" in text
    assert f"at most about {CACHE_LIMIT:,} entries" in text
    assert f"at most {MAX_BYTES:,} bytes" in text
    assert f"in more than {MAX_CHUNKS} epochs" in text
    assert f"ends at {MAX_PARALLELISM_LIMIT:,}" in text


def test_every_setting_that_a_cluster_needs_is_documented() -> None:
    from holdfast.spark.session import CLUSTER_SETTINGS

    text = (DOCS / "running.md").read_text()
    for key, (wanted, _) in CLUSTER_SETTINGS.items():
        assert f"| `{key}` | `{wanted}` |" in text
