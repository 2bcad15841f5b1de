"""Endpoints that describe the service: health, metrics, bundles, documentation and the files of the page."""

from __future__ import annotations

import hmac
import json
import logging
import re
import shlex
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import orjson
from starlette.responses import Response

from rankfall.serving.service import settings as limits
from rankfall.serving.service.bodies import BUNDLE, RELOAD
from rankfall.serving.service.bundle_slots import MAIN, SLOTS
from rankfall.serving.service.http_io import (
    JSON,
    RETRY_AFTER,
    ApiError,
    JsonResponse,
    check_keys,
    parse_json,
)
from rankfall.serving.service.openapi import openapi_document
from rankfall.serving.service.service_recording import MEDIA_TYPE

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from starlette.requests import Request

    from rankfall.serving.service.bundle_slots import BundleReloader, BundleSlots, ServedBundle
    from rankfall.serving.service.http_io import BodyReader
    from rankfall.serving.service.service_recording import ServiceMetrics
    from rankfall.serving.service.settings import Settings, ShutdownSignal


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


_DIRECTORY = Path(__file__).parent
_HTML = "text/html; charset=utf-8"
_MEDIA_TYPES = {
    ".html": _HTML,
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
_HOST = re.compile(r"[\w.-]{1,253}(:\d{1,5})?|\[[\da-fA-F:]{2,39}\](:\d{1,5})?", re.ASCII)
# Pages may load only what this service serves, and no other site may show them in a frame.
_PAGE_HEADERS = {
    "content-security-policy": "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "referrer-policy": "no-referrer",
}


@dataclass(eq=False, slots=True)
class InfoRoutes:
    """Endpoints that describe the service.

    Args:
        settings: Options of the service.
        slots: The bundles that are served.
        service_metrics: Metrics of the service.
        shutdown: Makes ``/ready`` fail once it is received.
        is_working: Returns whether all compute threads are alive.
    """

    settings: Settings
    slots: BundleSlots
    service_metrics: ServiceMetrics
    shutdown: ShutdownSignal
    is_working: Callable[[], bool]
    _cache: dict[str, tuple[int, bytes]] = field(default_factory=dict)  # bodies, valid until a bundle is replaced

    async def health(self, request: Request) -> Response:
        """Report that the process responds."""
        return JsonResponse({"status": "ok"})

    async def ready(self, request: Request) -> Response:
        """Report whether the service can rank and is not shutting down."""
        if self.shutdown.received:
            raise ApiError(503, "the service is shutting down", headers=RETRY_AFTER)
        served = self.slots[MAIN]
        if served is None or not self.is_working():
            raise ApiError(503, "no bundle is loaded yet, or a compute thread has stopped", headers=RETRY_AFTER)
        return JsonResponse({"status": "ready", "model": served.model})

    async def metrics(self, request: Request) -> Response:
        """Return the metrics in the text format of Prometheus."""
        return Response(self.service_metrics.render(), media_type=MEDIA_TYPE)

    async def model(self, request: Request) -> Response:
        """Describe the bundles that are served."""

        def content() -> object:
            bundles = {slot: self.slots[slot] for slot in SLOTS}
            return {"bundles": {slot: served and served.describe() for slot, served in bundles.items()}}

        return Response(self._cached("model", lambda: orjson.dumps(content())), media_type=JSON)

    async def examples(self, request: Request) -> Response:
        """Return the example requests of a bundle."""
        slot = request.query_params.get("bundle", MAIN)
        served = self.slots[slot] if slot in SLOTS else None
        if served is None:
            loaded = " or ".join(self.slots.models())
            raise ApiError(422, f"bundle: found {slot[:60]!r}, expected {loaded}", "bundle")
        examples = served.bundle.examples()
        known = [{key: example.get(key) for key in ("relevant", "feedback")} for example in examples]
        return JsonResponse({"examples": [example["request"] for example in examples], "known": known})

    async def openapi(self, request: Request) -> Response:
        """Return the OpenAPI document, whose request schema is that of the bundles that are served."""
        body = self._cached("openapi", lambda: orjson.dumps(openapi_document(self.settings, self.slots)))
        return Response(body, media_type=JSON)

    async def docs(self, request: Request) -> Response:
        """Return the OpenAPI document as an HTML page."""

        def content() -> str:
            served = self.slots[MAIN]
            example = None if served is None else docs_example(served, real=self.settings.page)
            return docs_page(openapi_document(self.settings, self.slots), example)

        page = self._cached("docs", lambda: content().encode())
        # Only the first occurrence: texts of the bundle, which come later, may contain the placeholder, too.
        page = page.replace(ADDRESS.encode(), _address(request).encode(), 1)
        return Response(page, media_type=_HTML, headers=_PAGE_HEADERS)

    def _cached(self, name: str, render: Callable[[], bytes]) -> bytes:
        """Return the body of that name, which is rendered again after a bundle was replaced."""
        version = self.slots.version
        cached = self._cache.get(name)
        if cached is None or cached[0] != version:
            cached = self._cache[name] = version, render()
        return cached[1]


def _address(request: Request) -> str:
    """Return the address under which the client reached the service, from its Host header if that is well-formed."""
    host = request.headers.get("host", "")
    if not _HOST.fullmatch(host):
        name, port = request.scope["server"]
        host = f"[{name}]:{port}" if ":" in name else f"{name}:{port}"
    return f"http://{host}"


def docs_files() -> dict[str, Response]:
    """Return the files of the documentation page by path."""
    return {"/docs.css": _file_response(_DIRECTORY / "docs.css")}


def page_files() -> dict[str, Response]:
    """Return the files of the page by path."""
    files = sorted(file for file in (_DIRECTORY / "page").iterdir() if file.suffix in _MEDIA_TYPES)
    return {"/" if file.name == "index.html" else f"/{file.name}": _file_response(file) for file in files}


def _file_response(file: Path) -> Response:
    return Response(file.read_bytes(), media_type=_MEDIA_TYPES[file.suffix], headers=_PAGE_HEADERS)


_log = logging.getLogger(__name__)


@dataclass(eq=False, slots=True)
class AdminRoutes:
    """Endpoints that require the token.

    Args:
        token: The expected token; None disables the endpoints.
        reloader: Loads the bundles.
        bodies: Reads the request bodies.
    """

    token: str | None
    reloader: BundleReloader
    bodies: BodyReader

    async def reload(self, request: Request) -> Response:
        """Load a bundle into a slot."""
        self._check_token(request)
        body = await self.bodies.read(request)
        if len(body) > limits.LARGE_BODY_BYTES:
            message = f"body: found {len(body):,} bytes, expected at most {limits.LARGE_BODY_BYTES:,}"
            raise ApiError(413, message, reason="large body")
        content = parse_json(body, max_names=limits.max_names(limits.LARGE_BODY_BYTES))
        check_keys(content, RELOAD)
        path, slot = RELOAD["path"].read(content, "path"), BUNDLE.read(content, "bundle", default=MAIN)
        try:
            model, before = await self.reloader.reload(slot, Path(path))
        except (ValueError, OSError) as error:
            raise ApiError(409, str(error), "path") from None
        return JsonResponse({"model": model, "before": before})

    def _check_token(self, request: Request) -> None:
        if self.token is None:
            options = "--token-file and without the variable RANKFALL_TOKEN"
            raise ApiError(403, f"authorization: reloading is disabled, the service was started without {options}")
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        # bytes, because compare_digest takes no text beyond ASCII
        is_valid = hmac.compare_digest(token.strip().encode("latin-1"), self.token.encode())
        if scheme.lower() != "bearer" or not is_valid:
            address = "an unknown address" if request.client is None else request.client.host
            _log.warning("/reload with %s token from %s", "a wrong" if token else "no", address)
            message = "authorization: expected 'Bearer' and the token"
            raise ApiError(401, message, headers={"www-authenticate": "Bearer"})
