"""One page per operator, loss, objective and model, from its doc string and from tables of other pages.

A page has the definition, the paper, when to use the method, its options, an example, what it costs and what was
measured. A new registered component gets its page without any change here.
"""

from __future__ import annotations

import inspect
import posixpath
import re
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import yaml
from docstring_parser import DocstringStyle, parse

from docs_site.doc_strings import to_markdown
from docs_site.markdown import code, page, table
from docs_site.tables import anchor, names_in, section, tables

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from docs_site.tables import Table

DOCS = Path(__file__).parents[1] / "docs"
Kind = Literal["operator", "loss", "objective", "model"]
DIRECTORIES: dict[Kind, str] = {
    "operator": "methods/operators",
    "loss": "methods/losses",
    "objective": "methods/objectives",
    "model": "methods/models",
}
_PACKAGES: dict[Kind, str] = {"operator": "ops", "loss": "losses", "objective": "objectives", "model": "models"}
_TITLES: dict[Kind, str] = {"operator": "Operators", "loss": "Losses", "objective": "Objectives", "model": "Models"}

# Sections with a table whose cells name methods as code.
_USES: dict[Kind, str] = {
    "operator": "how-to/choose-an-operator.md#which-operator",
    "loss": "reference/methods-in-short.md#losses",
    "objective": "reference/methods-in-short.md#objectives",
    "model": "reference/methods-in-short.md#models",
}
_COSTS: dict[Kind, tuple[str, ...]] = {
    "operator": ("reference/costs.md#operators", "reference/costs.md#a-training-step"),
    "loss": ("reference/costs.md#losses",),
    "objective": ("reference/costs.md#objectives",),
    "model": (),
}
_VARIANT = "Published and sound variant"
_VARIANTS = "reference/methods-in-short.md#published-and-sound-variants"
MEASURED = yaml.safe_load((Path(__file__).parent / "measured.yaml").read_text(encoding="utf-8"))


@dataclass(frozen=True)
class Method:
    """A registered component.

    Attributes:
        kind: Kind of the component.
        name: Name in configurations.
        component: The function or class.
    """

    kind: Kind
    name: str
    component: Callable[..., Any]

    @property
    def path(self) -> str:
        """The page of the method."""
        return f"{DIRECTORIES[self.kind]}/{self.name}.md"

    @property
    def python(self) -> str:
        """The name of the component in its package."""
        return self.component.__name__

    @property
    def identifier(self) -> str:
        """The public path of the component."""
        return f"rankfall.{_PACKAGES[self.kind]}.{self.python}"

    @property
    def definition(self) -> str:
        """The path of its definition. The public path is ambiguous if the module has the same name."""
        return f"{self.component.__module__}.{self.component.__qualname__}"


@cache
def all_methods() -> tuple[Method, ...]:
    """Return every registered operator, loss, objective and model."""
    from rankfall import registry

    return tuple(Method(kind, name, registry.get(kind, name)) for kind in DIRECTORIES for name in registry.names(kind))


def index_page() -> str:
    """Return the page that lists all methods with their papers."""
    parts = [
        "# Methods",
        "Every operator, loss, objective and model has a page: its formula and paper, when to use it, its options, "
        "what it costs and what was measured. [Metrics](../reference/metrics.md) share one page. `rankfall methods` "
        "prints the same lists.",
    ]
    for kind, title in _TITLES.items():
        rows = [
            [f"[`{one.name}`]({posixpath.relpath(one.path, 'methods')})", *_summary(one)]
            for one in all_methods()
            if one.kind == kind
        ]
        parts += [f"## {title}", table(["name", "method", "paper"], rows)]
    return page(*parts)


def method_page(method: Method) -> str:
    """Return the page of one method."""
    title, citation = _summary(method)
    text = parse(_markdown(method), style=DocstringStyle.GOOGLE)
    return page(
        f"# {method.name}",
        f"{title}.",
        table(*_facts(method, citation)),
        "## Definition",
        text.long_description or "",
        *_when_to_use(method),
        *_options(method),
        *_variant(method),
        *_costs(method),
        *_results(method),
        "## In Python",
        f"::: {method.definition}\n    options:\n      heading_level: 3\n      show_root_toc_entry: false\n"
        "      show_docstring_description: false\n      members: []\n",
    )


