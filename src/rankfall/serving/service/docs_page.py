"""The OpenAPI document as a page without scripts, which needs nothing from elsewhere."""

from __future__ import annotations

import json
from html import escape
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rankfall.serving.service.docs_example import Example


def docs_page(document: dict[str, Any], example: Example | None) -> str:
    """A page with a section for every path and for every schema, and a call of /rank that can be tried."""
    info = document["info"]
    paths = [
        _operation(path, method, about, example if path == "/rank" else None)
        for path, methods in document["paths"].items()
        for method, about in methods.items()
    ]
    schemas = [_schema(name, schema) for name, schema in document["components"]["schemas"].items()]
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{escape(info["title"])}: the service</title>
<link rel="stylesheet" href="docs.css">
</head>
<body>
<main>
<h1>{escape(info["title"])} <small>{escape(info["version"])}</small></h1>
<p>{escape(info["description"])} The same for programs: <a href="openapi.json">openapi.json</a>.</p>
{"".join(paths)}
<h2>Schemas</h2>
{"".join(schemas)}
</main>
</body>
</html>
"""


def _operation(path: str, method: str, about: dict[str, Any], example: Example | None) -> str:
    rows = [
        f"<tr><td>{code}</td><td>{escape(answer['description'])}</td><td>{_links(answer.get('content', {}))}</td></tr>"
        for code, answer in about["responses"].items()
    ]
    takes = _links(about["requestBody"]["content"]) if "requestBody" in about else ""
    query = "".join(
        f"<p><code>?{escape(one['name'])}=</code> {escape(one['description'])}</p>" for one in about["parameters"]
    )
    token = "<p>With the header <code>Authorization: Bearer TOKEN</code>.</p>" if "security" in about else ""
    return f"""<section>
<h2><code>{method.upper()} {escape(path)}</code></h2>
<p>{escape(about["summary"])}. {f"Takes {takes}." if takes else ""}</p>
{query}{token}{"" if example is None else _example(example)}
<table><thead><tr><th>code</th><th>meaning</th><th>content</th></tr></thead><tbody>
{"".join(rows)}
</tbody></table>
</section>
"""


def _example(example: Example) -> str:
    of_whom = "one that the bundle keeps" if example.is_real else "made up"
    answer = "The answer, but for the milliseconds" if example.is_real else "What an answer looks like"
    return f"""
<p>To try; the request is {of_whom}, and a click selects the command:</p>
<pre class="command" tabindex="0">{escape(example.command)}</pre>
<p>{answer}:</p>
<pre class="answer" tabindex="0">{escape(example.answer)}</pre>"""


def _links(content: dict[str, Any]) -> str:
    return ", ".join(_link(kind, about["schema"]) for kind, about in content.items())


def _link(kind: str, schema: dict[str, Any]) -> str:
    name = schema.get("$ref", "").rpartition("/")[2]
    return f'<a href="#{escape(name)}">{escape(name)}</a>' if name else f"<code>{escape(kind)}</code>"


def _schema(name: str, schema: dict[str, Any]) -> str:
    text = escape(json.dumps(schema, indent=2))
    # Inside, so that a link to it opens what is folded.
    return f'<details><summary>{escape(name)}</summary><pre id="{escape(name)}">{text}</pre></details>\n'
