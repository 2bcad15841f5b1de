"""Fenced blocks of pages, and the reasons why tests do not execute some of them.

Tests execute every Python block and every command of a shell block. A page marks exceptions with a comment that readers
do not see, in the line before the block, or with the first line of the block::

    <!-- not run: starts a service -->
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from docs_site.markdown import cell, code, page, table

ROOT = Path(__file__).parents[1]
EXECUTED = ("python", "sh")
_BLOCK = re.compile(
    r"^(?:<!-- not run: (?P<mark>.+?) -->\n+)?(?P<indent> *)```(?P<language>\w*)\n(?P<body>.*?)^(?P=indent)```$",
    re.MULTILINE | re.DOTALL,
)
_FIRST_LINE = re.compile(r"# not run: (.+)")


@dataclass(frozen=True)
class Block:
    """A fenced block of a page.

    Attributes:
        language: Language after the fence, empty for output.
        body: Lines of the block.
        reason: Why tests do not execute it; empty if they do.
        line: Line of the page, from 1.
    """

    language: str
    body: str
    reason: str
    line: int


def pages() -> list[Path]:
    """Return README.md and all pages in docs/."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def blocks(path: Path, language: str | None = None) -> list[Block]:
    """Return the blocks of a page, all or those of one language."""
    text = path.read_text(encoding="utf-8")
    found = []
    for match in _BLOCK.finditer(text):
        first = _FIRST_LINE.match(match["body"].lstrip())
        reason = match["mark"] or (first[1] if first else "")
        found.append(Block(match["language"], match["body"], reason.strip(), text.count("\n", 0, match.start()) + 1))
    return [block for block in found if language in (None, block.language)]


def without_blocks(path: Path) -> str:
    """Return the text of a page without its blocks."""
    return _BLOCK.sub("", path.read_text(encoding="utf-8"))


def executed_page() -> str:
    """Return the page that lists which examples tests execute, and why not the others."""
    counts, reasons = [], []
    for path in pages():
        examples = [block for block in blocks(path) if block.language in EXECUTED]
        skipped = [block for block in examples if block.reason]
        name = str(path.relative_to(ROOT))
        if examples:
            counts.append([code(name), str(len(examples) - len(skipped)), str(len(skipped))])
        for block in skipped:
            lines = [line for line in block.body.splitlines() if line and not line.startswith("#")]
            reasons.append([f"{name}:{block.line}", code(cell(lines[0])[:60]), block.reason])
    total = sum(int(row[1]) for row in counts)
    return page(
        "# Executed examples",
        f"Tests execute {total} blocks of Python and shell commands of this documentation and of README.md, in the "
        f"order of each page; comparisons train for one epoch. {len(reasons)} blocks are not executed, for the reasons "
        "below. Of those, tests still check that modules, verbs and options exist.",
        "## Not executed",
        table(["place", "begins with", "reason"], reasons),
        "## Blocks of each page",
        table(["page", "executed", "not executed"], counts),
    )
