"""An example call of ``POST /rank`` and its response, for the documentation page."""

from __future__ import annotations

import json
import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rankfall.serving.service.bundle_slots import ServedBundle

ADDRESS = "http://ADDRESS"  # placeholder of the address of the service
_K = 3  # items of the response
_WIDTH = 116  # characters per line
_REQUEST_ID = "6f3a1c0b9d2e4857a1b6c3d0e5f72948"
_TIME = "2024-01-15T10:30:00+00:00"


@dataclass(frozen=True)
class DocsExample:
    """A curl command and its response.

    Args:
        command: The command, with the placeholder `ADDRESS`.
        answer: The response as JSON.
        is_real: Whether the request is an example of the bundle with its actual response, not made up.
    """

    command: str
    answer: str
    is_real: bool


def docs_example(served: ServedBundle, *, real: bool) -> DocsExample:
    """Return an example call for a bundle.

    Args:
        served: The bundle.
        real: Whether to use an example request of the bundle, which is that of a real user, instead of a made-up one.
    """
    examples = served.bundle.examples() if real else []
    k = min(_K, served.bundle.quotas[-1], len(served.bundle.items))
    if examples:
        shortest = min(examples, key=lambda one: (_lacks_events(one["request"]), len(json.dumps(one["request"]))))
        request, ids, scores = shortest["request"], shortest["ids"][:k], shortest["scores"][:k]
    else:
        request = _made_up(served.bundle.schema())
        ids, scores = served.bundle.items.ids(np.arange(k)), [round(1 / (2 + place), 3) for place in range(k)]
    times = dict.fromkeys(("queue", *served.bundle.names), 0.5)
    answer = {
        "model": served.model,
        "request": _REQUEST_ID,
        "ids": ids,
        "scores": scores,
        "unknown": [],
        "milliseconds": times,
    }
    return DocsExample(_command({**request, "k": k}), _json_text(answer), bool(examples))


def _lacks_events(request: Mapping[str, Any]) -> bool:
    """Whether a sequence of a request is empty, so that the request does not show the form of its events."""
    return not all(request.get("sequences", {}).values())


def _made_up(schema: Mapping[str, Any]) -> Any:
    """Return a value that a JSON schema accepts."""
    kind = next(
        one for one in schema.get("anyOf", [schema]) if one["type"] not in ("null", "boolean") and "pattern" not in one
    )
    if kind["type"] == "object":
        return {name: _made_up(part) for name, part in kind["properties"].items() if _accepts_values(part)}
    if kind["type"] == "array":
        return [_made_up(kind["items"])] * kind.get("minItems", 1)
    if kind["type"] == "string":
        return _TIME if kind.get("format") == "date-time" else "text"
    return 1


def _accepts_values(schema: Mapping[str, Any]) -> bool:
    """Whether a schema accepts a value, as it does not for ignored features and those derived from the request time."""
    is_group = "properties" in schema
    return is_group or any(kind["type"] not in ("null", "object") for kind in schema.get("anyOf", []))


def _command(request: Mapping[str, Any]) -> str:
    return f"curl -s '{ADDRESS}/rank' -H 'content-type: application/json' -d {shlex.quote(_json_text(request))}"


def _json_text(value: Any, indent: str = "") -> str:
    """Return JSON in which every value that fits on one line is on one line."""
    line = json.dumps(value)
    if not isinstance(value, dict | list) or len(indent) + len(line) <= _WIDTH:
        return line
    inner = indent + "  "
    if isinstance(value, dict):
        parts = [f"{json.dumps(name)}: {_json_text(one, inner)}" for name, one in value.items()]
    else:
        parts = [_json_text(one, inner) for one in value]
    lines = ",\n".join(inner + part for part in parts)
    begin, end = "{}" if isinstance(value, dict) else "[]"
    return f"{begin}\n{lines}\n{indent}{end}"
