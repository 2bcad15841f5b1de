"""Variables: text such as ``$tau``, replaced by each value of a sweep or by the cut-offs of a protocol."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

_VARIABLE = re.compile(r"\$([a-z_]+)")


def fill(content: Any, variables: Mapping[str, Any]) -> Any:
    """Return a copy with every variable replaced by its value; a text that is one variable gets the value's type.

    >>> fill({"tau": "$tau", "metrics": ["recall@$m@$k"]}, {"tau": 0.5, "m": 20, "k": 10})
    {'tau': 0.5, 'metrics': ['recall@20@10']}
    """
    if isinstance(content, dict):
        return {key: fill(value, variables) for key, value in content.items()}
    if isinstance(content, list):
        return [fill(value, variables) for value in content]
    if not isinstance(content, str):
        return content
    if whole := _VARIABLE.fullmatch(content):
        return variables[whole[1]]
    return _VARIABLE.sub(lambda found: f"{variables[found[1]]}", content)


def variables_in(content: Any) -> set[str]:
    """Return the names of the variables in a text, or anywhere in mappings and lists."""
    if isinstance(content, dict):
        content = list(content.values())
    if isinstance(content, list):
        return {name for value in content for name in variables_in(value)}
    return set(_VARIABLE.findall(content)) if isinstance(content, str) else set()
