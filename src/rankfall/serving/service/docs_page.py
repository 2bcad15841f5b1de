"""The documentation page of a service: its OpenAPI document as HTML, with an example call."""

from __future__ import annotations

import json
import shlex
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rankfall.serving.service.bundle_slots import ServedBundle


def docs_page(document: dict[str, Any], example: DocsExample | None) -> str:
    """Return a page with a section for every path and schema, and an example call of ``/rank``.

    Args:
        document: The OpenAPI document.
        example: The example call, if there is one.
    """
    info = document["info"]
    paths = [
        _operation(path, method, operation, example if path == "/rank" else None)
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
    ]
    schemas = [  # the id is inside, so that a link to it opens the folded element
        f'<details><summary>{escape(name)}</summary><pre id="{escape(name)}">{escape(json.dumps(schema, indent=2))}'
        "</pre></details>\n"
        for name, schema in document["components"]["schemas"].items()
    ]
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{escape(info["title"])}: service documentation</title>
<link rel="stylesheet" href="docs.css">
</head>
<body>
<main>
<h1>{escape(info["title"])} <small>{escape(info["version"])}</small></h1>
<p>{escape(info["description"])} The machine-readable document: <a href="openapi.json">openapi.json</a>.</p>
{"".join(paths)}
<h2>Schemas</h2>
{"".join(schemas)}
</main>
</body>
</html>
"""


def _operation(path: str, method: str, operation: dict[str, Any], example: DocsExample | None) -> str:
    rows = [
        f"<tr><td>{code}</td><td>{escape(response['description'])}</td>"
        f"<td>{_links(response.get('content', {}))}</td></tr>"
        for code, response in operation["responses"].items()
    ]
    body = _links(operation["requestBody"]["content"]) if "requestBody" in operation else ""
    query = "".join(
        f"<p><code>?{escape(parameter['name'])}=</code> {escape(parameter['description'])}</p>"
        for parameter in operation["parameters"]
    )
    token = "<p>Requires the header <code>Authorization: Bearer TOKEN</code>.</p>" if "security" in operation else ""
    return f"""<section>
<h2><code>{method.upper()} {escape(path)}</code></h2>
<p>{escape(operation["summary"])}. {f"Request body: {body}." if body else ""}</p>
{query}{token}{"" if example is None else _example(example)}
<table><thead><tr><th>status</th><th>meaning</th><th>content</th></tr></thead><tbody>
{"".join(rows)}
</tbody></table>
</section>
"""


def _example(example: DocsExample) -> str:
    origin = "an example of the bundle" if example.is_real else "made up"
    answer = "Its response, except for the milliseconds" if example.is_real else "The form of its response"
    return f"""
<p>A command to try. The request is {origin}; a click selects the command:</p>
<pre class="command" tabindex="0">{escape(example.command)}</pre>
<p>{answer}:</p>
<pre class="answer" tabindex="0">{escape(example.answer)}</pre>"""


def _links(content: dict[str, Any]) -> str:
    links = []
    for media_type, body in content.items():
        name = escape(body["schema"].get("$ref", "").rpartition("/")[2])
        links.append(f'<a href="#{name}">{name}</a>' if name else f"<code>{escape(media_type)}</code>")
    return ", ".join(links)


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

        def length(one: Mapping[str, Any]) -> tuple[bool, int]:
            """Return the length of an example; one with an empty sequence does not show the form of its events."""
            lacks_events = not all(one["request"].get("sequences", {}).values())
            return lacks_events, len(json.dumps(one["request"]))

        shortest = min(examples, key=length)
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
    body = shlex.quote(_json_text({**request, "k": k}))
    command = f"curl -s '{ADDRESS}/rank' -H 'content-type: application/json' -d {body}"
    return DocsExample(command, _json_text(answer), bool(examples))


def _made_up(schema: Mapping[str, Any]) -> Any:
    """Return a value that a JSON schema accepts."""
    kind = next(
        one for one in schema.get("anyOf", [schema]) if one["type"] not in ("null", "boolean") and "pattern" not in one
    )
    if kind["type"] == "object":
        parts = {  # without ignored features, and those derived from the time of the request, which accept no value
            name: part
            for name, part in kind["properties"].items()
            if "properties" in part or any(one["type"] not in ("null", "object") for one in part.get("anyOf", []))
        }
        return {name: _made_up(part) for name, part in parts.items()}
    if kind["type"] == "array":
        return [_made_up(kind["items"])] * kind.get("minItems", 1)
    if kind["type"] == "string":
        return _TIME if kind.get("format") == "date-time" else "text"
    return 1


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
