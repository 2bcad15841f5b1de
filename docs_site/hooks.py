"""Events of MkDocs: generated pages, navigation, formulas.

| page | made from |
|---|---|
| ``methods/``, one page per method | doc strings, and rows of the tables in docs/reference/ |
| ``reference/api/``, one page per module | doc strings, read by mkdocstrings |
| ``reference/cli.md``, at its mark | the help texts of the commands |
| ``reference/executed-examples.md`` | the blocks of all pages |
| ``reference/configuration-keys.md`` | the models that validate configurations |
| ``notebooks/`` | the notebooks in docs/notebooks/ |
| ``contributing.md``, ``changelog.md`` | the files of the repository |
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from mkdocs.structure.files import File

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "src")]

from docs_site import api, blocks, commands, config_keys, formulas, method_links, methods, navigation, notebooks  # noqa: E402

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

_COMMANDS = "<!-- commands -->"
_FILES = {f"{name.lower()}.md": f"{name}.md" for name in ("CONTRIBUTING", "CHANGELOG", "SECURITY")}


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the generated pages, and complete the navigation with them."""
    for path, content in _generated().items():
        files.append(File.generated(config, path, content=content))
    pages = [file.src_uri for file in files.documentation_pages()]
    config.nav = navigation.expanded(config.nav or [], pages)
    return files


def _generated() -> dict[str, str]:
    pages = {"methods/index.md": methods.index_page(), "reference/configuration-keys.md": config_keys.keys_page()}
    pages |= {method.path: methods.method_page(method) for method in methods.all_methods()}
    pages |= api.pages() | notebooks.pages()
    pages["reference/executed-examples.md"] = blocks.executed_page()
    return pages | {path: _repository_file(name) for path, name in _FILES.items()}


def _repository_file(name: str) -> str:
    """Return a page of the repository's root with links that fit the root of the site."""
    return (ROOT / name).read_text(encoding="utf-8").replace("](docs/", "](")


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Insert generated parts, and let links to files of the repository lead to pages of the site."""
    markdown = re.sub(r"\]\((?:\.\./)*(CONTRIBUTING|CHANGELOG|SECURITY)\.md", _link_to_file, markdown)
    if not page.file.src_uri.startswith("notebooks/"):
        markdown = re.sub(r"(\]\([^)\s]*notebooks/[\w-]+)\.ipynb\)", r"\1.md)", markdown)
    directory = (Path(config.docs_dir) / page.file.src_uri).parent
    markdown = re.sub(r"(\[[^\]]+\])\(([^)\s:]+/)\)", lambda found: _files_of(directory, *found.groups()), markdown)
    markdown = re.sub(r"\[([^\]]+)\]\((?:\.\./)+(?:experiments|examples|src|tests)/[^)]*\)", r"\1", markdown)
    return markdown.replace(_COMMANDS, commands.commands_page()) if _COMMANDS in markdown else markdown


def _files_of(directory: Path, text: str, link: str) -> str:
    """Return a link to a directory, which the site does not list, as links to its files."""
    names = sorted(path.name for path in (directory / link).glob("*.*"))
    return f"{text[1:-1]} ({', '.join(f'[{name}]({link}{name})' for name in names)})"


def _link_to_file(found: re.Match[str]) -> str:
    return f"{found[0].removesuffix(found[1] + '.md').removesuffix('../')}{found[1].lower()}.md"


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Draw formulas, and link names of methods to their pages."""
    return method_links.linked(formulas.with_mathml(html), page.file.src_uri)
