"""Formulas: LaTeX in the HTML of a page becomes MathML, which browsers draw without a script."""

from __future__ import annotations

import html
import re

from latex2mathml.converter import convert

# What the Markdown extension `pymdownx.arithmatex` writes for $...$ and $$...$$.
_INLINE = re.compile(r'<span class="arithmatex">\\\((.*?)\\\)</span>', re.DOTALL)
_BLOCK = re.compile(r'<div class="arithmatex">\s*\\\[(.*?)\\\]\s*</div>', re.DOTALL)

# Commands that the converter does not know, and what has the same look.
_SPELLINGS = {
    r"\arg\max": r"\operatorname{arg\,max}",
    r"\textstyle": "",
}


def with_mathml(content: str) -> str:
    """Return the HTML of a page with every formula as MathML."""
    content = _BLOCK.sub(lambda found: f'<div class="formula">{mathml(found[1], "block")}</div>', content)
    return _INLINE.sub(lambda found: mathml(found[1], "inline"), content)


def mathml(latex: str, display: str) -> str:
    """Return a formula as a MathML element.

    Args:
        latex: The formula, with characters of HTML escaped.
        display: ``"inline"`` or ``"block"``.

    Raises:
        ValueError: If a command is unknown to the converter, which would print it as text.
    """
    source = " ".join(html.unescape(latex).split())
    for command, other in _SPELLINGS.items():
        source = source.replace(command, other)
    element = convert(source, display=display)
    if unknown := re.search(r">(\\[A-Za-z]+)<", element):
        raise ValueError(f"formula {source!r}: {unknown[1]} is not a command of latex2mathml")
    return element
