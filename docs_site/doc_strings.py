r"""Doc strings: their reST markup becomes Markdown.

Doc strings have sections in the Google style, and formulas and references in reST: ``.. math::``, ``:math:`x```,
``:func:`topk```. mkdocstrings reads the sources without importing them and expects Markdown.
"""

from __future__ import annotations

import re
import textwrap
from typing import TYPE_CHECKING, Any

import griffe

from docs_site.formulas import with_mathml

if TYPE_CHECKING:
    from collections.abc import Callable

_DIRECTIVE = re.compile(r"^( *)\.\. (math|code-block):: ?(.*)\n((?:\1 +\S.*\n|\n(?=\1 +\S))*)", re.MULTILINE)
_FORMULA = re.compile(r":math:`([^`]+)`")
_REFERENCE = re.compile(r":(?:attr|class|data|func|meth|mod):`(~?)([^`]+)`")
_LITERAL = re.compile(r"::$", re.MULTILINE)


def to_markdown(text: str, link: Callable[[str, str], str] = lambda target, shown: f"`{shown}`") -> str:
    """Return a text in reST as Markdown.

    Args:
        text: The text.
        link: Function of the target of a reference and of the text to show, which returns Markdown.

    >>> to_markdown("See :func:`~rankfall.ops.topk` and :math:`p_i`.")
    'See `topk` and $p_i$.'
    """
    text = _DIRECTIVE.sub(_directive, text + "\n").rstrip("\n")
    text = _FORMULA.sub(lambda found: f"${' '.join(found[1].split())}$", text)
    text = _REFERENCE.sub(
        lambda found: link(found[2], found[2].rpartition(".")[2] if found[1] else found[2].removeprefix("rankfall.")),
        text,
    )
    return _LITERAL.sub(":", text)


def _directive(found: re.Match[str]) -> str:
    """Return the Markdown of a formula or of a block of code."""
    indent, kind, argument, body = found[1], found[2], found[3], textwrap.dedent(found[4]).strip("\n")
    if kind == "math":
        lines = ["$$", *filter(None, (argument, *body.splitlines())), "$$"]
    else:
        lines = [f"```{argument}", *body.splitlines(), "```"]
    return "\n" + "\n".join(f"{indent}{line}" if line else "" for line in lines) + "\n\n"


class DocStrings(griffe.Extension):
    """Rewrites the doc string of every object of a package after it was read."""

    def on_package(self, *, pkg: griffe.Module, loader: griffe.GriffeLoader, **kwargs: Any) -> None:
        """Rewrite the doc strings of a package."""
        self._rewrite(pkg)

    def _rewrite(self, thing: griffe.Object) -> None:
        if thing.docstring:
            thing.docstring.value = with_mathml(to_markdown(thing.docstring.value, _Links(thing)))
        for member in thing.members.values():
            if isinstance(member, griffe.Object):
                self._rewrite(member)


class _Links:
    """References in the doc string of an object, as links to what the site documents, and as code otherwise."""

    def __init__(self, thing: griffe.Object) -> None:
        self._thing = thing

    def __call__(self, target: str, shown: str) -> str:
        return f'<autoref optional identifier="{self._path(target)}"><code>{shown}</code></autoref>'

    def _path(self, target: str) -> str:
        head, dot, rest = target.partition(".")
        try:
            return self._thing.resolve(head) + dot + rest
        except griffe.NameResolutionError:
            return target
