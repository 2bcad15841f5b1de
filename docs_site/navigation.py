"""Navigation: entries of ``nav`` that end with / stand for the pages below a directory that no other entry names.

The entry ``/`` stands for the pages outside of all these directories.
"""

from __future__ import annotations

from typing import Any, TypeAlias

Entry: TypeAlias = str | dict[str, Any]


def expanded(nav: list[Entry], pages: list[str]) -> list[Entry]:
    """Return the navigation with all directories replaced by their pages. Sections without pages are left out.

    Args:
        nav: Entries of ``mkdocs.yml``.
        pages: Paths of all pages, in the order in which they should appear.

    >>> expanded(["a/x.md", {"More": ["a/"]}, {"B": "b/"}], ["a/y.md", "a/x.md", "b/z.md"])
    ['a/x.md', {'More': ['a/y.md']}, {'B': ['b/z.md']}]
    """
    named = {path for path in _paths(nav) if not path.endswith("/")}
    directories = [path for path in _paths(nav) if path.endswith("/")]
    rest: dict[str, list[str]] = {directory: [] for directory in directories}
    for page in pages:
        owners = [directory for directory in directories if page.startswith(directory.removeprefix("/"))]
        if owners and page not in named:
            rest[max(owners, key=len)].append(page)
    return _expanded(nav, rest)


def _expanded(nav: list[Entry], rest: dict[str, list[str]]) -> list[Entry]:
    result: list[Entry] = []
    for entry in nav:
        if isinstance(entry, str):
            result += rest.get(entry, [entry])
            continue
        for title, content in entry.items():
            below = rest.get(content, content) if isinstance(content, str) else _expanded(content, rest)
            if below:
                result.append({title: below})
    return result


def _paths(nav: list[Entry]) -> list[str]:
    found: list[str] = []
    for entry in nav:
        if isinstance(entry, str):
            found.append(entry)
            continue
        for content in entry.values():
            found += [content] if isinstance(content, str) else _paths(content)
    return found
