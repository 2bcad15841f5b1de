"""README.md and docs/: links resolve, lines are short, every page is in the index."""

from __future__ import annotations

import re
from functools import cache
from typing import TYPE_CHECKING

import pytest

from docs_site.blocks import pages, without_blocks
from docs_site.tables import anchor
from support.paths import ROOT

if TYPE_CHECKING:
    from pathlib import Path

PAGES = pages()
LINK = re.compile(r"\]\((?!https?:)([^)\s]+)\)")
PROSE_LIMIT, CELL_LIMIT = 160, 200

every_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))


@cache
def prose(page: Path) -> str:
    """The page without its fenced blocks."""
    return without_blocks(page)


@cache
def anchors(page: Path) -> set[str]:
    """The anchors that GitHub makes of the headings of a page."""
    return {anchor(heading) for heading in re.findall(r"^#+ (.+)$", prose(page), re.MULTILINE)}


OTHERS = [ROOT / name for name in ("CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md")]


@pytest.mark.parametrize("page", [*PAGES, *OTHERS], ids=lambda page: page.name)
def test_links_and_anchors_resolve(page: Path) -> None:
    for link in LINK.findall(prose(page)):
        name, _, place = link.partition("#")
        target = (page.parent / name).resolve() if name else page
        assert target.exists(), link
        assert not place or place in anchors(target), link


def test_every_page_is_linked_from_the_index() -> None:
    index = ROOT / "docs" / "index.md"
    linked = {(index.parent / link.partition("#")[0]).resolve() for link in LINK.findall(prose(index))}
    assert {page for page in PAGES[1:] if page != index} <= linked


@every_page
def test_lines_and_cells_are_short(page: Path) -> None:
    for line in prose(page).splitlines():
        if line.lstrip().startswith("|"):
            assert max(map(len, re.split(r"(?<!\\)\|", line))) <= CELL_LIMIT, line
        else:
            assert len(line) <= PROSE_LIMIT, line


@every_page
def test_lists_and_tables_follow_a_blank_line(page: Path) -> None:
    """GitHub starts a list or a table in the middle of a paragraph, the site does not."""
    before = ""
    for line in prose(page).splitlines():
        starts = re.match(r"(- |\* |\d+\. |\|)", line)
        continues = re.match(r"( |- |\* |\d+\. |\|)", before)
        assert not (starts and before and not continues), line
        before = line
