"""The OpenAPI document as an HTML page without scripts or external files."""

from __future__ import annotations

import json
from html import escape
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rankfall.serving.service.docs_example import DocsExample


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
    schemas = [_schema(name, schema) for name, schema in document["components"]["schemas"].items()]
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
    return ", ".join(_link(media_type, body["schema"]) for media_type, body in content.items())


def _link(media_type: str, schema: dict[str, Any]) -> str:
    name = schema.get("$ref", "").rpartition("/")[2]
    return f'<a href="#{escape(name)}">{escape(name)}</a>' if name else f"<code>{escape(media_type)}</code>"


def _schema(name: str, schema: dict[str, Any]) -> str:
    text = escape(json.dumps(schema, indent=2))
    # The id is inside, so that a link to it opens the folded element.
    return f'<details><summary>{escape(name)}</summary><pre id="{escape(name)}">{text}</pre></details>\n'
