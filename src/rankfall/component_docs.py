"""Titles, citations and option texts of operators, losses, objectives, metrics and models, from their doc strings.

Doc strings follow the Google style, which ``docstring_parser`` reads. The first paragraph is the title and ends with
the citation in parentheses; ``Args:`` describes every parameter of the signature.
"""

from __future__ import annotations

import inspect
import re
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml
from docstring_parser import DocstringStyle, ParseError, parse

from rankfall import registry

if TYPE_CHECKING:
    from collections.abc import Callable

_MATH = ".. math:: "


@dataclass(frozen=True)
class Documentation:
    """The parts of a component's doc string, without reST markup.

    Attributes:
        title: First paragraph, without the citation and the full stop.
        citation: The parts of the citation are separated by semicolons. Empty if there is none.
        arguments: Description of each parameter.
        text: Paragraphs after the title. Formulas are in LaTeX.
    """

    title: str
    citation: str
    arguments: dict[str, str]
    text: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class OptionDoc:
    """An option of a component as a configuration writes it, with its description.

    Attributes:
        name: Name of the option.
        default: Default as YAML writes it, or :data:`rankfall.registry.REQUIRED`.
        meaning: Description from the doc string.
    """

    name: str
    default: Any
    meaning: str

    @property
    def required(self) -> bool:
        """Whether a configuration must give this option."""
        return self.default is registry.REQUIRED


@cache
def documentation(component: Callable[..., Any]) -> Documentation:
    """Parse the doc string of a component.

    A loss module that only holds the options of a loss function (its attribute `function`) has the descriptions of that
    function's options.

    >>> from rankfall import losses
    >>> documentation(losses.relax_loss).citation
    'ARF, eq. 11, L_Relax'
    """
    found = read_documentation(component.__doc__ or "")
    if function := getattr(component, "function", None):
        described = documentation(function).arguments
        names = [name for name in inspect.signature(component).parameters if name in described]
        return replace(found, arguments={name: described[name] for name in names})
    return found


def documentation_of(kind: registry.Kind, name: str) -> Documentation:
    """Parse the doc string of a component by its name.

    >>> documentation_of("loss", "relax_loss").citation
    'ARF, eq. 11, L_Relax'
    """
    return documentation(registry.get(kind, name))


def read_documentation(text: str) -> Documentation:
    """Parse a doc string. One of a user that does not follow the Google style has a title and paragraphs only.

    >>> read_documentation("Focal loss (Lin et al. 2017).").title
    'Focal loss'
    """
    try:
        parsed = parse(text, style=DocstringStyle.GOOGLE)
    except ParseError:
        first, *rest = [part for part in inspect.cleandoc(text).split("\n\n") if part.strip()] or [""]
        title, citation = _split_title(plain(first))
        return Documentation(title, citation, {}, _paragraphs("\n\n".join(rest)))
    title, citation = _split_title(plain(parsed.short_description or ""))
    arguments = {one.arg_name: plain(one.description or "") for one in parsed.params if one.args[0] == "param"}
    return Documentation(title, citation, arguments, _paragraphs(parsed.long_description or ""))


def option_docs(kind: registry.Kind, name: str) -> list[OptionDoc]:
    """Return the options that a configuration can give to a component, in the order of its signature.

    Args:
        kind: Kind of the component.
        name: Name in configurations.
    """
    descriptions = documentation_of(kind, name).arguments
    defaults = registry.defaults(kind, name)
    return [
        OptionDoc(one, defaults.get(one, registry.REQUIRED), descriptions.get(one, ""))
        for one in registry.options(kind, name)
    ]


@cache
def papers() -> dict[str, str]:
    """Return the references of all papers by the names under which doc strings cite them."""
    references: dict[str, str] = yaml.safe_load(Path(__file__).with_name("papers.yaml").read_text(encoding="utf-8"))
    return references


def cited(citation: str) -> list[str]:
    """Return the names of the papers in a citation, whose parts are separated by semicolons.

    >>> cited("NeuralSort; ARF, eq. 10; the weather report")
    ['NeuralSort', 'ARF']
    """
    candidates = [
        [name for name in papers() if re.search(rf"\b{re.escape(name)}\b", part)] for part in citation.split(";")
    ]
    return [max(names, key=len) for names in candidates if names]


def _paragraphs(text: str) -> tuple[str, ...]:
    """Return the paragraphs of a text. Those that are a formula keep their backslashes."""
    parts = [" ".join(part.split()) for part in text.split("\n\n")]
    return tuple(part.removeprefix(_MATH) if part.startswith(_MATH) else plain(part) for part in parts if part)


def plain(text: str) -> str:
    """Return a doc string's text on one line and without reST markup.

    >>> plain("See :func:`~rankfall.ops.topk`, called\\n  as ``topk(name)``.")
    'See rankfall.ops.topk, called as topk(name).'
    """
    without_roles = re.sub(r":\w+:`~?([^`]*)`", r"\1", " ".join(text.split()))
    return without_roles.replace("\\", "").replace("`", "")


def _split_title(title: str) -> tuple[str, str]:
    """Split a title from the citation in parentheses at its end."""
    line = title.removesuffix(".")
    head, separator, citation = line.rpartition(" (")
    return (head, citation.removesuffix(")")) if separator and line.endswith(")") else (line, "")
