"""Formulas: LaTeX between dollar signs becomes MathML, which browsers draw without a script."""

from __future__ import annotations

import re

from latex2mathml.converter import convert

from docs_site.markdown import CODE, outside

_BLOCK = re.compile(r"^( *)\$\$(.+?)\$\$", re.DOTALL | re.MULTILINE)
_INLINE = re.compile(r"(?<![\w\\$])\$(?=\S)([^$\n]+?)(?<=\S)\$(?![\w$])")

# Commands that the converter does not know, and what has the same look.
_SPELLINGS = {
    r"\arg\max": r"\operatorname{arg\,max}",
    r"\textstyle": "",
}
# Characters of MathML that mean something in Markdown.
_ESCAPED = str.maketrans({character: f"&#{ord(character)};" for character in "*_|`[]\\"})


def with_mathml(markdown: str) -> str:
    """Return a Markdown text in which every formula outside of code is MathML.

    >>> with_mathml("$k$ items for `$2`").replace(' xmlns="http://www.w3.org/1998/Math/MathML"', "")
    '<span class="formula"><math display="inline"><mrow><mi>k</mi></mrow></math></span> items for `$2`'
    """

    def draw(part: str) -> str:
        part = _BLOCK.sub(lambda found: f'{found[1]}<div class="formula">{mathml(found[2], "block")}</div>\n', part)
        # Markdown takes <math> at the beginning of a line for a block of HTML.
        return _INLINE.sub(lambda found: f'<span class="formula">{mathml(found[1], "inline")}</span>', part)

    return outside(CODE, markdown, draw)


def mathml(latex: str, display: str) -> str:
    """Return a formula as a MathML element on one line.

    Args:
        latex: The formula.
        display: ``"inline"`` or ``"block"``.

    Raises:
        ValueError: If a command is unknown to the converter, which would print it as text.
    """
    source = " ".join(latex.split())
    for command, other in _SPELLINGS.items():
        source = source.replace(command, other)
    element: str = convert(source, display=display)
    if unknown := re.search(r">(\\[A-Za-z]+)<", element):
        raise ValueError(f"formula {source!r}: {unknown[1]} is not a command of latex2mathml")
    return re.sub(r">[^<]+<", lambda text: text[0].translate(_ESCAPED), element)
