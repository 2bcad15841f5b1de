"""A call of ``POST /rank`` that can be tried as it is printed, and its answer, for the page of the documentation."""

from __future__ import annotations

import json
import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rankfall.serving.service.bundle_slots import Served

ADDRESS = "http://ADDRESS"  # in the command, in place of where the service is asked
_K = 3  # items of the answer
_WIDTH = 116  # characters of a line
_TIME = "2024-01-15T10:30:00+00:00"


@dataclass(frozen=True)
class Example:
    """A call, what it is answered, and whether that is so in fact or made up."""

    command: str
    answer: str
    is_real: bool


def example(served: Served, *, real: bool) -> Example:
    """A call that a bundle can answer: a request that it keeps, which is a real user's, or one that is made up."""
    kept = served.bundle.examples() if real else []
    k = min(_K, served.bundle.quotas[-1], len(served.bundle.items))
    if kept:
        shortest = min(kept, key=lambda one: (_has_gaps(one["request"]), len(json.dumps(one["request"]))))
        request, ids, scores = shortest["request"], shortest["ids"][:k], shortest["scores"][:k]
    else:
        request = _made_up(served.bundle.schema())
        ids, scores = served.bundle.items.ids(np.arange(k)), [round(1 / (2 + place), 3) for place in range(k)]
    times = dict.fromkeys(("queue", *served.bundle.names), 0.5)
    answer = {"model": served.model, "ids": ids, "scores": scores, "unknown": [], "milliseconds": times}
    return Example(_command({**request, "k": k}), _written(answer), bool(kept))


def _has_gaps(request: Mapping[str, Any]) -> bool:
    """Whether it has no events: it would not show what they look like."""
    return not all(request.get("sequences", {}).values())


def _made_up(schema: Mapping[str, Any]) -> Any:
    """A value that a schema takes."""
    kind = next(
        one for one in schema.get("anyOf", [schema]) if one["type"] not in ("null", "boolean") and "pattern" not in one
    )
    if kind["type"] == "object":
        return {name: _made_up(of) for name, of in kind["properties"].items() if _takes_values(of)}
    if kind["type"] == "array":
        return [_made_up(kind["items"])] * kind.get("minItems", 1)
    if kind["type"] == "string":
        return _TIME if kind.get("format") == "date-time" else "text"
    return 1


def _takes_values(schema: Mapping[str, Any]) -> bool:
    """Whether there is anything to give: not for what is ignored, nor for what follows from the time of the request."""
    is_group = "properties" in schema
    return is_group or any(kind["type"] not in ("null", "object") for kind in schema.get("anyOf", []))


def _command(request: Mapping[str, Any]) -> str:
    return f"curl -s '{ADDRESS}/rank' -H 'content-type: application/json' -d {shlex.quote(_written(request))}"


def _written(value: Any, indent: str = "") -> str:
    """JSON in which whatever fits into a line is in one."""
    line = json.dumps(value)
    if not isinstance(value, dict | list) or len(indent) + len(line) <= _WIDTH:
        return line
    inner = indent + "  "
    if isinstance(value, dict):
        parts = [f"{json.dumps(name)}: {_written(one, inner)}" for name, one in value.items()]
    else:
        parts = [_written(one, inner) for one in value]
    lines = ",\n".join(inner + part for part in parts)
    begin, end = "{}" if isinstance(value, dict) else "[]"
    return f"{begin}\n{lines}\n{indent}{end}"
