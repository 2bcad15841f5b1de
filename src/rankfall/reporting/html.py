"""HTML pages.

A page is one file: style and charts are part of it, and it loads nothing. Charts are as wide as the page. Labels are
above the things they name, not beside them, so that pages fit a phone. A table wider than the page scrolls by itself,
and its first column stays in place.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

from rankfall import __version__
from rankfall.reporting.charts import LIGHT, breakable

if TYPE_CHECKING:
    from jinja2 import Environment

GENERATOR = '<meta name="generator" content="rankfall'  # identifies our pages


def render(template: str, title: str, **content: Any) -> str:
    """Return the page of a template."""
    return _environment().get_template(template).render(title=title, version=__version__, **content)


@cache
def _environment() -> Environment:
    from jinja2 import Environment, PackageLoader, StrictUndefined

    loader = PackageLoader("rankfall.reporting", "templates")
    environment = Environment(loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=False)
    environment.filters["breakable"] = breakable
    environment.globals["light"] = LIGHT
    return environment