def option_names(method: Method) -> list[str]:
    """Return the names of the options that a configuration can give."""
    from rankfall import registry

    return list(registry.options(method.kind, method.name))


# --- parts of a page ------------------------------------------------------------------------------------------------


def _summary(method: Method) -> tuple[str, str]:
    from rankfall.component_docs import documentation

    docs = documentation(method.component)
    return docs.title, docs.citation


def _markdown(method: Method) -> str:
    return to_markdown(inspect.getdoc(method.component) or "", lambda target, shown: _link(method, target, shown))


def _link(method: Method, target: str, shown: str) -> str:
    """Return a reference of a doc string as a link to what the site documents, and as code otherwise."""
    found: Any = sys.modules[method.component.__module__]
    for part in target.removeprefix("rankfall.").split(".") if "rankfall" not in target else []:
        found = getattr(found, part, None)
    known = getattr(found, "__module__", None) if callable(found) else None
    identifier = f"{known}.{found.__qualname__}" if known else target
    return f'<autoref optional identifier="{identifier}"><code>{shown}</code></autoref>'


def _facts(method: Method, citation: str) -> tuple[list[str], list[list[str]]]:
    """Return the first row and the other rows of the table below the title."""
    index = f"{_relative(method, 'methods/index.md')}#{_TITLES[method.kind].lower()}"
    rows = [
        ["in configurations", code(method.name)],
        ["in Python", code(f"rf.{_PACKAGES[method.kind]}.{method.python}")],
    ]
    papers = [_reference(part.strip()) for part in citation.split(";") if part.strip()]
    return ["kind", f"[{method.kind}]({index})"], [*rows, *([["paper", "<br>".join(papers)]] if papers else [])]


def _reference(part: str) -> str:
    """Return one part of a citation with the full title of its paper.

    >>> _reference("LCR, eq. 11-13")
    '"Learning Cascade Ranking as One Network". ICML 2025, eq. 11-13'
    """
    from rankfall.component_docs import cited, papers

    names = cited(part)
    return part.replace(names[0], papers()[names[0]], 1) if names else part


def _when_to_use(method: Method) -> Iterator[str]:
    source = _USES[method.kind]
    found = _rows(method, source, lambda row: any(_names(method) & names_in(cell) for cell in row[:2]))
    if found:
        yield "## When to use it"
        yield from found
        yield f"From [{_page_title(source)}]({_relative(method, source)})."


def _options(method: Method) -> Iterator[str]:
    from rankfall.commands.methods import default_text
    from rankfall.component_docs import option_docs

    described = {one.arg_name: one.description or "" for one in _parameters(method)}
    options = option_docs(method.kind, method.name)
    rows = [
        [code(one.name), "*needed*" if one.required else code(default_text(one)), described.get(one.name, one.meaning)]
        if one.name != "variant"
        else [code("variant"), code(default_text(one)), f"`sound` or `published`, see [below](#{anchor(_VARIANT)})."]
        for one in options
    ]
    yield "## Options"
    yield table(["option", "default", "meaning"], rows) or "It has no options."
    yield f"```yaml\n{_example(method, [one.name for one in options if one.required])}\n```"


def _parameters(method: Method) -> list[Any]:
    """Return the described parameters; a module of a loss has those of its function."""
    own = parse(_markdown(method), style=DocstringStyle.GOOGLE).params
    function = getattr(method.component, "function", None)
    if not function:
        return own
    return [*own, *parse(to_markdown(inspect.getdoc(function) or ""), style=DocstringStyle.GOOGLE).params]


_VALUES = {"m": "20", "k": "10", "loss": "softmax_loss"}


