"""Links from the names of methods in the text of a page to their pages."""

from __future__ import annotations

import posixpath
import re
from collections import Counter

from docs_site import methods

_CODE = re.compile(r"<code>(\w+)</code>")
# Parts of a page in which a name gets no link: links, headings, blocks of code and signatures.
_KEPT = re.compile(r"<(a|h\d|pre|autoref)\b.*?</\1>|<div class=\"doc[ \"].*", re.DOTALL)


def linked(html: str, path: str) -> str:
    """Return the HTML of a page with every name of a method as a link, unless the name belongs to two methods.

    Args:
        html: Content of the page.
        path: Path of the page's source.
    """
    pages = method_pages()
    result, end = [], 0
    for kept in _KEPT.finditer(html):
        result += [_with_links(html[end : kept.start()], path, pages), kept[0]]
        end = kept.end()
    return "".join([*result, _with_links(html[end:], path, pages)])


def method_pages() -> dict[str, str]:
    """Return the pages of methods by the names that stand for one method only, in configurations or in Python."""
    named = [(name, one.path) for one in methods.all_methods() for name in {one.name, one.python}]
    counts = Counter(name for name, _ in named)
    return {name: path for name, path in named if counts[name] == 1}


def _with_links(html: str, path: str, pages: dict[str, str]) -> str:
    def link(found: re.Match[str]) -> str:
        target = pages.get(found[1])
        if target is None or target == path:
            return found[0]
        return f'<a href="{_address(target, path)}">{found[0]}</a>'

    return _CODE.sub(link, html)


def _address(target: str, path: str) -> str:
    """Return the address of a page relative to that of another one; every page is a directory with index.html."""
    return posixpath.relpath(_directory(target), _directory(path)) + "/"


def _directory(path: str) -> str:
    """Return the directory that is made of a page.

    >>> _directory("methods/index.md"), _directory("methods/losses/arf.md"), _directory("index.md")
    ('methods', 'methods/losses/arf', '.')
    """
    return posixpath.dirname(path) or "." if posixpath.basename(path) == "index.md" else path.removesuffix(".md")
