"""The sources of the site: the pages of docs/, the generated pages, and mkdocs.yml with the navigation of all of them.

``python -m docs_site.build DIRECTORY`` writes them. Formulas are MathML there and names of methods are links, so that a
generator of sites needs nothing but plain Markdown and mkdocstrings.

| page | made from |
|---|---|
| ``methods/``, one page per method | doc strings, and rows of the tables in docs/reference/ |
| ``reference/api/``, one page per module | doc strings, read by mkdocstrings |
| ``reference/cli.md``, at its mark | the help texts of the commands |
| ``reference/executed-examples.md`` | the blocks of all pages |
| ``reference/configuration-keys.md`` | the models that validate configurations |
| ``notebooks/`` | the notebooks in docs/notebooks/ |
| ``contributing.md``, ``changelog.md``, ``security.md`` | the files of the repository |
"""

from __future__ import annotations

import json
import posixpath
import re
import shutil
import sys
from collections import Counter
from pathlib import Path

import yaml

from docs_site import api, blocks, commands, config_keys, methods, navigation, notebooks
from docs_site.formulas import with_mathml
from docs_site.markdown import outside

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"

_COMMANDS = "<!-- commands -->"
_FILES = {f"{name.lower()}.md": f"{name}.md" for name in ("CONTRIBUTING", "CHANGELOG", "SECURITY")}
# Parts of a page that stay as they are: blocks of code, directives of mkdocstrings, HTML, comments.
_KEPT = re.compile(
    r"^ *```.*?^ *```$|^::: .*?(?=^\S|\Z)|^<(div|svg|table)\b.*?</\1>|<!--.*?-->", re.DOTALL | re.MULTILINE
)
# In headings and links a name of a method gets no link.
_NO_LINKS = re.compile(r"^#+ .*$|\[(?:[^\]\[]|\[[^\]]*\])*\]\([^)]*\)|<(a|autoref)\b.*?</\1>", re.MULTILINE)


def main() -> None:
    """Write the sources of the site into the directory that the command line names."""
    if len(sys.argv) != 2:
        sys.exit("usage: python -m docs_site.build DIRECTORY")
    write(Path(sys.argv[1]))


def write(directory: Path) -> None:
    """Replace a directory by the sources of the site."""
    shutil.rmtree(directory, ignore_errors=True)
    shutil.copytree(DOCS, directory / "docs")
    pages = {path.relative_to(DOCS).as_posix(): path.read_text(encoding="utf-8") for path in sorted(DOCS.rglob("*.md"))}
    pages |= generated()
    for path, text in pages.items():
        target = directory / "docs" / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(finished(text, path), encoding="utf-8")
    shutil.copytree(ROOT / "docs_site" / "theme", directory / "theme")
    (directory / "mkdocs.yml").write_text(_configuration(list(pages)), encoding="utf-8")


def generated() -> dict[str, str]:
    """Return the pages that are not in docs/ by their paths."""
    pages = {"methods/index.md": methods.index_page(), "reference/configuration-keys.md": config_keys.keys_page()}
    pages |= {method.path: methods.method_page(method) for method in methods.all_methods()}
    pages |= api.pages() | notebooks.pages()
    pages["reference/executed-examples.md"] = blocks.executed_page()
    repository = {path: (ROOT / name).read_text(encoding="utf-8") for path, name in _FILES.items()}
    return pages | {path: text.replace("](docs/", "](") for path, text in repository.items()}


def finished(text: str, path: str) -> str:
    """Return a page with its links inside of the site, its formulas drawn and names of methods linked."""
    text = re.sub(r"\]\((?:\.\./)*(CONTRIBUTING|CHANGELOG|SECURITY)\.md", _link_to_file, text)
    if not path.startswith("notebooks/"):
        text = re.sub(r"(\]\([^)\s]*notebooks/[\w-]+)\.ipynb\)", r"\1.md)", text)
    directory = (DOCS / path).parent
    text = re.sub(r"(\[[^\]]+\])\(([^)\s:]+/)\)", lambda found: _files_of(directory, *found.groups()), text)
    text = re.sub(r"\[([^\]]+)\]\((?:\.\./)+(?:experiments|examples|src|tests)/[^)]*\)", r"\1", text)
    if _COMMANDS in text:
        text = text.replace(_COMMANDS, commands.commands_page())
    return outside(_KEPT, text, lambda part: with_mathml(linked(part, path)))


def linked(markdown: str, path: str) -> str:
    """Return a text with every name of a method in code as a link, unless the name belongs to two methods.

    Args:
        markdown: Text without blocks of code.
        path: Path of the page.
    """
    pages = method_pages()

    def link(found: re.Match[str]) -> str:
        target = pages.get(found[1])
        if target is None or target == path:
            return found[0]
        return f"[`{found[1]}`]({posixpath.relpath(target, posixpath.dirname(path) or '.')})"

    return outside(_NO_LINKS, markdown, lambda part: re.sub(r"(?<!`)`(\w+)`(?!`)", link, part))


def method_pages() -> dict[str, str]:
    """Return the pages of methods by the names that stand for one method only, in configurations or in Python."""
    named = [(name, one.path) for one in methods.all_methods() for name in {one.name, one.python}]
    counts = Counter(name for name, _ in named)
    return {name: path for name, path in named if counts[name] == 1}


def _files_of(directory: Path, text: str, link: str) -> str:
    """Return a link to a directory, which the site does not list, as links to its files."""
    names = sorted(path.name for path in (directory / link).glob("*.*"))
    return f"{text[1:-1]} ({', '.join(f'[{name}]({link}{name})' for name in names)})"


def _link_to_file(found: re.Match[str]) -> str:
    return f"{found[0].removesuffix(found[1] + '.md').removesuffix('../')}{found[1].lower()}.md"


def _configuration(pages: list[str]) -> str:
    """Return mkdocs.yml with the navigation of all pages and with absolute paths of the sources of doc strings."""
    text = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    head, nav, rest = re.split(r"^(?=nav:|theme:)", text, maxsplit=2, flags=re.MULTILINE)
    complete = navigation.expanded(yaml.safe_load(nav)["nav"], sorted(pages))
    rest = rest.replace("paths: [src]", f"paths: [{json.dumps(str(ROOT / 'src'))}]")
    rest = rest.replace("docs_site/doc_strings.py", str(ROOT / "docs_site" / "doc_strings.py"))
    return head + yaml.safe_dump({"nav": complete}, sort_keys=False) + rest


if __name__ == "__main__":
    main()