def _example(method: Method, needed: list[str]) -> str:
    """Return the section of a configuration that names the method."""
    options = "".join(f", {name}: {_VALUES.get(name, '...')}" for name in needed)
    named = f"{{name: {method.name}{options}}}"
    match method.kind:
        case "operator":
            return f"objective: {{name: lcron, topk: {named}}}"
        case "loss":
            return f"loss: {named}"
        case "objective":
            return f"objective: {named}"
        case "model":
            return f"stages:\n  - {{name: first, quota: 30, model: {{kind: {method.name}{options}}}}}"


def _variant(method: Method) -> Iterator[str]:
    described = {one.arg_name: one.description for one in _parameters(method)}
    if "variant" in described:
        yield f"## {_VARIANT}"
        yield described["variant"]
        yield f"[All variants]({_relative(method, _VARIANTS)}) are compared with the published formulas."


def _costs(method: Method) -> Iterator[str]:
    parts = []
    for source in _COSTS[method.kind]:
        if not _has_section(source):
            continue
        found = _rows(method, source, lambda row: _mentions(method, row[0]), _has_label(["binary cross entropy"]))
        if found:
            parts += [*found, f"From [{_page_title(source)}]({_relative(method, source)})."]
    if parts:
        yield "## Cost"
        yield from parts


def _results(method: Method) -> Iterator[str]:
    yield "## Measured"
    wanted = MEASURED["rows"].get(f"{method.kind}.{method.name}", {})
    for source, labels in wanted.items():
        about = MEASURED["sections"][source]
        found = _rows(method, source, _has_label(labels), _has_label(about.get("always", [])))
        if not found:
            raise ValueError(f"measured.yaml: no table of {source} has a row {', '.join(labels)}")
        yield f"{about['note']} From [{_page_title(source)}]({_relative(method, source)})."
        yield from found
    if not wanted:
        yield f"No result of its own is among the [results]({_relative(method, 'reference/results.md')})."


# --- rows of other pages --------------------------------------------------------------------------------------------


def _names(method: Method) -> set[str]:
    return {method.name, method.python}


def _mentions(method: Method, cell: str) -> bool:
    return bool(_names(method) & set(re.findall(r"`(\w+)`", cell)))


def label(cell: str) -> str:
    """Return the text of a first cell without marks such as `**` and `\\*`."""
    return cell.replace(r"\*", "").replace("**", "").strip()


def _has_label(labels: list[str]) -> Callable[[list[str]], bool]:
    return lambda row: label(row[0]) in labels


def _rows(
    method: Method,
    source: str,
    wanted: Callable[[list[str]], bool],
    beside: Callable[[list[str]], bool] = lambda row: False,
) -> list[str]:
    """Return the tables of a section with the rows of which `wanted` is true, and those to compare them with.

    Links lead to the same pages as in the section.
    """
    shown = [one for one in _tables(source) if any(map(wanted, one.rows))]
    return [moved(one.selected(lambda row: wanted(row) or beside(row)), source, method.path) for one in shown]


@cache
def _tables(source: str) -> list[Table]:
    path, _, name = source.partition("#")
    return tables(section((DOCS / path).read_text(encoding="utf-8"), name))


def _has_section(source: str) -> bool:
    try:
        _tables(source)
    except ValueError:
        return False
    return True


def moved(text: str, source: str, target: str) -> str:
    """Return a text of one page for another page: relative links lead to where they did."""
    page = source.partition("#")[0]

    def move(found: re.Match[str]) -> str:
        link = found[1]
        absolute = page + link if link.startswith("#") else posixpath.normpath(f"{posixpath.dirname(page)}/{link}")
        return f"]({posixpath.relpath(absolute, posixpath.dirname(target))})"

    return re.sub(r"\]\((?!https?:)([^)\s]+)\)", move, text)


def _relative(method: Method, target: str) -> str:
    return posixpath.relpath(target, posixpath.dirname(method.path))


def _page_title(source: str) -> str:
    """Return the title of the section to which a link leads."""
    path, _, name = source.partition("#")
    headings: list[str] = re.findall(r"^#+ (.+)$", (DOCS / path).read_text(encoding="utf-8"), re.MULTILINE)
    return next(heading for heading in headings if anchor(heading) == name)
